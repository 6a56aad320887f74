//! Any proxy that a scenario describes by a command and a configuration.
//!
//! In both, these are filled in: `{port}` (where it is to listen, on 127.0.0.1),
//! `{config}` (the configuration's file), `{place}` (its own folder),
//! `{backend.1.host}`, `{backend.1.port}`, `{backend.1.name}`, and so on for each
//! backend. Anything else in braces stays as it is.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::Host;
use super::find::Named;
use super::program::Program;
use super::served::{Recipe, Served};
use crate::error::{Problem, Result};
use crate::folder::LabFolder;
use crate::scenario::CustomProxy;
use crate::witness::Login;

/// Finds the program of a command.
pub fn find(named: &Named, custom: &CustomProxy) -> Result<PathBuf> {
    let word = custom.command.first().map_or("", String::as_str);
    let path = Path::new(word);
    if path.components().count() > 1 {
        return std::fs::canonicalize(path).map_err(|error| {
            Problem::new(format!(
                "the proxy's command `{word}` cannot be used: {error}"
            ))
        });
    }
    super::find::find(named, &[word], "see its documentation").map_err(|problem| {
        if named.contains_key(word) {
            return problem;
        }
        Problem::new(format!(
            "the proxy's command `{word}` was not found on PATH"
        ))
        .hint("install it, or give its path in the scenario's `command`")
    })
}

/// Fills in what is known.
fn filled(
    text: &str,
    port: u16,
    place: &Path,
    file: &Path,
    backends: &[(String, SocketAddr)],
) -> String {
    let mut out = text
        .replace("{place}", &place.to_string_lossy())
        .replace("{config}", &file.to_string_lossy())
        .replace("{port}", &port.to_string());
    for ((name, address), number) in backends.iter().zip(1..) {
        for (key, value) in [
            ("host", address.ip().to_string()),
            ("port", address.port().to_string()),
            ("name", name.clone()),
        ] {
            out = out.replace(&format!("{{backend.{number}.{key}}}"), &value);
        }
    }
    out
}

/// Starts it and waits until a real login goes through it.
pub async fn start(
    host: &Host,
    folder: &LabFolder,
    name: &str,
    custom: &CustomProxy,
    backends: &[(String, SocketAddr)],
    login: &Login,
) -> Result<Program> {
    let program = find(&host.named, custom)?;
    let place = Served::place(host, folder, name)?;
    let file = place.join(&custom.config_name);
    let label = program
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let recipe = Recipe {
        program,
        called: label.clone(),
        label,
        file: custom.config_name.clone(),
        config: {
            let (text, place, file) = (custom.config.clone(), place.clone(), file.clone());
            let backends = backends.to_vec();
            Box::new(move |port| filled(&text, port, &place, &file, &backends))
        },
        args: {
            let (words, backends) = (custom.command.clone(), backends.to_vec());
            Box::new(move |place, file, port| {
                words
                    .iter()
                    .skip(1)
                    .map(|word| filled(word, port, place, file, &backends).into())
                    .collect()
            })
        },
        tell: None,
    };
    let served = Served::start(host, folder, name, place, recipe, login).await?;
    Ok(Program {
        served,
        admin: None,
        no_drain: "how to drain it is not known",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_filled_in_and_nothing_else() {
        let backends = [
            ("a".to_owned(), SocketAddr::from(([127, 0, 0, 1], 4001))),
            ("b".to_owned(), SocketAddr::from(([10, 0, 0, 2], 4002))),
        ];
        let text = filled(
            "{ listen {port}; {config} {place} {backend.1.name} {backend.2.host}:{backend.2.port} {x} }",
            6001,
            Path::new("/lab"),
            Path::new("/lab/config"),
            &backends,
        );
        assert_eq!(
            text,
            "{ listen 6001; /lab/config /lab a 10.0.0.2:4002 {x} }"
        );
    }

    #[test]
    fn a_missing_command_is_told() {
        let custom = CustomProxy {
            command: vec!["no-such-proxy".to_owned()],
            config: String::new(),
            config_name: "config".to_owned(),
        };
        let text = find(&Named::new(), &custom)
            .expect_err("it does not exist")
            .to_string();
        assert!(text.contains("`no-such-proxy` was not found"), "{text}");
    }
}
