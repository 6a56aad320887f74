//! Servers and proxies that the lab did not start.
//!
//! The lab does nothing to them but run the very commands that the scenario gives,
//! after it has said which and was told to go on. Before each fault it asks the server
//! whose connections it serves: where there are others than the probes' own, or where
//! it may not look, nothing is done unless the command line says that others may be
//! hurt.
//!
//! Each step that must be undone arms a dead man's timer first: a process of its own,
//! which outlives the lab and runs the undoing command if the lab dies, or if the time
//! is over. See [`crate::exec::deadman`].

use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use gapscope_proto::clock::Clock;
use gapscope_proto::fault::Span;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use tokio::sync::mpsc;

use super::{Applied, Backend, Proxy, Reached, Viewer};
use crate::children::Itself;
use crate::error::{Problem, Result};
use crate::exec::DEADMAN;
use crate::leftovers::MARKER;
use crate::login::{ask, options};
use crate::scenario::{Action, Place};
use crate::timeline::Due;
use crate::witness::{HeldConnection, Login, watch_listener};

/// A command may take this long.
const COMMAND_WITHIN: Duration = Duration::from_secs(120);
/// A server has come back within this.
const BACK_WITHIN: Duration = Duration::from_secs(120);
/// The timer is set to this beyond the end of the run.
pub const TIMER_BEYOND_S: u64 = 30;
/// Threads of the server's own.
const OF_THE_SERVER: &str =
    "'system user','event_scheduler','unauthenticated user','mysql.session','mysql.sys'";

/// Where a place is, by the first address that its name has.
///
/// # Errors
/// When the name has none.
pub fn resolve(place: &Place) -> Result<SocketAddr> {
    let failed = |why: String| {
        Problem::usage(format!(
            "`{}` of [external] has no address `{}`: {why}",
            place.name, place.address
        ))
    };
    place
        .address
        .to_socket_addrs()
        .map_err(|error| failed(error.to_string()))?
        .next()
        .ok_or_else(|| failed("the name has none".to_owned()))
}

/// Connections to a server that are not `login`'s; an error where it may not look.
///
/// # Errors
/// Why it is not known.
pub async fn strangers(address: SocketAddr, login: &Login) -> std::result::Result<u64, String> {
    let looking = async {
        let mut conn = Conn::new(options(address, login)).await?;
        let grants: Vec<String> = conn.query("SHOW GRANTS").await?;
        let may_look = grants.iter().any(|grant| {
            grant.contains(" ON *.* ")
                && (grant.contains("PROCESS") || grant.contains("ALL PRIVILEGES"))
        });
        let count: Option<u64> = conn
            .query_first(format!(
                "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER <> \
                 SUBSTRING_INDEX(CURRENT_USER(), '@', 1) AND USER NOT IN ({OF_THE_SERVER})"
            ))
            .await?;
        // An error on the way out changes nothing.
        let _ = conn.disconnect().await;
        Ok::<_, mysql_async::Error>((may_look, count.unwrap_or(0)))
    };
    match tokio::time::timeout(Duration::from_secs(5), looking).await {
        Ok(Ok((true, count))) => Ok(count),
        Ok(Ok((false, _))) => Err(format!(
            "user `{}` may not see others' connections (it needs PROCESS)",
            login.user
        )),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it does not answer within 5 s".to_owned()),
    }
}

/// What all of them share.
#[derive(Clone)]
pub struct Shared {
    /// How to start this program again.
    pub itself: Itself,
    /// Who probes.
    pub login: Login,
    /// Stamps.
    pub clock: Arc<dyn Clock>,
    /// Others may be hurt.
    pub hurt_others: bool,
    /// When the run is over, at the latest, in seconds after the lab came up.
    pub run_s: u64,
}

/// A dead man's timer that is armed.
struct DeadMan {
    process: std::process::Child,
    undoes: Action,
}

impl DeadMan {
    fn arm(shared: &Shared, undoes: Action, words: &[String]) -> Result<Self> {
        let mut command = shared.itself.command();
        command
            .arg(DEADMAN)
            .arg((shared.run_s + TIMER_BEYOND_S).to_string())
            .arg("--")
            .args(words)
            // It is no part of the lab: what clears that away must leave it.
            .env_remove(MARKER)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C is not meant for it.
            .process_group(0);
        let process = command.spawn().map_err(|error| {
            Problem::new(format!(
                "no dead man's timer could be started, so nothing was done: {error}"
            ))
        })?;
        Ok(Self { process, undoes })
    }

    /// What it waits for was undone.
    fn disarm(mut self) {
        if let Some(mut stdin) = self.process.stdin.take() {
            // An error means that it has acted already.
            let _ = stdin.write_all(b"d");
        }
        let _ = self.process.wait();
    }
}

