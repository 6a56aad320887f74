//! One timeline for agents whose clocks differ by thousands of seconds.
//!
//! Two agents run in network and time namespaces of their own (`unshare -T` shifts
//! RAW under the same boot id) and probe one MariaDB through one HAProxy, in which
//! the server is killed once. How far their clocks are off is known to the
//! nanosecond, and a plain loop of the test's own watches the same proxy by the
//! aggregator's clock. Aligned, all three agree within the bounds; unaligned, the
//! agents are thousands of seconds apart.
//!
//! Needs root, `ip`, `unshare`, MariaDB and HAProxy; says so and passes otherwise.

#![expect(
    clippy::print_stdout,
    reason = "what is measured is printed, and what is missing is said"
)]

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::real;
use gapscope_aggregator::align::map::Relation;
use gapscope_aggregator::analyse::across::View;
use gapscope_aggregator::analyse::row::{Scope, Window};
use gapscope_aggregator::analyse::run::{Analysis, analyse};
use gapscope_aggregator::store::reader::RunFolder;
use gapscope_lab::scenario::Action;
use gapscope_proto::clock::{Clock, ClockKey, SystemClock};
use gapscope_proto::sample::Style;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};

const MS: i64 = 1_000_000;
const S: i64 = 1_000_000_000;

/// By how many seconds each agent's clock is ahead.
const SHIFTS_S: [i64; 2] = [5_000, 9_000];

const SCENARIO: &str = r#"
name = "two-hosts"
duration = "60s"
[clients]
reused = 1
interval = "10ms"
new = 1
new_interval = "50ms"
timeout = "5s"
[[backend]]
name = "db-1"
[[backend]]
name = "db-2"
[[proxy]]
name = "haproxy"
kind = "haproxy"
"#;

fn quietly(program: &str, args: &[&str]) -> bool {
    Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Network namespaces, each with a link of its own to the outside. They go when
/// this is dropped.
struct Hosts {
    names: Vec<String>,
    links: Vec<String>,
    outside: IpAddr,
}

impl Hosts {
    /// None, with what is missing, if they cannot be made here.
    fn make(count: u8) -> Result<Self, &'static str> {
        if !rustix::process::geteuid().is_root() {
            return Err("root");
        }
        if !quietly(
            "unshare",
            &["-T", "--monotonic", "1", "--boottime", "1", "true"],
        ) {
            return Err("time namespaces (unshare -T)");
        }
        let number = std::process::id();
        let third = u8::try_from(number % 250).expect("small");
        let second = u8::try_from(number / 250 % 250).expect("small");
        let mut hosts = Self {
            names: Vec::new(),
            links: Vec::new(),
            outside: Ipv4Addr::new(10, second, third, 1).into(),
        };
        for host in 0..count {
            let name = format!("gapscope-{number}-{host}");
            let (near, far) = (format!("gs{number}h{host}"), format!("gs{number}n{host}"));
            if !quietly("ip", &["netns", "add", &name]) {
                return Err("network namespaces (ip netns)");
            }
            hosts.names.push(name.clone());
            let is_linked = quietly(
                "ip",
                &[
                    "link", "add", &near, "type", "veth", "peer", "name", &far, "netns", &name,
                ],
            );
            if !is_linked {
                return Err("virtual links (veth)");
            }
            hosts.links.push(near.clone());
            let gate = format!("10.{second}.{third}.{}", host * 4 + 1);
            let own = format!("10.{second}.{third}.{}/30", host * 4 + 2);
            let within: &[&str] = &["-n", &name];
            let done = quietly("ip", &["addr", "add", &format!("{gate}/30"), "dev", &near])
                && quietly("ip", &["link", "set", &near, "up"])
                && quietly(
                    "ip",
                    &[within, &["addr", "add", &own, "dev", &far]].concat(),
                )
                && quietly("ip", &[within, &["link", "set", &far, "up"]].concat())
                && quietly("ip", &[within, &["link", "set", "lo", "up"]].concat())
                && quietly(
                    "ip",
                    &[within, &["route", "add", "default", "via", &gate]].concat(),
                );
            if !done {
                return Err("addresses in network namespaces");
            }
        }
        Ok(hosts)
    }

    /// Starts the lab's program on a host, with its clock ahead.
    fn command(&self, host: usize, ahead_s: i64) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.names[host], "unshare", "-T"])
            .args(["--monotonic", &ahead_s.to_string()])
            .args(["--boottime", &ahead_s.to_string()])
            .arg("--")
            .arg(env!("CARGO_BIN_EXE_gapscope-lab"))
            .env("NO_COLOR", "1")
            .stdin(Stdio::null());
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for link in &self.links {
            quietly("ip", &["link", "del", link]);
        }
        for name in &self.names {
            quietly("ip", &["netns", "del", name]);
        }
    }
}

