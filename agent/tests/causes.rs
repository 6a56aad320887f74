//! Each outcome by a real cause: real MariaDB, real HAProxy, real packets dropped,
//! peers that talk nonsense. What is missing is skipped with a message.
//!
//! `agent/docs/outcomes.md` names these causes.

mod real;
mod support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use gapscope_agent::config::{Secret, Target};
use gapscope_agent::outcome::codes::{Speaker, meaning};
use gapscope_agent::reach::Reach;
use gapscope_proto::sample::{Cause, Outcome, Phase, Sample, Style};
use real::{HaProxy, MariaDb, client, is_ok, probe, probe_until, skip, target};
use rustix::process::Signal;

/// Phase, outcome, cause, code, may have executed.
type Expected = (Phase, Outcome, Cause, Option<u16>, bool);

#[track_caller]
fn check(sample: &Sample, expected: Expected) {
    let seen = (
        sample.phase,
        sample.outcome,
        sample.cause.expect("a bad sample has a cause"),
        sample.error_code,
        sample.may_have_executed,
    );
    assert_eq!(seen, expected, "{sample:#?}");
    let text = sample.error.as_deref().expect("a bad sample says why");
    assert!(!text.contains(real::PASSWORD), "{text}");
    assert!(text.chars().count() <= 200);
}

