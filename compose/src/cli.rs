//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::duration;
use crate::runtime::process::find::parse_named;
use crate::scenario::{Action, BackendKind, ProxyKind, RuntimeKind};

/// Composes a whole lab (backends, proxies, agent, aggregator, faults), measures
/// what clients of the proxies go through, and prints the truth about it.
#[derive(Debug, Parser)]
#[command(name = "gapscope-lab", version, about, long_about = None)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a scenario and print its summary
    Run(Box<Run>),
    /// Run several scenarios with several proxies and put them side by side
    Matrix(Box<Matrix>),
    /// Measure what proxies cost when nothing fails, against the server alone
    Overhead(Box<crate::overhead::options::Options>),
    /// Measure gapscope's own speed, beside other programs
    Bench(Box<crate::bench::options::Options>),
    /// List the shipped scenarios, and what a lab can be made of
    List,
    /// Check a scenario file and show what it would do
    Check {
        /// Name of a shipped scenario, or a file
        scenario: String,
    },
    /// Bring a scenario's lab up and leave it, for probing by hand
    Up(Box<Up>),
    /// Take down a lab that was brought up; without a name: list what is there
    Down {
        /// The lab's name, as `up` said it
        name: Option<String>,
        /// All of them, and what killed labs left; runs that go on are not touched
        #[arg(long, conflicts_with = "name")]
        all: bool,
    },
    /// Show which programs a lab can use here, and how to get the others
    Doctor {
        /// Where a program is
        #[arg(long, value_name = "NAME=PATH", value_parser = parse_named)]
        program: Vec<(String, PathBuf)>,
    },
}

/// Options of `up`.
#[derive(Debug, Args)]
pub struct Up {
    /// Name of a shipped scenario, or a file; its timeline is not played
    #[arg(default_value = "switchover")]
    pub scenario: String,
    /// What the lab is made of: our own backends and proxies, real programs, containers
    #[arg(long, value_parser = word(RuntimeKind::WORDS, RuntimeKind::from_word))]
    pub runtime: Option<RuntimeKind>,
    /// What serves
    #[arg(long, value_parser = word(BackendKind::WORDS, BackendKind::from_word))]
    pub backend: Option<BackendKind>,
    /// A proxy, instead of the scenario's (may be given more than once)
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = word(ProxyKind::WORDS, ProxyKind::from_word))]
    pub proxy: Vec<ProxyKind>,
    /// Where a program is: haproxy, mariadbd, mariadb-install-db
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_named)]
    pub program: Vec<(String, PathBuf)>,
    /// Be the process that holds the lab
    #[arg(long, hide = true)]
    pub hold: bool,
}

impl Up {
    /// What `run` would be told to make the same lab.
    pub fn as_run(&self) -> Run {
        Run {
            scenario: self.scenario.clone(),
            runtime: self.runtime,
            backend: self.backend,
            proxy: self.proxy.clone(),
            program: self.program.clone(),
            data: PathBuf::new(),
            http: None,
            duration: None,
            faster: None,
            fault: None,
            like_lab08: false,
            ascii: false,
            dry_run: false,
            yes: false,
            hurt_others: false,
            no_jitter: false,
            seed: None,
            repeat: None,
            aim: Aim::Subject,
            format: Format::Text,
        }
    }
}

impl Matrix {
    /// What `run` is told for one scenario and these proxies.
    pub fn as_run(&self, scenario: &str, proxies: &[ProxyKind]) -> Run {
        Run {
            data: self.data.clone(),
            faster: self.faster,
            repeat: self.repeat,
            ..Up {
                scenario: scenario.to_owned(),
                runtime: self.runtime,
                backend: self.backend,
                proxy: proxies.to_vec(),
                program: self.program.clone(),
                hold: false,
            }
            .as_run()
        }
    }
}

