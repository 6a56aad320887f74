//! `overhead`: measures what proxies cost, on a lab of its own or on targets that
//! are there, and prints the study's table.

use std::path::PathBuf;
use std::sync::Arc;

use gapscope_aggregator::commands::overhead as printed;
use gapscope_aggregator::commands::report::Format as Print;
use gapscope_aggregator::overhead::record::{FORMAT_VERSION, KIND, Load, Manifest, Target};
use gapscope_aggregator::overhead::store::Writer;
use gapscope_aggregator::store::manifest::RunState;
use gapscope_aggregator::utc::rfc3339;
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::host::HostFacts;
use gapscope_proto::ids::RunId;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio_util::sync::CancellationToken;

use super::run::{data_folder, interrupted};
use crate::cli::Format;
use crate::error::{Problem, Result, exit};
use crate::output;
use crate::overhead::bench::{End, Plan, carry_on};
use crate::overhead::load::Way;
use crate::overhead::options::{Options, Protocol};
use crate::overhead::up::{Up, set_up, take_down};
use crate::signals::Signals;

fn load_average_caveat() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = text.split_whitespace().next()?.parse().ok()?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (load > 0.5 * cores as f64).then(|| {
        format!(
            "the host was busy before the benchmark began: load average {load} on {cores} \
             processors"
        )
    })
}

fn manifest(options: &Options, up: &Up, seed: u64, now_ns: i64) -> Manifest {
    Manifest {
        format_version: FORMAT_VERSION,
        kind: KIND.to_owned(),
        run_id: RunId::generate(),
        state: RunState::Running,
        created_utc: rfc3339(now_ns),
        closed_utc: None,
        end_reason: None,
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
        host: HostFacts::read(),
        statement: up.statement.to_string(),
        statement_origin: up.origin.clone(),
        protocol: match options.protocol {
            Protocol::Text => "text",
            Protocol::Prepared => "prepared",
        }
        .to_owned(),
        connect_each: options.connect_each,
        load: options
            .rate
            .map_or(Load::Closed, |rate| Load::Open { rate }),
        statements: options.statements,
        clients: options.clients.clone(),
        rounds: options.rounds,
        seed,
        targets: up
            .targets
            .iter()
            .map(|t| Target {
                name: t.name.clone(),
                role: t.role,
                address: t.address.clone(),
                program: t.program.clone(),
            })
            .collect(),
        labels: up.labels.iter().cloned().collect(),
        caveats: up
            .caveats
            .iter()
            .cloned()
            .chain(load_average_caveat())
            .chain(options.rate.map(|_| {
                "the clients' processor time holds their waiting for due times".to_owned()
            }))
            .chain(cfg!(debug_assertions).then(|| {
                "measured by an unoptimised build: the instrument's own part is far too large"
                    .to_owned()
            }))
            .collect(),
    }
}

/// Carries out `gapscope-lab overhead`; returns the exit code.
pub async fn run(options: &Options) -> Result<u8> {
    let mut signals = Signals::catch()?;
    let data = data_folder(&options.data)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut up = {
        let setting_up = set_up(options, &clock);
        tokio::pin!(setting_up);
        let mut interrupt = None;
        let up = loop {
            tokio::select! {
                up = &mut setting_up => break up,
                signal = signals.next() => {
                    let why = interrupted(signal, "before anything was measured");
                    if !options.create_table {
                        return Err(why);
                    }
                    // A table that is being made somewhere else has to be removed.
                    output::say(&format!("{signal}: ending, once nothing is left behind"));
                    interrupt = Some(why);
                }
            }
        };
        if let Some(why) = interrupt {
            if let Ok(up) = up {
                take_down(up).await;
            }
            return Err(why);
        }
        up?
    };
    let stop = CancellationToken::new();
    let measured = {
        let measuring = measure(options, &mut up, &data, &clock, &stop);
        tokio::pin!(measuring);
        loop {
            tokio::select! {
                measured = &mut measuring => break measured,
                signal = signals.next() => {
                    output::say(&format!("{signal}: ending; finished rounds are kept"));
                    stop.cancel();
                }
            }
        }
    };
    take_down(up).await;
    let (folder, end, rounds) = measured?;
    if rounds == 0
        && let End::Early(why) = &end
    {
        return Err(Problem::new(format!(
            "the benchmark ended early, {why}, and no round was finished"
        )));
    }
    let code = printed::report(&folder, print(options.format), width(), None)
        .map_err(|error| Problem::new(format!("cannot report on {}: {error:#}", folder.display())))?
        .code();
    output::say(&format!("run folder: {}", folder.display()));
    match end {
        End::Planned => Ok(code),
        End::Early(why) => {
            output::say(&format!("error: the benchmark ended early: {why}"));
            Ok(exit::FAILURE)
        }
    }
}

fn print(format: Format) -> Print {
    match format {
        Format::Text => Print::Text,
        Format::Markdown => Print::Markdown,
        Format::Json => Print::Json,
    }
}

fn width() -> Option<u16> {
    output::stdout_columns().and_then(|columns| u16::try_from(columns).ok())
}

async fn measure(
    options: &Options,
    up: &mut Up,
    data: &std::path::Path,
    clock: &Arc<dyn Clock>,
    stop: &CancellationToken,
) -> Result<(PathBuf, End, u32)> {
    let seed = options.seed.unwrap_or_else(rand::random);
    let blocks = options.clients.len() * up.targets.len();
    let names: Vec<&str> = up.targets.iter().map(|t| t.name.as_str()).collect();
    output::say(&format!(
        "{} statements a block, {} rounds of {blocks} blocks ({} targets: {}), seed {seed}",
        options.statements,
        options.rounds,
        names.len(),
        names.join(", ")
    ));
    let failed = |error: gapscope_aggregator::store::StoreError| {
        Problem::new(format!("cannot write the run folder: {error}"))
            .hint("choose another folder with --data DIR")
    };
    let now = clock.anchor().realtime_ns;
    let mut writer = Writer::create(data, manifest(options, up, seed, now)).map_err(failed)?;
    let folder = writer.folder().to_owned();
    let plan = Plan {
        statement: Arc::clone(&up.statement),
        way: Way {
            prepared: options.protocol == Protocol::Prepared,
            connect_each: options.connect_each,
        },
        statements: options.statements,
        clients: options.clients.clone(),
        rounds: options.rounds,
        rate: options.rate,
        label: options.label.clone(),
        at_most_ns: options.at_most,
    };
    let mut rng = StdRng::seed_from_u64(seed);
    let ended = carry_on(&plan, &up.targets, &mut writer, &mut rng, clock, stop).await;
    let (state, reason) = match &ended {
        Ok(End::Planned) => (RunState::Closed, "all rounds carried out".to_owned()),
        Ok(End::Early(why)) => (RunState::Interrupted, why.clone()),
        Err(problem) => (RunState::Interrupted, problem.what.clone()),
    };
    let bench = writer
        .close(state, &reason, clock.anchor().realtime_ns, Vec::new())
        .map_err(failed)?;
    let rounds = bench.blocks.iter().map(|b| b.round).max().unwrap_or(0);
    Ok((folder, ended?, rounds))
}
