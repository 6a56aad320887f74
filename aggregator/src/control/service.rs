//! The control service.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, stream};
use gapscope_proto::fault::{Fault, Subject};
use gapscope_proto::host::HostFacts;
use gapscope_proto::ids::{AgentId, RunId};
use gapscope_proto::plan::RunPlan;
use gapscope_proto::wire;
use gapscope_proto::wire::aggregator_message::Kind;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::follow::Follow;
use super::start::{Beside, beside, share_out};
use super::watch;
use crate::ingest::accounts::Account;
use crate::ingest::command::{Closed, Command, Handle};
use crate::ingest::hub::{Agent, Hub};
use crate::live::totals::Watcher;
use crate::store::manifest::{FORMAT_VERSION, Manifest, RunState, Schedule};
use crate::store::reader::Standing;
use crate::utc::rfc3339;

/// How long a start waits for a sign of life, or a refusal, of each agent.
const REFUSAL_WAIT: Duration = Duration::from_secs(5);
/// How much longer than asked for a run that cannot be written is waited for.
const STUCK_WAIT: Duration = Duration::from_secs(5);
/// Characters in a mark's text, subject or identity.
const LONGEST_MARK: usize = 1_000;
/// Between two reports to a watcher.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// The service.
pub struct ControlService {
    hub: Arc<Hub>,
}

impl ControlService {
    /// Controls `hub`.
    pub fn new(hub: Arc<Hub>) -> Self {
        Self { hub }
    }

    async fn run(&self, id: RunId) -> Result<Handle, Status> {
        self.hub
            .run(id)
            .await
            .map_err(|error| Status::internal(error.to_string()))?
            .ok_or_else(|| {
                Status::not_found(format!(
                    "run `{id}` is not in `{}`",
                    self.hub.data().display()
                ))
            })
    }

    async fn stop(
        &self,
        id: RunId,
        handle: &Handle,
        reason: String,
        drain: Duration,
    ) -> Result<Closed, Status> {
        if handle.status.borrow().state == RunState::Running {
            self.hub.stop_agents(id, &reason);
        }
        let (reply, answer) = oneshot::channel();
        let ending = || Status::unavailable("the run's task has ended: try again");
        let asking = async {
            handle
                .commands
                .send(Command::Stop {
                    reason,
                    drain,
                    reply,
                })
                .await
                .map_err(|_| ending())?;
            answer.await.map_err(|_| ending())
        };
        let closed = match unless_stuck(handle, drain + STUCK_WAIT, asking).await {
            Ok(answer) => answer?,
            Err(trouble) => Err(trouble),
        };
        closed.map_err(|why| {
            Status::internal(format!(
                "run `{id}` is not closed: {why}; it stays open, and closes by itself some time \
                 after its planned end once its folder can be written"
            ))
        })
    }
}

/// Waits for what a run's task is asked. A task that cannot write takes in
/// nothing until it can, which may be never: after `patience` its trouble is the
/// answer. Slow but working disks are waited for.
async fn unless_stuck<T>(
    handle: &Handle,
    patience: Duration,
    asking: impl Future<Output = T>,
) -> Result<T, String> {
    let until = Instant::now() + patience;
    tokio::pin!(asking);
    loop {
        let look_at = until.max(Instant::now() + Duration::from_millis(100));
        tokio::select! {
            answer = &mut asking => return Ok(answer),
            () = tokio::time::sleep_until(look_at) => {
                if let Some(trouble) = handle.status.borrow().trouble.clone() {
                    return Err(trouble);
                }
            }
        }
    }
}

/// The word for a state of a run that is open here.
pub(crate) const fn state_word(state: RunState) -> &'static str {
    Standing::from_state(state).as_str()
}

fn account(account: &Account) -> wire::AgentAccount {
    wire::AgentAccount {
        agent_id: account.agent.to_string(),
        sampled: account.sampled,
        stored: account.stored,
        lost: account.lost,
        lost_min: account.lost_measured.0,
        lost_max: account.lost_measured.1,
        missing: account.missing,
        repeated: account.repeated,
        may_hold_more: account.may_hold_more,
    }
}

