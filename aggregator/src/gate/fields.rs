//! The fields that gates can look at, and where in `summary.json` they stand.
//! Pure. `aggregator/docs/gates.md` lists them for people; a test holds the list
//! against this one.

use serde_json::Value;

/// In what a field is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A time; values are written with their unit.
    Seconds,
    /// 0 to 100.
    Percent,
    /// A number of things.
    Count,
    /// A factor.
    Factor,
    /// A verdict's word.
    Verdict,
}

/// One value of a field, and whose it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// For people and filters: key and word.
    pub of: Vec<(&'static str, String)>,
    /// The value.
    pub value: FoundValue,
    /// What has to be said with it, if anything.
    pub note: &'static str,
}

/// Said of a time of which nothing is known.
const UNWATCHED: &str = "not watched, an outage may lie in it";
/// Said of a time in which nobody asked.
const UNSEEN: &str = "between two answers, an outage may lie in it unseen";
/// Said of a verdict by clients that ask less often than the deadline is long.
const TOO_SELDOM: &str = "at worst: its probes are further apart than the deadline";
/// Said of a share of slots of which nothing is known.
const NOT_MEASURED: &str = "at worst: nothing was measured";
/// Said of a verdict beside which a part was not watched.
const NOT_WATCHED: &str = "at worst: a part was not watched";
/// Said of a share in which slots without data count as unanswered.
const WITH_HOLES: &str = "at worst: nothing is known of a part of its slots";

/// A value of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum FoundValue {
    /// In the field's unit; infinite where it has no bound.
    Number(f64),
    /// A verdict.
    Word(String),
}

/// A field.
#[derive(Debug, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// What it means.
    pub about: &'static str,
    place: Place,
}

#[derive(Debug, PartialEq)]
enum Place {
    /// In each of `targets`: a path, and a factor into the field's unit.
    Target(&'static [&'static str], f64),
    /// Likewise, and a flag beside it that says that the value is larger.
    TargetAtLeast(&'static str, &'static str),
    /// A quantile of latencies in ms; one named in `more_than` is larger.
    Quantile(&'static [&'static str], &'static str),
    /// In each outage of "somebody"; null is without bound.
    Window(&'static str),
    /// In each fault of each target; null is without bound.
    Fault(&'static str),
    Verdict,
    Errors,
    /// In the run itself.
    Run(&'static [&'static str]),
    /// In each of a benchmark's `cells`: a path, and a factor.
    Cell(&'static [&'static str], f64),
}

/// What `where` can ask for.
pub const KEYS: [&str; 6] = ["target", "style", "kind", "clients", "label", "fault"];

/// The verdict on clients of which nothing is known.
pub const UNMEASURED: &str = "unmeasured";

/// Verdicts, worst first; the last two have no rank.
pub const WORDS: [&str; 8] = [
    "down",
    "disrupted",
    "reconnected",
    "state lost",
    "stalled",
    "seamless",
    "not exposed",
    UNMEASURED,
];

const fn field(name: &'static str, unit: Unit, place: Place, about: &'static str) -> Field {
    Field {
        name,
        unit,
        about,
        place,
    }
}

