//! The embedded servers and proxies, seen from outside: by `mysql_async`, by the
//! `mariadb` client where it is installed, and by a plain observer loop.

#![expect(clippy::unwrap_used, reason = "a test may fail by panic")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gapscope_lab::embedded::{
    Backend, BackendConfig, CheckKind, Credentials, Held, L4Config, L4Proxy, L7Config, L7Proxy,
    Mode, PoolMember, VariablesSchema,
};
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::fault::Span;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder, Row};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(20);
const PROBE: &str = "SELECT CONNECTION_ID() AS id, VERSION() AS version, (SELECT GROUP_CONCAT(VARIABLE_VALUE ORDER BY VARIABLE_NAME SEPARATOR ':') FROM information_schema.GLOBAL_VARIABLES WHERE VARIABLE_NAME IN ('HOSTNAME','PORT')) AS backend";

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

fn credentials() -> Credentials {
    Credentials::new("probe", "s3cret")
}

fn config(name: &str) -> BackendConfig {
    BackendConfig {
        credentials: credentials(),
        ..BackendConfig::new(name)
    }
}

async fn backend(name: &str) -> Backend {
    Backend::start(config(name), clock()).await.unwrap()
}

fn opts(addr: SocketAddr) -> OptsBuilder {
    OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(addr.port())
        .user(Some("probe"))
        .pass(Some("s3cret"))
        .prefer_socket(false)
        .max_allowed_packet(Some(1 << 24))
        .wait_timeout(Some(28_800))
}

async fn connect(addr: SocketAddr) -> Conn {
    timeout(LONG, Conn::new(opts(addr))).await.unwrap().unwrap()
}

async fn who(conn: &mut Conn) -> mysql_async::Result<(u64, String)> {
    let row: Option<(u64, String, String)> =
        timeout(LONG, conn.query_first(PROBE)).await.unwrap()?;
    let (id, _, backend) = row.unwrap();
    Ok((id, backend))
}

fn code(error: mysql_async::Error) -> u16 {
    match error {
        mysql_async::Error::Server(error) => error.code,
        other => panic!("not a server's error: {other:?}"),
    }
}

async fn code_of(conn: &mut Conn, sql: &str) -> u16 {
    code(conn.query_drop(sql).await.unwrap_err())
}

/// Waits for a condition that other tasks bring about.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LONG, waiting)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

// --- protocol ---------------------------------------------------------------

#[tokio::test]
async fn the_probe_is_answered_in_both_protocols() {
    for deprecate_eof in [true, false] {
        let backend = Backend::start(
            BackendConfig {
                deprecate_eof,
                first_connection_id: 41,
                hostname: "db-a".into(),
                ..config("a")
            },
            clock(),
        )
        .await
        .unwrap();
        let identity = format!("db-a:{}", backend.addr().port());
        assert_eq!(backend.identity(), identity);
        let mut conn = connect(backend.addr()).await;
        assert_eq!(conn.id(), 41);
        for _ in 0..3 {
            assert_eq!(who(&mut conn).await.unwrap(), (41, identity.clone()));
        }
        let statement = conn.prep(PROBE).await.unwrap();
        for _ in 0..3 {
            let row: Option<(u64, String, String)> = conn.exec_first(&statement, ()).await.unwrap();
            assert_eq!(row.unwrap().2, identity);
        }
        type Five = (i64, String, Option<i64>, f64, Vec<u8>);
        let row: Option<Five> = conn
            .exec_first(
                "SELECT ?, CONCAT(?, ':', ?), NULL, ?, ?",
                (-7_i64, "x", 300_u16, 1.5_f64, vec![b'y'; 70_000]),
            )
            .await
            .unwrap();
        assert_eq!(
            row.unwrap(),
            (-7, "x:300".to_owned(), None, 1.5, vec![b'y'; 70_000])
        );
        conn.close(statement).await.unwrap();
        conn.ping().await.unwrap();
        backend.shutdown().await;
    }
}

