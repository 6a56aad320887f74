//! One block: a fixed number of statements by so many clients through one
//! target.
//!
//! Method: clients are spread over as many threads as there are processors (at
//! most one a client), each with a runtime of its own, so that one client costs
//! no wake-up of another thread. Connections are made and warmed up before the
//! time begins. Every answer's rows are checked against what the direct target
//! said. Statements have no timeout of their own; the block has.
//!
//! A client that loses its connection makes a new one; that and all else that
//! goes wrong is counted, and a block with any error is in no time. After 20
//! errors a client gives up: what it did not send is counted too.

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::Duration;

use gapscope_proto::clock::Clock;
use mysql_async::Opts;
use rustix::time::{ClockId, clock_gettime};
use tokio_util::sync::CancellationToken;

use super::client::{Client, GIVES_UP_AFTER, Shared, lock};
use super::cpu;
use super::digest::Digest;
use super::order::share;

/// How statements are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Prepared once a connection, then executed; else as text.
    pub prepared: bool,
    /// Each statement on a connection of its own, made while the time runs.
    pub connect_each: bool,
}

/// What a block is to be.
#[derive(Clone)]
pub struct Job {
    /// Where and as whom.
    pub opts: Opts,
    /// What.
    pub statement: Arc<str>,
    /// How.
    pub way: Way,
    /// The right answer.
    pub expected: Digest,
    /// Statements of all clients together.
    pub statements: u64,
    /// Clients.
    pub clients: u32,
    /// Statements that each client sends before the time begins.
    pub warm_up: u64,
    /// A fixed rate over all clients, in statements a second; none: closed loop.
    pub rate: Option<f64>,
    /// The block is cut after this long.
    pub at_most: Duration,
    /// The target's processes, whose time is taken.
    pub processes: Vec<u32>,
    /// Ends it early.
    pub stop: CancellationToken,
    /// Stamps.
    pub clock: Arc<dyn Clock>,
}

/// What went wrong, by kind and code: the first text and how often.
pub type Failures = BTreeMap<(&'static str, Option<u16>), (String, u64)>;

/// What came of a block.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// First statement sent.
    pub began_ns: i64,
    /// Until the last was answered.
    pub total_ns: u64,
    /// Answered rightly.
    pub answered: u64,
    /// Answered with other rows.
    pub wrong: u64,
    /// Not answered, or with an error.
    pub errors: u64,
    /// Connections made while the time ran.
    pub connects: u64,
    /// Times of the right answers, sorted.
    pub latencies_ns: Vec<u64>,
    /// Processor time of the clients' threads while the time ran.
    pub cpu_ns: u64,
    /// Processor time of the target's processes, if it can be seen.
    pub target_cpu_ns: Option<u64>,
    /// What went wrong.
    pub failures: Failures,
    /// It was ended early by its `stop`.
    pub stopped: bool,
}

pub(crate) fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let ns = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    u64::try_from(ns).unwrap_or(0)
}

/// What the threads agree on before the time begins.
struct Gate {
    ready: Barrier,
    /// When the time begins, and the target's processor time then.
    origin: Mutex<Option<(i64, Option<u64>)>>,
    begin: Barrier,
}

/// Carries out a block. Blocks the thread it is called on.
///
/// # Errors
/// When threads cannot be started.
pub fn run(job: &Job) -> std::io::Result<Outcome> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = cores.min(job.clients as usize).max(1);
    let gate = Gate {
        ready: Barrier::new(threads),
        origin: Mutex::new(None),
        begin: Barrier::new(threads),
    };
    let runtimes: Vec<tokio::runtime::Runtime> = (0..threads)
        .map(|_| {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
        })
        .collect::<std::io::Result<_>>()?;
    let progress: Vec<Shared> = (0..job.clients).map(|_| Shared::default()).collect();
    let ends: Vec<std::thread::Result<(u64, Ending)>> = std::thread::scope(|scope| {
        let handles: Vec<_> = runtimes
            .into_iter()
            .enumerate()
            .map(|(thread, runtime)| {
                let clients: Vec<Client> = (0..job.clients)
                    .filter(|number| *number as usize % threads == thread)
                    .map(|number| Client {
                        job: job.clone(),
                        number,
                        progress: Arc::clone(&progress[number as usize]),
                    })
                    .collect();
                let gate = &gate;
                scope.spawn(move || one_thread(&runtime, clients, job, gate))
            })
            .collect();
        handles.into_iter().map(|handle| handle.join()).collect()
    });
    let target_cpu_ns = cpu::time_of(&job.processes);
    let mut outcome = add_up(job, &progress, ends);
    let origin = gate
        .origin
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    outcome.target_cpu_ns = origin.and_then(|(_, before)| target_cpu_ns?.checked_sub(before?));
    Ok(outcome)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Done,
    TimedOut,
    Stopped,
}

