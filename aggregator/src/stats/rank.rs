//! Medians and quantiles by rank, and an interval of the median that assumes
//! nothing about the distribution.

/// In ascending order; what is no number is left out.
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values: Vec<f64> = values.iter().copied().filter(|v| !v.is_nan()).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The median: of an even number of values, the mean of the middle two.
pub fn median(values: &[f64]) -> Option<f64> {
    let values = sorted(values);
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = values[values.len() / 2 - 1];
    Some(f64::midpoint(lower, upper))
}

/// The value of nearest rank: the smallest one that at least the share `q` of
/// all values does not exceed.
pub fn nearest_rank(sorted: &[u64], q: f64) -> Option<u64> {
    let last = sorted.len().checked_sub(1)?;
    let rank = (q * sorted.len() as f64).ceil().max(1.0);
    // Ranks are far below 2^53.
    sorted.get((rank as usize - 1).min(last)).copied()
}

/// An interval of the median by order statistics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MedianInterval {
    /// Its lower end, a value that was seen.
    pub lower: f64,
    /// Its upper end, likewise.
    pub upper: f64,
    /// How surely it holds the median; at least what was asked for.
    pub coverage: f64,
}

/// The narrowest symmetric interval of two seen values that holds the
/// population's median with probability `confidence` at least: the number of
/// values below the median is binomial with p = 1/2. `None` where even minimum
/// and maximum do not reach it (at 95 %: below 6 values).
pub fn median_interval(values: &[f64], confidence: f64) -> Option<MedianInterval> {
    let values = sorted(values);
    let n = values.len();
    let mut found = None;
    // P(fewer than k values are below the median), summed up term by term.
    let mut below = 0.0;
    let mut term = 0.5_f64.powi(i32::try_from(n).ok()?);
    for k in 0..n.div_ceil(2) {
        below += term;
        let coverage = 1.0 - 2.0 * below;
        if coverage < confidence {
            break;
        }
        found = Some(MedianInterval {
            lower: values[k],
            upper: values[n - 1 - k],
            coverage,
        });
        term *= (n - k) as f64 / (k + 1) as f64;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[3.0, 1.0]), Some(2.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[f64::NAN, 1.0, 2.0, 4.0]), Some(2.0));
    }

    #[test]
    fn nearest_ranks() {
        let values: Vec<u64> = (1..=100).collect();
        assert_eq!(nearest_rank(&values, 0.5), Some(50));
        assert_eq!(nearest_rank(&values, 0.99), Some(99));
        assert_eq!(nearest_rank(&values, 1.0), Some(100));
        assert_eq!(nearest_rank(&values, 0.0), Some(1));
        assert_eq!(nearest_rank(&[7], 0.99), Some(7));
        assert_eq!(nearest_rank(&[], 0.5), None);
    }

    /// Known from tables of the sign test: ranks and exact coverage.
    #[track_caller]
    fn check(n: usize, expect: Option<(f64, f64, f64)>) {
        let values: Vec<f64> = (1..=n).map(|v| v as f64).collect();
        let found = median_interval(&values, 0.95);
        match (found, expect) {
            (None, None) => {}
            (Some(found), Some((lower, upper, coverage))) => {
                assert_eq!((found.lower, found.upper), (lower, upper), "n = {n}");
                assert!((found.coverage - coverage).abs() < 1e-4, "{found:?}");
            }
            other => panic!("n = {n}: {other:?}"),
        }
    }

    #[test]
    fn the_interval_of_a_median_is_that_of_the_tables() {
        check(0, None);
        check(5, None);
        check(6, Some((1.0, 6.0, 0.9687)));
        check(8, Some((1.0, 8.0, 0.9922)));
        check(9, Some((2.0, 8.0, 0.9609)));
        check(12, Some((3.0, 10.0, 0.9614)));
        check(20, Some((6.0, 15.0, 0.9586)));
        check(25, Some((8.0, 18.0, 0.9567)));
    }
}
