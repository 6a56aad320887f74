//! What goes over a session in one probe: the plain statement, a prepared one, a
//! transaction, a pool's ping. Nothing here waits for longer than the driver
//! does; the caller holds the leash.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gapscope_proto::sample::Phase;
use mysql_async::consts::StatusFlags;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Row, Statement};

use super::answer::{Answer, Ask, ask_with, shape};

/// What a probe sends.
#[derive(Debug, Clone)]
pub enum Send {
    /// One statement as text.
    Text(Arc<str>),
    /// The prepared statement of the session.
    Prepared(Statement),
    /// `BEGIN`, a row, the plain statement, `COMMIT`.
    Transaction {
        /// The row.
        insert: String,
        /// The plain statement.
        read: Arc<str>,
    },
}

/// How far an exchange has come: one that is given up cannot say so itself.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    step: Arc<AtomicU8>,
    read: Arc<Mutex<Option<Answer>>>,
}

const STEPS: [Phase; 4] = [Phase::Query, Phase::Begin, Phase::Write, Phase::Commit];

impl Progress {
    fn is_at(&self, phase: Phase) {
        let step = STEPS.iter().position(|p| *p == phase).unwrap_or(0);
        self.step
            .store(u8::try_from(step).unwrap_or(0), Ordering::SeqCst);
    }

    /// What a transaction has read before it failed.
    pub fn answer(&self) -> Option<Answer> {
        self.read
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// What was sent last.
    pub fn phase(&self) -> Phase {
        STEPS
            .get(usize::from(self.step.load(Ordering::SeqCst)))
            .copied()
            .unwrap_or(Phase::Query)
    }
}

/// Sends it and reads every answer to its end.
pub async fn exchange(
    conn: &mut Conn,
    send: &Send,
    with_canary: bool,
    progress: &Progress,
) -> Result<Ask, Error> {
    match send {
        Send::Text(statement) => {
            progress.is_at(Phase::Query);
            ask_with(conn, statement, with_canary).await
        }
        Send::Prepared(statement) => {
            progress.is_at(Phase::Query);
            let mut result = conn.exec_iter(statement, ()).await?;
            let rows: Vec<Row> = result.collect().await?;
            result.drop_result().await?;
            Ok(shape(rows, with_canary))
        }
        Send::Transaction { insert, read } => {
            progress.is_at(Phase::Begin);
            conn.query_drop("BEGIN").await?;
            progress.is_at(Phase::Write);
            conn.query_drop(insert.as_str()).await?;
            progress.is_at(Phase::Query);
            let answer = ask_with(conn, read, false).await?;
            if let Ask::Answer(read) = &answer {
                *progress.read.lock().unwrap_or_else(PoisonError::into_inner) = Some(read.clone());
                progress.is_at(Phase::Commit);
                conn.query_drop("COMMIT").await?;
            }
            Ok(answer)
        }
    }
}

/// Whether the last answer's status says that a transaction is open.
pub fn in_transaction(conn: &Conn) -> bool {
    conn.last_ok_packet().is_some_and(|ok| {
        ok.status_flags()
            .contains(StatusFlags::SERVER_STATUS_IN_TRANS)
    })
}

/// Whether an error packet in answer to a `COMMIT` says for sure that nothing was
/// committed: the server rolled back, or refuses writes. After any other one the
/// row may be there: a killed or shutting-down server can have committed, and a
/// proxy can speak of a backend that has.
pub fn surely_not_committed(code: u16) -> bool {
    matches!(
        code,
        // Lock wait, deadlock, read-only, rolled back by the cluster or a plugin.
        1205 | 1213 | 1290 | 1792 | 1836 | 3101 | 8002 | 9007
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_names_what_was_sent_last() {
        let progress = Progress::default();
        assert_eq!(progress.phase(), Phase::Query);
        for phase in STEPS {
            progress.clone().is_at(phase);
            assert_eq!(progress.phase(), phase);
        }
    }

    #[test]
    fn an_error_to_a_commit_is_seldom_a_no() {
        for (code, expect) in [
            (1213, true),
            (1290, true),
            (1053, false),
            (1317, false),
            (1927, false),
            (2013, false),
            (1105, false),
            (9001, false),
        ] {
            assert_eq!(surely_not_committed(code), expect, "{code}");
        }
    }
}
