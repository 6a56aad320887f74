//! Records to polars frames and back.

use std::sync::Arc;

use gapscope_proto::clock::ClockKey;
use gapscope_proto::fault::{Fault, FaultScope, Span};
use gapscope_proto::host::{
    Anchor, ControlProbes, Exchange, HostRecord, Inspection, Lag, LedgerEntry, ProbingEnded,
    ProbingStarted,
};
use gapscope_proto::ids::{AgentId, Incarnation};
use polars::prelude::*;

use super::loss::{LossRecord, kind_from_word, kind_word};
use super::schema::{self, dictionary, faults, host, losses, samples};

/// A record with the names it goes by in its stream.
#[derive(Debug, Clone)]
pub struct Row<T> {
    /// Whose.
    pub agent: Arc<str>,
    /// 16 hexadecimal digits.
    pub incarnation: Arc<str>,
    /// Number in the stream.
    pub seq: u64,
    /// The record.
    pub record: T,
}

pub(crate) fn texts<'a>(
    name: &'static str,
    values: impl Iterator<Item = Option<&'a str>>,
) -> PolarsResult<Column> {
    let column = CategoricalChunked::<Categorical32Type>::from_str_iter(
        PlSmallStr::from_static(name),
        dictionary(),
        values,
    )?;
    Ok(column.into_series().into_column())
}

