//! One reused connection, one statement after the other: the agent's probe beside
//! its driver alone and beside other programs, against a server that answers at
//! once and against MariaDB.

use std::sync::Arc;

use gapscope_proto::clock::Clock;
use rand::Rng;
use rand::seq::SliceRandom;

use super::findings::{Goal, Part};
use super::loops::{Asked, Looped, agent, driver};
use super::options::Options;
use super::rivals::{Found, Rival, look_for};
use crate::children::Itself;
use crate::embedded::{Credentials, NullAnswer, NullServer};
use crate::error::{Problem, Result};
use crate::folder::LabFolder;
use crate::lab::{Lab, Make};
use crate::output;
use crate::scenario::{BackendKind, Overrides, RuntimeKind, Scenario};
use crate::witness::Login;

const AGENT: &str = "agent";
const DRIVER: &str = "driver alone";

/// The null server, as the agent's probe wants to be answered.
pub(super) fn null_server(login: &Login) -> Result<NullServer> {
    let answer = NullAnswer {
        columns: vec![b"id".to_vec(), b"version".to_vec(), b"backend".to_vec()],
        rows: vec![vec![
            Some(b"7".to_vec()),
            Some(b"11.4.99-gapscope-null".to_vec()),
            Some(b"null".to_vec()),
        ]],
    };
    let credentials = Credentials::new(&login.user, login.password.clone());
    NullServer::start(&answer, credentials)
        .map_err(|error| Problem::new(format!("cannot start the null server: {error}")))
}

/// A MariaDB of the benchmark's own.
async fn mariadb(options: &Options, clock: &Arc<dyn Clock>) -> Result<Lab> {
    let text = "name = \"bench\"\ndescription = \"closed loops\"\nduration = \"10s\"\n\
                direct = true\n[[backend]]\nname = \"direct\"\n";
    let scenario = Scenario::parse_with("bench", text, &Overrides::default())
        .map_err(|errors| Problem::usage(format!("no such lab can be made\n{errors}")))?;
    let make = Make {
        scenario: &scenario,
        runtime: RuntimeKind::Process,
        hurt_others: false,
        backend: BackendKind::Mariadb,
        itself: itself()?,
        named: options.program.iter().cloned().collect(),
        clock: Arc::clone(clock),
    };
    Lab::up(make, output::say).await
}

pub(super) fn itself() -> Result<Itself> {
    Itself::find()
        .map_err(|error| Problem::new(format!("cannot find this program's own file: {error}")))
}

/// Who takes part: the agent, its driver, or another program.
#[derive(Clone)]
enum Runner {
    Agent,
    Driver,
    Other(Found),
}

impl Runner {
    fn name(&self) -> &'static str {
        match self {
            Self::Agent => AGENT,
            Self::Driver => DRIVER,
            Self::Other(found) => found.rival.name(),
        }
    }
}

/// All rounds against all servers.
///
/// # Errors
/// When a server cannot be brought up, or the agent's own loop fails. A program of
/// others that fails is a note.
pub async fn measure(
    options: &Options,
    clock: &Arc<dyn Clock>,
    rng: &mut impl Rng,
) -> Result<Vec<Part>> {
    let folder = LabFolder::make(&itself()?)?;
    let login = Login {
        user: "gapscope".to_owned(),
        password: format!("{:032x}", rand::random::<u128>()),
    };
    let null = null_server(&login)?;
    let mut missing = Vec::new();
    let mut runners = vec![Runner::Agent, Runner::Driver];
    for rival in Rival::ALL {
        match look_for(rival, options) {
            Ok(found) => runners.push(Runner::Other(found)),
            Err(why) => missing.push(why),
        }
    }
    let mut servers = vec![(
        Part::new("Closed loop, one reused connection, null server"),
        Asked {
            address: null.addr(),
            login,
            identity: "'null'",
        },
    )];
    let lab = if options.no_mariadb {
        missing.push("MariaDB was left out by --no-mariadb".to_owned());
        None
    } else {
        match mariadb(options, clock).await {
            Ok(lab) => Some(lab),
            Err(problem) => {
                missing.push(format!("MariaDB: {}", problem.what));
                None
            }
        }
    };
    if let Some(lab) = &lab
        && let Some(backend) = lab.backends.first()
    {
        servers.push((
            Part::new(format!(
                "Closed loop, one reused connection, {}",
                backend.program()
            )),
            Asked {
                address: backend.address(),
                login: lab.login.clone(),
                identity: "@@hostname",
            },
        ));
    }
    for (part, _) in &mut servers {
        for runner in &runners {
            if let Runner::Other(found) = runner {
                part.note(format!("{}: {}", found.rival.name(), found.version));
            }
        }
        missing.iter().for_each(|why| part.note(why.clone()));
    }
    let result = rounds(options, clock, rng, &runners, &mut servers, folder.path()).await;
    if let Some(lab) = lab {
        lab.down().await;
    }
    result?;
    Ok(servers.into_iter().map(|(part, _)| part).collect())
}

