//! A run's folder, made or opened again.

use std::path::{Path, PathBuf};

use super::RunStore;
use crate::store::buffer::Buffer;
use crate::store::disk::{Disk, part_number, sweep};
use crate::store::error::StoreError;
use crate::store::footer::Ranges;
use crate::store::loss::holes;
use crate::store::manifest::Manifest;
use crate::store::merge::Small;
use crate::store::positions::Positions;
use crate::store::reader::{self, Care, Part, Parts};
use crate::store::schema::LAG;

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
            positions: Positions::default(),
            samples: Buffer::default(),
            sample_ranges: Ranges::default(),
            hosts: Vec::new(),
            host_ranges: Ranges::default(),
            next_samples_part: 1,
            next_host_part: 1,
            samples_stored: 0,
            live_parts: 0,
            small_samples: Small::default(),
            small_hosts: Small::default(),
            is_unlisted: false,
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
        let samples = reader::sample_parts(folder, Care::LiveChecksums)?;
        let hosts = reader::host_parts(folder, &LAG, Care::LiveChecksums)?;
        let mut store = Self::of(folder.to_owned(), disk, manifest);
        let faults = store.or_set_aside("faults.parquet", reader::read_faults(folder))?;
        let losses = store.or_set_aside("losses.parquet", reader::read_losses(folder))?;
        store.faults = faults;
        // Where it was damaged, the holes are declared anew below.
        store.losses = losses;
        store.next_samples_part = next_number(&samples);
        store.next_host_part = next_number(&hosts);
        store.samples_stored = samples.rows();
        store.live_parts = samples.live.len() + hosts.live.len();
        store.small_samples = Small::among(&samples.live);
        store.small_hosts = Small::among(&hosts.live);
        // Of the host records only what every merged table replaces may go.
        let leftovers = samples.replaced.iter().chain(&samples.superseded);
        for leftover in leftovers.chain(&hosts.superseded) {
            store.disk.remove(leftover)?;
        }
        for note in samples.notes.iter().chain(&hosts.notes) {
            store.add_caveat(note.clone());
        }
        store.declare_holes(samples.used().chain(hosts.used()));
        for (stream, seq) in reader::high_water(samples.used().chain(hosts.used()), &store.losses) {
            store.manifest.note_committed(&stream, seq);
            store.positions.found(stream, seq);
        }
        reader::apply_bounds(&mut store.manifest, &hosts)?;
        store.manifest_changed = true;
        store.write_losses()?;
        store.write_manifest()?;
        store.set_aside(samples.unreadable.iter().chain(&hosts.unreadable));
        Ok(store)
    }

    /// What was read; a file that turned out to be damaged is set aside, with a
    /// caveat, because the run must go on.
    fn or_set_aside<T>(
        &mut self,
        name: &str,
        read: Result<Vec<T>, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        match read {
            Ok(read) => Ok(read),
            Err(error) if error.is_damage() => {
                tracing::error!(run = %self.manifest.run_id, "{error}");
                self.add_caveat(format!("{error}; what it said is not known"));
                let path = self.folder.join(name);
                std::fs::rename(&path, path.with_extension("damaged"))
                    .map_err(StoreError::io("rename", &path))?;
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    /// Declares lost what no part holds below a stream's highest seq.
    pub(super) fn declare_holes<'a>(&mut self, parts: impl Iterator<Item = &'a Part>) {
        let found = holes(parts, &self.losses);
        self.losses_changed |= !found.is_empty();
        self.losses.extend(found);
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
