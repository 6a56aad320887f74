//! The agent as a whole: starts what it is made of, carries out the
//! aggregator's orders, goes on without an aggregator, leaves in good order.
//!
//! Runs are kept in the spool's folder with their origin, so that an agent that
//! is started again on the same clock goes on counting the same slots, as a new
//! incarnation, until the planned end. Of a run that is over when the agent is back
//! it says that nothing more will come.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use gapscope_proto::clock::{Clock, ClockKey};
use gapscope_proto::host::{ProbingEnded, ProbingStarted};
use gapscope_proto::ids::RunId;
use gapscope_proto::plan::RunPlan;
use gapscope_proto::tls::reload::keep;
use gapscope_proto::tls::{Dialer, Trouble};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::board::{Board, RunBoard};
use crate::config::Config;
use crate::control;
use crate::host::HostNotes;
use crate::probe::leash::Graveyard;
use crate::probe::mysql::Endpoint;
use crate::run::{self, Stopper, Times, Tools};
use crate::spool::{SpoolError, writer};
use crate::uplink::client::{Order, Request, Uplink};
use crate::uplink::clock::Exchanger;
use crate::wake::Waker;

const RUNS_FILE: &str = "runs.json";
const RUNS_KEPT: usize = 200;
/// How long it may take to note a run down without putting off its begin.
const NOTE_NS: i64 = 50_000_000;
/// How often its begin is put off.
const NOTE_TRIES: usize = 3;
/// A shutdown does not wait long for probes.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);
/// Nor for the aggregator.
const SHUTDOWN_SEND: Duration = Duration::from_secs(3);

/// Between two looks at how long the certificate is still valid.
const REMIND_EVERY: Duration = Duration::from_secs(6 * 3600);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct KnownRun {
    plan: RunPlan,
    clock: ClockKey,
    origin_ns: i64,
    planned_end_ns: i64,
    ended: bool,
}

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It cannot show itself to its aggregator, or not know it.
    #[error("{0}")]
    Security(Trouble),
    /// Its spool cannot be used.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(std::io::Error),
}

struct Agent {
    tools: Tools,
    known: Vec<KnownRun>,
    running: HashMap<RunId, Stopper>,
    tasks: JoinSet<RunId>,
    requests: mpsc::Sender<Request>,
    run_began_ns: Arc<AtomicI64>,
}

