//! The lab's temporary folder: data folders, sockets, configuration, secrets.
//! Removed when the lab ends, however it ends.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::children::{Itself, Janitor, janitor};
use crate::error::{Problem, Result};
use crate::exec::{FOLDER_PREFIX, User};
use crate::leftovers::{Note, Owner};

/// See the module's description.
#[derive(Debug)]
pub struct LabFolder {
    // Dropped in this order: the folder is removed, then the janitor finds
    // nothing left to do.
    folder: TempDir,
    _janitor: Janitor,
    owner: Owner,
    itself: Itself,
}

impl LabFolder {
    /// Makes one below the system's temporary folder.
    pub fn make(itself: &Itself) -> Result<Self> {
        let parent = std::env::temp_dir();
        let failed = |error: io::Error| {
            Problem::new(format!(
                "cannot make the lab's temporary folder in {}: {error}",
                parent.display()
            ))
            .hint("make room there, or set TMPDIR to a folder that can be written")
        };
        let folder = tempfile::Builder::new()
            .prefix(FOLDER_PREFIX)
            .tempdir()
            .map_err(failed)?;
        // Others may pass through to their own folders; nobody may look around.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).map_err(failed)?;
        let owner = Owner::this(folder.path());
        let note = Note {
            owner: owner.clone(),
            stays: false,
            title: String::new(),
        };
        note.write().map_err(failed)?;
        let itself = itself.of_lab(&owner);
        let janitor = janitor(&itself, &owner).map_err(failed)?;
        Ok(Self {
            folder,
            _janitor: janitor,
            owner,
            itself,
        })
    }

    /// How to start this program as a part of this lab.
    pub fn itself(&self) -> &Itself {
        &self.itself
    }

    /// Which lab this is.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Makes a folder in it that only `owner` (or this user) can read.
    pub fn private(&self, name: &str, owner: Option<&User>) -> Result<PathBuf> {
        let path = self.path().join(name);
        let make = || {
            fs::create_dir(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
            if let Some(owner) = owner {
                chown(&path, Some(owner.uid), Some(owner.gid))?;
            }
            Ok::<_, io::Error>(())
        };
        make().map_err(|error| {
            Problem::new(format!("cannot make folder {}: {error}", path.display()))
        })?;
        Ok(path)
    }
}

/// Writes a file that only `owner` (or this user) can read.
pub fn write_private(path: &Path, text: &str, owner: Option<&User>) -> Result<()> {
    let write = || {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(text.as_bytes())?;
        if let Some(owner) = owner {
            chown(path, Some(owner.uid), Some(owner.gid))?;
        }
        Ok::<_, io::Error>(())
    };
    write().map_err(|error| Problem::new(format!("cannot write {}: {error}", path.display())))
}
