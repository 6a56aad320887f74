//! The bounds of one epoch: layer A and every window of layer B intersected, and
//! written down as knots.
//!
//! Windows of 8, 32, 128 and 512 s, half overlapping: short ones follow a drift
//! that wanders, long ones beat noise. Between neighbouring moments of a grid
//! (the exchanges, the windows' ends) each window's bound is replaced by its
//! chord, which for a convex upper bound lies outside, and layer A by two rays;
//! what is left is the envelope of a few straight lines, exact. Knots that a
//! straight line between others replaces within `TOLERANCE_NS` go, and the rest
//! are moved outward by what that cost, so interpolating between knots never
//! gives less than the bounds, and at most a microsecond more.

use super::bound::{Knot, ThetaBound};
use super::exchange::{Limit, OffsetBounds};
use super::window::{Assumptions, Tube};

/// Lengths of the windows.
pub const WINDOWS_S: [i64; 4] = [8, 32, 128, 512];

/// By how much a knot may be missed before it is kept.
const TOLERANCE_NS: f64 = 400.0;
/// Exchanges of a burst are looked at this far apart.
const GRID_NS: i64 = 2_000_000;
const NS_PER_S: i64 = 1_000_000_000;

/// An interval of the offset as a function of the agent's clock: straight
/// between knots; before the first and after the last it opens with the largest
/// drift.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corridor {
    knots: Vec<Knot>,
    rho_ppm: i64,
}

/// The shortest windows contradict themselves in this range of the agent's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contradiction {
    /// Begin of the window.
    pub from_ns: i64,
    /// End of the window.
    pub to_ns: i64,
}

/// What came out of an epoch's exchanges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// The bounds.
    pub corridor: Corridor,
    /// Windows longer than the shortest that no line fits: left out.
    pub skipped: usize,
}

/// Windows of one length. Number k begins at `from + k * length / 2`. Only those
/// that hold limits on both sides are there: a clock may be silent for long.
struct Layer {
    length_ns: i64,
    /// By number, in order.
    tubes: Vec<(i64, Tube)>,
}

impl Layer {
    fn span(length_ns: i64, k: i64, from_ns: i64, to_ns: i64) -> (i64, i64) {
        let begin = from_ns.saturating_add((length_ns / 2).saturating_mul(k));
        (begin, begin.saturating_add(length_ns).min(to_ns))
    }

    /// The tubes that cover this piece of the grid.
    fn covering(
        &self,
        from_ns: i64,
        (p, q): (i64, i64),
        to_ns: i64,
    ) -> impl Iterator<Item = &Tube> {
        let at = p.saturating_sub(from_ns).max(0) / (self.length_ns / 2);
        let after = self.tubes.partition_point(|(k, _)| *k <= at);
        self.tubes[after.saturating_sub(2)..after]
            .iter()
            .filter(move |(k, _)| {
                let (begin, end) = Self::span(self.length_ns, *k, from_ns, to_ns);
                begin <= p && q <= end
            })
            .map(|(_, tube)| tube)
    }
}

impl Corridor {
    /// From an epoch's exchanges, in order; none if there is not one.
    ///
    /// # Errors
    /// When no line fits one of the shortest windows.
    pub fn build(
        bounds: &[OffsetBounds],
        assumed: &Assumptions,
    ) -> Result<Option<Built>, Contradiction> {
        let Some(wide) = ThetaBound::new(bounds, assumed.rho_ppm) else {
            return Ok(None);
        };
        let mut upper: Vec<Limit> = bounds.iter().map(|b| b.upper).collect();
        let mut lower: Vec<Limit> = bounds.iter().map(|b| b.lower).collect();
        upper.sort_unstable_by_key(|l| (l.at_ns, l.theta_ns));
        lower.sort_unstable_by_key(|l| (l.at_ns, -l.theta_ns));
        let from_ns = upper[0].at_ns.min(lower[0].at_ns);
        let to_ns = upper[upper.len() - 1]
            .at_ns
            .max(lower[lower.len() - 1].at_ns);
        let (layers, skipped) = layers(&upper, &lower, (from_ns, to_ns), assumed)?;
        let grid = grid(&upper, &lower, &layers, (from_ns, to_ns));
        let base_ns = upper[0].theta_ns;
        let rough = trace(&wide, &layers, &grid, base_ns, assumed.rho_ppm);
        Ok(Some(Built {
            corridor: Self {
                knots: thin(&rough, base_ns),
                rho_ppm: assumed.rho_ppm,
            },
            skipped,
        }))
    }

    /// The knots, in order.
    pub fn knots(&self) -> &[Knot] {
        &self.knots
    }

