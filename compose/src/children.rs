//! Processes of the lab's own, which never outlive it.
//!
//! Each child is in a process group of its own (a Ctrl-C at the terminal is the
//! lab's to handle), is killed by the kernel when the lab dies, and is killed and
//! waited for when its [`Child`] is dropped. It is always waited for: a zombie
//! looks alive to whoever asks by signal.
//!
//! The kernel watches the *thread* that started a child, so children must be
//! started from a thread that lives as long as they do: the one that drives the
//! lab's main future, never a task on a pool of threads.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gapscope_proto::clock::Clock;
use rustix::process::{Pid, Signal};

use crate::exec::EXEC;
use crate::leftovers::{MARKER, Owner};

/// How to start this very program again.
#[derive(Debug, Clone)]
pub struct Itself {
    file: PathBuf,
    /// The lab that what is started belongs to.
    owner: Option<Owner>,
}

impl Itself {
    /// This program's own file.
    pub fn find() -> io::Result<Self> {
        std::env::current_exe().map(Self::at)
    }

    /// A given file, for tests, whose own file is another one.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            file: path.into(),
            owner: None,
        }
    }

    /// The same, but what it starts carries the marker of a lab.
    #[must_use]
    pub fn of_lab(&self, owner: &Owner) -> Self {
        Self {
            owner: Some(owner.clone()),
            ..self.clone()
        }
    }

    /// A command that runs it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        if let Some(owner) = &self.owner {
            command.env(MARKER, owner.to_string());
        }
        command
    }

    /// A command that runs another program through the wrapper.
    pub fn wrapped(
        &self,
        user: Option<&str>,
        namespace: Option<&Path>,
        program: &Path,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Command {
        let mut command = self.command();
        command.arg(EXEC);
        if let Some(user) = user {
            command.args(["--user", user]);
        }
        if let Some(namespace) = namespace {
            command.arg("--netns").arg(namespace);
        }
        command
            .arg("--parent")
            .arg(std::process::id().to_string())
            .arg("--")
            .arg(program);
        for arg in args {
            command.arg(arg);
        }
        command
    }
}

/// A process that is killed and waited for when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct Child {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    pid: Pid,
    process: Mutex<std::process::Child>,
    /// It has been waited for: its number may be somebody else's. Changed under the
    /// lock only.
    waited_for: AtomicBool,
    log: Option<PathBuf>,
}

