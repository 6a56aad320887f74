//! The file system as the spool needs it. [`RealVfs`] is plain `std::fs`; tests
//! put one in its place that fails, fills up and forgets what was not synced.

use std::any::Any;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};

/// One thing in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name; names that are no UTF-8 are none of ours and left out.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
    /// A plain file: anything else (a folder, a link, a pipe) is not ours.
    pub is_file: bool,
}

/// What a disk has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes that may still be written.
    pub free: u64,
    /// Size of the disk in bytes.
    pub total: u64,
}

/// Held as long as it lives.
pub type Lock = Box<dyn Any + Send + Sync>;

/// The operations on names.
pub trait Vfs: fmt::Debug + Send + Sync + 'static {
    /// Makes a folder and those above it.
    fn make_folder(&self, folder: &Path) -> io::Result<()>;
    /// What is in a folder.
    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>>;
    /// Makes a new file to append to; errs if the name is taken.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>>;
    /// Opens a file that is there, to overwrite in place.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>>;
    /// Bytes from `offset`, at most `len`, fewer where the file ends.
    fn read(&self, path: &Path, offset: u64, len: u64) -> io::Result<Vec<u8>>;
    /// Gives a file another name, in place of what has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes names of new, renamed and removed files durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
    /// What the disk has left.
    fn space(&self, folder: &Path) -> io::Result<Space>;
    /// Takes the lock; none if somebody has it.
    fn lock(&self, path: &Path) -> io::Result<Option<Lock>>;
}

/// The operations on an open file.
pub trait VfsFile: fmt::Debug + Send + Sync + 'static {
    /// Writes at the end, all or an error (and then perhaps a part).
    fn append(&self, bytes: &[u8]) -> io::Result<()>;
    /// Writes at an offset.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes what was written durable. After an error nothing is known about it.
    fn sync(&self) -> io::Result<()>;
}

/// `std::fs`.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealVfs;

fn is_file(path: &Path) -> io::Result<bool> {
    Ok(fs::symlink_metadata(path)?.is_file())
}

fn plain(path: &Path) -> io::Result<()> {
    if is_file(path)? {
        Ok(())
    } else {
        // Opening a pipe would wait for ever.
        Err(io::Error::other("not a plain file"))
    }
}

impl Vfs for RealVfs {
    fn make_folder(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            match entry.metadata() {
                Ok(metadata) => found.push(Entry {
                    name,
                    len: metadata.len(),
                    is_file: metadata.is_file(),
                }),
                // Removed since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        plain(path)?;
        let file = OpenOptions::new().write(true).open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn read(&self, path: &Path, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        plain(path)?;
        let file = File::open(path)?;
        let there = file.metadata()?.len().saturating_sub(offset).min(len);
        let mut bytes = vec![0; usize::try_from(there).map_err(io::Error::other)?];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }

    fn space(&self, folder: &Path) -> io::Result<Space> {
        let found = rustix::fs::statvfs(folder)?;
        Ok(Space {
            free: found.f_bavail.saturating_mul(found.f_frsize),
            total: found.f_blocks.saturating_mul(found.f_frsize),
        })
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Lock>> {
        let there = match is_file(path) {
            Ok(true) => true,
            Ok(false) => return Err(io::Error::other("not a plain file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        // A lock needs no right to write.
        let file = if there {
            File::open(path)?
        } else {
            OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(path)?
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[derive(Debug)]
struct RealFile(File);

impl VfsFile for RealFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.0).write_all(bytes)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
