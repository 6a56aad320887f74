//! Looking at a run as it goes on: over gRPC, in a browser, as metrics; and that
//! nobody who looks can slow, steer or read what he may not.

#![expect(
    clippy::print_stdout,
    reason = "what is measured is printed, and what is missing is said"
)]

mod browser;
mod lab;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use browser::{Browser, chromium};
use gapscope_aggregator::auth::gate::Security;
use gapscope_aggregator::auth::tokens;
use gapscope_aggregator::commands::report;
use gapscope_aggregator::control::watch::from_wire;
use gapscope_aggregator::live::lane::bit;
use gapscope_aggregator::live::view::{State, View};
use gapscope_aggregator::reporter::Make;
use gapscope_aggregator::server::{Config, serve};
use gapscope_aggregator::store::RunFolder;
use gapscope_aggregator::store::disk::Disk;
use gapscope_aggregator::web;
use gapscope_proto::batch::Columns;
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::frame::{Body, Frame, StreamId, StreamKind};
use gapscope_proto::host::{Anchor, HostRecord, ProbingEnded, ProbingStarted};
use gapscope_proto::ids::{Incarnation, RunId};
use gapscope_proto::plan::{ClientGroup, ClientKind, RunPlan, Timeouts};
use gapscope_proto::sample::{Cause, Outcome, Phase, Sample, Style};
use gapscope_proto::time::Timestamp;
use gapscope_proto::wire;
use gapscope_proto::wire::agent_message::Kind as Say;
use gapscope_proto::wire::aggregator_message::Kind as Hear;
use gapscope_proto::wire::collector_client::CollectorClient;
use gapscope_proto::wire::control_client::ControlClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// Longer than anything here may take; only ever waited for by a failing test.
const LIMIT: Duration = Duration::from_secs(60);
const MS: i64 = 1_000_000;

struct Server {
    grpc: SocketAddr,
    web: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<anyhow::Result<()>>,
}

async fn server(data: &Path, security: Security, reports: bool) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let page = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let (grpc, web) = (
        listener.local_addr().expect("bound"),
        page.local_addr().expect("bound"),
    );
    let (stop, stopped) = oneshot::channel();
    let config = Config {
        data: data.to_owned(),
        clock: Arc::new(SystemClock::new()),
        disk: Disk::default(),
        security,
        reports: reports.then(|| {
            let make = |folder: &Path| {
                report::make(&RunFolder::open(folder)?)?;
                Ok(())
            };
            Box::new(make) as Make
        }),
        web: Some(web::Config {
            listener: page,
            names: vec!["gaps.example.org".to_owned()],
            // However slow this machine is just now.
            patience: Duration::from_secs(600),
        }),
    };
    let task = tokio::spawn(serve(config, listener, || Ok(()), async move {
        let _ = stopped.await;
    }));
    Server {
        grpc,
        web,
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

    async fn control(&self) -> ControlClient<tonic::transport::Channel> {
        ControlClient::connect(format!("http://{}", self.grpc))
            .await
            .expect("connects")
    }

    async fn watch(&self, run: &str) -> Streaming<wire::WatchResponse> {
        let request = wire::WatchRequest {
            run_id: run.to_owned(),
        };
        let views = self.control().await.watch(request).await;
        views.expect("may watch").into_inner()
    }
}

async fn view(views: &mut Streaming<wire::WatchResponse>) -> View {
    let message = tokio::time::timeout(LIMIT, views.message()).await;
    from_wire(
        message
            .expect("in time")
            .expect("no error")
            .expect("not the end"),
    )
}

/// An agent written by hand, with one stream of samples.
struct Agent {
    out: mpsc::Sender<wire::AgentMessage>,
    inbound: Streaming<wire::AggregatorMessage>,
    run: RunId,
    incarnation: Incarnation,
    seq: u64,
    host_seq: u64,
}

fn plan(targets: &[String], style: Style, deadline_ms: u64) -> RunPlan {
    RunPlan {
        run_id: RunId::generate(),
        scenario: "live </script><b>test</b>".to_owned(),
        duration_ns: 600_000_000_000,
        deadline_ns: deadline_ms * 1_000_000,
        groups: targets
            .iter()
            .map(|target| ClientGroup {
                target: target.parse().expect("a name"),
                style,
                kind: ClientKind::Bare,
                first_client: 0,
                clients: 2,
                interval_ns: 10_000_000,
                timeouts: Timeouts {
                    resolve_ns: None,
                    connect_ns: Some(5_000_000_000),
                    query_ns: Some(5_000_000_000),
                },
            })
            .collect(),
        identity: None,
        scenario_toml: String::new(),
    }
}

