//! Columns of a row group, straight from a file's pages.
//!
//! A table of polars numbers its words for the whole process and looks every row's
//! word up for that, which took more of an analysis than all the rest. Here the
//! words of a row group are told apart as the file itself tells them apart: by their
//! place in the group's dictionary (Apache Parquet, *Encodings*, dictionary encoding).
//! Files whose words are not in a dictionary are read all the same, a word at a time.
//!
//! What it cannot know: whether two row groups' numbers mean the same word; ask for
//! the word.

use std::collections::HashMap;
use std::fs::File;
use std::io::Cursor;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use polars::prelude::PolarsError;
use polars_arrow::array::{Array, BooleanArray, DictionaryArray, PrimitiveArray, Utf8ViewArray};
use polars_arrow::bitmap::Bitmap;
use polars_arrow::compute::concatenate::concatenate;
use polars_arrow::datatypes::ArrowSchema;
use polars_arrow::types::NativeType;
use polars_parquet::parquet::statistics::Statistics;
use polars_parquet::read::{
    BasicDecompressor, FileMetadata, Filter, PageReader, RowGroupMetadata, column_iter_to_arrays,
    infer_schema, read_metadata,
};

use super::disk::open_regular;
use super::error::StoreError;

/// A file's description of itself.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    metadata: FileMetadata,
    schema: ArrowSchema,
}

/// Some columns of some rows of one row group.
#[derive(Debug)]
pub struct Slab {
    path: PathBuf,
    rows: usize,
    columns: Vec<(&'static str, Held)>,
}

#[derive(Debug)]
enum Held {
    Words(PrimitiveArray<u32>, Utf8ViewArray),
    Other(Box<dyn Array>),
}

/// A column of numbers; one that the file does not have is null throughout.
#[derive(Debug, Clone, Copy)]
pub struct Numbers<'a, T> {
    values: &'a [T],
    validity: Option<&'a Bitmap>,
}

impl<T: Copy> Numbers<'_, T> {
    /// A row's.
    #[inline]
    pub fn get(&self, row: usize) -> Option<T> {
        let value = self.values.get(row)?;
        match self.validity {
            Some(validity) if !validity.get_bit(row) => None,
            _ => Some(*value),
        }
    }
}

impl<T: Copy + PartialEq> Numbers<'_, T> {
    /// Whether all of so many rows are alike.
    pub(crate) fn is_constant(&self, rows: usize) -> bool {
        let nulls = self.validity.map_or(0, Bitmap::unset_bits);
        match self.values.first() {
            None => true,
            Some(_) if nulls > 0 => nulls == rows,
            Some(first) => self.values.iter().all(|value| value == first),
        }
    }
}

/// A column of truths; one that the file does not have is null throughout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Truths<'a>(Option<&'a BooleanArray>);

impl Truths<'_> {
    /// A row's.
    pub(crate) fn get(&self, row: usize) -> Option<bool> {
        let array = self.0?;
        let is_there = row < array.len() && !array.is_null(row);
        is_there.then(|| array.value(row))
    }
}

/// A column of words; one that the file does not have is null throughout.
#[derive(Debug, Clone, Copy)]
pub struct Words<'a> {
    /// Each row's word, by number.
    pub numbers: Numbers<'a, u32>,
    words: Option<&'a Utf8ViewArray>,
}

impl<'a> Words<'a> {
    /// The number's word.
    pub fn word(&self, number: u32) -> Option<&'a str> {
        self.words?.get(number as usize)
    }

    /// A row's word.
    pub fn get(&self, row: usize) -> Option<&'a str> {
        self.word(self.numbers.get(row)?)
    }

    /// Each word that may occur, made into something, by its number.
    pub fn decoded<T>(&self, mut decode: impl FnMut(&str) -> T) -> Vec<Option<T>> {
        // A dictionary may hold words that no row has: what is made of one must not
        // leave traces, so that only those are decoded that a row has.
        let mut found: Vec<Option<T>> = Vec::new();
        let mut last = None;
        for row in 0..self.numbers.values.len() {
            let Some(number) = self.numbers.get(row) else {
                continue;
            };
            if last == Some(number) {
                continue;
            }
            last = Some(number);
            let at = number as usize;
            if at >= found.len() {
                found.resize_with(at + 1, || None);
            }
            if found[at].is_none() {
                found[at] = self.word(number).map(&mut decode);
            }
        }
        found
    }
}

/// The reader panics at offsets that lie outside what there is, and at encodings that
/// no writer makes.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        Err(StoreError::Damaged {
            path: path.to_owned(),
            why: "it cannot be decoded".to_owned(),
        })
    })
}