#[tokio::test]
async fn a_session_keeps_its_state() {
    let backend = backend("a").await;
    let mut conn = Conn::new(opts(backend.addr()).db_name(Some("first")))
        .await
        .unwrap();
    let get = "SELECT @gapscope_canary, DATABASE(), @@autocommit";
    type State = (Option<String>, Option<String>, i64);
    let state: Option<State> = conn.query_first(get).await.unwrap();
    assert_eq!(state.unwrap(), (None, Some("first".into()), 1));
    conn.query_drop("SET @gapscope_canary = 'alive'")
        .await
        .unwrap();
    conn.query_drop("USE second").await.unwrap();
    conn.query_drop("SET autocommit=0").await.unwrap();
    let state: Option<State> = conn.query_first(get).await.unwrap();
    assert_eq!(
        state.unwrap(),
        (Some("alive".into()), Some("second".into()), 0)
    );
    assert!(conn.reset().await.unwrap());
    let state: Option<State> = conn.query_first(get).await.unwrap();
    assert_eq!(state.unwrap(), (None, Some("second".into()), 1));

    conn.query_drop("BEGIN").await.unwrap();
    conn.query_drop("COMMIT").await.unwrap();
    let grants: Option<String> = conn.query_first("SHOW GRANTS").await.unwrap();
    assert!(grants.unwrap().contains("`probe`"));
    let values: Option<(String, u16, String, String, u64)> = conn
        .query_first(
            "select @@hostname, @@port, @@version_comment, (@@socket), @@wait_timeout limit 1",
        )
        .await
        .unwrap();
    let values = values.unwrap();
    assert_eq!((values.0.as_str(), values.1), ("a", backend.addr().port()));
    let none: Vec<i64> = conn.query("SELECT 1 LIMIT 0").await.unwrap();
    assert!(none.is_empty());
    backend.shutdown().await;
}

#[tokio::test]
async fn errors_have_the_codes_of_a_real_server() {
    let backend = backend("a").await;
    let mut conn = connect(backend.addr()).await;
    assert_eq!(code_of(&mut conn, "SELEC 1").await, 1064);
    assert_eq!(code_of(&mut conn, "SELECT * FROM t").await, 1064);
    assert_eq!(code_of(&mut conn, "SELECT @@nonsense").await, 1193);
    assert_eq!(
        code_of(
            &mut conn,
            &PROBE.replace("information_schema", "performance_schema")
        )
        .await,
        1146
    );
    assert_eq!(code_of(&mut conn, "INSERT INTO t VALUES (1)").await, 1146);
    backend.set_read_only(true);
    assert_eq!(code_of(&mut conn, "INSERT INTO t VALUES (1)").await, 1290);
    backend.set_read_only(false);
    assert_eq!(code_of(&mut conn, "INSERT INTO t VALUES (1)").await, 1146);
    who(&mut conn).await.unwrap();
    assert_eq!(backend.connections(), 1);
    backend.shutdown().await;
}

#[tokio::test]
async fn the_other_table_of_variables_can_be_had() {
    let backend = Backend::start(
        BackendConfig {
            variables: VariablesSchema::PerformanceSchema,
            ..config("a")
        },
        clock(),
    )
    .await
    .unwrap();
    let mut conn = connect(backend.addr()).await;
    assert_eq!(code(who(&mut conn).await.unwrap_err()), 1109);
    let probe = PROBE.replace("information_schema", "performance_schema");
    let row: Row = conn.query_first(probe).await.unwrap().unwrap();
    assert_eq!(row.get::<String, _>("backend").unwrap(), backend.identity());
    backend.shutdown().await;
}

#[tokio::test]
async fn only_the_right_password_logs_in() {
    let backend = backend("a").await;
    let open = Backend::start(BackendConfig::new("open"), clock())
        .await
        .unwrap();
    let proxy = l7(&[&backend], Duration::from_millis(20)).await;
    for addr in [backend.addr(), proxy.addr()] {
        connect(addr).await.disconnect().await.unwrap();
        for (user, password) in [
            ("probe", Some("wrong")),
            ("probe", None),
            ("root", Some("s3cret")),
        ] {
            let wrong = opts(addr).user(Some(user)).pass(password);
            assert_eq!(code(Conn::new(wrong).await.unwrap_err()), 1045);
        }
    }
    Conn::new(opts(open.addr()).pass(None::<String>))
        .await
        .unwrap();
    assert_eq!(code(Conn::new(opts(open.addr())).await.unwrap_err()), 1045);
    proxy.shutdown().await;
    backend.shutdown().await;
    open.shutdown().await;
}

#[tokio::test]
async fn kill_closes_the_connection_it_names() {
    let backend = backend("a").await;
    let mut victim = connect(backend.addr()).await;
    let mut killer = connect(backend.addr()).await;
    assert_eq!(code_of(&mut killer, "KILL 999").await, 1094);
    killer
        .query_drop(format!("KILL {}", victim.id()))
        .await
        .unwrap();
    let error = who(&mut victim).await.unwrap_err();
    assert!(matches!(error, mysql_async::Error::Io(_)), "{error:?}");

    let mut sleeper = connect(backend.addr()).await;
    let id = sleeper.id();
    let sleeping = tokio::spawn(async move { sleeper.query_drop("SELECT SLEEP(30)").await });
    // Killed until it is in its sleep: idle it would just be closed.
    tokio::time::sleep(Duration::from_millis(100)).await;
    killer
        .query_drop(format!("KILL CONNECTION {id}"))
        .await
        .unwrap();
    let error = timeout(LONG, sleeping).await.unwrap().unwrap().unwrap_err();
    assert_eq!(code(error), 1927);
    let own = format!("KILL {}", killer.id());
    assert_eq!(code_of(&mut killer, &own).await, 1317);
    assert!(who(&mut killer).await.is_err());
    backend.shutdown().await;
}

