//! One client's probes in order, what each is worth, and what became of every
//! slot that was due.
//!
//! A probe is judged by its own duration (finished - started): how late it
//! began is the agent's own doing and never blamed on the target. A slot that
//! nobody probed is `waited` if the client was still busy with an earlier probe
//! when it was due, else `overslept` (the agent was late) or `absent` (no agent
//! was running). Overslept and absent slots are no data: neither up nor down.
//!
//! A probe that was out while the agent itself stood still may have been answered
//! long before the agent saw it: if it was in time without the time stood still,
//! it says nothing about the deadline, and the slots that passed meanwhile do not
//! either.
//!
//! What it cannot know: which slots the samples belonged to that were lost on
//! their way. Such slots look like overslept ones; the conservation of the
//! whole run takes them apart by number only.

use gapscope_proto::clock::ClockKey;
use gapscope_proto::ids::{AgentId, TargetName};
use gapscope_proto::plan::{ClientKind, Timeouts};
use gapscope_proto::sample::{Cause, Outcome, Phase, Style};

use super::still::StoodStill;

/// A sample as far as the analysis needs it. Times are RAW ns of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Index into [`ClientSeries::lives`].
    pub life: u16,
    /// Number in the client's schedule.
    pub slot: u64,
    /// Due.
    pub scheduled: i64,
    /// Begun.
    pub started: i64,
    /// Answered or given up.
    pub finished: i64,
    /// Of the time between, so much the agent stood still.
    pub blind_ns: i64,
    /// Where it ended.
    pub phase: Phase,
    /// What became of it.
    pub outcome: Outcome,
    /// The finer kind.
    pub cause: Option<Cause>,
    /// MySQL error number.
    pub error_code: Option<u16>,
    /// What was said: index into the run's names.
    pub error: Option<u32>,
    /// The client's own number of its connection.
    pub connection: Option<u32>,
    /// `CONNECTION_ID()`, comparable within one backend only.
    pub connection_id: Option<u64>,
    /// Who answered: index into the run's names.
    pub backend: Option<u32>,
}

/// What a probe says about its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worth {
    /// Answered within the deadline.
    Good,
    /// Answered, but past the deadline.
    Late,
    /// Not answered, or wrongly.
    Bad,
    /// Says nothing: the agent could not probe, or the run's end cut a probe
    /// that was not overdue yet, or the agent stood still while it was out.
    NoData,
}

impl Probe {
    /// How long it took.
    pub fn took_ns(&self) -> i64 {
        self.finished.saturating_sub(self.started)
    }

    /// How long it took at least: without the time that the agent stood still.
    fn took_at_least_ns(&self) -> i64 {
        self.took_ns().saturating_sub(self.blind_ns)
    }

    /// Cut short by the end of the run.
    pub fn is_cut_by_end(&self) -> bool {
        self.cause == Some(Cause::RunEnded)
    }

    /// Given up because the client's own patience ended (the run's end is not
    /// the client's).
    pub fn is_own_timeout(&self) -> bool {
        matches!(
            self.cause,
            Some(Cause::ResolveTimeout | Cause::ConnectTimeout | Cause::QueryTimeout)
        )
    }

    /// Judged against the deadline.
    pub fn worth(&self, deadline_ns: i64) -> Worth {
        match self.outcome {
            Outcome::Ok if self.took_ns() <= deadline_ns => Worth::Good,
            // Answered, but nobody knows whether in time: the agent stood still.
            Outcome::Ok if self.took_at_least_ns() <= deadline_ns => Worth::NoData,
            Outcome::Ok => Worth::Late,
            Outcome::AgentError => Worth::NoData,
            // Cut by the run's end, or given up by an agent that had stood still,
            // before it was overdue: it might have been answered in time.
            _ if (self.is_cut_by_end() || self.is_own_timeout())
                && self.took_at_least_ns() <= deadline_ns =>
            {
                Worth::NoData
            }
            _ => Worth::Bad,
        }
    }

