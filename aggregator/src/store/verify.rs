//! Reads everything that is stored of a run and says whether it is whole.
//!
//! Each file's checksum, the files that the manifest lists, each row's seq against
//! the ranges of its footer, each stream from seq 1 on without a hole or an overlap
//! (losses fill holes), and the agents' books against what is here. Changes nothing.
//!
//! What it cannot know: whether what an agent wrote was true, and what happened
//! before an agent numbered it.

use std::collections::BTreeMap;
use std::path::Path;

use gapscope_proto::frame::StreamKind;
use gapscope_proto::ids::{AgentId, Incarnation};
use polars::prelude::*;

use super::checksum;
use super::error::StoreError;
use super::footer::{self, StreamKey};
use super::inventory;
use super::loss::{LossRecord, kind_word};
use super::manifest::Manifest;
use super::merge::ROW_GROUP;
use super::reader::{
    Care, Part, RunFolder, Standing, host_parts, manifest_text, read_rows, sample_parts,
};
use super::schema::{HOST_TABLES, LAG, samples};
use super::stamp::steadily;

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Files looked at.
    pub files: usize,
    /// Of them, files without a checksum, as version 1 wrote them.
    pub without_checksum: usize,
    /// Sample rows read.
    pub samples: u64,
    /// Samples that the agents said they had measured.
    pub sampled: u64,
    /// Samples declared lost: at least, at most.
    pub lost: (u64, u64),
    /// Samples announced and neither here nor declared lost.
    pub missing: u64,
    /// Starts of agents that never said how their probing ended: what their spools
    /// still hold is not known.
    pub open: usize,
    /// What is wrong with what is stored, in sentences.
    pub damage: Vec<String>,
    /// What is not here, in sentences.
    pub lacking: Vec<String>,
    /// What one should know and is no fault, in sentences.
    pub remarks: Vec<String>,
}

impl Verified {
    /// Nothing is damaged, nothing is known to be missing, and nobody may hold more.
    pub fn is_whole(&self) -> bool {
        self.is_sound() && self.open == 0
    }

    /// Nothing is damaged, nothing is known to be missing.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty() && self.lacking.is_empty()
    }
}

/// What an abandoned run is, and what to do about it.
pub const ABANDONED: &str = "abandoned: it was running when its aggregator ended, and none has \
                             its folder open; `serve` on its data folder goes on with it, \
                             `import` takes in what agents still hold";

/// First and last seq of consecutive ones.
type Stretch = (u64, u64);

/// Reads the run in `folder` whole; anew if it is closed or merged meanwhile.
///
/// # Errors
/// When there is no run that this build can read.
pub fn verify(folder: &Path) -> Result<Verified, StoreError> {
    steadily(folder, || once(folder), |found| found.damage.is_empty())
}

fn once(folder: &Path) -> Result<Verified, StoreError> {
    let mut found = Verified::default();
    for name in ["faults.parquet", "losses.parquet"] {
        let path = folder.join(name);
        if path.exists() {
            check_whole(&path, &mut found);
        }
    }
    // The manifest as a reader has it, and every part whose checksum holds.
    let run = RunFolder::open(folder)?.sound()?;
    if run.standing() == Standing::Abandoned {
        found.remarks.push(ABANDONED.to_owned());
    }
    check_manifest(folder, run.manifest(), &mut found)?;
    let parts = sample_parts(folder, Care::Checksums)?;
    let mut notes = parts.notes.clone();
    let mut stored: BTreeMap<StreamKey, Vec<Stretch>> = BTreeMap::new();
    for part in parts.used() {
        found.samples += part.rows;
        check_part(part, true, &mut found);
        note_ranges(part, &mut stored);
    }
    for table in HOST_TABLES {
        let parts = host_parts(folder, table, Care::Checksums)?;
        for part in &parts.merged {
            check_part(part, false, &mut found);
        }
        notes.extend(parts.notes);
    }
    let hosts = host_parts(folder, &LAG, Care::Checksums)?;
    for part in &hosts.live {
        check_part(part, true, &mut found);
    }
    for part in hosts.used() {
        note_ranges(part, &mut stored);
    }
    notes.sort();
    notes.dedup();
    found.files += notes.len();
    found.damage.extend(notes);
    check_list(folder, &mut found)?;
    check_streams(&run.losses()?, stored, &mut found);
    check_books(run.manifest(), &mut found);
    note_computed(folder, &mut found)?;
    for live in ["samples/live", "host/live"] {
        for path in set_aside(&folder.join(live))? {
            found.remarks.push(format!(
                "`{path}` was damaged and set aside; what it held is declared lost"
            ));
        }
    }
    Ok(found)
}

