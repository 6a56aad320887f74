//! One module for each subcommand.

pub mod bench;
pub mod check;
pub mod doctor;
pub mod down;
pub mod list;
pub mod matrix;
pub mod overhead;
pub mod run;
pub mod up;

use std::path::Path;

use gapscope_proto::small_file;

use crate::error::{Problem, Result};
use crate::scenario::{SHIPPED, shipped};

/// A scenario's text with how messages call it: a shipped one by its name, else a
/// file.
pub fn scenario_text(wanted: &str) -> Result<(String, String)> {
    if let Some(text) = shipped(wanted) {
        return Ok((wanted.to_owned(), text.to_owned()));
    }
    match small_file::read_text(Path::new(wanted), small_file::BY_HAND) {
        Ok(text) => Ok((wanted.to_owned(), text)),
        Err(error) => {
            let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
            let why = if error.kind() == std::io::ErrorKind::NotFound {
                format!("`{wanted}` is neither a shipped scenario nor a file")
            } else {
                format!("cannot read scenario {wanted}: {error}")
            };
            Err(Problem::usage(why).hint(format!(
                "shipped scenarios: {}; or give the path of a TOML file",
                names.join(", ")
            )))
        }
    }
}