    /// The agent stood still while it was out, and that may be all of its delay.
    pub fn is_blind(&self, deadline_ns: i64) -> bool {
        self.took_ns() > deadline_ns
            && self.worth(deadline_ns) == Worth::NoData
            && self.outcome != Outcome::AgentError
    }

    /// When it was known whether this probe is good: it decides to which fault
    /// a bad probe belongs. One that was overdue before a fault was asked for
    /// is not that fault's doing; one in flight and not overdue may be.
    pub fn decided_at(&self, deadline_ns: i64) -> i64 {
        self.finished.min(self.started.saturating_add(deadline_ns))
    }
}

/// One start of the agent, as this client lived it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// The clock of its stamps.
    pub clock: ClockKey,
    /// Slot k is due at `origin_ns + phase + k * interval`.
    pub origin_ns: i64,
    /// Slots due from here on are this life's: an agent that resumes a run goes
    /// on with the schedule of its life before.
    pub due_from_ns: i64,
    /// Slots due before this are.
    pub due_until_ns: i64,
    /// Slots due from here on passed without an agent: absent.
    pub alive_until_ns: i64,
}

/// Names one client of a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientKey {
    /// Agent.
    pub agent: AgentId,
    /// Target.
    pub target: TargetName,
    /// Style.
    pub style: Style,
    /// Number.
    pub client: u16,
}

/// One client with everything it saw.
#[derive(Debug, Clone)]
pub struct ClientSeries {
    /// Who.
    pub key: ClientKey,
    /// What sets it apart.
    pub kind: ClientKind,
    /// Time between its slots.
    pub interval_ns: i64,
    /// Offset of its slots from the origin.
    pub phase_ns: i64,
    /// Its own timeouts.
    pub timeouts: Timeouts,
    /// Slots are reconstructed: those between two probes count as waited.
    pub reconstructed: bool,
    /// Starts of its agent, in order.
    pub lives: Vec<Life>,
    /// In order of time.
    pub probes: Vec<Probe>,
    /// When the agent itself stood still.
    pub still: StoodStill,
}

/// One due slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot<'a> {
    /// Probed.
    Probed(&'a Probe),
    /// Passed while the client waited for this probe's answer.
    Waited {
        /// When it was due.
        due_ns: i64,
        /// What the client was waiting for.
        by: &'a Probe,
        /// Of the wait, so much the agent stood still.
        blind_ns: i64,
    },
    /// Passed because the agent itself was late (or its sample was lost).
    Overslept {
        /// When it was due.
        due_ns: i64,
    },
    /// Passed without an agent.
    Absent {
        /// When it was due.
        due_ns: i64,
    },
}

impl ClientSeries {
    /// Takes in when the agent stood still.
    pub fn stood_still(&mut self, still: &StoodStill) {
        for probe in &mut self.probes {
            probe.blind_ns = still.within(probe.started, probe.finished);
        }
        self.still = still.clone();
    }

    /// The slot before which the slots of `life` end: at least those that were
    /// probed are its own.
    fn due_slots(&self, life: &Life, last_probed: Option<u64>) -> u64 {
        let probed = last_probed.map_or(0, |slot| slot.saturating_add(1));
        if self.reconstructed {
            return probed;
        }
        let span = life
            .due_until_ns
            .saturating_sub(life.origin_ns)
            .saturating_sub(self.phase_ns);
        if span <= 0 || self.interval_ns <= 0 {
            return probed;
        }
        u64::try_from((span - 1) / self.interval_ns + 1)
            .unwrap_or(0)
            .max(probed)
    }

    /// The first slot that is life `life`'s.
    fn first_slot(&self, life: &Life) -> u64 {
        let after = life
            .due_from_ns
            .saturating_sub(life.origin_ns)
            .saturating_sub(self.phase_ns);
        if after <= 0 || self.interval_ns <= 0 || self.reconstructed {
            return 0;
        }
        u64::try_from((after - 1) / self.interval_ns + 1).unwrap_or(0)
    }

