//! The computed tables and the report, written into the run's folder. Nothing
//! that was measured is touched; all of it can be made again.

use std::path::Path;

use polars::prelude::*;

use super::{clock_map, ledger};
use crate::analyse::latency::Value;
use crate::analyse::row::Scope;
use crate::analyse::run::Analysis;
use crate::store::StoreError;
use crate::store::disk::{Disk, sweep};

/// Writes `clock_map`, `windows`, `fates`, `summary` (Parquet), `summary.json`,
/// `report.md` and `report.html`.
///
/// # Errors
/// When a file cannot be written.
pub fn write(
    folder: &Path,
    analysis: &Analysis,
    summary_json: &str,
    markdown: &str,
    html: &str,
) -> Result<(), StoreError> {
    // What a report that was killed left behind; of no harm to this one.
    let _ = sweep(folder);
    let disk = Disk::default();
    let mut frames = vec![
        ("clock_map", clock_map::frame(&analysis.clocks)),
        ("windows", windows(analysis)),
        ("fates", fates(analysis)),
        ("summary", summary(analysis)),
    ];
    if !analysis.ledger.written.is_empty() {
        frames.push(("ledger", ledger::frame(&analysis.ledger)));
    }
    for (name, frame) in frames {
        let path = folder.join(format!("{name}.parquet"));
        let mut frame = frame.map_err(StoreError::parquet("write", &path))?;
        disk.write(&path, |out| {
            ParquetWriter::new(out)
                .finish(&mut frame)
                .map(drop)
                .map_err(StoreError::parquet("write", &path))
        })?;
    }
    disk.write_bytes(&folder.join("summary.json"), summary_json.as_bytes())?;
    disk.write_bytes(&folder.join("report.md"), markdown.as_bytes())?;
    disk.write_bytes(&folder.join("report.html"), html.as_bytes())
}

pub(super) fn column<T>(name: &str, values: Vec<T>) -> Column
where
    Series: NamedFrom<Vec<T>, [T]>,
{
    Series::new(name.into(), values).into_column()
}

pub(super) fn texts(name: &str, values: Vec<String>) -> Column {
    Series::new(name.into(), values).into_column()
}

pub(super) fn maybe<T>(name: &str, values: Vec<Option<T>>) -> Column
where
    Series: NamedFrom<Vec<Option<T>>, [Option<T>]>,
{
    Series::new(name.into(), values).into_column()
}

/// Columns that name a row.
#[derive(Default)]
struct Keys {
    agent: Vec<String>,
    target: Vec<String>,
    style: Vec<String>,
    kind: Vec<String>,
}

impl Keys {
    fn push(&mut self, row: &crate::analyse::row::Row) {
        self.agent.push(row.agent.to_string());
        self.target.push(row.target.to_string());
        self.style.push(row.style.to_string());
        self.kind.push(row.kind.to_string());
    }

    fn columns(self) -> Vec<Column> {
        vec![
            texts("agent_id", self.agent),
            texts("target", self.target),
            texts("style", self.style),
            texts("kind", self.kind),
        ]
    }
}

fn windows(analysis: &Analysis) -> PolarsResult<DataFrame> {
    let mut keys = Keys::default();
    let all: Vec<_> = analysis
        .rows
        .iter()
        .flat_map(|(_, row)| row.windows.iter().map(move |window| (row, window)))
        .collect();
    for (row, _) in &all {
        keys.push(row);
    }
    let scope = |scope: Scope| match scope {
        Scope::Client(_) => "client",
        Scope::Any => "any",
        Scope::All => "all",
    };
    let of = || all.iter().map(|(_, window)| *window);
    let mut columns = keys.columns();
    columns.extend([
        texts("scope", of().map(|w| scope(w.scope).to_owned()).collect()),
        maybe(
            "client",
            of().map(|w| match w.scope {
                Scope::Client(number) => Some(number),
                _ => None,
            })
            .collect(),
        ),
        maybe("from_ns", of().map(|w| w.from_ns).collect()),
        maybe("to_ns", of().map(|w| w.to_ns).collect()),
        maybe("first_bad_ns", of().map(|w| w.first_bad_ns).collect()),
        maybe("gap_ns", of().map(|w| w.gap_ns).collect()),
        column(
            "gap_is_at_least",
            of().map(|w| w.gap_is_at_least).collect::<Vec<bool>>(),
        ),
        column(
            "outage_lower_ns",
            of().map(|w| w.lower_ns).collect::<Vec<i64>>(),
        ),
        maybe("outage_upper_ns", of().map(|w| w.upper_ns).collect()),
        maybe("own_timeout_ns", of().map(|w| w.own_timeout_ns).collect()),
        column("bad", of().map(|w| w.bad).collect::<Vec<u64>>()),
        column("late", of().map(|w| w.late).collect::<Vec<u64>>()),
        column("ongoing", of().map(|w| w.ongoing).collect::<Vec<bool>>()),
        column(
            "never_served",
            of().map(|w| w.never_served).collect::<Vec<bool>>(),
        ),
        column("no_data", of().map(|w| w.no_data).collect::<Vec<bool>>()),
        maybe("fault", of().map(|w| w.fault).collect()),
    ]);
    DataFrame::new(all.len(), columns)
}

