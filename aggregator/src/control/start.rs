//! Who probes what: a plan, shared out to the agents that have its targets.
//!
//! Pure. An agent gets the plan without the targets it does not have. Where
//! several agents have a target, all of them probe it: a target may well look
//! different from different hosts.

use std::collections::{BTreeMap, BTreeSet};

use gapscope_proto::ids::{AgentId, RunId, TargetName};
use gapscope_proto::plan::RunPlan;

/// Why nobody can carry out a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAgent {
    /// Nobody is connected.
    #[error("no agent is connected; start one with `gapscope-agent run`")]
    Nobody,
    /// An agent that was asked for is not connected.
    #[error("agent `{wanted}` is not connected; connected: {known}")]
    NotConnected {
        /// Which.
        wanted: String,
        /// Who is.
        known: String,
    },
    /// An agent that was asked for has none of the targets.
    #[error("agent `{agent}` has none of the planned targets; it has: {has}")]
    NothingToDo {
        /// Which.
        agent: AgentId,
        /// What it has.
        has: String,
    },
    /// Nobody has a target.
    #[error("no agent has target `{target}`; known: {known}")]
    NoSuchTarget {
        /// Which.
        target: TargetName,
        /// What there is.
        known: String,
    },
}

fn list(items: impl IntoIterator<Item = impl ToString>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    if items.is_empty() {
        "none".to_owned()
    } else {
        items.join(", ")
    }
}

/// Shares out `plan` to the connected agents, or to those of them in `wanted`
/// if there are any.
///
/// # Errors
/// When an agent or a target is missing; the text names what there is.
pub fn share_out(
    plan: &RunPlan,
    connected: &BTreeMap<AgentId, BTreeSet<TargetName>>,
    wanted: &[String],
) -> Result<BTreeMap<AgentId, RunPlan>, NoAgent> {
    if connected.is_empty() {
        return Err(NoAgent::Nobody);
    }
    let mut asked = BTreeMap::new();
    for name in wanted {
        let (id, has) = connected
            .iter()
            .find(|(id, _)| id.as_str() == name)
            .ok_or_else(|| NoAgent::NotConnected {
                wanted: name.clone(),
                known: list(connected.keys()),
            })?;
        asked.insert(id, has);
    }
    if wanted.is_empty() {
        asked = connected.iter().collect();
    }
    let planned: BTreeSet<&TargetName> = plan.groups.iter().map(|group| &group.target).collect();
    for target in &planned {
        if !asked.values().any(|has| has.contains(*target)) {
            return Err(NoAgent::NoSuchTarget {
                target: (*target).clone(),
                known: list(
                    asked
                        .iter()
                        .map(|(id, has)| format!("{} (agent {id})", list(has.iter()))),
                ),
            });
        }
    }
    let mut shares = BTreeMap::new();
    for (id, has) in asked {
        let mut share = plan.clone();
        share.groups.retain(|group| has.contains(&group.target));
        if !share.groups.is_empty() {
            shares.insert(id.clone(), share);
        } else if !wanted.is_empty() {
            return Err(NoAgent::NothingToDo {
                agent: id.clone(),
                has: list(has.iter()),
            });
        }
    }
    Ok(shares)
}

/// Another run that probes the same targets at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beside {
    /// Which.
    pub run: RunId,
    /// What both probe.
    pub targets: Vec<TargetName>,
}

impl Beside {
    /// What is to be said in the new run, of the other.
    pub fn said_of_other(&self) -> String {
        self.said_of(self.run)
    }

    /// What is to be said in a run, of `run`.
    pub fn said_of(&self, run: RunId) -> String {
        let (noun, verb) = match self.targets.len() {
            1 => ("target", "is"),
            _ => ("targets", "are"),
        };
        format!(
            "{noun} {} {verb} probed by run {run} at the same time: each run's load is in the \
             other's numbers, and so is what is done in it, which the other does not know",
            list(&self.targets)
        )
    }
}

