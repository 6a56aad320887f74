//! Where time comes from. Everything that stamps takes a [`Clock`], so that
//! tests can say what time it is.
//!
//! Stamps are CLOCK_MONOTONIC_RAW: NTP neither steps nor slews it. It cannot be
//! slept on, so waiting uses tokio's (monotonic) timer, recomputed from RAW for
//! each wait.

use std::sync::atomic::{AtomicI64, Ordering};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::host::Anchor;

/// Reads the clocks of one host.
pub trait Clock: Send + Sync + 'static {
    /// CLOCK_MONOTONIC_RAW in nanoseconds.
    fn raw_ns(&self) -> i64;
    /// All clocks read together.
    fn anchor(&self) -> Anchor;
    /// Which clock `raw_ns` reads.
    fn key(&self) -> ClockKey;
}

/// Says which CLOCK_MONOTONIC_RAW a stamp was read from: equal keys, same clock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClockKey {
    /// `/proc/sys/kernel/random/boot_id`
    pub boot_id: String,
    /// Inode of `/proc/self/ns/time`; 0 on kernels without time namespaces.
    pub time_namespace: u64,
}

/// The kernel's clocks.
#[derive(Debug, Clone)]
pub struct SystemClock {
    key: ClockKey,
}

impl SystemClock {
    /// Finds out whose clocks these are.
    pub fn new() -> Self {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map(|text| text.trim().to_owned())
            .unwrap_or_else(|_| format!("unknown-{}", uuid::Uuid::new_v4()));
        let time_namespace = std::fs::metadata("/proc/self/ns/time")
            .map(|meta| std::os::unix::fs::MetadataExt::ino(&meta))
            .unwrap_or(0);
        Self {
            key: ClockKey {
                boot_id,
                time_namespace,
            },
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

fn read(id: ClockId) -> i64 {
    let time = clock_gettime(id);
    time.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec)
}

impl Clock for SystemClock {
    fn raw_ns(&self) -> i64 {
        read(ClockId::MonotonicRaw)
    }

    fn anchor(&self) -> Anchor {
        let raw_before_ns = read(ClockId::MonotonicRaw);
        let monotonic_ns = read(ClockId::Monotonic);
        let boottime_ns = read(ClockId::Boottime);
        let realtime_ns = read(ClockId::Realtime);
        let raw_after_ns = read(ClockId::MonotonicRaw);
        Anchor {
            raw_before_ns,
            raw_after_ns,
            monotonic_ns,
            boottime_ns,
            realtime_ns,
            timer_late_ns: 0,
        }
    }

    fn key(&self) -> ClockKey {
        self.key.clone()
    }
}

/// A clock that a test moves by hand.
#[derive(Debug)]
pub struct SimClock {
    raw_ns: AtomicI64,
    wall_offset_ns: i64,
    key: ClockKey,
}

impl SimClock {
    /// Starts at `raw_ns`; its wall clock is `wall_offset_ns` ahead of RAW.
    pub fn new(raw_ns: i64, wall_offset_ns: i64) -> Self {
        Self {
            raw_ns: AtomicI64::new(raw_ns),
            wall_offset_ns,
            key: ClockKey {
                boot_id: "simulated".into(),
                time_namespace: 0,
            },
        }
    }

    /// Moves on (or back) by `ns`.
    pub fn advance(&self, ns: i64) {
        self.raw_ns.fetch_add(ns, Ordering::SeqCst);
    }
}

impl Clock for SimClock {
    fn raw_ns(&self) -> i64 {
        self.raw_ns.load(Ordering::SeqCst)
    }

    fn anchor(&self) -> Anchor {
        let now = self.raw_ns();
        Anchor {
            raw_before_ns: now,
            raw_after_ns: now,
            monotonic_ns: now,
            boottime_ns: now,
            realtime_ns: now.saturating_add(self.wall_offset_ns),
            timer_late_ns: 0,
        }
    }

    fn key(&self) -> ClockKey {
        self.key.clone()
    }
}
