//! A whole run: which faults are judged, where they lie on each agent's clock,
//! one row for each agent, target, style and kind, and the books.

use std::collections::{BTreeMap, BTreeSet};

use gapscope_proto::clock::ClockKey;
use gapscope_proto::fault::{Fault, FaultScope};
use gapscope_proto::ids::{AgentId, TargetName};
use gapscope_proto::sample::Style;

use super::across::{Across, across};
use super::beside::{self, AllTraffic, Beside};
pub use super::books::Conservation;
use super::books::balance;
pub use super::caveat::Caveat;
use super::caveat::{
    fault_caveats, few_faults, ledger_caveats, left_out_caveats, row_caveats, run_caveats,
    unknown_subjects,
};
use super::clients::{self, Of};
use super::control;
use super::ledger::{Ledger, judge};
use super::ledger_tables::{readings, written};
use super::load::{self, LoadError, Names};
pub use super::local::{FaultTimes, PROXY_VIEW, RESET, is_note};
use super::local::{fault_times, local_faults};
use super::parallel;
use super::row::{Context, Row, row};
use super::series::{ClientSeries, SlotCounts};
use super::still::StoodStill;
use super::timeline::{Aligned, Timelines, timelines};
use crate::align::map::ClockMap;
use crate::align::wall::{WallClock, WallError};
use crate::store::manifest::Manifest;
use crate::store::reader::{RunFolder, Standing};
use crate::utc::rfc3339;

/// An agent's clock with what it needs to tell times.
#[derive(Debug, Clone)]
pub struct Timeline {
    /// Which agent.
    pub agent: AgentId,
    /// Which clock.
    pub clock: ClockKey,
    /// Zero of the times that are printed.
    pub origin_ns: i64,
    /// Every fault that can be related to this clock.
    pub faults: Vec<FaultTimes>,
    /// Clock exchanges with the aggregator.
    pub exchanges: usize,
    /// When each was begun and how long it took there and back, in ns.
    pub round_trips: Vec<(i64, i64)>,
    /// By how much the host's wall clock is off, if by more than the bounds.
    pub wall_error: Option<WallError>,
    /// When the agent was there, by its clock.
    pub watched: Vec<(i64, i64)>,
}

/// A run, analysed.
#[derive(Debug)]
pub struct Analysis {
    /// What the run is.
    pub manifest: Manifest,
    /// Where it stands.
    pub standing: Standing,
    /// Every fault and mark.
    pub faults: Vec<Fault>,
    /// Ids of the faults that are judged.
    pub judged: BTreeSet<u32>,
    /// Names of backends.
    pub names: Names,
    /// The agents' clocks.
    pub timelines: Vec<Timeline>,
    /// One for each agent, target, style and kind, with its timeline.
    pub rows: Vec<(usize, Row)>,
    /// How the clocks relate.
    pub clocks: ClockMap,
    /// The run's timeline in UTC.
    pub wall: WallClock,
    /// What several agents saw of one target.
    pub across: Vec<Across>,
    /// The books.
    pub conservation: Conservation,
    /// What became of the rows that were written.
    pub ledger: Ledger,
    /// What is known beside the probes.
    pub beside: Beside,
    /// What is to be said against all this.
    pub caveats: Vec<Caveat>,
}

impl Analysis {
    /// Several agents, or one that does not share the aggregator's clock.
    pub fn has_several_clocks(&self) -> bool {
        self.timelines.len() > 1
            || self
                .timelines
                .iter()
                .any(|t| t.clock != self.manifest.clock)
    }

    /// When a fault was asked for, in UTC by the aggregator's wall clock: a label.
    pub fn asked_utc(&self, fault: &Fault) -> Option<String> {
        let asked = self
            .clocks
            .on_timeline(fault.asked.earliest_ns, &fault.clock)?;
        let (least, most) = self.wall.utc_ns(asked.earliest_ns)?;
        Some(rfc3339(least.midpoint(most)))
    }

