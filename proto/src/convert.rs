//! Wire messages to domain types and back: with the generated code, the only
//! place that names both.

use std::str::FromStr;
use std::sync::Arc;

use crate::batch::{Columns, Series};
use crate::clock::ClockKey;
use crate::fault::{Fault, FaultScope, Span, Subject};
use crate::frame::{Body, FORMAT_VERSION, Frame, StreamId, StreamKind, host_body};
use crate::host::{
    Anchor, ControlProbes, Exchange, HostFacts, HostRecord, Inspection, Lag, LedgerEntry,
    ProbingEnded, ProbingStarted, Unknown,
};
use crate::ids::{Incarnation, RunId, TargetName};
use crate::pack;
use crate::plan::{ClientGroup, RunPlan, Timeouts};
use crate::wire;

/// A message that is well-formed protobuf and makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}`: {why}")]
pub struct InvalidMessage {
    /// Which field.
    pub field: &'static str,
    /// What is wrong with it.
    pub why: String,
}

fn invalid(field: &'static str, why: impl ToString) -> InvalidMessage {
    InvalidMessage {
        field,
        why: why.to_string(),
    }
}

fn word<T: FromStr>(field: &'static str, text: &str) -> Result<T, InvalidMessage>
where
    T::Err: ToString,
{
    text.parse().map_err(|error: T::Err| invalid(field, error))
}

fn optional_word<T: FromStr>(field: &'static str, text: &str) -> Result<Option<T>, InvalidMessage>
where
    T::Err: ToString,
{
    if text.is_empty() {
        Ok(None)
    } else {
        word(field, text).map(Some)
    }
}

fn u16_of(field: &'static str, value: u32) -> Result<u16, InvalidMessage> {
    u16::try_from(value).map_err(|_| invalid(field, format!("{value} is out of range")))
}

fn non_empty(text: &str) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| Arc::from(text))
}

fn text_of(text: &Option<Arc<str>>) -> String {
    text.as_deref().unwrap_or_default().to_owned()
}

fn required<T>(field: &'static str, value: Option<T>) -> Result<T, InvalidMessage> {
    value.ok_or_else(|| invalid(field, "it is missing"))
}

impl From<&ClockKey> for wire::ClockKey {
    fn from(key: &ClockKey) -> Self {
        Self {
            boot_id: key.boot_id.clone(),
            time_namespace: key.time_namespace,
        }
    }
}

impl From<wire::ClockKey> for ClockKey {
    fn from(key: wire::ClockKey) -> Self {
        Self {
            boot_id: key.boot_id,
            time_namespace: key.time_namespace,
        }
    }
}

impl From<&HostFacts> for wire::HostFacts {
    fn from(facts: &HostFacts) -> Self {
        Self {
            hostname: facts.hostname.clone(),
            kernel: facts.kernel.clone(),
            cpus: facts.cpus,
            memory_bytes: facts.memory_bytes,
        }
    }
}

impl From<wire::HostFacts> for HostFacts {
    fn from(facts: wire::HostFacts) -> Self {
        Self {
            hostname: facts.hostname,
            kernel: facts.kernel,
            cpus: facts.cpus,
            memory_bytes: facts.memory_bytes,
        }
    }
}

impl From<StreamKind> for wire::StreamKind {
    fn from(kind: StreamKind) -> Self {
        match kind {
            StreamKind::Samples => Self::Samples,
            StreamKind::Host => Self::Host,
        }
    }
}

impl From<&StreamId> for wire::StreamId {
    fn from(id: &StreamId) -> Self {
        Self {
            run_id: id.run.to_string(),
            incarnation: id.incarnation.get(),
            kind: wire::StreamKind::from(id.kind).into(),
        }
    }
}

