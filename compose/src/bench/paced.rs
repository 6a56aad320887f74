//! A whole agent at fixed rates, with its spool, its uplink and a real aggregator,
//! against a server that answers at once: how late probes begin, what they cost,
//! how much memory they take.
//!
//! Each case has processes of its own. Lateness is read from the samples that the
//! aggregator stored: started minus due, of every probe. Processor time is that of
//! the agent's threads between two moments within the run.

use std::sync::Arc;
use std::time::Duration;

use gapscope_aggregator::measure::{quantile_ns, started_late_ns};
use gapscope_aggregator::store::RunFolder;
use gapscope_proto::clock::Clock;
use gapscope_proto::ids::{AgentId, RunId};
use gapscope_proto::plan::{ClientGroup, ClientKind, RunPlan, Timeouts};
use gapscope_proto::sample::Style;
use rand::Rng;
use rand::seq::SliceRandom;

use super::closed::{itself, null_server};
use super::findings::{Goal, Part};
use super::options::Options;
use crate::clock_wait::until;
use crate::error::{Problem, Result};
use crate::folder::LabFolder;
use crate::output;
use crate::overhead::cpu;
use crate::services::{AgentSetup, Services};
use crate::witness::Login;

const MS: u64 = 1_000_000;
/// The guard, so that a thousand clients are connected in a fraction of a second.
const MAX_CONNECTS: u32 = 20_000;
/// From the start of a run to the begin of what is measured.
const SETTLED_NS: i64 = 1_000_000_000;
const DRAIN: Duration = Duration::from_secs(30);

/// So many clients, each so often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    clients: u16,
    interval_ns: u64,
}

/// What is measured, beside an agent that only waits.
pub const CASES: [Case; 6] = [
    Case::new(1, 10 * MS),
    Case::new(10, 10 * MS),
    Case::new(100, 10 * MS),
    Case::new(1, MS),
    Case::new(1, MS / 5),
    Case::new(1_000, 1_000 * MS),
];

impl Case {
    const fn new(clients: u16, interval_ns: u64) -> Self {
        Self {
            clients,
            interval_ns,
        }
    }

    /// For people.
    pub fn name(self) -> String {
        format!("{} x {} Hz", self.clients, 1_000_000_000 / self.interval_ns)
    }

    fn late_goal(self) -> Option<Goal> {
        (self.interval_ns == MS).then_some(Goal::AtMost(200.0))
    }
}

pub(super) fn plan(clients: u16, interval_ns: u64, duration_ns: u64) -> RunPlan {
    RunPlan {
        run_id: RunId::generate(),
        scenario: "bench".to_owned(),
        duration_ns,
        deadline_ns: 250 * MS,
        groups: vec![ClientGroup {
            target: "null".parse().expect("a good name"),
            style: Style::Reused,
            kind: ClientKind::Bare,
            first_client: 0,
            clients,
            interval_ns,
            timeouts: Timeouts {
                resolve_ns: Some(5_000 * MS),
                connect_ns: Some(5_000 * MS),
                query_ns: Some(5_000 * MS),
            },
        }],
        identity: Some("'null'".to_owned()),
        scenario_toml: String::new(),
    }
}