    /// Why it is not known what was done, if it is not: the file of faults cannot be
    /// read, or holds nothing although steps were planned.
    pub fn faults_unknown(&self) -> Option<&'static str> {
        let is_unreadable = self
            .caveats
            .iter()
            .any(|caveat| caveat.code == "unreadable" && caveat.text.contains("faults.parquet"));
        let is_planned = self
            .manifest
            .labels
            .keys()
            .any(|key| key.starts_with("step."));
        match (is_unreadable, self.faults.is_empty()) {
            (true, _) => Some("what was done is not known, its file cannot be read"),
            (false, true) if is_planned && self.standing != Standing::Running => {
                Some("no fault is in the run, although steps were planned")
            }
            _ => None,
        }
    }

    /// How long after its begin something was last recorded of a run that was left: its
    /// books end there, however much was planned.
    pub fn left_after_ns(&self) -> Option<i64> {
        if self.standing != Standing::Abandoned {
            return None;
        }
        let last = |t: &Timeline| {
            let until = t.watched.iter().map(|(_, until)| *until).max();
            until.map_or(0, |until| until.saturating_sub(t.origin_ns))
        };
        let planned = i64::try_from(self.manifest.plan.duration_ns).unwrap_or(i64::MAX);
        let left = self.timelines.iter().map(last).max().unwrap_or(0);
        (left < planned).then_some(left)
    }

    /// The run is over, and not all that its agents measured is here.
    pub fn is_incomplete(&self) -> bool {
        let books = &self.conservation;
        self.standing != Standing::Running && (books.may_hold_more || books.in_spools > 0)
    }

    /// Data is missing or damaged, agents may hold more of a run that is over, or
    /// nothing was tested by any judged fault.
    pub fn is_lossy_or_untested(&self) -> bool {
        let books = &self.conservation;
        let says_so = |caveat: &Caveat| matches!(caveat.code, "agent_never_began" | "unreadable");
        if books.lost.1 > 0
            || !books.is_balanced
            || self.is_incomplete()
            || self.caveats.iter().any(says_so)
        {
            return true;
        }
        let mut verdicts = self
            .rows
            .iter()
            .flat_map(|(_, row)| &row.faults)
            .map(|fault| fault.judgement.verdict)
            .peekable();
        verdicts.peek().is_some() && !verdicts.any(|verdict| verdict.is_tested())
    }
}

/// Whether a fault is judged, or why not.
fn judged(fault: &Fault) -> Result<(), &'static str> {
    match fault.scope {
        FaultScope::Backend if fault.identity.is_none() => {
            Err("the identity of its subject is not known")
        }
        FaultScope::Mark if fault.identity.is_none() => Err("a mark without a subject"),
        _ => Ok(()),
    }
}

/// What is known of a run before its samples are looked at.
#[derive(Debug, Clone, Copy)]
pub struct Begun<'a> {
    /// What the run is.
    pub manifest: &'a Manifest,
    /// Every fault and mark.
    pub faults: &'a [Fault],
    /// The agents and their clocks.
    pub agents: &'a [Aligned],
    /// How the clocks relate.
    pub clocks: &'a ClockMap,
}

