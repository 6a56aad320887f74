//! What is done to a run's parts beside writing them: many small ones are made
//! one, and all are merged at the close.

use std::fs;
use std::path::PathBuf;

use super::RunStore;
use crate::store::error::StoreError;
use crate::store::inventory;
use crate::store::manifest::{Manifest, RunState};
use crate::store::merge::{self, Small};
use crate::store::reader::{self, Care};
use crate::store::schema::LAG;

/// Small parts that are being made one.
#[derive(Debug)]
pub struct Compacting(merge::Compaction);

/// What became of them.
#[derive(Debug)]
pub struct Compacted {
    is_host: bool,
    left: Small,
    result: Result<(), StoreError>,
}

impl Compacting {
    /// Does it; blocks.
    pub fn perform(self) -> Compacted {
        let is_host = self.0.is_host;
        let (left, result) = self.0.perform();
        Compacted {
            is_host,
            left,
            result,
        }
    }
}

impl RunStore {
    /// Makes one live part of many small ones, where there are many. Everything
    /// that is stored stays stored whether this works or not.
    ///
    /// # Errors
    /// When something could not be read or written.
    pub fn compact(&mut self) -> Result<(), StoreError> {
        while let Some(compacting) = self.begin_compact() {
            let compacted = compacting.perform();
            self.end_compact(compacted)?;
        }
        Ok(())
    }

    /// Whether [`RunStore::compact`] has something to do.
    pub fn has_many_parts(&self) -> bool {
        self.small_samples.are_many() || self.small_hosts.are_many()
    }

    /// As [`RunStore::compact`], to be performed beside other writing; what comes of
    /// it must be given to [`RunStore::end_compact`] before the run is closed.
    pub fn begin_compact(&mut self) -> Option<Compacting> {
        let (is_host, number, small) = if self.small_samples.are_many() {
            (false, &mut self.next_samples_part, &mut self.small_samples)
        } else if self.small_hosts.are_many() {
            (true, &mut self.next_host_part, &mut self.small_hosts)
        } else {
            return None;
        };
        *number += 1;
        Some(Compacting(merge::Compaction {
            folder: self.folder.clone(),
            disk: self.disk.clone(),
            run: self.manifest.run_id,
            is_host,
            number: *number - 1,
            small: std::mem::take(small),
        }))
    }

    /// Takes note of what became of small parts.
    ///
    /// # Errors
    /// What kept them from being merged; they are tried again then.
    pub fn end_compact(&mut self, compacted: Compacted) -> Result<(), StoreError> {
        let small = if compacted.is_host {
            &mut self.small_hosts
        } else {
            &mut self.small_samples
        };
        small.join(compacted.left);
        compacted.result
    }

    /// Acknowledged records that turned out to be unreadable are declared lost.
    fn note_damage(&mut self, notes: Vec<String>) -> Result<(), StoreError> {
        for note in notes {
            tracing::error!(run = %self.manifest.run_id, "{note}");
            self.add_caveat(note);
        }
        let samples = reader::sample_parts(&self.folder, Care::LiveChecksums)?;
        let hosts = reader::host_parts(&self.folder, &LAG, Care::LiveChecksums)?;
        self.samples_stored = samples.rows();
        self.declare_holes(samples.used().chain(hosts.used()));
        self.set_aside(samples.unreadable.iter().chain(&hosts.unreadable));
        self.write_losses()
    }

    /// Live parts that cannot be read get a name that nobody reads: their records
    /// are declared lost, and must not come back by half.
    pub(super) fn set_aside<'a>(&self, unreadable: impl Iterator<Item = &'a PathBuf>) {
        for path in unreadable {
            let is_live = path.parent().is_some_and(|folder| folder.ends_with("live"));
            if is_live && let Err(error) = fs::rename(path, path.with_extension("damaged")) {
                tracing::warn!("`{}` cannot be set aside: {error}", path.display());
            }
        }
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
        self.unlist()?;
        let run = self.manifest.run_id;
        let mut notes = merge::merge_samples(&self.folder, &self.disk, run)?;
        notes.extend(merge::merge_hosts(&self.folder, &self.disk, run)?);
        if !notes.is_empty() {
            self.note_damage(notes)?;
        }
        self.live_parts = 0;
        self.small_samples = Small::default();
        self.small_hosts = Small::default();
        self.edit_manifest(edit);
        self.is_unlisted = true;
        self.list_again();
        self.write_manifest()
    }

    /// Takes the list of files out of the manifest, before one of them is changed.
    /// What had become of them in the meantime is noted: the next list has them as
    /// they are then.
    pub(super) fn unlist(&mut self) -> Result<(), StoreError> {
        let Some(listed) = self.manifest.files.take() else {
            return Ok(());
        };
        let compared = inventory::compare(&self.folder, &listed);
        for what in compared.sentences() {
            tracing::error!(run = %self.manifest.run_id, "{what}");
            self.add_caveat(what.clone());
        }
        self.is_unlisted = true;
        let written = self.write_manifest();
        if written.is_err() {
            // It stands in the file still.
            self.manifest.files = Some(listed);
        }
        written
    }

    /// Lists the files of a closed run again, once nothing is left to be merged. The
    /// manifest is to be written then, if this returns true.
    pub(super) fn list_again(&mut self) -> bool {
        let rests = self.manifest.state == RunState::Closed && self.live_parts == 0;
        if !self.is_unlisted || !rests {
            return false;
        }
        self.is_unlisted = false;
        self.manifest_changed = true;
        match inventory::of(&self.folder) {
            Ok(files) => self.manifest.files = Some(files),
            // A file that the disk does not give back keeps no run from its close.
            Err(error) => self.add_caveat(format!("{error}; the run's files are not listed")),
        }
        true
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
