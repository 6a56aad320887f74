//! Scenarios S1 to S5 and S10 to S14 with real MariaDB servers behind a real HAProxy (or
//! a name), their times divided; Envoy and Traefik where they are found. Where a program is not installed (or, for packets that are
//! dropped, without root) each test says so and checks nothing.

use gapscope_lab::runtime::process::find::{Named, find};
use gapscope_lab::runtime::process::net;
use serde_json::Value;

mod common;

fn installed() -> bool {
    installed_with("haproxy")
}

fn installed_with(proxy: &str) -> bool {
    for aliases in [&["mariadbd", "mysqld"][..], &[proxy][..]] {
        if find(&Named::new(), aliases, "").is_err() {
            eprintln!("skipped: {} is not installed", aliases[0]);
            return false;
        }
    }
    true
}

struct Ran {
    summary: Value,
    said: String,
}

fn run(scenario: &str, more: &[&str]) -> Ran {
    let data = tempfile::tempdir().expect("a folder");
    let output = common::lab()
        .args(["run", scenario, "--runtime", "process"])
        .args(["--format", "json"])
        .args(if more.contains(&"--faster") {
            &[][..]
        } else {
            &["--faster", "3"][..]
        })
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
    fn fault(&self, style: &str, kind: &str, number: usize) -> &Value {
        let rows = self.summary["targets"].as_array().expect("targets");
        let row = rows
            .iter()
            .find(|row| row["style"] == style && row["kind"] == kind)
            .unwrap_or_else(|| panic!("no row {style} {kind}"));
        &row["faults"][number]
    }

    fn steps(&self) -> Vec<&str> {
        let faults = self.summary["faults"].as_array().expect("faults");
        faults
            .iter()
            .filter(|fault| fault["judged"] == true)
            .map(|fault| fault["step"].as_str().expect("a step"))
            .collect()
    }

    fn count(&self, style: &str, number: usize, what: &str) -> u64 {
        self.fault(style, "bare", number)["clients"][what]
            .as_u64()
            .unwrap_or_default()
    }

    /// Held bare clients were all on the subject, and all hurt. On a host that is
    /// too busy one may have had no answer just before the fault.
    #[track_caller]
    fn all_held_hurt(&self, number: usize) {
        let count = |what| self.count("reused", number, what);
        assert_eq!(count("held") + count("unmeasured"), 4, "{}", self.said);
        assert!(count("hurt") >= count("held"), "{}", self.said);
    }

    fn errors(&self, what: &str, value: &str) -> u64 {
        let rows = self.summary["targets"].as_array().expect("targets");
        rows.iter()
            .flat_map(|row| row["errors"].as_array().expect("errors"))
            .filter(|error| error[what] == value)
            .map(|error| error["count"].as_u64().expect("a count"))
            .sum()
    }
}

#[test]
fn a_stopped_server_is_noticed_by_the_check_and_said_so() {
    if !installed() {
        return;
    }
    let ran = run("switchover", &[]);
    assert_eq!(ran.steps(), ["stop"]);
    ran.all_held_hurt(0);
    assert!(
        ran.said.contains("haproxy holds backend-1 for DOWN (L4CON"),
        "{}",
        ran.said
    );
    let views = ran.summary["faults"]
        .as_array()
        .expect("faults")
        .iter()
        .filter(|fault| fault["step"] == "proxy_view" && fault["judged"] == false)
        .count();
    assert!(views > 0);
}

#[test]
fn a_killed_server_looks_the_same_to_clients() {
    if !installed() {
        return;
    }
    let ran = run("killed", &[]);
    assert_eq!(ran.steps(), ["kill"]);
    ran.all_held_hurt(0);
}

#[test]
fn a_hung_server_is_not_refused() {
    if !installed() {
        return;
    }
    let ran = run("hung", &[]);
    assert_eq!(ran.steps(), ["hang"]);
    ran.all_held_hurt(0);
    assert!(ran.errors("outcome", "timed_out") > 0, "{}", ran.said);
}

#[test]
fn a_server_whose_packets_vanish_answers_nothing_and_refuses_nothing() {
    if !installed() {
        return;
    }
    if let Err(why) = net::Tools::find(&Named::new()) {
        eprintln!("skipped: {why}");
        return;
    }
    let ran = run("cut-off", &[]);
    assert_eq!(ran.steps(), ["black_hole"]);
    ran.all_held_hurt(0);
    assert_eq!(ran.errors("cause", "refused"), 0, "{}", ran.said);
    let cleared = ran.said.contains("its packets pass again");
    assert!(cleared, "{}", ran.said);
    let left: Vec<_> = std::fs::read_dir(net::NAMESPACES)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| ran.said.contains(&*name.to_string_lossy()))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_drained_server_keeps_its_held_clients_until_it_is_stopped() {
    if !installed() {
        return;
    }
    let ran = run("drained", &[]);
    assert_eq!(ran.steps(), ["drain", "stop"]);
    let fates = ran.fault("reused", "bare", 0)["fates"]
        .as_object()
        .expect("fates");
    assert!(
        fates
            .keys()
            .all(|fate| ["undrained", "stalled", "unmeasured"].contains(&fate.as_str())),
        "{fates:?} {}",
        ran.said
    );
    ran.all_held_hurt(1);
    assert_eq!(
        ran.count("new", 1, "held"),
        0,
        "new ones go elsewhere: {}",
        ran.said
    );
}

