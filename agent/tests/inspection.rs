//! The connections that are looked at beside the probes: they are there, they give
//! way, they are no probes, and whoever answers may be anybody.

mod real;
mod support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gapscope_agent::config::{Config, Target};
use gapscope_agent::inspection::reach::Means;
use gapscope_agent::inspection::watch::look;
use gapscope_agent::inspection::when::Why;
use gapscope_agent::probe::leash::Graveyard;
use gapscope_agent::probe::mysql::Endpoint;
use gapscope_agent::reach::Reach;
use gapscope_proto::clock::SystemClock;
use gapscope_proto::host::{HostRecord, Inspection};
use gapscope_proto::ids::RunId;
use gapscope_proto::inspection::Finding;
use gapscope_proto::plan::ClientKind;
use gapscope_proto::sample::{Outcome, Style};
use real::{HaProxy, MariaDb, target};
use support::{Aggregator, Arrived, Behaviour, Manners, Server, group, plan};
use tokio_util::sync::CancellationToken;

fn looks(arrived: &Arrived, run: RunId) -> Vec<Inspection> {
    let of_run = arrived.host.iter().filter(|(stream, _)| stream.run == run);
    of_run
        .flat_map(|(_, records)| records)
        .filter_map(|record| match record {
            HostRecord::Inspection(seen) => Some((**seen).clone()),
            _ => None,
        })
        .collect()
}

/// Three held clients and a new one for as long as `meanwhile` takes.
async fn run_with(
    server: &Server,
    inspect: bool,
    meanwhile: impl AsyncFnOnce(&mut Aggregator, RunId),
) -> (Arc<std::sync::Mutex<Arrived>>, RunId) {
    let plan = plan(
        60_000,
        vec![
            group("db", Style::Reused, ClientKind::Bare, 0, 3, 20),
            group("db", Style::New, ClientKind::Bare, 0, 1, 100),
        ],
    );
    let run = plan.run_id;
    let mut aggregator = Aggregator::start(Manners {
        plan: Some(plan),
        ..Manners::default()
    })
    .await;
    let data = tempfile::tempdir().expect("a folder");
    let config = Config {
        agent_id: "agent-1".parse().expect("an id"),
        aggregator: aggregator.url.clone(),
        security: Default::default(),
        data: data.path().to_owned(),
        spool: gapscope_agent::spool::settings::Settings::default(),
        targets: vec![Target {
            reach: Reach {
                inspect,
                ..Reach::default()
            },
            identity: Some("whoami()".into()),
            ..target("127.0.0.1", server.address.port())
        }],
        control: None,
        writes: None,
    };
    let shutdown = CancellationToken::new();
    let token = shutdown.clone();
    let agent = tokio::spawn(async move {
        gapscope_agent::agent::run(&config, Arc::new(SystemClock::new()), token)
            .await
            .expect("the agent starts");
    });
    meanwhile(&mut aggregator, run).await;
    shutdown.cancel();
    agent.await.expect("no panic");
    aggregator.until("the good-bye", |a| a.goodbyes == 1).await;
    (aggregator.stop(), run)
}

