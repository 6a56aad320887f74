//! Data folders: one is made by the server's own program, the others are copies.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Programs, base_folder};
use crate::children::Child;
use crate::error::{Problem, Result};
use crate::folder::LabFolder;
use crate::runtime::process::Host;
use crate::runtime::process::sql::Dialect;

/// Makes a data folder, for servers that need one; the servers' own are copies of
/// it, since making one takes seconds.
pub async fn install(
    host: &Host,
    programs: &Programs,
    folder: &LabFolder,
) -> Result<Option<PathBuf>> {
    if programs.dialect == Dialect::Tidb {
        return Ok(None);
    }
    let name = programs.dialect.name();
    let program = programs.install.as_ref().unwrap_or(&programs.server);
    let place = folder.private("template", host.user.as_ref())?;
    let data = place.join("data");
    let log = folder.path().join("install.log");
    let mut args = vec![
        "--no-defaults".to_owned(),
        format!("--datadir={}", data.display()),
        "--innodb-buffer-pool-size=16M".to_owned(),
    ];
    if programs.install.is_some() {
        args.push("--skip-test-db".to_owned());
        args.push("--skip-name-resolve".to_owned());
        args.push("--innodb-log-file-size=8M".to_owned());
    } else {
        args.push("--initialize-insecure".to_owned());
    }
    if let Some(base) = base_folder(programs) {
        args.push(format!("--basedir={}", base.display()));
    }
    let mut command = host.command(program, args);
    command.current_dir(&place).env("TMPDIR", &place);
    let failed = |why: String| {
        Problem::new(format!(
            "{} could not make a data folder for {name}: {why}",
            program.display()
        ))
        .hint(format!(
            "is {} readable and writable for user `{}`?",
            folder.path().display(),
            host.user.as_ref().map_or("you", |user| user.name.as_str())
        ))
    };
    let child = Child::start("the making of a data folder", command, &log)
        .map_err(|error| failed(error.to_string()))?;
    if !child.wait(Duration::from_secs(120)).await {
        return Err(failed("it did not end within 120 s".to_owned()));
    }
    match child.ended() {
        Ok(Some(status)) if status.success() => Ok(Some(data)),
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
            "cannot copy the data folder to {}: {why}",
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
