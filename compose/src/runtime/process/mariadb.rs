//! A real MariaDB server with an empty data folder of its own.
//!
//! It never reads the host's configuration, keeps no name or host caches (so
//! that bare connections of health checks and witnesses block nobody), and has a
//! probe user with a password of this lab. Its data is worth nothing: at the end
//! it is killed, not shut down.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use gapscope_proto::fault::Span;
use rustix::process::Signal;
use tokio::sync::mpsc;

use super::{Host, PORT_ATTEMPTS, free_port, version_line};
use crate::children::{Child, frozen};
use crate::error::{Problem, Result};
use crate::folder::{LabFolder, write_private};
use crate::login::{say, until_it_answers};
use crate::runtime::{Applied, Backend};
use crate::scenario::Action;
use crate::timeline::Due;
use crate::witness::{HeldConnection, Login, Seen, watch_listener, watch_process};

/// The user of HAProxy's login checks: without a password or any right, since
/// such a check can prove neither.
pub const CHECK_USER: &str = "gapscope_check";

const PACKAGES: &str = "apt install mariadb-server, dnf install mariadb-server, apk add mariadb \
                        mariadb-server-utils, brew install mariadb";
const START_WITHIN_NS: i64 = 60_000_000_000;

/// The server's programs, found once for all servers.
#[derive(Debug, Clone)]
pub struct Programs {
    server: PathBuf,
    install: PathBuf,
    version: String,
}

impl Programs {
    /// Finds them.
    pub fn find(host: &Host) -> Result<Self> {
        let server = super::find::find(&host.named, &["mariadbd", "mysqld"], PACKAGES)?;
        let install = super::find::find(
            &host.named,
            &["mariadb-install-db", "mysql_install_db"],
            PACKAGES,
        )?;
        let version = version_line(&server, "--version");
        if !version.contains("MariaDB") {
            return Err(Problem::new(format!(
                "{} is not MariaDB: it says `{version}`",
                server.display()
            ))
            .hint("name MariaDB's server with --program mariadbd=PATH"));
        }
        let version = version
            .split_once("Ver ")
            .map_or(version.as_str(), |(_, rest)| rest)
            .split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned();
        Ok(Self {
            server,
            install,
            version,
        })
    }
}

/// A running server.
pub struct Mariadb {
    name: String,
    host: Host,
    programs: Programs,
    login: Login,
    /// Who may end others' connections.
    admin: Login,
    server_id: u32,
    /// Data, sockets, log.
    place: PathBuf,
    port: u16,
    child: Child,
    held: Option<HeldConnection>,
}

