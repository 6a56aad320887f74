//! Waiting until a RAW stamp, to within some tens of microseconds.
//!
//! The runtime's own timer has steps of 1 ms, which would be most of a fast
//! probe's lateness. Long waits use it for all but their last milliseconds; for
//! the rest a thread of its own sleeps on the kernel's high-resolution timer and
//! wakes the waiting tasks. Nothing spins. RAW cannot be slept on, so each sleep
//! is recomputed from RAW, and a waiter is woken only once RAW has got there.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use gapscope_proto::clock::Clock;
use tokio::sync::oneshot;

/// What is left to the thread of a long wait.
const FINE_NS: i64 = 12_000_000;
const COARSE_STOP_NS: i64 = 3_000_000;

struct Waiter {
    due_ns: i64,
    number: u64,
    wake: oneshot::Sender<()>,
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        (self.due_ns, self.number) == (other.due_ns, other.number)
    }
}
impl Eq for Waiter {}
impl PartialOrd for Waiter {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Waiter {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due_ns, self.number).cmp(&(other.due_ns, other.number))
    }
}

#[derive(Default)]
struct State {
    waiters: BinaryHeap<Reverse<Waiter>>,
    next_number: u64,
    stopped: bool,
}

struct Shared {
    state: Mutex<State>,
    earlier: Condvar,
    clock: Arc<dyn Clock>,
}

/// The thread that wakes. Dropping the last handle ends it.
pub struct Waker {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waker")
    }
}

impl Waker {
    /// Starts the thread.
    pub fn start(clock: Arc<dyn Clock>) -> std::io::Result<Arc<Self>> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            earlier: Condvar::new(),
            clock,
        });
        let of_thread = shared.clone();
        std::thread::Builder::new()
            .name("waker".into())
            .spawn(move || wake_all(&of_thread))?;
        Ok(Arc::new(Self { shared }))
    }

    /// Returns at `due_ns` or a little later, never earlier.
    pub async fn until(&self, due_ns: i64) {
        loop {
            let left = due_ns.saturating_sub(self.shared.clock.raw_ns());
            if left <= 0 {
                return;
            }
            if left <= FINE_NS {
                break;
            }
            let coarse = u64::try_from(left - COARSE_STOP_NS).unwrap_or(0);
            tokio::time::sleep(Duration::from_nanos(coarse)).await;
        }
        let (wake, woken) = oneshot::channel();
        {
            let mut state = self
                .shared
                .state
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let number = state.next_number;
            state.next_number += 1;
            let first = state
                .waiters
                .peek()
                .is_none_or(|Reverse(next)| due_ns < next.due_ns);
            state.waiters.push(Reverse(Waiter {
                due_ns,
                number,
                wake,
            }));
            if first {
                self.shared.earlier.notify_one();
            }
        }
        // An error means the thread is gone, which ends the wait early; the
        // caller looks at the clock in any case.
        let _ = woken.await;
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        let mut state = self
            .shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        state.stopped = true;
        self.shared.earlier.notify_one();
    }
}

fn wake_all(shared: &Shared) {
    // Without it the kernel may add 50 us to each sleep.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
    let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    while !state.stopped {
        let now = shared.clock.raw_ns();
        while state
            .waiters
            .peek()
            .is_some_and(|Reverse(next)| next.due_ns <= now)
        {
            if let Some(Reverse(waiter)) = state.waiters.pop() {
                let _ = waiter.wake.send(());
            }
        }
        state = match state.waiters.peek() {
            None => shared
                .earlier
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
            Some(Reverse(next)) => {
                let left = u64::try_from(next.due_ns.saturating_sub(now)).unwrap_or(0);
                shared
                    .earlier
                    .wait_timeout(state, Duration::from_nanos(left.max(1)))
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapscope_proto::clock::SystemClock;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nobody_is_woken_early() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let waker = Waker::start(clock.clone()).expect("a thread");
        let base = clock.raw_ns();
        let mut tasks = Vec::new();
        for i in 0..200i64 {
            let (clock, waker) = (clock.clone(), waker.clone());
            tasks.push(tokio::spawn(async move {
                let due = base + (i % 40) * 777_777;
                waker.until(due).await;
                clock.raw_ns() - due
            }));
        }
        for task in tasks {
            let late = task.await.expect("no panic");
            assert!(late >= 0, "woken {} ns early", -late);
        }
    }
}
