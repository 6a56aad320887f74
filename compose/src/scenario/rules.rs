//! What a scenario must keep that no single key shows: steps within the run and
//! in an order that can be carried out, subjects that exist, rates a host can
//! take.

mod steps;

use super::read::{ScenarioError, UNKNOWN_SUBJECT};
use super::{EVERY_PROXY, Overrides, ProxyKind, Scenario};
use crate::duration;

/// Most probes a second one lab may ask of its agent, over all targets.
const MAX_PROBES_PER_SECOND: u64 = 50_000;
/// Most new connections a second that slots may ask of one target.
const MAX_CONNECTS_PER_SECOND: u64 = 1_000;

pub(super) fn check(scenario: &Scenario, overrides: &Overrides) -> Vec<ScenarioError> {
    let mut errors = Vec::new();
    names(scenario, overrides, &mut errors);
    overridden(scenario, overrides, &mut errors);
    rates(scenario, &mut errors);
    errors.extend(steps::check(scenario, overrides));
    super::external::check(scenario, &mut errors);
    errors.sort_by_key(|error| error.line);
    errors
}

/// What of the rules' errors only follows from others: a subject is unknown because its
/// name could not be read, a `start` makes no sense because the `stop` before it was
/// misspelt.
pub(super) struct Follows {
    names: bool,
    descriptions: bool,
    steps: bool,
    duration: bool,
    lines: Vec<usize>,
}

impl Follows {
    /// From the errors of reading.
    pub(super) fn of(errors: &[ScenarioError]) -> Self {
        // Who is not there keeps no step from being looked at.
        let any = |keys: &[&str]| {
            errors.iter().any(|error| {
                keys.contains(&error.key.as_str()) && !error.what.starts_with(UNKNOWN_SUBJECT)
            })
        };
        Self {
            names: any(&["name", "kind", "backend", "proxy", "external"]),
            descriptions: any(&["command"]),
            steps: any(&[
                "timeline", "at", "do", "subject", "jitter", "phase", "duration", "to",
            ]),
            duration: any(&["duration"]),
            lines: errors.iter().map(|error| error.line).collect(),
        }
    }

    /// Whether this one need not be told.
    pub(super) fn is(&self, error: &ScenarioError) -> bool {
        // What is blamed on no line of its own stands on line 1.
        let on_a_wrong_line = error.line > 1 && self.lines.contains(&error.line);
        on_a_wrong_line
            || match error.key.as_str() {
                "subject" | "to" | "name" => self.names,
                "proxy" => self.names || self.descriptions,
                "do" => self.steps || self.names,
                "at" => self.steps || self.duration,
                _ => false,
            }
    }
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

/// A flag that would change nothing.
fn overridden(scenario: &Scenario, overrides: &Overrides, errors: &mut Vec<ScenarioError>) {
    let Some(fault) = overrides.fault else { return };
    if scenario.timeline.iter().any(|step| step.action == fault) {
        return;
    }
    errors.push(ScenarioError {
        line: 0,
        key: "--fault".to_owned(),
        what: format!(
            "--fault {fault}: scenario `{}` has no fault that could become it{}",
            scenario.name,
            if scenario.timeline.is_empty() {
                ", it has no steps at all"
            } else {
                ""
            }
        ),
        hint: format!(
            "take a scenario with one of {}, such as `switchover`",
            super::Action::FAULTS.join(", ")
        ),
    });
}

fn names(scenario: &Scenario, overrides: &Overrides, errors: &mut Vec<ScenarioError>) {
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
    let named = scenario.proxies.iter().map(|proxy| &proxy.name);
    if named
        .chain(&scenario.backends)
        .any(|name| name == EVERY_PROXY)
    {
        errors.push(ScenarioError {
            line: 1,
            key: "name".to_owned(),
            what: format!("`{EVERY_PROXY}` is no name: as a subject it means every proxy"),
            hint: "choose another name".to_owned(),
        });
    }
    if scenario
        .proxies
        .iter()
        .any(|proxy| proxy.kind == ProxyKind::Command && proxy.custom.is_none())
    {
        errors.push(ScenarioError {
            line: 0,
            key: "proxy".to_owned(),
            what: "a proxy of kind `command` needs to be described".to_owned(),
            hint: "give it in a scenario file: [[proxy]] with kind = \"command\", `command` and \
                   `config`"
                .to_owned(),
        });
    }
    let mut seen: Vec<&str> = Vec::new();
    for proxy in &scenario.proxies {
        // Of the file's own the reader has said so.
        if seen.contains(&proxy.name.as_str()) && !overrides.proxies.is_empty() {
            errors.push(ScenarioError {
                line: 0,
                key: "--proxy".to_owned(),
                what: format!("--proxy {} is given twice", proxy.name),
                hint: "name each proxy once; two of a kind need a scenario file that gives them \
                       names"
                    .to_owned(),
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
