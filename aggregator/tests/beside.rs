//! What is known beside the probes, from records to the report: which address
//! served whom when, and what connections told that were looked at.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{lag, plan, samples};
use gapscope_aggregator::analyse::beside::{Look, LookUps};
use gapscope_aggregator::analyse::run::{Analysis, analyse};
use gapscope_aggregator::report::json::summary;
use gapscope_aggregator::report::model::report;
use gapscope_aggregator::report::table::Table;
use gapscope_aggregator::store::disk::Disk;
use gapscope_aggregator::store::manifest::{FORMAT_VERSION, Manifest, RunState, Schedule};
use gapscope_aggregator::store::{RunFolder, RunStore};
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::host::{HostFacts, HostRecord, Inspection, ProbingEnded, ProbingStarted};
use gapscope_proto::ids::{AgentId, Incarnation};
use gapscope_proto::sample::{Outcome, Phase};

const S: i64 = 1_000_000_000;

fn manifest() -> Manifest {
    let clock = SystemClock::new();
    let plan = plan("t", 4 * S as u64);
    Manifest {
        format_version: FORMAT_VERSION,
        run_id: plan.run_id,
        state: RunState::Running,
        created_utc: "2026-01-01T00:00:00.000Z".to_owned(),
        closed_utc: None,
        end_reason: None,
        program_version: "test".to_owned(),
        host: HostFacts::default(),
        clock: clock.key(),
        anchors: vec![clock.anchor()],
        plan,
        schedule: Schedule::OpenLoop,
        subjects: Vec::new(),
        labels: BTreeMap::new(),
        agents: Vec::new(),
        caveats: Vec::new(),
        files: None,
    }
}

fn inspection(at_ns: i64, id: u32, answered: u64) -> Inspection {
    Inspection {
        target: "t".into(),
        at_ns,
        until_ns: at_ns + 5_000_000,
        why: "again".into(),
        addresses: "10.0.0.1:3306,10.0.0.2:3306".into(),
        peer: "10.0.0.1:3306".into(),
        local: "10.0.0.9:4000".into(),
        seen_as: "10.0.0.9:4000".into(),
        greeting_version: "8.0.11-TiDB-v8.5.0".into(),
        greeting_id: Some(id),
        capabilities: Some(0x81ff_f7df),
        auth_plugin: "mysql_native_password".into(),
        tls_version: "TLSv1.3".into(),
        tls_cipher: "TLS_AES_128_GCM_SHA256".into(),
        server_tls: Some(String::new()),
        answered_id: Some(answered),
        again_id: Some(answered),
        lone_id: None,
        server_version: "8.0.11-TiDB-v8.5.0".into(),
        backend: "tidb-1:4000".into(),
        again_backend: "tidb-1:4000".into(),
        identity: "CONCAT(@@hostname, ':', @@port)".into(),
        ..Inspection::default()
    }
}

fn failed(at_ns: i64) -> Inspection {
    Inspection {
        target: "t".into(),
        at_ns,
        until_ns: at_ns + 1,
        why: "start".into(),
        error: "Connection refused".into(),
        peer: "10.0.0.1:3306".into(),
        ..Inspection::default()
    }
}

/// A run of one client that is moved to another address after two seconds.
fn write(looks: &[Inspection]) -> (tempfile::TempDir, RunStore) {
    let data = tempfile::tempdir().expect("a folder");
    let mut store = RunStore::create(data.path(), manifest(), Disk::default()).expect("is new");
    let (agent, incarnation): (AgentId, _) =
        ("agent-1".parse().expect("a name"), Incarnation::generate());
    let mut records = vec![HostRecord::Started(ProbingStarted {
        origin_ns: 0,
        planned_end_ns: 4 * S,
        clock: SystemClock::new().key(),
    })];
    let looks = looks.iter().cloned();
    records.extend(looks.map(|seen| HostRecord::Inspection(Box::new(seen))));
    records.push(lag(S));
    let mut all = samples(1..=400);
    for (number, sample) in all.iter_mut().enumerate() {
        sample.peer = Some(Arc::from(match number {
            0..200 => "10.0.0.1:3306",
            _ => "10.0.0.2:3306",
        }));
        if number.is_multiple_of(100) {
            sample.resolve_ns = Some(2_000_000 + number as u64);
        }
    }
    // The name server said nothing once.
    let silent = &mut all[300];
    (silent.outcome, silent.phase) = (Outcome::TimedOut, Phase::Resolve);
    silent.peer = None;
    records.push(HostRecord::Ended(ProbingEnded {
        end_ns: 4 * S,
        reason: "planned end".to_owned(),
        due: 400,
        sampled: 400,
        waited: 0,
        overslept: 0,
    }));
    store.append_host(&agent, incarnation, records);
    store.append_samples(&agent, incarnation, all);
    store.commit().expect("commits");
    (data, store)
}

