//! `manifest.json`: what a run is, who took part, how it ended.

use std::collections::BTreeMap;

use gapscope_proto::clock::ClockKey;
use gapscope_proto::fault::Subject;
use gapscope_proto::frame::StreamKind;
use gapscope_proto::host::{Anchor, HostFacts, ProbingEnded, ProbingStarted};
use gapscope_proto::ids::{AgentId, Incarnation, RunId, TargetName};
use gapscope_proto::plan::RunPlan;
use serde::{Deserialize, Serialize};

use super::footer::StreamKey;
use super::frame::Bound;
use super::inventory::FileEntry;

/// Version of the run folder written by this build; older ones stay readable.
/// Version 2 brought checksums, and live parts that replace others.
pub const FORMAT_VERSION: u32 = 2;

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Agents may still send.
    Running,
    /// Ended in an orderly way; parts are merged.
    Closed,
    /// Found unfinished when an aggregator started; what is there is valid.
    Interrupted,
}

/// How slots follow each other in this run's schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Slot k is due at origin + phase + k * interval, whatever happens.
    OpenLoop,
    /// An imported run whose probe waited for the answer, then slept: slots are
    /// reconstructed, and slots that passed meanwhile count as waited.
    Reconstructed,
}

/// One start of an agent within the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncarnationEntry {
    /// Which.
    pub incarnation: Incarnation,
    /// The clock its stamps were read from.
    pub clock: ClockKey,
    /// First record of its probing, when it arrived.
    pub started: Option<ProbingStarted>,
    /// Last record of its probing, when it arrived.
    pub ended: Option<ProbingEnded>,
    /// Highest sample seq that the agent said it had written (0: none known).
    pub samples_announced: u64,
    /// Highest sample seq stored or declared lost without a hole below.
    pub samples_committed: u64,
    /// Likewise for host records.
    pub host_committed: u64,
    /// Samples that came more than once and were left out: after a reconnection
    /// everything comes again from the last acknowledgement on.
    #[serde(default)]
    pub samples_repeated: u64,
}

/// A target as an agent knows it. No secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetEntry {
    /// Name.
    pub name: TargetName,
    /// host:port as configured at the agent.
    pub address: String,
    /// User name.
    pub user: String,
}

/// An agent that took part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentEntry {
    /// Which.
    pub agent_id: AgentId,
    /// Its program's version.
    pub program_version: String,
    /// Its host.
    pub host: HostFacts,
    /// The targets it offered.
    pub targets: Vec<TargetEntry>,
    /// Its starts.
    pub incarnations: Vec<IncarnationEntry>,
    /// Two agents were seen to use this id in turn: a start of one tells nothing of
    /// the other's.
    #[serde(default)]
    pub shares_id: bool,
}

impl AgentEntry {
    /// Whether its spool may hold samples that nobody here knows of: some start of
    /// it began to probe, and none came to the end. A start that came to the end is
    /// its last one for the run, and said before what the spool still held of the
    /// others; unless others have the same id, then each has to come to its end.
    pub fn may_hold_more(&self) -> bool {
        let mut open = self
            .incarnations
            .iter()
            .filter(|entry| entry.started.is_some() && entry.ended.is_none());
        let is_over = self.incarnations.iter().any(|entry| entry.ended.is_some());
        open.next().is_some() && (self.shares_id || !is_over)
    }
}

/// The whole file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT_VERSION`] of the writer.
    pub format_version: u32,
    /// The run.
    pub run_id: RunId,
    /// Where it stands.
    pub state: RunState,
    /// Wall time of creation, RFC 3339, UTC; a label, never used in arithmetic.
    pub created_utc: String,
    /// Wall time of the close.
    pub closed_utc: Option<String>,
    /// Why it ended.
    pub end_reason: Option<String>,
    /// The aggregator's version.
    pub program_version: String,
    /// The aggregator's host.
    pub host: HostFacts,
    /// The aggregator's clock, the run's timeline.
    pub clock: ClockKey,
    /// The aggregator's clocks at creation (and at close): RAW to UTC.
    pub anchors: Vec<Anchor>,
    /// What was asked of the agents.
    pub plan: RunPlan,
    /// How slots follow each other.
    pub schedule: Schedule,
    /// What faults may be done to.
    pub subjects: Vec<Subject>,
    /// For people: runtime, programs and their versions ...
    pub labels: BTreeMap<String, String>,
    /// Who took part.
    pub agents: Vec<AgentEntry>,
    /// What the aggregator itself has to say against the data.
    pub caveats: Vec<String>,
    /// The raw files of a closed run. None while they may change, and in runs that
    /// older builds closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<FileEntry>>,
}

/// What the store learns about streams goes into the manifest here.
impl Manifest {
    /// The entry of an incarnation, made if it is not there.
    pub(crate) fn incarnation_mut(
        &mut self,
        agent: &AgentId,
        incarnation: Incarnation,
    ) -> &mut IncarnationEntry {
        // Those of a start stand in order: there can be thousands.
        let found = self.agents.binary_search_by(|a| a.agent_id.cmp(agent)).ok();
        let found = found.or_else(|| self.agents.iter().position(|a| a.agent_id == *agent));
        let at = match found {
            Some(at) => at,
            None => {
                self.agents.push(AgentEntry {
                    agent_id: agent.clone(),
                    program_version: String::new(),
                    host: HostFacts::default(),
                    targets: Vec::new(),
                    incarnations: Vec::new(),
                    shares_id: false,
                });
                self.agents.len() - 1
            }
        };
        let entries = &mut self.agents[at].incarnations;
        let at = match entries.iter().position(|e| e.incarnation == incarnation) {
            Some(at) => at,
            None => {
                entries.push(IncarnationEntry {
                    incarnation,
                    clock: ClockKey {
                        boot_id: String::new(),
                        time_namespace: 0,
                    },
                    started: None,
                    ended: None,
                    samples_announced: 0,
                    samples_committed: 0,
                    host_committed: 0,
                    samples_repeated: 0,
                });
                entries.len() - 1
            }
        };
        &mut entries[at]
    }

    pub(crate) fn note_bound(&mut self, agent: &AgentId, incarnation: Incarnation, bound: Bound) {
        let entry = self.incarnation_mut(agent, incarnation);
        match bound {
            Bound::Started(started) => {
                entry.clock = started.clock.clone();
                entry.started = Some(started);
            }
            Bound::Ended(ended) => {
                entry.samples_announced = entry.samples_announced.max(ended.sampled);
                entry.ended = Some(ended);
            }
        }
    }

    pub(crate) fn note_committed(&mut self, stream: &StreamKey, seq: u64) {
        let entry = self.incarnation_mut(&stream.agent_id, stream.incarnation);
        match stream.kind {
            StreamKind::Samples => entry.samples_committed = entry.samples_committed.max(seq),
            StreamKind::Host => entry.host_committed = entry.host_committed.max(seq),
        }
    }
}
