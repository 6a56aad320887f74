//! One run: its clients, from the first slot to the books at the end.
//!
//! Each client is a task of its own on a probing thread ([`crate::wake`]), so that a
//! stuck one delays no other. Held
//! connections are made ahead of the origin, one after the other, so that the
//! first slots do not all connect at once. At the end, probes still waiting are
//! given up after a grace, as `timed_out`, `run_ended`: a hang that outlasts the
//! run is censored data, not lost data.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::host::{HostRecord, ProbingEnded, ProbingStarted};
use gapscope_proto::ids::{AgentId, RunId, TargetName};
use gapscope_proto::plan::{ClientGroup, ClientKind, RunPlan};
use gapscope_proto::sample::Style;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::board::{Board, RunBoard};
use crate::config::Writes;
use crate::host::HostNotes;
use crate::inspection::watch::{Looks, watch};
use crate::probe::canary;
use crate::probe::identity::{IdentityCell, check_expression};
use crate::probe::leash::Graveyard;
use crate::probe::ledger::{self, Ledger};
use crate::probe::mysql::{Client, ClientSpec, Endpoint};
use crate::schedule::{Counts, Schedule, Wake};
use crate::spool::Spool;
use crate::wake::{ProbeThread, Waker};

/// How long a probe may still wait once the run has ended.
pub const GRACE: Duration = Duration::from_secs(2);
/// After a run's begin its targets are looked at for the first time.
const FIRST_LOOK_NS: i64 = 500_000_000;
const LEAD_NS: i64 = 50_000_000;
const MOST_LEAD_NS: i64 = 30_000_000_000;

/// What all runs of an agent share.
#[derive(Clone)]
pub struct Tools {
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// What waits for slots, and where clients probe.
    pub waker: Arc<Waker>,
    /// What closes given-up connections.
    pub graveyard: Graveyard,
    /// Where samples go.
    pub spool: Spool,
    /// What displays look at.
    pub board: Board,
    /// Lag and anchors.
    pub notes: HostNotes,
    /// What can be probed.
    pub endpoints: Arc<BTreeMap<TargetName, Arc<Endpoint>>>,
    /// Who this agent is.
    pub agent_id: AgentId,
    /// Where writing is allowed; none: nowhere.
    pub writes: Option<Writes>,
}

/// Why a plan is not carried out here; speaks to a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// Whether this agent can do what the plan asks.
pub fn admit(
    plan: &RunPlan,
    endpoints: &BTreeMap<TargetName, Arc<Endpoint>>,
    writes: Option<&Writes>,
) -> Result<(), Refusal> {
    plan.validate()
        .map_err(|error| Refusal(error.to_string()))?;
    if let Some(identity) = &plan.identity {
        check_expression(identity).map_err(Refusal)?;
    }
    for group in &plan.groups {
        if !endpoints.contains_key(&group.target) {
            let known: Vec<_> = endpoints.keys().map(TargetName::as_str).collect();
            return Err(Refusal(format!(
                "target `{}` is not configured on this agent; it has: {}",
                group.target,
                if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.join(", ")
                }
            )));
        }
        if let Some(writing) = writing(group)
            && writes.is_none()
        {
            return Err(Refusal(format!(
                "{writing} of target `{}` writes to the server, and this agent's owner has not \
                 allowed that: start it with --allow-writes SCHEMA, or put [writes] into its \
                 configuration",
                group.target
            )));
        }
        if let ClientKind::Canary(canary) = group.kind
            && let Some(why) = canary::impossible(canary)
        {
            return Err(Refusal(format!(
                "canary `{canary}` of target `{}` cannot be checked by this build: {why}",
                group.target
            )));
        }
    }
    for (name, endpoint) in endpoints {
        let new = |group: &&ClientGroup| group.target == *name && !group.style.is_held();
        let planned: f64 = plan
            .groups
            .iter()
            .filter(new)
            .map(|group| f64::from(group.clients) * 1e9 / group.interval_ns as f64)
            .sum();
        let allowed = endpoint.target.max_connects_per_second;
        if planned > f64::from(allowed) {
            return Err(Refusal(format!(
                "the plan makes {planned:.0} new connections a second to target `{name}`; \
                 its max_connects_per_second allows {allowed}"
            )));
        }
    }
    Ok(())
}

/// What of a group writes to the server, if anything does.
fn writing(group: &ClientGroup) -> Option<String> {
    match (group.style, group.kind) {
        (Style::Transaction, _) => Some("style `transaction`".to_owned()),
        (_, ClientKind::Canary(kind)) if canary::writes(kind) => Some(format!("canary `{kind}`")),
        _ => None,
    }
}

