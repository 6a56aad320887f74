//! `summary.json`: the analysis for programs.
//!
//! [`SCHEMA_VERSION`] 1. Durations end in `_s` or stand under `*_ms`; they are
//! not rounded. Times `at_s` count from the first origin of the row's agent.
//! Keys are added without a new version; a key that changes its meaning or goes
//! makes one. `null` is "not known" or "unbounded", never zero.
//!
//! ```text
//! schema_version, run_id, scenario, state, created_utc, program_version,
//! deadline_ms, exit_code
//! conclusions[]  one sentence for each target; conclusions_note, of all, or null
//! targets[]      one for each agent, target, style and kind of client
//!   name, style, kind, agent, clients, interval_s
//!   due, probed, ok, late, waited, waited_in_time, waited_no_data, overslept,
//!   absent, blind (the agent stood still while it was out),
//!   agent_errors, no_data          slots, see the report's books
//!   answered_pct, availability_pct, healthy {due, probed, ok, answered_pct,
//!   availability_pct}
//!   latency_ms, response_ms {count, unanswered, avg, p50, p90, p99, p99_9, max,
//!   more_than[]}                   nearest rank; a quantile named in more_than
//!                                  falls on unanswered slots: the true value is
//!                                  larger
//!   latency_ms_by_part, response_ms_by_part {healthy, during, after}
//!   max_gap_s, max_gap_is_at_least, max_gap_has_no_data
//!   unwatched_max_s                longest time of which nothing is known of a client
//!   unseen_max_s                   longest outage of a client that can lie unseen between
//!                                  two of its answers: its interval, and more
//!   connection_changes (null for `new`), session_changes, backend_switches,
//!   backends[], healthy_backends_a_client
//!   client_time_lost_s {lower, upper}
//!   windows[]    scope "client", "any", "all"; client, from_s, to_s, gap_s,
//!                gap_is_at_least, outage_lower_s, outage_upper_s, own_timeout_s,
//!                bad, late, ongoing, never_served, no_data, fault
//!   faults[]     fault, verdict, deadline_ms, state_not_tested, collateral,
//!                clients {held, shared, none, unmeasured, hurt}, fates {fate: n},
//!                fates_by_exposure {exposure: {fate: n}}, gap_s, gap_is_at_least,
//!                outage_lower_s, outage_upper_s, unseen_max_s, own_timeout_s, asked_s
//!                {earliest, latest}, after_asked_s {first_bad, first_bad_known,
//!                first_from_survivor, all_back, last_from_subject,
//!                last_new_connection_to_subject}, each {earliest, latest} or null
//!   pool         of a pool's clients: dead_at_ping, failed_after_ping {cause: n}
//!   errors[]     outcome, cause, code, count, first_s, last_s
//! faults[]       id, step, subject, identity, scope, is_note (of the lab's own: nothing is
//!                measured from it, and its id is none of a fault), judged, detail,
//!                asked_utc
//! state          "running", "closed", "interrupted" (found unfinished by an
//!                aggregator), "abandoned" (its aggregator is gone, no other has it)
//! conservation   due, sampled, stored, lost_min, lost_max, in_spools,
//!                in_spools_is_at_least, waited, overslept, absent, balanced
//! across         where several agents probed: zero_ns (aggregator's clock),
//!                targets[] name, style, kind, interval_s, outages[] from_s, to_s,
//!                from_utc, any_lower_s, any_upper_s, all_lower_s, all_upper_s,
//!                ongoing, no_data, partial, clock_bound_s, first ("agent",
//!                "alone", "not_distinguishable"), first_agents[], first_lead_s,
//!                agents[] agent, saw, clients, first_bad_s; else null
//! ledger         where rows were written: written {acknowledged, unknown, refused},
//!                readings[] agent, source, backend, error, shared, note;
//!                places[] agent, target, source, backend, counts {class: n},
//!                strays, elsewhere, first_wrong[] client, slot, incarnation,
//!                class, times; else null
//! looks[]        connections looked at beside the probes: name, agent, at_s, why
//!                ("start", "again", "switched", "rare"), error, addresses, peer,
//!                local, seen_as, greeting {version, connection_id, capabilities,
//!                auth_plugin} or null, tls {version, cipher} or null, server_tls
//!                ("": the server sees none; null: it does not say), connection_id,
//!                connection_id_again, connection_id_asked_alone, server_version,
//!                backend, identity, shows[] in words
//! addresses[]    which address served whom: name, agent, address, style, kind,
//!                interval_s, clients, answers, bad, first_s, last_s
//! clocks         likewise: as `gapscope-aggregator clock --format json`
//! repetitions[]  step, subject, faults[] ids; rows[] name, style, kind, agent, first
//!                and rest[] {repetition, verdict, gap_s, gap_is_at_least,
//!                outage_lower_s, outage_upper_s}, verdicts[] {verdict, count, of,
//!                share_interval_95}, gap_median_s, gap_median_interval_95_s,
//!                outage_median_s, outage_median_interval_95_s ([lower, upper] or
//!                null), gap_modes[] {count, from_s, to_s}, gap_not_over,
//!                trend_spearman
//! caveats[]      code, target, text
//! quantile_method
//! ```

