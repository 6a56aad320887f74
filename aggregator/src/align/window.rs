//! Layer B, one window: all straight lines that fit between the limits.
//!
//! Assumed: the drift changes by at most kappa. Then the offset stays within
//! eps = kappa W^2 / 16 of some straight line throughout a window of length W
//! (Chebyshev), and that line's slope is a drift that occurred, so at most rho.
//! Such a line respects the limits widened by eps; the extremes of all lines that
//! do, widened AGAIN by eps, bound the offset.
//!
//! The highest of these lines at a moment follows the lower hull of the upper
//! limits, with slopes cut to the range of slopes that fit at all: a convex
//! chain. The lowest is its mirror image.
//!
//! f64 relative to the window's middle; one nanosecond of slack on every limit
//! outweighs its rounding (some 1e-7 ns) everywhere.

use super::exchange::Limit;
use super::hull::lower_hull;

const SLACK_NS: f64 = 1.0;

/// What is assumed of the clocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assumptions {
    /// Largest relative drift, parts per million.
    pub rho_ppm: i64,
    /// Largest change of the drift, parts per million per second.
    pub kappa_ppm_per_s: f64,
    /// Whether the extremes are widened by eps as well. Always, outside a test
    /// that shows what happens otherwise.
    pub second_widening: bool,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self {
            rho_ppm: super::bound::RHO_PPM,
            kappa_ppm_per_s: 0.02,
            second_widening: true,
        }
    }
}

impl Assumptions {
    /// How far the offset can be from the nearest straight line in `span_ns`.
    pub fn eps_ns(&self, span_ns: i64) -> f64 {
        let span_s = span_ns as f64 / 1e9;
        self.kappa_ppm_per_s * 1e3 * span_s * span_s / 16.0
    }
}

/// A convex chain of straight pieces that goes on beyond its ends.
#[derive(Debug, Clone)]
struct Chain {
    corners: Vec<(f64, f64)>,
    left: f64,
    right: f64,
}

impl Chain {
    /// The hull with slopes below `least` and above `most` replaced by these.
    fn new(hull: &[(f64, f64)], slopes: &[f64], least: f64, most: f64) -> Self {
        let first = slopes.partition_point(|s| *s < least);
        let last = slopes.partition_point(|s| *s <= most).max(first);
        Self {
            corners: hull[first..=last].to_vec(),
            left: least,
            right: most,
        }
    }

    fn at(&self, x: f64) -> f64 {
        let after = self.corners.partition_point(|p| p.0 < x);
        match (after.checked_sub(1), self.corners.get(after)) {
            (None, Some(b)) => b.1 + (x - b.0) * self.left,
            (Some(a), None) => {
                let a = self.corners[a];
                a.1 + (x - a.0) * self.right
            }
            (Some(a), Some(b)) => {
                let a = self.corners[a];
                a.1 + (x - a.0) * (b.1 - a.1) / (b.0 - a.0)
            }
            (None, None) => f64::INFINITY,
        }
    }
}

/// Hull corners relative to a window, and the slopes between them.
struct Side {
    hull: Vec<(f64, f64)>,
    slopes: Vec<f64>,
}

impl Side {
    fn new(points: impl Iterator<Item = (i64, i64)>, relax: f64) -> Self {
        let hull: Vec<(f64, f64)> = lower_hull(points)
            .into_iter()
            .map(|(x, y)| (x as f64, y as f64 + relax))
            .collect();
        let slopes = hull
            .windows(2)
            .map(|p| (p[1].1 - p[0].1) / (p[1].0 - p[0].0))
            .collect();
        Self { hull, slopes }
    }

    /// How high a line of this slope may start: min of y - slope x.
    fn height(&self, slope: f64) -> f64 {
        let corner = self.hull[self.slopes.partition_point(|s| *s < slope)];
        corner.1 - slope * corner.0
    }
}

/// The limits of a window contradict each other: no line fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Infeasible;

