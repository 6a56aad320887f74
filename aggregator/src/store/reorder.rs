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
use super::pages::{self, Pages, maybe, truths};
use super::reader::Part;
use super::schema::{samples, samples_schema};
use super::slab::{Slab, Source, Words};
use crate::names::Names;

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
    let mut names = Names::default();
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
            known[place] = of[slab].word(number).map(|word| names.number(word));
        }
        known[place]
    };
    let found: Vec<Option<u32>> = places.iter().map(&mut at).collect();
    let wrong =
        |error: PolarsError| StoreError::parquet("write", std::path::Path::new(name))(error);
    pages::words(names, found.into_iter()).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gapscope_proto::ids::{Incarnation, RunId};
    use gapscope_proto::sample::{Canary, Cause, Outcome, Phase, Sample, Style};
    use gapscope_proto::time::Timestamp;
    use polars::prelude::*;

    use super::super::buffer::Buffer;
    use super::super::disk::Disk;
    use super::super::merge::OF_LIVE;
    use super::super::reader::read_parquet;
    use super::*;

    #[test]
    fn all_columns_of_samples_are_read() {
        let schema = samples_schema();
        let names: Vec<&str> = schema.iter_names().map(|name| name.as_str()).collect();
        assert_eq!(names, COLUMNS);
    }

    fn sample(slot: u64) -> Sample {
        let text = |least: u64, word: &str| {
            let is_there = slot % 7 >= least;
            is_there.then(|| Arc::from(format!("{word} {}", slot / 11 % 3)))
        };
        let odd = |value: u64| (slot % 3 != 1).then_some(value);
        Sample {
            target: Arc::new(format!("target-{}", slot % 5 / 2).parse().expect("a name")),
            style: if slot.is_multiple_of(2) {
                Style::New
            } else {
                Style::Reused
            },
            client: (slot % 13) as u16,
            slot,
            scheduled: Timestamp::from_ns(slot.cast_signed() * 10),
            started: Timestamp::from_ns(slot.cast_signed() * 10 + 3),
            finished: Timestamp::from_ns(slot.cast_signed() * 10 + 7),
            resolve_ns: odd(slot),
            connect_ns: odd(slot + 1),
            query_ns: odd(u64::MAX - 1 - slot),
            phase: Phase::Query,
            outcome: if slot.is_multiple_of(4) {
                Outcome::Ok
            } else {
                Outcome::ConnectionLost
            },
            cause: (slot % 4 == 1).then_some(Cause::Refused),
            error_code: odd(slot % 3_000).map(|code| code as u16),
            sqlstate: text(5, "S"),
            error: text(4, "an error that is longer than a view holds by itself"),
            may_have_executed: slot % 5 == 2,
            connection: odd(slot).map(|of| of as u32),
            connection_id: odd(slot << 40),
            handshake_id: odd(slot).map(|of| of as u32),
            backend: text(1, "backend"),
            peer: text(2, "peer"),
            server_version: text(6, "version"),
            canary: (slot % 9 == 4).then_some(Canary::UserVariable),
        }
    }

    /// The rows of two parts, whatever they are made into, are the same rows to polars,
    /// and stand as they should.
    #[test]
    fn rows_stay_what_they_are_in_another_order() {
        let folder = tempfile::tempdir().expect("a folder");
        let (disk, run) = (Disk::default(), RunId::generate());
        let footer = Footer::new(run, Vec::new(), Vec::new());
        let mut parts = Vec::new();
        for (name, agent, slots) in [("1", "east", 0..700_u64), ("2", "west", 300..900)] {
            let path = folder.path().join(name);
            let mut buffer = Buffer::default();
            let agent = agent.parse().expect("a name");
            let rows = slots.end - slots.start;
            buffer.append_samples(&agent, Incarnation::generate(), 0, slots.map(sample));
            let columns = buffer.columns(run).expect("columns");
            disk.write_sealed(&path, |out| {
                let pages = Pages::new(out, &samples_schema(), OF_LIVE.into(), &footer);
                let mut pages = pages.expect("begun");
                pages.write(&columns).expect("written");
                pages.finish().map_err(StoreError::parquet("write", &path))
            })
            .expect("written");
            let footer = footer.clone();
            parts.push(Part { path, footer, rows });
        }
        let key = [samples::AGENT_ID, samples::TARGET, samples::STYLE];
        let read = |paths: &[&std::path::Path]| {
            let frames = paths.iter().map(|path| {
                let frame = read_parquet(path).expect("polars reads it");
                assert_eq!(frame.schema(), &samples_schema());
                frame.lazy()
            });
            concat(frames.collect::<Vec<_>>(), UnionArgs::default()).expect("together")
        };
        let sorted = |rows: LazyFrame| {
            let by = [
                col(samples::AGENT_ID).cast(DataType::String),
                col(samples::SEQ),
            ];
            let sorted = rows.sort_by_exprs(by, SortMultipleOptions::default());
            sorted.collect().expect("sorted")
        };
        let paths: Vec<&std::path::Path> = parts.iter().map(|part| part.path.as_path()).collect();
        let before = sorted(read(&paths));
        assert_eq!(before.height(), 1_300);
        for in_order in [false, true] {
            let path = folder.path().join("whole");
            disk.write_sealed(&path, |out| {
                write(out, &path, OF_LIVE.into(), &footer, parts.iter(), in_order)
            })
            .expect("written");
            super::super::footer::read_sound(&path).expect("sealed");
            let whole = read(&[&path]);
            assert!(sorted(whole.clone()).equals_missing(&before), "{in_order}");
            let keys = whole.select(key.map(col)).collect().expect("there");
            let words: Vec<Vec<String>> = keys
                .columns()
                .iter()
                .map(|column| {
                    let texts = column.cast(&DataType::String).expect("words");
                    let texts = texts.str().expect("words");
                    texts.iter().flatten().map(str::to_owned).collect()
                })
                .collect();
            let rows: Vec<[&String; 3]> = (0..keys.height())
                .map(|row| [&words[0][row], &words[1][row], &words[2][row]])
                .collect();
            let blocks = rows.chunk_by(|a, b| a == b).count();
            let distinct: std::collections::HashSet<_> = rows.iter().collect();
            assert_eq!(blocks == distinct.len(), in_order, "{blocks} blocks");
        }
        // A value of each kind, by what went in.
        let of = before.column(samples::QUERY_NS).expect("there");
        let query: Vec<Option<u64>> = of.u64().expect("numbers").iter().collect();
        let slots = (0..700).chain(300..900);
        let expect: Vec<Option<u64>> = slots.map(|slot| sample(slot).query_ns).collect();
        assert_eq!(query, expect);
        let texts = before.column(samples::ERROR).expect("there");
        let texts = texts.cast(&DataType::String).expect("words");
        let slots = (0..700).chain(300..900);
        let expect = slots.map(|slot| sample(slot).error.map(|text| text.to_string()));
        let found = texts
            .str()
            .expect("words")
            .iter()
            .map(|t| t.map(str::to_owned));
        assert!(found.eq(expect));
    }
}
