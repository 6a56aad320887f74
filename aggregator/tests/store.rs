//! The run folder: what is written is read, once, whatever happens in between.

mod common;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::{lag, plan, samples};
use gapscope_aggregator::store::disk::{Disk, Step};
use gapscope_aggregator::store::footer::StreamKey;
use gapscope_aggregator::store::manifest::{FORMAT_VERSION, Manifest, RunState, Schedule};
use gapscope_aggregator::store::{LossRecord, RunFolder, RunStore, StoreError};
use gapscope_proto::clock::{Clock, ClockKey, SystemClock};
use gapscope_proto::fault::{Fault, FaultScope, Span};
use gapscope_proto::frame::StreamKind;
use gapscope_proto::host::{HostFacts, HostRecord, ProbingEnded, ProbingStarted};
use gapscope_proto::ids::{AgentId, Incarnation, RunId};
use polars::prelude::*;

fn manifest() -> Manifest {
    let clock = SystemClock::new();
    let plan = plan("t", 30_000_000_000);
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

fn agent() -> AgentId {
    "agent-1".parse().expect("a name")
}

fn stream(incarnation: Incarnation, kind: StreamKind) -> StreamKey {
    StreamKey {
        agent_id: agent(),
        incarnation,
        kind,
    }
}

/// The stored seqs, sorted; a seq stored twice appears twice.
fn seqs(folder: &Path) -> Vec<u64> {
    let frame = RunFolder::open(folder)
        .expect("opens")
        .samples()
        .expect("scans")
        .select([col("seq")])
        .collect()
        .expect("reads");
    let mut seqs: Vec<u64> = frame
        .column("seq")
        .expect("is there")
        .u64()
        .expect("is u64")
        .iter()
        .flatten()
        .collect();
    seqs.sort_unstable();
    seqs
}

#[track_caller]
fn holds(folder: &Path, last: u64) {
    assert_eq!(seqs(folder), (1..=last).collect::<Vec<_>>());
}

#[test]
fn every_column_is_stored_as_it_was() {
    let data = tempfile::tempdir().expect("a folder");
    let incarnation = Incarnation::generate();
    let mut store = RunStore::create(data.path(), manifest(), Disk::default()).expect("is new");
    store.append_samples(&agent(), incarnation, samples(1..=7));
    store.commit().expect("commits");
    for closed in [false, true] {
        if closed {
            store.close(|m| m.state = RunState::Closed).expect("closes");
        }
        let run = RunFolder::open(store.folder()).expect("opens");
        let frame = run
            .samples()
            .expect("scans")
            .sort(["seq"], SortMultipleOptions::default())
            .collect()
            .expect("reads");
        assert_eq!(frame.height(), 7);
        let text = |name: &str| -> Vec<Option<String>> {
            let column = frame.column(name).expect("is there");
            assert!(
                matches!(column.dtype(), DataType::Categorical(..)),
                "{name} is {}",
                column.dtype()
            );
            let column = column.cast(&DataType::String).expect("casts");
            column
                .str()
                .expect("text")
                .iter()
                .map(|v| v.map(str::to_owned))
                .collect()
        };
        assert_eq!(text("run_id")[0], Some(run.manifest().run_id.to_string()));
        assert_eq!(text("incarnation")[0], Some(incarnation.to_string()));
        assert_eq!(text("incarnation")[0].as_ref().map(String::len), Some(16));
        assert_eq!(text("outcome")[5].as_deref(), Some("ok"));
        assert_eq!(text("outcome")[6].as_deref(), Some("timed_out"));
        assert_eq!(text("cause")[5], None);
        assert_eq!(text("cause")[6].as_deref(), Some("query_timeout"));
        assert_eq!(text("backend")[6], None);
        assert_eq!(text("sqlstate")[6], None);
        let connect = frame.column("connect_ns").expect("is there");
        assert_eq!(connect.null_count(), 6);
        let started = frame.column("started_ns").expect("is there");
        assert_eq!(started.i64().expect("i64").get(2), Some(30_000_001));
        assert_eq!(
            frame.column("client").expect("is there").dtype(),
            &DataType::UInt16
        );
        let bad = frame
            .clone()
            .lazy()
            .filter(col("backend").is_null())
            .collect()
            .expect("filters");
        assert_eq!(bad.height(), 1);
        let equal = frame
            .clone()
            .lazy()
            .filter(col("backend").eq(lit("a:3306")))
            .collect()
            .expect("a categorical compares with a text");
        assert_eq!(equal.height(), 6);
    }
}

#[test]
fn a_seq_counts_as_durable_only_after_sync_rename_and_sync() {
    let data = tempfile::tempdir().expect("a folder");
    let steps: Arc<Mutex<Vec<(Step, String)>>> = Arc::default();
    let seen = steps.clone();
    let disk = Disk::watched(Arc::new(move |step, path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        seen.lock().expect("sound").push((step, name.into_owned()));
        Ok(())
    }));
    let incarnation = Incarnation::generate();
    let mut store = RunStore::create(data.path(), manifest(), disk).expect("is new");
    store.append_samples(&agent(), incarnation, samples(1..=3));
    assert_eq!(store.durable(&stream(incarnation, StreamKind::Samples)), 0);
    assert_eq!(store.take_acks(), vec![]);
    steps.lock().expect("sound").clear();
    store.commit().expect("commits");
    let part = "part-000001.parquet".to_owned();
    assert_eq!(
        *steps.lock().expect("sound"),
        vec![
            (Step::Create, part.clone()),
            (Step::Write, part.clone()),
            (Step::SyncFile, part.clone()),
            (Step::Rename, part),
            (Step::SyncFolder, "live".to_owned()),
        ]
    );
    assert_eq!(
        store.take_acks(),
        vec![(stream(incarnation, StreamKind::Samples), 3)]
    );
    assert_eq!(store.take_acks(), vec![]);
}

