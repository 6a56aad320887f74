//! Carries the rounds out and keeps what they bring.

use std::sync::Arc;
use std::time::Duration;

use gapscope_aggregator::overhead::record::{Block, Failure, Role};
use gapscope_aggregator::overhead::store::Writer;
use gapscope_aggregator::stats::rank::nearest_rank;
use gapscope_proto::clock::Clock;
use mysql_async::Opts;
use rand::Rng;
use tokio_util::sync::CancellationToken;

use super::digest::Digest;
use super::load::{self, Job, Outcome, Way};
use super::order::{Turn, round};
use crate::duration;
use crate::error::{Problem, Result};
use crate::output;

/// One target, ready to be measured.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Its name.
    pub name: String,
    /// What it is to the comparison.
    pub role: Role,
    /// Where and as whom.
    pub opts: Opts,
    /// host:port
    pub address: String,
    /// What it is.
    pub program: String,
    /// Its processes, where they can be seen.
    pub processes: Vec<u32>,
    /// The right answer.
    pub expected: Digest,
}

/// What is to be done.
pub struct Plan {
    /// Statement, as sent.
    pub statement: Arc<str>,
    /// How it is sent.
    pub way: Way,
    /// Statements of a block.
    pub statements: u64,
    /// Numbers of clients.
    pub clients: Vec<u32>,
    /// Rounds.
    pub rounds: u32,
    /// Statements a second; none: closed loop.
    pub rate: Option<f64>,
    /// What the rows are called.
    pub label: String,
    /// After this long no further round begins.
    pub at_most_ns: u64,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// All rounds were carried out.
    Planned,
    /// Before that, for this reason.
    Early(String),
}

/// The longest that a block may take.
pub const BLOCK_MOST: Duration = Duration::from_secs(600);
/// Statements of the warm-up round, of those of a block.
const WARM_UP_SHARE: u64 = 10;

fn job(
    plan: &Plan,
    target: &Measured,
    clients: u32,
    statements: u64,
    clock: &Arc<dyn Clock>,
    stop: &CancellationToken,
) -> Job {
    Job {
        opts: target.opts.clone(),
        statement: Arc::clone(&plan.statement),
        way: plan.way,
        expected: target.expected,
        statements,
        clients,
        warm_up: (statements / u64::from(clients) / 10).clamp(1, 100),
        rate: plan.rate,
        at_most: BLOCK_MOST,
        processes: target.processes.clone(),
        stop: stop.clone(),
        clock: Arc::clone(clock),
    }
}

async fn carry_out(job: Job) -> Result<Outcome> {
    let failed = |why: String| Problem::new(format!("cannot run clients: {why}"));
    tokio::task::spawn_blocking(move || load::run(&job))
        .await
        .map_err(|error| failed(error.to_string()))?
        .map_err(|error| failed(error.to_string()))
}

fn block(
    plan: &Plan,
    target: &Measured,
    number: u32,
    order: u32,
    clients: u32,
    outcome: &Outcome,
) -> Block {
    let quantile = |q| nearest_rank(&outcome.latencies_ns, q);
    Block {
        label: plan.label.clone(),
        round: number,
        turn: order,
        target: target.name.clone(),
        clients,
        began_ns: outcome.began_ns,
        total_ns: outcome.total_ns,
        statements: plan.statements,
        answered: outcome.answered,
        wrong: outcome.wrong,
        errors: outcome.errors,
        connects: outcome.connects,
        p50_ns: quantile(0.5),
        p99_ns: quantile(0.99),
        max_ns: outcome.latencies_ns.last().copied(),
        client_cpu_ns: Some(outcome.cpu_ns),
        target_cpu_ns: outcome.target_cpu_ns,
    }
}

fn failures(
    plan: &Plan,
    target: &Measured,
    number: u32,
    clients: u32,
    outcome: Outcome,
) -> impl Iterator<Item = Failure> {
    let (label, target) = (plan.label.clone(), target.name.clone());
    outcome
        .failures
        .into_iter()
        .map(move |((kind, code), (text, count))| Failure {
            label: label.clone(),
            round: number,
            target: target.clone(),
            clients,
            kind: kind.to_owned(),
            code,
            text,
            count,
        })
}

/// Carries out the warm-up and all rounds. What a round has brought is kept when
/// it is finished; one that was cut short is left out.
///
/// # Errors
/// When clients cannot be run or the folder cannot be written.
pub async fn carry_on(
    plan: &Plan,
    targets: &[Measured],
    writer: &mut Writer,
    rng: &mut impl Rng,
    clock: &Arc<dyn Clock>,
    stop: &CancellationToken,
) -> Result<End> {
    let began_ns = clock.raw_ns();
    let since = |ns: i64| u64::try_from(clock.raw_ns().saturating_sub(ns)).unwrap_or(0);
    let warm_up = (plan.statements / WARM_UP_SHARE).max(1);
    for Turn { clients, target } in round(&plan.clients, targets.len(), rng) {
        let outcome = carry_out(job(plan, &targets[target], clients, warm_up, clock, stop)).await?;
        if stop.is_cancelled() {
            return Ok(End::Early("interrupted during the warm-up".to_owned()));
        }
        if outcome.answered == 0 {
            let why = outcome
                .failures
                .into_values()
                .next()
                .map_or_else(String::new, |(text, _)| format!(": {text}"));
            return Err(Problem::new(format!(
                "target `{}` at {} gave {clients} clients no right answer in the warm-up{why}",
                targets[target].name, targets[target].address
            )));
        }
    }
    output::say(&format!(
        "warmed up in {}; {} rounds",
        seconds(since(began_ns)),
        plan.rounds
    ));
    let rounds_began_ns = clock.raw_ns();
    let mut order = 0;
    for number in 1..=plan.rounds {
        if since(began_ns) >= plan.at_most_ns {
            return Ok(End::Early(format!(
                "{} were over after {} of {} rounds",
                duration::text(plan.at_most_ns),
                number - 1,
                plan.rounds
            )));
        }
        let (mut blocks, mut failed) = (Vec::new(), Vec::new());
        for Turn { clients, target } in round(&plan.clients, targets.len(), rng) {
            order += 1;
            let target = &targets[target];
            let outcome =
                carry_out(job(plan, target, clients, plan.statements, clock, stop)).await?;
            if stop.is_cancelled() {
                return Ok(End::Early(format!(
                    "interrupted in round {number} of {}",
                    plan.rounds
                )));
            }
            blocks.push(block(plan, target, number, order, clients, &outcome));
            failed.extend(failures(plan, target, number, clients, outcome));
        }
        let errors: u64 = failed.iter().map(|f| f.count).sum();
        writer.add(blocks, failed).map_err(|error| {
            Problem::new(format!("cannot keep round {number}: {error}"))
                .hint("the rounds before it are kept")
        })?;
        let spent = since(rounds_began_ns);
        let left = spent / u64::from(number) * u64::from(plan.rounds - number);
        let wrong = if errors > 0 {
            format!(", {errors} errors")
        } else {
            String::new()
        };
        let left = if number < plan.rounds {
            format!(", about {} left", seconds(left))
        } else {
            String::new()
        };
        output::say(&format!("round {number} of {}{wrong}{left}", plan.rounds));
    }
    Ok(End::Planned)
}

fn seconds(ns: u64) -> String {
    let whole = (ns + 500_000_000) / 1_000_000_000;
    if whole >= 120 {
        format!("{} min {} s", whole / 60, whole % 60)
    } else {
        format!("{whole} s")
    }
}
