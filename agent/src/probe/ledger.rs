//! The write ledger: a table of the run's own, into which style `transaction`
//! writes numbered rows, and which is read again after the run.
//!
//! A row's number is (start of the agent, target, client, slot), which is what its
//! sample is called by too, so nothing has to be remembered but the samples. No
//! key forbids a second row of one number: a write that was applied twice has to
//! show.
//!
//! It is read directly from each backend (or, where no such target is configured,
//! through the probed targets), after the run, until two readings in a row agree:
//! a server that was hung applies what it had been sent when it goes on.
//!
//! What it cannot know: whether a row that is missing was ever there. It is read
//! once, at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use gapscope_proto::host::LedgerEntry;
use gapscope_proto::ids::{AgentId, Incarnation, RunId, TargetName};
use gapscope_proto::sample::Phase;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error};
use tokio_util::sync::CancellationToken;

use super::answer::{Ask, ask};
use super::canary::quoted;
use super::leash::{self, Ended, Graveyard};
use super::mysql::{Endpoint, connect, resolve};
use crate::config::Writes;
use crate::outcome;

/// For one connection or one reading.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two readings that must agree, and between two attempts.
const BETWEEN: Duration = Duration::from_millis(500);
/// Longest table name.
const MOST_NAME: usize = 64;

/// Where a run's rows are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledger {
    writes: Writes,
    table: String,
    run: RunId,
    incarnation: Incarnation,
}

/// Which row, and how often it is there.
type Rows = BTreeMap<(u64, String, u16), BTreeMap<u64, u32>>;

impl Ledger {
    /// The ledger of a run on this agent.
    pub fn new(writes: &Writes, run: RunId, agent: &AgentId, incarnation: Incarnation) -> Self {
        let table = writes.table.clone().unwrap_or_else(|| {
            // Agents on one server do not drop each other's.
            let run = run.to_string().replace('-', "");
            let agent: String = agent
                .as_str()
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
                .collect();
            let name = format!("gapscope_ledger_{}_{agent}", &run[run.len() - 12..]);
            name.chars().take(MOST_NAME).collect()
        });
        Self {
            writes: writes.clone(),
            table,
            run,
            incarnation,
        }
    }

    /// The schema in which writes are allowed.
    pub fn schema(&self) -> &str {
        &self.writes.schema
    }

    fn name(&self) -> String {
        format!("{}.{}", quoted(&self.writes.schema), quoted(&self.table))
    }

    /// Makes the table; none if its owner gave it.
    pub fn create(&self) -> Option<String> {
        self.writes.table.is_none().then(|| {
            format!(
                "CREATE TABLE IF NOT EXISTS {} ({}) ENGINE=InnoDB",
                self.name(),
                COLUMNS
            )
        })
    }

    /// Writes the row of a client's slot.
    pub fn insert(&self, target: &TargetName, client: u16, slot: u64) -> String {
        format!(
            "INSERT INTO {} (run, incarnation, target, client, slot) \
             VALUES ('{}', '{}', '{target}', {client}, {slot})",
            self.name(),
            self.run,
            self.incarnation
        )
    }

    /// Reads this run's rows.
    pub fn select(&self) -> String {
        format!(
            "SELECT incarnation, target, client, slot FROM {} WHERE run = '{}'",
            self.name(),
            self.run
        )
    }

    /// Removes the table; none if it stays.
    pub fn drop_table(&self) -> Option<String> {
        (self.writes.table.is_none() && !self.writes.keep)
            .then(|| format!("DROP TABLE IF EXISTS {}", self.name()))
    }
}

/// The table's columns, also those of a table that its owner gives.
pub const COLUMNS: &str = "id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, \
    run CHAR(36) NOT NULL, incarnation CHAR(16) NOT NULL, target VARCHAR(64) NOT NULL, \
    client SMALLINT UNSIGNED NOT NULL, slot BIGINT UNSIGNED NOT NULL, \
    KEY gapscope_run (run)";

/// Makes the table on every backend that can be reached directly, so that a
/// failover does not fail for want of it. What goes wrong shows in the probes.
pub async fn prepare(ledger: &Ledger, sources: &[Arc<Endpoint>], graveyard: &Graveyard) {
    let Some(create) = ledger.create() else {
        return;
    };
    join_all(sources.iter().map(|source| {
        let create = create.clone();
        async move {
            let made = with_connection(source, graveyard, move |mut conn| {
                Box::pin(async move {
                    let result = conn.query_drop(create).await;
                    (conn, result)
                })
            })
            .await;
            if let Err(why) = made {
                tracing::warn!(target_name = %source.name, why, "the ledger's table is not made there");
            }
        }
    }))
    .await;
}

