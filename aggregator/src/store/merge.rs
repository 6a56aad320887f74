//! Turns parts into fewer, larger ones: live parts into the files of a closed
//! run, and many small live parts into one, so that a long run does not leave a
//! file for each fifth of a second.
//!
//! The new file names the parts it replaces in its footer and appears whole or
//! not at all; only then are they removed. A crash at any point leaves either the
//! old parts alone, or the new file with leftovers that readers do not count.
//! Rows go through some at a time, so that memory is bounded whatever the length of
//! the run; samples are put into order on the way, those of one agent, target and
//! style together. A part whose checksum does not hold is not merged: its
//! damage would get a new, valid checksum.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use gapscope_proto::ids::RunId;
use polars::io::parquet::write::BatchedWriter;
use polars::prelude::{
    DataFrame, Expr, IntoLazy, NULL, ParquetCompression, ParquetWriter, SchemaRef, col, lit,
};

use super::disk::{Disk, Out, part_name, part_number};
use super::error::StoreError;
use super::footer::{self, Footer, Range, Ranges};
use super::reader::{
    Care, Part, Parts, has_columns, host_parts, pick_host_table, read_rows, sample_parts,
};
use super::reorder;
use super::schema::{HOST_TABLES, HostTable, host_schema, host_table_schema};

/// Rows in a row group of a merged file.
pub(crate) const ROW_GROUP: usize = 1 << 18;
/// Rows in a live part that is left alone: what a busy run writes at once
/// ([`crate::ingest::run::GROUP_RECORDS`]). Merging such parts would write each sample
/// once more, and a run that is so busy has no time for that.
const LEFT_ALONE: u64 = 1 << 16;
/// A live part is written twice: the second time for good, as small as can be.
pub(crate) const OF_LIVE: ParquetCompression = ParquetCompression::Lz4Raw;
/// So many small live parts are made one.
pub(crate) const MOST_SMALL: usize = 256;
/// Or fewer, where they hold so many rows.
const MOST_SMALL_ROWS: u64 = 1 << 20;
const LEAST_SMALL: usize = 16;

/// Small live parts of one kind, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Small {
    names: Vec<String>,
    rows: u64,
}

impl Small {
    /// Those among `parts`.
    pub(crate) fn among(parts: &[Part]) -> Self {
        let mut small = Self::default();
        for part in parts {
            small.add(part.name().into_owned(), part.rows);
        }
        small
    }

    /// One more live part.
    pub(crate) fn add(&mut self, name: String, rows: u64) {
        if is_small(rows) {
            self.names.push(name);
            self.rows += rows;
        }
    }

    /// These as well.
    pub(crate) fn join(&mut self, more: Self) {
        self.names.extend(more.names);
        self.rows += more.rows;
    }

    /// Whether it is time to make one of them.
    pub(crate) fn are_many(&self) -> bool {
        let parts = self.names.len();
        parts >= MOST_SMALL || (parts >= LEAST_SMALL && self.rows >= MOST_SMALL_ROWS)
    }
}

fn is_small(rows: u64) -> bool {
    rows < LEFT_ALONE
}

fn names_of<'a>(parts: impl Iterator<Item = &'a Part>) -> Vec<String> {
    parts.map(|part| part.name().into_owned()).collect()
}

fn ranges<'a>(parts: impl Iterator<Item = &'a Part>) -> Vec<Range> {
    let mut joined = Ranges::default();
    for range in parts.flat_map(|part| &part.footer.ranges) {
        joined.push(range.clone());
    }
    joined.list().to_vec()
}

/// What is done to rows on their way from a part into the new file.
type Pick<'a> = &'a dyn Fn(&Part, DataFrame) -> Result<DataFrame, StoreError>;

/// Writes `parts` into the new file `path`.
fn write<'a>(
    disk: &Disk,
    path: &Path,
    schema: &SchemaRef,
    footer: &Footer,
    parts: impl Iterator<Item = &'a Part>,
    (pick, compression): (Pick<'_>, ParquetCompression),
) -> Result<(), StoreError> {
    disk.write_sealed(path, |out| {
        let writer = ParquetWriter::new(out)
            .with_compression(compression)
            .with_key_value_metadata(Some(footer.to_metadata()))
            .batched(schema)
            .map_err(StoreError::parquet("write", path))?;
        copy(writer, path, parts, pick)
    })
}

