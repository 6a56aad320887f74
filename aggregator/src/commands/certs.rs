//! `certs`: makes certificates for the server, for agents and for people.

use std::path::{Path, PathBuf};

use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::host::HostFacts;
use gapscope_proto::ids::AgentId;
use gapscope_proto::tls::{Facts, Principal, Role};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::certs::{Authority, CA_DAYS, DAYS, Pair, Validity, Whose};
use crate::exit::Exit;
use crate::output::{data, hinted, in_trouble, note};

/// What to make.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a CA, the server's certificate, an operator's, and those of agents.
    Init(Init),
    /// Make the server's certificate, for other names or for longer.
    Server(Server),
    /// Make an agent's certificate; the id is bound to it.
    Agent(Client),
    /// Make an operator's certificate: may start, stop and mark runs.
    Operator(Client),
    /// Make a viewer's certificate: may only look.
    Viewer(Client),
    /// Say whose a certificate is, how long it is valid, and its serial.
    Show(Show),
}

/// How long.
#[derive(Debug, clap::Args)]
pub struct Long {
    /// How many days the certificates are valid.
    #[arg(long, value_name = "N", default_value_t = DAYS, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub days: u32,
}

/// `certs init`.
#[derive(Debug, clap::Args)]
pub struct Init {
    /// Folder for everything; it must not hold a CA yet.
    pub dir: PathBuf,
    /// A name or address by which agents reach the server. Again for each; this
    /// host's name and loopback are always among them.
    #[arg(long = "host", value_name = "NAME|IP")]
    pub hosts: Vec<String>,
    /// An agent's id. Again for each.
    #[arg(long = "agent", value_name = "ID")]
    pub agents: Vec<AgentId>,
    /// How long they are valid.
    #[command(flatten)]
    pub long: Long,
}

/// `certs server`.
#[derive(Debug, clap::Args)]
pub struct Server {
    /// The CA's folder.
    pub dir: PathBuf,
    /// As for `init`.
    #[arg(long = "host", value_name = "NAME|IP")]
    pub hosts: Vec<String>,
    /// Make it anew if it is there: a server in use takes it up by itself.
    #[arg(long)]
    pub replace: bool,
    /// How long it is valid.
    #[command(flatten)]
    pub long: Long,
}

/// `certs agent`, `operator`, `viewer`.
#[derive(Debug, clap::Args)]
pub struct Client {
    /// The CA's folder.
    pub dir: PathBuf,
    /// Whose.
    #[arg(value_name = "ID")]
    pub name: AgentId,
    /// Make it anew if it is there: an agent in use takes it up by itself.
    #[arg(long)]
    pub replace: bool,
    /// How long it is valid.
    #[command(flatten)]
    pub long: Long,
}

/// `certs show`.
#[derive(Debug, clap::Args)]
pub struct Show {
    /// A certificate in PEM.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
}

/// Carries it out.
///
/// # Errors
/// When something is there already, or cannot be read or written.
pub fn run(command: Command) -> anyhow::Result<Exit> {
    let now_s = SystemClock::new()
        .anchor()
        .realtime_ns
        .div_euclid(1_000_000_000);
    match command {
        Command::Init(args) => init(&args, now_s)?,
        Command::Server(args) => {
            let authority = Authority::open(&args.dir).map_err(in_trouble)?;
            let whose = Whose::Server(hosts(args.hosts));
            let pair = issue(&authority, &whose, now_s, args.long.days, args.replace)?;
            note(format_args!(
                "use it with --tls-cert {} --tls-key {}",
                pair.cert.display(),
                pair.key.display()
            ));
        }
        Command::Agent(args) => client(Role::Agent, &args, now_s)?,
        Command::Operator(args) => client(Role::Operator, &args, now_s)?,
        Command::Viewer(args) => client(Role::Viewer, &args, now_s)?,
        Command::Show(args) => {
            for file in &args.files {
                show(file)?;
            }
        }
    }
    Ok(Exit::Ok)
}

fn hosts(mut given: Vec<String>) -> Vec<String> {
    let here = HostFacts::read().hostname;
    for host in [here.as_str(), "localhost", "127.0.0.1", "::1"] {
        let is_known = given.iter().any(|known| known == host);
        if !is_known && rustls::pki_types::ServerName::try_from(host).is_ok() {
            given.push(host.to_owned());
        }
    }
    given
}