    /// Visits every due slot, in order of due time.
    pub fn for_each_slot<'a>(&'a self, mut visit: impl FnMut(Slot<'a>)) {
        let mut rest: &[Probe] = &self.probes;
        for (index, life) in self.lives.iter().enumerate() {
            let of_life = rest.partition_point(|p| usize::from(p.life) <= index);
            let (probes, later) = rest.split_at(of_life);
            rest = later;
            let due = self.due_slots(life, probes.last().map(|p| p.slot));
            let mut next = self.first_slot(life);
            let mut before: Option<&Probe> = None;
            for probe in probes {
                self.passed(life, before, next..probe.slot, &mut visit);
                visit(Slot::Probed(probe));
                next = probe.slot.saturating_add(1);
                before = Some(probe);
            }
            self.passed(life, before, next..due, &mut visit);
        }
    }

    fn passed<'a>(
        &self,
        life: &Life,
        before: Option<&'a Probe>,
        slots: std::ops::Range<u64>,
        visit: &mut impl FnMut(Slot<'a>),
    ) {
        for slot in slots {
            let due_ns = match before {
                // Slots lie at equal distances, so any probe tells the rest.
                Some(probe) => probe
                    .scheduled
                    .saturating_add(self.distance(slot.saturating_sub(probe.slot))),
                None => life
                    .origin_ns
                    .saturating_add(self.phase_ns)
                    .saturating_add(self.distance(slot)),
            };
            visit(match before {
                Some(by) if self.reconstructed || due_ns <= by.finished => {
                    let blind_ns = self.still.within(due_ns, by.finished);
                    Slot::Waited {
                        due_ns,
                        by,
                        blind_ns,
                    }
                }
                _ if due_ns >= life.alive_until_ns => Slot::Absent { due_ns },
                _ => Slot::Overslept { due_ns },
            });
        }
    }

    fn distance(&self, slots: u64) -> i64 {
        self.interval_ns
            .saturating_mul(i64::try_from(slots).unwrap_or(i64::MAX))
    }
}

impl Slot<'_> {
    /// A slot that passed while the client waited, and of which nobody knows
    /// whether it would have been answered in time.
    pub fn is_wait_without_data(&self, deadline_ns: i64) -> bool {
        let Slot::Waited {
            due_ns,
            by,
            blind_ns,
        } = self
        else {
            return false;
        };
        let wait = by.finished.saturating_sub(*due_ns);
        let in_time = |ns: i64| ns <= deadline_ns;
        if by.outcome == Outcome::Ok && in_time(wait) {
            return false;
        }
        by.worth(deadline_ns) == Worth::NoData
            || ((by.outcome == Outcome::Ok || by.is_own_timeout() || by.is_cut_by_end())
                && in_time(wait.saturating_sub(*blind_ns))
                && (*blind_ns > 0 || by.is_cut_by_end()))
    }
}

/// What became of due slots, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotCounts {
    /// All that were due.
    pub due: u64,
    /// Probed: samples stored.
    pub probed: u64,
    /// Probed and answered, however late.
    pub ok: u64,
    /// Probed and answered past the deadline.
    pub late: u64,
    /// Samples that say nothing because the agent could not probe.
    pub agent_errors: u64,
    /// Samples that say nothing because the run's end cut them in time.
    pub cut: u64,
    /// Samples of which nobody knows whether they were in time, because the agent
    /// stood still while they were out.
    pub blind: u64,
    /// Of these, answered.
    pub blind_ok: u64,
    /// Passed while the client waited.
    pub waited: u64,
    /// Of these, answered within the deadline of their own due time.
    pub waited_in_time: u64,
    /// Of these, no data, because the end cut the wait, or the agent stood still.
    pub waited_no_data: u64,
    /// Passed because the agent was late.
    pub overslept: u64,
    /// Passed without an agent.
    pub absent: u64,
}

