//! `try`: looks at one target for a minute, with no configuration and no
//! aggregator, and says what it is and how it does when nothing fails.
//!
//! Method: one connection is looked at closely ([`witness`]); then two held
//! clients and one that connects each time probe on the same open-loop schedule
//! as in a run, and the same clients probe a null server in this process, which
//! gives the floor under the same load. Read-only, and bounded: the load is
//! printed before it begins.
//!
//! What it cannot know stands at the end of what it prints.

mod conclude;
mod facts;
mod render;
pub(crate) mod witness;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::ids::TargetName;
use gapscope_proto::plan::{ClientGroup, ClientKind, Timeouts};
use gapscope_proto::sample::{Outcome, Sample, Style};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::conclude::Findings;
pub(crate) use self::conclude::conclude;
pub(crate) use self::facts::Facts;
use self::witness::Witness;
use crate::cli::Failure;
use crate::config::{Secret, Sources, SystemSources, Target, split_address};
use crate::inspection::reach::NotReached;
use crate::null_server::NullServer;
use crate::outcome::Verdict;
use crate::output;
use crate::probe::endpoint::Endpoint;
use crate::probe::identity::check_expression;
use crate::probe::leash::Graveyard;
use crate::probe::mysql::{Client, ClientSpec};
use crate::reach::{Reach, TlsFiles, TlsMode};
use crate::schedule::{Schedule, Wake};
use crate::wake::Waker;

const HELD: u16 = 2;
const HELD_INTERVAL_NS: u64 = 100_000_000;
const MOST_DURATION: Duration = Duration::from_secs(3_600);
const LEAST_DURATION: Duration = Duration::from_secs(1);

/// What `try` can be told.
#[derive(Debug, Args)]
pub(crate) struct Try {
    /// What to look at
    #[arg(value_name = "HOST:PORT")]
    address: String,
    /// Who logs in; an account with USAGE alone is enough
    #[arg(long, value_name = "USER", default_value = "gapscope")]
    user: String,
    /// Name of the environment variable that holds the password
    #[arg(long, value_name = "NAME", default_value = "GAPSCOPE_PASSWORD")]
    password_env: String,
    /// File that holds the password, instead
    #[arg(long, value_name = "FILE", conflicts_with = "password_env")]
    password_file: Option<PathBuf>,
    /// How long to watch, 1 s to 1 h
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    duration: Duration,
    /// How long a probe may take, and each step of the first look
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    timeout: Duration,
    /// Default database, where a proxy routes by it
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
    /// SQL expression that says which server answers
    #[arg(long, value_name = "EXPR")]
    identity: Option<String>,
    /// off, required, verify-ca or verify-identity
    #[arg(long, value_name = "MODE")]
    tls: Option<TlsMode>,
    /// Trusted authorities (PEM)
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Our certificate (PEM)
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// The name in the server's certificate, where it is not the host's
    #[arg(long, value_name = "NAME")]
    tls_name: Option<String>,
    /// Print JSON instead of the screen
    #[arg(long)]
    json: bool,
    /// Columns to fill [default: the terminal's, else 80]
    #[arg(long, value_name = "COLUMNS")]
    width: Option<usize>,
}

/// `500ms`, `60s`, `5m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time such as 500ms, 60s or 5m");
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let ms = match unit {
        "ms" => number,
        "s" => number.saturating_mul(1_000),
        "m" => number.saturating_mul(60_000),
        "h" => number.saturating_mul(3_600_000),
        _ => return Err(wrong()),
    };
    if ms == 0 {
        return Err(format!("`{text}` is no time at all"));
    }
    Ok(Duration::from_millis(ms))
}

/// What is asked of the target.
#[derive(Debug, Clone, Copy)]
struct Load {
    held_interval_ns: u64,
    new_interval_ns: u64,
}

impl Load {
    fn of(duration: Duration) -> Self {
        // Some twenty connections, to see how they are spread, but no more than
        // four a second.
        let twentieth = u64::try_from(duration.as_nanos() / 20).unwrap_or(u64::MAX);
        Self {
            held_interval_ns: HELD_INTERVAL_NS,
            new_interval_ns: twentieth.clamp(250_000_000, 1_000_000_000),
        }
    }

