//! The whole product on real programs: what HAProxy in the study's configuration
//! does to its clients when a MariaDB behind it is stopped, hangs, or was not
//! used at all.

mod common;

use serde_json::Value;

/// Runs the lab with one step at 2 s; gives exit code, summary and text report.
fn measure(duration: &str, step: &str, subject: &str, timeout: &str) -> (i32, Value, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let scenario = folder.path().join("scenario.toml");
    std::fs::write(
        &scenario,
        format!(
            r#"
name = "real"
duration = "{duration}"
[clients]
reused = 2
interval = "20ms"
new = 1
new_interval = "200ms"
timeout = "{timeout}"
[[backend]]
name = "db-1"
[[backend]]
name = "db-2"
[[proxy]]
name = "haproxy"
kind = "haproxy"
[[timeline]]
at = "2s"
do = "{step}"
subject = "{subject}"
jitter = "0s"
"#
        ),
    )
    .expect("written");
    let data = folder.path().join("runs");
    let output = common::lab()
        .args([
            "run",
            "--runtime",
            "process",
            "--backend",
            "mariadb",
            "--format",
            "json",
        ])
        .arg("--data")
        .arg(&data)
        .arg(&scenario)
        .output()
        .expect("the lab runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let summary: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("no summary ({error}): {said}"));
    let text = common::lab()
        .args(["aggregator", "report", "latest", "--width", "80", "--data"])
        .arg(&data)
        .output()
        .expect("the report runs");
    (
        output.status.code().expect("an exit code"),
        summary,
        String::from_utf8_lossy(&text.stdout).into_owned(),
    )
}

fn row<'a>(summary: &'a Value, style: &str) -> &'a Value {
    summary["targets"]
        .as_array()
        .and_then(|rows| {
            rows.iter()
                .find(|r| r["style"] == style && r["kind"] == "bare")
        })
        .unwrap_or_else(|| panic!("no row of {style}: {summary:#}"))
}

#[test]
fn a_stopped_server_cuts_every_client_until_the_health_check_notices() {
    if !common::real::are_installed() {
        return;
    }
    let (code, summary, text) = measure("10s", "stop", "db-1", "5s");
    assert_eq!(code, 0, "{text}");
    for (style, held) in [("reused", 2), ("new", 1)] {
        let row = row(&summary, style);
        let fault = &row["faults"][0];
        assert_eq!(fault["verdict"], "disrupted", "{text}");
        assert_eq!(fault["clients"]["held"], held, "{text}");
        assert_eq!(fault["clients"]["hurt"], held, "{text}");
        // Two failed checks of a check each 2 s, and HAProxy's retry of 1 s.
        let gap = fault["gap_s"].as_f64().expect("a gap");
        assert!((1.9..6.5).contains(&gap), "{gap}\n{text}");
        assert_eq!(fault["own_timeout_s"].as_f64(), Some(0.0), "{text}");
    }
    assert_eq!(row(&summary, "reused")["backend_switches"], 2, "{text}");
    for witness in ["listener refused", "held connection cut", "gone"] {
        assert!(
            text.contains(witness),
            "no witness saw `{witness}`:\n{text}"
        );
    }
    assert_eq!(summary["conservation"]["balanced"], true, "{text}");
    assert_eq!(summary["conservation"]["lost_max"], 0, "{text}");
}

#[test]
fn a_hung_server_behind_a_green_check_is_an_outage_without_an_end() {
    if !common::real::are_installed() {
        return;
    }
    let (code, summary, text) = measure("8s", "hang", "db-1", "1s");
    assert_eq!(code, 0, "{text}");
    let row = row(&summary, "reused");
    assert_eq!(row["max_gap_is_at_least"], true, "{text}");
    assert!(row["max_gap_s"].as_f64().expect("a gap") > 4.0, "{text}");
    assert!(text.contains('≥'), "{text}");
    let open = row["windows"]
        .as_array()
        .expect("windows")
        .iter()
        .filter(|w| w["scope"] == "client" && w["ongoing"] == true)
        .inspect(|w| assert!(w["outage_upper_s"].is_null(), "{w}"))
        .count();
    assert_eq!(open, 2, "{text}");
    assert_eq!(row["faults"][0]["verdict"], "down", "{text}");
    assert_eq!(row["faults"][0]["fates"]["lost"], 2, "{text}");
}

#[test]
fn a_server_that_nobody_used_tests_nothing() {
    if !common::real::are_installed() {
        return;
    }
    let (code, summary, text) = measure("4s", "kill", "db-2", "5s");
    assert_eq!(code, 4, "nothing was exposed: {text}");
    for style in ["reused", "new"] {
        assert_eq!(
            row(&summary, style)["faults"][0]["verdict"],
            "not exposed",
            "{text}"
        );
    }
    assert!(!text.contains("seamless"), "{text}");
}