/// Reads the ledger from every source, then removes the table. What could not be
/// read within the patience is said.
pub async fn read(
    ledger: &Ledger,
    sources: &[Arc<Endpoint>],
    graveyard: &Graveyard,
    give_up: &CancellationToken,
) -> Vec<LedgerEntry> {
    let readings = join_all(
        sources
            .iter()
            .map(|source| read_one(ledger, source, graveyard, give_up)),
    )
    .await;
    let mut entries = Vec::new();
    for (source, reading) in sources.iter().zip(readings) {
        let mut head = LedgerEntry {
            source: source.name.to_string(),
            shared: ledger.writes.shared,
            ..LedgerEntry::default()
        };
        match reading {
            Err(why) => {
                head.error = why;
                if ledger.drop_table().is_some() {
                    head.note = format!("the table {} may be left there", ledger.name());
                }
                entries.push(head);
            }
            Ok((backend, rows)) => {
                head.backend = backend;
                head.note = removed(ledger, source, graveyard).await;
                entries.push(head.clone());
                entries.extend(ranges(&head, &rows));
            }
        }
    }
    entries
}

async fn removed(ledger: &Ledger, source: &Arc<Endpoint>, graveyard: &Graveyard) -> String {
    let Some(drop) = ledger.drop_table() else {
        return format!("the table {} stays there", ledger.name());
    };
    let dropped = with_connection(source, graveyard, move |mut conn| {
        Box::pin(async move {
            let result = conn.query_drop(drop).await;
            (conn, result)
        })
    })
    .await;
    match dropped {
        Ok(()) => String::new(),
        Err(why) => format!("the table {} is left there: {why}", ledger.name()),
    }
}

async fn read_one(
    ledger: &Ledger,
    source: &Arc<Endpoint>,
    graveyard: &Graveyard,
    give_up: &CancellationToken,
) -> Result<(String, Rows), String> {
    let mut why = "the agent ended before".to_owned();
    let mut before = None;
    let trying = async {
        loop {
            let (statement, cell) = (ledger.select(), source.identity.clone());
            let reading = with_connection(source, graveyard, move |mut conn| {
                Box::pin(async move {
                    let result = look(&mut conn, &cell, &statement).await;
                    (conn, result)
                })
            })
            .await;
            match reading {
                Ok(found) if before.as_ref() == Some(&found) => return found,
                Ok(found) => {
                    why = "what is there still changes".to_owned();
                    before = Some(found);
                }
                Err(error) => {
                    why = error;
                    before = None;
                }
            }
            tokio::time::sleep(BETWEEN).await;
        }
    };
    let limited = tokio::select! {
        biased;
        () = give_up.cancelled() => None,
        found = tokio::time::timeout(ledger.writes.patience, trying) => found.ok(),
    };
    limited.ok_or(why)
}

async fn look(
    conn: &mut Conn,
    cell: &super::identity::IdentityCell,
    statement: &str,
) -> Result<(String, Rows), Error> {
    let identity = cell.settle(conn).await?;
    let backend = match ask(conn, &identity.bare).await? {
        Ask::Answer(answer) => answer.backend,
        Ask::WrongShape(why) => return Err(Error::Other(why.into())),
    };
    let mut rows = Rows::new();
    let counted = conn
        .query_iter(statement)
        .await?
        .for_each_and_drop(|row| {
            let (incarnation, target, client, slot): (String, String, u16, u64) =
                mysql_async::from_row(row);
            let incarnation = u64::from_str_radix(&incarnation, 16).unwrap_or(0);
            *rows
                .entry((incarnation, target, client))
                .or_default()
                .entry(slot)
                .or_insert(0) += 1;
        })
        .await;
    match counted {
        // A server that never had the table has no rows.
        Err(Error::Server(error)) if matches!(error.code, 1146 | 1049) => {}
        other => other?,
    }
    Ok((backend, rows))
}

/// Rows that follow each other and are there equally often are one entry.
fn ranges(head: &LedgerEntry, rows: &Rows) -> Vec<LedgerEntry> {
    let mut entries: Vec<LedgerEntry> = Vec::new();
    for ((incarnation, target, client), slots) in rows {
        let first = entries.len();
        for (slot, times) in slots {
            match entries[first..].last_mut() {
                Some(last)
                    if last.times == *times && last.last_slot.checked_add(1) == Some(*slot) =>
                {
                    last.last_slot = *slot;
                }
                _ => entries.push(LedgerEntry {
                    incarnation: *incarnation,
                    target: target.clone(),
                    client: *client,
                    first_slot: *slot,
                    last_slot: *slot,
                    times: *times,
                    note: String::new(),
                    ..head.clone()
                }),
            }
        }
    }
    entries
}

