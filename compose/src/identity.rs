//! How probes tell backends apart: finds an expression that works on all of them
//! and gives each another value, by asking each backend directly.

use std::net::SocketAddr;
use std::time::Duration;

use gapscope_proto::fault::Subject;

use crate::error::{Problem, Result};
use crate::login::ask;
use crate::runtime::Backend;
use crate::witness::Login;

/// Tried in this order where the scenario gives none. All but the last have no `@`,
/// which would pin a session behind some proxies.
pub const DEFAULTS: [&str; 5] = [
    "SELECT GROUP_CONCAT(VARIABLE_VALUE ORDER BY VARIABLE_NAME SEPARATOR ':') FROM \
     information_schema.GLOBAL_VARIABLES WHERE VARIABLE_NAME IN ('HOSTNAME','PORT')",
    "SELECT GROUP_CONCAT(VARIABLE_VALUE ORDER BY VARIABLE_NAME SEPARATOR ':') FROM \
     performance_schema.global_variables WHERE VARIABLE_NAME IN ('HOSTNAME','PORT')",
    // Servers of one host that differ by address alone.
    "SELECT GROUP_CONCAT(VARIABLE_VALUE ORDER BY VARIABLE_NAME SEPARATOR ':') FROM \
     information_schema.GLOBAL_VARIABLES WHERE VARIABLE_NAME IN ('BIND_ADDRESS','PORT')",
    "SELECT GROUP_CONCAT(VARIABLE_VALUE ORDER BY VARIABLE_NAME SEPARATOR ':') FROM \
     performance_schema.global_variables WHERE VARIABLE_NAME IN ('BIND_ADDRESS','PORT')",
    "CONCAT(@@hostname, ':', @@port)",
];

/// What was found out about the backends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The expression, for the plan.
    pub expression: String,
    /// Each backend with its identity.
    pub subjects: Vec<Subject>,
    /// Each backend's version, in the same order.
    pub versions: Vec<String>,
}

/// Asks every backend. Errs if one gives no identity, or two the same.
pub async fn find(
    backends: &[Box<dyn Backend>],
    login: &Login,
    given: Option<&str>,
) -> Result<Found> {
    let places: Vec<(String, SocketAddr)> = backends
        .iter()
        .map(|backend| (backend.name().to_owned(), backend.address()))
        .collect();
    let candidates = given.map_or_else(|| DEFAULTS.to_vec(), |given| vec![given]);
    let (mut same, mut last) = (None, None);
    for expression in candidates {
        match ask_all(&places, login, expression).await {
            Ok(found) => match distinct(found) {
                Ok(found) => return Ok(found),
                Err(problem) => same = same.or(Some(problem)),
            },
            Err(problem) => last = Some(problem),
        }
    }
    Err(same
        .or(last)
        .unwrap_or_else(|| Problem::new("there is no backend to ask for its identity")))
}

async fn ask_all(
    places: &[(String, SocketAddr)],
    login: &Login,
    expression: &str,
) -> Result<Found> {
    let mut found = Found {
        expression: expression.to_owned(),
        subjects: Vec::new(),
        versions: Vec::new(),
    };
    for (name, address) in places {
        let answer = ask(*address, login, expression, Duration::from_secs(5))
            .await
            .map_err(|error| {
                Problem::new(format!(
                    "backend `{name}` at {address} does not answer the identity expression \
                     `{expression}`: {error}"
                ))
                .hint(
                    "set `identity` in the scenario to an SQL expression that this server knows \
                     and that differs between the backends",
                )
            })?;
        let Some(identity) = answer.identity.filter(|identity| !identity.is_empty()) else {
            return Err(Problem::new(format!(
                "backend `{name}` at {address} has no value for the identity expression \
                 `{expression}`"
            ))
            .hint("set `identity` in the scenario to an SQL expression with a value"));
        };
        found.versions.push(answer.version);
        found.subjects.push(Subject {
            name: name.clone(),
            identity: Some(identity),
            address: address.to_string(),
        });
    }
    Ok(found)
}

fn distinct(found: Found) -> Result<Found> {
    for (index, one) in found.subjects.iter().enumerate() {
        if let Some(other) = found.subjects[..index]
            .iter()
            .find(|other| other.identity == one.identity)
        {
            return Err(Problem::new(format!(
                "backends `{}` and `{}` both answer `{}` to the identity expression `{}`: probes \
                 could not tell them apart",
                other.name,
                one.name,
                one.identity.as_deref().unwrap_or_default(),
                found.expression
            ))
            .hint(
                "set `identity` in the scenario to an expression that differs, such as one with \
                 the port",
            ));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(name: &str, identity: &str) -> Subject {
        Subject {
            name: name.to_owned(),
            identity: Some(identity.to_owned()),
            address: "127.0.0.1:1".to_owned(),
        }
    }

    #[test]
    fn equal_identities_are_refused() {
        let found = |second| Found {
            expression: "@@hostname".to_owned(),
            subjects: vec![subject("a", "host:1"), subject("b", second)],
            versions: Vec::new(),
        };
        assert!(distinct(found("host:2")).is_ok());
        let problem = distinct(found("host:1")).expect_err("the same");
        assert!(problem.what.contains("`a` and `b` both answer `host:1`"));
        assert!(problem.hint.is_some());
    }

    #[test]
    fn the_preferred_expressions_have_no_at_sign() {
        assert!(
            DEFAULTS[..4]
                .iter()
                .all(|expression| !expression.contains('@'))
        );
    }
}
