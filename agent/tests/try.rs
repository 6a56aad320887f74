//! The first screen: what `try` says of a real MariaDB, of HAProxy before it, and
//! of what cannot be looked at.

mod real;

use std::process::Command;

use gapscope_proto::sample::Style;
use real::{HaProxy, MariaDb, client, is_ok, probe_until};
use serde_json::Value;

fn agent(address: &str, flags: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_gapscope-agent"))
        .args(["try", address])
        .args(if flags.contains(&"--user") {
            &[][..]
        } else {
            &["--user", "probe"]
        })
        .args(if flags.contains(&"--duration") {
            &[][..]
        } else {
            &["--duration", "3s"]
        })
        .args(flags)
        .env("GAPSCOPE_PASSWORD", real::PASSWORD)
        .env_remove("GAPSCOPE_LOG")
        .output()
        .expect("the program starts");
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(!out.contains(real::PASSWORD) && !err.contains(real::PASSWORD));
    (output.status.code().expect("an exit code"), out, err)
}

fn json(address: &str) -> Value {
    let (code, out, err) = agent(address, &["--json"]);
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_and_a_balancer_before_it() {
    let Some(db) = MariaDb::plain().await else {
        return;
    };
    let direct = json(&format!("127.0.0.1:{}", db.port));
    assert_eq!(direct["kind"], "direct", "{direct:#}");
    assert_eq!(direct["seen_as"], direct["local"], "{direct:#}");
    assert_eq!(direct["greeting"]["connection_id"], direct["connection_id"]);
    assert_eq!(direct["balancing"], "one-server");
    assert_eq!(direct["sessions"], "not-seen-multiplexed");
    assert_eq!(direct["held"]["bad"], Value::Array(vec![]));
    assert_eq!(direct["held"]["ok"], direct["held"]["probes"]);
    let ok = |group: &str| direct[group]["ok"].as_u64().expect("a number");
    // 2 held clients each 100 ms, connections each 250 ms, less what a busy host
    // sleeps through; and the floor beside them.
    assert!((10..=61).contains(&ok("held")), "{direct:#}");
    assert!((4..=13).contains(&ok("new")), "{direct:#}");
    assert!(ok("floor_held") > 0 && ok("floor_new") > 0, "{direct:#}");
    let p50 = |group: &str| direct[group]["took_ns_p50"].as_u64().expect("a number");
    assert!(p50("floor_held") > 0 && p50("held") > 0);

    for width in ["80", "120"] {
        let (code, out, err) = agent(
            &format!("127.0.0.1:{}", db.port),
            &["--width", width, "--duration", "1s"],
        );
        assert_eq!(code, 0, "{err}");
        let width = width.parse().expect("a number");
        assert!(
            out.lines().all(|line| line.chars().count() <= width),
            "{out}"
        );
        for words in [
            "MariaDB, reached directly",
            "Healthy baseline",
            "floor",
            "What this cannot see",
            "gapscope-agent run --target target=probe@127.0.0.1:",
        ] {
            assert!(out.contains(words), "{words:?} is not in {out}");
        }
        assert!(
            err.lines().all(|line| line.chars().count() <= width),
            "{err}"
        );
        let said = err.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            said.contains("read-only: 24 statements and 4 connections a second"),
            "{err}"
        );
    }

    let Some(proxy) = HaProxy::start(&[db.port], "") else {
        return;
    };
    let mut first = client(proxy.target(), Style::New, 5_000);
    probe_until("the proxy", &mut first, is_ok).await;
    let behind = json(&format!("127.0.0.1:{}", proxy.port));
    assert_eq!(behind["kind"], "pass-through", "{behind:#}");
    assert_ne!(behind["seen_as"], behind["local"], "{behind:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_taken_in_turn() {
    let (Some(one), Some(two)) = (MariaDb::plain().await, MariaDb::plain().await) else {
        return;
    };
    let Some(proxy) = HaProxy::in_turn(&[one.port, two.port]) else {
        return;
    };
    let mut first = client(proxy.target(), Style::New, 5_000);
    probe_until("the proxy", &mut first, is_ok).await;
    let seen = json(&format!("127.0.0.1:{}", proxy.port));
    assert_eq!(seen["balancing"], "per-connection", "{seen:#}");
    assert_eq!(
        seen["servers"].as_array().map(Vec::len),
        Some(2),
        "{seen:#}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_looked_at_is_said() {
    let check = |address: &str, flags: &[&str], expected: i32, words: &[&str]| {
        let (code, out, err) = agent(address, flags);
        assert_eq!(code, expected, "{out}{err}");
        for word in words {
            assert!(err.contains(word), "{word:?} is not in {err:?}");
        }
    };
    let nobody = format!("127.0.0.1:{}", real::free_port());
    check(
        &nobody,
        &[],
        1,
        &[
            &format!("error: cannot look at {nobody}: connect_failed (refused)"),
            "hint: is the server or proxy running",
        ],
    );
    check("nowhere", &[], 2, &["`nowhere` is not HOST:PORT"]);
    check(&nobody, &["--duration", "3"], 2, &["is not a time such as"]);
    check(
        &nobody,
        &["--password-env", "GAPSCOPE_NOT_SET"],
        2,
        &["`GAPSCOPE_NOT_SET` is not set"],
    );
    check(
        &nobody,
        &["--tls-ca", "/nonexistent"],
        2,
        &["cannot read `/nonexistent`"],
    );
    let web = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = web.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        use std::io::Write;
        for mut stream in web.incoming().flatten() {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
        }
    });
    check(&address, &[], 1, &["may not be a MySQL or MariaDB server"]);
    let Some(db) = MariaDb::plain().await else {
        return;
    };
    let address = format!("127.0.0.1:{}", db.port);
    check(
        &address,
        &["--user", "nobody"],
        1,
        &[
            "server_error 1045 (denied by server)",
            "hint: check the user",
        ],
    );
    let none = tempfile::NamedTempFile::new().expect("an empty file");
    check(
        &address,
        &["--password-file", &none.path().display().to_string()],
        1,
        &["1045", "hint: no password is given: set GAPSCOPE_PASSWORD"],
    );
    check(
        &address,
        &["--tls", "required"],
        1,
        &["connect_failed (tls)", "the server offers no TLS"],
    );
}
