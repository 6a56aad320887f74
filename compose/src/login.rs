//! Logs in as a probe does, to see whether something serves and who it is.

use std::net::SocketAddr;
use std::time::Duration;

use gapscope_proto::clock::Clock;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};

use crate::runtime::process::sql::Dialect;
use crate::witness::Login;

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// `VERSION()`
    pub version: String,
    /// The identity expression's value.
    pub identity: Option<String>,
}

/// How the lab connects: as given, nothing asked beyond it.
pub(crate) fn options(address: SocketAddr, login: &Login) -> Opts {
    OptsBuilder::default()
        .ip_or_hostname(address.ip().to_string())
        .tcp_port(address.port())
        .user(Some(login.user.clone()))
        .pass(Some(login.password.clone()))
        // Its default swaps the connection to a proxy for the backend's socket.
        .prefer_socket(false)
        // Else the driver asks for them with a hidden query.
        .max_allowed_packet(Some(1 << 24))
        .wait_timeout(Some(28_800))
        .into()
}

/// Logs in at `address` and evaluates `identity`, within `at_most`. Errs with
/// what the server or the driver said.
pub async fn ask(
    address: SocketAddr,
    login: &Login,
    identity: &str,
    at_most: Duration,
) -> Result<Answer, mysql_async::Error> {
    let attempt = async {
        let mut conn = Conn::new(options(address, login)).await?;
        let row: Option<(u64, Option<String>, Option<String>)> = conn
            .query_first(format!(
                "SELECT CONNECTION_ID() AS id, VERSION() AS version, ({identity}) AS backend"
            ))
            .await?;
        // An error on the way out changes nothing about the answer.
        let _ = conn.disconnect().await;
        let (_, version, identity) = row.unwrap_or_default();
        Ok(Answer {
            version: version.unwrap_or_default(),
            identity,
        })
    };
    tokio::time::timeout(at_most, attempt)
        .await
        .unwrap_or_else(|_| {
            let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
            Err(mysql_async::Error::Io(mysql_async::IoError::Io(late)))
        })
}

/// A driver's error without what it says twice before the error itself.
pub fn plain(error: &mysql_async::Error) -> String {
    error.to_string().replace("Input/output error: ", "")
}

/// Logs in and says something whose answer does not matter.
pub async fn say(
    address: SocketAddr,
    login: &Login,
    text: &str,
    at_most: Duration,
) -> Result<(), mysql_async::Error> {
    let attempt = async {
        let mut conn = Conn::new(options(address, login)).await?;
        conn.query_drop(text).await?;
        // An error on the way out changes nothing.
        let _ = conn.disconnect().await;
        Ok(())
    };
    tokio::time::timeout(at_most, attempt)
        .await
        .unwrap_or_else(|_| {
            let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
            Err(mysql_async::Error::Io(mysql_async::IoError::Io(late)))
        })
}

/// Ends every connection of `user` as an administrator does; tells how many.
///
/// # Errors
/// What the server or the driver said.
pub async fn cut_user(
    dialect: Dialect,
    address: SocketAddr,
    admin: &Login,
    user: &str,
) -> Result<String, mysql_async::Error> {
    const AT_MOST: Duration = Duration::from_secs(5);
    if let Some(statement) = dialect.kill_user(user) {
        say(address, admin, &statement, AT_MOST).await?;
        return Ok("all".to_owned());
    }
    let one_by_one = async {
        let mut conn = Conn::new(options(address, admin)).await?;
        let ids: Vec<u64> = conn.query(Dialect::connections_of(user)).await?;
        for id in &ids {
            // One that has ended by itself meanwhile is no error.
            let _ = conn.query_drop(format!("KILL {id}")).await;
        }
        // An error on the way out changes nothing.
        let _ = conn.disconnect().await;
        Ok(ids.len().to_string())
    };
    tokio::time::timeout(AT_MOST, one_by_one)
        .await
        .unwrap_or_else(|_| {
            let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
            Err(mysql_async::Error::Io(mysql_async::IoError::Io(late)))
        })
}

/// Tries to log in until it works or `deadline_ns` (RAW) has passed; `alive` can
/// end it earlier, by saying why there is no use in waiting. Returns the stamp
/// after the first good answer.
pub async fn until_it_answers(
    clock: &dyn Clock,
    address: SocketAddr,
    login: &Login,
    deadline_ns: i64,
    mut alive: impl FnMut() -> Result<(), String>,
) -> Result<i64, String> {
    loop {
        alive()?;
        let last = match ask(address, login, "NULL", Duration::from_secs(2)).await {
            Ok(_) => return Ok(clock.raw_ns()),
            Err(error) => error.to_string(),
        };
        if clock.raw_ns() > deadline_ns {
            return Err(last);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
