//! Whether what is stored is whole, and what makes it whole: `verify`, the merge
//! of small parts, `import` of spools.

mod common;
mod lab;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{lag, plan, sample, samples};
use gapscope_aggregator::commands::report;
use gapscope_aggregator::import::lab08;
use gapscope_aggregator::import::spool::{Spool, SpoolError, find};
use gapscope_aggregator::import::take_in::{Now, TakeInError, TakenIn, take_in};
use gapscope_aggregator::store::disk::Disk;
use gapscope_aggregator::store::footer::StreamKey;
use gapscope_aggregator::store::lock::DataLock;
use gapscope_aggregator::store::manifest::{FORMAT_VERSION, Manifest, RunState, Schedule};
use gapscope_aggregator::store::reader::Standing;
use gapscope_aggregator::store::verify::verify;
use gapscope_aggregator::store::{LossRecord, RunFolder, RunStore, StoreError, proxy_view};
use gapscope_proto::batch::Columns;
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::fault::{Fault, FaultScope, Span};
use gapscope_proto::frame::{Body, Frame, StreamId, StreamKind};
use gapscope_proto::host::{
    ControlProbes, HostFacts, HostRecord, Inspection, ProbingEnded, ProbingStarted,
};
use gapscope_proto::ids::{AgentId, Incarnation, RunId};
use gapscope_proto::plan::RunPlan;
use lab::{Lab, S, standard};
use polars::prelude::*;
use proptest::prelude::*;

fn manifest_of(plan: RunPlan) -> Manifest {
    let clock = SystemClock::new();
    Manifest {
        format_version: FORMAT_VERSION,
        run_id: plan.run_id,
        state: RunState::Running,
        created_utc: "2026-01-01T00:00:00.000Z".to_owned(),
        closed_utc: None,
        end_reason: None,
        program_version: "test".to_owned(),
        host: HostFacts::default(),
        clock: clock.key(),
        anchors: vec![clock.anchor()],
        plan,
        schedule: Schedule::OpenLoop,
        subjects: Vec::new(),
        labels: BTreeMap::new(),
        agents: Vec::new(),
        caveats: Vec::new(),
        files: None,
    }
}

fn manifest() -> Manifest {
    manifest_of(plan("t", 30_000_000_000))
}

fn agent() -> AgentId {
    "agent-1".parse().expect("a name")
}

fn started() -> HostRecord {
    HostRecord::Started(ProbingStarted {
        origin_ns: 1,
        planned_end_ns: 2,
        clock: SystemClock::new().key(),
    })
}

fn ended(sampled: u64) -> HostRecord {
    HostRecord::Ended(ProbingEnded {
        end_ns: 2,
        reason: "planned end".to_owned(),
        due: sampled,
        sampled,
        waited: 0,
        overslept: 0,
    })
}

/// Seqs stored, sorted; twice if stored twice.
fn seqs(folder: &Path) -> Vec<u64> {
    let frame = RunFolder::open(folder)
        .expect("opens")
        .samples()
        .expect("scans")
        .select([col("seq")])
        .collect()
        .expect("reads");
    let column = frame.column("seq").expect("is there");
    let mut seqs: Vec<u64> = column.u64().expect("u64").iter().flatten().collect();
    seqs.sort_unstable();
    seqs
}

/// A run with parts of all kinds; closed or live.
fn stored(data: &Path, closed: bool) -> PathBuf {
    let incarnation = Incarnation::generate();
    let mut store = RunStore::create(data, manifest(), Disk::default()).expect("is new");
    store.append_host(&agent(), incarnation, [started()]);
    for part in 0..3u64 {
        store.append_samples(&agent(), incarnation, samples(part * 4 + 1..=part * 4 + 4));
        store.append_host(&agent(), incarnation, [lag(part as i64)]);
        store.commit().expect("commits");
    }
    store.append_host(&agent(), incarnation, [ended(12)]);
    store.commit().expect("commits");
    if closed {
        store.close(|m| m.state = RunState::Closed).expect("closes");
    }
    store.folder().to_owned()
}

fn files_below(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("is there") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files_below(&path, out);
        } else {
            out.push(path);
        }
    }
}

#[test]
fn a_whole_run_is_sound() {
    for closed in [false, true] {
        let data = tempfile::tempdir().expect("a folder");
        let folder = stored(data.path(), closed);
        let found = verify(&folder).expect("reads");
        assert!(found.is_sound(), "{found:#?}");
        assert_eq!((found.samples, found.sampled, found.missing), (12, 12, 0));
        assert_eq!(found.without_checksum, 0);
    }
}

/// Every byte of every file, one bit each; a bit that cycles with the place.
#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    for closed in [false, true] {
        let data = tempfile::tempdir().expect("a folder");
        let folder = stored(data.path(), closed);
        let mut files = Vec::new();
        files_below(&folder, &mut files);
        assert!(files.len() >= if closed { 5 } else { 8 }, "{files:?}");
        for file in files {
            let sound = fs::read(&file).expect("reads");
            let mut bytes = sound.clone();
            // A prime step through the long ones: a page, a footer, a length.
            let step = if sound.len() > 2_000 { 331 } else { 67 };
            for at in (0..bytes.len()).step_by(step) {
                bytes[at] ^= 1 << (at % 8);
                fs::write(&file, &bytes).expect("writes");
                let noticed = match verify(&folder) {
                    Ok(found) => !found.damage.is_empty(),
                    Err(_) => true,
                };
                assert!(noticed, "{} byte {at} of {}", file.display(), bytes.len());
                bytes[at] ^= 1 << (at % 8);
            }
            fs::write(&file, &sound).expect("writes");
        }
        assert!(verify(&folder).expect("reads").is_sound());
    }
}

