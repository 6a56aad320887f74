//! A real HAProxy in TCP mode, with an admin socket in its own folder, configured as in the study that this lab began
//! with: health checks every 2 s, down after two failures, up after one success,
//! every server but the first a backup.

mod admin;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use gapscope_proto::fault::Span;
use rustix::process::Signal;
use tokio::sync::mpsc;

use super::mariadb::CHECK_USER;
use super::{Host, PORT_ATTEMPTS, free_port, version_line};
use crate::children::Child;
use crate::children::frozen;
use crate::error::{Problem, Result};
use crate::folder::{LabFolder, write_private};
use crate::login::until_it_answers;
use crate::runtime::{Applied, Proxy, Viewer};
use crate::scenario::{Action, ProxyKind};
use crate::timeline::Due;
use crate::witness::{Login, Seen, watch_process};

const PACKAGES: &str =
    "apt install haproxy, dnf install haproxy, apk add haproxy, brew install haproxy";
const ROUTES_WITHIN_NS: i64 = 20_000_000_000;

/// Finds the program.
pub fn find(host: &Host) -> Result<PathBuf> {
    super::find::find(&host.named, &["haproxy"], PACKAGES)
}

/// Longest path that HAProxy binds a socket to: it appends a suffix of its own.
const SOCKET_PATH: usize = 90;

/// The configuration file; with an admin socket at `admin`.
pub fn config(
    kind: ProxyKind,
    port: u16,
    backends: &[(String, SocketAddr)],
    admin: Option<&Path>,
) -> String {
    let logs_in = matches!(
        kind,
        ProxyKind::HaproxyMysqlCheck | ProxyKind::HaproxyMysqlCheckShutdown
    );
    let mut text = "global\n    maxconn 4000\n".to_owned();
    if let Some(admin) = admin {
        writeln!(
            text,
            "    stats socket {} mode 600 level admin",
            admin.display()
        )
        .expect("a String takes everything");
    }
    write!(
        text,
        "\n\
         defaults\n    mode tcp\n    retries 1\n    timeout connect 5s\n    timeout client 30s\n    timeout server 30s\n\n\
         listen mysql\n    bind 127.0.0.1:{port}\n    balance roundrobin\n"
    )
    .expect("a String takes everything");
    if logs_in {
        text.push_str(&format!("    option mysql-check user {CHECK_USER}\n"));
    }
    for (index, (name, address)) in backends.iter().enumerate() {
        let cuts = if kind == ProxyKind::HaproxyMysqlCheckShutdown {
            " on-marked-down shutdown-sessions"
        } else {
            ""
        };
        let backup = if index == 0 { "" } else { " backup" };
        writeln!(
            text,
            "    server {name} {address} check inter 2s fall 2 rise 1{cuts}{backup}"
        )
        .expect("a String takes everything");
    }
    text
}

/// A running HAProxy.
pub struct Haproxy {
    name: String,
    host: Host,
    program: PathBuf,
    /// Configuration, socket.
    place: PathBuf,
    log: PathBuf,
    port: u16,
    version: String,
    admin: Option<PathBuf>,
    login: Login,
    child: Child,
}

impl Haproxy {
    /// Starts it and waits until a real login goes through it.
    pub async fn start(
        host: &Host,
        folder: &LabFolder,
        name: &str,
        kind: ProxyKind,
        backends: &[(String, SocketAddr)],
        login: &Login,
    ) -> Result<Self> {
        let program = find(host)?;
        let version = version_line(&program, "-v")
            .split_whitespace()
            .nth(2)
            .unwrap_or_default()
            .to_owned();
        let place = folder.private(&format!("proxy-{name}"), host.user.as_ref())?;
        let log = folder.path().join(format!("proxy-{name}.log"));
        let admin = Some(place.join("s")).filter(|path| path.as_os_str().len() <= SOCKET_PATH);
        let mut last = None;
        for _ in 0..PORT_ATTEMPTS {
            let port = free_port().map_err(|error| {
                Problem::new(format!("no free loopback port for proxy `{name}`: {error}"))
            })?;
            write_private(
                &place.join("haproxy.cfg"),
                &config(kind, port, backends, admin.as_deref()),
                host.user.as_ref(),
            )?;
            let proxy = Self {
                name: name.to_owned(),
                host: host.clone(),
                child: launch(host, &program, &place, &log, name)?,
                program: program.clone(),
                place: place.clone(),
                log: log.clone(),
                port,
                version: version.clone(),
                admin: admin.clone(),
                login: login.clone(),
            };
            match proxy.until_it_routes().await {
                Ok(_) => return Ok(proxy),
                Err(problem) if proxy.port_was_taken() => last = Some(problem),
                Err(problem) => return Err(problem),
            }
        }
        Err(last.unwrap_or_else(|| Problem::new(format!("cannot start proxy `{name}`"))))
    }

