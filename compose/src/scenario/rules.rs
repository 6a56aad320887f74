//! What a scenario must keep that no single key shows: steps within the run and
//! in an order that can be carried out, subjects that exist, rates a host can
//! take.

use std::collections::BTreeMap;

use super::read::{ScenarioError, with_guess};
use super::{Action, Scenario, Step};
use crate::duration;

/// Most probes a second one lab may ask of its agent, over all targets.
const MAX_PROBES_PER_SECOND: u64 = 50_000;
/// Most new connections a second that slots may ask of one target.
const MAX_CONNECTS_PER_SECOND: u64 = 1_000;

pub(super) fn check(scenario: &Scenario) -> Vec<ScenarioError> {
    let mut errors = Vec::new();
    names(scenario, &mut errors);
    rates(scenario, &mut errors);
    steps(scenario, &mut errors);
    errors.sort_by_key(|error| error.line);
    errors
}

/// The line of the first mention of `key`, for what is not one value's fault.
fn line_of(text: &str, key: &str) -> usize {
    text.lines()
        .position(|line| {
            line.trim_start()
                .strip_prefix(key)
                .is_some_and(|rest| rest.trim_start().starts_with('='))
                || line.trim() == format!("[{key}]")
        })
        .map_or(1, |index| index + 1)
}

fn names(scenario: &Scenario, errors: &mut Vec<ScenarioError>) {
    for proxy in &scenario.proxies {
        if scenario.backends.contains(&proxy.name) {
            errors.push(ScenarioError {
                line: 1,
                key: "name".to_owned(),
                what: format!("a proxy and a backend are both called `{}`", proxy.name),
                hint: "give each a name of its own".to_owned(),
            });
        }
    }
    let mut seen: Vec<&str> = Vec::new();
    for proxy in &scenario.proxies {
        if seen.contains(&proxy.name.as_str()) {
            errors.push(ScenarioError {
                line: 1,
                key: "proxy".to_owned(),
                what: format!("there are two proxies called `{}`", proxy.name),
                hint: "name each proxy once".to_owned(),
            });
        }
        seen.push(&proxy.name);
    }
    if scenario.proxies.is_empty() && !scenario.direct {
        errors.push(ScenarioError {
            line: 1,
            key: "proxy".to_owned(),
            what: "there is nothing to probe: no [[proxy]], and `direct` is off".to_owned(),
            hint: "add a [[proxy]], or direct = true to probe the backends themselves".to_owned(),
        });
    }
}

fn rates(scenario: &Scenario, errors: &mut Vec<ScenarioError>) {
    for idle_ns in &scenario.clients.idle_ns {
        if *idle_ns >= scenario.duration_ns {
            errors.push(ScenarioError {
                line: line_of(&scenario.text, "idle"),
                key: "idle".to_owned(),
                what: format!(
                    "a connection that is idle for {} is probed once, before it was idle",
                    duration::text(*idle_ns)
                ),
                hint: "make `duration` longer than each of `idle`".to_owned(),
            });
        }
    }
    let load = scenario.load();
    let targets = super::target_names(scenario).len() as u64;
    let clients = &scenario.clients;
    if load.clients == 0 {
        errors.push(ScenarioError {
            line: line_of(&scenario.text, "clients"),
            key: "clients".to_owned(),
            what: "no clients: nobody would probe".to_owned(),
            hint: "give at least one of `reused`, `patient`, `new`, `canaries`".to_owned(),
        });
    }
    let probes = load.probes_per_second_milli.div_ceil(1_000) * targets;
    if probes > MAX_PROBES_PER_SECOND {
        errors.push(ScenarioError {
            line: line_of(&scenario.text, "interval"),
            key: "interval".to_owned(),
            what: format!(
                "{probes} probes a second over {targets} targets are more than the agent can keep \
                 on time"
            ),
            hint: format!("allowed: up to {MAX_PROBES_PER_SECOND} a second; use fewer clients or a longer `interval`"),
        });
    }
    let connects = load.connects_per_second_milli.div_ceil(1_000);
    let guard = MAX_CONNECTS_PER_SECOND.min(u64::from(scenario.max_connects_per_second));
    if connects > guard {
        errors.push(ScenarioError {
            line: line_of(&scenario.text, "new_interval"),
            key: "new_interval".to_owned(),
            what: format!(
                "{} `new` clients every {} make {connects} connections a second to each target",
                clients.new,
                duration::text(clients.new_interval_ns),
            ),
            hint: format!(
                "allowed: up to {guard} a second (the guard `max_connects_per_second`, at most \
                 {MAX_CONNECTS_PER_SECOND}); use fewer `new` clients or a longer `new_interval`"
            ),
        });
    }
}

