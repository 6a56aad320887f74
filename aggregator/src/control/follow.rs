//! Follows a run, or whichever is the newest, for a terminal or a browser.

use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::ids::RunId;

use crate::ingest::hub::Hub;
use crate::live::feed::Watching;
use crate::live::totals::Watcher;
use crate::live::view::View;

/// Between two looks for a newer run.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Follows runs.
pub struct Follow {
    hub: Arc<Hub>,
    wanted: Option<RunId>,
    who: Watcher,
    watching: Option<(RunId, Watching)>,
    over: Option<RunId>,
}

impl Follow {
    /// Follows `wanted`, or the newest run and then the next.
    pub fn new(hub: Arc<Hub>, wanted: Option<RunId>, who: Watcher) -> Self {
        hub.live().totals.came(who);
        Self {
            hub,
            wanted,
            who,
            watching: None,
            over: None,
        }
    }

    /// What is to be told next; none when the run named has ended, or the server ends.
    pub async fn next(&mut self) -> Option<Arc<View>> {
        loop {
            if let Some((id, watching)) = &mut self.watching {
                let view = tokio::select! {
                    () = self.hub.shutdown.cancelled() => return None,
                    view = watching.next() => view,
                };
                if view.run_state != "running" {
                    self.over = Some(*id);
                    self.watching = None;
                }
                return Some(view);
            }
            if self.over.is_some() && self.wanted.is_some() {
                return None;
            }
            match self.hub.feed(self.wanted, self.over).await {
                Ok(Some((id, feed))) => {
                    self.watching = Some((id, feed.watch()));
                    continue;
                }
                Ok(_) => {}
                Err(error) => tracing::warn!("a run cannot be followed: {error}"),
            }
            tokio::select! {
                () = self.hub.shutdown.cancelled() => return None,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.hub.live().totals.went(self.who);
    }
}
