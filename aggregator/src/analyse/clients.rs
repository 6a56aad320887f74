//! From the stored samples to the clients' histories.
//!
//! One agent, target and style is read at a time, some rows after the other, so that
//! memory is bounded by the largest of these, not by the run. Words are decoded once
//! in each row group in which they stand. On the way it is noted which address served
//! whom, and what names were looked up ([`super::beside`]).

use std::collections::HashMap;

use gapscope_proto::ids::TargetName;
use gapscope_proto::sample::{Cause, Outcome, Phase, Style};

use super::beside::Traffic;
use super::load::{AgentClock, LoadError, Names};
use super::series::{ClientKey, ClientSeries, Life, Probe};
use super::still::StoodStill;
use crate::store::blocks::Blocks;
use crate::store::manifest::{Manifest, Schedule};
use crate::store::schema::samples;
use crate::store::slab::Slab;

/// Columns of samples that are needed for it.
pub const COLUMNS: &[&str] = &[
    samples::INCARNATION,
    samples::CLIENT,
    samples::SLOT,
    samples::SCHEDULED_NS,
    samples::STARTED_NS,
    samples::FINISHED_NS,
    samples::RESOLVE_NS,
    samples::PHASE,
    samples::OUTCOME,
    samples::CAUSE,
    samples::ERROR_CODE,
    samples::ERROR,
    samples::CONNECTION,
    samples::CONNECTION_ID,
    samples::BACKEND,
    samples::PEER,
];

/// Who is read.
#[derive(Debug, Clone, Copy)]
pub struct Of<'a> {
    /// Whose clients.
    pub clock: &'a AgentClock,
    /// Of which target.
    pub target: &'a TargetName,
    /// Of which style.
    pub style: Style,
}