#[test]
fn a_failure_at_any_step_acknowledges_nothing_and_doubles_nothing() {
    for fail_at in 0..5 {
        let data = tempfile::tempdir().expect("a folder");
        let countdown = Arc::new(AtomicUsize::new(usize::MAX));
        let left = countdown.clone();
        let disk = Disk::watched(Arc::new(move |_, _| {
            if left.fetch_sub(1, Ordering::SeqCst) == 0 {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            Ok(())
        }));
        let incarnation = Incarnation::generate();
        let mut store = RunStore::create(data.path(), manifest(), disk).expect("is new");
        store.append_samples(&agent(), incarnation, samples(1..=3));
        countdown.store(fail_at, Ordering::SeqCst);
        let error = store.commit().expect_err("the disk is full");
        assert!(error.is_disk_full(), "{error}");
        assert_eq!(store.take_acks(), vec![], "step {fail_at}");
        countdown.store(usize::MAX, Ordering::SeqCst);
        // More comes in meanwhile; then there is room again.
        store.append_samples(&agent(), incarnation, samples(4..=5));
        store.commit().expect("there is room");
        assert_eq!(
            store.take_acks(),
            vec![(stream(incarnation, StreamKind::Samples), 5)]
        );
        holds(store.folder(), 5);
        store.close(|_| ()).expect("closes");
        holds(store.folder(), 5);
    }
}

#[test]
fn a_crash_at_any_step_of_the_close_neither_loses_nor_doubles() {
    let mut survived = 0;
    for crash_at in 0.. {
        let data = tempfile::tempdir().expect("a folder");
        let countdown = Arc::new(AtomicUsize::new(usize::MAX));
        let left = countdown.clone();
        let disk = Disk::watched(Arc::new(move |_, _| {
            // After the crash nothing is done any more.
            if left.load(Ordering::SeqCst) == 0 {
                return Err(io::Error::other("the process is dead"));
            }
            left.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }));
        let incarnation = Incarnation::generate();
        let mut store = RunStore::create(data.path(), manifest(), disk).expect("is new");
        for part in 0..3u64 {
            store.append_samples(&agent(), incarnation, samples(part * 4 + 1..=part * 4 + 4));
            store.append_host(&agent(), incarnation, [lag(part as i64)]);
            store.commit().expect("commits");
        }
        let folder = store.folder().to_owned();
        countdown.store(crash_at, Ordering::SeqCst);
        let crashed = store.close(|m| m.state = RunState::Closed).is_err();
        drop(store);
        let check = |live_ok: bool| {
            holds(&folder, 12);
            let lag = RunFolder::open(&folder)
                .expect("opens")
                .lag()
                .expect("scans")
                .collect()
                .expect("reads");
            assert_eq!(lag.height(), 3, "crash at {crash_at}");
            if !live_ok {
                let live = std::fs::read_dir(folder.join("samples/live")).expect("is there");
                assert_eq!(live.count(), 0);
            }
        };
        check(true);
        let mut store = RunStore::open(&folder, Disk::default()).expect("opens again");
        assert_eq!(
            store.admitted(&stream(incarnation, StreamKind::Samples)),
            12
        );
        assert_eq!(store.admitted(&stream(incarnation, StreamKind::Host)), 3);
        check(true);
        // It goes on where it was, under names never used before.
        store.append_samples(&agent(), incarnation, samples(13..=14));
        store.commit().expect("commits");
        holds(&folder, 14);
        store.close(|m| m.state = RunState::Closed).expect("closes");
        holds(&folder, 14);
        let again = RunFolder::open(&folder).expect("opens");
        assert_eq!(again.manifest().state, RunState::Closed);
        assert_eq!(again.samples_stored(), 14);
        if !crashed {
            survived = crash_at;
            break;
        }
    }
    assert!(survived > 15, "the close has only {survived} steps");
}

#[test]
fn the_reader_counts_a_replaced_part_once() {
    let data = tempfile::tempdir().expect("a folder");
    let incarnation = Incarnation::generate();
    let mut store = RunStore::create(data.path(), manifest(), Disk::default()).expect("is new");
    store.append_samples(&agent(), incarnation, samples(1..=4));
    store.commit().expect("commits");
    let live = store.folder().join("samples/live/part-000001.parquet");
    let kept = data.path().join("kept");
    std::fs::copy(&live, &kept).expect("copies");
    store.close(|_| ()).expect("closes");
    assert!(!live.exists());
    std::fs::copy(&kept, &live).expect("the leftover of a crash");
    holds(store.folder(), 4);
}

#[test]
fn an_empty_run_is_readable() {
    let data = tempfile::tempdir().expect("a folder");
    let store = RunStore::create(data.path(), manifest(), Disk::default()).expect("is new");
    let run = RunFolder::find(data.path(), "latest").expect("finds it");
    let samples = run.samples().expect("scans").collect().expect("reads");
    assert_eq!((samples.height(), samples.width()), (0, 28));
    for table in [run.lag(), run.clock_exchanges(), run.clock_anchors()] {
        assert_eq!(table.expect("scans").collect().expect("reads").height(), 0);
    }
    assert_eq!(run.faults().expect("reads"), vec![]);
    assert_eq!(run.losses().expect("reads"), vec![]);
    let id = store.manifest().run_id.to_string();
    assert!(RunFolder::find(data.path(), &id[..20]).is_ok());
    assert!(matches!(
        RunFolder::find(data.path(), "ffff"),
        Err(StoreError::NotFound { .. })
    ));
}

#[test]
fn losses_advance_the_stream_and_survive() {
    let data = tempfile::tempdir().expect("a folder");
    let incarnation = Incarnation::generate();
    let mut store = RunStore::create(data.path(), manifest(), Disk::default()).expect("is new");
    let loss = |first_seq, last_seq| LossRecord {
        agent_id: agent(),
        incarnation,
        kind: StreamKind::Samples,
        first_seq,
        last_seq,
        count_min: 0,
        count_max: last_seq - first_seq + 1,
        reason: "power_loss".to_owned(),
    };
    store.append_samples(&agent(), incarnation, samples(1..=4));
    assert!(!store.declare_loss(loss(6, 8)), "it leaves a hole");
    assert!(store.declare_loss(loss(5, 8)));
    store.commit().expect("commits");
    assert_eq!(store.take_acks()[0].1, 8);
    let folder = store.folder().to_owned();
    drop(store);
    let mut store = RunStore::open(&folder, Disk::default()).expect("opens");
    assert_eq!(store.admitted(&stream(incarnation, StreamKind::Samples)), 8);
    store.append_samples(&agent(), incarnation, samples(9..=9));
    store.close(|_| ()).expect("closes");
    assert_eq!(seqs(&folder), vec![1, 2, 3, 4, 9]);
    let run = RunFolder::open(&folder).expect("opens");
    assert_eq!(run.losses().expect("reads"), vec![loss(5, 8)]);
    assert_eq!(run.samples_lost().expect("reads"), (0, 4));
    assert_eq!(
        run.manifest().agents[0].incarnations[0].samples_committed,
        9
    );
}

#[test]
fn a_part_that_cannot_be_read_is_declared_lost_and_said() {
    let data = tempfile::tempdir().expect("a folder");
    let incarnation = Incarnation::generate();
    let mut store = RunStore::create(data.path(), manifest(), Disk::default()).expect("is new");
    for part in 0..3u64 {
        store.append_samples(&agent(), incarnation, samples(part * 4 + 1..=part * 4 + 4));
        store.commit().expect("commits");
    }
    let folder = store.folder().to_owned();
    drop(store);
    std::fs::write(folder.join("samples/live/part-000002.parquet"), b"junk").expect("writes");
    let run = RunFolder::open(&folder).expect("opens");
    assert_eq!(run.notes().len(), 1);
    assert_eq!(run.samples_lost().expect("reads"), (4, 4), "also before");
    let store = RunStore::open(&folder, Disk::default()).expect("opens");
    assert_eq!(
        store.admitted(&stream(incarnation, StreamKind::Samples)),
        12
    );
    let run = RunFolder::open(&folder).expect("opens");
    let losses = run.losses().expect("reads");
    assert_eq!(losses.len(), 1);
    assert_eq!((losses[0].first_seq, losses[0].last_seq), (5, 8));
    assert_eq!(losses[0].reason, "part_unreadable");
    assert!(run.manifest().caveats[0].contains("part-000002"));
    assert_eq!(
        run.samples_stored() + run.samples_lost().expect("reads").0,
        12
    );
}

/// A pipe that nobody writes would be waited for without end.
#[test]
fn a_pipe_in_a_files_place_is_named_and_not_waited_for() {
    let data = tempfile::tempdir().expect("a folder");
    let incarnation = Incarnation::generate();
    let mut store = RunStore::create(data.path(), manifest(), Disk::default()).expect("is new");
    store.append_samples(&agent(), incarnation, samples(1..=4));
    store.close(|_| ()).expect("closes");
    let path = store.folder().join("samples/part-000001.parquet");
    std::fs::remove_file(&path).expect("removed");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).expect("made");
    let (told, tells) = std::sync::mpsc::channel();
    let folder = store.folder().to_owned();
    std::thread::spawn(move || {
        let run = RunFolder::open(&folder).expect("opens");
        let verified = gapscope_aggregator::store::verify::verify(&folder).expect("looks");
        told.send((run.notes().to_vec(), verified.is_sound()))
    });
    let waited = std::time::Duration::from_secs(60);
    let (notes, is_sound) = tells.recv_timeout(waited).expect("nobody waits for a pipe");
    assert!(notes[0].contains("part-000001") && notes[0].contains("not a regular file"));
    assert!(!is_sound);
}