impl TryFrom<&wire::StreamId> for StreamId {
    type Error = InvalidMessage;
    fn try_from(id: &wire::StreamId) -> Result<Self, InvalidMessage> {
        Ok(Self {
            run: word("run_id", &id.run_id)?,
            incarnation: Incarnation::new(id.incarnation)
                .map_err(|error| invalid("incarnation", error))?,
            kind: match id.kind() {
                wire::StreamKind::Samples => StreamKind::Samples,
                wire::StreamKind::Host => StreamKind::Host,
                wire::StreamKind::Unspecified => {
                    return Err(invalid("kind", format!("unknown stream kind {}", id.kind)));
                }
            },
        })
    }
}

impl From<&Frame> for wire::Frame {
    fn from(frame: &Frame) -> Self {
        Self {
            stream: Some((&frame.stream).into()),
            first_seq: frame.first_seq,
            count: u32::try_from(frame.count()).unwrap_or(u32::MAX),
            body: Some(match &frame.body {
                Body::Samples(columns) => wire::frame::Body::Samples(columns.into()),
                Body::Host(records) => wire::frame::Body::Host(wire::HostColumns {
                    records: records.iter().map(Into::into).collect(),
                }),
            }),
        }
    }
}

/// As [`wire::Frame::from`], with samples packed, for an aggregator that takes them
/// so. What cannot be packed goes as it is.
pub fn packed_frame(frame: &Frame) -> wire::Frame {
    let packed = match &frame.body {
        Body::Samples(columns) => pack::pack(columns).ok(),
        Body::Host(_) => None,
    };
    match packed {
        Some(bytes) => wire::Frame {
            stream: Some((&frame.stream).into()),
            first_seq: frame.first_seq,
            count: u32::try_from(frame.count()).unwrap_or(u32::MAX),
            body: Some(wire::frame::Body::Packed(bytes)),
        },
        None => frame.into(),
    }
}

impl TryFrom<wire::Frame> for Frame {
    type Error = InvalidMessage;
    fn try_from(frame: wire::Frame) -> Result<Self, InvalidMessage> {
        let stream = StreamId::try_from(&required("stream", frame.stream)?)?;
        let body = match (required("body", frame.body)?, stream.kind) {
            (wire::frame::Body::Packed(bytes), StreamKind::Samples) => {
                let columns = pack::unpack(FORMAT_VERSION, &bytes, frame.count as usize);
                Body::Samples(columns.map_err(|error| invalid("packed", error))?)
            }
            (wire::frame::Body::Samples(columns), StreamKind::Samples) => {
                Body::Samples(columns.try_into()?)
            }
            (wire::frame::Body::Host(records), StreamKind::Host) => Body::Host(
                records
                    .records
                    .into_iter()
                    .map(TryInto::try_into)
                    .collect::<Result<_, _>>()?,
            ),
            _ => return Err(invalid("body", "it is not of the stream's kind")),
        };
        let decoded = Self {
            stream,
            first_seq: frame.first_seq,
            body,
        };
        if decoded.count() == 0 || decoded.count() != frame.count as usize {
            return Err(invalid(
                "count",
                format!("{} where there are {}", frame.count, decoded.count()),
            ));
        }
        if frame.first_seq == 0
            || frame
                .first_seq
                .checked_add(decoded.count() as u64)
                .is_none()
        {
            return Err(invalid("first_seq", "it is out of range"));
        }
        Ok(decoded)
    }
}

impl From<&Columns> for wire::SampleColumns {
    fn from(columns: &Columns) -> Self {
        Self {
            series: columns.series.iter().map(Into::into).collect(),
            series_index: columns.series_index.clone(),
            slot: columns.slot.clone(),
            scheduled_ns: columns.scheduled.clone(),
            started_after_ns: columns.started_after.clone(),
            took_ns: columns.took.clone(),
            resolve_ns_plus_1: columns.resolve.clone(),
            connect_ns_plus_1: columns.connect.clone(),
            query_ns_plus_1: columns.query.clone(),
            connection_plus_1: columns.connection.clone(),
            connection_id_plus_1: columns.connection_id.clone(),
        }
    }
}