    /// The interval at `at_ns`.
    pub fn at(&self, at_ns: i64) -> Knot {
        let after = self.knots.partition_point(|k| k.at_ns < at_ns);
        let open = |knot: &Knot| knot.opened(at_ns, self.rho_ppm);
        match (after.checked_sub(1), self.knots.get(after)) {
            (Some(before), Some(b)) => between(&self.knots[before], b, at_ns),
            (None, Some(end)) => open(end),
            (Some(before), None) => open(&self.knots[before]),
            (None, None) => Knot {
                at_ns,
                lo_ns: i64::MIN,
                hi_ns: i64::MAX,
            },
        }
    }
}

/// Straight between two knots, rounded outward.
fn between(a: &Knot, b: &Knot, at_ns: i64) -> Knot {
    let span = i128::from(b.at_ns) - i128::from(a.at_ns);
    let part = i128::from(at_ns) - i128::from(a.at_ns);
    if span <= 0 {
        return Knot {
            at_ns,
            lo_ns: a.lo_ns.min(b.lo_ns),
            hi_ns: a.hi_ns.max(b.hi_ns),
        };
    }
    // Sign turned so that flooring rounds outward on both sides.
    let floor = |a: i64, b: i64| {
        let rise = (i128::from(b) - i128::from(a)) * part;
        i64::try_from(i128::from(a) + rise.div_euclid(span)).unwrap_or(i64::MIN)
    };
    Knot {
        at_ns,
        lo_ns: floor(a.lo_ns, b.lo_ns),
        hi_ns: floor(a.hi_ns.saturating_neg(), b.hi_ns.saturating_neg()).saturating_neg(),
    }
}

fn layers(
    upper: &[Limit],
    lower: &[Limit],
    (from_ns, to_ns): (i64, i64),
    assumed: &Assumptions,
) -> Result<(Vec<Layer>, usize), Contradiction> {
    let mut layers = Vec::new();
    let mut skipped = 0;
    for (number, window_s) in WINDOWS_S.into_iter().enumerate() {
        let length_ns = window_s * NS_PER_S;
        let mut tubes = Vec::new();
        let (mut first_upper, mut first_lower) = (0, 0);
        let mut k = 0i64;
        loop {
            let (begin, end) = Layer::span(length_ns, k, from_ns, to_ns);
            first_upper += upper[first_upper..].partition_point(|l| l.at_ns < begin);
            first_lower += lower[first_lower..].partition_point(|l| l.at_ns < begin);
            let some_upper = &upper[first_upper..];
            let some_lower = &lower[first_lower..];
            let next_ns = [some_upper.first(), some_lower.first()]
                .into_iter()
                .flatten()
                .map(|l| l.at_ns)
                .min();
            let some_upper = &some_upper[..some_upper.partition_point(|l| l.at_ns <= end)];
            let some_lower = &some_lower[..some_lower.partition_point(|l| l.at_ns <= end)];
            match Tube::fit(some_upper, some_lower, (begin, end), assumed) {
                Ok(tube) => tubes.extend(tube.map(|tube| (k, tube))),
                Err(_) if number > 0 => skipped += 1,
                Err(_) => {
                    return Err(Contradiction {
                        from_ns: begin,
                        to_ns: end,
                    });
                }
            }
            let Some(next_ns) = next_ns.filter(|_| end < to_ns) else {
                break;
            };
            // The first window after this one that reaches the next limit.
            let reach = next_ns.saturating_sub(from_ns).saturating_sub(length_ns);
            k = (k + 1).max(reach.max(0) / (length_ns / 2));
        }
        layers.push(Layer { length_ns, tubes });
        if to_ns.saturating_sub(from_ns) <= length_ns {
            // A longer window would hold the same limits, and be wider.
            break;
        }
    }
    Ok((layers, skipped))
}

