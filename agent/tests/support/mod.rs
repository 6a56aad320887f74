//! Real peers on loopback for the agent's tests: a MySQL server of known
//! behaviour, and an aggregator that follows the protocol.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::frame::{Body, Frame, StreamId};
use gapscope_proto::host::HostRecord;
use gapscope_proto::ids::RunId;
use gapscope_proto::plan::{ClientGroup, ClientKind, RunPlan, Timeouts};
use gapscope_proto::sample::{Sample, Style};
use gapscope_proto::wire::{
    self, AgentMessage, AggregatorMessage, Ping, Pong, agent_message, aggregator_message,
    clock_server, collector_server,
};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

pub(crate) const MS: u64 = 1_000_000;

/// What the MySQL server does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Answers,
    ClosesAtAccept,
    ResetsAtAccept,
    HangsAtAccept,
    GarbageAtAccept,
    ErrorAtLogin,
    ClosesAtQuery,
    ClosesInsideAnswer,
    ResetsAtQuery,
    HangsAtQuery,
    HangsInsideAnswer,
    GarbageAtQuery,
    ErrorAtQuery,
    TwoRows,
    NullBackend,
    ForgetsVariables,
    /// Announces more columns than any memory holds.
    BeyondMemory,
}

/// A MySQL server of known behaviour, which can change.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    behaviour: Arc<Mutex<Behaviour>>,
    pub(crate) connections: Arc<AtomicU32>,
    /// Statements answered well.
    pub(crate) answers: Arc<AtomicU32>,
    /// Where asked for, each answer: its number is given as the connection id, so
    /// it can be found again.
    pub(crate) tickets: Option<Tickets>,
    /// Who is answered, where answers are counted: a port that was free may be one that
    /// another test's agent still tries to reach, and what that is told is not ours.
    pub(crate) user: String,
}

/// An answer, as the server that gave it knows it. Its number is its place, from 1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    /// Over which connection: the number that its greeting had.
    pub(crate) connection: u32,
    /// When it was decided.
    pub(crate) given_ns: i64,
    /// When all of it had been handed to the kernel; none: it never was.
    pub(crate) sent_ns: Option<i64>,
}

/// All answers.
pub(crate) type Tickets = Arc<Mutex<Vec<Ticket>>>;

/// As the agents read it: they run on the same host.
pub(crate) fn now_ns() -> i64 {
    static CLOCK: LazyLock<SystemClock> = LazyLock::new(SystemClock::new);
    CLOCK.raw_ns()
}

impl Server {
    pub(crate) fn start(behaviour: Behaviour) -> Self {
        Self::begin("127.0.0.1:0", behaviour, None)
    }

    /// At an address of the test's own choice.
    pub(crate) fn at(address: &str, behaviour: Behaviour) -> Self {
        Self::begin(address, behaviour, None)
    }

    /// Answers, and numbers its answers.
    pub(crate) fn with_tickets() -> Self {
        Self::begin("127.0.0.1:0", Behaviour::Answers, Some(Tickets::default()))
    }

    fn begin(address: &str, behaviour: Behaviour, tickets: Option<Tickets>) -> Self {
        let listener = TcpListener::bind(address).expect("a port");
        let address = listener.local_addr().expect("bound");
        let behaviour = Arc::new(Mutex::new(behaviour));
        let connections = Arc::new(AtomicU32::new(0));
        let answers = Arc::new(AtomicU32::new(0));
        let (b, c, a) = (behaviour.clone(), connections.clone(), answers.clone());
        let t = tickets.clone();
        let user = match &tickets {
            Some(_) => format!("probe-{:08x}", rand::random::<u32>()),
            None => "probe".to_owned(),
        };
        let only = tickets.is_some().then(|| user.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let id = c.fetch_add(1, Ordering::SeqCst) + 1;
                let (b, a, t) = (b.clone(), a.clone(), t.clone());
                let only = only.clone();
                std::thread::spawn(move || {
                    let _ = serve(stream, id, &b, &a, t.as_ref(), only);
                });
            }
        });
        Self {
            address,
            behaviour,
            connections,
            answers,
            tickets,
            user,
        }
    }

    pub(crate) fn now(&self, behaviour: Behaviour) {
        *self.behaviour.lock().expect("not poisoned") = behaviour;
    }
}

fn packet(seq: u8, body: &[u8]) -> Vec<u8> {
    let mut out = (body.len() as u32).to_le_bytes()[..3].to_vec();
    out.push(seq);
    out.extend_from_slice(body);
    out
}

fn lenenc(text: &[u8]) -> Vec<u8> {
    let mut out = vec![text.len() as u8];
    out.extend_from_slice(text);
    out
}

