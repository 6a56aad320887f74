//! The command line of `overhead`, and whether it makes sense.

use std::path::PathBuf;

use gapscope_aggregator::overhead::analyse::least_rounds;
use gapscope_aggregator::stats::signflip::least_p;

use super::bench::BLOCK_MOST;
use super::target::{Given, parse};
use crate::cli::{Format, word};
use crate::duration;
use crate::error::{Problem, Result};
use crate::runtime::process::find::parse_named;
use crate::scenario::{BackendKind, ProxyKind, RuntimeKind};

/// The ratio to direct was seen to spread by 8 to 10 % from round to round. Then so
/// many find a difference of 10 % in 9 of 10 benchmarks (a test simulates it).
const ROUNDS: u32 = 30;
/// Clients that a benchmark may have at once.
const MOST_CLIENTS: u32 = 1_000;
/// Statements over all blocks: beyond, somebody mistyped.
const MOST_STATEMENTS: u64 = 2_000_000_000;

/// How statements are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// As text
    Text,
    /// Prepared once a connection, then executed
    Prepared,
}

/// Options of `overhead`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// What the lab is made of: our own server and proxies, or real programs
    #[arg(long, value_parser = word(RuntimeKind::WORDS, RuntimeKind::from_word))]
    pub runtime: Option<RuntimeKind>,
    /// What serves
    #[arg(long, value_parser = word(BackendKind::WORDS, BackendKind::from_word))]
    pub backend: Option<BackendKind>,
    /// A proxy of the lab (may be given more than once)
    #[arg(long, value_name = "NAME", value_parser = word(ProxyKind::WORDS, ProxyKind::from_word))]
    pub proxy: Vec<ProxyKind>,
    /// Where a program is: haproxy, mariadbd, mariadb-install-db
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_named)]
    pub program: Vec<(String, PathBuf)>,
    /// A target that is there already, instead of a lab (at least two; the first
    /// is the server alone). Its password comes from GAPSCOPE_PASSWORD_NAME or
    /// GAPSCOPE_PASSWORD
    #[arg(long, value_name = "NAME=USER@HOST:PORT/DB", value_parser = parse,
          conflicts_with_all = ["runtime", "backend", "proxy", "program"])]
    pub target: Vec<Given>,
    /// Which target the others are compared with
    #[arg(long, value_name = "NAME", requires = "target")]
    pub direct: Option<String>,
    /// Make the study's three-row table at the direct target, and remove it at
    /// the end; otherwise nothing is ever written to targets that are there
    #[arg(long, requires = "target")]
    pub create_table: bool,
    /// A file with the statement to send (SELECT, SHOW or VALUES)
    #[arg(long, value_name = "FILE", conflicts_with = "create_table")]
    pub statement: Option<PathBuf>,
    /// How statements are sent
    #[arg(long, value_enum, default_value = "text")]
    pub protocol: Protocol,
    /// Connect for each statement
    #[arg(long)]
    pub connect_each: bool,
    /// Statements of a block, shared by its clients
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub statements: u64,
    /// Numbers of clients
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 10, 20, 40],
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_CLIENTS)))]
    pub clients: Vec<u32>,
    /// Rounds; each has one block for each target and number of clients
    #[arg(long, value_name = "N", default_value_t = ROUNDS,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: u32,
    /// Only look: fewer rounds than a claim needs, and no claims
    #[arg(long)]
    pub no_claims: bool,
    /// Open loop: so many statements a second over all clients, whatever becomes
    /// of them; response times are what is compared
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    pub rate: Option<f64>,
    /// What the rows are called, such as the version that is measured
    #[arg(long, value_name = "TEXT", default_value = "now")]
    pub label: String,
    /// No further round begins after this long
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = duration::parse)]
    pub at_most: u64,
    /// Where run folders go
    #[arg(long, value_name = "DIR", default_value = "./runs")]
    pub data: PathBuf,
    /// For the order of the blocks; a seed that was printed gives the same again
    #[arg(long)]
    pub seed: Option<u64>,
    /// How to print the result
    #[arg(long, default_value = "text")]
    pub format: Format,
}

fn rate(text: &str) -> std::result::Result<f64, String> {
    text.parse()
        .ok()
        .filter(|rate: &f64| rate.is_finite() && (0.1..=1e6).contains(rate))
        .ok_or_else(|| format!("`{text}` is not between 0.1 and 1000000 statements a second"))
}

/// Whether so many targets can be measured as the command line asks.
///
/// # Errors
/// Where too few rounds could show nothing, or it is far too much.
pub fn check(options: &Options, targets: usize) -> Result<()> {
    let mut clients = options.clients.clone();
    clients.sort_unstable();
    if clients.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Problem::usage("--clients names a number twice"));
    }
    // Everything but the direct target is compared with it.
    let comparisons = clients.len() * targets.saturating_sub(1);
    let needed = least_rounds(comparisons);
    if options.rounds < needed && !options.no_claims {
        return Err(Problem::usage(format!(
            "{} rounds cannot show a difference among {comparisons} comparisons: even if all \
             rounds agree, chance does that with p = {:.4} in each",
            options.rounds,
            least_p(options.rounds as usize)
        ))
        .hint(format!(
            "take at least {needed} (--rounds {needed}), fewer --clients, or --no-claims to \
             only look"
        )));
    }
    let all = options
        .statements
        .saturating_mul(u64::from(options.rounds))
        .saturating_mul((clients.len() * targets) as u64);
    if all > MOST_STATEMENTS {
        return Err(Problem::usage(format!(
            "that would be {all} statements, more than {MOST_STATEMENTS}"
        ))
        .hint("fewer --statements, --rounds or --clients"));
    }
    if let Some(rate) = options.rate
        && options.statements as f64 / rate > BLOCK_MOST.as_secs_f64() / 2.0
    {
        return Err(Problem::usage(format!(
            "a block of {} statements at {rate} a second takes {:.0} s, more than {:.0} s",
            options.statements,
            options.statements as f64 / rate,
            BLOCK_MOST.as_secs_f64() / 2.0
        ))
        .hint("fewer --statements"));
    }
    if options.label.len() > 60 || options.label.chars().any(char::is_control) {
        return Err(Problem::usage(
            "--label takes a short text without control characters",
        ));
    }
    Ok(())
}
