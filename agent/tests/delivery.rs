//! A whole agent against a real MySQL-speaking server and a real gRPC
//! aggregator, both on loopback: what was measured arrives once and in order,
//! whatever happens between.

mod support;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gapscope_agent::config::{Config, Secret, Target};
use gapscope_proto::clock::{Clock, ClockKey, SystemClock};
use gapscope_proto::host::{Anchor, HostRecord, ProbingEnded};
use gapscope_proto::ids::RunId;
use gapscope_proto::plan::ClientKind;
use gapscope_proto::sample::{Canary, Cause, Outcome, Style};
use support::{Aggregator, Arrived, Behaviour, Manners, Server, group, plan};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

fn config(url: &str, data: &Path, server: &Server) -> Config {
    Config {
        agent_id: "agent-1".parse().expect("an id"),
        aggregator: url.to_owned(),
        security: Default::default(),
        data: data.to_owned(),
        spool: gapscope_agent::spool::settings::Settings::default(),
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
    }
}

fn start(config: Config) -> (CancellationToken, JoinHandle<()>) {
    let shutdown = CancellationToken::new();
    let token = shutdown.clone();
    let agent = tokio::spawn(async move {
        gapscope_agent::agent::run(&config, Arc::new(SystemClock::new()), token)
            .await
            .expect("the agent starts");
    });
    (shutdown, agent)
}

/// The books of the run's last incarnation.
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

/// Every stream arrived from seq 1 on, in order, without a hole.
#[track_caller]
fn check_order(arrived: &Arrived) -> u64 {
    let mut total = 0;
    for samples in arrived.samples.values() {
        let seqs: Vec<u64> = samples.iter().map(|(seq, _)| *seq).collect();
        assert_eq!(seqs, (1..=samples.len() as u64).collect::<Vec<_>>());
        total += samples.len() as u64;
    }
    total
}

fn small_plan(duration_ms: u64) -> gapscope_proto::plan::RunPlan {
    plan(
        duration_ms,
        vec![
            group("db", Style::Reused, ClientKind::Bare, 0, 3, 10),
            group("db", Style::Reused, ClientKind::Patient, 3, 1, 20),
            group("db", Style::New, ClientKind::Bare, 0, 1, 50),
        ],
    )
}

/// Clocks of which the wall clock jumps by a year at each look, to and fro.
struct Stepping(SystemClock, AtomicBool);

