//! Whole runs, written through the store and read back: what is reported must
//! be what was put in.

use gapscope_aggregator::commands::report::{as_full_text, as_text};
use gapscope_aggregator::exit::Exit;
use gapscope_aggregator::gate::judge::judge;
use gapscope_aggregator::store::RunFolder;
use gapscope_aggregator::store::loss::LossRecord;
use gapscope_aggregator::store::manifest::RunState;
use gapscope_proto::fault::{FaultScope, Subject};
use gapscope_proto::frame::StreamKind;
use gapscope_proto::host::{Anchor, Exchange, HostRecord, Lag};
use gapscope_proto::ids::Incarnation;
use gapscope_proto::plan::ClientKind;
use gapscope_proto::sample::{Sample, Style};
use gapscope_proto::time::Timestamp;
use serde_json::Value;

mod lab;
use lab::*;

fn row<'a>(json: &'a Value, style: &str, kind: &str) -> &'a Value {
    json["targets"]
        .as_array()
        .expect("targets")
        .iter()
        .find(|t| t["style"] == style && t["kind"] == kind)
        .expect("the row is there")
}

fn caveats(json: &Value) -> Vec<&str> {
    json["caveats"]
        .as_array()
        .expect("caveats")
        .iter()
        .filter_map(|c| c["code"].as_str())
        .collect()
}

#[test]
fn a_stopped_backend_is_reported_as_it_was() {
    let mut lab = Lab::new(standard("proxy"), 6 * S);
    lab.begin();
    lab.probe(|blank, due| match due {
        d if d < 2_000 * MS => blank.clone(),
        d if d < 3_500 * MS => refused(blank),
        _ => from_b(
            blank,
            if blank.style == Style::New {
                blank.slot as u32 + 1
            } else {
                2
            },
        ),
    });
    lab.end();
    lab.fault("stop", FaultScope::Backend, 1_995 * MS, Some("a:3306"));
    lab.close();
    let (reported, json) = lab.report();
    assert_eq!(reported.exit, Exit::Ok);
    let bare = row(&json, "reused", "bare");
    assert_eq!(
        (&bare["clients"], &bare["due"]),
        (&Value::from(4), &Value::from(2_400))
    );
    assert_eq!(bare["faults"][0]["verdict"], "disrupted");
    assert_eq!(bare["faults"][0]["fates"]["dropped"], 4);
    assert_eq!(bare["faults"][0]["clients"]["held"], 4);
    assert_eq!(bare["connection_changes"], 4);
    assert_eq!(bare["backend_switches"], 4);
    let truth = 1.5;
    for window in bare["windows"].as_array().expect("windows") {
        let lower = window["outage_lower_s"].as_f64().expect("bounded");
        let upper = window["outage_upper_s"].as_f64().expect("bounded");
        assert!(lower <= truth && truth <= upper, "{window}");
        assert!(upper - lower < 0.025, "{window}");
    }
    assert_eq!(
        row(&json, "new", "bare")["faults"][0]["fates"]["refused"],
        2
    );
    assert_eq!(row(&json, "new", "bare")["connection_changes"], Value::Null);
    assert_eq!(
        json["conservation"]["balanced"], true,
        "{:#}",
        json["caveats"]
    );
    assert!(caveats(&json).contains(&"one_fault"));
    let text = as_full_text(&reported.analysis, Some(120));
    assert!(
        text.contains("dropped 6/8 (reused, patient, user_variable), refused 2/8 (new) held")
            && text.contains("dropped 4/4 held"),
        "{text}"
    );
}

#[test]
fn equal_connection_ids_do_not_hide_a_switch_and_a_canary_tells_migration() {
    let mut lab = Lab::new(standard("proxy"), 4 * S);
    lab.begin();
    lab.probe(|blank, due| {
        if due < 2_000 * MS || blank.style == Style::New {
            blank.clone()
        } else {
            from_b(blank, 1)
        }
    });
    lab.end();
    lab.fault("drain", FaultScope::Backend, 1_995 * MS, Some("a:3306"));
    lab.close();
    let (_, json) = lab.report();
    let bare = row(&json, "reused", "bare");
    assert_eq!(bare["connection_changes"], 0);
    assert_eq!(bare["session_changes"], 4);
    assert_eq!(bare["backend_switches"], 4);
    assert_eq!(bare["faults"][0]["verdict"], "seamless");
    assert_eq!(bare["faults"][0]["state_not_tested"], true);
    let canary = row(&json, "reused", "user_variable");
    assert_eq!(canary["faults"][0]["fates"]["migrated"], 1);
    assert_eq!(canary["faults"][0]["state_not_tested"], false);
    assert_eq!(row(&json, "new", "bare")["faults"][0]["fates"]["served"], 2);
}

