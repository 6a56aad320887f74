//! A database server that speaks the protocol on a real loopback socket, and
//! whose faults are known exactly.
//!
//! Method: every byte of an answer is written by a non-blocking system call
//! made while holding the gate's read lock; a fault takes the write lock. So
//! the moment of a fault is the moment the write lock is acquired, and it is
//! bracketed by two stamps: one before asking for the lock, one right after
//! acquiring it. That gives, for [`FaultTruth::effect`]:
//! - before `effect.earliest_ns` statements are answered as ever;
//! - from `effect.latest_ns` on, no byte of an answer, greeting or login
//!   leaves the server, until the fault is cleared.
//!
//! and for [`ClearTruth::cleared`]:
//! - before `cleared.earliest_ns` nothing is answered;
//! - from `cleared.latest_ns` on, every connect is accepted and every statement
//!   answered, as soon as the machine gets to it.
//!
//! Sockets are faulted by system calls on the sockets themselves, under that
//! same lock, not by waiting for tasks to notice: `shutdown` makes a listener
//! refuse and sends a FIN, a disconnect sends a RST.
//!
//! What it cannot know: how long the kernel and the client take to see what was
//! sent; an answer written just before a fault can be read just after it.
//! Black holes are an approximation (see [`Backend::black_hole`]).

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::fault::Span;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::auth::{self, Credentials, Scramble};
use super::session::{After, Facts, Session, VariablesSchema};
use super::wire::{Inbox, MAX_LOGIN_PAYLOAD, MAX_PAYLOAD, Outbox, ReadError, SqlError};

/// How a backend is set up. Start from [`BackendConfig::new`] and change fields.
#[derive(Debug, Clone)]
pub struct BackendConfig {
    /// Name in the scenario, for messages.
    pub name: String,
    /// What `@@hostname` says; several backends may share one.
    pub hostname: String,
    /// Port on 127.0.0.1; 0 takes a free one, which is then kept over restarts.
    pub port: u16,
    /// First connection id; the next one is one more. A restart begins again
    /// with it, as real servers do. Backends with equal numbers hand out equal
    /// ids to clients that connect in step.
    pub first_connection_id: u32,
    /// Every connection gets `first_connection_id`: for asking whether equal
    /// ids on several servers hide anything. `KILL` then ends any one of them.
    pub constant_connection_id: bool,
    /// What `VERSION()` and the greeting say.
    pub version: String,
    /// What `@@server_id` says.
    pub server_id: u32,
    /// Who may log in.
    pub credentials: Credentials,
    /// Time added to each statement, with the timer's resolution of 1 ms.
    pub latency: Option<Duration>,
    /// Whether CLIENT_DEPRECATE_EOF is offered (clients still choose).
    pub deprecate_eof: bool,
    /// Which table knows the global variables.
    pub variables: VariablesSchema,
    /// Connections beyond this are told "too many connections" (1040).
    pub max_connections: usize,
}

impl BackendConfig {
    /// A backend called `name`, host name `name`, user `probe` without a password.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            hostname: name.clone(),
            name,
            port: 0,
            first_connection_id: 1,
            constant_connection_id: false,
            version: "11.4.99-gapscope-embedded".into(),
            server_id: 1,
            credentials: Credentials::new("probe", ""),
            latency: None,
            deprecate_eof: true,
            variables: VariablesSchema::InformationSchema,
            max_connections: 1000,
        }
    }
}

/// What a backend does at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Answers.
    Serving,
    /// Stopping gracefully: refuses new connections, finishes running statements.
    Draining,
    /// Not there: refuses.
    Stopped,
    /// There, as a stopped process: the kernel accepts, nobody answers.
    Hung,
    /// Swallows whatever is sent.
    BlackHoled,
}

/// What a graceful stop does with held connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// All are closed (FIN) at once, running statements unanswered.
    CutAtOnce,
    /// Idle ones are closed at once, others after their running statement is
    /// answered, or after this long at the latest.
    AfterStatement(Duration),
}

