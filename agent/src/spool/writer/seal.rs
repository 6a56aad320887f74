//! Sealing: the records of the tail as few large frames in a segment.
//!
//! Samples and host records have segments of their own, so that the oldest
//! samples can be given up without what makes sense of the others.

use std::io;

use gapscope_proto::frame::{StreamId, StreamKind};
use gapscope_proto::ids::RunId;

use super::books::Book;
use super::streams::{Encoded, encode};
use super::{
    MOST_UNWRITTEN, REST_NS, SEAL_AFTER_NS, SEAL_RECORDS, SEAL_SOON_NS, SEAL_SOON_RECORDS, Segment,
    Writer,
};
use crate::spool::disk::Kind;
use crate::spool::settings::WhenFull;
use crate::spool::sync::{Job, Sealed};
use crate::spool::{FrameRef, Loss, LossReason, Report};

/// Attempts to write one seal, each behind the removal of an older segment.
const MOST_ATTEMPTS: usize = 64;

pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

impl Writer {
    /// How long what was written first may wait now.
    pub(super) fn seal_after_ns(&self) -> i64 {
        let is_much = |waiting: usize| waiting >= SEAL_SOON_RECORDS;
        let mut waiting = self.open.values().map(|stream| stream.unsealed.len());
        match waiting.any(is_much) {
            true => SEAL_SOON_NS,
            false => SEAL_AFTER_NS,
        }
    }

    pub(super) fn is_seal_due(&self, now: i64) -> bool {
        !self.is_resting()
            && (self
                .unsealed_since_ns
                .is_some_and(|since| now.saturating_sub(since) >= self.seal_after_ns())
                || self.tail_bytes() >= self.tail_limit
                || self
                    .open
                    .values()
                    .any(|stream| stream.unsealed.len() >= SEAL_RECORDS))
    }

    pub(super) fn seal(&mut self) {
        let mut frames = std::mem::take(&mut self.leftover);
        let mut losses = Vec::new();
        for (id, stream) in &self.open {
            let (more, unreadable) = encode(*id, stream.first_unsealed(), &stream.unsealed, 0);
            frames.extend(more);
            losses.extend(unreadable);
        }
        if frames.is_empty() && losses.is_empty() {
            self.unsealed_since_ns = None;
            return;
        }
        self.measure_disk();
        let mut failure = None;
        let (host, samples): (Vec<_>, Vec<_>) = frames
            .into_iter()
            .partition(|frame| frame.stream.kind == StreamKind::Host);
        for (kind, frames) in [(StreamKind::Host, host), (StreamKind::Samples, samples)] {
            if frames.is_empty() {
                continue;
            }
            let added = frames.iter().map(|frame| frame.bytes.len() as u64).sum();
            if let Err(reason) = self.room_for(added, kind) {
                losses.extend(
                    frames
                        .iter()
                        .map(|frame| Loss::exact(frame.stream, frame.first, frame.last, reason)),
                );
            } else {
                if let Err((error, frames)) = self.write_segment(kind, frames, true) {
                    let ids: Vec<_> = self.open.keys().copied().collect();
                    // What is in memory is encoded again.
                    self.leftover
                        .extend(frames.into_iter().filter(|f| !ids.contains(&f.stream)));
                    failure = Some((kind, error));
                    continue;
                }
            }
            for (id, stream) in &mut self.open {
                if id.kind == kind {
                    stream.clear();
                }
            }
        }
        let lost = !losses.is_empty();
        for loss in losses {
            self.declare(loss);
        }
        if let Some((kind, error)) = failure {
            self.keep_or_lose(kind, &error);
            return;
        }
        if lost || !self.ledger.is_sound {
            // Behind the loss, or the end of a failure, the tails may go.
            self.ledger.is_sound = true;
            self.save(Vec::new());
        }
        if self.has_complained {
            self.has_complained = false;
            tracing::info!("the spool can be written to again");
        }
        self.rest_until_ns = None;
        self.sealed();
    }

    /// All that was unsealed is written or declared.
    fn sealed(&mut self) {
        let ended = std::mem::take(&mut self.ended);
        for run in &ended {
            self.end_streams(*run);
        }
        if !ended.is_empty() {
            self.save(Vec::new());
        }
        self.unsealed_since_ns = None;
        self.give_tail_up();
        self.sync_sealed();
        let limit = self.segment_limit;
        self.segments.retain(|_, segment| segment.len < limit);
        self.last_sync_ns = self.clock.raw_ns();
        self.count_bytes();
    }

