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

    /// Reads off the quantiles.
    pub fn quantiles(mut self) -> Quantiles {
        const PERMILLES: [usize; 5] = [500, 900, 990, 999, 1000];
        let count = self.len();
        let ranks: Vec<usize> = PERMILLES
            .iter()
            .filter_map(|permille| nearest_rank(*permille, count))
            .collect();
        let found = self.at_ranks(&ranks);
        let at = |permille: usize| {
            let rank = nearest_rank(permille, count)?;
            let place = ranks.iter().position(|known| *known == rank)?;
            found.get(place).copied()
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

    /// The values of these ranks, from 1, in order; of an unanswered one a bound from
    /// below. Changes the order of the values.
    fn at_ranks(&mut self, ranks: &[usize]) -> Vec<Value> {
        let answered = self.answered.len();
        let known: Vec<usize> = ranks.iter().copied().filter(|r| *r <= answered).collect();
        let largest = self.answered.iter().max().copied().unwrap_or(0);
        select(&mut self.answered, &known, 0);
        // Bounds from below of all values: needed where not all are known.
        let open: Vec<usize> = ranks.iter().copied().filter(|r| *r > answered).collect();
        let mut lower = Vec::new();
        if !open.is_empty() {
            lower.reserve_exact(self.len());
            lower.extend_from_slice(&self.answered);
            lower.extend_from_slice(&self.unanswered);
            select(&mut lower, &open, 0);
        }
        ranks
            .iter()
            .map(|rank| match self.answered.get(rank - 1) {
                Some(ns) => Value {
                    ns: *ns,
                    is_more_than: false,
                },
                None => Value {
                    ns: lower[rank - 1].max(largest),
                    is_more_than: true,
                },
            })
            .collect()
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
        let count = self.len();
        let mut ranks: Vec<usize> = Vec::new();
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
            if ranks.last() != Some(&rank) {
                ranks.push(rank);
            }
            if is_last {
                break;
            }
        }
        let values = self.at_ranks(&ranks);
        let shares = ranks.iter().map(|rank| *rank as f64 / count as f64);
        shares.zip(values).collect()
    }
}

/// Brings the values of these ranks, in order and counted from one more than `before`,
/// to their places: by halves of the ranks, each by quickselect (Hoare, *Algorithm 65:
/// Find*, 1961), so that millions of values are gone through a few times only.
fn select(values: &mut [i64], ranks: &[usize], before: usize) {
    let Some(rank) = ranks.get(ranks.len() / 2) else {
        return;
    };
    let place = rank - 1 - before;
    values.select_nth_unstable(place);
    let less = ranks.partition_point(|other| other < rank);
    let more = ranks.partition_point(|other| other <= rank);
    select(&mut values[..place], &ranks[..less], before);
    select(&mut values[place + 1..], &ranks[more..], *rank);
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
    fn ranks_are_found_as_in_sorted_values() {
        let mut state = 7_u64;
        for most in [1, 5, 3_000, 1 << 33, i64::MAX] {
            for count in [1, 2, 7, 100, 20_000] {
                let values: Vec<i64> = (0..count)
                    .map(|_| {
                        state = state
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        i64::try_from(state >> 1).expect("63 bits") % most
                    })
                    .collect();
                let mut sorted = values.clone();
                sorted.sort_unstable();
                let ranks = [1, count / 3, count / 2, count / 2 + 1, count];
                let mut ranks: Vec<usize> = ranks.into_iter().filter(|r| *r > 0).collect();
                ranks.sort_unstable();
                ranks.dedup();
                let mut selected = values.clone();
                select(&mut selected, &ranks, 0);
                for rank in &ranks {
                    assert_eq!(selected[rank - 1], sorted[rank - 1], "{rank} of {count}");
                }
                // Some of them without an answer: those rank above all.
                let answered = count - count / 4;
                let mut some = Values {
                    answered: values[..answered].to_vec(),
                    unanswered: values[answered..].to_vec(),
                };
                let mut known = values[..answered].to_vec();
                known.sort_unstable();
                for (rank, value) in ranks.iter().zip(some.at_ranks(&ranks)) {
                    assert_eq!(value.is_more_than, *rank > answered);
                    let expect = match known.get(rank - 1) {
                        Some(ns) => *ns,
                        None => sorted[rank - 1].max(known[answered - 1]),
                    };
                    assert_eq!(value.ns, expect, "{rank} of {count}");
                }
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