impl TryFrom<wire::SampleColumns> for Columns {
    type Error = InvalidMessage;
    fn try_from(columns: wire::SampleColumns) -> Result<Self, InvalidMessage> {
        Ok(Self {
            series: columns
                .series
                .into_iter()
                .map(TryInto::try_into)
                .collect::<Result<_, _>>()?,
            series_index: columns.series_index,
            slot: columns.slot,
            scheduled: columns.scheduled_ns,
            started_after: columns.started_after_ns,
            took: columns.took_ns,
            resolve: columns.resolve_ns_plus_1,
            connect: columns.connect_ns_plus_1,
            query: columns.query_ns_plus_1,
            connection: columns.connection_plus_1,
            connection_id: columns.connection_id_plus_1,
        })
    }
}

impl From<&Series> for wire::Series {
    fn from(series: &Series) -> Self {
        Self {
            target: series.target.as_str().to_owned(),
            style: series.style.as_str().to_owned(),
            client: u32::from(series.client),
            phase: series.phase.as_str().to_owned(),
            outcome: series.outcome.as_str().to_owned(),
            cause: series.cause.map_or_else(String::new, Into::into),
            error_code: series.error_code.map(u32::from),
            sqlstate: text_of(&series.sqlstate),
            error: text_of(&series.error),
            may_have_executed: series.may_have_executed,
            handshake_id: series.handshake_id,
            backend: series.backend.as_deref().map(str::to_owned),
            peer: series.peer.as_deref().map(str::to_owned),
            server_version: series.server_version.as_deref().map(str::to_owned),
            canary: series.canary.map_or_else(String::new, Into::into),
        }
    }
}

impl TryFrom<wire::Series> for Series {
    type Error = InvalidMessage;
    fn try_from(series: wire::Series) -> Result<Self, InvalidMessage> {
        Ok(Self {
            target: Arc::new(word("target", &series.target)?),
            style: word("style", &series.style)?,
            client: u16_of("client", series.client)?,
            phase: word("phase", &series.phase)?,
            outcome: word("outcome", &series.outcome)?,
            cause: optional_word("cause", &series.cause)?,
            error_code: series
                .error_code
                .map(|code| u16_of("error_code", code))
                .transpose()?,
            sqlstate: non_empty(&series.sqlstate),
            error: non_empty(&series.error),
            may_have_executed: series.may_have_executed,
            handshake_id: series.handshake_id,
            backend: series.backend.map(Arc::from),
            peer: series.peer.map(Arc::from),
            server_version: series.server_version.map(Arc::from),
            canary: optional_word("canary", &series.canary)?,
        })
    }
}

impl From<&HostRecord> for wire::HostRecord {
    fn from(record: &HostRecord) -> Self {
        use wire::host_record::Kind;
        Self {
            kind: Some(match record {
                HostRecord::Lag(lag) => Kind::Lag(wire::Lag {
                    at_ns: lag.at_ns,
                    ticks: lag.ticks,
                    late_max_ns: lag.late_max_ns,
                }),
                HostRecord::Exchange(exchange) => Kind::Exchange(wire::Exchange {
                    a1_ns: exchange.a1_ns,
                    s1_ns: exchange.s1_ns,
                    s2_ns: exchange.s2_ns,
                    a2_ns: exchange.a2_ns,
                    server: Some((&exchange.server).into()),
                }),
                HostRecord::Anchor(anchor) => Kind::Anchor(wire::Anchor {
                    raw_before_ns: anchor.raw_before_ns,
                    raw_after_ns: anchor.raw_after_ns,
                    monotonic_ns: anchor.monotonic_ns,
                    boottime_ns: anchor.boottime_ns,
                    realtime_ns: anchor.realtime_ns,
                    timer_late_ns: anchor.timer_late_ns,
                }),
                HostRecord::Started(started) => Kind::Started(wire::ProbingStarted {
                    origin_ns: started.origin_ns,
                    planned_end_ns: started.planned_end_ns,
                    clock: Some((&started.clock).into()),
                }),
                HostRecord::Control(probes) => Kind::Control(wire::ControlProbes {
                    name: probes.name.clone(),
                    at_ns: probes.at_ns,
                    until_ns: probes.until_ns,
                    probes: probes.probes,
                    bad: probes.bad,
                    took_max_ns: probes.took_max_ns,
                    error: probes.error.clone(),
                }),
                HostRecord::Ended(ended) => Kind::Ended(wire::ProbingEnded {
                    end_ns: ended.end_ns,
                    reason: ended.reason.clone(),
                    due: ended.due,
                    sampled: ended.sampled,
                    waited: ended.waited,
                    overslept: ended.overslept,
                }),
                HostRecord::Ledger(entry) => Kind::Ledger(wire::LedgerEntry {
                    source: entry.source.clone(),
                    backend: entry.backend.clone(),
                    error: entry.error.clone(),
                    shared: entry.shared,
                    incarnation: entry.incarnation,
                    target: entry.target.clone(),
                    client: u32::from(entry.client),
                    first_slot: entry.first_slot,
                    last_slot: entry.last_slot,
                    times: entry.times,
                    note: entry.note.clone(),
                }),
                HostRecord::Inspection(seen) => Kind::Inspection(seen.as_ref().into()),
                HostRecord::Unknown(unknown) if unknown.packed.is_empty() => {
                    return Self { kind: None };
                }
                HostRecord::Unknown(unknown) => Kind::Packed(unknown.packed.clone()),
            }),
        }
    }
}

