//! One probe over the MySQL protocol.
//!
//! One connection a client, no pool, no Unix socket (the driver's default would
//! swap a proxied connection for the backend's own socket), no hidden statement
//! at connect. Names are looked up here, at each connect, so that the time and
//! the address are known. One statement a probe. What fails is a sample.
//!
//! What it cannot know: when bytes left the host. Stamps are taken around the
//! driver's calls, in the task; a late wake-up of the task is inside them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::plan::Timeouts;
use gapscope_proto::sample::{Canary, Outcome, Phase, Sample, Style};
use gapscope_proto::time::Timestamp;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error};
use tokio_util::sync::CancellationToken;

use super::answer::{Answer, Ask, ask};
use super::endpoint::Socket;
pub use super::endpoint::{Endpoint, connect, resolve};
use super::identity::IdentityCell;
use super::intern::Interner;
use super::leash::{self, Ended, Graveyard};
use crate::outcome::{self, Verdict};
use crate::schedule::Slot;

/// How long a good-bye may take; it is not part of any probe.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Session {
    conn: Conn,
    number: u32,
    handshake_id: u32,
    peer: Arc<str>,
    canary: Option<String>,
    _socket: Socket,
}

/// One client: at most one connection, its number, its canary.
pub struct Client {
    endpoint: Arc<Endpoint>,
    identity: Arc<IdentityCell>,
    style: Style,
    number: u16,
    canary: Option<Canary>,
    canary_value: String,
    timeouts: Timeouts,
    clock: Arc<dyn Clock>,
    graveyard: Graveyard,
    texts: Interner,
    session: Option<Session>,
    connections: u32,
}

/// What a client is made of.
#[derive(Debug, Clone)]
pub struct ClientSpec {
    /// Whom it probes.
    pub endpoint: Arc<Endpoint>,
    /// The identity expression it uses.
    pub identity: Arc<IdentityCell>,
    /// What it does each time.
    pub style: Style,
    /// Its number within target and style.
    pub number: u16,
    /// The canary it sets and checks.
    pub canary: Option<Canary>,
    /// Unique among all clients of all runs.
    pub canary_value: String,
    /// How long it waits.
    pub timeouts: Timeouts,
}

/// What is known of a probe so far.
#[derive(Default)]
struct Draft {
    phase: Option<Phase>,
    resolve_ns: Option<u64>,
    connect_ns: Option<u64>,
    query_ns: Option<u64>,
    connection: Option<u32>,
    handshake_id: Option<u32>,
    peer: Option<Arc<str>>,
    canary: Option<Canary>,
    answer: Option<Answer>,
}

impl Client {
    /// A client without a connection.
    pub fn new(spec: ClientSpec, clock: Arc<dyn Clock>, graveyard: Graveyard) -> Self {
        Self {
            endpoint: spec.endpoint,
            identity: spec.identity,
            style: spec.style,
            number: spec.number,
            canary: spec.canary,
            canary_value: spec.canary_value,
            timeouts: spec.timeouts,
            clock,
            graveyard,
            texts: Interner::default(),
            session: None,
            connections: 0,
        }
    }

    /// Probes once. Whatever happens is in the sample.
    pub async fn probe(&mut self, slot: Slot, give_up: &CancellationToken) -> Sample {
        let started_ns = self.clock.raw_ns();
        let mut draft = Draft::default();
        let result = match self.endpoint.may_probe(started_ns) {
            Ok(()) => self.attempt(&mut draft, give_up).await,
            Err(resting) => Err(resting),
        };
        let finished_ns = self.clock.raw_ns();
        self.endpoint
            .note(&result, draft.connect_ns.is_some(), finished_ns);
        let sample = self.sample(slot, started_ns, finished_ns, draft, result);
        if !self.style.is_held() {
            self.close().await;
        }
        sample
    }

    /// Makes the held connection ready ahead of the first slot, so that the
    /// first probes do not all connect at once. Its failure is no sample: the
    /// first probe will try again.
    pub async fn warm_up(&mut self, give_up: &CancellationToken) {
        if !self.style.is_held() || self.session.is_some() {
            return;
        }
        let mut draft = Draft::default();
        if let Err(verdict) = self.open(&mut draft, give_up).await {
            tracing::debug!(target_name = %self.endpoint.name, why = verdict.text, "not connected ahead");
        }
    }

    /// Says good-bye to the server.
    pub async fn close(&mut self) {
        if let Some(session) = self.session.take() {
            let never = CancellationToken::new();
            let goodbye = Box::pin(session.conn.disconnect());
            let _ = leash::run(goodbye, Some(CLOSE_LIMIT), &never, &self.graveyard).await;
        }
    }

