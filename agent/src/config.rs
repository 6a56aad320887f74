//! What the agent was told: flags over the configuration file over defaults.
//!
//! Targets and their secrets belong to the agent; a run only names targets.
//! A password comes from the environment or a file. It is held in [`Secret`],
//! which prints as `***` wherever it ends up.
//!
//! Errors name file, line and key. The offending line is never quoted: it might
//! hold what somebody took for the right place for a password.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use gapscope_proto::ids::{AgentId, TargetName};
use gapscope_proto::small_file;
use serde::Deserialize;
use serde_spanned::Spanned;

use crate::probe::identity::check_expression;
use crate::reach::{DEFAULT_MAX_SOCKETS, Reach, TlsFiles};

/// Where an aggregator listens unless told otherwise.
pub const DEFAULT_AGGREGATOR: &str = "http://127.0.0.1:7350";
/// Most connections a second to one target unless told otherwise. The lab's
/// default clients need 400 of them while a target refuses: four clients that
/// try again every 10 ms.
pub const DEFAULT_MAX_CONNECTS_PER_SECOND: u32 = 500;
/// How long the reading of the ledger waits for backends unless told otherwise;
/// the aggregator waits for 30 s.
pub const DEFAULT_LEDGER_PATIENCE: Duration = Duration::from_secs(20);
/// Bytes a spool may take unless told otherwise.
pub const DEFAULT_SPOOL_MAX_BYTES: u64 = 1 << 30;

/// A password. Never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps it.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the driver alone.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// One endpoint that can be probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its name in plans and reports.
    pub name: TargetName,
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Who logs in.
    pub user: String,
    /// With which password.
    pub password: Secret,
    /// Default database, if any.
    pub database: Option<String>,
    /// SQL expression that says which backend answers.
    pub identity: Option<String>,
    /// The guard: more new connections a second are not made.
    pub max_connects_per_second: u32,
    /// TLS, name lookups, sockets.
    pub reach: Reach,
}

impl Target {
    /// `host:port`, as configured.
    pub fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// Where the agent's owner allows it to write, and how the ledger is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writes {
    /// The only schema that is written to.
    pub schema: String,
    /// The ledger's table, if its owner made one; none: made and dropped.
    pub table: Option<String>,
    /// Targets through which the ledger is read after a run: the backends
    /// themselves. None: through the probed targets.
    pub ledger_from: Vec<TargetName>,
    /// Whether the backends share their data.
    pub shared: bool,
    /// Whether the table stays after the run.
    pub keep: bool,
    /// How long to wait after a run for backends to be back.
    pub patience: Duration,
}

impl Writes {
    /// Into this schema, all else as by default.
    pub fn to(schema: &str) -> Self {
        Self {
            schema: schema.to_owned(),
            table: None,
            ledger_from: Vec::new(),
            shared: false,
            keep: false,
            patience: DEFAULT_LEDGER_PATIENCE,
        }
    }
}

/// Everything the agent was told, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Who this agent is.
    pub agent_id: AgentId,
    /// URL of the aggregator.
    pub aggregator: String,
    /// Folder under which the spool lives.
    pub data: PathBuf,
    /// Bytes the spool may take.
    pub spool_max_bytes: u64,
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
    /// `--agent-id`
    pub agent_id: Option<String>,
    /// `--data`
    pub data: Option<PathBuf>,
    /// `--spool-max-bytes`
    pub spool_max_bytes: Option<u64>,
    /// `--allow-writes`
    pub allow_writes: Option<String>,
    /// `--ledger-from`
    pub ledger_from: Vec<String>,
    /// `--backends-share-data`
    pub backends_share_data: bool,
}

