//! Quantiles by nearest rank: the value at rank ceil(q * n) of the sorted
//! values, always one that was measured (what polars calls `Equiprobable`).
//!
//! Two things are measured. Latency: of answered probes, finished - started.
//! Response: of every due slot with data, the time from its due time to the
//! answer; a slot that passed in a wait counts from its own due time, and one
//! that never got an answer ranks above all that did, so that a quantile that
//! falls there is "more than x", never left out.

use super::series::{Slot, Worth};
use gapscope_proto::sample::Outcome;

/// From how many values p99.9 is shown: ten of them lie beyond it.
pub const MIN_FOR_P999: usize = 10_000;

/// A quantile; `is_more_than` if it falls on an unanswered slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    /// In ns.
    pub ns: i64,
    /// The true value is larger than that.
    pub is_more_than: bool,
}

/// Quantiles of one set of values.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Quantiles {
    /// How many values.
    pub count: usize,
    /// Of these, unanswered.
    pub unanswered: usize,
    /// Mean of the answered ones.
    pub avg_ns: Option<f64>,
    /// Nearest rank.
    pub p50: Option<Value>,
    /// Nearest rank.
    pub p90: Option<Value>,
    /// Nearest rank.
    pub p99: Option<Value>,
    /// Nearest rank; from [`MIN_FOR_P999`] values on.
    pub p999: Option<Value>,
    /// The largest.
    pub max: Option<Value>,
}

/// Values of a kind, answered and not.
#[derive(Debug, Clone, Default)]
pub struct Values {
    answered: Vec<i64>,
    /// How long the unanswered ones have lasted at least.
    unanswered: Vec<i64>,
}

impl Values {
    /// An answer came after `ns`.
    pub fn answered(&mut self, ns: i64) {
        self.answered.push(ns);
    }

    /// No answer had come after `ns`.
    pub fn unanswered(&mut self, ns: i64) {
        self.unanswered.push(ns);
    }

    /// Adds the response of one slot.
    pub fn add_response(&mut self, slot: &Slot<'_>, deadline_ns: i64) {
        let (due_ns, probe) = match slot {
            Slot::Probed(probe) => (probe.scheduled, *probe),
            Slot::Waited { due_ns, by, .. } => (*due_ns, *by),
            Slot::Overslept { .. } | Slot::Absent { .. } => return,
        };
        if probe.is_blind(deadline_ns) || slot.is_wait_without_data(deadline_ns) {
            return;
        }
        let took = probe.finished.saturating_sub(due_ns);
        if probe.outcome == Outcome::Ok {
            self.answered(took);
        } else if probe.worth(deadline_ns) != Worth::NoData {
            self.unanswered(took);
        }
    }

    /// Adds another set's.
    pub fn merge(&mut self, other: &Self) {
        self.answered.extend_from_slice(&other.answered);
        self.unanswered.extend_from_slice(&other.unanswered);
    }

    /// Sorts, and reads off the quantiles.
    pub fn quantiles(mut self) -> Quantiles {
        sort(&mut self.answered);
        let lower = self.lower();
        let count = self.answered.len() + self.unanswered.len();
        let at = |permille: usize| {
            let rank = nearest_rank(permille, count)?;
            Some(match self.answered.get(rank - 1) {
                Some(ns) => Value {
                    ns: *ns,
                    is_more_than: false,
                },
                None => Value {
                    ns: lower[rank - 1].max(self.answered.last().copied().unwrap_or(0)),
                    is_more_than: true,
                },
            })
        };
        let sum: i128 = self.answered.iter().map(|ns| i128::from(*ns)).sum();
        Quantiles {
            count,
            unanswered: self.unanswered.len(),
            avg_ns: (!self.answered.is_empty()).then(|| sum as f64 / self.answered.len() as f64),
            p50: at(500),
            p90: at(900),
            p99: at(990),
            p999: if count >= MIN_FOR_P999 { at(999) } else { None },
            max: at(1000),
        }
    }
}

