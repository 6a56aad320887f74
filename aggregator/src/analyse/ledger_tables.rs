//! The write ledger's two sides as a run's tables have them: the rows that clients
//! tried to write, and what was found afterwards.

use gapscope_proto::ids::{AgentId, TargetName};
use gapscope_proto::sample::{Cause, Outcome, Style};
use polars::prelude::*;

use super::ledger::{Present, Reading, Told, Writer, Written};
use super::load::{LoadError, words};
use crate::store::reader::RunFolder;
use crate::store::schema::{host, samples};

/// Every row that clients of style `transaction` tried to write.
///
/// # Errors
/// When the samples cannot be read.
pub fn written(folder: &RunFolder) -> Result<Vec<Written>, LoadError> {
    let has_any = folder
        .manifest()
        .plan
        .groups
        .iter()
        .any(|group| group.style == Style::Transaction);
    if !has_any {
        return Ok(Vec::new());
    }
    let columns = [
        samples::AGENT_ID,
        samples::INCARNATION,
        samples::TARGET,
        samples::CLIENT,
        samples::SLOT,
        samples::SCHEDULED_NS,
        samples::OUTCOME,
        samples::CAUSE,
        samples::MAY_HAVE_EXECUTED,
        samples::BACKEND,
    ];
    let table = folder
        .samples()?
        .filter(col(samples::STYLE).eq(lit(Style::Transaction.as_str())))
        .select(columns.map(col))
        .collect()?;
    let writers = writers(&table, samples::AGENT_ID, samples::INCARNATION)?;
    let outcomes = words(&table, samples::OUTCOME, |word| {
        word.parse::<Outcome>().ok()
    })?;
    let causes = words(&table, samples::CAUSE, |word| word.parse::<Cause>().ok())?;
    let backends = words(&table, samples::BACKEND, str::to_owned)?;
    let slots = table.column(samples::SLOT)?.u64()?;
    let scheduled = table.column(samples::SCHEDULED_NS)?.i64()?;
    let unknown = table.column(samples::MAY_HAVE_EXECUTED)?.bool()?;
    let mut rows = Vec::with_capacity(table.height());
    for (i, writer) in writers.into_iter().enumerate() {
        let (Some(writer), Some(slot), Some(scheduled_ns)) =
            (writer, slots.get(i), scheduled.get(i))
        else {
            continue;
        };
        if causes[i].flatten() == Some(Cause::Unsupported) {
            // Nothing was sent.
            continue;
        }
        rows.push(Written {
            writer,
            slot,
            scheduled_ns,
            told: match (outcomes[i].flatten(), unknown.get(i)) {
                (Some(Outcome::Ok), _) => Told::Acknowledged,
                (_, Some(true)) => Told::Unknown,
                _ => Told::Refused,
            },
            backend: backends[i].clone(),
        });
    }
    rows.sort_by(|a, b| (&a.writer, a.slot).cmp(&(&b.writer, b.slot)));
    Ok(rows)
}

/// What was read of the ledger after the run.
///
/// # Errors
/// When the table cannot be read.
pub fn readings(folder: &RunFolder) -> Result<Vec<Reading>, LoadError> {
    let table = folder
        .ledger_reads()?
        .sort([samples::SEQ], SortMultipleOptions::default())
        .collect()?;
    let writers = writers(&table, samples::AGENT_ID, host::WRITTEN_BY)?;
    let agents = words(&table, samples::AGENT_ID, |word| {
        word.parse::<AgentId>().ok()
    })?;
    let sources = words(&table, host::SOURCE, str::to_owned)?;
    let backends = words(&table, host::BACKEND, str::to_owned)?;
    let errors = words(&table, host::ERROR, str::to_owned)?;
    let notes = words(&table, host::NOTE, str::to_owned)?;
    let shared = table.column(host::SHARED)?.bool()?;
    let first = table.column(host::FIRST_SLOT)?.u64()?;
    let last = table.column(host::LAST_SLOT)?.u64()?;
    let times = table.column(host::TIMES)?.u32()?;
    let mut found: Vec<Reading> = Vec::new();
    for i in 0..table.height() {
        let (Some(Some(agent)), Some(source)) = (agents[i].clone(), sources[i].clone()) else {
            continue;
        };
        let text = |column: &[Option<String>]| column[i].clone().unwrap_or_default();
        let is_new = times.get(i) == Some(0);
        // A restarted agent reads again: the newest reading counts.
        let at = found
            .iter()
            .position(|r| r.agent == agent && r.source == source);
        if is_new {
            let reading = Reading {
                agent,
                source,
                backend: text(&backends),
                error: text(&errors),
                shared: shared.get(i).unwrap_or(false),
                note: text(&notes),
                present: Vec::new(),
            };
            match at {
                Some(at) => found[at] = reading,
                None => found.push(reading),
            }
        } else if let (Some(at), Some(writer), Some(first_slot), Some(last_slot), Some(times)) = (
            at,
            writers[i].clone(),
            first.get(i),
            last.get(i),
            times.get(i),
        ) {
            found[at].present.push(Present {
                writer,
                first_slot,
                last_slot,
                times,
            });
        }
    }
    Ok(found)
}

/// Whose row each row of a table is about.
fn writers(
    table: &DataFrame,
    agent: &str,
    incarnation: &str,
) -> Result<Vec<Option<Writer>>, LoadError> {
    let agents = words(table, agent, |word| word.parse::<AgentId>().ok())?;
    let incarnations = words(table, incarnation, str::to_owned)?;
    let targets = words(table, samples::TARGET, |word| {
        word.parse::<TargetName>().ok()
    })?;
    let clients = table.column(samples::CLIENT)?.u16()?;
    Ok((0..table.height())
        .map(|i| {
            Some(Writer {
                agent: agents[i].clone().flatten()?,
                incarnation: incarnations[i].clone()?,
                target: targets[i].clone().flatten()?,
                client: clients.get(i)?,
            })
        })
        .collect())
}
