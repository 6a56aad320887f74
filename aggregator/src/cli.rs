//! The command line.

use clap::{Parser, Subcommand};

use crate::commands;

/// Takes in samples from agents, stores runs, and reports what clients saw.
#[derive(Debug, Parser)]
#[command(name = "gapscope-aggregator", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve agents and operators until told to stop.
    Serve(commands::serve::Args),
    /// Start a run; prints its id.
    Start(commands::start::Args),
    /// Stop a run and close its folder.
    Stop(commands::stop::Args),
    /// Note in a run that something was done or seen.
    Mark(commands::mark::Args),
    /// List the runs an aggregator has.
    Runs(commands::runs::Args),
    /// List the agents an aggregator knows.
    Agents(commands::agents::Args),
    /// Look at a run as it goes on.
    Watch(commands::watch::Args),
    /// Say what the clients saw in a run.
    Report(commands::report::Args),
    /// Compare runs, or sets of runs: better, worse, or not distinguishable.
    Compare(commands::compare::Args),
    /// Say beforehand how many rounds or faults a wanted difference needs.
    Plan(commands::plan::Args),
    /// Say how the agents' clocks stand to the aggregator's, and how surely.
    Clock(commands::clock::Args),
    /// Take in what an agent left in its spool, or data of other programs.
    Import(commands::import::Args),
    /// Read all that is stored of a run and say whether it is whole.
    Verify(commands::verify::Args),
    /// Put a run's faults and marks into Grafana.
    Annotate(commands::annotate::Args),
    /// Make certificates, for TLS between agents, aggregator and people.
    #[command(subcommand)]
    Certs(commands::certs::Command),
    /// Make bearer tokens, where certificates are too much.
    #[command(subcommand)]
    Tokens(commands::tokens::Command),
}
