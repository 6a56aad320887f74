//! Which records of a stream are taken: each seq once, in order, without holes.
//!
//! Pure. The sender may repeat, reorder, cut and lose frames; what is taken is
//! always the next seq after the last one taken.

/// What to do with records `first..=last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Take them, without the first `skip`, which are here already.
    Take {
        /// How many to leave out.
        skip: u64,
    },
    /// All of them are here already.
    Duplicate,
    /// Some are missing before them.
    Gap {
        /// The seq that must come first.
        expected: u64,
    },
}

/// Decides about records `first..=last` of a stream whose last seq taken is
/// `admitted` (0: none; taken and not yet durable ones count).
pub fn admit(admitted: u64, first: u64, last: u64) -> Admission {
    if last <= admitted {
        Admission::Duplicate
    } else if first > admitted.saturating_add(1) {
        Admission::Gap {
            expected: admitted.saturating_add(1),
        }
    } else {
        Admission::Take {
            skip: admitted + 1 - first,
        }
    }
}

/// A loss `first..=last` of between `min` and `max` records, cut to what is not
/// here already (`skip` records of it are). What was cut may have been any of
/// them, so the least shrinks by as many and the most to what is left.
pub fn cut_loss(skip: u64, first: u64, last: u64, min: u64, max: u64) -> (u64, u64, u64) {
    let first = first.saturating_add(skip);
    let left = (last - first).saturating_add(1);
    (first, min.saturating_sub(skip), max.min(left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(admitted: u64, first: u64, last: u64, expect: Admission) {
        assert_eq!(admit(admitted, first, last), expect);
    }

    #[test]
    fn next_old_overlapping_early() {
        check(0, 1, 5, Admission::Take { skip: 0 });
        check(5, 6, 6, Admission::Take { skip: 0 });
        check(5, 3, 8, Admission::Take { skip: 3 });
        check(5, 1, 5, Admission::Duplicate);
        check(5, 7, 9, Admission::Gap { expected: 6 });
        check(u64::MAX, 1, u64::MAX, Admission::Duplicate);
    }

    proptest! {
        /// A sender with a spool of `total` records sends pieces from anywhere,
        /// any number of times; whenever it is told of a gap it may or may not
        /// obey. In the end it sends everything once more from the front.
        #[test]
        fn each_seq_is_taken_exactly_once(
            total in 1u64..200,
            pieces in proptest::collection::vec((1u64..200, 1u64..40), 0..60),
            cuts in proptest::collection::vec(1u64..30, 1..20),
        ) {
            let mut taken: Vec<u64> = Vec::new();
            let mut admitted = 0;
            let mut offer = |first: u64, last: u64| {
                match admit(admitted, first, last) {
                    Admission::Take { skip } => {
                        taken.extend(first + skip..=last);
                        admitted = last;
                    }
                    Admission::Duplicate => {}
                    Admission::Gap { expected } => assert_eq!(expected, admitted + 1),
                }
            };
            for (first, count) in pieces {
                let first = first.min(total);
                offer(first, (first + count - 1).min(total));
            }
            let mut first = 1;
            for cut in cuts.iter().cycle() {
                if first > total {
                    break;
                }
                offer(first, (first + cut - 1).min(total));
                first += cut;
            }
            prop_assert_eq!(taken, (1..=total).collect::<Vec<_>>());
        }

        #[test]
        fn a_cut_loss_stays_consistent(first in 1u64..100, len in 1u64..100, skip in 0u64..99, min in 0u64..100, max in 0u64..100) {
            let last = first + len - 1;
            let skip = skip.min(len - 1);
            let (min, max) = (min.min(len), max.min(len).max(min.min(len)));
            let (cut_first, cut_min, cut_max) = cut_loss(skip, first, last, min, max);
            let left = last - cut_first + 1;
            prop_assert_eq!(left, len - skip);
            prop_assert!(cut_min <= cut_max && cut_max <= left);
        }
    }
}
