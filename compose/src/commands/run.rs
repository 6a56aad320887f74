//! `run`: brings a lab up, measures while the timeline is carried out, takes it
//! down, prints the summary.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::fault::Fault;
use gapscope_proto::ids::RunId;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::check::{load_text, steps_text};
use super::scenario_text;
use crate::children::{Child, Itself};
use crate::cli::Run;
use crate::clock_wait::until;
use crate::control::{Control, Counters};
use crate::duration;
use crate::error::{Problem, Result, exit};
use crate::identity::{self, Found};
use crate::lab::{Lab, Make};
use crate::output::{self, Screen};
use crate::play::{Player, Record};
use crate::programs::AGGREGATOR;
use crate::progress::Progress;
use crate::recover;
use crate::repeat::{self, Live, Repeater};
use crate::runtime::process::mariadb::{self, WRITTEN_SCHEMA};
use crate::runtime::{default_backend, default_proxies};
use crate::scenario::{
    BackendKind, Overrides, ProxyKind, RuntimeKind, Scenario, Step, direct_names, target_names,
};
use crate::services::{AgentSetup, Services};
use crate::signals::Signals;
use crate::timeline::{Due, schedule};

/// How long the agent's last samples may take.
const DRAIN: Duration = Duration::from_secs(15);
/// As before, where the ledger is read first.
const LEDGER_DRAIN: Duration = Duration::from_secs(40);
/// How long the aggregator may take beyond that to close the run. It merges all
/// that was measured; where it cannot write it says so much earlier.
const CLOSE_WITHIN: Duration = Duration::from_secs(120);
/// Agents begin some time after the start was asked for, and end as much later.
const AFTER_THE_END_NS: i64 = 300_000_000;

/// What is to be run, once the command line and the scenario are understood.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) scenario: Scenario,
    pub(super) backend: BackendKind,
    pub(super) runtime: RuntimeKind,
    /// Whether the timeline is played again and again.
    repeat: Option<repeat::Settings>,
    /// Said before anything starts.
    notes: Vec<String>,
    /// What the command line changes about the scenario, kept with the run.
    changes: Vec<String>,
}

pub(super) fn choose(options: &Run) -> Result<Chosen> {
    let (origin, text) = scenario_text(&options.scenario)?;
    let mut overrides = Overrides {
        duration_ns: options.duration,
        fault: options.fault,
        like_lab08: options.like_lab08,
        no_jitter: options.no_jitter,
        proxies: options.proxy.clone(),
        faster: options.faster,
    };
    let parse = |overrides: &Overrides| {
        Scenario::parse_with(&origin, &text, overrides).map_err(|errors| {
            if errors.is_command_line() {
                Problem::usage(errors.to_string())
            } else {
                Problem::usage(format!("the scenario is wrong\n{errors}"))
            }
        })
    };
    let mut scenario = parse(&overrides)?;
    let real = |kind: &ProxyKind| kind.runtime() == RuntimeKind::Process;
    let runtime = options.runtime.unwrap_or_else(|| {
        if options.backend == Some(BackendKind::Mariadb)
            || scenario.proxies.iter().any(|proxy| real(&proxy.kind))
        {
            RuntimeKind::Process
        } else {
            RuntimeKind::Embedded
        }
    });
    let mut notes = Vec::new();
    let fits = |scenario: &Scenario| {
        scenario
            .proxies
            .iter()
            .all(|proxy| proxy.kind.runtime() == runtime)
    };
    if overrides.proxies.is_empty() && !fits(&scenario) {
        overrides.proxies = default_proxies(runtime).to_vec();
        let before = scenario.proxies.len();
        scenario = parse(&overrides)?;
        notes.push(format!(
            "runtime `{runtime}` has other proxies than the scenario's {before}: {} instead \
             (--proxy chooses)",
            target_names(&scenario).join(", ")
        ));
    }
    if let Some(fault) = options.fault {
        notes.push(format!("every fault of the scenario is `{fault}` instead"));
    }
    let backend = options.backend.unwrap_or(default_backend(runtime));
    if backend == BackendKind::Mariadb {
        for step in &scenario.timeline {
            if scenario.backends.contains(&step.subject) {
                mariadb::can(step.action).map_err(|why| not_applicable(step, "MariaDB", &why))?;
            }
        }
    }
    let repeat = options
        .repeat
        .map(|times| repeat::Settings::of(&scenario, times, options.aim));
    if let Some(settings) = repeat {
        if scenario.timeline.is_empty() {
            return Err(Problem::usage(format!(
                "--repeat: scenario `{}` has no steps, so there is nothing to repeat",
                scenario.name
            )));
        }
        scenario.duration_ns = repeat::longest_ns(&scenario, settings);
        notes.push(format!(
            "the timeline is played {} times; the run ends when that is done, within {} at most",
            settings.times,
            duration::text(scenario.duration_ns / 1_000_000_000 * 1_000_000_000)
        ));
    }
    Ok(Chosen {
        repeat,
        backend,
        runtime,
        scenario,
        notes,
        changes: changes(options),
    })
}

