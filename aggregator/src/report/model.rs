//! What a report says, in words, before anything is laid out.

use gapscope_proto::fault::{Fault, FaultScope};
use gapscope_proto::ids::TargetName;

use super::conclusion::{closing, conclusion};
use super::figures::{after, seconds, short};
use super::headline::{Headline, headline};
use super::sections::{Section, section};
use super::table::Table;
use super::tables::{clock_table, deadline_ns, fault_table, latency_table, main_table};
use super::{across, beside, clock, explain, kinds, ledger, made_of, repeat};
use crate::analyse::row::Row;
use crate::analyse::run::{Analysis, Caveat, is_note};
use crate::store::reader::Standing;

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
    /// One sentence for each target.
    pub conclusions: Vec<String>,
    /// What is to be kept in mind with all of them.
    pub closing: Option<String>,
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
    let deadline = short(deadline_ns(analysis));
    let targets = targets(analysis);
    let (conclusions, closing) = conclusions(analysis);
    let word = analysis.standing.as_str();
    let state = match (analysis.standing, &manifest.end_reason) {
        (Standing::Closed, Some(why)) => format!("ended: {why}"),
        (Standing::Interrupted, Some(why)) => format!("{word}: {why}"),
        (Standing::Abandoned, _) => match analysis.left_after_ns() {
            Some(left) => format!("{word}, nothing was recorded after {}", seconds(left)),
            None => word.to_owned(),
        },
        _ => word.to_owned(),
    };
    let mut facts = vec![
        format!(
            "began {}, {} planned, {state}",
            manifest.created_utc,
            short(i64::try_from(plan.duration_ns).unwrap_or(i64::MAX))
        ),
        format!("an answer counts up to {deadline} after its probe's begin"),
    ];
    facts.extend(fault_facts(analysis));
    facts.extend(explain::lines(analysis));
    facts.extend(made_of::lines(&manifest.labels));
    let rows: Vec<&Row> = analysis.rows.iter().map(|(_, row)| row).collect();
    Report {
        title: format!("run {}  {}", manifest.run_id, plan.scenario),
        facts,
        deadline: deadline.clone(),
        headlines: targets
            .iter()
            .map(|target| headline(analysis, target, &deadline))
            .collect(),
        conclusions,
        closing,
        tables: vec![
            main_table(analysis),
            fault_table(analysis, &deadline),
            kinds::hurt_table(&rows),
            ledger::table(&analysis.ledger, analysis.timelines.len() > 1),
            kinds::idle_table(&rows),
            kinds::pool_table(&rows),
            latency_table(analysis),
            across::table(analysis),
            beside::address_table(analysis),
            beside::look_table(analysis),
            clock_table(analysis),
        ]
        .into_iter()
        .chain(repeat::tables(analysis))
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

pub(super) fn fault_name(fault: &Fault) -> String {
    if fault.scope == FaultScope::Mark && fault.subject.is_empty() {
        return format!("mark: {}", fault.detail);
    }
    format!("{} {}", fault.step, fault.subject)
}

/// More faults than this are listed by their first and last.
const MOST_FAULTS: usize = 12;

/// Each fault, without the lab's own notes.
fn fault_facts(analysis: &Analysis) -> Vec<String> {
    let faults: Vec<&Fault> = analysis.faults.iter().filter(|f| !is_note(f)).collect();
    let fact = |fault: &&Fault| fault_fact(analysis, fault);
    if faults.len() <= MOST_FAULTS {
        return faults.iter().map(fact).collect();
    }
    let (first, rest) = faults.split_at(MOST_FAULTS - 2);
    let (between, last) = rest.split_at(rest.len() - 1);
    let mut facts: Vec<String> = first.iter().map(fact).collect();
    facts.push(format!("... {} more faults", between.len()));
    facts.extend(last.iter().map(fact));
    facts
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

/// The run's targets, in the plan's order.
fn targets(analysis: &Analysis) -> Vec<&TargetName> {
    let mut targets: Vec<&TargetName> = Vec::new();
    for group in &analysis.manifest.plan.groups {
        if !targets.contains(&&group.target) {
            targets.push(&group.target);
        }
    }
    targets
}

/// One sentence for each target, and what is to be kept in mind with all of them.
pub fn conclusions(analysis: &Analysis) -> (Vec<String>, Option<String>) {
    let deadline = short(deadline_ns(analysis));
    let sentences = targets(analysis)
        .into_iter()
        .map(|target| conclusion(analysis, target, &deadline))
        .collect();
    (sentences, closing(analysis))
}

/// Whether every one of several targets has this caveat: then it is said once.
pub(super) fn is_common(analysis: &Analysis, targets: &[&TargetName], caveat: &Caveat) -> bool {
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
            round_trips: &t.round_trips,
            wall_error: t.wall_error,
        })
        .collect()
}

fn method(analysis: &Analysis, deadline: &str) -> Vec<String> {
    let mut method = method_of_agents(deadline);
    method.extend(repeat::method(analysis));
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

fn books(analysis: &Analysis) -> String {
    let c = &analysis.conservation;
    let lost = if c.lost.0 == c.lost.1 {
        c.lost.1.to_string()
    } else {
        format!("{}..{}", c.lost.0, c.lost.1)
    };
    let left = analysis.left_after_ns().map_or(String::new(), |left| {
        let planned = i64::try_from(analysis.manifest.plan.duration_ns).unwrap_or(i64::MAX);
        format!(
            "; the books end {} after the begin, of {} planned: nothing was recorded after",
            seconds(left),
            short(planned)
        )
    });
    format!(
        "{} due = {} sampled + {} waited + {} overslept + {} absent; sampled = {} stored + {lost} \
         lost + {}{} in spools{left}{}",
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
