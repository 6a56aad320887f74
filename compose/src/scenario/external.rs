//! What a scenario says of servers and proxies that the lab does not start: where they
//! are, and the exact commands by which things are done to them.
//!
//! A step is only done by a command that stands here, and only where what undoes it
//! stands here as well.

use super::parse::name;
use super::read::{ScenarioError, Table};
use super::{Action, Scenario};

const EXTERNAL: &[&str] = &["user", "password_file", "backend", "proxy"];
const PLACE: &[&str] = &[
    "name",
    "address",
    "stop",
    "kill",
    "hang",
    "black_hole",
    "mute",
    "reject",
    "slow",
    "resume",
    "start",
    "drain",
    "undrain",
    "repoint",
    "restore",
];

/// A server or a proxy that is there already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// What the scenario calls it.
    pub name: String,
    /// `HOST:PORT`
    pub address: String,
    /// What is run for each step, as it is, without a shell.
    pub commands: Vec<(Action, Vec<String>)>,
}

impl Place {
    /// The command for a step.
    pub fn command(&self, action: Action) -> Option<&[String]> {
        self.commands
            .iter()
            .find(|(known, _)| *known == action)
            .map(|(_, words)| words.as_slice())
    }
}

/// All of them, and who probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct External {
    /// Who logs in.
    pub user: String,
    /// Where the password is; else it is in `GAPSCOPE_PASSWORD`.
    pub password_file: Option<String>,
    /// The servers.
    pub backends: Vec<Place>,
    /// The proxies.
    pub proxies: Vec<Place>,
}

impl External {
    /// The server or proxy of that name.
    pub fn place(&self, name: &str) -> Option<&Place> {
        self.backends
            .iter()
            .chain(&self.proxies)
            .find(|place| place.name == name)
    }
}

pub(super) fn read(top: &Table<'_, '_, '_>) -> Option<External> {
    if !top.is_table("external") {
        return None;
    }
    let table = top.table("external", EXTERNAL)?;
    let user = table.string("user");
    if user.is_none() {
        table.missing("user", "say who logs in, such as user = \"gapscope\"");
    }
    Some(External {
        user: user.map(|at| at.value).unwrap_or_default(),
        password_file: table.string("password_file").map(|at| at.value),
        backends: places(&table, "backend"),
        proxies: places(&table, "proxy"),
    })
}

fn places(table: &Table<'_, '_, '_>, key: &str) -> Vec<Place> {
    table
        .tables(key, PLACE)
        .iter()
        .filter_map(|table| {
            let (name, _) = name(table)?;
            let address = table.string("address");
            match &address {
                None => table.missing(
                    "address",
                    "say where it is, such as address = \"db-1:3306\"",
                ),
                Some(address) => {
                    if let Err(why) = host_and_port(&address.value) {
                        table.report(
                            address.line,
                            "address",
                            format!("`{}` is no address: {why}", address.value),
                            "allowed for `address`: HOST:PORT, such as \"db-1.example:3306\" or \
                             \"[fd00::1]:3306\"",
                        );
                    }
                }
            }
            let commands = PLACE[2..]
                .iter()
                .filter_map(|word| {
                    let words = table.words(word, &[], |text| Some(text.to_owned()))?;
                    Some((Action::from_word(word)?, words))
                })
                .collect();
            Some(Place {
                name,
                address: address.map(|at| at.value).unwrap_or_default(),
                commands,
            })
        })
        .collect()
}

/// Whether it is `HOST:PORT`; if not, why.
fn host_and_port(text: &str) -> Result<(), String> {
    let (host, port) = text
        .rsplit_once(':')
        .ok_or_else(|| "it has no port".to_owned())?;
    match port.parse::<u32>() {
        Ok(1..=65_535) => {}
        Ok(_) => return Err(format!("port {port} is not between 1 and 65535")),
        Err(_) => return Err(format!("`{port}` is no port")),
    }
    let inner = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    match inner {
        Some(inner) if inner.parse::<core::net::Ipv6Addr>().is_err() => {
            Err(format!("`{inner}` is no IPv6 address"))
        }
        None if host.contains(':') => Err("an IPv6 address stands in brackets".to_owned()),
        None if host.is_empty() => Err("it has no host".to_owned()),
        None if host.contains(|c: char| c.is_whitespace() || "/@[]".contains(c)) => {
            Err(format!("`{host}` is no host"))
        }
        _ => Ok(()),
    }
}

/// A step on what the lab did not start needs a command, and what undoes it.
pub(super) fn check(scenario: &Scenario, errors: &mut Vec<ScenarioError>) {
    let Some(external) = &scenario.external else {
        return;
    };
    for step in &scenario.timeline {
        let Some(place) = external.place(&step.subject) else {
            // What is wrong with the subject is said elsewhere.
            continue;
        };
        let first = match step.action {
            Action::Restart => Action::Stop,
            action => action,
        };
        for action in [Some(first), step.action.undone_by()].into_iter().flatten() {
            if place.command(action).is_none_or(<[String]>::is_empty) {
                errors.push(ScenarioError {
                    line: step.line,
                    key: "do".to_owned(),
                    what: format!(
                        "`{}` of `{}`: no command `{action}` is given for it under [external]",
                        step.action, step.subject
                    ),
                    hint: format!(
                        "the lab does nothing to what it did not start but run that very command, \
                         and needs the one that undoes it too: {action} = [\"ssh\", \"HOST\", ...]"
                    ),
                });
            }
        }
    }
}
