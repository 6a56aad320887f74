//! `/metrics`, as OpenMetrics text.
//!
//! Everything is put together when it is asked for, from sums that are kept anyway.
//! The number of series is bounded: pairs of target and style ([`MOST_LANES`]),
//! agents ([`MOST_AGENTS`]); no client has a series of its own.
//! `aggregator/docs/live.md` says what each one means; a test holds that table, and
//! the dashboard beside it, to this list.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;

use gapscope_proto::ids::AgentId;
use gapscope_proto::sample::{Outcome, Style};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::ingest::hub::Hub;
use crate::live::presence::Seat;
use crate::live::totals::{CLASSES_NS, Counts, MOST_LANES, OTHER};

/// The type of what is sent.
pub const CONTENT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Agents that have series of their own; further ones are only counted.
pub const MOST_AGENTS: usize = 500;

/// Of one agent in the runs that go on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Part {
    bound_ns: Option<u64>,
    behind_ns: Option<u64>,
}

/// All that is told.
#[derive(Debug, Default)]
pub struct Sums {
    lanes: BTreeMap<(String, Style), Counts>,
    bad_clients: BTreeMap<(String, String), u64>,
    seats: BTreeMap<AgentId, Seat>,
    parts: BTreeMap<AgentId, Part>,
    running: u64,
    lost: u64,
    missed: u64,
    cut_off: u64,
    terminals: u64,
    browsers: u64,
}

impl Sums {
    /// Reads them.
    pub async fn gather(hub: &Hub) -> Self {
        let live = hub.live();
        let read = |of: &std::sync::atomic::AtomicU64| of.load(Ordering::Relaxed);
        let mut sums = Self {
            lanes: live.totals.lanes(),
            seats: live.presence.all(),
            lost: read(&live.totals.lost),
            missed: read(&live.totals.missed),
            cut_off: read(&live.totals.cut_off),
            terminals: read(&live.totals.terminals),
            browsers: read(&live.totals.browsers),
            ..Self::default()
        };
        for (_, feed) in hub.feeds().await {
            feed.look(|model, now| {
                if !model.is_running() {
                    return;
                }
                sums.running += 1;
                for (mut key, count) in model.bad_clients() {
                    let is_full = sums.bad_clients.len() >= MOST_LANES;
                    if is_full && !sums.bad_clients.contains_key(&key) {
                        OTHER.clone_into(&mut key.0);
                    }
                    *sums.bad_clients.entry(key).or_default() += count;
                }
                for (agent, bound_ns, behind_ns) in model.agents(now) {
                    let part = sums.parts.entry(agent.clone()).or_default();
                    // The worst of its runs.
                    part.bound_ns = part.bound_ns.max(bound_ns);
                    part.behind_ns = part.behind_ns.max(behind_ns);
                }
            });
        }
        sums
    }
}

