//! Where a clock's epochs end, and the bounds of each.
//!
//! An epoch ends on proof or on suspicion: a suspend that the anchors show; two
//! exchanges that no offset with the largest drift fits; a shortest window that
//! no line fits, even if the drift changes eight times faster than assumed; a
//! shift of the middle at an unchanged round trip.
//!
//! A step is narrowed down from both sides: it came before the first exchange
//! that contradicts what was before, and after the last that contradicts what
//! comes later. What lies in between may belong to either side and is given to
//! none, nor are the two exchanges at the ends, which may have been under way.

use gapscope_proto::host::Anchor;

use super::bound::drift_ns;
use super::corridor::{Contradiction, Corridor};
use super::exchange::{Limit, OffsetBounds};
use super::level;
use super::window::{Assumptions, Tube};

/// Why an epoch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The data end here.
    DataEnd,
    /// The host was suspended: BOOTTIME moved on against MONOTONIC.
    Suspend,
    /// No offset fits the exchanges on both sides: proof of a step.
    Step,
    /// All agents stepped at once: the aggregator's clock did.
    AggregatorStep,
    /// The middle moved and the round trip did not: suspicion of a step.
    LevelShift,
    /// The drift changed faster than assumed.
    DriftChange,
    /// The host was booted again: another clock took over.
    Boot,
}

impl Ending {
    /// The word in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DataEnd => "data_end",
            Self::Suspend => "suspend",
            Self::Step => "step",
            Self::AggregatorStep => "aggregator_step",
            Self::LevelShift => "level_shift",
            Self::DriftChange => "drift_change",
            Self::Boot => "boot",
        }
    }
}

/// A stretch of one clock without a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epoch {
    /// First reading of the agent's clock it speaks for.
    pub from_ns: i64,
    /// The last.
    pub to_ns: i64,
    /// Its bounds; none: not one exchange is left.
    pub corridor: Option<Corridor>,
    /// Exchanges used.
    pub exchanges: usize,
    /// Smallest round trip, without the aggregator's own share.
    pub round_trip_min_ns: i64,
    /// How many times the assumed change of the drift was needed.
    pub kappa_factor: u32,
    /// Long windows that no line fits, left out.
    pub skipped_windows: usize,
    /// Why it ended.
    pub ended: Ending,
}

/// Exchanges before `before` belong to the old side, from `after` on to the new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    before: usize,
    after: usize,
    why: Ending,
}

const MOST_KAPPA: u32 = 8;

/// The epochs of one clock. The exchanges are in order of `a1`.
pub fn epochs(bounds: &[OffsetBounds], anchors: &[Anchor], assumed: &Assumptions) -> Vec<Epoch> {
    if bounds.is_empty() {
        return Vec::new();
    }
    let mut cuts = steps(bounds);
    mark_suspends(bounds, anchors, &mut cuts);
    cuts.sort_unstable_by_key(|c| (c.before, c.after));
    let mut shifts = Vec::new();
    for (from, to, _) in stretches(bounds.len(), &cuts) {
        for shift in level::shifts(&bounds[from..to], assumed.kappa_ppm_per_s) {
            shifts.push(Cut {
                before: from + shift.start,
                after: from + shift.end,
                why: Ending::LevelShift,
            });
        }
    }
    cuts.append(&mut shifts);
    cuts.sort_unstable_by_key(|c| (c.before, c.after));
    let mut pending = stretches(bounds.len(), &cuts);
    pending.reverse();
    let mut epochs: Vec<Epoch> = Vec::new();
    while let Some((from, to, why)) = pending.pop() {
        match solve(&bounds[from..to], assumed) {
            Ok(mut epoch) => {
                epoch.ended = why;
                epochs.push(epoch);
            }
            Err(at) => {
                let (before, after) = narrow(&bounds[from..to], at, assumed);
                pending.push((from + after, to, why));
                pending.push((from, from + before, Ending::DriftChange));
            }
        }
    }
    // A stretch that holds no exchange speaks for what lies between its neighbours.
    for at in 0..epochs.len() {
        if epochs[at].corridor.is_none() {
            let before = at.checked_sub(1).map_or(i64::MIN, |b| epochs[b].to_ns);
            let after = epochs[at..]
                .iter()
                .find(|e| e.corridor.is_some())
                .map_or(i64::MAX, |e| e.from_ns);
            epochs[at].from_ns = before.saturating_add(1);
            epochs[at].to_ns = after.saturating_sub(1);
        }
    }
    // Agents that share a clock have exchanges under way at the same time.
    for at in 1..epochs.len() {
        let before = epochs[at - 1].to_ns;
        epochs[at].from_ns = epochs[at].from_ns.max(before.saturating_add(1));
        epochs[at].to_ns = epochs[at].to_ns.max(epochs[at].from_ns);
    }
    if let Some(first) = epochs.first_mut() {
        first.from_ns = i64::MIN;
    }
    if let Some(last) = epochs.last_mut() {
        last.to_ns = i64::MAX;
    }
    epochs
}