    /// Nothing will be measured in this run any more, and all is written or
    /// declared.
    pub(super) fn end_streams(&mut self, run: RunId) {
        for kind in [StreamKind::Samples, StreamKind::Host] {
            let id = StreamId {
                run,
                incarnation: self.incarnation,
                kind,
            };
            let last = self.open.remove(&id).map_or(0, |s| s.next_seq - 1);
            self.ledger.end(&id, last);
        }
    }

    /// Has all segments synced that were written to since the last time, and
    /// then the tails removed whose records they hold.
    pub(super) fn sync_sealed(&mut self) {
        let (segments, files) = std::mem::take(&mut self.unsynced).into_iter().unzip();
        let tails = std::mem::take(&mut self.old_tails);
        self.syncer
            .send(Job::Seal(Sealed { segments, tails }, files));
    }

    /// Nothing could be written. What is in memory is tried again soon, until
    /// there is too much of it.
    fn keep_or_lose(&mut self, kind: StreamKind, error: &io::Error) {
        self.unwritten();
        let now = self.clock.raw_ns();
        self.unsealed_since_ns = Some(now);
        self.rest_until_ns = Some(now.saturating_add(REST_NS));
        let reason = if is_full(error) {
            LossReason::DiskFull
        } else {
            LossReason::WriteFailed
        };
        let mut losses = Vec::new();
        for (id, stream) in &mut self.open {
            if id.kind == kind && stream.unsealed.len() > MOST_UNWRITTEN {
                losses.push(Loss::exact(
                    *id,
                    stream.first_unsealed(),
                    stream.next_seq - 1,
                    reason,
                ));
                stream.clear();
            }
        }
        if losses.is_empty() {
            return;
        }
        for loss in losses {
            self.declare(loss);
        }
        self.save(Vec::new());
    }

    /// On a full disk older segments may be given up for it, or not.
    pub(super) fn write_segment(
        &mut self,
        kind: StreamKind,
        frames: Vec<Encoded>,
        may_drop: bool,
    ) -> Result<(), (io::Error, Vec<Encoded>)> {
        let bytes: Vec<u8> = frames
            .iter()
            .flat_map(|frame| frame.bytes.iter().copied())
            .collect();
        let mut attempt = 0;
        while let Err(error) = self.append(kind, &bytes) {
            attempt += 1;
            self.complain("writing a segment failed; it is given up", &error);
            self.give_segment_up(kind);
            let again = if is_full(&error) {
                may_drop
                    && attempt < MOST_ATTEMPTS
                    && self.settings.when_full == WhenFull::Oldest
                    && self.drop_oldest(LossReason::DiskFull).is_some()
            } else {
                attempt < 2
            };
            if !again {
                return Err((error, frames));
            }
        }
        let segment = self.segments.get(&kind).expect("just written to");
        let (number, mut offset) = (segment.number, segment.len - bytes.len() as u64);
        self.unsynced.insert(number, segment.file.clone());
        for frame in frames {
            let len = frame.bytes.len();
            let sealed = FrameRef {
                stream: frame.stream,
                first: frame.first,
                last: frame.last,
                segment: number,
                offset,
                len: u32::try_from(len).unwrap_or(u32::MAX),
            };
            offset += len as u64;
            self.books.0.entry(number).or_default().add(&sealed);
            self.report(Report::Sealed(sealed));
        }
        Ok(())
    }

    fn append(&mut self, kind: StreamKind, bytes: &[u8]) -> io::Result<()> {
        if !self.segments.contains_key(&kind) {
            let number = self.new_number();
            let file = self.disk.create(Kind::Segment, number)?;
            self.syncer.folder_changed();
            self.books.0.insert(number, Book::default());
            self.segments.insert(
                kind,
                Segment {
                    number,
                    file,
                    len: 0,
                },
            );
        }
        let segment = self.segments.get_mut(&kind).expect("made above");
        let written = segment.file.append(bytes);
        segment.len += bytes.len() as u64;
        written
    }

    /// Nothing is written to it any more. Without a record it is of no use.
    fn give_segment_up(&mut self, kind: StreamKind) {
        let Some(segment) = self.segments.remove(&kind) else {
            return;
        };
        let Some(book) = self.books.0.get_mut(&segment.number) else {
            return;
        };
        if book.ranges.is_empty() && book.tails.is_empty() {
            self.books.0.remove(&segment.number);
            if let Err(error) = self.disk.remove(Kind::Segment, segment.number) {
                tracing::debug!(%error, "not removed");
            }
        } else {
            book.bytes = book.bytes.max(segment.len);
        }
    }
}
