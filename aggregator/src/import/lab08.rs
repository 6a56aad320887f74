//! The published samples of lab-08 ("SQL Proxy Switchover", 2026-03-11): one
//! JSON object a file, one member a proxy, each with its `probes`.
//!
//! A probe is stamped with wall time at its end, so its begin is the stamp minus
//! its latency. All proxies were probed at once, each by one client that waited
//! for the answer, then slept: slots are reconstructed as
//! slot += max(1, round((begin - begin before) / interval)), and those passed
//! over count as waited.
//!
//! What the data cannot tell: the client's own connection (only the server's
//! connection id is recorded; after a failed probe the study's client connected
//! anew), steps of the wall clock, and why a probe took as long as it did.

use std::collections::BTreeMap;
use std::sync::Arc;

use gapscope_proto::clock::ClockKey;
use gapscope_proto::fault::{Fault, FaultScope, Span};
use gapscope_proto::host::{HostFacts, ProbingEnded, ProbingStarted};
use gapscope_proto::ids::{AgentId, RunId, TargetName};
use gapscope_proto::plan::{ClientGroup, ClientKind, RunPlan, Timeouts};
use gapscope_proto::sample::{Cause, MAX_ERROR_CHARS, Outcome, Phase, Sample, Style};
use gapscope_proto::time::Timestamp;
use serde::Deserialize;

use crate::store::manifest::TargetEntry;

/// Between two probes of the study.
pub const INTERVAL_NS: u64 = 500_000_000;
/// The deadline by which the run is judged.
pub const DEADLINE_NS: u64 = 250_000_000;
/// The study's connect and read timeouts.
pub const TIMEOUT_NS: u64 = 5_000_000_000;
/// How near to the timeout a failed probe must have come to count as timed out
/// where its error text does not say.
const NEARLY: f64 = 0.98;

/// Why a file cannot be taken in.
#[derive(Debug, thiserror::Error)]
pub enum Lab08Error {
    /// It is not JSON of the expected form.
    #[error("this is not a lab-08 file: {0}")]
    Form(#[from] serde_json::Error),
    /// A member's name cannot be a target's.
    #[error("member `{name}`: {why}")]
    Name {
        /// Which.
        name: String,
        /// Why.
        why: String,
    },
    /// A number makes no sense.
    #[error("`{target}`, probe {probe}: {what} is {value}")]
    Number {
        /// Of which proxy.
        target: String,
        /// Which probe, from 0.
        probe: usize,
        /// Which number.
        what: &'static str,
        /// What was found.
        value: f64,
    },
    /// There is no probe at all.
    #[error("the file holds no probe")]
    Empty,
}

#[derive(Deserialize)]
struct Proxy {
    #[serde(default)]
    endpoint: String,
    probes: Vec<ProbeRecord>,
}

#[derive(Deserialize)]
struct ProbeRecord {
    timestamp: f64,
    success: bool,
    latency_ms: f64,
    connection_id: Option<u64>,
    #[serde(default)]
    tidb_version: String,
    #[serde(default)]
    resolved_ip: String,
    #[serde(default)]
    server_addr: String,
    #[serde(default)]
    error: String,
}

/// A fault that was done during the study's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenFault {
    /// What was done.
    pub step: String,
    /// When, after the run's begin.
    pub after_ns: u64,
    /// To which backend, as the probes name it.
    pub backend: String,
}

impl std::str::FromStr for GivenFault {
    type Err = String;

    /// `STEP@AFTER=BACKEND`, as in `stop@10s=b0476105b8a7`.
    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("`{text}` is not STEP@AFTER=BACKEND, as in stop@10s=b0476105b8a7");
        let (step, rest) = text.split_once('@').ok_or_else(form)?;
        let (after, backend) = rest.split_once('=').ok_or_else(form)?;
        if step.is_empty() || backend.is_empty() {
            return Err(form());
        }
        Ok(Self {
            step: step.to_owned(),
            after_ns: crate::duration::parse(after)?,
            backend: backend.to_owned(),
        })
    }
}