    async fn attempt(
        &mut self,
        draft: &mut Draft,
        give_up: &CancellationToken,
    ) -> Result<(), Verdict> {
        if self.endpoint.target.reach.follow_dns && self.session.is_some() {
            self.follow_dns(draft, give_up).await?;
        }
        if self.session.is_none() {
            self.open(draft, give_up).await?;
        }
        let mut session = self.set_up(draft, give_up).await?;
        let statement = match self.identity.get() {
            Some(identity) if self.canary.is_some() => identity.with_user_variable.clone(),
            Some(identity) => identity.bare.clone(),
            None => return Err(outcome::of_wrong_shape("no identity expression is known")),
        };
        draft.phase = Some(Phase::Query);
        draft.connection = Some(session.number);
        draft.handshake_id = Some(session.handshake_id);
        draft.peer = Some(session.peer.clone());
        draft.canary = self.canary;
        let clock = self.clock.clone();
        let sent_ns = clock.raw_ns();
        let asked = leash::run(
            Box::pin(async move {
                let result = ask(&mut session.conn, &statement).await;
                (clock.raw_ns(), session, result)
            }),
            self.timeouts.query_ns.map(Duration::from_nanos),
            give_up,
            &self.graveyard,
        )
        .await;
        let (answered_ns, session, result) = match asked {
            Ended::Done((answered_ns, session, result)) => (answered_ns, session, result),
            other => {
                draft.query_ns = Some(elapsed(sent_ns, self.clock.raw_ns()));
                return Err(self.cut(other, Phase::Query));
            }
        };
        draft.query_ns = Some(elapsed(sent_ns, answered_ns));
        match result {
            Ok(ask) => {
                let expected = session.canary.clone();
                self.session = Some(session);
                self.judge(ask, expected, draft)
            }
            Err(error) => {
                if error.is_fatal() {
                    self.graveyard.bury(session);
                } else {
                    self.session = Some(session);
                }
                Err(outcome::of_driver_error(&error, Phase::Query))
            }
        }
    }

    /// Whether the answer is good. A canary found broken is set again before the
    /// next probe, so that each loss of state is counted once.
    fn judge(
        &mut self,
        ask: Ask,
        expected: Option<String>,
        draft: &mut Draft,
    ) -> Result<(), Verdict> {
        let answer = match ask {
            Ask::Answer(answer) => draft.answer.insert(answer),
            Ask::WrongShape(why) => return Err(outcome::of_wrong_shape(&why)),
        };
        let Some(expected) = expected else {
            return Ok(());
        };
        if answer.canary.as_ref() == Some(&Some(expected.clone())) {
            return Ok(());
        }
        if let Some(session) = &mut self.session {
            session.canary = None;
        }
        let found = match answer.canary.as_ref().and_then(Option::as_ref) {
            None => "is NULL".to_owned(),
            Some(other) => format!("is `{other}`"),
        };
        Err(outcome::of_broken_canary(&format!(
            "@gapscope_canary {found} where `{expected}` was set"
        )))
    }

    async fn open(
        &mut self,
        draft: &mut Draft,
        give_up: &CancellationToken,
    ) -> Result<(), Verdict> {
        draft.phase = Some(Phase::Connect);
        let socket = self.endpoint.admit(self.clock.raw_ns())?;
        let addresses = self.look_up(draft, give_up).await?;
        draft.phase = Some(Phase::Connect);
        // Unless it fails with an answer, it is not known which one was tried.
        draft.peer = (addresses.len() == 1).then(|| self.texts.get(&addresses[0].to_string()));
        let begun_ns = self.clock.raw_ns();
        let endpoint = self.endpoint.clone();
        let connected = leash::run(
            Box::pin(async move { (connect(&endpoint, &addresses).await, socket) }),
            self.timeouts.connect_ns.map(Duration::from_nanos),
            give_up,
            &self.graveyard,
        )
        .await;
        draft.connect_ns = Some(elapsed(begun_ns, self.clock.raw_ns()));
        let ((peer, result), socket) = match connected {
            Ended::Done(done) => done,
            other => return Err(self.cut(other, Phase::Connect)),
        };
        let peer = self.texts.get(&peer.to_string());
        draft.peer = Some(peer.clone());
        let conn = result.map_err(|error| outcome::of_driver_error(&error, Phase::Connect))?;
        self.connections += 1;
        self.session = Some(Session {
            number: self.connections,
            handshake_id: conn.id(),
            peer,
            canary: None,
            _socket: socket,
            conn,
        });
        Ok(())
    }

    /// Asks where the name points now. A number is no name.
    async fn look_up(
        &mut self,
        draft: &mut Draft,
        give_up: &CancellationToken,
    ) -> Result<Vec<SocketAddr>, Verdict> {
        let (host, port) = (self.endpoint.target.host.clone(), self.endpoint.target.port);
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        draft.phase = Some(Phase::Resolve);
        let begun_ns = self.clock.raw_ns();
        let looked_up = leash::run(
            Box::pin(async move { resolve(&host, port).await }),
            self.timeouts.resolve_ns.map(Duration::from_nanos),
            give_up,
            &self.graveyard,
        )
        .await;
        let took_ns = elapsed(begun_ns, self.clock.raw_ns());
        *draft.resolve_ns.get_or_insert(0) += took_ns;
        match looked_up {
            Ended::Done(Ok(addresses)) => Ok(addresses),
            Ended::Done(Err(error)) => Err(outcome::of_resolve_error(&error)),
            other => Err(self.cut(other, Phase::Resolve)),
        }
    }

