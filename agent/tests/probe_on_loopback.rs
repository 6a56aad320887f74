//! One probe against real sockets that refuse, close, reset, hang or talk
//! nonsense: what the sample calls it.

mod support;

use std::sync::Arc;

use gapscope_agent::config::{Secret, Target};
use gapscope_agent::probe::leash::Graveyard;
use gapscope_agent::probe::mysql::{Client, ClientSpec, Endpoint};
use gapscope_agent::schedule::Slot;
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::plan::Timeouts;
use gapscope_proto::sample::{Canary, Cause, Outcome, Phase, Sample, Style};
use support::{Behaviour, MS, Server};
use tokio_util::sync::CancellationToken;

const SLOT: Slot = Slot {
    number: 3,
    due_ns: 42,
};

fn client_of(
    port: u16,
    host: &str,
    style: Style,
    canary: Option<Canary>,
    timeout_ms: u64,
) -> Client {
    guarded(port, host, style, canary, timeout_ms, 1_000)
}

fn guarded(
    port: u16,
    host: &str,
    style: Style,
    canary: Option<Canary>,
    timeout_ms: u64,
    max_connects_per_second: u32,
) -> Client {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let endpoint = Arc::new(Endpoint::new(
        Target {
            name: "t".parse().expect("a name"),
            host: host.into(),
            port,
            user: "probe".into(),
            password: Secret::new("hunter2"),
            database: None,
            identity: Some("whoami()".into()),
            max_connects_per_second,
            reach: gapscope_agent::reach::Reach::default(),
        },
        &*clock,
    ));
    let timeout = Some(timeout_ms * MS);
    Client::new(
        ClientSpec {
            identity: endpoint.identity.clone(),
            endpoint,
            style,
            number: 5,
            canary,
            canary_value: "unique".into(),
            pool: false,
            ledger: None,
            timeouts: Timeouts {
                resolve_ns: timeout,
                connect_ns: timeout,
                query_ns: timeout,
            },
        },
        clock,
        Graveyard::open().expect("a thread"),
    )
}

async fn probe(client: &mut Client) -> Sample {
    client.probe(SLOT, &CancellationToken::new()).await
}

