//! The aggregator and the agent of a lab: this program, started again.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gapscope_proto::clock::Clock;

use crate::children::{Child, tail};
use crate::control::Control;
use crate::error::{Problem, Result};
use crate::folder::{LabFolder, write_private};
use crate::programs::{AGENT, AGGREGATOR};
use crate::runtime::Reached;
use crate::witness::Login;

const UP_WITHIN_NS: i64 = 30_000_000_000;
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Both write what they hold before they end.
const END_GRACE: Duration = Duration::from_secs(10);

/// What the agent is to know.
pub struct AgentSetup<'a> {
    /// Its id.
    pub agent_id: &'a str,
    /// Its targets.
    pub targets: &'a [(String, Reached)],
    /// Who logs in.
    pub login: &'a Login,
    /// Its guard.
    pub max_connects_per_second: u32,
    /// Where it may write, if it may, and through which targets the ledger is read.
    pub writes: Option<(&'a str, Vec<String>)>,
}

/// Both, running.
pub struct Services {
    agent: Child,
    aggregator: Child,
    logs: [PathBuf; 2],
    /// To the aggregator.
    pub control: Control,
    /// Where the aggregator listens.
    pub url: String,
    /// Where its page for browsers is, if there is one.
    pub page: Option<SocketAddr>,
}

