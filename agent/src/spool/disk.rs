//! The spool's folder: the only place that touches its files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::SpoolError;

/// What a numbered file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Sealed frames.
    Segment,
    /// Small frames since the last seal.
    Tail,
}

impl Kind {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Segment => "segment-",
            Self::Tail => "tail-",
        }
    }
}

/// A spool's folder.
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
    _lock: Option<File>,
}

impl Disk {
    /// Makes the folder if need be and locks it.
    pub fn open(folder: &Path) -> Result<Self, SpoolError> {
        let wrong = |error| SpoolError::Io {
            path: folder.to_owned(),
            error,
        };
        fs::create_dir_all(folder).map_err(wrong)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join("lock"))
            .map_err(wrong)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(SpoolError::InUse(folder.to_owned()));
            }
            Err(error) => return Err(wrong(error.into())),
        }
        Ok(Self {
            folder: folder.to_owned(),
            _lock: Some(lock),
        })
    }

    /// For looking only: nothing is locked or made.
    pub fn inspect(folder: &Path) -> Result<Self, SpoolError> {
        fs::read_dir(folder).map_err(|error| SpoolError::Io {
            path: folder.to_owned(),
            error,
        })?;
        Ok(Self {
            folder: folder.to_owned(),
            _lock: None,
        })
    }

    fn path(&self, kind: Kind, number: u64) -> PathBuf {
        self.folder.join(format!("{}{number:020}", kind.prefix()))
    }

    /// All numbered files of a kind with their lengths, in order.
    pub fn files(&self, kind: Kind) -> io::Result<Vec<(u64, u64)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name
                .to_str()
                .and_then(|name| name.strip_prefix(kind.prefix()))
                .and_then(|digits| digits.parse().ok());
            if let Some(number) = number {
                found.push((number, entry.metadata()?.len()));
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Makes a new file; errs if there is one of that number.
    pub fn create(&self, kind: Kind, number: u64) -> io::Result<File> {
        OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(self.path(kind, number))
    }

    /// A whole file.
    pub fn read(&self, kind: Kind, number: u64) -> io::Result<Vec<u8>> {
        fs::read(self.path(kind, number))
    }

    /// Part of a segment.
    pub fn read_range(&self, segment: u64, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let file = File::open(self.path(Kind::Segment, segment))?;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Removes a file; one that is not there is no error.
    pub fn remove(&self, kind: Kind, number: u64) -> io::Result<()> {
        match fs::remove_file(self.path(kind, number)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Makes names of new and removed files durable.
    pub fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    /// Replaces a small file: after a crash it is the old or the new one, whole.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let new = self.folder.join(format!("{name}.new"));
        let mut file = File::create(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, self.folder.join(name))?;
        self.sync_folder()
    }

    /// A small file, if it is there.
    pub fn small(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match File::open(self.folder.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(file) => {
                let mut bytes = Vec::new();
                file.take(64 << 20).read_to_end(&mut bytes)?;
                Ok(Some(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_agents_cannot_share_a_spool() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = Disk::open(folder.path()).expect("free");
        assert!(matches!(
            Disk::open(folder.path()),
            Err(SpoolError::InUse(_))
        ));
        drop(first);
        Disk::open(folder.path()).expect("free again");
    }

    #[test]
    fn no_file_is_made_twice() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = Disk::open(folder.path()).expect("free");
        disk.create(Kind::Tail, 7).expect("new");
        assert!(disk.create(Kind::Tail, 7).is_err());
        assert_eq!(disk.files(Kind::Tail).expect("listed"), [(7, 0)]);
        assert_eq!(disk.files(Kind::Segment).expect("listed"), []);
    }
}
