//! Takes in samples, stores them, aligns the clocks, computes what the clients
//! saw, reports.
//!
//! `listen` and `auth` decide who gets to the server, `ingest` and `control` are it, `store` is the run folder that it
//! writes and everything else reads. `import` fills such a folder from what
//! other programs measured. `align` relates clocks, `analyse` computes, `report`
//! renders.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

pub mod align;
pub mod analyse;
pub mod auth;
pub mod certs;
pub mod cli;
pub mod commands;
pub mod compare;
pub mod control;
pub mod duration;
pub mod exit;
pub mod gate;
pub mod import;
pub mod ingest;
pub mod listen;
pub mod live;
pub mod measure;
pub mod names;
pub mod output;
pub mod overhead;
pub mod report;
pub mod reporter;
pub mod server;
pub mod stats;
pub mod store;
pub mod web;
pub use gapscope_proto::utc;

/// Runs the program with these arguments (the program's name first).
pub fn main_from<I: IntoIterator<Item = OsString>>(args: I) -> ExitCode {
    let cli = match cli::Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // clap knows where its texts go; nothing can be said if that fails.
            let _ = error.print();
            return if error.use_stderr() {
                exit::Exit::Usage.into()
            } else {
                exit::Exit::Ok.into()
            };
        }
    };
    output::start_tracing();
    match commands::dispatch(cli.command) {
        Ok(exit) => exit.into(),
        Err(error) => {
            output::error(&error);
            exit::Exit::of(&error).into()
        }
    }
}
