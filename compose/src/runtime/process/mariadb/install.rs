//! Data folders: one is made by the server's own program, the others are copies.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Programs, base_folder};
use crate::children::Child;
use crate::error::{Problem, Result};
use crate::folder::LabFolder;
use crate::runtime::process::Host;

/// Makes a data folder; the servers' own are copies of it, since making one takes
/// seconds.
pub async fn install(host: &Host, programs: &Programs, folder: &LabFolder) -> Result<PathBuf> {
    let place = folder.private("mariadb-template", host.user.as_ref())?;
    let data = place.join("data");
    let log = folder.path().join("mariadb-install.log");
    let mut args = vec![
        "--no-defaults".to_owned(),
        format!("--datadir={}", data.display()),
        "--skip-test-db".to_owned(),
        "--skip-name-resolve".to_owned(),
        "--innodb-log-file-size=8M".to_owned(),
        "--innodb-buffer-pool-size=16M".to_owned(),
    ];
    if let Some(base) = base_folder(programs) {
        args.push(format!("--basedir={}", base.display()));
    }
    let mut command = host.command(&programs.install, args);
    command.current_dir(&place).env("TMPDIR", &place);
    let failed = |why: String| {
        Problem::new(format!(
            "{} could not make a data folder for MariaDB: {why}",
            programs.install.display()
        ))
        .hint(format!(
            "is {} readable and writable for user `{}`?",
            folder.path().display(),
            host.user.as_ref().map_or("you", |user| user.name.as_str())
        ))
    };
    let child = Child::start("mariadb-install-db", command, &log)
        .map_err(|error| failed(error.to_string()))?;
    if !child.wait(Duration::from_secs(120)).await {
        return Err(failed("it did not end within 120 s".to_owned()));
    }
    match child.ended() {
        Ok(Some(status)) if status.success() => Ok(data),
        Ok(status) => Err(failed(format!(
            "it ended with {}:\n{}",
            status.map_or_else(|| "no status".to_owned(), |status| status.to_string()),
            child.log_tail(10)
        ))),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Copies a data folder for one server.
pub(super) async fn copy(host: &Host, folder: &LabFolder, from: &Path, to: &Path) -> Result<()> {
    let failed = |why: String| {
        Problem::new(format!(
            "cannot copy MariaDB's data folder to {}: {why}",
            to.display()
        ))
        .hint("each server needs some 50 MB in the temporary folder; TMPDIR chooses another")
    };
    let command = host.command(
        Path::new("cp"),
        [Path::new("-R"), from, to].map(Path::as_os_str),
    );
    let child = Child::start("cp", command, &folder.path().join("copy.log"))
        .map_err(|error| failed(error.to_string()))?;
    let done = child.wait(Duration::from_secs(60)).await;
    match child.ended() {
        Ok(Some(status)) if done && status.success() => Ok(()),
        _ => Err(failed(child.log_tail(3))),
    }
}