fn check_manifest(
    folder: &Path,
    manifest: &Manifest,
    found: &mut Verified,
) -> Result<(), StoreError> {
    found.files += 1;
    if manifest.format_version < checksum::SINCE_VERSION {
        found.without_checksum += 1;
    } else if !checksum::manifest_holds(&manifest_text(folder)?) {
        found.damage.push(
            "`manifest.json` is not as it was written: its checksum does not hold".to_owned(),
        );
    }
    Ok(())
}

/// The files that were there when the run was closed.
fn check_list(folder: &Path, found: &mut Verified) -> Result<(), StoreError> {
    let compared = inventory::compare_run(folder)?;
    found.lacking.extend(compared.missing);
    // Once is enough where its own checksum has said so.
    let is_said = |what: &String| {
        let named = what.split('`').nth(1).unwrap_or_default();
        let said = &found.damage;
        said.iter().any(|said| said.contains(named))
    };
    let changed: Vec<String> = compared
        .changed
        .into_iter()
        .filter(|w| !is_said(w))
        .collect();
    found.damage.extend(changed);
    if compared.has_no_list {
        found.remarks.push(
            "the manifest has no list of the run's files (an older version closed the run, or \
             it is just being changed): a file that is gone as a whole may not be noticed"
                .to_owned(),
        );
    }
    Ok(())
}

/// The file's checksum.
fn check_whole(path: &Path, found: &mut Verified) {
    found.files += 1;
    match footer::read_sound(path) {
        Ok((footer, _)) => found.without_checksum += usize::from(!footer.is_sealed()),
        Err(error) => found.damage.push(error.to_string()),
    }
}

/// What `report` wrote beside the data has no checksum: it is made anew, not
/// checked.
fn note_computed(folder: &Path, found: &mut Verified) -> Result<(), StoreError> {
    let raw: Vec<String> = inventory::table_names().collect();
    let entries = std::fs::read_dir(folder).map_err(StoreError::io("list", folder))?;
    let mut computed: Vec<String> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().map(|name| name.to_string_lossy());
            let name = name.unwrap_or_default();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("parquet") => !raw.iter().any(|raw| *raw == name),
                Some("json") => name != "manifest.json",
                Some("md" | "html") => true,
                _ => false,
            }
        })
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .collect();
    computed.sort();
    if !computed.is_empty() {
        found.remarks.push(format!(
            "computed files are not checked, `report` makes them anew: {}",
            computed.join(", ")
        ));
    }
    Ok(())
}

/// The file's checksum, and its rows against its footer's ranges: all of the
/// seqs where it holds a stream whole, some of them in a table of one kind.
fn check_part(part: &Part, whole: bool, found: &mut Verified) {
    found.files += 1;
    found.without_checksum += usize::from(!part.footer.is_sealed());
    let rows = match rows_by_stream(part) {
        Ok(rows) => rows,
        Err(error) => {
            found.damage.push(error.to_string());
            return;
        }
    };
    let mut footer: BTreeMap<(String, String), Vec<Stretch>> = BTreeMap::new();
    for range in &part.footer.ranges {
        let key = (
            range.stream.agent_id.to_string(),
            range.stream.incarnation.to_string(),
        );
        let stretches = footer.entry(key).or_default();
        stretches.push((range.first_seq, range.last_seq));
    }
    let complain = |found: &mut Verified, why: String| {
        found
            .damage
            .push(format!("`{}` is damaged: {why}", part.path.display()));
    };
    for (key, mut stretches) in rows {
        let mut ranges = footer.remove(&key).unwrap_or_default();
        let (overlap, _) = join(&mut stretches);
        join(&mut ranges);
        if let Some((first, _)) = overlap {
            complain(
                found,
                format!("it holds seq {first} of agent {} twice", key.0),
            );
        }
        let covered = |stretch: &Stretch| {
            ranges
                .iter()
                .any(|range| range.0 <= stretch.0 && stretch.1 <= range.1)
        };
        let agrees = if whole {
            stretches == ranges
        } else {
            stretches.iter().all(covered)
        };
        if !agrees {
            complain(
                found,
                format!(
                    "its rows are seqs {} of agent {}, its footer says {}",
                    words(&stretches),
                    key.0,
                    words(&ranges)
                ),
            );
        }
    }
    if whole && let Some((key, ranges)) = footer.into_iter().next() {
        complain(
            found,
            format!(
                "it has no rows of agent {}, its footer says seqs {}",
                key.0,
                words(&ranges)
            ),
        );
    }
}

