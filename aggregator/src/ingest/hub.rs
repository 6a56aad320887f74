//! Who is connected, and which runs there are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gapscope_proto::clock::{Clock, ClockKey};
use gapscope_proto::host::HostFacts;
use gapscope_proto::ids::{AgentId, Incarnation, RunId};
use gapscope_proto::wire;
use gapscope_proto::wire::aggregator_message::Kind;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::command::{Command, Handle};
use super::ending::since_planned_end;
use super::run::{self, GRACE_NS};
use super::session::Session;
use crate::live::feed::{Feed, Live};
use crate::reporter::Reporter;
use crate::store::disk::{Disk, parts_in};
use crate::store::manifest::{AgentEntry, Manifest, RunState, TargetEntry};
use crate::store::reader::list_runs;
use crate::store::writer::is_deleted;
use crate::store::{RunFolder, RunStore, StoreError};

/// An agent that has been seen since this aggregator started.
#[derive(Debug, Clone)]
pub struct Agent {
    /// Its newest start.
    pub incarnation: Incarnation,
    /// Its program's version.
    pub program_version: String,
    /// Its clock.
    pub clock: ClockKey,
    /// Its host.
    pub host: HostFacts,
    /// What it can probe.
    pub targets: Vec<TargetEntry>,
    /// What it is probing.
    pub running: BTreeSet<RunId>,
    /// Bytes in its spool.
    pub spool_bytes: u64,
    /// Its session, while connected.
    pub session: Option<Arc<Session>>,
    /// Live progress of each run.
    pub progress: BTreeMap<RunId, wire::RunProgress>,
}

impl Agent {
    /// As a run's manifest has it.
    pub fn entry(&self, id: &AgentId) -> AgentEntry {
        AgentEntry {
            agent_id: id.clone(),
            program_version: self.program_version.clone(),
            host: self.host.clone(),
            targets: self.targets.clone(),
            incarnations: Vec::new(),
            shares_id: false,
        }
    }
}

/// The server's shared state.
pub struct Hub {
    data: PathBuf,
    clock: Arc<dyn Clock>,
    disk: Disk,
    agents: Mutex<BTreeMap<AgentId, Agent>>,
    runs: tokio::sync::Mutex<BTreeMap<RunId, Handle>>,
    refusals: watch::Sender<BTreeMap<(RunId, AgentId), String>>,
    next_session: AtomicU64,
    live: Live,
    reporter: Option<Reporter>,
    /// Cancelled first: runs write what they hold and end.
    pub flush: CancellationToken,
    /// Cancelled then: sessions and streams end.
    pub shutdown: CancellationToken,
}

impl Hub {
    /// Opens the data folder and goes on with the runs that are unfinished;
    /// those whose planned end is long past are marked as interrupted (what
    /// agents still hold of them is taken all the same).
    ///
    /// # Errors
    /// When the data folder cannot be read. A single run that cannot be opened
    /// is logged and left alone.
    pub async fn open(
        data: &Path,
        clock: Arc<dyn Clock>,
        disk: Disk,
        reporter: Option<Reporter>,
    ) -> Result<Arc<Self>, StoreError> {
        let hub = Arc::new(Self {
            data: data.to_owned(),
            clock,
            disk,
            agents: Mutex::default(),
            runs: tokio::sync::Mutex::default(),
            refusals: watch::Sender::default(),
            next_session: AtomicU64::new(1),
            live: Live::default(),
            reporter,
            flush: CancellationToken::new(),
            shutdown: CancellationToken::new(),
        });
        for (id, folder) in list_runs(data)? {
            if let Err(error) = hub.resume(id, &folder).await {
                tracing::error!(run = %id, "cannot go on with this run: {error}");
            }
        }
        Ok(hub)
    }

    async fn resume(&self, id: RunId, folder: &Path) -> Result<(), StoreError> {
        let manifest = crate::store::reader::read_manifest(folder)?;
        if manifest.state != RunState::Running {
            return self.take_up_merge(id, folder).await;
        }
        let since = since_planned_end(&manifest, &self.clock.key(), &self.clock.anchor());
        let mut store = RunStore::open(folder, self.disk.clone())?;
        if since > GRACE_NS {
            tracing::warn!(run = %id, "was left unfinished: interrupted");
            store.interrupt("the aggregator was not running at its end")?;
        } else {
            tracing::info!(run = %id, samples = store.samples_stored(), "goes on");
            store.add_caveat("the aggregator was restarted during the run".to_owned());
        }
        let handle = self.spawn(store);
        self.runs.lock().await.insert(id, handle);
        Ok(())
    }

