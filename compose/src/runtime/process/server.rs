//! A real database server with an empty data folder of its own: MariaDB, MySQL, or
//! TiDB with its storage inside.
//!
//! It never reads the host's configuration, keeps no name or host caches (so
//! that bare connections of health checks and witnesses block nobody), and has a
//! probe user with a password of this lab. Its data is worth nothing: at the end
//! it is killed, not shut down.

mod install;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use gapscope_proto::fault::Span;
use rustix::process::Signal;
use tokio::sync::mpsc;

use self::install::copy;
pub use self::install::install;
use super::net::{self, Namespace};
use super::sql::{Dialect, Launch};
use super::throttle::{self, Throttle};
use super::{Host, PORT_ATTEMPTS, free_port, said_by};
use crate::children::{Child, frozen};
use crate::error::{Problem, Result};
use crate::folder::{LabFolder, write_private};
use crate::login::{cut_user, say, until_it_answers};
use crate::runtime::{Applied, Backend, DEFAULT_DELAY_NS};
use crate::scenario::Action;
use crate::timeline::Due;
use crate::witness::{HeldConnection, Login, Seen, watch_listener, watch_process};

const START_WITHIN_NS: i64 = 60_000_000_000;
const SAYS_WITHIN: Duration = Duration::from_secs(10);

/// The server's programs, found once for all servers.
#[derive(Debug, Clone)]
pub struct Programs {
    dialect: Dialect,
    server: PathBuf,
    /// What makes MariaDB's data folder; MySQL's server does it itself.
    install: Option<PathBuf>,
    version: String,
}

impl Programs {
    /// Finds them.
    pub fn find(host: &Host, dialect: Dialect) -> Result<Self> {
        let server = super::find::find(&host.named, dialect.programs(), dialect.packages())?;
        let install = match dialect {
            Dialect::Mariadb => Some(super::find::find(
                &host.named,
                &["mariadb-install-db", "mysql_install_db"],
                dialect.packages(),
            )?),
            Dialect::Mysql | Dialect::Tidb => None,
        };
        let said = said_by(&server, dialect.version_flag());
        let version = dialect.version(&said).map_err(|why| {
            let name = dialect.programs()[0];
            Problem::new(format!("{} cannot be used: {why}", server.display()))
                .hint(format!("name it with --program {name}=PATH"))
        })?;
        Ok(Self {
            dialect,
            server,
            install,
            version,
        })
    }
}

/// A running server.
pub struct Server {
    name: String,
    host: Host,
    programs: Programs,
    login: Login,
    /// Who may end others' connections.
    admin: Login,
    /// What makes its users.
    users: Vec<String>,
    server_id: u32,
    /// Data, sockets, log.
    place: PathBuf,
    ip: IpAddr,
    port: u16,
    /// A second one, where the server wants one.
    status_port: u16,
    child: Child,
    held: Option<HeldConnection>,
    /// Its packets are dropped or rejected.
    is_cut_off: bool,
    /// It is being slowed down.
    throttle: Option<Throttle>,
    // After the child, which lives in it.
    namespace: Option<Namespace>,
}

/// A server named by path may be unpacked anywhere; what it needs is beside it.
fn base_folder(programs: &Programs) -> Option<PathBuf> {
    let base = programs.server.parent()?.parent()?;
    (base != Path::new("/usr") && base.join("share").is_dir()).then(|| base.to_owned())
}

