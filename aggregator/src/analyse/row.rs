//! All that is said of one agent's clients of one target, style and kind.
//!
//! The time is split three ways. Healthy: decided before the first fault was
//! asked for. During: from a fault's `asked` until its last hurt client is back,
//! at least for a second. After: the rest. A probe that a fault caught in
//! flight counts as during, whenever it was due.

use std::collections::BTreeMap;

use gapscope_proto::fault::Span;
use gapscope_proto::ids::{AgentId, TargetName};
use gapscope_proto::plan::{ClientKind, Timeouts};
use gapscope_proto::sample::{Cause, Style};

use super::before::{Before, longest_before};
use super::changes::Changes;
use super::fate::Exposure;
use super::fault::{LocalFault, Seen, exposure_window_ns, look};
use super::hole::holes;
use super::latency::Quantiles;
use super::merge::{self, Merged};
use super::parallel;
use super::series::{ClientSeries, SlotCounts};
use super::stretch::{Blind, MaxGap, Stretch, stretches};
pub use super::tally::{ErrorCount, ErrorKey, PoolCounts, Split, Switches};
use super::tally::{Tally, quantiles};
use super::unseen::longest_unseen_ns;
use super::verdict::{Judged, Judgement, Verdict, judge};

/// What the analysis of a row needs beside the clients. Times are those of the
/// row's agent.
#[derive(Debug, Clone)]
pub struct Context<'a> {
    /// How late an answer may be and still count.
    pub deadline_ns: i64,
    /// When the first fault was asked for; the number's limit for none.
    pub first_fault_ns: i64,
    /// The judged faults, in order of `asked`.
    pub faults: &'a [LocalFault],
    /// When the agent itself was late by more than the deadline.
    pub pauses: &'a [(i64, i64)],
}

/// Watched for less than this after it was asked for, a fault that was not seen has not
/// been shown to have had no effect: an orderly end of a server takes longer.
const LEAST_WATCHED_NS: i64 = 2_000_000_000;

/// Whose outage a window is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// One client's.
    Client(u16),
    /// Somebody's.
    Any,
    /// Everybody's at once.
    All,
}

/// An outage as it is reported. Times are the agent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Whose.
    pub scope: Scope,
    /// Begin of the last good probe before; none: open to the left.
    pub from_ns: Option<i64>,
    /// End of the first good probe after; none: ongoing.
    pub to_ns: Option<i64>,
    /// Begin of the first bad probe; of one client only.
    pub first_bad_ns: Option<i64>,
    /// End of the first bad probe and begin of the last: out at both, if in this
    /// order; of one client only.
    pub inner_ns: Option<(i64, i64)>,
    /// Longest time without an answer; of one client only.
    pub gap_ns: Option<i64>,
    /// It is at least so long.
    pub gap_is_at_least: bool,
    /// The service was out for at least so long.
    pub lower_ns: i64,
    /// At most so long; none: unbounded.
    pub upper_ns: Option<i64>,
    /// Spent in the client's own timeouts; of one client only.
    pub own_timeout_ns: Option<i64>,
    /// Probes not answered, and answered late; of one client only.
    pub bad: u64,
    /// Probes answered late.
    pub late: u64,
    /// No good probe after.
    pub ongoing: bool,
    /// No good probe before or after.
    pub never_served: bool,
    /// Part of it was not watched.
    pub no_data: bool,
    /// The fault in whose horizon it began.
    pub fault: Option<u32>,
}

/// A row's clients in one fault. Times are the agent's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultRow {
    /// The fault's id.
    pub fault: u32,
    /// When it was asked for.
    pub asked: Span,
    /// End of the last probe that is put down to it.
    pub watched_until_ns: i64,
    /// What became of the clients.
    pub judgement: Judgement,
    /// Every client: number, exposure, fate, and what happened when.
    pub clients: Vec<(u16, Seen)>,
    /// The subject answered to the end: the fault had no effect that was seen.
    pub without_effect: bool,
    /// Longest time without an answer of an exposed or hurt client.
    pub gap: MaxGap,
    /// The client's own timeouts in that client's longest window.
    pub own_timeout_ns: i64,
    /// That window's bounds, if there is one.
    pub outage: Option<(i64, Option<i64>)>,
    /// Of the first fault, where nobody was hurt: the longest time without an answer that
    /// was over before it.
    pub before: Option<Before>,
    /// The longest outage of such a client that can have passed unseen, see
    /// [`super::unseen`].
    pub unseen_ns: i64,
    /// Begin of the first bad probe, and when it was known to be bad.
    pub first_bad: Option<(i64, i64)>,
    /// First answer from another backend to a client that was held.
    pub first_from_survivor: Option<i64>,
    /// Last hurt client good again; none if nobody was hurt or somebody is not.
    pub all_back: Option<i64>,
    /// Last answer from the subject.
    pub last_from_subject: Option<i64>,
    /// Begin of the last new connection that led to the subject.
    pub last_connect_to_subject: Option<i64>,
}