/// All of them.
pub static FIELDS: [Field; 37] = [
    field(
        "verdict",
        Unit::Verdict,
        Place::Verdict,
        "verdict of a target's clients of one style in a fault",
    ),
    field(
        "windows.upper",
        Unit::Seconds,
        Place::Window("outage_upper_s"),
        "how long somebody can have been without service, at most",
    ),
    field(
        "windows.lower",
        Unit::Seconds,
        Place::Window("outage_lower_s"),
        "the same, at least",
    ),
    field(
        "gap",
        Unit::Seconds,
        Place::TargetAtLeast("max_gap_s", "max_gap_is_at_least"),
        "longest time a client went without an answer",
    ),
    field(
        "faults.gap",
        Unit::Seconds,
        Place::Fault("gap_s"),
        "the same, of exposed or hurt clients in a fault",
    ),
    field(
        "faults.upper",
        Unit::Seconds,
        Place::Fault("outage_upper_s"),
        "longest outage of a client in a fault, at most",
    ),
    field(
        "faults.lower",
        Unit::Seconds,
        Place::Fault("outage_lower_s"),
        "the same, at least",
    ),
    field(
        "faults.own_timeout",
        Unit::Seconds,
        Place::Fault("own_timeout_s"),
        "of it, the client's own timeouts",
    ),
    field(
        "faults.collateral",
        Unit::Count,
        Place::Fault("collateral"),
        "clients hurt that were not on the subject",
    ),
    field(
        "available",
        Unit::Percent,
        Place::Target(&["availability_pct"], 1.0),
        "due slots answered in time",
    ),
    field(
        "healthy.available",
        Unit::Percent,
        Place::Target(&["healthy", "availability_pct"], 1.0),
        "the same before the first fault",
    ),
    field(
        "answered",
        Unit::Percent,
        Place::Target(&["answered_pct"], 1.0),
        "probes answered at all",
    ),
    field(
        "lost.upper",
        Unit::Seconds,
        Place::Target(&["client_time_lost_s", "upper"], 1.0),
        "client-time lost, at most",
    ),
    field(
        "lost.lower",
        Unit::Seconds,
        Place::Target(&["client_time_lost_s", "lower"], 1.0),
        "the same, at least",
    ),
    field(
        "latency.p50",
        Unit::Seconds,
        Place::Quantile(&["latency_ms"], "p50"),
        "latency of answered probes",
    ),
    field(
        "latency.p99",
        Unit::Seconds,
        Place::Quantile(&["latency_ms"], "p99"),
        "the same",
    ),
    field(
        "latency.max",
        Unit::Seconds,
        Place::Quantile(&["latency_ms"], "max"),
        "the same",
    ),
    field(
        "healthy.latency.p50",
        Unit::Seconds,
        Place::Quantile(&["latency_ms_by_part", "healthy"], "p50"),
        "the same before the first fault",
    ),
    field(
        "healthy.latency.p99",
        Unit::Seconds,
        Place::Quantile(&["latency_ms_by_part", "healthy"], "p99"),
        "the same",
    ),
    field(
        "response.p99",
        Unit::Seconds,
        Place::Quantile(&["response_ms"], "p99"),
        "response of all due slots; unanswered ones are without bound",
    ),
    field(
        "connection_changes",
        Unit::Count,
        Place::Target(&["connection_changes"], 1.0),
        "connections a held client had to make again",
    ),
    field(
        "session_changes",
        Unit::Count,
        Place::Target(&["session_changes"], 1.0),
        "sessions exchanged behind a held connection",
    ),
    field(
        "backend_switches",
        Unit::Count,
        Place::Target(&["backend_switches"], 1.0),
        "answers from another backend than the last",
    ),
    field(
        "unwatched",
        Unit::Seconds,
        Place::Target(&["unwatched_max_s"], 1.0),
        "longest time of which nothing is known of a client",
    ),
    field(
        "unseen",
        Unit::Seconds,
        Place::Target(&["unseen_max_s"], 1.0),
        "longest outage of a client that can lie unseen between two answers",
    ),
    field(
        "no_data",
        Unit::Count,
        Place::Target(&["no_data"], 1.0),
        "slots that the agent itself missed",
    ),
    field(
        "errors",
        Unit::Count,
        Place::Errors,
        "failed probes, or statements of a benchmark",
    ),
    field(
        "data.lost",
        Unit::Count,
        Place::Run(&["conservation", "lost_max"]),
        "samples lost, at most",
    ),
    field(
        "ratio",
        Unit::Factor,
        Place::Cell(&["to_direct", "ratio"], 1.0),
        "benchmark: total against the direct target's",
    ),
    field(
        "ratio.lower",
        Unit::Factor,
        Place::Cell(&["to_direct", "ratio_lower"], 1.0),
        "lower end of its 95 % interval",
    ),
    field(
        "ratio.upper",
        Unit::Factor,
        Place::Cell(&["to_direct", "ratio_upper"], 1.0),
        "upper end",
    ),
    field(
        "added",
        Unit::Seconds,
        Place::Cell(&["to_direct", "added_ns"], 1e-9),
        "benchmark: time added to a statement",
    ),
    field(
        "added.lower",
        Unit::Seconds,
        Place::Cell(&["to_direct", "added_ns_lower"], 1e-9),
        "lower end of its 95 % interval",
    ),
    field(
        "added.upper",
        Unit::Seconds,
        Place::Cell(&["to_direct", "added_ns_upper"], 1e-9),
        "upper end",
    ),
    field(
        "total",
        Unit::Seconds,
        Place::Cell(&["total_ns", "median"], 1e-9),
        "benchmark: median total of a block",
    ),
    field(
        "p99",
        Unit::Seconds,
        Place::Cell(&["latency_ns_p99"], 1e-9),
        "benchmark: p99 of the time to an answer",
    ),
    field(
        "wrong",
        Unit::Count,
        Place::Cell(&["wrong_answers"], 1.0),
        "benchmark: answers with wrong rows",
    ),
];

fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |value, key| &value[*key])
}

fn each<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn of_target(row: &Value) -> Vec<(&'static str, String)> {
    ["name", "style", "kind"]
        .iter()
        .zip(["target", "style", "kind"])
        .map(|(key, name)| (name, word(&row[*key])))
        .collect()
}

fn of_cell(cell: &Value) -> Vec<(&'static str, String)> {
    ["target", "clients", "label"]
        .into_iter()
        .map(|key| (key, word(&cell[key])))
        .collect()
}

