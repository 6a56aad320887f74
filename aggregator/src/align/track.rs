//! One agent clock against the aggregator's, over all its epochs.
//!
//! Inside an epoch its own bounds hold; between two, the step came at an unknown
//! moment, and the union of both holds. A second, wider interval also covers a
//! step too small to be proven: by the smallest round trip.

use gapscope_proto::host::{Anchor, Exchange};

use super::bound::Knot;
use super::epoch::{Ending, Epoch, epochs};
use super::exchange::{OffsetBounds, offset_bounds};
use super::window::Assumptions;

/// Version of the method; written beside what it computed.
pub const SOLVER_VERSION: u32 = 1;

/// Beyond this a reading is nonsense: 36 years of nanoseconds.
const SANE_NS: i64 = 1 << 60;

/// How an interval came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// From one epoch's exchanges.
    Epoch(usize),
    /// Between this epoch and the next: the union of both.
    Between(usize),
    /// Nothing is known.
    Nothing,
}

/// The offset at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offset {
    /// The guaranteed interval, if no step hides below a round trip.
    pub knot: Knot,
    /// By how much it must be widened to cover such a step.
    pub hidden_step_ns: i64,
    /// How it came about.
    pub origin: Origin,
}

/// One agent clock against the aggregator's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Track {
    epochs: Vec<Epoch>,
    rho_ppm: i64,
    /// Exchanges whose stamps cannot be.
    pub rejected: usize,
}

/// The exchanges as limits, in order; those that cannot be are counted.
pub fn limits(exchanges: &[Exchange]) -> (Vec<OffsetBounds>, usize) {
    let sane = |ns: i64| (-SANE_NS..=SANE_NS).contains(&ns);
    let mut bounds: Vec<OffsetBounds> = exchanges
        .iter()
        .filter(|e| {
            [e.a1_ns, e.a2_ns, e.s1_ns, e.s2_ns].into_iter().all(sane)
                && e.a1_ns <= e.a2_ns
                && e.s1_ns <= e.s2_ns
        })
        .map(offset_bounds)
        .collect();
    bounds.sort_unstable_by_key(|b| (b.upper.at_ns, b.lower.at_ns));
    let rejected = exchanges.len() - bounds.len();
    (bounds, rejected)
}

impl Track {
    /// From the exchanges with the aggregator's clock and the agent's anchors.
    /// None if no exchange is usable.
    pub fn new(exchanges: &[Exchange], anchors: &[Anchor], assumed: &Assumptions) -> Option<Self> {
        let (bounds, rejected) = limits(exchanges);
        let mut anchors: Vec<Anchor> = anchors
            .iter()
            .filter(|a| a.raw_before_ns <= a.raw_after_ns)
            .copied()
            .collect();
        anchors.sort_unstable_by_key(|a| a.raw_before_ns);
        let epochs = epochs(&bounds, &anchors, assumed);
        epochs.iter().any(|e| e.corridor.is_some()).then_some(Self {
            epochs,
            rho_ppm: assumed.rho_ppm,
            rejected,
        })
    }

    /// Its epochs, in order.
    pub fn epochs(&self) -> &[Epoch] {
        &self.epochs
    }

    /// Says why an epoch ended, when more is known than its own exchanges tell.
    pub(super) fn rename(&mut self, epoch: usize, why: Ending) {
        if let Some(epoch) = self.epochs.get_mut(epoch) {
            epoch.ended = why;
        }
    }

    /// Another clock took over after this one.
    pub fn ends_by_boot(&mut self) {
        let last = self.epochs.len().saturating_sub(1);
        self.rename(last, Ending::Boot);
    }

    /// The offset at this reading of the agent's clock.
    pub fn at(&self, at_ns: i64) -> Offset {
        let number = self.epochs.partition_point(|e| e.to_ns < at_ns);
        let nothing = Offset {
            knot: Knot {
                at_ns,
                lo_ns: i64::MIN,
                hi_ns: i64::MAX,
            },
            hidden_step_ns: 0,
            origin: Origin::Nothing,
        };
        let Some(epoch) = self.epochs.get(number) else {
            return nothing;
        };
        let Some(corridor) = &epoch.corridor else {
            return nothing;
        };
        if epoch.from_ns <= at_ns {
            return Offset {
                knot: corridor.at(at_ns),
                hidden_step_ns: epoch.round_trip_min_ns.max(0),
                origin: Origin::Epoch(number),
            };
        }
        let Some(before) = number.checked_sub(1).and_then(|n| self.epochs.get(n)) else {
            return nothing;
        };
        let Some(old) = &before.corridor else {
            return nothing;
        };
        Offset {
            knot: old.at(at_ns).union(&corridor.at(at_ns)),
            hidden_step_ns: epoch.round_trip_min_ns.max(before.round_trip_min_ns).max(0),
            origin: Origin::Between(number - 1),
        }
    }

