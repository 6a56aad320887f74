//! Turns live parts into the files of a closed run.
//!
//! The merged file names the live parts it replaces in its footer and appears
//! whole or not at all; only then are they removed. A crash at any point leaves
//! either the live parts alone, or the merged file with leftovers that readers
//! do not count. Samples go through one row group at a time, so that memory is
//! bounded whatever the length of the run.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use gapscope_proto::ids::RunId;
use polars::io::parquet::write::BatchedWriter;
use polars::prelude::{DataFrame, IntoLazy, ParquetWriter};

use super::disk::{Disk, part_name, part_number};
use super::error::StoreError;
use super::footer::{Footer, Range, push_range};
use super::reader::{Part, has_columns, host_parts, pick_host_table, read_parquet, sample_parts};
use super::schema::{HOST_TABLES, LEDGER_READS, host_table_schema, samples_schema};

/// Rows in a row group of a merged file.
const ROW_GROUP: usize = 1 << 18;

fn names<'a>(parts: impl Iterator<Item = &'a Part>) -> Vec<String> {
    parts
        .filter_map(|part| Some(part.path.file_name()?.to_str()?.to_owned()))
        .collect()
}

fn ranges<'a>(parts: impl Iterator<Item = &'a Part>) -> Vec<Range> {
    let mut joined = Vec::new();
    for range in parts.flat_map(|part| &part.footer.ranges) {
        push_range(&mut joined, range.clone());
    }
    joined
}

/// Merges the live sample parts into one more file of `samples/`.
pub(crate) fn merge_samples(folder: &Path, disk: &Disk, run: RunId) -> Result<(), StoreError> {
    let parts = sample_parts(folder)?;
    if !parts.live.is_empty() {
        let number = parts
            .merged
            .iter()
            .filter_map(|part| part_number(&part.path))
            .chain(parts.unreadable.iter().filter_map(|path| part_number(path)))
            .max()
            .unwrap_or(0)
            + 1;
        let path = folder.join("samples").join(part_name(number));
        let footer = Footer::new(run, ranges(parts.live.iter()), names(parts.live.iter()));
        disk.write(&path, |out| {
            let writer = ParquetWriter::new(out)
                .with_key_value_metadata(Some(footer.to_metadata()))
                .batched(&samples_schema())
                .map_err(StoreError::parquet("write", &path))?;
            copy(writer, &path, &parts.live)
        })?;
    }
    for part in parts
        .live
        .iter()
        .map(|part| &part.path)
        .chain(&parts.replaced)
    {
        disk.remove(part)?;
    }
    disk.sync_folder(&folder.join("samples/live"))
}

fn copy(
    mut writer: BatchedWriter<&mut BufWriter<File>>,
    path: &Path,
    parts: &[Part],
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
        let frame = read_parquet(&part.path)?;
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
    flush(&mut group)?;
    writer
        .finish()
        .map(drop)
        .map_err(StoreError::parquet("write", path))
}

/// Makes the tables of host records whole; then the live host parts go.
pub(crate) fn merge_hosts(folder: &Path, disk: &Disk, run: RunId) -> Result<(), StoreError> {
    for table in HOST_TABLES {
        let path = folder.join(format!("{}.parquet", table.file));
        let parts = host_parts(folder, table)?;
        if parts.live.is_empty() && !parts.merged.is_empty() {
            continue;
        }
        let mut whole = DataFrame::empty_with_schema(&host_table_schema(table));
        for part in &parts.merged {
            whole
                .vstack_mut_owned(read_parquet(&part.path)?)
                .map_err(StoreError::parquet("merge", &part.path))?;
        }
        for part in &parts.live {
            let frame = read_parquet(&part.path)?;
            if !has_columns(&frame, table) {
                // Of an older build, which had no such records.
                continue;
            }
            let rows = pick_host_table(frame.lazy(), table)
                .collect()
                .map_err(StoreError::parquet("merge", &part.path))?;
            whole
                .vstack_mut_owned(rows)
                .map_err(StoreError::parquet("merge", &part.path))?;
        }
        if table.file == LEDGER_READS.file && whole.height() == 0 {
            // Few runs have one.
            continue;
        }
        whole.rechunk_mut();
        let mut replaces: Vec<String> = parts.replaced_names.iter().cloned().collect();
        replaces.extend(names(parts.live.iter()));
        replaces.sort();
        let footer = Footer::new(run, ranges(parts.used()), replaces);
        disk.write(&path, |out| {
            ParquetWriter::new(out)
                .with_row_group_size(Some(ROW_GROUP))
                .with_key_value_metadata(Some(footer.to_metadata()))
                .finish(&mut whole)
                .map(drop)
                .map_err(StoreError::parquet("write", &path))
        })?;
    }
    // Every table holds its share now.
    let mut tables = HOST_TABLES.iter();
    let first = tables.next().expect("there are tables");
    for leftover in host_parts(folder, first)?.replaced {
        disk.remove(&leftover)?;
    }
    disk.sync_folder(&folder.join("host/live"))
}