/// Runs an agent until `shutdown` is cancelled.
pub async fn run(
    config: &Config,
    clock: Arc<dyn Clock>,
    shutdown: CancellationToken,
) -> Result<(), StartError> {
    let dialer = Dialer::new(&config.aggregator, &config.security, clock.clone());
    let dialer = Arc::new(dialer.map_err(StartError::Security)?);
    let folder = config.data.join("spool").join(config.agent_id.as_str());
    let opened = writer::open(&folder, &config.spool, clock.clone())?;
    if opened.counts.corrupt_stretches > 0 {
        tracing::warn!(
            stretches = opened.counts.corrupt_stretches,
            bytes = opened.counts.corrupt_bytes,
            "the spool had damaged or cut-off frames; what is missing is declared lost"
        );
    }
    let graveyard = Graveyard::open().map_err(StartError::Thread)?;
    let waker = Waker::start(clock.clone()).map_err(StartError::Thread)?;
    let endpoints: BTreeMap<_, _> = config
        .targets
        .iter()
        .map(|target| {
            (
                target.name.clone(),
                Arc::new(Endpoint::new(target.clone(), &*clock)),
            )
        })
        .collect();
    let board = Board::default();
    let notes = HostNotes::new(clock.clone(), opened.spool.clone());
    let run_began_ns = Arc::new(AtomicI64::new(i64::MIN));
    let background = CancellationToken::new();
    // Where probes are: what delays these delays them.
    let beside_probes = waker.first().runtime().clone();
    let notes_task = beside_probes.spawn(notes.clone().run(background.clone()));
    let _looking_after = AbortOnDropHandle::new(tokio::spawn(look_after(dialer.clone())));
    let exchange_task = tokio::spawn(
        Exchanger::new(
            dialer.clone(),
            clock.clone(),
            opened.spool.clone(),
            run_began_ns.clone(),
        )
        .run(background.clone()),
    );
    let control = config
        .control
        .as_ref()
        .and_then(|name| endpoints.get(name).cloned());
    let (order_sender, mut orders) = mpsc::channel(64);
    let (requests, request_receiver) = mpsc::channel(64);
    let mut agent = Agent {
        known: load_runs(&opened.spool),
        tools: Tools {
            clock: clock.clone(),
            waker,
            graveyard,
            spool: opened.spool.clone(),
            board: board.clone(),
            notes,
            endpoints: Arc::new(endpoints),
            agent_id: config.agent_id.clone(),
            writes: config.writes.clone(),
        },
        running: HashMap::new(),
        tasks: JoinSet::new(),
        requests,
        run_began_ns,
    };
    let control_task = beside_probes.spawn(control::run(
        agent.tools.clone(),
        control,
        background.clone(),
    ));
    // Before the first Hello, which says what is running.
    agent.resume().await;
    let uplink = Uplink {
        changes: dialer.changes(),
        dialer,
        agent_id: config.agent_id.clone(),
        targets: config
            .targets
            .iter()
            .map(|t| (t.name.to_string(), t.address(), t.user.clone()))
            .collect(),
        clock,
        spool: opened.spool.clone(),
        reports: opened.reports,
        board,
        orders: order_sender,
        requests: request_receiver,
    };
    let uplink = tokio::spawn(uplink.run());
    tracing::info!(agent = %config.agent_id, spool = %folder.display(), "ready");
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            Some(order) = orders.recv() => agent.order(order).await,
            Some(ended) = agent.tasks.join_next() => match ended {
                Ok(run) => agent.ended(run).await,
                Err(error) => tracing::error!(%error, "a run ended without its books"),
            },
        }
    }
    // An uplink that wants to give an order must not wait for ever.
    drop(orders);
    agent.leave(uplink).await;
    background.cancel();
    for task in [notes_task, exchange_task, control_task] {
        let _ = task.await;
    }
    // With its last handle the spool's threads end, and its folder is free.
    drop(agent);
    drop(opened.spool);
    let _ = tokio::task::spawn_blocking(move || opened.thread.join()).await;
    Ok(())
}

/// Files that change, and certificates that end.
async fn look_after(dialer: Arc<Dialer>) {
    let mut reminders = tokio::time::interval(REMIND_EVERY);
    reminders.reset();
    let reminding = async {
        loop {
            reminders.tick().await;
            dialer.remind();
        }
    };
    tokio::join!(keep(dialer.files()), reminding);
}

impl Agent {
    async fn resume(&mut self) {
        let key = self.tools.clock.key();
        let now_ns = self.tools.clock.raw_ns();
        let unfinished = self.known.iter().filter(|known| !known.ended).cloned();
        let (to_go_on, over): (Vec<_>, Vec<_>) =
            unfinished.partition(|known| known.clock == key && known.planned_end_ns > now_ns);
        for known in to_go_on {
            if let Err(refusal) = run::admit(
                &known.plan,
                &self.tools.endpoints,
                self.tools.writes.as_ref(),
            ) {
                tracing::warn!(run = %known.plan.run_id, why = %refusal, "not resumed");
                continue;
            }
            tracing::info!(run = %known.plan.run_id, "resumed");
            self.prepare(&known.plan).await;
            let ready_ns =
                self.tools.clock.raw_ns() + run::lead_ns(&known.plan, &self.tools.endpoints);
            self.launch(&known, ready_ns.max(known.origin_ns));
        }
        self.conclude(&over).await;
    }

