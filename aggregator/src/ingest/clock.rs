//! The clock service: answers each ping at once, with two stamps of our own.
//!
//! `s1` is read as soon as the ping is decoded, `s2` when the pong is asked for
//! by the connection: a receive stamp never early, a send stamp never late.
//! Nothing is kept here; the agent records the exchanges.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use gapscope_proto::clock::Clock;
use gapscope_proto::wire;
use gapscope_proto::wire::clock_server;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// The service.
pub struct ClockService {
    clock: Arc<dyn Clock>,
    shutdown: CancellationToken,
}

impl ClockService {
    /// Answers from `clock` until `shutdown`.
    pub fn new(clock: Arc<dyn Clock>, shutdown: CancellationToken) -> Self {
        Self { clock, shutdown }
    }
}

#[tonic::async_trait]
impl clock_server::Clock for ClockService {
    type ExchangeStream = Pin<Box<dyn Stream<Item = Result<wire::Pong, Status>> + Send>>;

    async fn exchange(
        &self,
        request: Request<Streaming<wire::Ping>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let clock = self.clock.clone();
        let key = wire::ClockKey::from(&clock.key());
        let pongs = request.into_inner().map(move |ping| {
            let s1_ns = clock.raw_ns();
            let ping = ping?;
            let mut pong = wire::Pong {
                number: ping.number,
                a1_ns: ping.a1_ns,
                s1_ns,
                s2_ns: 0,
                clock: Some(key.clone()),
            };
            pong.s2_ns = clock.raw_ns();
            Ok(pong)
        });
        let pongs = pongs.take_until(self.shutdown.clone().cancelled_owned());
        Ok(Response::new(Box::pin(pongs)))
    }
}
