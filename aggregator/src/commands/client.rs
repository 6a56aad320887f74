//! Connections to an aggregator.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gapscope_proto::clock::SystemClock;
use gapscope_proto::tls::dial::of_status;
use gapscope_proto::tls::{ClientFiles, Dialer, Secured};
use gapscope_proto::wire::control_client::ControlClient;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::output::{hinted, in_trouble};

/// A connection that asks an aggregator for something.
pub type Control = ControlClient<Secured>;

/// How long connecting may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Where the aggregator is, and how one shows oneself to it.
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
    /// Certificate of the CA by which the aggregator is known (https://).
    #[arg(
        long,
        value_name = "FILE",
        env = "GAPSCOPE_CA",
        help_heading = "Security"
    )]
    pub ca: Option<PathBuf>,
    /// Own certificate.
    #[arg(
        long,
        value_name = "FILE",
        env = "GAPSCOPE_CERT",
        help_heading = "Security"
    )]
    pub cert: Option<PathBuf>,
    /// Its key.
    #[arg(
        long,
        value_name = "FILE",
        env = "GAPSCOPE_KEY",
        help_heading = "Security"
    )]
    pub key: Option<PathBuf>,
    /// File with a bearer token.
    #[arg(
        long,
        value_name = "FILE",
        env = "GAPSCOPE_TOKEN_FILE",
        help_heading = "Security"
    )]
    pub token_file: Option<PathBuf>,
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
    /// When nobody answers, it is the wrong one, or one is not let in, with a hint.
    pub async fn control(&self) -> anyhow::Result<Control> {
        let files = ClientFiles {
            ca: self.ca.clone(),
            cert: self.cert.clone(),
            key: self.key.clone(),
            token: self.token_file.clone(),
        };
        let dialer =
            Dialer::new(&self.url, &files, Arc::new(SystemClock::new())).map_err(in_trouble)?;
        let line = dialer
            .dial(CONNECT_WITHIN, |endpoint| endpoint)
            .await
            .map_err(in_trouble)?;
        // A refused certificate shows only in the first answer (TLS 1.3), and only
        // the line can say what it meant.
        HealthClient::new(line.service())
            .check(HealthCheckRequest::default())
            .await
            .map_err(|status| in_trouble(line.explain(&status)))?;
        Ok(ControlClient::new(line.service()))
    }
}

/// What an aggregator answered, as an error for a person.
pub fn refused(status: Status) -> anyhow::Error {
    match status.code() {
        Code::Unknown | Code::Unavailable | Code::DeadlineExceeded => {
            anyhow::anyhow!("the aggregator broke off: {}", status.message())
        }
        _ => in_trouble(of_status(&status)),
    }
}

/// Makes a run's id of its id, the beginning of one, or `latest`.
///
/// # Errors
/// When there is none, or several.
pub async fn resolve_run(control: &mut Control, wanted: &str) -> anyhow::Result<String> {
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
