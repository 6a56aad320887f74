//! What a report says, in words, before anything is laid out.

use std::collections::BTreeMap;

use gapscope_proto::fault::{Fault, FaultScope};
use gapscope_proto::ids::TargetName;
use gapscope_proto::plan::ClientKind;

use super::figures::{
    NONE, after, bare_seconds, count, gap, interval, percent, quantile, seconds, short,
};
use super::kinds::{client_words, measuring, short_client_words};
use super::table::Table;
use super::{across, clock, kinds, ledger};
use crate::analyse::fate::{Exposure, Fate};
use crate::analyse::latency::Quantiles;
use crate::analyse::row::{FaultRow, Row, Scope, longest_key};
use crate::analyse::run::{Analysis, Caveat, Timeline};
use crate::analyse::verdict::Verdict;
use crate::store::manifest::RunState;

/// How bad something is, for colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Nothing was felt.
    Good,
    /// Something was felt, or nothing was tested.
    Warning,
    /// Clients were broken.
    Bad,
    /// Neither.
    Plain,
}

/// One line that says it all for a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headline {
    /// The target.
    pub target: String,
    /// The verdict, with the deadline where it matters.
    pub verdict: String,
    /// The verdict's word alone.
    pub word: String,
    /// How bad.
    pub tone: Tone,
    /// What the clients felt.
    pub gap: String,
    /// Of that, their own timeouts.
    pub own_timeout: String,
    /// What lies between two probes of a client.
    pub resolution: String,
    /// The same in seconds, without the unit.
    pub resolution_s: String,
    /// Counts by fate and exposure.
    pub clients: String,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// After the agent's begin, in ns; for order.
    pub at_ns: i64,
    /// After the agent's begin.
    pub at: String,
    /// After the fault was asked for; empty before the first.
    pub after_fault: String,
    /// Which clients; empty: all the same.
    pub who: Vec<String>,
    /// What.
    pub what: String,
}

impl Event {
    /// Who and what.
    pub fn text(&self) -> String {
        if self.who.is_empty() {
            self.what.clone()
        } else {
            format!("{}: {}", self.who.join(", "), self.what)
        }
    }
}

/// What happened to several kinds of clients at one time is one event.
fn joined(events: Vec<Event>) -> Vec<Event> {
    let mut joined: Vec<Event> = Vec::new();
    for event in events {
        let same = joined
            .iter_mut()
            .rev()
            .take_while(|e| e.at == event.at)
            .find(|e| e.what == event.what && e.after_fault == event.after_fault);
        match same {
            Some(known) => known.who.extend(event.who),
            None => joined.push(event),
        }
    }
    joined
}

/// All about one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The target.
    pub target: String,
    /// Its address as the agent knows it.
    pub address: String,
    /// What happened.
    pub events: Vec<Event>,
    /// What went wrong.
    pub errors: Table,
    /// What is to be said against its numbers.
    pub caveats: Vec<String>,
}

/// The whole report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Run and scenario.
    pub title: String,
    /// Facts about the run.
    pub facts: Vec<String>,
    /// The deadline, as text.
    pub deadline: String,
    /// One for each target.
    pub headlines: Vec<Headline>,
    /// Main table, latencies, faults.
    pub tables: Vec<Table>,
    /// What the tables' words mean.
    pub method: Vec<String>,
    /// One for each target.
    pub sections: Vec<Section>,
    /// The books in one sentence.
    pub books: String,
    /// Whether they balance.
    pub books_balance: bool,
    /// What is to be said against the run.
    pub caveats: Vec<String>,
}

