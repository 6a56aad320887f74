//! What the engine says that happened, and when.
//!
//! Method: one `docker events` for the lab's life. Each event bears the engine's wall
//! clock. Reading an event, all clocks of this host are read together, and the
//! difference of wall clock and RAW then places the event on RAW: widened by the time
//! that reading took and by 500 ppm of the event's age, the most by which a wall clock
//! is slewed.
//!
//! What it cannot know: whether the wall clock was stepped between the event and its
//! reading, or is another host's. So an event only ever narrows what is known without
//! it (see [`Event::within`]): one that lies outside is not believed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::fault::Span;
use serde::Deserialize;
use tokio::sync::broadcast;

use crate::children::{Child, Itself};
use crate::error::{Problem, Result};

/// Events that a slow reader may be behind.
const BEHIND: usize = 1_000;
/// The most by which a wall clock is slewed, in parts of a million.
const SLEW_PPM: i64 = 500;

/// Something that happened to a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// `kill`, `die`, `pause` ...; of a network: `connect`, `disconnect`.
    pub action: String,
    /// Whose.
    pub container: String,
    /// `signal`, `exitCode` ...
    pub attributes: BTreeMap<String, String>,
    /// When, by this host's RAW clock.
    pub when: Span,
}

impl Event {
    /// When it happened, if it was not before `earliest_ns` and not after
    /// `latest_ns`, which is what is known without it; else none: the clocks differ.
    pub fn within(&self, earliest_ns: i64, latest_ns: i64) -> Option<Span> {
        let when = Span {
            earliest_ns: self.when.earliest_ns.max(earliest_ns),
            latest_ns: self.when.latest_ns.min(latest_ns),
        };
        (when.earliest_ns <= when.latest_ns).then_some(when)
    }
}

#[derive(Debug, Deserialize)]
struct Line {
    #[serde(rename = "Type", default)]
    kind: String,
    #[serde(rename = "Action", default)]
    action: String,
    #[serde(rename = "Actor")]
    actor: Actor,
    #[serde(rename = "timeNano")]
    time_ns: i64,
}

#[derive(Debug, Deserialize)]
struct Actor {
    #[serde(rename = "ID", default)]
    id: String,
    #[serde(rename = "Attributes", default)]
    attributes: BTreeMap<String, String>,
}

/// Reads one line, at a moment at which all clocks were read.
fn read(line: &str, clock: &dyn Clock) -> Option<Event> {
    let line: Line = serde_json::from_str(line).ok()?;
    let container = match line.kind.as_str() {
        "container" => line.actor.id.clone(),
        "network" => line.actor.attributes.get("container")?.clone(),
        _ => return None,
    };
    let now = clock.anchor();
    let age = now.realtime_ns.saturating_sub(line.time_ns);
    let slewed = age.saturating_abs() / 1_000_000 * SLEW_PPM + 1_000;
    Some(Event {
        action: line.action,
        container,
        attributes: line.actor.attributes,
        when: Span {
            earliest_ns: now.raw_before_ns.saturating_sub(age).saturating_sub(slewed),
            latest_ns: now.raw_after_ns.saturating_sub(age).saturating_add(slewed),
        },
    })
}

/// Where they come from.
#[derive(Clone)]
pub struct Events {
    sender: broadcast::Sender<Event>,
    _process: Child,
}

