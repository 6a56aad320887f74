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

mod faults;
mod talk;
mod truth;

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::fault::Span;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::talk::Talk;
pub use self::truth::{ClearTruth, FaultError, FaultTruth, Held, Mode};
use super::auth::Credentials;
use super::session::{Facts, Store, VariablesSchema, Writes};
use super::wire::{Inbox, Outbox, SqlError};

/// How a backend is set up. Start from [`BackendConfig::new`] and change fields.
#[derive(Debug, Clone)]
pub struct BackendConfig {
    /// Name in the scenario, for messages.
    pub name: String,
    /// What `@@hostname` says; several backends may share one.
    pub hostname: String,
    /// Where it listens.
    pub ip: Ipv4Addr,
    /// Port there; 0 takes a free one, which is then kept over restarts.
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
    /// What it does to the writes it acknowledges.
    pub writes: Writes,
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
            ip: Ipv4Addr::LOCALHOST,
            port: 0,
            first_connection_id: 1,
            constant_connection_id: false,
            version: "11.4.99-gapscope-embedded".into(),
            server_id: 1,
            credentials: Credentials::new("probe", ""),
            latency: None,
            deprecate_eof: true,
            variables: VariablesSchema::InformationSchema,
            writes: Writes::default(),
            max_connections: 1000,
        }
    }
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
    /// Added to each greeting and each statement while it is slow; else 0.
    slow_ns: AtomicU64,
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

/// Binds an address for listening; a second socket holds the port.
fn listen_and_hold(at: SocketAddr) -> io::Result<(TcpListener, TcpSocket)> {
    let socket = bound_socket(at)?;
    let holder = bound_socket(socket.local_addr()?)?;
    Ok((socket.listen(BACKLOG)?, holder))
}

fn bound_socket(at: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    Ok(socket)
}

/// Connections the kernel completes before they are accepted.
const BACKLOG: u32 = 128;

impl Backend {
    /// Starts a backend; errs if its port cannot be listened on.
    pub async fn start(config: BackendConfig, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let (listener, port_holder) = listen_and_hold((config.ip, config.port).into())?;
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
            store: Store::new(config.writes),
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
            slow_ns: AtomicU64::new(0),
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

    /// The rows that were acknowledged and forgotten, or applied twice, since the
    /// start, over all restarts; see [`BackendConfig::writes`].
    pub fn misdone(&self) -> Vec<Vec<String>> {
        self.inner.facts.store.misdone()
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

    /// Hears and does what it is told, and no answer leaves: held connections stay
    /// open, new ones are accepted and never greeted. Approximated as a black hole is:
    /// [`Self::resume`] resets the connections that lost an answer.
    pub async fn mute(&self) -> Result<FaultTruth, FaultError> {
        self.inner.silence("mute", Mode::Muted).await
    }

    /// Takes so much longer for each greeting and each statement that comes from the
    /// effect's end on, until [`Self::resume`].
    pub async fn slow(&self, by: Duration) -> Result<FaultTruth, FaultError> {
        self.inner.slow(by).await
    }

    /// Closes every connection with a FIN, as an administrator who ends them, and
    /// serves on. Returns how many.
    pub fn cut_clients(&self) -> usize {
        self.inner.cut_clients()
    }

    /// Ends [`Self::hang`], [`Self::black_hole`], [`Self::mute`] or [`Self::slow`].
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
        let any = [Mode::Serving, Mode::Hung, Mode::BlackHoled, Mode::Muted];
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
