//! `overhead`: measures what proxies cost, on a lab of its own or on targets that
//! are there, and prints the study's table.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use gapscope_aggregator::commands::overhead as printed;
use gapscope_aggregator::commands::report::Format as Print;
use gapscope_aggregator::overhead::analyse::rounds_needed;
use gapscope_aggregator::overhead::record::{FORMAT_VERSION, KIND, Load, Manifest, Role, Target};
use gapscope_aggregator::overhead::store::Writer;
use gapscope_aggregator::stats::signflip::least_p;
use gapscope_aggregator::store::manifest::RunState;
use gapscope_aggregator::utc::rfc3339;
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::host::HostFacts;
use gapscope_proto::ids::RunId;
use gapscope_proto::small_file;
use mysql_async::{Opts, OptsBuilder, Row};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio_util::sync::CancellationToken;

use super::run::{data_folder, interrupted};
use crate::children::Itself;
use crate::cli::{Format, word};
use crate::duration;
use crate::embedded::{Credentials, NullAnswer, NullServer};
use crate::error::{Problem, Result, exit};
use crate::lab::{Lab, Make};
use crate::output;
use crate::overhead::bench::{End, Measured, Plan, carry_on};
use crate::overhead::digest::{Digest, bytes_of};
use crate::overhead::load::{Way, reference};
use crate::overhead::setup::MadeTable;
use crate::overhead::target::{Given, parse, password_variable};
use crate::overhead::{cpu, statement};
use crate::runtime::process::find::parse_named;
use crate::runtime::{default_backend, default_proxies};
use crate::scenario::{BackendKind, Overrides, ProxyKind, RuntimeKind, Scenario};
use crate::signals::Signals;

/// Rounds below which nothing is claimed, whatever the number of comparisons.
const LEAST_ROUNDS: u32 = 12;
/// Clients that a benchmark may have at once.
const MOST_CLIENTS: u32 = 1_000;
/// Statements over all blocks: beyond, somebody mistyped.
const MOST_STATEMENTS: u64 = 2_000_000_000;
/// The lab's database.
const DATABASE: &str = "gapscope_overhead";

/// How statements are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// As text
    Text,
    /// Prepared once a connection, then executed
    Prepared,
}

/// Options of `overhead`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// What the lab is made of: our own server and proxies, or real programs
    #[arg(long, value_parser = word(RuntimeKind::WORDS, RuntimeKind::from_word))]
    pub runtime: Option<RuntimeKind>,
    /// What serves
    #[arg(long, value_parser = word(BackendKind::WORDS, BackendKind::from_word))]
    pub backend: Option<BackendKind>,
    /// A proxy of the lab (may be given more than once)
    #[arg(long, value_name = "NAME", value_parser = word(ProxyKind::WORDS, ProxyKind::from_word))]
    pub proxy: Vec<ProxyKind>,
    /// Where a program is: haproxy, mariadbd, mariadb-install-db
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_named)]
    pub program: Vec<(String, PathBuf)>,
    /// A target that is there already, instead of a lab (at least two; the first
    /// is the server alone). Its password comes from GAPSCOPE_PASSWORD_NAME or
    /// GAPSCOPE_PASSWORD
    #[arg(long, value_name = "NAME=USER@HOST:PORT/DB", value_parser = parse,
          conflicts_with_all = ["runtime", "backend", "proxy", "program"])]
    pub target: Vec<Given>,
    /// Which target the others are compared with
    #[arg(long, value_name = "NAME", requires = "target")]
    pub direct: Option<String>,
    /// Make the study's three-row table at the direct target, and remove it at
    /// the end; otherwise nothing is ever written to targets that are there
    #[arg(long, requires = "target")]
    pub create_table: bool,
    /// A file with the statement to send (SELECT, SHOW or VALUES)
    #[arg(long, value_name = "FILE", conflicts_with = "create_table")]
    pub statement: Option<PathBuf>,
    /// How statements are sent
    #[arg(long, value_enum, default_value = "text")]
    pub protocol: Protocol,
    /// Connect for each statement
    #[arg(long)]
    pub connect_each: bool,
    /// Statements of a block, shared by its clients
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub statements: u64,
    /// Numbers of clients
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 10, 20, 40],
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_CLIENTS)))]
    pub clients: Vec<u32>,
    /// Rounds; each has one block for each target and number of clients
    #[arg(long, value_name = "N", default_value_t = LEAST_ROUNDS,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: u32,
    /// Only look: fewer rounds than a claim needs, and no claims
    #[arg(long)]
    pub no_claims: bool,
    /// Open loop: so many statements a second over all clients, whatever becomes
    /// of them; response times are what is compared
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    pub rate: Option<f64>,
    /// What the rows are called, such as the version that is measured
    #[arg(long, value_name = "TEXT", default_value = "now")]
    pub label: String,
    /// No further round begins after this long
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = duration::parse)]
    pub at_most: u64,
    /// Where run folders go
    #[arg(long, value_name = "DIR", default_value = "./runs")]
    pub data: PathBuf,
    /// For the order of the blocks; a seed that was printed gives the same again
    #[arg(long)]
    pub seed: Option<u64>,
    /// How to print the result
    #[arg(long, default_value = "text")]
    pub format: Format,
}