impl SlotCounts {
    /// Takes in one slot.
    pub fn add(&mut self, slot: &Slot<'_>, deadline_ns: i64) {
        self.due += 1;
        match slot {
            Slot::Probed(probe) => {
                self.probed += 1;
                match probe.worth(deadline_ns) {
                    Worth::Good => self.ok += 1,
                    Worth::Late => {
                        self.ok += 1;
                        self.late += 1;
                    }
                    Worth::Bad => {}
                    Worth::NoData if probe.outcome == Outcome::AgentError => {
                        self.agent_errors += 1;
                    }
                    Worth::NoData if probe.is_blind(deadline_ns) => {
                        self.blind += 1;
                        let answered = u64::from(probe.outcome == Outcome::Ok);
                        self.blind_ok += answered;
                        self.ok += answered;
                    }
                    Worth::NoData => self.cut += 1,
                }
            }
            Slot::Waited { due_ns, by, .. } => {
                self.waited += 1;
                let wait = by.finished.saturating_sub(*due_ns);
                if by.outcome == Outcome::Ok && wait <= deadline_ns {
                    self.waited_in_time += 1;
                } else if slot.is_wait_without_data(deadline_ns) {
                    self.waited_no_data += 1;
                }
            }
            Slot::Overslept { .. } => self.overslept += 1,
            Slot::Absent { .. } => self.absent += 1,
        }
    }

    /// Adds another client's.
    pub fn merge(&mut self, other: &Self) {
        self.due += other.due;
        self.probed += other.probed;
        self.ok += other.ok;
        self.late += other.late;
        self.agent_errors += other.agent_errors;
        self.cut += other.cut;
        self.blind += other.blind;
        self.blind_ok += other.blind_ok;
        self.waited += other.waited;
        self.waited_in_time += other.waited_in_time;
        self.waited_no_data += other.waited_no_data;
        self.overslept += other.overslept;
        self.absent += other.absent;
    }

    /// Slots that say neither up nor down.
    pub fn no_data(&self) -> u64 {
        self.overslept
            + self.absent
            + self.agent_errors
            + self.cut
            + self.blind
            + self.waited_no_data
    }

    /// Slots answered within the deadline.
    pub fn in_time(&self) -> u64 {
        self.ok - self.late - self.blind_ok + self.waited_in_time
    }

    /// Share of slots answered within the deadline among those with data.
    pub fn availability(&self) -> Option<f64> {
        share(self.in_time(), self.due - self.no_data())
    }

