//! A whole run: which faults are judged, where they lie on each agent's clock,
//! one row for each agent, target, style and kind, and the books.

use std::collections::{BTreeMap, BTreeSet};

use gapscope_proto::clock::ClockKey;
use gapscope_proto::fault::{Fault, FaultScope, Span};
use gapscope_proto::ids::{AgentId, TargetName};
use gapscope_proto::sample::Cause;

use super::across::{Across, across};
use super::fate::{Exposure, Fate};
use super::fault::{LocalFault, Reach};
use super::ledger::{Class, Ledger, judge};
use super::load::{self, LoadError, Names};
use super::row::{Context, Row, row};
use super::series::{ClientSeries, SlotCounts};
use super::timeline::{Timelines, timelines};
use crate::align::map::ClockMap;
use crate::align::wall::{WallClock, WallError};
use crate::store::manifest::{Manifest, RunState, Schedule};
use crate::store::reader::RunFolder;
use crate::utc::rfc3339;

/// Something to be said against a number, beside the number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Caveat {
    /// Short and stable, for programs.
    pub code: &'static str,
    /// The target it is about; none: the run.
    pub target: Option<TargetName>,
    /// For people.
    pub text: String,
}

impl Caveat {
    /// About the whole run.
    pub(super) fn run(code: &'static str, text: impl Into<String>) -> Self {
        Self {
            code,
            target: None,
            text: text.into(),
        }
    }

    fn target(code: &'static str, target: &TargetName, text: impl Into<String>) -> Self {
        Self {
            code,
            target: Some(target.clone()),
            text: text.into(),
        }
    }
}

/// The books of a run, in slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conservation {
    /// All that were due.
    pub due: u64,
    /// Samples stored.
    pub stored: u64,
    /// Samples declared lost: at least, at most.
    pub lost: (u64, u64),
    /// Samples announced by agents and not here yet.
    pub in_spools: u64,
    /// Some start of an agent never said how it ended: its spool may hold more.
    pub may_hold_more: bool,
    /// Passed while a client waited.
    pub waited: u64,
    /// Passed because an agent was late.
    pub overslept: u64,
    /// Passed without an agent.
    pub absent: u64,
    /// Whether every comparison with the agents' own books came out even.
    pub is_balanced: bool,
}