fn read_packet(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut header = [0; 4];
    stream.read_exact(&mut header)?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], 0]) as usize;
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(body)
}

fn reset(stream: &TcpStream) {
    rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).expect("linger");
}

fn hang(mut stream: TcpStream) {
    // Until the client goes away.
    let mut sink = [0; 64];
    while matches!(stream.read(&mut sink), Ok(n) if n > 0) {}
}

fn error(seq: u8, code: u16, text: &str) -> Vec<u8> {
    let mut body = vec![0xff];
    body.extend_from_slice(&code.to_le_bytes());
    body.extend_from_slice(b"#HY000");
    body.extend_from_slice(text.as_bytes());
    packet(seq, &body)
}

const OK: [u8; 7] = [0, 0, 0, 2, 0, 0, 0];
const EOF: [u8; 5] = [0xfe, 0, 0, 2, 0];

fn serve(
    mut stream: TcpStream,
    id: u32,
    behaviour: &Mutex<Behaviour>,
    answers: &AtomicU32,
    tickets: Option<&Tickets>,
    only: Option<String>,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let now = || *behaviour.lock().expect("not poisoned");
    match now() {
        Behaviour::ClosesAtAccept => return Ok(()),
        Behaviour::ResetsAtAccept => {
            reset(&stream);
            return Ok(());
        }
        Behaviour::HangsAtAccept => {
            hang(stream);
            return Ok(());
        }
        Behaviour::GarbageAtAccept => {
            stream.write_all(&packet(0, b"\x02garbage"))?;
            hang(stream);
            return Ok(());
        }
        _ => {}
    }
    // Protocol 10, 4.1, secure connection, plugin auth, transactions.
    let mut greeting = b"\x0a8.0.99-fake\0".to_vec();
    greeting.extend_from_slice(&id.to_le_bytes());
    greeting.extend_from_slice(b"12345678\0");
    let capabilities: u32 = 0x0000_0200 | 0x8000 | 0x0008_0000 | 0x2000 | 1;
    greeting.extend_from_slice(&capabilities.to_le_bytes()[..2]);
    greeting.push(33);
    greeting.extend_from_slice(&[2, 0]);
    greeting.extend_from_slice(&capabilities.to_le_bytes()[2..]);
    greeting.push(21);
    greeting.extend_from_slice(&[0; 10]);
    greeting.extend_from_slice(b"123456789012\0mysql_native_password\0");
    stream.write_all(&packet(0, &greeting))?;
    let login = read_packet(&mut stream)?;
    if let Some(user) = only {
        // Behind capabilities, longest packet, character set and 23 zeros.
        let name = login.get(32..).unwrap_or_default();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        if name != user.as_bytes() {
            stream.write_all(&error(2, 1045, "Access denied: not of this test"))?;
            return Ok(());
        }
    }
    if now() == Behaviour::ErrorAtLogin {
        stream.write_all(&error(2, 1045, "Access denied for user 'probe'"))?;
        return Ok(());
    }
    stream.write_all(&packet(2, &OK))?;
    let mut variable: Option<String> = None;
    loop {
        let command = read_packet(&mut stream)?;
        if command.first() != Some(&3) {
            return Ok(());
        }
        let sql = String::from_utf8_lossy(&command[1..]).into_owned();
        match now() {
            Behaviour::ClosesAtQuery => return Ok(()),
            Behaviour::ResetsAtQuery => {
                reset(&stream);
                return Ok(());
            }
            Behaviour::HangsAtQuery => {
                hang(stream);
                return Ok(());
            }
            Behaviour::GarbageAtQuery => {
                stream.write_all(&packet(1, b"\x02x"))?;
                stream.write_all(&packet(77, b"\x09what"))?;
                hang(stream);
                return Ok(());
            }
            Behaviour::BeyondMemory => {
                stream.write_all(&packet(1, &[0xfe, 0, 0, 0, 0, 0, 0x10, 0, 0]))?;
                hang(stream);
                return Ok(());
            }
            Behaviour::ErrorAtQuery => {
                stream.write_all(&error(1, 1053, "Server shutdown in progress"))?;
                continue;
            }
            _ => {}
        }
        if let Some(value) = sql.strip_prefix("SET @gapscope_canary = '") {
            variable = Some(value.trim_end_matches('\'').to_owned());
            stream.write_all(&packet(1, &OK))?;
            continue;
        }
        let mut names = vec!["id", "version", "backend"];
        if sql.ends_with(" AS canary") {
            names.push("canary");
        }
        let mut out = packet(1, &[names.len() as u8]);
        let mut seq = 2;
        for name in &names {
            let mut column = lenenc(b"def");
            for text in ["", "", "", name, ""] {
                column.extend(lenenc(text.as_bytes()));
            }
            column.extend_from_slice(&[0x0c, 33, 0, 255, 0, 0, 0, 0xfd, 0, 0, 0, 0, 0]);
            out.extend(packet(seq, &column));
            seq += 1;
        }
        out.extend(packet(seq, &EOF));
        seq += 1;
        match now() {
            Behaviour::ClosesInsideAnswer => {
                stream.write_all(&out[..out.len() - 3])?;
                return Ok(());
            }
            Behaviour::HangsInsideAnswer => {
                stream.write_all(&out)?;
                hang(stream);
                return Ok(());
            }
            _ => {}
        }
        let rows = if now() == Behaviour::TwoRows { 2 } else { 1 };
        let shown = match tickets {
            // Noted before it is sent: an answer that nobody noted cannot arrive.
            Some(tickets) => {
                let mut tickets = tickets.lock().expect("not poisoned");
                tickets.push(Ticket {
                    connection: id,
                    given_ns: now_ns(),
                    sent_ns: None,
                });
                tickets.len() as u64
            }
            None => u64::from(id),
        };
        for _ in 0..rows {
            let mut row = lenenc(shown.to_string().as_bytes());
            row.extend(lenenc(b"8.0.99-fake"));
            if now() == Behaviour::NullBackend {
                row.push(0xfb);
            } else {
                row.extend(lenenc(b"db-1:3306"));
            }
            if names.len() == 4 {
                match (&variable, now()) {
                    (Some(value), other) if other != Behaviour::ForgetsVariables => {
                        row.extend(lenenc(value.as_bytes()));
                    }
                    _ => row.push(0xfb),
                }
            }
            out.extend(packet(seq, &row));
            seq += 1;
        }
        out.extend(packet(seq, &EOF));
        stream.write_all(&out)?;
        if let Some(tickets) = tickets {
            let at = usize::try_from(shown).expect("a place") - 1;
            tickets.lock().expect("not poisoned")[at].sent_ns = Some(now_ns());
        }
        answers.fetch_add(1, Ordering::SeqCst);
    }
}

