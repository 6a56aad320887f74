//! What a spool still holds, found by walking over all its bytes. Pure.
//!
//! It never fails. A torn end is cut, a damaged frame costs that frame, reading
//! resumes at the next sound header, and what is missing between sound frames of
//! a stream is a declared loss. A record found twice (in a segment and in a tail
//! that was not yet removed, or written again after a failure) counts once.
//!
//! Where it is known how far a stream is acknowledged, its first record is known
//! too. Where power was lost, what lies between the last record found and the
//! last number reserved may have been measured.
//!
//! What it cannot know: a damaged last frame whose header is damaged too, where
//! power was not lost. It shows in the books of the run.

use std::collections::{BTreeMap, BTreeSet};

use gapscope_proto::batch::Columns;
use gapscope_proto::frame::{Body, Found, Frame, FrameError, MAGIC, StreamId, read_header, walk};
use gapscope_proto::sample::Sample;

use super::{FrameRef, Loss, LossReason};

/// Most records of a frame that is made of several.
const JOINED_RECORDS: usize = 8_192;

/// What was found so far.
#[derive(Debug, Default)]
pub struct Recovery {
    pieces: Vec<Piece>,
    known: BTreeMap<StreamId, Known>,
    counts: Counts,
    is_live: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// Acknowledged up to here.
    floor: Option<u64>,
    /// May have been measured up to here: power was lost.
    reserved: Option<u64>,
}

/// What recovery had to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sound frames in segments.
    pub sealed_frames: u64,
    /// Sound frames in tails.
    pub tail_frames: u64,
    /// Stretches of bytes that are no sound frame.
    pub corrupt_stretches: u64,
    /// Their bytes.
    pub corrupt_bytes: u64,
    /// Of these stretches, those that are the beginning of a frame at a file's
    /// end: a write that was cut off, or one that is under way.
    pub cut_stretches: u64,
    /// Files with frames of a newer format.
    pub newer_files: u64,
}

#[derive(Debug)]
struct Piece {
    stream: StreamId,
    first: u64,
    last: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    Sealed(FrameRef),
    Tail(Box<Frame>),
    Declared(Loss),
    /// A header is sound, its body is not.
    Broken,
}

impl What {
    /// Sound data first, then what was declared, then what is merely known of.
    fn rank(&self) -> u8 {
        match self {
            Self::Sealed(_) => 0,
            Self::Tail(_) => 1,
            Self::Declared(_) => 2,
            Self::Broken => 3,
        }
    }
}

/// What a spool holds.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Frames in segments, by stream and seq.
    pub sealed: Vec<FrameRef>,
    /// Frames that stand in tails only, by stream and seq, to be sealed.
    pub unsealed: Vec<Frame>,
    /// Losses, old and new.
    pub losses: Vec<Loss>,
    /// By stream, the last number that is held, lost or acknowledged.
    pub ends: BTreeMap<StreamId, u64>,
    /// What had to be done.
    pub counts: Counts,
}

impl Recovery {
    /// For a spool that is being written to: a frame that is cut off at the end
    /// of a file is not there yet.
    pub fn live(is_live: bool) -> Self {
        Self {
            is_live,
            ..Self::default()
        }
    }

    /// What was found so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Takes in a segment file; whether a newer build has written in it.
    pub fn segment(&mut self, number: u64, bytes: &[u8]) -> bool {
        self.walk(bytes, |range, frame| {
            What::Sealed(FrameRef {
                stream: frame.stream,
                first: frame.first_seq,
                last: frame.last_seq(),
                segment: number,
                offset: range.start as u64,
                len: u32::try_from(range.len()).unwrap_or(u32::MAX),
            })
        })
    }

    /// Takes in a tail file; whether a newer build has written in it.
    pub fn tail(&mut self, bytes: &[u8]) -> bool {
        self.walk(bytes, |_, frame| What::Tail(frame))
    }

    /// What is known of a stream: acknowledged up to `floor`; and where power was
    /// lost, numbers up to `reserved` may have been given out.
    pub fn known(&mut self, stream: StreamId, floor: u64, reserved: Option<u64>) {
        self.known.insert(
            stream,
            Known {
                floor: Some(floor),
                reserved,
            },
        );
    }

    /// Takes in a loss that was declared before.
    pub fn loss(&mut self, loss: Loss) {
        self.pieces.push(Piece {
            stream: loss.stream,
            first: loss.first,
            last: loss.last,
            what: What::Declared(loss),
        });
    }

