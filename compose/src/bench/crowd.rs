//! A crowd of agents that send as much as is taken, or so much a second: tasks of
//! this process that speak the real protocol to a real aggregator.
//!
//! Each has a session and a stream of its own. A frame is what an agent seals in a
//! second: some clients, each probing a hundred times, in turn. Frames are made
//! before the time begins and only moved on in time when they are sent, so that the
//! crowd takes little from the processors that it shares with the aggregator.
//!
//! What it leaves out: agents' spools, and therefore their disks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gapscope_agent::uplink::fit;
use gapscope_proto::PROTOCOL_VERSION;
use gapscope_proto::batch::Columns;
use gapscope_proto::clock::Clock;
use gapscope_proto::convert::packed_frame;
use gapscope_proto::frame::{Body, Frame, StreamId, StreamKind};
use gapscope_proto::host::{HostRecord, ProbingEnded, ProbingStarted};
use gapscope_proto::ids::{Incarnation, RunId};
use gapscope_proto::sample::{Outcome, Phase, Sample, Style};
use gapscope_proto::time::Timestamp;
use gapscope_proto::wire;
use gapscope_proto::wire::agent_message::Kind as Say;
use gapscope_proto::wire::aggregator_message::Kind as Hear;
use gapscope_proto::wire::collector_client::CollectorClient;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Probes of a client in a frame.
pub const PROBES: u64 = 100;
const INTERVAL_NS: i64 = 10_000_000;
const SECOND_NS: i64 = 1_000_000_000;
/// Frames sent and not acknowledged, of each agent.
const IN_FLIGHT: usize = 2;
/// Different frames, by their noise.
const KINDS: usize = 4;
/// gRPC's own before each message.
const GRPC_BYTES: u64 = 5;
/// What an aggregator takes.
const LONGEST_FRAME: usize = 1 << 20;
const BEAT_EVERY: Duration = Duration::from_secs(1);

/// A frame's columns, to be moved on in time.
#[derive(Debug, Clone)]
pub struct Template {
    columns: Columns,
    /// For each series its first and second sample.
    firsts: Vec<(usize, usize)>,
}

/// A small generator (SplitMix64).
fn noise(state: &mut u64, most: u64) -> i64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    i64::try_from((z ^ (z >> 31)) % most).unwrap_or(0)
}

/// Second number `second` of so many clients.
fn samples(clients: u16, second: i64, seed: u64) -> Vec<Sample> {
    let mut state = seed;
    let target = Arc::new("t".parse().expect("a good name"));
    let (backend, peer) = (
        Arc::from("db-1.internal:3306"),
        Arc::from("10.11.12.13:6033"),
    );
    let version: Arc<str> = Arc::from("10.11.14-MariaDB-0+deb12u2");
    let mut all = Vec::new();
    for k in 0..i64::try_from(PROBES).unwrap_or(0) {
        for client in 0..clients {
            let phase = INTERVAL_NS * i64::from(client) / i64::from(clients.max(1));
            let scheduled = SECOND_NS * second + INTERVAL_NS * k + phase;
            let started = scheduled + 50_000 + noise(&mut state, 80_000);
            let took = 180_000 + noise(&mut state, 250_000);
            all.push(Sample {
                target: Arc::clone(&target),
                style: Style::Reused,
                client,
                slot: u64::try_from(second * 100 + k).unwrap_or(0),
                scheduled: Timestamp::from_ns(scheduled),
                started: Timestamp::from_ns(started),
                finished: Timestamp::from_ns(started + took),
                resolve_ns: None,
                connect_ns: None,
                query_ns: u64::try_from(took - 3_000 - noise(&mut state, 4_000)).ok(),
                phase: Phase::Query,
                outcome: Outcome::Ok,
                cause: None,
                error_code: None,
                sqlstate: None,
                error: None,
                may_have_executed: false,
                connection: Some(1),
                connection_id: Some(1_000 + u64::from(client)),
                handshake_id: Some(1_000 + u32::from(client)),
                backend: Some(Arc::clone(&backend)),
                peer: Some(Arc::clone(&peer)),
                server_version: Some(Arc::clone(&version)),
                canary: None,
            });
        }
    }
    all
}

impl Template {
    /// A second of so many clients.
    pub fn new(clients: u16, seed: u64) -> Self {
        let columns = Columns::encode(&samples(clients, 0, seed));
        let clients = usize::from(clients);
        Self {
            firsts: (0..clients).map(|c| (c, c + clients)).collect(),
            columns,
        }
    }

    /// The same, so many seconds later.
    fn at(&self, second: i64) -> Columns {
        let mut columns = self.columns.clone();
        for (first, next) in &self.firsts {
            let later = SECOND_NS.saturating_mul(second);
            columns.slot[*first] += 100 * second;
            columns.scheduled[*first] += later;
            // The second difference there holds the first due time.
            columns.scheduled[*next] -= later;
        }
        columns
    }
}

/// What a crowd has done so far.
#[derive(Debug, Default)]
pub struct Tally {
    /// Samples acknowledged: durable.
    pub durable: AtomicU64,
    /// Bytes of messages with samples, and the samples in them.
    pub bytes: AtomicU64,
    /// Samples sent.
    pub sent: AtomicU64,
    /// From handing a frame to gRPC to its acknowledgement, in ns.
    delays: Mutex<Vec<u64>>,
}