#[test]
fn files_that_are_missing_or_twice_are_noticed() {
    let data = tempfile::tempdir().expect("a folder");
    let folder = stored(data.path(), false);
    let live = folder.join("samples/live");
    let copy = live.join("part-000009.parquet");
    fs::copy(live.join("part-000002.parquet"), &copy).expect("copies");
    let found = verify(&folder).expect("reads");
    assert_eq!(found.damage.len(), 1, "{found:#?}");
    assert!(found.damage[0].contains("samples 5 to 8 of agent agent-1"));
    assert!(found.damage[0].ends_with("are stored twice"));
    fs::remove_file(&copy).expect("removed");
    fs::remove_file(live.join("part-000002.parquet")).expect("removed");
    let found = verify(&folder).expect("reads");
    assert!(found.damage[0].ends_with("are neither stored nor declared lost"));
    assert!(
        found
            .damage
            .iter()
            .any(|d| d.contains("12 samples are numbered"))
    );
}

#[test]
fn a_damaged_live_part_is_not_merged_but_declared_lost() {
    let data = tempfile::tempdir().expect("a folder");
    let incarnation = Incarnation::generate();
    let mut store = RunStore::create(data.path(), manifest(), Disk::default()).expect("is new");
    for part in 0..3u64 {
        store.append_samples(&agent(), incarnation, samples(part * 4 + 1..=part * 4 + 4));
        store.commit().expect("commits");
    }
    let folder = store.folder().to_owned();
    let part = folder.join("samples/live/part-000002.parquet");
    let mut bytes = fs::read(&part).expect("reads");
    bytes[40] ^= 4;
    fs::write(&part, bytes).expect("writes");
    store.close(|m| m.state = RunState::Closed).expect("closes");
    assert_eq!(seqs(&folder), [1, 2, 3, 4, 9, 10, 11, 12]);
    let run = RunFolder::open(&folder).expect("opens");
    assert_eq!(run.samples_lost().expect("reads"), (4, 4));
    assert!(run.manifest().caveats[0].contains("its checksum does not hold"));
    let found = verify(&folder).expect("reads");
    assert_eq!(found.damage, Vec::<String>::new());
    assert_eq!(found.lacking.len(), 1, "{found:#?}");
    assert!(
        found.remarks[0].contains("part-000002.damaged"),
        "{found:#?}"
    );
    // And once more from the folder as it is now.
    let store = RunStore::open(&folder, Disk::default()).expect("opens");
    assert_eq!(store.samples_stored(), 8);
}

/// As version 1 wrote it: no checksums, an older number.
#[test]
fn a_run_of_version_1_is_still_read() {
    let data = tempfile::tempdir().expect("a folder");
    let folder = stored(data.path(), true);
    let path = folder.join("samples/part-000001.parquet");
    let mut frame = ParquetReader::new(fs::File::open(&path).expect("opens"))
        .finish()
        .expect("reads");
    let (footer, _) = gapscope_aggregator::store::footer::read(&path).expect("reads");
    let mut old = serde_json::to_value(&footer).expect("plain data");
    old["format_version"] = 1.into();
    old.as_object_mut().expect("an object").remove("checksum");
    let metadata = KeyValueMetadata::from_static(vec![("gapscope".to_owned(), old.to_string())]);
    ParquetWriter::new(fs::File::create(&path).expect("creates"))
        .with_key_value_metadata(Some(metadata))
        .finish(&mut frame)
        .expect("writes");
    let path = folder.join("manifest.json");
    let mut old: serde_json::Value =
        serde_json::from_slice(&fs::read(&path).expect("reads")).expect("is JSON");
    old["format_version"] = 1.into();
    let entries = old.as_object_mut().expect("an object");
    entries.remove("checksum");
    assert!(entries.remove("files").is_some());
    fs::write(&path, old.to_string()).expect("writes");
    let run = RunFolder::open(&folder).expect("opens");
    assert_eq!(run.sound().expect("opens").samples_stored(), 12);
    let found = verify(&folder).expect("reads");
    assert!(found.is_sound(), "{found:#?}");
    assert_eq!(found.without_checksum, 2);
    assert!(
        found.remarks[0].starts_with("the manifest has no list"),
        "{found:#?}"
    );
    // What comes late is added, and has one.
    let mut store = RunStore::open(&folder, Disk::default()).expect("opens");
    let incarnation = run.manifest().agents[0].incarnations[0].incarnation;
    store.append_samples(&agent(), incarnation, [sample(13)]);
    store.close(|_| ()).expect("closes");
    assert_eq!(seqs(&folder), (1..=13).collect::<Vec<_>>());
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("is there") {
        let path = entry.expect("an entry").path();
        let there = to.join(path.file_name().expect("has one"));
        if path.is_dir() {
            copy(&path, &there);
        } else {
            fs::copy(&path, &there).expect("copies");
        }
    }
}