fn words(stretches: &[Stretch]) -> String {
    let mut texts: Vec<String> = stretches
        .iter()
        .take(4)
        .map(|(first, last)| format!("{first} to {last}"))
        .collect();
    if stretches.len() > 4 {
        texts.push(format!("{} more", stretches.len() - 4));
    }
    if texts.is_empty() {
        "none".to_owned()
    } else {
        texts.join(", ")
    }
}

/// The seqs of a part's rows, by agent and incarnation, as stretches.
fn rows_by_stream(part: &Part) -> Result<BTreeMap<(String, String), Vec<Stretch>>, StoreError> {
    let wrong = || StoreError::parquet("read", &part.path);
    let mut streams: BTreeMap<(String, String), Vec<Stretch>> = BTreeMap::new();
    let rows = usize::try_from(part.rows).unwrap_or(usize::MAX);
    let mut read = 0;
    for from in (0..rows).step_by(ROW_GROUP) {
        // Whole rows: a page that cannot be decoded is noticed whatever is in it.
        let frame = read_rows(&part.path, from, ROW_GROUP)?;
        read += frame.height();
        let texts = |name: &str| {
            frame
                .column(name)
                .and_then(|column| column.cast(&DataType::String))
        };
        let agents = texts(samples::AGENT_ID).map_err(wrong())?;
        let incarnations = texts(samples::INCARNATION).map_err(wrong())?;
        let seqs = frame.column(samples::SEQ).map_err(wrong())?;
        let agents = agents.str().map_err(wrong())?;
        let incarnations = incarnations.str().map_err(wrong())?;
        let seqs = seqs.u64().map_err(wrong())?;
        let mut last: Option<(&str, &str)> = None;
        let mut current: Vec<Stretch> = Vec::new();
        for ((agent, incarnation), seq) in agents.iter().zip(incarnations.iter()).zip(seqs.iter()) {
            let (Some(agent), Some(incarnation), Some(seq)) = (agent, incarnation, seq) else {
                return Err(StoreError::Damaged {
                    path: part.path.clone(),
                    why: "a row has no agent, incarnation or seq".to_owned(),
                });
            };
            if last != Some((agent, incarnation)) {
                if let Some((agent, incarnation)) = last {
                    let key = (agent.to_owned(), incarnation.to_owned());
                    streams.entry(key).or_default().append(&mut current);
                }
                last = Some((agent, incarnation));
            }
            match current.last_mut() {
                Some(stretch) if stretch.1.checked_add(1) == Some(seq) => stretch.1 = seq,
                _ => current.push((seq, seq)),
            }
        }
        if let Some((agent, incarnation)) = last {
            let key = (agent.to_owned(), incarnation.to_owned());
            streams.entry(key).or_default().append(&mut current);
        }
    }
    if read != rows {
        return Err(StoreError::Damaged {
            path: part.path.clone(),
            why: format!("it has {read} rows, its footer says {rows}"),
        });
    }
    Ok(streams)
}

/// Sorts stretches and joins those that follow each other; returns the first
/// overlap and the first hole (from seq 1 on), if there are any.
fn join(stretches: &mut Vec<Stretch>) -> (Option<Stretch>, Option<Stretch>) {
    stretches.sort_unstable();
    let (mut overlap, mut hole) = (None, None);
    let mut joined: Vec<Stretch> = Vec::new();
    let mut next = 1u64;
    for &(first, last) in stretches.iter() {
        if first < next {
            overlap = overlap.or(Some((first, last.min(next - 1))));
        }
        if first > next {
            hole = hole.or(Some((next, first - 1)));
        }
        match joined.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
        next = next.max(last.saturating_add(1));
    }
    *stretches = joined;
    (overlap, hole)
}

