//! Real programs, found on this host, on free loopback ports, with all they
//! write in the lab's temporary folder. They never see the host's own
//! configuration, and run as an unprivileged user where the lab runs as root.

pub mod custom;
pub mod find;
pub mod haproxy;
pub mod mysql_proxy;
pub mod mysqlrouter;
pub mod net;
pub mod nginx;
pub mod program;
pub mod proxysql;
pub mod served;
pub mod server;
pub mod sql;
pub mod throttle;
pub mod tiproxy;

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use gapscope_proto::clock::Clock;
use gapscope_proto::fault::Span;
use rustix::process::Signal;

use crate::children::{Child, Itself};
use crate::error::{Problem, Result};
use crate::exec::{User, user};

/// What processes of this host share.
#[derive(Clone)]
pub struct Host {
    /// How to start this program again, as the wrapper.
    pub itself: Itself,
    /// Whom programs run as; none: as the lab.
    pub user: Option<User>,
    /// Programs named by path.
    pub named: find::Named,
    /// Stamps.
    pub clock: Arc<dyn Clock>,
}

impl Host {
    /// Finds out whom programs run as: `mysql`, else `nobody`, where the lab runs
    /// as root (servers refuse to, and need not); else whoever runs the lab.
    pub fn new(itself: Itself, named: find::Named, clock: Arc<dyn Clock>) -> Result<Self> {
        let user = if rustix::process::geteuid().is_root() {
            Some(user("mysql").or_else(|| user("nobody")).ok_or_else(|| {
                Problem::new(
                    "database servers refuse to run as root, and there is neither a user `mysql` \
                     nor `nobody` to run them as",
                )
                .hint("run the lab as an ordinary user")
            })?)
        } else {
            None
        };
        Ok(Self {
            itself,
            user,
            named,
            clock,
        })
    }

    /// A command that runs a program through the wrapper, as that user.
    pub fn command(
        &self,
        program: &Path,
        args: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>,
    ) -> Command {
        self.itself.wrapped(
            self.user.as_ref().map(|user| user.name.as_str()),
            None,
            program,
            args,
        )
    }

    /// The same, in a network namespace.
    pub fn command_in(
        &self,
        namespace: &net::Namespace,
        program: &Path,
        args: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>,
    ) -> Command {
        self.itself.wrapped(
            self.user.as_ref().map(|user| user.name.as_str()),
            Some(&namespace.file()),
            program,
            args,
        )
    }
}

/// How often a port that somebody else took meanwhile is exchanged for another.
const PORT_ATTEMPTS: u32 = 5;

/// A loopback port that is free now. Somebody else may take it before the program
/// that it is for does; then another is tried.
pub fn free_port() -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

/// Sends a signal to a program of the lab's and says when.
fn send(host: &Host, child: &Child, signal: Signal, word: &str) -> Result<Span> {
    let earliest_ns = host.clock.raw_ns();
    let sent = child.signal(signal);
    let latest_ns = host.clock.raw_ns();
    let failed = |why: String| {
        Problem::new(format!(
            "cannot send {word} to {} (process {}): {why}",
            child.name(),
            child.pid()
        ))
    };
    match sent {
        Ok(true) => Ok(Span {
            earliest_ns,
            latest_ns,
        }),
        Ok(false) => Err(failed("it has ended already".to_owned())
            .hint("its log was in the lab's folder; did something else end it?")),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// A program's failure with the end of its log, if it wrote one.
fn with_log(what: String, log: &str, program: &str) -> Problem {
    if log.is_empty() {
        Problem::new(format!("{what}, and it wrote no log")).hint(format!(
            "is it the right program? --program {program}=PATH names another"
        ))
    } else {
        Problem::new(format!("{what}\n{log}")).hint("the lines above are the end of its own log")
    }
}

/// The first word of what a program says of its version that looks like one.
fn version_of(program: &Path, flag: &str) -> String {
    version_in(&said_by(program, flag)).unwrap_or_default()
}

/// All that a program says when it is asked by `flag`.
fn said_by(program: &Path, flag: &str) -> String {
    let Ok(output) = Command::new(program).arg(flag).output() else {
        return String::new();
    };
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The first word that looks like a version.
pub fn version_in(text: &str) -> Option<String> {
    text.split_whitespace()
        .map(|word| word.rsplit('/').next().unwrap_or(word))
        .map(|word| word.trim_start_matches('v'))
        .map(|word| word.trim_matches(|c: char| !c.is_ascii_alphanumeric()))
        .find(|word| {
            word.starts_with(|c: char| c.is_ascii_digit())
                && word.contains('.')
                && word
                    .split('.')
                    .take(2)
                    .all(|part| part.starts_with(|c: char| c.is_ascii_digit()))
        })
        .map(|word| word.chars().take(20).collect())
}

/// A program's version line.
fn version_line(program: &Path, flag: &str) -> String {
    Command::new(program)
        .arg(flag)
        .output()
        .ok()
        .and_then(|output| {
            String::from_utf8_lossy(&output.stdout)
                .lines()
                .next()
                .map(str::to_owned)
        })
        .unwrap_or_default()
}
