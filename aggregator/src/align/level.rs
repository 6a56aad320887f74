//! Suspects a step that is too small to be proven: the middle of the exchanges
//! moves and the round trip does not.
//!
//! Of each burst the quickest exchange counts. On both sides of every gap between
//! bursts up to 16 middles are fitted by two parallel lines; the distance of the
//! lines is a step if it exceeds eight standard errors, what the change of the
//! round trip can explain (half of it), what a drift that changes can explain,
//! and a microsecond. A suspicion that is wrong only widens the bounds for a
//! moment.
//!
//! What it cannot see: steps within noise, and among the first and last few
//! bursts; the hidden-step bound covers these.

use std::ops::Range;

use super::exchange::OffsetBounds;

const SIDE: usize = 16;
const LEAST: usize = 6;
const ERRORS: f64 = 8.0;
const FLOOR_NS: f64 = 1_000.0;
/// A pause this long begins a new burst.
const BURST_GAP_NS: i64 = 30_000_000;

/// The quickest exchange of a burst.
#[derive(Debug, Clone)]
struct Burst {
    exchanges: Range<usize>,
    at_s: f64,
    middle_ns: f64,
    round_trip_ns: f64,
}

fn bursts(bounds: &[OffsetBounds]) -> Vec<Burst> {
    let Some(origin) = bounds.first() else {
        return Vec::new();
    };
    let mut all: Vec<Burst> = Vec::new();
    let mut last_ns = i64::MIN;
    for (number, bound) in bounds.iter().enumerate() {
        let middle = |a: i64, b: i64, zero: i64| {
            (a.saturating_sub(zero) as f64 + b.saturating_sub(zero) as f64) / 2.0
        };
        let round_trip_ns = bound.upper.theta_ns.saturating_sub(bound.lower.theta_ns) as f64;
        let found = Burst {
            exchanges: number..number + 1,
            at_s: middle(bound.upper.at_ns, bound.lower.at_ns, origin.upper.at_ns) / 1e9,
            middle_ns: middle(
                bound.upper.theta_ns,
                bound.lower.theta_ns,
                origin.upper.theta_ns,
            ),
            round_trip_ns,
        };
        let is_new = bound.upper.at_ns.saturating_sub(last_ns) > BURST_GAP_NS;
        match all.last_mut() {
            Some(burst) if !is_new => {
                burst.exchanges.end = number + 1;
                if round_trip_ns < burst.round_trip_ns {
                    *burst = Burst {
                        exchanges: burst.exchanges.clone(),
                        ..found
                    };
                }
            }
            _ => all.push(found),
        }
        last_ns = bound.lower.at_ns;
    }
    all
}

/// By how many thresholds the middles move between two sides; none if nothing
/// can be said.
fn shift(before: &[Burst], after: &[Burst], kappa_ppm_per_s: f64) -> Option<f64> {
    let mean = |side: &[Burst], pick: fn(&Burst) -> f64| {
        side.iter().map(pick).sum::<f64>() / side.len() as f64
    };
    let at = |b: &Burst| b.at_s;
    let middle = |b: &Burst| b.middle_ns;
    let (mut xx, mut xy) = (0.0, 0.0);
    let sides = [before, after];
    let means = sides.map(|side| (mean(side, at), mean(side, middle)));
    for (side, (t, m)) in sides.iter().zip(means) {
        for burst in *side {
            xx += (burst.at_s - t) * (burst.at_s - t);
            xy += (burst.at_s - t) * (burst.middle_ns - m);
        }
    }
    if xx <= 0.0 {
        return None;
    }
    let slope = xy / xx;
    let mut squares = 0.0;
    for (side, (t, m)) in sides.iter().zip(means) {
        for burst in *side {
            let off = burst.middle_ns - m - slope * (burst.at_s - t);
            squares += off * off;
        }
    }
    let (n, k) = (before.len() as f64, after.len() as f64);
    let variance = squares / (n + k - 3.0);
    let apart_s = means[1].0 - means[0].0;
    let moved = means[1].1 - means[0].1 - slope * apart_s;
    let error = (variance * (1.0 / n + 1.0 / k + apart_s * apart_s / xx)).sqrt();
    let median = |side: &[Burst]| {
        let mut all: Vec<f64> = side.iter().map(|b| b.round_trip_ns).collect();
        all.sort_unstable_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let slower = (median(after) - median(before)).abs();
    let span_s = after[after.len() - 1].at_s - before[0].at_s;
    let curved = kappa_ppm_per_s * 1e3 * span_s * span_s / 8.0;
    Some(moved.abs() / (ERRORS * error + 0.75 * slower + curved + FLOOR_NS))
}

/// Where the level shifts: exchanges that may lie on either side of it.
pub(super) fn shifts(bounds: &[OffsetBounds], kappa_ppm_per_s: f64) -> Vec<Range<usize>> {
    let bursts = bursts(bounds);
    let mut found: Vec<(f64, usize)> = Vec::new();
    for at in LEAST..bursts.len().saturating_sub(LEAST - 1) {
        let before = &bursts[at.saturating_sub(SIDE)..at];
        let after = &bursts[at..bursts.len().min(at + SIDE)];
        if let Some(score) = shift(before, after, kappa_ppm_per_s)
            && score > 1.0
        {
            found.push((score, at));
        }
    }
    found.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let mut places: Vec<usize> = Vec::new();
    for (_, at) in found {
        if places.iter().all(|known| known.abs_diff(at) > SIDE) {
            places.push(at);
        }
    }
    places.sort_unstable();
    places
        .into_iter()
        .map(|at| bursts[at - 1].exchanges.start..bursts[at].exchanges.end)
        .collect()
}
