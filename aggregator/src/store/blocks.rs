//! Where the samples of one agent, target and style stand in a run's files.
//!
//! A merged file has them together, some ten thousand at a time
//! ([`super::merge`]); so that an analysis, which looks at one of them after the other,
//! reads each row once and not once for each. Nothing says so in the file: the three
//! columns are looked through, which costs little, because they hardly change. A part
//! whose rows are mixed (a live one, one of an older build) is filtered instead.

use std::collections::HashMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polars::io::parquet::read::FileMetadata;
use polars::prelude::*;

use super::error::StoreError;
use super::merge::ROW_GROUP;
use super::reader::Part;
use super::schema::{dictionary, samples};

/// Rows that stand together are read together from so many on, on average.
const LEAST_TOGETHER: usize = 256;

/// Rows of one key, one behind the other.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// Index into [`Blocks::keys`].
    key: usize,
    from: usize,
    rows: usize,
}

/// One file.
#[derive(Debug)]
struct Indexed {
    path: PathBuf,
    /// None: its rows are mixed.
    blocks: Option<Vec<Block>>,
    metadata: Arc<FileMetadata>,
}

/// The files of a run.
#[derive(Debug)]
pub struct Blocks {
    files: Vec<Indexed>,
    /// Whose rows: agent, target, style. In words: the numbers by which a table holds
    /// them are its own.
    keys: Vec<[String; 3]>,
}

/// The reader panics at offsets that lie outside the file.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        Err(StoreError::Damaged {
            path: path.to_owned(),
            why: "it cannot be decoded".to_owned(),
        })
    })
}

impl Indexed {
    fn read(&self, columns: &[&str], from: usize, rows: usize) -> Result<DataFrame, StoreError> {
        guarded(&self.path, || {
            let file = File::open(&self.path).map_err(StoreError::io("read", &self.path))?;
            let mut reader = ParquetReader::new(file);
            reader.set_metadata(self.metadata.clone());
            reader
                .with_columns(Some(columns.iter().map(ToString::to_string).collect()))
                .with_slice(Some((from, rows)))
                .finish()
                .map_err(StoreError::parquet("read", &self.path))
        })
    }
}

