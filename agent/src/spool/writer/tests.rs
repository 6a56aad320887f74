use super::*;
use crate::spool::LossReason;

use super::open_in as open_writer_in;
use crate::spool::recover::Recovery;
use crate::spool::vfs::{self, RealVfs, Vfs};
use gapscope_proto::clock::SystemClock;
use gapscope_proto::frame::Frame;
use gapscope_proto::host::{Lag, ProbingStarted};

fn open_in(folder: &Path, max_bytes: u64) -> Opened {
    let settings = Settings {
        max_bytes,
        min_free_bytes: Some(0),
        ..Settings::default()
    };
    open(folder, &settings, Arc::new(SystemClock::new())).expect("opens")
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
    // The state takes 128 KiB, a tail may take 16 KiB.
    let mut opened = open_in(folder.path(), (144 << 10) + 20_000);
    let run = RunId::generate();
    opened.spool.begin(run, started()).await;
    for n in 0..400 {
        opened.spool.host_for_all(lag(n)).await;
        opened.spool.flush().await;
        assert!(opened.spool.bytes() <= 36_000, "{}", opened.spool.bytes());
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
    assert_eq!(held.len() as u64 + gone, 401);
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

/// A segment that makes room may hold frames that were delivered: the state that is
/// saved before it goes says so, or a reader of the spool would take them for lost.
#[tokio::test]
async fn what_was_delivered_is_noted_down_before_its_segment_makes_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut opened = open_in(folder.path(), (144 << 10) + 20_000);
    opened.spool.begin(RunId::generate(), started()).await;
    let mut first = None;
    for n in 0..400 {
        opened.spool.host_for_all(lag(n)).await;
        opened.spool.flush().await;
        for report in drain(&mut opened) {
            match (report, first.is_some()) {
                // One of several in its segment.
                (Report::Sealed(frame), false) => {
                    opened.spool.acked(frame.stream, frame.last).await;
                    first = Some(frame);
                }
                (Report::Sealed(_), true) => {}
                (Report::Lost(loss), _) => {
                    let delivered = first.expect("sealed before it is lost");
                    assert!(loss.first > delivered.last, "{loss:?} {delivered:?}");
                    let state =
                        std::fs::read(folder.path().join(gapscope_proto::spool::STATE_FILE))
                            .expect("a state");
                    let state = gapscope_proto::spool::decode(&state).expect("sound").state;
                    let noted = state.streams.iter().find(|s| s.stream == delivered.stream);
                    assert_eq!(noted.map(|s| s.floor), Some(delivered.last));
                    stop(opened);
                    return;
                }
            }
        }
    }
    panic!("nothing had to go");
}

/// A disk on which nothing is synced while the gate is shut.
#[derive(Debug, Clone, Default)]
struct Gated(Arc<(std::sync::Mutex<bool>, std::sync::Condvar)>);

impl Gated {
    fn shut(&self, is_shut: bool) {
        *self.0.0.lock().expect("sound") = is_shut;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let mut is_shut = self.0.0.lock().expect("sound");
        while *is_shut {
            is_shut = self.0.1.wait(is_shut).expect("sound");
        }
    }
}

impl Vfs for Gated {
    fn make_folder(&self, folder: &Path) -> std::io::Result<()> {
        RealVfs.make_folder(folder)
    }
    fn list(&self, folder: &Path) -> std::io::Result<Vec<vfs::Entry>> {
        RealVfs.list(folder)
    }
    fn create(&self, path: &Path) -> std::io::Result<Arc<dyn VfsFile>> {
        Ok(Arc::new(GatedFile(RealVfs.create(path)?, self.clone())))
    }
    fn open(&self, path: &Path) -> std::io::Result<Arc<dyn VfsFile>> {
        Ok(Arc::new(GatedFile(RealVfs.open(path)?, self.clone())))
    }
    fn read(&self, path: &Path, offset: u64, len: u64) -> std::io::Result<Vec<u8>> {
        RealVfs.read(path, offset, len)
    }
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        RealVfs.rename(from, to)
    }
    fn remove(&self, path: &Path) -> std::io::Result<()> {
        RealVfs.remove(path)
    }
    fn sync_folder(&self, folder: &Path) -> std::io::Result<()> {
        self.pass();
        RealVfs.sync_folder(folder)
    }
    fn space(&self, folder: &Path) -> std::io::Result<vfs::Space> {
        RealVfs.space(folder)
    }
    fn lock(&self, path: &Path) -> std::io::Result<Option<vfs::Lock>> {
        RealVfs.lock(path)
    }
}

#[derive(Debug)]
struct GatedFile(Arc<dyn VfsFile>, Gated);

impl VfsFile for GatedFile {
    fn append(&self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.append(bytes)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        self.0.write_at(bytes, offset)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.1.pass();
        self.0.sync()
    }
}

/// What waits in memory is lost with the process: with numbers reserved before the
/// run, a disk that syncs nothing keeps no sample of its first seconds waiting.
#[tokio::test]
async fn once_numbers_are_reserved_no_sample_waits_for_a_sync() {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = Gated::default();
    let disk = Disk::open_on(Arc::new(gate.clone()), folder.path()).expect("opens");
    let settings = Settings {
        min_free_bytes: Some(0),
        ..Settings::default()
    };
    let clock = Arc::new(SystemClock::new());
    let opened = open_writer_in(Arc::new(disk), &settings, clock).expect("opens");
    let run = RunId::generate();
    opened.spool.prepare(run, 3_000).await;
    gate.shut(true);
    opened.spool.begin(run, started()).await;
    for mark in 1..=2_000 {
        opened.spool.sample(run, simulation::sample(mark)).await;
    }
    let written = async {
        loop {
            let mut recovery = Recovery::default();
            let look = Disk::inspect(folder.path()).expect("there");
            for (number, _) in look.files(Kind::Tail).expect("listed") {
                recovery.tail(&look.read(Kind::Tail, number).expect("read"));
            }
            for (number, _) in look.files(Kind::Segment).expect("listed") {
                recovery.segment(number, &look.read(Kind::Segment, number).expect("read"));
            }
            let found = recovery.finish();
            let unsealed = found.unsealed.iter().map(|f| (f.stream, f.last_seq()));
            let sealed = found.sealed.iter().map(|f| (f.stream, f.last));
            let samples = unsealed
                .chain(sealed)
                .filter(|(stream, _)| stream.kind == StreamKind::Samples);
            if samples.map(|(_, last)| last).max() == Some(2_000) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), written).await;
    gate.shut(false);
    assert!(waited.is_ok(), "samples wait for a sync");
    stop(opened);
}
