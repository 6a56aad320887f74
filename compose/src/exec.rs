//! What the lab runs between itself and the programs it starts: `__exec` makes a
//! process that cannot outlive the lab and has no more rights than it needs, then
//! becomes the program; `__janitor` removes the lab's temporary folder when the
//! lab is gone, however it went.
//!
//! Both run before any thread is started, so that changing the rights of "this
//! thread" changes those of the process.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::process::{Gid, Pid, Signal, Uid};

use crate::leftovers::{self, Owner};

/// The word that starts the wrapper.
pub const EXEC: &str = "__exec";
/// The word that starts the janitor.
pub const JANITOR: &str = "__janitor";
/// The word that starts a dead man's timer.
pub const DEADMAN: &str = "__deadman";
/// What a lab's temporary folder is called; the janitor touches no other.
pub const FOLDER_PREFIX: &str = "gapscope-lab-";

/// A user of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Its primary group.
    pub gid: u32,
}

/// Looks a user up in the text of a passwd file.
pub fn user_in(passwd: &str, name: &str) -> Option<User> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        Some(User {
            name: name.to_owned(),
            uid: fields.nth(1)?.parse().ok()?,
            gid: fields.next()?.parse().ok()?,
        })
    })
}

/// Looks a user up on this host.
pub fn user(name: &str) -> Option<User> {
    user_in(&std::fs::read_to_string("/etc/passwd").ok()?, name)
}

/// `__exec [--user NAME] [--netns FILE] --parent PID -- PROGRAM ARGS...`
pub fn exec(args: impl Iterator<Item = OsString>) -> ExitCode {
    let why = become_program(args);
    complain(&why);
    // What shells say of a program that cannot be run.
    ExitCode::from(126)
}

/// Into the program's own log.
fn complain(why: &str) {
    eprintln!("error: {why}");
}

/// Returns only if it failed.
fn become_program(mut args: impl Iterator<Item = OsString>) -> String {
    let mut name = None;
    let mut parent = None;
    let mut namespace = None;
    loop {
        match args.next().as_deref().and_then(std::ffi::OsStr::to_str) {
            Some("--user") => name = args.next(),
            Some("--netns") => namespace = args.next(),
            Some("--parent") => parent = args.next(),
            Some("--") => break,
            other => return format!("{EXEC}: unexpected argument {other:?}"),
        }
    }
    let Some(program) = args.next() else {
        return format!("{EXEC}: no program");
    };
    if let Some(file) = namespace
        && let Err(why) = enter(Path::new(&file))
    {
        return format!(
            "cannot enter network namespace {}: {why}",
            Path::new(&file).display()
        );
    }
    if let Some(name) = name {
        let name = name.to_string_lossy().into_owned();
        if let Err(why) = drop_rights(&name) {
            return format!("cannot become user `{name}`: {why}");
        }
    }
    // After the change of user, which clears it.
    if let Err(why) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return format!("cannot tie the program's life to the lab's: {why}");
    }
    // The lab may have ended before that was in force.
    let now = rustix::process::getppid().map(Pid::as_raw_nonzero);
    let expected = parent.and_then(|pid| pid.to_str()?.parse::<i32>().ok());
    if now.map(std::num::NonZero::get) != expected {
        return "the lab that started this has ended".to_owned();
    }
    let why = Command::new(&program).args(args).exec();
    format!("cannot run `{}`: {why}", Path::new(&program).display())
}

fn enter(namespace: &Path) -> std::io::Result<()> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    let file = std::fs::File::open(namespace)?;
    move_into_link_name_space(
        std::os::fd::AsFd::as_fd(&file),
        Some(LinkNameSpaceType::Network),
    )?;
    Ok(())
}

fn drop_rights(name: &str) -> Result<(), String> {
    let user = user(name).ok_or("there is no such user")?;
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    rustix::thread::set_thread_groups(&[gid]).map_err(|e| e.to_string())?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(|e| e.to_string())?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(|e| e.to_string())
}

/// How long what a lab started may take to end by itself when the lab is gone: the
/// agent and the aggregator save what they hold.
const ENDS_BY_ITSELF: u32 = 100;

/// `__janitor OWNER`: waits until standard input ends, which is when the lab
/// has, then ends what is left of it and removes its folder.
pub fn janitor(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(owner) = args.next().and_then(|text| Owner::parse(text.to_str()?)) else {
        return ExitCode::from(2);
    };
    let mut nothing = [0u8; 16];
    let mut input = std::io::stdin().lock();
    while matches!(input.read(&mut nothing), Ok(read) if read > 0) {}
    // Nothing of a lab that ended in an orderly way is left.
    for _ in 0..ENDS_BY_ITSELF {
        if !leftovers::processes().contains_key(&owner) {
            break;
        }
        pause();
    }
    leftovers::kill_processes(&owner);
    crate::runtime::process::net::remove_all(&owner);
    if owner.folder.join("docker").exists() {
        crate::runtime::docker::engine::remove_all(&owner);
    }
    // What was killed may take its time to go, and write while it does.
    for _ in 0..50 {
        match std::fs::remove_dir_all(&owner.folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {}
            _ => return ExitCode::SUCCESS,
        }
        pause();
    }
    ExitCode::FAILURE
}

/// `__deadman SECONDS -- COMMAND...`: runs the command when standard input ends or
/// the seconds have passed, whichever comes first; does nothing if it is told `d`
/// (done) before. It is a process of its own that nothing of the lab's ends.
pub fn deadman(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let seconds = args
        .next()
        .and_then(|text| text.to_str()?.parse::<u64>().ok());
    let (Some(seconds), Some("--")) = (seconds, args.next().as_deref().and_then(|w| w.to_str()))
    else {
        return ExitCode::from(2);
    };
    let Some(program) = args.next() else {
        return ExitCode::from(2);
    };
    let (telling, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut word = [0u8; 1];
        let is_done = matches!(std::io::stdin().lock().read(&mut word), Ok(1) if word == *b"d");
        // An error means that the time was over.
        let _ = telling.send(is_done);
    });
    match told.recv_timeout(std::time::Duration::from_secs(seconds)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) | Err(_) => {
            let done = Command::new(&program)
                .args(args)
                .stdin(std::process::Stdio::null())
                .status();
            match done {
                Ok(status) if status.success() => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn pause() {
    let pause = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    // Cut short by a signal it is only tried again sooner.
    let _ = rustix::thread::nanosleep(&pause);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
                          mysql:x:102:105:MySQL Server,,,:/nonexistent:/bin/false\n\
                          broken:x\n";

    #[test]
    fn users_are_found_by_their_whole_name() {
        assert_eq!(
            user_in(PASSWD, "mysql"),
            Some(User {
                name: "mysql".to_owned(),
                uid: 102,
                gid: 105
            })
        );
        assert_eq!(user_in(PASSWD, "mysq"), None);
        assert_eq!(user_in(PASSWD, "broken"), None);
    }

    #[test]
    fn the_janitor_touches_lab_folders_only() {
        let other = tempfile::tempdir().expect("a folder");
        let owner = format!("1:1:{}", other.path().display());
        let refused = janitor([OsString::from(owner)].into_iter());
        assert_eq!(refused, ExitCode::from(2));
        assert!(other.path().exists());
    }
}
