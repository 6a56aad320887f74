//! What an agent's spool leaves behind once it is empty.

use std::path::{Path, PathBuf};

/// An agent's books, which say nothing once its spool is empty.
const BOOKS: [&str; 2] = ["files.json", "runs.json"];

/// Removes a spool that holds no samples: nothing but empty folders, empty files
/// and books.
pub(super) fn remove_empty(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    let paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    for path in paths.iter().filter(|path| path.is_dir()) {
        remove_empty(path);
    }
    let is_nothing = |path: &PathBuf| {
        path.file_name()
            .and_then(std::ffi::OsStr::to_str)
            .is_some_and(|name| BOOKS.contains(&name))
            || path.metadata().is_ok_and(|meta| meta.len() == 0)
    };
    let files: Vec<&PathBuf> = paths.iter().filter(|path| path.is_file()).collect();
    // Books go only together with all the rest.
    if files.iter().all(|path| is_nothing(path)) {
        for path in files {
            let _ = std::fs::remove_file(path);
        }
    }
    let _ = std::fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spool_with_samples_is_kept_whole() {
        let data = tempfile::tempdir().expect("a folder");
        let spool = data.path().join("lab-1");
        std::fs::create_dir(&spool).expect("made");
        for name in BOOKS {
            std::fs::write(spool.join(name), "{}").expect("written");
        }
        std::fs::write(spool.join("1.seg"), "samples").expect("written");
        remove_empty(&spool);
        assert_eq!(std::fs::read_dir(&spool).expect("kept").count(), 3);
        std::fs::remove_file(spool.join("1.seg")).expect("removed");
        remove_empty(&spool);
        assert!(!spool.exists());
    }
}
