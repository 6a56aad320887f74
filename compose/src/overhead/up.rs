//! Brings up what is measured: a lab, or targets that are there, the table, the
//! null server; and takes it down again.

use std::net::SocketAddr;
use std::sync::Arc;

use gapscope_aggregator::overhead::record::Role;
use gapscope_proto::clock::Clock;
use gapscope_proto::small_file;
use mysql_async::{Opts, OptsBuilder, Row};

use super::bench::Measured;
use super::client::reference;
use super::digest::{Digest, bytes_of};
use super::options::{Options, Protocol, check};
use super::setup::MadeTable;
use super::target::password_variable;
use super::{cpu, statement};
use crate::children::Itself;
use crate::embedded::{Credentials, NullAnswer, NullServer};
use crate::error::{Problem, Result};
use crate::lab::{Lab, Make};
use crate::output;
use crate::runtime::{default_backend, default_proxies};
use crate::scenario::{BackendKind, Overrides, ProxyKind, RuntimeKind, Scenario};

/// The lab's database.
const DATABASE: &str = "gapscope_overhead";

/// Everything that has to be there while it is measured.
pub struct Up {
    // Dropped in this order.
    floor: Option<NullServer>,
    lab: Option<Lab>,
    table: Option<MadeTable>,
    /// What is measured: the floor, the direct target, the others.
    pub targets: Vec<Measured>,
    /// What is sent.
    pub statement: Arc<str>,
    /// Where it is from.
    pub origin: String,
    /// For people.
    pub labels: Vec<(String, String)>,
    /// What is to be said against it.
    pub caveats: Vec<String>,
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
    let real = |kind: &ProxyKind| kind.is_program();
    if let Some(name) = options.proxy.iter().find(|kind| kind.is_name()) {
        return Err(Problem::usage(format!(
            "--proxy {name} is no proxy: a statement takes the same way with it as without"
        )));
    }
    let runtime = options.runtime.unwrap_or_else(|| {
        if options
            .backend
            .is_some_and(|kind| kind != BackendKind::Embedded)
            || options.proxy.iter().any(real)
        {
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
        runtime,
        hurt_others: false,
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
        (None, kind) if kind != BackendKind::Embedded => {
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

/// Brings it up and has every target agree on the answer.
///
/// # Errors
/// When something does not come up, does not answer, or answers otherwise.
pub async fn set_up(options: &Options, clock: &Arc<dyn Clock>) -> Result<Up> {
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

/// Takes it down.
pub async fn take_down(up: Up) {
    if let Some(table) = up.table {
        // The lab's goes with the lab, but the way is the same.
        table.remove().await;
    }
    if let Some(lab) = up.lab {
        lab.down().await;
    }
}
