//! Where an agent's stamps lie on the run's timeline, as far as is known while the
//! run goes on. Pure.
//!
//! Equal clock keys: offset zero. Otherwise the cones of layer A
//! ([`crate::align::bound`]), swept forward only: what later exchanges will prove
//! about now is not known yet, so a report may place a sample elsewhere within the
//! bound. Before the first exchange a sample is placed by when it arrived, without
//! any bound.

use gapscope_proto::clock::ClockKey;
use gapscope_proto::host::Exchange;

use crate::align::bound::{Knot, RHO_PPM};
use crate::align::exchange::offset_bounds;

/// One agent's clock.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    is_same: bool,
    knot: Option<Knot>,
    arrival_offset_ns: Option<i64>,
}

impl Placement {
    /// For an agent with this clock, seen from `own`.
    pub fn new(agent: &ClockKey, own: &ClockKey) -> Self {
        Self {
            is_same: agent == own && !own.boot_id.is_empty(),
            ..Self::default()
        }
    }

    /// Takes in an exchange.
    pub fn exchange(&mut self, exchange: &Exchange) {
        let bounds = offset_bounds(exchange);
        let at_ns = exchange.a2_ns;
        let one = |at_ns: i64, theta_ns: i64| Knot {
            at_ns,
            lo_ns: theta_ns,
            hi_ns: theta_ns,
        };
        let lower = one(bounds.lower.at_ns, bounds.lower.theta_ns).opened(at_ns, RHO_PPM);
        let upper = one(bounds.upper.at_ns, bounds.upper.theta_ns).opened(at_ns, RHO_PPM);
        let fresh = Knot {
            at_ns,
            lo_ns: lower.lo_ns,
            hi_ns: upper.hi_ns,
        };
        if fresh.is_empty() {
            return;
        }
        let both = self.knot.map(|known| {
            let known = known.opened(at_ns, RHO_PPM);
            Knot {
                at_ns,
                lo_ns: known.lo_ns.max(fresh.lo_ns),
                hi_ns: known.hi_ns.min(fresh.hi_ns),
            }
        });
        // Nothing fits: a clock was stepped, and only the newest still holds.
        self.knot = Some(both.filter(|knot| !knot.is_empty()).unwrap_or(fresh));
    }

    /// Something stamped `newest_ns` has arrived at `now_ns`.
    pub fn arrived(&mut self, newest_ns: i64, now_ns: i64) {
        if !self.is_same && self.knot.is_none() {
            let offset = now_ns.saturating_sub(newest_ns);
            let least = self
                .arrival_offset_ns
                .map_or(offset, |known| known.min(offset));
            self.arrival_offset_ns = Some(least);
        }
    }

    /// A reading of the agent's clock on the run's timeline.
    pub fn place(&self, ns: i64) -> i64 {
        if self.is_same {
            return ns;
        }
        let offset = match self.knot {
            Some(knot) => knot.middle_ns(),
            None => self.arrival_offset_ns.unwrap_or(0),
        };
        ns.saturating_add(offset)
    }

    /// By how much that can be off at `now_ns` of the run's timeline; none: unknown.
    pub fn bound_ns(&self, now_ns: i64) -> Option<u64> {
        if self.is_same {
            return Some(0);
        }
        let knot = self.knot?;
        let at = now_ns.saturating_sub(knot.middle_ns()).max(knot.at_ns);
        u64::try_from(knot.opened(at, RHO_PPM).half_width_ns()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(boot: &str) -> ClockKey {
        ClockKey {
            boot_id: boot.to_owned(),
            time_namespace: 0,
        }
    }

    /// The aggregator is `theta` ahead; each way takes `way`.
    fn exchange(at: i64, theta: i64, way: i64) -> Exchange {
        Exchange {
            a1_ns: at,
            s1_ns: at + theta + way,
            s2_ns: at + theta + way,
            a2_ns: at + 2 * way,
            server: key("b"),
        }
    }

    #[test]
    fn one_clock_needs_no_exchange() {
        let placement = Placement::new(&key("a"), &key("a"));
        assert_eq!((placement.place(7), placement.bound_ns(9)), (7, Some(0)));
        // Two that know nothing of their clock are not therefore the same.
        assert_eq!(Placement::new(&key(""), &key("")).bound_ns(0), None);
    }

    #[test]
    fn the_truth_is_inside_and_the_bound_grows_until_the_next_exchange() {
        let mut placement = Placement::new(&key("a"), &key("b"));
        assert_eq!(placement.bound_ns(0), None);
        placement.arrived(1_000, 5_000);
        placement.arrived(2_000, 9_000);
        assert_eq!(placement.place(1_000), 5_000, "the quickest way counts");
        placement.exchange(&exchange(1_000_000, 5_000_000_000, 300_000));
        let now = 5_001_600_000;
        let bound = placement.bound_ns(now).expect("known");
        assert!((300_000..301_000).contains(&bound), "{bound}");
        let off = (placement.place(2_000_000) - 5_002_000_000).unsigned_abs();
        assert!(off <= bound, "{off} > {bound}");
        let later = placement.bound_ns(now + 10_000_000_000).expect("known");
        assert!(later >= bound + 1_990_000, "{later}");
        // Better exchanges narrow it, worse ones do not widen it.
        placement.exchange(&exchange(2_000_000, 5_000_000_000, 100_000));
        let narrow = placement.bound_ns(now).expect("known");
        assert!(narrow < 101_000, "{narrow}");
        placement.exchange(&exchange(3_000_000, 5_000_000_000, 900_000));
        assert!(placement.bound_ns(now).expect("known") < 101_000);
    }

    #[test]
    fn a_stepped_clock_is_followed() {
        let mut placement = Placement::new(&key("a"), &key("b"));
        placement.exchange(&exchange(1_000_000, 5_000, 100));
        placement.exchange(&exchange(2_000_000, 9_000_000, 100));
        let off = (placement.place(2_000_000) - 11_000_000).abs();
        assert!(off < 200, "{off}");
    }
}
