//! The books of a run: every slot that was due is accounted for, and what was
//! found is compared with what the agents counted themselves.

use std::collections::BTreeMap;

use gapscope_proto::ids::AgentId;

use super::caveat::Caveat;
use super::load::LoadError;
use super::series::SlotCounts;
use crate::store::manifest::{AgentEntry, Manifest};
use crate::store::reader::RunFolder;

/// The books of a run, in slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conservation {
    /// All that were due.
    pub due: u64,
    /// Samples stored.
    pub stored: u64,
    /// Samples declared lost: at least, at most.
    pub lost: (u64, u64),
    /// Samples announced by agents and not here yet.
    pub in_spools: u64,
    /// No start of some agent said how its probing ended: its spool may hold more.
    pub may_hold_more: bool,
    /// Passed while a client waited.
    pub waited: u64,
    /// Passed because an agent was late.
    pub overslept: u64,
    /// Passed without an agent.
    pub absent: u64,
    /// Whether every comparison with the agents' own books came out even.
    pub is_balanced: bool,
}

/// Compares what was found with what the agents counted themselves.
pub(super) fn balance(
    manifest: &Manifest,
    found: &BTreeMap<AgentId, SlotCounts>,
    folder: &RunFolder,
) -> Result<(Conservation, Vec<Caveat>), LoadError> {
    let mut caveats = Vec::new();
    let mut books = Conservation {
        lost: folder.samples_lost()?,
        is_balanced: false,
        ..Conservation::default()
    };
    for slots in found.values() {
        books.due += slots.due;
        books.stored += slots.probed;
        books.waited += slots.waited;
        books.overslept += slots.overslept;
        books.absent += slots.absent;
    }
    books.may_hold_more = manifest.agents.iter().any(AgentEntry::may_hold_more);
    for entry in manifest.agents.iter().flat_map(|a| &a.incarnations) {
        books.in_spools += entry
            .samples_announced
            .saturating_sub(entry.samples_committed);
    }
    // Slots whose samples did not arrive look like overslept or absent ones.
    let mut missing = books.lost.0 + books.in_spools;
    let from_overslept = missing.min(books.overslept);
    books.overslept -= from_overslept;
    missing -= from_overslept;
    books.absent -= missing.min(books.absent);

    let mut uneven: Vec<String> = Vec::new();
    if books.stored != folder.samples_stored() {
        uneven.push(format!(
            "THE BOOKS DO NOT BALANCE: {} samples are stored, {} belong to clients of the plan",
            folder.samples_stored(),
            books.stored
        ));
    }
    let stood_for = books.stored
        + books.lost.0
        + books.in_spools
        + books.waited
        + books.overslept
        + books.absent;
    if stood_for != books.due {
        uneven.push(format!(
            "THE BOOKS DO NOT BALANCE: {} slots were due, {stood_for} are accounted for",
            books.due
        ));
    }
    for (agent, slots) in found {
        let Some(entry) = manifest.agents.iter().find(|a| &a.agent_id == agent) else {
            continue;
        };
        let started: Vec<_> = entry
            .incarnations
            .iter()
            .filter(|i| i.started.is_some())
            .collect();
        let ended: Vec<_> = started.iter().filter_map(|i| i.ended.as_ref()).collect();
        if ended.len() != started.len() {
            continue;
        }
        let own = |pick: fn(&gapscope_proto::host::ProbingEnded) -> u64| {
            ended.iter().map(|e| pick(e)).sum::<u64>()
        };
        let arrived_all = books.lost.1 == 0 && books.in_spools == 0;
        let mut compare = |what: &str, here: u64, there: u64| {
            if here != there {
                uneven.push(format!(
                    "THE BOOKS DO NOT BALANCE: agent {agent} counted {there} slots {what}, \
                     from the samples it is {here}"
                ));
            }
        };
        if arrived_all {
            compare("sampled", slots.probed, own(|e| e.sampled));
        }
        if started.len() > 1 {
            // Where one start's part of the schedule ends and the next one's
            // begins is known to the agent only.
            continue;
        }
        compare("due", slots.due - slots.absent, own(|e| e.due));
        if arrived_all {
            compare(
                "waited or overslept",
                slots.waited + slots.overslept,
                own(|e| e.waited + e.overslept),
            );
            let overslept = own(|e| e.overslept);
            if overslept != slots.overslept {
                caveats.push(Caveat::run(
                    "books_split",
                    format!(
                        "agent {agent} counted {overslept} slots overslept, by the samples it is \
                         {}: they fell between an answer and the agent's next look at the clock; \
                         they count as no data",
                        slots.overslept
                    ),
                ));
            }
        }
    }
    books.is_balanced = uneven.is_empty();
    caveats.extend(uneven.into_iter().map(|text| Caveat::run("books", text)));
    if books.lost.1 > 0 {
        caveats.push(Caveat::run(
            "lost",
            if books.lost.0 == books.lost.1 {
                format!("{} samples are lost", books.lost.1)
            } else {
                format!("{} to {} samples are lost", books.lost.0, books.lost.1)
            },
        ));
    }
    if books.may_hold_more {
        caveats.push(Caveat::run(
            "in_spools",
            "an agent did not say how its probing ended: its spool may hold more samples",
        ));
    }
    if books.in_spools > 0 {
        caveats.push(Caveat::run(
            "in_spools",
            format!("{} samples are still in agents' spools", books.in_spools),
        ));
    }
    Ok((books, caveats))
}
