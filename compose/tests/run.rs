//! Whole runs of the embedded lab, as a user starts them: lab, agent, aggregator,
//! report.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn lab(data: &Path, temp: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gapscope-lab"));
    command
        .args(args)
        .arg("--data")
        .arg(data)
        .env("TMPDIR", temp)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Reads until a line begins with `start`; returns all lines.
fn until_line(reader: &mut BufReader<ChildStderr>, start: &str) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        let read = reader.read_line(&mut line).expect("text");
        assert!(read > 0, "no line `{start}` in {lines:#?}");
        let found = line.starts_with(start);
        lines.push(line);
        if found {
            return lines;
        }
    }
}

fn send(process: &Child, signal: Signal) {
    let pid = i32::try_from(process.id()).expect("a process id");
    kill_process(Pid::from_raw(pid).expect("not zero"), signal).expect("sent");
}

fn count(folder: &Path) -> usize {
    std::fs::read_dir(folder).expect("readable").count()
}

/// The folders of runs below a data folder.
fn runs(data: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(data)
        .expect("readable")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("manifest.json").exists())
        .collect()
}

fn manifest(folder: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(folder.join("manifest.json")).expect("a manifest");
    serde_json::from_str(&text).expect("JSON")
}

const SHORT: &str = r#"
name = "short"
duration = "4s"
[clients]
reused = 2
interval = "20ms"
new = 1
canaries = ["user_variable"]
[[backend]]
name = "one"
[[backend]]
name = "two"
[[proxy]]
name = "l7-reconnecting"
[[timeline]]
at = "1500ms"
do = "stop"
subject = "one"
jitter = "0s"
"#;

#[test]
fn a_short_switchover_is_measured_and_reported() {
    let temp = tempfile::tempdir().expect("a folder");
    let data = tempfile::tempdir().expect("a folder");
    let file = temp.path().join("short.toml");
    std::fs::write(&file, SHORT).expect("written");
    let wanted = file.to_string_lossy().into_owned();
    let output = lab(
        data.path(),
        temp.path(),
        &["run", &wanted, "--format", "json"],
    )
    .output()
    .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for part in ["load on each target:", "stop `one`:", "run folder: "] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let targets = summary["targets"].as_array().expect("targets");
    let reused = targets
        .iter()
        .find(|target| target["style"] == "reused")
        .expect("held clients");
    let fault = &reused["faults"][0];
    assert!(
        fault["clients"]["held"]
            .as_u64()
            .is_some_and(|held| held > 0),
        "clients were on the subject: {fault}"
    );
    let folders = runs(data.path());
    assert_eq!(folders.len(), 1);
    let manifest = manifest(&folders[0]);
    assert_eq!(manifest["state"], "closed");
    assert_eq!(manifest["labels"]["runtime"], "embedded");
    assert_eq!(manifest["subjects"][0]["name"], "one");
    assert_eq!(manifest["plan"]["scenario_toml"], SHORT);
    assert_eq!(
        count(&data.path().join("spool")),
        0,
        "an empty spool is removed"
    );
    assert_eq!(count(temp.path()), 1, "only the scenario is left");
}

#[test]
fn an_interrupted_run_reports_what_it_has_and_two_at_once_are_refused() {
    let temp = tempfile::tempdir().expect("a folder");
    let data = tempfile::tempdir().expect("a folder");
    let mut first = lab(data.path(), temp.path(), &["run", "baseline"])
        .spawn()
        .expect("it starts");
    let mut reader = BufReader::new(first.stderr.take().expect("piped"));
    until_line(&mut reader, "run ");

    let second = lab(data.path(), temp.path(), &["run", "baseline"])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains("in use by another aggregator"), "{said}");
    assert!(said.contains("--data"), "{said}");

    send(&first, Signal::INT);
    let output = first.wait_with_output().expect("it ends");
    let mut said = String::new();
    reader.read_to_string(&mut said).expect("text");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error: interrupted by SIGINT"), "{said}");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(report.contains("l4-passthrough"), "{report}");
    let folders = runs(data.path());
    assert_eq!(folders.len(), 1);
    assert_eq!(manifest(&folders[0])["state"], "closed");
    assert_eq!(count(temp.path()), 0, "the lab's folder is removed");
}

#[test]
fn a_folder_that_cannot_be_written_is_told_at_once() {
    let temp = tempfile::tempdir().expect("a folder");
    let output = lab(
        Path::new("/proc/nowhere"),
        temp.path(),
        &["run", "baseline"],
    )
    .output()
    .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("error: cannot write to /proc/nowhere"),
        "{said}"
    );
    assert!(said.contains("hint: choose another folder"), "{said}");
}

/// Processes whose parent is `pid`.
fn children_of(pid: u32) -> Vec<PathBuf> {
    std::fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            std::fs::read_to_string(path.join("stat")).is_ok_and(|stat| {
                stat.rsplit_once(") ")
                    .and_then(|(_, rest)| rest.split_whitespace().nth(1))
                    .is_some_and(|parent| parent == pid.to_string())
            })
        })
        .collect()
}

/// Gone, or a zombie that only its new parent can collect.
fn is_over(process: &Path) -> bool {
    std::fs::read_to_string(process.join("stat")).map_or(true, |stat| stat.contains(") Z "))
}

#[tokio::test]
async fn a_run_that_is_killed_takes_agent_and_aggregator_with_it_and_keeps_its_data() {
    let temp = tempfile::tempdir().expect("a folder");
    let data = tempfile::tempdir().expect("a folder");
    let mut process = lab(data.path(), temp.path(), &["run", "baseline"])
        .spawn()
        .expect("it starts");
    let mut reader = BufReader::new(process.stderr.take().expect("piped"));
    until_line(&mut reader, "run ");
    let children = children_of(process.id());
    assert!(
        children.len() >= 3,
        "aggregator, agent, janitor: {children:?}"
    );
    process.kill().expect("killed");
    process.wait().expect("waited for");
    for _ in 0..200 {
        if children.iter().all(|child| is_over(child)) && count(temp.path()) == 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(children.iter().all(|child| is_over(child)), "{children:?}");
    assert_eq!(
        count(temp.path()),
        0,
        "the janitor removes the lab's folder"
    );
    assert_eq!(runs(data.path()).len(), 1, "what was measured stays");
}
