//! The process runtime with real MariaDB servers and a real HAProxy. Where one is
//! not installed, each test says so and checks nothing.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use gapscope_lab::children::Itself;
use gapscope_lab::clock_wait::until;
use gapscope_lab::error::Result;
use gapscope_lab::identity;
use gapscope_lab::lab::{Lab, Make};
use gapscope_lab::login::ask;
use gapscope_lab::play::{Player, Record};
use gapscope_lab::runtime::process::find::{Named, find};
use gapscope_lab::scenario::{Action, BackendKind, RuntimeKind, Scenario};
use gapscope_lab::timeline::Due;
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::fault::{Fault, FaultScope, Span, Subject};

const MS: u64 = 1_000_000;

fn lab_program() -> &'static str {
    env!("CARGO_BIN_EXE_gapscope-lab")
}

/// Whether the programs are here; says so if not.
fn installed() -> bool {
    for aliases in [&["mariadbd", "mysqld"][..], &["haproxy"][..]] {
        if find(&Named::new(), aliases, "").is_err() {
            eprintln!("skipped: {} is not installed", aliases[0]);
            return false;
        }
    }
    true
}

fn scenario() -> Scenario {
    Scenario::parse(
        "test",
        "name = \"t\"\nduration = \"60s\"\n[[backend]]\nname = \"backend-1\"\n[[backend]]\nname = \
         \"backend-2\"\n[[proxy]]\nname = \"haproxy\"\n",
    )
    .expect("a valid scenario")
}

async fn lab(clock: &Arc<dyn Clock>) -> Lab {
    Lab::up(
        Make {
            scenario: &scenario(),
            runtime: RuntimeKind::Process,
            hurt_others: false,
            backend: BackendKind::Mariadb,
            itself: Itself::at(lab_program()),
            named: Named::new(),
            clock: Arc::clone(clock),
        },
        |_| {},
    )
    .await
    .expect("a lab comes up")
}

/// Keeps every version of every fault.
#[derive(Default)]
struct Kept(Vec<Fault>);

impl Record for Kept {
    fn record<'a>(&'a mut self, fault: &'a Fault) -> LocalBoxFuture<'a, Result<u32>> {
        let mut fault = fault.clone();
        if fault.id == 0 {
            let known = self.0.iter().map(|kept| kept.id).max().unwrap_or(0);
            fault.id = known + 1;
        }
        let id = fault.id;
        self.0.push(fault);
        async move { Ok(id) }.boxed_local()
    }
}

impl Kept {
    fn last(&self, id: u32) -> &Fault {
        self.0
            .iter()
            .rev()
            .find(|fault| fault.id == id)
            .expect("it was recorded")
    }
}

fn due(at_ms: u64, action: Action) -> Due {
    Due {
        at_ns: at_ms * MS,
        action,
        subject: "backend-1".to_owned(),
        grace_ns: None,
        lasts_ns: None,
        to: None,
        is_restart: false,
    }
}

/// Plays for `for_ms`, then returns what was recorded.
async fn play(
    lab: &mut Lab,
    subjects: &[Subject],
    clock: &Arc<dyn Clock>,
    steps: &[Due],
    for_ms: u64,
) -> Kept {
    let mut kept = Kept::default();
    let mut say = |_: &str| {};
    let origin = clock.raw_ns();
    let end = origin + i64::try_from(for_ms * MS).expect("small");
    let mut player = Player::new(
        Arc::clone(clock),
        &mut lab.backends,
        &mut lab.proxies,
        subjects,
        &mut kept,
        &mut say,
    );
    tokio::select! {
        () = until(clock.as_ref(), end) => {}
        played = player.play(steps, origin) => panic!("the player ended: {played:?}"),
    }
    drop(player);
    kept
}

#[track_caller]
fn well_formed(span: Span, asked: Span) {
    assert!(span.earliest_ns <= span.latest_ns, "{span:?}");
    assert!(span.earliest_ns >= asked.earliest_ns, "{span:?} {asked:?}");
}

/// Children of a process, with their start times.
fn children_of(pid: u32) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Ok(child) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        if let Some(fields) = stat(child)
            && fields
                .get(1)
                .is_some_and(|parent| *parent == pid.to_string())
        {
            found.push((child, fields[19].clone()));
        }
    }
    found
}

/// Fields of /proc/PID/stat from the state on.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// Whether that very process still runs.
fn runs(pid: u32, started: &str) -> bool {
    stat(pid).is_some_and(|fields| fields[19] == started && fields[0] != "Z")
}