/// The histories of one agent's clients of one target and style, in order of
/// their numbers; clients that are planned and have no sample included.
///
/// # Errors
/// When the samples cannot be read.
pub fn clients(
    manifest: &Manifest,
    blocks: &Blocks,
    of: Of<'_>,
    names: &mut Names,
    traffic: &mut Traffic<'_>,
) -> Result<Vec<ClientSeries>, LoadError> {
    let Of {
        clock,
        target,
        style,
    } = of;
    let key = (clock.agent.as_str(), target.as_str(), style.as_str());
    let groups = || {
        let groups = manifest.plan.groups.iter();
        groups.filter(|g| &g.target == target && g.style == style)
    };
    let clients: usize = groups().map(|g| usize::from(g.clients)).sum();
    let mut found = ByClient::new(blocks.rows_of(key.0, key.1, key.2), clients);
    blocks.each(key, |slab, rows| match rows {
        Some(rows) => probes(
            slab,
            rows.iter().copied(),
            clock,
            names,
            &mut found,
            traffic,
        ),
        None => probes(slab, 0..slab.rows(), clock, names, &mut found, traffic),
    })?;
    let lives: Vec<Life> = clock.lives.iter().map(|(_, life)| life.clone()).collect();
    let mut all = Vec::new();
    for group in groups() {
        for (index, client) in (0..group.clients).zip(group.client_numbers()) {
            let mut probes = found.take(client);
            let place = |p: &Probe| (p.life, p.slot, p.started);
            if !probes.is_sorted_by_key(place) {
                probes.sort_unstable_by_key(place);
            }
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
pub type LeftOut = (TargetName, Style, u16, String);

/// Those of these clients whose target does not support what they do.
pub fn left_out(clients: &[ClientSeries], names: &Names) -> Vec<LeftOut> {
    let unsupported = |client: &ClientSeries| {
        let mut probes = client.probes.iter();
        let probe = probes.find(|probe| probe.cause == Some(Cause::Unsupported))?;
        let code = probe
            .error_code
            .map_or(String::new(), |code| format!("{code} "));
        let why = probe.error.map_or("", |error| names.word(error));
        let key = &client.key;
        let why = format!("{code}{why}");
        Some((key.target.clone(), key.style, key.client, why))
    };
    clients.iter().filter_map(unsupported).collect()
}

/// Probes as they are found.
struct ByClient {
    /// By client: where its probes are.
    place: Vec<Option<usize>>,
    probes: Vec<Vec<Probe>>,
    /// So many of each client are expected.
    each: usize,
}

impl ByClient {
    fn new(rows: usize, clients: usize) -> Self {
        Self {
            place: Vec::new(),
            probes: Vec::with_capacity(clients),
            each: rows.div_ceil(clients.max(1)),
        }
    }

    fn push(&mut self, client: u16, probe: Probe) {
        let at = usize::from(client);
        if at >= self.place.len() {
            self.place.resize(at + 1, None);
        }
        let place = *self.place[at].get_or_insert_with(|| {
            // Exactly as long as they will be, as a rule: together they are most of
            // the memory.
            self.probes.push(Vec::with_capacity(self.each));
            self.probes.len() - 1
        });
        self.probes[place].push(probe);
    }

    fn take(&mut self, client: u16) -> Vec<Probe> {
        let place = self.place.get(usize::from(client)).copied().flatten();
        place.map_or_else(Vec::new, |place| std::mem::take(&mut self.probes[place]))
    }
}

fn of<T: Copy>(decoded: &[Option<T>], number: Option<u32>) -> Option<T> {
    decoded.get(number? as usize).copied().flatten()
}

fn probes(
    slab: &Slab,
    rows: impl Iterator<Item = usize>,
    clock: &AgentClock,
    names: &mut Names,
    found: &mut ByClient,
    traffic: &mut Traffic<'_>,
) -> Result<(), LoadError> {
    let life_of: HashMap<String, u16> = clock
        .lives
        .iter()
        .zip(0u16..)
        .map(|((incarnation, _), life)| (incarnation.to_string(), life))
        .collect();
    let starts = slab.words(samples::INCARNATION)?;
    let lives = starts.decoded(|word| life_of.get(word).copied());
    let phases = slab.words(samples::PHASE)?;
    let phase_of = phases.decoded(|word| word.parse().unwrap_or(Phase::Query));
    let outcomes = slab.words(samples::OUTCOME)?;
    let outcome_of = outcomes.decoded(|word| word.parse().unwrap_or(Outcome::ProtocolError));
    let causes = slab.words(samples::CAUSE)?;
    let cause_of = causes.decoded(|word| word.parse::<Cause>().ok());
    let backends = slab.words(samples::BACKEND)?;
    let backend_of = backends.decoded(|word| names.number(word));
    let errors = slab.words(samples::ERROR)?;
    let error_of = errors.decoded(|word| names.number(word));
    let peers = slab.words(samples::PEER)?;
    let peer_of = peers.decoded(|word| names.number(word));
    let clients = slab.numbers::<u16>(samples::CLIENT)?;
    let slots = slab.numbers::<u64>(samples::SLOT)?;
    let scheduled = slab.numbers::<i64>(samples::SCHEDULED_NS)?;
    let started = slab.numbers::<i64>(samples::STARTED_NS)?;
    let finished = slab.numbers::<i64>(samples::FINISHED_NS)?;
    let resolves = slab.numbers::<u64>(samples::RESOLVE_NS)?;
    let codes = slab.numbers::<u16>(samples::ERROR_CODE)?;
    let connections = slab.numbers::<u32>(samples::CONNECTION)?;
    let ids = slab.numbers::<u64>(samples::CONNECTION_ID)?;
    for row in rows {
        let (Some(client), Some(slot), Some(scheduled), Some(started), Some(ended)) = (
            clients.get(row),
            slots.get(row),
            scheduled.get(row),
            started.get(row),
            finished.get(row),
        ) else {
            continue;
        };
        let Some(life) = of(&lives, starts.numbers.get(row)).flatten() else {
            continue;
        };
        let phase = of(&phase_of, phases.numbers.get(row)).unwrap_or(Phase::Query);
        let outcome = of(&outcome_of, outcomes.numbers.get(row));
        if let Some(took_ns) = resolves.get(row) {
            traffic.looked_up(took_ns, phase);
        }
        if let Some(peer) = of(&peer_of, peers.numbers.get(row)) {
            traffic.served(client, peer, outcome, ended);
        }
        let mut outcome = outcome.unwrap_or(Outcome::ProtocolError);
        // A clock that went back measures nothing: no data, never an answer in
        // less than no time.
        let end = ended.max(started).max(scheduled);
        if end != ended {
            outcome = Outcome::AgentError;
        }
        found.push(
            client,
            Probe {
                life,
                slot,
                scheduled,
                started,
                finished: end,
                blind_ns: 0,
                phase,
                outcome,
                cause: of(&cause_of, causes.numbers.get(row)).flatten(),
                error_code: codes.get(row),
                error: of(&error_of, errors.numbers.get(row)),
                connection: connections.get(row),
                connection_id: ids.get(row),
                backend: of(&backend_of, backends.numbers.get(row)),
            },
        );
    }
    Ok(())
}
