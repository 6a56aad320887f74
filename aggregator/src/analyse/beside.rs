//! What is known beside the probes' outcomes: connections that the agents looked
//! at, which address served whom when, and what names were looked up. None of it
//! enters a number of a probe.

use std::collections::{BTreeMap, HashMap};

use gapscope_proto::host::Inspection;
use gapscope_proto::plan::{ClientGroup, ClientKind};
use gapscope_proto::sample::{Outcome, Phase, Style};

use super::caveat::Caveat;
use super::load::{LoadError, Names};
use super::timeline::Aligned;
use crate::store::frame::inspections_of;
use crate::store::manifest::Manifest;
use crate::store::reader::RunFolder;

/// A connection that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Index of the agent's clock.
    pub timeline: usize,
    /// What was seen.
    pub seen: Inspection,
}

/// Clients of one kind of a target, at one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// Index of the agent's clock.
    pub timeline: usize,
    /// Which target.
    pub target: String,
    /// The address that was connected to.
    pub address: String,
    /// Style and kind; an interval where that tells kinds apart.
    pub who: (Style, ClientKind, i64),
    /// How many of them.
    pub clients: u64,
    /// Probes answered well.
    pub answers: u64,
    /// Probes not answered well, the agent's own trouble left out.
    pub bad: u64,
    /// First and last good answer, by the agent's clock.
    pub answered_ns: Option<(i64, i64)>,
}

/// Look-ups of a target's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LookUps {
    /// How many probes looked it up.
    pub count: u64,
    /// How many of them ended there.
    pub failed: u64,
    /// The longest.
    pub took_max_ns: u64,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Beside {
    /// In order of target, agent and time.
    pub looks: Vec<Look>,
    /// In order of target, agent, first answer.
    pub served: Vec<Served>,
    /// By index of the agent's clock and target.
    pub look_ups: BTreeMap<(usize, String), LookUps>,
}

/// Which clock a start of an agent goes by.
type Clocks = HashMap<(String, String), usize>;

/// Reads the looks, and adds what the samples showed. The agents are in the order of
/// the timelines.
///
/// # Errors
/// When a table cannot be read.
pub fn beside(
    folder: &RunFolder,
    agents: &[Aligned],
    traffic: AllTraffic,
) -> Result<Beside, LoadError> {
    let clocks: Clocks = agents
        .iter()
        .enumerate()
        .flat_map(|(at, aligned)| {
            let agent = aligned.agent.agent.to_string();
            let lives = aligned.agent.lives.iter();
            lives.map(move |(incarnation, _)| ((agent.clone(), incarnation.to_string()), at))
        })
        .collect();
    let mut looks: Vec<Look> = inspections_of(&folder.inspections()?.collect()?)?
        .into_iter()
        .filter_map(|(start, seen)| {
            let timeline = *clocks.get(&start)?;
            Some(Look { timeline, seen })
        })
        .collect();
    looks.sort_by(|a, b| {
        (&a.seen.target, a.timeline, a.seen.at_ns).cmp(&(&b.seen.target, b.timeline, b.seen.at_ns))
    });
    Ok(Beside {
        looks,
        served: in_order(traffic.served),
        look_ups: traffic.look_ups,
    })
}

fn group_of(groups: &[ClientGroup], target: &str, style: Style, client: u16) -> (ClientKind, i64) {
    groups
        .iter()
        .find(|group| {
            group.target.as_str() == target
                && group.style == style
                && group.client_numbers().any(|number| number == client)
        })
        .map_or((ClientKind::Bare, 0), |group| {
            let interval = match group.kind {
                ClientKind::Idle => i64::try_from(group.interval_ns).unwrap_or(0),
                _ => 0,
            };
            (group.kind, interval)
        })
}

/// Which address served whom and what names were looked up, of all that was read.
#[derive(Debug, Default)]
pub struct AllTraffic {
    served: Vec<Served>,
    look_ups: BTreeMap<(usize, String), LookUps>,
}

/// The same, of one agent, target and style, while its samples are read.
#[derive(Debug)]
pub struct Traffic<'a> {
    of: &'a mut AllTraffic,
    timeline: usize,
    target: &'a str,
    style: Style,
    look_ups: LookUps,
    /// Of each client, by number: at which address, by its name's number.
    at: Vec<Vec<(u32, Answers)>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Answers {
    good: u64,
    bad: u64,
    first_last_ns: Option<(i64, i64)>,
}

fn widened(span: Option<(i64, i64)>, (first, last): (i64, i64)) -> Option<(i64, i64)> {
    let (from, to) = span.unwrap_or((first, last));
    Some((from.min(first), to.max(last)))
}

impl AllTraffic {
    /// Of one agent's clock, target and style.
    pub fn of<'a>(&'a mut self, timeline: usize, target: &'a str, style: Style) -> Traffic<'a> {
        Traffic {
            of: self,
            timeline,
            target,
            style,
            look_ups: LookUps::default(),
            at: Vec::new(),
        }
    }
}

