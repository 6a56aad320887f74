//! Files of a spool as they may be found: damaged, cut, older, newer, not ours,
//! in use. Nothing keeps an agent from starting, and nothing vanishes unsaid.
//!
//! `GAPSCOPE_UPDATE_FIXTURE=1` writes `tests/data/spool-1` again.

#![expect(clippy::print_stdout, reason = "what was measured")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gapscope_agent::spool::disk::Kind;
use gapscope_agent::spool::recover::Recovery;
use gapscope_agent::spool::settings::Settings;
use gapscope_agent::spool::{LossReason, Report, writer};
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::frame::{Body, Frame, StreamId, StreamKind};
use gapscope_proto::host::{HostRecord, Lag};
use gapscope_proto::ids::{Incarnation, RunId};
use gapscope_proto::plan::ClientKind;
use gapscope_proto::sample::Style;
use gapscope_proto::spool::{Loss, State, StreamState, encode};
use support::{Aggregator, Behaviour, Manners, Server, group, plan};

fn program(args: &[&str], folder: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gapscope-agent"))
        .args(args)
        .arg(folder)
        .output()
        .expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn stream(incarnation: u64) -> StreamId {
    StreamId {
        run: "01a22c71-a5ce-7341-a1d3-9c297ce0a076"
            .parse::<RunId>()
            .expect("an id"),
        incarnation: Incarnation::new(incarnation).expect("not 0"),
        kind: StreamKind::Host,
    }
}

fn frame(stream: StreamId, first: u64, count: u64) -> Vec<u8> {
    let record = |seq: u64| {
        HostRecord::Lag(Lag {
            at_ns: seq as i64,
            ticks: 1,
            late_max_ns: 0,
        })
    };
    Frame {
        stream,
        first_seq: first,
        body: Body::Host((first..first + count).map(record).collect()),
    }
    .to_bytes()
    .expect("encodes")
}

/// As an agent of another version would write it.
fn newer_frame(stream: StreamId, first: u64) -> Vec<u8> {
    let mut bytes = frame(stream, first, 2);
    bytes[4] = 9;
    let crc = crc32fast::hash(&bytes[..48]).to_le_bytes();
    bytes[48..52].copy_from_slice(&crc);
    bytes
}

fn write_state(folder: &Path, state: &State) {
    let mut bytes = encode(state, 1).expect("JSON");
    let half = bytes.len().next_power_of_two().max(1024);
    bytes.resize(half * 2, 0);
    std::fs::write(folder.join("state.1"), bytes).expect("written");
}

fn state(streams: &[(StreamId, u64, Option<u64>)], losses: Vec<Loss>) -> State {
    State {
        boot: Some(SystemClock::new().key().boot_id),
        next_file: 100,
        streams: streams
            .iter()
            .map(|(stream, floor, reserved)| StreamState {
                stream: *stream,
                floor: *floor,
                reserved: *reserved,
            })
            .collect(),
        losses,
    }
}

/// Opens a spool as an agent does, and closes it again.
fn open(folder: &Path) -> (Vec<(StreamId, u64, u64)>, Vec<Loss>) {
    let clock = Arc::new(SystemClock::new());
    let mut opened =
        writer::open(folder, &Settings::default(), clock).expect("nothing keeps it from opening");
    let (mut held, mut lost) = (Vec::new(), Vec::new());
    while let Ok(report) = opened.reports.try_recv() {
        match report {
            Report::Sealed(frame) => held.push((frame.stream, frame.first, frame.last)),
            Report::Lost(loss) => lost.push(loss),
        }
    }
    drop(opened.spool);
    opened.thread.join().expect("no panic");
    (held, lost)
}

// ------------------------------------------------------------------ damage

/// Each seq of 1 to 12 is held or declared, not both.
#[track_caller]
fn check_all(held: &[(u64, u64)], lost: &[(u64, u64)], what: &str) -> u64 {
    let mut seen = BTreeMap::new();
    for (first, last) in held.iter().chain(lost) {
        for seq in *first..=*last {
            *seen.entry(seq).or_insert(0) += 1;
        }
    }
    let expect: BTreeMap<u64, i32> = (1..=12).map(|seq| (seq, 1)).collect();
    assert_eq!(seen, expect, "{what}: held {held:?}, lost {lost:?}");
    held.iter().map(|(first, last)| last + 1 - first).sum()
}

#[test]
fn each_bit_of_a_segment_and_each_cut_costs_no_more_than_its_frame() {
    let id = stream(1);
    let frames: Vec<_> = (0..4).map(|n| frame(id, 1 + 3 * n, 3)).collect();
    let whole = frames.concat();
    let frame_at = |at: usize| {
        let mut end = 0;
        frames.iter().position(|frame| {
            end += frame.len();
            at < end
        })
    };
    let look = |bytes: &[u8]| {
        let mut recovery = Recovery::default();
        // Acknowledged up to 0, and numbers reserved up to 12.
        recovery.known(id, 0, Some(12));
        recovery.segment(1, bytes);
        let found = recovery.finish();
        let held: Vec<_> = found.sealed.iter().map(|f| (f.first, f.last)).collect();
        let lost: Vec<_> = found.losses.iter().map(|l| (l.first, l.last)).collect();
        (held, lost)
    };
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            let (held, lost) = look(&bytes);
            let kept = check_all(&held, &lost, &format!("bit {bit} of byte {at}"));
            assert_eq!(kept, 9, "bit {bit} of byte {at}: {held:?}");
        }
        let (held, lost) = look(&whole[..at]);
        let kept = check_all(&held, &lost, &format!("cut at {at}"));
        assert_eq!(
            kept,
            3 * frame_at(at).expect("inside") as u64,
            "cut at {at}"
        );
    }
}

