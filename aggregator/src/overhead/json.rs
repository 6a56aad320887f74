//! A benchmark as JSON (`summary.json`). `schema_version` grows with each change
//! that a reader has to know; keys are only added otherwise.

use serde_json::{Value, json};

use super::analyse::{Analysis, CONFIDENCE, Cell, Cost, LEVEL, Spread};
use super::record::{Bench, Load};

/// Version of this layout.
pub const SCHEMA_VERSION: u32 = 1;

/// The summary.
pub fn summary(bench: &Bench, analysis: &Analysis) -> Value {
    let m = &bench.manifest;
    json!({
        "schema_version": SCHEMA_VERSION,
        "kind": m.kind,
        "run_id": m.run_id.to_string(),
        "state": m.state,
        "created_utc": m.created_utc,
        "end_reason": m.end_reason,
        "statement": m.statement,
        "protocol": m.protocol,
        "connect_each": m.connect_each,
        "load": match m.load {
            Load::Closed => json!({ "kind": "closed" }),
            Load::Open { rate } => json!({ "kind": "open", "rate": rate }),
        },
        "statements": m.statements,
        "rounds_planned": m.rounds,
        "seed": m.seed,
        "host": m.host,
        "labels": m.labels,
        "targets": m.targets,
        "method": {
            "interval": "paired t over rounds (ratio: on logarithms), single cell",
            "confidence": CONFIDENCE,
            "verdict": "max of paired t and sign-flip on log ratios, Holm",
            "level": LEVEL,
            "comparisons": analysis.comparisons,
            "quantiles": "nearest rank within a block, median over rounds",
        },
        "cells": analysis.cells.iter().map(|c| cell(bench, c)).collect::<Vec<_>>(),
        "failures": bench.failures.iter().map(|f| json!({
            "label": f.label, "round": f.round, "target": f.target, "clients": f.clients,
            "kind": f.kind, "error_code": f.code, "error": f.text, "count": f.count,
        })).collect::<Vec<_>>(),
        "caveats": analysis.caveats,
    })
}

fn spread(spread: &Spread) -> Value {
    json!({
        "median": spread.median,
        "lower": spread.interval.map(|i| i.lower),
        "upper": spread.interval.map(|i| i.upper),
        "coverage": spread.interval.map(|i| i.coverage),
        "least": spread.least,
        "most": spread.most,
    })
}

fn cost(cost: &Cost) -> Value {
    json!({
        "pairs": cost.pairs,
        "ratio": cost.ratio,
        "ratio_lower": cost.ratio_interval.map(|i| i.0),
        "ratio_upper": cost.ratio_interval.map(|i| i.1),
        "added_ns": cost.added_ns,
        "added_ns_lower": cost.added_interval.map(|i| i.0),
        "added_ns_upper": cost.added_interval.map(|i| i.1),
        "median_added_ns": cost.median_added_ns,
        "median_added_ns_lower": cost.median_added_interval.map(|i| i.0),
        "median_added_ns_upper": cost.median_added_interval.map(|i| i.1),
        "p_t": cost.p_t,
        "p_sign_flip": cost.p_sign_flip,
        "p_holm": cost.p_holm,
        "verdict": cost.verdict.as_str(),
    })
}

fn cell(bench: &Bench, c: &Cell) -> Value {
    json!({
        "label": c.label,
        "clients": c.clients,
        "target": bench.manifest.targets[c.target].name,
        "role": bench.manifest.targets[c.target].role,
        "rounds": c.rounds,
        "unsound_rounds": c.unsound,
        "total_ns": c.total_ns.as_ref().map(spread),
        "statements_per_s": c.rate,
        "latency_ns_p50": c.p50_ns,
        "latency_ns_p99": c.p99_ns,
        "latency_ns_max": c.max_ns,
        "client_cpu_ns": c.client_cpu_ns,
        "target_cpu_ns": c.target_cpu_ns,
        "errors": c.errors,
        "wrong_answers": c.wrong,
        "to_direct": c.cost.as_ref().map(cost),
    })
}