/// A number of KiB in `/proc/PID/status`.
pub(super) fn status_kib(pid: i32, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim_start_matches(':')
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

fn cpu_ns(pid: i32) -> u64 {
    let pid = u32::try_from(pid).unwrap_or(0);
    cpu::time_of(&[pid]).unwrap_or(0)
}

/// An agent and an aggregator against the null server.
pub(super) async fn services(
    folder: &LabFolder,
    login: &Login,
    address: std::net::SocketAddr,
    clock: &dyn Clock,
) -> Result<Services> {
    let data = tempfile::Builder::new()
        .prefix("runs-")
        .tempdir_in(folder.path())
        .map_err(|error| Problem::new(format!("cannot make a folder: {error}")))?
        .keep();
    let targets = [("null".to_owned(), address.into())];
    let setup = AgentSetup {
        agent_id: "bench",
        targets: &targets,
        login,
        max_connects_per_second: MAX_CONNECTS,
        writes: None,
    };
    Services::start(folder, &data, None, &setup, clock).await
}

pub(super) fn agent_id() -> AgentId {
    "bench".parse().expect("a good name")
}

/// All rounds of all cases.
///
/// # Errors
/// When something cannot be started, or a run does not end as planned.
pub async fn measure(
    options: &Options,
    clock: &Arc<dyn Clock>,
    driver_cpu_us: Option<f64>,
    rng: &mut impl Rng,
) -> Result<Part> {
    let login = Login {
        user: "gapscope".to_owned(),
        password: format!("{:032x}", rand::random::<u128>()),
    };
    let null = null_server(&login)?;
    let mut part = Part::new("A whole agent at fixed rates, null server");
    for round in 1..=options.rounds {
        let mut cases: Vec<Option<Case>> = CASES.into_iter().map(Some).collect();
        cases.push(None);
        cases.shuffle(rng);
        for case in cases {
            let folder = LabFolder::make(&itself()?)?;
            let name = case.map_or("idle".to_owned(), Case::name);
            output::say(&format!("round {round} of {}: {name}", options.rounds));
            let services = services(&folder, &login, null.addr(), clock.as_ref()).await?;
            let measured = match case {
                Some(case) => {
                    one(
                        case,
                        services,
                        options.each,
                        clock,
                        driver_cpu_us,
                        &mut part,
                    )
                    .await
                }
                None => idle(services, options.each, clock, &mut part).await,
            };
            measured?;
        }
        let late = sleeper(options.each, clock).await?;
        let us = |share| quantile_ns(&late, share).unwrap_or(0) as f64 / 1e3;
        part.add("host: a thread that only sleeps, p50", "us", us(0.5));
        part.add("host: a thread that only sleeps, p99", "us", us(0.99));
    }
    // In the order of the cases, not of the first round.
    let place = |name: &str| {
        let at = CASES
            .iter()
            .position(|case| name.starts_with(&format!("{},", case.name())));
        at.unwrap_or(CASES.len())
    };
    part.findings.sort_by_key(|finding| place(&finding.name));
    Ok(part)
}

async fn idle(
    services: Services,
    each: u64,
    clock: &Arc<dyn Clock>,
    part: &mut Part,
) -> Result<()> {
    let pid = services.agent().pid();
    let (at, before) = (clock.raw_ns(), cpu_ns(pid));
    tokio::time::sleep(Duration::from_nanos(each)).await;
    let share = cpu_ns(pid).saturating_sub(before) as f64 / (clock.raw_ns() - at) as f64;
    part.add("idle agent, share of a core", "%", share * 100.0);
    services.end().await;
    Ok(())
}

async fn one(
    case: Case,
    mut services: Services,
    each: u64,
    clock: &Arc<dyn Clock>,
    driver_cpu_us: Option<f64>,
    part: &mut Part,
) -> Result<()> {
    let name = case.name();
    let settled = u64::try_from(SETTLED_NS).unwrap_or(0);
    let plan = plan(case.clients, case.interval_ns, each.saturating_add(settled));
    let started = services.control.start(&plan, &[], [].into()).await?;
    let begun_ns = clock.raw_ns();
    let pid = services.agent().pid();
    until(clock.as_ref(), begun_ns + SETTLED_NS).await;
    let (at, before) = (clock.raw_ns(), cpu_ns(pid));
    let measured = i64::try_from(each.saturating_sub(200 * MS)).unwrap_or(i64::MAX);
    until(clock.as_ref(), at.saturating_add(measured)).await;
    let share = cpu_ns(pid).saturating_sub(before) as f64 / (clock.raw_ns() - at) as f64;
    let memory = status_kib(pid, "VmHWM");
    // Past its planned end.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let stopped = services
        .control
        .stop(&started.run_id, "done", DRAIN)
        .await?;
    services.end().await;
    if !stopped.drained {
        return Err(Problem::new(format!(
            "{name}: the run did not end as planned: {}",
            stopped.missing.join("; ")
        )));
    }
    let failed = |error: &dyn std::fmt::Display| Problem::new(format!("{name}: {error}"));
    let folder = RunFolder::open(std::path::Path::new(&started.folder)).map_err(|e| failed(&e))?;
    let late = started_late_ns(&folder, &agent_id()).map_err(|e| failed(&e))?;
    let us = |share| quantile_ns(&late, share).unwrap_or(0) as f64 / 1e3;
    part.add(&format!("{name}, started late p50"), "us", us(0.5));
    part.add_aimed(
        &format!("{name}, started late p99"),
        "us",
        case.late_goal(),
        us(0.99),
    );
    let ended = folder
        .manifest()
        .agents
        .iter()
        .flat_map(|agent| &agent.incarnations)
        .find_map(|incarnation| incarnation.ended.clone())
        .ok_or_else(|| failed(&"the agent did not say how its probing ended"))?;
    let not_probed = (ended.waited + ended.overslept) as f64 / ended.due.max(1) as f64;
    part.add(
        &format!("{name}, slots not probed"),
        "%",
        not_probed * 100.0,
    );
    part.add(&format!("{name}, share of a core"), "%", share * 100.0);
    let per_second = f64::from(case.clients) * 1e9 / case.interval_ns as f64 * (1.0 - not_probed);
    let cpu_us = share * 1e6 / per_second;
    part.add(&format!("{name}, CPU a probe"), "us", cpu_us);
    if (case.clients, case.interval_ns) == (100, 10 * MS)
        && let Some(driver_us) = driver_cpu_us
    {
        let beyond = share * 100.0 - driver_us * per_second / 1e4;
        part.add_aimed(
            &format!("{name}, core beyond the driver"),
            "%",
            Some(Goal::AtMost(25.0)),
            beyond,
        );
    }
    if case.clients >= 100
        && let Some(kib) = memory
    {
        part.add(&format!("{name}, most memory"), "MiB", kib as f64 / 1024.0);
    }
    Ok(())
}

/// By how many ns a thread wakes late that does nothing but sleep to a due time, a
/// thousand times a second: the host's own part.
async fn sleeper(each: u64, clock: &Arc<dyn Clock>) -> Result<Vec<i64>> {
    let clock = Arc::clone(clock);
    tokio::task::spawn_blocking(move || {
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
        let begun = clock.raw_ns();
        let count = each / MS;
        let mut late: Vec<i64> = (1..=count)
            .map(|k| {
                let due = begun.saturating_add(i64::try_from(k * MS).unwrap_or(i64::MAX));
                loop {
                    let left = due.saturating_sub(clock.raw_ns());
                    match u64::try_from(left) {
                        Ok(left) if left > 0 => {
                            std::thread::park_timeout(Duration::from_nanos(left));
                        }
                        _ => return -left,
                    }
                }
            })
            .collect();
        late.sort_unstable();
        late
    })
    .await
    .map_err(|error| Problem::new(error.to_string()))
}
