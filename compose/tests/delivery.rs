//! Delivery with real processes: an agent and an aggregator are killed, stopped,
//! cut off and left without a disk. What must have arrived is counted by the
//! server that was probed: each of its answers has a number of its own.
//!
//! `GAPSCOPE_KILLS=300` makes the kill tests long, `GAPSCOPE_SEED` repeats one.

#![expect(clippy::print_stdout, reason = "what is measured is printed")]

mod common;
mod counting;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use common::{Running, lab, pause, wait_for};
use counting::{Answer, CountingServer, Forwarder, now_ns};
use gapscope_aggregator::store::RunFolder;
use gapscope_aggregator::store::verify::{Verified, verify};
use polars::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};

/// Clients that each test's run has.
const CLIENTS: u64 = 5;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn random() -> StdRng {
    let seed = number("GAPSCOPE_SEED", rand::random());
    println!("GAPSCOPE_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

fn signal(process: &Running, signal: Signal) {
    let pid = i32::try_from(process.0.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process id"), signal).expect("it is ours");
}

fn log(path: &Path) -> Stdio {
    let file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path);
    Stdio::from(file.expect("a log file"))
}

/// A lab of an agent, an aggregator, what is between them, and what is probed.
struct Bench {
    folder: tempfile::TempDir,
    server: CountingServer,
    link: Forwarder,
    aggregator: Option<Running>,
    agent: Option<Running>,
    /// For each kill of the agent the server's newest connection, and when.
    killed: Vec<(u32, i64)>,
    /// When the run was to be stopped.
    stopped_ns: Cell<i64>,
}

impl Bench {
    fn start() -> Self {
        let nowhere: SocketAddr = "127.0.0.1:1".parse().expect("an address");
        let mut bench = Self {
            folder: tempfile::tempdir().expect("a folder"),
            server: CountingServer::start(),
            link: Forwarder::to(nowhere),
            aggregator: None,
            agent: None,
            killed: Vec::new(),
            stopped_ns: Cell::new(i64::MAX),
        };
        std::fs::create_dir(bench.runs()).expect("made");
        bench.start_aggregator();
        bench.start_agent();
        bench
    }

    fn runs(&self) -> PathBuf {
        self.folder.path().join("runs")
    }

    fn log_of(&self, who: &str) -> PathBuf {
        self.folder.path().join(format!("{who}.log"))
    }

    fn said(&self, who: &str) -> String {
        std::fs::read_to_string(self.log_of(who)).unwrap_or_default()
    }

    fn start_aggregator(&mut self) {
        let address = self.folder.path().join("address");
        let _ = std::fs::remove_file(&address);
        let child = lab()
            .args(["aggregator", "serve", "--listen", "127.0.0.1:0"])
            .args(["--die-with-parent", "--data"])
            .arg(self.runs())
            .arg("--address-file")
            .arg(&address)
            .stdout(Stdio::null())
            .stderr(log(&self.log_of("aggregator")))
            .spawn();
        self.aggregator = Some(Running(child.expect("starts")));
        let bound = wait_for("the aggregator's address", || {
            std::fs::read_to_string(&address).ok()?.trim().parse().ok()
        });
        self.link.lead_to(bound);
    }

    fn start_agent(&mut self) {
        let config = format!(
            "[[target]]\nname = \"db\"\naddress = \"{}\"\nuser = \"{}\"\nidentity = \"'x'\"\n\
             inspect = false\n", // The server counts what it answers: probes alone.
            self.server.address, self.server.user
        );
        let file = self.folder.path().join("agent.toml");
        std::fs::write(&file, config).expect("writes");
        let child = lab()
            .args(["agent", "run", "--die-with-parent", "--agent-id", "a"])
            .args(["--aggregator", &self.link.url(), "--config"])
            .arg(&file)
            .arg("--data")
            .arg(self.folder.path().join("agent"))
            .stdout(Stdio::null())
            .stderr(log(&self.log_of("agent")))
            .spawn();
        self.agent = Some(Running(child.expect("starts")));
    }

    /// `kill -9`, and waits until it is gone.
    fn kill_aggregator(&mut self) {
        self.aggregator = None;
    }

    /// SIGTERM, and waits until it has ended by itself.
    fn end_aggregator(&mut self) {
        let mut process = self.aggregator.take().expect("it runs");
        signal(&process, Signal::TERM);
        let status = process.0.wait().expect("it is ours");
        assert!(status.success(), "{status}: {}", self.said("aggregator"));
    }

    fn kill_agent(&mut self) {
        let at_ns = now_ns();
        self.agent = None;
        self.killed.push((self.server.connections(), at_ns));
    }

    fn command(&self, args: &[&str]) -> std::process::Output {
        lab()
            .arg("aggregator")
            .args(args)
            .args(["--aggregator", &self.link.url()])
            .output()
            .expect("runs")
    }

    fn start_run(&self, more: &[&str]) -> String {
        self.start_run_of("1h", more)
    }

    fn start_run_of(&self, duration: &str, more: &[&str]) -> String {
        wait_for("the agent's session", || {
            let output = self.command(&["agents"]);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.contains("idle").then_some(())
        });
        let mut args = vec!["start", "--target", "db", "--duration", duration];
        args.extend(["--reused", "3", "--patient", "1", "--new", "1"]);
        args.extend(more);
        let output = self.command(&args);
        assert!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stderr),
            self.said("aggregator")
        );
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Stops the run and waits for all that is to come; returns its folder.
    fn stop_run(&self, run: &str) -> PathBuf {
        self.stopped_ns.set(now_ns());
        let output = self.command(&["stop", run, "--drain", "60s"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert!(
            !said.contains("missing: "),
            "{said}\n{}",
            self.said("agent")
        );
        self.runs().join(run)
    }

    /// Waits until the probed server has given so many more answers.
    fn more_answers(&self, count: u64) {
        let until = self.server.answered() + count;
        wait_for("answers", || {
            (self.server.answered() >= until).then_some(())
        });
    }
}

/// What is stored, as the test counts it.
#[derive(Debug)]
struct Stored {
    rows: u64,
    /// Numbers of answers.
    numbers: Vec<u64>,
    /// Why probes that were sent have no answer, by the server's connection.
    given_up: BTreeMap<u32, Vec<String>>,
}

fn stored(folder: &Path) -> Stored {
    let frame = RunFolder::open(folder)
        .expect("opens")
        .samples()
        .expect("scans")
        .select([
            col("connection_id"),
            col("backend").is_not_null().alias("good"),
            col("handshake_id"),
            col("phase").cast(DataType::String),
            col("cause").cast(DataType::String),
        ])
        .collect()
        .expect("reads");
    let column = |name: &str| frame.column(name).expect("is there");
    let numbers = column("connection_id").u64().expect("u64");
    let good = column("good").bool().expect("bool");
    let connections = column("handshake_id").u32().expect("u32");
    let phases = column("phase").str().expect("texts");
    let causes = column("cause").str().expect("texts");
    let mut stored = Stored {
        rows: frame.height() as u64,
        numbers: Vec::new(),
        given_up: BTreeMap::new(),
    };
    for row in 0..frame.height() {
        if good.get(row) == Some(true) {
            stored.numbers.extend(numbers.get(row));
        } else if let Some(connection) = connections.get(row)
            && phases.get(row) == Some("query")
        {
            let causes = causes.get(row).unwrap_or_default().to_owned();
            stored.given_up.entry(connection).or_default().push(causes);
        }
    }
    stored.numbers.sort_unstable();
    stored
}

struct Counted {
    doubled: u64,
    /// Answers in the agent's hands when it was killed.
    in_hand: u64,
    /// Answers whose probes had timed out, and that came when the run's end had cut
    /// their probes: the samples say so.
    late: u64,
    /// How long before the kill the oldest of those in hand was given.
    oldest_ns: i64,
    rows: u64,
    verified: Verified,
}

/// Every answer is stored once, or there is a reason why not.
fn count(bench: &Bench, folder: &Path) -> Counted {
    let mut stored = stored(folder);
    let once: BTreeSet<u64> = stored.numbers.iter().copied().collect();
    let answers = bench.server.answers();
    assert!(once.last().is_none_or(|last| *last <= answers.len() as u64));
    let verified = verify(folder).expect("reads");
    assert_eq!(verified.damage, Vec::<String>::new());
    assert_eq!(verified.lost, (0, 0));
    assert_eq!(verified.missing, 0);
    assert_eq!(verified.samples, stored.rows);
    assert_eq!(verified.sampled, stored.rows);
    let mut counted = Counted {
        doubled: stored.numbers.len() as u64 - once.len() as u64,
        in_hand: 0,
        late: 0,
        oldest_ns: 0,
        rows: stored.rows,
        verified,
    };
    let life_of = |answer: &Answer| {
        let ends = bench.killed.iter();
        ends.clone()
            .position(|(last, _)| answer.connection <= *last)
    };
    let mut newest = BTreeMap::new();
    let mut newest_of_life = BTreeMap::new();
    for (number, answer) in (1..).zip(&answers) {
        if once.contains(&number) {
            newest.insert(answer.connection, number);
            newest_of_life.insert(life_of(answer), number);
        }
    }
    let mut passed_over = BTreeMap::<usize, u64>::new();
    for (number, answer) in (1..).zip(&answers) {
        if once.contains(&number) {
            continue;
        }
        let causes = stored.given_up.get_mut(&answer.connection);
        match causes.and_then(Vec::pop).as_deref() {
            Some("query_timeout") => counted.late += 1,
            Some("run_ended") => {
                let stopped_ns = bench.stopped_ns.get();
                assert!(
                    answer.sent_ns.is_none_or(|sent| sent > stopped_ns),
                    "answer {number} had come before the stop, and was given up"
                );
                counted.late += 1;
            }
            Some(cause) => panic!("answer {number} became a sample of {cause}"),
            None => {
                let Some(life) = life_of(answer) else {
                    panic!("answer {number} is lost, and its agent was not killed: {answer:?}");
                };
                assert!(
                    newest.get(&answer.connection).is_none_or(|n| *n < number),
                    "answer {number} is missing in the midst"
                );
                // Only the newest: samples are written in the order in which they
                // were measured, and each client has one answer in its hands.
                if newest_of_life.get(&Some(life)).is_some_and(|n| *n > number) {
                    *passed_over.entry(life).or_default() += 1;
                }
                counted.in_hand += 1;
                let age_ns = bench.killed[life].1 - answer.given_ns;
                counted.oldest_ns = counted.oldest_ns.max(age_ns);
            }
        }
    }
    assert!(
        passed_over.values().all(|n| *n <= CLIENTS),
        "missing before the newest that is stored: {passed_over:?}"
    );
    counted
}

#[test]
fn an_aggregator_killed_at_random_moments_loses_and_doubles_nothing() {
    let kills = number("GAPSCOPE_KILLS", 4);
    let mut random = random();
    let mut bench = Bench::start();
    let run = bench.start_run(&[]);
    let mut ended = 0;
    for _ in 0..kills {
        // Between two answers of the probed server, wherever that finds it: while
        // it starts, takes in, writes, merges.
        pause(Duration::from_millis(random.random_range(0..900)));
        bench.kill_aggregator();
        bench.start_aggregator();
        // And now and then an end in good order.
        if random.random_range(0..5) == 0 {
            pause(Duration::from_millis(random.random_range(0..900)));
            bench.end_aggregator();
            bench.start_aggregator();
            ended += 1;
        }
    }
    bench.more_answers(200);
    let folder = bench.stop_run(&run);
    let counted = count(&bench, &folder);
    println!(
        "{kills} kills of the aggregator, {ended} ends in good order: {} answers, {} samples, \
         {} doubled, 0 lost, {} came too late for their probes",
        bench.server.answered(),
        counted.rows,
        counted.doubled,
        counted.late
    );
    assert_eq!(counted.doubled, 0);
    assert!(counted.verified.is_sound(), "{:#?}", counted.verified);
}

#[test]
fn agent_and_aggregator_killed_together_lose_and_double_nothing_that_was_measured() {
    let kills = number("GAPSCOPE_KILLS_BOTH", number("GAPSCOPE_KILLS", 4) / 2);
    let mut random = random();
    let mut bench = Bench::start();
    let run = bench.start_run(&[]);
    for _ in 0..kills {
        pause(Duration::from_millis(random.random_range(0..1_500)));
        if random.random() {
            bench.kill_agent();
            pause(Duration::from_millis(random.random_range(0..100)));
            bench.kill_aggregator();
        } else {
            bench.kill_aggregator();
            pause(Duration::from_millis(random.random_range(0..100)));
            bench.kill_agent();
        }
        bench.start_aggregator();
        bench.start_agent();
    }
    bench.more_answers(200);
    let folder = bench.stop_run(&run);
    let counted = count(&bench, &folder);
    println!(
        "{kills} kills of both: {} answers, {} samples, {} doubled, 0 lost, {} in hand when \
         killed (the oldest given {:.1} ms before), {} came too late for their probes",
        bench.server.answered(),
        counted.rows,
        counted.doubled,
        counted.in_hand,
        counted.oldest_ns as f64 / 1e6,
        counted.late,
    );
    assert_eq!(counted.doubled, 0);
}

#[test]
fn links_that_are_cut_stalled_and_refused_lose_and_double_nothing() {
    let rounds = number("GAPSCOPE_CUTS", 8);
    let mut random = random();
    let bench = Bench::start();
    let run = bench.start_run(&[]);
    for _ in 0..rounds {
        pause(Duration::from_millis(random.random_range(0..600)));
        match random.random_range(0..3) {
            0 => bench.link.cut(),
            1 => {
                bench.link.silence();
                pause(Duration::from_millis(random.random_range(0..800)));
                bench.link.resume();
            }
            _ => {
                bench.link.refuse(true);
                bench.link.cut();
                pause(Duration::from_millis(random.random_range(0..400)));
                bench.link.refuse(false);
            }
        }
    }
    bench.more_answers(100);
    let folder = bench.stop_run(&run);
    let counted = count(&bench, &folder);
    assert_eq!(counted.doubled, 0);
    assert!(counted.verified.is_sound(), "{:#?}", counted.verified);
}

/// Until both have said that the other is gone, in ns. The bound is 6 s; the rest
/// is for a machine that is busy with other tests.
fn noticed(bench: &Bench, begin: i64, before: (usize, usize)) -> (i64, i64) {
    let new = |who: &str, from: usize| bench.said(who)[from..].to_owned();
    let mut times = (0, 0);
    wait_for("that both notice", || {
        let took = now_ns() - begin;
        if times.0 == 0 && new("agent", before.0).contains("no connection to the aggregator") {
            times.0 = took;
        }
        if times.1 == 0 && new("aggregator", before.1).contains("disconnected") {
            times.1 = took;
        }
        (times.0 > 0 && times.1 > 0).then_some(())
    });
    println!(
        "silence noticed by the agent after {:.1} s, by the aggregator after {:.1} s",
        times.0 as f64 / 1e9,
        times.1 as f64 / 1e9
    );
    times
}

#[test]
fn a_half_open_link_is_noticed_by_both_sides_within_the_bound() {
    let bench = Bench::start();
    let run = bench.start_run(&[]);
    bench.more_answers(50);
    let before = (bench.said("agent").len(), bench.said("aggregator").len());
    let begin = now_ns();
    bench.link.silence();
    let (agent, aggregator) = noticed(&bench, begin, before);
    assert!(agent < 10_000_000_000 && aggregator < 10_000_000_000);
    let folder = bench.stop_run(&run);
    let counted = count(&bench, &folder);
    assert_eq!(counted.doubled, 0);
    assert!(counted.verified.is_sound(), "{:#?}", counted.verified);
}

/// Runs this program once more, for one test alone, in a network namespace of its
/// own; none where that cannot be had.
fn in_namespace(test: &str) -> Option<std::process::Output> {
    let program = std::env::current_exe().expect("it has a name");
    let has_tools = std::process::Command::new("unshare")
        .args(["-n", "sh", "-c", "ip link set lo up && iptables -w -L"])
        .output()
        .is_ok_and(|tried| tried.status.success());
    has_tools.then(|| {
        std::process::Command::new("unshare")
            .args(["-n", "sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""])
            .arg(program)
            .args(["--exact", test, "--nocapture"])
            .env("GAPSCOPE_IN_NAMESPACE", "1")
            .output()
            .expect("it could be run before")
    })
}

fn iptables(args: &[&str]) {
    let done = std::process::Command::new("iptables")
        .arg("-w")
        .args(args)
        .output()
        .expect("it could be run before");
    assert!(done.status.success(), "{args:?}: {done:?}");
}

/// As above, and truly half-open: every packet between the two is dropped, so that
/// nobody hears of an end, and nobody's bytes are taken.
#[test]
fn a_link_that_drops_every_packet_is_noticed_by_both_sides_within_the_bound() {
    let own = "a_link_that_drops_every_packet_is_noticed_by_both_sides_within_the_bound";
    if std::env::var_os("GAPSCOPE_IN_NAMESPACE").is_none() {
        let Some(done) = in_namespace(own) else {
            println!("skipped: no network namespace of its own, or no iptables");
            return;
        };
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        let failed = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{said}\n{failed}");
        assert!(said.contains("1 passed"), "{said}");
        print!("{said}");
        return;
    }
    let bench = Bench::start();
    let run = bench.start_run(&[]);
    bench.more_answers(50);
    let before = (bench.said("agent").len(), bench.said("aggregator").len());
    let aggregator = std::fs::read_to_string(bench.folder.path().join("address"));
    let aggregator: SocketAddr = aggregator.expect("written").trim().parse().expect("one");
    let begin = now_ns();
    for port in [bench.link.address.port(), aggregator.port()] {
        let port = port.to_string();
        for side in ["--dport", "--sport"] {
            iptables(&["-A", "INPUT", "-p", "tcp", side, &port, "-j", "DROP"]);
        }
    }
    let (agent, aggregator) = noticed(&bench, begin, before);
    assert!(agent < 10_000_000_000 && aggregator < 10_000_000_000);
    // It probes on, and delivers when packets come through again.
    bench.more_answers(100);
    iptables(&["-F", "INPUT"]);
    let folder = bench.stop_run(&run);
    let counted = count(&bench, &folder);
    assert_eq!(counted.doubled, 0);
    assert!(counted.verified.is_sound(), "{:#?}", counted.verified);
}

#[test]
fn a_stopped_aggregator_is_noticed_and_nothing_is_lost_when_it_goes_on() {
    let bench = Bench::start();
    let run = bench.start_run(&[]);
    bench.more_answers(50);
    let before = bench.said("agent").len();
    let aggregator = bench.aggregator.as_ref().expect("runs");
    let begin = now_ns();
    signal(aggregator, Signal::STOP);
    wait_for("that the agent notices", || {
        bench.said("agent")[before..]
            .contains("no connection to the aggregator")
            .then_some(())
    });
    let took = now_ns() - begin;
    println!(
        "a stopped aggregator is noticed after {:.1} s",
        took as f64 / 1e9
    );
    assert!(took < 10_000_000_000, "{took} ns");
    // It probes on.
    bench.more_answers(100);
    signal(aggregator, Signal::CONT);
    let folder = bench.stop_run(&run);
    let counted = count(&bench, &folder);
    assert_eq!(counted.doubled, 0);
    assert!(counted.verified.is_sound(), "{:#?}", counted.verified);
}

#[test]
fn an_aggregator_that_was_away_is_caught_up_with_while_probing_goes_on() {
    let away_s = number("GAPSCOPE_AWAY_S", 12);
    let mut bench = Bench::start();
    let run = bench.start_run(&["--interval", "5ms"]);
    bench.more_answers(100);
    bench.kill_aggregator();
    let begin = now_ns();
    let spooled = bench.server.answered();
    while now_ns() - begin < away_s as i64 * 1_000_000_000 {
        pause(Duration::from_millis(50));
    }
    bench.start_aggregator();
    let behind = bench.server.answered();
    let folder = bench.runs().join(&run);
    let samples = || RunFolder::open(&folder).expect("opens").samples_stored();
    // From its first new sample to the last one that was measured while it was away.
    let had = samples();
    wait_for("the first of the backlog", || {
        (samples() > had).then_some(())
    });
    let first = now_ns();
    wait_for("the backlog", || (samples() + 50 >= behind).then_some(()));
    // No finer than the aggregator's commits.
    let took = (now_ns() - first).max(200_000_000);
    let ratio = (away_s as f64 * 1e9) / took as f64;
    println!(
        "{} samples of {away_s} s delivered within {:.2} s: {ratio:.1} times real time",
        behind - spooled,
        took as f64 / 1e9
    );
    let folder = bench.stop_run(&run);
    let counted = count(&bench, &folder);
    assert_eq!(counted.doubled, 0);
    assert!(counted.verified.is_sound(), "{:#?}", counted.verified);
    assert!(ratio > 2.0, "{ratio}");
}

/// The agent is killed in the midst of a run and comes back when that is over: it
/// has nothing to probe, and says that nothing more will come.
#[test]
fn an_agent_that_comes_back_idle_closes_the_books_of_its_killed_start() {
    let mut bench = Bench::start();
    let run = bench.start_run_of("3s", &[]);
    let folder = bench.runs().join(&run);
    wait_for("the first samples", || {
        let run = RunFolder::open(&folder).ok()?;
        (run.samples_stored() > 0).then_some(())
    });
    bench.more_answers(20);
    bench.kill_agent();
    let killed_ns = bench.killed[0].1;
    // Nobody is there to say what the spool holds.
    let output = bench.command(&["stop", &run, "--drain", "1s"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("the end of its probing"), "{said}");
    let runs = bench.runs();
    let report = |what: &str| {
        let output = lab()
            .args(["aggregator", what, &run, "--data"])
            .arg(&runs)
            .output()
            .expect("runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), said)
    };
    let open = verify(&folder).expect("reads");
    assert_eq!(open.open, 1, "{open:#?}");
    assert_eq!(report("verify").0, Some(4));
    let (exit, said) = report("report");
    assert_eq!(exit, Some(4));
    assert!(said.contains("≥"), "{said}");
    // Past its planned end, so that the agent does not take it up again.
    while now_ns() - killed_ns < 4_000_000_000 {
        pause(Duration::from_millis(20));
    }
    bench.start_agent();
    wait_for("the books of the killed start", || {
        verify(&folder)
            .is_ok_and(|found| found.is_whole())
            .then_some(())
    });
    let (exit, said) = report("verify");
    assert_eq!(exit, Some(0), "{said}");
    let (_, said) = report("report");
    assert!(said.contains(" + 0 in spools"), "{said}");
    assert!(!said.contains("spool may hold more"), "{said}");
    let counted = count(&bench, &folder);
    assert_eq!(counted.doubled, 0);
    // What it had not probed is no data: absent, not lost.
    assert!(!said.contains("DO NOT BALANCE"), "{said}");
    // Said once, and not again at each start.
    bench.kill_agent();
    let starts = || verify(&folder).expect("reads").files;
    let files = starts();
    bench.start_agent();
    bench.start_run(&[]);
    assert_eq!(starts(), files);
}

#[test]
fn a_deleted_run_folder_ends_the_run_and_wedges_nobody() {
    let bench = Bench::start();
    let run = bench.start_run(&[]);
    bench.more_answers(50);
    std::fs::remove_dir_all(bench.runs().join(&run)).expect("removed");
    wait_for("the end of probing", || {
        bench.said("agent").contains("run ended").then_some(())
    });
    assert!(bench.said("aggregator").contains("was deleted"));
    // The agent is free for the next, and nothing of the old one is left over.
    let answered = bench.server.answered();
    let next = bench.start_run(&[]);
    bench.more_answers(50);
    let folder = bench.stop_run(&next);
    let verified = verify(&folder).expect("reads");
    assert!(verified.is_sound(), "{verified:#?}");
    assert!(stored(&folder).numbers.iter().all(|n| *n > answered));
    assert!(!bench.runs().join(&run).exists(), "it was not made again");
}

/// An aggregator on a file system of 4 MB, which somebody else fills.
#[test]
fn a_full_disk_stops_acknowledgements_until_there_is_room_again() {
    let mut bench = Bench::start();
    bench.kill_aggregator();
    let runs = bench.runs();
    let address = bench.folder.path().join("address");
    let _ = std::fs::remove_file(&address);
    let script = format!(
        "mount -t tmpfs -o size=4m tmpfs '{0}' && exec \"$0\" aggregator serve \
         --listen 127.0.0.1:0 --die-with-parent --data '{0}' --address-file '{1}'",
        runs.display(),
        address.display()
    );
    let child = std::process::Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .arg(env!("CARGO_BIN_EXE_gapscope-lab"))
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log(&bench.log_of("aggregator")))
        .spawn();
    let Ok(child) = child else {
        println!("skipped: unshare is not installed");
        return;
    };
    let mut process = Running(child);
    let mut bound = None;
    for _ in 0..3_000 {
        bound = std::fs::read_to_string(&address)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        if bound.is_some() || process.0.try_wait().expect("asks").is_some() {
            break;
        }
        pause(Duration::from_millis(10));
    }
    let Some(bound) = bound else {
        println!("skipped: no mount of its own: {}", bench.said("aggregator"));
        return;
    };
    bench.link.lead_to(bound);
    // Its files, seen through its own mounts.
    let inside = PathBuf::from(format!("/proc/{}/root{}", process.0.id(), runs.display()));
    bench.aggregator = Some(process);
    let run = bench.start_run(&[]);
    bench.more_answers(50);
    let filler = inside.join("filler");
    let mut file = std::fs::File::create(&filler).expect("creates");
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    wait_for("that it says so", || {
        bench
            .said("aggregator")
            .contains("nothing is acknowledged until it works")
            .then_some(())
    });
    // The agent probes on and keeps its data.
    bench.more_answers(300);
    let held = stored(&inside.join(&run)).rows;
    assert!(held + 200 < bench.server.answered(), "{held}");
    drop(file);
    std::fs::remove_file(&filler).expect("removed");
    wait_for("that it goes on", || {
        bench
            .said("aggregator")
            .contains("writing works again")
            .then_some(())
    });
    bench.stop_run(&run);
    let counted = count(&bench, &inside.join(&run));
    assert_eq!(counted.doubled, 0);
    assert!(counted.verified.is_sound(), "{:#?}", counted.verified);
}
