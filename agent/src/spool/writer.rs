//! The thread that owns the spool: numbers records, writes tails, seals
//! segments, keeps the bound, removes what is acknowledged.
//!
//! Syncing has a thread of its own, so that a slow disk delays no write. After a
//! failed write or sync the file is given up and a new one is begun; what was in
//! it and is still in memory is written again (seq numbers make that harmless).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gapscope_proto::batch::Columns;
use gapscope_proto::clock::Clock;
use gapscope_proto::frame::{Body, Frame, StreamId, StreamKind};
use gapscope_proto::host::HostRecord;
use gapscope_proto::ids::{Incarnation, RunId};
use gapscope_proto::sample::Sample;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::disk::{Disk, Kind};
use super::recover::{Counts, Recovery, merged};
use super::sync::Syncer;
use super::{Command, FrameRef, Loss, LossReason, Report, Spool, SpoolError};

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

#[derive(Debug)]
enum Records {
    Samples(Vec<Sample>),
    Host(Vec<HostRecord>),
}

impl Records {
    fn len(&self) -> usize {
        match self {
            Self::Samples(samples) => samples.len(),
            Self::Host(records) => records.len(),
        }
    }

    fn body(&self, range: std::ops::Range<usize>) -> Body {
        match self {
            Self::Samples(samples) => Body::Samples(Columns::encode(&samples[range])),
            Self::Host(records) => Body::Host(records[range].to_vec()),
        }
    }
}

/// A stream of this incarnation.
#[derive(Debug)]
struct OpenStream {
    next_seq: u64,
    /// Not yet sealed.
    unsealed: Records,
    /// How many of them already stand in a tail.
    in_tail: usize,
}

impl OpenStream {
    fn first_unsealed(&self) -> u64 {
        self.next_seq - self.unsealed.len() as u64
    }
}

#[derive(Debug, Default)]
struct Book {
    bytes: u64,
    ranges: Vec<(StreamId, u64, u64)>,
}

impl Book {
    fn add(&mut self, frame: &FrameRef) {
        self.bytes = self.bytes.max(frame.offset + u64::from(frame.len));
        if let Some((_, _, last)) = self
            .ranges
            .iter_mut()
            .find(|(stream, _, last)| *stream == frame.stream && *last + 1 == frame.first)
        {
            *last = frame.last;
        } else {
            self.ranges.push((frame.stream, frame.first, frame.last));
        }
    }
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
    // ------------------------------------------------------------ recovery

