//! A spool that the agent's own code wrote, taken in by the aggregator's `import`:
//! segments, tails, losses declared because it was full, records acknowledged
//! before, numbers reserved and perhaps used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gapscope_agent::spool::settings::Settings;
use gapscope_agent::spool::{FrameRef, Report, Spool, writer};
use gapscope_aggregator::import::spool::{Spool as Found, SpoolError};
use gapscope_aggregator::import::take_in::{Now, TakeInError, TakenIn, take_in};
use gapscope_aggregator::store::disk::Disk;
use gapscope_aggregator::store::manifest::{FORMAT_VERSION, Manifest, RunState, Schedule};
use gapscope_aggregator::store::verify::verify;
use gapscope_aggregator::store::{LossRecord, RunFolder, RunStore};
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::frame::{Body, StreamId, StreamKind};
use gapscope_proto::host::{HostFacts, HostRecord, ProbingEnded, ProbingStarted};
use gapscope_proto::ids::{AgentId, RunId};
use gapscope_proto::plan::{ClientGroup, ClientKind, RunPlan, Timeouts};
use gapscope_proto::sample::{Cause, Outcome, Phase, Sample, Style};
use gapscope_proto::spool::{STATE_FILE, decode, encode};
use gapscope_proto::time::Timestamp;

const INTERVAL_NS: u64 = 1_000_000;

fn agent() -> AgentId {
    "agent-1".parse().expect("a name")
}

fn plan(slots: u64) -> RunPlan {
    RunPlan {
        run_id: RunId::generate(),
        scenario: "test".to_owned(),
        duration_ns: slots * INTERVAL_NS,
        deadline_ns: 250_000_000,
        groups: vec![ClientGroup {
            target: "t".parse().expect("a name"),
            style: Style::Reused,
            kind: ClientKind::Bare,
            first_client: 0,
            clients: 1,
            interval_ns: INTERVAL_NS,
            timeouts: Timeouts {
                resolve_ns: None,
                connect_ns: Some(5_000_000_000),
                query_ns: Some(5_000_000_000),
            },
        }],
        identity: None,
        scenario_toml: String::new(),
    }
}

/// Bad ones with texts of their own, so that they take room.
fn sample(origin_ns: i64, seq: u64) -> Sample {
    let due = origin_ns + ((seq - 1) * INTERVAL_NS) as i64;
    Sample {
        target: Arc::new("t".parse().expect("a name")),
        style: Style::Reused,
        client: 0,
        slot: seq - 1,
        scheduled: Timestamp::from_ns(due),
        started: Timestamp::from_ns(due + 1),
        finished: Timestamp::from_ns(due + 2),
        resolve_ns: None,
        connect_ns: None,
        query_ns: Some(1),
        phase: Phase::Query,
        outcome: Outcome::ServerError,
        cause: Some(Cause::OtherServer),
        error_code: Some(9999),
        sqlstate: None,
        error: Some(Arc::from(format!("{seq:0200}"))),
        may_have_executed: true,
        connection: Some(1),
        connection_id: Some(1),
        handshake_id: None,
        backend: None,
        peer: None,
        server_version: None,
        canary: None,
    }
}

/// An agent's spool at work.
struct Bench {
    parent: tempfile::TempDir,
    plan: RunPlan,
    origin_ns: i64,
    opened: writer::Opened,
}

impl Bench {
    async fn start(slots: u64) -> Self {
        let parent = tempfile::tempdir().expect("a folder");
        let plan = plan(slots);
        let clock = SystemClock::new();
        let origin_ns = clock.raw_ns() - 3_600_000_000_000;
        let planned_end_ns = origin_ns + plan.duration_ns as i64;
        let folder = parent.path().join("agent-1");
        let settings = Settings {
            max_bytes: 1 << 20,
            min_free_bytes: Some(0),
            ..Settings::default()
        };
        std::fs::create_dir(&folder).expect("made");
        let noted = serde_json::json!([{
            "plan": plan,
            "clock": clock.key(),
            "origin_ns": origin_ns,
            "planned_end_ns": planned_end_ns,
            "ended": false,
        }]);
        std::fs::write(folder.join("runs.json"), noted.to_string()).expect("written");
        let opened =
            writer::open(&folder, &settings, Arc::new(SystemClock::new())).expect("it opens");
        let started = ProbingStarted {
            origin_ns,
            planned_end_ns,
            clock: clock.key(),
        };
        opened.spool.begin(plan.run_id, started).await;
        Self {
            parent,
            plan,
            origin_ns,
            opened,
        }
    }

