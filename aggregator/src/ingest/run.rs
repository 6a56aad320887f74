//! One task a run: admits records, commits them in groups, acknowledges, closes.
//!
//! It is the only writer of the run's folder. Writing is done on a blocking
//! thread; meanwhile the queue fills and its senders wait. A run that is closed
//! or was interrupted still takes what agents bring late, and merges it when
//! they are quiet: nothing that was measured is refused.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::fault::Fault;
use gapscope_proto::frame::StreamId;
use gapscope_proto::ids::{AgentId, Incarnation};
use gapscope_proto::wire;
use gapscope_proto::wire::aggregator_message::Kind;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::command::{Closed, Command, Handle, Status};
use super::intake::Intake;
use super::session::Session;
use super::starts::Starts;
use crate::live::feed::{Feed, Live};
use crate::reporter::Reporter;
use crate::store::manifest::RunState;
use crate::store::writer::Compacted;
use crate::store::{RunStore, StoreError};

mod closing;
mod taking;

/// From the first record of a group to its commit. The wait before an
/// acknowledgement is this plus the time to write and sync.
pub const GROUP_COMMIT: Duration = Duration::from_millis(200);
/// Records that are committed at once, however short the wait.
pub const GROUP_RECORDS: usize = 1 << 16;
/// Frames that may wait for a run; at most 1 MiB each on the wire.
pub const QUEUE: usize = 32;
/// Bytes in memory of frames that may wait for a run ([`Arrived::bytes`]); a longer
/// one waits alone. Encoded they are a tenth of that, from an agent; a frame that
/// somebody has made on purpose can be a sixtieth. Beside it each session has at most
/// one frame in hand, which it has decoded and for which it waits for room.
///
/// [`Arrived::bytes`]: super::command::Arrived::bytes
pub const ROOM_BYTES: usize = 32 << 20;
/// Between two tries to write when the disk is full or failing.
const RETRY: Duration = Duration::from_secs(1);
/// From the planned end to the close of a run from which nothing is missing.
const SETTLE_NS: i64 = 3_000_000_000;
/// From the planned end to the close of a run from which something is missing.
pub const GRACE_NS: i64 = 30_000_000_000;
/// Quiet time before what came late is merged.
const LATE_MERGE: Duration = Duration::from_secs(5);
/// Quiet time after which a closed run's task ends.
const IDLE: Duration = Duration::from_secs(60);

struct Stopping {
    reason: String,
    until: Instant,
    replies: Vec<oneshot::Sender<Result<Closed, String>>>,
}

/// The store, which is away while a blocking thread writes.
struct Slot(Option<RunStore>);

impl std::ops::Deref for Slot {
    type Target = RunStore;
    fn deref(&self) -> &RunStore {
        self.0
            .as_ref()
            .expect("the task waits while the store is away")
    }
}

impl std::ops::DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut RunStore {
        self.0
            .as_mut()
            .expect("the task waits while the store is away")
    }
}

struct RunTask {
    store: Slot,
    clock: Arc<dyn Clock>,
    status: watch::Sender<Status>,
    sessions: HashMap<AgentId, Arc<Session>>,
    /// Starts of agents that say they are probing for this run: they owe an end,
    /// even if nothing has come from them yet.
    probing: HashMap<AgentId, Incarnation>,
    /// Whose later ones follow which.
    starts: Starts,
    intake: Intake,
    commit_at: Option<Instant>,
    /// Small parts that are being merged meanwhile.
    compacting: Option<JoinHandle<Compacted>>,
    retrying: bool,
    trouble: Option<String>,
    stopping: Option<Stopping>,
    last_command: Instant,
    /// Somebody has deleted the folder.
    deleted: bool,
    /// For those who watch.
    feed: Arc<Feed>,
    reporter: Option<Reporter>,
}

