//! The state file: written in place into space set aside for it, so that a loss
//! can be declared on a full disk.
//!
//! After a failed write or sync the file is given up and a new one is made. What
//! a save says is durable when it returns.

use std::io;
use std::sync::Arc;

use gapscope_proto::spool::{self, State, StateError};

use super::Loss;
use super::disk::Disk;
use super::vfs::VfsFile;

pub(super) use gapscope_proto::spool::STATE_FILE;

/// Bytes of one of the two slots at first; doubled when more is needed.
pub(super) const SLOT_BYTES: usize = 64 << 10;
/// Files of the layout before this one.
pub(super) const OLD_LOSSES: &str = "losses.json";
pub(super) const OLD_NUMBERS: &str = "files.json";

/// What is on disk beside the frames.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// The state; none where there is none, or none that can be read.
    pub(super) state: Option<State>,
    /// Whether a state was there that could not be read.
    pub(super) is_damaged: bool,
    /// Whether a newer build wrote it.
    pub(super) newer: Option<u8>,
}

/// Looks at the state, changing nothing.
pub(super) fn read(disk: &Disk) -> io::Result<Read> {
    let mut found = Read::default();
    if let Some(bytes) = disk.small(STATE_FILE)? {
        match spool::decode(&bytes) {
            Ok(decoded) => found.state = Some(decoded.state),
            Err(StateError::Damaged) => found.is_damaged = true,
            Err(StateError::Version(version)) => found.newer = Some(version),
        }
        return Ok(found);
    }
    // Before there was a state file.
    let losses = match disk.small(OLD_LOSSES)? {
        None => Vec::new(),
        Some(bytes) => serde_json::from_slice::<Vec<Loss>>(&bytes).unwrap_or_else(|_| {
            found.is_damaged = true;
            Vec::new()
        }),
    };
    #[derive(serde::Deserialize)]
    struct FileNumbers {
        next: u64,
    }
    let next_file = disk
        .small(OLD_NUMBERS)?
        .and_then(|bytes| serde_json::from_slice::<FileNumbers>(&bytes).ok())
        .map_or(0, |numbers| numbers.next);
    if !losses.is_empty() || next_file > 0 {
        found.state = Some(State {
            next_file: next_file.min(1 << 61),
            losses,
            ..State::default()
        });
    }
    Ok(found)
}

/// The way to save it.
#[derive(Debug)]
pub(super) struct StateFile {
    disk: Arc<Disk>,
    file: Option<Arc<dyn VfsFile>>,
    slot_bytes: usize,
    next_slot: usize,
    generation: u64,
}

