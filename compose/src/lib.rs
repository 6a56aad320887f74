//! gapscope's lab: composes backends, proxies, an agent, an aggregator and faults
//! from a scenario file, and leaves a run folder.
//!
//! The pure parts are [`scenario`] (a text in, a validated scenario out) and
//! [`timeline`] (when which step is due). [`play`] carries the steps out and
//! records what [`witness`]es see; [`runtime`] brings things up and takes them
//! down; [`commands`] puts it all together. Nothing that was running before a lab
//! is ever touched.

pub mod bench;
pub mod children;
pub mod cli;
pub mod clock_wait;
pub mod commands;
pub mod control;
pub mod duration;
pub mod embedded;
pub mod error;
pub mod exec;
pub mod folder;
pub mod identity;
pub mod lab;
pub mod leftovers;
pub mod login;
pub mod long_query;
pub mod matrix;
pub mod names;
pub mod output;
pub mod overhead;
pub mod play;
pub mod programs;
pub mod progress;
pub mod recover;
pub mod repeat;
pub mod runtime;
pub mod scenario;
pub mod services;
pub mod signals;
pub mod timeline;
pub mod view;
pub mod witness;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::error::{Problem, Result, exit};

/// Runs the program with these arguments, the first being its own name.
pub fn main_from<I: IntoIterator<Item = OsString>>(args: I) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let rest = || args.iter().skip(2).cloned();
    // These come before anything else, in particular before any thread.
    match args.get(1).and_then(|word| word.to_str()) {
        Some(exec::EXEC) => return exec::exec(rest()),
        Some(exec::JANITOR) => return exec::janitor(rest()),
        Some(exec::DEADMAN) => return exec::deadman(rest()),
        Some(programs::AGENT) => return programs::agent(rest()),
        Some(programs::AGGREGATOR) => return programs::aggregator(rest()),
        _ => {}
    }
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => {
            // An error means that there is nobody to tell.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { 0 });
        }
    };
    match dispatch(cli) {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            output::say(&problem.to_string());
            ExitCode::from(problem.code)
        }
    }
}

/// What is blocked on these stays on this very thread, to whose life those of the
/// children are tied.
fn threads() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Problem::new(format!("cannot start threads: {error}")))
}

fn dispatch(cli: Cli) -> Result<u8> {
    match cli.command {
        Command::List => output::data(&commands::list::text(output::columns_or_80())?),
        Command::Check { scenario } => {
            output::data(&commands::check::text(&scenario, output::columns_or_80())?);
        }
        Command::Doctor { program } => {
            output::data(&commands::doctor::text(&program.into_iter().collect()));
        }
        Command::Run(options) => return threads()?.block_on(commands::run::run(&options)),
        Command::Matrix(options) => {
            return threads()?.block_on(commands::matrix::matrix(&options));
        }
        Command::Overhead(options) => {
            return threads()?.block_on(commands::overhead::run(&options));
        }
        Command::Bench(options) => return threads()?.block_on(commands::bench::run(&options)),
        Command::Down { name, all } => {
            let down = commands::down::down(name.as_deref(), all);
            output::data(&threads()?.block_on(down)?);
        }
        // On this very thread, to whose life those of the children are tied.
        Command::Up(options) if options.hold => {
            return threads()?.block_on(commands::up::hold(&options));
        }
        Command::Up(options) => {
            let runtime = threads()?;
            let code = runtime.block_on(commands::up::up(&options));
            // The lab's process goes on, and with it the pipe that is read.
            runtime.shutdown_background();
            return code;
        }
    }
    Ok(0)
}
