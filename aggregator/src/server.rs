//! The server: all services on one listener, until told to stop.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::tls::reload::keep;
use gapscope_proto::wire::clock_server::ClockServer;
use gapscope_proto::wire::collector_server::CollectorServer;
use gapscope_proto::wire::control_server::ControlServer;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Server;

use crate::auth::gate::{Gate, Security};
use crate::auth::layer::GuardLayer;
use crate::control::service::ControlService;
use crate::ingest::clock::ClockService;
use crate::ingest::hub::Hub;
use crate::ingest::service::{CollectorService, MAX_MESSAGE_BYTES};
use crate::listen::{Speech, incoming};
use crate::output::in_trouble;
use crate::reporter::{Make, Reporter};
use crate::store::disk::Disk;
use crate::store::lock::DataLock;
use crate::web;

/// Streams one connection may have open; tonic sets no limit by itself. An agent
/// needs one on each of its two.
const MAX_STREAMS: u32 = 64;
/// Bytes of headers in one request.
const MAX_HEADERS: u32 = 16 << 10;
/// Between two looks at how long the certificate is still valid.
const REMIND_EVERY: Duration = Duration::from_secs(6 * 3600);
/// HTTP/2 pings: together with the timeout a dead peer is noticed within 6 s.
const PING_EVERY: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(4);
/// What a connection may have on the way to a stream that is not read: with many
/// agents and a full disk this is held for each of them.
const STREAM_WINDOW: u32 = 64 << 10;
/// How long connections may take to end after the streams have.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// What a server needs.
pub struct Config {
    /// Where runs are.
    pub data: PathBuf,
    /// The run's timeline.
    pub clock: Arc<dyn Clock>,
    /// The way to the disk.
    pub disk: Disk,
    /// By what it is known, and by what it knows who comes.
    pub security: Security,
    /// How each run's report is made when it is closed, if it is.
    pub reports: Option<Make>,
    /// The page for browsers, if there is to be one.
    pub web: Option<web::Config>,
}

/// Serves on `listener` until `shutdown` resolves; then drains agents, writes
/// what is held, and ends. Calls `ready` once the data folder is open.
///
/// # Errors
/// When the data folder cannot be used, or serving fails.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    ready: impl FnOnce() -> anyhow::Result<()>,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let gate = Gate::open(&config.security, config.clock.clone()).map_err(in_trouble)?;
    let _lock = DataLock::take(&config.data)?;
    let reporter = config.reports.map(Reporter::start).transpose()?;
    let hub = Hub::open(&config.data, config.clock.clone(), config.disk, reporter).await?;
    ready()?;
    let _web = config.web.map(|web| {
        let serving = web::serve(web, hub.clone(), gate.clone());
        AbortOnDropHandle::new(tokio::spawn(serving))
    });
    let (health, health_service) = tonic_health::server::health_reporter();
    health
        .set_serving::<CollectorServer<CollectorService>>()
        .await;
    health.set_serving::<ControlServer<ControlService>>().await;
    health.set_serving::<ClockServer<ClockService>>().await;
    let ended = hub.shutdown.clone();
    let _looking_after = AbortOnDropHandle::new(tokio::spawn(look_after(gate.clone())));
    let server = Server::builder()
        .layer(GuardLayer(gate.clone()))
        .http2_max_header_list_size(MAX_HEADERS)
        .max_concurrent_streams(MAX_STREAMS)
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .initial_stream_window_size(Some(STREAM_WINDOW))
        .initial_connection_window_size(Some(2 * STREAM_WINDOW))
        .add_service(health_service)
        .add_service(
            CollectorServer::new(CollectorService::new(hub.clone()))
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
        )
        .add_service(
            ClockServer::new(ClockService::new(config.clock, hub.shutdown.clone()))
                .max_decoding_message_size(1 << 12)
                .max_encoding_message_size(1 << 12),
        )
        .add_service(
            ControlServer::new(ControlService::new(hub.clone()))
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
        )
        .serve_with_incoming_shutdown(
            incoming(listener, gate, Speech::Grpc, ended.clone()),
            ended.clone().cancelled_owned(),
        );
    tokio::pin!(server);
    tokio::select! {
        served = &mut server => return served.map_err(|e| anyhow::anyhow!("serving failed: {e}")),
        () = shutdown => {}
    }
    tracing::info!("shutting down: agents are told, what is held is written");
    // Connections are still served while runs write their last group.
    tokio::select! {
        served = &mut server => return served.map_err(|e| anyhow::anyhow!("serving failed: {e}")),
        () = hub.drain() => {}
    }
    // A connection that does not end is cut: everything is on disk by now.
    let _ = tokio::time::timeout(LAST_WORDS, server).await;
    Ok(())
}

/// Files that change, and certificates that end.
async fn look_after(gate: Arc<Gate>) {
    let mut reminders = tokio::time::interval(REMIND_EVERY);
    reminders.reset();
    let reminding = async {
        loop {
            reminders.tick().await;
            gate.remind();
        }
    };
    tokio::join!(keep(gate.files()), reminding);
}
