//! What the agent notes about its host and itself while it probes: a ticker's
//! lateness (tells a slow target from a paused agent), and once a second all
//! clocks read together.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::host::{HostRecord, Lag};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::spool::Spool;

const TICK_NS: i64 = 10_000_000;
const ON_TIME_NS: i64 = 2_000_000;
const MOST_TICKS: u32 = 100;
const ANCHOR_EVERY_NS: i64 = 1_000_000_000;

/// Gathers ticks: up to 100 on-time ones are one record, late ones stand alone.
#[derive(Debug)]
pub struct LagBook {
    next_due_ns: i64,
    gathered: Option<Lag>,
}

impl LagBook {
    /// The first tick is due at `first_due_ns`.
    pub fn new(first_due_ns: i64) -> Self {
        Self {
            next_due_ns: first_due_ns,
            gathered: None,
        }
    }

    /// The ticker has rested, with nobody to tell: the next tick is due then.
    pub fn restart(&mut self, first_due_ns: i64) {
        self.next_due_ns = first_due_ns;
        self.gathered = None;
    }

    /// When the next tick is due.
    pub fn next_due_ns(&self) -> i64 {
        self.next_due_ns
    }

    /// The ticker woke up. All ticks that have passed are accounted for: while
    /// the agent was paused, they were late together.
    pub fn tick(&mut self, now_ns: i64) -> Vec<Lag> {
        let mut out = Vec::new();
        let late_ns = now_ns.saturating_sub(self.next_due_ns);
        if late_ns < 0 {
            return out;
        }
        let ticks = late_ns / TICK_NS + 1;
        let last_due_ns = self.next_due_ns.saturating_add((ticks - 1) * TICK_NS);
        self.next_due_ns = last_due_ns.saturating_add(TICK_NS);
        let late_max_ns = u64::try_from(late_ns).unwrap_or(0);
        if ticks == 1 && late_ns < ON_TIME_NS {
            let lag = self.gathered.get_or_insert(Lag {
                at_ns: 0,
                ticks: 0,
                late_max_ns: 0,
            });
            lag.at_ns = last_due_ns;
            lag.ticks += 1;
            lag.late_max_ns = lag.late_max_ns.max(late_max_ns);
            if lag.ticks >= MOST_TICKS {
                out.extend(self.gathered.take());
            }
            return out;
        }
        out.extend(self.gathered.take());
        out.push(Lag {
            at_ns: last_due_ns,
            ticks: u32::try_from(ticks).unwrap_or(u32::MAX),
            late_max_ns,
        });
        out
    }

    /// What is gathered so far.
    pub fn flush(&mut self) -> Option<Lag> {
        self.gathered.take()
    }
}

/// Keeps the notes while something is probed. Cheap to clone.
#[derive(Clone)]
pub struct HostNotes {
    book: Arc<Mutex<LagBook>>,
    clock: Arc<dyn Clock>,
    spool: Spool,
    /// How many runs want them.
    wanted: watch::Sender<usize>,
}

/// Notes are kept until it is dropped.
#[derive(Debug)]
pub struct Wanted(watch::Sender<usize>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.send_modify(|runs| *runs = runs.saturating_sub(1));
    }
}

impl HostNotes {
    /// For this clock and spool; [`Self::run`] does the work.
    pub fn new(clock: Arc<dyn Clock>, spool: Spool) -> Self {
        Self {
            book: Arc::new(Mutex::new(LagBook::new(clock.raw_ns() + TICK_NS))),
            clock,
            spool,
            wanted: watch::Sender::new(0),
        }
    }

    /// A run has begun, and wants notes.
    pub fn want(&self) -> Wanted {
        self.wanted.send_modify(|runs| *runs += 1);
        Wanted(self.wanted.clone())
    }

    /// Spools what is gathered: before a run's last record.
    pub async fn flush(&self) {
        let lag = self.book().flush();
        if let Some(lag) = lag {
            self.spool.host_for_all(HostRecord::Lag(lag)).await;
        }
        self.anchor(0).await;
    }

    fn book(&self) -> std::sync::MutexGuard<'_, LagBook> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn anchor(&self, timer_late_ns: u64) {
        let mut anchor = self.clock.anchor();
        anchor.timer_late_ns = timer_late_ns;
        self.spool.host_for_all(HostRecord::Anchor(anchor)).await;
    }

    /// Ticks until stopped; rests while nothing is probed, when there is nobody to
    /// tell and a hundred wake-ups a second are most of what an agent costs.
    pub async fn run(self, stop: CancellationToken) {
        let mut wanted = self.wanted.subscribe();
        let mut anchor_due_ns = self.clock.raw_ns();
        loop {
            if *wanted.borrow_and_update() == 0 {
                tokio::select! {
                    () = stop.cancelled() => return,
                    // An error cannot be: this holds a sender too.
                    () = async { let _ = wanted.wait_for(|runs| *runs > 0).await; } => {}
                }
                let now_ns = self.clock.raw_ns();
                self.book().restart(now_ns + TICK_NS);
                anchor_due_ns = now_ns;
            }
            let due_ns = self.book().next_due_ns();
            let left = u64::try_from(due_ns.saturating_sub(self.clock.raw_ns())).unwrap_or(0);
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(Duration::from_nanos(left)) => {}
            }
            let now_ns = self.clock.raw_ns();
            let lags = self.book().tick(now_ns);
            for lag in lags {
                self.spool.host_for_all(HostRecord::Lag(lag)).await;
            }
            if now_ns >= anchor_due_ns {
                let late = u64::try_from(now_ns.saturating_sub(due_ns)).unwrap_or(0);
                self.anchor(late).await;
                anchor_due_ns = now_ns + ANCHOR_EVERY_NS;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_time_ticks_are_gathered_and_late_ones_stand_alone() {
        let mut book = LagBook::new(0);
        let mut out = Vec::new();
        for k in 0..100 {
            out.extend(book.tick(k * TICK_NS + 1_000 + k));
        }
        assert_eq!(
            out,
            [Lag {
                at_ns: 99 * TICK_NS,
                ticks: 100,
                late_max_ns: 1_099
            }]
        );
        assert_eq!(book.tick(100 * TICK_NS), []);
        // Paused for a second: ticks 101 to 201.
        let out = book.tick(201 * TICK_NS + 5);
        assert_eq!(out[0].ticks, 1);
        assert_eq!(
            out[1],
            Lag {
                at_ns: 201 * TICK_NS,
                ticks: 101,
                late_max_ns: 1_000_000_005
            }
        );
        assert_eq!(book.next_due_ns(), 202 * TICK_NS);
        assert_eq!(book.flush(), None);
    }

    #[test]
    fn every_tick_is_in_one_record() {
        let mut book = LagBook::new(0);
        let mut ticks = 0u64;
        let mut now = 0;
        for step in [3, 10, 11, 500, 9, 10, 25, 1, 2, 3, 4, 10, 10] {
            now += step * 1_000_000;
            ticks += book
                .tick(now)
                .iter()
                .map(|lag| u64::from(lag.ticks))
                .sum::<u64>();
        }
        ticks += book.flush().map_or(0, |lag| u64::from(lag.ticks));
        assert_eq!(ticks, (now / TICK_NS + 1) as u64);
    }
}
