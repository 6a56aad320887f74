//! The queue on disk between probing and the uplink: bounded, checksummed, and
//! the only write-ahead log there is.
//!
//! Records are numbered by one thread, the [`writer`], which owns the folder. At
//! each wake-up it writes all it has been given as small frames into an open
//! tail file, with one write, before anything else. Once a second, twice where much
//! waits, or after enough records, it seals: the same records as few large frames into a segment
//! file; then a new tail begins, and the old one is removed when the segment is
//! synced. A crash between leaves both, and seq numbers tell ([`recover`]).
//!
//! ```text
//! <data>/spool/<agent id>/
//!   lock                          held while an agent runs
//!   segment-00000000000000000001  sealed frames; removed when all acknowledged
//!   tail-00000000000000000002     small frames since the last seal
//!   state.1                       losses, reserved numbers, what is acknowledged
//!   runs.json                     runs of this agent: plan, origin, planned end
//! ```
//!
//! Everything goes through a [`vfs::Vfs`], so that tests can make a disk fail,
//! fill up and forget. `agent/docs/spool.md` has the guarantees, and which test
//! shows which.
//!
//! What it cannot know: after a loss of power, how many records had been
//! measured since the last sync, only at most how many.

pub mod disk;
pub mod look;
pub mod recover;
pub mod settings;
mod state;
mod sync;
pub mod vfs;
pub mod writer;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gapscope_proto::frame::{Frame, StreamId};
use gapscope_proto::host::{HostRecord, ProbingEnded, ProbingStarted};
use gapscope_proto::ids::{Incarnation, RunId};
use gapscope_proto::sample::Sample;
pub use gapscope_proto::spool::{Loss, LossReason};
use tokio::sync::{mpsc, oneshot};

use disk::Disk;
use settings::SyncPolicy;

/// Where a sealed frame stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameRef {
    /// Its stream.
    pub stream: StreamId,
    /// Seq of the first record that is to be taken from it: others before may
    /// stand in another frame too.
    pub first: u64,
    /// Seq of its last record.
    pub last: u64,
    /// Number of the segment file.
    pub segment: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u32,
}

/// What the writer is told.
#[derive(Debug)]
pub(crate) enum Command {
    Sample(RunId, Box<Sample>),
    /// Reserve numbers for a run that is about to begin: so many samples. Then answer.
    Prepare(RunId, u64, oneshot::Sender<()>),
    Begin(RunId, ProbingStarted),
    End(RunId, ProbingEnded),
    /// Into the host stream of every run that is being probed.
    HostForAll(HostRecord),
    /// Into the host stream of one run that has begun and not ended.
    Host(RunId, HostRecord),
    /// Everything of the stream up to this seq is durable elsewhere.
    Acked(StreamId, u64),
    /// Found by the uplink: a frame that cannot be read, or is refused for good.
    Lost(Loss),
    /// Seal and sync, then answer.
    Flush(oneshot::Sender<()>),
}

/// What the writer tells the uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// A frame can be sent.
    Sealed(FrameRef),
    /// A range will never come; frames in it are gone.
    Lost(Loss),
}

/// Why a spool cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// Another agent has it.
    #[error("the spool `{}` is in use by another agent", .0.display())]
    InUse(PathBuf),
    /// The file system says no.
    #[error("the spool `{}` cannot be used: {error}", .path.display())]
    Io {
        /// Which folder.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// The way into the spool. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Spool {
    commands: mpsc::Sender<Command>,
    disk: Arc<Disk>,
    bytes: Arc<AtomicU64>,
    is_held: Arc<AtomicBool>,
    incarnation: Incarnation,
}

impl Spool {
    /// Whether probing has to stand still: there is no room, and the policy is
    /// to lose nothing.
    pub fn holds_probing(&self) -> bool {
        self.is_held.load(Ordering::Relaxed)
    }

    /// The incarnation of all records spooled through this handle.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The folder, for what else is kept there.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Spools a sample; waits while the writer is behind.
    pub async fn sample(&self, run: RunId, sample: Sample) {
        self.tell(Command::Sample(run, Box::new(sample))).await;
    }

    /// Has numbers for about so many samples of a run reserved durably. Done before
    /// a run's first slot, no sample of it waits for the disk: what waits would be
    /// lost if the agent was killed.
    pub async fn prepare(&self, run: RunId, samples: u64) {
        let (done, finished) = oneshot::channel();
        self.tell(Command::Prepare(run, samples, done)).await;
        let _ = finished.await;
    }

    /// Begins the host stream of a run.
    pub async fn begin(&self, run: RunId, started: ProbingStarted) {
        self.tell(Command::Begin(run, started)).await;
    }

    /// Ends both streams of a run; its last record.
    pub async fn end(&self, run: RunId, ended: ProbingEnded) {
        self.tell(Command::End(run, ended)).await;
    }

    /// Into the host stream of every run that is being probed.
    pub async fn host_for_all(&self, record: HostRecord) {
        self.tell(Command::HostForAll(record)).await;
    }

    /// Into the host stream of a run, between its begin and its end.
    pub async fn host(&self, run: RunId, record: HostRecord) {
        self.tell(Command::Host(run, record)).await;
    }

    /// Everything up to `seq` is durable at the aggregator.
    pub async fn acked(&self, stream: StreamId, seq: u64) {
        self.tell(Command::Acked(stream, seq)).await;
    }

    /// A loss that the uplink found.
    pub async fn lost(&self, loss: Loss) {
        self.tell(Command::Lost(loss)).await;
    }

    /// Returns when all that was spooled before is sealed and synced.
    pub async fn flush(&self) {
        let (done, finished) = oneshot::channel();
        self.tell(Command::Flush(done)).await;
        let _ = finished.await;
    }

    /// Reads a sealed frame.
    pub async fn read(&self, frame: FrameRef) -> Result<Frame, String> {
        let disk = self.disk.clone();
        tokio::task::spawn_blocking(move || {
            let bytes = disk
                .read_range(frame.segment, frame.offset, frame.len as usize)
                .map_err(|error| error.to_string())?;
            let (decoded, _) = Frame::from_bytes(&bytes).map_err(|error| error.to_string())?;
            if decoded.stream != frame.stream
                || decoded.first_seq > frame.first
                || decoded.last_seq() != frame.last
            {
                return Err("another frame stands there".to_owned());
            }
            recover::trimmed(decoded, frame.first)
                .ok_or_else(|| "the frame holds less than it should".to_owned())
        })
        .await
        .map_err(|error| error.to_string())?
    }

    async fn tell(&self, command: Command) {
        if self.commands.send(command).await.is_err() {
            tracing::error!("the spool's writer has ended; a record is lost");
        }
    }
}
