//! Exit codes.

use std::process::ExitCode;

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done, whatever the verdicts.
    Ok,
    /// It could not be done.
    Failure,
    /// The command line makes no sense.
    Usage,
    /// A gate that was asked for failed.
    GateFailed,
    /// Data was lost, or a fault exposed nobody.
    DataLost,
}

impl Exit {
    /// Its number.
    pub const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::GateFailed => 3,
            Self::DataLost => 4,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
