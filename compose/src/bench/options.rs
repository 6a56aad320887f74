//! The command line of `bench`.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::cli::Format;
use crate::duration;
use crate::runtime::process::find::NAMES;

/// Programs of others that it can be measured beside.
const BESIDE: [&str; 3] = ["sysbench", "mariadb-slap", "python3"];

/// Reads one `NAME=PATH`.
fn named(text: &str) -> Result<(String, PathBuf), String> {
    let known = || NAMES.iter().chain(&BESIDE);
    match text.split_once('=') {
        Some((name, path)) if !path.is_empty() && known().any(|known| *known == name) => {
            Ok((name.to_owned(), PathBuf::from(path)))
        }
        _ => {
            let known: Vec<&str> = known().copied().collect();
            Err(format!(
                "`{text}` is not NAME=PATH with one of these names: {}",
                known.join(", ")
            ))
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Probes: beside other programs, and at fixed rates
    Agent,
    /// An aggregator under a crowd of agents
    Ingest,
    /// Reports on large runs
    Analysis,
    /// All of them
    All,
}

/// Options of `bench`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// What to measure
    #[arg(value_enum, default_value = "all")]
    pub what: What,
    /// Rounds; what is compared comes once in each, in random order
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Statements of each closed loop
    #[arg(long, value_name = "N", default_value_t = 20_000,
          value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    pub statements: u64,
    /// How long each fixed rate is kept
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration::parse)]
    pub each: u64,
    /// Sizes of the runs that are reported on, in million samples
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 10],
          value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub millions: Vec<u64>,
    /// Leave MariaDB out, even if it is there
    #[arg(long)]
    pub no_mariadb: bool,
    /// Where a program is: sysbench, mariadb-slap, python3 (one that can import
    /// pymysql and duckdb), mariadbd, mariadb-install-db
    #[arg(long, value_name = "NAME=PATH", value_parser = named)]
    pub program: Vec<(String, PathBuf)>,
    /// Where large temporary files go; removed at the end
    #[arg(long, value_name = "DIR", default_value = "./runs")]
    pub data: PathBuf,
    /// Write all values of all rounds into this file, as JSON
    #[arg(long, value_name = "FILE", default_value = "bench.json")]
    pub json: PathBuf,
    /// For the order; a seed that was printed gives the same again
    #[arg(long)]
    pub seed: Option<u64>,
    /// How to print the result
    #[arg(long, default_value = "text")]
    pub format: Format,
}

impl Options {
    /// Where a program is, if it was named.
    pub fn named(&self, name: &str) -> Option<&PathBuf> {
        self.program
            .iter()
            .find(|(given, _)| given == name)
            .map(|(_, path)| path)
    }
}
