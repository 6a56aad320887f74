//! Clients of a simulated service whose outage is known to the nanosecond. What
//! the analysis says of it must hold, always.

use proptest::prelude::*;

use gapscope_proto::sample::{Cause, Outcome, Style};

use super::hole::holes;
use super::merge;
use super::series::testing::{MS, S, clock, series};
use super::series::{ClientSeries, Life, Probe, SlotCounts};
use super::still::StoodStill;
use super::stretch::{Blind, Stretch, stretches};

const DEADLINE: i64 = 250 * MS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// Every attempt is refused at once.
    Refused,
    /// Connections are reset; later ones refused.
    Reset,
    /// Requests wait until the service goes on.
    Hang,
    /// Packets vanish; the client's kernel sends them again, ever more seldom.
    BlackHole,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    failure: Failure,
    style: Style,
    begins: i64,
    ends: i64,
    interval: i64,
    phase: i64,
    timeout: Option<i64>,
    seed: u64,
}

/// A small generator of its own: the same numbers for ever.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: i64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit.max(1) as u64) as i64
    }
}

const RUN: i64 = 12 * S;

fn simulate(case: &Case) -> ClientSeries {
    simulate_paused(case, &[])
}

/// When an agent that stands still at these times notices what happened at `at`.
fn awake(pauses: &[(i64, i64)], at: i64) -> i64 {
    pauses
        .iter()
        .find(|(from, to)| (*from..*to).contains(&at))
        .map_or(at, |(_, to)| *to)
}

/// The same, by an agent that stands still at these times.
fn simulate_paused(case: &Case, pauses: &[(i64, i64)]) -> ClientSeries {
    let mut random = Random(case.seed);
    let mut probes = Vec::new();
    let mut slot = 0u64;
    let mut connection = 1u32;
    loop {
        let scheduled = case.phase + slot as i64 * case.interval;
        if scheduled >= RUN {
            break;
        }
        // The agent begins a little late, the network takes its time.
        let started = awake(pauses, scheduled + random.below(2 * MS));
        if started >= scheduled + case.interval {
            // It has overslept, and goes on with the next slot that is to come.
            slot = ((started - case.phase).div_euclid(case.interval) + 1).max(0) as u64;
            continue;
        }
        let there = 50_000 + random.below(3 * MS);
        let back = 50_000 + random.below(3 * MS);
        let (answer, outcome, cause) = respond(case, started, there, back);
        let (finished, outcome, cause) = match (answer, case.timeout) {
            (Some(at), None) => (at, outcome, cause),
            // Who wakes up late looks for an answer before looking at the clock.
            (Some(at), Some(timeout)) if at <= awake(pauses, started + timeout) => {
                (at, outcome, cause)
            }
            (_, Some(timeout)) => (
                started + timeout,
                Outcome::TimedOut,
                Some(Cause::QueryTimeout),
            ),
            (None, None) => (RUN, Outcome::TimedOut, Some(Cause::RunEnded)),
        };
        let (finished, outcome, cause) = if finished > RUN {
            (RUN, Outcome::TimedOut, Some(Cause::RunEnded))
        } else {
            (finished, outcome, cause)
        };
        let finished = awake(pauses, finished);
        let ok = outcome == Outcome::Ok;
        if !ok {
            connection += 1;
        }
        probes.push(Probe {
            life: 0,
            slot,
            scheduled,
            started,
            finished,
            blind_ns: 0,
            phase: gapscope_proto::sample::Phase::Query,
            outcome,
            cause,
            error_code: None,
            error: None,
            connection: ok.then_some(connection),
            connection_id: ok.then_some(u64::from(connection)),
            backend: ok.then_some(0),
        });
        // The next slot that is still to come.
        let passed = (finished - case.phase).div_euclid(case.interval) + 1;
        slot = (slot + 1).max(passed.max(0) as u64);
    }
    let mut history = series(case.interval, RUN, probes);
    history.key.style = case.style;
    history.phase_ns = case.phase;
    history.lives = vec![Life {
        clock: clock(),
        origin_ns: 0,
        due_from_ns: 0,
        due_until_ns: RUN,
        alive_until_ns: RUN,
    }];
    history.stood_still(&StoodStill::new(pauses.to_vec()));
    history
}

/// When the client hears what.
fn respond(
    case: &Case,
    started: i64,
    there: i64,
    back: i64,
) -> (Option<i64>, Outcome, Option<Cause>) {
    let mut arrives = started + there;
    let out = |at: i64| (case.begins..case.ends).contains(&at);
    if !out(arrives) {
        return (Some(arrives + back), Outcome::Ok, None);
    }
    match case.failure {
        Failure::Refused => (
            Some(arrives + back),
            Outcome::ConnectFailed,
            Some(Cause::Refused),
        ),
        Failure::Reset => (
            Some(arrives + back),
            Outcome::ConnectionLost,
            Some(Cause::Reset),
        ),
        Failure::Hang => (Some(case.ends + back), Outcome::Ok, None),
        Failure::BlackHole => {
            let mut pause = if case.style == Style::New {
                S
            } else {
                200 * MS
            };
            while out(arrives) {
                arrives += pause;
                pause *= 2;
            }
            (Some(arrives + back), Outcome::Ok, None)
        }
    }
}