/// All that is said of one agent's clients of one target, style and kind.
#[derive(Debug, Clone)]
pub struct Row {
    /// Who probed.
    pub agent: AgentId,
    /// What.
    pub target: TargetName,
    /// How.
    pub style: Style,
    /// Which kind of client.
    pub kind: ClientKind,
    /// How many clients.
    pub clients: usize,
    /// Time between a client's slots.
    pub interval_ns: i64,
    /// The clients' timeouts.
    pub timeouts: Timeouts,
    /// First origin of the agent: zero of the row's times.
    pub origin_ns: i64,
    /// What became of all slots.
    pub slots: Split<SlotCounts>,
    /// Of answered probes, their own duration.
    pub latency: Split<Quantiles>,
    /// Of due slots, the time to the answer.
    pub response: Split<Quantiles>,
    /// Connections, sessions, backends.
    pub changes: Changes,
    /// Most backends that one client saw while healthy.
    pub healthy_backends_a_client: usize,
    /// Longest time a client went without an answer.
    pub max_gap: MaxGap,
    /// Of each client: times of which nothing is known, an outage included.
    pub holes: Vec<Vec<(i64, i64)>>,
    /// The longest outage of a client that can have passed unseen, see
    /// [`super::unseen`].
    pub unseen_ns: i64,
    /// Outages of each client, of any, and of all.
    pub windows: Vec<Window>,
    /// Client-time lost: at least, at most.
    pub client_time_lost: (i64, Option<i64>),
    /// What went wrong.
    pub errors: BTreeMap<ErrorKey, ErrorCount>,
    /// Backend switches by (from, to).
    pub switches: BTreeMap<(u32, u32), Switches>,
    /// Each judged fault.
    pub faults: Vec<FaultRow>,
    /// Of a pool's clients: what their pings told.
    pub pool: PoolCounts,
}

impl Row {
    /// A client's target does not support what the client does.
    pub fn has_unsupported(&self) -> bool {
        let mut errors = self.errors.keys();
        errors.any(|(_, cause, _)| *cause == Some(Cause::Unsupported))
    }

    /// No client of the row did anything: the target does not support it.
    pub fn is_left_out(&self) -> bool {
        let slots = &self.slots.all;
        let unsupported: u64 = self
            .errors
            .iter()
            .filter(|((_, cause, _), _)| *cause == Some(Cause::Unsupported))
            .map(|(_, error)| error.count)
            .sum();
        unsupported > 0 && unsupported == slots.probed
    }

    /// The longest time in which nothing is known of a client.
    pub fn unwatched_max_ns(&self) -> i64 {
        self.holes
            .iter()
            .flatten()
            .map(|(from, to)| to.saturating_sub(*from))
            .max()
            .unwrap_or(0)
    }

    /// Windows of single clients.
    pub fn client_windows(&self) -> impl Iterator<Item = &Window> {
        self.windows
            .iter()
            .filter(|w| matches!(w.scope, Scope::Client(_)))
    }

    /// The client's window that can have lasted longest, of what was seen of it.
    pub fn longest_outage(&self) -> Option<&Window> {
        self.client_windows().max_by_key(|w| longest_key(w))
    }
}

/// Orders windows by what was seen of them: the upper bound, or, where one is open,
/// how long it was seen. A late answer just before the end must not stand for an
/// outage of seconds.
pub fn longest_key(window: &Window) -> (i64, bool, i64) {
    (
        window
            .upper_ns
            .unwrap_or(window.lower_ns.max(window.gap_ns.unwrap_or(0))),
        window.upper_ns.is_none(),
        window.lower_ns,
    )
}