/// The options that change what the scenario's text, which is kept too, says.
fn changes(options: &Run) -> Vec<String> {
    let mut changes = Vec::new();
    if options.like_lab08 {
        changes.push("--like-lab08".to_owned());
    }
    if let Some(ns) = options.duration {
        changes.push(format!(
            "--duration {}",
            duration::text(ns).replace(' ', "")
        ));
    }
    if let Some(fault) = options.fault {
        changes.push(format!("--fault {fault}"));
    }
    if let Some(by) = options.faster {
        changes.push(format!("--faster {by}"));
    }
    if let Some(times) = options.repeat {
        changes.push(format!("--repeat {times}"));
    }
    if options.no_jitter {
        changes.push("--no-jitter".to_owned());
    }
    changes
}

fn not_applicable(step: &Step, program: &str, why: &str) -> Problem {
    Problem::usage(format!(
        "step `{}` of line {} cannot be done to backend `{}` ({program}): {why}",
        step.action, step.line, step.subject
    ))
}

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
    let data = data_folder(&options.data)?;
    let itself = Itself::find()
        .map_err(|error| Problem::new(format!("cannot find this program's own file: {error}")))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
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

/// An agent's books, which say nothing once its spool is empty.
const BOOKS: [&str; 2] = ["files.json", "runs.json"];

/// Removes a spool that holds no samples: nothing but empty folders, empty files
/// and books.
fn remove_empty(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    let paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    for path in paths.iter().filter(|path| path.is_dir()) {
        remove_empty(path);
    }
    let is_nothing = |path: &PathBuf| {
        path.file_name()
            .and_then(std::ffi::OsStr::to_str)
            .is_some_and(|name| BOOKS.contains(&name))
            || path.metadata().is_ok_and(|meta| meta.len() == 0)
    };
    let files: Vec<&PathBuf> = paths.iter().filter(|path| path.is_file()).collect();
    // Books go only together with all the rest.
    if files.iter().all(|path| is_nothing(path)) {
        for path in files {
            let _ = std::fs::remove_file(path);
        }
    }
    let _ = std::fs::remove_dir(folder);
}

/// Everything that has to be up before a run can start.
struct Up {
    // Dropped in this order.
    services: Services,
    lab: Lab,
    found: Found,
    agent_id: String,
}

