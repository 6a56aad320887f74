//! What a run asks of the agents.

use serde::{Deserialize, Serialize};

use crate::ids::{RunId, TargetName};
use crate::sample::{Canary, Style, UnknownWord};

/// What sets a client apart from the plain ones of its style.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ClientKind {
    /// Does nothing that could change what a proxy does.
    Bare,
    /// As bare, without a timeout.
    Patient,
    /// Sets a piece of session state and checks it each time.
    Canary(Canary),
    /// Holds a connection that nothing is sent over for a long interval: meets
    /// the idle timers of servers and of what stands between.
    Idle,
    /// Takes its connection from a pool of one: `COM_PING` before each use, and a
    /// new connection where that fails.
    Pool,
}

impl ClientKind {
    /// The word used in files, on the wire and in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Patient => "patient",
            Self::Canary(canary) => canary.as_str(),
            Self::Idle => "idle",
            Self::Pool => "pool",
        }
    }

    /// Whether clients of this kind and style make sense: what sets them apart
    /// needs a held connection and the plain statement.
    pub const fn fits(self, style: Style) -> bool {
        match self {
            Self::Bare | Self::Patient => true,
            Self::Canary(_) | Self::Idle | Self::Pool => matches!(style, Style::Reused),
        }
    }
}

impl std::fmt::Display for ClientKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for ClientKind {
    type Err = UnknownWord;
    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        match word {
            "bare" => Ok(Self::Bare),
            "patient" => Ok(Self::Patient),
            "idle" => Ok(Self::Idle),
            "pool" => Ok(Self::Pool),
            other => other.parse().map(Self::Canary),
        }
    }
}

impl TryFrom<String> for ClientKind {
    type Error = UnknownWord;
    fn try_from(word: String) -> Result<Self, UnknownWord> {
        word.parse()
    }
}

impl From<ClientKind> for String {
    fn from(kind: ClientKind) -> String {
        kind.as_str().to_owned()
    }
}

/// A client's own timeouts in ns; none: it waits for as long as it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeouts {
    /// For looking up the address.
    pub resolve_ns: Option<u64>,
    /// For TCP, TLS and login together.
    pub connect_ns: Option<u64>,
    /// For the statement.
    pub query_ns: Option<u64>,
}

/// Clients of one target, style and kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientGroup {
    /// Which target.
    pub target: TargetName,
    /// What the clients do.
    pub style: Style,
    /// What sets them apart.
    pub kind: ClientKind,
    /// Number of the first client; numbers are unique within target and style.
    pub first_client: u16,
    /// How many clients.
    pub clients: u16,
    /// Time between two slots of one client.
    pub interval_ns: u64,
    /// The clients' timeouts.
    pub timeouts: Timeouts,
}

impl ClientGroup {
    /// When slot `slot` of the group's client `index` (0 ..) is due, in ns after
    /// the origin. Client j of N starts at phase j * interval / N.
    pub fn due_after_origin_ns(&self, index: u16, slot: u64) -> u64 {
        self.phase_ns(index)
            .saturating_add(slot.saturating_mul(self.interval_ns))
    }

    /// The phase of the group's client `index` (0 ..).
    pub fn phase_ns(&self, index: u16) -> u64 {
        let phase =
            u128::from(self.interval_ns) * u128::from(index) / u128::from(self.clients.max(1));
        u64::try_from(phase).unwrap_or(u64::MAX)
    }

    /// How many slots of client `index` are due before `span_ns` after the origin.
    pub fn due_slots(&self, index: u16, span_ns: u64) -> u64 {
        let phase = self.phase_ns(index);
        if span_ns <= phase || self.interval_ns == 0 {
            return 0;
        }
        (span_ns - phase).div_ceil(self.interval_ns)
    }

    /// The group's clients by number.
    pub fn client_numbers(&self) -> impl Iterator<Item = u16> + use<> {
        let first = self.first_client;
        (0..self.clients).map(move |index| first.saturating_add(index))
    }
}

/// What a run asks of the agents. Names targets; carries no address, no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunPlan {
    /// The run.
    pub run_id: RunId,
    /// The scenario's name, for people.
    pub scenario: String,
    /// How long to probe.
    pub duration_ns: u64,
    /// How late a good answer may be and still count.
    pub deadline_ns: u64,
    /// Who probes what.
    pub groups: Vec<ClientGroup>,
    /// SQL expression that says which backend answers; none: the agent's default.
    pub identity: Option<String>,
    /// The scenario file as it was read; empty if there was none.
    #[serde(default)]
    pub scenario_toml: String,
}

