//! Rows of samples from several parts into one file, as they come or put into order.

use std::collections::HashMap;

use polars::prelude::{DataType, PolarsError};
use polars_arrow::array::Array;
use polars_arrow::types::NativeType;
use polars_parquet::write::CompressionOptions;

use super::disk::Out;
use super::error::StoreError;
use super::footer::Footer;
use super::merge::ROW_GROUP;
use super::pages::{Dictionary, Pages, maybe, truths};
use super::reader::Part;
use super::schema::{samples, samples_schema};
use super::slab::{Slab, Source, Words};

/// Rows that are put into order together.
const ORDERED: usize = 1 << 19;
/// Rows of one key that have a row group of their own.
const LEAST_GROUP: usize = 1 << 15;

/// A row: of which slab, and where in it.
type Place = (u32, u32);

/// Writes the rows of `parts` into a file. In order: those of one agent, target and
/// style together, so many at a time, in the order in which they came; whoever looks
/// at one of these after the other then reads each row once ([`super::blocks`]).
///
/// Columns that a part of an older build does not have are null.
pub(crate) fn write<'a>(
    out: &mut Out,
    path: &std::path::Path,
    compression: CompressionOptions,
    footer: &Footer,
    parts: impl Iterator<Item = &'a Part>,
    in_order: bool,
) -> Result<(), StoreError> {
    let schema = samples_schema();
    let columns: Vec<&'static str> = COLUMNS.to_vec();
    let wrong = || StoreError::parquet("write", path);
    let mut pages = Pages::new(out, &schema, compression, footer).map_err(wrong())?;
    let full = if in_order { ORDERED } else { ROW_GROUP };
    let mut slabs: Vec<Slab> = Vec::new();
    let mut held = 0;
    let mut flush = |slabs: &mut Vec<Slab>| {
        for places in groups(slabs, in_order)? {
            let rows = gathered(slabs, &places)?;
            pages.write(&rows).map_err(wrong())?;
        }
        slabs.clear();
        Ok::<(), StoreError>(())
    };
    for part in parts {
        let source = Source::open(&part.path)?;
        for (group, rows) in source.groups().enumerate() {
            for from in (0..rows).step_by(ROW_GROUP) {
                let slab = source.read(group, from..rows.min(from + ROW_GROUP), &columns)?;
                held += slab.rows();
                slabs.push(slab);
                if held >= full {
                    flush(&mut slabs)?;
                    held = 0;
                }
            }
        }
    }
    flush(&mut slabs)?;
    pages.finish().map_err(wrong())
}

/// All columns of samples; a test compares them with the schema.
const COLUMNS: [&str; 28] = [
    samples::RUN_ID,
    samples::AGENT_ID,
    samples::INCARNATION,
    samples::TARGET,
    samples::STYLE,
    samples::CLIENT,
    samples::SEQ,
    samples::SLOT,
    samples::SCHEDULED_NS,
    samples::STARTED_NS,
    samples::FINISHED_NS,
    samples::RESOLVE_NS,
    samples::CONNECT_NS,
    samples::QUERY_NS,
    samples::PHASE,
    samples::OUTCOME,
    samples::CAUSE,
    samples::ERROR_CODE,
    samples::SQLSTATE,
    samples::ERROR,
    samples::MAY_HAVE_EXECUTED,
    samples::CONNECTION,
    samples::CONNECTION_ID,
    samples::HANDSHAKE_ID,
    samples::BACKEND,
    samples::PEER,
    samples::SERVER_VERSION,
    samples::CANARY,
];

fn numbered<T>(values: impl IntoIterator<Item = T>) -> impl Iterator<Item = (u32, T)> {
    (0u32..).zip(values)
}

