//! Proxies that terminate the protocol. What they have in common: they greet and
//! authenticate clients themselves, with connection ids of their own. Every
//! statement is answered by a backend; the proxy itself only ever reports errors.
//! An answer is passed on when it is complete.
//!
//! `l7-reconnecting` keeps one backend connection a client and hides its loss, at
//! the price of the session. It is made at the client's first statement, and when
//! it is lost:
//! - outside a statement, the next statement goes over a new connection, to the
//!   first backend that is up;
//! - during a statement that only reads (`SELECT`, `SHOW`, ping ...), it is sent
//!   once more over a new connection, silently;
//! - during another statement (a prepared one counts as such), or with a transaction open (or autocommit off),
//!   the client gets error 2013 (its effect is unknown) and keeps its connection;
//! - a backend that gives no answer for [`L7Config::server_timeout`] and that the
//!   health check holds for down counts as lost;
//! - with no backend to be had within [`L7Config::acquire_timeout`], the client
//!   gets error 1105 and keeps its connection.
//!
//! What is lost with it, silently: user variables, session variables, temporary
//! state. A prepared statement held over it is answered with error 1243, as
//! nobody prepared it on the new connection. The default database is kept.
//!
//! `l7-migrating` makes the session again on the new connection: variables that
//! were set to literal values, prepared statements, the default database. It also
//! leaves a backend that is drained or held for down, between two statements. A
//! session that holds more than it knows how to make again is not moved; when its
//! backend is lost, the client gets error 2013 and its connection is closed, so
//! that nothing is ever lost in silence.
//!
//! `l7-multiplexing` takes a connection from a pool that all clients share for
//! each statement, from the backends that are up in turn, and gives it back. A
//! session that uses any state (whatever is no read without `@`) is pinned to one
//! connection from then on, until it is reset; when that is lost, so is the client's
//! connection. Reads of sessions that are not pinned are sent again.
//!
//! What they do not do: TLS, COM_CHANGE_USER and other rare commands (error
//! 1047), `LOAD DATA LOCAL`.

mod carry;
mod client;
mod command;
mod shared;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use gapscope_proto::clock::Clock;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::client::Client;
use self::shared::Shared;
use super::auth::Credentials;
use super::pool::{CheckKind, HealthCheck, MemberView, Pool, PoolMember};

/// What becomes of a session whose backend is lost; see the module's description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum L7Behaviour {
    /// It is silently replaced by an empty one.
    Reconnecting,
    /// It is made again elsewhere.
    Migrating,
    /// It holds a backend connection only while it needs one.
    Multiplexing,
}

impl L7Behaviour {
    /// The proxy's name for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reconnecting => "l7-reconnecting",
            Self::Migrating => "l7-migrating",
            Self::Multiplexing => "l7-multiplexing",
        }
    }
}

/// How the proxy is set up. Start from [`L7Config::new`] and change fields.
#[derive(Debug, Clone)]
pub struct L7Config {
    /// Name in the scenario, for messages.
    pub name: String,
    /// What becomes of sessions.
    pub behaviour: L7Behaviour,
    /// Port on 127.0.0.1; 0 takes a free one.
    pub port: u16,
    /// Backends, in order of preference.
    pub backends: Vec<PoolMember>,
    /// How they are checked; by greeting unless changed.
    pub check: HealthCheck,
    /// Who may log in at the proxy.
    pub credentials: Credentials,
    /// As whom the proxy logs in at the backends.
    pub backend_credentials: Credentials,
    /// What its greeting says.
    pub version: String,
    /// Connection id in the greeting to the first client.
    pub first_connection_id: u32,
    /// Whether CLIENT_DEPRECATE_EOF is offered; backends must offer it too.
    pub deprecate_eof: bool,
    /// See the module's description.
    pub server_timeout: Duration,
    /// The most one connect and login at a backend may take.
    pub connect_timeout: Duration,
    /// See the module's description.
    pub acquire_timeout: Duration,
    /// Clients beyond this are told "too many connections" (1040).
    pub max_connections: usize,
}

