//! Prints a run's summary.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::children::{Child, Itself};
use crate::cli::Run;
use crate::error::{Problem, Result, exit};
use crate::output;
use crate::programs::AGGREGATOR;

/// Prints the summary of a run folder, by the aggregator's own `report`, which
/// also decides the exit code.
pub(super) async fn report(itself: &Itself, options: &Run, folder: &Path) -> Result<u8> {
    let mut command = itself.command();
    command
        .args([AGGREGATOR, "report"])
        .arg(folder)
        .args(["--format", options.format.as_str()]);
    if let Some(columns) = output::stdout_columns() {
        command.args(["--width", &columns.to_string()]);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::inherit())
        .stderr(Stdio::inherit());
    let failed = |why: String| {
        Problem::new(format!("cannot report on {}: {why}", folder.display())).hint(format!(
            "try again with: gapscope-aggregator report {}",
            folder.display()
        ))
    };
    let child = Child::start_as_is("the report", command, None)
        .map_err(|error| failed(error.to_string()))?;
    if !child.wait(Duration::from_secs(600)).await {
        return Err(failed("it took more than 10 minutes".to_owned()));
    }
    match child.ended() {
        Ok(Some(status)) => match status.code() {
            Some(code) => Ok(u8::try_from(code).unwrap_or(exit::FAILURE)),
            None => Err(failed(status.to_string())),
        },
        Ok(None) => Err(failed("it is still running".to_owned())),
        Err(error) => Err(failed(error.to_string())),
    }
}
