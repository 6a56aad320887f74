//! The secured connection as people meet it: the real programs, real sockets, real
//! certificates. Who is let in, what each side is told when it is not, and that a
//! run goes on while certificates are replaced.

mod common;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::{Running, lab, wait_for};
use gapscope_aggregator::certs::{Authority, CA_DAYS, Validity, Whose};
use gapscope_lab::embedded::{Backend, BackendConfig, Credentials};
use gapscope_proto::batch::Columns;
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::frame::{Body, Frame, StreamId, StreamKind};
use gapscope_proto::ids::{Incarnation, RunId};
use gapscope_proto::tls::{ClientFiles, Dialer, Line};
use gapscope_proto::wire;
use gapscope_proto::wire::agent_message::Kind as Say;
use gapscope_proto::wire::aggregator_message::Kind as Hear;
use gapscope_proto::wire::collector_client::CollectorClient;
use gapscope_proto::wire::control_client::ControlClient;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

/// Longer than anything here may take; only ever waited for by a failing test.
const LIMIT: Duration = Duration::from_secs(60);
const PASSWORD: &str = "hunter2-of-the-database";

fn now_s() -> i64 {
    SystemClock::new().anchor().realtime_ns / 1_000_000_000
}

/// A folder of certificates, an aggregator's data, logs.
struct World {
    temp: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self {
            temp: tempfile::tempdir().expect("a folder"),
        };
        std::fs::create_dir(world.path("data")).expect("made");
        world
    }

    /// With a CA, and certificates of a server, an operator, a viewer, two agents.
    fn with_certificates() -> Self {
        let world = Self::new();
        let certs = world.text("certs");
        world.make(&[
            "certs", "init", &certs, "--agent", "east-1", "--agent", "east-2",
        ]);
        world.make(&["certs", "viewer", &certs, "wall"]);
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }

    fn cert(&self, name: &str) -> String {
        self.text(&format!("certs/{name}"))
    }

    #[track_caller]
    fn make(&self, args: &[&str]) -> String {
        let output = aggregator(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {said}");
        said + &String::from_utf8_lossy(&output.stdout)
    }

    fn log(&self, who: &str) -> String {
        std::fs::read_to_string(self.path(&format!("{who}.log"))).unwrap_or_default()
    }

    #[track_caller]
    fn wait_for_log(&self, who: &str, part: &str) {
        self.wait_for_log_times(who, part, 1);
    }

    #[track_caller]
    fn wait_for_log_times(&self, who: &str, part: &str, times: usize) {
        for _ in 0..6_000 {
            if self.log(who).matches(part).count() >= times {
                return;
            }
            common::pause(Duration::from_millis(10));
        }
        panic!(
            "{part:?} ({times} times) is not in the log of {who}:\n{}",
            self.log(who)
        );
    }

    fn start(&self, mut command: Command, who: &str) -> Running {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path(&format!("{who}.log")))
            .expect("a log file");
        let child = command.stderr(Stdio::from(log)).spawn().expect("it starts");
        Running(child)
    }

    /// An aggregator with these flags; returns its address.
    fn serve(&self, flags: &[&str]) -> (Running, String) {
        let address = self.path("address");
        let _ = std::fs::remove_file(&address);
        let mut command = lab();
        command
            .args([
                "aggregator",
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--die-with-parent",
            ])
            .args(flags)
            .arg("--data")
            .arg(self.path("data"))
            .arg("--address-file")
            .arg(&address);
        let running = self.start(command, "aggregator");
        let bound = wait_for("the aggregator's address", || {
            std::fs::read_to_string(&address)
                .ok()
                .filter(|text| text.ends_with('\n'))
        });
        (running, bound.trim().to_owned())
    }

    /// One that knows its callers by certificate.
    fn serve_tls(&self, further: &[&str]) -> (Running, String) {
        let (cert, key, ca) = (
            self.cert("server.pem"),
            self.cert("server.key"),
            self.cert("ca.pem"),
        );
        let flags = ["--tls-cert", &cert, "--tls-key", &key, "--client-ca", &ca];
        self.serve(&[&flags, further].concat())
    }

    /// An agent that goes by `id`, with the target `db` at `port`.
    fn agent(&self, url: &str, id: &str, port: u16, security: &str) -> Running {
        let config = self.path(&format!("{id}.toml"));
        let text = format!(
            "agent_id = \"{id}\"\naggregator = \"{url}\"\n{security}\n[[target]]\nname = \"db\"\n\
             address = \"127.0.0.1:{port}\"\nuser = \"probe\"\npassword_env = \"PROBE_PASSWORD\"\n"
        );
        std::fs::write(&config, text).expect("written");
        let mut command = lab();
        command
            .args(["agent", "run", "--die-with-parent", "--config"])
            .arg(&config)
            .arg("--data")
            .arg(self.path(&format!("data-{id}")))
            .env("PROBE_PASSWORD", PASSWORD);
        self.start(command, id)
    }

    /// `[tls]` with this certificate and key.
    fn tls(&self, stem: &str) -> String {
        format!(
            "[tls]\nca = \"{}\"\ncert = \"{}\"\nkey = \"{}\"",
            self.cert("ca.pem"),
            self.cert(&format!("{stem}.pem")),
            self.cert(&format!("{stem}.key"))
        )
    }

    /// A command of somebody with a certificate.
    fn ask(&self, url: &str, stem: &str, args: &[&str]) -> Output {
        let (ca, cert, key) = (
            self.cert("ca.pem"),
            self.cert(&format!("{stem}.pem")),
            self.cert(&format!("{stem}.key")),
        );
        let security = [
            "--aggregator",
            url,
            "--ca",
            &ca,
            "--cert",
            &cert,
            "--key",
            &key,
        ];
        aggregator(&[args, &security].concat())
    }

    #[track_caller]
    fn asked(&self, url: &str, stem: &str, args: &[&str]) -> String {
        let output = self.ask(url, stem, args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// None of these texts stands in anything that was left or said.
    #[track_caller]
    fn holds_none_of(&self, secrets: &[String], said: &[String]) {
        let mut looked_at = 0;
        let mut folders = vec![self.temp.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("readable").flatten() {
                let path = entry.path();
                let name = path
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                if path.is_dir() {
                    folders.push(path);
                } else if !name.ends_with(".key") && !name.ends_with(".token") {
                    let bytes = match std::fs::read(&path) {
                        // A program that still runs has given it its name, or removed
                        // it: the folder is looked through again.
                        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                            folders.push(folder);
                            break;
                        }
                        read => read.expect("readable"),
                    };
                    no_secret(
                        &String::from_utf8_lossy(&bytes),
                        secrets,
                        &path.display().to_string(),
                    );
                    looked_at += 1;
                }
            }
        }
        assert!(looked_at > 5, "only {looked_at} files");
        for text in said {
            no_secret(text, secrets, "what was said");
        }
    }
}

