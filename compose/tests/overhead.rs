//! `overhead` as a user starts it, on the embedded lab and on targets that are
//! there already. Nothing here depends on how long anything takes.

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::lab;
use gapscope_lab::embedded::{Backend, BackendConfig, Credentials, NullAnswer, NullServer};
use gapscope_lab::overhead::client::reference;
use gapscope_lab::overhead::digest::Digest;
use gapscope_lab::overhead::load::{Job, Outcome, Way, run};
use gapscope_proto::clock::{Clock, SystemClock};
use mysql_async::{Opts, OptsBuilder};
use rustix::process::{Pid, Signal, kill_process};
use tokio_util::sync::CancellationToken;

const STATEMENT: &str = "SELECT id, category FROM gapscope_overhead WHERE category = 'music'";

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn overhead(data: &Path, args: &[&str]) -> Command {
    let mut command = lab();
    command
        .arg("overhead")
        .args(args)
        .arg("--data")
        .arg(data)
        .env("TMPDIR", data);
    command
}

fn json(out: &Output) -> serde_json::Value {
    serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", text(&out.stdout), text(&out.stderr)))
}

/// The run folders below a data folder.
fn runs(data: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(data)
        .expect("readable")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("manifest.json").exists())
        .collect()
}

#[test]
fn the_embedded_lab_is_measured_soundly_in_every_way() {
    for way in [
        &["--protocol", "text"][..],
        &["--protocol", "prepared"],
        &["--connect-each"],
        &["--rate", "2000"],
    ] {
        let data = tempfile::tempdir().expect("a folder");
        let out = overhead(
            data.path(),
            &[
                "--statements",
                "60",
                "--clients",
                "1,7",
                "--rounds",
                "2",
                "--no-claims",
            ],
        )
        .args(way)
        .args(["--seed", "7", "--format", "json"])
        .output()
        .expect("it starts");
        assert!(out.status.success(), "{way:?}: {}", text(&out.stderr));
        let summary = json(&out);
        let cells = summary["cells"].as_array().expect("cells");
        // Floor, direct and two proxies, by one and by seven clients.
        assert_eq!(cells.len(), 8, "{way:?}");
        for cell in cells {
            assert_eq!(cell["rounds"], 2, "{way:?}: {cell}");
            assert_eq!(cell["errors"], 0, "{way:?}: {cell}");
            assert_eq!(cell["wrong_answers"], 0, "{way:?}: {cell}");
            assert!(cell["total_ns"]["median"].as_f64() > Some(0.0), "{cell}");
            assert!(cell["client_cpu_ns"].as_f64() > Some(0.0), "{cell}");
        }
        let folder = &runs(data.path())[0];
        for name in [
            "blocks.parquet",
            "failures.parquet",
            "cells.parquet",
            "cost.svg",
            "report.md",
        ] {
            assert!(folder.join(name).exists(), "{name}");
        }
        let manifest = std::fs::read_to_string(folder.join("manifest.json")).expect("a manifest");
        assert!(manifest.contains("\"kind\": \"overhead\""), "{manifest}");
        // The lab's folder is gone.
        let left = std::fs::read_dir(data.path()).expect("readable").count();
        assert_eq!(left, 1, "{way:?}");
    }
}

#[test]
fn fewer_rounds_than_a_claim_needs_are_refused() {
    let data = tempfile::tempdir().expect("a folder");
    let out = overhead(data.path(), &["--rounds", "5"])
        .output()
        .expect("it starts");
    assert_eq!(out.status.code(), Some(2));
    let said = text(&out.stderr);
    assert!(
        said.contains("5 rounds cannot show") && said.contains("p = 0.0625"),
        "{said}"
    );
    assert!(said.contains("--rounds 12"), "{said}");
    assert!(runs(data.path()).is_empty());
}

#[test]
fn an_interrupt_keeps_the_finished_rounds_and_leaves_nothing_else() {
    let data = tempfile::tempdir().expect("a folder");
    let mut child = overhead(
        data.path(),
        &["--statements", "40", "--clients", "1", "--rounds", "10000"],
    )
    .stdout(Stdio::null())
    .stderr(Stdio::piped())
    .spawn()
    .expect("it starts");
    let mut reader = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.starts_with("round 2 of") {
        line.clear();
        let read = reader.read_line(&mut line).expect("text");
        assert!(read > 0, "it ended early");
    }
    let pid = i32::try_from(child.id()).expect("a process id");
    kill_process(Pid::from_raw(pid).expect("not zero"), Signal::INT).expect("sent");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut reader, &mut rest).expect("text");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(1), "{rest}");
    assert!(rest.contains("interrupted in round"), "{rest}");
    let bench = gapscope_aggregator::overhead::store::read(&runs(data.path())[0]).expect("read");
    let rounds = bench.blocks.iter().map(|b| b.round).max().expect("rounds");
    assert!(rounds >= 2);
    // Whole rounds only.
    assert_eq!(bench.blocks.len(), rounds as usize * 4);
    assert_eq!(std::fs::read_dir(data.path()).expect("readable").count(), 1);
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

