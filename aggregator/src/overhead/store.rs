//! The folder of a benchmark: `manifest.json` (with `"kind": "overhead"`),
//! `blocks.parquet` and `failures.parquet`, each written whole and atomically
//! after each round, so that whatever ends the program leaves the finished
//! rounds.

use std::path::{Path, PathBuf};

use gapscope_proto::small_file;
use polars::prelude::*;

use super::record::{Bench, Block, FORMAT_VERSION, Failure, KIND, Manifest};
use crate::store::StoreError;
use crate::store::disk::Disk;
use crate::store::frame::Cells;
use crate::store::manifest::RunState;
use crate::store::reader::read_parquet;
use crate::utc::rfc3339;

const MANIFEST: &str = "manifest.json";
const BLOCKS: &str = "blocks.parquet";
const FAILURES: &str = "failures.parquet";
/// Longest manifest that is read.
const MANIFEST_MOST: u64 = 16 << 20;

/// Whether the run in `folder` is a benchmark.
pub fn is_overhead(folder: &Path) -> bool {
    #[derive(serde::Deserialize)]
    struct Kind {
        kind: String,
    }
    small_file::read(&folder.join(MANIFEST), 64 << 20)
        .ok()
        .and_then(|text| serde_json::from_slice::<Kind>(&text).ok())
        .is_some_and(|found| found.kind == KIND)
}

/// A benchmark's folder that is being written.
#[derive(Debug)]
pub struct Writer {
    folder: PathBuf,
    bench: Bench,
    disk: Disk,
}

impl Writer {
    /// Makes the folder `data/<run id>`.
    ///
    /// # Errors
    /// When it cannot be made or written.
    pub fn create(data: &Path, manifest: Manifest) -> Result<Self, StoreError> {
        let folder = data.join(manifest.run_id.to_string());
        if folder.exists() {
            return Err(StoreError::Exists(folder));
        }
        std::fs::create_dir_all(&folder).map_err(StoreError::io("create", &folder))?;
        let writer = Self {
            folder,
            bench: Bench {
                manifest,
                blocks: Vec::new(),
                failures: Vec::new(),
            },
            disk: Disk::default(),
        };
        writer.write_tables()?;
        writer.write_manifest()?;
        Ok(writer)
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it holds so far.
    pub fn bench(&self) -> &Bench {
        &self.bench
    }

    /// Adds what a round has brought, durably.
    ///
    /// # Errors
    /// When it cannot be written; what was there before still is.
    pub fn add(
        &mut self,
        blocks: impl IntoIterator<Item = Block>,
        failures: impl IntoIterator<Item = Failure>,
    ) -> Result<(), StoreError> {
        self.bench.blocks.extend(blocks);
        self.bench.failures.extend(failures);
        self.write_tables()
    }

    /// Says how it ended.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn close(
        mut self,
        state: RunState,
        reason: &str,
        realtime_ns: i64,
        caveats: Vec<String>,
    ) -> Result<Bench, StoreError> {
        self.bench.manifest.state = state;
        self.bench.manifest.end_reason = Some(reason.to_owned());
        self.bench.manifest.closed_utc = Some(rfc3339(realtime_ns));
        self.bench.manifest.caveats.extend(caveats);
        self.write_manifest()?;
        Ok(self.bench)
    }

    fn write_manifest(&self) -> Result<(), StoreError> {
        let path = self.folder.join(MANIFEST);
        let mut text = serde_json::to_string_pretty(&self.bench.manifest).map_err(|error| {
            StoreError::Damaged {
                path: path.clone(),
                why: error.to_string(),
            }
        })?;
        text.push('\n');
        self.disk.write_bytes(&path, text.as_bytes())
    }

    fn write_tables(&self) -> Result<(), StoreError> {
        write_frame(
            &self.disk,
            &self.folder.join(BLOCKS),
            blocks_frame(&self.bench.blocks),
        )?;
        write_frame(
            &self.disk,
            &self.folder.join(FAILURES),
            failures_frame(&self.bench.failures),
        )
    }
}

