//! What became of each agent's samples in a run. Pure.
//!
//! Samples are numbered by the agent from 1 on, so each number that it has given
//! out is stored, declared lost, or missing. What came more than once was left out
//! and counted.

use gapscope_proto::frame::StreamKind;
use gapscope_proto::ids::AgentId;

use crate::store::LossRecord;
use crate::store::manifest::Manifest;

/// The books of one agent: `sampled = stored + lost + missing`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Whose.
    pub agent: AgentId,
    /// Numbers given out, as far as the agent has said.
    pub sampled: u64,
    /// Of them, samples stored.
    pub stored: u64,
    /// Of them, declared lost.
    pub lost: u64,
    /// So many of those had been measured: at least, at most.
    pub lost_measured: (u64, u64),
    /// Of them, neither here nor declared lost.
    pub missing: u64,
    /// Samples that came more than once and were left out.
    pub repeated: u64,
    /// The agent has not said how its probing ended.
    pub may_hold_more: bool,
}

/// The accounts of all agents of a run.
pub fn accounts(manifest: &Manifest, losses: &[LossRecord]) -> Vec<Account> {
    manifest
        .agents
        .iter()
        .map(|agent| {
            let mut account = Account {
                agent: agent.agent_id.clone(),
                sampled: 0,
                stored: 0,
                lost: 0,
                lost_measured: (0, 0),
                missing: 0,
                repeated: 0,
                may_hold_more: agent.may_hold_more(),
            };
            let mut settled = 0;
            for start in &agent.incarnations {
                let announced = start.samples_announced.max(start.samples_committed);
                account.sampled += announced;
                account.missing += announced - start.samples_committed;
                account.repeated += start.samples_repeated;
                settled += start.samples_committed;
            }
            let own = losses
                .iter()
                .filter(|loss| loss.agent_id == agent.agent_id && loss.kind == StreamKind::Samples);
            for loss in own {
                account.lost += loss.last_seq - loss.first_seq + 1;
                account.lost_measured.0 += loss.count_min;
                account.lost_measured.1 += loss.count_max;
            }
            account.stored = settled.saturating_sub(account.lost);
            account
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::ending::tests::manifest;
    use gapscope_proto::host::{ProbingEnded, ProbingStarted};
    use gapscope_proto::ids::Incarnation;

    #[test]
    fn each_number_is_stored_lost_or_missing() {
        let mut manifest = manifest();
        let agent: AgentId = "x".parse().expect("a name");
        let (old, new) = (Incarnation::generate(), Incarnation::generate());
        let clock = manifest.clock.clone();
        let entry = manifest.incarnation_mut(&agent, old);
        entry.started = Some(ProbingStarted {
            origin_ns: 0,
            planned_end_ns: 1,
            clock,
        });
        (entry.samples_announced, entry.samples_committed) = (100, 90);
        entry.samples_repeated = 3;
        let entry = manifest.incarnation_mut(&agent, new);
        // Nothing was announced beyond what came.
        (entry.samples_announced, entry.samples_committed) = (0, 40);
        entry.samples_repeated = 4;
        let loss = |agent: &str, kind, first_seq, last_seq, count_min| LossRecord {
            agent_id: agent.parse().expect("a name"),
            incarnation: old,
            kind,
            first_seq,
            last_seq,
            count_min,
            count_max: last_seq - first_seq + 1,
            reason: "power_loss".to_owned(),
        };
        let losses = [
            loss("x", StreamKind::Samples, 11, 20, 2),
            loss("x", StreamKind::Host, 1, 5, 5),
            loss("y", StreamKind::Samples, 1, 9, 9),
        ];
        let expected = Account {
            agent: agent.clone(),
            sampled: 140,
            stored: 120,
            lost: 10,
            lost_measured: (2, 10),
            missing: 10,
            repeated: 7,
            may_hold_more: true,
        };
        assert_eq!(accounts(&manifest, &losses), [expected]);
        // The last start came to the end, so nothing is open.
        manifest.incarnation_mut(&agent, new).ended = Some(ProbingEnded {
            end_ns: 0,
            reason: String::new(),
            due: 0,
            sampled: 0,
            waited: 0,
            overslept: 0,
        });
        assert!(!accounts(&manifest, &losses)[0].may_hold_more);
    }
}
