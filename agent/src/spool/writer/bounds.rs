//! The bound, what is given up to keep it, and what is removed because it was
//! acknowledged.

use std::sync::atomic::Ordering;

use super::Writer;
use crate::spool::disk::Kind;
use crate::spool::{Loss, LossReason};

impl Writer {
    pub(super) fn make_room(&mut self, added: u64) {
        while self.total_bytes() + added > self.max_bytes && !self.books.is_empty() {
            self.drop_oldest(LossReason::SpoolFull);
        }
    }

    pub(super) fn drop_oldest(&mut self, reason: LossReason) {
        let Some((number, book)) = self.books.pop_first() else {
            return;
        };
        if self.segment.as_ref().is_some_and(|s| s.number == number) {
            self.segment = None;
        }
        for (stream, first, last) in book.ranges {
            let first = first.max(self.acked.get(&stream).map_or(0, |acked| acked + 1));
            if first <= last {
                let loss = Loss::exact(stream, first, last, reason);
                tracing::error!(
                    run = %stream.run, first, last, ?reason,
                    "the spool is full: its oldest records are given up"
                );
                self.declare(loss);
            }
        }
        self.remove_segment(number);
    }

    pub(super) fn remove_acked(&mut self) {
        let current = self.segment.as_ref().map(|segment| segment.number);
        let idle = self.active.is_empty() && self.unsealed_since_ns.is_none();
        let done: Vec<_> =
            self.books
                .iter()
                .filter(|(number, book)| {
                    (Some(**number) != current || idle)
                        && book.ranges.iter().all(|(stream, _, last)| {
                            self.acked.get(stream).is_some_and(|a| a >= last)
                        })
                })
                .map(|(number, _)| *number)
                .collect();
        for number in done {
            if Some(number) == current {
                self.segment = None;
            }
            self.books.remove(&number);
            self.remove_segment(number);
        }
        let before = self.losses.len();
        let acked = &self.acked;
        self.losses
            .retain(|loss| acked.get(&loss.stream).is_none_or(|a| *a < loss.last));
        if self.losses.len() != before {
            self.save_losses();
        }
        self.count_bytes();
    }

    pub(super) fn remove_segment(&self, number: u64) {
        if let Err(error) = self.disk.remove(Kind::Segment, number) {
            tracing::error!(segment = number, %error, "a spool file cannot be removed");
        }
    }

    pub(super) fn total_bytes(&self) -> u64 {
        let segments: u64 = self.books.values().map(|book| book.bytes).sum();
        segments + self.tail_bytes as u64
    }

    pub(super) fn count_bytes(&self) {
        self.bytes.store(self.total_bytes(), Ordering::Relaxed);
    }
}