impl From<&Inspection> for wire::Inspection {
    fn from(seen: &Inspection) -> Self {
        Self {
            target: seen.target.clone(),
            at_ns: seen.at_ns,
            until_ns: seen.until_ns,
            why: seen.why.clone(),
            error: seen.error.clone(),
            addresses: seen.addresses.clone(),
            peer: seen.peer.clone(),
            local: seen.local.clone(),
            seen_as: seen.seen_as.clone(),
            greeting_version: seen.greeting_version.clone(),
            greeting_id: seen.greeting_id,
            capabilities: seen.capabilities,
            auth_plugin: seen.auth_plugin.clone(),
            tls_version: seen.tls_version.clone(),
            tls_cipher: seen.tls_cipher.clone(),
            server_tls: seen.server_tls.clone(),
            answered_id: seen.answered_id,
            again_id: seen.again_id,
            lone_id: seen.lone_id,
            server_version: seen.server_version.clone(),
            backend: seen.backend.clone(),
            again_backend: seen.again_backend.clone(),
            identity: seen.identity.clone(),
        }
    }
}

impl From<wire::Inspection> for Inspection {
    fn from(seen: wire::Inspection) -> Self {
        Self {
            target: seen.target,
            at_ns: seen.at_ns,
            until_ns: seen.until_ns,
            why: seen.why,
            error: seen.error,
            addresses: seen.addresses,
            peer: seen.peer,
            local: seen.local,
            seen_as: seen.seen_as,
            greeting_version: seen.greeting_version,
            greeting_id: seen.greeting_id,
            capabilities: seen.capabilities,
            auth_plugin: seen.auth_plugin,
            tls_version: seen.tls_version,
            tls_cipher: seen.tls_cipher,
            server_tls: seen.server_tls,
            answered_id: seen.answered_id,
            again_id: seen.again_id,
            lone_id: seen.lone_id,
            server_version: seen.server_version,
            backend: seen.backend,
            again_backend: seen.again_backend,
            identity: seen.identity,
        }
    }
}