/// Puts an analysis in words.
pub fn report(analysis: &Analysis) -> Report {
    let manifest = &analysis.manifest;
    let plan = &manifest.plan;
    let deadline = short(i64::try_from(plan.deadline_ns).unwrap_or(i64::MAX));
    let mut targets: Vec<&TargetName> = Vec::new();
    for group in &plan.groups {
        if !targets.contains(&&group.target) {
            targets.push(&group.target);
        }
    }
    let state = match manifest.state {
        RunState::Running => "still running".to_owned(),
        RunState::Closed => manifest
            .end_reason
            .clone()
            .unwrap_or_else(|| "closed".to_owned()),
        RunState::Interrupted => format!(
            "interrupted{}",
            manifest
                .end_reason
                .as_deref()
                .map_or(String::new(), |why| format!(": {why}"))
        ),
    };
    let mut facts = vec![
        format!(
            "began {}, {} planned, ended: {state}",
            manifest.created_utc,
            short(i64::try_from(plan.duration_ns).unwrap_or(i64::MAX))
        ),
        format!("an answer counts up to {deadline} after its probe's begin"),
    ];
    for fault in &analysis.faults {
        facts.push(fault_fact(analysis, fault));
    }
    if !manifest.labels.is_empty() {
        let labels: Vec<String> = manifest
            .labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        facts.push(labels.join(", "));
    }
    let rows: Vec<&Row> = analysis.rows.iter().map(|(_, row)| row).collect();
    Report {
        title: format!("run {}  {}", manifest.run_id, plan.scenario),
        facts,
        deadline: deadline.clone(),
        headlines: targets
            .iter()
            .map(|target| headline(analysis, target, &deadline))
            .collect(),
        tables: vec![
            main_table(analysis),
            fault_table(analysis, &deadline),
            kinds::hurt_table(&rows),
            ledger::table(&analysis.ledger, analysis.timelines.len() > 1),
            kinds::idle_table(&rows),
            kinds::pool_table(&rows),
            latency_table(analysis),
            across::table(analysis),
            clock_table(analysis),
        ]
        .into_iter()
        .filter(|table| !table.rows.is_empty())
        .collect(),
        method: method(analysis, &deadline),
        sections: targets
            .iter()
            .map(|target| section(analysis, &targets, target))
            .collect(),
        books: books(analysis),
        books_balance: analysis.conservation.is_balanced,
        caveats: run_caveats(analysis, &targets),
    }
}

/// Whether every one of several targets has this caveat: then it is said once.
fn is_common(analysis: &Analysis, targets: &[&TargetName], caveat: &Caveat) -> bool {
    targets.len() > 1
        && targets.iter().all(|target| {
            analysis
                .caveats
                .iter()
                .any(|c| c.target.as_ref() == Some(*target) && c.text == caveat.text)
        })
}

fn run_caveats(analysis: &Analysis, targets: &[&TargetName]) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for caveat in &analysis.caveats {
        let text = if caveat.target.is_none() {
            caveat.text.clone()
        } else if is_common(analysis, targets, caveat) {
            format!("all targets, {}", caveat.text)
        } else {
            continue;
        };
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
}

/// The agents' clocks as they are reported.
pub fn agent_clocks(analysis: &Analysis) -> Vec<clock::AgentClock<'_>> {
    analysis
        .timelines
        .iter()
        .map(|t| clock::AgentClock {
            agent: &t.agent,
            clock: &t.clock,
            origin_ns: t.origin_ns,
            exchanges: t.exchanges,
            wall_error: t.wall_error,
        })
        .collect()
}

/// Only where several clocks have to be related.
fn clock_table(analysis: &Analysis) -> Table {
    if analysis.has_several_clocks() {
        clock::epoch_table(&analysis.clocks, &agent_clocks(analysis))
    } else {
        Table::default()
    }
}

fn method(analysis: &Analysis, deadline: &str) -> Vec<String> {
    let mut method = method_of_agents(deadline);
    if !analysis.ledger.written.is_empty() {
        method.push(ledger::method());
    }
    if analysis.has_several_clocks() {
        method.push(
            "one timeline: the aggregator's clock. clocks ±: by how much the moments of different \
             agents can be off against each other; it is in the lengths already. Who was first is \
             said only where the bounds allow it. Times in the tables and lists of one agent are \
             by its own clock and carry no such error."
                .to_owned(),
        );
    }
    method
}

fn deadline_ns(analysis: &Analysis) -> i64 {
    i64::try_from(analysis.manifest.plan.deadline_ns).unwrap_or(i64::MAX)
}