const REFUSED: Expected = (
    Phase::Connect,
    Outcome::ConnectFailed,
    Cause::Refused,
    None,
    false,
);
const CUT: Expected = (
    Phase::Query,
    Outcome::ConnectionLost,
    Cause::Closed,
    None,
    true,
);

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_killed_or_told_to_stop() {
    for signal in [Signal::KILL, Signal::TERM] {
        let Some(mut db) = MariaDb::plain().await else {
            return;
        };
        let mut held = client(db.target(), Style::Reused, 5_000);
        let mut new = client(db.target(), Style::New, 5_000);
        assert!(is_ok(&probe(&mut held).await) && is_ok(&probe(&mut new).await));
        db.process.signal(signal);
        db.process.gone();
        // An orderly end, without a word: no error packet.
        check(&probe(&mut held).await, CUT);
        check(&probe(&mut held).await, REFUSED);
        check(&probe(&mut new).await, REFUSED);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_hangs() {
    let Some(db) = MariaDb::plain().await else {
        return;
    };
    let mut held = client(db.target(), Style::Reused, 300);
    let mut new = client(db.target(), Style::New, 300);
    // Their patience is short and the host may be busy.
    probe_until("an answer", &mut held, is_ok).await;
    probe_until("an answer", &mut new, is_ok).await;
    db.process.signal(Signal::STOP);
    // A busy host may take a moment to stop all of its threads.
    let hung = probe_until("the hang", &mut held, |s| !is_ok(s)).await;
    check(
        &hung,
        (
            Phase::Query,
            Outcome::TimedOut,
            Cause::QueryTimeout,
            None,
            true,
        ),
    );
    // The kernel accepts, nobody greets: so it is not refused.
    let no_greeting = (
        Phase::Connect,
        Outcome::TimedOut,
        Cause::ConnectTimeout,
        None,
        false,
    );
    check(&probe(&mut held).await, no_greeting);
    check(&probe(&mut new).await, no_greeting);
    db.process.signal(Signal::CONT);
    probe_until("recovery", &mut held, is_ok).await;
    probe_until("recovery", &mut new, is_ok).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_or_its_statement_is_killed() {
    let Some(db) = MariaDb::plain().await else {
        return;
    };
    // Idle: the connection just ends.
    let mut held = client(db.target(), Style::Reused, 20_000);
    let good = probe(&mut held).await;
    let id = good.connection_id.expect("an id");
    db.admin(&format!("KILL CONNECTION {id}")).await;
    check(&probe(&mut held).await, CUT);
    assert!(is_ok(&probe(&mut held).await));
    // With a statement under way it just ends too; what became of the statement
    // is not known.
    let mut slow = client(
        Target {
            identity: Some("CONCAT('db', SLEEP(30))".into()),
            ..db.target()
        },
        Style::Reused,
        25_000,
    );
    let killing = async {
        for _ in 0..1_000 {
            for id in db.asleep("probe").await {
                db.admin(&format!("KILL CONNECTION {id}")).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let sample = tokio::select! {
        sample = probe(&mut slow) => sample,
        () = killing => panic!("the kill had no effect"),
    };
    check(&sample, CUT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_refuses_a_login() {
    let Some(db) = MariaDb::start(
        &[
            "--max-connections=10",
            "--max-connect-errors=1",
            "--plugin-load-add=auth_pam",
        ],
        "CREATE USER one@'127.0.0.1' IDENTIFIED BY 'hunter2' WITH MAX_USER_CONNECTIONS 1;\n\
         CREATE USER locked@'127.0.0.1' IDENTIFIED BY 'hunter2' ACCOUNT LOCK;\n\
         CREATE USER pam@'127.0.0.1' IDENTIFIED VIA pam;\n\
         CREATE DATABASE secret;\n",
        |_| Vec::new(),
    )
    .await
    else {
        return;
    };
    let refused = |cause, code| {
        (
            Phase::Connect,
            Outcome::ServerError,
            cause,
            Some(code),
            false,
        )
    };
    let mut wrong = client(
        Target {
            password: Secret::new("wrong"),
            ..db.target()
        },
        Style::New,
        5_000,
    );
    check(&probe(&mut wrong).await, refused(Cause::Denied, 1045));
    let mut database = client(
        Target {
            database: Some("secret".into()),
            ..db.target()
        },
        Style::New,
        5_000,
    );
    check(&probe(&mut database).await, refused(Cause::Denied, 1044));
    let mut locked = client(
        Target {
            user: "locked".into(),
            ..db.target()
        },
        Style::New,
        5_000,
    );
    check(&probe(&mut locked).await, refused(Cause::Denied, 4151));
    let mut pam = client(
        Target {
            user: "pam".into(),
            ..db.target()
        },
        Style::New,
        5_000,
    );
    check(
        &probe(&mut pam).await,
        (
            Phase::Connect,
            Outcome::ConnectFailed,
            Cause::Denied,
            None,
            false,
        ),
    );
    let one = |style| {
        client(
            Target {
                user: "one".into(),
                ..db.target()
            },
            style,
            5_000,
        )
    };
    let (mut first, mut second) = (one(Style::Reused), one(Style::New));
    assert!(is_ok(&probe(&mut first).await));
    check(
        &probe(&mut second).await,
        refused(Cause::TooManyConnections, 1226),
    );
    first.close().await;
    // All ten (and the one that is left for an administrator is not ours).
    let mut many: Vec<_> = (0..16)
        .map(|_| client(db.target(), Style::Reused, 5_000))
        .collect();
    let mut last = None;
    for client in &mut many {
        let sample = probe(client).await;
        if !is_ok(&sample) {
            last = Some(sample);
        }
    }
    check(
        &last.expect("sixteen do not fit into ten"),
        refused(Cause::TooManyConnections, 1040),
    );
    drop(many);
    // Nobody from there has an account.
    db.admin("DROP USER root@'127.0.0.1', probe@'127.0.0.1', one@'127.0.0.1', locked@'127.0.0.1', pam@'127.0.0.1', admin@'127.0.0.1'")
        .await;
    let mut nobody = client(db.target(), Style::New, 5_000);
    check(&probe(&mut nobody).await, refused(Cause::HostBlocked, 1130));
}

/// Limits and rights of accounts, as MariaDB words them.
#[tokio::test(flavor = "multi_thread")]
async fn accounts_with_limits() {
    use mysql_async::prelude::Queryable;
    let Some(db) = MariaDb::start(
        &[
            "--max-user-connections=50",
            "--disconnect-on-expired-password=ON",
        ],
        "CREATE USER hourly@'127.0.0.1' IDENTIFIED BY 'hunter2' WITH MAX_CONNECTIONS_PER_HOUR 1;\n\
         CREATE USER sock@'127.0.0.1' IDENTIFIED VIA unix_socket;\n\
         CREATE USER expired@'127.0.0.1' IDENTIFIED BY 'hunter2' PASSWORD EXPIRE;\n\
         CREATE DATABASE d;\nCREATE TABLE d.t (a INT PRIMARY KEY, b INT) ENGINE=InnoDB;\n\
         INSERT INTO d.t VALUES (1, 0), (2, 0);\n\
         CREATE USER narrow@'127.0.0.1' IDENTIFIED BY 'hunter2';\n\
         GRANT SELECT (a) ON d.t TO narrow@'127.0.0.1';\n\
         CREATE USER writer@'127.0.0.1' IDENTIFIED BY 'hunter2';\n\
         GRANT ALL ON d.* TO writer@'127.0.0.1';\n",
        |_| Vec::new(),
    )
    .await
    else {
        return;
    };
    let of = |user: &str, style| {
        let there = Target {
            user: user.into(),
            ..db.target()
        };
        client(there, style, 20_000)
    };
    let refused = |cause, code| {
        (
            Phase::Connect,
            Outcome::ServerError,
            cause,
            Some(code),
            false,
        )
    };
    let mut hourly = of("hourly", Style::New);
    assert!(is_ok(&probe(&mut hourly).await));
    let too_many = probe(&mut hourly).await;
    check(&too_many, refused(Cause::TooManyConnections, 1226));
    let text = too_many.error.as_deref().unwrap_or_default();
    assert!(text.contains("max_connections_per_hour"), "{text}");
    let mut sock = of("sock", Style::New);
    check(&probe(&mut sock).await, refused(Cause::Denied, 1698));
    let mut expired = of("expired", Style::New);
    check(&probe(&mut expired).await, refused(Cause::Denied, 1862));
    db.admin("SET GLOBAL disconnect_on_expired_password = OFF")
        .await;
    let sandboxed = probe(&mut expired).await;
    assert_eq!(
        (sandboxed.outcome, sandboxed.cause, sandboxed.error_code),
        (Outcome::ServerError, Some(Cause::Denied), Some(1820)),
        "{sandboxed:#?}"
    );
    // The limit of all accounts, not of one.
    db.admin("SET GLOBAL max_user_connections = 1").await;
    let (mut held, mut another) = (of("probe", Style::Reused), of("probe", Style::New));
    assert!(is_ok(&probe(&mut held).await));
    check(
        &probe(&mut another).await,
        refused(Cause::TooManyConnections, 1203),
    );
    db.admin("SET GLOBAL max_user_connections = 50").await;

    let connect = async |user: &str| {
        let opts = mysql_async::OptsBuilder::default()
            .ip_or_hostname("127.0.0.1")
            .tcp_port(db.port)
            .user(Some(user))
            .pass(Some("hunter2"))
            .prefer_socket(false);
        mysql_async::Conn::new(opts).await.expect("connects")
    };
    let meant = |result: Result<(), mysql_async::Error>| {
        let Err(mysql_async::Error::Server(error)) = result else {
            panic!("no error packet: {result:?}");
        };
        (error.code, meaning(error.code, &error.message).cause)
    };
    let mut narrow = connect("narrow").await;
    let column = narrow.query_drop("SELECT b FROM d.t").await;
    assert_eq!(meant(column), (1143, Cause::Denied));
    let global = narrow.query_drop("SET GLOBAL max_connections = 5").await;
    assert_eq!(meant(global), (1227, Cause::Denied));
    // Each waits for the other's row.
    let (mut one, mut two) = (connect("writer").await, connect("writer").await);
    for (conn, row) in [(&mut one, 1), (&mut two, 2)] {
        conn.query_drop("BEGIN").await.expect("begun");
        let update = format!("UPDATE d.t SET b = 1 WHERE a = {row}");
        conn.query_drop(update).await.expect("locked");
    }
    let (first, second) = tokio::join!(
        one.query_drop("UPDATE d.t SET b = 2 WHERE a = 2"),
        two.query_drop("UPDATE d.t SET b = 2 WHERE a = 1"),
    );
    let victim = match (first, second) {
        (Ok(()), victim) | (victim, Ok(())) => victim,
        both => panic!("{both:?}"),
    };
    assert_eq!(meant(victim), (1213, Cause::LockWait));
}

/// The server exempts loopback, so this takes an address of another kind.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_blocked_for_broken_off_logins() {
    let Some(namespace) = Namespace::new(8) else {
        return;
    };
    let Some(db) = MariaDb::start(
        &["--skip-name-resolve=OFF", "--max-connect-errors=1"],
        "CREATE USER probe@'10.213.8.%' IDENTIFIED BY 'hunter2';\n",
        |_| Vec::new(),
    )
    .await
    else {
        return;
    };
    let here = namespace.here();
    for _ in 0..4 {
        let mut stream = std::net::TcpStream::connect((here.as_str(), db.port)).expect("accepted");
        let mut greeting = [0; 64];
        let n = stream.read(&mut greeting).expect("greeted");
        assert!(n > 0);
        // One byte of a login is not a login.
        let _ = stream.write_all(&[1]);
    }
    let mut blocked = client(target(&here, db.port), Style::New, 20_000);
    let sample = probe_until("the block", &mut blocked, |s| !is_ok(s)).await;
    check(
        &sample,
        (
            Phase::Connect,
            Outcome::ServerError,
            Cause::HostBlocked,
            Some(1129),
            false,
        ),
    );
    db.admin("FLUSH HOSTS").await;
    probe_until("the lifting", &mut blocked, is_ok).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_answers_with_errors_that_mean_something() {
    use mysql_async::prelude::Queryable;
    let Some(db) = MariaDb::start(
        &["--read-only=OFF"],
        "CREATE DATABASE d;\nCREATE TABLE d.t (a INT PRIMARY KEY) ENGINE=InnoDB;\nINSERT INTO d.t VALUES (1);\n\
         CREATE USER writer@'127.0.0.1' IDENTIFIED BY 'hunter2';\n\
         GRANT ALL ON d.* TO writer@'127.0.0.1';\n",
        |_| Vec::new(),
    )
    .await
    else {
        return;
    };
    let connect = async || {
        let opts = mysql_async::OptsBuilder::default()
            .ip_or_hostname("127.0.0.1")
            .tcp_port(db.port)
            .user(Some("writer"))
            .pass(Some("hunter2"))
            .db_name(Some("d"))
            .prefer_socket(false);
        mysql_async::Conn::new(opts).await.expect("connects")
    };
    let mut conn = connect().await;
    let mut other = connect().await;
    let ask = async |conn: &mut mysql_async::Conn, sql: &str, code: u16, cause: Cause| {
        let Err(mysql_async::Error::Server(error)) = conn.query_drop(sql).await else {
            panic!("{sql}: no error packet");
        };
        let found = meaning(error.code, &error.message);
        assert_eq!((error.code, found.cause), (code, cause), "{sql}: {error}");
        assert!(!found.unknown_effect);
        (error, found.speaker)
    };
    let (error, _) = ask(
        &mut conn,
        "SET STATEMENT max_statement_time=0.05 FOR SELECT SLEEP(10) FROM d.t WHERE SLEEP(10) = 0",
        1969,
        Cause::StatementTimeout,
    )
    .await;
    assert_eq!(error.state, "70100");
    ask(&mut conn, "EXECUTE nobody", 1243, Cause::UnknownStatement).await;
    let (_, speaker) = ask(&mut conn, "SELECT nobody()", 1305, Cause::OtherServer).await;
    assert_eq!(speaker, Speaker::Unknown);
    conn.query_drop("START TRANSACTION READ ONLY")
        .await
        .expect("begun");
    let (error, _) = ask(&mut conn, "INSERT INTO t VALUES (2)", 1792, Cause::ReadOnly).await;
    assert_eq!(error.state, "25006");
    conn.query_drop("ROLLBACK").await.expect("rolled back");
    other
        .query_drop("BEGIN; SELECT * FROM t WHERE a = 1 FOR UPDATE")
        .await
        .expect("locked");
    ask(
        &mut conn,
        "SELECT * FROM t WHERE a = 1 FOR UPDATE NOWAIT",
        1205,
        Cause::LockWait,
    )
    .await;
    other.query_drop("ROLLBACK").await.expect("rolled back");
    db.admin("SET GLOBAL read_only = 1").await;
    let (error, speaker) = ask(
        &mut conn,
        "CREATE TABLE another (a INT)",
        1290,
        Cause::ReadOnly,
    )
    .await;
    assert_eq!((error.state.as_str(), speaker), ("HY000", Speaker::Server));
    // A killed statement that does not swallow it.
    let id = conn.id();
    let (killed, ()) = tokio::join!(
        conn.query_drop(
            "SELECT COUNT(*) FROM d.t a WHERE SLEEP(30) OR BENCHMARK(1000000000, MD5('x'))"
        ),
        async {
            for _ in 0..50 {
                tokio::time::sleep(Duration::from_millis(20)).await;
                let _ = db.over_socket(&format!("KILL QUERY {id}")).await;
            }
        }
    );
    let Err(mysql_async::Error::Server(error)) = killed else {
        panic!("not killed: {killed:?}");
    };
    assert_eq!(
        (error.code, meaning(error.code, &error.message).cause),
        (1317, Cause::Killed)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_without_its_server() {
    let Some(mut db) = MariaDb::plain().await else {
        return;
    };
    let Some(proxy) = HaProxy::start(&[db.port], "on-marked-down shutdown-sessions") else {
        return;
    };
    let mut held = client(proxy.target(), Style::Reused, 5_000);
    let mut new = client(proxy.target(), Style::New, 5_000);
    probe_until("the proxy", &mut held, is_ok).await;
    probe_until("the proxy", &mut new, is_ok).await;
    // Drained: who is there stays, who comes is turned away.
    proxy.admin("set server db/s1 state drain");
    assert!(is_ok(&probe(&mut held).await));
    let away = (
        Phase::Connect,
        Outcome::ConnectFailed,
        Cause::Closed,
        None,
        false,
    );
    check(&probe(&mut new).await, away);
    proxy.admin("set server db/s1 state ready");
    probe_until("the way back", &mut new, is_ok).await;
    // Cut by hand.
    proxy.admin("shutdown sessions server db/s1");
    let cut = probe(&mut held).await;
    assert_eq!(
        (cut.phase, cut.outcome, cut.may_have_executed),
        (Phase::Query, Outcome::ConnectionLost, true),
        "{cut:#?}"
    );
    assert!(
        matches!(cut.cause, Some(Cause::Closed | Cause::Reset)),
        "{cut:#?}"
    );
    probe_until("a new session", &mut held, is_ok).await;
    // A hung server that the check marks down: HAProxy cuts, the server does not.
    db.process.signal(Signal::STOP);
    // The check only connects; it is put down by hand, as a better check would.
    proxy.admin("set server db/s1 health down");
    let cut = probe(&mut held).await;
    assert_eq!(cut.outcome, Outcome::ConnectionLost, "{cut:#?}");
    db.process.signal(Signal::CONT);
    db.process.signal(Signal::KILL);
    db.process.gone();
    let sample = probe_until("the end", &mut new, |s| s.outcome == Outcome::ConnectFailed).await;
    check(&sample, away);
}

/// A namespace of its own, with one end of a cable here.
struct Namespace {
    name: String,
    here: String,
    address: String,
}

impl Namespace {
    fn new(number: u8) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip("packets can be dropped by root only");
            return None;
        }
        let tag = format!("gs{}{number}", std::process::id() % 100_000);
        let it = Self {
            name: tag.clone(),
            here: format!("{tag}a"),
            address: format!("10.213.{number}.2"),
        };
        let there = format!("{tag}b");
        let ours = format!("10.213.{number}.1/24");
        let theirs = format!("{}/24", it.address);
        for arguments in [
            vec!["netns", "add", &it.name],
            vec![
                "link", "add", &it.here, "type", "veth", "peer", "name", &there, "netns", &it.name,
            ],
            vec!["addr", "add", &ours, "dev", &it.here],
            vec!["link", "set", &it.here, "up"],
            vec!["-n", &it.name, "addr", "add", &theirs, "dev", &there],
            vec!["-n", &it.name, "link", "set", &there, "up"],
            vec!["-n", &it.name, "link", "set", "lo", "up"],
        ] {
            let done = std::process::Command::new("ip").args(&arguments).output();
            match done {
                Ok(done) if done.status.success() => {}
                other => {
                    skip(&format!("no network namespace to be had: {other:?}"));
                    return None;
                }
            }
        }
        Some(it)
    }

    /// Everything that goes in or out vanishes, without RST and without ICMP.
    fn cut(&self) -> bool {
        for chain in ["INPUT", "OUTPUT"] {
            let done = std::process::Command::new("ip")
                .args([
                    "netns", "exec", &self.name, "iptables", "-A", chain, "-j", "DROP",
                ])
                .output()
                .expect("ip runs");
            if !done.status.success() {
                skip(&format!("packets cannot be dropped here: {done:?}"));
                return false;
            }
        }
        true
    }

    /// Our own end of the cable.
    fn here(&self) -> String {
        format!("{}1", self.address.trim_end_matches('2'))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        for arguments in [["link", "del", &self.here], ["netns", "del", &self.name]] {
            let _ = std::process::Command::new("ip").args(arguments).output();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_that_vanish() {
    let Some(db) = MariaDb::start(
        &[],
        "CREATE USER probe@'10.213.7.%' IDENTIFIED BY 'hunter2';\n",
        |_| Vec::new(),
    )
    .await
    else {
        return;
    };
    // The server stays here; the prober's packets go through a relay in the
    // namespace and back, so that nothing of the host is touched.
    let Some(namespace) = Namespace::new(7) else {
        return;
    };
    let Some(haproxy) = real::program(&["haproxy"]) else {
        skip("haproxy is not installed");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("relay.cfg");
    std::fs::write(
        &file,
        format!(
            "defaults\n  mode tcp\n  timeout connect 1s\n  timeout client 60s\n  timeout server 60s\n\
             listen relay\n  bind {}:3306\n  server here 10.213.7.1:{}\n",
            namespace.address, db.port
        ),
    )
    .expect("written");
    let _relay = real::Running(
        std::process::Command::new("ip")
            .args(["netns", "exec", &namespace.name])
            .arg(haproxy)
            .arg("-db")
            .arg("-f")
            .arg(&file)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("haproxy starts"),
    );
    let there = || target(&namespace.address, 3306);
    let mut held = client(there(), Style::Reused, 1_000);
    let mut new = client(there(), Style::New, 1_000);
    probe_until("the relay", &mut held, is_ok).await;
    probe_until("the relay", &mut new, is_ok).await;
    if !namespace.cut() {
        return;
    }
    check(
        &probe(&mut held).await,
        (
            Phase::Query,
            Outcome::TimedOut,
            Cause::QueryTimeout,
            None,
            true,
        ),
    );
    check(
        &probe(&mut new).await,
        (
            Phase::Connect,
            Outcome::TimedOut,
            Cause::ConnectTimeout,
            None,
            false,
        ),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_way_there() {
    if !rustix::process::geteuid().is_root() {
        skip("a namespace needs root");
        return;
    }
    // A namespace without a route: the agent's own program runs inside.
    let done = std::process::Command::new("unshare")
        .args(["-n", env!("CARGO_BIN_EXE_gapscope-agent")])
        .args(["try", "198.51.100.1:3306", "--duration", "1s"])
        .output();
    let done = match done {
        Ok(done) => done,
        Err(error) => {
            skip(&format!("unshare does not run: {error}"));
            return;
        }
    };
    let said = String::from_utf8_lossy(&done.stderr);
    if said.contains("unshare failed") || said.contains("Operation not permitted") {
        skip("no namespace to be had");
        return;
    }
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("connect_failed (unreachable)"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_does_not_exist() {
    let mut client = client(target("nobody.invalid", 3306), Style::New, 20_000);
    let sample = probe(&mut client).await;
    check(
        &sample,
        (
            Phase::Resolve,
            Outcome::ConnectFailed,
            Cause::NotResolved,
            None,
            false,
        ),
    );
    assert!(sample.resolve_ns.is_some() && sample.connect_ns.is_none());
}

/// Half-open: the peer's host forgot the connection; what we send is not heard.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_is_our_own_timeout() {
    let server = support::Server::start(support::Behaviour::Answers);
    let mut held = client(
        Target {
            identity: Some("whoami()".into()),
            ..target("127.0.0.1", server.address.port())
        },
        Style::Reused,
        300,
    );
    probe_until("an answer", &mut held, is_ok).await;
    server.now(support::Behaviour::HangsAtQuery);
    check(
        &probe(&mut held).await,
        (
            Phase::Query,
            Outcome::TimedOut,
            Cause::QueryTimeout,
            None,
            true,
        ),
    );
}

/// A peer that greets with these bytes and, after the login packet, sends those.
fn peer(greeting: Vec<u8>, then: Vec<u8>) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let (greeting, then) = (greeting.clone(), then.clone());
            std::thread::spawn(move || {
                let _ = stream.write_all(&greeting);
                let mut sink = [0; 4096];
                let mut first = true;
                while matches!(stream.read(&mut sink), Ok(n) if n > 0) {
                    if first && !then.is_empty() {
                        let _ = stream.write_all(&then);
                    }
                    first = false;
                }
            });
        }
    });
    Target {
        identity: Some("whoami()".into()),
        ..target("127.0.0.1", port)
    }
}

fn packet(number: u8, body: &[u8]) -> Vec<u8> {
    let mut out = (body.len() as u32).to_le_bytes()[..3].to_vec();
    out.push(number);
    out.extend_from_slice(body);
    out
}

fn greeting_of(plugin: &str) -> Vec<u8> {
    let capabilities: u32 = 1 | 0x0200 | 0x2000 | 0x8000 | 0x0008_0000;
    let [a, b, c, d] = capabilities.to_le_bytes();
    let mut body = b"\x0a8.0.99-hostile\0\x01\0\0\x0012345678\0".to_vec();
    body.extend_from_slice(&[a, b, 33, 2, 0, c, d, 21]);
    body.extend_from_slice(&[0; 10]);
    body.extend_from_slice(b"123456789012\0");
    body.extend_from_slice(plugin.as_bytes());
    body.push(0);
    packet(0, &body)
}

/// Two packets in a login that make the driver panic, and others that do not: all
/// are samples, and the client goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_talks_nonsense() {
    let sha2 = || greeting_of("caching_sha2_password");
    let login = |outcome, cause| (Phase::Connect, outcome, cause, None, false);
    let panics = login(Outcome::ProtocolError, Cause::DriverPanic);
    let malformed = login(Outcome::ProtocolError, Cause::Malformed);
    // Full authentication is asked for, and the public key is an empty packet; or
    // it is no key at all.
    let mut no_key = packet(2, &[1, 4]);
    no_key.extend(packet(4, &[]));
    let mut bad_key = packet(2, &[1, 4]);
    bad_key.extend(packet(4, b"\x01no key"));
    // Authentication is switched, and there is no nonce to it; then full
    // authentication has nothing to divide by.
    let mut no_nonce = packet(2, b"\xfecaching_sha2_password\0");
    no_nonce.extend(packet(4, &[1, 4]));
    no_nonce.extend(packet(6, b"\x01key"));
    for (what, greeting, then, expected) in [
        ("an empty key", sha2(), no_key, panics),
        ("no key", sha2(), bad_key, panics),
        ("no nonce", sha2(), no_nonce, panics),
        (
            "a greeting of nonsense",
            packet(0, &[0xab; 40]),
            vec![],
            malformed,
        ),
        (
            "nonsense as the answer to the login",
            sha2(),
            packet(2, &[0x55; 20]),
            malformed,
        ),
        (
            "a web server",
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n".to_vec(),
            vec![],
            malformed,
        ),
    ] {
        let mut client = client(peer(greeting, then), Style::New, 2_000);
        for _ in 0..2 {
            let sample = probe(&mut client).await;
            let seen = (
                sample.phase,
                sample.outcome,
                sample.cause.expect("a cause"),
                sample.error_code,
                sample.may_have_executed,
            );
            assert_eq!(seen, expected, "{what}: {sample:#?}");
        }
    }
}

/// A server without a connection left is left alone for a while, and that is the
/// agent's own doing.
#[tokio::test(flavor = "multi_thread")]
async fn the_breaker_pauses_and_says_so() {
    let Some(db) = MariaDb::start(
        &["--max-connections=10"],
        "CREATE USER crowd@'127.0.0.1' IDENTIFIED BY 'hunter2';\n",
        |_| Vec::new(),
    )
    .await
    else {
        return;
    };
    let mut held = client(db.target(), Style::Reused, 5_000);
    assert!(is_ok(&probe(&mut held).await));
    let mut crowd: Vec<_> = (0..12)
        .map(|_| {
            client(
                Target {
                    user: "crowd".into(),
                    ..db.target()
                },
                Style::Reused,
                5_000,
            )
        })
        .collect();
    for one in &mut crowd {
        probe(one).await;
    }
    let mut new = client(db.target(), Style::New, 5_000);
    for _ in 0..3 {
        let sample = probe(&mut new).await;
        assert_eq!(sample.error_code, Some(1040), "{sample:#?}");
    }
    let paused = probe(&mut new).await;
    check(
        &paused,
        (
            Phase::Connect,
            Outcome::AgentError,
            Cause::Breaker,
            None,
            false,
        ),
    );
    assert!(paused.connect_ns.is_none());
    // Whoever has a connection goes on.
    assert!(is_ok(&probe(&mut held).await));
    drop(crowd);
    probe_until("the breaker's end", &mut new, is_ok).await;
    // Who does not want it has it not.
    let mut bold = client(
        Target {
            user: "nobody".into(),
            reach: Reach {
                breaker: false,
                ..Reach::default()
            },
            ..db.target()
        },
        Style::New,
        5_000,
    );
    for _ in 0..6 {
        assert_eq!(probe(&mut bold).await.error_code, Some(1045));
    }
}

/// Sockets to one target are counted, abandoned ones too, and there is an end.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_sockets_than_allowed() {
    let server = support::Server::start(support::Behaviour::Answers);
    let clock = gapscope_proto::clock::SystemClock::new();
    let endpoint = std::sync::Arc::new(gapscope_agent::probe::endpoint::Endpoint::new(
        Target {
            identity: Some("whoami()".into()),
            reach: Reach {
                max_sockets: 2,
                ..Reach::default()
            },
            ..target("127.0.0.1", server.address.port())
        },
        &clock,
    ));
    let mut clients: Vec<_> = (0..3)
        .map(|_| real::client_of(&endpoint, Style::Reused, 2_000))
        .collect();
    assert!(is_ok(&probe(&mut clients[0]).await) && is_ok(&probe(&mut clients[1]).await));
    assert_eq!(endpoint.sockets(), 2);
    check(
        &probe(&mut clients[2]).await,
        (
            Phase::Connect,
            Outcome::AgentError,
            Cause::Guard,
            None,
            false,
        ),
    );
    // An abandoned one is closed, and counts until then.
    server.now(support::Behaviour::HangsAtQuery);
    probe(&mut clients[0]).await;
    server.now(support::Behaviour::Answers);
    probe_until("a free socket", &mut clients[2], is_ok).await;
    clients[2].close().await;
}
