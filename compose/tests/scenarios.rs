//! Every shipped scenario, as a user runs it, on the embedded runtime with its
//! times divided: what is known of the embedded proxies must come out.
//!
//! Where the machine is slow an answer can come past the deadline, so that nothing
//! here depends on one being in time: only on errors, state and who answered.

use std::collections::BTreeSet;

use gapscope_lab::scenario::SHIPPED;
use serde_json::Value;

mod common;

struct Ran {
    summary: Value,
    said: String,
}

fn run(scenario: &str, more: &[&str]) -> Ran {
    let data = tempfile::tempdir().expect("a folder");
    // A hang has to last longer than the checks take to notice it (4 s), and five
    // deaths in a row take their time on a busy host.
    let faster = match scenario {
        // Nor does what a resolver remembers (3 s).
        "hung-quiet" | "cut-off" | "flapping" | "half-cut" | "long-query" | "dns-change" => "2",
        "hung" | "slow" | "storm" => "3",
        _ => "5",
    };
    let output = common::lab()
        .args(["run", scenario, "--faster", faster, "--format", "json"])
        .args(more)
        .arg("--data")
        .arg(data.path())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    Ran {
        summary: serde_json::from_slice(&output.stdout).expect("JSON"),
        said,
    }
}

impl Ran {
    /// The steps of the faults that were judged, in order.
    fn steps(&self) -> Vec<String> {
        let faults = self.summary["faults"].as_array().expect("faults");
        faults
            .iter()
            .filter(|fault| fault["judged"] == true)
            .map(|fault| fault["step"].as_str().expect("a step").to_owned())
            .collect()
    }

    fn row(&self, target: &str, style: &str, kind: &str) -> &Value {
        self.summary["targets"]
            .as_array()
            .expect("targets")
            .iter()
            .find(|row| row["name"] == target && row["style"] == style && row["kind"] == kind)
            .unwrap_or_else(|| panic!("no row {target} {style} {kind}"))
    }

    /// The fates of a row's clients in the fault of this place in the order.
    fn fates(&self, target: &str, style: &str, kind: &str, fault: usize) -> BTreeSet<String> {
        let row = self.row(target, style, kind);
        row["faults"][fault]["fates"]
            .as_object()
            .unwrap_or_else(|| panic!("no fault {fault} in {row}"))
            .keys()
            .cloned()
            .collect()
    }

    fn count(&self, target: &str, style: &str, kind: &str, fault: usize, what: &str) -> u64 {
        self.row(target, style, kind)["faults"][fault]["clients"][what]
            .as_u64()
            .unwrap_or_default()
    }

    /// All of a row's fates are among these. On a host that is too busy a client may
    /// have had no answer just before the fault: that is no fate.
    #[track_caller]
    fn only(&self, (target, style, kind): (&str, &str, &str), fault: usize, among: &[&str]) {
        let mut fates = self.fates(target, style, kind, fault);
        fates.remove("unmeasured");
        // Whether a check notices a silent backend before the client's own timeout
        // does is a matter of its phase.
        if self
            .steps()
            .iter()
            .any(|step| ["hang", "black_hole", "mute"].contains(&step.as_str()))
        {
            fates.remove("hung");
        }
        assert!(
            fates.iter().all(|fate| among.contains(&fate.as_str())),
            "{target} {style} {kind}: {fates:?}, not only {among:?}\n{}",
            self.said
        );
    }

    /// All exposed clients of a row were hurt.
    #[track_caller]
    fn all_hurt(&self, (target, style, kind): (&str, &str, &str), fault: usize) {
        let count = |what| self.count(target, style, kind, fault, what);
        assert!(
            count("held") + count("unmeasured") > 0 && count("hurt") >= count("held"),
            "{target} {style} {kind}\n{}",
            self.said
        );
    }
}

const BARE: (&str, &str) = ("reused", "bare");
const CANARY: (&str, &str) = ("reused", "user_variable");

fn of(
    target: &'static str,
    (style, kind): (&'static str, &'static str),
) -> (&'static str, &'static str, &'static str) {
    (target, style, kind)
}

