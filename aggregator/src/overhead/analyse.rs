//! What a benchmark's blocks say. Pure.
//!
//! For each number of clients and each target: the median total over rounds
//! with an interval by order statistics, and, against the direct target, within
//! rounds:
//! - the ratio: the mean of the logarithms of the two totals' ratio, its 95 %
//!   interval by Student's t over rounds, taken back from logarithms;
//! - the added time a statement: the mean difference, its interval likewise;
//! - the verdict: the larger of two probabilities, t and sign-flip (which does
//!   not believe in the normal distribution), adjusted by Holm over all
//!   comparisons of the table, against 1 %. So of a hundred benchmarks in which
//!   nothing differs, one claims a difference somewhere. (A bootstrap of 12
//!   rounds was wrong in 16 of 100 in a trial.)
//!
//! The intervals are those of the single cell and are not widened for the number
//! of cells. Blocks with any error are left out of times and counted.
//!
//! What it cannot know: what was systematically different between two targets of
//! one round beyond the targets themselves, such as a warm and a cold cache.

use std::collections::BTreeMap;

use super::record::{Bench, Block, Load, Role};
use crate::stats::holm::holm;
use crate::stats::rank::{MedianInterval, median, median_interval};
use crate::stats::signflip::{least_pairs, sign_flip};
use crate::stats::t_test::{self, Estimate};

/// How surely an interval holds the value.
pub const CONFIDENCE: f64 = 0.95;
/// Probability of a claim of difference somewhere in a table in which nothing
/// differs.
pub const LEVEL: f64 = 0.01;

/// See [`least_rounds`].
const LEAST_ROUNDS: u32 = 12;

/// Rounds below which no comparison of `comparisons` could ever be claimed,
/// because even rounds that all agree can do so by chance.
pub fn rounds_needed(comparisons: usize) -> u32 {
    let least = least_pairs(LEVEL / comparisons.max(1) as f64);
    u32::try_from(least).unwrap_or(u32::MAX)
}

/// Rounds that a benchmark is to have, at least: what a claim needs, and not fewer
/// than 12 even for few comparisons, since some are always lost to errors. The lab
/// refuses fewer, and reports and plans name the same number.
pub fn least_rounds(comparisons: usize) -> u32 {
    LEAST_ROUNDS.max(rounds_needed(comparisons))
}

/// What can be said of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It takes longer.
    Dearer,
    /// It takes less.
    Cheaper,
    /// Chance may have done it.
    NotDistinguishable,
    /// So few rounds could not show anything.
    NoClaim,
}

impl Verdict {
    /// The words in tables and files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dearer => "dearer",
            Self::Cheaper => "cheaper",
            Self::NotDistinguishable => "not distinguishable",
            Self::NoClaim => "too few rounds",
        }
    }

    /// From an adjusted probability and the direction.
    pub fn of(p_holm: f64, difference: f64, can_claim: bool) -> Self {
        if !can_claim || p_holm.is_nan() {
            Self::NoClaim
        } else if p_holm > LEVEL {
            Self::NotDistinguishable
        } else if difference > 0.0 {
            Self::Dearer
        } else {
            Self::Cheaper
        }
    }
}

/// A value over rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Its interval; none below six rounds.
    pub interval: Option<MedianInterval>,
    /// Smallest.
    pub least: f64,
    /// Largest.
    pub most: f64,
}