pub(crate) fn numbers<T>(name: &'static str, values: impl Iterator<Item = T>) -> Column
where
    Series: NamedFrom<Vec<T>, [T]>,
{
    Series::new(PlSmallStr::from_static(name), values.collect::<Vec<T>>()).into_column()
}

pub(crate) fn maybe<T>(name: &'static str, values: impl Iterator<Item = Option<T>>) -> Column
where
    Series: NamedFrom<Vec<Option<T>>, [Option<T>]>,
{
    Series::new(
        PlSmallStr::from_static(name),
        values.collect::<Vec<Option<T>>>(),
    )
    .into_column()
}

macro_rules! field {
    ($rows:expr, $name:expr, $($kind:ident => $value:expr),+) => {
        maybe($name, $rows.iter().map(|row| match &row.record {
            $(HostRecord::$kind(r) => Some($value(r)),)+
            _ => None,
        }))
    };
}

fn kind_of(record: &HostRecord) -> &'static str {
    match record {
        HostRecord::Lag(_) => schema::LAG.kind,
        HostRecord::Exchange(_) => schema::CLOCK_EXCHANGES.kind,
        HostRecord::Anchor(_) => schema::CLOCK_ANCHORS.kind,
        HostRecord::Started(_) => "started",
        HostRecord::Ended(_) => "ended",
        HostRecord::Control(_) => schema::CONTROL.kind,
        HostRecord::Ledger(_) => schema::LEDGER_READS.kind,
        // Keeps its seq; no table takes it in.
        HostRecord::Unknown(_) => "unknown",
        HostRecord::Inspection(_) => schema::INSPECTIONS.kind,
    }
}

/// Host records as a frame of [`schema::host_schema`].
pub fn host_frame(rows: &[Row<HostRecord>]) -> PolarsResult<DataFrame> {
    use host::*;
    let text = |name, pick: fn(&HostRecord) -> Option<&str>| {
        texts(name, rows.iter().map(move |row| pick(&row.record)))
    };
    let of = || rows.iter().map(|row| &row.record);
    let writers: Vec<String> = rows
        .iter()
        .map(|row| {
            ledger_of(&row.record)
                .map_or(String::new(), |entry| format!("{:016x}", entry.incarnation))
        })
        .collect();
    DataFrame::new(
        rows.len(),
        vec![
            texts(samples::AGENT_ID, rows.iter().map(|row| Some(&*row.agent)))?,
            texts(
                samples::INCARNATION,
                rows.iter().map(|row| Some(&*row.incarnation)),
            )?,
            numbers(samples::SEQ, rows.iter().map(|row| row.seq)),
            texts(KIND, rows.iter().map(|row| Some(kind_of(&row.record))))?,
            field!(rows, AT_NS, Lag => |r: &Lag| r.at_ns, Control => |r: &ControlProbes| r.at_ns,
                Inspection => |r: &Inspection| r.at_ns),
            field!(rows, TICKS, Lag => |r: &Lag| r.ticks),
            field!(rows, LATE_MAX_NS, Lag => |r: &Lag| r.late_max_ns),
            field!(rows, UNTIL_NS, Control => |r: &ControlProbes| r.until_ns,
                Inspection => |r: &Inspection| r.until_ns),
            text(CONTROL, |r| match r {
                HostRecord::Control(c) => Some(c.name.as_str()),
                _ => None,
            })?,
            field!(rows, PROBES, Control => |r: &ControlProbes| r.probes),
            field!(rows, BAD, Control => |r: &ControlProbes| r.bad),
            field!(rows, TOOK_MAX_NS, Control => |r: &ControlProbes| r.took_max_ns),
            field!(rows, A1_NS, Exchange => |r: &Exchange| r.a1_ns),
            field!(rows, S1_NS, Exchange => |r: &Exchange| r.s1_ns),
            field!(rows, S2_NS, Exchange => |r: &Exchange| r.s2_ns),
            field!(rows, A2_NS, Exchange => |r: &Exchange| r.a2_ns),
            text(SERVER_BOOT_ID, |r| match r {
                HostRecord::Exchange(e) => Some(e.server.boot_id.as_str()),
                _ => None,
            })?,
            field!(rows, SERVER_TIME_NAMESPACE, Exchange => |r: &Exchange| r.server.time_namespace),
            field!(rows, RAW_BEFORE_NS, Anchor => |r: &Anchor| r.raw_before_ns),
            field!(rows, RAW_AFTER_NS, Anchor => |r: &Anchor| r.raw_after_ns),
            field!(rows, MONOTONIC_NS, Anchor => |r: &Anchor| r.monotonic_ns),
            field!(rows, BOOTTIME_NS, Anchor => |r: &Anchor| r.boottime_ns),
            field!(rows, REALTIME_NS, Anchor => |r: &Anchor| r.realtime_ns),
            field!(rows, TIMER_LATE_NS, Anchor => |r: &Anchor| r.timer_late_ns),
            field!(rows, ORIGIN_NS, Started => |r: &ProbingStarted| r.origin_ns),
            field!(rows, PLANNED_END_NS, Started => |r: &ProbingStarted| r.planned_end_ns),
            text(CLOCK_BOOT_ID, |r| match r {
                HostRecord::Started(s) => Some(s.clock.boot_id.as_str()),
                _ => None,
            })?,
            field!(rows, CLOCK_TIME_NAMESPACE, Started => |r: &ProbingStarted| r.clock.time_namespace),
            field!(rows, END_NS, Ended => |r: &ProbingEnded| r.end_ns),
            text(REASON, |r| match r {
                HostRecord::Ended(e) => Some(e.reason.as_str()),
                _ => None,
            })?,
            field!(rows, DUE, Ended => |r: &ProbingEnded| r.due),
            field!(rows, SAMPLED, Ended => |r: &ProbingEnded| r.sampled),
            field!(rows, WAITED, Ended => |r: &ProbingEnded| r.waited),
            field!(rows, OVERSLEPT, Ended => |r: &ProbingEnded| r.overslept),
            text(SOURCE, |r| ledger_of(r).map(|l| l.source.as_str()))?,
            text(BACKEND, |r| match r {
                HostRecord::Inspection(i) => Some(i.backend.as_str()),
                other => ledger_of(other).map(|l| l.backend.as_str()),
            })?,
            text(ERROR, |r| match r {
                HostRecord::Control(c) => Some(c.error.as_str()),
                HostRecord::Inspection(i) => Some(i.error.as_str()),
                other => ledger_of(other).map(|l| l.error.as_str()),
            })?,
            field!(rows, SHARED, Ledger => |r: &LedgerEntry| r.shared),
            texts(
                WRITTEN_BY,
                writers
                    .iter()
                    .zip(rows)
                    .map(|(writer, row)| ledger_of(&row.record).map(|_| writer.as_str())),
            )?,
            text(TARGET, |r| match r {
                HostRecord::Inspection(i) => Some(i.target.as_str()),
                other => ledger_of(other).map(|l| l.target.as_str()),
            })?,
            field!(rows, CLIENT, Ledger => |r: &LedgerEntry| r.client),
            field!(rows, FIRST_SLOT, Ledger => |r: &LedgerEntry| r.first_slot),
            field!(rows, LAST_SLOT, Ledger => |r: &LedgerEntry| r.last_slot),
            field!(rows, TIMES, Ledger => |r: &LedgerEntry| r.times),
            text(NOTE, |r| ledger_of(r).map(|l| l.note.as_str()))?,
            text(WHY, |r| seen(r).map(|i| i.why.as_str()))?,
            text(ADDRESSES, |r| seen(r).map(|i| i.addresses.as_str()))?,
            text(PEER, |r| seen(r).map(|i| i.peer.as_str()))?,
            text(LOCAL, |r| seen(r).map(|i| i.local.as_str()))?,
            text(SEEN_AS, |r| seen(r).map(|i| i.seen_as.as_str()))?,
            text(GREETING_VERSION, |r| {
                seen(r).map(|i| i.greeting_version.as_str())
            })?,
            maybe(GREETING_ID, of().map(|r| seen(r)?.greeting_id)),
            maybe(CAPABILITIES, of().map(|r| seen(r)?.capabilities)),
            text(AUTH_PLUGIN, |r| seen(r).map(|i| i.auth_plugin.as_str()))?,
            text(TLS_VERSION, |r| seen(r).map(|i| i.tls_version.as_str()))?,
            text(TLS_CIPHER, |r| seen(r).map(|i| i.tls_cipher.as_str()))?,
            text(SERVER_TLS, |r| seen(r)?.server_tls.as_deref())?,
            maybe(ANSWERED_ID, of().map(|r| seen(r)?.answered_id)),
            maybe(AGAIN_ID, of().map(|r| seen(r)?.again_id)),
            maybe(LONE_ID, of().map(|r| seen(r)?.lone_id)),
            text(SERVER_VERSION, |r| {
                seen(r).map(|i| i.server_version.as_str())
            })?,
            text(AGAIN_BACKEND, |r| seen(r).map(|i| i.again_backend.as_str()))?,
            text(IDENTITY, |r| seen(r).map(|i| i.identity.as_str()))?,
        ],
    )
}

fn seen(record: &HostRecord) -> Option<&Inspection> {
    match record {
        HostRecord::Inspection(seen) => Some(seen),
        _ => None,
    }
}

/// The inspections of a frame of [`schema::INSPECTIONS`], with agent and start.
pub fn inspections_of(frame: &DataFrame) -> PolarsResult<Vec<((String, String), Inspection)>> {
    use host::*;
    let cells = Cells(frame);
    let agents = cells.texts(samples::AGENT_ID)?;
    let incarnations = cells.texts(samples::INCARNATION)?;
    let (at, until) = (cells.signed(AT_NS)?, cells.signed(UNTIL_NS)?);
    let server_tls = cells.texts(SERVER_TLS)?;
    let numbers = |name| cells.unsigned(name);
    let ids = [
        numbers(GREETING_ID)?,
        numbers(CAPABILITIES)?,
        numbers(ANSWERED_ID)?,
        numbers(AGAIN_ID)?,
        numbers(LONE_ID)?,
    ];
    let names = [
        TARGET,
        WHY,
        ERROR,
        ADDRESSES,
        PEER,
        LOCAL,
        SEEN_AS,
        GREETING_VERSION,
        AUTH_PLUGIN,
        TLS_VERSION,
        TLS_CIPHER,
        SERVER_VERSION,
        BACKEND,
        AGAIN_BACKEND,
        IDENTITY,
    ];
    let texts = names
        .iter()
        .map(|name| cells.texts(name))
        .collect::<PolarsResult<Vec<_>>>()?;
    let mut found = Vec::with_capacity(frame.height());
    for row in 0..frame.height() {
        let (Some(agent), Some(incarnation), Some(at_ns), Some(until_ns)) = (
            agents[row].clone(),
            incarnations[row].clone(),
            at[row],
            until[row],
        ) else {
            continue;
        };
        let mut rest = texts.iter().map(|of| of[row].clone().unwrap_or_default());
        let mut next = || rest.next().unwrap_or_default();
        let short = |of: &[Option<u64>]| of[row].and_then(|id| u32::try_from(id).ok());
        let seen = Inspection {
            target: next(),
            why: next(),
            error: next(),
            addresses: next(),
            peer: next(),
            local: next(),
            seen_as: next(),
            greeting_version: next(),
            auth_plugin: next(),
            tls_version: next(),
            tls_cipher: next(),
            server_version: next(),
            backend: next(),
            again_backend: next(),
            identity: next(),
            at_ns,
            until_ns,
            greeting_id: short(&ids[0]),
            capabilities: short(&ids[1]),
            answered_id: ids[2][row],
            again_id: ids[3][row],
            lone_id: ids[4][row],
            server_tls: server_tls[row].clone(),
        };
        found.push(((agent, incarnation), seen));
    }
    Ok(found)
}

fn ledger_of(record: &HostRecord) -> Option<&LedgerEntry> {
    match record {
        HostRecord::Ledger(entry) => Some(entry),
        _ => None,
    }
}

/// Losses as a frame.
pub fn losses_frame(records: &[LossRecord]) -> PolarsResult<DataFrame> {
    use losses::*;
    let incarnations: Vec<String> = records.iter().map(|r| r.incarnation.to_string()).collect();
    DataFrame::new(
        records.len(),
        vec![
            texts(
                samples::AGENT_ID,
                records.iter().map(|r| Some(r.agent_id.as_str())),
            )?,
            texts(
                samples::INCARNATION,
                incarnations.iter().map(|i| Some(i.as_str())),
            )?,
            texts(host::KIND, records.iter().map(|r| Some(kind_word(r.kind))))?,
            numbers(FIRST_SEQ, records.iter().map(|r| r.first_seq)),
            numbers(LAST_SEQ, records.iter().map(|r| r.last_seq)),
            numbers(COUNT_MIN, records.iter().map(|r| r.count_min)),
            numbers(COUNT_MAX, records.iter().map(|r| r.count_max)),
            texts(
                host::REASON,
                records.iter().map(|r| Some(r.reason.as_str())),
            )?,
        ],
    )
}

fn spans_of(fault: &Fault) -> [Option<Span>; 5] {
    [
        Some(fault.asked),
        fault.listener_refused,
        fault.held_cut,
        fault.gone,
        fault.cleared,
    ]
}

/// The two columns of a span.
pub fn span_columns(span: &str) -> (String, String) {
    (format!("{span}_earliest_ns"), format!("{span}_latest_ns"))
}

/// Faults as a frame.
pub fn faults_frame(records: &[Fault]) -> PolarsResult<DataFrame> {
    use faults::*;
    let mut columns = vec![
        numbers(ID, records.iter().map(|f| f.id)),
        texts(STEP, records.iter().map(|f| Some(f.step.as_str())))?,
        texts(SUBJECT, records.iter().map(|f| Some(f.subject.as_str())))?,
        texts(IDENTITY, records.iter().map(|f| f.identity.as_deref()))?,
        texts(SCOPE, records.iter().map(|f| Some(f.scope.as_str())))?,
        texts(
            host::CLOCK_BOOT_ID,
            records.iter().map(|f| Some(f.clock.boot_id.as_str())),
        )?,
        numbers(
            host::CLOCK_TIME_NAMESPACE,
            records.iter().map(|f| f.clock.time_namespace),
        ),
    ];
    for (index, name) in SPANS.into_iter().enumerate() {
        let (earliest, latest) = span_columns(name);
        let pick = |edge: fn(Span) -> i64| {
            records
                .iter()
                .map(|f| spans_of(f)[index].map(edge))
                .collect::<Vec<Option<i64>>>()
        };
        columns.push(Series::new(earliest.into(), pick(|s| s.earliest_ns)).into_column());
        columns.push(Series::new(latest.into(), pick(|s| s.latest_ns)).into_column());
    }
    columns.push(texts(
        DETAIL,
        records.iter().map(|f| Some(f.detail.as_str())),
    )?);
    DataFrame::new(records.len(), columns)
}

/// A frame's columns by type, for reading it row by row.
pub struct Cells<'a>(pub &'a DataFrame);

