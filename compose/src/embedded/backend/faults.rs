//! Does faults to a backend, and stamps them; see the parent's description.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gapscope_proto::fault::Span;
use tokio_util::task::TaskTracker;

use super::{
    BACKLOG, ClearTruth, Cut, FaultError, FaultTruth, Held, Inner, Mode, Phase, bound_socket,
};

impl Inner {
    pub(super) fn not_now(&self, step: &'static str, mode: Mode) -> FaultError {
        FaultError::NotNow {
            step,
            name: self.config.name.clone(),
            mode,
        }
    }

    pub(super) async fn take_down(
        &self,
        step: &'static str,
        cut: Cut,
        held: Held,
        from: &[Mode],
    ) -> Result<FaultTruth, FaultError> {
        let asked_ns = self.now();
        let _one = self.faults.lock().await;
        let asked = Span {
            earliest_ns: asked_ns,
            latest_ns: self.now(),
        };
        let before_ns = self.now();
        let (mut truth, cancel, tasks) = {
            let mut gate = self.gate_mut();
            let effective_ns = self.now();
            if !from.contains(&gate.mode) {
                return Err(self.not_now(step, gate.mode));
            }
            let drain = matches!(held, Held::AfterStatement(_));
            if let Some(listener) = gate.listener.take() {
                // Refuses from here on, whoever else still holds the listener.
                let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
            }
            let refused_ns = self.now();
            let connections = self.connections();
            for connection in connections.values() {
                let mut phase = connection.phase();
                if !drain || *phase == Phase::Idle {
                    *phase = Phase::Closed;
                    connection.cut(cut);
                    connection.killed.cancel();
                }
            }
            let held = connections.len();
            gate.mode = if drain { Mode::Draining } else { Mode::Stopped };
            let effect = Span {
                earliest_ns: before_ns,
                latest_ns: effective_ns,
            };
            let truth = FaultTruth {
                asked,
                effect,
                listener_refused: Some(Span {
                    earliest_ns: effective_ns,
                    latest_ns: refused_ns,
                }),
                held_cut: (held > 0).then(|| Span {
                    earliest_ns: refused_ns,
                    latest_ns: self.now(),
                }),
                gone: None,
                held,
            };
            gate.tasks.close();
            (truth, gate.cancel.clone(), gate.tasks.clone())
        };
        self.announce();
        if self.gate().mode == Mode::Draining {
            let grace = match held {
                Held::AfterStatement(grace) => grace,
                Held::CutAtOnce => Duration::ZERO,
            };
            self.drain(grace, &mut truth).await;
        }
        let gone_after_ns = self.now();
        cancel.cancel();
        tasks.wait().await;
        truth.gone = Some(Span {
            earliest_ns: gone_after_ns,
            latest_ns: self.now(),
        });
        Ok(truth)
    }

    pub(super) fn cut_clients(&self) -> usize {
        // No byte of an answer leaves while this is held.
        let _gate = self.gate_mut();
        let connections = self.connections();
        for connection in connections.values() {
            *connection.phase() = Phase::Closed;
            connection.cut(Cut::Fin);
            connection.killed.cancel();
        }
        connections.len()
    }

