//! `spool inspect`, `verify` and `export`: what a spool holds, without touching
//! it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

use gapscope_proto::frame::{Body, Frame, StreamId, StreamKind};
use gapscope_proto::host::HostRecord;
use gapscope_proto::sample::Sample;
use serde_json::{Map, Value, json};

use crate::cli::Failure;
use crate::output;
use crate::spool::look::{Held, Look, look, spools_below};
use crate::spool::{Loss, SpoolError};

const LOST: u8 = 4;

fn open(folder: &Path) -> Result<Look, Failure> {
    let below = spools_below(folder);
    if !below.is_empty() {
        let list: Vec<String> = below.iter().map(|p| p.display().to_string()).collect();
        let mut failure = Failure::new(format!(
            "`{}` is no spool itself; below it: {}",
            folder.display(),
            list.join(", ")
        ));
        failure.hint = Some("name one of them".into());
        return Err(failure);
    }
    look(folder).map_err(|error| {
        let why = match error {
            SpoolError::Io { error, .. } => error.to_string(),
            other => other.to_string(),
        };
        let mut failure = Failure::new(format!(
            "cannot read the spool `{}`: {why}",
            folder.display()
        ));
        failure.hint = Some("a spool is the folder <data>/spool/<agent id>".into());
        failure
    })
}

fn kind(stream: &StreamId) -> &'static str {
    match stream.kind {
        StreamKind::Samples => "samples",
        StreamKind::Host => "host",
    }
}

fn head(folder: &Path, seen: &Look) -> String {
    format!(
        "{}: {} files, {} bytes{}",
        folder.display(),
        seen.files,
        seen.bytes,
        if seen.is_live {
            ", an agent is writing to it"
        } else {
            ""
        }
    )
}

fn count(min: u64, max: u64) -> String {
    if min == max {
        format!("{max}")
    } else {
        format!("{min} to {max}")
    }
}

fn loss_line(loss: &Loss) -> String {
    format!(
        "  lost: seq {}..{}, {} records: {}",
        loss.first,
        loss.last,
        count(loss.count_min, loss.count_max),
        loss.reason.as_str()
    )
}

fn stream_lines(stream: &StreamId, held: &Held) -> Vec<String> {
    let mut line = format!("  {}: ", kind(stream));
    if held.records == 0 {
        line.push_str("nothing held");
    } else {
        let _ = write!(
            line,
            "{} records in {} frames, seq {}..{}",
            held.records, held.frames, held.first, held.last
        );
    }
    if held.acknowledged > 0 {
        let _ = write!(line, ", delivered up to {}", held.acknowledged);
    }
    let mut lines = vec![line];
    lines.extend(
        held.losses
            .iter()
            .map(|loss| format!("  {}", loss_line(loss))),
    );
    lines
}

fn say_streams(seen: &Look) {
    let mut before = None;
    for (stream, held) in seen.streams() {
        if held.records == 0 && held.losses.is_empty() && held.acknowledged == 0 {
            continue;
        }
        let life = (stream.run, stream.incarnation);
        if before != Some(life) {
            output::data(&format!(
                "run {} incarnation {}",
                stream.run, stream.incarnation
            ));
            before = Some(life);
        }
        for line in stream_lines(&stream, &held) {
            output::data(&line);
        }
    }
}

/// Says what a spool holds.
pub(crate) fn inspect(folder: &Path) -> Result<(), Failure> {
    let seen = open(folder)?;
    output::data(&head(folder, &seen));
    say_streams(&seen);
    for line in seen.cut.iter().chain(&seen.damage) {
        output::data(line);
    }
    for name in &seen.newer {
        output::data(&format!("{name}: written by a newer version"));
    }
    Ok(())
}

/// Checks every frame, checksum and number.
pub(crate) fn verify(folder: &Path) -> Result<(), Failure> {
    let seen = open(folder)?;
    output::data(&head(folder, &seen));
    say_streams(&seen);
    for line in seen.cut.iter().chain(&seen.damage) {
        output::data(line);
    }
    let (min, max) = seen.lost();
    let frames = seen.found.counts.sealed_frames + seen.found.counts.tail_frames;
    output::data(&format!(
        "{frames} sound frames, {} damaged stretches, {} records lost",
        seen.found.counts.corrupt_stretches - seen.found.counts.cut_stretches,
        count(min, max)
    ));
    let failure = |message: String, hint: &str, code| {
        Err(Failure {
            message,
            hint: Some(hint.to_owned()),
            code,
        })
    };
    if max > 0 {
        return failure(
            format!("{} records are lost", count(min, max)),
            "the losses are declared to the aggregator and stand in the run's report",
            LOST,
        );
    }
    if !seen.newer.is_empty() {
        return failure(
            format!(
                "{} files were written by a newer version of this program: {}",
                seen.newer.len(),
                seen.newer.join(", ")
            ),
            "look at them with that version",
            1,
        );
    }
    if !seen.damage.is_empty() {
        return failure(
            format!("{} files are damaged", seen.damage.len()),
            "no record is known to be missing: what is damaged stands elsewhere too, or never was a record",
            1,
        );
    }
    Ok(())
}