#[track_caller]
fn check(sample: &Sample, phase: Phase, outcome: Outcome, cause: Option<Cause>, executed: bool) {
    assert_eq!(
        (
            sample.phase,
            sample.outcome,
            sample.cause,
            sample.may_have_executed
        ),
        (phase, outcome, cause, executed),
        "{sample:?}"
    );
    assert!(sample.finished >= sample.started);
    assert_eq!((sample.slot, sample.client), (3, 5));
    if sample.outcome == Outcome::Ok {
        assert!(sample.error.is_none());
    } else {
        let error = sample.error.as_deref().expect("a bad sample says why");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_at_connect() {
    use Behaviour::*;
    for (behaviour, outcome, cause) in [
        (ClosesAtAccept, Outcome::ConnectFailed, Cause::Closed),
        (ResetsAtAccept, Outcome::ConnectFailed, Cause::Reset),
        (HangsAtAccept, Outcome::TimedOut, Cause::ConnectTimeout),
        (GarbageAtAccept, Outcome::ProtocolError, Cause::Malformed),
        (ErrorAtLogin, Outcome::ServerError, Cause::Denied),
    ] {
        let server = Server::start(behaviour);
        let mut client = client_of(server.address.port(), "127.0.0.1", Style::New, None, 150);
        let sample = probe(&mut client).await;
        check(&sample, Phase::Connect, outcome, Some(cause), false);
        assert_eq!(sample.peer.as_deref(), Some(&*server.address.to_string()));
        assert_eq!((sample.connection, sample.query_ns), (None, None));
        assert!(sample.connect_ns.is_some());
        assert_eq!(
            sample.error_code,
            (behaviour == ErrorAtLogin).then_some(1045)
        );
    }
}

#[tokio::test]
async fn nobody_listens() {
    let port = {
        let gone = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        gone.local_addr().expect("bound").port()
    };
    let mut client = client_of(port, "127.0.0.1", Style::Reused, None, 500);
    let sample = probe(&mut client).await;
    check(
        &sample,
        Phase::Connect,
        Outcome::ConnectFailed,
        Some(Cause::Refused),
        false,
    );
    assert_eq!(sample.resolve_ns, None);
    let mut client = client_of(port, "localhost", Style::Reused, None, 500);
    let sample = probe(&mut client).await;
    check(
        &sample,
        Phase::Connect,
        Outcome::ConnectFailed,
        Some(Cause::Refused),
        false,
    );
    assert!(sample.resolve_ns.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_at_the_statement() {
    use Behaviour::*;
    for (behaviour, outcome, cause, executed, stays) in [
        (
            ClosesAtQuery,
            Outcome::ConnectionLost,
            Cause::Closed,
            true,
            false,
        ),
        (
            ClosesInsideAnswer,
            Outcome::ConnectionLost,
            Cause::Closed,
            true,
            false,
        ),
        (
            ResetsAtQuery,
            Outcome::ConnectionLost,
            Cause::Reset,
            true,
            false,
        ),
        (
            HangsAtQuery,
            Outcome::TimedOut,
            Cause::QueryTimeout,
            true,
            false,
        ),
        (
            HangsInsideAnswer,
            Outcome::TimedOut,
            Cause::QueryTimeout,
            true,
            false,
        ),
        (
            GarbageAtQuery,
            Outcome::ProtocolError,
            Cause::Malformed,
            true,
            false,
        ),
        (
            ErrorAtQuery,
            Outcome::ServerError,
            Cause::ShuttingDown,
            false,
            true,
        ),
        (
            TwoRows,
            Outcome::WrongAnswer,
            Cause::WrongShape,
            false,
            true,
        ),
        (
            NullBackend,
            Outcome::WrongAnswer,
            Cause::WrongShape,
            false,
            true,
        ),
    ] {
        let server = Server::start(Answers);
        let mut client = client_of(server.address.port(), "127.0.0.1", Style::Reused, None, 150);
        let good = probe(&mut client).await;
        check(&good, Phase::Query, Outcome::Ok, None, false);
        assert_eq!(good.backend.as_deref(), Some("db-1:3306"));
        assert_eq!(good.server_version.as_deref(), Some("8.0.99-fake"));
        assert_eq!(
            (good.connection, good.handshake_id, good.connection_id),
            (Some(1), Some(1), Some(1))
        );
        assert!(good.connect_ns.is_some());
        let again = probe(&mut client).await;
        check(&again, Phase::Query, Outcome::Ok, None, false);
        assert_eq!((again.connect_ns, again.connection), (None, Some(1)));

        server.now(behaviour);
        let bad = probe(&mut client).await;
        check(&bad, Phase::Query, outcome, Some(cause), executed);
        assert_eq!((bad.connection, bad.backend.as_deref()), (Some(1), None));
        assert!(bad.query_ns.is_some());

        server.now(Answers);
        let back = probe(&mut client).await;
        check(&back, Phase::Query, Outcome::Ok, None, false);
        assert_eq!(back.connection, Some(if stays { 1 } else { 2 }));
        assert_eq!(back.connect_ns.is_some(), !stays);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_client_connects_each_time() {
    let server = Server::start(Behaviour::Answers);
    let mut client = client_of(server.address.port(), "127.0.0.1", Style::New, None, 500);
    for n in 1..=3 {
        let sample = probe(&mut client).await;
        check(&sample, Phase::Query, Outcome::Ok, None, false);
        assert_eq!(sample.connection, Some(n));
        assert!(sample.connect_ns.is_some() && sample.query_ns.is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_session_state_is_found_and_set_again() {
    let server = Server::start(Behaviour::Answers);
    let canary = Some(Canary::UserVariable);
    let mut client = client_of(
        server.address.port(),
        "127.0.0.1",
        Style::Reused,
        canary,
        500,
    );
    let good = probe(&mut client).await;
    check(&good, Phase::Query, Outcome::Ok, None, false);
    assert_eq!(good.canary, canary);
    server.now(Behaviour::ForgetsVariables);
    let bad = probe(&mut client).await;
    check(
        &bad,
        Phase::Query,
        Outcome::StateLost,
        Some(Cause::CanaryBroken),
        false,
    );
    assert_eq!(
        (bad.canary, bad.backend.as_deref()),
        (canary, Some("db-1:3306"))
    );
    server.now(Behaviour::Answers);
    let back = probe(&mut client).await;
    check(&back, Phase::Query, Outcome::Ok, None, false);
    assert_eq!(back.connection, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hang_that_outlasts_the_run_is_kept() {
    let server = Server::start(Behaviour::HangsAtQuery);
    let mut client = client_of(
        server.address.port(),
        "127.0.0.1",
        Style::Reused,
        None,
        60_000,
    );
    let give_up = CancellationToken::new();
    let later = give_up.clone();
    let (sample, ()) = tokio::join!(client.probe(SLOT, &give_up), async {
        while server.connections.load(std::sync::atomic::Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        later.cancel();
    });
    assert_eq!(
        (sample.outcome, sample.cause),
        (Outcome::TimedOut, Some(Cause::RunEnded))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guard_holds_connections_back() {
    let server = Server::start(Behaviour::Answers);
    let port = server.address.port();
    let mut client = guarded(port, "127.0.0.1", Style::New, None, 500, 1);
    let first = probe(&mut client).await;
    check(&first, Phase::Query, Outcome::Ok, None, false);
    let second = probe(&mut client).await;
    check(
        &second,
        Phase::Connect,
        Outcome::AgentError,
        Some(Cause::Guard),
        false,
    );
    assert_eq!(second.connect_ns, None);
}
