//! Carries out what [`super::session`] decides: one gRPC stream to the
//! aggregator, made again with full jitter whenever it ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::PROTOCOL_VERSION;
use gapscope_proto::clock::Clock;
use gapscope_proto::frame::StreamId;
use gapscope_proto::host::HostFacts;
use gapscope_proto::ids::{AgentId, RunId};
use gapscope_proto::plan::RunPlan;
use gapscope_proto::tls::{Dialer, dial::Changes};
use gapscope_proto::wire::{
    self, AgentMessage, AggregatorMessage, agent_message, aggregator_message,
};
use tokio::sync::mpsc;

use super::fit;
use super::link::{Link, Turn};
use super::session::{Action, Event, NackReason, Position, Session};
use crate::backoff::Backoff;
use crate::board::Board;
use crate::spool::{Loss, LossReason, Report, Spool};

const TICK: Duration = Duration::from_millis(50);
/// How many ticks a session that takes nothing more is given to say why.
const CLOSED_TICKS: u32 = 20;
/// Longest frame sent, even if the aggregator takes more, or does not say.
const MAX_FRAME: usize = 1 << 20;
/// Messages handed to gRPC ahead of the network.
const OUTBOUND: usize = 32;

/// What the aggregator wants.
#[derive(Debug)]
pub enum Order {
    /// Probe.
    Start(Box<RunPlan>),
    /// A plan that makes no sense: which run, and why.
    Refuse(String, String),
    /// Stop probing.
    Stop(RunId, String),
    /// The aggregator does not know the run: its data can go nowhere.
    Unknown(RunId),
}

/// What the agent wants of its uplink.
#[derive(Debug)]
pub enum Request {
    /// Tell the aggregator that a run is not probed, and why.
    Refused(String, String),
    /// Send what is left for at most this long, say good-bye and end.
    Leave(Duration, String),
}

/// What the uplink is made of.
pub struct Uplink {
    /// The way to the aggregator.
    pub dialer: Arc<Dialer>,
    /// Tells when this agent has something else to show.
    pub changes: Changes,
    /// Who this is.
    pub agent_id: AgentId,
    /// Name, address and user of each target.
    pub targets: Vec<(String, String, String)>,
    /// Host's clock.
    pub clock: Arc<dyn Clock>,
    /// Where frames stand.
    pub spool: Spool,
    /// What the spool tells.
    pub reports: mpsc::UnboundedReceiver<Report>,
    /// What is going on.
    pub board: Board,
    /// To the agent.
    pub orders: mpsc::Sender<Order>,
    /// From the agent.
    pub requests: mpsc::Receiver<Request>,
}

impl std::fmt::Debug for Uplink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uplink")
            .field("dialer", &self.dialer)
            .finish()
    }
}

struct Leaving {
    reason: String,
    until_ns: i64,
    said: bool,
}

struct Runner {
    up: Uplink,
    session: Session,
    backoff: Backoff,
    outbox: VecDeque<Out>,
    /// Longest frame that the aggregator takes.
    max_frame_bytes: usize,
    /// It takes samples packed.
    takes_packed: bool,
    refused: VecDeque<(String, String)>,
    leaving: Option<Leaving>,
    /// What was last said about a connection that does not stand.
    complained: Option<String>,
}

enum Out {
    Ready(Box<AgentMessage>),
    Frame(crate::spool::FrameRef),
    Heartbeat,
}

impl Uplink {
    /// Runs until asked to leave.
    pub async fn run(self) {
        let mut runner = Runner {
            up: self,
            session: Session::default(),
            backoff: Backoff::default(),
            outbox: VecDeque::new(),
            max_frame_bytes: MAX_FRAME,
            takes_packed: false,
            refused: VecDeque::new(),
            leaving: None,
            complained: None,
        };
        runner.run().await;
    }
}

impl Runner {
    fn now(&self) -> i64 {
        self.up.clock.raw_ns()
    }