impl Server {
    /// Starts a server on a copy of the data folder `template`, if it needs one, and
    /// waits until it can be logged in to. `given`: at that very place, except that a
    /// server in a network namespace has that one's address.
    pub async fn start(
        host: &Host,
        programs: &Programs,
        folder: &LabFolder,
        template: Option<&Path>,
        (name, server_id): (&str, u32),
        login: &Login,
        (given, tools): (Option<SocketAddr>, Option<&net::Tools>),
    ) -> Result<Self> {
        let place = folder.private(&format!("backend-{server_id}"), host.user.as_ref())?;
        if let Some(template) = template {
            copy(host, folder, template, &place.join("data")).await?;
        }
        let admin = Login {
            user: "gapscope_admin".to_owned(),
            password: format!("{:032x}", rand::random::<u128>()),
        };
        let from = if tools.is_some() { "%" } else { "127.0.0.1" };
        let users = programs
            .dialect
            .users(&programs.version, login, &admin, from);
        if programs.dialect.has_init_file() {
            write_private(
                &place.join("init.sql"),
                &format!("{};\n", users.join(";\n")),
                host.user.as_ref(),
            )?;
        }
        let mut namespace = match tools {
            Some(tools) => Some(Namespace::make(tools, folder.owner(), server_id)?),
            None => None,
        };
        let ip = match (&namespace, given) {
            (Some(namespace), _) => namespace.address(),
            (None, Some(given)) => given.ip(),
            (None, None) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        let mut last = None;
        let attempts = if given.is_some() { 1 } else { PORT_ATTEMPTS };
        for _ in 0..attempts {
            let free = || {
                free_port().map_err(|error| {
                    Problem::new(format!(
                        "no free loopback port for backend `{name}`: {error}"
                    ))
                })
            };
            let port = given.map_or_else(&free, |given| Ok(given.port()))?;
            let status_port = free()?;
            let base = base_folder(programs);
            let at = Launch {
                place: &place,
                ip,
                port,
                status_port,
                server_id,
                base: base.as_deref(),
            };
            let child = launch(host, programs, name, at, namespace.as_ref())?;
            let mut server = Self {
                name: name.to_owned(),
                host: host.clone(),
                programs: programs.clone(),
                login: login.clone(),
                admin: admin.clone(),
                users: users.clone(),
                server_id,
                place: place.clone(),
                ip,
                port,
                status_port,
                child,
                held: None,
                is_cut_off: false,
                throttle: None,
                namespace: namespace.take(),
            };
            match server.until_ready().await {
                Ok(_) => return Ok(server),
                // Somebody else was quicker to take the port.
                Err(problem) if server.port_was_taken() => {
                    namespace = server.namespace.take();
                    last = Some(problem);
                }
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
        let deadline = clock.raw_ns() + START_WITHIN_NS;
        let ready = async {
            if !self.programs.dialect.has_init_file() {
                self.make_users(deadline, &alive).await?;
            }
            until_it_answers(
                clock.as_ref(),
                self.address(),
                &self.login,
                deadline,
                &alive,
            )
            .await
        };
        ready.await.map_err(|why| {
            super::with_log(
                format!(
                    "{} for backend `{}` did not come up at {}: {why}",
                    self.programs.dialect.name(),
                    self.name,
                    self.address()
                ),
                &self.child.log_tail(8),
                self.programs.dialect.programs()[0],
            )
        })
    }

    /// A server that forgets all when it ends lets `root` in without a password.
    async fn make_users(
        &self,
        deadline_ns: i64,
        alive: &impl Fn() -> std::result::Result<(), String>,
    ) -> std::result::Result<(), String> {
        let root = Login {
            user: "root".to_owned(),
            password: String::new(),
        };
        let clock = self.host.clock.as_ref();
        until_it_answers(clock, self.address(), &root, deadline_ns, alive).await?;
        for statement in &self.users {
            say(self.address(), &root, statement, SAYS_WITHIN)
                .await
                .map_err(|error| format!("its users cannot be made: {error}"))?;
        }
        Ok(())
    }

    fn port_was_taken(&self) -> bool {
        let log = self.child.log_tail(30);
        [
            "Address already in use",
            "Bind on TCP/IP port",
            "address already in use",
        ]
        .iter()
        .any(|words| log.contains(words))
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
            Action::BlackHole | Action::Mute | Action::Reject => {
                let namespace = self
                    .namespace
                    .as_ref()
                    .ok_or_else(|| Problem::new(self.can(due.action).err().unwrap_or_default()))?;
                let (asked, detail) = namespace.cut(due.action, self.host.clock.as_ref())?;
                self.is_cut_off = true;
                Ok(applied(asked, None, detail))
            }
            Action::Resume if self.is_cut_off => {
                let Some(namespace) = &self.namespace else {
                    return Err(Problem::new("it was never cut off"));
                };
                let asked = namespace.heal(self.host.clock.as_ref())?;
                self.is_cut_off = false;
                Ok(applied(
                    asked,
                    Some(asked),
                    "its packets pass again".to_owned(),
                ))
            }
            Action::Slow => {
                let frozen = Duration::from_nanos(due.lasts_ns.unwrap_or(DEFAULT_DELAY_NS));
                let asked = self.send(Signal::STOP, "SIGSTOP")?;
                self.throttle = Some(Throttle::begin(self.child.clone(), frozen));
                let detail = format!(
                    "process {pid} is frozen for {} ms of each {} ms",
                    frozen.as_millis(),
                    (frozen + throttle::RUNS).as_millis()
                );
                Ok(applied(asked, None, detail))
            }
            Action::Resume => {
                if let Some(throttle) = self.throttle.take() {
                    throttle.end().await;
                }
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
                let base = base_folder(&self.programs);
                let at = Launch {
                    place: &self.place,
                    ip: self.ip,
                    port: self.port,
                    status_port: self.status_port,
                    server_id: self.server_id,
                    base: base.as_deref(),
                };
                self.child = launch(
                    &self.host,
                    &self.programs,
                    &self.name,
                    at,
                    self.namespace.as_ref(),
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
            Action::Restart
            | Action::Drain
            | Action::Undrain
            | Action::LongQuery
            | Action::Repoint
            | Action::Restore => Err(Problem::new(format!(
                "`{}` is not done to a backend itself",
                due.action
            ))),
        }
    }
}

impl Backend for Server {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from((self.ip, self.port))
    }

    fn program(&self) -> String {
        format!("{} {}", self.programs.dialect.name(), self.programs.version)
    }

    fn can(&self, action: Action) -> std::result::Result<(), String> {
        if action.cuts_off() && self.namespace.is_none() {
            Err("not applicable: it was started without a network namespace".to_owned())
        } else {
            Ok(())
        }
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
            cut_user(
                self.programs.dialect,
                self.address(),
                &self.admin,
                &self.login.user,
            )
            .await
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

fn launch(
    host: &Host,
    programs: &Programs,
    name: &str,
    at: Launch<'_>,
    namespace: Option<&Namespace>,
) -> Result<Child> {
    let args = programs.dialect.args(&programs.version, &at);
    let mut command = match namespace {
        Some(namespace) => host.command_in(namespace, &programs.server, args),
        None => host.command(&programs.server, args),
    };
    command.current_dir(at.place).env("TMPDIR", at.place);
    Child::start(
        &format!("backend `{name}`"),
        command,
        &at.place.join("server.log"),
    )
    .map_err(|error| {
        Problem::new(format!(
            "cannot start {} for backend `{name}`: {error}",
            programs.server.display()
        ))
    })
}
