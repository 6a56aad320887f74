//! Many agents that come back at once to an aggregator that was killed:
//! each record is stored once, in bounded memory. The agents are tasks that speak
//! the real protocol to the real program.
//!
//! `GAPSCOPE_AGENTS` changes how many there are, `GAPSCOPE_TLS=1` gives each a
//! certificate of its own and the server mutual TLS, `GAPSCOPE_PROGRAM` names
//! another build of the aggregator.

#![expect(clippy::print_stdout, reason = "what is measured is printed")]

mod common;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use common::{plan, samples};
use gapscope_aggregator::certs::{Authority, Validity, Whose};
use gapscope_aggregator::store::RunFolder;
use gapscope_aggregator::store::verify::verify;
use gapscope_proto::batch::Columns;
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::frame::{Body, Frame, StreamId, StreamKind};
use gapscope_proto::host::{HostRecord, ProbingEnded, ProbingStarted};
use gapscope_proto::ids::{Incarnation, RunId};
use gapscope_proto::tls::{ClientFiles, Dialer, Line};
use gapscope_proto::wire;
use gapscope_proto::wire::agent_message::Kind as Say;
use gapscope_proto::wire::aggregator_message::Kind as Hear;
use gapscope_proto::wire::collector_client::CollectorClient;
use gapscope_proto::wire::control_client::ControlClient;
use tokio::sync::{Barrier, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

/// Longer than anything here may take; only ever waited for by a failing test.
const LIMIT: Duration = Duration::from_secs(120);
const FRAMES: u64 = 6;
const RECORDS: u64 = 10;

struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How agents and operator reach the program.
struct Access {
    /// The certificates' folder; none: clear text.
    certs: Option<tempfile::TempDir>,
}

impl Access {
    /// With certificates, if asked for, of so many agents.
    fn new(agents: usize) -> Self {
        if std::env::var("GAPSCOPE_TLS").is_err() {
            return Self { certs: None };
        }
        let folder = tempfile::tempdir().expect("a folder");
        let now_s = SystemClock::new().anchor().realtime_ns / 1_000_000_000;
        let authority = Authority::create(folder.path(), Validity::days(now_s, 9)).expect("made");
        let clients = (0..agents).map(|number| format!("agent:agent-{number}"));
        let mut all = vec![Whose::Server(vec!["127.0.0.1".to_owned()])];
        for client in clients.chain(["operator".to_owned()]) {
            all.push(Whose::Client(client.parse().expect("somebody")));
        }
        for whose in &all {
            authority
                .issue(whose, Validity::days(now_s, 1), false)
                .expect("issued");
        }
        Self {
            certs: Some(folder),
        }
    }

    /// What the server is to be told.
    fn flags(&self) -> Vec<PathBuf> {
        self.certs.as_ref().map_or_else(Vec::new, |certs| {
            let path = |name: &str| certs.path().join(name);
            vec![
                "--tls-cert".into(),
                path("server.pem"),
                "--tls-key".into(),
                path("server.key"),
                "--client-ca".into(),
                path("ca.pem"),
            ]
        })
    }

    /// A connection of whoever has the certificate `stem`.
    async fn dial(&self, address: SocketAddr, stem: &str) -> Option<Line> {
        let path = |name: String| self.certs.as_ref().map(|certs| certs.path().join(name));
        let files = ClientFiles {
            ca: path("ca.pem".to_owned()),
            cert: path(format!("{stem}.pem")),
            key: path(format!("{stem}.key")),
            token: None,
        };
        let scheme = if self.certs.is_some() {
            "https"
        } else {
            "http"
        };
        let clock = Arc::new(SystemClock::new());
        let dialer = Dialer::new(&format!("{scheme}://{address}"), &files, clock);
        let dialer = dialer.expect("usable files");
        dialer.dial(LIMIT, |endpoint| endpoint).await.ok()
    }
}

impl Program {
    /// Starts it on a free port.
    async fn start(data: &Path, access: &Access) -> (Self, SocketAddr) {
        let file = data.join("address");
        let _ = std::fs::remove_file(&file);
        let own = env!("CARGO_BIN_EXE_gapscope-aggregator").to_owned();
        let child = Command::new(std::env::var("GAPSCOPE_PROGRAM").unwrap_or(own))
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(access.flags())
            .arg("--data")
            .arg(data)
            .arg("--address-file")
            .arg(&file)
            .env("GAPSCOPE_LOG", "error")
            .spawn()
            .expect("starts");
        let program = Self(child);
        let address = tokio::time::timeout(LIMIT, async {
            loop {
                if let Ok(text) = std::fs::read_to_string(&file) {
                    return text.trim().parse().expect("an address");
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        (program, address.await.expect("serves"))
    }

    /// The most memory it ever had, in KiB.
    fn most_memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()));
        status
            .expect("it runs")
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|rest| rest.split_whitespace().next())
            .expect("a line of it")
            .parse()
            .expect("a number")
    }
}

fn now_ns() -> i64 {
    SystemClock::new().raw_ns()
}

/// User and system time of a process, in s.
fn processor_s(process: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    // Behind the name, which may hold anything: the 12th and 13th of what follows.
    let (_, rest) = stat.rsplit_once(')').expect("a name");
    let ticks: Vec<f64> = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse().expect("a number"))
        .collect();
    // Linux shows them in hundredths of a second.
    ticks.iter().sum::<f64>() / 100.0
}

