//! What a run's raw files look like from outside: names, lengths, times.
//!
//! A run that is being closed moves under whoever reads it: live parts are merged
//! and removed. A reader that fails, or finds the run in another state than when
//! it began, looks whether the files have moved, and begins anew.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::inventory;

/// How often a reader begins anew. Each time another close or merge must have come
/// between, and a run is closed once and then seldom.
const TRIES: usize = 8;

/// The files of a run at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp(Vec<(PathBuf, u64, Option<SystemTime>)>);

impl Stamp {
    /// Those of `folder`. What cannot be looked at is not there.
    pub(crate) fn of(folder: &Path) -> Self {
        let mut paths = vec![folder.join("manifest.json")];
        paths.extend(inventory::table_names().map(|name| folder.join(name)));
        for part in ["samples", "samples/live", "host/live"] {
            let entries = std::fs::read_dir(folder.join(part)).into_iter().flatten();
            paths.extend(entries.flatten().map(|entry| entry.path()));
        }
        let mut files: Vec<_> = paths
            .into_iter()
            .filter_map(|path| {
                let meta = std::fs::metadata(&path)
                    .ok()
                    .filter(|meta| meta.is_file())?;
                Some((path, meta.len(), meta.modified().ok()))
            })
            .collect();
        files.sort();
        Self(files)
    }
}

/// Reads from `folder`; anew if that fails, or gives what is not steady, and the
/// files have moved meanwhile.
///
/// # Errors
/// When it fails and nothing has moved, or too often.
pub(crate) fn steadily<T, E>(
    folder: &Path,
    mut read: impl FnMut() -> Result<T, E>,
    is_steady: impl Fn(&T) -> bool,
) -> Result<T, E> {
    for _ in 1..TRIES {
        let before = Stamp::of(folder);
        let done = read();
        if done.as_ref().is_ok_and(&is_steady) || Stamp::of(folder) == before {
            return done;
        }
    }
    read()
}