fn run_id(text: &str) -> Result<RunId, Status> {
    text.parse()
        .map_err(|error: gapscope_proto::ids::InvalidId| {
            Status::invalid_argument(error.to_string())
        })
}

fn targets_of(agent: &Agent) -> Vec<wire::TargetOffer> {
    agent
        .targets
        .iter()
        .map(|target| wire::TargetOffer {
            name: target.name.to_string(),
            address: target.address.clone(),
            user: target.user.clone(),
        })
        .collect()
}

/// Waits until each of `agents` has shown that it takes part, or one refuses.
async fn refusal(
    hub: &Hub,
    run: RunId,
    handle: &Handle,
    agents: &BTreeSet<AgentId>,
) -> Option<(AgentId, String)> {
    let mut refusals = hub.refusals();
    let mut status = handle.status.clone();
    let deadline = Instant::now() + REFUSAL_WAIT;
    loop {
        let refused = refusals
            .borrow_and_update()
            .iter()
            .find(|((of, agent), _)| *of == run && agents.contains(agent))
            .map(|((_, agent), reason)| (agent.clone(), reason.clone()));
        if refused.is_some() {
            return refused;
        }
        let seen: BTreeSet<AgentId> = status.borrow_and_update().seen.iter().cloned().collect();
        let known = hub.agents();
        let probing = |agent: &AgentId| {
            seen.contains(agent) || known.get(agent).is_some_and(|a| a.running.contains(&run))
        };
        if agents.iter().all(probing) || Instant::now() >= deadline {
            return None;
        }
        // Heartbeats come without a notice: look again now and then.
        tokio::select! {
            _ = refusals.changed() => {}
            _ = status.changed() => {}
            () = tokio::time::sleep_until(deadline.min(Instant::now() + Duration::from_millis(100))) => {}
        }
    }
}

#[tonic::async_trait]
impl wire::control_server::Control for ControlService {
    async fn start_run(
        &self,
        request: Request<wire::StartRunRequest>,
    ) -> Result<Response<wire::StartRunResponse>, Status> {
        let request = request.into_inner();
        let plan = request
            .plan
            .ok_or_else(|| Status::invalid_argument("there is no plan"))?;
        let plan =
            RunPlan::try_from(plan).map_err(|error| Status::invalid_argument(error.to_string()))?;
        if plan
            .scenario
            .contains(|c: char| c.is_control() && c != '\n' && c != '\t')
        {
            return Err(Status::invalid_argument(
                "the run's name has a control character",
            ));
        }
        let mut agents = self.hub.agents();
        agents.retain(|_, agent| agent.session.is_some());
        let offers: BTreeMap<_, BTreeSet<_>> = agents
            .iter()
            .map(|(id, agent)| {
                let names = agent.targets.iter().map(|target| target.name.clone());
                (id.clone(), names.collect())
            })
            .collect();
        let shares = share_out(&plan, &offers, &request.agents)
            .map_err(|error| Status::failed_precondition(error.to_string()))?;
        let id = plan.run_id;
        let running = self.hub.running().await;
        let beside = beside(&plan, running.iter().map(|other| &other.opened.plan));
        let anchor = self.hub.clock().anchor();
        let manifest = Manifest {
            format_version: FORMAT_VERSION,
            run_id: id,
            state: RunState::Running,
            created_utc: rfc3339(anchor.realtime_ns),
            closed_utc: None,
            end_reason: None,
            program_version: env!("CARGO_PKG_VERSION").to_owned(),
            host: HostFacts::read(),
            clock: self.hub.clock().key(),
            anchors: vec![anchor],
            plan,
            schedule: Schedule::OpenLoop,
            subjects: request.subjects.into_iter().map(Subject::from).collect(),
            labels: request.labels.into_iter().collect(),
            agents: shares.keys().map(|id| agents[id].entry(id)).collect(),
            caveats: beside.iter().map(Beside::said_of_other).collect(),
            files: None,
        };
        let handle = self
            .hub
            .create(manifest)
            .await
            .map_err(|error| match error {
                crate::store::StoreError::Exists(_) => {
                    Status::already_exists(format!("run `{id}` is there already"))
                }
                error => Status::internal(error.to_string()),
            })?;
        for (agent, share) in &shares {
            if let Some(session) = &agents[agent].session {
                session.link.send(Kind::StartRun(wire::StartRun {
                    plan: Some(share.into()),
                }));
            }
        }
        let chosen: BTreeSet<AgentId> = shares.keys().cloned().collect();
        if let Some((agent, reason)) = refusal(&self.hub, id, &handle, &chosen).await {
            let text = format!("agent `{agent}` refused the run: {reason}");
            self.stop(id, &handle, text.clone(), Duration::ZERO).await?;
            return Err(Status::failed_precondition(text));
        }
        for one in &beside {
            let other = running
                .iter()
                .find(|handle| handle.opened.run_id == one.run);
            if let Some(handle) = other {
                // A run that has ended meanwhile has nothing to add.
                let caveat = Command::Caveat(one.said_of(id));
                let _ = handle.commands.send(caveat).await;
            }
        }
        tracing::info!(run = %id, agents = chosen.len(), "started");
        Ok(Response::new(wire::StartRunResponse {
            run_id: id.to_string(),
            folder: self.hub.data().join(id.to_string()).display().to_string(),
            agents: chosen.iter().map(ToString::to_string).collect(),
            warnings: beside.iter().map(Beside::said_of_other).collect(),
        }))
    }

