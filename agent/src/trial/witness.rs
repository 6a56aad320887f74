//! What one connection, looked at closely, tells of what answers: the greeting
//! against `CONNECTION_ID()`, the versions, our address as the server sees it.
//!
//! Everything is asked on a connection of its own, so that questions which change
//! what a proxy does (`@@`) touch no client that is measured. They come last.

use std::net::SocketAddr;
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::sample::Phase;
use mysql_async::prelude::Queryable;
use tokio_util::sync::CancellationToken;

use crate::inspection::Tap;
use crate::inspection::parse::{Greeting, TlsSeen};
use crate::outcome::{self, Verdict};
use crate::probe::answer::{Answer, Ask, ask};
use crate::probe::endpoint::{Endpoint, resolve};
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
    /// `@@version_comment`, which names some proxies.
    pub(crate) comment: Asked<String>,
    pub(crate) grants: Asked<Vec<String>>,
}

/// A connection that did not come to its end.
pub(crate) struct NoWitness {
    pub(crate) verdict: Verdict,
    /// As far as it came.
    pub(crate) greeting: Option<Greeting>,
}

/// Looks at the target through one connection; each step takes `limit` at most.
pub(crate) async fn look(
    endpoint: &std::sync::Arc<Endpoint>,
    clock: &dyn Clock,
    graveyard: &Graveyard,
    limit: Duration,
) -> Result<Witness, NoWitness> {
    let never = CancellationToken::new();
    let fail = |verdict: Verdict| NoWitness {
        verdict: verdict.without(endpoint.target.password.expose()),
        greeting: None,
    };
    let cut = |ended_by_panic: Option<String>, phase| match ended_by_panic {
        Some(text) => outcome::of_panic(phase, &text),
        None => outcome::of_timeout(phase, u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)),
    };
    let (host, port) = (endpoint.target.host.clone(), endpoint.target.port);
    let lookup = Box::pin(async move { resolve(&host, port).await });
    let addresses = match leash::run(lookup, Some(limit), &never, graveyard).await {
        Ended::Done(Ok(addresses)) => addresses,
        Ended::Done(Err(error)) => return Err(fail(outcome::of_resolve_error(&error))),
        Ended::Panicked(text) => return Err(fail(cut(Some(text), Phase::Resolve))),
        _ => return Err(fail(cut(None, Phase::Resolve))),
    };
    let begun_ns = clock.raw_ns();
    let to_try = addresses.clone();
    let tapping = Box::pin(async move {
        let mut last = None;
        for address in to_try {
            match Tap::connect(address).await {
                Ok(tap) => return Ok((address, tap)),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| std::io::ErrorKind::NotFound.into()))
    });
    let (peer, tap) = match leash::run(tapping, Some(limit), &never, graveyard).await {
        Ended::Done(Ok(done)) => done,
        Ended::Done(Err(error)) => {
            return Err(fail(outcome::of_driver_error(
                &error.into(),
                Phase::Connect,
            )));
        }
        _ => return Err(fail(cut(None, Phase::Connect))),
    };
    let fail = |verdict: Verdict| NoWitness {
        greeting: tap.greeting(),
        ..fail(verdict)
    };
    let (for_connect, via) = (endpoint.clone(), tap.via);
    let connecting = Box::pin(async move { for_connect.connect_to(via).await });
    let mut conn = match leash::run(connecting, Some(limit), &never, graveyard).await {
        Ended::Done(Ok(conn)) => conn,
        Ended::Done(Err(error)) => {
            return Err(fail(outcome::of_driver_error(&error, Phase::Connect)));
        }
        Ended::Panicked(text) => return Err(fail(cut(Some(text), Phase::Connect))),
        _ => return Err(fail(cut(None, Phase::Connect))),
    };
    let connect_ns = u64::try_from(clock.raw_ns() - begun_ns).unwrap_or(0);
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
        let seen_as = one(
            &mut conn,
            "SELECT HOST FROM information_schema.PROCESSLIST WHERE ID = CONNECTION_ID()",
        )
        .await;
        let grants: Result<Vec<String>, _> = conn.query("SHOW GRANTS").await;
        // The one with `@@` last, in the words that proxies look for.
        let comment = one(&mut conn, "SELECT @@version_comment LIMIT 1").await;
        let _ = conn.disconnect().await;
        Ok((identity, answer, again, lone_id, seen_as, grants, comment))
    });
    let (identity, answer, again, lone_id, seen_as, grants, comment) =
        match leash::run(asking, Some(limit), &never, graveyard).await {
            Ended::Done(Ok(all)) => all,
            Ended::Done(Err(error)) => {
                return Err(fail(outcome::of_driver_error(&error, Phase::Query)));
            }
            Ended::Panicked(text) => return Err(fail(cut(Some(text), Phase::Query))),
            _ => return Err(fail(cut(None, Phase::Query))),
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
        comment,
        grants: grants.map_err(|error| outcome::of_driver_error(&error, Phase::Query).text),
    })
}

async fn one(conn: &mut mysql_async::Conn, sql: &str) -> Asked<String> {
    match conn.query_first::<Option<String>, _>(sql).await {
        Ok(Some(Some(text))) => Ok(text.chars().take(200).collect()),
        Ok(_) => Err("answered with nothing".to_owned()),
        Err(error) => Err(outcome::of_driver_error(&error, Phase::Query).text),
    }
}
