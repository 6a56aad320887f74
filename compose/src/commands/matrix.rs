//! `matrix`: runs several scenarios with several proxies and puts what came of it
//! side by side.

use std::process::Stdio;
use std::sync::Arc;

use gapscope_proto::clock::{Clock, SystemClock};
use serde_json::Value;

use crate::children::Itself;
use crate::cli;
use crate::cli::Format;
use crate::error::{Problem, Result};
use crate::matrix::{Cell, Matrix, cell, markdown, text};
use crate::output;
use crate::scenario::ProxyKind;
use crate::signals::Signals;

/// What a run says on its way to the end is passed on, and this much of it kept.
const KEPT_LINES: usize = 12;

/// Carries out `gapscope-lab matrix`; returns the exit code.
pub async fn matrix(options: &cli::Matrix) -> Result<u8> {
    let mut signals = Signals::catch()?;
    let itself = Itself::find()
        .map_err(|error| Problem::new(format!("cannot find this program's own file: {error}")))?;
    let proxies: Vec<ProxyKind> = options.proxy.clone();
    let mut matrix = Matrix {
        scenarios: options.scenario.clone(),
        proxies: proxies.iter().map(ToString::to_string).collect(),
        cells: Vec::new(),
    };
    // A proxy that cannot do a scenario must not take the others' place in it.
    let groups: Vec<Vec<ProxyKind>> = if options.solo {
        proxies.iter().map(|proxy| vec![*proxy]).collect()
    } else {
        vec![proxies.clone()]
    };
    let looking = look(&itself, options, &groups);
    tokio::select! {
        looked = looking => looked?,
        signal = signals.next() => {
            return Err(super::run::interrupted(signal, "before anything was started"));
        }
    }
    for scenario in &options.scenario {
        let mut row = Vec::new();
        for group in groups.clone() {
            output::say(&format!(
                "\n{scenario}: {}",
                group
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(", ")
            ));
            let ran = tokio::select! {
                ran = run(&itself, options, scenario, &group) => ran?,
                signal = signals.next() => {
                    return Err(super::run::interrupted(signal, "in the middle of the matrix"));
                }
            };
            for proxy in group {
                row.push(match &ran {
                    Ran::Summary(summary) => cell(summary, proxy.as_str()),
                    Ran::NotApplicable(why) => Cell::NotApplicable(why.clone()),
                    Ran::Failed(why) => Cell::NotMeasured(why.clone()),
                });
            }
        }
        matrix.cells.push(row);
    }
    let printed = match options.format {
        Format::Text => text(&matrix, output::columns_or_80()),
        Format::Markdown => markdown(&matrix),
        Format::Json => matrix.json(),
    };
    output::data(&printed);
    Ok(if matrix.is_incomplete() {
        crate::error::exit::FAILURE
    } else if matrix.tested_something() {
        0
    } else {
        crate::error::exit::NOTHING_TESTED
    })
}

/// Whether every run of the matrix can be made, before the first is. What cannot be
/// done to a proxy is no reason not to begin: its cell says so.
async fn look(itself: &Itself, options: &cli::Matrix, groups: &[Vec<ProxyKind>]) -> Result<()> {
    // Twice in one lab is wrong, and twice in labs of their own the same again.
    for (at, proxy) in options.proxy.iter().enumerate() {
        if options.proxy[..at].contains(proxy) {
            return Err(Problem::usage(format!("--proxy {proxy} is given twice"))
                .hint("name each proxy once"));
        }
    }
    super::run::data_folder(&options.data)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    for scenario in &options.scenario {
        for group in groups {
            let as_run = options.as_run(scenario, group);
            let looked = match super::run::choose(&as_run) {
                Ok(chosen) => {
                    super::run::make(&as_run, &chosen, itself, &clock)
                        .look()
                        .await
                }
                Err(problem) => Err(problem),
            };
            match looked {
                Err(problem) if !problem.what.contains("not applicable") => {
                    return Err(Problem {
                        what: format!("nothing was started; `{scenario}`: {}", problem.what),
                        ..problem
                    });
                }
                _ => {}
            }
        }
    }
    Ok(())
}

enum Ran {
    Summary(Value),
    NotApplicable(String),
    Failed(String),
}

/// One run in a process of its own, which ends in its own way if it is told to.
async fn run(
    itself: &Itself,
    options: &cli::Matrix,
    scenario: &str,
    proxies: &[ProxyKind],
) -> Result<Ran> {
    let mut command = tokio::process::Command::from(itself.command());
    command.args(["run", scenario, "--format", "json"]);
    for proxy in proxies {
        command.args(["--proxy", proxy.as_str()]);
    }
    command.arg("--data").arg(&options.data);
    if let Some(runtime) = options.runtime {
        command.args(["--runtime", runtime.as_str()]);
    }
    if let Some(backend) = options.backend {
        command.args(["--backend", backend.as_str()]);
    }
    for (name, path) in &options.program {
        command
            .arg("--program")
            .arg(format!("{name}={}", path.display()));
    }
    if let Some(times) = options.repeat {
        command.args(["--repeat", &times.to_string()]);
    }
    if let Some(by) = options.faster {
        command.args(["--faster", &by.to_string()]);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let failed = |error: std::io::Error| {
        Problem::new(format!("cannot start a run of `{scenario}`: {error}"))
    };
    let mut process = command.spawn().map_err(failed)?;
    let stderr = process.stderr.take();
    let relay = async {
        use tokio::io::AsyncBufReadExt;
        let mut kept: Vec<String> = Vec::new();
        if let Some(stderr) = stderr {
            let mut lines = tokio::io::BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                output::say(&line);
                kept.push(line);
                if kept.len() > KEPT_LINES {
                    kept.remove(0);
                }
            }
        }
        kept
    };
    let (output, kept) = tokio::join!(process.wait_with_output(), relay);
    let output = output.map_err(failed)?;
    let said = kept
        .iter()
        .rev()
        .find_map(|line| line.strip_prefix("error: "))
        .unwrap_or("the run ended without a summary")
        .to_owned();
    Ok(match serde_json::from_slice::<Value>(&output.stdout) {
        Ok(summary) if matches!(output.status.code(), Some(0 | 4)) => Ran::Summary(summary),
        _ if said.contains("not applicable") => Ran::NotApplicable(said),
        _ => Ran::Failed(said),
    })
}
