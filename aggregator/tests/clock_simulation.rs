//! The alignment against simulated clocks whose truth is known.
//!
//! `GAPSCOPE_CLOCK_QUERIES` says how many moments are asked for (10 million by
//! default), `GAPSCOPE_CLOCK_SEED` where to begin. 100 million:
//!
//! ```text
//! GAPSCOPE_CLOCK_QUERIES=100000000 cargo test --release -p gapscope-aggregator --test clock_simulation -- --nocapture
//! ```

#![expect(
    clippy::print_stdout,
    reason = "what is measured is printed, and asserted only where the machine has no say"
)]

mod simulated;

use gapscope_aggregator::align::epoch::Ending;
use gapscope_aggregator::align::track::{Offset, Origin, Track};
use gapscope_aggregator::align::window::Assumptions;
use gapscope_proto::clock::Clock;
use simulated::{Drift, Jitter, MS, Path, Rng, S, US, World};

fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}: not a number: {text}")),
        Err(_) => otherwise,
    }
}

/// A path of any kind that is met.
fn any_path(rng: &mut Rng, duration: f64) -> Path {
    let least = rng.pick(&[30.0 * US, 120.0 * US, MS, 8.0 * MS, 30.0 * MS]);
    let asymmetry = rng.pick(&[0.0, 0.0, 2.0 * MS, 20.0 * MS]);
    let (there, back) = if rng.chance(0.5) {
        (least + asymmetry, least)
    } else {
        (least, least + asymmetry)
    };
    let mean = (there + back) * rng.pick(&[0.01, 0.1, 0.5]);
    let begin = rng.between(0.0, duration);
    Path {
        there,
        back,
        jitter: if rng.chance(0.5) {
            Jitter::Exponential(mean)
        } else {
            Jitter::Pareto(mean * 0.5)
        },
        queue: rng
            .chance(0.3)
            .then_some((begin, begin + 20.0 * S, 30.0 * MS)),
        route: rng
            .chance(0.2)
            .then(|| (rng.between(0.0, duration), 30.0 * MS)),
        lost: if rng.chance(0.3) {
            (0..4)
                .map(|_| {
                    let at = rng.between(0.0, duration);
                    (at, at + rng.between(0.1 * S, 20.0 * S))
                })
                .collect()
        } else {
            Vec::new()
        },
    }
}

/// A drift that keeps to what is assumed: up to 100 ppm, a temperature ramp of
/// 1 ppm a minute, and some wander.
fn any_drift(rng: &mut Rng, duration: f64) -> Drift {
    let period = rng.between(100.0 * S, 2_000.0 * S);
    let frequency = std::f64::consts::TAU / period;
    // Curvature of the wander: at most 0.003 ppm/s of the 0.02 that are assumed.
    let amplitude = rng.between(0.0, 0.003e-6 / 1e9 / (frequency * frequency));
    let begin = rng.between(0.0, duration);
    Drift {
        offset: rng.between(-1e15, 1e15) as i64,
        ppm: rng.between(-100.0, 100.0),
        wander: (
            amplitude,
            frequency,
            rng.between(0.0, std::f64::consts::TAU),
        ),
        ramp: (
            begin,
            begin + rng.between(0.0, 900.0 * S),
            rng.pick(&[-1.0, 0.0, 1.0]) * 1e-6 / 60.0 / 1e9,
        ),
        kicks: Vec::new(),
    }
}

/// A world that keeps to the assumptions: steps are large enough to be proven.
fn lawful(rng: &mut Rng) -> World {
    let duration = rng.between(60.0 * S, 900.0 * S);
    let path = any_path(rng, duration);
    let drift = any_drift(rng, duration);
    let mut world = World::new(path, drift, duration);
    // Larger than any round trip of the scenario that is not an accident.
    let provable = 4.0 * world.path.round_trip() + 70.0 * MS;
    let at = rng.between(0.2, 0.8) * duration;
    match rng.next() % 8 {
        0 => world.asleep.push((at, rng.between(S, 3_600.0 * S))),
        1 => {
            let by = provable + rng.pick(&[MS, 100.0 * MS, S, 10.0 * S]) * rng.unit();
            world
                .jumps
                .push((at, if rng.chance(0.5) { by } else { -by }));
        }
        2 => world
            .agent_paused
            .push((at, rng.between(0.1 * S, 10.0 * S))),
        3 => world
            .aggregator_paused
            .push((at, rng.between(0.1 * S, 10.0 * S))),
        // The agent is started again within the boot.
        4 => world
            .agent_paused
            .push((at, rng.between(2.0 * S, 60.0 * S))),
        _ => {}
    }
    world
}