/// The same with the whole spool, at some of the offsets.
#[test]
fn a_damaged_segment_is_opened_declared_and_remembered() {
    let id = stream(1);
    let whole: Vec<u8> = (0..4).flat_map(|n| frame(id, 1 + 3 * n, 3)).collect();
    for at in (0..whole.len()).step_by(67) {
        for cut in [false, true] {
            let folder = tempfile::tempdir().expect("a folder");
            let mut bytes = whole.clone();
            if cut {
                bytes.truncate(at);
            } else {
                bytes[at] ^= 4;
            }
            std::fs::write(folder.path().join(Kind::Segment.name(7)), bytes).expect("written");
            let mut known = state(&[(id, 0, Some(12))], Vec::new());
            known.boot = Some("another".into());
            write_state(folder.path(), &known);
            for start in 0..2 {
                let (held, lost) = open(folder.path());
                let held: Vec<_> = held
                    .iter()
                    .map(|(_, first, last)| (*first, *last))
                    .collect();
                let lost: Vec<_> = lost.iter().map(|l| (l.first, l.last)).collect();
                check_all(
                    &held,
                    &lost,
                    &format!("start {start}, byte {at}, cut {cut}"),
                );
            }
            let verify = program(&["spool", "verify"], folder.path());
            assert_eq!(verify.status.code(), Some(4), "{}", text(&verify.stdout));
        }
    }
}

#[test]
fn verify_tells_lost_from_damaged_from_sound() {
    let check = |segment: &[u8], tail: &[u8], known: &State, code: i32, says: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(Kind::Segment.name(1)), segment).expect("written");
        std::fs::write(folder.path().join(Kind::Tail.name(2)), tail).expect("written");
        write_state(folder.path(), known);
        let verify = program(&["spool", "verify"], folder.path());
        let (out, err) = (text(&verify.stdout), text(&verify.stderr));
        assert_eq!(verify.status.code(), Some(code), "{out}{err}");
        assert!(
            format!("{out}{err}").contains(says),
            "{says:?} is not in {out}{err}"
        );
        // Nothing was changed.
        let names: BTreeSet<_> = std::fs::read_dir(folder.path())
            .expect("listed")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        assert_eq!(names.len(), 3, "{names:?}");
    };
    let id = stream(1);
    let plain = state(&[(id, 0, Some(50))], Vec::new());
    let (one, two) = (frame(id, 1, 3), frame(id, 4, 3));
    check(
        &one,
        &two,
        &plain,
        0,
        "2 sound frames, 0 damaged stretches, 0 records lost",
    );
    // A hole.
    check(
        &one,
        &frame(id, 6, 1),
        &plain,
        4,
        "lost: seq 4..5, 2 records: corrupt",
    );
    // Delivered, so no hole.
    let delivered = state(&[(id, 5, Some(50))], Vec::new());
    check(&one, &frame(id, 6, 1), &delivered, 0, "0 records lost");
    // Damaged, and whole in the other file.
    let mut bad = one.clone();
    bad[60] ^= 1;
    check(
        &[bad, two.clone()].concat(),
        &one,
        &plain,
        1,
        "1 damaged stretches",
    );
    // Cut off by a kill: nothing that was written is gone.
    check(
        &one,
        &two[..20],
        &plain,
        0,
        "its end was cut off inside a frame",
    );
    // Declared.
    let loss = Loss::exact(id, 4, 9, LossReason::SpoolFull);
    let declared = state(&[(id, 0, Some(50))], vec![loss]);
    check(
        &one,
        &[],
        &declared,
        4,
        "lost: seq 4..9, 6 records: spool_full",
    );
    // After a loss of power.
    let mut dark = plain.clone();
    dark.boot = Some("another".into());
    check(
        &one,
        &two,
        &dark,
        4,
        "lost: seq 7..50, 0 to 44 records: power_loss",
    );
    // By a newer version.
    check(
        &one,
        &newer_frame(stream(2), 1),
        &plain,
        1,
        "written by a newer version",
    );
}

