//! `bench`: measures gapscope's own speed beside other programs.

use std::sync::Arc;

use gapscope_aggregator::utc::rfc3339;
use gapscope_proto::clock::{Clock, SystemClock};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Serialize;

use super::run::{data_folder, interrupted};
use crate::bench::findings::{Part, as_text, goals};
use crate::bench::machine::{Machine, load_average};
use crate::bench::options::{Options, What};
use crate::bench::{analysis, closed, ingest, paced};
use crate::cli::Format;
use crate::error::{Problem, Result};
use crate::output;
use crate::signals::Signals;

/// Version of the JSON.
const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct Report<'a> {
    schema_version: u32,
    program_version: &'static str,
    begun_utc: String,
    seed: u64,
    machine: &'a Machine,
    load_average_after: f64,
    parts: &'a [Part],
}

/// Carries out `gapscope-lab bench`; returns the exit code.
pub async fn run(options: &Options) -> Result<u8> {
    let mut signals = Signals::catch()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let machine = Machine::look();
    let seed = options.seed.unwrap_or_else(rand::random);
    output::say(&format!("{}; seed {seed}", machine.line()));
    if cfg!(debug_assertions) {
        output::say(
            "warning: an unoptimised build: gapscope's own part is far too large; use --release",
        );
    }
    let begun_utc = rfc3339(clock.anchor().realtime_ns);
    let parts = {
        let measuring = measure(options, &clock, seed);
        tokio::pin!(measuring);
        tokio::select! {
            parts = &mut measuring => parts?,
            signal = signals.next() => return Err(interrupted(signal, "before it was done")),
        }
    };
    let report = Report {
        schema_version: SCHEMA_VERSION,
        program_version: env!("CARGO_PKG_VERSION"),
        begun_utc,
        seed,
        machine: &machine,
        load_average_after: load_average(),
        parts: &parts,
    };
    let json = serde_json::to_string_pretty(&report)
        .map_err(|error| Problem::new(format!("cannot write the result: {error}")))?;
    std::fs::write(&options.json, format!("{json}\n")).map_err(|error| {
        Problem::new(format!("cannot write {}: {error}", options.json.display()))
            .hint("name another file with --json FILE")
    })?;
    match options.format {
        Format::Json => output::data(&format!("{json}\n")),
        Format::Text | Format::Markdown => {
            let (reached, all) = goals(&parts);
            output::data(&format!(
                "{}\nload average {:.2} after; median and range of {} rounds\n\n{}{reached} of \
                 {all} goals reached\n",
                machine.line(),
                report.load_average_after,
                options.rounds,
                as_text(&parts)
            ));
        }
    }
    output::say(&format!("all values: {}", options.json.display()));
    Ok(0)
}

async fn measure(options: &Options, clock: &Arc<dyn Clock>, seed: u64) -> Result<Vec<Part>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut parts = Vec::new();
    let has = |what| options.what == What::All || options.what == what;
    if has(What::Agent) {
        parts.extend(closed::measure(options, clock, &mut rng).await?);
        let driver = parts.first().and_then(|part| {
            let name = "driver alone, CPU a probe";
            part.findings.iter().find(|f| f.name == name)?.median()
        });
        parts.push(paced::measure(options, clock, driver, &mut rng).await?);
    }
    if has(What::Ingest) {
        parts.extend(ingest::measure(options, clock, &mut rng).await?);
    }
    if has(What::Analysis) {
        let data = data_folder(&options.data)?;
        parts.extend(analysis::measure(options, &data, clock).await?);
    }
    Ok(parts)
}
