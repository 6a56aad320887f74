//! Steps that fit together: subjects that exist, within the run, in an order
//! that can be carried out.

use std::collections::BTreeMap;

use super::super::read::{ScenarioError, with_guess};
use super::super::{Action, EVERY_PROXY, Overrides, SECOND, Scenario, Step};
use crate::duration;

/// What a subject is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Backend,
    Proxy,
}

impl Kind {
    /// What can be done to it.
    const fn steps(self) -> &'static [Action] {
        match self {
            Self::Backend => &[
                Action::Stop,
                Action::Kill,
                Action::Hang,
                Action::BlackHole,
                Action::Mute,
                Action::Reject,
                Action::Slow,
                Action::Resume,
                Action::Start,
                Action::Restart,
                Action::Drain,
                Action::Undrain,
            ],
            Self::Proxy => &[
                Action::Stop,
                Action::Kill,
                Action::Hang,
                Action::Resume,
                Action::Start,
                Action::Restart,
                Action::LongQuery,
            ],
        }
    }
}

/// What became of a subject so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    Down,
    Frozen,
}

impl State {
    fn allows(self, action: Action) -> bool {
        match action {
            Action::Stop
            | Action::Kill
            | Action::Hang
            | Action::BlackHole
            | Action::Mute
            | Action::Reject
            | Action::Slow
            | Action::Restart
            | Action::Drain
            | Action::Undrain => self == Self::Up,
            Action::Resume => self == Self::Frozen,
            Action::Start => self == Self::Down,
            Action::LongQuery => true,
        }
    }

    const fn in_words(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Frozen => "hung, slow or cut off",
        }
    }

    fn after(self, step: &Step) -> Self {
        match step.action {
            _ if step.duration_ns.is_some() && step.action != Action::LongQuery => Self::Up,
            Action::Stop | Action::Kill => Self::Down,
            Action::Hang | Action::BlackHole | Action::Mute | Action::Reject | Action::Slow => {
                Self::Frozen
            }
            Action::Resume | Action::Start | Action::Restart => Self::Up,
            Action::Drain | Action::Undrain | Action::LongQuery => self,
        }
    }
}

struct Progress {
    state: State,
    drained: bool,
    /// The last step may be over as late as this.
    over_ns: u64,
    line: usize,
}

fn words(actions: &[Action]) -> String {
    let words: Vec<&str> = actions.iter().map(|action| action.as_str()).collect();
    words.join(", ")
}

/// Everything that is wrong with the timeline.
pub(super) fn check(scenario: &Scenario, overrides: &Overrides) -> Vec<ScenarioError> {
    let mut errors = Vec::new();
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
        let Some(kind) = kind_of(scenario, &step.subject) else {
            let mut known: Vec<&str> = scenario.backends.iter().map(String::as_str).collect();
            known.extend(scenario.proxies.iter().map(|proxy| proxy.name.as_str()));
            known.push(EVERY_PROXY);
            wrong(
                "subject",
                format!("unknown subject `{}`", step.subject),
                with_guess(&step.subject, &known, "values of `subject`"),
            );
            continue;
        };
        if !kind.steps().contains(&step.action) {
            wrong(
                "do",
                format!(
                    "subject `{}` is a proxy; `{}` is done to backends",
                    step.subject, step.action
                ),
                format!(
                    "backends: {}; allowed for a proxy: {}",
                    scenario.backends.join(", "),
                    words(kind.steps())
                ),
            );
            continue;
        }
        unused_keys(step, &mut wrong);
        let latest = step.at_ns.saturating_add(step.jitter_ns);
        if latest >= scenario.duration_ns {
            errors.push(too_late(scenario, overrides, step));
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
        let drained = before.is_some_and(|before| before.drained);
        let fits = state.allows(step.action)
            && match step.action {
                Action::Drain => !drained,
                Action::Undrain => drained,
                _ => true,
            };
        if !fits {
            let allowed: Vec<Action> = kind
                .steps()
                .iter()
                .copied()
                .filter(|action| match action {
                    Action::Drain => state.allows(*action) && !drained,
                    Action::Undrain => state.allows(*action) && drained,
                    _ => state.allows(*action),
                })
                .collect();
            wrong(
                "do",
                format!(
                    "`{}` makes no sense for `{}`, which is {}{} then",
                    step.action,
                    step.subject,
                    state.in_words(),
                    if drained { " and drained" } else { "" }
                ),
                format!("allowed here: {}", words(&allowed)),
            );
        }
        progress.insert(
            &step.subject,
            Progress {
                state: state.after(step),
                drained: match step.action {
                    Action::Drain => step.duration_ns.is_none(),
                    Action::Undrain => false,
                    _ => drained,
                },
                over_ns: latest.saturating_add(step.duration_ns.unwrap_or(0)),
                line: step.line,
            },
        );
    }
    errors
}

fn kind_of(scenario: &Scenario, subject: &str) -> Option<Kind> {
    if scenario.backends.iter().any(|name| name == subject) {
        Some(Kind::Backend)
    } else if (subject == EVERY_PROXY && !scenario.proxies.is_empty())
        || scenario.proxies.iter().any(|proxy| proxy.name == subject)
    {
        Some(Kind::Proxy)
    } else {
        None
    }
}

fn unused_keys(step: &Step, wrong: &mut impl FnMut(&str, String, String)) {
    if step.grace_ns.is_some() && !matches!(step.action, Action::Stop | Action::Restart) {
        wrong(
            "grace",
            format!("`grace` is of no use for `{}`", step.action),
            "allowed for `do = \"stop\"` and `do = \"restart\"` only: killed if still there after \
             the grace"
                .to_owned(),
        );
    }
    if step.duration_ns.is_some() && !step.action.takes_duration() {
        wrong(
            "duration",
            format!("`duration` is of no use for `{}`", step.action),
            "allowed for what hurts, restart and drain: undone after the duration".to_owned(),
        );
    }
    if step.delay_ns.is_some() && step.action != Action::Slow {
        wrong(
            "delay",
            format!("`delay` is of no use for `{}`", step.action),
            "allowed for `do = \"slow\"` only: by how much".to_owned(),
        );
    }
    if step.action == Action::LongQuery && step.duration_ns.is_none() {
        wrong(
            "duration",
            "`long_query` does not say how long the statement takes".to_owned(),
            "give it a `duration`, such as duration = \"10s\"".to_owned(),
        );
    }
}

/// A step after the end: the fault of whoever said how long the run is.
fn too_late(scenario: &Scenario, overrides: &Overrides, step: &Step) -> ScenarioError {
    let what = format!(
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
    );
    let needed = step
        .at_ns
        .saturating_add(step.jitter_ns)
        .saturating_add(SECOND);
    let flag = match (overrides.duration_ns, overrides.like_lab08) {
        (Some(ns), _) => format!("--duration {}", duration::text(ns).replace(' ', "")),
        (None, true) => "--like-lab08".to_owned(),
        (None, false) => {
            return ScenarioError {
                line: step.line,
                key: "at".to_owned(),
                what,
                hint: "make `at` (with `jitter`) smaller or `duration` longer".to_owned(),
            };
        }
    };
    ScenarioError {
        line: 0,
        key: "--duration".to_owned(),
        what: format!("{flag} is too short for this scenario: {what}"),
        hint: format!(
            "give at least --duration {}, so that something is seen after the step",
            duration::text(needed).replace(' ', "")
        ),
    }
}
