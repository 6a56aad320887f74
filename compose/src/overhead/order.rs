//! In which order blocks come. Pure.
//!
//! Each round has all numbers of clients in random order, and for each of them
//! all targets in random order, one after the other: pairs that are compared are
//! seconds apart, and no target always comes first.

use rand::Rng;
use rand::seq::SliceRandom;

/// One block to come: number of clients and index of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Clients.
    pub clients: u32,
    /// Index of the target.
    pub target: usize,
}

/// The blocks of one round.
pub fn round(clients: &[u32], targets: usize, rng: &mut impl Rng) -> Vec<Turn> {
    let mut clients = clients.to_vec();
    clients.shuffle(rng);
    let mut turns = Vec::with_capacity(clients.len() * targets);
    for n in clients {
        let mut order: Vec<usize> = (0..targets).collect();
        order.shuffle(rng);
        turns.extend(order.into_iter().map(|target| Turn { clients: n, target }));
    }
    turns
}

/// How many statements client `number` of `clients` sends of `all`.
pub fn share(all: u64, clients: u32, number: u32) -> u64 {
    let (clients, number) = (u64::from(clients.max(1)), u64::from(number));
    all / clients + u64::from(number < all % clients)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn a_round_has_everything_once_and_pairs_together() {
        let mut rng = StdRng::seed_from_u64(7);
        let mut firsts = [0; 3];
        for _ in 0..300 {
            let turns = round(&[1, 10, 40], 3, &mut rng);
            for group in turns.chunks(3) {
                assert!(group.iter().all(|t| t.clients == group[0].clients));
                let mut targets: Vec<usize> = group.iter().map(|t| t.target).collect();
                firsts[targets[0]] += 1;
                targets.sort_unstable();
                assert_eq!(targets, [0, 1, 2]);
            }
            let mut clients: Vec<u32> = turns.chunks(3).map(|g| g[0].clients).collect();
            clients.sort_unstable();
            assert_eq!(clients, [1, 10, 40]);
        }
        // 300 of 900 expected each; six standard deviations are 85.
        assert!(firsts.iter().all(|n| (215..=385).contains(n)), "{firsts:?}");
    }

    #[test]
    fn a_seed_gives_the_same_order_again() {
        let order = |seed| round(&[1, 10], 4, &mut StdRng::seed_from_u64(seed));
        assert_eq!(order(1), order(1));
    }

    #[test]
    fn shares_add_up() {
        for (all, clients) in [(10_000, 40), (10_000, 7), (3, 10), (0, 4), (5, 1)] {
            let shares: Vec<u64> = (0..clients).map(|n| share(all, clients, n)).collect();
            assert_eq!(shares.iter().sum::<u64>(), all);
            let (least, most) = (shares.iter().min(), shares.iter().max());
            assert!(most.expect("some") - least.expect("some") <= 1);
        }
    }
}