use std::collections::BTreeMap;

use gapscope_proto::plan::ClientKind;
use gapscope_proto::sample::Cause;
use serde_json::{Map, Value as Json, json};

use super::{across, beside, clock, ledger, model, repeat};
use crate::analyse::fate::Exposure;
use crate::analyse::latency::{Quantiles, Value};
use crate::analyse::row::{FaultRow, Row, Scope, Split, Window};
use crate::analyse::run::{Analysis, Timeline};
use crate::analyse::series::SlotCounts;

/// Version of the form described above.
pub const SCHEMA_VERSION: u32 = 1;

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

fn ms(ns: i64) -> f64 {
    ns as f64 / 1e6
}

fn pct(share: Option<f64>) -> Json {
    share.map_or(Json::Null, |share| json!(share * 100.0))
}

/// The summary as JSON.
pub fn summary(analysis: &Analysis, exit_code: u8) -> Json {
    let manifest = &analysis.manifest;
    let targets: Vec<Json> = analysis
        .rows
        .iter()
        .map(|(timeline, row)| target(analysis, &analysis.timelines[*timeline], row))
        .collect();
    let c = &analysis.conservation;
    let is_shared = analysis.has_several_clocks();
    let (conclusions, note) = model::conclusions(analysis);
    json!({
        "schema_version": SCHEMA_VERSION,
        "run_id": manifest.run_id.to_string(),
        "scenario": manifest.plan.scenario,
        "state": analysis.standing.as_str(),
        "created_utc": manifest.created_utc,
        "program_version": env!("CARGO_PKG_VERSION"),
        "deadline_ms": manifest.plan.deadline_ns as f64 / 1e6,
        "exit_code": exit_code,
        "conclusions": conclusions,
        "conclusions_note": note,
        "targets": targets,
        "faults": analysis.faults.iter().map(|fault| json!({
            "id": fault.id,
            "step": fault.step,
            "subject": fault.subject,
            "identity": fault.identity,
            "scope": fault.scope.as_str(),
            "is_note": fault.is_note(),
            "judged": analysis.judged.contains(&fault.id),
            "detail": fault.detail,
            "asked_utc": analysis.asked_utc(fault),
        })).collect::<Vec<_>>(),
        "ledger": ledger::json(&analysis.ledger),
        "looks": beside::looks_json(analysis),
        "addresses": beside::addresses_json(analysis),
        "conservation": {
            "due": c.due,
            "sampled": c.stored + c.lost.0 + c.in_spools,
            "stored": c.stored,
            "lost_min": c.lost.0,
            "lost_max": c.lost.1,
            "in_spools": c.in_spools,
            "in_spools_is_at_least": c.may_hold_more,
            "waited": c.waited,
            "overslept": c.overslept,
            "absent": c.absent,
            "balanced": c.is_balanced,
        },
        "across": is_shared.then(|| across::as_json(analysis)),
        "clocks": is_shared.then(|| clock::as_json(&analysis.clocks, &model::agent_clocks(analysis))),
        "caveats": analysis.caveats.iter().map(|caveat| json!({
            "code": caveat.code,
            "target": caveat.target.as_ref().map(ToString::to_string),
            "text": caveat.text,
        })).collect::<Vec<_>>(),
        "repetitions": repeat::json(analysis),
        "quantile_method": "nearest rank",
    })
}

fn slots(counts: &SlotCounts) -> Json {
    json!({
        "due": counts.due,
        "probed": counts.probed,
        "ok": counts.ok,
        "late": counts.late,
        "answered_pct": pct(counts.answered()),
        "availability_pct": pct(counts.availability()),
    })
}

