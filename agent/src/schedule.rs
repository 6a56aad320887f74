//! When the next probe of one client is due. Pure: time is an argument.
//!
//! The loop is open: a slot's due time never moves because an earlier probe was
//! slow. Each slot of an incarnation ends in exactly one of three ways:
//! `sampled`, `waited` (it passed while the client waited for an answer) or
//! `overslept` (the agent itself was late: no data, never the target's fault).
//! Slots before the incarnation began to probe are nobody's: the reader counts
//! them as absent.

use std::ops::Range;

use gapscope_proto::plan::ClientGroup;

/// The slots of one client in one incarnation.
#[derive(Debug, Clone)]
pub struct Schedule {
    first_due_ns: i64,
    interval_ns: i64,
    late_limit_ns: i64,
    first_slot: u64,
    next_slot: u64,
    probing: bool,
    last_probed_due_ns: Option<i64>,
    skipped: u64,
    counts: Counts,
    /// The slots counted last in either way: the end of a run that is stopped
    /// is known only afterwards, and what was counted beyond it is taken back.
    last_waited: Range<u64>,
    last_overslept: Range<u64>,
}

/// A slot to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Its number.
    pub number: u64,
    /// When it is due, RAW ns.
    pub due_ns: i64,
}

/// What to do on waking up for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// Probe.
    Probe(Slot),
    /// Too late: ask for the next slot.
    Overslept,
}

/// What became of the slots of one incarnation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// All of them.
    pub due: u64,
    /// Probed.
    pub sampled: u64,
    /// Passed while the client waited for an answer.
    pub waited: u64,
    /// Passed because the agent was late.
    pub overslept: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.due += other.due;
        self.sampled += other.sampled;
        self.waited += other.waited;
        self.overslept += other.overslept;
    }
}

impl Schedule {
    /// Client `index` (0 ..) of a group, whose slots count from `origin_ns`.
    /// This incarnation answers for slots due at `begin_ns` or later. A slot
    /// woken up for later than the shorter of interval and deadline is overslept.
    pub fn new(
        group: &ClientGroup,
        index: u16,
        origin_ns: i64,
        begin_ns: i64,
        deadline_ns: u64,
    ) -> Self {
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let mut schedule = Self {
            first_due_ns: origin_ns.saturating_add(signed(group.phase_ns(index))),
            interval_ns: signed(group.interval_ns).max(1),
            late_limit_ns: signed(group.interval_ns.min(deadline_ns)),
            first_slot: 0,
            next_slot: 0,
            probing: false,
            last_probed_due_ns: None,
            skipped: 0,
            counts: Counts::default(),
            last_waited: 0..0,
            last_overslept: 0..0,
        };
        schedule.first_slot = schedule.first_slot_at_or_after(begin_ns);
        schedule.next_slot = schedule.first_slot;
        schedule
    }

    fn due_ns(&self, slot: u64) -> i64 {
        let slot = i64::try_from(slot).unwrap_or(i64::MAX);
        self.first_due_ns
            .saturating_add(self.interval_ns.saturating_mul(slot))
    }

    fn first_slot_at_or_after(&self, ns: i64) -> u64 {
        let after = i128::from(ns) - i128::from(self.first_due_ns);
        if after <= 0 {
            return 0;
        }
        let interval = i128::from(self.interval_ns);
        u64::try_from((after + interval - 1) / interval).unwrap_or(u64::MAX)
    }

    /// The client is free again at `now_ns`: slots that have passed meanwhile
    /// are waited.
    pub fn free(&mut self, now_ns: i64) {
        if self.probing {
            self.waited_until(self.first_slot_at_or_after(now_ns));
            self.probing = false;
        }
    }

    /// The slot to wait for, or none if it is due at `end_ns` or later. One that
    /// has passed since the client was free, by no more than is tolerated, is
    /// still to be probed; others that have passed are overslept.
    pub fn next(&mut self, now_ns: i64, end_ns: i64) -> Option<Slot> {
        self.free(now_ns);
        let mut due_ns = self.due_ns(self.next_slot);
        if now_ns.saturating_sub(due_ns) > self.late_limit_ns {
            let until = self
                .first_slot_at_or_after(now_ns)
                .min(self.first_slot_at_or_after(end_ns));
            self.overslept_until(until);
            due_ns = self.due_ns(self.next_slot);
        }
        (due_ns < end_ns).then_some(Slot {
            number: self.next_slot,
            due_ns,
        })
    }