/// Connects, works, says good-bye; within limits. The error is for people.
async fn with_connection<T: Send + 'static>(
    source: &Arc<Endpoint>,
    graveyard: &Graveyard,
    work: impl FnOnce(Conn) -> leash::Owned<(Conn, Result<T, Error>)>,
) -> Result<T, String> {
    let never = CancellationToken::new();
    let endpoint = source.clone();
    let connecting = Box::pin(async move {
        let addresses = resolve(&endpoint.target).await.map_err(Error::from)?;
        connect(&endpoint, &addresses).await.1
    });
    let conn = match leash::run(connecting, Some(LIMIT), &never, graveyard).await {
        Ended::Done(Ok(conn)) => conn,
        Ended::Done(Err(error)) => return Err(in_words(source, &error)),
        _ => return Err("no connection within 10 s".to_owned()),
    };
    match leash::run(work(conn), Some(LIMIT), &never, graveyard).await {
        Ended::Done((conn, Ok(value))) => {
            let goodbye = Box::pin(conn.disconnect());
            let _ = leash::run(goodbye, Some(LIMIT), &never, graveyard).await;
            Ok(value)
        }
        Ended::Done((conn, Err(error))) => {
            graveyard.bury(conn);
            Err(in_words(source, &error))
        }
        _ => Err("no answer within 10 s".to_owned()),
    }
}

fn in_words(source: &Endpoint, error: &Error) -> String {
    let verdict =
        outcome::of_driver_error(error, Phase::Query).without(source.target.password.expose());
    let code = verdict
        .code
        .map_or(String::new(), |code| format!("{code} "));
    format!("{code}{}", verdict.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(table: Option<&str>) -> Ledger {
        let writes = Writes {
            schema: "app`s".into(),
            table: table.map(str::to_owned),
            ..Writes::to("app`s")
        };
        Ledger::new(
            &writes,
            "01a22c71-a5ce-7341-a1d3-9c297ce0a076"
                .parse()
                .expect("an id"),
            &"east-1.example".parse().expect("a name"),
            Incarnation::new(7).expect("not zero"),
        )
    }

    #[test]
    fn a_table_of_the_run_s_own_is_made_and_removed() {
        let ledger = ledger(None);
        let name = "`app``s`.`gapscope_ledger_9c297ce0a076_east_1_example`";
        assert!(ledger.create().expect("made").contains(name));
        assert_eq!(
            ledger.drop_table(),
            Some(format!("DROP TABLE IF EXISTS {name}"))
        );
        assert_eq!(
            ledger.insert(&"haproxy".parse().expect("a name"), 2, 40),
            format!(
                "INSERT INTO {name} (run, incarnation, target, client, slot) VALUES \
                 ('01a22c71-a5ce-7341-a1d3-9c297ce0a076', '0000000000000007', 'haproxy', 2, 40)"
            )
        );
    }

    #[test]
    fn a_given_table_is_neither_made_nor_removed() {
        let ledger = ledger(Some("mine"));
        assert_eq!((ledger.create(), ledger.drop_table()), (None, None));
        assert!(
            ledger
                .select()
                .contains("`app``s`.`mine` WHERE run = '01a2")
        );
    }

    #[test]
    fn rows_that_follow_each_other_are_one_entry() {
        let mut rows = Rows::new();
        let slots = rows.entry((7, "haproxy".into(), 2)).or_default();
        for (slot, times) in [(1, 1), (2, 1), (3, 2), (4, 1), (6, 1), (u64::MAX, 1)] {
            slots.insert(slot, times);
        }
        let head = LedgerEntry {
            source: "direct-1".into(),
            backend: "a:1".into(),
            note: "x".into(),
            ..LedgerEntry::default()
        };
        let found: Vec<_> = ranges(&head, &rows)
            .iter()
            .map(|e| (e.first_slot, e.last_slot, e.times))
            .collect();
        assert_eq!(
            found,
            [
                (1, 2, 1),
                (3, 3, 2),
                (4, 4, 1),
                (6, 6, 1),
                (u64::MAX, u64::MAX, 1)
            ]
        );
    }
}
