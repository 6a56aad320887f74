//! One client of such a proxy; see the parent's description.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mysql_common::constants::{CapabilityFlags, StatusFlags};
use tokio::net::TcpStream;

use super::super::answer::{Answer, Shape};
use super::super::auth::{self, Scramble};
use super::super::link::Link;
use super::super::session::unknown_command;
use super::super::sql::{Statement, parse};
use super::super::wire::{
    HEADER, Inbox, MAX_LOGIN_PAYLOAD, MAX_PAYLOAD, Outbox, ReadError, SqlError, write_all,
};
use super::carry::Carried;
use super::command::{
    may_be_sent_again, needs_no_session, set_statement_id, shape_of, statement_id,
};
use super::shared::Kind;
use super::{Inner, L7Behaviour};

/// Bytes a client may send ahead while a statement of its runs.
const MAX_AHEAD: usize = 64 << 10;
/// Longest answer of a backend that is held until it is complete.
const MAX_ANSWER: usize = 16 << 20;
/// The client is gone or has to go.
pub(super) struct Over;

impl From<io::Error> for Over {
    fn from(_: io::Error) -> Self {
        Self
    }
}

/// Why there is no answer of a backend.
enum Failure {
    Lost,
    Over,
    /// To be told to the client.
    Told(SqlError),
    /// To be told to the client, whose connection ends with it.
    Last(SqlError),
}

/// One client and its backend connection.
pub(super) struct Client<'a> {
    inner: &'a Inner,
    id: u32,
    stream: &'a TcpStream,
    inbox: Inbox,
    capabilities: CapabilityFlags,
    database: Option<Vec<u8>>,
    link: Option<Link>,
    had_link: bool,
    in_transaction: bool,
    transaction_lost: bool,
    /// The client's number of a prepared statement to its number on the present
    /// backend connection. The client's numbers are never used twice.
    statements: HashMap<u32, u32>,
    last_statement: u32,
    /// What could be made again elsewhere.
    carried: Carried,
    /// The session holds something on its backend connection, which therefore is
    /// its own.
    pinned: bool,
    /// The session is lost, and must not go on as if it were not.
    broken: Option<&'static str>,
    /// The answer being collected, as it goes to the client.
    answer: Vec<u8>,
}

impl<'a> Client<'a> {
    /// A client that has just connected.
    pub(super) fn new(inner: &'a Inner, stream: &'a TcpStream) -> Self {
        Self {
            id: inner.next_id.fetch_add(1, Ordering::Relaxed),
            inner,
            stream,
            inbox: Inbox::default(),
            capabilities: CapabilityFlags::empty(),
            database: None,
            link: None,
            had_link: false,
            in_transaction: false,
            transaction_lost: false,
            statements: HashMap::new(),
            last_statement: 0,
            carried: Carried::default(),
            pinned: false,
            broken: None,
            answer: Vec::new(),
        }
    }

    /// Talks until either side ends it.
    pub(super) async fn serve(mut self) -> Result<(), Over> {
        let Ok(_permit) = self.inner.permits.try_acquire() else {
            let mut out = Vec::new();
            Outbox::new(&mut out, 0).error(&SqlError::new(1040, "", "Too many connections"));
            return Ok(write_all(self.stream, &out).await?);
        };
        if !self.log_in().await? {
            return Ok(());
        }
        loop {
            let length = match self.next_command().await? {
                Ok(length) => length,
                Err(error) => {
                    self.tell(&error).await?;
                    return Err(Over);
                }
            };
            // A copy, since it may have to be sent twice.
            let mut command = self.inbox.peek_raw(length).to_vec();
            self.inbox.consume(length);
            match command.get(HEADER).copied() {
                Some(0x01) => {
                    if let Some(link) = &self.link {
                        let _ = write_all(&link.stream, &command).await;
                    }
                    return Ok(());
                }
                Some(0x18 | 0x19) => self.forget(&mut command).await,
                _ => self.statement(&mut command).await?,
            }
        }
    }

