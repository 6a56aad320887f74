//! What a person sees: one clear message, the right exit code, no password.

use std::process::{Command, Output};

fn agent(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gapscope-agent"))
        .args(args)
        .env("GAPSCOPE_PASSWORD", "hunter2")
        .env_remove("GAPSCOPE_LOG")
        .output()
        .expect("the program starts")
}

#[track_caller]
fn check(args: &[&str], code: i32, parts: &[&str]) {
    let output = agent(args);
    let err = String::from_utf8_lossy(&output.stderr);
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(code), "{out}\n{err}");
    for part in parts {
        assert!(err.contains(part), "{part:?} is not in {err:?}");
    }
    assert!(!err.contains("hunter2") && !out.contains("hunter2"));
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|l| l.local_addr())
        .expect("a port")
        .port()
}

#[test]
fn wrong_usage_is_2() {
    check(&["run", "--no-such-flag"], 2, &["--no-such-flag"]);
    check(
        &["run"],
        2,
        &["error: no target is configured", "hint: give --target"],
    );
    check(&["check"], 2, &["error: no target is given"]);
    check(
        &["check", "--target", "x"],
        2,
        &["NAME=USER@HOST:PORT[/DB]"],
    );
    check(
        &["check", "--config", "/nonexistent.toml"],
        2,
        &["cannot read the configuration `/nonexistent.toml`"],
    );
    check(
        &[
            "check",
            "--target",
            "x=u@h:1",
            "--identity",
            "1); DROP TABLE t",
        ],
        2,
        &["the identity expression must not contain `;`"],
    );
    check(
        &["run", "--target", "x=u@h:1", "--aggregator", "https://x:1"],
        1,
        &["is reached by TLS, and no CA is given", "--ca"],
    );
}

#[test]
fn an_unreachable_target_is_1_and_named() {
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    check(
        &["check", "--target", &format!("db=probe@{address}")],
        1,
        &[
            &format!("error: target `db` at {address}: connect_failed (refused)"),
            "hint: is the server or proxy running",
            "error: 1 of 1 targets cannot be probed: db",
        ],
    );
}

#[test]
fn a_spool_in_use_is_refused() {
    let data = tempfile::tempdir().expect("a folder");
    let folder = data.path().join("spool/a");
    let _held = gapscope_agent::spool::disk::Disk::open(&folder).expect("free");
    let data = data.path().to_string_lossy();
    check(
        &[
            "run",
            "--target",
            "x=u@127.0.0.1:1",
            "--agent-id",
            "a",
            "--data",
            &data,
        ],
        1,
        &["is in use by another agent", "hint: stop the other agent"],
    );
}

#[test]
fn an_unusable_data_folder_is_named() {
    check(
        &[
            "run",
            "--target",
            "x=u@127.0.0.1:1",
            "--agent-id",
            "a",
            "--data",
            "/proc/nowhere",
        ],
        1,
        &["error: the spool `/proc/nowhere/spool/a` cannot be used"],
    );
}

#[test]
fn inspecting_changes_nothing() {
    check(
        &["spool", "inspect", "/nonexistent"],
        1,
        &["cannot read the spool `/nonexistent`"],
    );
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_string_lossy();
    let output = agent(&["spool", "inspect", &path]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("0 files, 0 bytes"));
    assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 0);
}

#[test]
fn a_folder_above_spools_names_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = folder.path().join("spool/east-1");
    std::fs::create_dir_all(&spool).expect("made");
    std::fs::write(spool.join("lock"), "").expect("written");
    let own = folder.path().to_string_lossy().into_owned();
    let between = folder.path().join("spool").to_string_lossy().into_owned();
    for above in [own, between] {
        for what in ["inspect", "verify", "export"] {
            check(
                &["spool", what, &above],
                1,
                &["is no spool itself; below it: ", "spool/east-1"],
            );
        }
    }
    let output = agent(&["spool", "inspect", &spool.to_string_lossy()]);
    assert!(output.status.success());
}
