//! What a run's task is asked, and what it tells.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::batch::{InvalidColumns, Row, Series};
use gapscope_proto::fault::Fault;
use gapscope_proto::frame::{Body, Frame, StreamId};
use gapscope_proto::host::HostRecord;
use gapscope_proto::ids::AgentId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::accounts::Account;
use super::run::ROOM_BYTES;
use super::session::Session;
use crate::live::feed::Feed;
use crate::store::manifest::{AgentEntry, Manifest, RunState};
use crate::store::{LossRecord, StoreError};

/// A frame that has come, decoded.
#[derive(Debug)]
pub struct Arrived {
    /// Of which stream.
    pub stream: StreamId,
    /// Seq of the first record.
    pub first_seq: u64,
    /// The records.
    pub records: Records,
}

/// The records of a frame.
#[derive(Debug)]
pub enum Records {
    /// Samples: what they have in common, and each one's own.
    Samples(Vec<Series>, Vec<Row>),
    /// Host records.
    Host(Vec<HostRecord>),
}

impl Arrived {
    /// About how much memory it takes. `encoded` is its length as it came: texts are
    /// no longer than that.
    pub fn bytes(&self, encoded: usize) -> usize {
        let own = match &self.records {
            Records::Samples(series, rows) => {
                size_of_val(series.as_slice()) + size_of_val(rows.as_slice())
            }
            Records::Host(records) => size_of_val(records.as_slice()),
        };
        own + encoded
    }
}

impl TryFrom<Frame> for Arrived {
    type Error = InvalidColumns;
    fn try_from(frame: Frame) -> Result<Self, InvalidColumns> {
        Ok(Self {
            stream: frame.stream,
            first_seq: frame.first_seq,
            records: match frame.body {
                Body::Samples(columns) => {
                    let rows = columns.rows()?;
                    Records::Samples(columns.series, rows)
                }
                Body::Host(records) => Records::Host(records),
            },
        })
    }
}

impl Records {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Self::Samples(_, rows) => rows.len(),
            Self::Host(records) => records.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a run's task is asked.
#[derive(Debug)]
pub enum Command {
    /// Records from an agent, and the room they take until they are handled.
    Frame(Arc<Session>, Box<Arrived>, Option<OwnedSemaphorePermit>),
    /// A declared loss.
    Loss(Arc<Session>, LossRecord),
    /// An agent's session begins; how far are these streams?
    Attach {
        /// The session.
        session: Arc<Session>,
        /// The agent as it presents itself.
        entry: Box<AgentEntry>,
        /// Its streams for this run, with the last seq written.
        streams: Vec<(StreamId, u64)>,
        /// Whether it says that it is probing for this run.
        is_probing: bool,
        /// Durable seq of each, in the same order.
        reply: oneshot::Sender<Vec<u64>>,
    },
    /// A fault, or more about one.
    Fault(Fault, oneshot::Sender<Result<u32, StoreError>>),
    /// Something to be said against the data.
    Caveat(String),
    /// Wait for what is missing, then close.
    Stop {
        /// Why.
        reason: String,
        /// How long to wait.
        drain: Duration,
        /// How it went.
        reply: oneshot::Sender<Result<Closed, String>>,
    },
}

/// How a close went.
#[derive(Debug, Clone)]
pub struct Closed {
    /// Where the run is.
    pub folder: PathBuf,
    /// What had not come.
    pub missing: Vec<String>,
    /// What became of each agent's samples.
    pub accounts: Vec<Account>,
}

/// How a run stands, for those who watch it.
#[derive(Debug, Clone)]
pub struct Status {
    /// State.
    pub state: RunState,
    /// Whether somebody waits for its close.
    pub is_stopping: bool,
    /// Samples durable.
    pub samples: u64,
    /// Agents of which something has arrived.
    pub seen: Vec<AgentId>,
    /// What has not come yet.
    pub missing: Vec<String>,
    /// Why nothing can be written at present.
    pub trouble: Option<String>,
}

/// Talks to a run's task.
#[derive(Debug, Clone)]
pub struct Handle {
    /// Its queue.
    pub commands: mpsc::Sender<Command>,
    /// The agents that were chosen for it.
    pub chosen: Arc<BTreeSet<AgentId>>,
    /// Its manifest as it was when the task began: plan and begin do not change.
    pub opened: Arc<Manifest>,
    /// Room for what waits in the queue, in bytes.
    pub room: Arc<Semaphore>,
    /// For those who watch it.
    pub feed: Arc<Feed>,
    /// How it stands.
    pub status: watch::Receiver<Status>,
    /// Done when the task has ended and the folder is free.
    pub ended: CancellationToken,
}

impl Handle {
    /// Whether this run takes something from a session.
    pub fn takes_part(&self, session: &Session) -> bool {
        !session.only_its_runs || self.chosen.contains(&session.agent)
    }

    /// Waits for room for a frame of so many bytes.
    pub async fn room(&self, bytes: usize) -> OwnedSemaphorePermit {
        let bytes = u32::try_from(bytes.min(ROOM_BYTES)).unwrap_or(u32::MAX);
        self.room
            .clone()
            .acquire_many_owned(bytes)
            .await
            .expect("it is never closed")
    }
}