async fn rounds(
    options: &Options,
    clock: &Arc<dyn Clock>,
    rng: &mut impl Rng,
    runners: &[Runner],
    servers: &mut [(Part, Asked)],
    folder: &std::path::Path,
) -> Result<()> {
    let mut failed: Vec<(usize, &'static str)> = Vec::new();
    for round in 1..=options.rounds {
        for (at, (part, asked)) in servers.iter_mut().enumerate() {
            output::say(&format!(
                "round {round} of {}: {}",
                options.rounds, part.title
            ));
            let mut order: Vec<&Runner> = runners.iter().collect();
            order.shuffle(rng);
            let mut found: Vec<(&'static str, Looped)> = Vec::new();
            for runner in order {
                if failed.contains(&(at, runner.name())) {
                    continue;
                }
                match one(runner, asked, options.statements, clock, folder).await {
                    Ok(looped) => found.push((runner.name(), looped)),
                    Err(why) if matches!(runner, Runner::Agent | Runner::Driver) => {
                        return Err(Problem::new(format!("{}: {why}", part.title)));
                    }
                    Err(why) => {
                        failed.push((at, runner.name()));
                        part.note(format!("not compared here: {why}"));
                    }
                }
            }
            add_round(part, runners, &found);
        }
    }
    Ok(())
}

async fn one(
    runner: &Runner,
    asked: &Asked,
    count: u64,
    clock: &Arc<dyn Clock>,
    folder: &std::path::Path,
) -> std::result::Result<Looped, String> {
    match runner {
        Runner::Agent => agent(asked, count, clock).await,
        Runner::Driver => driver(asked, count, clock).await,
        Runner::Other(found) => {
            let (found, asked, folder) = (found.clone(), asked.clone(), folder.to_owned());
            tokio::task::spawn_blocking(move || found.measure(&asked, count, &folder))
                .await
                .map_err(|error| error.to_string())?
        }
    }
}

/// What the agent is to be, beside whom.
fn goals(rival: &str) -> (Option<Goal>, Option<Goal>) {
    match rival {
        "mariadb-slap" => (Some(Goal::AtMost(1.05)), None),
        "sysbench" => (None, Some(Goal::AtMost(2.0))),
        "pymysql" => (None, Some(Goal::AtMost(0.2))),
        _ => (None, None),
    }
}

fn add_round(part: &mut Part, runners: &[Runner], found: &[(&'static str, Looped)]) {
    let of = |name: &str| found.iter().find(|(who, _)| *who == name).map(|(_, l)| *l);
    for runner in runners {
        let name = runner.name();
        if let Some(looped) = of(name) {
            part.add(&format!("{name}, mean latency"), "us", looped.mean_us);
            part.add(&format!("{name}, CPU a probe"), "us", looped.cpu_us);
        }
    }
    let Some(mine) = of(AGENT) else { return };
    for runner in &runners[1..] {
        let name = runner.name();
        let Some(theirs) = of(name) else { continue };
        let (latency, cpu) = goals(name);
        let ratio = mine.mean_us / theirs.mean_us;
        part.add_aimed(&format!("agent / {name}, latency"), "x", latency, ratio);
        if theirs.cpu_us > 0.0 {
            let ratio = mine.cpu_us / theirs.cpu_us;
            part.add_aimed(&format!("agent / {name}, CPU"), "x", cpu, ratio);
        }
    }
}