fn table(analysis: &Analysis, title: &str) -> Option<Table> {
    let tables = report(analysis).tables;
    tables
        .into_iter()
        .find(|table| table.title.starts_with(title))
}

#[test]
fn looks_and_addresses_come_through_live_and_closed() {
    let looks = [
        failed(S / 2),
        inspection(S, 42, 42),
        inspection(2 * S, 43, 43),
        inspection(3 * S, 44, 9 << 32 | 44),
    ];
    let (_data, mut store) = write(&looks);
    let folder = store.folder().to_owned();
    let live = analyse(&RunFolder::open(&folder).expect("opens")).expect("analysed");
    store.close(|_| {}).expect("closes");
    let closed = analyse(&RunFolder::open(&folder).expect("opens")).expect("analysed");
    assert!(folder.join("inspections.parquet").exists());
    for analysis in [&live, &closed] {
        let expected: Vec<Look> = looks
            .iter()
            .map(|seen| Look {
                timeline: 0,
                seen: seen.clone(),
            })
            .collect();
        assert_eq!(analysis.beside.looks, expected);
        let served: Vec<_> = analysis
            .beside
            .served
            .iter()
            .map(|one| (one.address.as_str(), one.clients, one.answers + one.bad))
            .collect();
        assert_eq!(
            served,
            [("10.0.0.1:3306", 1, 200), ("10.0.0.2:3306", 1, 199)]
        );
        let look_ups = analysis.beside.look_ups.values().next();
        assert_eq!(
            look_ups,
            Some(&LookUps {
                count: 4,
                failed: 1,
                took_max_ns: 2_000_300
            })
        );
    }
    let looked = table(&closed, "Connections looked at").expect("a table");
    let rows: Vec<(&str, &str)> = looked.rows.iter().map(|r| (&*r[1], &*r[2])).collect();
    // Those that say the same are one row.
    assert_eq!(
        rows,
        [("1", "0.500 s"), ("2", "1.000..2.000 s"), ("1", "3.000 s")]
    );
    for (row, words) in [
        (0, "not looked at to its end: Connection refused"),
        (1, "TLS ends before the server"),
        (2, "ids cut to 32 bits"),
    ] {
        assert!(
            looked.rows[row][3].contains(words),
            "{:?}",
            looked.rows[row]
        );
    }
    let addresses = table(&closed, "Addresses").expect("a table");
    assert_eq!(addresses.rows.len(), 3, "{addresses:?}");
    assert_eq!(addresses.rows[0][1], "10.0.0.1:3306");
    // It is said that the probe itself pins sessions.
    let pins = closed
        .caveats
        .iter()
        .filter(|c| c.code == "probe_pins_session");
    assert_eq!(pins.count(), 1);
    let json = summary(&closed, 0);
    assert_eq!(json["looks"][3]["connection_id"], (9u64 << 32) | 44);
    assert_eq!(json["looks"][0]["greeting"], serde_json::Value::Null);
    assert_eq!(json["addresses"][1]["address"], "10.0.0.2:3306");
}

#[test]
fn a_run_without_looks_says_nothing_of_them() {
    let (_data, mut store) = write(&[]);
    let folder = store.folder().to_owned();
    store.close(|_| {}).expect("closes");
    assert!(!folder.join("inspections.parquet").exists());
    let analysis = analyse(&RunFolder::open(&folder).expect("opens")).expect("analysed");
    assert!(analysis.beside.looks.is_empty());
    assert!(table(&analysis, "Connections looked at").is_none());
}
