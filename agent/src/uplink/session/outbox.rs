//! What one stream still has to deliver, in seq order.

use std::collections::VecDeque;

use crate::spool::{FrameRef, Loss, LossReason};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    Frame(FrameRef),
    Loss(Loss),
}

impl Entry {
    pub(super) fn first(&self) -> u64 {
        match self {
            Self::Frame(frame) => frame.first,
            Self::Loss(loss) => loss.first,
        }
    }

    pub(super) fn last(&self) -> u64 {
        match self {
            Self::Frame(frame) => frame.last,
            Self::Loss(loss) => loss.last,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Frame(frame) => u64::from(frame.len),
            Self::Loss(_) => 64,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) entries: VecDeque<Entry>,
    /// The first so many entries are in flight.
    pub(super) sent: usize,
    pub(super) acked: u64,
    pub(super) last: u64,
    pub(super) refused: bool,
    pub(super) not_before_ns: i64,
    /// Same answers still to come for what was in flight: expected seq, count.
    pub(super) echoes: (u64, usize),
}

impl Outbox {
    /// Index of the first entry that reaches `seq`.
    pub(super) fn index_of(&self, seq: u64) -> usize {
        self.entries.partition_point(|entry| entry.last() < seq)
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.entries.iter().take(self.sent).map(Entry::bytes).sum()
    }

    pub(super) fn ack(&mut self, seq: u64) {
        self.acked = self.acked.max(seq);
        while self
            .entries
            .front()
            .is_some_and(|entry| entry.last() <= seq)
        {
            self.entries.pop_front();
            self.sent = self.sent.saturating_sub(1);
        }
    }

    pub(super) fn insert_loss(&mut self, loss: Loss) {
        let touches = |entry: &Entry| entry.first() <= loss.last && entry.last() >= loss.first;
        let at = self
            .entries
            .iter()
            .take_while(|e| e.last() < loss.first)
            .count();
        self.entries.retain(|entry| !touches(entry));
        self.entries.insert(at, Entry::Loss(loss));
        self.sent = self.sent.min(at);
        self.last = self.last.max(loss.last);
    }

    /// The records of the frame at `at` from seq `from` on will never be accepted;
    /// those before it stay. Returns the loss.
    pub(super) fn reject(&mut self, at: usize, from: u64) -> Option<Loss> {
        let Some(Entry::Frame(frame)) = self.entries.get(at).copied() else {
            return None;
        };
        if frame.first > from {
            return None;
        }
        let loss = Loss::exact(frame.stream, from, frame.last, LossReason::Rejected);
        self.insert_loss(loss);
        if frame.first < from {
            let before = FrameRef {
                last: from - 1,
                ..frame
            };
            self.entries.insert(at, Entry::Frame(before));
        }
        self.sent = self.sent.min(at);
        Some(loss)
    }
}