fn analysed(history: &ClientSeries) -> Vec<Stretch> {
    stretches(history, DEADLINE, &Blind::new(&[], history)).0
}

fn any_case() -> impl Strategy<Value = Case> {
    (
        prop_oneof![
            Just(Failure::Refused),
            Just(Failure::Reset),
            Just(Failure::Hang),
            Just(Failure::BlackHole)
        ],
        prop_oneof![Just(Style::Reused), Just(Style::New)],
        S..3 * S,
        1i64..3 * S,
        prop_oneof![Just(10 * MS), Just(50 * MS), Just(200 * MS), Just(500 * MS)],
        prop_oneof![
            Just(None),
            Just(Some(300 * MS)),
            Just(Some(S)),
            Just(Some(2 * S))
        ],
        any::<u64>(),
    )
        .prop_map(
            |(failure, style, begins, lasts, interval, timeout, seed)| Case {
                failure,
                style,
                begins,
                ends: begins + lasts,
                interval,
                phase: Random(seed).below(interval),
                timeout,
                seed,
            },
        )
}

/// Pauses of the agent, apart from each other, before the run's last second.
fn any_pauses() -> impl Strategy<Value = Vec<(i64, i64)>> {
    prop::collection::vec((50 * MS..3 * S, 20 * MS..2 * S), 0..4).prop_map(|pauses| {
        let mut at = 0;
        let mut all = Vec::new();
        for (after, lasts) in pauses {
            let from = at + after;
            at = from + lasts;
            if at < RUN - S {
                all.push((from, at));
            }
        }
        all
    })
}

