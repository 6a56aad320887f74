//! What the same fault did, again and again. The unit of evidence is the fault:
//! clients within one fault agree with each other, so more clients are no more
//! evidence.
//!
//! Method: faults of the same step and subject are repetitions of each other, in
//! the order in which they were asked for. The first is kept apart: nothing was
//! warm then, and nothing was made as new before it. A repetition counts for a row
//! of clients only if it tested them (somebody was exposed or hurt).
//!
//! What it cannot know: whether two repetitions were really alike.

mod stats;

use std::collections::BTreeMap;

use gapscope_proto::fault::{Fault, FaultScope};

pub use stats::{Censored, Modes, Ranks, Share, median, modes, order_ranks, spearman, wilson};

use super::row::{FaultRow, Row};
use super::run::Analysis;
use super::verdict::Verdict;

/// Faults that repeat each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// What was done.
    pub step: String,
    /// To whom.
    pub subject: String,
    /// Their ids, in order.
    pub faults: Vec<u32>,
}

/// The groups of judged faults that came at least twice, in the order of their
/// first.
pub fn groups(faults: &[Fault], is_judged: impl Fn(u32) -> bool) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut ordered: Vec<&Fault> = faults
        .iter()
        .filter(|fault| is_judged(fault.id) && fault.scope != FaultScope::Mark)
        .collect();
    ordered.sort_by_key(|fault| (fault.asked.earliest_ns, fault.id));
    for fault in ordered {
        let known = groups
            .iter_mut()
            .find(|group| group.step == fault.step && group.subject == fault.subject);
        match known {
            Some(group) => group.faults.push(fault.id),
            None => groups.push(Group {
                step: fault.step.clone(),
                subject: fault.subject.clone(),
                faults: vec![fault.id],
            }),
        }
    }
    groups.retain(|group| group.faults.len() > 1);
    groups
}

/// What one repetition did to a row's clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Once {
    /// From 1, within the group.
    pub number: usize,
    /// The verdict.
    pub verdict: Verdict,
    /// Longest time without an answer.
    pub gap: Censored,
    /// How long the service can have been out: at least, at most; `None`: not
    /// bounded. No outage is one of 0.
    pub outage_ns: (i64, Option<i64>),
}

impl Once {
    fn of(number: usize, fault: &FaultRow) -> Self {
        Self {
            number,
            verdict: fault.judgement.verdict,
            gap: Censored {
                ns: fault.gap.ns,
                is_at_least: fault.gap.is_at_least,
            },
            outage_ns: fault.outage.unwrap_or((0, Some(0))),
        }
    }
}

/// A row of clients over all repetitions of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct Repeated {
    /// How often the fault came, the first time included.
    pub times: usize,
    /// The first time, if it tested this row.
    pub first: Option<Once>,
    /// The other times that tested it.
    pub rest: Vec<Once>,
    /// How often each verdict came in `rest`, worst first.
    pub verdicts: Vec<(Verdict, Share)>,
    /// Median of the gaps; `None`: not reached, more than half are not over.
    pub gap_median: Option<i64>,
    /// Interval of that median, of at least 95 %; none below 6 repetitions.
    pub gap_interval: Option<(i64, Option<i64>)>,
    /// Median outage: of the lower bounds, of the upper bounds.
    pub outage_median: Option<(i64, Option<i64>)>,
    /// Interval that holds the median outage, outward; none below 6.
    pub outage_interval: Option<(i64, Option<i64>)>,
    /// Gaps that lie together.
    pub modes: Modes,
    /// Rank correlation of the gap with the repetition; none below 6.
    pub trend: Option<f64>,
}

/// Puts the repetitions of a row together. `interval_ns`: between two probes of a
/// client, which is how finely gaps can be told apart.
pub fn repeated(group: &Group, row: &Row, interval_ns: i64) -> Repeated {
    let by_id: BTreeMap<u32, &FaultRow> = row.faults.iter().map(|f| (f.fault, f)).collect();
    let all = group.faults.iter().zip(1..).filter_map(|(id, number)| {
        let fault = by_id.get(id)?;
        fault
            .judgement
            .verdict
            .is_tested()
            .then(|| Once::of(number, fault))
    });
    together(group.faults.len(), all.collect(), interval_ns)
}

/// As [`repeated`], from what each time did.
pub fn together(times: usize, all: Vec<Once>, interval_ns: i64) -> Repeated {
    let first = all.first().filter(|once| once.number == 1).copied();
    let rest: Vec<Once> = all.into_iter().filter(|once| once.number > 1).collect();
    let n = rest.len();
    let mut counts: BTreeMap<Verdict, usize> = BTreeMap::new();
    for once in &rest {
        *counts.entry(once.verdict).or_default() += 1;
    }
    let gaps: Vec<Censored> = rest.iter().map(|once| once.gap).collect();
    let lowers: Vec<Censored> = rest
        .iter()
        .map(|once| Censored {
            ns: once.outage_ns.0,
            is_at_least: false,
        })
        .collect();
    let uppers: Vec<Censored> = rest
        .iter()
        .map(|once| match once.outage_ns.1 {
            Some(ns) => Censored {
                ns,
                is_at_least: false,
            },
            None => Censored {
                ns: once.outage_ns.0,
                is_at_least: true,
            },
        })
        .collect();
    let ranks = order_ranks(n);
    Repeated {
        times,
        first,
        verdicts: counts
            .into_iter()
            .map(|(verdict, k)| (verdict, wilson(k, n)))
            .collect(),
        gap_median: median(&gaps),
        gap_interval: ranks.map(|ranks| (ranks.low(&gaps), ranks.high(&gaps))),
        outage_median: median(&lowers).map(|low| (low, median(&uppers))),
        outage_interval: ranks.map(|ranks| (ranks.low(&lowers), ranks.high(&uppers))),
        modes: modes(&gaps, interval_ns),
        trend: spearman(&gaps),
        rest,
    }
}