fn note_ranges(part: &Part, stored: &mut BTreeMap<StreamKey, Vec<Stretch>>) {
    for range in &part.footer.ranges {
        let stretches = stored.entry(range.stream.clone()).or_default();
        stretches.push((range.first_seq, range.last_seq));
    }
}

/// Each stream from 1 on: no seq twice, none missing.
fn check_streams(
    losses: &[LossRecord],
    mut stored: BTreeMap<StreamKey, Vec<Stretch>>,
    found: &mut Verified,
) {
    for loss in losses {
        let stretches = stored.entry(loss.stream()).or_default();
        stretches.push((loss.first_seq, loss.last_seq));
        if loss.kind == StreamKind::Samples {
            found.lost.0 += loss.count_min;
            found.lost.1 += loss.count_max;
        }
        found.lacking.push(format!(
            "{} {} to {} of agent {} are lost: {}",
            kind_word(loss.kind),
            loss.first_seq,
            loss.last_seq,
            loss.agent_id,
            loss.reason
        ));
    }
    for (stream, mut stretches) in stored {
        let (overlap, hole) = join(&mut stretches);
        let mut complain = |what: &str, stretch: Option<Stretch>| {
            if let Some((first, last)) = stretch {
                found.damage.push(format!(
                    "{} {first} to {last} of agent {} (start {}) are {what}",
                    kind_word(stream.kind),
                    stream.agent_id,
                    stream.incarnation
                ));
            }
        };
        complain("stored twice", overlap);
        complain("neither stored nor declared lost", hole);
    }
}

/// The agents' own books against what is here.
fn check_books(manifest: &Manifest, found: &mut Verified) {
    let (lacking, remarks) = (&mut found.lacking, &mut found.remarks);
    let mut lacks = |agent: &AgentId, incarnation: Incarnation, what: String| {
        lacking.push(format!("agent {agent} (start {incarnation}): {what}"));
    };
    for agent in &manifest.agents {
        for entry in &agent.incarnations {
            let announced = entry.samples_announced.max(entry.samples_committed);
            found.sampled += announced;
            let missing = announced - entry.samples_committed;
            found.missing += missing;
            if missing > 0 {
                lacks(
                    &agent.agent_id,
                    entry.incarnation,
                    format!(
                        "samples {} to {announced} are not here",
                        entry.samples_committed + 1
                    ),
                );
            }
            match &entry.ended {
                Some(ended) if ended.sampled != announced => lacks(
                    &agent.agent_id,
                    entry.incarnation,
                    format!(
                        "it counted {} samples, {announced} have a number",
                        ended.sampled
                    ),
                ),
                None if entry.started.is_some() && agent.may_hold_more() => {
                    found.open += 1;
                    remarks.push(format!(
                        "agent {} (start {}): it has not said how its probing ended; its spool \
                         may hold more",
                        agent.agent_id, entry.incarnation
                    ));
                }
                _ => {}
            }
        }
    }
    // Every seq is stored or declared lost; what it stood for must add up.
    let covered = found.samples + found.lost.1 + found.missing;
    if covered < found.sampled {
        found.damage.push(format!(
            "{} samples are numbered, {covered} are stored, declared lost or missing",
            found.sampled
        ));
    }
}

/// Files that an aggregator found damaged.
fn set_aside(live: &Path) -> Result<Vec<String>, StoreError> {
    let entries = match std::fs::read_dir(live) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(StoreError::io("list", live))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(StoreError::io("list", live))?.path();
        if path.extension().is_some_and(|e| e == "damaged") {
            found.push(path.display().to_string());
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        stretches: &[Stretch],
        joined: &[Stretch],
        overlap: Option<Stretch>,
        hole: Option<Stretch>,
    ) {
        let mut given = stretches.to_vec();
        assert_eq!(join(&mut given), (overlap, hole));
        assert_eq!(given, joined);
    }

    #[test]
    fn overlaps_and_holes() {
        check(&[(4, 6), (1, 3)], &[(1, 6)], None, None);
        check(&[(1, 3), (3, 6)], &[(1, 6)], Some((3, 3)), None);
        check(&[(2, 3), (6, 6)], &[(2, 3), (6, 6)], None, Some((1, 1)));
        check(&[(1, 9), (2, 3)], &[(1, 9)], Some((2, 3)), None);
        check(&[], &[], None, None);
    }
}
