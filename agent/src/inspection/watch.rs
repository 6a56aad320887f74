//! Looks at one target of a run, beside its probes: now and then a connection of
//! its own is made through a `Tap`, asked who answers, and closed. What it told
//! is a record of the host stream. No number of any probe comes from it.
//!
//! It gives way: it is not made where it could keep a probe from its connection,
//! and not while the circuit breaker holds anything back. No statement of its own
//! holds an `@`.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gapscope_proto::host::{HostRecord, Inspection};
use gapscope_proto::ids::RunId;
use gapscope_proto::sample::{Phase, Sample};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::reach::{Means, NotReached, Tapped, cut, one, reach, short, text_of};
use super::when::{When, Why};
use crate::outcome;
use crate::probe::answer::{Answer, Ask, ask};
use crate::probe::endpoint::Endpoint;
use crate::probe::identity::{Identity, IdentityCell};
use crate::probe::leash::{self, Ended};
use crate::run::Tools;

/// For each step of a look.
const LIMIT: Duration = Duration::from_secs(5);

/// Where a target's clients say what they saw.
#[derive(Debug)]
pub struct Looks {
    when: Mutex<When>,
    sooner: Notify,
}

impl Looks {
    /// The first look is due at `first_ns`.
    pub fn new(first_ns: i64) -> Self {
        Self {
            when: Mutex::new(When::new(first_ns)),
            sooner: Notify::new(),
        }
    }

    /// A probe ended.
    pub fn note(&self, sample: &Sample) {
        if self.when().note(sample) {
            self.sooner.notify_one();
        }
    }

