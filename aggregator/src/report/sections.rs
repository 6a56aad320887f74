//! What happened at each target, in order of time, and what went wrong.

use std::collections::BTreeMap;

use gapscope_proto::ids::TargetName;
use gapscope_proto::plan::ClientKind;

use super::figures::{NONE, after, bare_seconds, count, interval, seconds};
use super::kinds::client_words;
use super::model::{fault_name, is_common};
use super::table::Table;
use crate::analyse::fate::{Exposure, Fate};
use crate::analyse::row::{Row, Scope};
use crate::analyse::run::{Analysis, PROXY_VIEW, Timeline, is_note};

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

/// Most events listed for a target; what is left out is said.
const MAX_EVENTS: usize = 60;

pub(super) fn section(
    analysis: &Analysis,
    targets: &[&TargetName],
    target: &TargetName,
) -> Section {
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
            fault_events(analysis, timeline, target, named, &mut events);
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
            .chain(
                analysis
                    .rows
                    .iter()
                    .filter(|(_, row)| &row.target == target)
                    .filter_map(|(_, row)| shorter_max_gap(row)),
            )
            .collect(),
    }
}

/// Says why a fault's gap can be longer than the longest of the whole run: a fault's
/// holds all the time until its client is back, while the run's leaves out stretches
/// in which nothing but the agent itself was late.
fn shorter_max_gap(row: &Row) -> Option<String> {
    let (fault, longest) = row
        .faults
        .iter()
        .filter(|f| f.judgement.verdict.is_tested())
        .map(|f| (f.fault, f.gap))
        .max_by_key(|(_, gap)| gap.ns)?;
    // Both are printed to the millisecond.
    (longest.no_data && longest.ns.saturating_sub(row.max_gap.ns) >= 1_000_000).then(|| {
        format!(
            "{}: its max gap ({}) is shorter than its gap in fault {fault} ({}) because part of \
             that was not watched: max gap leaves out what only the agent's own lateness \
             explains, the fault's gap does not",
            client_words(row),
            seconds(row.max_gap.ns),
            seconds(longest.ns),
        )
    })
}

/// An event at an agent's time, related to the newest fault before it.
fn event(timeline: &Timeline, at_ns: i64, who: &str, what: String) -> Event {
    let asked = timeline
        .faults
        .iter()
        .filter(|fault| !fault.is_note)
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

fn fault_events(
    analysis: &Analysis,
    timeline: &Timeline,
    target: &TargetName,
    named: bool,
    events: &mut Vec<Event>,
) {
    let by = if named {
        format!(" (by the clock of {})", timeline.agent)
    } else {
        String::new()
    };
    for times in &timeline.faults {
        let Some(fault) = analysis.faults.iter().find(|f| f.id == times.fault) else {
            continue;
        };
        let origin = timeline.origin_ns;
        if is_note(fault) {
            // What another proxy believes explains nothing here.
            if fault.step != PROXY_VIEW || fault.subject == target.as_str() {
                let mut seen = event(timeline, times.asked.latest_ns, "", fault.detail.clone());
                seen.who.clear();
                events.push(seen);
            }
            continue;
        }
        let name = fault_name(fault);
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
                .get(&Fate::Lost)
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
