//! When a target is looked at again, beside the probes. Pure.
//!
//! Method: nobody tells an agent of faults, so it goes by what its own clients see:
//! an answer after a failure, an answer over a new connection, and an answer to a
//! held client from another server after a long row from one. Looks are rare and
//! few: a second after what led to them, so that what many clients see at once is
//! one look; never two within three seconds; each ten minutes where nothing happens.
//!
//! What it cannot know: changes that no client sees.

use std::collections::BTreeMap;
use std::sync::Arc;

use gapscope_proto::sample::{Outcome, Sample, Style};

const SECOND_NS: i64 = 1_000_000_000;
/// After what led to it.
pub const SETTLE_NS: i64 = SECOND_NS;
/// Between two looks.
pub const APART_NS: i64 = 3 * SECOND_NS;
/// Where nothing happens.
pub const RARE_NS: i64 = 600 * SECOND_NS;
/// No more than this of one target in a run.
pub const MOST: u32 = 200;
/// So many answers in a row from one server are no balancing of statements.
const A_LONG_ROW: u32 = 20;

/// What leads to a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The run began.
    Start,
    /// A client is answered again, or over a new connection.
    Again,
    /// A held client is answered by another server.
    Switched,
    /// Nothing for a long time.
    Rare,
}

impl Why {
    /// As it is stored.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Again => "again",
            Self::Switched => "switched",
            Self::Rare => "rare",
        }
    }
}

#[derive(Debug, Default)]
struct Seen {
    was_bad: bool,
    connection: Option<u32>,
    backend: Option<Arc<str>>,
    in_a_row: u32,
}

/// Decides for one target of one run.
#[derive(Debug)]
pub struct When {
    clients: BTreeMap<(Style, u16), Seen>,
    wanted: Option<(i64, Why)>,
    last_ns: Option<i64>,
    looks: u32,
}

impl When {
    /// The first look is due at `first_ns`.
    pub fn new(first_ns: i64) -> Self {
        Self {
            clients: BTreeMap::new(),
            wanted: Some((first_ns, Why::Start)),
            last_ns: None,
            looks: 0,
        }
    }

    /// A probe ended. True if that makes a look due.
    pub fn note(&mut self, sample: &Sample) -> bool {
        if sample.outcome == Outcome::AgentError {
            return false;
        }
        let seen = self
            .clients
            .entry((sample.style, sample.client))
            .or_default();
        if sample.outcome != Outcome::Ok {
            seen.was_bad = true;
            return false;
        }
        let is_held = sample.style.is_held();
        let is_back = std::mem::take(&mut seen.was_bad)
            || (is_held && seen.connection.is_some() && seen.connection != sample.connection);
        seen.connection = sample.connection;
        let switched = seen.backend != sample.backend;
        let row = seen.in_a_row;
        seen.in_a_row = if switched { 1 } else { row.saturating_add(1) };
        if switched {
            seen.backend.clone_from(&sample.backend);
        }
        let why = match (is_back, switched && is_held && row >= A_LONG_ROW) {
            (true, _) => Why::Again,
            (false, true) => Why::Switched,
            (false, false) => return false,
        };
        self.want(sample.finished.ns(), why)
    }

    fn want(&mut self, now_ns: i64, why: Why) -> bool {
        if self.wanted.is_some() {
            return false;
        }
        let apart = self
            .last_ns
            .map_or(i64::MIN, |last| last.saturating_add(APART_NS));
        self.wanted = Some((now_ns.saturating_add(SETTLE_NS).max(apart), why));
        true
    }

    /// The next look, if there is to be one.
    pub fn due(&self) -> Option<(i64, Why)> {
        if self.looks >= MOST {
            return None;
        }
        let rare = self
            .last_ns
            .map(|last| (last.saturating_add(RARE_NS), Why::Rare));
        self.wanted.or(rare)
    }

    /// A look begins.
    pub fn begin(&mut self, now_ns: i64) {
        self.wanted = None;
        self.last_ns = Some(now_ns);
        self.looks += 1;
    }
}

