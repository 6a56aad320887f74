//! One lane: the clients of one kind that one agent has for one target, brought into
//! columns of equal time. Pure.
//!
//! A bad or late probe fills every column from its begin to its end, so that a probe
//! that waited five seconds is seen as five seconds. A good one fills the column of
//! its end, and back to the end of the one before if that was good as well and no
//! slot lies between: both ends are good. Bits are only ever added.
//!
//! What it cannot know: whether a client that says nothing is waiting. That is why a
//! column without bits is "no data", whatever was before it.

use std::collections::HashMap;
use std::sync::Arc;

use gapscope_proto::sample::{Cause, Outcome};

use super::event::{EventKind, Events};
use super::histogram::{Histogram, quantile};
use super::view::{BIN_NS, BINS, Bin, LaneView, ON_THE_WAY_BINS, RECENT_BINS, State};
use crate::report::html::cell::cause_group;

/// Bits of a column.
pub mod bit {
    /// A probe was answered in time.
    pub const GOOD: u8 = 1;
    /// One was answered past the deadline.
    pub const LATE: u8 = 2;
    /// One was not answered, or wrongly.
    pub const BAD: u8 = 4;
}

const S: i64 = 1_000_000_000;
/// Over how long a lane's state is judged, at least.
const STATE_NS: i64 = 2 * S;
/// Seconds of which latencies are kept.
const SECONDS: usize = 8;
/// Kinds of errors told in one episode.
const MOST_KINDS: usize = 6;
/// Columns beyond the present that a clock's uncertainty may reach.
const AHEAD: i64 = 4;

/// What became of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worth {
    /// Answered in time.
    Good,
    /// Answered past the deadline.
    Late,
    /// Not answered, or wrongly.
    Bad,
    /// It says nothing of the target.
    Void,
}

/// A probe, its times in ns after the run's begin.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Number of the client.
    pub client: u16,
    /// Number of the slot.
    pub slot: u64,
    /// Begun.
    pub started: i64,
    /// Ended.
    pub finished: i64,
    /// How it ended.
    pub outcome: Outcome,
    /// The finer kind.
    pub cause: Option<Cause>,
    /// MySQL's number.
    pub code: Option<u16>,
    /// What was said.
    pub error: Option<Arc<str>>,
    /// Who answered: index into the run's backends plus one; 0: nobody.
    pub backend: u8,
}

impl Seen {
    /// What it says, by the rules of the report.
    pub fn worth(&self, deadline_ns: i64) -> Worth {
        let took = self.finished.saturating_sub(self.started);
        match self.outcome {
            Outcome::Ok if took <= deadline_ns => Worth::Good,
            Outcome::Ok => Worth::Late,
            Outcome::AgentError => Worth::Void,
            _ if self.cause == Some(Cause::RunEnded) && took <= deadline_ns => Worth::Void,
            _ => Worth::Bad,
        }
    }

    fn said(&self) -> String {
        let mut text = self.outcome.as_str().to_owned();
        if let Some(cause) = self.cause {
            text.push('/');
            text.push_str(cause.as_str());
        }
        if let Some(code) = self.code {
            text.push_str(&format!(" {code}"));
        }
        if let Some(error) = &self.error {
            text.push_str(": ");
            text.push_str(error);
        }
        text
    }
}

#[derive(Debug, Clone, Copy)]
struct Client {
    last: Worth,
    slot: u64,
    finished: i64,
}

type Kind = (Outcome, Option<Cause>, Option<u16>);

#[derive(Debug, Clone)]
struct Episode {
    begun: i64,
    kinds: Vec<Kind>,
}

/// Which clients these are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// Who probes.
    pub agent: String,
    /// What.
    pub target: String,
    /// How.
    pub style: String,
    /// Which kind.
    pub kind: String,
}

impl Name {
    /// For a line.
    pub fn short(&self) -> String {
        let mut text = format!("{} {}", self.target, self.style);
        if self.kind != "bare" {
            text.push(' ');
            text.push_str(&self.kind);
        }
        text
    }
}

/// One lane.
#[derive(Debug, Clone)]
pub struct Lane {
    name: Name,
    clients: u32,
    interval_ns: i64,
    deadline_ns: i64,
    bins: Box<[Bin]>,
    /// First column there is anything of, and the one after the last.
    first: Option<i64>,
    end: i64,
    changed: i64,
    latencies: [(i64, Histogram); SECONDS],
    known: HashMap<u16, Client>,
    recent: Vec<(u8, i64)>,
    newest: Option<i64>,
    episode: Option<Episode>,
    last_error: String,
    ok: u64,
    late: u64,
    bad: u64,
    void: u64,
    stretches: u64,
}