/// Ranges of exchanges between cuts, with what ended each.
fn stretches(count: usize, cuts: &[Cut]) -> Vec<(usize, usize, Ending)> {
    let mut from = 0;
    let mut found = Vec::new();
    for cut in cuts {
        found.push((from, cut.before.max(from), cut.why));
        from = cut.after.max(from);
    }
    found.push((from.min(count), count, Ending::DataEnd));
    found
}

fn solve(bounds: &[OffsetBounds], assumed: &Assumptions) -> Result<Epoch, Contradiction> {
    let mut kappa_factor = 1;
    loop {
        let wider = Assumptions {
            kappa_ppm_per_s: assumed.kappa_ppm_per_s * f64::from(kappa_factor),
            ..*assumed
        };
        let built = match Corridor::build(bounds, &wider) {
            Ok(built) => built,
            Err(_) if kappa_factor < MOST_KAPPA => {
                kappa_factor *= 2;
                continue;
            }
            Err(at) => return Err(at),
        };
        let skipped_windows = built.as_ref().map_or(0, |b| b.skipped);
        return Ok(Epoch {
            from_ns: bounds.iter().map(|b| b.upper.at_ns).min().unwrap_or(0),
            to_ns: bounds.iter().map(|b| b.lower.at_ns).max().unwrap_or(0),
            corridor: built.map(|b| b.corridor),
            exchanges: bounds.len(),
            round_trip_min_ns: bounds.iter().map(round_trip_ns).min().unwrap_or(0),
            kappa_factor,
            skipped_windows,
            ended: Ending::DataEnd,
        });
    }
}

/// The round trip without the time at the aggregator.
pub fn round_trip_ns(bounds: &OffsetBounds) -> i64 {
    bounds.upper.theta_ns.saturating_sub(bounds.lower.theta_ns)
}

/// What exchanges seen so far allow, carried on with the largest drift.
#[derive(Default)]
struct Allowed {
    upper: Option<Limit>,
    lower: Option<Limit>,
}

impl Allowed {
    /// Takes in one more; false if it contradicts, and then it is not taken in.
    fn admit(&mut self, bounds: &OffsetBounds) -> bool {
        let drift = |a: &Limit, b: &Limit| {
            drift_ns(a.at_ns.saturating_sub(b.at_ns), super::bound::RHO_PPM).saturating_add(2)
        };
        let fits = |upper: &Limit, lower: &Limit| {
            upper.theta_ns.saturating_add(drift(upper, lower)) >= lower.theta_ns
        };
        let agrees = fits(&bounds.upper, &bounds.lower)
            && self.upper.is_none_or(|u| fits(&u, &bounds.lower))
            && self.lower.is_none_or(|l| fits(&bounds.upper, &l));
        if !agrees {
            return false;
        }
        let tighter = |known: &Limit, new: &Limit| {
            known.theta_ns.saturating_add(drift(known, new)) >= new.theta_ns
        };
        if self.upper.is_none_or(|u| tighter(&u, &bounds.upper)) {
            self.upper = Some(bounds.upper);
        }
        let raised = |known: &Limit, new: &Limit| {
            known.theta_ns.saturating_sub(drift(known, new)) <= new.theta_ns
        };
        if self.lower.is_none_or(|l| raised(&l, &bounds.lower)) {
            self.lower = Some(bounds.lower);
        }
        true
    }
}

