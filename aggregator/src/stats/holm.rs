//! Holm's step-down adjustment: among many comparisons some look significant by
//! chance; adjusted, the chance that even one of them does so wrongly stays
//! below the level.

/// Adjusted probabilities, in the order given. What is no number (a comparison
/// that could not be made) stays what it is and is not counted.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).filter(|at| !p[*at].is_nan()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut adjusted = p.to_vec();
    let mut highest: f64 = 0.0;
    for (rank, at) in order.iter().enumerate() {
        let scaled = p[*at] * (order.len() - rank) as f64;
        highest = highest.max(scaled).min(1.0);
        adjusted[*at] = highest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(p: &[f64], expect: &[f64]) {
        let found = holm(p);
        assert_eq!(found.len(), expect.len());
        for (found, expect) in found.iter().zip(expect) {
            let same = found.is_nan() && expect.is_nan();
            assert!(same || (found - expect).abs() < 1e-12, "{found} {expect}");
        }
    }

    #[test]
    fn as_r_s_p_adjust() {
        check(&[], &[]);
        check(&[0.04], &[0.04]);
        check(&[0.01, 0.02, 0.03, 0.04], &[0.04, 0.06, 0.06, 0.06]);
        check(&[0.04, 0.001, 0.6], &[0.08, 0.003, 0.6]);
        check(&[0.9, 0.8], &[1.0, 1.0]);
        check(&[0.01, f64::NAN, 0.04], &[0.02, f64::NAN, 0.04]);
    }
}
