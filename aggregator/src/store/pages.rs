//! Row groups, straight into a file's pages: what [`super::slab`] reads.
//!
//! A table of polars numbers its words for the whole process, and tells those that it
//! uses apart again when it is written: a look-up of every word of every row, twice.
//! Samples come with their words told apart already.
//!
//! The file is as polars writes it, whose page writer does it: the same schema, with
//! the same notes, so that polars and everybody else read it alike.

use std::io::Write;

use polars::prelude::{CompatLevel, PolarsError, PolarsResult, SchemaExt, SchemaRef};
use polars_arrow::array::{Array, BooleanArray, DictionaryArray, PrimitiveArray, Utf8ViewArray};
use polars_arrow::datatypes::{ArrowDataType, ArrowSchema};
use polars_parquet::write::{
    CompressionOptions, Compressor, DynIter, DynStreamingIterator, Encoding, FileWriter, KeyValue,
    ParquetType, StatisticsOptions, Version, WriteOptions, array_to_columns, get_dtype_encoding,
    schema_to_metadata_key, to_parquet_schema,
};

use super::footer::Footer;
use super::merge::ROW_GROUP;
use crate::names::Names;

/// A parquet file that is being written.
pub(crate) struct Pages<W: Write> {
    writer: FileWriter<W>,
    schema: ArrowSchema,
    types: Vec<ParquetType>,
    encodings: Vec<Vec<Encoding>>,
    options: WriteOptions,
    footer: String,
}

impl<W: Write> Pages<W> {
    /// Begins one.
    pub(crate) fn new(
        out: W,
        schema: &SchemaRef,
        compression: CompressionOptions,
        footer: &Footer,
    ) -> PolarsResult<Self> {
        let schema = schema.to_arrow(CompatLevel::newest());
        let options = WriteOptions {
            statistics: StatisticsOptions::default(),
            version: Version::V1,
            compression,
            data_page_size: None,
        };
        let types = to_parquet_schema(&schema)?.fields().to_vec();
        let fields = schema.iter_values();
        Ok(Self {
            writer: FileWriter::try_new(out, schema.clone(), options)?,
            types,
            encodings: fields
                .map(|field| get_dtype_encoding(&field.dtype))
                .collect(),
            schema,
            options,
            footer: footer.to_text(),
        })
    }

    /// Writes rows, in as many row groups as they need: a column for each field of the
    /// schema, in its order.
    pub(crate) fn write(&mut self, columns: &[Box<dyn Array>]) -> PolarsResult<()> {
        let rows = columns.first().map_or(0, |column| column.len());
        for from in (0..rows).step_by(ROW_GROUP) {
            let count = ROW_GROUP.min(rows - from);
            let mut pages = Vec::with_capacity(columns.len());
            for ((column, of), encodings) in columns.iter().zip(&self.types).zip(&self.encodings) {
                let column = column.sliced(from, count);
                let columns = array_to_columns(column, of.clone(), self.options, encodings)?;
                for encoded in columns {
                    let encoded = encoded.collect::<PolarsResult<Vec<_>>>()?;
                    let encoded = DynIter::new(encoded.into_iter().map(Ok));
                    let compression = self.options.compression;
                    pages.push(Ok(DynStreamingIterator::new(
                        polars_parquet::write::FallibleStreamingIterator::map_err(
                            Compressor::new_from_vec(encoded, compression, Vec::new()),
                            PolarsError::from,
                        ),
                    )));
                }
            }
            self.writer
                .write(count as u64, DynIter::new(pages.into_iter()))?;
        }
        Ok(())
    }

    /// Writes the footer.
    pub(crate) fn finish(mut self) -> PolarsResult<()> {
        let own = KeyValue {
            key: super::footer::KEY.to_owned(),
            value: Some(std::mem::take(&mut self.footer)),
        };
        let notes = vec![schema_to_metadata_key(&self.schema), own];
        self.writer.end(Some(notes)).map(drop)
    }
}

/// A column of numbers.
pub(crate) fn numbers<T: polars_arrow::types::NativeType>(
    values: impl Iterator<Item = T>,
) -> Box<dyn Array> {
    PrimitiveArray::from_vec(values.collect()).boxed()
}

/// A column of numbers, some of which may be missing.
pub(crate) fn maybe<T: polars_arrow::types::NativeType>(
    values: impl Iterator<Item = Option<T>>,
) -> Box<dyn Array> {
    let values: Vec<Option<T>> = values.collect();
    PrimitiveArray::from(values).boxed()
}

/// A column of truths, some of which may be missing.
pub(crate) fn truths(values: impl Iterator<Item = Option<bool>>) -> Box<dyn Array> {
    let values: Vec<Option<bool>> = values.collect();
    BooleanArray::from(values).boxed()
}

/// A column of words, told apart by numbers.
pub(crate) fn words(
    words: Names,
    numbers: impl Iterator<Item = Option<u32>>,
) -> PolarsResult<Box<dyn Array>> {
    let numbers: Vec<Option<u32>> = numbers.collect();
    let numbers = PrimitiveArray::from(numbers);
    let words = Utf8ViewArray::from_slice_values(words.into_words()).boxed();
    let of = ArrowDataType::Dictionary(
        polars_arrow::datatypes::IntegerType::UInt32,
        Box::new(ArrowDataType::Utf8View),
        false,
    );
    DictionaryArray::try_new(of, numbers, words).map(|column| column.boxed())
}