    fn when(&self) -> MutexGuard<'_, When> {
        self.when.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at the target whenever that is due, until stopped.
pub async fn watch(
    tools: Tools,
    run: RunId,
    endpoint: Arc<Endpoint>,
    identity: Arc<IdentityCell>,
    looks: Arc<Looks>,
    stop: CancellationToken,
) {
    loop {
        let due = looks.when().due();
        let wait = async {
            match due {
                Some((due_ns, _)) => {
                    let left = due_ns.saturating_sub(tools.clock.raw_ns());
                    let left = u64::try_from(left).unwrap_or(0);
                    tokio::time::sleep(Duration::from_nanos(left)).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = looks.sooner.notified() => continue,
            () = wait => {}
        }
        let (Some((_, why)), now_ns) = (due, tools.clock.raw_ns()) else {
            return;
        };
        looks.when().begin(now_ns);
        let means = Means {
            clock: &*tools.clock,
            graveyard: &tools.graveyard,
            limit: LIMIT,
            give_up: &stop,
        };
        let Some(seen) = look(&endpoint, &identity, why, means).await else {
            continue;
        };
        if stop.is_cancelled() {
            // It was cut: what it says is about us.
            return;
        }
        tools
            .spool
            .host(run, HostRecord::Inspection(Box::new(seen)))
            .await;
    }
}

/// One look; none, if there is no room for it.
pub async fn look(
    endpoint: &Arc<Endpoint>,
    identity: &Arc<IdentityCell>,
    why: Why,
    means: Means<'_>,
) -> Option<Inspection> {
    let at_ns = means.clock.raw_ns();
    let _socket = endpoint.admit_beside(at_ns)?;
    let mut seen = Inspection {
        target: endpoint.name.to_string(),
        at_ns,
        why: why.as_str().to_owned(),
        ..Inspection::default()
    };
    fill(endpoint, identity, &mut seen, means).await;
    if let Some(identity) = identity.get() {
        seen.identity.clone_from(&identity.expression);
    }
    seen.until_ns = means.clock.raw_ns();
    Some(seen)
}

fn joined(addresses: &[SocketAddr]) -> String {
    let all: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    short(&all.join(","))
}

async fn fill(
    endpoint: &Arc<Endpoint>,
    identity: &Arc<IdentityCell>,
    seen: &mut Inspection,
    means: Means<'_>,
) {
    let tapped = match reach(endpoint, means).await {
        Ok(tapped) => tapped,
        Err(NotReached {
            verdict,
            addresses,
            peer,
            greeting,
        }) => {
            seen.error = short(&verdict.text);
            seen.addresses = joined(&addresses);
            seen.peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
            put_greeting(seen, greeting);
            return;
        }
    };
    let Tapped {
        addresses,
        peer,
        tap,
        conn,
        ..
    } = tapped;
    seen.addresses = joined(&addresses);
    seen.peer = peer.to_string();
    seen.local = tap.local.to_string();
    let identity = identity.clone();
    let asking = Box::pin(questions(conn, identity));
    let asked = leash::run(asking, Some(means.limit), means.give_up, means.graveyard).await;
    put_greeting(seen, tap.greeting());
    if let Some(tls) = tap.tls() {
        seen.tls_version = tls.version;
        seen.tls_cipher = tls.cipher;
    }
    let password = endpoint.target.password.expose();
    let told = match asked {
        Ended::Done(Ok(told)) => told,
        Ended::Done(Err(error)) => {
            let verdict = outcome::of_driver_error(&error, Phase::Query).without(password);
            seen.error = short(&verdict.text);
            return;
        }
        other => {
            let verdict = cut(other, Phase::Query, means.limit).without(password);
            seen.error = short(&verdict.text);
            return;
        }
    };
    match (told.answer, told.again) {
        (Ask::Answer(answer), Ask::Answer(again)) => put_answers(seen, answer, again),
        (Ask::WrongShape(why), _) | (_, Ask::WrongShape(why)) => seen.error = short(&why),
    }
    seen.lone_id = told.lone_id.ok().and_then(|text| text.parse().ok());
    seen.seen_as = told.seen_as.unwrap_or_default();
    seen.server_tls = told.server_tls.ok();
}

fn put_greeting(seen: &mut Inspection, greeting: Option<super::parse::Greeting>) {
    if let Some(greeting) = greeting {
        seen.greeting_id = Some(greeting.id);
        seen.capabilities = Some(greeting.capabilities);
        seen.greeting_version = greeting.version;
        seen.auth_plugin = greeting.auth_plugin;
    }
}

fn put_answers(seen: &mut Inspection, answer: Answer, again: Answer) {
    seen.answered_id = Some(answer.id);
    seen.again_id = Some(again.id);
    seen.server_version = short(&answer.version);
    seen.backend = short(&answer.backend);
    seen.again_backend = short(&again.backend);
}

struct Told {
    answer: Ask,
    again: Ask,
    lone_id: Result<String, String>,
    seen_as: Result<String, String>,
    server_tls: Result<String, String>,
}

async fn questions(
    mut conn: Conn,
    identity: Arc<IdentityCell>,
) -> Result<Told, mysql_async::Error> {
    let identity: Arc<Identity> = identity.settle(&mut conn).await?;
    let answer = ask(&mut conn, &identity.bare).await?;
    let again = ask(&mut conn, &identity.bare).await?;
    let lone_id = one(&mut conn, "SELECT CONNECTION_ID()").await;
    let seen_as = seen_as(&mut conn).await;
    let server_tls = server_tls(&mut conn).await;
    let _ = conn.disconnect().await;
    Ok(Told {
        answer,
        again,
        lone_id,
        seen_as,
        server_tls,
    })
}

/// Our address and port as the server sees them.
pub async fn seen_as(conn: &mut Conn) -> Result<String, String> {
    one(
        conn,
        "SELECT HOST FROM information_schema.PROCESSLIST WHERE ID = CONNECTION_ID()",
    )
    .await
}

/// TLS as the server sees it: version and cipher; empty: it sees none.
pub async fn server_tls(conn: &mut Conn) -> Result<String, String> {
    let rows: Vec<mysql_async::Row> = conn
        .query("SHOW SESSION STATUS WHERE Variable_name IN ('Ssl_version', 'Ssl_cipher')")
        .await
        .map_err(text_of)?;
    let (mut version, mut cipher) = (None, None);
    for mut row in rows {
        let mut text = |at| row.take_opt::<String, _>(at).and_then(Result::ok);
        let (Some(name), Some(value)) = (text(0), text(1)) else {
            continue;
        };
        match name.to_ascii_lowercase().as_str() {
            "ssl_version" => version = Some(short(&value)),
            "ssl_cipher" => cipher = Some(short(&value)),
            _ => {}
        }
    }
    match (version, cipher) {
        (Some(version), Some(cipher)) => Ok(format!("{version} {cipher}").trim().to_owned()),
        _ => Err("the server does not say".to_owned()),
    }
}
