//! The other programs of gapscope, which the lab carries inside and runs as
//! processes of their own by starting itself again.

use std::ffi::OsString;
use std::process::ExitCode;

/// The word by which the lab starts itself as an agent.
pub const AGENT: &str = "agent";
/// The word by which the lab starts itself as an aggregator.
pub const AGGREGATOR: &str = "aggregator";

/// `gapscope-lab agent ...` is `gapscope-agent ...`.
pub fn agent(args: impl Iterator<Item = OsString>) -> ExitCode {
    gapscope_agent::main_from(std::iter::once(OsString::from("gapscope-agent")).chain(args))
}

/// `gapscope-lab aggregator ...` is `gapscope-aggregator ...`.
pub fn aggregator(args: impl Iterator<Item = OsString>) -> ExitCode {
    gapscope_aggregator::main_from(
        std::iter::once(OsString::from("gapscope-aggregator")).chain(args),
    )
}
