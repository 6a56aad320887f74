//! Runs a driver's future within a limit, and survives what it does: a panic is
//! caught, and what is given up is buried rather than dropped.
//!
//! A connection dropped inside the runtime is not closed at once: the driver
//! tries to say goodbye in a task of its own, which on a hung server waits for
//! the rest of a result for ever and keeps the socket open. Outside a runtime it
//! just closes. So whatever is given up goes to a thread that has none.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;

/// How a limited future ended.
#[derive(Debug)]
pub enum Ended<T> {
    /// By itself.
    Done(T),
    /// Its time ran out.
    TimedOut,
    /// The caller gave up.
    GivenUp,
    /// It panicked, saying this.
    Panicked(String),
}

/// A future that owns all it needs.
pub type Owned<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Where given-up connections are closed at once.
#[derive(Debug, Clone)]
pub struct Graveyard {
    dead: mpsc::Sender<Box<dyn Send>>,
    buried: Arc<AtomicU64>,
}

impl Graveyard {
    /// Starts its thread, which ends when the last handle is dropped.
    pub fn open() -> std::io::Result<Self> {
        let (dead, arriving) = mpsc::channel::<Box<dyn Send>>();
        std::thread::Builder::new()
            .name("graveyard".into())
            .spawn(move || {
                for body in arriving {
                    // A drop that panics must not end the thread.
                    let _ = std::panic::catch_unwind(AssertUnwindSafe(move || drop(body)));
                }
            })?;
        Ok(Self {
            dead,
            buried: Arc::new(AtomicU64::new(0)),
        })
    }

    /// Closes at once whatever `body` holds open.
    pub fn bury(&self, body: impl Send + 'static) {
        self.buried.fetch_add(1, Ordering::Relaxed);
        // An error returns the body, which is then dropped here.
        let _ = self.dead.send(Box::new(body));
    }

    /// How many were given up so far.
    pub fn buried(&self) -> u64 {
        self.buried.load(Ordering::Relaxed)
    }
}

/// Runs `future` until it ends, `timeout` has passed or `give_up` is cancelled.
pub async fn run<T: Send + 'static>(
    future: Owned<T>,
    timeout: Option<Duration>,
    give_up: &CancellationToken,
    graveyard: &Graveyard,
) -> Ended<T> {
    let mut future = AssertUnwindSafe(future).catch_unwind();
    let limit = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        biased;
        result = &mut future => match result {
            Ok(value) => return Ended::Done(value),
            Err(panic) => {
                let text = panic
                    .downcast_ref::<&str>()
                    .map(|text| (*text).to_owned())
                    .or_else(|| panic.downcast_ref::<String>().cloned())
                    .unwrap_or_else(|| "the driver panicked".to_owned());
                Ended::Panicked(text)
            }
        },
        () = limit => Ended::TimedOut,
        () = give_up.cancelled() => Ended::GivenUp,
    };
    graveyard.bury(future);
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TellsOfItsDrop(mpsc::Sender<bool>);
    impl Drop for TellsOfItsDrop {
        fn drop(&mut self) {
            let in_runtime = tokio::runtime::Handle::try_current().is_ok();
            let _ = self.0.send(in_runtime);
        }
    }

    #[tokio::test]
    async fn what_is_given_up_dies_outside_the_runtime() {
        let graveyard = Graveyard::open().expect("a thread");
        let (told, hears) = mpsc::channel();
        let held = TellsOfItsDrop(told);
        let never: Owned<()> = Box::pin(async move {
            let _held = held;
            std::future::pending().await
        });
        let ended = run(
            never,
            Some(Duration::from_millis(1)),
            &CancellationToken::new(),
            &graveyard,
        )
        .await;
        assert!(matches!(ended, Ended::TimedOut));
        assert!(!hears.recv().expect("dropped"));
        assert_eq!(graveyard.buried(), 1);
    }

    #[tokio::test]
    async fn a_panic_is_caught() {
        let graveyard = Graveyard::open().expect("a thread");
        let bad: Owned<()> = Box::pin(async { panic!("index out of bounds") });
        match run(bad, None, &CancellationToken::new(), &graveyard).await {
            Ended::Panicked(text) => assert_eq!(text, "index out of bounds"),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn giving_up_ends_the_patient() {
        let graveyard = Graveyard::open().expect("a thread");
        let give_up = CancellationToken::new();
        give_up.cancel();
        let never: Owned<()> = Box::pin(std::future::pending());
        let ended = run(never, None, &give_up, &graveyard).await;
        assert!(matches!(ended, Ended::GivenUp));
    }
}
