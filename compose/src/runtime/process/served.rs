//! A proxy as a process: written configuration, a free port, started in the
//! foreground, waited for until a login goes through it; stopped, killed, frozen
//! and started again by signals. What is special about a program stands in its
//! [`Recipe`].

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use gapscope_proto::fault::Span;
use rustix::process::Signal;
use tokio::sync::mpsc;

use super::{Host, PORT_ATTEMPTS, free_port};
use crate::children::{Child, frozen};
use crate::error::{Problem, Result};
use crate::folder::{LabFolder, write_private};
use crate::login::until_it_answers;
use crate::runtime::Applied;
use crate::runtime::name::NO_NAME;
use crate::scenario::Action;
use crate::timeline::Due;
use crate::witness::{Login, Seen, watch_process};

const ROUTES_WITHIN_NS: i64 = 20_000_000_000;

/// Makes a program's arguments.
pub type Args = Box<dyn Fn(&Path, &Path, u16) -> Vec<OsString>>;

/// What a program has to be told each time it was started, again until it takes it.
pub type Tell = Box<dyn Fn() -> BoxFuture<'static, std::result::Result<(), String>>>;

/// What is special about a program.
pub struct Recipe {
    /// The program.
    pub program: PathBuf,
    /// What `--program` calls it.
    pub called: String,
    /// Its name and version, for people.
    pub label: String,
    /// Name of its configuration file.
    pub file: String,
    /// The configuration for a port.
    pub config: Box<dyn Fn(u16) -> String>,
    /// Its arguments, given its folder, its configuration file and its port.
    pub args: Args,
    /// Where its configuration is not all.
    pub tell: Option<Tell>,
}

/// A proxy of that recipe, running.
pub struct Served {
    pub(super) name: String,
    host: Host,
    recipe: Recipe,
    place: PathBuf,
    log: PathBuf,
    port: u16,
    login: Login,
    child: Child,
}

impl Served {
    /// The folder of a proxy called `name`, which the recipe may refer to.
    pub fn place(host: &Host, folder: &LabFolder, name: &str) -> Result<PathBuf> {
        folder.private(&format!("proxy-{name}"), host.user.as_ref())
    }

    /// Starts it and waits until a real login goes through it.
    pub async fn start(
        host: &Host,
        folder: &LabFolder,
        name: &str,
        place: PathBuf,
        recipe: Recipe,
        login: &Login,
    ) -> Result<Self> {
        let log = folder.path().join(format!("proxy-{name}.log"));
        let mut recipe = Some(recipe);
        let mut last = None;
        for _ in 0..PORT_ATTEMPTS {
            let port = free_port().map_err(|error| {
                Problem::new(format!("no free loopback port for proxy `{name}`: {error}"))
            })?;
            let Some(known) = recipe.take() else { break };
            write_private(
                &place.join(&known.file),
                &(known.config)(port),
                host.user.as_ref(),
            )?;
            let served = Self {
                name: name.to_owned(),
                child: launch(host, &known, (&place, &log), port, name)?,
                host: host.clone(),
                recipe: known,
                place: place.clone(),
                log: log.clone(),
                port,
                login: login.clone(),
            };
            match served.until_it_routes().await {
                Ok(_) => return Ok(served),
                Err(problem) if served.port_was_taken() => {
                    last = Some(problem);
                    recipe = Some(served.recipe);
                }
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
        let routing = async {
            if let Some(tell) = &self.recipe.tell {
                loop {
                    let Err(why) = tell().await else { break };
                    alive()?;
                    if clock.raw_ns() > deadline {
                        return Err(why);
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            until_it_answers(clock, self.address(), &self.login, deadline, alive).await
        };
        routing.await.map_err(|why| {
            super::with_log(
                format!(
                    "{} `{}` at {} does not route to a backend: {why}",
                    self.recipe.label,
                    self.name,
                    self.address()
                ),
                &self.child.log_tail(8),
                &self.recipe.called,
            )
        })
    }

    fn port_was_taken(&self) -> bool {
        let log = self.child.log_tail(30);
        [
            "Address already in use",
            "cannot bind socket",
            "address already in use",
        ]
        .iter()
        .any(|words| log.contains(words))
    }

    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub(super) fn label(&self) -> String {
        self.recipe.label.clone()
    }

    pub(super) async fn end(&self) {
        self.child.end(Duration::from_secs(2)).await;
    }

    fn send(&self, signal: Signal, word: &str) -> Result<Span> {
        super::send(&self.host, &self.child, signal, word)
    }

    /// Whether a step can be done to such a process; if not, why.
    pub(super) fn can(action: Action) -> std::result::Result<(), String> {
        if action == Action::Slow {
            Err("not applicable: proxies are not slowed down".to_owned())
        } else if action.cuts_off() {
            Err("not applicable: a proxy's packets are not cut off".to_owned())
        } else if matches!(action, Action::Repoint | Action::Restore) {
            Err(NO_NAME.to_owned())
        } else {
            Ok(())
        }
    }

    /// Carries out a step on it.
    pub(super) async fn carry_out(&mut self, due: &Due) -> Result<Applied> {
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
                tokio::spawn(watch_process(
                    clock,
                    child,
                    asked.earliest_ns,
                    telling.clone(),
                ));
                self.kill_after(due.grace_ns, telling);
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
                    ))
                    .hint("give its `stop` or `restart` a `grace`"));
                }
                let earliest_ns = clock.raw_ns();
                self.child = launch(
                    &self.host,
                    &self.recipe,
                    (&self.place, &self.log),
                    self.port,
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
                    "`{other}` cannot be done to proxy `{}`",
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

    fn kill_after(&self, grace_ns: Option<u64>, telling: mpsc::UnboundedSender<Seen>) {
        let Some(grace_ns) = grace_ns else { return };
        let child = self.child.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_nanos(grace_ns)).await;
            if matches!(child.signal(Signal::KILL), Ok(true)) {
                // An error means that nobody wants to know.
                let _ = telling.send(Seen::Note(
                    "still there after the grace: SIGKILL".to_owned(),
                ));
            }
        });
    }
}

fn launch(
    host: &Host,
    recipe: &Recipe,
    (place, log): (&Path, &Path),
    port: u16,
    name: &str,
) -> Result<Child> {
    let args = (recipe.args)(place, &place.join(&recipe.file), port);
    // In the foreground: the process started is the one that serves.
    let mut command = host.command(&recipe.program, args);
    // Its own: the configuration of whoever runs the lab has no part in it, nor may its
    // user read there.
    command
        .current_dir(place)
        .env("HOME", place)
        .env_remove("XDG_CONFIG_HOME");
    Child::start(&format!("proxy `{name}`"), command, log).map_err(|error| {
        Problem::new(format!(
            "cannot start {}: {error}",
            recipe.program.display()
        ))
    })
}