    async fn run(&mut self) {
        // What the spool held at the start belongs into the first Hello.
        while let Ok(report) = self.up.reports.try_recv() {
            self.step(Event::Report(report)).await;
        }
        let mut link = self.connect();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut requests_open = true;
        let mut closed_ticks = 0;
        loop {
            let outbound = link.outbound();
            // A session that takes nothing more is about to say why.
            let is_closed = outbound.as_ref().is_some_and(mpsc::Sender::is_closed);
            let has_out = !self.outbox.is_empty() && outbound.is_some() && !is_closed;
            let permit = async {
                match outbound {
                    Some(outbound) => outbound.reserve_owned().await,
                    None => std::future::pending().await,
                }
            };
            let mut broken = None;
            tokio::select! {
                Some(report) = self.up.reports.recv() => {
                    broken = self.step(Event::Report(report)).await;
                }
                request = self.up.requests.recv(), if requests_open => match request {
                    Some(request) => self.request(request).await,
                    None => {
                        requests_open = false;
                        self.request(Request::Leave(Duration::ZERO, "shutdown".into())).await;
                    }
                },
                permit = permit, if has_out => {
                    if let Ok(permit) = permit
                        && let Some(message) = self.next_out().await
                    {
                        permit.send(message);
                    }
                }
                turn = link.turn() => match turn {
                    Turn::Waited => link = self.connect(),
                    Turn::Connected(opened) => {
                        let outbound = link.outbound().expect("it was connecting");
                        link = Link::Up(opened, outbound);
                    }
                    Turn::Message(message) => broken = self.message(*message).await,
                    Turn::Ended(trouble) => broken = Some(trouble.line()),
                    Turn::Fenced(why) => {
                        link = self.fenced(&why).await;
                        continue;
                    }
                },
                () = self.up.changes.next() => {
                    link = self.anew().await;
                    continue;
                }
                _ = tick.tick() => {
                    let live = !self.up.board.running().is_empty();
                    broken = self.step(Event::Tick { live }).await;
                    closed_ticks = if is_closed { closed_ticks + 1 } else { 0 };
                    if closed_ticks > CLOSED_TICKS {
                        broken = Some("the session was closed".to_owned());
                    }
                }
            }
            if self.is_over() {
                // Dropping the sender ends the stream behind the last message;
                // dropping the receiver before the aggregator has ended its side
                // would take the last message back.
                let _ = tokio::time::timeout(Duration::from_secs(1), link.end()).await;
                return;
            }
            if let Some(why) = broken {
                link = self.wait(&why).await;
            }
        }
    }

    /// Ends the connection and waits for the next.
    async fn wait(&mut self, why: &str) -> Link {
        self.outbox.clear();
        self.step(Event::Disconnected).await;
        let delay = self.backoff.failed(rand::random::<f64>());
        // Each reason once: the time of day in it makes no other reason.
        let reason: String = why.chars().filter(|c| !c.is_ascii_digit()).collect();
        if self.complained.as_ref() == Some(&reason) {
            tracing::debug!(why, "no connection to the aggregator");
        } else {
            self.complained = Some(reason);
            tracing::warn!(
                aggregator = self.up.dialer.url(),
                why,
                "no connection to the aggregator; trying again, samples stay in the spool"
            );
        }
        Link::wait(delay)
    }

    /// As [`Self::wait`], where another agent has this one's id: each would throw
    /// the other out as fast as it can connect.
    async fn fenced(&mut self, why: &str) -> Link {
        self.outbox.clear();
        self.step(Event::Disconnected).await;
        let delay = Backoff::fenced(rand::random::<f64>());
        tracing::warn!(
            agent = %self.up.agent_id,
            aggregator = self.up.dialer.url(),
            why,
            "another agent uses this agent's id: give one of them another with --agent-id; \
             trying again in {} s, samples stay in the spool",
            delay.as_secs()
        );
        Link::wait(delay)
    }

    /// Connects with what this agent has got to show since.
    async fn anew(&mut self) -> Link {
        tracing::info!("there is a new certificate or token: connecting anew");
        self.outbox.clear();
        self.step(Event::Disconnected).await;
        self.connect()
    }

    fn connect(&mut self) -> Link {
        let (outbound, messages) = mpsc::channel(OUTBOUND);
        self.outbox.clear();
        let now = self.now();
        let actions = self.session.handle(Event::Connected, now);
        for action in actions {
            if let Action::Hello(positions) = action {
                let hello = self.hello(&positions);
                self.outbox.push_back(Out::Ready(Box::new(hello)));
            }
        }
        Link::connect(self.up.dialer.clone(), outbound, messages)
    }