impl Agent {
    /// Connects and starts a run of this plan.
    async fn start(server: &Server, plan: &RunPlan) -> Self {
        let clock = SystemClock::new();
        let mut client = CollectorClient::connect(format!("http://{}", server.grpc))
            .await
            .expect("connects");
        let (out, rx) = mpsc::channel(64);
        let inbound = client
            .session(ReceiverStream::new(rx))
            .await
            .expect("opens");
        let incarnation = Incarnation::generate();
        let mut agent = Self {
            out,
            inbound: inbound.into_inner(),
            run: plan.run_id,
            incarnation,
            seq: 0,
            host_seq: 0,
        };
        agent
            .say(Say::Hello(wire::Hello {
                protocol: 1,
                agent_id: "by-hand".to_owned(),
                incarnation: incarnation.get(),
                program_version: "test".to_owned(),
                clock: Some((&clock.key()).into()),
                host: Some(wire::HostFacts::default()),
                targets: plan
                    .groups
                    .iter()
                    .map(|group| wire::TargetOffer {
                        name: group.target.to_string(),
                        address: "127.0.0.1:3306".to_owned(),
                        user: "u".to_owned(),
                    })
                    .collect(),
                streams: Vec::new(),
                running: Vec::new(),
            }))
            .await;
        agent.hear(|kind| matches!(kind, Hear::Welcome(_))).await;
        let request = wire::StartRunRequest {
            plan: Some(plan.into()),
            ..wire::StartRunRequest::default()
        };
        let mut control = server.control().await;
        let starting = tokio::spawn(async move { control.start_run(request).await });
        agent.hear(|kind| matches!(kind, Hear::StartRun(_))).await;
        let now = clock.raw_ns();
        agent
            .host(HostRecord::Started(ProbingStarted {
                origin_ns: now,
                planned_end_ns: now + 600_000_000_000,
                clock: clock.key(),
            }))
            .await;
        starting.await.expect("no panic").expect("starts");
        agent
    }

    async fn say(&self, kind: Say) {
        let message = wire::AgentMessage { kind: Some(kind) };
        self.out.send(message).await.expect("the session is open");
    }

    async fn hear(&mut self, wanted: impl Fn(&Hear) -> bool) {
        loop {
            let message = tokio::time::timeout(LIMIT, self.inbound.message()).await;
            let message = message
                .expect("in time")
                .expect("no error")
                .expect("not the end");
            let kind = message.kind.expect("a kind");
            assert!(!matches!(kind, Hear::Nack(_)), "{kind:?}");
            if wanted(&kind) {
                return;
            }
        }
    }

    fn stream(&self, kind: StreamKind) -> StreamId {
        StreamId {
            run: self.run,
            incarnation: self.incarnation,
            kind,
        }
    }

    async fn host(&mut self, record: HostRecord) {
        self.host_seq += 1;
        let stream = self.stream(StreamKind::Host);
        let frame = Frame {
            stream,
            first_seq: self.host_seq,
            body: Body::Host(vec![record]),
        };
        self.say(Say::Frame((&frame).into())).await;
        self.acked(stream, self.host_seq).await;
    }

    async fn acked(&mut self, stream: StreamId, seq: u64) {
        let stream = Some(wire::StreamId::from(&stream));
        self.hear(|kind| match kind {
            Hear::Ack(ack) => ack.stream == stream && ack.seq == seq,
            _ => false,
        })
        .await;
    }

    /// Delivers samples, and waits until they are acknowledged.
    async fn deliver(&mut self, samples: &[Sample]) {
        let stream = self.stream(StreamKind::Samples);
        let frame = Frame {
            stream,
            first_seq: self.seq + 1,
            body: Body::Samples(Columns::encode(samples)),
        };
        self.seq += samples.len() as u64;
        self.say(Say::Frame((&frame).into())).await;
        self.say(Say::Heartbeat(wire::Heartbeat {
            spool_bytes: 4_096,
            unacked_samples: 7,
            ..wire::Heartbeat::default()
        }))
        .await;
        self.acked(stream, self.seq).await;
    }

    /// Ends the run in order.
    async fn end(&mut self, server: &Server) {
        self.host(HostRecord::Ended(ProbingEnded {
            end_ns: SystemClock::new().raw_ns(),
            reason: "test".to_owned(),
            due: self.seq,
            sampled: self.seq,
            waited: 0,
            overslept: 0,
        }))
        .await;
        let request = wire::StopRunRequest {
            run_id: self.run.to_string(),
            reason: "test".to_owned(),
            drain_ms: 30_000,
        };
        server
            .control()
            .await
            .stop_run(request)
            .await
            .expect("stopped");
    }
}