impl Values {
    /// Bounds from below of all values, sorted; none are needed where all are known.
    fn lower(&self) -> Vec<i64> {
        if self.unanswered.is_empty() {
            return Vec::new();
        }
        let mut lower = Vec::with_capacity(self.answered.len() + self.unanswered.len());
        lower.extend_from_slice(&self.answered);
        lower.extend_from_slice(&self.unanswered);
        sort(&mut lower);
        lower
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.answered.len() + self.unanswered.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value at each of `points` shares from half on towards 1, each halving
    /// (and less) what lies beyond: for a curve whose axis counts nines. The last
    /// point is the largest.
    pub fn curve(mut self) -> Vec<(f64, Value)> {
        sort(&mut self.answered);
        let lower = self.lower();
        let count = self.answered.len() + self.unanswered.len();
        let largest = self.answered.last().copied().unwrap_or(0);
        let mut found: Vec<(f64, Value)> = Vec::new();
        let mut last_rank = 0;
        for step in 0.. {
            // What lies beyond: 1, then an eighth of a decade less each time.
            let beyond = 10f64.powf(-f64::from(step) / 8.0);
            let is_last = beyond * count as f64 <= 1.0;
            let rank = if is_last {
                count
            } else {
                (((1.0 - beyond) * count as f64).ceil() as usize).clamp(1, count)
            };
            if count == 0 {
                break;
            }
            if rank != last_rank {
                let value = match self.answered.get(rank - 1) {
                    Some(ns) => Value {
                        ns: *ns,
                        is_more_than: false,
                    },
                    None => Value {
                        ns: lower[rank - 1].max(largest),
                        is_more_than: true,
                    },
                };
                found.push((rank as f64 / count as f64, value));
                last_rank = rank;
            }
            if is_last {
                break;
            }
        }
        found
    }
}

/// Sorts times, of which there can be millions and which mostly lie within some
/// seconds: digit by digit from the lowest (a radix sort), where that is so.
fn sort(values: &mut Vec<i64>) {
    const DIGIT: u32 = 11;
    const DIGITS: usize = 3;
    const BUCKETS: usize = 1 << DIGIT;
    const LEAST: usize = 1 << 14;
    let is_short = |value: &i64| (0..1 << (DIGIT as usize * DIGITS)).contains(value);
    if values.len() < LEAST || !values.iter().all(is_short) {
        values.sort_unstable();
        return;
    }
    let digit = |value: i64, place: usize| (value >> (DIGIT as usize * place)) as usize % BUCKETS;
    let mut counts = vec![[0_usize; BUCKETS]; DIGITS];
    for value in values.iter() {
        for (place, counts) in counts.iter_mut().enumerate() {
            counts[digit(*value, place)] += 1;
        }
    }
    let mut sorted = vec![0; values.len()];
    for (place, counts) in counts.iter_mut().enumerate() {
        if counts.contains(&values.len()) {
            // All alike.
            continue;
        }
        let mut begin = 0;
        for count in counts.iter_mut() {
            begin += std::mem::replace(count, begin);
        }
        for value in values.iter() {
            let at = &mut counts[digit(*value, place)];
            sorted[*at] = *value;
            *at += 1;
        }
        std::mem::swap(values, &mut sorted);
    }
}

/// ceil(q * n), from 1.
fn nearest_rank(permille: usize, count: usize) -> Option<usize> {
    (count > 0).then(|| (permille * count).div_ceil(1000).max(1))
}

#[cfg(test)]
mod tests {
    use super::super::series::testing::*;
    use super::*;
    use gapscope_proto::sample::Cause;