// ---------------------------------------------------------------- versions

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(data(name)).expect("committed") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("copied");
    }
    folder
}

fn write_fixture(folder: &Path) {
    std::fs::create_dir_all(folder).expect("made");
    let (old, new) = (stream(5), stream(6));
    let segment = [frame(old, 11, 4), frame(old, 15, 3), frame(new, 1, 2)].concat();
    std::fs::write(folder.join(Kind::Segment.name(3)), segment).expect("written");
    let tail = [frame(new, 2, 1), frame(new, 3, 4)].concat();
    std::fs::write(folder.join(Kind::Tail.name(4)), tail).expect("written");
    let loss = Loss::exact(old, 6, 10, LossReason::SpoolFull);
    let mut known = state(&[(old, 5, None), (new, 0, None)], vec![loss]);
    known.boot = Some("00000000-0000-0000-0000-000000000000".into());
    write_state(folder, &known);
}

/// What this version writes has to be read by every later one.
#[test]
fn a_spool_of_version_1_is_read() {
    if std::env::var_os("GAPSCOPE_UPDATE_FIXTURE").is_some() {
        write_fixture(&data("spool-1"));
    }
    let folder = copy("spool-1");
    let (held, lost) = open(folder.path());
    let (old, new) = (stream(5), stream(6));
    assert_eq!(
        held,
        [(old, 11, 14), (old, 15, 17), (new, 1, 2), (new, 3, 6)]
    );
    assert_eq!(lost, [Loss::exact(old, 6, 10, LossReason::SpoolFull)]);
}

/// And what was written before there was a state file.
#[test]
fn a_spool_of_the_layout_before_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(data("spool-1")).expect("committed") {
        let entry = entry.expect("an entry");
        if entry.file_name() != "state.1" {
            std::fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("copied");
        }
    }
    let loss = r#"[{"stream":{"run":"01a22c71-a5ce-7341-a1d3-9c297ce0a076","incarnation":5,"kind":"host"},"first":6,"last":10,"count_min":5,"count_max":5,"reason":"spool_full"}]"#;
    std::fs::write(folder.path().join("losses.json"), loss).expect("written");
    std::fs::write(
        folder.path().join("files.json"),
        r#"{"version":1,"next":10001}"#,
    )
    .expect("written");
    let (held, lost) = open(folder.path());
    assert_eq!(held.iter().map(|(_, f, l)| l + 1 - f).sum::<u64>(), 13);
    assert_eq!(lost, [Loss::exact(stream(5), 6, 10, LossReason::SpoolFull)]);
    // Taken over: the next start finds the same.
    assert!(!folder.path().join("losses.json").exists());
    assert_eq!(open(folder.path()), (held, lost));
}