async fn set_up(
    options: &Run,
    chosen: &Chosen,
    data: &Path,
    itself: &Itself,
    clock: &Arc<dyn Clock>,
) -> Result<Up> {
    let scenario = &chosen.scenario;
    output::say(&format!("{}: {}", scenario.name, scenario.description));
    for note in &chosen.notes {
        output::say(note);
    }
    let make = Make {
        scenario,
        backend: chosen.backend,
        itself: itself.clone(),
        named: options.program.iter().cloned().collect(),
        clock: Arc::clone(clock),
    };
    let lab = Lab::up(make, output::say).await?;
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
    let services = Services::start(&lab.folder, data, &setup, clock.as_ref()).await?;
    Ok(Up {
        services,
        lab,
        found,
        agent_id,
    })
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

/// Faults go to the aggregator.
struct ToAggregator {
    control: Control,
    run_id: String,
}

impl Record for ToAggregator {
    fn record<'a>(&'a mut self, fault: &'a Fault) -> LocalBoxFuture<'a, Result<u32>> {
        self.control.record(&self.run_id, fault).boxed_local()
    }
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
    let origin_ns = clock.raw_ns();
    output::say(&format!(
        "run {} for {}, seed {seed}",
        started.run_id,
        duration::text(scenario.duration_ns)
    ));
    let (show, live) = tokio::sync::watch::channel(Vec::new());
    let repeater = chosen.repeat.map(|settings| Repeater {
        scenario,
        settings,
        live: Live(live),
        rng,
        clock: Arc::clone(clock),
    });
    let trouble = watch(
        up,
        scenario,
        due,
        (repeater, show),
        &started.run_id,
        origin_ns,
        clock,
        signals,
    )
    .await;
    let writes = scenario.clients.transaction > 0;
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
    let stopping = tokio::time::timeout(
        drain + CLOSE_WITHIN,
        control.stop(&started.run_id, &reason, drain),
    );
    let stopped = tokio::select! {
        stopped = stopping => stopped.unwrap_or_else(|_| {
            Err(Problem::new(format!(
                "the aggregator has not closed the run within {} s",
                (drain + CLOSE_WITHIN).as_secs()
            )))
        }),
        signal = signals.next() => return Err(interrupted(signal, "while the run was being closed")
            .hint(format!("what was measured is in {} and in the agent's spool", started.folder))),
    };
    let folder = PathBuf::from(started.folder);
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

/// Plays the timeline and shows progress until the run is over; returns why it
/// ended early, if it did.
#[expect(clippy::too_many_arguments, reason = "each is a thing of its own")]
async fn watch(
    up: &mut Up,
    scenario: &Scenario,
    due: &[Due],
    (repeater, show): (
        Option<Repeater<'_>>,
        tokio::sync::watch::Sender<Vec<Counters>>,
    ),
    run_id: &str,
    origin_ns: i64,
    clock: &Arc<dyn Clock>,
    signals: &mut Signals,
) -> Option<Problem> {
    let span = i64::try_from(scenario.duration_ns).unwrap_or(i64::MAX);
    let end_ns = origin_ns
        .saturating_add(span)
        .saturating_add(AFTER_THE_END_NS);
    let elapsed = |now: i64| u64::try_from(now.saturating_sub(origin_ns)).unwrap_or(0);
    let names = up
        .found
        .subjects
        .iter()
        .filter_map(|subject| Some((subject.identity.clone()?, subject.name.clone())))
        .collect();
    let first = due.first().map_or_else(
        || "nothing is done".to_owned(),
        |step| format!("next: {} `{}`", step.action, step.subject),
    );
    let mut progress = Progress::new(target_names(scenario), names, scenario.duration_ns, first);
    let mut screen = Screen::new();
    let mut record = ToAggregator {
        control: up.services.control.clone(),
        run_id: run_id.to_owned(),
    };
    let (telling, mut told) = tokio::sync::mpsc::unbounded_channel::<String>();
    let mut tell = |text: &str| {
        let after = elapsed(clock.raw_ns()) as f64 / 1e9;
        // The receiver lives as long as this.
        let _ = telling.send(format!("{after:>6.2} s  {text}"));
    };
    let mut repeater = repeater;
    let mut player = Player::new(
        Arc::clone(clock),
        &mut up.lab.backends,
        &mut up.lab.proxies,
        &up.found.subjects,
        &mut record,
        &mut tell,
    );
    // With many repetitions the changes of mind would be the bulk of the run's notes.
    if repeater.is_none() {
        player.look_at_views();
    }
    let playing = async {
        match &mut repeater {
            Some(repeater) => repeater.play(&mut player).await,
            None => match player.play(due, origin_ns).await {
                Ok(never) => match never {},
                Err(problem) => Err(problem),
            },
        }
    };
    tokio::pin!(playing);
    let mut readings = up.services.control.clone().watch(run_id).await.ok();
    let mut ticker = tokio::time::interval(Duration::from_millis(500));
    loop {
        let reading = async {
            match &mut readings {
                Some(readings) => readings.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = until(clock.as_ref(), end_ns) => return None,
            signal = signals.next() => {
                let after = elapsed(clock.raw_ns()) as f64 / 1e9;
                screen.note(&format!("{signal}: stopping the run"));
                return Some(interrupted(signal, &format!("{after:.1} s after the start"))
                    .hint("the summary covers what was measured until then"));
            }
            played = &mut playing => return match played {
                // All repetitions were made.
                Ok(()) => None,
                Err(problem) => {
                    screen.note(&problem.to_string());
                    Some(problem)
                }
            },
            Some(text) = told.recv() => {
                progress.set_step(text.trim_start());
                screen.note(&text);
            }
            reading = reading => match reading {
                Some(reading) => {
                    progress.update(&reading);
                    show.send_replace(reading);
                    screen.show(&progress, elapsed(clock.raw_ns()));
                }
                // Progress is a comfort; the run goes on without.
                None => readings = None,
            },
            _ = ticker.tick() => {
                if let Some(problem) = up.services.failure() {
                    screen.note(&problem.to_string());
                    return Some(problem);
                }
            }
        }
    }
}

/// Prints the summary of a run folder, by the aggregator's own `report`, which
/// also decides the exit code.
async fn report(itself: &Itself, options: &Run, folder: &Path) -> Result<u8> {
    let mut command = itself.command();
    command
        .args([AGGREGATOR, "report"])
        .arg(folder)
        .args(["--format", options.format.as_str()]);
    if let Some(columns) = output::stdout_columns() {
        command.args(["--width", &columns.to_string()]);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::inherit())
        .stderr(Stdio::inherit());
    let failed = |why: String| {
        Problem::new(format!("cannot report on {}: {why}", folder.display())).hint(format!(
            "try again with: gapscope-aggregator report {}",
            folder.display()
        ))
    };
    let child = Child::start_as_is("the report", command, None)
        .map_err(|error| failed(error.to_string()))?;
    if !child.wait(Duration::from_secs(600)).await {
        return Err(failed("it took more than 10 minutes".to_owned()));
    }
    match child.ended() {
        Ok(Some(status)) => match status.code() {
            Some(code) => Ok(u8::try_from(code).unwrap_or(exit::FAILURE)),
            None => Err(failed(status.to_string())),
        },
        Ok(None) => Err(failed("it is still running".to_owned())),
        Err(error) => Err(failed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spool_with_samples_is_kept_whole() {
        let data = tempfile::tempdir().expect("a folder");
        let spool = data.path().join("lab-1");
        std::fs::create_dir(&spool).expect("made");
        for name in BOOKS {
            std::fs::write(spool.join(name), "{}").expect("written");
        }
        std::fs::write(spool.join("1.seg"), "samples").expect("written");
        remove_empty(&spool);
        assert_eq!(std::fs::read_dir(&spool).expect("kept").count(), 3);
        std::fs::remove_file(spool.join("1.seg")).expect("removed");
        remove_empty(&spool);
        assert!(!spool.exists());
    }
}