/// Makes a data folder; the servers' own are copies of it, since making one takes
/// seconds.
pub async fn install(host: &Host, programs: &Programs, folder: &LabFolder) -> Result<PathBuf> {
    let place = folder.private("mariadb-template", host.user.as_ref())?;
    let data = place.join("data");
    let log = folder.path().join("mariadb-install.log");
    let mut args = vec![
        "--no-defaults".to_owned(),
        format!("--datadir={}", data.display()),
        "--skip-test-db".to_owned(),
        "--skip-name-resolve".to_owned(),
        "--innodb-log-file-size=8M".to_owned(),
        "--innodb-buffer-pool-size=16M".to_owned(),
    ];
    if let Some(base) = base_folder(programs) {
        args.push(format!("--basedir={}", base.display()));
    }
    let mut command = host.command(&programs.install, args);
    command.current_dir(&place).env("TMPDIR", &place);
    let failed = |why: String| {
        Problem::new(format!(
            "{} could not make a data folder for MariaDB: {why}",
            programs.install.display()
        ))
        .hint(format!(
            "is {} readable and writable for user `{}`?",
            folder.path().display(),
            host.user.as_ref().map_or("you", |user| user.name.as_str())
        ))
    };
    let child = Child::start("mariadb-install-db", command, &log)
        .map_err(|error| failed(error.to_string()))?;
    if !child.wait(Duration::from_secs(120)).await {
        return Err(failed("it did not end within 120 s".to_owned()));
    }
    match child.ended() {
        Ok(Some(status)) if status.success() => Ok(data),
        Ok(status) => Err(failed(format!(
            "it ended with {}:\n{}",
            status.map_or_else(|| "no status".to_owned(), |status| status.to_string()),
            child.log_tail(10)
        ))),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// A server named by path may be unpacked anywhere; what it needs is beside it.
fn base_folder(programs: &Programs) -> Option<PathBuf> {
    let base = programs.server.parent()?.parent()?;
    (base != Path::new("/usr") && base.join("share").is_dir()).then(|| base.to_owned())
}

impl Mariadb {
    /// Starts a server on a copy of the data folder `template` and waits until it
    /// can be logged in to.
    pub async fn start(
        host: &Host,
        programs: &Programs,
        folder: &LabFolder,
        template: &Path,
        name: &str,
        server_id: u32,
        login: &Login,
    ) -> Result<Self> {
        let place = folder.private(&format!("backend-{server_id}"), host.user.as_ref())?;
        copy(host, folder, template, &place.join("data")).await?;
        let admin = Login {
            user: "gapscope_admin".to_owned(),
            password: format!("{:032x}", rand::random::<u128>()),
        };
        write_private(
            &place.join("init.sql"),
            &init_sql(login, &admin),
            host.user.as_ref(),
        )?;
        let mut last = None;
        for _ in 0..PORT_ATTEMPTS {
            let port = free_port().map_err(|error| {
                Problem::new(format!(
                    "no free loopback port for backend `{name}`: {error}"
                ))
            })?;
            let child = launch(host, programs, &place, name, server_id, port)?;
            let server = Self {
                name: name.to_owned(),
                host: host.clone(),
                programs: programs.clone(),
                login: login.clone(),
                admin: admin.clone(),
                server_id,
                place: place.clone(),
                port,
                child,
                held: None,
            };
            match server.until_ready().await {
                Ok(_) => return Ok(server),
                // Somebody else was quicker to take the port.
                Err(problem) if server.port_was_taken() => last = Some(problem),
                Err(problem) => return Err(problem),
            }
        }
        Err(last.unwrap_or_else(|| Problem::new(format!("cannot start backend `{name}`"))))
    }

    async fn until_ready(&self) -> Result<i64> {
        let clock = &self.host.clock;
        let alive = || match self.child.ended() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("it ended with {status}")),
            Err(error) => Err(error.to_string()),
        };
        until_it_answers(
            clock.as_ref(),
            self.address(),
            &self.login,
            clock.raw_ns() + START_WITHIN_NS,
            alive,
        )
        .await
        .map_err(|why| {
            super::with_log(
                format!(
                    "MariaDB for backend `{}` did not come up at {}: {why}",
                    self.name,
                    self.address()
                ),
                &self.child.log_tail(8),
                "mariadbd",
            )
        })
    }

    fn port_was_taken(&self) -> bool {
        let log = self.child.log_tail(30);
        log.contains("Address already in use") || log.contains("Bind on TCP/IP port")
    }

    /// What a fault that ends the process is watched by.
    fn watch_the_end(&mut self, asked_ns: i64, telling: &mpsc::UnboundedSender<Seen>) {
        let clock = &self.host.clock;
        tokio::spawn(watch_listener(
            Arc::clone(clock),
            self.address(),
            asked_ns,
            telling.clone(),
        ));
        tokio::spawn(watch_process(
            Arc::clone(clock),
            self.child.clone(),
            asked_ns,
            telling.clone(),
        ));
        if let Some(held) = self.held.take() {
            tokio::spawn(held.watch(Arc::clone(clock), asked_ns, telling.clone()));
        }
    }

    fn send(&self, signal: Signal, word: &str) -> Result<Span> {
        super::send(&self.host, &self.child, signal, word)
    }

    async fn carry_out(&mut self, due: &Due) -> Result<Applied> {
        let (telling, seen) = mpsc::unbounded_channel();
        let pid = self.child.pid();
        let applied = |asked, cleared, detail: String| Applied {
            asked,
            cleared,
            detail,
            seen,
        };
        match due.action {
            Action::Stop | Action::Kill => {
                let (signal, word) = if due.action == Action::Stop {
                    (Signal::TERM, "SIGTERM")
                } else {
                    (Signal::KILL, "SIGKILL")
                };
                let asked = self.send(signal, word)?;
                self.watch_the_end(asked.earliest_ns, &telling);
                if let Some(grace_ns) = due.grace_ns {
                    let child = self.child.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_nanos(grace_ns)).await;
                        if matches!(child.signal(Signal::KILL), Ok(true)) {
                            let _ = telling.send(Seen::Note(
                                "still there after the grace: SIGKILL".to_owned(),
                            ));
                        }
                    });
                }
                Ok(applied(asked, None, format!("{word} to process {pid}")))
            }
            Action::Hang => {
                let asked = self.send(Signal::STOP, "SIGSTOP")?;
                let clock = Arc::clone(&self.host.clock);
                tokio::spawn(async move {
                    // An error means that nobody wants to know.
                    let _ = telling.send(Seen::Note(
                        frozen(clock.as_ref(), pid, asked.earliest_ns).await,
                    ));
                });
                Ok(applied(asked, None, format!("SIGSTOP to process {pid}")))
            }
            Action::Resume => {
                let asked = self.send(Signal::CONT, "SIGCONT")?;
                Ok(applied(
                    asked,
                    Some(asked),
                    format!("SIGCONT to process {pid}"),
                ))
            }
            Action::Start => {
                // A stop that is still going on must be over first.
                if !self.child.wait(Duration::from_secs(60)).await {
                    return Err(Problem::new(format!(
                        "cannot start backend `{}` again: it has not ended yet",
                        self.name
                    ))
                    .hint("give its `stop` a `grace`, or start it later"));
                }
                let earliest_ns = self.host.clock.raw_ns();
                self.child = launch(
                    &self.host,
                    &self.programs,
                    &self.place,
                    &self.name,
                    self.server_id,
                    self.port,
                )?;
                let latest_ns = self.host.clock.raw_ns();
                let ready_ns = self.until_ready().await?;
                Ok(applied(
                    Span {
                        earliest_ns,
                        latest_ns,
                    },
                    Some(Span {
                        earliest_ns,
                        latest_ns: ready_ns,
                    }),
                    format!("started as process {}", self.child.pid()),
                ))
            }
            Action::BlackHole => Err(Problem::new(
                can(Action::BlackHole).err().unwrap_or_default(),
            )),
            Action::Restart | Action::Drain | Action::Undrain => Err(Problem::new(format!(
                "`{}` is not done to a backend itself",
                due.action
            ))),
        }
    }
}

