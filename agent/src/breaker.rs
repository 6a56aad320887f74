//! The circuit breaker of a target: the probe must not be the outage. Pure.
//!
//! A server that says "too many connections" (1040, 1203, 1226) is short of what
//! each further attempt takes. After [`TRIP`] such refusals in a second no new
//! connection is made for a while; connections that are held go on, they cost
//! nothing more. Then one attempt is let through: if it is refused too, the pause
//! doubles, up to 30 s. What is not attempted is recorded as the agent's own
//! doing (`agent_error`, `breaker`), never as the target's fault.
//!
//! [`Breaker::rest`] pauses everything, statements too: for a control whose
//! latency says that the load is felt.

/// Refusals in a second that open it.
pub const TRIP: u32 = 3;
const SECOND_NS: i64 = 1_000_000_000;
const FIRST_PAUSE_NS: i64 = SECOND_NS;
const MOST_PAUSE_NS: i64 = 30 * SECOND_NS;

/// Closed: everything passes.
#[derive(Debug, Clone)]
pub struct Breaker {
    refusals: u32,
    counting_since_ns: i64,
    pause_ns: i64,
    open_until_ns: Option<i64>,
    /// The pause is over and one attempt is under way.
    trying: bool,
    rest_until_ns: i64,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            refusals: 0,
            counting_since_ns: i64::MIN,
            pause_ns: FIRST_PAUSE_NS,
            open_until_ns: None,
            trying: false,
            rest_until_ns: i64::MIN,
        }
    }
}

impl Breaker {
    /// Whether a new connection may be tried; if not, how long to wait, in ns.
    pub fn connect(&mut self, now_ns: i64) -> Result<(), u64> {
        self.statement(now_ns)?;
        let Some(until_ns) = self.open_until_ns else {
            return Ok(());
        };
        if now_ns < until_ns {
            return Err(left(until_ns, now_ns));
        }
        if self.trying && now_ns < until_ns.saturating_add(self.pause_ns) {
            // One is under way; its end decides.
            return Err(left(until_ns.saturating_add(self.pause_ns), now_ns));
        }
        self.trying = true;
        self.open_until_ns = Some(now_ns);
        Ok(())
    }

    /// Whether nothing is held back: asking changes nothing, unlike
    /// [`Self::connect`].
    pub fn is_closed(&self, now_ns: i64) -> bool {
        self.open_until_ns.is_none() && self.statement(now_ns).is_ok()
    }

    /// Whether a statement may be sent; if not, how long to wait, in ns.
    pub fn statement(&self, now_ns: i64) -> Result<(), u64> {
        if now_ns < self.rest_until_ns {
            return Err(left(self.rest_until_ns, now_ns));
        }
        Ok(())
    }

    /// An attempt was refused for want of connections. True if this opens it.
    pub fn refused(&mut self, now_ns: i64) -> bool {
        if self.open_until_ns.is_some() {
            if self.trying {
                self.trying = false;
                self.pause_ns = (self.pause_ns * 2).min(MOST_PAUSE_NS);
                self.open_until_ns = Some(now_ns.saturating_add(self.pause_ns));
            }
            return false;
        }
        if now_ns.saturating_sub(self.counting_since_ns) > SECOND_NS {
            self.counting_since_ns = now_ns;
            self.refusals = 0;
        }
        self.refusals += 1;
        let opens = self.refusals >= TRIP;
        if opens {
            self.refusals = 0;
            self.open_until_ns = Some(now_ns.saturating_add(self.pause_ns));
        }
        opens
    }

    /// A new connection was made and answered.
    pub fn went_well(&mut self) {
        self.refusals = 0;
        if self.trying {
            self.trying = false;
            self.open_until_ns = None;
            self.pause_ns = FIRST_PAUSE_NS;
        }
    }

    /// Everything pauses for a second.
    pub fn rest(&mut self, now_ns: i64) {
        self.rest_until_ns = now_ns.saturating_add(SECOND_NS);
    }
}

fn left(until_ns: i64, now_ns: i64) -> u64 {
    u64::try_from(until_ns.saturating_sub(now_ns)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn it_opens_tries_once_doubles_and_closes() {
        let mut breaker = Breaker::default();
        for ms in [0, 10] {
            assert_eq!(breaker.connect(ms * MS), Ok(()));
            assert!(!breaker.refused(ms * MS));
        }
        assert!(breaker.refused(20 * MS));
        assert_eq!(breaker.connect(520 * MS), Err(500 * MS as u64));
        // One is let through, others wait for it.
        assert_eq!(breaker.connect(1_020 * MS), Ok(()));
        assert!(breaker.connect(1_021 * MS).is_err());
        assert!(!breaker.refused(1_030 * MS));
        assert_eq!(breaker.connect(1_030 * MS), Err(2_000 * MS as u64));
        assert_eq!(breaker.connect(3_030 * MS), Ok(()));
        breaker.went_well();
        for ms in 3_031..3_100 {
            assert_eq!(breaker.connect(ms * MS), Ok(()));
        }
    }

    #[test]
    fn an_attempt_that_never_ends_does_not_keep_it_open_for_ever() {
        let mut breaker = Breaker::default();
        for _ in 0..TRIP {
            breaker.refused(0);
        }
        assert_eq!(breaker.connect(1_000 * MS), Ok(()));
        assert!(breaker.connect(1_500 * MS).is_err());
        assert_eq!(breaker.connect(2_000 * MS), Ok(()));
    }

    #[test]
    fn refusals_far_apart_open_nothing() {
        let mut breaker = Breaker::default();
        for second in 0..20 {
            assert!(!breaker.refused(second * 2 * SECOND_NS));
            assert_eq!(breaker.connect(second * 2 * SECOND_NS), Ok(()));
        }
    }

    #[test]
    fn a_rest_pauses_statements_too() {
        let mut breaker = Breaker::default();
        breaker.rest(0);
        assert_eq!(breaker.statement(400 * MS), Err(600 * MS as u64));
        assert!(breaker.connect(400 * MS).is_err());
        assert_eq!(breaker.statement(1_000 * MS), Ok(()));
    }
}
