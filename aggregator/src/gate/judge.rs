//! Holds gates against a summary. Pure.

use serde_json::Value;

use super::fields::{Found, FoundValue, UNMEASURED, Unit, rank};
use super::junit::Case;
use super::parse::{Gate, Limit, Op};

/// The most values that a failure names.
const NAMED: usize = 5;

/// What came of each gate.
pub fn judge(summary: &Value, gates: &[Gate]) -> Vec<Case> {
    gates
        .iter()
        .map(|gate| Case {
            name: gate.text.clone(),
            failure: failure(summary, gate),
        })
        .collect()
}

fn failure(summary: &Value, gate: &Gate) -> Option<String> {
    let covered: Vec<Found> = gate
        .field
        .values(summary)
        .into_iter()
        .filter(|found| {
            gate.filter.iter().all(|(key, word)| {
                found
                    .of
                    .iter()
                    .any(|(name, value)| name == key && value == word)
            })
        })
        .collect();
    if covered.is_empty() {
        return Some("there is no such value in this run, so nothing was tested".to_owned());
    }
    let failing: Vec<String> = covered
        .iter()
        .filter(|found| meets(found, gate))
        .map(|found| text(found, gate.field.unit))
        .collect();
    if failing.is_empty() {
        return None;
    }
    let more = failing.len().saturating_sub(NAMED);
    let mut why = failing[..failing.len().min(NAMED)].join("; ");
    if more > 0 {
        why.push_str(&format!("; and {more} more"));
    }
    Some(why)
}

fn meets(found: &Found, gate: &Gate) -> bool {
    match (&found.value, &gate.limit) {
        (FoundValue::Number(value), Limit::Number(limit)) => gate.op.holds(*value, *limit),
        (FoundValue::Word(value), Limit::Word(limit)) => match gate.op {
            Op::Is => value == limit,
            Op::IsNot => value != limit,
            // Nobody looked: it can have been the worst.
            Op::More | Op::AtLeast if value == UNMEASURED => true,
            // Worse is more. A verdict without a rank is neither.
            op => match (rank(value), rank(limit)) {
                (Some(value), Some(limit)) => op.holds(value, limit),
                _ => false,
            },
        },
        _ => false,
    }
}