impl TryFrom<wire::HostRecord> for HostRecord {
    type Error = InvalidMessage;
    fn try_from(record: wire::HostRecord) -> Result<Self, InvalidMessage> {
        use wire::host_record::Kind;
        // Of a kind that this build does not know: it keeps its place.
        let Some(kind) = record.kind else {
            return Ok(Self::Unknown(Unknown::default()));
        };
        Ok(match kind {
            Kind::Packed(bytes) => match host_body::record(&bytes) {
                Ok(unknown @ Self::Unknown(_)) => unknown,
                // Held to the same rules as one that came unpacked.
                Ok(known) => wire::HostRecord::from(&known).try_into()?,
                Err(error) => return Err(invalid("packed", error)),
            },
            Kind::Lag(lag) => Self::Lag(Lag {
                at_ns: lag.at_ns,
                ticks: lag.ticks,
                late_max_ns: lag.late_max_ns,
            }),
            Kind::Exchange(exchange) => Self::Exchange(Exchange {
                a1_ns: exchange.a1_ns,
                s1_ns: exchange.s1_ns,
                s2_ns: exchange.s2_ns,
                a2_ns: exchange.a2_ns,
                server: required("server", exchange.server)?.into(),
            }),
            Kind::Anchor(anchor) => Self::Anchor(Anchor {
                raw_before_ns: anchor.raw_before_ns,
                raw_after_ns: anchor.raw_after_ns,
                monotonic_ns: anchor.monotonic_ns,
                boottime_ns: anchor.boottime_ns,
                realtime_ns: anchor.realtime_ns,
                timer_late_ns: anchor.timer_late_ns,
            }),
            Kind::Started(started) => Self::Started(ProbingStarted {
                origin_ns: started.origin_ns,
                planned_end_ns: started.planned_end_ns,
                clock: required("clock", started.clock)?.into(),
            }),
            Kind::Control(probes) => Self::Control(ControlProbes {
                name: probes.name,
                at_ns: probes.at_ns,
                until_ns: probes.until_ns,
                probes: probes.probes,
                bad: probes.bad,
                took_max_ns: probes.took_max_ns,
                error: probes.error,
            }),
            Kind::Ended(ended) => Self::Ended(ProbingEnded {
                end_ns: ended.end_ns,
                reason: ended.reason,
                due: ended.due,
                sampled: ended.sampled,
                waited: ended.waited,
                overslept: ended.overslept,
            }),
            Kind::Inspection(seen) => Self::Inspection(Box::new(seen.into())),
            Kind::Ledger(entry) => {
                if entry.first_slot > entry.last_slot {
                    return Err(invalid("last_slot", "it is before the first"));
                }
                Self::Ledger(LedgerEntry {
                    source: entry.source,
                    backend: entry.backend,
                    error: entry.error,
                    shared: entry.shared,
                    incarnation: entry.incarnation,
                    target: entry.target,
                    client: u16_of("client", entry.client)?,
                    first_slot: entry.first_slot,
                    last_slot: entry.last_slot,
                    times: entry.times,
                    note: entry.note,
                })
            }
        })
    }
}

fn timeout(ns: u64) -> Option<u64> {
    (ns != 0).then_some(ns)
}

impl From<&RunPlan> for wire::RunPlan {
    fn from(plan: &RunPlan) -> Self {
        Self {
            run_id: plan.run_id.to_string(),
            scenario: plan.scenario.clone(),
            duration_ns: plan.duration_ns,
            deadline_ns: plan.deadline_ns,
            groups: plan
                .groups
                .iter()
                .map(|group| wire::ClientGroup {
                    target: group.target.as_str().to_owned(),
                    style: group.style.as_str().to_owned(),
                    kind: group.kind.as_str().to_owned(),
                    first_client: u32::from(group.first_client),
                    clients: u32::from(group.clients),
                    interval_ns: group.interval_ns,
                    resolve_timeout_ns: group.timeouts.resolve_ns.unwrap_or(0),
                    connect_timeout_ns: group.timeouts.connect_ns.unwrap_or(0),
                    query_timeout_ns: group.timeouts.query_ns.unwrap_or(0),
                })
                .collect(),
            identity: plan.identity.clone().unwrap_or_default(),
            scenario_toml: plan.scenario_toml.clone(),
        }
    }
}

