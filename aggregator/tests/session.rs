//! The server over real connections, with an agent written by hand.

mod common;

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{lag, plan, samples};
use gapscope_aggregator::server::{Config, serve};
use gapscope_aggregator::store::disk::Disk;
use gapscope_aggregator::store::manifest::RunState;
use gapscope_aggregator::store::verify::verify;
use gapscope_aggregator::store::{RunFolder, RunStore};
use gapscope_proto::batch::Columns;
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::frame::{Body, Frame, StreamId, StreamKind};
use gapscope_proto::host::{HostRecord, ProbingEnded, ProbingStarted, Unknown};
use gapscope_proto::ids::{Incarnation, RunId};
use gapscope_proto::plan::RunPlan;
use gapscope_proto::wire;
use gapscope_proto::wire::agent_message::Kind as Say;
use gapscope_proto::wire::aggregator_message::Kind as Hear;
use gapscope_proto::wire::clock_client::ClockClient;
use gapscope_proto::wire::collector_client::CollectorClient;
use gapscope_proto::wire::control_client::ControlClient;
use polars::prelude::*;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

/// Longer than anything here may take; only ever waited for by a failing test.
const LIMIT: Duration = Duration::from_secs(30);

struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<anyhow::Result<()>>,
}

async fn server(data: &Path, disk: Disk) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("is bound");
    let (stop, stopped) = oneshot::channel();
    let config = Config {
        data: data.to_owned(),
        clock: Arc::new(SystemClock::new()),
        disk,
        security: Default::default(),
        reports: None,
        web: None,
    };
    let task = tokio::spawn(serve(config, listener, || Ok(()), async move {
        let _ = stopped.await;
    }));
    Server {
        address,
        stop,
        task,
    }
}

impl Server {
    async fn shut_down(self) {
        drop(self.stop);
        tokio::time::timeout(LIMIT, self.task)
            .await
            .expect("ends")
            .expect("does not panic")
            .expect("serves");
    }
}

async fn control(address: SocketAddr) -> ControlClient<Channel> {
    ControlClient::connect(format!("http://{address}"))
        .await
        .expect("connects")
}

struct Peer {
    out: mpsc::Sender<wire::AgentMessage>,
    inbound: Streaming<wire::AggregatorMessage>,
}

fn hello(agent: &str, incarnation: Incarnation) -> wire::Hello {
    wire::Hello {
        protocol: 1,
        agent_id: agent.to_owned(),
        incarnation: incarnation.get(),
        program_version: "test".to_owned(),
        clock: Some((&SystemClock::new().key()).into()),
        host: Some(wire::HostFacts {
            hostname: "here".to_owned(),
            ..wire::HostFacts::default()
        }),
        targets: vec![wire::TargetOffer {
            name: "t".to_owned(),
            address: "127.0.0.1:3306".to_owned(),
            user: "u".to_owned(),
        }],
        streams: Vec::new(),
        running: Vec::new(),
    }
}

impl Peer {
    async fn open(address: SocketAddr) -> Self {
        let mut client = CollectorClient::connect(format!("http://{address}"))
            .await
            .expect("connects");
        let (out, rx) = mpsc::channel(64);
        let inbound = client
            .session(ReceiverStream::new(rx))
            .await
            .expect("opens")
            .into_inner();
        Self { out, inbound }
    }

    async fn connect(address: SocketAddr, hello: wire::Hello) -> (Self, wire::Welcome) {
        let mut peer = Self::open(address).await;
        peer.say(Say::Hello(hello)).await;
        let welcome = peer
            .hear(|kind| match kind {
                Hear::Welcome(welcome) => Some(welcome),
                _ => None,
            })
            .await;
        (peer, welcome)
    }

    async fn say(&self, kind: Say) {
        self.out
            .send(wire::AgentMessage { kind: Some(kind) })
            .await
            .expect("the session is open");
    }

    async fn say_frame(&self, frame: &Frame) {
        self.say(Say::Frame(frame.into())).await;
    }

    async fn next(&mut self) -> Result<Option<Hear>, Status> {
        let message = tokio::time::timeout(LIMIT, self.inbound.message())
            .await
            .expect("something is heard")?;
        Ok(message.map(|message| message.kind.expect("has a kind")))
    }

    /// Waits for a message that `pick` takes.
    async fn hear<T>(&mut self, mut pick: impl FnMut(Hear) -> Option<T>) -> T {
        loop {
            let kind = self.next().await.expect("no error").expect("not the end");
            if let Some(found) = pick(kind) {
                return found;
            }
        }
    }

    /// Waits until a stream is acknowledged up to `seq`.
    async fn acked(&mut self, stream: StreamId, seq: u64) {
        let stream = wire::StreamId::from(&stream);
        self.hear(|kind| match kind {
            Hear::Ack(ack) if ack.stream.as_ref() == Some(&stream) => {
                assert!(ack.seq <= seq, "{} was never sent", ack.seq);
                (ack.seq == seq).then_some(())
            }
            Hear::Nack(nack) => panic!("{nack:?}"),
            _ => None,
        })
        .await;
    }

    async fn nacked(&mut self) -> wire::Nack {
        self.hear(|kind| match kind {
            Hear::Nack(nack) => Some(nack),
            Hear::Ack(ack) => panic!("{ack:?}"),
            _ => None,
        })
        .await
    }

    /// The status with which the session ends.
    async fn ended(&mut self) -> Option<Status> {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    }
}

fn stream(run: RunId, incarnation: Incarnation, kind: StreamKind) -> StreamId {
    StreamId {
        run,
        incarnation,
        kind,
    }
}

fn frame(stream: StreamId, seqs: std::ops::RangeInclusive<u64>) -> Frame {
    Frame {
        stream,
        first_seq: *seqs.start(),
        body: Body::Samples(Columns::encode(&samples(seqs))),
    }
}

fn host_frame(stream: StreamId, first_seq: u64, records: Vec<HostRecord>) -> Frame {
    Frame {
        stream,
        first_seq,
        body: Body::Host(records),
    }
}

fn started() -> HostRecord {
    HostRecord::Started(ProbingStarted {
        origin_ns: 1,
        planned_end_ns: 2,
        clock: SystemClock::new().key(),
    })
}

