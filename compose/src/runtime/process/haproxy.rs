//! A real HAProxy in TCP mode, with an admin socket in its own folder, configured as in the study that this lab began
//! with: health checks every 2 s, down after two failures, up after one success,
//! every server but the first a backup.

mod admin;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use futures::FutureExt;
use futures::future::LocalBoxFuture;

use super::mariadb::CHECK_USER;
use super::served::{Recipe, Served};
use super::{Host, version_line};
use crate::error::{Problem, Result};
use crate::folder::LabFolder;
use crate::runtime::{Applied, Proxy, Viewer};
use crate::scenario::{Action, ProxyKind};
use crate::timeline::Due;
use crate::witness::Login;

const PACKAGES: &str =
    "apt install haproxy, dnf install haproxy, apk add haproxy, brew install haproxy";

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
    served: Served,
    admin: Option<PathBuf>,
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
        let place = Served::place(host, folder, name)?;
        let admin = Some(place.join("s")).filter(|path| path.as_os_str().len() <= SOCKET_PATH);
        let (of_config, backends) = (admin.clone(), backends.to_vec());
        let recipe = Recipe {
            program,
            called: "haproxy".to_owned(),
            label: format!("HAProxy {version}"),
            file: "haproxy.cfg",
            config: Box::new(move |port| config(kind, port, &backends, of_config.as_deref())),
            args: Box::new(|_, file, _| vec!["-db".into(), "-f".into(), file.into()]),
        };
        let served = Served::start(host, folder, name, place, recipe, login).await?;
        Ok(Self { served, admin })
    }
}

impl Proxy for Haproxy {
    fn name(&self) -> &str {
        &self.served.name
    }

    fn address(&self) -> SocketAddr {
        self.served.address()
    }

    fn program(&self) -> String {
        self.served.label()
    }

    fn can(&self, action: Action) -> std::result::Result<(), String> {
        match action {
            Action::Drain | Action::Undrain if self.admin.is_none() => Err(
                "not applicable: the temporary folder's path is too long for its admin socket; set                  TMPDIR to a shorter one"
                    .to_owned(),
            ),
            other => Served::can(other),
        }
    }

    fn apply<'a>(&'a mut self, due: &'a Due) -> LocalBoxFuture<'a, Result<Applied>> {
        self.served.carry_out(due).boxed_local()
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
                    self.served.name,
                    answer.trim()
                ))),
                Err(error) => Err(Problem::new(format!(
                    "HAProxy `{}` could not be asked for `{command}` at {}: {error}",
                    self.served.name,
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
        async move { self.served.end().await }.boxed_local()
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