impl Events {
    /// Begins to listen. Must be called on a thread that lives as long as the lab.
    ///
    /// # Errors
    /// When the program does not start.
    pub fn listen(
        itself: &Itself,
        docker: &std::path::Path,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self> {
        let failed = |error: std::io::Error| {
            Problem::new(format!("cannot listen to the engine's events: {error}"))
        };
        let (reader, writer) = std::io::pipe().map_err(failed)?;
        // What happens before it has connected is told afterwards.
        let since = clock.anchor().realtime_ns / 1_000_000_000;
        let since = since.to_string();
        let mut command = itself.wrapped(
            None,
            None,
            docker,
            [
                "events",
                "--since",
                &since,
                "--filter",
                "type=container",
                "--filter",
                "type=network",
                "--format",
                "{{json .}}",
            ],
        );
        command
            .stdin(std::process::Stdio::null())
            .stdout(writer)
            .stderr(std::process::Stdio::null());
        let process = Child::start_as_is("docker events", command, None).map_err(failed)?;
        let (sender, _) = broadcast::channel(BEHIND);
        let (telling, clock) = (sender.clone(), Arc::clone(clock));
        tokio::task::spawn_blocking(move || {
            // Ends with the process.
            for line in BufReader::new(reader)
                .lines()
                .map_while(std::io::Result::ok)
            {
                if let Some(event) = read(&line, clock.as_ref()) {
                    // An error means that nobody waits for any.
                    let _ = telling.send(event);
                }
            }
        });
        Ok(Self {
            sender,
            _process: process,
        })
    }

    /// Those from now on that are about one container.
    pub fn of(&self, container: &str) -> Waiting {
        Waiting {
            events: self.sender.subscribe(),
            container: container.to_owned(),
        }
    }
}

/// Waits for events about one container.
pub struct Waiting {
    events: broadcast::Receiver<Event>,
    container: String,
}

impl Waiting {
    /// The next one, if it comes in time.
    pub async fn next(&mut self, at_most: Duration) -> Option<Event> {
        let next = async {
            loop {
                match self.events.recv().await {
                    Ok(event) if event.container == self.container => return Some(event),
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        };
        tokio::time::timeout(at_most, next).await.ok().flatten()
    }

    /// The next one of this kind, if it comes in time.
    pub async fn next_of(&mut self, action: &str, at_most: Duration) -> Option<Event> {
        let next = async {
            loop {
                match self.next(at_most).await {
                    Some(event) if event.action == action => return Some(event),
                    Some(_) => {}
                    None => return None,
                }
            }
        };
        tokio::time::timeout(at_most, next).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use gapscope_proto::clock::SimClock;

    use super::*;

    const KILL: &str = r#"{"status":"kill","id":"c1","from":"i","Type":"container","Action":"kill",
        "Actor":{"ID":"c1","Attributes":{"signal":"15","name":"x"}},"scope":"local",
        "time":1700000000,"timeNano":1700000000250000000}"#;

    #[test]
    fn an_event_is_placed_on_the_clock_that_stamps() {
        // The wall clock is this much ahead of RAW; it is read 50 ms after the event.
        let wall = 1_700_000_000_000_000_000;
        let clock = SimClock::new(300_000_000, wall);
        let event = read(&KILL.replace('\n', ""), &clock).expect("an event");
        assert_eq!(event.action, "kill");
        assert_eq!(event.container, "c1");
        assert_eq!(event.attributes["signal"], "15");
        // 500 ppm of 50 ms, and a microsecond.
        assert_eq!(
            event.when,
            Span {
                earliest_ns: 250_000_000 - 26_000,
                latest_ns: 250_000_000 + 26_000,
            }
        );
        assert_eq!(
            event.within(249_990_000, 300_000_000),
            Some(Span {
                earliest_ns: 249_990_000,
                latest_ns: 250_026_000,
            })
        );
        assert_eq!(
            event.within(400_000_000, 500_000_000),
            None,
            "another clock"
        );
    }

    #[test]
    fn a_network_s_event_is_about_the_container() {
        let clock = SimClock::new(0, 0);
        let line = r#"{"Type":"network","Action":"disconnect","Actor":{"ID":"n1","Attributes":{"container":"c1","name":"lab"}},"timeNano":0}"#;
        assert_eq!(read(line, &clock).expect("an event").container, "c1");
        for other in [
            r#"{"Type":"image","Action":"pull","Actor":{"ID":"i"},"timeNano":0}"#,
            r#"{"Type":"network","Action":"create","Actor":{"ID":"n1"},"timeNano":0}"#,
            "not JSON",
        ] {
            assert_eq!(read(other, &clock), None, "{other}");
        }
    }
}
