//! Student's t for paired differences, and Welch's for two samples.

use super::student::{quantile, two_sided_p};

/// A mean with its interval and the probability of being so far from zero by
/// chance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Units (pairs, or both samples together).
    pub n: usize,
    /// The mean, or the difference of the means.
    pub mean: f64,
    /// Lower end of the interval.
    pub lower: f64,
    /// Upper end of the interval.
    pub upper: f64,
    /// Two-sided.
    pub p: f64,
}

/// Number, mean and variance (divided by n - 1).
fn moments(values: &[f64]) -> (f64, f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    (n, mean, squares / (n - 1.0))
}

/// Standard deviation (divided by n - 1); `None` below two values.
pub fn deviation(values: &[f64]) -> Option<f64> {
    (values.len() > 1).then(|| moments(values).2.sqrt())
}

fn estimate(n: usize, mean: f64, error: f64, df: f64, confidence: f64) -> Estimate {
    let half = if error > 0.0 {
        quantile(f64::midpoint(1.0, confidence), df) * error
    } else {
        0.0
    };
    let p = if error > 0.0 {
        two_sided_p(mean / error, df)
    } else if mean == 0.0 {
        1.0
    } else {
        0.0
    };
    Estimate {
        n,
        mean,
        lower: mean - half,
        upper: mean + half,
        p,
    }
}

/// Whether the mean of paired differences is zero. `None` below two pairs.
pub fn paired(differences: &[f64], confidence: f64) -> Option<Estimate> {
    if differences.len() < 2 || differences.iter().any(|d| !d.is_finite()) {
        return None;
    }
    let (n, mean, variance) = moments(differences);
    Some(estimate(
        differences.len(),
        mean,
        (variance / n).sqrt(),
        n - 1.0,
        confidence,
    ))
}

/// How far the mean of `b` is above that of `a`, their variances being whatever
/// they are (Welch, Satterthwaite). `None` below two values on either side.
pub fn welch(a: &[f64], b: &[f64], confidence: f64) -> Option<Estimate> {
    if a.len() < 2 || b.len() < 2 || a.iter().chain(b).any(|v| !v.is_finite()) {
        return None;
    }
    let ((na, ma, va), (nb, mb, vb)) = (moments(a), moments(b));
    let (ea, eb) = (va / na, vb / nb);
    let df = if ea + eb > 0.0 {
        (ea + eb).powi(2) / (ea.powi(2) / (na - 1.0) + eb.powi(2) / (nb - 1.0))
    } else {
        na + nb - 2.0
    };
    Some(estimate(
        a.len() + b.len(),
        mb - ma,
        (ea + eb).sqrt(),
        df,
        confidence,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn close(found: f64, expect: f64, within: f64) {
        assert!((found - expect).abs() < within, "{found} is not {expect}");
    }

    /// Student's own data (1908): additional hours of sleep by two drugs, ten
    /// patients. R's `t.test(paired = TRUE)`: t = -4.0621, df = 9, p = 0.002833,
    /// -2.4598858 to -0.7001142; Welch: p = 0.07939, -3.3654832 to 0.2054832.
    const FIRST: [f64; 10] = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
    const SECOND: [f64; 10] = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];

    #[test]
    fn student_s_sleep_paired() {
        let differences: Vec<f64> = FIRST.iter().zip(SECOND).map(|(a, b)| a - b).collect();
        let found = paired(&differences, 0.95).expect("ten pairs");
        close(found.mean, -1.58, 1e-9);
        close(found.p, 0.002_833, 1e-6);
        close(found.lower, -2.459_885_8, 1e-6);
        close(found.upper, -0.700_114_2, 1e-6);
    }

    #[test]
    fn student_s_sleep_unpaired() {
        let found = welch(&SECOND, &FIRST, 0.95).expect("ten each");
        close(found.p, 0.079_39, 1e-5);
        close(found.lower, -3.365_483_2, 1e-6);
        close(found.upper, 0.205_483_2, 1e-6);
    }

    #[test]
    fn too_little_or_too_even_data() {
        assert_eq!(paired(&[1.0], 0.95), None);
        assert_eq!(paired(&[1.0, f64::NAN], 0.95), None);
        assert_eq!(welch(&[1.0], &[1.0, 2.0], 0.95), None);
        assert_eq!(paired(&[0.0; 5], 0.95).expect("five").p, 1.0);
        assert_eq!(paired(&[2.0; 5], 0.95).expect("five").p, 0.0);
        assert_eq!(deviation(&[1.0]), None);
        close(deviation(&[1.0, 3.0]).expect("two"), 2.0_f64.sqrt(), 1e-12);
    }
}
