//! Files that are read whole, which must therefore be small.
//!
//! A path that a person gives may name a device that never ends or a pipe that
//! nobody writes; reading it whole would take all memory, or wait forever. So
//! only regular files are opened, and no more is read than was agreed. What this
//! cannot know: whether the file is replaced while it is read.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Longest file that is written by hand: scenarios, configurations, secrets.
pub const BY_HAND: u64 = 1 << 20;

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// When it cannot be read, is no regular file, or is longer.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let meta = std::fs::metadata(path)?;
    if meta.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    let refused = |why: String| Err(Error::new(ErrorKind::InvalidInput, why));
    if !meta.is_file() {
        return refused("it is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    // Files of /proc claim to be empty, and a file may grow: count what comes.
    File::open(path)?
        .take(most.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return refused(format!(
            "it is longer than {} KiB, the most that is read",
            most >> 10
        ));
    }
    Ok(bytes)
}

/// As [`read`], of UTF-8 text.
///
/// # Errors
/// As [`read`], and when it is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> Result<String> {
    String::from_utf8(read(path, most)?)
        .map_err(|_| Error::new(ErrorKind::InvalidData, "it is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_regular_files_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x");
        std::fs::write(&path, "1234").expect("written");
        assert_eq!(read_text(&path, 4).expect("it fits"), "1234");
        let why = |path: &Path| read(path, 3).expect_err("refused").to_string();
        assert!(why(&path).contains("longer than"), "{}", why(&path));
        assert_eq!(why(Path::new("/dev/zero")), "it is not a regular file");
        assert_eq!(why(folder.path()), "is a directory");
        std::fs::write(&path, [0xff]).expect("written");
        assert!(read_text(&path, 3).is_err());
    }
}
