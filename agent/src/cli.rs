//! The command line: `run`, `try`, `check`, `spool inspect`, `verify` and `export`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::tls::ClientFiles;
use tokio_util::sync::CancellationToken;

use crate::config::{self, Flags, SystemSources};
use crate::spool::settings::{Given, SyncPolicy, WhenFull};
use crate::{agent, check, inspect, output, trial};

/// Probes SQL targets and streams what it measures to an aggregator.
///
/// Probing is read-only, one SELECT a probe, unless --allow-writes says where rows
/// may be written and a run asks for it. Passwords come from the
/// environment or a file, never from a flag.
#[derive(Debug, Parser)]
#[command(name = "gapscope-agent", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Connect to the aggregator, wait for runs, probe.
    Run(Box<Run>),
    /// Look at one server or proxy for a minute: what it is, how it does. No
    /// configuration, no aggregator, read-only.
    Try(Box<trial::Try>),
    /// Reach each target once: identity, versions, what the user may do; and the
    /// aggregator, if it is reached by TLS or token.
    Check(TargetFlags),
    /// Look into a spool.
    #[command(subcommand)]
    Spool(SpoolCommand),
}

#[derive(Debug, Subcommand)]
enum SpoolCommand {
    /// Say what a spool holds.
    ///
    /// Changes nothing, and may be used while an agent writes to the spool.
    Inspect {
        /// The spool's folder: `<data>/spool/<agent id>`
        dir: PathBuf,
    },
    /// Check every frame, checksum and number: exit code 4 if something is lost,
    /// 1 if something is damaged.
    ///
    /// Changes nothing, and may be used while an agent writes to the spool.
    Verify {
        /// The spool's folder: `<data>/spool/<agent id>`
        dir: PathBuf,
    },
    /// Write all that a spool holds as JSON, one object a line.
    ///
    /// Changes nothing, and may be used while an agent writes to the spool.
    Export {
        /// The spool's folder: `<data>/spool/<agent id>`
        dir: PathBuf,
    },
}

#[derive(Debug, Args)]
struct TargetFlags {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A target; its password is taken from GAPSCOPE_PASSWORD_<NAME> or GAPSCOPE_PASSWORD
    #[arg(long = "target", value_name = "NAME=USER@HOST:PORT[/DB]")]
    targets: Vec<String>,
    /// A server, reached directly, that no fault touches: probed beside each run, so
    /// that trouble which is not the proxy's shows
    #[arg(long, value_name = "NAME=USER@HOST:PORT[/DB]")]
    control: Option<String>,
    /// SQL expression that says which backend answers, for targets given by flag
    #[arg(long, value_name = "EXPR")]
    identity: Option<String>,
}

#[derive(Debug, Args)]
struct Run {
    #[command(flatten)]
    targets: TargetFlags,
    /// The aggregator [default: http://127.0.0.1:7350]
    #[arg(long, value_name = "URL")]
    aggregator: Option<String>,
    #[command(flatten)]
    security: Security,
    /// Name of this agent [default: the host's name]
    #[arg(long, value_name = "ID")]
    agent_id: Option<String>,
    /// Folder for the spool [default: ./runs]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Bytes the spool may take [default: 1 GiB]
    #[arg(long, value_name = "BYTES")]
    spool_max_bytes: Option<u64>,
    /// Bytes of the disk the spool leaves free [default: a twentieth of the disk, at most 1 GiB]
    #[arg(long, value_name = "BYTES")]
    spool_min_free_bytes: Option<u64>,
    /// What goes when there is no room: oldest, newest (lost and declared) or stop-probing [default: oldest]
    #[arg(long, value_name = "POLICY")]
    spool_when_full: Option<WhenFull>,
    /// When the spool is synced, which matters for a loss of power: interval, always, never or an interval such as 20ms [default: interval, 100ms]
    #[arg(long, value_name = "POLICY")]
    spool_sync: Option<SyncPolicy>,
    /// Let runs that ask for it write rows into a table of their own in this schema
    #[arg(long, value_name = "SCHEMA")]
    allow_writes: Option<String>,
    /// Read the rows after a run through this target: a backend itself. Again for each
    #[arg(long, value_name = "NAME")]
    ledger_from: Vec<String>,
    /// The backends share their data: a row must be on each of them
    #[arg(long)]
    backends_share_data: bool,
    /// Make no connection beside the probes' own: greetings, versions and TLS of the
    /// targets are not in the report then
    #[arg(long)]
    no_inspect: bool,
    /// End when the parent process ends
    #[arg(long)]
    die_with_parent: bool,
}