#[track_caller]
fn no_secret(text: &str, secrets: &[String], place: &str) {
    for secret in secrets {
        assert!(!secret.is_empty());
        assert!(
            !text.contains(secret.as_str()),
            "a secret stands in {place}"
        );
    }
}

/// The lines of a key in PEM.
fn key_lines(path: &str) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("a key");
    text.lines()
        .filter(|line| !line.starts_with("--"))
        .map(str::to_owned)
        .collect()
}

fn aggregator(args: &[&str]) -> Output {
    lab()
        .arg("aggregator")
        .args(args)
        .output()
        .expect("it runs")
}

#[track_caller]
fn check(output: &Output, code: i32, parts: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}

async fn backend() -> Backend {
    let config = BackendConfig {
        credentials: Credentials::new("probe", PASSWORD),
        ..BackendConfig::new("one")
    };
    Backend::start(config, Arc::new(SystemClock::new()))
        .await
        .expect("it starts")
}

fn is_gone(world: &World, url: &str, id: &str) -> bool {
    world
        .asked(url, "operator", &["agents"])
        .lines()
        .any(|line| line.starts_with(id) && line.contains("  gone"))
}

/// A run over mutual TLS, in whose course everything is replaced: nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_replaced_while_a_run_goes_on() {
    let world = World::with_certificates();
    let backend = backend().await;
    let deny = world.text("deny");
    std::fs::write(&deny, "# nobody\n").expect("written");
    let (_aggregator, address) = world.serve_tls(&["--deny", &deny]);
    let url = format!("https://{address}");
    let agent = world.agent(
        &url,
        "east-1",
        backend.addr().port(),
        &world.tls("agent-east-1"),
    );
    world.wait_for_log("east-1", "connected");
    let config = world.text("east-1.toml");
    let tried = lab()
        .args(["agent", "check", "--config", &config])
        .env("PROBE_PASSWORD", PASSWORD)
        .output()
        .expect("it runs");
    let tried_out = String::from_utf8_lossy(&tried.stdout).into_owned();
    assert!(tried_out.contains("lets this agent in"), "{tried:?}");
    let run = world.asked(
        &url,
        "operator",
        &["start", "--target", "db", "--duration", "10m"],
    );
    let run = run.trim();
    let samples = || -> u64 {
        let listed = world.asked(&url, "viewer-wall", &["runs"]);
        let line = listed
            .lines()
            .find(|line| line.starts_with(run))
            .expect("the run");
        line.split_whitespace()
            .nth(3)
            .and_then(|n| n.parse().ok())
            .expect("a number")
    };
    let more = |than: u64| wait_for("more samples", || (samples() > than + 500).then(&samples));
    let mut stored = more(0);
    let serial = |name: &str| world.make(&["certs", "show", &world.cert(name)]);
    let first = serial("agent-east-1.pem");

    // The agent's own, then the server's: each time the session is made anew.
    let certs = world.text("certs");
    world.make(&["certs", "agent", &certs, "east-1", "--replace"]);
    assert_ne!(serial("agent-east-1.pem"), first);
    world.wait_for_log(
        "east-1",
        "there is a new certificate or token: connecting anew",
    );
    world.wait_for_log_times("east-1", " connected", 2);
    stored = more(stored);
    world.make(&["certs", "server", &certs, "--replace"]);
    world.wait_for_log(
        "aggregator",
        "the certificate of this server: a new one is in use",
    );
    world.wait_for_log("east-1", "the aggregator has a new certificate");
    world.wait_for_log_times("east-1", " connected", 3);
    stored = more(stored);

    // Broken ones change nothing, on either side.
    let good = std::fs::read(world.cert("agent-east-1.pem")).expect("readable");
    std::fs::write(world.cert("agent-east-1.pem"), "nonsense").expect("written");
    world.wait_for_log(
        "east-1",
        "the new one cannot be used, the old one stays in use",
    );
    let server_key = std::fs::read(world.cert("server.key")).expect("readable");
    std::fs::copy(world.cert("agent-east-2.key"), world.cert("server.key")).expect("copied");
    world.wait_for_log("aggregator", "does not belong to the certificate");
    stored = more(stored);
    std::fs::write(world.cert("agent-east-1.pem"), good).expect("written");
    std::fs::write(world.cert("server.key"), server_key).expect("written");

    // Revoked: the session ends at once, both sides say why; taken back, it goes on.
    std::fs::write(&deny, "agent:east-1\n").expect("written");
    world.wait_for_log(
        "east-1",
        "agent:east-1 is on the deny list of this aggregator",
    );
    world.wait_for_log(
        "aggregator",
        "agent:east-1 is on the deny list of this aggregator",
    );
    wait_for("the end of the session", || {
        is_gone(&world, &url, "east-1").then_some(())
    });
    std::fs::write(&deny, "# forgiven\n").expect("written");
    wait_for("the agent", || {
        (!is_gone(&world, &url, "east-1")).then_some(())
    });
    more(stored);

    let stopped = world.ask(&url, "operator", &["stop", run, "--drain", "60s"]);
    check(&stopped, 0, &[]);
    let missing = String::from_utf8_lossy(&stopped.stderr).into_owned();
    assert!(!missing.contains("missing: "), "{missing}");
    let data = world.text("data");
    let report = aggregator(&["report", run, "--data", &data, "--format", "json"]);
    let summary: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let books = &summary["conservation"];
    assert_eq!(books["balanced"], true, "{books}");
    assert_eq!(books["lost_max"], 0, "{books}");
    assert_eq!(books["in_spools"], 0, "{books}");
    assert_eq!(books["sampled"], books["stored"], "{books}");
    drop(agent);

    let mut secrets = vec![PASSWORD.to_owned()];
    for key in [
        "ca.key",
        "server.key",
        "operator.key",
        "viewer-wall.key",
        "agent-east-1.key",
    ] {
        secrets.extend(key_lines(&world.cert(key)));
    }
    world.holds_none_of(&secrets, &[tried_out, missing]);
    backend.shutdown().await;
}

