//! From the clock in which a fault was stamped to an agent's clock.
//!
//! Equal clock keys are one clock: the offset is exactly 0, unless exchanges
//! prove otherwise; then the measured bounds are used and that is said.

use std::collections::BTreeMap;

use gapscope_proto::clock::ClockKey;
use gapscope_proto::fault::Span;
use gapscope_proto::host::{Anchor, Exchange};

use super::epoch::Ending;
use super::track::{Track, limits};
use super::window::Assumptions;

/// What is known of one agent clock.
#[derive(Debug, Clone, Default)]
pub struct Records {
    /// Its exchanges, with whatever aggregator clock.
    pub exchanges: Vec<Exchange>,
    /// Its host's clocks read together.
    pub anchors: Vec<Anchor>,
}

/// How an agent's clock stands to the aggregator's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Relation {
    /// It is the same clock.
    Same,
    /// Different clocks, bounded by exchanges.
    Bounded(Track),
}

/// The clocks of a run.
#[derive(Debug, Clone)]
pub struct ClockMap {
    server: ClockKey,
    agents: BTreeMap<ClockKey, Relation>,
    caveats: Vec<String>,
}

impl ClockMap {
    /// From what is known of each agent clock.
    pub fn new(server: ClockKey, records: &BTreeMap<ClockKey, Records>) -> Self {
        let mut agents = BTreeMap::new();
        let mut caveats = Vec::new();
        agents.insert(server.clone(), Relation::Same);
        for (clock, known) in records {
            let with_server: Vec<Exchange> = known
                .exchanges
                .iter()
                .filter(|e| e.server == server)
                .cloned()
                .collect();
            if clock == &server {
                let (bounds, _) = limits(&with_server);
                let is_another = bounds
                    .iter()
                    .any(|b| b.upper.theta_ns < 0 || b.lower.theta_ns > 0);
                if !is_another {
                    continue;
                }
                caveats.push(format!(
                    "clock {}: agent and aggregator name the same clock, but exchanges prove an \
                     offset; the measured bounds are used",
                    short(clock)
                ));
            }
            if let Some(track) = Track::new(&with_server, &known.anchors, &Assumptions::default()) {
                agents.insert(clock.clone(), Relation::Bounded(track));
            }
        }
        name_aggregator_steps(&mut agents);
        for (clock, relation) in &agents {
            if let Relation::Bounded(track) = relation {
                caveats.extend(track_caveats(clock, track));
            }
        }
        Self {
            server,
            agents,
            caveats,
        }
    }

    /// Which clock is the run's timeline.
    pub fn server(&self) -> &ClockKey {
        &self.server
    }

    /// How this clock stands to the aggregator's; none: nothing relates them.
    pub fn relation(&self, clock: &ClockKey) -> Option<&Relation> {
        self.agents.get(clock)
    }

    /// Says that a clock was taken over by another at a new boot of its host.
    pub fn ends_by_boot(&mut self, clock: &ClockKey) {
        if let Some(Relation::Bounded(track)) = self.agents.get_mut(clock) {
            track.ends_by_boot();
        }
    }

    /// What speaks against the alignment.
    pub fn caveats(&self) -> &[String] {
        &self.caveats
    }

    /// Every known clock and how it stands to the aggregator's.
    pub fn relations(&self) -> impl Iterator<Item = (&ClockKey, &Relation)> {
        self.agents.iter()
    }

    /// When `span`, read from `from`, was by clock `to`. None if nothing relates
    /// the two.
    pub fn translate(&self, span: Span, from: &ClockKey, to: &ClockKey) -> Option<Span> {
        if from == to && !matches!(self.agents.get(from), Some(Relation::Bounded(_))) {
            return Some(span);
        }
        if from == to && from != &self.server {
            return Some(span);
        }
        let on_server = match self.agents.get(from)? {
            Relation::Same => span,
            // The aggregator's own stamps are its own, whatever an agent that
            // names the same clock says.
            Relation::Bounded(_) if from == &self.server => span,
            Relation::Bounded(track) => Span {
                earliest_ns: track.server_span(span.earliest_ns)?.0,
                latest_ns: track.server_span(span.latest_ns)?.1,
            },
        };
        Some(match self.agents.get(to)? {
            Relation::Same => on_server,
            Relation::Bounded(track) => Span {
                earliest_ns: track.agent_span(on_server.earliest_ns)?.0,
                latest_ns: track.agent_span(on_server.latest_ns)?.1,
            },
        })
    }