async fn backend(name: &str, server_id: u32) -> Backend {
    let mut config = BackendConfig::new(name);
    config.server_id = server_id;
    config.credentials = Credentials::new("app", "hunter2");
    Backend::start(config, clock()).await.expect("it starts")
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_that_are_there_are_measured_without_writing_to_them() {
    let (a, b) = (backend("a", 1).await, backend("b", 2).await);
    let data = tempfile::tempdir().expect("a folder");
    let file = data.path().join("statement.sql");
    std::fs::write(&file, "/* of my own */ SELECT 1, 'x';\n").expect("written");
    let target = |name: &str, backend: &Backend| format!("{name}=app@{}/test", backend.addr());
    let (one, two) = (target("one", &a), target("two-x", &b));
    let start = |args: Vec<String>, password: &'static str| {
        let mut command = overhead(
            data.path(),
            &[
                "--statements",
                "50",
                "--clients",
                "1,3",
                "--rounds",
                "2",
                "--no-claims",
            ],
        );
        command
            .args(["--format", "json", "--target", &one, "--target", &two])
            .args(args)
            .env("GAPSCOPE_PASSWORD", "hunter2")
            .env("GAPSCOPE_PASSWORD_TWO_X", password);
        tokio::task::spawn_blocking(move || command.output().expect("it starts"))
    };
    let with_file = || vec!["--statement".to_owned(), file.display().to_string()];
    let out = start(with_file(), "hunter2").await.expect("no panic");
    assert!(out.status.success(), "{}", text(&out.stderr));
    let summary = json(&out);
    assert_eq!(summary["statement"], "/* of my own */ SELECT 1, 'x'");
    assert_eq!(summary["cells"].as_array().expect("cells").len(), 6);
    let folder = runs(data.path()).remove(0);
    for entry in std::fs::read_dir(&folder).expect("readable").flatten() {
        let bytes = std::fs::read(entry.path()).expect("readable");
        let found = bytes.windows(7).any(|w| w == b"hunter2");
        assert!(!found, "a password in {}", entry.path().display());
    }

    // A wrong password is said for its target, without it.
    let out = start(with_file(), "wrong-one").await.expect("no panic");
    assert_eq!(out.status.code(), Some(1));
    let said = text(&out.stderr);
    assert!(
        said.contains("`two-x`") && said.contains("GAPSCOPE_PASSWORD_TWO_X"),
        "{said}"
    );
    assert!(
        !said.contains("wrong-one") && !said.contains("hunter2"),
        "{said}"
    );

    // Targets that answer differently are not compared.
    std::fs::write(&file, "SELECT @@server_id").expect("written");
    let out = start(with_file(), "hunter2").await.expect("no panic");
    assert_eq!(out.status.code(), Some(1));
    assert!(
        text(&out.stderr).contains("other rows"),
        "{}",
        text(&out.stderr)
    );

    // Nothing is sent that could change something.
    std::fs::write(&file, "DELETE FROM t").expect("written");
    let before = b.statements();
    let out = start(with_file(), "hunter2").await.expect("no panic");
    assert_eq!(out.status.code(), Some(2));
    assert!(
        text(&out.stderr).contains("begins with `delete`"),
        "{}",
        text(&out.stderr)
    );
    assert_eq!(b.statements(), before);
}

fn opts(addr: std::net::SocketAddr) -> Opts {
    OptsBuilder::default()
        .ip_or_hostname(addr.ip().to_string())
        .tcp_port(addr.port())
        .user(Some("app"))
        .pass(Some("hunter2"))
        .prefer_socket(false)
        .max_allowed_packet(Some(1 << 24))
        .wait_timeout(Some(28_800))
        .into()
}

fn job(addr: std::net::SocketAddr, expected: Digest, clients: u32) -> Job {
    Job {
        opts: opts(addr),
        statement: STATEMENT.into(),
        way: Way {
            prepared: false,
            connect_each: false,
        },
        expected,
        statements: 101,
        clients,
        warm_up: 2,
        rate: None,
        at_most: Duration::from_secs(60),
        processes: Vec::new(),
        stop: CancellationToken::new(),
        clock: clock(),
    }
}

async fn carry_out(job: Job) -> Outcome {
    tokio::task::spawn_blocking(move || run(&job).expect("threads"))
        .await
        .expect("no panic")
}