    fn connects_per_second(self) -> f64 {
        1e9 / self.new_interval_ns as f64
    }

    fn statements_per_second(self) -> f64 {
        f64::from(HELD) * 1e9 / self.held_interval_ns as f64 + self.connects_per_second()
    }
}

/// Everything the screen is made of.
struct Report {
    address: String,
    name: TargetName,
    user: String,
    tls_mode: &'static str,
    needs_file: bool,
    file_lines: Vec<String>,
    load: Load,
    watched_ns: u64,
    interrupted: bool,
    overslept: u64,
    witness: Witness,
    facts: Facts,
    findings: Findings,
}

fn target(args: &Try) -> Result<Target, Failure> {
    let wrong = |message: String| Failure {
        message,
        hint: None,
        code: 2,
    };
    let (host, port) = split_address(&args.address).map_err(wrong)?;
    if !(LEAST_DURATION..=MOST_DURATION).contains(&args.duration) {
        return Err(wrong("--duration: 1 s to 1 h".to_owned()));
    }
    if let Some(expression) = &args.identity {
        check_expression(expression).map_err(|why| wrong(format!("--identity: {why}")))?;
    }
    let password = match &args.password_file {
        Some(path) => SystemSources
            .file(path)
            .map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
            .map_err(|why| wrong(format!("--password-file `{}`: {why}", path.display())))?,
        None => match SystemSources.env(&args.password_env) {
            Some(password) => password,
            None if args.password_env == "GAPSCOPE_PASSWORD" => String::new(),
            None => {
                return Err(wrong(format!(
                    "--password-env: the environment variable `{}` is not set",
                    args.password_env
                )));
            }
        },
    };
    let tls = TlsFiles {
        mode: args.tls,
        ca: args.tls_ca.clone(),
        cert: args.tls_cert.clone(),
        key: args.tls_key.clone(),
        name: args.tls_name.clone(),
    };
    let tls = tls
        .load(Path::new(""))
        .map_err(|why| wrong(format!("--tls: {why}")))?;
    Ok(Target {
        name: name_of(&host),
        host,
        port,
        user: args.user.clone(),
        password: Secret::new(password),
        database: args.database.clone(),
        identity: args.identity.clone(),
        max_connects_per_second: 20,
        reach: Reach {
            tls,
            max_sockets: 16,
            ..Reach::default()
        },
    })
}

/// A name for the target that a run may use.
fn name_of(host: &str) -> TargetName {
    let first = host.split('.').next().unwrap_or(host);
    if host.parse::<std::net::IpAddr>().is_err()
        && let Ok(name) = first.parse()
    {
        return name;
    }
    "target".parse().expect("a good name")
}

