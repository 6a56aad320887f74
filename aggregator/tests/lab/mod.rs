//! A run made by hand: written through the store, so that what is reported can
//! be compared with what was put in.

#![allow(
    unreachable_pub,
    dead_code,
    reason = "a module of test programs, each of which needs part of it"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use gapscope_aggregator::commands::report::{Reported, as_full_text, as_text, make};
use gapscope_aggregator::store::disk::Disk;
use gapscope_aggregator::store::manifest::{
    AgentEntry, FORMAT_VERSION, Manifest, RunState, Schedule, TargetEntry,
};
use gapscope_aggregator::store::{RunFolder, RunStore};
use gapscope_proto::clock::ClockKey;
use gapscope_proto::fault::{Fault, FaultScope, Span};
use gapscope_proto::host::{Anchor, Exchange, HostFacts, HostRecord, ProbingEnded, ProbingStarted};
use gapscope_proto::ids::{AgentId, Incarnation, RunId};
use gapscope_proto::plan::{ClientGroup, ClientKind, RunPlan, Timeouts};
use gapscope_proto::sample::{Canary, Cause, Outcome, Phase, Sample, Style};
use gapscope_proto::time::Timestamp;
use serde_json::Value;

pub const MS: i64 = 1_000_000;
pub const S: i64 = 1_000 * MS;
/// What the aggregator's wall clock shows at zero of its RAW clock.
pub const WALL: i64 = 1_767_225_600 * S;

pub fn key(name: &str) -> ClockKey {
    ClockKey {
        boot_id: name.into(),
        time_namespace: 0,
    }
}

pub fn group(
    target: &str,
    style: Style,
    kind: ClientKind,
    first: u16,
    clients: u16,
    interval: i64,
) -> ClientGroup {
    let timeout = (kind != ClientKind::Patient).then_some(5 * S as u64);
    ClientGroup {
        target: target.parse().expect("a name"),
        style,
        kind,
        first_client: first,
        clients,
        interval_ns: interval as u64,
        timeouts: Timeouts {
            resolve_ns: timeout,
            connect_ns: timeout,
            query_ns: timeout,
        },
    }
}

/// A run in the making: one agent, whose origin is `origin` on its clock.
pub struct Lab {
    pub data: tempfile::TempDir,
    pub store: RunStore,
    pub agent: AgentId,
    pub incarnation: Incarnation,
    pub origin: i64,
    pub clock: ClockKey,
    pub lasts: i64,
    pub waited: u64,
    pub sampled: u64,
    pub due: u64,
}

impl Lab {
    pub fn new(groups: Vec<ClientGroup>, lasts: i64) -> Self {
        Self::with_clock(groups, lasts, key("host"), 1_000 * S)
    }

    pub fn with_clock(groups: Vec<ClientGroup>, lasts: i64, clock: ClockKey, origin: i64) -> Self {
        let data = tempfile::tempdir().expect("a folder");
        let agent: AgentId = "agent-1".parse().expect("a name");
        let incarnation = Incarnation::generate();
        let mut names: Vec<_> = groups.iter().map(|g| g.target.clone()).collect();
        names.dedup();
        let manifest = Manifest {
            format_version: FORMAT_VERSION,
            run_id: RunId::generate(),
            state: RunState::Running,
            created_utc: "2026-01-01T00:00:00.000Z".into(),
            closed_utc: None,
            end_reason: None,
            program_version: "test".into(),
            host: HostFacts::default(),
            clock: key("host"),
            anchors: vec![],
            plan: RunPlan {
                run_id: RunId::generate(),
                scenario: "test".into(),
                duration_ns: lasts as u64,
                deadline_ns: 250 * MS as u64,
                groups,
                identity: None,
                scenario_toml: String::new(),
            },
            schedule: Schedule::OpenLoop,
            subjects: vec![],
            labels: BTreeMap::new(),
            agents: vec![AgentEntry {
                agent_id: agent.clone(),
                program_version: "test".into(),
                host: HostFacts::default(),
                targets: names
                    .into_iter()
                    .map(|name| TargetEntry {
                        name,
                        address: "127.0.0.1:3306".into(),
                        user: "probe".into(),
                    })
                    .collect(),
                incarnations: vec![],
                shares_id: false,
            }],
            caveats: vec![],
            files: None,
        };
        let store = RunStore::create(data.path(), manifest, Disk::default()).expect("created");
        Self {
            data,
            store,
            agent,
            incarnation,
            origin,
            clock,
            lasts,
            waited: 0,
            sampled: 0,
            due: 0,
        }
    }

