//! The page for browsers, and `/metrics`: HTTP/1.1 on a listener of its own.
//!
//! ```text
//! listen (TLS, certificate) -> stall (who reads nothing is cut off) -> host (is this
//! name ours?) -> who (token, session or certificate, by the same gate as gRPC) ->
//! page, events, reports, metrics
//! ```
//!
//! Nothing can be changed from here but one's own session. Every answer carries a
//! policy by which a browser loads nothing from elsewhere and is framed by nobody.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use futures::StreamExt;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tower::Service;

use self::routes::App;
use self::stall::Stall;
use crate::auth::gate::Gate;
use crate::ingest::hub::Hub;
use crate::listen::{Connection, Speech, incoming};

mod events;
pub mod host;
pub mod login;
pub mod metrics;
mod overview;
mod page;
mod routes;
mod stall;

/// How long the head of a request may take.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const LONGEST_HEAD: usize = 16 << 10;
/// Headers of a request.
const MOST_HEADERS: usize = 64;

/// What the page is served on.
#[derive(Debug)]
pub struct Config {
    /// Where.
    pub listener: TcpListener,
    /// Further names by which browsers may ask for it.
    pub names: Vec<String>,
    /// How long a browser may read nothing before it is cut off.
    pub patience: Duration,
}

/// How long a browser may read nothing, unless something else is said.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Serves until the server ends.
pub async fn serve(config: Config, hub: Arc<Hub>, gate: Arc<Gate>) {
    let shutdown = hub.shutdown.clone();
    let app = Arc::new(App::new(hub, gate.clone(), config.names));
    let connections = incoming(config.listener, gate, Speech::Web, shutdown.clone());
    tokio::pin!(connections);
    while let Some(connection) = connections.next().await {
        if let Ok(connection) = connection {
            tokio::spawn(answer(connection, app.clone(), config.patience));
        }
    }
}

async fn answer(connection: Connection, app: Arc<App>, patience: Duration) {
    let peer = connection.peer().clone();
    let shutdown = app.hub.shutdown.clone();
    let io = Stall::new(connection, patience, app.hub.live().totals.clone());
    let router = routes::router(app);
    let service = service_fn(move |mut request: Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer.clone());
        let mut router = router.clone();
        async move { router.call(request.map(Body::new)).await }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_headers(MOST_HEADERS)
        .max_buf_size(LONGEST_HEAD)
        .serve_connection(TokioIo::new(io), service);
    tokio::pin!(serving);
    // How a connection of a browser ends is of no interest to anybody.
    tokio::select! {
        _ = &mut serving => {}
        () = shutdown.cancelled() => {
            serving.as_mut().graceful_shutdown();
            let _ = tokio::time::timeout(Duration::from_secs(1), serving).await;
        }
    }
}
