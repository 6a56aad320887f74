//! Column names and types of everything stored in a run folder.
//!
//! Texts that repeat are categorical: four bytes a row in memory, dictionary
//! pages in the file, and plain strings to any other reader. A value that was
//! not measured is null, never a number that stands for nothing.

use std::sync::Arc;

use polars::prelude::{Categories, DataType, Field, PlSmallStr, Schema, SchemaRef};

/// Columns of `samples`.
pub mod samples {
    #![expect(
        missing_docs,
        reason = "the sample's documentation is in gapscope_proto::sample"
    )]
    pub const RUN_ID: &str = "run_id";
    pub const AGENT_ID: &str = "agent_id";
    /// 16 hexadecimal digits.
    pub const INCARNATION: &str = "incarnation";
    pub const TARGET: &str = "target";
    pub const STYLE: &str = "style";
    pub const CLIENT: &str = "client";
    pub const SEQ: &str = "seq";
    pub const SLOT: &str = "slot";
    pub const SCHEDULED_NS: &str = "scheduled_ns";
    pub const STARTED_NS: &str = "started_ns";
    pub const FINISHED_NS: &str = "finished_ns";
    pub const RESOLVE_NS: &str = "resolve_ns";
    pub const CONNECT_NS: &str = "connect_ns";
    pub const QUERY_NS: &str = "query_ns";
    pub const PHASE: &str = "phase";
    pub const OUTCOME: &str = "outcome";
    pub const CAUSE: &str = "cause";
    pub const ERROR_CODE: &str = "error_code";
    pub const SQLSTATE: &str = "sqlstate";
    pub const ERROR: &str = "error";
    pub const MAY_HAVE_EXECUTED: &str = "may_have_executed";
    pub const CONNECTION: &str = "connection";
    pub const CONNECTION_ID: &str = "connection_id";
    pub const HANDSHAKE_ID: &str = "handshake_id";
    pub const BACKEND: &str = "backend";
    pub const PEER: &str = "peer";
    pub const SERVER_VERSION: &str = "server_version";
    pub const CANARY: &str = "canary";
}

