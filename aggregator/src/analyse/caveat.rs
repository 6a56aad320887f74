//! What is to be said against a run and its numbers.

use std::collections::{BTreeMap, BTreeSet};

use gapscope_proto::fault::Fault;
use gapscope_proto::ids::TargetName;
use gapscope_proto::sample::{Cause, Style};

use super::fate::{Exposure, Fate};
use super::ledger::{Class, Ledger};
use super::load::Names;
use super::local::{RESET, is_note};
use super::row::Row;
use crate::store::manifest::{Manifest, Schedule};
use crate::store::reader::Standing;
use crate::store::verify::ABANDONED;

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

    pub(super) fn target(code: &'static str, target: &TargetName, text: impl Into<String>) -> Self {
        Self {
            code,
            target: Some(target.clone()),
            text: text.into(),
        }
    }
}

/// Clients whose target does not support what they do.
pub(super) fn left_out_caveats(
    manifest: &Manifest,
    left_out: &BTreeMap<(TargetName, Style, u16), String>,
    caveats: &mut Vec<Caveat>,
) {
    for ((target, style, client), why) in left_out {
        let kind = manifest
            .plan
            .kind_of(target, *style, *client)
            .map_or(String::new(), |kind| format!(" {kind}"));
        caveats.push(Caveat::target(
            "left_out",
            target,
            format!("{style}{kind}: not supported there, left out: {why}"),
        ));
    }
}

pub(super) fn ledger_caveats(ledger: &Ledger, caveats: &mut Vec<Caveat>) {
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

pub(super) fn run_caveats(
    manifest: &Manifest,
    standing: Standing,
    notes: &[String],
) -> Vec<Caveat> {
    let mut caveats = Vec::new();
    match standing {
        Standing::Closed => {}
        Standing::Running => caveats.push(Caveat::run(
            "running",
            "the run has not ended: these are the results so far",
        )),
        Standing::Interrupted => caveats.push(Caveat::run(
            "interrupted",
            "the run was not closed in an orderly way: what is here is valid, more may be missing",
        )),
        Standing::Abandoned => caveats.push(Caveat::run("abandoned", ABANDONED)),
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
pub(super) fn unknown_subjects(
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

pub(super) fn row_caveats(
    row: &Row,
    deadline_ns: i64,
    all_arrived: bool,
    caveats: &mut Vec<Caveat>,
) {
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
    let stood_still = slots.blind + slots.waited_no_data;
    if slots.overslept + slots.absent + slots.blind > 0 {
        say(
            "no_data",
            format!(
                "{who}: {} of {} slots hold no data (agent late{}: {}, stood still or cut: {}, no \
                 agent: {}): neither up nor down{}",
                slots.overslept + slots.absent + stood_still,
                slots.due,
                if all_arrived {
                    ""
                } else {
                    ", or sample not here"
                },
                slots.overslept,
                stood_still,
                slots.absent,
                match row.unwatched_max_ns() {
                    0 => String::new(),
                    hole => format!(
                        "; of a client nothing is known for up to {:.3} s, in which an outage may \
                         lie",
                        hole as f64 / 1e9
                    ),
                }
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

pub(super) fn few_faults(faults: &[Fault], judged: &BTreeSet<u32>, caveats: &mut Vec<Caveat>) {
    let resets = faults.iter().filter(|f| is_note(f) && f.step == RESET);
    let resets = resets.count();
    if resets > 0 {
        caveats.push(Caveat::run(
            "resets",
            format!(
                "the lab cut all connections {resets} times, to make everything as new between \
                 repetitions: figures of the whole run (available, answered, max gap, outages) hold \
                 what came of that too; those of a fault and of the repetitions do not"
            ),
        ));
    }
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

/// Of faults whose clients were not back, or that had no effect.
pub(super) fn fault_caveats(row: &Row, caveats: &mut Vec<Caveat>) {
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
