//! Writes a run folder, for the server and for imports alike.
//!
//! Records are appended to memory, in the order of their seqs, and made durable
//! by [`RunStore::commit`]: one parquet part for all streams together, under a
//! new name, synced, before any seq counts as durable. Losses are written
//! before the parts that follow them, so that a crash never leaves a part
//! beyond a hole. All calls block; the server makes them on blocking threads.
//!
//! One `RunStore` writes into a run at a time; the data folder's lock sees to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gapscope_proto::fault::Fault;
use gapscope_proto::frame::StreamKind;
use gapscope_proto::host::HostRecord;
use gapscope_proto::ids::{AgentId, Incarnation};
use gapscope_proto::sample::Sample;
use polars::prelude::{DataFrame, ParquetWriter};

use super::disk::{Disk, part_name, part_number, sweep};
use super::error::StoreError;
use super::footer::{Footer, Range, StreamKey, push_range};
use super::frame::{self, Bound, Row};
use super::loss::LossRecord;
use super::manifest::{Manifest, RunState};
use super::merge;
use super::reader::{self, Part, Parts};
use super::schema::LAG;

/// How far a stream has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Progress {
    /// Appended up to here.
    admitted: u64,
    /// Safe on disk up to here.
    durable: u64,
    /// What [`RunStore::take_acks`] said last.
    acknowledged: u64,
}

/// A run that is being written.
#[derive(Debug)]
pub struct RunStore {
    folder: PathBuf,
    disk: Disk,
    manifest: Manifest,
    manifest_changed: bool,
    faults: Vec<Fault>,
    losses: Vec<LossRecord>,
    losses_changed: bool,
    streams: BTreeMap<StreamKey, Progress>,
    samples: Vec<Row<Sample>>,
    sample_ranges: Vec<Range>,
    hosts: Vec<Row<HostRecord>>,
    host_ranges: Vec<Range>,
    next_samples_part: u64,
    next_host_part: u64,
    samples_stored: u64,
    live_parts: usize,
}

impl RunStore {
    /// Makes the folder of a new run in the data folder `data`.
    ///
    /// # Errors
    /// When it exists or cannot be written.
    pub fn create(data: &Path, manifest: Manifest, disk: Disk) -> Result<Self, StoreError> {
        let folder = data.join(manifest.run_id.to_string());
        if folder.exists() {
            return Err(StoreError::Exists(folder));
        }
        for part in ["samples/live", "host/live"] {
            let path = folder.join(part);
            std::fs::create_dir_all(&path).map_err(StoreError::io("create", &path))?;
        }
        let mut store = Self::of(folder, disk, manifest);
        store.write_manifest()?;
        for part in ["samples", "host", ""] {
            store.disk.sync_folder(&store.folder.join(part))?;
        }
        store.disk.sync_folder(data)?;
        Ok(store)
    }

    fn of(folder: PathBuf, disk: Disk, manifest: Manifest) -> Self {
        Self {
            folder,
            disk,
            manifest,
            manifest_changed: false,
            faults: Vec::new(),
            losses: Vec::new(),
            losses_changed: false,
            streams: BTreeMap::new(),
            samples: Vec::new(),
            sample_ranges: Vec::new(),
            hosts: Vec::new(),
            host_ranges: Vec::new(),
            next_samples_part: 1,
            next_host_part: 1,
            samples_stored: 0,
            live_parts: 0,
        }
    }

    /// Opens a run that was left, to go on with it. What an unfinished write or
    /// merge left behind is swept; how far each stream has come is read from the
    /// parts' footers; a hole among them (a part that cannot be read) is declared
    /// as a loss, because its records were acknowledged and will not come again.
    ///
    /// # Errors
    /// When the folder cannot be read, or swept.
    pub fn open(folder: &Path, disk: Disk) -> Result<Self, StoreError> {
        let manifest = reader::read_manifest(folder)?;
        for part in ["samples/live", "host/live"] {
            let path = folder.join(part);
            std::fs::create_dir_all(&path).map_err(StoreError::io("create", &path))?;
        }
        for part in ["", "samples", "samples/live", "host/live"] {
            sweep(&folder.join(part))?;
        }
        let samples = reader::sample_parts(folder)?;
        let hosts = reader::host_parts(folder, &LAG)?;
        let mut store = Self::of(folder.to_owned(), disk, manifest);
        store.faults = reader::read_faults(folder)?;
        store.losses = reader::read_losses(folder)?;
        store.next_samples_part = next_number(&samples);
        store.next_host_part = next_number(&hosts);
        store.samples_stored = samples.rows();
        store.live_parts = samples.live.len() + hosts.live.len();
        // Only what every merged table of host records replaces may go.
        for leftover in &samples.replaced {
            store.disk.remove(leftover)?;
        }
        for note in samples.notes.iter().chain(&hosts.notes) {
            store.add_caveat(note.clone());
        }
        store.declare_holes(samples.used().chain(hosts.used()));
        for (stream, seq) in reader::high_water(samples.used().chain(hosts.used()), &store.losses) {
            store.manifest.note_committed(&stream, seq);
            store.streams.insert(
                stream,
                Progress {
                    admitted: seq,
                    durable: seq,
                    acknowledged: seq,
                },
            );
        }
        reader::apply_bounds(&mut store.manifest, &hosts)?;
        store.manifest_changed = true;
        store.write_losses()?;
        store.write_manifest()?;
        Ok(store)
    }

