//! Reads a run folder: live, closed, killed or empty.
//!
//! A live part that a merged file, or another live part, lists as replaced is
//! never counted beside it. A part that cannot be read is left out and said so in
//! [`RunFolder::notes`]; so is one whose checksum does not hold, where checksums
//! are looked at ([`RunFolder::sound`]).

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use gapscope_proto::fault::Fault;
use gapscope_proto::frame::StreamKind;
use gapscope_proto::ids::RunId;
use gapscope_proto::small_file;
use polars::prelude::*;

use super::blocks::Blocks;
use super::disk::{open_regular, parts_in};
use super::error::StoreError;
use super::footer::{self, Footer, StreamKey};
use super::frame;
use super::inventory;
use super::loss::{LossRecord, holes};
use super::manifest::{FORMAT_VERSION, Manifest, RunState};
use super::schema::{
    self, CLOCK_ANCHORS, CLOCK_EXCHANGES, CONTROL, HostTable, INSPECTIONS, LAG, LEDGER_READS,
};
use super::stamp::steadily;
use crate::overhead::store::is_overhead;

/// A parquet file that is to be read.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) path: PathBuf,
    pub(crate) footer: Footer,
    pub(crate) rows: u64,
}

/// How closely files are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Care {
    /// Their footers.
    Footers,
    /// The live ones whole; of the others the footers.
    LiveChecksums,
    /// All of them whole.
    Checksums,
}

impl Part {
    pub(crate) fn name(&self) -> std::borrow::Cow<'_, str> {
        self.path.file_name().unwrap_or_default().to_string_lossy()
    }
}

/// The parts of one kind of records.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// Whose they must be, where that is known.
    run: Option<RunId>,
    /// Whole ones, which may replace live ones.
    pub(crate) merged: Vec<Part>,
    /// Live ones that nothing replaces.
    pub(crate) live: Vec<Part>,
    /// Live ones that are in a merged one as well: leftovers.
    pub(crate) replaced: Vec<PathBuf>,
    /// Live ones that are in another live one as well: leftovers.
    pub(crate) superseded: Vec<PathBuf>,
    /// Names that must not be used again.
    pub(crate) replaced_names: HashSet<String>,
    /// Files that could not be read.
    pub(crate) unreadable: Vec<PathBuf>,
    /// Which, and why.
    pub(crate) notes: Vec<String>,
}

impl Parts {
    /// Looks at `merged` files and the live parts of `live`. Parts that are merged
    /// while one looks make it look again.
    pub(crate) fn find(
        merged: &[PathBuf],
        live: &Path,
        care: Care,
        run: Option<RunId>,
    ) -> Result<Self, StoreError> {
        for _ in 0..5 {
            if let Some(parts) = Self::look(merged, live, care, run)? {
                return Ok(parts);
            }
        }
        Err(StoreError::Damaged {
            path: live.to_owned(),
            why: "files vanish from it while they are read".to_owned(),
        })
    }

