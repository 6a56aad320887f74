//! The verdict of a target, style and kind of client in one fault: the worst
//! fate of the clients that were exposed or hurt, with counts.
//!
//! A fault that reached nobody tested nothing and is never a success.

use std::collections::BTreeMap;

use super::fate::{Exposure, Fate};

/// One client in one fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judged {
    /// How it was connected with the subject.
    pub exposure: Exposure,
    /// What became of it.
    pub fate: Fate,
    /// Something bad or late happened to it.
    pub hurt: bool,
}

/// The verdict's word, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Every exposed or hurt client was lost.
    Down,
    /// Somebody was lost, hung, dropped, refused or failed.
    Disrupted,
    /// One error each, then good on a new connection.
    Reconnected,
    /// No error, but session state is gone.
    StateLost,
    /// No error, but answers past the deadline.
    Stalled,
    /// Nothing past the deadline.
    Seamless,
    /// No client had an answer before the fault.
    Unmeasured,
    /// Nobody exposed, nobody hurt: nothing was tested.
    NotExposed,
}

impl Verdict {
    /// The word used in files and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Disrupted => "disrupted",
            Self::Reconnected => "reconnected",
            Self::StateLost => "state lost",
            Self::Stalled => "stalled",
            Self::Seamless => "seamless",
            Self::Unmeasured => "unmeasured",
            Self::NotExposed => "not exposed",
        }
    }

    /// Whether the fault tested this target at all.
    pub const fn is_tested(self) -> bool {
        !matches!(self, Self::Unmeasured | Self::NotExposed)
    }
}

/// A verdict with what it rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The word.
    pub verdict: Verdict,
    /// Clients by exposure and fate.
    pub counts: BTreeMap<(Exposure, Fate), u64>,
    /// Clients exposed or not that were hurt.
    pub hurt: u64,
    /// Clients of exposure `none` that were hurt.
    pub collateral: u64,
    /// Seamless rests on clients whose backend changed without a canary.
    pub state_not_tested: bool,
}

impl Judgement {
    /// Clients of an exposure.
    pub fn exposed(&self, exposure: Exposure) -> u64 {
        self.counts
            .iter()
            .filter(|((e, _), _)| *e == exposure)
            .map(|(_, n)| n)
            .sum()
    }

    /// Clients of a fate, whatever their exposure.
    pub fn fates(&self) -> BTreeMap<Fate, u64> {
        let mut fates = BTreeMap::new();
        for ((_, fate), n) in &self.counts {
            *fates.entry(*fate).or_insert(0) += n;
        }
        fates
    }

    /// "reconnected 9 of 9 held; seamless 11 of 11 not exposed"
    pub fn in_words(&self) -> String {
        let mut parts = Vec::new();
        for exposure in [
            Exposure::Held,
            Exposure::Shared,
            Exposure::None,
            Exposure::Unmeasured,
        ] {
            let all = self.exposed(exposure);
            if all == 0 {
                continue;
            }
            let name = match exposure {
                Exposure::None => "not exposed",
                other => other.as_str(),
            };
            if exposure == Exposure::Unmeasured {
                parts.push(format!("{all} unmeasured"));
                continue;
            }
            let fates: Vec<String> = self
                .counts
                .iter()
                .filter(|((e, _), _)| *e == exposure)
                .map(|((_, fate), n)| format!("{} {n} of {all}", fate.as_str()))
                .collect();
            parts.push(format!("{} {name}", fates.join(", ")));
        }
        parts.join("; ")
    }
}

