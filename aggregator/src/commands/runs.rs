//! `runs`: lists the runs an aggregator has, or those of a data folder.

use std::path::PathBuf;

use gapscope_proto::wire::ListRunsRequest;

use super::client::{Aggregator, block_on, refused};
use crate::exit::Exit;
use crate::output::{Hint, data, hinted, note, stdout_columns};
use crate::overhead::{self, store::is_overhead};
use crate::report::table::{cut, width};
use crate::store::RunFolder;
use crate::store::reader::{Standing, list_runs};

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Look into a data folder instead of asking an aggregator.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Where the aggregator is.
    #[command(flatten)]
    pub aggregator: Aggregator,
}

/// One line, or two where one would not fit: whoever reads this in a pipe gets one.
fn lines(
    [id, state, started, scenario]: [&str; 4],
    samples: u64,
    columns: Option<usize>,
) -> Vec<String> {
    let whole = format!("{id}  {state:<11}  {started:<24}  {samples:>10}  {scenario}");
    match columns {
        Some(columns) if width(&whole) > columns => vec![
            format!("{id}  {state}"),
            cut(
                &format!("  {started}  {samples} samples  {scenario}"),
                columns,
            ),
        ],
        _ => vec![whole],
    }
}

fn line(id: &str, state: &str, started: &str, samples: u64, scenario: &str) {
    let texts = [id, state, started, scenario];
    for line in lines(texts, samples, stdout_columns()) {
        data(line);
    }
}

/// Lists runs, oldest first: id, state, begin, samples, scenario.
///
/// # Errors
/// When they cannot be listed.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    if let Some(folder) = args.data {
        if !folder.is_dir() {
            return Err(hinted(
                format!(
                    "cannot list runs: there is no folder `{}`",
                    folder.display()
                ),
                "--data is the folder that `gapscope-aggregator serve --data` or the lab writes \
                 to",
            ));
        }
        let runs = list_runs(&folder)?;
        if runs.is_empty() {
            note(format_args!("there is no run in `{}`", folder.display()));
        }
        for (id, path) in runs {
            if is_overhead(&path) {
                match overhead::store::read(&path) {
                    Ok(bench) => line(
                        &id.to_string(),
                        Standing::from_state(bench.manifest.state).as_str(),
                        &bench.manifest.created_utc,
                        bench.blocks.iter().map(|b| b.answered).sum(),
                        &bench.manifest.kind,
                    ),
                    Err(error) => note(format_args!("{id}: {error}")),
                }
                continue;
            }
            match RunFolder::open(&path) {
                Ok(run) => {
                    let manifest = run.manifest();
                    line(
                        &id.to_string(),
                        run.standing().as_str(),
                        &manifest.created_utc,
                        run.samples_stored(),
                        &manifest.plan.scenario,
                    );
                }
                Err(error) => note(format_args!("{id}: {error}")),
            }
        }
        return Ok(Exit::Ok);
    }
    block_on(async {
        let mut control = args.aggregator.control().await.map_err(or_a_folder)?;
        let runs = control
            .list_runs(ListRunsRequest {})
            .await
            .map_err(refused)?;
        let runs = runs.into_inner().runs;
        if runs.is_empty() {
            note("the aggregator has no run yet");
        }
        for run in runs {
            line(
                &run.run_id,
                &run.state,
                &run.started_utc,
                run.samples,
                &run.scenario,
            );
        }
        Ok(Exit::Ok)
    })
}

/// Nobody answers: the folder of a server that is not there can be read all the same.
fn or_a_folder(error: anyhow::Error) -> anyhow::Error {
    let said = error.chain().find_map(|cause| cause.downcast_ref::<Hint>());
    let hint = said.map_or(String::new(), |hint| format!("{}; ", hint.0));
    let what: Vec<String> = error
        .chain()
        .filter(|cause| cause.downcast_ref::<Hint>().is_none())
        .map(ToString::to_string)
        .collect();
    hinted(
        what.join(": "),
        format!("{hint}--data DIR lists the runs in a folder, without an aggregator"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_and_keeps_the_whole_id() {
        let id = "01a22c71-a5ce-7341-a1d3-9c297ce0a076";
        let texts = [
            id,
            "interrupted",
            "2026-11-30T12:32:55.246Z",
            "rolling-restart",
        ];
        assert_eq!(lines(texts, 1_029_600, None).len(), 1);
        assert_eq!(lines(texts, 1_029_600, Some(120)).len(), 1);
        let narrow = lines(texts, 1_029_600, Some(80));
        assert!(narrow.iter().all(|line| width(line) <= 80), "{narrow:?}");
        assert_eq!(narrow[0], format!("{id}  interrupted"));
        assert_eq!(
            narrow[1],
            "  2026-11-30T12:32:55.246Z  1029600 samples  rolling-restart"
        );
    }
}
