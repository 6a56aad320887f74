//! Every style and kind of client behind the embedded proxies that move sessions
//! and that share connections: what becomes of each when the backend that it uses
//! stops, is killed, hangs or is cut off is what is known of the proxy.
//!
//! Both proxies stand in front of the same two backends in one run, so that both
//! meet the same fault.

mod common;

use std::collections::BTreeMap;

use serde_json::Value;

/// What `l7-migrating` can make again elsewhere.
const CARRIED: [&str; 5] = [
    "user_variable",
    "session_variable",
    "prepared_binary",
    "current_database",
    "character_set",
];

/// What it cannot: it closes such a session when its backend is lost.
const NOT_CARRIED: [&str; 4] = [
    "prepared_text",
    "temporary_table",
    "named_lock",
    "open_transaction",
];

/// Runs the lab with all kinds of clients of both proxies and one step at 3 s.
fn measure(step: &str, duration: &str) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let scenario = folder.path().join("scenario.toml");
    let canaries: Vec<String> = CARRIED
        .iter()
        .chain(&NOT_CARRIED)
        .map(|word| format!("\"{word}\""))
        .collect();
    std::fs::write(
        &scenario,
        format!(
            r#"
name = "kinds"
duration = "{duration}"
# Generous, so that a busy machine is neither late nor asleep.
deadline = "2s"
[clients]
reused = 5
interval = "50ms"
patient = 0
new = 0
canaries = [{canaries}]
canary_interval = "400ms"
prepared = 2
pool = 1
timeout = "9s"
[[backend]]
name = "db-1"
[[backend]]
name = "db-2"
[[proxy]]
name = "migrating"
kind = "l7-migrating"
[[proxy]]
name = "multiplexing"
kind = "l7-multiplexing"
[[timeline]]
at = "3s"
do = "{step}"
subject = "db-1"
jitter = "0s"
"#,
            canaries = canaries.join(", ")
        ),
    )
    .expect("written");
    let output = common::lab()
        .args(["run", "--format", "json"])
        .arg("--data")
        .arg(folder.path().join("runs"))
        .arg(&scenario)
        .output()
        .expect("the lab runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let summary: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("no summary ({error}): {said}"));
    assert_eq!(summary["conservation"]["balanced"], true, "{said}");
    summary
}

/// What became of each kind's clients of a proxy in the fault.
fn by_kind(summary: &Value, proxy: &str) -> BTreeMap<String, Value> {
    summary["targets"]
        .as_array()
        .expect("targets")
        .iter()
        .filter(|row| row["name"] == proxy)
        .map(|row| {
            let name = match (row["style"].as_str(), row["kind"].as_str()) {
                (Some(style), Some("bare")) => style.to_owned(),
                (_, kind) => kind.unwrap_or_default().to_owned(),
            };
            (name, row["faults"][0].clone())
        })
        .collect()
}

/// Clients by fate.
fn fates(fault: &Value) -> Vec<&str> {
    let fates = fault["fates"].as_object().expect("fates");
    fates.keys().map(String::as_str).collect()
}

fn clients(fault: &Value, what: &str) -> u64 {
    fault["clients"][what].as_u64().expect("a count")
}

/// Each kind's clients met one of these fates, or were asleep.
#[track_caller]
fn check(faults: &BTreeMap<String, Value>, kinds: &[&str], allowed: &[&str]) {
    for kind in kinds {
        let found = fates(&faults[*kind]);
        assert!(
            found
                .iter()
                .all(|fate| allowed.contains(fate) || *fate == "unmeasured"),
            "{kind}: {found:?} where {allowed:?}\n{:#}",
            faults[*kind]
        );
    }
}