fn issue(
    authority: &Authority,
    whose: &Whose,
    now_s: i64,
    days: u32,
    replace: bool,
) -> anyhow::Result<Pair> {
    let pair = authority
        .issue(whose, Validity::days(now_s, days), replace)
        .map_err(in_trouble)?;
    show(&pair.cert)?;
    Ok(pair)
}

fn client(role: Role, args: &Client, now_s: i64) -> anyhow::Result<()> {
    let authority = Authority::open(&args.dir).map_err(in_trouble)?;
    let principal = Principal {
        role,
        name: args.name.clone(),
    };
    let whose = Whose::Client(principal.clone());
    let pair = issue(&authority, &whose, now_s, args.long.days, args.replace)?;
    hand_out(&principal, &pair, &authority.cert(), None);
    Ok(())
}

fn init(args: &Init, now_s: i64) -> anyhow::Result<()> {
    let validity = Validity::days(now_s, CA_DAYS);
    let authority = Authority::create(&args.dir, validity).map_err(in_trouble)?;
    show(&authority.cert())?;
    let hosts = hosts(args.hosts.clone());
    let server = issue(
        &authority,
        &Whose::Server(hosts.clone()),
        now_s,
        args.long.days,
        false,
    )?;
    let operator = Principal {
        role: Role::Operator,
        name: "operator".parse().expect("it is a name"),
    };
    let operator_pair = issue(
        &authority,
        &Whose::Client(operator.clone()),
        now_s,
        args.long.days,
        false,
    )?;
    let mut agents = Vec::new();
    for id in &args.agents {
        let principal = Principal::agent(id.clone());
        let whose = Whose::Client(principal.clone());
        agents.push((
            principal,
            issue(&authority, &whose, now_s, args.long.days, false)?,
        ));
    }
    let dir = args.dir.display();
    let host = &hosts[0];
    note(format_args!(
        "\nNow, on this host:\n  gapscope-aggregator serve --listen 0.0.0.0:7350 --tls-cert {} --tls-key {} --client-ca {}",
        server.cert.display(),
        server.key.display(),
        authority.cert().display(),
    ));
    for (principal, pair) in &agents {
        hand_out(principal, pair, &authority.cert(), Some(host));
    }
    hand_out(&operator, &operator_pair, &authority.cert(), Some(host));
    if agents.is_empty() {
        note(format_args!(
            "An agent's certificate: gapscope-aggregator certs agent {dir} ID"
        ));
    }
    note(format_args!(
        "{dir}/ca.key signs all of them: keep it where nobody else reads it, best off this host."
    ));
    Ok(())
}

/// Says what somebody gets, and what to do with it.
fn hand_out(principal: &Principal, pair: &Pair, ca: &Path, host: Option<&str>) {
    let name = |path: &Path| {
        path.file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    let url = format!("https://{}:7350", bracketed(host.unwrap_or("HOST")));
    note(format_args!(
        "\nTo {principal}: {}, {} and {}; then",
        pair.cert.display(),
        pair.key.display(),
        ca.display(),
    ));
    match principal.role {
        Role::Agent => note(format_args!(
            "  # agent.toml\n  agent_id = \"{}\"\n  aggregator = \"{url}\"\n  [tls]\n  ca = \"{}\"\n  cert = \"{}\"\n  key = \"{}\"",
            principal.name,
            name(ca),
            name(&pair.cert),
            name(&pair.key)
        )),
        Role::Operator | Role::Viewer => note(format_args!(
            "  export GAPSCOPE_AGGREGATOR={url} GAPSCOPE_CA={} GAPSCOPE_CERT={} GAPSCOPE_KEY={}\n  gapscope-aggregator agents",
            ca.display(),
            pair.cert.display(),
            pair.key.display()
        )),
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

fn show(file: &Path) -> anyhow::Result<()> {
    let unreadable = |why: String| {
        hinted(
            format!("cannot read the certificate `{}`: {why}", file.display()),
            "a file with -----BEGIN CERTIFICATE----- is expected",
        )
    };
    let der = CertificateDer::from_pem_file(file).map_err(|error| unreadable(error.to_string()))?;
    let facts = Facts::read(&der).map_err(unreadable)?;
    let whose = match facts.principal() {
        Ok(Some(principal)) => principal.to_string(),
        Ok(None) if facts.hosts.is_empty() => "nobody by name (a CA)".to_owned(),
        Ok(None) => format!("server {}", facts.hosts.join(" ")),
        Err(why) => why,
    };
    data(format_args!(
        "{}\n  {whose}\n  {}\n  serial:{}",
        file.display(),
        facts.validity(),
        facts.serial
    ));
    Ok(())
}