/// Judges the clients of one target, style and kind.
pub fn judge(clients: &[Judged]) -> Judgement {
    let mut counts = BTreeMap::new();
    for client in clients {
        *counts.entry((client.exposure, client.fate)).or_insert(0) += 1;
    }
    let measured = |c: &&Judged| c.exposure != Exposure::Unmeasured;
    let at_stake: Vec<&Judged> = clients
        .iter()
        .filter(measured)
        .filter(|c| c.exposure != Exposure::None || c.hurt)
        .collect();
    let verdict = if !clients.iter().any(|c| measured(&c)) {
        Verdict::Unmeasured
    } else if at_stake.is_empty() {
        Verdict::NotExposed
    } else if at_stake.iter().all(|c| c.fate == Fate::Lost) {
        Verdict::Down
    } else {
        match at_stake.iter().map(|c| c.fate).min() {
            None | Some(Fate::Unmeasured) => Verdict::Unmeasured,
            Some(
                Fate::Lost
                | Fate::ReadOnly
                | Fate::Hung
                | Fate::Dropped
                | Fate::Refused
                | Fate::Failed,
            ) => Verdict::Disrupted,
            Some(Fate::Reconnected) => Verdict::Reconnected,
            Some(Fate::StateLost) => Verdict::StateLost,
            Some(Fate::Stalled | Fate::Slow) => Verdict::Stalled,
            Some(Fate::Undrained | Fate::Switched | Fate::Migrated | Fate::Kept | Fate::Served) => {
                Verdict::Seamless
            }
        }
    };
    Judgement {
        verdict,
        counts,
        hurt: clients.iter().filter(measured).filter(|c| c.hurt).count() as u64,
        collateral: clients
            .iter()
            .filter(|c| c.exposure == Exposure::None && c.hurt)
            .count() as u64,
        state_not_tested: at_stake.iter().any(|c| c.fate == Fate::Switched),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(exposure: Exposure, fate: Fate) -> Judged {
        Judged {
            exposure,
            fate,
            hurt: !fate.is_seamless() && fate != Fate::Unmeasured,
        }
    }

    #[track_caller]
    fn check(clients: &[(Exposure, Fate)], expect: Verdict) {
        let clients: Vec<_> = clients.iter().map(|(e, f)| client(*e, *f)).collect();
        assert_eq!(judge(&clients).verdict, expect, "{clients:?}");
    }

    #[test]
    fn every_verdict() {
        use Exposure::{Held, None, Shared, Unmeasured};
        check(&[], Verdict::Unmeasured);
        check(&[(Unmeasured, Fate::Unmeasured)], Verdict::Unmeasured);
        check(
            &[(None, Fate::Kept), (None, Fate::Kept)],
            Verdict::NotExposed,
        );
        check(
            &[(None, Fate::Kept), (Unmeasured, Fate::Unmeasured)],
            Verdict::NotExposed,
        );
        check(&[(Held, Fate::Lost), (None, Fate::Kept)], Verdict::Down);
        check(
            &[(Held, Fate::Lost), (Held, Fate::Kept)],
            Verdict::Disrupted,
        );
        for fate in [
            Fate::Hung,
            Fate::Dropped,
            Fate::Refused,
            Fate::Failed,
            Fate::ReadOnly,
        ] {
            check(&[(Held, fate), (Held, Fate::Kept)], Verdict::Disrupted);
        }
        check(
            &[(Held, Fate::Reconnected), (Shared, Fate::Stalled)],
            Verdict::Reconnected,
        );
        check(
            &[(Held, Fate::StateLost), (Held, Fate::Stalled)],
            Verdict::StateLost,
        );
        check(&[(Held, Fate::Stalled)], Verdict::Stalled);
        check(&[(Shared, Fate::Slow)], Verdict::Stalled);
        for fate in [
            Fate::Switched,
            Fate::Migrated,
            Fate::Kept,
            Fate::Served,
            Fate::Undrained,
        ] {
            check(&[(Held, fate)], Verdict::Seamless);
        }
    }

    #[test]
    fn a_hurt_client_is_never_hidden_by_not_exposed() {
        let found = judge(&[
            client(Exposure::None, Fate::Dropped),
            client(Exposure::None, Fate::Kept),
        ]);
        assert_eq!(
            (found.verdict, found.collateral, found.hurt),
            (Verdict::Disrupted, 1, 1)
        );
    }

    #[test]
    fn switched_is_seamless_with_state_not_tested() {
        assert!(judge(&[client(Exposure::Held, Fate::Switched)]).state_not_tested);
        assert!(!judge(&[client(Exposure::Held, Fate::Migrated)]).state_not_tested);
    }

    #[test]
    fn counts_are_put_in_words() {
        let mut clients = vec![client(Exposure::Held, Fate::Reconnected); 9];
        clients.extend(vec![client(Exposure::None, Fate::Kept); 11]);
        assert_eq!(
            judge(&clients).in_words(),
            "reconnected 9 of 9 held; kept 11 of 11 not exposed"
        );
    }
}
