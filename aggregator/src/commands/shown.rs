//! What `report` and `clock` have in common: which run, and how wide.

use std::io::IsTerminal;
use std::path::PathBuf;

use crate::output;
use crate::report::text::Layout;
use crate::store::reader::find_path;
use crate::store::{RunFolder, StoreError};

/// Arguments of a command that reads a run's folder and prints.
#[derive(Debug, clap::Args)]
pub struct Shown {
    /// A run's id, the beginning of it, `latest`, or its folder.
    #[arg(value_name = "RUN|FOLDER")]
    run: String,
    /// Columns of the text; the terminal's by default, or 80.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(60..=1000))]
    width: Option<u16>,
    /// Where runs are kept.
    #[arg(long, default_value = "./runs", value_name = "DIR")]
    data: PathBuf,
}

impl Shown {
    /// Opens the run.
    ///
    /// # Errors
    /// When there is none, several, or it cannot be read.
    pub(super) fn open(&self) -> Result<RunFolder, StoreError> {
        RunFolder::find(&self.data, &self.run)
    }

    /// The run's folder, of whatever kind it is.
    ///
    /// # Errors
    /// When there is none, or several.
    pub(super) fn path(&self) -> Result<PathBuf, StoreError> {
        find_path(&self.data, &self.run)
    }

    /// The columns asked for.
    pub(super) fn width(&self) -> Option<u16> {
        self.width
    }

    /// How text is laid out.
    pub(super) fn layout(&self) -> Layout {
        layout(self.width)
    }
}

/// In `width` columns, or the terminal's; in colour on a terminal.
pub(super) fn layout(width: Option<u16>) -> Layout {
    Layout {
        width: width.map_or_else(|| output::stdout_columns().unwrap_or(80), usize::from),
        colour: std::io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        is_full: false,
    }
}
