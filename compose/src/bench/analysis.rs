//! A whole `report` on large runs: time, memory, growth; beside DuckDB, which is
//! asked the same in SQL over the same files, and beside a plain loop in Python.
//!
//! Runs are made through the store that the aggregator writes with: five targets, four
//! clients each, a hundred probes a second, an outage of one target now and then, and
//! single errors. DuckDB's and Python's answers must be the report's: counts, windows
//! and quantiles are compared, and one that differs fails the benchmark.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gapscope_aggregator::store::RunStore;
use gapscope_aggregator::store::disk::Disk;
use gapscope_aggregator::store::manifest::{
    AgentEntry, FORMAT_VERSION, Manifest, RunState, Schedule, TargetEntry,
};
use gapscope_aggregator::utc::rfc3339;
use gapscope_proto::clock::Clock;
use gapscope_proto::host::{HostFacts, HostRecord, Lag, ProbingEnded, ProbingStarted};
use gapscope_proto::ids::{AgentId, Incarnation, RunId, TargetName};
use gapscope_proto::plan::{ClientGroup, ClientKind, RunPlan, Timeouts};
use gapscope_proto::sample::{Cause, Outcome, Phase, Sample, Style};
use gapscope_proto::time::Timestamp;
use serde_json::Value;

use super::closed::itself;
use super::findings::{Goal, Part, short};
use super::options::Options;
use super::paced::status_kib;
use super::rivals::python;
use crate::children::{Child, Itself};
use crate::error::{Problem, Result};
use crate::output;
use crate::programs::AGGREGATOR;

const TARGETS: usize = 5;
const CLIENTS: u16 = 4;
const INTERVAL_NS: i64 = 10_000_000;
const SECOND_NS: i64 = 1_000_000_000;
/// Samples of a second of all clients.
const A_SECOND: u64 = TARGETS as u64 * CLIENTS as u64 * 100;
const MILLION: u64 = 1_000_000;
/// Samples of the comparison with a plain loop.
const PLAIN: u64 = MILLION;
const COMMIT: usize = 1 << 18;
const DEADLINE_NS: u64 = 250_000_000;
const REPORT_AT_MOST: Duration = Duration::from_secs(3_600);

const DUCKDB: &str = include_str!("analysis.py");

fn failed(what: &str, why: &dyn std::fmt::Display) -> Problem {
    Problem::new(format!("{what}: {why}"))
}

/// All sizes.
///
/// # Errors
/// When a run cannot be made or reported on, or another program's answer is not the
/// report's.
pub async fn measure(options: &Options, data: &Path, clock: &Arc<dyn Clock>) -> Result<Vec<Part>> {
    let folder = tempfile::Builder::new()
        .prefix("bench-")
        .tempdir_in(data)
        .map_err(|error| failed("cannot make a folder for large runs", &error))?;
    let mut part = Part::new("Analysis: `report` on large runs");
    let python = python(options);
    if let Err(why) = &python {
        part.note(why.clone());
    }
    let mut per_million: Vec<(u64, f64)> = Vec::new();
    for millions in &options.millions {
        let name = format!("{millions} M");
        output::say(&format!("making a run of {name} samples"));
        let wanted = millions * MILLION;
        let (at, clock_of) = (folder.path().join(&name), Arc::clone(clock));
        let begun_ns = clock.raw_ns();
        let made = tokio::task::spawn_blocking(move || make(&at, wanted, &*clock_of));
        let run = made
            .await
            .map_err(|error| failed(&name, &error))?
            .map_err(|error| failed(&name, &error))?;
        let making_s = clock.raw_ns().saturating_sub(begun_ns) as f64 / 1e9;
        output::say(&format!("made in {making_s:.0} s: {}", run.display()));
        let sized = one(
            options,
            &name,
            &run,
            wanted,
            python.as_ref().ok(),
            clock,
            &mut part,
        );
        let seconds = sized.await?;
        per_million.push((*millions, seconds / *millions as f64));
        // Large: it need not wait for the end.
        let gone = std::fs::remove_dir_all(folder.path().join(&name));
        gone.map_err(|error| failed("cannot remove a run", &error))?;
    }
    if let (Some((least, small)), Some((most, large))) = (per_million.first(), per_million.last())
        && least < most
    {
        let name = format!("time a sample, {most} M / {least} M");
        part.add_aimed(&name, "x", Some(Goal::AtMost(1.2)), large / small);
    }
    Ok(vec![part])
}

