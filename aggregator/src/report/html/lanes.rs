//! What the page's timeline is drawn from: every slot of every client, brought
//! into columns, and single samples near faults and outages.
//!
//! A lane is one row of the analysis; it has a strip for each client, or for
//! several where there are many. Each strip is cut into columns of equal time. A
//! slot fills every column that it touches, from its due time to the next one's;
//! a column keeps the bits of all that touched it, so no bad sample is ever
//! thinned away, whatever the run's size. Single samples are kept up to a number,
//! bad ones first, then those nearest to a fault or to an outage's end.

use std::collections::HashMap;

use gapscope_proto::clock::ClockKey;
use gapscope_proto::fault::Fault;
use gapscope_proto::ids::{AgentId, TargetName};
use gapscope_proto::plan::ClientKind;
use gapscope_proto::sample::{Cause, Outcome, Style};

use super::cell::{Cell, EMPTY, NO_BACKEND, SEVERAL_BACKENDS, bit, cause_group, log_code};
use super::flow::{self, Flows};
use crate::align::map::Relation;
use crate::analyse::latency::{Value, Values};
use crate::analyse::parallel;
use crate::analyse::row::{Row, Scope};
use crate::analyse::run::{Begun, Watch};
use crate::analyse::series::{ClientSeries, Probe, Slot, Worth};

/// Cells of all strips together, about.
const CELLS: usize = 160_000;
/// Single samples of all lanes together.
const SAMPLES: usize = 40_000;
/// On top of a lane's share of these, so that one that asks seldom keeps enough: at
/// most, and of all lanes together.
const EXTRA_SAMPLES: (usize, usize) = (500, 10_000);
/// Strips of all lanes together, about.
const STRIPS: usize = 640;
/// Most strips of one lane.
const MAX_STRIPS: usize = 64;
/// Columns of a strip: at least, at most.
const COLUMNS: (usize, usize) = (240, 16_384);

/// Backends with a number of their own; further ones are put together.
const MAX_BACKENDS: usize = 250;
/// Different errors that are kept in words.
const MAX_ERRORS: usize = 2_000;

/// A single sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Single {
    /// Which client.
    pub client: u16,
    /// Its strip within the lane.
    pub strip: u16,
    /// Due, in ns after zero.
    pub due_ns: i64,
    /// How long after that it was begun.
    pub begun_after_ns: i64,
    /// How long it took.
    pub took_ns: i64,
    /// As in [`bit`]: good, late, bad or no data.
    pub worth: u8,
    /// Who answered.
    pub backend: u8,
    /// Index into [`Gathered::errors`] plus one; 0: none.
    pub error: u16,
    /// Number of its slot.
    pub slot: u64,
    /// The client's own number of its connection; 0: none.
    pub connection: u32,
    /// `CONNECTION_ID()`; 0: none.
    pub connection_id: u64,
}

/// One row of the analysis.
#[derive(Debug, Clone)]
pub struct Lane {
    /// Who probed.
    pub agent: AgentId,
    /// What.
    pub target: TargetName,
    /// How.
    pub style: Style,
    /// Which kind of client.
    pub kind: ClientKind,
    /// Time between a client's slots.
    pub interval_ns: i64,
    /// Clients, and the number of each strip's first.
    pub clients: usize,
    /// Numbers of the clients of each strip.
    pub strips: Vec<Vec<u16>>,
    /// Strip after strip, each of [`Gathered::columns`].
    pub cells: Vec<Cell>,
    /// Those that are kept, in order of time.
    pub singles: Vec<Single>,
    /// All probes there were.
    pub probes: usize,
    /// By how much its times can be off on the common timeline.
    pub bound_ns: i64,
    /// Whether its clock is related to the timeline at all.
    pub is_related: bool,
    /// Latencies of answered probes.
    pub latency: Curve,
    /// Responses of due slots.
    pub response: Curve,
}

/// Share and value.
type Curve = Vec<(f64, Value)>;

