//! Runtime docker. What needs an engine and images that are on this host already
//! checks nothing where they are not, and says so: no test pulls anything. Images are
//! named as for the lab itself, by GAPSCOPE_IMAGE_MARIADB and GAPSCOPE_IMAGE_HAPROXY.

use std::process::Command;

use gapscope_lab::runtime::docker::engine::Engine;
use gapscope_lab::runtime::docker::files;
use gapscope_lab::runtime::process::find::Named;
use gapscope_lab::scenario::{BackendKind, ProxyKind};
use serde_json::Value;

mod common;

/// The engine, if it answers and has the images.
fn usable() -> Option<Engine> {
    let engine = match Engine::find(&Named::new()) {
        Ok(engine) => engine,
        Err(problem) => {
            eprintln!("skipped: {}", problem.what);
            return None;
        }
    };
    let services = [
        files::servers(BackendKind::Mariadb)[0],
        files::proxy(ProxyKind::Haproxy, BackendKind::Mariadb).expect("there is one"),
    ];
    for service in services {
        let image = service.image_here();
        if !engine.has_image(&image) {
            eprintln!("skipped: image {image} is not on this host");
            return None;
        }
    }
    Some(engine)
}

struct Ran {
    summary: Value,
    said: String,
}

fn run(scenario: &str, more: &[&str]) -> Ran {
    let data = tempfile::tempdir().expect("a folder");
    let output = common::lab()
        .args(["run", scenario, "--runtime", "docker"])
        .args(["--backend", "mariadb", "--proxy", "haproxy"])
        .args(["--format", "json"])
        .args(more)
        .arg("--data")
        .arg(data.path())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    Ran {
        summary: serde_json::from_slice(&output.stdout).expect("JSON"),
        said,
    }
}

impl Ran {
    fn judged(&self) -> Vec<&Value> {
        let faults = self.summary["faults"].as_array().expect("faults");
        faults
            .iter()
            .filter(|fault| fault["judged"] == true)
            .collect()
    }

    fn hurt(&self, fault: &Value) -> u64 {
        let rows = self.summary["targets"].as_array().expect("targets");
        rows.iter()
            .flat_map(|row| row["faults"].as_array().expect("faults"))
            .filter(|row| row["fault"] == fault["id"])
            .map(|row| row["clients"]["hurt"].as_u64().expect("a count"))
            .sum()
    }
}

/// Containers and networks of labs that are there.
fn left() -> String {
    let list = |args: &[&str]| {
        let output = Command::new("docker")
            .args(args)
            .args(["--filter", "label=gapscope.lab", "--format", "{{.ID}}"])
            .output()
            .expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    list(&["ps", "--all"]) + &list(&["network", "ls"])
}

#[test]
fn where_no_engine_answers_that_is_said_and_what_else_there_is() {
    let data = tempfile::tempdir().expect("a folder");
    let output = common::lab()
        .args(["run", "switchover", "--runtime", "docker", "--data"])
        .arg(data.path())
        .env("DOCKER_HOST", "unix:///nonexistent/docker.sock")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("no container engine answers") || said.contains("needs the program `docker`"),
        "{said}"
    );
    assert!(said.contains("--runtime embedded"), "{said}");
}

#[test]
fn the_compose_file_is_one_to_a_real_compose_tool() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docker");
    let mut checked = false;
    for (program, words) in [("docker", &["compose"][..]), ("docker-compose", &[][..])] {
        let mut command = Command::new(program);
        command.args(words).current_dir(&folder);
        command.args(["-f", "compose.yaml", "-f", "compose.ports.yaml"]);
        for profile in [
            "tidb",
            "mariadb",
            "cluster",
            "haproxy",
            "proxysql",
            "tiproxy",
            "tiproxy-cluster",
            "gapscope",
        ] {
            command.args(["--profile", profile]);
        }
        let Ok(version) = Command::new(program).args(words).arg("version").output() else {
            continue;
        };
        if !version.status.success() {
            continue;
        }
        let output = command
            .args(["config", "--quiet"])
            .output()
            .expect("it runs");
        assert!(
            output.status.success(),
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        checked = true;
    }
    if !checked {
        eprintln!("skipped: neither `docker compose` nor `docker-compose` is installed");
    }
}

#[test]
fn a_container_is_stopped_and_the_engine_bounds_when() {
    if usable().is_none() {
        return;
    }
    let ran = run("switchover", &["--faster", "3"]);
    let judged = ran.judged();
    assert_eq!(judged.len(), 1, "{}", ran.said);
    let stop = judged[0];
    assert_eq!(stop["step"], "stop");
    assert!(ran.hurt(stop) >= 4, "{}", ran.said);
    assert!(ran.said.contains("`backend-1` is gone, "), "{}", ran.said);
    let detail = stop["detail"].as_str().expect("a text");
    assert!(detail.contains("ended: exit code"), "{detail}");
    assert!(ran.said.contains("docker stop --time"), "{}", ran.said);
    assert!(
        ran.said.contains("haproxy holds backend-1 for DOWN"),
        "{}",
        ran.said
    );
    assert_eq!(left(), "", "nothing is left");
}

#[test]
fn a_container_is_paused_and_taken_off_its_network() {
    if usable().is_none() {
        return;
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    let text = "name = \"both\"\nduration = \"16s\"\n[clients]\nreused = 2\ninterval = \"20ms\"\n\
                timeout = \"1s\"\n[[backend]]\nname = \"backend-1\"\n[[backend]]\n\
                name = \"backend-2\"\n[[proxy]]\nname = \"haproxy\"\n\
                [[timeline]]\nat = \"2s\"\ndo = \"hang\"\nsubject = \"backend-1\"\n\
                jitter = \"0s\"\nduration = \"3s\"\n\
                [[timeline]]\nat = \"8s\"\ndo = \"black_hole\"\nsubject = \"backend-1\"\n\
                jitter = \"0s\"\nduration = \"3s\"\n";
    std::fs::write(file.path(), text).expect("written");
    let ran = run(&file.path().to_string_lossy(), &[]);
    let judged = ran.judged();
    let steps: Vec<&str> = judged
        .iter()
        .filter_map(|fault| fault["step"].as_str())
        .collect();
    assert_eq!(steps, ["hang", "black_hole"], "{}", ran.said);
    assert!(ran.hurt(judged[0]) >= 2, "{}", ran.said);
    for undone in ["docker unpause", "docker network connect"] {
        assert!(ran.said.contains(undone), "{}", ran.said);
    }
    assert_eq!(left(), "", "nothing is left");
}