fn method_of_agents(deadline: &str) -> Vec<String> {
    vec![
        format!(
            "available: due slots answered within {deadline}, of those with data; answered: probes \
             answered at all; both of the whole run, then of the time before the first fault."
        ),
        "max gap: longest time a client went without an answer, from answer to answer. outage: how \
         long the service can have been out, at least..at most. own timeout: part \
         of the longest outage spent in the client's own timeouts. somebody hurt, nobody served: \
         the longest outage of at least one client, and of all clients of the row at once; more \
         clients make the first longer and the second shorter. client-time lost: all clients' \
         outages added up. ≥: not over at the end of the \
         data, or begun before it. ?: part of it was not watched."
            .to_owned(),
        "quantiles by nearest rank. latency: answered probes, from begin to end. response: all due \
         slots, from the due time; >x: that slot never got an answer and was given up after x; \
         none: it never got one and was given up sooner than an answer may be late."
            .to_owned(),
        "exposed: held (all answers in the second before the fault came from its subject), shared \
         (some), other (none)."
            .to_owned(),
    ]
}

fn fault_name(fault: &Fault) -> String {
    if fault.scope == FaultScope::Mark && fault.subject.is_empty() {
        return format!("mark: {}", fault.detail);
    }
    format!("{} {}", fault.step, fault.subject)
}

fn fault_fact(analysis: &Analysis, fault: &Fault) -> String {
    let when = analysis
        .timelines
        .iter()
        .find_map(|t| {
            let times = t.faults.iter().find(|f| f.fault == fault.id)?;
            Some(after(
                times.asked.earliest_ns.saturating_sub(t.origin_ns),
                times.asked.latest_ns.saturating_sub(t.origin_ns),
            ))
        })
        .unwrap_or_else(|| "at an unknown time".to_owned());
    let identity = match &fault.identity {
        Some(identity) if *identity != fault.subject => format!(" (answers as {identity})"),
        _ => String::new(),
    };
    let judged = if analysis.judged.contains(&fault.id) {
        ""
    } else {
        ", not judged"
    };
    format!(
        "fault {} at {when}: {}{identity}{judged}",
        fault.id,
        fault_name(fault)
    )
}

fn tone(verdict: Verdict) -> Tone {
    match verdict {
        Verdict::Down | Verdict::Disrupted => Tone::Bad,
        Verdict::Reconnected
        | Verdict::StateLost
        | Verdict::Stalled
        | Verdict::Unmeasured
        | Verdict::NotExposed => Tone::Warning,
        Verdict::Seamless => Tone::Good,
    }
}

fn verdict_words(fault: &FaultRow, deadline: &str) -> String {
    match fault.judgement.verdict {
        Verdict::Seamless => format!("seamless at {deadline}"),
        other => other.as_str().to_owned(),
    }
}

/// As above, and that the state was not looked at where that is so.
fn full_verdict_words(fault: &FaultRow, deadline: &str) -> String {
    let words = verdict_words(fault, deadline);
    if fault.judgement.verdict == Verdict::Seamless && fault.judgement.state_not_tested {
        format!("{words}, state not tested")
    } else {
        words
    }
}

/// "switched 1/1 held (state not tested); kept 3/3 other"
fn clients_words(fault: &FaultRow) -> String {
    let judgement = &fault.judgement;
    let mut parts = Vec::new();
    for (exposure, name) in [
        (Exposure::Held, "held"),
        (Exposure::Shared, "shared"),
        (Exposure::None, "not exposed"),
        (Exposure::Unmeasured, "unmeasured"),
    ] {
        let all = judgement.exposed(exposure);
        if all == 0 {
            continue;
        }
        if exposure == Exposure::Unmeasured {
            parts.push(format!("{all} {name}"));
            continue;
        }
        let fates: Vec<String> = judgement
            .counts
            .iter()
            .filter(|((e, _), _)| *e == exposure)
            .map(|((_, fate), n)| format!("{} {n}/{all}", fate.as_str()))
            .collect();
        parts.push(format!("{} {name}", fates.join(", ")));
    }
    if judgement.state_not_tested {
        parts.push("state not tested".to_owned());
    }
    if judgement.collateral > 0 {
        parts.push(format!("collateral {}", judgement.collateral));
    }
    parts.join("; ")
}