/// Why a configuration is of no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    /// What is wrong, and where.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl ConfigError {
    fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
        }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    agent_id: Option<Spanned<String>>,
    aggregator: Option<Spanned<String>>,
    data: Option<PathBuf>,
    spool_max_bytes: Option<u64>,
    control: Option<Spanned<String>>,
    #[serde(default)]
    target: Vec<Spanned<FileTarget>>,
    writes: Option<Spanned<FileWrites>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileWrites {
    schema: String,
    table: Option<String>,
    #[serde(default)]
    ledger_from: Vec<String>,
    #[serde(default)]
    shared: bool,
    #[serde(default)]
    keep: bool,
    patience_s: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTarget {
    name: Spanned<String>,
    address: Spanned<String>,
    user: String,
    password_env: Option<Spanned<String>>,
    password_file: Option<Spanned<PathBuf>>,
    database: Option<String>,
    identity: Option<Spanned<String>>,
    max_connects_per_second: Option<Spanned<u32>>,
    tls: Option<Spanned<String>>,
    tls_ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_name: Option<String>,
    #[serde(default)]
    follow_dns: bool,
    max_sockets: Option<Spanned<u32>>,
    breaker: Option<bool>,
}

impl FileTarget {
    /// How the target is reached; `Err` holds the place, the key and why not.
    fn reach(&self, file: &Path) -> Result<Reach, (Option<std::ops::Range<usize>>, String)> {
        let mode = match &self.tls {
            None => None,
            Some(word) => Some(
                word.get_ref()
                    .parse()
                    .map_err(|why| (Some(word.span()), why))?,
            ),
        };
        let files = TlsFiles {
            mode,
            ca: self.tls_ca.clone(),
            cert: self.tls_cert.clone(),
            key: self.tls_key.clone(),
            name: self.tls_name.clone(),
        };
        let place = self.tls.as_ref().map(Spanned::span);
        let tls = files
            .load(file.parent().unwrap_or(Path::new(".")))
            .map_err(|why| (place, why))?;
        let max_sockets = match &self.max_sockets {
            None => DEFAULT_MAX_SOCKETS,
            Some(most) if *most.get_ref() == 0 => {
                return Err((
                    Some(most.span()),
                    "max_sockets = 0 would never connect; at least 1 is needed".to_owned(),
                ));
            }
            Some(most) => *most.get_ref(),
        };
        Ok(Reach {
            tls,
            follow_dns: self.follow_dns,
            max_sockets,
            breaker: self.breaker.unwrap_or(true),
        })
    }
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
    let file = match &flags.config {
        None => None,
        Some(path) => {
            let shown = path.display().to_string();
            let text = sources.file(path).map_err(|why| {
                ConfigError::new(format!("cannot read the configuration `{shown}`: {why}"))
            })?;
            Some(parse(&text, &shown)?.resolve(&text, &shown, path, sources)?)
        }
    };
    let mut config = file.unwrap_or_else(|| Partial {
        agent_id: None,
        aggregator: None,
        data: None,
        spool_max_bytes: None,
        targets: Vec::new(),
        control: None,
        writes: None,
    });
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
        data: flags
            .data
            .clone()
            .or(config.data)
            .unwrap_or_else(|| PathBuf::from("./runs")),
        spool_max_bytes: flags
            .spool_max_bytes
            .or(config.spool_max_bytes)
            .unwrap_or(DEFAULT_SPOOL_MAX_BYTES)
            .max(1 << 20),
        targets: config.targets,
        control: config.control,
        writes,
    })
}

fn check_writes(writes: &Writes, targets: &[Target]) -> Result<(), ConfigError> {
    for name in std::iter::once(&writes.schema).chain(&writes.table) {
        if name.is_empty() || name.chars().count() > 64 || name.chars().any(char::is_control) {
            return Err(ConfigError::new(format!(
                "`{}` is not the name of a schema or table",
                name.escape_default()
            )));
        }
    }
    const SYSTEM: [&str; 4] = ["mysql", "information_schema", "performance_schema", "sys"];
    if SYSTEM
        .iter()
        .any(|name| name.eq_ignore_ascii_case(&writes.schema))
    {
        return Err(
            ConfigError::new(format!("writes are never allowed in `{}`", writes.schema))
                .hint("make a schema for it: CREATE DATABASE gapscope"),
        );
    }
    if !(1..=3_600).contains(&writes.patience.as_secs()) {
        return Err(ConfigError::new("`patience_s` is from 1 to 3600"));
    }
    for name in &writes.ledger_from {
        if !targets.iter().any(|target| &target.name == name) {
            return Err(ConfigError::new(format!(
                "the ledger is to be read from target `{name}`, which is not configured"
            ))
            .hint("give each backend as a target of its own, with --target or [[target]]"));
        }
    }
    Ok(())
}

