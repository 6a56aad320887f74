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
use gapscope_proto::sample::{Cause, Phase, Sample, Style};
use rand::{Rng, SeedableRng};
use support::{Aggregator, Manners, Server, Ticket, group, now_ns, plan};

/// What the agents say, one after the other.
const LOG: &str = "agents.log";

struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(url: &str, data: &Path, server: &Server) -> Agent {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(data.join(LOG))
        .expect("a log");
    let child = Command::new(env!("CARGO_BIN_EXE_gapscope-agent"))
        .args(["run", "--agent-id", "agent-1", "--aggregator", url])
        .args([
            "--target",
            &format!("db={}@{}", server.user, server.address),
        ])
        // So that every statement is a probe.
        .args(["--identity", "@@hostname", "--no-inspect"])
        .arg("--data")
        .arg(data)
        .arg("--die-with-parent")
        .env("NO_COLOR", "1")
        .stdout(Stdio::null())
        .stderr(log)
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
    /// Just before it was killed, or asked to end.
    until_ns: i64,
    connections: std::ops::RangeInclusive<u32>,
}

/// Answers that are not stored as such, each with its reason.
#[derive(Default)]
struct Missing {
    /// In the agent's hands when it was killed: of each life, the answers' numbers.
    in_hand: BTreeMap<usize, Vec<u64>>,
    /// Their probes had timed out: the sample says so.
    timed_out: usize,
    /// They came after the agent had been asked to end, too late for its grace: the
    /// sample says so.
    cut: usize,
}

/// What there is to see of a life in which an answer was lost.
fn say(tickets: &[Ticket], stored: &BTreeSet<u64>, samples: &[Sample], life: &Life) {
    for (number, ticket) in (1..).zip(tickets) {
        if life.connections.contains(&ticket.connection) {
            println!(
                "answer {number} over {}, {} us before the end: {}",
                ticket.connection,
                (life.until_ns - ticket.given_ns) / 1_000,
                if stored.contains(&number) {
                    "stored"
                } else {
                    "not stored"
                },
            );
        }
    }
    let of_life = samples.iter().filter(|sample| {
        sample
            .handshake_id
            .is_some_and(|connection| life.connections.contains(&connection))
    });
    for sample in of_life {
        println!("{sample:?}");
    }
}

