//! Has the report of each run that is closed made, one at a time: no run's task
//! waits for it. A run that is closed again (its late data came) is reported again.
//!
//! By a process of its own, so that neither the memory nor the threads an analysis
//! takes, nor its end, are the server's; it asks for less of the processor than the
//! server gets.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::exit::Exit;

/// How a report is made.
pub type Make = Box<dyn Fn(&Path) -> anyhow::Result<()> + Send>;

/// Runs that may wait; a server that closes more at once leaves the oldest to
/// `report`.
const MOST: usize = 1_000;
/// How much less than a run's task it asks for.
const NICER: i32 = 10;

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<PathBuf>,
    is_over: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the thread when nobody can ask for reports any more.
#[derive(Debug)]
struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.changed.notify_all();
    }
}

/// Makes reports.
#[derive(Debug, Clone)]
pub struct Reporter(Arc<Owner>);

impl Reporter {
    /// Starts the thread; `make` makes the report of the run in a folder.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(make: Make) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let work = shared.clone();
        std::thread::Builder::new()
            .name("reports".to_owned())
            .spawn(move || {
                // Of this thread, and of what it starts. That it may not is no reason
                // to do without.
                let _ = rustix::process::nice(NICER);
                while let Some(folder) = next(&work) {
                    match catch_unwind(AssertUnwindSafe(|| make(&folder))) {
                        Ok(Ok(())) => tracing::info!("reported: {}", folder.display()),
                        Ok(Err(error)) => {
                            tracing::warn!("no report of `{}`: {error:#}", folder.display());
                        }
                        Err(_) => tracing::error!(
                            "no report of `{}`: the analysis failed",
                            folder.display()
                        ),
                    }
                }
            })?;
        Ok(Self(Arc::new(Owner(shared))))
    }

    /// A run's report is to be made. Waits for nothing.
    pub fn wanted(&self, folder: &Path) {
        let mut queue = self.0.0.lock();
        if !queue.waiting.iter().any(|waiting| waiting == folder) {
            if queue.waiting.len() >= MOST
                && let Some(left_out) = queue.waiting.pop_front()
            {
                tracing::warn!("no report of `{}`: too many wait", left_out.display());
            }
            queue.waiting.push_back(folder.to_owned());
        }
        drop(queue);
        self.0.0.changed.notify_all();
    }
}

/// Makes reports by this program itself, which is called by `words` and then its
/// subcommands.
pub fn by_itself(words: Vec<OsString>) -> Make {
    Box::new(move |folder| {
        // Not by its path: there may be a newer program by now, or none.
        let done = Command::new("/proc/self/exe")
            .args(&words)
            .arg("report")
            .arg(folder)
            .args(["--format", "json"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()?;
        // 4 is said of the run, not of the report.
        if done.status.success() || done.status.code() == Some(i32::from(Exit::DataLost.code())) {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&done.stderr);
        let newest = said.lines().rev().take(3).collect::<Vec<_>>();
        anyhow::bail!("{}: {}", done.status, newest.join(" / "))
    })
}

fn next(shared: &Shared) -> Option<PathBuf> {
    let mut queue = shared.lock();
    loop {
        if queue.is_over {
            return None;
        }
        if let Some(folder) = queue.waiting.pop_front() {
            return Some(folder);
        }
        queue = shared
            .changed
            .wait(queue)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn one_after_the_other_and_a_failure_does_not_end_it() {
        let (tell, told) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let reporter = Reporter::start(Box::new(move |folder| {
            tell.send(folder.to_owned())?;
            wait.recv()?;
            if folder.ends_with("broken") {
                panic!("an analysis that fails");
            }
            anyhow::bail!("not this one either")
        }))
        .expect("a thread");
        reporter.wanted(Path::new("broken"));
        assert_eq!(told.recv().expect("begun"), Path::new("broken"));
        // Asked for again while it is being made: made again. Twice while it waits: once.
        for folder in ["a", "broken", "a", "b"] {
            reporter.wanted(Path::new(folder));
        }
        for folder in ["a", "broken", "b"] {
            go.send(()).expect("the thread lives");
            assert_eq!(told.recv().expect("begun"), Path::new(folder));
        }
        reporter.wanted(Path::new("never"));
        drop(reporter);
        go.send(()).expect("it waits for this");
        assert!(told.recv().is_err(), "it ends without beginning another");
    }
}
