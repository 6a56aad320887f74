//! A whole aggregator under a crowd that speaks the real protocol: how many samples
//! a second it makes durable, how soon it says so, what a sample costs on the wire, in
//! an agent's spool and in the run's files.
//!
//! Crowd and aggregator share the processors. After each case what is stored is
//! counted: a sample that was acknowledged and is not there fails the benchmark.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gapscope_aggregator::measure::sample_files;
use gapscope_aggregator::store::RunFolder;
use gapscope_proto::clock::Clock;
use gapscope_proto::frame::{Found, StreamKind, walk};
use rand::Rng;
use rand::seq::SliceRandom;
use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::closed::{itself, null_server};
use super::crowd::{Crowd, Member, PROBES, Tally, bytes_on_the_wire};
use super::findings::{Goal, Part};
use super::options::Options;
use super::paced::{plan, services, status_kib};
use crate::clock_wait::until;
use crate::error::{Problem, Result};
use crate::folder::LabFolder;
use crate::output;
use crate::overhead::cpu;
use crate::services::{Served, serve};
use crate::witness::Login;

const DRAIN: Duration = Duration::from_secs(120);
/// What all streams together seal in a second, about, where they are as fast as they
/// are taken.
const A_SECOND: u64 = 400_000;
/// Records an agent seals at most at once.
const MOST_SEALED: u64 = 4_096;
const SETTLED_NS: i64 = 1_500_000_000;
/// Long enough that the files' own bytes are few.
const STEADY_NS: u64 = 30_000_000_000;
const STEADY_CLIENTS: u16 = 5;

/// So many streams; as fast as they are taken, or each a hundred samples a second.
#[derive(Debug, Clone, Copy)]
struct Case {
    streams: u64,
    paced: bool,
}

const CASES: [Case; 5] = [
    Case {
        streams: 1,
        paced: false,
    },
    Case {
        streams: 100,
        paced: false,
    },
    Case {
        streams: 2_000,
        paced: false,
    },
    Case {
        streams: 100,
        paced: true,
    },
    Case {
        streams: 2_000,
        paced: true,
    },
];

impl Case {
    fn name(self) -> String {
        let streams = if self.streams == 1 {
            "stream"
        } else {
            "streams"
        };
        let pace = if self.paced { " x 100 Hz" } else { "" };
        format!("{} {streams}{pace}", self.streams)
    }

    /// Clients in each stream's frames.
    fn clients(self) -> u16 {
        if self.paced {
            return 1;
        }
        let samples = (A_SECOND / self.streams).clamp(PROBES, MOST_SEALED);
        u16::try_from(samples / PROBES).unwrap_or(1)
    }
}

/// All rounds of all cases.
///
/// # Errors
/// When something cannot be started, is not taken, or is lost.
pub async fn measure(
    options: &Options,
    clock: &Arc<dyn Clock>,
    rng: &mut impl Rng,
) -> Result<Vec<Part>> {
    let mut part = Part::new("Ingest: samples made durable, crowd on the same processors");
    for round in 1..=options.rounds {
        let mut cases = CASES;
        cases.shuffle(rng);
        for case in cases {
            let name = case.name();
            output::say(&format!("round {round} of {}: {name}", options.rounds));
            one(case, options.each, clock, &mut part)
                .await
                .map_err(|problem| Problem::new(format!("{name}: {}", problem.what)))?;
        }
    }
    let place = |name: &str| {
        let of = |case: &Case| name.starts_with(&format!("{},", case.name()));
        CASES.iter().position(of).unwrap_or(CASES.len())
    };
    part.findings.sort_by_key(|finding| place(&finding.name));
    let mut bytes = Part::new(format!(
        "Bytes a sample: {STEADY_CLIENTS} clients x 100 Hz for {} s, null server",
        STEADY_NS / 1_000_000_000
    ));
    output::say("bytes a sample: a steady run");
    steady(clock, &mut bytes).await?;
    Ok(vec![part, bytes])
}

fn own_cpu_ns() -> u64 {
    cpu::time_of(&[std::process::id()]).unwrap_or(0)
}