/// Many small parts become one while the run goes on, whatever step fails.
#[test]
fn small_parts_are_made_one_and_nothing_is_lost_or_doubled_by_a_crash() {
    const PARTS: u64 = 257;
    let data = tempfile::tempdir().expect("a folder");
    let incarnation = Incarnation::generate();
    let mut store = RunStore::create(data.path(), manifest(), Disk::default()).expect("is new");
    for part in 1..=PARTS {
        store.append_samples(&agent(), incarnation, [sample(part)]);
        store.append_host(&agent(), incarnation, [lag(part as i64)]);
        store.commit().expect("commits");
    }
    assert!(store.has_many_parts());
    let made = store.folder().to_owned();
    drop(store);
    // The new file, its name, between removals, the second file, the end.
    let mut crashes = 0;
    for crash_at in [4, 262, usize::MAX] {
        let folder = data.path().join(format!("crash-{crash_at}"));
        copy(&made, &folder);
        let countdown = Arc::new(AtomicUsize::new(usize::MAX));
        let left = countdown.clone();
        let disk = Disk::watched(Arc::new(move |_, _| {
            if left.load(Ordering::SeqCst) == 0 {
                return Err(std::io::Error::other("the process is dead"));
            }
            left.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }));
        let mut store = RunStore::open(&folder, disk).expect("opens");
        countdown.store(crash_at, Ordering::SeqCst);
        crashes += usize::from(store.compact().is_err());
        drop(store);
        let check = |last: u64| {
            assert_eq!(
                seqs(&folder),
                (1..=last).collect::<Vec<_>>(),
                "at {crash_at}"
            );
            let lag = RunFolder::open(&folder)
                .expect("opens")
                .lag()
                .expect("scans");
            let height = lag.collect().expect("reads").height();
            assert_eq!(height as u64, PARTS, "at {crash_at}");
        };
        check(PARTS);
        let mut store = RunStore::open(&folder, Disk::default()).expect("opens again");
        check(PARTS);
        store.compact().expect("compacts");
        store.append_samples(&agent(), incarnation, [sample(PARTS + 1)]);
        store.commit().expect("commits");
        check(PARTS + 1);
        let live = fs::read_dir(folder.join("samples/live")).expect("is there");
        let live = live.count();
        assert!(live < 100, "{live} parts at {crash_at}");
        store.close(|m| m.state = RunState::Closed).expect("closes");
        check(PARTS + 1);
        let live = fs::read_dir(folder.join("samples/live")).expect("is there");
        assert_eq!(live.count(), 0);
    }
    assert_eq!(crashes, 2);
}

// ------------------------------------------------------------------- import

struct Made {
    folder: PathBuf,
    run: RunId,
    samples: StreamId,
    host: StreamId,
}

fn frame(stream: StreamId, seqs: std::ops::RangeInclusive<u64>) -> Frame {
    Frame {
        stream,
        first_seq: *seqs.start(),
        body: Body::Samples(Columns::encode(&samples(seqs))),
    }
}

/// A spool as an agent leaves it: 12 samples in segments and a tail that repeats
/// some of them, a start and an end of probing.
fn spool(parent: &Path) -> Made {
    let mut plan = plan("t", 1);
    plan.duration_ns = 120_000_000;
    let run = plan.run_id;
    let incarnation = Incarnation::generate();
    let stream = |kind| StreamId {
        run,
        incarnation,
        kind,
    };
    let (samples, host) = (stream(StreamKind::Samples), stream(StreamKind::Host));
    let folder = parent.join("agent-1");
    fs::create_dir_all(&folder).expect("made");
    let clock = SystemClock::new();
    let origin_ns = clock.raw_ns() - 3_600_000_000_000;
    let noted = serde_json::json!([{
        "plan": plan,
        "clock": clock.key(),
        "origin_ns": origin_ns,
        "planned_end_ns": origin_ns + 120_000_000,
        "ended": true,
    }]);
    fs::write(folder.join("runs.json"), noted.to_string()).expect("writes");
    fs::write(folder.join("lock"), "").expect("writes");
    let started = HostRecord::Started(ProbingStarted {
        origin_ns,
        planned_end_ns: origin_ns + 120_000_000,
        clock: clock.key(),
    });
    let hosts = Frame {
        stream: host,
        first_seq: 1,
        body: Body::Host(vec![started, HostRecord::Anchor(clock.anchor()), ended(12)]),
    };
    let bytes = |frames: &[Frame]| -> Vec<u8> {
        let encoded = frames.iter().map(|f| f.to_bytes().expect("encodes"));
        encoded.flatten().collect()
    };
    let number = |what: &str, n: u64| folder.join(format!("{what}-{n:020}"));
    fs::write(
        number("segment", 1),
        bytes(&[frame(samples, 1..=4), hosts, frame(samples, 5..=8)]),
    )
    .expect("writes");
    fs::write(
        number("tail", 2),
        bytes(&[frame(samples, 7..=10), frame(samples, 11..=12)]),
    )
    .expect("writes");
    Made {
        folder,
        run,
        samples,
        host,
    }
}