impl TryFrom<wire::RunPlan> for RunPlan {
    type Error = InvalidMessage;
    /// An empty run id gets a fresh one.
    fn try_from(plan: wire::RunPlan) -> Result<Self, InvalidMessage> {
        let decoded = Self {
            run_id: if plan.run_id.is_empty() {
                RunId::generate()
            } else {
                word("run_id", &plan.run_id)?
            },
            scenario: plan.scenario,
            duration_ns: plan.duration_ns,
            deadline_ns: plan.deadline_ns,
            groups: plan
                .groups
                .into_iter()
                .map(|group| {
                    Ok(ClientGroup {
                        target: word::<TargetName>("target", &group.target)?,
                        style: word("style", &group.style)?,
                        kind: word("kind", &group.kind)?,
                        first_client: u16_of("first_client", group.first_client)?,
                        clients: u16_of("clients", group.clients)?,
                        interval_ns: group.interval_ns,
                        timeouts: Timeouts {
                            resolve_ns: timeout(group.resolve_timeout_ns),
                            connect_ns: timeout(group.connect_timeout_ns),
                            query_ns: timeout(group.query_timeout_ns),
                        },
                    })
                })
                .collect::<Result<_, InvalidMessage>>()?,
            identity: (!plan.identity.is_empty()).then_some(plan.identity),
            scenario_toml: plan.scenario_toml,
        };
        decoded.validate().map_err(|error| invalid("plan", error))?;
        Ok(decoded)
    }
}

impl From<Span> for wire::Span {
    fn from(span: Span) -> Self {
        Self {
            earliest_ns: span.earliest_ns,
            latest_ns: span.latest_ns,
        }
    }
}

fn span(field: &'static str, span: wire::Span) -> Result<Span, InvalidMessage> {
    if span.earliest_ns > span.latest_ns {
        return Err(invalid(field, "it ends before it begins"));
    }
    Ok(Span {
        earliest_ns: span.earliest_ns,
        latest_ns: span.latest_ns,
    })
}

impl From<&Fault> for wire::Fault {
    fn from(fault: &Fault) -> Self {
        Self {
            id: fault.id,
            step: fault.step.clone(),
            subject: fault.subject.clone(),
            identity: fault.identity.clone().unwrap_or_default(),
            scope: fault.scope.as_str().to_owned(),
            clock: Some((&fault.clock).into()),
            asked: Some(fault.asked.into()),
            listener_refused: fault.listener_refused.map(Into::into),
            held_cut: fault.held_cut.map(Into::into),
            gone: fault.gone.map(Into::into),
            cleared: fault.cleared.map(Into::into),
            detail: fault.detail.clone(),
        }
    }
}

impl TryFrom<wire::Fault> for Fault {
    type Error = InvalidMessage;
    fn try_from(fault: wire::Fault) -> Result<Self, InvalidMessage> {
        let optional =
            |field, value: Option<wire::Span>| value.map(|value| span(field, value)).transpose();
        Ok(Self {
            id: fault.id,
            step: fault.step,
            subject: fault.subject,
            identity: (!fault.identity.is_empty()).then_some(fault.identity),
            scope: FaultScope::from_word(&fault.scope)
                .ok_or_else(|| invalid("scope", format!("unknown scope `{}`", fault.scope)))?,
            clock: required("clock", fault.clock)?.into(),
            asked: span("asked", required("asked", fault.asked)?)?,
            listener_refused: optional("listener_refused", fault.listener_refused)?,
            held_cut: optional("held_cut", fault.held_cut)?,
            gone: optional("gone", fault.gone)?,
            cleared: optional("cleared", fault.cleared)?,
            detail: fault.detail,
        })
    }
}

impl From<&Subject> for wire::Subject {
    fn from(subject: &Subject) -> Self {
        Self {
            name: subject.name.clone(),
            identity: subject.identity.clone().unwrap_or_default(),
            address: subject.address.clone(),
        }
    }
}

impl From<wire::Subject> for Subject {
    fn from(subject: wire::Subject) -> Self {
        Self {
            name: subject.name,
            identity: (!subject.identity.is_empty()).then_some(subject.identity),
            address: subject.address,
        }
    }
}
