//! `stop`: ends a run and closes its folder.

use gapscope_proto::wire::StopRunRequest;

use super::client::{Aggregator, block_on, refused, resolve_run};
use crate::duration;
use crate::exit::Exit;
use crate::output::{data, note};

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run: its id, the beginning of it, or `latest`.
    pub run: String,
    /// Kept with the run.
    #[arg(long, default_value = "stopped by an operator")]
    pub reason: String,
    /// How long to wait for what agents still hold.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub drain: u64,
    /// Where the aggregator is.
    #[command(flatten)]
    pub aggregator: Aggregator,
}

/// Stops the run; prints its folder.
///
/// # Errors
/// When it could not be closed.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    block_on(async {
        let mut control = args.aggregator.control().await?;
        let run_id = resolve_run(&mut control, &args.run).await?;
        let stopped = control
            .stop_run(StopRunRequest {
                run_id,
                reason: args.reason,
                drain_ms: u32::try_from(args.drain / 1_000_000).unwrap_or(u32::MAX),
            })
            .await
            .map_err(refused)?
            .into_inner();
        data(&stopped.folder);
        for missing in &stopped.missing {
            note(format_args!("missing: {missing}"));
        }
        // What is missing may still come: agents keep it and bring it later.
        Ok(Exit::Ok)
    })
}
