//! The lab's own backends as parts of a lab. What was done to an embedded backend
//! is known exactly, so nothing has to be witnessed.

mod proxy;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use gapscope_proto::clock::Clock;
use tokio::sync::mpsc;

pub use self::proxy::EmbeddedProxy;
use super::{Applied, Backend, DEFAULT_DELAY_NS};
use crate::embedded::{self, BackendConfig, ClearTruth, Credentials, FaultError, FaultTruth, Held};
use crate::error::{Problem, Result};
use crate::scenario::Action;
use crate::timeline::Due;
use crate::witness::{Login, Seen};

/// How long a graceful stop lets running statements end, unless told otherwise.
const STATEMENT_GRACE: Duration = Duration::from_secs(1);

fn credentials(login: &Login) -> Credentials {
    Credentials::new(login.user.clone(), login.password.clone())
}

/// An embedded backend.
#[derive(Debug)]
pub struct EmbeddedBackend {
    inner: embedded::Backend,
    version: String,
}

impl EmbeddedBackend {
    /// Starts one; `place`: there, else on a free loopback port.
    pub async fn start(
        (name, server_id): (&str, u32),
        place: Option<SocketAddr>,
        login: &Login,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let mut config = BackendConfig::new(name);
        if let Some(SocketAddr::V4(place)) = place {
            (config.ip, config.port) = (*place.ip(), place.port());
        }
        config.server_id = server_id;
        config.credentials = credentials(login);
        let version = config.version.clone();
        let inner = embedded::Backend::start(config, clock)
            .await
            .map_err(|error| {
                Problem::new(format!("cannot start embedded backend `{name}`: {error}"))
            })?;
        Ok(Self { inner, version })
    }

    async fn carry_out(&self, due: &Due) -> Result<Applied> {
        let backend = &self.inner;
        let failed = |error: FaultError| Problem::new(error.to_string());
        let (detail, outcome) = match due.action {
            Action::Stop => {
                let grace = due.grace_ns.map_or(STATEMENT_GRACE, Duration::from_nanos);
                (
                    "stopped: listener closed, held connections closed (FIN)",
                    Outcome::Fault(
                        backend
                            .stop_gracefully(Held::AfterStatement(grace))
                            .await
                            .map_err(failed)?,
                    ),
                )
            }
            Action::Kill => (
                "crashed: listener closed, held connections reset (RST)",
                Outcome::Fault(backend.crash().await.map_err(failed)?),
            ),
            Action::Hang => (
                "hung: accepts nothing further, answers nothing",
                Outcome::Fault(backend.hang().await.map_err(failed)?),
            ),
            Action::BlackHole => (
                "cut off: swallows all bytes",
                Outcome::Fault(backend.black_hole().await.map_err(failed)?),
            ),
            Action::Resume => (
                "answers again",
                Outcome::Clear(backend.resume().await.map_err(failed)?),
            ),
            Action::Start => (
                "listens again",
                Outcome::Clear(backend.restart().await.map_err(failed)?),
            ),
            Action::Mute => (
                "muted: does what it is told, and no answer leaves",
                Outcome::Fault(backend.mute().await.map_err(failed)?),
            ),
            Action::Slow => (
                "slow: each greeting and each statement takes longer",
                Outcome::Fault(
                    backend
                        .slow(Duration::from_nanos(
                            due.lasts_ns.unwrap_or(DEFAULT_DELAY_NS),
                        ))
                        .await
                        .map_err(failed)?,
                ),
            ),
            Action::Reject => {
                return Err(Problem::new(self.can(due.action).err().unwrap_or_default()));
            }
            Action::Restart
            | Action::Drain
            | Action::Undrain
            | Action::LongQuery
            | Action::Repoint
            | Action::Restore => {
                return Err(Problem::new(format!(
                    "`{}` is not done to a backend itself",
                    due.action
                )));
            }
        };
        Ok(outcome.applied(detail))
    }
}

enum Outcome {
    Fault(FaultTruth),
    Clear(ClearTruth),
}

impl Outcome {
    fn applied(self, detail: &str) -> Applied {
        let (telling, seen) = mpsc::unbounded_channel();
        match self {
            Self::Clear(truth) => Applied {
                asked: truth.asked,
                cleared: Some(truth.cleared),
                detail: detail.to_owned(),
                seen,
            },
            Self::Fault(truth) => {
                for seen in [
                    truth.listener_refused.map(Seen::ListenerRefused),
                    truth.held_cut.map(Seen::HeldCut),
                    truth.gone.map(Seen::Gone),
                ]
                .into_iter()
                .flatten()
                {
                    // The receiver is still here.
                    let _ = telling.send(seen);
                }
                let after = |ns: i64| ns.saturating_sub(truth.asked.earliest_ns) as f64 / 1e6;
                Applied {
                    asked: truth.asked,
                    cleared: None,
                    detail: format!(
                        "{detail}; in force {:.3} to {:.3} ms after it was asked for, {} \
                         connections held",
                        after(truth.effect.earliest_ns),
                        after(truth.effect.latest_ns),
                        truth.held
                    ),
                    seen,
                }
            }
        }
    }
}

impl Backend for EmbeddedBackend {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn address(&self) -> SocketAddr {
        self.inner.addr()
    }

    fn program(&self) -> String {
        format!("embedded backend {}", self.version)
    }

    fn can(&self, action: Action) -> std::result::Result<(), String> {
        match action {
            Action::Reject => Err(
                "not applicable: an embedded backend has no packets of its own; use --runtime \
                 process"
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }

    fn prepare(&mut self, _action: Action) -> LocalBoxFuture<'_, Result<()>> {
        futures::future::ready(Ok(())).boxed_local()
    }

    fn apply<'a>(&'a mut self, due: &'a Due) -> LocalBoxFuture<'a, Result<Applied>> {
        self.carry_out(due).boxed_local()
    }

    fn cut_clients(&mut self) -> LocalBoxFuture<'_, Result<String>> {
        let cut = self.inner.cut_clients();
        futures::future::ready(Ok(cut.to_string())).boxed_local()
    }

    fn shut_down(&mut self) -> LocalBoxFuture<'_, ()> {
        self.inner.shutdown().boxed_local()
    }
}