impl L7Config {
    /// A proxy called `name` in front of `backends`; `credentials` on both sides.
    pub fn new(
        name: impl Into<String>,
        backends: Vec<PoolMember>,
        credentials: Credentials,
    ) -> Self {
        Self {
            name: name.into(),
            behaviour: L7Behaviour::Reconnecting,
            port: 0,
            backends,
            check: HealthCheck {
                kind: CheckKind::Greeting,
                ..HealthCheck::default()
            },
            credentials: credentials.clone(),
            backend_credentials: credentials,
            version: "11.4.99-gapscope-l7-reconnecting".into(),
            first_connection_id: 1_000_001,
            deprecate_eof: true,
            server_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(1),
            acquire_timeout: Duration::from_secs(5),
            max_connections: 2000,
        }
    }

    /// Behaves so, and says so in its greeting.
    pub fn behave(&mut self, behaviour: L7Behaviour) {
        self.behaviour = behaviour;
        self.version = format!("11.4.99-gapscope-{}", behaviour.as_str());
    }
}

/// A running proxy. Dropping it ends its tasks; [`L7Proxy::shutdown`] also
/// waits for them.
#[derive(Debug)]
pub struct L7Proxy {
    inner: Arc<Inner>,
    addr: SocketAddr,
    cancel: CancellationToken,
    tasks: TaskTracker,
}

struct Inner {
    config: L7Config,
    clock: Arc<dyn Clock>,
    pool: Arc<Pool>,
    next_id: AtomicU32,
    reconnects: AtomicU64,
    permits: Semaphore,
    shared: Shared,
    /// Whose turn it is.
    turn: AtomicUsize,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("L7")
            .field("name", &self.config.name)
            .finish_non_exhaustive()
    }
}

impl L7Proxy {
    /// Starts it; errs if its port cannot be listened on.
    pub async fn start(config: L7Config, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", config.port)).await?;
        let addr = listener.local_addr()?;
        let cancel = CancellationToken::new();
        let tasks = TaskTracker::new();
        let pool = Pool::start(
            config.backends.clone(),
            config.check,
            &clock,
            &cancel,
            &tasks,
        );
        let inner = Arc::new(Inner {
            clock,
            pool,
            next_id: AtomicU32::new(config.first_connection_id),
            reconnects: AtomicU64::new(0),
            permits: Semaphore::new(config.max_connections),
            shared: Shared::default(),
            turn: AtomicUsize::new(0),
            config,
        });
        let accepting = accept(Arc::clone(&inner), listener, cancel.clone(), tasks.clone());
        tasks.spawn(cancel.clone().run_until_cancelled_owned(accepting));
        Ok(Self {
            inner,
            addr,
            cancel,
            tasks,
        })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its name in the scenario.
    pub fn name(&self) -> &str {
        &self.inner.config.name
    }

    /// What its health check thinks of each backend, and since when.
    pub fn view(&self) -> Vec<MemberView> {
        self.inner.pool.view()
    }

    /// How often a client's lost backend connection was replaced.
    pub fn reconnects(&self) -> u64 {
        self.inner.reconnects.load(Ordering::Relaxed)
    }

    /// Gives a backend no new connections, or again; established ones stay. False
    /// if there is no backend of that name.
    pub fn drain(&self, backend: &str, on: bool) -> bool {
        self.inner.pool.drain(backend, on)
    }

    /// A way to ask what its health check thinks that outlives it.
    pub(crate) fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.inner.pool)
    }

    /// Ends everything and waits for it.
    pub async fn shutdown(&self) {
        self.cancel.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for L7Proxy {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

async fn accept(
    inner: Arc<Inner>,
    listener: TcpListener,
    cancel: CancellationToken,
    tasks: TaskTracker,
) {
    let slots = Arc::new(Semaphore::new(
        inner.config.max_connections.saturating_add(16),
    ));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let inner = Arc::clone(&inner);
                let cancel = cancel.clone();
                tasks.spawn(async move {
                    let _ = stream.set_nodelay(true);
                    let client = Client::new(&inner, &stream);
                    let _ = cancel.run_until_cancelled(client.serve()).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::debug!(proxy = inner.config.name, %error, "accept failed");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}
