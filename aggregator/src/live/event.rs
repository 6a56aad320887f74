//! What happened, in lines for people. Pure.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// What kind of thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// Something was done to a subject, or a witness saw its effect.
    Fault,
    /// Somebody noted something.
    Mark,
    /// Clients of a lane began to get something else.
    Outcome,
    /// Clients of a lane are all answered again.
    Back,
    /// Another backend answers.
    Switch,
    /// Samples that will never come.
    Loss,
    /// The run itself.
    Run,
}

impl EventKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Fault,
        Self::Mark,
        Self::Outcome,
        Self::Back,
        Self::Switch,
        Self::Loss,
        Self::Run,
    ];

    /// As a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::Mark => "mark",
            Self::Outcome => "outcome",
            Self::Back => "back",
            Self::Switch => "switch",
            Self::Loss => "loss",
            Self::Run => "run",
        }
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// From 1, in order of being noticed.
    pub number: u64,
    /// When, in ns after the run's begin.
    pub at_ns: i64,
    /// What kind of thing.
    pub kind: EventKind,
    /// What, for a person.
    pub text: String,
}

/// Lines that are kept.
const KEPT: usize = 200;
/// Lines in one second; more are only counted.
const A_SECOND: u32 = 40;
/// Characters of a line.
const LONGEST: usize = 240;

/// The newest lines.
#[derive(Debug, Clone, Default)]
pub struct Events {
    lines: VecDeque<Event>,
    newest: u64,
    second: i64,
    in_second: u32,
    left_out: u64,
}

impl Events {
    /// Notes a line.
    pub fn push(&mut self, at_ns: i64, kind: EventKind, text: &str) {
        let second = at_ns.div_euclid(1_000_000_000);
        if second != self.second {
            self.second = second;
            self.in_second = 0;
        }
        self.in_second += 1;
        // What was done is never left out: it is seldom, and what one looks for.
        let is_rare = matches!(kind, EventKind::Fault | EventKind::Mark | EventKind::Run);
        if self.in_second > A_SECOND && !is_rare {
            self.left_out += 1;
            return;
        }
        self.newest += 1;
        let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
        self.lines.push_back(Event {
            number: self.newest,
            at_ns,
            kind,
            text: clean.take(LONGEST).collect(),
        });
        while self.lines.len() > KEPT {
            self.lines.pop_front();
        }
    }

    /// Those after number `after`.
    pub fn after(&self, after: u64) -> Vec<Event> {
        let new = self.lines.iter().filter(|event| event.number > after);
        new.cloned().collect()
    }

    /// Number of the newest.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Lines that were left out because there were too many.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_faults_are_kept() {
        let mut events = Events::default();
        for at in 0..1_000 {
            events.push(at, EventKind::Outcome, "x");
        }
        events.push(999, EventKind::Fault, "stop\u{1b}[2J b");
        assert_eq!(events.left_out(), 960);
        let last = events.after(40);
        assert_eq!(last.len(), 1);
        assert_eq!(last[0].text, "stop [2J b", "nothing steers a terminal");
        for at in 0..1_000 {
            events.push(at * 1_000_000_000, EventKind::Back, "y");
        }
        assert_eq!(events.after(0).len(), KEPT);
        assert_eq!(events.newest(), 1_040);
    }
}
