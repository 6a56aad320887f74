//! What a benchmark leaves: who was measured how, and one record a block. Pure.

use std::collections::BTreeMap;

use gapscope_proto::host::HostFacts;
use gapscope_proto::ids::RunId;
use serde::{Deserialize, Serialize};

use crate::store::manifest::RunState;

/// Version of the folder written by this build; older ones stay readable.
pub const FORMAT_VERSION: u32 = 1;
/// What `kind` says in the manifest of such a folder.
pub const KIND: &str = "overhead";

/// What a target is to the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The instrument's own server, which answers at once: what is measured
    /// there is the instrument.
    Floor,
    /// What the others are compared with: the server without a proxy.
    Direct,
    /// What is compared.
    Compared,
}

impl Role {
    /// The word in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Direct => "direct",
            Self::Compared => "compared",
        }
    }
}

/// A target. No secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Its name, unique in the benchmark.
    pub name: String,
    /// What it is to the comparison.
    pub role: Role,
    /// host:port; empty where it is not known.
    pub address: String,
    /// What it is, with its version, for people.
    pub program: String,
}

/// Clients take statements in turn, or at fixed times.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// The next statement once the last is answered: the total says the cost.
    Closed,
    /// So many statements a second over all clients, whatever becomes of them:
    /// the response times say the cost.
    Open {
        /// Statements a second.
        rate: f64,
    },
}

/// The benchmark's `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT_VERSION`] of the writer.
    pub format_version: u32,
    /// [`KIND`].
    pub kind: String,
    /// The run.
    pub run_id: RunId,
    /// Where it stands.
    pub state: RunState,
    /// Wall time of creation, RFC 3339, UTC; a label.
    pub created_utc: String,
    /// Wall time of the close.
    pub closed_utc: Option<String>,
    /// Why it ended.
    pub end_reason: Option<String>,
    /// The program's version.
    pub program_version: String,
    /// Where it ran.
    pub host: HostFacts,
    /// The statement, as sent.
    pub statement: String,
    /// Where the statement is from.
    pub statement_origin: String,
    /// `text` or `prepared`.
    pub protocol: String,
    /// Whether each statement has a connection of its own.
    pub connect_each: bool,
    /// How statements follow each other.
    pub load: Load,
    /// Statements of a block, over all clients.
    pub statements: u64,
    /// Numbers of clients.
    pub clients: Vec<u32>,
    /// Rounds that were planned.
    pub rounds: u32,
    /// The seed of the order.
    pub seed: u64,
    /// In the order of the table's columns.
    pub targets: Vec<Target>,
    /// For people: runtime, configuration ...
    pub labels: BTreeMap<String, String>,
    /// What is to be said against the data.
    pub caveats: Vec<String>,
}

/// One block: so many statements by so many clients through one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Version or configuration that was measured; one run may hold several.
    pub label: String,
    /// Round, from 1.
    pub round: u32,
    /// When in the run it was its turn, from 1.
    pub turn: u32,
    /// The target's name.
    pub target: String,
    /// Clients.
    pub clients: u32,
    /// First statement sent, RAW ns of the host; 0 where it is not known.
    pub began_ns: i64,
    /// From the first statement sent to the last answered.
    pub total_ns: u64,
    /// Statements that were to be sent.
    pub statements: u64,
    /// Answered, with the right rows.
    pub answered: u64,
    /// Answered with other rows than the direct target's.
    pub wrong: u64,
    /// Not answered, or with an error.
    pub errors: u64,
    /// Connections made while the time ran.
    pub connects: u64,
    /// Times of the good answers, by nearest rank; none without answers or where
    /// they are not known.
    pub p50_ns: Option<u64>,
    /// Likewise.
    pub p99_ns: Option<u64>,
    /// Likewise.
    pub max_ns: Option<u64>,
    /// Processor time of the clients.
    pub client_cpu_ns: Option<u64>,
    /// Processor time of the target's processes, where they can be seen.
    pub target_cpu_ns: Option<u64>,
}

impl Block {
    /// Whether its total means anything: every statement was answered rightly. A
    /// quick error is not a quick answer.
    pub fn is_sound(&self) -> bool {
        self.errors == 0 && self.wrong == 0 && self.answered == self.statements
    }

    /// Time a statement, in ns.
    pub fn each_ns(&self) -> f64 {
        self.total_ns as f64 / self.statements.max(1) as f64
    }
}

/// One kind of error in one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The block's label.
    pub label: String,
    /// The block's round.
    pub round: u32,
    /// The block's target.
    pub target: String,
    /// The block's clients.
    pub clients: u32,
    /// `connect`, `query`, `wrong_answer`, `timed_out`, `not_sent`.
    pub kind: String,
    /// The server's code, if it gave one.
    pub code: Option<u16>,
    /// The first text of its kind.
    pub text: String,
    /// How many.
    pub count: u64,
}

/// A whole benchmark.
#[derive(Debug, Clone, PartialEq)]
pub struct Bench {
    /// What was measured.
    pub manifest: Manifest,
    /// The blocks of finished rounds.
    pub blocks: Vec<Block>,
    /// What went wrong.
    pub failures: Vec<Failure>,
}
