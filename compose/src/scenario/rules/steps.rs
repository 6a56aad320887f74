//! Steps that fit together: subjects that exist, within the run, in an order
//! that can be carried out.

use std::collections::BTreeMap;

use super::super::read::{ScenarioError, UNKNOWN_SUBJECT, with_guess};
use super::super::{Action, EVERY_PROXY, Overrides, ProxyKind, SECOND, Scenario, Step};
use crate::duration;

/// What a subject is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Backend,
    Proxy,
    /// No proxy, but a name for a backend.
    Name,
    /// A proxy that is there already; its address may be a name.
    External,
    /// Proxies and names together: what one of them cannot, the others do.
    Mixed,
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
            Self::Name => &[Action::Repoint, Action::Restore, Action::LongQuery],
            Self::External | Self::Mixed => &[
                Action::Stop,
                Action::Kill,
                Action::Hang,
                Action::Resume,
                Action::Start,
                Action::Restart,
                Action::LongQuery,
                Action::Repoint,
                Action::Restore,
            ],
        }
    }

    /// What it is called in an error.
    const fn in_words(self) -> &'static str {
        match self {
            Self::Backend => "a backend",
            Self::Proxy | Self::External | Self::Mixed => "a proxy",
            Self::Name => "a name",
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
            | Action::Undrain
            | Action::Repoint
            | Action::Restore => self == Self::Up,
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
            Action::Drain
            | Action::Undrain
            | Action::LongQuery
            | Action::Repoint
            | Action::Restore => self,
        }
    }
}

struct Progress {
    state: State,
    /// It is drained, or, a name, leads elsewhere.
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
        let latest = step.at_ns.saturating_add(step.jitter_ns);
        if latest >= scenario.duration_ns {
            errors.push(too_late(scenario, overrides, step));
        }
        let mut wrong = |key: &str, what: String, hint: String| {
            errors.push(ScenarioError {
                line: step.line,
                key: key.to_owned(),
                what,
                hint,
            });
        };
        unused_keys(step, &mut wrong);
        let Some(kind) = kind_of(scenario, &step.subject) else {
            let mut known: Vec<&str> = scenario.backends.iter().map(String::as_str).collect();
            known.extend(scenario.proxies.iter().map(|proxy| proxy.name.as_str()));
            known.push(EVERY_PROXY);
            wrong(
                "subject",
                format!("{UNKNOWN_SUBJECT} `{}`", step.subject),
                with_guess(&step.subject, &known, "values of `subject`"),
            );
            continue;
        };
        if !kind.steps().contains(&step.action) {
            wrong(
                "do",
                format!(
                    "subject `{}` is {}; `{}` is done to {}",
                    step.subject,
                    kind.in_words(),
                    step.action,
                    done_to(step.action)
                ),
                format!(
                    "{}allowed for {}: {}",
                    others(scenario, step.action),
                    kind.in_words(),
                    words(kind.steps())
                ),
            );
            continue;
        }
        destination(scenario, step, kind, &mut wrong);
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
                Action::Undrain | Action::Restore => drained,
                _ => true,
            };
        if !fits {
            let allowed: Vec<Action> = kind
                .steps()
                .iter()
                .copied()
                .filter(|action| match action {
                    Action::Drain => state.allows(*action) && !drained,
                    Action::Undrain | Action::Restore => state.allows(*action) && drained,
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
                    match kind {
                        Kind::Name | Kind::External | Kind::Mixed => "",
                        _ if drained => " and drained",
                        _ => "",
                    }
                ),
                format!("allowed here: {}", words(&allowed)),
            );
        }
        progress.insert(
            &step.subject,
            Progress {
                state: state.after(step),
                drained: match step.action {
                    Action::Drain | Action::Repoint => step.duration_ns.is_none(),
                    Action::Undrain | Action::Restore => false,
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
        return Some(Kind::Backend);
    }
    scenario
        .proxies
        .iter()
        .filter(|proxy| subject == EVERY_PROXY || proxy.name == subject)
        .map(|proxy| match proxy.kind {
            ProxyKind::External => Kind::External,
            kind if kind.is_name() => Kind::Name,
            _ => Kind::Proxy,
        })
        .reduce(|one, other| if one == other { one } else { Kind::Mixed })
}

/// What a step is done to, for an error.
const fn done_to(action: Action) -> &'static str {
    match action {
        Action::Repoint | Action::Restore => "names (proxies of kind `dns`, `dns-following`)",
        Action::LongQuery => "proxies",
        _ => "backends",
    }
}

/// The subjects that would do instead.
fn others(scenario: &Scenario, action: Action) -> String {
    let named = |wanted: fn(ProxyKind) -> bool| {
        scenario
            .proxies
            .iter()
            .filter(|proxy| wanted(proxy.kind))
            .map(|proxy| proxy.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    match action {
        Action::Repoint | Action::Restore => match named(ProxyKind::is_name) {
            none if none.is_empty() => "there is no name in this scenario; ".to_owned(),
            names => format!("names: {names}; "),
        },
        Action::LongQuery => format!("proxies: {}; ", named(|_| true)),
        _ => format!("backends: {}; ", scenario.backends.join(", ")),
    }
}

/// Where a name is to lead.
fn destination(
    scenario: &Scenario,
    step: &Step,
    kind: Kind,
    wrong: &mut impl FnMut(&str, String, String),
) {
    let backends: Vec<&str> = scenario.backends.iter().map(String::as_str).collect();
    match (&step.to, step.action) {
        // What its command does is its own affair.
        (None, Action::Repoint) if kind == Kind::External => {}
        (None, Action::Repoint) => wrong(
            "to",
            "`repoint` does not say where to".to_owned(),
            format!("give it `to`; allowed: {}", backends.join(", ")),
        ),
        (Some(to), Action::Repoint) if !backends.contains(&to.as_str()) => wrong(
            "to",
            format!("`{to}` is no backend that a name could lead to"),
            with_guess(to, &backends, "values of `to`"),
        ),
        (Some(_), action) if action != Action::Repoint => wrong(
            "to",
            format!("`to` is of no use for `{action}`"),
            "allowed for `do = \"repoint\"` only: the backend that the name is to lead to"
                .to_owned(),
        ),
        _ => {}
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
            "allowed for what hurts, restart, drain and repoint: undone after the duration"
                .to_owned(),
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
