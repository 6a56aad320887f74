//! The aggregator's `Control` service, as the lab uses it.

use std::collections::BTreeMap;
use std::time::Duration;

use gapscope_proto::fault::{Fault, Subject};
use gapscope_proto::plan::RunPlan;
use gapscope_proto::wire;
use gapscope_proto::wire::control_client::ControlClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use crate::error::{Problem, Result};

/// A connection to an aggregator.
#[derive(Debug, Clone)]
pub struct Control {
    client: ControlClient<Channel>,
    url: String,
}

/// A run that was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// Its id.
    pub run_id: String,
    /// Its folder.
    pub folder: String,
}

/// A run that was stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// Everything measured was taken in.
    pub drained: bool,
    /// What was not, for people.
    pub missing: Vec<String>,
}

impl Control {
    /// Connects.
    pub async fn connect(url: &str) -> Result<Self> {
        let failed =
            |why: String| Problem::new(format!("cannot reach the aggregator at {url}: {why}"));
        let channel = Endpoint::from_shared(url.to_owned())
            .map_err(|error| failed(error.to_string()))?
            .connect_timeout(Duration::from_secs(5))
            .connect()
            .await
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self {
            client: ControlClient::new(channel),
            url: url.to_owned(),
        })
    }

    fn failed(&self, what: &str, status: &Status) -> Problem {
        let why = match status.code() {
            Code::Unavailable => format!("it does not answer ({})", status.message()),
            _ => status.message().to_owned(),
        };
        Problem::new(format!(
            "the aggregator at {} could not {what}: {why}",
            self.url
        ))
    }

    /// The agents it knows.
    pub async fn agents(&mut self) -> Result<Vec<wire::AgentInfo>> {
        match self.client.list_agents(wire::ListAgentsRequest {}).await {
            Ok(answer) => Ok(answer.into_inner().agents),
            Err(status) => Err(self.failed("list its agents", &status)),
        }
    }

    /// Starts a run.
    pub async fn start(
        &mut self,
        plan: &RunPlan,
        subjects: &[Subject],
        labels: BTreeMap<String, String>,
    ) -> Result<Started> {
        let request = wire::StartRunRequest {
            plan: Some(plan.into()),
            agents: Vec::new(),
            subjects: subjects.iter().map(Into::into).collect(),
            labels: labels.into_iter().collect(),
        };
        match self.client.start_run(request).await {
            Ok(answer) => {
                let answer = answer.into_inner();
                Ok(Started {
                    run_id: answer.run_id,
                    folder: answer.folder,
                })
            }
            Err(status) => Err(self.failed("start the run", &status)),
        }
    }

    /// Stops a run and waits for what the agents still hold.
    pub async fn stop(&mut self, run_id: &str, reason: &str, drain: Duration) -> Result<Stopped> {
        let request = wire::StopRunRequest {
            run_id: run_id.to_owned(),
            reason: reason.to_owned(),
            drain_ms: u32::try_from(drain.as_millis()).unwrap_or(u32::MAX),
        };
        match self.client.stop_run(request).await {
            Ok(answer) => {
                let answer = answer.into_inner();
                Ok(Stopped {
                    drained: answer.drained,
                    missing: answer.missing,
                })
            }
            Err(status) => Err(self.failed("stop the run", &status)),
        }
    }

    /// Records a fault, or what was learnt about it since. Returns its id.
    pub async fn record(&mut self, run_id: &str, fault: &Fault) -> Result<u32> {
        let request = wire::RecordFaultRequest {
            run_id: run_id.to_owned(),
            fault: Some(fault.into()),
        };
        match self.client.record_fault(request).await {
            Ok(answer) => Ok(answer.into_inner().id),
            Err(status) => Err(self.failed("record a fault", &status)),
        }
    }

    /// Live progress.
    pub async fn watch(&mut self, run_id: &str) -> Result<Readings> {
        let request = wire::WatchRunRequest {
            run_id: run_id.to_owned(),
        };
        match self.client.watch_run(request).await {
            Ok(answer) => Ok(Readings {
                stream: answer.into_inner(),
            }),
            Err(status) => Err(self.failed("show the run's progress", &status)),
        }
    }
}

/// The counters of one target and style at one agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// The target's name.
    pub target: String,
    /// Good answers since the run began.
    pub ok: u64,
    /// Bad ones.
    pub bad: u64,
    /// Identity in the newest good answer; empty: none yet.
    pub backend: String,
    /// The newest error; empty: none yet.
    pub last_error: String,
}

/// Live progress as it comes.
#[derive(Debug)]
pub struct Readings {
    stream: Streaming<wire::WatchRunResponse>,
}

impl Readings {
    /// The next reading, of all agents and styles; `None` at the end, however it
    /// came.
    pub async fn next(&mut self) -> Option<Vec<Counters>> {
        let reading = self.stream.message().await.ok()??;
        Some(
            reading
                .agents
                .into_iter()
                .filter_map(|agent| agent.progress)
                .flat_map(|progress| progress.targets)
                .map(|target| Counters {
                    target: target.target,
                    ok: target.ok,
                    bad: target.bad,
                    backend: target.backend,
                    last_error: target.last_error,
                })
                .collect(),
        )
    }
}
