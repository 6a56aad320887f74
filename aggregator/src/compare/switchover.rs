//! Switchover run against switchover run, from their summaries. Pure.
//!
//! The unit of evidence is the fault, not the client or the probe. The k-th fault
//! of one side is paired with the k-th of the other, if the same was done to the
//! same subject. Of each pair the felt gaps are compared, by the larger of paired
//! t and sign-flip, adjusted by Holm over the rows. With one fault a side there
//! is nothing to claim; the outages' intervals are then only held against each
//! other: where they do not overlap, that one fault was longer, which luck can
//! do.
//!
//! A gap that was not over is at least so long: where that does not tell which
//! side was longer, the pair is left out and counted.

use serde_json::Value;

use super::pairs::{Felt, Key, difference, felt, key, name, pairs, rows, unequal};
use super::{Compared, Line, Verdict};
use crate::overhead::analyse::{CONFIDENCE, LEVEL, rounds_needed};
use crate::stats::holm::holm;
use crate::stats::plan::{Wanted, per_arm};
use crate::stats::signflip::sign_flip;
use crate::stats::t_test::{deviation, paired};

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

struct Number {
    name: &'static str,
    digits: usize,
    of: fn(&Value) -> Option<f64>,
}

const NUMBERS: [Number; 8] = [
    Number {
        name: "available %",
        digits: 2,
        of: |row| row["availability_pct"].as_f64(),
    },
    Number {
        name: "healthy available %",
        digits: 2,
        of: |row| row["healthy"]["availability_pct"].as_f64(),
    },
    Number {
        name: "longest gap s",
        digits: 3,
        of: |row| row["max_gap_s"].as_f64(),
    },
    Number {
        name: "client-time lost s, at most",
        digits: 2,
        of: |row| row["client_time_lost_s"]["upper"].as_f64(),
    },
    Number {
        name: "healthy p50 ms",
        digits: 2,
        of: |row| row["latency_ms_by_part"]["healthy"]["p50"].as_f64(),
    },
    Number {
        name: "healthy p99 ms",
        digits: 2,
        of: |row| row["latency_ms_by_part"]["healthy"]["p99"].as_f64(),
    },
    Number {
        name: "connection changes",
        digits: 0,
        of: |row| row["connection_changes"].as_f64(),
    },
    Number {
        name: "backend switches",
        digits: 0,
        of: |row| row["backend_switches"].as_f64(),
    },
];