/// What became of all of a target's clients in a fault, worst first, and of
/// which kind they are: "state lost 1/8 (user_variable), switched 5/8 (reused,
/// patient), served 2/8 (new) held".
fn all_clients_words(rows: &[&Row], fault: u32) -> String {
    let mut parts = Vec::new();
    let judged: Vec<(&Row, &FaultRow)> = rows
        .iter()
        .flat_map(|row| row.faults.iter().map(move |f| (*row, f)))
        .filter(|(_, f)| f.fault == fault)
        .collect();
    for (exposure, name) in [
        (Exposure::Held, "held"),
        (Exposure::Shared, "shared"),
        (Exposure::None, "not exposed"),
        (Exposure::Unmeasured, "unmeasured"),
    ] {
        let all: u64 = judged
            .iter()
            .map(|(_, f)| f.judgement.exposed(exposure))
            .sum();
        if all == 0 {
            continue;
        }
        if exposure == Exposure::Unmeasured {
            parts.push(format!("{all} {name}"));
            continue;
        }
        let mut fates: BTreeMap<Fate, (u64, Vec<String>)> = BTreeMap::new();
        for (row, fault) in &judged {
            for ((_, fate), n) in fault
                .judgement
                .counts
                .iter()
                .filter(|((e, _), _)| *e == exposure)
            {
                let entry = fates.entry(*fate).or_default();
                entry.0 += n;
                let kind = short_client_words(row);
                if !entry.1.contains(&kind) {
                    entry.1.push(kind);
                }
            }
        }
        let words: Vec<String> = fates
            .iter()
            .map(|(fate, (n, kinds))| {
                if rows.len() > 1 {
                    format!("{} {n}/{all} ({})", fate.as_str(), kinds.join(", "))
                } else {
                    format!("{} {n}/{all}", fate.as_str())
                }
            })
            .collect();
        parts.push(format!("{} {name}", words.join(", ")));
    }
    let canary = rows
        .iter()
        .any(|row| matches!(row.kind, ClientKind::Canary(_)));
    if !canary && judged.iter().any(|(_, f)| f.judgement.state_not_tested) {
        parts.push("state not tested".to_owned());
    }
    let collateral: u64 = judged.iter().map(|(_, f)| f.judgement.collateral).sum();
    if collateral > 0 {
        parts.push(format!("collateral {collateral}"));
    }
    parts.join("; ")
}

fn headline<'a>(analysis: &'a Analysis, target: &TargetName, deadline: &str) -> Headline {
    let rows: Vec<&'a Row> = analysis
        .rows
        .iter()
        .map(|(_, row)| row)
        .filter(|row| &row.target == target)
        .collect();
    // How long is said by clients that ask often; idle ones speak only where
    // nobody else has anything to say.
    let asking = measuring(&rows);
    let worst_of = |rows: &[&'a Row]| {
        rows.iter()
            .flat_map(|row| row.faults.iter().map(move |fault| (*row, fault)))
            .min_by_key(|(_, fault)| (fault.judgement.verdict, std::cmp::Reverse(fault.gap.ns)))
    };
    let worst = match worst_of(&asking) {
        Some((_, fault)) if fault.judgement.verdict >= Verdict::Seamless => worst_of(&rows),
        worst => worst,
    };
    let Some((row, fault)) = worst else {
        let widest = asking.iter().map(|row| row.interval_ns).max();
        let max = asking
            .iter()
            .map(|row| row.max_gap)
            .reduce(|a, b| a.max(b))
            .unwrap_or_default();
        let own: i64 = asking
            .iter()
            .filter_map(|row| row.longest_outage())
            .filter_map(|w| w.own_timeout_ns)
            .max()
            .unwrap_or(0);
        let answered = rows.iter().any(|row| row.slots.all.ok > 0);
        let hurt = rows.iter().any(|row| row.client_windows().next().is_some());
        let probed = rows.iter().any(|row| row.slots.all.probed > 0);
        let word = match (answered, hurt) {
            (false, _) if !probed => "not probed",
            (false, _) => "no answer at all",
            (true, true) => "hurt, no fault",
            (true, false) => "no fault",
        };
        return Headline {
            target: target.to_string(),
            verdict: word.to_owned(),
            word: word.to_owned(),
            tone: match (answered, hurt) {
                (false, _) => Tone::Bad,
                (true, true) => Tone::Warning,
                (true, false) => Tone::Plain,
            },
            gap: gap(max),
            own_timeout: if own > 0 {
                seconds(own)
            } else {
                NONE.to_owned()
            },
            resolution: widest.map_or(NONE.to_owned(), short),
            resolution_s: widest.map_or(NONE.to_owned(), unitless_seconds),
            clients: format!("{} clients", rows.iter().map(|r| r.clients).sum::<usize>()),
        };
    };
    let mut clients = String::new();
    if row.faults.len() > 1 {
        clients.push_str(&format!("fault {}: ", fault.fault));
    }
    clients.push_str(&all_clients_words(&rows, fault.fault));
    let tested = fault.judgement.verdict.is_tested();
    Headline {
        target: target.to_string(),
        verdict: verdict_words(fault, deadline),
        word: fault.judgement.verdict.as_str().to_owned(),
        tone: tone(fault.judgement.verdict),
        gap: if tested {
            gap(fault.gap)
        } else {
            NONE.to_owned()
        },
        own_timeout: if fault.own_timeout_ns > 0 {
            seconds(fault.own_timeout_ns)
        } else {
            NONE.to_owned()
        },
        resolution: short(row.interval_ns),
        resolution_s: unitless_seconds(row.interval_ns),
        clients,
    }
}