#[derive(Debug, Default)]
struct Tally {
    asked: u64,
    outside: u64,
    unflagged: u64,
    between: u64,
    /// Moments of which nothing is known.
    unknown: u64,
    asked_back: u64,
    outside_back: u64,
    worst_ns: i64,
    /// Small steps that were suspected and are not there.
    suspected: u64,
}

fn holds(offset: &Offset, theta: i64, wider: i64) -> bool {
    offset.knot.lo_ns.saturating_sub(wider) <= theta
        && theta <= offset.knot.hi_ns.saturating_add(wider)
}

/// Whether the track says that something is wrong at this moment.
fn is_flagged(track: &Track, offset: &Offset) -> bool {
    match offset.origin {
        Origin::Between(_) | Origin::Nothing => true,
        Origin::Epoch(number) => {
            let epoch = &track.epochs()[number];
            let before = number.checked_sub(1).map(|n| track.epochs()[n].ended);
            let suspicious = |why: Ending| !matches!(why, Ending::DataEnd | Ending::Boot);
            epoch.kappa_factor > 1
                || epoch.skipped_windows > 0
                || suspicious(epoch.ended)
                || before.is_some_and(suspicious)
        }
    }
}

fn ask(world: &World, track: &Track, queries: u64, rng: &mut Rng, tally: &mut Tally) {
    for _ in 0..queries {
        let t = rng.unit() * world.duration;
        if world.sleeps(t) {
            continue;
        }
        let reading = world.agent(t);
        let server = world.server(t);
        let theta = server - reading;
        let offset = track.at(reading);
        tally.asked += 1;
        tally.unknown += u64::from(offset.origin == Origin::Nothing);
        if tally.asked.is_multiple_of(512) && offset.origin != Origin::Nothing {
            // The other way round: when was it by the agent's clock?
            tally.asked_back += 1;
            let is_inside = track
                .agent_span(server)
                .is_some_and(|(first, last)| first <= reading && reading <= last);
            tally.outside_back += u64::from(!is_inside);
        }
        tally.between += u64::from(matches!(offset.origin, Origin::Between(_)));
        if !holds(&offset, theta, 0) {
            tally.outside += 1;
            let off = (offset.knot.lo_ns - theta).max(theta - offset.knot.hi_ns);
            tally.worst_ns = tally.worst_ns.max(off);
            if !holds(&offset, theta, offset.hidden_step_ns) && !is_flagged(track, &offset) {
                tally.unflagged += 1;
            }
        }
    }
}

/// A clock that keeps to the assumptions proves nothing against them; gives back
/// how many small steps are suspected.
fn believes_only_what_is_so(world: &World, track: &Track, seed: u64) -> u64 {
    let mut suspected = 0;
    for epoch in track.epochs() {
        assert_eq!(epoch.kappa_factor, 1, "seed {seed}: {world:?}");
        assert_eq!(epoch.skipped_windows, 0, "seed {seed}: {world:?}");
        match epoch.ended {
            Ending::DataEnd => {}
            Ending::LevelShift => suspected += 1,
            Ending::Step => assert!(!world.jumps.is_empty(), "seed {seed}: {world:?}"),
            Ending::Suspend => assert!(!world.asleep.is_empty(), "seed {seed}: {world:?}"),
            other => panic!("seed {seed}: {other:?} {world:?}"),
        }
    }
    suspected
}

fn align(world: &World, rng: &mut Rng, assumed: &Assumptions) -> Option<Track> {
    let exchanges = world.exchanges(rng);
    Track::new(&exchanges, &world.anchors(), assumed)
}

#[test]
fn the_truth_is_inside_at_every_query() {
    let queries = number("GAPSCOPE_CLOCK_QUERIES", 10_000_000);
    let seed = number("GAPSCOPE_CLOCK_SEED", 1);
    let a_world = 50_000;
    let mut tally = Tally::default();
    let mut number = seed;
    while tally.asked < queries {
        let mut rng = Rng(number);
        let world = lawful(&mut rng);
        if let Some(track) = align(&world, &mut rng, &Assumptions::default()) {
            tally.suspected += believes_only_what_is_so(&world, &track, number);
            let before = tally.outside + tally.outside_back;
            ask(
                &world,
                &track,
                a_world.min(queries - tally.asked),
                &mut rng,
                &mut tally,
            );
            if tally.outside + tally.outside_back > before {
                let ends: Vec<_> = track
                    .epochs()
                    .iter()
                    .map(|e| (e.from_ns, e.to_ns, e.ended, e.exchanges, e.kappa_factor))
                    .collect();
                println!(
                    "seed {number}: {} outside, {world:?}\n{ends:?}",
                    tally.outside + tally.outside_back - before
                );
            }
        }
        number += 1;
    }
    println!("seeds {seed} to {}: {tally:?}", number - 1);
    assert_eq!(tally.outside, 0, "from seed {seed}: {tally:?}");
    assert_eq!(tally.outside_back, 0, "from seed {seed}: {tally:?}");
    // An answer that says nothing is not a hit.
    assert!(tally.unknown * 1_000 <= tally.asked, "{tally:?}");
}

