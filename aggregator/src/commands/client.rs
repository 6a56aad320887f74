//! Connections to an aggregator.

use std::time::Duration;

use anyhow::Context;
use gapscope_proto::wire::control_client::ControlClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::output::hinted;

/// Where the aggregator is.
#[derive(Debug, Clone, clap::Args)]
pub struct Aggregator {
    /// Where the aggregator is.
    #[arg(
        long = "aggregator",
        value_name = "URL",
        env = "GAPSCOPE_AGGREGATOR",
        default_value = "http://127.0.0.1:7350"
    )]
    pub url: String,
}

/// Runs a command's future.
///
/// # Errors
/// Those of the future, or when no runtime can be had.
pub fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(future)
}

impl Aggregator {
    /// Connects to its control service.
    ///
    /// # Errors
    /// When nobody answers, with a hint.
    pub async fn control(&self) -> anyhow::Result<ControlClient<Channel>> {
        let wrong = |why: String| {
            hinted(
                format!("`{}` is not the URL of an aggregator: {why}", self.url),
                "write it as http://HOST:PORT",
            )
        };
        let endpoint = Endpoint::from_shared(self.url.clone()).map_err(|e| wrong(root(&e)))?;
        if endpoint.uri().scheme_str() != Some("http") || endpoint.uri().port().is_none() {
            return Err(wrong("no http:// or no port".to_owned()));
        }
        let channel = endpoint
            .connect_timeout(Duration::from_secs(5))
            .connect()
            .await
            .map_err(|error| {
                hinted(
                    format!("no aggregator answers at {}: {}", self.url, root(&error)),
                    "start one with `gapscope-aggregator serve`, or say where it is with --aggregator URL",
                )
            })?;
        Ok(ControlClient::new(channel))
    }
}

fn root(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// What an aggregator answered, as an error for a person.
pub fn refused(status: Status) -> anyhow::Error {
    match status.code() {
        Code::Unknown | Code::Unavailable | Code::DeadlineExceeded => {
            anyhow::anyhow!("the aggregator broke off: {}", status.message())
        }
        _ => anyhow::anyhow!("{}", status.message()),
    }
}

/// Makes a run's id of its id, the beginning of one, or `latest`.
///
/// # Errors
/// When there is none, or several.
pub async fn resolve_run(
    control: &mut ControlClient<Channel>,
    wanted: &str,
) -> anyhow::Result<String> {
    let runs = control
        .list_runs(gapscope_proto::wire::ListRunsRequest {})
        .await
        .map_err(refused)?
        .into_inner()
        .runs;
    let hint = "`gapscope-aggregator runs` lists them";
    if wanted == "latest" {
        return runs
            .last()
            .map(|run| run.run_id.clone())
            .ok_or_else(|| hinted("the aggregator has no runs", "start one with `start`"));
    }
    let matching: Vec<_> = runs
        .iter()
        .filter(|run| !wanted.is_empty() && run.run_id.starts_with(wanted))
        .collect();
    match matching.as_slice() {
        [run] => Ok(run.run_id.clone()),
        [] => Err(hinted(
            format!("the aggregator has no run `{wanted}`"),
            hint,
        )),
        several => Err(hinted(
            format!("`{wanted}` is the beginning of {} runs", several.len()),
            hint,
        )),
    }
}
