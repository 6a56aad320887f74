//! Reads the spool that an agent left behind, without the agent.
//!
//! A spool is a folder of files full of frames: sealed ones in segments, the same
//! records once more in tails until these are removed, and a state: declared
//! losses, how far each stream is acknowledged, which numbers were reserved.
//! Frames are put in order by seq; what comes twice is told apart when it is
//! taken in, by seq too. Nothing is written here: an agent that comes back
//! after all brings the same records again, and they count once.
//!
//! What it cannot know: what stood in records that an aggregator had acknowledged
//! and the agent then removed; whether power was lost, if the spool was copied
//! from another host or has outlived a restart of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use gapscope_proto::clock::{Clock, ClockKey, SystemClock};
use gapscope_proto::frame::{Found, Frame, FrameError, StreamId, StreamKind, walk};
use gapscope_proto::ids::{AgentId, RunId};
use gapscope_proto::plan::RunPlan;
use gapscope_proto::small_file;
use gapscope_proto::spool::{self as layout, Loss, STATE_FILE, State, StateError};
use rustix::fs::{FlockOperation, flock};
use serde::Deserialize;

/// Longest segment or tail that is read: agents seal at 16 MiB.
const FILE_MOST: u64 = 256 << 20;
/// Longest of the small files.
const SMALL_MOST: u64 = 64 << 20;

/// Why a spool cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// An agent has it.
    #[error("the spool `{}` is in use by an agent", .0.display())]
    InUse(PathBuf),
    /// The folder does not bear an agent's name.
    #[error("`{}` is not an agent's spool: its name is no agent id", .0.display())]
    NoAgent(PathBuf),
    /// The file system says no.
    #[error("cannot read `{}`: {error}", .path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A small file makes no sense.
    #[error("`{}` is damaged: {why}", .path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> SpoolError + use<> {
    let path = path.to_owned();
    move |error| SpoolError::Io { path, error }
}

/// A run as its agent noted it down.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NotedRun {
    /// The agent's share of the plan.
    pub plan: RunPlan,
    /// The agent's clock.
    pub clock: ClockKey,
    /// Slot 0 by that clock.
    pub origin_ns: i64,
    /// When probing was to end.
    pub planned_end_ns: i64,
}

/// Where a stretch of a stream is to be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// In a frame.
    Frame {
        /// Which file.
        file: PathBuf,
        /// Which bytes of it.
        range: std::ops::Range<usize>,
    },
    /// Nowhere: declared lost.
    Lost(Loss),
    /// Nowhere: the frame's header is sound, its body is not.
    Broken,
}

/// A stretch of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// First seq.
    pub first: u64,
    /// Last seq.
    pub last: u64,
    /// Where it is.
    pub source: Source,
}

impl Piece {
    /// Sound data before what was declared, before what is merely known of.
    fn rank(&self) -> u8 {
        match self.source {
            Source::Frame { .. } => 0,
            Source::Lost(_) => 1,
            Source::Broken => 2,
        }
    }
}

/// How far a stream had got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// Some aggregator had acknowledged everything up to here.
    pub floor: u64,
    /// Records up to here may have been measured and be gone, because power may
    /// have been lost since. None: what was written is there.
    pub reserved: Option<u64>,
}

/// A spool, looked through.
#[derive(Debug)]
pub struct Spool {
    /// Whose it is.
    pub agent: AgentId,
    /// Runs that the agent noted down.
    pub runs: BTreeMap<RunId, NotedRun>,
    /// What there is of each stream, by first seq.
    pub streams: BTreeMap<StreamId, Vec<Piece>>,
    /// How far streams had got, where the spool's state tells.
    pub known: BTreeMap<StreamId, Known>,
    /// The state is damaged: losses that were declared there are not known.
    pub is_state_damaged: bool,
    /// Bytes that are no sound frame.
    pub damaged_bytes: u64,
    /// Held so that no agent begins to write meanwhile.
    _lock: Option<File>,
}

/// Whether `folder` looks like a spool.
pub fn is_spool(folder: &Path) -> bool {
    folder.is_dir()
        && (folder.join("files.json").is_file()
            || folder.join("runs.json").is_file()
            || numbered(folder).is_ok_and(|files| !files.is_empty()))
}

/// Spools in a folder that is an agent's data folder or its `spool`; the folder
/// itself if it is a spool.
pub fn find(folder: &Path) -> Vec<PathBuf> {
    if is_spool(folder) {
        return vec![folder.to_owned()];
    }
    let mut found = Vec::new();
    for parent in [folder.to_owned(), folder.join("spool")] {
        let Ok(entries) = std::fs::read_dir(&parent) else {
            continue;
        };
        found.extend(
            entries
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| is_spool(path)),
        );
    }
    found.sort();
    found
}

/// Segments and tails, in the order in which they were written.
fn numbered(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name
            .and_then(|name| {
                name.strip_prefix("segment-")
                    .or_else(|| name.strip_prefix("tail-"))
            })
            .and_then(|digits| digits.parse::<u64>().ok());
        if let Some(number) = number {
            files.push((number, path));
        }
    }
    files.sort();
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