impl Backend for Mariadb {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    fn program(&self) -> String {
        format!("MariaDB {}", self.programs.version)
    }

    fn can(&self, action: Action) -> std::result::Result<(), String> {
        can(action)
    }

    fn prepare(&mut self, action: Action) -> LocalBoxFuture<'_, Result<()>> {
        async move {
            if matches!(action, Action::Stop | Action::Kill) && self.held.is_none() {
                let held = HeldConnection::open(self.address(), &self.login)
                    .await
                    .map_err(|error| {
                        Problem::new(format!(
                            "cannot hold a connection to backend `{}` at {} as a witness: {error}",
                            self.name,
                            self.address()
                        ))
                    })?;
                self.held = Some(held);
            }
            Ok(())
        }
        .boxed_local()
    }

    fn apply<'a>(&'a mut self, due: &'a Due) -> LocalBoxFuture<'a, Result<Applied>> {
        self.carry_out(due).boxed_local()
    }

    fn cut_clients(&mut self) -> LocalBoxFuture<'_, Result<String>> {
        async move {
            if !matches!(self.child.ended(), Ok(None)) {
                return Ok("is down".to_owned());
            }
            let text = format!("KILL USER '{}'", self.login.user);
            say(self.address(), &self.admin, &text, Duration::from_secs(5))
                .await
                .map(|()| "all".to_owned())
                .map_err(|error| {
                    Problem::new(format!(
                        "cannot end the connections to backend `{}` at {}: {error}",
                        self.name,
                        self.address()
                    ))
                })
        }
        .boxed_local()
    }

    fn shut_down(&mut self) -> LocalBoxFuture<'_, ()> {
        async move { self.child.end(Duration::ZERO).await }.boxed_local()
    }
}