fn fates(analysis: &Analysis) -> PolarsResult<DataFrame> {
    let mut keys = Keys::default();
    let mut all = Vec::new();
    for (_, row) in &analysis.rows {
        for fault in &row.faults {
            for (client, seen) in &fault.clients {
                keys.push(row);
                all.push((fault, *client, seen));
            }
        }
    }
    let mut columns = keys.columns();
    let texts_of = |pick: fn(&crate::analyse::fault::Seen) -> &'static str| {
        all.iter()
            .map(|(_, _, seen)| pick(seen).to_owned())
            .collect::<Vec<String>>()
    };
    columns.extend([
        column(
            "client",
            all.iter().map(|(_, c, _)| *c).collect::<Vec<u16>>(),
        ),
        column(
            "fault",
            all.iter().map(|(f, _, _)| f.fault).collect::<Vec<u32>>(),
        ),
        column(
            "asked_earliest_ns",
            all.iter()
                .map(|(f, _, _)| f.asked.earliest_ns)
                .collect::<Vec<i64>>(),
        ),
        column(
            "asked_latest_ns",
            all.iter()
                .map(|(f, _, _)| f.asked.latest_ns)
                .collect::<Vec<i64>>(),
        ),
        texts("exposure", texts_of(|s| s.exposure.as_str())),
        texts("fate", texts_of(|s| s.fate.as_str())),
        column(
            "hurt",
            all.iter()
                .map(|(_, _, s)| s.is_hurt())
                .collect::<Vec<bool>>(),
        ),
        column(
            "bad",
            all.iter()
                .map(|(_, _, s)| s.evidence.bad)
                .collect::<Vec<u64>>(),
        ),
        column(
            "late",
            all.iter()
                .map(|(_, _, s)| s.evidence.late)
                .collect::<Vec<u64>>(),
        ),
        column(
            "gap_ns",
            all.iter().map(|(_, _, s)| s.gap.ns).collect::<Vec<i64>>(),
        ),
        column(
            "gap_is_at_least",
            all.iter()
                .map(|(_, _, s)| s.gap.is_at_least)
                .collect::<Vec<bool>>(),
        ),
        maybe(
            "first_bad_ns",
            all.iter()
                .map(|(_, _, s)| s.first_bad.map(|b| b.0))
                .collect(),
        ),
        maybe(
            "back_at_ns",
            all.iter().map(|(_, _, s)| s.back_at).collect(),
        ),
        maybe(
            "first_from_survivor_ns",
            all.iter().map(|(_, _, s)| s.first_from_survivor).collect(),
        ),
        maybe(
            "last_from_subject_ns",
            all.iter().map(|(_, _, s)| s.last_from_subject).collect(),
        ),
        maybe(
            "last_connect_to_subject_ns",
            all.iter()
                .map(|(_, _, s)| s.last_connect_to_subject)
                .collect(),
        ),
    ]);
    DataFrame::new(all.len(), columns)
}

fn summary(analysis: &Analysis) -> PolarsResult<DataFrame> {
    let mut keys = Keys::default();
    for (_, row) in &analysis.rows {
        keys.push(row);
    }
    let of = || analysis.rows.iter().map(|(_, row)| row);
    let known = |value: Option<Value>| value.filter(|v| !v.is_more_than).map(|v| v.ns);
    let mut columns = keys.columns();
    columns.extend([
        column(
            "clients",
            of().map(|r| r.clients as u64).collect::<Vec<u64>>(),
        ),
        column(
            "interval_ns",
            of().map(|r| r.interval_ns).collect::<Vec<i64>>(),
        ),
        column("due", of().map(|r| r.slots.all.due).collect::<Vec<u64>>()),
        column(
            "probed",
            of().map(|r| r.slots.all.probed).collect::<Vec<u64>>(),
        ),
        column("ok", of().map(|r| r.slots.all.ok).collect::<Vec<u64>>()),
        column("late", of().map(|r| r.slots.all.late).collect::<Vec<u64>>()),
        column(
            "in_time",
            of().map(|r| r.slots.all.in_time()).collect::<Vec<u64>>(),
        ),
        column(
            "no_data",
            of().map(|r| r.slots.all.no_data()).collect::<Vec<u64>>(),
        ),
        maybe("answered", of().map(|r| r.slots.all.answered()).collect()),
        maybe(
            "availability",
            of().map(|r| r.slots.all.availability()).collect(),
        ),
        maybe(
            "availability_healthy",
            of().map(|r| r.slots.healthy.availability()).collect(),
        ),
        maybe(
            "latency_ns_avg",
            of().map(|r| r.latency.all.avg_ns).collect(),
        ),
        maybe(
            "latency_ns_p50",
            of().map(|r| known(r.latency.all.p50)).collect(),
        ),
        maybe(
            "latency_ns_p99",
            of().map(|r| known(r.latency.all.p99)).collect(),
        ),
        maybe(
            "latency_ns_max",
            of().map(|r| known(r.latency.all.max)).collect(),
        ),
        maybe(
            "response_ns_p50",
            of().map(|r| known(r.response.all.p50)).collect(),
        ),
        maybe(
            "response_ns_p99",
            of().map(|r| known(r.response.all.p99)).collect(),
        ),
        column(
            "max_gap_ns",
            of().map(|r| r.max_gap.ns).collect::<Vec<i64>>(),
        ),
        column(
            "max_gap_is_at_least",
            of().map(|r| r.max_gap.is_at_least).collect::<Vec<bool>>(),
        ),
        maybe(
            "connection_changes",
            of().map(|r| r.style.is_held().then_some(r.changes.connections))
                .collect(),
        ),
        maybe(
            "session_changes",
            of().map(|r| r.style.is_held().then_some(r.changes.sessions))
                .collect(),
        ),
        column(
            "backend_switches",
            of().map(|r| r.changes.backends).collect::<Vec<u64>>(),
        ),
        column(
            "client_time_lost_lower_ns",
            of().map(|r| r.client_time_lost.0).collect::<Vec<i64>>(),
        ),
        maybe(
            "client_time_lost_upper_ns",
            of().map(|r| r.client_time_lost.1).collect(),
        ),
    ]);
    DataFrame::new(analysis.rows.len(), columns)
}