    fn look(
        merged: &[PathBuf],
        live: &Path,
        care: Care,
        run: Option<RunId>,
    ) -> Result<Option<Self>, StoreError> {
        let mut parts = Self {
            run,
            ..Self::default()
        };
        for path in merged {
            if let Some(part) = parts.read(path.clone(), care == Care::Checksums)? {
                parts
                    .replaced_names
                    .extend(part.footer.replaces.iter().cloned());
                parts.merged.push(part);
            }
        }
        for path in parts_in(live)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if parts.replaced_names.contains(&*name) {
                parts.replaced.push(path);
            } else if let Some(part) = parts.read(path, care != Care::Footers)? {
                parts.live.push(part);
            }
        }
        if parts.unreadable.iter().any(|path| !path.exists()) {
            return Ok(None);
        }
        let by_live: HashSet<String> = parts
            .live
            .iter()
            .flat_map(|part| part.footer.replaces.iter().cloned())
            .collect();
        let (superseded, live) = std::mem::take(&mut parts.live)
            .into_iter()
            .partition(|part| by_live.contains(&*part.name()));
        parts.live = live;
        let superseded: Vec<Part> = superseded;
        parts.superseded = superseded.into_iter().map(|part| part.path).collect();
        parts.replaced_names.extend(by_live);
        Ok(Some(parts))
    }

    fn read(&mut self, path: PathBuf, whole: bool) -> Result<Option<Part>, StoreError> {
        let read = if whole {
            footer::read_sound(&path)
        } else {
            footer::read(&path)
        };
        let read = match read {
            Ok((footer, _)) if self.run.is_some_and(|run| run != footer.run_id) => {
                let why = format!("it is of another run, {}", footer.run_id);
                Err(StoreError::Damaged {
                    path: path.clone(),
                    why,
                })
            }
            other => other,
        };
        match read {
            Ok((footer, rows)) => Ok(Some(Part { path, footer, rows })),
            Err(error @ StoreError::NewerFormat { .. }) => Err(error),
            Err(error) => {
                self.notes
                    .push(format!("{error}; what it held is not counted"));
                self.unreadable.push(path);
                Ok(None)
            }
        }
    }

    pub(crate) fn used(&self) -> impl Iterator<Item = &Part> {
        self.merged.iter().chain(&self.live)
    }

    pub(crate) fn rows(&self) -> u64 {
        self.used().map(|part| part.rows).sum()
    }
}

/// Which run a folder is, if its manifest says so.
fn run_of(folder: &Path) -> Option<RunId> {
    read_manifest(folder).ok().map(|manifest| manifest.run_id)
}

/// The samples' parts.
pub(crate) fn sample_parts(folder: &Path, care: Care) -> Result<Parts, StoreError> {
    let samples = folder.join("samples");
    let run = run_of(folder);
    Parts::find(&parts_in(&samples)?, &samples.join("live"), care, run)
}

/// The parts of one kind of host records.
pub(crate) fn host_parts(
    folder: &Path,
    table: &HostTable,
    care: Care,
) -> Result<Parts, StoreError> {
    let merged = folder.join(format!("{}.parquet", table.file));
    let merged = if merged.exists() {
        vec![merged]
    } else {
        vec![]
    };
    Parts::find(&merged, &folder.join("host/live"), care, run_of(folder))
}

/// Longest manifest that is read.
const MANIFEST_MOST: u64 = 64 << 20;

/// The manifest's text.
pub(crate) fn manifest_text(folder: &Path) -> Result<Vec<u8>, StoreError> {
    let path = folder.join("manifest.json");
    match small_file::read(&path, MANIFEST_MOST) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(StoreError::NotARun(folder.to_owned()))
        }
        other => other.map_err(StoreError::io("read", &path)),
    }
}

/// Reads the manifest, whatever state the run is in.
pub(crate) fn read_manifest(folder: &Path) -> Result<Manifest, StoreError> {
    let path = folder.join("manifest.json");
    let text = manifest_text(folder)?;
    #[derive(serde::Deserialize)]
    struct Version {
        format_version: u32,
    }
    let damaged = |error: serde_json::Error| StoreError::Damaged {
        path: path.clone(),
        why: error.to_string(),
    };
    let version: Version = serde_json::from_slice(&text).map_err(damaged)?;
    if version.format_version > FORMAT_VERSION {
        return Err(StoreError::NewerFormat {
            path: folder.to_owned(),
            found: version.format_version,
        });
    }
    serde_json::from_slice(&text).map_err(damaged)
}

/// Reads a whole parquet file.
pub(crate) fn read_parquet(path: &Path) -> Result<DataFrame, StoreError> {
    decode(path, None)
}

/// Reads some rows of a parquet file.
pub(crate) fn read_rows(path: &Path, from: usize, rows: usize) -> Result<DataFrame, StoreError> {
    decode(path, Some((from, rows)))
}