#[tokio::test]
async fn connections_are_bounded() {
    let backend = Backend::start(
        BackendConfig {
            max_connections: 2,
            ..config("a")
        },
        clock(),
    )
    .await
    .unwrap();
    let first = connect(backend.addr()).await;
    let _second = connect(backend.addr()).await;
    assert_eq!(
        code(Conn::new(opts(backend.addr())).await.unwrap_err()),
        1040
    );
    first.disconnect().await.unwrap();
    until("a place is free", || backend.connections() < 2).await;
    connect(backend.addr()).await;
    backend.shutdown().await;
}

async fn raw_packet(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).await.ok()?;
    let length =
        usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).await.ok()?;
    Some(payload)
}

/// Logs in by hand at a server without a password, asking for `plugin`.
async fn raw_login(addr: SocketAddr, plugin: &str) -> (TcpStream, Vec<u8>) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    raw_packet(&mut stream).await.unwrap();
    // PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH
    let mut login = 0x0008_8200_u32.to_le_bytes().to_vec();
    login.extend([0, 0, 0, 1, 45]);
    login.extend([0; 23]);
    login.extend(b"probe\0\0");
    login.extend(plugin.as_bytes());
    login.push(0);
    let mut packet = vec![u8::try_from(login.len()).unwrap(), 0, 0, 1];
    packet.extend(login);
    stream.write_all(&packet).await.unwrap();
    let answer = raw_packet(&mut stream).await.unwrap();
    (stream, answer)
}

#[tokio::test]
async fn rare_commands_are_refused_and_never_ok() {
    let backend = Backend::start(BackendConfig::new("open"), clock())
        .await
        .unwrap();
    let proxy = L7Proxy::start(
        L7Config::new("l7", members(&[&backend]), Credentials::new("probe", "")),
        clock(),
    )
    .await
    .unwrap();
    for addr in [backend.addr(), proxy.addr()] {
        let (mut stream, answer) = raw_login(addr, "mysql_native_password").await;
        assert_eq!(answer[0], 0);
        for command in [
            0x00_u8, 0x04, 0x05, 0x09, 0x11, 0x1B, 0x1C, 0x1D, 0x42, 0xFA, 0xFF,
        ] {
            stream.write_all(&[1, 0, 0, 0, command]).await.unwrap();
            let answer = raw_packet(&mut stream).await.unwrap();
            assert_eq!(answer[..3], [0xFF, 0x17, 0x04], "command {command:#x}");
        }
        // An unknown statement is an error, and the connection goes on.
        stream
            .write_all(&[10, 0, 0, 0, 0x17, 9, 0, 0, 0, 0, 1, 0, 0, 0])
            .await
            .unwrap();
        let answer = raw_packet(&mut stream).await.unwrap();
        assert_eq!(answer[..3], [0xFF, 0xDB, 0x04]);
        stream.write_all(&[1, 0, 0, 0, 0x0E]).await.unwrap();
        assert_eq!(raw_packet(&mut stream).await.unwrap()[0], 0);

        let (mut stream, answer) = raw_login(addr, "caching_sha2_password").await;
        assert_eq!(answer[0], 0xFE, "asked to switch");
        stream.write_all(&[0, 0, 0, 3]).await.unwrap();
        assert_eq!(raw_packet(&mut stream).await.unwrap()[0], 0);
    }
    proxy.shutdown().await;
    backend.shutdown().await;
}

#[tokio::test]
async fn garbage_harms_nobody() {
    let backend = backend("a").await;
    let proxy = l7(&[&backend], Duration::from_millis(20)).await;
    let pass = L4Proxy::start(L4Config::new("l4", members(&[&backend])), clock())
        .await
        .unwrap();
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for addr in [backend.addr(), proxy.addr(), pass.addr()] {
        for round in 0..60 {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            let mut bytes: Vec<u8> = (0..random() % 300)
                .map(|_| random().to_le_bytes()[3])
                .collect();
            if round % 2 == 0 && bytes.len() > 4 {
                let length = bytes.len() - 4;
                bytes[..4].copy_from_slice(&[
                    u8::try_from(length % 256).unwrap(),
                    u8::try_from(length / 256).unwrap(),
                    0,
                    1,
                ]);
            }
            // The server may have closed already.
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
            let mut sink = Vec::new();
            let _ = timeout(LONG, stream.read_to_end(&mut sink)).await.unwrap();
        }
        // The longest claim there is.
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(&[0xFF, 0xFF, 0xFF, 1]).await.unwrap();
        let mut sink = Vec::new();
        let _ = timeout(LONG, stream.read_to_end(&mut sink)).await.unwrap();
        who(&mut connect(addr).await).await.unwrap();
    }
    pass.shutdown().await;
    proxy.shutdown().await;
    backend.shutdown().await;
    assert_eq!(backend.connections(), 0);
}

