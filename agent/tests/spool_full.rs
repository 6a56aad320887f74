//! No room: on a real, small disk and by the spool's own bound. The agent
//! neither ends nor blocks, says what is lost, and goes on when there is room.

#![expect(clippy::print_stdout, reason = "what was measured")]

mod support;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gapscope_agent::config::{Config, Secret, Target};
use gapscope_agent::spool::settings::{Settings, WhenFull};
use gapscope_proto::clock::SystemClock;
use gapscope_proto::host::{HostRecord, ProbingEnded};
use gapscope_proto::ids::RunId;
use gapscope_proto::plan::{ClientKind, RunPlan};
use gapscope_proto::sample::Style;
use gapscope_proto::wire;
use support::{Aggregator, Arrived, Behaviour, Manners, Server, group, plan};
use tokio_util::sync::CancellationToken;

struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A disk of 1 MB that goes away with it.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "gapscope-test"])
            .arg(folder.path())
            .stderr(Stdio::null())
            .status();
        matches!(mounted, Ok(status) if status.success()).then_some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn busy_plan() -> RunPlan {
    let groups = (0..4)
        .map(|n| group("db", Style::Reused, ClientKind::Bare, n * 5, 5, 5))
        .collect();
    plan(3_600_000, groups)
}

/// One frame a session, for the first aggregator: stopping it has to end it.
fn manners(plan: Option<RunPlan>, frames_a_session: Option<u32>) -> Manners {
    Manners {
        plan,
        frames_a_session,
        ..Manners::default()
    }
}

fn books(arrived: &Arrived, run: RunId) -> ProbingEnded {
    arrived
        .host
        .iter()
        .filter(|(stream, _)| stream.run == run)
        .find_map(|(_, records)| match records.last() {
            Some(HostRecord::Ended(ended)) => Some(ended.clone()),
            _ => None,
        })
        .expect("the run has ended")
}

/// Every number of the samples' stream is stored or declared lost, once.
#[track_caller]
fn check_accounts(arrived: &Arrived, run: RunId) -> (u64, u64) {
    let books = books(arrived, run);
    let mut seqs: Vec<u64> = arrived
        .samples
        .values()
        .flatten()
        .map(|(seq, _)| *seq)
        .collect();
    let stored = seqs.len() as u64;
    let kind = gapscope_proto::wire::StreamKind::Samples as i32;
    let mut lost = 0;
    for loss in &arrived.losses {
        if loss.stream.as_ref().is_some_and(|s| s.kind == kind) {
            assert_eq!(loss.count_min, loss.count_max, "{loss:?}");
            seqs.extend(loss.first_seq..=loss.last_seq);
            lost += loss.count_max;
        }
    }
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=books.sampled).collect::<Vec<_>>());
    assert_eq!(stored + lost, books.sampled);
    assert_eq!(books.due, books.sampled + books.waited + books.overslept);
    (stored, lost)
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(120), wait)
        .await
        .is_err()
    {
        panic!("{what} has not come about");
    }
}