/// The exact truth about a fault, all spans in RAW nanoseconds of the clock
/// given to [`Backend::start`]. See the module's description for their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultTruth {
    /// The call's entry.
    pub asked: Span,
    /// When answers ceased. A draining stop: from the first connection closed
    /// to the last one.
    pub effect: Span,
    /// When the listener began to refuse; none if it still accepts.
    pub listener_refused: Option<Span>,
    /// From when the first to when the last held connection was cut; none if
    /// none was cut.
    pub held_cut: Option<Span>,
    /// When nothing of it was left; none if it is still there.
    pub gone: Option<Span>,
    /// How many connections were held (logged in or not) when it took effect.
    pub held: usize,
}

/// The exact truth about the end of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClearTruth {
    /// The call's entry.
    pub asked: Span,
    /// When answers began again.
    pub cleared: Span,
}

/// Why a fault or its end could not be done.
#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    /// It does not fit what the backend does now.
    #[error("cannot {step} embedded backend `{name}`: it is {mode:?}")]
    NotNow {
        /// What was asked for.
        step: &'static str,
        /// Which backend.
        name: String,
        /// What it does now.
        mode: Mode,
    },
    /// The port could not be listened on again.
    #[error("cannot restart embedded backend `{name}` on {addr}: {source}")]
    Listen {
        /// Which backend.
        name: String,
        /// Where.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// A running backend. Dropping it ends its tasks; [`Backend::shutdown`] also
/// waits for them.
#[derive(Debug)]
pub struct Backend {
    inner: Arc<Inner>,
}

struct Inner {
    config: BackendConfig,
    facts: Facts,
    clock: Arc<dyn Clock>,
    addr: SocketAddr,
    /// Bound, never listening: keeps the port ours while the backend is stopped.
    _port_holder: TcpSocket,
    gate: RwLock<Gate>,
    modes: watch::Sender<Mode>,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    next_serial: AtomicU64,
    next_id: AtomicU32,
    statements: AtomicU64,
    permits: Arc<Semaphore>,
    slots: Arc<Semaphore>,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    /// One fault at a time.
    faults: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend")
            .field("name", &self.config.name)
            .field("addr", &self.addr)
            .field("mode", &self.gate().mode)
            .finish_non_exhaustive()
    }
}

/// What may be written, by whom.
struct Gate {
    mode: Mode,
    /// Goes up with each restart: connections of an older one are dead.
    epoch: u64,
    listener: Option<Arc<TcpListener>>,
    /// Ends the tasks of this epoch.
    cancel: CancellationToken,
    tasks: TaskTracker,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Busy,
    Closed,
}

struct Connection {
    id: u32,
    stream: TcpStream,
    phase: Mutex<Phase>,
    /// Something it sent or was to be sent was swallowed by a black hole.
    tainted: AtomicBool,
    killed: CancellationToken,
}

#[derive(Debug, Clone, Copy)]
enum Cut {
    Fin,
    Rst,
}

impl Connection {
    /// Cuts the connection now, whatever its task is doing.
    fn cut(&self, how: Cut) {
        // Errors mean that it is cut already.
        let _ = match how {
            Cut::Fin => rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Write),
            // Dissolving the association of an established connection sends a RST.
            Cut::Rst => rustix::net::connect_unspec(&self.stream),
        };
    }

    fn phase(&self) -> std::sync::MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Binds 127.0.0.1:`port` for listening; a second socket holds the port.
fn listen_and_hold(port: u16) -> io::Result<(TcpListener, TcpSocket)> {
    let socket = bound_socket(port)?;
    let holder = bound_socket(socket.local_addr()?.port())?;
    Ok((socket.listen(BACKLOG)?, holder))
}

fn bound_socket(port: u16) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from(([127, 0, 0, 1], port)))?;
    Ok(socket)
}

/// Connections the kernel completes before they are accepted.
const BACKLOG: u32 = 128;

