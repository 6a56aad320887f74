//! What is going on, for heartbeats and live displays; never used for results.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gapscope_proto::ids::{RunId, TargetName};
use gapscope_proto::sample::{Outcome, Sample, Style};

/// The runs that are being probed. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Board {
    runs: Arc<Mutex<BTreeMap<RunId, Arc<RunBoard>>>>,
}

/// One run.
#[derive(Debug)]
pub struct RunBoard {
    /// Few, so that looking through them needs no key made for each sample.
    counters: Vec<((TargetName, Style), Counters)>,
}

#[derive(Debug, Default)]
struct Counters {
    ok: AtomicU64,
    bad: AtomicU64,
    newest: Mutex<Newest>,
}

#[derive(Debug, Default)]
struct Newest {
    backend: Option<Arc<str>>,
    error: Option<Arc<str>>,
}

/// One target and style of a run as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Target.
    pub target: TargetName,
    /// Style.
    pub style: Style,
    /// Good probes so far.
    pub ok: u64,
    /// Other probes so far.
    pub bad: u64,
    /// Of the newest good answer.
    pub backend: String,
    /// Of the newest bad probe.
    pub last_error: String,
}

impl RunBoard {
    /// For these targets and styles.
    pub fn new(keys: impl IntoIterator<Item = (TargetName, Style)>) -> Self {
        Self {
            counters: keys
                .into_iter()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .map(|key| (key, Counters::default()))
                .collect(),
        }
    }

    /// Notes a sample.
    pub fn note(&self, sample: &Sample) {
        let Some((_, counters)) = self
            .counters
            .iter()
            .find(|((target, style), _)| *target == *sample.target && *style == sample.style)
        else {
            return;
        };
        let mut newest = counters
            .newest
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if sample.outcome == Outcome::Ok {
            counters.ok.fetch_add(1, Ordering::Relaxed);
            newest.backend.clone_from(&sample.backend);
        } else {
            counters.bad.fetch_add(1, Ordering::Relaxed);
            newest.error.clone_from(&sample.error);
        }
    }

    /// As it stands.
    pub fn progress(&self) -> Vec<Progress> {
        self.counters
            .iter()
            .map(|((target, style), counters)| {
                let newest = counters
                    .newest
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                Progress {
                    target: target.clone(),
                    style: *style,
                    ok: counters.ok.load(Ordering::Relaxed),
                    bad: counters.bad.load(Ordering::Relaxed),
                    backend: newest.backend.as_deref().unwrap_or_default().to_owned(),
                    last_error: newest.error.as_deref().unwrap_or_default().to_owned(),
                }
            })
            .collect()
    }
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<RunId, Arc<RunBoard>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run begins.
    pub fn put(&self, run: RunId, board: Arc<RunBoard>) {
        self.lock().insert(run, board);
    }

    /// A run has ended.
    pub fn take_off(&self, run: RunId) {
        self.lock().remove(&run);
    }

    /// The runs that are being probed.
    pub fn running(&self) -> Vec<RunId> {
        self.lock().keys().copied().collect()
    }

    /// All of it.
    pub fn progress(&self) -> Vec<(RunId, Vec<Progress>)> {
        self.lock()
            .iter()
            .map(|(run, board)| (*run, board.progress()))
            .collect()
    }
}
