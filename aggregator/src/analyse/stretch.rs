//! Stretches of bad or late probes of one client, with what they prove.
//!
//! g0, b0, bn, g1 = last good probe before the stretch, first bad, last bad,
//! first good after. What the client felt is exact: the longest time between
//! two answers. How long the service can have been out is an interval: at least
//! from the end of b0 to the begin of bn (at both moments it did not serve), at
//! most from the begin of g0 to the end of g1 (at both moments it did). A late
//! answer inside proves that the service lived at that moment, so the lower
//! bound is that of the longest run of bad probes with no answer between.
//!
//! What it cannot know: that the service did not come back and go again between
//! two bad probes; the lower bound is that of one continuous outage.

use gapscope_proto::sample::Outcome;

use super::series::{ClientSeries, Probe, Slot, Worth};

/// A maximal run of bad or late probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// Index of the last good probe before; none: open to the left.
    pub g0: Option<usize>,
    /// Index of the first bad or late probe.
    pub b0: usize,
    /// Index of the last one.
    pub bn: usize,
    /// Index of the first good probe after; none: ongoing.
    pub g1: Option<usize>,
    /// Probes that were not answered.
    pub bad: u64,
    /// Probes answered past the deadline.
    pub late: u64,
    /// Longest time without any answer in it.
    pub gap_ns: i64,
    /// The gap is at least that long: it has no answer at one of its ends.
    pub gap_is_at_least: bool,
    /// The service was out for at least so long.
    pub lower_ns: i64,
    /// And at most so long; none: unbounded.
    pub upper_ns: Option<i64>,
    /// Of the time, spent waiting for the client's own timeouts.
    pub own_timeout_ns: i64,
    /// End of the first and begin of the last probe of the longest run of
    /// bad ones without an answer between: out at both, if in this order.
    pub inner: (i64, i64),
    /// The begin of g0 and the end of g1; the numbers' limits where open.
    pub outer: (i64, i64),
    /// Slots without data, or a late agent, within: the bounds stand, but part
    /// of the time was not watched.
    pub no_data: bool,
}

impl Stretch {
    /// No good probe after.
    pub fn is_ongoing(&self) -> bool {
        self.g1.is_none()
    }

    /// No good probe before or after.
    pub fn is_never_served(&self) -> bool {
        self.g0.is_none() && self.g1.is_none()
    }
}

/// Times in which an agent saw nothing, sorted by begin.
#[derive(Debug, Clone, Default)]
pub struct Blind(Vec<(i64, i64)>);

impl Blind {
    /// From pauses of the agent, and slots of this client without data.
    pub fn new(pauses: &[(i64, i64)], series: &ClientSeries) -> Self {
        let mut spans: Vec<(i64, i64)> = Vec::new();
        series.for_each_slot(|slot| match slot {
            Slot::Overslept { due_ns } | Slot::Absent { due_ns } => match spans.last_mut() {
                Some(last)
                    if last.1 <= due_ns && due_ns.saturating_sub(last.1) <= series.interval_ns =>
                {
                    last.1 = due_ns;
                }
                _ => spans.push((due_ns, due_ns)),
            },
            Slot::Probed(probe) if probe.outcome == Outcome::AgentError => {
                spans.push((probe.started, probe.finished));
            }
            _ => {}
        });
        spans.extend_from_slice(pauses);
        spans.sort_unstable();
        // Ends made monotonic, so that one search finds an overlap.
        let mut furthest = i64::MIN;
        for span in &mut spans {
            furthest = furthest.max(span.1);
            span.1 = furthest;
        }
        Self(spans)
    }

    /// Whether something of it lies within.
    pub fn overlaps(&self, from: i64, to: i64) -> bool {
        let begun = self.0.partition_point(|span| span.0 <= to);
        begun > 0 && self.0[begun - 1].1 >= from
    }
}

/// The longest time a client went without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MaxGap {
    /// How long.
    pub ns: i64,
    /// It is at least that long: there is no answer at one of its ends.
    pub is_at_least: bool,
    /// Part of it was not watched.
    pub no_data: bool,
}

impl MaxGap {
    /// The longer one. If one of both is open at an end, so is what the longer
    /// one says of both: the open one may go beyond it.
    pub fn max(self, other: Self) -> Self {
        let longer = if other.ns > self.ns { other } else { self };
        Self {
            is_at_least: self.is_at_least || other.is_at_least,
            ..longer
        }
    }
}

