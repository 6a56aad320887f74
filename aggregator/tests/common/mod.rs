//! Made-up records for tests.
#![allow(dead_code, reason = "each test uses a part")]

use std::sync::Arc;

use gapscope_proto::host::{HostRecord, Lag};
use gapscope_proto::ids::RunId;
use gapscope_proto::plan::{ClientGroup, ClientKind, RunPlan, Timeouts};
use gapscope_proto::sample::{Cause, Outcome, Phase, Sample, Style};
use gapscope_proto::time::Timestamp;

pub(crate) fn plan(target: &str, duration_ns: u64) -> RunPlan {
    RunPlan {
        run_id: RunId::generate(),
        scenario: "test".to_owned(),
        duration_ns,
        deadline_ns: 250_000_000,
        groups: vec![ClientGroup {
            target: target.parse().expect("a name"),
            style: Style::Reused,
            kind: ClientKind::Bare,
            first_client: 0,
            clients: 1,
            interval_ns: 10_000_000,
            timeouts: Timeouts {
                resolve_ns: None,
                connect_ns: Some(5_000_000_000),
                query_ns: Some(5_000_000_000),
            },
        }],
        identity: None,
        scenario_toml: String::new(),
    }
}

/// A sample that knows its number: slot is seq - 1.
pub(crate) fn sample(seq: u64) -> Sample {
    let at = seq as i64 * 10_000_000;
    let good = !seq.is_multiple_of(7);
    Sample {
        target: Arc::new("t".parse().expect("a name")),
        style: Style::Reused,
        client: 0,
        slot: seq - 1,
        scheduled: Timestamp::from_ns(at),
        started: Timestamp::from_ns(at + 1),
        finished: Timestamp::from_ns(at + 2),
        resolve_ns: None,
        connect_ns: (seq == 1).then_some(3),
        query_ns: Some(1),
        phase: Phase::Query,
        outcome: if good { Outcome::Ok } else { Outcome::TimedOut },
        cause: (!good).then_some(Cause::QueryTimeout),
        error_code: (!good).then_some(2013),
        sqlstate: None,
        error: (!good).then(|| Arc::from("Lost connection")),
        may_have_executed: !good,
        connection: Some(1),
        connection_id: Some(seq),
        handshake_id: Some(7),
        backend: good.then(|| Arc::from("a:3306")),
        peer: Some(Arc::from("127.0.0.1:3306")),
        server_version: good.then(|| Arc::from("10.11")),
        canary: None,
    }
}

pub(crate) fn samples(seqs: std::ops::RangeInclusive<u64>) -> Vec<Sample> {
    seqs.map(sample).collect()
}

pub(crate) fn lag(at_ns: i64) -> HostRecord {
    HostRecord::Lag(Lag {
        at_ns,
        ticks: 100,
        late_max_ns: 5,
    })
}
