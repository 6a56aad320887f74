//! What one connection, looked at closely, tells of what answers: the greeting
//! against `CONNECTION_ID()`, the versions, our address as the server sees it.
//!
//! Everything is asked on a connection of its own, so that questions which change
//! what a proxy does (`@@`) touch no client that is measured. They come last.

use std::net::SocketAddr;
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::sample::Phase;
use tokio_util::sync::CancellationToken;

use crate::inspection::parse::{Greeting, TlsSeen};
use crate::inspection::reach::{Means, NotReached, Tapped, column, cut, one, reach};
use crate::inspection::watch::{seen_as, server_tls};
use crate::outcome::{self, Verdict};
use crate::probe::answer::{Answer, Ask, ask};
use crate::probe::endpoint::Endpoint;
use crate::probe::identity::Identity;
use crate::probe::leash::{self, Ended, Graveyard};

/// What was answered, or why nothing was.
pub(crate) type Asked<T> = Result<T, String>;

/// What one connection told.
#[derive(Debug, Clone)]
pub(crate) struct Witness {
    /// All addresses of the name.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The one that was connected to.
    pub(crate) peer: SocketAddr,
    /// Our end of that connection.
    pub(crate) local: SocketAddr,
    /// TCP, TLS and login.
    pub(crate) connect_ns: u64,
    pub(crate) greeting: Option<Greeting>,
    pub(crate) tls: Option<TlsSeen>,
    pub(crate) identity: std::sync::Arc<Identity>,
    pub(crate) answer: Answer,
    pub(crate) again: Answer,
    /// `CONNECTION_ID()` asked alone, which some proxies answer themselves.
    pub(crate) lone_id: Asked<u64>,
    /// Our address and port as the server sees them.
    pub(crate) seen_as: Asked<String>,
    /// TLS as the server sees it; empty: it sees none.
    pub(crate) server_tls: Asked<String>,
    /// `@@version_comment`, which names some proxies.
    pub(crate) comment: Asked<String>,
    pub(crate) grants: Asked<Vec<String>>,
}

/// Looks at the target through one connection; each step takes `limit` at most.
pub(crate) async fn look(
    endpoint: &std::sync::Arc<Endpoint>,
    clock: &dyn Clock,
    graveyard: &Graveyard,
    limit: Duration,
) -> Result<Witness, NotReached> {
    let never = CancellationToken::new();
    let means = Means {
        clock,
        graveyard,
        limit,
        give_up: &never,
    };
    let Tapped {
        addresses,
        peer,
        connect_ns,
        tap,
        mut conn,
    } = reach(endpoint, means).await?;
    let fail = |verdict: Verdict| NotReached {
        verdict: verdict.without(endpoint.target.password.expose()),
        addresses: addresses.clone(),
        peer: Some(peer),
        greeting: tap.greeting(),
    };
    let cell = endpoint.identity.clone();
    let asking = Box::pin(async move {
        let result = async {
            let identity = cell.settle(&mut conn).await?;
            let answer = ask(&mut conn, &identity.bare).await?;
            let again = ask(&mut conn, &identity.bare).await?;
            Ok::<_, mysql_async::Error>((identity, answer, again))
        }
        .await;
        let (identity, answer, again) = match result {
            Ok(done) => done,
            Err(error) => return Err(error),
        };
        let lone_id = one(&mut conn, "SELECT CONNECTION_ID()").await;
        let seen_as = seen_as(&mut conn).await;
        let server_tls = server_tls(&mut conn).await;
        let grants = column(&mut conn, "SHOW GRANTS").await;
        // The one with `@@` last, in the words that proxies look for.
        let comment = one(&mut conn, "SELECT @@version_comment LIMIT 1").await;
        let _ = conn.disconnect().await;
        let said = (lone_id, seen_as, server_tls, grants, comment);
        Ok((identity, answer, again, said))
    });
    let (identity, answer, again, (lone_id, seen_as, server_tls, grants, comment)) =
        match leash::run(asking, Some(limit), &never, graveyard).await {
            Ended::Done(Ok(all)) => all,
            Ended::Done(Err(error)) => {
                return Err(fail(outcome::of_driver_error(&error, Phase::Query)));
            }
            other => return Err(fail(cut(other, Phase::Query, limit))),
        };
    let (answer, again) = match (answer, again) {
        (Ask::Answer(answer), Ask::Answer(again)) => (answer, again),
        (Ask::WrongShape(why), _) | (_, Ask::WrongShape(why)) => {
            return Err(fail(outcome::of_wrong_shape(&why)));
        }
    };
    Ok(Witness {
        addresses,
        peer,
        local: tap.local,
        connect_ns,
        greeting: tap.greeting(),
        tls: tap.tls(),
        identity,
        answer,
        again,
        lone_id: lone_id.and_then(|text| {
            text.parse()
                .map_err(|_| "not answered with a number".to_owned())
        }),
        seen_as,
        server_tls,
        comment,
        grants,
    })
}
