//! The tables: answers and outages, verdicts, latencies, clocks.

use super::clock;
use super::figures::{NONE, bare_ms, count, gap, interval, percent, quantile, seconds};
use super::headline::verdict_words;
use super::kinds::client_words;
use super::model::agent_clocks;
use super::table::Table;
use crate::analyse::fate::Exposure;
use crate::analyse::latency::Quantiles;
use crate::analyse::row::{FaultRow, Row, Scope, longest_key};
use crate::analyse::run::Analysis;
use crate::analyse::verdict::Verdict;

pub(super) fn main_table(analysis: &Analysis) -> Table {
    let mut table = Table::new(
        "Answers and outages",
        2,
        &[
            "target",
            "style",
            ">clients",
            "~>due",
            "~>probed",
            "~>ok",
            "~>answered\n%",
            ">avail-\nable %",
            ">healthy\navail. %",
            "~>avg\nms",
            ">p50\nms",
            ">p99\nms",
            ">max\nms",
            "~>connection\nchanges",
            "~>session\nchanges",
            "~>backend\nswitches",
            ">max\ngap",
            ">outages",
            ">longest\noutage",
            ">own\ntimeout",
            ">somebody\nhurt",
            ">nobody\nserved",
            "~>client-time\nlost",
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
                .map_or(NONE.to_owned(), |ns| bare_ms(ns as i64)),
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

pub(super) fn fault_table(analysis: &Analysis, deadline: &str) -> Table {
    let mut table = Table::new(
        "Verdicts",
        3,
        &[
            "target",
            "style",
            "fault",
            "verdict",
            "~>held",
            "~>shared",
            "~>other",
            "~>hurt",
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
    // The headline says it already.
    table.is_detail = analysis.judged.len() < 2;
    table
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

pub(super) fn latency_table(analysis: &Analysis) -> Table {
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
                    .map_or(NONE.to_owned(), |ns| bare_ms(ns as i64)),
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
    table.is_detail = true;
    table.without_empty_columns()
}

/// Only where several clocks have to be related.
pub(super) fn clock_table(analysis: &Analysis) -> Table {
    if analysis.has_several_clocks() {
        clock::epoch_table(&analysis.clocks, &agent_clocks(analysis))
    } else {
        Table::default()
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

pub(super) fn deadline_ns(analysis: &Analysis) -> i64 {
    i64::try_from(analysis.manifest.plan.deadline_ns).unwrap_or(i64::MAX)
}