/// Looks, watches, prints.
pub(crate) async fn run(args: &Try) -> Result<(), Failure> {
    let target = target(args)?;
    let address = target.address();
    let thread = |error| Failure::new(format!("a thread cannot be started: {error}"));
    let graveyard = Graveyard::open().map_err(thread)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let waker = Waker::start(clock.clone()).map_err(thread)?;
    let load = Load::of(args.duration);
    let endpoint = Arc::new(Endpoint::new(target, &*clock));
    let witness = match witness::look(&endpoint, &*clock, &graveyard, args.timeout).await {
        Ok(witness) => witness,
        Err(failed) => return Err(no_witness(&address, &endpoint.target, &failed)),
    };
    let plan = format!(
        "looking at {address} as {} for {} s, read-only: {:.0} statements and {:.0} connections a second, {} connections at once at most",
        args.user,
        args.duration.as_secs(),
        load.statements_per_second(),
        load.connects_per_second(),
        HELD + 2,
    );
    output::progress(&output::wrapped(
        "",
        2,
        &plan,
        args.width.unwrap_or_else(output::columns_for_people),
    ));
    let floor = NullServer::start()
        .await
        .map_err(|error| Failure::new(format!("no loopback port for the null server: {error}")))?;
    let floor_endpoint = Arc::new(Endpoint::new(floor.target(), &*clock));
    let mut watch = Watch {
        clock: clock.clone(),
        waker,
        graveyard,
        load,
        timeout_ns: u64::try_from(args.timeout.as_nanos()).unwrap_or(u64::MAX),
        samples: Vec::new(),
        floor: Vec::new(),
        overslept: 0,
    };
    let interrupted = watch
        .watch(&endpoint, &floor_endpoint, args.duration)
        .await?;
    let facts = Facts::of(&watch.samples, &watch.floor);
    let findings = conclude(&witness, &facts);
    let (needs_file, file_lines) = file_lines(args);
    let report = Report {
        address,
        name: endpoint.target.name.clone(),
        user: args.user.clone(),
        tls_mode: endpoint.target.reach.tls.mode().as_str(),
        needs_file,
        file_lines,
        load,
        watched_ns: interrupted.1,
        interrupted: interrupted.0,
        overslept: watch.overslept,
        witness,
        facts,
        findings,
    };
    if args.json {
        output::data(&format!("{:#}", render::to_json(&report)));
    } else {
        let width = args.width.or_else(output::columns).unwrap_or(80);
        output::data(render::screen(&report, width).trim_end());
    }
    if report.facts.held.ok + report.facts.new.ok == 0 {
        return Err(Failure::new("no probe was answered"));
    }
    Ok(())
}

/// What the next command needs beyond a flag.
fn file_lines(args: &Try) -> (bool, Vec<String>) {
    let quoted = |key: &str, value: &dyn std::fmt::Display| {
        format!("{key} = {}", toml::Value::String(value.to_string()))
    };
    let mut lines = Vec::new();
    match &args.password_file {
        Some(path) => lines.push(quoted("password_file", &path.display())),
        None if args.password_env != "GAPSCOPE_PASSWORD" => {
            lines.push(quoted("password_env", &args.password_env));
        }
        None => {}
    }
    if let Some(database) = &args.database {
        lines.push(quoted("database", database));
    }
    if let Some(identity) = &args.identity {
        lines.push(quoted("identity", identity));
    }
    if let Some(mode) = args.tls {
        lines.push(quoted("tls", &mode.as_str()));
    }
    for (key, path) in [
        ("tls_ca", &args.tls_ca),
        ("tls_cert", &args.tls_cert),
        ("tls_key", &args.tls_key),
    ] {
        if let Some(path) = path {
            lines.push(quoted(key, &path.display()));
        }
    }
    if let Some(name) = &args.tls_name {
        lines.push(quoted("tls_name", name));
    }
    let needed = !lines.is_empty();
    if needed && args.password_file.is_none() && args.password_env == "GAPSCOPE_PASSWORD" {
        lines.insert(0, quoted("password_env", &args.password_env));
    }
    (needed, lines)
}

fn no_witness(address: &str, target: &Target, failed: &NotReached) -> Failure {
    let verdict = &failed.verdict;
    let mut failure = Failure::new(format!("cannot look at {address}: {}", in_words(verdict)));
    failure.hint = hint(verdict, target, failed.greeting.as_ref()).map(str::to_owned);
    failure
}

/// A verdict for a person.
pub(crate) fn in_words(verdict: &Verdict) -> String {
    let cause = verdict
        .cause
        .map_or("unknown", gapscope_proto::sample::Cause::as_str);
    let code = verdict.code.map(|c| format!(" {c}")).unwrap_or_default();
    let speaker = match verdict.speaker {
        Some(speaker) if verdict.outcome == Outcome::ServerError => format!(" by {speaker}"),
        _ => String::new(),
    };
    format!(
        "{}{code} ({cause}{speaker}): {}",
        verdict.outcome, verdict.text
    )
}