/// Writes a table whole, or leaves what was there.
///
/// # Errors
/// When it cannot be made or written.
pub fn write_frame(
    disk: &Disk,
    path: &Path,
    frame: PolarsResult<DataFrame>,
) -> Result<(), StoreError> {
    let mut frame = frame.map_err(StoreError::parquet("write", path))?;
    disk.write(path, |out| {
        ParquetWriter::new(out)
            .finish(&mut frame)
            .map(drop)
            .map_err(StoreError::parquet("write", path))
    })
}

/// Reads the benchmark in `folder`.
///
/// # Errors
/// When there is none, it is damaged, or a newer program wrote it.
pub fn read(folder: &Path) -> Result<Bench, StoreError> {
    let path = folder.join(MANIFEST);
    let text = match small_file::read(&path, MANIFEST_MOST) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(StoreError::NotARun(folder.to_owned()));
        }
        other => other.map_err(StoreError::io("read", &path))?,
    };
    #[derive(serde::Deserialize)]
    struct Version {
        format_version: u32,
    }
    let damaged = |why: String| StoreError::Damaged {
        path: path.clone(),
        why,
    };
    let version: Version =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    if version.format_version > FORMAT_VERSION {
        return Err(StoreError::NewerFormat {
            path: folder.to_owned(),
            found: version.format_version,
        });
    }
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    if manifest.kind != KIND {
        return Err(damaged(format!("it is of kind `{}`", manifest.kind)));
    }
    let table = |name: &str| {
        let path = folder.join(name);
        read_parquet(&path).map(|frame| (path, frame))
    };
    let (path, frame) = table(BLOCKS)?;
    let blocks = blocks_of(&frame).map_err(StoreError::parquet("read", &path))?;
    let (path, frame) = table(FAILURES)?;
    let failures = failures_of(&frame).map_err(StoreError::parquet("read", &path))?;
    Ok(Bench {
        manifest,
        blocks,
        failures,
    })
}

fn column<T>(name: &str, values: Vec<T>) -> Column
where
    Series: NamedFrom<Vec<T>, [T]>,
{
    Series::new(name.into(), values).into_column()
}

fn maybe<T>(name: &str, values: Vec<Option<T>>) -> Column
where
    Series: NamedFrom<Vec<Option<T>>, [Option<T>]>,
{
    Series::new(name.into(), values).into_column()
}

fn texts(name: &str, values: Vec<String>) -> Column {
    Series::new(name.into(), values).into_column()
}

fn blocks_frame(blocks: &[Block]) -> PolarsResult<DataFrame> {
    let text = |of: fn(&Block) -> &String| blocks.iter().map(|b| of(b).clone()).collect();
    let small = |of: fn(&Block) -> u32| blocks.iter().map(of).collect::<Vec<u32>>();
    let big = |of: fn(&Block) -> u64| blocks.iter().map(of).collect::<Vec<u64>>();
    let perhaps =
        |of: fn(&Block) -> Option<u64>| blocks.iter().map(of).collect::<Vec<Option<u64>>>();
    DataFrame::new(
        blocks.len(),
        vec![
            texts("label", text(|b| &b.label)),
            column("round", small(|b| b.round)),
            column("turn", small(|b| b.turn)),
            texts("target", text(|b| &b.target)),
            column("clients", small(|b| b.clients)),
            column("began_ns", blocks.iter().map(|b| b.began_ns).collect()),
            column("total_ns", big(|b| b.total_ns)),
            column("statements", big(|b| b.statements)),
            column("answered", big(|b| b.answered)),
            column("wrong", big(|b| b.wrong)),
            column("errors", big(|b| b.errors)),
            column("connects", big(|b| b.connects)),
            maybe("latency_ns_p50", perhaps(|b| b.p50_ns)),
            maybe("latency_ns_p99", perhaps(|b| b.p99_ns)),
            maybe("latency_ns_max", perhaps(|b| b.max_ns)),
            maybe("client_cpu_ns", perhaps(|b| b.client_cpu_ns)),
            maybe("target_cpu_ns", perhaps(|b| b.target_cpu_ns)),
        ],
    )
}