fn take(spool: &Path, run: RunId, data: &Path) -> Result<TakenIn, TakeInError> {
    let now = Now {
        utc: "2026-01-01T00:00:00.000Z".to_owned(),
        is_over: |_| true,
    };
    take_in(&Spool::open(spool)?, run, data, &now)
}

#[test]
fn a_spool_becomes_a_run_and_twice_adds_nothing() {
    let parent = tempfile::tempdir().expect("a folder");
    let data = tempfile::tempdir().expect("a folder");
    let made = spool(parent.path());
    assert_eq!(find(parent.path()), std::slice::from_ref(&made.folder));
    let taken = take(&made.folder, made.run, data.path()).expect("taken in");
    assert_eq!((taken.samples, taken.host, taken.lost), (12, 3, 0));
    assert!(taken.is_new && taken.state == RunState::Closed);
    assert_eq!(seqs(&taken.folder), (1..=12).collect::<Vec<_>>());
    let found = verify(&taken.folder).expect("reads");
    assert!(found.is_sound(), "{found:#?}");
    let again = take(&made.folder, made.run, data.path()).expect("taken in");
    assert_eq!((again.samples, again.host, again.lost), (0, 0, 0));
    assert_eq!(again.known, 12 + 3 + 2, "two stand in the spool twice");
    assert!(!again.is_something());
    assert_eq!(seqs(&taken.folder), (1..=12).collect::<Vec<_>>());
    let run = RunFolder::open(&taken.folder).expect("opens");
    assert_eq!(
        run.manifest().caveats.len(),
        1,
        "{:?}",
        run.manifest().caveats
    );
    let entry = &run.manifest().agents[0].incarnations[0];
    assert_eq!(entry.samples_announced, 12);
    // It can be reported on, and the books balance.
    let reported = gapscope_aggregator::commands::report::make(&run).expect("reports");
    assert_eq!(reported.analysis.conservation.stored, 12);
}

#[test]
fn late_data_completes_a_closed_run() {
    let parent = tempfile::tempdir().expect("a folder");
    let data = tempfile::tempdir().expect("a folder");
    let made = spool(parent.path());
    let mut plan = plan("t", 120_000_000);
    plan.run_id = made.run;
    let manifest = manifest_of(plan);
    let mut store = RunStore::create(data.path(), manifest, Disk::default()).expect("is new");
    store.append_samples(&agent(), made.samples.incarnation, samples(1..=6));
    store.close(|m| m.state = RunState::Closed).expect("closes");
    let folder = store.folder().to_owned();
    drop(store);
    let taken = take(&made.folder, made.run, data.path()).expect("taken in");
    assert_eq!((taken.samples, taken.host, taken.lost), (6, 3, 0));
    assert!(!taken.is_new);
    assert_eq!(seqs(&folder), (1..=12).collect::<Vec<_>>());
    let run = RunFolder::open(&folder).expect("opens");
    assert!(run.manifest().caveats[0].contains("imported after the run had ended"));
    assert!(verify(&folder).expect("reads").is_sound());
}

#[test]
fn holes_losses_and_damage_are_declared() {
    let parent = tempfile::tempdir().expect("a folder");
    let data = tempfile::tempdir().expect("a folder");
    let made = spool(parent.path());
    // Seqs 1 to 4 were acknowledged elsewhere, 5 to 8 are damaged, 13 to 20 were
    // dropped, of which between 2 and 8 had been measured.
    let segment = made.folder.join(format!("segment-{:020}", 1));
    let bytes = fs::read(&segment).expect("reads");
    let first = frame(made.samples, 1..=4)
        .to_bytes()
        .expect("encodes")
        .len();
    let mut rest = bytes[first..].to_vec();
    let last = rest.len() - 9;
    rest[last] ^= 1;
    fs::write(&segment, rest).expect("writes");
    let loss = serde_json::json!([{
        "stream": made.samples, "first": 13, "last": 20,
        "count_min": 2, "count_max": 8, "reason": "spool_full",
    }]);
    fs::write(made.folder.join("losses.json"), loss.to_string()).expect("writes");
    let opened = Spool::open(&made.folder).expect("opens");
    assert!(opened.damaged_bytes > 0);
    drop(opened);
    let taken = take(&made.folder, made.run, data.path()).expect("taken in");
    // The tail still has 7 to 12.
    assert_eq!((taken.samples, taken.lost), (6, 6 + 8));
    assert_eq!(seqs(&taken.folder), (7..=12).collect::<Vec<_>>());
    let run = RunFolder::open(&taken.folder).expect("opens");
    let losses: Vec<_> = run
        .losses()
        .expect("reads")
        .into_iter()
        .map(|l| (l.first_seq, l.last_seq, l.count_min, l.reason))
        .collect();
    assert_eq!(
        losses,
        [
            (1, 6, 6, "corrupt".to_owned()),
            (13, 20, 2, "spool_full".to_owned())
        ]
    );
    let found = verify(&taken.folder).expect("reads");
    assert_eq!(found.damage, Vec::<String>::new());
    assert!(!found.is_sound());
    assert_eq!(made.host.kind, StreamKind::Host);
}