#[test]
fn broken_assumptions_are_flagged() {
    let mut tally = Tally::default();
    for seed in 0..150 {
        let mut rng = Rng(0xb0b0 + seed);
        let mut world = lawful(&mut rng);
        world.jumps.clear();
        let at = rng.between(0.2, 0.8) * world.duration;
        match seed % 3 {
            // Steps below a round trip.
            0 => {
                let by = world.path.round_trip() * rng.between(0.1, 0.95);
                world
                    .jumps
                    .push((at, if rng.chance(0.5) { by } else { -by }));
            }
            // A drift far above what is assumed.
            1 => world.drift.ppm = rng.pick(&[-1.0, 1.0]) * rng.between(400.0, 20_000.0),
            // A drift that changes at once.
            _ => world
                .drift
                .kicks
                .push((at, rng.pick(&[-1.0, 1.0]) * rng.between(5.0, 80.0))),
        }
        if let Some(track) = align(&world, &mut rng, &Assumptions::default()) {
            let before = tally.unflagged;
            ask(&world, &track, 4_000, &mut rng, &mut tally);
            if tally.unflagged > before {
                println!("seed {seed}: {} unflagged", tally.unflagged - before);
            }
        }
    }
    println!("broken on purpose: {tally:?}");
    assert!(tally.outside > 0, "nothing was broken: {tally:?}");
    assert!(
        tally.unflagged as f64 <= 0.001 * tally.asked as f64,
        "{tally:?}"
    );
}

#[test]
fn a_step_below_a_round_trip_is_within_the_wider_bound() {
    let mut tally = Tally::default();
    let mut beyond = 0;
    for seed in 0..60 {
        let mut rng = Rng(0xcafe + seed);
        let one_way = rng.pick(&[100.0 * US, MS, 20.0 * MS]);
        let mut path = Path::quiet(one_way, one_way);
        // Too noisy for the step to be suspected.
        path.jitter = Jitter::Exponential(one_way);
        let mut world = World::new(path, any_drift(&mut rng, 120.0 * S), 120.0 * S);
        let by = 1.9 * one_way * rng.between(0.2, 1.0);
        world.jumps.push((60.0 * S, rng.pick(&[-1.0, 1.0]) * by));
        let track = align(&world, &mut rng, &Assumptions::default()).expect("exchanges");
        for _ in 0..2_000 {
            let t = rng.unit() * world.duration;
            let reading = world.agent(t);
            let theta = world.server(t) - reading;
            let offset = track.at(reading);
            tally.asked += 1;
            tally.outside += u64::from(!holds(&offset, theta, 0));
            beyond += u64::from(!holds(&offset, theta, offset.hidden_step_ns));
        }
    }
    println!("hidden steps: {tally:?}, {beyond} beyond the wider bound");
    assert!(tally.outside > 0, "no step was hidden: {tally:?}");
    assert_eq!(beyond, 0);
}

#[test]
fn a_drift_that_jumps_is_said() {
    for seed in 0..20 {
        let mut rng = Rng(0xd0 + seed);
        let mut drift = Drift::steady(0, 10.0);
        drift
            .kicks
            .push((100.0 * S, rng.pick(&[-1.0, 1.0]) * rng.between(40.0, 90.0)));
        let mut world = World::new(Path::quiet(40.0 * US, 40.0 * US), drift, 200.0 * S);
        world.path.jitter = Jitter::Exponential(5.0 * US);
        let track = align(&world, &mut rng, &Assumptions::default()).expect("exchanges");
        let reading = world.agent(100.0 * S);
        assert!(is_flagged(&track, &track.at(reading)), "seed {seed}");
    }
}

/// A warming machine on a quick network: what both mutations must break.
fn warming(send_late: f64) -> World {
    let mut drift = Drift::steady(77_000_000_000, 20.0);
    drift.ramp = (0.0, 1_200.0 * S, 1e-6 / 60.0 / 1e9);
    let mut world = World::new(Path::quiet(40.0 * US, 38.0 * US), drift, 1_200.0 * S);
    world.send_late = send_late;
    world
}