fn hang_up(process: &Running) {
    let pid = i32::try_from(process.0.id()).expect("a process id");
    let pid = rustix::process::Pid::from_raw(pid).expect("not 0");
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).expect("it lives");
}

/// SIGHUP makes both programs look at their files at once, and ends neither; an
/// agent whose certificate expires in the midst of a run is refused until it has a
/// new one, and delivers then what it measured meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_reloads_and_an_expired_certificate_is_refused_until_there_is_a_new_one() {
    let world = World::with_certificates();
    let backend = backend().await;
    let deny = world.text("deny");
    std::fs::write(&deny, "# nobody\n").expect("written");
    let (aggregator, address) = world.serve_tls(&["--deny", &deny]);
    let url = format!("https://{address}");
    let agent = world.agent(
        &url,
        "east-1",
        backend.addr().port(),
        &world.tls("agent-east-1"),
    );
    world.wait_for_log("east-1", " connected");
    let start = ["start", "--target", "db", "--duration", "10m"];
    let run = world.asked(&url, "operator", &start);
    let run = run.trim();
    let samples = || -> u64 {
        let listed = world.asked(&url, "viewer-wall", &["runs"]);
        let line = listed.lines().find(|line| line.starts_with(run));
        let count = line.and_then(|line| line.split_whitespace().nth(3));
        count.and_then(|n| n.parse().ok()).expect("a number")
    };
    let more = |than: u64| wait_for("more samples", || (samples() > than + 200).then(&samples));
    let mut stored = more(0);

    // Of files that cannot be used the programs speak once, and again when told to
    // look at them again: nothing but the signal makes them do it.
    std::fs::write(world.cert("agent-east-1.pem"), "nonsense").expect("written");
    std::fs::write(world.cert("server.pem"), "nonsense").expect("written");
    let unusable = "the new one cannot be used, the old one stays in use";
    for (who, process) in [("east-1", &agent), ("aggregator", &aggregator)] {
        world.wait_for_log(who, unusable);
        let said = world.log(who).matches(unusable).count();
        hang_up(process);
        world.wait_for_log_times(who, unusable, said + 1);
    }
    let certs = world.text("certs");
    world.make(&["certs", "agent", &certs, "east-1", "--replace"]);
    hang_up(&agent);
    world.wait_for_log(
        "east-1",
        "there is a new certificate or token: connecting anew",
    );
    world.make(&["certs", "server", &certs, "--replace"]);
    hang_up(&aggregator);
    let in_use = "the certificate of this server: a new one is in use";
    world.wait_for_log("aggregator", in_use);
    world.wait_for_log("east-1", "the aggregator has a new certificate");
    stored = more(stored);

    // One that ends in a few seconds. Streams that stand are looked at when a file
    // of the aggregator changes, and twice a minute.
    let ends_s = now_s() + 4;
    let whose = Whose::Client("agent:east-1".parse().expect("somebody"));
    let validity = Validity {
        from_s: now_s() - 86_400,
        to_s: ends_s,
    };
    let authority = Authority::open(&world.path("certs")).expect("opened");
    authority.issue(&whose, validity, true).expect("issued");
    hang_up(&agent);
    wait_for("its end", || (now_s() > ends_s).then_some(()));
    std::fs::write(&deny, "# still nobody\n").expect("written");
    hang_up(&aggregator);
    wait_for("the end of the session", || {
        is_gone(&world, &url, "east-1").then_some(())
    });
    world.wait_for_log("east-1", "it expired on");
    world.wait_for_log("aggregator", "expired on");
    let before = backend.statements();
    wait_for("that it probes on", || {
        (backend.statements() > before).then_some(())
    });

    world.make(&["certs", "agent", &certs, "east-1", "--replace"]);
    hang_up(&agent);
    wait_for("the agent", || {
        (!is_gone(&world, &url, "east-1")).then_some(())
    });
    more(stored);
    let stopped = world.ask(&url, "operator", &["stop", run, "--drain", "60s"]);
    check(&stopped, 0, &["agent east-1: ", " + 0 lost + 0 missing"]);
    let data = world.text("data");
    let report = self::aggregator(&["report", run, "--data", &data, "--format", "json"]);
    let summary: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let books = &summary["conservation"];
    assert_eq!(books["balanced"], true, "{books}");
    assert_eq!(books["lost_max"], 0, "{books}");
    assert_eq!(books["sampled"], books["stored"], "{books}");
    backend.shutdown().await;
}

