//! Finds programs: by the path a user named, else on PATH, else where system
//! programs live that an ordinary user's PATH leaves out.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Problem, Result};

/// Programs named by path, by the name they are asked for.
pub type Named = BTreeMap<String, PathBuf>;

/// Names that `--program NAME=PATH` may use.
pub const NAMES: [&str; 14] = [
    "docker",
    "docker-compose",
    "envoy",
    "haproxy",
    "mariadb-install-db",
    "mariadbd",
    "mysql-proxy",
    "mysqld",
    "mysqlrouter",
    "nginx",
    "proxysql",
    "tidb-server",
    "tiproxy",
    "traefik",
];

const BESIDES_PATH: [&str; 5] = [
    "/usr/sbin",
    "/usr/local/sbin",
    "/sbin",
    "/usr/local/bin",
    "/opt/homebrew/bin",
];

/// Reads one `NAME=PATH`.
pub fn parse_named(text: &str) -> std::result::Result<(String, PathBuf), String> {
    let (name, path) = text
        .split_once('=')
        .filter(|(_, path)| !path.is_empty())
        .ok_or_else(|| format!("`{text}` is not of the form NAME=PATH"))?;
    if !NAMES.contains(&name) {
        return Err(format!(
            "`{name}` is not a program that the lab starts; known: {}",
            NAMES.join(", ")
        ));
    }
    Ok((name.to_owned(), PathBuf::from(path)))
}

fn runnable(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Finds the first of `aliases` in `folders`.
pub fn search(aliases: &[&str], folders: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let folders: Vec<PathBuf> = folders.collect();
    aliases.iter().find_map(|alias| {
        folders
            .iter()
            .map(|folder| folder.join(alias))
            .find(|path| runnable(path))
    })
}

/// Finds a program known under `aliases`, the first of which is its name here.
/// `packages` says how to get it.
pub fn find(named: &Named, aliases: &[&str], packages: &str) -> Result<PathBuf> {
    let name = aliases.first().copied().unwrap_or_default();
    if let Some(path) = named.get(name) {
        return if runnable(path) {
            // It is run from other folders.
            std::fs::canonicalize(path).map_err(|error| {
                Problem::new(format!("cannot use {name} at {}: {error}", path.display()))
            })
        } else {
            Err(Problem::new(format!(
                "{name} was named as {}, which is not a program that can be run",
                path.display()
            ))
            .hint(format!("check --program {name}=PATH")))
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(BESIDES_PATH.iter().map(PathBuf::from));
    search(aliases, folders).ok_or_else(|| {
        Problem::new(format!(
            "{} was not found on PATH, in /usr/sbin or in /usr/local/sbin",
            aliases.join(" or ")
        ))
        .hint(format!(
            "install it ({packages}), name it with --program {name}=PATH, or use \
             --runtime embedded, which needs nothing installed"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_run_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let plain = folder.path().join("tool");
        std::fs::write(&plain, "#!/bin/sh\n").expect("written");
        let search_here = || search(&["tool"], [folder.path().to_owned()].into_iter());
        assert_eq!(search_here(), None);
        std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o755)).expect("set");
        assert_eq!(search_here(), Some(plain));
    }

    #[test]
    fn a_missing_program_says_how_to_get_it() {
        let problem = find(&Named::new(), &["no-such-program"], "apt install it")
            .expect_err("it does not exist");
        let text = problem.to_string();
        assert!(text.contains("no-such-program was not found"), "{text}");
        assert!(text.contains("apt install it"), "{text}");
        assert!(text.contains("--program no-such-program=PATH"), "{text}");
    }

    #[test]
    fn a_wrong_path_is_not_searched_further() {
        let named = Named::from([("haproxy".to_owned(), PathBuf::from("/nonexistent"))]);
        let problem = find(&named, &["haproxy"], "").expect_err("it does not exist");
        assert!(problem.what.contains("/nonexistent"));
    }

    #[test]
    fn names_are_checked() {
        assert!(parse_named("haproxy=/x").is_ok());
        assert!(
            parse_named("haproxi=/x")
                .expect_err("unknown")
                .contains("haproxy")
        );
        assert!(parse_named("haproxy").is_err());
    }
}