impl Source {
    /// Reads a file's footer.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        guarded(path, || {
            let mut file = open_regular(path).map_err(StoreError::io("read", path))?;
            let metadata = read_metadata(&mut file).map_err(StoreError::parquet("read", path))?;
            let schema = infer_schema(&metadata).map_err(StoreError::parquet("read", path))?;
            Ok(Self {
                path: path.to_owned(),
                metadata,
                schema,
            })
        })
    }

    /// How many rows each row group has.
    pub(crate) fn groups(&self) -> impl Iterator<Item = usize> {
        self.metadata
            .row_groups
            .iter()
            .map(RowGroupMetadata::num_rows)
    }

    /// The least and the largest value of a column of a row group, if the file says
    /// so itself.
    pub(crate) fn bounds(&self, group: usize, column: &str) -> Option<(i64, i64)> {
        let group = self.metadata.row_groups.get(group)?;
        let chunk = group.columns_under_root_iter(column)?.next()?;
        let found = catch_unwind(AssertUnwindSafe(|| {
            chunk.statistics(&self.metadata.footer_buf)
        }));
        match found.ok()??.ok()? {
            Statistics::Int64(of) => Some((of.min_value?, of.max_value?)),
            _ => None,
        }
    }

    /// Reads these columns of some rows of a row group.
    pub(crate) fn read(
        &self,
        group: usize,
        rows: Range<usize>,
        columns: &[&'static str],
    ) -> Result<Slab, StoreError> {
        guarded(&self.path, || {
            let file = open_regular(&self.path).map_err(StoreError::io("read", &self.path))?;
            let length = file
                .metadata()
                .map_err(StoreError::io("read", &self.path))?;
            let mut found = Vec::with_capacity(columns.len());
            for name in columns {
                if let Some(column) = self.column(&file, length.len(), group, &rows, name)? {
                    found.push((*name, column));
                }
            }
            Ok(Slab {
                path: self.path.clone(),
                rows: rows.len(),
                columns: found,
            })
        })
    }

    fn column(
        &self,
        file: &File,
        length: u64,
        group: usize,
        rows: &Range<usize>,
        name: &str,
    ) -> Result<Option<Held>, StoreError> {
        let damaged = |why: String| StoreError::Damaged {
            path: self.path.clone(),
            why,
        };
        let of_group = self.metadata.row_groups.get(group);
        let of_group = of_group.ok_or_else(|| damaged("a row group is missing".to_owned()))?;
        let Some(field) = self.schema.get(name) else {
            return Ok(None);
        };
        let chunk = of_group
            .columns_under_root_iter(name)
            .and_then(|mut chunks| chunks.next());
        let Some(chunk) = chunk else {
            return Ok(None);
        };
        let at = chunk.byte_range();
        if at.start > at.end || at.end > length {
            return Err(damaged(format!("column `{name}` lies outside it")));
        }
        let mut bytes = vec![0; usize::try_from(at.end - at.start).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, at.start)
            .map_err(StoreError::io("read", &self.path))?;
        let pages = PageReader::new(Cursor::new(bytes.into()), chunk, Vec::new(), usize::MAX);
        let all = *rows == (0..of_group.num_rows());
        let (arrays, _) = column_iter_to_arrays(
            vec![BasicDecompressor::new(pages, Vec::new())],
            vec![&chunk.descriptor().descriptor.primitive_type],
            field.clone(),
            (!all).then(|| Filter::new_ranged(rows.start, rows.end)),
        )
        .map_err(StoreError::parquet("read", &self.path))?;
        let column = column(arrays).map_err(StoreError::parquet("read", &self.path))?;
        let found = match &column {
            Held::Words(numbers, _) => numbers.len(),
            Held::Other(array) => array.len(),
        };
        if found != rows.len() {
            return Err(damaged(format!(
                "column `{name}` has {found} rows where {} should be",
                rows.len()
            )));
        }
        Ok(Some(column))
    }
}

fn column(mut arrays: Vec<Box<dyn Array>>) -> Result<Held, PolarsError> {
    let is_text = |array: &dyn Array| {
        let array = array.as_any();
        array.is::<DictionaryArray<u32>>() || array.is::<Utf8ViewArray>()
    };
    if !arrays.is_empty() && arrays.iter().all(|array| is_text(array.as_ref())) {
        return Ok(words(&arrays));
    }
    let array = match arrays.len() {
        1 => arrays.remove(0),
        _ => {
            let all: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
            concatenate(&all)?
        }
    };
    Ok(Held::Other(array))
}

fn dictionary(array: &dyn Array) -> Option<(&PrimitiveArray<u32>, &Utf8ViewArray)> {
    let array = array.as_any().downcast_ref::<DictionaryArray<u32>>()?;
    let words = array.values().as_any().downcast_ref::<Utf8ViewArray>()?;
    Some((array.keys(), words))
}

