//! The bounds, what is given up to keep them, and what is removed because it was
//! acknowledged.
//!
//! By bytes: everything in the folder that is the spool's. By free disk: what is
//! to be left free is left, but the spool may always take a MiB, so that a disk
//! that others have filled does not silence the instrument; and then it does not
//! shrink, it only stops to grow.

use std::sync::atomic::Ordering;

use gapscope_proto::frame::StreamKind;

use super::Writer;
use crate::spool::disk::Kind;
use crate::spool::settings::{LEAST_MAX_BYTES, WhenFull};
use crate::spool::state::SLOT_BYTES;
use crate::spool::{Loss, LossReason};

const LARGEST_SEGMENT: u64 = 16 << 20;
const LARGEST_TAIL: u64 = 1 << 20;
const SMALLEST: u64 = 16 << 10;
/// What the state file takes at first.
const STATE_BYTES: u64 = 2 * SLOT_BYTES as u64;

impl Writer {
    /// Asks the disk how much the spool may take; sizes of files follow.
    pub(super) fn measure_disk(&mut self) {
        self.by_disk = match self.disk.space() {
            Ok(space) => {
                let spare = space.free.saturating_sub(self.settings.min_free(space));
                self.total_bytes()
                    .saturating_add(spare)
                    .max(LEAST_MAX_BYTES)
            }
            Err(error) => {
                tracing::debug!(%error, "the disk cannot be asked for its space");
                u64::MAX
            }
        };
        let limit = self.by_disk.min(self.settings.max_bytes);
        self.segment_limit = (limit / 16).clamp(SMALLEST, LARGEST_SEGMENT);
        self.tail_limit = (limit / 16).clamp(SMALLEST, LARGEST_TAIL);
    }

    /// Kept free for host records, which make sense of the samples that are
    /// held.
    fn headroom(&self) -> u64 {
        self.settings.max_bytes / 16
    }

    /// Makes room for so many bytes, or says why there is none.
    pub(super) fn room_for(&mut self, added: u64, kind: StreamKind) -> Result<(), LossReason> {
        let by_disk = self.by_disk;
        let is_newest = self.settings.when_full == WhenFull::Newest && kind == StreamKind::Samples;
        let mut kept = if is_newest { self.headroom() } else { 0 };
        if is_newest && self.is_dropping {
            // Not a segment here and a segment there.
            kept *= 2;
        }
        let mut freed = 0;
        loop {
            let wanted = self.total_bytes() + added + self.tail_limit + kept;
            let reason = if wanted > self.settings.max_bytes {
                LossReason::SpoolFull
            } else if wanted > by_disk && freed < added {
                LossReason::DiskFull
            } else {
                if kind == StreamKind::Samples {
                    self.is_dropping = false;
                }
                return Ok(());
            };
            if self.settings.when_full == WhenFull::Oldest
                && let Some(bytes) = self.drop_oldest(reason)
            {
                freed += bytes;
                continue;
            }
            if !self.is_dropping {
                self.is_dropping = true;
                tracing::error!(
                    ?reason,
                    "there is no room: the newest records are given up and declared lost"
                );
            }
            return Err(reason);
        }
    }

    /// Gives up the oldest segment; returns its bytes, or none if there is none,
    /// or if that cannot be made known durably: then it goes behind a later save.
    pub(super) fn drop_oldest(&mut self, reason: LossReason) -> Option<u64> {
        let (number, book) = self.books.take_oldest()?;
        self.segments.retain(|_, segment| segment.number != number);
        for (stream, first, last) in book.ranges {
            let first = first.max(self.acked.get(&stream).map_or(0, |acked| acked + 1));
            if first <= last {
                tracing::error!(
                    run = %stream.run, first, last, ?reason,
                    "there is no room: the oldest records are given up"
                );
                self.declare(Loss::exact(stream, first, last, reason));
            }
        }
        let mut files = vec![(Kind::Segment, number)];
        files.extend(book.tails.iter().map(|(number, _)| (Kind::Tail, *number)));
        self.save(files);
        // Its space is needed now.
        self.syncer.run_all();
        self.heed();
        (!self.ledger.has_failed)
            .then(|| book.bytes + book.tails.iter().map(|(_, len)| len).sum::<u64>())
    }

    pub(super) fn remove_acked(&mut self) {
        let current: Vec<_> = self.segments.values().map(|s| s.number).collect();
        let is_idle = self.active.is_empty() && self.unsealed_since_ns.is_none();
        let acked = &self.acked;
        let is_done = |ranges: &[(_, u64, u64)]| {
            ranges
                .iter()
                .all(|(stream, _, last)| acked.get(stream).is_some_and(|a| a >= last))
        };
        let done: Vec<_> = self
            .books
            .0
            .iter()
            .filter(|(number, book)| {
                !book.is_kept && (is_idle || !current.contains(number)) && is_done(&book.ranges)
            })
            .map(|(number, _)| *number)
            .collect();
        let losses = self.ledger.losses.len();
        self.ledger
            .losses
            .retain(|loss| acked.get(&loss.stream).is_none_or(|a| *a < loss.last));
        if done.is_empty() && self.ledger.losses.len() == losses {
            return;
        }
        let mut files = Vec::new();
        for number in done {
            self.segments.retain(|_, segment| segment.number != number);
            if let Some(book) = self.books.0.remove(&number) {
                files.push((Kind::Segment, number));
                files.extend(book.tails.iter().map(|(tail, _)| (Kind::Tail, *tail)));
            }
        }
        for (stream, seq) in &self.acked {
            self.ledger.acked(stream, *seq);
        }
        let (books, open) = (&self.books, &self.open);
        self.ledger
            .prune(|stream| open.contains_key(stream) || books.hold(stream));
        self.save(files);
        self.count_bytes();
    }

    pub(super) fn tail_bytes(&self) -> u64 {
        let open = self.tail.as_ref().map_or(0, |tail| tail.len);
        open + self.old_tails.iter().map(|(_, len)| len).sum::<u64>()
    }

    pub(super) fn total_bytes(&self) -> u64 {
        STATE_BYTES + self.books.total_bytes() + self.tail_bytes()
    }

    pub(super) fn count_bytes(&self) {
        // What is counted is what waits to be delivered.
        self.bytes
            .store(self.total_bytes() - STATE_BYTES, Ordering::Relaxed);
    }

    /// Says whether probing has to stand still.
    pub(super) fn hold_probing(&mut self) {
        if self.settings.when_full != WhenFull::StopProbing {
            return;
        }
        let held = self.is_held.load(Ordering::Relaxed);
        let spare = self.headroom() + if held { self.headroom() / 2 } else { 0 };
        let wanted = self.total_bytes() + 2 * self.tail_limit + spare;
        let is_full = wanted > self.settings.max_bytes || wanted > self.by_disk;
        if is_full && !held {
            tracing::error!(
                "there is no room: probing stands still; slots that pass are not probed by the agent"
            );
        } else if held && !is_full {
            tracing::warn!("there is room again: probing goes on");
        }
        self.is_held.store(is_full, Ordering::Relaxed);
    }
}