    fn declare_holes<'a>(&mut self, parts: impl Iterator<Item = &'a Part>) {
        let mut covered: BTreeMap<StreamKey, Vec<(u64, u64)>> = BTreeMap::new();
        for range in parts.flat_map(|part| &part.footer.ranges) {
            covered
                .entry(range.stream.clone())
                .or_default()
                .push((range.first_seq, range.last_seq));
        }
        for loss in &self.losses {
            covered
                .entry(loss.stream())
                .or_default()
                .push((loss.first_seq, loss.last_seq));
        }
        for (stream, mut ranges) in covered {
            ranges.sort_unstable();
            let mut next = 1;
            for (first, last) in ranges {
                if first > next {
                    self.losses.push(LossRecord {
                        agent_id: stream.agent_id.clone(),
                        incarnation: stream.incarnation,
                        kind: stream.kind,
                        first_seq: next,
                        last_seq: first - 1,
                        count_min: first - next,
                        count_max: first - next,
                        reason: "part_unreadable".to_owned(),
                    });
                    self.losses_changed = true;
                }
                next = next.max(last.saturating_add(1));
            }
        }
    }

    /// Where the run is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the manifest says now.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The faults recorded so far.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// Samples safe on disk.
    pub fn samples_stored(&self) -> u64 {
        self.samples_stored
    }

    /// Records appended and not yet committed.
    pub fn pending(&self) -> usize {
        self.samples.len() + self.hosts.len()
    }

    /// Whether there is anything for [`RunStore::commit`] to do.
    pub fn is_dirty(&self) -> bool {
        self.pending() > 0 || self.losses_changed || self.manifest_changed
    }

    /// Whether there are live parts that no merge has taken in yet.
    pub fn has_live_parts(&self) -> bool {
        self.live_parts > 0
    }

    /// The last seq of a stream that was appended or declared lost; 0 for none.
    pub fn admitted(&self, stream: &StreamKey) -> u64 {
        self.streams.get(stream).map_or(0, |p| p.admitted)
    }

    /// The last seq of a stream that is safe on disk; 0 for none.
    pub fn durable(&self, stream: &StreamKey) -> u64 {
        self.streams.get(stream).map_or(0, |p| p.durable)
    }

    /// Appends samples of one incarnation, numbered on from the last.
    pub fn append_samples(
        &mut self,
        agent: &AgentId,
        incarnation: Incarnation,
        samples: impl IntoIterator<Item = Sample>,
    ) {
        let stream = StreamKey {
            agent_id: agent.clone(),
            incarnation,
            kind: StreamKind::Samples,
        };
        let progress = self.streams.entry(stream.clone()).or_default();
        let before = progress.admitted;
        append(progress, agent, incarnation, &mut self.samples, samples);
        note_range(&mut self.sample_ranges, stream, before, progress.admitted);
    }

    /// Appends host records of one incarnation, numbered on from the last.
    pub fn append_host(
        &mut self,
        agent: &AgentId,
        incarnation: Incarnation,
        records: impl IntoIterator<Item = HostRecord>,
    ) {
        let stream = StreamKey {
            agent_id: agent.clone(),
            incarnation,
            kind: StreamKind::Host,
        };
        let progress = self.streams.entry(stream.clone()).or_default();
        let before = progress.admitted;
        let at = self.hosts.len();
        append(progress, agent, incarnation, &mut self.hosts, records);
        note_range(&mut self.host_ranges, stream, before, progress.admitted);
        for row in &self.hosts[at..] {
            let bound = match &row.record {
                HostRecord::Started(started) => Bound::Started(started.clone()),
                HostRecord::Ended(ended) => Bound::Ended(ended.clone()),
                _ => continue,
            };
            self.manifest.note_bound(agent, incarnation, bound);
            self.manifest_changed = true;
        }
    }

    /// Takes note that records will never come. The loss must begin where the
    /// stream stands; returns whether it did.
    pub fn declare_loss(&mut self, loss: LossRecord) -> bool {
        let progress = self.streams.entry(loss.stream()).or_default();
        if progress.admitted.checked_add(1) != Some(loss.first_seq)
            || loss.last_seq < loss.first_seq
        {
            return false;
        }
        progress.admitted = loss.last_seq;
        if let Some(last) = self.losses.last_mut()
            && last.stream() == loss.stream()
            && last.reason == loss.reason
            && last.last_seq.checked_add(1) == Some(loss.first_seq)
        {
            last.last_seq = loss.last_seq;
            last.count_min = last.count_min.saturating_add(loss.count_min);
            last.count_max = last.count_max.saturating_add(loss.count_max);
        } else {
            self.losses.push(loss);
        }
        self.losses_changed = true;
        true
    }

    /// Makes everything appended so far durable.
    ///
    /// # Errors
    /// When something could not be written. What had been written before stays
    /// durable; the rest stays pending, and the next call tries again.
    pub fn commit(&mut self) -> Result<(), StoreError> {
        self.write_losses()?;
        if !self.samples.is_empty() {
            let path = self.live_part("samples/live", self.next_samples_part);
            let frame = frame::samples_frame(self.manifest.run_id, &self.samples)
                .map_err(StoreError::parquet("write", &path))?;
            self.write_part(&path, frame, &self.sample_ranges)?;
            self.next_samples_part += 1;
            self.live_parts += 1;
            self.samples_stored += self.samples.len() as u64;
            self.samples.clear();
            self.sample_ranges.clear();
        }
        self.settle(StreamKind::Samples);
        if !self.hosts.is_empty() {
            let path = self.live_part("host/live", self.next_host_part);
            let frame =
                frame::host_frame(&self.hosts).map_err(StoreError::parquet("write", &path))?;
            self.write_part(&path, frame, &self.host_ranges)?;
            self.next_host_part += 1;
            self.live_parts += 1;
            self.hosts.clear();
            self.host_ranges.clear();
        }
        self.settle(StreamKind::Host);
        if self.manifest_changed {
            self.write_manifest()?;
        }
        Ok(())
    }

    fn settle(&mut self, kind: StreamKind) {
        for (stream, progress) in &mut self.streams {
            if stream.kind == kind && progress.durable != progress.admitted {
                progress.durable = progress.admitted;
                self.manifest.note_committed(stream, progress.durable);
            }
        }
    }

    /// The streams that became durable further than the last call said.
    pub fn take_acks(&mut self) -> Vec<(StreamKey, u64)> {
        let mut acks = Vec::new();
        for (stream, progress) in &mut self.streams {
            if progress.durable > progress.acknowledged {
                progress.acknowledged = progress.durable;
                acks.push((stream.clone(), progress.durable));
            }
        }
        acks
    }

    fn live_part(&self, folder: &str, number: u64) -> PathBuf {
        self.folder.join(folder).join(part_name(number))
    }

    fn write_part(
        &self,
        path: &Path,
        mut frame: DataFrame,
        ranges: &[Range],
    ) -> Result<(), StoreError> {
        let footer = Footer::new(self.manifest.run_id, ranges.to_vec(), Vec::new());
        self.disk.write(path, |out| {
            ParquetWriter::new(out)
                .with_key_value_metadata(Some(footer.to_metadata()))
                .finish(&mut frame)
                .map(drop)
                .map_err(StoreError::parquet("write", path))
        })
    }

    fn write_losses(&mut self) -> Result<(), StoreError> {
        if self.losses_changed {
            let path = self.folder.join("losses.parquet");
            let frame =
                frame::losses_frame(&self.losses).map_err(StoreError::parquet("write", &path))?;
            self.write_part(&path, frame, &[])?;
            self.losses_changed = false;
        }
        Ok(())
    }

    fn write_manifest(&mut self) -> Result<(), StoreError> {
        let path = self.folder.join("manifest.json");
        let mut text = serde_json::to_vec_pretty(&self.manifest).expect("a manifest is plain data");
        text.push(b'\n');
        self.disk.write_bytes(&path, &text)?;
        self.manifest_changed = false;
        Ok(())
    }

    /// Changes the manifest; written with the next commit.
    pub fn edit_manifest(&mut self, edit: impl FnOnce(&mut Manifest)) {
        edit(&mut self.manifest);
        self.manifest_changed = true;
    }

    /// Adds something to say against the data, once.
    pub fn add_caveat(&mut self, caveat: String) {
        if !self.manifest.caveats.contains(&caveat) {
            self.manifest.caveats.push(caveat);
            self.manifest_changed = true;
        }
    }

    /// Records a fault, or adds to one with the same id; id 0 takes the next
    /// free one. Durable when it returns.
    ///
    /// # Errors
    /// When it could not be written; then nothing has changed.
    pub fn record_fault(&mut self, mut fault: Fault) -> Result<u32, StoreError> {
        let before = self.faults.clone();
        if fault.id == 0 {
            fault.id = self.faults.iter().map(|f| f.id).max().unwrap_or(0) + 1;
        }
        let id = fault.id;
        match self.faults.iter_mut().find(|f| f.id == id) {
            Some(known) => update_fault(known, fault),
            None => self.faults.push(fault),
        }
        self.faults.sort_by_key(|f| f.id);
        let path = self.folder.join("faults.parquet");
        let written = frame::faults_frame(&self.faults)
            .map_err(StoreError::parquet("write", &path))
            .and_then(|frame| self.write_part(&path, frame, &[]));
        if let Err(error) = written {
            self.faults = before;
            return Err(error);
        }
        Ok(id)
    }

    /// Commits, merges the live parts, and writes the manifest as `edit` leaves
    /// it (state, time and reason of the end). The run can still be appended to
    /// afterwards, and closed again.
    ///
    /// # Errors
    /// When something could not be written. Nothing is lost or doubled by it;
    /// the close can be tried again.
    pub fn close(&mut self, edit: impl FnOnce(&mut Manifest)) -> Result<(), StoreError> {
        self.commit()?;
        merge::merge_samples(&self.folder, &self.disk, self.manifest.run_id)?;
        merge::merge_hosts(&self.folder, &self.disk, self.manifest.run_id)?;
        self.live_parts = 0;
        self.edit_manifest(edit);
        self.write_manifest()
    }

    /// Marks the run as left unfinished, without merging.
    ///
    /// # Errors
    /// When the manifest could not be written.
    pub fn interrupt(&mut self, reason: &str) -> Result<(), StoreError> {
        self.edit_manifest(|manifest| {
            manifest.state = RunState::Interrupted;
            manifest.end_reason = Some(reason.to_owned());
        });
        self.write_manifest()
    }
}

