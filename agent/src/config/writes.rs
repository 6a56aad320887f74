//! Where writing is allowed, and how the ledger is read.

use std::ops::Range;
use std::time::Duration;

use gapscope_proto::ids::TargetName;
use serde::Deserialize;

use super::error::{ConfigError, Place};
use super::{DEFAULT_LEDGER_PATIENCE, Target};

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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileWrites {
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

impl FileWrites {
    /// Checks the names. `span` is where it stands.
    pub(super) fn resolve(
        self,
        span: Range<usize>,
        place: Place<'_>,
    ) -> Result<Writes, ConfigError> {
        let names = self
            .ledger_from
            .iter()
            .map(|name| {
                name.parse()
                    .map_err(|error| place.at(span.clone(), "ledger_from", &error))
            })
            .collect::<Result<_, _>>()?;
        Ok(Writes {
            schema: self.schema,
            table: self.table,
            ledger_from: names,
            shared: self.shared,
            keep: self.keep,
            patience: self
                .patience_s
                .map_or(DEFAULT_LEDGER_PATIENCE, Duration::from_secs),
        })
    }
}

/// What cannot be, whoever has said it.
pub(super) fn check_writes(writes: &Writes, targets: &[Target]) -> Result<(), ConfigError> {
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