fn unitless_seconds(ns: i64) -> String {
    (ns as f64 / 1e9).to_string()
}

fn keys(analysis: &Analysis, row: &Row) -> Vec<String> {
    let target = if analysis.timelines.len() > 1 {
        format!("{}@{}", row.target, row.agent)
    } else {
        row.target.to_string()
    };
    vec![target, client_words(row)]
}

fn main_table(analysis: &Analysis) -> Table {
    let mut table = Table::new(
        "Answers and outages",
        2,
        &[
            "target",
            "style",
            ">clients",
            ">due",
            ">probed",
            ">ok",
            ">answered\n%",
            ">avail-\nable %",
            ">healthy\navail. %",
            ">avg\nms",
            ">p50\nms",
            ">p99\nms",
            ">max\nms",
            ">connection\nchanges",
            ">session\nchanges",
            ">backend\nswitches",
            ">max\ngap",
            ">outages",
            ">longest\noutage",
            ">own\ntimeout",
            ">somebody\nhurt",
            ">nobody\nserved",
            ">client-time\nlost",
        ],
    );
    let quantile = |value| quantile(value, deadline_ns(analysis));
    for (_, row) in &analysis.rows {
        let slots = &row.slots.all;
        let latency = &row.latency.all;
        let longest = row.longest_outage();
        let mut cells = keys(analysis, row);
        cells.extend([
            count(row.clients as u64),
            count(slots.due),
            count(slots.probed),
            count(slots.ok),
            percent(slots.answered()),
            percent(slots.availability()),
            percent(row.slots.healthy.availability()),
            latency
                .avg_ns
                .map_or(NONE.to_owned(), |ns| super::figures::bare_ms(ns as i64)),
            quantile(latency.p50),
            quantile(latency.p99),
            quantile(latency.max),
            if row.style.is_held() {
                count(row.changes.connections)
            } else {
                NONE.to_owned()
            },
            if row.style.is_held() {
                count(row.changes.sessions)
            } else {
                NONE.to_owned()
            },
            count(row.changes.backends),
            gap(row.max_gap),
            count(row.client_windows().count() as u64),
            longest.map_or(NONE.to_owned(), |w| interval(w.lower_ns, w.upper_ns)),
            longest
                .and_then(|w| w.own_timeout_ns)
                .filter(|ns| *ns > 0)
                .map_or(NONE.to_owned(), seconds),
            merged_words(row, Scope::Any),
            merged_words(row, Scope::All),
            longest.map_or(NONE.to_owned(), |_| {
                interval(row.client_time_lost.0, row.client_time_lost.1)
            }),
        ]);
        table.rows.push(cells);
    }
    table
}

