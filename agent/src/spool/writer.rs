//! The thread that owns the spool: numbers records, writes tails, seals
//! segments, keeps the bounds, removes what is acknowledged.
//!
//! Syncing has a thread of its own, so that a slow disk delays no write. After a
//! failed write or sync the file is given up and a new one is begun; what was in
//! it and is still in memory is written again (seq numbers make that harmless).
//!
//! A record is numbered only when its number is reserved durably (see
//! `ledger`); reservations run seconds ahead, so that this waits for the disk
//! once, when a run begins.

mod books;
mod bounds;
mod ledger;
mod losses;
mod seal;
mod start;
mod streams;
mod tail;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::frame::{StreamId, StreamKind};
use gapscope_proto::host::HostRecord;
use gapscope_proto::ids::{Incarnation, RunId};
use gapscope_proto::spool::State;
use tokio::sync::{mpsc, oneshot};

use self::books::Books;
use self::ledger::Ledger;
use self::streams::{Encoded, OpenStream, Records};
use super::disk::{Disk, Kind};
use super::recover::Counts;
use super::settings::{Settings, SyncPolicy};
use super::state;
use super::sync::Syncer;
use super::vfs::VfsFile;
use super::{Command, Report, Spool, SpoolError};

/// What was written first waits at most so long to be sealed, and sent.
const SEAL_AFTER_NS: i64 = 1_000_000_000;
/// And so long where this many records of a stream wait with it: a frame's own bytes
/// then weigh little, and those who look at a run see it sooner.
const SEAL_SOON_NS: i64 = 500_000_000;
const SEAL_SOON_RECORDS: usize = 256;
/// Long ago: what is due since then is due now.
const AT_ONCE: i64 = i64::MIN / 2;
const SEAL_RECORDS: usize = 4_096;
/// Numbers that are reserved ahead: at least and at most.
const LEAST_RESERVED: u64 = 256;
const MOST_RESERVED: u64 = 1 << 20;
const QUEUE: usize = 32_768;
const BATCH: usize = 8_192;
/// Records of a stream kept in memory while nothing can be written.
const MOST_UNWRITTEN: usize = 16_384;
/// Records that come closer together than this are written together.
const GATHER: Duration = Duration::from_millis(2);
/// Between two attempts while nothing can be written.
const REST_NS: i64 = 250_000_000;

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

/// Opens and recovers the spool in `folder` and starts its threads.
pub fn open(
    folder: &Path,
    settings: &Settings,
    clock: Arc<dyn Clock>,
) -> Result<Opened, SpoolError> {
    let disk = Arc::new(Disk::open(folder)?);
    open_in(disk, settings, clock).map_err(|error| SpoolError::Io {
        path: folder.to_owned(),
        error,
    })
}

fn open_in(disk: Arc<Disk>, settings: &Settings, clock: Arc<dyn Clock>) -> std::io::Result<Opened> {
    let (commands, arriving) = mpsc::channel(QUEUE);
    let state = read_state(&disk);
    let syncer = Syncer::start(disk.clone(), settings.sync)?;
    let (writer, reports, counts) = Writer::start(disk.clone(), settings, clock, &state, syncer)?;
    let spool = Spool {
        commands,
        disk,
        bytes: writer.bytes.clone(),
        is_held: writer.is_held.clone(),
        incarnation: writer.incarnation,
    };
    let thread = std::thread::Builder::new()
        .name("spool".into())
        .spawn(move || writer.run(arriving))?;
    Ok(Opened {
        spool,
        reports,
        counts,
        thread,
    })
}

fn read_state(disk: &Disk) -> State {
    match state::read(disk) {
        Ok(read) => {
            if let Some(version) = read.newer {
                tracing::error!(
                    version,
                    "{} was written by a newer version of this program and is set aside",
                    state::STATE_FILE
                );
            } else if read.is_damaged {
                tracing::error!(
                    "{} is damaged: losses that were declared there and not yet delivered \
                     are not known any more",
                    state::STATE_FILE
                );
            }
            read.state.unwrap_or_default()
        }
        Err(error) => {
            tracing::error!(%error, "{} cannot be read", state::STATE_FILE);
            State::default()
        }
    }
}

struct Segment {
    number: u64,
    file: Arc<dyn VfsFile>,
    len: u64,
}

struct Tail {
    number: u64,
    file: Arc<dyn VfsFile>,
    len: u64,
}

