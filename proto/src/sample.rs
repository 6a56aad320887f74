//! The sample: the record of one probe.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::TargetName;
use crate::time::{AgentRaw, Timestamp};

/// A word that is not one of an enum's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is not a {what}; known: {known}")]
pub struct UnknownWord {
    what: &'static str,
    word: String,
    known: String,
}

macro_rules! words {
    ($(#[$doc:meta])* $type:ident, $what:literal, { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum $type { $($(#[$vdoc])* $variant,)+ }

        impl $type {
            /// Every value, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word used in files, on the wire and in reports.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.pad(self.as_str()) }
        }

        impl FromStr for $type {
            type Err = UnknownWord;
            fn from_str(word: &str) -> Result<Self, UnknownWord> {
                Self::ALL.iter().copied().find(|v| v.as_str() == word).ok_or_else(|| UnknownWord {
                    what: $what,
                    word: word.chars().take(80).collect(),
                    known: Self::ALL.iter().map(|v| v.as_str()).collect::<Vec<_>>().join(", "),
                })
            }
        }

        impl TryFrom<String> for $type {
            type Error = UnknownWord;
            fn try_from(word: String) -> Result<Self, UnknownWord> { word.parse() }
        }

        impl From<$type> for String {
            fn from(value: $type) -> String { value.as_str().to_owned() }
        }
    };
}

words!(
    /// What a client does each time.
    Style, "style", {
    /// One held connection, one statement a probe.
    Reused = "reused",
    /// Connect, one statement, close.
    New = "new",
    /// Held connection and held prepared statement.
    Prepared = "prepared",
    /// `BEGIN`, a numbered row, the read of a bare client, `COMMIT`, on a held
    /// connection: four round trips.
    Transaction = "transaction",
});

impl Style {
    /// Whether a client of this style keeps its connection between probes.
    pub const fn is_held(self) -> bool {
        !matches!(self, Self::New)
    }
}

words!(
    /// Where a probe ended.
    Phase, "phase", {
    /// Looking up the address.
    Resolve = "resolve",
    /// TCP, TLS and login.
    Connect = "connect",
    /// Setting up a session's state, such as a canary's.
    Setup = "setup",
    /// The statement.
    Query = "query",
    /// The `COM_PING` of a pool's client.
    Ping = "ping",
    /// `BEGIN` of style `transaction`.
    Begin = "begin",
    /// The numbered row of style `transaction`.
    Write = "write",
    /// `COMMIT` of style `transaction`.
    Commit = "commit",
});

words!(
    /// What became of a probe.
    Outcome, "outcome", {
    /// Answered, and the answer is right.
    Ok = "ok",
    /// No connection could be made.
    ConnectFailed = "connect_failed",
    /// The connection ended under the probe.
    ConnectionLost = "connection_lost",
    /// The client's own timeout ran out.
    TimedOut = "timed_out",
    /// An error packet.
    ServerError = "server_error",
    /// What came is not the MySQL protocol.
    ProtocolError = "protocol_error",
    /// An answer of the wrong shape.
    WrongAnswer = "wrong_answer",
    /// Answered, but the session's state is gone.
    StateLost = "state_lost",
    /// The agent could not probe: never the target's fault.
    AgentError = "agent_error",
});

words!(
    /// The finer kind of a bad outcome.
    Cause, "cause", {
    /// The name did not resolve.
    NotResolved = "not_resolved",
    /// Connection refused (RST to a SYN, or an ICMP reject).
    Refused = "refused",
    /// No route to the host or network.
    Unreachable = "unreachable",
    /// Connection reset by RST.
    Reset = "reset",
    /// Connection closed by FIN.
    Closed = "closed",
    /// Our timeout while resolving.
    ResolveTimeout = "resolve_timeout",
    /// Our timeout while connecting.
    ConnectTimeout = "connect_timeout",
    /// Our timeout while waiting for the answer.
    QueryTimeout = "query_timeout",
    /// The run ended while the probe waited.
    RunEnded = "run_ended",
    /// Access denied (1044, 1045, 1698, 3118 ...).
    Denied = "denied",
    /// Host blocked or not allowed (1129, 1130).
    HostBlocked = "host_blocked",
    /// Too many connections (1040, 1203, 1226).
    TooManyConnections = "too_many_connections",
    /// Server shutting down (1053, 1079).
    ShuttingDown = "shutting_down",
    /// Connection or statement killed (1317, 1927).
    Killed = "killed",
    /// Gone away, lost connection to a backend (2002 to 2013 sent by a proxy).
    GoneAway = "gone_away",
    /// Refuses writes (1290, 1792, 1836).
    ReadOnly = "read_only",
    /// Unknown prepared statement (1243).
    UnknownStatement = "unknown_statement",
    /// Prepared statement must be prepared again (1615).
    MustReprepare = "must_reprepare",
    /// Lock wait timeout or deadlock (1205, 1213).
    LockWait = "lock_wait",
    /// An error of the proxy's own making.
    Proxy = "proxy",
    /// The server or cluster is there and says that it cannot serve (1047 of
    /// Galera, 3032, TiDB's 9001 ...).
    NotReady = "not_ready",
    /// The server's own limit on a statement's time (1969, 3024).
    StatementTimeout = "statement_timeout",
    /// The server's own limit on idle connections (4031).
    IdleTimeout = "idle_timeout",
    /// Another error packet.
    OtherServer = "other_server",
    /// Bytes that make no sense.
    Malformed = "malformed",
    /// TLS failed.
    Tls = "tls",
    /// The driver panicked; caught.
    DriverPanic = "driver_panic",
    /// Columns or rows are not those asked for.
    WrongShape = "wrong_shape",
    /// A canary is not what it was set to.
    CanaryBroken = "canary_broken",
    /// The agent has no file handles left.
    NoFileHandles = "no_file_handles",
    /// The agent's host has no local port left.
    NoLocalPort = "no_local_port",
    /// The agent's guard on connections a second held this one back.
    Guard = "guard",
    /// The agent's circuit breaker was open: it did not probe.
    Breaker = "breaker",
    /// Another limit or fault on the agent's side.
    Local = "local",
    /// An I/O error with no finer name.
    OtherIo = "other_io",
    /// What this client does is not supported by the target: found out at the
    /// start, and left out from then on.
    Unsupported = "unsupported",
});

words!(
    /// A piece of session state that a client sets once and checks each time.
    Canary, "canary", {
    /// `@gapscope`
    UserVariable = "user_variable",
    /// A session system variable.
    SessionVariable = "session_variable",
    /// A statement prepared by SQL text.
    PreparedText = "prepared_text",
    /// A statement prepared by the binary protocol.
    PreparedBinary = "prepared_binary",
    /// The current database.
    CurrentDatabase = "current_database",
    /// The connection's character set.
    CharacterSet = "character_set",
    /// A temporary table.
    TemporaryTable = "temporary_table",
    /// `GET_LOCK`
    NamedLock = "named_lock",
    /// An open transaction.
    OpenTransaction = "open_transaction",
    /// A server-side cursor.
    Cursor = "cursor",
});

/// The record of one probe. Times are RAW ns of the agent's host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Which target.
    pub target: Arc<TargetName>,
    /// What the client does.
    pub style: Style,
    /// Number of the client within target and style.
    pub client: u16,
    /// Number of the slot in the client's schedule.
    pub slot: u64,
    /// When it was due.
    pub scheduled: Timestamp<AgentRaw>,
    /// When it began.
    pub started: Timestamp<AgentRaw>,
    /// When it was answered or given up.
    pub finished: Timestamp<AgentRaw>,
    /// Time spent looking up the address, if it was looked up.
    pub resolve_ns: Option<u64>,
    /// Time spent on TCP, TLS and login, if a connection was attempted.
    pub connect_ns: Option<u64>,
    /// Time spent on the statement, if it was sent.
    pub query_ns: Option<u64>,
    /// Where it ended.
    pub phase: Phase,
    /// What became of it.
    pub outcome: Outcome,
    /// The finer kind. When `ok`: none, or, of a pool's client, why its ping found
    /// the connection dead, so that it took a new one.
    pub cause: Option<Cause>,
    /// MySQL error number, as the server gave it.
    pub error_code: Option<u16>,
    /// SQLSTATE, as the server gave it.
    pub sqlstate: Option<Arc<str>>,
    /// Error text, at most 200 characters.
    pub error: Option<Arc<str>>,
    /// The statement was sent and no answer came: its effect is unknown. Of style
    /// `transaction` that is said of the `COMMIT` alone.
    pub may_have_executed: bool,
    /// The client's own number of its connection, from 1.
    pub connection: Option<u32>,
    /// `CONNECTION_ID()` as answered.
    pub connection_id: Option<u64>,
    /// The id in the server's greeting.
    pub handshake_id: Option<u32>,
    /// Identity answered.
    pub backend: Option<Arc<str>>,
    /// Address connected to.
    pub peer: Option<Arc<str>>,
    /// Server version as answered.
    pub server_version: Option<Arc<str>>,
    /// Which canary was checked, or found broken.
    pub canary: Option<Canary>,
}

/// Longest error text kept, in characters.
pub const MAX_ERROR_CHARS: usize = 200;
