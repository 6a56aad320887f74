//! Takes what a spool holds of a run into the run's folder, by the rules of the
//! wire: each seq once, in order, holes declared. Doing it twice adds nothing.

use std::path::{Path, PathBuf};

use gapscope_proto::frame::{Body, Frame, StreamId, StreamKind};
use gapscope_proto::ids::{AgentId, Incarnation, RunId};
use gapscope_proto::spool::LossReason;

use super::new_run::{self, Clocks};
use super::spool::{Known, NotedRun, Piece, Reader, Source, Spool, SpoolError};
use crate::ingest::admit::{Admission, admit, cut_loss};
use crate::ingest::ending::missing;
use crate::ingest::run::GROUP_RECORDS;
use crate::store::disk::Disk;
use crate::store::footer::StreamKey;
use crate::store::manifest::{Manifest, RunState};
use crate::store::{LossRecord, RunStore, StoreError};

/// Why a run could not be taken in.
#[derive(Debug, thiserror::Error)]
pub enum TakeInError {
    /// The spool cannot be read.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The run's folder cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nobody knows what was asked of the agent.
    #[error(
        "the spool of agent `{agent}` holds records of run {run}, but its plan is neither in \
         the spool nor in `{}`", .data.display()
    )]
    NoPlan {
        /// Whose spool.
        agent: AgentId,
        /// Which run.
        run: RunId,
        /// Where runs are.
        data: PathBuf,
    },
}

/// What became of a run's records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenIn {
    /// Where the run is.
    pub folder: PathBuf,
    /// Whether its folder was made.
    pub is_new: bool,
    /// Samples added.
    pub samples: u64,
    /// Host records added.
    pub host: u64,
    /// Records in the spool that were here already.
    pub known: u64,
    /// Records declared lost, at most.
    pub lost: u64,
    /// Its state now.
    pub state: RunState,
}

impl TakenIn {
    /// Whether anything was added.
    pub fn is_something(&self) -> bool {
        self.samples + self.host + self.lost > 0
    }
}

/// When it is, for the manifest.
#[derive(Debug, Clone)]
pub struct Now {
    /// UTC, RFC 3339.
    pub utc: String,
    /// Whether a run's planned end is long past.
    pub is_over: fn(&Manifest) -> bool,
}

/// Takes in what `spool` holds of `run`; who calls has the data folder's lock.
///
/// # Errors
/// When the spool or the run's folder cannot be read, or the folder not written.
/// What was taken in before that is stored; doing it again goes on there.
pub fn take_in(spool: &Spool, run: RunId, data: &Path, now: &Now) -> Result<TakenIn, TakeInError> {
    let noted = spool.runs.get(&run);
    let folder = data.join(run.to_string());
    let is_new = !folder.join("manifest.json").is_file();
    let store = if is_new {
        let noted = noted.ok_or_else(|| TakeInError::NoPlan {
            agent: spool.agent.clone(),
            run,
            data: data.to_owned(),
        })?;
        let manifest = new_run::manifest(&spool.agent, noted, &clocks(spool, run)?);
        RunStore::create(data, manifest, Disk::default())?
    } else {
        RunStore::open(&folder, Disk::default())?
    };
    let mut taking = Taking {
        agent: spool.agent.clone(),
        store,
        reader: Reader::default(),
        taken: TakenIn {
            folder,
            is_new,
            samples: 0,
            host: 0,
            known: 0,
            lost: 0,
            state: RunState::Running,
        },
    };
    if let Some(noted) = noted {
        taking.complete_plan(noted);
    }
    for stream in spool.streams_of(run) {
        let pieces = spool.streams.get(&stream).map_or(&[][..], Vec::as_slice);
        let known = spool.known.get(&stream).copied();
        let told = taking.stream(&stream, pieces, known)?;
        taking.rest(&stream, told, known, now);
    }
    if spool.is_state_damaged && taking.taken.is_something() {
        taking.store.add_caveat(format!(
            "the state of the spool of agent `{}` is damaged: why records are missing, and \
             whether there were more, is not known",
            spool.agent
        ));
    }
    taking.close(now)?;
    taking.taken.state = taking.store.manifest().state;
    Ok(taking.taken)
}

/// What the host records in the spool say about clocks.
fn clocks(spool: &Spool, run: RunId) -> Result<Clocks, SpoolError> {
    let mut clocks = Clocks::default();
    let mut reader = Reader::default();
    for (stream, pieces) in &spool.streams {
        if stream.run != run || stream.kind != StreamKind::Host {
            continue;
        }
        for piece in pieces {
            if let Source::Frame { file, range } = &piece.source
                && let Body::Host(records) = reader.frame(file, range)?.body
            {
                records.iter().for_each(|record| clocks.note(record));
            }
        }
    }
    Ok(clocks)
}

