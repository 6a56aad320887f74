//! `up`: brings a lab up and leaves it, for probing by hand. A process of its own
//! holds it until `down` asks for its end.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::Arc;

use gapscope_proto::clock::SystemClock;
use serde::{Deserialize, Serialize};

use super::run::choose;
use crate::children::Itself;
use crate::cli;
use crate::error::{Problem, Result};
use crate::folder::write_private;
use crate::lab::{Lab, Make};
use crate::leftovers::Note;
use crate::output;
use crate::signals::Signals;

/// What the holder tells once the lab is up.
#[derive(Debug, Serialize, Deserialize)]
struct Held {
    name: String,
    user: String,
    password_file: String,
    proxies: Vec<Place>,
    backends: Vec<Place>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Place {
    name: String,
    address: String,
    program: String,
}

/// Carries out `gapscope-lab up`.
pub async fn up(options: &cli::Up) -> Result<u8> {
    // A wrong command line is told before a process is started.
    choose(&options.as_run())?;
    let mut signals = Signals::catch()?;
    let itself = Itself::find()
        .map_err(|error| Problem::new(format!("cannot find this program's own file: {error}")))?;
    let mut command = itself.command();
    command
        .args(std::env::args_os().skip(1))
        .arg("--hold")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let failed = |why: String| {
        Problem::new(format!(
            "cannot start the process that holds the lab: {why}"
        ))
    };
    let mut process = {
        use std::os::unix::process::CommandExt;
        command
            .process_group(0)
            .spawn()
            .map_err(|error| failed(error.to_string()))?
    };
    let (Some(stdout), Some(stderr)) = (process.stdout.take(), process.stderr.take()) else {
        return Err(failed("its output cannot be read".to_owned()));
    };
    let relay = tokio::task::spawn_blocking(move || {
        let lines: Vec<String> = BufReader::new(stderr)
            .lines()
            .map_while(std::io::Result::ok)
            .inspect(|line| output::say(line))
            .collect();
        lines
    });
    let ready = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).map(|_| line)
    });
    let line = tokio::select! {
        line = ready => line
            .map_err(|error| failed(error.to_string()))?
            .map_err(|error| failed(error.to_string()))?,
        signal = signals.next() => {
            let pid = i32::try_from(process.id()).ok().and_then(rustix::process::Pid::from_raw);
            if let Some(pid) = pid {
                // Ours, and not waited for: the number is still its own.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
            let _ = process.wait();
            return Err(Problem::new(format!("interrupted by {signal} before the lab was up")));
        }
    };
    match serde_json::from_str::<Held>(&line) {
        Ok(held) => {
            output::data(&text(&held));
            Ok(0)
        }
        Err(_) => {
            // It has said why, and ends.
            let status = process.wait().map_err(|error| failed(error.to_string()))?;
            let _ = relay.await;
            Ok(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1))
        }
    }
}

fn text(held: &Held) -> String {
    let mut out = format!("lab {} is up\n", held.name);
    for (what, places) in [("proxy", &held.proxies), ("backend", &held.backends)] {
        for place in places {
            writeln!(
                out,
                "  {what:<8} {:<22} {:<16} {}",
                place.name, place.address, place.program
            )
            .expect("a String takes everything");
        }
    }
    let first = held.proxies.first().or(held.backends.first());
    writeln!(
        out,
        "  user     {}, password in {}",
        held.user, held.password_file
    )
    .expect("a String takes everything");
    if let Some(first) = first {
        writeln!(
            out,
            "\nAn agent's target:\n\n[[target]]\nname = \"{}\"\naddress = \"{}\"\nuser = \
             \"{}\"\npassword_file = \"{}\"",
            first.name, first.address, held.user, held.password_file
        )
        .expect("a String takes everything");
    }
    writeln!(out, "\nIt stays until: gapscope-lab down {}", held.name)
        .expect("a String takes everything");
    out
}

/// The process that holds it.
pub async fn hold(options: &cli::Up) -> Result<u8> {
    let mut signals = Signals::catch()?;
    let chosen = choose(&options.as_run())?;
    let itself = Itself::find()
        .map_err(|error| Problem::new(format!("cannot find this program's own file: {error}")))?;
    let make = Make {
        scenario: &chosen.scenario,
        runtime: chosen.runtime,
        hurt_others: false,
        backend: chosen.backend,
        itself,
        named: options.program.iter().cloned().collect(),
        clock: Arc::new(SystemClock::new()),
    };
    let lab = tokio::select! {
        lab = Lab::up(make, output::say) => lab?,
        signal = signals.next() => {
            return Err(Problem::new(format!("interrupted by {signal} before the lab was up")));
        }
    };
    let owner = lab.folder.owner().clone();
    let password = lab.folder.path().join("probe.password");
    write_private(&password, &lab.login.password, None)?;
    let note = Note {
        owner: owner.clone(),
        stays: true,
        title: format!("{} ({})", chosen.scenario.name, chosen.runtime),
    };
    note.write().map_err(|error| {
        Problem::new(format!(
            "cannot write to the lab's folder {}: {error}",
            owner.folder.display()
        ))
    })?;
    let place = |name: &str, address: String, program: String| Place {
        name: name.to_owned(),
        address,
        program,
    };
    let held = Held {
        name: owner.name(),
        user: lab.login.user.clone(),
        password_file: password.display().to_string(),
        proxies: lab
            .proxies
            .iter()
            .map(|proxy| place(proxy.name(), proxy.reached().address, proxy.program()))
            .collect(),
        backends: lab
            .backends
            .iter()
            .map(|backend| {
                place(
                    backend.name(),
                    backend.address().to_string(),
                    backend.program(),
                )
            })
            .collect(),
    };
    let line = serde_json::to_string(&held).map_err(|error| Problem::new(error.to_string()))?;
    output::data(&format!("{line}\n"));
    signals.next().await;
    lab.down().await;
    Ok(0)
}
