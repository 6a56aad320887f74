//! The subcommand `clock`: how the clocks of a run's agents stand to the
//! aggregator's, and how far that is known.

use std::path::PathBuf;

use anyhow::Context;

use super::shown::Shown;
use crate::analyse::timeline::{Aligned, timelines};
use crate::exit::Exit;
use crate::output;
use crate::report::{clock, clock_plot, text};

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
    #[command(flatten)]
    shown: Shown,
    /// How to print.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Also write the figure (offset band, bound, round trips) to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
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
        round_trips: &aligned.round_trips,
        wall_error: aligned.wall_error,
    }
}

/// Carries it out.
///
/// # Errors
/// When there is no such run, or it cannot be read.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    let folder = args.shown.open()?;
    let found = timelines(&folder, &folder.blocks(&[])?)?;
    let agents: Vec<clock::AgentClock<'_>> = found.agents.iter().map(view).collect();
    let plots = clock_plot::plots(&found.clocks, &agents);
    if let Some(path) = &args.svg {
        let figure = clock_plot::all(&plots).document();
        std::fs::write(path, figure)
            .with_context(|| format!("cannot write the figure {}", path.display()))?;
        output::note(format!("written: {}", path.display()));
    }
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
                clock_plot::sketch(&plots),
            ]
            .into_iter()
            .filter(|table| !table.rows.is_empty())
            .collect();
            text::tables(&tables, &caveats, args.shown.layout())
        }
    };
    output::data(text.trim_end());
    Ok(Exit::Ok)
}
