//! Turns parts into fewer, larger ones: live parts into the files of a closed
//! run, and many small live parts into one, so that a long run does not leave a
//! file for each fifth of a second.
//!
//! The new file names the parts it replaces in its footer and appears whole or
//! not at all; only then are they removed. A crash at any point leaves either the
//! old parts alone, or the new file with leftovers that readers do not count.
//! Rows go through one row group at a time, so that memory is bounded whatever
//! the length of the run. A part whose checksum does not hold is not merged: its
//! damage would get a new, valid checksum.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use gapscope_proto::ids::RunId;
use polars::io::parquet::write::BatchedWriter;
use polars::prelude::{DataFrame, Expr, IntoLazy, NULL, ParquetWriter, SchemaRef, col, lit};

use super::disk::{Disk, Out, part_name, part_number};
use super::error::StoreError;
use super::footer::{Footer, Range, push_range};
use super::reader::{
    Care, Part, Parts, has_columns, host_parts, pick_host_table, read_rows, sample_parts,
};
use super::schema::{HOST_TABLES, HostTable, host_schema, host_table_schema, samples_schema};

/// Rows in a row group of a merged file, and in a live part that is left alone.
pub(crate) const ROW_GROUP: usize = 1 << 18;
/// So many small live parts are made one.
pub(crate) const MOST_SMALL: usize = 256;
/// Or fewer, where they hold so many rows.
const MOST_SMALL_ROWS: u64 = 1 << 20;
const LEAST_SMALL: usize = 16;

/// Small live parts of one kind, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Small {
    parts: usize,
    rows: u64,
}

impl Small {
    /// Those among `parts`.
    pub(crate) fn among(parts: &[Part]) -> Self {
        let mut small = Self::default();
        for part in parts {
            small.add(part.rows);
        }
        small
    }

    /// One more live part.
    pub(crate) fn add(&mut self, rows: u64) {
        if is_small(rows) {
            self.parts += 1;
            self.rows += rows;
        }
    }

    /// Whether it is time to make one of them.
    pub(crate) fn are_many(self) -> bool {
        self.parts >= MOST_SMALL || (self.parts >= LEAST_SMALL && self.rows >= MOST_SMALL_ROWS)
    }
}

fn is_small(rows: u64) -> bool {
    rows < ROW_GROUP as u64
}

fn names<'a>(parts: impl Iterator<Item = &'a Part>) -> Vec<String> {
    parts.map(|part| part.name().into_owned()).collect()
}

fn ranges<'a>(parts: impl Iterator<Item = &'a Part>) -> Vec<Range> {
    let mut joined = Vec::new();
    for range in parts.flat_map(|part| &part.footer.ranges) {
        push_range(&mut joined, range.clone());
    }
    joined
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
    pick: Pick<'_>,
) -> Result<(), StoreError> {
    disk.write_sealed(path, |out| {
        let writer = ParquetWriter::new(out)
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

fn as_it_is(_: &Part, rows: DataFrame) -> Result<DataFrame, StoreError> {
    Ok(rows)
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
        let footer = Footer::new(run, ranges(parts.live.iter()), names(parts.live.iter()));
        let schema = samples_schema();
        write(disk, &path, &schema, &footer, parts.live.iter(), &as_it_is)?;
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
        replaces.extend(names(parts.live.iter()));
        replaces.sort();
        let footer = Footer::new(run, ranges(parts.used()), replaces);
        let schema = host_table_schema(table);
        write(disk, &path, &schema, &footer, parts.used(), &pick)?;
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

/// Makes the small live parts of samples one live part, numbered `number`.
pub(crate) fn compact_samples(
    folder: &Path,
    disk: &Disk,
    run: RunId,
    number: u64,
) -> Result<Small, StoreError> {
    let parts = sample_parts(folder, Care::LiveChecksums)?;
    let live = folder.join("samples/live");
    compact(
        &live,
        disk,
        run,
        number,
        &samples_schema(),
        &parts,
        &HashSet::new(),
    )
}

/// Makes the small live parts of host records one live part, numbered `number`.
pub(crate) fn compact_hosts(
    folder: &Path,
    disk: &Disk,
    run: RunId,
    number: u64,
) -> Result<Small, StoreError> {
    let live = folder.join("host/live");
    // A close that broke off has put some of them into some tables: under another
    // name they would be put there again.
    let mut in_tables = HashSet::new();
    for table in HOST_TABLES {
        in_tables.extend(merged_names(folder, table)?);
    }
    let parts = Parts::find(&[], &live, Care::LiveChecksums)?;
    compact(&live, disk, run, number, &host_schema(), &parts, &in_tables)
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

fn merged_names(folder: &Path, table: &HostTable) -> Result<HashSet<String>, StoreError> {
    let parts = host_parts(folder, table, Care::Footers)?;
    let merged = parts.merged.iter();
    Ok(merged
        .flat_map(|part| part.footer.replaces.iter().cloned())
        .collect())
}

fn compact(
    live: &Path,
    disk: &Disk,
    run: RunId,
    number: u64,
    schema: &SchemaRef,
    parts: &Parts,
    not: &HashSet<String>,
) -> Result<Small, StoreError> {
    // Leftovers first: the new part will not name what these were replaced by.
    remove_all(disk, live, parts.superseded.iter())?;
    let small: Vec<&Part> = parts
        .live
        .iter()
        .filter(|part| is_small(part.rows) && !not.contains(&*part.name()))
        .collect();
    let mut left = Small::default();
    if small.len() < 2 {
        return Ok(left);
    }
    let path = live.join(part_name(number));
    let footer = Footer::new(
        run,
        ranges(small.iter().copied()),
        names(small.iter().copied()),
    );
    let whole = |part: &Part, rows: DataFrame| complete(part, rows, schema);
    write(disk, &path, schema, &footer, small.iter().copied(), &whole)?;
    remove_all(disk, live, small.iter().map(|part| &part.path))?;
    left.add(small.iter().map(|part| part.rows).sum());
    Ok(left)
}