/// Columns of the host records beside `agent_id`, `incarnation` and `seq`.
pub mod host {
    #![expect(
        missing_docs,
        reason = "the records' documentation is in gapscope_proto::host"
    )]
    /// `lag`, `exchange`, `anchor`, `started`, `ended`; only in live parts.
    pub const KIND: &str = "kind";
    pub const AT_NS: &str = "at_ns";
    pub const TICKS: &str = "ticks";
    pub const LATE_MAX_NS: &str = "late_max_ns";
    pub const UNTIL_NS: &str = "until_ns";
    pub const CONTROL: &str = "control";
    pub const PROBES: &str = "probes";
    pub const BAD: &str = "bad";
    pub const TOOK_MAX_NS: &str = "took_max_ns";
    pub const A1_NS: &str = "a1_ns";
    pub const S1_NS: &str = "s1_ns";
    pub const S2_NS: &str = "s2_ns";
    pub const A2_NS: &str = "a2_ns";
    pub const SERVER_BOOT_ID: &str = "server_boot_id";
    pub const SERVER_TIME_NAMESPACE: &str = "server_time_namespace";
    pub const RAW_BEFORE_NS: &str = "raw_before_ns";
    pub const RAW_AFTER_NS: &str = "raw_after_ns";
    pub const MONOTONIC_NS: &str = "monotonic_ns";
    pub const BOOTTIME_NS: &str = "boottime_ns";
    pub const REALTIME_NS: &str = "realtime_ns";
    pub const TIMER_LATE_NS: &str = "timer_late_ns";
    pub const ORIGIN_NS: &str = "origin_ns";
    pub const PLANNED_END_NS: &str = "planned_end_ns";
    pub const CLOCK_BOOT_ID: &str = "clock_boot_id";
    pub const CLOCK_TIME_NAMESPACE: &str = "clock_time_namespace";
    pub const END_NS: &str = "end_ns";
    pub const REASON: &str = "reason";
    pub const DUE: &str = "due";
    pub const SAMPLED: &str = "sampled";
    pub const WAITED: &str = "waited";
    pub const OVERSLEPT: &str = "overslept";
    pub const SOURCE: &str = "source";
    pub const BACKEND: &str = "backend";
    pub const ERROR: &str = "error";
    pub const SHARED: &str = "shared";
    /// The start of the agent that wrote the rows: 16 hexadecimal digits.
    pub const WRITTEN_BY: &str = "written_by";
    pub const TARGET: &str = "target";
    pub const CLIENT: &str = "client";
    pub const FIRST_SLOT: &str = "first_slot";
    pub const LAST_SLOT: &str = "last_slot";
    pub const TIMES: &str = "times";
    pub const NOTE: &str = "note";
    pub const WHY: &str = "why";
    pub const ADDRESSES: &str = "addresses";
    pub const PEER: &str = "peer";
    pub const LOCAL: &str = "local";
    pub const SEEN_AS: &str = "seen_as";
    pub const GREETING_VERSION: &str = "greeting_version";
    pub const GREETING_ID: &str = "greeting_id";
    pub const CAPABILITIES: &str = "capabilities";
    pub const AUTH_PLUGIN: &str = "auth_plugin";
    pub const TLS_VERSION: &str = "tls_version";
    pub const TLS_CIPHER: &str = "tls_cipher";
    pub const SERVER_TLS: &str = "server_tls";
    pub const ANSWERED_ID: &str = "answered_id";
    pub const AGAIN_ID: &str = "again_id";
    pub const LONE_ID: &str = "lone_id";
    pub const SERVER_VERSION: &str = "server_version";
    pub const AGAIN_BACKEND: &str = "again_backend";
    pub const IDENTITY: &str = "identity";
}

/// Columns of `losses` beside `agent_id`, `incarnation`, `kind` and `reason`.
pub mod losses {
    #![expect(missing_docs, reason = "see LossRecord")]
    pub const FIRST_SEQ: &str = "first_seq";
    pub const LAST_SEQ: &str = "last_seq";
    pub const COUNT_MIN: &str = "count_min";
    pub const COUNT_MAX: &str = "count_max";
}

/// Columns of `faults`. A span is two columns, `<name>_earliest_ns` and
/// `<name>_latest_ns`, of the clock named in the same row.
pub mod faults {
    #![expect(missing_docs, reason = "see gapscope_proto::fault")]
    pub const ID: &str = "id";
    pub const STEP: &str = "step";
    pub const SUBJECT: &str = "subject";
    pub const IDENTITY: &str = "identity";
    pub const SCOPE: &str = "scope";
    pub const DETAIL: &str = "detail";
    /// Names of the spans, in order; `asked` is never null.
    pub const SPANS: [&str; 5] = ["asked", "listener_refused", "held_cut", "gone", "cleared"];
}

/// Type of a text that repeats.
pub fn dictionary() -> DataType {
    DataType::from_categories(Categories::global())
}

