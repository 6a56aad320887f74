//! The thread that owns the spool: numbers records, writes tails, seals
//! segments, keeps the bound, removes what is acknowledged.
//!
//! Syncing has a thread of its own, so that a slow disk delays no write. After a
//! failed write or sync the file is given up and a new one is begun; what was in
//! it and is still in memory is written again (seq numbers make that harmless).

mod books;
mod bounds;
mod losses;
mod seal;
mod start;
mod streams;
mod tail;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::frame::{StreamId, StreamKind};
use gapscope_proto::host::HostRecord;
use gapscope_proto::ids::{Incarnation, RunId};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use self::books::Book;
use self::streams::{OpenStream, Records};
use super::disk::Disk;
use super::recover::Counts;
use super::sync::Syncer;
use super::{Command, Loss, Report, Spool, SpoolError};

const SEAL_AFTER_NS: i64 = 1_000_000_000;
const SEAL_RECORDS: usize = 4_096;
const SEAL_TAIL_BYTES: usize = 1 << 20;
const SYNC_EVERY_NS: i64 = 100_000_000;
const SEGMENT_BYTES: u64 = 16 << 20;
const QUEUE: usize = 65_536;
const BATCH: usize = 8_192;
const FRAME_RECORDS: usize = 8_192;
/// Longer frames are split: the wire allows 1 MiB, in another coding.
const FRAME_BYTES: usize = 512 << 10;
/// Records kept in memory while nothing can be written.
const MOST_UNWRITTEN: usize = 200_000;
const RESERVE_NUMBERS: u64 = 10_000;
const LOSSES_FILE: &str = "losses.json";
const FILES_FILE: &str = "files.json";

/// A running spool.
#[derive(Debug)]
pub struct Opened {
    /// The way in.
    pub spool: Spool,
    /// What can be sent, or never will be; what was found comes first.
    pub reports: mpsc::UnboundedReceiver<Report>,
    /// What recovery had to do.
    pub counts: Counts,
    /// Ends when all handles are dropped and everything is sealed and synced.
    pub thread: std::thread::JoinHandle<()>,
}

#[derive(Serialize, Deserialize)]
struct FileNumbers {
    version: u32,
    next: u64,
}

/// Opens and recovers the spool in `folder` and starts its threads.
pub fn open(folder: &Path, max_bytes: u64, clock: Arc<dyn Clock>) -> Result<Opened, SpoolError> {
    let wrong = |error| SpoolError::Io {
        path: folder.to_owned(),
        error,
    };
    let disk = Arc::new(Disk::open(folder)?);
    let incarnation = Incarnation::generate();
    let (commands, arriving) = mpsc::channel(QUEUE);
    // Not bounded by itself: each report stands for a frame on disk or a loss,
    // and the bytes on disk are bounded.
    let (reports, reported) = mpsc::unbounded_channel();
    let bytes = Arc::new(AtomicU64::new(0));
    let syncer = Syncer::start(disk.clone()).map_err(wrong)?;
    let mut writer = Writer {
        disk: disk.clone(),
        clock,
        incarnation,
        max_bytes,
        reports,
        bytes: bytes.clone(),
        syncer,
        next_number: 1,
        reserved: 0,
        open: BTreeMap::new(),
        active: HashSet::new(),
        ended: HashSet::new(),
        tail: None,
        tail_bytes: 0,
        unsealed_since_ns: None,
        old_tails: Vec::new(),
        last_sync_ns: 0,
        segment: None,
        books: BTreeMap::new(),
        acked: HashMap::new(),
        losses: Vec::new(),
    };
    let counts = writer.recover().map_err(wrong)?;
    let thread = std::thread::Builder::new()
        .name("spool".into())
        .spawn(move || writer.run(arriving))
        .map_err(wrong)?;
    Ok(Opened {
        spool: Spool::new(commands, disk, bytes, incarnation),
        reports: reported,
        counts,
        thread,
    })
}

struct Segment {
    number: u64,
    file: Arc<File>,
    len: u64,
}