/// Rounds over one run; the report's median time in seconds.
async fn one(
    options: &Options,
    name: &str,
    run: &Path,
    samples: u64,
    python: Option<&PathBuf>,
    clock: &Arc<dyn Clock>,
    part: &mut Part,
) -> Result<f64> {
    let is_large = samples == 100 * MILLION;
    let itself = itself()?;
    for round in 1..=options.rounds {
        output::say(&format!("round {round} of {}: {name}", options.rounds));
        let reported = report(&itself, run, clock).await?;
        let goal = |bound| is_large.then_some(Goal::AtMost(bound));
        part.add_aimed(
            &format!("{name}, report"),
            "s",
            goal(60.0),
            reported.seconds,
        );
        let mib = reported.peak_kib as f64 / 1024.0;
        part.add_aimed(&format!("{name}, most memory"), "MiB", goal(6_144.0), mib);
        let Some(python) = python else { continue };
        let loops = samples <= PLAIN;
        let ways: &[&str] = if loops {
            &["duckdb", "loop"]
        } else {
            &["duckdb"]
        };
        for way in ways {
            let other = other(python, way, run, &itself, clock).await?;
            let called = if *way == "loop" {
                "a Python loop"
            } else {
                "DuckDB"
            };
            part.add(&format!("{name}, {called}"), "s", other.seconds);
            let mib = other.peak_kib as f64 / 1024.0;
            part.add(&format!("{name}, {called}, most memory"), "MiB", mib);
            let goal = (*way == "duckdb" && is_large).then_some(Goal::AtMost(1.0));
            let ratio = reported.seconds / other.seconds;
            part.add_aimed(&format!("{name}, report / {called}"), "x", goal, ratio);
            part.note(format!("{name}: {called} says the same: {}", other.said));
        }
    }
    let of = format!("{name}, report");
    let median = part.findings.iter().find(|f| f.name == of);
    Ok(median.and_then(|f| f.median()).unwrap_or(f64::NAN))
}

struct Measured {
    seconds: f64,
    peak_kib: u64,
    said: String,
}