fn decode(path: &Path, slice: Option<(usize, usize)>) -> Result<DataFrame, StoreError> {
    let file = open_regular(path).map_err(StoreError::io("read", path))?;
    // The reader panics at offsets that lie outside the file: files without a
    // checksum can still lead it there.
    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        ParquetReader::new(file).with_slice(slice).finish()
    }));
    match read {
        Ok(read) => read.map_err(StoreError::parquet("read", path)),
        Err(_) => Err(StoreError::Damaged {
            path: path.to_owned(),
            why: "it cannot be decoded".to_owned(),
        }),
    }
}

/// The faults recorded in `folder`.
pub(crate) fn read_faults(folder: &Path) -> Result<Vec<Fault>, StoreError> {
    let path = folder.join("faults.parquet");
    if !path.exists() {
        return Ok(Vec::new());
    }
    footer::read_sound(&path)?;
    frame::faults_of(&read_parquet(&path)?).map_err(StoreError::parquet("read", &path))
}

/// The losses recorded in `folder`.
pub(crate) fn read_losses(folder: &Path) -> Result<Vec<LossRecord>, StoreError> {
    let path = folder.join("losses.parquet");
    if !path.exists() {
        return Ok(Vec::new());
    }
    footer::read_sound(&path)?;
    frame::losses_of(&read_parquet(&path)?).map_err(StoreError::parquet("read", &path))
}

/// Starts and ends of probing in live host parts; a manifest that was not
/// written after them does not have them yet.
pub(crate) fn apply_bounds(manifest: &mut Manifest, parts: &Parts) -> Result<(), StoreError> {
    for part in &parts.live {
        let frame = read_parquet(&part.path)?;
        let bounds = frame::bounds_of(&frame).map_err(StoreError::parquet("read", &part.path))?;
        for (agent, incarnation, bound) in bounds {
            manifest.note_bound(&agent, incarnation, bound);
        }
    }
    Ok(())
}

/// Highest seq of each stream, by footers and losses.
pub(crate) fn high_water<'a>(
    parts: impl Iterator<Item = &'a Part>,
    losses: &[LossRecord],
) -> BTreeMap<StreamKey, u64> {
    let mut highest = BTreeMap::new();
    let mut note = |stream: StreamKey, seq: u64| {
        let entry = highest.entry(stream).or_insert(0);
        *entry = seq.max(*entry);
    };
    for range in parts.flat_map(|part| &part.footer.ranges) {
        note(range.stream.clone(), range.last_seq);
    }
    for loss in losses {
        note(loss.stream(), loss.last_seq);
    }
    highest
}

/// Where a run stands: its state as it was written, or that nobody writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// An aggregator has it open: agents may still send.
    Running,
    /// Ended in an orderly way.
    Closed,
    /// An aggregator found it unfinished, past its planned end.
    Interrupted,
    /// It was running when its aggregator ended, and no other has taken it up.
    Abandoned,
}

impl Standing {
    /// The word for it, the same wherever a run is named.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Closed => "closed",
            Self::Interrupted => "interrupted",
            Self::Abandoned => "abandoned",
        }
    }

    /// As the manifest has it, where nobody looks who writes.
    pub const fn from_state(state: RunState) -> Self {
        match state {
            RunState::Running => Self::Running,
            RunState::Closed => Self::Closed,
            RunState::Interrupted => Self::Interrupted,
        }
    }
}

/// A run, opened for reading.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    manifest: Manifest,
    samples: Parts,
    faults: Vec<Fault>,
    losses: Vec<LossRecord>,
    notes: Vec<String>,
    care: Care,
}

/// What a table says; nothing, and why, where it is damaged: the rest of the run
/// can still be read.
fn or_noted<T>(
    read: Result<Vec<T>, StoreError>,
    notes: &mut Vec<String>,
) -> Result<Vec<T>, StoreError> {
    match read {
        Err(error) if error.is_damage() => {
            notes.push(format!("{error}; what it said is not known"));
            Ok(Vec::new())
        }
        other => other,
    }
}

