//! What a report says, in words, before anything is laid out.

use std::collections::BTreeMap;

use gapscope_proto::fault::{Fault, FaultScope};
use gapscope_proto::ids::TargetName;
use gapscope_proto::plan::ClientKind;

use super::figures::{
    NONE, after, bare_seconds, count, gap, interval, percent, quantile, seconds, short,
};
use super::table::Table;
use crate::analyse::fate::Exposure;
use crate::analyse::latency::Quantiles;
use crate::analyse::row::{FaultRow, Row, Scope};
use crate::analyse::run::{Analysis, Timeline};
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
    /// How bad.
    pub tone: Tone,
    /// What the clients felt.
    pub gap: String,
    /// Of that, their own timeouts.
    pub own_timeout: String,
    /// What lies between two probes of a client.
    pub resolution: String,
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
    /// What.
    pub text: String,
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
    Report {
        title: format!("run {}  {}", manifest.run_id, plan.scenario),
        facts,
        headlines: targets
            .iter()
            .map(|target| headline(analysis, target, &deadline))
            .collect(),
        tables: vec![
            main_table(analysis),
            fault_table(analysis, &deadline),
            latency_table(analysis),
        ]
        .into_iter()
        .filter(|table| !table.rows.is_empty())
        .collect(),
        method: method(&deadline),
        sections: targets
            .iter()
            .map(|target| section(analysis, target))
            .collect(),
        books: books(analysis),
        books_balance: analysis.conservation.is_balanced,
        caveats: analysis
            .caveats
            .iter()
            .filter(|caveat| caveat.target.is_none())
            .map(|caveat| caveat.text.clone())
            .collect(),
    }
}

fn method(deadline: &str) -> Vec<String> {
    vec![
        format!(
            "available: due slots answered within {deadline}, of those with data; answered: probes \
             answered at all; both of the whole run, then of the time before the first fault."
        ),
        "max gap: longest time a client went without an answer, from answer to answer. outage: how \
         long the service can have been out, at least..at most, rounded outward. own timeout: part \
         of the longest outage spent in the client's own timeouts. ≥: not over at the end of the \
         data, or begun before it. ?: part of it was not watched."
            .to_owned(),
        "quantiles by nearest rank. latency: answered probes, from begin to end. response: all due \
         slots, from the due time; >x: that slot never got an answer."
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

fn headline(analysis: &Analysis, target: &TargetName, deadline: &str) -> Headline {
    let rows: Vec<&Row> = analysis
        .rows
        .iter()
        .map(|(_, row)| row)
        .filter(|row| &row.target == target)
        .collect();
    let resolution = rows
        .iter()
        .map(|row| row.interval_ns)
        .max()
        .map_or(NONE.to_owned(), short);
    let worst = rows
        .iter()
        .flat_map(|row| row.faults.iter().map(move |fault| (*row, fault)))
        .min_by_key(|(_, fault)| (fault.judgement.verdict, std::cmp::Reverse(fault.gap.ns)));
    let Some((row, fault)) = worst else {
        let max = rows
            .iter()
            .map(|row| row.max_gap)
            .reduce(|a, b| a.max(b))
            .unwrap_or_default();
        let own: i64 = rows
            .iter()
            .filter_map(|row| row.longest_outage())
            .filter_map(|w| w.own_timeout_ns)
            .max()
            .unwrap_or(0);
        let answered = rows.iter().any(|row| row.slots.all.ok > 0);
        let hurt = rows.iter().any(|row| row.client_windows().next().is_some());
        return Headline {
            target: target.to_string(),
            verdict: match (answered, hurt) {
                (false, _) => "no answer at all".to_owned(),
                (true, true) => "no fault, yet hurt".to_owned(),
                (true, false) => "no fault".to_owned(),
            },
            tone: match (answered, hurt) {
                (false, _) => Tone::Bad,
                (true, true) => Tone::Warning,
                (true, false) => Tone::Plain,
            },
            gap: gap(max),
            own_timeout: if own > 0 { seconds(own) } else { NONE.to_owned() },
            resolution,
            clients: format!("{} clients", rows.iter().map(|r| r.clients).sum::<usize>()),
        };
    };
    let several_rows = rows.len() > 1;
    let several_faults = row.faults.len() > 1;
    let mut clients = String::new();
    if several_faults {
        clients.push_str(&format!("fault {}, ", fault.fault));
    }
    if several_rows {
        clients.push_str(&format!("{}: ", client_words(row)));
    }
    clients.push_str(&clients_words(fault));
    let tested = fault.judgement.verdict.is_tested();
    Headline {
        target: target.to_string(),
        verdict: verdict_words(fault, deadline),
        tone: tone(fault.judgement.verdict),
        gap: if tested { gap(fault.gap) } else { NONE.to_owned() },
        own_timeout: if fault.own_timeout_ns > 0 {
            seconds(fault.own_timeout_ns)
        } else {
            NONE.to_owned()
        },
        resolution,
        clients,
    }
}

/// "reused", "reused patient"
fn client_words(row: &Row) -> String {
    match row.kind {
        ClientKind::Bare => row.style.to_string(),
        kind => format!("{} {kind}", row.style),
    }
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
            ">answered %",
            ">available %",
            ">healthy %",
            ">avg ms",
            ">p50 ms",
            ">p99 ms",
            ">max ms",
            ">conn. changes",
            ">session ch.",
            ">backend sw.",
            ">max gap",
            ">outages",
            ">longest outage",
            ">own timeout",
            ">client-time lost",
        ],
    );
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
                .map_or(NONE.to_owned(), seconds),
            longest.map_or(NONE.to_owned(), |_| {
                interval(row.client_time_lost.0, row.client_time_lost.1)
            }),
        ]);
        table.rows.push(cells);
    }
    table
}

