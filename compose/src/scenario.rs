//! The scenario file: what a lab is made of, who probes it, and what is done to
//! it when. Pure: a text in, a validated [`Scenario`] or all its errors out.
//!
//! A scenario says nothing about where things run, beyond what its proxies need:
//! backends are named, and the runtime decides what programs they are.

mod external;
mod parse;
mod plan;
mod read;
mod rules;
mod shipped;

use std::fmt;

use gapscope_proto::sample::Canary;

pub use external::{External, Place};
pub use plan::{Load, direct_names, target_names};
pub use read::ScenarioError;
pub use shipped::{SHIPPED, shipped};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

macro_rules! words {
    ($(#[$doc:meta])* $type:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $type { $($(#[$vdoc])* $variant,)+ }

        impl $type {
            /// The words of all values, in order.
            pub const WORDS: &'static [&'static str] = &[$($word,)+];

            /// The word used in files and on command lines.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            /// Reads such a word.
            pub fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

words!(
    /// What the lab is made of where nothing finer is said.
    RuntimeKind {
        /// Backends and proxies of our own, inside the lab's process.
        Embedded = "embedded",
        /// Real programs found on PATH or named by path.
        Process = "process",
        /// Containers that a container engine on this host runs.
        Docker = "docker",
        /// What is there already, named under `[external]`.
        External = "external",
    }
);

words!(
    /// What serves.
    BackendKind {
        /// Our own, speaking the protocol on a loopback socket.
        Embedded = "embedded",
        /// A real MariaDB server.
        Mariadb = "mariadb",
        /// A real MySQL server.
        Mysqld = "mysqld",
        /// A real TiDB server with its storage inside (unistore).
        Tidb = "tidb",
        /// TiDB servers that share PD, TiKV and a signing certificate.
        TidbCluster = "tidb-cluster",
        /// One that is there already.
        External = "external",
    }
);

words!(
    /// What stands between clients and backends.
    ProxyKind {
        /// Our own TCP pass-through with health checks.
        L4Passthrough = "l4-passthrough",
        /// Our own, speaking the protocol, that reconnects to another backend.
        L7Reconnecting = "l7-reconnecting",
        /// Our own, which carries sessions over to another backend.
        L7Migrating = "l7-migrating",
        /// Our own, whose clients share backend connections.
        L7Multiplexing = "l7-multiplexing",
        /// HAProxy in TCP mode, with TCP health checks.
        Haproxy = "haproxy",
        /// HAProxy, with health checks that log in.
        HaproxyMysqlCheck = "haproxy-mysql-check",
        /// As before, and sessions to a server marked down are cut.
        HaproxyMysqlCheckShutdown = "haproxy-mysql-check-shutdown",
        /// nginx with its stream module.
        Nginx = "nginx",
        /// ProxySQL, both servers in one hostgroup.
        Proxysql = "proxysql",
        /// TiProxy in static mode.
        Tiproxy = "tiproxy",
        /// MySQL Router, `first-available`.
        Mysqlrouter = "mysqlrouter",
        /// The old MySQL Proxy, with a Lua script that prefers the first backend.
        MysqlProxy = "mysql-proxy",
        /// Whatever the scenario's `command` and `config` say.
        Command = "command",
        /// No proxy: a name that leads to a backend, looked up at each connect.
        Dns = "dns",
        /// The same, looked up before each use: clients go where it leads.
        DnsFollowing = "dns-following",
        /// One that is there already.
        External = "external",
    }
);

impl ProxyKind {
    /// Whether it is one of our own, inside the lab's process.
    pub const fn is_embedded(self) -> bool {
        matches!(
            self,
            Self::L4Passthrough | Self::L7Reconnecting | Self::L7Migrating | Self::L7Multiplexing
        )
    }

    /// Whether it is no proxy, but a name for a backend.
    pub const fn is_name(self) -> bool {
        matches!(self, Self::Dns | Self::DnsFollowing)
    }

    /// Whether it is a program that has to be there.
    pub const fn is_program(self) -> bool {
        !self.is_embedded() && !self.is_name() && !matches!(self, Self::External)
    }

    /// Whether a runtime has it.
    pub const fn runs_in(self, runtime: RuntimeKind) -> bool {
        match runtime {
            RuntimeKind::Embedded => self.is_embedded() || self.is_name(),
            RuntimeKind::Process => self.is_program() || self.is_name(),
            RuntimeKind::External => matches!(self, Self::External),
            RuntimeKind::Docker => matches!(
                self,
                Self::Haproxy
                    | Self::HaproxyMysqlCheck
                    | Self::HaproxyMysqlCheckShutdown
                    | Self::Proxysql
                    | Self::Tiproxy
            ),
        }
    }
}

impl BackendKind {
    /// Whether a runtime has it.
    pub const fn runs_in(self, runtime: RuntimeKind) -> bool {
        match runtime {
            RuntimeKind::Embedded => matches!(self, Self::Embedded),
            // Real proxies in front of our own servers are of use too.
            RuntimeKind::Process => !matches!(self, Self::TidbCluster | Self::External),
            RuntimeKind::External => matches!(self, Self::External),
            RuntimeKind::Docker => {
                matches!(self, Self::Mariadb | Self::Tidb | Self::TidbCluster)
            }
        }
    }
}

words!(
    /// What a step does to its subject.
    Action {
        /// Asks it to end in an orderly way (SIGTERM).
        Stop = "stop",
        /// Ends it at once (SIGKILL).
        Kill = "kill",
        /// Freezes it: connections stay, nothing answers (SIGSTOP).
        Hang = "hang",
        /// Cuts it off: packets vanish, nothing refuses.
        BlackHole = "black_hole",
        /// Its answers vanish; it still hears.
        Mute = "mute",
        /// Every packet to it is answered with a reset. Real programs only.
        Reject = "reject",
        /// Everything it does takes longer, by the step's `delay`.
        Slow = "slow",
        /// Undoes a `hang`, `black_hole`, `mute`, `reject` or `slow`.
        Resume = "resume",
        /// Starts a stopped or killed subject again.
        Start = "start",
        /// A `stop`, and a `start` after the step's `duration`.
        Restart = "restart",
        /// Asks the proxies, by their admin interfaces, to give a backend no new
        /// work.
        Drain = "drain",
        /// Undoes a `drain`.
        Undrain = "undrain",
        /// A statement that takes the step's `duration` is begun through each proxy;
        /// what becomes of it is noted.
        LongQuery = "long_query",
        /// Points a name at another backend.
        Repoint = "repoint",
        /// Undoes a `repoint`.
        Restore = "restore",
    }
);

impl Action {
    /// Those that a command line may ask for instead of a scenario's.
    pub const FAULTS: &'static [&'static str] = &[
        "stop",
        "kill",
        "hang",
        "black_hole",
        "mute",
        "reject",
        "slow",
    ];

    /// Whether this hurts; the others undo or prepare.
    pub const fn is_fault(self) -> bool {
        matches!(self, Self::Stop | Self::Kill | Self::Hang | Self::Slow) || self.cuts_off()
    }

    /// Whether it is done to packets.
    pub const fn cuts_off(self) -> bool {
        matches!(self, Self::BlackHole | Self::Mute | Self::Reject)
    }

    /// Whether a `duration` can undo it.
    pub const fn takes_duration(self) -> bool {
        self.is_fault()
            || matches!(
                self,
                Self::Restart | Self::Drain | Self::LongQuery | Self::Repoint
            )
    }

    /// What undoes it.
    pub const fn undone_by(self) -> Option<Self> {
        match self {
            Self::Stop | Self::Kill | Self::Restart => Some(Self::Start),
            Self::Hang | Self::BlackHole | Self::Mute | Self::Reject | Self::Slow => {
                Some(Self::Resume)
            }
            Self::Drain => Some(Self::Undrain),
            Self::Repoint => Some(Self::Restore),
            Self::Resume | Self::Start | Self::Undrain | Self::Restore | Self::LongQuery => None,
        }
    }
}

/// The subject of a step that is done to every proxy at once.
pub const EVERY_PROXY: &str = "proxies";

/// Who probes each target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clients {
    /// Clients of style `reused`, bare.
    pub reused: u16,
    /// Time between two slots of a reused (or patient) client.
    pub interval_ns: u64,
    /// As reused, without a timeout.
    pub patient: u16,
    /// Clients of style `new`.
    pub new: u16,
    /// Time between two slots of a `new` client.
    pub new_interval_ns: u64,
    /// One client for each of these, on a held connection.
    pub canaries: Vec<Canary>,
    /// Time between two slots of a canary's client.
    pub canary_interval_ns: u64,
    /// Clients of style `prepared`, as often as `reused`.
    pub prepared: u16,
    /// Clients of style `transaction`: they write, into the lab's own backends.
    pub transaction: u16,
    /// Time between two transactions of a client.
    pub transaction_interval_ns: u64,
    /// Clients that ping before each use, as often as `reused`.
    pub pool: u16,
    /// One client for each of these, which leaves its connection idle for so long.
    pub idle_ns: Vec<u64>,
    /// The clients' own timeouts.
    pub timeouts: gapscope_proto::plan::Timeouts,
}

impl Clients {
    /// Whether any of them writes.
    pub fn write(&self) -> bool {
        self.transaction > 0 || self.canaries.contains(&Canary::TemporaryTable)
    }
}

impl Default for Clients {
    fn default() -> Self {
        Self {
            reused: 4,
            interval_ns: 10 * MS,
            patient: 1,
            new: 2,
            new_interval_ns: 200 * MS,
            canaries: Vec::new(),
            canary_interval_ns: 100 * MS,
            prepared: 0,
            transaction: 0,
            transaction_interval_ns: 100 * MS,
            pool: 0,
            idle_ns: Vec::new(),
            timeouts: gapscope_proto::plan::Timeouts {
                resolve_ns: Some(5 * SECOND),
                connect_ns: Some(5 * SECOND),
                query_ns: Some(5 * SECOND),
            },
        }
    }
}

/// A proxy of the lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxySpec {
    /// The target's name.
    pub name: String,
    /// What it is.
    pub kind: ProxyKind,
    /// Of the kind `command`: what to start.
    pub custom: Option<CustomProxy>,
    /// Of a name: how long a resolver keeps it.
    pub ttl_ns: Option<u64>,
}