#[test]
fn an_outage_that_is_not_over_is_printed_with_at_least() {
    let mut lab = Lab::new(standard("proxy"), 4 * S);
    lab.begin();
    lab.probe(|blank, due| {
        if due < 2_000 * MS {
            blank.clone()
        } else {
            refused(blank)
        }
    });
    lab.end();
    lab.fault("kill", FaultScope::Backend, 1_995 * MS, Some("a:3306"));
    lab.close();
    let (reported, json) = lab.report();
    let bare = row(&json, "reused", "bare");
    assert_eq!(bare["faults"][0]["verdict"], "down");
    assert_eq!(bare["max_gap_is_at_least"], true);
    assert!(bare["max_gap_s"].as_f64().expect("known") > 1.9);
    assert!(
        bare["windows"]
            .as_array()
            .expect("windows")
            .iter()
            .all(|w| w["ongoing"] == true && w["outage_upper_s"].is_null())
    );
    let text = as_text(&reported.analysis, Some(80));
    assert!(text.contains("≥1.9"), "{text}");
}

#[test]
fn a_run_without_a_sample_says_what_it_has() {
    let mut lab = Lab::new(standard("proxy"), 4 * S);
    let (reported, json) = lab.report();
    assert_eq!(reported.exit, Exit::DataLost);
    assert!(caveats(&json).contains(&"agent_never_began"));
    lab.begin();
    lab.store.commit().expect("committed");
    lab.store.interrupt("killed").expect("marked");
    let (_, json) = lab.report();
    assert!(caveats(&json).contains(&"interrupted"));
    let books = &json["conservation"];
    assert_eq!(books["stored"], 0);
    assert_eq!(books["absent"], books["due"]);
    let bare = row(&json, "reused", "bare");
    assert_eq!(bare["availability_pct"], Value::Null);
    assert_eq!(bare["windows"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_vanished_agent_is_no_data_and_no_outage() {
    let mut lab = Lab::new(standard("proxy"), 2 * S);
    lab.begin();
    lab.probe(|blank, _| blank.clone());
    // Planned for longer than it lived.
    lab.store
        .edit_manifest(|m| m.plan.duration_ns = 4 * S as u64);
    lab.store
        .close(|m| m.state = RunState::Closed)
        .expect("closed");
    let run = RunFolder::open(lab.store.folder()).expect("readable");
    assert!(run.manifest().agents[0].incarnations[0].ended.is_none());
    let (_, json) = lab.report();
    let bare = row(&json, "reused", "bare");
    assert_eq!(bare["availability_pct"], 100.0);
    assert_eq!(bare["windows"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_run_resumed_after_a_crash_of_the_agent_counts_each_slot_once() {
    let groups = vec![group(
        "proxy",
        Style::Reused,
        ClientKind::Bare,
        0,
        2,
        10 * MS,
    )];
    let mut lab = Lab::new(groups, 4 * S);
    lab.begin();
    // Dead from 1 s to 3 s: what was probed then never was.
    let plan = lab.store.manifest().plan.clone();
    let of = |from: i64, to: i64, origin: i64| {
        let mut found = Vec::new();
        for (index, client) in (0..2u16).zip(plan.groups[0].client_numbers()) {
            for slot in 0..400 {
                let due = plan.groups[0].due_after_origin_ns(index, slot) as i64;
                if (from..to).contains(&due) {
                    found.push(sample(&plan.groups[0], client, slot, origin + due));
                }
            }
        }
        found
    };
    let origin = lab.origin;
    lab.store
        .append_samples(&lab.agent, lab.incarnation, of(0, S, origin));
    lab.incarnation = Incarnation::generate();
    lab.begin();
    lab.store
        .append_samples(&lab.agent, lab.incarnation, of(3 * S, 4 * S, origin));
    (lab.due, lab.sampled) = (200, 200);
    lab.end();
    lab.close();
    let (_, json) = lab.report();
    let books = &json["conservation"];
    let numbers = ["due", "stored", "absent", "overslept"].map(|k| books[k].as_u64());
    assert_eq!(numbers, [Some(800), Some(400), Some(400), Some(0)]);
    let said = json["caveats"].to_string();
    assert!(
        said.contains("agent-1 was away from 1.0 s to 3.0 s after its begin, and went on; slots"),
        "{said}"
    );
    assert!(!said.contains("vanished"), "{said}");
    assert_eq!(books["balanced"], true, "{:#}", json["caveats"]);
    let bare = row(&json, "reused", "bare");
    assert_eq!(bare["availability_pct"], 100.0);
    assert!(bare["max_gap_s"].as_f64().expect("known") < 0.02);
}

/// Whoever wrote it was killed: what was due after that is nowhere, and it is said.
#[test]
fn the_books_of_a_run_that_was_left_say_where_they_end() {
    let mut lab = Lab::new(standard("proxy"), 2 * S);
    lab.begin();
    lab.probe(|blank, _| blank.clone());
    // Of what was planned the rest never came.
    lab.store
        .edit_manifest(|m| m.plan.duration_ns = 30 * S as u64);
    lab.store.commit().expect("committed");
    let (reported, json) = lab.report();
    assert_eq!(
        (&json["state"], reported.exit),
        (&Value::from("abandoned"), Exit::DataLost)
    );
    let text = as_text(&reported.analysis, Some(250));
    let end = "; the books end 2.0";
    assert!(text.contains(end), "{text}");
    assert!(
        text.contains(" s after the begin, of 30 s planned: nothing was recorded after"),
        "{text}"
    );
}

#[test]
fn samples_without_the_record_of_their_begin_still_count() {
    let mut lab = Lab::new(standard("proxy"), 2 * S);
    lab.probe(|blank, _| blank.clone());
    lab.close();
    let (_, json) = lab.report();
    assert_eq!(json["conservation"]["stored"].as_u64(), Some(lab.sampled));
    assert_eq!(row(&json, "reused", "bare")["ok"], 800);
    assert!(caveats(&json).contains(&"agent"));
}

#[test]
fn books_that_do_not_balance_are_shouted() {
    let mut lab = Lab::new(standard("proxy"), 2 * S);
    lab.begin();
    lab.probe(|blank, _| blank.clone());
    lab.waited += 3;
    lab.end();
    lab.close();
    let (reported, json) = lab.report();
    assert_eq!(json["conservation"]["balanced"], false);
    let text = as_text(&reported.analysis, Some(80));
    assert!(text.contains("THE BOOKS DO NOT BALANCE"), "{text}");
}

#[test]
fn lost_samples_are_declared_and_end_with_4() {
    let mut lab = Lab::new(standard("proxy"), 2 * S);
    lab.begin();
    lab.probe(|blank, _| blank.clone());
    let seq = lab.sampled;
    // Ten more were measured and will never come.
    lab.store.declare_loss(LossRecord {
        agent_id: lab.agent.clone(),
        incarnation: lab.incarnation,
        kind: StreamKind::Samples,
        first_seq: seq + 1,
        last_seq: seq + 10,
        count_min: 10,
        count_max: 10,
        reason: "spool_full".into(),
    });
    lab.lasts += 20 * MS;
    lab.due += 2 * 6;
    lab.sampled += 10;
    lab.waited += 2;
    lab.end();
    lab.close();
    let (reported, json) = lab.report();
    assert_eq!(reported.exit, Exit::DataLost);
    let books = &json["conservation"];
    assert_eq!(
        (&books["lost_min"], &books["lost_max"]),
        (&Value::from(10), &Value::from(10))
    );
    let sum = ["sampled", "waited", "overslept", "absent"]
        .iter()
        .map(|k| books[k].as_u64().expect("a number"))
        .sum::<u64>();
    assert_eq!(Some(sum), books["due"].as_u64());
}

#[test]
fn faults_on_another_clock_are_intervals() {
    let groups = || {
        vec![group(
            "proxy",
            Style::Reused,
            ClientKind::Bare,
            0,
            4,
            10 * MS,
        )]
    };
    let ahead = 77 * S;
    let mut lab = Lab::with_clock(groups(), 4 * S, key("other host"), 5 * S);
    lab.begin();
    // The aggregator's clock is 77 s ahead; each way takes 1 ms, give or take.
    let exchanges = (0..40i64).map(|k| {
        let a1 = 5 * S + k * 100 * MS;
        HostRecord::Exchange(Exchange {
            a1_ns: a1,
            s1_ns: a1 + ahead + MS,
            s2_ns: a1 + ahead + MS + 10_000,
            a2_ns: a1 + 2 * MS + 20_000,
            server: key("host"),
        })
    });
    lab.host(exchanges.collect::<Vec<_>>());
    lab.probe(|blank, due| match due {
        d if d < 2_000 * MS => blank.clone(),
        d if d < 2_010 * MS => refused(blank),
        _ => from_b(blank, 2),
    });
    lab.end();
    lab.origin += ahead;
    lab.fault("stop", FaultScope::Backend, 1_995 * MS, Some("a:3306"));
    lab.close();
    let (reported, json) = lab.report();
    let fault = &row(&json, "reused", "bare")["faults"][0];
    let asked = &fault["asked_s"];
    let (earliest, latest) = (
        asked["earliest"].as_f64().expect("known"),
        asked["latest"].as_f64().expect("known"),
    );
    assert!(earliest < 1.995 && 1.995 < latest, "{asked}");
    assert!(latest - earliest < 0.003, "{asked}");
    assert_eq!(fault["verdict"], "reconnected");
    let text = as_text(&reported.analysis, Some(120));
    assert!(text.contains("fault 1 at +1.994..+1.996 s"), "{text}");
}

#[test]
fn a_clock_that_nothing_relates_is_not_guessed() {
    let groups = vec![group(
        "proxy",
        Style::Reused,
        ClientKind::Bare,
        0,
        1,
        10 * MS,
    )];
    let mut lab = Lab::with_clock(groups, 4 * S, key("other host"), 5 * S);
    lab.begin();
    lab.probe(|blank, _| blank.clone());
    lab.end();
    lab.fault("stop", FaultScope::Backend, 1_995 * MS, Some("a:3306"));
    lab.close();
    let (_, json) = lab.report();
    assert_eq!(
        row(&json, "reused", "bare")["faults"]
            .as_array()
            .map(Vec::len),
        Some(0)
    );
    assert!(caveats(&json).contains(&"clock"));
}

#[test]
fn equal_identities_and_a_pausing_agent_are_said() {
    let mut lab = Lab::new(standard("proxy"), 4 * S);
    lab.begin();
    lab.host([HostRecord::Lag(Lag {
        at_ns: lab.origin + 2_100 * MS,
        ticks: 5,
        late_max_ns: 400 * MS as u64,
    })]);
    lab.probe(|blank, due| {
        if (2_100 * MS..2_300 * MS).contains(&due) {
            refused(blank)
        } else {
            blank.clone()
        }
    });
    lab.end();
    lab.store.edit_manifest(|m| {
        m.subjects = ["db-a", "db-b"]
            .map(|name| Subject {
                name: name.into(),
                identity: Some("a:3306".into()),
                address: String::new(),
            })
            .to_vec();
    });
    lab.close();
    let (_, json) = lab.report();
    let all = caveats(&json);
    assert!(
        all.contains(&"equal_identities") && all.contains(&"window_no_data"),
        "{all:?}"
    );
    let bare = row(&json, "reused", "bare");
    assert!(
        bare["windows"]
            .as_array()
            .expect("windows")
            .iter()
            .all(|w| w["no_data"] == true)
    );
    assert_eq!(bare["max_gap_has_no_data"], true);
}

#[test]
fn a_mark_is_shown_and_not_judged_and_a_failback_exposes_all() {
    let mut lab = Lab::new(standard("proxy"), 6 * S);
    lab.begin();
    lab.probe(|blank, _| blank.clone());
    lab.end();
    lab.fault("mark", FaultScope::Mark, 1_000 * MS, None);
    lab.fault("stop", FaultScope::Backend, 2_000 * MS, None);
    lab.fault("start", FaultScope::Failback, 3_000 * MS, Some("b:3306"));
    lab.fault("stop", FaultScope::Backend, 4_500 * MS, Some("b:3306"));
    lab.close();
    let (reported, json) = lab.report();
    let faults = row(&json, "reused", "bare")["faults"]
        .as_array()
        .expect("faults")
        .clone();
    let ids: Vec<_> = faults.iter().map(|f| f["fault"].as_u64()).collect();
    assert_eq!(ids, [Some(3), Some(4)]);
    assert_eq!(faults[0]["verdict"], "seamless");
    assert_eq!(faults[0]["clients"]["held"], 4);
    assert_eq!(faults[1]["verdict"], "not exposed");
    assert!(caveats(&json).contains(&"fault_not_judged"));
    assert_eq!(reported.exit, Exit::Ok);
}

#[test]
fn a_fault_of_one_proxy_tests_no_other() {
    let mut groups = vec![group(
        "proxy",
        Style::Reused,
        ClientKind::Bare,
        0,
        2,
        10 * MS,
    )];
    groups.push(group(
        "db-a",
        Style::Reused,
        ClientKind::Bare,
        0,
        2,
        10 * MS,
    ));
    let mut lab = Lab::new(groups, 4 * S);
    lab.begin();
    lab.probe(|blank, due| match (blank.target.as_str(), due) {
        ("db-a", d) if (2_000 * MS..2_100 * MS).contains(&d) => refused(blank),
        ("db-a", d) if d >= 2_100 * MS => from_b(blank, 2),
        _ => blank.clone(),
    });
    lab.end();
    lab.fault("restart", FaultScope::Proxy, 1_995 * MS, None);
    lab.close();
    let (reported, json) = lab.report();
    let verdicts: Vec<_> = json["targets"]
        .as_array()
        .expect("targets")
        .iter()
        .map(|t| (t["name"].as_str(), t["faults"][0]["verdict"].as_str()))
        .collect();
    assert_eq!(
        verdicts,
        [
            (Some("proxy"), Some("not exposed")),
            (Some("db-a"), Some("disrupted"))
        ]
    );
    assert_eq!(reported.exit, Exit::Ok);
}

#[test]
fn a_fault_that_exposed_nobody_ends_with_4() {
    let mut lab = Lab::new(standard("proxy"), 4 * S);
    lab.begin();
    lab.probe(|blank, _| from_b(blank, 1));
    lab.end();
    lab.fault("stop", FaultScope::Backend, 1_995 * MS, Some("a:3306"));
    lab.close();
    let (reported, json) = lab.report();
    assert_eq!(reported.exit, Exit::DataLost);
    assert_eq!(json["exit_code"], 4);
    let text = as_text(&reported.analysis, Some(80));
    assert!(text.contains("not exposed"), "{text}");
}

/// A backend that ends in an orderly way goes on answering for a moment.
#[test]
fn a_fault_that_was_hardly_watched_is_not_said_to_have_had_no_effect() {
    for (asked_ms, says) in [
        (3_500, "that were watched after it nothing bad was seen"),
        (995, "it had no effect that was seen"),
    ] {
        let mut lab = Lab::new(standard("proxy"), 4 * S);
        lab.begin();
        lab.probe(|blank, _| blank.clone());
        lab.end();
        lab.fault("stop", FaultScope::Backend, asked_ms * MS, Some("a:3306"));
        lab.close();
        let (reported, json) = lab.report();
        let fault = &row(&json, "reused", "bare")["faults"][0];
        assert_eq!(fault["verdict"], "unmeasured");
        let went_on = caveats(&json).contains(&"no_effect");
        assert_eq!(went_on, asked_ms < 1_000, "{json:#}");
        let said = json["conclusions"].to_string();
        assert!(said.contains(says), "{said}");
        assert_eq!(reported.exit, Exit::DataLost);
    }
}

#[test]
fn a_fault_after_the_last_probe_is_unmeasured() {
    let mut lab = Lab::new(standard("proxy"), 4 * S);
    lab.begin();
    lab.probe(|blank, _| blank.clone());
    lab.end();
    lab.fault("stop", FaultScope::Backend, 4_100 * MS, Some("a:3306"));
    lab.close();
    let (reported, json) = lab.report();
    assert_eq!(
        row(&json, "reused", "bare")["faults"][0]["verdict"],
        "unmeasured"
    );
    assert!(caveats(&json).contains(&"unmeasured"));
    assert_eq!(reported.exit, Exit::DataLost);
}

#[test]
fn the_report_looks_like_this() {
    let groups = vec![
        group(
            "pass-through",
            Style::Reused,
            ClientKind::Bare,
            0,
            4,
            10 * MS,
        ),
        group("pass-through", Style::New, ClientKind::Bare, 0, 2, 200 * MS),
        group(
            "reconnecting",
            Style::Reused,
            ClientKind::Bare,
            0,
            4,
            10 * MS,
        ),
    ];
    let mut lab = Lab::new(groups, 6 * S);
    lab.begin();
    lab.probe(|blank, due| {
        let is_new = blank.style == Style::New;
        match (blank.target.as_str(), due) {
            (_, d) if d < 2_000 * MS => blank.clone(),
            ("reconnecting", _) => from_b(blank, 1),
            (_, d) if d < 3_500 * MS => refused(blank),
            _ => from_b(blank, if is_new { blank.slot as u32 + 1 } else { 2 }),
        }
    });
    lab.end();
    lab.fault("stop", FaultScope::Backend, 1_995 * MS, Some("a:3306"));
    lab.close();
    let (reported, _) = lab.report();
    let mut settings = insta::Settings::clone_current();
    settings.add_filter("[0-9a-f]{8}-[0-9a-f-]{27}", "[run id]");
    settings.bind(|| {
        insta::assert_snapshot!("text_80", as_text(&reported.analysis, Some(80)));
        insta::assert_snapshot!("text_120", as_text(&reported.analysis, Some(120)));
        insta::assert_snapshot!("text_full_80", as_full_text(&reported.analysis, Some(80)));
        insta::assert_snapshot!("markdown", reported.markdown);
    });
}

/// Two agents, the second's clock 77 s behind; it sees the outage `later`.
fn seen_by_two(later: i64, wall_off: i64, hurts_second: bool) -> Lab {
    let groups = vec![group(
        "proxy",
        Style::Reused,
        ClientKind::Bare,
        0,
        2,
        10 * MS,
    )];
    let mut lab = Lab::new(groups, 4 * S);
    let anchor = |raw: i64| Anchor {
        raw_before_ns: raw,
        raw_after_ns: raw + 200,
        monotonic_ns: raw,
        boottime_ns: raw,
        realtime_ns: WALL + raw,
        timer_late_ns: 0,
    };
    lab.store
        .edit_manifest(|m| m.anchors = vec![anchor(1_000 * S), anchor(1_004 * S)]);
    let outage = |blank: &Sample, due: i64, from: i64| match due {
        d if (from..from + 500 * MS).contains(&d) => refused(blank),
        d if d >= from + 500 * MS => from_b(blank, 2),
        _ => blank.clone(),
    };
    lab.begin();
    lab.probe(|blank, due| outage(blank, due, 2_000 * MS));
    lab.end();
    lab.next_agent("agent-2", key("other host"), 923 * S);
    lab.begin();
    lab.exchange(77 * S, wall_off);
    lab.probe(|blank, due| {
        if hurts_second {
            outage(blank, due, 2_000 * MS + later)
        } else {
            blank.clone()
        }
    });
    lab.end();
    lab.close();
    lab
}

fn only_outage(json: &Value) -> &Value {
    let targets = json["across"]["targets"].as_array().expect("two agents");
    assert_eq!(targets.len(), 1);
    let outages = targets[0]["outages"].as_array().expect("a list");
    assert_eq!(outages.len(), 1, "{outages:?}");
    &outages[0]
}

#[test]
fn two_agents_share_one_timeline_and_who_was_first_is_said() {
    let lab = seen_by_two(200 * MS, 0, true);
    let (reported, json) = lab.report();
    let outage = only_outage(&json);
    assert_eq!(outage["first"], "agent");
    assert_eq!(outage["first_agents"][0], "agent-1");
    let lead = &outage["first_lead_s"];
    let (lower, upper) = (
        lead["lower"].as_f64().expect("known"),
        lead["upper"].as_f64().expect("known"),
    );
    assert!(
        lower <= 0.2 && 0.2 <= upper && upper - lower < 0.005,
        "{lead}"
    );
    // From 2.0 to 2.7 s somebody, from 2.2 to 2.5 s everybody.
    let of = |key: &str| outage[key].as_f64().expect("known");
    assert!(
        of("any_lower_s") <= 0.7 && 0.7 <= of("any_upper_s"),
        "{outage}"
    );
    assert!(
        of("all_lower_s") <= 0.3 && 0.3 <= of("all_upper_s"),
        "{outage}"
    );
    assert!(of("all_upper_s") - of("all_lower_s") < 0.05, "{outage}");
    assert_eq!(outage["partial"], false);
    assert!((of("clock_bound_s") - 0.001).abs() < 0.000_2, "{outage}");
    assert_eq!(outage["from_utc"], "2026-01-01T00:16:41.989Z");
    let clocks = json["clocks"]["agents"].as_array().expect("two clocks");
    assert_eq!(clocks[0]["relation"], "same");
    assert_eq!(clocks[1]["relation"], "bounded");
    assert_eq!(clocks[1]["epochs"][0]["ended"], "data_end");
    assert!(!caveats(&json).contains(&"wall_clock"));
    let text = as_text(&reported.analysis, Some(200));
    assert!(text.contains("One timeline"), "{text}");
    assert!(text.contains("agent-1, by 0.19"), "{text}");
}

#[test]
fn what_the_bounds_do_not_order_is_not_distinguishable() {
    let lab = seen_by_two(0, 0, true);
    let (reported, json) = lab.report();
    let outage = only_outage(&json);
    assert_eq!(outage["first"], "not_distinguishable");
    assert_eq!(outage["first_agents"].as_array().map(Vec::len), Some(2));
    let text = as_text(&reported.analysis, Some(200));
    assert!(
        text.contains("not distinguishable: agent-1, agent-2"),
        "{text}"
    );
}

#[test]
fn an_outage_from_one_side_only_is_told_from_a_whole_one() {
    let (reported, json) = seen_by_two(0, 0, false).report();
    let outage = only_outage(&json);
    assert_eq!(outage["partial"], true);
    assert_eq!(outage["first"], "alone");
    assert_eq!(outage["all_upper_s"], 0.0);
    assert_eq!(outage["agents"][1]["saw"], "served");
    let text = as_text(&reported.analysis, Some(200));
    assert!(
        text.contains("hurt: agent-1; served throughout: agent-2"),
        "{text}"
    );
}

#[test]
fn a_wall_clock_set_back_a_year_changes_no_number_and_is_named() {
    let year = 365 * 86_400 * S;
    let (good, bad) = (
        seen_by_two(200 * MS, 0, true),
        seen_by_two(200 * MS, -year, true),
    );
    let (_, good) = good.report();
    let (_, bad) = bad.report();
    assert_eq!(only_outage(&good), only_outage(&bad));
    assert_eq!(
        row(&good, "reused", "bare")["windows"],
        row(&bad, "reused", "bare")["windows"]
    );
    let named: Vec<&str> = bad["caveats"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|c| c["code"] == "wall_clock")
        .filter_map(|c| c["text"].as_str())
        .collect();
    assert_eq!(named.len(), 1);
    assert!(
        named[0].contains("agent-2") && named[0].contains("behind"),
        "{named:?}"
    );
}

#[test]
fn the_clock_map_holds_the_offset_between_knots() {
    use polars::prelude::*;
    let lab = seen_by_two(0, 0, true);
    lab.report();
    let id = lab
        .data
        .path()
        .read_dir()
        .expect("a folder")
        .flatten()
        .next()
        .expect("a run");
    let path = id.path().join("clock_map.parquet");
    let file = std::fs::File::open(path).expect("clock_map");
    let map = ParquetReader::new(file).finish().expect("a table");
    let methods = map
        .column("method")
        .expect("a column")
        .str()
        .expect("text")
        .clone();
    let at = map
        .column("at_ns")
        .expect("a column")
        .i64()
        .expect("ns")
        .clone();
    let lo = map
        .column("offset_lo_ns")
        .expect("a column")
        .i64()
        .expect("ns")
        .clone();
    let hi = map
        .column("offset_hi_ns")
        .expect("a column")
        .i64()
        .expect("ns")
        .clone();
    let mut knots = 0;
    for i in 0..map.height() {
        match methods.get(i) {
            Some("same") => {
                assert_eq!((at.get(i), lo.get(i), hi.get(i)), (None, Some(0), Some(0)));
            }
            Some("tube") => {
                knots += 1;
                let (lo, hi) = (lo.get(i).expect("known"), hi.get(i).expect("known"));
                assert!(
                    lo <= 77 * S && 77 * S <= hi && hi - lo < 3 * MS,
                    "{lo} {hi}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(knots >= 2);
}

#[test]
fn an_end_before_its_begin_is_no_data_and_no_negative_latency() {
    let groups = vec![group(
        "proxy",
        Style::Reused,
        ClientKind::Bare,
        0,
        1,
        10 * MS,
    )];
    let mut lab = Lab::new(groups, S);
    lab.begin();
    lab.probe(|blank, due| {
        let mut sample = blank.clone();
        if due == 500 * MS {
            sample.finished = Timestamp::from_ns(sample.started.ns() - 5 * S);
        }
        if due == 600 * MS {
            sample.finished = Timestamp::from_ns(i64::MIN / 2);
        }
        sample
    });
    lab.end();
    lab.close();
    let (_, json) = lab.report();
    let row = row(&json, "reused", "bare");
    assert_eq!(row["agent_errors"], 2);
    for latencies in ["latency_ms", "response_ms"] {
        for quantile in ["avg", "p50", "p99", "max"] {
            let ms = row[latencies][quantile].as_f64().expect("known");
            assert!((0.0..5_000.0).contains(&ms), "{latencies} {quantile}: {ms}");
        }
    }
}

#[test]
fn what_was_planned_and_is_not_there_is_not_called_nothing() {
    let mut lab = Lab::new(standard("proxy"), 4 * S);
    lab.begin();
    lab.probe(|blank, _| blank.clone());
    lab.end();
    lab.store.edit_manifest(|m| {
        m.labels
            .insert("step.01".to_owned(), "stop db-a due 2 s".to_owned());
    });
    lab.close();
    let (_, json) = lab.report();
    let said = json["conclusions"][0].as_str().expect("a sentence");
    assert!(
        said.contains("no fault is in the run, although steps were planned"),
        "{said}"
    );
    assert!(!said.contains("no fault was done"), "{said}");
}

/// What a proxy says of its backends is a note: it uses up no fault's number, however
/// early it comes.
#[test]
fn notes_use_up_no_number_of_a_fault() {
    let mut lab = Lab::new(standard("proxy"), 4 * S);
    lab.begin();
    lab.probe(|blank, _| blank.clone());
    lab.end();
    let note = "proxy holds db-a for DOWN";
    lab.note("proxy_view", "proxy", 500 * MS, note);
    lab.note("reset", "", 600 * MS, "as new");
    lab.fault("stop", FaultScope::Backend, 1_000 * MS, Some("a:3306"));
    lab.note("proxy_view", "proxy", 1_500 * MS, note);
    lab.fault("kill", FaultScope::Backend, 2_000 * MS, Some("a:3306"));
    lab.close();
    let (reported, json) = lab.report();
    let faults = json["faults"].as_array().expect("faults");
    let steps = |is_note: bool| -> Vec<(u64, &str)> {
        faults
            .iter()
            .filter(|f| f["is_note"] == is_note)
            .filter_map(|f| Some((f["id"].as_u64()?, f["step"].as_str()?)))
            .collect()
    };
    assert_eq!(steps(false), [(1, "stop"), (2, "kill")]);
    assert_eq!(steps(true).len(), 3);
    let nothing = "nothing was tested";
    let met = gate(&json, "faults.gap > 100h where fault = 1");
    assert!(!met.is_some_and(|why| why.contains(nothing)));
    let text = as_full_text(&reported.analysis, Some(120));
    let line = text.lines().find(|line| line.contains(note));
    assert!(line.is_some_and(|line| line.contains("0.500 s")), "{text}");
    assert!(!text.contains("fault 3"), "{text}");
}

/// A mark that comes when all is over: its fault had no effect, and the reader is told
/// what was just before it.
#[test]
fn a_mark_that_comes_late_is_told_of_the_outage_before_it() {
    let said = |moved: bool, slow: bool, scope: FaultScope| {
        let mut lab = Lab::new(standard("proxy"), 8 * S);
        lab.begin();
        lab.probe(|blank, due| match due {
            d if (1_000 * MS..2_500 * MS).contains(&d) && !slow => refused(blank),
            d if d == 1_000 * MS && slow => Sample {
                finished: Timestamp::from_ns(blank.started.ns() + 200 * MS),
                ..blank.clone()
            },
            d if moved && d >= 2_500 * MS => from_b(blank, 2),
            _ => blank.clone(),
        });
        lab.end();
        lab.fault("stop", scope, 3_000 * MS, Some("a:3306"));
        lab.close();
        let (_, json) = lab.report();
        json["conclusions"][0]
            .as_str()
            .expect("a sentence")
            .to_owned()
    };
    let late = "began 1.993 s before it, outside every fault (was the mark late?).";
    let stayed = said(false, false, FaultScope::Mark);
    assert!(
        stayed.contains("no effect that was seen; an outage of 1.489..1.512 s (by its reused"),
        "{stayed}"
    );
    assert!(stayed.contains(late), "{stayed}");
    let moved = said(true, false, FaultScope::Mark);
    assert!(
        moved.contains("nothing was tested; an outage of 1.489..1.512 s (by its reused"),
        "{moved}"
    );
    assert!(moved.contains(late), "{moved}");
    let slow = said(false, true, FaultScope::Mark);
    assert!(
        slow.contains("a time of 0.208 s without an answer"),
        "{slow}"
    );
    assert!(
        slow.contains("before it, outside every fault (was the mark late?)."),
        "{slow}"
    );
    // The lab is never late with what it does itself.
    let own = said(false, false, FaultScope::Backend);
    assert!(
        own.contains("began 1.993 s before it, outside every fault."),
        "{own}"
    );
}

/// What is said of gates that are held against a summary.
fn gate(json: &Value, condition: &str) -> Option<String> {
    let gate = condition.parse().expect("a gate");
    judge(json, &[gate]).remove(0).failure
}

/// One client, one probe a second, and half a second between two of them in which
/// nothing was there: nobody can know. So nobody says that there was nothing.
#[test]
fn an_outage_that_nobody_can_have_seen_is_not_said_not_to_have_been() {
    let groups = vec![group("proxy", Style::New, ClientKind::Bare, 0, 1, S)];
    let mut lab = Lab::new(groups, 6 * S);
    lab.begin();
    let is_out = |at: i64| (2_200 * MS..2_700 * MS).contains(&at);
    lab.probe(|blank, due| {
        assert!(!is_out(due), "no probe meets it");
        blank.clone()
    });
    lab.end();
    lab.fault("stop", FaultScope::Failback, 2_100 * MS, None);
    lab.close();
    let (_, json) = lab.report();
    let new = row(&json, "new", "bare");
    assert_eq!(new["windows"].as_array().map(Vec::len), Some(0));
    let most = new["unseen_max_s"].as_f64().expect("a number");
    assert!((1.0..1.1).contains(&most), "{most}");
    for condition in [
        "windows.upper > 300ms",
        "faults.upper > 300ms",
        "gap > 300ms",
        "faults.gap > 300ms",
        "verdict >= stalled",
    ] {
        assert!(gate(&json, condition).is_some(), "{condition} is not met");
    }
    for condition in ["windows.upper > 2s", "faults.upper > 2s", "gap > 2s"] {
        assert_eq!(gate(&json, condition), None, "{condition}");
    }
    let said = json["conclusions"][0].as_str().expect("a sentence");
    assert!(
        said.contains("one each 1 s, was answered within 250 ms; an outage of up to 1.002 s can"),
        "{said}"
    );
}