impl Cells<'_> {
    /// A text column's values.
    pub fn texts(&self, name: &str) -> PolarsResult<Vec<Option<String>>> {
        let column = self.0.column(name)?.cast(&DataType::String)?;
        Ok(column.str()?.iter().map(|v| v.map(str::to_owned)).collect())
    }

    /// An i64 column's values.
    pub fn signed(&self, name: &str) -> PolarsResult<Vec<Option<i64>>> {
        Ok(self.0.column(name)?.i64()?.iter().collect())
    }

    /// A u64 column's values.
    pub fn unsigned(&self, name: &str) -> PolarsResult<Vec<Option<u64>>> {
        let column = self.0.column(name)?.cast(&DataType::UInt64)?;
        Ok(column.u64()?.iter().collect())
    }
}

fn missing(column: &str) -> PolarsError {
    PolarsError::ComputeError(format!("column `{column}` has no value where one is needed").into())
}

fn wrong(what: impl std::fmt::Display) -> PolarsError {
    PolarsError::ComputeError(what.to_string().into())
}

/// The faults of a frame made by [`faults_frame`].
pub fn faults_of(frame: &DataFrame) -> PolarsResult<Vec<Fault>> {
    use faults::*;
    let cells = Cells(frame);
    let ids = cells.unsigned(ID)?;
    let [step, subject, identity, scope, boot, detail] = [
        cells.texts(STEP)?,
        cells.texts(SUBJECT)?,
        cells.texts(IDENTITY)?,
        cells.texts(SCOPE)?,
        cells.texts(host::CLOCK_BOOT_ID)?,
        cells.texts(DETAIL)?,
    ];
    let namespace = cells.unsigned(host::CLOCK_TIME_NAMESPACE)?;
    let mut spans = Vec::new();
    for name in SPANS {
        let (earliest, latest) = span_columns(name);
        spans.push((cells.signed(&earliest)?, cells.signed(&latest)?));
    }
    let span = |which: usize, row: usize| {
        let (earliest, latest) = &spans[which];
        Some(Span {
            earliest_ns: earliest[row]?,
            latest_ns: latest[row]?,
        })
    };
    (0..frame.height())
        .map(|row| {
            let text = |column: &'static str, values: &[Option<String>]| {
                values[row].clone().ok_or_else(|| missing(column))
            };
            let scope = text(SCOPE, &scope)?;
            Ok(Fault {
                id: ids[row]
                    .and_then(|id| u32::try_from(id).ok())
                    .ok_or_else(|| missing(ID))?,
                step: text(STEP, &step)?,
                subject: text(SUBJECT, &subject)?,
                identity: identity[row].clone(),
                scope: FaultScope::from_word(&scope)
                    .ok_or_else(|| wrong(format!("unknown scope `{scope}`")))?,
                clock: ClockKey {
                    boot_id: text(host::CLOCK_BOOT_ID, &boot)?,
                    time_namespace: namespace[row].unwrap_or(0),
                },
                asked: span(0, row).ok_or_else(|| missing("asked"))?,
                listener_refused: span(1, row),
                held_cut: span(2, row),
                gone: span(3, row),
                cleared: span(4, row),
                detail: text(DETAIL, &detail)?,
            })
        })
        .collect()
}

