//! What all clients of a target share: where it is, how to get in, and the
//! agent's own limits on it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gapscope_proto::clock::Clock;
use gapscope_proto::ids::TargetName;
use mysql_async::{Conn, Error, Opts, OptsBuilder};

use super::identity::IdentityCell;
use crate::breaker::Breaker;
use crate::config::Target;
use crate::guard::Guard;
use crate::names;
use crate::outcome::{self, Verdict};
use crate::reach::{TlsMode, name_of_refused};

const MAX_ALLOWED_PACKET: usize = 4 << 20;
const WAIT_TIMEOUT_S: usize = 28_800;

/// What all clients of a target share.
#[derive(Debug)]
pub struct Endpoint {
    /// Its name, shared by all samples.
    pub name: Arc<TargetName>,
    /// As configured.
    pub target: Target,
    /// The default identity expression, once found.
    pub identity: Arc<IdentityCell>,
    guard: Mutex<Guard>,
    breaker: Mutex<Breaker>,
    sockets: Arc<AtomicU32>,
    /// Made once: it keeps what TLS needs, ready to use.
    base: Mutex<Opts>,
}

/// One socket to a target, counted until it is closed, abandoned or not.
#[derive(Debug)]
pub struct Socket(Arc<AtomicU32>);

impl Drop for Socket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Endpoint {
    /// For a configured target.
    pub fn new(target: Target, clock: &dyn Clock) -> Self {
        let identity = match &target.identity {
            Some(expression) => IdentityCell::given(expression),
            None => IdentityCell::default(),
        };
        Self {
            name: Arc::new(target.name.clone()),
            identity: Arc::new(identity),
            guard: Mutex::new(Guard::new(target.max_connects_per_second, clock.raw_ns())),
            breaker: Mutex::new(Breaker::default()),
            sockets: Arc::default(),
            base: Mutex::new(base(&target, None)),
            target,
        }
    }

    /// Whether one more connection may be made now; if not, what the probe is
    /// called that wanted it.
    pub fn admit(&self, now_ns: i64) -> Result<Socket, Verdict> {
        if let Err(left_ns) = lock(&self.breaker).connect(now_ns) {
            return Err(outcome::of_breaker(left_ns));
        }
        let most = self.target.reach.max_sockets;
        let taken = self
            .sockets
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
                (open < most).then_some(open + 1)
            });
        if taken.is_err() {
            return Err(outcome::of_socket_limit(most));
        }
        let socket = Socket(self.sockets.clone());
        if !lock(&self.guard).admit(now_ns) {
            return Err(outcome::of_guard(self.target.max_connects_per_second));
        }
        Ok(socket)
    }

    /// One connection more that is no probe's, unless that could keep a probe from
    /// its own.
    pub fn admit_beside(&self, now_ns: i64) -> Option<Socket> {
        if !lock(&self.breaker).is_closed(now_ns) {
            return None;
        }
        let most = self.target.reach.max_sockets;
        self.sockets
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
                (open < most / 2).then_some(open + 1)
            })
            .ok()?;
        let socket = Socket(self.sockets.clone());
        lock(&self.guard).admit_beside(now_ns).then_some(socket)
    }

    /// Sockets open now, abandoned ones that are not closed yet included.
    pub fn sockets(&self) -> u32 {
        self.sockets.load(Ordering::Relaxed)
    }

    /// Whether a statement may be sent now.
    pub fn may_probe(&self, now_ns: i64) -> Result<(), Verdict> {
        lock(&self.breaker)
            .statement(now_ns)
            .map_err(outcome::of_breaker)
    }

    /// Pauses all probing of this target for a second, if its breaker is allowed.
    pub fn rest(&self, now_ns: i64) {
        if self.target.reach.breaker {
            lock(&self.breaker).rest(now_ns);
        }
    }

    /// What a probe came to; the breaker looks at it.
    pub fn note(&self, result: &Result<(), Verdict>, connected: bool, now_ns: i64) {
        if !self.target.reach.breaker {
            return;
        }
        let mut breaker = lock(&self.breaker);
        match result {
            Err(verdict) if outcome::is_overload(verdict) && breaker.refused(now_ns) => {
                tracing::warn!(
                    target_name = %self.name, why = verdict.text,
                    "the circuit breaker is open: no new connections for a while"
                );
            }
            Ok(()) if connected => breaker.went_well(),
            _ => {}
        }
    }

    fn opts(&self, address: SocketAddr) -> Opts {
        OptsBuilder::from_opts(lock(&self.base).clone())
            .ip_or_hostname(address.ip().to_string())
            .resolved_ips(Some(vec![address.ip()]))
            .tcp_port(address.port())
            .into()
    }

    /// Connects to this very address.
    pub async fn connect_to(&self, address: SocketAddr) -> Result<Conn, Error> {
        let result = Conn::new(self.opts(address)).await;
        let Err(error) = &result else { return result };
        if self.target.reach.tls.mode() != TlsMode::VerifyCa {
            return result;
        }
        let Some(name) = name_of_refused(error) else {
            return result;
        };
        *lock(&self.base) = base(&self.target, Some(&name));
        Conn::new(self.opts(address)).await
    }
}

fn base(target: &Target, found_name: Option<&str>) -> Opts {
    let password = target.password.expose();
    OptsBuilder::default()
        .user(Some(target.user.as_str()))
        .pass((!password.is_empty()).then_some(password))
        .db_name(target.database.as_deref())
        .ssl_opts(target.reach.tls.options(&target.host, found_name))
        .prefer_socket(false)
        .tcp_nodelay(true)
        .max_allowed_packet(Some(MAX_ALLOWED_PACKET))
        .wait_timeout(Some(WAIT_TIMEOUT_S))
        .stmt_cache_size(0)
        .into()
}

/// Looks the target's address up.
pub async fn resolve(target: &Target) -> std::io::Result<Vec<SocketAddr>> {
    names::look_up(&target.host, target.port, target.reach.name_server).await
}

/// Connects to the first address that takes it; returns the last one tried.
pub async fn connect(
    endpoint: &Endpoint,
    addresses: &[SocketAddr],
) -> (SocketAddr, Result<Conn, Error>) {
    let mut rest = addresses.iter().peekable();
    while let Some(address) = rest.next() {
        match endpoint.connect_to(*address).await {
            Err(error) if rest.peek().is_some() && outcome::is_address_trouble(&error) => {}
            result => return (*address, result),
        }
    }
    unreachable!("`resolve` gives at least one address")
}