impl RunFolder {
    /// Opens the run in `path`.
    ///
    /// # Errors
    /// When there is no readable manifest, or a newer program wrote it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, Care::Footers)
    }

    /// The same run, read whole once: files whose checksum does not hold are left
    /// out and named in [`RunFolder::notes`].
    ///
    /// # Errors
    /// As [`RunFolder::open`].
    pub fn sound(&self) -> Result<Self, StoreError> {
        let mut sound = Self::open_with(&self.path, Care::Checksums)?;
        for table in schema::HOST_TABLES {
            let parts = host_parts(&self.path, table, Care::Checksums)?;
            sound.notes.extend(parts.notes);
        }
        let mut seen = HashSet::new();
        sound.notes.retain(|note| seen.insert(note.clone()));
        Ok(sound)
    }

    /// As the run was at one moment: anew if it is closed or merged meanwhile.
    fn open_with(path: &Path, care: Care) -> Result<Self, StoreError> {
        steadily(path, || Self::open_once(path, care), |_| true)
    }

    fn open_once(path: &Path, care: Care) -> Result<Self, StoreError> {
        let mut manifest = read_manifest(path)?;
        let samples = sample_parts(path, care)?;
        // The live ones are read whole below.
        let live = if care == Care::Footers {
            Care::LiveChecksums
        } else {
            care
        };
        let hosts = host_parts(path, &LAG, live)?;
        let mut notes = samples.notes.clone();
        notes.extend(hosts.notes.iter().cloned());
        if manifest.state == RunState::Running || !hosts.live.is_empty() {
            apply_bounds(&mut manifest, &hosts)?;
        }
        let has_host = manifest
            .agents
            .iter()
            .flat_map(|agent| &agent.incarnations)
            .any(|entry| entry.host_committed > 0);
        if care == Care::Checksums {
            let compared = inventory::compare_run(path)?;
            notes.extend(compared.sentences().cloned());
        }
        let is_listed = manifest.files.is_some();
        if !is_listed && manifest.state == RunState::Closed && has_host && hosts.live.is_empty() {
            for table in ["lag", "clock_exchanges", "clock_anchors"] {
                if !path.join(format!("{table}.parquet")).exists() {
                    notes.push(format!(
                        "{table}.parquet is missing: what it says of the agents is not known"
                    ));
                }
            }
        }
        let faults = or_noted(read_faults(path), &mut notes)?;
        let mut losses = or_noted(read_losses(path), &mut notes)?;
        if !samples.unreadable.is_empty() {
            // Declared by whoever goes on with the run; until then said here.
            losses.extend(holes(samples.used(), &losses));
        }
        for (stream, seq) in high_water(samples.used().chain(hosts.used()), &losses) {
            manifest.note_committed(&stream, seq);
        }
        Ok(Self {
            path: path.to_owned(),
            manifest,
            samples,
            faults,
            losses,
            notes,
            care,
        })
    }

    /// Opens a run by its id, the beginning of its id, `latest`, or its folder.
    ///
    /// # Errors
    /// When there is none, several, or it cannot be opened.
    pub fn find(data: &Path, wanted: &str) -> Result<Self, StoreError> {
        let path = find_path(data, wanted)?;
        if is_overhead(&path) {
            return Err(StoreError::IsBenchmark(path));
        }
        Self::open(&path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The manifest; of a run that was not closed, brought up to date from what
    /// is stored.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Whether the run is said to be running and no aggregator has its data folder:
    /// whoever wrote it was killed, or its machine was.
    pub fn is_abandoned(&self) -> bool {
        self.manifest.state == RunState::Running
            && self
                .path
                .canonicalize()
                .ok()
                .and_then(|path| path.parent().map(super::lock::is_free))
                .unwrap_or(true)
    }

    /// Where the run stands.
    pub fn standing(&self) -> Standing {
        if self.is_abandoned() {
            Standing::Abandoned
        } else {
            Standing::from_state(self.manifest.state)
        }
    }

    /// What could not be read.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// How many samples are stored.
    pub fn samples_stored(&self) -> u64 {
        self.samples.rows()
    }

    /// The samples, in no particular order; see [`schema::samples_schema`].
    ///
    /// # Errors
    /// When the files cannot be scanned.
    pub fn samples(&self) -> Result<LazyFrame, StoreError> {
        scan(&self.path, &self.samples, &schema::samples_schema())
    }

    /// These columns of them, by agent, target and style.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub fn blocks(&self, columns: &'static [&'static str]) -> Result<Blocks, StoreError> {
        Blocks::find(self.samples.used(), columns)
    }

    /// The agents' lateness; see [`schema::LAG`].
    ///
    /// # Errors
    /// When the files cannot be scanned.
    pub fn lag(&self) -> Result<LazyFrame, StoreError> {
        host_table(&self.path, &LAG, self.care)
    }

    /// The clock exchanges; see [`schema::CLOCK_EXCHANGES`].
    ///
    /// # Errors
    /// When the files cannot be scanned.
    pub fn clock_exchanges(&self) -> Result<LazyFrame, StoreError> {
        host_table(&self.path, &CLOCK_EXCHANGES, self.care)
    }

    /// The agents' clock anchors; see [`schema::CLOCK_ANCHORS`].
    ///
    /// # Errors
    /// When the files cannot be scanned.
    pub fn clock_anchors(&self) -> Result<LazyFrame, StoreError> {
        host_table(&self.path, &CLOCK_ANCHORS, self.care)
    }

    /// Probes of controls and of the agents' own loopbacks; see
    /// [`schema::CONTROL`]. Empty for runs of older agents.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn control(&self) -> Result<LazyFrame, StoreError> {
        host_table(&self.path, &CONTROL, self.care)
    }

    /// The write ledger as it was read; see [`schema::LEDGER_READS`].
    ///
    /// # Errors
    /// When the files cannot be scanned.
    pub fn ledger_reads(&self) -> Result<LazyFrame, StoreError> {
        host_table(&self.path, &LEDGER_READS, self.care)
    }

    /// Connections that were looked at beside the probes; see
    /// [`schema::INSPECTIONS`]. Empty for runs of older agents.
    ///
    /// # Errors
    /// When the files cannot be scanned.
    pub fn inspections(&self) -> Result<LazyFrame, StoreError> {
        host_table(&self.path, &INSPECTIONS, self.care)
    }

    /// The faults, by id; none where their file is damaged, which is noted.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn faults(&self) -> Result<Vec<Fault>, StoreError> {
        Ok(self.faults.clone())
    }

    /// The declared losses; none where their file is damaged, which is noted.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn losses(&self) -> Result<Vec<LossRecord>, StoreError> {
        Ok(self.losses.clone())
    }

    /// Samples declared lost: at least, at most.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn samples_lost(&self) -> Result<(u64, u64), StoreError> {
        Ok(self
            .losses
            .iter()
            .filter(|loss| loss.kind == StreamKind::Samples)
            .fold((0, 0), |(min, max), loss| {
                (min + loss.count_min, max + loss.count_max)
            }))
    }
}

