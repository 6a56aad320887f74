//! Records that will never come, declared.

use gapscope_proto::frame::StreamKind;
use gapscope_proto::ids::{AgentId, Incarnation};

use super::footer::StreamKey;

/// A stretch of seqs of one stream that is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LossRecord {
    /// Whose.
    pub agent_id: AgentId,
    /// Which start of the agent.
    pub incarnation: Incarnation,
    /// Samples or host records.
    pub kind: StreamKind,
    /// First seq lost.
    pub first_seq: u64,
    /// Last seq lost.
    pub last_seq: u64,
    /// At least so many of the range had been measured.
    pub count_min: u64,
    /// At most so many.
    pub count_max: u64,
    /// `spool_full`, `disk_full`, `corrupt`, `power_loss`, `rejected`,
    /// `write_failed`; `part_unreadable` when the aggregator itself lost a file.
    pub reason: String,
}

impl LossRecord {
    /// The stream it is of.
    pub fn stream(&self) -> StreamKey {
        StreamKey {
            agent_id: self.agent_id.clone(),
            incarnation: self.incarnation,
            kind: self.kind,
        }
    }
}

/// The word for a stream's kind in files.
pub const fn kind_word(kind: StreamKind) -> &'static str {
    match kind {
        StreamKind::Samples => "samples",
        StreamKind::Host => "host",
    }
}

/// Reads such a word.
pub fn kind_from_word(word: &str) -> Option<StreamKind> {
    match word {
        "samples" => Some(StreamKind::Samples),
        "host" => Some(StreamKind::Host),
        _ => None,
    }
}
