//! The subcommand `clock`: how the clocks of a run's agents stand to the
//! aggregator's, and how far that is known.

use std::path::PathBuf;

use super::report::layout;
use crate::analyse::timeline::{Aligned, timelines};
use crate::exit::Exit;
use crate::output;
use crate::report::{clock, text};
use crate::store::RunFolder;

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables for a terminal.
    Text,
    /// For programs, with the bound over time.
    Json,
}

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A run's id, the beginning of it, `latest`, or its folder.
    #[arg(value_name = "RUN|FOLDER")]
    run: String,
    /// How to print.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Columns of the text; the terminal's by default, or 80.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(60..=1000))]
    width: Option<u16>,
    /// Where runs are kept.
    #[arg(long, default_value = "./runs", value_name = "DIR")]
    data: PathBuf,
}

fn view(aligned: &Aligned) -> clock::AgentClock<'_> {
    clock::AgentClock {
        agent: &aligned.agent.agent,
        clock: &aligned.agent.clock,
        origin_ns: aligned
            .agent
            .lives
            .first()
            .map_or(0, |(_, life)| life.origin_ns),
        exchanges: aligned.exchanges,
        wall_error: aligned.wall_error,
    }
}

/// Carries it out.
///
/// # Errors
/// When there is no such run, or it cannot be read.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    let folder = RunFolder::find(&args.data, &args.run)?;
    let found = timelines(&folder)?;
    let agents: Vec<clock::AgentClock<'_>> = found.agents.iter().map(view).collect();
    let text = match args.format {
        Format::Json => {
            let mut json = clock::as_json(&found.clocks, &agents);
            json["caveats"] = found.caveats.iter().map(|c| c.text.clone()).collect();
            serde_json::to_string_pretty(&json)?
        }
        Format::Text => {
            let caveats: Vec<String> = found.caveats.iter().map(|c| c.text.clone()).collect();
            let tables: Vec<_> = [
                clock::epoch_table(&found.clocks, &agents),
                clock::bound_table(&found.clocks, &agents),
            ]
            .into_iter()
            .filter(|table| !table.rows.is_empty())
            .collect();
            text::tables(&tables, &caveats, layout(args.width))
        }
    };
    output::data(text.trim_end());
    Ok(Exit::Ok)
}
