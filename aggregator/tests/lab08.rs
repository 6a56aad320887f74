//! The published samples of lab-08, with the truth behind them. The data is not
//! part of this repository: without it the tests say so and end.

use std::path::PathBuf;

use gapscope_aggregator::commands::import::import_lab08;
use gapscope_aggregator::commands::report::{Reported, as_text, make};
use gapscope_aggregator::exit::Exit;
use gapscope_aggregator::import::lab08::GivenFault;
use gapscope_aggregator::store::RunFolder;
use gapscope_proto::ids::RunId;
use serde_json::Value;

const SWITCHOVER: &str = "switchover-20260311T034544Z.json";
const BASELINE: &str = "baseline-20260311T034544Z.json";

/// Imports a file and reports on it; none if the data is not here.
fn reported(file: &str, faults: &[&str]) -> Option<(Reported, tempfile::TempDir)> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared/data/lab08")
        .join(file);
    if !path.exists() {
        eprintln!("skipped: {} is not here", path.display());
        return None;
    }
    let faults: Vec<GivenFault> = faults
        .iter()
        .map(|fault| fault.parse().expect("a fault"))
        .collect();
    let data = tempfile::tempdir().expect("a folder");
    let folder = import_lab08(&path, RunId::generate(), &faults, data.path()).expect("imported");
    let run = RunFolder::open(&folder).expect("readable");
    Some((make(&run).expect("reported"), data))
}

fn json(reported: &Reported) -> Value {
    serde_json::from_str(&reported.json).expect("valid JSON")
}

fn target<'a>(summary: &'a Value, name: &str) -> &'a Value {
    summary["targets"]
        .as_array()
        .expect("targets")
        .iter()
        .find(|t| t["name"] == name)
        .expect("the target is there")
}

#[track_caller]
fn near(value: &Value, expect: f64, by: f64) {
    let value = value.as_f64().expect("a number");
    assert!((value - expect).abs() <= by, "{value} is not {expect}");
}

