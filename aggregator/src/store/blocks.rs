//! Where the samples of one agent, target and style stand in a run's files.
//!
//! A merged file has them together, some ten thousand at a time
//! ([`super::merge`]); so that an analysis, which looks at one of them after the other,
//! reads each row once and not once for each. Nothing says so in the file: the columns
//! are looked through, which costs little, because they hardly change. A row group
//! whose rows are mixed (of a live part, of an older build) is kept in memory, as far as
//! there is room, and beyond that read once for each of those that are in it.
//!
//! On the way it is seen when each start of an agent was first due and last heard of:
//! where a row group is one start's alone, the file's own statistics say so.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::sync_channel;

use super::error::StoreError;
use super::reader::Part;
use super::schema::samples;
use super::slab::{Slab, Source, Words};

/// Rows that stand together are read together from so many on, on average.
const LEAST_TOGETHER: usize = 256;
/// So many mixed rows are kept at most, of all files together: some hundred bytes each.
const MOST_KEPT: usize = 1 << 21;
/// So many slabs are read ahead, beside the one that is being looked at.
const AHEAD: usize = 1;

const KEY: [&str; 3] = [samples::AGENT_ID, samples::TARGET, samples::STYLE];

/// Rows of one key, one behind the other.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// Index into [`Blocks::keys`].
    key: usize,
    from: usize,
    rows: usize,
}

/// The rows of a row group.
#[derive(Debug)]
enum Group {
    /// By key, one block after the other.
    Together(Vec<Block>),
    /// Mixed: how many of each key, and of all; the rows themselves, and which are
    /// whose, where they are kept.
    Mixed(Vec<(usize, usize)>, usize, Option<Kept>),
}

/// Mixed rows that are looked at once for each key are read once only.
#[derive(Debug)]
struct Kept {
    slab: Slab,
    /// By key.
    rows: Vec<Vec<usize>>,
}

impl Group {
    fn rows_of(&self, key: usize) -> usize {
        match self {
            Self::Together(blocks) => {
                let of_key = blocks.iter().filter(|block| block.key == key);
                of_key.map(|block| block.rows).sum()
            }
            Self::Mixed(counts, ..) => {
                let of_key = counts.iter().filter(|(of, _)| *of == key);
                of_key.map(|(_, rows)| rows).sum()
            }
        }
    }
}

/// One file, by row group.
#[derive(Debug)]
struct Indexed {
    source: Source,
    groups: Vec<Group>,
}

/// First due and last finished sample of a start of an agent.
pub type Heard = BTreeMap<(String, String), (i64, i64)>;

/// The files of a run.
#[derive(Debug, Default)]
pub struct Blocks {
    files: Vec<Indexed>,
    /// Whose rows: agent, target, style. In words: the numbers by which a row group
    /// tells them apart are its own.
    keys: Vec<[String; 3]>,
    heard: Heard,
    columns: &'static [&'static str],
    /// Mixed rows that are kept.
    kept: usize,
}

/// Rows of one key, and which of the slab's they are.
enum Selected<'a> {
    /// All of it.
    All(Slab),
    /// These of it.
    Some(Slab, Vec<usize>),
    /// These of one that is kept.
    Kept(&'a Slab, &'a [usize]),
}

