//! What labs have left on this host, and its removal.
//!
//! Method: every process that a lab starts carries a marker in its environment,
//! which programs pass on to what they start themselves: the lab's process id, when
//! that process began, and the lab's folder. The folder holds a note ([`Note`])
//! that says the same. A lab is alive while the process that its marker names runs
//! and began then; process ids are used again, beginnings are not.
//!
//! What has no marker or note is never touched. A process is signalled through a
//! handle that was opened before its marker was read, so that a number that was
//! taken over meanwhile hits nobody.
//!
//! What it cannot know: processes that have cleared their environment.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::exec::FOLDER_PREFIX;

/// The variable that marks processes of labs.
pub const MARKER: &str = "GAPSCOPE_LAB";
/// The note in a lab's folder.
pub const NOTE: &str = "lab.json";

/// Which lab.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The process that holds the lab.
    pub pid: i32,
    /// When that began, in the kernel's ticks since boot.
    pub began: u64,
    /// Where the lab is.
    pub folder: PathBuf,
}

impl Owner {
    /// This process, as the owner of `folder`.
    pub fn this(folder: &Path) -> Self {
        let pid = i32::try_from(std::process::id()).unwrap_or(0);
        Self {
            pid,
            began: began(pid).unwrap_or(0),
            folder: folder.to_owned(),
        }
    }

    /// Reads a marker's value.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        let pid = parts.next()?.parse().ok().filter(|pid| *pid > 0)?;
        let began = parts.next()?.parse().ok()?;
        let folder = PathBuf::from(parts.next()?);
        is_lab_folder(&folder).then_some(Self { pid, began, folder })
    }

    /// Whether the lab is still held.
    pub fn is_alive(&self) -> bool {
        began(self.pid) == Some(self.began)
    }

    /// What people call it: the end of its folder's name.
    pub fn name(&self) -> String {
        let name = self.folder.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        name.strip_prefix(FOLDER_PREFIX).unwrap_or(&name).to_owned()
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.pid, self.began, self.folder.display())
    }
}

/// What a lab's folder says of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Who holds it.
    #[serde(flatten)]
    pub owner: Owner,
    /// Brought up to stay (`up`), until `down`.
    #[serde(default)]
    pub stays: bool,
    /// What it is, for people.
    #[serde(default)]
    pub title: String,
}

impl Note {
    /// Writes it into its folder.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self) -> io::Result<()> {
        let text = serde_json::to_string(self).map_err(io::Error::other)?;
        fs::write(self.owner.folder.join(NOTE), text)
    }
}

/// Whether a path is one that labs make.
pub fn is_lab_folder(folder: &Path) -> bool {
    folder.is_absolute()
        && folder
            .file_name()
            .and_then(OsStr::to_str)
            .is_some_and(|name| name.starts_with(FOLDER_PREFIX))
}

/// When a process that runs began; none if it does not run (a zombie does not).
fn began(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; the state follows it.
    let mut fields = text.rsplit_once(") ")?.1.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The marker in a process's environment.
fn marked(pid: i32) -> Option<Owner> {
    marker_in(&environment(pid)?)
}

fn environment(pid: i32) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{pid}/environ")).ok()
}

fn marker_in(environment: &[u8]) -> Option<Owner> {
    environment.split(|byte| *byte == 0).find_map(|variable| {
        let value = variable
            .strip_prefix(MARKER.as_bytes())?
            .strip_prefix(b"=")?;
        Owner::parse(std::str::from_utf8(value).ok()?)
    })
}

/// Whether a process with an empty environment may be about to have one: the kernel
/// shows none while a program is being loaded, and its parent goes on before that is
/// over. Threads of the kernel, which have none for good, execute no file.
fn may_be_loading(pid: i32) -> bool {
    began(pid).is_some() && fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

/// How often, a millisecond apart, a process without an environment is looked at
/// again.
const LOOKS_AGAIN: u32 = 20;

/// Processes of labs on this host, by lab; those that this user may look at.
pub fn processes() -> BTreeMap<Owner, Vec<i32>> {
    let mut found: BTreeMap<Owner, Vec<i32>> = BTreeMap::new();
    let this = i32::try_from(std::process::id()).unwrap_or(0);
    let mut unclear: Vec<i32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != this && began(*pid).is_some())
        .collect();
    for look in 0..=LOOKS_AGAIN {
        unclear.retain(|pid| match environment(*pid) {
            Some(environment) if environment.is_empty() => may_be_loading(*pid),
            Some(environment) => {
                if let Some(owner) = marker_in(&environment) {
                    found.entry(owner).or_default().push(*pid);
                }
                false
            }
            None => false,
        });
        if unclear.is_empty() || look == LOOKS_AGAIN {
            break;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "a pause between two looks, which measures nothing; no runtime is there"
        )]
        std::thread::sleep(Duration::from_millis(1));
    }
    found
}

/// Kills every process of one lab, except this one. Returns how many there were.
pub fn kill_processes(owner: &Owner) -> usize {
    processes()
        .remove(owner)
        .unwrap_or_default()
        .into_iter()
        .filter(|pid| {
            signal_if(*pid, Signal::KILL, |pid| {
                marked(pid).as_ref() == Some(owner)
            })
        })
        .count()
}