impl Spread {
    /// Of these values; `None` without any.
    pub fn of(values: &[f64]) -> Option<Self> {
        Some(Self {
            median: median(values)?,
            interval: median_interval(values, CONFIDENCE),
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }
}

/// A target against the direct one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Rounds in which both are sound.
    pub pairs: usize,
    /// Geometric mean of the ratios.
    pub ratio: f64,
    /// Its interval; none below two pairs.
    pub ratio_interval: Option<(f64, f64)>,
    /// Mean of what is added to each statement, in ns.
    pub added_ns: f64,
    /// Its interval; none below two pairs.
    pub added_interval: Option<(f64, f64)>,
    /// Mean of what is added to the median statement, in ns: a busy machine's
    /// stalls are in totals and hardly in medians.
    pub median_added_ns: Option<f64>,
    /// Its interval; none below two pairs.
    pub median_added_interval: Option<(f64, f64)>,
    /// By Student's t on the logarithms of the ratios.
    pub p_t: Option<f64>,
    /// By flipping signs of the same; not looked at where t finds nothing.
    pub p_sign_flip: Option<f64>,
    /// The larger of both, adjusted for the number of comparisons.
    pub p_holm: Option<f64>,
    /// What can be said.
    pub verdict: Verdict,
}

/// All about one target at one number of clients.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Version or configuration.
    pub label: String,
    /// Clients.
    pub clients: u32,
    /// Index of the target.
    pub target: usize,
    /// Sound rounds.
    pub rounds: usize,
    /// Rounds with errors or wrong answers: not in any time.
    pub unsound: usize,
    /// Total of a block, in ns.
    pub total_ns: Option<Spread>,
    /// Statements a second.
    pub rate: Option<f64>,
    /// Median over rounds of each block's quantile of the time an answer took.
    pub p50_ns: Option<f64>,
    /// Likewise.
    pub p99_ns: Option<f64>,
    /// The largest of all rounds.
    pub max_ns: Option<u64>,
    /// Clients' processor time a statement, median.
    pub client_cpu_ns: Option<f64>,
    /// The target's processes' processor time a statement, median.
    pub target_cpu_ns: Option<f64>,
    /// Statements not answered, over all rounds.
    pub errors: u64,
    /// Answered wrongly, over all rounds.
    pub wrong: u64,
    /// Against the direct target; none for itself or without common rounds.
    pub cost: Option<Cost>,
}

/// The whole table.
#[derive(Debug, Clone, PartialEq)]
pub struct Analysis {
    /// Versions or configurations, in order of appearance.
    pub labels: Vec<String>,
    /// Numbers of clients, largest first as in the study.
    pub clients: Vec<u32>,
    /// Index of the target that the others are compared with.
    pub direct: Option<usize>,
    /// By label, clients and target.
    pub cells: Vec<Cell>,
    /// Comparisons that were adjusted for.
    pub comparisons: usize,
    /// What has to be said beside the numbers.
    pub caveats: Vec<String>,
}

impl Analysis {
    /// The cell of a label, a number of clients and a target.
    pub fn cell(&self, label: &str, clients: u32, target: usize) -> Option<&Cell> {
        self.cells
            .iter()
            .find(|c| c.label == label && c.clients == clients && c.target == target)
    }
}

/// What is compared: time a statement, or under a fixed rate the median
/// response, both in ns.
pub fn metric(load: Load, block: &Block) -> Option<f64> {
    let value = match load {
        Load::Closed => block.each_ns(),
        Load::Open { .. } => block.p50_ns? as f64,
    };
    (block.is_sound() && value > 0.0).then_some(value)
}

/// The sound rounds' metric of one label, target and number of clients.
pub fn by_round(bench: &Bench, label: &str, target: &str, clients: u32) -> BTreeMap<u32, f64> {
    rounds(bench, label, target, clients, |b| {
        metric(bench.manifest.load, b)
    })
}

fn rounds(
    bench: &Bench,
    label: &str,
    target: &str,
    clients: u32,
    value: impl Fn(&Block) -> Option<f64>,
) -> BTreeMap<u32, f64> {
    bench
        .blocks
        .iter()
        .filter(|b| b.label == label && b.target == target && b.clients == clients)
        .filter_map(|b| Some((b.round, value(b)?)))
        .collect()
}

/// Pairs of the rounds that both have: (first, second).
pub fn pairs(a: &BTreeMap<u32, f64>, b: &BTreeMap<u32, f64>) -> Vec<(f64, f64)> {
    a.iter()
        .filter_map(|(round, a)| Some((*a, *b.get(round)?)))
        .collect()
}