fn rate(text: &str) -> std::result::Result<f64, String> {
    text.parse()
        .ok()
        .filter(|rate: &f64| rate.is_finite() && (0.1..=1e6).contains(rate))
        .ok_or_else(|| format!("`{text}` is not between 0.1 and 1000000 statements a second"))
}

/// What the command line asks for, in order.
fn check(options: &Options, targets: usize) -> Result<()> {
    let mut clients = options.clients.clone();
    clients.sort_unstable();
    if clients.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Problem::usage("--clients names a number twice"));
    }
    // Everything but the direct target is compared with it.
    let comparisons = clients.len() * targets.saturating_sub(1);
    let needed = LEAST_ROUNDS.max(rounds_needed(comparisons));
    if options.rounds < needed && !options.no_claims {
        return Err(Problem::usage(format!(
            "{} rounds cannot show a difference among {comparisons} comparisons: even if all \
             rounds agree, chance does that with p = {:.4} in each",
            options.rounds,
            least_p(options.rounds as usize)
        ))
        .hint(format!(
            "take at least {needed} (--rounds {needed}), fewer --clients, or --no-claims to \
             only look"
        )));
    }
    let all = options
        .statements
        .saturating_mul(u64::from(options.rounds))
        .saturating_mul((clients.len() * targets) as u64);
    if all > MOST_STATEMENTS {
        return Err(Problem::usage(format!(
            "that would be {all} statements, more than {MOST_STATEMENTS}"
        ))
        .hint("fewer --statements, --rounds or --clients"));
    }
    if options.label.len() > 60 || options.label.chars().any(char::is_control) {
        return Err(Problem::usage(
            "--label takes a short text without control characters",
        ));
    }
    Ok(())
}

/// Everything that has to be there while it is measured.
struct Up {
    // Dropped in this order.
    floor: Option<NullServer>,
    lab: Option<Lab>,
    table: Option<MadeTable>,
    targets: Vec<Measured>,
    statement: Arc<str>,
    origin: String,
    labels: Vec<(String, String)>,
    caveats: Vec<String>,
}

fn opts(address: SocketAddr, user: &str, password: &str, database: Option<&str>) -> Opts {
    OptsBuilder::default()
        .ip_or_hostname(address.ip().to_string())
        .tcp_port(address.port())
        .user(Some(user))
        .pass(Some(password))
        .db_name(database)
        // Its default swaps the connection to a proxy for the backend's socket.
        .prefer_socket(false)
        // Else the driver asks for them with a hidden query.
        .max_allowed_packet(Some(1 << 24))
        .wait_timeout(Some(28_800))
        .into()
}

