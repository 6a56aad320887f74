//! The write ledger against backends whose misdeeds are known, and against a real
//! server that keeps what it acknowledged.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gapscope_aggregator::analyse::ledger::{Class, Ledger};
use gapscope_aggregator::analyse::run::analyse;
use gapscope_aggregator::commands::report::as_text;
use gapscope_aggregator::store::reader::RunFolder;
use gapscope_lab::embedded::{Backend, BackendConfig, Writes};
use gapscope_lab::runtime::process::find;
use gapscope_proto::clock::{Clock, SystemClock};
use serde_json::Value;

/// A run of transactions directly on a backend, and what it did to them.
async fn misbehave(writes: Writes) -> (Ledger, BTreeSet<(u16, u64)>, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut config = BackendConfig::new("db");
    config.writes = writes;
    let backend = Backend::start(config, clock).await.expect("it starts");
    let agent = format!(
        "[[target]]\nname = \"db\"\naddress = \"{}\"\nuser = \"probe\"\n\
         [writes]\nschema = \"gapscope\"\nledger_from = [\"db\"]\n",
        backend.addr()
    );
    let data = folder.path().to_owned();
    let aggregator = common::Aggregator::start(&data);
    let _agent = common::agent(&aggregator, "writer", &agent);
    common::wait_for_agent(&aggregator, "writer");
    let run = aggregator.command(&[
        "start",
        "--target",
        "db",
        "--reused",
        "0",
        "--patient",
        "0",
        "--new",
        "0",
        "--transaction",
        "2",
        "--transaction-interval",
        "20ms",
        "--duration",
        "60s",
    ]);
    while backend.statements() < 400 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    aggregator.command(&["stop", &run]);
    let opened = RunFolder::open(&data.join(&run)).expect("the run is readable");
    let analysis = analyse(&opened).expect("it is analysed");
    let report = as_text(&analysis, Some(120));
    assert_eq!(analysis.conservation.lost.1, 0, "{}", common::logs(&data));
    // id, run, incarnation, target, client, slot
    let misdone = backend
        .misdone()
        .iter()
        .map(|row| {
            (
                row[4].parse().expect("a client"),
                row[5].parse().expect("a slot"),
            )
        })
        .collect();
    backend.shutdown().await;
    (analysis.ledger, misdone, report)
}

