//! The same fault again and again in one run, each time as if it were the first.
//!
//! Method, for each repetition (and with `each-target` for each target, in
//! shuffled order):
//! 1. recover: undo what the last one left, and wait until every proxy believes in
//!    every backend again;
//! 2. reset: cut every connection at the backends, so that held clients do not stay
//!    where the last fault drove them. The moment is recorded as a mark that ends
//!    the last fault's horizon: what comes of it is nobody's fault;
//! 3. settle: wait until all clients are answered without an error, by the backend
//!    that is to be hit;
//! 4. wait for a random phase of at least [`LEAST_PHASE_NS`]. Recovery is itself
//!    signalled on the grid of health checks: without this, each fault would meet
//!    them at the same phase, and the same value would come every time;
//! 5. play the timeline;
//! 6. observe, until nobody has had an error for a while, or the bound is reached.
//!
//! What it cannot know: whether a client that waits without a timeout would ever
//! have come back. The bound of 6 censors it.

mod calm;

use std::sync::Arc;

use gapscope_proto::clock::Clock;
use gapscope_proto::fault::Span;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use tokio::sync::watch;

use self::calm::Calm;
use crate::cli::Aim;
use crate::control::Counters;
use crate::error::{Problem, Result};
use crate::play::Player;
use crate::scenario::{EVERY_PROXY, Scenario, Step, target_names};
use crate::timeline::{Due, schedule};

/// The longest period of the health checks in the lab's configurations: every 2 s,
/// down after two failures.
pub const LEAST_PHASE_NS: u64 = 4 * SECOND;
const SECOND: u64 = 1_000_000_000;
/// Recovery and settling may each take this long.
const PATIENCE_NS: u64 = 30 * SECOND;
/// Clients have settled after so long without an error.
const SETTLED_NS: u64 = 1_500_000_000;
/// The fault is over after so long without an error, or after the longest of the
/// clients' own timeouts: one that waits tells of nothing before.
const QUIET_NS: u64 = 2 * SECOND;
/// The least that is watched after the timeline.
const LEAST_OBSERVE_NS: u64 = 5 * SECOND;
const LOOK_EVERY_NS: i64 = 100_000_000;

/// How it is to be repeated.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How often.
    pub times: u32,
    /// Whom to hit.
    pub aim: Aim,
    /// How long is watched at most after the timeline's last step.
    pub observe_ns: u64,
}

impl Settings {
    /// As `scenario` says: what is left of its duration after its last step.
    pub fn of(scenario: &Scenario, times: u32, aim: Aim) -> Self {
        let last = scenario.timeline.iter().map(end_of).max().unwrap_or(0);
        Self {
            times,
            aim,
            observe_ns: scenario
                .duration_ns
                .saturating_sub(last)
                .max(LEAST_OBSERVE_NS),
        }
    }
}

/// How long a run with so many repetitions can take at most.
pub fn longest_ns(scenario: &Scenario, settings: Settings) -> u64 {
    let rounds = match settings.aim {
        Aim::Subject => 1,
        Aim::EachTarget => target_names(scenario).len().max(1) as u64,
    };
    // Each waiting is bounded; the last two are for what starting takes.
    let one = timeline_ns(scenario)
        .saturating_add(phase_ns(scenario))
        .saturating_add(settings.observe_ns)
        .saturating_add(4 * PATIENCE_NS);
    one.saturating_mul(rounds)
        .saturating_mul(u64::from(settings.times))
}

fn quiet_ns(scenario: &Scenario) -> u64 {
    let timeouts = scenario.clients.timeouts;
    [timeouts.connect_ns, timeouts.query_ns]
        .into_iter()
        .flatten()
        .fold(QUIET_NS, u64::max)
        .min(PATIENCE_NS)
}

fn phase_ns(scenario: &Scenario) -> u64 {
    scenario
        .timeline
        .iter()
        .map(|step| step.jitter_ns)
        .fold(LEAST_PHASE_NS, u64::max)
}

fn end_of(step: &Step) -> u64 {
    step.at_ns
        .saturating_add(step.jitter_ns)
        .saturating_add(step.duration_ns.unwrap_or(0))
}

/// From the first step to the end of the last.
fn timeline_ns(scenario: &Scenario) -> u64 {
    let first = scenario.timeline.iter().map(|step| step.at_ns).min();
    let last = scenario.timeline.iter().map(end_of).max();
    last.unwrap_or(0).saturating_sub(first.unwrap_or(0))
}

