//! What `l7-migrating` and `l7-multiplexing` do to sessions, against backends whose
//! faults are known.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gapscope_lab::embedded::{
    Backend, BackendConfig, Credentials, L7Behaviour, L7Config, L7Proxy, PoolMember,
};
use gapscope_proto::clock::{Clock, SystemClock};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder};

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

fn credentials() -> Credentials {
    Credentials::new("probe", "secret")
}

async fn backend(name: &str) -> Backend {
    let mut config = BackendConfig::new(name);
    config.credentials = credentials();
    Backend::start(config, clock()).await.expect("it starts")
}

async fn proxy(backends: &[&Backend], behaviour: L7Behaviour) -> L7Proxy {
    let members = backends
        .iter()
        .enumerate()
        .map(|(index, backend)| PoolMember {
            name: backend.name().to_owned(),
            addr: backend.addr(),
            backup: index > 0 && behaviour == L7Behaviour::Migrating,
        })
        .collect();
    let mut config = L7Config::new("l7", members, credentials());
    config.behave(behaviour);
    // A check so slow that it plays no part.
    config.check.interval = Duration::from_secs(60);
    config.acquire_timeout = Duration::from_secs(10);
    L7Proxy::start(config, clock()).await.expect("it starts")
}

async fn connect(addr: SocketAddr) -> Conn {
    let opts = OptsBuilder::default()
        .ip_or_hostname(addr.ip().to_string())
        .tcp_port(addr.port())
        .user(Some("probe"))
        .pass(Some("secret"))
        .db_name(Some("lab"))
        .prefer_socket(false)
        .max_allowed_packet(Some(1 << 24))
        .wait_timeout(Some(28_800));
    Conn::new(opts).await.expect("it logs in")
}

/// Without `@`, which would pin the session.
const WHO: &str = "SELECT (SELECT GROUP_CONCAT(VARIABLE_VALUE ORDER BY VARIABLE_NAME SEPARATOR \
                   ':') FROM information_schema.GLOBAL_VARIABLES WHERE VARIABLE_NAME IN \
                   ('HOSTNAME','PORT')) AS backend";

async fn who(conn: &mut Conn) -> mysql_async::Result<String> {
    let row: Option<String> = conn.query_first(WHO).await?;
    Ok(row.expect("a row"))
}

type State = (Option<i64>, Option<String>, Option<String>);
const STATE: &str = "SELECT @number, @text, DATABASE()";

#[tokio::test]
async fn migrating_carries_the_session_over_unnoticed() {
    let (a, b) = (backend("a").await, backend("b").await);
    let proxy = proxy(&[&a, &b], L7Behaviour::Migrating).await;
    let mut conn = connect(proxy.addr()).await;
    let id = conn.id();
    conn.query_drop("SET @number = 7").await.expect("set");
    conn.query_drop("SET @text = 'kept', @number = 8")
        .await
        .expect("set");
    let statement = conn.prep("SELECT ?").await.expect("prepared");
    let first: Option<i64> = conn.exec_first(&statement, (5,)).await.expect("executed");
    assert_eq!(first, Some(5));
    for (gone, next) in [(&a, &b), (&b, &a)] {
        assert_eq!(who(&mut conn).await.expect("answered"), gone.identity());
        gone.crash().await.expect("crashed");
        assert_eq!(who(&mut conn).await.expect("no error"), next.identity());
        let state: Option<State> = conn.query_first(STATE).await.expect("answered");
        assert_eq!(
            state,
            Some((Some(8), Some("kept".to_owned()), Some("lab".to_owned())))
        );
        let again: Option<i64> = conn
            .exec_first(&statement, (6,))
            .await
            .expect("known there");
        assert_eq!(again, Some(6));
        assert_eq!(conn.id(), id, "the client's own connection");
        gone.restart().await.expect("restarted");
    }
    assert_eq!(proxy.reconnects(), 2);
    proxy.shutdown().await;
}

