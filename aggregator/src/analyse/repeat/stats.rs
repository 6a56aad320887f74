//! The statistics of few repetitions: nothing is assumed about how values are
//! distributed, since those of real proxies come in modes.
//!
//! Sources: Wilson 1927 for shares; order statistics (Thompson 1936) for medians;
//! Kaplan and Meier 1958 for values that are known to be at least so long;
//! Spearman 1904 for trends.

/// A value, or the least that it can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Censored {
    /// The value.
    pub ns: i64,
    /// It was not over when the watching was.
    pub is_at_least: bool,
}

/// `k` of `n`, with an interval of 95 %.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// How many.
    pub k: usize,
    /// Of how many.
    pub n: usize,
    /// The interval, as parts of one.
    pub interval: (f64, f64),
}

/// Two-sided 95 % of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// Wilson's score interval.
pub fn wilson(k: usize, n: usize) -> Share {
    if n == 0 {
        return Share {
            k,
            n,
            interval: (0.0, 1.0),
        };
    }
    let (kf, nf) = (k as f64, n as f64);
    let z2 = Z * Z;
    let centre = (kf + z2 / 2.0) / (nf + z2);
    let half = Z / (nf + z2) * (kf * (nf - kf) / nf + z2 / 4.0).sqrt();
    let low = if k == 0 {
        0.0
    } else {
        (centre - half).max(0.0)
    };
    let high = if k == n {
        1.0
    } else {
        (centre + half).min(1.0)
    };
    Share {
        k,
        n,
        interval: (low, high),
    }
}

/// Ranks, from 1, between which the median of the distribution lies with at least
/// 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranks {
    /// The lower one; the upper one is as far from the other end.
    pub low: usize,
    /// The upper one.
    pub high: usize,
}

/// The narrowest such ranks of `n` values that are as far from both ends; none
/// below 6.
pub fn order_ranks(n: usize) -> Option<Ranks> {
    // P(X < r) for X binomial (n, 1/2), each side at most 2.5 %.
    let mut probability = 0.5f64.powi(i32::try_from(n).ok()?);
    let mut below = 0.0;
    let mut low = 0;
    for r in 0..n {
        below += probability;
        if below > 0.025 {
            break;
        }
        low = r + 1;
        probability *= (n - r) as f64 / (r + 1) as f64;
    }
    (low > 0).then_some(Ranks {
        low,
        high: n + 1 - low,
    })
}

impl Ranks {
    /// The value at the lower rank: one that is at least so long counts as that
    /// long, so the true one is not smaller.
    pub fn low(self, values: &[Censored]) -> i64 {
        let mut sorted: Vec<i64> = values.iter().map(|value| value.ns).collect();
        sorted.sort_unstable();
        sorted[self.low - 1]
    }

    /// The value at the upper rank: one that is at least so long counts as without
    /// an end; `None` if such a one stands there.
    pub fn high(self, values: &[Censored]) -> Option<i64> {
        let mut sorted: Vec<i64> = values
            .iter()
            .filter(|value| !value.is_at_least)
            .map(|value| value.ns)
            .collect();
        sorted.sort_unstable();
        sorted.get(self.high - 1).copied()
    }
}

/// The smallest value at which the Kaplan-Meier estimate of what lasts longer is
/// one half or less; none if it stays above.
pub fn median(values: &[Censored]) -> Option<i64> {
    let mut sorted = values.to_vec();
    // Of equal ones, those that are over come first: the others lasted longer.
    sorted.sort_by_key(|value| (value.ns, value.is_at_least));
    let n = sorted.len();
    let mut survival = 1.0;
    for (at, value) in sorted.iter().enumerate() {
        if value.is_at_least {
            continue;
        }
        survival *= 1.0 - 1.0 / (n - at) as f64;
        // The product of exact fractions, up to the rounding of each.
        if survival <= 0.5 + 1e-9 {
            return Some(value.ns);
        }
    }
    None
}

/// Values that lie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// How many.
    pub count: usize,
    /// The smallest.
    pub from_ns: i64,
    /// The largest.
    pub to_ns: i64,
}

/// All of them, by size; and how many values are not over, which belong to none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Modes(pub Vec<Mode>, pub usize);

/// Splits the values wherever two neighbours are further apart than three
/// intervals of probing and than 15 % of the smaller one. A description, not a
/// test.
pub fn modes(values: &[Censored], interval_ns: i64) -> Modes {
    let mut over: Vec<i64> = values
        .iter()
        .filter(|value| !value.is_at_least)
        .map(|value| value.ns)
        .collect();
    over.sort_unstable();
    let mut found: Vec<Mode> = Vec::new();
    for ns in &over {
        match found.last_mut() {
            Some(mode)
                if ns - mode.to_ns
                    <= (3 * interval_ns).max(mode.to_ns.saturating_mul(15) / 100) =>
            {
                mode.count += 1;
                mode.to_ns = *ns;
            }
            _ => found.push(Mode {
                count: 1,
                from_ns: *ns,
                to_ns: *ns,
            }),
        }
    }
    let open = values.len() - over.len();
    Modes(found, open)
}