#[test]
fn a_live_agents_spool_is_refused_and_so_is_a_run_nobody_planned() {
    let parent = tempfile::tempdir().expect("a folder");
    let data = tempfile::tempdir().expect("a folder");
    let made = spool(parent.path());
    let held = fs::File::open(made.folder.join("lock")).expect("opens");
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).expect("locks");
    assert!(matches!(
        Spool::open(&made.folder),
        Err(SpoolError::InUse(_))
    ));
    drop(held);
    fs::remove_file(made.folder.join("runs.json")).expect("removed");
    let error = take(&made.folder, made.run, data.path()).expect_err("no plan");
    assert!(matches!(error, TakeInError::NoPlan { .. }), "{error}");
    assert_eq!(fs::read_dir(data.path()).expect("is there").count(), 0);
}

#[test]
fn who_left_a_run_unfinished_is_found_out_by_the_lock() {
    let data = tempfile::tempdir().expect("a folder");
    let folder = stored(data.path(), false);
    let run = RunFolder::open(&folder).expect("opens");
    assert_eq!(run.standing(), Standing::Abandoned);
    let lock = DataLock::take(data.path()).expect("free");
    assert_eq!(run.standing(), Standing::Running);
    drop(lock);
    let closed = stored(data.path(), true);
    let closed = RunFolder::open(&closed).expect("opens");
    assert_eq!(closed.standing(), Standing::Closed);
}

/// `runs`, `verify` and `report` of one run, as a person sees them.
fn said_of(folder: &Path) -> (String, String, serde_json::Value, Option<i32>) {
    let data = folder.parent().expect("it has one");
    let id = folder.file_name().expect("it has one");
    let command = |args: &[&str]| {
        std::process::Command::new(env!("CARGO_BIN_EXE_gapscope-aggregator"))
            .args(args)
            .arg("--data")
            .arg(data)
            .output()
            .expect("runs")
    };
    let id = id.to_str().expect("a run id");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let runs = text(command(&["runs"]).stdout);
    let runs = runs.lines().find(|line| line.starts_with(id));
    let verified = text(command(&["verify", id]).stdout);
    let report = command(&["report", id, "--format", "json"]);
    let json = serde_json::from_slice(&report.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&report.stderr)));
    (
        runs.expect("it is listed").to_owned(),
        verified,
        json,
        report.status.code(),
    )
}

#[test]
fn a_run_stands_alike_in_all_commands_and_an_incomplete_one_ends_with_4() {
    let check = |folder: &Path, word: &str, code: i32| {
        let (runs, verified, json, exit) = said_of(folder);
        assert!(runs.contains(&format!("  {word} ")), "{runs}");
        assert!(verified.contains(&format!(": {word}\n")), "{verified}");
        assert_eq!(json["state"], word);
        let codes = (exit, &json["exit_code"]);
        assert_eq!(codes, (Some(code), &code.into()), "{:#}", json["caveats"]);
    };
    for ends in [true, false] {
        let mut lab = Lab::new(standard("proxy"), 2 * S);
        lab.begin();
        lab.probe(|blank, _| blank.clone());
        if ends {
            lab.end();
        }
        lab.store.commit().expect("commits");
        let folder = lab.store.folder().to_owned();
        // A start that never said how it ended: its spool may hold more. While the
        // run goes on, nothing is amiss.
        let code = if ends { 0 } else { 4 };
        check(&folder, "abandoned", code);
        let lock = DataLock::take(lab.data.path()).expect("free");
        check(&folder, "running", 0);
        drop(lock);
        lab.store.interrupt("killed").expect("marks");
        check(&folder, "interrupted", code);
        lab.close();
        check(&folder, "closed", code);
    }
}