/// A proxy that the lab knows nothing of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CustomProxy {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Its configuration.
    pub config: String,
    /// What the configuration's file is called: some programs tell its format by that.
    pub config_name: String,
}

/// One step of the timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Due this long after the run's start, at the earliest.
    pub at_ns: u64,
    /// What is done.
    pub action: Action,
    /// To which backend or proxy, or [`EVERY_PROXY`].
    pub subject: String,
    /// It is done up to this much later, at random.
    pub jitter_ns: u64,
    /// Undone this long after it was done.
    pub duration_ns: Option<u64>,
    /// Of a `stop`: killed if it is still there after this long, as `docker stop`
    /// does.
    pub grace_ns: Option<u64>,
    /// Of a `slow`: by how much.
    pub delay_ns: Option<u64>,
    /// Of a `repoint`: at which backend.
    pub to: Option<String>,
    /// Where it stands in the file.
    pub line: usize,
}

/// A validated scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// Its name, for people.
    pub name: String,
    /// What it shows.
    pub description: String,
    /// How long to probe.
    pub duration_ns: u64,
    /// How late a good answer may be and still count.
    pub deadline_ns: u64,
    /// SQL expression that says which backend answers; none: the default.
    pub identity: Option<String>,
    /// Probe the backends directly too.
    pub direct: bool,
    /// The agent's guard on connection attempts, for each target.
    pub max_connects_per_second: u32,
    /// Who probes.
    pub clients: Clients,
    /// The backends' names; the first is the one proxies prefer.
    pub backends: Vec<String>,
    /// The proxies.
    pub proxies: Vec<ProxySpec>,
    /// What is done when.
    pub timeline: Vec<Step>,
    /// Where backends and proxies are there already.
    pub external: Option<External>,
    /// The file as it was read.
    pub text: String,
}