/// Spearman's rank correlation of the values with their order; equal values share
/// the mean of their ranks. None below 6 values, or where all are equal. Values
/// that are not over count as the longest.
pub fn spearman(values: &[Censored]) -> Option<f64> {
    let n = values.len();
    if n < 6 {
        return None;
    }
    let key = |value: &Censored| (value.is_at_least, value.ns);
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by_key(|at| key(&values[*at]));
    let mut ranks = vec![0.0; n];
    let mut from = 0;
    while from < n {
        let mut to = from + 1;
        while to < n && key(&values[order[to]]) == key(&values[order[from]]) {
            to += 1;
        }
        let mean = (from + to - 1) as f64 / 2.0;
        for at in &order[from..to] {
            ranks[*at] = mean;
        }
        from = to;
    }
    let middle = (n - 1) as f64 / 2.0;
    let (mut both, mut of_values, mut of_order) = (0.0, 0.0, 0.0);
    for (at, rank) in ranks.iter().enumerate() {
        let (a, b) = (rank - middle, at as f64 - middle);
        both += a * b;
        of_values += a * a;
        of_order += b * b;
    }
    (of_values > 0.0).then(|| both / (of_values * of_order).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(values: &[i64]) -> Vec<Censored> {
        values
            .iter()
            .map(|ns| Censored {
                ns: *ns,
                is_at_least: false,
            })
            .collect()
    }

    fn at_least(ns: i64) -> Censored {
        Censored {
            ns,
            is_at_least: true,
        }
    }

    #[test]
    fn shares_have_wilson_s_interval() {
        for (k, n, low, high) in [
            (17, 20, 0.640, 0.948),
            (20, 20, 0.839, 1.0),
            (5, 5, 0.566, 1.0),
            (0, 10, 0.0, 0.278),
            (0, 0, 0.0, 1.0),
        ] {
            let (found_low, found_high) = wilson(k, n).interval;
            assert!(
                (found_low - low).abs() < 0.001 && (found_high - high).abs() < 0.001,
                "{k} of {n}: {found_low}..{found_high}"
            );
        }
    }

    #[test]
    fn medians_have_ranks_from_six_on() {
        for (n, ranks) in [
            (0, None),
            (5, None),
            (6, Some((1, 6))),
            (8, Some((1, 8))),
            (9, Some((2, 8))),
            (12, Some((3, 10))),
            (20, Some((6, 15))),
            (100, Some((40, 61))),
        ] {
            assert_eq!(order_ranks(n).map(|r| (r.low, r.high)), ranks, "{n} values");
        }
    }

    #[test]
    fn ranks_hold_the_median_as_often_as_they_say() {
        // All orders of 6 coin flips: the true median lies outside in 2 of 64.
        let ranks = order_ranks(6).expect("six");
        let outside = (0u32..64)
            .filter(|flips| {
                let below = flips.count_ones() as usize;
                below < ranks.low || below >= ranks.high
            })
            .count();
        assert_eq!(outside, 2);
    }

    #[test]
    fn the_median_knows_what_is_not_over() {
        assert_eq!(median(&exact(&[3, 1, 2])), Some(2));
        assert_eq!(median(&exact(&[4, 1, 2, 3])), Some(2));
        assert_eq!(median(&[]), None);
        // 1, 2 over; two that lasted longer: half of all are over at 2.
        let mut values = exact(&[1, 2]);
        values.extend([at_least(5), at_least(5)]);
        assert_eq!(median(&values), Some(2));
        // One that was lost sight of early says nothing about the end.
        let mut values = exact(&[2, 3, 4]);
        values.push(at_least(1));
        assert_eq!(median(&values), Some(3));
        assert_eq!(median(&[at_least(5), at_least(5)]), None);
    }

    #[test]
    fn ranks_are_taken_outward() {
        let mut values = exact(&[10, 20, 30, 40, 50]);
        values.push(at_least(15));
        let ranks = order_ranks(6).expect("six");
        assert_eq!(ranks.low(&values), 10);
        assert_eq!(ranks.high(&values), None);
    }

    #[test]
    fn modes_are_told_apart() {
        let ms = |v: &[i64]| exact(&v.iter().map(|v| v * 1_000_000).collect::<Vec<_>>());
        let found = modes(&ms(&[3_030, 4_030, 3_040, 3_050, 4_040, 2_030]), 10_000_000);
        let counts: Vec<usize> = found.0.iter().map(|m| m.count).collect();
        assert_eq!(counts, [1, 3, 2]);
        // Evenly spread values are one mode.
        let spread: Vec<i64> = (0..20).map(|n| 2_000 + 100 * n).collect();
        assert_eq!(modes(&ms(&spread), 10_000_000).0.len(), 1);
        // Around one interval of probing nothing can be told apart.
        assert_eq!(modes(&ms(&[10, 11, 21, 30]), 10_000_000).0.len(), 1);
        let mut values = ms(&[100]);
        values.push(at_least(1));
        assert_eq!(modes(&values, 1).1, 1);
    }

    #[test]
    fn trends_are_rank_correlations() {
        let close = |found: Option<f64>, wanted: f64| {
            assert!(
                found.is_some_and(|rho| (rho - wanted).abs() < 1e-9),
                "{found:?}"
            );
        };
        close(spearman(&exact(&[1, 2, 3, 4, 5, 9])), 1.0);
        close(spearman(&exact(&[9, 5, 4, 3, 2, 1])), -1.0);
        assert_eq!(spearman(&exact(&[1, 2, 3])), None);
        assert_eq!(spearman(&exact(&[7; 8])), None);
        close(
            spearman(&exact(&[1, 1, 2, 2, 3, 3])),
            0.956_182_887_467_514_9,
        );
    }
}