    /// Greets the client and checks its password; false if it was refused.
    async fn log_in(&mut self) -> Result<bool, Over> {
        let config = &self.inner.config;
        let offered = auth::server_capabilities(config.deprecate_eof);
        let scramble = Scramble::random();
        let mut out = Vec::new();
        Outbox::new(&mut out, 0).packet(|out| {
            auth::put_greeting(out, &config.version, self.id, &scramble, offered);
        });
        write_all(self.stream, &out).await?;
        let (mut sequence, payload) = self.login_packet().await?;
        let outcome = match auth::read_login(&payload, offered) {
            Ok(mut login) => {
                if login.must_switch {
                    out.clear();
                    Outbox::new(&mut out, sequence.wrapping_add(1))
                        .packet(|out| auth::put_switch(out, &scramble));
                    write_all(self.stream, &out).await?;
                    (sequence, login.proof) = self.login_packet().await?;
                }
                auth::verify(&config.credentials, &scramble, &login.user, &login.proof)
                    .map(|()| login)
            }
            Err(error) => Err(error),
        };
        out.clear();
        let mut answer = Outbox::new(&mut out, sequence.wrapping_add(1));
        let accepted = match outcome {
            Ok(login) => {
                answer.ok(StatusFlags::SERVER_STATUS_AUTOCOMMIT);
                self.capabilities = login.capabilities;
                self.database = login.database;
                true
            }
            Err(error) => {
                answer.error(&error);
                false
            }
        };
        write_all(self.stream, &out).await?;
        Ok(accepted)
    }

    async fn login_packet(&mut self) -> Result<(u8, Vec<u8>), Over> {
        let length = self
            .inbox
            .packet(self.stream, MAX_LOGIN_PAYLOAD)
            .await
            .map_err(|_| Over)?;
        let (sequence, payload) = self.inbox.peek(length);
        let payload = payload.to_vec();
        self.inbox.consume(length);
        Ok((sequence, payload))
    }

    /// Waits for a command, and notices meanwhile when the backend is lost.
    async fn next_command(&mut self) -> Result<Result<usize, SqlError>, Over> {
        loop {
            let Some(link) = &mut self.link else {
                return command_of(self.inbox.packet(self.stream, MAX_PAYLOAD).await);
            };
            tokio::select! {
                biased;
                command = self.inbox.packet(self.stream, MAX_PAYLOAD) => return command_of(command),
                // Whatever a backend sends unasked, it is the end.
                _ = link.inbox.fill(&link.stream) => self.lose_link(),
            }
            if self.broken.is_some() {
                return Err(Over);
            }
        }
    }

    fn lose_link(&mut self) {
        self.link = None;
        self.transaction_lost |= self.in_transaction;
        self.in_transaction = false;
        self.broken = match self.inner.config.behaviour {
            L7Behaviour::Reconnecting => None,
            L7Behaviour::Migrating => self.carried.obstacle(),
            L7Behaviour::Multiplexing => self
                .pinned
                .then_some("the session was pinned to its connection"),
        };
    }

    /// Whether this session is to leave its backend, and can.
    fn should_move(&self) -> bool {
        self.inner.config.behaviour == L7Behaviour::Migrating
            && !self.in_transaction
            && self.carried.obstacle().is_none()
            && self
                .link
                .as_ref()
                .is_some_and(|link| !self.inner.pool.is_usable(link.member))
            && !self.inner.pool.candidates().is_empty()
    }

    async fn tell(&mut self, error: &SqlError) -> Result<(), Over> {
        let mut out = Vec::new();
        Outbox::new(&mut out, 1).error(error);
        Ok(write_all(self.stream, &out).await?)
    }

    /// COM_STMT_SEND_LONG_DATA and COM_STMT_CLOSE, which have no answer.
    async fn forget(&mut self, command: &mut [u8]) {
        let close = command[HEADER] == 0x19;
        let Some(theirs) = statement_id(command) else {
            return;
        };
        if close {
            self.carried.closed(theirs);
        } else {
            self.carried.long_data(true);
        }
        let known = if close {
            self.statements.remove(&theirs)
        } else {
            self.statements.get(&theirs).copied()
        };
        if let (Some(ours), Some(link)) = (known, &self.link) {
            set_statement_id(command, ours);
            // A loss shows at the next statement.
            let _ = write_all(&link.stream, command).await;
        }
    }

