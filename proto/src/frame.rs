//! The frame: a checksummed run of consecutive records of one stream, as it
//! stands in an agent's spool.
//!
//! ```text
//! offset size
//!      0    4  magic "GSF1"
//!      4    1  format version
//!      5    1  stream kind: 1 samples, 2 host records
//!      6    2  flags, 0
//!      8   16  run id
//!     24    8  incarnation
//!     32    8  first seq
//!     40    4  count
//!     44    4  length of the body
//!     48    4  CRC-32 of bytes 0 to 47
//!     52    n  body: MessagePack
//!   52+n    4  CRC-32 of the body
//! ```
//!
//! Integers are little-endian. The body of a samples frame is what [`crate::pack`]
//! says, in the coding of its version; that of a host frame is an array of records;
//! those that this build does not know are kept as they are
//! ([`HostRecord::Unknown`]). CRC-32 is the one of IEEE 802.3. Frames of version 1
//! are read as well.
//!
//! A reader that finds a broken frame looks for the next magic whose header
//! checksum holds: [`find_header`].

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::batch::{Columns, InvalidColumns, MAX_SAMPLES};
use crate::host::HostRecord;
use crate::ids::{Incarnation, RunId};
use crate::pack;
use crate::sample::Sample;

pub(crate) mod host_body;

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"GSF1";
/// Version written by this build.
pub const FORMAT_VERSION: u8 = 2;
/// Length of the header, its checksum included.
pub const HEADER_LEN: usize = 52;
/// Length of the checksum behind the body.
pub const TRAILER_LEN: usize = 4;
/// Longest body that is read or written.
pub const MAX_BODY_LEN: usize = 1 << 20;

/// What a stream's records are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamKind {
    /// Samples.
    Samples,
    /// Lag, clock exchanges, anchors, start and end of probing.
    Host,
}

/// One numbered stream of one agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamId {
    /// For which run.
    pub run: RunId,
    /// By which start of the agent.
    pub incarnation: Incarnation,
    /// Of what.
    pub kind: StreamKind,
}

/// The records of a frame.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every frame holds samples: a box would cost each and save nothing"
)]
pub enum Body {
    /// Samples, as columns.
    Samples(Columns),
    /// Host records.
    Host(Vec<HostRecord>),
}

/// A run of consecutive records of one stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// Which stream.
    pub stream: StreamId,
    /// Number of the first record, from 1.
    pub first_seq: u64,
    /// The records.
    pub body: Body,
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Which stream.
    pub stream: StreamId,
    /// Number of the first record.
    pub first_seq: u64,
    /// How many records.
    pub count: u32,
    /// Length of the body in bytes.
    pub body_len: usize,
    /// Format version.
    pub version: u8,
}

impl Header {
    /// Number of the last record.
    pub fn last_seq(&self) -> u64 {
        self.first_seq + u64::from(self.count) - 1
    }