/// A study's run in our terms.
#[derive(Debug, Clone)]
pub struct Imported {
    /// What would have been asked of an agent.
    pub plan: RunPlan,
    /// The "agent".
    pub agent: AgentId,
    /// The "agent's" and the faults' clock.
    pub clock: ClockKey,
    /// What it probed.
    pub targets: Vec<TargetEntry>,
    /// When its probing began.
    pub started: ProbingStarted,
    /// When it ended, with the books.
    pub ended: ProbingEnded,
    /// In order of their ends.
    pub samples: Vec<Sample>,
    /// What was done.
    pub faults: Vec<Fault>,
    /// What is to be said against the data.
    pub caveats: Vec<String>,
    /// Wall time of the begin, in ns.
    pub began_realtime_ns: i64,
    /// Facts of the host are not in the data.
    pub host: HostFacts,
}

/// Takes in one file's text.
///
/// # Errors
/// When the text is not such a file.
pub fn import(
    text: &str,
    run_id: RunId,
    scenario: &str,
    faults: &[GivenFault],
) -> Result<Imported, Lab08Error> {
    // A map of its own keeps the order of names, not of the file: reproducible.
    let file: BTreeMap<String, Proxy> = serde_json::from_str(text)?;
    let clock = ClockKey {
        boot_id: format!("lab08-{run_id}"),
        time_namespace: 0,
    };
    let mut caveats = vec![
        "times are wall clock times of the probing host: a step of its clock would be in them"
            .to_owned(),
    ];
    let mut samples = Vec::new();
    let mut targets = Vec::new();
    let mut groups = Vec::new();
    let mut waited = 0;
    for (name, proxy) in &file {
        let target: TargetName = name.parse().map_err(|error| Lab08Error::Name {
            name: name.clone(),
            why: format!("{error}"),
        })?;
        targets.push(TargetEntry {
            name: target.clone(),
            address: proxy.endpoint.clone(),
            user: String::new(),
        });
        groups.push(ClientGroup {
            target: target.clone(),
            style: Style::Reused,
            kind: ClientKind::Bare,
            first_client: 0,
            clients: 1,
            interval_ns: INTERVAL_NS,
            timeouts: Timeouts {
                resolve_ns: Some(TIMEOUT_NS),
                connect_ns: Some(TIMEOUT_NS),
                query_ns: Some(TIMEOUT_NS),
            },
        });
        let of_target = samples_of(&Arc::new(target), proxy)?;
        if let Some(last) = of_target.last() {
            waited += last.slot + 1 - of_target.len() as u64;
        }
        if renumbered(&of_target) {
            caveats.push(format!(
                "{name}: the server's connection id changed between two answers; the data cannot \
                 tell whether the client's connection changed"
            ));
        }
        samples.extend(of_target);
    }
    let began = samples
        .iter()
        .map(|s| s.started.ns())
        .min()
        .ok_or(Lab08Error::Empty)?;
    let end = samples
        .iter()
        .map(|s| s.finished.ns().max(s.started.ns() + INTERVAL_NS as i64))
        .max()
        .ok_or(Lab08Error::Empty)?;
    samples.sort_by_key(|s| s.finished);
    let sampled = samples.len() as u64;
    let faults = faults
        .iter()
        .zip(1..)
        .map(|(given, id)| fault(given, id, began, &clock))
        .collect();
    Ok(Imported {
        plan: RunPlan {
            run_id,
            scenario: scenario.to_owned(),
            duration_ns: u64::try_from(end - began).unwrap_or(0),
            deadline_ns: DEADLINE_NS,
            groups,
            identity: None,
            scenario_toml: String::new(),
        },
        agent: "lab08".parse().expect("a valid name"),
        targets,
        started: ProbingStarted {
            origin_ns: began,
            planned_end_ns: end,
            clock: clock.clone(),
        },
        ended: ProbingEnded {
            end_ns: end,
            reason: "imported".to_owned(),
            due: sampled + waited,
            sampled,
            waited,
            overslept: 0,
        },
        clock,
        samples,
        faults,
        caveats,
        began_realtime_ns: began,
        host: HostFacts::default(),
    })
}