impl Backend {
    /// Starts a backend; errs if its port cannot be listened on.
    pub async fn start(config: BackendConfig, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let (listener, port_holder) = listen_and_hold(config.port)?;
        let addr = listener.local_addr()?;
        let listener = Arc::new(listener);
        let facts = Facts {
            hostname: config.hostname.clone(),
            port: addr.port(),
            server_id: config.server_id,
            version: config.version.clone(),
            user: config.credentials.user.clone(),
            variables: config.variables,
            read_only: AtomicBool::new(false),
        };
        let shutdown = CancellationToken::new();
        let gate = Gate {
            mode: Mode::Serving,
            epoch: 0,
            listener: Some(Arc::clone(&listener)),
            cancel: shutdown.child_token(),
            tasks: TaskTracker::new(),
        };
        let inner = Arc::new(Inner {
            facts,
            clock,
            addr,
            _port_holder: port_holder,
            modes: watch::Sender::new(Mode::Serving),
            connections: Mutex::default(),
            next_serial: AtomicU64::new(0),
            next_id: AtomicU32::new(config.first_connection_id),
            statements: AtomicU64::new(0),
            permits: Arc::new(Semaphore::new(config.max_connections)),
            slots: Arc::new(Semaphore::new(config.max_connections.saturating_add(16))),
            shutdown,
            tasks: TaskTracker::new(),
            faults: tokio::sync::Mutex::new(()),
            gate: RwLock::new(gate),
            config,
        });
        inner.spawn_accept(listener);
        Ok(Self { inner })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.inner.addr
    }

    /// Its name in the scenario.
    pub fn name(&self) -> &str {
        &self.inner.config.name
    }

    /// What the default identity expression answers: `hostname:port`.
    pub fn identity(&self) -> String {
        format!("{}:{}", self.inner.facts.hostname, self.inner.facts.port)
    }

    /// What it does at the moment.
    pub fn mode(&self) -> Mode {
        self.inner.gate().mode
    }

    /// Connections held at the moment, logged in or not.
    pub fn connections(&self) -> usize {
        self.inner.connections().len()
    }

    /// Commands answered since the start, over all restarts.
    pub fn statements(&self) -> u64 {
        self.inner.statements.load(Ordering::Relaxed)
    }

    /// From the returned span's end on, writes are refused with 1290 (or not).
    /// It stays over restarts.
    pub fn set_read_only(&self, read_only: bool) -> Span {
        let earliest_ns = self.inner.clock.raw_ns();
        self.inner
            .facts
            .read_only
            .store(read_only, Ordering::SeqCst);
        Span {
            earliest_ns,
            latest_ns: self.inner.clock.raw_ns(),
        }
    }

    /// Stops as a server told to: refuses new connections at once, then closes
    /// the held ones with a FIN. Returns when nothing is left. Errs unless it is
    /// serving: a stopped process does not hear that it is to end.
    pub async fn stop_gracefully(&self, held: Held) -> Result<FaultTruth, FaultError> {
        self.inner
            .take_down("stop", Cut::Fin, held, &[Mode::Serving])
            .await
    }

    /// Vanishes as a killed process whose connections are reset: refuses new
    /// connections at once, resets held ones. Returns when nothing is left.
    /// Errs unless it is serving or hung.
    pub async fn crash(&self) -> Result<FaultTruth, FaultError> {
        self.inner
            .take_down(
                "crash",
                Cut::Rst,
                Held::CutAtOnce,
                &[Mode::Serving, Mode::Hung],
            )
            .await
    }

    /// Freezes as a process under SIGSTOP: it accepts nothing further (the
    /// kernel still completes connects, up to its backlog) and answers nothing.
    /// What clients send waits, and is answered after [`Self::resume`].
    pub async fn hang(&self) -> Result<FaultTruth, FaultError> {
        self.inner.silence("hang", Mode::Hung).await
    }

    /// Swallows all bytes: held connections stay open and get no answer, new
    /// ones are accepted and never greeted, a client's FIN is not answered.
    ///
    /// An approximation of dropped packets, made inside the process: TCP still
    /// acknowledges, so what was swallowed is never sent again. Therefore
    /// [`Self::resume`] resets the connections that lost something, as a
    /// firewall that forgot them would; the others are kept.
    pub async fn black_hole(&self) -> Result<FaultTruth, FaultError> {
        self.inner.silence("black-hole", Mode::BlackHoled).await
    }

    /// Ends [`Self::hang`] or [`Self::black_hole`].
    pub async fn resume(&self) -> Result<ClearTruth, FaultError> {
        self.inner.resume().await
    }

    /// Listens again, on the same port, after [`Self::stop_gracefully`] or [`Self::crash`].
    pub async fn restart(&self) -> Result<ClearTruth, FaultError> {
        self.inner.restart().await
    }

    /// [`Self::resume`] or [`Self::restart`], whichever fits.
    pub async fn clear(&self) -> Result<ClearTruth, FaultError> {
        match self.mode() {
            Mode::Stopped => self.restart().await,
            _ => self.resume().await,
        }
    }

