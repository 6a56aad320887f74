//! What is said of the clocks of a run: tables and JSON.

use gapscope_proto::clock::ClockKey;
use gapscope_proto::ids::AgentId;
use serde_json::{Value as Json, json};

use super::figures::{NONE, bare_seconds};
use super::table::Table;
use crate::align::epoch::Epoch;
use crate::align::map::{ClockMap, Relation, short};
use crate::align::track::{SOLVER_VERSION, Track};
use crate::align::wall::WallError;

/// Most moments of an epoch for which its bound is listed.
const MOMENTS: usize = 500;

/// One agent clock, as much of it as is reported.
#[derive(Debug, Clone, Copy)]
pub struct AgentClock<'a> {
    /// Whose.
    pub agent: &'a AgentId,
    /// Which.
    pub clock: &'a ClockKey,
    /// Zero of its times.
    pub origin_ns: i64,
    /// Exchanges it has.
    pub exchanges: usize,
    /// When each was begun and how long it took there and back, in ns.
    pub round_trips: &'a [(i64, i64)],
    /// By how much its wall clock is off, if by more than the bounds.
    pub wall_error: Option<WallError>,
}

fn micros(ns: i64) -> String {
    format!("{:.1}", ns as f64 / 1e3)
}

/// Half-widths at the knots, in order of size.
fn widths(epoch: &Epoch) -> Vec<i64> {
    let mut widths: Vec<i64> = epoch
        .corridor
        .iter()
        .flat_map(|c| c.knots())
        .map(|k| k.half_width_ns())
        .collect();
    widths.sort_unstable();
    widths
}

/// First and last moment that the epoch's exchanges speak of.
fn extent(epoch: &Epoch) -> Option<(i64, i64)> {
    let knots = epoch.corridor.as_ref()?.knots();
    Some((knots.first()?.at_ns, knots.last()?.at_ns))
}

/// Moments spread evenly over an epoch.
fn moments(epoch: &Epoch, most: usize) -> Vec<i64> {
    let Some((from, to)) = extent(epoch) else {
        return Vec::new();
    };
    let span = i128::from(to) - i128::from(from);
    let steps = i128::try_from(most.saturating_sub(1).max(1)).unwrap_or(1);
    // One a second is as often as the exchanges come.
    let steps = steps.min((span / 1_000_000_000).max(1));
    (0..=steps)
        .filter_map(|k| i64::try_from(i128::from(from) + span * k / steps).ok())
        .collect()
}