/// Starts the task of a run whose folder is open.
pub fn spawn(
    store: RunStore,
    clock: Arc<dyn Clock>,
    shutdown: CancellationToken,
    live: Live,
    reporter: Option<Reporter>,
) -> Handle {
    let (commands, queue) = mpsc::channel(QUEUE);
    let (status, watcher) = watch::channel(Status {
        state: store.manifest().state,
        is_stopping: false,
        samples: store.samples_stored(),
        seen: Vec::new(),
        missing: Vec::new(),
        trouble: None,
    });
    let ended = CancellationToken::new();
    let feed = Feed::start(
        store.manifest(),
        store.samples_stored(),
        store.faults(),
        clock.clone(),
        live,
        ended.clone(),
    );
    let agents = store.manifest().agents.iter();
    let chosen = Arc::new(agents.map(|agent| agent.agent_id.clone()).collect());
    let opened = Arc::new(store.manifest().clone());
    let mut task = RunTask {
        store: Slot(Some(store)),
        clock,
        status,
        sessions: HashMap::new(),
        probing: HashMap::new(),
        starts: Starts::default(),
        intake: Intake::default(),
        commit_at: None,
        compacting: None,
        retrying: false,
        trouble: None,
        stopping: None,
        last_command: Instant::now(),
        deleted: false,
        feed: feed.clone(),
        reporter,
    };
    if task.store.is_dirty() {
        task.commit_soon();
    }
    task.publish();
    let guard = ended.clone().drop_guard();
    tokio::spawn(async move {
        let _guard = guard;
        task.run(queue, shutdown).await;
    });
    Handle {
        commands,
        chosen,
        opened,
        room: Arc::new(Semaphore::new(ROOM_BYTES)),
        feed,
        status: watcher,
        ended,
    }
}

/// What came of a merge, when it has ended; never without one.
async fn finished(compacting: &mut Option<JoinHandle<Compacted>>) -> Compacted {
    let Some(task) = compacting else {
        return std::future::pending().await;
    };
    let compacted = task.await.expect("merging parts does not panic");
    *compacting = None;
    compacted
}