/// Nothing can be said of a run whose manifest is damaged: that is data lost, as with
/// any other file.
#[test]
fn a_damaged_manifest_ends_with_4_and_none_with_1() {
    let data = tempfile::tempdir().expect("a folder");
    let folder = stored(data.path(), true);
    let path = folder.join("manifest.json");
    let text = std::fs::read_to_string(&path).expect("readable");
    let report = || {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_gapscope-aggregator"))
            .arg("report")
            .arg(&folder)
            .output()
            .expect("runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    for damaged in [
        String::new(),
        text[..text.len() / 2].to_owned(),
        text.replacen('{', "#", 1),
    ] {
        std::fs::write(&path, damaged).expect("written");
        let (code, said) = report();
        assert_eq!(code, Some(4), "{said}");
        assert!(said.contains("manifest.json` is damaged"), "{said}");
    }
    std::fs::remove_file(&path).expect("removed");
    let (code, said) = report();
    assert_eq!(code, Some(1), "{said}");
}

/// An agent that was killed and came back: its last start says how it ended, and
/// said at its begin what the spool held of the one before.
#[test]
fn a_start_that_was_killed_leaves_nothing_open_once_a_later_one_has_ended() {
    let data = tempfile::tempdir().expect("a folder");
    let mut store = RunStore::create(data.path(), manifest(), Disk::default()).expect("is new");
    let (killed, last) = (Incarnation::generate(), Incarnation::generate());
    store.append_host(&agent(), killed, [started()]);
    store.append_samples(&agent(), killed, samples(1..=5));
    store.commit().expect("commits");
    let open = |store: &RunStore| verify(store.folder()).expect("reads").open;
    assert_eq!(open(&store), 1);
    store.append_host(&agent(), last, [started(), ended(3)]);
    store.append_samples(&agent(), last, samples(6..=8));
    store.commit().expect("commits");
    assert_eq!(open(&store), 0);
    assert!(verify(store.folder()).expect("reads").is_whole());
}

/// Everything but the manifest may be damaged: `report` gives the rest, says what
/// it left out, and ends with 4.
#[test]
fn whatever_is_damaged_is_left_out_of_the_report_and_said() {
    let mut lab = Lab::new(standard("proxy"), 2 * S);
    lab.begin();
    lab.exchange(0, 0);
    let at_ns = lab.origin;
    lab.host([
        lag(5),
        HostRecord::Control(ControlProbes {
            name: String::new(),
            at_ns,
            until_ns: at_ns + S,
            probes: 10,
            bad: 0,
            took_max_ns: 1_000,
            error: String::new(),
        }),
    ]);
    lab.probe(|blank, _| blank.clone());
    let stream = (lab.agent.clone(), lab.incarnation);
    lab.fault("mark", FaultScope::Mark, S, None);
    lab.end();
    assert!(lab.store.declare_loss(LossRecord {
        agent_id: stream.0,
        incarnation: stream.1,
        kind: StreamKind::Host,
        first_seq: lab.store.admitted(&StreamKey {
            agent_id: lab.agent.clone(),
            incarnation: lab.incarnation,
            kind: StreamKind::Host,
        }) + 1,
        last_seq: 1_000,
        count_min: 0,
        count_max: 0,
        reason: "power_loss".to_owned(),
    }));
    lab.close();
    let folder = lab.store.folder();
    let (_, _, json, exit) = said_of(folder);
    assert_eq!(exit, Some(0), "{:#}", json["caveats"]);
    let names = [
        "samples/part-000001.parquet",
        "lag.parquet",
        "clock_exchanges.parquet",
        "clock_anchors.parquet",
        "control.parquet",
        "faults.parquet",
        "losses.parquet",
    ];
    for name in names {
        let path = folder.join(name);
        let sound = fs::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut bytes = sound.clone();
        let at = bytes.len() / 3;
        bytes[at] ^= 4;
        fs::write(&path, &bytes).expect("writes");
        let (_, verified, json, exit) = said_of(folder);
        assert_eq!(exit, Some(4), "{name}: {:#}", json["caveats"]);
        let said = json["caveats"].as_array().expect("a list").iter().any(|c| {
            c["code"] == "unreadable" && c["text"].as_str().is_some_and(|t| t.contains(name))
        });
        assert!(said, "{name}: {:#}", json["caveats"]);
        assert!(verified.contains("\ndamaged: "), "{name}: {verified}");
        fs::write(&path, &sound).expect("writes");
    }
    let found = verify(folder).expect("reads");
    assert_eq!(found.damage, Vec::<String>::new());
    let computed = "computed files are not checked, `report` makes them anew: clock_map.parquet";
    assert!(
        found.remarks.iter().any(|said| said.starts_with(computed)),
        "{found:#?}"
    );
}

/// Each file of a closed run is removed, cut, damaged and put in the place of another
/// run's, one after the other: `verify` and `report` name it, and end with 4.
#[test]
fn every_file_of_a_closed_run_is_missed_when_it_is_gone_or_another() {
    let make = |looks| {
        let mut lab = Lab::new(standard("proxy"), 2 * S);
        lab.begin();
        lab.exchange(0, 0);
        let at_ns = lab.origin;
        lab.host([
            lag(5),
            HostRecord::Control(ControlProbes {
                name: String::new(),
                at_ns,
                until_ns: at_ns + S,
                probes: 10,
                bad: 0,
                took_max_ns: 1_000,
                error: String::new(),
            }),
            HostRecord::Inspection(Box::new(Inspection {
                target: "proxy".to_owned(),
                at_ns,
                until_ns: at_ns + S,
                why: "start".to_owned(),
                ..Inspection::default()
            })),
        ]);
        lab.probe(|blank, _| blank.clone());
        lab.fault("mark", FaultScope::Mark, S, None);
        lab.end();
        let span = Span {
            earliest_ns: at_ns,
            latest_ns: at_ns,
        };
        let seen = proxy_view::Seen {
            proxy: "proxy".to_owned(),
            backend: "one".to_owned(),
            state: Some("UP".to_owned()),
            check: String::new(),
            sessions: Some(1),
            first: span,
            last: span,
            looks,
        };
        let clock = SystemClock::new().key();
        proxy_view::write(lab.store.folder(), &[seen], &clock).expect("writes");
        lab.close();
        lab
    };
    let (lab, other) = (make(1), make(2));
    let folder = lab.store.folder();
    let listed = lab.store.manifest().files.clone().expect("listed");
    let names: Vec<&str> = listed.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "samples/part-000001.parquet",
            "faults.parquet",
            "lag.parquet",
            "clock_exchanges.parquet",
            "clock_anchors.parquet",
            "control.parquet",
            "inspections.parquet",
            "proxy_view.parquet",
        ]
    );
    let (_, verified, json, exit) = said_of(folder);
    assert_eq!(exit, Some(0), "{:#}", json["caveats"]);
    assert!(!verified.contains("no list"), "{verified}");
    type Harm<'a> = (&'a str, &'a dyn Fn(&Path, &[u8]));
    let elsewhere = other.store.folder();
    for name in names {
        let path = folder.join(name);
        let sound = fs::read(&path).expect("is there");
        let harms: [Harm<'_>; 4] = [
            ("gone", &|path, _| fs::remove_file(path).expect("removed")),
            ("cut", &|path, bytes| {
                fs::write(path, &bytes[..bytes.len() / 2]).expect("written");
            }),
            ("flipped", &|path, bytes| {
                let mut bytes = bytes.to_vec();
                let at = bytes.len() / 3;
                bytes[at] ^= 4;
                fs::write(path, bytes).expect("written");
            }),
            // Sound in itself.
            ("another run's", &|path, _| {
                fs::copy(elsewhere.join(name), path)
                    .map(drop)
                    .expect("copied");
            }),
        ];
        for (what, harm) in harms {
            harm(&path, &sound);
            let found = verify(folder).expect("reads");
            let said = if what == "gone" {
                &found.lacking
            } else {
                &found.damage
            };
            assert!(
                said.iter().any(|said| said.contains(name)),
                "{name}, {what}: {found:#?}"
            );
            let run = RunFolder::open(folder).expect("opens");
            let notes = run.sound().expect("opens").notes().join("\n");
            assert!(notes.contains(name), "{name}, {what}: {notes}");
            // What is noted is in the report: of one file more than the rest is slow.
            if (name, what) == ("inspections.parquet", "gone") {
                let (_, _, json, exit) = said_of(folder);
                assert_eq!(exit, Some(4), "{:#}", json["caveats"]);
                let mut caveats = json["caveats"].as_array().expect("a list").iter();
                let is_said = caveats.any(|caveat| {
                    let text = caveat["text"].as_str().unwrap_or_default();
                    caveat["code"] == "unreadable" && text.contains(name)
                });
                assert!(is_said, "{:#}", json["caveats"]);
            }
            fs::write(&path, &sound).expect("written");
        }
    }
    let found = verify(folder).expect("reads");
    assert!(found.is_whole(), "{found:#?}");
}