fn column(at_ns: i64) -> i64 {
    at_ns.div_euclid(BIN_NS)
}

fn place(index: i64) -> usize {
    usize::try_from(index.rem_euclid(BINS as i64)).unwrap_or(0)
}

impl Lane {
    /// Nothing seen yet.
    pub fn new(name: Name, clients: u32, interval_ns: i64, deadline_ns: i64) -> Self {
        Self {
            name,
            clients,
            interval_ns,
            deadline_ns,
            bins: vec![Bin::default(); BINS].into_boxed_slice(),
            first: None,
            end: 0,
            changed: i64::MAX,
            latencies: std::array::from_fn(|_| (i64::MIN, Histogram::default())),
            known: HashMap::new(),
            recent: Vec::new(),
            newest: None,
            episode: None,
            last_error: String::new(),
            ok: 0,
            late: 0,
            bad: 0,
            void: 0,
            stretches: 0,
        }
    }

    /// Which it is.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// End of the newest sample.
    pub fn newest(&self) -> Option<i64> {
        self.newest
    }

    /// Clients whose newest probe was bad.
    pub fn bad_clients(&self) -> u32 {
        let bad = self.known.values().filter(|c| c.last == Worth::Bad);
        u32::try_from(bad.count()).unwrap_or(u32::MAX)
    }

    /// How often a client went from good to bad or late.
    pub fn stretches(&self) -> u64 {
        self.stretches
    }

    /// The columns from `from` to `to`, as far as they are kept and not in the future.
    fn fill(&mut self, from_ns: i64, to_ns: i64, now: i64, mut add: impl FnMut(&mut Bin)) {
        let to = column(to_ns).min(column(now) + AHEAD);
        if self.first.is_none() {
            self.end = to;
        }
        if to >= self.end {
            let fresh = self.end.max(to + 1 - BINS as i64)..=to;
            for index in fresh {
                self.bins[place(index)] = Bin::default();
            }
            self.end = to + 1;
        }
        let from = column(from_ns).max(self.end - BINS as i64);
        for index in from..=to {
            add(&mut self.bins[place(index)]);
        }
        self.first = Some(self.first.map_or(from, |first| first.min(from)));
        self.changed = self.changed.min(from);
    }

    /// Takes in a probe; `now` is the present, in ns after the begin.
    pub fn take(&mut self, seen: &Seen, now: i64, events: &mut Events, backends: &[String]) {
        let worth = seen.worth(self.deadline_ns);
        self.newest = Some(self.newest.map_or(seen.finished, |n| n.max(seen.finished)));
        if worth == Worth::Void {
            self.void += 1;
            return;
        }
        let before = self.known.get(&seen.client).copied();
        let end = seen.finished;
        let (bit, from) = match worth {
            Worth::Good => {
                self.ok += 1;
                let follows = before.filter(|client| {
                    client.last == Worth::Good && client.slot.checked_add(1) == Some(seen.slot)
                });
                (
                    bit::GOOD,
                    follows.map_or(end, |client| client.finished.min(end)),
                )
            }
            Worth::Late => {
                self.late += 1;
                (bit::LATE, seen.started.min(end))
            }
            Worth::Bad | Worth::Void => {
                self.bad += 1;
                (bit::BAD, seen.started.min(end))
            }
        };
        let cause = cause_group(seen.outcome, seen.cause);
        self.fill(from, end, now, |bin| {
            if bit == bit::BAD && bin.bits & bit::BAD == 0 {
                bin.cause = cause;
            }
            if bit == bit::GOOD && bin.backend == 0 {
                bin.backend = seen.backend;
            }
            bin.bits |= bit;
        });
        self.fill(end, end, now, |bin| {
            let count = match worth {
                Worth::Good => &mut bin.ok,
                Worth::Late => &mut bin.late,
                Worth::Bad | Worth::Void => &mut bin.bad,
            };
            *count = count.saturating_add(1);
            if seen.backend > 0 {
                bin.backend = seen.backend;
            }
        });
        if matches!(worth, Worth::Good | Worth::Late) {
            let second = end.div_euclid(S);
            let slot = usize::try_from(second.rem_euclid(SECONDS as i64)).unwrap_or(0);
            let (of, histogram) = &mut self.latencies[slot];
            if *of != second {
                histogram.clear();
                *of = second;
            }
            histogram.record(u64::try_from(end - seen.started).unwrap_or(0));
            self.answered_by(seen.backend, end, events, backends);
        }
        let is_hurt = worth != Worth::Good;
        if is_hurt && before.is_none_or(|client| client.last == Worth::Good) {
            self.stretches += 1;
        }
        self.known.insert(
            seen.client,
            Client {
                last: worth,
                slot: seen.slot,
                finished: end,
            },
        );
        if is_hurt {
            self.hurt(seen, worth, events);
        } else if self.episode.is_some() && self.known.values().all(|c| c.last == Worth::Good) {
            let begun = self.episode.take().map_or(end, |episode| episode.begun);
            let text = format!(
                "{}: all clients are answered again, {:.1} s after the first bad probe began",
                self.name.short(),
                (end - begun).max(0) as f64 / 1e9
            );
            events.push(end, EventKind::Back, &text);
        }
    }

