//! What a parquet file's footer says about itself: its format's version, which
//! seqs of which streams it covers, which live parts it replaces, and the
//! checksum of the whole file ([`super::checksum`]).
//!
//! The footers are the only record of what has been taken in.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use gapscope_proto::frame::StreamKind;
use gapscope_proto::ids::{AgentId, Incarnation, RunId};
use polars::prelude::{KeyValueMetadata, ParquetReader, SerReader};
use serde::{Deserialize, Serialize};

use super::checksum;
use super::disk::open_regular;
use super::error::StoreError;
use super::manifest::FORMAT_VERSION;

/// The key under which the footer stands in the file's metadata.
pub const KEY: &str = "gapscope";

/// Names a stream within a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamKey {
    /// Whose.
    pub agent_id: AgentId,
    /// Which start of the agent.
    pub incarnation: Incarnation,
    /// Samples or host records.
    pub kind: StreamKind,
}

/// Consecutive seqs of one stream, both ends included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Which stream.
    #[serde(flatten)]
    pub stream: StreamKey,
    /// First.
    pub first_seq: u64,
    /// Last.
    pub last_seq: u64,
}

/// The footer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footer {
    /// [`FORMAT_VERSION`] of the writer.
    pub format_version: u32,
    /// The run.
    pub run_id: RunId,
    /// What is in the file.
    pub ranges: Vec<Range>,
    /// Names of the live parts that must not be counted beside this file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaces: Vec<String>,
    /// Of the whole file, 8 hexadecimal digits; empty in files of version 1.
    #[serde(default)]
    pub checksum: String,
}

impl Footer {
    /// One for a file that holds `ranges`.
    pub fn new(run_id: RunId, ranges: Vec<Range>, replaces: Vec<String>) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            run_id,
            ranges,
            replaces,
            checksum: checksum::PLACEHOLDER.to_owned(),
        }
    }

    /// Whether the file must have a checksum.
    pub fn is_sealed(&self) -> bool {
        self.format_version >= checksum::SINCE_VERSION
    }

    /// As it stands in the file.
    pub(crate) fn to_text(&self) -> String {
        serde_json::to_string(self).expect("a footer is plain data")
    }

    /// As polars wants it.
    pub fn to_metadata(&self) -> KeyValueMetadata {
        KeyValueMetadata::from_static(vec![(KEY.to_owned(), self.to_text())])
    }
}

/// Ranges that are gathered; one that follows on its stream's last is joined to it.
#[derive(Debug, Clone, Default)]
pub struct Ranges {
    list: Vec<Range>,
    /// Where in the list each stream's last one is: there can be thousands of streams.
    last: HashMap<StreamKey, usize>,
}

impl Ranges {
    /// One more.
    pub fn push(&mut self, range: Range) {
        if let Some(at) = self.last.get(&range.stream) {
            let last = &mut self.list[*at];
            if last.last_seq.checked_add(1) == Some(range.first_seq) {
                last.last_seq = range.last_seq;
                return;
            }
        }
        self.last.insert(range.stream.clone(), self.list.len());
        self.list.push(range);
    }

    /// All so far.
    pub fn list(&self) -> &[Range] {
        &self.list
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.list.clear();
        self.last.clear();
    }
}

/// As [`read`], of a file whose checksum holds.
///
/// # Errors
/// As [`read`], and when the checksum does not hold or is missing.
pub fn read_sound(path: &Path) -> Result<(Footer, u64), StoreError> {
    // The checksum first: what is damaged is not given to a parser. Only files of
    // version 1 have none.
    let unsealed = match checksum::check(path) {
        Err(error @ StoreError::Unsealed(_)) => Some(error),
        other => {
            other?;
            None
        }
    };
    let read = read(path)?;
    match unsealed {
        Some(error) if read.0.is_sealed() => Err(error),
        _ => Ok(read),
    }
}

/// Reads a file's footer and its number of rows.
///
/// # Errors
/// When the file cannot be read, is no parquet file, has no such footer, or was
/// written by a newer program.
pub fn read(path: &Path) -> Result<(Footer, u64), StoreError> {
    let file = open_regular(path).map_err(StoreError::io("read", path))?;
    let damaged = |why: String| StoreError::Damaged {
        path: path.to_owned(),
        why,
    };
    // The reader panics at some damaged footers.
    let mut reader = ParquetReader::new(file);
    let metadata = catch_unwind(AssertUnwindSafe(|| reader.get_metadata().cloned()))
        .map_err(|_| damaged("its footer cannot be decoded".to_owned()))?
        .map_err(StoreError::parquet("read", path))?;
    let rows = metadata.num_rows as u64;
    let text = metadata
        .key_value_metadata()
        .iter()
        .flatten()
        .find(|pair| pair.key == KEY)
        .and_then(|pair| pair.value.as_deref())
        .ok_or_else(|| damaged(format!("its footer has no `{KEY}` entry")))?;
    #[derive(Deserialize)]
    struct Version {
        format_version: u32,
    }
    let version: Version =
        serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    if version.format_version > FORMAT_VERSION {
        return Err(StoreError::NewerFormat {
            path: path.to_owned(),
            found: version.format_version,
        });
    }
    let footer = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    Ok((footer, rows))
}
