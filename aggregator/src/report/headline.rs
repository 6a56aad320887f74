//! What is said of a target in one line: the verdict of its worst fault, what the
//! clients felt, and what became of how many of them.

use std::collections::BTreeMap;

use gapscope_proto::ids::TargetName;
use gapscope_proto::plan::ClientKind;

use super::figures::{NONE, gap, seconds, short};
use super::kinds::{measuring, short_client_words};
use crate::analyse::fate::{Exposure, Fate};
use crate::analyse::row::{FaultRow, Row};
use crate::analyse::run::Analysis;
use crate::analyse::verdict::Verdict;

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

/// The worst that happened to a target: the worst verdict, of equal ones that
/// with the longest gap. Idle clients speak only where nobody else has anything to
/// say: how long is said by clients that ask often.
pub(super) fn worst<'a>(rows: &[&'a Row]) -> Option<(&'a Row, &'a FaultRow)> {
    let of = |rows: &[&'a Row]| {
        rows.iter()
            .flat_map(|row| row.faults.iter().map(move |fault| (*row, fault)))
            .min_by_key(|(_, fault)| (fault.judgement.verdict, std::cmp::Reverse(fault.gap.ns)))
    };
    match of(&measuring(rows)) {
        Some((_, fault)) if fault.judgement.verdict >= Verdict::Seamless => of(rows),
        worst => worst,
    }
}

pub(super) fn headline(analysis: &Analysis, target: &TargetName, deadline: &str) -> Headline {
    let rows: Vec<&Row> = analysis
        .rows
        .iter()
        .map(|(_, row)| row)
        .filter(|row| &row.target == target)
        .collect();
    let Some((row, fault)) = worst(&rows) else {
        let asking = measuring(&rows);
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
            (true, _) if analysis.faults_unknown().is_some() => "faults unknown",
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
        let tested = row
            .faults
            .iter()
            .filter(|f| f.judgement.verdict.is_tested());
        clients.push_str(&format!(
            "fault {}, the worst of {}: ",
            fault.fault,
            tested.count()
        ));
    }
    clients.push_str(&all_clients_words(&rows, fault.fault));
    if let Some((ns, who)) = other_timeouts(&rows, fault) {
        clients.push_str(&format!("; own timeouts up to {} ({who})", seconds(ns)));
    }
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

/// The most that any client of the target spent in its own timeouts within one
/// outage of this fault, and who, where that is more than in the gap that is shown:
/// else "no timeout" in the longest gap, a patient client's say, would read as if
/// nobody had met one.
pub(super) fn other_timeouts(rows: &[&Row], shown: &FaultRow) -> Option<(i64, String)> {
    rows.iter()
        .flat_map(|row| row.client_windows().map(move |w| (*row, w)))
        .filter(|(_, w)| w.fault == Some(shown.fault))
        .filter_map(|(row, w)| Some((w.own_timeout_ns?, row)))
        .max_by_key(|(ns, _)| *ns)
        .filter(|(ns, _)| *ns > shown.own_timeout_ns)
        .map(|(ns, row)| (ns, short_client_words(row)))
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

fn unitless_seconds(ns: i64) -> String {
    (ns as f64 / 1e9).to_string()
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

pub(super) fn verdict_words(fault: &FaultRow, deadline: &str) -> String {
    match fault.judgement.verdict {
        Verdict::Seamless => format!("seamless at {deadline}"),
        other => other.as_str().to_owned(),
    }
}
