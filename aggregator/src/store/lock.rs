//! One writer per data folder.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::error::StoreError;

/// Held as long as this process writes into the data folder. The kernel
/// releases it when the process ends, however it ends.
#[derive(Debug)]
pub struct DataLock {
    _file: File,
}

impl DataLock {
    /// Takes the lock of `data`, making the folder if it is not there.
    ///
    /// # Errors
    /// When another process holds it, or the folder cannot be written.
    pub fn take(data: &Path) -> Result<Self, StoreError> {
        std::fs::create_dir_all(data).map_err(StoreError::io("create", data))?;
        let path = data.join(".lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(StoreError::io("open", &path))?;
        if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(StoreError::io("lock", &path)(error.into()));
            }
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = holder.trim().to_owned();
            return Err(StoreError::Locked {
                data: data.to_owned(),
                holder: (!holder.is_empty()).then_some(holder),
            });
        }
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(StoreError::io("write", &path))?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_writer_is_refused_and_told_who_holds_it() {
        let data = tempfile::tempdir().expect("a folder");
        let held = DataLock::take(data.path()).expect("free");
        let refused = DataLock::take(data.path()).expect_err("held").to_string();
        assert!(
            refused.contains(&format!("process {}", std::process::id())),
            "{refused}"
        );
        drop(held);
        DataLock::take(data.path()).expect("free again");
    }
}