/// Runs a command as it stands; tells from when to when.
async fn run(words: &[String], clock: &dyn Clock) -> Result<Span> {
    let failed = |why: String| Problem::new(format!("`{}` failed: {why}", words.join(" ")));
    let Some((program, args)) = words.split_first() else {
        return Err(failed("it is empty".to_owned()));
    };
    let earliest_ns = clock.raw_ns();
    let output = tokio::process::Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .env_remove(MARKER)
        .output();
    let output = tokio::time::timeout(COMMAND_WITHIN, output)
        .await
        .map_err(|_| failed(format!("it took more than {} s", COMMAND_WITHIN.as_secs())))?
        .map_err(|error| failed(error.to_string()))?;
    let span = Span {
        earliest_ns,
        latest_ns: clock.raw_ns(),
    };
    if output.status.success() {
        Ok(span)
    } else {
        Err(failed(format!(
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        )))
    }
}

/// One of them, with its timers.
struct Subject {
    place: Place,
    address: SocketAddr,
    shared: Shared,
    armed: Vec<DeadMan>,
}

impl Subject {
    fn can(&self, action: Action) -> std::result::Result<(), String> {
        if self.place.command(action).is_some() {
            Ok(())
        } else {
            Err(format!(
                "not applicable: no command `{action}` is given for it under [external]"
            ))
        }
    }

    /// Runs the command of a step; its timer is armed before, or disarmed after.
    async fn carry_out(&mut self, action: Action) -> Result<(Span, bool, String)> {
        let words = self
            .place
            .command(action)
            .ok_or_else(|| Problem::new(self.can(action).err().unwrap_or_default()))?
            .to_vec();
        if let Some(undo) = action.undone_by()
            && let Some(undoing) = self.place.command(undo)
        {
            self.armed.push(DeadMan::arm(&self.shared, undo, undoing)?);
        }
        // Where it failed the timer stays armed: it may have been done half.
        let asked = run(&words, self.shared.clock.as_ref()).await?;
        let undoes = action.undone_by().is_none();
        if undoes {
            for timer in std::mem::take(&mut self.armed) {
                if timer.undoes == action {
                    timer.disarm();
                } else {
                    self.armed.push(timer);
                }
            }
        }
        Ok((asked, undoes, format!("`{}`", words.join(" "))))
    }

    /// Undoes what is left, newest first.
    async fn undo_all(&mut self) {
        while let Some(timer) = self.armed.pop() {
            let Some(words) = self.place.command(timer.undoes) else {
                continue;
            };
            match run(words, self.shared.clock.as_ref()).await {
                Ok(_) => {
                    crate::output::say(&format!(
                        "after the run: {} `{}`",
                        timer.undoes, self.place.name
                    ));
                    timer.disarm();
                }
                // Dropped, its timer finds its input ended and tries again.
                Err(problem) => crate::output::say(&problem.to_string()),
            }
        }
    }
}

/// A server that is there already.
pub struct ExternalBackend {
    subject: Subject,
    version: String,
    held: Option<HeldConnection>,
}

impl ExternalBackend {
    /// Asks whether it is there.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn find(place: &Place, shared: &Shared) -> Result<Self> {
        let address = resolve(place)?;
        let answer = ask(address, &shared.login, "NULL", Duration::from_secs(5))
            .await
            .map_err(|error| {
                Problem::new(format!(
                    "backend `{}` at {} does not answer: {error}",
                    place.name, place.address
                ))
            })?;
        Ok(Self {
            subject: Subject {
                place: place.clone(),
                address,
                shared: shared.clone(),
                armed: Vec::new(),
            },
            version: answer.version,
            held: None,
        })
    }

    async fn refuse_if_it_serves_others(&self) -> Result<()> {
        let shared = &self.subject.shared;
        if shared.hurt_others {
            return Ok(());
        }
        let name = &self.subject.place.name;
        let why = match strangers(self.subject.address, &shared.login).await {
            Ok(0) => return Ok(()),
            Ok(count) => format!("`{name}` serves {count} connections that are not ours"),
            Err(why) => format!("whether `{name}` serves others is not known: {why}"),
        };
        Err(Problem::new(format!("nothing was done to `{name}`: {why}"))
            .hint("take it out of use first, or say that others may be hurt with --hurt-others"))
    }

    async fn until_back(&self) -> Result<i64> {
        let shared = &self.subject.shared;
        let deadline =
            shared.clock.raw_ns() + i64::try_from(BACK_WITHIN.as_nanos()).unwrap_or(i64::MAX);
        crate::login::until_it_answers(
            shared.clock.as_ref(),
            self.subject.address,
            &shared.login,
            deadline,
            || Ok(()),
        )
        .await
        .map_err(|why| {
            Problem::new(format!(
                "backend `{}` is not back: {why}",
                self.subject.place.name
            ))
        })
    }

    async fn carry_out(&mut self, due: &Due) -> Result<Applied> {
        let hurts = due.action.is_fault();
        if hurts {
            self.refuse_if_it_serves_others().await?;
        }
        let (telling, seen) = mpsc::unbounded_channel();
        let (asked, undoes, detail) = self.subject.carry_out(due.action).await?;
        if matches!(due.action, Action::Stop | Action::Kill) {
            let clock = &self.subject.shared.clock;
            tokio::spawn(watch_listener(
                Arc::clone(clock),
                self.subject.address,
                asked.earliest_ns,
                telling.clone(),
            ));
            if let Some(held) = self.held.take() {
                tokio::spawn(held.watch(Arc::clone(clock), asked.earliest_ns, telling));
            }
        }
        let cleared = if due.action == Action::Start {
            Some(Span {
                earliest_ns: asked.earliest_ns,
                latest_ns: self.until_back().await?,
            })
        } else {
            undoes.then_some(asked)
        };
        Ok(Applied {
            asked,
            cleared,
            detail,
            seen,
        })
    }
}

