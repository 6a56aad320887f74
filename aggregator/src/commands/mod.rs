//! One file per subcommand.

use crate::cli::Command;
use crate::exit::Exit;

pub mod agents;
pub mod annotate;
pub mod certs;
pub mod client;
pub mod clock;
pub mod compare;
pub mod gates;
pub mod import;
pub mod mark;
pub mod overhead;
pub mod plan;
pub mod report;
pub mod runs;
pub mod serve;
pub mod shown;
pub mod start;
pub mod stop;
pub mod tokens;
pub mod verify;
pub mod watch;

/// Carries out a subcommand.
///
/// # Errors
/// When it could not be done; the text speaks to a person.
pub fn dispatch(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Serve(args) => serve::run(args),
        Command::Start(args) => start::run(args),
        Command::Stop(args) => stop::run(args),
        Command::Mark(args) => mark::run(args),
        Command::Runs(args) => runs::run(args),
        Command::Agents(args) => agents::run(args),
        Command::Clock(args) => clock::run(args),
        Command::Report(args) => report::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Import(args) => import::run(args),
        Command::Certs(command) => certs::run(command),
        Command::Tokens(command) => tokens::run(command),
        Command::Verify(args) => verify::run(args),
        Command::Watch(args) => watch::run(args),
        Command::Annotate(args) => annotate::run(args),
    }
}