fn scenario(options: &Options, runtime: RuntimeKind) -> Result<Scenario> {
    let proxies = if options.proxy.is_empty() {
        default_proxies(runtime).to_vec()
    } else {
        options.proxy.clone()
    };
    let text = "name = \"overhead\"\ndescription = \"what proxies cost\"\nduration = \"10s\"\n\
                direct = true\n[[backend]]\nname = \"direct\"\n";
    Scenario::parse_with(
        "overhead",
        text,
        &Overrides {
            proxies,
            ..Overrides::default()
        },
    )
    .map_err(|errors| Problem::usage(format!("no such lab can be made\n{errors}")))
}

async fn lab_up(options: &Options, clock: &Arc<dyn Clock>) -> Result<Up> {
    let real = |kind: &ProxyKind| kind.runtime() == RuntimeKind::Process;
    let runtime = options.runtime.unwrap_or_else(|| {
        if options.backend == Some(BackendKind::Mariadb) || options.proxy.iter().any(real) {
            RuntimeKind::Process
        } else {
            RuntimeKind::Embedded
        }
    });
    let backend = options.backend.unwrap_or(default_backend(runtime));
    let scenario = scenario(options, runtime)?;
    check(options, scenario.proxies.len() + 2)?;
    let itself = Itself::find()
        .map_err(|error| Problem::new(format!("cannot find this program's own file: {error}")))?;
    let make = Make {
        scenario: &scenario,
        backend,
        itself,
        named: options.program.iter().cloned().collect(),
        clock: Arc::clone(clock),
    };
    let lab = Lab::up(make, output::say).await?;
    let login = (lab.login.user.clone(), lab.login.password.clone());
    let measured = |name: &str, role, address: SocketAddr, program: String| Measured {
        name: name.to_owned(),
        role,
        opts: opts(address, &login.0, &login.1, Some(DATABASE)),
        address: address.to_string(),
        program,
        processes: cpu::listeners(address),
        expected: Digest::default(),
    };
    let mut targets: Vec<Measured> = lab
        .backends
        .iter()
        .map(|b| measured(b.name(), Role::Direct, b.address(), b.program()))
        .collect();
    targets.extend(
        lab.proxies
            .iter()
            .map(|p| measured(p.name(), Role::Compared, p.address(), p.program())),
    );
    let mut caveats = Vec::new();
    if scenario.proxies.iter().any(|proxy| !real(&proxy.kind)) || backend == BackendKind::Embedded {
        caveats.push(
            "embedded servers and proxies run in the lab's own process: their processor time \
             cannot be told apart"
                .to_owned(),
        );
    }
    let (table, text, origin) = match (&options.statement, backend) {
        (Some(_), _) => (None, String::new(), String::new()),
        (None, BackendKind::Mariadb) => {
            let table = MadeTable::make(&targets[0].opts, statement::TABLE, "the lab's server");
            (
                Some(table.await?),
                statement::of_table(statement::TABLE),
                "of a three-row table in memory, with comments".to_owned(),
            )
        }
        (None, _) => (
            None,
            statement::of_table(statement::TABLE),
            "of the embedded server's three-row table, with comments".to_owned(),
        ),
    };
    Ok(Up {
        floor: None,
        lab: Some(lab),
        table,
        targets,
        statement: text.into(),
        origin,
        labels: vec![
            ("runtime".to_owned(), runtime.to_string()),
            ("backend".to_owned(), backend.to_string()),
        ],
        caveats,
    })
}