/// Cuts that the exchanges prove with the largest drift alone.
fn steps(bounds: &[OffsetBounds]) -> Vec<Cut> {
    let mut begins = vec![0usize];
    let mut allowed = Allowed::default();
    let mut at = 0;
    let mut impossible = Vec::new();
    while at < bounds.len() {
        if !allowed.admit(&bounds[at]) {
            allowed = Allowed::default();
            if !allowed.admit(&bounds[at]) {
                impossible.push(at);
            }
            begins.push(at);
        }
        at += 1;
    }
    let mut cuts = Vec::new();
    for (number, begin) in begins.iter().enumerate().skip(1) {
        if impossible.contains(begin) {
            // A step while it was under way, or nonsense.
            cuts.push(Cut {
                before: *begin,
                after: begin + 1,
                why: Ending::Step,
            });
            continue;
        }
        let end = begins.get(number + 1).copied().unwrap_or(bounds.len());
        let mut allowed = Allowed::default();
        let agreeing = bounds[begins[number - 1]..end]
            .iter()
            .rev()
            .take_while(|b| allowed.admit(b))
            .count();
        let first_agreeing = end - agreeing;
        cuts.push(Cut {
            before: first_agreeing.saturating_sub(1).min(*begin),
            after: begin + 1,
            why: Ending::Step,
        });
    }
    cuts
}

/// Cuts where BOOTTIME moved against MONOTONIC, or renames those that lie there.
fn mark_suspends(bounds: &[OffsetBounds], anchors: &[Anchor], cuts: &mut Vec<Cut>) {
    const LEAST_NS: i64 = 1_000_000;
    let asleep = |a: &Anchor| a.boottime_ns.saturating_sub(a.monotonic_ns);
    let reading = |a: &Anchor| a.raw_after_ns.saturating_sub(a.raw_before_ns);
    for pair in anchors.windows(2) {
        let (a, b) = (&pair[0], &pair[1]);
        let moved = asleep(b).saturating_sub(asleep(a)).saturating_abs();
        let unsure = reading(a).saturating_add(reading(b)).max(0);
        if moved <= unsure.saturating_add(LEAST_NS) {
            continue;
        }
        let before = bounds.partition_point(|e| e.lower.at_ns <= a.raw_before_ns);
        let after = bounds
            .partition_point(|e| e.upper.at_ns < b.raw_after_ns)
            .max(before);
        let mut is_known = false;
        for cut in cuts.iter_mut() {
            // The step's exchanges lie one outside of each end of the cut.
            if cut.before <= after && before <= cut.after {
                cut.why = Ending::Suspend;
                is_known = true;
            }
        }
        if !is_known {
            cuts.push(Cut {
                before,
                after,
                why: Ending::Suspend,
            });
        }
    }
}

/// Where in a window that no line fits the break lies: before the exchange that
/// makes the beginning impossible, after the one that makes the end impossible.
fn narrow(bounds: &[OffsetBounds], at: Contradiction, assumed: &Assumptions) -> (usize, usize) {
    let assumed = Assumptions {
        kappa_ppm_per_s: assumed.kappa_ppm_per_s * f64::from(MOST_KAPPA),
        ..*assumed
    };
    let first = bounds.partition_point(|b| b.lower.at_ns < at.from_ns);
    let end = bounds
        .partition_point(|b| b.upper.at_ns <= at.to_ns)
        .max(first);
    let fits = |some: &[OffsetBounds]| {
        let mut upper: Vec<Limit> = some.iter().map(|b| b.upper).collect();
        let mut lower: Vec<Limit> = some.iter().map(|b| b.lower).collect();
        upper.sort_unstable_by_key(|l| (l.at_ns, l.theta_ns));
        lower.sort_unstable_by_key(|l| (l.at_ns, -l.theta_ns));
        Tube::fit(&upper, &lower, (at.from_ns, at.to_ns), &assumed).is_ok()
    };
    // The most exchanges, taken from one end, that still fit.
    let most = |fits: &dyn Fn(usize) -> bool| {
        let (mut good, mut bad) = (0, end - first + 1);
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            if fits(middle) {
                good = middle;
            } else {
                bad = middle;
            }
        }
        good
    };
    let from_left = first + most(&|n| fits(&bounds[first..first + n]));
    let from_right = end - most(&|n| fits(&bounds[end - n..end]));
    let before = from_right.saturating_sub(1).min(from_left);
    let after = (from_left + 1).min(bounds.len()).max(before + 1);
    (before, after)
}
