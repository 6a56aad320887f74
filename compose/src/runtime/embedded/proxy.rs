//! The lab's own proxies as parts of a lab. They run inside the lab's process, so
//! they can be stopped and started again, but not frozen.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use gapscope_proto::clock::Clock;
use gapscope_proto::fault::Span;
use tokio::sync::mpsc;

use super::credentials;
use crate::embedded::{L4Config, L4Proxy, L7Behaviour, L7Config, L7Proxy, MemberView, PoolMember};
use crate::error::{Problem, Result};
use crate::runtime::name::NO_NAME;
use crate::runtime::{Applied, Belief, Beliefs, Proxy, Viewer};
use crate::scenario::{Action, ProxyKind};
use crate::timeline::Due;
use crate::witness::{Login, Seen};

/// How long another program's socket may keep the port that a proxy comes back to.
const PORT_PATIENCE: u32 = 50;
const BETWEEN: Duration = Duration::from_millis(20);

#[derive(Debug)]
enum Inner {
    L4(L4Proxy),
    L7(L7Proxy),
}

impl Inner {
    fn addr(&self) -> SocketAddr {
        match self {
            Self::L4(proxy) => proxy.addr(),
            Self::L7(proxy) => proxy.addr(),
        }
    }

    async fn shutdown(&self) {
        match self {
            Self::L4(proxy) => proxy.shutdown().await,
            Self::L7(proxy) => proxy.shutdown().await,
        }
    }
}

/// An embedded proxy.
pub struct EmbeddedProxy {
    name: String,
    kind: ProxyKind,
    members: Vec<PoolMember>,
    login: Login,
    clock: Arc<dyn Clock>,
    addr: SocketAddr,
    /// None while it is down.
    inner: Option<Inner>,
    /// Of the proxy that runs now, for viewers.
    views: Arc<tokio::sync::watch::Sender<Option<View>>>,
}

type View = Arc<dyn Fn() -> Vec<MemberView> + Send + Sync>;

impl EmbeddedProxy {
    /// Starts one. As in the study's configuration, every backend but the first
    /// is a backup, checked every 2 s, down after two failures; but
    /// `l7-multiplexing` spreads statements over all.
    pub async fn start(
        name: &str,
        kind: ProxyKind,
        backends: &[(String, SocketAddr)],
        login: &Login,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let shares = kind == ProxyKind::L7Multiplexing;
        let members = backends
            .iter()
            .enumerate()
            .map(|(index, (name, addr))| PoolMember {
                name: name.clone(),
                addr: *addr,
                backup: index > 0 && !shares,
            })
            .collect();
        let mut proxy = Self {
            name: name.to_owned(),
            kind,
            members,
            login: login.clone(),
            clock,
            addr: SocketAddr::from(([127, 0, 0, 1], 0)),
            inner: None,
            views: Arc::new(tokio::sync::watch::Sender::new(None)),
        };
        proxy.bring_up().await?;
        Ok(proxy)
    }

