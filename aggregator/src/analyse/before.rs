//! What happened before a fault was asked for, where nothing happened after it: a mark
//! that is made by hand, or by a script that waits for its command, comes late, and
//! then its fault would seem to have had no effect.
//!
//! What it cannot know: whether what was before has anything to do with the fault. It
//! is only pointed out.

use super::series::{ClientSeries, Worth};
use super::stretch::Blind;

/// The longest time between two answers of a client that began before a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Before {
    /// End of the answer before, RAW ns of the agent.
    pub from_ns: i64,
    /// End of the answer after.
    pub to_ns: i64,
    /// Something in it was not answered, or late.
    pub is_bad: bool,
}

impl Before {
    /// How long.
    pub fn ns(&self) -> i64 {
        self.to_ns.saturating_sub(self.from_ns)
    }
}

/// The longest time without an answer that was over before `asked_ns`. Where nothing
/// bad was seen and the agent was late, it is the agent's own, and no time of the
/// target's.
pub fn longest_before(
    series: &ClientSeries,
    deadline_ns: i64,
    blind: &Blind,
    asked_ns: i64,
) -> Option<Before> {
    let mut longest: Option<Before> = None;
    let mut last: Option<i64> = None;
    let mut is_bad = false;
    for probe in &series.probes {
        if probe.finished > asked_ns {
            break;
        }
        match probe.worth(deadline_ns) {
            Worth::Bad => is_bad = true,
            Worth::NoData => {}
            worth @ (Worth::Good | Worth::Late) => {
                is_bad |= worth == Worth::Late;
                if let Some(from_ns) = last {
                    let found = Before {
                        from_ns,
                        to_ns: probe.finished,
                        is_bad,
                    };
                    let own = !is_bad && blind.overlaps(from_ns, probe.finished);
                    if !own && longest.is_none_or(|before| found.ns() > before.ns()) {
                        longest = Some(found);
                    }
                }
                last = Some(probe.finished);
                is_bad = false;
            }
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::super::series::testing::*;
    use super::*;
    use gapscope_proto::sample::{Cause, Outcome};

    const DEADLINE: i64 = 250 * MS;

    fn good(slot: u64) -> super::super::series::Probe {
        ok(slot, slot as i64 * 100 * MS, MS)
    }

    #[test]
    fn an_outage_that_was_over_is_found() {
        let refused = |slot: u64| {
            let at = slot as i64 * 100 * MS;
            bad(slot, at, MS, Outcome::ConnectFailed, Cause::Refused)
        };
        let probes: Vec<_> = (0..30)
            .map(|k| {
                if (10..15).contains(&k) {
                    refused(k)
                } else {
                    good(k)
                }
            })
            .collect();
        let series = series(100 * MS, 3 * S, probes);
        let blind = Blind::new(&[], &series);
        let at = |asked| longest_before(&series, DEADLINE, &blind, asked);
        let found = at(2 * S).expect("an outage");
        assert_eq!((found.from_ns, found.to_ns), (901 * MS, 1_501 * MS));
        assert!(found.is_bad);
        // Not over yet: it belongs to what was asked for in it.
        let found = at(1_200 * MS).expect("answers");
        assert_eq!((found.ns(), found.is_bad), (100 * MS, false));
        assert_eq!(at(0), None);
    }

    #[test]
    fn a_stall_within_the_deadline_is_found_and_a_late_agent_is_none() {
        let probes: Vec<_> = (0..30)
            .map(|k| match k {
                10 => ok(k, S, 220 * MS),
                k => good(k),
            })
            .filter(|p| !matches!(p.slot, 11 | 12 | 20..=24))
            .collect();
        let series = series(100 * MS, 3 * S, probes);
        let blind = Blind::new(&[], &series);
        let found = longest_before(&series, DEADLINE, &blind, 3 * S).expect("a stall");
        assert_eq!(
            (found.from_ns, found.ns(), found.is_bad),
            (901 * MS, 319 * MS, false)
        );
    }
}
