//! Spools that agents left: taken in, and their runs reported on anew.

use std::path::{Path, PathBuf};

use gapscope_proto::clock::{Clock, SystemClock};

use crate::commands::report;
use crate::exit::Exit;
use crate::import::spool::{self, Spool, SpoolError};
use crate::import::take_in::{Now, TakeInError, take_in};
use crate::ingest::ending::since_planned_end;
use crate::output::{self, hinted};
use crate::store::RunFolder;
use crate::store::lock::DataLock;
use crate::store::manifest::RunState;
use crate::utc;

/// Takes in the spools in `folders`; says whether anything is lost of them.
pub(super) fn import(folders: &[PathBuf], data: &Path) -> anyhow::Result<Exit> {
    let _lock = DataLock::take(data)?;
    let mut exit = Exit::Ok;
    for path in folders {
        let found = spool::find(path);
        if found.is_empty() {
            return Err(hinted(
                format!("there is no spool in `{}`", path.display()),
                "give an agent's --data folder, or the folder DATA/spool/ID in it",
            ));
        }
        for folder in found {
            if one(&folder, data)? == Exit::DataLost {
                exit = Exit::DataLost;
            }
        }
    }
    Ok(exit)
}

/// Takes in one agent's spool and reports on its runs anew; says whether anything
/// is lost of them.
fn one(folder: &Path, data: &Path) -> anyhow::Result<Exit> {
    let spool = Spool::open(folder).map_err(|error| match &error {
        SpoolError::InUse(_) => hinted(
            &error,
            "let the agent deliver it, or stop the agent and import again",
        ),
        SpoolError::NoAgent(_) => hinted(&error, "a spool's folder has the name of its agent"),
        _ => error.into(),
    })?;
    if spool.damaged_bytes > 0 {
        output::note(format!(
            "warning: {} bytes in `{}` are no sound frames; what is missing is declared lost",
            spool.damaged_bytes,
            folder.display()
        ));
    }
    if spool.is_state_damaged {
        output::note(format!(
            "warning: the state of the spool `{}` is damaged; losses that were declared there \
             are not known",
            folder.display()
        ));
    }
    let runs = spool.run_ids();
    if runs.is_empty() {
        output::note(format!("the spool of agent `{}` is empty", spool.agent));
    }
    let clock = SystemClock::new();
    let now = Now {
        utc: utc::rfc3339(clock.anchor().realtime_ns),
        is_over: |manifest| {
            let clock = SystemClock::new();
            since_planned_end(manifest, &clock.key(), &clock.anchor()) > 0
        },
    };
    let mut exit = Exit::Ok;
    for run in runs {
        let taken = take_in(&spool, run, data, &now).map_err(|error| match &error {
            TakeInError::NoPlan { .. } => hinted(
                &error,
                "import into the --data folder of the aggregator that started the run",
            ),
            _ => error.into(),
        })?;
        output::note(format!(
            "agent `{}`: {} samples and {} host records taken in, {} records were here already, \
             {} lost",
            spool.agent, taken.samples, taken.host, taken.known, taken.lost
        ));
        if !taken.is_something() {
            continue;
        }
        output::data(run);
        if taken.state == RunState::Running {
            output::note("the run's planned end is not past: it stays open");
            continue;
        }
        let reported = report::make(&RunFolder::open(&taken.folder)?)?;
        output::note(format!(
            "reported anew: gapscope-aggregator report {run} --data {}",
            data.display()
        ));
        if taken.lost > 0 || !reported.analysis.conservation.is_balanced {
            exit = Exit::DataLost;
        }
    }
    Ok(exit)
}