fn count(outcome: &Outcome, kind: &str) -> u64 {
    outcome
        .failures
        .iter()
        .filter(|((found, _), _)| *found == kind)
        .map(|(_, (_, n))| n)
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_null_server_gives_the_direct_target_s_answer_in_both_protocols() {
    let backend = backend("a", 1).await;
    let (expected, rows) = reference(&opts(backend.addr()), STATEMENT, false)
        .await
        .expect("an answer");
    assert_eq!((expected.rows, rows.len()), (1, 1));
    let answer = NullAnswer {
        columns: vec![b"id".to_vec(), b"category".to_vec()],
        rows: vec![vec![Some(b"2".to_vec()), Some(b"music".to_vec())]],
    };
    let floor = NullServer::start(&answer, Credentials::new("app", "hunter2")).expect("a port");
    for prepared in [false, true] {
        let (found, _) = reference(&opts(floor.addr()), STATEMENT, prepared)
            .await
            .expect("an answer");
        assert_eq!(found, expected, "prepared: {prepared}");
        let (direct, _) = reference(&opts(backend.addr()), STATEMENT, prepared)
            .await
            .expect("an answer");
        assert_eq!(direct, expected, "prepared: {prepared}");
        for connect_each in [false, true] {
            let mut job = job(floor.addr(), expected, 7);
            job.way = Way {
                prepared,
                connect_each,
            };
            let outcome = carry_out(job).await;
            assert_eq!(
                (outcome.answered, outcome.errors, outcome.wrong),
                (101, 0, 0)
            );
            assert_eq!(outcome.connects, if connect_each { 101 } else { 0 });
            assert_eq!(outcome.latencies_ns.len(), 101);
            assert!(outcome.total_ns > 0 && outcome.cpu_ns > 0);
        }
    }
    // NULLs and no rows at all are answers as well.
    let answer = NullAnswer {
        columns: vec![b"a".to_vec(), b"b".to_vec()],
        rows: vec![vec![None, Some(Vec::new())]],
    };
    let nulls = NullServer::start(&answer, Credentials::new("app", "hunter2")).expect("a port");
    let ask = |prepared| reference(nulls_opts(&nulls), STATEMENT, prepared);
    let (as_text, binary) = (
        ask(false).await.expect("text"),
        ask(true).await.expect("binary"),
    );
    assert_eq!(as_text.0, binary.0);
    assert_ne!(as_text.0, expected);
    let wrong = Credentials::new("app", "other");
    let locked = NullServer::start(&answer, wrong).expect("a port");
    assert!(
        reference(&opts(locked.addr()), STATEMENT, false)
            .await
            .is_err()
    );
}

fn nulls_opts(server: &NullServer) -> &'static Opts {
    Box::leak(Box::new(opts(server.addr())))
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_rows_are_counted_and_are_no_answers() {
    let backend = backend("a", 1).await;
    let outcome = carry_out(job(backend.addr(), Digest { rows: 1, sum: 1 }, 3)).await;
    assert_eq!(
        (outcome.answered, outcome.wrong, outcome.errors),
        (0, 101, 0)
    );
    assert_eq!(count(&outcome, "wrong_answer"), 101);
    assert!(outcome.latencies_ns.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_of_a_dead_target_is_counted() {
    let backend = backend("a", 1).await;
    let addr = backend.addr();
    backend.shutdown().await;
    let outcome = carry_out(job(addr, Digest::default(), 3)).await;
    assert_eq!(outcome.answered, 0);
    assert!(outcome.errors >= 101, "{outcome:?}");
    assert!(count(&outcome, "connect") > 0, "{outcome:?}");
    assert!(count(&outcome, "not_sent") > 0, "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_hangs_ends_with_the_block_s_time_and_is_counted() {
    let backend = backend("a", 1).await;
    let (expected, _) = reference(&opts(backend.addr()), STATEMENT, false)
        .await
        .expect("an answer");
    // Each statement on a new connection, so that nothing has to be ready first.
    let mut job = job(backend.addr(), expected, 2);
    job.way.connect_each = true;
    job.at_most = Duration::from_millis(300);
    backend.hang().await.expect("hung");
    let outcome = carry_out(job).await;
    assert_eq!((outcome.answered, outcome.errors), (0, 101));
    assert_eq!(count(&outcome, "timed_out"), 101);
    backend.resume().await.expect("resumed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_a_block_early() {
    let backend = backend("a", 1).await;
    let mut job = job(backend.addr(), Digest::default(), 2);
    job.way.connect_each = true;
    backend.hang().await.expect("hung");
    job.stop.cancel();
    let outcome = carry_out(job).await;
    assert!(outcome.stopped);
    assert_eq!(count(&outcome, "stopped"), 101);
}