    fn spool(&self) -> &Spool {
        &self.opened.spool
    }

    fn folder(&self) -> PathBuf {
        self.parent.path().join("agent-1")
    }

    fn samples(&self) -> StreamId {
        StreamId {
            run: self.plan.run_id,
            incarnation: self.spool().incarnation(),
            kind: StreamKind::Samples,
        }
    }

    async fn measure(&self, seqs: std::ops::RangeInclusive<u64>) {
        for seq in seqs {
            let sample = sample(self.origin_ns, seq);
            self.spool().sample(self.plan.run_id, sample).await;
        }
        self.spool().flush().await;
    }

    async fn end(&self, sampled: u64) {
        let ended = ProbingEnded {
            end_ns: self.origin_ns + self.plan.duration_ns as i64,
            reason: "planned end".to_owned(),
            due: sampled,
            sampled,
            waited: 0,
            overslept: 0,
        };
        self.spool().end(self.plan.run_id, ended).await;
        self.spool().flush().await;
    }

    /// What the uplink was told so far: frames, and records declared lost.
    fn reported(&mut self) -> (Vec<FrameRef>, u64) {
        let (mut frames, mut lost) = (Vec::new(), 0);
        while let Ok(report) = self.opened.reports.try_recv() {
            match report {
                Report::Sealed(frame) => frames.push(frame),
                Report::Lost(loss) => lost += loss.count_max,
            }
        }
        (frames, lost)
    }

    /// As it stands on disk at this moment: what a `kill -9` would leave.
    fn snapshot(&self, to: &Path) -> PathBuf {
        let folder = to.join("agent-1");
        std::fs::create_dir(&folder).expect("made");
        for entry in std::fs::read_dir(self.folder())
            .expect("is there")
            .flatten()
        {
            std::fs::copy(entry.path(), folder.join(entry.file_name())).expect("copied");
        }
        folder
    }

    /// As an agent that is stopped.
    async fn close(self) -> (tempfile::TempDir, PathBuf) {
        let folder = self.folder();
        drop(self.opened.spool);
        let thread = self.opened.thread;
        tokio::task::spawn_blocking(move || thread.join())
            .await
            .expect("it ends")
            .expect("no panic");
        (self.parent, folder)
    }
}

/// As if the host had been started anew since.
fn in_another_boot(folder: &Path) {
    let path = folder.join(STATE_FILE);
    let mut bytes = std::fs::read(&path).expect("is there");
    let found = decode(&bytes).expect("sound");
    let mut state = found.state;
    state.boot = Some("another".to_owned());
    let slot = encode(&state, found.generation + 1).expect("JSON");
    let half = bytes.len() / 2;
    bytes[..slot.len()].copy_from_slice(&slot);
    bytes[half..].fill(0);
    std::fs::write(&path, bytes).expect("written");
}

fn take(folder: &Path, run: RunId, data: &Path) -> Result<TakenIn, TakeInError> {
    let now = Now {
        utc: "2026-01-01T00:00:00.000Z".to_owned(),
        is_over: |_| true,
    };
    take_in(&Found::open(folder)?, run, data, &now)
}

fn losses(taken: &TakenIn) -> Vec<LossRecord> {
    let run = RunFolder::open(&taken.folder).expect("opens");
    let mut losses = run.losses().expect("reads");
    losses.retain(|loss| loss.kind == StreamKind::Samples);
    losses
}

