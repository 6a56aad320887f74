//! Benchmark against benchmark. Pure.
//!
//! Claimed is only what a target costs against the direct one of its own run:
//! the logarithm of that ratio, round by round, is compared between the sides by
//! Welch's t, adjusted by Holm over all cells, at the level of
//! [`super::super::overhead::analyse::LEVEL`]. So a machine that was faster on
//! one day does not look like a better proxy. Where a side is several runs, the
//! run is the unit: its mean counts once, since what differs from start to start
//! of a proxy is the same in all rounds of a run.
//!
//! Everything else is shown side by side, with the interval of its factor.

use std::collections::BTreeMap;

use super::{Compared, Line, Verdict};
use crate::overhead::analyse::{CONFIDENCE, LEVEL, by_round, pairs};
use crate::overhead::record::{Bench, Block, Load, Role};
use crate::overhead::view::{ratio, short};
use crate::stats::holm::holm;
use crate::stats::rank::median;
use crate::stats::t_test::{Estimate, welch};

/// A cell as it is found on both sides.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    label: String,
    /// Larger numbers of clients first, as in the tables.
    clients: std::cmp::Reverse<u32>,
    target: String,
}

/// The label of a run with only one: runs of two versions are to be compared.
fn only_label(bench: &Bench) -> Option<&str> {
    let first = bench.blocks.first()?;
    bench
        .blocks
        .iter()
        .all(|b| b.label == first.label)
        .then_some(first.label.as_str())
}

fn keys(bench: &Bench) -> Vec<Key> {
    let one = only_label(bench).is_some();
    let mut keys: Vec<Key> = bench
        .blocks
        .iter()
        .map(|b| Key {
            label: if one { String::new() } else { b.label.clone() },
            clients: std::cmp::Reverse(b.clients),
            target: b.target.clone(),
        })
        .collect();
    keys.sort();
    keys.dedup();
    keys
}

fn label<'a>(bench: &'a Bench, key: &'a Key) -> &'a str {
    if key.label.is_empty() {
        only_label(bench).unwrap_or_default()
    } else {
        &key.label
    }
}

