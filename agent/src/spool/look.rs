//! Looking at a spool without touching it, even while an agent writes to it.
//!
//! Files are read in the order in which records move through them: tails, then
//! segments, then the state. What leaves one while it is being read stands in
//! the next: a tail's records in a segment, an acknowledged segment in what the
//! state says is acknowledged, a segment given up in its losses. So nothing that
//! is in order can look lost.
//!
//! What it cannot know: whether a spool that was copied from another host, or
//! from before a restart of this one, had lost power. It says what may be lost.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::frame::StreamId;
use gapscope_proto::spool::State;

use super::disk::{Disk, Kind};
use super::recover::{Recovered, Recovery};
use super::{Loss, SpoolError, state};

/// What was seen.
#[derive(Debug)]
pub struct Look {
    /// The folder.
    pub disk: Disk,
    /// Whether an agent has it open.
    pub is_live: bool,
    /// Files with frames.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What they hold.
    pub found: Recovered,
    /// What is known beside them.
    pub state: State,
    /// What is wrong with a file, without anything being lost by that alone.
    pub damage: Vec<String>,
    /// Files that a newer build wrote.
    pub newer: Vec<String>,
    /// Ends of files that were cut off in mid-frame.
    pub cut: Vec<String>,
}

/// What is held of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    /// Frames.
    pub frames: u64,
    /// Records.
    pub records: u64,
    /// First seq held; 0: none.
    pub first: u64,
    /// Last seq held.
    pub last: u64,
    /// Acknowledged up to here.
    pub acknowledged: u64,
    /// What will never come.
    pub losses: Vec<Loss>,
}

/// How often a spool that is being written to is looked at again before damage in it
/// is believed.
const LOOKS_AGAIN: usize = 10;

/// Looks at the spool in `folder`. A frame that is being written may look damaged in
/// the one read that met it: of a spool in use only what stays so is.
pub fn look(folder: &Path) -> Result<Look, SpoolError> {
    let mut seen = look_once(folder)?;
    for _ in 0..LOOKS_AGAIN {
        if !seen.is_live || seen.found.counts.corrupt_stretches == 0 {
            break;
        }
        seen = look_once(folder)?;
    }
    Ok(seen)
}

fn look_once(folder: &Path) -> Result<Look, SpoolError> {
    let disk = Disk::inspect(folder)?;
    let wrong = |error| SpoolError::Io {
        path: folder.to_owned(),
        error,
    };
    let is_live = is_locked(&folder.join("lock"));
    let mut recovery = Recovery::live(is_live);
    let (mut files, mut bytes) = (0, 0);
    let (mut damage, mut newer, mut cut) = (Vec::new(), Vec::new(), Vec::new());
    for kind in [Kind::Tail, Kind::Segment] {
        for (number, _) in disk.files(kind).map_err(wrong)? {
            let name = kind.name(number);
            let read = match disk.read(kind, number) {
                Ok(read) => read,
                // Removed since the folder was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    damage.push(format!("{name}: cannot be read: {error}"));
                    continue;
                }
            };
            files += 1;
            bytes += read.len() as u64;
            let before = recovery.counts();
            let is_newer = match kind {
                Kind::Tail => recovery.tail(&read),
                Kind::Segment => recovery.segment(number, &read),
            };
            let after = recovery.counts();
            if is_newer {
                newer.push(name.clone());
            }
            let cuts = after.cut_stretches - before.cut_stretches;
            let stretches = after.corrupt_stretches - before.corrupt_stretches - cuts;
            if cuts > 0 {
                cut.push(format!("{name}: its end was cut off inside a frame"));
            }
            if stretches > 0 {
                damage.push(format!(
                    "{name}: {stretches} damaged stretches, {} bytes",
                    after.corrupt_bytes - before.corrupt_bytes
                ));
            }
        }
    }
    let read = state::read(&disk).map_err(wrong)?;
    if read.is_damaged {
        damage.push(format!("{}: damaged", state::STATE_FILE));
    }
    if read.newer.is_some() {
        newer.push(state::STATE_FILE.to_owned());
    }
    let state = read.state.unwrap_or_default();
    let power_lost = state.boot != Some(SystemClock::new().key().boot_id) && !is_live;
    for known in &state.streams {
        let reserved = known.reserved.filter(|_| power_lost);
        recovery.known(known.stream, known.floor, reserved);
    }
    state.losses.iter().for_each(|loss| recovery.loss(*loss));
    Ok(Look {
        is_live,
        files,
        bytes,
        found: recovery.finish(),
        state,
        damage,
        newer,
        cut,
        disk,
    })
}

/// Whether a folder holds what a spool consists of.
fn is_spool(folder: &Path) -> bool {
    let is_its = |name: &str| {
        name == "lock"
            || name == state::STATE_FILE
            || [Kind::Tail, Kind::Segment]
                .iter()
                .any(|kind| kind.number(name).is_some())
    };
    std::fs::read_dir(folder).is_ok_and(|entries| {
        entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
            .any(|entry| entry.file_name().to_str().is_some_and(is_its))
    })
}

/// The spools in an agent's data folder or in the `spool` in it, sorted; none if
/// the folder is a spool itself.
pub fn spools_below(folder: &Path) -> Vec<PathBuf> {
    if is_spool(folder) {
        return Vec::new();
    }
    let mut found: Vec<PathBuf> = [folder.to_owned(), folder.join("spool")]
        .iter()
        .filter_map(|parent| std::fs::read_dir(parent).ok())
        .flat_map(|entries| entries.flatten())
        .map(|entry| entry.path())
        .filter(|path| is_spool(path))
        .collect();
    found.sort();
    found
}

impl Look {
    /// By stream.
    pub fn streams(&self) -> BTreeMap<StreamId, Held> {
        let mut streams: BTreeMap<StreamId, Held> = BTreeMap::new();
        for known in &self.state.streams {
            streams.entry(known.stream).or_default().acknowledged = known.floor;
        }
        let sealed = self
            .found
            .sealed
            .iter()
            .map(|f| (f.stream, f.first, f.last));
        let unsealed = &self.found.unsealed;
        let unsealed = unsealed
            .iter()
            .map(|f| (f.stream, f.first_seq, f.last_seq()));
        for (stream, first, last) in sealed.chain(unsealed) {
            let held = streams.entry(stream).or_default();
            held.frames += 1;
            // Written again after a failure, a record may stand in two frames.
            let overlap = if held.last < last {
                (held.last + 1).saturating_sub(first)
            } else {
                0
            };
            held.records += last + 1 - first - overlap;
            held.first = match held.first {
                0 => first,
                other => other.min(first),
            };
            held.last = held.last.max(last);
        }
        for loss in &self.found.losses {
            streams.entry(loss.stream).or_default().losses.push(*loss);
        }
        streams
    }

    /// Least and most records lost.
    pub fn lost(&self) -> (u64, u64) {
        self.found.losses.iter().fold((0, 0), |(min, max), loss| {
            (min + loss.count_min, max + loss.count_max)
        })
    }
}

/// Whether somebody holds the lock, asked without taking it: taking it, however
/// shortly, could keep an agent from starting.
fn is_locked(path: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else {
        return false;
    };
    let Ok(locks) = std::fs::read_to_string("/proc/locks") else {
        return false;
    };
    let (device, inode) = (metadata.dev(), metadata.ino());
    let own = format!(
        "{:02x}:{:02x}:{inode}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    locks.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.any(|word| word == "FLOCK") && words.any(|word| word == own)
    })
}
