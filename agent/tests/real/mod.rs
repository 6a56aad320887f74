//! Real MariaDB and HAProxy for the agent's tests: each in a temporary folder and
//! on a free loopback port of its own, ended with the test. None where they are
//! not installed, which is said.
#![allow(dead_code, reason = "each test uses a part")]
#![expect(clippy::print_stderr, reason = "says what is skipped and why")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gapscope_agent::config::{Secret, Target};
use gapscope_agent::probe::leash::Graveyard;
use gapscope_agent::probe::mysql::{Client, ClientSpec, Endpoint};
use gapscope_agent::reach::Reach;
use gapscope_agent::schedule::Slot;
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::plan::Timeouts;
use gapscope_proto::sample::{Outcome, Sample, Style};
use mysql_async::prelude::Queryable;
use rustix::process::{Pid, Signal};
use tokio_util::sync::CancellationToken;

pub(crate) const PASSWORD: &str = "hunter2";

pub(crate) fn program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/bin".into()]);
    folders
        .flat_map(|folder| names.iter().map(move |name| folder.join(name)))
        .find(|candidate| candidate.is_file())
}

pub(crate) fn skip(why: &str) {
    eprintln!("skipped: {why}");
}

/// A server that root starts runs as another user, who has to get at it.
pub(crate) fn open_to_all(path: &Path) {
    if rustix::process::geteuid().is_root() {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("chmod");
    }
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|l| l.local_addr())
        .expect("a port")
        .port()
}

/// A child that is ended, and waited for, with the test.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    /// Waits until it is gone.
    pub(crate) fn gone(&mut self) {
        self.0.wait().expect("waited for");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A stopped process takes SIGKILL too.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) struct MariaDb {
    pub(crate) process: Running,
    pub(crate) port: u16,
    pub(crate) folder: tempfile::TempDir,
}

const ACCOUNTS: &str = "\
CREATE USER probe@'127.0.0.1' IDENTIFIED BY 'hunter2';
CREATE USER probe@localhost IDENTIFIED BY 'hunter2';
CREATE USER admin@'127.0.0.1' IDENTIFIED BY 'hunter2';
GRANT ALL ON *.* TO admin@'127.0.0.1';
";

impl MariaDb {
    /// With these options, and this SQL at the start; `before` may put files into
    /// its folder.
    pub(crate) async fn start(
        options: &[&str],
        sql: &str,
        before: impl FnOnce(&Path) -> Vec<String>,
    ) -> Option<Self> {
        let (Some(server), Some(install)) = (
            program(&["mariadbd", "mysqld"]),
            program(&["mariadb-install-db", "mysql_install_db"]),
        ) else {
            skip("mariadbd and mariadb-install-db are not installed");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        open_to_all(folder.path());
        let [data, temporary] = ["data", "tmp"].map(|name| {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).expect("a folder");
            open_to_all(&path);
            path
        });
        let as_root = rustix::process::geteuid().is_root();
        let user: &[&str] = if as_root { &["--user=mysql"] } else { &[] };
        let installed = Command::new(install)
            .arg("--no-defaults")
            .args(user)
            .arg(format!("--datadir={}", data.display()))
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
            .env("TMPDIR", &temporary)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("mariadb-install-db runs");
        assert!(installed.success(), "mariadb-install-db failed");
        let more = before(folder.path());
        let init = folder.path().join("init.sql");
        std::fs::write(&init, format!("{ACCOUNTS}{sql}")).expect("written");
        let port = free_port();
        let child = Command::new(server)
            .arg("--no-defaults")
            .args(user)
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--tmpdir={}", temporary.display()))
            .arg(format!("--port={port}"))
            .args(["--bind-address=0.0.0.0", "--skip-name-resolve"])
            .arg(format!("--socket={}", folder.path().join("s").display()))
            .arg(format!("--init-file={}", init.display()))
            .arg(format!("--log-error={}", data.join("log").display()))
            .args(options)
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("mariadbd starts");
        let db = Self {
            process: Running(child),
            port,
            folder,
        };
        // By socket, which no TLS, host or connection limit concerns.
        let wait = async {
            while db.over_socket("SELECT 1").await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(90), wait)
            .await
            .is_err()
        {
            let log = std::fs::read_to_string(data.join("log"));
            panic!("mariadbd does not answer: {log:?}");
        }
        Some(db)
    }

    pub(crate) async fn plain() -> Option<Self> {
        Self::start(&[], "", |_| Vec::new()).await
    }

    /// As root over the server's own socket.
    pub(crate) async fn over_socket(&self, sql: &str) -> Result<(), mysql_async::Error> {
        let opts = mysql_async::OptsBuilder::default()
            .socket(Some(self.folder.path().join("s").display().to_string()))
            .user(Some("root"));
        let mut conn = mysql_async::Conn::new(opts).await?;
        conn.query_drop(sql).await?;
        conn.disconnect().await
    }

