//! Streams of this incarnation and their records that are not yet sealed.

use gapscope_proto::batch::Columns;
use gapscope_proto::frame::Body;
use gapscope_proto::host::HostRecord;
use gapscope_proto::sample::Sample;

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

    pub(super) fn body(&self, range: std::ops::Range<usize>) -> Body {
        match self {
            Self::Samples(samples) => Body::Samples(Columns::encode(&samples[range])),
            Self::Host(records) => Body::Host(records[range].to_vec()),
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
}

impl OpenStream {
    pub(super) fn first_unsealed(&self) -> u64 {
        self.next_seq - self.unsealed.len() as u64
    }
}
