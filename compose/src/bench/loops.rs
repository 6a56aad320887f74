//! Closed loops in this process: the agent's own probe, and the driver alone.
//!
//! Each runs on a thread of its own with a runtime of its own, so that its
//! processor time can be told from everything else's.

use std::net::SocketAddr;
use std::sync::Arc;

use gapscope_agent::config::{Secret, Target};
use gapscope_agent::probe::endpoint::Endpoint;
use gapscope_agent::probe::identity::IdentityCell;
use gapscope_agent::probe::leash::Graveyard;
use gapscope_agent::probe::mysql::{Client, ClientSpec};
use gapscope_agent::reach::Reach;
use gapscope_agent::schedule::Slot;
use gapscope_proto::clock::Clock;
use gapscope_proto::plan::Timeouts;
use gapscope_proto::sample::{Outcome, Style};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder, Row};
use tokio_util::sync::CancellationToken;

use crate::overhead::load::thread_cpu_ns;
use crate::witness::Login;

/// Sent before the time begins.
pub const WARM_UP: u64 = 500;
/// The agent's default.
const TIMEOUT_NS: u64 = 5_000_000_000;

/// What one closed loop came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Looped {
    /// From first sent to last answered, divided by the number.
    pub mean_us: f64,
    /// Processor time of the client for each statement.
    pub cpu_us: f64,
}

/// Whom a loop asks.
#[derive(Clone)]
pub struct Asked {
    /// Where.
    pub address: SocketAddr,
    /// As whom.
    pub login: Login,
    /// The identity expression of the probe.
    pub identity: &'static str,
}

impl Asked {
    /// The statement that the agent's probe sends.
    pub fn statement(&self) -> String {
        IdentityCell::given(self.identity)
            .get()
            .map(|known| known.bare.to_string())
            .unwrap_or_default()
    }

    /// As the agent's configuration has it.
    fn target(&self) -> Target {
        Target {
            name: "bench".parse().expect("a good name"),
            host: self.address.ip().to_string(),
            port: self.address.port(),
            user: self.login.user.clone(),
            password: Secret::new(self.login.password.clone()),
            database: None,
            identity: Some(self.identity.to_owned()),
            max_connects_per_second: 1_000,
            reach: Reach::default(),
        }
    }
}

/// Runs `work` on a thread of its own with a runtime of its own.
async fn apart<T, F>(work: impl FnOnce() -> F + Send + 'static) -> Result<T, String>
where
    T: Send + 'static,
    F: Future<Output = Result<T, String>>,
{
    tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        runtime.block_on(work())
    })
    .await
    .map_err(|error| error.to_string())?
}

struct Begun {
    at_ns: i64,
    cpu_ns: u64,
}

fn begin(clock: &dyn Clock) -> Begun {
    Begun {
        cpu_ns: thread_cpu_ns(),
        at_ns: clock.raw_ns(),
    }
}

impl Begun {
    fn ended(&self, clock: &dyn Clock, count: u64) -> Looped {
        let wall_ns = clock.raw_ns().saturating_sub(self.at_ns);
        let cpu_ns = thread_cpu_ns().saturating_sub(self.cpu_ns);
        Looped {
            mean_us: wall_ns as f64 / 1e3 / count as f64,
            cpu_us: cpu_ns as f64 / 1e3 / count as f64,
        }
    }
}

/// The agent's probe, one after the other: everything that a probe is, but its
/// schedule and its spool.
///
/// # Errors
/// When any probe is not answered well: a quick error is no quick answer.
pub async fn agent(asked: &Asked, count: u64, clock: &Arc<dyn Clock>) -> Result<Looped, String> {
    let (asked, clock) = (asked.clone(), Arc::clone(clock));
    apart(move || async move {
        let graveyard = Graveyard::open().map_err(|error| error.to_string())?;
        let spec = ClientSpec {
            endpoint: Arc::new(Endpoint::new(asked.target(), &*clock)),
            identity: Arc::new(IdentityCell::given(asked.identity)),
            style: Style::Reused,
            number: 0,
            canary: None,
            canary_value: String::new(),
            pool: false,
            ledger: None,
            timeouts: Timeouts {
                resolve_ns: Some(TIMEOUT_NS),
                connect_ns: Some(TIMEOUT_NS),
                query_ns: Some(TIMEOUT_NS),
            },
        };
        let mut client = Client::new(spec, Arc::clone(&clock), graveyard);
        let never = CancellationToken::new();
        let mut begun = begin(&*clock);
        for number in 0..WARM_UP + count {
            if number == WARM_UP {
                begun = begin(&*clock);
            }
            let slot = Slot {
                number,
                due_ns: clock.raw_ns(),
            };
            let sample = client.probe(slot, &never).await;
            if sample.outcome != Outcome::Ok {
                let why = sample.error.as_deref().unwrap_or("no answer");
                return Err(format!("{}: {why}", sample.outcome));
            }
        }
        let looped = begun.ended(&*clock, count);
        client.close().await;
        Ok(looped)
    })
    .await
}

/// The same driver with nothing around it: the statement is sent, its rows are
/// read, that is all.
///
/// # Errors
/// At the first error.
pub async fn driver(asked: &Asked, count: u64, clock: &Arc<dyn Clock>) -> Result<Looped, String> {
    let (asked, clock) = (asked.clone(), Arc::clone(clock));
    let statement = asked.statement();
    apart(move || async move {
        let opts = OptsBuilder::default()
            .ip_or_hostname(asked.address.ip().to_string())
            .tcp_port(asked.address.port())
            .user(Some(asked.login.user.clone()))
            .pass(Some(asked.login.password.clone()))
            .prefer_socket(false)
            .max_allowed_packet(Some(1 << 24))
            .wait_timeout(Some(28_800));
        let said = |error: mysql_async::Error| error.to_string();
        let mut conn = Conn::new(opts).await.map_err(said)?;
        let mut begun = begin(&*clock);
        for number in 0..WARM_UP + count {
            if number == WARM_UP {
                begun = begin(&*clock);
            }
            let rows: Vec<Row> = conn.query(statement.as_str()).await.map_err(said)?;
            if rows.len() != 1 {
                return Err(format!("{} rows instead of one", rows.len()));
            }
        }
        let looped = begun.ended(&*clock, count);
        // An error on the way out changes nothing.
        let _ = conn.disconnect().await;
        Ok(looped)
    })
    .await
}
