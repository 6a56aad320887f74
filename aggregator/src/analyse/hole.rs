//! Times of which nothing is known of a client, however that came: the agent was
//! late, stood still or was not there, or what it sampled did not arrive. An
//! outage may lie in such a time as a whole.
//!
//! A hole begins with the end of the last probe that said something and ends with
//! the end of the next one that does; at the edges of the run with the first and
//! the last slot. It is one only if a slot in it holds no data: a client that asks
//! every 30 s has no holes between its probes.

use super::series::{ClientSeries, Slot, Worth};

/// The holes of a client that are longer than its deadline, in order: begin and
/// end, RAW ns of the agent.
pub fn holes(series: &ClientSeries, deadline_ns: i64) -> Vec<(i64, i64)> {
    let mut found = Vec::new();
    let mut since: Option<i64> = None;
    let mut is_open = false;
    let mut last_due = i64::MIN;
    let mut close = |since: Option<i64>, to: i64| {
        if let Some(from) = since
            && to.saturating_sub(from) > deadline_ns
        {
            found.push((from, to));
        }
    };
    series.for_each_slot(|slot| {
        let (due_ns, known) = match slot {
            Slot::Probed(probe) if probe.worth(deadline_ns) != Worth::NoData => {
                (probe.scheduled, Some(probe.finished))
            }
            Slot::Probed(probe) => (probe.scheduled, None),
            // What the client waited for speaks for the slot, at its own place.
            Slot::Waited { due_ns, .. } if !slot.is_wait_without_data(deadline_ns) => {
                last_due = last_due.max(due_ns);
                return;
            }
            Slot::Waited { due_ns, .. } | Slot::Overslept { due_ns } | Slot::Absent { due_ns } => {
                (due_ns, None)
            }
        };
        last_due = last_due.max(due_ns);
        let from = *since.get_or_insert(due_ns);
        match known {
            Some(finished) => {
                if is_open {
                    close(Some(from), finished);
                }
                is_open = false;
                since = Some(finished);
            }
            None => is_open = true,
        }
    });
    if is_open {
        close(since, last_due.saturating_add(series.interval_ns));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::series::testing::*;
    use super::super::still::StoodStill;
    use super::*;
    use gapscope_proto::sample::{Cause, Outcome};

    const DEADLINE: i64 = 250 * MS;

    fn at(slot: u64) -> super::super::series::Probe {
        ok(slot, slot as i64 * 100 * MS, MS)
    }

    #[test]
    fn a_client_that_was_watched_has_none() {
        let whole = series(100 * MS, 2 * S, (0..20).map(at).collect());
        assert_eq!(holes(&whole, DEADLINE), []);
        // Out for a second, and watched all the while.
        let timed_out = bad(2, 200 * MS, S, Outcome::TimedOut, Cause::QueryTimeout);
        let probes = [0, 1].map(at).into_iter().chain([timed_out]);
        let out = series(100 * MS, 2 * S, probes.chain((13..20).map(at)).collect());
        assert_eq!(holes(&out, DEADLINE), []);
    }

    #[test]
    fn missing_slots_are_one_within_and_at_the_edges() {
        let within = (0..3).chain(10..20).map(at).collect();
        let s = series(100 * MS, 2 * S, within);
        assert_eq!(holes(&s, DEADLINE), [(201 * MS, S + MS)]);
        let edges = (5..12).map(at).collect();
        let s = series(100 * MS, 2 * S, edges);
        assert_eq!(holes(&s, DEADLINE), [(0, 501 * MS), (1_101 * MS, 2 * S)]);
        // Shorter than a late answer.
        let short = (0..3).chain(4..20).map(at).collect();
        assert_eq!(holes(&series(100 * MS, 2 * S, short), DEADLINE), []);
        assert_eq!(
            holes(&series(100 * MS, 2 * S, Vec::new()), DEADLINE).len(),
            1
        );
    }

    #[test]
    fn an_agent_that_stood_still_leaves_one() {
        let waited = ok(2, 200 * MS, S);
        let probes = [0, 1].map(at).into_iter().chain([waited]);
        let mut s = series(100 * MS, 2 * S, probes.chain((13..20).map(at)).collect());
        assert_eq!(holes(&s, DEADLINE), []);
        s.stood_still(&StoodStill::new(vec![(210 * MS, 1_200 * MS)]));
        assert_eq!(holes(&s, DEADLINE), [(101 * MS, 1_301 * MS)]);
    }
}
