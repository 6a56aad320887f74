//! What each segment holds.

use gapscope_proto::frame::StreamId;

use crate::spool::FrameRef;

#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) bytes: u64,
    pub(super) ranges: Vec<(StreamId, u64, u64)>,
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
}