#[test]
fn what_a_newer_version_wrote_is_left_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let segment = [newer_frame(stream(8), 1), newer_frame(stream(8), 3)].concat();
    let tail = newer_frame(stream(8), 5);
    let names = [Kind::Segment.name(3), Kind::Tail.name(4)];
    std::fs::write(folder.path().join(&names[0]), &segment).expect("written");
    std::fs::write(folder.path().join(&names[1]), &tail).expect("written");
    for _ in 0..2 {
        assert_eq!(open(folder.path()), (Vec::new(), Vec::new()));
        assert_eq!(
            std::fs::read(folder.path().join(&names[0])).expect("there"),
            segment
        );
        assert_eq!(
            std::fs::read(folder.path().join(&names[1])).expect("there"),
            tail
        );
    }
    let verify = program(&["spool", "verify"], folder.path());
    assert_eq!(verify.status.code(), Some(1));
    let err = text(&verify.stderr);
    assert!(
        err.contains("written by a newer version") && err.contains(&names[0]),
        "{err}"
    );
}

// ----------------------------------------------------------- whole agents

struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(url: &str, data: &Path, server: &Server, more: &[&str]) -> Agent {
    let own = env!("CARGO_BIN_EXE_gapscope-agent").to_owned();
    let child = Command::new(std::env::var("GAPSCOPE_PROGRAM").unwrap_or(own))
        .args(["run", "--agent-id", "agent-1", "--aggregator", url])
        .args(["--target", &format!("db=probe@{}", server.address)])
        .args(more)
        .arg("--data")
        .arg(data)
        .arg("--die-with-parent")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    Agent(child)
}