/// Compares two sides, each of one summary or several.
pub fn compare(first: &[Value], other: &[Value]) -> Compared {
    let mut compared = Compared::default();
    let keys = |side: &[Value]| {
        let mut keys: Vec<Key> = Vec::new();
        for row in side
            .iter()
            .flat_map(|run| run["targets"].as_array())
            .flatten()
        {
            if !keys.contains(&key(row)) {
                keys.push(key(row));
            }
        }
        keys
    };
    let there = keys(other);
    let common: Vec<Key> = keys(first)
        .into_iter()
        .filter(|k| there.contains(k))
        .collect();
    if common.is_empty() {
        compared
            .caveats
            .push("they have no target and style in common".to_owned());
        return compared;
    }
    compared.caveats.extend(unequal(first, other));
    let mut claims: Vec<(usize, usize, f64)> = Vec::new();
    for key in &common {
        let (all_a, all_b) = (felt(first, key), felt(other, key));
        let pairs = pairs(&all_a, &all_b);
        let untested = all_a.iter().chain(&all_b).filter(|f| f.is_none()).count();
        if untested > 0 {
            compared.caveats.push(format!(
                "{}: {untested} faults tested nothing there and are in no pair",
                name(key)
            ));
        }
        let (a, b): (Vec<Felt>, Vec<Felt>) = (
            all_a.iter().flatten().cloned().collect(),
            all_b.iter().flatten().cloned().collect(),
        );
        if pairs.is_empty() {
            continue;
        }
        let told: Vec<(&Felt, &Felt)> = pairs
            .iter()
            .copied()
            .filter(|(x, y)| difference(x, y).is_some())
            .collect();
        let differences: Vec<f64> = told.iter().filter_map(|(x, y)| difference(x, y)).collect();
        if differences.len() < pairs.len() {
            compared.caveats.push(format!(
                "{}: {} of {} pairs of faults were not over on either side and do not tell which \
                 was longer",
                name(key),
                pairs.len() - differences.len(),
                pairs.len()
            ));
        }
        let t = paired(&differences, CONFIDENCE);
        let p = match (t, sign_flip(&differences)) {
            (Some(t), Some(flip)) => t.p.max(flip.p),
            _ => f64::NAN,
        };
        claims.push((compared.lines.len(), differences.len(), p));
        // The very faults of which the difference is: the means of all would not
        // agree with it where the sides differ in size.
        let shown = if told.is_empty() { &pairs } else { &told };
        compared.lines.push(Line {
            of: name(key),
            what: match shown.len() {
                1 => "felt gap s, 1 pair".to_owned(),
                n => format!("felt gap s, {n} pairs"),
            },
            first: gaps(shown.iter().map(|(x, _)| *x)),
            other: gaps(shown.iter().map(|(_, y)| *y)),
            difference: match t {
                Some(t) => format!("{:+.3} ({:+.3}..{:+.3})", t.mean, t.lower, t.upper),
                None if differences.is_empty() => "unknown".to_owned(),
                None => format!("{:+.3}", mean(&differences)),
            },
            interval: t.map(|t| (t.lower, t.mean, t.upper)),
            is_factor: false,
            p_holm: None,
            verdict: Verdict::TooFew,
        });
        outage_line(key, &pairs, &mut compared);
        verdict_line(key, &a, &b, &mut compared);
    }
    judge(&mut compared, &claims);
    for key in &common {
        for number in &NUMBERS {
            let values = |side: &[Value]| -> Vec<f64> {
                side.iter()
                    .filter_map(|run| {
                        let of_rows: Vec<f64> = rows(run, key).filter_map(number.of).collect();
                        (!of_rows.is_empty()).then(|| mean(&of_rows))
                    })
                    .collect()
            };
            let (x, y) = (values(first), values(other));
            if x.is_empty() || y.is_empty() {
                continue;
            }
            let digits = number.digits;
            compared.lines.push(Line {
                of: name(key),
                what: number.name.to_owned(),
                first: format!("{:.digits$}", mean(&x)),
                other: format!("{:.digits$}", mean(&y)),
                difference: format!("{:+.digits$}", mean(&y) - mean(&x)),
                interval: None,
                is_factor: false,
                p_holm: None,
                verdict: Verdict::Shown,
            });
        }
    }
    compared
}

fn gaps<'a>(felt: impl Iterator<Item = &'a Felt>) -> String {
    let text = |f: &Felt| format!("{}{:.3}", if f.is_at_least { "≥" } else { "" }, f.gap_s);
    let felt: Vec<&Felt> = felt.collect();
    match felt.as_slice() {
        [] => "-".to_owned(),
        [one] => text(one),
        several => {
            let values: Vec<f64> = several.iter().map(|f| f.gap_s).collect();
            let mark = if several.iter().any(|f| f.is_at_least) {
                "≥"
            } else {
                ""
            };
            format!("mean {mark}{:.3}", mean(&values))
        }
    }
}

/// Outages are intervals: of single pairs it is only said whether they overlap.
fn outage_line(key: &Key, pairs: &[(&Felt, &Felt)], compared: &mut Compared) {
    let [(x, y)] = pairs else {
        return;
    };
    let (Some(a), Some(b)) = (x.outage_s, y.outage_s) else {
        return;
    };
    let text = |(lower, upper): (f64, f64)| {
        if upper.is_finite() {
            format!("{lower:.3}..{upper:.3}")
        } else {
            format!("≥{lower:.3}")
        }
    };
    let difference = if b.0 > a.1 {
        "longer in this one fault"
    } else if b.1 < a.0 {
        "shorter in this one fault"
    } else {
        "overlap"
    };
    compared.lines.push(Line {
        of: name(key),
        what: "outage s".to_owned(),
        first: text(a),
        other: text(b),
        difference: difference.to_owned(),
        interval: None,
        is_factor: false,
        p_holm: None,
        verdict: Verdict::Shown,
    });
}