/// The longest outage over a row's clients; of one client it is its own.
fn merged_words(row: &Row, scope: Scope) -> String {
    row.windows
        .iter()
        .filter(|w| w.scope == scope)
        .max_by_key(|w| longest_key(w))
        .map_or(NONE.to_owned(), |w| interval(w.lower_ns, w.upper_ns))
}

fn fault_table(analysis: &Analysis, deadline: &str) -> Table {
    let mut table = Table::new(
        "Verdicts",
        3,
        &[
            "target",
            "style",
            "fault",
            "verdict",
            ">held",
            ">shared",
            ">other",
            ">hurt",
            ">gap",
            ">outage",
            ">own\ntimeout",
            "fates",
        ],
    );
    for (_, row) in &analysis.rows {
        for fault in &row.faults {
            let name = analysis
                .faults
                .iter()
                .find(|f| f.id == fault.fault)
                .map_or(String::new(), |f| f.step.clone());
            let tested = fault.judgement.verdict.is_tested();
            let mut cells = keys(analysis, row);
            cells.extend([
                format!("{} {name}", fault.fault),
                full_verdict_words(fault, deadline),
                count(fault.judgement.exposed(Exposure::Held)),
                count(fault.judgement.exposed(Exposure::Shared)),
                count(
                    fault.judgement.exposed(Exposure::None)
                        + fault.judgement.exposed(Exposure::Unmeasured),
                ),
                count(fault.judgement.hurt),
                if tested {
                    gap(fault.gap)
                } else {
                    NONE.to_owned()
                },
                fault
                    .outage
                    .map_or(NONE.to_owned(), |(lower, upper)| interval(lower, upper)),
                if fault.own_timeout_ns > 0 {
                    seconds(fault.own_timeout_ns)
                } else {
                    NONE.to_owned()
                },
                clients_words(fault),
            ]);
            table.rows.push(cells);
        }
    }
    table
}

fn latency_table(analysis: &Analysis) -> Table {
    let mut table = Table::new(
        "Latency and response, ms",
        3,
        &[
            "target",
            "style",
            "part",
            ">probes",
            ">avg",
            ">p50",
            ">p90",
            ">p99",
            ">p99.9",
            ">max",
            ">slots",
            ">resp.\np50",
            ">resp.\np90",
            ">resp.\np99",
            ">resp.\nmax",
        ],
    );
    let quantile = |value| quantile(value, deadline_ns(analysis));
    for (_, row) in &analysis.rows {
        let parts: [(&str, &Quantiles, &Quantiles); 3] = [
            ("healthy", &row.latency.healthy, &row.response.healthy),
            ("during", &row.latency.during, &row.response.during),
            ("after", &row.latency.after, &row.response.after),
        ];
        for (name, latency, response) in parts {
            if latency.count + response.count == 0 {
                continue;
            }
            let mut cells = keys(analysis, row);
            cells.extend([
                name.to_owned(),
                count(latency.count as u64),
                latency
                    .avg_ns
                    .map_or(NONE.to_owned(), |ns| super::figures::bare_ms(ns as i64)),
                quantile(latency.p50),
                quantile(latency.p90),
                quantile(latency.p99),
                latency
                    .p999
                    .map_or(String::new(), |value| quantile(Some(value))),
                quantile(latency.max),
                count(response.count as u64),
                quantile(response.p50),
                quantile(response.p90),
                quantile(response.p99),
                quantile(response.max),
            ]);
            table.rows.push(cells);
        }
    }
    table.without_empty_columns()
}

/// Most events listed for a target; what is left out is said.
const MAX_EVENTS: usize = 60;

