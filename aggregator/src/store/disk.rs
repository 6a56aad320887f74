//! Files that are whole and durable, or not there.
//!
//! Written under a temporary name, synced, renamed, and the folder synced. Only
//! when [`Disk::write`] returns may anyone be told that the data is kept. After
//! a failed write or sync the temporary file is given up: what a failed sync
//! left behind is not known, so it is never tried again on the same file.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::checksum;
use super::error::StoreError;

/// What is about to be done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The temporary file is made.
    Create,
    /// Its bytes are written.
    Write,
    /// It is synced.
    SyncFile,
    /// It gets its name.
    Rename,
    /// Its folder is synced.
    SyncFolder,
    /// A file is removed.
    Remove,
}

/// Where a file's bytes go; it keeps a checksum of them.
#[derive(Debug)]
pub struct Out {
    file: BufWriter<File>,
    crc: crc32fast::Hasher,
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.crc.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Called before each step; an error takes the step's place.
pub type Watcher = Arc<dyn Fn(Step, &Path) -> io::Result<()> + Send + Sync>;

/// The way to the disk. Tests watch it, and make it fail.
#[derive(Clone, Default)]
pub struct Disk {
    watcher: Option<Watcher>,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk")
            .field("watched", &self.watcher.is_some())
            .finish()
    }
}

impl Disk {
    /// One that tells `watcher` of each step.
    pub fn watched(watcher: Watcher) -> Self {
        Self {
            watcher: Some(watcher),
        }
    }

    fn step(&self, step: Step, path: &Path) -> io::Result<()> {
        self.watcher
            .as_ref()
            .map_or(Ok(()), |watcher| watcher(step, path))
    }

    /// Makes `path` hold what `fill` writes, durably, or leaves it as it was.
    ///
    /// # Errors
    /// When any step fails. Where the rename was done already and only the
    /// folder could not be synced, the new content may be there.
    pub fn write(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut Out) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.write_whole(path, fill, |_, _| Ok(()))
    }

    /// As [`Disk::write`], of a parquet file whose footer has room for a
    /// checksum: it is put there before the file gets its name.
    ///
    /// # Errors
    /// As [`Disk::write`].
    pub fn write_sealed(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut Out) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.write_whole(path, fill, checksum::seal)
    }

    fn write_whole(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut Out) -> Result<(), StoreError>,
        seal: impl FnOnce(&File, u32) -> io::Result<()>,
    ) -> Result<(), StoreError> {
        let temporary = temporary_name(path);
        let result = self.write_via(path, &temporary, fill, seal);
        if result.is_err() {
            // Best effort: a leftover is swept at the next opening.
            let _ = fs::remove_file(&temporary);
        }
        result
    }

    fn write_via(
        &self,
        path: &Path,
        temporary: &Path,
        fill: impl FnOnce(&mut Out) -> Result<(), StoreError>,
        seal: impl FnOnce(&File, u32) -> io::Result<()>,
    ) -> Result<(), StoreError> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        self.step(Step::Create, path)
            .and_then(|()| options.open(temporary))
            .map_err(StoreError::io("create", path))
            .and_then(|file| {
                let mut out = Out {
                    file: BufWriter::with_capacity(1 << 16, file),
                    crc: crc32fast::Hasher::new(),
                };
                self.step(Step::Write, path)
                    .map_err(StoreError::io("write", path))?;
                fill(&mut out)?;
                let crc = out.crc.finalize();
                let file = out
                    .file
                    .into_inner()
                    .map_err(|error| StoreError::io("write", path)(error.into_error()))?;
                seal(&file, crc).map_err(StoreError::io("write", path))?;
                self.step(Step::SyncFile, path)
                    .and_then(|()| file.sync_all())
                    .map_err(StoreError::io("sync", path))
            })?;
        self.step(Step::Rename, path)
            .and_then(|()| fs::rename(temporary, path))
            .map_err(StoreError::io("rename", path))?;
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        self.sync_folder(folder.unwrap_or(Path::new(".")))
    }

    /// As [`Disk::write`], from bytes at hand.
    ///
    /// # Errors
    /// As [`Disk::write`].
    pub fn write_bytes(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        self.write(path, |out| {
            out.write_all(bytes).map_err(StoreError::io("write", path))
        })
    }

    /// Makes the names in `folder` durable.
    ///
    /// # Errors
    /// When it cannot be opened or synced.
    pub fn sync_folder(&self, folder: &Path) -> Result<(), StoreError> {
        self.step(Step::SyncFolder, folder)
            .and_then(|()| File::open(folder))
            .and_then(|folder| folder.sync_all())
            .map_err(StoreError::io("sync", folder))
    }

    /// Removes a file; one that is gone already is fine.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(&self, path: &Path) -> Result<(), StoreError> {
        match self
            .step(Step::Remove, path)
            .and_then(|()| fs::remove_file(path))
        {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::io("remove", path)(error))
            }
            _ => Ok(()),
        }
    }
}

fn temporary_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.tmp"))
}

/// Removes what unfinished writes left in `folder`.
///
/// # Errors
/// When the folder cannot be listed or a file not removed.
pub fn sweep(folder: &Path) -> Result<(), StoreError> {
    for entry in fs::read_dir(folder).map_err(StoreError::io("list", folder))? {
        let path = entry.map_err(StoreError::io("list", folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') && name.ends_with(".tmp") {
            fs::remove_file(&path).map_err(StoreError::io("remove", &path))?;
        }
    }
    Ok(())
}

/// The files `part-*.parquet` of a folder, by name; none if it is not there.
///
/// # Errors
/// When the folder cannot be listed.
pub fn parts_in(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(StoreError::io("list", folder))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(StoreError::io("list", folder))?.path();
        if part_number(&path).is_some() {
            found.push(path);
        }
    }
    found.sort_by_key(|path| part_number(path));
    Ok(found)
}

/// The number in `part-<n>.parquet`.
pub fn part_number(path: &Path) -> Option<u64> {
    path.file_name()?
        .to_str()?
        .strip_prefix("part-")?
        .strip_suffix(".parquet")?
        .parse()
        .ok()
}

/// The name `part-<n>.parquet`.
pub fn part_name(number: u64) -> String {
    format!("part-{number:06}.parquet")
}
