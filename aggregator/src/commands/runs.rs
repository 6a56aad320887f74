//! `runs`: lists the runs an aggregator has, or those of a data folder.

use std::path::PathBuf;

use gapscope_proto::wire::ListRunsRequest;

use super::client::{Aggregator, block_on, refused};
use crate::exit::Exit;
use crate::output::{data, note};
use crate::overhead::{self, store::is_overhead};
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

fn line(id: &str, state: &str, started: &str, samples: u64, scenario: &str) {
    data(format_args!(
        "{id}  {state:<11}  {started:<24}  {samples:>10}  {scenario}"
    ));
}

/// Lists runs, oldest first: id, state, begin, samples, scenario.
///
/// # Errors
/// When they cannot be listed.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    if let Some(folder) = args.data {
        for (id, path) in list_runs(&folder)? {
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
        let mut control = args.aggregator.control().await?;
        let runs = control
            .list_runs(ListRunsRequest {})
            .await
            .map_err(refused)?;
        for run in runs.into_inner().runs {
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
