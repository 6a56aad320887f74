//! Syncing, saving the state and removing files: on a thread of its own, so that
//! a slow disk delays no write.
//!
//! Jobs are done in order. A tail is removed only behind the sync of the segment
//! that took its records over, and behind a save that says what was lost of
//! them; an acknowledged segment, and one that is given up, only behind a save
//! that says so. A failed sync is reported once, and no later sync of the same
//! file counts.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gapscope_proto::spool::State;
use tokio::sync::Notify;

use super::SyncPolicy;
use super::disk::{Disk, Kind};
use super::state::StateFile;
use super::vfs::VfsFile;

/// What is to be done.
#[derive(Debug)]
pub(super) enum Job {
    /// Sync a tail.
    Tail(u64, Arc<dyn VfsFile>),
    /// Sync segments, then remove the tails whose records they hold.
    Seal(Sealed, Vec<Arc<dyn VfsFile>>),
    /// Sync these whatever the policy. Nothing is concluded from it.
    Settle(Vec<Arc<dyn VfsFile>>),
    /// Save the state, then remove files.
    Save {
        number: u64,
        state: Box<State>,
        remove: Vec<(Kind, u64)>,
    },
    /// Say that everything before is done.
    Answer(std::sync::mpsc::Sender<()>),
}

/// A seal, for which a job is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sealed {
    /// The segments written to.
    pub(super) segments: Vec<u64>,
    /// The tails whose records they hold now, with their lengths.
    pub(super) tails: Vec<(u64, u64)>,
}

/// What came of a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Done {
    TailFailed(u64),
    /// To be removed behind the next save: the one before the seal failed, and
    /// may have had to say what was lost of them.
    Kept(Vec<(Kind, u64)>),
    SealFailed(Sealed),
    Saved(u64),
    /// With the files that were not removed for that.
    SaveFailed(u64, Vec<(Kind, u64)>),
}

/// Does the jobs.
pub(super) struct Worker {
    disk: Arc<Disk>,
    state: StateFile,
    /// The last save failed.
    is_unsaved: bool,
    policy: SyncPolicy,
    folder_changed: Arc<AtomicBool>,
    tail_pending: Arc<AtomicBool>,
    done: Arc<Mutex<Vec<Done>>>,
    news: Arc<Notify>,
}

impl Worker {
    fn sync(&self, files: &[Arc<dyn VfsFile>]) -> std::io::Result<()> {
        if self.policy == SyncPolicy::Never {
            return Ok(());
        }
        self.sync_in_any_case(files)
    }

    fn sync_in_any_case(&self, files: &[Arc<dyn VfsFile>]) -> std::io::Result<()> {
        if self.folder_changed.swap(false, Ordering::SeqCst)
            && let Err(error) = self.disk.sync_folder()
        {
            self.folder_changed.store(true, Ordering::SeqCst);
            return Err(error);
        }
        files.iter().try_for_each(|file| file.sync())
    }

    fn remove(&self, kind: Kind, number: u64) {
        if let Err(error) = self.disk.remove(kind, number) {
            tracing::error!(file = kind.name(number), %error, "a spool file cannot be removed");
        }
    }

    pub(super) fn perform(&mut self, job: Job) {
        let done = match job {
            Job::Answer(done) => {
                let _ = done.send(());
                return;
            }
            Job::Tail(number, file) => {
                let result = self.sync(&[file]);
                self.tail_pending.store(false, Ordering::SeqCst);
                let Err(error) = result else { return };
                tracing::error!(%error, "syncing a tail failed; it is given up");
                Done::TailFailed(number)
            }
            Job::Settle(files) => {
                if let Err(error) = self.sync_in_any_case(&files) {
                    tracing::error!(%error, "syncing what is held failed");
                }
                return;
            }
            Job::Seal(sealed, files) => match self.sync(&files) {
                Ok(()) => {
                    let tails = sealed.tails.iter().map(|(n, _)| (Kind::Tail, *n));
                    if !self.is_unsaved {
                        tails.for_each(|(kind, number)| self.remove(kind, number));
                        return;
                    }
                    Done::Kept(tails.collect())
                }
                // The tails stay: they may be the only sound copy.
                Err(error) => {
                    tracing::error!(%error, "syncing a segment failed; it is given up");
                    Done::SealFailed(sealed)
                }
            },
            Job::Save {
                number,
                state,
                mut remove,
            } => {
                let saved = self.state.save(&state);
                if let Err(error) = &saved {
                    tracing::error!(%error, "the spool's state cannot be saved");
                }
                self.is_unsaved = saved.is_err();
                if saved.is_ok() {
                    for (kind, file) in remove.drain(..) {
                        self.remove(kind, file);
                    }
                }
                match saved {
                    Ok(()) => Done::Saved(number),
                    Err(_) => Done::SaveFailed(number, remove),
                }
            }
        };
        self.done
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(done);
        self.news.notify_one();
    }
}