/// What a bad sample said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Said {
    /// What became of it.
    pub outcome: Outcome,
    /// The finer kind.
    pub cause: Option<Cause>,
    /// MySQL's number.
    pub code: Option<u16>,
    /// Where it ended.
    pub phase: gapscope_proto::sample::Phase,
    /// Text: index into the run's names.
    pub text: Option<u32>,
}

/// All that a page needs of a run's samples.
#[derive(Debug, Default)]
pub struct Gathered {
    /// Zero of all times, on the run's timeline.
    pub zero_ns: i64,
    /// End of the timeline, after zero.
    pub span_ns: i64,
    /// Columns of each strip.
    pub columns: usize,
    /// One for each row of the analysis, in order of finding.
    pub lanes: Vec<Lane>,
    /// Backends: indexes into the run's names.
    pub backends: Vec<u32>,
    /// What was said, without repetition.
    pub errors: Vec<Said>,
    /// By target and fault.
    pub flows: Flows,
    known_errors: HashMap<Said, u16>,
    max_strips: usize,
    planned_lanes: usize,
    /// Probes a second of all lanes together.
    rate: f64,
    /// Moments of faults, on the timeline.
    moments: Vec<i64>,
}

/// From an agent's clock to ns after zero on the run's timeline.
#[derive(Clone, Copy)]
struct Place<'a> {
    relation: Option<&'a Relation>,
    zero_ns: i64,
    /// Zero by its own clock, where nothing relates it.
    own_zero_ns: i64,
}

impl Place<'_> {
    fn at(&self, ns: i64) -> i64 {
        match self.relation.and_then(|relation| relation.on_timeline(ns)) {
            Some(span) => span
                .earliest_ns
                .midpoint(span.latest_ns)
                .saturating_sub(self.zero_ns),
            None => ns.saturating_sub(self.own_zero_ns),
        }
    }

    fn bound(&self, ns: i64) -> Option<i64> {
        let span = self.relation?.on_timeline(ns)?;
        Some(
            span.latest_ns
                .saturating_sub(span.earliest_ns)
                .saturating_add(1)
                / 2,
        )
    }
}

/// Probes a second.
fn rate(clients: usize, interval_ns: i64) -> f64 {
    clients as f64 * 1e9 / interval_ns.max(1) as f64
}

/// Every moment of a fault that is known.
fn moments_of(fault: &Fault) -> impl Iterator<Item = i64> {
    let seen = [
        fault.listener_refused,
        fault.held_cut,
        fault.gone,
        fault.cleared,
    ];
    seen.into_iter()
        .flatten()
        .chain([fault.asked])
        .flat_map(|span| [span.earliest_ns, span.latest_ns])
}

impl Gathered {
    /// Which columns a stretch of time touches; times outside touch the ends.
    pub fn columns_of(&self, from_ns: i64, to_ns: i64) -> std::ops::RangeInclusive<usize> {
        let last = self.columns.saturating_sub(1);
        let (span, columns) = (self.span_ns.max(1), self.columns as i64);
        let column = |ns: i64| {
            // Of a run of less than days the product fits: this is done for every slot.
            let at = match ns.max(0).checked_mul(columns) {
                Some(product) => i128::from(product / span),
                None => i128::from(ns) * i128::from(columns) / i128::from(span),
            };
            usize::try_from(at).unwrap_or(last).min(last)
        };
        // What ends where the next column begins does not touch that.
        let end = to_ns.saturating_sub(1).max(from_ns);
        column(from_ns)..=column(end)
    }

    fn backend(&mut self, number: u32) -> u8 {
        let known = self.backends.iter().position(|b| *b == number);
        let at = known.unwrap_or_else(|| {
            if self.backends.len() < MAX_BACKENDS {
                self.backends.push(number);
            }
            self.backends.len() - 1
        });
        u8::try_from(at).unwrap_or(SEVERAL_BACKENDS)
    }

