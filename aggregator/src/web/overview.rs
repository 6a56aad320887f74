//! Runs and agents, as the page lists them: read at most once a second, however many
//! pages are open.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::ingest::hub::Hub;
use crate::store::reader::{Standing, list_runs, read_manifest};

/// Runs that are listed: the newest.
const MOST_RUNS: usize = 50;
/// Agents that are listed.
const MOST_AGENTS: usize = 200;
const KEPT_FOR: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Run {
    run_id: String,
    scenario: String,
    state: &'static str,
    began_utc: String,
    has_report: bool,
}

#[derive(Serialize)]
struct Agent {
    agent: String,
    connected: bool,
    version: String,
    host: String,
    targets: Vec<String>,
    running: usize,
    spool_bytes: u64,
}

#[derive(Serialize)]
struct Overview {
    runs: Vec<Run>,
    runs_left_out: usize,
    agents: Vec<Agent>,
    agents_left_out: usize,
}

/// The newest list, as JSON.
#[derive(Default)]
pub(super) struct Kept(Mutex<Option<(Instant, Arc<str>)>>);

impl Kept {
    pub(super) async fn json(&self, hub: &Hub) -> Arc<str> {
        let mut kept = self.0.lock().await;
        if let Some((since, json)) = &*kept
            && since.elapsed() < KEPT_FOR
        {
            return json.clone();
        }
        let json: Arc<str> = serde_json::to_string(&read(hub).await)
            .unwrap_or_else(|_| "{}".to_owned())
            .into();
        *kept = Some((Instant::now(), json.clone()));
        json
    }
}

async fn read(hub: &Hub) -> Overview {
    let data = hub.data().to_owned();
    let (runs, runs_left_out) = tokio::task::spawn_blocking(move || {
        let mut all = list_runs(&data).unwrap_or_default();
        all.sort_by_key(|(id, _)| std::cmp::Reverse(*id));
        let left_out = all.len().saturating_sub(MOST_RUNS);
        all.truncate(MOST_RUNS);
        // One that cannot be read is told of by others.
        let runs = all.into_iter().filter_map(|(id, folder)| {
            let manifest = read_manifest(&folder).ok()?;
            Some(Run {
                run_id: id.to_string(),
                scenario: manifest.plan.scenario,
                state: Standing::from_state(manifest.state).as_str(),
                began_utc: manifest.created_utc,
                has_report: folder.join("report.html").is_file(),
            })
        });
        (runs.collect(), left_out)
    })
    .await
    .unwrap_or_default();
    let agents = hub.agents();
    let agents_left_out = agents.len().saturating_sub(MOST_AGENTS);
    let agents = agents
        .into_iter()
        .take(MOST_AGENTS)
        .map(|(id, agent)| Agent {
            agent: id.to_string(),
            connected: agent.session.is_some(),
            version: agent.program_version,
            host: agent.host.hostname,
            targets: agent
                .targets
                .iter()
                .map(|target| target.name.to_string())
                .collect(),
            running: agent.running.len(),
            spool_bytes: agent.spool_bytes,
        });
    Overview {
        runs,
        runs_left_out,
        agents: agents.collect(),
        agents_left_out,
    }
}
