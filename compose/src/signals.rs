//! SIGINT, SIGTERM and SIGHUP: the run is to end in an orderly way.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{Problem, Result};

/// Catches them from now on.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// Begins to catch them.
    pub fn catch() -> Result<Self> {
        let one = |kind| {
            signal(kind).map_err(|error| Problem::new(format!("cannot catch signals: {error}")))
        };
        Ok(Self {
            interrupt: one(SignalKind::interrupt())?,
            terminate: one(SignalKind::terminate())?,
            hangup: one(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one; says which it was.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hangup.recv() => "SIGHUP",
        }
    }
}