impl Services {
    /// Starts both and waits until the agent offers all its targets. Must be
    /// called on a thread that lives as long as they do (see `children`).
    pub async fn start(
        folder: &LabFolder,
        data: &Path,
        http: Option<SocketAddr>,
        setup: &AgentSetup<'_>,
        clock: &dyn Clock,
    ) -> Result<Self> {
        let itself = folder.itself();
        let deadline = clock.raw_ns() + UP_WITHIN_NS;
        let Served {
            aggregator,
            mut control,
            url,
            page,
            log: aggregator_log,
        } = serve(folder, data, http, clock).await?;

        let agent_log = folder.path().join("agent.log");
        let config = folder.path().join("agent.toml");
        let secret = folder.path().join("probe.password");
        write_private(&secret, &setup.login.password, None)?;
        write_private(&config, &agent_config(setup, &url, data, &secret), None)?;
        let mut command = itself.command();
        command
            .args([AGENT, "run", "--config"])
            .arg(&config)
            .arg("--die-with-parent");
        let agent = start("the agent", command, &agent_log)?;
        loop {
            let known = control.agents().await?;
            let offers = known
                .iter()
                .find(|agent| agent.agent_id == setup.agent_id && agent.connected)
                .map_or(0, |agent| agent.targets.len());
            if offers == setup.targets.len() {
                break;
            }
            still_there(&agent, clock, deadline, "did not offer its targets")?;
            still_there(&aggregator, clock, deadline, "lost its agent")?;
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(Self {
            agent,
            aggregator,
            logs: [agent_log, aggregator_log],
            control,
            url,
            page,
        })
    }

    /// The agent's process.
    pub fn agent(&self) -> &Child {
        &self.agent
    }

    /// The aggregator's process.
    pub fn aggregator(&self) -> &Child {
        &self.aggregator
    }

    /// Says which of them has ended, if one has.
    pub fn failure(&self) -> Option<Problem> {
        [&self.agent, &self.aggregator]
            .into_iter()
            .find_map(|child| match child.ended() {
                Ok(None) => None,
                Ok(Some(status)) => Some(Problem::new(format!(
                    "{} ended with {status} in the middle of the run:\n{}",
                    child.name(),
                    child.log_tail(6)
                ))),
                Err(error) => Some(Problem::new(format!(
                    "cannot tell whether {} still runs: {error}",
                    child.name()
                ))),
            })
    }

    /// Warnings and errors that they wrote, the last few.
    pub fn warnings(&self) -> Vec<String> {
        self.logs
            .iter()
            .flat_map(|log| {
                tail(log, 10_000)
                    .lines()
                    .filter(|line| {
                        line.contains(" WARN ")
                            || line.contains(" ERROR ")
                            || line.starts_with("error:")
                    })
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Ends both, the agent first: it says goodbye.
    pub async fn end(self) {
        self.agent.end(END_GRACE).await;
        self.aggregator.end(END_GRACE).await;
    }
}

/// An aggregator, running.
pub struct Served {
    /// Its process.
    pub aggregator: Child,
    /// To it.
    pub control: Control,
    /// Where it listens.
    pub url: String,
    /// Where its page for browsers is, if there is one.
    pub page: Option<SocketAddr>,
    log: PathBuf,
}

/// Starts an aggregator and waits until it listens. Must be called on a thread that
/// lives as long as it does (see `children`).
pub async fn serve(
    folder: &LabFolder,
    data: &Path,
    http: Option<SocketAddr>,
    clock: &dyn Clock,
) -> Result<Served> {
    let deadline = clock.raw_ns() + UP_WITHIN_NS;
    let log = folder.path().join("aggregator.log");
    let address_file = folder.path().join("aggregator.address");
    let page_file = folder.path().join("page.address");
    let mut command = folder.itself().command();
    command
        // The lab makes the report itself, when all is told.
        .args([AGGREGATOR, "serve", "--no-report"])
        .args(["--listen", "127.0.0.1:0", "--data"])
        .arg(data)
        .arg("--address-file")
        .arg(&address_file)
        .arg("--die-with-parent");
    if let Some(http) = http {
        command
            .args(["--http", &http.to_string(), "--http-address-file"])
            .arg(&page_file);
    }
    let aggregator = start("the aggregator", command, &log)?;
    let address = loop {
        if let Ok(text) = std::fs::read_to_string(&address_file)
            && let Ok(address) = text.trim().parse::<SocketAddr>()
        {
            break address;
        }
        still_there(&aggregator, clock, deadline, "did not begin to listen")?;
        tokio::time::sleep(LOOK_EVERY).await;
    };
    let url = format!("http://{address}");
    let control = Control::connect(&url).await?;
    // Written before the other one.
    let page = http.and_then(|_| std::fs::read_to_string(&page_file).ok());
    Ok(Served {
        aggregator,
        control,
        url,
        page: page.and_then(|text| text.trim().parse().ok()),
        log,
    })
}

fn start(name: &str, command: std::process::Command, log: &Path) -> Result<Child> {
    Child::start(name, command, log)
        .map_err(|error| Problem::new(format!("cannot start {name}: {error}")))
}

fn still_there(child: &Child, clock: &dyn Clock, deadline: i64, what: &str) -> Result<()> {
    let why = match child.ended() {
        Ok(None) if clock.raw_ns() < deadline => return Ok(()),
        Ok(None) => format!("{what} within {} s", UP_WITHIN_NS / 1_000_000_000),
        Ok(Some(status)) => format!("ended with {status}"),
        Err(error) => error.to_string(),
    };
    Err(problem_of(child.name(), &why, &child.log_tail(12)))
}

/// A program that ends says why as this one does: `error:` and `hint:`. Those
/// words are passed on; else the end of its log.
fn problem_of(name: &str, why: &str, log: &str) -> Problem {
    let lines: Vec<&str> = log.lines().collect();
    let Some(at) = lines.iter().rposition(|line| line.starts_with("error: ")) else {
        return Problem::new(format!("{name} {why}:\n{log}"));
    };
    let hint_at = lines[at..]
        .iter()
        .position(|line| line.starts_with("hint: "))
        .map(|offset| at + offset);
    let said = lines[at..hint_at.unwrap_or(lines.len())].join("\n");
    let problem = Problem::new(format!(
        "{name}: {}",
        said.strip_prefix("error: ").unwrap_or(&said)
    ));
    match hint_at {
        Some(at) => {
            let hint = lines[at..].join("\n");
            problem.hint(hint.strip_prefix("hint: ").unwrap_or(&hint).to_owned())
        }
        None => problem,
    }
}

fn agent_config(setup: &AgentSetup<'_>, url: &str, data: &Path, secret: &Path) -> String {
    let text = |value: &str| toml::Value::String(value.to_owned());
    let path = |value: &Path| text(&value.to_string_lossy());
    let targets = setup
        .targets
        .iter()
        .map(|(name, reached)| {
            let mut target = toml::Table::from_iter([
                ("name".to_owned(), text(name)),
                ("address".to_owned(), text(&reached.address)),
                ("user".to_owned(), text(&setup.login.user)),
                ("password_file".to_owned(), path(secret)),
                (
                    "max_connects_per_second".to_owned(),
                    toml::Value::Integer(i64::from(setup.max_connects_per_second)),
                ),
            ]);
            if let Some(server) = reached.name_server {
                target.insert("name_server".to_owned(), text(&server.to_string()));
                target.insert(
                    "follow_dns".to_owned(),
                    toml::Value::Boolean(reached.follows),
                );
            }
            toml::Value::Table(target)
        })
        .collect();
    let mut config = toml::Table::from_iter([
        ("agent_id".to_owned(), text(setup.agent_id)),
        ("aggregator".to_owned(), text(url)),
        ("data".to_owned(), path(data)),
        ("target".to_owned(), toml::Value::Array(targets)),
    ]);
    if let Some((schema, from)) = &setup.writes {
        let from = from.iter().map(|name| text(name)).collect();
        config.insert(
            "writes".to_owned(),
            toml::Value::Table(toml::Table::from_iter([
                ("schema".to_owned(), text(schema)),
                ("ledger_from".to_owned(), toml::Value::Array(from)),
            ])),
        );
    }
    config.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_s_own_words_are_passed_on() {
        let problem = problem_of(
            "the aggregator",
            "ended with exit status: 1",
            "INFO starting\nerror: cannot use ./runs: in use by process 7\nhint: use --data\n",
        );
        assert_eq!(
            problem.to_string(),
            "error: the aggregator: cannot use ./runs: in use by process 7\nhint: use --data"
        );
        let problem = problem_of("the agent", "ended with signal 9", "INFO starting");
        assert!(problem.what.contains("signal 9") && problem.what.contains("INFO starting"));
    }

    #[test]
    fn the_agent_s_configuration_holds_no_password() {
        let login = Login {
            user: "probe".to_owned(),
            password: "hunter2".to_owned(),
        };
        let targets = [(
            "haproxy".to_owned(),
            SocketAddr::from(([127, 0, 0, 1], 6001)).into(),
        )];
        let setup = AgentSetup {
            agent_id: "lab",
            targets: &targets,
            login: &login,
            max_connects_per_second: 1_000,
            writes: None,
        };
        let config = agent_config(
            &setup,
            "http://127.0.0.1:1",
            Path::new("/runs"),
            Path::new("/tmp/secret"),
        );
        assert!(!config.contains("hunter2"), "{config}");
        let read: toml::Table = config.parse().expect("it is TOML");
        assert_eq!(
            read["target"][0]["password_file"].as_str(),
            Some("/tmp/secret")
        );
    }
}
