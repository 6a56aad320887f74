//! The run's timeline in UTC, and how far off other hosts' wall clocks are.
//!
//! The aggregator's anchors say what its wall clock showed at readings of its
//! RAW clock. Between and beyond them a wall clock may be slewed: 500 ppm are
//! allowed for. Labels only; no duration is ever taken from a wall clock.

use gapscope_proto::clock::ClockKey;
use gapscope_proto::host::Anchor;

use super::map::ClockMap;

const SLEW_PPM: i128 = 500;

fn clamp(ns: i128) -> i64 {
    i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}

/// Wall time on the run's timeline.
#[derive(Debug, Clone, Default)]
pub struct WallClock {
    anchors: Vec<Anchor>,
}

impl WallClock {
    /// From the aggregator's anchors.
    pub fn new(anchors: &[Anchor]) -> Self {
        let mut anchors: Vec<Anchor> = anchors
            .iter()
            .filter(|a| a.raw_before_ns <= a.raw_after_ns)
            .copied()
            .collect();
        anchors.sort_unstable_by_key(|a| a.raw_before_ns);
        Self { anchors }
    }

    /// What the aggregator's wall clock showed at a reading of its RAW clock, as
    /// nanoseconds since 1970: at least, at most. None without anchors.
    pub fn utc_ns(&self, server_ns: i64) -> Option<(i64, i64)> {
        let after = self.anchors.partition_point(|a| a.raw_after_ns < server_ns);
        let around = [after.checked_sub(1), Some(after)];
        let mut found: Option<(i128, i128)> = None;
        for anchor in around
            .into_iter()
            .flatten()
            .filter_map(|i| self.anchors.get(i))
        {
            let (before, after) = (
                i128::from(anchor.raw_before_ns),
                i128::from(anchor.raw_after_ns),
            );
            let now = i128::from(server_ns);
            let slewed = (now - before).abs().max((now - after).abs()) * SLEW_PPM / 1_000_000 + 1;
            let wall = i128::from(anchor.realtime_ns) + now;
            let (least, most) = (wall - after - slewed, wall - before + slewed);
            // A wall clock that was stepped between two anchors shows both.
            found = Some(found.map_or((least, most), |f| (f.0.min(least), f.1.max(most))));
        }
        found.map(|(least, most)| (clamp(least), clamp(most)))
    }
}

/// How far a host's wall clock is from the aggregator's, at least, in
/// nanoseconds; positive: ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WallError {
    /// At least so far, at the worst of its anchors.
    pub at_least_ns: i64,
    /// Reading of the agent's RAW clock at that anchor.
    pub at_ns: i64,
}

/// The worst of an agent's anchors; none if the bounds allow that its wall clock
/// agrees everywhere.
pub fn wall_error(
    wall: &WallClock,
    clocks: &ClockMap,
    clock: &ClockKey,
    anchors: &[Anchor],
) -> Option<WallError> {
    let mut worst: Option<WallError> = None;
    for anchor in anchors.iter().filter(|a| a.raw_before_ns <= a.raw_after_ns) {
        let begin = clocks.on_timeline(anchor.raw_before_ns, clock);
        let end = clocks.on_timeline(anchor.raw_after_ns, clock);
        let (Some(begin), Some(end)) = (begin, end) else {
            continue;
        };
        let (Some(least), Some(most)) =
            (wall.utc_ns(begin.earliest_ns), wall.utc_ns(end.latest_ns))
        else {
            continue;
        };
        let shown = i128::from(anchor.realtime_ns);
        let off = if shown > i128::from(most.1) {
            shown - i128::from(most.1)
        } else if shown < i128::from(least.0) {
            shown - i128::from(least.0)
        } else {
            continue;
        };
        let error = WallError {
            at_least_ns: clamp(off),
            at_ns: anchor.raw_before_ns,
        };
        if worst.is_none_or(|w| w.at_least_ns.unsigned_abs() < error.at_least_ns.unsigned_abs()) {
            worst = Some(error);
        }
    }
    worst
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn anchor(raw_ns: i64, realtime_ns: i64) -> Anchor {
        Anchor {
            raw_before_ns: raw_ns,
            raw_after_ns: raw_ns + 10,
            monotonic_ns: raw_ns,
            boottime_ns: raw_ns,
            realtime_ns,
            timer_late_ns: 0,
        }
    }

    #[test]
    fn a_label_lies_between_what_the_anchors_allow() {
        let wall = WallClock::new(&[anchor(0, 1_000_000), anchor(2_000_000, 3_000_500)]);
        let (least, most) = wall.utc_ns(1_000_000).expect("anchors");
        assert!(least <= 2_000_000 && 2_000_500 <= most && most - least < 2_000);
        assert_eq!(WallClock::default().utc_ns(5), None);
    }

    #[test]
    fn a_wall_clock_set_back_a_year_is_found_and_a_good_one_is_not() {
        let key = ClockKey {
            boot_id: "s".into(),
            time_namespace: 0,
        };
        let clocks = ClockMap::new(key.clone(), &BTreeMap::new());
        let year = 31_536_000_000_000_000;
        let now = 1_773_200_744_123_456_789;
        let wall = WallClock::new(&[anchor(0, now)]);
        let good = anchor(1_000_000_000, now + 1_000_000_000);
        assert_eq!(wall_error(&wall, &clocks, &key, &[good]), None);
        let bad = anchor(1_000_000_000, now + 1_000_000_000 - year);
        let found = wall_error(&wall, &clocks, &key, &[good, bad]).expect("off");
        assert!((found.at_least_ns + year).abs() < 1_000_000, "{found:?}");
        for extreme in [i64::MIN, i64::MAX] {
            assert!(wall_error(&wall, &clocks, &key, &[anchor(0, extreme)]).is_some());
        }
    }
}