#[test]
fn the_switchover_says_what_its_samples_show() {
    let Some((reported, data)) = reported(SWITCHOVER, &["stop@10s=b0476105b8a7"]) else {
        return;
    };
    let summary = json(&reported);
    assert_eq!(summary["schema_version"], 1);
    assert_eq!(reported.exit, Exit::Ok);

    let haproxy = target(&summary, "haproxy");
    assert_eq!(haproxy["due"], 60);
    assert_eq!(haproxy["probed"], 40);
    assert_eq!(haproxy["ok"], 38);
    near(&haproxy["answered_pct"], 95.0, 1e-9);
    near(&haproxy["availability_pct"], 100.0 * 38.0 / 60.0, 1e-9);
    near(&haproxy["max_gap_s"], 11.515, 0.0005);
    assert_eq!(haproxy["max_gap_is_at_least"], false);
    assert_eq!(haproxy["connection_changes"], 1);
    assert_eq!(haproxy["session_changes"], 0);
    assert_eq!(haproxy["backend_switches"], 1);
    let fault = &haproxy["faults"][0];
    assert_eq!(fault["verdict"], "disrupted");
    assert_eq!(fault["fates"]["hung"], 1);
    assert_eq!(fault["clients"]["held"], 1);
    near(&fault["gap_s"], 11.515, 0.0005);
    near(&fault["outage_lower_s"], 0.505, 0.0005);
    near(&fault["outage_upper_s"], 11.516, 0.0005);
    near(&fault["own_timeout_s"], 10.0, 0.005);
    let clients: Vec<&Value> = haproxy["windows"]
        .as_array()
        .expect("windows")
        .iter()
        .filter(|w| w["scope"] == "client")
        .collect();
    assert_eq!(clients.len(), 1);
    assert_eq!(clients[0]["ongoing"], false);
    near(&clients[0]["gap_s"], 11.515, 0.0005);
    near(&haproxy["latency_ms"]["max"], 6.607, 0.0005);

    let proxysql = target(&summary, "proxysql");
    assert_eq!(proxysql["due"], 60);
    assert_eq!(proxysql["ok"], 60);
    near(&proxysql["availability_pct"], 100.0, 1e-9);
    assert_eq!(proxysql["backend_switches"], 1);
    assert_eq!(proxysql["session_changes"], 1);
    let fault = &proxysql["faults"][0];
    assert_eq!(fault["verdict"], "seamless");
    assert_eq!(fault["state_not_tested"], true);
    assert_eq!(fault["clients"]["held"], 1);
    assert_eq!(fault["clients"]["hurt"], 0);
    assert_eq!(fault["fates"]["switched"], 1);
    let caveats = summary["caveats"].as_array().expect("caveats");
    assert!(caveats.iter().any(|c| {
        let text = c["text"].as_str().unwrap_or_default();
        text.contains("proxysql") && text.contains("cannot tell whether the client's connection")
    }));

    let tiproxy = target(&summary, "tiproxy");
    assert_eq!(tiproxy["due"], 60);
    assert_eq!(tiproxy["faults"][0]["verdict"], "not exposed");
    assert_eq!(tiproxy["faults"][0]["gap_s"], Value::Null);
    assert_eq!(tiproxy["backends"].as_array().map(Vec::len), Some(1));
    // Its largest of 60 probes is its p99, by nearest rank.
    assert_eq!(tiproxy["latency_ms"]["p99"], tiproxy["latency_ms"]["max"]);

    let books = &summary["conservation"];
    assert_eq!(books["due"], 180);
    assert_eq!(books["stored"], 160);
    assert_eq!(books["waited"], 20);
    assert_eq!(books["balanced"], true);

    for width in [60, 80, 120, 200] {
        let text = as_text(&reported.analysis, Some(width));
        for line in text.lines() {
            assert!(
                line.chars().count() <= usize::from(width),
                "{width}: {line}"
            );
        }
    }
    let text = as_text(&reported.analysis, Some(80));
    for line in [
        "haproxy   disrupted    11.515  10.003   0.5  hung 1/1 held",
        "proxysql  seamless      0.508       -   0.5  switched 1/1 held; state not tested",
        "tiproxy   not exposed       -       -   0.5  kept 1/1 not exposed",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(text.contains("0.505..11.516 s"));
    for file in [
        "windows.parquet",
        "fates.parquet",
        "summary.parquet",
        "clock_map.parquet",
        "summary.json",
        "report.md",
    ] {
        let run = std::fs::read_dir(data.path())
            .expect("listed")
            .filter_map(Result::ok)
            .find(|e| e.path().is_dir())
            .expect("the run");
        assert!(run.path().join(file).is_file(), "{file}");
    }
}

#[test]
fn the_baseline_has_no_fault_and_no_outage() {
    let Some((reported, _data)) = reported(BASELINE, &[]) else {
        return;
    };
    assert_eq!(reported.exit, Exit::Ok);
    let summary = json(&reported);
    for name in ["haproxy", "proxysql", "tiproxy"] {
        let t = target(&summary, name);
        assert_eq!((&t["due"], &t["ok"]), (&Value::from(60), &Value::from(60)));
        assert_eq!(t["windows"].as_array().map(Vec::len), Some(0));
        assert_eq!(t["faults"].as_array().map(Vec::len), Some(0));
        assert_eq!(t["connection_changes"], 0);
        near(&t["max_gap_s"], 0.51, 0.01);
    }
}

#[test]
fn a_fault_that_reached_nobody_is_no_success() {
    let Some((reported, _data)) = reported(SWITCHOVER, &["stop@10s=nobody"]) else {
        return;
    };
    let summary = json(&reported);
    for name in ["proxysql", "tiproxy"] {
        assert_eq!(
            target(&summary, name)["faults"][0]["verdict"],
            "not exposed"
        );
    }
    // HAProxy's client was hurt all the same: that is never hidden.
    let fault = &target(&summary, "haproxy")["faults"][0];
    assert_eq!(fault["verdict"], "disrupted");
    assert_eq!(fault["collateral"], 1);
    assert_eq!(reported.exit, Exit::Ok);
}

#[test]
fn nothing_exposed_ends_with_4() {
    let Some((reported, _data)) = reported(BASELINE, &["stop@10s=nobody"]) else {
        return;
    };
    assert_eq!(reported.exit, Exit::DataLost);
}
