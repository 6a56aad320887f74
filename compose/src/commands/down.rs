//! `down`: takes down labs that were brought up to stay, and clears what labs left
//! that were killed: this user's, in this temporary folder; with `--all` wherever
//! they are. A lab whose run is going on is not touched, nor anybody else's.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::error::{Problem, Result};
use crate::leftovers::{self, Note, Owner};
use crate::runtime::docker::engine;
use crate::runtime::process::net;

/// How long a lab may take to take itself down.
const GRACE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Carries out `gapscope-lab down`; what it did, for people.
pub async fn down(name: Option<&str>, all: bool) -> Result<String> {
    let parent = std::env::temp_dir();
    let mut labs = leftovers::folders(&parent);
    // Labs whose folder is gone; and those that are somewhere else, if all are meant:
    // whoever chose another temporary folder for theirs wanted them apart.
    for (owner, processes) in leftovers::processes() {
        let is_here = owner.folder.parent() == Some(parent.as_path());
        let is_known = labs.iter().any(|lab| same(&lab.owner, &owner));
        if !is_known && (all || is_here) && leftovers::is_mine(&owner, &processes) {
            labs.push(Note {
                owner,
                stays: false,
                title: String::new(),
            });
        }
    }
    if let Some(name) = name {
        labs.retain(|lab| lab.owner.name() == name);
        if labs.is_empty() {
            return Err(Problem::usage(format!(
                "there is no lab called `{name}` in {}",
                parent.display()
            ))
            .hint("`gapscope-lab down` without a name lists the labs that are there"));
        }
    }
    if labs.is_empty() {
        return Ok(format!(
            "no labs and nothing left of any in {}\n",
            parent.display()
        ));
    }
    let mut out = String::new();
    let mut left = Vec::new();
    for lab in labs {
        let owner = &lab.owner;
        let alive = owner.is_alive();
        let what = match (alive, lab.stays) {
            (true, true) => format!("{} is up, {}", owner.name(), lab.title),
            (true, false) => format!("{} is running (process {})", owner.name(), owner.pid),
            (false, _) => format!("{} is left of a lab that was killed", owner.name()),
        };
        if name.is_none() && !all {
            writeln!(out, "{what}").expect("a String takes everything");
            continue;
        }
        if alive && !lab.stays {
            writeln!(
                out,
                "{what}: not touched; end its run with Ctrl-C or `kill {}`",
                owner.pid
            )
            .expect("a String takes everything");
            continue;
        }
        match clear(&lab, alive).await {
            Ok(done) => writeln!(out, "{what}: {done}").expect("a String takes everything"),
            Err(why) => left.push(format!("{}: {why}", owner.name())),
        }
    }
    if name.is_none() && !all {
        out.push_str("`gapscope-lab down NAME` takes one down, `down --all` all of them and clears what is left\n");
    }
    if left.is_empty() {
        Ok(out)
    } else {
        Err(Problem::new(format!(
            "{out}not everything could be cleared: {}",
            left.join("; ")
        )))
    }
}

fn same(a: &Owner, b: &Owner) -> bool {
    a.pid == b.pid && a.began == b.began
}

async fn clear(lab: &Note, alive: bool) -> std::result::Result<String, String> {
    let owner = &lab.owner;
    if alive {
        leftovers::ask_to_end(owner, Signal::TERM);
        if !within(GRACE, || !owner.is_alive()).await {
            leftovers::ask_to_end(owner, Signal::KILL);
        }
    }
    let killed = leftovers::kill_processes(owner);
    let namespaces = net::remove_all(owner);
    let containers = if owner.folder.join("docker").exists() {
        engine::remove_all(owner)
    } else {
        0
    };
    let folder: PathBuf = owner.folder.clone();
    let removed = within(Duration::from_secs(10), || remove(&folder)).await;
    if !removed {
        return Err(format!("{} cannot be removed", folder.display()));
    }
    let still = leftovers::processes().get(owner).map_or(0, Vec::len);
    if still > 0 {
        return Err(format!("{still} processes do not end"));
    }
    if containers > 0 {
        return Ok(format!(
            "cleared: {killed} processes killed, {containers} containers and folder removed"
        ));
    }
    Ok(match (alive, killed) {
        (true, 0) => "taken down".to_owned(),
        (true, n) => format!("taken down, {n} processes killed"),
        (false, n) if namespaces > 0 => {
            format!("cleared: {n} processes killed, {namespaces} namespaces and folder removed")
        }
        (false, n) => format!("cleared: {n} processes killed, folder removed"),
    })
}

fn remove(folder: &Path) -> bool {
    // Whoever changed the name has changed what it means.
    if !leftovers::is_lab_folder(folder) {
        return false;
    }
    match std::fs::remove_dir_all(folder) {
        Ok(()) => true,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

async fn within(at_most: Duration, mut done: impl FnMut() -> bool) -> bool {
    let waiting = async {
        while !done() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(at_most, waiting).await.is_ok()
}
