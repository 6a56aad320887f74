//! What a backend's connection says: greeting, login, then command by command,
//! every answer through the gate.

use std::io;
use std::sync::atomic::Ordering;

use mysql_common::constants::{CapabilityFlags, StatusFlags};
use tokio::sync::watch;

use super::super::auth::{self, Scramble};
use super::super::session::{After, Session};
use super::super::wire::{Inbox, MAX_LOGIN_PAYLOAD, MAX_PAYLOAD, Outbox, ReadError, SqlError};
use super::{Connection, Inner, Mode, Phase};

/// The conversation is over.
pub(super) struct Over;

impl From<io::Error> for Over {
    fn from(_: io::Error) -> Self {
        Self
    }
}

/// One connection's conversation.
pub(super) struct Talk<'a> {
    pub(super) inner: &'a Inner,
    pub(super) connection: &'a Connection,
    pub(super) epoch: u64,
    pub(super) modes: watch::Receiver<Mode>,
    pub(super) inbox: Inbox,
}

impl Talk<'_> {
    pub(super) async fn converse(&mut self) -> Result<(), Over> {
        let inner = self.inner;
        let mut out = Vec::with_capacity(1024);
        let Ok(_permit) = inner.permits.try_acquire() else {
            // Before the greeting an error has no state.
            Outbox::new(&mut out, 0).error(&SqlError::new(1040, "", "Too many connections"));
            return self.send(&out).await;
        };
        let Some(login) = self.log_in(&mut out).await? else {
            return Ok(());
        };
        let deprecate_eof = login
            .capabilities
            .contains(CapabilityFlags::CLIENT_DEPRECATE_EOF);
        let mut session = Session::new(
            &inner.facts,
            self.connection.id,
            deprecate_eof,
            login.database,
        );
        loop {
            let length = match self.receive(MAX_PAYLOAD).await {
                Ok(length) => length,
                Err(TooLong) => {
                    out.clear();
                    let message = "Got a packet bigger than 'max_allowed_packet' bytes";
                    Outbox::new(&mut out, 1).error(&SqlError::new(1153, "08S01", message));
                    return self.send(&out).await;
                }
            }?;
            if !self.begin_statement() {
                return Err(Over);
            }
            out.clear();
            let (_, command) = self.inbox.peek(length);
            let after = session.handle(command, &mut out);
            self.inbox.consume(length);
            match after {
                After::Silence => {}
                After::Close => return self.send(&out).await,
                After::Kill { id } => {
                    let mut answer = Outbox::new(&mut out, 1);
                    if inner.kill(id) {
                        answer.ok(session.status());
                    } else {
                        let message = format!("Unknown thread id: {id}");
                        answer.error(&SqlError::new(1094, "HY000", message));
                    }
                    self.send(&out).await?;
                }
                After::Answer(sleep) => {
                    let wait = sleep + inner.config.latency.unwrap_or_default() + inner.slowness();
                    if !wait.is_zero() {
                        tokio::time::sleep(wait).await;
                    }
                    self.send(&out).await?;
                    if !self.connection.tainted.load(Ordering::SeqCst) {
                        inner.statements.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            self.end_statement()?;
            if out.capacity() > 1 << 20 {
                out = Vec::with_capacity(1024);
            }
        }
    }

    fn begin_statement(&self) -> bool {
        let mut phase = self.connection.phase();
        if *phase == Phase::Idle {
            *phase = Phase::Busy;
        }
        *phase == Phase::Busy
    }

    fn end_statement(&self) -> Result<(), Over> {
        // Same order of locks as in a fault: first the gate, then the phase.
        let gate = self.inner.gate();
        let mut phase = self.connection.phase();
        if gate.mode == Mode::Draining || *phase == Phase::Closed {
            *phase = Phase::Closed;
            return Err(Over);
        }
        *phase = Phase::Idle;
        Ok(())
    }

    /// Greets and checks the password; `None` if the client was refused.
    async fn log_in(&mut self, out: &mut Vec<u8>) -> Result<Option<auth::Login>, Over> {
        let config = &self.inner.config;
        let offered = auth::server_capabilities(config.deprecate_eof);
        let scramble = Scramble::random();
        Outbox::new(out, 0).packet(|out| {
            auth::put_greeting(out, &config.version, self.connection.id, &scramble, offered);
        });
        let slowness = self.inner.slowness();
        if !slowness.is_zero() {
            tokio::time::sleep(slowness).await;
        }
        self.send(out).await?;
        let length = self.receive(MAX_LOGIN_PAYLOAD).await.map_err(|_| Over)??;
        let (mut sequence, payload) = self.inbox.peek(length);
        let login = auth::read_login(payload, offered);
        self.inbox.consume(length);
        let outcome = match login {
            Ok(mut login) => {
                if login.must_switch {
                    out.clear();
                    Outbox::new(out, sequence.wrapping_add(1))
                        .packet(|out| auth::put_switch(out, &scramble));
                    self.send(out).await?;
                    let length = self.receive(MAX_LOGIN_PAYLOAD).await.map_err(|_| Over)??;
                    let (answered, proof) = self.inbox.peek(length);
                    sequence = answered;
                    login.proof = proof.to_vec();
                    self.inbox.consume(length);
                }
                auth::verify(&config.credentials, &scramble, &login.user, &login.proof)
                    .map(|()| login)
            }
            Err(error) => Err(error),
        };
        out.clear();
        let mut answer = Outbox::new(out, sequence.wrapping_add(1));
        let login = match outcome {
            Ok(login) => {
                answer.ok(StatusFlags::SERVER_STATUS_AUTOCOMMIT);
                Some(login)
            }
            Err(error) => {
                answer.error(&error);
                None
            }
        };
        self.send(out).await?;
        Ok(login)
    }

    /// Waits for a whole packet.
    async fn receive(&mut self, limit: usize) -> Result<Result<usize, Over>, TooLong> {
        loop {
            match self.inbox.complete(limit) {
                Ok(Some(length)) => return Ok(Ok(length)),
                Ok(None) => {}
                Err(_) => return Err(TooLong),
            }
            let filled = self.inbox.fill(&self.connection.stream).await;
            let ended = match filled {
                Ok(()) => false,
                Err(ReadError::Closed) => true,
                Err(_) => return Ok(Err(Over)),
            };
            self.modes.borrow_and_update();
            let mode = {
                let gate = self.inner.gate();
                if gate.mode == Mode::BlackHoled {
                    // Under the lock: a resume sees it or comes after it.
                    self.connection.tainted.store(true, Ordering::SeqCst);
                    self.inbox.clear();
                }
                gate.mode
            };
            if ended {
                // Neither a stopped process nor one whose packets vanish answers a FIN.
                if matches!(mode, Mode::Hung | Mode::BlackHoled | Mode::Muted) {
                    self.opened().await;
                }
                return Ok(Err(Over));
            }
        }
    }

    /// Waits until what the backend says would get out.
    async fn opened(&mut self) {
        loop {
            self.modes.borrow_and_update();
            let mode = self.inner.gate().mode;
            if !matches!(mode, Mode::Hung | Mode::BlackHoled | Mode::Muted) {
                return;
            }
            if self.modes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Writes an answer through the gate; see the module's description.
    pub(super) async fn send(&mut self, mut bytes: &[u8]) -> Result<(), Over> {
        while !bytes.is_empty() {
            self.modes.borrow_and_update();
            let held = {
                let gate = self.inner.gate();
                if gate.epoch != self.epoch {
                    return Err(Over);
                }
                match gate.mode {
                    Mode::Stopped => return Err(Over),
                    Mode::BlackHoled | Mode::Muted => {
                        self.connection.tainted.store(true, Ordering::SeqCst);
                        return Ok(());
                    }
                    Mode::Hung => true,
                    Mode::Serving | Mode::Draining => {
                        match self.connection.stream.try_write(bytes) {
                            Ok(written) => {
                                bytes = &bytes[written..];
                                continue;
                            }
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
                            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                            Err(error) => return Err(error.into()),
                        }
                    }
                }
            };
            if held {
                self.modes.changed().await.map_err(|_| Over)?;
            } else {
                self.connection.stream.writable().await?;
            }
        }
        Ok(())
    }
}

/// A client announced more than is allowed.
struct TooLong;