    /// Connections of this user that sleep in a statement.
    pub(crate) async fn asleep(&self, user: &str) -> Vec<u64> {
        let opts = mysql_async::OptsBuilder::default()
            .socket(Some(self.folder.path().join("s").display().to_string()))
            .user(Some("root"));
        let mut conn = mysql_async::Conn::new(opts).await.expect("connects");
        let ids = conn
            .query(format!(
                "SELECT ID FROM information_schema.PROCESSLIST \
                 WHERE USER = '{user}' AND INFO LIKE '%SLEEP(%'"
            ))
            .await
            .expect("answers");
        conn.disconnect().await.expect("closed");
        ids
    }

    pub(crate) async fn admin(&self, sql: &str) {
        self.over_socket(sql).await.expect(sql);
    }

    pub(crate) fn target(&self) -> Target {
        target("127.0.0.1", self.port)
    }
}

pub(crate) fn target(host: &str, port: u16) -> Target {
    Target {
        name: "db".parse().expect("a name"),
        host: host.into(),
        port,
        user: "probe".into(),
        password: Secret::new(PASSWORD),
        database: None,
        identity: None,
        max_connects_per_second: 1_000,
        reach: Reach::default(),
    }
}

pub(crate) fn client(target: Target, style: Style, timeout_ms: u64) -> Client {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    client_of(&Arc::new(Endpoint::new(target, &*clock)), style, timeout_ms)
}

pub(crate) fn client_of(endpoint: &Arc<Endpoint>, style: Style, timeout_ms: u64) -> Client {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let timeout = Some(timeout_ms * 1_000_000);
    Client::new(
        ClientSpec {
            identity: endpoint.identity.clone(),
            endpoint: endpoint.clone(),
            style,
            number: 0,
            canary: None,
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

pub(crate) async fn probe(client: &mut Client) -> Sample {
    let slot = Slot {
        number: 0,
        due_ns: 0,
    };
    client.probe(slot, &CancellationToken::new()).await
}

/// Probes until it is as wanted; the target's state may need a moment to change.
pub(crate) async fn probe_until(
    what: &str,
    client: &mut Client,
    wanted: impl Fn(&Sample) -> bool,
) -> Sample {
    let mut last = None;
    for _ in 0..1_500 {
        let sample = probe(client).await;
        if wanted(&sample) {
            return sample;
        }
        last = Some(sample);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what} has not come about: {last:#?}");
}

pub(crate) fn is_ok(sample: &Sample) -> bool {
    sample.outcome == Outcome::Ok
}

/// HAProxy in front of these ports, its first server preferred, with an admin
/// socket.
pub(crate) struct HaProxy {
    pub(crate) process: Running,
    pub(crate) port: u16,
    folder: tempfile::TempDir,
}

impl HaProxy {
    pub(crate) fn start(servers: &[u16], options: &str) -> Option<Self> {
        Self::with(servers, options, " backup")
    }

    /// Each connection to the next server.
    pub(crate) fn in_turn(servers: &[u16]) -> Option<Self> {
        Self::with(servers, "", "")
    }

    fn with(servers: &[u16], options: &str, others: &str) -> Option<Self> {
        let Some(haproxy) = program(&["haproxy"]) else {
            skip("haproxy is not installed");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let mut text = format!(
            "global\n  stats socket {}/admin level admin\ndefaults\n  mode tcp\n  \
             timeout connect 1s\n  timeout client 60s\n  timeout server 60s\n  retries 0\n\
             listen db\n  bind 127.0.0.1:{port}\n",
            folder.path().display()
        );
        for (number, server) in (1..).zip(servers) {
            text.push_str(&format!(
                "  server s{number} 127.0.0.1:{server} check inter 200ms fall 2 rise 1 {options}{}\n",
                if number > 1 { others } else { "" }
            ));
        }
        let file = folder.path().join("haproxy.cfg");
        std::fs::write(&file, text).expect("written");
        let child = Command::new(haproxy)
            .arg("-db")
            .arg("-f")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("haproxy starts");
        Some(Self {
            process: Running(child),
            port,
            folder,
        })
    }

    /// Says something to its admin socket.
    pub(crate) fn admin(&self, command: &str) -> String {
        use std::io::{Read, Write};
        let mut socket = std::os::unix::net::UnixStream::connect(self.folder.path().join("admin"))
            .expect("an admin socket");
        writeln!(socket, "{command}").expect("said");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("heard");
        answer
    }

    pub(crate) fn target(&self) -> Target {
        target("127.0.0.1", self.port)
    }
}