fn quantiles(q: &Quantiles) -> Json {
    let mut more_than = Vec::new();
    let mut of = |name: &str, value: Option<Value>| match value {
        None => Json::Null,
        Some(value) => {
            if value.is_more_than {
                more_than.push(name.to_owned());
            }
            json!(ms(value.ns))
        }
    };
    let (p50, p90, p99) = (of("p50", q.p50), of("p90", q.p90), of("p99", q.p99));
    let (p999, max) = (of("p99_9", q.p999), of("max", q.max));
    json!({
        "count": q.count,
        "unanswered": q.unanswered,
        "avg": q.avg_ns.map(|ns| ns / 1e6),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "p99_9": p999,
        "max": max,
        "more_than": more_than,
    })
}

fn by_part(split: &Split<Quantiles>) -> Json {
    json!({
        "healthy": quantiles(&split.healthy),
        "during": quantiles(&split.during),
        "after": quantiles(&split.after),
    })
}

fn target(analysis: &Analysis, timeline: &Timeline, row: &Row) -> Json {
    let counts = &row.slots.all;
    let origin = timeline.origin_ns;
    let names = |numbers: &mut dyn Iterator<Item = &u32>| {
        numbers
            .map(|number| analysis.names.word(*number).to_owned())
            .collect::<Vec<_>>()
    };
    let mut object = Map::new();
    let mut put = |key: &str, value: Json| {
        object.insert(key.to_owned(), value);
    };
    put("name", json!(row.target.as_str()));
    put("style", json!(row.style.as_str()));
    put("kind", json!(row.kind.as_str()));
    put("agent", json!(row.agent.as_str()));
    put("clients", json!(row.clients));
    put("interval_s", json!(seconds(row.interval_ns)));
    put("due", json!(counts.due));
    put("probed", json!(counts.probed));
    put("ok", json!(counts.ok));
    put("late", json!(counts.late));
    put("waited", json!(counts.waited));
    put("waited_in_time", json!(counts.waited_in_time));
    put("overslept", json!(counts.overslept));
    put("absent", json!(counts.absent));
    put("agent_errors", json!(counts.agent_errors));
    put("blind", json!(counts.blind));
    put("waited_no_data", json!(counts.waited_no_data));
    put("no_data", json!(counts.no_data()));
    put("answered_pct", pct(counts.answered()));
    put("availability_pct", pct(counts.availability()));
    put("healthy", slots(&row.slots.healthy));
    put("latency_ms", quantiles(&row.latency.all));
    put("response_ms", quantiles(&row.response.all));
    put("latency_ms_by_part", by_part(&row.latency));
    put("response_ms_by_part", by_part(&row.response));
    put("max_gap_s", json!(seconds(row.max_gap.ns)));
    put("max_gap_is_at_least", json!(row.max_gap.is_at_least));
    put("max_gap_has_no_data", json!(row.max_gap.no_data));
    put("unwatched_max_s", json!(seconds(row.unwatched_max_ns())));
    put("unseen_max_s", json!(seconds(row.unseen_ns)));
    let held = |number: u64| {
        if row.style.is_held() {
            json!(number)
        } else {
            Json::Null
        }
    };
    put("connection_changes", held(row.changes.connections));
    put("session_changes", held(row.changes.sessions));
    put("backend_switches", json!(row.changes.backends));
    put(
        "backends",
        json!(names(&mut row.changes.all_backends.iter())),
    );
    put(
        "healthy_backends",
        json!(names(&mut row.changes.healthy_backends.iter())),
    );
    put(
        "healthy_backends_a_client",
        json!(row.healthy_backends_a_client),
    );
    put(
        "client_time_lost_s",
        json!({
            "lower": seconds(row.client_time_lost.0),
            "upper": row.client_time_lost.1.map(seconds),
        }),
    );
    put(
        "windows",
        json!(
            row.windows
                .iter()
                .map(|w| window(w, origin))
                .collect::<Vec<_>>()
        ),
    );
    put(
        "faults",
        json!(
            row.faults
                .iter()
                .map(|fault| fault_row(analysis, fault, origin))
                .collect::<Vec<_>>()
        ),
    );
    if row.kind == ClientKind::Pool {
        let by_cause = |counts: &BTreeMap<Option<Cause>, u64>| {
            counts
                .iter()
                .map(|(cause, n)| (cause.map_or("none", Cause::as_str).to_owned(), json!(n)))
                .collect::<Map<_, _>>()
        };
        put(
            "pool",
            json!({
                "dead_at_ping": by_cause(&row.pool.dead_at_ping),
                "failed_after_ping": by_cause(&row.pool.failed_after_ping),
            }),
        );
    }
    put(
        "errors",
        json!(
            row.errors
                .iter()
                .map(|((outcome, cause, code), error)| json!({
                    "outcome": outcome.as_str(),
                    "cause": cause.map(|c| c.as_str()),
                    "code": code,
                    "count": error.count,
                    "first_s": seconds(error.first_ns - origin),
                    "last_s": seconds(error.last_ns - origin),
                }))
                .collect::<Vec<_>>()
        ),
    );
    Json::Object(object)
}