/// What undoes the steps that were carried out, newest first.
fn undoing(done: &[Due]) -> Vec<Due> {
    let mut undo: Vec<Due> = Vec::new();
    for (index, step) in done.iter().enumerate().rev() {
        let Some(by) = step.action.undone_by() else {
            continue;
        };
        let is_undone = done[index + 1..]
            .iter()
            .any(|later| later.subject == step.subject && later.action == by);
        let is_listed = undo
            .iter()
            .any(|known| known.subject == step.subject && known.action == by);
        if !is_undone && !is_listed {
            undo.push(Due {
                at_ns: 0,
                action: by,
                subject: step.subject.clone(),
                grace_ns: None,
                lasts_ns: None,
                to: None,
                is_restart: false,
            });
        }
    }
    undo
}

/// The timeline with its first step due at once, and another subject for what is
/// done to backends.
fn steps_for(scenario: &Scenario, subject: Option<&str>) -> Vec<Step> {
    let first = scenario
        .timeline
        .iter()
        .map(|step| step.at_ns)
        .min()
        .unwrap_or(0);
    let one_backend = scenario
        .timeline
        .iter()
        .find(|step| scenario.backends.contains(&step.subject))
        .map(|step| step.subject.clone());
    let mut steps = scenario.timeline.clone();
    for step in &mut steps {
        if step.at_ns == first {
            // The phase is drawn anew, and more widely.
            step.jitter_ns = 0;
        }
        step.at_ns -= first;
        if let Some(subject) = subject
            && Some(&step.subject) == one_backend.as_ref()
        {
            step.subject = subject.to_owned();
        }
    }
    steps
}

/// Watches the agents' counters.
pub struct Live(pub watch::Receiver<Vec<Counters>>);

impl Live {
    fn now(&self) -> Vec<Counters> {
        self.0.borrow().clone()
    }
}

/// Plays all repetitions.
pub struct Repeater<'a> {
    /// What is repeated.
    pub scenario: &'a Scenario,
    /// How often and whom.
    pub settings: Settings,
    /// The agents' counters as they come.
    pub live: Live,
    /// Phases and order.
    pub rng: StdRng,
    /// Stamps.
    pub clock: Arc<dyn Clock>,
}

impl Repeater<'_> {
    /// Returns when the last repetition has been observed.
    pub async fn play(&mut self, player: &mut Player<'_>) -> Result<()> {
        if self.scenario.timeline.is_empty() {
            return Err(Problem::usage(format!(
                "scenario `{}` has no steps: there is nothing to repeat",
                self.scenario.name
            )));
        }
        let mut left: Vec<Due> = Vec::new();
        for number in 1..=self.settings.times {
            for target in self.rounds() {
                self.as_new(player, &mut left).await?;
                let subject = match &target {
                    None => self.own_subject(),
                    Some(target) => self.used_by(player, target),
                };
                let of = match &target {
                    None => String::new(),
                    Some(target) => format!(", aimed at {target}"),
                };
                self.settle(player, subject.as_deref(), target.as_deref())
                    .await?;
                player.say(&format!(
                    "repetition {number} of {}{of}",
                    self.settings.times
                ));
                let phase = self.rng.random_range(0..=phase_ns(self.scenario));
                let begin = later(self.clock.raw_ns(), phase);
                let steps = steps_for(self.scenario, target.as_ref().and(subject.as_deref()));
                let rng = &mut self.rng;
                for step in schedule(&steps, |most| rng.random_range(0..=most)) {
                    player.play_one(&step, begin).await?;
                    left.push(step);
                }
                self.observe(player).await?;
            }
        }
        Ok(())
    }

    fn rounds(&mut self) -> Vec<Option<String>> {
        match self.settings.aim {
            Aim::Subject => vec![None],
            Aim::EachTarget => {
                let mut targets: Vec<Option<String>> = self
                    .scenario
                    .proxies
                    .iter()
                    .map(|proxy| Some(proxy.name.clone()))
                    .collect();
                targets.shuffle(&mut self.rng);
                targets
            }
        }
    }

    /// The timeline's first subject that is a backend.
    fn own_subject(&self) -> Option<String> {
        let subjects = self.scenario.timeline.iter().map(|step| &step.subject);
        subjects
            .filter(|name| name.as_str() != EVERY_PROXY)
            .find(|name| self.scenario.backends.contains(name))
            .cloned()
    }

    /// The backend that a target's clients are answered by now.
    fn used_by(&self, player: &Player<'_>, target: &str) -> Option<String> {
        let reading = self.live.now();
        reading
            .iter()
            .filter(|row| row.target == target)
            .find_map(|row| player.backend_of(&row.backend))
            .or_else(|| self.own_subject())
    }

    async fn as_new(&mut self, player: &mut Player<'_>, left: &mut Vec<Due>) -> Result<()> {
        for undo in undoing(left) {
            player.play_one(&undo, self.clock.raw_ns()).await?;
        }
        left.clear();
        let until = later(self.clock.raw_ns(), PATIENCE_NS);
        while let Some(doubt) = player.doubts().await {
            if self.clock.raw_ns() >= until {
                player.say(&format!("going on although {doubt}"));
                break;
            }
            self.pass(player).await?;
        }
        let earliest_ns = self.clock.raw_ns();
        let cut = player.cut_clients().await?;
        let asked = Span {
            earliest_ns,
            latest_ns: self.clock.raw_ns(),
        };
        player
            .note_reset(asked, &format!("connections reset: {cut}"))
            .await
    }

    async fn pass(&self, player: &mut Player<'_>) -> Result<()> {
        player
            .listen_until(self.clock.raw_ns().saturating_add(LOOK_EVERY_NS))
            .await
    }

    async fn settle(
        &self,
        player: &mut Player<'_>,
        subject: Option<&str>,
        target: Option<&str>,
    ) -> Result<()> {
        let awaited = subject.and_then(|name| player.identity_of(name));
        let begin = self.clock.raw_ns();
        let until = later(begin, PATIENCE_NS);
        let mut calm = Calm::new(begin, self.live.now());
        loop {
            self.pass(player).await?;
            let now = self.clock.raw_ns();
            calm.look(now, self.live.now(), awaited.as_deref());
            let mut elsewhere = if awaited.is_some() {
                calm.elsewhere(now)
            } else {
                Vec::new()
            };
            if let Some(target) = target {
                // The others are on whatever they use.
                elsewhere.retain(|name| name == target);
            }
            let calm_ns = calm.for_ns(now);
            if calm_ns >= SETTLED_NS && elsewhere.is_empty() {
                return Ok(());
            }
            if now >= until {
                let why = if elsewhere.is_empty() {
                    "clients still have errors".to_owned()
                } else {
                    format!(
                        "{} is not on `{}` and so not exposed",
                        elsewhere.join(", "),
                        subject.unwrap_or_default()
                    )
                };
                player.say(&format!(
                    "not settled within {} s: {why}",
                    PATIENCE_NS / SECOND
                ));
                return Ok(());
            }
        }
    }

    async fn observe(&self, player: &mut Player<'_>) -> Result<()> {
        let begin = self.clock.raw_ns();
        let until = later(begin, self.settings.observe_ns);
        let mut calm = Calm::new(begin, self.live.now());
        loop {
            self.pass(player).await?;
            let now = self.clock.raw_ns();
            calm.look(now, self.live.now(), None);
            if calm.for_ns(now) >= quiet_ns(self.scenario) || now >= until {
                return Ok(());
            }
        }
    }
}