// ---------------------------------------------------------------- aggregator

/// What arrived, as an aggregator keeps it.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    pub(crate) accepted: BTreeMap<StreamId, u64>,
    pub(crate) samples: BTreeMap<StreamId, Vec<(u64, Sample)>>,
    pub(crate) host: BTreeMap<StreamId, Vec<HostRecord>>,
    pub(crate) losses: Vec<wire::Loss>,
    pub(crate) refused: Vec<wire::RunRefused>,
    pub(crate) hellos: Vec<wire::Hello>,
    pub(crate) goodbyes: u32,
    pub(crate) progress: Vec<wire::RunProgress>,
    /// When each heartbeat was sent, by the agent's clock.
    pub(crate) beats_ns: Vec<i64>,
}

impl Arrived {
    /// Streams of this run whose host records end with the books.
    pub(crate) fn has_ended(&self, run: RunId) -> bool {
        self.host.iter().any(|(stream, records)| {
            stream.run == run && matches!(records.last(), Some(HostRecord::Ended(_)))
        })
    }
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Manners {
    /// Sent to an agent that is not running it.
    pub(crate) plan: Option<RunPlan>,
    /// The session is cut after so many frames, before the last is acknowledged.
    pub(crate) frames_a_session: Option<u32>,
    /// What it asks for in its welcome; 0: it does not say.
    pub(crate) heartbeat_ms: u32,
}

/// An aggregator in this process.
pub(crate) struct Aggregator {
    pub(crate) url: String,
    pub(crate) arrived: Arc<Mutex<Arrived>>,
    changed: watch::Receiver<u64>,
    server: tokio::task::JoinHandle<()>,
    gone: CancellationToken,
}

#[derive(Clone)]
struct Service {
    arrived: Arc<Mutex<Arrived>>,
    changed: watch::Sender<u64>,
    manners: Manners,
    clock: SystemClock,
    /// Ends what the listener's end leaves standing.
    gone: CancellationToken,
}

impl Aggregator {
    pub(crate) async fn start(manners: Manners) -> Self {
        Self::start_with(manners, Arc::default()).await
    }

    pub(crate) async fn start_with(manners: Manners, arrived: Arc<Mutex<Arrived>>) -> Self {
        Self::start_at("0", manners, arrived).await
    }