fn fault(given: &GivenFault, id: u32, began: i64, clock: &ClockKey) -> Fault {
    let at = began.saturating_add(i64::try_from(given.after_ns).unwrap_or(i64::MAX));
    let asked = Span {
        earliest_ns: at,
        latest_ns: at,
    };
    let scope = match given.step.as_str() {
        "start" | "resume" => FaultScope::Failback,
        _ => FaultScope::Backend,
    };
    Fault {
        id,
        step: given.step.clone(),
        subject: given.backend.clone(),
        identity: Some(given.backend.clone()),
        scope,
        clock: clock.clone(),
        asked,
        listener_refused: None,
        held_cut: None,
        gone: None,
        cleared: None,
        detail: "as given at the import; no witness".to_owned(),
    }
}

fn samples_of(target: &Arc<TargetName>, proxy: &Proxy) -> Result<Vec<Sample>, Lab08Error> {
    let mut samples: Vec<Sample> = Vec::with_capacity(proxy.probes.len());
    let mut connection = 1u32;
    let mut failed_before = false;
    for (at, probe) in proxy.probes.iter().enumerate() {
        let number = |what, value: f64, limit: f64| {
            if value.is_finite() && (0.0..limit).contains(&value) {
                Ok(value)
            } else {
                Err(Lab08Error::Number {
                    target: target.to_string(),
                    probe: at,
                    what,
                    value,
                })
            }
        };
        let finished = wall_ns(number("timestamp", probe.timestamp, 9e9)?);
        let latency_ms = number("latency_ms", probe.latency_ms, 1e9)?;
        // Milliseconds with fractions to ns; far below 2^53, so rounding is exact.
        let took = (latency_ms * 1e6).round() as i64;
        let started = finished - took;
        let slot = match samples.last() {
            None => 0,
            Some(before) => before.slot + slots_between(before.started.ns(), started),
        };
        if failed_before {
            connection += 1;
        }
        failed_before = !probe.success;
        let (outcome, cause, error_code) = if probe.success {
            (Outcome::Ok, None, None)
        } else {
            classify(probe)
        };
        let answered = |text: &str| probe.success.then(|| known(text)).flatten();
        samples.push(Sample {
            target: target.clone(),
            style: Style::Reused,
            client: 0,
            slot,
            scheduled: Timestamp::from_ns(started),
            started: Timestamp::from_ns(started),
            finished: Timestamp::from_ns(finished),
            resolve_ns: None,
            connect_ns: None,
            query_ns: u64::try_from(took).ok(),
            phase: if outcome == Outcome::ConnectFailed {
                Phase::Connect
            } else {
                Phase::Query
            },
            outcome,
            cause,
            error_code,
            sqlstate: None,
            error: known(&probe.error).map(|text| {
                text.chars()
                    .take(MAX_ERROR_CHARS)
                    .collect::<String>()
                    .into()
            }),
            may_have_executed: !probe.success && outcome != Outcome::ConnectFailed,
            connection: Some(connection),
            connection_id: probe.connection_id.filter(|_| probe.success),
            handshake_id: None,
            backend: answered(&probe.server_addr),
            peer: known(&probe.resolved_ip),
            server_version: answered(&probe.tidb_version),
            canary: None,
        });
    }
    Ok(samples)
}

fn known(text: &str) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| Arc::from(text))
}

/// Wall seconds to ns. The file has microseconds, and a double of this size is
/// exact to a quarter of one: rounding to microseconds gives what was written.
fn wall_ns(seconds: f64) -> i64 {
    (seconds * 1e6).round() as i64 * 1_000
}

/// max(1, round(difference / interval)), half away from zero.
fn slots_between(before: i64, started: i64) -> u64 {
    let interval = INTERVAL_NS as i64;
    let slots = (started - before + interval / 2).div_euclid(interval);
    u64::try_from(slots).unwrap_or(0).max(1)
}

/// What a failed probe was, by its number, its text and its duration.
fn classify(probe: &ProbeRecord) -> (Outcome, Option<Cause>, Option<u16>) {
    let digits: String = probe
        .error
        .chars()
        .skip_while(|c| *c == '(')
        .take_while(char::is_ascii_digit)
        .collect();
    let code = digits.parse::<u16>().ok();
    let text = probe.error.to_ascii_lowercase();
    let long = probe.latency_ms >= TIMEOUT_NS as f64 / 1e6 * NEARLY;
    let timed_out = text.contains("timed out") || long;
    // 2xxx are the client library's own: no server sent them.
    match code {
        Some(2002 | 2003 | 2005) if timed_out => {
            (Outcome::TimedOut, Some(Cause::ConnectTimeout), None)
        }
        Some(2002 | 2003) => (Outcome::ConnectFailed, Some(Cause::Refused), None),
        Some(2005) => (Outcome::ConnectFailed, Some(Cause::NotResolved), None),
        Some(2000..=2999) | None if timed_out => {
            (Outcome::TimedOut, Some(Cause::QueryTimeout), None)
        }
        Some(2000..=2999) | None => (Outcome::ConnectionLost, Some(Cause::OtherIo), None),
        Some(number) => (Outcome::ServerError, Some(Cause::OtherServer), Some(number)),
    }
}