/// Asks the process that holds a lab to take it down. Says whether it was there.
pub fn ask_to_end(owner: &Owner, signal: Signal) -> bool {
    signal_if(owner.pid, signal, |_| owner.is_alive())
}

fn signal_if(pid: i32, signal: Signal, is_it: impl Fn(i32) -> bool) -> bool {
    let Some(handle) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
    else {
        return false;
    };
    is_it(pid) && pidfd_send_signal(handle, signal).is_ok()
}

/// Whether a lab is this user's: its folder is, or where that is gone one of its
/// processes. Root's own ones run programs as other users, so that to root a lab
/// without a folder is nobody else's.
pub fn is_mine(owner: &Owner, processes: &[i32]) -> bool {
    let me = rustix::process::geteuid();
    match fs::symlink_metadata(&owner.folder) {
        Ok(meta) => meta.uid() == me.as_raw(),
        Err(_) => {
            me.is_root()
                || processes.iter().any(|pid| {
                    fs::metadata(format!("/proc/{pid}")).is_ok_and(|meta| meta.uid() == me.as_raw())
                })
        }
    }
}

/// The folders of labs below `parent` that are this user's, with their notes.
pub fn folders(parent: &Path) -> Vec<Note> {
    let me = rustix::process::geteuid();
    let mut notes = Vec::new();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        // Links could lead anywhere.
        let is_mine = fs::symlink_metadata(entry.path())
            .is_ok_and(|meta| meta.is_dir() && meta.uid() == me.as_raw());
        if !is_mine
            || !entry
                .file_name()
                .as_bytes()
                .starts_with(FOLDER_PREFIX.as_bytes())
        {
            continue;
        }
        let note = fs::read_to_string(entry.path().join(NOTE))
            .ok()
            .and_then(|text| serde_json::from_str::<Note>(&text).ok());
        if let Some(mut note) = note {
            // What it says of its own place is not believed.
            note.owner.folder = entry.path();
            notes.push(note);
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn markers_are_read_back_and_others_are_not_taken_for_them() {
        let owner = Owner {
            pid: 7,
            began: 42,
            folder: PathBuf::from("/tmp/gapscope-lab-a:b"),
        };
        assert_eq!(Owner::parse(&owner.to_string()), Some(owner.clone()));
        assert_eq!(owner.name(), "a:b");
        for text in [
            "",
            "7",
            "7:42",
            "7:42:/tmp/other",
            "0:1:/tmp/gapscope-lab-x",
            "7:42:gapscope-lab-x",
        ] {
            assert_eq!(Owner::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_lab_is_alive_as_long_as_its_own_process() {
        let this = Owner::this(Path::new("/tmp/gapscope-lab-x"));
        assert!(this.is_alive());
        let earlier = Owner {
            began: this.began - 1,
            ..this
        };
        assert!(!earlier.is_alive(), "the number alone proves nothing");
    }

    #[test]
    fn only_processes_with_the_very_marker_are_killed() {
        let folder = tempfile::tempdir().expect("a folder");
        let mine = Owner::this(&folder.path().join("gapscope-lab-mine"));
        let other = Owner::this(&folder.path().join("gapscope-lab-other"));
        let start = |owner: &Owner| {
            Command::new("sleep")
                .arg("60")
                .env(MARKER, owner.to_string())
                .stdin(Stdio::null())
                .spawn()
                .expect("started")
        };
        let (mut a, mut b) = (start(&mine), start(&other));
        assert_eq!(kill_processes(&mine), 1);
        let status = a.wait().expect("waited for");
        assert!(!status.success());
        assert!(b.try_wait().expect("asked").is_none(), "another lab's");
        assert_eq!(kill_processes(&mine), 0);
        b.kill().expect("killed");
        b.wait().expect("waited for");
    }

    #[test]
    fn a_process_that_has_just_been_started_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let owner = Owner::this(&folder.path().join("gapscope-lab-new"));
        for _ in 0..50 {
            let mut child = Command::new("sleep")
                .arg("60")
                .env(MARKER, owner.to_string())
                .stdin(Stdio::null())
                .spawn()
                .expect("started");
            let killed = kill_processes(&owner);
            if killed != 1 {
                child.kill().expect("killed");
            }
            child.wait().expect("waited for");
            assert_eq!(killed, 1);
        }
    }

    #[test]
    fn folders_without_a_note_are_not_labs() {
        let parent = tempfile::tempdir().expect("a folder");
        let lab = parent.path().join("gapscope-lab-one");
        fs::create_dir(&lab).expect("made");
        fs::create_dir(parent.path().join("gapscope-lab-two")).expect("made");
        fs::create_dir(parent.path().join("other")).expect("made");
        let note = Note {
            owner: Owner::this(&lab),
            stays: true,
            title: "t".to_owned(),
        };
        note.write().expect("written");
        assert_eq!(folders(parent.path()), [note]);
    }
}
