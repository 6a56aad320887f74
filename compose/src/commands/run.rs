//! `run`: brings a lab up, measures while the timeline is carried out, takes it
//! down, prints the summary.

mod choose;
mod confirm;
mod report;
mod spool;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::ids::RunId;
use gapscope_proto::plain::fitted;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub(super) use self::choose::choose;
use self::choose::{Chosen, not_applicable};
use self::report::report;
use self::spool::remove_empty;
use self::watch::{origin_of, watch};
use super::check::{load_text, steps_text, titled};
use crate::children::Itself;
use crate::cli::Run;
use crate::duration;
use crate::error::{Problem, Result};
use crate::identity::{self, Found};
use crate::lab::{Lab, Make};
use crate::output;
use crate::programs::AGGREGATOR;
use crate::recover;
use crate::repeat::{Live, Repeater};
use crate::runtime::process::sql::WRITTEN_SCHEMA;
use crate::scenario::direct_names;
use crate::services::{AgentSetup, Services};
use crate::signals::Signals;
use crate::timeline::{Due, schedule};
use crate::view::Kept;

/// How long the agent's last samples may take.
const DRAIN: Duration = Duration::from_secs(15);
/// As before, where the ledger is read first.
const LEDGER_DRAIN: Duration = Duration::from_secs(40);
/// How long the aggregator may take beyond that to close the run. It merges all
/// that was measured; where it cannot write it says so much earlier.
const CLOSE_WITHIN: Duration = Duration::from_secs(120);
/// Agents begin some time after the start was asked for, and end as much later.
const AFTER_THE_END_NS: i64 = 300_000_000;

/// Makes the data folder, so that a folder that cannot be written is told at once.
pub(super) fn data_folder(data: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error| {
        Problem::new(format!("cannot write to {}: {error}", data.display()))
            .hint("choose another folder with --data DIR")
    };
    if std::fs::metadata(data).is_ok_and(|meta| !meta.is_dir()) {
        return Err(
            Problem::usage(format!("{} is not a folder", data.display()))
                .hint("choose another folder with --data DIR"),
        );
    }
    std::fs::create_dir_all(data).map_err(failed)?;
    tempfile::Builder::new()
        .prefix(".writable-")
        .tempfile_in(data)
        .map_err(failed)?;
    std::fs::canonicalize(data).map_err(failed)
}

/// Carries out `gapscope-lab run`; returns the exit code.
pub async fn run(options: &Run) -> Result<u8> {
    let mut signals = Signals::catch()?;
    let chosen = choose(options)?;
    let itself = Itself::find()
        .map_err(|error| Problem::new(format!("cannot find this program's own file: {error}")))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    if options.dry_run {
        output::data(&fitted(&confirm::plan(&chosen), output::stdout_columns()));
        let make = make(options, &chosen, &itself, &clock);
        let looked = tokio::select! {
            looked = make.look() => looked,
            signal = signals.next() => return Err(interrupted(signal, "before the run began")),
        };
        return match looked {
            Ok(()) => Ok(0),
            Err(problem) => Err(Problem {
                what: format!("it could not be done here: {}", problem.what),
                ..problem
            }),
        };
    }
    confirm::confirm(&chosen, options)?;
    let data = data_folder(&options.data)?;
    let seed = options.seed.unwrap_or_else(rand::random);
    let mut rng = StdRng::seed_from_u64(seed);
    let due = match chosen.repeat {
        // Drawn anew each time.
        Some(_) => Vec::new(),
        None => schedule(&chosen.scenario.timeline, |most| rng.random_range(0..=most)),
    };

    let setting_up = set_up(options, &chosen, &data, &itself, &clock);
    let mut up = tokio::select! {
        up = setting_up => up?,
        signal = signals.next() => return Err(interrupted(signal, "before the run began")),
    };
    let measured = measure(&mut up, &chosen, &due, (seed, rng), &clock, &mut signals).await;
    let Up {
        services,
        lab,
        agent_id,
        ..
    } = up;
    let warnings = services.warnings();
    let taking_down = async {
        services.end().await;
        lab.down().await;
    };
    tokio::select! {
        () = taking_down => {}
        // What is dropped is killed.
        signal = signals.next() => output::say(&format!("{signal}: not waiting any longer")),
    }
    let measured = measured?;
    if measured.drained {
        // Wholly acknowledged, so nothing is in it. An error means that something
        // is, or that it is gone already.
        remove_empty(&data.join("spool").join(&agent_id));
    }
    for warning in warnings.iter().rev().take(5).rev() {
        output::say(&format!("note: {warning}"));
    }
    let code = report(&itself, options, &measured.folder).await?;
    output::say(&format!("run folder: {}", measured.folder.display()));
    match measured.trouble {
        Some(problem) => Err(problem),
        None => Ok(code),
    }
}