/// Finds the reason of each answer that is not `stored`.
fn missing(
    tickets: &[Ticket],
    stored: &BTreeSet<u64>,
    samples: &[Sample],
    lives: &[Life],
) -> Missing {
    // Samples of probes that were sent and not answered, by their connection.
    let mut given_up: BTreeMap<u32, Vec<Cause>> = BTreeMap::new();
    let unanswered = samples.iter().filter(|s| s.connection_id.is_none());
    for sample in unanswered.filter(|sample| sample.phase == Phase::Query) {
        let (Some(connection), Some(cause)) = (sample.handshake_id, sample.cause) else {
            continue;
        };
        given_up.entry(connection).or_default().push(cause);
    }
    let mut last_stored = BTreeMap::new();
    for (number, ticket) in (1..).zip(tickets) {
        if stored.contains(&number) {
            last_stored.insert(ticket.connection, number);
        }
    }
    let mut found = Missing::default();
    for (number, ticket) in (1..).zip(tickets) {
        if stored.contains(&number) {
            continue;
        }
        let at = lives
            .iter()
            .position(|life| life.connections.contains(&ticket.connection))
            .expect("of some life");
        let life = &lives[at];
        let said = given_up.get_mut(&ticket.connection).and_then(Vec::pop);
        match said {
            Some(Cause::QueryTimeout) => found.timed_out += 1,
            Some(Cause::RunEnded) => {
                assert!(!life.killed, "nobody ended the run of answer {number}");
                // What was there when the agent was asked to end is kept.
                assert!(
                    ticket.sent_ns.is_none_or(|sent| sent > life.until_ns),
                    "answer {number} had come {} ns before the end, and was given up",
                    life.until_ns - ticket.sent_ns.unwrap_or(0)
                );
                found.cut += 1;
            }
            Some(cause) => panic!("answer {number} became a sample of {cause}"),
            None => {
                if !life.killed {
                    say(tickets, stored, samples, life);
                    panic!("answer {number} of life {at} is lost, and nobody was killed");
                }
                // Samples are written in the order in which they were measured.
                assert!(
                    last_stored
                        .get(&ticket.connection)
                        .is_none_or(|last| *last < number),
                    "answer {number} is missing in the midst"
                );
                found.in_hand.entry(at).or_default().push(number);
            }
        }
    }
    found
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
        let of_this_run = random
            .random_range(1..=number("GAPSCOPE_IN_A_ROW", 8))
            .min(kills - killed_so_far);
        for life in 0..=of_this_run {
            let before = server.connections.load(Ordering::SeqCst);
            let mut agent = start(&aggregator.url, data.path(), &server);
            until_answers(&server, random.random_range(1..150)).await;
            let killed = life < of_this_run;
            let until_ns;
            if killed {
                let wait = random.random_range(0..3_000);
                tokio::time::sleep(Duration::from_micros(wait)).await;
                until_ns = now_ns();
                agent.0.kill().expect("killed");
            } else {
                let id = rustix::process::Pid::from_child(&agent.0);
                until_ns = now_ns();
                rustix::process::kill_process(id, rustix::process::Signal::TERM)
                    .expect("asked to end");
            }
            let status = agent.0.wait().expect("gone");
            assert_eq!(status.success(), !killed, "{status}");
            lives.push(Life {
                killed,
                until_ns,
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

    // Nothing went wrong that the figures would not show.
    let said = std::fs::read_to_string(data.path().join(LOG)).expect("a log");
    let wrong: Vec<_> = said
        .lines()
        .filter(|line| line.contains("ERROR") || line.contains("panicked"))
        .collect();
    assert_eq!(wrong, [""; 0]);

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
    let tickets = server.tickets.as_ref().expect("asked for");
    let tickets = tickets.lock().expect("ok").clone();
    assert!(stored.iter().all(|ticket| *ticket <= tickets.len() as u64));
    let samples: Vec<Sample> = arrived
        .samples
        .values()
        .flatten()
        .map(|(_, sample)| sample.clone())
        .collect();
    let missing = missing(&tickets, &stored, &samples, &lives);
    let (mut most, mut oldest_ns) = (0, 0);
    for (life, numbers) in &missing.in_hand {
        let Life {
            until_ns,
            connections,
            ..
        } = &lives[*life];
        let given = (1..).zip(&tickets);
        let of_life = given.filter(|(_, ticket)| connections.contains(&ticket.connection));
        let of_life: Vec<u64> = of_life.map(|(number, _)| number).collect();
        let kept: Vec<u64> = of_life
            .iter()
            .copied()
            .filter(|number| stored.contains(number))
            .collect();
        // Only the newest: samples are written in the order in which they were
        // measured, and a client that waits with one answer in its hands has no
        // second one.
        let newest = kept.last().copied().unwrap_or(0);
        let passed_over = numbers.iter().filter(|number| **number < newest).count();
        assert!(
            passed_over <= clients,
            "life {life}: {passed_over} answers are missing before the newest that is stored"
        );
        let age_ns = numbers
            .iter()
            .map(|number| until_ns - tickets[*number as usize - 1].given_ns)
            .max()
            .unwrap_or(0);
        if numbers.len() > 2 * clients {
            println!(
                "life {life}: {} in hand, the oldest of {} us, {} stored before",
                numbers.len(),
                age_ns / 1_000,
                kept.len(),
            );
        }
        most = most.max(numbers.len());
        oldest_ns = oldest_ns.max(age_ns);
    }
    // A machine that is busy does not run the writer at once; it runs it.
    assert!(oldest_ns < 2_000_000_000, "{oldest_ns} ns");
    let in_hand: usize = missing.in_hand.values().map(Vec::len).sum();
    println!(
        "{} kills, {terminated} ends in good order: {} answers given, {} stored, 0 doubled, \
         0 lost; {in_hand} in the agent's hands at {} of the kills (at most {most}, the oldest \
         given {:.1} ms before); {} timed out, {} came after the end",
        lives.len() - terminated,
        tickets.len(),
        stored.len(),
        missing.in_hand.len(),
        oldest_ns as f64 / 1e6,
        missing.timed_out,
        missing.cut,
    );
}