fn unproven(pairs: &[(f64, f64)]) -> Option<Cost> {
    if pairs.is_empty() {
        return None;
    }
    let logs: Vec<f64> = pairs.iter().map(|(d, t)| (t / d).ln()).collect();
    let differences: Vec<f64> = pairs.iter().map(|(d, t)| t - d).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let t: Option<Estimate> = t_test::paired(&logs, CONFIDENCE);
    let added = t_test::paired(&differences, CONFIDENCE);
    Some(Cost {
        pairs: pairs.len(),
        ratio: mean(&logs).exp(),
        ratio_interval: t.map(|t| (t.lower.exp(), t.upper.exp())),
        added_ns: mean(&differences),
        added_interval: added.map(|t| (t.lower, t.upper)),
        median_added_ns: None,
        median_added_interval: None,
        p_t: t.map(|t| t.p),
        // The larger of the two counts, so it need not be known where t alone
        // finds nothing.
        p_sign_flip: t
            .filter(|t| t.p < 0.05)
            .and_then(|_| sign_flip(&logs))
            .map(|s| s.p),
        p_holm: None,
        verdict: Verdict::NoClaim,
    })
}

fn add_medians(cost: &mut Cost, pairs: &[(f64, f64)]) {
    if pairs.is_empty() {
        return;
    }
    let differences: Vec<f64> = pairs.iter().map(|(d, t)| t - d).collect();
    cost.median_added_ns = Some(differences.iter().sum::<f64>() / differences.len() as f64);
    cost.median_added_interval =
        t_test::paired(&differences, CONFIDENCE).map(|t| (t.lower, t.upper));
}

/// Adjusts for the number of comparisons and says what can be said.
pub fn prove(costs: &mut [&mut Cost]) {
    let p: Vec<f64> = costs
        .iter()
        .map(|cost| match cost.p_t {
            Some(t) => t.max(cost.p_sign_flip.unwrap_or(0.0)),
            None => f64::NAN,
        })
        .collect();
    let needed = rounds_needed(p.iter().filter(|p| !p.is_nan()).count()) as usize;
    for (cost, adjusted) in costs.iter_mut().zip(holm(&p)) {
        cost.p_holm = (!adjusted.is_nan()).then_some(adjusted);
        cost.verdict = Verdict::of(adjusted, cost.ratio.ln(), cost.pairs >= needed);
    }
}

/// Compares pairs of (direct, target) values on their own, as one comparison.
pub fn cost(pairs: &[(f64, f64)]) -> Option<Cost> {
    let mut cost = unproven(pairs)?;
    prove(&mut [&mut cost]);
    Some(cost)
}

/// Computes the table.
pub fn analyse(bench: &Bench) -> Analysis {
    let targets = &bench.manifest.targets;
    let mut labels: Vec<String> = Vec::new();
    for block in &bench.blocks {
        if !labels.contains(&block.label) {
            labels.push(block.label.clone());
        }
    }
    let mut clients = bench.manifest.clients.clone();
    clients.sort_unstable_by(|a, b| b.cmp(a));
    clients.dedup();
    let direct = targets.iter().position(|t| t.role == Role::Direct);
    let mut cells = Vec::new();
    for label in &labels {
        for n in &clients {
            for (at, target) in targets.iter().enumerate() {
                let blocks: Vec<&Block> = bench
                    .blocks
                    .iter()
                    .filter(|b| b.label == *label && b.clients == *n && b.target == target.name)
                    .collect();
                if blocks.is_empty() {
                    continue;
                }
                let mut cell = cell(label, *n, at, &blocks);
                if let Some(direct) = direct.filter(|direct| *direct != at) {
                    let of = |target: usize| by_round(bench, label, &targets[target].name, *n);
                    cell.cost = unproven(&pairs(&of(direct), &of(at)));
                    let medians = |target: usize| {
                        rounds(bench, label, &targets[target].name, *n, |b| {
                            b.is_sound().then_some(b.p50_ns? as f64)
                        })
                    };
                    if let Some(cost) = &mut cell.cost {
                        add_medians(cost, &pairs(&medians(direct), &medians(at)));
                    }
                }
                cells.push(cell);
            }
        }
    }
    let mut costs: Vec<&mut Cost> = cells.iter_mut().filter_map(|c| c.cost.as_mut()).collect();
    prove(&mut costs);
    let comparisons = costs.iter().filter(|c| c.p_holm.is_some()).count();
    let mut analysis = Analysis {
        labels,
        clients,
        direct,
        cells,
        comparisons,
        caveats: Vec::new(),
    };
    analysis.caveats = caveats(bench, &analysis);
    analysis
}