fn failures_frame(failures: &[Failure]) -> PolarsResult<DataFrame> {
    let text = |of: fn(&Failure) -> &String| failures.iter().map(|f| of(f).clone()).collect();
    DataFrame::new(
        failures.len(),
        vec![
            texts("label", text(|f| &f.label)),
            column("round", failures.iter().map(|f| f.round).collect()),
            texts("target", text(|f| &f.target)),
            column("clients", failures.iter().map(|f| f.clients).collect()),
            texts("kind", text(|f| &f.kind)),
            maybe(
                "error_code",
                failures.iter().map(|f| f.code.map(u32::from)).collect(),
            ),
            texts("error", text(|f| &f.text)),
            column("count", failures.iter().map(|f| f.count).collect()),
        ],
    )
}

/// A table's values, of which some may be missing.
struct Table<'a>(Cells<'a>);

fn missing(column: &str) -> PolarsError {
    PolarsError::ComputeError(format!("column `{column}` has no value where one is needed").into())
}

impl Table<'_> {
    fn texts(&self, name: &str) -> PolarsResult<Vec<String>> {
        self.0
            .texts(name)?
            .into_iter()
            .map(|v| v.ok_or_else(|| missing(name)))
            .collect()
    }

    fn u64s(&self, name: &str) -> PolarsResult<Vec<u64>> {
        self.0
            .unsigned(name)?
            .into_iter()
            .map(|v| v.ok_or_else(|| missing(name)))
            .collect()
    }

    fn u32s(&self, name: &str) -> PolarsResult<Vec<u32>> {
        self.u64s(name)?
            .into_iter()
            .map(|v| u32::try_from(v).map_err(|_| missing(name)))
            .collect()
    }
}

fn blocks_of(frame: &DataFrame) -> PolarsResult<Vec<Block>> {
    let cells = Table(Cells(frame));
    let [label, target] = [cells.texts("label")?, cells.texts("target")?];
    let [round, turn, clients] = [
        cells.u32s("round")?,
        cells.u32s("turn")?,
        cells.u32s("clients")?,
    ];
    let began = cells.0.signed("began_ns")?;
    let [total, statements, answered, wrong, errors, connects] = [
        cells.u64s("total_ns")?,
        cells.u64s("statements")?,
        cells.u64s("answered")?,
        cells.u64s("wrong")?,
        cells.u64s("errors")?,
        cells.u64s("connects")?,
    ];
    let [p50, p99, max, client_cpu, target_cpu] = [
        cells.0.unsigned("latency_ns_p50")?,
        cells.0.unsigned("latency_ns_p99")?,
        cells.0.unsigned("latency_ns_max")?,
        cells.0.unsigned("client_cpu_ns")?,
        cells.0.unsigned("target_cpu_ns")?,
    ];
    Ok((0..frame.height())
        .map(|at| Block {
            label: label[at].clone(),
            round: round[at],
            turn: turn[at],
            target: target[at].clone(),
            clients: clients[at],
            began_ns: began[at].unwrap_or(0),
            total_ns: total[at],
            statements: statements[at],
            answered: answered[at],
            wrong: wrong[at],
            errors: errors[at],
            connects: connects[at],
            p50_ns: p50[at],
            p99_ns: p99[at],
            max_ns: max[at],
            client_cpu_ns: client_cpu[at],
            target_cpu_ns: target_cpu[at],
        })
        .collect())
}

fn failures_of(frame: &DataFrame) -> PolarsResult<Vec<Failure>> {
    let cells = Table(Cells(frame));
    let [label, target, kind, text] = [
        cells.texts("label")?,
        cells.texts("target")?,
        cells.texts("kind")?,
        cells.texts("error")?,
    ];
    let [round, clients] = [cells.u32s("round")?, cells.u32s("clients")?];
    let code = cells.0.unsigned("error_code")?;
    let count = cells.u64s("count")?;
    Ok((0..frame.height())
        .map(|at| Failure {
            label: label[at].clone(),
            round: round[at],
            target: target[at].clone(),
            clients: clients[at],
            kind: kind[at].clone(),
            code: code[at].and_then(|code| u16::try_from(code).ok()),
            text: text[at].clone(),
            count: count[at],
        })
        .collect())
}