fn mark(id: u32) -> Fault {
    let asked = Span {
        earliest_ns: 1,
        latest_ns: 1,
    };
    Fault {
        id,
        step: "mark".to_owned(),
        subject: String::new(),
        identity: None,
        scope: FaultScope::Mark,
        clock: SystemClock::new().key(),
        asked,
        listener_refused: None,
        held_cut: None,
        gone: None,
        cleared: None,
        detail: String::new(),
    }
}

/// The list goes before a file is changed and comes back when all is merged again; a
/// file that is gone by then stays noted. A crash at any step leaves no wrong list.
#[test]
fn the_list_of_files_is_never_wrong_whatever_comes_late() {
    let data = tempfile::tempdir().expect("a folder");
    let folder = stored(data.path(), true);
    let incarnation =
        RunFolder::open(&folder).expect("opens").manifest().agents[0].incarnations[0].incarnation;
    let mut step = 0;
    loop {
        let copied = tempfile::tempdir().expect("a folder");
        let folder = {
            let to = copied.path().join(folder.file_name().expect("a name"));
            copy(&folder, &to);
            to
        };
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let counting = left.clone();
        let disk = Disk::watched(Arc::new(move |_, _| {
            let before = counting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                Some(left.saturating_sub(1))
            });
            match before {
                Ok(0) => Err(std::io::Error::other("crashed")),
                _ => Ok(()),
            }
        }));
        let mut store = RunStore::open(&folder, disk).expect("opens");
        left.store(step, Ordering::SeqCst);
        let late = |store: &mut RunStore| -> Result<(), StoreError> {
            store.record_fault(mark(1))?;
            store.append_samples(&agent(), incarnation, samples(13..=16));
            store.append_host(&agent(), incarnation, [lag(9)]);
            store.commit()?;
            store.close(|_| {})?;
            store.record_fault(mark(2)).map(drop)
        };
        let done = late(&mut store);
        drop(store);
        // Whatever stands in the folder now, nothing is called changed or gone.
        let found = verify(&folder).expect("reads");
        assert_eq!(found.damage, Vec::<String>::new(), "step {step}");
        assert!(found.lacking.iter().all(|said| !said.contains("missing:")));
        if done.is_ok() && left.load(Ordering::SeqCst) > 0 {
            let listed = RunFolder::open(&folder)
                .expect("opens")
                .manifest()
                .files
                .clone();
            let listed = listed.expect("listed again");
            assert!(
                listed
                    .iter()
                    .any(|file| file.name == "samples/part-000002.parquet")
            );
            assert!(step > 20, "{step} steps are few");
            break;
        }
        step += 1;
    }
    // What was gone when the list was taken out is remembered.
    fs::remove_file(folder.join("control.parquet")).expect("removed");
    let mut store = RunStore::open(&folder, Disk::default()).expect("opens");
    store.record_fault(mark(1)).expect("recorded");
    let caveats = &store.manifest().caveats;
    assert!(
        caveats
            .iter()
            .any(|said| said.contains("`control.parquet` is missing")),
        "{caveats:?}"
    );
}