#[tokio::test]
async fn a_stopped_server_is_witnessed_and_a_lab_leaves_nothing() {
    if !installed() {
        return;
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut lab = lab(&clock).await;
    let folder = lab.folder.path().to_owned();
    let found = identity::find(&lab.backends, &lab.login, None)
        .await
        .expect("identities");
    assert!(!found.expression.contains('@'));
    let identities: Vec<_> = found
        .subjects
        .iter()
        .map(|subject| subject.identity.clone().expect("known"))
        .collect();
    assert_ne!(identities[0], identities[1]);
    let proxy = lab.proxies[0].address();
    let login = lab.login.clone();
    let through = |seconds| {
        let (login, expression) = (login.clone(), found.expression.clone());
        async move {
            ask(proxy, &login, &expression, Duration::from_secs(seconds))
                .await
                .ok()
                .and_then(|answer| answer.identity)
        }
    };
    assert_eq!(through(5).await.as_ref(), Some(&identities[0]));

    let steps = [due(300, Action::Stop)];
    let kept = play(&mut lab, &found.subjects, &clock, &steps, 6_000).await;
    let fault = kept.last(1);
    assert_eq!(fault.step, "stop");
    assert_eq!(fault.scope, FaultScope::Backend);
    assert_eq!(fault.identity.as_ref(), Some(&identities[0]));
    let refused = fault.listener_refused.expect("the listener was watched");
    let cut = fault.held_cut.expect("a held connection was watched");
    let gone = fault.gone.expect("the process was waited for");
    for span in [refused, cut, gone] {
        well_formed(span, fault.asked);
    }
    assert!(refused.latest_ns <= gone.latest_ns, "{fault:?}");
    assert!(cut.latest_ns <= gone.latest_ns, "{fault:?}");
    // A witness that looks every millisecond is sure to some milliseconds.
    assert!(cut.latest_ns - cut.earliest_ns < 100_000_000, "{fault:?}");
    assert!(
        fault.detail.contains("SIGTERM") && fault.detail.contains("ended"),
        "{fault:?}"
    );
    // Down after two failed checks 2 s apart, then the backup serves.
    assert_eq!(through(10).await.as_ref(), Some(&identities[1]));

    let children = children_of(std::process::id());
    lab.down().await;
    assert!(!folder.exists(), "{} was left", folder.display());
    for (pid, started) in children {
        if ours(&folder, pid) {
            assert!(!runs(pid, &started), "process {pid} was left");
        }
    }
    assert!(!any_process_names(&folder), "a process was left");
}

fn ours(folder: &Path, pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&*folder.to_string_lossy()))
}

/// Whether any process was started with something below `folder`.
fn any_process_names(folder: &Path) -> bool {
    std::fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok())
        .any(|pid| ours(folder, pid))
}

#[tokio::test]
async fn a_server_can_be_hung_resumed_killed_and_started_again() {
    if !installed() {
        return;
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut lab = lab(&clock).await;
    let found = identity::find(&lab.backends, &lab.login, None)
        .await
        .expect("identities");
    let direct = lab.backends[0].address();
    let login = lab.login.clone();
    let answers = |within_ms| {
        let login = login.clone();
        async move {
            ask(direct, &login, "1", Duration::from_millis(within_ms))
                .await
                .is_ok()
        }
    };

    let kept = play(
        &mut lab,
        &found.subjects,
        &clock,
        &[due(0, Action::Hang)],
        300,
    )
    .await;
    assert!(!answers(500).await, "a stopped process answers nobody");
    assert!(kept.last(1).detail.contains("seen stopped"), "{:?}", kept.0);
    assert_eq!(kept.last(1).listener_refused, None, "it accepts still");

    let steps = [due(0, Action::Resume)];
    let kept = play(&mut lab, &found.subjects, &clock, &steps, 100).await;
    assert!(
        kept.0.is_empty(),
        "its fault was another player's: {:?}",
        kept.0
    );
    assert!(answers(5_000).await);

    let steps = [
        due(100, Action::Hang),
        due(400, Action::Resume),
        due(700, Action::Kill),
        due(1_500, Action::Start),
    ];
    let kept = play(&mut lab, &found.subjects, &clock, &steps, 8_000).await;
    let (hang, kill, start) = (kept.last(1), kept.last(2), kept.last(3));
    let cleared = hang.cleared.expect("it was resumed");
    let held_for = cleared.earliest_ns - hang.asked.latest_ns;
    assert!((250_000_000..600_000_000).contains(&held_for), "{held_for}");
    assert_eq!(kill.step, "kill");
    let gone = kill.gone.expect("waited for");
    assert!(
        gone.latest_ns - kill.asked.earliest_ns < 1_000_000_000,
        "{kill:?}"
    );
    assert!(kill.held_cut.is_some() && kill.listener_refused.is_some());
    let back = kill.cleared.expect("it was started again");
    assert!(back.latest_ns > start.asked.latest_ns);
    assert_eq!(start.scope, FaultScope::Failback);
    assert!(answers(5_000).await);
    lab.down().await;
}

/// A lab of its own process, up to its proxy, in a temporary folder of its own.
struct Running {
    process: std::process::Child,
    lines: Vec<String>,
    temp: tempfile::TempDir,
    _data: tempfile::TempDir,
}

fn run_until_the_proxy_is_up() -> Running {
    let temp = tempfile::tempdir().expect("a folder");
    // The servers' user has to pass through.
    std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o711)).expect("set");
    let data = tempfile::tempdir().expect("a folder");
    let mut process = Command::new(lab_program())
        .args(["run", "switchover", "--runtime", "process", "--data"])
        .arg(data.path())
        .env("TMPDIR", temp.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the lab starts");
    let mut reader = BufReader::new(process.stderr.take().expect("piped"));
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        let read = reader.read_line(&mut line).expect("text");
        assert!(read > 0, "the lab ended early: {lines:#?}");
        let up = line.starts_with("proxy `haproxy`");
        lines.push(line);
        if up {
            break;
        }
    }
    // Keeps the pipe open and empty.
    std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    Running {
        process,
        lines,
        temp,
        _data: data,
    }
}