/// Writes them down.
///
/// # Errors
/// When a text cannot be written.
pub fn encode(sums: Sums) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(sums));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    fn counters<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = ([(&'l str, &'l str); N], u64)>,
    ) -> fmt::Result {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            metric
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn gauges<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        values: impl Iterator<Item = ([(&'l str, &'l str); N], f64)>,
    ) -> fmt::Result {
        let mut metric = self
            .0
            .encode_descriptor(name, help, unit, MetricType::Gauge)?;
        for (labels, value) in values {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl Collector for Sums {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut out = Writer(encoder);
        let lane = |(target, style): &'_ (String, Style)| (target.clone(), style.as_str());
        let lanes: Vec<((String, &str), &Counts)> = self
            .lanes
            .iter()
            .map(|(key, counts)| (lane(key), counts))
            .collect();
        out.counters(
            "gapscope_probes",
            "Probes that were stored, by target, style and outcome",
            lanes.iter().flat_map(|((target, style), counts)| {
                Outcome::ALL.iter().map(move |outcome| {
                    let labels = [
                        ("target", target.as_str()),
                        ("style", *style),
                        ("outcome", outcome.as_str()),
                    ];
                    (labels, counts.outcomes.get(outcome).copied().unwrap_or(0))
                })
            }),
        )?;
        let of = |number: fn(&Counts) -> u64| {
            lanes.iter().map(move |((target, style), counts)| {
                let labels = [("target", target.as_str()), ("style", *style)];
                (labels, number(counts))
            })
        };
        out.counters(
            "gapscope_late_answers",
            "Answers past the deadline of their run",
            of(|counts| counts.late),
        )?;
        out.counters(
            "gapscope_bad_stretches",
            "How often a client went from good to bad or late",
            of(|counts| counts.stretches),
        )?;
        let mut latency = out.0.encode_descriptor(
            "gapscope_latency",
            "How long answered probes took",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for ((target, style), counts) in &lanes {
            let ends = CLASSES_NS.iter().map(|end| seconds(*end));
            let ends = ends.chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = ends.zip(counts.classes).collect();
            latency
                .encode_family(&[("target", target.as_str()), ("style", *style)])?
                .encode_histogram::<NoLabelSet>(
                    seconds(counts.latency_sum_ns),
                    counts.classes.iter().sum(),
                    &buckets,
                    None,
                )?;
        }
        out.gauges(
            "gapscope_bad_clients",
            "Clients of runs that go on whose newest stored probe was bad",
            None,
            self.bad_clients.iter().map(|((target, style), count)| {
                let labels = [("target", target.as_str()), ("style", style.as_str())];
                (labels, *count as f64)
            }),
        )?;
        out.counter(
            "gapscope_samples_lost",
            "Samples that will never come, at most, as agents declared them",
            self.lost,
        )?;
        self.of_agents(&mut out)?;
        out.gauges(
            "gapscope_runs_running",
            "Runs that go on",
            None,
            std::iter::once(([], self.running as f64)),
        )?;
        out.gauges(
            "gapscope_watchers",
            "Who looks at runs as they go on",
            None,
            [("browser", self.browsers), ("terminal", self.terminals)]
                .into_iter()
                .map(|(kind, count)| ([("kind", kind)], count as f64)),
        )?;
        out.counter(
            "gapscope_watcher_updates_missed",
            "Updates that watchers did not get because they did not keep up",
            self.missed,
        )?;
        out.counter(
            "gapscope_watchers_cut_off",
            "Browsers that were cut off because they read nothing",
            self.cut_off,
        )?;
        out.0
            .encode_descriptor("gapscope_build", "This program", None, MetricType::Info)?
            .encode_info(&[("version", env!("CARGO_PKG_VERSION"))])
    }
}

impl Sums {
    fn of_agents(&self, out: &mut Writer<'_>) -> fmt::Result {
        let connected = self.seats.values().filter(|seat| seat.connected).count();
        let away = self.seats.len() - connected;
        out.gauges(
            "gapscope_agents",
            "Agents seen since the aggregator was started",
            None,
            [("connected", connected), ("away", away)]
                .into_iter()
                .map(|(state, count)| ([("state", state)], count as f64)),
        )?;
        let seats: Vec<(&str, &Seat)> = self
            .seats
            .iter()
            .take(MOST_AGENTS)
            .map(|(id, seat)| (id.as_str(), seat))
            .collect();
        let parts: Vec<(&str, &Part)> = self
            .parts
            .iter()
            .take(MOST_AGENTS)
            .map(|(id, part)| (id.as_str(), part))
            .collect();
        out.gauges(
            "gapscope_agent_connected",
            "Whether an agent is connected",
            None,
            seats
                .iter()
                .map(|(agent, seat)| ([("agent", *agent)], f64::from(u8::from(seat.connected)))),
        )?;
        out.gauges(
            "gapscope_agent_spool",
            "What an agent's spool holds, as it last said",
            Some(&Unit::Bytes),
            seats
                .iter()
                .map(|(agent, seat)| ([("agent", *agent)], seat.spool_bytes as f64)),
        )?;
        out.gauges(
            "gapscope_agent_unacknowledged_samples",
            "Samples that an agent holds and that are not acknowledged, as it last said",
            None,
            seats
                .iter()
                .map(|(agent, seat)| ([("agent", *agent)], seat.unacked_samples as f64)),
        )?;
        out.gauges(
            "gapscope_agent_clock_bound",
            "By how much an agent's times can be off in a run that goes on; absent: not known",
            Some(&Unit::Seconds),
            parts
                .iter()
                .filter_map(|(agent, part)| Some(([("agent", *agent)], seconds(part.bound_ns?)))),
        )?;
        out.gauges(
            "gapscope_ingest_lag",
            "Age of the newest stored sample of an agent in a run that goes on",
            Some(&Unit::Seconds),
            parts
                .iter()
                .filter_map(|(agent, part)| Some(([("agent", *agent)], seconds(part.behind_ns?)))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapscope_proto::clock::ClockKey;

    fn some() -> Sums {
        let mut counts = Counts {
            outcomes: BTreeMap::from([(Outcome::Ok, 3), (Outcome::TimedOut, 1)]),
            late: 1,
            stretches: 2,
            ..Counts::default()
        };
        for took in [400_000, 900_000, 20_000_000_000] {
            counts.answer(took);
        }
        let agent: AgentId = "east-1".parse().expect("a name");
        Sums {
            lanes: BTreeMap::from([(("orders".to_owned(), Style::New), counts)]),
            bad_clients: BTreeMap::from([(("orders".to_owned(), "new".to_owned()), 1)]),
            seats: BTreeMap::from([(
                agent.clone(),
                Seat {
                    connected: true,
                    clock: ClockKey {
                        boot_id: "b".to_owned(),
                        time_namespace: 0,
                    },
                    spool_bytes: 7,
                    unacked_samples: 9,
                },
            )]),
            parts: BTreeMap::from([(
                agent,
                Part {
                    bound_ns: Some(250_000),
                    behind_ns: Some(300_000_000),
                },
            )]),
            running: 1,
            lost: 5,
            missed: 6,
            cut_off: 8,
            terminals: 1,
            browsers: 2,
        }
    }

    #[test]
    fn what_is_written_is_openmetrics() {
        let text = encode(some()).expect("written");
        insta::assert_snapshot!(text.replace(env!("CARGO_PKG_VERSION"), "VERSION"));
        assert!(text.ends_with("# EOF\n"));
        assert!(text.contains("le=\"+Inf\""));
    }

    /// Names with their suffixes, as they are asked for.
    fn names(text: &str) -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let mut names: Vec<String> = lines
            .filter_map(|line| line.split(['{', ' ']).next())
            .map(str::to_owned)
            .collect();
        names.dedup();
        names
    }

    /// Every word in `text` that looks like a metric.
    fn asked(text: &str) -> Vec<String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        text.split(|c: char| !is_part(c))
            .filter(|word| word.starts_with("gapscope_"))
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn every_metric_that_the_dashboard_asks_for_exists() {
        let text = encode(some()).expect("written");
        let known = names(&text);
        let dashboard: serde_json::Value =
            serde_json::from_str(include_str!("../../docs/grafana-dashboard.json")).expect("JSON");
        let mut queries = 0;
        for panel in dashboard["panels"].as_array().expect("panels") {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let query = target["expr"].as_str().expect("a query");
                let words = asked(query);
                assert!(!words.is_empty(), "{query}");
                for word in words {
                    assert!(
                        known.contains(&word),
                        "`{word}` of the dashboard: {known:?}"
                    );
                }
                queries += 1;
            }
        }
        assert!(queries >= 8, "{queries}");
    }

    #[test]
    fn the_table_of_metrics_is_whole() {
        let text = encode(some()).expect("written");
        let page = asked(include_str!("../../docs/live.md"));
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').expect("a name and a type");
            let name = match kind {
                "counter" => format!("{name}_total"),
                "info" => format!("{name}_info"),
                _ => name.to_owned(),
            };
            assert!(page.contains(&name), "`{name}` is not in docs/live.md");
        }
        for word in page {
            assert!(
                text.contains(&word),
                "`{word}` of docs/live.md does not exist"
            );
        }
    }

    #[test]
    fn labels_from_outside_are_escaped_and_bounded() {
        let mut sums = some();
        let seat = sums.seats.values().next().expect("one").clone();
        for n in 0..3 * MOST_AGENTS {
            sums.seats
                .insert(format!("a{n}").parse().expect("a name"), seat.clone());
        }
        let text = encode(sums).expect("written");
        let series = text
            .lines()
            .filter(|l| l.starts_with("gapscope_agent_connected{"));
        assert_eq!(series.count(), MOST_AGENTS);
        assert!(text.contains("gapscope_agents{state=\"connected\"} 1501"));
    }
}