impl Child {
    /// Starts `command` with no input; its output goes to the file `log`. See the
    /// module's description for the thread this may be called on.
    pub fn start(name: &str, mut command: Command, log: &Path) -> io::Result<Self> {
        let out = File::options().create(true).append(true).open(log)?;
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out);
        Self::start_as_is(name, command, Some(log.to_owned()))
    }

    /// Starts `command` with the streams it has.
    pub fn start_as_is(name: &str, mut command: Command, log: Option<PathBuf>) -> io::Result<Self> {
        let process = command.process_group(0).spawn()?;
        let pid = i32::try_from(process.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("the system gave an impossible process id"))?;
        Ok(Self {
            inner: Arc::new(Inner {
                name: name.to_owned(),
                pid,
                process: Mutex::new(process),
                waited_for: AtomicBool::new(false),
                log,
            }),
        })
    }

    /// What it is called in messages.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.inner.pid.as_raw_nonzero().get()
    }

    /// Whether it has ended, and how. Waits for nothing.
    pub fn ended(&self) -> io::Result<Option<ExitStatus>> {
        self.inner.try_wait(&mut self.inner.process())
    }

    /// Sends a signal, unless it has ended and been waited for: its number may
    /// then be somebody else's. Says whether it was sent.
    pub fn signal(&self, signal: Signal) -> io::Result<bool> {
        let mut process = self.inner.process();
        // Under the lock nobody else can wait for it meanwhile, so it is at most a
        // zombie, whose number is still its own.
        if self.inner.try_wait(&mut process)?.is_some() {
            return Ok(false);
        }
        rustix::process::kill_process(self.inner.pid, signal)?;
        Ok(true)
    }

    /// Waits until it has ended, at most this long. Says whether it has.
    pub async fn wait(&self, at_most: Duration) -> bool {
        let ended = async {
            while !matches!(self.ended(), Ok(Some(_)) | Err(_)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(at_most, ended).await.is_ok()
    }

    /// Asks it to end, then ends it: SIGTERM, and after `grace` SIGKILL. Waited
    /// for when this returns.
    pub async fn end(&self, grace: Duration) {
        // An error means that it cannot be asked; the kill follows.
        let asked = self.signal(Signal::TERM).unwrap_or(false);
        if asked && !grace.is_zero() && self.wait(grace).await {
            return;
        }
        self.inner.kill();
    }

    /// The end of its log, for messages.
    pub fn log_tail(&self, lines: usize) -> String {
        self.inner
            .log
            .as_deref()
            .map(|log| tail(log, lines))
            .unwrap_or_default()
    }
}

impl Inner {
    fn process(&self) -> std::sync::MutexGuard<'_, std::process::Child> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_wait(&self, process: &mut std::process::Child) -> io::Result<Option<ExitStatus>> {
        let ended = process.try_wait()?;
        if ended.is_some() {
            self.waited_for.store(true, Ordering::Relaxed);
        }
        Ok(ended)
    }

    /// Kills it with what it has started, and waits. Nothing survives SIGKILL, so
    /// the wait is short.
    fn kill(&self) {
        let mut process = self.process();
        // Until it has been waited for, its number, which is its group's, is its
        // own, also where it has just ended: what it started is in the group too, and
        // need not have.
        if !self.waited_for.swap(true, Ordering::Relaxed) {
            // An error means that there is nobody left.
            let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        }
        // An error means that it has ended.
        let _ = process.kill();
        let _ = process.wait();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits, for some seconds, until the kernel shows a process as stopped; tells how
/// that went.
pub async fn frozen(clock: &dyn Clock, pid: i32, asked_ns: i64) -> String {
    for _ in 0..1_000 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name, in parentheses, may hold anything; the state follows it.
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        if state == Some('T') {
            let after = clock.raw_ns().saturating_sub(asked_ns);
            return format!("seen stopped within {:.1} ms", after as f64 / 1e6);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    "was not seen stopped".to_owned()
}

/// The last lines of a file; empty if it cannot be read.
pub fn tail(path: &Path, lines: usize) -> String {
    let Ok(bytes) = std::fs::read(path) else {
        return String::new();
    };
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Starts the janitor of a lab. The returned handle keeps it waiting; it acts
/// when the handle is closed, or when this process is gone.
pub fn janitor(itself: &Itself, owner: &Owner) -> io::Result<Janitor> {
    let mut command = itself.command();
    command
        .arg(crate::exec::JANITOR)
        .arg(owner.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    command.spawn().map(|process| Janitor { process })
}

/// See [`janitor`].
#[derive(Debug)]
pub struct Janitor {
    process: std::process::Child,
}

impl Drop for Janitor {
    fn drop(&mut self) {
        // Closing its input makes it act; waiting leaves no zombie.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_child_has_started_ends_with_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let mut command = Command::new("sh");
        // The grandchild holds the pipe open.
        command.args(["-c", "sleep 60 & echo up; wait"]);
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let out = File::create(&log).expect("made");
        command.stdin(Stdio::null()).stdout(writer).stderr(out);
        let child = Child::start_as_is("sh", command, Some(log)).expect("started");
        let mut up = [0; 3];
        std::io::Read::read_exact(&mut reader, &mut up).expect("it says so");
        child.end(Duration::ZERO).await;
        let ended = tokio::task::spawn_blocking(move || {
            let mut rest = Vec::new();
            std::io::Read::read_to_end(&mut { reader }, &mut rest)
        });
        tokio::time::timeout(Duration::from_secs(20), ended)
            .await
            .expect("nobody holds the pipe any more")
            .expect("no panic")
            .expect("read");
    }
}
