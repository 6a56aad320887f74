//! What stands in a spool beside its frames: declared losses, and how far each
//! stream had got. Pure.
//!
//! The state file holds two slots of equal length, each half of the file. A save
//! overwrites the slot that is not the newest, in place, so that it needs no
//! space and a torn save leaves the one before it. A slot is:
//!
//! ```text
//! offset size
//!      0    4  magic "GSST"
//!      4    1  format version
//!      5    3  0
//!      8    8  generation: the higher one counts
//!     16    4  length of the body
//!     20    4  CRC-32 of bytes 0 to 19 and the body
//!     24    n  body: JSON, a State
//! ```

use serde::{Deserialize, Serialize};

use crate::frame::StreamId;

/// Name of the state file.
pub const STATE_FILE: &str = "state.1";
/// First bytes of a slot.
pub const MAGIC: [u8; 4] = *b"GSST";
/// Version written by this build.
pub const FORMAT_VERSION: u8 = 1;
/// Length of a slot's header.
pub const HEADER_LEN: usize = 24;

/// Why records will never come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossReason {
    /// The spool had reached its bound.
    SpoolFull,
    /// The disk was full, or had less left than is to be left free.
    DiskFull,
    /// A frame on disk was damaged.
    Corrupt,
    /// Power was lost.
    PowerLoss,
    /// The aggregator refused it for good.
    Rejected,
    /// Writing failed.
    WriteFailed,
}

impl LossReason {
    /// The word used in files and texts.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SpoolFull => "spool_full",
            Self::DiskFull => "disk_full",
            Self::Corrupt => "corrupt",
            Self::PowerLoss => "power_loss",
            Self::Rejected => "rejected",
            Self::WriteFailed => "write_failed",
        }
    }
}

/// A range of records of one stream that will never come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Its stream.
    pub stream: StreamId,
    /// First seq.
    pub first: u64,
    /// Last seq.
    pub last: u64,
    /// At least so many of them had been measured.
    pub count_min: u64,
    /// At most so many.
    pub count_max: u64,
    /// Why.
    pub reason: LossReason,
}

impl Loss {
    /// All of `first ..= last`, every one of which had been measured.
    pub fn exact(stream: StreamId, first: u64, last: u64, reason: LossReason) -> Self {
        let count = last.saturating_sub(first).saturating_add(1);
        Self {
            stream,
            first,
            last,
            count_min: count,
            count_max: count,
            reason,
        }
    }

    /// One loss for both, if `next` follows this one, for the same reason.
    pub fn joined(&self, next: &Self) -> Option<Self> {
        (self.stream == next.stream
            && self.reason == next.reason
            && self.last.checked_add(1) == Some(next.first))
        .then(|| Self {
            last: next.last,
            count_min: self.count_min.saturating_add(next.count_min),
            count_max: self.count_max.saturating_add(next.count_max),
            ..*self
        })
    }
}

/// How far a stream had got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamState {
    /// Which.
    pub stream: StreamId,
    /// Everything up to here is acknowledged.
    pub floor: u64,
    /// Nothing beyond this number has been given out. None: nothing beyond what
    /// stands in the files has.
    pub reserved: Option<u64>,
}

/// What a spool knows beside its frames.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    /// The boot in which this was written: as long as it lasts, what was written
    /// is there. None: writes were failing, so not even that is known.
    pub boot: Option<String>,
    /// Numbers of files from here on have never been used.
    pub next_file: u64,
    /// Streams that are open or of which something is held.
    pub streams: Vec<StreamState>,
    /// Declared and not yet acknowledged.
    pub losses: Vec<Loss>,
}

/// Why bytes are not a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Neither slot is whole.
    #[error("neither copy of the state is whole")]
    Damaged,
    /// A newer format.
    #[error("state of format version {0}; this build reads up to {FORMAT_VERSION}")]
    Version(u8),
}

/// A slot's bytes, without padding.
pub fn encode(state: &State, generation: u64) -> Result<Vec<u8>, serde_json::Error> {
    let body = serde_json::to_vec(state)?;
    let mut bytes = Vec::with_capacity(HEADER_LEN + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[FORMAT_VERSION, 0, 0, 0]);
    bytes.extend_from_slice(&generation.to_le_bytes());
    bytes.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes);
    crc.update(&body);
    bytes.extend_from_slice(&crc.finalize().to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// A state as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundState {
    /// What it says.
    pub state: State,
    /// How often it had been saved.
    pub generation: u64,
    /// In which half of the file: 0 or 1.
    pub slot: usize,
}

/// Reads a state file: the newest slot that is whole.
pub fn decode(file: &[u8]) -> Result<FoundState, StateError> {
    let half = file.len() / 2;
    let slots = [&file[..half], &file[half..]];
    let mut newest: Result<FoundState, StateError> = Err(StateError::Damaged);
    for (slot, bytes) in slots.into_iter().enumerate() {
        match one_slot(bytes) {
            Ok((state, generation)) => {
                if newest.as_ref().map_or(true, |n| n.generation < generation) {
                    newest = Ok(FoundState {
                        state,
                        generation,
                        slot,
                    });
                }
            }
            // A newer build has written here: what it knows must not be overwritten.
            Err(StateError::Version(version)) => return Err(StateError::Version(version)),
            Err(StateError::Damaged) => {}
        }
    }
    newest
}