/// The folder of a run, of whatever kind: by its id, the beginning of its id,
/// `latest`, or its folder.
///
/// # Errors
/// When there is none, or several.
pub fn find_path(data: &Path, wanted: &str) -> Result<PathBuf, StoreError> {
    let as_path = Path::new(wanted);
    if as_path.join("manifest.json").is_file() {
        return Ok(as_path.to_owned());
    }
    if wanted.contains('/') {
        return Err(StoreError::NotARun(as_path.to_owned()));
    }
    let runs = list_runs(data)?;
    let not_found = || StoreError::NotFound {
        wanted: wanted.to_owned(),
        data: data.to_owned(),
    };
    if wanted == "latest" {
        // Ids are UUIDv7: they sort by time of creation.
        let (_, path) = runs.last().ok_or_else(not_found)?;
        return Ok(path.clone());
    }
    let matching: Vec<_> = runs
        .iter()
        .filter(|(id, _)| !wanted.is_empty() && id.to_string().starts_with(wanted))
        .collect();
    match matching.as_slice() {
        [] => Err(not_found()),
        [(_, path)] => Ok(path.clone()),
        several => Err(StoreError::Ambiguous {
            prefix: wanted.to_owned(),
            count: several.len(),
            data: data.to_owned(),
        }),
    }
}