/// Bounds of the offset throughout one window.
#[derive(Debug, Clone)]
pub struct Tube {
    middle_ns: i64,
    base_ns: i64,
    upper: Chain,
    /// Of the negated offset.
    lower: Chain,
    widen: f64,
}

impl Tube {
    /// From the limits in the window, each in order of time; none if there are
    /// no upper or no lower ones.
    ///
    /// # Errors
    /// When no line fits.
    pub fn fit(
        upper: &[Limit],
        lower: &[Limit],
        (from_ns, to_ns): (i64, i64),
        assumed: &Assumptions,
    ) -> Result<Option<Self>, Infeasible> {
        let (Some(first), false) = (upper.first(), lower.is_empty()) else {
            return Ok(None);
        };
        let span_ns = to_ns.saturating_sub(from_ns);
        let middle_ns = from_ns.saturating_add(span_ns / 2);
        let base_ns = first.theta_ns;
        let eps = assumed.eps_ns(span_ns);
        let relax = eps + SLACK_NS;
        let caps = Side::new(
            upper.iter().map(|l| {
                (
                    l.at_ns.saturating_sub(middle_ns),
                    l.theta_ns.saturating_sub(base_ns),
                )
            }),
            relax,
        );
        let floors = Side::new(
            lower.iter().map(|l| {
                (
                    l.at_ns.saturating_sub(middle_ns),
                    base_ns.saturating_sub(l.theta_ns),
                )
            }),
            relax,
        );
        let rho = assumed.rho_ppm as f64 / 1e6;
        let (least, most) = slopes(&caps, &floors, rho).ok_or(Infeasible)?;
        Ok(Some(Self {
            middle_ns,
            base_ns,
            upper: Chain::new(&caps.hull, &caps.slopes, least, most),
            lower: Chain::new(&floors.hull, &floors.slopes, -most, -least),
            widen: if assumed.second_widening { eps } else { 0.0 },
        }))
    }

    /// Lower and upper bound at `at_ns`, relative to `base_ns`.
    pub fn at(&self, at_ns: i64, base_ns: i64) -> (f64, f64) {
        let x = at_ns.saturating_sub(self.middle_ns) as f64;
        let shift = self.base_ns.saturating_sub(base_ns) as f64;
        (
            shift - self.lower.at(x) - self.widen,
            shift + self.upper.at(x) + self.widen,
        )
    }
}

