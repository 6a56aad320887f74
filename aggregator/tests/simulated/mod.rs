//! Two clocks and the path between them, simulated, with the truth at hand.
//!
//! Everything happens in simulated real time. The agent's clock shows real time
//! without what it slept; the aggregator's drifts against it, may stop, or jump.
//! Stamps follow the rule: sends early, receives late, both truncated to whole
//! nanoseconds.

#![allow(
    unreachable_pub,
    dead_code,
    reason = "a module of test programs, each of which needs part of it"
)]

use gapscope_proto::clock::ClockKey;
use gapscope_proto::host::{Anchor, Exchange};

pub const US: f64 = 1e3;
pub const MS: f64 = 1e6;
pub const S: f64 = 1e9;

/// A small generator (SplitMix64): the same numbers for a seed, everywhere.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[(self.next() % from.len() as u64) as usize]
    }

    pub fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    pub fn pareto(&mut self, scale: f64, alpha: f64) -> f64 {
        scale * ((1.0 - self.unit()).powf(-1.0 / alpha) - 1.0)
    }
}

/// How the delays above the least scatter.
#[derive(Debug, Clone, Copy)]
pub enum Jitter {
    Exponential(f64),
    Pareto(f64),
}

/// The path between the two.
#[derive(Debug, Clone)]
pub struct Path {
    pub there: f64,
    pub back: f64,
    pub jitter: Jitter,
    /// A queue that fills on the way there: from, to, most.
    pub queue: Option<(f64, f64, f64)>,
    /// From when on the way back is longer, and by how much.
    pub route: Option<(f64, f64)>,
    /// Time in which nothing gets through.
    pub lost: Vec<(f64, f64)>,
}

impl Path {
    pub fn quiet(there: f64, back: f64) -> Self {
        Self {
            there,
            back,
            jitter: Jitter::Exponential((there + back) * 0.005),
            queue: None,
            route: None,
            lost: Vec::new(),
        }
    }

    fn noise(&self, rng: &mut Rng) -> f64 {
        match self.jitter {
            Jitter::Exponential(mean) => rng.exponential(mean),
            Jitter::Pareto(scale) => rng.pareto(scale, 1.5).min(2.0 * S),
        }
    }

    fn there(&self, at: f64, rng: &mut Rng) -> f64 {
        let queue = match self.queue {
            Some((from, to, most)) if from <= at && at < to => most * (at - from) / (to - from),
            _ => 0.0,
        };
        self.there + queue + self.noise(rng)
    }

    fn back(&self, at: f64, rng: &mut Rng) -> f64 {
        let longer = self.route.filter(|r| at >= r.0).map_or(0.0, |r| r.1);
        self.back + longer + self.noise(rng)
    }

    pub fn round_trip(&self) -> f64 {
        self.there + self.back
    }
}

/// The aggregator's clock against real time.
#[derive(Debug, Clone)]
pub struct Drift {
    pub offset: i64,
    pub ppm: f64,
    /// Amplitude in ns, angular frequency in 1/ns, phase.
    pub wander: (f64, f64, f64),
    /// A temperature ramp: from, to, change of the drift per ns of time.
    pub ramp: (f64, f64, f64),
    /// Sudden changes of the drift, in ppm: what the method assumes not to be.
    pub kicks: Vec<(f64, f64)>,
}

impl Drift {
    pub fn steady(offset: i64, ppm: f64) -> Self {
        Self {
            offset,
            ppm,
            wander: (0.0, 0.0, 0.0),
            ramp: (0.0, 0.0, 0.0),
            kicks: Vec::new(),
        }
    }

    fn at(&self, t: f64) -> f64 {
        let (amplitude, frequency, phase) = self.wander;
        let (from, to, rate) = self.ramp;
        let inside = t.clamp(from, to) - from;
        let beyond = (t - to).max(0.0);
        let ramp = rate * (inside * inside / 2.0 + (to - from) * beyond);
        let kicks: f64 = self
            .kicks
            .iter()
            .map(|(at, ppm)| ppm * 1e-6 * (t - at).max(0.0))
            .sum();
        self.ppm * 1e-6 * t + amplitude * (frequency * t + phase).sin() + ramp + kicks
    }
}

/// Everything about one agent and its aggregator.
#[derive(Debug, Clone)]
pub struct World {
    pub drift: Drift,
    pub path: Path,
    /// When the agent's host sleeps, and for how long: its clock stops.
    pub asleep: Vec<(f64, f64)>,
    /// When the aggregator's clock jumps, and by how much.
    pub jumps: Vec<(f64, f64)>,
    /// When the agent's process does not run; its clock does.
    pub agent_paused: Vec<(f64, f64)>,
    /// When the aggregator's process does not run; its clock does.
    pub aggregator_paused: Vec<(f64, f64)>,
    /// The mutation: sends are stamped so much too late.
    pub send_late: f64,
    pub duration: f64,
    /// What the agent's clock shows at the begin.
    pub agent_zero: i64,
}