    /// Of a run that is over: what an aggregator that was killed had not merged.
    async fn take_up_merge(&self, id: RunId, folder: &Path) -> Result<(), StoreError> {
        let mut is_whole = true;
        for live in ["samples/live", "host/live"] {
            let live = folder.join(live);
            is_whole &= !live.exists() || parts_in(&live)?.is_empty();
        }
        if is_whole {
            return Ok(());
        }
        tracing::info!(run = %id, "is over, and was not merged to its end: that is done now");
        let store = RunStore::open(folder, self.disk.clone())?;
        let handle = self.spawn(store);
        self.runs.lock().await.insert(id, handle);
        Ok(())
    }

    fn spawn(&self, store: RunStore) -> Handle {
        run::spawn(
            store,
            self.clock.clone(),
            self.flush.clone(),
            self.live.clone(),
            self.reporter.clone(),
        )
    }

    /// What those who watch share.
    pub fn live(&self) -> &Live {
        &self.live
    }

    /// The feed of a run; of the newest that is running, or else of the newest, if
    /// none is named. Not that of `over`, which has been seen to its end.
    ///
    /// # Errors
    /// When the run cannot be opened.
    pub async fn feed(
        &self,
        wanted: Option<RunId>,
        over: Option<RunId>,
    ) -> Result<Option<(RunId, Arc<Feed>)>, StoreError> {
        let id = match wanted {
            Some(id) => id,
            None => {
                let running = {
                    let runs = self.runs.lock().await;
                    let mut running = runs.iter().rev().filter(|(_, handle)| {
                        handle.status.borrow().state == RunState::Running
                            && !handle.commands.is_closed()
                    });
                    running.next().map(|(id, _)| *id)
                };
                let newest = || Ok(list_runs(&self.data)?.into_iter().map(|(id, _)| id).max());
                match running.map_or_else(newest, |id| Ok(Some(id)))? {
                    Some(id) if over != Some(id) => id,
                    _ => return Ok(None),
                }
            }
        };
        Ok(self.run(id).await?.map(|handle| (id, handle.feed)))
    }

    /// The feeds of the runs that have a task.
    pub async fn feeds(&self) -> Vec<(RunId, Arc<Feed>)> {
        let runs = self.runs.lock().await;
        let open = runs
            .iter()
            .filter(|(_, handle)| !handle.commands.is_closed());
        open.map(|(id, handle)| (*id, handle.feed.clone()))
            .collect()
    }

    /// Where runs are.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The aggregator's clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    fn agents_mut(&self) -> MutexGuard<'_, BTreeMap<AgentId, Agent>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everyone seen so far.
    pub fn agents(&self) -> BTreeMap<AgentId, Agent> {
        self.agents_mut().clone()
    }