async fn mariadb(addr: SocketAddr, password: &str, extra: &[&str], sql: &str) -> (bool, String) {
    let output = tokio::process::Command::new("/usr/bin/mariadb")
        .args([
            "--no-defaults",
            "--protocol=tcp",
            "-h127.0.0.1",
            "-uprobe",
            "--batch",
        ])
        .arg(format!("-P{}", addr.port()))
        .arg(format!("-p{password}"))
        .args(extra)
        .args(["-e", sql])
        .kill_on_drop(true)
        .output();
    let output = timeout(LONG, output).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[tokio::test]
async fn the_real_client_is_served() {
    if !std::path::Path::new("/usr/bin/mariadb").exists() {
        eprintln!("not tested: /usr/bin/mariadb is not installed");
        return;
    }
    for deprecate_eof in [true, false] {
        let backend = Backend::start(
            BackendConfig {
                deprecate_eof,
                ..config("a")
            },
            clock(),
        )
        .await
        .unwrap();
        let mut settings = L7Config::new("l7", members(&[&backend]), credentials());
        settings.deprecate_eof = deprecate_eof;
        let proxy = L7Proxy::start(settings, clock()).await.unwrap();
        for addr in [backend.addr(), proxy.addr()] {
            let (ok, text) = mariadb(addr, "s3cret", &[], PROBE).await;
            assert!(ok && text.contains(&backend.identity()), "{text}");
            let sql = "SET @a='kept'; SELECT @a AS a, NULL AS b, 3 AS c; SELECT DATABASE() AS d";
            let (ok, text) = mariadb(addr, "s3cret", &["-Dlab"], sql).await;
            assert!(ok, "{text}");
            assert_eq!(text, "a\tb\tc\nkept\tNULL\t3\nd\nlab\n");
            let (ok, text) = mariadb(addr, "s3cret", &[], "SELECT nonsense").await;
            assert!(!ok && text.contains("1064"), "{text}");
            let (ok, text) = mariadb(addr, "s3cret", &[], "SELECT a FROM nowhere").await;
            assert!(!ok && text.contains("1146"), "{text}");
            let (ok, text) = mariadb(addr, "wrong", &[], "SELECT 1").await;
            assert!(!ok && text.contains("1045"), "{text}");
        }
        proxy.shutdown().await;
        backend.shutdown().await;
    }
}

// --- truth ------------------------------------------------------------------

#[derive(Debug, Clone, Copy)]
struct Seen {
    start_ns: i64,
    end_ns: i64,
    good: bool,
}

/// Probes directly, every millisecond, on a held connection or on a new one
/// each time; reconnects after a failure. `stop` ends it.
fn observe(
    addr: SocketAddr,
    hold: bool,
    stop: tokio_util::sync::CancellationToken,
) -> JoinHandle<Vec<Seen>> {
    tokio::spawn(async move {
        let clock = SystemClock::new();
        let mut held: Option<Conn> = None;
        let mut seen = Vec::new();
        let give_up = Duration::from_millis(150);
        while !stop.is_cancelled() {
            let start_ns = clock.raw_ns();
            let probe = async {
                let mut conn = match held.take() {
                    Some(conn) => conn,
                    None => Conn::new(opts(addr)).await?,
                };
                let _: Option<i64> = conn.query_first("SELECT 1").await?;
                Ok::<_, mysql_async::Error>(conn)
            };
            let result = timeout(give_up, probe).await;
            let end_ns = clock.raw_ns();
            let good = matches!(result, Ok(Ok(_)));
            seen.push(Seen {
                start_ns,
                end_ns,
                good,
            });
            if let (true, Ok(Ok(conn))) = (hold, result) {
                held = Some(conn);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        seen
    })
}

/// Truth against what was seen: no probe that lies wholly inside the fault is
/// good; all that lie wholly outside are, but those that waited for the fault's
/// end or lost their connection by it.
#[track_caller]
fn check_truth(what: &str, seen: &[Seen], effect: Span, cleared: Span) {
    assert!(effect.earliest_ns <= effect.latest_ns, "{what}");
    assert!(effect.latest_ns <= cleared.earliest_ns, "{what}");
    assert!(cleared.earliest_ns <= cleared.latest_ns, "{what}");
    let mut inside = 0;
    let (mut before, mut after) = (0, 0);
    for probe in seen {
        if probe.start_ns > effect.latest_ns && probe.end_ns < cleared.earliest_ns {
            assert!(
                !probe.good,
                "{what}: answered inside the fault: {probe:?} {effect:?} {cleared:?}"
            );
            inside += 1;
        }
        if probe.end_ns < effect.earliest_ns {
            assert!(
                probe.good,
                "{what}: unanswered before the fault: {probe:?} {effect:?}"
            );
            before += 1;
        }
        if probe.good && probe.start_ns > cleared.latest_ns {
            after += 1;
        }
    }
    assert!(
        before >= 20 && after >= 20 && inside >= 1,
        "{what}: {before} {inside} {after}"
    );
    // The bounds of the outage, as the instrument computes them, hold the truth.
    let first_bad = seen.iter().position(|probe| !probe.good).unwrap();
    let last_bad = seen.iter().rposition(|probe| !probe.good).unwrap();
    let (b0, bn) = (seen[first_bad], seen[last_bad]);
    let (g0, g1) = (seen[first_bad - 1], seen[last_bad + 1]);
    let truth_least = cleared.earliest_ns - effect.latest_ns;
    let truth_most = cleared.latest_ns - effect.earliest_ns;
    let lower = (bn.start_ns - b0.end_ns).max(0);
    let upper = g1.end_ns - g0.start_ns;
    assert!(
        lower <= truth_most,
        "{what}: lower {lower} truth {truth_most}"
    );
    assert!(
        upper >= truth_least,
        "{what}: upper {upper} truth {truth_least}"
    );
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Stop,
    Drain,
    Crash,
    Hang,
    BlackHole,
}

async fn faulted(fault: Fault) {
    let what = format!("{fault:?}");
    let backend = backend("a").await;
    let stop = tokio_util::sync::CancellationToken::new();
    let held = observe(backend.addr(), true, stop.clone());
    let new = observe(backend.addr(), false, stop.clone());
    let answered = backend.statements();
    until("traffic", || backend.statements() > answered + 150).await;
    let truth = match fault {
        Fault::Stop => backend.stop_gracefully(Held::CutAtOnce).await,
        Fault::Drain => backend.stop_gracefully(Held::AfterStatement(LONG)).await,
        Fault::Crash => backend.crash().await,
        Fault::Hang => backend.hang().await,
        Fault::BlackHole => backend.black_hole().await,
    }
    .unwrap();
    let answered_then = backend.statements();
    tokio::time::sleep(Duration::from_millis(400)).await;
    // Those answered just before may not have been counted yet.
    assert!(backend.statements() <= answered_then + 2, "{what}");
    let clear = backend.clear().await.unwrap();
    assert_eq!(backend.mode(), Mode::Serving);
    let answered = backend.statements();
    until("traffic again", || backend.statements() > answered + 150).await;
    stop.cancel();
    let held = timeout(LONG, held).await.unwrap().unwrap();
    let new = timeout(LONG, new).await.unwrap().unwrap();
    check_truth(&format!("{what}, held"), &held, truth.effect, clear.cleared);
    check_truth(&format!("{what}, new"), &new, truth.effect, clear.cleared);
    eprintln!(
        "{what}: took effect within {} us, was cleared within {} us",
        (truth.effect.latest_ns - truth.effect.earliest_ns) / 1000,
        (clear.cleared.latest_ns - clear.cleared.earliest_ns) / 1000
    );
    let goes = matches!(fault, Fault::Stop | Fault::Drain | Fault::Crash);
    assert_eq!(truth.listener_refused.is_some(), goes);
    assert_eq!(truth.gone.is_some(), goes);
    if goes {
        assert!(truth.held >= 1);
        let (cut, gone) = (truth.held_cut.unwrap(), truth.gone.unwrap());
        assert!(truth.effect.earliest_ns <= cut.earliest_ns && cut.latest_ns <= gone.latest_ns);
    }
    timeout(LONG, backend.shutdown()).await.unwrap();
    assert_eq!(backend.connections(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_is_known_exactly() {
    faulted(Fault::Stop).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_is_known_exactly() {
    faulted(Fault::Drain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_is_known_exactly() {
    faulted(Fault::Crash).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hang_is_known_exactly() {
    faulted(Fault::Hang).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_is_known_exactly() {
    faulted(Fault::BlackHole).await;
}

fn io_kind(error: mysql_async::Error) -> Option<std::io::ErrorKind> {
    match error {
        mysql_async::Error::Io(mysql_async::IoError::Io(error)) => Some(error.kind()),
        _ => None,
    }
}

#[tokio::test]
async fn each_fault_looks_like_itself() {
    let backend = backend("a").await;
    let addr = backend.addr();

    // A crash resets held connections and refuses new ones.
    let mut held = TcpStream::connect(addr).await.unwrap();
    raw_packet(&mut held).await.unwrap();
    backend.crash().await.unwrap();
    let error = held.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let error = TcpStream::connect(addr).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(backend.crash().await.is_err());
    assert!(backend.hang().await.is_err());
    assert!(backend.resume().await.is_err());
    backend.restart().await.unwrap();

    // A stop closes them.
    let mut held = TcpStream::connect(addr).await.unwrap();
    raw_packet(&mut held).await.unwrap();
    backend.stop_gracefully(Held::CutAtOnce).await.unwrap();
    assert_eq!(held.read(&mut [0; 1]).await.unwrap(), 0);
    let error = TcpStream::connect(addr).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    backend.restart().await.unwrap();

    // Hung, it accepts in the kernel only, and answers late what was asked meanwhile.
    let mut conn = connect(addr).await;
    backend.hang().await.unwrap();
    let error = backend.stop_gracefully(Held::CutAtOnce).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot stop embedded backend `a`: it is Hung"
    );
    let asked = tokio::spawn(async move { who(&mut conn).await });
    let mut greeted = TcpStream::connect(addr).await.unwrap();
    assert!(
        timeout(Duration::from_millis(100), greeted.read_u8())
            .await
            .is_err()
    );
    assert!(!asked.is_finished());
    backend.resume().await.unwrap();
    assert_eq!(
        timeout(LONG, asked).await.unwrap().unwrap().unwrap().1,
        backend.identity()
    );
    timeout(LONG, raw_packet(&mut greeted))
        .await
        .unwrap()
        .unwrap();

    // A hung one can be killed.
    let mut held = TcpStream::connect(addr).await.unwrap();
    raw_packet(&mut held).await.unwrap();
    backend.hang().await.unwrap();
    let truth = backend.crash().await.unwrap();
    assert!(truth.listener_refused.is_some());
    let error = held.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let error = TcpStream::connect(addr).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    backend.restart().await.unwrap();

    // A black hole swallows; who lost something is reset at its end, others are kept.
    let mut idle = connect(addr).await;
    let mut loser = connect(addr).await;
    backend.black_hole().await.unwrap();
    let asked = tokio::spawn(async move { loser.query_drop("SELECT 1").await });
    let mut ungreeted = TcpStream::connect(addr).await.unwrap();
    assert!(
        timeout(Duration::from_millis(100), ungreeted.read_u8())
            .await
            .is_err()
    );
    assert!(!asked.is_finished());
    backend.resume().await.unwrap();
    let error = timeout(LONG, asked).await.unwrap().unwrap().unwrap_err();
    assert_eq!(io_kind(error), Some(std::io::ErrorKind::ConnectionReset));
    assert!(ungreeted.read_u8().await.is_err());
    who(&mut idle).await.unwrap();
    backend.shutdown().await;
}

#[tokio::test]
async fn a_drain_lets_running_statements_finish() {
    let backend = backend("a").await;
    let mut idle = connect(backend.addr()).await;
    let mut busy = connect(backend.addr()).await;
    let running = tokio::spawn(async move {
        let answer: Option<i64> = busy.query_first("SELECT SLEEP(0.3)").await.unwrap();
        (answer, busy.ping().await.is_err())
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let truth = timeout(LONG, backend.stop_gracefully(Held::AfterStatement(LONG)))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(running.await.unwrap(), (Some(0), true));
    assert!(who(&mut idle).await.is_err());
    assert_eq!(truth.held, 2);
    let effect = truth.effect;
    assert!(
        effect.latest_ns - effect.earliest_ns > 100_000_000,
        "{effect:?}"
    );
    backend.shutdown().await;
}

#[tokio::test]
async fn a_drain_has_an_end() {
    let backend = backend("a").await;
    let mut busy = connect(backend.addr()).await;
    let running = tokio::spawn(async move { busy.query_drop("SELECT SLEEP(60)").await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let grace = Duration::from_millis(50);
    let truth = timeout(LONG, backend.stop_gracefully(Held::AfterStatement(grace)))
        .await
        .unwrap()
        .unwrap();
    assert!(running.await.unwrap().is_err());
    assert!(truth.effect.latest_ns - truth.effect.earliest_ns >= 50_000_000);
    assert_eq!(backend.connections(), 0);
    backend.shutdown().await;
}

#[tokio::test]
async fn equal_ids_and_host_names_are_told_apart_by_port() {
    let same = |name: &str| BackendConfig {
        hostname: "same".into(),
        first_connection_id: 7,
        constant_connection_id: true,
        ..config(name)
    };
    let a = Backend::start(same("a"), clock()).await.unwrap();
    let b = Backend::start(same("b"), clock()).await.unwrap();
    let (id_a, backend_a) = who(&mut connect(a.addr()).await).await.unwrap();
    let (id_b, backend_b) = who(&mut connect(b.addr()).await).await.unwrap();
    assert_eq!((id_a, id_b), (7, 7));
    assert_eq!(who(&mut connect(a.addr()).await).await.unwrap().0, 7);
    assert_ne!(backend_a, backend_b);
    a.crash().await.unwrap();
    a.restart().await.unwrap();
    assert_eq!(
        who(&mut connect(a.addr()).await).await.unwrap(),
        (7, backend_a)
    );
    a.shutdown().await;
    b.shutdown().await;
}

// --- proxies ----------------------------------------------------------------

fn members(backends: &[&Backend]) -> Vec<PoolMember> {
    backends
        .iter()
        .enumerate()
        .map(|(index, backend)| PoolMember {
            name: backend.name().to_owned(),
            addr: backend.addr(),
            backup: index > 0,
        })
        .collect()
}

async fn l4(backends: &[&Backend], interval: Duration, cut_on_mark_down: bool) -> L4Proxy {
    let mut settings = L4Config::new("l4", members(backends));
    settings.check.interval = interval;
    settings.cut_on_mark_down = cut_on_mark_down;
    L4Proxy::start(settings, clock()).await.unwrap()
}

async fn l7(backends: &[&Backend], interval: Duration) -> L7Proxy {
    let mut settings = L7Config::new("l7", members(backends), credentials());
    settings.check.interval = interval;
    settings.server_timeout = Duration::from_millis(200);
    settings.acquire_timeout = Duration::from_millis(500);
    L7Proxy::start(settings, clock()).await.unwrap()
}

#[tokio::test]
async fn l4_goes_to_the_backup_after_its_check_and_back() {
    let (a, b) = (backend("a").await, backend("b").await);
    let proxy = l4(&[&a, &b], Duration::from_millis(30), false).await;
    let mut held = connect(proxy.addr()).await;
    assert_eq!(who(&mut held).await.unwrap().1, a.identity());
    let truth = a.crash().await.unwrap();
    assert_eq!(
        io_kind(who(&mut held).await.unwrap_err()),
        Some(std::io::ErrorKind::ConnectionReset)
    );
    until("a is marked down", || !proxy.view()[0].up).await;
    let view = proxy.view();
    assert!(view[0].since_ns > truth.effect.earliest_ns && view[1].up && view[1].backup);
    assert!(view[0].failure.starts_with("connect: "), "{view:?}");
    let mut held = connect(proxy.addr()).await;
    assert_eq!(who(&mut held).await.unwrap().1, b.identity());
    a.restart().await.unwrap();
    until("a is marked up", || proxy.view()[0].up).await;
    assert_eq!(
        who(&mut connect(proxy.addr()).await).await.unwrap().1,
        a.identity()
    );
    assert_eq!(
        who(&mut held).await.unwrap().1,
        b.identity(),
        "held ones stay"
    );
    a.crash().await.unwrap();
    b.stop_gracefully(Held::CutAtOnce).await.unwrap();
    until("both are down", || {
        proxy.view().iter().all(|member| !member.up)
    })
    .await;
    let mut closed = TcpStream::connect(proxy.addr()).await.unwrap();
    assert!(matches!(
        timeout(LONG, closed.read(&mut [0; 1])).await.unwrap(),
        Ok(0) | Err(_)
    ));
    proxy.shutdown().await;
    assert!(TcpStream::connect(proxy.addr()).await.is_err());
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn l4_by_connect_stays_green_over_a_hang() {
    let (a, b) = (backend("a").await, backend("b").await);
    let by_connect = l4(&[&a, &b], Duration::from_millis(20), false).await;
    let mut settings = L4Config::new("l4", members(&[&a, &b]));
    settings.check.interval = Duration::from_millis(20);
    settings.check.kind = CheckKind::Greeting;
    settings.cut_on_mark_down = true;
    let by_greeting = L4Proxy::start(settings, clock()).await.unwrap();
    let mut cut = connect(by_greeting.addr()).await;
    a.hang().await.unwrap();
    until("the greeting is missed", || !by_greeting.view()[0].up).await;
    assert!(by_connect.view()[0].up);
    assert_eq!(
        io_kind(who(&mut cut).await.unwrap_err()),
        Some(std::io::ErrorKind::ConnectionReset)
    );
    assert_eq!(
        who(&mut connect(by_greeting.addr()).await).await.unwrap().1,
        b.identity()
    );
    by_connect.shutdown().await;
    by_greeting.shutdown().await;
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn l4_passes_a_half_close_on() {
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = server.local_addr().unwrap();
    let echo = tokio::spawn(async move {
        // The proxy's check connects too, and sends nothing.
        loop {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            if !all.is_empty() {
                stream.write_all(&all).await.unwrap();
                return;
            }
        }
    });
    let member = PoolMember {
        name: "echo".into(),
        addr,
        backup: false,
    };
    let proxy = L4Proxy::start(L4Config::new("l4", vec![member]), clock())
        .await
        .unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    client.write_all(b"over").await.unwrap();
    client.shutdown().await.unwrap();
    let mut all = Vec::new();
    timeout(LONG, client.read_to_end(&mut all))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(all, b"over");
    echo.await.unwrap();
    proxy.shutdown().await;
}

#[tokio::test]
async fn l4_passes_a_reset_on_and_leaves_nothing() {
    let a = backend("a").await;
    // A check so slow that it plays no part after its first time.
    let proxy = l4(&[&a], Duration::from_secs(60), false).await;
    let held = connect(proxy.addr()).await;
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    raw_packet(&mut client).await.unwrap();
    until("both are there", || a.connections() == 2).await;
    client.set_zero_linger().unwrap();
    drop(client);
    until("one is gone", || a.connections() == 1).await;
    timeout(LONG, proxy.shutdown()).await.unwrap();
    until("none is left", || a.connections() == 0).await;
    drop(held);
    a.shutdown().await;
}

#[tokio::test]
async fn l7_reconnects_and_loses_the_session() {
    let (a, b) = (backend("a").await, backend("b").await);
    // A check so slow that it plays no part.
    let proxy = l7(&[&a, &b], Duration::from_secs(60)).await;
    let mut conn = Conn::new(opts(proxy.addr()).db_name(Some("lab")))
        .await
        .unwrap();
    let own_id = conn.id();
    assert_ne!(u64::from(own_id), who(&mut conn).await.unwrap().0);
    conn.query_drop("SET @gapscope_canary = 'alive'")
        .await
        .unwrap();
    let canary = "SELECT @gapscope_canary, DATABASE()";
    type State = (Option<String>, Option<String>);
    let before: Option<State> = conn.query_first(canary).await.unwrap();
    assert_eq!(before.unwrap(), (Some("alive".into()), Some("lab".into())));
    let statement = conn.prep("SELECT ?").await.unwrap();
    let value: Option<i64> = conn.exec_first(&statement, (5,)).await.unwrap();
    assert_eq!(value, Some(5));
    a.crash().await.unwrap();
    assert_eq!(who(&mut conn).await.unwrap().1, b.identity());
    assert_eq!(conn.id(), own_id);
    let after: Option<State> = conn.query_first(canary).await.unwrap();
    assert_eq!(after.unwrap(), (None, Some("lab".into())));
    // The number is not taken for another statement's.
    let other = conn.prep("SELECT 'other', ?").await.unwrap();
    let held: mysql_async::Result<Option<i64>> = conn.exec_first(&statement, (5,)).await;
    assert_eq!(code(held.unwrap_err()), 1243);
    let value: Option<(String, i64)> = conn.exec_first(&other, (6,)).await.unwrap();
    assert_eq!(value, Some(("other".into(), 6)));
    assert_eq!(proxy.reconnects(), 1);
    b.crash().await.unwrap();
    assert_eq!(code(who(&mut conn).await.unwrap_err()), 1105);
    b.restart().await.unwrap();
    assert_eq!(who(&mut conn).await.unwrap().1, b.identity());
    proxy.shutdown().await;
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn l7_sends_reads_again_but_nothing_else() {
    let (a, b) = (backend("a").await, backend("b").await);
    let proxy = l7(&[&a, &b], Duration::from_secs(60)).await;
    let mut reading = connect(proxy.addr()).await;
    who(&mut reading).await.unwrap();
    let mut in_transaction = connect(proxy.addr()).await;
    in_transaction.query_drop("BEGIN").await.unwrap();
    let mut setting = connect(proxy.addr()).await;
    who(&mut setting).await.unwrap();
    let sleep = tokio::spawn(async move {
        let row: Option<(i64, u16)> = reading
            .query_first("SELECT SLEEP(0.3), @@port")
            .await
            .unwrap();
        row.unwrap().1
    });
    let set = tokio::spawn(async move {
        let error = setting.query_drop("SET @a = SLEEP(0.3)").await;
        (error.map_err(code), who(&mut setting).await)
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    a.crash().await.unwrap();
    assert_eq!(
        timeout(LONG, sleep).await.unwrap().unwrap(),
        b.addr().port()
    );
    let (outcome, next) = timeout(LONG, set).await.unwrap().unwrap();
    assert_eq!(outcome, Err(2013));
    assert_eq!(next.unwrap().1, b.identity());
    assert_eq!(code(who(&mut in_transaction).await.unwrap_err()), 2013);
    assert_eq!(who(&mut in_transaction).await.unwrap().1, b.identity());
    proxy.shutdown().await;
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn l7_leaves_a_hung_backend_when_its_check_says_so() {
    let (a, b) = (backend("a").await, backend("b").await);
    let proxy = l7(&[&a, &b], Duration::from_millis(30)).await;
    let mut conn = connect(proxy.addr()).await;
    assert_eq!(who(&mut conn).await.unwrap().1, a.identity());
    let clock = clock();
    let asked_ns = clock.raw_ns();
    a.hang().await.unwrap();
    assert_eq!(who(&mut conn).await.unwrap().1, b.identity());
    assert!(
        clock.raw_ns() - asked_ns >= 200_000_000,
        "not before its timeout"
    );
    assert!(!proxy.view()[0].up);
    proxy.shutdown().await;
    a.shutdown().await;
    b.shutdown().await;
}