    /// From here on another agent probes the same targets, by another clock.
    pub fn next_agent(&mut self, name: &str, clock: ClockKey, origin: i64) {
        let targets = self.store.manifest().agents[0].targets.clone();
        self.agent = name.parse().expect("a name");
        self.incarnation = Incarnation::generate();
        self.clock = clock;
        self.origin = origin;
        (self.waited, self.sampled, self.due) = (0, 0, 0);
        let agent_id = self.agent.clone();
        self.store.edit_manifest(|m| {
            m.agents.push(AgentEntry {
                agent_id,
                program_version: "test".into(),
                host: HostFacts::default(),
                targets,
                incarnations: vec![],
                shares_id: false,
            });
        });
    }

    /// Exchanges over a path of 1 ms each way, and anchors whose wall clock is off.
    pub fn exchange(&mut self, ahead: i64, wall_off: i64) {
        let (origin, lasts) = (self.origin, self.lasts);
        let at = move |k: i64| origin + k * 100 * MS;
        let records = (0..lasts / (100 * MS)).flat_map(move |k| {
            let a1 = at(k);
            let exchange = Exchange {
                a1_ns: a1,
                s1_ns: a1 + ahead + MS,
                s2_ns: a1 + ahead + MS + 10_000,
                a2_ns: a1 + 2 * MS + 20_000,
                server: key("host"),
            };
            let anchor = Anchor {
                raw_before_ns: a1,
                raw_after_ns: a1 + 300,
                monotonic_ns: a1,
                boottime_ns: a1,
                realtime_ns: WALL + a1 + ahead + wall_off,
                timer_late_ns: 0,
            };
            [HostRecord::Exchange(exchange), HostRecord::Anchor(anchor)]
        });
        self.host(records.collect::<Vec<_>>());
    }

    pub fn begin(&mut self) {
        let started = ProbingStarted {
            origin_ns: self.origin,
            planned_end_ns: self.origin + self.lasts,
            clock: self.clock.clone(),
        };
        self.host([HostRecord::Started(started)]);
    }

    pub fn host(&mut self, records: impl IntoIterator<Item = HostRecord>) {
        self.store
            .append_host(&self.agent, self.incarnation, records);
    }

    /// Lets every planned client probe: `answer` says what a probe meets that
    /// begins so long after the origin.
    pub fn probe(&mut self, answer: impl Fn(&Sample, i64) -> Sample) {
        let groups = self.store.manifest().plan.groups.clone();
        for group in groups {
            for (index, client) in (0..group.clients).zip(group.client_numbers()) {
                self.due += group.due_slots(index, self.lasts as u64);
                let mut slot = 0;
                let mut samples: Vec<Sample> = Vec::new();
                while slot < group.due_slots(index, self.lasts as u64) {
                    let due = group.due_after_origin_ns(index, slot) as i64;
                    let at = self.origin + due;
                    let blank = sample(&group, client, slot, at);
                    let found = answer(&blank, due);
                    let finished = found.finished.ns() - self.origin;
                    samples.push(found);
                    let before = slot;
                    slot += 1;
                    while (group.due_after_origin_ns(index, slot) as i64) <= finished
                        && slot < group.due_slots(index, self.lasts as u64)
                    {
                        slot += 1;
                    }
                    self.waited += slot - before - 1;
                }
                self.sampled += samples.len() as u64;
                self.store
                    .append_samples(&self.agent, self.incarnation, samples);
            }
        }
    }

    pub fn end(&mut self) {
        let ended = ProbingEnded {
            end_ns: self.origin + self.lasts,
            reason: "planned end".into(),
            due: self.due,
            sampled: self.sampled,
            waited: self.waited,
            overslept: 0,
        };
        self.host([HostRecord::Ended(ended)]);
    }

