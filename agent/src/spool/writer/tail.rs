//! The open tail: what was measured since the last seal, one write a wake-up.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use gapscope_proto::frame::Frame;

use super::Writer;
use crate::spool::disk::Kind;

impl Writer {
    pub(super) fn write_tail(&mut self) {
        let mut bytes = Vec::new();
        for (id, stream) in &mut self.open {
            let count = stream.unsealed.len();
            if count == stream.in_tail {
                continue;
            }
            let frame = Frame {
                stream: *id,
                first_seq: stream.first_unsealed() + stream.in_tail as u64,
                body: stream.unsealed.body(stream.in_tail..count),
            };
            match frame.to_bytes() {
                Ok(encoded) => bytes.extend_from_slice(&encoded),
                // Too long for one frame: the seal, which splits, comes at once.
                Err(error) => tracing::debug!(%error, "not written to the tail"),
            }
            stream.in_tail = count;
        }
        if bytes.is_empty() {
            return;
        }
        self.tail_bytes += bytes.len();
        for attempt in 0..2 {
            let Some(file) = self.tail_file() else { break };
            match (&*file).write_all(&bytes) {
                Ok(()) => {
                    self.count_bytes();
                    return;
                }
                Err(error) => {
                    tracing::error!(%error, attempt, "writing to the spool's tail failed; the file is given up");
                    if let Some((number, _)) = self.tail.take() {
                        self.old_tails.push(number);
                    }
                }
            }
        }
        // Still in memory: seal as soon as possible.
        self.unsealed_since_ns = Some(i64::MIN / 2);
    }

    pub(super) fn tail_file(&mut self) -> Option<Arc<File>> {
        if let Some((_, file)) = &self.tail {
            return Some(file.clone());
        }
        let number = self.new_number();
        match self.disk.create(Kind::Tail, number) {
            Ok(file) => {
                let file = Arc::new(file);
                self.tail = Some((number, file.clone()));
                self.syncer.folder_changed();
                Some(file)
            }
            Err(error) => {
                tracing::error!(%error, "no tail file can be made");
                None
            }
        }
    }

    pub(super) fn sync_tail(&mut self, now: i64) {
        self.last_sync_ns = now;
        if let Some((_, file)) = &self.tail
            && self.tail_bytes > 0
        {
            self.syncer.sync_soon(file.clone());
        }
    }
}