    /// The client woke up at `now_ns` for the slot that [`Self::next`] gave.
    pub fn wake(&mut self, now_ns: i64) -> Wake {
        let due_ns = self.due_ns(self.next_slot);
        if now_ns.saturating_sub(due_ns) > self.late_limit_ns {
            // `next` counts what has passed.
            return Wake::Overslept;
        }
        let slot = Slot {
            number: self.next_slot,
            due_ns,
        };
        self.counts.sampled += 1;
        self.next_slot += 1;
        self.probing = true;
        self.last_probed_due_ns = Some(due_ns);
        Wake::Probe(slot)
    }

    /// The client woke up for the slot that [`Self::next`] gave and must not
    /// probe, for a reason of the agent's own: the slot is overslept.
    pub fn skip(&mut self) -> Wake {
        self.overslept_until(self.next_slot.saturating_add(1));
        self.skipped += 1;
        Wake::Overslept
    }

    /// How many slots were skipped.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// When the last probed slot was due.
    pub fn last_probed_due_ns(&self) -> Option<i64> {
        self.last_probed_due_ns
    }

    fn waited_until(&mut self, until: u64) {
        if until > self.next_slot {
            self.last_waited = self.next_slot..until;
            self.counts.waited += until - self.next_slot;
            self.next_slot = until;
        }
    }

    fn overslept_until(&mut self, until: u64) {
        if until > self.next_slot {
            self.last_overslept = self.next_slot..until;
            self.counts.overslept += until - self.next_slot;
            self.next_slot = until;
        }
    }

