//! What the samples of a try say, counted. Pure.

use std::collections::{BTreeMap, BTreeSet};

use gapscope_proto::sample::{Outcome, Sample, Style};

/// One kind of client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) probes: u64,
    pub(crate) ok: u64,
    /// From begin to answer, of good probes, sorted.
    took_ns: Vec<u64>,
    /// TCP, TLS and login, where they happened, sorted.
    connect_ns: Vec<u64>,
    /// The longest time between two answers of one client, from answer to answer.
    pub(crate) longest_gap_ns: u64,
    /// What failed: outcome, cause, code, a text, how often.
    pub(crate) bad: BTreeMap<(String, String, Option<u16>), (String, u64)>,
}

/// Who answered what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) held: Group,
    pub(crate) new: Group,
    pub(crate) floor_held: Group,
    pub(crate) floor_new: Group,
    /// How late probes began, sorted.
    late_ns: Vec<u64>,
    /// Answers by backend: of held connections, and of new ones.
    pub(crate) backends: BTreeMap<String, (u64, u64)>,
    /// The most server connections behind one held connection.
    pub(crate) most_sessions: usize,
    /// The most backends behind one held connection.
    pub(crate) most_backends: usize,
    /// Statements on the held connection with the most of them.
    pub(crate) most_statements: u64,
    /// Server connections seen by more than one held client.
    pub(crate) shared_sessions: usize,
    /// Held connections that had to be made again.
    pub(crate) reconnections: u64,
    /// Which address served, with how many answers.
    pub(crate) peers: BTreeMap<String, u64>,
}

/// By nearest rank: the smallest value that `permille` of all do not exceed.
pub(crate) fn quantile(sorted: &[u64], permille: usize) -> Option<u64> {
    let rank = (sorted.len() * permille).div_ceil(1000).max(1);
    sorted.get(rank - 1).copied()
}

impl Group {
    pub(crate) fn took(&self, permille: usize) -> Option<u64> {
        quantile(&self.took_ns, permille)
    }

    pub(crate) fn connect(&self, permille: usize) -> Option<u64> {
        quantile(&self.connect_ns, permille)
    }

    fn note(&mut self, sample: &Sample) {
        self.probes += 1;
        if let Some(connect) = sample.connect_ns
            && sample.outcome == Outcome::Ok
        {
            self.connect_ns.push(connect);
        }
        if sample.outcome == Outcome::Ok {
            self.ok += 1;
            let took = sample.finished.ns().saturating_sub(sample.started.ns());
            self.took_ns.push(u64::try_from(took).unwrap_or(0));
            return;
        }
        let text = sample.error.as_deref().unwrap_or_default().to_owned();
        let key = (
            sample.outcome.to_string(),
            sample.cause.map(|c| c.to_string()).unwrap_or_default(),
            sample.error_code,
        );
        self.bad.entry(key).or_insert((text, 0)).1 += 1;
    }
}

impl Facts {
    /// How late probes began.
    pub(crate) fn late(&self, permille: usize) -> Option<u64> {
        quantile(&self.late_ns, permille)
    }

    /// Counts; `floor` holds the samples of the null server.
    pub(crate) fn of(samples: &[Sample], floor: &[Sample]) -> Self {
        let mut facts = Self::default();
        let mut last_answer: BTreeMap<(Style, u16), i64> = BTreeMap::new();
        let mut behind: BTreeMap<(u16, u32), (BTreeSet<(&str, u64)>, u64)> = BTreeMap::new();
        let mut owners: BTreeMap<(&str, u64), BTreeSet<u16>> = BTreeMap::new();
        for sample in samples {
            let group = if sample.style.is_held() {
                &mut facts.held
            } else {
                &mut facts.new
            };
            group.note(sample);
            let late = sample.started.ns().saturating_sub(sample.scheduled.ns());
            facts.late_ns.push(u64::try_from(late).unwrap_or(0));
            if sample.outcome != Outcome::Ok {
                continue;
            }
            let answered = sample.finished.ns();
            if let Some(before) = last_answer.insert((sample.style, sample.client), answered) {
                let gap = u64::try_from(answered.saturating_sub(before)).unwrap_or(0);
                group.longest_gap_ns = group.longest_gap_ns.max(gap);
            }
            if let Some(peer) = sample.peer.as_deref() {
                *facts.peers.entry(peer.to_owned()).or_default() += 1;
            }
            let (Some(backend), Some(id)) = (sample.backend.as_deref(), sample.connection_id)
            else {
                continue;
            };
            let counts = facts.backends.entry(backend.to_owned()).or_default();
            if !sample.style.is_held() {
                counts.1 += 1;
                continue;
            }
            counts.0 += 1;
            let connection = sample.connection.unwrap_or(0);
            let seen = behind.entry((sample.client, connection)).or_default();
            seen.0.insert((backend, id));
            seen.1 += 1;
            owners
                .entry((backend, id))
                .or_default()
                .insert(sample.client);
        }
        for (sessions, statements) in behind.values() {
            let backends: BTreeSet<_> = sessions.iter().map(|(backend, _)| backend).collect();
            facts.most_sessions = facts.most_sessions.max(sessions.len());
            facts.most_backends = facts.most_backends.max(backends.len());
            facts.most_statements = facts.most_statements.max(*statements);
        }
        facts.shared_sessions = owners.values().filter(|clients| clients.len() > 1).count();
        facts.reconnections = behind.keys().filter(|(_, number)| *number > 1).count() as u64;
        for sample in floor {
            if sample.style.is_held() {
                facts.floor_held.note(sample);
            } else {
                facts.floor_new.note(sample);
            }
        }
        for group in [
            &mut facts.held,
            &mut facts.new,
            &mut facts.floor_held,
            &mut facts.floor_new,
        ] {
            group.took_ns.sort_unstable();
            group.connect_ns.sort_unstable();
        }
        facts.late_ns.sort_unstable();
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rank() {
        let sorted: Vec<u64> = (1..=100).collect();
        assert_eq!(quantile(&sorted, 500), Some(50));
        assert_eq!(quantile(&sorted, 990), Some(99));
        assert_eq!(quantile(&sorted, 1000), Some(100));
        assert_eq!(quantile(&[7], 500), Some(7));
        assert_eq!(quantile(&[], 500), None);
    }
}
