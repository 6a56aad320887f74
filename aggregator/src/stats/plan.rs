//! How many units a claim needs, before anything is measured. Two-sided level,
//! power 80 % unless said otherwise; by the normal approximation, then corrected
//! for small numbers by Student's t.

use super::student::quantile;

/// What is wanted of an experiment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wanted {
    /// Probability of finding a difference where there is none.
    pub level: f64,
    /// Probability of finding one that is there.
    pub power: f64,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            level: 0.05,
            power: 0.8,
        }
    }
}

/// More than this is never worth computing.
const MOST: u64 = 100_000_000;

fn normal(p: f64) -> f64 {
    quantile(p, 1e9)
}

fn up(n: f64) -> u64 {
    // Saturates; below 2^53 it is exact.
    (n.ceil().max(0.0) as u64).min(MOST)
}

/// Smallest n with n >= factor * (t(level) + t(power))^2, the degrees of freedom
/// being `of(n)`.
fn by_t(factor: f64, wanted: Wanted, of: impl Fn(f64) -> f64) -> u64 {
    let z = normal(1.0 - wanted.level / 2.0) + normal(wanted.power);
    let mut n = up(factor * z * z).max(2);
    // The tails of t shrink as n grows, so this ends.
    while n < 10_000 {
        let df = of(n as f64);
        let t = quantile(1.0 - wanted.level / 2.0, df) + quantile(wanted.power, df);
        if n as f64 >= factor * t * t {
            break;
        }
        n += 1;
    }
    n
}

/// Pairs (rounds) needed to find a mean difference of `difference` where single
/// differences have the standard deviation `deviation`.
pub fn pairs(difference: f64, deviation: f64, wanted: Wanted) -> u64 {
    by_t((deviation / difference).powi(2), wanted, |n| n - 1.0)
}

/// Units in each of two arms to find means that are `difference` apart, units
/// having the standard deviation `deviation`.
pub fn per_arm(difference: f64, deviation: f64, wanted: Wanted) -> u64 {
    by_t(2.0 * (deviation / difference).powi(2), wanted, |n| {
        2.0 * n - 2.0
    })
}

/// Independent units in each of two arms to tell the shares `a` and `b` apart.
pub fn shares(a: f64, b: f64, wanted: Wanted) -> u64 {
    let middle = f64::midpoint(a, b);
    let level = normal(1.0 - wanted.level / 2.0) * (2.0 * middle * (1.0 - middle)).sqrt();
    let power = normal(wanted.power) * (a * (1.0 - a) + b * (1.0 - b)).sqrt();
    up(((level + power) / (a - b)).powi(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_in_textbooks() {
        let wanted = Wanted::default();
        // Half a standard deviation: 34 pairs, 64 an arm (Cohen's tables; G*Power).
        assert_eq!(pairs(0.5, 1.0, wanted), 34);
        assert_eq!(per_arm(0.5, 1.0, wanted), 64);
        // One whole: 10 and 17.
        assert_eq!(pairs(1.0, 1.0, wanted), 10);
        assert_eq!(per_arm(1.0, 1.0, wanted), 17);
        // 1 % against 2 %.
        assert_eq!(shares(0.01, 0.02, wanted), 2319);
        assert_eq!(shares(0.5, 0.6, wanted), 388);
    }

    #[test]
    fn half_a_second_against_one_takes_4_to_60_faults_an_arm() {
        let faults = |spread| per_arm(0.5, spread, Wanted::default());
        assert_eq!(faults(0.2), 4);
        assert_eq!(faults(0.5), 17);
        assert!((60..=64).contains(&faults(0.97)), "{}", faults(0.97));
    }

    #[test]
    fn what_is_wanted_can_be_out_of_reach() {
        assert_eq!(pairs(0.0, 1.0, Wanted::default()), MOST);
        assert_eq!(shares(0.1, 0.1, Wanted::default()), MOST);
    }
}