impl Tally {
    /// All delays since the last call, sorted.
    pub fn take_delays(&self) -> Vec<u64> {
        let mut delays =
            std::mem::take(&mut *self.delays.lock().unwrap_or_else(PoisonError::into_inner));
        delays.sort_unstable();
        delays
    }
}

/// What all agents of a crowd share.
#[derive(Clone)]
pub struct Crowd {
    /// The aggregator.
    pub url: String,
    /// Frames to send.
    pub templates: Arc<Vec<Template>>,
    /// At most one frame in this time; none: as fast as they are taken.
    pub every: Option<Duration>,
    /// What was done.
    pub tally: Arc<Tally>,
    /// No more samples.
    pub stop: CancellationToken,
    /// Stamps.
    pub clock: Arc<dyn Clock>,
}

impl Crowd {
    /// So many clients in each frame.
    pub fn templates(clients: u16) -> Arc<Vec<Template>> {
        let seeds = 1..=KINDS as u64;
        Arc::new(seeds.map(|seed| Template::new(clients, seed)).collect())
    }
}

/// Bytes that a frame takes as an agent's uplink sends it.
pub fn bytes_on_the_wire(frame: Frame) -> u64 {
    let last = frame.last_seq();
    let parts = fit::frames(frame, last, LONGEST_FRAME, true);
    let sent = parts.into_iter().map(|part| message(Say::Frame(part)));
    sent.map(|message| message.encoded_len() as u64 + GRPC_BYTES)
        .sum()
}

/// One agent.
pub struct Member {
    crowd: Crowd,
    number: u64,
    incarnation: Incarnation,
    out: mpsc::Sender<wire::AgentMessage>,
    inbound: tonic::Streaming<wire::AggregatorMessage>,
    _beating: AbortOnDropHandle<()>,
}

fn message(kind: Say) -> wire::AgentMessage {
    wire::AgentMessage { kind: Some(kind) }
}

impl Member {
    /// Connects and says who it is; ready when the aggregator has welcomed it.
    ///
    /// # Errors
    /// In words, when that fails.
    pub async fn join(crowd: Crowd, number: u64) -> Result<Self, String> {
        let said = |error: &dyn std::fmt::Display| format!("agent {number}: {error}");
        let mut client = CollectorClient::connect(crowd.url.clone())
            .await
            .map_err(|error| said(&error))?;
        let incarnation = Incarnation::generate();
        let (out, messages) = mpsc::channel(IN_FLIGHT + 1);
        let hello = wire::Hello {
            protocol: PROTOCOL_VERSION,
            agent_id: format!("crowd-{number:05}"),
            incarnation: incarnation.get(),
            program_version: env!("CARGO_PKG_VERSION").to_owned(),
            clock: Some((&crowd.clock.key()).into()),
            host: None,
            targets: vec![wire::TargetOffer {
                name: "t".to_owned(),
                address: "127.0.0.1:3306".to_owned(),
                user: "crowd".to_owned(),
            }],
            streams: vec![],
            running: vec![],
        };
        out.send(message(Say::Hello(hello)))
            .await
            .map_err(|error| said(&error))?;
        let response = client
            .session(ReceiverStream::new(messages))
            .await
            .map_err(|status| said(&status.message()))?;
        // Who is alive says so, whatever it waits for.
        let beating = out.clone();
        let beating = AbortOnDropHandle::new(tokio::spawn(async move {
            let beat = || message(Say::Heartbeat(wire::Heartbeat::default()));
            while beating.send(beat()).await.is_ok() {
                tokio::time::sleep(BEAT_EVERY).await;
            }
        }));
        let mut member = Self {
            crowd,
            number,
            incarnation,
            out,
            inbound: response.into_inner(),
            _beating: beating,
        };
        match member.hear().await? {
            Hear::Welcome(welcome) if welcome.takes_packed => Ok(member),
            other => Err(format!("agent {number}: not welcomed but told {other:?}")),
        }
    }

    async fn hear(&mut self) -> Result<Hear, String> {
        loop {
            let said = self.inbound.message().await;
            match said.map_err(|status| format!("agent {}: {}", self.number, status.message()))? {
                Some(wire::AggregatorMessage { kind: Some(kind) }) => return Ok(kind),
                Some(_) => {}
                None => return Err(format!("agent {}: the session ended", self.number)),
            }
        }
    }

    async fn say(&self, kind: Say) -> Result<(), String> {
        self.out
            .send(message(kind))
            .await
            .map_err(|_| format!("agent {}: the session takes nothing more", self.number))
    }

