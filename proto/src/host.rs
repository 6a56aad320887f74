//! What an agent reports about its host and itself, beside the samples.

use serde::{Deserialize, Serialize};

use crate::clock::ClockKey;

/// One record of the host stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostRecord {
    /// A ticker's lateness.
    Lag(Lag),
    /// A clock exchange.
    Exchange(Exchange),
    /// All clocks read together.
    Anchor(Anchor),
    /// Probing for a run began.
    Started(ProbingStarted),
    /// Probing for a run ended.
    Ended(ProbingEnded),
    /// Probes of a control, or of the agent's own loopback.
    Control(ControlProbes),
    /// A part of the write ledger, read after the run.
    Ledger(LedgerEntry),
    /// A connection that was looked at beside the probes.
    Inspection(Box<Inspection>),
    /// Written by a newer build, in a way that this one does not know.
    #[serde(skip)]
    Unknown(Unknown),
}

/// A record that this build does not know: it keeps its place in the stream, so
/// that nothing around it is lost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unknown {
    /// What it is called; empty where that is not known.
    pub kind: String,
    /// As it stands in a spool, MessagePack; empty where it came over the wire from
    /// an agent that is newer than this build.
    pub packed: Vec<u8>,
}

/// What one connection told that was looked at beside the probes: what the
/// greeting says against what is answered over it, TLS, addresses. Never a probe.
/// Texts are empty where nothing is known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Inspection {
    /// Name of the target.
    pub target: String,
    /// When it was begun, RAW ns of the agent.
    pub at_ns: i64,
    /// When it was done or given up, RAW ns of the agent.
    pub until_ns: i64,
    /// What led to it: `start`, `again`, `switched`, `rare`.
    pub why: String,
    /// How it ended, where it did not come to its end; at most 200 characters.
    pub error: String,
    /// All addresses of the name, with commas between.
    pub addresses: String,
    /// The address that was connected to.
    pub peer: String,
    /// Our own end of that connection.
    pub local: String,
    /// Our address and port as the server sees them.
    pub seen_as: String,
    /// Version in the greeting.
    pub greeting_version: String,
    /// Connection id in the greeting: 32 bits.
    pub greeting_id: Option<u32>,
    /// Capability flags in the greeting.
    pub capabilities: Option<u32>,
    /// How the greeting wants passwords.
    pub auth_plugin: String,
    /// TLS that was agreed on with whoever answers: `TLSv1.3` and the like.
    pub tls_version: String,
    /// Its cipher suite, by the name of the standards.
    pub tls_cipher: String,
    /// TLS as the server behind sees it, by its own word: version and cipher.
    /// Empty: the server sees none.
    pub server_tls: Option<String>,
    /// `CONNECTION_ID()` inside the probes' statement.
    pub answered_id: Option<u64>,
    /// The same, asked a second time.
    pub again_id: Option<u64>,
    /// `CONNECTION_ID()` asked alone, which some proxies answer themselves.
    pub lone_id: Option<u64>,
    /// `VERSION()`
    pub server_version: String,
    /// Who answered.
    pub backend: String,
    /// Who answered the second time.
    pub again_backend: String,
    /// The expression that says who answers.
    pub identity: String,
}

/// What was found in the write ledger of a run when it was read from one place.
/// An entry with `times` 0 stands for the reading itself and comes once for each
/// place; the others say which numbered rows were there.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// Name of the target that it was read through.
    pub source: String,
    /// Which backend answered there; empty: not known.
    pub backend: String,
    /// Why it was not read; empty: it was, to its end.
    pub error: String,
    /// Whether the backends are said to share their data.
    pub shared: bool,
    /// Of rows: which start of the agent wrote them.
    pub incarnation: u64,
    /// Of rows: through which target.
    pub target: String,
    /// Of rows: which client.
    pub client: u16,
    /// Of rows: the first slot.
    pub first_slot: u64,
    /// Of rows: the last slot; every one from the first on is there.
    pub last_slot: u64,
    /// How often each of them is there.
    pub times: u32,
    /// Of a reading: what else is to be said, such as a table left behind.
    pub note: String,
}

/// Lateness of a 10 ms ticker: tells a slow target from a paused agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lag {
    /// Due time of the last tick in this record, RAW ns of the agent.
    pub at_ns: i64,
    /// How many consecutive ticks this record stands for.
    pub ticks: u32,
    /// The largest lateness among them, in ns.
    pub late_max_ns: u64,
}

/// Probes of a server that no fault touches, or of a null server in the agent
/// itself: one that was slow or bad, or some that were not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlProbes {
    /// The control's name; empty: the agent's own loopback.
    pub name: String,
    /// Begin of the first, RAW ns of the agent.
    pub at_ns: i64,
    /// End of the last, RAW ns of the agent.
    pub until_ns: i64,
    /// How many.
    pub probes: u32,
    /// How many of them were not answered well.
    pub bad: u32,
    /// The longest.
    pub took_max_ns: u64,
    /// Of a bad one: how it ended; at most 200 characters.
    pub error: String,
}

/// Four stamps of one exchange: agent sends, aggregator receives and sends,
/// agent receives. A send stamp is never late, a receive stamp never early.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// Agent's clock, at or before the ping left.
    pub a1_ns: i64,
    /// Aggregator's clock, at or after the ping arrived.
    pub s1_ns: i64,
    /// Aggregator's clock, at or before the pong left.
    pub s2_ns: i64,
    /// Agent's clock, at or after the pong arrived.
    pub a2_ns: i64,
    /// The aggregator's clock.
    pub server: ClockKey,
}

/// A host's clocks, read between two readings of RAW.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// RAW before the others were read.
    pub raw_before_ns: i64,
    /// RAW after the others were read.
    pub raw_after_ns: i64,
    /// CLOCK_MONOTONIC.
    pub monotonic_ns: i64,
    /// CLOCK_BOOTTIME.
    pub boottime_ns: i64,
    /// CLOCK_REALTIME.
    pub realtime_ns: i64,
    /// How late the timer was that led to this reading.
    pub timer_late_ns: u64,
}

/// An incarnation began to probe for a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbingStarted {
    /// Slot k of a client with phase p is due at `origin_ns + p + k * interval`.
    pub origin_ns: i64,
    /// Probing ends by itself here.
    pub planned_end_ns: i64,
    /// The clock of this and of all stamps of this incarnation.
    pub clock: ClockKey,
}

/// An incarnation stopped probing for a run, with its own books.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbingEnded {
    /// Slots due before this were due; later ones were not.
    pub end_ns: i64,
    /// "planned end", "stopped", "shutdown" ...
    pub reason: String,
    /// Slots due while this incarnation was probing.
    pub due: u64,
    /// Slots probed.
    pub sampled: u64,
    /// Slots that passed while the client waited for an answer.
    pub waited: u64,
    /// Slots that passed because the agent itself was late.
    pub overslept: u64,
}

/// What a host is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HostFacts {
    /// Host name.
    pub hostname: String,
    /// Kernel release.
    pub kernel: String,
    /// Processors online.
    pub cpus: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

impl HostFacts {
    /// Reads them from the running system.
    pub fn read() -> Self {
        let uname = rustix::system::uname();
        let memory = rustix::system::sysinfo();
        Self {
            hostname: uname.nodename().to_string_lossy().into_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            cpus: std::thread::available_parallelism()
                .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
            memory_bytes: (memory.totalram as u64).saturating_mul(u64::from(memory.mem_unit)),
        }
    }
}