/// Writes everything that is held as JSON, one object a line.
pub(crate) fn export(folder: &Path) -> Result<(), Failure> {
    let seen = open(folder)?;
    let mut out = output::lines();
    let written = write_all(&seen, &mut out).and_then(|gone| out.flush().map(|()| gone));
    match written {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
        Err(error) => return Err(Failure::new(format!("cannot write: {error}"))),
        Ok(0) => {}
        Ok(gone) => output::note(&format!(
            "{gone} records were delivered and removed while this was read"
        )),
    }
    for line in seen.cut.iter().chain(&seen.damage) {
        output::note(line);
    }
    for name in &seen.newer {
        output::note(&format!("{name}: written by a newer version, not exported"));
    }
    Ok(())
}

fn write_all(seen: &Look, out: &mut impl Write) -> io::Result<u64> {
    let mut gone = 0;
    let mut done: BTreeMap<StreamId, u64> = BTreeMap::new();
    for sealed in &seen.found.sealed {
        let read = seen
            .disk
            .read_range(sealed.segment, sealed.offset, sealed.len as usize);
        match read.map(|bytes| Frame::from_bytes(&bytes)) {
            Ok(Ok((frame, _))) => {
                // Written again after a failure, a record may stand in two frames.
                let done = done.entry(sealed.stream).or_default();
                write_frame(&frame, sealed.first.max(*done + 1), out)?;
                *done = sealed.last.max(*done);
            }
            _ => gone += sealed.last + 1 - sealed.first,
        }
    }
    for frame in &seen.found.unsealed {
        write_frame(frame, frame.first_seq, out)?;
    }
    for loss in &seen.found.losses {
        let mut line = line_of(&loss.stream, "loss");
        line.insert("first_seq".into(), json!(loss.first));
        line.insert("last_seq".into(), json!(loss.last));
        line.insert("count_min".into(), json!(loss.count_min));
        line.insert("count_max".into(), json!(loss.count_max));
        line.insert("reason".into(), json!(loss.reason.as_str()));
        write_line(line, out)?;
    }
    Ok(gone)
}

fn line_of(stream: &StreamId, record: &str) -> Map<String, Value> {
    let mut line = Map::new();
    line.insert("record".into(), json!(record));
    line.insert("stream".into(), json!(kind(stream)));
    line.insert("run_id".into(), json!(stream.run.to_string()));
    line.insert("incarnation".into(), json!(stream.incarnation.to_string()));
    line
}

fn write_line(line: Map<String, Value>, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Value::Object(line))?;
    out.write_all(b"\n")
}

/// The records from seq `from` on.
fn write_frame(frame: &Frame, from: u64, out: &mut impl Write) -> io::Result<()> {
    let skip = usize::try_from(from - frame.first_seq).unwrap_or(usize::MAX);
    match &frame.body {
        Body::Samples(_) => {
            let samples = frame.samples().map_err(io::Error::other)?;
            for (seq, sample) in (frame.first_seq..).zip(&samples).skip(skip) {
                let mut line = line_of(&frame.stream, "sample");
                line.insert("seq".into(), json!(seq));
                line.extend(sample_fields(sample));
                write_line(line, out)?;
            }
        }
        Body::Host(records) => {
            for (seq, record) in (frame.first_seq..).zip(records).skip(skip) {
                let (name, fields) = match record {
                    HostRecord::Lag(lag) => ("lag", json!(lag)),
                    HostRecord::Exchange(exchange) => ("exchange", json!(exchange)),
                    HostRecord::Anchor(anchor) => ("anchor", json!(anchor)),
                    HostRecord::Started(started) => ("started", json!(started)),
                    HostRecord::Ended(ended) => ("ended", json!(ended)),
                    HostRecord::Ledger(entry) => ("ledger", json!(entry)),
                    HostRecord::Control(probes) => ("control", json!(probes)),
                    HostRecord::Unknown(unknown) => (
                        "unknown",
                        json!({"kind": unknown.kind, "bytes": unknown.packed.len()}),
                    ),
                    HostRecord::Inspection(seen) => ("inspection", json!(seen)),
                };
                let mut line = line_of(&frame.stream, name);
                line.insert("seq".into(), json!(seq));
                if let Value::Object(fields) = fields {
                    line.extend(fields);
                }
                write_line(line, out)?;
            }
        }
    }
    Ok(())
}

/// As the columns of the stored samples are called.
fn sample_fields(sample: &Sample) -> Map<String, Value> {
    let fields = json!({
        "target": sample.target.to_string(),
        "style": sample.style.as_str(),
        "client": sample.client,
        "slot": sample.slot,
        "scheduled_ns": sample.scheduled.ns(),
        "started_ns": sample.started.ns(),
        "finished_ns": sample.finished.ns(),
        "resolve_ns": sample.resolve_ns,
        "connect_ns": sample.connect_ns,
        "query_ns": sample.query_ns,
        "phase": sample.phase.as_str(),
        "outcome": sample.outcome.as_str(),
        "cause": sample.cause.map(|cause| cause.as_str()),
        "error_code": sample.error_code,
        "sqlstate": sample.sqlstate.as_deref(),
        "error": sample.error.as_deref(),
        "may_have_executed": sample.may_have_executed,
        "connection": sample.connection,
        "connection_id": sample.connection_id,
        "handshake_id": sample.handshake_id,
        "backend": sample.backend.as_deref(),
        "peer": sample.peer.as_deref(),
        "server_version": sample.server_version.as_deref(),
        "canary": sample.canary.map(|canary| canary.as_str()),
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
