//! One probe over the MySQL protocol.
//!
//! One connection a client, no pool, no Unix socket (the driver's default would
//! swap a proxied connection for the backend's own socket), no hidden statement
//! at connect. Names are looked up here, at each connect, so that the time and
//! the address are known. One statement a probe, except in style `transaction`
//! (four) and of a pool's client (a ping before). What fails is a sample.
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
use mysql_async::{Conn, Error, Statement};
use tokio_util::sync::CancellationToken;

use super::answer::{Answer, Ask};
use super::canary::{self, Script};
use super::endpoint::Socket;
pub use super::endpoint::{Endpoint, connect, resolve};
use super::exchange::{Progress, Send, exchange, in_transaction, surely_not_committed};
use super::identity::{IdentityCell, is_unsupported};
use super::intern::Interner;
use super::leash::{self, Ended, Graveyard};
use super::ledger::Ledger;
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
    /// The canary that is set.
    script: Option<Script>,
    /// What is executed each time, if that is prepared.
    prepared: Option<Statement>,
    /// Everything that a probe needs is there.
    ready: bool,
    /// A transaction may be open: a `BEGIN` would commit it.
    must_roll_back: bool,
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
    pool: bool,
    ledger: Option<Arc<Ledger>>,
    timeouts: Timeouts,
    clock: Arc<dyn Clock>,
    graveyard: Graveyard,
    texts: Interner,
    session: Option<Session>,
    connections: u32,
    /// A session was set up once: what the client does is supported.
    proven: bool,
    /// It is not: why.
    left_out: Option<Verdict>,
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
    /// It pings before each use, and takes a new connection where that fails.
    pub pool: bool,
    /// Where it may write, if it may.
    pub ledger: Option<Arc<Ledger>>,
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
    /// Why the pool's ping found its connection dead.
    dead_at_ping: Option<Verdict>,
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
            pool: spec.pool,
            ledger: spec.ledger,
            timeouts: spec.timeouts,
            clock,
            graveyard,
            texts: Interner::default(),
            session: None,
            connections: 0,
            proven: false,
            left_out: None,
        }
    }

    /// Probes once. Whatever happens is in the sample.
    pub async fn probe(&mut self, slot: Slot, give_up: &CancellationToken) -> Sample {
        let started_ns = self.clock.raw_ns();
        let mut draft = Draft::default();
        let result = match self.endpoint.may_probe(started_ns) {
            Ok(()) => self.attempt(slot, &mut draft, give_up).await,
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
        slot: Slot,
        draft: &mut Draft,
        give_up: &CancellationToken,
    ) -> Result<(), Verdict> {
        if let Some(why) = &self.left_out {
            draft.phase = Some(Phase::Setup);
            draft.canary = self.canary;
            return Err(why.clone());
        }
        if self.endpoint.target.reach.follow_dns && self.session.is_some() {
            self.follow_dns(draft, give_up).await?;
        }
        if self.pool && self.session.is_some() {
            self.ping(draft, give_up).await?;
        }
        if self.session.is_none() {
            self.open(draft, give_up).await?;
        }
        let mut session = self.set_up(draft, give_up).await?;
        let with_canary = session.script.as_ref().is_some_and(Script::has_column);
        let Some(send) = self.send(&session, slot) else {
            self.session = Some(session);
            return Err(outcome::of_wrong_shape("no identity expression is known"));
        };
        draft.phase = Some(Phase::Query);
        draft.connection = Some(session.number);
        draft.handshake_id = Some(session.handshake_id);
        draft.peer = Some(session.peer.clone());
        draft.canary = self.canary;
        let progress = Progress::default();
        let (clock, its_progress) = (self.clock.clone(), progress.clone());
        let sent_ns = clock.raw_ns();
        let asked = leash::run(
            Box::pin(async move {
                let result = exchange(&mut session.conn, &send, with_canary, &its_progress).await;
                (clock.raw_ns(), session, result)
            }),
            self.timeouts.query_ns.map(Duration::from_nanos),
            give_up,
            &self.graveyard,
        )
        .await;
        let phase = progress.phase();
        draft.phase = Some(phase);
        let (answered_ns, session, result) = match asked {
            Ended::Done((answered_ns, session, result)) => (answered_ns, session, result),
            other => {
                draft.query_ns = Some(elapsed(sent_ns, self.clock.raw_ns()));
                draft.answer = progress.answer();
                return Err(self.of_style(self.cut(other, phase), None, phase));
            }
        };
        draft.query_ns = Some(elapsed(sent_ns, answered_ns));
        match result {
            Ok(ask) => {
                let session = self.session.insert(session);
                session.must_roll_back =
                    self.style == Style::Transaction && matches!(ask, Ask::WrongShape(_));
                session.ready &= !session.must_roll_back;
                self.judge(ask, draft)
            }
            Err(error) => {
                draft.answer = progress.answer();
                Err(self.failed(session, &error, phase))
            }
        }
    }

    /// What the session sends in a probe.
    fn send(&self, session: &Session, slot: Slot) -> Option<Send> {
        if let Some(prepared) = &session.prepared {
            return Some(Send::Prepared(prepared.clone()));
        }
        if let Some(script) = &session.script {
            return match &script.ask {
                canary::Ask::Text(text) => Some(Send::Text(text.clone())),
                canary::Ask::Prepared(_) => None,
            };
        }
        let bare = self.identity.get()?.bare.clone();
        match (self.style, &self.ledger) {
            (Style::Transaction, Some(ledger)) => Some(Send::Transaction {
                insert: ledger.insert(&self.endpoint.name, self.number, slot.number),
                read: bare,
            }),
            _ => Some(Send::Text(bare)),
        }
    }

    /// The statement failed: what becomes of the session, and how it is called.
    fn failed(&mut self, mut session: Session, error: &Error, phase: Phase) -> Verdict {
        let verdict = outcome::of_driver_error(error, phase);
        let code = match error {
            Error::Server(error) => Some(error.code),
            _ => None,
        };
        let gone = self
            .canary
            .zip(code)
            .is_some_and(|(canary, code)| canary::says_it_is_gone(canary, code));
        if error.is_fatal() {
            self.graveyard.bury(session);
        } else {
            // Its state is set again before the next probe, so that each loss
            // counts once.
            if gone || matches!(code, Some(1243 | 1615)) {
                session.script = None;
                session.prepared = None;
                session.ready = false;
            }
            if self.style == Style::Transaction {
                session.must_roll_back = true;
                session.ready = false;
            }
            self.session = Some(session);
        }
        if gone {
            return Verdict {
                code: verdict.code,
                sqlstate: verdict.sqlstate,
                ..outcome::of_broken_canary(&verdict.text)
            };
        }
        self.of_style(verdict, code, phase)
    }

    /// In a transaction only an unanswered `COMMIT` leaves something unknown: what
    /// came before it is rolled back. And an error to it is seldom a no.
    fn of_style(&self, mut verdict: Verdict, code: Option<u16>, phase: Phase) -> Verdict {
        if self.style == Style::Transaction {
            verdict.may_have_executed = phase == Phase::Commit
                && match code {
                    Some(code) => !surely_not_committed(code),
                    None => verdict.may_have_executed,
                };
        }
        verdict
    }

    /// Takes the connection out of the pool: pings it, and throws it away if that
    /// fails, as a pool does. Errs only if the run ends meanwhile.
    async fn ping(
        &mut self,
        draft: &mut Draft,
        give_up: &CancellationToken,
    ) -> Result<(), Verdict> {
        let mut session = self.session.take().expect("looked at before");
        draft.phase = Some(Phase::Ping);
        draft.connection = Some(session.number);
        draft.handshake_id = Some(session.handshake_id);
        draft.peer = Some(session.peer.clone());
        let pinged = leash::run(
            Box::pin(async move {
                let result = session.conn.ping().await;
                (session, result)
            }),
            self.timeouts.query_ns.map(Duration::from_nanos),
            give_up,
            &self.graveyard,
        )
        .await;
        draft.dead_at_ping = match pinged {
            Ended::Done((session, Ok(()))) => {
                self.session = Some(session);
                return Ok(());
            }
            Ended::Done((session, Err(error))) => {
                self.graveyard.bury(session);
                Some(outcome::of_driver_error(&error, Phase::Ping))
            }
            ended @ Ended::GivenUp => return Err(self.cut(ended, Phase::Ping)),
            other => Some(self.cut(other, Phase::Ping)),
        };
        // It is a new connection's probe from here on.
        (draft.connection, draft.handshake_id) = (None, None);
        Ok(())
    }

    /// Whether the answer is good. A canary found broken is set again before the
    /// next probe, so that each loss of state is counted once.
    fn judge(&mut self, ask: Ask, draft: &mut Draft) -> Result<(), Verdict> {
        let answer = match ask {
            Ask::Answer(answer) => draft.answer.insert(answer),
            Ask::WrongShape(why) => return Err(outcome::of_wrong_shape(&why)),
        };
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        let Some(script) = &session.script else {
            return Ok(());
        };
        let found = answer.canary.as_ref().and_then(Option::as_deref);
        let Some(why) = canary::broken(script, found, answer.id, in_transaction(&session.conn))
        else {
            return Ok(());
        };
        session.script = None;
        session.prepared = None;
        session.ready = false;
        Err(outcome::of_broken_canary(&why))
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
            script: None,
            prepared: None,
            ready: false,
            must_roll_back: false,
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
        let target = &self.endpoint.target;
        if let Ok(ip) = target.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, target.port)]);
        }
        let endpoint = Arc::clone(&self.endpoint);
        draft.phase = Some(Phase::Resolve);
        let begun_ns = self.clock.raw_ns();
        let looked_up = leash::run(
            Box::pin(async move { resolve(&endpoint.target).await }),
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

    /// Takes the session, with all that a probe needs: the identity known, the
    /// canary set, the statement prepared, no transaction left open.
    async fn set_up(
        &mut self,
        draft: &mut Draft,
        give_up: &CancellationToken,
    ) -> Result<Session, Verdict> {
        let mut session = self.session.take().expect("opened before");
        let bare = self.canary.is_none() && matches!(self.style, Style::Reused | Style::New);
        if session.ready || (bare && self.identity.get().is_some()) {
            return Ok(session);
        }
        draft.phase = Some(Phase::Setup);
        draft.connection = Some(session.number);
        draft.handshake_id = Some(session.handshake_id);
        draft.peer = Some(session.peer.clone());
        draft.canary = self.canary;
        let set_up = SetUp {
            identity: self.identity.clone(),
            style: self.style,
            canary: self.canary,
            value: format!("{}-{}", self.canary_value, session.number),
            number: u32::from(self.number)
                .wrapping_mul(101)
                .wrapping_add(session.number),
            ledger: self.ledger.clone(),
            first: !self.proven,
        };
        let done = leash::run(
            Box::pin(async move {
                let result = set_up.perform(&mut session).await;
                (session, result)
            }),
            self.timeouts.query_ns.map(Duration::from_nanos),
            give_up,
            &self.graveyard,
        )
        .await;
        match done {
            Ended::Done((session, Ok(()))) => {
                self.proven = true;
                Ok(session)
            }
            Ended::Done((session, Err(error))) => {
                let verdict = outcome::of_driver_error(&error, Phase::Setup);
                // Before the identity is known it is not the client's own doing.
                let is_its_own = !bare && !self.proven && self.identity.get().is_some();
                if is_its_own
                    && matches!(&error, Error::Server(error) if is_unsupported(error.code))
                {
                    let verdict = outcome::of_unsupported(&verdict);
                    tracing::warn!(
                        target_name = %self.endpoint.name, style = %self.style,
                        canary = self.canary.map(Canary::as_str), why = verdict.text, "left out"
                    );
                    self.left_out = Some(verdict.clone());
                    self.session = Some(session);
                    self.close().await;
                    return Err(verdict);
                }
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
            _ => self.timeouts.query_ns,
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
        if let (Ok(()), Some(ping)) = (&result, draft.dead_at_ping) {
            let ping = ping.without(self.endpoint.target.password.expose());
            sample.cause = ping.cause;
            sample.error_code = ping.code;
            sample.error = Some(self.texts.get(&format!("the ping failed: {}", ping.text)));
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

/// What has to be done on a connection before the first probe over it.
struct SetUp {
    identity: Arc<IdentityCell>,
    style: Style,
    canary: Option<Canary>,
    value: String,
    number: u32,
    ledger: Option<Arc<Ledger>>,
    /// Nothing is known yet of what the target supports.
    first: bool,
}

impl SetUp {
    async fn perform(&self, session: &mut Session) -> Result<(), Error> {
        let conn = &mut session.conn;
        if std::mem::take(&mut session.must_roll_back) {
            conn.query_drop("ROLLBACK").await?;
        }
        let identity = self.identity.settle(conn).await?;
        match (self.style, &self.ledger) {
            (Style::Prepared, _) if session.prepared.is_none() => {
                session.prepared = Some(conn.prep(&*identity.bare).await?);
            }
            (Style::Transaction, Some(ledger)) if self.first => {
                if let Some(create) = ledger.create() {
                    conn.query_drop(create).await?;
                }
            }
            _ => {}
        }
        if let (Some(canary), None) = (self.canary, &session.script) {
            let schema = self.ledger.as_ref().map(|ledger| ledger.schema());
            let script = canary::script(canary, &identity, &self.value, self.number, schema)
                .ok_or_else(|| Error::Other("this canary cannot be checked here".into()))?;
            for statement in &script.set {
                conn.query_drop(statement.as_str()).await?;
            }
            let send = match &script.ask {
                canary::Ask::Text(text) => Send::Text(text.clone()),
                canary::Ask::Prepared(text) => {
                    let statement = conn.prep(&**text).await?;
                    session.prepared = Some(statement.clone());
                    Send::Prepared(statement)
                }
            };
            // Functions and statements that are not known here show at once.
            if self.first && canary != Canary::UserVariable {
                exchange(conn, &send, script.has_column(), &Progress::default()).await?;
            }
            session.script = Some(script);
        }
        session.ready = true;
        Ok(())
    }
}

fn elapsed(from_ns: i64, to_ns: i64) -> u64 {
    u64::try_from(to_ns.saturating_sub(from_ns)).unwrap_or(0)
}