/// One row for each agent, clock and epoch.
pub fn epoch_table(clocks: &ClockMap, agents: &[AgentClock<'_>]) -> Table {
    let mut table = Table::new(
        "Clocks: aggregator's minus agent's",
        2,
        &[
            "agent",
            "epoch",
            ">from s",
            ">to s",
            ">exchanges",
            ">offset\ns",
            ">drift\nppm",
            ">drift\n± ppm",
            ">round trip\nmin us",
            ">bound\nmedian ± us",
            ">bound\nmax ± us",
            ">hidden step\nalso ± us",
            "ended by",
            "clock",
        ],
    );
    for agent in agents {
        let name = agent.agent.to_string();
        let plain = |word: &str, offset: &str| {
            let mut row = vec![String::new(); 14];
            row[0] = name.clone();
            row[1] = NONE.to_owned();
            row[4] = agent.exchanges.to_string();
            row[5] = offset.to_owned();
            row[12] = word.to_owned();
            row[13] = short(agent.clock);
            row
        };
        match clocks.relation(agent.clock) {
            None => table.rows.push(plain("no exchange relates it", NONE)),
            Some(Relation::Same) => table.rows.push(plain("same clock: exact", "0")),
            Some(Relation::Bounded(track)) => {
                for number in 0..track.epochs().len() {
                    table.rows.push(epoch_row(agent, track, number));
                }
            }
        }
    }
    table
}

fn epoch_row(agent: &AgentClock<'_>, track: &Track, number: usize) -> Vec<String> {
    let epoch = &track.epochs()[number];
    let none = || NONE.to_owned();
    let at = |ns: i64| bare_seconds(ns.saturating_sub(agent.origin_ns));
    let extent = extent(epoch);
    let widths = widths(epoch);
    let drift = track.drift_ppm(number);
    let offset = extent.map(|(from, to)| {
        let middle = from.saturating_add(to.saturating_sub(from) / 2);
        track.at(middle).knot.middle_ns()
    });
    vec![
        agent.agent.to_string(),
        number.to_string(),
        extent.map_or_else(none, |e| at(e.0)),
        extent.map_or_else(none, |e| at(e.1)),
        epoch.exchanges.to_string(),
        offset.map_or_else(none, |ns| format!("{:.6}", ns as f64 / 1e9)),
        drift.map_or_else(none, |d| format!("{:.3}", d.0)),
        drift.map_or_else(none, |d| format!("{:.3}", d.1)),
        if epoch.corridor.is_some() {
            micros(epoch.round_trip_min_ns)
        } else {
            none()
        },
        widths
            .get(widths.len() / 2)
            .map_or_else(none, |w| micros(*w)),
        widths.last().map_or_else(none, |w| micros(*w)),
        if epoch.corridor.is_some() {
            micros(epoch.round_trip_min_ns)
        } else {
            none()
        },
        epoch.ended.as_str().replace('_', " "),
        short(agent.clock),
    ]
}

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

/// The clocks for programs. Times `at_s` count from the agent's origin; offsets
/// are whole nanoseconds.
pub fn as_json(clocks: &ClockMap, agents: &[AgentClock<'_>]) -> Json {
    let all: Vec<Json> = agents
        .iter()
        .map(|agent| {
            let (relation, epochs, rejected) = match clocks.relation(agent.clock) {
                None => ("unknown", Vec::new(), 0),
                Some(Relation::Same) => ("same", Vec::new(), 0),
                Some(Relation::Bounded(track)) => (
                    "bounded",
                    (0..track.epochs().len())
                        .map(|number| epoch_json(agent, track, number))
                        .collect(),
                    track.rejected,
                ),
            };
            json!({
                "agent": agent.agent.as_str(),
                "clock": {
                    "boot_id": agent.clock.boot_id,
                    "time_namespace": agent.clock.time_namespace,
                },
                "relation": relation,
                "origin_ns": agent.origin_ns,
                "exchanges": agent.exchanges,
                "exchanges_rejected": rejected,
                "wall_clock_off_s": agent.wall_error.map(|e| seconds(e.at_least_ns)),
                "epochs": epochs,
            })
        })
        .collect();
    json!({
        "solver_version": SOLVER_VERSION,
        "timeline": {
            "boot_id": clocks.server().boot_id,
            "time_namespace": clocks.server().time_namespace,
        },
        "agents": all,
    })
}

fn epoch_json(agent: &AgentClock<'_>, track: &Track, number: usize) -> Json {
    let epoch = &track.epochs()[number];
    let widths = widths(epoch);
    let drift = track.drift_ppm(number);
    let extent = extent(epoch);
    let at_s = |ns: i64| seconds(ns.saturating_sub(agent.origin_ns));
    let bound: Vec<Json> = moments(epoch, MOMENTS)
        .into_iter()
        .map(|at| {
            let offset = track.at(at);
            json!({
                "at_s": at_s(at),
                "offset_lo_ns": offset.knot.lo_ns,
                "offset_hi_ns": offset.knot.hi_ns,
                "bound_ns": offset.knot.half_width_ns(),
                "bound_hidden_step_ns":
                    offset.knot.widened(offset.hidden_step_ns).half_width_ns(),
            })
        })
        .collect();
    json!({
        "epoch": number,
        "from_s": extent.map(|e| at_s(e.0)),
        "to_s": extent.map(|e| at_s(e.1)),
        "exchanges": epoch.exchanges,
        "round_trip_min_ns": epoch.corridor.as_ref().map(|_| epoch.round_trip_min_ns),
        "drift_ppm": drift.map(|d| d.0),
        "drift_bound_ppm": drift.map(|d| d.1),
        "bound_ns_median": widths.get(widths.len() / 2),
        "bound_ns_max": widths.last(),
        "kappa_factor": epoch.kappa_factor,
        "skipped_windows": epoch.skipped_windows,
        "ended": epoch.ended.as_str(),
        "bound": bound,
    })
}