fn check_inside(
    case: &Case,
    history: &ClientSeries,
    found: &[Stretch],
) -> Result<(), TestCaseError> {
    let truth = case.ends - case.begins;
    prop_assert!(found.len() <= 1, "one outage, found {found:?}");
    let Some(s) = found.first() else {
        return Ok(());
    };
    let upper = s.upper_ns.expect("it is over long before the run's end");
    prop_assert!(
        s.lower_ns <= truth && truth <= upper,
        "{truth} in {}..{upper}",
        s.lower_ns
    );
    let probe = |at: usize| &history.probes[at];
    let (g0, g1) = (s.g0.expect("good before"), s.g1.expect("good after"));
    let width = upper - s.lower_ns;
    // Begins may be late by 2 ms in the simulation.
    let allowed = 2 * (case.interval + 2 * MS)
        + probe(s.b0).took_ns()
        + if s.bn == s.b0 {
            0
        } else {
            probe(s.bn).took_ns()
        }
        + probe(g1).took_ns();
    prop_assert!(width <= allowed, "width {width} of {allowed}");
    // What the client felt lies between its answers.
    prop_assert!(s.gap_ns <= probe(g1).finished - probe(g0).finished);
    if s.late == 0 {
        prop_assert_eq!(s.gap_ns, probe(g1).finished - probe(g0).finished);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn the_true_outage_is_always_inside(case in any_case()) {
        let history = simulate(&case);
        check_inside(&case, &history, &analysed(&history))?;
    }

    /// A long outage is always seen, and slots without an answer are never up.
    #[test]
    fn a_long_outage_is_never_missed(case in any_case()) {
        let lasts = case.ends - case.begins;
        prop_assume!(lasts > DEADLINE + 2 * case.interval + 20 * MS);
        let history = simulate(&case);
        let found = analysed(&history);
        prop_assert_eq!(found.len(), 1);
        let mut slots = SlotCounts::default();
        history.for_each_slot(|slot| slots.add(&slot, DEADLINE));
        prop_assert_eq!(slots.due, slots.probed + slots.waited, "the agent was never late");
        // Slots due in the outage, but for those near enough to its end, are lost.
        let certain = (lasts - DEADLINE - 20 * MS) / case.interval;
        prop_assert!(
            (slots.due - slots.in_time()) as i64 >= certain,
            "{slots:?}, {certain} slots cannot have been answered"
        );
    }

    #[test]
    fn any_and_all_hold_the_truth(case in any_case(), clients in 2i64..6) {
        let truth = case.ends - case.begins;
        let found: Vec<Vec<Stretch>> = (0..clients)
            .map(|j| {
                let own = Case {
                    phase: case.interval * j / clients,
                    seed: case.seed.wrapping_add(j as u64),
                    ..case
                };
                analysed(&simulate(&own))
            })
            .collect();
        let hurt = found.iter().filter(|s| !s.is_empty()).count();
        let any = merge::any(&found, &[]);
        prop_assert!(any.len() <= 1);
        if let Some(m) = any.first() {
            prop_assert!(m.lower_ns <= truth && truth <= m.upper_ns.expect("over"));
        }
        let all = merge::all(&found, &[]);
        prop_assert_eq!(all.len(), usize::from(hurt == found.len()));
        if let (Some(a), Some(m)) = (any.first(), all.first()) {
            prop_assert!(m.lower_ns <= truth && truth <= m.upper_ns.expect("over"));
            prop_assert!(m.lower_ns <= a.lower_ns && m.upper_ns <= a.upper_ns);
        }
    }

    /// A service that answers all the while is never blamed for an agent that
    /// stands still, whenever and for how long.
    #[test]
    fn an_agent_that_stands_still_blames_nobody(case in any_case(), pauses in any_pauses()) {
        let case = Case { begins: RUN, ends: RUN, ..case };
        let history = simulate_paused(&case, &pauses);
        let blind = Blind::new(&pauses, &history);
        let (found, gap) = stretches(&history, DEADLINE, &blind);
        prop_assert!(found.is_empty(), "{found:?}");
        let mut slots = SlotCounts::default();
        history.for_each_slot(|slot| slots.add(&slot, DEADLINE));
        prop_assert_eq!(slots.late, 0);
        prop_assert_eq!(slots.in_time() + slots.no_data(), slots.due, "{:?}", slots);
        let longest = pauses.iter().map(|(from, to)| to - from).max().unwrap_or(0);
        if longest > DEADLINE + 2 * case.interval + 20 * MS {
            let holes = holes(&history, DEADLINE);
            // One before the first slot begins with it.
            let least = longest - case.interval;
            prop_assert!(holes.iter().any(|(from, to)| to - from >= least), "{holes:?}");
            prop_assert!(gap.no_data || gap.ns < longest, "{gap:?}");
        }
    }

    /// Nor does it hide an outage's truth: what is said of one holds all the same.
    #[test]
    fn what_is_said_holds_although_the_agent_stood_still(
        case in any_case(),
        pauses in any_pauses(),
    ) {
        let history = simulate_paused(&case, &pauses);
        let blind = Blind::new(&pauses, &history);
        let found = stretches(&history, DEADLINE, &blind).0;
        prop_assert!(found.len() <= 1, "one outage, found {found:?}");
        let truth = case.ends - case.begins;
        let Some(s) = found.first() else {
            // Not seen: then it was short, or somewhere nobody looked.
            let seen = truth <= DEADLINE + 2 * case.interval + 20 * MS;
            let hidden = holes(&history, DEADLINE)
                .iter()
                .any(|(from, to)| *from < case.ends && case.begins < *to);
            prop_assert!(seen || hidden, "{truth}");
            return Ok(());
        };
        prop_assert!(s.lower_ns <= truth, "{truth}, {}", s.lower_ns);
        if let Some(upper) = s.upper_ns {
            prop_assert!(truth <= upper, "{truth}, {upper}");
        }
    }

    /// Nor does it make an outage of everybody shorter than it was.
    #[test]
    fn all_holds_although_the_agent_stood_still(
        case in any_case(),
        pauses in any_pauses(),
        clients in 2i64..6,
    ) {
        let (mut found, mut unknown) = (Vec::new(), Vec::new());
        for j in 0..clients {
            let own = Case {
                phase: case.interval * j / clients,
                seed: case.seed.wrapping_add(j as u64),
                ..case
            };
            let history = simulate_paused(&own, &pauses);
            let blind = Blind::new(&pauses, &history);
            found.push(stretches(&history, DEADLINE, &blind).0);
            unknown.push(holes(&history, DEADLINE));
        }
        let all = merge::all(&found, &unknown);
        let truth = case.ends - case.begins;
        let is_seen = found.iter().any(|stretches| !stretches.is_empty());
        let is_open = found.iter().zip(&unknown).all(|(stretches, holes)| {
            let hidden = |hole: &(i64, i64)| hole.0 <= case.begins && case.ends <= hole.1;
            !stretches.is_empty() || holes.iter().any(hidden)
        });
        if is_seen && is_open {
            let holds = |m: &merge::Merged| m.upper_ns.is_none_or(|upper| truth <= upper);
            prop_assert!(all.iter().any(holds), "{truth}, {all:?}");
        }
        let lower: i64 = all.iter().map(|m| m.lower_ns).sum();
        prop_assert!(lower <= truth, "{truth}, {all:?}");
        prop_assert!(is_seen || all.is_empty());
    }

    /// An outage that is not over when the run ends has no upper bound.
    #[test]
    fn an_unfinished_outage_is_ongoing(case in any_case()) {
        let case = Case { ends: 100 * S, begins: 8 * S, ..case };
        let history = simulate(&case);
        let (found, gap) = stretches(&history, DEADLINE, &Blind::new(&[], &history));
        prop_assert_eq!(found.len(), 1);
        let s = &found[0];
        prop_assert!(s.is_ongoing() && s.upper_ns.is_none() && s.gap_is_at_least);
        prop_assert!(gap.is_at_least && gap.ns >= 3 * S, "{gap:?}");
        prop_assert!(s.lower_ns <= RUN - case.begins);
    }
}