    fn error(&mut self, probe: &Probe) -> u16 {
        if probe.outcome == Outcome::Ok {
            return 0;
        }
        let mut said = Said {
            outcome: probe.outcome,
            cause: probe.cause,
            code: probe.error_code,
            phase: probe.phase,
            text: probe.error,
        };
        if self.errors.len() >= MAX_ERRORS && !self.known_errors.contains_key(&said) {
            said.text = None;
            if self.errors.len() >= MAX_ERRORS * 2 && !self.known_errors.contains_key(&said) {
                return 0;
            }
        }
        if let Some(number) = self.known_errors.get(&said) {
            return *number;
        }
        self.errors.push(said);
        let number = u16::try_from(self.errors.len()).unwrap_or(u16::MAX);
        self.known_errors.insert(said, number);
        number
    }

    /// Brings one client's slots into its strip, and the shortest and longest time that
    /// an answer took into `took`, of each column.
    fn fill(
        &mut self,
        cells: &mut [Cell],
        took: &mut [Option<(i64, i64)>],
        place: &Place<'_>,
        client: &ClientSeries,
        deadline: i64,
    ) {
        client.for_each_slot(|slot| {
            let (due, bits, probe) = match slot {
                Slot::Probed(probe) => {
                    let bits = match probe.worth(deadline) {
                        Worth::Good => bit::GOOD,
                        Worth::Late => bit::LATE,
                        Worth::Bad => bit::BAD,
                        Worth::NoData => bit::NO_DATA,
                    };
                    (probe.scheduled, bits, Some(probe))
                }
                Slot::Waited { due_ns, by, .. } => {
                    let bits = match by.worth(deadline) {
                        _ if slot.is_wait_without_data(deadline) => bit::NO_DATA,
                        Worth::Bad => bit::WAITED_IN_VAIN,
                        Worth::NoData => bit::NO_DATA,
                        _ if by.finished.saturating_sub(due_ns) > deadline => bit::WAITED_LONG,
                        _ => bit::WAITED,
                    };
                    (due_ns, bits, None)
                }
                Slot::Overslept { due_ns } | Slot::Absent { due_ns } => {
                    (due_ns, bit::NO_DATA, None)
                }
            };
            let from = place.at(due);
            let backend = probe.and_then(|p| p.backend).map(|b| self.backend(b));
            let columns = self.columns_of(from, from.saturating_add(client.interval_ns));
            let first = *columns.start();
            for cell in &mut cells[columns] {
                if bits == bit::BAD && cell.bits & bit::BAD == 0 {
                    cell.cause = probe.map_or(0, |p| cause_group(p.outcome, p.cause));
                }
                cell.bits |= bits;
                if let Some(backend) = backend {
                    cell.backend = match cell.backend {
                        NO_BACKEND => backend,
                        known if known == backend => known,
                        _ => SEVERAL_BACKENDS,
                    };
                }
            }
            if let Some(probe) = probe {
                let cell = &mut cells[first];
                cell.probed = cell.probed.saturating_add(1);
                if bits & (bit::BAD | bit::LATE) != 0 {
                    cell.bad = cell.bad.saturating_add(1);
                }
                if probe.outcome == Outcome::Ok {
                    let ns = probe.took_ns();
                    let (least, most) = took[first].unwrap_or((ns, ns));
                    took[first] = Some((least.min(ns), most.max(ns)));
                }
            }
        });
    }