    async fn until_it_routes(&self) -> Result<i64> {
        let alive = || match self.child.ended() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("it ended with {status}")),
            Err(error) => Err(error.to_string()),
        };
        let clock = self.host.clock.as_ref();
        let deadline = clock.raw_ns() + ROUTES_WITHIN_NS;
        until_it_answers(clock, self.address(), &self.login, deadline, alive)
            .await
            .map_err(|why| {
                super::with_log(
                    format!(
                        "HAProxy `{}` at {} does not route to a backend: {why}",
                        self.name,
                        self.address()
                    ),
                    &self.child.log_tail(8),
                    "haproxy",
                )
            })
    }

    fn port_was_taken(&self) -> bool {
        let log = self.child.log_tail(30);
        log.contains("Address already in use") || log.contains("cannot bind socket")
    }

    fn send(&self, signal: Signal, word: &str) -> Result<Span> {
        super::send(&self.host, &self.child, signal, word)
    }

    async fn carry_out(&mut self, due: &Due) -> Result<Applied> {
        let (telling, seen) = mpsc::unbounded_channel();
        let pid = self.child.pid();
        let clock = Arc::clone(&self.host.clock);
        let (asked, cleared, detail) = match due.action {
            Action::Stop | Action::Kill => {
                let (signal, word) = if due.action == Action::Stop {
                    (Signal::TERM, "SIGTERM")
                } else {
                    (Signal::KILL, "SIGKILL")
                };
                let asked = self.send(signal, word)?;
                let child = self.child.clone();
                tokio::spawn(watch_process(clock, child, asked.earliest_ns, telling));
                (asked, None, format!("{word} to process {pid}"))
            }
            Action::Hang => {
                let asked = self.send(Signal::STOP, "SIGSTOP")?;
                tokio::spawn(async move {
                    // An error means that nobody wants to know.
                    let _ = telling.send(Seen::Note(
                        frozen(clock.as_ref(), pid, asked.earliest_ns).await,
                    ));
                });
                (asked, None, format!("SIGSTOP to process {pid}"))
            }
            Action::Resume => {
                let asked = self.send(Signal::CONT, "SIGCONT")?;
                (asked, Some(asked), format!("SIGCONT to process {pid}"))
            }
            Action::Start => {
                if !self.child.wait(Duration::from_secs(30)).await {
                    return Err(Problem::new(format!(
                        "cannot start proxy `{}` again: it has not ended yet",
                        self.name
                    )));
                }
                let earliest_ns = clock.raw_ns();
                self.child = launch(
                    &self.host,
                    &self.program,
                    &self.place,
                    &self.log,
                    &self.name,
                )?;
                let asked = Span {
                    earliest_ns,
                    latest_ns: clock.raw_ns(),
                };
                let latest_ns = self.until_it_routes().await?;
                let cleared = Span {
                    earliest_ns,
                    latest_ns,
                };
                let detail = format!("started as process {}", self.child.pid());
                (asked, Some(cleared), detail)
            }
            other => {
                return Err(Problem::new(format!(
                    "`{other}` cannot be done to HAProxy `{}`",
                    self.name
                )));
            }
        };
        Ok(Applied {
            asked,
            cleared,
            detail,
            seen,
        })
    }
}