fn endless(interval_ms: u64, clients: u16) -> gapscope_proto::plan::RunPlan {
    let bare = ClientKind::Bare;
    plan(
        3_600_000,
        vec![group("db", Style::Reused, bare, 0, clients, interval_ms)],
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_starts_over_garbage_of_every_kind_and_probes() {
    let data = tempfile::tempdir().expect("a folder");
    let folder = data.path().join("spool/agent-1");
    std::fs::create_dir_all(&folder).expect("made");
    let garbage: Vec<u8> = (0..9_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    for name in [
        "state.1.new",
        "runs.json.new",
        "lock",
        "tail-00000000000000000005",
    ] {
        std::fs::create_dir_all(folder.join(name).join("inside")).expect("made");
    }
    for name in [
        "state.1",
        "runs.json",
        "losses.json",
        "files.json",
        "segment-00000000000000000001",
        "tail-00000000000000000002",
        "segment-18446744073709551615",
        "segment-x",
        "something else",
    ] {
        std::fs::write(folder.join(name), &garbage).expect("written");
    }
    std::fs::write(folder.join(Kind::Segment.name(3)), b"").expect("written");
    std::fs::write(folder.join(Kind::Tail.name(4)), b"").expect("written");
    std::os::unix::fs::symlink("/nowhere", folder.join(Kind::Segment.name(6))).expect("linked");
    let pipe = folder.join(Kind::Tail.name(7));
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    let server = Server::start(Behaviour::Answers);
    let plan = endless(10, 2);
    let run = plan.run_id;
    let manners = Manners {
        plan: Some(plan),
        ..Manners::default()
    };
    let mut aggregator = Aggregator::start(manners).await;
    let mut agent = start(&aggregator.url, data.path(), &server, &[]);
    aggregator
        .until("samples", |arrived| {
            arrived.samples.values().any(|s| s.len() > 50)
        })
        .await;
    let id = rustix::process::Pid::from_child(&agent.0);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("asked to end");
    assert!(agent.0.wait().expect("gone").success());
    aggregator
        .until("the books", |arrived| arrived.has_ended(run))
        .await;
    assert!(folder.join("something else").exists());
}

/// What cannot work is said, with the path and the reason.
#[test]
fn what_is_impossible_is_said() {
    let data = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(data.path().join("spool")).expect("made");
    std::fs::write(data.path().join("spool/agent-1"), b"").expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_gapscope-agent"))
        .args([
            "run",
            "--agent-id",
            "agent-1",
            "--target",
            "db=u@127.0.0.1:1",
            "--data",
        ])
        .arg(data.path())
        .output()
        .expect("the program starts");
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(
        err.contains("error: the spool `") && err.contains("agent-1"),
        "{err}"
    );
}

/// A spool that is being written to, acknowledged and cleared: nobody who looks
/// at it sees a loss that is none, and nothing is changed by looking.
#[tokio::test(flavor = "multi_thread")]
async fn looking_while_an_agent_writes_sees_no_loss() {
    let server = Server::start(Behaviour::Answers);
    let data = tempfile::tempdir().expect("a folder");
    let plan = endless(2, 4);
    let manners = Manners {
        plan: Some(plan),
        // Cut now and then, so that something is held.
        frames_a_session: Some(5),
        ..Manners::default()
    };
    let mut aggregator = Aggregator::start(manners).await;
    let _agent = start(
        &aggregator.url,
        data.path(),
        &server,
        &["--spool-max-bytes", "2000000"],
    );
    aggregator
        .until("a first sample", |arrived| !arrived.samples.is_empty())
        .await;
    let folder = data.path().join("spool/agent-1");
    let mut seen = 0;
    for round in 0..15 {
        let verify = program(&["spool", "verify"], &folder);
        let out = text(&verify.stdout);
        assert_eq!(
            verify.status.code(),
            Some(0),
            "round {round}: {out}{}",
            text(&verify.stderr)
        );
        assert!(out.contains("an agent is writing to it"), "{out}");
        let export = program(&["spool", "export"], &folder);
        assert!(export.status.success());
        let mut seqs = BTreeSet::new();
        for line in text(&export.stdout).lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            assert_ne!(line["record"], "loss", "{line}");
            let key = (
                line["stream"].to_string(),
                line["incarnation"].to_string(),
                line["seq"].as_u64().expect("a seq"),
            );
            assert!(seqs.insert(key), "{line} twice");
            if line["record"] == "sample" {
                assert_eq!(line["outcome"], "ok");
                assert!(line["finished_ns"].as_i64() >= line["started_ns"].as_i64());
                seen += 1;
            }
        }
    }
    assert!(seen > 0);
}

fn resident_kib(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("running");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .expect("resident memory")
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// No aggregator, a busy agent, a spool that is always full: memory stays flat, and
/// is not much more than it was while everything was delivered at once.
///
/// `GAPSCOPE_PROBES`, `GAPSCOPE_CLIENTS`, `GAPSCOPE_INTERVAL_MS` and
/// `GAPSCOPE_SPOOL_BYTES` make it long and fast, `GAPSCOPE_PROGRAM` names another
/// build of the agent.
#[tokio::test(flavor = "multi_thread")]
async fn memory_without_an_aggregator_is_flat() {
    let server = Server::start(Behaviour::Answers);
    let data = tempfile::tempdir().expect("a folder");
    let clients = u16::try_from(number("GAPSCOPE_CLIENTS", 20)).expect("not so many");
    let manners = Manners {
        plan: Some(endless(number("GAPSCOPE_INTERVAL_MS", 2), clients)),
        ..Manners::default()
    };
    let mut aggregator = Aggregator::start(manners).await;
    let bytes = number("GAPSCOPE_SPOOL_BYTES", 1 << 20).to_string();
    let agent = start(
        &aggregator.url,
        data.path(),
        &server,
        &["--spool-max-bytes", &bytes],
    );
    aggregator
        .until("a first sample", |arrived| !arrived.samples.is_empty())
        .await;
    let answers = || server.answers.load(std::sync::atomic::Ordering::SeqCst);
    let until = async |count: u32| {
        let wait = async {
            while answers() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(600), wait)
            .await
            .expect("the agent probes");
    };
    let more = u32::try_from(number("GAPSCOPE_PROBES", 20_000)).expect("not so many");
    until(answers() + more / 4).await;
    let alive = resident_kib(&agent.0);
    aggregator.stop();
    until(answers() + more / 4).await;
    let (begin, clock) = (resident_kib(&agent.0), SystemClock::new());
    let began = (clock.raw_ns(), answers());
    until(began.1 + more).await;
    let end = resident_kib(&agent.0);
    let rate = f64::from(answers() - began.1) * 1e9 / (clock.raw_ns() - began.0) as f64;
    println!(
        "resident: {alive} KiB while it delivers; without an aggregator {begin} KiB, and {end} \
         KiB {more} probes later, at {rate:.0} probes/s"
    );
    assert!(end < begin + (12 << 10), "{begin} KiB, then {end} KiB");
    assert!(end < alive + (32 << 10), "{alive} KiB, then {end} KiB");
    assert!(end < 96 << 10, "{end} KiB");
}