    async fn stop_run(
        &self,
        request: Request<wire::StopRunRequest>,
    ) -> Result<Response<wire::StopRunResponse>, Status> {
        let request = request.into_inner();
        let id = run_id(&request.run_id)?;
        let handle = self.run(id).await?;
        let reason = if request.reason.is_empty() {
            "stopped".to_owned()
        } else {
            request.reason
        };
        let drain = Duration::from_millis(u64::from(request.drain_ms));
        let closed = self.stop(id, &handle, reason, drain).await?;
        Ok(Response::new(wire::StopRunResponse {
            folder: closed.folder.display().to_string(),
            drained: closed.missing.is_empty(),
            missing: closed.missing,
            accounts: closed.accounts.iter().map(account).collect(),
        }))
    }

    async fn record_fault(
        &self,
        request: Request<wire::RecordFaultRequest>,
    ) -> Result<Response<wire::RecordFaultResponse>, Status> {
        // As early as can be: a mark without a clock means "now".
        let arrived = self.hub.clock().raw_ns();
        let request = request.into_inner();
        let id = run_id(&request.run_id)?;
        let mut fault = request
            .fault
            .ok_or_else(|| Status::invalid_argument("there is no fault"))?;
        for (what, text) in [
            ("text", &fault.detail),
            ("subject", &fault.subject),
            ("step", &fault.step),
            ("identity", &fault.identity),
        ] {
            if fault.clock.is_some() {
                // The lab's own record.
                break;
            }
            if text.chars().count() > LONGEST_MARK || text.contains(char::is_control) {
                return Err(Status::invalid_argument(format!(
                    "the {what} of a mark has at most {LONGEST_MARK} characters, none of which \
                     steers a terminal"
                )));
            }
        }
        let is_now = fault.clock.is_none();
        if is_now {
            fault.clock = Some((&self.hub.clock().key()).into());
            fault.asked = Some(wire::Span {
                earliest_ns: arrived,
                latest_ns: arrived,
            });
            if fault.scope.is_empty() {
                fault.scope = "mark".to_owned();
            }
        }
        let fault =
            Fault::try_from(fault).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let handle = self.run(id).await?;
        let state = handle.status.borrow().state;
        if is_now && state != RunState::Running {
            return Err(Status::failed_precondition(format!(
                "run `{id}` is {}: what is done now is not part of it",
                state_word(state)
            )));
        }
        let (reply, answer) = oneshot::channel();
        let ending = || Status::unavailable("the run's task has ended: try again");
        let asking = async {
            handle
                .commands
                .send(Command::Fault(fault, reply))
                .await
                .map_err(|_| ending())?;
            let recorded = answer.await.map_err(|_| ending())?;
            Ok::<_, Status>(recorded.map_err(|error| error.to_string()))
        };
        let recorded = match unless_stuck(&handle, STUCK_WAIT, asking).await {
            Ok(answer) => answer?,
            Err(trouble) => Err(trouble),
        };
        let id = recorded
            .map_err(|why| Status::internal(format!("the fault is not recorded: {why}")))?;
        Ok(Response::new(wire::RecordFaultResponse { id }))
    }