#[derive(Debug, Args)]
struct Security {
    /// Certificate of the CA by which the aggregator is known (https://)
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    ca: Option<PathBuf>,
    /// This agent's certificate
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    key: Option<PathBuf>,
    /// File with this agent's bearer token
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    token_file: Option<PathBuf>,
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    pub(crate) code: u8,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
            code: 1,
        }
    }
}

impl From<config::ConfigError> for Failure {
    fn from(error: config::ConfigError) -> Self {
        Self {
            message: error.message,
            hint: error.hint,
            code: 2,
        }
    }
}

/// Runs the program with these arguments, the first being its name.
pub fn main_from<I: IntoIterator<Item = OsString>>(args: I) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    match perform(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::error(&failure.message, failure.hint.as_deref());
            ExitCode::from(failure.code)
        }
    }
}

fn perform(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(run) => perform_run(*run),
        Command::Check(targets) => {
            let config = config::resolve(&flags_of(targets), &SystemSources)?;
            runtime()?.block_on(check::check(&config))
        }
        Command::Try(args) => {
            let runtime = runtime()?;
            let result = runtime.block_on(trial::run(&args));
            // A name lookup that hangs must not keep the process.
            runtime.shutdown_timeout(std::time::Duration::from_millis(200));
            result
        }
        Command::Spool(SpoolCommand::Inspect { dir }) => inspect::inspect(&dir),
        Command::Spool(SpoolCommand::Verify { dir }) => inspect::verify(&dir),
        Command::Spool(SpoolCommand::Export { dir }) => inspect::export(&dir),
    }
}

fn flags_of(targets: TargetFlags) -> Flags {
    Flags {
        config: targets.config,
        targets: targets.targets,
        control: targets.control,
        identity: targets.identity,
        ..Flags::default()
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("the runtime cannot be started: {error}")))
}

fn perform_run(run: Run) -> Result<(), Failure> {
    if run.die_with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
            .map_err(|error| Failure::new(format!("--die-with-parent: {error}")))?;
    }
    let mut flags = flags_of(run.targets);
    flags.aggregator = run.aggregator;
    flags.security = ClientFiles {
        ca: run.security.ca,
        cert: run.security.cert,
        key: run.security.key,
        token: run.security.token_file,
    };
    flags.agent_id = run.agent_id;
    flags.data = run.data;
    flags.spool = Given {
        max_bytes: run.spool_max_bytes,
        min_free_bytes: run.spool_min_free_bytes,
        sync: run.spool_sync,
        when_full: run.spool_when_full,
    };
    flags.allow_writes = run.allow_writes;
    flags.ledger_from = run.ledger_from;
    flags.backends_share_data = run.backends_share_data;
    flags.no_inspect = run.no_inspect;
    let config = config::resolve(&flags, &SystemSources)?;
    if config.targets.is_empty() {
        return Err(Failure {
            message: "no target is configured: there is nothing to probe".into(),
            hint: Some("give --target NAME=USER@HOST:PORT or --config FILE".into()),
            code: 2,
        });
    }
    start_tracing();
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        let shutdown = CancellationToken::new();
        let signals = Signals::listen()
            .map_err(|error| Failure::new(format!("signals cannot be caught: {error}")))?;
        let of_signals = shutdown.clone();
        let impatient = tokio::spawn(async move { signals.twice(of_signals).await });
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        tokio::select! {
            result = agent::run(&config, clock, shutdown) => {
                result.map_err(|error| failure_of(&error, &config))
            }
            _ = impatient => Err(Failure::new("interrupted twice; what is spooled is sent at the next start")),
        }
    });
    // A name lookup that hangs must not keep the process.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    result
}

fn failure_of(error: &agent::StartError, config: &config::Config) -> Failure {
    let mut failure = Failure::new(error.to_string());
    if let agent::StartError::Security(trouble) = error {
        failure.hint.clone_from(&trouble.hint);
    }
    if let agent::StartError::Spool(crate::spool::SpoolError::InUse(_)) = error {
        failure.hint = Some(format!(
            "stop the other agent, or give this one another --agent-id (it is `{}`) or --data",
            config.agent_id
        ));
    }
    failure
}

struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The first signal asks for an orderly end; returns at the second.
    async fn twice(mut self, shutdown: CancellationToken) {
        self.one().await;
        shutdown.cancel();
        self.one().await;
    }

    async fn one(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

fn start_tracing() {
    use std::io::IsTerminal;
    let filter = tracing_subscriber::EnvFilter::try_from_env("GAPSCOPE_LOG").unwrap_or_else(|_| {
        tracing_subscriber::EnvFilter::new("warn,gapscope_agent=info,gapscope_proto=info")
    });
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    // A second call, from a program that links this one, changes nothing.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(ansi)
        .with_target(false)
        .try_init();
}