fn cell(label: &str, clients: u32, target: usize, blocks: &[&Block]) -> Cell {
    let sound: Vec<&Block> = blocks.iter().copied().filter(|b| b.is_sound()).collect();
    let of = |value: &dyn Fn(&Block) -> Option<f64>| -> Vec<f64> {
        sound.iter().filter_map(|b| value(b)).collect()
    };
    let each = |ns: Option<u64>, b: &Block| Some(ns? as f64 / b.statements.max(1) as f64);
    let totals = of(&|b| Some(b.total_ns as f64));
    Cell {
        label: label.to_owned(),
        clients,
        target,
        rounds: sound.len(),
        unsound: blocks.len() - sound.len(),
        total_ns: Spread::of(&totals),
        rate: median(&of(&|b| {
            (b.total_ns > 0).then(|| b.statements as f64 * 1e9 / b.total_ns as f64)
        })),
        p50_ns: median(&of(&|b| Some(b.p50_ns? as f64))),
        p99_ns: median(&of(&|b| Some(b.p99_ns? as f64))),
        max_ns: sound.iter().filter_map(|b| b.max_ns).max(),
        client_cpu_ns: median(&of(&|b| each(b.client_cpu_ns, b))),
        target_cpu_ns: median(&of(&|b| each(b.target_cpu_ns, b))),
        errors: blocks.iter().map(|b| b.errors).sum(),
        wrong: blocks.iter().map(|b| b.wrong).sum(),
        cost: None,
    }
}

fn caveats(bench: &Bench, analysis: &Analysis) -> Vec<String> {
    let mut caveats = bench.manifest.caveats.clone();
    let rounds = analysis.cells.iter().map(|c| c.rounds + c.unsound).min();
    let needed = rounds_needed(analysis.comparisons);
    match rounds {
        Some(1) => caveats.push(
            "one round: no spread is known, so no one can say which differences are real"
                .to_owned(),
        ),
        Some(rounds) if (rounds as u64) < u64::from(needed) => caveats.push(format!(
            "{rounds} rounds: even if all agree, chance does that with p = {:.3}, so no \
             difference can be claimed among {} comparisons at {} % (take {} rounds at least)",
            crate::stats::signflip::least_p(rounds),
            analysis.comparisons,
            LEVEL * 100.0,
            least_rounds(analysis.comparisons),
        )),
        _ => {}
    }
    let unsound: usize = analysis.cells.iter().map(|c| c.unsound).sum();
    if unsound > 0 {
        caveats.push(format!(
            "{unsound} blocks had errors or wrong answers; they are counted and are in no time"
        ));
    }
    let names = &bench.manifest.targets;
    if let (Some(floor), Some(direct)) = (
        names.iter().position(|t| t.role == Role::Floor),
        analysis.direct,
    ) {
        for label in &analysis.labels {
            for n in &analysis.clients {
                let median = |at| Some(analysis.cell(label, *n, at)?.total_ns?.median);
                let (Some(floor), Some(direct)) = (median(floor), median(direct)) else {
                    continue;
                };
                let who = if *n == 1 {
                    "1 client".to_owned()
                } else {
                    format!("{n} clients")
                };
                if floor > direct {
                    caveats.push(format!(
                        "{who}: the floor is not below the direct target, so the instrument \
                         itself is what is measured there"
                    ));
                } else if floor > 0.7 * direct {
                    caveats.push(format!(
                        "{who}: the instrument's own floor is {:.0} % of the direct total; \
                         what a target adds is still right as long as clients are not the \
                         bottleneck, ratios are not",
                        100.0 * floor / direct
                    ));
                }
            }
        }
    }
    caveats
}
