//! One client of a block: a held connection, a statement after the other, every
//! answer checked, everything that goes wrong counted.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gapscope_proto::clock::Clock;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts, Row, Statement};

use super::digest::Digest;
use super::load::{Failures, Job};
use super::order::share;

/// After so many errors a client gives up.
pub(super) const GIVES_UP_AFTER: u64 = 20;
/// The most that a connection and its first statements may take before the time
/// begins.
const CONNECT_WITHIN: Duration = Duration::from_secs(15);

/// What one client has done so far; shared so that it outlives being cut.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) began_ns: Option<i64>,
    pub(super) ended_ns: i64,
    pub(super) answered: u64,
    pub(super) wrong: u64,
    pub(super) errors: u64,
    pub(super) connects: u64,
    pub(super) latencies_ns: Vec<u64>,
    pub(super) failures: Failures,
    given_up: bool,
}

impl Progress {
    fn fail(&mut self, kind: &'static str, code: Option<u16>, text: impl FnOnce() -> String) {
        let entry = self
            .failures
            .entry((kind, code))
            .or_insert_with(|| (text(), 0));
        entry.1 += 1;
    }
}

pub(super) type Shared = Arc<Mutex<Progress>>;

pub(super) fn lock(shared: &Shared) -> std::sync::MutexGuard<'_, Progress> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client's connection, ready to ask.
pub(super) struct Ready {
    conn: Conn,
    statement: Option<Statement>,
}

async fn connect(job: &Job) -> Result<Ready, Error> {
    let mut conn = Conn::new(job.opts.clone()).await?;
    let statement = if job.way.prepared {
        Some(conn.prep(&*job.statement).await?)
    } else {
        None
    };
    Ok(Ready { conn, statement })
}

/// Sends the statement once and reads all of its answer.
async fn ask(ready: &mut Ready, text: &str) -> Result<Digest, Error> {
    let mut digest = Digest::default();
    match &ready.statement {
        None => {
            let mut result = ready.conn.query_iter(text).await?;
            while let Some(row) = result.next().await? {
                add(&mut digest, &row);
            }
            result.drop_result().await?;
        }
        Some(statement) => {
            let mut result = ready.conn.exec_iter(statement, ()).await?;
            while let Some(row) = result.next().await? {
                add(&mut digest, &row);
            }
            result.drop_result().await?;
        }
    }
    Ok(digest)
}

fn add(digest: &mut Digest, row: &Row) {
    digest.add(row);
}

/// Asks once on a connection of its own: the reference, and its rows.
pub async fn reference(
    opts: &Opts,
    statement: &str,
    prepared: bool,
) -> Result<(Digest, Vec<Row>), Error> {
    let mut conn = Conn::new(opts.clone()).await?;
    let rows: Vec<Row> = if prepared {
        let statement = conn.prep(statement).await?;
        conn.exec(&statement, ()).await?
    } else {
        conn.query(statement).await?
    };
    let mut digest = Digest::default();
    for row in &rows {
        digest.add(row);
    }
    // An error on the way out changes nothing about the answer.
    let _ = conn.disconnect().await;
    Ok((digest, rows))
}

fn code_of(error: &Error) -> Option<u16> {
    match error {
        Error::Server(error) => Some(error.code),
        _ => None,
    }
}

pub(super) struct Client {
    pub(super) job: Job,
    pub(super) number: u32,
    pub(super) progress: Shared,
}

impl Client {
    fn failed(&self, kind: &'static str, error: &Error) -> bool {
        let mut progress = lock(&self.progress);
        progress.errors += 1;
        progress.fail(kind, code_of(error), || error.to_string());
        progress.given_up = progress.errors >= GIVES_UP_AFTER;
        progress.given_up
    }

