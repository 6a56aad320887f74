//! One sentence a target: who was hit, what became of them, how long it took, and
//! how sure that is. Made of the numbers in the tables; where something was not
//! tested, that is the sentence.

use gapscope_proto::fault::{Fault, FaultScope};
use gapscope_proto::ids::TargetName;

use super::figures::{gap, interval, percent, seconds, short};
use super::headline::{other_timeouts, worst};
use super::kinds::{measuring, short_client_words};
use super::tables::deadline_ns;
use crate::analyse::fate::{Exposure, Fate};
use crate::analyse::repeat;
use crate::analyse::row::{FaultRow, Row, longest_key};
use crate::analyse::run::Analysis;
use crate::analyse::stretch::MaxGap;
use crate::analyse::verdict::Verdict;

/// "haproxy: all 8 clients were on db-1 when it was stopped; all were hurt ..."
pub(super) fn conclusion(analysis: &Analysis, target: &TargetName, deadline: &str) -> String {
    let rows: Vec<&Row> = analysis
        .rows
        .iter()
        .map(|(_, row)| row)
        .filter(|row| &row.target == target)
        .collect();
    let said = match worst(&rows) {
        None => without_fault(&rows, analysis.faults_unknown(), deadline_ns(analysis)),
        Some((_, judged)) => {
            let id = judged.fault;
            let fault = analysis.faults.iter().find(|f| f.id == id);
            let all: Vec<(&Row, &FaultRow)> = rows
                .iter()
                .flat_map(|row| row.faults.iter().map(move |f| (*row, f)))
                .filter(|(_, f)| f.fault == id)
                .collect();
            let of_several = rows.iter().map(|r| r.faults.len()).max().unwrap_or(0) > 1;
            let mut said = in_fault(&all, fault, (deadline, deadline_ns(analysis)));
            if of_several {
                said = format!("in fault {id}, the worst for it, {said}");
            }
            if let Some(again) = repeated(analysis, target) {
                said.push(' ');
                said.push_str(&again);
            }
            said
        }
    };
    format!("{target}: {said}")
}

/// "Of 19 further times its reused clients were disrupted 17 (67-97 %), ..."
fn repeated(analysis: &Analysis, target: &TargetName) -> Option<String> {
    let groups = repeat::all(analysis);
    // Of several groups that with the most repetitions that tested this target;
    // of its rows the one that asks most often.
    let (_, row, found) = groups
        .iter()
        .flat_map(|(group, rows)| rows.iter().map(move |(at, r)| (group, at, r)))
        .map(|(group, at, r)| (group, &analysis.rows[*at].1, r))
        .filter(|(_, row, r)| &row.target == target && !r.rest.is_empty())
        .max_by_key(|(_, row, r)| {
            let is_bare = row.kind == gapscope_proto::plan::ClientKind::Bare;
            (r.rest.len(), std::cmp::Reverse(row.interval_ns), is_bare)
        })?;
    let shares: Vec<String> = found
        .verdicts
        .iter()
        .map(|(verdict, share)| {
            format!(
                "{} {} ({:.0}-{:.0} %)",
                verdict.as_str(),
                share.k,
                share.interval.0 * 100.0,
                share.interval.1 * 100.0
            )
        })
        .collect();
    let mut said = format!(
        "In {} further repetitions its {} clients were {}",
        found.rest.len(),
        short_client_words(row),
        shares.join(", ")
    );
    match (found.gap_median, found.gap_interval) {
        (Some(median), Some((low, high))) => said.push_str(&format!(
            "; median gap {} ({})",
            seconds(median),
            interval(low, high)
        )),
        (Some(median), None) => said.push_str(&format!(
            "; median gap {}, too few for an interval",
            seconds(median)
        )),
        _ => {}
    }
    said.push('.');
    Some(said)
}

/// What is to be kept in mind with all of the sentences.
pub(super) fn closing(analysis: &Analysis) -> Option<String> {
    analysis
        .caveats
        .iter()
        .any(|caveat| caveat.code == "one_fault")
        .then(|| {
            if !repeat::all(analysis).is_empty() {
                "Some faults came once only: one of a kind cannot tell luck from behaviour."
            } else {
                "One fault of a kind cannot tell luck from behaviour: repeat it."
            }
            .to_owned()
        })
}

