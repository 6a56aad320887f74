//! What was lost, on disk and to the uplink; numbers of files.

use super::{FILES_FILE, FileNumbers, LOSSES_FILE, RESERVE_NUMBERS, Writer};
use crate::spool::{Loss, Report};

impl Writer {
    pub(super) fn declare(&mut self, loss: Loss) {
        self.remember(loss);
        self.report(Report::Lost(loss));
    }

    pub(super) fn remember(&mut self, loss: Loss) {
        self.losses.push(loss);
        self.save_losses();
    }

    pub(super) fn save_losses(&self) {
        let saved = serde_json::to_vec(&self.losses)
            .map_err(std::io::Error::other)
            .and_then(|bytes| self.disk.replace(LOSSES_FILE, &bytes));
        if let Err(error) = saved {
            tracing::error!(%error, "a loss cannot be recorded on disk");
        }
    }

    pub(super) fn report(&self, report: Report) {
        // Nobody listens while the agent shuts down: it is all on disk.
        let _ = self.reports.send(report);
    }

    /// A number no file of this spool ever had or will have.
    pub(super) fn new_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        if number >= self.reserved {
            let reserved = number + RESERVE_NUMBERS;
            let bytes = serde_json::to_vec(&FileNumbers {
                version: 1,
                next: reserved,
            })
            .expect("two numbers can be written as JSON");
            match self.disk.replace(FILES_FILE, &bytes) {
                Ok(()) => self.reserved = reserved,
                Err(error) => tracing::error!(%error, "{FILES_FILE} cannot be written"),
            }
        }
        number
    }
}