impl Traffic<'_> {
    /// A probe looked the target's name up, and ended in this phase.
    pub fn looked_up(&mut self, took_ns: u64, ended: Phase) {
        self.look_ups.count += 1;
        self.look_ups.failed += u64::from(ended == Phase::Resolve);
        self.look_ups.took_max_ns = self.look_ups.took_max_ns.max(took_ns);
    }

    /// A client's probe went to this address.
    pub fn served(&mut self, client: u16, address: u32, outcome: Option<Outcome>, ended_ns: i64) {
        let Some(outcome) = outcome.filter(|outcome| *outcome != Outcome::AgentError) else {
            return;
        };
        let client = usize::from(client);
        if client >= self.at.len() {
            self.at.resize(client + 1, Vec::new());
        }
        let of_client = &mut self.at[client];
        // Nearly always the last one again.
        let place = of_client.iter().rposition(|(known, _)| *known == address);
        let place = place.unwrap_or_else(|| {
            of_client.push((address, Answers::default()));
            of_client.len() - 1
        });
        let answers = &mut of_client[place].1;
        if outcome == Outcome::Ok {
            answers.good += 1;
            answers.first_last_ns = widened(answers.first_last_ns, (ended_ns, ended_ns));
        } else {
            answers.bad += 1;
        }
    }

    /// All samples are read.
    pub fn end(self, groups: &[ClientGroup], names: &Names) {
        if self.look_ups.count > 0 {
            let key = (self.timeline, self.target.to_owned());
            let sum = self.of.look_ups.entry(key).or_default();
            sum.count += self.look_ups.count;
            sum.failed += self.look_ups.failed;
            sum.took_max_ns = sum.took_max_ns.max(self.look_ups.took_max_ns);
        }
        for (client, at) in (0..=u16::MAX).zip(&self.at) {
            for (address, answers) in at {
                let (kind, interval) = group_of(groups, self.target, self.style, client);
                let who = (self.style, kind, interval);
                let address = names.word(*address);
                let is_it = |one: &Served| {
                    (
                        one.timeline,
                        one.target.as_str(),
                        one.address.as_str(),
                        one.who,
                    ) == (self.timeline, self.target, address, who)
                };
                let served = &mut self.of.served;
                let place = served.iter().position(is_it).unwrap_or_else(|| {
                    served.push(Served {
                        timeline: self.timeline,
                        target: self.target.to_owned(),
                        address: address.to_owned(),
                        who,
                        clients: 0,
                        answers: 0,
                        bad: 0,
                        answered_ns: None,
                    });
                    served.len() - 1
                });
                let one = &mut served[place];
                one.clients += 1;
                one.answers += answers.good;
                one.bad += answers.bad;
                if let Some(span) = answers.first_last_ns {
                    one.answered_ns = widened(one.answered_ns, span);
                }
            }
        }
    }
}

fn in_order(mut served: Vec<Served>) -> Vec<Served> {
    served.sort_by(|a, b| {
        let key = |one: &Served| {
            (
                one.target.clone(),
                one.timeline,
                one.answered_ns.map_or(i64::MAX, |at| at.0),
                one.address.clone(),
                one.who,
            )
        };
        key(a).cmp(&key(b))
    });
    served
}

/// What has to be said against the run because of it.
pub fn caveats(beside: &Beside, manifest: &Manifest) -> Vec<Caveat> {
    let is_said = manifest
        .plan
        .identity
        .as_deref()
        .is_some_and(|identity| identity.contains("@@"));
    let mut pinned: Vec<&str> = beside
        .looks
        .iter()
        .filter(|look| look.seen.pins() && !is_said)
        .map(|look| look.seen.target.as_str())
        .collect();
    pinned.dedup();
    let mut out = Vec::new();
    for target in pinned {
        if let Ok(target) = target.parse() {
            out.push(Caveat::target(
                "probe_pins_session",
                &target,
                "who answers is asked with @@ or a user variable: behind ProxySQL each probing \
                 session is pinned to one server and loses the proxy's retry",
            ));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_found_in_the_plan() {
        let group = |kind, first_client, interval_ns| ClientGroup {
            target: "t".parse().expect("a name"),
            style: Style::Reused,
            kind,
            first_client,
            clients: 2,
            interval_ns,
            timeouts: gapscope_proto::plan::Timeouts {
                resolve_ns: None,
                connect_ns: None,
                query_ns: None,
            },
        };
        let groups = [
            group(ClientKind::Bare, 0, 10),
            group(ClientKind::Idle, 2, 30),
        ];
        let find = |client| group_of(&groups, "t", Style::Reused, client);
        assert_eq!(find(1), (ClientKind::Bare, 0));
        assert_eq!(find(2), (ClientKind::Idle, 30));
        assert_eq!(find(9), (ClientKind::Bare, 0));
    }
}