/// How long before the origin the held connections have to be begun.
pub fn lead_ns(plan: &RunPlan, endpoints: &BTreeMap<TargetName, Arc<Endpoint>>) -> i64 {
    let mut held: BTreeMap<&TargetName, i64> = BTreeMap::new();
    for group in plan.groups.iter().filter(|group| group.style.is_held()) {
        *held.entry(&group.target).or_default() += i64::from(group.clients);
    }
    let longest = held
        .iter()
        .filter_map(|(target, clients)| Some(clients * spacing_ns(endpoints.get(target)?)))
        .max()
        .unwrap_or(0);
    (LEAD_NS + longest).min(MOST_LEAD_NS)
}

/// Samples that a plan's first four seconds bring: numbers for so many are reserved
/// before they begin, as the spool does it later.
pub fn first_samples(plan: &RunPlan) -> u64 {
    let in_four_s = |group: &ClientGroup| {
        u64::from(group.clients).saturating_mul(4_000_000_000 / group.interval_ns.max(1))
    };
    plan.groups
        .iter()
        .map(in_four_s)
        .fold(0, u64::saturating_add)
}

/// Between two connections made ahead: half of what the guard allows.
fn spacing_ns(endpoint: &Endpoint) -> i64 {
    2_000_000_000 / i64::from(endpoint.target.max_connects_per_second.max(1))
}

/// Ends a run early.
#[derive(Debug, Clone, Default)]
pub struct Stopper {
    token: CancellationToken,
    /// The agent itself ends: what is done after the probing is cut short too.
    leaving: CancellationToken,
    why: Arc<Mutex<Option<(String, Duration)>>>,
}

impl Stopper {
    /// Stops; waiting probes are given up after `grace`.
    pub fn stop(&self, reason: &str, grace: Duration) {
        self.why
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(|| (reason.to_owned(), grace));
        self.token.cancel();
    }

    /// As [`Self::stop`], and nothing is done after the probing: the agent ends.
    pub fn leave(&self, reason: &str, grace: Duration) {
        self.stop(reason, grace);
        self.leaving.cancel();
    }