/// Those of the plans that are carried out now that share targets with `plan`.
pub fn beside<'a>(plan: &RunPlan, running: impl Iterator<Item = &'a RunPlan>) -> Vec<Beside> {
    let targets_of = |plan: &RunPlan| -> BTreeSet<TargetName> {
        plan.groups
            .iter()
            .map(|group| group.target.clone())
            .collect()
    };
    let own = targets_of(plan);
    running
        .filter(|other| other.run_id != plan.run_id)
        .map(|other| Beside {
            run: other.run_id,
            targets: own.intersection(&targets_of(other)).cloned().collect(),
        })
        .filter(|one| !one.targets.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapscope_proto::plan::{ClientGroup, ClientKind, Timeouts};
    use gapscope_proto::sample::Style;

    fn plan(targets: &[&str]) -> RunPlan {
        RunPlan {
            run_id: RunId::generate(),
            scenario: String::new(),
            duration_ns: 1_000_000_000,
            deadline_ns: 1_000_000,
            groups: targets
                .iter()
                .map(|target| ClientGroup {
                    target: target.parse().expect("a name"),
                    style: Style::New,
                    kind: ClientKind::Bare,
                    first_client: 0,
                    clients: 1,
                    interval_ns: 1_000_000,
                    timeouts: Timeouts {
                        resolve_ns: None,
                        connect_ns: None,
                        query_ns: None,
                    },
                })
                .collect(),
            identity: None,
            scenario_toml: String::new(),
        }
    }

    fn agents(has: &[(&str, &[&str])]) -> BTreeMap<AgentId, BTreeSet<TargetName>> {
        has.iter()
            .map(|(id, targets)| {
                let targets = targets.iter().map(|t| t.parse().expect("a name"));
                (id.parse().expect("a name"), targets.collect())
            })
            .collect()
    }

    #[track_caller]
    fn check(targets: &[&str], has: &[(&str, &[&str])], wanted: &[&str], expect: &str) {
        let wanted: Vec<String> = wanted.iter().map(|w| (*w).to_owned()).collect();
        let shown = match share_out(&plan(targets), &agents(has), &wanted) {
            Ok(shares) => shares
                .iter()
                .map(|(id, plan)| format!("{id}={}", list(plan.groups.iter().map(|g| &g.target))))
                .collect::<Vec<_>>()
                .join("; "),
            Err(error) => error.to_string(),
        };
        assert_eq!(shown, expect);
    }

    #[test]
    fn plans_are_shared_out() {
        let two: &[(&str, &[&str])] = &[("a", &["x", "y"]), ("b", &["y", "z"])];
        check(&["x", "y"], two, &[], "a=x, y; b=y");
        check(&["x"], two, &[], "a=x");
        check(&["y"], two, &["b"], "b=y");
        check(
            &["q"],
            two,
            &[],
            "no agent has target `q`; known: x, y (agent a), y, z (agent b)",
        );
        check(
            &["x"],
            two,
            &["b"],
            "no agent has target `x`; known: y, z (agent b)",
        );
        check(
            &["x"],
            two,
            &["c"],
            "agent `c` is not connected; connected: a, b",
        );
        check(
            &["x"],
            two,
            &["a", "b"],
            "agent `b` has none of the planned targets; it has: y, z",
        );
        check(
            &["x"],
            &[],
            &[],
            "no agent is connected; start one with `gapscope-agent run`",
        );
    }

    #[test]
    fn a_target_that_is_busy_already_is_told() {
        let own = plan(&["a", "b"]);
        let (elsewhere, both) = (plan(&["c"]), plan(&["a", "b", "c"]));
        let found = beside(&own, [&elsewhere, &both, &own].into_iter());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].run, both.run_id);
        let said = found[0].said_of_other();
        let run = both.run_id;
        assert!(
            said.starts_with(&format!(
                "targets a, b are probed by run {run} at the same time"
            )),
            "{said}"
        );
        assert!(
            found[0]
                .said_of(own.run_id)
                .contains(&own.run_id.to_string())
        );
    }
}