impl World {
    pub fn new(path: Path, drift: Drift, duration: f64) -> Self {
        Self {
            drift,
            path,
            asleep: Vec::new(),
            jumps: Vec::new(),
            agent_paused: Vec::new(),
            aggregator_paused: Vec::new(),
            send_late: 0.0,
            duration,
            agent_zero: 5_000_000_000_000,
        }
    }

    fn slept(&self, t: f64) -> f64 {
        self.asleep
            .iter()
            .map(|(at, span)| (t - at).clamp(0.0, *span))
            .sum()
    }

    /// Whether the agent's clock stands still.
    pub fn sleeps(&self, t: f64) -> bool {
        self.asleep
            .iter()
            .any(|(at, span)| *at <= t && t <= at + span)
    }

    /// The agent's clock.
    pub fn agent(&self, t: f64) -> i64 {
        self.agent_zero + (t - self.slept(t)).floor() as i64
    }

    /// The aggregator's clock.
    pub fn server(&self, t: f64) -> i64 {
        let jumped: f64 = self
            .jumps
            .iter()
            .filter(|(at, _)| *at <= t)
            .map(|(_, by)| by)
            .sum();
        self.drift.offset + (t + self.drift.at(t) + jumped).floor() as i64
    }

    fn awake(paused: &[(f64, f64)], t: f64) -> f64 {
        paused
            .iter()
            .find(|(at, span)| *at <= t && t < at + span)
            .map_or(t, |(at, span)| at + span)
    }

    fn agent_runs(&self, t: f64) -> f64 {
        let t = Self::awake(&self.asleep, t);
        Self::awake(&self.asleep, Self::awake(&self.agent_paused, t))
    }

    /// One exchange begun at `t`: what is recorded, if anything, and when it ends.
    fn exchange(&self, t: f64, rng: &mut Rng) -> (Option<Exchange>, f64) {
        let early = rng.exponential(3.0 * US);
        let a1 = self.agent(t) + self.send_late as i64;
        let leaves = t + early;
        let arrives = leaves + self.path.there(leaves, rng);
        let lost = |at: f64| {
            self.path
                .lost
                .iter()
                .any(|(from, to)| *from <= at && at < *to)
        };
        let sees = Self::awake(&self.aggregator_paused, arrives + rng.exponential(2.0 * US));
        let s1 = self.server(sees);
        let s2_at = sees + rng.exponential(2.0 * US);
        let s2 = self.server(s2_at);
        let answers = s2_at + rng.exponential(2.0 * US);
        let returns = answers + self.path.back(answers, rng);
        let notes = self.agent_runs(returns + rng.exponential(3.0 * US));
        if lost(leaves) || lost(answers) {
            return (None, self.agent_runs(t + S));
        }
        let exchange = Exchange {
            a1_ns: a1,
            s1_ns: s1,
            s2_ns: s2,
            a2_ns: self.agent(notes),
            server: server_key(),
        };
        (Some(exchange), notes)
    }

    /// The run's exchanges: bursts of 4, ten a second for the first 10 s, then
    /// one a second.
    pub fn exchanges(&self, rng: &mut Rng) -> Vec<Exchange> {
        let mut all = Vec::new();
        let mut t = 0.0;
        while t < self.duration {
            let mut now = self.agent_runs(t);
            for _ in 0..4 {
                let (exchange, end) = self.exchange(now, rng);
                all.extend(exchange);
                now = end + rng.exponential(20.0 * US);
            }
            let pause = if now < 10.0 * S { 0.1 * S } else { S };
            t = now + pause;
        }
        all
    }

    /// The agent's clocks read together, each second.
    pub fn anchors(&self) -> Vec<Anchor> {
        let mut all = Vec::new();
        let mut t = 0.0;
        while t < self.duration {
            let now = self.agent_runs(t);
            let raw = self.agent(now);
            all.push(Anchor {
                raw_before_ns: raw,
                raw_after_ns: raw + 400,
                monotonic_ns: raw + 300_000_000,
                boottime_ns: raw + 300_000_000 + self.slept(now) as i64,
                realtime_ns: 1_773_200_744_000_000_000 + now as i64,
                timer_late_ns: 0,
            });
            t = now + S;
        }
        all
    }
}

pub fn server_key() -> ClockKey {
    ClockKey {
        boot_id: "server".into(),
        time_namespace: 1,
    }
}