    fn recover(&mut self) -> std::io::Result<Counts> {
        let mut recovery = Recovery::default();
        let segments = self.disk.files(Kind::Segment)?;
        let tails = self.disk.files(Kind::Tail)?;
        let reserved = match self.disk.small(FILES_FILE)? {
            Some(bytes) => serde_json::from_slice::<FileNumbers>(&bytes).map_or(0, |n| n.next),
            None => 0,
        };
        let highest = segments.iter().chain(&tails).map(|(n, _)| *n).max();
        self.next_number = reserved.max(highest.map_or(1, |n| n + 1)).max(1);
        for (number, len) in &segments {
            match self.disk.read(Kind::Segment, *number) {
                Ok(bytes) => recovery.segment(*number, &bytes),
                Err(error) => {
                    tracing::error!(segment = number, %error, "a spool file cannot be read");
                }
            }
            self.books.entry(*number).or_default().bytes = *len;
        }
        for (number, _) in &tails {
            match self.disk.read(Kind::Tail, *number) {
                Ok(bytes) => recovery.tail(&bytes),
                Err(error) => tracing::error!(tail = number, %error, "a spool file cannot be read"),
            }
        }
        if let Some(bytes) = self.disk.small(LOSSES_FILE)? {
            match serde_json::from_slice::<Vec<Loss>>(&bytes) {
                Ok(losses) => losses.into_iter().for_each(|loss| recovery.loss(loss)),
                Err(error) => tracing::error!(%error, "{LOSSES_FILE} cannot be read"),
            }
        }
        let found = recovery.finish();
        for frame in &found.sealed {
            self.books.entry(frame.segment).or_default().add(frame);
            self.report(Report::Sealed(*frame));
        }
        let mut frames = Vec::new();
        for frame in merged(found.unsealed) {
            let last = frame.last_seq();
            match frame.to_bytes() {
                Ok(bytes) => frames.push((frame.stream, frame.first_seq, last, bytes)),
                Err(error) => {
                    tracing::error!(%error, "records of a tail cannot be sealed");
                    self.declare(Loss::exact(
                        frame.stream,
                        frame.first_seq,
                        last,
                        LossReason::Corrupt,
                    ));
                }
            }
        }
        // Tails stay until their records stand elsewhere.
        if frames.is_empty() || self.write_segment(frames).is_ok() {
            if let Some(segment) = &self.segment {
                segment.file.sync_data()?;
            }
            for (number, _) in tails {
                self.disk.remove(Kind::Tail, number)?;
            }
        }
        for loss in found.losses {
            self.declare(loss);
        }
        // Segments without one sound frame are of no more use.
        self.remove_acked();
        self.count_bytes();
        Ok(found.counts)
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

    // --------------------------------------------------------------- tails

    fn write_tail(&mut self) {
        let mut bytes = Vec::new();
        for (id, stream) in &mut self.open {
            let count = stream.unsealed.len();
            if count == stream.in_tail {
                continue;
            }
            let frame = Frame {
                stream: *id,
                first_seq: stream.first_unsealed() + stream.in_tail as u64,
                body: stream.unsealed.body(stream.in_tail..count),
            };
            match frame.to_bytes() {
                Ok(encoded) => bytes.extend_from_slice(&encoded),
                // Too long for one frame: the seal, which splits, comes at once.
                Err(error) => tracing::debug!(%error, "not written to the tail"),
            }
            stream.in_tail = count;
        }
        if bytes.is_empty() {
            return;
        }
        self.tail_bytes += bytes.len();
        for attempt in 0..2 {
            let Some(file) = self.tail_file() else { break };
            match (&*file).write_all(&bytes) {
                Ok(()) => {
                    self.count_bytes();
                    return;
                }
                Err(error) => {
                    tracing::error!(%error, attempt, "writing to the spool's tail failed; the file is given up");
                    if let Some((number, _)) = self.tail.take() {
                        self.old_tails.push(number);
                    }
                }
            }
        }
        // Still in memory: seal as soon as possible.
        self.unsealed_since_ns = Some(i64::MIN / 2);
    }

    fn tail_file(&mut self) -> Option<Arc<File>> {
        if let Some((_, file)) = &self.tail {
            return Some(file.clone());
        }
        let number = self.new_number();
        match self.disk.create(Kind::Tail, number) {
            Ok(file) => {
                let file = Arc::new(file);
                self.tail = Some((number, file.clone()));
                self.syncer.folder_changed();
                Some(file)
            }
            Err(error) => {
                tracing::error!(%error, "no tail file can be made");
                None
            }
        }
    }

    fn sync_tail(&mut self, now: i64) {
        self.last_sync_ns = now;
        if let Some((_, file)) = &self.tail
            && self.tail_bytes > 0
        {
            self.syncer.sync_soon(file.clone());
        }
    }

    // ------------------------------------------------------------- sealing

    fn is_seal_due(&self, now: i64) -> bool {
        self.unsealed_since_ns
            .is_some_and(|since| now.saturating_sub(since) >= SEAL_AFTER_NS)
            || self.tail_bytes >= SEAL_TAIL_BYTES
            || self
                .open
                .values()
                .any(|stream| stream.unsealed.len() >= SEAL_RECORDS)
    }

    fn seal(&mut self) {
        let mut frames = Vec::new();
        let mut unreadable = Vec::new();
        for (id, stream) in &self.open {
            let first = stream.first_unsealed();
            let mut ranges: Vec<_> = (0..stream.unsealed.len())
                .step_by(FRAME_RECORDS)
                .map(|from| from..(from + FRAME_RECORDS).min(stream.unsealed.len()))
                .rev()
                .collect();
            while let Some(range) = ranges.pop() {
                let from = first + range.start as u64;
                let last = first + range.end as u64 - 1;
                let frame = Frame {
                    stream: *id,
                    first_seq: from,
                    body: stream.unsealed.body(range.clone()),
                };
                match frame.to_bytes() {
                    Ok(bytes) if bytes.len() <= FRAME_BYTES || range.len() == 1 => {
                        frames.push((*id, from, last, bytes));
                    }
                    _ if range.len() > 1 => {
                        let middle = range.start + range.len() / 2;
                        ranges.push(middle..range.end);
                        ranges.push(range.start..middle);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::error!(%error, "a record cannot be encoded");
                        unreadable.push(Loss::exact(*id, from, last, LossReason::Corrupt));
                    }
                }
            }
        }
        if frames.is_empty() && unreadable.is_empty() {
            self.unsealed_since_ns = None;
            return;
        }
        let added: u64 = frames
            .iter()
            .map(|(_, _, _, bytes)| bytes.len() as u64)
            .sum();
        self.make_room(added);
        if let Err(error) = self.write_segment(frames) {
            self.keep_or_lose(&error);
            return;
        }
        for loss in unreadable {
            self.declare(loss);
        }
        for stream in self.open.values_mut() {
            stream.in_tail = 0;
            match &mut stream.unsealed {
                Records::Samples(samples) => samples.clear(),
                Records::Host(records) => records.clear(),
            }
        }
        let ended = std::mem::take(&mut self.ended);
        self.open.retain(|id, _| !ended.contains(&id.run));
        self.unsealed_since_ns = None;
        self.tail_bytes = 0;
        let mut tails = std::mem::take(&mut self.old_tails);
        tails.extend(self.tail.take().map(|(number, _)| number));
        if let Some(segment) = &self.segment {
            self.syncer.sync_then_remove(segment.file.clone(), tails);
        }
        if self
            .segment
            .as_ref()
            .is_some_and(|s| s.len >= SEGMENT_BYTES)
        {
            self.segment = None;
        }
        self.last_sync_ns = self.clock.raw_ns();
        self.count_bytes();
    }

    /// Nothing could be written. What is in memory is tried again in a second,
    /// until there is too much of it.
    fn keep_or_lose(&mut self, error: &std::io::Error) {
        tracing::error!(%error, "sealing failed; records stay in memory");
        self.unsealed_since_ns = Some(self.clock.raw_ns());
        let reason = if error.kind() == std::io::ErrorKind::StorageFull {
            LossReason::DiskFull
        } else {
            LossReason::WriteFailed
        };
        let mut losses = Vec::new();
        for (id, stream) in &mut self.open {
            if stream.unsealed.len() > MOST_UNWRITTEN {
                losses.push(Loss::exact(
                    *id,
                    stream.first_unsealed(),
                    stream.next_seq - 1,
                    reason,
                ));
                match &mut stream.unsealed {
                    Records::Samples(samples) => samples.clear(),
                    Records::Host(records) => records.clear(),
                }
                stream.in_tail = 0;
            }
        }
        for loss in losses {
            self.declare(loss);
        }
    }

    fn write_segment(&mut self, frames: Vec<(StreamId, u64, u64, Vec<u8>)>) -> std::io::Result<()> {
        let bytes: Vec<u8> = frames
            .iter()
            .flat_map(|(_, _, _, bytes)| bytes.iter().copied())
            .collect();
        let mut result = Ok(());
        for attempt in 0..2 {
            result = self.append(&bytes);
            match &result {
                Ok(()) => break,
                Err(error) => {
                    tracing::error!(%error, attempt, "writing a segment failed; the file is given up");
                    self.segment = None;
                    if error.kind() == std::io::ErrorKind::StorageFull {
                        self.drop_oldest(LossReason::DiskFull);
                    }
                }
            }
        }
        result?;
        let segment = self.segment.as_ref().expect("just written to");
        let (number, mut offset) = (segment.number, segment.len - bytes.len() as u64);
        for (stream, first, last, bytes) in frames {
            let frame = FrameRef {
                stream,
                first,
                last,
                segment: number,
                offset,
                len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            };
            offset += bytes.len() as u64;
            self.books.entry(number).or_default().add(&frame);
            self.report(Report::Sealed(frame));
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        if self.segment.is_none() {
            let number = self.new_number();
            let file = Arc::new(self.disk.create(Kind::Segment, number)?);
            self.syncer.folder_changed();
            self.books.insert(number, Book::default());
            self.segment = Some(Segment {
                number,
                file,
                len: 0,
            });
        }
        let segment = self.segment.as_mut().expect("made above");
        (&*segment.file).write_all(bytes)?;
        segment.len += bytes.len() as u64;
        Ok(())
    }

    /// A sync failed: what the kernel still holds of these files is not known.
    fn give_files_up(&mut self) {
        tracing::error!("syncing the spool failed; its open files are given up");
        if let Some((number, _)) = self.tail.take() {
            self.old_tails.push(number);
        }
        self.segment = None;
        self.unsealed_since_ns = self.unsealed_since_ns.map(|_| i64::MIN / 2);
    }

    // --------------------------------------------------- bound and removal

    fn make_room(&mut self, added: u64) {
        while self.total_bytes() + added > self.max_bytes && !self.books.is_empty() {
            self.drop_oldest(LossReason::SpoolFull);
        }
    }

    fn drop_oldest(&mut self, reason: LossReason) {
        let Some((number, book)) = self.books.pop_first() else {
            return;
        };
        if self.segment.as_ref().is_some_and(|s| s.number == number) {
            self.segment = None;
        }
        for (stream, first, last) in book.ranges {
            let first = first.max(self.acked.get(&stream).map_or(0, |acked| acked + 1));
            if first <= last {
                let loss = Loss::exact(stream, first, last, reason);
                tracing::error!(
                    run = %stream.run, first, last, ?reason,
                    "the spool is full: its oldest records are given up"
                );
                self.declare(loss);
            }
        }
        self.remove_segment(number);
    }

    fn remove_acked(&mut self) {
        let current = self.segment.as_ref().map(|segment| segment.number);
        let idle = self.active.is_empty() && self.unsealed_since_ns.is_none();
        let done: Vec<_> =
            self.books
                .iter()
                .filter(|(number, book)| {
                    (Some(**number) != current || idle)
                        && book.ranges.iter().all(|(stream, _, last)| {
                            self.acked.get(stream).is_some_and(|a| a >= last)
                        })
                })
                .map(|(number, _)| *number)
                .collect();
        for number in done {
            if Some(number) == current {
                self.segment = None;
            }
            self.books.remove(&number);
            self.remove_segment(number);
        }
        let before = self.losses.len();
        let acked = &self.acked;
        self.losses
            .retain(|loss| acked.get(&loss.stream).is_none_or(|a| *a < loss.last));
        if self.losses.len() != before {
            self.save_losses();
        }
        self.count_bytes();
    }

    fn remove_segment(&self, number: u64) {
        if let Err(error) = self.disk.remove(Kind::Segment, number) {
            tracing::error!(segment = number, %error, "a spool file cannot be removed");
        }
    }

    fn total_bytes(&self) -> u64 {
        let segments: u64 = self.books.values().map(|book| book.bytes).sum();
        segments + self.tail_bytes as u64
    }

    fn count_bytes(&self) {
        self.bytes.store(self.total_bytes(), Ordering::Relaxed);
    }

    // -------------------------------------------------------------- losses

    fn declare(&mut self, loss: Loss) {
        self.remember(loss);
        self.report(Report::Lost(loss));
    }

    fn remember(&mut self, loss: Loss) {
        self.losses.push(loss);
        self.save_losses();
    }

    fn save_losses(&self) {
        let saved = serde_json::to_vec(&self.losses)
            .map_err(std::io::Error::other)
            .and_then(|bytes| self.disk.replace(LOSSES_FILE, &bytes));
        if let Err(error) = saved {
            tracing::error!(%error, "a loss cannot be recorded on disk");
        }
    }

    fn report(&self, report: Report) {
        // Nobody listens while the agent shuts down: it is all on disk.
        let _ = self.reports.send(report);
    }

    /// A number no file of this spool ever had or will have.
    fn new_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        if number >= self.reserved {
            let reserved = number + RESERVE_NUMBERS;
            let bytes = serde_json::to_vec(&FileNumbers {
                version: 1,
                next: reserved,
            })
            .expect("two numbers can be written as JSON");
            match self.disk.replace(FILES_FILE, &bytes) {
                Ok(()) => self.reserved = reserved,
                Err(error) => tracing::error!(%error, "{FILES_FILE} cannot be written"),
            }
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapscope_proto::clock::SystemClock;
    use gapscope_proto::host::{Lag, ProbingStarted};

    fn open_in(folder: &Path, max_bytes: u64) -> Opened {
        open(folder, max_bytes, Arc::new(SystemClock::new())).expect("opens")
    }

    fn started() -> ProbingStarted {
        ProbingStarted {
            origin_ns: 1,
            planned_end_ns: 2,
            clock: SystemClock::new().key(),
        }
    }

    fn lag(n: i64) -> HostRecord {
        HostRecord::Lag(Lag {
            at_ns: n,
            ticks: 1,
            late_max_ns: 0,
        })
    }

    fn drain(opened: &mut Opened) -> Vec<Report> {
        std::iter::from_fn(|| opened.reports.try_recv().ok()).collect()
    }

    fn stop(opened: Opened) {
        drop(opened.spool);
        opened.thread.join().expect("no panic");
    }

    #[tokio::test]
    async fn records_are_numbered_sealed_read_back_and_removed_when_acknowledged() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut opened = open_in(folder.path(), 1 << 30);
        let run = RunId::generate();
        opened.spool.begin(run, started()).await;
        for n in 0..10 {
            opened.spool.host_for_all(lag(n)).await;
        }
        opened.spool.flush().await;
        let reports = drain(&mut opened);
        let [Report::Sealed(frame)] = reports[..] else {
            panic!("{reports:?}");
        };
        assert_eq!((frame.first, frame.last), (1, 11));
        let read = opened.spool.read(frame).await.expect("reads");
        assert_eq!(read.count(), 11);
        assert!(opened.spool.bytes() > 0);
        let ended = gapscope_proto::host::ProbingEnded {
            end_ns: 2,
            reason: "planned end".into(),
            due: 0,
            sampled: 0,
            waited: 0,
            overslept: 0,
        };
        opened.spool.end(run, ended).await;
        opened.spool.flush().await;
        opened.spool.acked(frame.stream, 12).await;
        opened.spool.flush().await;
        assert_eq!(opened.spool.bytes(), 0);
        assert_eq!(
            opened.spool.disk().files(Kind::Segment).expect("listed"),
            []
        );
        assert_eq!(opened.spool.disk().files(Kind::Tail).expect("listed"), []);
        stop(opened);
    }

    #[tokio::test]
    async fn numbers_of_files_are_never_used_twice() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut highest = 0;
        for _ in 0..3 {
            let opened = open_in(folder.path(), 1 << 30);
            let run = RunId::generate();
            opened.spool.begin(run, started()).await;
            opened.spool.flush().await;
            let files = opened.spool.disk().files(Kind::Segment).expect("listed");
            let newest = files.iter().map(|(n, _)| *n).max().expect("one");
            assert!(newest > highest, "{newest} after {highest}");
            highest = newest;
            for (number, _) in files {
                opened
                    .spool
                    .disk()
                    .remove(Kind::Segment, number)
                    .expect("removed");
            }
            stop(opened);
        }
    }

    #[tokio::test]
    async fn a_full_spool_gives_up_its_oldest_and_says_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut opened = open_in(folder.path(), 2_000);
        let run = RunId::generate();
        opened.spool.begin(run, started()).await;
        for n in 0..200 {
            opened.spool.host_for_all(lag(n)).await;
            opened.spool.flush().await;
            assert!(
                opened.spool.bytes() <= 2_000 + 200,
                "{}",
                opened.spool.bytes()
            );
        }
        let mut held = std::collections::BTreeSet::new();
        let mut lost = Vec::new();
        for report in drain(&mut opened) {
            match report {
                Report::Sealed(frame) => held.extend(frame.first..=frame.last),
                Report::Lost(loss) => {
                    assert_eq!(loss.reason, LossReason::SpoolFull);
                    for seq in loss.first..=loss.last {
                        assert!(held.remove(&seq), "{seq} was not held");
                    }
                    lost.push(loss);
                }
            }
        }
        assert!(!lost.is_empty());
        let gone: u64 = lost.iter().map(|loss| loss.count_max).sum();
        assert_eq!(held.len() as u64 + gone, 201);
        stop(opened);

        // What was declared is known after a restart, and what is held too.
        let mut opened = open_in(folder.path(), 1 << 30);
        let (mut again, mut gone_again) = (0, 0);
        for report in drain(&mut opened) {
            match report {
                Report::Sealed(frame) => again += frame.last + 1 - frame.first,
                Report::Lost(loss) => gone_again += loss.count_max,
            }
        }
        assert_eq!((again, gone_again), (held.len() as u64, gone));
        stop(opened);
    }