    fn hurt(&mut self, seen: &Seen, worth: Worth, events: &mut Events) {
        let kind = (seen.outcome, seen.cause, seen.code);
        let episode = self.episode.get_or_insert_with(|| Episode {
            begun: seen.started,
            kinds: Vec::new(),
        });
        let is_new = !episode.kinds.contains(&kind) && episode.kinds.len() < MOST_KINDS;
        if is_new {
            episode.kinds.push(kind);
        }
        let said = match worth {
            Worth::Late => format!(
                "answered after {:.0} ms, past the deadline",
                (seen.finished - seen.started) as f64 / 1e6
            ),
            _ => seen.said(),
        };
        if is_new {
            let text = format!("{}: {said}", self.name.short());
            events.push(seen.finished, EventKind::Outcome, &text);
        }
        if worth == Worth::Bad {
            self.last_error = said
                .chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .collect();
        }
    }

    fn answered_by(&mut self, backend: u8, at: i64, events: &mut Events, backends: &[String]) {
        if backend == 0 {
            return;
        }
        let name = |number: u8| {
            let known = backends.get(usize::from(number) - 1);
            known.map_or("?", String::as_str).to_owned()
        };
        match self.recent.iter_mut().find(|(known, _)| *known == backend) {
            Some((_, newest)) => {
                let was_away = at.saturating_sub(*newest) > STATE_NS.max(2 * self.interval_ns);
                *newest = (*newest).max(at);
                if !was_away || self.recent.len() == 1 {
                    return;
                }
            }
            None => {
                self.recent.push((backend, at));
                if self.recent.len() == 1 {
                    return;
                }
            }
        }
        let before = self.recent.iter().filter(|(known, _)| *known != backend);
        let before = before
            .max_by_key(|(_, newest)| *newest)
            .map(|(known, _)| name(*known));
        let text = format!(
            "{}: {} answers; the newest other answer was from {}",
            self.name.short(),
            name(backend),
            before.unwrap_or_default()
        );
        events.push(at, EventKind::Switch, &text);
    }

    fn between(&self, from: i64, to: i64) -> impl Iterator<Item = &Bin> {
        let from = from
            .max(self.end - BINS as i64)
            .max(self.first.unwrap_or(i64::MAX));
        (from..to.min(self.end)).map(|index| &self.bins[place(index)])
    }

    fn state(&self, now: i64, agent_is_heard: bool) -> State {
        let window = STATE_NS.max(self.interval_ns.saturating_mul(2));
        let quiet = self.newest.map(|newest| now.saturating_sub(newest));
        if quiet.is_none_or(|quiet| quiet > window) {
            return match agent_is_heard {
                true => State::Silent,
                false => State::NoData,
            };
        }
        let mut bits = 0;
        let mut answers = 0;
        for bin in self.between(column(now.saturating_sub(window)), column(now) + AHEAD + 1) {
            bits |= bin.bits;
            answers += bin.ok + bin.late;
        }
        match bits {
            0 => State::NoData,
            bits if bits & bit::BAD != 0 && answers == 0 => State::AllBad,
            bits if bits & bit::BAD != 0 => State::SomeBad,
            bits if bits & bit::LATE != 0 => State::Late,
            _ => State::Answered,
        }
    }