fn words(arrays: &[Box<dyn Array>]) -> Held {
    if let [array] = arrays
        && let Some((numbers, words)) = dictionary(array.as_ref())
    {
        return Held::Words(numbers.clone(), words.clone());
    }
    // In pieces, or without a dictionary: numbered here.
    let mut known: HashMap<&str, u32> = HashMap::new();
    let mut order: Vec<&str> = Vec::new();
    let mut numbers: Vec<Option<u32>> = Vec::new();
    for array in arrays {
        let plain = array.as_any().downcast_ref::<Utf8ViewArray>();
        let packed = dictionary(array.as_ref());
        for row in 0..array.len() {
            let word = match (plain, packed) {
                (Some(plain), _) => plain.get(row),
                (None, Some((numbers, words))) => of_array(numbers)
                    .get(row)
                    .and_then(|n| words.get(n as usize)),
                (None, None) => None,
            };
            numbers.push(word.map(|word| {
                *known.entry(word).or_insert_with(|| {
                    order.push(word);
                    u32::try_from(order.len() - 1).unwrap_or(u32::MAX)
                })
            }));
        }
    }
    Held::Words(
        PrimitiveArray::from(numbers),
        Utf8ViewArray::from_slice_values(order),
    )
}

impl Slab {
    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    fn column(&self, name: &str) -> Option<&Held> {
        let found = self.columns.iter().find(|(of, _)| *of == name);
        found.map(|(_, column)| column)
    }

    fn wrong(&self, name: &str, kind: &str) -> StoreError {
        StoreError::Damaged {
            path: self.path.clone(),
            why: format!("column `{name}` does not hold {kind}"),
        }
    }

    /// A column of numbers.
    ///
    /// # Errors
    /// When the file holds something else there.
    pub fn numbers<T: NativeType>(&self, name: &str) -> Result<Numbers<'_, T>, StoreError> {
        let array = match self.column(name) {
            None => {
                return Ok(Numbers {
                    values: &[],
                    validity: None,
                });
            }
            Some(Held::Other(array)) => array.as_any().downcast_ref::<PrimitiveArray<T>>(),
            Some(Held::Words(..)) => None,
        };
        let array = array.ok_or_else(|| self.wrong(name, std::any::type_name::<T>()))?;
        Ok(of_array(array))
    }

    /// A column of truths.
    ///
    /// # Errors
    /// When the file holds something else there.
    pub(crate) fn truths(&self, name: &str) -> Result<Truths<'_>, StoreError> {
        let array = match self.column(name) {
            None => return Ok(Truths(None)),
            Some(Held::Other(array)) => array.as_any().downcast_ref::<BooleanArray>(),
            Some(Held::Words(..)) => None,
        };
        let array = array.ok_or_else(|| self.wrong(name, "truths"))?;
        Ok(Truths(Some(array)))
    }

    /// A column of words.
    ///
    /// # Errors
    /// When the file holds something else there.
    pub fn words(&self, name: &str) -> Result<Words<'_>, StoreError> {
        match self.column(name) {
            None => Ok(Words {
                numbers: Numbers {
                    values: &[],
                    validity: None,
                },
                words: None,
            }),
            Some(Held::Words(numbers, words)) => Ok(Words {
                numbers: of_array(numbers),
                words: Some(words),
            }),
            Some(Held::Other(_)) => Err(self.wrong(name, "words")),
        }
    }
}

fn of_array<T: NativeType>(array: &PrimitiveArray<T>) -> Numbers<'_, T> {
    Numbers {
        values: array.values(),
        validity: array.validity(),
    }
}

#[cfg(test)]
mod tests {
    use polars::prelude::*;

    use super::super::schema::dictionary;
    use super::*;

    type Row = (Option<u16>, Option<i64>, Option<&'static str>);

    const LONG: &str = "a text that is longer than what a view holds itself";
    const TEXTS: [Option<&str>; 5] = [Some("a"), Some("b"), None, Some(""), Some(LONG)];

    /// Rows that repeat now and then, as samples do, and rows that do not.
    fn rows(count: usize) -> Vec<Row> {
        let mut state = 11_u64;
        let mut next = |most: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % most
        };
        let mut text = None;
        (0..count)
            .map(|_| {
                if next(7) == 0 {
                    text = TEXTS[usize::try_from(next(5)).expect("small")];
                }
                let number = next(9).checked_sub(1);
                (
                    number.map(|n| u16::try_from(n).expect("small")),
                    next(3).checked_sub(1).map(|n| i64::MIN + n.cast_signed()),
                    text,
                )
            })
            .collect()
    }