#[test]
fn a_part_of_another_run_is_named_and_not_counted() {
    let data = tempfile::tempdir().expect("a folder");
    let incarnation = Incarnation::generate();
    let other = Manifest {
        run_id: RunId::generate(),
        ..manifest()
    };
    let mut folders = Vec::new();
    for manifest in [manifest(), other] {
        let mut store = RunStore::create(data.path(), manifest, Disk::default()).expect("is new");
        store.append_samples(&agent(), incarnation, samples(1..=4));
        store.commit().expect("commits");
        folders.push(store.folder().to_owned());
    }
    let part = |folder: &Path, number: u32| {
        folder.join(format!("samples/live/part-00000{number}.parquet"))
    };
    std::fs::copy(part(&folders[1], 1), part(&folders[0], 2)).expect("copied");
    let run = RunFolder::open(&folders[0]).expect("opens");
    assert_eq!(run.samples_stored(), 4);
    assert!(run.notes()[0].contains("part-000002") && run.notes()[0].contains("of another run"));
    let mut store = RunStore::open(&folders[0], Disk::default()).expect("opens");
    store.close(|_| ()).expect("closes");
    assert_eq!(seqs(&folders[0]), vec![1, 2, 3, 4]);
}

fn fault() -> Fault {
    Fault {
        id: 0,
        step: "stop".to_owned(),
        subject: "a".to_owned(),
        identity: None,
        scope: FaultScope::Backend,
        clock: ClockKey {
            boot_id: "b".to_owned(),
            time_namespace: 3,
        },
        asked: Span {
            earliest_ns: 5,
            latest_ns: 6,
        },
        listener_refused: None,
        held_cut: None,
        gone: None,
        cleared: None,
        detail: String::new(),
    }
}