    /// Waits for running statements, then closes the gate for good.
    async fn drain(&self, grace: Duration, truth: &mut FaultTruth) {
        let all_closed = async {
            let mut modes = self.modes.subscribe();
            while !self.connections().is_empty() {
                // A closing connection announces itself.
                modes.mark_unchanged();
                if self.connections().is_empty() || modes.changed().await.is_err() {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(grace, all_closed).await;
        {
            let mut gate = self.gate_mut();
            for connection in self.connections().values() {
                *connection.phase() = Phase::Closed;
                connection.cut(Cut::Fin);
            }
            gate.mode = Mode::Stopped;
            let now_ns = self.now();
            truth.effect.latest_ns = now_ns;
            if let Some(cut) = &mut truth.held_cut {
                cut.latest_ns = now_ns;
            }
        }
        self.announce();
    }

    pub(super) async fn silence(
        &self,
        step: &'static str,
        mode: Mode,
    ) -> Result<FaultTruth, FaultError> {
        let asked_ns = self.now();
        let _one = self.faults.lock().await;
        let asked = Span {
            earliest_ns: asked_ns,
            latest_ns: self.now(),
        };
        let before_ns = self.now();
        let truth = {
            let mut gate = self.gate_mut();
            let effective_ns = self.now();
            if gate.mode != Mode::Serving {
                return Err(self.not_now(step, gate.mode));
            }
            gate.mode = mode;
            FaultTruth {
                asked,
                effect: Span {
                    earliest_ns: before_ns,
                    latest_ns: effective_ns,
                },
                listener_refused: None,
                held_cut: None,
                gone: None,
                held: self.connections().len(),
            }
        };
        self.announce();
        Ok(truth)
    }

    /// What is added to each greeting and each statement.
    pub(super) fn slowness(&self) -> Duration {
        Duration::from_nanos(self.slow_ns.load(Ordering::SeqCst))
    }

    pub(super) async fn slow(&self, by: Duration) -> Result<FaultTruth, FaultError> {
        let asked_ns = self.now();
        let _one = self.faults.lock().await;
        let asked = Span {
            earliest_ns: asked_ns,
            latest_ns: self.now(),
        };
        let earliest_ns = self.now();
        // No answer leaves while this is held, and all that are worked out after it
        // are late.
        let gate = self.gate_mut();
        if gate.mode != Mode::Serving || self.slow_ns.load(Ordering::SeqCst) > 0 {
            return Err(self.not_now("slow down", gate.mode));
        }
        let by_ns = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.slow_ns.store(by_ns, Ordering::SeqCst);
        Ok(FaultTruth {
            asked,
            effect: Span {
                earliest_ns,
                latest_ns: self.now(),
            },
            listener_refused: None,
            held_cut: None,
            gone: None,
            held: self.connections().len(),
        })
    }

    pub(super) async fn resume(&self) -> Result<ClearTruth, FaultError> {
        let asked_ns = self.now();
        let _one = self.faults.lock().await;
        let asked = Span {
            earliest_ns: asked_ns,
            latest_ns: self.now(),
        };
        let earliest_ns = {
            let mut gate = self.gate_mut();
            let was_slow = self.slow_ns.swap(0, Ordering::SeqCst) > 0;
            if !was_slow && !matches!(gate.mode, Mode::Hung | Mode::BlackHoled | Mode::Muted) {
                return Err(self.not_now("resume", gate.mode));
            }
            for connection in self.connections().values() {
                if connection.tainted.load(Ordering::SeqCst) {
                    *connection.phase() = Phase::Closed;
                    connection.cut(Cut::Rst);
                    connection.killed.cancel();
                }
            }
            gate.mode = Mode::Serving;
            self.now()
        };
        self.announce();
        Ok(ClearTruth {
            asked,
            cleared: Span {
                earliest_ns,
                latest_ns: self.now(),
            },
        })
    }

    pub(super) async fn restart(self: &Arc<Self>) -> Result<ClearTruth, FaultError> {
        let asked_ns = self.now();
        let _one = self.faults.lock().await;
        let asked = Span {
            earliest_ns: asked_ns,
            latest_ns: self.now(),
        };
        let listen_error = |source| FaultError::Listen {
            name: self.config.name.clone(),
            addr: self.addr,
            source,
        };
        let socket = bound_socket(self.addr).map_err(listen_error)?;
        let (earliest_ns, listener) = {
            let mut gate = self.gate_mut();
            if gate.mode != Mode::Stopped || self.shutdown.is_cancelled() {
                return Err(self.not_now("restart", gate.mode));
            }
            self.next_id
                .store(self.config.first_connection_id, Ordering::SeqCst);
            let earliest_ns = self.now();
            let listener = Arc::new(socket.listen(BACKLOG).map_err(listen_error)?);
            gate.mode = Mode::Serving;
            gate.epoch += 1;
            gate.listener = Some(Arc::clone(&listener));
            gate.cancel = self.shutdown.child_token();
            gate.tasks = TaskTracker::new();
            (earliest_ns, listener)
        };
        self.announce();
        self.spawn_accept(listener);
        Ok(ClearTruth {
            asked,
            cleared: Span {
                earliest_ns,
                latest_ns: self.now(),
            },
        })
    }
}
