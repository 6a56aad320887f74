//! Which starts of an agent are over, by the sessions that they had. Pure.
//!
//! An agent that was started again has a new incarnation, and its earlier ones send
//! nothing any more: their end need not be waited for. Two agents under one id look
//! the same at first, each new session closing the other's; but then the earlier one
//! comes back and goes on sending. That is the proof, and no less: a connection that
//! a dead process had opened can be heard late, with nothing behind its Hello.

use std::collections::{HashMap, HashSet};

use gapscope_proto::ids::{AgentId, Incarnation};

/// The starts that had a session of their own.
#[derive(Debug, Default)]
pub struct Starts {
    /// Of each agent, the one with the newest session last.
    seen: HashMap<AgentId, Vec<Incarnation>>,
    /// The newest session of each agent.
    newest: HashMap<AgentId, u64>,
    /// Sessions of starts that had been followed by another, and have only said
    /// Hello so far.
    returned: HashSet<u64>,
}

impl Starts {
    /// A session begins.
    pub fn attached(&mut self, agent: &AgentId, incarnation: Incarnation, session: u64) {
        let seen = self.seen.entry(agent.clone()).or_default();
        let newest = self.newest.entry(agent.clone()).or_default();
        if session < *newest {
            // Heard late: a newer one has begun already.
            if !seen.contains(&incarnation) {
                seen.insert(0, incarnation);
            }
            return;
        }
        *newest = session;
        if seen.last() == Some(&incarnation) {
            return;
        }
        if seen.contains(&incarnation) {
            seen.retain(|known| *known != incarnation);
            self.returned.insert(session);
        }
        seen.push(incarnation);
    }

    /// A session brings data; whether this proves that two agents share its id.
    pub fn spoke(&mut self, session: u64) -> bool {
        self.returned.remove(&session)
    }

    /// Whether a start sends nothing any more by itself: another one has followed
    /// it. Where two agents share the id, only a start that was never heard itself.
    pub fn is_over(&self, agent: &AgentId, incarnation: Incarnation, shares_id: bool) -> bool {
        let Some(seen) = self.seen.get(agent) else {
            return false;
        };
        if shares_id {
            !seen.contains(&incarnation)
        } else {
            seen.last() != Some(&incarnation)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_session_that_is_heard_late_follows_nobody() {
        let agent: AgentId = "x".parse().expect("a name");
        let (old, new) = (Incarnation::generate(), Incarnation::generate());
        let mut starts = Starts::default();
        starts.attached(&agent, new, 2);
        starts.attached(&agent, old, 1);
        assert!(!starts.spoke(1));
        assert!(starts.is_over(&agent, old, false));
        assert!(!starts.is_over(&agent, new, false));
    }

    #[test]
    fn a_start_is_over_when_another_follows_unless_it_comes_back_and_speaks() {
        let agent: AgentId = "x".parse().expect("a name");
        let (old, new) = (Incarnation::generate(), Incarnation::generate());
        let mut starts = Starts::default();
        assert!(!starts.is_over(&agent, old, false));
        starts.attached(&agent, old, 1);
        starts.attached(&agent, old, 2);
        assert!(!starts.spoke(1) && !starts.spoke(2));
        assert!(!starts.is_over(&agent, old, false));
        starts.attached(&agent, new, 3);
        assert!(starts.is_over(&agent, old, false));
        assert!(!starts.is_over(&agent, new, false));
        assert!(!starts.spoke(2) && !starts.spoke(3));
        // It is back. Its Hello alone could be an old one.
        starts.attached(&agent, old, 4);
        assert!(!starts.spoke(3));
        assert!(starts.spoke(4), "a start that was followed goes on");
        assert!(!starts.spoke(4), "said once");
        // Now each of the two owes an end, and one that only its spool knew does not.
        for (incarnation, is_over) in [(old, false), (new, false), (Incarnation::generate(), true)]
        {
            assert_eq!(starts.is_over(&agent, incarnation, true), is_over);
        }
    }
}
