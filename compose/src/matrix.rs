//! Scenarios against proxies, one cell each, from the summaries of runs. Pure.
//!
//! A cell says the worst verdict over the kinds of clients and the faults of a run,
//! with how often it came where there were several faults; the longest felt gap; and
//! the outage, which is an interval and stays one. Values of several faults are
//! printed from least to most and never averaged. What was not exposed or not measured
//! says so: it is never a success.

mod render;

use serde_json::{Value, json};

pub use self::render::{markdown, text};

/// Verdicts from the worst on; the words of reports.
const WORST_FIRST: [&str; 8] = [
    "down",
    "disrupted",
    "reconnected",
    "state lost",
    "stalled",
    "seamless",
    "not exposed",
    "unmeasured",
];

/// What is known of one fault on one target.
#[derive(Debug, Clone, PartialEq)]
pub struct Once {
    /// What was done.
    pub step: String,
    /// The worst verdict over the kinds of clients.
    pub verdict: String,
    /// The longest gap that a client felt, in seconds; none if nobody was exposed.
    pub gap_s: Option<f64>,
    /// It was at least so long.
    pub gap_is_at_least: bool,
    /// The longest outage, at least and at most; no end if it was not over.
    pub outage_s: Option<(f64, Option<f64>)>,
}

impl Once {
    fn is_tested(&self) -> bool {
        !matches!(self.verdict.as_str(), "not exposed" | "unmeasured")
    }
}

/// One scenario on one proxy.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// There was a run; its judged faults.
    Ran {
        /// The run.
        run: String,
        /// In order.
        faults: Vec<Once>,
        /// Share of due slots that were answered in time, in percent, of held bare
        /// clients: all there is to say where nothing was done.
        available: Option<f64>,
    },
    /// It cannot be done there; why.
    NotApplicable(String),
    /// The run failed; why.
    NotMeasured(String),
}

/// A whole matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    /// The rows.
    pub scenarios: Vec<String>,
    /// The columns.
    pub proxies: Vec<String>,
    /// Row by row.
    pub cells: Vec<Vec<Cell>>,
}

/// How bad a verdict is; the smaller the worse. Unknown words are not hidden behind
/// known ones.
fn rank(verdict: &str) -> usize {
    WORST_FIRST
        .iter()
        .position(|known| *known == verdict)
        .unwrap_or(0)
}

/// A target's cell, from a run's summary.
pub fn cell(summary: &Value, target: &str) -> Cell {
    let empty = Vec::new();
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let rows: Vec<Value> = summary["targets"]
        .as_array()
        .unwrap_or(&empty)
        .iter()
        .filter(|row| row["name"] == target && row["kind"] != "idle")
        .cloned()
        .collect();
    if rows.is_empty() {
        return Cell::NotMeasured("no client of it is in the summary".to_owned());
    }
    let run = summary["run_id"].as_str().unwrap_or_default().to_owned();
    let mut faults = Vec::new();
    for fault in list(&summary["faults"]) {
        if fault["judged"] != true {
            continue;
        }
        let judged: Vec<Value> = rows
            .iter()
            .flat_map(|row| list(&row["faults"]))
            .filter(|row| row["fault"] == fault["id"])
            .collect();
        let step = fault["step"].as_str().unwrap_or_default();
        faults.push(once(step, &judged));
    }
    let available = rows
        .iter()
        .find(|row| row["style"] == "reused" && row["kind"] == "bare")
        .and_then(|row| row["availability_pct"].as_f64());
    Cell::Ran {
        run,
        faults,
        available,
    }
}

fn once(step: &str, judged: &[Value]) -> Once {
    let tested = || judged.iter().filter(|row| row["gap_s"].is_number());
    let worst = judged
        .iter()
        .filter_map(|row| row["verdict"].as_str())
        .min_by_key(|verdict| rank(verdict));
    let gap = tested().max_by(|a, b| {
        let of = |row: &Value| row["gap_s"].as_f64().unwrap_or(0.0);
        of(a).total_cmp(&of(b))
    });
    let outage = tested()
        .filter_map(|row| {
            let lower = row["outage_lower_s"].as_f64()?;
            Some((lower, row["outage_upper_s"].as_f64()))
        })
        .max_by(|a, b| {
            let most = |upper: Option<f64>| upper.unwrap_or(f64::INFINITY);
            most(a.1).total_cmp(&most(b.1))
        });
    Once {
        step: step.to_owned(),
        verdict: worst.unwrap_or("unmeasured").to_owned(),
        gap_s: gap.and_then(|row| row["gap_s"].as_f64()),
        gap_is_at_least: gap.is_some_and(|row| row["gap_is_at_least"] == true),
        outage_s: outage,
    }
}

