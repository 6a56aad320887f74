//! What is known about a fault of a backend, and how it is said.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use gapscope_proto::fault::Span;

/// What a backend does at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Answers.
    Serving,
    /// Stopping gracefully: refuses new connections, finishes running statements.
    Draining,
    /// Not there: refuses.
    Stopped,
    /// There, as a stopped process: the kernel accepts, nobody answers.
    Hung,
    /// Swallows whatever is sent.
    BlackHoled,
    /// Does what it is told; what it would say is swallowed.
    Muted,
}

/// What a graceful stop does with held connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// All are closed (FIN) at once, running statements unanswered.
    CutAtOnce,
    /// Idle ones are closed at once, others after their running statement is
    /// answered, or after this long at the latest.
    AfterStatement(Duration),
}

/// The exact truth about a fault, all spans in RAW nanoseconds of the clock
/// given to [`Backend::start`](super::Backend::start). See the module's description for their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultTruth {
    /// The call's entry.
    pub asked: Span,
    /// When answers ceased. A draining stop: from the first connection closed
    /// to the last one.
    pub effect: Span,
    /// When the listener began to refuse; none if it still accepts.
    pub listener_refused: Option<Span>,
    /// From when the first to when the last held connection was cut; none if
    /// none was cut.
    pub held_cut: Option<Span>,
    /// When nothing of it was left; none if it is still there.
    pub gone: Option<Span>,
    /// How many connections were held (logged in or not) when it took effect.
    pub held: usize,
}

/// The exact truth about the end of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClearTruth {
    /// The call's entry.
    pub asked: Span,
    /// When answers began again.
    pub cleared: Span,
}

/// Why a fault or its end could not be done.
#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    /// It does not fit what the backend does now.
    #[error("cannot {step} embedded backend `{name}`: it is {mode:?}")]
    NotNow {
        /// What was asked for.
        step: &'static str,
        /// Which backend.
        name: String,
        /// What it does now.
        mode: Mode,
    },
    /// The port could not be listened on again.
    #[error("cannot restart embedded backend `{name}` on {addr}: {source}")]
    Listen {
        /// Which backend.
        name: String,
        /// Where.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
}
