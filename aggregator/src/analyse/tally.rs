//! What is counted and measured over a row's slots: of the whole time, and of its
//! parts before, during and after the faults.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use gapscope_proto::plan::ClientKind;
use gapscope_proto::sample::{Cause, Outcome, Phase};

use super::changes::{Changes, changes};
use super::latency::{Quantiles, Values};
use super::row::Context;
use super::series::{ClientSeries, Slot, SlotCounts, Worth};

/// Values of the whole time, and of its parts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Split<T> {
    /// All.
    pub all: T,
    /// Before the first fault.
    pub healthy: T,
    /// While a fault had its effect.
    pub during: T,
    /// After a fault had its effect.
    pub after: T,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Healthy,
    During,
    After,
}

impl<T> Split<T> {
    fn join(&mut self, other: &Self, join: impl Fn(&mut T, &T)) {
        join(&mut self.all, &other.all);
        join(&mut self.healthy, &other.healthy);
        join(&mut self.during, &other.during);
        join(&mut self.after, &other.after);
    }

    fn part(&mut self, part: Part) -> &mut T {
        match part {
            Part::Healthy => &mut self.healthy,
            Part::During => &mut self.during,
            Part::After => &mut self.after,
        }
    }
}

/// How often something went wrong, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorCount {
    /// Probes.
    pub count: u64,
    /// End of the first.
    pub first_ns: i64,
    /// End of the last.
    pub last_ns: i64,
}

/// Key of an error: outcome, cause, MySQL number.
pub type ErrorKey = (Outcome, Option<Cause>, Option<u16>);

/// Answers that came from another backend than the ones before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switches {
    /// How often, over all clients.
    pub count: u64,
    /// The first.
    pub first_ns: i64,
    /// The last.
    pub last_ns: i64,
}

/// What a pool's pings told, over all clients.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolCounts {
    /// The ping failed and the client took a new connection, by cause; only where
    /// that one then answered.
    pub dead_at_ping: BTreeMap<Option<Cause>, u64>,
    /// The ping was answered and the statement behind it was not, by cause:
    /// whatever answered the ping did not have the backend that the statement
    /// needed.
    pub failed_after_ping: BTreeMap<Option<Cause>, u64>,
}

/// Of the parts' values and of all together, which are gathered only here: each part
/// holds every value once.
pub(super) fn quantiles(values: Split<Values>) -> Split<Quantiles> {
    let Split {
        mut all,
        healthy,
        during,
        after,
    } = values;
    let parts = [&healthy, &during, &after];
    let has_one = parts.iter().filter(|part| !part.is_empty()).count() == 1;
    if !has_one {
        parts.into_iter().for_each(|part| all.merge(part));
    }
    let mut found = Split {
        all: all.quantiles(),
        healthy: healthy.quantiles(),
        during: during.quantiles(),
        after: after.quantiles(),
    };
    if has_one {
        let parts = [&found.healthy, &found.during, &found.after];
        let whole = parts.into_iter().find(|part| part.count > 0);
        found.all = whole.cloned().unwrap_or_default();
    }
    found
}

/// Slots, latencies, errors and changes of one client or several.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) slots: Split<SlotCounts>,
    pub(super) latency: Split<Values>,
    pub(super) response: Split<Values>,
    pub(super) changes: Changes,
    pub(super) healthy_backends_a_client: usize,
    pub(super) errors: BTreeMap<ErrorKey, ErrorCount>,
    pub(super) switches: BTreeMap<(u32, u32), Switches>,
    pub(super) pool: PoolCounts,
}

fn add_all<K: Ord, V>(into: &mut BTreeMap<K, V>, more: BTreeMap<K, V>, join: impl Fn(&mut V, V)) {
    for (key, value) in more {
        match into.entry(key) {
            Entry::Occupied(mut known) => join(known.get_mut(), value),
            Entry::Vacant(place) => {
                place.insert(value);
            }
        }
    }
}

impl Tally {
    /// One client's.
    pub(super) fn of(client: &ClientSeries, context: &Context<'_>, effects: &[(i64, i64)]) -> Self {
        let mut tally = Self::default();
        tally.take(client, context, effects);
        tally
    }