    /// Numbers for the samples of a run, reserved before there are any.
    async fn prepare(&self, plan: &RunPlan) {
        let samples = run::first_samples(plan);
        self.tools.spool.prepare(plan.run_id, samples).await;
    }

    /// An earlier start of this agent probed for these runs and did not come to
    /// their ends, which are past. What it measured is in this spool or delivered,
    /// and nothing will be added: this start says so, as one of each run that had
    /// nothing left to do.
    async fn conclude(&mut self, runs: &[KnownRun]) {
        if runs.is_empty() {
            return;
        }
        for known in runs {
            let run = known.plan.run_id;
            tracing::info!(%run, "it was left unfinished by an earlier start, and is over");
            // By the clock of that start, of which this one may know nothing.
            let end_ns = known.planned_end_ns;
            let started = ProbingStarted {
                origin_ns: end_ns,
                planned_end_ns: end_ns,
                clock: known.clock.clone(),
            };
            self.tools.spool.begin(run, started).await;
            let ended = ProbingEnded {
                end_ns,
                reason: "left unfinished by an earlier start".to_owned(),
                due: 0,
                sampled: 0,
                waited: 0,
                overslept: 0,
            };
            self.tools.spool.end(run, ended).await;
        }
        self.tools.spool.flush().await;
        for known in &mut self.known {
            let run = known.plan.run_id;
            known.ended |= runs.iter().any(|over| over.plan.run_id == run);
        }
        self.save_runs().await;
    }

    async fn order(&mut self, order: Order) {
        match order {
            Order::Start(plan) => self.start(*plan).await,
            Order::Refuse(run, why) => self.refuse(run, why).await,
            Order::Stop(run, reason) => {
                if let Some(stopper) = self.running.get(&run) {
                    let reason = if reason.is_empty() {
                        "stopped".to_owned()
                    } else {
                        format!("stopped: {reason}")
                    };
                    stopper.stop(&reason, run::GRACE);
                }
            }
            Order::Unknown(run) => {
                if let Some(stopper) = self.running.get(&run) {
                    tracing::error!(%run, "the aggregator does not know this run; probing for it ends");
                    stopper.stop("unknown to the aggregator", run::GRACE);
                }
            }
        }
    }

    async fn refuse(&self, run: String, why: String) {
        tracing::warn!(run, why, "refused");
        let _ = self.requests.send(Request::Refused(run, why)).await;
    }

    async fn start(&mut self, plan: RunPlan) {
        let run = plan.run_id;
        if self.running.contains_key(&run) {
            return;
        }
        if self.known.iter().any(|known| known.plan.run_id == run) {
            // Sent again to an agent that has probed it to its end.
            tracing::info!(%run, "already done; not started again");
            return;
        }
        if let Err(refusal) = run::admit(&plan, &self.tools.endpoints, self.tools.writes.as_ref()) {
            self.refuse(run.to_string(), refusal.to_string()).await;
            return;
        }
        let lead_ns = run::lead_ns(&plan, &self.tools.endpoints);
        let duration_ns = i64::try_from(plan.duration_ns).unwrap_or(i64::MAX);
        // A Hello meanwhile has to say that this run is being probed.
        self.tools.board.put(run, board_of(&plan));
        let mut known = KnownRun {
            clock: self.tools.clock.key(),
            origin_ns: 0,
            planned_end_ns: 0,
            ended: false,
            plan,
        };
        self.prepare(&known.plan).await;
        // Noted down before the first probe: an agent that is killed and does not
        // know the run any more would count its slots anew, from another origin.
        // Where the disk is slow the origin is put off, so that no slot is missed.
        let mut margin_ns = NOTE_NS;
        self.known.push(known.clone());
        for _ in 0..NOTE_TRIES {
            let begin_ns = self.tools.clock.raw_ns();
            known.origin_ns = begin_ns + margin_ns + lead_ns;
            known.planned_end_ns = known.origin_ns.saturating_add(duration_ns);
            self.known.pop();
            self.known.push(known.clone());
            self.save_runs().await;
            let took_ns = self.tools.clock.raw_ns() - begin_ns;
            if took_ns <= margin_ns {
                break;
            }
            margin_ns = took_ns.saturating_mul(2);
        }
        let ready_ns = self.tools.clock.raw_ns() + lead_ns;
        self.launch(&known, ready_ns.max(known.origin_ns));
    }