fn window(window: &Window, origin: i64) -> Json {
    let at = |ns: Option<i64>| ns.map(|ns| seconds(ns.saturating_sub(origin)));
    let (scope, client) = match window.scope {
        Scope::Client(number) => ("client", Some(number)),
        Scope::Any => ("any", None),
        Scope::All => ("all", None),
    };
    json!({
        "scope": scope,
        "client": client,
        "from_s": at(window.from_ns),
        "to_s": at(window.to_ns),
        "first_bad_s": at(window.first_bad_ns),
        "gap_s": window.gap_ns.map(seconds),
        "gap_is_at_least": window.gap_is_at_least,
        "outage_lower_s": seconds(window.lower_ns),
        "outage_upper_s": window.upper_ns.map(seconds),
        "own_timeout_s": window.own_timeout_ns.map(seconds),
        "bad": window.bad,
        "late": window.late,
        "ongoing": window.ongoing,
        "never_served": window.never_served,
        "no_data": window.no_data,
        "fault": window.fault,
    })
}

fn fault_row(analysis: &Analysis, fault: &FaultRow, origin: i64) -> Json {
    let judgement = &fault.judgement;
    let fates: BTreeMap<&str, u64> = judgement
        .fates()
        .into_iter()
        .map(|(fate, n)| (fate.as_str(), n))
        .collect();
    let mut by_exposure: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for ((exposure, fate), n) in &judgement.counts {
        by_exposure
            .entry(exposure.as_str())
            .or_default()
            .insert(fate.as_str(), *n);
    }
    let after = |at: Option<i64>| {
        at.map(|at| {
            json!({
                "earliest": seconds(at.saturating_sub(fault.asked.latest_ns)),
                "latest": seconds(at.saturating_sub(fault.asked.earliest_ns)),
            })
        })
    };
    json!({
        "fault": fault.fault,
        "verdict": judgement.verdict.as_str(),
        "deadline_ms": analysis.manifest.plan.deadline_ns as f64 / 1e6,
        "state_not_tested": judgement.state_not_tested,
        "collateral": judgement.collateral,
        "clients": {
            "held": judgement.exposed(Exposure::Held),
            "shared": judgement.exposed(Exposure::Shared),
            "none": judgement.exposed(Exposure::None),
            "unmeasured": judgement.exposed(Exposure::Unmeasured),
            "hurt": judgement.hurt,
        },
        "fates": fates,
        "fates_by_exposure": by_exposure,
        "gap_s": judgement.verdict.is_tested().then(|| seconds(fault.gap.ns)),
        "gap_is_at_least": fault.gap.is_at_least,
        "outage_lower_s": fault.outage.map(|(lower, _)| seconds(lower)),
        "outage_upper_s": fault.outage.and_then(|(_, upper)| upper).map(seconds),
        "unseen_max_s": seconds(fault.unseen_ns),
        "own_timeout_s": seconds(fault.own_timeout_ns),
        "asked_s": {
            "earliest": seconds(fault.asked.earliest_ns.saturating_sub(origin)),
            "latest": seconds(fault.asked.latest_ns.saturating_sub(origin)),
        },
        "after_asked_s": {
            "first_bad": after(fault.first_bad.map(|b| b.0)),
            "first_bad_known": after(fault.first_bad.map(|b| b.1)),
            "first_from_survivor": after(fault.first_from_survivor),
            "all_back": after(fault.all_back),
            "last_from_subject": after(fault.last_from_subject),
            "last_new_connection_to_subject": after(fault.last_connect_to_subject),
        },
    })
}