pub(super) fn interrupted(signal: &str, when: &str) -> Problem {
    Problem::new(format!("interrupted by {signal} {when}"))
}

/// Everything that has to be up before a run can start.
struct Up {
    // Dropped in this order.
    services: Services,
    lab: Lab,
    found: Found,
    agent_id: String,
}

/// What the lab is made with.
pub(super) fn make<'a>(
    options: &Run,
    chosen: &'a Chosen,
    itself: &Itself,
    clock: &Arc<dyn Clock>,
) -> Make<'a> {
    Make {
        scenario: &chosen.scenario,
        runtime: chosen.runtime,
        hurt_others: options.hurt_others,
        backend: chosen.backend,
        itself: itself.clone(),
        named: options.program.iter().cloned().collect(),
        clock: Arc::clone(clock),
    }
}

async fn set_up(
    options: &Run,
    chosen: &Chosen,
    data: &Path,
    itself: &Itself,
    clock: &Arc<dyn Clock>,
) -> Result<Up> {
    let scenario = &chosen.scenario;
    output::say(&titled(scenario));
    for note in &chosen.notes {
        output::say(note);
    }
    let lab = Lab::up(make(options, chosen, itself, clock), output::say).await?;
    for step in &scenario.timeline {
        for backend in &lab.backends {
            if backend.name() == step.subject
                && let Err(why) = backend.can(step.action)
            {
                return Err(not_applicable(step, &backend.program(), &why));
            }
        }
    }
    let found = identity::find(&lab.backends, &lab.login, scenario.identity.as_deref()).await?;
    // Always the same, so that what a killed lab's agent left in its spool is
    // delivered by the next one's.
    let agent_id = "lab".to_owned();
    let targets = lab.targets(scenario);
    let setup = AgentSetup {
        agent_id: &agent_id,
        targets: &targets,
        login: &lab.login,
        max_connects_per_second: scenario.max_connects_per_second,
        writes: scenario
            .clients
            .write()
            .then(|| (WRITTEN_SCHEMA, direct_names(scenario))),
    };
    let services = Services::start(&lab.folder, data, options.http, &setup, clock.as_ref()).await?;
    if let Some(page) = services.page {
        output::say(&format!("the page for browsers: http://{page}/"));
    }
    Ok(Up {
        services,
        lab,
        found,
        agent_id,
    })
}

/// How to call the aggregator's `watch`, from where this program was called: its own
/// program if it is beside this one, else this one's second name for it.
fn watch_command() -> String {
    let called = std::env::args_os().next().unwrap_or_default();
    let called = Path::new(&called);
    let beside = called.with_file_name("gapscope-aggregator");
    // Without a folder it was found on PATH, where the other is too or is not.
    if called.components().count() > 1 && beside.is_file() {
        format!("{} watch", beside.display())
    } else {
        format!("{} {AGGREGATOR} watch", called.display())
    }
}

fn labels(chosen: &Chosen, lab: &Lab, due: &[Due], seed: u64) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        ("runtime".to_owned(), chosen.runtime.to_string()),
        ("seed".to_owned(), seed.to_string()),
        (
            "lab_version".to_owned(),
            env!("CARGO_PKG_VERSION").to_owned(),
        ),
    ]);
    let changes = chosen.changes.join(" ");
    if !changes.is_empty() {
        labels.insert("changes".to_owned(), changes);
    }
    if let Some(settings) = chosen.repeat {
        labels.insert("repeat".to_owned(), settings.times.to_string());
    }
    for backend in &lab.backends {
        labels.insert(format!("backend.{}", backend.name()), backend.program());
    }
    for proxy in &lab.proxies {
        labels.insert(format!("target.{}", proxy.name()), proxy.program());
    }
    for (number, step) in (1..).zip(due) {
        labels.insert(
            format!("step.{number:02}"),
            format!(
                "{} {} due {:.3} s after the start",
                step.action,
                step.subject,
                step.at_ns as f64 / 1e9
            ),
        );
    }
    labels
}

/// What became of a run that was started.
struct Measured {
    folder: PathBuf,
    drained: bool,
    /// Why it ended early, if it did.
    trouble: Option<Problem>,
}

