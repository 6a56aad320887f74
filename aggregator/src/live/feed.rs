//! Between a run's task and those who watch it.
//!
//! The task hands over what it takes in and never waits for anybody: updates go
//! through a ring of [`RING`] that overwrites its oldest, and are put together by a
//! task of their own, only while somebody watches. Who did not keep up is told how
//! many updates passed him by, and gets the whole again.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gapscope_proto::batch::{Row, Series};
use gapscope_proto::clock::{Clock, ClockKey};
use gapscope_proto::fault::Fault;
use gapscope_proto::host::HostRecord;
use gapscope_proto::ids::AgentId;
use tokio::sync::Notify;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio_util::sync::CancellationToken;

use super::model::Model;
use super::presence::Presence;
use super::totals::Totals;
use super::view::View;
use crate::store::manifest::{Manifest, RunState};

/// Updates that a watcher may be behind.
pub const RING: usize = 16;
/// Between two updates, at least.
const AT_LEAST: Duration = Duration::from_millis(100);
/// And at most, also when nothing arrives: silence grows.
const AT_MOST: Duration = Duration::from_millis(500);

/// What all runs share.
#[derive(Debug, Clone, Default)]
pub struct Live {
    /// Which agents are there.
    pub presence: Arc<Presence>,
    /// Sums over all runs.
    pub totals: Arc<Totals>,
}

/// One run's feed.
pub struct Feed {
    model: Mutex<Model>,
    clock: Arc<dyn Clock>,
    live: Live,
    updates: broadcast::Sender<Arc<View>>,
    stirred: Notify,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed")
            .field("watchers", &self.updates.receiver_count())
            .finish_non_exhaustive()
    }
}

impl Feed {
    /// A feed of a run, until `ended`. Of the `stored` samples that an earlier start
    /// of the aggregator took in, only the number is known here.
    pub fn start(
        manifest: &Manifest,
        stored: u64,
        faults: &[Fault],
        clock: Arc<dyn Clock>,
        live: Live,
        ended: CancellationToken,
    ) -> Arc<Self> {
        let feed = Self::make(manifest, stored, faults, clock, live);
        let telling = feed.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = telling.tell() => {}
            }
            telling.publish();
            telling.model().forget();
        });
        feed
    }

    fn make(
        manifest: &Manifest,
        stored: u64,
        faults: &[Fault],
        clock: Arc<dyn Clock>,
        live: Live,
    ) -> Arc<Self> {
        let now = clock.anchor();
        let mut model = Model::new(manifest, clock.key(), &now);
        model.stored_before(stored, now.raw_after_ns);
        for fault in faults {
            model.fault(fault, now.raw_after_ns);
        }
        Arc::new(Self {
            model: Mutex::new(model),
            clock,
            live,
            updates: broadcast::Sender::new(RING),
            stirred: Notify::new(),
        })
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn tell(&self) {
        loop {
            let _ = tokio::time::timeout(AT_MOST, self.stirred.notified()).await;
            self.publish();
            tokio::time::sleep(AT_LEAST).await;
        }
    }

    fn publish(&self) {
        if self.updates.receiver_count() > 0 {
            let seats = self.live.presence.all();
            let view = self.model().changes(&self.clock.anchor(), &seats);
            // The last one may have gone meanwhile.
            let _ = self.updates.send(Arc::new(view));
        }
    }

    /// Samples have arrived: what they have in common, and each one's own.
    pub fn take_rows(&self, agent: &AgentId, clock: &ClockKey, series: &[Series], rows: &[Row]) {
        self.model().take_rows(agent, clock, series, rows);
    }

    /// Records of an agent's host have arrived.
    pub fn take_host(&self, agent: &AgentId, clock: &ClockKey, records: &[HostRecord]) {
        let now = self.clock.raw_ns();
        self.model().take_host(agent, clock, records, now);
    }

    /// Records that will never come.
    pub fn take_loss(&self, agent: &AgentId, count_max: u64, reason: &str) {
        self.live
            .totals
            .lost
            .fetch_add(count_max, Ordering::Relaxed);
        let now = self.clock.raw_ns();
        self.model().take_loss(agent, count_max, reason, now);
    }

    /// All that has arrived is durable.
    pub fn acknowledged(&self) {
        let counts = self.model().acknowledged(self.clock.raw_ns());
        if counts.is_empty() {
            return;
        }
        for ((target, style), counts) in &counts {
            self.live.totals.add(target, *style, counts);
        }
        self.stirred.notify_one();
    }

    /// A fault was recorded.
    pub fn fault(&self, fault: &Fault) {
        self.model().fault(fault, self.clock.raw_ns());
        self.stirred.notify_one();
    }

    /// How the run stands.
    pub fn stands(&self, state: RunState, trouble: Option<&str>) {
        self.model().stands(state, trouble, self.clock.raw_ns());
    }

    /// Looks at the model, for sums.
    pub fn look<T>(&self, with: impl FnOnce(&Model, i64) -> T) -> T {
        let now = self.clock.raw_ns();
        with(&self.model(), now)
    }

    /// Begins to watch.
    pub fn watch(self: &Arc<Self>) -> Watching {
        Watching {
            updates: self.updates.subscribe(),
            feed: self.clone(),
            missed: 0,
            is_whole_due: true,
        }
    }
}

