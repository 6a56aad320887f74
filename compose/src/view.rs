//! What proxies believe of their backends, looked at again and again beside the
//! probes, so that a window can be explained: noticed after 4 s, not before.
//!
//! Method: each proxy is asked every 100 ms in a task of its own, by its admin
//! interface. A change lies between the begin of the last look that did not show it
//! and the end of the first that did. A look that takes longer than the pause only
//! delays the next one.
//!
//! What it cannot know: changes that are undone between two looks.

mod kept;

use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::fault::Span;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use self::kept::Kept;
use crate::runtime::{Belief, Proxy};

/// Pause between two looks.
const EVERY: Duration = Duration::from_millis(100);
/// Changes told of in one run, at most: a check that flaps must not fill the disk.
pub const MOST: usize = 500;

/// A proxy changed its mind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The proxy's name.
    pub proxy: String,
    /// The backend's name.
    pub backend: String,
    /// The new state, by the proxy's own word.
    pub state: String,
    /// The state before.
    pub before: String,
    /// Its check's own words.
    pub check: String,
    /// When it changed its mind.
    pub when: Span,
}

impl Change {
    /// "haproxy: backend-1 is DOWN (L4CON Connection refused), was UP 1/2"
    pub fn in_words(&self) -> String {
        let check = if self.check.is_empty() {
            String::new()
        } else {
            format!(" ({})", self.check)
        };
        format!(
            "{} holds {} for {}{check}, before for {}",
            self.proxy, self.backend, self.state, self.before
        )
    }
}

/// What changed between two looks. Pure.
fn changes(proxy: &str, before: &[Belief], now: &[Belief], when: Span) -> Vec<Change> {
    now.iter()
        .filter_map(|belief| {
            let old = before.iter().find(|b| b.backend == belief.backend)?;
            (old.state != belief.state).then(|| Change {
                proxy: proxy.to_owned(),
                backend: belief.backend.clone(),
                state: belief.state.clone(),
                before: old.state.clone(),
                check: belief.check.clone(),
                when,
            })
        })
        .collect()
}

/// Begins to look; ends when this is dropped.
pub struct Watching {
    /// Changes as they are seen.
    pub changes: mpsc::UnboundedReceiver<Change>,
    _tasks: JoinSet<()>,
}

/// Looks at all proxies that can be asked. Each look goes to `kept`; changes are told
/// of unless `quiet`.
pub fn watch(
    proxies: &[Box<dyn Proxy>],
    clock: &Arc<dyn Clock>,
    kept: Kept,
    quiet: bool,
) -> Watching {
    let (telling, changes_seen) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    for proxy in proxies {
        let Some(mut viewer) = proxy.viewer() else {
            continue;
        };
        let name = proxy.name().to_owned();
        let (clock, telling, kept) = (Arc::clone(clock), telling.clone(), kept.clone());
        tasks.spawn(async move {
            let mut known: Option<(i64, Vec<Belief>)> = None;
            let mut told = 0;
            while !telling.is_closed() {
                let begin = clock.raw_ns();
                let look = viewer.look().await;
                let end = clock.raw_ns();
                let this = Span {
                    earliest_ns: begin,
                    latest_ns: end,
                };
                match look {
                    // While a proxy is down it has no view; that is no change of mind.
                    Err(why) => kept.look(&name, this, Err(&why)),
                    Ok(now) => {
                        kept.look(&name, this, Ok(&now));
                        if let Some((last, before)) = &known {
                            let when = Span {
                                earliest_ns: *last,
                                latest_ns: end,
                            };
                            for change in changes(&name, before, &now, when) {
                                told += 1;
                                if !quiet && told <= MOST {
                                    // An error means that nobody wants to know.
                                    let _ = telling.send(change);
                                }
                            }
                        }
                        known = Some((begin, now));
                    }
                }
                tokio::time::sleep(EVERY).await;
            }
        });
    }
    Watching {
        changes: changes_seen,
        _tasks: tasks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn belief(backend: &str, state: &str) -> Belief {
        Belief {
            backend: backend.to_owned(),
            state: state.to_owned(),
            check: "L4CON".to_owned(),
            sessions: None,
        }
    }

    #[test]
    fn only_changes_are_told() {
        let when = Span {
            earliest_ns: 1,
            latest_ns: 2,
        };
        let before = [belief("a", "UP"), belief("b", "UP")];
        let now = [belief("b", "UP"), belief("a", "DOWN"), belief("c", "UP")];
        let found = changes("p", &before, &now, when);
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].in_words(),
            "p holds a for DOWN (L4CON), before for UP"
        );
        assert_eq!(found[0].when, when);
    }
}
