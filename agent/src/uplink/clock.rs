//! The exchange of time: four stamps each, on a connection of its own, because
//! bulk data on the same one makes round trips ten times longer.
//!
//! Bursts of 4; ten bursts a second for the first 10 s of a run, then one a
//! second. The send stamp is read before the ping is handed over, the receive
//! stamp after the pong has come out: never late, never early, so the bounds on
//! the offset hold whatever happens in between. A pong that does not come within
//! a second ends the burst; that loses an exchange, not the truth.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::host::{Exchange, HostRecord};
use gapscope_proto::tls::Dialer;
use gapscope_proto::wire::{Ping, clock_client::ClockClient};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::link::{CONNECT_WITHIN, settings};
use crate::backoff::Backoff;
use crate::spool::Spool;

const BURST: usize = 4;
const FAST_FOR_NS: i64 = 10_000_000_000;
const FAST: Duration = Duration::from_millis(100);
const SLOW: Duration = Duration::from_secs(1);
const PONG_LIMIT: Duration = Duration::from_secs(1);

/// Exchanges time with the aggregator.
pub struct Exchanger {
    dialer: Arc<Dialer>,
    clock: Arc<dyn Clock>,
    spool: Spool,
    /// When the newest run began, RAW ns.
    run_began_ns: Arc<AtomicI64>,
}

impl Exchanger {
    /// `run_began_ns` is set by whoever starts a run.
    pub fn new(
        dialer: Arc<Dialer>,
        clock: Arc<dyn Clock>,
        spool: Spool,
        run_began_ns: Arc<AtomicI64>,
    ) -> Self {
        Self {
            dialer,
            clock,
            spool,
            run_began_ns,
        }
    }

    /// Runs until stopped.
    pub async fn run(self, stop: CancellationToken) {
        let mut backoff = Backoff::default();
        loop {
            let ended = tokio::select! {
                () = stop.cancelled() => return,
                ended = self.session(&mut backoff) => ended,
            };
            tracing::debug!(why = ended, "the clock connection ended");
            let delay = backoff.failed(rand::random::<f64>());
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    async fn session(&self, backoff: &mut Backoff) -> String {
        let line = match self.dialer.dial(CONNECT_WITHIN, settings).await {
            Ok(line) => line,
            Err(trouble) => return trouble.line(),
        };
        let (pings, outbound) = mpsc::channel(1);
        let mut client = ClockClient::new(line.service())
            .max_decoding_message_size(4096)
            .max_encoding_message_size(4096);
        let mut pongs = match client.exchange(ReceiverStream::new(outbound)).await {
            Ok(response) => response.into_inner(),
            Err(status) => return line.explain(&status).line(),
        };
        let mut changes = self.dialer.changes();
        let mut number = 0;
        loop {
            for _ in 0..BURST {
                number += 1;
                let permit = match pings.reserve().await {
                    Ok(permit) => permit,
                    Err(_) => return "the aggregator closed the clock session".to_owned(),
                };
                let a1_ns = self.clock.raw_ns();
                permit.send(Ping { number, a1_ns });
                let received = tokio::time::timeout(PONG_LIMIT, pongs.message()).await;
                let a2_ns = self.clock.raw_ns();
                let pong = match received {
                    Err(_) => return "no pong within a second".to_owned(),
                    Ok(Ok(Some(pong))) => pong,
                    Ok(Ok(None)) => return "the aggregator closed the clock session".to_owned(),
                    Ok(Err(status)) => return status.message().to_owned(),
                };
                backoff.worked();
                let Some(server) = pong.clock.filter(|_| pong.number == number) else {
                    continue;
                };
                self.spool
                    .host_for_all(HostRecord::Exchange(Exchange {
                        a1_ns,
                        s1_ns: pong.s1_ns,
                        s2_ns: pong.s2_ns,
                        a2_ns,
                        server: server.into(),
                    }))
                    .await;
            }
            tokio::select! {
                () = self.pause() => {}
                () = changes.next() => {
                    return "there is a new certificate or token".to_owned();
                }
            }
        }
    }

    /// A new run shortens the pause it falls into.
    async fn pause(&self) {
        let mut left = SLOW;
        loop {
            let since = self
                .clock
                .raw_ns()
                .saturating_sub(self.run_began_ns.load(Ordering::Relaxed));
            tokio::time::sleep(FAST.min(left)).await;
            left = left.saturating_sub(FAST);
            if since < FAST_FOR_NS || left.is_zero() {
                return;
            }
        }
    }
}