impl RunTask {
    async fn run(mut self, mut queue: mpsc::Receiver<Command>, shutdown: CancellationToken) {
        loop {
            let wake = self.wake_at();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                () = tokio::time::sleep_until(wake) => {}
                compacted = finished(&mut self.compacting) => self.compacted(compacted),
                command = queue.recv(), if !self.retrying => match command {
                    Some(command) => self.handle(command).await,
                    None => break,
                },
            }
            if self.commit_is_due() && !self.commit().await {
                if self.deleted {
                    break;
                }
                self.tell_stoppers_of_trouble();
                continue;
            }
            if let Some(reason) = self.close_is_due() {
                self.close(reason).await;
            }
            if self.deleted {
                break;
            }
            if self.is_idle() {
                queue.close();
            }
        }
        // Whoever asked in the meantime asks again elsewhere.
        queue.close();
        if self.deleted {
            self.say_deleted();
            self.trouble = Some(taking::DELETED.to_owned());
            self.tell_all_stoppers();
        }
        while let Ok(command) = queue.try_recv() {
            self.handle(command).await;
        }
        if self.store.is_dirty() && !self.deleted {
            self.commit().await;
        }
        // Whoever opens the run next must find nobody writing there.
        self.end_compacting().await;
    }

    fn wake_at(&self) -> Instant {
        let tick = Instant::now() + Duration::from_millis(500);
        let commit = self.commit_at.unwrap_or(tick);
        let stop = self
            .stopping
            .as_ref()
            .filter(|_| !self.retrying)
            .map_or(tick, |stop| stop.until);
        commit.min(stop).min(tick)
    }

    fn is_idle(&self) -> bool {
        self.store.manifest().state != RunState::Running
            && !self.store.is_dirty()
            && !self.store.has_live_parts()
            && self.stopping.is_none()
            && self.last_command.elapsed() > IDLE
    }

    async fn handle(&mut self, command: Command) {
        self.last_command = Instant::now();
        match command {
            Command::Frame(session, frame, _) if self.deleted => {
                self.refuse_deleted(&session, &frame.stream, frame.first_seq);
            }
            Command::Loss(session, loss) if self.deleted => {
                let stream = StreamId {
                    run: self.store.manifest().run_id,
                    incarnation: loss.incarnation,
                    kind: loss.kind,
                };
                self.refuse_deleted(&session, &stream, loss.first_seq);
            }
            // Whose reply is dropped asks again, and finds that there is no run.
            _ if self.deleted => {}
            Command::Frame(session, frame, _room) => self.take_frame(&session, *frame),
            Command::Loss(session, loss) => self.take_loss(&session, loss),
            Command::Attach {
                session,
                entry,
                streams,
                is_probing,
                reply,
            } => {
                if is_probing {
                    self.probing
                        .insert(session.agent.clone(), session.incarnation);
                } else {
                    self.probing.remove(&session.agent);
                }
                let durable = self.attach(session, *entry, &streams);
                // The session may be gone already.
                let _ = reply.send(durable);
            }
            Command::Fault(mut fault, reply) => {
                if fault.identity.is_none() {
                    let subjects = &self.store.manifest().subjects;
                    let known = subjects.iter().find(|s| s.name == fault.subject);
                    fault.identity = known.and_then(|subject| subject.identity.clone());
                }
                let noted = fault.clone();
                let recorded = self.blocking(|store| store.record_fault(fault)).await;
                if let Ok(id) = &recorded {
                    self.feed.fault(&Fault { id: *id, ..noted });
                }
                let _ = reply.send(recorded);
            }
            Command::Caveat(caveat) => {
                self.store.add_caveat(caveat);
                self.commit_soon();
            }
            Command::Stop {
                reason,
                drain,
                reply,
            } => {
                let until = Instant::now() + drain;
                match &mut self.stopping {
                    Some(stopping) => {
                        stopping.until = stopping.until.max(until);
                        stopping.replies.push(reply);
                    }
                    None => {
                        self.stopping = Some(Stopping {
                            reason,
                            until,
                            replies: vec![reply],
                        });
                    }
                }
                self.publish();
            }
        }
    }

    fn commit_soon(&mut self) {
        self.commit_at
            .get_or_insert_with(|| Instant::now() + GROUP_COMMIT);
    }

    fn commit_is_due(&self) -> bool {
        self.store.pending() >= GROUP_RECORDS
            || self.commit_at.is_some_and(|at| at <= Instant::now())
    }

    /// Commits on a blocking thread; returns whether it worked.
    async fn commit(&mut self) -> bool {
        let result = self.blocking(RunStore::commit).await;
        let worked = self.after_write(result);
        if worked {
            self.compact_soon();
        }
        worked
    }

    /// Has small parts merged, where they are many, while more are written: whoever
    /// waits for an acknowledgement does not wait for that.
    fn compact_soon(&mut self) {
        if self.compacting.is_none()
            && let Some(compacting) = self.store.begin_compact()
        {
            let work = move || compacting.perform();
            self.compacting = Some(tokio::task::spawn_blocking(work));
        }
    }

    fn compacted(&mut self, compacted: Compacted) {
        if let Err(error) = self.store.end_compact(compacted) {
            // Everything is stored all the same; the next commit tries again.
            tracing::warn!(run = %self.store.manifest().run_id, "parts are not merged: {error}");
        }
    }

    async fn end_compacting(&mut self) {
        if self.compacting.is_some() {
            let compacted = finished(&mut self.compacting).await;
            self.compacted(compacted);
        }
    }

    async fn blocking<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut RunStore) -> T + Send + 'static,
    ) -> T {
        let mut store = self
            .store
            .0
            .take()
            .expect("the task waits while the store is away");
        let (store, result) = tokio::task::spawn_blocking(move || {
            let result = work(&mut store);
            (store, result)
        })
        .await
        .expect("writing a run does not panic");
        self.store.0 = Some(store);
        result
    }

    fn after_write(&mut self, result: Result<(), StoreError>) -> bool {
        for (stream, seq) in self.store.take_acks() {
            if let Some(session) = self.sessions.get(&stream.agent_id) {
                session.link.send(Kind::Ack(wire::Ack {
                    stream: Some(wire::StreamId::from(&StreamId {
                        run: self.store.manifest().run_id,
                        incarnation: stream.incarnation,
                        kind: stream.kind,
                    })),
                    seq,
                }));
            }
        }
        let worked = match result {
            Ok(()) => {
                if self.trouble.take().is_some() {
                    tracing::info!(run = %self.store.manifest().run_id, "writing works again");
                }
                self.retrying = false;
                self.commit_at = None;
                self.feed.acknowledged();
                true
            }
            Err(error) => {
                let text = error.to_string();
                self.deleted = self.store.is_deleted();
                if self.deleted {
                    return false;
                }
                if self.trouble.as_ref() != Some(&text) {
                    tracing::warn!(
                        run = %self.store.manifest().run_id,
                        "{text}; nothing is acknowledged until it works, agents keep their data"
                    );
                    self.trouble = Some(text);
                }
                self.retrying = true;
                self.commit_at = Some(Instant::now() + RETRY);
                false
            }
        };
        self.publish();
        worked
    }

    fn publish(&mut self) {
        let manifest = self.store.manifest();
        let status = Status {
            state: manifest.state,
            is_stopping: self.stopping.is_some(),
            samples: self.store.samples_stored(),
            seen: manifest
                .agents
                .iter()
                .filter(|agent| {
                    agent
                        .incarnations
                        .iter()
                        .any(|i| i.host_committed + i.samples_committed > 0)
                })
                .map(|agent| agent.agent_id.clone())
                .collect(),
            missing: self.missing(),
            trouble: self.trouble.clone(),
        };
        self.feed.stands(status.state, status.trouble.as_deref());
        self.status.send_replace(status);
    }
}
