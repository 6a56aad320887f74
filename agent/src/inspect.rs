//! `spool inspect`: what a spool holds, without touching it.

use std::collections::BTreeMap;
use std::path::Path;

use gapscope_proto::frame::{Frame, StreamId, StreamKind};

use crate::cli::Failure;
use crate::output;
use crate::spool::Loss;
use crate::spool::disk::{Disk, Kind};
use crate::spool::recover::Recovery;

#[derive(Default)]
struct Held {
    frames: u64,
    records: u64,
    first: u64,
    last: u64,
    lost: u64,
}

pub(crate) fn inspect(folder: &Path) -> Result<(), Failure> {
    let wrong = |error: &dyn std::fmt::Display| {
        Failure::new(format!(
            "cannot read the spool `{}`: {error}",
            folder.display()
        ))
    };
    let disk = Disk::inspect(folder).map_err(|error| wrong(&error))?;
    let mut recovery = Recovery::default();
    let mut bytes = 0;
    for kind in [Kind::Segment, Kind::Tail] {
        for (number, len) in disk.files(kind).map_err(|error| wrong(&error))? {
            bytes += len;
            match disk.read(kind, number) {
                // Sealed and removed since the folder was listed.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(wrong(&error)),
                Ok(read) if kind == Kind::Segment => recovery.segment(number, &read),
                Ok(read) => recovery.tail(&read),
            }
        }
    }
    if let Some(text) = disk.small("losses.json").map_err(|error| wrong(&error))? {
        let losses: Vec<Loss> = serde_json::from_slice(&text).map_err(|error| wrong(&error))?;
        losses.into_iter().for_each(|loss| recovery.loss(loss));
    }
    let found = recovery.finish();
    let mut streams: BTreeMap<StreamId, Held> = BTreeMap::new();
    let frames = found
        .sealed
        .iter()
        .map(|f| (f.stream, f.first, f.last))
        .chain(found.unsealed.iter().map(frame_range));
    for (stream, first, last) in frames {
        let held = streams.entry(stream).or_default();
        held.frames += 1;
        held.records += last + 1 - first;
        held.first = if held.first == 0 {
            first
        } else {
            held.first.min(first)
        };
        held.last = held.last.max(last);
    }
    for loss in &found.losses {
        streams.entry(loss.stream).or_default().lost += loss.count_max;
    }
    output::data(&format!(
        "{}: {bytes} bytes, {} streams, {} damaged stretches ({} bytes)",
        folder.display(),
        streams.len(),
        found.counts.corrupt_stretches,
        found.counts.corrupt_bytes
    ));
    for (stream, held) in streams {
        output::data(&format!(
            "run {} incarnation {} {}: {} records in {} frames, seq {}..{}, {} lost",
            stream.run,
            stream.incarnation,
            match stream.kind {
                StreamKind::Samples => "samples",
                StreamKind::Host => "host",
            },
            held.records,
            held.frames,
            held.first,
            held.last,
            held.lost
        ));
    }
    Ok(())
}

fn frame_range(frame: &Frame) -> (StreamId, u64, u64) {
    (frame.stream, frame.first_seq, frame.last_seq())
}