#[test]
fn nginx_carries_bytes_and_cannot_drain() {
    if !installed_with("nginx") {
        return;
    }
    let ran = run("drained", &["--proxy", "nginx"]);
    // The drain is noted and not judged.
    assert_eq!(ran.steps(), ["stop"], "{}", ran.said);
    assert!(
        ran.said
            .contains("nginx: not applicable: nginx has no admin interface"),
        "{}",
        ran.said
    );
    ran.all_held_hurt(0);
}

/// Bare held clients of a run of one target had one of these fates, in its first fault.
#[track_caller]
fn only(ran: &Ran, among: &[&str]) {
    let fates = ran.fault("reused", "bare", 0)["fates"]
        .as_object()
        .expect("fates");
    assert!(
        fates
            .keys()
            .all(|fate| fate == "unmeasured" || among.contains(&fate.as_str())),
        "{fates:?} {}",
        ran.said
    );
}

#[test]
fn after_a_storm_most_are_back() {
    if !installed() {
        return;
    }
    let ran = run("storm", &["--faster", "2"]);
    assert_eq!(ran.steps(), ["kill", "start"], "{}", ran.said);
    let count = |what| ran.count("reused", 0, what);
    let all = count("held") + count("shared") + count("none") + count("unmeasured");
    assert_eq!(all, 200, "{}", ran.said);
    assert!(count("hurt") >= count("held"), "{}", ran.said);
    // On a busy host some are not back before the server is.
    let fault = ran.fault("reused", "bare", 0);
    let lost = fault["fates"]["lost"].as_u64().unwrap_or_default();
    assert!(lost < 200, "{fault}");
}

#[test]
fn a_long_statement_ends_with_its_server() {
    if !installed() {
        return;
    }
    let ran = run("long-query", &["--faster", "4"]);
    assert_eq!(ran.steps(), ["stop"], "{}", ran.said);
    ran.all_held_hurt(0);
    let said = "SELECT SLEEP(3.75) through haproxy: failed after ";
    let line = ran
        .said
        .split(said)
        .nth(1)
        .unwrap_or_else(|| panic!("{}", ran.said));
    let after: f64 = line
        .split(' ')
        .next()
        .and_then(|number| number.parse().ok())
        .expect("a number");
    // Begun at 2 s, and stopped between 2.5 and 3 s.
    assert!(after < 3.75, "{}", ran.said);
}

#[test]
fn a_slow_server_stalls_its_clients_and_stays_green() {
    if !installed() {
        return;
    }
    let ran = run("slow", &[]);
    assert_eq!(ran.steps(), ["slow"], "{}", ran.said);
    only(&ran, &["stalled"]);
    assert_eq!(ran.fault("reused", "bare", 0)["clients"]["none"], 0);
    assert!(
        !ran.said.contains("holds backend-1 for DOWN"),
        "{}",
        ran.said
    );
}

#[test]
fn a_muted_server_hears_and_refuses_nobody() {
    if !installed() {
        return;
    }
    if let Err(why) = net::Tools::find(&Named::new()) {
        eprintln!("skipped: {why}");
        return;
    }
    let ran = run("half-cut", &[]);
    assert_eq!(ran.steps(), ["mute"], "{}", ran.said);
    ran.all_held_hurt(0);
    assert_eq!(ran.errors("cause", "refused"), 0, "{}", ran.said);
    for part in [
        "its answers are dropped; it still",
        "its packets pass again",
    ] {
        assert!(ran.said.contains(part), "{}", ran.said);
    }
}