fn section(analysis: &Analysis, targets: &[&TargetName], target: &TargetName) -> Section {
    let mut events = Vec::new();
    let mut errors = Table::new(
        "errors",
        1,
        &[
            "style", "outcome", "cause", ">code", ">probes", ">first", ">last",
        ],
    );
    let mut first_of_target: BTreeMap<usize, ()> = BTreeMap::new();
    for (timeline_index, row) in &analysis.rows {
        if &row.target != target {
            continue;
        }
        let timeline = &analysis.timelines[*timeline_index];
        let named = analysis.timelines.len() > 1;
        if first_of_target.insert(*timeline_index, ()).is_none() {
            fault_events(analysis, timeline, named, &mut events);
        }
        row_events(analysis, timeline, row, &mut events);
        for ((outcome, cause, code), error) in &row.errors {
            errors.rows.push(vec![
                client_words(row),
                outcome.to_string(),
                cause.map_or(NONE.to_owned(), |c| c.to_string()),
                code.map_or(NONE.to_owned(), |c| c.to_string()),
                count(error.count),
                format!("{} s", bare_seconds(error.first_ns - timeline.origin_ns)),
                format!("{} s", bare_seconds(error.last_ns - timeline.origin_ns)),
            ]);
        }
    }
    events.sort_by_key(|event: &Event| event.at_ns);
    let mut events = joined(events);
    if events.len() > MAX_EVENTS {
        let left = events.len() - MAX_EVENTS;
        events.truncate(MAX_EVENTS);
        let last = events.last().map_or(0, |event| event.at_ns);
        events.push(Event {
            at_ns: last,
            at: String::new(),
            after_fault: String::new(),
            who: Vec::new(),
            what: format!("… and {left} more; see windows.parquet and fates.parquet"),
        });
    }
    let address = analysis
        .manifest
        .agents
        .iter()
        .flat_map(|agent| &agent.targets)
        .find(|entry| &entry.name == target)
        .map_or(String::new(), |entry| entry.address.clone());
    Section {
        target: target.to_string(),
        address,
        events,
        errors,
        caveats: analysis
            .caveats
            .iter()
            .filter(|caveat| caveat.target.as_ref() == Some(target))
            .filter(|caveat| !is_common(analysis, targets, caveat))
            .map(|caveat| caveat.text.clone())
            .collect(),
    }
}

/// An event at an agent's time, related to the newest fault before it.
fn event(timeline: &Timeline, at_ns: i64, who: &str, what: String) -> Event {
    let asked = timeline
        .faults
        .iter()
        .map(|fault| fault.asked)
        .filter(|asked| asked.earliest_ns <= at_ns)
        .max_by_key(|asked| asked.earliest_ns);
    Event {
        at_ns: at_ns.saturating_sub(timeline.origin_ns),
        at: format!(
            "{} s",
            bare_seconds(at_ns.saturating_sub(timeline.origin_ns))
        ),
        after_fault: asked.map_or(String::new(), |asked| {
            after(
                at_ns.saturating_sub(asked.latest_ns),
                at_ns.saturating_sub(asked.earliest_ns),
            )
        }),
        who: vec![who.to_owned()],
        what,
    }
}

fn fault_events(analysis: &Analysis, timeline: &Timeline, named: bool, events: &mut Vec<Event>) {
    let by = if named {
        format!(" (by the clock of {})", timeline.agent)
    } else {
        String::new()
    };
    for times in &timeline.faults {
        let Some(fault) = analysis.faults.iter().find(|f| f.id == times.fault) else {
            continue;
        };
        let name = fault_name(fault);
        let origin = timeline.origin_ns;
        events.push(Event {
            at_ns: times.asked.earliest_ns.saturating_sub(origin),
            at: format!(
                "{} s",
                bare_seconds(times.asked.earliest_ns.saturating_sub(origin))
            ),
            after_fault: String::new(),
            who: Vec::new(),
            what: format!("fault {} asked for: {name}{by}", fault.id),
        });
        for (what, span) in times.seen {
            let Some(span) = span else { continue };
            events.push(Event {
                at_ns: span.latest_ns.saturating_sub(origin),
                at: format!("{} s", bare_seconds(span.latest_ns.saturating_sub(origin))),
                after_fault: after(
                    span.earliest_ns.saturating_sub(times.asked.latest_ns),
                    span.latest_ns.saturating_sub(times.asked.earliest_ns),
                ),
                who: Vec::new(),
                what: format!("witness of fault {}: {what}", fault.id),
            });
        }
    }
}