async fn one(case: Case, each: u64, clock: &Arc<dyn Clock>, part: &mut Part) -> Result<()> {
    let folder = LabFolder::make(&itself()?)?;
    let data = folder.private("runs", None)?;
    let Served {
        aggregator,
        mut control,
        url,
        ..
    } = serve(&folder, &data, None, clock.as_ref()).await?;
    let crowd = Crowd {
        url,
        templates: Crowd::templates(case.clients()),
        every: case.paced.then_some(Duration::from_secs(1)),
        tally: Arc::new(Tally::default()),
        stop: CancellationToken::new(),
        clock: Arc::clone(clock),
    };
    let mut joining = JoinSet::new();
    let mut members = Vec::new();
    for number in 0..case.streams {
        joining.spawn(Member::join(crowd.clone(), number));
        // A crowd that comes in good order: connecting is not what is measured.
        if joining.len() >= 32 {
            members.extend(joined(&mut joining).await?);
        }
    }
    while !joining.is_empty() {
        members.extend(joined(&mut joining).await?);
    }
    let mut working = JoinSet::new();
    for member in members {
        working.spawn(member.work());
    }
    output::say(&format!("{} agents have joined", case.streams));
    let mut plan = plan(case.clients(), 10_000_000, 3_600_000_000_000);
    plan.groups[0].target = "t".parse().expect("a good name");
    let started = control.start(&plan, &[], [].into()).await?;
    let pid = aggregator.pid();
    let measured = async {
        let begun_ns = clock.raw_ns();
        until(clock.as_ref(), begun_ns + SETTLED_NS).await;
        drop(crowd.tally.take_delays());
        let look = || {
            let cpu = cpu::time_of(&[u32::try_from(pid).unwrap_or(0)]).unwrap_or(0);
            let durable = crowd.tally.durable.load(Ordering::Relaxed);
            (clock.raw_ns(), durable, cpu, own_cpu_ns())
        };
        let before = look();
        let each = i64::try_from(each).unwrap_or(i64::MAX);
        until(clock.as_ref(), before.0.saturating_add(each)).await;
        let after = look();
        (before, after, crowd.tally.take_delays())
    };
    let (before, after, delays) = tokio::select! {
        measured = measured => measured,
        ended = working.join_next() => return Err(Problem::new(match ended {
            Some(Ok(Err(why))) => why,
            _ => "an agent of the crowd ended early".to_owned(),
        })),
    };
    output::say("stopping, and seeing that everything is stored");
    crowd.stop.cancel();
    let mut sent = 0;
    while let Some(ended) = working.join_next().await {
        sent += ended
            .map_err(|error| error.to_string())
            .and_then(|ended| ended)
            .map_err(Problem::new)?;
    }
    let memory = status_kib(pid, "VmHWM").unwrap_or(0);
    let closing_ns = clock.raw_ns();
    let stopped = control.stop(&started.run_id, "done", DRAIN).await?;
    let closed_s = clock.raw_ns().saturating_sub(closing_ns) as f64 / 1e9;
    aggregator.end(Duration::from_secs(10)).await;
    if !stopped.drained {
        return Err(Problem::new(stopped.missing.join("; ")));
    }
    let run = RunFolder::open(std::path::Path::new(&started.folder))
        .map_err(|error| Problem::new(error.to_string()))?;
    if run.samples_stored() != sent {
        return Err(Problem::new(format!(
            "{} samples are stored where {sent} were sent and acknowledged",
            run.samples_stored()
        )));
    }
    let name = case.name();
    let seconds = (after.0 - before.0) as f64 / 1e9;
    let rate = (after.1 - before.1) as f64 / seconds;
    if !case.paced {
        let goal = (case.streams == 100).then_some(Goal::AtLeast(500_000.0));
        part.add_aimed(&format!("{name}, durable a second"), "/s", goal, rate);
        let cost = |ns: u64| ns as f64 / (after.1 - before.1).max(1) as f64;
        part.add(
            &format!("{name}, aggregator CPU a sample"),
            "ns",
            cost(after.2 - before.2),
        );
        part.add(
            &format!("{name}, crowd CPU a sample"),
            "ns",
            cost(after.3 - before.3),
        );
        part.add(&format!("{name}, close"), "s", closed_s);
    } else {
        let share = (after.2 - before.2) as f64 / seconds / 1e7;
        part.add(&format!("{name}, aggregator, of a core"), "%", share);
    }
    let ms = |share: f64| {
        let rank = ((delays.len() as f64 * share).ceil() as usize).max(1) - 1;
        delays.get(rank).map_or(f64::NAN, |ns| *ns as f64 / 1e6)
    };
    part.add(&format!("{name}, acknowledged p50"), "ms", ms(0.5));
    part.add(&format!("{name}, acknowledged p99"), "ms", ms(0.99));
    part.add(
        &format!("{name}, most memory"),
        "MiB",
        memory as f64 / 1024.0,
    );
    Ok(())
}