/// What became of a subject so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    Down,
    Frozen,
}

struct Progress {
    state: State,
    /// The last step may be over as late as this.
    over_ns: u64,
    line: usize,
}

fn steps(scenario: &Scenario, errors: &mut Vec<ScenarioError>) {
    let backends: Vec<&str> = scenario.backends.iter().map(String::as_str).collect();
    let mut ordered: Vec<&Step> = scenario.timeline.iter().collect();
    ordered.sort_by_key(|step| step.at_ns);
    let mut progress: BTreeMap<&str, Progress> = BTreeMap::new();
    for step in ordered {
        let mut wrong = |key: &str, what: String, hint: String| {
            errors.push(ScenarioError {
                line: step.line,
                key: key.to_owned(),
                what,
                hint,
            });
        };
        if !backends.contains(&step.subject.as_str()) {
            let is_proxy = scenario.proxies.iter().any(|p| p.name == step.subject);
            wrong(
                "subject",
                if is_proxy {
                    format!(
                        "subject `{}` is a proxy; `{}` is done to backends",
                        step.subject, step.action
                    )
                } else {
                    format!("unknown subject `{}`", step.subject)
                },
                with_guess(&step.subject, &backends, "values of `subject`"),
            );
            continue;
        }
        if step.grace_ns.is_some() && step.action != Action::Stop {
            wrong(
                "grace",
                format!("`grace` is of no use for `{}`", step.action),
                "allowed for `do = \"stop\"` only: killed if still there after the grace"
                    .to_owned(),
            );
        }
        if step.duration_ns.is_some() && !step.action.is_fault() {
            wrong(
                "duration",
                format!("`duration` is of no use for `{}`", step.action),
                "allowed for stop, kill, hang and black_hole: undone after the duration".to_owned(),
            );
        }
        let latest = step.at_ns.saturating_add(step.jitter_ns);
        if latest >= scenario.duration_ns {
            wrong(
                "at",
                format!(
                    "`{}` of `{}` at {}{} comes after the end of the run at {}",
                    step.action,
                    step.subject,
                    duration::text(step.at_ns),
                    if step.jitter_ns == 0 {
                        String::new()
                    } else {
                        format!(" (and up to {} later)", duration::text(step.jitter_ns))
                    },
                    duration::text(scenario.duration_ns),
                ),
                "make `at` (with `jitter`) smaller or `duration` longer".to_owned(),
            );
            continue;
        }
        let before = progress.get(step.subject.as_str());
        if let Some(before) = before
            && step.at_ns < before.over_ns
        {
            wrong(
                "at",
                format!(
                    "`{}` of `{}` may come before the step of line {} is over",
                    step.action, step.subject, before.line
                ),
                format!(
                    "allowed here: at = \"{}\" or later",
                    duration::text(before.over_ns).replace(' ', "")
                ),
            );
        }
        let state = before.map_or(State::Up, |before| before.state);
        let fits = match step.action {
            Action::Stop | Action::Kill | Action::Hang | Action::BlackHole => state == State::Up,
            Action::Resume => state == State::Frozen,
            Action::Start => state == State::Down,
        };
        if !fits {
            let allowed = match state {
                State::Up => "stop, kill, hang, black_hole",
                State::Down => "start",
                State::Frozen => "resume",
            };
            wrong(
                "do",
                format!(
                    "`{}` makes no sense for `{}`, which is {} then",
                    step.action,
                    step.subject,
                    match state {
                        State::Up => "up",
                        State::Down => "down",
                        State::Frozen => "hung or cut off",
                    }
                ),
                format!("allowed here: {allowed}"),
            );
        }
        let undone = step.duration_ns.is_some();
        progress.insert(
            &step.subject,
            Progress {
                state: match step.action {
                    _ if undone => State::Up,
                    Action::Stop | Action::Kill => State::Down,
                    Action::Hang | Action::BlackHole => State::Frozen,
                    Action::Resume | Action::Start => State::Up,
                },
                over_ns: latest.saturating_add(step.duration_ns.unwrap_or(0)),
                line: step.line,
            },
        );
    }
}
