//! Names and numbers that identify things, each validated where it is made.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Why a text is not a valid id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid {what}: {why}")]
pub struct InvalidId {
    what: &'static str,
    text: String,
    why: &'static str,
}

/// Identifies a run: a UUIDv7, so that ids sort by time of creation (RFC 9562).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(Uuid);

impl RunId {
    /// A new id, stamped with the current wall time.
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    /// The 16 bytes, for binary formats.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// From 16 bytes; errs if they are not a UUIDv7.
    pub fn from_bytes(bytes: [u8; 16]) -> Result<Self, InvalidId> {
        Self::checked(
            Uuid::from_bytes(bytes),
            &Uuid::from_bytes(bytes).to_string(),
        )
    }

    fn checked(id: Uuid, text: &str) -> Result<Self, InvalidId> {
        if id.get_version_num() == 7 {
            Ok(Self(id))
        } else {
            Err(InvalidId {
                what: "run id",
                text: text.chars().take(80).collect(),
                why: "a UUID of version 7 is expected",
            })
        }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl FromStr for RunId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let id = Uuid::try_parse(text).map_err(|_| InvalidId {
            what: "run id",
            text: text.chars().take(80).collect(),
            why: "a UUID such as 01890a5d-ac96-774b-bcce-b302099a8057 is expected",
        })?;
        Self::checked(id, text)
    }
}

/// New at every start of an agent process; random, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(u64);

impl Incarnation {
    /// A new random one.
    pub fn generate() -> Self {
        let (high, _) = Uuid::new_v4().as_u64_pair();
        Self(high.max(1))
    }

    /// From its number; errs on 0.
    pub fn new(number: u64) -> Result<Self, InvalidId> {
        if number == 0 {
            return Err(InvalidId {
                what: "incarnation",
                text: "0".into(),
                why: "0 means none",
            });
        }
        Ok(Self(number))
    }

    /// Its number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

fn check_name(what: &'static str, text: &str) -> Result<(), InvalidId> {
    let invalid = |why| InvalidId {
        what,
        text: text.chars().take(80).collect(),
        why,
    };
    if text.is_empty() {
        return Err(invalid("it is empty"));
    }
    if text.len() > 64 {
        return Err(invalid("it is longer than 64 bytes"));
    }
    if !text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    {
        return Err(invalid(
            "only letters, digits, `-`, `_` and `.` are allowed",
        ));
    }
    if text.starts_with('.') || text.starts_with('-') {
        return Err(invalid("it must not start with `.` or `-`"));
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(String);

        impl $type {
            /// As text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl FromStr for $type {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                check_name($what, text)?;
                Ok(Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $type {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                check_name($what, &text)?;
                Ok(Self(text))
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> String {
                name.0
            }
        }
    };
}

name!(
    /// Names an agent: at most 64 letters, digits, `-`, `_`, `.`.
    AgentId,
    "agent id"
);
name!(
    /// Names a target: at most 64 letters, digits, `-`, `_`, `.`.
    TargetName,
    "target name"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: bool) {
        assert_eq!(text.parse::<TargetName>().is_ok(), expect, "{text:?}");
    }

    #[test]
    fn names_are_validated() {
        check("haproxy", true);
        check("tidb-1.eu_west", true);
        check("", false);
        check("../etc", false);
        check("a/b", false);
        check("-x", false);
        check("ümlaut", false);
        check(&"x".repeat(64), true);
        check(&"x".repeat(65), false);
    }

    #[test]
    fn run_ids_are_version_7_only() {
        let id = RunId::generate();
        assert_eq!(id.to_string().parse::<RunId>(), Ok(id));
        assert_eq!(RunId::from_bytes(*id.as_bytes()), Ok(id));
        assert!(Uuid::new_v4().to_string().parse::<RunId>().is_err());
        assert!("nonsense".parse::<RunId>().is_err());
    }

    #[test]
    fn incarnations_are_never_zero() {
        assert!(Incarnation::new(0).is_err());
        assert_ne!(Incarnation::generate(), Incarnation::generate());
    }
}
