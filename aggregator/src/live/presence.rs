//! Which agents are there, for those who watch: light enough to be read at each
//! update.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gapscope_proto::clock::ClockKey;
use gapscope_proto::ids::AgentId;

/// What an agent last said of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    /// Whether it is connected.
    pub connected: bool,
    /// Its clock.
    pub clock: ClockKey,
    /// Bytes in its spool.
    pub spool_bytes: u64,
    /// Samples that it holds and that are not acknowledged.
    pub unacked_samples: u64,
}

/// All agents seen since the start.
#[derive(Debug, Default)]
pub struct Presence(Mutex<BTreeMap<AgentId, Seat>>);

impl Presence {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<AgentId, Seat>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has come.
    pub fn connected(&self, agent: &AgentId, clock: ClockKey) {
        let seat = Seat {
            connected: true,
            clock,
            spool_bytes: 0,
            unacked_samples: 0,
        };
        self.lock().insert(agent.clone(), seat);
    }

    /// It has gone.
    pub fn disconnected(&self, agent: &AgentId) {
        if let Some(seat) = self.lock().get_mut(agent) {
            seat.connected = false;
        }
    }

    /// It has told how it is.
    pub fn heartbeat(&self, agent: &AgentId, spool_bytes: u64, unacked_samples: u64) {
        if let Some(seat) = self.lock().get_mut(agent) {
            seat.spool_bytes = spool_bytes;
            seat.unacked_samples = unacked_samples;
        }
    }

    /// One of them.
    pub fn of(&self, agent: &AgentId) -> Option<Seat> {
        self.lock().get(agent).cloned()
    }

    /// All of them.
    pub fn all(&self) -> BTreeMap<AgentId, Seat> {
        self.lock().clone()
    }
}