fn later(now_ns: i64, by_ns: u64) -> i64 {
    now_ns.saturating_add(i64::try_from(by_ns).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Action, shipped};

    fn scenario(name: &str) -> Scenario {
        Scenario::parse(name, shipped(name).expect("shipped")).expect("valid")
    }

    fn due(action: Action, subject: &str) -> Due {
        Due {
            at_ns: 0,
            action,
            subject: subject.to_owned(),
            grace_ns: None,
            lasts_ns: None,
            to: None,
            is_restart: false,
        }
    }

    #[test]
    fn what_is_left_is_undone_once_and_newest_first() {
        let undo = |done: &[Due]| -> Vec<(Action, String)> {
            undoing(done)
                .into_iter()
                .map(|due| (due.action, due.subject))
                .collect()
        };
        assert_eq!(
            undo(&[due(Action::Stop, "a")]),
            [(Action::Start, "a".to_owned())]
        );
        assert_eq!(undo(&[due(Action::Stop, "a"), due(Action::Start, "a")]), []);
        assert_eq!(
            undo(&[due(Action::Drain, "a"), due(Action::Stop, "a")]),
            [
                (Action::Start, "a".to_owned()),
                (Action::Undrain, "a".to_owned())
            ]
        );
        assert_eq!(undo(&[]), []);
    }

    #[test]
    fn the_timeline_begins_at_once_and_hits_whom_it_is_aimed_at() {
        let steps = steps_for(&scenario("drained"), Some("backend-2"));
        assert_eq!(steps[0].at_ns, 0);
        assert_eq!(steps[0].jitter_ns, 0);
        assert_eq!(steps[1].at_ns, 10 * SECOND);
        assert!(steps.iter().all(|step| step.subject == "backend-2"));
        let steps = steps_for(&scenario("proxy-restart"), Some("backend-2"));
        assert_eq!(steps[0].subject, EVERY_PROXY);
    }

    #[test]
    fn the_longest_run_is_bounded() {
        let scenario = scenario("switchover");
        let settings = Settings::of(&scenario, 20, Aim::EachTarget);
        assert_eq!(settings.observe_ns, 18 * SECOND);
        let most = longest_ns(&scenario, settings);
        assert!(most < 31 * 24 * 3_600 * SECOND, "{most}");
    }
}