struct Taking {
    agent: AgentId,
    store: RunStore,
    reader: Reader,
    taken: TakenIn,
}

impl Taking {
    /// The folder may come from another agent's spool: each knows its own share.
    fn complete_plan(&mut self, noted: &NotedRun) {
        let known = |manifest: &Manifest| {
            let groups = &manifest.plan.groups;
            let agents = &manifest.agents;
            noted.plan.groups.iter().all(|group| groups.contains(group))
                && agents.iter().any(|agent| agent.agent_id == self.agent)
        };
        if known(self.store.manifest()) {
            return;
        }
        let entry = new_run::agent_entry(&self.agent, noted);
        self.store.edit_manifest(|manifest| {
            for group in &noted.plan.groups {
                if !manifest.plan.groups.contains(group) {
                    manifest.plan.groups.push(group.clone());
                }
            }
            match manifest
                .agents
                .iter_mut()
                .find(|agent| agent.agent_id == entry.agent_id)
            {
                Some(agent) if agent.targets.is_empty() => agent.targets = entry.targets,
                Some(_) => {}
                None => manifest.agents.push(entry),
            }
        });
    }

    fn key(&self, stream: &StreamId) -> StreamKey {
        StreamKey {
            agent_id: self.agent.clone(),
            incarnation: stream.incarnation,
            kind: stream.kind,
        }
    }

    /// Takes in what there is of a stream; returns the last seq that a damaged
    /// frame's header tells of.
    fn stream(
        &mut self,
        stream: &StreamId,
        pieces: &[Piece],
        known: Option<Known>,
    ) -> Result<u64, TakeInError> {
        let key = self.key(stream);
        // The last seq that a damaged frame's header tells of.
        let mut told = 0;
        for piece in pieces {
            let admitted = self.store.admitted(&key);
            if matches!(piece.source, Source::Broken) {
                told = told.max(piece.last);
                continue;
            }
            let skip = match admit(admitted, piece.first, piece.last) {
                Admission::Take { skip } => skip,
                Admission::Duplicate => {
                    if matches!(piece.source, Source::Frame { .. }) {
                        self.taken.known += piece.last - piece.first + 1;
                    }
                    continue;
                }
                Admission::Gap { .. } => {
                    self.lose_up_to(&key, piece.first - 1, told, known);
                    0
                }
            };
            match &piece.source {
                Source::Frame { file, range } => {
                    let frame = self.reader.frame(file, range)?;
                    self.append(&key, frame, skip);
                }
                Source::Lost(loss) => {
                    let (first, least, most) = cut_loss(
                        skip,
                        piece.first,
                        piece.last,
                        loss.count_min,
                        loss.count_max,
                    );
                    let counts = Some((least.min(most), most));
                    self.lose(&key, (first, piece.last), counts, loss.reason.as_str());
                }
                Source::Broken => {}
            }
            if self.store.pending() >= GROUP_RECORDS {
                self.store.commit()?;
            }
        }
        Ok(told)
    }

    /// Declares the hole before seq `last` and `last` itself. What had been
    /// acknowledged had been delivered, to an aggregator with another data folder
    /// or in a state of this one that was lost since; it may have been declared
    /// lost itself, so its least is 0.
    fn lose_up_to(&mut self, key: &StreamKey, last: u64, told: u64, known: Option<Known>) {
        let delivered = last.min(known.map_or(0, |known| known.floor));
        let expected = self.store.admitted(key) + 1;
        if expected <= delivered {
            let counts = Some((0, delivered - expected + 1));
            self.lose(key, (expected, delivered), counts, "delivered_elsewhere");
        }
        let expected = self.store.admitted(key) + 1;
        if expected > last {
            return;
        }
        let reason = match known {
            Some(Known {
                reserved: Some(_), ..
            }) => LossReason::PowerLoss.as_str(),
            Some(_) => LossReason::Corrupt.as_str(),
            None if told >= expected => LossReason::Corrupt.as_str(),
            None => "not_in_spool",
        };
        self.lose(key, (expected, last), None, reason);
    }