fn ended(sampled: u64) -> HostRecord {
    HostRecord::Ended(ProbingEnded {
        end_ns: 2,
        reason: "planned end".to_owned(),
        due: sampled,
        sampled,
        waited: 0,
        overslept: 0,
    })
}

/// Starts a run on the connected `peer`, as an agent would take it up.
async fn start(
    address: SocketAddr,
    peer: &mut Peer,
    plan: &RunPlan,
    incarnation: Incarnation,
) -> (StreamId, StreamId) {
    let request = wire::StartRunRequest {
        plan: Some(plan.into()),
        ..wire::StartRunRequest::default()
    };
    let mut control = control(address).await;
    let starting = tokio::spawn(async move { control.start_run(request).await });
    let told = peer
        .hear(|kind| match kind {
            Hear::StartRun(start) => start.plan,
            _ => None,
        })
        .await;
    assert_eq!(RunPlan::try_from(told).as_ref(), Ok(plan));
    let host = stream(plan.run_id, incarnation, StreamKind::Host);
    peer.say_frame(&host_frame(host, 1, vec![started()])).await;
    peer.acked(host, 1).await;
    let response = starting
        .await
        .expect("does not panic")
        .expect("starts")
        .into_inner();
    assert_eq!(response.run_id, plan.run_id.to_string());
    (stream(plan.run_id, incarnation, StreamKind::Samples), host)
}

fn stored(data: &Path, run: RunId) -> Vec<u64> {
    let run = RunFolder::open(&data.join(run.to_string())).expect("opens");
    let frame = run
        .samples()
        .expect("scans")
        .select([col("seq"), col("slot")])
        .collect()
        .expect("reads");
    let column = |name: &str| -> Vec<u64> {
        let column = frame.column(name).expect("is there");
        column.u64().expect("u64").iter().flatten().collect()
    };
    let (mut seqs, slots) = (column("seq"), column("slot"));
    for (seq, slot) in seqs.iter().zip(&slots) {
        assert_eq!(*slot, seq - 1, "a sample got another's seq");
    }
    seqs.sort_unstable();
    seqs
}

