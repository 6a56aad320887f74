//! When a run is over, and what it lacks then.
//!
//! Pure. An agent says how much it has measured (in its hello, and in the record
//! that ends its probing); what it never said cannot be missed.

use std::collections::HashMap;

use gapscope_proto::clock::ClockKey;
use gapscope_proto::host::Anchor;
use gapscope_proto::ids::{AgentId, Incarnation};

use crate::store::manifest::Manifest;

/// What has not come: of agents that are to take part, of starts of agents
/// whose probing has not ended (unless a newer start has taken over, as
/// `superseded` says), of seqs that were announced.
pub fn missing(
    manifest: &Manifest,
    superseded: impl Fn(&AgentId, Incarnation) -> bool,
) -> Vec<String> {
    let mut missing = Vec::new();
    for agent in &manifest.agents {
        let id = &agent.agent_id;
        if agent.incarnations.is_empty() {
            missing.push(format!("agent `{id}`: nothing has arrived"));
        }
        for entry in &agent.incarnations {
            if entry.ended.is_none() && !superseded(id, entry.incarnation) {
                missing.push(format!("agent `{id}`: the end of its probing"));
            }
            if entry.samples_committed < entry.samples_announced {
                missing.push(format!(
                    "agent `{id}`: samples {} to {}",
                    entry.samples_committed + 1,
                    entry.samples_announced
                ));
            }
        }
    }
    missing
}

/// What has not come of starts of agents that said they are `probing`, and from
/// which nothing at all has arrived: an agent that has just come back.
pub fn unheard(manifest: &Manifest, probing: &HashMap<AgentId, Incarnation>) -> Vec<String> {
    let is_heard = |id: &AgentId, incarnation: Incarnation| {
        let of_agent = manifest.agents.iter().filter(|a| a.agent_id == *id);
        of_agent
            .flat_map(|agent| &agent.incarnations)
            .any(|entry| entry.incarnation == incarnation)
    };
    let mut silent: Vec<String> = probing
        .iter()
        .filter(|(id, incarnation)| !is_heard(id, **incarnation))
        .map(|(id, _)| format!("agent `{id}`: all that its newest start has measured"))
        .collect();
    silent.sort();
    silent
}

/// Nanoseconds since a run's planned end, negative before it: by our own clock,
/// or after a reboot by wall time, which is good enough to tidy up by.
pub fn since_planned_end(manifest: &Manifest, key: &ClockKey, now: &Anchor) -> i64 {
    let Some(begin) = manifest.anchors.first() else {
        return i64::MAX;
    };
    let elapsed = if manifest.clock == *key {
        now.raw_before_ns.saturating_sub(begin.raw_after_ns)
    } else {
        now.realtime_ns.saturating_sub(begin.realtime_ns)
    };
    let planned = i64::try_from(manifest.plan.duration_ns).unwrap_or(i64::MAX);
    elapsed.saturating_sub(planned)
}

#[cfg(test)]
pub(in crate::ingest) mod tests {
    use super::*;
    use gapscope_proto::host::{HostFacts, ProbingEnded};
    use gapscope_proto::ids::RunId;
    use gapscope_proto::plan::RunPlan;

    use crate::store::manifest::{FORMAT_VERSION, RunState, Schedule};

    fn key(boot: &str) -> ClockKey {
        ClockKey {
            boot_id: boot.to_owned(),
            time_namespace: 0,
        }
    }

    fn anchor(raw_ns: i64, realtime_ns: i64) -> Anchor {
        Anchor {
            raw_before_ns: raw_ns,
            raw_after_ns: raw_ns,
            monotonic_ns: raw_ns,
            boottime_ns: raw_ns,
            realtime_ns,
            timer_late_ns: 0,
        }
    }

    pub(in crate::ingest) fn manifest() -> Manifest {
        let run_id = RunId::generate();
        Manifest {
            format_version: FORMAT_VERSION,
            run_id,
            state: RunState::Running,
            created_utc: String::new(),
            closed_utc: None,
            end_reason: None,
            program_version: String::new(),
            host: HostFacts::default(),
            clock: key("a"),
            anchors: vec![anchor(1_000, 50_000)],
            plan: RunPlan {
                run_id,
                scenario: String::new(),
                duration_ns: 100,
                deadline_ns: 1,
                groups: Vec::new(),
                identity: None,
                scenario_toml: String::new(),
            },
            schedule: Schedule::OpenLoop,
            subjects: Vec::new(),
            labels: std::collections::BTreeMap::new(),
            agents: Vec::new(),
            caveats: Vec::new(),
            files: None,
        }
    }

    #[test]
    fn the_planned_end_is_measured_by_our_own_clock_while_it_lasts() {
        let manifest = manifest();
        let since = |boot, now| since_planned_end(&manifest, &key(boot), &now);
        assert_eq!(since("a", anchor(1_090, 0)), -10);
        assert_eq!(since("a", anchor(1_110, 0)), 10);
        // After a reboot RAW began anew: wall time.
        assert_eq!(since("b", anchor(5, 50_130)), 30);
    }

    #[test]
    fn an_agent_that_has_just_come_back_owes_what_it_measures() {
        let mut manifest = manifest();
        let agent: AgentId = "x".parse().expect("a name");
        let (old, new) = (Incarnation::generate(), Incarnation::generate());
        manifest.incarnation_mut(&agent, old).samples_committed = 9;
        let probing = HashMap::from([(agent.clone(), new)]);
        // The start before it is superseded, so nothing else would be missed.
        assert_eq!(missing(&manifest, |_, i| i == old), Vec::<String>::new());
        assert_eq!(
            unheard(&manifest, &probing),
            ["agent `x`: all that its newest start has measured"]
        );
        manifest.incarnation_mut(&agent, new).samples_committed = 1;
        assert_eq!(unheard(&manifest, &probing), Vec::<String>::new());
    }

    #[test]
    fn what_was_announced_and_did_not_come_is_missing() {
        let mut manifest = manifest();
        let agent: AgentId = "x".parse().expect("a name");
        let (old, new) = (Incarnation::generate(), Incarnation::generate());
        let lacks = |manifest: &Manifest| missing(manifest, |_, incarnation| incarnation == old);
        manifest.incarnation_mut(&agent, old).samples_announced = 9;
        manifest.incarnation_mut(&agent, old).samples_committed = 4;
        let entry = manifest.incarnation_mut(&agent, new);
        entry.samples_committed = 7;
        assert_eq!(
            lacks(&manifest),
            [
                "agent `x`: samples 5 to 9",
                "agent `x`: the end of its probing"
            ]
        );
        manifest.incarnation_mut(&agent, old).samples_committed = 9;
        manifest.incarnation_mut(&agent, new).ended = Some(ProbingEnded {
            end_ns: 0,
            reason: String::new(),
            due: 7,
            sampled: 7,
            waited: 0,
            overslept: 0,
        });
        assert_eq!(lacks(&manifest), Vec::<String>::new());
        manifest.agents[0].incarnations.clear();
        assert_eq!(lacks(&manifest), ["agent `x`: nothing has arrived"]);
    }
}
