//! One connection through a [`Tap`]: looked up, connected, logged in.
//!
//! Every step is limited and may panic: whoever answers may be anybody.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::sample::Phase;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use tokio_util::sync::CancellationToken;

use super::Tap;
use super::parse::Greeting;
use crate::outcome::{self, Verdict};
use crate::probe::endpoint::{Endpoint, resolve};
use crate::probe::leash::{self, Ended, Graveyard};

/// Longest text that is kept of what a server says.
const MOST_TEXT: usize = 200;

/// What a look needs, and how long each of its steps may take.
#[derive(Clone, Copy)]
pub struct Means<'a> {
    /// Where time comes from.
    pub clock: &'a dyn Clock,
    /// What closes given-up connections.
    pub graveyard: &'a Graveyard,
    /// For each step.
    pub limit: Duration,
    /// Ends it early.
    pub give_up: &'a CancellationToken,
}

/// A connection that is logged in, and what its beginning told.
#[derive(Debug)]
pub struct Tapped {
    /// All addresses of the name.
    pub addresses: Vec<SocketAddr>,
    /// The one that was connected to.
    pub peer: SocketAddr,
    /// TCP, TLS and login.
    pub connect_ns: u64,
    /// Reads what came first.
    pub tap: Tap,
    /// The connection.
    pub conn: Conn,
}

/// A connection that did not come to its end.
#[derive(Debug)]
pub struct NotReached {
    /// What became of it.
    pub verdict: Verdict,
    /// All addresses of the name, if it came so far.
    pub addresses: Vec<SocketAddr>,
    /// The address that was connected to, if it came so far.
    pub peer: Option<SocketAddr>,
    /// The greeting, if it came so far.
    pub greeting: Option<Greeting>,
}

/// What a step that did not end by itself is called.
pub fn cut<T>(ended: Ended<T>, phase: Phase, limit: Duration) -> Verdict {
    match ended {
        Ended::Panicked(text) => outcome::of_panic(phase, &text),
        Ended::GivenUp => outcome::of_run_end(phase),
        _ => outcome::of_timeout(phase, u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)),
    }
}

/// Connects to the target through a relay of our own.
pub async fn reach(endpoint: &Arc<Endpoint>, means: Means<'_>) -> Result<Tapped, NotReached> {
    let Means {
        clock,
        graveyard,
        limit,
        give_up,
    } = means;
    let failed = |verdict: Verdict, addresses: &[SocketAddr]| NotReached {
        verdict: verdict.without(endpoint.target.password.expose()),
        addresses: addresses.to_vec(),
        peer: None,
        greeting: None,
    };
    let of_lookup = Arc::clone(endpoint);
    let lookup = Box::pin(async move { resolve(&of_lookup.target).await });
    let addresses = match leash::run(lookup, Some(limit), give_up, graveyard).await {
        Ended::Done(Ok(addresses)) => addresses,
        Ended::Done(Err(error)) => return Err(failed(outcome::of_resolve_error(&error), &[])),
        other => return Err(failed(cut(other, Phase::Resolve, limit), &[])),
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
    let (peer, tap) = match leash::run(tapping, Some(limit), give_up, graveyard).await {
        Ended::Done(Ok(done)) => done,
        Ended::Done(Err(error)) => {
            let verdict = outcome::of_driver_error(&error.into(), Phase::Connect);
            return Err(failed(verdict, &addresses));
        }
        other => return Err(failed(cut(other, Phase::Connect, limit), &addresses)),
    };
    let (for_connect, via) = (endpoint.clone(), tap.via);
    let connecting = Box::pin(async move { for_connect.connect_to(via).await });
    let verdict = match leash::run(connecting, Some(limit), give_up, graveyard).await {
        Ended::Done(Ok(conn)) => {
            return Ok(Tapped {
                addresses,
                peer,
                connect_ns: u64::try_from(clock.raw_ns() - begun_ns).unwrap_or(0),
                tap,
                conn,
            });
        }
        Ended::Done(Err(error)) => outcome::of_driver_error(&error, Phase::Connect),
        other => cut(other, Phase::Connect, limit),
    };
    Err(NotReached {
        peer: Some(peer),
        greeting: tap.greeting(),
        ..failed(verdict, &addresses)
    })
}

/// The first column of the first row of an answer, or why there is none.
pub async fn one(conn: &mut Conn, sql: &str) -> Result<String, String> {
    let row: Option<mysql_async::Row> = conn.query_first(sql).await.map_err(text_of)?;
    let value: Option<Result<Option<String>, _>> = row.and_then(|mut row| row.take_opt(0));
    match value {
        Some(Ok(Some(text))) => Ok(short(&text)),
        _ => Err("answered with nothing".to_owned()),
    }
}

/// The first column of an answer, where it holds texts.
pub async fn column(conn: &mut Conn, sql: &str) -> Result<Vec<String>, String> {
    let rows: Vec<mysql_async::Row> = conn.query(sql).await.map_err(text_of)?;
    let texts = rows.into_iter().filter_map(|mut row| row.take_opt(0));
    Ok(texts.filter_map(Result::ok).collect())
}

/// What an error says.
pub fn text_of(error: mysql_async::Error) -> String {
    outcome::of_driver_error(&error, Phase::Query).text
}

/// As much of a text as is kept.
pub fn short(text: &str) -> String {
    text.chars().take(MOST_TEXT).collect()
}