#[track_caller]
fn holds(data: &Path, run: RunId, last: u64) {
    assert_eq!(stored(data, run), (1..=last).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sample_arrives_once_whatever_is_sent_twice() {
    let data = tempfile::tempdir().expect("a folder");
    let server = server(data.path(), Disk::default()).await;
    let incarnation = Incarnation::generate();
    let (mut peer, welcome) = Peer::connect(server.address, hello("a", incarnation)).await;
    assert_eq!(welcome.max_frame_bytes, 1 << 20);
    assert_eq!(
        welcome.clock,
        Some((&SystemClock::new().key()).into()),
        "the aggregator's own clock"
    );
    let plan = plan("t", 3_600_000_000_000);
    let (samples, host) = start(server.address, &mut peer, &plan, incarnation).await;
    for seqs in [1..=10, 11..=20, 5..=15, 11..=20, 15..=30] {
        peer.say_frame(&frame(samples, seqs)).await;
    }
    peer.acked(samples, 30).await;
    // A hole is answered once, however many frames were in the pipe behind it.
    for seqs in [41..=50, 51..=60] {
        peer.say_frame(&frame(samples, seqs)).await;
    }
    let nack = peer.nacked().await;
    assert_eq!(nack.reason(), wire::NackReason::Gap);
    assert_eq!(nack.expected_seq, 31);
    for seqs in [31..=40, 41..=50] {
        peer.say_frame(&frame(samples, seqs)).await;
    }
    peer.acked(samples, 50).await;
    // The connection breaks; the agent does not know what arrived.
    peer.say_frame(&frame(samples, 51..=60)).await;
    drop(peer);
    let position = |stream: StreamId, last| wire::StreamPosition {
        stream: Some((&stream).into()),
        first_unacked: 51,
        last,
    };
    let mut again = hello("a", incarnation);
    again.streams = vec![position(samples, 70), position(host, 1)];
    again.running = vec![plan.run_id.to_string()];
    let (mut peer, welcome) = Peer::connect(server.address, again).await;
    let committed: Vec<u64> = welcome.committed.iter().map(|c| c.seq).collect();
    assert!((50..=60).contains(&committed[0]), "{committed:?}");
    assert_eq!(committed[1], 1);
    peer.say_frame(&frame(samples, 51..=60)).await;
    peer.say_frame(&frame(samples, 61..=70)).await;
    peer.acked(samples, 70).await;
    holds(data.path(), plan.run_id, 70);
    // A declared loss, then the end.
    peer.say(Say::Loss(wire::Loss {
        stream: Some((&samples).into()),
        first_seq: 71,
        last_seq: 75,
        count_min: 5,
        count_max: 5,
        reason: wire::LossReason::SpoolFull.into(),
    }))
    .await;
    peer.acked(samples, 75).await;
    let mut control = control(server.address).await;
    let stop = wire::StopRunRequest {
        run_id: plan.run_id.to_string(),
        reason: "enough".to_owned(),
        drain_ms: 20_000,
    };
    let stopping = tokio::spawn(async move { control.stop_run(stop).await });
    peer.hear(|kind| match kind {
        Hear::StopRun(stop) => (stop.run_id == plan.run_id.to_string()).then_some(()),
        _ => None,
    })
    .await;
    peer.say_frame(&host_frame(host, 2, vec![lag(5), ended(75)]))
        .await;
    let stopped = stopping
        .await
        .expect("does not panic")
        .expect("stops")
        .into_inner();
    assert!(stopped.drained, "{:?}", stopped.missing);
    let [account] = &stopped.accounts[..] else {
        panic!("{:?}", stopped.accounts);
    };
    // 5 to 15, 11 to 20 and 15 to 20 came again; 51 to 60 if they had arrived.
    assert!([27, 37].contains(&account.repeated), "{account:?}");
    let books = wire::AgentAccount {
        agent_id: "a".to_owned(),
        sampled: 75,
        stored: 70,
        lost: 5,
        lost_min: 5,
        lost_max: 5,
        repeated: account.repeated,
        ..wire::AgentAccount::default()
    };
    assert_eq!(*account, books);
    let run = RunFolder::open(Path::new(&stopped.folder)).expect("opens");
    assert_eq!(run.manifest().state, RunState::Closed);
    // Its agent had come to the planned end: the stop cut nothing short.
    let why = run.manifest().end_reason.as_deref();
    assert_eq!(why, Some("planned end (closed after it: enough)"));
    let entry = &run.manifest().agents[0].incarnations[0];
    // Conservation: what the agent sampled is stored or declared lost.
    let (lost_min, lost_max) = run.samples_lost().expect("reads");
    assert_eq!((lost_min, lost_max), (5, 5));
    assert_eq!(run.samples_stored() + lost_min, entry.samples_announced);
    assert_eq!(entry.samples_committed, 75);
    assert_eq!(
        run.lag().expect("scans").collect().expect("reads").height(),
        1
    );
    assert_eq!(run.manifest().agents[0].host.hostname, "here");
    // What comes late is taken all the same.
    peer.say_frame(&frame(samples, 76..=80)).await;
    peer.acked(samples, 80).await;
    assert_eq!(stored(data.path(), plan.run_id).len(), 75);
    server.shut_down().await;
    let run = RunFolder::open(run.path()).expect("opens");
    assert!(
        run.manifest()
            .caveats
            .iter()
            .any(|c| c.contains("arrived after"))
    );
}

/// Host records that only a newer build knows: from an agent of that build (the
/// field is one that nobody knows here), and from an older one that found them in
/// its spool.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_newer_agent_reports_keeps_its_place_and_costs_nothing_else() {
    let data = tempfile::tempdir().expect("a folder");
    let server = server(data.path(), Disk::default()).await;
    let incarnation = Incarnation::generate();
    let (mut peer, _) = Peer::connect(server.address, hello("a", incarnation)).await;
    let plan = plan("t", 3_600_000_000_000);
    let (samples, host) = start(server.address, &mut peer, &plan, incarnation).await;
    peer.say_frame(&frame(samples, 1..=10)).await;
    peer.acked(samples, 10).await;
    let unknown = HostRecord::Unknown(Unknown {
        kind: "Rain".to_owned(),
        packed: b"\x81\xa4Rain\x91\x07".to_vec(),
    });
    let mut wired = wire::Frame::from(&host_frame(
        host,
        2,
        vec![lag(1), unknown, lag(2), lag(3), ended(10)],
    ));
    if let Some(wire::frame::Body::Host(columns)) = &mut wired.body {
        columns.records[3] = wire::HostRecord { kind: None };
    }
    peer.say(Say::Frame(wired)).await;
    peer.acked(host, 6).await;
    let stopped = control(server.address)
        .await
        .stop_run(wire::StopRunRequest {
            run_id: plan.run_id.to_string(),
            reason: "enough".to_owned(),
            drain_ms: 20_000,
        })
        .await
        .expect("stops")
        .into_inner();
    assert!(stopped.drained, "{:?}", stopped.missing);
    let folder = PathBuf::from(&stopped.folder);
    let found = verify(&folder).expect("reads");
    assert!(found.is_whole(), "{found:#?}");
    let run = RunFolder::open(&folder).expect("opens");
    assert_eq!(
        run.lag().expect("scans").collect().expect("reads").height(),
        2
    );
    let said: Vec<_> = run
        .manifest()
        .caveats
        .iter()
        .filter(|caveat| caveat.contains("agent `a` is newer than"))
        .collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said.iter().any(|caveat| caveat.contains("(`Rain`)")));
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_session_of_the_same_agent_closes_the_older() {
    let data = tempfile::tempdir().expect("a folder");
    let server = server(data.path(), Disk::default()).await;
    let (mut first, _) = Peer::connect(server.address, hello("a", Incarnation::generate())).await;
    let (_second, _) = Peer::connect(server.address, hello("a", Incarnation::generate())).await;
    let status = first.ended().await.expect("a status");
    assert_eq!(status.code(), Code::Aborted);
    // A connection that the very same start had given up may be heard late: that is
    // no other agent, and is not called one.
    let start = Incarnation::generate();
    let (mut earlier, _) = Peer::connect(server.address, hello("b", start)).await;
    let (_later, _) = Peer::connect(server.address, hello("b", start)).await;
    let status = earlier.ended().await.expect("a status");
    assert_eq!(status.code(), Code::Unavailable);
    let agents = control(server.address)
        .await
        .list_agents(wire::ListAgentsRequest {})
        .await
        .expect("lists")
        .into_inner()
        .agents;
    assert_eq!(agents.len(), 2);
    assert!(
        agents.iter().all(|agent| agent.connected),
        "the end of the first does not touch the second"
    );
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_away_at_the_stop_is_told_when_it_is_back() {
    let data = tempfile::tempdir().expect("a folder");
    let server = server(data.path(), Disk::default()).await;
    let incarnation = Incarnation::generate();
    let plan = plan("t", 3_600_000_000_000);
    let run = plan.run_id;
    let (mut peer, _) = Peer::connect(server.address, hello("a", incarnation)).await;
    let (samples, host) = start(server.address, &mut peer, &plan, incarnation).await;
    drop(peer);
    let address = server.address;
    let stopping = tokio::spawn(async move {
        let stopped = control(address)
            .await
            .stop_run(wire::StopRunRequest {
                run_id: run.to_string(),
                drain_ms: 30_000,
                ..wire::StopRunRequest::default()
            })
            .await;
        stopped.expect("stops").into_inner()
    });
    // Back in the midst of the drain, or just before it: then it is told at once.
    let back = wire::Hello {
        running: vec![run.to_string()],
        ..hello("a", incarnation)
    };
    let (mut peer, _) = Peer::connect(server.address, back).await;
    let told = peer
        .hear(|kind| match kind {
            Hear::StopRun(stop) => Some(stop.run_id),
            _ => None,
        })
        .await;
    assert_eq!(told, run.to_string());
    peer.say_frame(&frame(samples, 1..=7)).await;
    peer.say_frame(&host_frame(host, 2, vec![ended(7)])).await;
    peer.acked(host, 2).await;
    let closed = tokio::time::timeout(LIMIT, stopping).await;
    let closed = closed.expect("closes").expect("no panic");
    assert_eq!(closed.missing, [""; 0]);
    assert_eq!(closed.accounts[0].stored, 7);
    holds(data.path(), run, 7);
    server.shut_down().await;
}

/// Two agents probe one run under one id (a folder was copied with its spool). Each
/// takes the other's session over; what one of them says ends nothing of the other's.
#[tokio::test(flavor = "multi_thread")]
async fn two_agents_with_one_id_owe_an_end_each() {
    let data = tempfile::tempdir().expect("a folder");
    let server = server(data.path(), Disk::default()).await;
    let (one, two) = (Incarnation::generate(), Incarnation::generate());
    let plan = plan("t", 3_600_000_000_000);
    let run = plan.run_id;
    let folder = data.path().join(run.to_string());
    let again = |incarnation| wire::Hello {
        running: vec![run.to_string()],
        ..hello("a", incarnation)
    };
    let of = |incarnation, kind| stream(run, incarnation, kind);
    let (mut first, _) = Peer::connect(server.address, hello("a", one)).await;
    start(server.address, &mut first, &plan, one).await;
    let samples_of_one = of(one, StreamKind::Samples);
    first.say_frame(&frame(samples_of_one, 1..=10)).await;
    first.acked(samples_of_one, 10).await;
    // So far it may be the same agent, started again.
    let (mut second, _) = Peer::connect(server.address, again(two)).await;
    let host_of_two = of(two, StreamKind::Host);
    second
        .say_frame(&host_frame(host_of_two, 1, vec![started()]))
        .await;
    second.acked(host_of_two, 1).await;
    assert!(!RunFolder::open(&folder).expect("opens").manifest().agents[0].shares_id);
    // The first one is back, and goes on.
    let (mut first, _) = Peer::connect(server.address, again(one)).await;
    assert_eq!(second.ended().await.map(|s| s.code()), Some(Code::Aborted));
    first.say_frame(&frame(samples_of_one, 11..=20)).await;
    first.acked(samples_of_one, 20).await;
    // The second one comes to its end.
    let (mut second, _) = Peer::connect(server.address, again(two)).await;
    let samples_of_two = of(two, StreamKind::Samples);
    second.say_frame(&frame(samples_of_two, 1..=5)).await;
    second
        .say_frame(&host_frame(host_of_two, 2, vec![ended(5)]))
        .await;
    second.acked(host_of_two, 2).await;
    let stop = |drain_ms| {
        let address = server.address;
        async move {
            let mut control = control(address).await;
            let stopped = control.stop_run(wire::StopRunRequest {
                run_id: run.to_string(),
                drain_ms,
                ..wire::StopRunRequest::default()
            });
            stopped.await.expect("stops").into_inner()
        }
    };
    let closed = stop(300).await;
    assert_eq!(closed.missing, ["agent `a`: the end of its probing"]);
    assert!(closed.accounts[0].may_hold_more, "{:?}", closed.accounts);
    let found = verify(&folder).expect("reads");
    assert_eq!((found.open, found.samples), (1, 25), "{found:#?}");
    // The first one brings what it still had, late.
    let (mut first, _) = Peer::connect(server.address, again(one)).await;
    first.say_frame(&frame(samples_of_one, 21..=30)).await;
    let host_of_one = of(one, StreamKind::Host);
    first
        .say_frame(&host_frame(host_of_one, 2, vec![ended(30)]))
        .await;
    first.acked(host_of_one, 2).await;
    let closed = stop(10_000).await;
    assert_eq!(closed.missing, [""; 0]);
    assert!(!closed.accounts[0].may_hold_more, "{:?}", closed.accounts);
    let found = verify(&folder).expect("reads");
    assert!(found.is_whole(), "{found:#?}");
    assert_eq!(found.samples, 35);
    let run = RunFolder::open(&folder).expect("opens");
    let says = "two agents used the id `a` in turn";
    assert!(run.manifest().caveats.iter().any(|c| c.starts_with(says)));
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused_and_harms_nobody() {
    let data = tempfile::tempdir().expect("a folder");
    let server = server(data.path(), Disk::default()).await;
    let incarnation = Incarnation::generate();
    let (mut peer, _) = Peer::connect(server.address, hello("a", incarnation)).await;
    let plan = plan("t", 3_600_000_000_000);
    let (samples, host) = start(server.address, &mut peer, &plan, incarnation).await;

    let unknown = stream(RunId::generate(), incarnation, StreamKind::Samples);
    peer.say_frame(&frame(unknown, 1..=3)).await;
    let nack = peer.nacked().await;
    assert_eq!(nack.reason(), wire::NackReason::UnknownRun);
    assert_eq!(nack.stream, Some((&unknown).into()));

    let good = wire::Frame::from(&frame(samples, 1..=3));
    let edit = |change: &dyn Fn(&mut wire::Frame)| {
        let mut frame = good.clone();
        change(&mut frame);
        frame
    };
    let columns = |frame: &mut wire::Frame, change: &dyn Fn(&mut wire::SampleColumns)| {
        if let Some(wire::frame::Body::Samples(columns)) = &mut frame.body {
            change(columns);
        }
    };
    let hostile = [
        edit(&|f| f.stream = None),
        edit(&|f| f.body = None),
        edit(&|f| f.count = 4),
        edit(&|f| f.count = 0),
        edit(&|f| f.first_seq = 0),
        edit(&|f| f.first_seq = u64::MAX),
        edit(&|f| f.first_seq = u64::MAX - 10),
        edit(&|f| {
            if let Some(stream) = &mut f.stream {
                stream.kind = 77;
            }
        }),
        edit(&|f| {
            if let Some(stream) = &mut f.stream {
                stream.run_id = "../../etc".to_owned();
            }
        }),
        edit(&|f| {
            if let Some(stream) = &mut f.stream {
                stream.incarnation = 0;
            }
        }),
        edit(&|f| columns(f, &|c| c.series.clear())),
        edit(&|f| columns(f, &|c| c.series_index[1] = u32::MAX)),
        edit(&|f| columns(f, &|c| c.slot.truncate(2))),
        edit(&|f| columns(f, &|c| c.query_ns_plus_1.push(1))),
        edit(&|f| columns(f, &|c| c.connection_plus_1[0] = -5)),
        edit(&|f| columns(f, &|c| c.series[0].outcome = "splendid".to_owned())),
        edit(&|f| columns(f, &|c| c.series[0].target = "a/b".to_owned())),
        edit(&|f| columns(f, &|c| c.series[0].client = 1 << 20)),
        edit(&|f| columns(f, &|c| c.series[0].error = "x".repeat(2 << 20))),
        edit(&|f| {
            f.body = Some(wire::frame::Body::Host(wire::HostColumns {
                records: Vec::new(),
            }))
        }),
    ];
    for (number, frame) in hostile.into_iter().enumerate() {
        peer.say(Say::Frame(frame)).await;
        let nack = peer.nacked().await;
        assert_eq!(
            nack.reason(),
            wire::NackReason::Malformed,
            "hostile frame {number}: {nack:?}"
        );
        assert!(!nack.detail.is_empty());
    }
    let loss = |first_seq, last_seq, count_min, count_max| wire::Loss {
        stream: Some((&samples).into()),
        first_seq,
        last_seq,
        count_min,
        count_max,
        reason: 0,
    };
    for hostile in [
        loss(0, 5, 0, 5),
        loss(5, 4, 0, 0),
        loss(1, u64::MAX, 0, 1),
        loss(1, 3, 0, 4),
        loss(1, 3, 3, 2),
        wire::Loss {
            stream: None,
            ..loss(1, 3, 3, 3)
        },
    ] {
        peer.say(Say::Loss(hostile)).await;
        assert_eq!(peer.nacked().await.reason(), wire::NackReason::Malformed);
    }
    // Numbers that only look hostile are data.
    let mut wild = edit(&|f| columns(f, &|c| c.took_ns[0] = u64::MAX));
    columns(&mut wild, &|c| c.scheduled_ns[1] = i64::MIN);
    peer.say(Say::Frame(wild)).await;
    peer.acked(samples, 3).await;
    peer.say_frame(&host_frame(host, 2, vec![lag(i64::MIN)]))
        .await;
    peer.acked(host, 2).await;
    assert_eq!(stored(data.path(), plan.run_id), vec![1, 2, 3]);

    // A second hello, a wrong protocol, a first message that is no hello.
    peer.say(Say::Hello(hello("a", incarnation))).await;
    assert_eq!(
        peer.ended().await.map(|s| s.code()),
        Some(Code::InvalidArgument)
    );
    let mut newer = Peer::open(server.address).await;
    newer
        .say(Say::Hello(wire::Hello {
            protocol: 2,
            ..hello("a", incarnation)
        }))
        .await;
    let status = newer.ended().await.expect("a status");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("protocol 2"), "{status}");
    let mut rude = Peer::open(server.address).await;
    rude.say_frame(&frame(samples, 1..=3)).await;
    assert_eq!(
        rude.ended().await.map(|s| s.code()),
        Some(Code::InvalidArgument)
    );
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_be_opened_holds_up_no_other() {
    let data = tempfile::tempdir().expect("a folder");
    let incarnation = Incarnation::generate();
    let damaged = stream(RunId::generate(), incarnation, StreamKind::Samples);
    let folder = data.path().join(damaged.run.to_string());
    std::fs::create_dir_all(&folder).expect("makes it");
    std::fs::write(folder.join("manifest.json"), "{").expect("writes");
    let server = server(data.path(), Disk::default()).await;
    let mut greeting = hello("a", incarnation);
    greeting.streams = vec![wire::StreamPosition {
        stream: Some((&damaged).into()),
        first_unacked: 1,
        last: 3,
    }];
    let (mut peer, _) = Peer::connect(server.address, greeting).await;
    let plan = plan("t", 3_600_000_000_000);
    let (samples, _) = start(server.address, &mut peer, &plan, incarnation).await;
    peer.say_frame(&frame(damaged, 1..=3)).await;
    let nack = peer.nacked().await;
    assert_eq!(
        nack.reason(),
        wire::NackReason::Busy,
        "agents keep the data"
    );
    assert!(nack.retry_after_ms > 0 && nack.detail.contains("manifest.json"));
    peer.say_frame(&frame(samples, 1..=3)).await;
    peer.acked(samples, 3).await;
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_acknowledgements_and_loses_nothing() {
    let data = tempfile::tempdir().expect("a folder");
    let full = Arc::new(AtomicBool::new(false));
    let is_full = full.clone();
    let disk = Disk::watched(Arc::new(move |_, _| {
        if is_full.load(Ordering::SeqCst) {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        } else {
            Ok(())
        }
    }));
    let server = server(data.path(), disk).await;
    let incarnation = Incarnation::generate();
    let (mut peer, _) = Peer::connect(server.address, hello("a", incarnation)).await;
    let plan = plan("t", 3_600_000_000_000);
    let (samples, _) = start(server.address, &mut peer, &plan, incarnation).await;
    full.store(true, Ordering::SeqCst);
    peer.say_frame(&frame(samples, 1..=10)).await;
    // Two heartbeats later nothing is acknowledged.
    let mut beats = 0;
    while beats < 2 {
        match peer.next().await.expect("no error").expect("not the end") {
            Hear::Heartbeat(_) => beats += 1,
            Hear::Ack(ack) => panic!("nothing is durable: {ack:?}"),
            _ => {}
        }
    }
    full.store(false, Ordering::SeqCst);
    peer.acked(samples, 10).await;
    holds(data.path(), plan.run_id, 10);
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_a_stop_is_answered() {
    let data = tempfile::tempdir().expect("a folder");
    let full = Arc::new(AtomicBool::new(false));
    let is_full = full.clone();
    let disk = Disk::watched(Arc::new(move |_, _| {
        if is_full.load(Ordering::SeqCst) {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        } else {
            Ok(())
        }
    }));
    let server = server(data.path(), disk).await;
    let incarnation = Incarnation::generate();
    let (mut peer, _) = Peer::connect(server.address, hello("a", incarnation)).await;
    let plan = plan("t", 3_600_000_000_000);
    let (samples, _) = start(server.address, &mut peer, &plan, incarnation).await;
    full.store(true, Ordering::SeqCst);
    peer.say_frame(&frame(samples, 1..=10)).await;
    // The frame's commit must have failed before: later frames are not taken in.
    while peer
        .next()
        .await
        .expect("no error")
        .is_some_and(|kind| !matches!(kind, Hear::Heartbeat(_)))
    {}
    let stop = wire::StopRunRequest {
        run_id: plan.run_id.to_string(),
        ..wire::StopRunRequest::default()
    };
    let mut control = control(server.address).await;
    let refused = tokio::time::timeout(Duration::from_secs(60), control.stop_run(stop))
        .await
        .expect("it answers")
        .expect_err("it cannot be closed");
    assert!(refused.message().contains("is not closed"), "{refused}");
    assert!(refused.message().contains("no storage space"), "{refused}");
    full.store(false, Ordering::SeqCst);
    let (mut peer, _) = Peer::connect(server.address, hello("a", incarnation)).await;
    peer.say_frame(&frame(samples, 1..=10)).await;
    peer.acked(samples, 10).await;
    holds(data.path(), plan.run_id, 10);
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_nobody_can_carry_out_says_why() {
    let data = tempfile::tempdir().expect("a folder");
    let server = server(data.path(), Disk::default()).await;
    let request = |target: &str| wire::StartRunRequest {
        plan: Some((&plan(target, 1_000_000_000)).into()),
        ..wire::StartRunRequest::default()
    };
    let mut control = control(server.address).await;
    let nobody = control.start_run(request("t")).await.expect_err("nobody");
    assert!(
        nobody.message().contains("no agent is connected"),
        "{nobody}"
    );
    let (mut peer, _) = Peer::connect(server.address, hello("a", Incarnation::generate())).await;
    let wrong = control
        .start_run(request("u"))
        .await
        .expect_err("no target");
    assert_eq!(
        wrong.message(),
        "no agent has target `u`; known: t (agent a)"
    );
    assert_eq!(
        std::fs::read_dir(data.path()).expect("lists").count(),
        1,
        "only the lock"
    );
    let mut other = control.clone();
    let request = request("t");
    let starting = tokio::spawn(async move { other.start_run(request).await });
    let run_id = peer
        .hear(|kind| match kind {
            Hear::StartRun(start) => start.plan.map(|plan| plan.run_id),
            _ => None,
        })
        .await;
    peer.say(Say::RunRefused(wire::RunRefused {
        run_id: run_id.clone(),
        reason: "busy with another run".to_owned(),
    }))
    .await;
    let refused = starting.await.expect("no panic").expect_err("refused");
    assert_eq!(
        refused.message(),
        "agent `a` refused the run: busy with another run"
    );
    let runs = control
        .list_runs(wire::ListRunsRequest {})
        .await
        .expect("lists")
        .into_inner()
        .runs;
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].state, "closed", "nothing is left running");
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn marks_are_stamped_on_arrival_and_progress_is_shown() {
    let data = tempfile::tempdir().expect("a folder");
    let server = server(data.path(), Disk::default()).await;
    let incarnation = Incarnation::generate();
    let (mut peer, _) = Peer::connect(server.address, hello("a", incarnation)).await;
    let plan = plan("t", 3_600_000_000_000);
    start(server.address, &mut peer, &plan, incarnation).await;
    let run_id = plan.run_id.to_string();
    let mut control = control(server.address).await;
    let clock = SystemClock::new();
    let before = clock.raw_ns();
    let recorded = control
        .record_fault(wire::RecordFaultRequest {
            run_id: run_id.clone(),
            fault: Some(wire::Fault {
                step: "mark".to_owned(),
                detail: "pulled the plug".to_owned(),
                ..wire::Fault::default()
            }),
        })
        .await
        .expect("records")
        .into_inner();
    assert_eq!(recorded.id, 1);
    let run = RunFolder::open(&data.path().join(&run_id)).expect("opens");
    let fault = run.faults().expect("reads").remove(0);
    assert_eq!(fault.clock, clock.key());
    assert!((before..=clock.raw_ns()).contains(&fault.asked.earliest_ns));
    assert_eq!(fault.detail, "pulled the plug");

    peer.say(Say::Heartbeat(wire::Heartbeat {
        sent_ns: 1,
        spool_bytes: 77,
        unacked_samples: 0,
        runs: vec![wire::RunProgress {
            run_id: run_id.clone(),
            targets: vec![wire::TargetProgress {
                target: "t".to_owned(),
                ok: 5,
                ..wire::TargetProgress::default()
            }],
        }],
    }))
    .await;
    let mut watched = control
        .watch_run(wire::WatchRunRequest {
            run_id: run_id.clone(),
        })
        .await
        .expect("watches")
        .into_inner();
    let shown = tokio::time::timeout(LIMIT, async {
        loop {
            let report = watched.message().await.expect("no error").expect("goes on");
            assert_eq!(report.state, "running");
            if let Some(agent) = report.agents.into_iter().next() {
                return agent;
            }
        }
    })
    .await
    .expect("is shown");
    assert_eq!(shown.spool_bytes, 77);
    assert_eq!(shown.progress.expect("is there").targets[0].ok, 5);
    // A stop does not wait longer than it was told to, and says what is missing.
    let stopped = control
        .stop_run(wire::StopRunRequest {
            run_id: run_id.clone(),
            reason: String::new(),
            drain_ms: 100,
        })
        .await
        .expect("stops")
        .into_inner();
    assert!(!stopped.drained);
    assert_eq!(stopped.missing, vec!["agent `a`: the end of its probing"]);
    let last = tokio::time::timeout(LIMIT, async {
        let mut last = None;
        while let Some(report) = watched.message().await.expect("no error") {
            last = Some(report.state);
        }
        last
    })
    .await
    .expect("ends with the run");
    assert_eq!(last.as_deref(), Some("closed"));
    // What is done afterwards is no part of it.
    let late = control
        .record_fault(wire::RecordFaultRequest {
            run_id,
            fault: Some(wire::Fault {
                step: "mark".to_owned(),
                ..wire::Fault::default()
            }),
        })
        .await
        .expect_err("it is closed");
    assert_eq!(late.code(), Code::FailedPrecondition);
    assert!(late.message().contains("is closed"), "{late}");
    let run = RunFolder::find(data.path(), "latest").expect("opens");
    assert!(run.manifest().caveats[0].contains("the end of its probing"));
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_closes_by_itself_when_nothing_is_missing() {
    let data = tempfile::tempdir().expect("a folder");
    let server = server(data.path(), Disk::default()).await;
    let incarnation = Incarnation::generate();
    let (mut peer, _) = Peer::connect(server.address, hello("a", incarnation)).await;
    let plan = plan("t", 1_000_000);
    let (samples, host) = start(server.address, &mut peer, &plan, incarnation).await;
    peer.say_frame(&frame(samples, 1..=4)).await;
    peer.say_frame(&host_frame(host, 2, vec![ended(4)])).await;
    let mut watched = control(server.address)
        .await
        .watch_run(wire::WatchRunRequest {
            run_id: plan.run_id.to_string(),
        })
        .await
        .expect("watches")
        .into_inner();
    tokio::time::timeout(LIMIT, async {
        while watched.message().await.expect("no error").is_some() {
            // An agent that is alive says so.
            peer.say(Say::Heartbeat(wire::Heartbeat::default())).await;
        }
    })
    .await
    .expect("closes");
    let run = RunFolder::find(data.path(), "latest").expect("opens");
    assert_eq!(run.manifest().state, RunState::Closed);
    assert_eq!(run.manifest().caveats, Vec::<String>::new());
    holds(data.path(), plan.run_id, 4);
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_outlives_a_restart_and_an_old_one_is_interrupted() {
    let data = tempfile::tempdir().expect("a folder");
    let incarnation = Incarnation::generate();
    let first = server(data.path(), Disk::default()).await;
    let (mut peer, _) = Peer::connect(first.address, hello("a", incarnation)).await;
    let short = plan("t", 1_000_000);
    let (samples, host) = start(first.address, &mut peer, &short, incarnation).await;
    let old = plan("t", 1_000_000);
    let (old_samples, old_host) = start(first.address, &mut peer, &old, incarnation).await;
    peer.say_frame(&frame(samples, 1..=4)).await;
    peer.acked(samples, 4).await;
    first.shut_down().await;
    // The second one began a minute ago, by the manifest's clocks.
    let manifest = data
        .path()
        .join(old.run_id.to_string())
        .join("manifest.json");
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&manifest).expect("reads")).expect("is JSON");
    for edge in ["raw_before_ns", "raw_after_ns", "realtime_ns"] {
        let value = &mut json["anchors"][0][edge];
        *value = (value.as_i64().expect("a number") - 60_000_000_000).into();
    }
    std::fs::write(&manifest, json.to_string()).expect("writes");

    let second = server(data.path(), Disk::default()).await;
    let state = |run: RunId| {
        let run = RunFolder::open(&data.path().join(run.to_string())).expect("opens");
        (run.manifest().state, run.manifest().caveats.clone())
    };
    let mut again = hello("a", incarnation);
    again.running = vec![short.run_id.to_string(), old.run_id.to_string()];
    let (mut peer, _) = Peer::connect(second.address, again).await;
    assert_eq!(state(old.run_id).0, RunState::Interrupted);
    peer.hear(|kind| match kind {
        Hear::StopRun(stop) => {
            assert_eq!(stop.run_id, old.run_id.to_string(), "the other goes on");
            Some(())
        }
        _ => None,
    })
    .await;
    peer.say_frame(&frame(samples, 3..=8)).await;
    peer.say_frame(&host_frame(host, 2, vec![ended(8)])).await;
    // What the agent still holds of the old one is taken, and completes it.
    peer.say_frame(&frame(old_samples, 1..=5)).await;
    peer.say_frame(&host_frame(old_host, 2, vec![ended(5)]))
        .await;
    tokio::time::timeout(LIMIT, async {
        while [short.run_id, old.run_id]
            .iter()
            .any(|run| state(*run).0 != RunState::Closed)
        {
            peer.say(Say::Heartbeat(wire::Heartbeat::default())).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await
    .expect("both close");
    holds(data.path(), short.run_id, 8);
    holds(data.path(), old.run_id, 5);
    assert_eq!(
        state(short.run_id).1,
        ["the aggregator was restarted during the run"]
    );
    assert!(state(old.run_id).1[0].contains("arrived after"));
    second.shut_down().await;
}

/// Killed behind the word that the run is over, before its parts were merged.
#[tokio::test(flavor = "multi_thread")]
async fn a_merge_that_was_left_is_taken_up() {
    let data = tempfile::tempdir().expect("a folder");
    let incarnation = Incarnation::generate();
    let first = server(data.path(), Disk::default()).await;
    let (mut peer, _) = Peer::connect(first.address, hello("a", incarnation)).await;
    let plan = plan("t", 1_000_000);
    let (samples, _) = start(first.address, &mut peer, &plan, incarnation).await;
    peer.say_frame(&frame(samples, 1..=4)).await;
    peer.acked(samples, 4).await;
    first.shut_down().await;
    let folder = data.path().join(plan.run_id.to_string());
    let mut store = RunStore::open(&folder, Disk::default()).expect("opens");
    store.interrupt("killed").expect("is noted");
    drop(store);
    let live = || std::fs::read_dir(folder.join("samples/live")).map_or(0, Iterator::count);
    assert!(live() > 0);
    let second = server(data.path(), Disk::default()).await;
    tokio::time::timeout(LIMIT, async {
        while live() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("merged");
    second.shut_down().await;
    assert!(folder.join("samples/part-000001.parquet").exists());
    let run = RunFolder::open(&folder).expect("opens");
    assert_eq!(run.manifest().state, RunState::Interrupted);
    assert_eq!(run.samples_stored(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_agent_is_given_up_within_the_bound() {
    let data = tempfile::tempdir().expect("a folder");
    let server = server(data.path(), Disk::default()).await;
    let clock = SystemClock::new();
    let (mut peer, _) = Peer::connect(server.address, hello("a", Incarnation::generate())).await;
    let begin = clock.raw_ns();
    assert_eq!(
        peer.ended().await.map(|s| s.code()),
        Some(Code::DeadlineExceeded)
    );
    let took = clock.raw_ns() - begin;
    assert!(took < 8_000_000_000, "{took} ns");
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_told_before_a_shutdown_and_everything_sent_is_kept() {
    let data = tempfile::tempdir().expect("a folder");
    let server = server(data.path(), Disk::default()).await;
    let incarnation = Incarnation::generate();
    let (mut peer, _) = Peer::connect(server.address, hello("a", incarnation)).await;
    let plan = plan("t", 3_600_000_000_000);
    let (samples, _) = start(server.address, &mut peer, &plan, incarnation).await;
    peer.say_frame(&frame(samples, 1..=10)).await;
    peer.acked(samples, 10).await;
    server.shut_down().await;
    peer.hear(|kind| matches!(kind, Hear::Drain(_)).then_some(()))
        .await;
    peer.ended().await;
    let run = RunFolder::find(data.path(), "latest").expect("opens");
    assert_eq!(run.manifest().state, RunState::Running, "another may go on");
    holds(data.path(), plan.run_id, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_is_stamped_between_arrival_and_departure() {
    let data = tempfile::tempdir().expect("a folder");
    let server = server(data.path(), Disk::default()).await;
    let clock = SystemClock::new();
    let mut client = ClockClient::connect(format!("http://{}", server.address))
        .await
        .expect("connects");
    let (out, pings) = mpsc::channel(4);
    let mut pongs = client
        .exchange(ReceiverStream::new(pings))
        .await
        .expect("opens")
        .into_inner();
    for number in 0..20 {
        let a1_ns = clock.raw_ns();
        out.send(wire::Ping { number, a1_ns }).await.expect("sends");
        let pong = pongs.message().await.expect("no error").expect("a pong");
        let a2_ns = clock.raw_ns();
        assert_eq!((pong.number, pong.a1_ns), (number, a1_ns));
        // The same clock on both sides: the order is the truth.
        assert!(a1_ns <= pong.s1_ns && pong.s1_ns <= pong.s2_ns && pong.s2_ns <= a2_ns);
        assert_eq!(pong.clock, Some((&clock.key()).into()));
    }
    server.shut_down().await;
}

struct Program {
    child: Child,
    address: SocketAddr,
}

/// The real program, on a free port.
async fn program(data: &Path) -> Program {
    let address_file: PathBuf = data.join("address");
    let _ = std::fs::remove_file(&address_file);
    let child = Command::new(env!("CARGO_BIN_EXE_gapscope-aggregator"))
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--die-with-parent",
            "--data",
        ])
        .arg(data)
        .arg("--address-file")
        .arg(&address_file)
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let address = tokio::time::timeout(LIMIT, async {
        loop {
            if let Ok(text) = std::fs::read_to_string(&address_file) {
                return text.trim().parse().expect("an address");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("serves");
    Program { child, address }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_goes_on_where_it_was() {
    let data = tempfile::tempdir().expect("a folder");
    let incarnation = Incarnation::generate();
    let plan = plan("t", 3_600_000_000_000);
    let samples = stream(plan.run_id, incarnation, StreamKind::Samples);
    let mut next = 1;
    let mut boundaries = BTreeSet::new();
    for round in 0..4u64 {
        let server = program(data.path()).await;
        let mut greeting = hello("a", incarnation);
        greeting.streams = vec![wire::StreamPosition {
            stream: Some((&samples).into()),
            first_unacked: next,
            last: next + 20,
        }];
        let (mut peer, welcome) = Peer::connect(server.address, greeting).await;
        if round == 0 {
            start(server.address, &mut peer, &plan, incarnation).await;
        } else {
            // At least all that was acknowledged; at most all that was sent.
            let committed = welcome.committed[0].seq;
            assert!(
                committed >= next - 1 && committed <= next + 9,
                "{committed} of {next}"
            );
            boundaries.insert(committed);
        }
        peer.say_frame(&frame(samples, next..=next + 4)).await;
        peer.acked(samples, next + 4).await;
        next += 5;
        // In flight when it dies: taken or not, never twice.
        peer.say_frame(&frame(samples, next..=next + 9)).await;
        drop(server);
    }
    assert_eq!(boundaries.len(), 3);
    let server = program(data.path()).await;
    let (mut peer, _) = Peer::connect(server.address, hello("a", incarnation)).await;
    peer.say_frame(&frame(samples, next..=next + 9)).await;
    peer.acked(samples, next + 9).await;
    holds(data.path(), plan.run_id, next + 9);
    let refused = Command::new(env!("CARGO_BIN_EXE_gapscope-aggregator"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(data.path())
        .output()
        .expect("starts");
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        text.contains(&format!("process {}", server.child.id())) && text.contains("hint:"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_busy_target_is_warned_of_and_kept_with_both_runs() {
    let data = tempfile::tempdir().expect("a folder");
    let server = server(data.path(), Disk::default()).await;
    let incarnation = Incarnation::generate();
    let (mut peer, _) = Peer::connect(server.address, hello("a", incarnation)).await;
    let (first, second) = (plan("t", 60_000_000_000), plan("t", 60_000_000_000));
    start(server.address, &mut peer, &first, incarnation).await;
    let request = wire::StartRunRequest {
        plan: Some((&second).into()),
        ..wire::StartRunRequest::default()
    };
    let mut asking = control(server.address).await;
    let starting = tokio::spawn(async move { asking.start_run(request).await });
    peer.hear(|kind| match kind {
        Hear::StartRun(start) => Some(start),
        _ => None,
    })
    .await;
    let host = stream(second.run_id, incarnation, StreamKind::Host);
    peer.say_frame(&host_frame(host, 1, vec![started()])).await;
    peer.acked(host, 1).await;
    let response = starting
        .await
        .expect("does not panic")
        .expect("starts")
        .into_inner();
    let of_first = format!(
        "target t is probed by run {} at the same time",
        first.run_id
    );
    assert_eq!(response.warnings.len(), 1, "{:?}", response.warnings);
    assert!(
        response.warnings[0].starts_with(&of_first),
        "{:?}",
        response.warnings
    );
    server.shut_down().await;
    for (run, other) in [(&first, &second), (&second, &first)] {
        let folder = RunFolder::open(&data.path().join(run.run_id.to_string())).expect("opens");
        let said = format!("probed by run {} at the same time", other.run_id);
        let caveats = &folder.manifest().caveats;
        assert!(caveats.iter().any(|c| c.contains(&said)), "{caveats:?}");
    }
}