#[test]
fn faults_gain_what_is_learnt_later() {
    let data = tempfile::tempdir().expect("a folder");
    let mut store = RunStore::create(data.path(), manifest(), Disk::default()).expect("is new");
    let id = store.record_fault(fault()).expect("records");
    assert_eq!(id, 1);
    assert_eq!(store.record_fault(fault()).expect("records"), 2);
    let gone = Span {
        earliest_ns: 7,
        latest_ns: 9,
    };
    let cut = Span {
        earliest_ns: 6,
        latest_ns: 7,
    };
    for learnt in [
        Fault {
            id,
            gone: Some(gone),
            ..fault()
        },
        Fault {
            id,
            held_cut: Some(cut),
            ..fault()
        },
    ] {
        store.record_fault(learnt).expect("records");
    }
    let faults = RunFolder::open(store.folder())
        .expect("opens")
        .faults()
        .expect("reads");
    assert_eq!(
        faults,
        vec![
            Fault {
                id: 1,
                gone: Some(gone),
                held_cut: Some(cut),
                ..fault()
            },
            Fault { id: 2, ..fault() }
        ]
    );
}

#[test]
fn starts_and_ends_reach_the_manifest_even_of_a_killed_run() {
    let data = tempfile::tempdir().expect("a folder");
    let incarnation = Incarnation::generate();
    let mut store = RunStore::create(data.path(), manifest(), Disk::default()).expect("is new");
    let before = std::fs::read(store.folder().join("manifest.json")).expect("reads");
    let clock = ClockKey {
        boot_id: "b".to_owned(),
        time_namespace: 1,
    };
    store.append_host(
        &agent(),
        incarnation,
        [
            HostRecord::Started(ProbingStarted {
                origin_ns: 1,
                planned_end_ns: 2,
                clock: clock.clone(),
            }),
            HostRecord::Ended(ProbingEnded {
                end_ns: 3,
                reason: "planned end".to_owned(),
                due: 10,
                sampled: 8,
                waited: 2,
                overslept: 0,
            }),
        ],
    );
    store.commit().expect("commits");
    let folder = store.folder().to_owned();
    drop(store);
    // Killed after the part, before the manifest.
    std::fs::write(folder.join("manifest.json"), before).expect("writes");
    let run = RunFolder::open(&folder).expect("opens");
    let entry = &run.manifest().agents[0].incarnations[0];
    assert_eq!(entry.clock, clock);
    assert_eq!(entry.started.as_ref().map(|s| s.origin_ns), Some(1));
    assert_eq!(entry.ended.as_ref().map(|e| e.due), Some(10));
    assert_eq!(entry.samples_announced, 8);
    let store = RunStore::open(&folder, Disk::default()).expect("opens");
    assert_eq!(&store.manifest().agents, &run.manifest().agents);
}

#[test]
fn a_newer_format_is_named() {
    let data = tempfile::tempdir().expect("a folder");
    let store = RunStore::create(data.path(), manifest(), Disk::default()).expect("is new");
    let path = store.folder().join("manifest.json");
    let text = std::fs::read_to_string(&path).expect("reads");
    std::fs::write(
        &path,
        text.replace("\"format_version\": 2", "\"format_version\": 3"),
    )
    .expect("writes");
    let error = RunFolder::open(store.folder()).expect_err("it is newer");
    assert!(
        error
            .to_string()
            .ends_with("format version 3, this build reads up to 2"),
        "{error}"
    );
    assert!(error.hint().is_some());
}
