//! `proxy_view.parquet`: what proxies believed of their backends, as a lab saw it by
//! asking them beside the probes.
//!
//! A row stands for consecutive looks that showed the same: it was so at each of
//! them, and between the last look of one row and the first of the next it changed.
//! Times are RAW nanoseconds of the clock that the row names.

use std::path::Path;

use gapscope_proto::clock::ClockKey;
use gapscope_proto::fault::Span;
use polars::prelude::*;

use super::StoreError;
use super::disk::Disk;

/// The file's name in a run's folder.
pub const FILE: &str = "proxy_view.parquet";

/// Consecutive looks that showed the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The proxy.
    pub proxy: String,
    /// The backend; empty where the proxy did not answer.
    pub backend: String,
    /// The proxy's own word; none where it did not answer.
    pub state: Option<String>,
    /// Its check's words; where it did not answer: why.
    pub check: String,
    /// Connections it held to the backend, where it tells.
    pub sessions: Option<u64>,
    /// From begin to end of the first look that showed this.
    pub first: Span,
    /// From begin to end of the last one.
    pub last: Span,
    /// How many there were.
    pub looks: u64,
}

fn frame(rows: &[Seen], clock: &ClockKey) -> PolarsResult<DataFrame> {
    let text = |name: &str, pick: &dyn Fn(&Seen) -> Option<String>| {
        Series::new(name.into(), rows.iter().map(pick).collect::<Vec<_>>()).into_column()
    };
    let time = |name: &str, pick: &dyn Fn(&Seen) -> i64| {
        Series::new(name.into(), rows.iter().map(pick).collect::<Vec<_>>()).into_column()
    };
    let count = |name: &str, pick: &dyn Fn(&Seen) -> Option<u64>| {
        Series::new(name.into(), rows.iter().map(pick).collect::<Vec<_>>()).into_column()
    };
    DataFrame::new(
        rows.len(),
        vec![
            text("proxy", &|row| Some(row.proxy.clone())),
            text("backend", &|row| Some(row.backend.clone())),
            text("state", &|row| row.state.clone()),
            text("check", &|row| Some(row.check.clone())),
            count("sessions", &|row| row.sessions),
            time("first_begin_ns", &|row| row.first.earliest_ns),
            time("first_end_ns", &|row| row.first.latest_ns),
            time("last_begin_ns", &|row| row.last.earliest_ns),
            time("last_end_ns", &|row| row.last.latest_ns),
            count("looks", &|row| Some(row.looks)),
            text("clock_boot_id", &|_| Some(clock.boot_id.clone())),
            count("clock_time_namespace", &|_| Some(clock.time_namespace)),
        ],
    )
}

/// Makes the file hold these rows, or leaves it as it was.
///
/// # Errors
/// When it cannot be written.
pub fn write(folder: &Path, rows: &[Seen], clock: &ClockKey) -> Result<(), StoreError> {
    let path = folder.join(FILE);
    let mut frame = frame(rows, clock).map_err(StoreError::parquet("write", &path))?;
    Disk::default().write(&path, |out| {
        ParquetWriter::new(out)
            .finish(&mut frame)
            .map(drop)
            .map_err(StoreError::parquet("write", &path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_read_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let span = |earliest_ns, latest_ns| Span {
            earliest_ns,
            latest_ns,
        };
        let row = |state: Option<&str>, at| Seen {
            proxy: "p".to_owned(),
            backend: "b".to_owned(),
            state: state.map(str::to_owned),
            check: String::new(),
            sessions: Some(7),
            first: span(at, at + 1),
            last: span(at + 10, at + 11),
            looks: 2,
        };
        let clock = ClockKey {
            boot_id: "boot".to_owned(),
            time_namespace: 4,
        };
        write(
            folder.path(),
            &[row(Some("UP"), 100), row(None, 200)],
            &clock,
        )
        .expect("written");
        let file = std::fs::File::open(folder.path().join(FILE)).expect("there");
        let read = ParquetReader::new(file).finish().expect("read");
        assert_eq!(read.height(), 2);
        let states = read.column("state").expect("a column");
        let states = states.str().expect("texts");
        assert_eq!((states.get(0), states.get(1)), (Some("UP"), None));
        let last = read.column("last_end_ns").expect("a column");
        assert_eq!(last.i64().expect("times").get(1), Some(211));
    }
}