    fn walk(
        &mut self,
        bytes: &[u8],
        make: impl Fn(std::ops::Range<usize>, Box<Frame>) -> What,
    ) -> bool {
        let mut is_newer = false;
        for (range, found) in walk(bytes) {
            match found {
                Found::Frame(frame) => {
                    let (stream, first, last) = (frame.stream, frame.first_seq, frame.last_seq());
                    let what = make(range, frame);
                    match what {
                        What::Tail(_) => self.counts.tail_frames += 1,
                        _ => self.counts.sealed_frames += 1,
                    }
                    self.pieces.push(Piece {
                        stream,
                        first,
                        last,
                        what,
                    });
                }
                Found::Corrupt { range, .. } if has_newer(&bytes[range.clone()]) => {
                    is_newer = true;
                }
                Found::Corrupt {
                    range,
                    header,
                    error,
                } => {
                    let is_cut =
                        range.end == bytes.len() && matches!(error, FrameError::Short { .. });
                    if is_cut && self.is_live {
                        continue;
                    }
                    self.counts.corrupt_stretches += 1;
                    self.counts.corrupt_bytes += range.len() as u64;
                    self.counts.cut_stretches += u64::from(is_cut);
                    if let Some(header) = header {
                        self.pieces.push(Piece {
                            stream: header.stream,
                            first: header.first_seq,
                            last: header.last_seq(),
                            what: What::Broken,
                        });
                    }
                }
            }
        }
        self.counts.newer_files += u64::from(is_newer);
        is_newer
    }

    /// Puts the pieces in order.
    pub fn finish(mut self) -> Recovered {
        let mut out = Recovered {
            counts: self.counts,
            ..Recovered::default()
        };
        self.pieces
            .sort_by_key(|piece| (piece.stream, piece.first, piece.what.rank(), piece.last));
        let mut by_stream: BTreeMap<StreamId, Vec<Piece>> = BTreeMap::new();
        for piece in self.pieces {
            by_stream.entry(piece.stream).or_default().push(piece);
        }
        let streams: BTreeSet<_> = by_stream.keys().chain(self.known.keys()).copied().collect();
        for stream in streams {
            let known = self.known.get(&stream).copied().unwrap_or_default();
            let pieces = by_stream.remove(&stream).unwrap_or_default();
            one_stream(stream, known, pieces, &mut out);
        }
        out
    }
}

/// Whether there is a header of a newer format.
fn has_newer(bytes: &[u8]) -> bool {
    bytes
        .windows(MAGIC.len())
        .enumerate()
        .filter(|(_, window)| *window == MAGIC)
        .any(|(at, _)| matches!(read_header(&bytes[at..]), Err(FrameError::Version(_))))
}

fn one_stream(stream: StreamId, known: Known, pieces: Vec<Piece>, out: &mut Recovered) {
    // Broken headers only say what may be missing; sound pieces decide.
    let (broken, sound): (Vec<_>, Vec<_>) = pieces
        .into_iter()
        .partition(|piece| matches!(piece.what, What::Broken));
    let broken_first = broken.iter().map(|piece| piece.first).min();
    let broken_last = broken.iter().map(|piece| piece.last).max();
    let mut covered: Option<u64> = known.floor;
    let reason = if known.reserved.is_some() {
        LossReason::PowerLoss
    } else {
        LossReason::Corrupt
    };
    let lost = |first: u64, last: u64, out: &mut Recovered| {
        out.losses.push(Loss::exact(stream, first, last, reason));
    };
    for piece in sound {
        match covered {
            Some(covered) if piece.last <= covered => continue,
            Some(covered) if piece.first > covered + 1 => {
                lost(covered + 1, piece.first - 1, out);
            }
            None => {
                if let Some(first) = broken_first.filter(|first| *first < piece.first) {
                    lost(first, piece.first - 1, out);
                }
            }
            _ => {}
        }
        let from = covered.map_or(piece.first, |c| piece.first.max(c + 1));
        covered = Some(piece.last);
        match piece.what {
            // Its records before that stand in another frame.
            What::Sealed(frame) => out.sealed.push(FrameRef {
                first: from,
                ..frame
            }),
            What::Tail(frame) => out.unsealed.extend(trimmed(*frame, from)),
            What::Declared(mut loss) => {
                if from > loss.first {
                    // What is held of it was measured.
                    let cut = from - loss.first;
                    loss.first = from;
                    loss.count_min = loss.count_min.saturating_sub(cut);
                    loss.count_max = loss.count_max.saturating_sub(cut);
                }
                out.losses.push(loss);
            }
            What::Broken => {}
        }
    }
    match (covered, broken_first, broken_last) {
        (Some(known), _, Some(last)) if last > known => {
            lost(known + 1, last, out);
            covered = Some(last);
        }
        (None, Some(first), Some(last)) => {
            lost(first, last, out);
            covered = Some(last);
        }
        _ => {}
    }
    let covered = covered.unwrap_or(0);
    out.ends
        .insert(stream, covered.max(known.reserved.unwrap_or(0)));
    if let Some(reserved) = known.reserved.filter(|reserved| *reserved > covered) {
        out.losses.push(Loss {
            stream,
            first: covered + 1,
            last: reserved,
            count_min: 0,
            count_max: reserved - covered,
            reason: LossReason::PowerLoss,
        });
    }
}