/// Of a lost backend: carried sessions go on elsewhere; the others are closed, so
/// their clients are hurt, and never go on with their state gone.
#[track_caller]
fn check_migrating(summary: &Value, carried: &[&str], closed: &[&str]) {
    let faults = by_kind(summary, "migrating");
    for (kind, fault) in &faults {
        // All were on the preferred backend.
        assert_eq!(
            clients(fault, "shared") + clients(fault, "none"),
            0,
            "{kind}: {fault:#}"
        );
    }
    check(&faults, &["reused", "pool"], carried);
    for kind in CARRIED.iter().chain(&["prepared"]) {
        // An execution that was under way may have had an effect: it is not sent
        // again, and that is said (2013), but the session goes on.
        let told = [carried, &["failed"]].concat();
        let is_prepared = kind.starts_with("prepared");
        check(&faults, &[kind], if is_prepared { &told } else { carried });
    }
    check(&faults, &NOT_CARRIED, closed);
    if !carried.contains(&"stalled") {
        for kind in CARRIED {
            let fault = &faults[kind];
            let told = u64::from(kind.starts_with("prepared") && fates(fault).contains(&"failed"));
            assert_eq!(clients(fault, "hurt"), told, "{kind}: {fault:#}");
        }
    }
    let measured = NOT_CARRIED
        .iter()
        .filter(|kind| clients(&faults[**kind], "held") > 0);
    let mut hurt = 0;
    for kind in measured {
        assert_eq!(
            clients(&faults[*kind], "hurt"),
            1,
            "{kind}: {:#}",
            faults[*kind]
        );
        hurt += 1;
    }
    assert!(hurt >= 2, "{faults:#?}");
}

/// Bare clients are on every backend and feel next to nothing; who keeps state is
/// pinned, and all who are pinned to the victim are hurt, nobody else.
#[track_caller]
fn check_multiplexing(summary: &Value, most_hurt: u64) {
    let faults = by_kind(summary, "multiplexing");
    let bare = &faults["reused"];
    // Whose turn falls on which is chance, so a client may have met one of them alone
    // in the last second.
    assert!(clients(bare, "shared") >= 1, "{bare:#}");
    assert!(clients(bare, "hurt") <= most_hurt, "{bare:#}");
    check(&faults, &["reused"], &["kept", "switched", "stalled"]);
    let (mut pinned, mut spared) = (0, 0);
    for kind in CARRIED.iter().chain(&NOT_CARRIED) {
        let fault = &faults[*kind];
        assert_eq!(clients(fault, "shared"), 0, "{kind}: {fault:#}");
        assert_eq!(
            clients(fault, "hurt"),
            clients(fault, "held"),
            "{kind}: {fault:#}"
        );
        assert_eq!(fault["collateral"], 0, "{kind}: {fault:#}");
        pinned += clients(fault, "held");
        spared += clients(fault, "none");
    }
    // In turn, so some on each.
    assert!(pinned >= 2 && spared >= 2, "{pinned} {spared}\n{faults:#?}");
}

/// Both speak the protocol, and a look beside the probes says so.
#[track_caller]
fn check_looks(summary: &Value) {
    let looks = summary["looks"].as_array().expect("looks");
    for proxy in ["migrating", "multiplexing"] {
        let own_ids = looks
            .iter()
            .filter(|look| look["name"] == proxy && look["error"] == "")
            .flat_map(|look| look["shows"].as_array().expect("words"))
            .any(|words| {
                words
                    .as_str()
                    .is_some_and(|w| w.starts_with("ids of its own"))
            });
        assert!(own_ids, "{looks:#?}");
    }
}

const GOES_ON: [&str; 3] = ["migrated", "switched", "kept"];
const CUT: [&str; 2] = ["reconnected", "dropped"];

#[test]
fn a_stopped_backend() {
    let summary = measure("stop", "8s");
    check_migrating(&summary, &GOES_ON, &CUT);
    check_multiplexing(&summary, 2);
    check_looks(&summary);
}

#[test]
fn a_killed_backend() {
    let summary = measure("kill", "8s");
    check_migrating(&summary, &GOES_ON, &CUT);
    check_multiplexing(&summary, 2);
}

#[test]
fn a_hung_backend() {
    let summary = measure("hang", "14s");
    check_hung(&summary);
}

#[test]
fn a_backend_that_is_cut_off() {
    let summary = measure("black_hole", "14s");
    check_hung(&summary);
}

/// Nobody is told anything: all wait until the proxy's own limit and its check
/// have given the backend up, and then go on as after a stop. Who is in turn meets
/// the victim sooner or later, so every bare client waits too.
#[track_caller]
fn check_hung(summary: &Value) {
    let goes_on = ["migrated", "switched", "kept", "stalled"];
    check_migrating(summary, &goes_on, &["reconnected", "dropped"]);
    check_multiplexing(summary, 5);
}