/// Where nobody looked, the worst may have been: what a share of slots can have been,
/// in percent, if it can have been less than what is known of it.
fn worst_share(row: &Value, path: &[&str]) -> Option<(f64, &'static str)> {
    let key = path.last()?;
    if !matches!(*key, "availability_pct" | "answered_pct") {
        return None;
    }
    let part = path[..path.len() - 1]
        .iter()
        .fold(row, |value, key| &value[*key]);
    let Some(known) = part[*key].as_f64() else {
        // A part of the run in which nothing was due was not missed.
        let missed = path.len() == 1 || part["due"].as_f64().is_some_and(|due| due > 0.0);
        return missed.then_some((0.0, NOT_MEASURED));
    };
    let has_hole = row["unwatched_max_s"].as_f64().is_some_and(|s| s > 0.0);
    let (due, no_data) = (part["due"].as_f64()?, part["no_data"].as_f64()?);
    (has_hole && *key == "availability_pct" && no_data > 0.0 && due >= no_data)
        .then(|| (known * (due - no_data) / due, WITH_HOLES))
}

/// Where nobody looked or nobody asked, the service can have been out: for how long, if
/// that is longer than what was seen of any outage. An idle client speaks of its
/// connection only, not of how long a service is out.
fn unseen(row: &Value, part: &Value, seen: f64) -> Option<(f64, &'static str)> {
    let longer = |value: &Value| value.as_f64().filter(|s| *s > seen);
    let hole = longer(&row["unwatched_max_s"]);
    let between = longer(&part["unseen_max_s"]).filter(|_| !is_idle(row));
    match (hole, between) {
        (Some(hole), between) => Some((hole.max(between.unwrap_or(0.0)), UNWATCHED)),
        (None, Some(between)) => Some((between, UNSEEN)),
        (None, None) => None,
    }
}

/// A verdict is one at the deadline: clients that ask less often cannot tell.
fn is_too_seldom(row: &Value, fault: &Value) -> bool {
    match (row["interval_s"].as_f64(), fault["deadline_ms"].as_f64()) {
        (Some(interval), Some(deadline)) => interval * 1e3 > deadline && !is_idle(row),
        _ => false,
    }
}

fn is_idle(row: &Value) -> bool {
    row["kind"].as_str() == Some("idle")
}

/// A number, or without bound where it is null and that means so.
fn or_unbounded(value: &Value) -> FoundValue {
    FoundValue::Number(value.as_f64().unwrap_or(f64::INFINITY))
}

