//! The lower convex hull of points in order of x (Andrew's chain).
//!
//! Only its corners can touch a straight line from above, so of thousands of
//! points some ten are left to look at. Turns are decided in exact integers.

/// A point: x and y.
pub(super) type Point = (i64, i64);

/// Whether the way over `b` bends upward strictly: `b` is a corner of the hull.
fn bends_up(a: Point, b: Point, c: Point) -> bool {
    let wide = |from: i64, to: i64| i128::from(to) - i128::from(from);
    wide(a.0, b.0) * wide(a.1, c.1) > wide(a.1, b.1) * wide(a.0, c.0)
}

/// The corners of the lower hull, in order. The points are in order of x;
/// coordinates stay below 2^61, so that no product overflows.
pub(super) fn lower_hull(points: impl Iterator<Item = Point>) -> Vec<Point> {
    let mut hull: Vec<Point> = Vec::new();
    for point in points {
        if let Some(last) = hull.last()
            && last.0 == point.0
        {
            if last.1 <= point.1 {
                continue;
            }
            hull.pop();
        }
        while let [.., a, b] = hull.as_slice()
            && !bends_up(*a, *b, point)
        {
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn points_on_a_line_and_above_go() {
        let hull = lower_hull([(0, 0), (1, 1), (2, 2), (3, 9), (4, 4), (4, 5), (5, 4)].into_iter());
        assert_eq!(hull, [(0, 0), (5, 4)]);
        let hull = lower_hull([(0, 3), (1, 0), (2, 0), (2, -1), (3, 3)].into_iter());
        assert_eq!(hull, [(0, 3), (1, 0), (2, -1), (3, 3)]);
        assert_eq!(lower_hull(std::iter::empty()), []);
    }

    proptest! {
        #[test]
        fn every_point_is_on_or_above_and_slopes_rise(
            mut points in proptest::collection::vec((0i64..1 << 40, -(1i64 << 60)..1 << 60), 1..60),
        ) {
            points.sort_unstable();
            let hull = lower_hull(points.iter().copied());
            for three in hull.windows(3) {
                prop_assert!(bends_up(three[0], three[1], three[2]));
            }
            for point in points {
                let after = hull.partition_point(|p| p.0 < point.0);
                let b = hull[after];
                if b.0 == point.0 {
                    prop_assert!(b.1 <= point.1);
                } else {
                    prop_assert!(!bends_up(hull[after - 1], point, b));
                }
            }
        }
    }
}
