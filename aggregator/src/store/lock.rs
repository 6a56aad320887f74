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
        // Somebody who only looks ([`is_free`]) lets go at once.
        let mut taken = flock(&file, FlockOperation::NonBlockingLockExclusive);
        for _ in 0..20 {
            if taken != Err(rustix::io::Errno::WOULDBLOCK) {
                break;
            }
            let pause = rustix::time::Timespec {
                tv_sec: 0,
                tv_nsec: 5_000_000,
            };
            let _ = rustix::thread::nanosleep(&pause);
            taken = flock(&file, FlockOperation::NonBlockingLockExclusive);
        }
        if let Err(error) = taken {
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

/// Whether nobody holds the lock of `data`. It may be taken at any time after.
pub fn is_free(data: &Path) -> bool {
    // Shared, and given back at once: who only looks is in nobody's way for long,
    // and `take` tries more than once.
    let Ok(file) = File::open(data.join(".lock")) else {
        return true;
    };
    flock(&file, FlockOperation::NonBlockingLockShared).is_ok()
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
        assert!(!is_free(data.path()));
        drop(held);
        assert!(is_free(data.path()));
        DataLock::take(data.path()).expect("free again");
    }
}
