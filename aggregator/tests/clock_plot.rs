//! The figure of a clock: the true offset lies in the band that is drawn, epochs
//! end where the clock stepped, and thinning only ever widens.

use std::collections::BTreeMap;

use gapscope_aggregator::align::epoch::Ending;
use gapscope_aggregator::align::map::{ClockMap, Records};
use gapscope_aggregator::report::clock::AgentClock;
use gapscope_aggregator::report::clock_plot::{Plot, Span, all, plots, sketch};
use gapscope_proto::clock::ClockKey;
use gapscope_proto::ids::AgentId;

mod simulated;
use simulated::{Drift, MS, Path, Rng, S, World, server_key};

fn agent_key() -> ClockKey {
    ClockKey {
        boot_id: "agent".into(),
        time_namespace: 2,
    }
}

fn plot(world: &World, seed: u64) -> Plot {
    let exchanges = world.exchanges(&mut Rng(seed));
    let mut round_trips: Vec<(i64, i64)> = exchanges
        .iter()
        .map(|e| (e.a1_ns, (e.a2_ns - e.a1_ns) - (e.s2_ns - e.s1_ns)))
        .collect();
    round_trips.sort_unstable();
    let records = Records {
        exchanges,
        anchors: world.anchors(),
    };
    let clocks = ClockMap::new(server_key(), &BTreeMap::from([(agent_key(), records)]));
    let agent: AgentId = "agent-1".parse().expect("a name");
    let key = agent_key();
    let agents = [AgentClock {
        agent: &agent,
        clock: &key,
        origin_ns: world.agent_zero,
        exchanges: round_trips.len(),
        round_trips: &round_trips,
        wall_error: None,
    }];
    plots(&clocks, &agents).remove(0)
}

/// The band at a moment, straight between its points.
fn at(band: &[Span], at_s: f64) -> Option<(f64, f64)> {
    let after = band.partition_point(|s| s.at_s < at_s);
    let (a, b) = (band.get(after.checked_sub(1)?)?, band.get(after)?);
    if b.at_s <= a.at_s {
        return Some((a.lo_us.min(b.lo_us), a.hi_us.max(b.hi_us)));
    }
    let share = (at_s - a.at_s) / (b.at_s - a.at_s);
    let mix = |x: f64, y: f64| x + (y - x) * share;
    Some((mix(a.lo_us, b.lo_us), mix(a.hi_us, b.hi_us)))
}

/// Asks a thousand moments; gives back how many lay inside an epoch.
fn truth_is_inside(world: &World, plot: &Plot) -> usize {
    let mut asked = 0;
    for k in 1..1_000 {
        let t = world.duration * f64::from(k) / 1_000.0;
        let agent = world.agent(t);
        let truth = world.server(t) - agent;
        let at_s = (agent - world.agent_zero) as f64 / 1e9;
        for epoch in &plot.epochs {
            let Some((low, high)) = at(&epoch.band, at_s) else {
                continue;
            };
            let truth_us = (truth - epoch.line.at(agent)) as f64 / 1e3;
            // A thousandth of a us: the figure's numbers are floats.
            assert!(
                low - 0.001 <= truth_us && truth_us <= high + 0.001,
                "at {at_s} s: {truth_us} not in {low}..{high}"
            );
            asked += 1;
        }
    }
    asked
}

#[test]
fn the_truth_lies_in_the_band_that_is_drawn() {
    let mut drift = Drift::steady(-5_000_000_000_000, 37.0);
    drift.wander = (40_000.0, 1e-11, 0.3);
    // Long enough for the band to be thinned.
    let world = World::new(Path::quiet(2.0 * MS, 0.4 * MS), drift, 6_000.0 * S);
    let plot = plot(&world, 7);
    assert_eq!(plot.epochs.len(), 1);
    assert!(plot.epochs[0].band.len() <= 800, "thinned");
    assert!(truth_is_inside(&world, &plot) > 900);
    let drift = plot.epochs[0].drift_ppm.expect("long enough");
    assert!((drift.0 - 37.0).abs() < 1.0, "{drift:?}");
    // The drift is out of it: 37 ppm are 222 ms in this time.
    assert!(plot.epochs[0].band.iter().all(|s| s.hi_us < 5_000.0));
    assert!(plot.round_trips.len() <= 402);
    assert!(plot.round_trips.iter().all(|s| s.lo_us >= 2_400.0));
}

#[test]
fn an_epoch_ends_where_the_clock_stepped_and_that_is_marked() {
    let mut world = World::new(
        Path::quiet(0.3 * MS, 0.3 * MS),
        Drift::steady(7_000_000_000, -12.0),
        60.0 * S,
    );
    world.jumps = vec![(30.4 * S, 0.5 * S)];
    let plot = plot(&world, 11);
    let endings: Vec<Ending> = plot.epochs.iter().map(|e| e.ended).collect();
    assert_eq!(endings, [Ending::Step, Ending::DataEnd]);
    assert!((29.0..30.5).contains(&plot.epochs[0].extent_s.1));
    assert_eq!(plot.unions_s.len(), 1);
    assert!(plot.unions_s[0].0 <= 30.4 && 30.4 <= plot.unions_s[0].1);
    assert!(truth_is_inside(&world, &plot) > 900);
    let svg = all(std::slice::from_ref(&plot)).document();
    for word in [
        "ended by step",
        "class=\"union\"",
        "class=\"band\"",
        "epoch 1: offset -4992.500",
    ] {
        assert!(svg.contains(word), "{word} is missing");
    }
    assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
    let table = sketch(&[plot]);
    assert_eq!(table.rows.len(), 2);
    assert_eq!(table.rows[0].last().map(String::as_str), Some("step"));
}

#[test]
fn a_clock_without_a_band_says_why() {
    let agent: AgentId = "agent-1".parse().expect("a name");
    let (own, other) = (server_key(), agent_key());
    let clocks = ClockMap::new(server_key(), &BTreeMap::new());
    let of = |clock| AgentClock {
        agent: &agent,
        clock,
        origin_ns: 0,
        exchanges: 0,
        round_trips: &[],
        wall_error: None,
    };
    let found = plots(&clocks, &[of(&own), of(&other)]);
    let svg = all(&found).document();
    assert!(svg.contains("exactly 0") && svg.contains("no exchange relates it"));
}
