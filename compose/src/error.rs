//! Errors as a person reads them: what failed, on what, why, and what to do.

use std::fmt;

/// Exit codes of `gapscope-lab`.
pub mod exit {
    /// Something could not be done.
    pub const FAILURE: u8 = 1;
    /// The command line or the scenario is wrong.
    pub const USAGE: u8 = 2;
    /// Nothing was exposed to a fault, or data was lost.
    pub const NOTHING_TESTED: u8 = 4;
}

/// What failed, with a hint and the program's exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What failed, on what, and why.
    pub what: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// Exit code.
    pub code: u8,
}

impl Problem {
    /// A failure.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            hint: None,
            code: exit::FAILURE,
        }
    }

    /// A wrong command line or scenario.
    pub fn usage(what: impl Into<String>) -> Self {
        Self {
            code: exit::USAGE,
            ..Self::new(what)
        }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.what)?;
        if let Some(hint) = &self.hint {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

/// What commands return.
pub type Result<T> = std::result::Result<T, Problem>;