/// One who watches a run.
#[derive(Debug)]
pub struct Watching {
    feed: Arc<Feed>,
    updates: broadcast::Receiver<Arc<View>>,
    missed: u64,
    is_whole_due: bool,
}

impl Watching {
    /// The whole at first, then what changed; the whole again after updates that
    /// were missed. Never ends by itself.
    pub async fn next(&mut self) -> Arc<View> {
        loop {
            if std::mem::take(&mut self.is_whole_due) {
                // What comes later begins where this ends, or before it.
                self.updates = self.updates.resubscribe();
                let seats = self.feed.live.presence.all();
                let now = self.feed.clock.anchor();
                let whole = self.feed.model().whole(&now, &seats);
                return Arc::new(View {
                    missed: self.missed,
                    ..whole
                });
            }
            match self.updates.recv().await {
                Ok(view) => return view,
                Err(RecvError::Lagged(missed)) => {
                    self.missed += missed;
                    self.feed
                        .live
                        .totals
                        .missed
                        .fetch_add(missed, Ordering::Relaxed);
                    self.is_whole_due = true;
                }
                // The feed itself holds a sender.
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapscope_proto::batch::Columns;
    use gapscope_proto::clock::SimClock;
    use gapscope_proto::host::{Anchor, HostFacts};
    use gapscope_proto::ids::RunId;
    use gapscope_proto::plan::{ClientGroup, ClientKind, RunPlan, Timeouts};
    use gapscope_proto::sample::{Outcome, Phase, Sample, Style};
    use gapscope_proto::time::Timestamp;

    use crate::store::manifest::{FORMAT_VERSION, Schedule};

    fn manifest(clock: &SimClock) -> Manifest {
        let run_id = RunId::generate();
        let now: Anchor = clock.anchor();
        Manifest {
            format_version: FORMAT_VERSION,
            run_id,
            state: RunState::Running,
            created_utc: String::new(),
            closed_utc: None,
            end_reason: None,
            program_version: String::new(),
            host: HostFacts::default(),
            clock: clock.key(),
            anchors: vec![now],
            plan: RunPlan {
                run_id,
                scenario: "s".to_owned(),
                duration_ns: 60_000_000_000,
                deadline_ns: 250_000_000,
                groups: vec![ClientGroup {
                    target: "t".parse().expect("a name"),
                    style: Style::Reused,
                    kind: ClientKind::Bare,
                    first_client: 0,
                    clients: 1,
                    interval_ns: 10_000_000,
                    timeouts: Timeouts {
                        resolve_ns: None,
                        connect_ns: None,
                        query_ns: None,
                    },
                }],
                identity: None,
                scenario_toml: String::new(),
            },
            schedule: Schedule::OpenLoop,
            subjects: Vec::new(),
            labels: std::collections::BTreeMap::new(),
            agents: Vec::new(),
            caveats: Vec::new(),
            files: None,
        }
    }

    fn sample(slot: u64, at: i64) -> Sample {
        let at = Timestamp::from_ns(at);
        Sample {
            target: Arc::new("t".parse().expect("a name")),
            style: Style::Reused,
            client: 0,
            slot,
            scheduled: at,
            started: at,
            finished: at + 1_000_000,
            resolve_ns: None,
            connect_ns: None,
            query_ns: Some(1_000_000),
            phase: Phase::Query,
            outcome: Outcome::Ok,
            cause: None,
            error_code: None,
            sqlstate: None,
            error: None,
            may_have_executed: false,
            connection: Some(1),
            connection_id: None,
            handshake_id: None,
            backend: Some("b:1".into()),
            peer: None,
            server_version: None,
            canary: None,
        }
    }

    #[tokio::test]
    async fn who_does_not_keep_up_misses_updates_and_begins_anew() {
        let clock = Arc::new(SimClock::new(5_000_000_000, 0));
        let live = Live::default();
        let feed = Feed::make(&manifest(&clock), 0, &[], clock.clone(), live.clone());
        let agent: AgentId = "a".parse().expect("a name");
        let mut slow = feed.watch();
        let mut quick = feed.watch();
        assert!(slow.next().await.is_whole && quick.next().await.is_whole);
        let mut seen = 0;
        for slot in 0..100 {
            let at = clock.raw_ns();
            let columns = Columns::encode(&[sample(slot, at)]);
            let rows = columns.rows().expect("sound");
            feed.take_rows(&agent, &clock.key(), &columns.series, &rows);
            let before = feed.look(|model, now| model.agents(now).next().and_then(|a| a.2));
            assert_eq!(
                before.is_none(),
                slot == 0,
                "only what is acknowledged counts"
            );
            feed.acknowledged();
            clock.advance(250_000_000);
            feed.publish();
            let view = quick.next().await;
            assert!(!view.is_whole);
            seen += view
                .lanes
                .iter()
                .flat_map(|lane| &lane.bins)
                .map(|bin| bin.ok)
                .sum::<u32>();
        }
        // Columns are told anew whenever they change, so each was told once or more.
        assert!(seen >= 100, "{seen}");
        assert_eq!(live.totals.missed.load(Ordering::Relaxed), 0);
        let again = slow.next().await;
        assert!(again.is_whole);
        assert!(again.missed >= 80, "{}", again.missed);
        assert_eq!(live.totals.missed.load(Ordering::Relaxed), again.missed);
        assert_eq!(again.lanes[0].ok, 100);
        assert_eq!(
            again.lanes[0].bins.iter().map(|bin| bin.ok).sum::<u32>(),
            100
        );
        assert_eq!(again.samples, 100);
        assert_eq!(live.totals.lanes().len(), 1);
    }

    #[tokio::test]
    async fn after_a_restart_what_was_stored_is_counted_and_said() {
        let clock = Arc::new(SimClock::new(5_000_000_000, 0));
        let feed = Feed::make(&manifest(&clock), 4711, &[], clock, Live::default());
        let view = feed.watch().next().await;
        assert_eq!(view.samples, 4711);
        let texts = view.events.iter().map(|event| event.text.as_str());
        let said: Vec<&str> = texts.collect();
        assert!(
            said.iter().any(|text| text.contains("4711 samples")),
            "{said:?}"
        );
        let made_up = view.lanes.iter().any(|lane| lane.ok > 0);
        assert!(!made_up, "and no lane makes them up");
    }

    #[test]
    fn nobody_watching_costs_no_updates() {
        let clock = Arc::new(SimClock::new(5_000_000_000, 0));
        let feed = Feed::make(&manifest(&clock), 0, &[], clock, Live::default());
        feed.publish();
        assert_eq!(feed.updates.len(), 0);
    }
}
