//! Sums since this aggregator was started, over all runs: what `/metrics` counts.
//!
//! Bounded: beyond [`MOST_LANES`] pairs of target and style, further ones are put
//! together under the target `other`; no client has a number of its own here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use gapscope_proto::ids::TargetName;
use gapscope_proto::sample::{Outcome, Style};

/// Pairs of target and style that are told apart.
pub const MOST_LANES: usize = 300;
/// Where all others are put.
pub const OTHER: &str = "other";
/// Upper ends of the classes of latencies, in ns.
pub const CLASSES_NS: [u64; 14] = [
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// What is counted of one target and style.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Probes by outcome; an answer past the deadline is `ok` here, and late below.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Answers past the deadline.
    pub late: u64,
    /// How often a client went from good to bad or late.
    pub stretches: u64,
    /// Answers by latency; the last class has no end.
    pub classes: [u64; CLASSES_NS.len() + 1],
    /// All latencies together.
    pub latency_sum_ns: u64,
}

impl Counts {
    /// Counts an answer.
    pub fn answer(&mut self, took_ns: u64) {
        let class = CLASSES_NS.partition_point(|end| *end < took_ns);
        self.classes[class] += 1;
        self.latency_sum_ns = self.latency_sum_ns.saturating_add(took_ns);
    }

    fn add(&mut self, other: &Self) {
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(*outcome).or_default() += count;
        }
        self.late += other.late;
        self.stretches += other.stretches;
        for (sum, count) in self.classes.iter_mut().zip(other.classes) {
            *sum += count;
        }
        self.latency_sum_ns = self.latency_sum_ns.saturating_add(other.latency_sum_ns);
    }
}

/// Who reads views.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watcher {
    /// `watch`, or another program over gRPC.
    Terminal,
    /// A browser.
    Browser,
}

/// The sums.
#[derive(Debug, Default)]
pub struct Totals {
    lanes: Mutex<BTreeMap<(String, Style), Counts>>,
    /// Samples lost, at most, as agents declared them.
    pub lost: AtomicU64,
    /// Updates that watchers missed because they did not keep up.
    pub missed: AtomicU64,
    /// Watchers that were cut off because they read nothing.
    pub cut_off: AtomicU64,
    /// Terminals that watch.
    pub terminals: AtomicU64,
    /// Browsers that watch.
    pub browsers: AtomicU64,
}

impl Totals {
    /// Adds what was counted of a target and style.
    pub fn add(&self, target: &TargetName, style: Style, counts: &Counts) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (target.to_string(), style);
        let is_full = lanes.len() >= MOST_LANES && !lanes.contains_key(&key);
        let key = if is_full {
            (OTHER.to_owned(), style)
        } else {
            key
        };
        lanes.entry(key).or_default().add(counts);
    }

    /// All sums by target and style.
    pub fn lanes(&self) -> BTreeMap<(String, Style), Counts> {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.clone()
    }

    fn watchers(&self, who: Watcher) -> &AtomicU64 {
        match who {
            Watcher::Terminal => &self.terminals,
            Watcher::Browser => &self.browsers,
        }
    }

    /// A watcher has come.
    pub fn came(&self, who: Watcher) {
        self.watchers(who).fetch_add(1, Ordering::Relaxed);
    }

    /// A watcher has gone.
    pub fn went(&self, who: Watcher) {
        self.watchers(who).fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded_and_nothing_is_left_out_of_the_sum() {
        let totals = Totals::default();
        let one = Counts {
            outcomes: BTreeMap::from([(Outcome::Ok, 1)]),
            ..Counts::default()
        };
        for n in 0..10 * MOST_LANES {
            let target = format!("t{n}").parse().expect("a name");
            totals.add(&target, Style::New, &one);
        }
        let lanes = totals.lanes();
        assert!(
            lanes.len() <= MOST_LANES + Style::ALL.len(),
            "{}",
            lanes.len()
        );
        let sum: u64 = lanes
            .values()
            .flat_map(|counts| counts.outcomes.values())
            .sum();
        assert_eq!(sum, 10 * MOST_LANES as u64);
    }

    #[test]
    fn classes_hold_their_upper_end() {
        let mut counts = Counts::default();
        for took in [1, 500_000, 500_001, 20_000_000_000] {
            counts.answer(took);
        }
        assert_eq!(counts.classes[..2], [2, 1]);
        assert_eq!(counts.classes[CLASSES_NS.len()], 1);
    }
}
