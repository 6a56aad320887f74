//! What has been told so far, and what it amounts to for a strip.

use std::collections::VecDeque;

use crate::live::event::Event;
use crate::live::lane::bit;
use crate::live::view::{BIN_NS, BINS, Bin, LaneView, ON_THE_WAY_BINS, State, View};

/// Lines that are kept.
const EVENTS: usize = 200;
/// Columns put together in one cell of a strip: half a second.
pub const BINS_A_CELL: i64 = 2;
/// Without news for so long, nothing is known.
pub const SILENCE_NS: u64 = 3_000_000_000;

/// One cell of a strip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// Before the first sample, or what is still on its way.
    Blank,
    /// Nothing has arrived.
    NoData,
    /// All answered in time.
    Good,
    /// Some answered late.
    Late,
    /// Some bad.
    Mixed,
    /// All bad.
    Bad,
}

impl Cell {
    /// As in the lab's own strips.
    pub const fn sign(self, unicode: bool) -> char {
        match (self, unicode) {
            (Self::Blank, _) => ' ',
            (Self::Good, true) => '▁',
            (Self::Late, true) => '▃',
            (Self::Mixed, true) => '▄',
            (Self::Bad, true) => '█',
            (Self::NoData, true) => '·',
            (Self::Good, false) => '_',
            (Self::Late, false) => '-',
            (Self::Mixed, false) => 'x',
            (Self::Bad, false) => 'X',
            (Self::NoData, false) => '.',
        }
    }

    fn of<'a>(bins: impl Iterator<Item = &'a Bin>) -> Self {
        let (mut bits, mut answers) = (0, 0);
        for bin in bins {
            bits |= bin.bits;
            answers += bin.ok + bin.late;
        }
        match bits {
            0 => Self::NoData,
            bits if bits & bit::BAD != 0 && answers == 0 => Self::Bad,
            bits if bits & bit::BAD != 0 => Self::Mixed,
            bits if bits & bit::LATE != 0 => Self::Late,
            _ => Self::Good,
        }
    }
}

/// One lane.
#[derive(Debug, Clone)]
pub struct Lane {
    /// Its numbers.
    pub told: LaneView,
    base: i64,
    bins: VecDeque<Bin>,
}

impl Lane {
    fn new(told: &LaneView) -> Self {
        Self {
            told: told.clone(),
            base: told.first_bin,
            bins: VecDeque::new(),
        }
    }

    fn apply(&mut self, told: LaneView) {
        if self.bins.is_empty() {
            self.base = told.first_bin;
        }
        for (index, bin) in (told.first_bin..).zip(&told.bins) {
            // Earlier ones than the first: what came late.
            while index < self.base && self.bins.len() < 2 * BINS {
                self.bins.push_front(Bin::default());
                self.base -= 1;
            }
            let Ok(place) = usize::try_from(index - self.base) else {
                continue;
            };
            // A jump longer than what is kept leaves nothing of what was.
            if place > self.bins.len() + BINS {
                self.bins.clear();
                self.base = index;
            }
            let place = usize::try_from(index - self.base).unwrap_or(0);
            while self.bins.len() <= place {
                self.bins.push_back(Bin::default());
            }
            self.bins[place] = *bin;
        }
        while self.bins.len() > BINS {
            self.bins.pop_front();
            self.base += 1;
        }
        self.told = told;
    }

    /// The strip's last `cells` cells at `now_ns`, oldest first.
    pub fn strip(&self, now_ns: i64, cells: usize) -> Vec<Cell> {
        let last = now_ns.div_euclid(BIN_NS * BINS_A_CELL);
        let first_bin = if self.bins.is_empty() {
            i64::MAX
        } else {
            self.base
        };
        let count = i64::try_from(cells).unwrap_or(0);
        (last - count + 1..=last)
            .map(|cell| {
                let from = cell * BINS_A_CELL;
                let to = from + BINS_A_CELL;
                if to <= first_bin {
                    return Cell::Blank;
                }
                let bins = (from..to).filter_map(|index| {
                    let place = usize::try_from(index - self.base).ok()?;
                    self.bins.get(place)
                });
                let cell = Cell::of(bins);
                let is_new = to > now_ns.div_euclid(BIN_NS) - ON_THE_WAY_BINS;
                match cell {
                    Cell::NoData if is_new => Cell::Blank,
                    cell => cell,
                }
            })
            .collect()
    }

    /// Target, style and kind.
    pub fn name(&self, with_agent: bool) -> String {
        let told = &self.told;
        let mut name = format!("{} {}", told.target, told.style);
        if told.kind != "bare" {
            name.push(' ');
            name.push_str(&told.kind);
        }
        if with_agent {
            name.push_str(" from ");
            name.push_str(&told.agent);
        }
        name
    }
}

/// A duration for people.
pub fn span(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    match ns {
        0..1_000_000_000 => millis(ns),
        _ => format!("{seconds:.1} s"),
    }
}

/// Milliseconds with two or three digits that count.
pub fn millis(ns: u64) -> String {
    let value = ns as f64 / 1e6;
    match value {
        v if v >= 10.0 => format!("{v:.0} ms"),
        v if v >= 1.0 => format!("{v:.1} ms"),
        v => format!("{v:.2} ms"),
    }
}

/// How urgent a state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Answers.
    Good,
    /// Nothing is known, or late.
    Warning,
    /// Bad.
    Bad,
    /// Over.
    Plain,
}

