//! Sealing: the records of the tail as few large frames in a segment.

use std::io::Write;
use std::sync::Arc;

use gapscope_proto::frame::{Frame, StreamId};

use super::books::Book;
use super::streams::Records;
use super::{
    FRAME_BYTES, FRAME_RECORDS, MOST_UNWRITTEN, SEAL_AFTER_NS, SEAL_RECORDS, SEAL_TAIL_BYTES,
    SEGMENT_BYTES, Segment, Writer,
};
use crate::spool::disk::Kind;
use crate::spool::{FrameRef, Loss, LossReason, Report};

impl Writer {
    pub(super) fn is_seal_due(&self, now: i64) -> bool {
        self.unsealed_since_ns
            .is_some_and(|since| now.saturating_sub(since) >= SEAL_AFTER_NS)
            || self.tail_bytes >= SEAL_TAIL_BYTES
            || self
                .open
                .values()
                .any(|stream| stream.unsealed.len() >= SEAL_RECORDS)
    }

    pub(super) fn seal(&mut self) {
        let mut frames = Vec::new();
        let mut unreadable = Vec::new();
        for (id, stream) in &self.open {
            let first = stream.first_unsealed();
            let mut ranges: Vec<_> = (0..stream.unsealed.len())
                .step_by(FRAME_RECORDS)
                .map(|from| from..(from + FRAME_RECORDS).min(stream.unsealed.len()))
                .rev()
                .collect();
            while let Some(range) = ranges.pop() {
                let from = first + range.start as u64;
                let last = first + range.end as u64 - 1;
                let frame = Frame {
                    stream: *id,
                    first_seq: from,
                    body: stream.unsealed.body(range.clone()),
                };
                match frame.to_bytes() {
                    Ok(bytes) if bytes.len() <= FRAME_BYTES || range.len() == 1 => {
                        frames.push((*id, from, last, bytes));
                    }
                    _ if range.len() > 1 => {
                        let middle = range.start + range.len() / 2;
                        ranges.push(middle..range.end);
                        ranges.push(range.start..middle);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::error!(%error, "a record cannot be encoded");
                        unreadable.push(Loss::exact(*id, from, last, LossReason::Corrupt));
                    }
                }
            }
        }
        if frames.is_empty() && unreadable.is_empty() {
            self.unsealed_since_ns = None;
            return;
        }
        let added: u64 = frames
            .iter()
            .map(|(_, _, _, bytes)| bytes.len() as u64)
            .sum();
        self.make_room(added);
        if let Err(error) = self.write_segment(frames) {
            self.keep_or_lose(&error);
            return;
        }
        for loss in unreadable {
            self.declare(loss);
        }
        for stream in self.open.values_mut() {
            stream.in_tail = 0;
            match &mut stream.unsealed {
                Records::Samples(samples) => samples.clear(),
                Records::Host(records) => records.clear(),
            }
        }
        let ended = std::mem::take(&mut self.ended);
        self.open.retain(|id, _| !ended.contains(&id.run));
        self.unsealed_since_ns = None;
        self.tail_bytes = 0;
        let mut tails = std::mem::take(&mut self.old_tails);
        tails.extend(self.tail.take().map(|(number, _)| number));
        if let Some(segment) = &self.segment {
            self.syncer.sync_then_remove(segment.file.clone(), tails);
        }
        if self
            .segment
            .as_ref()
            .is_some_and(|s| s.len >= SEGMENT_BYTES)
        {
            self.segment = None;
        }
        self.last_sync_ns = self.clock.raw_ns();
        self.count_bytes();
    }

    /// Nothing could be written. What is in memory is tried again in a second,
    /// until there is too much of it.
    pub(super) fn keep_or_lose(&mut self, error: &std::io::Error) {
        tracing::error!(%error, "sealing failed; records stay in memory");
        self.unsealed_since_ns = Some(self.clock.raw_ns());
        let reason = if error.kind() == std::io::ErrorKind::StorageFull {
            LossReason::DiskFull
        } else {
            LossReason::WriteFailed
        };
        let mut losses = Vec::new();
        for (id, stream) in &mut self.open {
            if stream.unsealed.len() > MOST_UNWRITTEN {
                losses.push(Loss::exact(
                    *id,
                    stream.first_unsealed(),
                    stream.next_seq - 1,
                    reason,
                ));
                match &mut stream.unsealed {
                    Records::Samples(samples) => samples.clear(),
                    Records::Host(records) => records.clear(),
                }
                stream.in_tail = 0;
            }
        }
        for loss in losses {
            self.declare(loss);
        }
    }

    pub(super) fn write_segment(
        &mut self,
        frames: Vec<(StreamId, u64, u64, Vec<u8>)>,
    ) -> std::io::Result<()> {
        let bytes: Vec<u8> = frames
            .iter()
            .flat_map(|(_, _, _, bytes)| bytes.iter().copied())
            .collect();
        let mut result = Ok(());
        for attempt in 0..2 {
            result = self.append(&bytes);
            match &result {
                Ok(()) => break,
                Err(error) => {
                    tracing::error!(%error, attempt, "writing a segment failed; the file is given up");
                    self.segment = None;
                    if error.kind() == std::io::ErrorKind::StorageFull {
                        self.drop_oldest(LossReason::DiskFull);
                    }
                }
            }
        }
        result?;
        let segment = self.segment.as_ref().expect("just written to");
        let (number, mut offset) = (segment.number, segment.len - bytes.len() as u64);
        for (stream, first, last, bytes) in frames {
            let frame = FrameRef {
                stream,
                first,
                last,
                segment: number,
                offset,
                len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            };
            offset += bytes.len() as u64;
            self.books.entry(number).or_default().add(&frame);
            self.report(Report::Sealed(frame));
        }
        Ok(())
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        if self.segment.is_none() {
            let number = self.new_number();
            let file = Arc::new(self.disk.create(Kind::Segment, number)?);
            self.syncer.folder_changed();
            self.books.insert(number, Book::default());
            self.segment = Some(Segment {
                number,
                file,
                len: 0,
            });
        }
        let segment = self.segment.as_mut().expect("made above");
        (&*segment.file).write_all(bytes)?;
        segment.len += bytes.len() as u64;
        Ok(())
    }

    /// A sync failed: what the kernel still holds of these files is not known.
    pub(super) fn give_files_up(&mut self) {
        tracing::error!("syncing the spool failed; its open files are given up");
        if let Some((number, _)) = self.tail.take() {
            self.old_tails.push(number);
        }
        self.segment = None;
        self.unsealed_since_ns = self.unsealed_since_ns.map(|_| i64::MIN / 2);
    }
}