fn verdict_line(key: &Key, a: &[Felt], b: &[Felt], compared: &mut Compared) {
    let text = |felt: &[Felt]| {
        let mut words: Vec<(&str, usize)> = Vec::new();
        for f in felt {
            match words.iter_mut().find(|(word, _)| *word == f.verdict) {
                Some((_, n)) => *n += 1,
                None => words.push((&f.verdict, 1)),
            }
        }
        words
            .iter()
            .map(|(word, n)| {
                if felt.len() == 1 {
                    (*word).to_owned()
                } else {
                    format!("{word} {n}/{}", felt.len())
                }
            })
            .collect::<Vec<_>>()
            .join(", ")
    };
    let (first, other) = (text(a), text(b));
    compared.lines.push(Line {
        of: name(key),
        what: "verdict".to_owned(),
        difference: if first == other { "same" } else { "differs" }.to_owned(),
        first,
        other,
        interval: None,
        is_factor: false,
        p_holm: None,
        verdict: Verdict::Shown,
    });
}

fn judge(compared: &mut Compared, claims: &[(usize, usize, f64)]) {
    let p: Vec<f64> = claims.iter().map(|(_, _, p)| *p).collect();
    let needed = rounds_needed(claims.len()) as usize;
    let mut too_few = None;
    for ((line, n, _), adjusted) in claims.iter().zip(holm(&p)) {
        let line = &mut compared.lines[*line];
        line.p_holm = (!adjusted.is_nan()).then_some(adjusted);
        line.verdict = if adjusted.is_nan() || *n < needed {
            too_few = Some(*n);
            Verdict::TooFew
        } else if adjusted > LEVEL {
            Verdict::NotDistinguishable
        } else if line.interval.is_some_and(|(_, middle, _)| middle > 0.0) {
            Verdict::Worse
        } else {
            Verdict::Better
        };
    }
    if let Some(n) = too_few {
        compared.caveats.push(format!(
            "{n} {} of faults: even if all agree, chance does that too often for {} comparisons \
             at {} % (that takes {needed} pairs). Give several runs a side: A1,A2,A3 B1,B2,B3",
            if n == 1 { "pair" } else { "pairs" },
            claims.len(),
            LEVEL * 100.0
        ));
    }
}

