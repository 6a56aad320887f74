//! How long an outage can have been without anybody seeing it: nobody asked while
//! it lasted.
//!
//! Between two answers in time, one after the other, a client did not ask, so the
//! service can have been out from the begin of the first to the end of the second;
//! at the edges of the run from its begin and to its end. That is the client's
//! interval at least, and more where a slot holds no data. What was seen to be bad
//! or late is an outage of its own, with its own bounds.

use super::series::{ClientSeries, Worth};

/// The longest outage of a client that can lie between two of its answers, as far
/// as it touches `within` (RAW ns of the agent). An outage is that at the deadline.
pub fn longest_unseen_ns(series: &ClientSeries, deadline_ns: i64, within: (i64, i64)) -> i64 {
    let mut longest = 0;
    let mut between = |from: i64, to: i64| {
        if to > within.0 && from < within.1 {
            longest = longest.max(to.saturating_sub(from));
        }
    };
    let probes = &series.probes;
    // A fault is a small part of a run: only what touches it is looked at. One task, one
    // probe at a time: ends are in order.
    let first = probes.partition_point(|probe| probe.finished <= within.0);
    let before = probes[..first]
        .iter()
        .rev()
        .find(|probe| probe.worth(deadline_ns) != Worth::NoData);
    let mut since = match before {
        Some(probe) => (probe.worth(deadline_ns) == Worth::Good).then_some(probe.started),
        None => series.lives.first().map(|life| life.due_from_ns),
    };
    for probe in &probes[first..] {
        if since.unwrap_or(probe.started) >= within.1 {
            return longest;
        }
        match probe.worth(deadline_ns) {
            Worth::Good => {
                if let Some(from) = since {
                    between(from, probe.finished);
                }
                since = Some(probe.started);
            }
            Worth::Late | Worth::Bad => since = None,
            Worth::NoData => {}
        }
    }
    if let (Some(from), Some(life)) = (since, series.lives.last()) {
        between(from, life.due_until_ns);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::super::series::testing::*;
    use super::*;
    use gapscope_proto::sample::{Cause, Outcome};

    const DEADLINE: i64 = 250 * MS;
    const ALWAYS: (i64, i64) = (i64::MIN, i64::MAX);

    fn every_second(slots: std::ops::Range<u64>) -> Vec<super::super::series::Probe> {
        slots.map(|k| ok(k, k as i64 * S, 2 * MS)).collect()
    }

    #[test]
    fn nothing_is_known_between_two_answers() {
        let whole = series(S, 5 * S, every_second(0..5));
        assert_eq!(longest_unseen_ns(&whole, DEADLINE, ALWAYS), S + 2 * MS);
        // One probe in a run that is shorter than the interval.
        let once = series(10 * S, 4 * S, vec![ok(0, 0, MS)]);
        assert_eq!(longest_unseen_ns(&once, DEADLINE, ALWAYS), 4 * S);
        let none = series(S, 5 * S, Vec::new());
        assert_eq!(longest_unseen_ns(&none, DEADLINE, ALWAYS), 5 * S);
    }

    #[test]
    fn slots_without_data_lengthen_it_and_outages_do_not() {
        let mut probes = every_second(0..3);
        probes.extend(every_second(5..8));
        let holed = series(S, 8 * S, probes);
        assert_eq!(longest_unseen_ns(&holed, DEADLINE, ALWAYS), 3 * S + 2 * MS);
        let mut probes = every_second(0..2);
        probes.push(bad(2, 2 * S, 4 * S, Outcome::TimedOut, Cause::QueryTimeout));
        probes.extend(every_second(7..9));
        let out = series(S, 9 * S, probes);
        assert_eq!(longest_unseen_ns(&out, DEADLINE, ALWAYS), S + 2 * MS);
    }

    #[test]
    fn only_what_touches_the_time_asked_for_counts() {
        let mut probes = every_second(0..3);
        probes.extend(every_second(5..8));
        let holed = series(S, 8 * S, probes);
        let of = |from, to| longest_unseen_ns(&holed, DEADLINE, (from, to));
        assert_eq!(of(0, 1_500 * MS), S + 2 * MS);
        assert_eq!(of(4 * S, 4_100 * MS), 3 * S + 2 * MS);
        assert_eq!(of(6_500 * MS, i64::MAX), S + 2 * MS);
    }
}