    async fn bring_up(&mut self) -> Result<()> {
        let mut last = None;
        for _ in 0..PORT_PATIENCE {
            match self.try_once().await {
                Ok(inner) => {
                    self.addr = inner.addr();
                    let view: View = match &inner {
                        Inner::L4(proxy) => {
                            let pool = proxy.pool();
                            Arc::new(move || pool.view())
                        }
                        Inner::L7(proxy) => {
                            let pool = proxy.pool();
                            Arc::new(move || pool.view())
                        }
                    };
                    self.views.send_replace(Some(view));
                    self.inner = Some(inner);
                    return Ok(());
                }
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                    last = Some(error);
                    tokio::time::sleep(BETWEEN).await;
                }
                Err(error) => {
                    last = Some(error);
                    break;
                }
            }
        }
        let why = last.map_or_else(String::new, |error| error.to_string());
        Err(Problem::new(format!(
            "cannot start embedded proxy `{}` at {}: {why}",
            self.name, self.addr
        )))
    }

    async fn try_once(&self) -> std::io::Result<Inner> {
        let (members, clock) = (self.members.clone(), Arc::clone(&self.clock));
        let behaviour = match self.kind {
            ProxyKind::L7Reconnecting => L7Behaviour::Reconnecting,
            ProxyKind::L7Migrating => L7Behaviour::Migrating,
            ProxyKind::L7Multiplexing => L7Behaviour::Multiplexing,
            _ => {
                let mut config = L4Config::new(&self.name, members);
                config.port = self.addr.port();
                return L4Proxy::start(config, clock).await.map(Inner::L4);
            }
        };
        let mut config = L7Config::new(&self.name, members, credentials(&self.login));
        config.port = self.addr.port();
        config.behave(behaviour);
        L7Proxy::start(config, clock).await.map(Inner::L7)
    }

    async fn carry_out(&mut self, due: &Due) -> Result<Applied> {
        let (telling, seen) = mpsc::unbounded_channel();
        let earliest_ns = self.clock.raw_ns();
        let (cleared, detail) = match due.action {
            Action::Stop | Action::Kill => {
                let Some(inner) = self.inner.take() else {
                    return Err(self.cannot(due.action, "it is down already"));
                };
                self.views.send_replace(None);
                inner.shutdown().await;
                // The receiver is still here.
                let _ = telling.send(Seen::Gone(Span {
                    earliest_ns,
                    latest_ns: self.clock.raw_ns(),
                }));
                (
                    false,
                    "listener closed, all its connections closed".to_owned(),
                )
            }
            Action::Start => {
                if self.inner.is_some() {
                    return Err(self.cannot(due.action, "it is up"));
                }
                self.bring_up().await?;
                (true, "listens again, with nothing remembered".to_owned())
            }
            other => {
                let why = self.can(other).err().unwrap_or_default();
                return Err(self.cannot(other, &why));
            }
        };
        let asked = Span {
            earliest_ns,
            latest_ns: self.clock.raw_ns(),
        };
        Ok(Applied {
            asked,
            cleared: cleared.then_some(asked),
            detail,
            seen,
        })
    }

    fn cannot(&self, action: Action, why: &str) -> Problem {
        Problem::new(format!(
            "`{action}` cannot be done to proxy `{}`: {why}",
            self.name
        ))
    }
}

impl Proxy for EmbeddedProxy {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> SocketAddr {
        self.addr
    }

    fn program(&self) -> String {
        format!("embedded {}", self.kind)
    }

    fn can(&self, action: Action) -> std::result::Result<(), String> {
        match action {
            Action::Hang
            | Action::Resume
            | Action::BlackHole
            | Action::Mute
            | Action::Reject
            | Action::Slow => Err(
                "not applicable: it runs inside the lab's own process, which cannot be frozen"
                    .to_owned(),
            ),
            Action::Repoint | Action::Restore => Err(NO_NAME.to_owned()),
            _ => Ok(()),
        }
    }

    fn apply<'a>(&'a mut self, due: &'a Due) -> LocalBoxFuture<'a, Result<Applied>> {
        self.carry_out(due).boxed_local()
    }

    fn drain<'a>(&'a mut self, backend: &'a str, on: bool) -> LocalBoxFuture<'a, Result<String>> {
        let done = match &self.inner {
            Some(Inner::L4(proxy)) => proxy.drain(backend, on),
            Some(Inner::L7(proxy)) => proxy.drain(backend, on),
            None => false,
        };
        let result = if done {
            Ok(if on {
                "gets no new connections".to_owned()
            } else {
                "gets new connections again".to_owned()
            })
        } else {
            Err(self.cannot(Action::Drain, "it is down, or does not know that backend"))
        };
        futures::future::ready(result).boxed_local()
    }

    fn viewer(&self) -> Option<Box<dyn Viewer>> {
        Some(Box::new(EmbeddedViewer(self.views.subscribe())))
    }

    fn shut_down(&mut self) -> LocalBoxFuture<'_, ()> {
        async move {
            self.views.send_replace(None);
            if let Some(inner) = self.inner.take() {
                inner.shutdown().await;
            }
        }
        .boxed_local()
    }
}

struct EmbeddedViewer(tokio::sync::watch::Receiver<Option<View>>);

impl Viewer for EmbeddedViewer {
    fn look(&mut self) -> BoxFuture<'_, Beliefs> {
        let view = self.0.borrow().clone();
        let beliefs = view.map(|view| view().into_iter().map(belief).collect());
        futures::future::ready(beliefs.ok_or_else(|| "it is down".to_owned())).boxed()
    }
}

fn belief(member: MemberView) -> Belief {
    Belief {
        backend: member.name,
        state: match (member.up, member.drained) {
            (_, true) => "DRAIN",
            (true, false) => "UP",
            (false, false) => "DOWN",
        }
        .to_owned(),
        check: if member.up {
            String::new()
        } else {
            member.failure
        },
        sessions: None,
    }
}