    /// Leaves a held connection whose address the name no longer has.
    async fn follow_dns(
        &mut self,
        draft: &mut Draft,
        give_up: &CancellationToken,
    ) -> Result<(), Verdict> {
        let addresses = self.look_up(draft, give_up).await?;
        let stays = self.session.as_ref().is_some_and(|session| {
            addresses
                .iter()
                .any(|address| *session.peer == *address.to_string())
        });
        if !stays {
            self.close().await;
        }
        Ok(())
    }

    /// Takes the session, with the identity known and the canary set.
    async fn set_up(
        &mut self,
        draft: &mut Draft,
        give_up: &CancellationToken,
    ) -> Result<Session, Verdict> {
        let mut session = self.session.take().expect("opened before");
        let wants_canary = self.canary.is_some() && session.canary.is_none();
        if self.identity.get().is_some() && !wants_canary {
            return Ok(session);
        }
        draft.phase = Some(Phase::Setup);
        draft.connection = Some(session.number);
        draft.handshake_id = Some(session.handshake_id);
        draft.peer = Some(session.peer.clone());
        let identity = self.identity.clone();
        let value = wants_canary.then(|| format!("{}-{}", self.canary_value, session.number));
        let done = leash::run(
            Box::pin(async move {
                let result = async {
                    identity.settle(&mut session.conn).await?;
                    if let Some(value) = value {
                        session
                            .conn
                            .query_drop(format!("SET @gapscope_canary = '{value}'"))
                            .await?;
                        session.canary = Some(value);
                    }
                    Ok::<(), Error>(())
                }
                .await;
                (session, result)
            }),
            self.timeouts.query_ns.map(Duration::from_nanos),
            give_up,
            &self.graveyard,
        )
        .await;
        match done {
            Ended::Done((session, Ok(()))) => Ok(session),
            Ended::Done((session, Err(error))) => {
                let verdict = outcome::of_driver_error(&error, Phase::Setup);
                if error.is_fatal() {
                    self.graveyard.bury(session);
                } else {
                    self.session = Some(session);
                }
                Err(verdict)
            }
            other => Err(self.cut(other, Phase::Setup)),
        }
    }

    fn cut<T>(&self, ended: Ended<T>, phase: Phase) -> Verdict {
        let timeout_ns = match phase {
            Phase::Resolve => self.timeouts.resolve_ns,
            Phase::Connect => self.timeouts.connect_ns,
            Phase::Setup | Phase::Query => self.timeouts.query_ns,
        };
        match ended {
            Ended::TimedOut => outcome::of_timeout(phase, timeout_ns.unwrap_or(0)),
            Ended::Panicked(text) => outcome::of_panic(phase, &text),
            Ended::GivenUp | Ended::Done(_) => outcome::of_run_end(phase),
        }
    }

    fn sample(
        &mut self,
        slot: Slot,
        started_ns: i64,
        finished_ns: i64,
        draft: Draft,
        result: Result<(), Verdict>,
    ) -> Sample {
        let mut sample = Sample {
            target: self.endpoint.name.clone(),
            style: self.style,
            client: self.number,
            slot: slot.number,
            scheduled: Timestamp::from_ns(slot.due_ns),
            started: Timestamp::from_ns(started_ns),
            finished: Timestamp::from_ns(finished_ns),
            resolve_ns: draft.resolve_ns,
            connect_ns: draft.connect_ns,
            query_ns: draft.query_ns,
            phase: draft.phase.unwrap_or(Phase::Connect),
            outcome: Outcome::Ok,
            cause: None,
            error_code: None,
            sqlstate: None,
            error: None,
            may_have_executed: false,
            connection: draft.connection,
            connection_id: None,
            handshake_id: draft.handshake_id,
            backend: None,
            peer: draft.peer,
            server_version: None,
            canary: draft.canary,
        };
        if let Some(answer) = draft.answer {
            sample.connection_id = Some(answer.id);
            sample.backend = Some(self.texts.get(&answer.backend));
            sample.server_version = Some(self.texts.get(&answer.version));
        }
        if let Err(verdict) = result {
            let verdict = verdict.without(self.endpoint.target.password.expose());
            sample.outcome = verdict.outcome;
            sample.cause = verdict.cause;
            sample.error_code = verdict.code;
            sample.sqlstate = verdict.sqlstate.as_deref().map(|s| self.texts.get(s));
            sample.error = Some(self.texts.get(&verdict.text));
            sample.may_have_executed = verdict.may_have_executed;
        }
        sample
    }
}

fn elapsed(from_ns: i64, to_ns: i64) -> u64 {
    u64::try_from(to_ns.saturating_sub(from_ns)).unwrap_or(0)
}