fn without_fault(rows: &[&Row], unknown: Option<&str>, deadline_ns: i64) -> String {
    let due: u64 = rows.iter().map(|r| r.slots.all.due).sum();
    let no_data: u64 = rows.iter().map(|r| r.slots.all.no_data()).sum();
    let in_time: u64 = rows.iter().map(|r| r.slots.all.in_time()).sum();
    if rows.iter().all(|r| r.slots.all.probed == 0) {
        return "nothing was measured: it was not probed.".to_owned();
    }
    if rows.iter().all(|r| r.slots.all.ok == 0) {
        return "not one probe was answered.".to_owned();
    }
    let share = (due > no_data).then(|| in_time as f64 / (due - no_data) as f64);
    let max = rows.iter().map(|r| r.max_gap).reduce(MaxGap::max);
    let (of, known) = if no_data == 0 {
        ("of the due slots", String::new())
    } else {
        let known = percent(Some((due - no_data) as f64 / due as f64));
        let known = format!(" ({known} % of the due slots hold data)");
        ("of the slots with data", known)
    };
    let unwatched = rows.iter().map(|r| r.unwatched_max_ns()).max().unwrap_or(0);
    let unseen = unseen(rows, deadline_ns).map_or(String::new(), |unseen| format!("; {unseen}"));
    format!(
        "{}; {} % {of} were answered in time{known}, the longest time without an answer was \
         {}{}{unseen}.",
        unknown.unwrap_or("no fault was done"),
        percent(share),
        gap(max.unwrap_or_default()),
        if unwatched > 0 {
            format!(
                "; of a client nothing is known for up to {}",
                seconds(unwatched)
            )
        } else {
            String::new()
        }
    )
}

fn clients(n: u64) -> String {
    match n {
        1 => "1 client".to_owned(),
        n => format!("{n} clients"),
    }
}

/// "all 8", "6 of 8", "its only client"
fn of_all(part: u64, all: u64) -> String {
    match (part, all) {
        (1, 1) => "its only client".to_owned(),
        (0, _) => "no client".to_owned(),
        (p, a) if p == a => format!("all {} clients", a),
        (p, a) => format!("{p} of {} clients", a),
    }
}

fn was(n: u64) -> &'static str {
    if n == 1 || n == 0 { "was" } else { "were" }
}

fn in_fault(all: &[(&Row, &FaultRow)], fault: Option<&Fault>, deadline: (&str, i64)) -> String {
    let count = |exposure: Exposure| -> u64 {
        all.iter().map(|(_, f)| f.judgement.exposed(exposure)).sum()
    };
    let (held, shared) = (count(Exposure::Held), count(Exposure::Shared));
    let (others, unmeasured) = (count(Exposure::None), count(Exposure::Unmeasured));
    let total = held + shared + others + unmeasured;
    let exposed = held + shared;
    let hurt: u64 = all.iter().map(|(_, f)| f.judgement.hurt).sum();
    let collateral: u64 = all.iter().map(|(_, f)| f.judgement.collateral).sum();
    let (step, subject) = fault.map_or(("it", "its subject"), |f| (&*f.step, &*f.subject));
    let reaches_all =
        fault.is_some_and(|f| !matches!(f.scope, FaultScope::Backend | FaultScope::Mark));
    let verdict = all.iter().map(|(_, f)| f.judgement.verdict).min();
    let asked = match fault.map(|f| f.scope) {
        Some(FaultScope::Mark) => "the fault was marked".to_owned(),
        _ => format!("its {step} was asked for"),
    };

    let before = if hurt == 0 {
        let is_mark = fault.is_some_and(|f| f.scope == FaultScope::Mark);
        before(all, is_mark, deadline.1)
    } else {
        None
    };
    if exposed == 0 && hurt == 0 {
        let before = before.map_or(String::new(), |before| format!("; {before}"));
        return if unmeasured == total {
            format!(
                "nothing is known: no client had an answer just before {asked}, or none was \
                 watched after{before}."
            )
        } else {
            format!("no client was on {subject} when {asked}: of that, nothing was tested{before}.")
        };
    }
    let who = if reaches_all {
        format!(
            "{step} {subject} reaches every client, {} {} served just before",
            of_all(exposed, total),
            was(exposed)
        )
    } else {
        format!(
            "{} {} on {subject} when {asked}",
            of_all(exposed, total),
            was(exposed)
        )
    };
    let mut parts = vec![who];
    if hurt == 0 {
        parts.push(unhurt(all, verdict, deadline));
        parts.extend(before);
    } else {
        let mut became = what_became(all, hurt, (exposed, total), collateral);
        if let Some(felt) = felt(all) {
            became.push_str(&format!(" and {felt}"));
        }
        parts.push(became);
        parts.extend(how_long(all));
    }
    if shared > 0 {
        parts.push(match shared {
            1 => "one of these was on it only in part".to_owned(),
            n => format!("{n} of these were on it only in part"),
        });
    }
    if unmeasured > 0 {
        parts.push(format!("of {} nothing is known", clients(unmeasured)));
    }
    format!("{}.", parts.join("; "))
}