/// Where the lines may change: at the windows' ends, and the first, the last and
/// some in between of each burst.
fn grid(
    upper: &[Limit],
    lower: &[Limit],
    layers: &[Layer],
    (from_ns, to_ns): (i64, i64),
) -> Vec<i64> {
    let mut fixed: Vec<i64> = vec![from_ns, to_ns];
    for layer in layers {
        for (k, _) in &layer.tubes {
            let (begin, end) = Layer::span(layer.length_ns, *k, from_ns, to_ns);
            fixed.extend([begin, end]);
        }
    }
    fixed.retain(|at| (from_ns..=to_ns).contains(at));
    fixed.sort_unstable();
    let mut seen: Vec<i64> = upper.iter().chain(lower).map(|l| l.at_ns).collect();
    seen.sort_unstable();
    let mut all = fixed;
    let mut last = i64::MIN;
    for (at, next) in seen.iter().zip(seen.iter().skip(1).chain([&i64::MAX])) {
        if at.saturating_sub(last) >= GRID_NS || next.saturating_sub(*at) >= GRID_NS {
            all.push(*at);
            last = *at;
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// A straight line of the agent's clock relative to where it is traced.
#[derive(Clone, Copy)]
struct Line {
    start: f64,
    slope: f64,
}

impl Line {
    fn at(self, x: f64) -> f64 {
        self.start + self.slope * x
    }
}

/// The lowest of some lines on [0, span]: where it bends, with its value there.
fn envelope(lines: &[Line], span: f64, bends: &mut Vec<(f64, f64)>) {
    bends.clear();
    let lowest = |x: f64| {
        lines.iter().copied().min_by(|a, b| {
            (a.at(x), a.slope)
                .partial_cmp(&(b.at(x), b.slope))
                .unwrap_or(std::cmp::Ordering::Equal)
        })
    };
    let Some(mut line) = lowest(0.0) else { return };
    let mut x = 0.0;
    bends.push((x, line.at(x)));
    loop {
        let mut next: Option<(f64, Line)> = None;
        for other in lines.iter().filter(|o| o.slope < line.slope) {
            let meets = ((other.start - line.start) / (line.slope - other.slope)).max(x);
            let sooner = next
                .is_none_or(|(at, known)| meets < at || (meets == at && other.slope < known.slope));
            if meets < span && sooner {
                next = Some((meets, *other));
            }
        }
        let Some((at, other)) = next else { break };
        x = at;
        line = other;
        bends.push((x, line.at(x)));
    }
    bends.push((span, line.at(span)));
}

/// A knot before it is rounded: moment, lower and upper bound relative to a base.
#[derive(Debug, Clone, Copy)]
struct Rough {
    at_ns: i64,
    lo: f64,
    hi: f64,
}

fn straight(bends: &[(f64, f64)], x: f64) -> f64 {
    let after = bends.partition_point(|b| b.0 < x).clamp(1, bends.len() - 1);
    let (a, b) = (bends[after - 1], bends[after]);
    if b.0 <= a.0 {
        return a.1.min(b.1);
    }
    a.1 + (x - a.0) * (b.1 - a.1) / (b.0 - a.0)
}

fn trace(
    wide: &ThetaBound,
    layers: &[Layer],
    grid: &[i64],
    base_ns: i64,
    rho_ppm: i64,
) -> Vec<Rough> {
    let rho = rho_ppm as f64 / 1e6;
    let relative = |ns: i64| ns.saturating_sub(base_ns) as f64;
    let (Some(from_ns), Some(to_ns)) = (grid.first().copied(), grid.last().copied()) else {
        return Vec::new();
    };
    let at_once = |at: i64| {
        let knot = wide.at(at);
        let (mut lo, mut hi) = (relative(knot.lo_ns), relative(knot.hi_ns));
        for tube in layers
            .iter()
            .flat_map(|l| l.covering(from_ns, (at, at), to_ns))
        {
            let (low, high) = tube.at(at, base_ns);
            lo = lo.max(low);
            hi = hi.min(high);
        }
        Rough { at_ns: at, lo, hi }
    };
    if grid.len() == 1 {
        return vec![at_once(from_ns)];
    }
    let mut rough: Vec<Rough> = Vec::with_capacity(grid.len());
    let (mut uppers, mut lowers) = (Vec::new(), Vec::new());
    let (mut tops, mut bottoms) = (Vec::new(), Vec::new());
    let mut begins = wide.at(from_ns);
    for pair in grid.windows(2) {
        let (p, q) = (pair[0], pair[1]);
        let span = q.saturating_sub(p) as f64;
        let ends = wide.at(q);
        uppers.clear();
        lowers.clear();
        // One nanosecond: layer A is rounded to whole ones at its own knots.
        for (value, slope) in [
            (relative(begins.hi_ns) + 1.0, rho),
            (relative(ends.hi_ns) + 1.0 + rho * span, -rho),
        ] {
            uppers.push(Line {
                start: value,
                slope,
            });
        }
        for (value, slope) in [
            (1.0 - relative(begins.lo_ns), rho),
            (1.0 - relative(ends.lo_ns) + rho * span, -rho),
        ] {
            lowers.push(Line {
                start: value,
                slope,
            });
        }
        for layer in layers {
            for tube in layer.covering(from_ns, (p, q), to_ns) {
                let (low_p, high_p) = tube.at(p, base_ns);
                let (low_q, high_q) = tube.at(q, base_ns);
                uppers.push(Line {
                    start: high_p,
                    slope: (high_q - high_p) / span,
                });
                lowers.push(Line {
                    start: -low_p,
                    slope: (low_p - low_q) / span,
                });
            }
        }
        envelope(&uppers, span, &mut tops);
        envelope(&lowers, span, &mut bottoms);
        let mut bends: Vec<f64> = tops.iter().chain(&bottoms).map(|b| b.0).collect();
        bends.sort_unstable_by(f64::total_cmp);
        for x in bends {
            let knot = Rough {
                at_ns: p.saturating_add(x as i64),
                lo: -straight(&bottoms, x),
                hi: straight(&tops, x),
            };
            match rough.last_mut() {
                // Where a window ends the bounds jump outward; the wider counts.
                Some(last) if last.at_ns >= knot.at_ns => {
                    if x > 0.0 || (last.lo - knot.lo).abs().max((last.hi - knot.hi).abs()) < 1.0 {
                        last.lo = last.lo.min(knot.lo);
                        last.hi = last.hi.max(knot.hi);
                    } else {
                        let at_ns = last.at_ns.saturating_add(1);
                        rough.push(Rough { at_ns, ..knot });
                    }
                }
                _ => rough.push(knot),
            }
        }
        begins = ends;
    }
    rough
}

/// Slopes from one knot that pass all later ones within the tolerance.
struct Sight {
    least: f64,
    most: f64,
}

impl Sight {
    const OPEN: Self = Self {
        least: f64::NEG_INFINITY,
        most: f64::INFINITY,
    };

    fn sees(&self, rise: f64, run: f64) -> bool {
        let slope = rise / run;
        self.least <= slope && slope <= self.most
    }

    fn passes(&mut self, rise: f64, run: f64) {
        self.least = self.least.max((rise - TOLERANCE_NS) / run);
        self.most = self.most.min((rise + TOLERANCE_NS) / run);
    }
}

/// Which knots stay.
fn kept(rough: &[Rough]) -> Vec<usize> {
    let mut keep = vec![0];
    let (mut low, mut high) = (Sight::OPEN, Sight::OPEN);
    let mut from = 0;
    for at in 1..rough.len() {
        let run = |to: usize| (rough[to].at_ns.saturating_sub(rough[from].at_ns)) as f64;
        let (knot, start) = (rough[at], rough[from]);
        if at > from + 1
            && !(low.sees(knot.lo - start.lo, run(at)) && high.sees(knot.hi - start.hi, run(at)))
        {
            from = at - 1;
            keep.push(from);
            (low, high) = (Sight::OPEN, Sight::OPEN);
        }
        let start = rough[from];
        let run = (knot.at_ns.saturating_sub(start.at_ns)) as f64;
        low.passes(knot.lo - start.lo, run);
        high.passes(knot.hi - start.hi, run);
    }
    if rough.len() > 1 {
        keep.push(rough.len() - 1);
    }
    keep
}

/// Fewer knots, moved outward by what the missing ones stood out.
fn thin(rough: &[Rough], base_ns: i64) -> Vec<Knot> {
    if rough.is_empty() {
        return Vec::new();
    }
    let keep = kept(rough);
    let mut moved = vec![(0.0f64, 0.0f64); keep.len()];
    for (piece, ends) in keep.windows(2).enumerate() {
        let (a, b) = (rough[ends[0]], rough[ends[1]]);
        let span = b.at_ns.saturating_sub(a.at_ns) as f64;
        let (mut low, mut high) = (0.0f64, 0.0f64);
        for knot in &rough[ends[0] + 1..ends[1].max(ends[0] + 1)] {
            let part = knot.at_ns.saturating_sub(a.at_ns) as f64 / span;
            low = low.max(a.lo + (b.lo - a.lo) * part - knot.lo);
            high = high.max(knot.hi - (a.hi + (b.hi - a.hi) * part));
        }
        for end in [piece, piece + 1] {
            moved[end].0 = moved[end].0.max(low);
            moved[end].1 = moved[end].1.max(high);
        }
    }
    keep.iter()
        .zip(moved)
        .map(|(at, (low, high))| {
            let knot = rough[*at];
            Knot {
                at_ns: knot.at_ns,
                lo_ns: base_ns.saturating_add((knot.lo - low - 1.0).floor() as i64),
                hi_ns: base_ns.saturating_add((knot.hi + high + 1.0).ceil() as i64),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// What the module promises: never inside the exact intersection of all
        /// windows and layer A, and at most a microsecond outside.
        #[test]
        fn interpolation_is_the_intersection_to_a_microsecond(
            pauses in proptest::collection::vec(
                (10_000i64..3_000_000_000, 20_000i64..400_000, 20_000i64..400_000), 20..250),
            ppm in -100i64..100,
            asked in proptest::collection::vec(0.0f64..1.0, 200),
        ) {
            let mut at = 0i64;
            let theta = |at: i64| at * ppm / 1_000_000 + 7_000_000;
            let bounds: Vec<OffsetBounds> = pauses
                .iter()
                .map(|(pause, there, back)| {
                    let a1 = at + pause;
                    let a2 = a1 + there + back;
                    at = a2;
                    OffsetBounds {
                        upper: Limit { at_ns: a1, theta_ns: theta(a1) + there },
                        lower: Limit { at_ns: a2, theta_ns: theta(a2) - back },
                    }
                })
                .collect();
            let assumed = Assumptions::default();
            let built = Corridor::build(&bounds, &assumed).expect("fits").expect("exchanges");
            let wide = ThetaBound::new(&bounds, assumed.rho_ppm).expect("exchanges");
            let upper: Vec<Limit> = bounds.iter().map(|b| b.upper).collect();
            let lower: Vec<Limit> = bounds.iter().map(|b| b.lower).collect();
            let (from, to) = (upper[0].at_ns, lower[lower.len() - 1].at_ns);
            let (layers, _) = layers(&upper, &lower, (from, to), &assumed).expect("fits");
            for share in asked {
                let at = from + ((to - from) as f64 * share) as i64;
                let found = built.corridor.at(at);
                let knot = wide.at(at);
                let (mut lo, mut hi) = (knot.lo_ns as f64, knot.hi_ns as f64);
                for tube in layers.iter().flat_map(|l| l.covering(from, (at, at), to)) {
                    let (low, high) = tube.at(at, 0);
                    lo = lo.max(low);
                    hi = hi.min(high);
                }
                let (out_lo, out_hi) = (lo - found.lo_ns as f64, found.hi_ns as f64 - hi);
                prop_assert!((0.0..=1_000.0).contains(&out_lo), "{at}: {out_lo}");
                prop_assert!((0.0..=1_000.0).contains(&out_hi), "{at}: {out_hi}");
            }
        }
    }

    #[test]
    fn interpolation_rounds_outward() {
        let knot = |at_ns, lo_ns, hi_ns| Knot {
            at_ns,
            lo_ns,
            hi_ns,
        };
        let (a, b) = (knot(0, -1, 1), knot(3, 0, 2));
        assert_eq!(between(&a, &b, 1), knot(1, -1, 2));
        assert_eq!(between(&a, &b, 3), b);
        let wide = between(
            &knot(i64::MIN, i64::MIN, i64::MIN),
            &knot(i64::MAX, i64::MAX, i64::MAX),
            0,
        );
        assert!(wide.lo_ns <= wide.hi_ns);
    }

    #[test]
    fn the_lowest_of_lines_is_traced() {
        let lines = [
            Line {
                start: 0.0,
                slope: 1.0,
            },
            Line {
                start: 10.0,
                slope: -1.0,
            },
            Line {
                start: 4.0,
                slope: 0.0,
            },
            Line {
                start: 9.0,
                slope: 0.5,
            },
        ];
        let mut bends = Vec::new();
        envelope(&lines, 10.0, &mut bends);
        assert_eq!(bends, [(0.0, 0.0), (4.0, 4.0), (6.0, 4.0), (10.0, 0.0)]);
    }

    #[test]
    fn thinned_knots_lie_outside_and_near() {
        let rough: Vec<Rough> = (0..500)
            .map(|k| {
                let wave = f64::from(k * 37 % 101) * 3.0 + f64::from(k / 50) * 5_000.0;
                Rough {
                    at_ns: i64::from(k) * 1_000_000,
                    lo: -wave,
                    hi: wave + 2_000.0,
                }
            })
            .collect();
        let knots = thin(&rough, 7);
        assert!(knots.len() < 200, "{}", knots.len());
        let corridor = Corridor {
            knots,
            rho_ppm: 200,
        };
        for knot in &rough {
            let found = corridor.at(knot.at_ns);
            let (lo, hi) = (found.lo_ns as f64 - 7.0, found.hi_ns as f64 - 7.0);
            assert!(lo <= knot.lo && knot.lo - lo <= 1_000.0, "{knot:?} {lo}");
            assert!(hi >= knot.hi && hi - knot.hi <= 1_000.0, "{knot:?} {hi}");
        }
    }
}