    /// How it stands, and the columns from `from` on; `is_over`: nothing more comes.
    pub fn view(&self, now: i64, from: i64, agent_is_heard: bool, is_over: bool) -> LaneView {
        // Of one that is over, rates and latencies stay those of its last seconds, and
        // nothing is on its way.
        let (recent, to) = match self.newest.filter(|_| is_over) {
            Some(newest) => (newest, column(newest)),
            None => (now, column(now) - ON_THE_WAY_BINS),
        };
        let since = (to - RECENT_BINS).max(self.first.unwrap_or(to));
        let probes: u64 = self
            .between(since, to)
            .map(|bin| u64::from(bin.ok) + u64::from(bin.late) + u64::from(bin.bad))
            .sum();
        let seconds = (to - since).max(1) as f64 * (BIN_NS as f64 / 1e9);
        let newest_second = recent.div_euclid(S);
        let latencies = self
            .latencies
            .iter()
            .filter(|(second, _)| (newest_second - 5..=newest_second + 1).contains(second))
            .map(|(_, histogram)| histogram);
        let mut backends: Vec<(u8, i64)> = self.recent.clone();
        backends.retain(|(_, newest)| now - newest <= STATE_NS.max(2 * self.interval_ns));
        backends.sort_by_key(|(_, newest)| std::cmp::Reverse(*newest));
        let kept = (self.end - BINS as i64).max(self.first.unwrap_or(self.end));
        let first_bin = from.max(kept).min(self.end);
        LaneView {
            agent: self.name.agent.clone(),
            target: self.name.target.clone(),
            style: self.name.style.clone(),
            kind: self.name.kind.clone(),
            clients: self.clients,
            interval_ns: u64::try_from(self.interval_ns).unwrap_or(0),
            state: if is_over {
                State::Ended
            } else {
                self.state(now, agent_is_heard)
            },
            quiet_ns: self
                .newest
                .map(|n| u64::try_from(now.saturating_sub(n)).unwrap_or(0)),
            backends: backends
                .iter()
                .map(|(known, _)| u32::from(*known) - 1)
                .collect(),
            rate: probes as f64 / seconds,
            p50_ns: quantile(latencies.clone(), 0.5),
            p99_ns: quantile(latencies, 0.99),
            bad_clients: self.bad_clients(),
            ok: self.ok,
            late: self.late,
            bad: self.bad,
            void: self.void,
            stretches: self.stretches,
            last_error: self.last_error.clone(),
            first_bin,
            bins: self.between(first_bin, self.end).copied().collect(),
        }
    }

