//! The open tail: what was measured since the last seal, one write a wake-up.

use std::sync::Arc;

use super::streams::encode;
use super::{AT_ONCE, Tail, Writer};
use crate::spool::disk::Kind;
use crate::spool::settings::SyncPolicy;
use crate::spool::vfs::VfsFile;

impl Writer {
    pub(super) fn write_tail(&mut self) {
        if self.is_resting() {
            return;
        }
        let mut bytes = Vec::new();
        for (id, stream) in &mut self.open {
            let count = stream.unsealed.len();
            if count == stream.in_tail {
                continue;
            }
            // What cannot be encoded is declared when it is sealed.
            let (frames, _) = encode(
                *id,
                stream.first_unsealed(),
                &stream.unsealed,
                stream.in_tail,
            );
            for frame in frames {
                bytes.extend_from_slice(&frame.bytes);
            }
            stream.in_tail = count;
        }
        if bytes.is_empty() {
            return;
        }
        for attempt in 0..2 {
            let file = match self.tail_file() {
                Ok(file) => file,
                Err(error) => {
                    self.complain("no tail file can be made", &error);
                    break;
                }
            };
            let written = file.append(&bytes);
            if let Some(tail) = &mut self.tail {
                tail.len += bytes.len() as u64;
            }
            match written {
                Ok(()) => {
                    if self.settings.sync == SyncPolicy::Always {
                        self.sync_tail_now(&*file);
                    }
                    self.count_bytes();
                    return;
                }
                Err(error) => {
                    if attempt == 0 {
                        self.complain("writing to a tail failed; it is given up", &error);
                    }
                    self.give_tail_up();
                }
            }
        }
        self.unwritten();
    }

    /// Not all that is numbered is written: a kill would now be no better than a
    /// loss of power, and a start has to know.
    pub(super) fn unwritten(&mut self) {
        self.unsealed_since_ns = Some(AT_ONCE);
        if self.ledger.is_sound {
            self.ledger.is_sound = false;
            self.save_now();
        }
    }

    fn tail_file(&mut self) -> std::io::Result<Arc<dyn VfsFile>> {
        if let Some(tail) = &self.tail {
            return Ok(tail.file.clone());
        }
        let number = self.new_number();
        let file = self.disk.create(Kind::Tail, number)?;
        self.tail = Some(Tail {
            number,
            file: file.clone(),
            len: 0,
        });
        self.syncer.folder_changed();
        Ok(file)
    }

    pub(super) fn give_tail_up(&mut self) {
        if let Some(tail) = self.tail.take() {
            self.old_tails.push((tail.number, tail.len));
        }
    }

    fn sync_tail_now(&mut self, file: &dyn VfsFile) {
        let synced = self
            .syncer
            .sync_folder_now(&self.disk)
            .and_then(|()| file.sync());
        if let Err(error) = synced {
            self.complain("syncing a tail failed; it is given up", &error);
            self.give_tail_up();
            self.unsealed_since_ns = Some(AT_ONCE);
        }
    }

    pub(super) fn sync_tail(&mut self, now: i64) {
        let SyncPolicy::Interval(every_ns) = self.settings.sync else {
            return;
        };
        if now.saturating_sub(self.last_sync_ns) < every_ns {
            return;
        }
        self.last_sync_ns = now;
        if let Some(tail) = &self.tail
            && tail.len > 0
        {
            self.syncer.sync_tail_soon(tail.number, tail.file.clone());
        }
    }

    /// A failing disk is said once, not at each wake-up.
    pub(super) fn complain(&mut self, what: &str, error: &std::io::Error) {
        if self.has_complained {
            tracing::debug!(%error, "{what}");
        } else {
            self.has_complained = true;
            tracing::error!(%error, "{what}");
        }
    }
}
