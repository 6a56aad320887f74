//! When a run is closed, how, and who is told.

use tokio::time::Instant;

use super::{GRACE_NS, LATE_MERGE, RunTask, SETTLE_NS};
use crate::ingest::accounts::accounts;
use crate::ingest::command::Closed;
use crate::ingest::ending::{missing, since_planned_end, unheard};
use crate::store::RunStore;
use crate::store::manifest::{Manifest, RunState};
use crate::utc::rfc3339;

/// Why a run ended: a stop that came when all agents had come to the planned end by
/// themselves cut nothing short.
fn why_ended(manifest: &Manifest, reason: String) -> String {
    const PLANNED: &str = "planned end";
    let mut newest = manifest
        .agents
        .iter()
        .map(|agent| agent.incarnations.last());
    let all_came = !manifest.agents.is_empty()
        && newest.all(|start| {
            let ended = start.and_then(|start| start.ended.as_ref());
            ended.is_some_and(|ended| ended.reason == PLANNED)
        });
    if all_came && !reason.contains(PLANNED) {
        return format!("{PLANNED} (closed after it: {reason})");
    }
    reason
}

impl RunTask {
    pub(super) fn missing(&self) -> Vec<String> {
        let manifest = self.store.manifest();
        let mut lacking = missing(manifest, |agent, incarnation| {
            let entry = manifest.agents.iter().find(|a| a.agent_id == *agent);
            let shares_id = entry.is_some_and(|entry| entry.shares_id);
            self.starts.is_over(agent, incarnation, shares_id)
        });
        lacking.extend(unheard(manifest, &self.probing));
        lacking
    }

    /// Nobody waits for a close longer than was said.
    pub(super) fn tell_stoppers_of_trouble(&mut self) {
        let now = Instant::now();
        if self
            .stopping
            .as_ref()
            .is_some_and(|stopping| stopping.until <= now)
        {
            self.tell_all_stoppers();
        }
    }

    /// Whoever waits for the close is told that it does not come.
    pub(super) fn tell_all_stoppers(&mut self) {
        let text = self.trouble.clone().unwrap_or_default();
        for reply in self.stopping.take().into_iter().flat_map(|s| s.replies) {
            let _ = reply.send(Err(text.clone()));
        }
    }

    pub(super) fn close_is_due(&self) -> Option<String> {
        if self.retrying {
            return None;
        }
        let complete = || !self.store.is_dirty() && self.missing().is_empty();
        if let Some(stopping) = &self.stopping {
            return (stopping.until <= Instant::now() || complete())
                .then(|| stopping.reason.clone());
        }
        if self.store.manifest().state == RunState::Running {
            let (key, now) = (self.clock.key(), self.clock.anchor());
            let since = since_planned_end(self.store.manifest(), &key, &now);
            if since > GRACE_NS || (since > SETTLE_NS && complete()) {
                return Some("planned end".to_owned());
            }
            return None;
        }
        let late = self.store.has_live_parts() && self.last_command.elapsed() > LATE_MERGE;
        late.then(|| "completed by what arrived late".to_owned())
    }

    pub(super) async fn close(&mut self, reason: String) {
        // So that what has arrived is not called missing.
        if self.store.pending() > 0 {
            let result = self.blocking(RunStore::commit).await;
            self.after_write(result);
        }
        self.end_compacting().await;
        let missing = self.missing();
        let anchor = self.clock.anchor();
        let before = self.store.manifest().state;
        let first =
            before == RunState::Running || (before == RunState::Interrupted && missing.is_empty());
        let noted = missing.clone();
        let nothing_new =
            before == RunState::Closed && !self.store.is_dirty() && !self.store.has_live_parts();
        let result = if nothing_new {
            Ok(())
        } else {
            self.blocking(move |store| {
                store.close(|manifest| {
                    if !first {
                        return;
                    }
                    manifest.state = RunState::Closed;
                    manifest.closed_utc = Some(rfc3339(anchor.realtime_ns));
                    manifest.end_reason = Some(why_ended(manifest, reason));
                    manifest.anchors.push(anchor);
                    for what in noted {
                        let caveat = format!("missing when the run was closed: {what}");
                        if !manifest.caveats.contains(&caveat) {
                            manifest.caveats.push(caveat);
                        }
                    }
                })
            })
            .await
        };
        if result.is_ok()
            && !nothing_new
            && let Some(reporter) = &self.reporter
        {
            reporter.wanted(self.store.folder());
        }
        let text = result.as_ref().err().map(ToString::to_string);
        self.after_write(result);
        if text.is_none() && first {
            tracing::info!(
                run = %self.store.manifest().run_id,
                samples = self.store.samples_stored(),
                missing = missing.len(),
                "closed"
            );
        }
        // A close that failed is tried again, but whoever waits is told now.
        if let Some(stopping) = self.stopping.take() {
            let closed = Closed {
                folder: self.store.folder().to_owned(),
                missing,
                accounts: accounts(self.store.manifest(), self.store.losses()),
            };
            for reply in stopping.replies {
                let answer = text.clone().map_or_else(|| Ok(closed.clone()), Err);
                let _ = reply.send(answer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::ending::tests::manifest;
    use gapscope_proto::host::ProbingEnded;
    use gapscope_proto::ids::Incarnation;

    #[test]
    fn a_stop_after_the_planned_end_cut_nothing_short() {
        let why = |ends: &[Option<&str>]| {
            let mut manifest = manifest();
            manifest.agents.clear();
            for (number, end) in ends.iter().enumerate() {
                let agent = format!("a{number}").parse().expect("an id");
                let start = manifest.incarnation_mut(&agent, Incarnation::generate());
                start.ended = end.map(|reason| ProbingEnded {
                    end_ns: 1,
                    reason: reason.to_owned(),
                    due: 0,
                    sampled: 0,
                    waited: 0,
                    overslept: 0,
                });
            }
            why_ended(&manifest, "stopped by an operator".to_owned())
        };
        let planned = "planned end (closed after it: stopped by an operator)";
        assert_eq!(why(&[Some("planned end")]), planned);
        for cut in [
            &[Some("stopped")][..],
            &[None],
            &[],
            &[Some("planned end"), None],
        ] {
            assert_eq!(why(cut), "stopped by an operator", "{cut:?}");
        }
    }
}
