//! What the agent was told: flags over the configuration file over defaults.
//!
//! Targets and their secrets belong to the agent; a run only names targets.
//! A password comes from the environment or a file. It is held in [`Secret`],
//! which prints as `***` wherever it ends up.
//!
//! Errors name file, line and key. The offending line is never quoted: it might
//! hold what somebody took for the right place for a password.

mod error;
mod file;
mod target;
#[cfg(test)]
mod tests;
mod writes;

use std::path::{Path, PathBuf};
use std::time::Duration;

use gapscope_proto::ids::{AgentId, TargetName};
use gapscope_proto::small_file;
use gapscope_proto::tls::ClientFiles;
use gapscope_proto::tls::dial::Address;

pub use gapscope_proto::secret::Secret;

pub use self::error::ConfigError;
pub use self::target::Target;
pub(crate) use self::target::split_address;
use self::target::target_from_flag;
pub use self::writes::Writes;
use self::writes::check_writes;
use crate::probe::identity::check_expression;
use crate::spool::settings;

/// Where an aggregator listens unless told otherwise.
pub const DEFAULT_AGGREGATOR: &str = "http://127.0.0.1:7350";
/// Most connections a second to one target unless told otherwise. The lab's
/// default clients need 400 of them while a target refuses: four clients that
/// try again every 10 ms.
pub const DEFAULT_MAX_CONNECTS_PER_SECOND: u32 = 500;
/// How long the reading of the ledger waits for backends unless told otherwise;
/// the aggregator waits for 30 s.
pub const DEFAULT_LEDGER_PATIENCE: Duration = Duration::from_secs(20);

/// Everything the agent was told, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Who this agent is.
    pub agent_id: AgentId,
    /// URL of the aggregator.
    pub aggregator: String,
    /// By what it is known, and by what it knows this agent.
    pub security: ClientFiles,
    /// Folder under which the spool lives.
    pub data: PathBuf,
    /// How the spool behaves.
    pub spool: settings::Settings,
    /// What can be probed.
    pub targets: Vec<Target>,
    /// Which of them no fault touches: probed beside each run.
    pub control: Option<TargetName>,
    /// Where writing is allowed; none: nowhere.
    pub writes: Option<Writes>,
}

/// What the command line says; anything absent is taken from the file.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// `--config`
    pub config: Option<PathBuf>,
    /// `--target`, each `NAME=USER@HOST:PORT[/DB]`
    pub targets: Vec<String>,
    /// `--control`, as `--target`
    pub control: Option<String>,
    /// `--identity`, for targets given by flag
    pub identity: Option<String>,
    /// `--aggregator`
    pub aggregator: Option<String>,
    /// `--ca`, `--cert`, `--key`, `--token-file`
    pub security: ClientFiles,
    /// `--agent-id`
    pub agent_id: Option<String>,
    /// `--data`
    pub data: Option<PathBuf>,
    /// `--spool-...`
    pub spool: settings::Given,
    /// `--allow-writes`
    pub allow_writes: Option<String>,
    /// `--ledger-from`
    pub ledger_from: Vec<String>,
    /// `--backends-share-data`
    pub backends_share_data: bool,
    /// `--no-inspect`
    pub no_inspect: bool,
}

/// Where secrets come from; a test passes its own.
pub trait Sources {
    /// The value of an environment variable.
    fn env(&self, name: &str) -> Option<String>;
    /// The text of a file.
    fn file(&self, path: &Path) -> Result<String, String>;
}

/// The process's environment and files.
#[derive(Debug, Clone, Copy)]
pub struct SystemSources;