fn inspect(folder: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_gapscope-agent"))
        .args(["spool", "inspect"])
        .arg(folder)
        .output()
        .expect("the program starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_declared_and_survived() {
    let Some(disk) = SmallDisk::mount() else {
        println!("skipped: mounting a tmpfs needs root");
        return;
    };
    let server = Server::start(Behaviour::Answers);
    let plan = busy_plan();
    let run = plan.run_id;
    let mut first = Aggregator::start(manners(Some(plan), Some(1))).await;
    let url = first.url.clone();
    let mut agent = Agent(
        Command::new(env!("CARGO_BIN_EXE_gapscope-agent"))
            .args(["run", "--agent-id", "agent-1", "--aggregator", &url])
            .args(["--target", &format!("db=probe@{}", server.address)])
            .arg("--data")
            .arg(disk.0.path())
            .arg("--die-with-parent")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts"),
    );
    first
        .until("a first sample", |arrived| !arrived.samples.is_empty())
        .await;
    let port = url.rsplit(':').next().expect("a port").to_owned();
    let arrived = first.stop();
    // Somebody else takes all but a few pages.
    let ballast = disk.0.path().join("ballast");
    let free = || {
        let found = rustix::fs::statvfs(disk.0.path()).expect("asked");
        found.f_bavail * found.f_frsize
    };
    std::fs::write(&ballast, vec![0; free().saturating_sub(40 << 10) as usize]).expect("written");
    let folder = disk.0.path().join("spool/agent-1");
    // Records of the host may be given up first, and samples that have arrived and
    // were not acknowledged are no loss in the end.
    let there = {
        let arrived = arrived.lock().expect("ok");
        let seqs = arrived.samples.values().flatten().map(|(seq, _)| *seq);
        seqs.max().unwrap_or(0)
    };
    until("a declared loss of samples", || {
        inspect(&folder).split("samples: ").skip(1).any(|part| {
            let part = part.split("host: ").next().unwrap_or_default();
            let losses = part.split("lost: seq ").skip(1);
            let losses = losses.filter(|loss| loss.contains(": disk_full"));
            let mut lasts = losses.filter_map(|loss| loss.split([',', '.']).nth(2));
            lasts.any(|last| last.parse::<u64>().is_ok_and(|last| last > there))
        })
    })
    .await;
    // It still probes, at full speed.
    let answers = server.answers.load(Ordering::SeqCst);
    until("a thousand more probes", || {
        server.answers.load(Ordering::SeqCst) > answers + 1_000
    })
    .await;
    assert!(
        agent.0.try_wait().expect("asked").is_none(),
        "the agent has ended"
    );
    std::fs::remove_file(&ballast).expect("removed");
    let mut second = Aggregator::start_at(&port, manners(None, None), arrived).await;
    let before = second
        .arrived
        .lock()
        .expect("ok")
        .samples
        .values()
        .map(Vec::len)
        .sum::<usize>();
    second
        .until("new samples", |arrived| {
            arrived.samples.values().map(Vec::len).sum::<usize>() > before + 500
        })
        .await;
    let id = rustix::process::Pid::from_child(&agent.0);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("asked to end");
    assert!(agent.0.wait().expect("gone").success());
    second
        .until("the books", |arrived| arrived.has_ended(run))
        .await;
    let arrived = second.stop();
    let (stored, lost) = check_accounts(&arrived.lock().expect("ok"), run);
    assert!(lost > 0);
    println!("disk full: {stored} stored, {lost} lost and declared");
}

/// An agent in this process, whose spool may take so much; the aggregator goes
/// away behind the first sample and comes back when `until_then` says so.
async fn with_a_small_spool(
    when_full: WhenFull,
    until_then: impl AsyncFn(&Server, &Path),
) -> (Arc<std::sync::Mutex<Arrived>>, RunId) {
    let server = Server::start(Behaviour::Answers);
    let data = tempfile::tempdir().expect("a folder");
    let plan = busy_plan();
    let run = plan.run_id;
    let mut first = Aggregator::start(manners(Some(plan), Some(1))).await;
    let port = first.url.rsplit(':').next().expect("a port").to_owned();
    let config = Config {
        agent_id: "agent-1".parse().expect("an id"),
        aggregator: first.url.clone(),
        security: gapscope_proto::tls::ClientFiles::default(),
        data: data.path().to_owned(),
        spool: Settings {
            // The state and the tails take 160,000 of it.
            max_bytes: 230_000,
            min_free_bytes: Some(0),
            when_full,
            ..Settings::default()
        },
        targets: vec![Target {
            name: "db".parse().expect("a name"),
            host: "127.0.0.1".into(),
            port: server.address.port(),
            user: "probe".into(),
            password: Secret::default(),
            database: None,
            identity: None,
            max_connects_per_second: 1_000,
            reach: gapscope_agent::reach::Reach::default(),
        }],
        control: None,
        writes: None,
    };
    let shutdown = CancellationToken::new();
    let token = shutdown.clone();
    let agent = tokio::spawn(async move {
        gapscope_agent::agent::run(&config, Arc::new(SystemClock::new()), token)
            .await
            .expect("the agent starts");
    });
    first
        .until("a first sample", |arrived| !arrived.samples.is_empty())
        .await;
    let arrived = first.stop();
    let folder = data.path().join("spool/agent-1");
    until_then(&server, &folder).await;
    let mut second = Aggregator::start_at(&port, manners(None, None), arrived).await;
    let before = second
        .arrived
        .lock()
        .expect("ok")
        .samples
        .values()
        .map(Vec::len)
        .sum::<usize>();
    second
        .until("new samples", |arrived| {
            arrived.samples.values().map(Vec::len).sum::<usize>() > before + 500
        })
        .await;
    shutdown.cancel();
    agent.await.expect("no panic");
    second
        .until("the books", |arrived| arrived.has_ended(run))
        .await;
    (second.stop(), run)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_go_where_that_is_the_policy() {
    let (arrived, run) = with_a_small_spool(WhenFull::Newest, async |_, folder| {
        until("a loss", || inspect(folder).contains("lost: ")).await;
    })
    .await;
    let arrived = arrived.lock().expect("ok");
    let (_, lost) = check_accounts(&arrived, run);
    assert!(lost > 0);
    // What was measured first is there.
    let first = arrived.samples.values().next().expect("samples")[0].0;
    assert_eq!(first, 1);
    let lost = arrived
        .losses
        .iter()
        .find(|loss| {
            loss.stream
                .as_ref()
                .is_some_and(|stream| stream.kind() == wire::StreamKind::Samples)
        })
        .expect("samples were lost");
    assert!(lost.first_seq > 1_000, "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn probing_stands_still_where_that_is_the_policy() {
    let (arrived, run) = with_a_small_spool(WhenFull::StopProbing, async |server, _| {
        // Twenty clients each 5 ms, and no answer within half a second.
        let answers = || server.answers.load(Ordering::SeqCst);
        let wait = async {
            loop {
                let before = answers();
                tokio::time::sleep(Duration::from_millis(500)).await;
                if answers() == before {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(120), wait)
            .await
            .expect("probing stands still");
    })
    .await;
    let arrived = arrived.lock().expect("ok");
    let (_, lost) = check_accounts(&arrived, run);
    assert_eq!((lost, arrived.losses.len()), (0, 0));
    let books = books(&arrived, run);
    assert!(books.overslept > 0, "{books:?}");
    assert!(
        books.reason.contains("the spool was full"),
        "{}",
        books.reason
    );
}