impl Field {
    /// Every value of this field in a summary.
    pub fn values(&self, summary: &Value) -> Vec<Found> {
        let mut found = Vec::new();
        let mut put = |of: Vec<(&'static str, String)>, value: FoundValue| {
            found.push(Found {
                of,
                value,
                note: "",
            });
        };
        let mut unknown: Vec<Found> = Vec::new();
        match &self.place {
            Place::Run(path) => {
                if let Some(number) = at(summary, path).as_f64() {
                    put(Vec::new(), FoundValue::Number(number));
                }
            }
            Place::Cell(path, factor) => {
                for cell in each(summary, "cells") {
                    if let Some(number) = at(cell, path).as_f64() {
                        put(of_cell(cell), FoundValue::Number(number * factor));
                    }
                }
            }
            Place::Errors => {
                for row in each(summary, "targets").filter(|row| row["due"].is_number()) {
                    let sum: f64 = each(row, "errors")
                        .filter_map(|e| e["count"].as_f64())
                        .sum();
                    put(of_target(row), FoundValue::Number(sum));
                }
                for cell in each(summary, "cells") {
                    if let Some(number) = cell["errors"].as_f64() {
                        put(of_cell(cell), FoundValue::Number(number));
                    }
                }
            }
            Place::Target(path, factor) => {
                for row in each(summary, "targets").filter(|row| row["due"].is_number()) {
                    let value = at(row, path);
                    if let Some(number) = value.as_f64() {
                        put(of_target(row), FoundValue::Number(number * factor));
                    } else if path.last() == Some(&"upper") {
                        put(of_target(row), FoundValue::Number(f64::INFINITY));
                    }
                    if let Some((share, note)) = worst_share(row, path) {
                        unknown.push(Found {
                            of: of_target(row),
                            value: FoundValue::Number(share),
                            note,
                        });
                    }
                }
            }
            Place::TargetAtLeast(key, flag) => {
                for row in each(summary, "targets") {
                    let Some(number) = row[*key].as_f64() else {
                        continue;
                    };
                    // What is not over can become any length.
                    let is_open = row[*flag].as_bool() == Some(true);
                    let value = if is_open { f64::INFINITY } else { number };
                    put(of_target(row), FoundValue::Number(value));
                    // From one answer to the next is in the value. Without two there
                    // is none.
                    let part = if value == 0.0 { row } else { &Value::Null };
                    if let Some((length, note)) = unseen(row, part, value) {
                        unknown.push(Found {
                            of: of_target(row),
                            value: FoundValue::Number(length),
                            note,
                        });
                    }
                }
            }
            Place::Quantile(path, quantile) => {
                for row in each(summary, "targets").filter(|row| row["due"].is_number()) {
                    let quantiles = at(row, path);
                    let is_more =
                        each(quantiles, "more_than").any(|name| name.as_str() == Some(quantile));
                    if is_more {
                        put(of_target(row), FoundValue::Number(f64::INFINITY));
                    } else if let Some(ms) = quantiles[*quantile].as_f64() {
                        put(of_target(row), FoundValue::Number(ms / 1e3));
                    } else if path.len() == 1 {
                        // Not one answer, so nobody knows how quick one is.
                        unknown.push(Found {
                            of: of_target(row),
                            value: FoundValue::Number(f64::INFINITY),
                            note: NOT_MEASURED,
                        });
                    }
                }
            }
            Place::Window(key) => {
                for row in each(summary, "targets").filter(|row| row["windows"].is_array()) {
                    let mut any = false;
                    let mut longest: f64 = 0.0;
                    for window in
                        each(row, "windows").filter(|w| w["scope"].as_str() == Some("any"))
                    {
                        any = true;
                        let mut of = of_target(row);
                        of.push(("fault", word(&window["fault"])));
                        let value = or_unbounded(&window[*key]);
                        if let FoundValue::Number(seen) = value {
                            longest = longest.max(seen);
                        }
                        put(of, value);
                    }
                    if *key == "outage_upper_s"
                        && let Some((length, note)) = unseen(row, row, longest)
                    {
                        unknown.push(Found {
                            of: of_target(row),
                            value: FoundValue::Number(length),
                            note,
                        });
                    }
                    if !any {
                        // No outage at all is one of no length.
                        put(of_target(row), FoundValue::Number(0.0));
                    }
                }
            }
            Place::Fault(key) => {
                for row in each(summary, "targets") {
                    for fault in each(row, "faults") {
                        let verdict = fault["verdict"].as_str().unwrap_or_default();
                        let mut of = of_target(row);
                        of.push(("fault", word(&fault["fault"])));
                        // Nobody looked: it can have been anything.
                        if verdict == UNMEASURED && matches!(*key, "gap_s" | "outage_upper_s") {
                            put(of, FoundValue::Number(f64::INFINITY));
                            continue;
                        }
                        if matches!(verdict, "not exposed" | UNMEASURED) {
                            continue;
                        }
                        let value = if *key == "gap_s"
                            && fault["gap_is_at_least"].as_bool() == Some(true)
                        {
                            FoundValue::Number(f64::INFINITY)
                        } else if fault[*key].is_null() && fault["outage_lower_s"].is_null() {
                            // Nothing was out.
                            FoundValue::Number(0.0)
                        } else {
                            or_unbounded(&fault[*key])
                        };
                        if let (FoundValue::Number(seen), "outage_upper_s") = (&value, *key)
                            && let Some(length) = fault["unseen_max_s"].as_f64()
                            && length > *seen
                            && !is_idle(row)
                        {
                            unknown.push(Found {
                                of: of.clone(),
                                value: FoundValue::Number(length),
                                note: UNSEEN,
                            });
                        }
                        put(of, value);
                    }
                }
            }
            Place::Verdict => {
                for row in each(summary, "targets") {
                    for fault in each(row, "faults") {
                        let mut of = of_target(row);
                        of.push(("fault", word(&fault["fault"])));
                        let verdict = word(&fault["verdict"]);
                        // Something worse may lie in what nobody watched.
                        let hole = row["unwatched_max_s"].as_f64();
                        let note = if hole.is_some_and(|hole| hole > 0.0) {
                            Some(NOT_WATCHED)
                        } else {
                            is_too_seldom(row, fault).then_some(TOO_SELDOM)
                        };
                        if let (Some(note), Some(_)) = (note, rank(&verdict)) {
                            unknown.push(Found {
                                of: of.clone(),
                                value: FoundValue::Word(UNMEASURED.to_owned()),
                                note,
                            });
                        }
                        put(of, FoundValue::Word(verdict));
                    }
                }
            }
        }
        found.extend(unknown);
        found
    }
}

/// How bad a verdict is; none for those without a rank.
pub fn rank(verdict: &str) -> Option<f64> {
    let ranked = &WORDS[..6];
    ranked
        .iter()
        .position(|word| *word == verdict)
        .map(|at| (ranked.len() - at) as f64)
}
