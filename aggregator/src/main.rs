//! `gapscope-aggregator`: see `--help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gapscope_aggregator::main_from(std::env::args_os())
}