    fn why(&self) -> Option<(String, Duration)> {
        self.why
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// When an incarnation probes for a run.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Slots count from here.
    pub origin_ns: i64,
    /// This incarnation answers for slots due from here on.
    pub begin_ns: i64,
    /// It stops here by itself.
    pub planned_end_ns: i64,
}

/// Probes until the planned end or until stopped; returns the books.
pub async fn probe(tools: &Tools, plan: &RunPlan, times: Times, stopper: &Stopper) -> ProbingEnded {
    let run = plan.run_id;
    let board = Arc::new(RunBoard::new(
        plan.groups.iter().map(|g| (g.target.clone(), g.style)),
    ));
    tools
        .spool
        .begin(
            run,
            ProbingStarted {
                origin_ns: times.origin_ns,
                planned_end_ns: times.planned_end_ns,
                clock: tools.clock.key(),
            },
        )
        .await;
    let _notes = tools.notes.want();
    tools.board.put(run, board.clone());
    let give_up = CancellationToken::new();
    let ledger = tools.writes.as_ref().map(|writes| {
        let incarnation = tools.spool.incarnation();
        Arc::new(Ledger::new(writes, run, &tools.agent_id, incarnation))
    });
    let sources = ledger_sources(tools, plan);
    let preparing = prepare_ledger(tools, ledger.as_ref(), &sources);
    let identities = identities(tools, plan);
    let end_looking = stopper.token.child_token();
    let (looks, mut looking) = start_looking(tools, plan, times, &end_looking, &identities);
    let shared = Shared {
        identities,
        looks,
        ledger: ledger.clone(),
        board,
        stop: stopper.token.clone(),
        give_up: give_up.clone(),
    };
    let mut tasks = start_clients(tools, plan, times, &shared);

    let mut books = Vec::new();
    let mut collect = |joined: Result<Schedule, tokio::task::JoinError>| match joined {
        Ok(schedule) => books.push(schedule),
        Err(error) => tracing::error!(%error, "a client ended without its books"),
    };
    let ended_early = tokio::select! {
        () = stopper.token.cancelled() => true,
        () = tools.waker.until(times.planned_end_ns) => false,
    };
    end_looking.cancel();
    let (mut end_ns, mut reason, grace) = match (ended_early, stopper.why()) {
        (true, Some((reason, grace))) => (tools.clock.raw_ns(), reason, grace),
        _ => (times.planned_end_ns, "planned end".to_owned(), GRACE),
    };
    let give_up_later = async {
        tokio::time::sleep(grace).await;
        give_up.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = give_up_later => {}
        () = async { while let Some(joined) = tasks.join_next().await { collect(joined) } } => {}
    }
    end_ns = end_ns.min(times.planned_end_ns);
    // A client may have begun a slot in the instant in which the end was read.
    for due_ns in books.iter().filter_map(Schedule::last_probed_due_ns) {
        end_ns = end_ns.max(due_ns + 1);
    }
    let mut counts = Counts::default();
    for schedule in &mut books {
        counts += schedule.finish(end_ns);
    }
    let skipped: u64 = books.iter().map(Schedule::skipped).sum();
    if skipped > 0 {
        let _ = write!(
            reason,
            "; the spool was full: {skipped} slots were not probed"
        );
    }
    let ended = ProbingEnded {
        end_ns,
        reason,
        due: counts.due,
        sampled: counts.sampled,
        waited: counts.waited,
        overslept: counts.overslept,
    };
    preparing.abort();
    // They end with the probing; their records come before the run's last.
    while looking.join_next().await.is_some() {}
    if let Some(ledger) = ledger.filter(|_| !sources.is_empty()) {
        let read = ledger::read(&ledger, &sources, &tools.graveyard, &stopper.leaving);
        for entry in read.await {
            tools.spool.host(run, HostRecord::Ledger(entry)).await;
        }
    }
    tools.notes.flush().await;
    tools.spool.end(run, ended.clone()).await;
    tools.board.take_off(run);
    ended
}

/// Where the ledger of a plan is read; empty: the plan writes none.
fn ledger_sources(tools: &Tools, plan: &RunPlan) -> Vec<Arc<Endpoint>> {
    let Some(writes) = &tools.writes else {
        return Vec::new();
    };
    let mut written: Vec<&TargetName> = plan
        .groups
        .iter()
        .filter(|group| group.style == Style::Transaction)
        .map(|group| &group.target)
        .collect();
    if !written.is_empty() && !writes.ledger_from.is_empty() {
        written = writes.ledger_from.iter().collect();
    }
    written.sort_unstable();
    written.dedup();
    written
        .into_iter()
        .filter_map(|name| tools.endpoints.get(name).cloned())
        .collect()
}

fn prepare_ledger(
    tools: &Tools,
    ledger: Option<&Arc<Ledger>>,
    sources: &[Arc<Endpoint>],
) -> tokio::task::JoinHandle<()> {
    let (ledger, sources) = (ledger.cloned(), sources.to_vec());
    let graveyard = tools.graveyard.clone();
    tokio::spawn(async move {
        if let Some(ledger) = ledger {
            ledger::prepare(&ledger, &sources, &graveyard).await;
        }
    })
}

/// What the clients of a run share.
struct Shared {
    identities: BTreeMap<TargetName, Arc<IdentityCell>>,
    looks: BTreeMap<TargetName, Arc<Looks>>,
    ledger: Option<Arc<Ledger>>,
    board: Arc<RunBoard>,
    stop: CancellationToken,
    give_up: CancellationToken,
}

/// How each target of a plan says who answers.
fn identities(tools: &Tools, plan: &RunPlan) -> BTreeMap<TargetName, Arc<IdentityCell>> {
    let mut found = BTreeMap::new();
    for group in &plan.groups {
        let Some(endpoint) = tools.endpoints.get(&group.target) else {
            continue;
        };
        found
            .entry(group.target.clone())
            .or_insert_with(|| match &plan.identity {
                Some(given) if endpoint.target.identity.is_none() => {
                    Arc::new(IdentityCell::given(given))
                }
                _ => endpoint.identity.clone(),
            });
    }
    found
}

/// Looks at each target beside its probes, where its owner has nothing against it.
fn start_looking(
    tools: &Tools,
    plan: &RunPlan,
    times: Times,
    stop: &CancellationToken,
    identities: &BTreeMap<TargetName, Arc<IdentityCell>>,
) -> (BTreeMap<TargetName, Arc<Looks>>, JoinSet<()>) {
    let (mut all, mut tasks) = (BTreeMap::new(), JoinSet::new());
    for (name, identity) in identities {
        let Some(endpoint) = tools.endpoints.get(name) else {
            continue;
        };
        if !endpoint.target.reach.inspect {
            continue;
        }
        // Not among the connections that are made ahead.
        let looks = Arc::new(Looks::new(times.begin_ns.saturating_add(FIRST_LOOK_NS)));
        all.insert(name.clone(), looks.clone());
        let (tools, endpoint, identity) = (tools.clone(), endpoint.clone(), identity.clone());
        tasks.spawn(watch(
            tools,
            plan.run_id,
            endpoint,
            identity,
            looks,
            stop.clone(),
        ));
    }
    (all, tasks)
}

fn start_clients(
    tools: &Tools,
    plan: &RunPlan,
    times: Times,
    shared: &Shared,
) -> JoinSet<Schedule> {
    let mut ahead: BTreeMap<&TargetName, i64> = BTreeMap::new();
    let now_ns = tools.clock.raw_ns();
    let mut tasks = JoinSet::new();
    let mut placed = 0;
    for group in &plan.groups {
        let (Some(endpoint), Some(identity)) = (
            tools.endpoints.get(&group.target),
            shared.identities.get(&group.target),
        ) else {
            continue;
        };
        for (index, number) in (0..group.clients).zip(group.client_numbers()) {
            let ahead = ahead.entry(&group.target).or_insert(now_ns);
            let connect_at_ns = *ahead;
            if group.style.is_held() {
                *ahead += spacing_ns(endpoint);
            }
            let spec = ClientSpec {
                endpoint: endpoint.clone(),
                identity: identity.clone(),
                style: group.style,
                number,
                canary: match group.kind {
                    ClientKind::Canary(canary) => Some(canary),
                    _ => None,
                },
                pool: group.kind == ClientKind::Pool,
                ledger: shared.ledger.clone(),
                canary_value: format!(
                    "{run}-{incarnation}-{target}-{number}",
                    run = plan.run_id,
                    incarnation = tools.spool.incarnation(),
                    target = group.target,
                ),
                timeouts: group.timeouts,
            };
            let thread = tools.waker.thread(group.style, placed).clone();
            placed += 1;
            let runtime = thread.runtime().clone();
            let task = ClientTask {
                run: plan.run_id,
                thread,
                client: Client::new(spec, tools.clock.clone(), tools.graveyard.clone()),
                schedule: Schedule::new(
                    group,
                    index,
                    times.origin_ns,
                    times.begin_ns,
                    plan.deadline_ns,
                ),
                end_ns: times.planned_end_ns,
                connect_at_ns,
                stop: shared.stop.clone(),
                give_up: shared.give_up.clone(),
                tools: tools.clone(),
                board: shared.board.clone(),
                looks: shared.looks.get(&group.target).cloned(),
            };
            tasks.spawn_on(task.run(), &runtime);
        }
    }
    tasks
}

struct ClientTask {
    run: RunId,
    thread: Arc<ProbeThread>,
    client: Client,
    schedule: Schedule,
    end_ns: i64,
    connect_at_ns: i64,
    stop: CancellationToken,
    give_up: CancellationToken,
    tools: Tools,
    board: Arc<RunBoard>,
    looks: Option<Arc<Looks>>,
}

impl ClientTask {
    async fn run(mut self) -> Schedule {
        self.warm_up().await;
        loop {
            let now_ns = self.tools.clock.raw_ns();
            let Some(slot) = self.schedule.next(now_ns, self.end_ns) else {
                break;
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                () = self.thread.until(slot.due_ns) => {}
            }
            let wake = if self.tools.spool.holds_probing() {
                self.schedule.skip()
            } else {
                self.schedule.wake(self.tools.clock.raw_ns())
            };
            match wake {
                Wake::Overslept => {}
                Wake::Probe(slot) => {
                    let sample = self.client.probe(slot, &self.give_up).await;
                    self.schedule.free(self.tools.clock.raw_ns());
                    self.board.note(&sample);
                    if let Some(looks) = &self.looks {
                        looks.note(&sample);
                    }
                    self.tools.spool.sample(self.run, sample).await;
                }
            }
        }
        self.client.close().await;
        self.schedule
    }

    /// Connects ahead, but never into the first slot.
    async fn warm_up(&mut self) {
        let Some(first) = self.schedule.clone().next(i64::MIN, self.end_ns) else {
            return;
        };
        if self.connect_at_ns >= first.due_ns {
            return;
        }
        tokio::select! {
            () = self.stop.cancelled() => return,
            () = self.thread.until(self.connect_at_ns) => {}
        }
        let limit = self.give_up.child_token();
        let warm_up = self.client.warm_up(&limit);
        tokio::pin!(warm_up);
        tokio::select! {
            () = &mut warm_up => {}
            () = self.thread.until(first.due_ns.saturating_sub(2_000_000)) => {
                limit.cancel();
                warm_up.await;
            }
        }
    }
}
