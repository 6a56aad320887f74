//! Plays the timeline while people watch.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use gapscope_proto::clock::Clock;
use gapscope_proto::fault::Fault;

use super::{AFTER_THE_END_NS, Up, interrupted};
use crate::clock_wait::until;
use crate::control::{Control, Counters};
use crate::error::{Problem, Result};
use crate::output::Screen;
use crate::play::{Player, Record};
use crate::progress::Progress;
use crate::repeat::Repeater;
use crate::scenario::{Scenario, target_names};
use crate::signals::Signals;
use crate::timeline::Due;
use crate::view::Kept;

/// A step that was begun before the end may take so long beyond it: what was done has
/// to be noted.
const STEP_PATIENCE_NS: i64 = 10_000_000_000;
const LOOK_AGAIN_NS: i64 = 20_000_000;
/// How often what was seen of proxies' views is written.
const KEPT_EVERY: Duration = Duration::from_secs(30);

/// Faults go to the aggregator.
struct ToAggregator {
    control: Control,
    run_id: String,
}

impl Record for ToAggregator {
    fn record<'a>(&'a mut self, fault: &'a Fault) -> LocalBoxFuture<'a, Result<u32>> {
        self.control.record(&self.run_id, fault).boxed_local()
    }
}

/// How long the agent's word of its begin may take to become durable: it is sealed
/// within a second, sent, and written.
const ORIGIN_WITHIN: Duration = Duration::from_secs(10);
const LOOK_FOR_ORIGIN: Duration = Duration::from_millis(20);

/// When the agent's first slot was due, as soon as the run's manifest says so.
pub(super) async fn origin_of(folder: &Path, clock: &dyn Clock) -> Option<i64> {
    let key = serde_json::to_value(clock.key()).ok()?;
    for _ in 0..ORIGIN_WITHIN.as_millis() / LOOK_FOR_ORIGIN.as_millis() {
        let origin = std::fs::read_to_string(folder.join("manifest.json"))
            .ok()
            .and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok())
            .and_then(|manifest| {
                let started = &manifest["agents"][0]["incarnations"][0]["started"];
                (started["clock"] == key).then(|| started["origin_ns"].as_i64())?
            });
        if origin.is_some() {
            return origin;
        }
        tokio::time::sleep(LOOK_FOR_ORIGIN).await;
    }
    None
}

/// Plays the timeline and shows progress until the run is over; returns why it
/// ended early, if it did.
#[expect(clippy::too_many_arguments, reason = "each is a thing of its own")]
pub(super) async fn watch(
    up: &mut Up,
    scenario: &Scenario,
    due: &[Due],
    (repeater, show): (
        Option<Repeater<'_>>,
        tokio::sync::watch::Sender<Vec<Counters>>,
    ),
    (run_id, folder): (&str, &Path),
    kept: &Kept,
    origin_ns: i64,
    clock: &Arc<dyn Clock>,
    signals: &mut Signals,
    ascii: bool,
) -> Option<Problem> {
    let span = i64::try_from(scenario.duration_ns).unwrap_or(i64::MAX);
    let mut end_ns = origin_ns
        .saturating_add(span)
        .saturating_add(AFTER_THE_END_NS);
    let at_the_latest_ns = end_ns.saturating_add(STEP_PATIENCE_NS);
    let elapsed = |now: i64| u64::try_from(now.saturating_sub(origin_ns)).unwrap_or(0);
    let names = up
        .found
        .subjects
        .iter()
        .filter_map(|subject| Some((subject.identity.clone()?, subject.name.clone())))
        .collect();
    let first = due.first().map_or_else(
        || match &repeater {
            Some(_) => "next: the first repetition".to_owned(),
            None => "nothing is done".to_owned(),
        },
        |step| format!("next: {} `{}`", step.action, step.subject),
    );
    let mut progress = Progress::new(target_names(scenario), names, scenario.duration_ns, first);
    if repeater.is_some() {
        progress = progress.at_most();
    }
    let mut screen = Screen::new(ascii);
    let mut record = ToAggregator {
        control: up.services.control.clone(),
        run_id: run_id.to_owned(),
    };
    let (telling, mut told) = tokio::sync::mpsc::unbounded_channel::<String>();
    let mut tell = |text: &str| {
        let after = elapsed(clock.raw_ns()) as f64 / 1e9;
        // The receiver lives as long as this.
        let _ = telling.send(format!("{after:>6.2} s  {text}"));
    };
    let mut repeater = repeater;
    let login = up.lab.login.clone();
    let mut player = Player::new(
        Arc::clone(clock),
        &mut up.lab.backends,
        &mut up.lab.proxies,
        &up.found.subjects,
        &mut record,
        &mut tell,
    );
    player.ask_as(login);
    // With many repetitions the changes of mind would be the bulk of the run's notes.
    player.look_at_views(kept.clone(), repeater.is_some());
    let busy = player.busy();
    let playing = async {
        match &mut repeater {
            Some(repeater) => repeater.play(&mut player).await,
            None => match player.play(due, origin_ns).await {
                Ok(never) => match never {},
                Err(problem) => Err(problem),
            },
        }
    };
    tokio::pin!(playing);
    let mut readings = up.services.control.clone().watch(run_id).await.ok();
    let mut ticker = tokio::time::interval(Duration::from_millis(500));
    let mut keeper = tokio::time::interval(KEPT_EVERY);
    keeper.tick().await;
    loop {
        let reading = async {
            match &mut readings {
                Some(readings) => readings.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = until(clock.as_ref(), end_ns) => {
                let now = clock.raw_ns();
                if !busy.load(Ordering::Relaxed) {
                    return None;
                }
                if now >= at_the_latest_ns {
                    return Some(Problem::new(
                        "a step was still being done 10 s after the end of the run: it may be \
                         missing from the report",
                    ));
                }
                end_ns = now.saturating_add(LOOK_AGAIN_NS);
            }
            signal = signals.next() => {
                let after = elapsed(clock.raw_ns()) as f64 / 1e9;
                screen.note(&format!("{signal}: stopping the run"));
                return Some(interrupted(signal, &format!("{after:.1} s after the start"))
                    .hint("the summary covers what was measured until then"));
            }
            played = &mut playing => return match played {
                // All repetitions were made.
                Ok(()) => None,
                Err(problem) => {
                    screen.note(&problem.to_string());
                    Some(problem)
                }
            },
            Some(text) = told.recv() => {
                progress.set_step(text.trim_start());
                screen.note(&text);
            }
            reading = reading => match reading {
                Some(reading) => {
                    let now = elapsed(clock.raw_ns());
                    progress.update(&reading, now);
                    show.send_replace(reading);
                    screen.show(&progress, now);
                }
                // Progress is a comfort; the run goes on without.
                None => readings = None,
            },
            _ = keeper.tick() => {
                let (kept, folder) = (kept.clone(), folder.to_owned());
                // What is wrong with the folder is said when the run has ended.
                tokio::task::spawn_blocking(move || kept.write(&folder).is_ok());
            }
            _ = ticker.tick() => {
                if let Some(problem) = up.services.failure() {
                    screen.note(&problem.to_string());
                    return Some(problem);
                }
            }
        }
    }
}