/// All that is wrong with a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenarioErrors {
    /// File name or scenario name.
    pub origin: String,
    /// Not empty, in the order of lines.
    pub errors: Vec<ScenarioError>,
}

impl fmt::Display for ScenarioErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            if error.line > 0 {
                write!(f, "{}: ", self.origin)?;
            }
            write!(f, "{error}")?;
            if !error.hint.is_empty() {
                write!(f, "\n  {}", error.hint)?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for ScenarioErrors {}

impl ScenarioErrors {
    /// Whether the command line is wrong, and not the file.
    pub fn is_command_line(&self) -> bool {
        self.errors.iter().all(|error| error.line == 0)
    }
}

/// What a command line changes about a scenario.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Probe for this long.
    pub duration_ns: Option<u64>,
    /// Every fault of the timeline becomes this one.
    pub fault: Option<Action>,
    /// The study's own numbers.
    pub like_lab08: bool,
    /// Faults come exactly when due.
    pub no_jitter: bool,
    /// These proxies instead of the scenario's.
    pub proxies: Vec<ProxyKind>,
    /// All times of the timeline, and the run's, are divided by this.
    pub faster: Option<u32>,
}

impl Scenario {
    /// Reads and validates a scenario. `origin` is how messages call the file.
    pub fn parse(origin: &str, text: &str) -> Result<Self, ScenarioErrors> {
        Self::parse_with(origin, text, &Overrides::default())
    }