impl StateFile {
    /// Takes over the file that is there, if it is sound.
    pub(super) fn open(disk: Arc<Disk>) -> Self {
        let mut opened = Self {
            disk,
            file: None,
            slot_bytes: SLOT_BYTES,
            next_slot: 0,
            generation: 0,
        };
        let bytes = match opened.disk.small(STATE_FILE) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return opened,
            Err(error) => {
                tracing::error!(%error, "{STATE_FILE} cannot be read");
                opened.put_away();
                return opened;
            }
        };
        match spool::decode(&bytes) {
            Ok(found) => {
                opened.generation = found.generation;
                opened.slot_bytes = bytes.len() / 2;
                opened.next_slot = 1 - found.slot;
                opened.file = opened
                    .settle(&bytes, found.slot)
                    .map_err(|error| tracing::error!(%error, "{STATE_FILE} is given up"))
                    .ok();
            }
            Err(error) => {
                tracing::error!(%error, "{STATE_FILE}");
                opened.put_away();
            }
        }
        opened
    }

    /// The next save overwrites the other slot, so the one that was read has to
    /// be durable. If a sync of it has failed in an earlier life, another sync
    /// says nothing: it is written again. The file's name may not be durable
    /// either.
    fn settle(&self, bytes: &[u8], slot: usize) -> io::Result<Arc<dyn VfsFile>> {
        let file = self.disk.open_small(STATE_FILE)?;
        let range = slot * self.slot_bytes..(slot + 1) * self.slot_bytes;
        file.write_at(
            bytes.get(range.clone()).unwrap_or_default(),
            range.start as u64,
        )?;
        file.sync()?;
        self.disk.sync_folder()?;
        Ok(file)
    }

    fn put_away(&self) {
        if let Err(error) = self.disk.set_aside(STATE_FILE) {
            tracing::error!(%error, "{STATE_FILE} cannot be set aside");
        }
    }

    /// Saves durably.
    pub(super) fn save(&mut self, state: &State) -> io::Result<()> {
        self.generation += 1;
        let bytes = spool::encode(state, self.generation).map_err(io::Error::other)?;
        if let Some(file) = self.file.clone()
            && bytes.len() <= self.slot_bytes
        {
            let offset = (self.next_slot * self.slot_bytes) as u64;
            match file.write_at(&bytes, offset).and_then(|()| file.sync()) {
                Ok(()) => {
                    self.next_slot = 1 - self.next_slot;
                    return Ok(());
                }
                Err(error) => {
                    tracing::error!(%error, "{STATE_FILE} cannot be written; it is given up");
                    self.file = None;
                }
            }
        }
        self.make(&bytes)
    }

    /// A new file that holds this.
    fn make(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut slot_bytes = self.slot_bytes.max(SLOT_BYTES);
        while slot_bytes < bytes.len() {
            slot_bytes *= 2;
        }
        let new = format!("{STATE_FILE}.new");
        let file = self.disk.create_small(&new)?;
        let mut whole = vec![0; slot_bytes * 2];
        whole[..bytes.len()].copy_from_slice(bytes);
        let made = file
            .append(&whole)
            .and_then(|()| file.sync())
            .and_then(|()| self.disk.rename_small(&new, STATE_FILE));
        if let Err(error) = made {
            // Its space may be needed.
            let _ = self.disk.remove_small(&new);
            return Err(error);
        }
        // Opened again: this handle only appends.
        self.file = self.disk.open_small(STATE_FILE).ok();
        self.slot_bytes = slot_bytes;
        self.next_slot = 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_outgrows_its_space_moves() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = Arc::new(Disk::open(folder.path()).expect("free"));
        let mut file = StateFile::open(disk.clone());
        for round in 0..4u64 {
            let state = State {
                boot: Some("x".repeat(20_000 * round as usize)),
                next_file: round,
                ..State::default()
            };
            file.save(&state).expect("saved");
            assert_eq!(read(&disk).expect("read").state, Some(state.clone()));
            // As the next start finds it.
            file = StateFile::open(disk.clone());
            file.save(&state).expect("saved");
            assert_eq!(read(&disk).expect("read").state, Some(state));
        }
    }

    #[test]
    fn the_layout_before_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = Disk::open(folder.path()).expect("free");
        disk.replace(OLD_NUMBERS, br#"{"version":1,"next":77}"#)
            .expect("written");
        let loss = br#"[{"stream":{"run":"01a22c71-a5ce-7341-a1d3-9c297ce0a076","incarnation":9,"kind":"samples"},"first":1,"last":4,"count_min":4,"count_max":4,"reason":"spool_full"}]"#;
        disk.replace(OLD_LOSSES, loss).expect("written");
        let state = read(&disk).expect("read").state.expect("there");
        assert_eq!((state.next_file, state.losses.len()), (77, 1));
    }

    #[test]
    fn a_newer_state_is_set_aside_unchanged() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = Arc::new(Disk::open(folder.path()).expect("free"));
        let mut bytes = spool::encode(&State::default(), 1).expect("JSON");
        bytes[4] = 2;
        let mut crc = Vec::from(&bytes[..20]);
        crc.extend_from_slice(&bytes[24..]);
        let crc = crc32fast::hash(&crc).to_le_bytes();
        bytes[20..24].copy_from_slice(&crc);
        bytes.resize(1024, 0);
        std::fs::write(folder.path().join(STATE_FILE), &bytes).expect("written");
        assert_eq!(read(&disk).expect("read").newer, Some(2));
        let mut file = StateFile::open(disk.clone());
        file.save(&State::default()).expect("saved");
        let aside = folder.path().join(format!("set-aside-1-{STATE_FILE}"));
        assert_eq!(std::fs::read(aside).expect("there"), bytes);
    }
}