    /// Waits for the run, sends until stopped, sees that everything is acknowledged,
    /// says how it ended. Returns how many samples it sent.
    ///
    /// # Errors
    /// In words, when anything is not taken.
    pub async fn work(mut self) -> Result<u64, String> {
        let run = loop {
            match self.hear().await? {
                Hear::StartRun(start) => {
                    let id = start.plan.map(|plan| plan.run_id).unwrap_or_default();
                    break id.parse::<RunId>().map_err(|error| error.to_string())?;
                }
                Hear::Heartbeat(_) => {}
                other => return Err(format!("agent {}: {other:?}", self.number)),
            }
        };
        let stream = |kind| StreamId {
            run,
            incarnation: self.incarnation,
            kind,
        };
        let (host, samples) = (stream(StreamKind::Host), stream(StreamKind::Samples));
        let host_frame = |first_seq, record| Frame {
            stream: host,
            first_seq,
            body: Body::Host(vec![record]),
        };
        let started = HostRecord::Started(ProbingStarted {
            origin_ns: 0,
            planned_end_ns: i64::MAX / 4,
            clock: self.crowd.clock.key(),
        });
        self.say(Say::Frame((&host_frame(1, started)).into()))
            .await?;
        let sent = self.stream(samples).await?;
        let seconds = i64::try_from(sent / self.per_frame()).unwrap_or(0);
        let ended = HostRecord::Ended(ProbingEnded {
            end_ns: SECOND_NS * seconds,
            reason: "done".to_owned(),
            due: sent,
            sampled: sent,
            waited: 0,
            overslept: 0,
        });
        self.say(Say::Frame((&host_frame(2, ended)).into())).await?;
        let wire_host = wire::StreamId::from(&host);
        loop {
            match self.hear().await? {
                Hear::Ack(ack) if ack.stream.as_ref() == Some(&wire_host) && ack.seq == 2 => break,
                Hear::Nack(nack) => return Err(format!("agent {}: {}", self.number, nack.detail)),
                _ => {}
            }
        }
        let reason = "done".to_owned();
        self.say(Say::Goodbye(wire::Goodbye { reason })).await?;
        Ok(sent)
    }

    fn per_frame(&self) -> u64 {
        self.crowd.templates[0].columns.len() as u64
    }

    async fn stream(&mut self, samples: StreamId) -> Result<u64, String> {
        let crowd = self.crowd.clone();
        let per_frame = self.per_frame();
        let wire_id = wire::StreamId::from(&samples);
        let mut flying: VecDeque<(u64, i64)> = VecDeque::new();
        let (mut sent, mut durable, mut second) = (0_u64, 0_u64, 0_i64);
        let mut pace = crowd.every.map(|every| {
            // Not all at once.
            let part = every.mul_f64(self.number as f64 * 0.618_034 % 1.0);
            tokio::time::interval_at(tokio::time::Instant::now() + part, every)
        });
        loop {
            if crowd.stop.is_cancelled() && durable == sent {
                return Ok(sent);
            }
            let may_send =
                !crowd.stop.is_cancelled() && (crowd.every.is_some() || flying.len() < IN_FLIGHT);
            let due = async {
                if let Some(pace) = &mut pace {
                    pace.tick().await;
                }
            };
            tokio::select! {
                biased;
                said = self.inbound.message() => {
                    let said = said.map_err(|status| status.message().to_owned())?;
                    match said.and_then(|message| message.kind) {
                        Some(Hear::Ack(ack)) if ack.stream.as_ref() == Some(&wire_id) => {
                            let now_ns = crowd.clock.raw_ns();
                            let mut delays = crowd.tally.delays.lock().unwrap_or_else(PoisonError::into_inner);
                            while let Some((last, at_ns)) = flying.front().copied()
                                && last <= ack.seq
                            {
                                flying.pop_front();
                                delays.push(u64::try_from(now_ns.saturating_sub(at_ns)).unwrap_or(0));
                            }
                            drop(delays);
                            crowd.tally.durable.fetch_add(ack.seq.saturating_sub(durable), Ordering::Relaxed);
                            durable = durable.max(ack.seq);
                        }
                        Some(Hear::Nack(nack)) => return Err(format!("agent {}: {}", self.number, nack.detail)),
                        Some(_) => {}
                        None => return Err(format!("agent {}: the session ended", self.number)),
                    }
                }
                () = crowd.stop.cancelled(), if may_send => {}
                () = due, if may_send => {
                    let template = &crowd.templates[usize::try_from(second).unwrap_or(0) % crowd.templates.len()];
                    let frame = Frame {
                        stream: samples,
                        first_seq: sent + 1,
                        body: Body::Samples(template.at(second)),
                    };
                    let message = message(Say::Frame(packed_frame(&frame)));
                    crowd.tally.bytes.fetch_add(message.encoded_len() as u64 + GRPC_BYTES, Ordering::Relaxed);
                    crowd.tally.sent.fetch_add(per_frame, Ordering::Relaxed);
                    sent += per_frame;
                    second += 1;
                    flying.push_back((sent, crowd.clock.raw_ns()));
                    if self.out.send(message).await.is_err() {
                        return Err(format!("agent {}: the session takes nothing more", self.number));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_moved_on_is_what_would_have_been_measured_then() {
        for clients in [1, 3] {
            let template = Template::new(clients, 7);
            for second in [0, 1, 4_711] {
                let moved = template.at(second).decode().expect("sound");
                assert_eq!(moved, samples(clients, second, 7));
            }
        }
    }
}
