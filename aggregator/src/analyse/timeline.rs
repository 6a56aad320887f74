//! The agents of a run and their clocks, put on one timeline.

use std::collections::BTreeMap;

use gapscope_proto::clock::ClockKey;
use gapscope_proto::host::Exchange;

use super::load::{self, AgentClock, LoadError};
use super::run::Caveat;
use crate::align::map::{ClockMap, Records, short};
use crate::align::wall::{WallClock, WallError, wall_error};
use crate::store::blocks::Blocks;
use crate::store::reader::RunFolder;

/// What is known of one agent clock beside its relation to the aggregator's.
#[derive(Debug, Clone)]
pub struct Aligned {
    /// The agent, the clock, and its starts.
    pub agent: AgentClock,
    /// How many exchanges it has.
    pub exchanges: usize,
    /// When each was begun and how long it took there and back, without the
    /// aggregator's own share, in ns; those that cannot be left out.
    pub round_trips: Vec<(i64, i64)>,
    /// By how much the host's wall clock is off, if by more than the bounds.
    pub wall_error: Option<WallError>,
}

fn round_trips(exchanges: &[Exchange]) -> Vec<(i64, i64)> {
    let mut found: Vec<(i64, i64)> = exchanges
        .iter()
        .filter_map(|e| {
            let away = e.a2_ns.checked_sub(e.a1_ns)?;
            let there = e.s2_ns.checked_sub(e.s1_ns)?;
            let took = away.checked_sub(there)?;
            (took >= 0 && there >= 0).then_some((e.a1_ns, took))
        })
        .collect();
    found.sort_unstable();
    found
}

/// Every agent clock of a run, in the manifest's order.
#[derive(Debug)]
pub struct Timelines {
    /// One for each agent and clock.
    pub agents: Vec<Aligned>,
    /// How the clocks relate.
    pub clocks: ClockMap,
    /// The run's timeline in UTC.
    pub wall: WallClock,
    /// What is to be said against it.
    pub caveats: Vec<Caveat>,
}

/// Reads what the agents recorded of their clocks, and aligns them.
///
/// # Errors
/// When the run's tables cannot be read.
pub fn timelines(folder: &RunFolder, blocks: &Blocks) -> Result<Timelines, LoadError> {
    let manifest = folder.manifest();
    let signs = load::signs(folder, blocks)?;
    let mut found: Vec<AgentClock> = Vec::new();
    let mut caveats = Vec::new();
    for agent in &manifest.agents {
        let (clocks, texts) = load::agent_clocks(manifest, agent, &signs);
        if clocks.is_empty() {
            caveats.push(Caveat::run(
                "agent_never_began",
                format!("agent {} never began to probe", agent.agent_id),
            ));
        }
        found.extend(clocks);
        caveats.extend(texts.into_iter().map(|text| Caveat::run("agent", text)));
    }
    let clock_of: BTreeMap<(String, String), ClockKey> = found
        .iter()
        .flat_map(|clock| {
            clock.lives.iter().map(|(incarnation, _)| {
                (
                    (clock.agent.to_string(), incarnation.to_string()),
                    clock.clock.clone(),
                )
            })
        })
        .collect();
    let records = load::clock_records(folder, &clock_of)?;
    let mut clocks = ClockMap::new(manifest.clock.clone(), &records);
    for (at, clock) in found.iter().enumerate() {
        let later = found[at + 1..]
            .iter()
            .any(|c| c.agent == clock.agent && c.clock.boot_id != clock.clock.boot_id);
        if later {
            clocks.ends_by_boot(&clock.clock);
        }
    }
    caveats.extend(
        clocks
            .caveats()
            .iter()
            .map(|text| Caveat::run("clock", text.clone())),
    );
    let wall = WallClock::new(&manifest.anchors);
    let none = Records::default();
    let agents: Vec<Aligned> = found
        .into_iter()
        .map(|agent| {
            let known = records.get(&agent.clock).unwrap_or(&none);
            // One kernel has one wall clock, whatever the time namespace.
            let is_own_kernel = agent.clock.boot_id == manifest.clock.boot_id;
            let wall_error = if is_own_kernel {
                None
            } else {
                wall_error(&wall, &clocks, &agent.clock, &known.anchors)
            };
            Aligned {
                exchanges: known.exchanges.len(),
                round_trips: round_trips(&known.exchanges),
                wall_error,
                agent,
            }
        })
        .collect();
    for aligned in &agents {
        if let Some(error) = aligned.wall_error {
            let off = error.at_least_ns as f64 / 1e9;
            caveats.push(Caveat::run(
                "wall_clock",
                format!(
                    "the wall clock of agent {} (clock {}) is {} the aggregator's by at least \
                     {:.6} s: do not compare its logs by their times; gapscope does not use it",
                    aligned.agent.agent,
                    short(&aligned.agent.clock),
                    if off < 0.0 { "behind" } else { "ahead of" },
                    off.abs()
                ),
            ));
        }
    }
    Ok(Timelines {
        agents,
        clocks,
        wall,
        caveats,
    })
}
