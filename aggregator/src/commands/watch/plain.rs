//! Lines, for files and pipes: events as they come, and each lane every two seconds.

use std::io::{self, Write};
use std::time::Duration;

use tokio::sync::mpsc;

use super::Told;
use super::shown::{Shown, millis, state_words};
use crate::exit::Exit;
use crate::output::note;

const EVERY_NS: i64 = 2_000_000_000;

/// Without a word for so long, a person is told what is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
const WAITS: &str = "there is no run yet: waiting for one to be started";

/// Prints until all is told, or nobody reads any more; `follows`: no run is named.
pub(super) async fn show(mut told: mpsc::Receiver<Told>, follows: bool) -> anyhow::Result<Exit> {
    note(
        "provisional: what is stored so far, with clocks as far as they are known; no data is not \
         health",
    );
    let mut shown = Shown::default();
    let mut next = (String::new(), i64::MIN);
    let mut is_gone = false;
    let mut next_message = match tokio::time::timeout(PATIENCE, told.recv()).await {
        Ok(message) => message,
        Err(_) => {
            note(WAITS);
            told.recv().await
        }
    };
    while let Some(message) = next_message {
        let mut is_over_now = false;
        let lines = match message {
            Told::View(view) => {
                if std::mem::take(&mut is_gone) {
                    note("the aggregator is back");
                }
                let is_over = view.run_state != "running";
                is_over_now = is_over;
                let (now, run) = (view.now_ns, view.run_id.clone());
                let mut lines = Vec::new();
                if next.0 != run {
                    lines.push(format!("run {run} {}", view.scenario));
                    next = (run, i64::MIN);
                }
                for event in shown.apply(*view) {
                    lines.push(format!(
                        "{:9.3} s  {:<7} {}",
                        event.at_ns as f64 / 1e9,
                        event.kind.as_str(),
                        event.text
                    ));
                }
                if now >= next.1 || is_over {
                    next.1 = now + EVERY_NS;
                    lines.extend(lanes(&shown, now));
                }
                lines
            }
            // Said once, and what was seen so far stands.
            Told::Gone(why) => {
                if !std::mem::replace(&mut is_gone, true) {
                    note(format!("? {why}; trying again until it is back"));
                }
                Vec::new()
            }
            Told::Over => break,
        };
        {
            let mut out = io::stdout().lock();
            for line in lines {
                match writeln!(out, "{line}") {
                    // Whoever reads has had enough.
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                        return Ok(Exit::Ok);
                    }
                    other => other?,
                }
            }
            out.flush()?;
        }
        if is_over_now && follows {
            note("that run is over: waiting for the next one");
        }
        next_message = told.recv().await;
    }
    Ok(Exit::Ok)
}

fn lanes(shown: &Shown, now_ns: i64) -> Vec<String> {
    let several = shown.has_several_agents();
    let Some(view) = &shown.view else {
        return Vec::new();
    };
    let latency = |ns: Option<u64>| ns.map_or("-".to_owned(), millis);
    shown
        .lanes
        .iter()
        .map(|lane| {
            let told = &lane.told;
            let strip: String = lane
                .strip(now_ns, 12)
                .iter()
                .map(|c| c.sign(false))
                .collect();
            let backends: Vec<&str> = told
                .backends
                .iter()
                .filter_map(|at| view.backends.get(*at as usize).map(String::as_str))
                .collect();
            let on = match backends.is_empty() {
                true => "nobody".to_owned(),
                false => backends.join(","),
            };
            format!(
                "{:9.1} s  {} [{strip}] {}; on {on}; {:.0}/s p50 {} p99 {}; {} bad {} late",
                now_ns as f64 / 1e9,
                lane.name(several),
                state_words(told, 0).1,
                told.rate,
                latency(told.p50_ns),
                latency(told.p99_ns),
                told.bad,
                told.late,
            )
        })
        .collect()
}
