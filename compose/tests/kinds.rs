//! Every style and kind of client through real faults: what becomes of each is
//! what is known of the server or proxy.

mod common;

use std::collections::BTreeMap;

use gapscope_lab::runtime::process::find;
use serde_json::Value;

const CANARIES: [&str; 9] = [
    "user_variable",
    "session_variable",
    "prepared_text",
    "prepared_binary",
    "current_database",
    "character_set",
    "temporary_table",
    "named_lock",
    "open_transaction",
];

#[expect(clippy::print_stdout, reason = "a test says that it was skipped")]
fn installed(proxy: &str) -> bool {
    let none = find::Named::new();
    let found = find::find(&none, &["mariadbd", "mysqld"], "").is_ok()
        && find::find(&none, &[proxy], "").is_ok();
    if !found {
        println!("skipped: {proxy} and mariadbd are not both installed");
    }
    found
}

/// Runs the lab with all kinds of clients and one step at 3 s.
fn measure(flags: &[&str], proxy: &str, step: &str, duration: &str, timeout: &str) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let scenario = folder.path().join("scenario.toml");
    let canaries: Vec<String> = CANARIES.iter().map(|word| format!("\"{word}\"")).collect();
    std::fs::write(
        &scenario,
        format!(
            r#"
name = "kinds"
duration = "{duration}"
# Generous, so that a busy machine is neither late nor asleep.
deadline = "2s"
[clients]
reused = 2
interval = "400ms"
patient = 0
new = 0
canaries = [{canaries}]
canary_interval = "400ms"
prepared = 1
transaction = 1
pool = 1
timeout = "{timeout}"
[[backend]]
name = "db-1"
[[backend]]
name = "db-2"
[[proxy]]
name = "proxy"
kind = "{proxy}"
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
        .args(flags)
        .arg("--data")
        .arg(folder.path().join("runs"))
        .arg(&scenario)
        .output()
        .expect("the lab runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let summary: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("no summary ({error}): {said}"));
    assert_eq!(summary["conservation"]["balanced"], true, "{said}");
    let left_out: Vec<_> = summary["caveats"]
        .as_array()
        .expect("caveats")
        .iter()
        .filter(|caveat| caveat["code"] == "left_out")
        .collect();
    assert!(left_out.is_empty(), "{left_out:?}");
    summary
}

/// The fate of each kind's clients in the fault; of several the worst comes first.
fn fates(summary: &Value) -> BTreeMap<String, Vec<String>> {
    summary["targets"]
        .as_array()
        .expect("targets")
        .iter()
        .filter(|row| row["name"] == "proxy")
        .map(|row| {
            let name = match (row["style"].as_str(), row["kind"].as_str()) {
                (Some(style), Some("bare")) => style.to_owned(),
                (_, kind) => kind.unwrap_or_default().to_owned(),
            };
            let fates = row["faults"][0]["fates"].as_object().expect("fates");
            (name, fates.keys().cloned().collect())
        })
        .collect()
}

/// Rows that no database may lose, double or invent.
#[track_caller]
fn check_ledger(summary: &Value) {
    let places = summary["ledger"]["places"].as_array().expect("a ledger");
    assert!(!places.is_empty(), "{:#}", summary["ledger"]);
    let mut there = 0;
    for place in places {
        for class in [
            "acknowledged_lost",
            "there_twice",
            "refused_there",
            "not_read",
        ] {
            assert_eq!(place["counts"][class], 0, "{place:#}");
        }
        assert_eq!(
            (&place["strays"], &place["elsewhere"]),
            (&0.into(), &0.into()),
            "{place:#}"
        );
        there += place["counts"]["acknowledged_there"]
            .as_u64()
            .expect("a count");
    }
    assert!(there > 5, "{there} rows\n{:#}", summary["ledger"]);
}

#[test]
fn the_reconnecting_proxy_loses_state_and_each_canary_names_its_own() {
    let summary = measure(&[], "l7-reconnecting", "stop", "12s", "5s");
    let fates = fates(&summary);
    // A client whose agent was asleep at the moment has seen nothing.
    let check = |kind: &str, expect: &str| {
        let found = &fates[kind];
        let allowed = |fate: &String| fate == expect || fate == "unmeasured";
        assert!(found.iter().all(allowed), "{kind}: {fates:#?}");
    };
    let measured = fates.values().filter(|f| *f != &["unmeasured"]).count();
    assert!(measured > fates.len() / 2, "{fates:#?}");
    for kind in CANARIES {
        let expect = match kind {
            // The proxy chooses the database again.
            "current_database" => "migrated",
            // It says that the transaction is gone; the client has no BEGIN of its
            // own to send again, so the state is missed too.
            "open_transaction" => "dropped",
            _ => "state lost",
        };
        check(kind, expect);
    }
    check("reused", "switched");
    // Its statement is unknown.
    check("prepared", "failed");
    check_ledger(&summary);
}

#[track_caller]
fn check_cut(proxy: &str, step: &str, allowed: &[&str]) {
    if !installed(proxy) {
        return;
    }
    let flags = ["--runtime", "process", "--backend", "mariadb"];
    let summary = measure(&flags, proxy, step, "16s", "2s");
    let fates = fates(&summary);
    assert_eq!(fates.len(), CANARIES.len() + 4, "{fates:#?}");
    for (kind, found) in &fates {
        for fate in found {
            assert!(
                allowed.contains(&fate.as_str()),
                "{proxy}: {step}: {kind}: {fates:#?}"
            );
        }
    }
    check_ledger(&summary);
}

// A proxy that carries bytes cuts its clients with the server: their state is gone
// with the connection, and set again on the next one, so no canary is found broken.

#[test]
fn a_stopped_server_cuts_every_kind_behind_haproxy() {
    check_cut(
        "haproxy",
        "stop",
        &["dropped", "reconnected", "failed", "unmeasured"],
    );
}

#[test]
fn a_killed_server_cuts_every_kind_behind_haproxy() {
    check_cut(
        "haproxy",
        "kill",
        &["dropped", "reconnected", "failed", "unmeasured"],
    );
}

#[test]
fn a_hung_server_hangs_every_kind_behind_haproxy() {
    // Its health check stays green: the kernel accepts.
    check_cut("haproxy", "hang", &["lost", "hung", "unmeasured"]);
}

// nginx has no checks of its own: who is cut connects again and is sent to the other
// server once the first one has refused; a hung one still accepts.

#[test]
fn a_stopped_server_cuts_every_kind_behind_nginx() {
    check_cut(
        "nginx",
        "stop",
        &["dropped", "reconnected", "failed", "unmeasured"],
    );
}

#[test]
fn a_hung_server_hangs_every_kind_behind_nginx() {
    check_cut("nginx", "hang", &["lost", "hung", "dropped", "unmeasured"]);
}