    fn launch(&mut self, known: &KnownRun, begin_ns: i64) {
        let run = known.plan.run_id;
        let stopper = Stopper::default();
        self.running.insert(run, stopper.clone());
        self.run_began_ns
            .store(self.tools.clock.raw_ns(), Ordering::Relaxed);
        let times = Times {
            origin_ns: known.origin_ns,
            begin_ns,
            planned_end_ns: known.planned_end_ns,
        };
        let (tools, plan) = (self.tools.clone(), known.plan.clone());
        // At once: a Hello has to say that this run is being probed, so that a
        // stop waits for what comes of it.
        tools.board.put(run, board_of(&plan));
        self.tasks.spawn(async move {
            let ended = run::probe(&tools, &plan, times, &stopper).await;
            tracing::info!(
                %run, reason = ended.reason, due = ended.due, sampled = ended.sampled,
                waited = ended.waited, overslept = ended.overslept, "run ended"
            );
            run
        });
        tracing::info!(%run, scenario = known.plan.scenario, "run started");
    }

    async fn ended(&mut self, run: RunId) {
        self.running.remove(&run);
        for known in &mut self.known {
            known.ended |= known.plan.run_id == run;
        }
        self.save_runs().await;
    }

    async fn leave(&mut self, mut uplink: tokio::task::JoinHandle<()>) {
        for stopper in self.running.values() {
            stopper.leave("shutdown", SHUTDOWN_GRACE);
        }
        while let Some(ended) = self.tasks.join_next().await {
            if let Ok(run) = ended {
                self.ended(run).await;
            }
        }
        self.tools.spool.flush().await;
        let leave = Request::Leave(SHUTDOWN_SEND, "shutdown".to_owned());
        if self.requests.send(leave).await.is_ok() {
            let most = SHUTDOWN_SEND + Duration::from_secs(3);
            if tokio::time::timeout(most, &mut uplink).await.is_err() {
                uplink.abort();
                tracing::warn!("the uplink did not end in time; what is left stays in the spool");
            }
        }
        tracing::info!(given_up = self.tools.graveyard.buried(), "done");
    }

    async fn save_runs(&mut self) {
        let surplus = self.known.len().saturating_sub(RUNS_KEPT);
        self.known.drain(..surplus);
        let (spool, known) = (self.tools.spool.clone(), self.known.clone());
        let saved = tokio::task::spawn_blocking(move || {
            let bytes = serde_json::to_vec(&known).map_err(std::io::Error::other)?;
            spool.disk().replace(RUNS_FILE, &bytes)
        })
        .await;
        match saved {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "{RUNS_FILE} cannot be written"),
            Err(error) => tracing::error!(%error, "{RUNS_FILE} cannot be written"),
        }
    }
}

fn board_of(plan: &RunPlan) -> Arc<RunBoard> {
    let series = plan.groups.iter().map(|g| (g.target.clone(), g.style));
    Arc::new(RunBoard::new(series))
}

fn load_runs(spool: &crate::spool::Spool) -> Vec<KnownRun> {
    let bytes = match spool.disk().small(RUNS_FILE) {
        Ok(bytes) => bytes.unwrap_or_else(|| b"[]".to_vec()),
        Err(error) => {
            tracing::error!(%error, "{RUNS_FILE} cannot be read");
            return Vec::new();
        }
    };
    serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        tracing::error!(%error, "{RUNS_FILE} makes no sense; no run is resumed");
        Vec::new()
    })
}
