//! Streams of this incarnation, and their records as frames.

use gapscope_proto::batch::Columns;
use gapscope_proto::frame::{Body, Frame, StreamId};
use gapscope_proto::host::HostRecord;
use gapscope_proto::sample::Sample;

use crate::spool::{Loss, LossReason};

/// Most records of a frame.
const FRAME_RECORDS: usize = 8_192;
/// Longer frames are split: the wire allows 1 MiB, in another coding.
const FRAME_BYTES: usize = 512 << 10;

#[derive(Debug)]
pub(super) enum Records {
    Samples(Vec<Sample>),
    Host(Vec<HostRecord>),
}

impl Records {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Samples(samples) => samples.len(),
            Self::Host(records) => records.len(),
        }
    }

    pub(super) fn clear(&mut self) {
        match self {
            Self::Samples(samples) => samples.clear(),
            Self::Host(records) => records.clear(),
        }
    }

    fn body(&self, range: std::ops::Range<usize>) -> Body {
        match self {
            Self::Samples(samples) => Body::Samples(Columns::encode(&samples[range])),
            Self::Host(records) => Body::Host(records[range].to_vec()),
        }
    }

    /// The records of a frame.
    pub(super) fn of(frame: &Frame) -> Self {
        match &frame.body {
            Body::Samples(_) => Self::Samples(frame.samples().unwrap_or_default()),
            Body::Host(records) => Self::Host(records.clone()),
        }
    }
}

/// A stream of this incarnation.
#[derive(Debug)]
pub(super) struct OpenStream {
    pub(super) next_seq: u64,
    /// Not yet sealed.
    pub(super) unsealed: Records,
    /// How many of them already stand in a tail.
    pub(super) in_tail: usize,
    /// About how many records a seal has had lately.
    pub(super) recent: u64,
}

impl OpenStream {
    pub(super) fn first_unsealed(&self) -> u64 {
        self.next_seq - self.unsealed.len() as u64
    }

    /// How many numbers to reserve ahead: two to four seconds' worth.
    pub(super) fn ahead(&self) -> u64 {
        let in_a_seal = self.recent.max(self.unsealed.len() as u64);
        let seals = match in_a_seal >= super::SEAL_SOON_RECORDS as u64 {
            true => 8,
            false => 4,
        };
        (in_a_seal * seals).clamp(64, 1 << 20)
    }

    /// All of it is sealed, or given up.
    pub(super) fn clear(&mut self) {
        self.recent = (self.unsealed.len() as u64).max(self.recent / 4 * 3);
        self.unsealed.clear();
        self.in_tail = 0;
    }
}

/// Records encoded.
#[derive(Debug, Clone)]
pub(super) struct Encoded {
    pub(super) stream: StreamId,
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) bytes: Vec<u8>,
}

/// Records `from ..` of `records`, whose first has seq `first`, as frames of a
/// bearable size. What cannot be encoded is a loss.
pub(super) fn encode(
    stream: StreamId,
    first: u64,
    records: &Records,
    from: usize,
) -> (Vec<Encoded>, Vec<Loss>) {
    let (mut frames, mut losses) = (Vec::new(), Vec::new());
    let mut ranges: Vec<_> = (from..records.len())
        .step_by(FRAME_RECORDS)
        .map(|begin| begin..(begin + FRAME_RECORDS).min(records.len()))
        .rev()
        .collect();
    while let Some(range) = ranges.pop() {
        let begin = first + range.start as u64;
        let last = first + range.end as u64 - 1;
        let frame = Frame {
            stream,
            first_seq: begin,
            body: records.body(range.clone()),
        };
        match frame.to_bytes() {
            Ok(bytes) if bytes.len() <= FRAME_BYTES || range.len() == 1 => frames.push(Encoded {
                stream,
                first: begin,
                last,
                bytes,
            }),
            Err(error) if range.len() == 1 => {
                tracing::error!(%error, "a record cannot be encoded");
                losses.push(Loss::exact(stream, begin, last, LossReason::Corrupt));
            }
            _ => {
                let middle = range.start + range.len() / 2;
                ranges.push(middle..range.end);
                ranges.push(range.start..middle);
            }
        }
    }
    (frames, losses)
}