    /// Where another one was before.
    pub(crate) async fn start_at(
        port: &str,
        manners: Manners,
        arrived: Arc<Mutex<Arrived>>,
    ) -> Self {
        let address = format!("127.0.0.1:{port}");
        let bind = async {
            loop {
                // Until its connections are gone.
                match tokio::net::TcpListener::bind(&address).await {
                    Ok(listener) => return listener,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let listener = tokio::time::timeout(Duration::from_secs(30), bind)
            .await
            .expect("the port is free again");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let (sender, changed) = watch::channel(0);
        let service = Service {
            arrived: arrived.clone(),
            changed: sender,
            manners,
            clock: SystemClock::new(),
            gone: CancellationToken::new(),
        };
        let gone = service.gone.clone();
        let server = tokio::spawn(async move {
            tonic::transport::Server::builder()
                .add_service(collector_server::CollectorServer::new(service.clone()))
                .add_service(clock_server::ClockServer::new(service))
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .expect("serves");
        });
        Self {
            url,
            arrived,
            changed,
            server,
            gone,
        }
    }

    /// Waits until what arrived satisfies `condition`.
    pub(crate) async fn until(&mut self, what: &str, condition: impl Fn(&Arrived) -> bool) {
        let wait = async {
            loop {
                if condition(&self.arrived.lock().expect("not poisoned")) {
                    return;
                }
                self.changed.changed().await.expect("the server runs");
            }
        };
        if tokio::time::timeout(Duration::from_secs(30), wait)
            .await
            .is_err()
        {
            panic!("{what} has not come about: {:#?}", {
                let arrived = self.arrived.lock().expect("not poisoned");
                (
                    arrived.accepted.clone(),
                    arrived.hellos.len(),
                    arrived.refused.clone(),
                )
            });
        }
    }

    pub(crate) fn stop(self) -> Arc<Mutex<Arrived>> {
        self.server.abort();
        self.gone.cancel();
        self.arrived
    }
}

impl Service {
    fn note(&self, change: impl FnOnce(&mut Arrived)) {
        change(&mut self.arrived.lock().expect("not poisoned"));
        self.changed.send_modify(|n| *n += 1);
    }

    fn take(&self, frame: wire::Frame) -> Result<wire::Ack, wire::Nack> {
        let frame = Frame::try_from(frame).expect("a sound frame");
        let mut arrived = self.arrived.lock().expect("not poisoned");
        let accepted = arrived.accepted.get(&frame.stream).copied().unwrap_or(0);
        if frame.first_seq > accepted + 1 {
            return Err(wire::Nack {
                stream: Some((&frame.stream).into()),
                reason: wire::NackReason::Gap.into(),
                expected_seq: accepted + 1,
                detail: String::new(),
                retry_after_ms: 0,
            });
        }
        let skip = (accepted + 1 - frame.first_seq) as usize;
        match &frame.body {
            Body::Samples(columns) => {
                let samples = columns.decode().expect("sound columns");
                let seqs = (frame.first_seq..).zip(samples).skip(skip);
                arrived
                    .samples
                    .entry(frame.stream)
                    .or_default()
                    .extend(seqs);
            }
            Body::Host(records) => {
                let new = records.iter().skip(skip).cloned();
                arrived.host.entry(frame.stream).or_default().extend(new);
            }
        }
        let seq = accepted.max(frame.last_seq());
        arrived.accepted.insert(frame.stream, seq);
        drop(arrived);
        self.changed.send_modify(|n| *n += 1);
        Ok(wire::Ack {
            stream: Some((&frame.stream).into()),
            seq,
        })
    }

    async fn session_task(
        self,
        mut inbound: Streaming<AgentMessage>,
        outbound: mpsc::Sender<Result<AggregatorMessage, Status>>,
    ) {
        use aggregator_message::Kind;
        let send = async |kind| {
            let _ = outbound
                .send(Ok(AggregatorMessage { kind: Some(kind) }))
                .await;
        };
        let mut frames = 0;
        let mut beat = tokio::time::interval(Duration::from_millis(500));
        loop {
            let message = tokio::select! {
                () = self.gone.cancelled() => return,
                _ = beat.tick() => {
                    send(Kind::Heartbeat(wire::Heartbeat::default())).await;
                    continue;
                }
                message = inbound.next() => match message {
                    Some(Ok(AgentMessage { kind: Some(kind) })) => kind,
                    _ => return,
                },
            };
            match message {
                agent_message::Kind::Hello(hello) => {
                    let committed = hello
                        .streams
                        .iter()
                        .filter_map(|position| {
                            let stream = StreamId::try_from(position.stream.as_ref()?).ok()?;
                            let arrived = self.arrived.lock().expect("not poisoned");
                            Some(wire::Committed {
                                stream: Some((&stream).into()),
                                seq: arrived.accepted.get(&stream).copied().unwrap_or(0),
                            })
                        })
                        .collect();
                    send(Kind::Welcome(wire::Welcome {
                        protocol: 1,
                        program_version: "test".into(),
                        max_frame_bytes: 1 << 20,
                        window_bytes: 1 << 20,
                        heartbeat_ms: self.manners.heartbeat_ms,
                        committed,
                        clock: Some((&self.clock.key()).into()),
                        takes_packed: true,
                    }))
                    .await;
                    if let Some(plan) = &self.manners.plan
                        && !hello.running.contains(&plan.run_id.to_string())
                    {
                        send(Kind::StartRun(wire::StartRun {
                            plan: Some(plan.into()),
                        }))
                        .await;
                    }
                    self.note(|arrived| arrived.hellos.push(hello));
                }
                agent_message::Kind::Frame(frame) => {
                    let answer = self.take(frame);
                    frames += 1;
                    if self.manners.frames_a_session.is_some_and(|n| frames >= n) {
                        return;
                    }
                    match answer {
                        Ok(ack) => send(Kind::Ack(ack)).await,
                        Err(nack) => send(Kind::Nack(nack)).await,
                    }
                }
                agent_message::Kind::Loss(mut loss) => self.note(|arrived| {
                    let stream = loss.stream.as_ref().expect("a stream");
                    let stream = StreamId::try_from(stream).expect("a sound stream");
                    let accepted = arrived.accepted.entry(stream).or_default();
                    if loss.last_seq <= *accepted {
                        return;
                    }
                    // What is here already is not lost.
                    let skip = (*accepted + 1).saturating_sub(loss.first_seq);
                    loss.first_seq += skip;
                    loss.count_min = loss.count_min.saturating_sub(skip);
                    loss.count_max = loss.count_max.saturating_sub(skip);
                    *accepted = loss.last_seq;
                    arrived.losses.push(loss);
                }),
                agent_message::Kind::Heartbeat(beat) => {
                    self.note(|arrived| {
                        arrived.beats_ns.push(beat.sent_ns);
                        arrived.progress.extend(beat.runs);
                    });
                }
                agent_message::Kind::RunRefused(refused) => {
                    self.note(|arrived| arrived.refused.push(refused));
                }
                agent_message::Kind::Goodbye(_) => self.note(|arrived| arrived.goodbyes += 1),
            }
        }
    }
}

#[tonic::async_trait]
impl collector_server::Collector for Service {
    type SessionStream = ReceiverStream<Result<AggregatorMessage, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (outbound, messages) = mpsc::channel(16);
        tokio::spawn(self.clone().session_task(request.into_inner(), outbound));
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}

#[tonic::async_trait]
impl clock_server::Clock for Service {
    type ExchangeStream = ReceiverStream<Result<Pong, Status>>;

    async fn exchange(
        &self,
        request: Request<Streaming<Ping>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let (outbound, pongs) = mpsc::channel(4);
        let clock = self.clock.clone();
        let mut pings = request.into_inner();
        let gone = self.gone.clone();
        tokio::spawn(async move {
            while let Some(Some(Ok(ping))) = gone.run_until_cancelled(pings.next()).await {
                let s1_ns = clock.raw_ns();
                let pong = Pong {
                    number: ping.number,
                    a1_ns: ping.a1_ns,
                    s1_ns,
                    s2_ns: clock.raw_ns(),
                    clock: Some((&clock.key()).into()),
                };
                if outbound.send(Ok(pong)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(pongs)))
    }
}

// ---------------------------------------------------------------- plans

pub(crate) fn group(
    target: &str,
    style: Style,
    kind: ClientKind,
    first_client: u16,
    clients: u16,
    interval_ms: u64,
) -> ClientGroup {
    let timeout = (kind != ClientKind::Patient).then_some(2_000 * MS);
    ClientGroup {
        target: target.parse().expect("a name"),
        style,
        kind,
        first_client,
        clients,
        interval_ns: interval_ms * MS,
        timeouts: Timeouts {
            resolve_ns: timeout,
            connect_ns: timeout,
            query_ns: timeout,
        },
    }
}

pub(crate) fn plan(duration_ms: u64, groups: Vec<ClientGroup>) -> RunPlan {
    RunPlan {
        run_id: RunId::generate(),
        scenario: "test".into(),
        duration_ns: duration_ms * MS,
        deadline_ns: 250 * MS,
        groups,
        identity: None,
        scenario_toml: String::new(),
    }
}