    #[test]
    fn many_are_sorted_like_few() {
        let mut state = 7_u64;
        for most in [5, 3_000, 5_000_000, 1 << 33, 1 << 34, i64::MAX] {
            for least in [0, 1, -3] {
                let mut values: Vec<i64> = (0..20_000)
                    .map(|_| {
                        state = state
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        (i64::try_from(state >> 1).expect("63 bits") % most).max(least)
                    })
                    .collect();
                values.push(least);
                let mut expect = values.clone();
                expect.sort_unstable();
                sort(&mut values);
                assert!(values == expect, "{least}..{most}");
            }
        }
    }

    fn known(ns: i64) -> Option<Value> {
        Some(Value {
            ns,
            is_more_than: false,
        })
    }

    fn more(ns: i64) -> Option<Value> {
        Some(Value {
            ns,
            is_more_than: true,
        })
    }

    fn of(answered: &[i64], unanswered: &[i64]) -> Quantiles {
        Values {
            answered: answered.to_vec(),
            unanswered: unanswered.to_vec(),
        }
        .quantiles()
    }

    #[test]
    fn the_rank_is_the_nearest_one() {
        let q = of(&[5, 1, 3, 2, 4], &[]);
        assert_eq!(
            (q.p50, q.p90, q.p99, q.max),
            (known(3), known(5), known(5), known(5))
        );
        let q = of(&[1, 2, 3, 4], &[]);
        assert_eq!(q.p50, known(2), "not a mean of two");
        assert_eq!(q.avg_ns, Some(2.5));
        let q = of(&(1..=60).collect::<Vec<_>>(), &[]);
        assert_eq!(q.p99, known(60), "of 60 values the largest");
        let q = of(&(1..=100).collect::<Vec<_>>(), &[]);
        assert_eq!(q.p99, known(99));
    }

    #[test]
    fn a_quantile_among_the_unanswered_is_more_than() {
        let q = of(&[1; 50], &[5_000; 10]);
        assert_eq!((q.p50, q.p90), (known(1), more(5_000)));
        assert_eq!(q.max, more(5_000));
        // Refused at once: the answer would have come later than any that came.
        let q = of(&[10; 9], &[1]);
        assert_eq!(q.max, more(10));
        assert_eq!(of(&[], &[7]).p50, more(7));
    }

    #[test]
    fn p999_needs_ten_thousand_values() {
        assert_eq!(of(&[1; 9_999], &[]).p999, None);
        assert_eq!(
            of(&(1..=10_000).collect::<Vec<_>>(), &[]).p999,
            known(9_990)
        );
    }

    #[test]
    fn a_curve_is_made_of_values_that_were_measured_and_ends_with_the_largest() {
        let values = Values {
            answered: (1..=10_000).collect(),
            unanswered: vec![77; 2],
        };
        let curve = values.curve();
        assert_eq!(curve.last().map(|c| c.1), more(10_000));
        assert_eq!(curve.last().map(|c| c.0), Some(1.0));
        assert!(
            curve
                .windows(2)
                .all(|w| w[0].0 < w[1].0 && w[0].1.ns <= w[1].1.ns)
        );
        let at = |q: f64| curve.iter().find(|c| c.0 >= q).expect("there").1.ns;
        assert_eq!(at(0.9), 9_002);
        assert!((9_902..=9_903).contains(&at(0.99)));
        assert_eq!(Values::default().curve(), []);
    }

    #[test]
    fn nothing_gives_nothing() {
        assert_eq!(of(&[], &[]), Quantiles::default());
    }

    #[test]
    fn each_slot_responds_from_its_own_due_time() {
        let history = series(
            100 * MS,
            500 * MS,
            vec![
                ok(0, 0, 250 * MS),
                ok(3, 300 * MS, MS),
                bad(4, 400 * MS, 3 * MS, Outcome::ConnectFailed, Cause::Refused),
            ],
        );
        let mut values = Values::default();
        history.for_each_slot(|slot| values.add_response(&slot, 250 * MS));
        assert_eq!(values.answered, [250 * MS, 150 * MS, 50 * MS, MS]);
        assert_eq!(values.unanswered, [3 * MS]);
    }
}