impl Backend for ExternalBackend {
    fn name(&self) -> &str {
        &self.subject.place.name
    }

    fn address(&self) -> SocketAddr {
        self.subject.address
    }

    fn program(&self) -> String {
        format!("{}, not the lab's", self.version)
    }

    fn can(&self, action: Action) -> std::result::Result<(), String> {
        match action {
            Action::Restart => self
                .subject
                .can(Action::Stop)
                .and_then(|()| self.subject.can(Action::Start)),
            Action::Drain | Action::Undrain => Ok(()),
            other => self.subject.can(other),
        }
    }

    fn prepare(&mut self, action: Action) -> LocalBoxFuture<'_, Result<()>> {
        async move {
            if matches!(action, Action::Stop | Action::Kill) && self.held.is_none() {
                // One that speaks another login method only has a witness less.
                self.held = HeldConnection::open(self.subject.address, &self.subject.shared.login)
                    .await
                    .ok();
            }
            Ok(())
        }
        .boxed_local()
    }

    fn apply<'a>(&'a mut self, due: &'a Due) -> LocalBoxFuture<'a, Result<Applied>> {
        self.carry_out(due).boxed_local()
    }

    fn cut_clients(&mut self) -> LocalBoxFuture<'_, Result<String>> {
        futures::future::ready(Err(Problem::new(
            "connections of servers that the lab did not start are not cut",
        )))
        .boxed_local()
    }

    fn shut_down(&mut self) -> LocalBoxFuture<'_, ()> {
        self.subject.undo_all().boxed_local()
    }
}

/// A proxy that is there already.
pub struct ExternalProxy {
    subject: Subject,
}

impl ExternalProxy {
    /// One that is there.
    ///
    /// # Errors
    /// When its name has no address.
    pub fn new(place: &Place, shared: &Shared) -> Result<Self> {
        Ok(Self {
            subject: Subject {
                place: place.clone(),
                address: resolve(place)?,
                shared: shared.clone(),
                armed: Vec::new(),
            },
        })
    }

    async fn carry_out(&mut self, due: &Due) -> Result<Applied> {
        let shared = &self.subject.shared;
        let hurts = due.action.is_fault() || due.action == Action::Repoint;
        if hurts && !shared.hurt_others {
            return Err(Problem::new(format!(
                "nothing was done to proxy `{}`: whom it serves cannot be asked",
                self.subject.place.name
            ))
            .hint("say that others may be hurt with --hurt-others"));
        }
        let (_, seen) = mpsc::unbounded_channel();
        let (asked, undoes, detail) = self.subject.carry_out(due.action).await?;
        Ok(Applied {
            asked,
            cleared: undoes.then_some(asked),
            detail,
            seen,
        })
    }
}

impl Proxy for ExternalProxy {
    fn name(&self) -> &str {
        &self.subject.place.name
    }

    fn address(&self) -> SocketAddr {
        self.subject.address
    }

    fn reached(&self) -> Reached {
        Reached {
            // As it stands: a name is looked up at each connect.
            address: self.subject.place.address.clone(),
            name_server: None,
            follows: false,
        }
    }

    fn program(&self) -> String {
        "not the lab's".to_owned()
    }

    fn can(&self, action: Action) -> std::result::Result<(), String> {
        self.subject.can(action)
    }

    fn apply<'a>(&'a mut self, due: &'a Due) -> LocalBoxFuture<'a, Result<Applied>> {
        self.carry_out(due).boxed_local()
    }

    fn drain<'a>(&'a mut self, _backend: &'a str, on: bool) -> LocalBoxFuture<'a, Result<String>> {
        async move {
            let action = if on { Action::Drain } else { Action::Undrain };
            let (_, _, detail) = self.subject.carry_out(action).await?;
            Ok(detail)
        }
        .boxed_local()
    }

    fn viewer(&self) -> Option<Box<dyn Viewer>> {
        None
    }

    fn shut_down(&mut self) -> LocalBoxFuture<'_, ()> {
        self.subject.undo_all().boxed_local()
    }
}
