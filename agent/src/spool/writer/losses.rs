//! What was lost, and what is saved of it; numbers of files; what the syncing
//! thread has to say.

use super::{AT_ONCE, REST_NS, Writer};
use crate::spool::disk::Kind;
use crate::spool::sync::{Done, Job, Sealed};
use crate::spool::{Loss, Report};

impl Writer {
    /// A new loss, for the uplink and the state; the caller saves.
    pub(super) fn declare(&mut self, loss: Loss) {
        self.ledger.lose(loss);
        self.report(Report::Lost(loss));
    }

    pub(super) fn report(&self, report: Report) {
        // Nobody listens while the agent shuts down: it is all on disk.
        let _ = self.reports.send(report);
    }

    /// Has the state saved, and files removed behind it.
    pub(super) fn save(&mut self, mut remove: Vec<(Kind, u64)>) {
        remove.append(&mut self.unremoved);
        // What is removed behind it may hold what was delivered.
        for (stream, seq) in &self.acked {
            self.ledger.acked(stream, *seq);
        }
        let (number, state) = self.ledger.save();
        self.syncer.send(Job::Save {
            number,
            state: Box::new(state),
            remove,
        });
    }

    /// As [`Self::save`], and waits for it.
    pub(super) fn save_now(&mut self) {
        self.save(Vec::new());
        self.syncer.run_all();
        self.heed();
    }

    /// A number no file of this spool ever had or will have.
    pub(super) fn new_number(&mut self) -> u64 {
        let (number, must_save) = self.ledger.new_file();
        if must_save {
            self.save_now();
        }
        number
    }

    /// Takes note of what came of syncs and saves.
    pub(super) fn heed(&mut self) {
        for done in self.syncer.take_done() {
            match done {
                Done::Saved(number) => {
                    self.ledger.saved(number);
                    self.ledger.has_failed = false;
                }
                Done::SaveFailed(number, files) => {
                    self.unremoved.extend(files);
                    self.ledger.saved(number);
                    self.ledger.has_failed = true;
                    self.save_again_ns = self.clock.raw_ns().saturating_add(REST_NS);
                }
                Done::TailFailed(number) => {
                    if self.tail.as_ref().is_some_and(|tail| tail.number == number) {
                        self.give_tail_up();
                        self.unsealed_since_ns = self.unsealed_since_ns.map(|_| AT_ONCE);
                    }
                }
                Done::Kept(files) => self.unremoved.extend(files),
                Done::SealFailed(sealed) => self.seal_failed(sealed),
            }
        }
    }

    /// What the kernel still holds of these segments is not known. Their tails
    /// stay as long as they do: they may be the only sound copy.
    fn seal_failed(&mut self, sealed: Sealed) {
        self.segments
            .retain(|_, segment| !sealed.segments.contains(&segment.number));
        let keeper = sealed
            .segments
            .iter()
            .rev()
            .find(|number| self.books.0.contains_key(number));
        match keeper.and_then(|number| self.books.0.get_mut(number)) {
            Some(book) => book.tails.extend(sealed.tails),
            // All acknowledged meanwhile, or nothing of use in them.
            None => {
                let tails = sealed.tails.iter().map(|(n, _)| (Kind::Tail, *n));
                self.save(tails.collect());
            }
        }
        self.count_bytes();
    }
}
