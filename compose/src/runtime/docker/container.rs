//! Does things to one container.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::fault::Span;
use tokio::sync::mpsc;

use super::engine::Engine;
use super::events::{Event, Events, Waiting};
use crate::error::{Problem, Result};
use crate::runtime::Applied;
use crate::scenario::Action;
use crate::timeline::Due;
use crate::witness::{Seen, Telling};

/// How long `docker stop` waits before it kills, unless told otherwise.
const ENGINE_S_GRACE: u64 = 10;
/// An event comes within milliseconds; this long it is waited for.
const EVENT_WITHIN: Duration = Duration::from_secs(10);
/// What happened to it last, by this process.
const UP: u8 = 0;
const DOWN: u8 = 1;
const PAUSED: u8 = 2;
const DISCONNECTED: u8 = 3;

/// See the module's description.
pub(super) struct Container {
    engine: Engine,
    service: String,
    id: String,
    /// Its fixed address.
    address: std::net::IpAddr,
    events: Events,
    clock: Arc<dyn Clock>,
    state: Arc<AtomicU8>,
}

impl Container {
    pub(super) fn new(
        engine: Engine,
        (service, address): (&str, std::net::IpAddr),
        id: String,
        events: Events,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            engine,
            service: service.to_owned(),
            id,
            address,
            events,
            clock,
            state: Arc::new(AtomicU8::new(UP)),
        }
    }

    /// Whether a step can be done to a server in a container.
    pub(super) fn can(action: Action) -> std::result::Result<(), String> {
        match action {
            Action::Mute | Action::Reject => Err(
                "not applicable: a container is taken off its network as a whole; use --runtime \
                 process"
                    .to_owned(),
            ),
            Action::Slow => Err(
                "not applicable: a container cannot be slowed down here; use --runtime process"
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }

    /// Whether it has not ended, as far as is known here.
    pub(super) fn alive(&self) -> std::result::Result<(), String> {
        if self.state.load(Ordering::SeqCst) == DOWN {
            Err("its container has ended".to_owned())
        } else {
            Ok(())
        }
    }

    /// A failure, with the end of its log.
    pub(super) async fn problem(&self, what: &str) -> Problem {
        let state = self
            .engine
            .ask(&[
                "inspect",
                "--format",
                "{{.State.Status}} {{.State.ExitCode}}",
                &self.id,
            ])
            .await
            .unwrap_or_default();
        let logs = tokio::process::Command::new(&self.engine.docker)
            .args(["logs", "--tail", "8", &self.id])
            .stdin(std::process::Stdio::null())
            .output()
            .await
            .map(|output| {
                String::from_utf8_lossy(&output.stdout).into_owned()
                    + &String::from_utf8_lossy(&output.stderr)
            })
            .unwrap_or_default();
        Problem::new(format!(
            "{what}\ncontainer {} is {}; the end of its log:\n{}",
            self.service,
            state.trim(),
            logs.trim()
        ))
        .hint(
            "an engine in a virtual machine or on another host has addresses that this host \
             cannot connect to: run the lab where the engine is",
        )
    }

    /// Carries a step out. Witnesses of the caller's own tell by the other half.
    pub(super) async fn apply(&self, due: &Due) -> Result<(Applied, Telling)> {
        let (telling, seen) = mpsc::unbounded_channel();
        let grace_s = due
            .grace_ns
            .map_or(ENGINE_S_GRACE, |ns| ns.div_ceil(1_000_000_000));
        let grace = grace_s.to_string();
        let network = self.network(due.action).await?;
        let address = self.address.to_string();
        let (words, event): (Vec<&str>, &str) = match due.action {
            Action::Stop => (vec!["stop", "--time", &grace, &self.id], "kill"),
            Action::Kill => (vec!["kill", &self.id], "kill"),
            Action::Hang => (vec!["pause", &self.id], "pause"),
            Action::Resume if self.is(DISCONNECTED) => (
                vec!["network", "connect", "--ip", &address, &network, &self.id],
                "connect",
            ),
            Action::Resume => (vec!["unpause", &self.id], "unpause"),
            Action::BlackHole => (
                vec!["network", "disconnect", "--force", &network, &self.id],
                "disconnect",
            ),
            Action::Start => (vec!["start", &self.id], "start"),
            other => {
                return Err(Problem::new(format!(
                    "`{other}` cannot be done to container {}",
                    self.service
                )));
            }
        };
        let mut waiting = self.events.of(&self.id);
        let earliest_ns = self.clock.raw_ns();
        let asked = self.ask(&words, event, earliest_ns, &mut waiting).await?;
        let detail = format!("docker {}", words[..words.len() - 1].join(" "));
        let undoes = match due.action {
            Action::Stop | Action::Kill => {
                self.state.store(DOWN, Ordering::SeqCst);
                tokio::spawn(follow(
                    waiting,
                    Arc::clone(&self.clock),
                    asked.earliest_ns,
                    due.action == Action::Stop,
                    grace_s,
                    telling.clone(),
                ));
                false
            }
            Action::Hang => {
                self.state.store(PAUSED, Ordering::SeqCst);
                let after = asked.latest_ns.saturating_sub(asked.earliest_ns) as f64 / 1e6;
                // The receiver is still here.
                let _ = telling.send(Seen::Note(format!("paused within {after:.1} ms")));
                false
            }
            Action::BlackHole => {
                self.state.store(DISCONNECTED, Ordering::SeqCst);
                let note = "its address is gone with its interface: who connects anew waits until \
                            the address is given up for unreachable, some 3 s";
                let _ = telling.send(Seen::Note(note.to_owned()));
                false
            }
            _ => {
                self.state.store(UP, Ordering::SeqCst);
                true
            }
        };
        let applied = Applied {
            asked,
            cleared: undoes.then_some(asked),
            detail: format!("{detail} ({})", self.service),
            seen,
        };
        Ok((applied, telling))
    }

    fn is(&self, state: u8) -> bool {
        self.state.load(Ordering::SeqCst) == state
    }

    /// Asks the engine; returns when the event has come that says it was done.
    async fn ask(
        &self,
        words: &[&str],
        event: &str,
        earliest_ns: i64,
        waiting: &mut Waiting,
    ) -> Result<Span> {
        let mut command = tokio::process::Command::new(&self.engine.docker);
        command
            .args(words)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped());
        let failed = |why: String| {
            Problem::new(format!(
                "`docker {}` failed: {}",
                words.join(" "),
                why.trim()
            ))
        };
        let process = command.spawn().map_err(|error| failed(error.to_string()))?;
        // `stop` goes on long after it was asked for.
        let mut ended = tokio::spawn(process.wait_with_output());
        let told: Option<Event> = tokio::select! {
            told = waiting.next_of(event, EVENT_WITHIN) => told,
            output = &mut ended => {
                let output = output
                    .map_err(|error| failed(error.to_string()))?
                    .map_err(|error| failed(error.to_string()))?;
                if !output.status.success() {
                    return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
                }
                waiting.next_of(event, Duration::from_secs(1)).await
            }
        };
        let latest_ns = self.clock.raw_ns();
        let by_event = told.and_then(|told| told.within(earliest_ns, latest_ns));
        Ok(Span {
            earliest_ns,
            // It was done before the engine noted that it was.
            latest_ns: by_event.map_or(latest_ns, |span| span.latest_ns),
        })
    }

    /// The network that it is on, where a step needs that.
    async fn network(&self, action: Action) -> Result<String> {
        if action != Action::BlackHole && !(action == Action::Resume && self.is(DISCONNECTED)) {
            return Ok(String::new());
        }
        let label = "{{index .Config.Labels \"com.docker.compose.project\"}}";
        let project = self.inspect(label).await?;
        Ok(format!("{project}_lab"))
    }

    async fn inspect(&self, template: &str) -> Result<String> {
        self.engine
            .ask(&["inspect", "--format", template, &self.id])
            .await
            .map_err(|why| {
                Problem::new(format!("container {} cannot be asked: {why}", self.service))
            })
    }
}

/// Tells of a container's end.
async fn follow(
    mut waiting: Waiting,
    clock: Arc<dyn Clock>,
    asked_ns: i64,
    is_stop: bool,
    grace_s: u64,
    telling: Telling,
) {
    const PATIENCE: Duration = Duration::from_secs(3_600);
    while let Some(event) = waiting.next(PATIENCE).await {
        let attribute = |key: &str| event.attributes.get(key).map_or("", String::as_str);
        match event.action.as_str() {
            "kill" if is_stop && attribute("signal") == "9" => {
                let note = format!("still there after the grace of {grace_s} s: SIGKILL");
                // An error means that nobody wants to know.
                let _ = telling.send(Seen::Note(note));
            }
            "die" => {
                let now = clock.raw_ns();
                let when = event.within(asked_ns, now);
                let _ = telling.send(Seen::Gone(Span {
                    earliest_ns: asked_ns,
                    latest_ns: when.map_or(now, |span| span.latest_ns),
                }));
                let note = format!("ended: exit code {}", attribute("exitCode"));
                let _ = telling.send(Seen::Note(note));
                return;
            }
            _ => {}
        }
    }
}