    /// When a reading of clock `from` was on the run's timeline. None if nothing
    /// relates the two.
    pub fn on_timeline(&self, at_ns: i64, from: &ClockKey) -> Option<Span> {
        self.agents.get(from)?.on_timeline(at_ns)
    }
}

impl Relation {
    /// When a reading of this clock was on the run's timeline. None if nothing is known
    /// of that time.
    pub fn on_timeline(&self, at_ns: i64) -> Option<Span> {
        let (earliest_ns, latest_ns) = match self {
            Self::Same => (at_ns, at_ns),
            Self::Bounded(track) => track.server_span(at_ns)?,
        };
        Some(Span {
            earliest_ns,
            latest_ns,
        })
    }
}

/// The moments on the aggregator's clock between which a track's epoch ended,
/// and whether the offset rose.
fn step_on_server(track: &Track, epoch: usize) -> Option<(i64, i64, bool)> {
    let old = track.epochs().get(epoch)?;
    let new = track.epochs().get(epoch + 1)?;
    let was = old.corridor.as_ref()?.at(old.to_ns);
    let is = new.corridor.as_ref()?.at(new.from_ns);
    let begin = old.to_ns.saturating_add(was.lo_ns);
    let end = new.from_ns.saturating_add(is.hi_ns);
    Some((
        begin.min(end),
        begin.max(end),
        is.middle_ns() > was.middle_ns(),
    ))
}

/// If every agent's clock stepped at once, and the same way, it was the
/// aggregator's that did.
fn name_aggregator_steps(agents: &mut BTreeMap<ClockKey, Relation>) {
    let mut found: Vec<(ClockKey, usize, (i64, i64, bool))> = Vec::new();
    let mut tracks = 0;
    for (clock, relation) in agents.iter() {
        if let Relation::Bounded(track) = relation {
            tracks += 1;
            found.extend((0..track.epochs().len()).filter_map(|epoch| {
                let ended = track.epochs()[epoch].ended;
                (ended == Ending::Step || ended == Ending::LevelShift)
                    .then(|| step_on_server(track, epoch))
                    .flatten()
                    .map(|at| (clock.clone(), epoch, at))
            }));
        }
    }
    if tracks < 2 {
        return;
    }
    for (clock, epoch, at) in &found {
        let mut others: Vec<&ClockKey> = found
            .iter()
            .filter(|(_, _, o)| o.0 <= at.1 && at.0 <= o.1 && o.2 == at.2)
            .map(|(clock, _, _)| clock)
            .collect();
        others.dedup();
        if others.len() == tracks
            && let Some(Relation::Bounded(track)) = agents.get_mut(clock)
        {
            track.rename(*epoch, Ending::AggregatorStep);
        }
    }
}

