//! What is known beside the probes' outcomes: connections that the agents looked
//! at, which address served whom when, and what names were looked up. None of it
//! enters a number of a probe.

use std::collections::{BTreeMap, HashMap, HashSet};

use gapscope_proto::host::Inspection;
use gapscope_proto::plan::{ClientGroup, ClientKind};
use gapscope_proto::sample::{Outcome, Phase, Style};
use polars::prelude::*;

use super::caveat::Caveat;
use super::load::{LoadError, words};
use super::timeline::Aligned;
use crate::store::frame::inspections_of;
use crate::store::manifest::Manifest;
use crate::store::reader::RunFolder;
use crate::store::schema::samples;

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

/// Reads it. The agents are in the order of the timelines.
///
/// # Errors
/// When a table cannot be read.
pub fn beside(folder: &RunFolder, agents: &[Aligned]) -> Result<Beside, LoadError> {
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
        served: served(folder, &clocks)?,
        look_ups: look_ups(folder, &clocks)?,
    })
}

/// Whose row each row of a table is.
fn starts(table: &DataFrame, clocks: &Clocks) -> Result<Vec<Option<usize>>, LoadError> {
    let agents = words(table, samples::AGENT_ID, str::to_owned)?;
    let incarnations = words(table, samples::INCARNATION, str::to_owned)?;
    Ok(agents
        .into_iter()
        .zip(incarnations)
        .map(|(agent, incarnation)| clocks.get(&(agent?, incarnation?)).copied())
        .collect())
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

fn served(folder: &RunFolder, clocks: &Clocks) -> Result<Vec<Served>, LoadError> {
    let ok = || col(samples::OUTCOME).eq(lit(Outcome::Ok.as_str()));
    let at = || col(samples::FINISHED_NS).filter(ok());
    let table = folder
        .samples()?
        .filter(
            col(samples::PEER)
                .is_not_null()
                .and(col(samples::OUTCOME).neq(lit(Outcome::AgentError.as_str()))),
        )
        .group_by([
            col(samples::AGENT_ID),
            col(samples::INCARNATION),
            col(samples::TARGET),
            col(samples::STYLE),
            col(samples::CLIENT),
            col(samples::PEER),
        ])
        .agg([
            ok().cast(DataType::UInt64).sum().alias("answers"),
            ok().not().cast(DataType::UInt64).sum().alias("bad"),
            at().min().alias("first"),
            at().max().alias("last"),
        ])
        .collect()?;
    let timelines = starts(&table, clocks)?;
    let targets = words(&table, samples::TARGET, str::to_owned)?;
    let styles = words(&table, samples::STYLE, |word| word.parse::<Style>().ok())?;
    let peers = words(&table, samples::PEER, str::to_owned)?;
    let clients = table.column(samples::CLIENT)?.u16()?;
    let answers = table.column("answers")?.u64()?;
    let bad = table.column("bad")?.u64()?;
    let first = table.column("first")?.i64()?;
    let last = table.column("last")?.i64()?;
    let groups = &folder.manifest().plan.groups;
    let mut found: Vec<Served> = Vec::new();
    let mut seen: HashSet<(usize, u16)> = HashSet::new();
    for i in 0..table.height() {
        let (Some(timeline), Some(target), Some(Some(style)), Some(address), Some(client)) = (
            timelines[i],
            targets[i].clone(),
            styles[i],
            peers[i].clone(),
            clients.get(i),
        ) else {
            continue;
        };
        let (kind, interval) = group_of(groups, &target, style, client);
        let who = (style, kind, interval);
        let place = found.iter().position(|one| {
            (one.timeline, &one.target, &one.address, one.who) == (timeline, &target, &address, who)
        });
        let place = place.unwrap_or_else(|| {
            found.push(Served {
                timeline,
                target,
                address,
                who,
                clients: 0,
                answers: 0,
                bad: 0,
                answered_ns: None,
            });
            found.len() - 1
        });
        let one = &mut found[place];
        // A client whose agent was started again is one client still.
        one.clients += u64::from(seen.insert((place, client)));
        one.answers += answers.get(i).unwrap_or(0);
        one.bad += bad.get(i).unwrap_or(0);
        if let (Some(first), Some(last)) = (first.get(i), last.get(i)) {
            let (from, to) = one.answered_ns.unwrap_or((first, last));
            one.answered_ns = Some((from.min(first), to.max(last)));
        }
    }
    found.sort_by(|a, b| {
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
    Ok(found)
}

fn look_ups(
    folder: &RunFolder,
    clocks: &Clocks,
) -> Result<BTreeMap<(usize, String), LookUps>, LoadError> {
    let ended_there = col(samples::PHASE).eq(lit(Phase::Resolve.as_str()));
    let table = folder
        .samples()?
        .filter(col(samples::RESOLVE_NS).is_not_null())
        .group_by([
            col(samples::AGENT_ID),
            col(samples::INCARNATION),
            col(samples::TARGET),
        ])
        .agg([
            col(samples::SEQ)
                .count()
                .cast(DataType::UInt64)
                .alias("count"),
            ended_there.cast(DataType::UInt64).sum().alias("failed"),
            col(samples::RESOLVE_NS).max().alias("most"),
        ])
        .collect()?;
    let timelines = starts(&table, clocks)?;
    let targets = words(&table, samples::TARGET, str::to_owned)?;
    let count = table.column("count")?.u64()?;
    let failed = table.column("failed")?.u64()?;
    let most = table.column("most")?.u64()?;
    let mut found: BTreeMap<(usize, String), LookUps> = BTreeMap::new();
    for i in 0..table.height() {
        let (Some(timeline), Some(target)) = (timelines[i], targets[i].clone()) else {
            continue;
        };
        let one = found.entry((timeline, target)).or_default();
        one.count += count.get(i).unwrap_or(0);
        one.failed += failed.get(i).unwrap_or(0);
        one.took_max_ns = one.took_max_ns.max(most.get(i).unwrap_or(0));
    }
    Ok(found)
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