fn row_events(analysis: &Analysis, timeline: &Timeline, row: &Row, events: &mut Vec<Event>) {
    let who = client_words(row);
    let mut say = |at_ns: i64, what: String| events.push(event(timeline, at_ns, &who, what));
    for fault in &row.faults {
        if let Some((begun, known)) = fault.first_bad {
            say(begun, "first bad probe begins".to_owned());
            if known > begun {
                say(known, "first bad probe is known to be bad".to_owned());
            }
        }
        let is_switch = |at: i64| {
            row.healthy_backends_a_client <= 1
                && row
                    .switches
                    .values()
                    .any(|s| s.first_ns == at || s.last_ns == at)
        };
        if let Some(at) = fault.first_from_survivor.filter(|at| !is_switch(*at)) {
            say(
                at,
                "first answer from another backend to a held client".to_owned(),
            );
        }
        if let Some(at) = fault.last_from_subject
            && at >= fault.asked.earliest_ns
            && (fault.judgement.exposed(Exposure::Held) + fault.judgement.exposed(Exposure::Shared)
                > 0)
        {
            say(
                at,
                format!("last answer from the subject of fault {}", fault.fault),
            );
        }
        if let Some(at) = fault.last_connect_to_subject {
            say(at, "last new connection that led to the subject".to_owned());
        }
        if let Some(at) = fault.all_back {
            let hurt = fault.judgement.hurt;
            say(
                at,
                match hurt {
                    1 => "the hurt client is back".to_owned(),
                    n => format!("all {n} hurt clients are back"),
                },
            );
        } else if fault.judgement.hurt > 0 {
            let lost = fault
                .judgement
                .fates()
                .get(&crate::analyse::fate::Fate::Lost)
                .copied()
                .unwrap_or(0);
            let end = row
                .client_windows()
                .filter(|w| w.ongoing)
                .filter_map(|w| w.first_bad_ns)
                .max();
            if let (Some(at), true) = (end, lost > 0) {
                say(
                    at,
                    format!(
                        "{lost} clients are not back before the next fault or the end of the data"
                    ),
                );
            }
        }
    }
    if row.healthy_backends_a_client <= 1 {
        for ((from, to), switches) in &row.switches {
            let (from, to) = (analysis.names.word(*from), analysis.names.word(*to));
            let text = |which: &str| format!("{which} answer from {to} instead of {from}");
            if switches.count == 1 {
                say(switches.first_ns, text("switch:"));
            } else {
                say(
                    switches.first_ns,
                    text(&format!("first of {} switches:", switches.count)),
                );
                say(switches.last_ns, text("last switch:"));
            }
        }
    }
    for window in &row.windows {
        if let (Scope::Client(_), None, Some(at)) =
            (window.scope, window.fault, window.first_bad_ns)
            && !row
                .faults
                .iter()
                .any(|f| f.first_bad.is_some_and(|b| b.0 == at))
        {
            if row.kind == ClientKind::Idle {
                say(
                    at,
                    format!(
                        "outside every fault: an idle connection does not answer: {} bad, {} late \
                         probes",
                        window.bad, window.late
                    ),
                );
                continue;
            }
            say(
                at,
                format!(
                    "an outage outside every fault begins: {} bad, {} late probes, {}",
                    window.bad,
                    window.late,
                    interval(window.lower_ns, window.upper_ns)
                ),
            );
        }
    }
}

fn books(analysis: &Analysis) -> String {
    let c = &analysis.conservation;
    let lost = if c.lost.0 == c.lost.1 {
        c.lost.1.to_string()
    } else {
        format!("{}..{}", c.lost.0, c.lost.1)
    };
    format!(
        "{} due = {} sampled + {} waited + {} overslept + {} absent; sampled = {} stored + {lost} \
         lost + {}{} in spools{}",
        c.due,
        c.stored + c.lost.0 + c.in_spools,
        c.waited,
        c.overslept,
        c.absent,
        c.stored,
        if c.may_hold_more { "≥" } else { "" },
        c.in_spools,
        if c.is_balanced {
            ""
        } else {
            ": THIS DOES NOT BALANCE"
        }
    )
}
