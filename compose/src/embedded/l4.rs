//! `l4-passthrough`: a TCP proxy with health checks, which knows nothing of the
//! protocol it carries.
//!
//! Method: a new client goes to the first backend that is up (backups only when
//! all others are down); bytes are copied both ways. A FIN is passed on as a
//! half-close, a reset as a reset. With no backend up, or if the connect fails,
//! the client is closed at once. Connections that are established stay when a
//! check fails, unless [`L4Config::cut_on_mark_down`].
//!
//! What it does not do: retry a connect, time out idle connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::clock::Clock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::pool::{HealthCheck, MemberView, Pool, PoolMember};

/// How the proxy is set up. Start from [`L4Config::new`] and change fields.
#[derive(Debug, Clone)]
pub struct L4Config {
    /// Name in the scenario, for messages.
    pub name: String,
    /// Port on 127.0.0.1; 0 takes a free one.
    pub port: u16,
    /// Backends, in order of preference.
    pub backends: Vec<PoolMember>,
    /// How they are checked.
    pub check: HealthCheck,
    /// Reset established connections when their backend is marked down.
    pub cut_on_mark_down: bool,
    /// The most a connect to a backend may take.
    pub connect_timeout: Duration,
    /// Clients beyond this wait to be accepted.
    pub max_connections: usize,
}

impl L4Config {
    /// A proxy called `name` in front of `backends`, with the default check.
    pub fn new(name: impl Into<String>, backends: Vec<PoolMember>) -> Self {
        Self {
            name: name.into(),
            port: 0,
            backends,
            check: HealthCheck::default(),
            cut_on_mark_down: false,
            connect_timeout: Duration::from_secs(5),
            max_connections: 2000,
        }
    }
}

/// A running proxy. Dropping it ends its tasks; [`L4Proxy::shutdown`] also
/// waits for them.
#[derive(Debug)]
pub struct L4Proxy {
    name: String,
    addr: SocketAddr,
    pool: Arc<Pool>,
    cancel: CancellationToken,
    tasks: TaskTracker,
}

impl L4Proxy {
    /// Starts it; errs if its port cannot be listened on.
    pub async fn start(config: L4Config, clock: Arc<dyn Clock>) -> io::Result<Self> {
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
        let name = config.name.clone();
        let accepting = accept(
            listener,
            Arc::clone(&pool),
            Arc::new(config),
            cancel.clone(),
            tasks.clone(),
        );
        tasks.spawn(cancel.clone().run_until_cancelled_owned(accepting));
        Ok(Self {
            name,
            addr,
            pool,
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
        &self.name
    }

    /// What its health check thinks of each backend, and since when.
    pub fn view(&self) -> Vec<MemberView> {
        self.pool.view()
    }

    /// Gives a backend no new connections, or again; established ones stay. False
    /// if there is no backend of that name.
    pub fn drain(&self, backend: &str, on: bool) -> bool {
        self.pool.drain(backend, on)
    }

    /// A way to ask what its health check thinks that outlives it.
    pub(crate) fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pool)
    }

    /// Ends everything, resetting clients, and waits for it.
    pub async fn shutdown(&self) {
        self.cancel.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for L4Proxy {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

async fn accept(
    listener: TcpListener,
    pool: Arc<Pool>,
    config: Arc<L4Config>,
    cancel: CancellationToken,
    tasks: TaskTracker,
) {
    let slots = Arc::new(Semaphore::new(config.max_connections.max(1)));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((client, _)) => {
                let (pool, config) = (Arc::clone(&pool), Arc::clone(&config));
                let cancel = cancel.clone();
                tasks.spawn(async move {
                    carry(client, &pool, &config, &cancel).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::debug!(proxy = config.name, %error, "accept failed");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Carries one client's connection to its end.
async fn carry(mut client: TcpStream, pool: &Pool, config: &L4Config, cancel: &CancellationToken) {
    let Some(&index) = pool.candidates().first() else {
        return;
    };
    let mut state = pool.subscribe(index);
    let connecting = TcpStream::connect(pool.member(index).addr);
    let connected = tokio::select! {
        () = cancel.cancelled() => return,
        connected = tokio::time::timeout(config.connect_timeout, connecting) => connected,
    };
    let Ok(Ok(mut server)) = connected else {
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let marked_down = async {
        if !config.cut_on_mark_down || state.wait_for(|state| !state.up).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let reset = tokio::select! {
        () = cancel.cancelled() => true,
        () = marked_down => true,
        // Passes each FIN on as it comes; errs when either side resets.
        copied = tokio::io::copy_bidirectional(&mut client, &mut server) => copied.is_err(),
    };
    if reset {
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
}