fn incarnation_of(text: &str) -> PolarsResult<Incarnation> {
    u64::from_str_radix(text, 16)
        .ok()
        .and_then(|number| Incarnation::new(number).ok())
        .ok_or_else(|| wrong(format!("`{text}` is not an incarnation")))
}

/// The losses of a frame made by [`losses_frame`].
pub fn losses_of(frame: &DataFrame) -> PolarsResult<Vec<LossRecord>> {
    use losses::*;
    let cells = Cells(frame);
    let agents = cells.texts(samples::AGENT_ID)?;
    let incarnations = cells.texts(samples::INCARNATION)?;
    let kinds = cells.texts(host::KIND)?;
    let reasons = cells.texts(host::REASON)?;
    let [first, last, min, max] = [
        cells.unsigned(FIRST_SEQ)?,
        cells.unsigned(LAST_SEQ)?,
        cells.unsigned(COUNT_MIN)?,
        cells.unsigned(COUNT_MAX)?,
    ];
    (0..frame.height())
        .map(|row| {
            let text = |column: &'static str, values: &[Option<String>]| {
                values[row].clone().ok_or_else(|| missing(column))
            };
            let number = |column: &'static str, values: &[Option<u64>]| {
                values[row].ok_or_else(|| missing(column))
            };
            Ok(LossRecord {
                agent_id: text(samples::AGENT_ID, &agents)?.parse().map_err(wrong)?,
                incarnation: incarnation_of(&text(samples::INCARNATION, &incarnations)?)?,
                kind: kind_from_word(&text(host::KIND, &kinds)?)
                    .ok_or_else(|| missing(host::KIND))?,
                first_seq: number(FIRST_SEQ, &first)?,
                last_seq: number(LAST_SEQ, &last)?,
                count_min: number(COUNT_MIN, &min)?,
                count_max: number(COUNT_MAX, &max)?,
                reason: text(host::REASON, &reasons)?,
            })
        })
        .collect()
}