    /// Declares what is missing behind a stream's last piece.
    fn rest(&mut self, stream: &StreamId, told: u64, known: Option<Known>, now: &Now) {
        let key = self.key(stream);
        let floor = known.map_or(0, |known| known.floor);
        self.lose_up_to(&key, told.max(floor), told, known);
        // Numbers are reserved ahead. While the run goes on its agent may yet use
        // them: this may be a copy of its spool.
        let Some(reserved) = known.and_then(|known| known.reserved) else {
            return;
        };
        if !(now.is_over)(self.store.manifest()) {
            return;
        }
        let admitted = self.store.admitted(&key);
        let last = reserved.min(self.most(&key).unwrap_or(u64::MAX));
        if last > admitted {
            let counts = Some((0, last - admitted));
            let reason = LossReason::PowerLoss.as_str();
            self.lose(&key, (admitted + 1, last), counts, reason);
        }
    }

    /// The last seq that a stream can have, where the end of the agent's probing
    /// tells: it is the last host record, and has the number of samples.
    fn most(&self, key: &StreamKey) -> Option<u64> {
        let agents = &self.store.manifest().agents;
        let agent = agents.iter().find(|agent| agent.agent_id == key.agent_id)?;
        let mut entries = agent.incarnations.iter();
        let entry = entries.find(|entry| entry.incarnation == key.incarnation)?;
        let ended = entry.ended.as_ref()?;
        Some(match key.kind {
            StreamKind::Samples => ended.sampled,
            StreamKind::Host => self.store.admitted(key),
        })
    }

    fn append(&mut self, key: &StreamKey, frame: Frame, skip: u64) {
        let (first, last) = (frame.first_seq, frame.last_seq());
        self.taken.known += skip;
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        match frame.body {
            Body::Samples(columns) => match columns.decode() {
                Ok(samples) => {
                    self.taken.samples += (samples.len() - skip.min(samples.len())) as u64;
                    let samples = samples.into_iter().skip(skip);
                    self.store
                        .append_samples(&key.agent_id, key.incarnation, samples);
                }
                Err(_) => self.lose(key, (first + skip as u64, last), None, "corrupt"),
            },
            Body::Host(records) => {
                self.taken.host += (records.len() - skip.min(records.len())) as u64;
                let records = records.into_iter().skip(skip);
                self.store
                    .append_host(&key.agent_id, key.incarnation, records);
            }
        }
    }

    /// Declares `first..=last` lost; without counts all of them had been measured.
    fn lose(
        &mut self,
        key: &StreamKey,
        (first, last): (u64, u64),
        counts: Option<(u64, u64)>,
        reason: &str,
    ) {
        let length = last - first + 1;
        let (count_min, count_max) = counts.unwrap_or((length, length));
        self.taken.lost += count_max;
        let declared = self.store.declare_loss(LossRecord {
            agent_id: key.agent_id.clone(),
            incarnation: key.incarnation,
            kind: key.kind,
            first_seq: first,
            last_seq: last,
            count_min,
            count_max,
            reason: reason.to_owned(),
        });
        debug_assert!(declared, "a loss begins where the stream stands");
    }

    /// Closes the run if its time is over. One that was closed before is closed
    /// anew if something was added, and says so.
    fn close(&mut self, now: &Now) -> Result<(), StoreError> {
        self.store.commit()?;
        let before = self.store.manifest().state;
        let is_over = (now.is_over)(self.store.manifest());
        let stays_open = before == RunState::Running && !is_over;
        let stays_closed = before != RunState::Running && !self.taken.is_something();
        if stays_open || stays_closed {
            return Ok(());
        }
        let lacking = missing(self.store.manifest(), |agent, incarnation| {
            has_newer_start(self.store.manifest(), agent, incarnation)
        });
        if before != RunState::Running {
            self.store.add_caveat(format!(
                "the spool of agent `{}` was imported after the run had ended here; what was \
                 computed before lacks it",
                self.agent
            ));
        }
        self.store.close(|manifest| {
            if manifest.state == RunState::Closed {
                return;
            }
            manifest.state = RunState::Closed;
            manifest.closed_utc = Some(now.utc.clone());
            manifest.end_reason = Some("imported from a spool".to_owned());
            for what in lacking {
                let caveat = format!("missing when the run was closed: {what}");
                if !manifest.caveats.contains(&caveat) {
                    manifest.caveats.push(caveat);
                }
            }
        })
    }
}

/// Another start of the agent has come to the end of the run's probing.
fn has_newer_start(manifest: &Manifest, agent: &AgentId, incarnation: Incarnation) -> bool {
    let of_agent = manifest.agents.iter().filter(|a| a.agent_id == *agent);
    of_agent
        .flat_map(|agent| &agent.incarnations)
        .any(|entry| entry.incarnation != incarnation && entry.ended.is_some())
}
