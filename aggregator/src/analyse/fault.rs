//! One client in the horizon of one fault: how it was exposed, what its probes
//! showed, and the moments that matter.
//!
//! A fault's horizon goes from when it was asked for to the next fault's. A
//! graceful stop moves or cuts clients before anything "takes effect", so
//! exposure is judged by the answers just before `asked`.
//!
//! What it cannot know: whether two things that happened within one horizon
//! have anything to do with each other. Everything bad in it is put down to
//! its fault.

use std::collections::BTreeSet;

use gapscope_proto::fault::Span;
use gapscope_proto::sample::{Cause, Outcome};

use super::changes::is_same_connection;
use super::fate::{Evidence, Exposure, Fate, fate};
use super::series::{ClientSeries, Probe, Worth};
use super::stretch::{Blind, MaxGap};

/// Whom a fault reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Those served by this backend; none: a backend nobody was served by.
    ServedBy(Option<u32>),
    /// Every client.
    All,
    /// Nobody of this target: the fault was done to another proxy.
    Nobody,
}

/// A judged fault by an agent's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalFault {
    /// Its id in the run.
    pub id: u32,
    /// When it was asked for.
    pub asked: Span,
    /// Where its horizon ends: the next fault's `asked`, or never.
    pub until_ns: i64,
    /// Whom it reaches.
    pub reach: Reach,
    /// The subject's identity, if probes have ever seen it.
    pub subject: Option<u32>,
    /// Whether it asks for a drain.
    pub is_drain: bool,
    /// Whether its subject should not answer for as long as it lasts, and it
    /// was not undone: a backend that was stopped, killed, hung or cut off.
    pub is_lasting: bool,
}

impl LocalFault {
    /// Whether a probe's result falls into the horizon.
    pub fn holds(&self, probe: &Probe, deadline_ns: i64) -> bool {
        let decided = probe.decided_at(deadline_ns);
        decided >= self.asked.earliest_ns && decided < self.until_ns
    }
}

/// One client in one fault. Times are the agent's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// How it was connected with the subject.
    pub exposure: Exposure,
    /// What its probes showed.
    pub evidence: Evidence,
    /// What became of it.
    pub fate: Fate,
    /// Longest time without an answer, from the last answer before on.
    pub gap: MaxGap,
    /// When the first bad or late probe was begun and known to be so.
    pub first_bad: Option<(i64, i64)>,
    /// First answer from another backend than the subject, of a held client.
    pub first_from_survivor: Option<i64>,
    /// First good answer after the last bad or late one.
    pub back_at: Option<i64>,
    /// Last answer from the subject.
    pub last_from_subject: Option<i64>,
    /// Begin of the last connection that led to the subject.
    pub last_connect_to_subject: Option<i64>,
}

impl Seen {
    /// Something bad or late happened to it.
    pub fn is_hurt(&self) -> bool {
        self.evidence.is_hurt()
    }
}

/// A client of which nothing is known for so long was not seen to be served.
const HOLE_NS: i64 = 1_000_000_000;

/// How far back answers count for exposure.
pub fn exposure_window_ns(interval_ns: i64) -> i64 {
    interval_ns.saturating_mul(2).max(1_000_000_000)
}