/// Options of `matrix`.
#[derive(Debug, Args)]
pub struct Matrix {
    /// Names of shipped scenarios, or files
    #[arg(required = true)]
    pub scenario: Vec<String>,
    /// A proxy (give it again for each, or several with commas)
    #[arg(long, value_name = "NAME", required = true, value_delimiter = ',', value_parser = word(ProxyKind::WORDS, ProxyKind::from_word))]
    pub proxy: Vec<ProxyKind>,
    /// Each proxy in a run of its own, with servers of its own
    #[arg(long)]
    pub solo: bool,
    /// What the labs are made of: our own backends and proxies, real programs, containers
    #[arg(long, value_parser = word(RuntimeKind::WORDS, RuntimeKind::from_word))]
    pub runtime: Option<RuntimeKind>,
    /// What serves
    #[arg(long, value_parser = word(BackendKind::WORDS, BackendKind::from_word))]
    pub backend: Option<BackendKind>,
    /// Where a program is: haproxy, mariadbd, mariadb-install-db
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_named)]
    pub program: Vec<(String, PathBuf)>,
    /// Where run folders go
    #[arg(long, value_name = "DIR", default_value = "./runs")]
    pub data: PathBuf,
    /// Divide all times of the timelines, and the runs', by this
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub faster: Option<u32>,
    /// Play each timeline this often
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: Option<u32>,
    /// How to print the matrix
    #[arg(long, default_value = "text")]
    pub format: Format,
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Name of a shipped scenario, or a file
    pub scenario: String,
    /// What the lab is made of: our own backends and proxies, real programs, containers
    #[arg(long, value_parser = word(RuntimeKind::WORDS, RuntimeKind::from_word))]
    pub runtime: Option<RuntimeKind>,
    /// What serves
    #[arg(long, value_parser = word(BackendKind::WORDS, BackendKind::from_word))]
    pub backend: Option<BackendKind>,
    /// A proxy, instead of the scenario's (may be given more than once)
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = word(ProxyKind::WORDS, ProxyKind::from_word))]
    pub proxy: Vec<ProxyKind>,
    /// Where a program is: haproxy, mariadbd, mariadb-install-db
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_named)]
    pub program: Vec<(String, PathBuf)>,
    /// Where run folders go
    #[arg(long, value_name = "DIR", default_value = "./runs")]
    pub data: PathBuf,
    /// Show the run in browsers while it goes on, here (for example 127.0.0.1:8080)
    #[arg(long, value_name = "ADDR")]
    pub http: Option<std::net::SocketAddr>,
    /// Probe for this long instead
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub duration: Option<u64>,
    /// Divide all times of the timeline, and the run's, by this; clients and health
    /// checks keep their pace
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub faster: Option<u32>,
    /// Do this to the subject instead: stop, kill, hang or black_hole
    #[arg(long, value_name = "STEP", value_parser = fault())]
    pub fault: Option<Action>,
    /// The study's own numbers: one held client, a query each 500 ms, 5 s timeouts,
    /// 30 s, the fault at exactly 10 s, a stopped backend killed after 2 s
    #[arg(long)]
    pub like_lab08: bool,
    /// Say what would be done to whom, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do what the scenario says to what the lab did not start, without asking
    #[arg(long)]
    pub yes: bool,
    /// Do it although the subject serves others, or may: they will be hurt
    #[arg(long)]
    pub hurt_others: bool,
    /// Do each step exactly when it is due, not at a random moment after
    #[arg(long)]
    pub no_jitter: bool,
    /// For the random moments; a seed that was printed gives the same ones again
    #[arg(long)]
    pub seed: Option<u64>,
    /// Play the timeline this often in one run, everything as new before each time;
    /// the first time is reported apart
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: Option<u32>,
    /// With --repeat: whom the faults are done to
    #[arg(
        long,
        value_name = "WHOM",
        default_value = "subject",
        requires = "repeat"
    )]
    pub aim: Aim,
    /// Draw the live strips with ASCII signs (by default where the locale is not UTF-8)
    #[arg(long)]
    pub ascii: bool,
    /// How to print the summary
    #[arg(long, default_value = "text")]
    pub format: Format,
}

/// Whom repeated faults are done to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Aim {
    /// The timeline's own subject
    Subject,
    /// For each target in turn, the backend that it uses then
    EachTarget,
}

/// How to print the summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for people
    Text,
    /// A table to paste somewhere
    Markdown,
    /// For programs
    Json,
}

impl Format {
    /// The word on command lines.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Markdown => "markdown",
            Self::Json => "json",
        }
    }
}

/// Reads one of `words`; clap names them in `--help` and in errors.
pub(crate) fn word<T: Clone + Send + Sync + 'static>(
    words: &'static [&'static str],
    read: fn(&str) -> Option<T>,
) -> impl clap::builder::TypedValueParser<Value = T> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(words)
        .map(move |word| read(&word).expect("clap lets only known words through"))
}

fn fault() -> impl clap::builder::TypedValueParser<Value = Action> {
    word(Action::FAULTS, Action::from_word)
}
