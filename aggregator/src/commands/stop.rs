//! The subcommand `stop`.

use crate::exit::Exit;

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Carries it out.
///
/// # Errors
/// When it could not be done.
pub fn run(_args: Args) -> anyhow::Result<Exit> {
    anyhow::bail!("this build has no `stop`")
}