async fn joined(
    joining: &mut JoinSet<std::result::Result<Member, String>>,
) -> Result<Option<Member>> {
    match joining.join_next().await {
        None => Ok(None),
        Some(Ok(Ok(member))) => Ok(Some(member)),
        Some(Ok(Err(why))) => Err(Problem::new(why)),
        Some(Err(error)) => Err(Problem::new(error.to_string())),
    }
}

/// A real agent's run, while its aggregator is stopped, so that all it seals stays in
/// its spool and can be looked at; then the aggregator goes on and stores it.
async fn steady(clock: &Arc<dyn Clock>, part: &mut Part) -> Result<()> {
    let login = Login {
        user: "gapscope".to_owned(),
        password: format!("{:032x}", rand::random::<u128>()),
    };
    let null = null_server(&login)?;
    let folder = LabFolder::make(&itself()?)?;
    let mut services = services(&folder, &login, null.addr(), clock.as_ref()).await?;
    let plan = plan(STEADY_CLIENTS, 10_000_000, STEADY_NS);
    let started = services.control.start(&plan, &[], [].into()).await?;
    let failed = |error: &dyn std::fmt::Display| Problem::new(format!("the steady run: {error}"));
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let stopped = services.aggregator().signal(Signal::STOP);
    stopped.map_err(|error| failed(&error))?;
    tokio::time::sleep(Duration::from_nanos(STEADY_NS)).await;
    let run = std::path::Path::new(&started.folder);
    let spool = run.parent().unwrap_or(run).join("spool").join("bench");
    let found = sealed(&spool).map_err(|error| failed(&error))?;
    let went_on = services.aggregator().signal(Signal::CONT);
    went_on.map_err(|error| failed(&error))?;
    let stopped = services
        .control
        .stop(&started.run_id, "done", DRAIN)
        .await?;
    services.end().await;
    if !stopped.drained {
        return Err(failed(&stopped.missing.join("; ")));
    }
    if found.samples == 0 {
        return Err(failed(&"nothing was sealed in the spool"));
    }
    let run = RunFolder::open(run).map_err(|error| failed(&error))?;
    let (bytes, rows) = sample_files(&run).map_err(|error| failed(&error))?;
    let each = |bytes: u64, samples: u64| bytes as f64 / samples.max(1) as f64;
    let most = |bytes| Some(Goal::AtMost(bytes));
    part.add_aimed(
        "on the wire",
        "B",
        most(10.0),
        each(found.wire, found.samples),
    );
    part.add_aimed(
        "in sealed spool segments",
        "B",
        most(10.0),
        each(found.spool, found.samples),
    );
    part.add_aimed(
        "in the closed run's Parquet",
        "B",
        most(16.0),
        each(bytes, rows),
    );
    part.note(format!(
        "{} samples in the spool, {rows} in the run",
        found.samples
    ));
    Ok(())
}

#[derive(Default)]
struct Sealed {
    samples: u64,
    spool: u64,
    wire: u64,
}

fn sealed(spool: &std::path::Path) -> std::io::Result<Sealed> {
    let mut found = Sealed::default();
    for entry in std::fs::read_dir(spool)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if !name.starts_with("segment-") {
            continue;
        }
        let bytes = std::fs::read(&path)?;
        for (range, what) in walk(&bytes) {
            let Found::Frame(frame) = what else { continue };
            if frame.stream.kind != StreamKind::Samples {
                continue;
            }
            found.samples += frame.count() as u64;
            found.spool += range.len() as u64;
            found.wire += bytes_on_the_wire(*frame);
        }
    }
    Ok(found)
}
