//! Real agents, killed at random moments. The truth is the endpoint's: it
//! numbers each answer that it gives, and the number comes back in the sample.
//!
//! `GAPSCOPE_KILLS` sets how many (default 8), `GAPSCOPE_SEED` repeats a run.

#![expect(clippy::print_stdout, reason = "what was measured")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gapscope_proto::host::HostRecord;
use gapscope_proto::plan::ClientKind;
use gapscope_proto::sample::Style;
use rand::{Rng, SeedableRng};
use support::{Aggregator, Manners, Server, group, plan};

struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(url: &str, data: &Path, server: &Server) -> Agent {
    let child = Command::new(env!("CARGO_BIN_EXE_gapscope-agent"))
        .args(["run", "--agent-id", "agent-1", "--aggregator", url])
        .args(["--target", &format!("db=probe@{}", server.address)])
        // So that every statement is a probe.
        .args(["--identity", "@@hostname", "--no-inspect"])
        .arg("--data")
        .arg(data)
        .arg("--die-with-parent")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    Agent(child)
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

async fn until_answers(server: &Server, more: u32) {
    let from = server.answers.load(Ordering::SeqCst);
    let wait = async {
        while server.answers.load(Ordering::SeqCst) < from + more {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .expect("the agent probes");
}

/// Waits until nothing is held that is not delivered.
async fn until_delivered(folder: &Path) {
    let wait = async {
        loop {
            let look = Command::new(env!("CARGO_BIN_EXE_gapscope-agent"))
                .args(["spool", "inspect"])
                .arg(folder)
                .output()
                .expect("the program starts");
            if !String::from_utf8_lossy(&look.stdout).contains(" records in ") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .expect("everything is delivered");
}

/// How a life ended, and with which connections.
struct Life {
    killed: bool,
    connections: std::ops::RangeInclusive<u32>,
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_moments_nothing_is_lost_and_nothing_doubled() {
    let kills = number("GAPSCOPE_KILLS", 8);
    let seed = number("GAPSCOPE_SEED", rand::random());
    println!("GAPSCOPE_SEED={seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let server = Server::with_tickets();
    let data = tempfile::tempdir().expect("a folder");
    let clients = 5;
    let mut lives = Vec::new();
    let mut killed_so_far = 0;
    let mut arrived = Arc::default();
    // Some kills, then an end in good order, after which the run is not taken up
    // again: the next one is another run.
    while killed_so_far < kills {
        let plan = plan(
            3_600_000,
            vec![
                group("db", Style::Reused, ClientKind::Bare, 0, 4, 5),
                group("db", Style::New, ClientKind::Bare, 0, 1, 50),
            ],
        );
        let run = plan.run_id;
        let manners = Manners {
            plan: Some(plan),
            ..Manners::default()
        };
        let mut aggregator = Aggregator::start_with(manners, arrived).await;
        let of_this_run = random.random_range(1..=8).min(kills - killed_so_far);
        for life in 0..=of_this_run {
            let before = server.connections.load(Ordering::SeqCst);
            let mut agent = start(&aggregator.url, data.path(), &server);
            until_answers(&server, random.random_range(1..150)).await;
            let killed = life < of_this_run;
            if killed {
                let wait = random.random_range(0..3_000);
                tokio::time::sleep(Duration::from_micros(wait)).await;
                agent.0.kill().expect("killed");
            } else {
                let id = rustix::process::Pid::from_child(&agent.0);
                rustix::process::kill_process(id, rustix::process::Signal::TERM)
                    .expect("asked to end");
            }
            let status = agent.0.wait().expect("gone");
            assert_eq!(status.success(), !killed, "{status}");
            lives.push(Life {
                killed,
                connections: before + 1..=server.connections.load(Ordering::SeqCst),
            });
        }
        killed_so_far += of_this_run;
        // What the last life could not deliver in time comes with the next.
        let what = "the books of the last life";
        if killed_so_far >= kills {
            let _agent = start(&aggregator.url, data.path(), &server);
            aggregator
                .until(what, |arrived| arrived.has_ended(run))
                .await;
            until_delivered(&data.path().join("spool/agent-1")).await;
        }
        arrived = aggregator.stop();
    }
    let folder = data.path().join("spool/agent-1");
    let verify = Command::new(env!("CARGO_BIN_EXE_gapscope-agent"))
        .args(["spool", "verify"])
        .arg(&folder)
        .output()
        .expect("the program starts");
    assert!(verify.status.success(), "{verify:?}");

    let arrived = arrived.lock().expect("ok");
    assert_eq!(arrived.losses, []);
    let mut stored = BTreeSet::new();
    let mut slots = BTreeSet::new();
    for (stream, samples) in &arrived.samples {
        let seqs: Vec<u64> = samples.iter().map(|(seq, _)| *seq).collect();
        assert_eq!(seqs, (1..=samples.len() as u64).collect::<Vec<_>>());
        for (_, sample) in samples {
            let slot = (
                stream.run,
                sample.style.as_str(),
                sample.client,
                sample.slot,
            );
            assert!(slots.insert(slot), "{slot:?} twice");
            if let Some(ticket) = sample.connection_id {
                assert!(stored.insert(ticket), "answer {ticket} is stored twice");
            }
        }
    }
    let tickets = server.tickets.as_ref().expect("asked for");
    let tickets = tickets.lock().expect("ok").clone();
    let last_stored: BTreeMap<u32, u64> = tickets
        .iter()
        .filter(|(_, ticket)| stored.contains(ticket))
        .copied()
        .collect();
    let (mut in_hand, mut by_life) = (0, BTreeMap::<usize, u32>::new());
    for (connection, ticket) in &tickets {
        if stored.contains(ticket) {
            continue;
        }
        // In the agent's hands, or on the way to it, when it was killed.
        let life = lives
            .iter()
            .position(|life| life.connections.contains(connection))
            .expect("of some life");
        assert!(
            lives[life].killed,
            "answer {ticket} is missing, and nobody was killed"
        );
        // Samples are written in the order in which they were measured.
        assert!(
            last_stored.get(connection).is_none_or(|last| last < ticket),
            "answer {ticket} is missing in the midst"
        );
        in_hand += 1;
        *by_life.entry(life).or_default() += 1;
    }
    // One a client, and more where the machine is too busy to write: then the agent's
    // clients get on and its writer does not.
    let many = by_life.values().filter(|n| **n > 10 * clients).count();
    assert!(many as u64 <= 1 + kills / 50, "in hand: {by_life:?}");
    let most = by_life.values().copied().max().unwrap_or(0);
    assert!(stored.iter().all(|ticket| *ticket <= tickets.len() as u64));
    let books: Vec<_> = arrived
        .host
        .iter()
        .filter_map(|(stream, records)| match records.last() {
            Some(HostRecord::Ended(ended)) => Some((stream.incarnation, ended)),
            _ => None,
        })
        .collect();
    let terminated = lives.iter().filter(|life| !life.killed).count();
    assert_eq!(books.len(), terminated);
    for (incarnation, ended) in books {
        assert_eq!(ended.due, ended.sampled + ended.waited + ended.overslept);
        let sampled: usize = arrived
            .samples
            .iter()
            .filter(|(stream, _)| stream.incarnation == incarnation)
            .map(|(_, samples)| samples.len())
            .sum();
        assert_eq!(sampled as u64, ended.sampled);
    }
    println!(
        "{} kills, {terminated} ends in good order: {} answers given, {} stored, 0 doubled, \
         {in_hand} in the agent's hands when it was killed ({most} at most), 0 lost",
        lives.len() - terminated,
        tickets.len(),
        stored.len(),
    );
}