/// What to do about it.
pub(crate) fn hint(
    verdict: &Verdict,
    target: &Target,
    greeting: Option<&crate::inspection::parse::Greeting>,
) -> Option<&'static str> {
    use gapscope_proto::sample::Cause;
    let tls_off = target.reach.tls.mode() == TlsMode::Off;
    Some(match verdict.cause? {
        Cause::Refused => "is the server or proxy running, and is this its port?",
        Cause::Denied if target.password.is_empty() => {
            "no password is given: set GAPSCOPE_PASSWORD, or name where it is (password_env, password_file; of try --password-env, --password-file)"
        }
        Cause::Denied if tls_off && greeting.is_some_and(|g| g.offers_tls) => {
            "check user and password; an account that REQUIREs SSL is refused in the same words: TLS is offered there, and off here (tls = required, verify-ca, verify-identity)"
        }
        Cause::Denied => {
            "check the user, and where its password comes from (password_env, password_file)"
        }
        Cause::NotResolved => "check the host name",
        Cause::Tls if tls_off => {
            "the server wants TLS: tls = required, verify-ca or verify-identity"
        }
        Cause::Tls if greeting.is_some_and(|g| !g.offers_tls) => {
            "the server offers no TLS; is it configured there?"
        }
        Cause::Tls => {
            "check tls_ca and tls_name against the server's certificate; tls = required asks for neither"
        }
        Cause::ConnectTimeout => {
            "something swallows the connection: a firewall, a server that hangs, or one that is not MySQL and waits to be spoken to"
        }
        Cause::Closed if greeting.is_none() => {
            "it was closed before a greeting came: a proxy without a server that is up does that, and so does a program that is not MySQL"
        }
        Cause::HostBlocked => "FLUSH HOSTS on the server lifts the block",
        Cause::TooManyConnections => {
            "the server has no connection left for this account: try again later"
        }
        Cause::WrongShape => "the identity expression must give one value that is not NULL",
        _ if is_not_its_protocol(verdict) => {
            "what answers there may not be a MySQL or MariaDB server: is this its port?"
        }
        _ => return None,
    })
}

/// Other protocols' first bytes read as a packet's length and number.
fn is_not_its_protocol(verdict: &Verdict) -> bool {
    let text = &verdict.text;
    verdict.cause == Some(gapscope_proto::sample::Cause::Malformed)
        || text.contains("max_allowed_packet")
        || text.contains("out of sync")
}

struct Watch {
    clock: Arc<dyn Clock>,
    waker: Arc<Waker>,
    graveyard: Graveyard,
    load: Load,
    timeout_ns: u64,
    samples: Vec<Sample>,
    floor: Vec<Sample>,
    overslept: u64,
}

