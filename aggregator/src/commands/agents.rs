//! `agents`: lists the agents an aggregator knows.

use gapscope_proto::wire::ListAgentsRequest;

use super::client::{Aggregator, block_on, refused};
use crate::exit::Exit;
use crate::output::data;

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where the aggregator is.
    #[command(flatten)]
    pub aggregator: Aggregator,
}

/// Lists agents: id, whether connected, bytes in the spool, version, host,
/// targets.
///
/// # Errors
/// When they cannot be listed.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    block_on(async {
        let mut control = args.aggregator.control().await?;
        let agents = control
            .list_agents(ListAgentsRequest {})
            .await
            .map_err(refused)?;
        for agent in agents.into_inner().agents {
            let state = match (agent.connected, agent.running.is_empty()) {
                (false, _) => "gone",
                (true, true) => "idle",
                (true, false) => "probing",
            };
            let targets: Vec<String> = agent
                .targets
                .iter()
                .map(|target| format!("{}={}@{}", target.name, target.user, target.address))
                .collect();
            data(format_args!(
                "{}  {state:<7}  {:>10} B  {}  {}  {}",
                agent.agent_id,
                agent.spool_bytes,
                agent.program_version,
                agent.host.map(|host| host.hostname).unwrap_or_default(),
                targets.join(" ")
            ));
        }
        Ok(Exit::Ok)
    })
}