fn append<T>(
    progress: &mut Progress,
    agent: &AgentId,
    incarnation: Incarnation,
    rows: &mut Vec<Row<T>>,
    records: impl IntoIterator<Item = T>,
) {
    let agent: Arc<str> = Arc::from(agent.as_str());
    let incarnation: Arc<str> = Arc::from(incarnation.to_string());
    for record in records {
        progress.admitted += 1;
        rows.push(Row {
            agent: agent.clone(),
            incarnation: incarnation.clone(),
            seq: progress.admitted,
            record,
        });
    }
}

fn note_range(ranges: &mut Vec<Range>, stream: StreamKey, before: u64, after: u64) {
    if after > before {
        push_range(
            ranges,
            Range {
                stream,
                first_seq: before + 1,
                last_seq: after,
            },
        );
    }
}

/// A number that no live part has or had. Parts that cannot be read keep theirs.
fn next_number(parts: &Parts) -> u64 {
    let names = parts.replaced_names.iter().map(PathBuf::from);
    names
        .chain(parts.live.iter().map(|part| part.path.clone()))
        .chain(parts.unreadable.iter().cloned())
        .filter_map(|path| part_number(&path))
        .max()
        .unwrap_or(0)
        + 1
}

/// What is learnt later is added; what is known stays unless it is said anew.
fn update_fault(known: &mut Fault, new: Fault) {
    known.step = new.step;
    known.subject = new.subject;
    known.scope = new.scope;
    known.clock = new.clock;
    known.asked = new.asked;
    known.identity = new.identity.or(known.identity.take());
    known.listener_refused = new.listener_refused.or(known.listener_refused);
    known.held_cut = new.held_cut.or(known.held_cut);
    known.gone = new.gone.or(known.gone);
    known.cleared = new.cleared.or(known.cleared);
    if !new.detail.is_empty() {
        known.detail = new.detail;
    }
}