/// Looks at one client in the horizon of one fault.
pub fn look(series: &ClientSeries, fault: &LocalFault, deadline_ns: i64, blind: &Blind) -> Seen {
    let probes = &series.probes;
    let asked = fault.asked.earliest_ns;
    let window = exposure_window_ns(series.interval_ns);
    // One task, one probe at a time: ends are in order, as begins are.
    let first_after = probes.partition_point(|p| p.finished <= asked);
    let before: Vec<&Probe> = probes[..first_after]
        .iter()
        .rev()
        .take_while(|p| p.finished >= asked.saturating_sub(window))
        .filter(|p| p.outcome == Outcome::Ok)
        .collect();
    let exposure = exposure(&before, fault.reach);
    let within = &probes[first_after.saturating_sub(1)..];
    let within = within
        .iter()
        .filter(|p| fault.holds(p, deadline_ns) && p.worth(deadline_ns) != Worth::NoData);
    let last_before = before.first().copied();
    let held = exposure == Exposure::Held && matches!(fault.reach, Reach::ServedBy(_));
    let mut seen = Seen {
        exposure,
        evidence: Evidence::default(),
        fate: Fate::Unmeasured,
        gap: MaxGap::default(),
        first_bad: None,
        first_from_survivor: None,
        back_at: None,
        last_from_subject: None,
        last_connect_to_subject: None,
    };
    let mut connection = last_before.and_then(|p| p.connection);
    let mut answers: Vec<&Probe> = Vec::new();
    let mut last_answer = last_before;
    let mut last: Option<&Probe> = None;
    // Longest time between two answers in which the agent saw nothing, and
    // whether one such time holds the moment of the fault.
    let mut unwatched = MaxGap::default();
    let mut looked_away = false;
    for probe in within {
        let evidence = &mut seen.evidence;
        let worth = probe.worth(deadline_ns);
        if worth != Worth::Good && seen.first_bad.is_none() {
            seen.first_bad = Some((probe.started, probe.decided_at(deadline_ns)));
        }
        match (worth, probe.outcome) {
            (Worth::Late, _) => evidence.late += 1,
            (Worth::Bad, Outcome::StateLost) => evidence.state_lost += 1,
            (Worth::Bad, outcome) => {
                if evidence.bad == 0 {
                    evidence.first_timed_out = outcome == Outcome::TimedOut;
                    evidence.first_refused = probe.cause == Some(Cause::Refused);
                }
                evidence.bad += 1;
                evidence.read_only |= probe.cause == Some(Cause::ReadOnly);
            }
            _ => {}
        }
        if worth == Worth::Good {
            seen.back_at = seen.back_at.or(Some(probe.finished));
        } else if worth != Worth::Late || evidence.bad == 0 {
            // A client that came back from errors does not go again because one
            // answer, long after, was late.
            seen.back_at = None;
        }
        if probe.outcome == Outcome::Ok {
            if let Some(before) = last_answer {
                evidence.new_connection |= before.life == probe.life
                    && before.connection.is_some()
                    && probe.connection.is_some()
                    && !is_same_connection(before, probe);
                let silent = MaxGap {
                    ns: probe.finished.saturating_sub(before.finished),
                    is_at_least: false,
                    no_data: blind.overlaps(before.finished, probe.finished),
                };
                if evidence.is_hurt() || !silent.no_data {
                    seen.gap = seen.gap.max(silent);
                } else if silent.ns > deadline_ns {
                    unwatched = unwatched.max(silent);
                    // A hole at the fault, or one so long that a whole switchover fits.
                    looked_away |= before.finished <= fault.asked.latest_ns.saturating_add(window)
                        || silent.ns >= HOLE_NS;
                }
            }
            let fresh = !series.key.style.is_held() || probe.connection != connection;
            if let (Some(subject), Some(backend)) = (fault.subject, probe.backend) {
                if backend == subject {
                    seen.last_from_subject = Some(probe.finished);
                    if fresh && probe.started > asked {
                        seen.last_connect_to_subject = Some(probe.started);
                    }
                } else if held && seen.first_from_survivor.is_none() {
                    seen.first_from_survivor = Some(probe.finished);
                }
            }
            connection = probe.connection;
            last_answer = Some(probe);
            answers.push(probe);
        }
        last = Some(probe);
    }
    if let Some(last) = last {
        let answered = last.outcome == Outcome::Ok
            || last.outcome == Outcome::StateLost
            || last.cause == Some(Cause::ReadOnly);
        seen.evidence.not_back = !answered
            || (last.worth(deadline_ns) == Worth::Late && last.finished >= fault.until_ns);
        if let (false, Some(before)) = (answered, last_answer) {
            seen.gap = seen.gap.max(MaxGap {
                ns: last.finished.saturating_sub(before.finished),
                is_at_least: true,
                no_data: blind.overlaps(before.finished, last.finished),
            });
        }
    }
    if !seen.is_hurt() {
        seen.back_at = None;
    }
    seen.evidence.moved = moved(&before, &answers, fault, exposure, window);
    seen.evidence.undrained = fault.is_drain
        && exposure != Exposure::None
        && answers
            .last()
            .is_some_and(|p| p.backend.is_some() && p.backend == fault.subject);
    if !seen.is_hurt() && unwatched.ns > 0 {
        seen.gap = seen.gap.max(unwatched);
        seen.gap.no_data = true;
    }
    // What was done to another target has no effect here that anybody could miss.
    let has_effect = fault.reach != Reach::Nobody;
    if has_effect && (last.is_none() || (looked_away && !seen.is_hurt())) {
        // No probe after the fault, or none while it had its effect: whatever
        // it did, nobody looked.
        seen.exposure = Exposure::Unmeasured;
    }
    if seen.exposure != Exposure::Unmeasured {
        seen.fate = fate(series.key.style, series.kind, &seen.evidence);
    }
    seen
}

