//! Writes a run folder, for the server and for imports alike.
//!
//! Records are appended to memory, in the order of their seqs, and made durable
//! by [`RunStore::commit`]: one parquet part for all streams together, under a
//! new name, synced, before any seq counts as durable. Losses are written
//! before the parts that follow them, so that a crash never leaves a part
//! beyond a hole. All calls block; the server makes them on blocking threads.
//!
//! One `RunStore` writes into a run at a time; the data folder's lock sees to it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gapscope_proto::batch::{self, Series};
use gapscope_proto::fault::Fault;
use gapscope_proto::frame::StreamKind;
use gapscope_proto::host::HostRecord;
use gapscope_proto::ids::{AgentId, Incarnation};
use gapscope_proto::sample::Sample;
use polars::prelude::{DataFrame, ParquetWriter};

use super::buffer::Buffer;
use super::checksum;
use super::disk::{Disk, part_name};
use super::error::StoreError;
use super::footer::{Footer, Range, Ranges, StreamKey};
use super::frame::{self, Bound, Row};
use super::loss::LossRecord;
use super::manifest::Manifest;
use super::merge::{self, Small};
use super::pages::Pages;
use super::positions::Positions;
use super::schema::samples_schema;

mod closing;
mod faults;
mod opening;

pub use closing::{Compacted, Compacting};

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
    positions: Positions,
    samples: Buffer,
    sample_ranges: Ranges,
    hosts: Vec<Row<HostRecord>>,
    host_ranges: Ranges,
    next_samples_part: u64,
    next_host_part: u64,
    samples_stored: u64,
    live_parts: usize,
    small_samples: Small,
    small_hosts: Small,
    /// Its files are to be listed anew, once they rest.
    is_unlisted: bool,
}

impl RunStore {
    /// Where the run is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether somebody has deleted the run's folder. One that is merely out of
    /// reach, together with the data folder and its lock, is not deleted.
    pub fn is_deleted(&self) -> bool {
        is_deleted(&self.folder)
    }

    /// What the manifest says now.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The faults recorded so far.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// The losses declared so far.
    pub fn losses(&self) -> &[LossRecord] {
        &self.losses
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

    /// How far each stream has come.
    pub fn positions(&self) -> &Positions {
        &self.positions
    }

    /// The last seq of a stream that was appended or declared lost; 0 for none.
    pub fn admitted(&self, stream: &StreamKey) -> u64 {
        self.positions.admitted(stream)
    }

    /// The last seq of a stream that is safe on disk; 0 for none.
    pub fn durable(&self, stream: &StreamKey) -> u64 {
        self.positions.durable(stream)
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
        let before = self.positions.admitted(&stream);
        let count = self
            .samples
            .append_samples(agent, incarnation, before, samples);
        self.positions.take(&stream, count);
        note_range(&mut self.sample_ranges, stream, before, before + count);
    }

    /// As [`Self::append_samples`], of decoded columns: each row's series is one of
    /// `series`.
    pub fn append_rows(
        &mut self,
        agent: &AgentId,
        incarnation: Incarnation,
        series: &[Series],
        rows: &[batch::Row],
    ) {
        let stream = StreamKey {
            agent_id: agent.clone(),
            incarnation,
            kind: StreamKind::Samples,
        };
        let before = self.positions.admitted(&stream);
        let count = self
            .samples
            .append(agent, incarnation, before, series, rows);
        self.positions.take(&stream, count);
        note_range(&mut self.sample_ranges, stream, before, before + count);
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
        let before = self.positions.admitted(&stream);
        let at = self.hosts.len();
        let count = append(before, agent, incarnation, &mut self.hosts, records);
        self.positions.take(&stream, count);
        note_range(&mut self.host_ranges, stream, before, before + count);
        let mut unknown = BTreeSet::new();
        for row in &self.hosts[at..] {
            let bound = match &row.record {
                HostRecord::Started(started) => Bound::Started(started.clone()),
                HostRecord::Ended(ended) => Bound::Ended(ended.clone()),
                HostRecord::Unknown(record) => {
                    unknown.insert(record.kind.clone());
                    continue;
                }
                _ => continue,
            };
            self.manifest.note_bound(agent, incarnation, bound);
            self.manifest_changed = true;
        }
        for kind in unknown {
            self.add_caveat(unknown_kind(agent, &kind));
        }
    }

    /// Takes note that records will never come. The loss must begin where the
    /// stream stands; returns whether it did.
    pub fn declare_loss(&mut self, loss: LossRecord) -> bool {
        let stream = loss.stream();
        if self.positions.admitted(&stream).checked_add(1) != Some(loss.first_seq)
            || loss.last_seq < loss.first_seq
        {
            return false;
        }
        self.positions
            .take(&stream, loss.last_seq - loss.first_seq + 1);
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
            let columns = self
                .samples
                .columns(self.manifest.run_id)
                .map_err(StoreError::parquet("write", &path))?;
            let ranges = self.sample_ranges.list().to_vec();
            let footer = Footer::new(self.manifest.run_id, ranges, Vec::new());
            self.disk.write_sealed(&path, |out| {
                let of_live = merge::OF_LIVE.into();
                Pages::new(out, &samples_schema(), of_live, &footer)
                    .and_then(|mut pages| {
                        pages.write(&columns)?;
                        pages.finish()
                    })
                    .map_err(StoreError::parquet("write", &path))
            })?;
            self.next_samples_part += 1;
            self.live_parts += 1;
            self.small_samples
                .add(name_of(&path), self.samples.len() as u64);
            self.samples_stored += self.samples.len() as u64;
            self.samples.clear();
            self.sample_ranges.clear();
        }
        self.settle(StreamKind::Samples);
        if !self.hosts.is_empty() {
            let path = self.live_part("host/live", self.next_host_part);
            let frame =
                frame::host_frame(&self.hosts).map_err(StoreError::parquet("write", &path))?;
            self.write_part(&path, frame, self.host_ranges.list())?;
            self.next_host_part += 1;
            self.live_parts += 1;
            self.small_hosts
                .add(name_of(&path), self.hosts.len() as u64);
            self.hosts.clear();
            self.host_ranges.clear();
        }
        self.settle(StreamKind::Host);
        self.list_again();
        if self.manifest_changed {
            self.write_manifest()?;
        }
        Ok(())
    }