impl Blocks {
    /// Looks through the parts, of which these columns will be asked for.
    pub(crate) fn find<'a>(
        parts: impl Iterator<Item = &'a Part>,
        columns: &'static [&'static str],
    ) -> Result<Self, StoreError> {
        let mut found = Self {
            columns,
            ..Self::default()
        };
        for part in parts {
            let source = Source::open(&part.path)?;
            let mut groups = Vec::new();
            for (at, rows) in source.groups().enumerate() {
                groups.push(found.group(&source, at, rows)?);
            }
            found.files.push(Indexed { source, groups });
        }
        Ok(found)
    }

    fn group(&mut self, source: &Source, at: usize, rows: usize) -> Result<Group, StoreError> {
        let columns = [
            samples::AGENT_ID,
            samples::TARGET,
            samples::STYLE,
            samples::INCARNATION,
        ];
        let slab = source.read(at, 0..rows, &columns)?;
        self.hear(source, at, &slab)?;
        if let Some(key) = self.only_key(&slab)? {
            return Ok(Group::Together(vec![Block { key, from: 0, rows }]));
        }
        let mut blocks: Vec<Block> = Vec::new();
        let mut counts: Vec<(usize, usize)> = Vec::new();
        self.each_key(&slab, |key, row| match blocks.last_mut() {
            Some(last) if last.key == key => last.rows += 1,
            _ => blocks.push(Block {
                key,
                from: row,
                rows: 1,
            }),
        })?;
        for block in &blocks {
            match counts.iter_mut().find(|(key, _)| *key == block.key) {
                Some((_, rows)) => *rows += block.rows,
                None => counts.push((block.key, block.rows)),
            }
        }
        if blocks.len() == counts.len() || blocks.len() * LEAST_TOGETHER <= rows {
            return Ok(Group::Together(blocks));
        }
        let kept = self.keep(source, at, rows, &blocks)?;
        Ok(Group::Mixed(counts, rows, kept))
    }

    fn keep(
        &mut self,
        source: &Source,
        at: usize,
        rows: usize,
        blocks: &[Block],
    ) -> Result<Option<Kept>, StoreError> {
        if self.columns.is_empty() || self.kept + rows > MOST_KEPT {
            return Ok(None);
        }
        self.kept += rows;
        let slab = source.read(at, 0..rows, self.columns)?;
        let mut of_key: Vec<Vec<usize>> = vec![Vec::new(); self.keys.len()];
        for block in blocks {
            of_key[block.key].extend(block.from..block.from + block.rows);
        }
        Ok(Some(Kept { slab, rows: of_key }))
    }

    /// Whose all rows are, if they are of one: as a rule, in a closed run.
    fn only_key(&mut self, slab: &Slab) -> Result<Option<usize>, StoreError> {
        let [agents, targets, styles] = KEY.map(|name| slab.words(name));
        let words = [agents?, targets?, styles?];
        let alike = |words: &Words<'_>| words.numbers.is_constant(slab.rows());
        let is_one = slab.rows() > 0 && words.iter().all(alike);
        Ok(is_one
            .then(|| self.number(words.map(|words| words.get(0).unwrap_or_default().to_owned()))))
    }

    /// Whose each row is.
    fn each_key(
        &mut self,
        slab: &Slab,
        mut take: impl FnMut(usize, usize),
    ) -> Result<(), StoreError> {
        let [agents, targets, styles] = KEY.map(|name| slab.words(name));
        let (agents, targets, styles) = (agents?, targets?, styles?);
        let mut known: HashMap<[Option<u32>; 3], usize> = HashMap::new();
        let mut last: Option<([Option<u32>; 3], usize)> = None;
        for row in 0..slab.rows() {
            let of = [
                agents.numbers.get(row),
                targets.numbers.get(row),
                styles.numbers.get(row),
            ];
            let key = match last {
                Some((before, key)) if before == of => key,
                _ => *known.entry(of).or_insert_with(|| {
                    let key = [agents.get(row), targets.get(row), styles.get(row)];
                    self.number(key.map(|word| word.unwrap_or_default().to_owned()))
                }),
            };
            last = Some((of, key));
            take(key, row);
        }
        Ok(())
    }

    /// Notes when each start was first due, and last heard of.
    fn hear(&mut self, source: &Source, at: usize, slab: &Slab) -> Result<(), StoreError> {
        let agents = slab.words(samples::AGENT_ID)?;
        let starts = slab.words(samples::INCARNATION)?;
        let of = |row| (agents.numbers.get(row), starts.numbers.get(row));
        let alike = |words: Words<'_>| words.numbers.is_constant(slab.rows());
        let is_one = slab.rows() > 0 && alike(agents) && alike(starts);
        let bounds = || {
            let (first_due, _) = source.bounds(at, samples::SCHEDULED_NS)?;
            let (_, last) = source.bounds(at, samples::FINISHED_NS)?;
            Some((first_due, last))
        };
        let mut found: HashMap<(Option<u32>, Option<u32>), (i64, i64)> = HashMap::new();
        match bounds() {
            Some(bounds) if is_one => {
                found.insert(of(0), bounds);
            }
            _ => {
                let columns = [samples::SCHEDULED_NS, samples::FINISHED_NS];
                let times = source.read(at, 0..slab.rows(), &columns)?;
                let due = times.numbers::<i64>(samples::SCHEDULED_NS)?;
                let ends = times.numbers::<i64>(samples::FINISHED_NS)?;
                for row in 0..slab.rows() {
                    let (Some(due), Some(end)) = (due.get(row), ends.get(row)) else {
                        continue;
                    };
                    let heard = found.entry(of(row)).or_insert((due, end));
                    *heard = (due.min(heard.0), end.max(heard.1));
                }
            }
        }
        for ((agent, start), (due, end)) in found {
            let word = |words: Words<'_>, number: Option<u32>| {
                number.and_then(|number| words.word(number).map(str::to_owned))
            };
            if let (Some(agent), Some(start)) = (word(agents, agent), word(starts, start)) {
                let heard = self.heard.entry((agent, start)).or_insert((due, end));
                *heard = (due.min(heard.0), end.max(heard.1));
            }
        }
        Ok(())
    }

    /// First due and last finished sample of each start of each agent.
    pub fn heard(&self) -> &Heard {
        &self.heard
    }

    /// How many rows of this agent, target and style there are.
    pub fn rows_of(&self, agent: &str, target: &str, style: &str) -> usize {
        let Some(key) = self.key(agent, target, style) else {
            return 0;
        };
        let groups = self.files.iter().flat_map(|file| &file.groups);
        groups.map(|group| group.rows_of(key)).sum()
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

    /// Gives the columns of the rows of one agent, target and style, some rows at a
    /// time, to `take`: a slab, and which of its rows, all where nothing is said. The
    /// next rows are read meanwhile.
    ///
    /// # Errors
    /// When a file cannot be read, or what `take` says.
    pub fn each<E: From<StoreError>>(
        &self,
        (agent, target, style): (&str, &str, &str),
        mut take: impl FnMut(&Slab, Option<&[usize]>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(key) = self.key(agent, target, style) else {
            return Ok(());
        };
        std::thread::scope(|scope| {
            let (send, slabs) = sync_channel(AHEAD);
            scope.spawn(move || {
                for file in &self.files {
                    for (at, group) in file.groups.iter().enumerate() {
                        for slab in self.slabs(&file.source, at, group, key) {
                            let is_error = slab.is_err();
                            // Nobody wants more after an error.
                            if send.send(slab).is_err() || is_error {
                                return;
                            }
                        }
                    }
                }
            });
            for slab in slabs {
                match slab? {
                    Selected::All(slab) => take(&slab, None)?,
                    Selected::Some(slab, rows) => take(&slab, Some(&rows))?,
                    Selected::Kept(slab, rows) => take(slab, Some(rows))?,
                }
            }
            Ok(())
        })
    }

    /// The rows of a key in a row group.
    fn slabs<'a>(
        &'a self,
        source: &'a Source,
        at: usize,
        group: &'a Group,
        key: usize,
    ) -> Box<dyn Iterator<Item = Result<Selected<'a>, StoreError>> + 'a> {
        match group {
            Group::Together(blocks) => {
                let of_key = blocks.iter().filter(move |block| block.key == key);
                Box::new(of_key.map(move |block| {
                    let rows = block.from..block.from + block.rows;
                    source.read(at, rows, self.columns).map(Selected::All)
                }))
            }
            Group::Mixed(_, _, Some(kept)) => {
                let rows = kept.rows.get(key).map_or(&[][..], Vec::as_slice);
                let its = (!rows.is_empty()).then(|| Ok(Selected::Kept(&kept.slab, rows)));
                Box::new(its.into_iter())
            }
            Group::Mixed(_, rows, None) if group.rows_of(key) > 0 => {
                Box::new(std::iter::once_with(move || {
                    let keys = source.read(at, 0..*rows, &KEY)?;
                    let rows_of_key = self.select(&keys, key)?;
                    let slab = source.read(at, 0..*rows, self.columns)?;
                    Ok(Selected::Some(slab, rows_of_key))
                }))
            }
            Group::Mixed(..) => Box::new(std::iter::empty()),
        }
    }

    /// Which rows are a key's.
    fn select(&self, slab: &Slab, key: usize) -> Result<Vec<usize>, StoreError> {
        let [agents, targets, styles] = KEY.map(|name| slab.words(name));
        let words = [agents?, targets?, styles?];
        let wanted = &self.keys[key];
        let mut known: HashMap<[Option<u32>; 3], bool> = HashMap::new();
        let mut found = Vec::new();
        for row in 0..slab.rows() {
            let of = words.map(|words| words.numbers.get(row));
            let is_its = *known.entry(of).or_insert_with(|| {
                words
                    .iter()
                    .zip(wanted)
                    .all(|(words, wanted)| words.get(row).unwrap_or_default() == wanted)
            });
            if is_its {
                found.push(row);
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use gapscope_proto::ids::RunId;
    use polars::prelude::*;

    use super::super::footer::Footer;
    use super::super::schema::dictionary;
    use super::*;

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
        let take = |slab: &Slab, rows: Option<&[usize]>| {
            let seq = slab.numbers::<u64>(samples::SEQ)?;
            let all: Vec<usize> = (0..slab.rows()).collect();
            found.extend(rows.unwrap_or(&all).iter().filter_map(|row| seq.get(*row)));
            Ok::<_, StoreError>(())
        };
        blocks.each(("a", target, "reused"), take).expect("reads");
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
        let found = |columns| Blocks::find(parts.iter(), columns).expect("reads");
        let (mut without, blocks) = (found(&[]), found(&[samples::SEQ]));
        without.columns = &[samples::SEQ];
        for blocks in [&blocks, &without] {
            assert!(matches!(blocks.files[1].groups[..], [Group::Together(_)]));
        }
        assert!(matches!(
            blocks.files[2].groups[..],
            [Group::Mixed(_, _, Some(_))]
        ));
        assert!(matches!(
            without.files[2].groups[..],
            [Group::Mixed(_, _, None)]
        ));
        for target in ["x", "y", "z", "not there"] {
            let expect: Vec<u64> = all
                .iter()
                .flat_map(|targets| {
                    let rows = (0..).zip(targets);
                    rows.filter(|(_, t)| **t == target).map(|(row, _)| row)
                })
                .collect();
            assert_eq!(seqs(&blocks, target), expect, "{target}");
            assert_eq!(seqs(&without, target), expect, "{target}");
            assert_eq!(blocks.rows_of("a", target, "reused"), expect.len());
        }
        let ordered = Blocks::find(parts[..2].iter(), &[]).expect("reads");
        assert_eq!(ordered.rows_of("a", "y", "reused"), 1_600);
        assert_eq!(ordered.rows_of("b", "y", "reused"), 0);
    }
}
