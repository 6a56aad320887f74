//! Probes against a real MariaDB, started here in a temporary folder. Skipped,
//! with a message, where it is not installed.

#![expect(clippy::print_stderr, reason = "says what is skipped and why")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gapscope_agent::config::{Secret, Target, Writes};
use gapscope_agent::probe::canary;
use gapscope_agent::probe::identity::Form;
use gapscope_agent::probe::leash::Graveyard;
use gapscope_agent::probe::ledger::Ledger;
use gapscope_agent::probe::mysql::{Client, ClientSpec, Endpoint};
use gapscope_agent::schedule::Slot;
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::ids::{Incarnation, RunId};
use gapscope_proto::plan::Timeouts;
use gapscope_proto::sample::{Canary, Cause, Outcome, Phase, Sample, Style};
use tokio_util::sync::CancellationToken;

struct MariaDb {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

fn program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/bin".into()]);
    folders
        .flat_map(|folder| names.iter().map(move |name| folder.join(name)))
        .find(|candidate| candidate.is_file())
}

fn set_owner(path: &Path) {
    // A server that root starts runs as another user, who has to get at it.
    if rustix::process::geteuid().is_root() {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("chmod");
    }
}

impl MariaDb {
    /// None where it is not installed.
    async fn start() -> Option<Self> {
        let (Some(server), Some(install)) = (
            program(&["mariadbd", "mysqld"]),
            program(&["mariadb-install-db", "mysql_install_db"]),
        ) else {
            eprintln!("skipped: mariadbd and mariadb-install-db are not installed");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        std::fs::create_dir(&data).expect("a folder");
        set_owner(folder.path());
        set_owner(&data);
        // A server that starts deletes every `#sql*` it finds in its temporary
        // folder, those of another server that shares the folder too.
        let temporary = folder.path().join("tmp");
        std::fs::create_dir(&temporary).expect("a folder");
        set_owner(&temporary);
        let as_root = rustix::process::geteuid().is_root();
        let user: &[&str] = if as_root { &["--user=mysql"] } else { &[] };
        let installed = Command::new(install)
            .arg("--no-defaults")
            .args(user)
            .arg(format!("--datadir={}", data.display()))
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
            .env("TMPDIR", &temporary)
            .stdout(Stdio::null())
            .status()
            .expect("mariadb-install-db runs");
        assert!(installed.success(), "mariadb-install-db failed");
        let init = folder.path().join("init.sql");
        std::fs::write(
            &init,
            "CREATE USER probe@'127.0.0.1' IDENTIFIED BY 'hunter2';\n\
             CREATE USER probe@localhost IDENTIFIED BY 'hunter2';\n\
             CREATE DATABASE IF NOT EXISTS gapscope;\n\
             GRANT ALL PRIVILEGES ON gapscope.* TO probe@'127.0.0.1';\n\
             GRANT ALL PRIVILEGES ON gapscope.* TO probe@localhost;\n",
        )
        .expect("written");
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|l| l.local_addr())
            .expect("a port")
            .port();
        let child = Command::new(server)
            .arg("--no-defaults")
            .args(user)
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--tmpdir={}", temporary.display()))
            .arg(format!("--port={port}"))
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--socket={}", folder.path().join("s").display()))
            .arg(format!("--init-file={}", init.display()))
            .arg(format!("--log-error={}", data.join("log").display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("mariadbd starts");
        let db = Self {
            child,
            port,
            folder,
        };
        db.wait_for_login().await;
        Some(db)
    }

    async fn wait_for_login(&self) {
        let wait = async {
            let mut client = self.client(Style::New, None);
            while probe(&mut client).await.outcome != Outcome::Ok {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(60), wait)
            .await
            .is_err()
        {
            let log = std::fs::read_to_string(self.folder.path().join("data/log"));
            panic!("mariadbd does not answer: {log:?}");
        }
    }

    fn client(&self, style: Style, canary: Option<Canary>) -> Client {
        self.client_with(style, canary, false, None)
    }

    fn client_with(
        &self,
        style: Style,
        canary: Option<Canary>,
        pool: bool,
        schema: Option<&str>,
    ) -> Client {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let endpoint = Arc::new(Endpoint::new(
            Target {
                name: "db".parse().expect("a name"),
                host: "localhost".into(),
                port: self.port,
                user: "probe".into(),
                password: Secret::new("hunter2"),
                database: None,
                identity: None,
                max_connects_per_second: 1_000,
                reach: gapscope_agent::reach::Reach::default(),
            },
            &*clock,
        ));
        let timeout = Some(2_000_000_000);
        Client::new(
            ClientSpec {
                identity: endpoint.identity.clone(),
                endpoint,
                style,
                number: 0,
                canary,
                canary_value: "unique".into(),
                pool,
                ledger: schema.map(ledger),
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
}

fn ledger(schema: &str) -> Arc<Ledger> {
    Arc::new(Ledger::new(
        &Writes::to(schema),
        RunId::generate(),
        &"test".parse().expect("a name"),
        Incarnation::generate(),
    ))
}

impl MariaDb {
    async fn connection(&self) -> mysql_async::Conn {
        let opts = mysql_async::OptsBuilder::default()
            .ip_or_hostname("127.0.0.1")
            .tcp_port(self.port)
            .user(Some("probe"))
            .pass(Some("hunter2"))
            .prefer_socket(false);
        mysql_async::Conn::new(opts).await.expect("connects")
    }

    /// Ends a client's connection, as an administrator would.
    async fn end_connection(&self, sample: &Sample) {
        use mysql_async::prelude::Queryable;
        let id = sample.connection_id.expect("an id");
        let mut conn = self.connection().await;
        conn.query_drop(format!("KILL {id}")).await.expect("killed");
        let gone = format!("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = {id}");
        while conn.query_first(&gone).await.expect("answers") != Some(0_u8) {
            tokio::task::yield_now().await;
        }
        conn.disconnect().await.expect("closed");
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn probe(client: &mut Client) -> Sample {
    let slot = Slot {
        number: 0,
        due_ns: 0,
    };
    client.probe(slot, &CancellationToken::new()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_is_probed_over_tcp_and_killed() {
    let Some(mut db) = MariaDb::start().await else {
        return;
    };
    let mut reused = db.client(Style::Reused, None);
    let good = probe(&mut reused).await;
    assert_eq!(good.outcome, Outcome::Ok, "{good:?}");
    // Not the backend's Unix socket, to which the driver would switch by itself.
    let peer = good.peer.as_deref().expect("a peer");
    assert_eq!(peer, format!("127.0.0.1:{}", db.port));
    let processes = connections_over_tcp(&db).await;
    assert!(
        processes.iter().all(|host| host.contains(':')),
        "{processes:?}"
    );
    let backend = good.backend.as_deref().expect("an identity");
    assert!(backend.ends_with(&format!(":{}", db.port)), "{backend}");
    assert!(backend.len() > 6, "{backend}");
    assert!(
        good.server_version
            .as_deref()
            .is_some_and(|v| v.contains("MariaDB"))
    );
    assert_eq!(good.connection_id, good.handshake_id.map(u64::from));
    assert!(good.resolve_ns.is_some() && good.connect_ns.is_some() && good.query_ns.is_some());

    let mut canary = db.client(Style::Reused, Some(Canary::UserVariable));
    for _ in 0..2 {
        let sample = probe(&mut canary).await;
        assert_eq!(sample.outcome, Outcome::Ok, "{sample:?}");
        assert_eq!(sample.canary, Some(Canary::UserVariable));
    }

    db.child.kill().expect("killed");
    db.child.wait().expect("gone");
    let lost = probe(&mut reused).await;
    assert_eq!(lost.outcome, Outcome::ConnectionLost, "{lost:?}");
    assert!(
        matches!(lost.cause, Some(Cause::Closed | Cause::Reset)),
        "{lost:?}"
    );
    assert_eq!((lost.phase, lost.connection), (Phase::Query, Some(1)));
    let refused = probe(&mut reused).await;
    assert_eq!(
        (refused.outcome, refused.cause, refused.phase),
        (Outcome::ConnectFailed, Some(Cause::Refused), Phase::Connect)
    );
    assert!(!refused.may_have_executed);
}

/// The peers the server itself sees for the probing user.
async fn connections_over_tcp(db: &MariaDb) -> Vec<String> {
    use mysql_async::prelude::Queryable;
    let opts = mysql_async::OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(db.port)
        .user(Some("probe"))
        .pass(Some("hunter2"))
        .prefer_socket(false);
    let mut conn = mysql_async::Conn::new(opts).await.expect("connects");
    let hosts: Vec<String> = conn
        .query("SELECT HOST FROM information_schema.PROCESSLIST WHERE USER = 'probe'")
        .await
        .expect("answers");
    conn.disconnect().await.expect("closed");
    assert!(hosts.len() >= 2, "{hosts:?}");
    hosts
}

#[tokio::test(flavor = "multi_thread")]
async fn the_identity_holds_no_at_sign_and_one_statement_does_it_all() {
    let Some(db) = MariaDb::start().await else {
        return;
    };
    let mut target_client = db.client(Style::Reused, None);
    probe(&mut target_client).await;
    let cell = gapscope_agent::probe::identity::IdentityCell::default();
    let opts = mysql_async::OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(db.port)
        .user(Some("probe"))
        .pass(Some("hunter2"))
        .prefer_socket(false);
    let mut conn = mysql_async::Conn::new(opts).await.expect("connects");
    let identity = cell.settle(&mut conn).await.expect("one works");
    assert_eq!(identity.form, Form::InformationSchema);
    assert!(!identity.bare.contains('@'));
    // What the server itself counted, so that a hidden statement shows.
    let mut counted = async |client: &mut Client, counter: &str| {
        use mysql_async::prelude::Queryable;
        let sql = format!("SHOW GLOBAL STATUS LIKE '{counter}'");
        let before: Option<(String, u64)> = conn.query_first(&sql).await.expect("answers");
        for _ in 0..10 {
            let sample = probe(client).await;
            assert_eq!(sample.outcome, Outcome::Ok, "{sample:?}");
        }
        let after: Option<(String, u64)> = conn.query_first(&sql).await.expect("answers");
        after.expect("a row").1 - before.expect("a row").1
    };
    // One more for the SHOW itself.
    assert_eq!(counted(&mut target_client, "Questions").await, 11);
    // The driver's hidden statement at connect would be a SELECT.
    let mut new = db.client(Style::New, None);
    probe(&mut new).await;
    assert_eq!(counted(&mut new, "Com_select").await, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_style_and_canary_works_and_stays_one_round_trip() {
    use mysql_async::prelude::Queryable;
    let Some(db) = MariaDb::start().await else {
        return;
    };
    let mut admin = db.connection().await;
    let counter = "SHOW GLOBAL STATUS LIKE 'Questions'";
    let mut clients = vec![
        ("prepared".to_owned(), 1, db.client(Style::Prepared, None)),
        (
            "transaction".to_owned(),
            4,
            db.client_with(Style::Transaction, None, false, Some("gapscope")),
        ),
        // A ping is not counted among the questions.
        (
            "pool".to_owned(),
            1,
            db.client_with(Style::Reused, None, true, None),
        ),
    ];
    for kind in Canary::ALL {
        if canary::impossible(*kind).is_none() {
            let client = db.client_with(Style::Reused, Some(*kind), false, Some("gapscope"));
            clients.push((kind.to_string(), 1, client));
        }
    }
    assert_eq!(clients.len(), 3 + 9);
    for (name, statements, client) in &mut clients {
        let first = probe(client).await;
        assert_eq!(first.outcome, Outcome::Ok, "{name}: {first:?}");
        let before: (String, u64) = admin
            .query_first(counter)
            .await
            .expect("ok")
            .expect("a row");
        for _ in 0..5 {
            let sample = probe(client).await;
            assert_eq!(sample.outcome, Outcome::Ok, "{name}: {sample:?}");
            assert_eq!(sample.backend, first.backend, "{name}");
            assert_eq!(sample.connection, Some(1), "{name}");
        }
        let after: (String, u64) = admin
            .query_first(counter)
            .await
            .expect("ok")
            .expect("a row");
        let asked = after.1 - before.1 - 1;
        assert_eq!(asked, 5 * *statements, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_that_failed_is_not_committed_by_the_next() {
    use mysql_async::prelude::Queryable;
    let Some(db) = MariaDb::start().await else {
        return;
    };
    let mut client = db.client_with(Style::Transaction, None, false, Some("gapscope"));
    let good = probe(&mut client).await;
    assert_eq!(
        (good.outcome, good.phase),
        (Outcome::Ok, Phase::Commit),
        "{good:?}"
    );
    assert!(good.backend.is_some() && !good.may_have_executed);
    // Its row is there, in a table that was made for it.
    let mut admin = db.connection().await;
    let table: String = admin
        .query_first(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'gapscope'",
        )
        .await
        .expect("answers")
        .expect("a table");
    let count = format!("SELECT COUNT(*) FROM gapscope.{table}");
    assert_eq!(admin.query_first(&count).await.expect("ok"), Some(1_u8));
    // Without its table an INSERT fails; the transaction is rolled back.
    admin
        .query_drop(format!("RENAME TABLE gapscope.{table} TO gapscope.hidden"))
        .await
        .expect("renamed");
    let bad = probe(&mut client).await;
    assert_eq!(
        (
            bad.outcome,
            bad.phase,
            bad.error_code,
            bad.may_have_executed
        ),
        (Outcome::ServerError, Phase::Write, Some(1146), false),
        "{bad:?}"
    );
    admin
        .query_drop(format!("RENAME TABLE gapscope.hidden TO gapscope.{table}"))
        .await
        .expect("renamed");
    let good = probe(&mut client).await;
    assert_eq!(
        (good.outcome, good.connection),
        (Outcome::Ok, Some(1)),
        "{good:?}"
    );
    assert_eq!(admin.query_first(&count).await.expect("ok"), Some(2_u8));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_replaces_what_its_ping_finds_dead_and_others_fail() {
    let Some(db) = MariaDb::start().await else {
        return;
    };
    let mut pool = db.client_with(Style::Reused, None, true, None);
    let mut reused = db.client(Style::Reused, None);
    let mut prepared = db.client(Style::Prepared, None);
    for client in [&mut pool, &mut reused, &mut prepared] {
        let good = probe(client).await;
        assert_eq!((good.outcome, good.cause), (Outcome::Ok, None), "{good:?}");
        db.end_connection(&good).await;
    }
    let replaced = probe(&mut pool).await;
    assert_eq!(
        (replaced.outcome, replaced.connection),
        (Outcome::Ok, Some(2)),
        "{replaced:?}"
    );
    assert!(
        matches!(
            replaced.cause,
            Some(Cause::Closed | Cause::Reset | Cause::Killed)
        ),
        "{replaced:?}"
    );
    for client in [&mut reused, &mut prepared] {
        let bad = probe(client).await;
        assert!(
            matches!(bad.outcome, Outcome::ConnectionLost | Outcome::ServerError),
            "{bad:?}"
        );
        let again = probe(client).await;
        assert_eq!((again.outcome, again.connection), (Outcome::Ok, Some(2)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_supported_is_left_out_at_the_start() {
    let Some(db) = MariaDb::start().await else {
        return;
    };
    for mut client in [
        db.client_with(
            Style::Reused,
            Some(Canary::TemporaryTable),
            false,
            Some("nowhere"),
        ),
        db.client_with(Style::Transaction, None, false, Some("nowhere")),
    ] {
        for _ in 0..2 {
            let sample = probe(&mut client).await;
            assert_eq!(
                (sample.outcome, sample.cause, sample.error_code.is_some()),
                (Outcome::AgentError, Some(Cause::Unsupported), true),
                "{sample:?}"
            );
        }
        let processes = {
            use mysql_async::prelude::Queryable;
            let mut admin = db.connection().await;
            let count = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'probe'";
            while admin.query_first(count).await.expect("answers") != Some(1_u8) {
                tokio::task::yield_now().await;
            }
            admin
        };
        // Nothing is held for it any more.
        processes.disconnect().await.expect("closed");
    }
}