    fn settle(&mut self, kind: StreamKind) {
        for (stream, seq) in self.positions.settle(kind) {
            self.manifest.note_committed(&stream, seq);
        }
    }

    /// The streams that became durable further than the last call said.
    pub fn take_acks(&mut self) -> Vec<(StreamKey, u64)> {
        self.positions.take_acks()
    }

    /// Streams of which something was taken in and is not yet safe on disk, with
    /// the first such seq.
    pub fn unsettled(&self) -> impl Iterator<Item = (&StreamKey, u64)> {
        self.positions.unsettled()
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
        self.disk.write_sealed(path, |out| {
            ParquetWriter::new(out)
                .with_compression(merge::OF_LIVE)
                .with_key_value_metadata(Some(footer.to_metadata()))
                .finish(&mut frame)
                .map(drop)
                .map_err(StoreError::parquet("write", path))
        })
    }

    fn write_losses(&mut self) -> Result<(), StoreError> {
        if self.losses_changed {
            self.unlist()?;
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
        let text = serde_json::to_string_pretty(&self.manifest).expect("a manifest is plain data");
        let text = checksum::seal_manifest(&text);
        self.disk.write_bytes(&path, text.as_bytes())?;
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
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// What is said of records that this build does not know.
fn unknown_kind(agent: &AgentId, kind: &str) -> String {
    let kind = if kind.is_empty() {
        String::new()
    } else {
        format!(" (`{kind}`)")
    };
    format!(
        "agent `{agent}` is newer than this gapscope-aggregator ({}) and reported something \
         about its host{kind} that this version does not know; what it says is not kept, \
         everything else is: use an aggregator of the agent's version",
        env!("CARGO_PKG_VERSION")
    )
}

/// Appends the records that follow seq `before`; returns how many.
fn append<T>(
    before: u64,
    agent: &AgentId,
    incarnation: Incarnation,
    rows: &mut Vec<Row<T>>,
    records: impl IntoIterator<Item = T>,
) -> u64 {
    let agent: Arc<str> = Arc::from(agent.as_str());
    let incarnation: Arc<str> = Arc::from(incarnation.to_string());
    let mut seq = before;
    for record in records {
        seq += 1;
        rows.push(Row {
            agent: agent.clone(),
            incarnation: incarnation.clone(),
            seq,
            record,
        });
    }
    seq - before
}

/// Whether a run's folder was deleted from its data folder.
pub(crate) fn is_deleted(folder: &Path) -> bool {
    let absent = |path: &Path| {
        matches!(path.symlink_metadata(), Err(error)
            if error.kind() == std::io::ErrorKind::NotFound)
    };
    // The lock is there as long as the data folder is: a file system that is not
    // mounted just now has neither.
    let data = folder.parent().unwrap_or(Path::new("."));
    absent(folder) && data.join(".lock").is_file()
}

fn note_range(ranges: &mut Ranges, stream: StreamKey, before: u64, after: u64) {
    if after > before {
        ranges.push(Range {
            stream,
            first_seq: before + 1,
            last_seq: after,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_folder_that_is_out_of_reach_is_no_deleted_run() {
        let data = tempfile::tempdir().expect("a folder");
        let run = data.path().join("run");
        // Not mounted just now: neither the run nor the lock is there.
        assert!(!is_deleted(&run));
        std::fs::write(data.path().join(".lock"), "").expect("written");
        assert!(is_deleted(&run));
        std::fs::create_dir(&run).expect("made");
        assert!(!is_deleted(&run));
        // A link to where nothing is: somebody's disk, not nothing.
        std::fs::remove_dir(&run).expect("removed");
        std::os::unix::fs::symlink("/nowhere", &run).expect("linked");
        assert!(!is_deleted(&run));
    }
}