fn misses(world: &World, assumed: &Assumptions) -> u64 {
    let mut rng = Rng(3);
    let mut tally = Tally::default();
    let track = align(world, &mut rng, assumed).expect("exchanges");
    ask(world, &track, 20_000, &mut rng, &mut tally);
    tally.outside
}

#[test]
fn the_check_fails_when_a_send_is_stamped_late() {
    assert_eq!(misses(&warming(0.0), &Assumptions::default()), 0);
    assert!(misses(&warming(50.0 * US), &Assumptions::default()) > 0);
}

#[test]
fn the_check_fails_without_the_second_widening() {
    let without = Assumptions {
        second_widening: false,
        ..Assumptions::default()
    };
    assert!(misses(&warming(0.0), &without) > 0);
}

/// The step's zone, if one of the track's borders holds it.
fn zone(track: &Track, reading: i64) -> Option<(i64, i64)> {
    track
        .epochs()
        .windows(2)
        .map(|e| (e[0].to_ns, e[1].from_ns))
        .find(|(from, to)| (*from..=*to).contains(&reading))
}

#[test]
fn a_step_of_a_round_trip_is_found_within_an_exchange() {
    for seed in 0..60 {
        let mut rng = Rng(900 + seed);
        let one_way = rng.pick(&[2.5 * MS, 10.0 * MS, 30.0 * MS]);
        let mut world = World::new(
            Path::quiet(one_way, one_way),
            Drift::steady(0, rng.between(-50.0, 50.0)),
            90.0 * S,
        );
        let at = rng.between(30.0 * S, 80.0 * S);
        // Round trip with what the ends themselves take.
        let by = 1.1 * (world.path.round_trip() + 20.0 * US) * rng.pick(&[1.0, 1.0, 2.0, 40.0]);
        world.jumps.push((at, by * rng.pick(&[-1.0, 1.0])));
        let exchanges = world.exchanges(&mut rng);
        let track =
            Track::new(&exchanges, &world.anchors(), &Assumptions::default()).expect("exchanges");
        let step = world.agent(at);
        let (from, to) = zone(&track, step).unwrap_or_else(|| panic!("seed {seed}: not found"));
        // The first exchange wholly after the step gives it away; what it may
        // have caught under way is given up with it.
        let proof = exchanges.partition_point(|e| e.a1_ns <= step);
        assert!(to <= exchanges[proof + 1].a1_ns, "seed {seed}: found late");
        let most = S + 4.0 * world.path.round_trip() + 10.0 * MS;
        assert!(((to - from) as f64) < most, "seed {seed}: {from}..{to}");
    }
}

#[test]
fn a_step_on_a_quick_network_is_suspected_where_it_was() {
    for seed in 0..40 {
        let mut rng = Rng(7_000 + seed);
        let mut world = World::new(
            Path::quiet(100.0 * US, 90.0 * US),
            Drift::steady(0, rng.between(-50.0, 50.0)),
            120.0 * S,
        );
        let at = rng.between(40.0 * S, 90.0 * S);
        let by = world.path.round_trip() * rng.pick(&[0.5, 1.1, 2.0]);
        world.jumps.push((at, by * rng.pick(&[-1.0, 1.0])));
        let track = align(&world, &mut rng, &Assumptions::default()).expect("exchanges");
        let (from, to) =
            zone(&track, world.agent(at)).unwrap_or_else(|| panic!("seed {seed}: not found"));
        assert!(((to - from) as f64) < 3.2 * S, "seed {seed}: {from}..{to}");
    }
}

#[test]
fn the_interval_is_hardly_wider_than_half_a_round_trip() {
    for (one_way, asymmetry) in [
        (27.0 * US, 0.0),
        (100.0 * US, 0.0),
        (MS, 0.0),
        (10.0 * MS, 0.0),
        (5.0 * MS, 20.0 * MS),
    ] {
        let mut rng = Rng(11);
        let mut path = Path::quiet(one_way + asymmetry, one_way);
        path.jitter = Jitter::Exponential(0.1 * path.round_trip());
        let mut world = World::new(path, Drift::steady(0, 40.0), 300.0 * S);
        world.drift.wander = (100_000.0, std::f64::consts::TAU / (1_000.0 * S), 0.3);
        let exchanges = world.exchanges(&mut rng);
        let track =
            Track::new(&exchanges, &world.anchors(), &Assumptions::default()).expect("exchanges");
        assert_eq!(track.epochs().len(), 1, "{:?}", track.epochs()[0].ended);
        let smallest = track.epochs()[0].round_trip_min_ns as f64;
        let (mut worst, mut middles) = (0i64, Vec::new());
        // The first and the last second have exchanges on one side only.
        for t in 1..2_990 {
            let t = f64::from(t) * 0.1 * S + 0.5 * S;
            let (reading, server) = (world.agent(t), world.server(t));
            let knot = track.at(reading).knot;
            if t < 298.0 * S {
                worst = worst.max(knot.half_width_ns());
            }
            middles.push((knot.middle_ns() - (server - reading)).abs());
        }
        middles.sort_unstable();
        println!(
            "round trip {:.1} us: half-width at most {:.1} us, middle off p99 {:.1} us",
            smallest / US,
            worst as f64 / US,
            middles[middles.len() * 99 / 100] as f64 / US
        );
        let allowed = 1.05 * smallest / 2.0 + 5.0 * US;
        assert!(
            (worst as f64) <= allowed,
            "round trip {smallest}: {worst} > {allowed}"
        );
    }
}