    /// Share of probes answered, however late: what simple scripts print.
    pub fn answered(&self) -> Option<f64> {
        let unanswered_blind = self.blind - self.blind_ok;
        share(
            self.ok,
            self.probed - self.agent_errors - self.cut - unanswered_blind,
        )
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
pub(crate) mod testing {
    //! Short ways to write a client's history.

    use super::*;

    pub(crate) const MS: i64 = 1_000_000;
    pub(crate) const S: i64 = 1_000 * MS;

    pub(crate) fn clock() -> ClockKey {
        ClockKey {
            boot_id: "test".into(),
            time_namespace: 0,
        }
    }

    /// A good answer of backend 0 on connection 1, due and begun at `at`.
    pub(crate) fn ok(slot: u64, at: i64, took: i64) -> Probe {
        Probe {
            life: 0,
            slot,
            scheduled: at,
            started: at,
            finished: at + took,
            blind_ns: 0,
            phase: Phase::Query,
            outcome: Outcome::Ok,
            cause: None,
            error_code: None,
            error: None,
            connection: Some(1),
            connection_id: Some(7),
            backend: Some(0),
        }
    }

    /// A bad probe.
    pub(crate) fn bad(slot: u64, at: i64, took: i64, outcome: Outcome, cause: Cause) -> Probe {
        Probe {
            outcome,
            cause: Some(cause),
            connection: None,
            connection_id: None,
            backend: None,
            ..ok(slot, at, took)
        }
    }

    pub(crate) fn series(interval: i64, until: i64, probes: Vec<Probe>) -> ClientSeries {
        ClientSeries {
            key: ClientKey {
                agent: "a".parse().expect("a name"),
                target: "t".parse().expect("a name"),
                style: Style::Reused,
                client: 0,
            },
            kind: ClientKind::Bare,
            interval_ns: interval,
            phase_ns: 0,
            timeouts: Timeouts {
                resolve_ns: None,
                connect_ns: None,
                query_ns: None,
            },
            reconstructed: false,
            lives: vec![Life {
                clock: clock(),
                origin_ns: 0,
                due_from_ns: 0,
                due_until_ns: until,
                alive_until_ns: until,
            }],
            probes,
            still: StoodStill::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::*;
    use super::*;

    const DEADLINE: i64 = 250 * MS;

    fn counts(series: &ClientSeries) -> SlotCounts {
        let mut counts = SlotCounts::default();
        series.for_each_slot(|slot| counts.add(&slot, DEADLINE));
        assert_eq!(
            counts.due,
            counts.probed + counts.waited + counts.overslept + counts.absent,
            "conservation"
        );
        counts
    }

    #[track_caller]
    fn check_worth(probe: Probe, expect: Worth) {
        assert_eq!(probe.worth(DEADLINE), expect, "{probe:?}");
    }

    #[test]
    fn a_probe_is_judged_by_its_own_duration() {
        check_worth(ok(0, 0, 250 * MS), Worth::Good);
        check_worth(ok(0, 0, 250 * MS + 1), Worth::Late);
        // Begun a second late by the agent, answered at once.
        check_worth(
            Probe {
                started: S,
                finished: S + MS,
                ..ok(0, 0, 0)
            },
            Worth::Good,
        );
        check_worth(
            bad(0, 0, MS, Outcome::ConnectFailed, Cause::Refused),
            Worth::Bad,
        );
        check_worth(
            bad(0, 0, MS, Outcome::StateLost, Cause::CanaryBroken),
            Worth::Bad,
        );
        check_worth(
            bad(0, 0, MS, Outcome::AgentError, Cause::NoFileHandles),
            Worth::NoData,
        );
        check_worth(
            bad(0, 0, MS, Outcome::TimedOut, Cause::RunEnded),
            Worth::NoData,
        );
        check_worth(bad(0, 0, S, Outcome::TimedOut, Cause::RunEnded), Worth::Bad);
    }

    /// The same client, whose agent stood still from `from` to `to`.
    fn stood(mut series: ClientSeries, from: i64, to: i64) -> ClientSeries {
        series.stood_still(&StoodStill::new(vec![(from, to)]));
        series
    }

    #[test]
    fn a_probe_out_while_the_agent_stood_still_says_nothing_of_the_deadline() {
        let history = |probe: Probe| {
            let rest = [ok(8, 800 * MS, MS), ok(9, 900 * MS, MS)];
            series(100 * MS, S, [vec![probe], rest.to_vec()].concat())
        };
        // Begun at 0, the agent stood still from 10 ms on; 690 ms of 700.
        let c = counts(&stood(history(ok(0, 0, 700 * MS)), 10 * MS, 700 * MS));
        assert_eq!((c.ok, c.late, c.blind, c.blind_ok), (3, 0, 1, 1));
        assert_eq!((c.waited, c.waited_in_time, c.waited_no_data), (7, 3, 4));
        assert_eq!((c.no_data(), c.in_time()), (5, 5));
        assert_eq!(c.availability(), Some(1.0));
        assert_eq!(c.answered(), Some(1.0));
        // Given up by itself: whether the answer came in time, nobody knows.
        let given_up = bad(0, 0, 700 * MS, Outcome::TimedOut, Cause::QueryTimeout);
        let c = counts(&stood(history(given_up), 10 * MS, 700 * MS));
        assert_eq!((c.ok, c.blind, c.blind_ok, c.cut), (2, 1, 0, 0));
        assert_eq!((c.waited_in_time, c.waited_no_data), (0, 7));
        assert_eq!(c.availability(), Some(1.0));
        // The agent stood still for too short a time to explain it.
        let c = counts(&stood(history(ok(0, 0, 700 * MS)), 10 * MS, 300 * MS));
        assert_eq!((c.ok, c.late, c.blind), (3, 1, 0));
        // From 100 ms on: 600 ms with 200 blind are late; 400 ms without any too.
        assert_eq!((c.waited_in_time, c.waited_no_data), (3, 0));
        // An error that the other side sent is one, whenever it is read.
        let reset = bad(0, 0, 700 * MS, Outcome::ConnectionLost, Cause::Reset);
        let c = counts(&stood(history(reset), 10 * MS, 700 * MS));
        assert_eq!((c.ok, c.blind, c.no_data()), (2, 0, 0));
    }

    #[test]
    fn slots_passed_in_a_wait_are_answered_only_within_the_deadline_of_each() {
        // Due at 0, answered at 700 ms; slots at 100 .. 700 pass in the wait.
        let c = counts(&series(
            100 * MS,
            S,
            vec![ok(0, 0, 700 * MS), ok(8, 800 * MS, MS), ok(9, 900 * MS, MS)],
        ));
        assert_eq!((c.due, c.probed, c.waited, c.overslept), (10, 3, 7, 0));
        assert_eq!(c.waited_in_time, 3, "500, 600 and 700 ms");
        assert_eq!(c.in_time(), 5);
        assert_eq!(c.answered(), Some(1.0));
        assert_eq!(c.availability(), Some(0.5));
    }

    #[test]
    fn a_late_agent_and_its_own_errors_are_no_data() {
        let c = counts(&series(
            100 * MS,
            S,
            vec![
                ok(0, 0, MS),
                ok(5, 500 * MS, MS),
                bad(6, 600 * MS, MS, Outcome::AgentError, Cause::NoFileHandles),
            ],
        ));
        assert_eq!((c.overslept, c.agent_errors, c.no_data()), (7, 1, 8));
        assert_eq!(c.availability(), Some(1.0));
    }

    #[test]
    fn a_vanished_agent_leaves_absent_slots() {
        let mut s = series(100 * MS, S, vec![ok(0, 0, MS), ok(1, 100 * MS, MS)]);
        s.lives[0].alive_until_ns = 101 * MS;
        let c = counts(&s);
        assert_eq!((c.due, c.absent, c.overslept), (10, 8, 0));
        assert_eq!(c.availability(), Some(1.0));
    }

    #[test]
    fn two_lives_count_each_slot_once() {
        let mut s = series(100 * MS, 500 * MS, vec![ok(0, 0, MS)]);
        s.lives[0].alive_until_ns = 50 * MS;
        s.lives.push(Life {
            origin_ns: 500 * MS,
            due_from_ns: 500 * MS,
            due_until_ns: S,
            alive_until_ns: S,
            clock: clock(),
        });
        s.probes.extend((0..5u64).map(|k| Probe {
            life: 1,
            ..ok(k, 500 * MS + k as i64 * 100 * MS, MS)
        }));
        let c = counts(&s);
        assert_eq!((c.due, c.probed, c.absent), (10, 6, 4));
    }

    #[test]
    fn a_resumed_life_goes_on_with_the_schedule() {
        let mut s = series(100 * MS, 700 * MS, vec![ok(0, 0, MS), ok(1, 100 * MS, MS)]);
        s.lives[0].alive_until_ns = 150 * MS;
        s.lives.push(Life {
            due_from_ns: 700 * MS,
            due_until_ns: S,
            alive_until_ns: S,
            ..s.lives[0].clone()
        });
        s.probes.extend((7..10u64).map(|k| Probe {
            life: 1,
            ..ok(k, k as i64 * 100 * MS, MS)
        }));
        let c = counts(&s);
        assert_eq!((c.due, c.probed, c.absent, c.overslept), (10, 5, 5, 0));
    }

    #[test]
    fn reconstructed_slots_between_two_probes_are_waited() {
        let mut s = series(
            500 * MS,
            0,
            vec![
                ok(0, 0, MS),
                bad(1, 508 * MS, 5 * S, Outcome::TimedOut, Cause::QueryTimeout),
                ok(12, 6 * S, MS),
            ],
        );
        s.reconstructed = true;
        let c = counts(&s);
        assert_eq!((c.due, c.probed, c.waited, c.in_time()), (13, 3, 10, 2));
    }

    #[test]
    fn an_empty_client_has_no_shares() {
        let mut s = series(100 * MS, S, vec![]);
        s.lives[0].alive_until_ns = 0;
        let c = counts(&s);
        assert_eq!((c.due, c.absent), (10, 10));
        assert_eq!((c.availability(), c.answered()), (None, None));
    }
}