/// How many faults an arm the largest difference that was seen would take, by
/// the spread that was seen; `None` without two pairs of faults.
pub fn faults_needed(first: &[Value], other: &[Value]) -> Option<(f64, f64, u64)> {
    let mut largest: Option<(f64, f64, u64)> = None;
    let rows: Vec<Key> = first
        .iter()
        .flat_map(|run| run["targets"].as_array())
        .flatten()
        .map(key)
        .collect();
    for key in &rows {
        let (all_a, all_b) = (felt(first, key), felt(other, key));
        // The same faults as in the table.
        let (a, b): (Vec<f64>, Vec<f64>) = pairs(&all_a, &all_b)
            .iter()
            .filter(|(x, y)| difference(x, y).is_some())
            .map(|(x, y)| (x.gap_s, y.gap_s))
            .unzip();
        let (Some(sa), Some(sb)) = (deviation(&a), deviation(&b)) else {
            continue;
        };
        let spread = ((sa * sa + sb * sb) / 2.0).sqrt();
        let by = (mean(&b) - mean(&a)).abs();
        if by > 0.0 && spread > 0.0 && largest.is_none_or(|(known, _, _)| by > known) {
            let wanted = Wanted {
                level: LEVEL,
                ..Wanted::default()
            };
            largest = Some((by, spread, per_arm(by, spread, wanted)));
        }
    }
    largest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(gaps: &[(f64, bool)]) -> Value {
        let faults: Vec<Value> = (1..=gaps.len())
            .map(|id| json!({"id": id, "step": "stop", "subject": "b1", "judged": true}))
            .collect();
        let seen: Vec<Value> = gaps
            .iter()
            .enumerate()
            .map(|(at, (gap, is_at_least))| {
                json!({
                    "fault": at + 1, "gap_s": gap, "gap_is_at_least": is_at_least,
                    "outage_lower_s": gap - 0.1,
                    "outage_upper_s": if *is_at_least { Value::Null } else { json!(gap) },
                    "verdict": "disrupted",
                })
            })
            .collect();
        json!({
            "faults": faults,
            "targets": [{
                "name": "p", "style": "reused", "kind": "bare", "faults": seen,
                "availability_pct": 90.0,
            }],
        })
    }

    fn gap_line(compared: &Compared) -> &Line {
        compared
            .lines
            .iter()
            .find(|l| l.what.starts_with("felt gap"))
            .expect("a line of gaps")
    }

    #[test]
    fn one_fault_a_side_claims_nothing() {
        let compared = compare(&[run(&[(1.0, false)])], &[run(&[(9.0, false)])]);
        assert_eq!(gap_line(&compared).verdict, Verdict::TooFew);
        assert!(
            compared.caveats[0].contains("1 pair of faults"),
            "{compared:?}"
        );
        let outage = compared.lines.iter().find(|l| l.what == "outage s");
        assert_eq!(
            outage.expect("an outage").difference,
            "longer in this one fault"
        );
        assert!(!compared.can_tell());
    }

    #[test]
    fn many_faults_that_agree_do() {
        let side = |add: f64| -> Vec<Value> {
            (0..12)
                .map(|at| run(&[(3.0 + add + 0.1 * f64::from(at % 4), false)]))
                .collect()
        };
        let worse = compare(&side(0.0), &side(1.0));
        assert_eq!(gap_line(&worse).verdict, Verdict::Worse);
        assert!(worse.is_worse());
        let better = compare(&side(1.0), &side(0.0));
        assert_eq!(gap_line(&better).verdict, Verdict::Better);
        let same = compare(&side(0.0), &side(0.0));
        assert_eq!(gap_line(&same).verdict, Verdict::NotDistinguishable);
    }

    #[test]
    fn what_was_not_over_counts_only_where_it_tells() {
        let felt = |gap_s, is_at_least| Felt {
            step: String::new(),
            gap_s,
            is_at_least,
            outage_s: None,
            verdict: String::new(),
        };
        assert_eq!(difference(&felt(1.0, false), &felt(3.0, true)), Some(2.0));
        assert_eq!(difference(&felt(4.0, false), &felt(3.0, true)), None);
        assert_eq!(difference(&felt(4.0, true), &felt(3.0, false)), Some(-1.0));
        assert_eq!(difference(&felt(4.0, true), &felt(9.0, true)), None);
        let compared = compare(&[run(&[(4.0, true)])], &[run(&[(4.0, true)])]);
        assert!(compared.caveats[0].contains("not over"), "{compared:?}");
    }

    #[test]
    fn sides_of_unequal_size_show_what_was_compared() {
        // By all faults the other side is longer in the mean; by pairs shorter.
        let first: Vec<Value> = (0..12).map(|_| run(&[(3.0, false)])).collect();
        let mut other: Vec<Value> = (0..12)
            .map(|at| run(&[(2.0 + 0.01 * f64::from(at), false)]))
            .collect();
        other.extend((0..12).map(|_| run(&[(9.0, false)])));
        let compared = compare(&first, &other);
        let line = gap_line(&compared);
        assert_eq!(line.what, "felt gap s, 12 pairs");
        assert_eq!(
            (&*line.first, &*line.other),
            ("mean 3.000", "mean 2.055"),
            "{line:?}"
        );
        assert!(line.difference.starts_with("-0.945"), "{line:?}");
        assert_eq!(line.verdict, Verdict::Better);
        assert!(
            compared.caveats[0].contains("the first side has 12 faults, the other 24"),
            "{:?}",
            compared.caveats
        );
        let (by, ..) = faults_needed(&first, &other).expect("two pairs");
        assert!((by - 0.945).abs() < 1e-9, "{by}");
        assert!(unequal(&first, &first).is_none());
    }

    #[test]
    fn faults_that_differ_are_no_pair() {
        let mut other = run(&[(1.0, false)]);
        other["faults"][0]["step"] = json!("kill");
        let compared = compare(&[run(&[(1.0, false)])], &[other]);
        assert!(compared.lines.iter().all(|l| l.verdict == Verdict::Shown));
    }
}