#[tokio::test]
async fn migrating_closes_what_it_cannot_carry_and_says_so() {
    let (a, b) = (backend("a").await, backend("b").await);
    let proxy = proxy(&[&a, &b], L7Behaviour::Migrating).await;
    let mut conn = connect(proxy.addr()).await;
    conn.query_drop("SET @id = CONNECTION_ID()")
        .await
        .expect("set");
    a.crash().await.expect("crashed");
    who(&mut conn)
        .await
        .expect_err("never silently another session");
    let mut fresh = connect(proxy.addr()).await;
    assert_eq!(who(&mut fresh).await.expect("answered"), b.identity());
    proxy.shutdown().await;
}

#[tokio::test]
async fn migrating_leaves_a_drained_backend_between_statements_and_not_in_a_transaction() {
    let (a, b) = (backend("a").await, backend("b").await);
    let proxy = proxy(&[&a, &b], L7Behaviour::Migrating).await;
    let mut idle = connect(proxy.addr()).await;
    idle.query_drop("SET @number = 1").await.expect("set");
    let mut busy = connect(proxy.addr()).await;
    busy.query_drop("BEGIN").await.expect("begun");
    assert!(proxy.drain("a", true));
    assert!(!proxy.drain("nobody", true));
    assert_eq!(who(&mut idle).await.expect("answered"), b.identity());
    let state: Option<State> = idle.query_first(STATE).await.expect("answered");
    assert_eq!(state.expect("a row").0, Some(1));
    assert_eq!(who(&mut busy).await.expect("answered"), a.identity());
    busy.query_drop("COMMIT").await.expect("committed");
    assert_eq!(who(&mut busy).await.expect("answered"), b.identity());
    proxy.shutdown().await;
}

#[tokio::test]
async fn multiplexing_spreads_bare_statements_and_pins_a_session_with_state() {
    let (a, b) = (backend("a").await, backend("b").await);
    let proxy = proxy(&[&a, &b], L7Behaviour::Multiplexing).await;
    let mut bare = connect(proxy.addr()).await;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..6 {
        seen.insert(who(&mut bare).await.expect("answered"));
    }
    assert_eq!(seen.len(), 2, "both, in turn: {seen:?}");
    let mut pinned = connect(proxy.addr()).await;
    pinned.query_drop("SET @number = 3").await.expect("set");
    let home = who(&mut pinned).await.expect("answered");
    for _ in 0..6 {
        assert_eq!(who(&mut pinned).await.expect("answered"), home);
        let state: Option<State> = pinned.query_first(STATE).await.expect("answered");
        assert_eq!(state.expect("a row").0, Some(3), "nobody else's");
    }
    // Another client never sees it, over whatever connection.
    let mut other = connect(proxy.addr()).await;
    for _ in 0..4 {
        let state: Option<State> = other.query_first(STATE).await.expect("answered");
        assert_eq!(state.expect("a row").0, None);
    }
    let (victim, survivor) = if home == a.identity() {
        (&a, &b)
    } else {
        (&b, &a)
    };
    victim.crash().await.expect("crashed");
    for _ in 0..6 {
        assert_eq!(
            who(&mut bare).await.expect("bare ones notice nothing"),
            survivor.identity()
        );
    }
    who(&mut pinned)
        .await
        .expect_err("its state is gone, and it is told");
    proxy.shutdown().await;
}

#[tokio::test]
async fn multiplexing_holds_fewer_connections_than_clients() {
    let a = backend("a").await;
    let proxy = proxy(&[&a], L7Behaviour::Multiplexing).await;
    let mut clients = Vec::new();
    for _ in 0..10 {
        clients.push(connect(proxy.addr()).await);
    }
    for client in &mut clients {
        assert_eq!(who(client).await.expect("answered"), a.identity());
    }
    // One after the other: one is enough (and the check's may be there for a moment).
    assert!(a.connections() <= 2, "{}", a.connections());
    clients[0].reset().await.expect("as new");
    proxy.shutdown().await;
}