impl Blocks {
    /// Looks through the parts.
    pub(crate) fn find<'a>(parts: impl Iterator<Item = &'a Part>) -> Result<Self, StoreError> {
        let mut found = Self {
            files: Vec::new(),
            keys: Vec::new(),
        };
        for part in parts {
            let metadata = guarded(&part.path, || {
                let file = File::open(&part.path).map_err(StoreError::io("read", &part.path))?;
                let mut reader = ParquetReader::new(file);
                let metadata = reader.get_metadata();
                Ok(metadata
                    .map_err(StoreError::parquet("read", &part.path))?
                    .clone())
            })?;
            let file = Indexed {
                path: part.path.clone(),
                blocks: None,
                metadata,
            };
            let blocks = found.blocks_of(&file, usize::try_from(part.rows).unwrap_or(0))?;
            found.files.push(Indexed { blocks, ..file });
        }
        Ok(found)
    }

    fn blocks_of(&mut self, file: &Indexed, rows: usize) -> Result<Option<Vec<Block>>, StoreError> {
        let names = [samples::AGENT_ID, samples::TARGET, samples::STYLE];
        let wrong = || StoreError::parquet("read", &file.path);
        let mut blocks: Vec<Block> = Vec::new();
        for from in (0..rows).step_by(ROW_GROUP) {
            let frame = file.read(&names, from, ROW_GROUP)?;
            let columns = names
                .iter()
                .map(|name| frame.column(name)?.cast(&dictionary()))
                .collect::<PolarsResult<Vec<Column>>>()
                .map_err(wrong())?;
            let words = columns
                .iter()
                .map(|column| column.cat32())
                .collect::<PolarsResult<Vec<_>>>()
                .map_err(wrong())?;
            let numbers = |at: usize| words[at].physical().iter().map(|n| n.unwrap_or(u32::MAX));
            let word = |at: usize, number: u32| {
                let word = words[at].get_mapping().cat_to_str(number);
                word.unwrap_or_default().to_owned()
            };
            let mut known: HashMap<[u32; 3], usize> = HashMap::new();
            let mut last: Option<([u32; 3], usize)> = None;
            let all = numbers(0).zip(numbers(1)).zip(numbers(2));
            for (at, ((agent, target), style)) in all.enumerate() {
                let of = [agent, target, style];
                let key = match last {
                    Some((before, key)) if before == of => key,
                    _ => *known.entry(of).or_insert_with(|| {
                        self.number([word(0, agent), word(1, target), word(2, style)])
                    }),
                };
                last = Some((of, key));
                match blocks.last_mut() {
                    Some(last) if last.key == key => last.rows += 1,
                    _ => blocks.push(Block {
                        key,
                        from: from + at,
                        rows: 1,
                    }),
                }
            }
            let seen = rows.min(from + ROW_GROUP);
            if blocks.len() > 64 && blocks.len() * LEAST_TOGETHER > seen {
                return Ok(None);
            }
        }
        Ok(Some(blocks))
    }

    /// How many rows of this agent, target and style there are; none where they are
    /// mixed with others.
    pub fn rows_of(&self, agent: &str, target: &str, style: &str) -> Option<usize> {
        let key = self.key(agent, target, style);
        let files = self.files.iter();
        files
            .map(|file| {
                let blocks = file.blocks.as_ref()?.iter();
                let of_key = blocks.filter(|block| Some(block.key) == key);
                Some(of_key.map(|block| block.rows).sum::<usize>())
            })
            .sum()
    }

    fn key(&self, agent: &str, target: &str, style: &str) -> Option<usize> {
        let wanted = [agent, target, style];
        self.keys.iter().position(|words| *words == wanted)
    }

    fn number(&mut self, key: [String; 3]) -> usize {
        let known = self.keys.iter().position(|known| *known == key);
        known.unwrap_or_else(|| {
            self.keys.push(key);
            self.keys.len() - 1
        })
    }

    /// Gives these columns of the rows of one agent, target and style, some rows at a
    /// time, to `take`.
    ///
    /// # Errors
    /// When a file cannot be read, or what `take` says.
    pub fn each<E: From<StoreError>>(
        &self,
        (agent, target, style): (&str, &str, &str),
        columns: &[&str],
        mut take: impl FnMut(DataFrame) -> Result<(), E>,
    ) -> Result<(), E> {
        let key = self.key(agent, target, style);
        for file in &self.files {
            match &file.blocks {
                Some(blocks) => {
                    for block in blocks.iter().filter(|block| Some(block.key) == key) {
                        for from in (0..block.rows).step_by(ROW_GROUP) {
                            let rows = ROW_GROUP.min(block.rows - from);
                            take(file.read(columns, block.from + from, rows)?)?;
                        }
                    }
                }
                None => {
                    let path = PlRefPath::try_from_path(&file.path)
                        .map_err(StoreError::parquet("read", &file.path))?;
                    let args = ScanArgsParquet {
                        glob: false,
                        ..ScanArgsParquet::default()
                    };
                    let is_its = col(samples::AGENT_ID)
                        .eq(lit(agent))
                        .and(col(samples::TARGET).eq(lit(target)))
                        .and(col(samples::STYLE).eq(lit(style)));
                    let columns: Vec<Expr> = columns.iter().map(|name| col(*name)).collect();
                    let frame = LazyFrame::scan_parquet(path, args)
                        .and_then(|all| all.filter(is_its).select(columns).collect())
                        .map_err(StoreError::parquet("read", &file.path))?;
                    take(frame)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::footer::Footer;
    use super::*;
    use gapscope_proto::ids::RunId;

    /// A file whose rows are of these targets, numbered in `seq`.
    fn file(folder: &Path, name: &str, targets: &[&str]) -> Part {
        let path = folder.join(name);
        let rows = targets.len();
        let texts = |name: &str, values: Vec<&str>| {
            let column = Series::new(name.into(), values).cast(&dictionary());
            column.expect("words").into_column()
        };
        let seq: Vec<u64> = (0..rows as u64).collect();
        let mut frame = DataFrame::new(
            rows,
            vec![
                texts(samples::AGENT_ID, vec!["a"; rows]),
                texts(samples::TARGET, targets.to_vec()),
                texts(samples::STYLE, vec!["reused"; rows]),
                Series::new(samples::SEQ.into(), seq).into_column(),
            ],
        )
        .expect("a table");
        let out = File::create(&path).expect("a file");
        ParquetWriter::new(out).finish(&mut frame).expect("written");
        Part {
            path,
            footer: Footer::new(RunId::generate(), Vec::new(), Vec::new()),
            rows: rows as u64,
        }
    }

    fn seqs(blocks: &Blocks, target: &str) -> Vec<u64> {
        let mut found = Vec::new();
        let take = |table: DataFrame| {
            let seq = table.column(samples::SEQ).expect("is there");
            found.extend(seq.u64().expect("numbers").iter().flatten());
            Ok::<_, StoreError>(())
        };
        blocks
            .each(("a", target, "reused"), &[samples::SEQ], take)
            .expect("reads");
        found
    }

    /// Tables number their words each in its own way, in the order in which they come.
    #[test]
    fn rows_are_found_whatever_the_order_in_each_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let all: Vec<Vec<&str>> = vec![
            [vec!["x"; 1_000], vec!["y"; 700]].concat(),
            [vec!["y"; 900], vec!["z"; 300], vec!["x"; 1_100]].concat(),
            // Mixed, as they come in.
            ["z", "y", "x"].repeat(500),
        ];
        let parts: Vec<Part> = (0..)
            .zip(&all)
            .map(|(n, targets)| file(folder.path(), &format!("part-{n}.parquet"), targets))
            .collect();
        let blocks = Blocks::find(parts.iter()).expect("reads");
        assert!(blocks.files[1].blocks.is_some() && blocks.files[2].blocks.is_none());
        for target in ["x", "y", "z", "not there"] {
            let expect: Vec<u64> = all
                .iter()
                .flat_map(|targets| {
                    let rows = (0..).zip(targets);
                    rows.filter(|(_, t)| **t == target).map(|(row, _)| row)
                })
                .collect();
            assert_eq!(seqs(&blocks, target), expect, "{target}");
            assert_eq!(blocks.rows_of("a", target, "reused"), None);
        }
        let ordered = Blocks::find(parts[..2].iter()).expect("reads");
        assert_eq!(ordered.rows_of("a", "y", "reused"), Some(1_600));
        assert_eq!(ordered.rows_of("b", "y", "reused"), Some(0));
    }
}