struct Writer {
    disk: Arc<Disk>,
    clock: Arc<dyn Clock>,
    incarnation: Incarnation,
    max_bytes: u64,
    reports: mpsc::UnboundedSender<Report>,
    bytes: Arc<AtomicU64>,
    syncer: Syncer,
    next_number: u64,
    reserved: u64,
    open: BTreeMap<StreamId, OpenStream>,
    /// Runs that are being probed.
    active: HashSet<RunId>,
    /// Runs whose host stream has its last record.
    ended: HashSet<RunId>,
    tail: Option<(u64, Arc<File>)>,
    tail_bytes: usize,
    unsealed_since_ns: Option<i64>,
    /// Given up, removed at the next seal.
    old_tails: Vec<u64>,
    last_sync_ns: i64,
    segment: Option<Segment>,
    books: BTreeMap<u64, Book>,
    acked: HashMap<StreamId, u64>,
    losses: Vec<Loss>,
}

impl Writer {
    fn run(mut self, mut arriving: mpsc::Receiver<Command>) {
        let runtime = match tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
        {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!(%error, "the spool cannot wait");
                return;
            }
        };
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let wait = self.until_next_duty();
            let received = runtime.block_on(async {
                tokio::time::timeout(wait, arriving.recv_many(&mut batch, BATCH)).await
            });
            if received == Ok(0) {
                break;
            }
            let mut flushed = Vec::new();
            for command in batch.drain(..) {
                self.take(command, &mut flushed);
            }
            self.write_tail();
            let now = self.clock.raw_ns();
            if self.syncer.failed.swap(false, Ordering::SeqCst) {
                self.give_files_up();
            }
            if self.is_seal_due(now) || !flushed.is_empty() {
                self.seal();
            } else if now.saturating_sub(self.last_sync_ns) >= SYNC_EVERY_NS {
                self.sync_tail(now);
            }
            for done in flushed {
                self.syncer.run_all();
                let _ = done.send(());
            }
        }
        self.seal();
        self.syncer.run_all();
    }

    fn until_next_duty(&self) -> Duration {
        let now = self.clock.raw_ns();
        let mut next = now + 3_600_000_000_000;
        if let Some(since) = self.unsealed_since_ns {
            next = next
                .min(since + SEAL_AFTER_NS)
                .min((self.last_sync_ns + SYNC_EVERY_NS).max(now));
        }
        Duration::from_nanos(u64::try_from(next - now).unwrap_or(0).max(1_000_000))
    }

    fn take(&mut self, command: Command, flushed: &mut Vec<oneshot::Sender<()>>) {
        match command {
            Command::Sample(run, sample) => {
                if let Records::Samples(samples) =
                    &mut self.stream(run, StreamKind::Samples).unsealed
                {
                    samples.push(*sample);
                }
            }
            Command::Begin(run, started) => {
                self.active.insert(run);
                self.host(run, HostRecord::Started(started));
            }
            Command::End(run, ended) => {
                self.active.remove(&run);
                self.host(run, HostRecord::Ended(ended));
                self.ended.insert(run);
                // The last records should not wait for the clock.
                self.unsealed_since_ns = Some(i64::MIN / 2);
            }
            Command::HostForAll(record) => {
                for run in self.active.clone() {
                    self.host(run, record.clone());
                }
            }
            Command::Host(run, record) => {
                if self.active.contains(&run) {
                    self.host(run, record);
                }
            }
            Command::Acked(stream, seq) => {
                let acked = self.acked.entry(stream).or_default();
                *acked = seq.max(*acked);
                self.remove_acked();
            }
            Command::Lost(loss) => {
                // The uplink knows already; it only has to survive.
                self.remember(loss);
            }
            Command::Flush(done) => flushed.push(done),
        }
    }

    fn host(&mut self, run: RunId, record: HostRecord) {
        if let Records::Host(records) = &mut self.stream(run, StreamKind::Host).unsealed {
            records.push(record);
        }
    }

    /// The stream, with its next seq taken for a record that is pushed next.
    fn stream(&mut self, run: RunId, kind: StreamKind) -> &mut OpenStream {
        let id = StreamId {
            run,
            incarnation: self.incarnation,
            kind,
        };
        if self.unsealed_since_ns.is_none() {
            self.unsealed_since_ns = Some(self.clock.raw_ns());
        }
        let stream = self.open.entry(id).or_insert_with(|| OpenStream {
            next_seq: 1,
            unsealed: match kind {
                StreamKind::Samples => Records::Samples(Vec::new()),
                StreamKind::Host => Records::Host(Vec::new()),
            },
            in_tail: 0,
        });
        stream.next_seq += 1;
        stream
    }
}

#[cfg(test)]
mod tests;