/// The frame's records from seq `from` on.
pub(super) fn trimmed(frame: Frame, from: u64) -> Option<Frame> {
    let skip = usize::try_from(from.saturating_sub(frame.first_seq)).unwrap_or(usize::MAX);
    if skip == 0 {
        return Some(frame);
    }
    let body = match frame.body {
        Body::Host(records) => Body::Host(records.into_iter().skip(skip).collect()),
        Body::Samples(columns) => {
            let samples = columns.decode().ok()?;
            Body::Samples(Columns::encode(samples.get(skip..)?))
        }
    };
    let rest = Frame {
        stream: frame.stream,
        first_seq: from,
        body,
    };
    (rest.count() > 0).then_some(rest)
}

/// Joins frames of one stream that follow each other.
pub(super) fn merged(frames: Vec<Frame>) -> Vec<Frame> {
    let mut out: Vec<Frame> = Vec::new();
    let mut gathered: Vec<Sample> = Vec::new();
    let close = |out: &mut Vec<Frame>, gathered: &mut Vec<Sample>| {
        if let Some(frame) = out.last_mut()
            && !gathered.is_empty()
        {
            frame.body = Body::Samples(Columns::encode(gathered));
            gathered.clear();
        }
    };
    for frame in frames {
        let joins = out.last().is_some_and(|last| {
            let count = match &last.body {
                Body::Samples(_) => gathered.len(),
                Body::Host(records) => records.len(),
            };
            last.stream == frame.stream
                && last.first_seq + count as u64 == frame.first_seq
                && count + frame.count() <= JOINED_RECORDS
        });
        if !joins {
            close(&mut out, &mut gathered);
            let samples = frame.samples();
            out.push(frame);
            gathered.extend(samples.unwrap_or_default());
            continue;
        }
        match frame.body {
            Body::Host(mut more) => {
                if let Some(Body::Host(records)) = out.last_mut().map(|f| &mut f.body) {
                    records.append(&mut more);
                }
            }
            Body::Samples(columns) => gathered.extend(columns.decode().unwrap_or_default()),
        }
    }
    close(&mut out, &mut gathered);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapscope_proto::frame::StreamKind;
    use gapscope_proto::host::{HostRecord, Lag};
    use gapscope_proto::ids::{Incarnation, RunId};
    use proptest::prelude::*;

    fn stream() -> StreamId {
        StreamId {
            run: RunId::from_bytes([1, 2, 3, 4, 5, 6, 0x70, 8, 0x80, 1, 2, 3, 4, 5, 6, 7])
                .expect("a UUIDv7"),
            incarnation: Incarnation::new(9).expect("not 0"),
            kind: StreamKind::Host,
        }
    }

    fn frame(first: u64, count: u64) -> Frame {
        let record = |seq: u64| {
            HostRecord::Lag(Lag {
                at_ns: seq as i64,
                ticks: 1,
                late_max_ns: 0,
            })
        };
        Frame {
            stream: stream(),
            first_seq: first,
            body: Body::Host((first..first + count).map(record).collect()),
        }
    }

    fn bytes(frames: &[(u64, u64)]) -> Vec<u8> {
        frames
            .iter()
            .flat_map(|(first, count)| frame(*first, *count).to_bytes().expect("encodes"))
            .collect()
    }

    /// Every seq that is neither held nor declared lost, up to `last`.
    fn unaccounted(found: &Recovered, last: u64) -> Vec<u64> {
        (1..=last)
            .filter(|seq| {
                let held = found
                    .sealed
                    .iter()
                    .any(|f| (f.first..=f.last).contains(seq))
                    || found
                        .unsealed
                        .iter()
                        .any(|f| (f.first_seq..=f.last_seq()).contains(seq));
                let lost = found
                    .losses
                    .iter()
                    .any(|l| (l.first..=l.last).contains(seq));
                assert!(!(held && lost), "seq {seq} is held and lost");
                !held && !lost
            })
            .collect()
    }

    #[test]
    fn a_crash_between_seal_and_removal_counts_nothing_twice() {
        let mut recovery = Recovery::default();
        recovery.segment(1, &bytes(&[(1, 5)]));
        recovery.tail(&bytes(&[(1, 2), (3, 3)]));
        recovery.tail(&bytes(&[(4, 4), (8, 1)]));
        let found = recovery.finish();
        assert_eq!(found.sealed.len(), 1);
        let unsealed: Vec<_> = found
            .unsealed
            .iter()
            .map(|f| (f.first_seq, f.count()))
            .collect();
        assert_eq!(unsealed, [(6, 2), (8, 1)]);
        assert_eq!(found.losses, []);
    }

    #[test]
    fn a_damaged_frame_costs_that_frame() {
        for (damaged, expect) in [(0usize, (1, 3)), (1, (4, 6)), (2, (7, 9))] {
            let mut parts: Vec<_> = [1, 4, 7].iter().map(|f| bytes(&[(*f, 3)])).collect();
            let end = parts[damaged].len() - 1;
            parts[damaged][end] ^= 1;
            let mut recovery = Recovery::default();
            recovery.segment(1, &parts.concat());
            let found = recovery.finish();
            let (first, last) = expect;
            assert_eq!(
                found.losses,
                [Loss::exact(stream(), first, last, LossReason::Corrupt)]
            );
            assert_eq!(found.sealed.len(), 2);
            assert!(unaccounted(&found, 9).is_empty());
        }
    }

    #[test]
    fn what_was_declared_stays_declared() {
        let mut recovery = Recovery::default();
        recovery.loss(Loss::exact(stream(), 1, 10, LossReason::SpoolFull));
        recovery.segment(4, &bytes(&[(11, 2)]));
        let found = recovery.finish();
        assert_eq!(
            found.losses,
            [Loss::exact(stream(), 1, 10, LossReason::SpoolFull)]
        );
        assert!(unaccounted(&found, 12).is_empty());
    }

    proptest! {
        /// A spool cut at any byte keeps all frames before the cut.
        #[test]
        fn a_cut_at_any_byte_keeps_the_prefix(counts in proptest::collection::vec(1u64..6, 1..8), at in any::<prop::sample::Index>(), in_tail in any::<bool>()) {
            let mut frames = Vec::new();
            let mut next = 1;
            for count in counts {
                frames.push((next, count));
                next += count;
            }
            let all = bytes(&frames);
            let cut = at.index(all.len() + 1);
            let mut kept = 0;
            let mut length = 0;
            for (first, count) in &frames {
                length += bytes(&[(*first, *count)]).len();
                if length <= cut {
                    kept = first + count - 1;
                }
            }
            let mut recovery = Recovery::default();
            if in_tail {
                recovery.tail(&all[..cut]);
            } else {
                recovery.segment(1, &all[..cut]);
            }
            let found = recovery.finish();
            let last = found.sealed.iter().map(|f| f.last)
                .chain(found.unsealed.iter().map(Frame::last_seq)).max().unwrap_or(0);
            prop_assert_eq!(last, kept);
            prop_assert_eq!(unaccounted(&found, kept), Vec::<u64>::new());
        }

        /// However segments and tails overlap and whatever is damaged, no record
        /// between the first and the last is held twice or vanishes undeclared.
        #[test]
        fn nothing_twice_nothing_silent(
            split in 1u64..20, last in 20u64..40, flip in proptest::option::of(any::<prop::sample::Index>()),
        ) {
            let segment: Vec<_> = (1..=split).map(|s| (s, 1)).collect();
            let mut segment = bytes(&segment);
            let tail: Vec<_> = (split.saturating_sub(3).max(1)..=last).map(|s| (s, 1)).collect();
            let tail = bytes(&tail);
            if let Some(flip) = flip {
                let at = flip.index(segment.len());
                segment[at] ^= 0x10;
            }
            let mut recovery = Recovery::default();
            recovery.segment(1, &segment);
            recovery.tail(&tail);
            let found = recovery.finish();
            let mut held: Vec<u64> = found.sealed.iter().flat_map(|f| f.first..=f.last)
                .chain(found.unsealed.iter().flat_map(|f| f.first_seq..=f.last_seq())).collect();
            held.sort_unstable();
            let before = held.len();
            held.dedup();
            prop_assert_eq!(before, held.len());
            let missing = unaccounted(&found, last);
            // A damaged first header leaves no trace of its seq.
            prop_assert!(missing.is_empty() || missing == vec![1], "{:?}", missing);
        }
    }
}