enum Way {
    Thread {
        jobs: Option<std::sync::mpsc::Sender<Job>>,
        thread: Option<std::thread::JoinHandle<()>>,
    },
    /// Done when the caller says so: for simulations.
    #[cfg_attr(not(test), expect(dead_code, reason = "simulations only"))]
    ByHand(Box<Worker>, VecDeque<Job>),
}

/// Has jobs done.
///
/// Dropping it waits for the thread, so that the folder is free afterwards.
pub(super) struct Syncer {
    way: Way,
    folder_changed: Arc<AtomicBool>,
    tail_pending: Arc<AtomicBool>,
    done: Arc<Mutex<Vec<Done>>>,
    news: Arc<Notify>,
}

impl Syncer {
    fn parts(disk: Arc<Disk>, policy: SyncPolicy) -> (Self, Worker) {
        let syncer = Self {
            way: Way::Thread {
                jobs: None,
                thread: None,
            },
            folder_changed: Arc::new(AtomicBool::new(true)),
            tail_pending: Arc::default(),
            done: Arc::default(),
            news: Arc::default(),
        };
        let worker = Worker {
            state: StateFile::open(disk.clone()),
            is_unsaved: false,
            disk,
            policy,
            folder_changed: syncer.folder_changed.clone(),
            tail_pending: syncer.tail_pending.clone(),
            done: syncer.done.clone(),
            news: syncer.news.clone(),
        };
        (syncer, worker)
    }

    pub(super) fn start(disk: Arc<Disk>, policy: SyncPolicy) -> std::io::Result<Self> {
        let (mut syncer, mut worker) = Self::parts(disk, policy);
        let (jobs, todo) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("spool-sync".into())
            .spawn(move || {
                for job in todo {
                    worker.perform(job);
                }
            })?;
        syncer.way = Way::Thread {
            jobs: Some(jobs),
            thread: Some(thread),
        };
        Ok(syncer)
    }

    #[cfg(test)]
    pub(super) fn by_hand(disk: Arc<Disk>, policy: SyncPolicy) -> Self {
        let (mut syncer, worker) = Self::parts(disk, policy);
        syncer.way = Way::ByHand(Box::new(worker), VecDeque::new());
        syncer
    }

    /// Does the next job; whether there was one.
    pub(super) fn perform_one(&mut self) -> bool {
        match &mut self.way {
            Way::Thread { .. } => false,
            Way::ByHand(worker, jobs) => match jobs.pop_front() {
                Some(job) => {
                    worker.perform(job);
                    true
                }
                None => false,
            },
        }
    }

    pub(super) fn send(&mut self, job: Job) -> bool {
        match &mut self.way {
            Way::Thread { jobs, .. } => jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok()),
            Way::ByHand(_, jobs) => {
                jobs.push_back(job);
                true
            }
        }
    }

    /// Told when a job that reports is done.
    pub(super) fn news(&self) -> Arc<Notify> {
        self.news.clone()
    }

    /// What came of jobs since it was asked last.
    pub(super) fn take_done(&self) -> Vec<Done> {
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn folder_changed(&self) {
        self.folder_changed.store(true, Ordering::SeqCst);
    }

    /// Makes names durable now, on the caller's thread.
    pub(super) fn sync_folder_now(&self, disk: &Disk) -> std::io::Result<()> {
        if self.folder_changed.swap(false, Ordering::SeqCst)
            && let Err(error) = disk.sync_folder()
        {
            self.folder_changed.store(true, Ordering::SeqCst);
            return Err(error);
        }
        Ok(())
    }

    /// Unless one is still running.
    pub(super) fn sync_tail_soon(&mut self, number: u64, file: Arc<dyn VfsFile>) {
        if !self.tail_pending.swap(true, Ordering::SeqCst) {
            self.send(Job::Tail(number, file));
        }
    }

    /// Waits until all jobs so far are done.
    pub(super) fn run_all(&mut self) {
        while self.perform_one() {}
        let (done, finished) = std::sync::mpsc::channel();
        if matches!(self.way, Way::Thread { .. }) && self.send(Job::Answer(done)) {
            let _ = finished.recv();
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        if let Way::Thread { jobs, thread } = &mut self.way {
            *jobs = None;
            if let Some(thread) = thread.take() {
                let _ = thread.join();
            }
        }
    }
}