/// What a lost backend does, however it was lost.
fn a_backend_lost(ran: &Ran) {
    ran.all_hurt(of("l4-passthrough", BARE), 0);
    ran.only(of("l7-reconnecting", BARE), 0, &["switched", "stalled"]);
    ran.only(of("l7-reconnecting", CANARY), 0, &["state lost"]);
    ran.only(of("l7-migrating", BARE), 0, &["switched", "stalled"]);
    ran.only(of("l7-migrating", CANARY), 0, &["migrated", "stalled"]);
    let canary = |what| ran.count("l7-migrating", "reused", "user_variable", 0, what);
    assert_eq!(canary("held") + canary("unmeasured"), 1);
    // Bare clients are spread over both backends and were not bound to one.
    let bare = |what| ran.count("l7-multiplexing", "reused", "bare", 0, what);
    assert!(bare("shared") + bare("unmeasured") > 0, "{}", ran.said);
    ran.only(
        of("l7-multiplexing", BARE),
        0,
        &["switched", "kept", "stalled", "served"],
    );
    // The pinned one either was on the other backend or lost its connection.
    if ran.count("l7-multiplexing", "reused", "user_variable", 0, "held") == 1 {
        ran.all_hurt(of("l7-multiplexing", CANARY), 0);
    } else {
        ran.only(of("l7-multiplexing", CANARY), 0, &["kept", "stalled"]);
    }
}

#[test]
fn nothing_happens_in_the_baseline() {
    let ran = run("baseline", &[]);
    assert!(ran.steps().is_empty());
}

#[test]
fn a_stopped_backend_is_what_each_proxy_makes_of_it() {
    let ran = run("switchover", &[]);
    assert_eq!(ran.steps(), ["stop"]);
    a_backend_lost(&ran);
}

#[test]
fn a_killed_backend_is_what_each_proxy_makes_of_it() {
    let ran = run("killed", &[]);
    assert_eq!(ran.steps(), ["kill"]);
    a_backend_lost(&ran);
}

#[test]
fn a_hung_backend_is_left_by_those_who_ask_for_a_greeting() {
    let ran = run("hung", &[]);
    assert_eq!(ran.steps(), ["hang"]);
    a_backend_lost(&ran);
    let fault = &ran.row("l4-passthrough", "reused", "bare")["faults"][0];
    assert!(
        fault["gap_s"].as_f64().is_some_and(|gap| gap > 5.0),
        "a check that only connects stays green: {fault}"
    );
}

#[test]
fn a_hung_backend_without_new_clients_is_the_same_here() {
    let ran = run("hung-quiet", &[]);
    a_backend_lost(&ran);
}

#[test]
fn a_backend_that_is_cut_off_refuses_nobody() {
    let ran = run("cut-off", &[]);
    assert_eq!(ran.steps(), ["black_hole"]);
    a_backend_lost(&ran);
    let errors = ran.row("l4-passthrough", "reused", "bare")["errors"]
        .as_array()
        .expect("errors");
    assert!(
        errors.iter().all(|error| error["cause"] != "refused"),
        "{errors:?}"
    );
}

#[test]
fn a_drain_moves_those_that_can_be_moved() {
    let ran = run("drained", &[]);
    assert_eq!(ran.steps(), ["drain", "stop"]);
    for proxy in ["l4-passthrough", "l7-reconnecting"] {
        ran.only(of(proxy, BARE), 0, &["undrained", "stalled"]);
    }
    ran.only(of("l7-migrating", CANARY), 0, &["migrated", "stalled"]);
    assert_eq!(
        ran.count("l7-migrating", "reused", "user_variable", 1, "held"),
        0,
        "when it is stopped nobody is there any more"
    );
    ran.all_hurt(of("l4-passthrough", BARE), 1);
}

#[test]
fn a_backend_that_comes_back_is_a_fault_of_its_own() {
    let ran = run("failback", &[]);
    assert_eq!(ran.steps(), ["stop", "start"]);
    a_backend_lost(&ran);
}

#[test]
fn a_rolling_restart_is_two_faults() {
    let ran = run("rolling-restart", &[]);
    // The start ends what the stop began: however soon it comes, clients have until the
    // next restart to come back.
    assert_eq!(ran.steps(), ["restart", "restart"]);
    ran.only(of("l7-migrating", BARE), 0, &["switched", "stalled"]);
}

#[test]
fn a_flapping_backend_is_five_faults() {
    let ran = run("flapping", &[]);
    assert_eq!(ran.steps().iter().filter(|step| *step == "kill").count(), 5);
    let repetitions = ran.summary["repetitions"].as_array().expect("repetitions");
    assert_eq!(repetitions[0]["faults"].as_array().map(Vec::len), Some(5));
}

#[test]
fn a_restarted_proxy_hurts_all_its_clients() {
    let ran = run("proxy-restart", &[]);
    assert_eq!(ran.steps(), ["restart"]);
    for proxy in [
        "l4-passthrough",
        "l7-reconnecting",
        "l7-migrating",
        "l7-multiplexing",
    ] {
        ran.all_hurt(of(proxy, BARE), 0);
        ran.only(of(proxy, BARE), 0, &["dropped", "reconnected"]);
    }
}