/// A side's values of one number: of its rounds if it is one run, else of its
/// runs' means.
fn units(side: &[Bench], of: impl Fn(&Bench) -> Vec<f64>) -> Vec<f64> {
    match side {
        [one] => of(one),
        several => several
            .iter()
            .filter_map(|bench| {
                let values = of(bench);
                (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
            })
            .collect(),
    }
}

/// Logarithms of a target's ratios to the direct one, round by round.
fn log_ratios(bench: &Bench, key: &Key) -> Vec<f64> {
    let Some(direct) = bench
        .manifest
        .targets
        .iter()
        .find(|t| t.role == Role::Direct)
    else {
        return Vec::new();
    };
    let label = label(bench, key);
    let of = |target: &str| by_round(bench, label, target, key.clients.0);
    pairs(&of(&direct.name), &of(&key.target))
        .into_iter()
        .map(|(direct, target)| (target / direct).ln())
        .collect()
}

fn blocks<'a>(bench: &'a Bench, key: &'a Key) -> impl Iterator<Item = &'a Block> {
    let label = label(bench, key);
    bench.blocks.iter().filter(move |b| {
        b.is_sound() && b.label == label && b.target == key.target && b.clients == key.clients.0
    })
}

/// A number of a block that is shown beside the others.
struct Number {
    name: &'static str,
    of: fn(&Block) -> Option<f64>,
}

const NUMBERS: [Number; 6] = [
    Number {
        name: "total ms",
        of: |b| Some(b.total_ns as f64 / 1e6),
    },
    Number {
        name: "statements/s",
        of: |b| Some(b.statements as f64 * 1e9 / b.total_ns as f64),
    },
    Number {
        name: "p50 us",
        of: |b| Some(b.p50_ns? as f64 / 1e3),
    },
    Number {
        name: "p99 us",
        of: |b| Some(b.p99_ns? as f64 / 1e3),
    },
    Number {
        name: "client CPU us",
        of: |b| Some(b.client_cpu_ns? as f64 / b.statements as f64 / 1e3),
    },
    Number {
        name: "target CPU us",
        of: |b| Some(b.target_cpu_ns? as f64 / b.statements as f64 / 1e3),
    },
];

fn factor_line(
    of: &str,
    what: &str,
    first: &[f64],
    other: &[f64],
    as_text: fn(f64) -> String,
) -> Line {
    let geometric = |logs: &[f64]| {
        if logs.is_empty() {
            "-".to_owned()
        } else {
            as_text((logs.iter().sum::<f64>() / logs.len() as f64).exp())
        }
    };
    let estimate: Option<Estimate> = welch(first, other, CONFIDENCE);
    let interval = estimate.map(|e| (e.lower.exp(), e.mean.exp(), e.upper.exp()));
    let difference = match interval {
        Some((lower, middle, upper)) => ratio(middle, Some((lower, upper))),
        None if !first.is_empty() && !other.is_empty() => {
            let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
            ratio((mean(other) - mean(first)).exp(), None)
        }
        None => "-".to_owned(),
    };
    Line {
        of: of.to_owned(),
        what: what.to_owned(),
        first: geometric(first),
        other: geometric(other),
        difference,
        interval,
        is_factor: true,
        p_holm: estimate.map(|e| e.p),
        verdict: Verdict::Shown,
    }
}

/// Compares two sides.
pub fn compare(first: &[Bench], other: &[Bench]) -> Compared {
    let mut compared = Compared::default();
    let (Some(a), Some(b)) = (first.first(), other.first()) else {
        return compared;
    };
    let there = keys(b);
    let common: Vec<Key> = keys(a).into_iter().filter(|k| there.contains(k)).collect();
    if common.is_empty() {
        compared
            .caveats
            .push("they have no target and number of clients in common".to_owned());
        return compared;
    }
    let mut claims = Vec::new();
    for key in &common {
        let of = name(key);
        let [x, y] = [first, other].map(|side| units(side, |bench| log_ratios(bench, key)));
        let is_compared = a
            .manifest
            .targets
            .iter()
            .any(|t| t.name == key.target && t.role == Role::Compared);
        if is_compared && !x.is_empty() && !y.is_empty() {
            claims.push(compared.lines.len());
            compared
                .lines
                .push(factor_line(&of, "ratio to direct", &x, &y, |v| {
                    format!("{v:.3}")
                }));
        }
    }
    judge(&mut compared.lines, &claims);
    for key in &common {
        let of = name(key);
        for number in &NUMBERS {
            let open = matches!(a.manifest.load, Load::Open { .. });
            if open && matches!(number.name, "total ms" | "statements/s") {
                continue;
            }
            let logs = |bench: &Bench| -> Vec<f64> {
                blocks(bench, key)
                    .filter_map(number.of)
                    .filter(|v| *v > 0.0)
                    .map(f64::ln)
                    .collect()
            };
            let [x, y] = [first, other].map(|side| units(side, logs));
            if !x.is_empty() && !y.is_empty() {
                let mut line = factor_line(&of, number.name, &x, &y, short);
                line.p_holm = None;
                compared.lines.push(line);
            }
        }
    }
    caveats(first, other, &common, &mut compared);
    compared
}

fn name(key: &Key) -> String {
    let label = if key.label.is_empty() {
        String::new()
    } else {
        format!("{} / ", key.label)
    };
    format!("{label}{} clients, {}", key.clients.0, key.target)
}

fn judge(lines: &mut [Line], claims: &[usize]) {
    let p: Vec<f64> = claims
        .iter()
        .map(|at| lines[*at].p_holm.unwrap_or(f64::NAN))
        .collect();
    for (at, adjusted) in claims.iter().zip(holm(&p)) {
        let line = &mut lines[*at];
        line.p_holm = (!adjusted.is_nan()).then_some(adjusted);
        line.verdict = if adjusted.is_nan() {
            Verdict::TooFew
        } else if adjusted > LEVEL {
            Verdict::NotDistinguishable
        } else if line.interval.is_some_and(|(_, middle, _)| middle > 1.0) {
            Verdict::Worse
        } else {
            Verdict::Better
        };
    }
}

fn caveats(first: &[Bench], other: &[Bench], common: &[Key], compared: &mut Compared) {
    if first.len() == 1 && other.len() == 1 {
        compared.caveats.push(
            "one run a side: what differs from start to start of a proxy is in the difference; \
             several runs a side (A1,A2,A3 B1,B2,B3) show it"
                .to_owned(),
        );
    }
    // The direct target is the control: it is the same on both sides.
    for key in common {
        let is_control = first[0]
            .manifest
            .targets
            .iter()
            .any(|t| t.name == key.target && t.role == Role::Direct);
        if !is_control {
            continue;
        }
        let logs =
            |bench: &Bench| -> Vec<f64> { blocks(bench, key).map(|b| b.each_ns().ln()).collect() };
        let [x, y] = [first, other].map(|side| units(side, logs));
        if let (Some(a), Some(b)) = (median(&x), median(&y)) {
            let factor = (b - a).exp();
            if !(0.8..=1.25).contains(&factor) {
                compared.caveats.push(format!(
                    "{}: the direct target itself differs by a factor of {factor:.2}: the \
                     machine was not the same, so look at ratios only",
                    name(key)
                ));
            }
        }
    }
    let dropped: BTreeMap<&str, usize> = first
        .iter()
        .chain(other)
        .flat_map(|b| &b.blocks)
        .filter(|b| !b.is_sound())
        .fold(BTreeMap::new(), |mut map, b| {
            *map.entry(b.target.as_str()).or_insert(0) += 1;
            map
        });
    for (target, n) in dropped {
        compared.caveats.push(format!(
            "{target}: {n} blocks with errors or wrong answers are left out"
        ));
    }
}