fn samples(arrived: &Arrived) -> usize {
    arrived.samples.values().map(Vec::len).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_looked_at_at_its_start_and_after_a_failure() {
    let server = Server::start(Behaviour::Answers);
    let (arrived, run) = run_with(&server, true, async |aggregator, run| {
        aggregator
            .until("the first look", |a| looks(a, run).len() == 1)
            .await;
        server.now(Behaviour::ClosesAtQuery);
        let failed = |a: &Arrived| {
            let mut all = a.samples.values().flatten();
            all.any(|(_, sample)| sample.outcome == Outcome::ConnectionLost)
        };
        aggregator.until("a failure", failed).await;
        server.now(Behaviour::Answers);
        aggregator
            .until("the second look", |a| looks(a, run).len() >= 2)
            .await;
    })
    .await;
    let arrived = arrived.lock().expect("not poisoned");
    let looks = looks(&arrived, run);
    let why: Vec<_> = looks.iter().map(|seen| seen.why.as_str()).collect();
    assert_eq!(why, ["start", "again"], "{looks:#?}");
    let measured: Vec<_> = arrived.samples.values().flatten().collect();
    for seen in &looks {
        assert_eq!(seen.error, "", "{seen:#?}");
        assert_eq!(seen.target, "db");
        assert_eq!(seen.peer, server.address.to_string());
        assert_eq!(seen.greeting_version, "8.0.99-fake");
        assert_eq!(seen.auth_plugin, "mysql_native_password");
        assert_eq!(seen.answered_id, seen.greeting_id.map(u64::from));
        assert_eq!(seen.identity, "whoami()");
        assert_eq!(seen.findings(), []);
        assert!(seen.at_ns < seen.until_ns);
        // It is nobody's probe.
        let id = seen.answered_id;
        assert!(
            measured
                .iter()
                .all(|(_, sample)| sample.connection_id != id)
        );
    }
    // The books are the probes' alone, and their record is the last.
    let host = arrived.host.values().next().expect("a host stream");
    let Some(HostRecord::Ended(ended)) = host.last() else {
        panic!("{:?}", host.last());
    };
    assert_eq!(ended.sampled, measured.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_looked_at_who_does_not_want_it() {
    let server = Server::start(Behaviour::Answers);
    let (arrived, run) = run_with(&server, false, async |aggregator, _| {
        // A second and more: the first look would be over.
        aggregator.until("samples", |a| samples(a) >= 200).await;
    })
    .await;
    let arrived = arrived.lock().expect("not poisoned");
    assert_eq!(looks(&arrived, run), []);
    let new = arrived.samples.values().flatten();
    let new = new.filter(|(_, s)| s.style == Style::New).count();
    assert_eq!(server.connections.load(Ordering::SeqCst) as usize, 3 + new);
}

async fn look_at(target: Target, limit: Duration) -> Option<Inspection> {
    let clock = SystemClock::new();
    let endpoint = Arc::new(Endpoint::new(target, &clock));
    let (graveyard, never) = (
        Graveyard::open().expect("a thread"),
        CancellationToken::new(),
    );
    let means = Means {
        clock: &clock,
        graveyard: &graveyard,
        limit,
        give_up: &never,
    };
    look(&endpoint, &endpoint.identity, Why::Start, means).await
}

/// A peer that sends these bytes, for ever if asked to.
fn hostile(bytes: Vec<u8>, for_ever: bool) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let bytes = bytes.clone();
            std::thread::spawn(move || {
                while stream.write_all(&bytes).is_ok() && for_ever {}
                let _ = stream.read(&mut [0; 1024]);
            });
        }
    });
    Target {
        identity: Some("whoami()".into()),
        ..target("127.0.0.1", port)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_answers_cannot_break_it() {
    let long_version = {
        let mut body = b"\x0a".to_vec();
        body.extend(std::iter::repeat_n(b'x', 60_000));
        let mut packet = (body.len() as u32).to_le_bytes()[..3].to_vec();
        packet.push(0);
        packet.extend(body);
        packet
    };
    for (what, bytes, for_ever) in [
        ("nothing", vec![], false),
        (
            "a web server",
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            false,
        ),
        ("the longest packet", vec![0xff, 0xff, 0xff, 0, 10], false),
        ("bytes without an end", vec![0xab; 4096], true),
        ("a version without an end", long_version, false),
        (
            "half a greeting",
            b"\x40\0\0\0\x0a8.0.99\0\x01".to_vec(),
            false,
        ),
    ] {
        let seen = look_at(hostile(bytes, for_ever), Duration::from_millis(500)).await;
        let seen = seen.expect("there is room for it");
        assert!(!seen.error.is_empty(), "{what}: {seen:#?}");
        assert!(seen.error.chars().count() <= 200, "{what}");
        assert_eq!(seen.answered_id, None, "{what}");
        assert!(seen.greeting_version.chars().count() <= 200, "{what}");
        assert_eq!(seen.findings(), [], "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_gives_way_to_probes() {
    let server = Server::start(Behaviour::Answers);
    let there = |max_connects_per_second, max_sockets| Target {
        identity: Some("whoami()".into()),
        max_connects_per_second,
        reach: Reach {
            max_sockets,
            ..Reach::default()
        },
        ..target("127.0.0.1", server.address.port())
    };
    let limit = Duration::from_secs(5);
    assert!(look_at(there(100, 100), limit).await.is_some());
    assert_eq!(look_at(there(1, 100), limit).await, None);
    assert_eq!(look_at(there(100, 1), limit).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_and_what_passes_bytes_on() {
    let Some(db) = MariaDb::plain().await else {
        return;
    };
    let direct = look_at(db.target(), Duration::from_secs(5))
        .await
        .expect("room");
    assert_eq!(
        (direct.error.as_str(), direct.findings()),
        ("", vec![]),
        "{direct:#?}"
    );
    assert_eq!(direct.lone_id, direct.answered_id);
    assert_eq!(direct.seen_as, direct.local, "{direct:#?}");
    assert_eq!(direct.server_tls.as_deref(), Some(""), "{direct:#?}");
    assert!(direct.greeting_version.contains("MariaDB"));
    assert_ne!(direct.capabilities, None);
    assert!(!direct.pins(), "{}", direct.identity);
    let Some(haproxy) = HaProxy::start(&[db.port], "") else {
        return;
    };
    let mut through = haproxy.target();
    through.identity = None;
    let seen = loop {
        let seen = look_at(through.clone(), Duration::from_secs(5))
            .await
            .expect("room");
        if seen.error.is_empty() {
            break seen;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let found = seen.findings();
    assert!(
        matches!(found.as_slice(), [Finding::AnotherAddress { .. }]),
        "{found:?}"
    );
}
