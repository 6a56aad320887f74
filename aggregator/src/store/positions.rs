//! How far each stream of a run has come: taken in, safe on disk, acknowledged.
//! Pure.
//!
//! A seq moves through them in this order and never back. What is acknowledged
//! is always what is safe on disk: [`Positions::take_acks`] knows no other.

use std::collections::BTreeMap;

use gapscope_proto::frame::StreamKind;

use super::footer::StreamKey;

/// One stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Position {
    /// Taken in, or declared lost, up to here.
    admitted: u64,
    /// Safe on disk up to here.
    durable: u64,
    /// What [`Positions::take_acks`] said last.
    acknowledged: u64,
}

/// All streams of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Positions(BTreeMap<StreamKey, Position>);

impl Positions {
    /// The last seq that was taken in or declared lost; 0 for none.
    pub fn admitted(&self, stream: &StreamKey) -> u64 {
        self.0.get(stream).map_or(0, |p| p.admitted)
    }

    /// The last seq that is safe on disk; 0 for none.
    pub fn durable(&self, stream: &StreamKey) -> u64 {
        self.0.get(stream).map_or(0, |p| p.durable)
    }

    /// A stream as it was found on disk.
    pub fn found(&mut self, stream: StreamKey, seq: u64) {
        let position = Position {
            admitted: seq,
            durable: seq,
            acknowledged: seq,
        };
        self.0.insert(stream, position);
    }

    /// The next `count` seqs are taken in; returns the seq before the first.
    pub fn take(&mut self, stream: &StreamKey, count: u64) -> u64 {
        let position = self.0.entry(stream.clone()).or_default();
        let before = position.admitted;
        position.admitted = before.saturating_add(count);
        before
    }

    /// All that was taken in of one kind of stream has become safe on disk;
    /// returns the streams that moved.
    pub fn settle(&mut self, kind: StreamKind) -> Vec<(StreamKey, u64)> {
        let mut moved = Vec::new();
        for (stream, position) in &mut self.0 {
            if stream.kind == kind && position.durable != position.admitted {
                position.durable = position.admitted;
                moved.push((stream.clone(), position.durable));
            }
        }
        moved
    }

    /// The streams that became durable further than the last call said.
    pub fn take_acks(&mut self) -> Vec<(StreamKey, u64)> {
        let mut acks = Vec::new();
        for (stream, position) in &mut self.0 {
            if position.durable > position.acknowledged {
                position.acknowledged = position.durable;
                acks.push((stream.clone(), position.durable));
            }
        }
        acks
    }

    /// Streams of which something is taken in and not yet safe on disk, with the
    /// first such seq.
    pub fn unsettled(&self) -> impl Iterator<Item = (&StreamKey, u64)> {
        self.0
            .iter()
            .filter(|(_, position)| position.admitted > position.durable)
            .map(|(stream, position)| (stream, position.durable + 1))
    }
}
