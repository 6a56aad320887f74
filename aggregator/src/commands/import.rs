//! The subcommand `import`: takes in what agents left in their spools, and turns
//! what other programs measured into runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::host::{Anchor, HostFacts, HostRecord};
use gapscope_proto::ids::{Incarnation, RunId};
use gapscope_proto::small_file;

use crate::exit::Exit;
use crate::import::lab08::{self, GivenFault, Imported};
use crate::output::{self, hinted};
use crate::overhead::store::Writer;
use crate::overhead::{published, record};
use crate::store::RunStore;
use crate::store::disk::Disk;
use crate::store::manifest::{
    AgentEntry, FORMAT_VERSION, IncarnationEntry, Manifest, RunState, Schedule,
};
use crate::utc;

mod spools;

/// What kind of data it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// An agent's spool: a folder.
    Spool,
    /// The published samples of lab-08: a file.
    Lab08,
    /// Totals as a study prints them: rows `version / clients`, columns targets,
    /// the first of which is the server alone.
    OverheadTable,
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
    /// How many statements each total of an overhead table is of.
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    statements: u64,
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
    let (folders, files): (Vec<_>, Vec<_>) =
        args.paths.into_iter().partition(|path| match args.format {
            Some(format) => format == Format::Spool,
            None => path.is_dir(),
        });
    if !folders.is_empty() && !args.faults.is_empty() {
        output::error(&hinted(
            "--fault is for lab08 files: a spool says nothing about faults",
            "leave it out, or import the file by itself",
        ));
        return Ok(Exit::Usage);
    }
    for file in &files {
        let run_id = RunId::generate();
        let folder = match args.format {
            Some(Format::OverheadTable) => {
                import_table(file, run_id, args.statements, &args.faults, &args.data)?
            }
            _ => import_lab08(file, run_id, &args.faults, &args.data)?,
        };
        output::note(format!(
            "imported {} into {}",
            file.display(),
            folder.display()
        ));
        output::data(run_id);
    }
    if folders.is_empty() {
        return Ok(Exit::Ok);
    }
    spools::import(&folders, &args.data)
}

/// Makes a benchmark's folder of a published table; returns it.
fn import_table(
    file: &Path,
    run_id: RunId,
    statements: u64,
    faults: &[GivenFault],
    data: &Path,
) -> anyhow::Result<PathBuf> {
    if !faults.is_empty() {
        anyhow::bail!("a table of totals has no faults: leave --fault out");
    }
    let text = small_file::read_text(file, small_file::BY_HAND)
        .map_err(|error| anyhow::anyhow!("cannot read {}: {error}", file.display()))?;
    let published = published::parse(&text, statements).map_err(|why| {
        hinted(
            format!("{} is no table of totals: {why}", file.display()),
            "the first line names the columns: `version / clients, SERVER, TARGET ...`",
        )
    })?;
    let now = SystemClock::new().anchor().realtime_ns;
    let mut clients: Vec<u32> = published.blocks.iter().map(|b| b.clients).collect();
    clients.sort_unstable();
    clients.dedup();
    let manifest = record::Manifest {
        format_version: record::FORMAT_VERSION,
        kind: record::KIND.to_owned(),
        run_id,
        state: RunState::Running,
        created_utc: utc::rfc3339(now),
        closed_utc: None,
        end_reason: None,
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
        host: HostFacts::default(),
        statement: String::new(),
        statement_origin: String::new(),
        protocol: String::new(),
        connect_each: false,
        load: record::Load::Closed,
        statements,
        clients,
        rounds: published.blocks.iter().map(|b| b.round).max().unwrap_or(1),
        seed: 0,
        targets: published
            .targets
            .iter()
            .enumerate()
            .map(|(at, name)| record::Target {
                name: name.clone(),
                role: if at == 0 {
                    record::Role::Direct
                } else {
                    record::Role::Compared
                },
                address: String::new(),
                program: String::new(),
            })
            .collect(),
        labels: BTreeMap::from([("imported".to_owned(), file.display().to_string())]),
        caveats: Vec::new(),
    };
    let mut writer = Writer::create(data, manifest)?;
    writer.add(published.blocks, [])?;
    let folder = writer.folder().to_owned();
    writer.close(RunState::Closed, "imported", now, Vec::new())?;
    Ok(folder)
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
                samples_repeated: 0,
            }],
            shares_id: false,
        }],
        caveats: run.caveats.clone(),
        files: None,
    }
}
