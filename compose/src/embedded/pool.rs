//! The backends behind a proxy, and which of them its health check believes in.
//!
//! Method: one task a backend checks every `interval`; `fall` failures in a row
//! mark it down, `rise` successes mark it up. All begin up, and the checks of
//! several backends are spread over the interval. As with real checks, the time
//! from a fault to the mark depends on the phase it comes at.
//!
//! What it cannot know: a check by connect stays green while a backend hangs,
//! since the kernel completes the connect; see [`CheckKind`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::clock::Clock;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::auth;
use super::wire::{Inbox, MAX_LOGIN_PAYLOAD};

/// A backend as a proxy knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolMember {
    /// Its name, for views and messages.
    pub name: String,
    /// Where it listens.
    pub addr: SocketAddr,
    /// Used only while all that are no backups are down.
    pub backup: bool,
}

/// What a health check does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckKind {
    /// Connects: green for a hung backend.
    Connect,
    /// Connects and waits for the protocol's greeting: red for a hung backend.
    Greeting,
}

/// A health check's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is checked.
    pub kind: CheckKind,
    /// Time between two checks, and the most one may take.
    pub interval: Duration,
    /// Failures in a row that mark a backend down; at least 1.
    pub fall: u32,
    /// Successes in a row that mark it up again; at least 1.
    pub rise: u32,
}

impl Default for HealthCheck {
    /// Connect, every 2 s, fall 2, rise 1.
    fn default() -> Self {
        Self {
            kind: CheckKind::Connect,
            interval: Duration::from_secs(2),
            fall: 2,
            rise: 1,
        }
    }
}

/// What a proxy thinks of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberView {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub addr: SocketAddr,
    /// Whether it is a backup.
    pub backup: bool,
    /// Whether new connections go to it.
    pub up: bool,
    /// Since when (RAW nanoseconds).
    pub since_ns: i64,
    /// Why the last failed check failed; empty if none did.
    pub failure: String,
    /// Whether an administrator wants no new connections to go there.
    pub drained: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct MemberState {
    pub(crate) up: bool,
    since_ns: i64,
    failure: String,
    /// An administrator wants no new connections to go there.
    pub(crate) drained: bool,
}

#[derive(Debug)]
struct Member {
    config: PoolMember,
    state: watch::Sender<MemberState>,
}

/// The backends of one proxy.
#[derive(Debug)]
pub(crate) struct Pool {
    members: Vec<Member>,
}

impl Pool {
    /// Starts checking; ends with `cancel`.
    pub(crate) fn start(
        members: Vec<PoolMember>,
        check: HealthCheck,
        clock: &Arc<dyn Clock>,
        cancel: &CancellationToken,
        tasks: &TaskTracker,
    ) -> Arc<Self> {
        let since_ns = clock.raw_ns();
        let members: Vec<Member> = members
            .into_iter()
            .map(|config| Member {
                config,
                state: watch::Sender::new(MemberState {
                    up: true,
                    since_ns,
                    failure: String::new(),
                    drained: false,
                }),
            })
            .collect();
        let pool = Arc::new(Self { members });
        let count = u32::try_from(pool.members.len()).unwrap_or(u32::MAX).max(1);
        for index in 0..pool.members.len() {
            let first = check.interval / count * u32::try_from(index).unwrap_or(0);
            let pool = Arc::clone(&pool);
            let clock = Arc::clone(clock);
            let cancel = cancel.clone();
            tasks.spawn(async move {
                let watching = pool.members[index].watch(check, first, &*clock);
                let _ = cancel.run_until_cancelled(watching).await;
            });
        }
        pool
    }

    /// What it thinks of each, in the order of configuration.
    pub(crate) fn view(&self) -> Vec<MemberView> {
        self.members
            .iter()
            .map(|member| {
                let state = member.state.borrow().clone();
                MemberView {
                    name: member.config.name.clone(),
                    addr: member.config.addr,
                    backup: member.config.backup,
                    up: state.up,
                    since_ns: state.since_ns,
                    failure: state.failure,
                    drained: state.drained,
                }
            })
            .collect()
    }

    /// Those that are up, in the order in which they are to be used: backups last.
    pub(crate) fn candidates(&self) -> Vec<usize> {
        let up = |backup: bool| {
            self.members
                .iter()
                .enumerate()
                .filter(move |(_, member)| {
                    let state = member.state.borrow();
                    member.config.backup == backup && state.up && !state.drained
                })
                .map(|(index, _)| index)
        };
        up(false).chain(up(true)).collect()
    }

    /// Whether new connections may go there.
    pub(crate) fn is_usable(&self, index: usize) -> bool {
        let state = self.members[index].state.borrow();
        state.up && !state.drained
    }

    /// Gives a backend no new connections, or again; false if there is none of
    /// that name.
    pub(crate) fn drain(&self, name: &str, on: bool) -> bool {
        let found = self.members.iter().find(|m| m.config.name == name);
        if let Some(member) = found {
            member.state.send_modify(|state| state.drained = on);
        }
        found.is_some()
    }

    pub(crate) fn member(&self, index: usize) -> &PoolMember {
        &self.members[index].config
    }

    pub(crate) fn subscribe(&self, index: usize) -> watch::Receiver<MemberState> {
        self.members[index].state.subscribe()
    }
}

impl Member {
    async fn watch(&self, check: HealthCheck, first: Duration, clock: &dyn Clock) {
        let interval = check.interval.max(Duration::from_millis(1));
        let mut timer = tokio::time::interval_at(tokio::time::Instant::now() + first, interval);
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // How many checks in a row spoke against the present state.
        let mut against = 0_u32;
        loop {
            timer.tick().await;
            let result = match tokio::time::timeout(interval, self.check(check.kind)).await {
                Ok(result) => result,
                Err(_) => Err(format!("no answer within {interval:?}")),
            };
            let up = self.state.borrow().up;
            if result.is_ok() == up {
                against = 0;
            } else {
                against = against.saturating_add(1);
            }
            let needed = if up { check.fall } else { check.rise };
            let flip = against >= needed.max(1);
            if flip {
                against = 0;
            }
            let failure = result.err();
            self.state.send_if_modified(|state| {
                if let Some(failure) = failure {
                    state.failure = failure;
                }
                if flip {
                    state.up = !up;
                    state.since_ns = clock.raw_ns();
                }
                flip
            });
        }
    }

    async fn check(&self, kind: CheckKind) -> Result<(), String> {
        let stream = TcpStream::connect(self.config.addr)
            .await
            .map_err(|error| format!("connect: {error}"))?;
        if kind == CheckKind::Connect {
            return Ok(());
        }
        let mut inbox = Inbox::default();
        let length = inbox
            .packet(&stream, MAX_LOGIN_PAYLOAD)
            .await
            .map_err(|error| format!("greeting: {error}"))?;
        let (_, payload) = inbox.peek(length);
        auth::read_greeting(payload)
            .map(drop)
            .ok_or_else(|| "the greeting is none".to_owned())
    }
}
