//! A lab that is interrupted at any time leaves nothing; what a killed one leaves
//! is cleared by `down --all`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use gapscope_lab::leftovers::{folders, processes};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};

mod common;

fn lab(temp: &Path) -> Command {
    let mut command = common::lab();
    command.env("TMPDIR", temp);
    command
}

/// Processes of labs in this temporary folder.
fn left(temp: &Path) -> usize {
    processes()
        .into_iter()
        .filter(|(owner, _)| owner.folder.starts_with(temp))
        .map(|(_, pids)| pids.len())
        .sum()
}

fn is_clean(temp: &Path) -> bool {
    left(temp) == 0 && std::fs::read_dir(temp).expect("readable").count() == 0
}

/// How often a lab is interrupted; `GAPSCOPE_INTERRUPTIONS` asks for more.
fn times() -> u64 {
    std::env::var("GAPSCOPE_INTERRUPTIONS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(3)
}

#[test]
fn a_lab_interrupted_at_any_time_leaves_nothing() {
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for number in 0..times() {
        let temp = tempfile::tempdir().expect("a folder");
        let data = tempfile::tempdir().expect("a folder");
        let signal =
            [Signal::INT, Signal::TERM, Signal::KILL][usize::try_from(number % 3).expect("small")];
        let after = Duration::from_millis(rng.random_range(0..4_000));
        let mut process = lab(temp.path())
            .args(["run", "flapping", "--faster", "4", "--data"])
            .arg(data.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        common::pause(after);
        let pid = Pid::from_raw(i32::try_from(process.id()).expect("an id")).expect("not zero");
        // It may have ended before that.
        let _ = kill_process(pid, signal);
        common::wait_for("the lab's end", || process.try_wait().expect("asked"));
        if signal == Signal::KILL {
            // Its janitor clears up; where that was killed too, `down` does.
            common::wait_for("what the janitor does", || {
                is_clean(temp.path()).then_some(())
            });
        }
        assert!(
            is_clean(temp.path()),
            "{signal:?} after {after:?}: {} processes, folders {:?}",
            left(temp.path()),
            folders(temp.path())
        );
    }
}

#[test]
fn down_clears_what_a_killed_lab_and_its_janitor_left_and_nothing_else() {
    let temp = tempfile::tempdir().expect("a folder");
    // Neither a lab's folder without a note nor anybody else's is touched.
    for name in ["gapscope-lab-other", "mine"] {
        std::fs::create_dir(temp.path().join(name)).expect("made");
    }
    let output = lab(temp.path()).arg("up").output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(said.contains("l4-passthrough"), "{said}");
    let labs = folders(temp.path());
    assert_eq!(labs.len(), 1, "{labs:?}");
    let owner = labs[0].owner.clone();
    assert!(labs[0].stays && owner.is_alive());
    // The lab and its janitor at once, as when a machine is short of memory.
    let mut pids = processes().remove(&owner).unwrap_or_default();
    pids.push(owner.pid);
    for pid in pids {
        let _ = kill_process(Pid::from_raw(pid).expect("not zero"), Signal::KILL);
    }
    common::wait_for("its end", || (!owner.is_alive()).then_some(()));
    assert!(owner.folder.exists(), "nobody was there to remove it");
    let output = lab(temp.path()).arg("down").output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("is left of a lab that was killed"), "{said}");
    assert!(owner.folder.exists(), "without a name it only lists");
    let output = lab(temp.path())
        .args(["down", "--all"])
        .output()
        .expect("it runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!owner.folder.exists());
    assert_eq!(left(temp.path()), 0);
    assert_eq!(std::fs::read_dir(temp.path()).expect("readable").count(), 2);
}

#[test]
fn a_lab_that_is_up_can_be_used_and_goes_down_by_its_name() {
    let temp = tempfile::tempdir().expect("a folder");
    let output = lab(temp.path())
        .args(["up", "--proxy", "l7-migrating"])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    let name = said
        .lines()
        .find_map(|line| line.strip_prefix("lab ")?.strip_suffix(" is up"))
        .expect("its name")
        .to_owned();
    let address = said
        .lines()
        .find_map(|line| line.trim().strip_prefix("proxy")?.split_whitespace().nth(1))
        .expect("its address");
    std::net::TcpStream::connect(address).expect("it listens");
    let output = lab(temp.path())
        .args(["down", "nobody"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let output = lab(temp.path())
        .args(["down", &name])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("taken down"), "{said}");
    assert!(is_clean(temp.path()));
    std::net::TcpStream::connect(address).expect_err("nobody listens");
}
