//! From a run's folder to the clients' histories.
//!
//! One agent, target and style is read at a time, some rows after the other, so that
//! memory is bounded by the largest of these, not by the run. Words are decoded once
//! per distinct word.

use std::collections::{BTreeMap, HashMap};

use gapscope_proto::clock::ClockKey;
use gapscope_proto::host::{Anchor, Exchange, ProbingStarted};
use gapscope_proto::ids::{AgentId, Incarnation, TargetName};
use gapscope_proto::sample::{Cause, Outcome, Phase, Style};
use polars::prelude::*;

use super::ledger::{Present, Reading, Told, Writer, Written};
use super::series::{ClientKey, ClientSeries, Life, Probe};
use super::still::StoodStill;
use crate::align::map::Records;
use crate::store::blocks::Blocks;
use crate::store::manifest::{AgentEntry, Manifest, RunState, Schedule};
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

/// Words seen so far, by number.
#[derive(Debug, Default, Clone)]
pub struct Names {
    words: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Names {
    /// The word's number, new if need be.
    pub fn number(&mut self, word: &str) -> u32 {
        if let Some(number) = self.numbers.get(word) {
            return *number;
        }
        let number = u32::try_from(self.words.len()).unwrap_or(u32::MAX);
        self.words.push(word.to_owned());
        self.numbers.insert(word.to_owned(), number);
        number
    }

    /// The number's word.
    pub fn word(&self, number: u32) -> &str {
        self.words.get(number as usize).map_or("?", String::as_str)
    }
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
pub fn signs(folder: &RunFolder) -> Result<AllSigns, LoadError> {
    let mut all = AllSigns::new();
    for (frame, last, first) in [
        (
            folder.samples()?,
            samples::FINISHED_NS,
            Some(samples::SCHEDULED_NS),
        ),
        (folder.lag()?, host::AT_NS, None),
    ] {
        let found = frame
            .group_by([col(samples::AGENT_ID), col(samples::INCARNATION)])
            .agg([
                col(last).max(),
                col(first.unwrap_or(last)).min().alias("first"),
            ])
            .collect()?;
        let agents = words(&found, samples::AGENT_ID, str::to_owned)?;
        let incarnations = words(&found, samples::INCARNATION, str::to_owned)?;
        let lasts = found.column(last)?.i64()?;
        let firsts = found.column("first")?.i64()?;
        for (i, (agent, incarnation)) in agents.into_iter().zip(incarnations).enumerate() {
            if let (Some(agent), Some(incarnation), Some(last_ns)) =
                (agent, incarnation, lasts.get(i))
            {
                let signs = all.entry((agent, incarnation)).or_insert(Signs {
                    first_due_ns: None,
                    last_ns,
                });
                signs.last_ns = last_ns.max(signs.last_ns);
                if first.is_some() {
                    signs.first_due_ns = firsts.get(i);
                }
            }
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

/// The histories of one agent's clients of one target and style, in order of
/// their numbers; clients that are planned and have no sample included.
///
/// # Errors
/// When the samples cannot be read.
pub fn clients(
    folder: &RunFolder,
    blocks: &Blocks,
    clock: &AgentClock,
    target: &TargetName,
    style: Style,
    names: &mut Names,
) -> Result<Vec<ClientSeries>, LoadError> {
    let manifest = folder.manifest();
    let columns = [
        samples::INCARNATION,
        samples::CLIENT,
        samples::SLOT,
        samples::SCHEDULED_NS,
        samples::STARTED_NS,
        samples::FINISHED_NS,
        samples::PHASE,
        samples::OUTCOME,
        samples::CAUSE,
        samples::ERROR_CODE,
        samples::ERROR,
        samples::CONNECTION,
        samples::CONNECTION_ID,
        samples::BACKEND,
    ];
    let of = (clock.agent.as_str(), target.as_str(), style.as_str());
    let planned = manifest.plan.groups.iter();
    let planned = planned.filter(|g| &g.target == target && g.style == style);
    let clients: usize = planned.map(|g| usize::from(g.clients)).sum();
    let rows = blocks.rows_of(of.0, of.1, of.2);
    let mut by_client = ByClient {
        found: BTreeMap::new(),
        // Exactly as long as they will be, as a rule: together they are most of the
        // memory.
        each: rows.map(|rows| rows.div_ceil(clients.max(1))),
    };
    blocks.each(of, &columns, |table| {
        probes(&table, clock, names, &mut by_client)
    })?;
    let mut by_client = by_client.found;
    let lives: Vec<Life> = clock.lives.iter().map(|(_, life)| life.clone()).collect();
    let mut all = Vec::new();
    for group in manifest
        .plan
        .groups
        .iter()
        .filter(|g| &g.target == target && g.style == style)
    {
        for (index, client) in (0..group.clients).zip(group.client_numbers()) {
            let mut probes = by_client.remove(&client).unwrap_or_default();
            probes.sort_unstable_by_key(|p| (p.life, p.slot, p.started));
            all.push(ClientSeries {
                key: ClientKey {
                    agent: clock.agent.clone(),
                    target: target.clone(),
                    style,
                    client,
                },
                kind: group.kind,
                interval_ns: i64::try_from(group.interval_ns).unwrap_or(i64::MAX),
                phase_ns: i64::try_from(group.phase_ns(index)).unwrap_or(i64::MAX),
                timeouts: group.timeouts,
                reconstructed: manifest.schedule == Schedule::Reconstructed,
                lives: lives.clone(),
                probes,
                still: StoodStill::default(),
            });
        }
    }
    all.sort_by_key(|series| series.key.client);
    Ok(all)
}

/// A client that was left out: target, style, number, and what the target said.
pub type LeftOut = (String, Style, u16, String);

/// Clients whose target does not support what they do: target, style, number,
/// and what the target said.
///
/// # Errors
/// When the samples cannot be read.
pub fn left_out(folder: &RunFolder) -> Result<Vec<LeftOut>, LoadError> {
    let table = folder
        .samples()?
        .filter(col(samples::CAUSE).eq(lit(Cause::Unsupported.as_str())))
        .group_by([
            col(samples::TARGET),
            col(samples::STYLE),
            col(samples::CLIENT),
        ])
        .agg([
            col(samples::ERROR).first(),
            col(samples::ERROR_CODE).first(),
        ])
        .collect()?;
    let targets = words(&table, samples::TARGET, str::to_owned)?;
    let styles = words(&table, samples::STYLE, |word| word.parse::<Style>().ok())?;
    let errors = words(&table, samples::ERROR, str::to_owned)?;
    let clients = table.column(samples::CLIENT)?.u16()?;
    let codes = table.column(samples::ERROR_CODE)?.u16()?;
    let mut found = Vec::new();
    for i in 0..table.height() {
        if let (Some(target), Some(Some(style)), Some(client)) =
            (targets[i].clone(), styles[i], clients.get(i))
        {
            let code = codes
                .get(i)
                .map_or(String::new(), |code| format!("{code} "));
            let why = errors[i].clone().unwrap_or_default();
            found.push((target, style, client, format!("{code}{why}")));
        }
    }
    found.sort();
    Ok(found)
}

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

/// Probes as they are found.
struct ByClient {
    found: BTreeMap<u16, Vec<Probe>>,
    /// So many of each client are expected.
    each: Option<usize>,
}

fn probes(
    table: &DataFrame,
    clock: &AgentClock,
    names: &mut Names,
    by_client: &mut ByClient,
) -> Result<(), LoadError> {
    let life_of: HashMap<String, u16> = clock
        .lives
        .iter()
        .zip(0u16..)
        .map(|((incarnation, _), life)| (incarnation.to_string(), life))
        .collect();
    let lives = decoded(table, samples::INCARNATION, |word| {
        life_of.get(word).copied()
    })?;
    let phases = decoded(table, samples::PHASE, |w| w.parse().unwrap_or(Phase::Query))?;
    let outcomes = decoded(table, samples::OUTCOME, |word| {
        word.parse().unwrap_or(Outcome::ProtocolError)
    })?;
    let causes = decoded(table, samples::CAUSE, |word| word.parse().ok())?;
    let backends = decoded(table, samples::BACKEND, |word| names.number(word))?;
    let errors = decoded(table, samples::ERROR, |word| names.number(word))?;
    let clients = table.column(samples::CLIENT)?.u16()?;
    let slots = table.column(samples::SLOT)?.u64()?;
    let scheduled = table.column(samples::SCHEDULED_NS)?.i64()?;
    let started = table.column(samples::STARTED_NS)?.i64()?;
    let finished = table.column(samples::FINISHED_NS)?.i64()?;
    let codes = table.column(samples::ERROR_CODE)?.u16()?;
    let connections = table.column(samples::CONNECTION)?.u32()?;
    let ids = table.column(samples::CONNECTION_ID)?.u64()?;
    let mut codes = codes.iter();
    let mut connections = connections.iter();
    let mut ids = ids.iter();
    let (mut lives, mut phases) = (lives.iter(), phases.iter());
    let (mut outcomes, mut causes) = (outcomes.iter(), causes.iter());
    let (mut backends, mut errors) = (backends.iter(), errors.iter());
    // Of a table whose size was not known before: exactly as many as it has.
    let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
    for client in clients.iter().flatten() {
        *counts.entry(client).or_default() += 1;
    }
    for (client, count) in counts {
        let each = by_client.each.unwrap_or(0);
        let probes = by_client.found.entry(client);
        let probes = probes.or_insert_with(|| Vec::with_capacity(each.max(count)));
        if by_client.each.is_none() {
            probes.reserve_exact(count);
        }
    }
    let times = scheduled.iter().zip(started.iter()).zip(finished.iter());
    for ((client, slot), ((scheduled, started), finished)) in
        clients.iter().zip(slots.iter()).zip(times)
    {
        let life = lives.next().flatten().flatten();
        let phase = phases.next().flatten();
        let outcome = outcomes.next().flatten();
        let cause = causes.next().flatten().flatten();
        let backend = backends.next().flatten();
        let error = errors.next().flatten();
        let error_code = codes.next().flatten();
        let connection = connections.next().flatten();
        let connection_id = ids.next().flatten();
        let (Some(client), Some(slot), Some(scheduled), Some(started), Some(finished)) =
            (client, slot, scheduled, started, finished)
        else {
            continue;
        };
        let (Some(life), Some(found)) = (life, by_client.found.get_mut(&client)) else {
            continue;
        };
        let mut outcome = outcome.unwrap_or(Outcome::ProtocolError);
        // A clock that went back measures nothing: no data, never an answer in
        // less than no time.
        let end = finished.max(started).max(scheduled);
        if end != finished {
            outcome = Outcome::AgentError;
        }
        found.push(Probe {
            life,
            slot,
            scheduled,
            started,
            finished: end,
            blind_ns: 0,
            phase: phase.unwrap_or(Phase::Query),
            outcome,
            cause,
            error_code,
            error,
            connection,
            connection_id,
            backend,
        });
    }
    Ok(())
}

/// A column of words, each distinct one decoded once; nothing is kept for each row.
struct Decoded<T> {
    numbers: UInt32Chunked,
    /// By the word's number.
    known: Vec<Option<T>>,
}

impl<T: Copy> Decoded<T> {
    /// Each row's.
    fn iter(&self) -> impl Iterator<Item = Option<T>> + '_ {
        self.numbers
            .iter()
            .map(|number| self.known.get(number? as usize).copied().flatten())
    }
}

/// As [`words`], row by row.
fn decoded<T: Copy>(
    table: &DataFrame,
    name: &str,
    mut decode: impl FnMut(&str) -> T,
) -> Result<Decoded<T>, LoadError> {
    let column = table.column(name)?.cast(&schema::dictionary())?;
    let categories = column.cat32()?;
    let mapping = categories.get_mapping();
    let numbers = categories.physical().clone();
    let mut known = Vec::new();
    let mut before = None;
    for number in numbers.iter().flatten() {
        if before == Some(number) {
            continue;
        }
        before = Some(number);
        let at = number as usize;
        if at >= known.len() {
            known.resize(at + 1, None);
        }
        if known[at].is_none() {
            known[at] = Some(mapping.cat_to_str(number).map(&mut decode));
        }
    }
    Ok(Decoded {
        numbers,
        known: known.into_iter().map(Option::flatten).collect(),
    })
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
