//! The list of a closed run's raw files, in its manifest: name, length, checksum.
//!
//! Each file has a checksum of its own, so damage is noticed without the list; a file
//! that is gone, or that another one was put in the place of, is noticed by the list
//! alone. It is made when the run is closed, and taken out before the writer changes
//! a file again, so there is no moment at which a list stands beside files that the
//! writer has changed since.
//!
//! What it cannot know: who changed a file, and anything of a run that was closed by
//! a build without lists.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::checksum;
use super::disk::parts_in;
use super::error::StoreError;
use super::manifest::RunState;
use super::proxy_view;
use super::reader::read_manifest;
use super::schema::HOST_TABLES;

/// A file as it was when the run was closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name, from the run's folder on.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The checksum that stands in it ([`checksum`]); of a file without one the
    /// CRC-32 of all its bytes. 8 hexadecimal digits.
    pub checksum: String,
}

/// What the list and the folder do not agree on, in sentences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compared {
    /// Files that are gone.
    pub missing: Vec<String>,
    /// Files that are other ones now, or cannot be read.
    pub changed: Vec<String>,
    /// The run is closed and has no list.
    pub has_no_list: bool,
}

impl Compared {
    /// All of them.
    pub fn sentences(&self) -> impl Iterator<Item = &String> {
        self.missing.iter().chain(&self.changed)
    }
}

/// The names of all raw files beside the manifest that a closed run can have in its
/// folder itself.
pub(crate) fn table_names() -> impl Iterator<Item = String> {
    let tables = HOST_TABLES.iter().map(|table| table.file);
    ["faults", "losses"]
        .into_iter()
        .chain(tables)
        .map(|table| format!("{table}.parquet"))
        .chain([proxy_view::FILE.to_owned()])
}

/// The raw files that are in `folder` now.
///
/// # Errors
/// When one of them cannot be read.
pub(crate) fn of(folder: &Path) -> Result<Vec<FileEntry>, StoreError> {
    let parts = parts_in(&folder.join("samples"))?;
    let tables = table_names().map(|name| folder.join(name));
    let paths: Vec<PathBuf> = parts
        .into_iter()
        .chain(tables.filter(|path| path.exists()))
        .collect();
    paths.iter().map(|path| entry(folder, path)).collect()
}

fn entry(folder: &Path, path: &Path) -> Result<FileEntry, StoreError> {
    let (bytes, checksum) = checksum::fingerprint(path).map_err(StoreError::io("read", path))?;
    let name = path.strip_prefix(folder).unwrap_or(path);
    Ok(FileEntry {
        name: name.to_string_lossy().into_owned(),
        bytes,
        checksum,
    })
}

/// Compares `listed` with what is in `folder`.
pub(crate) fn compare(folder: &Path, listed: &[FileEntry]) -> Compared {
    let mut found = Compared::default();
    for known in listed {
        match entry(folder, &folder.join(&known.name)) {
            Ok(now) if now == *known => {}
            Ok(_) => found.changed.push(format!(
                "`{}` is not the file that was there when the run was closed",
                known.name
            )),
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                found.missing.push(format!(
                    "`{}` is missing: it was there when the run was closed",
                    known.name
                ));
            }
            Err(error) => found.changed.push(error.to_string()),
        }
    }
    found
}

/// Compares the list in a run's manifest with its folder; with the newer list if the
/// run is closed anew meanwhile.
///
/// # Errors
/// When the manifest cannot be read.
pub(crate) fn compare_run(folder: &Path) -> Result<Compared, StoreError> {
    let mut manifest = read_manifest(folder)?;
    loop {
        let mut found = compare(folder, manifest.files.as_deref().unwrap_or_default());
        found.has_no_list = manifest.state == RunState::Closed && manifest.files.is_none();
        if found.sentences().next().is_none() {
            return Ok(found);
        }
        let again = read_manifest(folder)?;
        if again.files == manifest.files {
            return Ok(found);
        }
        manifest = again;
    }
}