impl Clock for Stepping {
    fn raw_ns(&self) -> i64 {
        self.0.raw_ns()
    }
    fn anchor(&self) -> Anchor {
        const YEAR_NS: i64 = 365 * 86_400 * 1_000_000_000;
        let mut anchor = self.0.anchor();
        let ahead = self.1.fetch_xor(true, Ordering::SeqCst);
        anchor.realtime_ns += if ahead { YEAR_NS } else { -YEAR_NS };
        anchor
    }
    fn key(&self) -> ClockKey {
        self.0.key()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_that_is_stepped_loses_and_doubles_nothing() {
    let server = Server::start(Behaviour::Answers);
    let data = tempfile::tempdir().expect("a folder");
    let plan = small_plan(2_500);
    let run = plan.run_id;
    let manners = Manners {
        plan: Some(plan),
        frames_a_session: Some(2),
        ..Manners::default()
    };
    let mut aggregator = Aggregator::start(manners).await;
    let config = config(&aggregator.url, data.path(), &server);
    let shutdown = CancellationToken::new();
    let clock = Arc::new(Stepping(SystemClock::new(), AtomicBool::default()));
    let agent = tokio::spawn({
        let (shutdown, clock) = (shutdown.clone(), clock.clone());
        async move { gapscope_agent::agent::run(&config, clock, shutdown).await }
    });
    aggregator
        .until("the end of the run", |a| a.has_ended(run))
        .await;
    let ended = books(&aggregator.arrived.lock().expect("ok"), run);
    aggregator
        .until("the last sample", |a| {
            a.samples.values().map(Vec::len).sum::<usize>() as u64 >= ended.sampled
        })
        .await;
    shutdown.cancel();
    agent.await.expect("no panic").expect("it ran");
    let arrived = aggregator.stop();
    let arrived = arrived.lock().expect("ok");
    assert_eq!(check_order(&arrived), ended.sampled);
    assert_eq!(arrived.losses, []);
    assert_eq!(ended.due, ended.sampled + ended.waited + ended.overslept);
    // The steps were seen, and are in the data for whoever tells the time of day.
    let walls: Vec<i64> = arrived
        .host
        .values()
        .flatten()
        .filter_map(|record| match record {
            HostRecord::Anchor(anchor) => Some(anchor.realtime_ns),
            _ => None,
        })
        .collect();
    assert!(walls.windows(2).any(|pair| pair[1] < pair[0]), "{walls:?}");
    assert!(walls.len() >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_arrives_once_through_cut_sessions() {
    let server = Server::start(Behaviour::Answers);
    let data = tempfile::tempdir().expect("a folder");
    let plan = small_plan(2_500);
    let run = plan.run_id;
    let manners = Manners {
        plan: Some(plan.clone()),
        frames_a_session: Some(2),
        ..Manners::default()
    };
    let mut aggregator = Aggregator::start(manners).await;
    let (shutdown, agent) = start(config(&aggregator.url, data.path(), &server));
    aggregator
        .until("the end of the run", |a| a.has_ended(run))
        .await;
    let sampled = books(&aggregator.arrived.lock().expect("ok"), run).sampled;
    aggregator
        .until("the last sample", |a| {
            a.samples.values().map(Vec::len).sum::<usize>() as u64 >= sampled
        })
        .await;
    shutdown.cancel();
    agent.await.expect("no panic");
    aggregator.until("the good-bye", |a| a.goodbyes == 1).await;
    let arrived = aggregator.stop();
    let arrived = arrived.lock().expect("ok");
    let books = books(&arrived, run);
    assert_eq!(check_order(&arrived), books.sampled);
    assert_eq!(books.due, books.sampled + books.waited + books.overslept);
    let due: u64 = plan
        .groups
        .iter()
        .flat_map(|g| (0..g.clients).map(|i| g.due_slots(i, plan.duration_ns)))
        .sum();
    assert_eq!(books.due, due);
    assert!(
        arrived.hellos.len() >= 3,
        "{} sessions",
        arrived.hellos.len()
    );
    assert_eq!(arrived.losses, []);
    assert_eq!(books.reason, "planned end");
    for sample in arrived.samples.values().flatten().map(|(_, s)| s) {
        assert_eq!(sample.outcome, Outcome::Ok, "{sample:?}");
        assert!(sample.started >= sample.scheduled, "{sample:?}");
    }
    let records: Vec<_> = arrived.host.values().flatten().collect();
    assert!(matches!(records.first(), Some(HostRecord::Started(_))));
    let mut exchanges = 0;
    for record in &records {
        if let HostRecord::Exchange(e) = record {
            exchanges += 1;
            // One host, one clock: the four stamps are in order.
            assert!(
                e.a1_ns <= e.s1_ns && e.s1_ns <= e.s2_ns && e.s2_ns <= e.a2_ns,
                "{e:?}"
            );
        }
    }
    assert!(exchanges >= 8, "{exchanges} exchanges");
    assert!(records.iter().any(|r| matches!(r, HostRecord::Lag(_))));
    assert!(records.iter().any(|r| matches!(r, HostRecord::Anchor(_))));
    let shown = arrived
        .progress
        .iter()
        .flat_map(|p| &p.targets)
        .map(|t| t.ok)
        .max();
    assert!(shown.is_some_and(|ok| ok > 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_an_aggregator_keeps_everything_for_the_next() {
    let server = Server::start(Behaviour::Answers);
    let data = tempfile::tempdir().expect("a folder");
    let plan = small_plan(1_200);
    let run = plan.run_id;
    let manners = Manners {
        plan: Some(plan),
        frames_a_session: None,
        ..Manners::default()
    };
    let mut aggregator = Aggregator::start(manners).await;
    let (shutdown, agent) = start(config(&aggregator.url, data.path(), &server));
    aggregator
        .until("a first sample", |a| !a.samples.is_empty())
        .await;
    let arrived = aggregator.stop();
    shutdown.cancel();
    agent.await.expect("no panic");

    let mut aggregator = Aggregator::start_with(Manners::default(), arrived).await;
    let (shutdown, agent) = start(config(&aggregator.url, data.path(), &server));
    aggregator
        .until("the end of the run", |a| {
            a.has_ended(run)
                && a.samples.values().map(Vec::len).sum::<usize>() as u64 >= books(a, run).sampled
        })
        .await;
    shutdown.cancel();
    agent.await.expect("no panic");
    let arrived = aggregator.stop();
    let arrived = arrived.lock().expect("ok");
    let books = books(&arrived, run);
    assert_eq!(check_order(&arrived), books.sampled);
    assert_eq!(books.due, books.sampled + books.waited + books.overslept);
    assert_eq!(books.reason, "shutdown");
    assert_eq!(arrived.losses, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_hangs_to_the_end_is_in_the_data_and_holds_nobody_up() {
    let server = Server::start(Behaviour::Answers);
    let data = tempfile::tempdir().expect("a folder");
    let plan = plan(
        1_500,
        vec![
            group("db", Style::Reused, ClientKind::Patient, 0, 2, 10),
            group("db", Style::New, ClientKind::Bare, 0, 1, 50),
        ],
    );
    let run = plan.run_id;
    let manners = Manners {
        plan: Some(plan),
        frames_a_session: None,
        ..Manners::default()
    };
    let mut aggregator = Aggregator::start(manners).await;
    let (shutdown, agent) = start(config(&aggregator.url, data.path(), &server));
    aggregator
        .until("a first sample", |a| !a.samples.is_empty())
        .await;
    server.now(Behaviour::HangsAtQuery);
    aggregator
        .until("the end of the run", |a| {
            a.has_ended(run)
                && a.samples.values().map(Vec::len).sum::<usize>() as u64 >= books(a, run).sampled
        })
        .await;
    shutdown.cancel();
    agent.await.expect("no panic");
    let arrived = aggregator.stop();
    let arrived = arrived.lock().expect("ok");
    let books = books(&arrived, run);
    assert_eq!(check_order(&arrived), books.sampled);
    assert_eq!(books.due, books.sampled + books.waited + books.overslept);
    assert!(books.waited > 0, "{books:?}");
    // Each client's last sample is the one that was given up.
    for (style, client) in [(Style::Reused, 0), (Style::Reused, 1), (Style::New, 0)] {
        let (_, last) = arrived
            .samples
            .values()
            .flatten()
            .filter(|(_, s)| s.style == style && s.client == client)
            .max_by_key(|(_, s)| s.slot)
            .expect("samples");
        assert_eq!(last.outcome, Outcome::TimedOut, "{last:?}");
        assert!(
            matches!(last.cause, Some(Cause::RunEnded | Cause::QueryTimeout)),
            "{last:?}"
        );
        assert!(last.may_have_executed);
        assert!(last.finished.ns() >= books.end_ns);
        assert!(last.finished.ns() < books.end_ns + 4_000_000_000);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_probed_is_refused_with_a_reason() {
    let server = Server::start(Behaviour::Answers);
    for (groups, expect) in [
        (
            vec![group("nowhere", Style::Reused, ClientKind::Bare, 0, 1, 10)],
            "target `nowhere` is not configured on this agent; it has: db",
        ),
        (
            vec![group("db", Style::Transaction, ClientKind::Bare, 0, 1, 10)],
            "style `transaction` of target `db` writes to the server, and this agent's owner has \
             not allowed that: start it with --allow-writes SCHEMA, or put [writes] into its \
             configuration",
        ),
        (
            vec![group(
                "db",
                Style::Reused,
                ClientKind::Canary(Canary::Cursor),
                0,
                1,
                10,
            )],
            "canary `cursor` of target `db` cannot be checked by this build: its driver does not \
             open server-side cursors",
        ),
        (
            vec![group("db", Style::New, ClientKind::Bare, 0, 30, 10)],
            "the plan makes 3000 new connections a second to target `db`; its max_connects_per_second allows 1000",
        ),
    ] {
        let data = tempfile::tempdir().expect("a folder");
        let manners = Manners {
            plan: Some(plan(1_000, groups)),
            frames_a_session: None,
            ..Manners::default()
        };
        let mut aggregator = Aggregator::start(manners).await;
        let (shutdown, agent) = start(config(&aggregator.url, data.path(), &server));
        aggregator
            .until("a refusal", |a| !a.refused.is_empty())
            .await;
        shutdown.cancel();
        agent.await.expect("no panic");
        let arrived = aggregator.stop();
        assert_eq!(arrived.lock().expect("ok").refused[0].reason, expect);
    }
}

struct Killed(Child);
impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn process(url: &str, data: &Path, server: &Server) -> Killed {
    process_with(url, data, server, &[])
}

fn process_with(url: &str, data: &Path, server: &Server, flags: &[&str]) -> Killed {
    let child = Command::new(env!("CARGO_BIN_EXE_gapscope-agent"))
        .args(["run", "--agent-id", "agent-1", "--aggregator", url])
        .args(["--target", &format!("db=probe@{}", server.address)])
        .arg("--data")
        .arg(data)
        .arg("--die-with-parent")
        .args(flags)
        .stdout(Stdio::null())
        .spawn()
        .expect("the program starts");
    Killed(child)
}

/// Whoever looks at the targets beside the probes can be told not to.
#[tokio::test(flavor = "multi_thread")]
async fn looks_are_left_out_where_the_flag_says_so() {
    let inspections = |arrived: &Arrived, run: RunId| {
        let of_run = arrived.host.iter().filter(|(stream, _)| stream.run == run);
        of_run
            .flat_map(|(_, records)| records)
            .filter(|record| matches!(record, HostRecord::Inspection(_)))
            .count()
    };
    for (flags, looks, duration_ms) in [
        (&["--no-inspect"][..], false, 1_500),
        (&[][..], true, 3_600_000),
    ] {
        let server = Server::start(Behaviour::Answers);
        let data = tempfile::tempdir().expect("a folder");
        let plan = small_plan(duration_ms);
        let run = plan.run_id;
        let manners = Manners {
            plan: Some(plan),
            ..Manners::default()
        };
        let mut aggregator = Aggregator::start(manners).await;
        let _agent = process_with(&aggregator.url, data.path(), &server, flags);
        aggregator
            .until("a look, or the end of a run without one", |a| {
                (looks && inspections(a, run) > 0) || a.has_ended(run)
            })
            .await;
        let arrived = aggregator.stop();
        let found = inspections(&arrived.lock().expect("ok"), run);
        assert_eq!(found > 0, looks, "{flags:?}: {found}");
    }
}

/// SIGKILL in mid-run: what had been measured is not lost, the next start goes
/// on with the same slots as a new incarnation.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_loses_nothing_that_it_had_measured() {
    let server = Server::start(Behaviour::Answers);
    let data = tempfile::tempdir().expect("a folder");
    let plan = small_plan(4_000);
    let run = plan.run_id;
    let manners = Manners {
        plan: Some(plan),
        // Never acknowledges anything: all has to come out of the spool.
        frames_a_session: Some(1),
        ..Manners::default()
    };
    let mut first = Aggregator::start(manners).await;
    let mut agent = process(&first.url, data.path(), &server);
    first
        .until("a first sample", |a| !a.samples.is_empty())
        .await;
    // Well behind the last seal, so that much of it stands in a tail only.
    let sealed = server.answers.load(Ordering::SeqCst);
    while server.answers.load(Ordering::SeqCst) < sealed + 150 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    agent.0.kill().expect("killed");
    agent.0.wait().expect("gone");
    let answered = u64::from(server.answers.load(Ordering::SeqCst));
    let before = first.stop();
    let last_slot_before = {
        let before = before.lock().expect("ok");
        before
            .samples
            .values()
            .flatten()
            .map(|(_, s)| s.slot)
            .max()
            .expect("samples")
    };

    let mut second = Aggregator::start(Manners::default()).await;
    let _agent = process(&second.url, data.path(), &server);
    second
        .until("the end of the run", |a| {
            a.has_ended(run) && a.samples.len() == 2 && {
                let ended = books(a, run);
                a.samples.values().any(|s| s.len() as u64 == ended.sampled)
            }
        })
        .await;
    let arrived = second.stop();
    let arrived = arrived.lock().expect("ok");
    check_order(&arrived);
    assert_eq!(arrived.losses, []);
    let before = before.lock().expect("ok");
    let (stream, seen) = before.samples.iter().next().expect("a stream");
    // Whatever the first aggregator had seen, the second one got too.
    assert_eq!(&arrived.samples[stream][..seen.len()], &seen[..]);
    // Each of the five clients may have found out the identity, and may have had
    // one answer in its hands that was not yet written.
    let kept = arrived.samples[stream].len() as u64;
    assert!(
        kept <= answered && kept + 10 >= answered,
        "{kept} samples of {answered} answers"
    );
    let (_, resumed) = arrived
        .samples
        .iter()
        .find(|(other, _)| *other != stream)
        .expect("a second incarnation");
    for (_, sample) in resumed {
        if sample.style == Style::Reused && sample.client == 0 {
            assert!(sample.slot > last_slot_before / 2, "{sample:?}");
        }
    }
    let origins: Vec<i64> = arrived
        .host
        .values()
        .flatten()
        .filter_map(|record| match record {
            HostRecord::Started(started) => Some(started.origin_ns),
            _ => None,
        })
        .collect();
    assert_eq!(origins.len(), 2);
    assert_eq!(origins[0], origins[1]);
}

/// An idle agent of an aggregator that wants to hear of it thirteen times as often
/// as one that does not say.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_come_as_often_as_the_aggregator_asks() {
    let server = Server::start(Behaviour::Answers);
    let data = tempfile::tempdir().expect("a folder");
    let manners = Manners {
        heartbeat_ms: 150,
        ..Manners::default()
    };
    let mut aggregator = Aggregator::start(manners).await;
    let (shutdown, agent) = start(config(&aggregator.url, data.path(), &server));
    aggregator
        .until("five heartbeats", |a| a.beats_ns.len() >= 5)
        .await;
    shutdown.cancel();
    agent.await.expect("no panic");
    let arrived = aggregator.stop();
    let beats = arrived.lock().expect("ok").beats_ns.clone();
    let shortest = beats.windows(2).map(|pair| pair[1] - pair[0]).min();
    // Without being asked it would be 2 s.
    assert!(shortest < Some(1_000_000_000), "{beats:?}");
}