async fn given_up(options: &Options) -> Result<Up> {
    if options.target.len() < 2 {
        return Err(Problem::usage("one target alone cannot be compared").hint(
            "give the server alone first and the proxy after it: --target direct=... --target \
             proxy=...",
        ));
    }
    let direct = options
        .direct
        .clone()
        .unwrap_or_else(|| options.target[0].name.clone());
    let mut targets: Vec<Measured> = Vec::new();
    for given in &options.target {
        if targets.iter().any(|t| t.name == given.name) {
            return Err(Problem::usage(format!(
                "two targets are called `{}`",
                given.name
            )));
        }
        // Once, so that no statement waits for a name.
        let address = tokio::net::lookup_host((given.host.as_str(), given.port))
            .await
            .map_err(|error| {
                Problem::new(format!(
                    "cannot resolve host `{}` of target `{}`: {error}",
                    given.host, given.name
                ))
            })?
            .next()
            .ok_or_else(|| {
                Problem::new(format!(
                    "host `{}` of target `{}` has no address",
                    given.host, given.name
                ))
            })?;
        let password = std::env::var(password_variable(&given.name))
            .or_else(|_| std::env::var("GAPSCOPE_PASSWORD"))
            .unwrap_or_default();
        targets.push(Measured {
            name: given.name.clone(),
            role: if given.name == direct {
                Role::Direct
            } else {
                Role::Compared
            },
            opts: opts(address, &given.user, &password, given.database.as_deref()),
            address: address.to_string(),
            program: String::new(),
            processes: cpu::listeners(address),
            expected: Digest::default(),
        });
    }
    if !targets.iter().any(|t| t.role == Role::Direct) {
        let names: Vec<&str> = targets.iter().map(|t| t.name.as_str()).collect();
        return Err(
            Problem::usage(format!("--direct names no target: `{direct}`"))
                .hint(format!("the targets are {}", names.join(", "))),
        );
    }
    targets.sort_by_key(|t| t.role != Role::Direct);
    check(options, targets.len() + 1)?;
    let mut table = None;
    let (text, origin) = if options.create_table {
        let name = format!("{}_{:08x}", statement::TABLE, rand::random::<u32>());
        table = Some(MadeTable::make(&targets[0].opts, &name, &targets[0].address).await?);
        (
            statement::of_table(&name),
            "of a three-row table made for it, with comments",
        )
    } else {
        (statement::without_table(), "without a table, with comments")
    };
    Ok(Up {
        floor: None,
        lab: None,
        table,
        targets,
        statement: text.into(),
        origin: origin.to_owned(),
        labels: Vec::new(),
        caveats: Vec::new(),
    })
}

fn load_average_caveat() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = text.split_whitespace().next()?.parse().ok()?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (load > 0.5 * cores as f64).then(|| {
        format!(
            "the host was busy before the benchmark began: load average {load} on {cores} \
             processors"
        )
    })
}

/// Asks every target once: the direct one's answer is the reference.
async fn agree(up: &mut Up, options: &Options) -> Result<Vec<Row>> {
    let prepared = options.protocol == Protocol::Prepared;
    let mut right: Option<(Digest, Vec<Row>)> = None;
    for target in &mut up.targets {
        let asking = reference(&target.opts, &up.statement, prepared);
        let (digest, rows) = tokio::time::timeout(std::time::Duration::from_secs(15), asking)
            .await
            .map_err(|_| {
                Problem::new(format!(
                    "target `{}` at {} did not answer the statement within 15 s",
                    target.name, target.address
                ))
            })?
            .map_err(|error| {
                Problem::new(format!(
                    "target `{}` at {} does not answer the statement: {error}",
                    target.name, target.address
                ))
                .hint(format!(
                    "does it work with a client? Passwords come from {} or GAPSCOPE_PASSWORD",
                    password_variable(&target.name)
                ))
            })?;
        match &right {
            None => right = Some((digest, rows)),
            Some((expected, _)) if *expected == digest => {}
            Some((expected, _)) => {
                return Err(Problem::new(format!(
                    "target `{}` answers the statement with other rows than `{}` ({} rows \
                     against {})",
                    target.name, "the direct target", digest.rows, expected.rows
                ))
                .hint(
                    "a statement whose answer changes (NOW(), CONNECTION_ID()) cannot be checked",
                ));
            }
        }
        target.expected = digest;
    }
    Ok(right.map(|(_, rows)| rows).unwrap_or_default())
}

