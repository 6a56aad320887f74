//! Records that will never come, declared.

use std::collections::BTreeMap;

use gapscope_proto::frame::StreamKind;
use gapscope_proto::ids::{AgentId, Incarnation};

use super::footer::StreamKey;
use super::reader::Part;

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

/// What no part holds below a stream's highest seq, and no loss stands for: the
/// records of parts that cannot be read. They were acknowledged and will not come again.
pub(crate) fn holes<'a>(
    parts: impl Iterator<Item = &'a Part>,
    losses: &[LossRecord],
) -> Vec<LossRecord> {
    let mut covered: BTreeMap<StreamKey, Vec<(u64, u64)>> = BTreeMap::new();
    for range in parts.flat_map(|part| &part.footer.ranges) {
        covered
            .entry(range.stream.clone())
            .or_default()
            .push((range.first_seq, range.last_seq));
    }
    for loss in losses {
        covered
            .entry(loss.stream())
            .or_default()
            .push((loss.first_seq, loss.last_seq));
    }
    let mut found = Vec::new();
    for (stream, mut ranges) in covered {
        ranges.sort_unstable();
        let mut next = 1;
        for (first, last) in ranges {
            if first > next {
                found.push(LossRecord {
                    agent_id: stream.agent_id.clone(),
                    incarnation: stream.incarnation,
                    kind: stream.kind,
                    first_seq: next,
                    last_seq: first - 1,
                    count_min: first - next,
                    count_max: first - next,
                    reason: "part_unreadable".to_owned(),
                });
            }
            next = next.max(last.saturating_add(1));
        }
    }
    found
}