    /// A command that is answered.
    async fn statement(&mut self, command: &mut [u8]) -> Result<(), Over> {
        let result = match shape_of(command) {
            Some(shape) => self.answered(command, shape).await,
            None => Err(Failure::Told(unknown_command())),
        };
        match result {
            Ok(()) => Ok(write_all(self.stream, &self.answer).await?),
            Err(Failure::Told(error)) => self.tell(&error).await,
            Err(Failure::Last(error)) => {
                self.tell(&error).await?;
                Err(Over)
            }
            Err(Failure::Over | Failure::Lost) => Err(Over),
        }
    }

    /// Gets an answer from a backend into `self.answer`.
    async fn answered(&mut self, command: &mut [u8], shape: Shape) -> Result<(), Failure> {
        let lost = || {
            let message = "Lost connection to the backend during query; its effect is unknown";
            Failure::Told(SqlError::new(2013, "HY000", message))
        };
        let theirs = match command[HEADER] {
            0x17 | 0x1A => Some(statement_id(command).unwrap_or_default()),
            _ => None,
        };
        let mut again = may_be_sent_again(command);
        let multiplexing = self.inner.config.behaviour == L7Behaviour::Multiplexing;
        loop {
            if self.should_move() {
                self.link = None;
            }
            // The loss may have come together with the command.
            if let Some(link) = &mut self.link
                && !link.is_quiet()
            {
                self.lose_link();
            }
            if let Some(why) = self.broken {
                let message = format!("Lost connection to the backend: {why}");
                return Err(Failure::Last(SqlError::new(2013, "HY000", message)));
            }
            if std::mem::take(&mut self.transaction_lost) {
                let message = "Lost connection to the backend: the open transaction is rolled back";
                return Err(Failure::Told(SqlError::new(2013, "HY000", message)));
            }
            if self.link.is_none() {
                self.acquire().await?;
            }
            if let Some(theirs) = theirs {
                match self.statements.get(&theirs) {
                    Some(ours) => set_statement_id(command, *ours),
                    None => {
                        let message = format!(
                            "Unknown prepared statement handler ({theirs}) on this backend connection"
                        );
                        return Err(Failure::Told(SqlError::new(1243, "HY000", message)));
                    }
                }
            }
            match self.exchange(command, shape).await {
                Err(Failure::Lost) => {
                    let in_transaction = self.in_transaction;
                    self.lose_link();
                    self.transaction_lost = false;
                    if self.broken.is_none() && (in_transaction || !again) {
                        return Err(lost());
                    }
                    again = false;
                }
                Ok(()) => {
                    if multiplexing {
                        self.give_back(command);
                    }
                    return Ok(());
                }
                other => return other,
            }
        }
    }

    /// Gives the backend connection back to all, unless the session needs it.
    fn give_back(&mut self, command: &[u8]) {
        self.pinned = match command[HEADER] {
            0x1F => false,
            _ => self.pinned || !needs_no_session(command) || self.in_transaction,
        };
        if self.pinned {
            return;
        }
        if let Some(link) = self.link.take() {
            self.inner.shared.give(self.kind(link.member), link);
        }
    }

    fn kind(&self, member: usize) -> Kind {
        Kind {
            member,
            database: self.database.clone(),
            capabilities: self.capabilities,
        }
    }