/// What somebody sees who connects with the wrong thing, and what the aggregator
/// says: each a sentence and what to do.
#[test]
fn each_refusal_is_told_on_the_side_that_can_do_something() {
    let world = World::with_certificates();
    let (_aggregator, address) = world.serve_tls(&[]);
    let url = format!("https://{address}");
    let authority = Authority::open(&world.path("certs")).expect("opened");
    let day = 86_400;
    let odd = |name: &str, from_s: i64, to_s: i64| {
        let whose = Whose::Client(format!("operator:{name}").parse().expect("somebody"));
        let validity = Validity { from_s, to_s };
        authority.issue(&whose, validity, false).expect("issued");
        format!("operator-{name}")
    };
    let agents = ["agents"];

    let expired = odd("late", now_s() - 9 * day, now_s() - 8 * day);
    check(
        &world.ask(&url, &expired, &agents),
        1,
        &[
            "refuses the certificate of this side: it expired on",
            "the clock here says",
            "hint: get a new one",
        ],
    );
    world.wait_for_log("aggregator", "the client's certificate expired on");
    let early = odd("early", now_s() + 8 * day, now_s() + 9 * day);
    check(
        &world.ask(&url, &early, &agents),
        1,
        &[
            "refuses the certificate of this side: it is not valid before",
            "the clock here says",
        ],
    );
    world.wait_for_log("aggregator", "the client's certificate is not valid before");

    // Another CA, from either side.
    Authority::create(&world.path("other"), Validity::days(now_s(), CA_DAYS))
        .and_then(|other| {
            let whose = Whose::Client("operator".parse().expect("somebody"));
            other.issue(&whose, Validity::days(now_s(), 1), false)
        })
        .expect("made");
    let with = |ca: &str, pair: Option<&str>| {
        let (ca, cert, key) = (
            world.text(&format!("{ca}/ca.pem")),
            world.text(&format!("{}.pem", pair.unwrap_or_default())),
            world.text(&format!("{}.key", pair.unwrap_or_default())),
        );
        let mut args = vec!["agents", "--aggregator", &url, "--ca", &ca];
        if pair.is_some() {
            args.extend(["--cert", &cert, "--key", &key]);
        }
        aggregator(&args)
    };
    check(
        &with("certs", Some("other/operator")),
        1,
        &[
            "was not issued by the CA that the aggregator trusts",
            "hint: use one made by",
        ],
    );
    world.wait_for_log(
        "aggregator",
        "the client's certificate was not issued by the CA of --client-ca",
    );
    check(
        &with("other", Some("certs/operator")),
        1,
        &[
            "the aggregator's certificate was not issued by the CA that this side trusts",
            "hint: `ca`",
        ],
    );
    world.wait_for_log(
        "aggregator",
        "the client does not trust this aggregator's certificate",
    );
    check(
        &with("certs", None),
        1,
        &[
            "asks for a client certificate, and none was given",
            "hint: give the agent [tls] cert",
        ],
    );
    world.wait_for_log("aggregator", "the client shows no certificate");
    check(
        &with("certs", Some("certs/server")),
        1,
        &["it is not one of a client"],
    );

    // The wrong protocol.
    check(
        &aggregator(&["agents", "--aggregator", &format!("http://{address}")]),
        1,
        &["what answers there speaks TLS", "hint: write https://"],
    );
    world.wait_for_log(
        "aggregator",
        "the client speaks clear text, and this aggregator speaks TLS",
    );

    // Somebody, but not the right one.
    check(
        &world.ask(&url, "viewer-wall", &["start", "--target", "db"]),
        1,
        &["viewer:wall may not start a run", "hint: an operator may"],
    );
    check(
        &world.ask(&url, "agent-east-1", &agents),
        1,
        &[
            "agent:east-1 may not list agents",
            "hint: an operator or a viewer may",
        ],
    );
    check(&world.ask(&url, "viewer-wall", &agents), 0, &[]);

    // The same of agents: they go on trying, and say why once.
    let _wrong_id = world.agent(&url, "east-2", 1, &world.tls("agent-east-1"));
    let sentence =
        "the agent calls itself `east-2`, but its certificate or token is that of agent:east-1";
    world.wait_for_log("east-2", sentence);
    world.wait_for_log("aggregator", sentence);
    let _operator = world.agent(&url, "as-operator", 1, &world.tls("operator"));
    world.wait_for_log(
        "as-operator",
        "operator may not deliver samples (hint: only an agent may",
    );
    let _late = world.agent(&url, "late", 1, &world.tls(&expired));
    world.wait_for_log(
        "late",
        "the certificate with which this side shows itself expired on",
    );
    world.wait_for_log(
        "late",
        "refuses the certificate of this side: it expired on",
    );
}

