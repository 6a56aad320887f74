//! The gates of `report`: `--fail-if` and `--junit`.

use std::path::PathBuf;

use serde_json::Value;

use crate::exit::Exit;
use crate::gate::judge::judge;
use crate::gate::junit::junit;
use crate::gate::parse::Gate;
use crate::output;
use crate::store::disk::Disk;

/// Their arguments.
#[derive(Debug, clap::Args)]
// Its own name: it stands beside the arguments of a subcommand.
#[group(id = "gates")]
pub struct Args {
    /// Exit with 3 if this is so, such as 'windows.upper > 2s' or 'verdict >=
    /// disrupted where target = haproxy'; may be given several times.
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<Gate>,
    /// Write what came of the conditions of --fail-if as JUnit XML; without one there is
    /// nothing to write.
    #[arg(long, value_name = "FILE", requires = "fail_if")]
    junit: Option<PathBuf>,
}

impl Args {
    /// Holds the conditions against a summary; says what failed. Without failures
    /// the program ends as it would have.
    ///
    /// # Errors
    /// When the JUnit file cannot be written.
    pub fn apply(&self, summary: &Value, exit: Exit) -> anyhow::Result<Exit> {
        let cases = judge(summary, &self.fail_if);
        if let Some(path) = &self.junit {
            let run = summary["run_id"].as_str().unwrap_or_default();
            Disk::default()
                .write_bytes(path, junit(&format!("gapscope {run}"), &cases).as_bytes())?;
        }
        let mut exit = exit;
        for case in cases {
            if let Some(why) = case.failure {
                output::note(format_args!("gate failed: {}: {why}", case.name));
                exit = Exit::GateFailed;
            }
        }
        Ok(exit)
    }
}