#[derive(Debug)]
struct Partial {
    agent_id: Option<AgentId>,
    aggregator: Option<String>,
    data: Option<PathBuf>,
    spool_max_bytes: Option<u64>,
    targets: Vec<Target>,
    control: Option<TargetName>,
    writes: Option<Writes>,
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())]
        .iter()
        .filter(|b| **b == b'\n')
        .count()
        + 1
}

fn parse(text: &str, shown: &str) -> Result<File, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let place = error
            .span()
            .map_or_else(|| shown.to_owned(), |span| format!("{shown}:{}", line_of(text, span.start)));
        let wrong = ConfigError::new(format!("{place}: {}", error.message()));
        if error.message().contains("`password`") {
            wrong.hint("a password is not written here: name where it is with password_env or password_file")
        } else {
            wrong
        }
    })
}

impl File {
    fn resolve(
        self,
        text: &str,
        shown: &str,
        path: &Path,
        sources: &impl Sources,
    ) -> Result<Partial, ConfigError> {
        let at = |span: std::ops::Range<usize>, key: &str, why: &dyn fmt::Display| {
            ConfigError::new(format!(
                "{shown}:{}: key `{key}`: {why}",
                line_of(text, span.start)
            ))
        };
        let agent_id = self
            .agent_id
            .map(|id| {
                id.get_ref()
                    .parse::<AgentId>()
                    .map_err(|error| at(id.span(), "agent_id", &error))
            })
            .transpose()?;
        let aggregator = self
            .aggregator
            .map(|url| {
                aggregator_url(url.get_ref()).map_err(|error| at(url.span(), "aggregator", &error))
            })
            .transpose()?;
        let mut targets = Vec::new();
        for spanned in self.target {
            let whole = spanned.span();
            let target = spanned.into_inner();
            let reach = target
                .reach(path)
                .map_err(|(place, why)| at(place.unwrap_or_else(|| whole.clone()), "tls", &why))?;
            let name: TargetName = target
                .name
                .get_ref()
                .parse()
                .map_err(|error| at(target.name.span(), "name", &error))?;
            let (host, port) = split_address(target.address.get_ref())
                .map_err(|why| at(target.address.span(), "address", &why))?;
            let password = match (&target.password_env, &target.password_file) {
                (Some(_), Some(_)) => {
                    return Err(at(
                        whole.clone(),
                        "password_file",
                        &"give either password_env or password_file, not both",
                    ));
                }
                (Some(variable), None) => {
                    Secret::new(sources.env(variable.get_ref()).ok_or_else(|| {
                        at(
                            variable.span(),
                            "password_env",
                            &format!(
                                "the environment variable `{}` (password of target `{name}`) is not set",
                                variable.get_ref()
                            ),
                        )
                    })?)
                }
                (None, Some(file)) => {
                    let resolved = path
                        .parent()
                        .unwrap_or(Path::new("."))
                        .join(file.get_ref());
                    let read = sources.file(&resolved).map_err(|why| {
                        at(
                            file.span(),
                            "password_file",
                            &format!("cannot read `{}`: {why}", resolved.display()),
                        )
                    })?;
                    Secret::new(read.strip_suffix('\n').map_or(read.as_str(), |t| {
                        t.strip_suffix('\r').unwrap_or(t)
                    }))
                }
                (None, None) => Secret::default(),
            };
            let max_connects_per_second = match target.max_connects_per_second {
                None => DEFAULT_MAX_CONNECTS_PER_SECOND,
                Some(rate) if *rate.get_ref() == 0 => {
                    return Err(at(
                        rate.span(),
                        "max_connects_per_second",
                        &"0 would never connect; at least 1 is needed",
                    ));
                }
                Some(rate) => rate.into_inner(),
            };
            let identity = match target.identity {
                None => None,
                Some(expression) => {
                    check_expression(expression.get_ref())
                        .map_err(|why| at(expression.span(), "identity", &why))?;
                    Some(expression.into_inner())
                }
            };
            targets.push(Target {
                name,
                host,
                port,
                user: target.user,
                password,
                database: target.database,
                identity,
                max_connects_per_second,
                reach,
            });
        }
        let control = match &self.control {
            None => None,
            Some(name) => match targets.iter().find(|t| t.name.as_str() == name.get_ref()) {
                Some(target) => Some(target.name.clone()),
                None => {
                    return Err(at(
                        name.span(),
                        "control",
                        &format!(
                            "`{}` is not the name of a target in this file",
                            name.get_ref()
                        ),
                    ));
                }
            },
        };
        let writes = match self.writes {
            None => None,
            Some(spanned) => {
                let span = spanned.span();
                let given = spanned.into_inner();
                let names = given
                    .ledger_from
                    .iter()
                    .map(|name| {
                        name.parse()
                            .map_err(|error| at(span.clone(), "ledger_from", &error))
                    })
                    .collect::<Result<_, _>>()?;
                Some(Writes {
                    schema: given.schema,
                    table: given.table,
                    ledger_from: names,
                    shared: given.shared,
                    keep: given.keep,
                    patience: given
                        .patience_s
                        .map_or(DEFAULT_LEDGER_PATIENCE, Duration::from_secs),
                })
            }
        };
        Ok(Partial {
            control,
            agent_id,
            aggregator,
            data: self.data,
            spool_max_bytes: self.spool_max_bytes,
            targets,
            writes,
        })
    }
}

