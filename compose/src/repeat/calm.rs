//! Whether clients are answered without errors, and by whom, from the agents'
//! counters. Pure.

use crate::control::Counters;

/// Since when each row of counters has been without an error, and whom it saw.
pub(super) struct Calm {
    last: Vec<Counters>,
    since_ns: i64,
    /// When the awaited backend was seen last, for each row.
    seen_ns: Vec<Option<i64>>,
    moved: bool,
}

impl Calm {
    pub(super) fn new(now_ns: i64, last: Vec<Counters>) -> Self {
        Self {
            seen_ns: vec![None; last.len()],
            last,
            since_ns: now_ns,
            moved: false,
        }
    }

    /// Takes the newest reading.
    pub(super) fn look(&mut self, now_ns: i64, reading: Vec<Counters>, awaited: Option<&str>) {
        if reading == self.last {
            return;
        }
        let bad = |rows: &[Counters]| rows.iter().map(|row| row.bad).sum::<u64>();
        let same_rows = reading.len() == self.last.len();
        if !same_rows || bad(&reading) != bad(&self.last) {
            self.since_ns = now_ns;
            self.moved = false;
        } else {
            self.moved |= reading
                .iter()
                .zip(&self.last)
                .all(|(new, old)| new.ok > old.ok);
        }
        self.seen_ns.resize(reading.len(), None);
        for (row, seen) in reading.iter().zip(&mut self.seen_ns) {
            if awaited.is_some_and(|wanted| row.backend == wanted) {
                *seen = Some(now_ns);
            }
        }
        self.last = reading;
    }

    pub(super) fn for_ns(&self, now_ns: i64) -> u64 {
        if self.moved && !self.last.is_empty() {
            u64::try_from(now_ns.saturating_sub(self.since_ns)).unwrap_or(0)
        } else {
            0
        }
    }

    /// Targets with rows that have not seen the awaited backend lately.
    pub(super) fn elsewhere(&self, now_ns: i64) -> Vec<String> {
        let lately = now_ns.saturating_sub(2_000_000_000);
        let mut names: Vec<String> = self
            .last
            .iter()
            .zip(&self.seen_ns)
            .filter(|(_, seen)| seen.is_none_or(|at| at < lately))
            .map(|(row, _)| row.target.clone())
            .collect();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn row(ok: u64, bad: u64, backend: &str) -> Counters {
        Counters {
            target: "t".to_owned(),
            ok,
            bad,
            backend: backend.to_owned(),
            last_error: String::new(),
        }
    }

    #[test]
    fn calm_needs_answers_and_no_errors() {
        let s = 1_000_000_000i64;
        let mut calm = Calm::new(0, vec![row(1, 0, "a")]);
        calm.look(s, vec![row(1, 0, "a")], None);
        assert_eq!(calm.for_ns(2 * s), 0, "nobody answered since");
        calm.look(2 * s, vec![row(5, 0, "a")], Some("b"));
        assert_eq!(calm.for_ns(2 * s), 2 * SECOND);
        assert_eq!(calm.elsewhere(2 * s), ["t"]);
        calm.look(3 * s, vec![row(6, 1, "b")], Some("b"));
        assert_eq!(calm.for_ns(3 * s), 0, "an error");
        assert!(calm.elsewhere(3 * s).is_empty());
        calm.look(4 * s, vec![row(7, 1, "a")], Some("b"));
        assert_eq!(calm.for_ns(5 * s), 2 * SECOND);
        assert!(!calm.elsewhere(7 * s).is_empty(), "not lately");
    }
}