fn launch(host: &Host, program: &Path, place: &Path, log: &Path, name: &str) -> Result<Child> {
    let file = place.join("haproxy.cfg");
    // In the foreground: the process started is the one that serves.
    let mut command = host.command(program, ["-db".as_ref(), "-f".as_ref(), file.as_os_str()]);
    command.current_dir(place);
    Child::start(&format!("proxy `{name}`"), command, log)
        .map_err(|error| Problem::new(format!("cannot start {}: {error}", program.display())))
}

impl Proxy for Haproxy {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    fn program(&self) -> String {
        format!("HAProxy {}", self.version)
    }

    fn can(&self, action: Action) -> std::result::Result<(), String> {
        match action {
            Action::Drain | Action::Undrain if self.admin.is_none() => Err(
                "not applicable: the temporary folder's path is too long for its admin socket; set                  TMPDIR to a shorter one"
                    .to_owned(),
            ),
            Action::BlackHole => {
                Err("not applicable: a proxy's packets are not cut off".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn apply<'a>(&'a mut self, due: &'a Due) -> LocalBoxFuture<'a, Result<Applied>> {
        self.carry_out(due).boxed_local()
    }

    fn drain<'a>(&'a mut self, backend: &'a str, on: bool) -> LocalBoxFuture<'a, Result<String>> {
        async move {
            let path = self.admin.clone().unwrap_or_default();
            let state = if on { "drain" } else { "ready" };
            let command = format!("set server mysql/{backend} state {state}");
            // It answers a state that it took with an empty line.
            match admin::ask(&path, &command).await {
                Ok(answer) if answer.trim().is_empty() => Ok(command),
                Ok(answer) => Err(Problem::new(format!(
                    "HAProxy `{}` refused `{command}`: {}",
                    self.name,
                    answer.trim()
                ))),
                Err(error) => Err(Problem::new(format!(
                    "HAProxy `{}` could not be asked for `{command}` at {}: {error}",
                    self.name,
                    path.display()
                ))),
            }
        }
        .boxed_local()
    }

    fn viewer(&self) -> Option<Box<dyn Viewer>> {
        self.admin
            .clone()
            .map(|path| Box::new(admin::StatViewer::new(path)) as Box<dyn Viewer>)
    }

    fn shut_down(&mut self) -> LocalBoxFuture<'_, ()> {
        async move { self.child.end(Duration::from_secs(2)).await }.boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: ProxyKind) -> String {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        config(
            kind,
            6001,
            &[
                ("tidb-1".to_owned(), at(4001)),
                ("tidb-2".to_owned(), at(4002)),
            ],
            Some(Path::new("/lab/s")),
        )
    }

    #[test]
    fn the_study_s_configuration_is_written() {
        insta::assert_snapshot!(text(ProxyKind::Haproxy), @r"
        global
            maxconn 4000
            stats socket /lab/s mode 600 level admin

        defaults
            mode tcp
            retries 1
            timeout connect 5s
            timeout client 30s
            timeout server 30s

        listen mysql
            bind 127.0.0.1:6001
            balance roundrobin
            server tidb-1 127.0.0.1:4001 check inter 2s fall 2 rise 1
            server tidb-2 127.0.0.1:4002 check inter 2s fall 2 rise 1 backup
        ");
    }

    #[test]
    fn login_checks_and_cut_sessions_are_variants() {
        insta::assert_snapshot!(text(ProxyKind::HaproxyMysqlCheckShutdown), @r"
        global
            maxconn 4000
            stats socket /lab/s mode 600 level admin

        defaults
            mode tcp
            retries 1
            timeout connect 5s
            timeout client 30s
            timeout server 30s

        listen mysql
            bind 127.0.0.1:6001
            balance roundrobin
            option mysql-check user gapscope_check
            server tidb-1 127.0.0.1:4001 check inter 2s fall 2 rise 1 on-marked-down shutdown-sessions
            server tidb-2 127.0.0.1:4002 check inter 2s fall 2 rise 1 on-marked-down shutdown-sessions backup
        ");
        assert!(!text(ProxyKind::HaproxyMysqlCheck).contains("shutdown-sessions"));
        assert!(text(ProxyKind::HaproxyMysqlCheck).contains("option mysql-check"));
    }
}