    /// The aggregator's readings at which the agent's clock can have shown
    /// `agent_ns`. None if nothing is known.
    pub fn server_span(&self, agent_ns: i64) -> Option<(i64, i64)> {
        let offset = self.at(agent_ns);
        (offset.origin != Origin::Nothing).then(|| {
            (
                agent_ns.saturating_add(offset.knot.lo_ns),
                agent_ns.saturating_add(offset.knot.hi_ns),
            )
        })
    }

    /// The agent's readings at which the aggregator's clock can have shown
    /// `server_ns`: c + lo(c) <= server_ns <= c + hi(c). None if that may be in
    /// a stretch of which nothing is known (supposing that the aggregator's clock
    /// showed nothing there but what lies between its ends).
    pub fn agent_span(&self, server_ns: i64) -> Option<(i64, i64)> {
        let mut span: Option<(i64, i64)> = None;
        for (from_ns, to_ns) in self.pieces() {
            if self.at(from_ns).origin == Origin::Nothing {
                if self.may_be_unknown(server_ns, from_ns, to_ns) {
                    return None;
                }
                continue;
            }
            // The true c + theta(c) grows inside a piece, so c + hi(c) is too
            // small only before it, and c + lo(c) too large only after.
            let high = |c: i64| self.at(c).knot.hi_ns;
            let low = |c: i64| self.at(c).knot.lo_ns;
            let reaches = |c: i64| i128::from(c) + i128::from(high(c)) >= i128::from(server_ns);
            let passes = |c: i64| i128::from(c) + i128::from(low(c)) > i128::from(server_ns);
            let first = search(from_ns, to_ns, reaches);
            let beyond = search(from_ns, to_ns, passes);
            if first < beyond {
                let last = i64::try_from(beyond - 1).unwrap_or(i64::MAX);
                let first = i64::try_from(first).unwrap_or(i64::MAX);
                span = Some(span.map_or((first, last), |s| (s.0.min(first), s.1.max(last))));
            }
        }
        span
    }

    /// Whether the aggregator's clock can have shown `server_ns` in a stretch of
    /// which nothing is known: between what it showed before and after.
    fn may_be_unknown(&self, server_ns: i64, from_ns: i64, to_ns: i64) -> bool {
        let before = from_ns.checked_sub(1).and_then(|at| self.server_span(at));
        let after = to_ns.checked_add(1).and_then(|at| self.server_span(at));
        let ends: Vec<i64> = [before, after]
            .into_iter()
            .flatten()
            .flat_map(|(first, last)| [first, last])
            .collect();
        let least = ends.iter().min().filter(|_| before.is_some());
        let most = ends.iter().max().filter(|_| after.is_some());
        least.is_none_or(|least| *least <= server_ns) && most.is_none_or(|most| server_ns <= *most)
    }

    /// Ranges in which the bounds are continuous: epochs and what lies between.
    fn pieces(&self) -> Vec<(i64, i64)> {
        let mut pieces = Vec::new();
        for (number, epoch) in self.epochs.iter().enumerate() {
            pieces.push((epoch.from_ns, epoch.to_ns));
            if let Some(next) = self.epochs.get(number + 1) {
                let (from, to) = (
                    epoch.to_ns.saturating_add(1),
                    next.from_ns.saturating_sub(1),
                );
                if from <= to {
                    pieces.push((from, to));
                }
            }
        }
        pieces
    }

    /// The drift of an epoch, parts per million: the middle's slope from end to
    /// end, and how far it can be off. None if it is too short to tell.
    pub fn drift_ppm(&self, epoch: usize) -> Option<(f64, f64)> {
        let knots = self.epochs.get(epoch)?.corridor.as_ref()?.knots();
        let (a, b) = (knots.first()?, knots.last()?);
        let span = b.at_ns.saturating_sub(a.at_ns) as f64;
        if span <= 0.0 {
            return None;
        }
        let rise = b.middle_ns().saturating_sub(a.middle_ns()) as f64;
        let unsure = a.half_width_ns().saturating_add(b.half_width_ns()) as f64;
        Some((
            rise / span * 1e6,
            (unsure / span * 1e6).min(self.rho_ppm as f64),
        ))
    }
}