fn one_slot(bytes: &[u8]) -> Result<(State, u64), StateError> {
    let damaged = StateError::Damaged;
    let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
        return Err(damaged);
    };
    let word = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let length = word(16) as usize;
    if header[..4] != MAGIC || length > bytes.len() - HEADER_LEN {
        return Err(damaged);
    }
    let body = &bytes[HEADER_LEN..HEADER_LEN + length];
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header[..20]);
    crc.update(body);
    if crc.finalize() != word(20) {
        return Err(damaged);
    }
    if header[4] > FORMAT_VERSION {
        return Err(StateError::Version(header[4]));
    }
    let generation = u64::from(word(8)) | (u64::from(word(12)) << 32);
    let state = serde_json::from_slice(body).map_err(|_| damaged)?;
    Ok((state, generation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::StreamKind;
    use crate::ids::{Incarnation, RunId};
    use proptest::prelude::*;

    fn state(next_file: u64) -> State {
        let stream = StreamId {
            run: RunId::generate(),
            incarnation: Incarnation::generate(),
            kind: StreamKind::Samples,
        };
        State {
            boot: Some("b".into()),
            next_file,
            streams: vec![StreamState {
                stream,
                floor: 3,
                reserved: Some(99),
            }],
            losses: vec![Loss::exact(stream, 4, 9, LossReason::SpoolFull)],
        }
    }

    fn file(old: &State, new: &State) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let (a, b) = (encode(old, 7).expect("JSON"), encode(new, 8).expect("JSON"));
        bytes[..a.len()].copy_from_slice(&a);
        bytes[2048..2048 + b.len()].copy_from_slice(&b);
        bytes
    }

    #[test]
    fn the_newest_whole_slot_counts() {
        let (old, new) = (state(1), state(2));
        let mut bytes = file(&old, &new);
        let found = decode(&bytes).expect("whole");
        assert_eq!((found.state, found.generation, found.slot), (new, 8, 1));
        bytes[2048 + 30] ^= 1;
        let found = decode(&bytes).expect("one is whole");
        assert_eq!((found.state, found.generation, found.slot), (old, 7, 0));
        bytes[20] ^= 1;
        assert_eq!(decode(&bytes), Err(StateError::Damaged));
    }

    #[test]
    fn a_newer_version_is_named() {
        let mut bytes = file(&state(1), &state(2));
        bytes[4] = 9;
        let length = u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]) as usize;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&bytes[..20]);
        crc.update(&bytes[24..24 + length]);
        let crc = crc.finalize().to_le_bytes();
        bytes[20..24].copy_from_slice(&crc);
        assert_eq!(decode(&bytes), Err(StateError::Version(9)));
    }

    proptest! {
        /// Whatever a save that is cut short or damaged leaves in one slot, the
        /// other one is read.
        #[test]
        fn a_torn_save_leaves_the_one_before(at in 2048usize..2348, with in any::<u8>(), len in 1usize..512) {
            let (old, new) = (state(1), state(2));
            let mut bytes = file(&old, &new);
            let end = (at + len).min(bytes.len());
            let before = bytes.clone();
            bytes[at..end].fill(with);
            let found = decode(&bytes).expect("one is whole");
            prop_assert_eq!(found.state, if bytes == before { new } else if found.slot == 1 { state_of(&before) } else { old });
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }

    fn state_of(bytes: &[u8]) -> State {
        decode(bytes).expect("whole").state
    }

    proptest! {
        /// A sound slot whose body is anything: a state or damage, never a panic.
        #[test]
        fn any_body_is_a_state_or_damage(
            body in prop_oneof![
                "\\PC{0,200}",
                "\\{(\"(boot|next_file|streams|losses)\": ?(-?[0-9]{1,22}|\"x\"|\\[\\]|null|\\[\\{\\}\\]),? ?){0,5}\\}",
            ],
            generation in any::<u64>(),
        ) {
            let mut slot = Vec::new();
            slot.extend_from_slice(&MAGIC);
            slot.extend_from_slice(&[FORMAT_VERSION, 0, 0, 0]);
            slot.extend_from_slice(&generation.to_le_bytes());
            slot.extend_from_slice(&(body.len() as u32).to_le_bytes());
            let mut crc = crc32fast::Hasher::new();
            crc.update(&slot);
            crc.update(body.as_bytes());
            slot.extend_from_slice(&crc.finalize().to_le_bytes());
            slot.extend_from_slice(body.as_bytes());
            // The slot is the first half of the file.
            slot.resize(slot.len() * 2, 0);
            if let Ok(found) = decode(&slot) {
                prop_assert_eq!((found.generation, found.slot), (generation, 0));
            }
        }

        /// A length that lies beyond the slot is damage.
        #[test]
        fn a_length_is_only_a_claim(length in any::<u32>(), bytes in proptest::collection::vec(any::<u8>(), 0..99)) {
            let mut file = encode(&state(1), 1).expect("JSON");
            file[16..20].copy_from_slice(&length.to_le_bytes());
            file.extend_from_slice(&bytes);
            let _ = decode(&file);
        }

        #[test]
        fn a_state_goes_round(next_file in any::<u64>(), generation in any::<u64>(), padding in 0usize..64) {
            let state = state(next_file);
            let mut file = encode(&state, generation).expect("JSON");
            let half = file.len() + padding;
            file.resize(2 * half, 0);
            prop_assert_eq!(decode(&file), Ok(FoundState { state, generation, slot: 0 }));
        }
    }
}
