//! From a scenario to what the agents are asked, and what that costs a target.

use gapscope_proto::ids::{InvalidId, RunId, TargetName};
use gapscope_proto::plan::{ClientGroup, ClientKind, RunPlan, Timeouts};
use gapscope_proto::sample::Style;

use super::Scenario;

/// What probing asks of one target while all is well. Rates in thousandths a
/// second, so that slow schedules are not rounded away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Clients.
    pub clients: u64,
    /// Connections held all the time.
    pub held: u64,
    /// Statements a second, times 1000.
    pub probes_per_second_milli: u64,
    /// Connections a second made by `new` clients, times 1000.
    pub connects_per_second_milli: u64,
    /// Connection attempts a second, times 1000, if the target refuses all: every
    /// slot of every client becomes one.
    pub worst_connects_per_second_milli: u64,
}

const PATIENT: Timeouts = Timeouts {
    resolve_ns: None,
    connect_ns: None,
    query_ns: None,
};

/// The names of all targets, in the order of reports: proxies, then backends
/// where they are probed directly.
pub fn target_names(scenario: &Scenario) -> Vec<String> {
    let proxies = scenario.proxies.iter().map(|proxy| proxy.name.clone());
    let direct = scenario
        .backends
        .iter()
        .filter(|_| scenario.direct)
        .map(|name| direct_name(name));
    proxies.chain(direct).collect()
}

/// The names of the backends as targets, in their order.
pub fn direct_names(scenario: &Scenario) -> Vec<String> {
    scenario
        .backends
        .iter()
        .map(|name| direct_name(name))
        .collect()
}

/// What a backend's direct target is called.
pub(crate) fn direct_name(backend: &str) -> String {
    // Names have 64 bytes at most; a longer one keeps its distinguishing end.
    let room = 64 - "direct-".len();
    let start = backend.len().saturating_sub(room);
    format!("direct-{}", &backend[start..])
}

impl Scenario {
    /// The groups of clients of one target.
    pub fn groups(&self, target: &TargetName) -> Vec<ClientGroup> {
        let clients = &self.clients;
        let bare = clients.timeouts;
        let mut groups = Vec::new();
        let mut next_held = 0u16;
        let mut next_new = 0u16;
        let mut add = |style: Style, kind, count: u16, interval_ns, timeouts| {
            if count == 0 {
                return;
            }
            let next = if style == Style::New {
                &mut next_new
            } else {
                &mut next_held
            };
            groups.push(ClientGroup {
                target: target.clone(),
                style,
                kind,
                first_client: *next,
                clients: count,
                interval_ns,
                timeouts,
            });
            *next = next.saturating_add(count);
        };
        add(
            Style::Reused,
            ClientKind::Bare,
            clients.reused,
            clients.interval_ns,
            bare,
        );
        add(
            Style::Reused,
            ClientKind::Patient,
            clients.patient,
            clients.interval_ns,
            PATIENT,
        );
        for canary in &clients.canaries {
            add(
                Style::Reused,
                ClientKind::Canary(*canary),
                1,
                clients.canary_interval_ns,
                bare,
            );
        }
        add(
            Style::Reused,
            ClientKind::Pool,
            clients.pool,
            clients.interval_ns,
            bare,
        );
        for idle_ns in &clients.idle_ns {
            add(Style::Reused, ClientKind::Idle, 1, *idle_ns, bare);
        }
        add(
            Style::Prepared,
            ClientKind::Bare,
            clients.prepared,
            clients.interval_ns,
            bare,
        );
        add(
            Style::Transaction,
            ClientKind::Bare,
            clients.transaction,
            clients.transaction_interval_ns,
            bare,
        );
        add(
            Style::New,
            ClientKind::Bare,
            clients.new,
            clients.new_interval_ns,
            bare,
        );
        groups
    }

    /// What the agents are asked. `identity` is the expression that was found to
    /// work on every backend.
    pub fn plan(&self, run_id: RunId, identity: Option<String>) -> Result<RunPlan, InvalidId> {
        let mut groups = Vec::new();
        for name in target_names(self) {
            groups.extend(self.groups(&name.parse()?));
        }
        Ok(RunPlan {
            run_id,
            scenario: self.name.clone(),
            duration_ns: self.duration_ns,
            deadline_ns: self.deadline_ns,
            groups,
            identity,
            scenario_toml: self.text.clone(),
        })
    }

    /// What probing asks of each target.
    pub fn load(&self) -> Load {
        let any: TargetName = "any".parse().expect("a valid name");
        let mut load = Load::default();
        for group in self.groups(&any) {
            let rate = u64::from(group.clients).saturating_mul(1_000_000_000_000)
                / group.interval_ns.max(1);
            load.clients += u64::from(group.clients);
            load.probes_per_second_milli += rate;
            load.worst_connects_per_second_milli += rate;
            if group.style.is_held() {
                load.held += u64::from(group.clients);
            } else {
                load.connects_per_second_milli += rate;
            }
        }
        load
    }
}
