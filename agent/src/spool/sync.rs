//! Syncing on a thread of its own, so that a slow disk delays no write.
//!
//! A tail is removed only behind the sync of the segment that took its records
//! over. A failed sync is reported once and never tried again on the same file.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::disk::{Disk, Kind};

/// Syncs files on a thread of its own.
///
/// Dropping it waits for the thread, so that the folder is free afterwards.
pub(super) struct Syncer {
    jobs: Option<std::sync::mpsc::Sender<Job>>,
    thread: Option<std::thread::JoinHandle<()>>,
    busy: Arc<AtomicBool>,
    /// A sync has failed since this was last cleared.
    pub(super) failed: Arc<AtomicBool>,
    folder_changed: Arc<AtomicBool>,
}

enum Job {
    Sync(Arc<File>),
    SyncThenRemove(Arc<File>, Vec<u64>),
    Answer(std::sync::mpsc::Sender<()>),
}

impl Syncer {
    pub(super) fn start(disk: Arc<Disk>) -> std::io::Result<Self> {
        let (jobs, todo) = std::sync::mpsc::channel();
        let mut syncer = Self {
            jobs: Some(jobs),
            thread: None,
            busy: Arc::default(),
            failed: Arc::default(),
            folder_changed: Arc::default(),
        };
        let (busy, failed, changed) = (
            syncer.busy.clone(),
            syncer.failed.clone(),
            syncer.folder_changed.clone(),
        );
        let thread = std::thread::Builder::new()
            .name("spool-sync".into())
            .spawn(move || {
                let sync = |file: &File| {
                    if changed.swap(false, Ordering::SeqCst) {
                        disk.sync_folder()?;
                    }
                    file.sync_data()
                };
                for job in todo {
                    match job {
                        Job::Sync(file) => {
                            if let Err(error) = sync(&file) {
                                tracing::error!(%error, "syncing a tail failed");
                                failed.store(true, Ordering::SeqCst);
                            }
                            busy.store(false, Ordering::SeqCst);
                        }
                        Job::SyncThenRemove(file, tails) => match sync(&file) {
                            Ok(()) => {
                                for number in tails {
                                    if let Err(error) = disk.remove(Kind::Tail, number) {
                                        tracing::error!(tail = number, %error, "not removed");
                                    }
                                }
                            }
                            // The tails stay: they may be the only sound copy.
                            Err(error) => {
                                tracing::error!(%error, "syncing a segment failed");
                                failed.store(true, Ordering::SeqCst);
                            }
                        },
                        Job::Answer(done) => {
                            let _ = done.send(());
                        }
                    }
                }
            })?;
        syncer.thread = Some(thread);
        Ok(syncer)
    }

    fn send(&self, job: Job) -> bool {
        self.jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(job).is_ok())
    }

    pub(super) fn folder_changed(&self) {
        self.folder_changed.store(true, Ordering::SeqCst);
    }

    /// Unless one is still running.
    pub(super) fn sync_soon(&self, file: Arc<File>) {
        if !self.busy.swap(true, Ordering::SeqCst) {
            self.send(Job::Sync(file));
        }
    }

    pub(super) fn sync_then_remove(&self, file: Arc<File>, tails: Vec<u64>) {
        self.send(Job::SyncThenRemove(file, tails));
    }

    /// Waits until all jobs so far are done.
    pub(super) fn run_all(&self) {
        let (done, finished) = std::sync::mpsc::channel();
        if self.send(Job::Answer(done)) {
            let _ = finished.recv();
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
