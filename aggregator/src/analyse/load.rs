//! What a run's folder says of its agents: their clocks and starts, and when they saw
//! nothing. The clients' histories are read in [`super::clients`], the ledger in
//! [`super::ledger_tables`].

use std::collections::{BTreeMap, HashMap};

use gapscope_proto::clock::ClockKey;
use gapscope_proto::host::{Anchor, Exchange, ProbingStarted};
use gapscope_proto::ids::{AgentId, Incarnation};
use polars::prelude::*;

use super::series::Life;
use crate::align::map::Records;
pub use crate::names::Names;
use crate::store::blocks::Blocks;
use crate::store::manifest::{AgentEntry, Manifest, RunState};
use crate::store::reader::RunFolder;
use crate::store::schema::{self, host, samples};

/// Why a run cannot be analysed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Its folder cannot be read.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    /// Its tables are not what they should be.
    #[error("cannot analyse the run's tables: {0}")]
    Table(#[from] PolarsError),
}

/// A clock of an agent, with the starts of the agent that read it.
#[derive(Debug, Clone)]
pub struct AgentClock {
    /// Which agent.
    pub agent: AgentId,
    /// Which clock.
    pub clock: ClockKey,
    /// The starts, in order; a probe's `life` is an index into these.
    pub lives: Vec<(Incarnation, Life)>,
}

/// A start's first due sample, and its last sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signs {
    /// When its first sample was due.
    pub first_due_ns: Option<i64>,
    /// When it was last heard of, by its samples and ticker.
    pub last_ns: i64,
}

/// The signs of each start, by agent and start.
pub type AllSigns = BTreeMap<(String, String), Signs>;

/// What the samples and tickers say of each start of each agent.
///
/// # Errors
/// When the tables cannot be read.
pub fn signs(folder: &RunFolder, blocks: &Blocks) -> Result<AllSigns, LoadError> {
    let of_samples = blocks.heard().iter();
    let mut all: AllSigns = of_samples
        .map(|(start, (first_due, last))| {
            let signs = Signs {
                first_due_ns: Some(*first_due),
                last_ns: *last,
            };
            (start.clone(), signs)
        })
        .collect();
    let found = folder
        .lag()?
        .group_by([col(samples::AGENT_ID), col(samples::INCARNATION)])
        .agg([col(host::AT_NS).max()])
        .collect()?;
    let agents = words(&found, samples::AGENT_ID, str::to_owned)?;
    let incarnations = words(&found, samples::INCARNATION, str::to_owned)?;
    let lasts = found.column(host::AT_NS)?.i64()?;
    for (i, (agent, incarnation)) in agents.into_iter().zip(incarnations).enumerate() {
        if let (Some(agent), Some(incarnation), Some(last_ns)) = (agent, incarnation, lasts.get(i))
        {
            let signs = all.entry((agent, incarnation)).or_insert(Signs {
                first_due_ns: None,
                last_ns,
            });
            signs.last_ns = last_ns.max(signs.last_ns);
        }
    }
    Ok(all)
}