fn schema(columns: impl IntoIterator<Item = (&'static str, DataType)>) -> SchemaRef {
    Arc::new(Schema::from_iter(columns.into_iter().map(
        |(name, dtype)| Field::new(PlSmallStr::from_static(name), dtype),
    )))
}

/// The schema of `samples`.
pub fn samples_schema() -> SchemaRef {
    use DataType::{Boolean, Int64, UInt16, UInt32, UInt64};
    use samples::*;
    schema([
        (RUN_ID, dictionary()),
        (AGENT_ID, dictionary()),
        (INCARNATION, dictionary()),
        (TARGET, dictionary()),
        (STYLE, dictionary()),
        (CLIENT, UInt16),
        (SEQ, UInt64),
        (SLOT, UInt64),
        (SCHEDULED_NS, Int64),
        (STARTED_NS, Int64),
        (FINISHED_NS, Int64),
        (RESOLVE_NS, UInt64),
        (CONNECT_NS, UInt64),
        (QUERY_NS, UInt64),
        (PHASE, dictionary()),
        (OUTCOME, dictionary()),
        (CAUSE, dictionary()),
        (ERROR_CODE, UInt16),
        (SQLSTATE, dictionary()),
        (ERROR, dictionary()),
        (MAY_HAVE_EXECUTED, Boolean),
        (CONNECTION, UInt32),
        (CONNECTION_ID, UInt64),
        (HANDSHAKE_ID, UInt32),
        (BACKEND, dictionary()),
        (PEER, dictionary()),
        (SERVER_VERSION, dictionary()),
        (CANARY, dictionary()),
    ])
}

/// What a kind of host record is called, and its own columns.
pub struct HostTable {
    /// Word in the `kind` column.
    pub kind: &'static str,
    /// File after the close, without extension.
    pub file: &'static str,
    /// Columns beside agent, incarnation and seq.
    pub columns: &'static [&'static str],
    /// The file is only there where there are such records.
    pub is_rare: bool,
}

/// Lateness of each agent's ticker.
pub const LAG: HostTable = HostTable {
    kind: "lag",
    file: "lag",
    columns: &[host::AT_NS, host::TICKS, host::LATE_MAX_NS],
    is_rare: false,
};

/// Clock exchanges as the agents saw them.
pub const CLOCK_EXCHANGES: HostTable = HostTable {
    kind: "exchange",
    file: "clock_exchanges",
    columns: &[
        host::A1_NS,
        host::S1_NS,
        host::S2_NS,
        host::A2_NS,
        host::SERVER_BOOT_ID,
        host::SERVER_TIME_NAMESPACE,
    ],
    is_rare: false,
};

/// The agents' clocks read together.
pub const CLOCK_ANCHORS: HostTable = HostTable {
    kind: "anchor",
    file: "clock_anchors",
    columns: &[
        host::RAW_BEFORE_NS,
        host::RAW_AFTER_NS,
        host::MONOTONIC_NS,
        host::BOOTTIME_NS,
        host::REALTIME_NS,
        host::TIMER_LATE_NS,
    ],
    is_rare: false,
};

/// Probes of controls, and of each agent's own loopback.
pub const CONTROL: HostTable = HostTable {
    kind: "control",
    file: "control",
    columns: &[
        host::AT_NS,
        host::UNTIL_NS,
        host::CONTROL,
        host::PROBES,
        host::BAD,
        host::TOOK_MAX_NS,
        host::ERROR,
    ],
    is_rare: false,
};

/// The write ledger as it was read after the run; see
/// [`gapscope_proto::host::LedgerEntry`]. Runs of older builds have none.
pub const LEDGER_READS: HostTable = HostTable {
    kind: "ledger",
    file: "ledger_reads",
    columns: &[
        host::SOURCE,
        host::BACKEND,
        host::ERROR,
        host::SHARED,
        host::WRITTEN_BY,
        host::TARGET,
        host::CLIENT,
        host::FIRST_SLOT,
        host::LAST_SLOT,
        host::TIMES,
        host::NOTE,
    ],
    is_rare: true,
};

/// Connections that were looked at beside the probes; see
/// [`gapscope_proto::host::Inspection`]. Runs of older builds have none.
pub const INSPECTIONS: HostTable = HostTable {
    kind: "inspection",
    file: "inspections",
    columns: &[
        host::TARGET,
        host::AT_NS,
        host::UNTIL_NS,
        host::WHY,
        host::ERROR,
        host::ADDRESSES,
        host::PEER,
        host::LOCAL,
        host::SEEN_AS,
        host::GREETING_VERSION,
        host::GREETING_ID,
        host::CAPABILITIES,
        host::AUTH_PLUGIN,
        host::TLS_VERSION,
        host::TLS_CIPHER,
        host::SERVER_TLS,
        host::ANSWERED_ID,
        host::AGAIN_ID,
        host::LONE_ID,
        host::SERVER_VERSION,
        host::BACKEND,
        host::AGAIN_BACKEND,
        host::IDENTITY,
    ],
    is_rare: true,
};