fn copy<'a>(
    mut writer: BatchedWriter<&mut Out>,
    path: &Path,
    parts: impl Iterator<Item = &'a Part>,
    pick: Pick<'_>,
) -> Result<(), StoreError> {
    let mut group: Option<DataFrame> = None;
    let mut flush = |group: &mut Option<DataFrame>| {
        let Some(mut frame) = group.take() else {
            return Ok(());
        };
        frame.rechunk_mut();
        writer
            .write_batch(&frame)
            .map_err(StoreError::parquet("write", path))
    };
    for part in parts {
        let rows = usize::try_from(part.rows).unwrap_or(usize::MAX);
        for from in (0..rows).step_by(ROW_GROUP) {
            let frame = pick(part, read_rows(&part.path, from, ROW_GROUP)?)?;
            if frame.height() == 0 {
                continue;
            }
            match &mut group {
                Some(group) => {
                    group
                        .vstack_mut(&frame)
                        .map_err(StoreError::parquet("merge", &part.path))?;
                }
                None => group = Some(frame),
            }
            if group.as_ref().is_some_and(|g| g.height() >= ROW_GROUP) {
                flush(&mut group)?;
            }
        }
    }
    flush(&mut group)?;
    writer
        .finish()
        .map(drop)
        .map_err(StoreError::parquet("write", path))
}

/// Rows with every column of `schema`: parts of an older build have fewer.
fn complete(part: &Part, rows: DataFrame, schema: &SchemaRef) -> Result<DataFrame, StoreError> {
    if rows.width() == schema.len() {
        return Ok(rows);
    }
    let columns: Vec<Expr> = schema
        .iter()
        .map(|(name, dtype)| {
            if rows.schema().contains(name) {
                col(name.clone())
            } else {
                lit(NULL).cast(dtype.clone()).alias(name.clone())
            }
        })
        .collect();
    rows.lazy()
        .select(columns)
        .collect()
        .map_err(StoreError::parquet("merge", &part.path))
}

fn remove_all<'a>(
    disk: &Disk,
    folder: &Path,
    files: impl Iterator<Item = &'a PathBuf>,
) -> Result<(), StoreError> {
    let mut any = false;
    for file in files {
        disk.remove(file)?;
        any = true;
    }
    if any {
        disk.sync_folder(folder)
    } else {
        Ok(())
    }
}

/// Merges the live sample parts into one more file of `samples/`; returns what
/// could not be merged, in words.
pub(crate) fn merge_samples(
    folder: &Path,
    disk: &Disk,
    run: RunId,
) -> Result<Vec<String>, StoreError> {
    let parts = sample_parts(folder, Care::LiveChecksums)?;
    if !parts.live.is_empty() {
        let merged = parts.merged.iter().map(|part| &part.path);
        let number = merged
            .chain(&parts.unreadable)
            .filter_map(|path| part_number(path))
            .max()
            .unwrap_or(0)
            + 1;
        let path = folder.join("samples").join(part_name(number));
        let footer = Footer::new(run, ranges(parts.live.iter()), names_of(parts.live.iter()));
        disk.write_sealed(&path, |out| {
            let for_good = ParquetCompression::default().into();
            reorder::write(out, &path, for_good, &footer, parts.live.iter(), true)
        })?;
    }
    let live = parts.live.iter().map(|part| &part.path);
    let gone = live.chain(&parts.replaced).chain(&parts.superseded);
    remove_all(disk, &folder.join("samples/live"), gone)?;
    Ok(parts.notes)
}

/// Makes the tables of host records whole; then the live host parts go. Returns
/// what could not be merged, in words.
pub(crate) fn merge_hosts(
    folder: &Path,
    disk: &Disk,
    run: RunId,
) -> Result<Vec<String>, StoreError> {
    let mut notes = Vec::new();
    for table in HOST_TABLES {
        let path = folder.join(format!("{}.parquet", table.file));
        let parts = host_parts(folder, table, Care::Checksums)?;
        notes.extend(parts.notes.iter().cloned());
        if parts.live.is_empty() && !parts.merged.is_empty() {
            continue;
        }
        let merged: HashSet<&PathBuf> = parts.merged.iter().map(|part| &part.path).collect();
        let pick = |part: &Part, rows: DataFrame| {
            if merged.contains(&part.path) {
                return Ok(rows);
            }
            if !has_columns(&rows, table) {
                // Of an older build, which had no such records.
                return Ok(DataFrame::empty_with_schema(&host_table_schema(table)));
            }
            pick_host_table(rows.lazy(), table)
                .collect()
                .map_err(StoreError::parquet("merge", &part.path))
        };
        if table.is_rare && !has_rows(&parts, &pick)? {
            continue;
        }
        let mut replaces: Vec<String> = parts.replaced_names.iter().cloned().collect();
        replaces.extend(names_of(parts.live.iter()));
        replaces.sort();
        let footer = Footer::new(run, ranges(parts.used()), replaces);
        let schema = host_table_schema(table);
        write(
            disk,
            &path,
            &schema,
            &footer,
            parts.used(),
            (&pick, ParquetCompression::default()),
        )?;
    }
    // Every table holds its share now.
    let mut tables = HOST_TABLES.iter();
    let first = tables.next().expect("there are tables");
    let parts = host_parts(folder, first, Care::Footers)?;
    let gone = parts.replaced.iter().chain(&parts.superseded);
    remove_all(disk, &folder.join("host/live"), gone)?;
    notes.dedup();
    Ok(notes)
}

