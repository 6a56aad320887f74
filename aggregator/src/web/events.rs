//! What a page is told while it is open: server-sent events.
//!
//! `view`: a run's view; `overview`: runs and agents. The stream is asked for more
//! only when the browser has taken what was sent; what it misses meanwhile is
//! counted and made good by the whole view.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures::{Stream, stream};
use gapscope_proto::ids::RunId;
use tokio::time::{Interval, MissedTickBehavior};

use super::routes::{App, Visitor};
use crate::auth::access::Rpc;
use crate::control::follow::Follow;
use crate::live::totals::Watcher;

/// Between two overviews; they also keep the connection from falling silent.
const OVERVIEW_EVERY: Duration = Duration::from_secs(2);

struct Page {
    app: Arc<App>,
    follow: Option<Follow>,
    overviews: Interval,
    /// Resolves when this visitor may look no longer.
    turned_out: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_over: bool,
}

fn event(name: &str, data: &str) -> Bytes {
    // JSON has no line ends of its own.
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

/// The stream of one page.
pub(super) fn stream(
    app: Arc<App>,
    visitor: Visitor,
    wanted: Option<RunId>,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let mut overviews = tokio::time::interval(OVERVIEW_EVERY);
    overviews.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let gate = app.gate.clone();
    let turned_out = Box::pin(async move {
        if !visitor.caller.is_known() {
            return std::future::pending().await;
        }
        let changes = gate.changes();
        let _ = gate
            .until_ended(&visitor.presented, Rpc::Watch, changes)
            .await;
    });
    let page = Page {
        follow: Some(Follow::new(app.hub.clone(), wanted, Watcher::Browser)),
        app,
        overviews,
        turned_out,
        is_over: false,
    };
    let first = stream::once(async { Ok(Bytes::from_static(b"retry: 1000\n\n")) });
    let rest = stream::unfold(page, |mut page| async move {
        let bytes = page.next().await?;
        Some((Ok(bytes), page))
    });
    futures::StreamExt::chain(first, rest)
}

impl Page {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.is_over {
                return None;
            }
            let Self {
                app,
                follow,
                overviews,
                turned_out,
                ..
            } = self;
            let following = async {
                match follow {
                    Some(follow) => follow.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = app.hub.shutdown.cancelled() => return None,
                () = turned_out => {
                    self.is_over = true;
                    return Some(event("turned-out", "{}"));
                }
                _ = overviews.tick() => {
                    return Some(event("overview", &app.overview().await));
                }
                view = following => match view {
                    Some(view) => match serde_json::to_string(&*view) {
                        Ok(json) => return Some(event("view", &json)),
                        Err(error) => tracing::error!("a view is not sent: {error}"),
                    },
                    // The run that was asked for is over; its page stays.
                    None => *follow = None,
                },
            }
        }
    }
}