    /// Sends a command and collects the answer.
    async fn exchange(&mut self, command: &[u8], shape: Shape) -> Result<(), Failure> {
        self.answer.clear();
        let deprecate_eof = self
            .capabilities
            .contains(CapabilityFlags::CLIENT_DEPRECATE_EOF);
        let mut answer = Answer::new(shape, deprecate_eof);
        let link = self.link.as_mut().ok_or(Failure::Lost)?;
        let config = &self.inner.config;
        let mut state = self.inner.pool.subscribe(link.member);
        let until_ns =
            self.inner.clock.raw_ns().saturating_add(
                i64::try_from(config.server_timeout.as_nanos()).unwrap_or(i64::MAX),
            );
        let given_up = async {
            // Past the timeout, and held for down.
            loop {
                let left_ns = until_ns.saturating_sub(self.inner.clock.raw_ns());
                if left_ns <= 0 {
                    break;
                }
                let left_ns = u64::try_from(left_ns).unwrap_or(0);
                tokio::time::sleep(Duration::from_nanos(left_ns)).await;
            }
            if state.wait_for(|state| !state.up).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::pin!(given_up);
        let mut written = false;
        loop {
            if !written {
                tokio::select! {
                    biased;
                    done = write_all(&link.stream, command) => done.map_err(|_| Failure::Lost)?,
                    () = &mut given_up => return Err(Failure::Lost),
                }
                written = true;
            }
            let received = tokio::select! {
                biased;
                received = link.inbox.packet(&link.stream, MAX_PAYLOAD) => received,
                () = &mut given_up => return Err(Failure::Lost),
                ahead = self.inbox.fill(self.stream), if self.inbox.len() < MAX_AHEAD => {
                    // The client has given up.
                    ahead.map_err(|_| Failure::Over)?;
                    continue;
                }
            };
            let length = received.map_err(|_| Failure::Lost)?;
            let (_, payload) = link.inbox.peek(length);
            let last = answer.packet(payload).map_err(|_| Failure::Lost)?;
            self.answer.extend_from_slice(link.inbox.peek_raw(length));
            link.inbox.consume(length);
            if last {
                break;
            }
            if self.answer.len() > MAX_ANSWER {
                self.link = None;
                let message = "The backend's answer is longer than 16 MiB";
                return Err(Failure::Told(SqlError::new(1105, "HY000", message)));
            }
        }
        if let Some(status) = answer.status {
            self.in_transaction = status.contains(StatusFlags::SERVER_STATUS_IN_TRANS)
                || !status.contains(StatusFlags::SERVER_STATUS_AUTOCOMMIT);
        }
        if !answer.failed {
            self.remember(command);
        }
        Ok(())
    }

    /// Keeps what a statement that succeeded changed in the session.
    fn remember(&mut self, command: &[u8]) {
        let body = command.get(HEADER + 1..).unwrap_or_default();
        match command[HEADER] {
            0x02 => self.database = Some(body.to_vec()),
            0x03 => {
                let use_ = |text: &[u8]| {
                    text.len() < 200
                        && text
                            .to_ascii_lowercase()
                            .trim_ascii_start()
                            .starts_with(b"use")
                };
                if use_(body)
                    && let Ok(parsed) = parse(body)
                    && let Statement::Use(name) = parsed.statement
                {
                    self.database = Some(name);
                }
                self.carried.said(body);
            }
            0x16 => {
                // The client gets a number that is good for its whole connection.
                if let Some(ours) = statement_id(&self.answer) {
                    self.last_statement = self.last_statement.wrapping_add(1).max(1);
                    self.statements.insert(self.last_statement, ours);
                    set_statement_id(&mut self.answer, self.last_statement);
                    self.carried.prepared(self.last_statement, body);
                }
            }
            // The parts of its parameters are used up, or forgotten.
            0x17 | 0x1A => self.carried.long_data(false),
            0x1F => {
                self.statements.clear();
                self.carried.reset();
            }
            _ => {}
        }
    }

    /// Gets a connection to a backend: the first that is up and answers or, when
    /// they are shared, the next in turn.
    async fn acquire(&mut self) -> Result<(), Failure> {
        let config = &self.inner.config;
        let mut why = "all are down".to_owned();
        let shares = config.behaviour == L7Behaviour::Multiplexing && !self.pinned;
        let searching = async {
            loop {
                let mut candidates = self.inner.pool.candidates();
                if shares && !candidates.is_empty() {
                    let turn = self.inner.turn.fetch_add(1, Ordering::Relaxed);
                    let first = turn % candidates.len();
                    candidates.rotate_left(first);
                }
                for member in candidates {
                    if shares && let Some(link) = self.inner.shared.take(&self.kind(member)) {
                        return link;
                    }
                    let target = self.inner.pool.member(member);
                    match self.connect(member).await {
                        Ok(link) => return link,
                        Err(error) => why = format!("{}: {error}", target.name),
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let found = tokio::time::timeout(config.acquire_timeout, searching).await;
        let Ok(link) = found else {
            let message = format!("No backend within {:?}: {why}", config.acquire_timeout);
            return Err(Failure::Told(SqlError::new(1105, "HY000", message)));
        };
        self.link = Some(link);
        self.statements.clear();
        let was_moved = std::mem::replace(&mut self.had_link, true);
        match config.behaviour {
            L7Behaviour::Multiplexing => {}
            L7Behaviour::Reconnecting if was_moved => {
                self.inner.reconnects.fetch_add(1, Ordering::Relaxed);
            }
            L7Behaviour::Migrating if was_moved => {
                self.make_session_again().await?;
                self.inner.reconnects.fetch_add(1, Ordering::Relaxed);
            }
            L7Behaviour::Reconnecting | L7Behaviour::Migrating => {}
        }
        Ok(())
    }

    async fn connect(&self, member: usize) -> Result<Link, String> {
        let config = &self.inner.config;
        let connecting = Link::connect(
            member,
            self.inner.pool.member(member).addr,
            &config.backend_credentials,
            self.database.as_deref(),
            self.capabilities,
        );
        match tokio::time::timeout(config.connect_timeout, connecting).await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no login within {:?}", config.connect_timeout)),
        }
    }

    /// Says again what the session consists of, over the new connection.
    async fn make_session_again(&mut self) -> Result<(), Failure> {
        let failed = |why: &str| {
            let message = format!("The session could not be moved to another backend: {why}");
            Failure::Last(SqlError::new(2013, "HY000", message))
        };
        let settings: Vec<Vec<u8>> = self.carried.settings().map(<[u8]>::to_vec).collect();
        for text in settings {
            self.silently(0x03, &text, Shape::Result)
                .await
                .map_err(|why| failed(&why))?;
        }
        for (theirs, text) in self.carried.statements() {
            self.silently(0x16, &text, Shape::Prepare)
                .await
                .map_err(|why| failed(&why))?;
            let ours = statement_id(&self.answer).ok_or_else(|| failed("no statement number"))?;
            self.statements.insert(theirs, ours);
        }
        Ok(())
    }

    /// A command of the proxy's own, whose answer the client never sees; it is
    /// left in `self.answer`.
    async fn silently(&mut self, code: u8, text: &[u8], shape: Shape) -> Result<(), String> {
        let mut command = Vec::new();
        Outbox::new(&mut command, 0).packet(|out| {
            out.push(code);
            out.extend_from_slice(text);
        });
        self.answer.clear();
        let deprecate_eof = self
            .capabilities
            .contains(CapabilityFlags::CLIENT_DEPRECATE_EOF);
        let mut answer = Answer::new(shape, deprecate_eof);
        let within = self.inner.config.connect_timeout;
        let link = self.link.as_mut().ok_or("there is no connection")?;
        let collected = &mut self.answer;
        let exchanging = async {
            write_all(&link.stream, &command)
                .await
                .map_err(|error| error.to_string())?;
            loop {
                let length = link
                    .inbox
                    .packet(&link.stream, MAX_PAYLOAD)
                    .await
                    .map_err(|error| error.to_string())?;
                let (_, payload) = link.inbox.peek(length);
                let last = answer
                    .packet(payload)
                    .map_err(|_| "its answer makes no sense".to_owned())?;
                collected.extend_from_slice(link.inbox.peek_raw(length));
                link.inbox.consume(length);
                if last {
                    return Ok::<(), String>(());
                }
            }
        };
        let done = tokio::time::timeout(within, exchanging)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {within:?}")));
        match done {
            Ok(()) if answer.failed => Err("the backend refused a part of it".to_owned()),
            other => other,
        }
    }
}

fn command_of(packet: Result<usize, ReadError>) -> Result<Result<usize, SqlError>, Over> {
    match packet {
        Ok(length) => Ok(Ok(length)),
        Err(ReadError::TooLong(_)) => {
            let message = "Got a packet bigger than 'max_allowed_packet' bytes";
            Ok(Err(SqlError::new(1153, "08S01", message)))
        }
        Err(_) => Err(Over),
    }
}
