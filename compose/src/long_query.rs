//! A statement that is in flight while a fault comes: begun through a proxy, and what
//! became of it, with the moments at which that was known.
//!
//! It is the lab's own, beside the agent's clients: none of those runs a statement
//! that is longer than the deadline by design, and no figure of theirs is touched.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::fault::Span;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use crate::login::{options, plain};
use crate::witness::Login;

/// Beyond its own duration it is waited for as long as this.
const PATIENCE: Duration = Duration::from_secs(60);

/// What became of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The proxy.
    pub through: String,
    /// From the begin of its sending to when its end was known.
    pub when: Span,
    /// For people.
    pub detail: String,
}

/// Connects, logs in, then begins the statement and waits for its end.
pub async fn run(
    through: String,
    address: SocketAddr,
    login: Login,
    lasts: Duration,
    clock: Arc<dyn Clock>,
) -> Ended {
    let text = format!("SELECT SLEEP({})", lasts.as_secs_f64());
    let conn = tokio::time::timeout(PATIENCE, Conn::new(options(address, &login))).await;
    let earliest_ns = clock.raw_ns();
    let outcome = match conn {
        Err(_) => "never begun: no connection within 60 s".to_owned(),
        Ok(Err(error)) => format!("never begun: {}", plain(&error)),
        Ok(Ok(mut conn)) => {
            let running = conn.query_first::<Option<i64>, _>(&text);
            let answer = tokio::time::timeout(lasts + PATIENCE, running).await;
            let took = clock.raw_ns().saturating_sub(earliest_ns) as f64 / 1e9;
            match answer {
                Err(_) => format!("no answer and no error within {took:.3} s"),
                Ok(Err(error)) => format!("failed after {took:.3} s: {}", plain(&error)),
                Ok(Ok(Some(Some(0)))) => format!("answered after {took:.3} s"),
                Ok(Ok(value)) => {
                    let value = value.flatten();
                    format!("interrupted by the server after {took:.3} s (it answers {value:?})")
                }
            }
        }
    };
    Ended {
        detail: format!("{text} through {through}: {outcome}"),
        through,
        when: Span {
            earliest_ns,
            latest_ns: clock.raw_ns(),
        },
    }
}