/// All stretches of a client and its longest gap.
pub fn stretches(series: &ClientSeries, deadline_ns: i64, blind: &Blind) -> (Vec<Stretch>, MaxGap) {
    let probes = &series.probes;
    let mut found: Vec<Stretch> = Vec::new();
    let mut max_gap = MaxGap::default();
    let mut last_good: Option<usize> = None;
    let mut last_answer: Option<usize> = None;
    let mut open: Option<Stretch> = None;
    // Longest time between two answers in which only the agent was late.
    let mut unwatched_ns = 0;
    for (at, probe) in probes.iter().enumerate() {
        let worth = probe.worth(deadline_ns);
        if worth == Worth::NoData
            && let Some(stretch) = &mut open
        {
            stretch.no_data = true;
        }
        // An answer of which nobody knows whether it was in time is one all the same.
        if probe.outcome == Outcome::Ok {
            // Without an answer since the last one, or since the first probe.
            let since = match last_answer {
                Some(last) => probes[last].finished,
                None => probes[0].started,
            };
            let gap = MaxGap {
                ns: probe.finished.saturating_sub(since),
                is_at_least: last_answer.is_none() && open.is_some(),
                no_data: blind.overlaps(since, probe.finished),
            };
            if let Some(stretch) = &mut open {
                lengthen(stretch, gap);
            }
            // A gap in which nothing bad was seen, but the agent was late, is
            // the agent's own.
            if (open.is_some() || worth == Worth::Late || !gap.no_data)
                && (last_answer.is_some() || open.is_some())
            {
                max_gap = max_gap.max(gap);
            } else {
                unwatched_ns = unwatched_ns.max(gap.ns);
            }
            if worth == Worth::Late && open.is_none() {
                let mut stretch = begin(last_good, at);
                lengthen(&mut stretch, gap);
                open = Some(stretch);
            }
            last_answer = Some(at);
        }
        match worth {
            Worth::Good => {
                if let Some(mut stretch) = open.take() {
                    stretch.g1 = Some(at);
                    found.push(stretch);
                }
                last_good = Some(at);
            }
            Worth::NoData => {}
            _ => {
                let stretch = open.get_or_insert_with(|| begin(last_good, at));
                stretch.bn = at;
                match worth {
                    Worth::Late => stretch.late += 1,
                    _ => stretch.bad += 1,
                }
                if probe.is_own_timeout() {
                    let own = probe.took_ns().saturating_sub(probe.blind_ns);
                    stretch.own_timeout_ns = stretch.own_timeout_ns.saturating_add(own);
                }
            }
        }
    }
    if let Some(mut stretch) = open.take() {
        let end = probes[stretch.bn].finished;
        let since = last_answer.map_or(probes[0].started, |last| probes[last].finished);
        // After a late answer nothing is outstanding.
        if end > since {
            let gap = MaxGap {
                ns: end.saturating_sub(since),
                is_at_least: true,
                no_data: blind.overlaps(since, end),
            };
            lengthen(&mut stretch, gap);
            max_gap = max_gap.max(gap);
        }
        found.push(stretch);
    }
    if last_answer.is_some() && unwatched_ns > max_gap.ns {
        // A longer one may have hidden there.
        max_gap.no_data = true;
    }
    for stretch in &mut found {
        bound(stretch, series, deadline_ns);
        let from = stretch
            .g0
            .map_or(probes[stretch.b0].started, |g| probes[g].finished);
        let to = stretch
            .g1
            .map_or(probes[stretch.bn].finished, |g| probes[g].finished);
        stretch.no_data |= blind.overlaps(from, to);
    }
    (found, max_gap)
}

fn begin(g0: Option<usize>, at: usize) -> Stretch {
    Stretch {
        g0,
        b0: at,
        bn: at,
        g1: None,
        bad: 0,
        late: 0,
        gap_ns: 0,
        gap_is_at_least: false,
        lower_ns: 0,
        upper_ns: None,
        own_timeout_ns: 0,
        inner: (0, 0),
        outer: (i64::MIN, i64::MAX),
        no_data: false,
    }
}

fn lengthen(stretch: &mut Stretch, gap: MaxGap) {
    stretch.gap_ns = stretch.gap_ns.max(gap.ns);
    stretch.gap_is_at_least |= gap.is_at_least;
}