    /// This and another client's.
    pub(super) fn and(mut self, other: Self) -> Self {
        let Self {
            slots,
            latency,
            response,
            changes,
            healthy_backends_a_client,
            errors,
            switches,
            pool,
        } = other;
        self.slots.join(&slots, SlotCounts::merge);
        self.latency.join(&latency, Values::merge);
        self.response.join(&response, Values::merge);
        self.changes.connections += changes.connections;
        self.changes.sessions += changes.sessions;
        self.changes.backends += changes.backends;
        let own = &mut self.changes;
        own.healthy_backends.extend(changes.healthy_backends);
        own.all_backends.extend(changes.all_backends);
        self.healthy_backends_a_client = self
            .healthy_backends_a_client
            .max(healthy_backends_a_client);
        add_all(&mut self.errors, errors, |known, more| {
            known.count += more.count;
            known.first_ns = known.first_ns.min(more.first_ns);
            known.last_ns = known.last_ns.max(more.last_ns);
        });
        add_all(&mut self.switches, switches, |known, more| {
            known.count += more.count;
            known.first_ns = known.first_ns.min(more.first_ns);
            known.last_ns = known.last_ns.max(more.last_ns);
        });
        let add = |known: &mut u64, more| *known += more;
        add_all(&mut self.pool.dead_at_ping, pool.dead_at_ping, add);
        add_all(
            &mut self.pool.failed_after_ping,
            pool.failed_after_ping,
            add,
        );
        self
    }

    /// Into one that is empty.
    fn take(&mut self, client: &ClientSeries, context: &Context<'_>, effects: &[(i64, i64)]) {
        let deadline = context.deadline_ns;
        let part_of = |at: i64| {
            if at < context.first_fault_ns {
                Part::Healthy
            } else if effects.iter().any(|(from, to)| (*from..=*to).contains(&at)) {
                Part::During
            } else {
                Part::After
            }
        };
        client.for_each_slot(|slot| {
            let part = part_of(match &slot {
                Slot::Probed(probe) => probe.decided_at(deadline),
                Slot::Waited { due_ns, by, .. } => by.finished.min(due_ns.saturating_add(deadline)),
                Slot::Overslept { due_ns } | Slot::Absent { due_ns } => *due_ns,
            });
            self.slots.part(part).add(&slot, deadline);
            self.response.part(part).add_response(&slot, deadline);
            let Slot::Probed(probe) = slot else { return };
            if probe.is_blind(deadline) {
                return;
            }
            if probe.outcome == Outcome::Ok {
                self.latency.part(part).answered(probe.took_ns());
            } else if probe.worth(deadline) == Worth::Bad || probe.outcome == Outcome::AgentError {
                let error = self
                    .errors
                    .entry((probe.outcome, probe.cause, probe.error_code))
                    .or_insert(ErrorCount {
                        count: 0,
                        first_ns: probe.finished,
                        last_ns: probe.finished,
                    });
                error.count += 1;
                error.first_ns = error.first_ns.min(probe.finished);
                error.last_ns = error.last_ns.max(probe.finished);
            }
        });
        let slots = &mut self.slots;
        for part in [&slots.healthy, &slots.during, &slots.after] {
            slots.all.merge(part);
        }
        if client.kind == ClientKind::Pool {
            self.take_pings(client, deadline);
        }
        let of_client = changes(&client.probes, context.first_fault_ns);
        self.healthy_backends_a_client = self
            .healthy_backends_a_client
            .max(of_client.healthy_backends.len());
        for (at, from, to) in &of_client.switches {
            let switches = self.switches.entry((*from, *to)).or_insert(Switches {
                count: 0,
                first_ns: *at,
                last_ns: *at,
            });
            switches.count += 1;
            switches.first_ns = switches.first_ns.min(*at);
            switches.last_ns = switches.last_ns.max(*at);
        }
        self.changes.connections += of_client.connections;
        self.changes.sessions += of_client.sessions;
        self.changes.backends += of_client.backends;
        self.changes
            .healthy_backends
            .extend(of_client.healthy_backends);
        self.changes.all_backends.extend(of_client.all_backends);
    }

    /// A connection that an earlier probe used was pinged before this one.
    fn take_pings(&mut self, client: &ClientSeries, deadline: i64) {
        for pair in client.probes.windows(2) {
            let [before, probe] = pair else { continue };
            let pinged = before.life == probe.life
                && before.connection.is_some()
                && before.connection == probe.connection;
            if probe.outcome == Outcome::Ok && probe.cause.is_some() {
                *self.pool.dead_at_ping.entry(probe.cause).or_insert(0) += 1;
            } else if pinged && probe.phase == Phase::Query && probe.worth(deadline) == Worth::Bad {
                *self.pool.failed_after_ping.entry(probe.cause).or_insert(0) += 1;
            }
        }
    }
}