/// The agent's clocks, each with its starts; and what is wrong with them.
pub fn agent_clocks(
    manifest: &Manifest,
    agent: &AgentEntry,
    signs: &AllSigns,
) -> (Vec<AgentClock>, Vec<String>) {
    let mut clocks: Vec<AgentClock> = Vec::new();
    let mut caveats = Vec::new();
    // Starts of which nobody knows how they ended, and when they were last heard of.
    let mut gone: Vec<(Incarnation, i64, Option<i64>)> = Vec::new();
    for entry in &agent.incarnations {
        let name = entry.incarnation.to_string();
        let found = signs.get(&(agent.agent_id.to_string(), name.clone()));
        let sign = found.map(|signs| signs.last_ns);
        let started = match (&entry.started, found) {
            (Some(started), _) => started.clone(),
            (None, Some(signs)) => {
                caveats.push(format!(
                    "agent {}, start {name}: samples are there, but not the record of its begin; \
                     what was due is taken from the samples",
                    agent.agent_id
                ));
                ProbingStarted {
                    origin_ns: signs.first_due_ns.unwrap_or(signs.last_ns),
                    planned_end_ns: signs.last_ns,
                    clock: entry.clock.clone(),
                }
            }
            (None, None) => continue,
        };
        let (due_until_ns, alive_until_ns) = match (&entry.ended, sign) {
            (Some(ended), _) => (ended.end_ns, ended.end_ns),
            // Still being written: nothing is missing yet.
            (None, sign) if manifest.state == RunState::Running => {
                gone.push((entry.incarnation, started.origin_ns, sign));
                let now = sign.unwrap_or(started.origin_ns);
                (now, now)
            }
            (None, sign) => {
                gone.push((entry.incarnation, started.origin_ns, sign));
                (started.planned_end_ns, sign.unwrap_or(started.origin_ns))
            }
        };
        let life = Life {
            clock: started.clock.clone(),
            origin_ns: started.origin_ns,
            due_from_ns: found
                .and_then(|signs| signs.first_due_ns)
                .unwrap_or(due_until_ns),
            due_until_ns,
            alive_until_ns,
        };
        match clocks.iter_mut().find(|c| c.clock == started.clock) {
            Some(clock) => clock.lives.push((entry.incarnation, life)),
            None => clocks.push(AgentClock {
                agent: agent.agent_id.clone(),
                clock: started.clock.clone(),
                lives: vec![(entry.incarnation, life)],
            }),
        }
    }
    if clocks.len() > 1 {
        caveats.push(format!(
            "agent {} was started with {} different clocks (its host was started again): each \
             has rows of its own",
            agent.agent_id,
            clocks.len()
        ));
    }
    for clock in &mut clocks {
        clock
            .lives
            .sort_by_key(|(_, life)| (life.origin_ns, life.due_from_ns));
        // A start that found nothing left to do has no part in the schedule.
        let first = clock.lives[0].0;
        clock.lives.retain(|(incarnation, life)| {
            *incarnation == first || life.due_from_ns < life.due_until_ns
        });
        clock.lives[0].1.due_from_ns = clock.lives[0].1.origin_ns;
        for next in 1..clock.lives.len() {
            // From one start to the next the agent should have been probing.
            let (origin, begin) = {
                let before = clock.lives[next - 1].1.origin_ns;
                let life = &mut clock.lives[next].1;
                if life.origin_ns != before {
                    life.due_from_ns = life.origin_ns;
                }
                (life.origin_ns, life.due_from_ns)
            };
            clock.lives[next - 1].1.due_until_ns = begin.max(origin);
        }
    }
    let vanished = gone.into_iter().filter_map(|(incarnation, origin_ns, sign)| {
        let after = |at: i64| format!("{:.1} s", at.saturating_sub(origin_ns) as f64 / 1e9);
        let when = sign.map_or("before its first sample".to_owned(), |at| {
            format!("{} after its begin", after(at))
        });
        let what = match (came_back(&clocks, incarnation), sign) {
            (Some(Some(again)), Some(at)) if at < again && !agent.shares_id => format!(
                "was away from {} to {} after its begin, and went on; slots between are absent: \
                 no data",
                after(at),
                after(again)
            ),
            (Some(_), _) => format!("vanished {when}, and came back"),
            // It may be there still.
            (None, _) if manifest.state == RunState::Running => return None,
            (None, _) => format!("vanished {when}; slots after that are absent: no data"),
        };
        Some(format!("agent {} {what}", agent.agent_id))
    });
    caveats.extend(vanished.collect::<Vec<_>>());
    (clocks, caveats)
}

/// Whether a start of the agent was followed by another one that had a part in the
/// schedule, and since when, if they share a clock.
fn came_back(clocks: &[AgentClock], incarnation: Incarnation) -> Option<Option<i64>> {
    let (at, life) = clocks.iter().enumerate().find_map(|(at, clock)| {
        let life = clock.lives.iter().position(|(i, _)| *i == incarnation)?;
        Some((at, life))
    })?;
    match clocks[at].lives.get(life + 1) {
        Some((_, next)) => Some(Some(next.due_from_ns)),
        None => clocks.get(at + 1).map(|_| None),
    }
}

/// Times in which a start of an agent saw nothing, by agent and start.
pub type Pauses = BTreeMap<(String, String), Vec<(i64, i64)>>;

/// When each start's ticker was late by more than two ticks: the agent saw
/// nothing then. See [`super::still`] for the method.
///
/// # Errors
/// When the table cannot be read.
pub fn pauses(folder: &RunFolder) -> Result<Pauses, LoadError> {
    const TICK_NS: i64 = 10_000_000;
    let late = folder
        .lag()?
        .filter(col(host::LATE_MAX_NS).gt(lit(2 * TICK_NS.unsigned_abs())))
        .collect()?;
    let agents = words(&late, samples::AGENT_ID, str::to_owned)?;
    let incarnations = words(&late, samples::INCARNATION, str::to_owned)?;
    let at = late.column(host::AT_NS)?.i64()?;
    let ticks = late.column(host::TICKS)?.u32()?;
    let by = late.column(host::LATE_MAX_NS)?.u64()?;
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for i in 0..late.height() {
        if let (Some(agent), Some(incarnation), Some(at), Some(ticks), Some(by)) = (
            agents[i].clone(),
            incarnations[i].clone(),
            at.get(i),
            ticks.get(i),
            by.get(i),
        ) {
            // Late ticks stand in records of their own, those of one pause
            // together: the first was due `ticks - 1` ticks before the last.
            let before_first = at.saturating_sub(TICK_NS.saturating_mul(i64::from(ticks)));
            let first_due = before_first.saturating_add(TICK_NS);
            let from = before_first;
            let to = first_due.saturating_add(i64::try_from(by).unwrap_or(i64::MAX));
            found
                .entry((agent, incarnation))
                .or_default()
                .push((from, to));
        }
    }
    Ok(found)
}