fn bound(stretch: &mut Stretch, series: &ClientSeries, deadline_ns: i64) {
    let probes = &series.probes;
    stretch.inner = unanswered(&probes[stretch.b0..=stretch.bn], deadline_ns);
    stretch.outer = (
        stretch.g0.map_or(i64::MIN, |g| probes[g].started),
        stretch.g1.map_or(i64::MAX, |g| probes[g].finished),
    );
    stretch.lower_ns = stretch.inner.1.saturating_sub(stretch.inner.0).max(0);
    stretch.upper_ns = (stretch.g0.is_some() && stretch.g1.is_some())
        .then(|| stretch.outer.1.saturating_sub(stretch.outer.0));
}

/// End of the first and begin of the last probe of the longest run without an
/// answer; not in this order if no two unanswered probes follow each other.
fn unanswered(probes: &[Probe], deadline_ns: i64) -> (i64, i64) {
    let span = |run: &(i64, i64)| run.1.saturating_sub(run.0);
    // Of late answers alone: nothing is proven out.
    let mut longest = probes.first().map_or((0, 0), |p| (p.finished, p.started));
    let mut run: Option<(i64, i64)> = None;
    for probe in probes {
        match probe.worth(deadline_ns) {
            Worth::Bad => {
                let from = run.map_or(probe.finished, |run| run.0);
                let now = (from, probe.started);
                run = Some(now);
                if span(&now) > span(&longest) {
                    longest = now;
                }
            }
            // It was not served when it began, but answered in the end.
            Worth::Late => {
                if let Some(run) = run.take() {
                    let now = (run.0, probe.started);
                    if span(&now) > span(&longest) {
                        longest = now;
                    }
                }
            }
            Worth::Good => run = None,
            // Answered, nobody knows since when.
            Worth::NoData if probe.outcome == Outcome::Ok => run = None,
            Worth::NoData => {}
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::super::series::testing::*;
    use super::*;
    use gapscope_proto::sample::Cause;

    const DEADLINE: i64 = 250 * MS;

    fn find(probes: Vec<Probe>) -> (Vec<Stretch>, MaxGap) {
        let until = probes.last().map_or(S, |p| p.scheduled + 1);
        let series = series(100 * MS, until, probes);
        stretches(&series, DEADLINE, &Blind::new(&[], &series))
    }

    fn refused(slot: u64) -> Probe {
        bad(
            slot,
            slot as i64 * 100 * MS,
            MS,
            Outcome::ConnectFailed,
            Cause::Refused,
        )
    }

    fn good(slot: u64) -> Probe {
        ok(slot, slot as i64 * 100 * MS, 2 * MS)
    }

    #[test]
    fn a_healthy_client_has_no_stretch() {
        let (found, gap) = find((0..10).map(good).collect());
        assert!(found.is_empty());
        assert_eq!((gap.ns, gap.is_at_least), (100 * MS, false));
    }

    #[test]
    fn an_empty_client_has_nothing() {
        assert_eq!(find(vec![]), (vec![], MaxGap::default()));
    }

    #[test]
    fn an_outage_between_two_good_probes() {
        let (found, gap) = find(vec![good(0), refused(1), refused(2), refused(3), good(4)]);
        assert_eq!(found.len(), 1);
        let s = &found[0];
        assert_eq!((s.g0, s.b0, s.bn, s.g1, s.bad), (Some(0), 1, 3, Some(4), 3));
        assert_eq!(s.gap_ns, 400 * MS);
        assert_eq!(s.lower_ns, 199 * MS);
        assert_eq!(s.upper_ns, Some(402 * MS));
        assert_eq!((gap.ns, gap.is_at_least), (400 * MS, false));
        assert!(!s.no_data && s.own_timeout_ns == 0);
    }

    #[test]
    fn one_bad_probe_proves_no_length_but_does_not_hide_the_gap() {
        let hung = bad(1, 100 * MS, 5 * S, Outcome::TimedOut, Cause::QueryTimeout);
        let (found, gap) = find(vec![good(0), hung, ok(52, 5_200 * MS, 2 * MS)]);
        assert_eq!(found[0].lower_ns, 0);
        assert_eq!(found[0].upper_ns, Some(5_202 * MS));
        assert_eq!(found[0].own_timeout_ns, 5 * S);
        assert_eq!(gap.ns, 5_200 * MS);
    }

    #[test]
    fn an_outage_at_the_end_is_ongoing_and_in_the_longest_gap() {
        let (found, gap) = find(vec![good(0), good(1), refused(2), refused(3)]);
        let s = &found[0];
        assert!(s.is_ongoing() && s.gap_is_at_least && !s.is_never_served());
        assert_eq!(s.gap_ns, 301 * MS - 102 * MS);
        assert_eq!((s.lower_ns, s.upper_ns), (99 * MS, None));
        assert_eq!((gap.ns, gap.is_at_least), (199 * MS, true));
    }

    #[test]
    fn an_outage_at_the_begin_is_open_to_the_left() {
        let (found, gap) = find(vec![refused(0), refused(1), good(2), good(3)]);
        let s = &found[0];
        assert_eq!((s.g0, s.g1, s.upper_ns), (None, Some(2), None));
        assert!(s.gap_is_at_least && !s.is_ongoing());
        assert_eq!((gap.ns, gap.is_at_least), (202 * MS, true));
    }

    #[test]
    fn never_served() {
        let (found, gap) = find(vec![refused(0), refused(1)]);
        assert!(found[0].is_never_served());
        assert_eq!((gap.ns, gap.is_at_least), (101 * MS, true));
    }

    #[test]
    fn a_late_answer_is_an_answer() {
        // Bad, late, bad: two gaps, the longer one counts.
        let late = ok(3, 300 * MS, 400 * MS);
        let (found, gap) = find(vec![
            good(0),
            refused(1),
            refused(2),
            late,
            refused(8),
            good(9),
        ]);
        let s = &found[0];
        assert_eq!((s.bad, s.late), (3, 1));
        assert_eq!(s.gap_ns, 698 * MS, "from 2 ms to 700 ms");
        // Out from 101 to 300 ms; what came after the late answer is another one.
        assert_eq!(s.lower_ns, 199 * MS);
        assert_eq!(s.upper_ns, Some(902 * MS));
        assert_eq!(gap.ns, 698 * MS);
    }

    #[test]
    fn one_late_answer_alone_is_a_stretch() {
        let (found, gap) = find(vec![good(0), ok(1, 100 * MS, 900 * MS), good(11)]);
        let s = &found[0];
        assert_eq!((s.bad, s.late, s.lower_ns), (0, 1, 0));
        assert_eq!(s.gap_ns, 998 * MS);
        assert_eq!(s.upper_ns, Some(1_102 * MS));
        assert_eq!(gap.ns, 998 * MS);
    }

    #[test]
    fn a_stretch_that_ends_with_a_late_answer_and_the_run() {
        let (found, gap) = find(vec![good(0), good(1), ok(2, 200 * MS, 900 * MS)]);
        assert!(found[0].is_ongoing());
        assert_eq!(
            (found[0].gap_ns, found[0].gap_is_at_least),
            (998 * MS, false)
        );
        assert!(!gap.is_at_least);
    }

    #[test]
    fn agent_errors_neither_begin_nor_end_a_stretch() {
        let own = |slot: u64| {
            bad(
                slot,
                slot as i64 * 100 * MS,
                MS,
                Outcome::AgentError,
                Cause::NoLocalPort,
            )
        };
        let (found, gap) = find(vec![
            good(0),
            own(1),
            good(2),
            refused(3),
            own(4),
            refused(5),
            good(6),
        ]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].b0, found[0].bn, found[0].bad), (3, 5, 2));
        assert!(found[0].no_data);
        assert_eq!(gap.ns, 400 * MS);
    }

    #[test]
    fn a_pause_of_the_agent_is_not_the_targets_gap() {
        let (found, gap) = find(vec![good(0), good(1), good(50), good(51)]);
        assert!(found.is_empty());
        assert_eq!(gap.ns, 100 * MS);
        assert!(gap.no_data, "but one may have hidden in it");
    }

    #[test]
    fn a_pause_of_the_agent_within_a_stretch_is_flagged() {
        let (found, gap) = find(vec![good(0), refused(1), good(50)]);
        assert!(found[0].no_data);
        assert!(gap.no_data);
        assert_eq!(gap.ns, 5_000 * MS);
        let paused = series(
            100 * MS,
            501 * MS,
            vec![good(0), refused(1), good(2), good(3), refused(4), good(5)],
        );
        let (found, _) = stretches(
            &paused,
            DEADLINE,
            &Blind::new(&[(390 * MS, 600 * MS)], &paused),
        );
        assert_eq!(
            found.iter().map(|s| s.no_data).collect::<Vec<_>>(),
            [false, true]
        );
    }
}
