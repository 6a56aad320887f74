//! A real HAProxy in TCP mode, with an admin socket in its own folder, configured as in the study that this lab began
//! with: health checks every 2 s, down after two failures, up after one success,
//! every server but the first a backup.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::program::Program;
use super::served::{Recipe, Served};
use super::sql::CHECK_USER;
use super::{Host, version_line};
use crate::error::Result;
use crate::folder::LabFolder;
use crate::runtime::admin::{Admin, Place};
use crate::scenario::ProxyKind;
use crate::witness::Login;

const PACKAGES: &str =
    "apt install haproxy, dnf install haproxy, apk add haproxy, brew install haproxy";

/// Finds the program.
pub fn find(host: &Host) -> Result<PathBuf> {
    super::find::find(&host.named, &["haproxy"], PACKAGES)
}

/// Longest path that HAProxy binds a socket to: it appends a suffix of its own.
const SOCKET_PATH: usize = 90;

/// The configuration file, for clients at `listen`; with an admin socket at `admin`.
pub fn config(
    kind: ProxyKind,
    listen: SocketAddr,
    backends: &[(String, SocketAddr)],
    admin: Option<&Place>,
) -> String {
    let logs_in = matches!(
        kind,
        ProxyKind::HaproxyMysqlCheck | ProxyKind::HaproxyMysqlCheckShutdown
    );
    let mut text = "global\n    maxconn 4000\n".to_owned();
    match admin {
        Some(Place::File(path)) => writeln!(
            text,
            "    stats socket {} mode 600 level admin",
            path.display()
        )
        .expect("a String takes everything"),
        Some(Place::Port(at)) => writeln!(text, "    stats socket ipv4@{at} level admin")
            .expect("a String takes everything"),
        None => {}
    }
    write!(
        text,
        "\n\
         defaults\n    mode tcp\n    retries 1\n    timeout connect 5s\n    timeout client 30s\n    timeout server 30s\n\n\
         listen mysql\n    bind {listen}\n    balance roundrobin\n"
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

/// Starts it and waits until a real login goes through it.
pub async fn start(
    host: &Host,
    folder: &LabFolder,
    name: &str,
    kind: ProxyKind,
    backends: &[(String, SocketAddr)],
    login: &Login,
) -> Result<Program> {
    let program = find(host)?;
    let version = version_line(&program, "-v")
        .split_whitespace()
        .nth(2)
        .unwrap_or_default()
        .to_owned();
    let place = Served::place(host, folder, name)?;
    let socket = Some(place.join("s")).filter(|path| path.as_os_str().len() <= SOCKET_PATH);
    let (of_config, backends) = (socket.clone().map(Place::File), backends.to_vec());
    let recipe = Recipe {
        program,
        called: "haproxy".to_owned(),
        label: format!("HAProxy {version}"),
        file: "haproxy.cfg".to_owned(),
        config: Box::new(move |port| {
            let at = SocketAddr::from(([127, 0, 0, 1], port));
            config(kind, at, &backends, of_config.as_ref())
        }),
        args: Box::new(|_, file, _| vec!["-db".into(), "-f".into(), file.into()]),
        tell: None,
    };
    let served = Served::start(host, folder, name, place, recipe, login).await?;
    Ok(Program {
        served,
        admin: socket.map(|path| Admin::Haproxy(Place::File(path))),
        no_drain: "the temporary folder's path is too long for its admin socket; set TMPDIR to a \
                   shorter one",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: ProxyKind) -> String {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        config(
            kind,
            at(6001),
            &[
                ("tidb-1".to_owned(), at(4001)),
                ("tidb-2".to_owned(), at(4002)),
            ],
            Some(&Place::File("/lab/s".into())),
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