/// The clock exchanges and anchors of each agent clock.
///
/// # Errors
/// When the tables cannot be read.
pub fn clock_records(
    folder: &RunFolder,
    clocks: &BTreeMap<(String, String), ClockKey>,
) -> Result<BTreeMap<ClockKey, Records>, LoadError> {
    let mut found: BTreeMap<ClockKey, Records> = BTreeMap::new();
    let table = folder.clock_exchanges()?.collect()?;
    let owners = owners(&table, clocks)?;
    let boot_ids = words(&table, host::SERVER_BOOT_ID, str::to_owned)?;
    let namespaces = table.column(host::SERVER_TIME_NAMESPACE)?.u64()?;
    let (a1, s1) = (numbers(&table, host::A1_NS)?, numbers(&table, host::S1_NS)?);
    let (s2, a2) = (numbers(&table, host::S2_NS)?, numbers(&table, host::A2_NS)?);
    for (i, clock) in owners.into_iter().enumerate() {
        let Some(clock) = clock else { continue };
        if let (Some(a1_ns), Some(s1_ns), Some(s2_ns), Some(a2_ns), Some(boot_id), Some(ns)) = (
            a1.get(i),
            s1.get(i),
            s2.get(i),
            a2.get(i),
            boot_ids[i].clone(),
            namespaces.get(i),
        ) {
            let records = found.entry(clock.clone()).or_default();
            records.exchanges.push(Exchange {
                a1_ns,
                s1_ns,
                s2_ns,
                a2_ns,
                server: ClockKey {
                    boot_id,
                    time_namespace: ns,
                },
            });
        }
    }
    let table = folder.clock_anchors()?.collect()?;
    let owners = self::owners(&table, clocks)?;
    let before = numbers(&table, host::RAW_BEFORE_NS)?;
    let after = numbers(&table, host::RAW_AFTER_NS)?;
    let monotonic = numbers(&table, host::MONOTONIC_NS)?;
    let boottime = numbers(&table, host::BOOTTIME_NS)?;
    let realtime = numbers(&table, host::REALTIME_NS)?;
    let late = table.column(host::TIMER_LATE_NS)?.u64()?;
    for (i, clock) in owners.into_iter().enumerate() {
        let Some(clock) = clock else { continue };
        if let (
            Some(raw_before_ns),
            Some(raw_after_ns),
            Some(monotonic_ns),
            Some(boottime_ns),
            Some(realtime_ns),
            Some(timer_late_ns),
        ) = (
            before.get(i),
            after.get(i),
            monotonic.get(i),
            boottime.get(i),
            realtime.get(i),
            late.get(i),
        ) {
            found
                .entry(clock.clone())
                .or_default()
                .anchors
                .push(Anchor {
                    raw_before_ns,
                    raw_after_ns,
                    monotonic_ns,
                    boottime_ns,
                    realtime_ns,
                    timer_late_ns,
                });
        }
    }
    Ok(found)
}

fn numbers(table: &DataFrame, name: &str) -> Result<Int64Chunked, LoadError> {
    Ok(table.column(name)?.i64()?.rechunk().into_owned())
}

/// Which clock each row of a host table was read from.
fn owners<'a>(
    table: &DataFrame,
    clocks: &'a BTreeMap<(String, String), ClockKey>,
) -> Result<Vec<Option<&'a ClockKey>>, LoadError> {
    let agents = words(table, samples::AGENT_ID, str::to_owned)?;
    let incarnations = words(table, samples::INCARNATION, str::to_owned)?;
    Ok(agents
        .into_iter()
        .zip(incarnations)
        .map(|names| match names {
            (Some(agent), Some(incarnation)) => clocks.get(&(agent, incarnation)),
            _ => None,
        })
        .collect())
}

/// A column of words, each distinct one decoded once.
pub(super) fn words<T: Clone>(
    table: &DataFrame,
    name: &str,
    mut decode: impl FnMut(&str) -> T,
) -> Result<Vec<Option<T>>, LoadError> {
    let column = table.column(name)?.cast(&schema::dictionary())?;
    let categories = column.cat32()?;
    let mapping = categories.get_mapping();
    let mut known: HashMap<u32, Option<T>> = HashMap::new();
    Ok(categories
        .physical()
        .iter()
        .map(|number| {
            let number = number?;
            known
                .entry(number)
                .or_insert_with(|| mapping.cat_to_str(number).map(&mut decode))
                .clone()
        })
        .collect())
}
