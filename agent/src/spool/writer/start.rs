//! Taking over what an earlier start of the agent left.

use super::{FILES_FILE, FileNumbers, LOSSES_FILE, Writer};
use crate::spool::disk::Kind;
use crate::spool::recover::{Counts, Recovery, merged};
use crate::spool::{Loss, LossReason, Report};

impl Writer {
    pub(super) fn recover(&mut self) -> std::io::Result<Counts> {
        let mut recovery = Recovery::default();
        let segments = self.disk.files(Kind::Segment)?;
        let tails = self.disk.files(Kind::Tail)?;
        let reserved = match self.disk.small(FILES_FILE)? {
            Some(bytes) => serde_json::from_slice::<FileNumbers>(&bytes).map_or(0, |n| n.next),
            None => 0,
        };
        let highest = segments.iter().chain(&tails).map(|(n, _)| *n).max();
        self.next_number = reserved.max(highest.map_or(1, |n| n + 1)).max(1);
        for (number, len) in &segments {
            match self.disk.read(Kind::Segment, *number) {
                Ok(bytes) => recovery.segment(*number, &bytes),
                Err(error) => {
                    tracing::error!(segment = number, %error, "a spool file cannot be read");
                }
            }
            self.books.entry(*number).or_default().bytes = *len;
        }
        for (number, _) in &tails {
            match self.disk.read(Kind::Tail, *number) {
                Ok(bytes) => recovery.tail(&bytes),
                Err(error) => tracing::error!(tail = number, %error, "a spool file cannot be read"),
            }
        }
        if let Some(bytes) = self.disk.small(LOSSES_FILE)? {
            match serde_json::from_slice::<Vec<Loss>>(&bytes) {
                Ok(losses) => losses.into_iter().for_each(|loss| recovery.loss(loss)),
                Err(error) => tracing::error!(%error, "{LOSSES_FILE} cannot be read"),
            }
        }
        let found = recovery.finish();
        for frame in &found.sealed {
            self.books.entry(frame.segment).or_default().add(frame);
            self.report(Report::Sealed(*frame));
        }
        let mut frames = Vec::new();
        for frame in merged(found.unsealed) {
            let last = frame.last_seq();
            match frame.to_bytes() {
                Ok(bytes) => frames.push((frame.stream, frame.first_seq, last, bytes)),
                Err(error) => {
                    tracing::error!(%error, "records of a tail cannot be sealed");
                    self.declare(Loss::exact(
                        frame.stream,
                        frame.first_seq,
                        last,
                        LossReason::Corrupt,
                    ));
                }
            }
        }
        // Tails stay until their records stand elsewhere.
        if frames.is_empty() || self.write_segment(frames).is_ok() {
            if let Some(segment) = &self.segment {
                segment.file.sync_data()?;
            }
            for (number, _) in tails {
                self.disk.remove(Kind::Tail, number)?;
            }
        }
        for loss in found.losses {
            self.declare(loss);
        }
        // Segments without one sound frame are of no more use.
        self.remove_acked();
        self.count_bytes();
        Ok(found.counts)
    }
}