    async fn list_runs(
        &self,
        _: Request<wire::ListRunsRequest>,
    ) -> Result<Response<wire::ListRunsResponse>, Status> {
        let runs = self
            .hub
            .list()
            .await
            .map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(wire::ListRunsResponse {
            runs: runs
                .into_iter()
                .map(|(manifest, folder, samples)| wire::RunInfo {
                    run_id: manifest.run_id.to_string(),
                    scenario: manifest.plan.scenario,
                    state: state_word(manifest.state).to_owned(),
                    started_utc: manifest.created_utc,
                    folder: folder.display().to_string(),
                    samples,
                })
                .collect(),
        }))
    }

    async fn list_agents(
        &self,
        _: Request<wire::ListAgentsRequest>,
    ) -> Result<Response<wire::ListAgentsResponse>, Status> {
        Ok(Response::new(wire::ListAgentsResponse {
            agents: self
                .hub
                .agents()
                .into_iter()
                .map(|(id, agent)| wire::AgentInfo {
                    agent_id: id.to_string(),
                    incarnation: agent.incarnation.get(),
                    connected: agent.session.is_some(),
                    targets: targets_of(&agent),
                    program_version: agent.program_version,
                    host: Some((&agent.host).into()),
                    running: agent.running.iter().map(ToString::to_string).collect(),
                    spool_bytes: agent.spool_bytes,
                })
                .collect(),
        }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<wire::WatchResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<wire::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let wanted = request.into_inner().run_id;
        let wanted = match wanted.as_str() {
            "" => None,
            text => Some(run_id(text)?),
        };
        let found = self.hub.feed(wanted, None).await;
        if found
            .map_err(|error| Status::internal(error.to_string()))?
            .is_none()
            && let Some(id) = wanted
        {
            return Err(Status::not_found(format!(
                "run `{id}` is not in `{}`",
                self.hub.data().display()
            )));
        }
        let follow = Follow::new(self.hub.clone(), wanted, Watcher::Terminal);
        let views = stream::unfold(follow, |mut follow| async move {
            let view = follow.next().await?;
            Some((Ok(watch::to_wire(&view)), follow))
        });
        Ok(Response::new(Box::pin(views)))
    }

    type WatchRunStream =
        Pin<Box<dyn Stream<Item = Result<wire::WatchRunResponse, Status>> + Send>>;

    async fn watch_run(
        &self,
        request: Request<wire::WatchRunRequest>,
    ) -> Result<Response<Self::WatchRunStream>, Status> {
        let id = run_id(&request.into_inner().run_id)?;
        let handle = self.run(id).await?;
        let hub = self.hub.clone();
        let ticks = tokio::time::interval(WATCH_EVERY);
        let state = Some((hub, handle, ticks));
        let reports = stream::unfold(state, move |state| async move {
            let (hub, handle, mut ticks) = state?;
            tokio::select! {
                () = hub.shutdown.cancelled() => return None,
                _ = ticks.tick() => {}
            }
            let status = handle.status.borrow().clone();
            let report = wire::WatchRunResponse {
                state: state_word(status.state).to_owned(),
                samples: status.samples,
                agents: hub
                    .agents()
                    .into_iter()
                    .filter(|(_, agent)| agent.progress.contains_key(&id))
                    .map(|(agent_id, agent)| wire::AgentProgress {
                        agent_id: agent_id.to_string(),
                        connected: agent.session.is_some(),
                        progress: agent.progress.get(&id).cloned(),
                        spool_bytes: agent.spool_bytes,
                    })
                    .collect(),
            };
            let over = status.state != RunState::Running || handle.commands.is_closed();
            Some((Ok(report), (!over).then_some((hub, handle, ticks))))
        });
        Ok(Response::new(Box::pin(reports)))
    }
}
