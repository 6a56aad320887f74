//! The agent's own limits are the agent's own: no file handle left, no local port
//! left. Each in a process of its own, which this program starts: the limits are a
//! process's and a network namespace's.

mod real;
mod support;

use std::net::Ipv4Addr;
use std::process::Command;

use gapscope_agent::config::Target;
use gapscope_agent::probe::mysql::Client;
use gapscope_proto::sample::{Cause, Outcome, Phase, Sample, Style};
use real::{client, is_ok, probe, skip, target};
use support::{Behaviour, Server};

fn is_inside() -> bool {
    let inside = std::env::var_os("GAPSCOPE_INSIDE").is_some();
    if !inside {
        skip("this is run by another test, in a process of its own");
    }
    inside
}

/// Runs one of the ignored tests below by itself.
fn check_inside(wrapper: &[&str], name: &str) {
    let program = std::env::current_exe().expect("this program");
    let program = program.display().to_string();
    let whole = [wrapper, &[&program, "--exact", name]].concat();
    let done = Command::new(whole[0])
        .args(&whole[1..])
        .args(["--ignored", "--nocapture"])
        .env("GAPSCOPE_INSIDE", "1")
        .output();
    let done = match done {
        Ok(done) => done,
        Err(error) => {
            skip(&format!("{} does not run: {error}", whole[0]));
            return;
        }
    };
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    if said.contains("unshare failed") || said.contains("Operation not permitted") {
        skip("no namespace to be had");
        return;
    }
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

#[track_caller]
fn check(sample: &Sample, cause: Cause) {
    assert_eq!(
        (sample.phase, sample.outcome, sample.cause),
        (Phase::Connect, Outcome::AgentError, Some(cause)),
        "{sample:#?}"
    );
    assert!(!sample.may_have_executed);
}

fn held(server: &Server) -> Client {
    let there = Target {
        identity: Some("whoami()".into()),
        ..target(&server.address.ip().to_string(), server.address.port())
    };
    client(there, Style::Reused, 5_000)
}

#[test]
fn no_file_handle_is_no_fault_of_the_target() {
    check_inside(&[], "without_file_handles");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test above, in a process of its own"]
async fn without_file_handles() {
    if !is_inside() {
        return;
    }
    let server = Server::start(Behaviour::Answers);
    let (mut one, mut another) = (held(&server), held(&server));
    assert!(is_ok(&probe(&mut one).await));
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = Some(256);
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("less");
    let mut all = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        all.push(file);
    }
    check(&probe(&mut another).await, Cause::NoFileHandles);
    // Who has a connection goes on.
    assert!(is_ok(&probe(&mut one).await));
    drop(all);
    assert!(is_ok(&probe(&mut another).await));
}

#[test]
fn no_local_port_is_no_fault_of_the_target() {
    if !rustix::process::geteuid().is_root() {
        skip("a namespace needs root");
        return;
    }
    check_inside(&["unshare", "--net"], "without_local_ports");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test above, in a namespace"]
async fn without_local_ports() {
    if !is_inside() {
        return;
    }
    let up = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status();
    assert!(up.is_ok_and(|status| status.success()));
    let server = Server::at(&format!("{}:3306", Ipv4Addr::LOCALHOST), Behaviour::Answers);
    // Two for the whole namespace.
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "50000 50001").expect("fewer ports");
    let mut clients: Vec<Client> = (0..3).map(|_| held(&server)).collect();
    assert!(is_ok(&probe(&mut clients[0]).await) && is_ok(&probe(&mut clients[1]).await));
    check(&probe(&mut clients[2]).await, Cause::NoLocalPort);
    assert!(is_ok(&probe(&mut clients[0]).await));
}