impl Sources for SystemSources {
    fn env(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn file(&self, path: &Path) -> Result<String, String> {
        small_file::read_text(path, small_file::BY_HAND).map_err(|error| error.to_string())
    }
}

/// Puts flags, file and defaults together.
pub fn resolve(flags: &Flags, sources: &impl Sources) -> Result<Config, ConfigError> {
    let mut config = match &flags.config {
        None => file::Partial::default(),
        Some(path) => file::read(path, sources)?,
    };
    if let Some(expression) = &flags.identity {
        check_expression(expression)
            .map_err(|why| ConfigError::new(format!("--identity: {why}")))?;
    }
    for text in &flags.targets {
        let mut target = target_from_flag(text, sources)?;
        target.identity = flags.identity.clone();
        config.targets.push(target);
    }
    if let Some(text) = &flags.control {
        let mut target = target_from_flag(text, sources)?;
        target.identity = flags.identity.clone();
        config.control = Some(target.name.clone());
        config.targets.push(target);
    }
    for (index, target) in config.targets.iter().enumerate() {
        if config.targets[..index]
            .iter()
            .any(|t| t.name == target.name)
        {
            return Err(
                ConfigError::new(format!("target `{}` is given twice", target.name))
                    .hint("give each target a name of its own"),
            );
        }
    }
    if flags.no_inspect {
        for target in &mut config.targets {
            target.reach.inspect = false;
        }
    }
    let mut writes = config.writes;
    if let Some(schema) = &flags.allow_writes {
        match &mut writes {
            Some(writes) => writes.schema.clone_from(schema),
            None => writes = Some(Writes::to(schema)),
        }
    }
    if let Some(writes) = &mut writes {
        for name in &flags.ledger_from {
            let name = name
                .parse()
                .map_err(|error| ConfigError::new(format!("--ledger-from: {error}")))?;
            writes.ledger_from.push(name);
        }
        writes.shared |= flags.backends_share_data;
        check_writes(writes, &config.targets)?;
    } else if !flags.ledger_from.is_empty() || flags.backends_share_data {
        return Err(
            ConfigError::new("there is no ledger without a schema to write to")
                .hint("add --allow-writes SCHEMA, or [writes] to the configuration"),
        );
    }
    let agent_id = match &flags.agent_id {
        Some(text) => Some(
            text.parse::<AgentId>()
                .map_err(|error| ConfigError::new(format!("--agent-id: {error}")))?,
        ),
        None => config.agent_id,
    };
    let aggregator = flags
        .aggregator
        .clone()
        .or(config.aggregator)
        .unwrap_or_else(|| DEFAULT_AGGREGATOR.to_owned());
    Ok(Config {
        agent_id: agent_id.unwrap_or_else(default_agent_id),
        aggregator: aggregator_url(&aggregator)?,
        security: ClientFiles {
            ca: flags.security.ca.clone().or(config.security.ca),
            cert: flags.security.cert.clone().or(config.security.cert),
            key: flags.security.key.clone().or(config.security.key),
            token: flags.security.token.clone().or(config.security.token),
        },
        data: flags
            .data
            .clone()
            .or(config.data)
            .unwrap_or_else(|| PathBuf::from("./runs")),
        spool: flags.spool.or(config.spool).settings(),
        targets: config.targets,
        control: config.control,
        writes,
    })
}

fn aggregator_url(text: &str) -> Result<String, ConfigError> {
    let url = if text.contains("://") {
        text.to_owned()
    } else {
        format!("http://{text}")
    };
    match Address::parse(&url) {
        Ok(_) => Ok(url.strip_suffix('/').unwrap_or(&url).to_owned()),
        Err(trouble) => Err(ConfigError {
            message: trouble.what,
            hint: trouble.hint,
        }),
    }
}

/// The host's name, with what a name may not have replaced.
fn default_agent_id() -> AgentId {
    let hostname = gapscope_proto::host::HostFacts::read().hostname;
    let mut text: String = hostname
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') {
                c
            } else {
                '-'
            }
        })
        .take(64)
        .collect();
    if text.starts_with(['.', '-']) || text.is_empty() {
        text = format!("agent{text}").chars().take(64).collect();
    }
    text.parse().expect("made of allowed characters only")
}
