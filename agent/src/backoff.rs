//! How long to wait before the next attempt to connect. Pure: the random number
//! is an argument.
//!
//! Full jitter (AWS Architecture Blog, "Exponential Backoff And Jitter"): a
//! uniform draw from 0 to the doubled bound, so that agents cut off together do
//! not come back together.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_secs(30);
const FENCED_LEAST: Duration = Duration::from_secs(10);
const FENCED_MOST: Duration = Duration::from_secs(30);

/// The state between attempts.
#[derive(Debug, Clone, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// After one more failure: the delay, given a uniform draw from [0, 1).
    pub fn failed(&mut self, draw: f64) -> Duration {
        let bound = FIRST
            .saturating_mul(1u32.checked_shl(self.failures.min(20)).unwrap_or(u32::MAX))
            .min(MOST);
        self.failures = self.failures.saturating_add(1);
        bound.mul_f64(draw.clamp(0.0, 1.0))
    }

    /// After another agent of the same id has taken over: never soon, since coming
    /// back throws that one out in turn. Successes in between change nothing.
    pub fn fenced(draw: f64) -> Duration {
        FENCED_LEAST + (FENCED_MOST - FENCED_LEAST).mul_f64(draw.clamp(0.0, 1.0))
    }

    /// It worked: the next failure begins small again.
    pub fn worked(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_replaced_comes_back_slowly() {
        let delays = [0.0, 0.5, 1.0].map(|draw| Backoff::fenced(draw).as_secs());
        assert_eq!(delays, [10, 20, 30]);
    }

    #[test]
    fn the_bound_doubles_up_to_30_s_and_starts_again() {
        let mut backoff = Backoff::default();
        let bounds: Vec<_> = (0..12).map(|_| backoff.failed(1.0).as_millis()).collect();
        assert_eq!(
            bounds,
            [
                100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000, 30000
            ]
        );
        assert_eq!(backoff.failed(0.0), Duration::ZERO);
        backoff.worked();
        assert_eq!(backoff.failed(0.5), Duration::from_millis(50));
        for _ in 0..200 {
            assert!(backoff.failed(1.0) <= MOST);
        }
    }
}
