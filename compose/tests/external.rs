//! Servers and proxies that the lab did not start: nothing is done to them that was
//! not meant, and what was done is undone whatever becomes of the lab.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use gapscope_lab::embedded::{Backend, BackendConfig, Credentials, L4Config, L4Proxy, PoolMember};
use gapscope_proto::clock::{Clock, SystemClock};

mod common;

/// Two servers and a proxy that the lab knows only by their addresses.
struct There {
    backends: Vec<Backend>,
    proxy: L4Proxy,
}

async fn there() -> There {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut backends = Vec::new();
    for (name, server_id) in [("db-1", 1), ("db-2", 2)] {
        let mut config = BackendConfig::new(name);
        config.server_id = server_id;
        config.credentials = Credentials::new("probe", "secret");
        backends.push(
            Backend::start(config, Arc::clone(&clock))
                .await
                .expect("it starts"),
        );
    }
    let members = backends
        .iter()
        .enumerate()
        .map(|(index, backend)| PoolMember {
            name: backend.name().to_owned(),
            addr: backend.addr(),
            backup: index > 0,
        })
        .collect();
    let proxy = L4Proxy::start(L4Config::new("vip", members), clock)
        .await
        .expect("it starts");
    There { backends, proxy }
}

/// A scenario whose commands leave files behind.
fn scenario(there: &There, folder: &Path, duration: &str) -> std::path::PathBuf {
    let file = folder.join("external.toml");
    let place = |name: &str| folder.join(name).display().to_string();
    let text = format!(
        "name = \"external\"\nduration = \"{duration}\"\n[clients]\nreused = 1\ninterval = \
         \"50ms\"\npatient = 0\nnew = 0\n[external]\nuser = \"probe\"\n\
         [[external.backend]]\nname = \"db-1\"\naddress = \"{}\"\nhang = [\"touch\", \"{}\"]\n\
         resume = [\"touch\", \"{}\"]\n[[external.backend]]\nname = \"db-2\"\naddress = \"{}\"\n\
         [[external.proxy]]\nname = \"vip\"\naddress = \"{}\"\n\
         [[timeline]]\nat = \"1s\"\ndo = \"hang\"\nsubject = \"db-1\"\njitter = \"0s\"\n",
        there.backends[0].addr(),
        place("hung"),
        place("undone"),
        there.backends[1].addr(),
        there.proxy.addr(),
    );
    std::fs::write(&file, text).expect("written");
    file
}

fn command(scenario: &Path, folder: &Path, flags: &[&str]) -> Command {
    let mut command = common::lab();
    command
        .arg("run")
        .arg(scenario)
        .args(flags)
        .arg("--data")
        .arg(folder.join("runs"))
        .env("GAPSCOPE_PASSWORD", "secret");
    command
}

async fn run(scenario: &Path, folder: &Path, flags: &[&str]) -> Output {
    let mut command = tokio::process::Command::from(command(scenario, folder, flags));
    command.output().await.expect("it runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_done_that_was_not_meant() {
    let folder = tempfile::tempdir().expect("a folder");
    let there = there().await;
    let file = scenario(&there, folder.path(), "4s");
    let hung = folder.path().join("hung");

    let output = run(&file, folder.path(), &["--dry-run"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let plan = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(plan.contains("victims: db-1 (not the lab's"), "{plan}");
    assert!(
        plan.contains(&format!("runs: touch {}", hung.display())),
        "{plan}"
    );

    // Nobody is there to be asked.
    let output = run(&file, folder.path(), &[]).await;
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(
        said(&output).contains("--yes says that it is meant"),
        "{}",
        said(&output)
    );

    // Whether others are served there cannot be found out.
    let output = run(&file, folder.path(), &["--yes"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        said(&output).contains("nothing was done to `db-1`"),
        "{}",
        said(&output)
    );
    assert!(!hung.exists() && !folder.path().join("undone").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_is_undone_after_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let there = there().await;
    let file = scenario(&there, folder.path(), "4s");
    let output = run(&file, folder.path(), &["--yes", "--hurt-others"]).await;
    let said = said(&output);
    // 4: on a host that is too busy nobody had an answer just before the step.
    assert!(matches!(output.status.code(), Some(0 | 4)), "{said}");
    assert!(folder.path().join("hung").exists(), "{said}");
    assert!(folder.path().join("undone").exists(), "{said}");
    assert!(said.contains("after the run: resume `db-1`"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_is_undone_though_the_lab_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let there = there().await;
    let file = scenario(&there, folder.path(), "5m");
    let mut lab = common::Running(
        command(&file, folder.path(), &["--yes", "--hurt-others"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts"),
    );
    let hung = folder.path().join("hung");
    common::wait_for("the fault", || hung.exists().then_some(()));
    let undone = folder.path().join("undone");
    assert!(!undone.exists(), "not before");
    lab.0.kill().expect("killed");
    common::wait_for("the dead man's timer", || undone.exists().then_some(()));
}

#[test]
fn a_step_without_the_command_that_undoes_it_is_refused_with_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("wrong.toml");
    let text = "name = \"wrong\"\n[external]\nuser = \"probe\"\n[[external.backend]]\n\
                name = \"db-1\"\naddress = \"127.0.0.1:1\"\nstop = [\"true\"]\n\
                [[external.proxy]]\nname = \"vip\"\naddress = \"127.0.0.1:1\"\n\
                [[timeline]]\nat = \"1s\"\ndo = \"stop\"\nsubject = \"db-1\"\n";
    std::fs::write(&file, text).expect("written");
    let output = command(&file, folder.path(), &["--yes"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(
        said(&output).contains("line 11: `stop` of `db-1`: no command `start`"),
        "{}",
        said(&output)
    );
}