/// The floor answers with the very rows of the direct target.
fn start_floor(up: &mut Up, rows: &[Row]) -> Result<()> {
    let answer = NullAnswer {
        columns: rows.first().map_or_else(
            || vec![b"nothing".to_vec()],
            |row| {
                row.columns_ref()
                    .iter()
                    .map(|column| column.name_ref().to_vec())
                    .collect()
            },
        ),
        rows: rows
            .iter()
            .map(|row| {
                (0..row.len())
                    .map(|at| row.as_ref(at).and_then(bytes_of))
                    .collect()
            })
            .collect(),
    };
    let (user, password) = ("floor", format!("{:032x}", rand::random::<u128>()));
    let server = NullServer::start(&answer, Credentials::new(user, password.clone()))
        .map_err(|error| Problem::new(format!("cannot start the null server: {error}")))?;
    let expected = up.targets.first().map(|t| t.expected).unwrap_or_default();
    up.targets.insert(
        0,
        Measured {
            name: "floor".to_owned(),
            role: Role::Floor,
            opts: opts(server.addr(), user, &password, None),
            address: server.addr().to_string(),
            program: "null server of gapscope, answers at once".to_owned(),
            processes: Vec::new(),
            expected,
        },
    );
    up.floor = Some(server);
    Ok(())
}

async fn set_up(options: &Options, clock: &Arc<dyn Clock>) -> Result<Up> {
    let from_file = match &options.statement {
        None => None,
        Some(file) => {
            let text = small_file::read_text(file, small_file::BY_HAND).map_err(|error| {
                Problem::usage(format!("cannot read {}: {error}", file.display()))
            })?;
            let text = statement::read_only(&text).map_err(|why| {
                Problem::usage(format!("{} is not measured: {why}", file.display()))
            })?;
            Some((text, format!("from {}", file.display())))
        }
    };
    let mut up = if options.target.is_empty() {
        lab_up(options, clock).await?
    } else {
        given_up(options).await?
    };
    if let Some((text, origin)) = from_file {
        up.statement = text.into();
        up.origin = origin;
    }
    let ready = async {
        let rows = agree(&mut up, options).await?;
        if rows.len() > 10_000 {
            return Err(Problem::usage(format!(
                "the statement answers {} rows: that measures the rows, not the target",
                rows.len()
            )));
        }
        start_floor(&mut up, &rows)
    };
    if let Err(problem) = ready.await {
        take_down(up).await;
        return Err(problem);
    }
    Ok(up)
}

async fn take_down(up: Up) {
    if let Some(table) = up.table {
        // The lab's goes with the lab, but the way is the same.
        table.remove().await;
    }
    if let Some(lab) = up.lab {
        lab.down().await;
    }
}

fn manifest(options: &Options, up: &Up, seed: u64, now_ns: i64) -> Manifest {
    Manifest {
        format_version: FORMAT_VERSION,
        kind: KIND.to_owned(),
        run_id: RunId::generate(),
        state: RunState::Running,
        created_utc: rfc3339(now_ns),
        closed_utc: None,
        end_reason: None,
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
        host: HostFacts::read(),
        statement: up.statement.to_string(),
        statement_origin: up.origin.clone(),
        protocol: match options.protocol {
            Protocol::Text => "text",
            Protocol::Prepared => "prepared",
        }
        .to_owned(),
        connect_each: options.connect_each,
        load: options
            .rate
            .map_or(Load::Closed, |rate| Load::Open { rate }),
        statements: options.statements,
        clients: options.clients.clone(),
        rounds: options.rounds,
        seed,
        targets: up
            .targets
            .iter()
            .map(|t| Target {
                name: t.name.clone(),
                role: t.role,
                address: t.address.clone(),
                program: t.program.clone(),
            })
            .collect(),
        labels: up.labels.iter().cloned().collect(),
        caveats: up
            .caveats
            .iter()
            .cloned()
            .chain(load_average_caveat())
            .chain(cfg!(debug_assertions).then(|| {
                "measured by an unoptimised build: the instrument's own part is far too large"
                    .to_owned()
            }))
            .collect(),
    }
}

