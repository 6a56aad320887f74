//! What a watcher is told: the whole at first, then what changed. Pure.
//!
//! The JSON of these types is what browsers get, and nothing else reads it; it may
//! change with the program. All times are in ns after the run's begin on the run's
//! timeline.

use serde::{Deserialize, Serialize};

use super::event::Event;

/// Width of a column.
pub const BIN_NS: i64 = 250_000_000;
/// Columns that are kept: two minutes.
pub const BINS: usize = 480;
/// Over how long rates and latencies are computed.
pub const RECENT_BINS: i64 = 20;
/// The newest columns that are left out there: what belongs into them may still be
/// on its way.
pub const ON_THE_WAY_BINS: i64 = 3;

/// How a lane stands, worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// All probes of the last two seconds were answered in time.
    Answered,
    /// Nothing has arrived for longer than this lane's probes are apart.
    NoData,
    /// The same, while other things arrive from the agent: its clients wait.
    Silent,
    /// Some were answered past the deadline.
    Late,
    /// Some were bad.
    SomeBad,
    /// All were bad.
    AllBad,
    /// The run has ended.
    Ended,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Answered,
        Self::NoData,
        Self::Silent,
        Self::Late,
        Self::SomeBad,
        Self::AllBad,
        Self::Ended,
    ];

    /// As a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::NoData => "no_data",
            Self::Silent => "silent",
            Self::Late => "late",
            Self::SomeBad => "some_bad",
            Self::AllBad => "all_bad",
            Self::Ended => "ended",
        }
    }
}

/// What touched a column, as [`super::lane::bit`] has it, and how many probes ended
/// in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "[u32; 6]", into = "[u32; 6]")]
pub struct Bin {
    /// Answered in time.
    pub ok: u32,
    /// Answered past the deadline.
    pub late: u32,
    /// Not answered, or wrongly.
    pub bad: u32,
    /// See [`super::lane::bit`].
    pub bits: u8,
    /// Of the first bad one: index into the kinds of a report's timeline.
    pub cause: u8,
    /// Who answered last: index into [`View::backends`] plus one; 0: nobody.
    pub backend: u8,
}

impl From<Bin> for [u32; 6] {
    fn from(bin: Bin) -> Self {
        let small = |n: u8| u32::from(n);
        [
            bin.ok,
            bin.late,
            bin.bad,
            small(bin.bits),
            small(bin.cause),
            small(bin.backend),
        ]
    }
}

impl From<[u32; 6]> for Bin {
    fn from([ok, late, bad, bits, cause, backend]: [u32; 6]) -> Self {
        let small = |n: u32| u8::try_from(n).unwrap_or(u8::MAX);
        Self {
            ok,
            late,
            bad,
            bits: small(bits),
            cause: small(cause),
            backend: small(backend),
        }
    }
}

/// One kind of client of one target, as one agent has them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneView {
    /// Who probes.
    pub agent: String,
    /// What.
    pub target: String,
    /// How.
    pub style: String,
    /// Which kind of client.
    pub kind: String,
    /// How many.
    pub clients: u32,
    /// Time between a client's slots.
    pub interval_ns: u64,
    /// How it stands.
    pub state: State,
    /// Since the newest sample ended; none: none has arrived.
    pub quiet_ns: Option<u64>,
    /// Who answered in the last seconds: indexes into [`View::backends`].
    pub backends: Vec<u32>,
    /// Probes ended a second, over the last seconds.
    pub rate: f64,
    /// Half of the answers of the last seconds took no longer.
    pub p50_ns: Option<u64>,
    /// All but one in a hundred took no longer.
    pub p99_ns: Option<u64>,
    /// Clients whose newest probe was bad.
    pub bad_clients: u32,
    /// Answered in time, since the begin.
    pub ok: u64,
    /// Answered past the deadline.
    pub late: u64,
    /// Not answered, or wrongly.
    pub bad: u64,
    /// Probes that say nothing of the target.
    pub void: u64,
    /// How often a client went from good to bad.
    pub stretches: u64,
    /// What the newest bad probe said; empty: none yet.
    pub last_error: String,
    /// Number of the first column of `bins`.
    pub first_bin: i64,
    /// Columns that changed.
    pub bins: Vec<Bin>,
}

/// An agent that takes part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentView {
    /// Its id.
    pub agent: String,
    /// Whether it is connected.
    pub connected: bool,
    /// By how much its times can be off; none: not known yet.
    pub clock_bound_ns: Option<u64>,
    /// Bytes in its spool.
    pub spool_bytes: u64,
    /// Samples that it holds and that are not acknowledged.
    pub unacked_samples: u64,
    /// How old the newest acknowledged sample is; none: there is none.
    pub behind_ns: Option<u64>,
}

/// What was done to a subject, for a band across the lanes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultView {
    /// Its number.
    pub id: u32,
    /// Step and subject.
    pub name: String,
    /// A note, which is nothing that was done.
    pub is_mark: bool,
    /// When it was asked for.
    pub asked_ns: i64,
    /// The last thing that a witness has seen of it; none: nothing yet.
    pub seen_ns: Option<i64>,
    /// When it was undone.
    pub cleared_ns: Option<i64>,
}

/// What a watcher is told of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// Which run.
    pub run_id: String,
    /// Its name.
    pub scenario: String,
    /// `running`, `closed` or `interrupted`.
    pub run_state: String,
    /// All is told anew: forget what was told before.
    pub is_whole: bool,
    /// When this was put together.
    pub now_ns: i64,
    /// The same by the aggregator's wall clock, in ms since 1970: a label.
    pub now_unix_ms: i64,
    /// End of the newest acknowledged sample, likewise; none: there is none.
    pub newest_unix_ms: Option<i64>,
    /// Planned length.
    pub planned_ns: u64,
    /// Deadline of a good answer.
    pub deadline_ns: u64,
    /// Samples acknowledged since this aggregator was started.
    pub samples: u64,
    /// Samples that will never come, at most.
    pub lost: u64,
    /// Why nothing can be written at present; empty: it can.
    pub trouble: String,
    /// Updates that this watcher did not get because it did not keep up.
    pub missed: u64,
    /// Lanes that are not shown because there are too many.
    pub lanes_left_out: u64,
    /// Event lines that were left out because there were too many.
    pub events_left_out: u64,
    /// All backends that have answered.
    pub backends: Vec<String>,
    /// All lanes, always all of them and in the same order.
    pub lanes: Vec<LaneView>,
    /// Agents that take part.
    pub agents: Vec<AgentView>,
    /// The newest faults and marks.
    pub faults: Vec<FaultView>,
    /// New lines.
    pub events: Vec<Event>,
}
