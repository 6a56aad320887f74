//! From the clock in which a fault was stamped to an agent's clock.
//!
//! Equal clock keys are one clock: the offset is exactly 0, unless exchanges
//! prove otherwise; then the measured bounds are used and that is said.

use std::collections::BTreeMap;

use gapscope_proto::clock::ClockKey;
use gapscope_proto::fault::Span;
use gapscope_proto::host::Exchange;

use super::bound::{RHO_PPM, ThetaBound};
use super::exchange::offset_bounds;

/// How an agent's clock stands to the aggregator's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Relation {
    /// It is the same clock.
    Same,
    /// Different clocks, bounded by exchanges.
    Bounded(ThetaBound),
}

/// The clocks of a run.
#[derive(Debug, Clone)]
pub struct ClockMap {
    server: ClockKey,
    agents: BTreeMap<ClockKey, Relation>,
    caveats: Vec<String>,
}

impl ClockMap {
    /// From the exchanges of each agent clock with the aggregator's clock.
    pub fn new(server: ClockKey, exchanges: &BTreeMap<ClockKey, Vec<Exchange>>) -> Self {
        let mut agents = BTreeMap::new();
        let mut caveats = Vec::new();
        agents.insert(server.clone(), Relation::Same);
        for (clock, all) in exchanges {
            let with_server: Vec<_> = all
                .iter()
                .filter(|e| e.server == server)
                .map(offset_bounds)
                .collect();
            let same = clock == &server;
            let contradicts_same = with_server
                .iter()
                .any(|b| b.upper.theta_ns < 0 || b.lower.theta_ns > 0);
            if same && !contradicts_same {
                continue;
            }
            let Some(bound) = ThetaBound::new(&with_server, RHO_PPM) else {
                continue;
            };
            if same {
                caveats.push(format!(
                    "clock {}: agent and aggregator name the same clock, but exchanges prove an \
                     offset; the measured bounds are used",
                    short(clock)
                ));
            }
            if bound.is_contradictory() {
                caveats.push(format!(
                    "clock {}: no offset with a drift of at most {RHO_PPM} ppm fits the \
                     exchanges: a clock was stepped or suspended, and times relative to faults \
                     are not to be relied on",
                    short(clock)
                ));
            }
            agents.insert(clock.clone(), Relation::Bounded(bound));
        }
        Self {
            server,
            agents,
            caveats,
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
            Relation::Bounded(bound) => Span {
                earliest_ns: bound.server_span(span.earliest_ns).0,
                latest_ns: bound.server_span(span.latest_ns).1,
            },
        };
        Some(match self.agents.get(to)? {
            Relation::Same => on_server,
            Relation::Bounded(bound) => Span {
                earliest_ns: bound.agent_span(on_server.earliest_ns).0,
                latest_ns: bound.agent_span(on_server.latest_ns).1,
            },
        })
    }
}

fn short(clock: &ClockKey) -> String {
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
            &BTreeMap::from([(key("s"), vec![exchange(0, 0), exchange(1_000, 0)])]),
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
            &BTreeMap::from([(key("s"), vec![exchange(0, 5_000)])]),
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
            &BTreeMap::from([(key("a"), vec![exchange(0, 7_000_000)])]),
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
