//! `start`: starts a run by hand.

use std::collections::BTreeMap;

use gapscope_proto::ids::{RunId, TargetName};
use gapscope_proto::plan::{ClientGroup, ClientKind, RunPlan, Timeouts};
use gapscope_proto::sample::{Canary, Style};
use gapscope_proto::wire::StartRunRequest;

use super::client::{Aggregator, block_on, refused};
use crate::duration;
use crate::exit::Exit;
use crate::output::{data, hinted, note};

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A target to probe; its agent knows the address. Again for each target.
    #[arg(long = "target", value_name = "NAME", required = true)]
    pub targets: Vec<TargetName>,
    /// Only this agent. Again for each; without it, every agent that has a target.
    #[arg(long = "agent", value_name = "ID")]
    pub agents: Vec<String>,
    /// How long to probe; agents stop by themselves.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    pub duration: u64,
    /// Clients that hold a connection, for each target.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub reused: u16,
    /// Between two probes of such a client.
    #[arg(long, value_name = "DURATION", default_value = "10ms", value_parser = duration::parse)]
    pub interval: u64,
    /// Clients that hold a connection and have no timeout.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub patient: u16,
    /// Clients that connect for each probe.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub new: u16,
    /// Between two probes of such a client.
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = duration::parse)]
    pub new_interval: u64,
    /// Clients that hold a connection and execute a statement prepared on it.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub prepared: u16,
    /// Clients that write a numbered row in a transaction each time; the agent's
    /// owner has to allow it (--allow-writes).
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub transaction: u16,
    /// Between two probes of such a client.
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = duration::parse)]
    pub transaction_interval: u64,
    /// Clients that ping their connection before each use, as a pool does.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub pool: u16,
    /// A client that leaves its connection idle for so long, then probes. Again for each.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub idle: Vec<u64>,
    /// A client that sets this piece of session state and checks it. Again for each.
    #[arg(long = "canary", value_name = "KIND")]
    pub canaries: Vec<Canary>,
    /// The clients' own timeout, for connecting and for each statement.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration::parse)]
    pub timeout: u64,
    /// Their timeout for looking up the address, where it differs.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub resolve_timeout: Option<u64>,
    /// Their timeout for TCP and login, where it differs.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub connect_timeout: Option<u64>,
    /// Their timeout for a statement, where it differs.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub query_timeout: Option<u64>,
    /// How late a good answer may be and still count.
    #[arg(long, value_name = "DURATION", default_value = "250ms", value_parser = duration::parse)]
    pub deadline: u64,
    /// SQL expression that says which backend answers.
    #[arg(long, value_name = "EXPR")]
    pub identity: Option<String>,
    /// A name for the run.
    #[arg(long, default_value = "by hand")]
    pub scenario: String,
    /// Where the aggregator is.
    #[command(flatten)]
    pub aggregator: Aggregator,
}

/// The plan that the flags say.
pub fn plan(args: &Args) -> RunPlan {
    let mut groups = Vec::new();
    for target in &args.targets {
        let mut next: BTreeMap<Style, u16> = BTreeMap::new();
        let mut add = |style, kind, clients: u16, interval_ns| {
            if clients == 0 {
                return;
            }
            let first_client = *next.entry(style).or_insert(0);
            next.insert(style, first_client.saturating_add(clients));
            let timeout = |own: Option<u64>| {
                (kind != ClientKind::Patient).then_some(own.unwrap_or(args.timeout))
            };
            groups.push(ClientGroup {
                target: target.clone(),
                style,
                kind,
                first_client,
                clients,
                interval_ns,
                timeouts: Timeouts {
                    resolve_ns: Some(args.resolve_timeout.unwrap_or(args.timeout)),
                    connect_ns: timeout(args.connect_timeout),
                    query_ns: timeout(args.query_timeout),
                },
            });
        };
        add(Style::Reused, ClientKind::Bare, args.reused, args.interval);
        add(
            Style::Reused,
            ClientKind::Patient,
            args.patient,
            args.interval,
        );
        for canary in &args.canaries {
            add(Style::Reused, ClientKind::Canary(*canary), 1, args.interval);
        }
        add(Style::Reused, ClientKind::Pool, args.pool, args.interval);
        for idle in &args.idle {
            add(Style::Reused, ClientKind::Idle, 1, *idle);
        }
        add(
            Style::Prepared,
            ClientKind::Bare,
            args.prepared,
            args.interval,
        );
        add(
            Style::Transaction,
            ClientKind::Bare,
            args.transaction,
            args.transaction_interval,
        );
        add(Style::New, ClientKind::Bare, args.new, args.new_interval);
    }
    RunPlan {
        run_id: RunId::generate(),
        scenario: args.scenario.clone(),
        duration_ns: args.duration,
        deadline_ns: args.deadline,
        groups,
        identity: args.identity.clone(),
        scenario_toml: String::new(),
    }
}