/// Why a plan cannot be carried out by anyone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPlan {
    /// There is nothing to do.
    #[error("the plan has no clients: give at least one target at least one client")]
    NoClients,
    /// A duration is out of range.
    #[error("{what} is {ns} ns; allowed: {allowed}")]
    OutOfRange {
        /// Which.
        what: &'static str,
        /// What was given.
        ns: u64,
        /// What is allowed.
        allowed: &'static str,
    },
    /// Two groups share a client number.
    #[error("client {client} of target `{target}`, style `{style}` is planned twice")]
    ClientTwice {
        /// Target.
        target: TargetName,
        /// Style.
        style: Style,
        /// Number.
        client: u16,
    },
    /// A kind of client that a style cannot have.
    #[error("clients of kind `{kind}` are not planned in style `{style}`: it has none")]
    NoSuchClients {
        /// Kind.
        kind: ClientKind,
        /// Style.
        style: Style,
    },
    /// Too many clients.
    #[error("{clients} clients are planned; at most {max} are allowed")]
    TooManyClients {
        /// Planned.
        clients: u64,
        /// Limit.
        max: u64,
    },
}

impl RunPlan {
    /// Most clients one plan may have over all targets.
    pub const MAX_CLIENTS: u64 = 10_000;

    /// Checks what every agent may rely on.
    pub fn validate(&self) -> Result<(), InvalidPlan> {
        const HOUR: u64 = 3_600_000_000_000;
        let range = |what, ns, ok: bool, allowed| {
            if ok {
                Ok(())
            } else {
                Err(InvalidPlan::OutOfRange { what, ns, allowed })
            }
        };
        range(
            "the duration",
            self.duration_ns,
            (1_000_000..=31 * 24 * HOUR).contains(&self.duration_ns),
            "1 ms to 31 days",
        )?;
        range(
            "the deadline",
            self.deadline_ns,
            (1..=HOUR).contains(&self.deadline_ns),
            "1 ns to 1 h",
        )?;
        let mut seen = std::collections::HashSet::new();
        let mut clients = 0u64;
        for group in &self.groups {
            if !group.kind.fits(group.style) {
                return Err(InvalidPlan::NoSuchClients {
                    kind: group.kind,
                    style: group.style,
                });
            }
            range(
                "an interval",
                group.interval_ns,
                (100_000..=24 * HOUR).contains(&group.interval_ns),
                "100 us to 24 h",
            )?;
            for timeout in [
                group.timeouts.resolve_ns,
                group.timeouts.connect_ns,
                group.timeouts.query_ns,
            ]
            .into_iter()
            .flatten()
            {
                range(
                    "a timeout",
                    timeout,
                    (1_000_000..=24 * HOUR).contains(&timeout),
                    "1 ms to 24 h",
                )?;
            }
            clients += u64::from(group.clients);
            if clients > Self::MAX_CLIENTS {
                return Err(InvalidPlan::TooManyClients {
                    clients,
                    max: Self::MAX_CLIENTS,
                });
            }
            if u32::from(group.first_client) + u32::from(group.clients) > u32::from(u16::MAX) {
                return Err(InvalidPlan::TooManyClients {
                    clients: u64::from(group.first_client) + u64::from(group.clients),
                    max: u64::from(u16::MAX),
                });
            }
            for client in group.client_numbers() {
                if !seen.insert((group.target.clone(), group.style, client)) {
                    return Err(InvalidPlan::ClientTwice {
                        target: group.target.clone(),
                        style: group.style,
                        client,
                    });
                }
            }
        }
        if clients == 0 {
            return Err(InvalidPlan::NoClients);
        }
        Ok(())
    }

    /// The kind of a client, if it is planned.
    pub fn kind_of(&self, target: &TargetName, style: Style, client: u16) -> Option<ClientKind> {
        self.group_of(target, style, client).map(|g| g.kind)
    }

    /// The group of a client, if it is planned.
    pub fn group_of(&self, target: &TargetName, style: Style, client: u16) -> Option<&ClientGroup> {
        self.groups.iter().find(|g| {
            &g.target == target
                && g.style == style
                && client >= g.first_client
                && client - g.first_client < g.clients
        })
    }
}
