//! Taking over what an earlier start of the agent left. Nothing that is found
//! keeps an agent from starting.

use std::collections::BTreeMap;

use gapscope_proto::frame::{StreamId, StreamKind};
use gapscope_proto::spool::State;

use super::Writer;
use super::books::Book;
use super::streams::{Records, encode};
use crate::spool::Report;
use crate::spool::disk::Kind;
use crate::spool::recover::{Counts, Recovered, Recovery, merged};
use crate::spool::state::{OLD_LOSSES, OLD_NUMBERS};
use crate::spool::sync::Job;

impl Writer {
    pub(super) fn recover(&mut self, state: &State, boot: &str) -> std::io::Result<Counts> {
        let mut recovery = Recovery::default();
        let power_lost = state.boot.as_deref() != Some(boot);
        for known in &state.streams {
            let reserved = known.reserved.filter(|_| power_lost);
            recovery.known(known.stream, known.floor, reserved);
            self.acked.insert(known.stream, known.floor);
        }
        for loss in &state.losses {
            recovery.loss(*loss);
        }
        let segments = self.disk.files(Kind::Segment)?;
        let tails = self.disk.files(Kind::Tail)?;
        let mut is_whole = true;
        for (number, len) in &segments {
            is_whole &= self.read_segment(*number, *len, &mut recovery);
        }
        let mut read_tails = Vec::new();
        for (number, len) in tails {
            match self.disk.read(Kind::Tail, number) {
                Ok(bytes) => {
                    if !recovery.tail(&bytes) {
                        read_tails.push((number, len));
                    }
                }
                Err(error) => {
                    tracing::error!(tail = number, %error, "a spool file cannot be read");
                    is_whole = false;
                }
            }
        }
        let found = recovery.finish();
        for frame in &found.sealed {
            self.books.0.entry(frame.segment).or_default().add(frame);
        }
        // In the same boot, nothing beyond what is found was written.
        self.enter_streams(state, &found, is_whole && !power_lost);
        for frame in &found.sealed {
            self.report(Report::Sealed(*frame));
        }
        for frame in merged(found.unsealed) {
            let (frames, losses) = encode(frame.stream, frame.first_seq, &Records::of(&frame), 0);
            self.leftover.extend(frames);
            losses.into_iter().for_each(|loss| self.declare(loss));
        }
        for loss in found.losses {
            self.declare(loss);
        }
        let books = &self.books;
        self.ledger.prune(|stream| books.hold(stream));
        // What is declared has to be durable before the tails go that show it.
        self.save_now();
        self.old_tails = read_tails;
        self.seal_leftover();
        self.sync_all();
        // Segments without one sound frame are of no more use.
        self.remove_acked();
        self.syncer.run_all();
        self.heed();
        for name in [OLD_LOSSES, OLD_NUMBERS] {
            if let Err(error) = self.disk.remove_small(name) {
                tracing::error!(name, %error, "not removed");
            }
        }
        self.measure_disk();
        self.count_bytes();
        self.hold_probing();
        Ok(found.counts)
    }

    /// Whether it could be read.
    fn read_segment(&mut self, number: u64, len: u64, recovery: &mut Recovery) -> bool {
        match self.disk.read(Kind::Segment, number) {
            Ok(bytes) => {
                let is_newer = recovery.segment(number, &bytes);
                if is_newer {
                    tracing::error!(
                        file = Kind::Segment.name(number),
                        "written by a newer version of this program and left as it is: \
                         start that version again to deliver it"
                    );
                }
                self.books.0.insert(
                    number,
                    Book {
                        bytes: len,
                        is_kept: is_newer,
                        ..Book::default()
                    },
                );
                true
            }
            // Left alone: it may be readable the next time.
            Err(error) => {
                tracing::error!(segment = number, %error, "a spool file cannot be read");
                false
            }
        }
    }

    /// Streams of earlier incarnations, of which something is to be delivered.
    fn enter_streams(&mut self, state: &State, found: &Recovered, is_all: bool) {
        for known in &state.streams {
            let found = found.ends.get(&known.stream).copied().unwrap_or(0);
            let reserved = known.reserved.filter(|_| !is_all).unwrap_or(0);
            self.ledger
                .old_stream(known.stream, known.floor, found.max(reserved));
        }
        // Of which the state knows nothing: written by an older version, or the
        // state is lost. What comes before is taken for delivered; if it is not,
        // the aggregator asks for it.
        let sealed = found.sealed.iter().map(|f| (f.stream, f.first, f.last));
        let unsealed = &found.unsealed;
        let unsealed = unsealed
            .iter()
            .map(|f| (f.stream, f.first_seq, f.last_seq()));
        let lost = found.losses.iter().map(|l| (l.stream, l.first, l.last));
        let mut ranges: BTreeMap<StreamId, (u64, u64)> = BTreeMap::new();
        for (stream, first, last) in sealed.chain(unsealed).chain(lost) {
            let known = ranges.entry(stream).or_insert((first, last));
            *known = (first.min(known.0), last.max(known.1));
        }
        for (stream, (first, last)) in ranges {
            self.ledger.old_stream(stream, first - 1, last);
        }
    }

    /// What stood in tails only, as segments. The tails stay until these are
    /// synced; if they cannot be written, the next seal tries again.
    fn seal_leftover(&mut self) {
        let leftover = std::mem::take(&mut self.leftover);
        let (host, samples): (Vec<_>, Vec<_>) = leftover
            .into_iter()
            .partition(|frame| frame.stream.kind == StreamKind::Host);
        for (kind, frames) in [(StreamKind::Host, host), (StreamKind::Samples, samples)] {
            if frames.is_empty() {
                continue;
            }
            // They stand in tails: nothing has to go for them.
            if let Err((error, frames)) = self.write_segment(kind, frames, false) {
                tracing::error!(%error, "what stands in tails cannot be sealed yet");
                self.leftover.extend(frames);
            }
        }
        if !self.leftover.is_empty() {
            self.unsealed_since_ns = Some(self.clock.raw_ns());
            return;
        }
        self.sync_sealed();
    }

    /// Makes everything that is held durable, as far as the disk tells the truth,
    /// whatever the policy.
    pub(super) fn sync_all(&mut self) {
        let mut files = Vec::new();
        for number in self.books.0.keys() {
            match self.disk.open_small(&Kind::Segment.name(*number)) {
                Ok(file) => files.push(file),
                Err(error) => {
                    tracing::error!(segment = number, %error, "cannot be synced");
                }
            }
        }
        if !files.is_empty() {
            self.syncer.send(Job::Settle(files));
        }
    }
}
