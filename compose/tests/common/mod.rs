//! What the end-to-end tests share: programs of the workspace as processes,
//! which die with the test.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file is a program of its own and uses a part"
)]

pub mod real;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// The lab's program, which is also agent and aggregator.
pub fn lab() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gapscope-lab"));
    command.env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

/// A process that is ended, and waited for, when this is dropped.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until `found` finds something, looking every 10 ms, 60 s at most.
#[track_caller]
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    for _ in 0..6_000 {
        if let Some(value) = found() {
            return value;
        }
        pause(Duration::from_millis(10));
    }
    panic!("{what} did not come within a minute");
}

/// Lets time pass between two looks at something that is awaited.
pub fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "polling, not synchronisation")]
    std::thread::sleep(time);
}

/// An aggregator of the test's own.
pub struct Aggregator {
    pub url: String,
    pub data: PathBuf,
    process: Running,
}

impl Aggregator {
    pub fn start(data: &Path) -> Self {
        Self::start_at(data, "127.0.0.1:0", &[])
    }

    /// Listens elsewhere, with further flags.
    pub fn start_at(data: &Path, listen: &str, flags: &[&str]) -> Self {
        let address = data.join("address");
        let process = Running(
            lab()
                .args([
                    "aggregator",
                    "serve",
                    "--listen",
                    listen,
                    "--die-with-parent",
                ])
                .args(flags)
                .arg("--data")
                .arg(data)
                .arg("--address-file")
                .arg(&address)
                .stderr(log(data, "aggregator"))
                .spawn()
                .expect("the aggregator starts"),
        );
        let bound = wait_for("the aggregator's address", || {
            std::fs::read_to_string(&address)
                .ok()
                .filter(|text| !text.trim().is_empty())
        });
        Self {
            url: format!("http://{}", bound.trim()),
            data: data.to_owned(),
            process,
        }
    }

    /// Runs one of the aggregator's commands; panics with its words if it fails.
    #[track_caller]
    pub fn command(&self, args: &[&str]) -> String {
        let output = self.try_command(args);
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    pub fn try_command(&self, args: &[&str]) -> Output {
        lab()
            .arg("aggregator")
            .args(args)
            .args(["--aggregator", &self.url])
            .output()
            .expect("the command runs")
    }

    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }
}

/// An agent of the test's own.
pub fn agent(aggregator: &Aggregator, id: &str, config: &str) -> Running {
    agent_by(lab(), aggregator, id, config)
}

/// An agent started by `command`, which ends in the lab's program.
pub fn agent_by(mut command: Command, aggregator: &Aggregator, id: &str, config: &str) -> Running {
    let file = aggregator.data.join(format!("{id}.toml"));
    std::fs::write(&file, config).expect("the configuration is written");
    Running(
        command
            .args([
                "agent",
                "run",
                "--die-with-parent",
                "--agent-id",
                id,
                "--config",
            ])
            .arg(&file)
            .args(["--aggregator", &aggregator.url, "--data"])
            .arg(&aggregator.data)
            .stderr(log(&aggregator.data, id))
            .spawn()
            .expect("the agent starts"),
    )
}

/// Waits until the aggregator knows this agent.
pub fn wait_for_agent(aggregator: &Aggregator, id: &str) {
    wait_for("the agent's session", || {
        let output = aggregator.try_command(&["agents"]);
        String::from_utf8_lossy(&output.stdout)
            .contains(id)
            .then_some(())
    });
}

fn log(data: &Path, who: &str) -> Stdio {
    let file = std::fs::File::create(data.join(format!("{who}.log"))).expect("a log file");
    Stdio::from(file)
}

/// What the programs of a test said, for its failure message.
pub fn logs(data: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(data).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|e| e == "log") {
            text += &format!("--- {}\n", entry.path().display());
            text += &std::fs::read_to_string(entry.path()).unwrap_or_default();
        }
    }
    text
}