    /// Connects and warms up. What fails is an error of the block, although the
    /// time has not begun: a client that has to connect while it runs would make
    /// the total mean something else.
    pub(super) async fn get_ready(&self) -> Option<Ready> {
        let attempt = async {
            let mut ready = connect(&self.job).await?;
            for _ in 0..self.job.warm_up {
                ask(&mut ready, &self.job.statement).await?;
            }
            Ok::<_, Error>(ready)
        };
        match tokio::time::timeout(CONNECT_WITHIN, attempt).await {
            Ok(Ok(ready)) => Some(ready),
            Ok(Err(error)) => {
                self.failed("connect", &error);
                None
            }
            Err(_) => {
                let mut progress = lock(&self.progress);
                progress.errors += 1;
                progress.fail("connect", None, || {
                    format!("not ready within {} s", CONNECT_WITHIN.as_secs())
                });
                None
            }
        }
    }

    /// Sends this client's share.
    pub(super) async fn send(&self, mut ready: Option<Ready>, origin_ns: i64) {
        let job = &self.job;
        let mine = share(job.statements, job.clients, self.number);
        let mut before_ns = job.clock.raw_ns();
        {
            let mut progress = lock(&self.progress);
            progress
                .latencies_ns
                .reserve(usize::try_from(mine).unwrap_or(0));
            progress.began_ns = Some(before_ns);
            progress.ended_ns = before_ns;
        }
        for turn in 0..mine {
            if let Some(rate) = job.rate {
                // Statement k of all is due at k / rate, and client k mod N sends it.
                let k = turn * u64::from(job.clients) + u64::from(self.number);
                let due_ns = origin_ns.saturating_add((k as f64 * 1e9 / rate) as i64);
                until(job.clock.as_ref(), due_ns).await;
                before_ns = due_ns;
            }
            if ready.is_none() {
                match connect(job).await {
                    Ok(made) => {
                        lock(&self.progress).connects += 1;
                        ready = Some(made);
                    }
                    Err(error) => {
                        before_ns = job.clock.raw_ns();
                        lock(&self.progress).ended_ns = before_ns;
                        if self.failed("connect", &error) {
                            return;
                        }
                        continue;
                    }
                }
            }
            let held = ready.as_mut().expect("made above");
            match ask(held, &job.statement).await {
                Ok(digest) => {
                    if job.way.connect_each
                        && let Some(used) = ready.take()
                    {
                        // Saying goodbye is part of it; an error there is none.
                        let _ = used.conn.disconnect().await;
                    }
                    let now_ns = job.clock.raw_ns();
                    let mut progress = lock(&self.progress);
                    progress.ended_ns = now_ns;
                    if digest == job.expected {
                        progress.answered += 1;
                        let ns = now_ns.saturating_sub(before_ns);
                        progress.latencies_ns.push(u64::try_from(ns).unwrap_or(0));
                    } else {
                        progress.wrong += 1;
                        let rows = job.expected.rows;
                        progress.fail("wrong_answer", None, || {
                            format!(
                                "{} rows that are not the {rows} of the direct target",
                                digest.rows
                            )
                        });
                    }
                    before_ns = now_ns;
                }
                Err(error) => {
                    if error.is_fatal() {
                        ready = None;
                    }
                    before_ns = job.clock.raw_ns();
                    lock(&self.progress).ended_ns = before_ns;
                    if self.failed("query", &error) {
                        return;
                    }
                }
            }
        }
        if let Some(ready) = ready {
            // Outside of the time; an error there is none.
            let _ = tokio::time::timeout(Duration::from_secs(1), ready.conn.disconnect()).await;
        }
    }
}

/// Waits until a RAW stamp, as exactly as the runtime's timer allows (1 ms), the
/// rest by yielding.
async fn until(clock: &dyn Clock, due_ns: i64) {
    loop {
        let left = due_ns.saturating_sub(clock.raw_ns());
        if left <= 0 {
            return;
        }
        if left > 2_000_000 {
            let coarse = u64::try_from(left - 1_500_000).unwrap_or(0);
            tokio::time::sleep(Duration::from_nanos(coarse)).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
}
