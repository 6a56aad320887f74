//! Time stamps that know whose clock they were read from.
//!
//! Stamps of different clocks cannot be subtracted:
//!
//! ```compile_fail
//! use gapscope_proto::time::{AgentRaw, AggregatorRaw, Timestamp};
//! let a = Timestamp::<AgentRaw>::from_ns(1);
//! let b = Timestamp::<AggregatorRaw>::from_ns(2);
//! let wrong = b - a;
//! ```
//!
//! ```
//! use gapscope_proto::time::{AgentRaw, Timestamp};
//! let a = Timestamp::<AgentRaw>::from_ns(1);
//! let b = Timestamp::<AgentRaw>::from_ns(3);
//! assert_eq!(b - a, 2);
//! ```

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ops::{Add, Sub};

/// CLOCK_MONOTONIC_RAW of the host an agent runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AgentRaw {}
/// CLOCK_MONOTONIC_RAW of the aggregator's host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AggregatorRaw {}

/// A reading of clock `C` in nanoseconds. Arithmetic saturates: readings come
/// from files and peers, and a hostile one must not panic.
pub struct Timestamp<C> {
    ns: i64,
    clock: PhantomData<fn() -> C>,
}

impl<C> Timestamp<C> {
    /// From nanoseconds.
    pub const fn from_ns(ns: i64) -> Self {
        Self {
            ns,
            clock: PhantomData,
        }
    }

    /// In nanoseconds.
    pub const fn ns(self) -> i64 {
        self.ns
    }
}

impl<C> Clone for Timestamp<C> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<C> Copy for Timestamp<C> {}
impl<C> PartialEq for Timestamp<C> {
    fn eq(&self, other: &Self) -> bool {
        self.ns == other.ns
    }
}
impl<C> Eq for Timestamp<C> {}
impl<C> PartialOrd for Timestamp<C> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<C> Ord for Timestamp<C> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.ns.cmp(&other.ns)
    }
}
impl<C> Hash for Timestamp<C> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.ns.hash(state);
    }
}
impl<C> fmt::Debug for Timestamp<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns", self.ns)
    }
}
impl<C> Default for Timestamp<C> {
    fn default() -> Self {
        Self::from_ns(0)
    }
}

impl<C> Sub for Timestamp<C> {
    /// Nanoseconds.
    type Output = i64;
    fn sub(self, other: Self) -> i64 {
        self.ns.saturating_sub(other.ns)
    }
}

impl<C> Add<i64> for Timestamp<C> {
    type Output = Self;
    /// Later by `ns` nanoseconds.
    fn add(self, ns: i64) -> Self {
        Self::from_ns(self.ns.saturating_add(ns))
    }
}