/// Carries out `gapscope-lab overhead`; returns the exit code.
pub async fn run(options: &Options) -> Result<u8> {
    let mut signals = Signals::catch()?;
    let data = data_folder(&options.data)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut up = tokio::select! {
        up = set_up(options, &clock) => up?,
        signal = signals.next() => return Err(interrupted(signal, "before anything was measured")),
    };
    let stop = CancellationToken::new();
    let measured = {
        let measuring = measure(options, &mut up, &data, &clock, &stop);
        tokio::pin!(measuring);
        loop {
            tokio::select! {
                measured = &mut measuring => break measured,
                signal = signals.next() => {
                    output::say(&format!("{signal}: ending; finished rounds are kept"));
                    stop.cancel();
                }
            }
        }
    };
    take_down(up).await;
    let (folder, end, rounds) = measured?;
    if rounds == 0
        && let End::Early(why) = &end
    {
        return Err(Problem::new(format!(
            "the benchmark ended early, {why}, and no round was finished"
        )));
    }
    let code = printed::report(&folder, print(options.format), width())
        .map_err(|error| Problem::new(format!("cannot report on {}: {error:#}", folder.display())))?
        .code();
    output::say(&format!("run folder: {}", folder.display()));
    match end {
        End::Planned => Ok(code),
        End::Early(why) => {
            output::say(&format!("error: the benchmark ended early: {why}"));
            Ok(exit::FAILURE)
        }
    }
}

fn print(format: Format) -> Print {
    match format {
        Format::Text => Print::Text,
        Format::Markdown => Print::Markdown,
        Format::Json => Print::Json,
    }
}

fn width() -> Option<u16> {
    output::stdout_columns().and_then(|columns| u16::try_from(columns).ok())
}

async fn measure(
    options: &Options,
    up: &mut Up,
    data: &std::path::Path,
    clock: &Arc<dyn Clock>,
    stop: &CancellationToken,
) -> Result<(PathBuf, End, u32)> {
    let seed = options.seed.unwrap_or_else(rand::random);
    let blocks = options.clients.len() * up.targets.len();
    let names: Vec<&str> = up.targets.iter().map(|t| t.name.as_str()).collect();
    output::say(&format!(
        "{} statements a block, {} rounds of {blocks} blocks ({} targets: {}), seed {seed}",
        options.statements,
        options.rounds,
        names.len(),
        names.join(", ")
    ));
    let failed = |error: gapscope_aggregator::store::StoreError| {
        Problem::new(format!("cannot write the run folder: {error}"))
            .hint("choose another folder with --data DIR")
    };
    let now = clock.anchor().realtime_ns;
    let mut writer = Writer::create(data, manifest(options, up, seed, now)).map_err(failed)?;
    let folder = writer.folder().to_owned();
    let plan = Plan {
        statement: Arc::clone(&up.statement),
        way: Way {
            prepared: options.protocol == Protocol::Prepared,
            connect_each: options.connect_each,
        },
        statements: options.statements,
        clients: options.clients.clone(),
        rounds: options.rounds,
        rate: options.rate,
        label: options.label.clone(),
        at_most_ns: options.at_most,
    };
    let mut rng = StdRng::seed_from_u64(seed);
    let ended = carry_on(&plan, &up.targets, &mut writer, &mut rng, clock, stop).await;
    let (state, reason) = match &ended {
        Ok(End::Planned) => (RunState::Closed, "all rounds carried out".to_owned()),
        Ok(End::Early(why)) => (RunState::Interrupted, why.clone()),
        Err(problem) => (RunState::Interrupted, problem.what.clone()),
    };
    let bench = writer
        .close(state, &reason, clock.anchor().realtime_ns, Vec::new())
        .map_err(failed)?;
    let rounds = bench.blocks.iter().map(|b| b.round).max().unwrap_or(0);
    Ok((folder, ended?, rounds))
}