/// The tables that host records become at the close.
pub const HOST_TABLES: [&HostTable; 6] = [
    &LAG,
    &CLOCK_EXCHANGES,
    &CLOCK_ANCHORS,
    &CONTROL,
    &LEDGER_READS,
    &INSPECTIONS,
];

/// The schema of a live part of host records: each kind's columns side by side.
pub fn host_schema() -> SchemaRef {
    use DataType::{Int64, UInt32, UInt64};
    use host::*;
    schema([
        (samples::AGENT_ID, dictionary()),
        (samples::INCARNATION, dictionary()),
        (samples::SEQ, UInt64),
        (KIND, dictionary()),
        (AT_NS, Int64),
        (TICKS, UInt32),
        (LATE_MAX_NS, UInt64),
        (UNTIL_NS, Int64),
        (CONTROL, dictionary()),
        (PROBES, UInt32),
        (BAD, UInt32),
        (TOOK_MAX_NS, UInt64),
        (A1_NS, Int64),
        (S1_NS, Int64),
        (S2_NS, Int64),
        (A2_NS, Int64),
        (SERVER_BOOT_ID, dictionary()),
        (SERVER_TIME_NAMESPACE, UInt64),
        (RAW_BEFORE_NS, Int64),
        (RAW_AFTER_NS, Int64),
        (MONOTONIC_NS, Int64),
        (BOOTTIME_NS, Int64),
        (REALTIME_NS, Int64),
        (TIMER_LATE_NS, UInt64),
        (ORIGIN_NS, Int64),
        (PLANNED_END_NS, Int64),
        (CLOCK_BOOT_ID, dictionary()),
        (CLOCK_TIME_NAMESPACE, UInt64),
        (END_NS, Int64),
        (REASON, dictionary()),
        (DUE, UInt64),
        (SAMPLED, UInt64),
        (WAITED, UInt64),
        (OVERSLEPT, UInt64),
        (SOURCE, dictionary()),
        (BACKEND, dictionary()),
        (ERROR, dictionary()),
        (SHARED, DataType::Boolean),
        (WRITTEN_BY, dictionary()),
        (TARGET, dictionary()),
        (CLIENT, DataType::UInt16),
        (FIRST_SLOT, UInt64),
        (LAST_SLOT, UInt64),
        (TIMES, UInt32),
        (NOTE, dictionary()),
        (WHY, dictionary()),
        (ADDRESSES, dictionary()),
        (PEER, dictionary()),
        (LOCAL, dictionary()),
        (SEEN_AS, dictionary()),
        (GREETING_VERSION, dictionary()),
        (GREETING_ID, UInt32),
        (CAPABILITIES, UInt32),
        (AUTH_PLUGIN, dictionary()),
        (TLS_VERSION, dictionary()),
        (TLS_CIPHER, dictionary()),
        (SERVER_TLS, dictionary()),
        (ANSWERED_ID, UInt64),
        (AGAIN_ID, UInt64),
        (LONE_ID, UInt64),
        (SERVER_VERSION, dictionary()),
        (AGAIN_BACKEND, dictionary()),
        (IDENTITY, dictionary()),
    ])
}

/// The schema of one of the [`HOST_TABLES`] after the close.
pub fn host_table_schema(table: &HostTable) -> SchemaRef {
    let all = host_schema();
    let names = [samples::AGENT_ID, samples::INCARNATION, samples::SEQ]
        .into_iter()
        .chain(table.columns.iter().copied());
    Arc::new(Schema::from_iter(names.map(|name| {
        let dtype = all.get(name).expect("a table's columns are in the schema");
        Field::new(PlSmallStr::from_static(name), dtype.clone())
    })))
}