/// By whom the last answers before a fault came.
fn exposure(before: &[&Probe], reach: Reach) -> Exposure {
    if reach == Reach::Nobody {
        return Exposure::None;
    }
    if before.is_empty() {
        return Exposure::Unmeasured;
    }
    match reach {
        Reach::All => Exposure::Held,
        Reach::Nobody | Reach::ServedBy(None) => Exposure::None,
        Reach::ServedBy(Some(subject)) => {
            let from_subject = before.iter().filter(|p| p.backend == Some(subject)).count();
            match from_subject {
                0 => Exposure::None,
                n if n == before.len() => Exposure::Held,
                _ => Exposure::Shared,
            }
        }
    }
}

/// Whether the answers moved to another backend. A client that was balanced
/// over several has moved only if the subject no longer answers it.
fn moved(
    before: &[&Probe],
    after: &[&Probe],
    fault: &LocalFault,
    exposure: Exposure,
    window: i64,
) -> bool {
    match (exposure, fault.subject, after.last()) {
        (_, _, None) | (Exposure::Unmeasured, _, _) => false,
        (Exposure::Shared, Some(subject), Some(last)) => !after
            .iter()
            .rev()
            .take_while(|p| p.finished >= last.finished.saturating_sub(window))
            .any(|p| p.backend == Some(subject)),
        _ => {
            let known: BTreeSet<u32> = before.iter().filter_map(|p| p.backend).collect();
            !known.is_empty()
                && after
                    .iter()
                    .filter_map(|p| p.backend)
                    .any(|backend| !known.contains(&backend))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::testing::*;
    use super::*;

    const DEADLINE: i64 = 250 * MS;

    fn stop(at: i64) -> LocalFault {
        LocalFault {
            id: 1,
            asked: Span {
                earliest_ns: at,
                latest_ns: at,
            },
            until_ns: i64::MAX,
            reach: Reach::ServedBy(Some(0)),
            subject: Some(0),
            is_drain: false,
            is_lasting: false,
        }
    }

    fn by(backend: u32, connection: u32, slot: u64) -> Probe {
        Probe {
            backend: Some(backend),
            connection: Some(connection),
            connection_id: Some(7),
            ..ok(slot, slot as i64 * 100 * MS, MS)
        }
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

    fn seen(probes: Vec<Probe>, fault: LocalFault) -> Seen {
        let until = probes.last().map_or(S, |p| p.scheduled + 1);
        let series = series(100 * MS, until, probes);
        look(&series, &fault, DEADLINE, &Blind::default())
    }

    fn twenty(pick: impl Fn(u64) -> Probe) -> Vec<Probe> {
        (0..20).map(pick).collect()
    }

    #[track_caller]
    fn check(probes: Vec<Probe>, exposure: Exposure, fate: Fate) -> Seen {
        let s = seen(probes, stop(1_050 * MS));
        assert_eq!((s.exposure, s.fate), (exposure, fate), "{s:?}");
        s
    }

    #[test]
    fn a_fault_that_nobody_watched_is_unmeasured() {
        // The agent was away from 900 ms to 3 s; the answers moved meanwhile.
        let probes: Vec<Probe> = (0..10)
            .map(|k| by(0, 1, k))
            .chain((30..40).map(|k| by(1, 1, k)))
            .collect();
        let series = series(100 * MS, 4 * S, probes);
        let blind = Blind::new(&[], &series);
        let s = look(&series, &stop(950 * MS), DEADLINE, &blind);
        assert_eq!(
            (s.exposure, s.fate),
            (Exposure::Unmeasured, Fate::Unmeasured)
        );
        assert!(s.gap.no_data && s.gap.ns > 2 * S, "{s:?}");
        // Away later, when the fault had had its effect: seen, but not all of it.
        let s = look(&series, &stop(-5 * S), DEADLINE, &blind);
        assert!(s.gap.no_data, "{s:?}");
    }

    #[test]
    fn exposure_is_judged_by_the_last_answers() {
        check(twenty(|k| by(0, 1, k)), Exposure::Held, Fate::Kept);
        check(twenty(|k| by(1, 1, k)), Exposure::None, Fate::Kept);
        check(
            twenty(|k| by((k % 2) as u32, 1, k)),
            Exposure::Shared,
            Fate::Kept,
        );
        // Older than a second: on the subject; since then on the survivor.
        check(
            twenty(|k| by(u32::from(k > 0), 1, k)),
            Exposure::None,
            Fate::Kept,
        );
        check(twenty(refused), Exposure::Unmeasured, Fate::Unmeasured);
        check(vec![], Exposure::Unmeasured, Fate::Unmeasured);
    }

    #[test]
    fn a_quiet_switch_on_the_same_connection() {
        let s = check(
            twenty(|k| by(u32::from(k > 10), 1, k)),
            Exposure::Held,
            Fate::Switched,
        );
        assert_eq!(s.first_from_survivor, Some(1_101 * MS));
        assert_eq!((s.gap.ns, s.is_hurt()), (100 * MS, false));
    }

    #[test]
    fn a_balanced_client_that_lost_the_subject_has_switched() {
        check(
            twenty(|k| by(if k > 10 { 1 } else { (k % 2) as u32 }, 1, k)),
            Exposure::Shared,
            Fate::Switched,
        );
    }

    #[test]
    fn one_error_then_a_new_connection() {
        let s = check(
            twenty(|k| match k {
                0..=10 => by(0, 1, k),
                11 => refused(k),
                _ => by(1, 2, k),
            }),
            Exposure::Held,
            Fate::Reconnected,
        );
        assert_eq!(s.first_bad, Some((1_100 * MS, 1_101 * MS)));
        assert_eq!(s.back_at, Some(1_201 * MS));
        assert_eq!(s.gap.ns, 200 * MS);
    }

    #[test]
    fn lost_hung_dropped() {
        let after =
            |pick: fn(u64) -> Probe| twenty(move |k| if k <= 10 { by(0, 1, k) } else { pick(k) });
        let s = check(after(refused), Exposure::Held, Fate::Lost);
        assert_eq!(
            (s.gap.ns, s.gap.is_at_least, s.back_at),
            (900 * MS, true, None)
        );
        check(
            after(|k| if k < 14 { refused(k) } else { by(1, 2, k) }),
            Exposure::Held,
            Fate::Dropped,
        );
        let hung = bad(
            11,
            1_100 * MS,
            5 * S,
            Outcome::TimedOut,
            Cause::QueryTimeout,
        );
        let mut probes = twenty(|k| by(0, 1, k));
        probes.truncate(11);
        probes.extend([hung, ok(62, 6_200 * MS, MS)]);
        check(probes, Exposure::Held, Fate::Hung);
    }

    #[test]
    fn a_probe_in_flight_is_hurt_but_one_already_overdue_is_not() {
        let mut probes = twenty(|k| by(0, 1, k));
        probes.truncate(11);
        let in_flight = bad(
            11,
            1_100 * MS,
            2 * S,
            Outcome::ConnectionLost,
            Cause::Closed,
        );
        probes.extend([
            in_flight,
            Probe {
                connection: Some(2),
                ..ok(32, 3_200 * MS, MS)
            },
        ]);
        let s = seen(probes.clone(), stop(1_200 * MS));
        assert_eq!((s.exposure, s.fate), (Exposure::Held, Fate::Reconnected));
        let s = seen(probes, stop(1_400 * MS));
        assert_eq!((s.exposure, s.is_hurt()), (Exposure::Held, false));
    }

    #[test]
    fn an_answer_after_the_horizon_is_too_late() {
        let mut probes = twenty(|k| by(0, 1, k));
        probes.truncate(11);
        probes.extend([ok(11, 1_100 * MS, 4 * S), ok(52, 5_200 * MS, MS)]);
        let s = seen(
            probes.clone(),
            LocalFault {
                until_ns: 3 * S,
                ..stop(1_050 * MS)
            },
        );
        assert_eq!(s.fate, Fate::Lost);
        let s = seen(probes, stop(1_050 * MS));
        assert_eq!(s.fate, Fate::Stalled);
    }

    #[test]
    fn a_fault_that_nobody_looked_at_is_unmeasured() {
        let s = seen(twenty(|k| by(0, 1, k)), stop(1_950 * MS));
        assert_eq!(
            (s.exposure, s.fate),
            (Exposure::Unmeasured, Fate::Unmeasured)
        );
        let hasty = LocalFault {
            until_ns: 1_060 * MS,
            ..stop(1_050 * MS)
        };
        assert_eq!(seen(twenty(|k| by(0, 1, k)), hasty).fate, Fate::Unmeasured);
    }

    #[test]
    fn faults_of_a_proxy_expose_all_or_nobody() {
        let all = LocalFault {
            reach: Reach::All,
            subject: None,
            ..stop(1_050 * MS)
        };
        assert_eq!(seen(twenty(|k| by(1, 1, k)), all).exposure, Exposure::Held);
        let other = LocalFault {
            reach: Reach::Nobody,
            ..all
        };
        assert_eq!(
            seen(twenty(|k| by(1, 1, k)), other).exposure,
            Exposure::None
        );
        // However soon this target's own fault follows: nobody missed anything.
        let at_once = LocalFault {
            until_ns: 1_050 * MS + 1,
            ..other
        };
        assert_eq!(
            seen(twenty(|k| by(1, 1, k)), at_once).exposure,
            Exposure::None
        );
        let unseen = LocalFault {
            reach: Reach::ServedBy(None),
            ..all
        };
        assert_eq!(
            seen(twenty(|k| by(1, 1, k)), unseen).exposure,
            Exposure::None
        );
    }

    #[test]
    fn a_drain_that_did_not_drain() {
        let drain = LocalFault {
            is_drain: true,
            ..stop(1_050 * MS)
        };
        assert_eq!(seen(twenty(|k| by(0, 1, k)), drain).fate, Fate::Undrained);
        assert_eq!(
            seen(twenty(|k| by(u32::from(k > 12), 1, k)), drain).fate,
            Fate::Switched
        );
        assert_eq!(seen(twenty(|k| by(1, 1, k)), drain).fate, Fate::Kept);
    }

    #[test]
    fn new_connections_that_still_went_to_the_subject() {
        let mut probes = twenty(|k| by(u32::from(k > 13), k as u32 + 1, k));
        for p in &mut probes {
            p.connection_id = Some(p.slot);
        }
        let mut history = series(100 * MS, 1_901 * MS, probes);
        history.key.style = gapscope_proto::sample::Style::New;
        let s = look(&history, &stop(1_050 * MS), DEADLINE, &Blind::default());
        assert_eq!(s.last_connect_to_subject, Some(1_300 * MS));
        assert_eq!(s.last_from_subject, Some(1_301 * MS));
        assert_eq!(s.fate, Fate::Served);
    }
}