/// A probe that has just ended.
fn sample(target: &str, style: Style, client: u16, slot: u64, ok: bool) -> Sample {
    let now = SystemClock::new().raw_ns();
    Sample {
        target: Arc::new(target.parse().expect("a name")),
        style,
        client,
        slot,
        scheduled: Timestamp::from_ns(now - 2 * MS),
        started: Timestamp::from_ns(now - MS),
        finished: Timestamp::from_ns(now),
        resolve_ns: None,
        connect_ns: None,
        query_ns: Some(1_000_000),
        phase: Phase::Query,
        outcome: if ok {
            Outcome::Ok
        } else {
            Outcome::ConnectionLost
        },
        cause: (!ok).then_some(Cause::Closed),
        error_code: None,
        sqlstate: None,
        error: (!ok).then(|| "</script><img src=x onerror=alert(1)>\u{1b}[2J".into()),
        may_have_executed: !ok,
        connection: Some(1),
        connection_id: Some(7),
        handshake_id: None,
        backend: ok.then(|| "b<i>:3306".into()),
        peer: None,
        server_version: None,
        canary: None,
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("t{n}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_sees_what_is_acknowledged_and_no_more() {
    let data = tempfile::tempdir().expect("a folder");
    let server = server(data.path(), Security::default(), false).await;
    let plan = plan(&names(1), Style::Reused, 250);
    let mut agent = Agent::start(&server, &plan).await;
    let mut views = server.watch("").await;
    let first = view(&mut views).await;
    assert!(first.is_whole, "{first:?}");
    // There before anything has come, and not called good.
    assert_eq!(first.lanes.len(), 1);
    assert!(matches!(
        first.lanes[0].state,
        State::NoData | State::Silent
    ));
    assert_eq!(first.lanes[0].quiet_ns, None);
    assert_eq!(first.agents[0].agent, "by-hand");
    assert_eq!(first.agents[0].clock_bound_ns, Some(0), "one clock");
    for slot in 0..20 {
        let ok = slot != 13;
        agent
            .deliver(&[sample("t0", Style::Reused, 0, slot, ok)])
            .await;
    }
    let mut seen = first;
    let mut lines = Vec::new();
    while seen.samples < 20 {
        seen = view(&mut views).await;
        lines.extend(seen.events.iter().map(|event| event.text.clone()));
    }
    let lane = &seen.lanes[0];
    assert_eq!(
        (lane.ok, lane.bad, lane.stretches, lane.bad_clients),
        (19, 1, 1, 0)
    );
    assert_eq!(seen.backends, ["b<i>:3306"]);
    assert!(seen.newest_unix_ms.is_some());
    assert!(
        lines.iter().any(|l| l.contains("connection_lost/closed")),
        "{lines:?}"
    );
    assert!(
        lines.iter().any(|l| l.contains("answered again")),
        "{lines:?}"
    );
    assert!(lines.iter().all(|l| !l.contains('\u{1b}')), "{lines:?}");
    // A mark, then silence: it is told as such.
    let mark = wire::RecordFaultRequest {
        run_id: plan.run_id.to_string(),
        fault: Some(wire::Fault {
            step: "mark".to_owned(),
            detail: "here".to_owned(),
            ..wire::Fault::default()
        }),
    };
    server
        .control()
        .await
        .record_fault(mark)
        .await
        .expect("marked");
    while seen.faults.is_empty() || seen.lanes[0].state == State::Answered {
        seen = view(&mut views).await;
    }
    assert_eq!(seen.faults[0].name, "here");
    let mut late = server.watch(&plan.run_id.to_string()).await;
    let whole = view(&mut late).await;
    let bad = whole.lanes[0]
        .bins
        .iter()
        .filter(|bin| bin.bits & bit::BAD != 0);
    assert!(bad.count() >= 1);
    while !matches!(seen.lanes[0].state, State::NoData | State::Silent) {
        seen = view(&mut views).await;
    }
    agent.end(&server).await;
    while seen.run_state == "running" {
        seen = view(&mut late).await;
    }
    assert_eq!(seen.lanes[0].state, State::Ended);
    assert!(
        late.message().await.expect("no error").is_none(),
        "it is over"
    );
    server.shut_down().await;
}

struct Answer {
    status: u16,
    head: String,
    raw_head: String,
    body: String,
}

/// Asks as a browser or a program would; `more` are further lines of the head.
async fn ask(server: &Server, first: &str, host: &str, more: &[&str], body: &str) -> Answer {
    let mut tcp = TcpStream::connect(server.web).await.expect("connects");
    let mut text = format!("{first} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    for line in more {
        text.push_str(line);
        text.push_str("\r\n");
    }
    text.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
    tcp.write_all(text.as_bytes()).await.expect("written");
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(LIMIT, tcp.read_to_end(&mut bytes)).await;
    read.expect("in time").expect("readable");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head
        .split(' ')
        .nth(1)
        .expect("a status")
        .parse()
        .expect("a number");
    Answer {
        status,
        head: head.to_ascii_lowercase(),
        raw_head: head.to_owned(),
        body: body.to_owned(),
    }
}

fn tokens_file(folder: &Path) -> PathBuf {
    let path = folder.join("tokens");
    let lines = ["viewer:ann", "operator:bob", "agent:by-hand"].map(|who| {
        let principal = who.parse().expect("somebody");
        tokens::line(&format!("token-of-{who}"), &principal)
    });
    std::fs::write(&path, lines.join("\n")).expect("written");
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_look_and_under_which_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("runs");
    let security = Security {
        tokens: Some(tokens_file(folder.path())),
        ..Security::default()
    };
    let server = server(&data, security, false).await;
    let host = server.web.to_string();
    let page = "Accept: text/html";
    for path in [
        "GET /",
        "GET /events",
        "GET /metrics",
        "GET /runs/x/report.html",
    ] {
        let answer = ask(&server, path, &host, &[], "").await;
        assert_eq!(answer.status, 401, "{path}");
        assert!(
            answer.head.contains("www-authenticate: bearer"),
            "{}",
            answer.head
        );
        assert!(!answer.head.contains("access-control"), "{}", answer.head);
        for part in [
            "default-src 'none'",
            "nosniff",
            "no-store",
            "referrer-policy: same-origin",
        ] {
            assert!(
                answer.head.contains(part),
                "{path}: {part}: {}",
                answer.head
            );
        }
    }
    let form = ask(&server, "GET /", &host, &[page], "").await;
    assert_eq!(form.status, 401);
    assert!(form.body.contains("action=\"/login\""), "{}", form.body);
    for (who, status) in [
        ("viewer:ann", 200),
        ("operator:bob", 200),
        ("agent:by-hand", 403),
    ] {
        let bearer = format!("Authorization: Bearer token-of-{who}");
        let answer = ask(&server, "GET /metrics", &host, &[&bearer], "").await;
        assert_eq!(answer.status, status, "{who}");
    }
    let wrong = "Authorization: Bearer token-of-nobody";
    assert_eq!(
        ask(&server, "GET /", &host, &[wrong, page], "")
            .await
            .status,
        401
    );
    let right = "Authorization: Bearer token-of-viewer:ann";
    for (name, status) in [
        ("localhost", 200),
        ("gaps.example.org:1", 200),
        ("evil.example", 421),
        ("", 421),
    ] {
        let answer = ask(&server, "GET /", name, &[right], "").await;
        assert_eq!(answer.status, status, "{name}");
    }
    let second = format!("Host: {host}");
    let answer = ask(&server, "GET /", &host, &[right, &second], "").await;
    assert_eq!(answer.status, 421, "two names are none");
    // A token in the address is none.
    let answer = ask(&server, "GET /?token=token-of-viewer:ann", &host, &[], "").await;
    assert_eq!(answer.status, 401);
    // By hand.
    let log_in = |token: &'static str, more: Vec<String>| {
        let (server, host) = (&server, &host);
        async move {
            let more: Vec<&str> = more.iter().map(String::as_str).collect();
            ask(
                server,
                "POST /login",
                host,
                &more,
                &format!("token={token}"),
            )
            .await
        }
    };
    assert_eq!(log_in("wrong", Vec::new()).await.status, 401);
    assert_eq!(
        log_in("token-of-agent%3Aby-hand", Vec::new()).await.status,
        401
    );
    let elsewhere = vec!["Origin: http://evil.example".to_owned()];
    assert_eq!(log_in("token-of-viewer%3Aann", elsewhere).await.status, 403);
    let own = vec![format!("Origin: http://{host}")];
    let answer = log_in("token-of-viewer%3Aann", own).await;
    assert_eq!(answer.status, 303, "{}", answer.head);
    let cookie = answer
        .head
        .lines()
        .find_map(|l| l.strip_prefix("set-cookie: "));
    let cookie = cookie.expect("a cookie").to_owned();
    for part in [
        "; httponly",
        "; samesite=strict",
        "; path=/",
        "; max-age=43200",
    ] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("token-of"), "{cookie}");
    let line = answer
        .raw_head
        .lines()
        .find(|l| l.to_ascii_lowercase().starts_with("set-cookie"));
    let pair = line
        .and_then(|l| l.split([' ', ';']).nth(1))
        .expect("a cookie");
    let shown = format!("Cookie: other=1; {pair}");
    let answer = ask(&server, "GET /", &host, &[&shown, page], "").await;
    assert_eq!(answer.status, 200);
    let other = format!("Cookie: {pair}x");
    let answer = ask(&server, "GET /", &host, &[&other, page], "").await;
    assert_eq!(answer.status, 401);
    // Ended, the number is nobody's any more.
    let answer = ask(&server, "POST /logout", &host, &[&shown], "").await;
    assert_eq!(answer.status, 303);
    let answer = ask(&server, "GET /", &host, &[&shown, page], "").await;
    assert_eq!(answer.status, 401);
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_are_made_at_the_close_and_nothing_else_is_handed_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("runs");
    std::fs::create_dir(&data).expect("made");
    let server = server(&data, Security::default(), true).await;
    let host = server.web.to_string();
    let plan = plan(&names(1), Style::Reused, 250);
    let mut agent = Agent::start(&server, &plan).await;
    let report = format!("GET /runs/{}/report.html", plan.run_id);
    assert_eq!(ask(&server, &report, &host, &[], "").await.status, 404);
    for slot in 0..50 {
        agent
            .deliver(&[sample("t0", Style::Reused, 0, slot, true)])
            .await;
    }
    agent.end(&server).await;
    let mut answer = ask(&server, &report, &host, &[], "").await;
    let begun = tokio::time::Instant::now();
    while answer.status != 200 {
        assert!(begun.elapsed() < LIMIT, "no report was made");
        tokio::task::yield_now().await;
        answer = ask(&server, &report, &host, &[], "").await;
    }
    assert!(answer.body.contains("what the clients saw"), "a report");
    assert!(
        answer.head.contains("sandbox allow-scripts;"),
        "{}",
        answer.head
    );
    let json = format!("GET /runs/{}/report.json", plan.run_id);
    let answer = ask(&server, &json, &host, &[], "").await;
    let summary: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!(summary["run_id"], plan.run_id.to_string());
    let id = plan.run_id;
    for path in [
        format!("/runs/{id}/manifest.json"),
        format!("/runs/{id}/../{id}/manifest.json"),
        format!("/runs/{id}/..%2f{id}%2fmanifest.json"),
        "/runs/..%2f..%2fetc/passwd".to_owned(),
        "/runs/../../../../etc/passwd".to_owned(),
        "/runs/%2e%2e/report.html".to_owned(),
        "/../runs".to_owned(),
        "/runs".to_owned(),
        format!("/runs/{id}/report.html/"),
    ] {
        let answer = ask(&server, &format!("GET {path}"), &host, &[], "").await;
        assert_eq!(answer.status, 404, "{path}: {}", answer.body);
    }
    // Not even through a link that somebody has put there.
    let file = data.join(id.to_string()).join("summary.json");
    std::fs::remove_file(&file).expect("there");
    std::os::unix::fs::symlink("/etc/passwd", &file).expect("made");
    assert_eq!(ask(&server, &json, &host, &[], "").await.status, 404);
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_what_was_stored() {
    let data = tempfile::tempdir().expect("a folder");
    let server = server(data.path(), Security::default(), false).await;
    let plan = plan(&names(1), Style::New, 250);
    let mut agent = Agent::start(&server, &plan).await;
    let mut samples: Vec<Sample> = (0..30)
        .map(|n| sample("t0", Style::New, 0, n, n < 25))
        .collect();
    samples[3].started = samples[3].finished + -(300 * MS);
    agent.deliver(&samples).await;
    let _views = server.watch("").await;
    let host = server.web.to_string();
    let answer = ask(&server, "GET /metrics", &host, &[], "").await;
    assert_eq!(answer.status, 200);
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(answer.head.contains(kind), "{}", answer.head);
    assert!(answer.body.ends_with("# EOF\n"));
    for line in [
        "gapscope_probes_total{target=\"t0\",style=\"new\",outcome=\"ok\"} 25",
        "gapscope_probes_total{target=\"t0\",style=\"new\",outcome=\"connection_lost\"} 5",
        "gapscope_late_answers_total{target=\"t0\",style=\"new\"} 1",
        "gapscope_bad_stretches_total{target=\"t0\",style=\"new\"} 2",
        "gapscope_bad_clients{target=\"t0\",style=\"new\"} 1",
        "gapscope_latency_seconds_count{target=\"t0\",style=\"new\"} 25",
        "gapscope_agents{state=\"connected\"} 1",
        "gapscope_agent_clock_bound_seconds{agent=\"by-hand\"} 0",
        "gapscope_watchers{kind=\"terminal\"} 1",
        "gapscope_runs_running 1",
    ] {
        // Numbers that are gauges are written with a point.
        let is_there = answer
            .body
            .lines()
            .any(|l| l == line || l == format!("{line}.0"));
        assert!(is_there, "{line} is not in\n{}", answer.body);
    }
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_that_stops_reading_slows_nothing_and_is_told_what_it_missed() {
    let data = tempfile::tempdir().expect("a folder");
    let server = server(data.path(), Security::default(), false).await;
    // Many lanes, so that the buffers between are soon full.
    let targets = names(250);
    let plan = plan(&targets, Style::Reused, 250);
    let mut agent = Agent::start(&server, &plan).await;
    let mut stalled = TcpStream::connect(server.web).await.expect("connects");
    let request = format!("GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", server.web);
    stalled
        .write_all(request.as_bytes())
        .await
        .expect("written");
    let mut quick = server.watch("").await;
    let mut told = 0;
    let mut slot = 0;
    // Each update that somebody else gets is one that the stalled one misses.
    while told < 40 {
        let samples: Vec<Sample> = targets
            .iter()
            .map(|target| sample(target, Style::Reused, 0, slot, true))
            .collect();
        // Acknowledged, or this never ends.
        agent.deliver(&samples).await;
        slot += 1;
        let mut seen = view(&mut quick).await;
        while seen.samples < agent.seq {
            seen = view(&mut quick).await;
            told += 1;
        }
        told += 1;
    }
    // Now it reads: what was in the buffers, then the whole, with what it missed.
    let mut text = String::new();
    let mut bytes = vec![0; 1 << 16];
    let missed = loop {
        let read = tokio::time::timeout(LIMIT, stalled.read(&mut bytes)).await;
        let read = read.expect("in time").expect("readable");
        assert!(read > 0, "cut off before it was told");
        text.push_str(&String::from_utf8_lossy(&bytes[..read]));
        let found = text.match_indices("\"missed\":").find_map(|(at, key)| {
            let rest = &text[at + key.len()..];
            let number = &rest[..rest.find(',')?];
            number.parse::<u64>().ok().filter(|missed| *missed > 0)
        });
        if let Some(missed) = found {
            break missed;
        }
    };
    println!("{told} updates, {missed} missed by the one that stopped reading");
    let host = server.web.to_string();
    let metrics = ask(&server, "GET /metrics", &host, &[], "").await.body;
    let line = metrics
        .lines()
        .find(|l| l.starts_with("gapscope_watcher_updates_missed_total"));
    let counted: u64 = line
        .and_then(|l| l.split(' ').nth(1)?.parse().ok())
        .expect("a number");
    assert!(counted >= missed, "{counted} < {missed}");
    server.shut_down().await;
}

/// Probes four targets until told to stop: one good, one that fails for a while, one
/// that goes silent.
async fn probe(mut agent: Agent, server: Server, stop: oneshot::Receiver<()>) -> (Agent, Server) {
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    let mut slot = 0;
    tokio::pin!(stop);
    loop {
        tokio::select! {
            _ = &mut stop => return (agent, server),
            _ = ticks.tick() => {}
        }
        let mut samples = Vec::new();
        for client in 0..2 {
            samples.push(sample("t0", Style::Reused, client, slot, true));
            samples.push(sample("t1", Style::Reused, client, slot, slot % 40 < 30));
            if slot < 20 {
                samples.push(sample("t2", Style::Reused, client, slot, true));
            }
        }
        agent.deliver(&samples).await;
        slot += 1;
    }
}

/// Prints a line a minute: how old what the page shows is, and what its heap holds.
fn follow(browser: &mut Browser, seconds: u64) {
    println!("    s  age mean ms  worst ms  heap KiB");
    for begun in (0..seconds).step_by(60) {
        browser.look(
            "(() => { const d = document.documentElement.dataset; \
             d.ageWorstMs = d.ageSum = d.ageCount = 0; })()",
        );
        let rest = seconds.min(begun + 60) - begun;
        browser.rest(1000 * rest);
        let mut data = |name: &str| {
            let value = format!("Number(document.documentElement.dataset.{name})");
            browser.look(&value).as_f64().expect("a number")
        };
        let (sum, count, worst) = (data("ageSum"), data("ageCount"), data("ageWorstMs"));
        let mean = sum / count.max(1.0);
        let (at, heap) = (begun + rest, browser.heap_kib());
        println!("{at:5}  {mean:11.0}  {worst:8.0}  {heap:8}");
    }
}

/// The page of an aggregator that somebody has started, with a run that goes on:
/// `GAPSCOPE_LIVE_URL`, for `GAPSCOPE_LIVE_SECONDS`.
#[test]
fn the_page_of_a_real_run_for_long() {
    let Ok(url) = std::env::var("GAPSCOPE_LIVE_URL") else {
        println!("skipped: GAPSCOPE_LIVE_URL names no page");
        return;
    };
    let Some(program) = chromium() else { return };
    let seconds = std::env::var("GAPSCOPE_LIVE_SECONDS")
        .map_or(60, |seconds| seconds.parse().expect("a number of seconds"));
    let mut browser = Browser::start(program);
    browser.open(&url);
    browser.wait("Number(document.documentElement.dataset.ageCount) > 0");
    follow(&mut browser, seconds);
    let data = browser.look("JSON.stringify(document.documentElement.dataset)");
    println!("{}", data.as_str().unwrap_or_default());
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_follows_a_run_in_a_browser() {
    let Some(program) = chromium() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("runs");
    std::fs::create_dir(&data).expect("made");
    // Agents come without a token here, browsers with one: so tokens are asked for on
    // a second server only, below.
    let server = server(&data, Security::default(), true).await;
    let url = format!("http://{}/", server.web);
    let plan = plan(&names(3), Style::Reused, 250);
    let agent = Agent::start(&server, &plan).await;
    let (stop, stopped) = oneshot::channel();
    let probing = tokio::spawn(probe(agent, server, stopped));
    let run_id = plan.run_id.to_string();
    let looked = tokio::task::spawn_blocking(move || {
        let mut browser = Browser::start(program);
        browser.open(&url);
        browser.wait("Number(document.documentElement.dataset.views) > 20");
        browser.wait("document.querySelectorAll('.lane').length === 3");
        let text = |at: usize| format!("document.querySelectorAll('.lane')[{at}].innerText");
        browser.wait(&format!("{}.includes('all answered')", text(0)));
        browser.wait(&format!("{}.includes('bad')", text(1)));
        browser.wait(&format!("{}.includes('neither answer nor error')", text(2)));
        browser.wait("document.getElementById('events').innerText.includes('answered again')");
        assert_eq!(browser.look("document.querySelectorAll('#events img, #events b').length"), 0);
        // What is drawn is what was told: red where bad.
        let colours = "(() => { const c = document.querySelectorAll('canvas.strip')[1]; \
             const d = c.getContext('2d').getImageData(0, 1, c.width, 1).data; let n = 0; \
             for (let i = 0; i < d.length; i += 4) { if (d[i] === 0xd5 && d[i+1] === 0x5e) { n += 1; } } \
             return n; })()";
        browser.wait(&format!("{colours} > 3"));
        let good = colours.replace("[1]", "[0]");
        assert_eq!(browser.look(&good), 0, "none where all is good");
        // Keys.
        browser.press(" ", 32);
        browser.wait("document.getElementById('pause').getAttribute('aria-pressed') === 'true'");
        browser.press(" ", 32);
        browser.look("document.querySelectorAll('canvas.strip')[0].focus()");
        browser.press("ArrowLeft", 37);
        browser.wait("document.getElementById('column').innerText.includes('answered in time')");
        browser.press("2", 50);
        browser.wait("document.querySelector('[data-seconds=\"60\"]').getAttribute('aria-pressed') === 'true'");
        browser.wait("Number(document.documentElement.dataset.ageCount) > 50");
        let data = browser.look("JSON.stringify(document.documentElement.dataset)");
        println!("{}", data.as_str().unwrap_or_default());
        browser.keep("live", 1280, false);
        browser.keep("live", 1280, true);
        browser.keep("live", 800, false);
        browser.keep("live", 800, true);
        let wide = browser.look("document.documentElement.scrollWidth <= window.innerWidth");
        assert_eq!(wide, true, "nothing is wider than the page");
        let _ = stop.send(());
        browser
    })
    .await;
    let mut browser = looked.expect("the page works");
    let (mut agent, server) = probing.await.expect("probes");
    agent.end(&server).await;
    let looked = tokio::task::spawn_blocking(move || {
        browser.wait("document.documentElement.dataset.state === 'closed'");
        browser.wait("document.querySelector('#runs a[href$=\"report.html\"]') !== null");
        let complaints = browser.complaints();
        assert!(complaints.is_empty(), "{complaints:#?}");
        // A report works behind its sandbox.
        let to = browser.look("document.querySelector('#runs a[href$=\"report.html\"]').href");
        browser.open(to.as_str().expect("an address"));
        browser.wait("document.querySelector('#timeline-plot canvas') !== null");
        browser.wait("document.querySelector('#timeline-plot svg').childNodes.length > 0");
        let complaints = browser.complaints();
        assert!(complaints.is_empty(), "{complaints:#?}");
        assert_eq!(browser.look("window.origin"), "null", "of nobody's origin");
        to.as_str().expect("an address").contains(&run_id)
    });
    assert!(
        looked.await.expect("the report works"),
        "the report of this run"
    );
    server.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_logs_in_and_out() {
    let Some(program) = chromium() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let security = Security {
        tokens: Some(tokens_file(folder.path())),
        ..Security::default()
    };
    let server = server(&folder.path().join("runs"), security, false).await;
    let url = format!("http://{}/", server.web);
    let looked = tokio::task::spawn_blocking(move || {
        let mut browser = Browser::start(program);
        browser.open(&url);
        browser.wait("document.getElementById('token') !== null");
        browser.look("document.getElementById('token').focus()");
        browser.write("token-of-nobody");
        browser.look("document.querySelector('form').requestSubmit()");
        browser.wait("document.querySelector('[role=alert]') !== null");
        browser.keep("login", 800, false);
        browser.look("document.getElementById('token').focus()");
        browser.write("token-of-viewer:ann");
        browser.look("document.querySelector('form').requestSubmit()");
        browser.wait("document.getElementById('lanes') !== null");
        browser.wait("document.getElementById('link').innerText.includes('no run yet')");
        assert_eq!(browser.look("document.cookie"), "", "scripts do not see it");
        assert_eq!(browser.look("location.pathname + location.search"), "/");
        browser.look("document.querySelector('form[action=\"/logout\"]').requestSubmit()");
        browser.wait("document.getElementById('token') !== null");
    });
    looked.await.expect("works");
    server.shut_down().await;
}

/// A Grafana that answers each request with `status`, as long as it is asked.
fn grafana(answer: &'static str) -> (SocketAddr, std::sync::mpsc::Receiver<String>) {
    use std::io::{BufRead, BufReader, Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = listener.local_addr().expect("bound");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for tcp in listener.incoming() {
            let mut tcp = tcp.expect("accepted");
            let mut reader = BufReader::new(tcp.try_clone().expect("cloned"));
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).expect("readable");
                if line.trim().is_empty() {
                    break;
                }
                if let Some(digits) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = digits.trim().parse().expect("a number");
                }
                head.push_str(&line);
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("readable");
            let body = String::from_utf8(body).expect("text");
            tcp.write_all(answer.as_bytes()).expect("written");
            if tell.send(format!("{head}\n{body}")).is_err() {
                return;
            }
        }
    });
    (address, told)
}

fn annotate(lab: &lab::Lab, more: &[&str]) -> std::process::Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_gapscope-aggregator"))
        .arg("annotate")
        .arg(lab.store.folder())
        .args(more)
        .output()
        .expect("runs")
}

