//! A real HAProxy in TCP mode, configured as in the study that this lab began
//! with: health checks every 2 s, down after two failures, up after one success,
//! every server but the first a backup.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;

use super::mariadb::CHECK_USER;
use super::{Host, PORT_ATTEMPTS, free_port, version_line};
use crate::children::Child;
use crate::error::{Problem, Result};
use crate::folder::{LabFolder, write_private};
use crate::login::until_it_answers;
use crate::runtime::Proxy;
use crate::scenario::ProxyKind;
use crate::witness::Login;

const PACKAGES: &str =
    "apt install haproxy, dnf install haproxy, apk add haproxy, brew install haproxy";
const ROUTES_WITHIN_NS: i64 = 20_000_000_000;

/// Finds the program.
pub fn find(host: &Host) -> Result<PathBuf> {
    super::find::find(&host.named, &["haproxy"], PACKAGES)
}

/// The configuration file.
pub fn config(kind: ProxyKind, port: u16, backends: &[(String, SocketAddr)]) -> String {
    let logs_in = matches!(
        kind,
        ProxyKind::HaproxyMysqlCheck | ProxyKind::HaproxyMysqlCheckShutdown
    );
    let mut text = format!(
        "global\n    maxconn 4000\n\n\
         defaults\n    mode tcp\n    retries 1\n    timeout connect 5s\n    timeout client 30s\n    timeout server 30s\n\n\
         listen mysql\n    bind 127.0.0.1:{port}\n    balance roundrobin\n"
    );
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
    port: u16,
    version: String,
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
        let file = place.join("haproxy.cfg");
        let log = folder.path().join(format!("proxy-{name}.log"));
        let mut last = None;
        for _ in 0..PORT_ATTEMPTS {
            let port = free_port().map_err(|error| {
                Problem::new(format!("no free loopback port for proxy `{name}`: {error}"))
            })?;
            write_private(&file, &config(kind, port, backends), host.user.as_ref())?;
            // In the foreground: the process started is the one that serves.
            let mut command =
                host.command(&program, ["-db".as_ref(), "-f".as_ref(), file.as_os_str()]);
            command.current_dir(&place);
            let child =
                Child::start(&format!("proxy `{name}`"), command, &log).map_err(|error| {
                    Problem::new(format!("cannot start {}: {error}", program.display()))
                })?;
            let proxy = Self {
                name: name.to_owned(),
                port,
                version: version.clone(),
                child,
            };
            match proxy.until_it_routes(host, login).await {
                Ok(()) => return Ok(proxy),
                Err(problem) if proxy.port_was_taken() => last = Some(problem),
                Err(problem) => return Err(problem),
            }
        }
        Err(last.unwrap_or_else(|| Problem::new(format!("cannot start proxy `{name}`"))))
    }

    async fn until_it_routes(&self, host: &Host, login: &Login) -> Result<()> {
        let alive = || match self.child.ended() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("it ended with {status}")),
            Err(error) => Err(error.to_string()),
        };
        let deadline = host.clock.raw_ns() + ROUTES_WITHIN_NS;
        until_it_answers(host.clock.as_ref(), self.address(), login, deadline, alive)
            .await
            .map(|_| ())
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
        )
    }

    #[test]
    fn the_study_s_configuration_is_written() {
        insta::assert_snapshot!(text(ProxyKind::Haproxy), @r"
        global
            maxconn 4000

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