/// Least and greatest slope of a line that fits. The room left for a line of one
/// slope is concave and straight between the slopes of the hulls' edges, so it is
/// enough to look at these.
fn slopes(caps: &Side, floors: &Side, rho: f64) -> Option<(f64, f64)> {
    let mut edges: Vec<f64> = caps
        .slopes
        .iter()
        .copied()
        .chain(floors.slopes.iter().map(|s| -s))
        .filter(|s| s.abs() < rho)
        .chain([-rho, rho])
        .collect();
    edges.sort_unstable_by(f64::total_cmp);
    let room: Vec<f64> = edges
        .iter()
        .map(|slope| caps.height(*slope) + floors.height(-slope))
        .collect();
    let first = room.iter().position(|r| *r >= 0.0)?;
    let last = room.iter().rposition(|r| *r >= 0.0)?;
    let zero = |outside: usize, inside: usize| {
        let share = room[inside] / (room[inside] - room[outside]);
        edges[inside] + (edges[outside] - edges[inside]) * share
    };
    let least = match first.checked_sub(1) {
        Some(before) => zero(before, first),
        None => edges[first],
    };
    let most = if last + 1 < edges.len() {
        zero(last + 1, last)
    } else {
        edges[last]
    };
    Some((least, most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: i64 = 1_000_000_000;

    fn limit(at_ns: i64, theta_ns: i64) -> Limit {
        Limit { at_ns, theta_ns }
    }

    #[test]
    fn a_step_larger_than_the_corridor_fits_no_line() {
        let assumed = Assumptions::default();
        let points = |step: i64| {
            let upper: Vec<_> = (0..8)
                .map(|k| limit(k * S, 50_000 + if k < 6 { 0 } else { step }))
                .collect();
            let lower: Vec<_> = (0..8)
                .map(|k| limit(k * S, -50_000 + if k < 6 { 0 } else { step }))
                .collect();
            Tube::fit(&upper, &lower, (0, 8 * S), &assumed)
        };
        assert!(points(0).expect("fits").is_some());
        assert!(points(90_000).is_ok());
        assert!(points(200_000).is_err());
        assert!(points(-200_000).is_err());
        assert!(
            Tube::fit(&[limit(0, 1)], &[], (0, S), &assumed)
                .expect("nothing")
                .is_none()
        );
    }

    /// The extremes at `x` over all lines through two limits, by brute force.
    fn brute(upper: &[Limit], lower: &[Limit], relax: f64, rho: f64, x: f64) -> Option<(f64, f64)> {
        let caps: Vec<(f64, f64)> = upper
            .iter()
            .map(|l| (l.at_ns as f64, l.theta_ns as f64 + relax))
            .collect();
        let floors: Vec<(f64, f64)> = lower
            .iter()
            .map(|l| (l.at_ns as f64, l.theta_ns as f64 - relax))
            .collect();
        let all: Vec<_> = caps.iter().chain(&floors).copied().collect();
        let mut lines = Vec::new();
        for a in &all {
            lines.push((*a, rho));
            lines.push((*a, -rho));
            for b in &all {
                if a.0 != b.0 {
                    lines.push((*a, (b.1 - a.1) / (b.0 - a.0)));
                }
            }
        }
        let fits = |at: &(f64, f64), slope: f64| {
            slope.abs() <= rho * (1.0 + 1e-9)
                && caps
                    .iter()
                    .all(|c| at.1 + (c.0 - at.0) * slope <= c.1 + 1e-3)
                && floors
                    .iter()
                    .all(|f| at.1 + (f.0 - at.0) * slope >= f.1 - 1e-3)
        };
        lines
            .iter()
            .filter(|(at, slope)| fits(at, *slope))
            .map(|(at, slope)| at.1 + (x - at.0) * slope)
            .fold(None, |so_far, y| match so_far {
                None => Some((y, y)),
                Some((lo, hi)) => Some((f64::min(lo, y), f64::max(hi, y))),
            })
    }

    proptest! {
        #[test]
        fn the_extremes_are_those_of_all_lines(
            points in proptest::collection::vec(
                (0i64..8 * S, 0i64..300_000, 0i64..300_000), 1..8),
            ppm in -150i64..150,
            asked in 0i64..8 * S,
        ) {
            let line = |x: i64| x * ppm / 1_000_000;
            let mut upper: Vec<_> =
                points.iter().map(|p| limit(p.0, line(p.0) + p.1)).collect();
            let mut lower: Vec<_> =
                points.iter().map(|p| limit((p.0 + 200_000).min(8 * S), line(p.0) - p.2)).collect();
            upper.sort_unstable_by_key(|l| (l.at_ns, l.theta_ns));
            lower.sort_unstable_by_key(|l| (l.at_ns, -l.theta_ns));
            let assumed = Assumptions { second_widening: false, ..Assumptions::default() };
            let tube = Tube::fit(&upper, &lower, (0, 8 * S), &assumed)
                .expect("a line fits").expect("limits on both sides");
            let relax = assumed.eps_ns(8 * S) + SLACK_NS;
            let (lo, hi) = tube.at(asked, 0);
            let (brute_lo, brute_hi) =
                brute(&upper, &lower, relax, 200e-6, asked as f64).expect("a line fits");
            // The brute force lets lines pass that are off by 1e-3, and a slope
            // between two near points turns that into more.
            prop_assert!(lo <= brute_lo + 50.0 && hi >= brute_hi - 50.0,
                "{lo} {hi} against {brute_lo} {brute_hi}");
            prop_assert!(lo >= brute_lo - 50.0 && hi <= brute_hi + 50.0,
                "{lo} {hi} against {brute_lo} {brute_hi}");
            prop_assert!(lo <= line(asked) as f64 && line(asked) as f64 <= hi);
        }
    }
}