struct Writer {
    disk: Arc<Disk>,
    clock: Arc<dyn Clock>,
    incarnation: Incarnation,
    settings: Settings,
    reports: mpsc::UnboundedSender<Report>,
    bytes: Arc<AtomicU64>,
    is_held: Arc<AtomicBool>,
    syncer: Syncer,
    ledger: Ledger,
    open: BTreeMap<StreamId, OpenStream>,
    /// Runs that are being probed.
    active: BTreeSet<RunId>,
    /// Runs whose host stream has its last record.
    ended: BTreeSet<RunId>,
    tail: Option<Tail>,
    /// Given up, removed behind the next seal; with their lengths.
    old_tails: Vec<(u64, u64)>,
    unsealed_since_ns: Option<i64>,
    /// Nothing can be written: tried again then.
    rest_until_ns: Option<i64>,
    last_sync_ns: i64,
    /// Where the state could not be saved: tried again then.
    save_again_ns: i64,
    /// Acknowledged, and to be removed behind the next save.
    unremoved: Vec<(Kind, u64)>,
    segments: BTreeMap<StreamKind, Segment>,
    /// Segments written to since the last sync was asked for.
    unsynced: BTreeMap<u64, Arc<dyn VfsFile>>,
    books: Books,
    /// From tails of an earlier start, not yet sealed.
    leftover: Vec<Encoded>,
    acked: BTreeMap<StreamId, u64>,
    /// What the disk lets the spool take.
    by_disk: u64,
    segment_limit: u64,
    tail_limit: u64,
    is_dropping: bool,
    has_complained: bool,
}

impl Writer {
    fn start(
        disk: Arc<Disk>,
        settings: &Settings,
        clock: Arc<dyn Clock>,
        state: &State,
        syncer: Syncer,
    ) -> std::io::Result<(Self, mpsc::UnboundedReceiver<Report>, Counts)> {
        // Not bounded by itself: each report stands for a frame on disk or a
        // loss, and the bytes on disk are bounded.
        let (reports, reported) = mpsc::unbounded_channel();
        let boot = clock.key().boot_id;
        let highest = disk.highest_number()?.map_or(1, |number| number + 1);
        let mut writer = Self {
            disk,
            clock,
            incarnation: Incarnation::generate(),
            settings: *settings,
            reports,
            bytes: Arc::default(),
            is_held: Arc::default(),
            syncer,
            ledger: Ledger::new(boot.clone(), state.next_file.max(highest)),
            open: BTreeMap::new(),
            active: BTreeSet::new(),
            ended: BTreeSet::new(),
            tail: None,
            old_tails: Vec::new(),
            unsealed_since_ns: None,
            rest_until_ns: None,
            last_sync_ns: 0,
            save_again_ns: 0,
            unremoved: Vec::new(),
            segments: BTreeMap::new(),
            unsynced: BTreeMap::new(),
            books: Books::default(),
            leftover: Vec::new(),
            acked: BTreeMap::new(),
            by_disk: u64::MAX,
            segment_limit: 1 << 20,
            tail_limit: 64 << 10,
            is_dropping: false,
            has_complained: false,
        };
        let counts = writer.recover(state, &boot)?;
        Ok((writer, reported, counts))
    }