/// The runs in a data folder, oldest first.
///
/// # Errors
/// When the folder cannot be listed.
pub fn list_runs(data: &Path) -> Result<Vec<(RunId, PathBuf)>, StoreError> {
    let entries = match std::fs::read_dir(data) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(StoreError::io("list", data))?,
    };
    let mut runs = Vec::new();
    for entry in entries {
        let path = entry.map_err(StoreError::io("list", data))?.path();
        let id = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.parse::<RunId>().ok());
        if let Some(id) = id
            && path.join("manifest.json").is_file()
        {
            runs.push((id, path));
        }
    }
    runs.sort();
    Ok(runs)
}

fn scan_files<'a>(
    folder: &Path,
    files: impl Iterator<Item = &'a PathBuf>,
) -> Result<Option<LazyFrame>, StoreError> {
    let paths = files
        .map(|path| PlRefPath::try_from_path(path).map_err(StoreError::parquet("read", path)))
        .collect::<Result<Vec<_>, _>>()?;
    if paths.is_empty() {
        return Ok(None);
    }
    let args = ScanArgsParquet {
        glob: false,
        ..ScanArgsParquet::default()
    };
    LazyFrame::scan_parquet_files(paths.into_iter().collect(), args)
        .map(Some)
        .map_err(StoreError::parquet("scan", folder))
}

fn scan(folder: &Path, parts: &Parts, schema: &SchemaRef) -> Result<LazyFrame, StoreError> {
    Ok(scan_files(folder, parts.used().map(|part| &part.path))?
        .unwrap_or_else(|| DataFrame::empty_with_schema(schema).lazy()))
}

fn host_table(folder: &Path, table: &HostTable, care: Care) -> Result<LazyFrame, StoreError> {
    let parts = host_parts(folder, table, care)?;
    let mut frames = Vec::new();
    frames.extend(scan_files(
        folder,
        parts.merged.iter().map(|part| &part.path),
    )?);
    // Parts that an older build wrote have fewer columns: each build's together.
    let mut builds: BTreeMap<Vec<String>, Vec<&PathBuf>> = BTreeMap::new();
    for part in &parts.live {
        let file = open_regular(&part.path).map_err(StoreError::io("read", &part.path))?;
        let schema = ParquetReader::new(file)
            .schema()
            .map_err(StoreError::parquet("read", &part.path))?;
        if table.columns.iter().all(|name| schema.contains(name)) {
            let columns = schema.iter_names().map(ToString::to_string).collect();
            builds.entry(columns).or_default().push(&part.path);
        }
    }
    for files in builds.into_values() {
        frames.extend(
            scan_files(folder, files.into_iter())?.map(|live| pick_host_table(live, table)),
        );
    }
    match frames.len() {
        0 => Ok(DataFrame::empty_with_schema(&schema::host_table_schema(table)).lazy()),
        1 => Ok(frames.remove(0)),
        _ => concat(frames, UnionArgs::default()).map_err(StoreError::parquet("scan", folder)),
    }
}

/// Whether a live part's frame can hold records of a table.
pub(crate) fn has_columns(frame: &DataFrame, table: &HostTable) -> bool {
    table
        .columns
        .iter()
        .all(|name| frame.schema().contains(name))
}

/// The rows and columns of one table among live host records.
pub(crate) fn pick_host_table(mut live: LazyFrame, table: &HostTable) -> LazyFrame {
    // Parts that an older build wrote lack the columns of newer records.
    let there = live.collect_schema().ok();
    let columns: Vec<Expr> = schema::host_table_schema(table)
        .iter()
        .map(|(name, kind)| {
            if there.as_ref().is_none_or(|there| there.contains(name)) {
                col(name.clone())
            } else {
                lit(NULL).cast(kind.clone()).alias(name.clone())
            }
        })
        .collect();
    live.filter(col(schema::host::KIND).eq(lit(table.kind)))
        .select(columns)
}