/// The server's own certificate is what is wrong.
#[test]
fn a_server_that_is_not_the_right_one_is_refused() {
    let world = World::with_certificates();
    let authority = Authority::open(&world.path("certs")).expect("opened");
    let day = 86_400;
    let serve_with = |hosts: &[&str], from_s: i64, to_s: i64| {
        let whose = Whose::Server(hosts.iter().map(|host| (*host).to_owned()).collect());
        authority
            .issue(&whose, Validity { from_s, to_s }, true)
            .expect("issued");
        let (running, address) = world.serve_tls(&[]);
        (running, format!("https://{address}"))
    };
    let valid = (now_s() - day, now_s() + day);
    {
        let (_running, url) = serve_with(&["db.example", "10.0.0.5"], valid.0, valid.1);
        check(
            &world.ask(&url, "operator", &["agents"]),
            1,
            &[
                "the aggregator's certificate is not for `127.0.0.1` but for `db.example`, `10.0.0.5`",
                "--host",
            ],
        );
        world.wait_for_log("aggregator", "most likely it is not for the name");
    }
    {
        let (_running, url) = serve_with(&["127.0.0.1"], now_s() - 9 * day, now_s() - 8 * day);
        world.wait_for_log("aggregator", "the certificate of this server expired on");
        check(
            &world.ask(&url, "operator", &["agents"]),
            1,
            &[
                "the aggregator's certificate expired on",
                "the clock here says",
                "certs server",
            ],
        );
        world.wait_for_log(
            "aggregator",
            "refuses this aggregator's certificate as expired",
        );
    }
    {
        let (_running, url) = serve_with(&["127.0.0.1"], now_s() + 8 * day, now_s() + 9 * day);
        check(
            &world.ask(&url, "operator", &["agents"]),
            1,
            &[
                "the aggregator's certificate is not valid before",
                "the clock here says",
                "set the clock that is wrong",
            ],
        );
    }
    // TLS to clear text.
    let (_running, address) = world.serve(&[]);
    check(
        &world.ask(&format!("https://{address}"), "operator", &["agents"]),
        1,
        &[
            "what answers there does not speak TLS",
            "hint: write http://",
        ],
    );
    world.wait_for_log(
        "aggregator",
        "the client speaks TLS, and this aggregator speaks clear text",
    );
}