/// A run is closed, gets late data and is closed again, each time while somebody
/// reads it: no reader fails, and none sees half of it.
#[test]
fn reading_a_run_that_is_just_being_closed_never_fails() {
    let data = tempfile::tempdir().expect("a folder");
    let incarnation = Incarnation::generate();
    let mut store = RunStore::create(data.path(), manifest(), Disk::default()).expect("is new");
    store.append_host(&agent(), incarnation, [started()]);
    store.commit().expect("commits");
    let folder = store.folder().to_owned();
    let (reading, begun) = std::sync::mpsc::channel();
    let rounds = 8u64;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut next = 1;
            while let Ok(round) = begun.recv() {
                // Later in the reading each time.
                for _ in 0..=round % 6 {
                    store.append_samples(&agent(), incarnation, samples(next..=next + 3));
                    store.append_host(&agent(), incarnation, [lag(next as i64)]);
                    store.commit().expect("commits");
                    next += 4;
                }
                store.close(|m| m.state = RunState::Closed).expect("closes");
            }
        });
        let mut last = 0;
        for round in 0..rounds {
            reading.send(round).expect("the writer lives");
            let run = RunFolder::open(&folder).expect("opens");
            assert_eq!(run.notes(), [""; 0]);
            if round % 2 == 0 {
                let found = verify(&folder).expect("is verified");
                assert_eq!(found.damage, Vec::<String>::new());
            } else {
                let reported = report::make(&run).expect("is analysed");
                let stored = reported.analysis.conservation.stored;
                assert!(stored >= last, "{stored} after {last}");
                last = stored;
            }
        }
        drop(reading);
    });
    let written: u64 = (0..rounds).map(|round| 4 * (round % 6 + 1)).sum();
    assert_eq!(seqs(&folder), (1..=written).collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever is cut from or flipped in a spool: importing it is no panic, every
    /// sample is stored once at most, and all that is not there is declared.
    #[test]
    fn any_damage_to_a_spool_is_declared(
        cuts in proptest::collection::vec((0usize..2, 0usize..4_000, 0u8..9), 0..6)
    ) {
        let parent = tempfile::tempdir().expect("a folder");
        let data = tempfile::tempdir().expect("a folder");
        let made = spool(parent.path());
        let files = [format!("segment-{:020}", 1), format!("tail-{:020}", 2)];
        for (file, at, how) in cuts {
            let path = made.folder.join(&files[file]);
            let mut bytes = fs::read(&path).expect("reads");
            if bytes.is_empty() { continue; }
            let at = at % bytes.len();
            if how == 8 { bytes.truncate(at); } else { bytes[at] ^= 1 << how; }
            fs::write(&path, bytes).expect("writes");
        }
        let taken = take(&made.folder, made.run, data.path());
        // A version that this build does not know is an error, said.
        if let Ok(taken) = taken {
            let stored = seqs(&taken.folder);
            let found = verify(&taken.folder).expect("reads");
            prop_assert_eq!(&found.damage, &Vec::<String>::new());
            let mut once = stored.clone();
            once.dedup();
            prop_assert_eq!(&once, &stored);
            let again = take(&made.folder, made.run, data.path()).expect("again");
            prop_assert_eq!(again.samples, 0);
            prop_assert_eq!(seqs(&taken.folder), stored);
        }
    }

    /// Any text in place of the small files: an error or a result, no panic.
    #[test]
    fn strange_small_files_are_no_panic(text in "\\PC{0,200}", which in 0usize..2) {
        let parent = tempfile::tempdir().expect("a folder");
        let made = spool(parent.path());
        let name = ["runs.json", "losses.json"][which];
        fs::write(made.folder.join(name), text).expect("writes");
        let _ = Spool::open(&made.folder);
    }

    /// Any text in place of a recording: an error, or a run.
    #[test]
    fn strange_recordings_are_no_panic(
        text in prop_oneof![
            "\\PC{0,200}",
            "\\{(\"[a-z_]{1,9}\": ?(-?[0-9.e]{1,20}|\"x\"|\\[\\]|null),? ?){0,6}\\}",
        ]
    ) {
        let _ = lab08::import(&text, RunId::generate(), "x", &[]);
    }

    /// Any bytes in place of a part or a manifest: named, no panic.
    #[test]
    fn strange_parts_are_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), at in 0usize..3) {
        let data = tempfile::tempdir().expect("a folder");
        let folder = stored(data.path(), true);
        let name = ["samples/part-000001.parquet", "lag.parquet", "manifest.json"][at];
        fs::write(folder.join(name), &bytes).expect("writes");
        let noticed = verify(&folder).map_or(true, |found| !found.damage.is_empty());
        prop_assert!(noticed);
        let _ = RunStore::open(&folder, Disk::default());
    }
}