/// The smallest number in a range for which `holds`, which from there on always
/// holds; one past the range if for none.
fn search(from_ns: i64, to_ns: i64, holds: impl Fn(i64) -> bool) -> i128 {
    let (mut low, mut high) = (i128::from(from_ns), i128::from(to_ns) + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(i64::try_from(middle).unwrap_or(i64::MAX)) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapscope_proto::clock::ClockKey;
    use proptest::prelude::*;

    fn reading() -> impl Strategy<Value = i64> {
        prop_oneof![
            Just(i64::MIN),
            Just(i64::MAX),
            Just(0),
            Just(1 << 60),
            Just(-(1 << 60)),
            any::<i64>(),
            -5_000_000_000i64..5_000_000_000,
            0i64..1_000_000,
        ]
    }

    fn exchange(stamps: (i64, i64, i64, i64)) -> Exchange {
        Exchange {
            a1_ns: stamps.0,
            s1_ns: stamps.1,
            s2_ns: stamps.2,
            a2_ns: stamps.3,
            server: ClockKey {
                boot_id: "s".into(),
                time_namespace: 0,
            },
        }
    }

    fn anchor(at: (i64, i64, i64, i64)) -> Anchor {
        Anchor {
            raw_before_ns: at.0,
            raw_after_ns: at.1,
            monotonic_ns: at.2,
            boottime_ns: at.3,
            realtime_ns: at.0,
            timer_late_ns: 0,
        }
    }

    proptest! {
        #[test]
        fn no_reading_panics_or_turns_an_interval_round(
            exchanges in proptest::collection::vec(
                (reading(), reading(), reading(), reading()).prop_map(exchange), 0..12),
            anchors in proptest::collection::vec(
                (reading(), reading(), reading(), reading()).prop_map(anchor), 0..6),
            asked in proptest::collection::vec(reading(), 1..6),
        ) {
            let Some(track) = Track::new(&exchanges, &anchors, &Assumptions::default()) else {
                return Ok(());
            };
            for epochs in track.epochs().windows(2) {
                prop_assert!(epochs[0].to_ns < epochs[1].from_ns);
            }
            for at in asked {
                let offset = track.at(at);
                prop_assert!(offset.knot.lo_ns <= offset.knot.hi_ns, "{offset:?}");
                if let Some((first, last)) = track.server_span(at) {
                    prop_assert!(first <= last);
                }
                if let Some((first, last)) = track.agent_span(at) {
                    prop_assert!(first <= last);
                }
            }
        }
    }

    /// An exchange at `at_s` with a path of 1 ms each way.
    fn good(at_s: i64, theta_ns: i64) -> Exchange {
        let a1 = at_s * 1_000_000_000;
        exchange((
            a1,
            a1 + 1_000_000 + theta_ns,
            a1 + 1_100_000 + theta_ns,
            a1 + 2_100_000,
        ))
    }

    #[test]
    fn between_two_epochs_both_count() {
        let step = 500_000_000;
        let all: Vec<Exchange> = (0..40)
            .map(|s| good(s, if s < 20 { 0 } else { step }))
            .collect();
        let track = Track::new(&all, &[], &Assumptions::default()).expect("exchanges");
        let endings: Vec<Ending> = track.epochs().iter().map(|e| e.ended).collect();
        assert_eq!(endings, [Ending::Step, Ending::DataEnd]);
        let at = track.at(19_500_000_000);
        assert_eq!(at.origin, Origin::Between(0));
        assert!(at.knot.lo_ns < 0 && at.knot.hi_ns > step);
        assert!(at.hidden_step_ns >= 1_999_000);
        let inside = track.at(5_000_000_000);
        assert_eq!(inside.origin, Origin::Epoch(0));
        assert!(inside.knot.half_width_ns() < 1_010_000, "{inside:?}");
        // A moment of the aggregator's clock that the agent's never showed.
        let (first, last) = track.agent_span(19_700_000_000).expect("known");
        assert!(first <= 19_200_000_000 && 19_700_000_000 <= last);
    }

    #[test]
    fn between_two_steps_without_an_exchange_nothing_is_known() {
        let mut all: Vec<Exchange> = (0..10).map(|s| good(s, 0)).collect();
        all.push(good(10, 9_000_000_000));
        all.extend((11..20).map(|s| good(s, 500_000_000)));
        let track = Track::new(&all, &[], &Assumptions::default()).expect("exchanges");
        assert_eq!(track.at(10_000_000_000).origin, Origin::Nothing);
        assert_eq!(track.server_span(10_000_000_000), None);
        assert!(track.server_span(5_000_000_000).is_some());
        assert!(track.server_span(15_000_000_000).is_some());
    }

    #[test]
    fn what_cannot_be_is_left_out_and_counted() {
        let mut all: Vec<Exchange> = (0..5).map(|s| good(s, 0)).collect();
        all.push(exchange((5, 0, 0, 4)));
        all.push(exchange((5, 10, 9, 6)));
        all.push(exchange((i64::MIN, 0, 0, i64::MAX)));
        let track = Track::new(&all, &[], &Assumptions::default()).expect("exchanges");
        assert_eq!((track.rejected, track.epochs().len()), (3, 1));
    }
}