fn on_its_own_thread<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> std::thread::JoinHandle<T> {
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(work)
    })
}

/// Carries connections from where the agents reach it to the proxy's loopback.
fn forward(from: IpAddr, to: SocketAddr) -> SocketAddr {
    let listener = std::net::TcpListener::bind((from, 0)).expect("the link's address");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("bound");
    on_its_own_thread(async move {
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        while let Ok((mut near, _)) = listener.accept().await {
            tokio::spawn(async move {
                if let Ok(mut far) = tokio::net::TcpStream::connect(to).await {
                    let _ = near.set_nodelay(true);
                    let _ = far.set_nodelay(true);
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                }
            });
        }
    });
    address
}

/// When a probe of the observer began and ended, and whether it was answered.
type Seen = (i64, i64, bool);

/// Connects, asks and leaves, each 5 ms.
async fn watch(opts: Opts, end: Arc<AtomicBool>) -> Vec<Seen> {
    let clock = SystemClock::new();
    let mut seen = Vec::new();
    while !end.load(Ordering::SeqCst) {
        let began = clock.raw_ns();
        let asked = async {
            let mut conn = Conn::new(opts.clone()).await.ok()?;
            let answer: Option<u32> = conn.query_first("SELECT 1").await.ok()?;
            (answer == Some(1)).then_some(conn)
        };
        let outcome = tokio::time::timeout(Duration::from_secs(5), asked)
            .await
            .ok()
            .flatten();
        seen.push((began, clock.raw_ns(), outcome.is_some()));
        if let Some(conn) = outcome {
            let _ = conn.disconnect().await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    seen
}

/// From when until when the service was out: surely within `outer`, surely
/// throughout `inner`.
#[derive(Debug, Clone, Copy)]
struct Outage {
    outer: (i64, i64),
    inner: (i64, i64),
}

fn observed(seen: &[Seen]) -> Outage {
    let b0 = seen.iter().position(|s| !s.2).expect("a bad probe");
    let bn = seen.iter().rposition(|s| !s.2).expect("a bad probe");
    Outage {
        outer: (seen[b0 - 1].0, seen[bn + 1].1),
        inner: (seen[b0].1, seen[bn].0),
    }
}

fn longest(analysis: &Analysis, agent: &str, style: Style) -> Window {
    let (_, row) = analysis
        .rows
        .iter()
        .find(|(_, row)| row.style == style && row.agent.as_str() == agent)
        .expect("a row");
    *row.windows
        .iter()
        .filter(|w| matches!(w.scope, Scope::Client(_)))
        .max_by_key(|w| w.upper_ns)
        .unwrap_or_else(|| panic!("{agent} was not hurt"))
}

/// The window on the aggregator's clock.
fn aligned(analysis: &Analysis, clock: &ClockKey, window: &Window) -> Outage {
    let place = |ns: Option<i64>| {
        analysis
            .clocks
            .on_timeline(ns.expect("closed on both sides"), clock)
            .expect("related")
    };
    let (first, last) = window.inner_ns.expect("a client's window");
    Outage {
        outer: (
            place(window.from_ns).earliest_ns,
            place(window.to_ns).latest_ns,
        ),
        inner: (place(Some(first)).latest_ns, place(Some(last)).earliest_ns),
    }
}

#[test]
fn two_hosts_and_an_observer_agree_on_one_timeline() {
    if !real::are_installed() {
        return;
    }
    let hosts = match Hosts::make(2) {
        Ok(hosts) => hosts,
        Err(missing) => {
            println!("skipped: {missing} cannot be had here");
            return;
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let (folder, run, seen, killed) =
        tokio::task::LocalSet::new().block_on(&runtime, measure(&hosts));
    drop(hosts);
    let analysis =
        analyse(&RunFolder::open(&folder.path().join(&run)).expect("a run")).expect("analysed");
    check(&analysis, observed(&seen), killed);
    let figure = folder.path().join("clock.svg");
    let text = common::lab()
        .args(["aggregator", "clock", &run, "--width", "160", "--data"])
        .arg(folder.path())
        .arg("--svg")
        .arg(&figure)
        .output()
        .expect("the command runs");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    println!("{text}");
    // The middle of the bound, some microseconds to either side of the truth.
    let says = |text: &str, whole: &str, below: &str| text.contains(whole) || text.contains(below);
    assert!(
        text.contains("host-0") && says(&text, "-5000.000", "-4999.999"),
        "{text}"
    );
    let figure = std::fs::read_to_string(figure).expect("the figure is written");
    for word in ["host-0 (clock", "host-1 (clock"] {
        assert!(figure.contains(word), "{word}: {figure}");
    }
    assert!(
        says(&figure, "offset -5000.000", "offset -4999.999")
            && says(&figure, "offset -9000.000", "offset -8999.999"),
        "{figure}"
    );
    let report = common::lab()
        .args(["aggregator", "report", &run, "--width", "200", "--data"])
        .arg(folder.path())
        .output()
        .expect("the command runs");
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    println!("{report}");
    assert!(report.contains("One timeline"), "{report}");
}

/// Does it; gives back the run, what the observer saw, and when the server was
/// killed.
async fn measure(hosts: &Hosts) -> (tempfile::TempDir, String, Vec<Seen>, (i64, i64)) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let clock = SystemClock::new();
    let mut lab = real::up(SCENARIO).await;
    let proxy = lab.proxies[0].address();
    let reached_at = forward(hosts.outside, proxy);
    let config = real::agent_config(&lab, folder.path(), reached_at);
    let aggregator = common::Aggregator::start_at(
        folder.path(),
        &SocketAddr::new(hosts.outside, 0).to_string(),
        &["--insecure-clear-text"],
    );
    let mut agents = Vec::new();
    for (host, ahead_s) in SHIFTS_S.into_iter().enumerate() {
        let id = format!("host-{host}");
        let command = hosts.command(host, ahead_s);
        agents.push(common::agent_by(command, &aggregator, &id, &config));
        common::wait_for_agent(&aggregator, &id);
    }
    let run = aggregator.command(&[
        "start",
        "--target",
        "haproxy",
        "--duration",
        "60s",
        "--reused",
        "1",
        "--patient",
        "0",
        "--new",
        "1",
        "--new-interval",
        "50ms",
    ]);
    let opts: Opts = OptsBuilder::default()
        .ip_or_hostname(proxy.ip().to_string())
        .tcp_port(proxy.port())
        .user(Some(&lab.login.user))
        .pass(Some(&lab.login.password))
        .prefer_socket(false)
        .max_allowed_packet(Some(1 << 20))
        .wait_timeout(Some(3_600))
        .into();
    let end = Arc::new(AtomicBool::new(false));
    let observer = on_its_own_thread(watch(opts, end.clone()));
    // Healthy for a while, so that last good probes are there.
    tokio::time::sleep(Duration::from_secs(3)).await;
    lab.backends[0]
        .prepare(Action::Kill)
        .await
        .expect("witnesses");
    let begin = clock.raw_ns();
    let applied = lab.backends[0]
        .apply(&real::now(Action::Kill))
        .await
        .expect("the server is killed");
    let killed = (begin, clock.raw_ns());
    // HAProxy needs two checks of 2 s, a client one more second to retry.
    tokio::time::sleep(Duration::from_secs(9)).await;
    drop(applied);
    end.store(true, Ordering::SeqCst);
    let seen = tokio::task::spawn_blocking(move || observer.join().expect("the observer"))
        .await
        .expect("the observer ends");
    aggregator.command(&["stop", &run]);
    drop(agents);
    drop(aggregator);
    lab.down().await;
    (folder, run, seen, killed)
}

fn check(analysis: &Analysis, observer: Outage, killed: (i64, i64)) {
    let root = SystemClock::new().key();
    assert_eq!(analysis.manifest.clock, root);
    let mut on_timeline = Vec::new();
    let mut raw = Vec::new();
    for (host, ahead_s) in SHIFTS_S.into_iter().enumerate() {
        let id = format!("host-{host}");
        let timeline = analysis
            .timelines
            .iter()
            .find(|t| t.agent.as_str() == id)
            .expect("a timeline");
        assert_eq!(timeline.clock.boot_id, root.boot_id);
        assert_ne!(timeline.clock.time_namespace, root.time_namespace);
        let Some(Relation::Bounded(track)) = analysis.clocks.relation(&timeline.clock) else {
            panic!("{id}: not related");
        };
        // The truth, known to the nanosecond, at every knot and between.
        let truth = -ahead_s * S;
        let epoch = &track.epochs()[0];
        assert_eq!(track.epochs().len(), 1, "{id}: {:?}", epoch.ended);
        let knots = epoch.corridor.as_ref().expect("exchanges").knots();
        let (first, last) = (knots[0].at_ns, knots[knots.len() - 1].at_ns);
        let mut errors = Vec::new();
        let mut widths = Vec::new();
        for k in 0..=10_000 {
            let knot = track.at(first + (last - first) / 10_000 * k).knot;
            assert!(
                knot.lo_ns <= truth && truth <= knot.hi_ns,
                "{id}: {truth} {knot:?}"
            );
            errors.push((knot.middle_ns() - truth).abs());
            widths.push(knot.half_width_ns());
        }
        errors.sort_unstable();
        widths.sort_unstable();
        println!(
            "{id}: {} exchanges, round trip {:.1} us, bound p50 {:.1} us max {:.1} us, middle \
             off p50 {:.1} us p99 {:.1} us max {:.1} us",
            epoch.exchanges,
            epoch.round_trip_min_ns as f64 / 1e3,
            widths[5_000] as f64 / 1e3,
            widths[10_000] as f64 / 1e3,
            errors[5_000] as f64 / 1e3,
            errors[9_900] as f64 / 1e3,
            errors[10_000] as f64 / 1e3,
        );
        assert!(widths[5_000] < 2 * MS, "{id}: bound {} ns", widths[5_000]);
        // The held connection was cut by the kill: a sharp sight of its moment.
        let held = longest(analysis, &id, Style::Reused);
        let cut = aligned(analysis, &timeline.clock, &held);
        println!(
            "{id}: killed between {:.3} and {:.3} ms after the held client's last good probe \
             began; its first bad one ended after {:.3} ms",
            (killed.0 - cut.outer.0) as f64 / 1e6,
            (killed.1 - cut.outer.0) as f64 / 1e6,
            (cut.inner.0 - cut.outer.0) as f64 / 1e6,
        );
        assert!(
            cut.outer.0 <= killed.1 && killed.0 <= cut.inner.0,
            "{id}: {cut:?}, killed {killed:?}"
        );
        assert!(cut.inner.0 - cut.outer.0 < S, "{id}: {cut:?}");
        let window = longest(analysis, &id, Style::New);
        raw.push(window.from_ns.expect("closed"));
        on_timeline.push((id, aligned(analysis, &timeline.clock, &window)));
    }
    on_timeline.push(("observer".to_owned(), observer));
    for (who, outage) in &on_timeline {
        println!(
            "{who}: killed {:.3}..{:.3} ms after the last good probe's begin, out {:.3}..{:.3} ms",
            (killed.0 - outage.outer.0) as f64 / 1e6,
            (killed.1 - outage.outer.0) as f64 / 1e6,
            (outage.inner.1 - outage.inner.0) as f64 / 1e6,
            (outage.outer.1 - outage.outer.0) as f64 / 1e6,
        );
        // Still served before the kill was over, and not served before it began.
        assert!(
            outage.outer.0 <= killed.1,
            "{who}: {outage:?}, killed {killed:?}"
        );
        assert!(
            outage.inner.0 >= killed.0,
            "{who}: {outage:?}, killed {killed:?}"
        );
        for (other, theirs) in &on_timeline {
            assert!(
                theirs.outer.0 <= outage.inner.0 && outage.inner.1 <= theirs.outer.1,
                "{who} saw it out where {other} was served: {outage:?} {theirs:?}"
            );
        }
    }
    // Unaligned, the same outage lies thousands of seconds apart.
    let apart = raw[1] - raw[0];
    let shift = (SHIFTS_S[1] - SHIFTS_S[0]) * S;
    assert!((apart - shift).abs() < 2 * S, "{apart}");
    assert!(apart.abs() > 1_000 * S);

    let across = analysis
        .across
        .iter()
        .find(|a| a.style == Style::New)
        .expect("two agents probed it");
    let outage = across
        .outages
        .iter()
        .max_by_key(|o| o.any_ns.0)
        .expect("an outage");
    assert!(
        outage
            .views
            .iter()
            .all(|(_, v)| matches!(v, View::Hurt { .. })),
        "{outage:?}"
    );
    let (least, most) = (outage.all_ns.0, outage.all_ns.1.expect("closed"));
    assert!(
        least <= observer.outer.1 - observer.outer.0 && observer.inner.1 - observer.inner.0 <= most,
        "nobody served {least}..{most}, observer {observer:?}"
    );
    assert_eq!(analysis.conservation.lost.1, 0);
}
