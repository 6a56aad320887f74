//! What is to be known after a crash beside the frames: how far numbers were
//! given out, how far they are acknowledged, and what was lost.
//!
//! Numbers are reserved ahead, durably, before the first of them is used. After
//! a loss of power whatever lies between the last record found and the last
//! number reserved may have been measured, and is declared. A process that is
//! killed loses nothing that it had written, so in the same boot nothing is
//! declared, unless writing was failing at the time.
//!
//! When a stream has its last record, and when it is found by a later start, its
//! reservation shrinks to its last record; it stays until that is acknowledged.
//! So nothing depends on whether a sync told the truth: what a loss of power
//! takes later is missing before that number, and declared.

use std::collections::{BTreeMap, VecDeque};

use gapscope_proto::frame::StreamId;
use gapscope_proto::spool::{State, StreamState};

use crate::spool::Loss;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    floor: u64,
    /// Asked for; of a stream with its last record: that.
    wanted: u64,
    /// Saved.
    durable: u64,
}

/// A state to be saved, and what follows when it is.
#[derive(Debug)]
struct Pending {
    number: u64,
    reserved: Vec<(StreamId, u64)>,
}

#[derive(Debug)]
pub(super) struct Ledger {
    boot: String,
    /// Whether everything numbered so far is written.
    pub(super) is_sound: bool,
    /// The last save failed: what is to be known after a crash is not on disk.
    pub(super) has_failed: bool,
    next_file: u64,
    reserved_files: u64,
    streams: BTreeMap<StreamId, Entry>,
    pub(super) losses: Vec<Loss>,
    saves: u64,
    pending: VecDeque<Pending>,
}

const RESERVE_FILES: u64 = 10_000;

impl Ledger {
    /// For this boot; numbers of files below `next_file` are used.
    pub(super) fn new(boot: String, next_file: u64) -> Self {
        Self {
            boot,
            is_sound: true,
            has_failed: false,
            next_file,
            reserved_files: next_file,
            streams: BTreeMap::new(),
            losses: Vec::new(),
            saves: 0,
            pending: VecDeque::new(),
        }
    }

    /// A stream of an earlier incarnation, of which nothing beyond `last` was
    /// measured.
    pub(super) fn old_stream(&mut self, stream: StreamId, floor: u64, last: u64) {
        self.streams.entry(stream).or_insert(Entry {
            floor,
            wanted: last,
            durable: last,
        });
    }

    pub(super) fn open_stream(&mut self, stream: StreamId) {
        self.streams.entry(stream).or_insert(Entry {
            floor: 0,
            wanted: 0,
            durable: 0,
        });
    }

    /// The stream has its last record, written or declared lost.
    pub(super) fn end(&mut self, stream: &StreamId, last: u64) {
        if let Some(entry) = self.streams.get_mut(stream) {
            entry.wanted = last;
        }
    }

    /// Numbers up to this one may be used.
    pub(super) fn durable(&self, stream: &StreamId) -> u64 {
        self.streams.get(stream).map_or(0, |entry| entry.durable)
    }

    /// Numbers up to this one are asked for.
    pub(super) fn wanted(&self, stream: &StreamId) -> u64 {
        self.streams.get(stream).map_or(0, |entry| entry.wanted)
    }

    /// Asks for numbers up to `seq`, with the next save.
    pub(super) fn want(&mut self, stream: &StreamId, seq: u64) {
        if let Some(entry) = self.streams.get_mut(stream) {
            entry.wanted = entry.wanted.max(seq);
        }
    }

    pub(super) fn acked(&mut self, stream: &StreamId, seq: u64) {
        if let Some(entry) = self.streams.get_mut(stream) {
            entry.floor = entry.floor.max(seq);
        }
    }

    /// Forgets streams of which nothing is left to say.
    pub(super) fn prune(&mut self, is_held: impl Fn(&StreamId) -> bool) {
        let losses = &self.losses;
        self.streams.retain(|stream, entry| {
            entry.wanted > entry.floor
                || losses.iter().any(|loss| loss.stream == *stream)
                || is_held(stream)
        });
    }

    pub(super) fn lose(&mut self, loss: Loss) {
        if let Some(joined) = self
            .losses
            .iter_mut()
            .rev()
            .find(|before| before.stream == loss.stream)
            .and_then(|before| Some((before.joined(&loss)?, before)))
        {
            *joined.1 = joined.0;
        } else {
            self.losses.push(loss);
        }
    }

    /// A number that no file of this spool ever had; whether more have to be
    /// reserved first.
    pub(super) fn new_file(&mut self) -> (u64, bool) {
        let number = self.next_file;
        self.next_file += 1;
        (number, number >= self.reserved_files)
    }

    /// What to save now, and its number.
    pub(super) fn save(&mut self) -> (u64, State) {
        self.saves += 1;
        self.reserved_files = self.next_file + RESERVE_FILES;
        self.pending.push_back(Pending {
            number: self.saves,
            reserved: self
                .streams
                .iter()
                .map(|(stream, entry)| (*stream, entry.wanted))
                .collect(),
        });
        let streams = self.streams.iter().map(|(stream, entry)| StreamState {
            stream: *stream,
            floor: entry.floor,
            reserved: Some(entry.wanted),
        });
        let state = State {
            boot: self.is_sound.then(|| self.boot.clone()),
            next_file: self.reserved_files,
            streams: streams.collect(),
            losses: self.losses.clone(),
        };
        (self.saves, state)
    }

    /// A save is under way.
    pub(super) fn is_saving(&self) -> bool {
        !self.pending.is_empty()
    }

    /// A save is done. If it failed, its numbers are used all the same: probing
    /// goes on, and only a loss of power before the next save would be silent.
    pub(super) fn saved(&mut self, number: u64) {
        while self.pending.front().is_some_and(|p| p.number <= number)
            && let Some(pending) = self.pending.pop_front()
        {
            for (stream, seq) in pending.reserved {
                if let Some(entry) = self.streams.get_mut(&stream) {
                    entry.durable = entry.durable.max(seq);
                }
            }
        }
    }
}
