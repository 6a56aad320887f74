//! Backend connections that no client holds at the moment.

use std::sync::{Mutex, PoisonError};

use mysql_common::constants::CapabilityFlags;

use super::super::link::Link;

/// Idle connections kept, over all backends; more are closed.
const MAX_IDLE: usize = 200;

/// Connections are interchangeable if these are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) member: usize,
    pub(super) database: Option<Vec<u8>>,
    pub(super) capabilities: CapabilityFlags,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Shared {
    idle: Mutex<Vec<(Kind, Link)>>,
}

impl Shared {
    /// The most recently used connection of a kind that is still there.
    pub(super) fn take(&self, kind: &Kind) -> Option<Link> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(at) = idle.iter().rposition(|(known, _)| known == kind) {
            let (_, mut link) = idle.remove(at);
            if link.is_quiet() {
                return Some(link);
            }
        }
        None
    }

    /// Keeps a connection for whoever comes next.
    pub(super) fn give(&self, kind: Kind, link: Link) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push((kind, link));
        }
    }
}