/// Tokens, where certificates are too much; taken back by removing a line.
#[test]
fn tokens_let_in_and_can_be_taken_back() {
    let world = World::with_certificates();
    let tokens = world.text("tokens");
    for (whose, file) in [
        ("agent:east-1", "east-1"),
        ("operator", "operator"),
        ("viewer", "viewer"),
    ] {
        let out = world.text(&format!("{file}.token"));
        world.make(&["tokens", "add", whose, "--tokens", &tokens, "--out", &out]);
    }
    let again = aggregator(&[
        "tokens",
        "add",
        "viewer",
        "--tokens",
        &tokens,
        "--out",
        &world.text("viewer.token"),
    ]);
    check(&again, 1, &["is not overwritten"]);
    let list = std::fs::read_to_string(&tokens).expect("readable");
    assert_eq!(list.lines().count(), 3, "{list}");
    let (cert, key) = (world.cert("server.pem"), world.cert("server.key"));
    let (_aggregator, address) =
        world.serve(&["--tls-cert", &cert, "--tls-key", &key, "--tokens", &tokens]);
    let url = format!("https://{address}");
    let ca = world.cert("ca.pem");
    let ask = |token: &str, args: &[&str]| {
        let token = world.text(&format!("{token}.token"));
        aggregator(
            &[
                args,
                &["--aggregator", &url, "--ca", &ca, "--token-file", &token],
            ]
            .concat(),
        )
    };
    check(&ask("operator", &["agents"]), 0, &[]);
    check(&ask("viewer", &["runs"]), 0, &[]);
    check(
        &ask("viewer", &["stop", "latest"]),
        1,
        &["the aggregator has no runs"],
    );
    check(
        &ask("viewer", &["start", "--target", "db"]),
        1,
        &["viewer may not start a run"],
    );
    check(
        &ask("east-1", &["runs"]),
        1,
        &["agent:east-1 may not list runs"],
    );
    check(
        &aggregator(&["agents", "--aggregator", &url, "--ca", &ca]),
        1,
        &[
            "this aggregator asks for a token, and none was shown",
            "hint: give the agent token_file",
        ],
    );
    let wrong = "0123456789abcdef-wrong";
    std::fs::write(world.path("wrong.token"), format!("{wrong}\n")).expect("written");
    check(
        &ask("wrong", &["agents"]),
        1,
        &[
            "the token is not one that this aggregator knows",
            "hint: get one with",
        ],
    );
    world.wait_for_log(
        "aggregator",
        "the token is not one that this aggregator knows",
    );

    let security = format!(
        "token_file = \"{}\"\n[tls]\nca = \"{ca}\"",
        world.text("east-1.token")
    );
    let _agent = world.agent(&url, "east-1", 1, &security);
    world.wait_for_log("east-1", " connected");
    let without: String = list
        .lines()
        .filter(|line| !line.contains("east-1"))
        .map(|l| format!("{l}\n"))
        .collect();
    std::fs::write(&tokens, without).expect("written");
    world.wait_for_log("east-1", "the token is not one that this aggregator knows");
    std::fs::write(&tokens, "nonsense\n").expect("written");
    world.wait_for_log(
        "aggregator",
        "the tokens: the new one cannot be used, the old one stays in use",
    );
    check(&ask("operator", &["agents"]), 0, &[]);
    std::fs::write(&tokens, list).expect("written");
    world.wait_for_log_times("east-1", " connected", 2);

    // It does not leave the host in clear text.
    let token = world.text("operator.token");
    check(
        &aggregator(&[
            "agents",
            "--aggregator",
            "http://192.0.2.1:7350",
            "--token-file",
            &token,
        ]),
        1,
        &[
            "the token is not sent to http://192.0.2.1:7350",
            "hint: use https://",
        ],
    );
    let _clear = world.agent(
        "http://192.0.2.1:7350",
        "clear",
        1,
        &format!("token_file = \"{token}\""),
    );
    world.wait_for_log(
        "clear",
        "error: the token is not sent to http://192.0.2.1:7350",
    );

    let mut secrets = vec![PASSWORD.to_owned(), wrong.to_owned()];
    for name in ["east-1", "operator", "viewer"] {
        let token =
            std::fs::read_to_string(world.path(&format!("{name}.token"))).expect("readable");
        assert_eq!(token.trim().len(), 64);
        secrets.push(token.trim().to_owned());
    }
    world.holds_none_of(&secrets, &[]);
    // Nor in what `ps` shows. (Others' processes come and go meanwhile.)
    for entry in std::fs::read_dir("/proc").expect("there").flatten() {
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        no_secret(
            &String::from_utf8_lossy(&line),
            &secrets,
            "a process's command line",
        );
    }
}