fn fault_table(analysis: &Analysis, deadline: &str) -> Table {
    let mut table = Table::new(
        "Verdicts",
        2,
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
            ">own timeout",
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
                verdict_words(fault, deadline),
                count(fault.judgement.exposed(Exposure::Held)),
                count(fault.judgement.exposed(Exposure::Shared)),
                count(
                    fault.judgement.exposed(Exposure::None)
                        + fault.judgement.exposed(Exposure::Unmeasured),
                ),
                count(fault.judgement.hurt),
                if tested { gap(fault.gap) } else { NONE.to_owned() },
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
            "target", "style", "part", ">probes", ">avg", ">p50", ">p90", ">p99", ">p99.9", ">max",
            ">slots", ">resp. p50", ">resp. p90", ">resp. p99", ">resp. max",
        ],
    );
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

fn section(analysis: &Analysis, target: &TargetName) -> Section {
    let mut events = Vec::new();
    let mut errors = Table::new(
        "errors",
        1,
        &["style", "outcome", "cause", ">code", ">probes", ">first", ">last"],
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
    if events.len() > MAX_EVENTS {
        let left = events.len() - MAX_EVENTS;
        events.truncate(MAX_EVENTS);
        let last = events.last().map_or(0, |event| event.at_ns);
        events.push(Event {
            at_ns: last,
            at: String::new(),
            after_fault: String::new(),
            text: format!("… and {left} more; see windows.parquet and fates.parquet"),
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
            .map(|caveat| caveat.text.clone())
            .collect(),
    }
}

/// An event at an agent's time, related to the newest fault before it.
fn event(timeline: &Timeline, at_ns: i64, text: String) -> Event {
    let asked = timeline
        .faults
        .iter()
        .map(|fault| fault.asked)
        .filter(|asked| asked.earliest_ns <= at_ns)
        .max_by_key(|asked| asked.earliest_ns);
    Event {
        at_ns: at_ns.saturating_sub(timeline.origin_ns),
        at: format!("{} s", bare_seconds(at_ns.saturating_sub(timeline.origin_ns))),
        after_fault: asked.map_or(String::new(), |asked| {
            after(
                at_ns.saturating_sub(asked.latest_ns),
                at_ns.saturating_sub(asked.earliest_ns),
            )
        }),
        text,
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
            at: format!("{} s", bare_seconds(times.asked.earliest_ns.saturating_sub(origin))),
            after_fault: String::new(),
            text: format!("fault {} asked for: {name}{by}", fault.id),
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
                text: format!("witness of fault {}: {what}", fault.id),
            });
        }
    }
}

fn row_events(analysis: &Analysis, timeline: &Timeline, row: &Row, events: &mut Vec<Event>) {
    let who = client_words(row);
    let mut say = |at_ns: i64, text: String| events.push(event(timeline, at_ns, text));
    for fault in &row.faults {
        if let Some((begun, known)) = fault.first_bad {
            say(begun, format!("{who}: first bad probe begins"));
            if known > begun {
                say(known, format!("{who}: first bad probe is known to be bad"));
            }
        }
        if let Some(at) = fault.first_from_survivor {
            say(at, format!("{who}: first answer from another backend to a held client"));
        }
        if let Some(at) = fault.last_from_subject
            && at >= fault.asked.earliest_ns
            && (fault.judgement.exposed(Exposure::Held) + fault.judgement.exposed(Exposure::Shared)
                > 0)
        {
            say(at, format!("{who}: last answer from the subject of fault {}", fault.fault));
        }
        if let Some(at) = fault.last_connect_to_subject {
            say(at, format!("{who}: last new connection that led to the subject"));
        }
        if let Some(at) = fault.all_back {
            let hurt = fault.judgement.hurt;
            say(
                at,
                match hurt {
                    1 => format!("{who}: the hurt client is back"),
                    n => format!("{who}: all {n} hurt clients are back"),
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
                say(at, format!("{who}: {lost} clients are not back within the horizon"));
            }
        }
    }
    if row.healthy_backends_a_client <= 1 {
        for ((from, to), switches) in &row.switches {
            let (from, to) = (analysis.names.word(*from), analysis.names.word(*to));
            let text = |which: &str| format!("{who}: {which} answer from {to} instead of {from}");
            if switches.count == 1 {
                say(switches.first_ns, text("switch:"));
            } else {
                say(switches.first_ns, text(&format!("first of {} switches:", switches.count)));
                say(switches.last_ns, text("last switch:"));
            }
        }
    }
    for window in &row.windows {
        if let (Scope::All, Some(from)) = (window.scope, window.from_ns)
            && row.clients > 1
        {
            say(
                from,
                format!(
                    "{who}: from here nobody of {} clients is served for {}",
                    row.clients,
                    interval(window.lower_ns, window.upper_ns)
                ),
            );
        }
        if let (Scope::Client(_), None, Some(at)) = (window.scope, window.fault, window.first_bad_ns)
            && !row.faults.iter().any(|f| f.first_bad.is_some_and(|b| b.0 == at))
        {
            say(
                at,
                format!(
                    "{who}: an outage outside every fault begins: {} bad, {} late probes, {}",
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
         lost + {} in spools{}",
        c.due,
        c.stored + c.lost.0 + c.in_spools,
        c.waited,
        c.overslept,
        c.absent,
        c.stored,
        c.in_spools,
        if c.is_balanced { "" } else { ": THIS DOES NOT BALANCE" }
    )
}