    /// Ends everything and waits for it. The port is free once the backend is dropped.
    pub async fn shutdown(&self) {
        let any = [Mode::Serving, Mode::Hung, Mode::BlackHoled];
        // An error means that it is stopped already.
        let _ = self
            .inner
            .take_down("shut down", Cut::Fin, Held::CutAtOnce, &any)
            .await;
        self.inner.shutdown.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.inner.shutdown.cancel();
    }
}

impl Inner {
    fn gate(&self) -> RwLockReadGuard<'_, Gate> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn gate_mut(&self) -> RwLockWriteGuard<'_, Gate> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn connections(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> i64 {
        self.clock.raw_ns()
    }

    fn not_now(&self, step: &'static str, mode: Mode) -> FaultError {
        FaultError::NotNow {
            step,
            name: self.config.name.clone(),
            mode,
        }
    }

    async fn take_down(
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

    async fn silence(&self, step: &'static str, mode: Mode) -> Result<FaultTruth, FaultError> {
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

    async fn resume(&self) -> Result<ClearTruth, FaultError> {
        let asked_ns = self.now();
        let _one = self.faults.lock().await;
        let asked = Span {
            earliest_ns: asked_ns,
            latest_ns: self.now(),
        };
        let earliest_ns = {
            let mut gate = self.gate_mut();
            if !matches!(gate.mode, Mode::Hung | Mode::BlackHoled) {
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

    async fn restart(self: &Arc<Self>) -> Result<ClearTruth, FaultError> {
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
        let socket = bound_socket(self.addr.port()).map_err(listen_error)?;
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

    /// Wakes whoever waits for the gate.
    fn announce(&self) {
        let mode = self.gate().mode;
        self.modes.send_replace(mode);
    }

    fn spawn_accept(self: &Arc<Self>, listener: Arc<TcpListener>) {
        let gate = self.gate();
        let (epoch, cancel, tasks) = (gate.epoch, gate.cancel.clone(), gate.tasks.clone());
        drop(gate);
        let inner = Arc::clone(self);
        let all = self.tasks.clone();
        all.spawn(tasks.clone().track_future(async move {
            let accepting = inner.accept(&listener, epoch, &cancel, &tasks);
            let _ = cancel.run_until_cancelled(accepting).await;
        }));
    }

    async fn accept(
        self: &Arc<Self>,
        listener: &TcpListener,
        epoch: u64,
        cancel: &CancellationToken,
        tasks: &TaskTracker,
    ) {
        let mut modes = self.modes.subscribe();
        loop {
            if *modes.borrow_and_update() == Mode::Hung {
                if modes.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let Ok(slot) = Arc::clone(&self.slots).acquire_owned().await else {
                return;
            };
            let accepted = tokio::select! {
                biased;
                _ = modes.changed() => continue,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let inner = Arc::clone(self);
                    let cancel = cancel.clone();
                    self.tasks.spawn(tasks.track_future(async move {
                        inner.serve(stream, epoch, &cancel).await;
                        drop(slot);
                    }));
                }
                // Out of file handles, or the listener was shut down and the
                // task is about to be cancelled.
                Err(error) => {
                    tracing::debug!(backend = self.config.name, %error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    async fn serve(self: &Arc<Self>, stream: TcpStream, epoch: u64, cancel: &CancellationToken) {
        let _ = stream.set_nodelay(true);
        let serial = self.next_serial.fetch_add(1, Ordering::Relaxed);
        let connection = {
            // Registered under the gate, so that a fault sees either a
            // registered connection or none that was served.
            let gate = self.gate();
            if gate.epoch != epoch || matches!(gate.mode, Mode::Stopped | Mode::Draining) {
                let _ = stream.set_zero_linger();
                return;
            }
            let connection = Arc::new(Connection {
                id: self.next_id.fetch_add(
                    u32::from(!self.config.constant_connection_id),
                    Ordering::SeqCst,
                ),
                stream,
                phase: Mutex::new(Phase::Idle),
                tainted: AtomicBool::new(false),
                killed: CancellationToken::new(),
            });
            self.connections().insert(serial, Arc::clone(&connection));
            connection
        };
        let _registered = Registered {
            inner: self,
            serial,
        };
        let mut talk = Talk {
            inner: self,
            connection: &connection,
            epoch,
            modes: self.modes.subscribe(),
            inbox: Inbox::default(),
        };
        let killed = tokio::select! {
            biased;
            () = cancel.cancelled() => false,
            () = connection.killed.cancelled() => true,
            _ = talk.converse() => false,
        };
        if killed && *connection.phase() == Phase::Busy {
            let mut out = Vec::new();
            Outbox::new(&mut out, 1).error(&SqlError::new(1927, "70100", "Connection was killed"));
            let _ = cancel.run_until_cancelled(talk.send(&out)).await;
        }
    }

    /// Ends connection `id`; false if there is none.
    fn kill(&self, id: u64) -> bool {
        let connections = self.connections();
        let victim = connections
            .values()
            .find(|connection| u64::from(connection.id) == id);
        if let Some(connection) = victim {
            connection.killed.cancel();
        }
        victim.is_some()
    }
}

/// Takes a connection off the list when its task ends, however it ends.
struct Registered<'a> {
    inner: &'a Inner,
    serial: u64,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        let connection = self.inner.connections().remove(&self.serial);
        drop(connection);
        if *self.inner.modes.borrow() == Mode::Draining {
            // Wakes the drain; the mode is its business.
            self.inner.modes.send_modify(|_| {});
        }
    }
}

/// The conversation is over.
struct Over;

impl From<io::Error> for Over {
    fn from(_: io::Error) -> Self {
        Self
    }
}

struct Talk<'a> {
    inner: &'a Inner,
    connection: &'a Connection,
    epoch: u64,
    modes: watch::Receiver<Mode>,
    inbox: Inbox,
}

impl Talk<'_> {
    async fn converse(&mut self) -> Result<(), Over> {
        let inner = self.inner;
        let mut out = Vec::with_capacity(1024);
        let Ok(_permit) = inner.permits.try_acquire() else {
            // Before the greeting an error has no state.
            Outbox::new(&mut out, 0).error(&SqlError::new(1040, "", "Too many connections"));
            return self.send(&out).await;
        };
        let Some(login) = self.log_in(&mut out).await? else {
            return Ok(());
        };
        let deprecate_eof = login
            .capabilities
            .contains(mysql_common::constants::CapabilityFlags::CLIENT_DEPRECATE_EOF);
        let mut session = Session::new(
            &inner.facts,
            self.connection.id,
            deprecate_eof,
            login.database,
        );
        loop {
            let length = match self.receive(MAX_PAYLOAD).await {
                Ok(length) => length,
                Err(TooLong) => {
                    out.clear();
                    let message = "Got a packet bigger than 'max_allowed_packet' bytes";
                    Outbox::new(&mut out, 1).error(&SqlError::new(1153, "08S01", message));
                    return self.send(&out).await;
                }
            }?;
            if !self.begin_statement() {
                return Err(Over);
            }
            out.clear();
            let (_, command) = self.inbox.peek(length);
            let after = session.handle(command, &mut out);
            self.inbox.consume(length);
            match after {
                After::Silence => {}
                After::Close => return self.send(&out).await,
                After::Kill { id } => {
                    let mut answer = Outbox::new(&mut out, 1);
                    if inner.kill(id) {
                        answer.ok(session.status());
                    } else {
                        let message = format!("Unknown thread id: {id}");
                        answer.error(&SqlError::new(1094, "HY000", message));
                    }
                    self.send(&out).await?;
                }
                After::Answer(sleep) => {
                    let wait = sleep + inner.config.latency.unwrap_or_default();
                    if !wait.is_zero() {
                        tokio::time::sleep(wait).await;
                    }
                    self.send(&out).await?;
                    if !self.connection.tainted.load(Ordering::SeqCst) {
                        inner.statements.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            self.end_statement()?;
            if out.capacity() > 1 << 20 {
                out = Vec::with_capacity(1024);
            }
        }
    }

    fn begin_statement(&self) -> bool {
        let mut phase = self.connection.phase();
        if *phase == Phase::Idle {
            *phase = Phase::Busy;
        }
        *phase == Phase::Busy
    }

    fn end_statement(&self) -> Result<(), Over> {
        // Same order of locks as in a fault: first the gate, then the phase.
        let gate = self.inner.gate();
        let mut phase = self.connection.phase();
        if gate.mode == Mode::Draining || *phase == Phase::Closed {
            *phase = Phase::Closed;
            return Err(Over);
        }
        *phase = Phase::Idle;
        Ok(())
    }

    /// Greets and checks the password; `None` if the client was refused.
    async fn log_in(&mut self, out: &mut Vec<u8>) -> Result<Option<auth::Login>, Over> {
        let config = &self.inner.config;
        let offered = auth::server_capabilities(config.deprecate_eof);
        let scramble = Scramble::random();
        Outbox::new(out, 0).packet(|out| {
            auth::put_greeting(out, &config.version, self.connection.id, &scramble, offered);
        });
        self.send(out).await?;
        let length = self.receive(MAX_LOGIN_PAYLOAD).await.map_err(|_| Over)??;
        let (mut sequence, payload) = self.inbox.peek(length);
        let login = auth::read_login(payload, offered);
        self.inbox.consume(length);
        let outcome = match login {
            Ok(mut login) => {
                if login.must_switch {
                    out.clear();
                    Outbox::new(out, sequence.wrapping_add(1))
                        .packet(|out| auth::put_switch(out, &scramble));
                    self.send(out).await?;
                    let length = self.receive(MAX_LOGIN_PAYLOAD).await.map_err(|_| Over)??;
                    let (answered, proof) = self.inbox.peek(length);
                    sequence = answered;
                    login.proof = proof.to_vec();
                    self.inbox.consume(length);
                }
                auth::verify(&config.credentials, &scramble, &login.user, &login.proof)
                    .map(|()| login)
            }
            Err(error) => Err(error),
        };
        out.clear();
        let mut answer = Outbox::new(out, sequence.wrapping_add(1));
        let login = match outcome {
            Ok(login) => {
                answer.ok(mysql_common::constants::StatusFlags::SERVER_STATUS_AUTOCOMMIT);
                Some(login)
            }
            Err(error) => {
                answer.error(&error);
                None
            }
        };
        self.send(out).await?;
        Ok(login)
    }

    /// Waits for a whole packet.
    async fn receive(&mut self, limit: usize) -> Result<Result<usize, Over>, TooLong> {
        loop {
            match self.inbox.complete(limit) {
                Ok(Some(length)) => return Ok(Ok(length)),
                Ok(None) => {}
                Err(_) => return Err(TooLong),
            }
            let filled = self.inbox.fill(&self.connection.stream).await;
            let ended = match filled {
                Ok(()) => false,
                Err(ReadError::Closed) => true,
                Err(_) => return Ok(Err(Over)),
            };
            self.modes.borrow_and_update();
            let mode = {
                let gate = self.inner.gate();
                if gate.mode == Mode::BlackHoled {
                    // Under the lock: a resume sees it or comes after it.
                    self.connection.tainted.store(true, Ordering::SeqCst);
                    self.inbox.clear();
                }
                gate.mode
            };
            if ended {
                // Neither a stopped process nor a black hole answers a FIN.
                if matches!(mode, Mode::Hung | Mode::BlackHoled) {
                    self.opened().await;
                }
                return Ok(Err(Over));
            }
        }
    }

    /// Waits until the backend is neither hung nor a black hole.
    async fn opened(&mut self) {
        loop {
            self.modes.borrow_and_update();
            if !matches!(self.inner.gate().mode, Mode::Hung | Mode::BlackHoled) {
                return;
            }
            if self.modes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Writes an answer through the gate; see the module's description.
    async fn send(&mut self, mut bytes: &[u8]) -> Result<(), Over> {
        while !bytes.is_empty() {
            self.modes.borrow_and_update();
            let held = {
                let gate = self.inner.gate();
                if gate.epoch != self.epoch {
                    return Err(Over);
                }
                match gate.mode {
                    Mode::Stopped => return Err(Over),
                    Mode::BlackHoled => {
                        self.connection.tainted.store(true, Ordering::SeqCst);
                        return Ok(());
                    }
                    Mode::Hung => true,
                    Mode::Serving | Mode::Draining => {
                        match self.connection.stream.try_write(bytes) {
                            Ok(written) => {
                                bytes = &bytes[written..];
                                continue;
                            }
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
                            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                            Err(error) => return Err(error.into()),
                        }
                    }
                }
            };
            if held {
                self.modes.changed().await.map_err(|_| Over)?;
            } else {
                self.connection.stream.writable().await?;
            }
        }
        Ok(())
    }
}

/// A client announced more than is allowed.
struct TooLong;