fn text(found: &Found, unit: Unit) -> String {
    let of: Vec<String> = found
        .of
        .iter()
        .filter(|(_, value)| !value.is_empty() && value != "bare")
        .map(|(name, value)| match *name {
            "fault" => format!("in fault {value}"),
            _ => value.clone(),
        })
        .collect();
    let value = match &found.value {
        FoundValue::Word(word) => word.clone(),
        FoundValue::Number(number) if number.is_infinite() => "without bound".to_owned(),
        FoundValue::Number(number) => match unit {
            Unit::Seconds if *number < 0.001 => format!("{:.1} us", number * 1e6),
            Unit::Seconds => format!("{number:.3} s"),
            Unit::Percent => format!("{number:.2} %"),
            Unit::Factor => format!("{number:.2}"),
            Unit::Count | Unit::Verdict => format!("{number}"),
        },
    };
    let value = match found.note {
        "" => value,
        note => format!("{value} {note}"),
    };
    if of.is_empty() {
        value
    } else {
        format!("{}: {value}", of.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn summary() -> Value {
        json!({
            "conservation": {"lost_max": 0},
            "targets": [
                {"name": "p", "style": "reused", "kind": "bare", "due": 100,
                 "availability_pct": 89.9, "max_gap_s": 3.0, "max_gap_is_at_least": false,
                 "client_time_lost_s": {"lower": 1.0, "upper": null},
                 "latency_ms": {"p99": 4.0, "more_than": []},
                 "response_ms": {"p99": 9.0, "more_than": ["p99"]},
                 "errors": [{"count": 2}, {"count": 3}],
                 "windows": [{"scope": "any", "fault": 1, "outage_lower_s": 2.0, "outage_upper_s": 3.1},
                             {"scope": "client", "outage_lower_s": 9.0, "outage_upper_s": 9.9}],
                 "faults": [{"fault": 1, "verdict": "disrupted", "gap_s": 3.0,
                             "gap_is_at_least": false, "outage_lower_s": 2.0, "outage_upper_s": 3.1}]},
                {"name": "q", "style": "new", "kind": "bare", "due": 100,
                 "availability_pct": 100.0, "max_gap_s": 0.2, "max_gap_is_at_least": true,
                 "windows": [], "errors": [],
                 "faults": [{"fault": 1, "verdict": "not exposed", "gap_s": 0.2,
                             "gap_is_at_least": false, "outage_lower_s": null, "outage_upper_s": null}]}
            ],
            "cells": [
                {"target": "p", "clients": 40, "label": "now", "errors": 0,
                 "to_direct": {"ratio": 1.4, "ratio_lower": 1.3, "added_ns": 30000.0}},
                {"target": "p", "clients": 1, "label": "now", "errors": 0, "to_direct": null}
            ]
        })
    }

    #[track_caller]
    fn check(gate: &str, expect: Option<&str>) {
        let gate: Gate = gate.parse().expect("a gate");
        let case = judge(&summary(), std::slice::from_ref(&gate)).remove(0);
        match (case.failure, expect) {
            (None, None) => {}
            (Some(why), Some(expect)) => assert!(why.contains(expect), "{gate}: {why}"),
            other => panic!("{gate}: {other:?}"),
        }
    }

    #[test]
    fn conditions_hold_for_any_value() {
        check("windows.upper > 2s", Some("p reused in fault 1: 3.100 s"));
        check("windows.upper > 4s", None);
        check("windows.upper > 2s where target = q", None);
        check("available < 99%", Some("p reused: 89.90 %"));
        check("available < 80%", None);
        check("errors > 4", Some("p reused: 5"));
        check("data.lost > 0", None);
        check(
            "ratio.lower > 1.2 where clients = 40",
            Some("p 40 now: 1.30"),
        );
        check("added > 20us", Some("30.0 us"));
        check("ratio > 1.5", None);
        check("faults.gap > 1s", Some("p reused in fault 1: 3.000 s"));
        check("latency.p99 > 3ms", Some("0.004 s"));
    }

    #[test]
    fn what_has_no_bound_is_more_than_anything() {
        check("gap > 10m", Some("q new: without bound"));
        check("lost.upper > 1h", Some("p reused: without bound"));
        check("response.p99 > 1m", Some("without bound"));
        check("faults.upper > 10s", None);
    }

    #[test]
    fn verdicts_have_ranks() {
        check(
            "verdict >= disrupted",
            Some("p reused in fault 1: disrupted"),
        );
        check("verdict > disrupted", None);
        check("verdict >= seamless", Some("disrupted"));
        check(
            "verdict = not exposed",
            Some("q new in fault 1: not exposed"),
        );
        check("verdict < seamless", None);
    }

    #[test]
    fn what_nobody_looked_at_counts_as_the_worse() {
        let mut summary = summary();
        summary["targets"][1]["unwatched_max_s"] = json!(5.0);
        summary["targets"][1]["faults"][0]["verdict"] = json!("unmeasured");
        let check = |gate: &str, expect: &[&str]| {
            let gate: Gate = gate.parse().expect("a gate");
            let case = judge(&summary, std::slice::from_ref(&gate)).remove(0);
            match case.failure {
                None => assert!(expect.is_empty(), "{gate} passed"),
                Some(why) => {
                    assert!(!expect.is_empty(), "{gate}: {why}");
                    for expect in expect {
                        assert!(why.contains(expect), "{gate}: {why}");
                    }
                }
            }
        };
        check(
            "windows.upper > 4s",
            &["q new: 5.000 s not watched, an outage may lie in it"],
        );
        check("windows.upper > 6s", &[]);
        check("windows.upper > 4s where target = p", &[]);
        // What is known to have been out does not grow by it.
        check("windows.lower > 4s", &[]);
        check("faults.upper > 10s", &["q new in fault 1: without bound"]);
        check("verdict >= down", &["q new in fault 1: unmeasured"]);
        // Of p all was watched; a hole there, and its verdict may be worse than it says.
        check("verdict >= down where target = p", &[]);
        // For those who want it bad: nobody looked, so it is not known to be.
        check("verdict < disrupted", &[]);
        check("unwatched > 1s", &["q new: 5.000 s"]);
    }

    #[test]
    fn a_verdict_beside_a_hole_may_be_worse_than_it_says() {
        let mut summary = summary();
        let fails = |summary: &Value| {
            let gate: Gate = "verdict >= down".parse().expect("a gate");
            judge(summary, &[gate]).remove(0).failure
        };
        assert_eq!(fails(&summary), None);
        summary["targets"][0]["unwatched_max_s"] = json!(3.06);
        let why = fails(&summary).expect("not passed");
        let said = "p reused in fault 1: unmeasured at worst: a part was not watched";
        assert!(why.contains(said), "{why}");
        // Not exposed is no verdict on what the proxy did.
        summary["targets"][0]["unwatched_max_s"] = json!(0.0);
        summary["targets"][1]["unwatched_max_s"] = json!(3.06);
        assert_eq!(fails(&summary), None);
    }

    /// One client, one probe a second: an outage of half a second passes unseen, and
    /// whoever asks for less than that has not measured it.
    #[test]
    fn what_can_have_passed_unseen_counts_as_the_worse() {
        let mut summary = summary();
        let why = |summary: &Value, gate: &str| {
            let gate: Gate = gate.parse().expect("a gate");
            judge(summary, &[gate]).remove(0).failure
        };
        let unseen = "q new: 1.002 s between two answers, an outage may lie in it unseen";
        let q = &mut summary["targets"][1];
        q["interval_s"] = json!(1.0);
        q["unseen_max_s"] = json!(1.002);
        q["faults"][0]["unseen_max_s"] = json!(1.002);
        q["faults"][0]["deadline_ms"] = json!(250.0);
        q["faults"][0]["verdict"] = json!("seamless");
        let said = why(&summary, "windows.upper > 300ms where target = q").expect("not passed");
        assert!(said.contains(unseen), "{said}");
        assert_eq!(why(&summary, "windows.upper > 2s where target = q"), None);
        let said = why(&summary, "faults.upper > 300ms where target = q").expect("not passed");
        assert!(said.contains("q new in fault 1: 1.002 s between"), "{said}");
        // What is known to have been out does not grow by it.
        assert_eq!(
            why(&summary, "windows.lower > 300ms where target = q"),
            None
        );
        // A verdict is one at the deadline of 250 ms.
        let said = why(&summary, "verdict >= stalled where target = q").expect("not passed");
        assert!(said.contains("further apart than the deadline"), "{said}");
        // The longest time without an answer is known, but not from one answer alone.
        summary["targets"][1]["max_gap_is_at_least"] = json!(false);
        assert_eq!(why(&summary, "gap > 300ms where target = q"), None);
        summary["targets"][1]["max_gap_s"] = json!(0.0);
        let said = why(&summary, "gap > 300ms where target = q").expect("not passed");
        assert!(said.contains(unseen), "{said}");
        // An idle connection is not there to measure how long something was out.
        summary["targets"][1]["kind"] = json!("idle");
        for gate in [
            "windows.upper > 300ms where target = q",
            "verdict >= stalled where target = q",
        ] {
            assert_eq!(why(&summary, gate), None);
        }
    }

    #[test]
    fn a_share_of_what_nobody_looked_at_is_the_worst() {
        let mut summary = summary();
        let q = &mut summary["targets"][1];
        let check = |summary: &Value, gate: &str, expect: Option<&str>| {
            let gate: Gate = gate.parse().expect("a gate");
            match (
                judge(summary, std::slice::from_ref(&gate))
                    .remove(0)
                    .failure,
                expect,
            ) {
                (None, None) => {}
                (Some(why), Some(expect)) => assert!(why.contains(expect), "{gate}: {why}"),
                other => panic!("{gate}: {other:?}"),
            }
        };
        let only = "available < 99% where target = q";
        // The prober was late here and there: no hole, no harm.
        q["no_data"] = json!(20);
        check(&summary, only, None);
        let q = &mut summary["targets"][1];
        q["unwatched_max_s"] = json!(4.0);
        check(
            &summary,
            only,
            Some("q new: 80.00 % at worst: nothing is known of a part of its slots"),
        );
        check(&summary, "available < 75% where target = q", None);
        // Not one slot with data.
        let q = &mut summary["targets"][1];
        q["no_data"] = json!(100);
        q["availability_pct"] = Value::Null;
        q["answered_pct"] = Value::Null;
        q["healthy"] = json!({"due": 40, "availability_pct": null});
        q["latency_ms"] = json!({"p99": null, "more_than": []});
        let nothing = "q new: 0.00 % at worst: nothing was measured";
        for field in ["available", "answered", "healthy.available"] {
            check(
                &summary,
                &format!("{field} < 1% where target = q"),
                Some(nothing),
            );
        }
        check(
            &summary,
            "latency.p99 > 10m where target = q",
            Some("q new: without bound at worst: nothing was measured"),
        );
        // Nothing was due before the first fault: of that there is nothing to say.
        summary["targets"][1]["healthy"]["due"] = json!(0);
        check(
            &summary,
            "healthy.available < 1% where target = q",
            Some("nothing was tested"),
        );
    }

    #[test]
    fn a_gate_that_tested_nothing_has_not_passed() {
        check(
            "windows.upper > 2s where target = nobody",
            Some("nothing was tested"),
        );
        check("ratio > 1 where clients = 7", Some("nothing was tested"));
    }
}