/// A session; whatever goes wrong ends it.
struct Session {
    out: mpsc::Sender<wire::AgentMessage>,
    inbound: tonic::Streaming<wire::AggregatorMessage>,
    _line: Line,
}

impl Session {
    async fn open(access: &Access, address: SocketAddr, hello: wire::Hello) -> Option<Self> {
        let line = access
            .dial(address, &format!("agent-{}", hello.agent_id))
            .await?;
        let mut client = CollectorClient::new(line.service());
        let (out, messages) = mpsc::channel(4);
        let hello = wire::AgentMessage {
            kind: Some(Say::Hello(hello)),
        };
        out.send(hello).await.ok()?;
        let response = client.session(ReceiverStream::new(messages)).await.ok()?;
        // An agent that is alive says so, whatever it waits for.
        let beating = out.clone();
        tokio::spawn(async move {
            let beat = || wire::AgentMessage {
                kind: Some(Say::Heartbeat(wire::Heartbeat::default())),
            };
            while beating.send(beat()).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        Some(Self {
            out,
            inbound: response.into_inner(),
            _line: line,
        })
    }

    async fn say(&self, kind: Say) -> Option<()> {
        let message = wire::AgentMessage { kind: Some(kind) };
        self.out.send(message).await.ok()
    }

    async fn hear(&mut self) -> Option<Hear> {
        self.inbound.message().await.ok()??.kind
    }
}

struct Agent {
    name: String,
    incarnation: Incarnation,
    aggregator: watch::Receiver<SocketAddr>,
    access: Arc<Access>,
    /// When the last one was connected, and when it was welcomed.
    last: Arc<[AtomicI64; 2]>,
}

impl Agent {
    fn hello(&self, streams: Vec<wire::StreamPosition>, running: Vec<String>) -> wire::Hello {
        wire::Hello {
            protocol: 1,
            agent_id: self.name.clone(),
            incarnation: self.incarnation.get(),
            program_version: "test".to_owned(),
            clock: Some((&SystemClock::new().key()).into()),
            host: None,
            targets: vec![wire::TargetOffer {
                name: "t".to_owned(),
                address: "127.0.0.1:3306".to_owned(),
                user: "u".to_owned(),
            }],
            streams,
            running,
        }
    }

    fn stream(&self, run: RunId, kind: StreamKind) -> StreamId {
        StreamId {
            run,
            incarnation: self.incarnation,
            kind,
        }
    }

    /// Connects, sends the first half when told to, waits for the kill, delivers
    /// everything. On a busy machine a session may end earlier: then it is the
    /// second part that delivers.
    async fn run(mut self, run: RunId, ready: Arc<Barrier>, halfway: Arc<Barrier>) {
        let address = *self.aggregator.borrow_and_update();
        let session = loop {
            let hello = self.hello(vec![], vec![]);
            let session = Session::open(&self.access, address, hello).await;
            if let Some(mut session) = session
                && session.hear().await.is_some()
            {
                break session;
            }
        };
        // Twice: all are connected, the run is started.
        ready.wait().await;
        ready.wait().await;
        let host = self.stream(run, StreamKind::Host);
        let samples_stream = self.stream(run, StreamKind::Samples);
        let started = HostRecord::Started(ProbingStarted {
            origin_ns: 1,
            planned_end_ns: 2,
            clock: SystemClock::new().key(),
        });
        let ended = HostRecord::Ended(ProbingEnded {
            end_ns: 2,
            reason: "planned end".to_owned(),
            due: FRAMES * RECORDS,
            sampled: FRAMES * RECORDS,
            waited: 0,
            overslept: 0,
        });
        let host_frame = |first_seq, record: &HostRecord| Frame {
            stream: host,
            first_seq,
            body: Body::Host(vec![record.clone()]),
        };
        let frame = |number: u64| Frame {
            stream: samples_stream,
            first_seq: number * RECORDS + 1,
            body: Body::Samples(Columns::encode(&samples(
                number * RECORDS + 1..=(number + 1) * RECORDS,
            ))),
        };
        // Not acknowledged when it is killed: some are stored, some are not.
        let _ = session
            .say(Say::Frame((&host_frame(1, &started)).into()))
            .await;
        for number in 0..FRAMES / 2 {
            let _ = session.say(Say::Frame((&frame(number)).into())).await;
        }
        halfway.wait().await;
        self.aggregator.changed().await.expect("another one");
        while self
            .deliver(
                run,
                host,
                samples_stream,
                &|first| host_frame(first, if first == 1 { &started } else { &ended }),
                &frame,
            )
            .await
            .is_none()
        {}
    }

    /// One session: everything from where the aggregator stands; none if it broke.
    async fn deliver(
        &mut self,
        run: RunId,
        host: StreamId,
        samples: StreamId,
        host_frame: &(impl Fn(u64) -> Frame + Sync),
        frame: &(impl Fn(u64) -> Frame + Sync),
    ) -> Option<()> {
        let address = *self.aggregator.borrow_and_update();
        let position = |stream: &StreamId, last| wire::StreamPosition {
            stream: Some(stream.into()),
            first_unacked: 1,
            last,
        };
        let total = FRAMES * RECORDS;
        let streams = vec![position(&samples, total), position(&host, 2)];
        let hello = self.hello(streams, vec![run.to_string()]);
        let mut session = Session::open(&self.access, address, hello).await?;
        self.last[0].fetch_max(now_ns(), Ordering::SeqCst);
        let (mut have, mut have_host) = loop {
            if let Hear::Welcome(welcome) = session.hear().await? {
                self.last[1].fetch_max(now_ns(), Ordering::SeqCst);
                break (
                    welcome.committed.first()?.seq,
                    welcome.committed.get(1)?.seq,
                );
            }
        };
        for seq in have_host + 1..=2 {
            session.say(Say::Frame((&host_frame(seq)).into())).await?;
        }
        for number in have / RECORDS..FRAMES {
            session.say(Say::Frame((&frame(number)).into())).await?;
        }
        while have < total || have_host < 2 {
            match session.hear().await? {
                Hear::Ack(ack) => {
                    let stream = ack.stream.as_ref()?;
                    if *stream == wire::StreamId::from(&samples) {
                        have = ack.seq;
                    } else {
                        have_host = ack.seq;
                    }
                }
                Hear::Nack(nack) => panic!("{nack:?}"),
                _ => {}
            }
        }
        Some(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_come_back_at_once_are_taken_in() {
    let agents: usize =
        std::env::var("GAPSCOPE_AGENTS").map_or(100, |text| text.parse().expect("a number"));
    let data = tempfile::tempdir().expect("a folder");
    let access = Arc::new(Access::new(agents));
    let (first, address) = Program::start(data.path(), &access).await;
    let (moved, aggregator) = watch::channel(address);
    let plan = plan("t", 3_600_000_000_000);
    let run = plan.run_id;
    let last = Arc::new([AtomicI64::new(0), AtomicI64::new(0)]);
    let ready = Arc::new(Barrier::new(agents + 1));
    let halfway = Arc::new(Barrier::new(agents + 1));
    let tasks: Vec<_> = (0..agents)
        .map(|number| {
            let agent = Agent {
                name: format!("agent-{number}"),
                incarnation: Incarnation::generate(),
                aggregator: aggregator.clone(),
                access: access.clone(),
                last: last.clone(),
            };
            tokio::spawn(agent.run(run, ready.clone(), halfway.clone()))
        })
        .collect();
    tokio::time::timeout(LIMIT, ready.wait())
        .await
        .expect("all connect");
    let line = access.dial(address, "operator").await.expect("connects");
    ControlClient::new(line.service())
        .start_run(wire::StartRunRequest {
            plan: Some((&plan).into()),
            ..wire::StartRunRequest::default()
        })
        .await
        .expect("starts");
    ready.wait().await;
    tokio::time::timeout(LIMIT, halfway.wait())
        .await
        .expect("all send");
    let memory = first.most_memory_kib();
    drop(first);
    let begin = now_ns();
    let own_before = processor_s("self");
    let (second, address) = Program::start(data.path(), &access).await;
    let serving = now_ns();
    moved.send_replace(address);
    for task in tasks {
        tokio::time::timeout(LIMIT, task)
            .await
            .expect("delivers")
            .expect("no panic");
    }
    let took = now_ns() - begin;
    let theirs = processor_s(&second.0.id().to_string());
    let own = processor_s("self") - own_before;
    let line = access.dial(address, "operator").await.expect("connects");
    let stopped = ControlClient::new(line.service())
        .stop_run(wire::StopRunRequest {
            run_id: run.to_string(),
            reason: "done".to_owned(),
            drain_ms: 60_000,
        })
        .await
        .expect("stops")
        .into_inner();
    assert!(stopped.drained, "{:?}", stopped.missing);
    let memory = memory.max(second.most_memory_kib());
    println!(
        "{agents} agents back in {:.1} s with {} samples; at most {} MiB of memory",
        took as f64 / 1e9,
        agents as u64 * FRAMES * RECORDS,
        memory >> 10
    );
    let after = |at: i64| (at - begin) as f64 / 1e9;
    println!(
        "serves after {:.1} s, the last is connected after {:.1} s and welcomed after {:.1} s; \
         processor time: {theirs:.1} s of the aggregator, {own:.1} s of the agents in this test",
        after(serving),
        after(last[0].load(Ordering::SeqCst)),
        after(last[1].load(Ordering::SeqCst)),
    );
    let found = verify(&data.path().join(run.to_string())).expect("reads");
    assert!(found.is_sound(), "{found:#?}");
    assert_eq!(found.samples, agents as u64 * FRAMES * RECORDS);
    let run = RunFolder::open(&data.path().join(run.to_string())).expect("opens");
    assert_eq!(run.manifest().agents.len(), agents);
    // 200 MiB and 64 KiB an agent.
    assert!(memory < (200 << 10) + 64 * agents as u64, "{memory} KiB");
}