fn one_thread(
    runtime: &tokio::runtime::Runtime,
    clients: Vec<Client>,
    job: &Job,
    gate: &Gate,
) -> (u64, Ending) {
    let preparing: Vec<_> = clients
        .into_iter()
        .map(|client| {
            runtime.spawn(async move {
                let ready = if client.job.way.connect_each {
                    None
                } else {
                    client.get_ready().await
                };
                (client, ready)
            })
        })
        .collect();
    let mut ready = Vec::new();
    runtime.block_on(async {
        for task in preparing {
            // A task that panicked has made no progress, which is counted.
            if let Ok(one) = task.await {
                ready.push(one);
            }
        }
    });
    // Nobody's time begins before everybody is ready.
    gate.ready.wait();
    let origin_ns = {
        let mut origin = gate.origin.lock().unwrap_or_else(PoisonError::into_inner);
        let (origin_ns, _) = *origin.get_or_insert_with(|| {
            let target_cpu_ns = cpu::time_of(&job.processes);
            (job.clock.raw_ns(), target_cpu_ns)
        });
        origin_ns
    };
    gate.begin.wait();
    let cpu_ns = thread_cpu_ns();
    let ending = runtime.block_on(async {
        let sending: Vec<_> = ready
            .into_iter()
            .map(|(client, ready)| tokio::spawn(async move { client.send(ready, origin_ns).await }))
            .collect();
        let handles: Vec<_> = sending
            .iter()
            .map(tokio::task::JoinHandle::abort_handle)
            .collect();
        let all = futures::future::join_all(sending);
        let ending = tokio::select! {
            _ = all => Ending::Done,
            () = tokio::time::sleep(job.at_most) => Ending::TimedOut,
            () = job.stop.cancelled() => Ending::Stopped,
        };
        for handle in handles {
            handle.abort();
        }
        ending
    });
    (thread_cpu_ns().saturating_sub(cpu_ns), ending)
}

fn add_up(
    job: &Job,
    progress: &[Shared],
    ends: Vec<std::thread::Result<(u64, Ending)>>,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut timed_out = false;
    for end in ends {
        match end {
            Ok((cpu_ns, ending)) => {
                outcome.cpu_ns += cpu_ns;
                timed_out |= ending == Ending::TimedOut;
                outcome.stopped |= ending == Ending::Stopped;
            }
            Err(_) => {
                outcome.failures.insert(
                    ("panicked", None),
                    ("a client's thread panicked".to_owned(), 1),
                );
            }
        }
    }
    let (mut began, mut ended) = (i64::MAX, i64::MIN);
    let mut not_sent = 0;
    for (number, client) in (0..).zip(progress) {
        let client = std::mem::take(&mut *lock(client));
        if let Some(began_ns) = client.began_ns {
            began = began.min(began_ns);
            ended = ended.max(client.ended_ns);
        }
        // An error before the time began is no statement's.
        let done = client.answered + client.wrong + client.errors;
        not_sent += share(job.statements, job.clients, number).saturating_sub(done);
        outcome.answered += client.answered;
        outcome.wrong += client.wrong;
        outcome.errors += client.errors;
        outcome.connects += client.connects;
        outcome.latencies_ns.extend(client.latencies_ns);
        for (key, (text, count)) in client.failures {
            outcome.failures.entry(key).or_insert((text, 0)).1 += count;
        }
    }
    if not_sent > 0 {
        outcome.errors += not_sent;
        let (kind, text) = if timed_out {
            (
                "timed_out",
                format!(
                    "not answered within the block's {} s",
                    job.at_most.as_secs_f64()
                ),
            )
        } else if outcome.stopped {
            ("stopped", "the benchmark was ended".to_owned())
        } else {
            (
                "not_sent",
                format!("their clients gave up after {GIVES_UP_AFTER} errors"),
            )
        };
        outcome.failures.entry((kind, None)).or_insert((text, 0)).1 += not_sent;
    }
    outcome.latencies_ns.sort_unstable();
    if began <= ended {
        outcome.began_ns = began;
        outcome.total_ns = u64::try_from(ended.saturating_sub(began)).unwrap_or(0);
    }
    outcome
}