/// Every row of a run over every group of repetitions; with its place in
/// [`Analysis::rows`].
pub fn all(analysis: &Analysis) -> Vec<(Group, Vec<(usize, Repeated)>)> {
    groups(&analysis.faults, |id| analysis.judged.contains(&id))
        .into_iter()
        .map(|group| {
            let rows = analysis
                .rows
                .iter()
                .enumerate()
                .map(|(at, (_, row))| (at, repeated(&group, row, row.interval_ns)))
                .collect();
            (group, rows)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use gapscope_proto::clock::ClockKey;
    use gapscope_proto::fault::Span;

    use super::*;

    const MS: i64 = 1_000_000;

    fn fault(id: u32, step: &str, subject: &str, scope: FaultScope) -> Fault {
        let asked = Span {
            earliest_ns: i64::from(id),
            latest_ns: i64::from(id),
        };
        Fault {
            id,
            step: step.to_owned(),
            subject: subject.to_owned(),
            identity: None,
            scope,
            clock: ClockKey {
                boot_id: "b".to_owned(),
                time_namespace: 1,
            },
            asked,
            listener_refused: None,
            held_cut: None,
            gone: None,
            cleared: None,
            detail: String::new(),
        }
    }

    #[test]
    fn equal_steps_on_equal_subjects_repeat_each_other() {
        let faults = [
            fault(1, "stop", "a", FaultScope::Backend),
            fault(2, "start", "a", FaultScope::Failback),
            fault(3, "reset", "", FaultScope::Mark),
            fault(4, "stop", "a", FaultScope::Backend),
            fault(5, "start", "a", FaultScope::Failback),
            fault(6, "stop", "b", FaultScope::Backend),
            fault(7, "reset", "", FaultScope::Mark),
        ];
        let found = groups(&faults, |_| true);
        let ids: Vec<&[u32]> = found.iter().map(|g| g.faults.as_slice()).collect();
        assert_eq!(ids, [&[1, 4][..], &[2, 5][..]]);
        assert!(
            groups(&faults, |id| id != 4)
                .iter()
                .all(|g| g.step != "stop")
        );
    }

    fn once(number: usize, gap_ms: i64, is_at_least: bool) -> Once {
        Once {
            number,
            verdict: if gap_ms > 1_000 {
                Verdict::Disrupted
            } else {
                Verdict::Seamless
            },
            gap: Censored {
                ns: gap_ms * MS,
                is_at_least,
            },
            outage_ns: (gap_ms * MS - 10 * MS, (!is_at_least).then_some(gap_ms * MS)),
        }
    }

    #[test]
    fn the_first_stands_apart_and_few_have_no_interval() {
        let all: Vec<Once> = [9_000, 3_000, 3_010, 4_000, 3_020, 4_010]
            .iter()
            .zip(1..)
            .map(|(ms, number)| once(number, *ms, false))
            .collect();
        let found = together(6, all, 10 * MS);
        assert_eq!(found.first.map(|f| f.gap.ns), Some(9_000 * MS));
        assert_eq!(found.rest.len(), 5);
        assert_eq!(found.gap_median, Some(3_020 * MS));
        assert_eq!(found.gap_interval, None);
        assert_eq!(found.outage_interval, None);
        assert_eq!(found.trend, None);
        let modes: Vec<(usize, i64)> = found.modes.0.iter().map(|m| (m.count, m.from_ns)).collect();
        assert_eq!(modes, [(3, 3_000 * MS), (2, 4_000 * MS)]);
    }

    #[test]
    fn a_first_that_tested_nothing_is_none() {
        let found = together(3, vec![once(2, 500, false), once(3, 600, false)], 10 * MS);
        assert_eq!(found.first, None);
        assert_eq!(found.rest.len(), 2);
        assert_eq!(found.verdicts.len(), 1);
    }

    #[test]
    fn what_is_not_over_opens_the_interval() {
        let all: Vec<Once> = (2..=9).map(|n| once(n, 2_000, n > 6)).collect();
        let found = together(9, all, 10 * MS);
        // 8 values, ranks 1 and 8; the eighth is not over.
        assert_eq!(found.gap_interval, Some((2_000 * MS, None)));
        let all: Vec<Once> = (2..=9).map(|n| once(n, 2_000, n > 3)).collect();
        assert_eq!(
            together(9, all, 10 * MS).gap_median,
            None,
            "most are not over"
        );
    }
}