/// Start or end of probing, found among host records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// Probing began.
    Started(ProbingStarted),
    /// Probing ended.
    Ended(ProbingEnded),
}

/// The starts and ends in a frame made by [`host_frame`].
pub fn bounds_of(frame: &DataFrame) -> PolarsResult<Vec<(AgentId, Incarnation, Bound)>> {
    use host::*;
    let cells = Cells(frame);
    let kinds = cells.texts(KIND)?;
    if !kinds
        .iter()
        .any(|kind| matches!(kind.as_deref(), Some("started" | "ended")))
    {
        return Ok(Vec::new());
    }
    let agents = cells.texts(samples::AGENT_ID)?;
    let incarnations = cells.texts(samples::INCARNATION)?;
    let origin = cells.signed(ORIGIN_NS)?;
    let planned_end = cells.signed(PLANNED_END_NS)?;
    let boot = cells.texts(CLOCK_BOOT_ID)?;
    let namespace = cells.unsigned(CLOCK_TIME_NAMESPACE)?;
    let end = cells.signed(END_NS)?;
    let reason = cells.texts(REASON)?;
    let [due, sampled, waited, overslept] = [
        cells.unsigned(DUE)?,
        cells.unsigned(SAMPLED)?,
        cells.unsigned(WAITED)?,
        cells.unsigned(OVERSLEPT)?,
    ];
    let mut found = Vec::new();
    for row in 0..frame.height() {
        let bound = match kinds[row].as_deref() {
            Some("started") => Bound::Started(ProbingStarted {
                origin_ns: origin[row].ok_or_else(|| missing(ORIGIN_NS))?,
                planned_end_ns: planned_end[row].ok_or_else(|| missing(PLANNED_END_NS))?,
                clock: ClockKey {
                    boot_id: boot[row].clone().ok_or_else(|| missing(CLOCK_BOOT_ID))?,
                    time_namespace: namespace[row].unwrap_or(0),
                },
            }),
            Some("ended") => Bound::Ended(ProbingEnded {
                end_ns: end[row].ok_or_else(|| missing(END_NS))?,
                reason: reason[row].clone().unwrap_or_default(),
                due: due[row].ok_or_else(|| missing(DUE))?,
                sampled: sampled[row].ok_or_else(|| missing(SAMPLED))?,
                waited: waited[row].ok_or_else(|| missing(WAITED))?,
                overslept: overslept[row].ok_or_else(|| missing(OVERSLEPT))?,
            }),
            _ => continue,
        };
        let agent = agents[row]
            .as_deref()
            .ok_or_else(|| missing(samples::AGENT_ID))?
            .parse()
            .map_err(wrong)?;
        let incarnation = incarnation_of(
            incarnations[row]
                .as_deref()
                .ok_or_else(|| missing(samples::INCARNATION))?,
        )?;
        found.push((agent, incarnation, bound));
    }
    Ok(found)
}