#[cfg(test)]
mod tests {
    use gapscope_proto::sample::{Cause, Phase};
    use gapscope_proto::time::Timestamp;

    use super::*;

    fn sample(style: Style, at_s: i64, connection: u32, backend: &str) -> Sample {
        let at = Timestamp::from_ns(at_s * SECOND_NS);
        Sample {
            target: Arc::new("t".parse().expect("a name")),
            style,
            client: 0,
            slot: 0,
            scheduled: at,
            started: at,
            finished: at,
            resolve_ns: None,
            connect_ns: None,
            query_ns: None,
            phase: Phase::Query,
            outcome: Outcome::Ok,
            cause: None,
            error_code: None,
            sqlstate: None,
            error: None,
            may_have_executed: false,
            connection: Some(connection),
            connection_id: None,
            handshake_id: None,
            backend: Some(backend.into()),
            peer: None,
            server_version: None,
            canary: None,
        }
    }

    fn bad(style: Style, at_s: i64, outcome: Outcome) -> Sample {
        Sample {
            outcome,
            cause: Some(Cause::Closed),
            ..sample(style, at_s, 1, "db-1")
        }
    }

    fn after_start() -> When {
        let mut when = When::new(0);
        assert_eq!(when.due(), Some((0, Why::Start)));
        when.begin(0);
        when
    }

    #[test]
    fn a_recovery_is_looked_at_once_and_a_second_later() {
        let mut when = after_start();
        let held = Style::Reused;
        assert!(!when.note(&sample(held, 10, 1, "db-1")));
        assert!(!when.note(&bad(held, 11, Outcome::ConnectionLost)));
        assert!(when.note(&sample(held, 12, 2, "db-2")));
        assert!(!when.note(&sample(held, 12, 2, "db-2")));
        assert_eq!(when.due(), Some((13 * SECOND_NS, Why::Again)));
        when.begin(13 * SECOND_NS);
        assert_eq!(when.due(), Some((613 * SECOND_NS, Why::Rare)));
        // Not at once again.
        assert!(!when.note(&bad(Style::New, 13, Outcome::ConnectFailed)));
        assert!(when.note(&sample(Style::New, 14, 1, "db-2")));
        assert_eq!(when.due(), Some((16 * SECOND_NS, Why::Again)));
    }

    #[test]
    fn a_new_connection_and_another_server_lead_to_a_look() {
        let mut when = after_start();
        assert!(!when.note(&sample(Style::Reused, 10, 1, "db-1")));
        assert!(when.note(&sample(Style::Reused, 11, 2, "db-1")));
        let mut when = after_start();
        for at in 0..25 {
            assert!(!when.note(&sample(Style::Reused, at, 1, "db-1")));
        }
        assert!(when.note(&sample(Style::Reused, 30, 1, "db-2")));
        assert_eq!(when.due(), Some((31 * SECOND_NS, Why::Switched)));
    }

    #[test]
    fn balancing_and_our_own_errors_lead_to_none() {
        let mut when = after_start();
        for at in 0..50 {
            let backend = if at % 3 == 0 { "db-1" } else { "db-2" };
            assert!(!when.note(&sample(Style::Reused, at, 1, backend)));
            assert!(!when.note(&sample(Style::New, at, 1 + at as u32, backend)));
            assert!(!when.note(&bad(Style::Reused, at, Outcome::AgentError)));
        }
        assert_eq!(when.due(), Some((RARE_NS, Why::Rare)));
    }

    #[test]
    fn there_is_an_end_to_it() {
        let mut when = after_start();
        let mut looks = 1;
        for at in 0..5_000 {
            let at = at * 2;
            when.note(&bad(Style::Reused, at, Outcome::ConnectionLost));
            when.note(&sample(Style::Reused, at + 1, 1, "db-1"));
            if let Some((due, _)) = when.due()
                && due <= (at + 1) * SECOND_NS
            {
                when.begin((at + 1) * SECOND_NS);
                looks += 1;
            }
        }
        assert_eq!(looks, MOST);
        assert_eq!(when.due(), None);
    }
}
