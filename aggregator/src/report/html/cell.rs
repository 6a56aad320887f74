//! What one column of one strip of the timeline remembers of the slots that
//! touched it: bits that are only ever added, and the extremes of the latencies.

use gapscope_proto::sample::{Cause, Outcome};

/// Bits of a cell.
pub mod bit {
    /// A slot answered in time.
    pub const GOOD: u8 = 1;
    /// A probe answered past the deadline.
    pub const LATE: u8 = 2;
    /// A probe not answered, or wrongly.
    pub const BAD: u8 = 4;
    /// A slot that passed while the client waited for an answer that came in time
    /// for this slot as well.
    pub const WAITED: u8 = 8;
    /// A slot that passed while the client waited for one that never came.
    pub const WAITED_IN_VAIN: u8 = 16;
    /// A slot of which nothing is known.
    pub const NO_DATA: u8 = 32;
    /// A slot that passed while the client waited for an answer that came too late
    /// for it.
    pub const WAITED_LONG: u8 = 64;
}

/// No backend answered here.
pub const NO_BACKEND: u8 = 255;
/// Several did.
pub const SEVERAL_BACKENDS: u8 = 254;

/// Kinds of bad, by number: what the colours stand for.
pub const CAUSES: [&str; 6] = [
    "refused or unreachable",
    "connection cut",
    "the client's own timeout",
    "error packet from a server or proxy",
    "session state lost",
    "other",
];

/// Which of [`CAUSES`].
pub fn cause_group(outcome: Outcome, cause: Option<Cause>) -> u8 {
    match (outcome, cause) {
        (Outcome::StateLost, _) => 4,
        (Outcome::TimedOut, _) => 2,
        (Outcome::ServerError, _) => 3,
        (_, Some(Cause::Refused | Cause::Unreachable | Cause::NotResolved)) => 0,
        (Outcome::ConnectionLost | Outcome::ConnectFailed, _) => 1,
        _ => 5,
    }
}

/// A time's place on a log scale in 16 bits: 0 is "none".
pub(super) fn log_code(ns: i64, up: bool) -> u16 {
    let exact = (ns.max(1) as f64).log10() * LOG_STEPS;
    let whole = if up { exact.ceil() } else { exact.floor() };
    (whole.clamp(0.0, 65_533.0) as u16) + 1
}

/// Steps of `log_code` for a factor of ten.
pub const LOG_STEPS: f64 = 2_000.0;

/// What touched one column of one strip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// See [`bit`].
    pub bits: u8,
    /// The first bad probe's kind: index into [`CAUSES`].
    pub cause: u8,
    /// Who answered: index into [`super::lanes::Gathered::backends`].
    pub backend: u8,
    /// Shortest answered probe begun here, as a log code.
    pub low: u16,
    /// The longest.
    pub high: u16,
    /// Probes due here.
    pub probed: u16,
    /// Of these, bad or late.
    pub bad: u16,
}

pub(super) const EMPTY: Cell = Cell {
    bits: 0,
    cause: 0,
    backend: NO_BACKEND,
    low: 0,
    high: 0,
    probed: 0,
    bad: 0,
};
