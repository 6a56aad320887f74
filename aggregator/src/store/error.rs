//! What can go wrong with a run folder, in words for a person.

use std::io;
use std::path::{Path, PathBuf};

use polars::prelude::PolarsError;

use super::manifest::FORMAT_VERSION;

/// Why a run folder could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system said no.
    #[error("cannot {what} `{}`: {source}", path.display())]
    Io {
        /// "read", "write" ...
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A parquet file could not be read or written.
    #[error("cannot {what} `{}`: {source}", path.display())]
    Parquet {
        /// "read", "write" ...
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        source: PolarsError,
    },
    /// The folder is a benchmark's, which has no clients that are watched over time.
    #[error("`{}` is a benchmark of `gapscope-lab overhead`: only `report` and `compare` read it", .0.display())]
    IsBenchmark(PathBuf),
    /// The file is not what it should be.
    #[error("`{}` is damaged: {why}", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file has no checksum.
    #[error("`{}` is damaged: it has no checksum", .0.display())]
    Unsealed(PathBuf),
    /// Written by a newer program.
    #[error("cannot read `{}`: format version {found}, this build reads up to {FORMAT_VERSION}", path.display())]
    NewerFormat {
        /// Which file or folder.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// There is no such run.
    #[error("no run `{wanted}` in `{}`", data.display())]
    NotFound {
        /// What was asked for.
        wanted: String,
        /// Where.
        data: PathBuf,
    },
    /// The folder is no run folder.
    #[error("`{}` is not a run folder: it has no manifest.json", .0.display())]
    NotARun(PathBuf),
    /// Several runs begin with the prefix.
    #[error("`{prefix}` is the beginning of {count} runs in `{}`", data.display())]
    Ambiguous {
        /// What was asked for.
        prefix: String,
        /// How many there are.
        count: usize,
        /// Where.
        data: PathBuf,
    },
    /// Another process writes into the data folder.
    #[error("the data folder `{}` is in use by another aggregator{}", data.display(), holder.as_ref().map_or_else(String::new, |pid| format!(" (process {pid})")))]
    Locked {
        /// Which folder.
        data: PathBuf,
        /// By whom, if known.
        holder: Option<String>,
    },
    /// The run is there already.
    #[error("`{}` exists already", .0.display())]
    Exists(PathBuf),
}

impl StoreError {
    /// For `map_err`.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }

    /// For `map_err`.
    pub(crate) fn parquet(
        what: &'static str,
        path: &Path,
    ) -> impl FnOnce(PolarsError) -> Self + use<> {
        let path = path.to_owned();
        move |source| match source {
            PolarsError::IO { error, .. } => Self::Io {
                what,
                path,
                source: io::Error::new(error.kind(), error.to_string()),
            },
            source => Self::Parquet { what, path, source },
        }
    }

    /// Whether space ran out, which may pass.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }

    /// Whether a file is not what was written, so that nobody will ever read it.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. } | Self::Unsealed(_) | Self::Parquet { .. }
        )
    }

    /// Whether a file of a run does not say any more what was written into it.
    pub fn is_lost_data(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::Unsealed(_) => true,
            Self::Parquet { what, .. } => *what == "read",
            _ => false,
        }
    }

    /// What a person can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NewerFormat { .. } => Some("analyse it with a newer gapscope-aggregator"),
            Self::NotFound { .. } => {
                Some("`gapscope-aggregator runs` lists runs; --data DIR says where they are")
            }
            Self::Ambiguous { .. } => Some("give more digits of the run's id"),
            Self::NotARun(_) => {
                Some("give a run id, the beginning of one, `latest`, or a run's folder")
            }
            Self::Locked { .. } => Some("stop the other one, or give this one its own --data DIR"),
            _ if self.is_disk_full() => Some("make room on the disk; what agents hold is not lost"),
            _ => None,
        }
    }
}
