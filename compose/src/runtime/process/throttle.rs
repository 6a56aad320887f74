//! Slows a process down: it is frozen for a while, runs for a moment, is frozen
//! again, and so on. What comes to it waits for its next moment.
//!
//! It answers late rather than not at all, so that checks which only look whether it
//! answers stay green. A process that shares a machine with too many others looks like
//! this.

use std::time::Duration;

use rustix::process::Signal;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::children::Child;

/// How long it runs between two freezes.
pub const RUNS: Duration = Duration::from_millis(20);

/// A process that is being slowed down.
pub struct Throttle {
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Throttle {
    /// Begins with a process that is frozen already.
    pub fn begin(child: Child, frozen: Duration) -> Self {
        let cancel = CancellationToken::new();
        let until = cancel.clone();
        let task = tokio::spawn(async move {
            let turns = async {
                loop {
                    tokio::time::sleep(frozen).await;
                    if !matches!(child.signal(Signal::CONT), Ok(true)) {
                        return;
                    }
                    tokio::time::sleep(RUNS).await;
                    if !matches!(child.signal(Signal::STOP), Ok(true)) {
                        return;
                    }
                }
            };
            until.run_until_cancelled(turns).await;
        });
        Self { cancel, task }
    }

    /// Ends it; the process may be frozen then.
    pub async fn end(self) {
        self.cancel.cancel();
        // An error means that it has ended.
        let _ = self.task.await;
    }
}