impl Watch {
    /// Probes for `duration` or until interrupted; says whether it was, and how
    /// long it watched.
    async fn watch(
        &mut self,
        endpoint: &Arc<Endpoint>,
        floor: &Arc<Endpoint>,
        duration: Duration,
    ) -> Result<(bool, u64), Failure> {
        let (sender, mut receiver) = mpsc::channel(1_024);
        let begin_ns = self.clock.raw_ns() + 20_000_000;
        let duration_ns = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        let end_ns = begin_ns.saturating_add(duration_ns);
        let stop = CancellationToken::new();
        let mut tasks = tokio::task::JoinSet::new();
        for (is_floor, endpoint) in [(false, endpoint), (true, floor)] {
            let clients = if is_floor { 1 } else { HELD };
            for (style, clients, interval_ns) in [
                (Style::Reused, clients, self.load.held_interval_ns),
                (Style::New, 1, self.load.new_interval_ns),
            ] {
                let group = self.group(endpoint, style, clients, interval_ns);
                for index in 0..clients {
                    let client = self.client(endpoint, &group, index);
                    // The floor's slots lie between the target's.
                    let origin_ns = begin_ns
                        + if is_floor {
                            i64::try_from(interval_ns / 4).unwrap_or(0)
                        } else {
                            0
                        };
                    let schedule = Schedule::new(&group, index, origin_ns, begin_ns, 250_000_000);
                    tasks.spawn(probe(
                        client,
                        schedule,
                        end_ns,
                        self.clock.clone(),
                        self.waker.clone(),
                        stop.clone(),
                        (is_floor, sender.clone()),
                    ));
                }
            }
        }
        drop(sender);
        let mut interrupt =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())
                .map_err(|error| Failure::new(format!("signals cannot be caught: {error}")))?;
        let live = std::io::stderr().is_terminal();
        let mut tick = tokio::time::interval(Duration::from_millis(200));
        let mut interrupted = false;
        let mut ended_ns = end_ns;
        loop {
            tokio::select! {
                biased;
                _ = interrupt.recv(), if !interrupted => {
                    interrupted = true;
                    ended_ns = self.clock.raw_ns();
                    stop.cancel();
                }
                arrived = receiver.recv() => match arrived {
                    Some((true, sample)) => self.floor.push(sample),
                    Some((false, sample)) => self.samples.push(sample),
                    None => break,
                },
                _ = tick.tick(), if live => {
                    let passed = (self.clock.raw_ns() - begin_ns).max(0) as f64 / 1e9;
                    output::live(&self.live(passed, duration));
                }
            }
        }
        if live {
            output::live("");
        }
        while let Some(joined) = tasks.join_next().await {
            self.overslept += joined.unwrap_or(0);
        }
        let watched = u64::try_from(ended_ns.saturating_sub(begin_ns)).unwrap_or(0);
        Ok((interrupted, watched))
    }

    fn live(&self, passed: f64, duration: Duration) -> String {
        let facts = Facts::of(&self.samples, &[]);
        let bad = facts.held.probes + facts.new.probes - facts.held.ok - facts.new.ok;
        format!(
            "{passed:.0} of {} s  {} answered  {bad} not  p50 {} ms  p99 {} ms  {} server{}",
            duration.as_secs(),
            facts.held.ok + facts.new.ok,
            render::ms(facts.held.took(500)),
            render::ms(facts.held.took(990)),
            facts.backends.len(),
            if facts.backends.len() == 1 { "" } else { "s" },
        )
    }

    fn group(
        &self,
        endpoint: &Endpoint,
        style: Style,
        clients: u16,
        interval_ns: u64,
    ) -> ClientGroup {
        let timeout = Some(self.timeout_ns);
        ClientGroup {
            target: endpoint.target.name.clone(),
            style,
            kind: ClientKind::Bare,
            first_client: 0,
            clients,
            interval_ns,
            timeouts: Timeouts {
                resolve_ns: timeout,
                connect_ns: timeout,
                query_ns: timeout,
            },
        }
    }

    fn client(&self, endpoint: &Arc<Endpoint>, group: &ClientGroup, index: u16) -> Client {
        Client::new(
            ClientSpec {
                endpoint: endpoint.clone(),
                identity: endpoint.identity.clone(),
                style: group.style,
                number: index,
                canary: None,
                canary_value: String::new(),
                pool: false,
                ledger: None,
                timeouts: group.timeouts,
            },
            self.clock.clone(),
            self.graveyard.clone(),
        )
    }
}

/// One client, to the end; returns the slots that this host overslept.
async fn probe(
    mut client: Client,
    mut schedule: Schedule,
    end_ns: i64,
    clock: Arc<dyn Clock>,
    waker: Arc<Waker>,
    stop: CancellationToken,
    (is_floor, sink): (bool, mpsc::Sender<(bool, Sample)>),
) -> u64 {
    client.warm_up(&stop).await;
    while let Some(slot) = schedule.next(clock.raw_ns(), end_ns) {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = waker.until(slot.due_ns) => {}
        }
        if let Wake::Probe(slot) = schedule.wake(clock.raw_ns()) {
            let sample = client.probe(slot, &stop).await;
            schedule.free(clock.raw_ns());
            // A probe that was cut by Ctrl-C says nothing.
            if sample.cause == Some(gapscope_proto::sample::Cause::RunEnded)
                || sink.send((is_floor, sample)).await.is_err()
            {
                break;
            }
        }
    }
    client.close().await;
    schedule.finish(clock.raw_ns().min(end_ns)).overslept
}