    /// The books at the end. `end_ns` must be later than every probed slot; it
    /// may be earlier than the last call of [`Self::free`] and [`Self::next`].
    pub fn finish(&mut self, end_ns: i64) -> Counts {
        let until = self.first_slot_at_or_after(end_ns);
        if self.probing {
            self.waited_until(until);
        } else {
            self.overslept_until(until);
        }
        let beyond = |range: &Range<u64>| range.end.saturating_sub(range.start.max(until));
        self.counts.waited -= beyond(&self.last_waited);
        self.counts.overslept -= beyond(&self.last_overslept);
        // Counted from the definition, not from what was done, so that the
        // books can fail to balance.
        self.counts.due = until.saturating_sub(self.first_slot);
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapscope_proto::plan::{ClientKind, Timeouts};
    use gapscope_proto::sample::Style;
    use proptest::prelude::*;

    const MS: i64 = 1_000_000;

    fn group(clients: u16, interval_ms: i64) -> ClientGroup {
        ClientGroup {
            target: "t".parse().expect("a name"),
            style: Style::Reused,
            kind: ClientKind::Bare,
            first_client: 0,
            clients,
            interval_ns: (interval_ms * MS) as u64,
            timeouts: Timeouts {
                resolve_ns: None,
                connect_ns: None,
                query_ns: None,
            },
        }
    }

    fn schedule(index: u16, begin_ms: i64) -> Schedule {
        Schedule::new(
            &group(4, 10),
            index,
            1_000 * MS,
            begin_ms * MS,
            250 * MS as u64,
        )
    }

    #[test]
    fn clients_are_spread_over_the_interval() {
        for (index, due_us) in [(0u16, 0i64), (1, 2_500), (2, 5_000), (3, 7_500)] {
            let slot = schedule(index, 0).next(0, i64::MAX).expect("a slot");
            assert_eq!(
                slot,
                Slot {
                    number: 0,
                    due_ns: 1_000 * MS + due_us * 1_000
                }
            );
        }
    }

    #[test]
    fn a_slow_probe_moves_nothing() {
        let mut s = schedule(0, 0);
        s.next(0, i64::MAX).expect("a slot");
        assert!(matches!(
            s.wake(1_000 * MS),
            Wake::Probe(Slot { number: 0, .. })
        ));
        // Answered after 35 ms: slots 1, 2, 3 passed, 4 is the next.
        let slot = s.next(1_035 * MS, i64::MAX).expect("a slot");
        assert_eq!(
            slot,
            Slot {
                number: 4,
                due_ns: 1_040 * MS
            }
        );
        assert_eq!(
            s.finish(1_040 * MS),
            Counts {
                due: 4,
                sampled: 1,
                waited: 3,
                overslept: 0
            }
        );
    }

    #[test]
    fn an_agent_that_slept_says_so() {
        let mut s = schedule(0, 0);
        s.next(0, i64::MAX).expect("a slot");
        assert_eq!(s.wake(1_010 * MS + 1), Wake::Overslept);
        let slot = s.next(1_010 * MS + 1, i64::MAX).expect("a slot");
        assert_eq!(slot.number, 2);
        assert_eq!(
            s.finish(1_020 * MS),
            Counts {
                due: 2,
                sampled: 0,
                waited: 0,
                overslept: 2
            }
        );
    }

    #[test]
    fn a_stall_behind_the_answer_is_the_agents_own() {
        let mut s = schedule(0, 0);
        s.next(0, i64::MAX).expect("a slot");
        s.wake(1_000 * MS);
        s.free(1_012 * MS);
        // Slot 1 was waited; slot 2 (1,020) is 4 ms late: still probed.
        let slot = s.next(1_024 * MS, i64::MAX).expect("a slot");
        assert_eq!(slot.number, 2);
        assert!(matches!(s.wake(1_024 * MS), Wake::Probe(_)));
        s.free(1_025 * MS);
        // Slots 3 and 4 passed while the spool was behind.
        assert_eq!(s.next(1_041 * MS, i64::MAX).expect("a slot").number, 5);
        let counts = s.finish(1_050 * MS);
        assert_eq!(
            counts,
            Counts {
                due: 5,
                sampled: 2,
                waited: 1,
                overslept: 2
            }
        );
    }

    #[test]
    fn a_run_stopped_under_a_probe_counts_to_its_end_only() {
        let mut s = schedule(0, 0);
        s.next(0, i64::MAX).expect("a slot");
        s.wake(1_000 * MS);
        // Stopped at 1,035; the probe is given up at 1,535.
        s.free(1_535 * MS);
        s.next(1_536 * MS, i64::MAX).expect("a slot");
        let counts = s.finish(1_035 * MS);
        assert_eq!(
            counts,
            Counts {
                due: 4,
                sampled: 1,
                waited: 3,
                overslept: 0
            }
        );
    }

    #[test]
    fn a_skipped_slot_is_the_agents_own_and_the_next_one_is_probed() {
        let mut s = schedule(0, 0);
        for slot in 0..5 {
            let due = s.next((1_000 + 10 * slot) * MS, i64::MAX).expect("a slot");
            assert_eq!(due.number, slot as u64);
            if slot < 3 {
                assert_eq!(s.skip(), Wake::Overslept);
            } else {
                assert!(matches!(s.wake(due.due_ns), Wake::Probe(_)));
                s.free(due.due_ns + MS);
            }
        }
        assert_eq!(s.skipped(), 3);
        let counts = s.finish(1_050 * MS);
        assert_eq!(
            counts,
            Counts {
                due: 5,
                sampled: 2,
                waited: 0,
                overslept: 3
            }
        );
    }

    #[test]
    fn a_restarted_agent_goes_on_counting() {
        let mut s = schedule(0, 1_501);
        assert_eq!(s.next(1_501 * MS, i64::MAX).expect("a slot").number, 51);
        assert_eq!(s.finish(1_520 * MS).due, 1);
    }

    #[test]
    fn slots_due_at_the_end_are_not_due() {
        let mut s = schedule(0, 0);
        assert!(s.next(0, 1_000 * MS).is_none());
        assert!(s.next(0, 1_000 * MS + 1).is_some());
    }

    proptest! {
        /// due = sampled + waited + overslept, whatever happens, and no slot is
        /// probed twice or out of order.
        #[test]
        fn the_books_balance(
            index in 0u16..4, begin in 900i64..1_100, end in 1_000i64..1_400, planned_end in 1_000i64..1_400,
            steps in proptest::collection::vec((0i64..30, 0i64..60, 0i64..25), 0..80),
        ) {
            let mut s = schedule(index, begin);
            let mut now = begin * MS;
            let mut probed = Vec::new();
            let mut last_end = end.min(planned_end) * MS;
            let mut free = begin * MS;
            for (late, took, stalled) in steps {
                let Some(slot) = s.next(now, planned_end * MS) else { break };
                // Stopped: what was counted in the last round may lie beyond.
                if now >= end * MS { break }
                // Future when the client was free, and not long past now.
                prop_assert!(slot.due_ns >= free);
                prop_assert!(now - slot.due_ns <= 10 * MS);
                let late = late.max((now - slot.due_ns + MS - 1) / MS);
                now = slot.due_ns + late * MS;
                if let Wake::Probe(slot) = s.wake(now) {
                    prop_assert!(late * MS <= 10 * MS);
                    prop_assert!(slot.due_ns >= begin * MS);
                    probed.push(slot.number);
                    now += took * MS;
                    s.free(now);
                    free = now;
                    now += stalled * MS;
                } else {
                    prop_assert!(late * MS > 10 * MS);
                }
            }
            prop_assert!(probed.is_sorted_by(|a, b| a < b));
            if let Some(due) = s.last_probed_due_ns() {
                last_end = last_end.max(due + 1);
            }
            let counts = s.finish(last_end);
            prop_assert_eq!(counts.sampled, probed.len() as u64);
            prop_assert_eq!(counts.due, counts.sampled + counts.waited + counts.overslept);
        }
    }
}
