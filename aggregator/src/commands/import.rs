//! The subcommand `import`: takes in what agents left in their spools, and turns
//! what other programs measured into runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::host::{Anchor, HostRecord};
use gapscope_proto::ids::{Incarnation, RunId};
use gapscope_proto::small_file;

use super::report;
use crate::exit::Exit;
use crate::import::lab08::{self, GivenFault, Imported};
use crate::import::spool::{self, Spool, SpoolError};
use crate::import::take_in::{Now, TakeInError, take_in};
use crate::ingest::ending::since_planned_end;
use crate::output;
use crate::store::disk::Disk;
use crate::store::lock::DataLock;
use crate::store::manifest::{
    AgentEntry, FORMAT_VERSION, IncarnationEntry, Manifest, RunState, Schedule,
};
use crate::store::{RunFolder, RunStore};
use crate::utc;

/// What kind of data it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// An agent's spool: a folder.
    Spool,
    /// The published samples of lab-08: a file.
    Lab08,
}

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What kind of data it is; by itself a folder is a spool, a file lab08.
    #[arg(long)]
    format: Option<Format>,
    /// What was done during a lab08 run: `stop@10s=BACKEND`, counted from the
    /// first probe's begin; may be given several times.
    #[arg(long = "fault", value_name = "STEP@AFTER=BACKEND")]
    faults: Vec<GivenFault>,
    /// Spools (an agent's `DATA/spool/ID`, or its DATA), or files of which each
    /// becomes a run.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Where runs are kept.
    #[arg(long, default_value = "./runs", value_name = "DIR")]
    data: PathBuf,
}

/// Carries it out: prints the id of each run that gained something.
///
/// # Errors
/// When something cannot be read or is not of the format, or a run cannot be
/// written.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    let mut exit = Exit::Ok;
    let is_spool = |path: &PathBuf| match args.format {
        Some(format) => format == Format::Spool,
        None => path.is_dir(),
    };
    let (spools, files): (Vec<_>, Vec<_>) = args.paths.into_iter().partition(is_spool);
    if !spools.is_empty() && !args.faults.is_empty() {
        output::error(&output::hinted(
            "--fault is for lab08 files: a spool says nothing about faults",
            "leave it out, or import the file by itself",
        ));
        return Ok(Exit::Usage);
    }
    for file in &files {
        let run_id = RunId::generate();
        let folder = import_lab08(file, run_id, &args.faults, &args.data)?;
        output::note(format!(
            "imported {} into {}",
            file.display(),
            folder.display()
        ));
        output::data(run_id);
    }
    if !spools.is_empty() {
        let _lock = DataLock::take(&args.data)?;
        for path in &spools {
            let found = spool::find(path);
            if found.is_empty() {
                return Err(output::hinted(
                    format!("there is no spool in `{}`", path.display()),
                    "give an agent's --data folder, or the folder DATA/spool/ID in it",
                ));
            }
            for folder in found {
                if import_spool(&folder, &args.data)? == Exit::DataLost {
                    exit = Exit::DataLost;
                }
            }
        }
    }
    Ok(exit)
}

/// Takes in one agent's spool and reports on its runs anew; says whether anything
/// is lost of them.
fn import_spool(folder: &Path, data: &Path) -> anyhow::Result<Exit> {
    let spool = Spool::open(folder).map_err(|error| match &error {
        SpoolError::InUse(_) => output::hinted(
            &error,
            "let the agent deliver it, or stop the agent and import again",
        ),
        SpoolError::NoAgent(_) => {
            output::hinted(&error, "a spool's folder has the name of its agent")
        }
        _ => error.into(),
    })?;
    if spool.damaged_bytes > 0 {
        output::note(format!(
            "warning: {} bytes in `{}` are no sound frames; what is missing is declared lost",
            spool.damaged_bytes,
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
            TakeInError::NoPlan { .. } => output::hinted(
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

/// Longest recording that is read; it is held in memory.
const RECORDING_MOST: u64 = 1 << 30;

/// Makes a run of one lab-08 file; returns its folder.
///
/// # Errors
/// As [`run`].
pub fn import_lab08(
    file: &Path,
    run_id: RunId,
    faults: &[GivenFault],
    data: &Path,
) -> anyhow::Result<PathBuf> {
    let text = small_file::read_text(file, RECORDING_MOST)
        .map_err(|error| anyhow::anyhow!("cannot read `{}`: {error}", file.display()))?;
    let scenario = file
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default();
    let run = lab08::import(&text, run_id, &scenario, faults)
        .map_err(|error| anyhow::anyhow!("cannot import `{}`: {error}", file.display()))?;
    for fault in faults {
        let seen = run
            .samples
            .iter()
            .any(|s| s.backend.as_deref() == Some(fault.backend.as_str()));
        if !seen {
            output::note(format!(
                "warning: no probe in `{}` was answered by `{}`: the fault will have exposed \
                 nobody",
                file.display(),
                fault.backend
            ));
        }
    }
    std::fs::create_dir_all(data)
        .map_err(|error| anyhow::anyhow!("cannot make `{}`: {error}", data.display()))?;
    let incarnation = Incarnation::generate();
    let mut store = RunStore::create(data, manifest(&run, incarnation, file), Disk::default())?;
    let Imported {
        agent,
        started,
        ended,
        samples,
        faults,
        ..
    } = run;
    let host = [HostRecord::Started(started), HostRecord::Ended(ended)];
    store.append_host(&agent, incarnation, host);
    store.append_samples(&agent, incarnation, samples);
    for fault in faults {
        store.record_fault(fault)?;
    }
    let closed = utc::rfc3339(SystemClock::new().anchor().realtime_ns);
    store.close(|manifest| {
        manifest.state = RunState::Closed;
        manifest.closed_utc = Some(closed);
        manifest.end_reason = Some("imported".to_owned());
    })?;
    Ok(store.folder().to_owned())
}

fn manifest(run: &Imported, incarnation: Incarnation, file: &Path) -> Manifest {
    let at = run.began_realtime_ns;
    Manifest {
        format_version: FORMAT_VERSION,
        run_id: run.plan.run_id,
        state: RunState::Running,
        created_utc: utc::rfc3339(at),
        closed_utc: None,
        end_reason: None,
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
        host: run.host.clone(),
        clock: run.clock.clone(),
        anchors: vec![Anchor {
            raw_before_ns: at,
            raw_after_ns: at,
            monotonic_ns: at,
            boottime_ns: at,
            realtime_ns: at,
            timer_late_ns: 0,
        }],
        plan: run.plan.clone(),
        schedule: Schedule::Reconstructed,
        subjects: Vec::new(),
        labels: BTreeMap::from([
            ("imported_format".to_owned(), "lab08".to_owned()),
            (
                "imported_from".to_owned(),
                file.file_name()
                    .map(|name| name.to_string_lossy().into_owned())
                    .unwrap_or_default(),
            ),
        ]),
        agents: vec![AgentEntry {
            agent_id: run.agent.clone(),
            program_version: "imported".to_owned(),
            host: run.host.clone(),
            targets: run.targets.clone(),
            incarnations: vec![IncarnationEntry {
                incarnation,
                clock: run.clock.clone(),
                started: None,
                ended: None,
                samples_announced: 0,
                samples_committed: 0,
                host_committed: 0,
            }],
        }],
        caveats: run.caveats.clone(),
    }
}
