//! Times in which an agent itself stood still.
//!
//! A probe that was out meanwhile says less than its duration: the answer may
//! have lain ready for all of that time. What remains of its duration when the
//! time stood still is taken away is the least that the target took; the whole
//! is the most.
//!
//! Method: the agent's 10 ms ticker. A tick that was due at d and came at d + l
//! proves that the agent did not run its timers from d to d + l, and it may have
//! stopped up to one tick before d. That tick is counted in, so that a target is
//! never blamed for a part of it.
//!
//! Ticks late by two ticks or less are left to what a busy machine does.
//!
//! What it cannot know: standing still for less than that; and whether a probe
//! was really held up by what held up the ticker.

/// Sorted spans without overlaps, RAW ns of the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoodStill {
    /// Begin, end, and the length of all spans before.
    spans: Vec<(i64, i64, i64)>,
}

impl StoodStill {
    /// From spans in any order, which may overlap.
    pub fn new(mut spans: Vec<(i64, i64)>) -> Self {
        spans.retain(|(from, to)| from < to);
        spans.sort_unstable();
        let mut merged: Vec<(i64, i64, i64)> = Vec::new();
        for (from, to) in spans {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                last => {
                    let before = last.map_or(0, |last| last.2.saturating_add(last.1 - last.0));
                    merged.push((from, to, before));
                }
            }
        }
        Self { spans: merged }
    }

    /// How much of the time from `from` to `to` the agent stood still, in ns.
    pub fn within(&self, from: i64, to: i64) -> i64 {
        if from >= to {
            return 0;
        }
        self.until(to).saturating_sub(self.until(from))
    }

    /// All that lies before `at`.
    fn until(&self, at: i64) -> i64 {
        let begun = self.spans.partition_point(|span| span.0 < at);
        let Some(&(from, to, before)) = begun.checked_sub(1).map(|last| &self.spans[last]) else {
            return 0;
        };
        before.saturating_add(to.min(at).saturating_sub(from))
    }

    /// The longest span.
    pub fn longest_ns(&self) -> i64 {
        self.spans
            .iter()
            .map(|(from, to, _)| to.saturating_sub(*from))
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_stands_still_without_spans() {
        let still = StoodStill::default();
        assert_eq!(still.within(i64::MIN, i64::MAX), 0);
        assert_eq!(still.longest_ns(), 0);
    }

    #[test]
    fn parts_are_cut_out() {
        let still = StoodStill::new(vec![(100, 200), (150, 250), (400, 500), (600, 600)]);
        assert_eq!(still.within(0, 1_000), 250);
        assert_eq!(still.within(120, 130), 10);
        assert_eq!(still.within(240, 410), 20);
        assert_eq!(still.within(250, 400), 0);
        assert_eq!(still.within(500, 100), 0);
        assert_eq!(still.longest_ns(), 150);
    }

    proptest! {
        #[test]
        fn as_counted_one_by_one(
            spans in prop::collection::vec((0i64..200, 0i64..40), 0..12),
            from in 0i64..250,
            len in 0i64..250,
        ) {
            let spans: Vec<(i64, i64)> = spans.iter().map(|(at, len)| (*at, at + len)).collect();
            let still = StoodStill::new(spans.clone());
            let counted = (from..from + len)
                .filter(|at| spans.iter().any(|(a, b)| (*a..*b).contains(at)))
                .count();
            prop_assert_eq!(still.within(from, from + len), i64::try_from(counted).expect("small"));
        }
    }
}
