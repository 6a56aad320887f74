//! The spool's folder: names of files, and what to do with what is in the way.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::SpoolError;
use super::vfs::{Lock, RealVfs, Space, Vfs, VfsFile};

/// Most bytes read of a small file.
const SMALL: u64 = 64 << 20;
/// Numbers of files beyond this are not ours.
const MOST_NUMBER: u64 = 1 << 62;

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

    /// The name of its file of this number.
    pub fn name(self, number: u64) -> String {
        format!("{}{number:020}", self.prefix())
    }

    pub(super) fn number(self, name: &str) -> Option<u64> {
        let digits = name.strip_prefix(self.prefix())?;
        if digits.len() != 20 || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        digits.parse().ok().filter(|number| *number < MOST_NUMBER)
    }
}

/// A spool's folder.
pub struct Disk {
    vfs: Arc<dyn Vfs>,
    folder: PathBuf,
    _lock: Option<Lock>,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

impl Disk {
    /// Makes the folder if need be and locks it.
    pub fn open(folder: &Path) -> Result<Self, SpoolError> {
        Self::open_on(Arc::new(RealVfs), folder)
    }

    /// As [`Self::open`], on this file system.
    pub fn open_on(vfs: Arc<dyn Vfs>, folder: &Path) -> Result<Self, SpoolError> {
        let wrong = |error| SpoolError::Io {
            path: folder.to_owned(),
            error,
        };
        vfs.make_folder(folder).map_err(wrong)?;
        let mut disk = Self {
            vfs,
            folder: folder.to_owned(),
            _lock: None,
        };
        disk.clear_the_way("lock").map_err(wrong)?;
        match disk.vfs.lock(&folder.join("lock")).map_err(wrong)? {
            None => Err(SpoolError::InUse(folder.to_owned())),
            Some(lock) => {
                disk._lock = Some(lock);
                Ok(disk)
            }
        }
    }

    /// For looking only: nothing is locked or made.
    pub fn inspect(folder: &Path) -> Result<Self, SpoolError> {
        let vfs = RealVfs;
        vfs.list(folder).map_err(|error| SpoolError::Io {
            path: folder.to_owned(),
            error,
        })?;
        Ok(Self {
            vfs: Arc::new(vfs),
            folder: folder.to_owned(),
            _lock: None,
        })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, kind: Kind, number: u64) -> PathBuf {
        self.folder.join(kind.name(number))
    }

    /// All numbered files of a kind with their lengths, in order.
    pub fn files(&self, kind: Kind) -> io::Result<Vec<(u64, u64)>> {
        let mut found: Vec<_> = self
            .vfs
            .list(&self.folder)?
            .into_iter()
            .filter(|entry| entry.is_file)
            .filter_map(|entry| Some((kind.number(&entry.name)?, entry.len)))
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    /// The highest number in any name, whatever has it.
    pub fn highest_number(&self) -> io::Result<Option<u64>> {
        let number = |name: &str| Kind::Segment.number(name).or(Kind::Tail.number(name));
        Ok(self
            .vfs
            .list(&self.folder)?
            .iter()
            .filter_map(|entry| number(&entry.name))
            .max())
    }

    /// Makes a new file; errs if there is one of that number.
    pub fn create(&self, kind: Kind, number: u64) -> io::Result<Arc<dyn VfsFile>> {
        self.vfs.create(&self.path(kind, number))
    }

    /// A whole file.
    pub fn read(&self, kind: Kind, number: u64) -> io::Result<Vec<u8>> {
        self.vfs.read(&self.path(kind, number), 0, u64::MAX)
    }

    /// Part of a segment.
    pub fn read_range(&self, segment: u64, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let bytes = self
            .vfs
            .read(&self.path(Kind::Segment, segment), offset, len as u64)?;
        if bytes.len() == len {
            Ok(bytes)
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    /// Removes a file; one that is not there is no error.
    pub fn remove(&self, kind: Kind, number: u64) -> io::Result<()> {
        match self.vfs.remove(&self.path(kind, number)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Makes names of new and removed files durable.
    pub fn sync_folder(&self) -> io::Result<()> {
        self.vfs.sync_folder(&self.folder)
    }

    /// What the disk has left.
    pub fn space(&self) -> io::Result<Space> {
        self.vfs.space(&self.folder)
    }

    /// Makes a new small file in place of any of that name.
    pub(super) fn create_small(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        let path = self.folder.join(name);
        self.clear_the_way(name)?;
        match self.vfs.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.vfs.create(&path)
    }

    /// Opens a small file to overwrite it in place.
    pub(super) fn open_small(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        self.vfs.open(&self.folder.join(name))
    }

    /// Gives a small file its name, in place of any that has it.
    pub(super) fn rename_small(&self, from: &str, to: &str) -> io::Result<()> {
        self.clear_the_way(to)?;
        self.vfs
            .rename(&self.folder.join(from), &self.folder.join(to))?;
        self.sync_folder()
    }

    /// Removes a small file; one that is not there is no error.
    pub(super) fn remove_small(&self, name: &str) -> io::Result<()> {
        match self.vfs.remove(&self.folder.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Replaces a small file: after a crash it is the old or the new one, whole.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let new = format!("{name}.new");
        let file = self.create_small(&new)?;
        file.append(bytes)?;
        file.sync()?;
        self.rename_small(&new, name)
    }

    /// A small file, if it is there.
    pub fn small(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match self.vfs.read(&self.folder.join(name), 0, SMALL) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    /// Something that is no plain file and has a name that is needed gets
    /// another: nobody has to remove it by hand.
    fn clear_the_way(&self, name: &str) -> io::Result<()> {
        let in_the_way = self
            .vfs
            .list(&self.folder)?
            .iter()
            .any(|entry| entry.name == name && !entry.is_file);
        if in_the_way {
            self.set_aside(name)?;
        }
        Ok(())
    }

    /// Gives a file a name that the spool does not use; returns it.
    pub(super) fn set_aside(&self, name: &str) -> io::Result<String> {
        let taken: Vec<_> = self
            .vfs
            .list(&self.folder)?
            .into_iter()
            .map(|entry| entry.name)
            .collect();
        let free = (1u32..)
            .map(|n| format!("set-aside-{n}-{name}"))
            .find(|name| !taken.contains(name))
            .expect("there are more numbers than files");
        self.vfs
            .rename(&self.folder.join(name), &self.folder.join(&free))?;
        tracing::warn!(folder = %self.folder.display(), name, now = free, "in the way: set aside");
        Ok(free)
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

    #[test]
    fn what_is_in_the_way_is_set_aside() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in [
            "lock",
            "runs.json",
            "runs.json.new",
            "tail-00000000000000000009",
        ] {
            std::fs::create_dir(folder.path().join(name)).expect("made");
        }
        std::fs::write(folder.path().join("segment-99999999999999999999"), "x").expect("written");
        std::fs::write(folder.path().join("segment-1"), "x").expect("written");
        let disk = Disk::open(folder.path()).expect("opens");
        disk.replace("runs.json", b"[]").expect("replaced");
        assert_eq!(disk.small("runs.json").expect("read"), Some(b"[]".to_vec()));
        assert_eq!(disk.files(Kind::Segment).expect("listed"), []);
        assert_eq!(disk.highest_number().expect("listed"), Some(9));
        assert!(folder.path().join("set-aside-1-lock").is_dir());
    }
}