fn unhurt(
    all: &[(&Row, &FaultRow)],
    verdict: Option<Verdict>,
    (deadline, deadline_ns): (&str, i64),
) -> String {
    let slowest = slowest(all, deadline_ns).map_or(String::new(), |slowest| format!("; {slowest}"));
    if all.iter().all(|(_, f)| f.without_effect) {
        return format!("it had no effect that was seen{slowest}");
    }
    if verdict == Some(Verdict::Unmeasured) {
        let watched = |f: &FaultRow| f.watched_until_ns.saturating_sub(f.asked.latest_ns);
        let watched = all.iter().map(|(_, f)| watched(f)).max().unwrap_or(0);
        return format!(
            "in the {} that were watched after it nothing bad was seen, which says nothing",
            seconds(watched.max(0))
        );
    }
    let untested = all.iter().any(|(_, f)| f.judgement.state_not_tested);
    let canary = all
        .iter()
        .any(|(row, _)| matches!(row.kind, gapscope_proto::plan::ClientKind::Canary(_)));
    let state = match (untested, canary) {
        (true, false) => "; whether their sessions' state survived was not tested",
        _ => "",
    };
    let of = |wanted: &[Fate]| -> u64 {
        all.iter()
            .flat_map(|(_, f)| &f.clients)
            .filter(|(_, seen)| wanted.contains(&seen.fate))
            .count() as u64
    };
    let mut moved = Vec::new();
    for (fates, what) in [
        (&[Fate::Reconnected][..], "went on over a new connection"),
        (
            &[Fate::Switched, Fate::Migrated],
            "moved to another backend",
        ),
        (&[Fate::Undrained], "stayed where they were to the end"),
    ] {
        match of(fates) {
            0 => {}
            n => moved.push(format!("{} {what}", clients(n))),
        }
    }
    let moved = if moved.is_empty() {
        String::new()
    } else {
        format!("{}; ", moved.join(", "))
    };
    let rows: Vec<&Row> = all.iter().map(|(row, _)| *row).collect();
    format!(
        "{moved}each of their probes, {}, was answered within {deadline}{slowest}{}{state}",
        how_often(&rows),
        unseen(&rows, deadline_ns).map_or(String::new(), |unseen| format!("; {unseen}"))
    )
}

/// Whether a client went without an answer for longer than it asks and is answered when
/// nothing happens: by some share of the deadline, or it is not worth a word.
fn stands_out(row: &Row, gap_ns: i64, deadline_ns: i64) -> bool {
    let healthy = row.latency.healthy.p99.map_or(0, |p99| p99.ns);
    let ordinary = healthy.saturating_mul(3).max(deadline_ns / 5);
    gap_ns.saturating_sub(row.interval_ns) > ordinary
}

/// Nobody was hurt by the deadline, and yet somebody waited.
fn slowest(all: &[(&Row, &FaultRow)], deadline_ns: i64) -> Option<String> {
    let (row, fault) = all
        .iter()
        .filter(|(row, f)| stands_out(row, f.gap.ns, deadline_ns))
        .max_by_key(|(_, f)| f.gap.ns)?;
    Some(format!(
        "its {} clients went up to {} without an answer",
        short_client_words(row),
        gap(fault.gap)
    ))
}

/// Nothing happened after the fault, and something before it: a mark may be late.
fn before(all: &[(&Row, &FaultRow)], is_mark: bool, deadline_ns: i64) -> Option<String> {
    let (row, asked, before) = all
        .iter()
        .filter_map(|(row, f)| Some((*row, f.asked.earliest_ns, f.before?)))
        .filter(|(row, _, b)| b.is_bad || stands_out(row, b.ns(), deadline_ns))
        // Of an outage, whoever asks most often knows best.
        .min_by_key(|(row, _, b)| {
            let (often, long) = if b.is_bad {
                (row.interval_ns, 0)
            } else {
                (0, b.ns())
            };
            (!b.is_bad, often, std::cmp::Reverse(long))
        })?;
    let who = short_client_words(row);
    // The outage that holds this time, with its bounds.
    let outage = row
        .client_windows()
        .filter(|w| {
            w.first_bad_ns
                .is_some_and(|at| (before.from_ns..=before.to_ns).contains(&at))
        })
        .max_by_key(|w| longest_key(w));
    let what = match outage {
        Some(w) => format!(
            "an outage of {} (by its {who} clients)",
            interval(w.lower_ns, w.upper_ns)
        ),
        None => format!(
            "a time of {} without an answer (its {who} clients)",
            seconds(before.ns())
        ),
    };
    Some(format!(
        "{what} began {} before it, outside every fault{}",
        seconds(
            asked.saturating_sub(
                outage
                    .and_then(|w| w.first_bad_ns)
                    .unwrap_or(before.from_ns)
            )
        ),
        if is_mark { " (was the mark late?)" } else { "" }
    ))
}

