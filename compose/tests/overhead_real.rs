//! `overhead` on real servers that are there already: a MariaDB and a HAProxy
//! before it, reached as a user's own.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use common::{lab, real};
use gapscope_lab::lab::Lab;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const DATABASE: &str = "gapscope_overhead";
const SCENARIO: &str = r#"
name = "real"
duration = "1s"
[[backend]]
name = "db-1"
[[proxy]]
name = "haproxy"
kind = "haproxy"
"#;

fn overhead(up: &Lab, data: &Path, args: &[&str]) -> Command {
    let target = |name: &str, addr: std::net::SocketAddr| {
        format!("{name}={}@{addr}/{DATABASE}", up.login.user)
    };
    let mut command = lab();
    command
        .args(["overhead", "--clients", "1,2", "--no-claims"])
        .args(["--target", &target("direct", up.backends[0].address())])
        .args(["--target", &target("haproxy", up.proxies[0].address())])
        .args(args)
        .arg("--data")
        .arg(data)
        .env("TMPDIR", data)
        .env("GAPSCOPE_PASSWORD", &up.login.password);
    command
}

/// Tables of the benchmark's database, except the one that the lab itself made.
async fn tables(up: &Lab) -> Vec<String> {
    let addr = up.backends[0].address();
    let opts = OptsBuilder::default()
        .ip_or_hostname(addr.ip().to_string())
        .tcp_port(addr.port())
        .user(Some(up.login.user.clone()))
        .pass(Some(up.login.password.clone()))
        .db_name(Some(DATABASE));
    let mut conn = Conn::new(opts).await.expect("it answers");
    let all: Vec<String> = conn.query("SHOW TABLES").await.expect("tables");
    conn.disconnect().await.expect("goodbye");
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_made_on_a_real_server_and_removed_also_when_interrupted() {
    if !real::are_installed() {
        return;
    }
    let up = real::up(SCENARIO).await;
    let data = tempfile::tempdir().expect("a folder");
    let before = tables(&up).await;

    let args = ["--create-table", "--rounds", "2", "--statements", "100"];
    let mut command = overhead(&up, data.path(), &args);
    command.args(["--protocol", "prepared", "--format", "json"]);
    let out = tokio::task::spawn_blocking(move || command.output().expect("it starts"))
        .await
        .expect("no panic");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    let summary: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let cells = summary["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 6, "two and the floor, at two concurrencies");
    for cell in cells {
        assert_eq!(cell["errors"], 0, "{cell:#}");
        assert_eq!(cell["wrong_answers"], 0, "{cell:#}");
    }
    assert_eq!(tables(&up).await, before, "{said}");

    // So many that nobody waits for the end.
    let args = ["--create-table", "--rounds", "500", "--statements", "10000"];
    let mut command = overhead(&up, data.path(), &args);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = common::Running(command.spawn().expect("it starts"));
    let pid = Pid::from_child(&child.0);
    let said = BufReader::new(child.0.stderr.take().expect("piped"));
    let reading = tokio::task::spawn_blocking(move || {
        let mut all = String::new();
        for line in said.lines().map_while(Result::ok) {
            all.push_str(&line);
            all.push('\n');
        }
        all
    });
    // While it runs, there is one more table.
    let mut during = before.clone();
    for _ in 0..600 {
        during = tables(&up).await;
        if during.len() > before.len() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(during.len(), before.len() + 1, "{during:?}");
    kill_process(pid, Signal::INT).expect("it runs");
    let (mut child, status) = tokio::task::spawn_blocking(move || {
        let status = child.0.wait().expect("it ends");
        (child, status)
    })
    .await
    .expect("no panic");
    let _ = child.0.try_wait();
    let said = reading.await.expect("read");
    assert!(status.code().is_some(), "{said}");
    assert_eq!(tables(&up).await, before, "{said}");
    up.down().await;
}
