//! From a command line and a scenario to what is to be run.

use super::super::scenario_text;
use crate::cli::Run;
use crate::duration;
use crate::error::{Problem, Result};
use crate::repeat;
use crate::runtime::process::net;
use crate::runtime::process::sql::Dialect;
use crate::runtime::{default_backend, default_proxies};
use crate::scenario::{
    BackendKind, Overrides, ProxyKind, RuntimeKind, Scenario, Step, target_names,
};

/// What is to be run, once the command line and the scenario are understood.
#[derive(Debug)]
pub(in crate::commands) struct Chosen {
    pub(in crate::commands) scenario: Scenario,
    pub(in crate::commands) backend: BackendKind,
    pub(in crate::commands) runtime: RuntimeKind,
    /// Whether the timeline is played again and again.
    pub(super) repeat: Option<repeat::Settings>,
    /// No block characters.
    pub(super) ascii: bool,
    /// Said before anything starts.
    pub(super) notes: Vec<String>,
    /// What the command line changes about the scenario, kept with the run.
    pub(super) changes: Vec<String>,
}

pub(in crate::commands) fn choose(options: &Run) -> Result<Chosen> {
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
    let real = |kind: &ProxyKind| kind.is_program();
    if scenario.external.is_some() {
        let given = [
            ("--runtime", options.runtime.is_some()),
            ("--backend", options.backend.is_some()),
            ("--proxy", !options.proxy.is_empty()),
            ("--repeat", options.repeat.is_some()),
            ("--fault", options.fault.is_some()),
        ];
        if let Some((flag, _)) = given.iter().find(|(_, given)| *given) {
            return Err(Problem::usage(format!(
                "{flag} does not go with a scenario whose servers are there already ([external])"
            )));
        }
    }
    let runtime = options.runtime.unwrap_or_else(|| {
        if scenario.external.is_some() {
            RuntimeKind::External
        } else if options.backend == Some(BackendKind::TidbCluster) {
            RuntimeKind::Docker
        } else if options
            .backend
            .is_some_and(|kind| kind != BackendKind::Embedded)
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
            .all(|proxy| proxy.kind.runs_in(runtime))
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
    if !backend.runs_in(runtime) {
        return Err(Problem::usage(format!(
            "runtime `{runtime}` has no backend `{backend}`"
        )));
    }
    if let Some(proxy) = scenario
        .proxies
        .iter()
        .find(|proxy| !proxy.kind.runs_in(runtime))
    {
        return Err(Problem::usage(format!(
            "runtime `{runtime}` has no proxy `{}`",
            proxy.kind
        )));
    }
    if runtime == RuntimeKind::Process
        && let Some(dialect) = Dialect::of(backend)
    {
        let named = options.program.iter().cloned().collect();
        for step in scenario
            .timeline
            .iter()
            .filter(|step| step.action.cuts_off())
        {
            net::Tools::find(&named).map_err(|why| not_applicable(step, dialect.name(), &why))?;
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
        ascii: options.ascii,
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

pub(super) fn not_applicable(step: &Step, program: &str, why: &str) -> Problem {
    Problem::usage(format!(
        "step `{}` of line {} cannot be done to backend `{}` ({program}): {why}",
        step.action, step.line, step.subject
    ))
}
