//! At 80 columns no command writes a longer line, on either stream: held on a real
//! run and a real benchmark, with `COLUMNS=80`. And no colour in a pipe, no block
//! characters where the locale has none.

mod common;

use std::path::Path;
use std::process::Output;

use common::lab;
use gapscope_lab::scenario::SHIPPED;

const COLUMNS: usize = 80;

fn run(args: &[&str]) -> Output {
    lab()
        .args(args)
        .env("COLUMNS", COLUMNS.to_string())
        .env("LC_ALL", "C.UTF-8")
        .env_remove("NO_COLOR")
        .output()
        .expect("it runs")
}

fn text(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    text
}

/// How long a line is without what cannot be broken: paths and addresses.
fn breakable(line: &str) -> usize {
    line.split(' ')
        .map(|word| {
            if word.contains('/') {
                0
            } else {
                word.chars().count() + 1
            }
        })
        .sum::<usize>()
        .saturating_sub(1)
}

#[track_caller]
fn fits(args: &[&str], output: &Output) {
    let text = text(output);
    assert!(!text.trim().is_empty(), "{args:?} said nothing");
    for line in text.lines() {
        assert!(
            line.chars().count() <= COLUMNS || breakable(line) <= COLUMNS && line.contains('/'),
            "{args:?}: {} columns: {line}",
            line.chars().count()
        );
    }
    assert!(!text.contains('\u{1b}'), "{args:?}: a colour in a pipe");
}

/// Carries it out; every line has to fit, and it has to end with `code`.
#[track_caller]
fn check(args: &[&str], code: i32) {
    let output = run(args);
    fits(args, &output);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{args:?}: {}",
        text(&output)
    );
}

fn folder_of(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said
        .split("run folder:")
        .nth(1)
        .unwrap_or_else(|| panic!("no folder: {said}"));
    line.split_whitespace().next().expect("a path").to_owned()
}

#[test]
fn no_line_is_longer_than_the_terminal() {
    let data = tempfile::tempdir().expect("a folder");
    let runs = data.path().join("runs");
    let runs = runs.to_str().expect("a path");

    let args = [
        "run",
        "switchover",
        "--faster",
        "5",
        "--seed",
        "3",
        "--data",
        runs,
    ];
    let measured = run(&args);
    fits(&args, &measured);
    let folder = folder_of(&measured);
    let id = Path::new(&folder)
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a run's id");

    let args = [
        "overhead",
        "--statements",
        "40",
        "--clients",
        "1,2",
        "--rounds",
        "2",
        "--no-claims",
        "--data",
        runs,
    ];
    let benchmark = run(&args);
    fits(&args, &benchmark);
    let bench = folder_of(&benchmark);

    check(&["list"], 0);
    for (name, _) in SHIPPED {
        check(&["check", name], 0);
    }
    fits(&["doctor"], &run(&["doctor"]));
    let exit = measured.status.code().expect("it ended");
    let aggregator = |args: &[&str], code: i32| check(&[&["aggregator"], args].concat(), code);
    aggregator(&["report", id, "--data", runs], exit);
    aggregator(&["report", id, "--data", runs, "--full"], exit);
    let condition = "windows.upper > 1ms where target = l4-passthrough";
    aggregator(&["report", &folder, "--fail-if", condition], 3);
    aggregator(&["report", &bench], 0);
    aggregator(&["report", &bench, "--full"], 0);
    aggregator(&["report", &bench, "--fail-if", "errors >= 0"], 3);
    aggregator(&["report", "nosuch", "--data", runs], 1);
    aggregator(&["verify", id, "--data", runs], 0);
    aggregator(&["clock", id, "--data", runs], 0);
    aggregator(&["compare", id, id, "--data", runs], 2);
    aggregator(&["compare", id, id, "--anyway", "--data", runs], 0);
    aggregator(&["compare", &bench, &bench, "--anyway"], 0);
    aggregator(&["compare", id, &bench, "--data", runs], 2);
    aggregator(&["runs", "--data", runs], 0);
    aggregator(&["runs", "--data", &format!("{runs}/nosuch")], 1);
    aggregator(
        &[
            "plan", "faults", "--from", "1s", "--to", "500ms", "--spread", "500ms",
        ],
        0,
    );
    aggregator(&["plan", "shares", "--from", "1%", "--to", "2%"], 0);
    aggregator(
        &["plan", "rounds", "--spread", "3%", "--comparisons", "12"],
        0,
    );
    aggregator(&["plan", "rounds", "--like", &bench], 0);
    let args = ["agent", "spool", "inspect", runs];
    fits(&args, &run(&args));

    // Unicode strips only where they can be shown.
    let signs = ['▁', '▄', '█'];
    assert!(text(&measured).contains(signs), "{}", text(&measured));
    for (ascii, locale) in [(&["--ascii"][..], "C.UTF-8"), (&[][..], "C")] {
        let output = lab()
            .args(["run", "baseline", "--duration", "2s", "--data", runs])
            .args(ascii)
            .env("LC_ALL", locale)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("_"), "no strip: {said}");
        assert!(!said.contains(signs), "{said}");
    }
}