    /// The samples of a lane that are kept one by one.
    fn singles(
        &mut self,
        place: &Place<'_>,
        clients: &[ClientSeries],
        strip_of: &HashMap<u16, u16>,
        row: &Row,
        deadline: i64,
    ) -> Vec<Single> {
        let mut moments = self.moments.clone();
        for window in row
            .windows
            .iter()
            .filter(|w| matches!(w.scope, Scope::Client(_)))
        {
            let ends = [window.from_ns, window.first_bad_ns, window.to_ns];
            moments.extend(ends.into_iter().flatten().map(|ns| place.at(ns)));
        }
        moments.sort_unstable();
        moments.dedup();
        let mut after = 0;
        let mut distance = |at: i64| {
            // A client's probes come in order of time.
            if after > 0 && moments[after - 1] >= at {
                after = moments.partition_point(|m| *m < at);
            }
            while moments.get(after).is_some_and(|m| *m < at) {
                after += 1;
            }
            let around = [after.checked_sub(1), Some(after)];
            let nearest = around.into_iter().flatten().filter_map(|i| moments.get(i));
            nearest.map(|m| m.abs_diff(at)).min().unwrap_or(u64::MAX)
        };
        // In proportion to what was due, so that a run of few samples keeps all.
        let share = rate(clients.len(), row.interval_ns) / self.rate;
        let extra = EXTRA_SAMPLES
            .0
            .min(EXTRA_SAMPLES.1 / self.planned_lanes.max(1));
        let most = ((SAMPLES as f64 * share) as usize + extra).max(1);
        let mut ranked: Vec<((bool, u64), usize, usize)> = Vec::new();
        // No further than this one, once there are enough.
        let mut last = None;
        let keep = |ranked: &mut Vec<_>| {
            ranked.select_nth_unstable(most - 1);
            ranked.truncate(most);
            ranked.last().copied()
        };
        for (number, client) in clients.iter().enumerate() {
            for (at, probe) in client.probes.iter().enumerate() {
                let is_good = probe.worth(deadline) == Worth::Good;
                let this = ((is_good, distance(place.at(probe.started))), number, at);
                if last.is_some_and(|last| this > last) {
                    continue;
                }
                ranked.push(this);
                if ranked.len() >= most * 4 {
                    last = keep(&mut ranked);
                }
            }
        }
        if ranked.len() > most {
            keep(&mut ranked);
        }
        let mut kept: Vec<Single> = ranked
            .into_iter()
            .map(|(_, number, at)| {
                let client = &clients[number];
                let probe = &client.probes[at];
                Single {
                    client: client.key.client,
                    strip: strip_of.get(&client.key.client).copied().unwrap_or(0),
                    due_ns: place.at(probe.scheduled),
                    begun_after_ns: probe.started.saturating_sub(probe.scheduled),
                    took_ns: probe.took_ns(),
                    worth: match probe.worth(deadline) {
                        Worth::Good => bit::GOOD,
                        Worth::Late => bit::LATE,
                        Worth::Bad => bit::BAD,
                        Worth::NoData => bit::NO_DATA,
                    },
                    backend: probe.backend.map_or(NO_BACKEND, |b| self.backend(b)),
                    error: self.error(probe),
                    slot: probe.slot,
                    connection: probe.connection.unwrap_or(0),
                    connection_id: probe.connection_id.unwrap_or(0),
                }
            })
            .collect();
        kept.sort_unstable_by_key(|s| (s.due_ns, s.client));
        kept
    }
}

/// Latencies of answered probes and responses of due slots, as curves.
fn curves(clients: &[ClientSeries], deadline: i64) -> (Curve, Curve) {
    let (mut latency, mut response) = (Values::default(), Values::default());
    for client in clients {
        client.for_each_slot(|slot| {
            response.add_response(&slot, deadline);
            if let Slot::Probed(probe) = slot
                && probe.outcome == Outcome::Ok
            {
                latency.answered(probe.took_ns());
            }
        });
    }
    (latency.curve(), response.curve())
}

