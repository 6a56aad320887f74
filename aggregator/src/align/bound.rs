//! Layer A: an interval for the offset at every moment, always valid as long as
//! the two clocks drift apart by at most rho.
//!
//! hi(c) = min over i of U_i + rho |c - a1_i|, lo(c) = max over i of
//! L_i - rho |c - a2_i|. All cones have one slope, so two sweeps over the sorted
//! limits find, for each of them, the cone that rules there; between two
//! neighbours the ruling cone is one of theirs. Rounding is outward.

use super::exchange::OffsetBounds;

/// Largest relative drift assumed, in parts per million: 100 for each clock.
pub const RHO_PPM: i64 = 200;

/// The interval of the offset at one reading of the agent's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knot {
    /// Reading of the agent's clock.
    pub at_ns: i64,
    /// Aggregator's minus agent's clock is at least this.
    pub lo_ns: i64,
    /// And at most this.
    pub hi_ns: i64,
}

impl Knot {
    /// Whether no offset fits: one of the clocks was stepped.
    pub fn is_empty(&self) -> bool {
        self.lo_ns > self.hi_ns
    }

    /// What is left of it at another moment.
    pub fn opened(&self, at_ns: i64, rho_ppm: i64) -> Self {
        let drift = drift_ns(at_ns.saturating_sub(self.at_ns), rho_ppm);
        Self {
            at_ns,
            lo_ns: self.lo_ns.saturating_sub(drift),
            hi_ns: self.hi_ns.saturating_add(drift),
        }
    }

    /// Both together.
    pub fn union(&self, other: &Self) -> Self {
        Self {
            at_ns: self.at_ns,
            lo_ns: self.lo_ns.min(other.lo_ns),
            hi_ns: self.hi_ns.max(other.hi_ns),
        }
    }

    /// Wider by `by_ns` on both sides.
    pub fn widened(&self, by_ns: i64) -> Self {
        Self {
            at_ns: self.at_ns,
            lo_ns: self.lo_ns.saturating_sub(by_ns),
            hi_ns: self.hi_ns.saturating_add(by_ns),
        }
    }

    /// Half the interval, rounded up: the error that is quoted.
    pub fn half_width_ns(&self) -> i64 {
        let wide = i128::from(self.hi_ns) - i128::from(self.lo_ns);
        i64::try_from((wide + 1) / 2).unwrap_or(i64::MAX)
    }

    /// The middle: the estimate.
    pub fn middle_ns(&self) -> i64 {
        let sum = i128::from(self.hi_ns) + i128::from(self.lo_ns);
        i64::try_from(sum.div_euclid(2)).unwrap_or(0)
    }
}

/// The interval of the offset as a function of the agent's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThetaBound {
    knots: Vec<Knot>,
    rho_ppm: i64,
}

/// What the drift can amount to in `span_ns`, rounded up.
pub(super) fn drift_ns(span_ns: i64, rho_ppm: i64) -> i64 {
    let wide = i128::from(span_ns.saturating_abs()) * i128::from(rho_ppm);
    i64::try_from((wide + 999_999) / 1_000_000).unwrap_or(i64::MAX)
}

/// A cone: value at its tip, and where the tip is.
#[derive(Clone, Copy)]
struct Cone {
    at_ns: i64,
    tip_ns: i64,
}

/// Height at `at_ns` of a cone that opens upward.
fn height(cone: Cone, at_ns: i64, rho_ppm: i64) -> i64 {
    cone.tip_ns
        .saturating_add(drift_ns(at_ns.saturating_sub(cone.at_ns), rho_ppm))
}

/// For each time the lowest height of all cones: one sweep each way.
fn lowest(times: &[i64], mut cones: Vec<Cone>, rho_ppm: i64) -> Vec<i64> {
    cones.sort_by_key(|cone| cone.at_ns);
    let mut low = vec![i64::MAX; times.len()];
    let mut sweep = |order: &mut dyn Iterator<Item = usize>, cones: &[Cone], forward: bool| {
        let mut ruling: Option<Cone> = None;
        let mut next = 0;
        for at in order {
            while let Some(cone) = cones.get(next) {
                let passed = if forward {
                    cone.at_ns <= times[at]
                } else {
                    cone.at_ns >= times[at]
                };
                if !passed {
                    break;
                }
                if ruling.is_none_or(|r| cone.tip_ns <= height(r, cone.at_ns, rho_ppm)) {
                    ruling = Some(*cone);
                }
                next += 1;
            }
            if let Some(cone) = ruling {
                low[at] = low[at].min(height(cone, times[at], rho_ppm));
            }
        }
    };
    sweep(&mut (0..times.len()), &cones, true);
    cones.reverse();
    sweep(&mut (0..times.len()).rev(), &cones, false);
    low
}

