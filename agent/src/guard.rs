//! The guard on connections: a token bucket a target. Pure.
//!
//! The probe must not be the outage. Whatever a plan asks for, a target sees at
//! most so many new connections a second; a probe that would exceed it is
//! recorded as the agent's own doing (`agent_error`, `guard`).

/// Tokens for new connections. A full bucket lasts one second.
#[derive(Debug, Clone)]
pub struct Guard {
    per_second: u64,
    /// In parts of 1 / 1,000,000,000 token, so that nothing is rounded away.
    level: u128,
    at_ns: i64,
}

const TOKEN: u128 = 1_000_000_000;

impl Guard {
    /// A full bucket.
    pub fn new(per_second: u32, now_ns: i64) -> Self {
        let per_second = u64::from(per_second.max(1));
        Self {
            per_second,
            level: u128::from(per_second) * TOKEN,
            at_ns: now_ns,
        }
    }

    /// Takes a token if there is one.
    pub fn admit(&mut self, now_ns: i64) -> bool {
        self.admit_above(now_ns, 0)
    }

    /// Takes a token if most of them are there: for what must not take a probe's.
    pub fn admit_beside(&mut self, now_ns: i64) -> bool {
        let full = u128::from(self.per_second) * TOKEN;
        self.admit_above(now_ns, TOKEN.max(full / 2))
    }

    fn admit_above(&mut self, now_ns: i64, left: u128) -> bool {
        let passed = u128::try_from(now_ns.saturating_sub(self.at_ns)).unwrap_or(0);
        self.at_ns = self.at_ns.max(now_ns);
        let full = u128::from(self.per_second) * TOKEN;
        self.level = full.min(self.level + passed * u128::from(self.per_second));
        if self.level >= TOKEN + left {
            self.level -= TOKEN;
            true
        } else {
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_second_sees_more_than_the_burst_and_the_rate() {
        let mut guard = Guard::new(50, 0);
        let admitted = |guard: &mut Guard, from_ms: i64| {
            (0..1_000)
                .filter(|ms| guard.admit((from_ms + ms) * 1_000_000))
                .count()
        };
        assert_eq!(admitted(&mut guard, 0), 50 + 49);
        assert_eq!(admitted(&mut guard, 1_000), 50);
        // A clock that goes back gives nothing away.
        assert!(!guard.admit(0));
    }

    #[test]
    fn what_stands_beside_takes_no_probes_token() {
        let mut guard = Guard::new(10, 0);
        assert!((0..5).all(|_| guard.admit_beside(0)));
        assert!(!guard.admit_beside(0));
        assert!((0..5).all(|_| guard.admit(0)));
        assert!(!guard.admit(0));
        // One connection a second is the probes' alone.
        assert!(!Guard::new(1, 0).admit_beside(0));
    }
}
