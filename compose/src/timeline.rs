//! When which step is due. Pure: randomness is an argument, so a seed gives the
//! same timeline again.
//!
//! Faults come at a random phase after their due time. Without that, every fault
//! would meet a proxy's health checks at the same phase, since recovery is itself
//! signalled on the grid of those checks: the same value, time after time, and
//! the wrong one.

use crate::scenario::{Action, Step};

/// A step with its time drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Due this long after the run's start.
    pub at_ns: u64,
    /// What is done.
    pub action: Action,
    /// To which backend or proxy, or every proxy.
    pub subject: String,
    /// Of a `stop`: killed if it is still there after this long.
    pub grace_ns: Option<u64>,
    /// Of a `slow`: by how much. Of a `long_query`: how long it takes.
    pub lasts_ns: Option<u64>,
    /// Of a `repoint`: at which backend.
    pub to: Option<String>,
    /// A half of a `restart`: its `stop` begins a fault that its `start` ends.
    pub is_restart: bool,
}

/// Draws the times of all steps and adds what undoes those with a duration.
/// `draw(most)` gives a uniformly random number of 0 to `most`. In the order in
/// which they are due.
pub fn schedule(steps: &[Step], mut draw: impl FnMut(u64) -> u64) -> Vec<Due> {
    let mut due = Vec::new();
    for step in steps {
        let drawn = if step.jitter_ns == 0 {
            0
        } else {
            draw(step.jitter_ns)
        };
        let at_ns = step.at_ns.saturating_add(drawn);
        // A restart without a duration: as soon as it is gone, which the start
        // waits for.
        let (action, lasts) = match step.action {
            Action::Restart => (Action::Stop, Some(step.duration_ns.unwrap_or(0))),
            action => (action, step.duration_ns),
        };
        due.push(Due {
            at_ns,
            action,
            subject: step.subject.clone(),
            grace_ns: step.grace_ns,
            lasts_ns: match step.action {
                Action::LongQuery => step.duration_ns,
                _ => step.delay_ns,
            },
            to: step.to.clone(),
            is_restart: step.action == Action::Restart,
        });
        if let (Some(after), Some(undo)) = (lasts, step.action.undone_by()) {
            due.push(Due {
                at_ns: at_ns.saturating_add(after),
                action: undo,
                subject: step.subject.clone(),
                grace_ns: None,
                lasts_ns: None,
                to: None,
                is_restart: step.action == Action::Restart,
            });
        }
    }
    due.sort_by_key(|step| step.at_ns);
    due
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn seeded(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut rng = StdRng::seed_from_u64(seed);
        move |most| rng.random_range(0..=most)
    }

    const S: u64 = 1_000_000_000;

    fn step(at_ns: u64, action: Action, jitter_ns: u64, duration_ns: Option<u64>) -> Step {
        Step {
            at_ns,
            action,
            subject: "b".to_owned(),
            jitter_ns,
            duration_ns,
            grace_ns: None,
            delay_ns: None,
            to: None,
            line: 1,
        }
    }

    #[test]
    fn jitter_stays_within_its_bounds_and_uses_them() {
        let mut draw = seeded(7);
        let steps = [step(10 * S, Action::Stop, 2 * S, None)];
        let drawn: Vec<u64> = (0..500)
            .map(|_| schedule(&steps, &mut draw)[0].at_ns)
            .collect();
        assert!(drawn.iter().all(|at| (10 * S..=12 * S).contains(at)));
        let least = drawn.iter().min().expect("500 of them");
        let most = drawn.iter().max().expect("500 of them");
        assert!(*least < 10 * S + S / 10 && *most > 12 * S - S / 10);
    }

    #[test]
    fn without_jitter_steps_are_due_exactly() {
        let due = schedule(&[step(10 * S, Action::Kill, 0, None)], seeded(7));
        assert_eq!(due[0].at_ns, 10 * S);
    }

    #[test]
    fn a_duration_is_counted_from_the_drawn_time() {
        let due = schedule(&[step(10 * S, Action::Hang, 2 * S, Some(4 * S))], seeded(3));
        assert_eq!(due.len(), 2);
        assert_eq!(due[1].action, Action::Resume);
        assert_eq!(due[1].at_ns - due[0].at_ns, 4 * S);
    }

    #[test]
    fn a_restart_is_a_stop_and_a_start() {
        for (lasts, apart) in [(None, 0), (Some(3 * S), 3 * S)] {
            let due = schedule(&[step(10 * S, Action::Restart, 0, lasts)], seeded(3));
            assert_eq!(
                due.iter().map(|d| (d.at_ns, d.action)).collect::<Vec<_>>(),
                [(10 * S, Action::Stop), (10 * S + apart, Action::Start)]
            );
        }
    }

    #[test]
    fn a_seed_gives_the_same_timeline_again() {
        let steps = [step(10 * S, Action::Stop, 2 * S, None)];
        let draw = |seed| schedule(&steps, seeded(seed));
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