impl Matrix {
    /// Whether some fault reached somebody somewhere, or nothing was to.
    pub fn tested_something(&self) -> bool {
        self.cells.iter().flatten().any(|cell| match cell {
            Cell::Ran { faults, .. } => faults.is_empty() || faults.iter().any(Once::is_tested),
            _ => false,
        })
    }

    /// Whether a run failed.
    pub fn is_incomplete(&self) -> bool {
        self.cells
            .iter()
            .flatten()
            .any(|cell| matches!(cell, Cell::NotMeasured(_)))
    }

    /// For programs.
    pub fn json(&self) -> String {
        let cells: Vec<Value> = self
            .scenarios
            .iter()
            .zip(&self.cells)
            .flat_map(|(scenario, row)| {
                self.proxies.iter().zip(row).map(move |(proxy, cell)| {
                    let mut object = cell_json(cell);
                    object["scenario"] = json!(scenario);
                    object["proxy"] = json!(proxy);
                    object
                })
            })
            .collect();
        let whole = json!({
            "format_version": 1,
            "kind": "gapscope matrix",
            "scenarios": self.scenarios,
            "proxies": self.proxies,
            "cells": cells,
        });
        let mut text = serde_json::to_string_pretty(&whole).unwrap_or_default();
        text.push('\n');
        text
    }
}

fn cell_json(cell: &Cell) -> Value {
    match cell {
        Cell::NotApplicable(why) => json!({ "state": "not applicable", "why": why }),
        Cell::NotMeasured(why) => json!({ "state": "not measured", "why": why }),
        Cell::Ran {
            run,
            faults,
            available,
        } => json!({
            "state": "measured",
            "run": run,
            "available_percent": available,
            "faults": faults.iter().map(|once| json!({
                "step": once.step,
                "verdict": once.verdict,
                "gap_s": once.gap_s,
                "gap_is_at_least": once.gap_is_at_least,
                "outage_lower_s": once.outage_s.map(|(lower, _)| lower),
                "outage_upper_s": once.outage_s.and_then(|(_, upper)| upper),
            })).collect::<Vec<_>>(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Value {
        let fault = |verdict: &str, gap: Value, lower: Value, upper: Value| {
            json!({ "fault": 1, "verdict": verdict, "gap_s": gap, "gap_is_at_least": false,
                    "outage_lower_s": lower, "outage_upper_s": upper })
        };
        let row = |name: &str, kind: &str, fault: Value| {
            json!({ "name": name, "style": "reused", "kind": kind, "availability_pct": 89.9,
                    "faults": [fault] })
        };
        json!({
            "run_id": "r1",
            "faults": [
                { "id": 1, "step": "stop", "judged": true },
                { "id": 2, "step": "proxy_view", "judged": false },
            ],
            "targets": [
                row("p", "bare", fault("reconnected", json!(1.5), json!(0.2), json!(1.6))),
                row("p", "patient", fault("disrupted", json!(3.8), json!(2.0), Value::Null)),
                row("q", "bare", fault("not exposed", Value::Null, Value::Null, Value::Null)),
            ],
        })
    }

    #[test]
    fn the_worst_of_a_target_s_clients_speaks() {
        let Cell::Ran { faults, run, .. } = cell(&summary(), "p") else {
            panic!("it ran");
        };
        assert_eq!(run, "r1");
        assert_eq!(
            faults,
            [Once {
                step: "stop".to_owned(),
                verdict: "disrupted".to_owned(),
                gap_s: Some(3.8),
                gap_is_at_least: false,
                outage_s: Some((2.0, None)),
            }]
        );
    }

    #[test]
    fn not_exposed_is_no_success_and_no_figure() {
        let cell = cell(&summary(), "q");
        let Cell::Ran { faults, .. } = &cell else {
            panic!("it ran");
        };
        assert_eq!(faults[0].verdict, "not exposed");
        assert_eq!((faults[0].gap_s, faults[0].outage_s), (None, None));
        let matrix = Matrix {
            scenarios: vec!["switchover".to_owned()],
            proxies: vec!["q".to_owned()],
            cells: vec![vec![cell]],
        };
        assert!(!matrix.tested_something());
        assert!(matrix.json().contains("\"gap_s\": null"));
    }

    #[test]
    fn a_target_without_clients_is_not_measured() {
        assert!(matches!(cell(&summary(), "r"), Cell::NotMeasured(_)));
    }

    #[test]
    fn a_verdict_that_is_not_known_is_not_hidden() {
        assert!(rank("something new") <= rank("disrupted"));
        assert!(rank("seamless") > rank("stalled"));
    }
}
