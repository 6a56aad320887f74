//! What clients of different kinds went through, side by side: which were hurt in
//! a fault, what idle connections met, what a pool's pings told.

use std::collections::BTreeMap;

use gapscope_proto::ids::TargetName;
use gapscope_proto::plan::ClientKind;
use gapscope_proto::sample::{Cause, Outcome, Style};

use super::figures::{NONE, count, short};
use super::table::Table;
use crate::analyse::fate::{Exposure, Fate};
use crate::analyse::row::{FaultRow, Row};

/// "reused", "reused patient", "reused idle 30 s".
pub fn client_words(row: &Row) -> String {
    match row.kind {
        ClientKind::Bare => row.style.to_string(),
        ClientKind::Idle => format!("{} idle {}", row.style, short(row.interval_ns)),
        kind => format!("{} {kind}", row.style),
    }
}

/// As short as one can tell them apart within a target: "reused", "patient",
/// "user_variable", "idle 30 s".
pub fn short_client_words(row: &Row) -> String {
    match row.kind {
        ClientKind::Bare => row.style.to_string(),
        ClientKind::Idle => format!("idle {}", short(row.interval_ns)),
        ClientKind::Patient if row.style != Style::Reused => format!("{} patient", row.style),
        kind => kind.to_string(),
    }
}

fn is_sparse(row: &Row) -> bool {
    row.kind == ClientKind::Idle
}

/// Rows that measure an outage's length: idle clients only say whether a
/// connection was there, unless there is nothing else.
pub fn measuring<'a>(rows: &[&'a Row]) -> Vec<&'a Row> {
    let dense: Vec<&Row> = rows.iter().copied().filter(|row| !is_sparse(row)).collect();
    if dense.is_empty() {
        rows.to_vec()
    } else {
        dense
    }
}

/// Who was hurt, by kind: one line for each target and fault, where there are
/// clients that keep state beside ones that do not.
pub fn hurt_table(rows: &[&Row]) -> Table {
    let mut table = Table::new(
        "Hurt, by kind of client",
        2,
        &["target", ">fault", "hurt, of the clients that were watched"],
    );
    let mut targets: Vec<&TargetName> = Vec::new();
    for row in rows {
        if !targets.contains(&&row.target) {
            targets.push(&row.target);
        }
    }
    for target in targets {
        let of_target: Vec<&Row> = rows
            .iter()
            .copied()
            .filter(|row| &row.target == target)
            .collect();
        let keeps_state = |row: &&Row| {
            matches!(row.kind, ClientKind::Canary(_))
                || matches!(row.style, Style::Prepared | Style::Transaction)
        };
        if !of_target.iter().any(keeps_state) || of_target.iter().all(keeps_state) {
            continue;
        }
        let mut faults: BTreeMap<u32, Vec<(&Row, &FaultRow)>> = BTreeMap::new();
        for row in &of_target {
            for fault in &row.faults {
                faults.entry(fault.fault).or_default().push((row, fault));
            }
        }
        for (id, seen) in faults {
            table
                .rows
                .push(vec![target.to_string(), id.to_string(), hurt_words(&seen)]);
        }
    }
    table
}

/// "reused 1 of 20, user_variable 12 of 12 (state lost 12)"
fn hurt_words(seen: &[(&Row, &FaultRow)]) -> String {
    let mut kinds: Vec<(String, u64, u64, u64)> = Vec::new();
    for (row, fault) in seen {
        let judgement = &fault.judgement;
        let watched: u64 = judgement
            .counts
            .iter()
            .filter(|((exposure, _), _)| *exposure != Exposure::Unmeasured)
            .map(|(_, n)| n)
            .sum();
        let lost = judgement
            .fates()
            .get(&Fate::StateLost)
            .copied()
            .unwrap_or(0);
        let name = short_client_words(row);
        match kinds.iter_mut().find(|kind| kind.0 == name) {
            Some(kind) => {
                kind.1 += judgement.hurt;
                kind.2 += watched;
                kind.3 += lost;
            }
            None => kinds.push((name, judgement.hurt, watched, lost)),
        }
    }
    kinds
        .iter()
        .map(|(name, hurt, watched, lost)| {
            let lost = match lost {
                0 => String::new(),
                n => format!(" (state lost {n})"),
            };
            format!("{name} {hurt} of {watched}{lost}")
        })
        .collect::<Vec<_>>()
        .join(", ")
}

/// What idle connections met.
pub fn idle_table(rows: &[&Row]) -> Table {
    let mut table = Table::new(
        "Idle connections",
        2,
        &[
            "target",
            ">idle for",
            ">clients",
            ">probes",
            ">answered",
            ">not\nanswered",
            "found",
        ],
    );
    for row in rows.iter().filter(|row| is_sparse(row)) {
        let slots = &row.slots.all;
        let found: Vec<String> = row
            .errors
            .iter()
            .filter(|((outcome, _, _), _)| *outcome != Outcome::AgentError)
            .map(|((outcome, cause, _), error)| {
                let cause = cause.map_or(String::new(), |cause| format!(" ({cause})"));
                format!("{outcome}{cause} {}", error.count)
            })
            .collect();
        table.rows.push(vec![
            row.target.to_string(),
            short(row.interval_ns),
            count(row.clients as u64),
            count(slots.probed),
            count(slots.ok),
            count(slots.probed - slots.ok),
            if found.is_empty() {
                NONE.to_owned()
            } else {
                found.join(", ")
            },
        ]);
    }
    table
}

/// What the pools' pings told.
pub fn pool_table(rows: &[&Row]) -> Table {
    let mut table = Table::new(
        "Pools: what COM_PING told",
        1,
        &[
            "target",
            ">uses",
            "connection dead at the ping, replaced",
            "ping answered, statement not",
        ],
    );
    for row in rows.iter().filter(|row| row.kind == ClientKind::Pool) {
        table.rows.push(vec![
            row.target.to_string(),
            count(row.slots.all.probed),
            by_cause(&row.pool.dead_at_ping),
            by_cause(&row.pool.failed_after_ping),
        ]);
    }
    table
}

fn by_cause(counts: &BTreeMap<Option<Cause>, u64>) -> String {
    if counts.is_empty() {
        return "0".to_owned();
    }
    counts
        .iter()
        .map(|(cause, n)| format!("{n} ({})", cause.map_or(NONE, Cause::as_str)))
        .collect::<Vec<_>>()
        .join(", ")
}
