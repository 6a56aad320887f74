//! What one exchange proves. The only place where times of two clocks meet.
//!
//! A send stamp is never late and a receive stamp never early. So with
//! theta = aggregator's clock minus agent's clock: theta(a1) <= s1 - a1 and
//! theta(a2) >= s2 - a2, however long each way took.

use gapscope_proto::host::Exchange;

/// At reading `at_ns` of the agent's clock the offset is at most (or at least)
/// `theta_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Reading of the agent's clock.
    pub at_ns: i64,
    /// Aggregator's clock minus agent's clock.
    pub theta_ns: i64,
}

/// The two limits of one exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffsetBounds {
    /// The offset is at most this.
    pub upper: Limit,
    /// The offset is at least this.
    pub lower: Limit,
}

/// The aggregator's clock was read after the ping left and before the pong
/// arrived, so the offset is bounded from both sides.
pub fn offset_bounds(exchange: &Exchange) -> OffsetBounds {
    OffsetBounds {
        upper: Limit {
            at_ns: exchange.a1_ns,
            theta_ns: exchange.s1_ns.saturating_sub(exchange.a1_ns),
        },
        lower: Limit {
            at_ns: exchange.a2_ns,
            theta_ns: exchange.s2_ns.saturating_sub(exchange.a2_ns),
        },
    }
}
