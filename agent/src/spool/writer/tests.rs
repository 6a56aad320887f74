use super::*;
use crate::spool::LossReason;
use crate::spool::disk::Kind;
use crate::spool::recover::Recovery;
use gapscope_proto::clock::SystemClock;
use gapscope_proto::frame::Frame;
use gapscope_proto::host::{Lag, ProbingStarted};

fn open_in(folder: &Path, max_bytes: u64) -> Opened {
    open(folder, max_bytes, Arc::new(SystemClock::new())).expect("opens")
}

fn started() -> ProbingStarted {
    ProbingStarted {
        origin_ns: 1,
        planned_end_ns: 2,
        clock: SystemClock::new().key(),
    }
}

fn lag(n: i64) -> HostRecord {
    HostRecord::Lag(Lag {
        at_ns: n,
        ticks: 1,
        late_max_ns: 0,
    })
}

fn drain(opened: &mut Opened) -> Vec<Report> {
    std::iter::from_fn(|| opened.reports.try_recv().ok()).collect()
}

fn stop(opened: Opened) {
    drop(opened.spool);
    opened.thread.join().expect("no panic");
}

#[tokio::test]
async fn records_are_numbered_sealed_read_back_and_removed_when_acknowledged() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut opened = open_in(folder.path(), 1 << 30);
    let run = RunId::generate();
    opened.spool.begin(run, started()).await;
    for n in 0..10 {
        opened.spool.host_for_all(lag(n)).await;
    }
    opened.spool.flush().await;
    let reports = drain(&mut opened);
    let [Report::Sealed(frame)] = reports[..] else {
        panic!("{reports:?}");
    };
    assert_eq!((frame.first, frame.last), (1, 11));
    let read = opened.spool.read(frame).await.expect("reads");
    assert_eq!(read.count(), 11);
    assert!(opened.spool.bytes() > 0);
    let ended = gapscope_proto::host::ProbingEnded {
        end_ns: 2,
        reason: "planned end".into(),
        due: 0,
        sampled: 0,
        waited: 0,
        overslept: 0,
    };
    opened.spool.end(run, ended).await;
    opened.spool.flush().await;
    opened.spool.acked(frame.stream, 12).await;
    opened.spool.flush().await;
    assert_eq!(opened.spool.bytes(), 0);
    assert_eq!(
        opened.spool.disk().files(Kind::Segment).expect("listed"),
        []
    );
    assert_eq!(opened.spool.disk().files(Kind::Tail).expect("listed"), []);
    stop(opened);
}

#[tokio::test]
async fn numbers_of_files_are_never_used_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut highest = 0;
    for _ in 0..3 {
        let opened = open_in(folder.path(), 1 << 30);
        let run = RunId::generate();
        opened.spool.begin(run, started()).await;
        opened.spool.flush().await;
        let files = opened.spool.disk().files(Kind::Segment).expect("listed");
        let newest = files.iter().map(|(n, _)| *n).max().expect("one");
        assert!(newest > highest, "{newest} after {highest}");
        highest = newest;
        for (number, _) in files {
            opened
                .spool
                .disk()
                .remove(Kind::Segment, number)
                .expect("removed");
        }
        stop(opened);
    }
}

#[tokio::test]
async fn a_full_spool_gives_up_its_oldest_and_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut opened = open_in(folder.path(), 2_000);
    let run = RunId::generate();
    opened.spool.begin(run, started()).await;
    for n in 0..200 {
        opened.spool.host_for_all(lag(n)).await;
        opened.spool.flush().await;
        assert!(
            opened.spool.bytes() <= 2_000 + 200,
            "{}",
            opened.spool.bytes()
        );
    }
    let mut held = std::collections::BTreeSet::new();
    let mut lost = Vec::new();
    for report in drain(&mut opened) {
        match report {
            Report::Sealed(frame) => held.extend(frame.first..=frame.last),
            Report::Lost(loss) => {
                assert_eq!(loss.reason, LossReason::SpoolFull);
                for seq in loss.first..=loss.last {
                    assert!(held.remove(&seq), "{seq} was not held");
                }
                lost.push(loss);
            }
        }
    }
    assert!(!lost.is_empty());
    let gone: u64 = lost.iter().map(|loss| loss.count_max).sum();
    assert_eq!(held.len() as u64 + gone, 201);
    stop(opened);

    // What was declared is known after a restart, and what is held too.
    let mut opened = open_in(folder.path(), 1 << 30);
    let (mut again, mut gone_again) = (0, 0);
    for report in drain(&mut opened) {
        match report {
            Report::Sealed(frame) => again += frame.last + 1 - frame.first,
            Report::Lost(loss) => gone_again += loss.count_max,
        }
    }
    assert_eq!((again, gone_again), (held.len() as u64, gone));
    stop(opened);
}

/// The folder as a kill at any moment leaves it: whatever is in the tail is
/// there after the next start.
#[tokio::test]
async fn what_is_in_the_tail_survives() {
    let folder = tempfile::tempdir().expect("a folder");
    let opened = open_in(folder.path(), 1 << 30);
    let run = RunId::generate();
    opened.spool.begin(run, started()).await;
    for n in 0..50 {
        opened.spool.host_for_all(lag(n)).await;
    }
    let copy = tempfile::tempdir().expect("a folder");
    // The write is what makes it visible; wait for that, not for a time.
    loop {
        for entry in std::fs::read_dir(folder.path()).expect("listed") {
            let entry = entry.expect("an entry");
            let _ = std::fs::copy(entry.path(), copy.path().join(entry.file_name()));
        }
        let mut recovery = Recovery::default();
        let disk = Disk::inspect(copy.path()).expect("there");
        for (number, _) in disk.files(Kind::Tail).expect("listed") {
            recovery.tail(&disk.read(Kind::Tail, number).expect("read"));
        }
        for (number, _) in disk.files(Kind::Segment).expect("listed") {
            recovery.segment(number, &disk.read(Kind::Segment, number).expect("read"));
        }
        let found = recovery.finish();
        let last = found.unsealed.iter().map(Frame::last_seq);
        let last = last.chain(found.sealed.iter().map(|f| f.last)).max();
        if last == Some(51) {
            break;
        }
        tokio::task::yield_now().await;
    }
    let mut again = open_in(copy.path(), 1 << 30);
    let records: u64 = drain(&mut again)
        .iter()
        .map(|report| match report {
            Report::Sealed(frame) => frame.last + 1 - frame.first,
            Report::Lost(loss) => panic!("{loss:?}"),
        })
        .sum();
    assert_eq!(records, 51);
    assert_eq!(again.spool.disk().files(Kind::Tail).expect("listed"), []);
    stop(again);
    stop(opened);
}