/// An event of a fault by an agent's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultTimes {
    /// Which fault.
    pub fault: u32,
    /// When it was asked for.
    pub asked: Span,
    /// What witnesses saw: listener refused, held cut, gone, cleared.
    pub seen: [(&'static str, Option<Span>); 4],
}

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

    /// Data is missing, or nothing was tested by any judged fault.
    pub fn is_lossy_or_untested(&self) -> bool {
        if self.conservation.lost.1 > 0 || !self.conservation.is_balanced {
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

/// Analyses a run.
///
/// # Errors
/// When its tables cannot be read.
pub fn analyse(folder: &RunFolder) -> Result<Analysis, LoadError> {
    let manifest = folder.manifest().clone();
    let faults = folder.faults()?;
    let deadline_ns = i64::try_from(manifest.plan.deadline_ns).unwrap_or(i64::MAX);
    let mut names = Names::default();
    let mut caveats = run_caveats(&manifest, folder.notes());
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

    let Timelines {
        agents,
        clocks,
        wall,
        caveats: clock_caveats,
    } = timelines(folder)?;
    caveats.extend(clock_caveats);
    let pauses = load::pauses(folder, deadline_ns)?;

    let mut timelines = Vec::new();
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
        let paused: Vec<(i64, i64)> = clock
            .lives
            .iter()
            .filter_map(|(incarnation, _)| {
                pauses.get(&(clock.agent.to_string(), incarnation.to_string()))
            })
            .flatten()
            .copied()
            .collect();
        let timeline = timelines.len();
        timelines.push(Timeline {
            agent: clock.agent.clone(),
            clock: clock.clock.clone(),
            origin_ns: clock.lives.first().map_or(0, |(_, life)| life.origin_ns),
            faults: times.clone(),
            exchanges: aligned.exchanges,
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
            let clients = load::clients(folder, clock, &target, style, &mut names)?;
            for group in by_kind(&clients) {
                if let Some(row) = row(group, &context) {
                    book.merge(&row.slots.all);
                    if row.is_left_out() {
                        continue;
                    }
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
    for (target, style, client, why) in load::left_out(folder)? {
        let (Ok(target), kind) = (
            target.parse::<TargetName>(),
            target
                .parse()
                .ok()
                .and_then(|target| manifest.plan.kind_of(&target, style, client)),
        ) else {
            continue;
        };
        let kind = kind.map_or(String::new(), |kind| format!(" {kind}"));
        caveats.push(Caveat::target(
            "left_out",
            &target,
            format!("{style}{kind}: not supported there, left out: {why}"),
        ));
    }
    let ledger = judge(load::written(folder)?, load::readings(folder)?);
    ledger_caveats(&ledger, &mut caveats);
    let (conservation, book_caveats) = balance(&manifest, &books, folder)?;
    caveats.extend(book_caveats);
    for (_, row) in &rows {
        row_caveats(row, deadline_ns, &mut caveats);
    }
    few_faults(&faults, &judged_ids, &mut caveats);
    unknown_subjects(&faults, &judged_ids, &rows, &mut names, &mut caveats);
    for (_, row) in &rows {
        for fault in &row.faults {
            let lost = fault.judgement.fates().get(&Fate::Lost).copied();
            if let Some(lost) = lost.filter(|n| *n > 0) {
                let watched = fault.watched_until_ns.saturating_sub(fault.asked.latest_ns);
                caveats.push(Caveat::target(
                    "lost",
                    &row.target,
                    format!(
                        "fault {}: {lost} {} {} clients were not back within the {:.3} s that were \
                         watched after it; that they never come back is not shown",
                        fault.fault,
                        row.style,
                        row.kind,
                        watched as f64 / 1e9
                    ),
                ));
            }
        }
        for fault in row.faults.iter().filter(|fault| fault.without_effect) {
            caveats.push(Caveat::target(
                "no_effect",
                &row.target,
                format!(
                    "fault {} had no effect that was seen: its subject went on answering",
                    fault.fault
                ),
            ));
        }
    }
    let mut seen = BTreeSet::new();
    caveats.retain(|caveat| seen.insert(caveat.clone()));
    Ok(Analysis {
        manifest,
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
        caveats,
    })
}

fn ledger_caveats(ledger: &Ledger, caveats: &mut Vec<Caveat>) {
    if ledger.written.is_empty() {
        return;
    }
    if ledger.readings.is_empty() {
        caveats.push(Caveat::run(
            "ledger_not_read",
            "rows were written and the ledger was never read: what became of them is not known",
        ));
        return;
    }
    for reading in &ledger.readings {
        let mut say = |code, text: String| caveats.push(Caveat::run(code, text));
        if !reading.error.is_empty() {
            say(
                "ledger_not_read",
                format!(
                    "the ledger was not read through {}: {}",
                    reading.source, reading.error
                ),
            );
        }
        if !reading.note.is_empty() {
            say(
                "ledger_table",
                format!("{}: {}", reading.source, reading.note),
            );
        }
    }
    if ledger.readings.iter().all(|reading| !reading.shared) {
        caveats.push(Caveat::run(
            "ledger_not_shared",
            "ledger: the backends are not said to share data, so a row is looked for on the \
             backend that answered in its transaction; whether another one has it is not \
             applicable",
        ));
    }
    for place in &ledger.places {
        let at = format!("{} ({})", place.source, place.backend);
        let mut say = |code, text: String| {
            caveats.push(Caveat::target(code, &place.target, text));
        };
        if place.elsewhere > 0 {
            say(
                "ledger_elsewhere",
                format!(
                    "{} rows that another backend answered for are at {at} too: if the backends \
                     share data, say so to the agent (--backends-share-data)",
                    place.elsewhere
                ),
            );
        }
        if place.strays > 0 {
            say(
                "ledger_strays",
                format!(
                    "{} rows at {at} have no sample: it was lost, or the agent died before it was \
                     kept",
                    place.strays
                ),
            );
        }
        let wrong: Vec<String> = [
            (Class::AcknowledgedLost, "acknowledged and LOST"),
            (Class::ThereTwice, "there more than once"),
            (Class::RefusedThere, "refused and there"),
        ]
        .into_iter()
        .map(|(class, words)| (place.count(class), words))
        .filter(|(count, _)| *count > 0)
        .map(|(count, words)| format!("{count} {words}"))
        .collect();
        if !wrong.is_empty() {
            say(
                "ledger_wrong",
                format!("ledger at {at}: rows {}", wrong.join(", ")),
            );
        }
    }
}

fn targets_of(
    manifest: &Manifest,
    agent: &AgentId,
) -> Vec<(TargetName, gapscope_proto::sample::Style)> {
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

fn fault_times(faults: &[Fault], clocks: &ClockMap, clock: &ClockKey) -> Vec<FaultTimes> {
    faults
        .iter()
        .filter_map(|fault| {
            let there = |span: Span| clocks.translate(span, &fault.clock, clock);
            Some(FaultTimes {
                fault: fault.id,
                asked: there(fault.asked)?,
                seen: [
                    ("listener refused", fault.listener_refused.and_then(there)),
                    ("held connection cut", fault.held_cut.and_then(there)),
                    ("gone", fault.gone.and_then(there)),
                    ("cleared", fault.cleared.and_then(there)),
                ],
            })
        })
        .collect()
}

fn local_faults(
    faults: &[Fault],
    judged: &BTreeSet<u32>,
    times: &[FaultTimes],
    manifest: &Manifest,
    target: &TargetName,
    names: &mut Names,
) -> Vec<LocalFault> {
    let is_target = |name: &str| {
        manifest
            .plan
            .groups
            .iter()
            .any(|g| g.target.as_str() == name)
    };
    let mut local: Vec<LocalFault> = faults
        .iter()
        .filter(|fault| judged.contains(&fault.id))
        .filter_map(|fault| {
            let asked = times.iter().find(|t| t.fault == fault.id)?.asked;
            let subject = fault.identity.as_deref().map(|id| names.number(id));
            let reach = match fault.scope {
                FaultScope::Backend | FaultScope::Mark => Reach::ServedBy(subject),
                // Another proxy's restart does not test this one.
                FaultScope::Proxy | FaultScope::Dns
                    if is_target(&fault.subject) && fault.subject != target.as_str() =>
                {
                    Reach::Nobody
                }
                FaultScope::Proxy | FaultScope::Dns | FaultScope::Failback => Reach::All,
            };
            Some(LocalFault {
                id: fault.id,
                asked,
                until_ns: i64::MAX,
                reach,
                subject,
                is_drain: fault.step == "drain",
                is_lasting: matches!(fault.scope, FaultScope::Backend | FaultScope::Mark)
                    && fault.step != "drain"
                    && fault.cleared.is_none(),
            })
        })
        .collect();
    local.sort_by_key(|fault| (fault.asked.earliest_ns, fault.id));
    for at in 0..local.len() {
        let begin = local[at].asked.earliest_ns;
        local[at].until_ns = local[at + 1..]
            .iter()
            .map(|next| next.asked.earliest_ns)
            .find(|next| *next > begin)
            .unwrap_or(i64::MAX);
    }
    local
}

/// Compares what was found with what the agents counted themselves.
fn balance(
    manifest: &Manifest,
    found: &BTreeMap<AgentId, SlotCounts>,
    folder: &RunFolder,
) -> Result<(Conservation, Vec<Caveat>), LoadError> {
    let mut caveats = Vec::new();
    let mut books = Conservation {
        lost: folder.samples_lost()?,
        is_balanced: false,
        ..Conservation::default()
    };
    for slots in found.values() {
        books.due += slots.due;
        books.stored += slots.probed;
        books.waited += slots.waited;
        books.overslept += slots.overslept;
        books.absent += slots.absent;
    }
    for entry in manifest.agents.iter().flat_map(|a| &a.incarnations) {
        books.may_hold_more |= entry.started.is_some() && entry.ended.is_none();
        books.in_spools += entry
            .samples_announced
            .saturating_sub(entry.samples_committed);
    }
    // Slots whose samples did not arrive look like overslept or absent ones.
    let mut missing = books.lost.0 + books.in_spools;
    let from_overslept = missing.min(books.overslept);
    books.overslept -= from_overslept;
    missing -= from_overslept;
    books.absent -= missing.min(books.absent);

    let mut uneven: Vec<String> = Vec::new();
    if books.stored != folder.samples_stored() {
        uneven.push(format!(
            "THE BOOKS DO NOT BALANCE: {} samples are stored, {} belong to clients of the plan",
            folder.samples_stored(),
            books.stored
        ));
    }
    let stood_for = books.stored
        + books.lost.0
        + books.in_spools
        + books.waited
        + books.overslept
        + books.absent;
    if stood_for != books.due {
        uneven.push(format!(
            "THE BOOKS DO NOT BALANCE: {} slots were due, {stood_for} are accounted for",
            books.due
        ));
    }
    for (agent, slots) in found {
        let Some(entry) = manifest.agents.iter().find(|a| &a.agent_id == agent) else {
            continue;
        };
        let started: Vec<_> = entry
            .incarnations
            .iter()
            .filter(|i| i.started.is_some())
            .collect();
        let ended: Vec<_> = started.iter().filter_map(|i| i.ended.as_ref()).collect();
        if ended.len() != started.len() {
            continue;
        }
        let own = |pick: fn(&gapscope_proto::host::ProbingEnded) -> u64| {
            ended.iter().map(|e| pick(e)).sum::<u64>()
        };
        let arrived_all = books.lost.1 == 0 && books.in_spools == 0;
        let mut compare = |what: &str, here: u64, there: u64| {
            if here != there {
                uneven.push(format!(
                    "THE BOOKS DO NOT BALANCE: agent {agent} counted {there} slots {what}, \
                     from the samples it is {here}"
                ));
            }
        };
        if arrived_all {
            compare("sampled", slots.probed, own(|e| e.sampled));
        }
        if started.len() > 1 {
            // Where one start's part of the schedule ends and the next one's
            // begins is known to the agent only.
            continue;
        }
        compare("due", slots.due - slots.absent, own(|e| e.due));
        if arrived_all {
            compare(
                "waited or overslept",
                slots.waited + slots.overslept,
                own(|e| e.waited + e.overslept),
            );
            let overslept = own(|e| e.overslept);
            if overslept != slots.overslept {
                caveats.push(Caveat::run(
                    "books_split",
                    format!(
                        "agent {agent} counted {overslept} slots overslept, by the samples it is \
                         {}: they fell between an answer and the agent's next look at the clock; \
                         they count as no data",
                        slots.overslept
                    ),
                ));
            }
        }
    }
    books.is_balanced = uneven.is_empty();
    caveats.extend(uneven.into_iter().map(|text| Caveat::run("books", text)));
    if books.lost.1 > 0 {
        caveats.push(Caveat::run(
            "lost",
            if books.lost.0 == books.lost.1 {
                format!("{} samples are lost", books.lost.1)
            } else {
                format!("{} to {} samples are lost", books.lost.0, books.lost.1)
            },
        ));
    }
    if books.may_hold_more {
        caveats.push(Caveat::run(
            "in_spools",
            "an agent did not say how its probing ended: its spool may hold more samples",
        ));
    }
    if books.in_spools > 0 {
        caveats.push(Caveat::run(
            "in_spools",
            format!("{} samples are still in agents' spools", books.in_spools),
        ));
    }
    Ok((books, caveats))
}

fn run_caveats(manifest: &Manifest, notes: &[String]) -> Vec<Caveat> {
    let mut caveats = Vec::new();
    match manifest.state {
        RunState::Closed => {}
        RunState::Running => caveats.push(Caveat::run(
            "running",
            "the run has not ended: these are the results so far",
        )),
        RunState::Interrupted => caveats.push(Caveat::run(
            "interrupted",
            "the run was not closed in an orderly way: what is here is valid, more may be missing",
        )),
    }
    caveats.extend(
        notes
            .iter()
            .map(|note| Caveat::run("unreadable", note.clone())),
    );
    caveats.extend(
        manifest
            .caveats
            .iter()
            .map(|text| Caveat::run("recorded", text.clone())),
    );
    if manifest.schedule == Schedule::Reconstructed {
        caveats.push(Caveat::run(
            "not_open_loop",
            "the schedule was not open-loop: the probe waited for each answer before the next \
             pause; due slots are reconstructed",
        ));
    }
    if manifest
        .plan
        .identity
        .as_deref()
        .is_some_and(|identity| identity.contains("@@"))
    {
        caveats.push(Caveat::run(
            "probe_uses_variables",
            "the probe uses @@: behind ProxySQL it pins the session to one server",
        ));
    }
    for (at, one) in manifest.subjects.iter().enumerate() {
        for other in &manifest.subjects[at + 1..] {
            if one.identity.is_some() && one.identity == other.identity {
                caveats.push(Caveat::run(
                    "equal_identities",
                    format!(
                        "{} and {} answer the same identity ({}): who served a client cannot be \
                         told, so exposure and switches mean nothing here; give an identity \
                         expression that tells them apart",
                        one.name,
                        other.name,
                        one.identity.as_deref().unwrap_or_default()
                    ),
                ));
            }
        }
    }
    caveats
}

/// Faults whose subject never answered anybody: a spare one, or a wrong identity.
fn unknown_subjects(
    faults: &[Fault],
    judged: &BTreeSet<u32>,
    rows: &[(usize, Row)],
    names: &mut Names,
    caveats: &mut Vec<Caveat>,
) {
    let answered: BTreeSet<u32> = rows
        .iter()
        .flat_map(|(_, row)| row.changes.all_backends.iter().copied())
        .collect();
    for fault in faults.iter().filter(|fault| judged.contains(&fault.id)) {
        let Some(identity) = &fault.identity else {
            continue;
        };
        if answered.is_empty() || answered.contains(&names.number(identity)) {
            continue;
        }
        let seen: Vec<&str> = answered.iter().map(|number| names.word(*number)).collect();
        caveats.push(Caveat::run(
            "subject_never_answered",
            format!(
                "fault {}: `{identity}` answered nobody in this run (answers came from {}): if \
                 that is not how the subject answers, what is said of this fault is wrong",
                fault.id,
                seen.join(", ")
            ),
        ));
    }
}

fn row_caveats(row: &Row, deadline_ns: i64, caveats: &mut Vec<Caveat>) {
    let who = format!("{} {}", row.style, row.kind);
    let mut say = |code, text: String| caveats.push(Caveat::target(code, &row.target, text));
    let ms = |ns: i64| format!("{} ms", ns as f64 / 1e6);
    if row.interval_ns > deadline_ns {
        say(
            "resolution",
            format!(
                "{who}: one probe each {}: an outage shorter than that can pass unseen",
                ms(row.interval_ns)
            ),
        );
    }
    if let Some(p99) = row.latency.healthy.p99 {
        if deadline_ns < p99.ns.saturating_mul(3) {
            say(
                "deadline_near_latency",
                format!(
                    "{who}: the deadline ({}) is under three times the healthy p99 ({:.1} ms): \
                     ordinary slowness counts as late",
                    ms(deadline_ns),
                    p99.ns as f64 / 1e6
                ),
            );
        }
        if row.interval_ns < p99.ns.saturating_mul(3) {
            say(
                "interval_near_latency",
                format!(
                    "{who}: the interval ({}) is under three times the healthy p99 ({:.1} ms): \
                     availability depends on how often was asked",
                    ms(row.interval_ns),
                    p99.ns as f64 / 1e6
                ),
            );
        }
    }
    let slots = &row.slots.all;
    if slots.overslept + slots.absent > 0 {
        say(
            "no_data",
            format!(
                "{who}: {} of {} slots hold no data (agent late: {}, no agent: {}): neither up \
                 nor down",
                slots.overslept + slots.absent,
                slots.due,
                slots.overslept,
                slots.absent
            ),
        );
    }
    let unsupported: u64 = row
        .errors
        .iter()
        .filter(|((_, cause, _), _)| *cause == Some(Cause::Unsupported))
        .map(|(_, error)| error.count)
        .sum();
    if slots.agent_errors > unsupported {
        say(
            "agent_errors",
            format!(
                "{who}: {} probes failed on the agent's own side: no data",
                slots.agent_errors - unsupported
            ),
        );
    }
    if row.windows.iter().any(|w| w.no_data) {
        say(
            "window_no_data",
            format!("{who}: some outages hold time without data (marked ?)"),
        );
    }
    if row.healthy_backends_a_client > 1 {
        say(
            "balanced",
            format!(
                "{who}: while healthy one client was answered by up to {} backends: statements \
                 are balanced or multiplexed, and backend switches are ordinary",
                row.healthy_backends_a_client
            ),
        );
    }
    if slots.ok > 0 && row.changes.all_backends.is_empty() {
        say(
            "no_identity",
            format!("{who}: no answer says which backend gave it: exposure cannot be told"),
        );
    }
    for fault in &row.faults {
        let unmeasured = fault.judgement.exposed(Exposure::Unmeasured);
        if unmeasured > 0 {
            say(
                "unmeasured",
                format!(
                    "{who}: fault {}: {unmeasured} of {} clients had no answer just before it, or \
                     no probe after it: nothing is said of them",
                    fault.fault, row.clients
                ),
            );
        }
        let width = fault
            .asked
            .latest_ns
            .saturating_sub(fault.asked.earliest_ns);
        if width > deadline_ns {
            say(
                "fault_time_uncertain",
                format!(
                    "{who}: when fault {} was asked for is known to {:.1} ms only",
                    fault.fault,
                    width as f64 / 1e6
                ),
            );
        }
        if fault.judgement.collateral > 0 {
            say(
                "collateral",
                format!(
                    "{who}: fault {}: {} clients that were not served by the subject were hurt",
                    fault.fault, fault.judgement.collateral
                ),
            );
        }
    }
}

fn few_faults(faults: &[Fault], judged: &BTreeSet<u32>, caveats: &mut Vec<Caveat>) {
    let mut steps: BTreeMap<&str, usize> = BTreeMap::new();
    for fault in faults.iter().filter(|f| judged.contains(&f.id)) {
        *steps.entry(fault.step.as_str()).or_insert(0) += 1;
    }
    let single: Vec<&str> = steps
        .iter()
        .filter(|(_, n)| **n == 1)
        .map(|(step, _)| *step)
        .collect();
    if !single.is_empty() {
        caveats.push(Caveat::run(
            "one_fault",
            format!(
                "one fault of its kind ({}): it cannot tell luck from behaviour",
                single.join(", ")
            ),
        ));
    }
}
