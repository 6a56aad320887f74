//! Wilson's interval of a share: honest also near 0 and 1, and for few units.

use super::student::quantile;

/// The interval of the share `hits` of `n`; 0 to 1 where there is nothing.
pub fn wilson(hits: u64, n: u64, confidence: f64) -> (f64, f64) {
    if n == 0 {
        return (0.0, 1.0);
    }
    let z = quantile(f64::midpoint(1.0, confidence), 1e9);
    let (n, share) = (n as f64, hits as f64 / n as f64);
    let scale = 1.0 + z * z / n;
    let middle = (share + z * z / (2.0 * n)) / scale;
    let half = z / scale * (share * (1.0 - share) / n + z * z / (4.0 * n * n)).sqrt();
    ((middle - half).max(0.0), (middle + half).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(hits: u64, n: u64, expect: (f64, f64)) {
        let (lower, upper) = wilson(hits, n, 0.95);
        assert!((lower - expect.0).abs() < 5e-4, "{lower}..{upper}");
        assert!((upper - expect.1).abs() < 5e-4, "{lower}..{upper}");
    }

    #[test]
    fn known_intervals() {
        check(17, 20, (0.6396, 0.9476));
        check(0, 10, (0.0, 0.2775));
        check(10, 10, (0.7225, 1.0));
        check(1, 2, (0.0945, 0.9055));
        check(0, 0, (0.0, 1.0));
    }
}
