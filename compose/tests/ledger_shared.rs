//! The ledger of backends that share their data, by real parts: two MariaDB servers
//! with asynchronous replication. What the second one has not been sent, it does not
//! have, however well it was acknowledged; and what it has been sent, it has.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::Running;
use gapscope_aggregator::analyse::ledger::Class;
use gapscope_aggregator::analyse::run::{Analysis, analyse};
use gapscope_aggregator::commands::report::as_text;
use gapscope_aggregator::store::reader::RunFolder;
use gapscope_lab::runtime::process::find;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder};

/// A MariaDB that writes a log for others.
struct Db {
    port: u16,
    socket: String,
    _process: Running,
}

fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("chmod");
}

impl Db {
    async fn start(folder: &Path, id: u8, server: &Path, install: &Path) -> Self {
        let data = folder.join(format!("db-{id}"));
        std::fs::create_dir(&data).expect("a folder");
        open_to_all(&data);
        let as_root = rustix::process::geteuid().is_root();
        let user: &[&str] = if as_root { &["--user=mysql"] } else { &[] };
        let installed = Command::new(install)
            .arg("--no-defaults")
            .args(user)
            .arg(format!("--datadir={}", data.display()))
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("mariadb-install-db runs");
        assert!(installed.success(), "mariadb-install-db failed");
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a port")
            .port();
        let socket = data.join("s").display().to_string();
        let process = Command::new(server)
            .arg("--no-defaults")
            .args(user)
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--port={port}"))
            .arg(format!("--socket={socket}"))
            .args(["--bind-address=127.0.0.1", "--log-bin=log"])
            .arg(format!("--server-id={id}"))
            .arg(format!("--log-error={}", data.join("error").display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("mariadbd starts");
        let db = Self {
            port,
            socket,
            _process: Running(process),
        };
        for _ in 0..3_000 {
            if let Ok(conn) = db.root().await {
                let _ = conn.disconnect().await;
                return db;
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        panic!("mariadbd does not answer");
    }

    async fn root(&self) -> Result<Conn, mysql_async::Error> {
        let opts = OptsBuilder::default()
            .socket(Some(self.socket.clone()))
            .user(Some("root"));
        Conn::new(opts).await
    }

    async fn say(&self, sql: &str) {
        let mut conn = self.root().await.expect("connects");
        for statement in sql.split(';').filter(|s| !s.trim().is_empty()) {
            conn.query_drop(statement).await.expect(statement);
        }
        let _ = conn.disconnect().await;
    }

    /// Rows of all ledgers' tables.
    async fn rows(&self, table: &str) -> u64 {
        let mut conn = self.root().await.expect("connects");
        let count: Option<u64> = conn
            .query_first(format!("SELECT COUNT(*) FROM gapscope.{table}"))
            .await
            .unwrap_or(None);
        let _ = conn.disconnect().await;
        count.unwrap_or(0)
    }
}

#[expect(clippy::print_stdout, reason = "a test says that it was skipped")]
fn programs() -> Option<(std::path::PathBuf, std::path::PathBuf)> {
    let none = find::Named::new();
    let found = |names: &[&str]| find::find(&none, names, "").ok();
    let both =
        found(&["mariadbd", "mysqld"]).zip(found(&["mariadb-install-db", "mysql_install_db"]));
    if both.is_none() {
        println!("skipped: mariadbd and mariadb-install-db are not installed");
    }
    both
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    for _ in 0..3_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what} did not come");
}

/// Rows of a class, as read from one of the servers.
fn count(analysis: &Analysis, source: &str, class: Class) -> u64 {
    let places = analysis.ledger.places.iter();
    let here = places.filter(|place| place.source == source);
    here.flat_map(|place| &place.found)
        .filter(|found| found.class == class)
        .count() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_replicated_is_lost_there_and_only_there() {
    let Some((server, install)) = programs() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    open_to_all(folder.path());
    let (first, second) = (
        Db::start(folder.path(), 1, &server, &install).await,
        Db::start(folder.path(), 2, &server, &install).await,
    );
    // Of the run's own table there is one, made beforehand, so that it can be
    // counted afterwards.
    first
        .say(
            "CREATE USER probe@'127.0.0.1' IDENTIFIED BY 'secret'; \
             CREATE USER copy@'127.0.0.1' IDENTIFIED BY 'secret'; \
             GRANT REPLICATION SLAVE ON *.* TO copy@'127.0.0.1'; \
             CREATE DATABASE gapscope; GRANT ALL ON gapscope.* TO probe@'127.0.0.1'; \
             CREATE TABLE gapscope.mine (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, \
             run CHAR(36) NOT NULL, incarnation CHAR(16) NOT NULL, target VARCHAR(64) NOT NULL, \
             client SMALLINT UNSIGNED NOT NULL, slot BIGINT UNSIGNED NOT NULL, KEY (run))",
        )
        .await;
    second
        .say(&format!(
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={}, MASTER_USER='copy', \
             MASTER_PASSWORD='secret', MASTER_USE_GTID=slave_pos; START SLAVE",
            first.port
        ))
        .await;
    let data = folder.path().join("runs");
    std::fs::create_dir(&data).expect("a folder");
    let secret = folder.path().join("password");
    std::fs::write(&secret, "secret").expect("written");
    let target = |name: &str, db: &Db| {
        format!(
            "[[target]]\nname = \"{name}\"\naddress = \"127.0.0.1:{}\"\nuser = \"probe\"\n\
             password_file = \"{}\"\n",
            db.port,
            secret.display()
        )
    };
    let config = format!(
        "{}{}[writes]\nschema = \"gapscope\"\ntable = \"mine\"\nshared = true\n\
         ledger_from = [\"first\", \"second\"]\n",
        target("first", &first),
        target("second", &second),
    );
    let aggregator = common::Aggregator::start(&data);
    let _agent = common::agent(&aggregator, "writer", &config);
    common::wait_for_agent(&aggregator, "writer");
    let runs = |name: &str| {
        let flags = "--reused 0 --patient 0 --new 0 --transaction 2 --transaction-interval 20ms \
                     --duration 10m";
        let mut all = vec!["start", "--target", name];
        all.extend(flags.split_whitespace());
        aggregator.command(&all)
    };
    let ended = |run: &str| {
        aggregator.command(&["stop", run]);
        let opened = RunFolder::open(&data.join(run)).expect("the run is readable");
        let analysis = analyse(&opened).expect("it is analysed");
        let text = as_text(&analysis, Some(120));
        (analysis, text)
    };

    // Replicated: whatever was acknowledged is on both.
    let run = runs("first");
    until("rows on the second", async || {
        second.rows("mine").await >= 100
    })
    .await;
    let (analysis, text) = ended(&run);
    for source in ["first", "second"] {
        assert!(
            count(&analysis, source, Class::AcknowledgedThere) >= 100,
            "{text}"
        );
        for class in [
            Class::AcknowledgedLost,
            Class::ThereTwice,
            Class::RefusedThere,
        ] {
            assert_eq!(count(&analysis, source, class), 0, "{source}: {text}");
        }
    }

    // Replication stands still, and nobody who writes is told.
    let run = runs("first");
    let before = first.rows("mine").await;
    until("more rows", async || {
        second.rows("mine").await >= before + 50
    })
    .await;
    second.say("STOP SLAVE").await;
    let there = second.rows("mine").await;
    until("yet more rows", async || {
        first.rows("mine").await >= there + 50
    })
    .await;
    let (analysis, text) = ended(&run);
    let missing = first.rows("mine").await - second.rows("mine").await;
    assert!(missing >= 50, "{missing}");
    assert_eq!(
        count(&analysis, "first", Class::AcknowledgedLost),
        0,
        "{text}"
    );
    // A transaction that the end cut is there or not, and was never acknowledged.
    let unknown = count(&analysis, "first", Class::UnknownThere);
    let lost = count(&analysis, "second", Class::AcknowledgedLost);
    assert_eq!(lost + unknown, missing, "{text}");
    assert!(unknown <= 2, "{text}");
    assert!(text.contains("and LOST"), "{text}");
}