#[test]
fn like_the_study_the_report_says_what_a_window_is_made_of() {
    if !installed() {
        return;
    }
    let data = tempfile::tempdir().expect("a folder");
    let output = common::lab()
        .args(["run", "switchover", "--runtime", "process", "--like-lab08"])
        .args(["--faster", "3"])
        .arg("--data")
        .arg(data.path())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = String::from_utf8_lossy(&output.stdout)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    if output.status.code() == Some(4) {
        // The one client, which asks twice a second, had no answer just before.
        eprintln!("nothing was tested on this busy host: {text}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{said}");
    let line = text
        .split("haproxy in fault 1: ")
        .nth(1)
        .unwrap_or_else(|| panic!("{text}"));
    assert!(
        line.starts_with("its own check held backend-1 for down +")
            || line.starts_with("its own check was not seen to hold"),
        "{line}"
    );
    let seconds = |before: &str| -> f64 {
        line.split(before)
            .nth(1)
            .and_then(|rest| rest.trim_start_matches('≥').split(' ').next())
            .and_then(|number| number.parse().ok())
            .unwrap_or_else(|| panic!("{before:?} in {line}"))
    };
    let (gap, own) = (
        seconds("longest felt gap "),
        seconds("the client's own timeouts "),
    );
    assert!(own <= gap, "{line}");
    assert!(line.contains("the outage in it "), "{line}");
}

/// One of the described proxies of `compose/examples`, if its program is here.
fn described(proxy: &str) -> Option<Ran> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    installed_with(proxy).then(|| run(&format!("{folder}/{proxy}.toml"), &[]))
}

#[test]
fn envoy_is_run_as_it_is_described() {
    let Some(ran) = described("envoy") else {
        return;
    };
    assert_eq!(ran.steps(), ["stop"], "{}", ran.said);
    ran.all_held_hurt(0);
    only(&ran, &["dropped", "reconnected", "hung"]);
}

#[test]
fn traefik_is_run_as_it_is_described() {
    let Some(ran) = described("traefik") else {
        return;
    };
    assert_eq!(ran.steps(), ["stop"], "{}", ran.said);
    // It deals connections out to both: who is on the other backend is not exposed.
    let count = |what| ran.count("reused", 0, what);
    assert_eq!(
        count("held") + count("none") + count("unmeasured"),
        4,
        "{}",
        ran.said
    );
    assert!(count("hurt") >= count("held"), "{}", ran.said);
}

#[test]
fn a_changed_record_moves_those_who_ask_whatever_serves() {
    if !installed() {
        return;
    }
    let ran = run("dns-change", &["--faster", "2"]);
    assert_eq!(ran.steps(), ["repoint", "repoint", "stop"], "{}", ran.said);
    let of = |target: &str, fault: usize| {
        let rows = ran.summary["targets"].as_array().expect("targets");
        rows.iter()
            .find(|row| row["name"] == target && row["style"] == "reused" && row["kind"] == "bare")
            .map(|row| &row["faults"][fault])
            .expect("a row")
            .clone()
    };
    let fates = |fault: &Value| {
        let mut fates: Vec<String> = fault["fates"]
            .as_object()
            .expect("fates")
            .keys()
            .cloned()
            .collect();
        fates.retain(|fate| !["stalled", "unmeasured"].contains(&fate.as_str()));
        fates
    };
    let stayed = fates(&of("dns", 0));
    assert!(
        stayed.is_empty() || stayed == ["undrained"],
        "{stayed:?} {}",
        ran.said
    );
    let went = fates(&of("dns-following", 1));
    assert!(
        went.is_empty() || went == ["reconnected"],
        "{went:?} {}",
        ran.said
    );
    let hit = of("dns", 2);
    let count = |what: &str| hit["clients"][what].as_u64().unwrap_or_default();
    assert_eq!(count("held") + count("unmeasured"), 4, "{}", ran.said);
    assert!(count("hurt") >= count("held"), "{}", ran.said);
    assert_eq!(of("dns-following", 2)["clients"]["held"], 0, "{}", ran.said);
}

/// HAProxy as somebody would describe it who has to do without its adapter.
const DESCRIBED: &str = r#"
name = "described"
duration = "12s"
[clients]
reused = 2
patient = 0
new = 0
[[backend]]
name = "one"
[[backend]]
name = "two"
[[proxy]]
name = "mine"
kind = "command"
command = ["haproxy", "-db", "-f", "{config}"]
config = """
defaults
    mode tcp
    retries 1
    timeout connect 5s
    timeout client 30s
    timeout server 30s
listen mysql
    bind 127.0.0.1:{port}
    server {backend.1.name} {backend.1.host}:{backend.1.port} check inter 500ms fall 1
    server {backend.2.name} {backend.2.host}:{backend.2.port} check backup
"""
[[timeline]]
at = "4s"
do = "kill"
subject = "one"
[[timeline]]
at = "9s"
do = "restart"
subject = "mine"
jitter = "0s"
"#;

#[test]
fn any_proxy_can_be_described_by_a_command_and_a_configuration() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("described.toml");
    std::fs::write(&file, DESCRIBED).expect("written");
    let ran = run(&file.to_string_lossy(), &["--faster", "1"]);
    assert_eq!(ran.steps(), ["kill", "restart"], "{}", ran.said);
    for number in 0..2 {
        let count = |what| ran.count("reused", number, what);
        assert_eq!(count("held") + count("unmeasured"), 2, "{}", ran.said);
        assert!(count("hurt") >= count("held"), "{}", ran.said);
    }
}