    // ---------------------------------------------------------------- loop

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
        let news = self.syncer.news();
        let mut batch = Vec::with_capacity(BATCH);
        let mut written_ns = AT_ONCE;
        loop {
            let wait = self.until_next_duty();
            let open = runtime.block_on(async {
                tokio::select! {
                    received = arriving.recv_many(&mut batch, BATCH) => received > 0,
                    () = news.notified() => true,
                    () = tokio::time::sleep(wait) => true,
                }
            });
            if !open {
                break;
            }
            let has_come = !batch.is_empty();
            self.turn(&mut batch);
            // Each write and each wake-up costs more than a record.
            if has_come {
                let now_ns = self.clock.raw_ns();
                if now_ns.saturating_sub(written_ns) < GATHER.as_nanos() as i64 {
                    runtime.block_on(async { tokio::time::sleep(GATHER).await });
                }
                written_ns = self.clock.raw_ns();
            }
        }
        self.finish();
    }

    /// One wake-up: what has arrived is numbered and written, then whatever is
    /// due is done.
    fn turn(&mut self, batch: &mut Vec<Command>) {
        self.heed();
        let mut flushed = Vec::new();
        for command in batch.drain(..) {
            self.take(command, &mut flushed);
        }
        self.write_tail();
        let now = self.clock.raw_ns();
        if self.is_seal_due(now) || !flushed.is_empty() {
            self.seal();
        } else {
            self.sync_tail(now);
        }
        self.hold_probing();
        self.reserve_ahead();
        if !flushed.is_empty() {
            self.syncer.run_all();
            self.heed();
            for done in flushed {
                let _ = done.send(());
            }
        }
    }

    /// Nothing more will come.
    fn finish(&mut self) {
        self.seal();
        self.syncer.run_all();
        self.heed();
        let unsealed = self.open.values().any(|stream| stream.unsealed.len() > 0);
        if !unsealed && self.ledger.is_sound {
            let begun: BTreeSet<_> = self.open.keys().map(|id| id.run).collect();
            for run in begun.union(&std::mem::take(&mut self.active)) {
                self.end_streams(*run);
            }
            self.sync_all();
            self.save_now();
        }
        self.syncer.run_all();
    }

    fn is_resting(&self) -> bool {
        self.rest_until_ns
            .is_some_and(|until| self.clock.raw_ns() < until)
    }

    fn until_next_duty(&self) -> Duration {
        let now = self.clock.raw_ns();
        let mut next = now + 3_600_000_000_000;
        if let Some(since) = self.unsealed_since_ns {
            next = next.min(since.saturating_add(self.seal_after_ns()));
            if let SyncPolicy::Interval(every_ns) = self.settings.sync {
                next = next.min((self.last_sync_ns.saturating_add(every_ns)).max(now));
            }
        }
        if let Some(until) = self.rest_until_ns {
            next = next.max(until);
        }
        if self.ledger.has_failed {
            next = next.min(self.save_again_ns);
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
            Command::Prepare(run, samples, done) => {
                self.reserve_first(run, samples);
                let _ = done.send(());
            }
            Command::Begin(run, started) => {
                self.active.insert(run);
                self.reserve_first(run, 0);
                self.host(run, HostRecord::Started(started));
            }
            Command::End(run, ended) => {
                self.active.remove(&run);
                self.host(run, HostRecord::Ended(ended));
                self.ended.insert(run);
                // The last records should not wait for the clock.
                self.unsealed_since_ns = Some(AT_ONCE);
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
                self.ledger.lose(loss);
                self.save(Vec::new());
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
        let seq = self.open.get(&id).map_or(1, |stream| stream.next_seq);
        if seq > self.ledger.durable(&id) {
            self.ledger.open_stream(id);
            self.reserve(&id, seq);
        }
        let stream = self.open.entry(id).or_insert_with(|| OpenStream {
            next_seq: seq,
            unsealed: match kind {
                StreamKind::Samples => Records::Samples(Vec::new()),
                StreamKind::Host => Records::Host(Vec::new()),
            },
            in_tail: 0,
            recent: 0,
        });
        stream.next_seq += 1;
        stream
    }

    /// Numbers from `seq` on have to be reserved before they are used: waits.
    fn reserve(&mut self, id: &StreamId, seq: u64) {
        let ahead = self.open.get(id).map_or(64, OpenStream::ahead);
        self.ledger.want(id, seq - 1 + ahead);
        self.save_now();
    }

    /// Before the first slot, so that no sample of the run has to wait. Waits, unless
    /// that has been done.
    fn reserve_first(&mut self, run: RunId, samples: u64) {
        let mut is_done = true;
        for (kind, records) in [(StreamKind::Samples, samples), (StreamKind::Host, 0)] {
            let id = StreamId {
                run,
                incarnation: self.incarnation,
                kind,
            };
            let records = records.clamp(LEAST_RESERVED, MOST_RESERVED);
            self.ledger.open_stream(id);
            self.ledger.want(&id, records);
            is_done &= self.ledger.durable(&id) >= records;
        }
        if !is_done {
            self.save_now();
        }
    }

    /// Reserves numbers before they run out, behind the scenes.
    fn reserve_ahead(&mut self) {
        if self.ledger.is_saving() {
            return;
        }
        let is_short = self.open.iter().any(|(id, stream)| {
            let left = (self.ledger.wanted(id) + 1).saturating_sub(stream.next_seq);
            left < stream.ahead() / 2
        });
        let try_again = self.ledger.has_failed && self.clock.raw_ns() >= self.save_again_ns;
        if !is_short && !try_again {
            return;
        }
        for (id, stream) in &self.open {
            self.ledger.want(id, stream.next_seq - 1 + stream.ahead());
        }
        self.save(Vec::new());
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
