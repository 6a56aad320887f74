//! Who somebody is: a role and a name. Pure.
//!
//! In a certificate it stands as a URI among the alternative names of the subject
//! (`gapscope://agent/east-1`), in files and texts as `agent:east-1`. The common
//! name is never read: it is free text, and a server's certificate has one too.

use std::fmt;
use std::str::FromStr;

use crate::ids::AgentId;

const SCHEME: &str = "gapscope://";

/// What somebody may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Delivers what it measures.
    Agent,
    /// Starts and stops runs.
    Operator,
    /// Looks.
    Viewer,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Agent, Self::Operator, Self::Viewer];

    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Operator => "operator",
            Self::Viewer => "viewer",
        }
    }
}

/// Somebody: `agent:east-1`, `operator:ann`; `operator` alone is one of that name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal {
    /// What it is.
    pub role: Role,
    /// Its name; an agent's is its id.
    pub name: AgentId,
}

impl Principal {
    /// The agent of this id.
    pub const fn agent(id: AgentId) -> Self {
        Self {
            role: Role::Agent,
            name: id,
        }
    }

    /// As it stands in a certificate.
    pub fn uri(&self) -> String {
        format!("{SCHEME}{}/{}", self.role.as_str(), self.name)
    }

    /// Of a URI; none if it is not one of ours.
    ///
    /// # Errors
    /// When it is one of ours and makes no sense.
    pub fn of_uri(uri: &str) -> Result<Option<Self>, String> {
        let Some(rest) = uri.strip_prefix(SCHEME) else {
            return Ok(None);
        };
        let wrong = || format!("`{uri}` is not {SCHEME}agent/ID, operator/NAME or viewer/NAME");
        let (role, name) = rest.split_once('/').ok_or_else(wrong)?;
        let role = role_of(role).ok_or_else(wrong)?;
        let name = name.parse().map_err(|error| format!("`{uri}`: {error}"))?;
        Ok(Some(Self { role, name }))
    }
}

fn role_of(word: &str) -> Option<Role> {
    Role::ALL.into_iter().find(|role| role.as_str() == word)
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = self.role.as_str();
        if self.name.as_str() == role {
            f.write_str(role)
        } else {
            write!(f, "{role}:{}", self.name)
        }
    }
}

impl FromStr for Principal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "is not agent:ID, operator[:NAME] or viewer[:NAME]".to_owned();
        let (role, name) = match text.split_once(':') {
            Some((role, name)) => (role, name),
            // An agent without an id would be any agent.
            None if text == Role::Agent.as_str() => return Err(wrong()),
            None => (text, text),
        };
        let role = role_of(role).ok_or_else(wrong)?;
        let name = name.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { role, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, uri: &str) {
        let principal: Principal = text.parse().expect("makes sense");
        assert_eq!(principal.to_string(), text);
        assert_eq!(principal.uri(), uri);
        assert_eq!(Principal::of_uri(uri), Ok(Some(principal)));
    }

    #[test]
    fn texts_and_uris_say_the_same() {
        check("agent:east-1", "gapscope://agent/east-1");
        check("operator", "gapscope://operator/operator");
        check("viewer:wall", "gapscope://viewer/wall");
        for bad in ["", "agent", "agent:", "root", "Agent:x", "agent:../x"] {
            assert!(bad.parse::<Principal>().is_err(), "{bad}");
        }
        assert_eq!(Principal::of_uri("spiffe://x/agent/a"), Ok(None));
        for bad in [
            "gapscope://agent",
            "gapscope://root/x",
            "gapscope://agent/a/b",
        ] {
            assert!(Principal::of_uri(bad).is_err(), "{bad}");
        }
    }
}
