//! What was done to a subject, and when, as intervals.

use serde::{Deserialize, Serialize};

use crate::clock::ClockKey;

/// Something happened between these two readings of one clock (inclusive).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Not before.
    pub earliest_ns: i64,
    /// Not after.
    pub latest_ns: i64,
}

/// What a fault is done to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultScope {
    /// A backend: clients are exposed by whom they were served by.
    Backend,
    /// The proxy itself: exposes all its clients.
    Proxy,
    /// A DNS record: exposes all.
    Dns,
    /// A backend comes back: exposes all.
    Failback,
    /// A note of an operator; not judged unless it names a subject.
    Mark,
}

impl FaultScope {
    /// The word used in files and on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Backend => "backend",
            Self::Proxy => "proxy",
            Self::Dns => "dns",
            Self::Failback => "failback",
            Self::Mark => "mark",
        }
    }

    /// Reads such a word.
    pub fn from_word(word: &str) -> Option<Self> {
        [
            Self::Backend,
            Self::Proxy,
            Self::Dns,
            Self::Failback,
            Self::Mark,
        ]
        .into_iter()
        .find(|scope| scope.as_str() == word)
    }
}

/// One fault of a run, with what a witness saw of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// From 1 within a run; notes of the lab's own from [`FIRST_NOTE_ID`] on.
    pub id: u32,
    /// What was done: `stop`, `kill`, `hang`, `mark` ...
    pub step: String,
    /// To whom.
    pub subject: String,
    /// The identity by which probes know the subject; none if unknown.
    pub identity: Option<String>,
    /// What kind of thing the subject is.
    pub scope: FaultScope,
    /// The clock of the spans.
    pub clock: ClockKey,
    /// When it was asked for.
    pub asked: Span,
    /// When the subject's listener began to refuse.
    pub listener_refused: Option<Span>,
    /// When a held connection to the subject was cut.
    pub held_cut: Option<Span>,
    /// When the subject's process was gone.
    pub gone: Option<Span>,
    /// When the fault was undone.
    pub cleared: Option<Span>,
    /// For people.
    pub detail: String,
}

/// The step of a mark that ends the horizon of the fault before it: the lab made
/// everything as new.
pub const RESET: &str = "reset";
/// The step of a mark that says what a proxy (its subject) believes of a backend.
pub const PROXY_VIEW: &str = "proxy_view";
/// Notes are numbered from here on, apart from faults: people count what was asked for.
/// Runs recorded before this have notes among the faults' numbers.
pub const FIRST_NOTE_ID: u32 = 1_000_001;

impl Fault {
    /// Whether it is only a note of the lab's own, which nothing is measured from.
    pub fn is_note(&self) -> bool {
        self.scope == FaultScope::Mark && matches!(self.step.as_str(), RESET | PROXY_VIEW)
    }
}

/// What faults may be done to, and the identity probes see for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// Name in the scenario.
    pub name: String,
    /// Identity it answered when asked directly at the run's start.
    pub identity: Option<String>,
    /// Its own address.
    pub address: String,
}
