//! Why a configuration is of no use, and where in it. The offending line is never
//! quoted: it might hold what somebody took for the right place for a password.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

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
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
        }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// A configuration file that is being read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// Its text.
    pub(super) text: &'a str,
    /// Where it is.
    pub(super) path: &'a Path,
}

impl Place<'_> {
    /// What is wrong with a key.
    pub(super) fn at(&self, span: Range<usize>, key: &str, why: &dyn fmt::Display) -> ConfigError {
        ConfigError::new(format!("{}: key `{key}`: {why}", self.line(span)))
    }

    /// File and line.
    pub(super) fn line(&self, span: Range<usize>) -> String {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        format!("{}:{line}", self.path.display())
    }

    /// A file named in this one: beside it, unless its path is absolute.
    pub(super) fn beside(&self, file: &Path) -> PathBuf {
        self.path.parent().unwrap_or(Path::new(".")).join(file)
    }
}
