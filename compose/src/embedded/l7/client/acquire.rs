//! How a client gets a backend connection, and its session onto it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mysql_common::constants::CapabilityFlags;

use super::super::super::answer::{Answer, Shape};
use super::super::super::link::Link;
use super::super::super::wire::{MAX_PAYLOAD, Outbox, SqlError, write_all};
use super::super::L7Behaviour;
use super::super::command::statement_id;
use super::{Client, Failure};

impl Client<'_> {
    /// Gets a connection to a backend: the first that is up and answers or, when
    /// they are shared, the next in turn.
    pub(super) async fn acquire(&mut self) -> Result<(), Failure> {
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
