//! `stop`: ends a run and closes its folder.

use gapscope_proto::wire::{AgentAccount, StopRunRequest};

use super::client::{Aggregator, block_on, refused, resolve_run};
use crate::duration;
use crate::exit::Exit;
use crate::output::{data, note};

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run: its id, the beginning of it, or `latest`.
    pub run: String,
    /// Kept with the run.
    #[arg(long, default_value = "stopped by an operator")]
    pub reason: String,
    /// How long to wait for what agents still hold.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub drain: u64,
    /// Where the aggregator is.
    #[command(flatten)]
    pub aggregator: Aggregator,
}

/// Agents whose books are shown each; of more, only those that lack something.
const SHOWN: usize = 20;

/// The closing accounts in words: of each agent, and of all.
fn books(accounts: &[AgentAccount]) -> Vec<String> {
    let lacks = |a: &AgentAccount| a.lost + a.missing > 0 || a.may_hold_more;
    let are_many = accounts.len() > SHOWN;
    let mut lines: Vec<String> = accounts
        .iter()
        .filter(|account| !are_many || lacks(account))
        .take(SHOWN)
        .map(|account| line(&format!("agent {}", account.agent_id), account))
        .collect();
    let lacking = accounts.iter().filter(|account| lacks(account)).count();
    if are_many && lacking > SHOWN {
        lines.push(format!(
            "... and {} more agents that lack something",
            lacking - SHOWN
        ));
    }
    if accounts.len() > 1 {
        let sum = |pick: fn(&AgentAccount) -> u64| accounts.iter().map(pick).sum();
        let all = AgentAccount {
            agent_id: String::new(),
            sampled: sum(|a| a.sampled),
            stored: sum(|a| a.stored),
            lost: sum(|a| a.lost),
            lost_min: sum(|a| a.lost_min),
            lost_max: sum(|a| a.lost_max),
            missing: sum(|a| a.missing),
            repeated: sum(|a| a.repeated),
            may_hold_more: accounts.iter().any(|a| a.may_hold_more),
        };
        lines.push(line(&format!("{} agents", accounts.len()), &all));
    }
    lines
}

fn line(who: &str, account: &AgentAccount) -> String {
    let AgentAccount {
        sampled,
        stored,
        lost,
        missing,
        ..
    } = account;
    let mut text =
        format!("{who}: {sampled} sampled = {stored} stored + {lost} lost + {missing} missing");
    if account.lost_min < account.lost_max {
        text += &format!(
            " (of the lost numbers {} to {} had been used)",
            account.lost_min, account.lost_max
        );
    }
    if account.repeated > 0 {
        text += &format!("; {} came twice and were left out", account.repeated);
    }
    if account.may_hold_more {
        text += "; how its probing ended is not known here: its spool may hold more";
    }
    text
}

/// Stops the run; prints its folder, and to a person the closing accounts.
///
/// # Errors
/// When it could not be closed.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    block_on(async {
        let mut control = args.aggregator.control().await?;
        let run_id = resolve_run(&mut control, &args.run).await?;
        let stopped = control
            .stop_run(StopRunRequest {
                run_id,
                reason: args.reason,
                drain_ms: u32::try_from(args.drain / 1_000_000).unwrap_or(u32::MAX),
            })
            .await
            .map_err(refused)?
            .into_inner();
        data(&stopped.folder);
        for missing in &stopped.missing {
            note(format_args!("missing: {missing}"));
        }
        for line in books(&stopped.accounts) {
            note(line);
        }
        // What is missing may still come: agents keep it and bring it later.
        Ok(Exit::Ok)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(number: u64) -> AgentAccount {
        AgentAccount {
            agent_id: format!("a{number}"),
            sampled: 10,
            stored: 10,
            ..AgentAccount::default()
        }
    }

    #[test]
    fn each_agents_books_and_those_of_all() {
        let mut accounts = vec![account(0)];
        assert_eq!(
            books(&accounts),
            ["agent a0: 10 sampled = 10 stored + 0 lost + 0 missing"]
        );
        accounts.push(AgentAccount {
            sampled: 20,
            lost: 6,
            lost_min: 1,
            lost_max: 6,
            missing: 4,
            repeated: 7,
            may_hold_more: true,
            ..account(1)
        });
        let lines = books(&accounts);
        assert_eq!(
            lines[1],
            "agent a1: 20 sampled = 10 stored + 6 lost + 4 missing (of the lost numbers 1 to 6 \
             had been used); 7 came twice and were left out; how its probing ended is not known \
             here: its spool may hold more"
        );
        assert!(lines[2].starts_with("2 agents: 30 sampled = 20 stored + 6 lost + 4 missing"));
    }

    #[test]
    fn of_many_agents_only_those_that_lack_something() {
        let mut accounts: Vec<_> = (0..500).map(account).collect();
        assert_eq!(
            books(&accounts),
            ["500 agents: 5000 sampled = 5000 stored + 0 lost + 0 missing"]
        );
        for account in &mut accounts[..30] {
            account.missing = 1;
        }
        let lines = books(&accounts);
        assert_eq!(lines.len(), SHOWN + 2);
        assert_eq!(lines[SHOWN], "... and 10 more agents that lack something");
    }
}
