//! What an agent's spool leaves behind once it is empty.

use std::path::{Path, PathBuf};

use gapscope_proto::spool;

/// An agent's books, which say nothing once its spool is empty.
const BOOKS: [&str; 2] = ["files.json", "runs.json"];
/// Its state, which does say something while a stream is open or a loss is not told.
const STATE: &str = "state.1";

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
    let is_nothing = |path: &PathBuf| match path.file_name().and_then(std::ffi::OsStr::to_str) {
        Some(STATE) => std::fs::read(path)
            .ok()
            .and_then(|bytes| spool::decode(&bytes).ok())
            .is_some_and(|found| found.state.streams.is_empty() && found.state.losses.is_empty()),
        Some(name) if BOOKS.contains(&name) => true,
        _ => path.metadata().is_ok_and(|meta| meta.len() == 0),
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
        let mut state = gapscope_proto::spool::State::default();
        let save = |state: &gapscope_proto::spool::State| {
            let slot = gapscope_proto::spool::encode(state, 1).expect("a slot");
            let mut file = vec![0; 64 << 10];
            file[..slot.len()].copy_from_slice(&slot);
            std::fs::write(spool.join(STATE), file).expect("written");
        };
        save(&state);
        remove_empty(&spool);
        assert!(!spool.exists());
        std::fs::create_dir(&spool).expect("made");
        state.streams = vec![gapscope_proto::spool::StreamState {
            stream: gapscope_proto::frame::StreamId {
                run: gapscope_proto::ids::RunId::generate(),
                incarnation: gapscope_proto::ids::Incarnation::generate(),
                kind: gapscope_proto::frame::StreamKind::Samples,
            },
            floor: 0,
            reserved: Some(10),
        }];
        save(&state);
        remove_empty(&spool);
        assert!(spool.join(STATE).exists(), "an open stream is not nothing");
        state.streams.clear();
        save(&state);
        remove_empty(&spool);
        remove_empty(&spool);
        assert!(!spool.exists());
    }
}