    /// The first column that changed since this was asked last; forgets it.
    pub fn take_changed(&mut self) -> i64 {
        std::mem::replace(&mut self.changed, i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: i64 = 1_000_000;

    fn lane() -> Lane {
        let name = Name {
            agent: "a".to_owned(),
            target: "t".to_owned(),
            style: "reused".to_owned(),
            kind: "bare".to_owned(),
        };
        Lane::new(name, 2, 10 * MS, 250 * MS)
    }

    fn good(client: u16, slot: u64, started: i64, took: i64) -> Seen {
        Seen {
            client,
            slot,
            started,
            finished: started + took,
            outcome: Outcome::Ok,
            cause: None,
            code: None,
            error: None,
            backend: 1,
        }
    }

    fn bad(client: u16, slot: u64, started: i64, took: i64) -> Seen {
        Seen {
            outcome: Outcome::ConnectionLost,
            cause: Some(Cause::Closed),
            error: Some("gone\u{1b}[2J".into()),
            backend: 0,
            ..good(client, slot, started, took)
        }
    }

    struct Trial {
        lane: Lane,
        events: Events,
        backends: Vec<String>,
    }

    impl Trial {
        fn new() -> Self {
            Self {
                lane: lane(),
                events: Events::default(),
                backends: vec!["x:1".to_owned(), "y:2".to_owned()],
            }
        }

        fn take(&mut self, seen: &Seen) {
            let now = seen.finished + 100 * MS;
            self.lane.take(seen, now, &mut self.events, &self.backends);
        }

        fn state(&self, now: i64) -> State {
            self.lane.view(now, 0, false, false).state
        }
    }

    #[test]
    fn nothing_is_never_called_answered() {
        let mut trial = Trial::new();
        assert_eq!(trial.state(0), State::NoData);
        for slot in 0..100 {
            trial.take(&good(0, slot, slot as i64 * 10 * MS, MS));
        }
        assert_eq!(trial.state(1_100 * MS), State::Answered);
        assert_eq!(trial.state(2_900 * MS), State::Answered);
        assert_eq!(trial.state(3_000 * MS), State::NoData);
        let heard = trial.lane.view(3_000 * MS, 0, true, false);
        assert_eq!(heard.state, State::Silent);
        assert_eq!(heard.quiet_ns, Some(2_009 * 1_000_000));
        assert!(heard.rate < 100.0, "{}", heard.rate);
        assert_eq!(
            trial.lane.view(3_000 * MS, 0, true, true).state,
            State::Ended
        );
    }

    #[test]
    fn what_is_over_keeps_the_rate_of_its_last_seconds() {
        let mut trial = Trial::new();
        for slot in 0..1_000 {
            trial.take(&good(0, slot, slot as i64 * 10 * MS, MS));
        }
        for later in [0, 1, 60, 3_600] {
            let view = trial.lane.view(10_000 * MS + later * S, 0, false, true);
            assert_eq!((view.rate, view.state), (100.0, State::Ended), "{later} s");
            assert!(view.p50_ns.is_some(), "{later} s");
        }
        assert_eq!(trial.lane.view(60_000 * MS, 0, true, false).rate, 0.0);
    }

    #[test]
    fn a_long_probe_fills_what_it_lasted() {
        let mut trial = Trial::new();
        trial.take(&good(0, 0, 0, MS));
        trial.take(&bad(0, 1, 10 * MS, 3_000 * MS));
        trial.take(&good(1, 1, 3_010 * MS, MS));
        let view = trial.lane.view(3_100 * MS, 0, true, false);
        let bits: Vec<u8> = view.bins.iter().map(|bin| bin.bits).collect();
        assert_eq!(bits[0], bit::GOOD | bit::BAD);
        assert!(bits[1..12].iter().all(|bits| *bits == bit::BAD), "{bits:?}");
        assert_eq!(bits[12], bit::GOOD | bit::BAD);
        assert_eq!(view.state, State::SomeBad);
        assert_eq!((view.bad, view.bad_clients, view.stretches), (1, 1, 1));
        assert_eq!(view.last_error, "connection_lost/closed: gone [2J");
    }

    #[test]
    fn episodes_begin_and_end_once() {
        let mut trial = Trial::new();
        for slot in 0..10 {
            trial.take(&good(0, slot, slot as i64 * 10 * MS, MS));
            trial.take(&good(1, slot, slot as i64 * 10 * MS, MS));
        }
        for slot in 10..20 {
            trial.take(&bad(0, slot, slot as i64 * 10 * MS, MS));
            trial.take(&good(1, slot, slot as i64 * 10 * MS, MS));
        }
        trial.take(&Seen {
            backend: 2,
            ..good(0, 20, 2_500 * MS, MS)
        });
        let lines = trial.events.after(0);
        let texts: Vec<&str> = lines.iter().map(|event| event.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "t reused: connection_lost/closed: gone [2J",
                "t reused: y:2 answers; the newest other answer was from x:1",
                "t reused: all clients are answered again, 2.4 s after the first bad probe began",
            ]
        );
        assert_eq!(trial.lane.stretches(), 1);
    }

    #[test]
    fn a_client_that_asks_seldom_is_good_between_two_good_answers_only() {
        let name = lane().name;
        let mut trial = Trial::new();
        trial.lane = Lane::new(name, 1, 2_000 * MS, 250 * MS);
        trial.take(&good(0, 0, 0, MS));
        trial.take(&good(0, 1, 2_000 * MS, MS));
        let view = trial.lane.view(2_100 * MS, 0, true, false);
        assert!(view.bins.iter().all(|bin| bin.bits == bit::GOOD));
        assert_eq!(view.bins.iter().map(|bin| bin.ok).sum::<u32>(), 2);
        trial.take(&good(0, 3, 6_000 * MS, MS));
        let view = trial.lane.view(6_100 * MS, 0, true, false);
        assert!(
            view.bins[10..24].iter().all(|bin| bin.bits == 0),
            "a slot is missing"
        );
    }

    proptest! {
        #[test]
        fn no_bad_probe_of_the_kept_time_is_hidden(
            probes in proptest::collection::vec((0_u16..4, 0_i64..200_000, 1_i64..6_000, 0_u8..3), 1..200)
        ) {
            let mut trial = Trial::new();
            let mut at: Vec<(u16, i64, i64, u8)> = probes;
            at.sort_by_key(|(_, started, took, _)| started + took);
            for (slot, (client, started, took, kind)) in (0..).zip(&at) {
                let (started, took) = (started * MS, took * MS);
                trial.take(&match kind {
                    0 => good(*client, slot, started, took),
                    _ => bad(*client, slot, started, took),
                });
            }
            let (_, started, took, _) = at[at.len() - 1];
            let now = (started + took) * MS;
            let view = trial.lane.view(now, i64::MIN, true, false);
            prop_assert!(view.bins.len() <= BINS);
            let last = view.first_bin + view.bins.len() as i64;
            prop_assert_eq!(last, column(now) + 1);
            for (_, started, took, kind) in at {
                let (from, to) = (column(started * MS), column((started + took) * MS));
                for index in from.max(view.first_bin)..=to {
                    let bin = view.bins[(index - view.first_bin) as usize];
                    if kind != 0 {
                        prop_assert!(bin.bits & bit::BAD != 0);
                    }
                }
            }
        }
    }
}
