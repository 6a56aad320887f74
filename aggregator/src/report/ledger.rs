//! The write ledger, for people, programs and the run's folder.

use std::collections::BTreeMap;

use polars::prelude::*;
use serde_json::{Value as Json, json};

use super::figures::{NONE, count};
use super::files::{column, maybe, texts};
use super::table::Table;
use crate::analyse::ledger::{Class, Ledger, Place, Told};

/// Rows of a class that are named.
const NAMED: usize = 3;

/// One line for each target and place.
pub fn table(ledger: &Ledger, several_agents: bool) -> Table {
    let mut table = Table::new(
        "Write ledger, in rows",
        2,
        &[
            "target",
            "read from",
            ">acknow-\nledged,\nthere",
            ">and\nLOST",
            ">unknown,\nthere",
            ">unknown,\nnot there",
            ">refused,\nnot there",
            ">refused,\nTHERE",
            ">there\nTWICE",
            ">not\nread",
            "first wrong ones",
        ],
    );
    for place in &ledger.places {
        let target = if several_agents {
            format!("{}@{}", place.target, place.agent)
        } else {
            place.target.to_string()
        };
        let from = match (place.source.as_str(), place.backend.as_str()) {
            ("", _) => "nowhere".to_owned(),
            (source, "") => source.to_owned(),
            (source, backend) => format!("{source} ({backend})"),
        };
        let mut cells = vec![target, from];
        cells.extend(
            [
                Class::AcknowledgedThere,
                Class::AcknowledgedLost,
                Class::UnknownThere,
                Class::UnknownAbsent,
                Class::RefusedAbsent,
                Class::RefusedThere,
                Class::ThereTwice,
                Class::NotRead,
            ]
            .map(|class| count(place.count(class))),
        );
        cells.push(wrong_ones(ledger, place));
        table.rows.push(cells);
    }
    table
}

fn wrong_ones(ledger: &Ledger, place: &Place) -> String {
    let mut parts = Vec::new();
    for (class, words) in [
        (Class::AcknowledgedLost, "lost"),
        (Class::ThereTwice, "twice"),
        (Class::RefusedThere, "refused, there"),
    ] {
        let all = place.count(class);
        if all == 0 {
            continue;
        }
        let named: Vec<String> = place
            .found
            .iter()
            .filter(|found| found.class == class)
            .take(NAMED)
            .map(|found| {
                let row = &ledger.written[found.row];
                format!("client {} slot {}", row.writer.client, row.slot)
            })
            .collect();
        let more = if all > NAMED as u64 {
            format!(" and {} more", all - NAMED as u64)
        } else {
            String::new()
        };
        parts.push(format!("{words}: {}{more}", named.join(", ")));
    }
    if parts.is_empty() {
        NONE.to_owned()
    } else {
        parts.join("; ")
    }
}

/// How to read the table.
pub fn method() -> String {
    "write ledger: what each client was told of its COMMIT, against what was there after the run. \
     unknown: no answer came, or an error that leaves it open; refused: an error that does not, or \
     no COMMIT was sent. A row is called by target, client and slot; ledger.parquet has them all."
        .to_owned()
}

const fn told_word(told: Told) -> &'static str {
    match told {
        Told::Acknowledged => "acknowledged",
        Told::Unknown => "unknown",
        Told::Refused => "refused",
    }
}

/// For programs; null where nothing was written.
pub fn json(ledger: &Ledger) -> Json {
    if ledger.written.is_empty() {
        return Json::Null;
    }
    let told = |told: Told| ledger.written.iter().filter(|w| w.told == told).count();
    json!({
        "written": {
            "acknowledged": told(Told::Acknowledged),
            "unknown": told(Told::Unknown),
            "refused": told(Told::Refused),
        },
        "readings": ledger.readings.iter().map(|reading| json!({
            "agent": reading.agent.as_str(),
            "source": reading.source,
            "backend": reading.backend,
            "error": (!reading.error.is_empty()).then_some(&reading.error),
            "shared": reading.shared,
            "note": (!reading.note.is_empty()).then_some(&reading.note),
        })).collect::<Vec<_>>(),
        "places": ledger.places.iter().map(|place| place_json(ledger, place)).collect::<Vec<_>>(),
    })
}

fn place_json(ledger: &Ledger, place: &Place) -> Json {
    let counts: BTreeMap<&str, u64> = Class::ALL
        .into_iter()
        .map(|class| (class.as_str(), place.count(class)))
        .collect();
    let first_wrong: Vec<Json> = place
        .found
        .iter()
        .filter(|found| found.class.is_wrong())
        .take(20)
        .map(|found| {
            let row = &ledger.written[found.row];
            json!({
                "client": row.writer.client,
                "slot": row.slot,
                "incarnation": row.writer.incarnation,
                "class": found.class.as_str(),
                "times": found.times,
            })
        })
        .collect();
    json!({
        "agent": place.agent.as_str(),
        "target": place.target.as_str(),
        "source": (!place.source.is_empty()).then_some(&place.source),
        "backend": (!place.backend.is_empty()).then_some(&place.backend),
        "counts": counts,
        "strays": place.strays,
        "elsewhere": place.elsewhere,
        "first_wrong": first_wrong,
    })
}

/// `ledger.parquet`: a line for each row and each place where it should be, or is.
pub(super) fn frame(ledger: &Ledger) -> PolarsResult<DataFrame> {
    let all: Vec<_> = ledger
        .places
        .iter()
        .flat_map(|place| place.found.iter().map(move |found| (place, found)))
        .map(|(place, found)| (place, found, &ledger.written[found.row]))
        .collect();
    let columns = vec![
        texts(
            "agent_id",
            all.iter().map(|(p, _, _)| p.agent.to_string()).collect(),
        ),
        texts(
            "incarnation",
            all.iter()
                .map(|(_, _, w)| w.writer.incarnation.clone())
                .collect(),
        ),
        texts(
            "target",
            all.iter().map(|(p, _, _)| p.target.to_string()).collect(),
        ),
        column(
            "client",
            all.iter()
                .map(|(_, _, w)| w.writer.client)
                .collect::<Vec<u16>>(),
        ),
        column(
            "slot",
            all.iter().map(|(_, _, w)| w.slot).collect::<Vec<u64>>(),
        ),
        column(
            "scheduled_ns",
            all.iter()
                .map(|(_, _, w)| w.scheduled_ns)
                .collect::<Vec<i64>>(),
        ),
        texts(
            "told",
            all.iter()
                .map(|(_, _, w)| told_word(w.told).to_owned())
                .collect(),
        ),
        maybe_texts("answered_by", all.iter().map(|(_, _, w)| w.backend.clone())),
        maybe_texts(
            "source",
            all.iter()
                .map(|(p, _, _)| (!p.source.is_empty()).then(|| p.source.clone())),
        ),
        maybe_texts(
            "backend",
            all.iter()
                .map(|(p, _, _)| (!p.backend.is_empty()).then(|| p.backend.clone())),
        ),
        maybe("times", all.iter().map(|(_, f, _)| f.times).collect()),
        texts(
            "class",
            all.iter()
                .map(|(_, f, _)| f.class.as_str().to_owned())
                .collect(),
        ),
    ];
    DataFrame::new(all.len(), columns)
}

fn maybe_texts(name: &str, values: impl Iterator<Item = Option<String>>) -> Column {
    maybe(name, values.collect::<Vec<Option<String>>>())
}
