//! A value made of files, kept current: when a file changes, the value is made
//! anew, and who asks from then on gets the new one. A file that cannot be used
//! changes nothing: the old value stays, and that is said, once.
//!
//! Files are looked at once a second (device, inode, size, times: what a rename,
//! a copy or a link that moved changes). A change is taken up when it has stood
//! still for a second, so that a certificate and its key are not read half
//! replaced; SIGHUP takes it up at once.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::words::Trouble;

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A file's state, as far as it can be told without reading: none if it is not
/// there.
type Stamp = Option<[i128; 5]>;

type Load<T> = Box<dyn Fn() -> Result<T, Trouble> + Send + Sync>;

struct Seen {
    /// Of which the value was made.
    used: Vec<Stamp>,
    /// At the last look.
    last: Vec<Stamp>,
    /// Of which no value could be made.
    failed: Option<Vec<Stamp>>,
}

/// A value made of files.
pub struct Kept<T> {
    name: String,
    files: Vec<PathBuf>,
    load: Load<T>,
    value: watch::Sender<Arc<T>>,
    seen: Mutex<Seen>,
}

impl<T> std::fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("files", &self.files).finish()
    }
}

impl<T: Send + Sync + 'static> Kept<T> {
    /// Makes the value for the first time. `name` is for the log.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(
        name: impl Into<String>,
        files: Vec<PathBuf>,
        load: impl Fn() -> Result<T, Trouble> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, Trouble> {
        // Before the files are read: what changes meanwhile is seen at the next look.
        let stamps = stamps(&files);
        let value = load()?;
        Ok(Arc::new(Self {
            name: name.into(),
            files,
            load: Box::new(load),
            value: watch::Sender::new(Arc::new(value)),
            seen: Mutex::new(Seen {
                used: stamps.clone(),
                last: stamps,
                failed: None,
            }),
        }))
    }

    /// The newest value.
    pub fn current(&self) -> Arc<T> {
        self.value.borrow().clone()
    }

    /// Tells of new values.
    pub fn changes(&self) -> watch::Receiver<Arc<T>> {
        self.value.subscribe()
    }
}

/// Something that looks after its files.
pub trait Look: Send + Sync {
    /// Makes the value anew if the files have changed and, unless `at_once`,
    /// have stood still since the last look.
    fn look(&self, at_once: bool);
}

impl<T: Send + Sync + 'static> Look for Kept<T> {
    fn look(&self, at_once: bool) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamps(&self.files);
        let still = seen.last == now;
        seen.last.clone_from(&now);
        if now == seen.used || !(still || at_once) {
            // Put back as it was: nothing to say any more.
            if now == seen.used {
                seen.failed = None;
            }
            return;
        }
        if seen.failed.as_ref() == Some(&now) && !at_once {
            return;
        }
        match (self.load)() {
            Ok(value) => {
                seen.used = now;
                seen.failed = None;
                tracing::info!("{}: a new one is in use", self.name);
                self.value.send_replace(Arc::new(value));
            }
            Err(trouble) => {
                seen.failed = Some(now);
                tracing::error!(
                    "{}: the new one cannot be used, the old one stays in use: {}",
                    self.name,
                    trouble.line()
                );
            }
        }
    }
}

/// Looks after all of them until dropped.
pub async fn keep(all: Vec<Arc<dyn Look>>) {
    if all.is_empty() {
        return std::future::pending().await;
    }
    let mut hangup = match signal(SignalKind::hangup()) {
        Ok(hangup) => Some(hangup),
        Err(error) => {
            tracing::warn!("SIGHUP cannot be caught ({error}); files are looked at all the same");
            None
        }
    };
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let hung_up = async {
            match &mut hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        let at_once = tokio::select! {
            _ = ticks.tick() => false,
            _ = hung_up => true,
        };
        let looking = all.clone();
        // Files may stand on something slow.
        let _ = tokio::task::spawn_blocking(move || {
            for one in looking {
                one.look(at_once);
            }
        })
        .await;
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    files
        .iter()
        .map(|file| {
            let meta = std::fs::metadata(file).ok()?;
            let time = |s: i64, ns: i64| i128::from(s) * 1_000_000_000 + i128::from(ns);
            Some([
                meta.dev().into(),
                meta.ino().into(),
                meta.size().into(),
                time(meta.mtime(), meta.mtime_nsec()),
                time(meta.ctime(), meta.ctime_nsec()),
            ])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_taken_up_when_it_stands_still_and_a_bad_one_never() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("number");
        std::fs::write(&path, "1").expect("written");
        let from = path.clone();
        let kept = Kept::new("number", vec![path.clone()], move || {
            std::fs::read_to_string(&from)
                .map_err(|error| Trouble::new(error.to_string()))?
                .parse::<u32>()
                .map_err(|error| Trouble::new(error.to_string()))
        })
        .expect("a number");
        let changes = kept.changes();
        kept.look(false);
        assert_eq!(*kept.current(), 1);
        std::fs::write(&path, "2222").expect("written");
        kept.look(false);
        assert_eq!(*kept.current(), 1, "it may still be changing");
        kept.look(false);
        assert_eq!(*kept.current(), 2222);
        assert!(changes.has_changed().expect("it lives"));
        std::fs::write(&path, "x").expect("written");
        kept.look(false);
        kept.look(false);
        assert_eq!(*kept.current(), 2222, "the old one stays");
        std::fs::remove_file(&path).expect("removed");
        kept.look(true);
        assert_eq!(*kept.current(), 2222, "the old one stays");
        std::fs::write(&path, "33333").expect("written");
        kept.look(true);
        assert_eq!(*kept.current(), 33333, "at once");
    }
}