/// Looks at the clients' histories while they are in memory: one row's at a time.
pub trait Watch {
    /// Before the first row.
    fn begin(&mut self, run: &Begun<'_>);
    /// A row and the clients it is made of; `clock` is that of its times.
    fn row(&mut self, run: &Begun<'_>, clock: &ClockKey, clients: &[ClientSeries], row: &Row);
}

/// Does not look.
struct Unwatched;

impl Watch for Unwatched {
    fn begin(&mut self, _: &Begun<'_>) {}
    fn row(&mut self, _: &Begun<'_>, _: &ClockKey, _: &[ClientSeries], _: &Row) {}
}

/// Analyses a run.
///
/// # Errors
/// When its tables cannot be read.
pub fn analyse(folder: &RunFolder) -> Result<Analysis, LoadError> {
    analyse_watched(folder, &mut Unwatched)
}

/// Analyses a run, and shows each row with its clients to `watch`.
///
/// # Errors
/// When its tables cannot be read.
pub fn analyse_watched(folder: &RunFolder, watch: &mut impl Watch) -> Result<Analysis, LoadError> {
    let manifest = folder.manifest().clone();
    let faults = folder.faults()?;
    let deadline_ns = i64::try_from(manifest.plan.deadline_ns).unwrap_or(i64::MAX);
    let mut names = Names::default();
    let standing = folder.standing();
    let mut caveats = run_caveats(&manifest, standing, folder.notes());
    let judged_ids: BTreeSet<u32> = faults
        .iter()
        .filter_map(|fault| match judged(fault) {
            Ok(()) => Some(fault.id),
            Err(why) => {
                if fault.scope != FaultScope::Mark {
                    caveats.push(Caveat::run(
                        "fault_not_judged",
                        format!("fault {} ({}) is not judged: {why}", fault.id, fault.step),
                    ));
                }
                None
            }
        })
        .collect();

    let blocks = folder.blocks(clients::COLUMNS)?;
    let Timelines {
        agents,
        clocks,
        wall,
        caveats: clock_caveats,
    } = timelines(folder, &blocks)?;
    caveats.extend(clock_caveats);
    let pauses = load::pauses(folder)?;
    let controls = control::controls(folder, deadline_ns)?;
    let mut troubled = load::Pauses::new();
    control::add_pauses(&mut troubled, &controls);
    let begun = Begun {
        manifest: &manifest,
        faults: &faults,
        agents: &agents,
        clocks: &clocks,
    };
    watch.begin(&begun);

    let mut timelines = Vec::new();
    let mut traffic = AllTraffic::default();
    let mut left_out = BTreeMap::new();
    let mut rows = Vec::new();
    let mut books = BTreeMap::new();
    for aligned in &agents {
        let clock = &aligned.agent;
        let times = fault_times(&faults, &clocks, &clock.clock);
        for fault in &faults {
            if !times.iter().any(|t| t.fault == fault.id) {
                caveats.push(Caveat::run(
                    "clock",
                    format!(
                        "fault {} ({}) cannot be related to the clock of agent {}: no clock \
                         exchange connects them; it is not judged there",
                        fault.id, fault.step, clock.agent
                    ),
                ));
            }
        }
        let first_fault_ns = faults
            .iter()
            .filter(|f| f.scope != FaultScope::Mark || judged_ids.contains(&f.id))
            .filter_map(|f| times.iter().find(|t| t.fault == f.id))
            .map(|t| t.asked.earliest_ns)
            .min()
            .unwrap_or(i64::MAX);
        let of_agent = |pauses: &load::Pauses| -> Vec<(i64, i64)> {
            clock
                .lives
                .iter()
                .filter_map(|(incarnation, _)| {
                    pauses.get(&(clock.agent.to_string(), incarnation.to_string()))
                })
                .flatten()
                .copied()
                .collect()
        };
        let stood = of_agent(&pauses);
        let still = StoodStill::new(stood.clone());
        let paused: Vec<(i64, i64)> = stood
            .into_iter()
            .filter(|(from, to)| to.saturating_sub(*from) > deadline_ns)
            .chain(of_agent(&troubled))
            .collect();
        let longest = paused
            .iter()
            .map(|(from, to)| to.saturating_sub(*from))
            .max();
        if let Some(longest) = longest.filter(|longest| *longest > deadline_ns) {
            caveats.push(Caveat::run(
                "agent_stood_still",
                format!(
                    "agent {} itself stood still for up to {:.3} s: probes that were out then and \
                     would have been in time without it count as no data; a gap that holds such a \
                     time need not be the target's doing",
                    clock.agent,
                    longest as f64 / 1e9
                ),
            ));
        }
        let asked: Vec<i64> = times.iter().map(|t| t.asked.earliest_ns).collect();
        let horizons: Vec<(u32, i64, i64)> = times
            .iter()
            .map(|t| {
                let from = t.asked.earliest_ns;
                let next = asked.iter().copied().filter(|at| *at > from).min();
                (t.fault, from, next.unwrap_or(i64::MAX))
            })
            .collect();
        for (incarnation, life) in &clock.lives {
            let start = (clock.agent.to_string(), incarnation.to_string());
            if let Some(by_name) = controls.get(&start) {
                caveats.extend(control::caveats(
                    clock.agent.as_str(),
                    life.origin_ns,
                    by_name,
                    &horizons,
                ));
            }
        }
        let timeline = timelines.len();
        timelines.push(Timeline {
            agent: clock.agent.clone(),
            clock: clock.clock.clone(),
            origin_ns: clock.lives.first().map_or(0, |(_, life)| life.origin_ns),
            faults: times.clone(),
            exchanges: aligned.exchanges,
            round_trips: aligned.round_trips.clone(),
            wall_error: aligned.wall_error,
            watched: clock
                .lives
                .iter()
                .map(|(_, life)| (life.due_from_ns, life.alive_until_ns))
                .collect(),
        });
        let book: &mut SlotCounts = books.entry(clock.agent.clone()).or_default();
        for (target, style) in targets_of(&manifest, &clock.agent) {
            let local = local_faults(&faults, &judged_ids, &times, &manifest, &target, &mut names);
            let context = Context {
                deadline_ns,
                first_fault_ns,
                faults: &local,
                pauses: &paused,
            };
            let of = Of {
                clock,
                target: &target,
                style,
            };
            let mut seen = traffic.of(timeline, target.as_str(), style);
            let mut clients = clients::clients(&manifest, &blocks, of, &mut names, &mut seen)?;
            seen.end(&manifest.plan.groups, &names);
            parallel::each_mut(&mut clients, |client| client.stood_still(&still));
            for group in by_kind(&clients) {
                if let Some(row) = row(group, &context) {
                    book.merge(&row.slots.all);
                    if row.has_unsupported() {
                        for (target, style, client, why) in clients::left_out(group, &names) {
                            left_out.entry((target, style, client)).or_insert(why);
                        }
                    }
                    if row.is_left_out() {
                        continue;
                    }
                    watch.row(&begun, &clock.clock, group, &row);
                    rows.push((timeline, row));
                }
            }
        }
    }
    rows.sort_by(|(_, a), (_, b)| {
        let place = |row: &Row| {
            manifest
                .plan
                .groups
                .iter()
                .position(|g| g.target == row.target)
        };
        (place(a), a.style, a.kind, a.interval_ns, &a.agent).cmp(&(
            place(b),
            b.style,
            b.kind,
            b.interval_ns,
            &b.agent,
        ))
    });
    let across = across(&rows, &timelines, &clocks);
    left_out_caveats(&manifest, &left_out, &mut caveats);
    let ledger = judge(written(folder)?, readings(folder)?);
    ledger_caveats(&ledger, &mut caveats);
    let beside = beside::beside(folder, &agents, traffic)?;
    caveats.extend(beside::caveats(&beside, &manifest));
    let (conservation, book_caveats) = balance(&manifest, &books, folder)?;
    caveats.extend(book_caveats);
    let all_arrived =
        conservation.lost.1 == 0 && conservation.in_spools == 0 && !conservation.may_hold_more;
    for (_, row) in &rows {
        row_caveats(row, deadline_ns, all_arrived, &mut caveats);
    }
    few_faults(&faults, &judged_ids, &mut caveats);
    unknown_subjects(&faults, &judged_ids, &rows, &mut names, &mut caveats);
    for (_, row) in &rows {
        fault_caveats(row, &mut caveats);
    }
    let mut seen = BTreeSet::new();
    caveats.retain(|caveat| seen.insert(caveat.clone()));
    Ok(Analysis {
        manifest,
        standing,
        faults,
        judged: judged_ids,
        names,
        timelines,
        rows,
        clocks,
        wall,
        across,
        conservation,
        ledger,
        beside,
        caveats,
    })
}

fn targets_of(manifest: &Manifest, agent: &AgentId) -> Vec<(TargetName, Style)> {
    let offered = manifest
        .agents
        .iter()
        .find(|a| &a.agent_id == agent)
        .map(|a| a.targets.as_slice())
        .unwrap_or_default();
    let mut found = Vec::new();
    for group in &manifest.plan.groups {
        let key = (group.target.clone(), group.style);
        let probes_it = offered.is_empty() || offered.iter().any(|t| t.name == group.target);
        if probes_it && !found.contains(&key) {
            found.push(key);
        }
    }
    found
}

/// Runs of clients of one kind and interval: the groups of the plan.
fn by_kind(clients: &[ClientSeries]) -> impl Iterator<Item = &[ClientSeries]> {
    clients.chunk_by(|a, b| {
        a.kind == b.kind && a.interval_ns == b.interval_ns && a.timeouts == b.timeouts
    })
}
