//! Exit codes.

use std::process::ExitCode;

use crate::analyse::load::LoadError;
use crate::store::StoreError;

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

impl Exit {
    /// How the program ends that could not do what it should: where the data itself is
    /// damaged, it is lost.
    pub fn of(error: &anyhow::Error) -> Self {
        let is_lost = |cause: &(dyn std::error::Error + 'static)| {
            let store = cause.downcast_ref::<StoreError>();
            let loaded = match cause.downcast_ref::<LoadError>() {
                Some(LoadError::Store(error)) => Some(error),
                _ => None,
            };
            store.or(loaded).is_some_and(StoreError::is_lost_data)
        };
        if error.chain().any(is_lost) {
            Self::DataLost
        } else {
            Self::Failure
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