/// Analyses the clients of one row; none if there is no client.
pub fn row(clients: &[ClientSeries], context: &Context<'_>) -> Option<Row> {
    let first = clients.first()?;
    let deadline = context.deadline_ns;
    let mut blinds: Vec<Blind> = Vec::with_capacity(clients.len());
    let mut found: Vec<Vec<Stretch>> = Vec::with_capacity(clients.len());
    let mut unknown: Vec<Vec<(i64, i64)>> = Vec::with_capacity(clients.len());
    let mut max_gap = MaxGap::default();
    let of_each = parallel::map(clients, |client| {
        let blind = Blind::new(context.pauses, client);
        let (stretches, gap) = stretches(client, deadline, &blind);
        let unseen_ns = longest_unseen_ns(client, deadline, (i64::MIN, i64::MAX));
        (blind, stretches, gap, holes(client, deadline), unseen_ns)
    });
    let mut unseen_ns = 0;
    for (blind, stretches, gap, holes, unseen) in of_each {
        unseen_ns = unseen.max(unseen_ns);
        blinds.push(blind);
        found.push(stretches);
        unknown.push(holes);
        max_gap = max_gap.max(gap);
    }
    let windows = windows(clients, &found, &unknown, context);
    let mut faults: Vec<FaultRow> = context
        .faults
        .iter()
        .map(|fault| fault_row(clients, &blinds, &windows, fault, deadline))
        .collect();
    // What was before a later one is another fault's.
    if let Some(first) = faults.first_mut().filter(|fault| fault.judgement.hurt == 0) {
        first.before = clients
            .iter()
            .zip(&blinds)
            .filter_map(|(client, blind)| {
                longest_before(client, deadline, blind, first.asked.earliest_ns)
            })
            .max_by_key(Before::ns);
    }
    // Slots without data may stand in a fault's gap; the whole has none shorter.
    let of_faults = faults.iter().map(|fault| fault.gap);
    let max_gap = of_faults.fold(max_gap, MaxGap::max);
    let effects = effects(&faults, context, first.interval_ns);
    let client_time_lost = merge::client_time(&found, &unknown);
    let tallies = parallel::map(clients, |client| Tally::of(client, context, &effects));
    let tally = tallies.into_iter().reduce(Tally::and).unwrap_or_default();
    let (latency, response) = parallel::both(
        parallel::is_much(clients),
        || quantiles(tally.latency),
        || quantiles(tally.response),
    );
    Some(Row {
        agent: first.key.agent.clone(),
        target: first.key.target.clone(),
        style: first.key.style,
        kind: first.kind,
        clients: clients.len(),
        interval_ns: first.interval_ns,
        timeouts: first.timeouts,
        origin_ns: first.lives.first().map_or(0, |life| life.origin_ns),
        slots: tally.slots,
        latency,
        response,
        changes: tally.changes,
        healthy_backends_a_client: tally.healthy_backends_a_client,
        max_gap,
        holes: unknown,
        unseen_ns,
        windows,
        client_time_lost,
        errors: tally.errors,
        switches: tally.switches,
        faults,
        pool: tally.pool,
    })
}

fn windows(
    clients: &[ClientSeries],
    found: &[Vec<Stretch>],
    holes: &[Vec<(i64, i64)>],
    context: &Context<'_>,
) -> Vec<Window> {
    let mut windows = Vec::new();
    for (client, stretches) in clients.iter().zip(found) {
        for s in stretches {
            let b0 = &client.probes[s.b0];
            windows.push(Window {
                scope: Scope::Client(client.key.client),
                from_ns: s.g0.map(|g| client.probes[g].started),
                to_ns: s.g1.map(|g| client.probes[g].finished),
                first_bad_ns: Some(b0.started),
                inner_ns: Some(s.inner),
                gap_ns: Some(s.gap_ns),
                gap_is_at_least: s.gap_is_at_least,
                lower_ns: s.lower_ns,
                upper_ns: s.upper_ns,
                own_timeout_ns: Some(s.own_timeout_ns),
                bad: s.bad,
                late: s.late,
                ongoing: s.is_ongoing(),
                never_served: s.is_never_served(),
                no_data: s.no_data,
                fault: context
                    .faults
                    .iter()
                    .find(|fault| fault.holds(b0, context.deadline_ns))
                    .map(|fault| fault.id),
            });
        }
    }
    for (scope, merged) in [
        (Scope::Any, merge::any(found, holes)),
        (Scope::All, merge::all(found, holes)),
    ] {
        windows.extend(merged.iter().map(|m| merged_window(scope, m)));
    }
    windows
}

fn merged_window(scope: Scope, merged: &Merged) -> Window {
    Window {
        scope,
        from_ns: (merged.from_ns != i64::MIN).then_some(merged.from_ns),
        to_ns: (merged.to_ns != i64::MAX).then_some(merged.to_ns),
        first_bad_ns: None,
        inner_ns: None,
        gap_ns: None,
        gap_is_at_least: false,
        lower_ns: merged.lower_ns,
        upper_ns: merged.upper_ns,
        own_timeout_ns: None,
        bad: 0,
        late: 0,
        ongoing: merged.ongoing,
        never_served: merged.ongoing && merged.from_ns == i64::MIN,
        no_data: merged.no_data,
        fault: None,
    }
}