/// "one each 10 ms to 200 ms": what lies between two probes of a client.
fn how_often(rows: &[&Row]) -> String {
    let rows = measuring(rows);
    let intervals = || rows.iter().map(|row| row.interval_ns);
    match (intervals().min(), intervals().max()) {
        (Some(least), Some(most)) if least < most => {
            format!("one each {} to {}", short(least), short(most))
        }
        (_, most) => format!("one each {}", short(most.unwrap_or(0))),
    }
}

/// What clients that ask less often than the deadline is long cannot have seen.
fn unseen(rows: &[&Row], deadline_ns: i64) -> Option<String> {
    let rows = measuring(rows);
    let seldom = rows.iter().filter(|row| row.interval_ns > deadline_ns);
    let (most, who) = seldom
        .map(|row| (row.unseen_ns, short_client_words(row)))
        .max()?;
    let all = rows.iter().all(|row| row.interval_ns > deadline_ns);
    let of = if all {
        String::new()
    } else {
        format!(" of {who} clients")
    };
    Some(format!(
        "an outage{of} of up to {} can have passed between two probes unseen",
        seconds(most)
    ))
}

/// "all were hurt (dropped 6, failed 2)"
fn what_became(
    all: &[(&Row, &FaultRow)],
    hurt: u64,
    (exposed, total): (u64, u64),
    collateral: u64,
) -> String {
    let mut fates: std::collections::BTreeMap<Fate, u64> = std::collections::BTreeMap::new();
    for (_, fault) in all {
        for (_, seen) in fault.clients.iter().filter(|(_, s)| s.is_hurt()) {
            *fates.entry(seen.fate).or_insert(0) += 1;
        }
    }
    let words: Vec<String> = fates
        .iter()
        .map(|(fate, n)| format!("{} {n}", fate.as_str()))
        .collect();
    let who = if hurt == exposed && collateral == 0 {
        if hurt == 1 { "it" } else { "all of them" }.to_owned()
    } else {
        of_all(hurt, total)
    };
    let verb = if who.starts_with("all") {
        "were"
    } else {
        was(hurt)
    };
    let mut said = format!("{who} {verb} hurt ({}", words.join(", "));
    if collateral > 0 {
        said.push_str(&format!("; {} not served by it", clients(collateral)));
    }
    said.push(')');
    said
}

/// "went up to 3.048 s (patient) to 3.801 s (new) without an answer"
fn felt(all: &[(&Row, &FaultRow)]) -> Option<String> {
    let hurt = || {
        all.iter()
            .filter(|(_, f)| f.judgement.hurt > 0 && f.gap.ns > 0)
    };
    let (a, short) = hurt().min_by_key(|(_, f)| f.gap.ns)?;
    let (b, long) = hurt().max_by_key(|(_, f)| f.gap.ns)?;
    let mut said = if long.gap.ns.saturating_sub(short.gap.ns) < 1_000_000 {
        format!("went up to {} without an answer", gap(long.gap))
    } else {
        format!(
            "went up to {} ({}) to {} ({}) without an answer",
            gap(short.gap),
            short_client_words(a),
            gap(long.gap),
            short_client_words(b)
        )
    };
    if long.own_timeout_ns > 0 {
        said.push_str(&format!(
            ", {} of it the client's own timeout",
            seconds(long.own_timeout_ns)
        ));
    }
    let rows: Vec<&Row> = all.iter().map(|(row, _)| *row).collect();
    if let Some((ns, who)) = other_timeouts(&rows, long) {
        said.push_str(&format!(
            ", its {who} clients up to {} in their own timeouts",
            seconds(ns)
        ));
    }
    Some(said)
}

fn how_long(all: &[(&Row, &FaultRow)]) -> Vec<String> {
    let mut said = Vec::new();
    let lost: u64 = all
        .iter()
        .filter_map(|(_, f)| f.judgement.fates().get(&Fate::Lost).copied())
        .sum();
    if lost > 0 {
        let watched = all
            .iter()
            .map(|(_, f)| f.watched_until_ns.saturating_sub(f.asked.latest_ns))
            .max()
            .unwrap_or(0);
        said.push(format!(
            "{} {} not back within the {} that were watched",
            clients(lost),
            was(lost),
            seconds(watched)
        ));
    }
    // Whoever asks most often knows best.
    let asks_most = all
        .iter()
        .filter(|(_, f)| f.judgement.hurt > 0 && f.outage.is_some())
        .min_by_key(|(row, _)| row.interval_ns);
    if let Some((row, fault)) = asks_most
        && let Some((lower, upper)) = fault.outage
    {
        said.push(format!(
            "the service can have been out for {} (by its {} clients)",
            interval(lower, upper),
            short_client_words(row)
        ));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_read_like_words() {
        assert_eq!(of_all(8, 8), "all 8 clients");
        assert_eq!(of_all(1, 8), "1 of 8 clients");
        assert_eq!(of_all(1, 1), "its only client");
        assert_eq!(of_all(0, 3), "no client");
    }
}