fn manifest(plan: RunPlan) -> Manifest {
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

#[tokio::test(flavor = "multi_thread")]
async fn a_full_spool_that_was_partly_delivered_is_taken_in_and_balances() {
    const SAMPLED: u64 = 12_000;
    let mut bench = Bench::start(SAMPLED).await;
    let (run, stream) = (bench.plan.run_id, bench.samples());
    bench.measure(1..=1_000).await;
    // Delivered: stored there, then acknowledged.
    let delivered_to = tempfile::tempdir().expect("a folder");
    let mut store = RunStore::create(
        delivered_to.path(),
        manifest(bench.plan.clone()),
        Disk::default(),
    )
    .expect("is new");
    let (frames, _) = bench.reported();
    let mut delivered = 0;
    for frame in frames {
        let read = bench.spool().read(frame).await.expect("is there");
        match read.body {
            Body::Host(records) => store.append_host(&agent(), stream.incarnation, records),
            Body::Samples(columns) => {
                let samples = columns.decode().expect("sound");
                delivered += samples.len() as u64;
                store.append_samples(&agent(), stream.incarnation, samples);
            }
        }
        bench.spool().acked(frame.stream, frame.last).await;
    }
    assert_eq!(delivered, 1_000);
    store.commit().expect("stored");
    drop(store);
    // Then nobody takes anything any more, until the oldest has to go.
    for first in (1_001..=SAMPLED).step_by(1_000) {
        bench.measure(first..=first + 999).await;
    }
    bench.end(SAMPLED).await;
    let (_, given_up) = bench.reported();
    let (_parent, folder) = bench.close().await;
    assert!(given_up > 0, "the spool has to overflow in this test");
    assert!(!folder.join("losses.json").exists());

    // Into the folder that it was delivered to.
    let taken = take(&folder, run, delivered_to.path()).expect("taken in");
    assert_eq!(taken.lost, given_up);
    assert_eq!(delivered + taken.samples + taken.lost, SAMPLED);
    assert_eq!(taken.state, RunState::Closed);
    let found = losses(&taken);
    let (first, last) = (found[0].first_seq, found[0].last_seq);
    assert_eq!((first, last), (1_001, 1_000 + given_up), "{found:?}");
    assert_eq!(found[0].count_min, given_up);
    assert_eq!(found[0].reason, "spool_full");
    let stored = RunFolder::open(&taken.folder).expect("opens");
    let reported = gapscope_aggregator::commands::report::make(&stored).expect("reports");
    let books = &reported.analysis.conservation;
    assert!(books.is_balanced, "{books:?}");
    assert_eq!(books.stored, SAMPLED - given_up);
    assert_eq!(books.lost, (given_up, given_up));
    let verified = verify(&taken.folder).expect("reads");
    assert_eq!(verified.damage, Vec::<String>::new());
    assert_eq!((verified.sampled, verified.missing), (SAMPLED, 0));
    let again = take(&folder, run, delivered_to.path()).expect("taken in");
    assert!(!again.is_something(), "{again:?}");

    // Into a folder that never had what was delivered: it is missing here, and
    // whether all of it was samples only the other one knows.
    let elsewhere = tempfile::tempdir().expect("a folder");
    let taken = take(&folder, run, elsewhere.path()).expect("taken in");
    assert_eq!(taken.samples, SAMPLED - given_up - delivered);
    let found: Vec<_> = losses(&taken)
        .into_iter()
        .map(|l| (l.first_seq, l.last_seq, l.count_min, l.count_max, l.reason))
        .collect();
    assert_eq!(
        found,
        [
            (1, 1_000, 0, 1_000, "delivered_elsewhere".to_owned()),
            (
                1_001,
                1_000 + given_up,
                given_up,
                given_up,
                "spool_full".to_owned()
            ),
        ]
    );
    let stored = RunFolder::open(&taken.folder).expect("opens");
    let reported = gapscope_aggregator::commands::report::make(&stored).expect("reports");
    assert!(reported.analysis.conservation.is_balanced);
    let again = take(&folder, run, elsewhere.path()).expect("taken in");
    assert!(!again.is_something(), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_numbers_are_declared_only_where_they_may_have_been_used() {
    let bench = Bench::start(1_000).await;
    let run = bench.plan.run_id;
    bench.measure(1..=100).await;
    let folders: Vec<_> = (0..4)
        .map(|_| tempfile::tempdir().expect("a folder"))
        .collect();
    let data: Vec<_> = (0..4)
        .map(|_| tempfile::tempdir().expect("a folder"))
        .collect();

    // Killed, and power was not lost: what was written is there.
    let killed = bench.snapshot(folders[0].path());
    let taken = take(&killed, run, data[0].path()).expect("taken in");
    assert_eq!((taken.samples, taken.lost), (100, 0));

    // Power was lost: numbers up to the last one reserved may have been used.
    let dark = bench.snapshot(folders[1].path());
    in_another_boot(&dark);
    let state = decode(&std::fs::read(dark.join(STATE_FILE)).expect("is there"));
    let streams = state.expect("sound").state.streams;
    let reserved = streams
        .iter()
        .find(|known| known.stream == bench.samples())
        .and_then(|known| known.reserved)
        .expect("reserved ahead");
    assert!(reserved > 100, "{reserved}");
    let taken = take(&dark, run, data[1].path()).expect("taken in");
    assert_eq!(taken.samples, 100);
    let found = losses(&taken);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].first_seq, found[0].last_seq), (101, reserved));
    assert_eq!(
        (found[0].count_min, found[0].count_max),
        (0, reserved - 100)
    );
    assert_eq!(found[0].reason, "power_loss");
    let again = take(&dark, run, data[1].path()).expect("taken in");
    assert!(!again.is_something(), "{again:?}");

    // The run goes on: its agent may yet use them, none is declared.
    let goes_on = Now {
        utc: "2026-01-01T00:00:00.000Z".to_owned(),
        is_over: |_| false,
    };
    let opened = Found::open(&dark).expect("opens");
    let taken = take_in(&opened, run, data[2].path(), &goes_on).expect("taken in");
    assert_eq!((taken.samples, taken.lost), (100, 0));
    assert_eq!(taken.state, RunState::Running);

    // The end of the probing is there, and says that these were all.
    bench.end(100).await;
    let ended = bench.snapshot(folders[2].path());
    in_another_boot(&ended);
    let taken = take(&ended, run, data[3].path()).expect("taken in");
    assert_eq!((taken.samples, taken.lost), (100, 0));

    // A state that cannot be read costs nothing but what it said.
    let damaged = bench.snapshot(folders[3].path());
    std::fs::write(damaged.join(STATE_FILE), [0; 4096]).expect("written");
    assert!(Found::open(&damaged).expect("opens").is_state_damaged);
    let fresh = tempfile::tempdir().expect("a folder");
    let taken = take(&damaged, run, fresh.path()).expect("taken in");
    assert_eq!((taken.samples, taken.lost), (100, 0));
    let caveats = RunFolder::open(&taken.folder).expect("opens");
    let caveats = &caveats.manifest().caveats;
    assert!(caveats.iter().any(|c| c.contains("damaged")), "{caveats:?}");
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_of_a_newer_version_is_named() {
    let bench = Bench::start(10).await;
    bench.measure(1..=3).await;
    let folder = tempfile::tempdir().expect("a folder");
    let copy = bench.snapshot(folder.path());
    let path = copy.join(STATE_FILE);
    let mut bytes = encode(&Default::default(), 1).expect("JSON");
    bytes[4] = 9;
    let checksum = crc32(&[&bytes[..20], &bytes[24..]].concat());
    bytes[20..24].copy_from_slice(&checksum.to_le_bytes());
    bytes.resize(4096, 0);
    std::fs::write(path, bytes).expect("written");
    let error = Found::open(&copy).expect_err("it is newer");
    assert!(matches!(error, SpoolError::Damaged { .. }));
    assert!(
        error.to_string().contains("newer gapscope-aggregator"),
        "{error}"
    );
    bench.close().await;
}

/// CRC-32 of IEEE 802.3, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1))
        })
    })
}

/// Host records are a stream too, whose start and end the run needs.
#[tokio::test(flavor = "multi_thread")]
async fn host_records_come_with_the_samples() {
    let bench = Bench::start(5).await;
    let run = bench.plan.run_id;
    let anchor = HostRecord::Anchor(SystemClock::new().anchor());
    bench.spool().host(run, anchor).await;
    bench.measure(1..=5).await;
    bench.end(5).await;
    let (_parent, folder) = bench.close().await;
    let data = tempfile::tempdir().expect("a folder");
    let taken = take(&folder, run, data.path()).expect("taken in");
    assert_eq!((taken.samples, taken.host, taken.lost), (5, 3, 0));
    assert!(verify(&taken.folder).expect("reads").is_sound());
}