    /// The folder as a kill at any moment leaves it: whatever is in the tail is
    /// there after the next start.
    #[tokio::test]
    async fn what_is_in_the_tail_survives() {
        let folder = tempfile::tempdir().expect("a folder");
        let opened = open_in(folder.path(), 1 << 30);
        let run = RunId::generate();
        opened.spool.begin(run, started()).await;
        for n in 0..50 {
            opened.spool.host_for_all(lag(n)).await;
        }
        let copy = tempfile::tempdir().expect("a folder");
        // The write is what makes it visible; wait for that, not for a time.
        loop {
            for entry in std::fs::read_dir(folder.path()).expect("listed") {
                let entry = entry.expect("an entry");
                let _ = std::fs::copy(entry.path(), copy.path().join(entry.file_name()));
            }
            let mut recovery = Recovery::default();
            let disk = Disk::inspect(copy.path()).expect("there");
            for (number, _) in disk.files(Kind::Tail).expect("listed") {
                recovery.tail(&disk.read(Kind::Tail, number).expect("read"));
            }
            for (number, _) in disk.files(Kind::Segment).expect("listed") {
                recovery.segment(number, &disk.read(Kind::Segment, number).expect("read"));
            }
            let found = recovery.finish();
            let last = found.unsealed.iter().map(Frame::last_seq);
            let last = last.chain(found.sealed.iter().map(|f| f.last)).max();
            if last == Some(51) {
                break;
            }
            tokio::task::yield_now().await;
        }
        let mut again = open_in(copy.path(), 1 << 30);
        let records: u64 = drain(&mut again)
            .iter()
            .map(|report| match report {
                Report::Sealed(frame) => frame.last + 1 - frame.first,
                Report::Lost(loss) => panic!("{loss:?}"),
            })
            .sum();
        assert_eq!(records, 51);
        assert_eq!(again.spool.disk().files(Kind::Tail).expect("listed"), []);
        stop(again);
        stop(opened);
    }
}