pub(crate) fn split_address(text: &str) -> Result<(String, u16), String> {
    let wrong = || format!("`{text}` is not HOST:PORT (an IPv6 address stands in brackets)");
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port = u16::from_str(port).map_err(|_| wrong())?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').ok_or_else(wrong)?,
        None if host.contains(':') => return Err(wrong()),
        None => host,
    };
    if host.is_empty() || port == 0 {
        return Err(wrong());
    }
    Ok((host.to_owned(), port))
}

fn target_from_flag(text: &str, sources: &impl Sources) -> Result<Target, ConfigError> {
    let wrong = |why: &str| {
        // The text is not quoted: somebody may have put a password into it.
        ConfigError::new(format!("--target: {why}")).hint(
            "write NAME=USER@HOST:PORT[/DB]; the password comes from GAPSCOPE_PASSWORD_<NAME>, \
             GAPSCOPE_PASSWORD or, with --config, from password_env or password_file",
        )
    };
    let (name, rest) = text
        .split_once('=')
        .ok_or_else(|| wrong("there is no `=` behind the name"))?;
    let name: TargetName = name.parse().map_err(|error| wrong(&format!("{error}")))?;
    let (user, rest) = rest
        .rsplit_once('@')
        .ok_or_else(|| wrong(&format!("target `{name}` has no USER@")))?;
    if user.contains(':') {
        return Err(wrong(&format!(
            "target `{name}` has a `:` in the user: a password is never taken from a flag"
        )));
    }
    let (address, database) = match rest.split_once('/') {
        Some((address, database)) if !database.is_empty() => (address, Some(database.to_owned())),
        Some((address, _)) => (address, None),
        None => (rest, None),
    };
    let (host, port) =
        split_address(address).map_err(|why| wrong(&format!("target `{name}`: {why}")))?;
    let variable: String = name
        .as_str()
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect();
    let password = sources
        .env(&format!("GAPSCOPE_PASSWORD_{variable}"))
        .or_else(|| sources.env("GAPSCOPE_PASSWORD"))
        .unwrap_or_default();
    Ok(Target {
        name,
        host,
        port,
        user: user.to_owned(),
        password: Secret::new(password),
        database,
        identity: None,
        max_connects_per_second: DEFAULT_MAX_CONNECTS_PER_SECOND,
        reach: Reach::default(),
    })
}