/// A state in words: with a sign, since not everybody sees colours.
pub fn state_words(told: &LaneView, silent_ns: u64) -> (Tone, String) {
    if silent_ns > SILENCE_NS {
        return (
            Tone::Warning,
            format!("? not known for {}", span(silent_ns)),
        );
    }
    let quiet = told
        .quiet_ns
        .map_or("yet".to_owned(), |ns| format!("for {}", span(ns)));
    match told.state {
        State::Answered => (Tone::Good, "all answered, last 2 s".to_owned()),
        State::NoData => (Tone::Warning, format!("? no data {quiet}")),
        State::Silent => (Tone::Warning, format!("? neither answer nor error {quiet}")),
        State::Late => (Tone::Warning, "! some answered late".to_owned()),
        State::SomeBad => (Tone::Bad, "X some bad".to_owned()),
        State::AllBad => (Tone::Bad, "X all bad".to_owned()),
        State::Ended => (Tone::Plain, "ended".to_owned()),
    }
}

/// All that was told.
#[derive(Debug, Default)]
pub struct Shown {
    /// The newest view; its lanes and events are below.
    pub view: Option<View>,
    /// Lanes.
    pub lanes: Vec<Lane>,
    /// The newest lines.
    pub events: VecDeque<Event>,
    /// Updates that were missed.
    pub missed: u64,
    /// The aggregator has gone: why.
    pub gone: Option<String>,
    newest: u64,
}

impl Shown {
    /// Takes in a view; gives back the lines that are new.
    pub fn apply(&mut self, mut view: View) -> Vec<Event> {
        self.gone = None;
        let events = std::mem::take(&mut view.events);
        let lanes = std::mem::take(&mut view.lanes);
        if view.is_whole {
            let is_same = self
                .view
                .as_ref()
                .is_some_and(|known| known.run_id == view.run_id);
            let newest = events.last().map_or(0, |event| event.number);
            // Numbers begin anew with the aggregator.
            if !is_same || newest < self.newest {
                self.events.clear();
                self.newest = 0;
            }
            self.lanes.clear();
            self.missed = view.missed;
        }
        for (at, told) in lanes.into_iter().enumerate() {
            if at == self.lanes.len() {
                self.lanes.push(Lane::new(&told));
            }
            self.lanes[at].apply(told);
        }
        let fresh: Vec<Event> = events
            .into_iter()
            .filter(|e| e.number > self.newest)
            .collect();
        if let Some(last) = fresh.last() {
            self.newest = last.number;
        }
        self.events.extend(fresh.iter().cloned());
        while self.events.len() > EVENTS {
            self.events.pop_front();
        }
        self.view = Some(view);
        fresh
    }

    /// Whether more than one agent probes.
    pub fn has_several_agents(&self) -> bool {
        let mut agents = self.lanes.iter().map(|lane| &lane.told.agent);
        let first = agents.next();
        agents.any(|agent| Some(agent) != first)
    }
}

/// A lane that stands so, for tests.
#[cfg(test)]
pub(super) fn lane_of(state: State, first_bin: i64, bins: Vec<Bin>) -> LaneView {
    LaneView {
        agent: "a".to_owned(),
        target: "haproxy".to_owned(),
        style: "reused".to_owned(),
        kind: "bare".to_owned(),
        clients: 4,
        interval_ns: 10_000_000,
        state,
        quiet_ns: Some(3_200_000_000),
        backends: vec![0],
        rate: 399.5,
        p50_ns: Some(790_000),
        p99_ns: Some(3_100_000),
        bad_clients: 1,
        ok: 10,
        late: 1,
        bad: 2,
        void: 0,
        stretches: 2,
        last_error: String::new(),
        first_bin,
        bins,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bin(ok: u32, bad: u32, bits: u8) -> Bin {
        Bin {
            ok,
            bad,
            bits,
            ..Bin::default()
        }
    }

    #[test]
    fn cells_show_the_worst_and_no_data_as_such() {
        let bins = vec![
            bin(5, 0, bit::GOOD),
            bin(5, 0, bit::GOOD),
            bin(5, 1, bit::GOOD | bit::BAD),
            bin(5, 0, bit::GOOD),
            bin(0, 0, bit::BAD),
            bin(0, 1, bit::BAD),
            Bin::default(),
            Bin::default(),
            bin(1, 0, bit::GOOD | bit::LATE),
            bin(1, 0, bit::GOOD),
        ];
        let told = lane_of(State::Answered, 2, bins);
        let mut lane = Lane::new(&told);
        lane.apply(told);
        let strip = lane.strip(13 * BIN_NS, 7);
        let text: String = strip.iter().map(|cell| cell.sign(false)).collect();
        assert_eq!(text, " _xX.- ", "before and what is on its way is blank");
        let later = lane.strip(20 * BIN_NS, 5);
        let text: String = later.iter().map(|cell| cell.sign(false)).collect();
        assert_eq!(text, "..   ", "{later:?}");
    }

    #[test]
    fn late_columns_and_jumps_find_their_place() {
        let told = lane_of(State::Answered, 100, vec![bin(1, 0, bit::GOOD); 4]);
        let mut lane = Lane::new(&told);
        lane.apply(told);
        lane.apply(lane_of(State::Answered, 96, vec![bin(0, 1, bit::BAD); 2]));
        assert_eq!(
            lane.strip(104 * BIN_NS - 1, 4)[..2],
            [Cell::Bad, Cell::NoData]
        );
        lane.apply(lane_of(
            State::Answered,
            1_000_000,
            vec![bin(1, 0, bit::GOOD)],
        ));
        assert!(lane.bins.len() <= BINS);
        assert_eq!(lane.strip(1_000_000 * BIN_NS, 1), [Cell::Good]);
        for at in 0..10_000 {
            lane.apply(lane_of(
                State::Answered,
                1_000_000 + at,
                vec![bin(1, 0, bit::GOOD)],
            ));
        }
        assert_eq!(lane.bins.len(), BINS);
    }
}
