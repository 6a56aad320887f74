//! What agents send to a run: who they are, records, losses.

use std::sync::Arc;

use gapscope_proto::frame::{StreamId, StreamKind};
use gapscope_proto::ids::AgentId;
use gapscope_proto::wire;
use gapscope_proto::wire::aggregator_message::Kind;

use super::RunTask;
use crate::ingest::admit::cut_loss;
use crate::ingest::command::{Arrived, Records};
use crate::ingest::intake::Offered;
use crate::ingest::session::Session;
use crate::store::LossRecord;
use crate::store::footer::StreamKey;
use crate::store::manifest::{AgentEntry, RunState};

/// Farthest seq anyone may claim.
const MAX_SEQ: u64 = u64::MAX / 2;

impl RunTask {
    pub(super) fn attach(
        &mut self,
        session: Arc<Session>,
        entry: AgentEntry,
        streams: &[(StreamId, u64)],
    ) -> Vec<u64> {
        let agent = session.agent.clone();
        self.store.edit_manifest(|manifest| {
            for (stream, last) in streams {
                let known = manifest.incarnation_mut(&agent, stream.incarnation);
                if stream.kind == StreamKind::Samples {
                    known.samples_announced = known.samples_announced.max(*last);
                }
            }
            if let Some(known) = manifest.agents.iter_mut().find(|a| a.agent_id == agent) {
                known.program_version = entry.program_version;
                known.host = entry.host;
                known.targets = entry.targets;
            }
        });
        self.starts
            .attached(&agent, session.incarnation, session.id);
        if self.is_newest(&session) {
            self.sessions.insert(agent.clone(), session);
        }
        self.commit_soon();
        streams
            .iter()
            .map(|(stream, _)| self.store.durable(&key(&agent, stream)))
            .collect()
    }

    pub(super) fn nack(
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
        if self.is_newest(session) {
            self.starts
                .attached(&session.agent, session.incarnation, session.id);
            self.sessions.insert(session.agent.clone(), session.clone());
        }
        if self.starts.spoke(session.id) {
            self.note_shared(&session.agent);
        }
        let positions = self.store.positions();
        match self.intake.offer(positions, &key, session.id, first, last) {
            Offered::Take { skip } => {
                self.note_late();
                Some(skip)
            }
            Offered::Acknowledge { seq } => {
                session.link.send(Kind::Ack(wire::Ack {
                    stream: Some(stream.into()),
                    seq,
                }));
                None
            }
            Offered::Refuse { expected } => {
                let detail = format!("seq {expected} is next, not {first}");
                self.nack(session, stream, wire::NackReason::Gap, expected, detail);
                None
            }
            Offered::Nothing => None,
        }
    }

    fn is_newest(&self, session: &Session) -> bool {
        let known = self.sessions.get(&session.agent);
        known.is_none_or(|known| known.id <= session.id)
    }

    /// A start of the agent is alive that a later one seemed to have followed.
    fn note_shared(&mut self, agent: &AgentId) {
        let run = self.store.manifest().run_id;
        tracing::error!(%run, %agent, "two agents use this id: give one of them another");
        self.store.edit_manifest(|manifest| {
            if let Some(known) = manifest.agents.iter_mut().find(|a| a.agent_id == *agent) {
                known.shares_id = true;
            }
        });
        self.store.add_caveat(format!(
            "two agents used the id `{agent}` in turn: the samples of both are under it, each \
             under its own start"
        ));
    }

    /// Samples that are here already are left out, and counted.
    fn count_repeated(&mut self, key: &StreamKey, first: u64, last: u64) {
        let admitted = self.store.admitted(key);
        if key.kind == StreamKind::Samples && first <= admitted {
            let repeated = last.min(admitted) - first + 1;
            self.store.edit_manifest(|manifest| {
                manifest
                    .incarnation_mut(&key.agent_id, key.incarnation)
                    .samples_repeated += repeated;
            });
            self.commit_soon();
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

    pub(super) fn take_frame(&mut self, session: &Arc<Session>, frame: Arrived) {
        let count = frame.records.len() as u64;
        let stream = frame.stream;
        let first = frame.first_seq;
        let last = first.saturating_add(count.saturating_sub(1));
        if last > MAX_SEQ {
            let detail = format!("seq {last} is out of range");
            return self.nack(session, &stream, wire::NackReason::Malformed, first, detail);
        }
        self.count_repeated(&key(&session.agent, &stream), first, last);
        let Some(skip) = self.admission(session, &stream, first, last) else {
            return;
        };
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        match frame.records {
            Records::Samples(series, rows) => {
                let new = rows.get(skip..).unwrap_or_default();
                self.feed
                    .take_rows(&session.agent, &session.clock, &series, new);
                self.store
                    .append_rows(&session.agent, stream.incarnation, &series, new);
            }
            Records::Host(records) => {
                let new = records.get(skip..).unwrap_or_default();
                self.feed.take_host(&session.agent, &session.clock, new);
                self.store.append_host(
                    &session.agent,
                    stream.incarnation,
                    records.into_iter().skip(skip),
                );
            }
        }
        self.commit_soon();
    }

    pub(super) fn take_loss(&mut self, session: &Arc<Session>, loss: LossRecord) {
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
        if stream.kind == StreamKind::Samples {
            self.feed.take_loss(&session.agent, count_max, &loss.reason);
        }
        let declared = self.store.declare_loss(LossRecord {
            first_seq,
            count_min,
            count_max,
            ..loss
        });
        debug_assert!(declared, "an admitted loss begins where the stream stands");
        self.commit_soon();
    }

    /// The run's folder was deleted: nobody need wait for anything it was to hold.
    /// Agents are told, stop probing for it and let go of its data.
    pub(super) fn say_deleted(&mut self) {
        let run = self.store.manifest().run_id;
        tracing::error!(
            %run,
            "`{}` was deleted; the run has ended, and what agents hold of it is given up",
            self.store.folder().display()
        );
        let unsettled: Vec<(StreamKey, u64)> = self
            .store
            .unsettled()
            .map(|(stream, first)| (stream.clone(), first))
            .collect();
        for (stream, first) in unsettled {
            if let Some(session) = self.sessions.get(&stream.agent_id) {
                let id = StreamId {
                    run,
                    incarnation: stream.incarnation,
                    kind: stream.kind,
                };
                self.refuse_deleted(session, &id, first);
            }
        }
        for session in self.sessions.values() {
            session.link.send(Kind::StopRun(wire::StopRun {
                run_id: run.to_string(),
                reason: DELETED.to_owned(),
            }));
        }
    }

    pub(super) fn refuse_deleted(&self, session: &Session, stream: &StreamId, first: u64) {
        let reason = wire::NackReason::UnknownRun;
        self.nack(session, stream, reason, first, DELETED.to_owned());
    }
}

/// What is said of a deleted run.
pub(super) const DELETED: &str = "its folder was deleted";

fn key(agent: &AgentId, stream: &StreamId) -> StreamKey {
    StreamKey {
        agent_id: agent.clone(),
        incarnation: stream.incarnation,
        kind: stream.kind,
    }
}