fn aggregator_url(text: &str) -> Result<String, ConfigError> {
    let wrong = |why: &str| {
        ConfigError::new(format!("the aggregator's URL `{text}` {why}"))
            .hint(format!("write it as {DEFAULT_AGGREGATOR}"))
    };
    if text.starts_with("https://") {
        return Err(wrong("asks for TLS, which this build does not speak yet"));
    }
    let address = text.strip_prefix("http://").unwrap_or(text);
    let address = address.strip_suffix('/').unwrap_or(address);
    split_address(address).map_err(|_| wrong("is not http://HOST:PORT"))?;
    Ok(format!("http://{address}"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[derive(Default)]
    struct Fake {
        env: HashMap<&'static str, &'static str>,
        files: HashMap<PathBuf, &'static str>,
    }

    impl Sources for Fake {
        fn env(&self, name: &str) -> Option<String> {
            self.env.get(name).map(|v| (*v).to_owned())
        }
        fn file(&self, path: &Path) -> Result<String, String> {
            self.files
                .get(path)
                .map(|t| (*t).to_owned())
                .ok_or_else(|| "No such file".to_owned())
        }
    }

    fn with_file(text: &'static str) -> Result<Config, ConfigError> {
        let mut fake = Fake::default();
        fake.env.insert("PW", "s3cret");
        fake.files.insert("c/agent.toml".into(), text);
        fake.files.insert("c/pw".into(), "from-file\n");
        let flags = Flags {
            config: Some("c/agent.toml".into()),
            ..Flags::default()
        };
        resolve(&flags, &fake)
    }

    #[track_caller]
    fn check_error(text: &'static str, parts: &[&str]) {
        let error = with_file(text).expect_err("must not be accepted");
        let shown = format!("{} {}", error.message, error.hint.unwrap_or_default());
        for part in parts {
            assert!(shown.contains(part), "{part:?} is not in {shown:?}");
        }
    }

    #[test]
    fn how_a_target_is_reached_stands_beside_it() {
        let parse = |keys: &str| {
            let text =
                format!("[[target]]\nname = \"t\"\naddress = \"h:1\"\nuser = \"u\"\n{keys}\n");
            let flags = Flags {
                config: Some("/etc/agent.toml".into()),
                ..Flags::default()
            };
            struct Fake(String);
            impl Sources for Fake {
                fn env(&self, _: &str) -> Option<String> {
                    None
                }
                fn file(&self, _: &Path) -> Result<String, String> {
                    Ok(self.0.clone())
                }
            }
            resolve(&flags, &Fake(text))
                .map(|config| (config.targets[0].reach.clone(), config.control))
        };
        let (reach, control) = parse("").expect("fine");
        assert_eq!((reach, control), (Reach::default(), None));
        let (reach, _) =
            parse("tls = \"required\"\nfollow_dns = true\nmax_sockets = 7\nbreaker = false")
                .expect("fine");
        assert_eq!(reach.tls.mode().as_str(), "required");
        assert!(reach.follow_dns && !reach.breaker && reach.max_sockets == 7);
        for (keys, why) in [
            (
                "tls = \"verify\"",
                "agent.toml:5: key `tls`: `verify` is no TLS mode",
            ),
            ("tls_ca = \"ca.pem\"", "cannot read `/etc/ca.pem`"),
            ("max_sockets = 0", "would never connect"),
        ] {
            let error = parse(keys).expect_err("refused").message;
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_file_gives_targets_and_secrets() {
        let config = with_file(
            r#"
agent_id = "east-1"
aggregator = "10.0.0.9:7350"
[[target]]
name = "haproxy"
address = "db.example:6033"
user = "probe"
password_env = "PW"
identity = "@@hostname"
max_connects_per_second = 7
[[target]]
name = "direct"
address = "[::1]:3306"
user = "probe"
password_file = "pw"
database = "shop"
"#,
        )
        .expect("valid");
        assert_eq!(config.agent_id.as_str(), "east-1");
        assert_eq!(config.aggregator, "http://10.0.0.9:7350");
        assert_eq!(config.targets[0].password, Secret::new("s3cret"));
        assert_eq!(config.targets[0].max_connects_per_second, 7);
        assert_eq!(config.targets[1].password, Secret::new("from-file"));
        assert_eq!(config.targets[1].host, "::1");
        assert_eq!(config.targets[1].address(), "[::1]:3306");
        let shown = format!("{config:?}");
        assert!(
            !shown.contains("s3cret") && !shown.contains("from-file"),
            "{shown}"
        );
    }

    #[test]
    fn errors_name_line_and_key() {
        check_error("\nagent_id = \"../x\"\n", &["agent.toml:2", "`agent_id`"]);
        check_error(
            "[[target]]\nname=\"a\"\nadress=\"x:1\"\n",
            &["agent.toml:3", "`adress`", "`address`", "`password_env`"],
        );
        check_error(
            "[[target]]\nname=\"a\"\naddress=\"x\"\nuser=\"u\"\n",
            &["agent.toml:3", "`address`", "HOST:PORT"],
        );
        check_error(
            "[[target]]\nname=\"a\"\naddress=\"x:1\"\nuser=\"u\"\npassword_env=\"NOPE\"\n",
            &["agent.toml:5", "`NOPE`", "not set"],
        );
        check_error(
            "[[target]]\nname=\"a\"\naddress=\"x:1\"\nuser=\"u\"\n[[target]]\nname=\"a\"\naddress=\"x:2\"\nuser=\"u\"\n",
            &["`a` is given twice"],
        );
    }

    #[test]
    fn a_password_in_the_file_is_refused_without_being_shown() {
        let error = with_file(
            "[[target]]\nname=\"a\"\naddress=\"x:1\"\nuser=\"u\"\npassword=\"hunter2\"\n",
        )
        .expect_err("must not be accepted");
        let shown = format!("{error:?}");
        assert!(shown.contains("password_env"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn writing_is_allowed_by_the_owner_alone() {
        assert_eq!(with_file("agent_id = \"a\"").expect("valid").writes, None);
        let config = with_file(
            r#"
[[target]]
name = "direct"
address = "db:3306"
user = "probe"
[writes]
schema = "gapscope"
ledger_from = ["direct"]
shared = true
"#,
        )
        .expect("valid");
        let writes = config.writes.expect("allowed");
        assert_eq!((writes.schema.as_str(), writes.shared), ("gapscope", true));
        assert_eq!(writes.ledger_from.len(), 1);
        check_error(
            "[writes]\nschema = \"gapscope\"\nledger_from = [\"nowhere\"]\n",
            &["`nowhere`", "not configured"],
        );
        check_error("[writes]\nschema = \"mysql\"\n", &["never allowed"]);
        let flags = Flags {
            ledger_from: vec!["direct".into()],
            ..Flags::default()
        };
        let error = resolve(&flags, &Fake::default()).expect_err("no schema");
        assert!(error.message.contains("without a schema"), "{error:?}");
    }

    #[test]
    fn flags_give_targets() {
        let mut fake = Fake::default();
        fake.env.insert("GAPSCOPE_PASSWORD_PROXY_1", "one");
        let flags = Flags {
            targets: vec!["proxy-1=probe@127.0.0.1:6033/shop".into()],
            identity: Some("@@port".into()),
            ..Flags::default()
        };
        let config = resolve(&flags, &fake).expect("valid");
        let target = &config.targets[0];
        assert_eq!(target.address(), "127.0.0.1:6033");
        assert_eq!(target.database.as_deref(), Some("shop"));
        assert_eq!(target.identity.as_deref(), Some("@@port"));
        assert_eq!(target.password, Secret::new("one"));
        for bad in ["x", "x=h:1", "x=u@h", "x=u:pw@h:1", "=u@h:1"] {
            let flags = Flags {
                targets: vec![bad.into()],
                ..Flags::default()
            };
            let error = resolve(&flags, &fake).expect_err(bad);
            assert!(!format!("{error:?}").contains("pw@"), "{error:?}");
        }
    }
}