#[test]
fn every_agent_stepping_at_once_means_the_aggregator_did() {
    use gapscope_aggregator::align::map::{ClockMap, Records, Relation};
    use gapscope_proto::clock::ClockKey;
    let key = |number: u64| ClockKey {
        boot_id: format!("agent-{number}"),
        time_namespace: number,
    };
    let endings = |own: Option<u64>| {
        let mut records = std::collections::BTreeMap::new();
        for number in 0..3u64 {
            let mut rng = Rng(40 + number);
            let mut world = World::new(
                Path::quiet(300.0 * US, 200.0 * US),
                Drift::steady(3_000_000_000_000, 10.0 * number as f64),
                120.0 * S,
            );
            world.agent_zero += number as i64 * 7_000_000_000;
            if own.is_none_or(|own| own == number) {
                world.jumps.push((60.0 * S, -2.0 * S));
            }
            let exchanges = world.exchanges(&mut rng);
            let anchors = world.anchors();
            records.insert(key(number), Records { exchanges, anchors });
        }
        let map = ClockMap::new(simulated::server_key(), &records);
        let found: Vec<Ending> = (0..3)
            .map(|number| match map.relation(&key(number)) {
                Some(Relation::Bounded(track)) => track.epochs()[0].ended,
                other => panic!("{other:?}"),
            })
            .collect();
        found
    };
    assert_eq!(endings(None), [Ending::AggregatorStep; 3]);
    assert_eq!(
        endings(Some(1)),
        [Ending::DataEnd, Ending::Step, Ending::DataEnd]
    );
}

#[test]
fn a_suspend_is_called_one() {
    let mut rng = Rng(5);
    let mut world = World::new(Path::quiet(MS, MS), Drift::steady(0, 30.0), 100.0 * S);
    world.asleep.push((50.3 * S, 20.0 * S));
    let track = align(&world, &mut rng, &Assumptions::default()).expect("exchanges");
    let endings: Vec<_> = track.epochs().iter().map(|e| e.ended).collect();
    assert_eq!(endings, [Ending::Suspend, Ending::DataEnd]);
}

/// Prints how long it takes; the machine decides, so nothing is asserted but the
/// result. 24 h in a release build, 1 h otherwise.
#[test]
fn a_day_of_exchanges() {
    let hours = if cfg!(debug_assertions) { 1.0 } else { 24.0 };
    let mut rng = Rng(24);
    let duration = hours * 3_600.0 * S;
    let mut world = World::new(
        Path::quiet(100.0 * US, 90.0 * US),
        Drift::steady(0, 30.0),
        duration,
    );
    world.path.jitter = Jitter::Exponential(20.0 * US);
    world.drift.wander = (2e6, std::f64::consts::TAU / (7_200.0 * S), 0.0);
    let exchanges = world.exchanges(&mut rng);
    let anchors = world.anchors();
    let clock = gapscope_proto::clock::SystemClock::new();
    let begin = clock.raw_ns();
    let track = Track::new(&exchanges, &anchors, &Assumptions::default()).expect("exchanges");
    let took = clock.raw_ns() - begin;
    let knots: usize = track
        .epochs()
        .iter()
        .filter_map(|e| e.corridor.as_ref())
        .map(|c| c.knots().len())
        .sum();
    println!(
        "{hours} h, {} exchanges: aligned in {:.2} s, {} epochs, {knots} knots",
        exchanges.len(),
        took as f64 / 1e9,
        track.epochs().len()
    );
    let mut tally = Tally::default();
    ask(&world, &track, 10_000, &mut rng, &mut tally);
    assert_eq!(tally.outside, 0);
}
