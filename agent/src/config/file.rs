//! The configuration file, line by line.

use std::path::{Path, PathBuf};

use gapscope_proto::ids::{AgentId, TargetName};
use gapscope_proto::tls::ClientFiles;
use serde::Deserialize;
use serde_spanned::Spanned;

use super::error::{ConfigError, Place};
use super::target::{FileTarget, Target};
use super::writes::{FileWrites, Writes};
use super::{Sources, aggregator_url};
use crate::spool::settings;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    agent_id: Option<Spanned<String>>,
    aggregator: Option<Spanned<String>>,
    data: Option<PathBuf>,
    /// As `max_bytes` in `[spool]`.
    spool_max_bytes: Option<u64>,
    control: Option<Spanned<String>>,
    #[serde(default)]
    spool: settings::Given,
    token_file: Option<PathBuf>,
    #[serde(default)]
    tls: FileTls,
    #[serde(default)]
    target: Vec<Spanned<FileTarget>>,
    writes: Option<Spanned<FileWrites>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTls {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// What a file says; flags and defaults fill the rest.
#[derive(Debug, Default)]
pub(super) struct Partial {
    pub(super) agent_id: Option<AgentId>,
    pub(super) aggregator: Option<String>,
    pub(super) security: ClientFiles,
    pub(super) data: Option<PathBuf>,
    pub(super) spool: settings::Given,
    pub(super) targets: Vec<Target>,
    pub(super) control: Option<TargetName>,
    pub(super) writes: Option<Writes>,
}

/// Reads and checks the file at `path`.
pub(super) fn read(path: &Path, sources: &impl Sources) -> Result<Partial, ConfigError> {
    let text = sources.file(path).map_err(|why| {
        ConfigError::new(format!(
            "cannot read the configuration `{}`: {why}",
            path.display()
        ))
    })?;
    let place = Place { text: &text, path };
    parse(place)?.resolve(place, sources)
}

fn parse(place: Place<'_>) -> Result<File, ConfigError> {
    toml::from_str(place.text).map_err(|error| {
        let line = error
            .span()
            .map_or_else(|| place.path.display().to_string(), |span| place.line(span));
        let wrong = ConfigError::new(format!("{line}: {}", error.message()));
        if error.message().contains("`password`") {
            wrong.hint("a password is not written here: name where it is with password_env or password_file")
        } else {
            wrong
        }
    })
}

impl File {
    fn resolve(self, place: Place<'_>, sources: &impl Sources) -> Result<Partial, ConfigError> {
        let agent_id = self
            .agent_id
            .map(|id| {
                id.get_ref()
                    .parse::<AgentId>()
                    .map_err(|error| place.at(id.span(), "agent_id", &error))
            })
            .transpose()?;
        let aggregator = self
            .aggregator
            .map(|url| {
                aggregator_url(url.get_ref())
                    .map_err(|error| place.at(url.span(), "aggregator", &error))
            })
            .transpose()?;
        let mut targets = Vec::new();
        for spanned in self.target {
            let whole = spanned.span();
            targets.push(spanned.into_inner().resolve(whole, place, sources)?);
        }
        let control = self
            .control
            .map(|name| {
                let of_target = targets.iter().find(|t| t.name.as_str() == name.get_ref());
                of_target.map(|target| target.name.clone()).ok_or_else(|| {
                    let why = format!(
                        "`{}` is not the name of a target in this file",
                        name.get_ref()
                    );
                    place.at(name.span(), "control", &why)
                })
            })
            .transpose()?;
        let writes = self
            .writes
            .map(|writes| {
                let span = writes.span();
                writes.into_inner().resolve(span, place)
            })
            .transpose()?;
        Ok(Partial {
            agent_id,
            aggregator,
            security: ClientFiles {
                ca: self.tls.ca.map(|file| place.beside(&file)),
                cert: self.tls.cert.map(|file| place.beside(&file)),
                key: self.tls.key.map(|file| place.beside(&file)),
                token: self.token_file.map(|file| place.beside(&file)),
            },
            data: self.data,
            spool: settings::Given {
                max_bytes: self.spool.max_bytes.or(self.spool_max_bytes),
                ..self.spool
            },
            targets,
            control,
            writes,
        })
    }
}