#[test]
fn faults_go_to_grafana_on_request() {
    use gapscope_proto::fault::FaultScope;
    let mut lab = lab::Lab::new(
        vec![lab::group(
            "t",
            Style::Reused,
            ClientKind::Bare,
            0,
            1,
            10 * MS,
        )],
        5_000 * MS,
    );
    lab.store.edit_manifest(|manifest| {
        manifest.anchors.push(Anchor {
            raw_before_ns: 0,
            raw_after_ns: 0,
            monotonic_ns: 0,
            boottime_ns: 0,
            realtime_ns: lab::WALL,
            timer_late_ns: 0,
        });
    });
    lab.begin();
    lab.probe(|blank, _| blank.clone());
    lab.end();
    lab.fault("stop", FaultScope::Backend, 2_000 * MS, None);
    lab.fault("mark", FaultScope::Mark, 3_000 * MS, None);
    lab.close();
    let begin_ms = (lab::WALL + lab.origin) / MS;
    let run = lab.store.manifest().run_id;
    let dry = annotate(&lab, &["--dry-run"]);
    assert!(dry.status.success(), "{dry:?}");
    let dry = String::from_utf8(dry.stdout).expect("text");
    let lines: Vec<serde_json::Value> = dry
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(
        lines[0],
        serde_json::json!({
            "time": begin_ms + 2_000,
            "tags": ["gapscope", "fault", format!("run:{run}")],
            "text": "fault 1: stop db-a (test)",
        })
    );
    assert_eq!(lines[1]["tags"][1], "mark");

    let token = lab.data.path().join("grafana.token");
    std::fs::write(&token, "glsa_secret\n").expect("written");
    let token = token.display().to_string();
    let (address, told) = grafana("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]");
    let url = format!("http://{address}/prefix/");
    let done = annotate(&lab, &["--grafana", &url, "--token-file", &token]);
    assert!(done.status.success(), "{done:?}");
    let asked: Vec<String> = told.try_iter().collect();
    assert_eq!(asked.len(), 3, "{asked:?}");
    let looked = format!("GET /prefix/api/annotations?tags=gapscope&tags=run:{run}&limit=1 ");
    assert!(asked[0].starts_with(&looked), "{}", asked[0]);
    for (sent, expect) in asked[1..].iter().zip(dry.lines()) {
        assert!(
            sent.starts_with("POST /prefix/api/annotations HTTP/1.1"),
            "{sent}"
        );
        let head = sent.to_ascii_lowercase();
        assert!(head.contains("authorization: bearer glsa_secret"), "{sent}");
        assert!(head.contains("content-type: application/json"), "{sent}");
        assert!(sent.ends_with(expect), "{sent}");
    }

    let (address, _told) = grafana("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n[{\"id\":7}]");
    let again = annotate(
        &lab,
        &[
            "--grafana",
            &format!("http://{address}"),
            "--token-file",
            &token,
        ],
    );
    assert!(!again.status.success());
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(
        said.contains("already") && said.contains("--again"),
        "{said}"
    );

    let (address, _told) = grafana("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
    let url = format!("http://{address}");
    let refused = annotate(
        &lab,
        &["--grafana", &url, "--token-file", &token, "--again"],
    );
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("403") && said.contains("hint: "), "{said}");
    assert!(!said.contains("glsa_secret"), "{said}");

    let clear = annotate(
        &lab,
        &[
            "--grafana",
            "http://grafana.example",
            "--token-file",
            &token,
        ],
    );
    let said = String::from_utf8_lossy(&clear.stderr).into_owned();
    assert!(
        !clear.status.success() && said.contains("in clear text"),
        "{said}"
    );
}