/// Who was served by the old backend at last, and when, after the record was changed.
fn last_from_subject(ran: &Ran, row: (&str, &str, &str), fault: usize) -> f64 {
    let (target, style, kind) = row;
    let fault = &ran.row(target, style, kind)["faults"][fault];
    fault["after_asked_s"]["last_from_subject"]["latest"]
        .as_f64()
        .unwrap_or_else(|| panic!("{fault}"))
}

#[test]
fn a_changed_record_moves_those_who_ask() {
    let ran = run("dns-change", &[]);
    assert_eq!(ran.steps(), ["repoint", "repoint", "stop"]);
    // Each record's change is nobody else's fault.
    ran.only(of("dns", BARE), 0, &["undrained", "stalled"]);
    assert_eq!(ran.count("dns-following", "reused", "bare", 0, "held"), 0);
    assert_eq!(ran.count("dns", "reused", "bare", 1, "held"), 0);
    // Who follows goes to the other backend over a new connection, without an error.
    ran.only(of("dns-following", BARE), 1, &["reconnected", "stalled"]);
    // It leaves by itself, and sets its state anew over the new connection.
    ran.only(of("dns-following", CANARY), 1, &["reconnected", "stalled"]);
    for target in ["dns", "dns-following"] {
        ran.only(
            of(target, ("new", "bare")),
            usize::from(target != "dns"),
            &["served", "slow"],
        );
    }
    // And not before what the resolver remembers is over.
    let change = ran
        .said
        .lines()
        .find(|line| line.contains("repoint `dns-following`"))
        .expect("it was said");
    let remembered: f64 = change
        .split("for another ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .map_or(0.0, |seconds| seconds.parse().expect("a number"));
    let last = last_from_subject(&ran, of("dns-following", BARE), 1);
    assert!(
        (remembered - 0.25..remembered + 1.0).contains(&last),
        "{last}, not {remembered}\n{}",
        ran.said
    );
    // When the old backend is stopped only those are on it who asked nobody.
    ran.all_hurt(of("dns", BARE), 2);
    ran.only(of("dns", BARE), 2, &["dropped", "reconnected"]);
    for row in [of("dns", ("new", "bare")), of("dns-following", BARE)] {
        assert_eq!(ran.count(row.0, row.1, row.2, 2, "held"), 0, "{}", ran.said);
    }
}

#[test]
fn after_a_storm_every_client_is_back() {
    let ran = run("storm", &["--proxy", "l4-passthrough,l7-migrating"]);
    assert_eq!(ran.steps(), ["kill", "start"]);
    let storm = of("l4-passthrough", BARE);
    ran.all_hurt(storm, 0);
    let count = |what| ran.count("l4-passthrough", "reused", "bare", 0, what);
    assert_eq!(count("held") + count("unmeasured"), 200, "{}", ran.said);
    let fault = &ran.row("l4-passthrough", "reused", "bare")["faults"][0];
    let lost = fault["fates"]["lost"].as_u64().unwrap_or_default();
    // On a host that is too slow some are not back before the next fault.
    assert!(lost < 200, "{fault}");
    if lost == 0 {
        assert!(
            fault["after_asked_s"]["all_back"]["latest"].is_number(),
            "the time until all are back is known: {fault}"
        );
    }
    ran.only(of("l7-migrating", BARE), 0, &["switched", "stalled"]);
}

#[test]
fn what_becomes_of_a_long_statement_is_noted() {
    let ran = run("long-query", &[]);
    assert_eq!(ran.steps(), ["stop"]);
    for proxy in ["l4-passthrough", "l7-reconnecting", "l7-migrating"] {
        let words = format!("SELECT SLEEP(7.5) through {proxy}: ");
        assert!(ran.said.contains(&words), "{}", ran.said);
    }
    // The server ends it: nobody else has its answer.
    let lost = "SELECT SLEEP(7.5) through l4-passthrough: failed after ";
    assert!(ran.said.contains(lost), "{}", ran.said);
    let notes = ran.summary["faults"]
        .as_array()
        .expect("faults")
        .iter()
        .filter(|fault| fault["step"] == "long_query" && fault["judged"] == false)
        .count();
    assert_eq!(notes, 4, "{}", ran.said);
}

#[test]
fn a_slow_backend_stalls_clients_and_no_check_minds() {
    let ran = run("slow", &[]);
    assert_eq!(ran.steps(), ["slow"]);
    ran.only(of("l4-passthrough", BARE), 0, &["stalled"]);
    let fault = &ran.row("l4-passthrough", "reused", "bare")["faults"][0];
    assert_eq!(fault["clients"]["none"], 0, "{fault}");
    let noticed = ran.summary["faults"]
        .as_array()
        .expect("faults")
        .iter()
        .any(|fault| {
            fault["step"] == "proxy_view"
                && fault["detail"]
                    .as_str()
                    .is_some_and(|text| text.contains("l4-passthrough holds"))
        });
    assert!(
        !noticed,
        "it only asks whether it can connect: {}",
        ran.said
    );
}

#[test]
fn half_a_cut_loses_answers_and_refuses_nobody() {
    let ran = run("half-cut", &[]);
    assert_eq!(ran.steps(), ["mute"]);
    a_backend_lost(&ran);
    let errors = ran.row("l4-passthrough", "reused", "bare")["errors"]
        .as_array()
        .expect("errors");
    assert!(
        errors.iter().all(|error| error["cause"] != "refused"),
        "{errors:?}"
    );
}

#[test]
fn a_matrix_has_a_cell_for_each_scenario_and_proxy() {
    let data = tempfile::tempdir().expect("a folder");
    let output = common::lab()
        .args(["matrix", "baseline", "killed", "--faster", "5"])
        .args(["--proxy", "l4-passthrough,l7-migrating", "--format", "json"])
        .arg("--data")
        .arg(data.path())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let matrix: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let cells = matrix["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 4);
    let killed = cells
        .iter()
        .find(|cell| cell["scenario"] == "killed" && cell["proxy"] == "l4-passthrough")
        .expect("a cell");
    assert_eq!(killed["state"], "measured");
    let fault = &killed["faults"][0];
    assert_eq!(fault["step"], "kill");
    assert!(
        ["down", "disrupted", "reconnected"].contains(&fault["verdict"].as_str().expect("a word")),
        "{fault}"
    );
    assert!(fault["gap_s"].is_number(), "{fault}");
    // Both were in one run, and what the proxies believed is kept with it.
    let run = data
        .path()
        .join("runs")
        .join(killed["run"].as_str().expect("an id"));
    let run = if run.exists() {
        run
    } else {
        data.path().join(killed["run"].as_str().expect("an id"))
    };
    assert!(run.join("proxy_view.parquet").exists(), "{said}");
}

#[test]
fn every_scenario_is_tested_here() {
    let source = include_str!("scenarios.rs");
    for (name, _) in SHIPPED {
        assert!(source.contains(&format!("run(\"{name}\"")), "{name}");
    }
}

#[test]
fn repetitions_are_as_the_first_and_reported_apart() {
    let ran = run(
        "switchover",
        &[
            "--repeat",
            "3",
            "--proxy",
            "l7-reconnecting",
            "--proxy",
            "l7-migrating",
        ],
    );
    let stops = ran.steps().iter().filter(|step| *step == "stop").count();
    assert_eq!(stops, 3, "{}", ran.said);
    for number in 0..3 {
        // Connections were made as new: everybody is on the subject each time.
        let fault = number * 2;
        let bare = |what| ran.count("l7-migrating", "reused", "bare", fault, what);
        assert_eq!(bare("held") + bare("unmeasured"), 4, "{}", ran.said);
    }
    let group = &ran.summary["repetitions"][0];
    assert_eq!(group["step"], "stop");
    let row = group["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .find(|row| row["name"] == "l7-reconnecting" && row["kind"] == "user_variable")
        .expect("the canary");
    let times = row["rest"].as_array().expect("a list");
    assert!(times.len() <= 2, "the first is not among them");
    for once in times.iter().chain(std::iter::once(&row["first"])) {
        // Null: that time tested nobody.
        if !once.is_null() {
            assert_eq!(once["verdict"], "state lost", "{row}");
        }
    }
    assert_eq!(row["gap_median_interval_95_s"], Value::Null, "none below 6");
}

#[test]
fn each_target_is_hit_where_it_is() {
    let ran = run(
        "killed",
        &[
            "--repeat",
            "1",
            "--aim",
            "each-target",
            "--proxy",
            "l7-reconnecting",
            "--proxy",
            "l4-passthrough",
        ],
    );
    assert!(ran.said.contains("aimed at l4-passthrough"), "{}", ran.said);
    assert!(
        ran.said.contains("aimed at l7-reconnecting"),
        "{}",
        ran.said
    );
    let kills = ran.steps().iter().filter(|step| *step == "kill").count();
    assert_eq!(kills, 2);
}
