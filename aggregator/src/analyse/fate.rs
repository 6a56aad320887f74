//! What became of one client in one fault: the first fate that fits, from what
//! its probes showed. A pure table.

use gapscope_proto::plan::ClientKind;
use gapscope_proto::sample::Style;

/// How a client was connected with what the fault was done to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exposure {
    /// All its recent answers came from the subject, or the fault exposes all.
    Held,
    /// Some did.
    Shared,
    /// None did.
    None,
    /// It had no answer just before, or no probe after: nothing can be said.
    Unmeasured,
}

impl Exposure {
    /// The word used in files and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Shared => "shared",
            Self::None => "none",
            Self::Unmeasured => "unmeasured",
        }
    }
}

/// What became of a client, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// Not back within the horizon.
    Lost,
    /// Answers, but refuses writes.
    ReadOnly,
    /// The first bad probe ran into the client's timeout.
    Hung,
    /// Two bad probes or more.
    Dropped,
    /// `new`: refused.
    Refused,
    /// `new`: bad in another way; held styles: one statement failed and the
    /// connection stayed.
    Failed,
    /// At most one bad probe, then good on a new connection.
    Reconnected,
    /// Same connection, a canary broken.
    StateLost,
    /// Good, but past the deadline.
    Stalled,
    /// `new`: good, but past the deadline.
    Slow,
    /// A drain was asked for; still on the subject at its end.
    Undrained,
    /// Same connection, other backend; whether state survived was not tested.
    Switched,
    /// Same connection, other backend, canaries intact.
    Migrated,
    /// Nothing happened to it.
    Kept,
    /// `new`: nothing happened to it.
    Served,
    /// It had no answer before the fault, or no probe after it.
    Unmeasured,
}

impl Fate {
    /// Every fate, worst first.
    pub const ALL: [Self; 16] = [
        Self::Lost,
        Self::ReadOnly,
        Self::Hung,
        Self::Dropped,
        Self::Refused,
        Self::Failed,
        Self::Reconnected,
        Self::StateLost,
        Self::Stalled,
        Self::Slow,
        Self::Undrained,
        Self::Switched,
        Self::Migrated,
        Self::Kept,
        Self::Served,
        Self::Unmeasured,
    ];

    /// The word used in files and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::ReadOnly => "read only",
            Self::Hung => "hung",
            Self::Dropped => "dropped",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Reconnected => "reconnected",
            Self::StateLost => "state lost",
            Self::Stalled => "stalled",
            Self::Slow => "slow",
            Self::Undrained => "undrained",
            Self::Switched => "switched",
            Self::Migrated => "migrated",
            Self::Kept => "kept",
            Self::Served => "served",
            Self::Unmeasured => "unmeasured",
        }
    }

    /// Whether the client noticed nothing past the deadline.
    pub const fn is_seamless(self) -> bool {
        matches!(
            self,
            Self::Undrained | Self::Switched | Self::Migrated | Self::Kept | Self::Served
        )
    }
}

/// What a client's probes showed within the horizon of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Evidence {
    /// Probes not answered (a broken canary is an answer and not counted).
    pub bad: u64,
    /// Probes answered past the deadline.
    pub late: u64,
    /// Probes that found a canary broken.
    pub state_lost: u64,
    /// The first bad probe ran into the client's own timeout.
    pub first_timed_out: bool,
    /// The first bad probe was refused.
    pub first_refused: bool,
    /// Some probe was answered by a refusal to write.
    pub read_only: bool,
    /// The last probe was not answered within the horizon.
    pub not_back: bool,
    /// An answer came over another connection of the client than before.
    pub new_connection: bool,
    /// The answers moved to another backend.
    pub moved: bool,
    /// A drain was asked for, and the last answer still came from the subject.
    pub undrained: bool,
}

impl Evidence {
    /// Something bad or late happened to the client.
    pub fn is_hurt(&self) -> bool {
        self.bad > 0 || self.late > 0 || self.state_lost > 0
    }
}

