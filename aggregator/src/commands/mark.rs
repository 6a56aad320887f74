//! `mark`: notes in a run that something was done or seen, now.

use gapscope_proto::wire::{Fault, RecordFaultRequest};

use super::client::{Aggregator, block_on, refused, resolve_run};
use crate::exit::Exit;
use crate::output::data;

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run: its id, the beginning of it, or `latest`.
    pub run: String,
    /// What was done or seen.
    pub text: String,
    /// What was done, in a word: stop, kill, hang ...
    #[arg(long, default_value = "mark")]
    pub step: String,
    /// To whom; with it the mark is judged like a fault.
    #[arg(long, value_name = "NAME")]
    pub subject: Option<String>,
    /// The identity by which probes know the subject.
    #[arg(long, value_name = "ID", requires = "subject")]
    pub identity: Option<String>,
    /// Where the aggregator is.
    #[command(flatten)]
    pub aggregator: Aggregator,
}

/// Records the mark, stamped when it arrives; prints its number.
///
/// # Errors
/// When it could not be recorded.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    block_on(async {
        let mut control = args.aggregator.control().await?;
        let run_id = resolve_run(&mut control, &args.run).await?;
        let recorded = control
            .record_fault(RecordFaultRequest {
                run_id,
                fault: Some(Fault {
                    step: args.step,
                    subject: args.subject.unwrap_or_default(),
                    identity: args.identity.unwrap_or_default(),
                    scope: "mark".to_owned(),
                    detail: args.text,
                    ..Fault::default()
                }),
            })
            .await
            .map_err(refused)?
            .into_inner();
        data(recorded.id);
        Ok(Exit::Ok)
    })
}