fn track_caveats(clock: &ClockKey, track: &Track) -> Vec<String> {
    let name = short(clock);
    let mut caveats = Vec::new();
    for epoch in track.epochs() {
        let what = match epoch.ended {
            Ending::DataEnd | Ending::Boot => continue,
            Ending::Suspend => "its host was suspended",
            Ending::Step => "the exchanges prove a step of a clock",
            Ending::AggregatorStep => "all agents stepped at once: the aggregator's clock did",
            Ending::LevelShift => {
                "the offset moved by less than a round trip: a small step is suspected"
            }
            Ending::DriftChange => "the drift changed faster than assumed, or a clock stepped",
        };
        caveats.push(format!(
            "clock {name}: {what}; times near it are known to the union of the bounds before and \
             after"
        ));
    }
    let faster = track.epochs().iter().map(|e| e.kappa_factor).max();
    if let Some(factor) = faster.filter(|f| *f > 1) {
        caveats.push(format!(
            "clock {name}: its drift changed up to {factor} times faster than assumed; the bounds \
             are widened for it"
        ));
    }
    let skipped: usize = track.epochs().iter().map(|e| e.skipped_windows).sum();
    if skipped > 0 {
        caveats.push(format!(
            "clock {name}: its drift changed too fast for {skipped} of the longer windows: they \
             are left out"
        ));
    }
    if track.epochs().iter().any(|e| e.corridor.is_none()) {
        caveats.push(format!(
            "clock {name}: between two steps no exchange is left: nothing is known of the time \
             between"
        ));
    }
    if track.rejected > 0 {
        caveats.push(format!(
            "clock {name}: {} exchanges hold readings that cannot be; they are left out",
            track.rejected
        ));
    }
    caveats.sort_unstable();
    caveats.dedup();
    caveats
}

/// A clock's name for people: the beginning of its boot id, and its time
/// namespace.
pub fn short(clock: &ClockKey) -> String {
    let head: String = clock.boot_id.chars().take(8).collect();
    format!("{head}/{}", clock.time_namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ClockKey {
        ClockKey {
            boot_id: name.into(),
            time_namespace: 0,
        }
    }

    fn known(exchanges: Vec<Exchange>) -> Records {
        Records {
            exchanges,
            anchors: Vec::new(),
        }
    }

    fn exchange(a1: i64, offset: i64) -> Exchange {
        Exchange {
            a1_ns: a1,
            s1_ns: a1 + 100 + offset,
            s2_ns: a1 + 110 + offset,
            a2_ns: a1 + 200,
            server: key("s"),
        }
    }

    fn point(ns: i64) -> Span {
        Span {
            earliest_ns: ns,
            latest_ns: ns,
        }
    }

    #[test]
    fn one_clock_is_exact() {
        let map = ClockMap::new(
            key("s"),
            &BTreeMap::from([(key("s"), known(vec![exchange(0, 0), exchange(1_000, 0)]))]),
        );
        assert_eq!(
            map.translate(point(5), &key("s"), &key("s")),
            Some(point(5))
        );
        assert!(map.caveats().is_empty());
    }

    #[test]
    fn one_clock_without_an_exchange_is_exact() {
        let map = ClockMap::new(key("s"), &BTreeMap::new());
        assert_eq!(
            map.translate(point(5), &key("s"), &key("s")),
            Some(point(5))
        );
        assert_eq!(
            map.translate(point(5), &key("x"), &key("x")),
            Some(point(5))
        );
    }

    #[test]
    fn a_lie_about_one_clock_is_flagged_and_the_bounds_are_used() {
        let map = ClockMap::new(
            key("s"),
            &BTreeMap::from([(key("s"), known(vec![exchange(0, 5_000)]))]),
        );
        assert_eq!(map.caveats().len(), 1);
        let there = map
            .translate(point(6_000), &key("s"), &key("s"))
            .expect("bounded");
        assert!(there.earliest_ns <= 1_000 && 1_000 <= there.latest_ns);
        assert!(there.latest_ns - there.earliest_ns <= 200);
    }

    #[test]
    fn two_clocks_give_an_interval_and_a_third_one_none() {
        let map = ClockMap::new(
            key("s"),
            &BTreeMap::from([(key("a"), known(vec![exchange(0, 7_000_000)]))]),
        );
        let there = map
            .translate(point(7_000_050), &key("s"), &key("a"))
            .expect("bounded");
        assert!(there.earliest_ns <= 50 && 50 <= there.latest_ns);
        let back = map
            .translate(point(50), &key("a"), &key("s"))
            .expect("bounded");
        assert!(back.earliest_ns <= 7_000_050 && 7_000_050 <= back.latest_ns);
        assert_eq!(map.translate(point(5), &key("x"), &key("a")), None);
    }
}