/// The rows of each row group of the new file.
fn groups(slabs: &[Slab], in_order: bool) -> Result<Vec<Vec<Place>>, StoreError> {
    let rows_of = |slab: &Slab| 0..u32::try_from(slab.rows()).unwrap_or(u32::MAX);
    if !in_order {
        let all = numbered(slabs).flat_map(|(at, slab)| rows_of(slab).map(move |row| (at, row)));
        let all: Vec<Place> = all.collect();
        return Ok(if all.is_empty() { vec![] } else { vec![all] });
    }
    let mut order: Vec<Vec<Place>> = Vec::new();
    let mut known: HashMap<[&str; 3], usize> = HashMap::new();
    for (at, slab) in numbered(slabs) {
        let key = [samples::AGENT_ID, samples::TARGET, samples::STYLE];
        let [agents, targets, styles] = key.map(|name| slab.words(name));
        let words = [agents?, targets?, styles?];
        let mut last = None;
        for row in rows_of(slab) {
            let numbers = words.map(|words| words.numbers.get(row as usize));
            let place = match last {
                Some((before, place)) if before == numbers => place,
                _ => {
                    let key = words.map(|words| words.get(row as usize).unwrap_or_default());
                    *known.entry(key).or_insert_with(|| {
                        order.push(Vec::new());
                        order.len() - 1
                    })
                }
            };
            last = Some((numbers, place));
            order[place].push((at, row));
        }
    }
    let mut groups = Vec::new();
    let mut rows: Vec<Place> = Vec::new();
    for of_key in order {
        rows.extend(of_key);
        if rows.len() >= LEAST_GROUP {
            groups.push(std::mem::take(&mut rows));
        }
    }
    if !rows.is_empty() {
        groups.push(rows);
    }
    Ok(groups)
}

/// These rows, as columns of the schema of samples.
fn gathered(slabs: &[Slab], places: &[Place]) -> Result<Vec<Box<dyn Array>>, StoreError> {
    let schema = samples_schema();
    let columns = schema.iter().map(|(name, dtype)| match dtype {
        DataType::UInt16 => numbers::<u16>(slabs, places, name),
        DataType::UInt32 => numbers::<u32>(slabs, places, name),
        DataType::UInt64 => numbers::<u64>(slabs, places, name),
        DataType::Int64 => numbers::<i64>(slabs, places, name),
        DataType::Boolean => {
            let of = each(slabs, |slab| slab.truths(name))?;
            let at = |(slab, row): &Place| of[*slab as usize].get(*row as usize);
            Ok(truths(places.iter().map(at)))
        }
        _ => words(slabs, places, name),
    });
    columns.collect()
}

fn each<'a, T>(
    slabs: &'a [Slab],
    of: impl Fn(&'a Slab) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    slabs.iter().map(of).collect()
}

fn numbers<T: NativeType>(
    slabs: &[Slab],
    places: &[Place],
    name: &str,
) -> Result<Box<dyn Array>, StoreError> {
    let of = each(slabs, |slab| slab.numbers::<T>(name))?;
    let at = |(slab, row): &Place| of[*slab as usize].get(*row as usize);
    Ok(maybe(places.iter().map(at)))
}

fn words(slabs: &[Slab], places: &[Place], name: &str) -> Result<Box<dyn Array>, StoreError> {
    let of: Vec<Words<'_>> = each(slabs, |slab| slab.words(name))?;
    let mut dictionary = Dictionary::default();
    // Of each slab's words, the numbers they have here.
    let mut numbers: Vec<Vec<Option<u32>>> = vec![Vec::new(); slabs.len()];
    let mut at = |(slab, row): &Place| {
        let slab = *slab as usize;
        let number = of[slab].numbers.get(*row as usize)?;
        let known = &mut numbers[slab];
        let place = number as usize;
        if place >= known.len() {
            known.resize(place + 1, None);
        }
        if known[place].is_none() {
            known[place] = of[slab].word(number).map(|word| dictionary.number(word));
        }
        known[place]
    };
    let found: Vec<Option<u32>> = places.iter().map(&mut at).collect();
    let wrong =
        |error: PolarsError| StoreError::parquet("write", std::path::Path::new(name))(error);
    dictionary.column(found.into_iter()).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_columns_of_samples_are_read() {
        let schema = samples_schema();
        let names: Vec<&str> = schema.iter_names().map(|name| name.as_str()).collect();
        assert_eq!(names, COLUMNS);
    }
}
