//! The instrument against the truth: embedded backends are stopped, crashed,
//! hung and black-holed for times that are known exactly, probed directly by a
//! real agent that streams to a real aggregator, and every client's reported
//! outage has to contain the truth. A window that does not is a wrong number.

mod common;

use std::sync::Arc;
use std::time::Duration;

use gapscope_aggregator::analyse::row::{Scope, Window};
use gapscope_aggregator::analyse::run::analyse;
use gapscope_aggregator::store::reader::RunFolder;
use gapscope_lab::embedded::{Backend, BackendConfig, Held};
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::sample::Style;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const BACKENDS: usize = 13;
const ROUNDS: usize = 8;
const MS: i64 = 1_000_000;

#[expect(clippy::print_stdout, reason = "a test says what it saw")]
fn say(text: &str) {
    println!("{text}");
}

/// Between these two readings answers had ceased, between those they came again.
#[derive(Debug, Clone, Copy)]
struct Truth {
    backend: usize,
    kind: &'static str,
    ceased: (i64, i64),
    resumed: (i64, i64),
}

impl Truth {
    fn shortest(&self) -> i64 {
        self.resumed.0 - self.ceased.1
    }
    fn longest(&self) -> i64 {
        self.resumed.1 - self.ceased.0
    }
}

async fn fault_and_clear(
    backend: &Backend,
    number: usize,
    round: usize,
    length: Duration,
) -> Truth {
    let kinds = ["stopped", "crashed", "hung", "black-holed"];
    // Each backend lives through each kind, in an order of its own.
    let kind = kinds[(number + round) % kinds.len()];
    let fault = match kind {
        "stopped" => backend.stop_gracefully(Held::CutAtOnce).await,
        "crashed" => backend.crash().await,
        "hung" => backend.hang().await,
        _ => backend.black_hole().await,
    }
    .expect("the fault is done");
    tokio::time::sleep(length).await;
    let clear = backend.clear().await.expect("the fault is cleared");
    Truth {
        backend: number,
        kind,
        ceased: (fault.effect.earliest_ns, fault.effect.latest_ns),
        resumed: (clear.cleared.earliest_ns, clear.cleared.latest_ns),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_truth_lies_in_every_window() {
    let seed = rand::rng().random::<u64>();
    say(&format!("seed {seed}"));
    let mut rng = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());

    let mut backends = Vec::new();
    let mut config = String::new();
    for number in 0..BACKENDS {
        let backend = Backend::start(BackendConfig::new(format!("db-{number}")), clock.clone())
            .await
            .expect("a backend starts");
        config += &format!(
            "[[target]]\nname = \"db-{number}\"\naddress = \"{}\"\nuser = \"probe\"\n\n",
            backend.addr()
        );
        backends.push(Arc::new(backend));
    }

    let data = folder.path().to_owned();
    // Started from this thread, which lives as long as they should: a child's
    // parent-death signal follows the thread that made it.
    let aggregator = common::Aggregator::start(&data);
    let _agent = common::agent(&aggregator, "prober", &config);
    common::wait_for_agent(&aggregator, "prober");
    let names: Vec<String> = (0..BACKENDS).map(|n| format!("db-{n}")).collect();
    let mut args = vec![
        "start",
        "--duration",
        "120s",
        "--reused",
        "1",
        "--interval",
        "20ms",
        "--patient",
        "0",
        "--new",
        "1",
        "--new-interval",
        "50ms",
        "--timeout",
        "400ms",
    ];
    for name in &names {
        args.extend(["--target", name]);
    }
    let run = aggregator.command(&args);

    // Every backend is being probed before the first fault.
    for backend in &backends {
        while backend.statements() < 20 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    let mut truths: Vec<Truth> = Vec::new();
    for round in 0..ROUNDS {
        let mut tasks = Vec::new();
        for (number, backend) in backends.iter().enumerate() {
            let backend = backend.clone();
            let before = Duration::from_millis(rng.random_range(0..700));
            let length = Duration::from_millis(rng.random_range(500..1_100));
            tasks.push(tokio::spawn(async move {
                tokio::time::sleep(before).await;
                fault_and_clear(&backend, number, round, length).await
            }));
        }
        for task in tasks {
            truths.push(task.await.expect("a fault"));
        }
        // A client that began to wait just before the end needs its own timeout,
        // and some good answers, before the next round.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
    }

    let data = folder.path().to_owned();
    let run_folder = data.join(&run);
    aggregator.command(&["stop", &run]);

    let run = RunFolder::open(&run_folder).expect("the run is readable");
    let analysis = analyse(&run).expect("the run is analysed");
    assert!(truths.len() >= 100, "{} faults", truths.len());
    let mut seen = 0;
    let mut widest = 0;
    for truth in &truths {
        for style in [Style::Reused, Style::New] {
            let name = format!("db-{}", truth.backend);
            let (_, row) = analysis
                .rows
                .iter()
                .find(|(_, row)| row.target.as_str() == name && row.style == style)
                .expect("a row for each target and style");
            let windows: Vec<&Window> = row
                .windows
                .iter()
                .filter(|w| matches!(w.scope, Scope::Client(_)))
                .filter(|w| {
                    w.from_ns.is_none_or(|from| from <= truth.resumed.1)
                        && w.to_ns.is_none_or(|to| to >= truth.ceased.0)
                })
                .collect();
            let context = || {
                format!(
                    "seed {seed}: {} for {} ms, {style}: {truth:?} {windows:#?}\n{}",
                    truth.kind,
                    truth.shortest() / MS,
                    common::logs(&data)
                )
            };
            // The one that spans the fault; noise may add short ones beside it.
            let window = windows
                .iter()
                .find(|w| {
                    w.from_ns.is_some_and(|from| from <= truth.ceased.1)
                        && w.to_ns.is_some_and(|to| to >= truth.resumed.0)
                })
                .unwrap_or_else(|| panic!("no window spans the fault: {}", context()));
            let upper = window.upper_ns.expect("closed on both sides");
            // A busy machine can answer the first probe after the fault late:
            // out at the deadline for one more interval, which the truth is not.
            let late = if window.late > 0 { 100 * MS } else { 0 };
            assert!(
                window.lower_ns <= truth.longest() + late,
                "lower bound too long: {}",
                context()
            );
            assert!(
                upper >= truth.shortest(),
                "upper bound too short: {}",
                context()
            );
            seen += 1;
            widest = widest.max(upper - window.lower_ns);
        }
    }
    say(&format!(
        "{} faults, {seen} windows, all contain the truth; widest {} ms",
        truths.len(),
        widest / MS
    ));
    let books = &analysis.conservation;
    assert_eq!(books.lost.1, 0, "nothing was lost: {books:?}");
    for backend in backends {
        backend.shutdown().await;
    }
}