#[test]
fn what_would_be_open_is_not_served() {
    let serve =
        |flags: &[&str]| aggregator(&[&["serve", "--data", "/nonexistent"], flags].concat());
    let beyond = ["--listen", "192.0.2.1:0"];
    check(
        &serve(&beyond),
        2,
        &[
            "cannot listen on 192.0.2.1:0",
            "certs init",
            "--insecure-clear-text",
        ],
    );
    check(
        &serve(&["--tls-cert", "x", "--tls-key", "x"]),
        2,
        &[
            "whoever connects may do everything",
            "hint: say by what people and agents are known",
        ],
    );
    check(
        &serve(&[&beyond, &["--insecure-clear-text", "--tokens", "x"][..]].concat()),
        2,
        &["tokens would come to 192.0.2.1:0 in clear text"],
    );
    check(
        &serve(&["--deny", "x"]),
        2,
        &["--deny alone keeps nobody out"],
    );
    check(&serve(&["--tls-cert", "x"]), 2, &["--tls-key"]);
    check(
        &serve(&[
            "--tls-cert",
            "/nonexistent",
            "--tls-key",
            "x",
            "--client-ca",
            "x",
        ]),
        1,
        &[
            "cannot read the certificate of this server `/nonexistent`",
            "hint: is the path right",
        ],
    );
}

// ------------------------------------------------- hostile agents, by hand

async fn line(world: &World, address: &str, stem: &str) -> Line {
    let files = ClientFiles {
        ca: Some(world.cert("ca.pem").into()),
        cert: Some(world.cert(&format!("{stem}.pem")).into()),
        key: Some(world.cert(&format!("{stem}.key")).into()),
        token: None,
    };
    let clock = Arc::new(SystemClock::new());
    let dialer = Dialer::new(&format!("https://{address}"), &files, clock).expect("usable");
    dialer.dial(LIMIT, |e| e).await.expect("connects")
}

type Session = (
    tokio::sync::mpsc::Sender<wire::AgentMessage>,
    Streaming<wire::AggregatorMessage>,
);

async fn session(line: &Line, id: &str, incarnation: Incarnation) -> Session {
    let (out, rx) = tokio::sync::mpsc::channel(64);
    let hello = wire::Hello {
        protocol: 1,
        agent_id: id.to_owned(),
        incarnation: incarnation.get(),
        clock: Some((&SystemClock::new().key()).into()),
        targets: vec![wire::TargetOffer {
            name: "db".to_owned(),
            address: "127.0.0.1:1".to_owned(),
            user: "u".to_owned(),
        }],
        ..wire::Hello::default()
    };
    out.send(wire::AgentMessage {
        kind: Some(Say::Hello(hello)),
    })
    .await
    .expect("there is room");
    let mut client = CollectorClient::new(line.service());
    let inbound = client
        .session(ReceiverStream::new(rx))
        .await
        .expect("opens");
    (out, inbound.into_inner())
}

async fn hear<T>(session: &mut Session, pick: impl Fn(Hear) -> Option<T>) -> Result<T, Status> {
    let waiting = async {
        loop {
            let message = session.1.message().await?;
            let message = message.ok_or_else(|| Status::cancelled("the end"))?;
            if let Some(found) = message.kind.and_then(&pick) {
                return Ok(found);
            }
        }
    };
    tokio::time::timeout(LIMIT, waiting)
        .await
        .expect("something is heard")
}

fn plan_of(kind: Hear) -> Option<wire::RunPlan> {
    match kind {
        Hear::StartRun(start) => start.plan,
        _ => None,
    }
}

