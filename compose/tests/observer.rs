//! The instrument against an independent observer: a real MariaDB behind a real
//! HAProxy is stopped and killed while gapscope probes, and plain loops of the
//! test's own (1 ms, one on a held connection, one that connects each time)
//! watch the same proxy. Both say how long the service was out, as an interval;
//! two true intervals about one outage have something in common.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::real;
use gapscope_aggregator::analyse::row::{Scope, Window};
use gapscope_aggregator::analyse::run::analyse;
use gapscope_aggregator::store::reader::RunFolder;
use gapscope_lab::scenario::Action;
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::sample::Style;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};

const MS: i64 = 1_000_000;

/// When a probe of the observer began and ended, and whether it was answered.
type Seen = (i64, i64, bool);

struct Observer {
    end: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Vec<Seen>>,
}

impl Observer {
    fn start(address: SocketAddr, user: &str, password: &str, held: bool) -> Self {
        let opts: Opts = OptsBuilder::default()
            .ip_or_hostname(address.ip().to_string())
            .tcp_port(address.port())
            .user(Some(user))
            .pass(Some(password))
            .prefer_socket(false)
            .max_allowed_packet(Some(1 << 20))
            .wait_timeout(Some(3_600))
            .into();
        let end = Arc::new(AtomicBool::new(false));
        let stop = end.clone();
        let thread = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime")
                .block_on(watch(opts, held, &stop))
        });
        Self { end, thread }
    }

    fn finish(self) -> Vec<Seen> {
        self.end.store(true, Ordering::SeqCst);
        self.thread.join().expect("the observer")
    }
}

async fn watch(opts: Opts, held: bool, end: &AtomicBool) -> Vec<Seen> {
    let clock = SystemClock::new();
    let patience = Duration::from_secs(5);
    let mut seen = Vec::new();
    let mut connection: Option<Conn> = None;
    while !end.load(Ordering::SeqCst) {
        let began = clock.raw_ns();
        let answered = async {
            let mut conn = match connection.take() {
                Some(conn) => conn,
                None => Conn::new(opts.clone()).await.ok()?,
            };
            let answer: Option<u32> = conn.query_first("SELECT 1").await.ok()?;
            (answer == Some(1)).then_some(conn)
        };
        let outcome = tokio::time::timeout(patience, answered)
            .await
            .ok()
            .flatten();
        seen.push((began, clock.raw_ns(), outcome.is_some()));
        match (outcome, held) {
            (Some(conn), true) => connection = Some(conn),
            (Some(conn), false) => {
                let _ = conn.disconnect().await;
            }
            (None, _) => {}
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    seen
}

/// How long the service was out, by what was seen: at least, at most.
fn outage(seen: &[Seen]) -> Option<(i64, i64)> {
    let b0 = seen.iter().position(|s| !s.2)?;
    let bn = seen.iter().rposition(|s| !s.2)?;
    let g0 = seen[..b0].last()?;
    let g1 = seen.get(bn + 1)?;
    Some(((seen[bn].0 - seen[b0].1).max(0), g1.1 - g0.0))
}

const SCENARIO: &str = r#"
name = "observed"
duration = "60s"
[clients]
reused = 2
interval = "10ms"
new = 1
new_interval = "100ms"
timeout = "5s"
[[backend]]
name = "db-1"
[[backend]]
name = "db-2"
[[proxy]]
name = "haproxy"
kind = "haproxy"
"#;

#[expect(
    clippy::print_stdout,
    reason = "a test says what it saw, or that it was skipped"
)]
fn say(text: &str) {
    println!("{text}");
}

#[test]
fn both_agree_on_a_stopped_server() {
    observe(Action::Stop);
}

#[test]
fn both_agree_on_a_killed_server() {
    observe(Action::Kill);
}

fn observe(action: Action) {
    if !real::are_installed() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let (folder, run, held, fresh) = tokio::task::LocalSet::new().block_on(&runtime, async {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut lab = real::up(SCENARIO).await;
        let proxy = lab.proxies[0].address();
        let config = real::agent_config(&lab, folder.path(), proxy);
        let data = folder.path().to_owned();
        // Started from this thread, which lives as long as they should: a child's
        // parent-death signal follows the thread that made it.
        let aggregator = common::Aggregator::start(&data);
        let _agent = common::agent(&aggregator, "prober", &config);
        common::wait_for_agent(&aggregator, "prober");
        let run = aggregator.command(&[
            "start",
            "--target",
            "haproxy",
            "--duration",
            "60s",
            "--reused",
            "2",
            "--patient",
            "0",
            "--new",
            "1",
            "--new-interval",
            "100ms",
        ]);

        let held = Observer::start(proxy, &lab.login.user, &lab.login.password, true);
        let fresh = Observer::start(proxy, &lab.login.user, &lab.login.password, false);
        // Healthy for a while, so that a last good probe is there.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        lab.backends[0].prepare(action).await.expect("witnesses");
        let applied = lab.backends[0]
            .apply(&real::now(action))
            .await
            .expect("the fault is done");
        // HAProxy needs two checks of 2 s, a client one more second to retry.
        tokio::time::sleep(Duration::from_secs(9)).await;
        drop(applied);
        let (held, fresh) = tokio::task::spawn_blocking(move || (held.finish(), fresh.finish()))
            .await
            .expect("the observers end");
        aggregator.command(&["stop", &run]);
        lab.down().await;
        (folder, run, held, fresh)
    });
    let analysis =
        analyse(&RunFolder::open(&folder.path().join(&run)).expect("a run")).expect("analysed");
    for (style, seen) in [(Style::Reused, held), (Style::New, fresh)] {
        let (least, most) = outage(&seen)
            .unwrap_or_else(|| panic!("the observer of {style} saw no outage with two ends"));
        let (_, row) = analysis
            .rows
            .iter()
            .find(|(_, row)| row.style == style)
            .expect("a row");
        let longest: Vec<&Window> = (0..u16::try_from(row.clients).expect("few"))
            .map(|client| {
                row.windows
                    .iter()
                    .filter(|w| w.scope == Scope::Client(client))
                    .max_by_key(|w| w.upper_ns)
                    .unwrap_or_else(|| panic!("{style} client {client} was not hurt"))
            })
            .collect();
        for window in longest {
            let upper = window.upper_ns.expect("closed on both sides");
            say(&format!(
                "{action:?} {style}: gapscope {}..{} ms, observer {}..{} ms",
                window.lower_ns / MS,
                upper / MS,
                least / MS,
                most / MS
            ));
            assert!(
                window.lower_ns <= most && least <= upper,
                "{action:?} {style}: gapscope says {}..{upper} ns, the observer {least}..{most} ns",
                window.lower_ns
            );
            // A health check every 2 s, down at the second: 2 to 4 s, and up
            // to a second for HAProxy's own retry.
            assert!(
                upper > 1_900 * MS && window.lower_ns < 5_500 * MS,
                "{window:?}"
            );
        }
    }
    assert_eq!(analysis.conservation.lost.1, 0);
}
