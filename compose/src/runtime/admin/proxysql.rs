//! ProxySQL's admin port, which speaks the protocol of its clients.
//!
//! What it believes is read from `stats_mysql_connection_pool`, which says the same
//! of a server as `runtime_mysql_servers` and the connections in use as well.

use std::net::SocketAddr;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use super::{Backends, address_of, name_of};
use crate::login::{options, say};
use crate::runtime::{Belief, Beliefs, Viewer};
use crate::witness::Login;

const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
const POOL: &str = "SELECT srv_host, srv_port, status, ConnUsed FROM stats_mysql_connection_pool \
                    ORDER BY hostgroup, srv_host, srv_port";

/// `OFFLINE_SOFT`: what runs there may end, nothing new begins.
pub(super) async fn drain(
    address: SocketAddr,
    login: &Login,
    backends: &Backends,
    backend: &str,
    on: bool,
) -> Result<String, String> {
    let at = address_of(backends, backend)?;
    let status = if on { "OFFLINE_SOFT" } else { "ONLINE" };
    let change = format!(
        "UPDATE mysql_servers SET status='{status}' WHERE hostname='{}' AND port={}",
        at.ip(),
        at.port()
    );
    for statement in [change.as_str(), "LOAD MYSQL SERVERS TO RUNTIME"] {
        say(address, login, statement, ANSWERS_WITHIN)
            .await
            .map_err(|error| format!("`{statement}`: {error}"))?;
    }
    Ok(format!("status {status}"))
}

/// Reads what ProxySQL believes of its servers, on one connection as long as that
/// lives.
pub(super) struct PoolViewer {
    address: SocketAddr,
    login: Login,
    backends: Backends,
    conn: Option<Conn>,
}

impl PoolViewer {
    pub(super) fn new(address: SocketAddr, login: Login, backends: Backends) -> Self {
        Self {
            address,
            login,
            backends,
            conn: None,
        }
    }

    async fn rows(&mut self) -> Result<Vec<(String, String, String, String)>, mysql_async::Error> {
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => Conn::new(options(self.address, &self.login)).await?,
        };
        let rows = conn.query(POOL).await?;
        self.conn = Some(conn);
        Ok(rows)
    }
}

impl Viewer for PoolViewer {
    fn look(&mut self) -> BoxFuture<'_, Beliefs> {
        async move {
            let rows = tokio::time::timeout(ANSWERS_WITHIN, self.rows())
                .await
                .map_err(|_| "no answer within 2 s".to_owned())?
                .map_err(|error| error.to_string())?;
            Ok(beliefs(&rows, &self.backends))
        }
        .boxed()
    }
}

fn beliefs(rows: &[(String, String, String, String)], backends: &Backends) -> Vec<Belief> {
    rows.iter()
        .filter_map(|(host, port, status, used)| {
            Some(Belief {
                backend: name_of(backends, &format!("{host}:{port}"))?.to_owned(),
                state: status.clone(),
                check: String::new(),
                sessions: used.parse().ok(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_from_the_pool_s_table() {
        let backends = vec![
            ("a".to_owned(), SocketAddr::from(([127, 0, 0, 1], 4001))),
            ("b".to_owned(), SocketAddr::from(([127, 0, 0, 1], 4002))),
        ];
        let row = |port: &str, status: &str, used: &str| {
            (
                "127.0.0.1".to_owned(),
                port.to_owned(),
                status.to_owned(),
                used.to_owned(),
            )
        };
        let found = beliefs(
            &[
                row("4001", "SHUNNED", "0"),
                row("4002", "ONLINE", "7"),
                row("9999", "ONLINE", "1"),
            ],
            &backends,
        );
        let seen: Vec<_> = found
            .iter()
            .map(|belief| (belief.backend.as_str(), belief.is_up(), belief.sessions))
            .collect();
        assert_eq!(seen, [("a", false, Some(0)), ("b", true, Some(7))]);
    }
}
