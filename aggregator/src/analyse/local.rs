//! A run's faults by an agent's clock, and whom of a target they reach.

use std::collections::BTreeSet;

use gapscope_proto::clock::ClockKey;
use gapscope_proto::fault::{Fault, FaultScope, Span};
pub use gapscope_proto::fault::{PROXY_VIEW, RESET};
use gapscope_proto::ids::TargetName;

use super::fault::{LocalFault, Reach};
use super::load::Names;
use crate::align::map::ClockMap;
use crate::store::manifest::Manifest;

/// Whether a fault is only a note of the lab's own, which nothing is measured
/// from.
pub fn is_note(fault: &Fault) -> bool {
    fault.is_note()
}

/// An event of a fault by an agent's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultTimes {
    /// Which fault.
    pub fault: u32,
    /// See [`is_note`].
    pub is_note: bool,
    /// When it was asked for.
    pub asked: Span,
    /// What witnesses saw: listener refused, held cut, gone, cleared.
    pub seen: [(&'static str, Option<Span>); 4],
}

pub(super) fn fault_times(
    faults: &[Fault],
    clocks: &ClockMap,
    clock: &ClockKey,
) -> Vec<FaultTimes> {
    faults
        .iter()
        .filter_map(|fault| {
            let there = |span: Span| clocks.translate(span, &fault.clock, clock);
            Some(FaultTimes {
                fault: fault.id,
                is_note: is_note(fault),
                asked: there(fault.asked)?,
                seen: [
                    ("listener refused", fault.listener_refused.and_then(there)),
                    ("held connection cut", fault.held_cut.and_then(there)),
                    ("gone", fault.gone.and_then(there)),
                    ("cleared", fault.cleared.and_then(there)),
                ],
            })
        })
        .collect()
}

pub(super) fn local_faults(
    faults: &[Fault],
    judged: &BTreeSet<u32>,
    times: &[FaultTimes],
    manifest: &Manifest,
    target: &TargetName,
    names: &mut Names,
) -> Vec<LocalFault> {
    let is_target = |name: &str| {
        manifest
            .plan
            .groups
            .iter()
            .any(|g| g.target.as_str() == name)
    };
    let mut local: Vec<LocalFault> = faults
        .iter()
        .filter(|fault| judged.contains(&fault.id))
        .filter_map(|fault| {
            let asked = times.iter().find(|t| t.fault == fault.id)?.asked;
            let subject = fault.identity.as_deref().map(|id| names.number(id));
            let reach = match fault.scope {
                FaultScope::Backend | FaultScope::Mark => Reach::ServedBy(subject),
                // Another proxy's restart does not test this one.
                FaultScope::Proxy | FaultScope::Dns
                    if is_target(&fault.subject) && fault.subject != target.as_str() =>
                {
                    Reach::Nobody
                }
                FaultScope::Proxy | FaultScope::Dns | FaultScope::Failback => Reach::All,
            };
            Some(LocalFault {
                id: fault.id,
                asked,
                until_ns: i64::MAX,
                reach,
                subject,
                // A changed record asks clients to leave a backend, as a drain does.
                is_drain: fault.step == "drain" || fault.scope == FaultScope::Dns,
                is_lasting: matches!(fault.scope, FaultScope::Backend | FaultScope::Mark)
                    && fault.step != "drain"
                    && fault.cleared.is_none(),
            })
        })
        .collect();
    local.sort_by_key(|fault| (fault.asked.earliest_ns, fault.id));
    // Where the lab cuts every connection between two repetitions, what comes of
    // that is no fault's.
    let resets: Vec<i64> = faults
        .iter()
        .filter(|fault| fault.scope == FaultScope::Mark && fault.step == RESET)
        .filter_map(|fault| times.iter().find(|t| t.fault == fault.id))
        .map(|t| t.asked.earliest_ns)
        .collect();
    for at in 0..local.len() {
        let begin = local[at].asked.earliest_ns;
        local[at].until_ns = local[at + 1..]
            .iter()
            // What was done to another proxy does not end what was done to this.
            .filter(|next| next.reach != Reach::Nobody)
            .map(|next| next.asked.earliest_ns)
            .chain(resets.iter().copied())
            .filter(|next| *next > begin)
            .min()
            .unwrap_or(i64::MAX);
    }
    local
}