fn fault_row(
    clients: &[ClientSeries],
    blinds: &[Blind],
    windows: &[Window],
    fault: &LocalFault,
    deadline_ns: i64,
) -> FaultRow {
    let seen: Vec<(u16, Seen)> = clients
        .iter()
        .zip(blinds)
        .map(|(client, blind)| (client.key.client, look(client, fault, deadline_ns, blind)))
        .collect();
    let judged: Vec<Judged> = seen
        .iter()
        .map(|(_, s)| Judged {
            exposure: s.exposure,
            fate: s.fate,
            hurt: s.is_hurt(),
        })
        .collect();
    let at_stake: Vec<&(u16, Seen)> = seen
        .iter()
        .filter(|(_, s)| {
            matches!(s.exposure, Exposure::Held | Exposure::Shared)
                || (s.exposure == Exposure::None && s.is_hurt())
        })
        .collect();
    // Of all at stake: one that is open at an end leaves the whole open.
    let gap = at_stake
        .iter()
        .map(|(_, s)| s.gap)
        .reduce(MaxGap::max)
        .unwrap_or_default();
    let of_fault = || {
        windows.iter().filter(|w| {
            w.fault == Some(fault.id)
                && at_stake
                    .iter()
                    .any(|(client, _)| w.scope == Scope::Client(*client))
        })
    };
    let worst_window = of_fault().max_by_key(|w| longest_key(w));
    let own_timeout_ns = of_fault()
        .max_by_key(|w| w.gap_ns)
        .and_then(|w| w.own_timeout_ns)
        .unwrap_or(0);
    let last_from_subject = seen.iter().filter_map(|(_, s)| s.last_from_subject).max();
    let mut judgement = judge(&judged);
    // A subject that answered to the end was not taken away from anybody.
    let watched_until = clients
        .iter()
        .filter_map(|client| client.probes.last())
        .map(|probe| probe.finished)
        .max()
        .unwrap_or(i64::MIN)
        .min(fault.until_ns);
    let window = clients
        .iter()
        .map(|client| exposure_window_ns(client.interval_ns))
        .max()
        .unwrap_or(0);
    let went_on = fault.is_lasting
        && judgement.hurt == 0
        && last_from_subject.is_some_and(|last| {
            last > fault.asked.latest_ns && last >= watched_until.saturating_sub(window)
        });
    // What was done takes its time, and so does noticing it.
    let watched_ns = watched_until.saturating_sub(fault.asked.latest_ns);
    let without_effect =
        went_on && watched_ns > window.saturating_add(deadline_ns).max(LEAST_WATCHED_NS);
    if went_on {
        judgement.verdict = Verdict::Unmeasured;
    }
    let within = (fault.asked.earliest_ns, fault.until_ns);
    let unseen_ns = clients
        .iter()
        .filter(|client| at_stake.iter().any(|(n, _)| *n == client.key.client))
        .map(|client| longest_unseen_ns(client, deadline_ns, within))
        .max()
        .unwrap_or(0);
    let hurt: Vec<&Seen> = at_stake
        .iter()
        .map(|(_, s)| s)
        .filter(|s| s.is_hurt())
        .collect();
    FaultRow {
        fault: fault.id,
        asked: fault.asked,
        watched_until_ns: watched_until,
        judgement,
        without_effect,
        gap,
        own_timeout_ns,
        outage: worst_window.map(|w| (w.lower_ns, w.upper_ns)),
        before: None,
        unseen_ns,
        first_bad: hurt.iter().filter_map(|s| s.first_bad).min_by_key(|b| b.1),
        first_from_survivor: seen.iter().filter_map(|(_, s)| s.first_from_survivor).min(),
        all_back: if hurt.iter().all(|s| s.back_at.is_some()) {
            hurt.iter().filter_map(|s| s.back_at).max()
        } else {
            None
        },
        last_from_subject,
        last_connect_to_subject: seen
            .iter()
            .filter_map(|(_, s)| s.last_connect_to_subject)
            .max(),
        clients: seen,
    }
}

/// From when until when each fault had its effect on this row.
fn effects(faults: &[FaultRow], context: &Context<'_>, interval_ns: i64) -> Vec<(i64, i64)> {
    let mut effects: Vec<(i64, i64)> = faults
        .iter()
        .map(|fault| {
            let at_least = fault
                .asked
                .latest_ns
                .saturating_add(exposure_window_ns(interval_ns));
            let back = fault
                .clients
                .iter()
                .filter(|(_, s)| s.is_hurt())
                .map(|(_, s)| s.back_at.unwrap_or(i64::MAX))
                .max()
                .unwrap_or(i64::MIN);
            (fault.asked.earliest_ns, at_least.max(back))
        })
        .collect();
    if faults.is_empty() && context.first_fault_ns != i64::MAX {
        // A fault that is not judged: nothing is known of its effect.
        effects.push((
            context.first_fault_ns,
            context
                .first_fault_ns
                .saturating_add(exposure_window_ns(interval_ns)),
        ));
    }
    effects
}
