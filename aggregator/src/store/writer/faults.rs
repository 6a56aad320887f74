//! Faults: recorded one by one, rewritten whole.

use gapscope_proto::fault::{FIRST_NOTE_ID, Fault};

use super::RunStore;
use crate::store::error::StoreError;
use crate::store::frame;

impl RunStore {
    /// Records a fault, or adds to one with the same id; id 0 takes the next
    /// free one, of its own kind: notes use up no fault's number. Durable when it returns.
    ///
    /// # Errors
    /// When it could not be written; then nothing has changed.
    pub fn record_fault(&mut self, mut fault: Fault) -> Result<u32, StoreError> {
        let before = self.faults.clone();
        if fault.id == 0 {
            fault.id = next_id(&self.faults, fault.is_note());
        }
        let id = fault.id;
        match self.faults.iter_mut().find(|f| f.id == id) {
            Some(known) => update_fault(known, fault),
            None => self.faults.push(fault),
        }
        self.faults.sort_by_key(|f| f.id);
        let path = self.folder.join("faults.parquet");
        let written = self.unlist().and_then(|()| {
            frame::faults_frame(&self.faults)
                .map_err(StoreError::parquet("write", &path))
                .and_then(|frame| self.write_part(&path, frame, &[]))
        });
        if let Err(error) = written {
            self.faults = before;
            return Err(error);
        }
        if self.list_again()
            && let Err(error) = self.write_manifest()
        {
            // The fault is recorded; the list comes with the next commit.
            tracing::warn!(run = %self.manifest.run_id, "{error}");
        }
        Ok(id)
    }
}

fn next_id(known: &[Fault], is_note: bool) -> u32 {
    let first = if is_note { FIRST_NOTE_ID } else { 1 };
    known
        .iter()
        .map(|fault| fault.id)
        .filter(|id| (*id >= FIRST_NOTE_ID) == is_note)
        .max()
        .map_or(first, |last| last.saturating_add(1))
}

/// What is learnt later is added; what is known stays unless it is said anew.
fn update_fault(known: &mut Fault, new: Fault) {
    known.step = new.step;
    known.subject = new.subject;
    known.scope = new.scope;
    known.clock = new.clock;
    known.asked = new.asked;
    known.identity = new.identity.or(known.identity.take());
    known.listener_refused = new.listener_refused.or(known.listener_refused);
    known.held_cut = new.held_cut.or(known.held_cut);
    known.gone = new.gone.or(known.gone);
    known.cleared = new.cleared.or(known.cleared);
    if !new.detail.is_empty() {
        known.detail = new.detail;
    }
}
