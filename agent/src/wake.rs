//! The threads that probe, and waiting there until a RAW stamp, to within some tens
//! of microseconds.
//!
//! A probe is woken for twice: when it is due and when its answer is there. So each of
//! these threads sleeps on both at once, its sockets and the kernel's high-resolution
//! timer (a `timerfd`), and does what is due itself: nothing is handed from thread to
//! thread, which costs more than a probe. The runtime's own timer has steps of 1 ms and
//! is not used. Nothing spins. RAW cannot be slept on, so each sleep is recomputed from
//! RAW, and a waiter is woken only once RAW has got there.
//!
//! Clients that keep their connection are spread over some threads. Those that make one
//! for each probe have another one: a handshake is a hundred times a probe's work, and
//! would be late answers of everybody beside it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gapscope_proto::clock::Clock;
use gapscope_proto::sample::Style;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Of a longer wait a part is left for a second sleep: the timer's clock may go up to
/// 2,000 ppm faster or slower than RAW.
const LONG_NS: i64 = 12_000_000;
const MOST_THREADS: usize = 8;

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
}

/// Who waits for what on one thread.
struct Timer {
    fd: AsyncFd<OwnedFd>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

impl Timer {
    /// On the runtime in whose context it is called.
    #[expect(
        deprecated,
        reason = "what takes its place is unsafe, so that the caller vouches for what holds here \
                  by itself: the descriptor is owned, and open as long as this is"
    )]
    fn new(clock: Arc<dyn Clock>) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self {
            fd: AsyncFd::with_interest(fd, Interest::READABLE)?,
            clock,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn until(&self, due_ns: i64) {
        if due_ns <= self.clock.raw_ns() {
            return;
        }
        let (wake, woken) = oneshot::channel();
        {
            let mut state = self.state();
            let number = state.next_number;
            state.next_number += 1;
            let first = state.waiters.peek();
            let is_first = first.is_none_or(|Reverse(next)| due_ns < next.due_ns);
            state.waiters.push(Reverse(Waiter {
                due_ns,
                number,
                wake,
            }));
            if is_first {
                self.set(due_ns);
            }
        }
        // An error means that the thread is gone, which ends the wait early; the
        // caller looks at the clock in any case.
        let _ = woken.await;
    }

    /// The next expiry: at `due_ns`, or before it where that is far. Forgets the one
    /// before, whether it was seen or not.
    fn set(&self, due_ns: i64) {
        const SECOND_NS: i64 = 1_000_000_000;
        let mut left = due_ns.saturating_sub(self.clock.raw_ns()).max(1);
        if left > LONG_NS {
            left -= left / 500;
        }
        let at = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: left / SECOND_NS,
                tv_nsec: left % SECOND_NS,
            },
        };
        if let Err(error) = timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &at) {
            // Cannot be with a sound descriptor and a positive time.
            tracing::error!(%error, "the timer cannot be set");
        }
    }

    /// Wakes whoever is due, without end.
    async fn run(&self) {
        loop {
            // Setting it again takes the expiry back: it need not be read.
            match self.fd.readable().await {
                Ok(mut ready) => ready.clear_ready(),
                Err(error) => {
                    tracing::error!(%error, "the timer cannot be waited for");
                    return;
                }
            }
            let mut state = self.state();
            let now = self.clock.raw_ns();
            loop {
                match state.waiters.peek() {
                    Some(Reverse(next)) if next.due_ns <= now => {
                        if let Some(Reverse(waiter)) = state.waiters.pop() {
                            // It may wait for something else by now.
                            let _ = waiter.wake.send(());
                        }
                    }
                    Some(Reverse(next)) => {
                        self.set(next.due_ns);
                        break;
                    }
                    None => break,
                }
            }
        }
    }
}

/// One of the threads. Dropping it ends what goes on there.
pub struct ProbeThread {
    timer: Arc<Timer>,
    runtime: Handle,
    _stop: DropGuard,
}

impl std::fmt::Debug for ProbeThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProbeThread")
    }
}

impl ProbeThread {
    fn start(clock: Arc<dyn Clock>, number: usize) -> io::Result<Arc<Self>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let timer = {
            let _context = runtime.enter();
            Arc::new(Timer::new(clock)?)
        };
        let stop = CancellationToken::new();
        let thread = Arc::new(Self {
            timer: timer.clone(),
            runtime: runtime.handle().clone(),
            _stop: stop.clone().drop_guard(),
        });
        std::thread::Builder::new()
            .name(format!("probes-{number}"))
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = timer.run() => {}
                    }
                });
                // A name that is still being looked up is not waited for.
                runtime.shutdown_background();
            })?;
        Ok(thread)
    }

    /// What is spawned there runs on this thread alone.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Returns at `due_ns` or a little later, never earlier.
    pub async fn until(&self, due_ns: i64) {
        self.timer.until(due_ns).await;
    }
}

/// All of them.
#[derive(Debug)]
pub struct Waker {
    /// For clients that keep their connection.
    held: Vec<Arc<ProbeThread>>,
    /// For those that connect each time.
    connecting: Arc<ProbeThread>,
}

impl Waker {
    /// Starts the threads: for every two processors one, and one for those who connect.
    ///
    /// # Errors
    /// When one cannot be started.
    pub fn start(clock: Arc<dyn Clock>) -> io::Result<Arc<Self>> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (processors / 2).clamp(1, MOST_THREADS);
        let held = (0..threads).map(|number| ProbeThread::start(clock.clone(), number));
        Ok(Arc::new(Self {
            held: held.collect::<io::Result<_>>()?,
            connecting: ProbeThread::start(clock, threads)?,
        }))
    }

    /// The thread of client `number` of this style.
    pub fn thread(&self, style: Style, number: usize) -> &Arc<ProbeThread> {
        if style.is_held() {
            &self.held[number % self.held.len()]
        } else {
            &self.connecting
        }
    }

    /// The one on which the agent also looks after itself: what delays its ticker and
    /// its probes of itself delays probes.
    pub fn first(&self) -> &Arc<ProbeThread> {
        &self.held[0]
    }

    /// Returns at `due_ns` or a little later, never earlier; from any thread.
    pub async fn until(&self, due_ns: i64) {
        self.first().until(due_ns).await;
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