impl Watch for Gathered {
    fn begin(&mut self, run: &Begun<'_>) {
        let mut begin: Option<i64> = None;
        let mut end: Option<i64> = None;
        let mut lanes = 0usize;
        let mut strips: Vec<usize> = Vec::new();
        let mut shortest = i64::MAX;
        self.rate = 0.0;
        for aligned in run.agents {
            let agent = &aligned.agent;
            for (_, life) in &agent.lives {
                let from = run.clocks.on_timeline(life.origin_ns, &agent.clock);
                let to = run.clocks.on_timeline(life.due_until_ns, &agent.clock);
                if let (Some(from), Some(to)) = (from, to) {
                    begin = Some(begin.map_or(from.earliest_ns, |b| b.min(from.earliest_ns)));
                    end = Some(end.map_or(to.latest_ns, |e| e.max(to.latest_ns)));
                }
            }
            for group in &run.manifest.plan.groups {
                lanes += 1;
                strips.push(usize::from(group.clients));
                let interval = i64::try_from(group.interval_ns).unwrap_or(i64::MAX);
                shortest = shortest.min(interval);
                self.rate += rate(usize::from(group.clients), interval);
            }
        }
        self.zero_ns = begin.unwrap_or(0);
        let planned = i64::try_from(run.manifest.plan.duration_ns).unwrap_or(i64::MAX);
        self.span_ns = end
            .map_or(planned, |end| end.saturating_sub(self.zero_ns))
            .max(1);
        let lanes = lanes.max(1);
        self.planned_lanes = lanes;
        self.max_strips = (STRIPS / lanes).clamp(1, MAX_STRIPS);
        let total: usize = strips.iter().map(|n| (*n).min(self.max_strips)).sum();
        // More than two columns for a slot show nothing new.
        let useful = usize::try_from(self.span_ns / shortest.max(1))
            .unwrap_or(usize::MAX)
            .saturating_mul(2);
        self.columns = (CELLS / total.max(1))
            .min(useful)
            .clamp(COLUMNS.0, COLUMNS.1);
        self.moments = run
            .faults
            .iter()
            .flat_map(|fault| {
                moments_of(fault).filter_map(|ns| {
                    let span = run.clocks.on_timeline(ns, &fault.clock)?;
                    Some(
                        span.earliest_ns
                            .midpoint(span.latest_ns)
                            .saturating_sub(self.zero_ns),
                    )
                })
            })
            .collect();
    }

    fn row(&mut self, run: &Begun<'_>, clock: &ClockKey, clients: &[ClientSeries], row: &Row) {
        let deadline = i64::try_from(run.manifest.plan.deadline_ns).unwrap_or(i64::MAX);
        let place = Place {
            relation: run.clocks.relation(clock),
            zero_ns: self.zero_ns,
            own_zero_ns: row.origin_ns,
        };
        let each = clients.len().div_ceil(self.max_strips.max(1)).max(1);
        let strips: Vec<Vec<u16>> = clients
            .chunks(each)
            .map(|some| some.iter().map(|c| c.key.client).collect())
            .collect();
        let mut cells = vec![EMPTY; strips.len() * self.columns];
        let mut strip_of = HashMap::new();
        let draw = || {
            for (strip, some) in clients.chunks(each).enumerate() {
                let of_strip = &mut cells[strip * self.columns..(strip + 1) * self.columns];
                let mut took = vec![None; self.columns];
                for client in some {
                    strip_of.insert(client.key.client, u16::try_from(strip).unwrap_or(0));
                    self.fill(of_strip, &mut took, &place, client, deadline);
                }
                for (cell, took) in of_strip.iter_mut().zip(took) {
                    if let Some((least, most)) = took {
                        cell.low = log_code(least, false);
                        cell.high = log_code(most, true);
                    }
                }
            }
            let singles = self.singles(&place, clients, &strip_of, row, deadline);
            flow::add(&mut self.flows, clients, row);
            singles
        };
        let is_much = parallel::is_much(clients);
        let (singles, (latency, response)) =
            parallel::both(is_much, draw, || curves(clients, deadline));
        let bounds = run
            .agents
            .iter()
            .filter(|a| &a.agent.clock == clock && a.agent.agent == row.agent)
            .flat_map(|a| &a.agent.lives)
            .flat_map(|(_, life)| [life.origin_ns, life.due_until_ns])
            .map(|ns| place.bound(ns));
        let mut bound_ns = 0;
        let mut is_related = true;
        for bound in bounds {
            is_related &= bound.is_some();
            bound_ns = bound_ns.max(bound.unwrap_or(0));
        }
        self.lanes.push(Lane {
            agent: row.agent.clone(),
            target: row.target.clone(),
            style: row.style,
            kind: row.kind,
            interval_ns: row.interval_ns,
            clients: clients.len(),
            strips,
            cells,
            singles,
            probes: clients.iter().map(|c| c.probes.len()).sum(),
            bound_ns,
            is_related,
            latency,
            response,
        });
    }
}