    /// As [`Scenario::parse`], with a command line's changes applied before the
    /// timeline is checked against the duration.
    pub fn parse_with(
        origin: &str,
        text: &str,
        overrides: &Overrides,
    ) -> Result<Self, ScenarioErrors> {
        let failed = |errors| ScenarioErrors {
            origin: origin.to_owned(),
            errors,
        };
        let (mut scenario, mut errors) = parse::parse(text).map_err(failed)?;
        scenario.apply(overrides);
        // All at once, but for what only follows from what is wrong already.
        let further = rules::check(&scenario, overrides);
        let follows = rules::Follows::of(&errors);
        errors.extend(further.into_iter().filter(|error| !follows.is(error)));
        errors.sort_by_key(|error| error.line);
        if errors.is_empty() {
            Ok(scenario)
        } else {
            Err(failed(errors))
        }
    }

    fn apply(&mut self, overrides: &Overrides) {
        if overrides.like_lab08 {
            self.clients = Clients {
                reused: 1,
                interval_ns: 500 * MS,
                patient: 0,
                new: 0,
                canaries: Vec::new(),
                ..Clients::default()
            };
            self.duration_ns = 30 * SECOND;
            for step in &mut self.timeline {
                step.jitter_ns = 0;
                if step.action == Action::Stop {
                    step.grace_ns = Some(2 * SECOND);
                }
            }
        }
        if let Some(divisor) = overrides.faster.map(|by| u64::from(by.max(1))) {
            // In whole milliseconds, which people can read.
            let shorter = |ns: u64| ns / divisor / MS * MS;
            self.duration_ns = shorter(self.duration_ns);
            for step in &mut self.timeline {
                step.at_ns = shorter(step.at_ns);
                step.jitter_ns = shorter(step.jitter_ns);
                step.duration_ns = step.duration_ns.map(shorter);
            }
        }
        if let Some(duration_ns) = overrides.duration_ns {
            self.duration_ns = duration_ns;
        }
        if let Some(fault) = overrides.fault {
            for step in &mut self.timeline {
                match step.action {
                    action if action.is_fault() => {
                        step.action = fault;
                        if fault != Action::Stop {
                            step.grace_ns = None;
                        }
                    }
                    // What undid the other fault undoes this one.
                    Action::Start | Action::Resume => {
                        step.action = fault.undone_by().unwrap_or(step.action);
                    }
                    _ => {}
                }
            }
        }
        if overrides.no_jitter {
            for step in &mut self.timeline {
                step.jitter_ns = 0;
            }
        }
        if !overrides.proxies.is_empty() {
            self.proxies = named(&overrides.proxies);
        }
    }
}

/// Proxies called by their kinds.
pub fn named(kinds: &[ProxyKind]) -> Vec<ProxySpec> {
    kinds
        .iter()
        .map(|kind| ProxySpec {
            name: kind.as_str().to_owned(),
            kind: *kind,
            custom: None,
            ttl_ns: None,
        })
        .collect()
}

#[cfg(test)]
mod tests;
