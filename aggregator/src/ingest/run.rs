//! One task a run: admits records, commits them in groups, acknowledges, closes.
//!
//! It is the only writer of the run's folder. Writing is done on a blocking
//! thread; meanwhile the queue fills and its senders wait. A run that is closed
//! or was interrupted still takes what agents bring late, and merges it when
//! they are quiet: nothing that was measured is refused.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::frame::{Body, Frame, StreamId};
use gapscope_proto::ids::AgentId;
use gapscope_proto::wire;
use gapscope_proto::wire::aggregator_message::Kind;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::admit::{Admission, admit, cut_loss};
use super::command::{Closed, Command, Handle, Status};
use super::ending::{missing, since_planned_end};
use super::session::Session;
use crate::store::footer::StreamKey;
use crate::store::manifest::{AgentEntry, RunState};
use crate::store::{LossRecord, RunStore, StoreError};
use crate::utc::rfc3339;

/// From the first record of a group to its commit. The wait before an
/// acknowledgement is this plus the time to write and sync.
pub const GROUP_COMMIT: Duration = Duration::from_millis(200);
/// Records that are committed at once, however short the wait.
pub const GROUP_RECORDS: usize = 1 << 16;
/// Frames that may wait for a run; at most 1 MiB each on the wire.
pub const QUEUE: usize = 32;
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
/// Farthest seq anyone may claim.
const MAX_SEQ: u64 = u64::MAX / 2;

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
    /// The gap each stream's session was told of last: frames behind it in the
    /// pipe need not be answered again.
    nacked: BTreeMap<StreamKey, (u64, u64)>,
    commit_at: Option<Instant>,
    retrying: bool,
    trouble: Option<String>,
    stopping: Option<Stopping>,
    last_command: Instant,
}

/// Starts the task of a run whose folder is open.
pub fn spawn(store: RunStore, clock: Arc<dyn Clock>, shutdown: CancellationToken) -> Handle {
    let (commands, queue) = mpsc::channel(QUEUE);
    let (status, watcher) = watch::channel(Status {
        state: store.manifest().state,
        samples: store.samples_stored(),
        seen: Vec::new(),
        missing: Vec::new(),
        trouble: None,
    });
    let ended = CancellationToken::new();
    let agents = store.manifest().agents.iter();
    let chosen = Arc::new(agents.map(|agent| agent.agent_id.clone()).collect());
    let mut task = RunTask {
        store: Slot(Some(store)),
        clock,
        status,
        sessions: HashMap::new(),
        nacked: BTreeMap::new(),
        commit_at: None,
        retrying: false,
        trouble: None,
        stopping: None,
        last_command: Instant::now(),
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
        status: watcher,
        ended,
    }
}