/// Small live parts that are to become one, beside which others may be written.
#[derive(Debug)]
pub(crate) struct Compaction {
    pub(crate) folder: PathBuf,
    pub(crate) disk: Disk,
    pub(crate) run: RunId,
    pub(crate) is_host: bool,
    /// Of the new part.
    pub(crate) number: u64,
    pub(crate) small: Small,
}

impl Compaction {
    /// Makes one part of them; returns the small ones that are left then. Everything
    /// that is stored stays stored whether this works or not.
    ///
    /// Reads these parts only: its cost must not grow with the run.
    pub(crate) fn perform(self) -> (Small, Result<(), StoreError>) {
        let live = self.folder.join(if self.is_host {
            "host/live"
        } else {
            "samples/live"
        });
        let parts = match self.sound_parts(&live) {
            Ok(parts) if parts.len() >= 2 => parts,
            Ok(_) => return (Small::default(), Ok(())),
            Err(error) => return (self.small, Err(error)),
        };
        let name = part_name(self.number);
        let path = live.join(&name);
        let footer = Footer::new(self.run, ranges(parts.iter()), names_of(parts.iter()));
        let written = if self.is_host {
            let schema = host_schema();
            let whole = |part: &Part, rows: DataFrame| complete(part, rows, &schema);
            let how: (Pick<'_>, _) = (&whole, OF_LIVE);
            write(&self.disk, &path, &schema, &footer, parts.iter(), how)
        } else {
            self.disk.write_sealed(&path, |out| {
                reorder::write(out, &path, OF_LIVE.into(), &footer, parts.iter(), false)
            })
        };
        if let Err(error) = written {
            // It may have got its name all the same. What it names must not be merged
            // a second time while it is there.
            let is_undone = self.disk.remove(&path).is_ok();
            let left = if is_undone {
                self.small
            } else {
                Small::default()
            };
            return (left, Err(error));
        }
        let mut left = Small::default();
        left.add(name, parts.iter().map(|part| part.rows).sum());
        // What cannot be removed is read no more, and goes with the close.
        let removed = remove_all(&self.disk, &live, parts.iter().map(|part| &part.path));
        (left, removed)
    }

    fn sound_parts(&self, live: &Path) -> Result<Vec<Part>, StoreError> {
        // A close that broke off has put some of them into some tables: under another
        // name they would be put there again.
        let mut in_tables = HashSet::new();
        if self.is_host {
            for table in HOST_TABLES {
                in_tables.extend(table_replaces(&self.folder, table)?);
            }
        }
        let mut parts = Vec::new();
        let names = self.small.names.iter();
        for name in names.filter(|name| !in_tables.contains(*name)) {
            let path = live.join(name);
            match footer::read_sound(&path) {
                Ok((footer, rows)) => parts.push(Part { path, footer, rows }),
                Err(error @ StoreError::NewerFormat { .. }) => return Err(error),
                // Stays as it is: the close says so and declares what it held.
                Err(error) => tracing::error!("{error}; it is not merged"),
            }
        }
        // Leftovers first: the new part will not name what these were replaced by.
        let replaced = parts.iter().flat_map(|part| &part.footer.replaces);
        let leftovers: Vec<PathBuf> = replaced
            .map(|name| live.join(name))
            .filter(|path| path.exists())
            .collect();
        remove_all(&self.disk, live, leftovers.iter())?;
        Ok(parts)
    }
}

/// Names of the live parts that a table of host records holds.
fn table_replaces(folder: &Path, table: &HostTable) -> Result<Vec<String>, StoreError> {
    let path = folder.join(format!("{}.parquet", table.file));
    if !path.exists() {
        return Ok(Vec::new());
    }
    match footer::read(&path) {
        Ok((footer, _)) => Ok(footer.replaces),
        Err(error @ StoreError::NewerFormat { .. }) => Err(error),
        // The close finds it, too, and says so.
        Err(_) => Ok(Vec::new()),
    }
}

/// Whether any row of the parts is picked.
fn has_rows(parts: &Parts, pick: Pick<'_>) -> Result<bool, StoreError> {
    for part in parts.used() {
        let rows = usize::try_from(part.rows).unwrap_or(usize::MAX);
        for from in (0..rows).step_by(ROW_GROUP) {
            if pick(part, read_rows(&part.path, from, ROW_GROUP)?)?.height() > 0 {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