/// The first fate that fits.
pub fn fate(style: Style, kind: ClientKind, seen: &Evidence) -> Fate {
    if seen.not_back {
        return Fate::Lost;
    }
    if !style.is_held() {
        return match seen {
            e if e.read_only => Fate::ReadOnly,
            e if e.first_timed_out => Fate::Hung,
            e if e.first_refused => Fate::Refused,
            e if e.bad > 0 || e.state_lost > 0 => Fate::Failed,
            e if e.late > 0 => Fate::Slow,
            _ => Fate::Served,
        };
    }
    match seen {
        e if e.read_only => Fate::ReadOnly,
        e if e.first_timed_out => Fate::Hung,
        e if e.bad >= 2 || (e.bad == 1 && e.state_lost > 0) => Fate::Dropped,
        e if e.new_connection && e.state_lost == 0 => Fate::Reconnected,
        e if e.bad == 1 => Fate::Failed,
        e if e.state_lost > 0 => Fate::StateLost,
        e if e.late > 0 => Fate::Stalled,
        e if e.moved && matches!(kind, ClientKind::Canary(_)) => Fate::Migrated,
        e if e.moved => Fate::Switched,
        e if e.undrained => Fate::Undrained,
        _ => Fate::Kept,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapscope_proto::sample::Canary;

    #[track_caller]
    fn check(style: Style, kind: ClientKind, seen: Evidence, expect: Fate) {
        assert_eq!(fate(style, kind, &seen), expect, "{seen:?}");
    }

    fn with(change: impl FnOnce(&mut Evidence)) -> Evidence {
        let mut evidence = Evidence::default();
        change(&mut evidence);
        evidence
    }

    #[test]
    fn every_fate_of_a_held_client() {
        let held = |change: fn(&mut Evidence), expect| {
            check(Style::Reused, ClientKind::Bare, with(change), expect);
        };
        held(|_| (), Fate::Kept);
        held(|e| e.undrained = true, Fate::Undrained);
        held(|e| e.moved = true, Fate::Switched);
        held(|e| (e.moved, e.late) = (true, 1), Fate::Stalled);
        held(|e| e.late = 3, Fate::Stalled);
        held(|e| e.state_lost = 4, Fate::StateLost);
        held(|e| (e.bad, e.new_connection) = (1, true), Fate::Reconnected);
        held(
            |e| (e.bad, e.new_connection, e.moved, e.late) = (1, true, true, 1),
            Fate::Reconnected,
        );
        held(|e| e.new_connection = true, Fate::Reconnected);
        held(|e| e.bad = 1, Fate::Failed);
        held(|e| (e.bad, e.new_connection) = (2, true), Fate::Dropped);
        held(|e| (e.bad, e.state_lost) = (1, 1), Fate::Dropped);
        held(
            |e| (e.bad, e.first_timed_out, e.new_connection) = (1, true, true),
            Fate::Hung,
        );
        held(|e| (e.bad, e.first_timed_out) = (5, true), Fate::Hung);
        held(|e| (e.bad, e.read_only) = (5, true), Fate::ReadOnly);
        held(
            |e| (e.bad, e.not_back, e.first_timed_out) = (5, true, true),
            Fate::Lost,
        );
        held(|e| (e.bad, e.first_refused) = (2, true), Fate::Dropped);
    }

    #[test]
    fn a_canary_tells_migrated_from_switched() {
        let canary = ClientKind::Canary(Canary::UserVariable);
        check(
            Style::Reused,
            canary,
            with(|e| e.moved = true),
            Fate::Migrated,
        );
        check(
            Style::Reused,
            ClientKind::Patient,
            with(|e| e.moved = true),
            Fate::Switched,
        );
        check(
            Style::Reused,
            canary,
            with(|e| (e.moved, e.state_lost) = (true, 1)),
            Fate::StateLost,
        );
    }

    #[test]
    fn every_fate_of_a_new_client() {
        let new = |change: fn(&mut Evidence), expect| {
            check(Style::New, ClientKind::Bare, with(change), expect);
        };
        new(|_| (), Fate::Served);
        new(|e| (e.moved, e.new_connection) = (true, true), Fate::Served);
        new(|e| e.late = 1, Fate::Slow);
        new(|e| e.bad = 1, Fate::Failed);
        new(|e| (e.bad, e.first_refused) = (1, true), Fate::Refused);
        new(|e| (e.bad, e.first_timed_out) = (1, true), Fate::Hung);
        new(|e| (e.bad, e.not_back) = (1, true), Fate::Lost);
    }

    #[test]
    fn words_are_distinct_and_worst_comes_first() {
        let words: std::collections::BTreeSet<_> = Fate::ALL.iter().map(|f| f.as_str()).collect();
        assert_eq!(words.len(), Fate::ALL.len());
        assert!(Fate::ALL.is_sorted());
    }
}