impl RunTask {
    async fn run(mut self, mut queue: mpsc::Receiver<Command>, shutdown: CancellationToken) {
        loop {
            let wake = self.wake_at();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                () = tokio::time::sleep_until(wake) => {}
                command = queue.recv(), if !self.retrying => match command {
                    Some(command) => self.handle(command).await,
                    None => break,
                },
            }
            if self.commit_is_due() && !self.commit().await {
                self.tell_stoppers_of_trouble();
                continue;
            }
            if let Some(reason) = self.close_is_due() {
                self.close(reason).await;
            }
            if self.is_idle() {
                queue.close();
            }
        }
        // Whoever asked in the meantime asks again elsewhere.
        queue.close();
        while let Ok(command) = queue.try_recv() {
            self.handle(command).await;
        }
        if self.store.is_dirty() {
            self.commit().await;
        }
    }

    /// Nobody waits for a close longer than was said.
    fn tell_stoppers_of_trouble(&mut self) {
        let now = Instant::now();
        if let Some(stopping) = self.stopping.take_if(|stopping| stopping.until <= now) {
            let text = self.trouble.clone().unwrap_or_default();
            for reply in stopping.replies {
                let _ = reply.send(Err(text.clone()));
            }
        }
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
            Command::Frame(session, frame) => self.take_frame(&session, *frame),
            Command::Loss(session, loss) => self.take_loss(&session, loss),
            Command::Attach {
                session,
                entry,
                streams,
                reply,
            } => {
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
                let _ = reply.send(self.blocking(|store| store.record_fault(fault)).await);
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
            }
        }
    }

    fn commit_soon(&mut self) {
        self.commit_at
            .get_or_insert_with(|| Instant::now() + GROUP_COMMIT);
    }

    fn attach(
        &mut self,
        session: Arc<Session>,
        entry: AgentEntry,
        streams: &[(StreamId, u64)],
    ) -> Vec<u64> {
        let agent = session.agent.clone();
        self.store.edit_manifest(|manifest| {
            for (stream, last) in streams {
                let known = manifest.incarnation_mut(&agent, stream.incarnation);
                if stream.kind == gapscope_proto::frame::StreamKind::Samples {
                    known.samples_announced = known.samples_announced.max(*last);
                }
            }
            if let Some(known) = manifest.agents.iter_mut().find(|a| a.agent_id == agent) {
                known.program_version = entry.program_version;
                known.host = entry.host;
                known.targets = entry.targets;
            }
        });
        self.sessions.insert(agent.clone(), session);
        self.commit_soon();
        streams
            .iter()
            .map(|(stream, _)| self.store.durable(&key(&agent, stream)))
            .collect()
    }

    fn nack(
        &self,
        session: &Session,
        stream: &StreamId,
        reason: wire::NackReason,
        expected_seq: u64,
        detail: String,
    ) {
        session.link.send(Kind::Nack(wire::Nack {
            stream: Some(stream.into()),
            reason: reason.into(),
            expected_seq,
            detail,
            retry_after_ms: 0,
        }));
    }

    /// Decides about records `first..=last`; answers unless they are to be taken.
    fn admission(
        &mut self,
        session: &Arc<Session>,
        stream: &StreamId,
        first: u64,
        last: u64,
    ) -> Option<u64> {
        let key = key(&session.agent, stream);
        let newest = self
            .sessions
            .get(&session.agent)
            .is_none_or(|known| known.id <= session.id);
        if newest {
            self.sessions.insert(session.agent.clone(), session.clone());
        }
        match admit(self.store.admitted(&key), first, last) {
            Admission::Take { skip } => {
                self.note_late();
                Some(skip)
            }
            Admission::Duplicate => {
                // The acknowledgement may have been lost; say it again.
                let seq = self.store.durable(&key);
                if seq >= last {
                    session.link.send(Kind::Ack(wire::Ack {
                        stream: Some(stream.into()),
                        seq,
                    }));
                }
                None
            }
            Admission::Gap { expected } => {
                if self.nacked.insert(key, (session.id, expected)) != Some((session.id, expected)) {
                    let detail = format!("seq {expected} is next, not {first}");
                    self.nack(session, stream, wire::NackReason::Gap, expected, detail);
                }
                None
            }
        }
    }

    fn note_late(&mut self) {
        if self.store.manifest().state != RunState::Running {
            self.store.add_caveat(
                "data arrived after the run had ended here; what was computed before lacks it"
                    .to_owned(),
            );
        }
    }

    fn take_frame(&mut self, session: &Arc<Session>, frame: Frame) {
        let count = frame.count() as u64;
        let stream = frame.stream;
        let first = frame.first_seq;
        let last = first.saturating_add(count - 1);
        if last > MAX_SEQ {
            let detail = format!("seq {last} is out of range");
            return self.nack(session, &stream, wire::NackReason::Malformed, first, detail);
        }
        // Decoded before it is admitted: what cannot be decoded takes no seq.
        enum Records {
            Samples(Vec<gapscope_proto::sample::Sample>),
            Host(Vec<gapscope_proto::host::HostRecord>),
        }
        let records = match frame.body {
            Body::Samples(columns) => match columns.decode() {
                Ok(samples) => Records::Samples(samples),
                Err(error) => {
                    let detail = error.to_string();
                    return self.nack(session, &stream, wire::NackReason::Malformed, first, detail);
                }
            },
            Body::Host(records) => Records::Host(records),
        };
        let Some(skip) = self.admission(session, &stream, first, last) else {
            return;
        };
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        match records {
            Records::Samples(samples) => self.store.append_samples(
                &session.agent,
                stream.incarnation,
                samples.into_iter().skip(skip),
            ),
            Records::Host(records) => self.store.append_host(
                &session.agent,
                stream.incarnation,
                records.into_iter().skip(skip),
            ),
        }
        self.commit_soon();
    }

    fn take_loss(&mut self, session: &Arc<Session>, loss: LossRecord) {
        let stream = StreamId {
            run: self.store.manifest().run_id,
            incarnation: loss.incarnation,
            kind: loss.kind,
        };
        let (first, last) = (loss.first_seq, loss.last_seq);
        let length = last.wrapping_sub(first).wrapping_add(1);
        let sound = first >= 1
            && last >= first
            && last <= MAX_SEQ
            && loss.count_min <= loss.count_max
            && loss.count_max <= length;
        if !sound {
            let detail = format!(
                "a loss of {} to {} records in seqs {first} to {last} makes no sense",
                loss.count_min, loss.count_max
            );
            return self.nack(session, &stream, wire::NackReason::Malformed, first, detail);
        }
        let Some(skip) = self.admission(session, &stream, first, last) else {
            return;
        };
        let (first_seq, count_min, count_max) =
            cut_loss(skip, first, last, loss.count_min, loss.count_max);
        tracing::warn!(
            run = %stream.run, agent = %session.agent, reason = %loss.reason,
            "records {first_seq} to {last} are lost ({count_min} to {count_max} of them measured)"
        );
        let declared = self.store.declare_loss(LossRecord {
            first_seq,
            count_min,
            count_max,
            ..loss
        });
        debug_assert!(declared, "an admitted loss begins where the stream stands");
        self.commit_soon();
    }

    fn commit_is_due(&self) -> bool {
        self.store.pending() >= GROUP_RECORDS
            || self.commit_at.is_some_and(|at| at <= Instant::now())
    }

    /// Commits on a blocking thread; returns whether it worked.
    async fn commit(&mut self) -> bool {
        let result = self.blocking(RunStore::commit).await;
        self.after_write(result)
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
                true
            }
            Err(error) => {
                let text = error.to_string();
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

    fn missing(&self) -> Vec<String> {
        missing(self.store.manifest(), |agent, incarnation| {
            let session = self.sessions.get(agent);
            session.is_some_and(|session| session.incarnation != incarnation)
        })
    }

    fn publish(&mut self) {
        let manifest = self.store.manifest();
        let status = Status {
            state: manifest.state,
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
        self.status.send_replace(status);
    }

    fn close_is_due(&self) -> Option<String> {
        if self.retrying {
            return None;
        }
        let complete = || !self.store.is_dirty() && self.missing().is_empty();
        if let Some(stopping) = &self.stopping {
            return (stopping.until <= Instant::now() || complete())
                .then(|| stopping.reason.clone());
        }
        if self.store.manifest().state == RunState::Running {
            let (key, now) = (self.clock.key(), self.clock.anchor());
            let since = since_planned_end(self.store.manifest(), &key, &now);
            if since > GRACE_NS || (since > SETTLE_NS && complete()) {
                return Some("planned end".to_owned());
            }
            return None;
        }
        let late = self.store.has_live_parts() && self.last_command.elapsed() > LATE_MERGE;
        late.then(|| "completed by what arrived late".to_owned())
    }

    async fn close(&mut self, reason: String) {
        let missing = self.missing();
        let anchor = self.clock.anchor();
        let before = self.store.manifest().state;
        let first =
            before == RunState::Running || (before == RunState::Interrupted && missing.is_empty());
        let noted = missing.clone();
        let nothing_new =
            before == RunState::Closed && !self.store.is_dirty() && !self.store.has_live_parts();
        let result = if nothing_new {
            Ok(())
        } else {
            self.blocking(move |store| {
                store.close(|manifest| {
                    if !first {
                        return;
                    }
                    manifest.state = RunState::Closed;
                    manifest.closed_utc = Some(rfc3339(anchor.realtime_ns));
                    manifest.end_reason = Some(reason);
                    manifest.anchors.push(anchor);
                    for what in noted {
                        let caveat = format!("missing when the run was closed: {what}");
                        if !manifest.caveats.contains(&caveat) {
                            manifest.caveats.push(caveat);
                        }
                    }
                })
            })
            .await
        };
        let text = result.as_ref().err().map(ToString::to_string);
        self.after_write(result);
        if text.is_none() && first {
            tracing::info!(
                run = %self.store.manifest().run_id,
                samples = self.store.samples_stored(),
                missing = missing.len(),
                "closed"
            );
        }
        // A close that failed is tried again, but whoever waits is told now.
        if let Some(stopping) = self.stopping.take() {
            let closed = Closed {
                folder: self.store.folder().to_owned(),
                missing,
            };
            for reply in stopping.replies {
                let answer = text.clone().map_or_else(|| Ok(closed.clone()), Err);
                let _ = reply.send(answer);
            }
        }
    }
}

fn key(agent: &AgentId, stream: &StreamId) -> StreamKey {
    StreamKey {
        agent_id: agent.clone(),
        incarnation: stream.incarnation,
        kind: stream.kind,
    }
}