/// Runs a program to its end; how long it took, and the most memory it had.
async fn run_to_end(
    name: &str,
    command: Command,
    clock: &Arc<dyn Clock>,
) -> Result<(Measured, Option<i32>)> {
    let log = tempfile::NamedTempFile::new().map_err(|error| failed(name, &error))?;
    let out = tempfile::NamedTempFile::new().map_err(|error| failed(name, &error))?;
    let mut command = command;
    let file = |of: &tempfile::NamedTempFile| of.reopen().map_err(|error| failed(name, &error));
    command
        .stdin(Stdio::null())
        .stdout(file(&out)?)
        .stderr(file(&log)?);
    let begun_ns = clock.raw_ns();
    let child = Child::start_as_is(name, command, Some(log.path().to_owned()))
        .map_err(|error| failed(name, &error))?;
    let mut peak_kib = 0;
    let status = loop {
        if let Some(kib) = status_kib(child.pid(), "VmHWM") {
            peak_kib = kib.max(peak_kib);
        }
        match child.ended().map_err(|error| failed(name, &error))? {
            Some(status) => break status,
            None if clock.raw_ns() - begun_ns > REPORT_AT_MOST.as_nanos() as i64 => {
                return Err(failed(name, &"it did not end within an hour"));
            }
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let seconds = clock.raw_ns().saturating_sub(begun_ns) as f64 / 1e9;
    let said = std::fs::read_to_string(out.path()).unwrap_or_default();
    if !matches!(status.code(), Some(0 | 4)) {
        return Err(failed(name, &format!("{status}: {}", child.log_tail(5))));
    }
    Ok((
        Measured {
            seconds,
            peak_kib,
            said,
        },
        status.code(),
    ))
}

async fn report(itself: &Itself, run: &Path, clock: &Arc<dyn Clock>) -> Result<Measured> {
    let mut command = itself.command();
    command
        .args([AGGREGATOR, "report", "--format", "json"])
        .arg(run);
    let (measured, code) = run_to_end("the report", command, clock).await?;
    if code == Some(4) {
        return Err(failed("the report", &"it says that data was lost"));
    }
    Ok(measured)
}

/// Another program's answer, which must be the report's. Its seconds are its own:
/// without its start, and without the comparison.
async fn other(
    python: &Path,
    way: &str,
    run: &Path,
    itself: &Itself,
    clock: &Arc<dyn Clock>,
) -> Result<Measured> {
    // Nothing of it lives longer than the benchmark.
    let args = [
        std::ffi::OsStr::new("-c"),
        DUCKDB.as_ref(),
        way.as_ref(),
        run.as_os_str(),
    ];
    let command = itself.wrapped(None, None, python, args);
    let (measured, _) = run_to_end(way, command, clock).await?;
    let said: Value = serde_json::from_str(&measured.said)
        .map_err(|error| failed(way, &format!("{error}: {}", measured.said)))?;
    if said["equal"] != true {
        return Err(failed(
            way,
            &format!("its answer is not the report's: {}", said["differences"]),
        ));
    }
    Ok(Measured {
        seconds: said["seconds"].as_f64().unwrap_or(f64::NAN),
        peak_kib: measured.peak_kib,
        said: format!(
            "{} probes, {} windows, {} quantiles",
            short(said["probes"].as_f64().unwrap_or(f64::NAN)),
            said["windows"],
            said["quantiles"]
        ),
    })
}

// -------------------------------------------------------------- a large run

fn noise(of: u64) -> u64 {
    let mut z = of.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn manifest(data_seconds: u64, targets: &[Arc<TargetName>], clock: &dyn Clock) -> Manifest {
    let now = clock.anchor();
    Manifest {
        format_version: FORMAT_VERSION,
        run_id: RunId::generate(),
        state: RunState::Running,
        created_utc: rfc3339(now.realtime_ns),
        closed_utc: None,
        end_reason: None,
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
        host: HostFacts::default(),
        clock: clock.key(),
        anchors: vec![now],
        plan: RunPlan {
            run_id: RunId::generate(),
            scenario: "bench".to_owned(),
            duration_ns: data_seconds.saturating_mul(SECOND_NS as u64),
            deadline_ns: DEADLINE_NS,
            groups: targets
                .iter()
                .map(|target| ClientGroup {
                    target: (**target).clone(),
                    style: Style::Reused,
                    kind: ClientKind::Bare,
                    first_client: 0,
                    clients: CLIENTS,
                    interval_ns: INTERVAL_NS as u64,
                    timeouts: Timeouts {
                        resolve_ns: Some(5 * SECOND_NS as u64),
                        connect_ns: Some(5 * SECOND_NS as u64),
                        query_ns: Some(5 * SECOND_NS as u64),
                    },
                })
                .collect(),
            identity: None,
            scenario_toml: String::new(),
        },
        schedule: Schedule::OpenLoop,
        subjects: vec![],
        labels: BTreeMap::new(),
        agents: vec![AgentEntry {
            agent_id: "bench".parse().expect("a good name"),
            program_version: env!("CARGO_PKG_VERSION").to_owned(),
            host: HostFacts::default(),
            targets: targets
                .iter()
                .map(|name| TargetEntry {
                    name: (**name).clone(),
                    address: "127.0.0.1:3306".to_owned(),
                    user: "bench".to_owned(),
                })
                .collect(),
            incarnations: vec![],
            shares_id: false,
        }],
        caveats: vec![],
        files: None,
    }
}

/// Whether a probe of `target`, due so long after the origin, fails: each target is
/// out now and then, for some of its clients a little longer, and there are single
/// errors.
fn is_bad(target: usize, client: u16, slot: u64, slots: u64) -> bool {
    // Not at the end: an outage that goes on is another question.
    if slot < 10 || slot + 400 > slots {
        return false;
    }
    // A target is out once in 100 s or so, for 30 ms to 3 s.
    let period = slot / 10_000;
    let of = noise(period * 31 + target as u64);
    let (from, lasts) = (of % 9_000, 3 + of / 9_000 % 300 + u64::from(client));
    let inside = (from..from + lasts).contains(&(slot % 10_000));
    inside || noise(slot * 64 + target as u64 * 8 + u64::from(client)).is_multiple_of(49_999)
}

/// Makes a run of about so many samples; returns its folder.
fn make(data: &Path, wanted: u64, clock: &dyn Clock) -> std::result::Result<PathBuf, String> {
    let said = |error: gapscope_aggregator::store::StoreError| error.to_string();
    std::fs::create_dir_all(data).map_err(|error| error.to_string())?;
    let seconds = wanted.div_ceil(A_SECOND);
    let targets: Vec<Arc<TargetName>> = (1..=TARGETS)
        .map(|number| Arc::new(format!("proxy-{number}").parse().expect("a good name")))
        .collect();
    let manifest = manifest(seconds, &targets, clock);
    let mut store = RunStore::create(data, manifest, Disk::default()).map_err(said)?;
    let agent: AgentId = "bench".parse().expect("a good name");
    let incarnation = Incarnation::generate();
    let origin = 1_000 * SECOND_NS;
    let end_ns = origin + i64::try_from(seconds).unwrap_or(0) * SECOND_NS;
    let started = HostRecord::Started(ProbingStarted {
        origin_ns: origin,
        planned_end_ns: end_ns,
        clock: clock.key(),
    });
    store.append_host(&agent, incarnation, [started]);
    let words =
        ["db-1.internal:3306", "10.11.12.13:6033", "10.11.14-MariaDB"].map(Arc::<str>::from);
    let refused: Arc<str> = Arc::from("Connection refused (os error 111)");
    for second in 0..seconds {
        let samples = (0..100_u64).flat_map(|k| {
            let (targets, words, refused) = (&targets, &words, &refused);
            (0..TARGETS).flat_map(move |target| {
                (0..CLIENTS).map(move |client| {
                    let slot = second * 100 + k;
                    let due = INTERVAL_NS * i64::try_from(slot).unwrap_or(0)
                        + INTERVAL_NS * i64::from(client) / i64::from(CLIENTS);
                    let of = noise(slot * 512 + target as u64 * 64 + u64::from(client));
                    let started = origin + due + 50_000 + (of % 80_000) as i64;
                    let bad = is_bad(target, client, slot, seconds * 100);
                    // Mostly some hundred us, one in a thousand some ms.
                    let tail = if of.is_multiple_of(1_009) {
                        4_000_000
                    } else {
                        0
                    };
                    let took = 150_000 + (of >> 20) as i64 % 300_000 + tail;
                    Sample {
                        target: Arc::clone(&targets[target]),
                        style: Style::Reused,
                        client,
                        slot,
                        scheduled: Timestamp::from_ns(origin + due),
                        started: Timestamp::from_ns(started),
                        finished: Timestamp::from_ns(started + took),
                        resolve_ns: None,
                        connect_ns: bad.then_some(took as u64),
                        query_ns: (!bad).then_some(took as u64 - 5_000),
                        phase: if bad { Phase::Connect } else { Phase::Query },
                        outcome: if bad {
                            Outcome::ConnectFailed
                        } else {
                            Outcome::Ok
                        },
                        cause: bad.then_some(Cause::Refused),
                        error_code: None,
                        sqlstate: None,
                        error: bad.then(|| Arc::clone(refused)),
                        may_have_executed: false,
                        connection: (!bad).then_some(1),
                        connection_id: (!bad).then_some(100 + u64::from(client)),
                        handshake_id: (!bad).then_some(100 + u32::from(client)),
                        backend: (!bad).then(|| Arc::clone(&words[0])),
                        peer: Some(Arc::clone(&words[1])),
                        server_version: (!bad).then(|| Arc::clone(&words[2])),
                        canary: None,
                    }
                })
            })
        });
        store.append_samples(&agent, incarnation, samples);
        let lag = HostRecord::Lag(Lag {
            at_ns: origin + i64::try_from(second + 1).unwrap_or(0) * SECOND_NS,
            ticks: 100,
            late_max_ns: 150_000,
        });
        store.append_host(&agent, incarnation, [lag]);
        if store.pending() >= COMMIT {
            store.commit().map_err(said)?;
            if store.has_many_parts() {
                store.compact().map_err(said)?;
            }
        }
    }
    let ended = HostRecord::Ended(ProbingEnded {
        end_ns,
        reason: "planned end".to_owned(),
        due: seconds * A_SECOND,
        sampled: seconds * A_SECOND,
        waited: 0,
        overslept: 0,
    });
    store.append_host(&agent, incarnation, [ended]);
    let now = rfc3339(clock.anchor().realtime_ns);
    store
        .close(|manifest| {
            manifest.state = RunState::Closed;
            manifest.closed_utc = Some(now);
            manifest.end_reason = Some("planned end".to_owned());
        })
        .map_err(said)?;
    Ok(store.folder().to_owned())
}
