//! What was seen of proxies' views, until it is written into the run's folder.
//! Consecutive looks that showed the same are one row, so that a long run in which
//! nothing happens stays small.
//!
//! It is written every half a minute and when the run has ended: a lab that is killed
//! loses at most that of it, and nothing of what clients saw.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use gapscope_aggregator::store::StoreError;
use gapscope_aggregator::store::proxy_view::{self, Seen};
use gapscope_proto::clock::ClockKey;
use gapscope_proto::fault::Span;

use crate::runtime::Belief;

/// A proxy whose view never rests must not fill the memory.
const MOST_ROWS: usize = 200_000;

#[derive(Debug, Default)]
struct Rows {
    rows: Vec<Seen>,
    /// Index of the newest row of each proxy and backend.
    newest: Vec<usize>,
    dropped: u64,
}

/// See the module's description.
#[derive(Debug, Clone)]
pub struct Kept {
    rows: Arc<Mutex<Rows>>,
    clock: ClockKey,
}

impl Kept {
    /// Nothing yet.
    pub fn new(clock: ClockKey) -> Self {
        Self {
            rows: Arc::default(),
            clock,
        }
    }

    /// Takes in one look at a proxy.
    pub fn look(&self, proxy: &str, when: Span, seen: Result<&[Belief], &str>) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        match seen {
            Err(why) => rows.take(proxy, "", None, why, None, when),
            Ok(beliefs) => {
                for belief in beliefs {
                    rows.take(
                        proxy,
                        &belief.backend,
                        Some(&belief.state),
                        &belief.check,
                        belief.sessions,
                        when,
                    );
                }
            }
        }
    }

    /// Writes all of it; returns how many rows had to be left out.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<u64, StoreError> {
        let (rows, dropped) = {
            let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
            (rows.rows.clone(), rows.dropped)
        };
        if !rows.is_empty() {
            proxy_view::write(folder, &rows, &self.clock)?;
        }
        Ok(dropped)
    }
}

impl Rows {
    fn take(
        &mut self,
        proxy: &str,
        backend: &str,
        state: Option<&str>,
        check: &str,
        sessions: Option<u64>,
        when: Span,
    ) {
        let place = self.newest.iter().position(|index| {
            let row = &self.rows[*index];
            row.proxy == proxy && row.backend == backend
        });
        if let Some(place) = place {
            let row = &mut self.rows[self.newest[place]];
            // A look in between at which it did not answer parts two rows.
            if row.state.as_deref() == state && row.check == check && row.sessions == sessions {
                row.last = when;
                row.looks += 1;
                return;
            }
        }
        if self.rows.len() >= MOST_ROWS {
            self.dropped += 1;
            return;
        }
        self.rows.push(Seen {
            proxy: proxy.to_owned(),
            backend: backend.to_owned(),
            state: state.map(str::to_owned),
            check: check.to_owned(),
            sessions,
            first: when,
            last: when,
            looks: 1,
        });
        let index = self.rows.len() - 1;
        match place {
            Some(place) => self.newest[place] = index,
            None => self.newest.push(index),
        }
        if backend.is_empty() {
            // What it believed before is not continued by what it believes after.
            let rows = &self.rows;
            self.newest
                .retain(|index| rows[*index].proxy != proxy || rows[*index].backend.is_empty());
        } else {
            let rows = &self.rows;
            self.newest
                .retain(|index| rows[*index].proxy != proxy || !rows[*index].backend.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn belief(backend: &str, state: &str) -> Belief {
        Belief {
            backend: backend.to_owned(),
            state: state.to_owned(),
            check: String::new(),
            sessions: Some(3),
        }
    }

    #[test]
    fn looks_that_show_the_same_are_one_row() {
        let kept = Kept::new(ClockKey {
            boot_id: "b".to_owned(),
            time_namespace: 0,
        });
        let span = |at| Span {
            earliest_ns: at,
            latest_ns: at + 1,
        };
        for at in [10, 20, 30] {
            kept.look("p", span(at), Ok(&[belief("a", "UP"), belief("b", "UP")]));
        }
        kept.look("p", span(40), Ok(&[belief("a", "DOWN"), belief("b", "UP")]));
        kept.look("p", span(50), Err("refused"));
        kept.look("p", span(60), Err("refused"));
        kept.look("p", span(70), Ok(&[belief("a", "DOWN"), belief("b", "UP")]));
        let rows = kept.rows.lock().expect("nobody panicked").rows.clone();
        let seen: Vec<_> = rows
            .iter()
            .map(|row| {
                (
                    row.backend.as_str(),
                    row.state.as_deref(),
                    row.first.earliest_ns,
                    row.last.latest_ns,
                    row.looks,
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("a", Some("UP"), 10, 31, 3),
                ("b", Some("UP"), 10, 41, 4),
                ("a", Some("DOWN"), 40, 41, 1),
                ("", None, 50, 61, 2),
                ("a", Some("DOWN"), 70, 71, 1),
                ("b", Some("UP"), 70, 71, 1),
            ]
        );
    }
}
