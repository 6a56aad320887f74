//! The sign-flip test: if nothing but chance made a pair differ, each difference
//! could as well have had the other sign. Assumes symmetry, not normality.

/// How the probability was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// All assignments of signs were looked at.
    Exact,
    /// So many random ones were, seeded.
    Sampled(u32),
}

/// A two-sided probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SignFlip {
    /// Share of the assignments of signs whose sum is at least as far from zero.
    pub p: f64,
    /// How it was found.
    pub how: How,
}

/// Up to so many pairs all assignments are looked at.
const EXACT_MOST: usize = 20;
const DRAWS: u32 = 20_000;

/// The smallest probability that `n` pairs can have, whatever they show: 0.0625
/// for 5, 0.00049 for 12.
pub fn least_p(n: usize) -> f64 {
    2.0_f64.powi(1 - i32::try_from(n).unwrap_or(i32::MAX))
}

/// The smallest number of pairs with which `p` can be reached at all.
pub fn least_pairs(p: f64) -> usize {
    (1..64).find(|n| least_p(*n) <= p).unwrap_or(64)
}

/// Whether paired differences are centred at zero. `None` without pairs.
pub fn sign_flip(differences: &[f64]) -> Option<SignFlip> {
    if differences.is_empty() || differences.iter().any(|d| !d.is_finite()) {
        return None;
    }
    let observed = differences.iter().sum::<f64>().abs();
    // Sums of the same numbers in another order differ in their last digits.
    let size: f64 = differences.iter().map(|d| d.abs()).sum();
    let reached = observed - size * 1e-12;
    if differences.len() > EXACT_MOST {
        return Some(sampled(differences, reached));
    }
    // In Gray code one sign changes at a time. The first keeps its sign: the
    // other half mirrors this one.
    let (first, others) = differences.split_first()?;
    let mut signs = vec![1.0; others.len()];
    let mut sum: f64 = first + others.iter().sum::<f64>();
    let mut hits = u64::from(sum.abs() >= reached);
    let all = 1_u64 << others.len();
    for count in 1..all {
        let at = count.trailing_zeros() as usize;
        signs[at] = -signs[at];
        sum += 2.0 * signs[at] * others[at];
        hits += u64::from(sum.abs() >= reached);
    }
    Some(SignFlip {
        p: hits as f64 / all as f64,
        how: How::Exact,
    })
}

/// Draws signs at random. Eight differences at a time have 256 sums, which are
/// looked up by a random byte.
fn sampled(differences: &[f64], reached: f64) -> SignFlip {
    let sums: Vec<Vec<f64>> = differences
        .chunks(8)
        .map(|eight| {
            (0..256_u32)
                .map(|signs| {
                    eight
                        .iter()
                        .enumerate()
                        .map(|(at, d)| if signs >> at & 1 == 0 { *d } else { -*d })
                        .sum()
                })
                .collect()
        })
        .collect();
    let mut random = SplitMix(0x9E37_79B9_7F4A_7C15);
    let mut hits = 0_u32;
    for _ in 0..DRAWS {
        let mut sum = 0.0;
        for tables in sums.chunks(8) {
            let bytes = random.next().to_le_bytes();
            for (table, byte) in tables.iter().zip(bytes) {
                sum += table[usize::from(byte)];
            }
        }
        hits += u32::from(f64::abs(sum) >= reached);
    }
    // What was observed is one of the assignments.
    SignFlip {
        p: f64::from(hits + 1) / f64::from(DRAWS + 1),
        how: How::Sampled(DRAWS),
    }
}

/// Steele, Lea and Flood's SplitMix64: enough to draw signs, and always the same.
#[derive(Debug, Clone)]
pub struct SplitMix(pub u64);

impl SplitMix {
    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Evenly from (0, 1).
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// From the normal distribution (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(differences: &[f64], expect: f64) {
        let found = sign_flip(differences).expect("there are pairs");
        assert_eq!(found.how, How::Exact);
        assert!(
            (found.p - expect).abs() < 1e-12,
            "{found:?} for {differences:?}"
        );
    }

    #[test]
    fn counted_by_hand() {
        check(&[1.0], 1.0);
        // ++ and -- of four.
        check(&[1.0, 2.0], 0.5);
        // Sums: 6, 4, 2, 0 and their mirrors; observed 2: 3 of 4.
        check(&[1.0, -2.0, 3.0], 0.75);
        check(&[1.0, 2.0, 3.0], 0.25);
        // Five that agree cannot do better than 1/16.
        check(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.0625);
        check(&[-0.1, -0.2, -0.3, -0.1, -0.2], 0.0625);
        check(&[0.0, 0.0, 0.0], 1.0);
        assert_eq!(sign_flip(&[]), None);
        assert_eq!(sign_flip(&[f64::INFINITY]), None);
    }

    #[test]
    fn what_so_many_pairs_can_show() {
        assert_eq!(least_p(5), 0.0625);
        assert!((least_p(12) - 0.000_488_281_25).abs() < 1e-15);
        assert_eq!(least_pairs(0.05), 6);
        assert_eq!(least_pairs(0.01), 8);
    }

    #[test]
    fn sampled_agrees_with_exact() {
        let mut random = SplitMix(7);
        let twenty: Vec<f64> = (0..20).map(|_| 0.3 + random.normal()).collect();
        let exact = sign_flip(&twenty).expect("pairs");
        // A pair of zero changes nothing but the method.
        let more: Vec<f64> = twenty.iter().copied().chain([0.0]).collect();
        let sampled = sign_flip(&more).expect("pairs");
        assert_eq!(sampled.how, How::Sampled(DRAWS));
        assert!((exact.p - sampled.p).abs() < 0.01, "{exact:?} {sampled:?}");
    }
}