    /// A number for a new session, higher than all before.
    pub fn session_number(&self) -> u64 {
        self.next_session.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes note of an agent's new session; an older one of the same agent id
    /// is closed, and its leftovers are recognised by their number.
    pub fn connect(&self, id: AgentId, agent: Agent) {
        self.live.presence.connected(&id, agent.clock.clone());
        let start = agent.session.as_ref().map(|session| session.incarnation);
        let old = {
            let mut agents = self.agents_mut();
            let old = agents.remove(&id).and_then(|old| old.session);
            agents.insert(id.clone(), agent);
            old
        };
        if let Some(old) = old {
            tracing::info!(agent = %id, "a newer session replaces the older one");
            // The same start of the agent may be heard late: it had given up a
            // connection whose Hello was read only now. That is no other agent.
            old.link.close(if start == Some(old.incarnation) {
                Status::unavailable("an earlier connection of this agent was heard late")
            } else {
                Status::aborted(format!("a newer session of agent `{id}` has taken over"))
            });
        }
    }

    /// Takes note that a session has ended.
    pub fn disconnect(&self, session: &Session) {
        let mut agents = self.agents_mut();
        if let Some(agent) = agents.get_mut(&session.agent)
            && agent.session.as_ref().is_some_and(|s| s.id == session.id)
        {
            agent.session = None;
            self.live.presence.disconnected(&session.agent);
        }
    }

    /// Takes in a heartbeat.
    pub fn heartbeat(&self, session: &Session, beat: wire::Heartbeat) {
        let mut agents = self.agents_mut();
        let Some(agent) = agents.get_mut(&session.agent) else {
            return;
        };
        agent.spool_bytes = beat.spool_bytes;
        self.live
            .presence
            .heartbeat(&session.agent, beat.spool_bytes, beat.unacked_samples);
        agent.running.clear();
        for progress in beat.runs {
            if let Ok(run) = progress.run_id.parse::<RunId>() {
                agent.running.insert(run);
                agent.progress.insert(run, progress);
            }
        }
        // Only what is running is worth showing, and only so much is kept.
        while agent.progress.len() > 16 {
            agent.progress.pop_first();
        }
    }

    /// An agent will not do its part of a run.
    pub fn refuse(&self, run: RunId, agent: &AgentId, reason: String) {
        tracing::warn!(%run, %agent, "refused: {reason}");
        self.refusals.send_modify(|refusals| {
            refusals.insert((run, agent.clone()), reason);
            while refusals.len() > 1000 {
                refusals.pop_first();
            }
        });
    }

    /// Refusals, as they come.
    pub fn refusals(&self) -> watch::Receiver<BTreeMap<(RunId, AgentId), String>> {
        self.refusals.subscribe()
    }

    /// A run's task; started again if the run is here and its task has ended.
    ///
    /// # Errors
    /// When the run cannot be opened, or it cannot be told whether it is here.
    pub async fn run(&self, id: RunId) -> Result<Option<Handle>, StoreError> {
        let mut runs = self.runs.lock().await;
        if let Some(handle) = runs.get(&id) {
            if !handle.commands.is_closed() {
                return Ok(Some(handle.clone()));
            }
            handle.ended.cancelled().await;
            runs.remove(&id);
        }
        let folder = self.data.join(id.to_string());
        // One that cannot be read just now is an error: an agent that is told that
        // there is no such run gives its data up.
        if self.flush.is_cancelled() || is_deleted(&folder) {
            return Ok(None);
        }
        let disk = self.disk.clone();
        let store = tokio::task::spawn_blocking(move || RunStore::open(&folder, disk))
            .await
            .expect("opening a run does not panic")?;
        let handle = self.spawn(store);
        runs.insert(id, handle.clone());
        Ok(Some(handle))
    }

    /// Makes a new run and starts its task.
    ///
    /// # Errors
    /// When its folder cannot be made.
    pub async fn create(&self, manifest: Manifest) -> Result<Handle, StoreError> {
        let id = manifest.run_id;
        let mut runs = self.runs.lock().await;
        let (data, disk) = (self.data.clone(), self.disk.clone());
        let store = tokio::task::spawn_blocking(move || RunStore::create(&data, manifest, disk))
            .await
            .expect("making a run does not panic")?;
        let handle = self.spawn(store);
        runs.insert(id, handle.clone());
        Ok(handle)
    }

    /// The runs for which agents are to be probing now.
    pub async fn running(&self) -> Vec<Handle> {
        let (key, now) = (self.clock.key(), self.clock.anchor());
        let runs = self.runs.lock().await;
        runs.values()
            .filter(|handle| {
                let status = handle.status.borrow();
                status.state == RunState::Running && !status.is_stopping
            })
            .filter(|handle| since_planned_end(&handle.opened, &key, &now) <= 0)
            .cloned()
            .collect()
    }

    /// Tells every connected agent to stop probing for a run.
    pub fn stop_agents(&self, run: RunId, reason: &str) {
        for agent in self.agents().into_values() {
            if let Some(session) = agent.session {
                session.link.send(Kind::StopRun(wire::StopRun {
                    run_id: run.to_string(),
                    reason: reason.to_owned(),
                }));
            }
        }
    }

    /// The runs of the data folder, oldest first, with the number of samples.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub async fn list(&self) -> Result<Vec<(Manifest, PathBuf, u64)>, StoreError> {
        let live: BTreeMap<RunId, u64> = self
            .runs
            .lock()
            .await
            .iter()
            .map(|(id, handle)| (*id, handle.status.borrow().samples))
            .collect();
        let data = self.data.clone();
        tokio::task::spawn_blocking(move || {
            let mut found = Vec::new();
            for (id, folder) in list_runs(&data)? {
                // One that cannot be read does not hide the others.
                match RunFolder::open(&folder) {
                    Ok(run) => {
                        let samples = live.get(&id).copied().unwrap_or(run.samples_stored());
                        found.push((run.manifest().clone(), folder, samples));
                    }
                    Err(error) => tracing::warn!("{error}"),
                }
            }
            Ok(found)
        })
        .await
        .expect("listing runs does not panic")
    }

    /// Says goodbye to agents, lets runs write what they hold, ends all streams.
    pub async fn drain(&self) {
        for agent in self.agents().into_values() {
            if let Some(session) = agent.session {
                session.link.send(Kind::Drain(wire::Drain {
                    reason: "the aggregator is shutting down".to_owned(),
                }));
            }
        }
        self.flush.cancel();
        let handles: Vec<Handle> = self.runs.lock().await.values().cloned().collect();
        for handle in handles {
            handle.ended.cancelled().await;
        }
        self.shutdown.cancel();
    }

    /// Adds something that an agent has to say against a run's data.
    pub async fn caveat(&self, run: RunId, from: &Session, caveat: String) {
        if let Ok(Some(handle)) = self.run(run).await
            && handle.takes_part(from)
        {
            // A run that has ended meanwhile has nothing to add.
            let _ = handle.commands.send(Command::Caveat(caveat)).await;
        }
    }
}