    fn write(path: &Path, rows: &[Row], words: DataType, group: usize) {
        let numbers: Vec<Option<u16>> = rows.iter().map(|row| row.0).collect();
        let times: Vec<Option<i64>> = rows.iter().map(|row| row.1).collect();
        let texts: Vec<Option<&str>> = rows.iter().map(|row| row.2).collect();
        let texts = Series::new("text".into(), texts).cast(&words);
        let mut frame = DataFrame::new(
            rows.len(),
            vec![
                Series::new("number".into(), numbers).into_column(),
                Series::new("time".into(), times).into_column(),
                texts.expect("words").into_column(),
            ],
        )
        .expect("a table");
        ParquetWriter::new(File::create(path).expect("a file"))
            .with_row_group_size(Some(group))
            .finish(&mut frame)
            .expect("written");
    }

    fn read(path: &Path, group: usize, rows: Range<usize>) -> Result<Vec<Row>, StoreError> {
        let slab = Source::open(path)?.read(group, rows, &["number", "time", "text", "none"])?;
        let (numbers, times) = (slab.numbers::<u16>("number")?, slab.numbers("time")?);
        let (texts, none) = (slab.words("text")?, slab.numbers::<u64>("none")?);
        let of = texts.decoded(str::to_owned);
        Ok((0..slab.rows())
            .map(|row| {
                assert_eq!(none.get(row), None);
                let text = texts.get(row);
                let decoded = texts.numbers.get(row).and_then(|n| of[n as usize].clone());
                assert_eq!(decoded.as_deref(), text);
                let text = TEXTS.into_iter().flatten().find(|t| Some(*t) == text);
                (numbers.get(row), times.get(row), text)
            })
            .collect())
    }

    #[test]
    fn what_was_written_is_read_in_whatever_pieces() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.parquet");
        let all = rows(5_000);
        for words in [dictionary(), DataType::String] {
            write(&path, &all, words, 2_000);
            let source = Source::open(&path).expect("reads");
            assert_eq!(source.groups().sum::<usize>(), all.len());
            let mut at = 0;
            for (group, count) in source.groups().enumerate() {
                let whole = &all[at..at + count];
                assert_eq!(read(&path, group, 0..count).expect("reads"), whole);
                for part in [0..1, 3..700, count - 1..count, 900..900] {
                    let found = read(&path, group, part.clone()).expect("reads");
                    assert_eq!(found, &whole[part]);
                }
                let times = whole.iter().filter_map(|row| row.1);
                let bounds = (times.clone().min(), times.max());
                let said = source.bounds(group, "time").expect("there");
                assert_eq!((Some(said.0), Some(said.1)), bounds);
                at += count;
            }
            let first = source.groups().next().expect("a row group");
            let more = read(&path, 0, 0..first + 1);
            assert!(more.is_err(), "more than there are");
            assert!(read(&path, 99, 0..1).is_err(), "no such row group");
        }
    }

    #[test]
    fn texts_in_pieces_are_put_together() {
        let all = [Some("a"), None, Some("b"), Some("a"), Some("b"), None];
        let plain = |texts: &[Option<&str>]| Utf8ViewArray::from_slice(texts).boxed();
        let Held::Words(numbers, words) = words(&[plain(&all[..2]), plain(&all[2..])]) else {
            panic!("words");
        };
        let words = Words {
            numbers: of_array(&numbers),
            words: Some(&words),
        };
        let found: Vec<Option<&str>> = (0..all.len()).map(|row| words.get(row)).collect();
        assert_eq!(found, all);
    }

    #[test]
    fn a_column_of_another_kind_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.parquet");
        write(&path, &rows(10), dictionary(), 10);
        let source = Source::open(&path).expect("reads");
        let slab = source.read(0, 0..10, &["number", "text"]).expect("reads");
        let errors = [
            slab.numbers::<u64>("number").expect_err("16 bits"),
            slab.numbers::<u16>("text").expect_err("words"),
            slab.words("number").expect_err("numbers"),
        ];
        for (error, column) in errors.iter().zip(["number", "text", "number"]) {
            assert!(error.is_damage() && error.to_string().contains(column));
        }
    }

    /// Whatever byte is wrong: an error or other rows, nothing worse.
    #[test]
    fn a_damaged_file_is_an_error_at_worst() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.parquet");
        write(&path, &rows(300), dictionary(), 300);
        let sound = std::fs::read(&path).expect("there");
        let mut errors = 0;
        let places = || (0..sound.len()).step_by(5);
        for at in places() {
            let mut bytes = sound.clone();
            bytes[at] ^= 0x5a;
            std::fs::write(&path, &bytes).expect("written");
            errors += usize::from(read(&path, 0, 0..300).is_err());
        }
        for length in places() {
            std::fs::write(&path, &sound[..length]).expect("written");
            errors += usize::from(read(&path, 0, 0..300).is_err());
        }
        assert!(errors > places().count(), "{errors}");
    }
}