fn of_class(ledger: &Ledger, class: Class) -> BTreeSet<(u16, u64)> {
    ledger
        .places
        .iter()
        .flat_map(|place| &place.found)
        .filter(|found| found.class == class)
        .map(|found| &ledger.written[found.row])
        .map(|row| (row.writer.client, row.slot))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_forgotten_row_is_found_and_no_other() {
    let (ledger, forgotten, report) = misbehave(Writes::ForgetsEvery(7)).await;
    assert!(forgotten.len() > 3, "{forgotten:?}\n{report}");
    // A row of a probe that the end cut is forgotten, and was never acknowledged.
    let lost = of_class(&ledger, Class::AcknowledgedLost);
    let unknown = of_class(&ledger, Class::UnknownAbsent);
    let found: BTreeSet<_> = lost.union(&unknown).copied().collect();
    assert!(unknown.len() <= 2, "{unknown:?}\n{report}");
    assert!(
        forgotten.is_subset(&found),
        "{forgotten:?} {found:?}\n{report}"
    );
    assert!(
        lost.is_subset(&forgotten),
        "{forgotten:?} {lost:?}\n{report}"
    );
    assert_eq!(ledger.count(Class::ThereTwice), 0, "{report}");
    assert!(report.contains("and LOST"), "{report}");
    let (client, slot) = lost.first().expect("some were lost");
    assert!(
        report.contains(&format!("client {client} slot {slot}")),
        "{report}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_doubled_row_is_found_and_no_other() {
    let (ledger, doubled, report) = misbehave(Writes::DoublesEvery(5)).await;
    assert!(doubled.len() > 3, "{doubled:?}\n{report}");
    assert_eq!(of_class(&ledger, Class::ThereTwice), doubled, "{report}");
    assert_eq!(ledger.count(Class::AcknowledgedLost), 0, "{report}");
    assert!(report.contains("there more than once"), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_honest_backend_has_nothing_wrong() {
    let (ledger, misdone, report) = misbehave(Writes::Kept).await;
    assert!(misdone.is_empty());
    for class in Class::ALL.into_iter().filter(|class| class.is_wrong()) {
        assert_eq!(ledger.count(class), 0, "{class:?}\n{report}");
    }
    assert_eq!(ledger.count(Class::NotRead), 0, "{report}");
    assert!(ledger.count(Class::AcknowledgedThere) > 50, "{report}");
}

#[test]
fn nobody_writes_where_the_owner_has_not_allowed_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().to_owned();
    let aggregator = common::Aggregator::start(&data);
    // Never connected to: refused before.
    let agent = "[[target]]\nname = \"db\"\naddress = \"127.0.0.1:9\"\nuser = \"probe\"\n";
    let _agent = common::agent(&aggregator, "reader", agent);
    common::wait_for_agent(&aggregator, "reader");
    let started = aggregator.try_command(&[
        "start",
        "--target",
        "db",
        "--transaction",
        "1",
        "--duration",
        "2s",
    ]);
    let said = String::from_utf8_lossy(&started.stderr).into_owned();
    assert!(!started.status.success(), "{said}");
    assert!(said.contains("--allow-writes SCHEMA"), "{said}");
    assert!(said.contains("WRITTEN"), "{said}");
}

/// How often the server is killed: `GAPSCOPE_LEDGER_KILLS`, 3 by default.
fn kills() -> u32 {
    std::env::var("GAPSCOPE_LEDGER_KILLS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(3)
}

#[test]
fn a_durable_server_keeps_what_it_acknowledged_over_kills() {
    #[expect(clippy::print_stdout, reason = "a test says that it was skipped")]
    if find::find(&find::Named::new(), &["mariadbd", "mysqld"], "").is_err() {
        println!("skipped: mariadbd is not installed");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let scenario = folder.path().join("scenario.toml");
    // Each kill comes at a random moment, and there is time to be back before the
    // next one, also on a busy machine: what is checked does not depend on it.
    let (first_s, each_s) = (2, 6);
    let mut text = format!(
        r#"
name = "kills"
duration = "{}s"
direct = true
[clients]
reused = 0
patient = 0
new = 0
transaction = 4
transaction_interval = "10ms"
timeout = "2s"
[[backend]]
name = "db"
"#,
        first_s + each_s * kills()
    );
    for kill in 0..kills() {
        text += &format!(
            "[[timeline]]\nat = \"{}s\"\ndo = \"kill\"\nsubject = \"db\"\njitter = \"1s\"\nduration = \"500ms\"\n",
            first_s + each_s * kill
        );
    }
    std::fs::write(&scenario, text).expect("written");
    let output = common::lab()
        .args([
            "run",
            "--runtime",
            "process",
            "--backend",
            "mariadb",
            "--format",
            "json",
        ])
        .arg("--data")
        .arg(folder.path().join("runs"))
        .arg(&scenario)
        .output()
        .expect("the lab runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let summary: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("no summary ({error}): {said}"));
    let places = summary["ledger"]["places"].as_array().expect("places");
    assert_eq!(places.len(), 1, "{:#}\n{said}", summary["ledger"]);
    let counts = &places[0]["counts"];
    #[expect(clippy::print_stdout, reason = "a test says what it saw")]
    {
        println!("{} kills: {counts}", kills());
    }
    for class in [
        "acknowledged_lost",
        "there_twice",
        "refused_there",
        "not_read",
    ] {
        assert_eq!(counts[class], 0, "{:#}\n{said}", summary["ledger"]);
    }
    assert!(
        counts["acknowledged_there"].as_u64().expect("a count") > 20 * u64::from(kills()),
        "{counts}\n{said}"
    );
}