    /// Bytes of the whole frame.
    pub fn frame_len(&self) -> usize {
        HEADER_LEN + self.body_len + TRAILER_LEN
    }
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The bytes end before the frame does.
    #[error("the frame is cut short: {found} bytes of {expected}")]
    Short {
        /// Bytes there.
        found: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// It does not begin like a frame.
    #[error("no frame begins here")]
    Magic,
    /// A checksum does not hold.
    #[error("the {0} checksum does not hold")]
    Checksum(&'static str),
    /// A newer format.
    #[error("format version {0}; this build reads up to {FORMAT_VERSION}")]
    Version(u8),
    /// A header field is out of range.
    #[error("header field `{0}` is out of range")]
    Header(&'static str),
    /// The body cannot be decoded.
    #[error("the body cannot be decoded: {0}")]
    Body(String),
    /// The columns do not fit together.
    #[error(transparent)]
    Columns(#[from] InvalidColumns),
}

impl Frame {
    /// How many records.
    pub fn count(&self) -> usize {
        match &self.body {
            Body::Samples(columns) => columns.len(),
            Body::Host(records) => records.len(),
        }
    }

    /// Number of the last record.
    pub fn last_seq(&self) -> u64 {
        (self.first_seq + self.count() as u64).saturating_sub(1)
    }

    /// The samples, if it is a samples frame.
    pub fn samples(&self) -> Result<Vec<Sample>, FrameError> {
        match &self.body {
            Body::Samples(columns) => Ok(columns.decode()?),
            Body::Host(_) => Ok(Vec::new()),
        }
    }

    /// As bytes. Errs where it has no record, too many, or its body is longer
    /// than [`MAX_BODY_LEN`]: make it of fewer records then.
    pub fn to_bytes(&self) -> Result<Vec<u8>, FrameError> {
        let count = self.count();
        if count == 0 || count > MAX_SAMPLES {
            return Err(FrameError::Header("count"));
        }
        if self.first_seq == 0 || self.first_seq.checked_add(count as u64).is_none() {
            return Err(FrameError::Header("first_seq"));
        }
        let body = match &self.body {
            Body::Samples(columns) => pack::pack(columns)?,
            Body::Host(records) => host_body::pack(records)?,
        };
        if body.len() > MAX_BODY_LEN {
            return Err(FrameError::Header("body length"));
        }
        let mut bytes = Vec::with_capacity(HEADER_LEN + body.len() + TRAILER_LEN);
        bytes.extend_from_slice(&MAGIC);
        bytes.push(FORMAT_VERSION);
        bytes.push(match self.stream.kind {
            StreamKind::Samples => 1,
            StreamKind::Host => 2,
        });
        bytes.extend_from_slice(&0u16.to_le_bytes());
        bytes.extend_from_slice(self.stream.run.as_bytes());
        bytes.extend_from_slice(&self.stream.incarnation.get().to_le_bytes());
        bytes.extend_from_slice(&self.first_seq.to_le_bytes());
        bytes.extend_from_slice(&(count as u32).to_le_bytes());
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        let header_crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&header_crc.to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
        Ok(bytes)
    }

    /// Reads the frame at the start of `bytes`; returns it and its length.
    pub fn from_bytes(bytes: &[u8]) -> Result<(Self, usize), FrameError> {
        let header = read_header(bytes)?;
        let length = header.frame_len();
        if bytes.len() < length {
            return Err(FrameError::Short {
                found: bytes.len(),
                expected: length,
            });
        }
        let body = &bytes[HEADER_LEN..HEADER_LEN + header.body_len];
        if crc32fast::hash(body).to_le_bytes() != bytes[HEADER_LEN + header.body_len..length] {
            return Err(FrameError::Checksum("body"));
        }
        let body = match header.stream.kind {
            StreamKind::Samples => {
                Body::Samples(pack::unpack(header.version, body, header.count as usize)?)
            }
            StreamKind::Host => Body::Host(host_body::unpack(body, header.count as usize)?),
        };
        Ok((
            Self {
                stream: header.stream,
                first_seq: header.first_seq,
                body,
            },
            length,
        ))
    }
}

/// Reads and checks the header at the start of `bytes`.
pub fn read_header(bytes: &[u8]) -> Result<Header, FrameError> {
    let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
        return Err(FrameError::Short {
            found: bytes.len(),
            expected: HEADER_LEN,
        });
    };
    if header[..4] != MAGIC {
        return Err(FrameError::Magic);
    }
    if crc32fast::hash(&header[..48]).to_le_bytes() != header[48..52] {
        return Err(FrameError::Checksum("header"));
    }
    if header[4] > FORMAT_VERSION || header[4] == 0 {
        return Err(FrameError::Version(header[4]));
    }
    let version = header[4];
    let kind = match header[5] {
        1 => StreamKind::Samples,
        2 => StreamKind::Host,
        _ => return Err(FrameError::Header("stream kind")),
    };
    let run = array::<16>(header, 8);
    let first_seq = u64::from_le_bytes(array(header, 32));
    let count = u32::from_le_bytes(array(header, 40));
    let body_len = u32::from_le_bytes(array(header, 44)) as usize;
    if count == 0 || count as usize > MAX_SAMPLES {
        return Err(FrameError::Header("count"));
    }
    if first_seq == 0 || first_seq.checked_add(u64::from(count)).is_none() {
        return Err(FrameError::Header("first_seq"));
    }
    if body_len > MAX_BODY_LEN {
        return Err(FrameError::Header("body length"));
    }
    Ok(Header {
        stream: StreamId {
            run: RunId::from_bytes(run).map_err(|_| FrameError::Header("run id"))?,
            incarnation: Incarnation::new(u64::from_le_bytes(array(header, 24)))
                .map_err(|_| FrameError::Header("incarnation"))?,
            kind,
        },
        first_seq,
        count,
        body_len,
        version,
    })
}

fn array<const N: usize>(header: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&header[at..at + N]);
    out
}

/// Where, from `from` on, the next sound header begins.
pub fn find_header(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while at + HEADER_LEN <= bytes.len() {
        let found = bytes[at..].windows(4).position(|window| window == MAGIC)?;
        at += found;
        if read_header(&bytes[at..]).is_ok() {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// What a walk over a file's bytes finds.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// A sound frame.
    Frame(Box<Frame>),
    /// Bytes that are no sound frame. If the header held, it says what was lost.
    Corrupt {
        /// Which bytes.
        range: Range<usize>,
        /// The header, where it is sound and only the body is not.
        header: Option<Header>,
        /// What is wrong.
        error: FrameError,
    },
}

/// Walks over all frames in `bytes`, past corrupt ones. Each byte is accounted
/// for: the ranges of frames and of corrupt stretches follow each other.
pub fn walk(bytes: &[u8]) -> impl Iterator<Item = (Range<usize>, Found)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= bytes.len() {
            return None;
        }
        let begin = at;
        match Frame::from_bytes(&bytes[at..]) {
            Ok((frame, length)) => {
                at += length;
                Some((begin..at, Found::Frame(Box::new(frame))))
            }
            Err(error) => {
                let header = read_header(&bytes[begin..]).ok();
                at = find_header(bytes, begin + 1).unwrap_or(bytes.len());
                Some((
                    begin..at,
                    Found::Corrupt {
                        range: begin..at,
                        header,
                        error,
                    },
                ))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::tests::any_sample;
    use proptest::prelude::*;

    fn stream(kind: StreamKind) -> StreamId {
        StreamId {
            run: RunId::generate(),
            incarnation: Incarnation::generate(),
            kind,
        }
    }

    fn frame_of(samples: &[Sample], first_seq: u64) -> Frame {
        Frame {
            stream: stream(StreamKind::Samples),
            first_seq,
            body: Body::Samples(Columns::encode(samples)),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn bytes_give_back_the_frame(samples in proptest::collection::vec(any_sample(), 1..20), first in 1u64..u64::MAX / 2) {
            let frame = frame_of(&samples, first);
            let bytes = frame.to_bytes().expect("encodes");
            prop_assert_eq!(Frame::from_bytes(&bytes), Ok((frame, bytes.len())));
        }

        #[test]
        fn frames_of_version_1_are_read(samples in proptest::collection::vec(any_sample(), 1..20)) {
            let frame = frame_of(&samples, 7);
            let columns = Columns::encode(&samples);
            let body = pack::pack_1(&columns).expect("encodes");
            let mut bytes = frame.to_bytes().expect("encodes");
            bytes.truncate(HEADER_LEN);
            bytes[4] = 1;
            bytes[44..48].copy_from_slice(&(body.len() as u32).to_le_bytes());
            let crc = crc32fast::hash(&bytes[..48]).to_le_bytes();
            bytes[48..52].copy_from_slice(&crc);
            bytes.extend_from_slice(&body);
            bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
            prop_assert_eq!(Frame::from_bytes(&bytes), Ok((frame, bytes.len())));
        }

        #[test]
        fn one_flipped_bit_costs_one_frame(samples in proptest::collection::vec(any_sample(), 1..6), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let frames: Vec<_> = (0..3).map(|i| frame_of(&samples, 1 + i * samples.len() as u64)).collect();
            let mut bytes = Vec::new();
            for frame in &frames {
                bytes.extend(frame.to_bytes().expect("encodes"));
            }
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let found: Vec<_> = walk(&bytes).collect();
            let sound = found.iter().filter(|(_, f)| matches!(f, Found::Frame(_))).count();
            prop_assert_eq!(sound, 2);
            let mut end = 0;
            for (range, _) in &found {
                prop_assert_eq!(range.start, end);
                end = range.end;
            }
            prop_assert_eq!(end, bytes.len());
        }

        #[test]
        fn any_cut_leaves_the_frames_before_it(samples in proptest::collection::vec(any_sample(), 1..6), at in any::<prop::sample::Index>()) {
            let first = frame_of(&samples, 1).to_bytes().expect("encodes");
            let second = frame_of(&samples, 1 + samples.len() as u64).to_bytes().expect("encodes");
            let all = [first.clone(), second].concat();
            let cut = at.index(all.len());
            let sound = walk(&all[..cut]).filter(|(_, f)| matches!(f, Found::Frame(_))).count();
            prop_assert_eq!(sound, usize::from(cut >= first.len()));
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = walk(&bytes).count();
        }
    }

    #[test]
    fn host_records_survive() {
        let frame = Frame {
            stream: stream(StreamKind::Host),
            first_seq: 1,
            body: Body::Host(vec![HostRecord::Lag(crate::host::Lag {
                at_ns: -5,
                ticks: 100,
                late_max_ns: 1_000,
            })]),
        };
        let bytes = frame.to_bytes().expect("encodes");
        assert_eq!(Frame::from_bytes(&bytes), Ok((frame, bytes.len())));
    }

    #[test]
    fn a_newer_version_is_named() {
        let frame = Frame {
            stream: stream(StreamKind::Host),
            first_seq: 1,
            body: Body::Host(vec![HostRecord::Lag(crate::host::Lag {
                at_ns: 0,
                ticks: 1,
                late_max_ns: 0,
            })]),
        };
        let mut bytes = frame.to_bytes().expect("encodes");
        bytes[4] = 9;
        let crc = crc32fast::hash(&bytes[..48]).to_le_bytes();
        bytes[48..52].copy_from_slice(&crc);
        assert_eq!(Frame::from_bytes(&bytes), Err(FrameError::Version(9)));
    }
}
