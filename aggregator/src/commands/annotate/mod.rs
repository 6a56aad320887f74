//! `annotate`: puts a run's faults and marks into Grafana, beside the metrics.

use std::path::PathBuf;

use gapscope_proto::fault::{Fault, FaultScope};
use serde::Serialize;
use serde_json::Value;

use super::client::block_on;
use crate::align::wall::WallClock;
use crate::exit::Exit;
use crate::output::{data, hinted, in_trouble, note};
use crate::store::RunFolder;
use crate::store::manifest::Manifest;

mod http;

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A run's id, the beginning of it, `latest`, or its folder.
    #[arg(value_name = "RUN|FOLDER")]
    run: String,
    /// Where runs are kept.
    #[arg(long, default_value = "./runs", value_name = "DIR")]
    data: PathBuf,
    /// Where Grafana is.
    #[arg(long, value_name = "URL", required_unless_present = "dry_run")]
    grafana: Option<String>,
    /// File with the token of a Grafana service account that may write annotations.
    #[arg(long, value_name = "FILE", required_unless_present = "dry_run")]
    token_file: Option<PathBuf>,
    /// Certificate of the CA by which Grafana is known; those of the system if none
    /// is given.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Send the token without encryption beyond this host: anyone on the way can use
    /// it.
    #[arg(long)]
    insecure_clear_text: bool,
    /// Put them there although some of this run are there already.
    #[arg(long)]
    again: bool,
    /// Send nothing; print what would be sent, one JSON object a line.
    #[arg(long)]
    dry_run: bool,
}

/// As Grafana's HTTP API takes it (`POST /api/annotations`); times in ms since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Annotation {
    time: i64,
    #[serde(rename = "timeEnd", skip_serializing_if = "Option::is_none")]
    time_end: Option<i64>,
    tags: Vec<String>,
    text: String,
}

/// Sends them; prints how many.
///
/// # Errors
/// When there is no such run, or Grafana cannot be reached or refuses.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    let folder = RunFolder::find(&args.data, &args.run)?;
    let manifest = folder.manifest();
    let (annotations, unplaced) = annotations(manifest, &folder.faults()?);
    for fault in unplaced {
        note(format!(
            "warning: fault {fault} is left out: another host has stamped it, and its time in UTC is not known here"
        ));
    }
    if args.dry_run {
        for annotation in &annotations {
            data(serde_json::to_string(annotation)?);
        }
        return Ok(Exit::Ok);
    }
    let (Some(url), Some(token_file)) = (args.grafana, args.token_file) else {
        anyhow::bail!("--grafana and --token-file are needed");
    };
    let token = gapscope_proto::tls::material::token(&token_file).map_err(in_trouble)?;
    let grafana = http::Server::new(&url, args.ca.as_deref(), token, args.insecure_clear_text)?;
    let run_tag = run_tag(manifest);
    block_on(async {
        if !args.again {
            let known = grafana
                .get(&format!(
                    "/api/annotations?tags=gapscope&tags={run_tag}&limit=1"
                ))
                .await?;
            let known: Value = serde_json::from_slice(&known).unwrap_or_default();
            if known.as_array().is_some_and(|known| !known.is_empty()) {
                return Err(hinted(
                    format!(
                        "annotations of run {} are in Grafana already",
                        manifest.run_id
                    ),
                    "put them there once more with --again",
                ));
            }
        }
        for (at, annotation) in annotations.iter().enumerate() {
            grafana
                .post("/api/annotations", serde_json::to_vec(annotation)?)
                .await
                .map_err(|error| {
                    error.context(format!(
                        "annotation {} of {} was not taken",
                        at + 1,
                        annotations.len()
                    ))
                })?;
        }
        data(format!("{} annotations put into {url}", annotations.len()));
        Ok(Exit::Ok)
    })
}

fn run_tag(manifest: &Manifest) -> String {
    format!("run:{}", manifest.run_id)
}

/// What a run's faults and marks are in Grafana, and the numbers of those whose time
/// is not known: only stamps of the aggregator's own clock can be told in UTC without
/// an analysis.
fn annotations(manifest: &Manifest, faults: &[Fault]) -> (Vec<Annotation>, Vec<u32>) {
    let wall = WallClock::new(&manifest.anchors);
    let ms = |ns: i64| {
        let (least, most) = wall.utc_ns(ns)?;
        Some((least + (most - least) / 2).div_euclid(1_000_000))
    };
    let mut unplaced = Vec::new();
    let mut found = Vec::new();
    for fault in faults {
        let time = match fault.clock == manifest.clock {
            true => ms(fault.asked.earliest_ns),
            false => None,
        };
        let Some(time) = time else {
            unplaced.push(fault.id);
            continue;
        };
        let is_mark = fault.scope == FaultScope::Mark;
        // Until it was undone, or until the last that was seen of its beginning.
        let seen = [fault.listener_refused, fault.held_cut, fault.gone];
        let seen = seen.into_iter().flatten().map(|span| span.latest_ns).max();
        let until = fault.cleared.map(|span| span.latest_ns).or(seen);
        let what = [&fault.step, &fault.subject, &fault.detail]
            .into_iter()
            .filter(|part| !part.is_empty())
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(" ");
        let kind = if is_mark { "mark" } else { "fault" };
        found.push(Annotation {
            time,
            time_end: until.and_then(ms).filter(|end| *end > time),
            tags: vec!["gapscope".to_owned(), kind.to_owned(), run_tag(manifest)],
            text: if fault.is_note() {
                format!("{} ({})", fault.detail, manifest.plan.scenario)
            } else {
                format!("{kind} {}: {what} ({})", fault.id, manifest.plan.scenario)
            },
        });
    }
    (found, unplaced)
}
