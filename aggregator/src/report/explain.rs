//! What a window is made of, where that is known: when the proxy's own health check
//! noticed, and what the clients' own timeouts took.

use gapscope_proto::fault::Fault;

use super::figures::{after, interval, seconds};
use crate::analyse::row::{FaultRow, Row};
use crate::analyse::run::{Analysis, FaultTimes, PROXY_VIEW};

/// One line for each target and judged fault of a run in which proxies' views were
/// looked at.
pub(super) fn lines(analysis: &Analysis) -> Vec<String> {
    let mut lines = Vec::new();
    let mut seen: Vec<(&str, u32)> = Vec::new();
    if !analysis.faults.iter().any(|f| f.step == PROXY_VIEW) {
        return lines;
    }
    for (at, row) in &analysis.rows {
        for fault in row
            .faults
            .iter()
            .filter(|f| f.judgement.verdict.is_tested())
        {
            let key = (row.target.as_str(), fault.fault);
            if seen.contains(&key) {
                continue;
            }
            seen.push(key);
            let times = &analysis.timelines[*at].faults;
            lines.extend(line(analysis, times, row, fault.fault));
        }
    }
    lines
}

/// Every row of the target in that fault.
fn of_target<'a>(
    analysis: &'a Analysis,
    row: &'a Row,
    fault: u32,
) -> impl Iterator<Item = &'a FaultRow> {
    analysis
        .rows
        .iter()
        .map(|(_, row)| row)
        .filter(|other| other.target == row.target && other.agent == row.agent)
        .flat_map(|row| &row.faults)
        .filter(move |f| f.fault == fault)
}

fn line(analysis: &Analysis, times: &[FaultTimes], row: &Row, id: u32) -> Option<String> {
    let fault = analysis.faults.iter().find(|f| f.id == id)?;
    let asked = times.iter().find(|t| t.fault == id)?.asked;
    let until = times
        .iter()
        .filter(|t| !t.is_note && t.asked.earliest_ns > asked.earliest_ns)
        .map(|t| t.asked.earliest_ns)
        .min()
        .unwrap_or(i64::MAX);
    let longest = of_target(analysis, row, id).max_by_key(|f| f.gap.ns)?;
    if longest.gap.ns <= 0 || longest.judgement.hurt == 0 {
        return None;
    }
    let noticed = times
        .iter()
        .filter(|t| t.is_note && (asked.earliest_ns..until).contains(&t.asked.latest_ns))
        .filter(|t| {
            analysis
                .faults
                .iter()
                .any(|note| note.id == t.fault && holds_down(note, row.target.as_str(), fault))
        })
        .min_by_key(|t| t.asked.latest_ns);
    let noticed = match noticed {
        Some(t) => format!(
            "its own check held {} for down {} after",
            fault.subject,
            after(
                t.asked.earliest_ns.saturating_sub(asked.latest_ns).max(0),
                t.asked.latest_ns.saturating_sub(asked.earliest_ns),
            )
        ),
        None => format!(
            "its own check was not seen to hold {} for down",
            fault.subject
        ),
    };
    let outage = longest.outage.map_or(String::new(), |(lower, upper)| {
        format!(", the outage in it {}", interval(lower, upper))
    });
    Some(format!(
        "{} in fault {id}: {noticed}; longest felt gap {}{}, of which the client's own timeouts \
         {}{outage}",
        row.target,
        if longest.gap.is_at_least { "≥" } else { "" },
        seconds(longest.gap.ns),
        seconds(longest.own_timeout_ns),
    ))
}

/// Whether a note says that `target` holds the fault's subject for down.
fn holds_down(note: &Fault, target: &str, fault: &Fault) -> bool {
    note.step == PROXY_VIEW
        && note.subject == target
        && ["DOWN ", "DOWN,"]
            .iter()
            .any(|state| note.detail.contains(&format!(" holds {} for {state}", fault.subject)))
        // "DOWN 1/2" is on its way up, and was down before.
        && !note.detail.contains("before for DOWN")
}