/// Whether the server's connection id changed between two consecutive answers.
fn renumbered(samples: &[Sample]) -> bool {
    samples.windows(2).any(|pair| {
        pair.iter().all(|s| s.outcome == Outcome::Ok)
            && pair[0].connection_id != pair[1].connection_id
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(text: &str) -> Result<Imported, Lab08Error> {
        import(text, RunId::generate(), "switchover", &[])
    }

    fn probe(end: &str, latency_ms: &str, success: bool) -> String {
        let id = if success { "7" } else { "null" };
        format!(
            r#"{{"timestamp": {end}, "success": {success}, "latency_ms": {latency_ms},
                "connection_id": {id}, "tidb_version": "8", "resolved_ip": "127.0.0.1",
                "server_addr": "a", "error": ""}}"#
        )
    }

    fn file(probes: &[String]) -> String {
        format!(
            r#"{{"p": {{"endpoint": "h:1", "probes": [{}]}}}}"#,
            probes.join(",")
        )
    }

    #[test]
    fn times_are_exact_to_the_nanosecond() {
        let run = take(&file(&[probe(
            "1773200793.563029",
            "7.870541000000002",
            true,
        )]))
        .expect("a good file");
        let sample = &run.samples[0];
        assert_eq!(sample.finished.ns(), 1_773_200_793_563_029_000);
        assert_eq!(sample.started.ns(), 1_773_200_793_563_029_000 - 7_870_541);
    }

    #[test]
    fn slots_are_reconstructed() {
        let run = take(&file(&[
            probe("100.010000", "10", true),
            probe("100.520000", "10", true),
            probe("106.020000", "5000", false),
            probe("106.530000", "10", true),
        ]))
        .expect("a good file");
        let slots: Vec<_> = run.samples.iter().map(|s| s.slot).collect();
        assert_eq!(slots, [0, 1, 2, 13]);
        assert_eq!(
            (run.ended.due, run.ended.sampled, run.ended.waited),
            (14, 4, 10)
        );
        let connections: Vec<_> = run.samples.iter().map(|s| s.connection).collect();
        assert_eq!(connections, [Some(1), Some(1), Some(1), Some(2)]);
        assert_eq!(run.samples[2].outcome, Outcome::TimedOut);
    }

    #[test]
    fn two_probes_in_one_interval_have_slots_of_their_own() {
        assert_eq!(slots_between(0, 10), 1);
        assert_eq!(slots_between(0, 749_999_999), 1);
        assert_eq!(slots_between(0, 750_000_000), 2);
        assert_eq!(slots_between(10, 0), 1);
    }

    #[track_caller]
    fn check_refused(text: &str, expect: &str) {
        let error = take(text).expect_err("a bad file").to_string();
        assert!(error.contains(expect), "{error}");
    }

    #[test]
    fn bad_files_are_refused_with_a_reason() {
        check_refused("[]", "not a lab-08 file");
        check_refused("{}", "no probe");
        check_refused(&file(&[]), "no probe");
        check_refused(&file(&[probe("-1", "1", true)]), "timestamp is -1");
        check_refused(&file(&[probe("1", "-3", true)]), "latency_ms is -3");
        check_refused(r#"{"a b": {"probes": []}}"#, "member `a b`");
    }

    #[test]
    fn faults_are_read() {
        assert_eq!(
            "stop@10s=b0".parse(),
            Ok(GivenFault {
                step: "stop".into(),
                after_ns: 10_000_000_000,
                backend: "b0".into()
            })
        );
        for wrong in ["stop", "stop@10s", "stop@10=b", "@1s=b", "stop@1s="] {
            assert!(wrong.parse::<GivenFault>().is_err(), "{wrong}");
        }
    }
}
