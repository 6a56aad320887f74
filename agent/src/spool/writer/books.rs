//! What each segment holds.

use std::collections::BTreeMap;

use gapscope_proto::frame::{StreamId, StreamKind};

use crate::spool::FrameRef;

#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) bytes: u64,
    pub(super) ranges: Vec<(StreamId, u64, u64)>,
    /// Tails that hold the same records and stay as long: the segment's sync
    /// failed. With their lengths.
    pub(super) tails: Vec<(u64, u64)>,
    /// Not ours to remove: a newer build wrote in it.
    pub(super) is_kept: bool,
}

impl Book {
    pub(super) fn add(&mut self, frame: &FrameRef) {
        self.bytes = self.bytes.max(frame.offset + u64::from(frame.len));
        if let Some((_, _, last)) = self
            .ranges
            .iter_mut()
            .find(|(stream, _, last)| *stream == frame.stream && *last + 1 == frame.first)
        {
            *last = frame.last;
        } else {
            self.ranges.push((frame.stream, frame.first, frame.last));
        }
    }

    fn total_bytes(&self) -> u64 {
        if self.is_kept {
            return 0;
        }
        self.bytes + self.tails.iter().map(|(_, len)| len).sum::<u64>()
    }

    fn has_samples(&self) -> bool {
        self.ranges
            .iter()
            .any(|(stream, _, _)| stream.kind == StreamKind::Samples)
    }
}

/// The books of all segments, by number.
#[derive(Debug, Default)]
pub(super) struct Books(pub(super) BTreeMap<u64, Book>);

impl Books {
    /// Bytes of all that may be removed.
    pub(super) fn total_bytes(&self) -> u64 {
        self.0.values().map(Book::total_bytes).sum()
    }

    /// Takes out the oldest segment with samples; where there is none, the
    /// oldest of all. Host records are few, and without them samples make no
    /// sense.
    pub(super) fn take_oldest(&mut self) -> Option<(u64, Book)> {
        let free = || self.0.iter().filter(|(_, book)| !book.is_kept);
        let number = free()
            .find(|(_, book)| book.has_samples())
            .or_else(|| free().next())
            .map(|(number, _)| *number)?;
        self.0.remove(&number).map(|book| (number, book))
    }

    /// Whether anything of a stream is held.
    pub(super) fn hold(&self, stream: &StreamId) -> bool {
        self.0
            .values()
            .any(|book| book.ranges.iter().any(|(held, _, _)| held == stream))
    }
}
