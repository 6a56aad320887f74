//! The manifest of a run that only an agent's spool knows.
//!
//! The timeline is that of the aggregator whose clock the agent exchanged stamps
//! with, so that spools of several agents of one run fit together; without any
//! exchange it is the agent's own. Wall times are made from the agent's anchors:
//! labels, never used in arithmetic.

use std::collections::BTreeMap;

use gapscope_proto::clock::ClockKey;
use gapscope_proto::host::{Anchor, Exchange, HostFacts, HostRecord};
use gapscope_proto::ids::AgentId;

use super::spool::NotedRun;
use crate::store::manifest::{
    AgentEntry, FORMAT_VERSION, Manifest, RunState, Schedule, TargetEntry,
};
use crate::utc;

/// What the host records of a run say about its clocks.
#[derive(Debug, Default)]
pub struct Clocks {
    exchange: Option<Exchange>,
    anchor: Option<Anchor>,
}

impl Clocks {
    /// Takes note of a record.
    pub fn note(&mut self, record: &HostRecord) {
        match record {
            HostRecord::Exchange(exchange) => {
                self.exchange.get_or_insert_with(|| exchange.clone());
            }
            HostRecord::Anchor(anchor) => {
                self.anchor.get_or_insert(*anchor);
            }
            _ => {}
        }
    }

    /// The run's timeline: which clock, and its moment at the run's begin beside
    /// UTC.
    fn timeline(&self, noted: &NotedRun) -> (ClockKey, Anchor) {
        let origin_ns = noted.origin_ns;
        // The agent's wall clock at the origin; unknown without an anchor.
        let realtime_ns = self.anchor.map_or(0, |anchor| {
            anchor
                .realtime_ns
                .saturating_sub(anchor.raw_after_ns.saturating_sub(origin_ns))
        });
        let (key, raw_ns) = match &self.exchange {
            Some(exchange) => (
                exchange.server.clone(),
                exchange
                    .s1_ns
                    .saturating_sub(exchange.a1_ns.saturating_sub(origin_ns)),
            ),
            None => (noted.clock.clone(), origin_ns),
        };
        let anchor = Anchor {
            raw_before_ns: raw_ns,
            raw_after_ns: raw_ns,
            monotonic_ns: raw_ns,
            boottime_ns: raw_ns,
            realtime_ns,
            timer_late_ns: 0,
        };
        (key, anchor)
    }
}

/// An agent as its part of the plan shows it.
pub fn agent_entry(agent: &AgentId, noted: &NotedRun) -> AgentEntry {
    let mut names: Vec<_> = noted
        .plan
        .groups
        .iter()
        .map(|group| &group.target)
        .collect();
    names.sort();
    names.dedup();
    AgentEntry {
        agent_id: agent.clone(),
        program_version: String::new(),
        host: HostFacts::default(),
        targets: names
            .into_iter()
            .map(|name| TargetEntry {
                name: name.clone(),
                address: String::new(),
                user: String::new(),
            })
            .collect(),
        incarnations: Vec::new(),
        shares_id: false,
    }
}

/// The manifest.
pub fn manifest(agent: &AgentId, noted: &NotedRun, clocks: &Clocks) -> Manifest {
    let (clock, anchor) = clocks.timeline(noted);
    Manifest {
        format_version: FORMAT_VERSION,
        run_id: noted.plan.run_id,
        state: RunState::Running,
        created_utc: utc::rfc3339(anchor.realtime_ns),
        closed_utc: None,
        end_reason: None,
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
        host: HostFacts::default(),
        clock,
        anchors: vec![anchor],
        plan: noted.plan.clone(),
        schedule: Schedule::OpenLoop,
        subjects: Vec::new(),
        labels: BTreeMap::from([("imported_format".to_owned(), "spool".to_owned())]),
        agents: vec![agent_entry(agent, noted)],
        files: None,
        caveats: vec![format!(
            "made from the spool of agent `{agent}`: faults, marks and subjects that an \
             aggregator knew of are not here"
        )],
    }
}