    pub fn fault(&mut self, step: &str, scope: FaultScope, at: i64, identity: Option<&str>) {
        let at = self.origin + at;
        let span = Span {
            earliest_ns: at,
            latest_ns: at,
        };
        let fault = Fault {
            id: 0,
            step: step.into(),
            subject: "db-a".into(),
            identity: identity.map(Into::into),
            scope,
            clock: key("host"),
            asked: span,
            listener_refused: None,
            held_cut: None,
            gone: None,
            cleared: None,
            detail: String::new(),
        };
        self.store.record_fault(fault).expect("recorded");
    }

    /// A note of the lab's own.
    pub fn note(&mut self, step: &str, subject: &str, at: i64, detail: &str) {
        let at = self.origin + at;
        let fault = Fault {
            id: 0,
            step: step.into(),
            subject: subject.into(),
            identity: None,
            scope: FaultScope::Mark,
            clock: key("host"),
            asked: Span {
                earliest_ns: at,
                latest_ns: at,
            },
            listener_refused: None,
            held_cut: None,
            gone: None,
            cleared: None,
            detail: detail.into(),
        };
        self.store.record_fault(fault).expect("recorded");
    }

    pub fn close(&mut self) {
        self.store
            .close(|manifest| {
                manifest.state = RunState::Closed;
                manifest.end_reason = Some("planned end".into());
            })
            .expect("closed");
    }

    pub fn report(&self) -> (Reported, Value) {
        let run = RunFolder::open(self.store.folder()).expect("readable");
        let reported = make(&run).expect("reported");
        let json = serde_json::from_str(&reported.json).expect("JSON");
        for width in [60, 80, 120] {
            let short = as_text(&reported.analysis, Some(width));
            let full = as_full_text(&reported.analysis, Some(width));
            for line in short.lines().chain(full.lines()) {
                assert!(
                    line.chars().count() <= usize::from(width),
                    "{width}: {line}"
                );
            }
        }
        assert!(self.data.path().exists());
        (reported, json)
    }
}

/// A good answer of backend a:3306 after 2 ms.
pub fn sample(group: &ClientGroup, client: u16, slot: u64, at: i64) -> Sample {
    Sample {
        target: Arc::new(group.target.clone()),
        style: group.style,
        client,
        slot,
        scheduled: Timestamp::from_ns(at),
        started: Timestamp::from_ns(at),
        finished: Timestamp::from_ns(at + 2 * MS),
        resolve_ns: None,
        connect_ns: None,
        query_ns: Some(2 * MS as u64),
        phase: Phase::Query,
        outcome: Outcome::Ok,
        cause: None,
        error_code: None,
        sqlstate: None,
        error: None,
        may_have_executed: false,
        connection: Some(if group.style == Style::New {
            slot as u32 + 1
        } else {
            1
        }),
        connection_id: Some(7),
        handshake_id: Some(7),
        backend: Some("a:3306".into()),
        peer: Some("127.0.0.1:6033".into()),
        server_version: Some("8.0".into()),
        canary: None,
    }
}

pub fn refused(blank: &Sample) -> Sample {
    Sample {
        finished: blank.started + MS,
        phase: Phase::Connect,
        outcome: Outcome::ConnectFailed,
        cause: Some(Cause::Refused),
        error: Some("Connection refused".into()),
        connection: None,
        connection_id: None,
        handshake_id: None,
        backend: None,
        ..blank.clone()
    }
}

pub fn from_b(blank: &Sample, connection: u32) -> Sample {
    Sample {
        backend: Some("b:3306".into()),
        connection: Some(connection),
        ..blank.clone()
    }
}

pub fn standard(target: &str) -> Vec<ClientGroup> {
    vec![
        group(target, Style::Reused, ClientKind::Bare, 0, 4, 10 * MS),
        group(target, Style::Reused, ClientKind::Patient, 4, 1, 10 * MS),
        group(target, Style::New, ClientKind::Bare, 0, 2, 200 * MS),
        group(
            target,
            Style::Reused,
            ClientKind::Canary(Canary::UserVariable),
            5,
            1,
            10 * MS,
        ),
    ]
}