/// Whether `action` can be done to such a server; if not, why.
pub fn can(action: Action) -> std::result::Result<(), String> {
    match action {
        Action::BlackHole => Err(
            "not applicable: cutting off a real program's packets is not built; backends of the \
             embedded runtime can be cut off"
                .to_owned(),
        ),
        _ => Ok(()),
    }
}

/// Where clients that write do it.
pub const WRITTEN_SCHEMA: &str = "gapscope";

/// The user whom probes log in as may do nothing but log in, keep a table of its
/// own for benchmarks, and do what it likes in a schema for clients that write.
fn init_sql(login: &Login, admin: &Login) -> String {
    format!(
        "CREATE USER IF NOT EXISTS '{admin}'@'127.0.0.1' IDENTIFIED BY '{secret}';\n\
         GRANT ALL PRIVILEGES ON *.* TO '{admin}'@'127.0.0.1';\n\
         CREATE USER IF NOT EXISTS '{user}'@'127.0.0.1' IDENTIFIED BY '{password}';\n\
         CREATE DATABASE IF NOT EXISTS {WRITTEN_SCHEMA};\n\
         GRANT ALL PRIVILEGES ON {WRITTEN_SCHEMA}.* TO '{user}'@'127.0.0.1';\n\
         CREATE DATABASE IF NOT EXISTS gapscope_overhead;\n\
         GRANT SELECT, INSERT, CREATE, DROP ON gapscope_overhead.* TO '{user}'@'127.0.0.1';\n\
         CREATE USER IF NOT EXISTS '{CHECK_USER}'@'127.0.0.1';\n",
        user = login.user,
        password = login.password,
        admin = admin.user,
        secret = admin.password,
    )
}

fn launch(
    host: &Host,
    programs: &Programs,
    place: &Path,
    name: &str,
    server_id: u32,
    port: u16,
) -> Result<Child> {
    let at = |option: &str, file: &str| format!("--{option}={}", place.join(file).display());
    let mut args = vec![
        "--no-defaults".to_owned(),
        at("datadir", "data"),
        at("tmpdir", ""),
        at("pid-file", "pid"),
        at("init-file", "init.sql"),
        // Unix sockets' paths are limited to some hundred bytes.
        at("socket", "s"),
        format!("--port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--server-id={server_id}"),
        "--skip-name-resolve".to_owned(),
        "--skip-slave-start".to_owned(),
        // Nobody is ever blocked for handshakes left unfinished.
        "--host-cache-size=0".to_owned(),
        "--max-connect-errors=4294967295".to_owned(),
        "--max-connections=2000".to_owned(),
        "--innodb-buffer-pool-size=16M".to_owned(),
        "--innodb-log-file-size=8M".to_owned(),
        // Durable: with 0 a killed server forgets up to a second of acknowledged
        // commits, which the write ledger shows.
        "--innodb-flush-log-at-trx-commit=1".to_owned(),
        "--performance-schema=OFF".to_owned(),
        "--skip-log-bin".to_owned(),
    ];
    if let Some(base) = base_folder(programs) {
        args.push(format!("--basedir={}", base.display()));
    }
    let mut command = host.command(&programs.server, args);
    command.current_dir(place).env("TMPDIR", place);
    Child::start(
        &format!("backend `{name}`"),
        command,
        &place.join("server.log"),
    )
    .map_err(|error| {
        Problem::new(format!(
            "cannot start {} for backend `{name}`: {error}",
            programs.server.display()
        ))
    })
}

async fn copy(host: &Host, folder: &LabFolder, from: &Path, to: &Path) -> Result<()> {
    let failed = |why: String| {
        Problem::new(format!(
            "cannot copy MariaDB's data folder to {}: {why}",
            to.display()
        ))
        .hint("each server needs some 50 MB in the temporary folder; TMPDIR chooses another")
    };
    let command = host.command(
        Path::new("cp"),
        [Path::new("-R"), from, to].map(Path::as_os_str),
    );
    let child = Child::start("cp", command, &folder.path().join("copy.log"))
        .map_err(|error| failed(error.to_string()))?;
    let done = child.wait(Duration::from_secs(60)).await;
    match child.ended() {
        Ok(Some(status)) if done && status.success() => Ok(()),
        _ => Err(failed(child.log_tail(3))),
    }
}