async fn measure(
    up: &mut Up,
    chosen: &Chosen,
    due: &[Due],
    (seed, rng): (u64, StdRng),
    clock: &Arc<dyn Clock>,
    signals: &mut Signals,
) -> Result<Measured> {
    let scenario = &chosen.scenario;
    let plan = scenario
        .plan(RunId::generate(), Some(up.found.expression.clone()))
        .map_err(|error| Problem::usage(error.to_string()))?;
    output::say(&format!("load on {}", load_text(scenario)));
    for step in steps_text(scenario) {
        output::say(&format!("step: {step}"));
    }
    let mut control = up.services.control.clone();
    let labels = labels(chosen, &up.lab, due, seed);
    let started = control.start(&plan, &up.found.subjects, labels).await?;
    // The zero of the report's times, so that what is said here can be found there.
    let origin_ns = match origin_of(Path::new(&started.folder), clock.as_ref()).await {
        Some(origin_ns) => origin_ns,
        None => {
            output::say(
                "note: the agent's begin is not known yet: the times that are said here count \
                 from now, those of the report from its begin",
            );
            clock.raw_ns()
        }
    };
    output::say(&format!(
        "run {} for {}, seed {seed}",
        started.run_id,
        duration::text(scenario.duration_ns)
    ));
    output::say("watch it from another terminal:");
    output::command(&format!(
        "{} --aggregator {} {}",
        watch_command(),
        up.services.url,
        started.run_id
    ));
    let (show, live) = tokio::sync::watch::channel(Vec::new());
    let repeater = chosen.repeat.map(|settings| Repeater {
        scenario,
        settings,
        live: Live(live),
        rng,
        clock: Arc::clone(clock),
    });
    let kept = Kept::new(clock.key());
    let trouble = watch(
        up,
        scenario,
        due,
        (repeater, show),
        (&started.run_id, Path::new(&started.folder)),
        &kept,
        origin_ns,
        clock,
        signals,
        chosen.ascii,
    )
    .await;
    let writes = scenario.clients.transaction > 0;
    if trouble.is_none() {
        output::say(&format!(
            "{}: probing is over; the last samples are taken in and the run is closed",
            if chosen.repeat.is_some() {
                "all repetitions were made"
            } else {
                "the planned end"
            }
        ));
    }
    if writes {
        let elapsed_ns = u64::try_from(clock.raw_ns().saturating_sub(origin_ns)).unwrap_or(0);
        recover::all(&mut up.lab.backends, due, elapsed_ns, output::say).await;
    }
    // The agent reads the ledger before it says that it is done.
    let drain = if writes { LEDGER_DRAIN } else { DRAIN };
    let reason = match &trouble {
        None if chosen.repeat.is_some() => "all repetitions were made".to_owned(),
        None => "the planned end".to_owned(),
        Some(problem) => problem.what.clone(),
    };
    let folder = PathBuf::from(&started.folder);
    // A longer run has more to be merged.
    let lasted = clock.raw_ns().saturating_sub(origin_ns);
    let close_within =
        drain + CLOSE_WITHIN + Duration::from_nanos(u64::try_from(lasted).unwrap_or(0));
    // Before the close, which lists the run's files.
    match kept.write(&folder) {
        Ok(0) => {}
        Ok(rows) => output::say(&format!(
            "warning: {rows} changes of proxies' views were too many for proxy_view.parquet"
        )),
        Err(error) => output::say(&format!(
            "warning: what proxies believed was not kept: {error}"
        )),
    }
    let stopping =
        tokio::time::timeout(close_within, control.stop(&started.run_id, &reason, drain));
    let stopped = tokio::select! {
        stopped = stopping => stopped.unwrap_or_else(|_| {
            Err(Problem::new(format!(
                "the aggregator has not closed the run within {} s",
                close_within.as_secs()
            )))
        }),
        signal = signals.next() => return Err(interrupted(signal, "while the run was being closed")
            .hint(format!("what was measured is in {} and in the agent's spool", folder.display()))),
    };
    match stopped {
        Ok(stopped) => {
            for missing in &stopped.missing {
                output::say(&format!("warning: not taken in: {missing}"));
            }
            Ok(Measured {
                folder,
                drained: stopped.drained,
                trouble,
            })
        }
        // What is there is still worth a summary.
        Err(problem) => {
            if let Some(earlier) = &trouble {
                output::say(&earlier.to_string());
            }
            let problem = problem.hint(format!(
                "is there space in {}? The summary covers what was taken in; what was not is in \
                 the agent's spool beside it, as far as that could be written",
                folder.display()
            ));
            Ok(Measured {
                folder,
                drained: false,
                trouble: Some(problem),
            })
        }
    }
}
