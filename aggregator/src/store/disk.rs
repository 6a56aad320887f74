//! Files that are whole and durable, or not there.
//!
//! Written under a temporary name, synced, renamed, and the folder synced. Only
//! when [`Disk::write`] returns may anyone be told that the data is kept. After
//! a failed write or sync the temporary file is given up: what a failed sync
//! left behind is not known, so it is never tried again on the same file.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

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
    /// What the disk said first. Whoever writes a format may put it in words of its own,
    /// and a full disk is no damaged file.
    failed: Option<io::Error>,
}

impl Out {
    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::Interrupted
            && self.failed.is_none()
        {
            self.failed = Some(match error.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::new(error.kind(), error.to_string()),
            });
        }
        result
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        let written = self.note(written)?;
        self.crc.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.file.flush();
        self.note(flushed)
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
        let temporary = Temporary::new(path);
        let result = self.write_via(path, &temporary.0, fill, seal);
        if result.is_err() {
            // Best effort: a leftover is swept at the next opening.
            let _ = fs::remove_file(&temporary.0);
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
                    failed: None,
                };
                self.step(Step::Write, path)
                    .map_err(StoreError::io("write", path))?;
                let filled = fill(&mut out);
                if let Some(error) = out.failed.take() {
                    return Err(StoreError::io("write", path)(error));
                }
                filled?;
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

/// A temporary name that no other writer has, in this process or another: two may
/// write the same report at once, and each renames what it wrote itself.
struct Temporary(PathBuf);

/// Tells this process from an earlier one with its number.
fn this_process() -> String {
    static TOKEN: OnceLock<u64> = OnceLock::new();
    let token = TOKEN.get_or_init(|| RandomState::new().build_hasher().finish());
    format!("{}-{token:016x}", std::process::id())
}

impl Temporary {
    fn new(path: &Path) -> Self {
        static WRITES: AtomicU64 = AtomicU64::new(0);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let number = WRITES.fetch_add(1, Ordering::Relaxed);
        let process = this_process();
        Self(path.with_file_name(format!(".{name}.{process}-{number}.tmp")))
    }

    /// Whether the one who writes under this name may still be there.
    fn is_in_use(name: &str) -> bool {
        let Some(writer) = name
            .strip_suffix(".tmp")
            .and_then(|name| name.rsplit('.').next())
        else {
            return false;
        };
        let mut parts = writer.split('-');
        let (Some(pid), Some(token), Some(_), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return false;
        };
        match pid.parse::<u32>() {
            Ok(pid) if pid == std::process::id() => this_process() == format!("{pid}-{token}"),
            Ok(pid) => Path::new("/proc").join(pid.to_string()).exists(),
            Err(_) => false,
        }
    }
}

/// Opens a file for reading that must be a file: a pipe in its place would be waited
/// for without end.
///
/// # Errors
/// When it cannot be opened, or is something else.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // A pipe is opened at once by this, and then refused.
    let mut options = fs::OpenOptions::new();
    let no_wait = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = options.read(true).custom_flags(no_wait).open(path)?;
    let what = file.metadata()?;
    if what.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !what.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a regular file",
        ));
    }
    Ok(file)
}

/// Removes what unfinished writes left in `folder`, not what is being written.
///
/// # Errors
/// When the folder cannot be listed or a file not removed.
pub fn sweep(folder: &Path) -> Result<(), StoreError> {
    for entry in fs::read_dir(folder).map_err(StoreError::io("list", folder))? {
        let path = entry.map_err(StoreError::io("list", folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') && name.ends_with(".tmp") && !Temporary::is_in_use(&name) {
            match fs::remove_file(&path) {
                // Somebody else swept too.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(StoreError::io("remove", &path))?,
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use polars::prelude::{DataFrame, NamedFrom, ParquetWriter, Series};

    #[test]
    fn two_writers_of_one_file_are_not_in_each_others_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report.md");
        let disk = Disk::default();
        // The second one begins and ends while the first one writes.
        disk.write(&path, |out| {
            disk.write_bytes(&path, b"the other's")?;
            out.write_all(b"its own")
                .map_err(StoreError::io("write", &path))
        })
        .expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"its own");
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1);
    }

    #[test]
    fn only_what_nobody_writes_any_more_is_swept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.json");
        let ended = std::process::Command::new("true")
            .spawn()
            .and_then(|mut child| {
                child.wait()?;
                Ok(child.id())
            });
        let dead = ended.expect("a process that was");
        let old = folder
            .path()
            .join(format!(".a.json.{dead}-0123456789abcdef-7.tmp"));
        let older = folder.path().join(".a.json.tmp");
        for leftover in [&old, &older] {
            fs::write(leftover, "").expect("written");
        }
        Disk::default()
            .write(&path, |_| sweep(folder.path()))
            .expect("written, not swept away");
        assert!(path.exists() && !old.exists() && !older.exists());
    }

    /// The parquet writer says "out of specification" of a disk that is full.
    #[test]
    fn a_full_disk_is_called_a_full_disk() {
        let full = Path::new("/dev/full");
        let mut frame =
            DataFrame::new(1, vec![Series::new("a".into(), vec![1i64]).into()]).expect("a frame");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.parquet");
        let error = Disk::default()
            .write(&path, |out| {
                // What is written goes to a device that is always full.
                out.file = BufWriter::with_capacity(
                    1,
                    File::options().write(true).open(full).expect("there"),
                );
                ParquetWriter::new(out)
                    .finish(&mut frame)
                    .map(drop)
                    .map_err(StoreError::parquet("write", &path))
            })
            .expect_err("full");
        assert!(error.is_disk_full(), "{error:?}");
        assert!(
            error.to_string().contains("No space left on device"),
            "{error}"
        );
        assert!(error.hint().is_some_and(|hint| hint.contains("make room")));
    }
}