/// A stolen agent's key opens nothing but what that agent had.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_can_do_nothing_in_another_s_name() {
    let world = World::with_certificates();
    let (_aggregator, address) = world.serve_tls(&[]);
    let url = format!("https://{address}");
    let victims = line(&world, &address, "agent-east-1").await;
    let thiefs = line(&world, &address, "agent-east-2").await;

    // It cannot take the other's place.
    let mut as_other = session(&thiefs, "east-1", Incarnation::generate()).await;
    let refused = hear(&mut as_other, |kind| {
        matches!(kind, Hear::Welcome(_)).then_some(())
    })
    .await;
    assert_eq!(refused.expect_err("refused").code(), Code::PermissionDenied);

    // Nor control anything.
    let mut control = ControlClient::new(thiefs.service());
    let codes = [
        control
            .start_run(wire::StartRunRequest::default())
            .await
            .err(),
        control
            .stop_run(wire::StopRunRequest::default())
            .await
            .err(),
        control
            .record_fault(wire::RecordFaultRequest::default())
            .await
            .err(),
        control
            .list_runs(wire::ListRunsRequest::default())
            .await
            .err(),
        control
            .list_agents(wire::ListAgentsRequest::default())
            .await
            .err(),
        control
            .watch_run(wire::WatchRunRequest::default())
            .await
            .err(),
    ]
    .map(|status| status.map(|status| status.code()));
    assert_eq!(codes, [Some(Code::PermissionDenied); 6]);

    // Nor add to a run that it was not chosen for, or hear its plan.
    let own = Incarnation::generate();
    let mut victim = session(&victims, "east-1", own).await;
    let mut thief = session(&thiefs, "east-2", Incarnation::generate()).await;
    for session in [&mut victim, &mut thief] {
        hear(session, |kind| {
            matches!(kind, Hear::Welcome(_)).then_some(())
        })
        .await
        .expect("let in");
    }
    let world = Arc::new(world);
    let (asking, at) = (world.clone(), url.clone());
    let starting = tokio::task::spawn_blocking(move || {
        asking.ask(
            &at,
            "operator",
            &[
                "start",
                "--target",
                "db",
                "--agent",
                "east-1",
                "--duration",
                "1h",
            ],
        )
    });
    let plan = hear(&mut victim, plan_of).await.expect("a plan");
    let run: RunId = plan.run_id.parse().expect("an id");
    let stream = |incarnation, kind| StreamId {
        run,
        incarnation,
        kind,
    };
    let host = Frame {
        stream: stream(own, StreamKind::Host),
        first_seq: 1,
        body: Body::Host(vec![gapscope_proto::host::HostRecord::Started(
            gapscope_proto::host::ProbingStarted {
                origin_ns: 1,
                planned_end_ns: 2,
                clock: SystemClock::new().key(),
            },
        )]),
    };
    let frame = |frame: &Frame| wire::AgentMessage {
        kind: Some(Say::Frame(frame.into())),
    };
    victim.0.send(frame(&host)).await.expect("open");
    check(
        &starting.await.expect("no panic"),
        0,
        &["started on east-1"],
    );
    for incarnation in [own, Incarnation::generate()] {
        let forged = Frame {
            stream: stream(incarnation, StreamKind::Samples),
            first_seq: 1,
            body: Body::Samples(Columns::encode(&[])),
        };
        thief
            .0
            .send(frame(&Frame {
                body: host.body.clone(),
                stream: stream(incarnation, StreamKind::Host),
                ..forged
            }))
            .await
            .expect("open");
        let nack = hear(&mut thief, |kind| match kind {
            Hear::Nack(nack) => Some(nack),
            Hear::StartRun(start) => panic!("another's plan: {start:?}"),
            _ => None,
        })
        .await
        .expect("an answer");
        assert_eq!(nack.reason(), wire::NackReason::UnknownRun, "{nack:?}");
        assert!(nack.detail.contains("was not chosen"), "{nack:?}");
    }
    let manifest = world
        .path("data")
        .join(run.to_string())
        .join("manifest.json");
    let manifest = std::fs::read_to_string(manifest).expect("readable");
    assert!(!manifest.contains("east-2"), "{manifest}");
}

/// Who never says who he is does not keep a connection; who stalls harms nobody.
#[tokio::test(flavor = "multi_thread")]
async fn silent_and_garbled_connections_harm_nobody() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let world = World::with_certificates();
    let (_aggregator, address) = world.serve_tls(&[]);
    let url = format!("https://{address}");
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(
            tokio::net::TcpStream::connect(&address)
                .await
                .expect("connects"),
        );
    }
    let mut garbled = tokio::net::TcpStream::connect(&address)
        .await
        .expect("connects");
    garbled
        .write_all(&[0x16, 3, 1, 0xff, 0xff, 1, 2, 3])
        .await
        .expect("written");
    let mut half = tokio::net::TcpStream::connect(&address)
        .await
        .expect("connects");
    half.write_all(&[0x16]).await.expect("written");
    // Others are served meanwhile.
    assert!(world.ask(&url, "operator", &["agents"]).status.success());
    // The garbled one is cut, with an alert at most.
    let mut rest = Vec::new();
    let read = tokio::time::timeout(LIMIT, garbled.read_to_end(&mut rest)).await;
    assert!(read.is_ok() && rest.len() < 64, "{rest:?}");
    // The stalled ones too, in time.
    let mut one = [0];
    for stream in silent.iter_mut().chain([&mut half]) {
        let read = tokio::time::timeout(LIMIT, stream.read(&mut one))
            .await
            .expect("cut");
        assert!(!matches!(read, Ok(n) if n > 0) || one[0] == 0x15);
    }
    assert!(world.ask(&url, "operator", &["agents"]).status.success());
}
