//! The container engine, asked through its own command-line program.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::error::{Problem, Result};
use crate::leftovers::{MARKER, Owner};
use crate::runtime::process::find::{Named, find};

/// The label that says whose a container or network is.
pub const LABEL: &str = "gapscope.lab";
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// The engine and what composes.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(super) docker: PathBuf,
    /// The program and the words before its own.
    compose: (PathBuf, Vec<&'static str>),
    /// For people.
    pub version: String,
    /// For people.
    pub compose_version: String,
}

fn output(program: &Path, args: &[&str]) -> std::result::Result<String, String> {
    let output = std::process::Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

impl Engine {
    /// Finds it; says what is missing and what to do.
    ///
    /// # Errors
    /// When there is no program, no engine that answers, or nothing that composes.
    pub fn find(named: &Named) -> Result<Self> {
        let elsewhere = "--runtime process (programs of this host) and --runtime embedded (nothing \
                         to install) need no containers";
        let docker = find(named, &["docker"], "").map_err(|_| {
            Problem::new("runtime `docker` needs the program `docker`, which was not found")
                .hint(format!("apt install docker.io docker-compose; {elsewhere}"))
        })?;
        let version =
            output(&docker, &["version", "--format", "{{.Server.Version}}"]).map_err(|why| {
                Problem::new(format!(
                    "no container engine answers: {}",
                    why.lines().last().unwrap_or("it says nothing")
                ))
                .hint(format!(
                    "start it (systemctl start docker), or let this user reach it; {elsewhere}"
                ))
            })?;
        let plugin = output(&docker, &["compose", "version", "--short"]);
        let (compose, compose_version) = match plugin {
            Ok(version) => ((docker.clone(), vec!["compose"]), version),
            Err(_) => {
                let alone = find(named, &["docker-compose"], "").map_err(|_| {
                    Problem::new(
                        "runtime `docker` needs `docker compose` or `docker-compose`; neither is \
                         there",
                    )
                    .hint("apt install docker-compose")
                })?;
                let version = output(&alone, &["version", "--short"]).map_err(|why| {
                    Problem::new(format!("{} does not run: {why}", alone.display()))
                })?;
                ((alone, Vec::new()), version)
            }
        };
        Ok(Self {
            docker,
            compose,
            version,
            compose_version,
        })
    }

    /// Whether an image is on this host.
    pub fn has_image(&self, image: &str) -> bool {
        output(
            &self.docker,
            &["image", "inspect", "--format", "{{.Id}}", image],
        )
        .is_ok()
    }

    /// Asks the engine for something; what it says, or why not.
    pub async fn ask(&self, args: &[&str]) -> std::result::Result<String, String> {
        let mut command = tokio::process::Command::new(&self.docker);
        command.args(args);
        run(command, Some(ANSWERS_WITHIN)).await
    }

    /// As [`Self::ask`], for as long as it takes.
    pub async fn ask_patiently(&self, args: &[&str]) -> std::result::Result<String, String> {
        let mut command = tokio::process::Command::new(&self.docker);
        command.args(args);
        run(command, None).await
    }

    /// Composes: `words` after the project and its file.
    pub(super) async fn compose(
        &self,
        project: &super::files::Project,
        words: &[&str],
    ) -> std::result::Result<String, String> {
        let mut command = tokio::process::Command::new(&self.compose.0);
        command
            .args(&self.compose.1)
            .arg("--project-name")
            .arg(&project.name)
            .arg("--file")
            .arg(&project.file)
            .args(words)
            .envs(project.environment.iter().map(|(key, value)| (key, value)));
        run(command, None).await
    }
}

async fn run(
    mut command: tokio::process::Command,
    at_most: Option<Duration>,
) -> std::result::Result<String, String> {
    command
        .stdin(Stdio::null())
        .env_remove(MARKER)
        .kill_on_drop(true);
    let running = command.output();
    let output = match at_most {
        Some(at_most) => tokio::time::timeout(at_most, running)
            .await
            .map_err(|_| format!("the engine did not answer within {} s", at_most.as_secs()))?,
        None => running.await,
    }
    .map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        let said = text(&output.stderr);
        let lines: Vec<&str> = said.lines().collect();
        Err(lines[lines.len().saturating_sub(6)..].join("\n"))
    }
}

/// Removes the containers, networks and volumes of a lab, whatever they are doing.
/// Returns how many containers there were.
pub fn remove_all(owner: &Owner) -> usize {
    let Ok(docker) = find(&Named::new(), &["docker"], "") else {
        return 0;
    };
    let filter = format!("label={LABEL}={owner}");
    let list = |args: &[&str]| -> Vec<String> {
        let mut words = args.to_vec();
        words.extend(["--filter", filter.as_str()]);
        output(&docker, &words)
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    };
    let remove = |args: &[&str], ids: &[String]| {
        if !ids.is_empty() {
            let mut words = args.to_vec();
            words.extend(ids.iter().map(String::as_str));
            // An error means that they are gone.
            let _ = output(&docker, &words);
        }
    };
    let containers = list(&["ps", "--all", "--quiet", "--no-trunc"]);
    remove(&["rm", "--force", "--volumes"], &containers);
    let networks = list(&["network", "ls", "--quiet"]);
    remove(&["network", "rm"], &networks);
    let volumes = list(&["volume", "ls", "--quiet"]);
    remove(&["volume", "rm"], &volumes);
    containers.len()
}