impl Spool {
    /// Looks through the spool in `folder`, one file in memory at a time.
    ///
    /// # Errors
    /// When an agent has it, or it cannot be read. Damaged frames are no error:
    /// what they held becomes a hole or a loss.
    pub fn open(folder: &Path) -> Result<Self, SpoolError> {
        let whole = folder.canonicalize().map_err(io_error(folder))?;
        let agent = whole
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.parse().ok())
            .ok_or_else(|| SpoolError::NoAgent(folder.to_owned()))?;
        let lock = lock(folder)?;
        let mut spool = Self {
            agent,
            runs: BTreeMap::new(),
            streams: BTreeMap::new(),
            known: BTreeMap::new(),
            is_state_damaged: false,
            damaged_bytes: 0,
            _lock: lock,
        };
        for run in small::<Vec<NotedRun>>(&folder.join("runs.json"))?.unwrap_or_default() {
            spool.runs.insert(run.plan.run_id, run);
        }
        spool.heed_state(folder)?;
        for path in numbered(folder).map_err(io_error(folder))? {
            spool.look_through(&path)?;
        }
        for pieces in spool.streams.values_mut() {
            pieces.sort_by_key(|piece| (piece.first, piece.rank(), piece.last));
        }
        Ok(spool)
    }

    /// What is known beside the frames.
    fn heed_state(&mut self, folder: &Path) -> Result<(), SpoolError> {
        let path = folder.join(STATE_FILE);
        let state = match small_file::read(&path, SMALL_MOST) {
            // The layout before there was a state.
            Err(error) if error.kind() == io::ErrorKind::NotFound => State {
                losses: small(&folder.join("losses.json"))?.unwrap_or_default(),
                ..State::default()
            },
            Err(error) => return Err(io_error(&path)(error)),
            Ok(bytes) => match layout::decode(&bytes) {
                Ok(found) => found.state,
                Err(StateError::Damaged) => {
                    self.is_state_damaged = true;
                    State::default()
                }
                Err(error @ StateError::Version(_)) => {
                    return Err(SpoolError::Damaged {
                        path,
                        why: format!("{error}; import it with a newer gapscope-aggregator"),
                    });
                }
            },
        };
        // As long as the boot lasts in which it was written, what was written is
        // there.
        let power_lost = state.boot != Some(SystemClock::new().key().boot_id);
        for known in state.streams {
            let known_here = Known {
                floor: known.floor,
                reserved: known.reserved.filter(|_| power_lost),
            };
            self.known.insert(known.stream, known_here);
        }
        for loss in state.losses {
            if loss.first >= 1 && loss.first <= loss.last {
                let piece = Piece {
                    first: loss.first,
                    last: loss.last,
                    source: Source::Lost(loss),
                };
                self.streams.entry(loss.stream).or_default().push(piece);
            }
        }
        Ok(())
    }

    fn look_through(&mut self, path: &Path) -> Result<(), SpoolError> {
        let bytes = small_file::read(path, FILE_MOST).map_err(io_error(path))?;
        for (range, found) in walk(&bytes) {
            match found {
                Found::Frame(frame) => {
                    let piece = Piece {
                        first: frame.first_seq,
                        last: frame.last_seq(),
                        source: Source::Frame {
                            file: path.to_owned(),
                            range,
                        },
                    };
                    self.streams.entry(frame.stream).or_default().push(piece);
                }
                Found::Corrupt {
                    error: FrameError::Version(version),
                    ..
                } => {
                    return Err(SpoolError::Damaged {
                        path: path.to_owned(),
                        why: format!(
                            "its frames have format version {version}; import it with a newer \
                             gapscope-aggregator"
                        ),
                    });
                }
                Found::Corrupt { range, header, .. } => {
                    self.damaged_bytes += range.len() as u64;
                    if let Some(header) = header {
                        let piece = Piece {
                            first: header.first_seq,
                            last: header.last_seq(),
                            source: Source::Broken,
                        };
                        self.streams.entry(header.stream).or_default().push(piece);
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs of which there is something.
    pub fn run_ids(&self) -> Vec<RunId> {
        let mut ids: Vec<RunId> = self.streams.keys().map(|stream| stream.run).collect();
        ids.dedup();
        ids
    }

    /// Streams of a run, host records before samples: they tell whether the
    /// samples are all there.
    pub fn streams_of(&self, run: RunId) -> Vec<StreamId> {
        let all = self.streams.keys().chain(self.known.keys());
        let mut streams: Vec<StreamId> = all.filter(|s| s.run == run).copied().collect();
        streams.sort_by_key(|s| (s.incarnation, s.kind == StreamKind::Samples));
        streams.dedup();
        streams
    }
}

/// Reads frames, keeping the file it read last.
#[derive(Debug, Default)]
pub struct Reader {
    held: Option<(PathBuf, Vec<u8>)>,
}

impl Reader {
    /// The frame in these bytes of a file.
    ///
    /// # Errors
    /// When the file cannot be read again, or has changed since.
    pub fn frame(
        &mut self,
        file: &Path,
        range: &std::ops::Range<usize>,
    ) -> Result<Frame, SpoolError> {
        if self.held.as_ref().is_none_or(|(held, _)| held != file) {
            let bytes = small_file::read(file, FILE_MOST).map_err(io_error(file))?;
            self.held = Some((file.to_owned(), bytes));
        }
        let (_, bytes) = self.held.as_ref().expect("it was just read");
        let changed = |why: String| SpoolError::Damaged {
            path: file.to_owned(),
            why,
        };
        let bytes = bytes
            .get(range.clone())
            .ok_or_else(|| changed("it became shorter while it was read".to_owned()))?;
        Frame::from_bytes(bytes)
            .map(|(frame, _)| frame)
            .map_err(|error| changed(error.to_string()))
    }
}

/// Takes the agent's lock; none where there is no such file.
fn lock(folder: &Path) -> Result<Option<File>, SpoolError> {
    let path = folder.join("lock");
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io_error(&path))?,
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(SpoolError::InUse(folder.to_owned())),
        Err(error) => Err(io_error(&path)(error.into())),
    }
}

fn small<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, SpoolError> {
    let text = match small_file::read(path, SMALL_MOST) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io_error(path))?,
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|error| SpoolError::Damaged {
            path: path.to_owned(),
            why: error.to_string(),
        })
}