impl Running {
    fn folders(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.temp.path())
            .expect("readable")
            .flatten()
            .map(|entry| entry.path())
            .collect()
    }

    /// Waits until no process of the lab's and no folder is left.
    async fn nothing_is_left(&self, children: &[(u32, String)]) {
        // The janitor alone gives the others ten seconds to go by themselves.
        for _ in 0..800 {
            let left: Vec<_> = children
                .iter()
                .filter(|(pid, started)| runs(*pid, started))
                .collect();
            if left.is_empty() && self.folders().is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!(
            "left: {:?}, processes {:?} of {children:?}; it had said {:#?}",
            self.folders(),
            children
                .iter()
                .filter(|(pid, started)| runs(*pid, started))
                .collect::<Vec<_>>(),
            self.lines
        );
    }
}

#[tokio::test]
async fn a_killed_lab_leaves_nothing() {
    if !installed() {
        return;
    }
    let mut running = run_until_the_proxy_is_up();
    let children = children_of(running.process.id());
    assert!(
        children.len() >= 4,
        "two servers, a proxy, a janitor: {children:?}"
    );
    assert_eq!(running.folders().len(), 1);
    running.process.kill().expect("killed");
    running.process.wait().expect("waited for");
    running.nothing_is_left(&children).await;
}

#[tokio::test]
async fn an_interrupted_lab_leaves_nothing() {
    if !installed() {
        return;
    }
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let mut running = run_until_the_proxy_is_up();
        let children = children_of(running.process.id());
        let pid = i32::try_from(running.process.id()).expect("a process id");
        let pid = rustix::process::Pid::from_raw(pid).expect("not zero");
        rustix::process::kill_process(pid, signal).expect("sent");
        let status = running.process.wait().expect("waited for");
        assert_eq!(status.code(), Some(1), "an orderly end, not {status}");
        running.nothing_is_left(&children).await;
    }
}

#[test]
fn a_missing_program_is_told_and_leaves_nothing() {
    let temp = tempfile::tempdir().expect("a folder");
    let data = tempfile::tempdir().expect("a folder");
    let output = Command::new(lab_program())
        .args(["run", "switchover", "--proxy", "haproxy"])
        .args(["--program", "haproxy=/nonexistent/haproxy", "--data"])
        .arg(data.path())
        .env("TMPDIR", temp.path())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("error: haproxy was named as /nonexistent/haproxy"),
        "{said}"
    );
    assert!(said.contains("hint: "), "{said}");
    assert_eq!(std::fs::read_dir(temp.path()).expect("readable").count(), 0);
}

#[test]
fn what_cannot_be_run_is_a_usage_error() {
    let data = tempfile::tempdir().expect("a folder");
    let run = |args: &[&str]| {
        let output = Command::new(lab_program())
            .args(args)
            .arg("--data")
            .arg(data.path())
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let (code, said) = run(&["run", "switchovr"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("neither a shipped scenario nor a file"),
        "{said}"
    );
    let (code, said) = run(&["run", "switchover", "--duration", "11s"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("comes after the end of the run at 11 s"),
        "{said}"
    );
    let (code, said) = run(&["run", "switchover", "--fault", "explode"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("black_hole"), "{said}");
    let (code, said) = run(&["run", "switchover", "--fault", "reject"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("not applicable"), "{said}");
    let (code, said) = run(&["run", "baseline", "--fault", "stop"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("has no fault that could become it"), "{said}");
    let (code, said) = run(&["run", "switchover", "--proxy", "haproxy,haproxy"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--proxy haproxy is given twice"), "{said}");
    let missing = "haproxy=/nonexistent/haproxy";
    let (code, said) = run(&[
        "run",
        "switchover",
        "--proxy",
        "haproxy",
        "--dry-run",
        "--program",
        missing,
    ]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("could not be done here") && said.contains("/nonexistent/haproxy"),
        "{said}"
    );
    // Whatever is wrong with the last run is told before the first.
    for (more, code, why) in [
        (
            ["switchovr", "--proxy", "l4-passthrough"],
            2,
            "neither a shipped scenario nor a file",
        ),
        (["killed", "--proxy", "haproxy"], 1, "/nonexistent/haproxy"),
        (
            ["killed", "--proxy", "nginx,nginx"],
            2,
            "--proxy nginx is given twice",
        ),
    ] {
        let mut args = vec!["matrix", "baseline", "--program", missing];
        args.extend(more);
        let (found, said) = run(&args);
        assert_eq!(found, Some(code), "{said}");
        assert!(said.contains(why), "{said}");
        assert!(!said.contains("load on each target"), "{said}");
    }
    let (code, said) = run(&["run", "switchover", "--proxy", "haprox"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("haproxy-mysql-check"), "{said}");
}
