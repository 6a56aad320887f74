//! Which role may call what: the whole table. Pure.
//!
//! What this table cannot say: an agent speaks only for itself. That is checked
//! where its first message names an agent ([`super::caller`]).

use gapscope_proto::tls::Role;

/// What can be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rpc {
    /// Deliver samples, receive plans.
    Session,
    /// Exchange time.
    Exchange,
    /// Start a run.
    StartRun,
    /// Stop a run.
    StopRun,
    /// Note what was done.
    RecordFault,
    /// List runs.
    ListRuns,
    /// List agents.
    ListAgents,
    /// Follow a run.
    WatchRun,
    /// Look at a run as it goes on, from a terminal or a browser.
    Watch,
    /// Read a run's report over HTTP.
    Report,
    /// Read the sums that a monitoring system collects.
    Metrics,
    /// Ask whether the server serves.
    Health,
}

impl Rpc {
    /// The call that an HTTP path stands for.
    pub fn of_path(path: &str) -> Option<Self> {
        Some(match path {
            "/gapscope.v1.Collector/Session" => Self::Session,
            "/gapscope.v1.Clock/Exchange" => Self::Exchange,
            "/gapscope.v1.Control/StartRun" => Self::StartRun,
            "/gapscope.v1.Control/StopRun" => Self::StopRun,
            "/gapscope.v1.Control/RecordFault" => Self::RecordFault,
            "/gapscope.v1.Control/ListRuns" => Self::ListRuns,
            "/gapscope.v1.Control/ListAgents" => Self::ListAgents,
            "/gapscope.v1.Control/WatchRun" => Self::WatchRun,
            "/gapscope.v1.Control/Watch" => Self::Watch,
            "/grpc.health.v1.Health/Check" | "/grpc.health.v1.Health/Watch" => Self::Health,
            _ => return None,
        })
    }

    /// What it does, for a sentence.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Session => "deliver samples",
            Self::Exchange => "exchange time",
            Self::StartRun => "start a run",
            Self::StopRun => "stop a run",
            Self::RecordFault => "mark a run",
            Self::ListRuns => "list runs",
            Self::ListAgents => "list agents",
            Self::WatchRun | Self::Watch => "follow a run",
            Self::Report => "read reports",
            Self::Metrics => "read metrics",
            Self::Health => "ask for health",
        }
    }

    /// Calls that last: who loses the right while they do is cut off.
    pub const fn lasts(self) -> bool {
        matches!(
            self,
            Self::Session | Self::Exchange | Self::WatchRun | Self::Watch
        )
    }

    /// Calls of agents, which connect again by themselves.
    pub const fn is_an_agents(self) -> bool {
        matches!(self, Self::Session | Self::Exchange)
    }
}

/// Whether this role may call this.
pub const fn may(role: Role, rpc: Rpc) -> bool {
    match rpc {
        Rpc::Session | Rpc::Exchange => matches!(role, Role::Agent),
        Rpc::StartRun | Rpc::StopRun | Rpc::RecordFault => matches!(role, Role::Operator),
        Rpc::ListRuns
        | Rpc::ListAgents
        | Rpc::WatchRun
        | Rpc::Watch
        | Rpc::Report
        | Rpc::Metrics => {
            matches!(role, Role::Operator | Role::Viewer)
        }
        Rpc::Health => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTO: &str = include_str!("../../../proto/proto/v1/gapscope.proto");

    /// Path, then whether agent, operator and viewer may.
    const ROWS: [(&str, [bool; 3]); 11] = [
        ("/gapscope.v1.Collector/Session", [true, false, false]),
        ("/gapscope.v1.Clock/Exchange", [true, false, false]),
        ("/gapscope.v1.Control/StartRun", [false, true, false]),
        ("/gapscope.v1.Control/StopRun", [false, true, false]),
        ("/gapscope.v1.Control/RecordFault", [false, true, false]),
        ("/gapscope.v1.Control/ListRuns", [false, true, true]),
        ("/gapscope.v1.Control/ListAgents", [false, true, true]),
        ("/gapscope.v1.Control/WatchRun", [false, true, true]),
        ("/gapscope.v1.Control/Watch", [false, true, true]),
        ("/grpc.health.v1.Health/Check", [true, true, true]),
        ("/grpc.health.v1.Health/Watch", [true, true, true]),
    ];

    #[test]
    fn each_row_of_the_table() {
        for (path, expect) in ROWS {
            let rpc = Rpc::of_path(path).expect(path);
            let got = Role::ALL.map(|role| may(role, rpc));
            assert_eq!(got, expect, "{path}: agent, operator, viewer");
        }
    }

    #[test]
    fn what_is_not_in_the_table_is_nothing() {
        for path in [
            "",
            "/",
            "/gapscope.v1.Control/DropAll",
            "/gapscope.v1.Control/StartRun/",
        ] {
            assert_eq!(Rpc::of_path(path), None, "{path}");
        }
    }

    #[test]
    fn each_call_of_the_protocol_has_a_row() {
        let mut service = "";
        let mut calls = 0;
        for line in PROTO.lines().map(str::trim) {
            let mut words = line.split([' ', '(']);
            match words.next() {
                Some("service") => service = words.next().expect("a name"),
                Some("rpc") => {
                    let path = format!("/gapscope.v1.{service}/{}", words.next().expect("a name"));
                    assert!(
                        ROWS.iter().any(|(row, _)| *row == path),
                        "{path} has no row"
                    );
                    calls += 1;
                }
                _ => {}
            }
        }
        assert_eq!(calls, ROWS.len() - 2, "a row is of a call that is gone");
    }
}