impl ThetaBound {
    /// From what the exchanges prove; none if there is not one.
    pub fn new(exchanges: &[OffsetBounds], rho_ppm: i64) -> Option<Self> {
        if exchanges.is_empty() {
            return None;
        }
        let mut times: Vec<i64> = exchanges
            .iter()
            .flat_map(|e| [e.upper.at_ns, e.lower.at_ns])
            .collect();
        times.sort_unstable();
        times.dedup();
        let upper = exchanges
            .iter()
            .map(|e| Cone {
                at_ns: e.upper.at_ns,
                tip_ns: e.upper.theta_ns,
            })
            .collect();
        let lower = exchanges
            .iter()
            .map(|e| Cone {
                at_ns: e.lower.at_ns,
                tip_ns: e.lower.theta_ns.saturating_neg(),
            })
            .collect();
        let hi = lowest(&times, upper, rho_ppm);
        let lo = lowest(&times, lower, rho_ppm);
        let knots = times
            .iter()
            .zip(hi.iter().zip(&lo))
            .map(|(at, (hi, lo))| Knot {
                at_ns: *at,
                lo_ns: lo.saturating_neg(),
                hi_ns: *hi,
            })
            .collect();
        Some(Self { knots, rho_ppm })
    }

    /// The interval at `at_ns`.
    pub fn at(&self, at_ns: i64) -> Knot {
        let after = self.knots.partition_point(|k| k.at_ns < at_ns);
        let before = after.checked_sub(1).and_then(|i| self.knots.get(i));
        let mut lo_ns = i64::MIN;
        let mut hi_ns = i64::MAX;
        for knot in before.into_iter().chain(self.knots.get(after)) {
            let drift = drift_ns(at_ns.saturating_sub(knot.at_ns), self.rho_ppm);
            lo_ns = lo_ns.max(knot.lo_ns.saturating_sub(drift));
            hi_ns = hi_ns.min(knot.hi_ns.saturating_add(drift));
        }
        Knot {
            at_ns,
            lo_ns,
            hi_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::align::exchange::offset_bounds;
    use gapscope_proto::clock::ClockKey;
    use gapscope_proto::host::Exchange;
    use proptest::prelude::*;

    /// Offset with a drift that changes its sign half way.
    fn theta(at: i64, offset: i64, ppm: i64, turn: i64) -> i64 {
        let rising = at.min(turn);
        let falling = (at - turn).max(0);
        offset + (rising - falling) * ppm / 1_000_000
    }

    fn exchanges(offset: i64, ppm: i64, delays: &[(u32, u32, u32, u32)]) -> Vec<Exchange> {
        let turn = 20_000_000_000;
        let mut at = 1_000_000_000i64;
        delays
            .iter()
            .map(|(pause, there, inside, back)| {
                at += i64::from(*pause);
                let a1 = at;
                let arrives = a1 + i64::from(*there);
                let leaves = arrives + i64::from(*inside);
                let a2 = leaves + i64::from(*back);
                at = a2;
                Exchange {
                    a1_ns: a1,
                    s1_ns: arrives + theta(arrives, offset, ppm, turn),
                    s2_ns: leaves + theta(leaves, offset, ppm, turn),
                    a2_ns: a2,
                    server: ClockKey {
                        boot_id: "s".into(),
                        time_namespace: 0,
                    },
                }
            })
            .collect()
    }

    fn brute(bounds: &[OffsetBounds], at: i64) -> (i64, i64) {
        let hi = bounds
            .iter()
            .map(|b| b.upper.theta_ns + drift_ns(at - b.upper.at_ns, RHO_PPM));
        let lo = bounds
            .iter()
            .map(|b| b.lower.theta_ns - drift_ns(at - b.lower.at_ns, RHO_PPM));
        (lo.max().expect("one"), hi.min().expect("one"))
    }

    proptest! {
        #[test]
        fn the_true_offset_is_always_inside(
            offset in -4_000_000_000_000i64..4_000_000_000_000,
            ppm in -200i64..=200,
            delays in proptest::collection::vec(
                (0u32..2_000_000_000, 0u32..80_000_000, 0u32..1_000_000, 0u32..80_000_000), 1..40),
            asked in 0i64..60_000_000_000,
        ) {
            let bounds: Vec<_> = exchanges(offset, ppm, &delays).iter().map(offset_bounds).collect();
            let bound = ThetaBound::new(&bounds, RHO_PPM).expect("one exchange at least");
            prop_assert!(bound.knots.iter().all(|k| !k.is_empty()));
            let truth = theta(asked, offset, ppm, 20_000_000_000);
            let knot = bound.at(asked);
            prop_assert!(knot.lo_ns <= truth && truth <= knot.hi_ns, "{truth} in {knot:?}");
            let (lo, hi) = brute(&bounds, asked);
            prop_assert!((knot.lo_ns - lo).abs() <= 2 && (knot.hi_ns - hi).abs() <= 2);
        }
    }

    #[test]
    fn a_step_larger_than_a_round_trip_is_seen() {
        let delays = vec![(1_000_000, 100_000, 1_000, 100_000); 10];
        let mut all = exchanges(0, 0, &delays);
        for late in &mut all[5..] {
            late.s1_ns += 5_000_000;
            late.s2_ns += 5_000_000;
        }
        let bounds: Vec<_> = all.iter().map(offset_bounds).collect();
        let bound = ThetaBound::new(&bounds, RHO_PPM).expect("some");
        assert!(bound.knots.iter().any(Knot::is_empty));
    }

    #[test]
    fn no_exchange_no_bound() {
        assert_eq!(ThetaBound::new(&[], RHO_PPM), None);
    }
}
