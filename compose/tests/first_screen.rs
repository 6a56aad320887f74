//! What the agent says of itself and of what it meets, against servers and
//! proxies whose nature is known: `try` on the embedded ones, a paused agent, a
//! control that fails.

mod common;

use std::sync::Arc;
use std::time::Duration;

use gapscope_lab::embedded::{
    Backend, BackendConfig, Credentials, L4Config, L4Proxy, L7Behaviour, L7Config, L7Proxy,
    PoolMember,
};
use gapscope_proto::clock::{Clock, SystemClock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

fn credentials() -> Credentials {
    Credentials::new("probe", "s3cret")
}

async fn backend(name: &str) -> Backend {
    let config = BackendConfig {
        credentials: credentials(),
        ..BackendConfig::new(name)
    };
    Backend::start(config, clock()).await.expect("it starts")
}

fn members(backends: &[&Backend]) -> Vec<PoolMember> {
    (1..)
        .zip(backends)
        .map(|(number, backend)| PoolMember {
            name: format!("b{number}"),
            addr: backend.addr(),
            backup: false,
        })
        .collect()
}

/// The JSON of `try`.
async fn look(address: std::net::SocketAddr) -> Value {
    let output = tokio::task::spawn_blocking(move || {
        common::lab()
            .args(["agent", "try", &address.to_string(), "--user", "probe"])
            .args(["--duration", "3s", "--timeout", "20s", "--json"])
            .env("GAPSCOPE_PASSWORD", "s3cret")
            .output()
            .expect("it runs")
    })
    .await
    .expect("no panic");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_proxy_is_told() {
    let (one, two) = (backend("one").await, backend("two").await);
    // These servers do not say where they see us; the port is theirs.
    let direct = look(one.addr()).await;
    assert_eq!(direct["kind"], "cannot-tell", "{direct:#}");
    assert_eq!(
        direct["servers"][0]["identity"],
        format!("one:{}", one.addr().port())
    );

    let config = L4Config::new("l4", members(&[&one]));
    let l4 = L4Proxy::start(config, clock()).await.expect("it starts");
    let passed = look(l4.addr()).await;
    assert_eq!(passed["kind"], "pass-through", "{passed:#}");

    let config = L7Config::new("l7", members(&[&one]), credentials());
    let l7 = L7Proxy::start(config, clock()).await.expect("it starts");
    let carried = look(l7.addr()).await;
    assert_eq!(carried["kind"], "terminates", "{carried:#}");
    assert_eq!(carried["sessions"], "not-seen-multiplexed", "{carried:#}");

    let config = L7Config {
        behaviour: L7Behaviour::Multiplexing,
        ..L7Config::new("mux", members(&[&one, &two]), credentials())
    };
    let mux = L7Proxy::start(config, clock()).await.expect("it starts");
    let shared = look(mux.addr()).await;
    assert_eq!(shared["kind"], "terminates", "{shared:#}");
    assert_eq!(shared["sessions"], "multiplexed", "{shared:#}");
}

fn run(aggregator: &common::Aggregator, duration: &str) -> String {
    aggregator.command(&[
        "start",
        "--target",
        "db",
        "--duration",
        duration,
        "--reused",
        "2",
        "--interval",
        "50ms",
        "--patient",
        "0",
        "--new",
        "0",
    ])
}

/// Waits for the run's end and reads its summary.
fn summary(aggregator: &common::Aggregator, run: &str) -> Value {
    common::wait_for("the run's end", || {
        let manifest = aggregator.data.join(run).join("manifest.json");
        let manifest: Value = serde_json::from_slice(&std::fs::read(manifest).ok()?).ok()?;
        (manifest["state"] == "closed").then_some(())
    });
    let output = common::lab()
        .args(["aggregator", "report", run, "--format", "json", "--data"])
        .arg(&aggregator.data)
        .output()
        .expect("it runs");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", common::logs(&aggregator.data)))
}

fn config(db: &Backend, control: Option<&Backend>) -> String {
    let target = |name: &str, backend: &Backend| {
        format!(
            "[[target]]\nname = \"{name}\"\naddress = \"{}\"\nuser = \"probe\"\npassword_file = \"password\"\n",
            backend.addr()
        )
    };
    match control {
        None => target("db", db),
        Some(control) => format!(
            "control = \"other\"\n{}{}",
            target("db", db),
            target("other", control)
        ),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_agent_blames_nobody() {
    let db = backend("db").await;
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("password"), "s3cret\n").expect("written");
    let text = config(&db, None);
    tokio::task::block_in_place(|| {
        let aggregator = common::Aggregator::start(folder.path());
        let agent = common::agent(&aggregator, "paused", &text);
        common::wait_for_agent(&aggregator, "paused");
        let run = run(&aggregator, "8s");
        let pid = Pid::from_child(&agent.0);
        common::pause(Duration::from_secs(3));
        kill_process(pid, Signal::STOP).expect("it runs");
        common::pause(Duration::from_secs(2));
        kill_process(pid, Signal::CONT).expect("it is there");
        let summary = summary(&aggregator, &run);
        let row = &summary["targets"][0];
        // Two clients, a slot each 50 ms, for nearly two seconds.
        assert!(
            row["no_data"].as_u64().expect("a number") >= 60,
            "{summary:#}"
        );
        assert!(
            summary["caveats"]
                .as_array()
                .is_some_and(|all| all.iter().any(|c| c["code"] == "no_data"
                    || c["text"].as_str().is_some_and(|t| t.contains("no data")))),
            "{summary:#}"
        );
        // Nothing was out, and nothing failed, as far as was seen.
        assert_eq!(row["errors"], serde_json::json!([]), "{summary:#}");
        let out: f64 = row["windows"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|w| w["outage_lower_s"].as_f64().expect("a number"))
            .sum();
        assert_eq!(out, 0.0, "{summary:#}");
        assert_eq!(summary["conservation"]["balanced"], true, "{summary:#}");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_that_fails_is_said() {
    let (db, other) = (backend("db").await, backend("other").await);
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("password"), "s3cret\n").expect("written");
    let text = config(&db, Some(&other));
    let (aggregator, agent, run) = tokio::task::block_in_place(|| {
        let aggregator = common::Aggregator::start(folder.path());
        let agent = common::agent(&aggregator, "watchful", &text);
        common::wait_for_agent(&aggregator, "watchful");
        let run = run(&aggregator, "6s");
        common::pause(Duration::from_secs(2));
        (aggregator, agent, run)
    });
    drop(other);
    let summary = tokio::task::block_in_place(|| summary(&aggregator, &run));
    drop(agent);
    let said: Vec<&str> = summary["caveats"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|c| c["code"] == "control_trouble")
        .filter_map(|c| c["text"].as_str())
        .collect();
    assert_eq!(said.len(), 1, "{summary:#}");
    assert!(said[0].contains("the control other was bad"), "{said:?}");
    assert!(said[0].contains("outside every fault"), "{said:?}");
    assert_eq!(summary["targets"][0]["errors"], serde_json::json!([]));
    assert!(folder.path().join(&run).join("control.parquet").exists());
}