/// What a plan does to each target, one line each.
pub fn load(plan: &RunPlan) -> Vec<String> {
    #[derive(Default)]
    struct Load {
        held: u64,
        statements: f64,
        connects: f64,
        rows: f64,
    }
    let mut loads: BTreeMap<&TargetName, Load> = BTreeMap::new();
    for group in &plan.groups {
        let load = loads.entry(&group.target).or_default();
        let each_second = f64::from(group.clients) * 1e9 / group.interval_ns as f64;
        load.statements += match (group.style, group.kind) {
            (Style::Transaction, _) => {
                load.rows += each_second;
                4.0 * each_second
            }
            (_, ClientKind::Pool) => 2.0 * each_second,
            _ => each_second,
        };
        if group.style.is_held() {
            load.held += u64::from(group.clients);
        } else {
            load.connects += each_second;
        }
    }
    loads
        .iter()
        .map(|(target, load)| {
            format!(
                "target {target}: {} held connections, {:.0} statements/s, {:.0} new connections/s, {}",
                load.held,
                load.statements,
                load.connects,
                if load.rows > 0.0 {
                    format!("{:.0} rows/s WRITTEN", load.rows)
                } else {
                    "read-only".to_owned()
                }
            )
        })
        .collect()
}

/// Starts the run; prints the planned load to stderr and the run's id to stdout.
///
/// # Errors
/// When no agent has a target, or an agent refuses. A plan that makes no sense
/// is told and is [`Exit::Usage`].
pub fn run(args: Args) -> anyhow::Result<Exit> {
    let plan = plan(&args);
    let too_long = args.idle.iter().find(|idle| **idle >= args.duration);
    let why = match plan.validate() {
        Err(error) => Some(error.to_string()),
        Ok(()) if too_long.is_some() => Some(
            "an idle connection would be probed once, before it was idle: --duration has to be \
             longer than each --idle"
                .to_owned(),
        ),
        Ok(()) => plan
            .scenario
            .contains(char::is_control)
            .then(|| "its name has a control character".to_owned()),
    };
    if let Some(why) = why {
        crate::output::error(&hinted(
            format!("the run cannot be planned: {why}"),
            "see `gapscope-aggregator start --help`",
        ));
        return Ok(Exit::Usage);
    }
    block_on(async {
        let mut control = args.aggregator.control().await?;
        for line in load(&plan) {
            note(line);
        }
        let started = control
            .start_run(StartRunRequest {
                plan: Some((&plan).into()),
                agents: args.agents,
                ..StartRunRequest::default()
            })
            .await
            .map_err(refused)?
            .into_inner();
        for warning in &started.warnings {
            note(format_args!("warning: {warning}"));
        }
        note(format_args!(
            "started on {}, into {}",
            started.agents.join(", "),
            started.folder
        ));
        data(&started.run_id);
        Ok(Exit::Ok)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parse(flags: &[&str]) -> Args {
        Command::try_parse_from([&["start"], flags].concat())
            .expect("parses")
            .args
    }

    #[test]
    fn the_defaults_are_the_documented_ones() {
        let plan = plan(&parse(&["--target", "a", "--target", "b"]));
        plan.validate().expect("is valid");
        assert_eq!(plan.duration_ns, 30_000_000_000);
        assert_eq!(
            load(&plan),
            vec![
                "target a: 5 held connections, 510 statements/s, 10 new connections/s, read-only",
                "target b: 5 held connections, 510 statements/s, 10 new connections/s, read-only",
            ]
        );
        let patient = plan
            .groups
            .iter()
            .find(|group| group.kind == ClientKind::Patient)
            .expect("there is one");
        assert_eq!(patient.first_client, 4);
        assert_eq!(patient.timeouts.query_ns, None);
    }

    #[test]
    fn what_cannot_be_planned_is_a_wrong_command_line() {
        // Nobody is asked: port 1 would refuse, which is another exit.
        let exit = |flags: &[&str]| {
            let nowhere = ["--target", "a", "--aggregator", "http://127.0.0.1:1"];
            run(parse(&[&nowhere, flags].concat()))
        };
        for flags in [["--duration", "0s"], ["--scenario", "a\u{1b}[2J"]] {
            let done = exit(&flags).expect("told, not failed");
            assert_eq!(done, Exit::Usage, "{flags:?}");
        }
        assert!(exit(&["--duration", "1s"]).is_err());
    }

    #[test]
    fn canaries_are_clients_of_their_own() {
        let plan = plan(&parse(&[
            "--target",
            "a",
            "--canary",
            "user_variable",
            "--new",
            "0",
        ]));
        plan.validate().expect("is valid");
        let kinds: Vec<_> = plan
            .groups
            .iter()
            .map(|group| group.kind.as_str())
            .collect();
        assert_eq!(kinds, ["bare", "patient", "user_variable"]);
        assert_eq!(plan.groups[2].first_client, 5);
    }
}