    fn is_over(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| {
            (leaving.said && self.outbox.is_empty())
                || self.now() >= leaving.until_ns + 1_000_000_000
        })
    }

    async fn request(&mut self, request: Request) {
        match request {
            Request::Refused(run, why) => self.refused.push_back((run, why)),
            Request::Leave(limit, reason) => {
                while let Ok(report) = self.up.reports.try_recv() {
                    self.step(Event::Report(report)).await;
                }
                let limit = i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX);
                self.leaving = Some(Leaving {
                    reason,
                    until_ns: self.now().saturating_add(limit),
                    said: false,
                });
            }
        }
        self.courtesies();
    }

    /// What is not in the session's hands: refusals and the good-bye.
    fn courtesies(&mut self) {
        if !self.session.is_welcomed() {
            if let Some(leaving) = &mut self.leaving
                && (self.up.clock.raw_ns() >= leaving.until_ns || self.session.is_drained())
            {
                leaving.said = true;
                self.outbox.clear();
            }
            return;
        }
        while let Some((run_id, reason)) = self.refused.pop_front() {
            self.outbox.push_back(Out::Ready(Box::new(message(
                agent_message::Kind::RunRefused(wire::RunRefused { run_id, reason }),
            ))));
        }
        let now = self.up.clock.raw_ns();
        if let Some(leaving) = &mut self.leaving
            && !leaving.said
            && (self.session.is_drained() || now >= leaving.until_ns)
        {
            leaving.said = true;
            self.outbox
                .push_back(Out::Ready(Box::new(message(agent_message::Kind::Goodbye(
                    wire::Goodbye {
                        reason: leaving.reason.clone(),
                    },
                )))));
        }
    }

    /// Lets the session decide; returns why the connection must end, if it must.
    async fn step(&mut self, event: Event) -> Option<String> {
        let now = self.now();
        let actions = self.session.handle(event, now);
        let mut broken = None;
        for action in actions {
            match action {
                Action::Hello(positions) => {
                    let hello = self.hello(&positions);
                    self.outbox.push_back(Out::Ready(Box::new(hello)));
                }
                Action::Send(frame) => self.outbox.push_back(Out::Frame(frame)),
                Action::SendLoss(loss) => {
                    self.outbox.push_back(Out::Ready(Box::new(message(
                        agent_message::Kind::Loss(wire_loss(&loss)),
                    ))));
                }
                Action::Heartbeat => self.outbox.push_back(Out::Heartbeat),
                Action::Forget(stream, seq) => self.up.spool.acked(stream, seq).await,
                Action::Declare(loss) => {
                    tracing::error!(run = %loss.stream.run, first = loss.first, last = loss.last, reason = ?loss.reason, "records are lost");
                    self.up.spool.lost(loss).await;
                }
                Action::GaveUp(stream, records) => {
                    tracing::error!(run = %stream.run, records, "the aggregator does not know this run; its records are given up");
                    // Comes again with the next frame if the queue is full.
                    let _ = self.up.orders.try_send(Order::Unknown(stream.run));
                }
                Action::Reconnect(why) => broken = Some(why.to_owned()),
            }
        }
        self.courtesies();
        broken
    }

    async fn next_out(&mut self) -> Option<AgentMessage> {
        match self.outbox.pop_front()? {
            Out::Ready(message) => Some(*message),
            Out::Heartbeat => Some(self.heartbeat()),
            Out::Frame(frame) => match self.up.spool.read(frame).await {
                Ok(read) => {
                    let parts =
                        fit::frames(read, frame.last, self.max_frame_bytes, self.takes_packed);
                    for part in parts.into_iter().rev() {
                        let part = message(agent_message::Kind::Frame(part));
                        self.outbox.push_front(Out::Ready(Box::new(part)));
                    }
                    match self.outbox.pop_front() {
                        Some(Out::Ready(message)) => Some(*message),
                        _ => None,
                    }
                }
                Err(error) => {
                    tracing::error!(segment = frame.segment, error, "a frame cannot be read");
                    self.step(Event::Unreadable(frame)).await;
                    None
                }
            },
        }
    }

    async fn message(&mut self, received: AggregatorMessage) -> Option<String> {
        use aggregator_message::Kind;
        match received.kind {
            Some(Kind::Welcome(welcome)) => {
                if welcome.protocol != PROTOCOL_VERSION {
                    return Some(format!(
                        "the aggregator speaks protocol {}, this build speaks {PROTOCOL_VERSION}",
                        welcome.protocol
                    ));
                }
                self.backoff.worked();
                self.complained = None;
                self.max_frame_bytes = match welcome.max_frame_bytes {
                    0 => MAX_FRAME,
                    most => usize::try_from(most).unwrap_or(MAX_FRAME).min(MAX_FRAME),
                };
                self.takes_packed = welcome.takes_packed;
                tracing::info!(aggregator = self.up.dialer.url(), "connected");
                let committed = welcome
                    .committed
                    .iter()
                    .filter_map(|c| Some((stream_of(c.stream.as_ref())?, c.seq)))
                    .collect();
                self.step(Event::Welcome {
                    committed,
                    window_bytes: welcome.window_bytes,
                    heartbeat_ns: i64::from(welcome.heartbeat_ms) * 1_000_000,
                })
                .await
            }
            Some(Kind::Ack(ack)) => {
                let stream = stream_of(ack.stream.as_ref())?;
                self.step(Event::Ack {
                    stream,
                    seq: ack.seq,
                })
                .await
            }
            Some(Kind::Nack(nack)) => {
                let stream = stream_of(nack.stream.as_ref())?;
                let reason = match nack.reason() {
                    wire::NackReason::Gap => NackReason::Gap,
                    wire::NackReason::UnknownRun => NackReason::UnknownRun,
                    wire::NackReason::Malformed => NackReason::Malformed,
                    wire::NackReason::Busy => NackReason::Busy,
                    wire::NackReason::Unspecified => {
                        return Some(format!("unknown reason {} of a Nack", nack.reason));
                    }
                };
                if reason != NackReason::Busy {
                    tracing::warn!(run = %stream.run, ?reason, expected = nack.expected_seq, detail = nack.detail, "not accepted");
                }
                self.step(Event::Nack {
                    stream,
                    reason,
                    expected: nack.expected_seq,
                    retry_after_ns: i64::from(nack.retry_after_ms) * 1_000_000,
                })
                .await
            }
            Some(Kind::StartRun(start)) => {
                let plan = start.plan.unwrap_or_default();
                let run_id = plan.run_id.clone();
                let order = if run_id.is_empty() {
                    Order::Refuse(run_id, "the plan has no run id".to_owned())
                } else {
                    match RunPlan::try_from(plan) {
                        Ok(plan) => Order::Start(Box::new(plan)),
                        Err(error) => Order::Refuse(run_id, error.to_string()),
                    }
                };
                let _ = self.up.orders.send(order).await;
                self.step(Event::Heard).await
            }
            Some(Kind::StopRun(stop)) => {
                if let Ok(run) = stop.run_id.parse() {
                    let _ = self.up.orders.send(Order::Stop(run, stop.reason)).await;
                }
                self.step(Event::Heard).await
            }
            Some(Kind::Heartbeat(_)) => self.step(Event::Heard).await,
            Some(Kind::Drain(drain)) => Some(format!("the aggregator drains: {}", drain.reason)),
            None => self.step(Event::Heard).await,
        }
    }

    fn hello(&self, positions: &[Position]) -> AgentMessage {
        message(agent_message::Kind::Hello(wire::Hello {
            protocol: PROTOCOL_VERSION,
            agent_id: self.up.agent_id.to_string(),
            incarnation: self.up.spool.incarnation().get(),
            program_version: env!("CARGO_PKG_VERSION").to_owned(),
            clock: Some((&self.up.clock.key()).into()),
            host: Some((&HostFacts::read()).into()),
            targets: self
                .up
                .targets
                .iter()
                .map(|(name, address, user)| wire::TargetOffer {
                    name: name.clone(),
                    address: address.clone(),
                    user: user.clone(),
                })
                .collect(),
            streams: positions
                .iter()
                .map(|position| wire::StreamPosition {
                    stream: Some((&position.stream).into()),
                    first_unacked: position.first_unacked,
                    last: position.last,
                })
                .collect(),
            running: self
                .up
                .board
                .running()
                .iter()
                .map(ToString::to_string)
                .collect(),
        }))
    }

    fn heartbeat(&self) -> AgentMessage {
        message(agent_message::Kind::Heartbeat(wire::Heartbeat {
            sent_ns: self.now(),
            spool_bytes: self.up.spool.bytes(),
            unacked_samples: self.session.unacked_records(),
            runs: self
                .up
                .board
                .progress()
                .into_iter()
                .map(|(run, targets)| wire::RunProgress {
                    run_id: run.to_string(),
                    targets: targets
                        .into_iter()
                        .map(|progress| wire::TargetProgress {
                            target: progress.target.to_string(),
                            style: progress.style.to_string(),
                            ok: progress.ok,
                            bad: progress.bad,
                            backend: progress.backend,
                            last_error: progress.last_error,
                        })
                        .collect(),
                })
                .collect(),
        }))
    }
}

fn message(kind: agent_message::Kind) -> AgentMessage {
    AgentMessage { kind: Some(kind) }
}

fn stream_of(stream: Option<&wire::StreamId>) -> Option<StreamId> {
    match StreamId::try_from(stream?) {
        Ok(stream) => Some(stream),
        Err(error) => {
            tracing::warn!(%error, "the aggregator names a stream that cannot be");
            None
        }
    }
}

fn wire_loss(loss: &Loss) -> wire::Loss {
    wire::Loss {
        stream: Some((&loss.stream).into()),
        first_seq: loss.first,
        last_seq: loss.last,
        count_min: loss.count_min,
        count_max: loss.count_max,
        reason: match loss.reason {
            LossReason::SpoolFull => wire::LossReason::SpoolFull,
            LossReason::DiskFull => wire::LossReason::DiskFull,
            LossReason::Corrupt => wire::LossReason::Corrupt,
            LossReason::PowerLoss => wire::LossReason::PowerLoss,
            LossReason::Rejected => wire::LossReason::Rejected,
            LossReason::WriteFailed => wire::LossReason::WriteFailed,
        }
        .into(),
    }
}
