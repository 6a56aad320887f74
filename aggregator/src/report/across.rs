//! What several agents saw of one target: a table and JSON. Times are the
//! aggregator's, with the bounds of the alignment in them.

use serde_json::{Value as Json, json};

use super::figures::{NONE, bare_seconds, interval, short};
use super::table::Table;
use crate::analyse::across::{Across, First, Outage, View};
use crate::analyse::run::Analysis;
use crate::utc::rfc3339;

/// Outages in the table: the longest. All are in the JSON.
const MOST: usize = 20;

/// Zero of the times printed here: the earliest begin of an agent.
pub fn zero_ns(analysis: &Analysis) -> i64 {
    analysis
        .timelines
        .iter()
        .filter_map(|t| analysis.clocks.on_timeline(t.origin_ns, &t.clock))
        .map(|span| span.earliest_ns)
        .min()
        .unwrap_or(0)
}

fn bound(ns: i64) -> String {
    if ns == 0 {
        "exact".to_owned()
    } else {
        // Two digits are enough to judge an error by.
        let unit = [1_000_000_000, 1_000_000, 1_000]
            .into_iter()
            .find(|u| ns >= *u * 10)
            .unwrap_or(100);
        format!("±{}", short((ns + unit - 1) / unit * unit))
    }
}

fn first_words(first: &First) -> String {
    match first {
        First::Agent { agent, lead_ns } => {
            format!("{agent}, by {}", interval(lead_ns.0, Some(lead_ns.1)))
        }
        First::Alone(agent) => format!("{agent} alone"),
        First::NotDistinguishable(agents) => {
            let names: Vec<String> = agents.iter().map(ToString::to_string).collect();
            format!("not distinguishable: {}", names.join(", "))
        }
    }
}

fn views_words(outage: &Outage) -> String {
    let mut parts: Vec<String> = Vec::new();
    for (word, is_it) in [
        (
            "hurt",
            (|v| matches!(v, View::Hurt { .. })) as fn(&View) -> bool,
        ),
        ("served throughout", |v| matches!(v, View::Served)),
        ("no data", |v| matches!(v, View::NoData)),
    ] {
        let mut names: Vec<String> = outage
            .views
            .iter()
            .filter(|(_, view)| is_it(view))
            .map(|(agent, _)| agent.to_string())
            .collect();
        names.dedup();
        if !names.is_empty() {
            parts.push(format!("{word}: {}", names.join(", ")));
        }
    }
    parts.join("; ")
}

/// The first moment at which somebody was surely or possibly hurt.
fn begins(outage: &Outage) -> Option<i64> {
    (outage.from_ns != i64::MIN).then_some(outage.from_ns)
}

fn length(outage: &Outage) -> (bool, i64) {
    let (lower, upper) = outage.any_ns;
    (upper.is_none(), upper.unwrap_or(lower))
}

/// The table; without a row if no target was probed by several agents.
pub fn table(analysis: &Analysis) -> Table {
    let mut table = Table::new(
        "One timeline: the same target from several agents",
        2,
        &[
            "target",
            "style",
            ">from s",
            "UTC",
            ">somebody\nhurt",
            ">nobody\nserved",
            ">clocks",
            "first bad probe",
            "agents",
        ],
    );
    let zero = zero_ns(analysis);
    let mut all: Vec<(&Across, &Outage)> = analysis
        .across
        .iter()
        .flat_map(|a| a.outages.iter().map(move |o| (a, o)))
        .collect();
    all.sort_by_key(|(_, outage)| std::cmp::Reverse(length(outage)));
    all.truncate(MOST);
    all.sort_by_key(|(_, outage)| outage.from_ns);
    for (across, outage) in all {
        let begin = begins(outage);
        let utc = begin
            .and_then(|ns| analysis.wall.utc_ns(ns))
            .map_or(NONE.to_owned(), |(least, most)| {
                rfc3339(least.midpoint(most))
            });
        let unwatched = if outage.no_data { " ?" } else { "" };
        table.rows.push(vec![
            across.target.to_string(),
            match across.kind {
                gapscope_proto::plan::ClientKind::Bare => across.style.to_string(),
                kind => format!("{} {kind}", across.style),
            },
            begin.map_or(NONE.to_owned(), |ns| bare_seconds(ns.saturating_sub(zero))),
            utc,
            format!("{}{unwatched}", interval(outage.any_ns.0, outage.any_ns.1)),
            if outage.all_ns == (0, Some(0)) {
                "never".to_owned()
            } else {
                format!("{}{unwatched}", interval(outage.all_ns.0, outage.all_ns.1))
            },
            bound(outage.bound_ns),
            first_words(&outage.first),
            views_words(outage),
        ]);
    }
    table
}

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

/// The same for programs; times count from `zero_ns` of the aggregator's clock.
pub fn as_json(analysis: &Analysis) -> Json {
    let zero = zero_ns(analysis);
    let at = |ns: i64| seconds(ns.saturating_sub(zero));
    let outage = |o: &Outage| {
        let utc = begins(o)
            .and_then(|ns| analysis.wall.utc_ns(ns))
            .map(|(least, most)| rfc3339(least.midpoint(most)));
        let views: Vec<Json> = o
            .views
            .iter()
            .map(|(agent, view)| match view {
                View::Hurt { first_bad, clients } => json!({
                    "agent": agent.as_str(),
                    "saw": "hurt",
                    "clients": clients,
                    "first_bad_s": {
                        "earliest": at(first_bad.earliest_ns),
                        "latest": at(first_bad.latest_ns),
                    },
                }),
                View::Served => json!({ "agent": agent.as_str(), "saw": "served" }),
                View::NoData => json!({ "agent": agent.as_str(), "saw": "no_data" }),
            })
            .collect();
        let (first, lead) = match &o.first {
            First::Agent { agent, lead_ns } => (
                vec![agent.to_string()],
                json!({ "lower": seconds(lead_ns.0), "upper": seconds(lead_ns.1) }),
            ),
            First::Alone(agent) => (vec![agent.to_string()], Json::Null),
            First::NotDistinguishable(agents) => {
                (agents.iter().map(ToString::to_string).collect(), Json::Null)
            }
        };
        json!({
            "from_s": begins(o).map(at),
            "to_s": (o.to_ns != i64::MAX).then(|| at(o.to_ns)),
            "from_utc": utc,
            "any_lower_s": seconds(o.any_ns.0),
            "any_upper_s": o.any_ns.1.map(seconds),
            "all_lower_s": seconds(o.all_ns.0),
            "all_upper_s": o.all_ns.1.map(seconds),
            "ongoing": o.ongoing,
            "no_data": o.no_data,
            "partial": o.is_partial(),
            "clock_bound_s": seconds(o.bound_ns),
            "first": match o.first {
                First::NotDistinguishable(_) => "not_distinguishable",
                First::Alone(_) => "alone",
                First::Agent { .. } => "agent",
            },
            "first_agents": first,
            "first_lead_s": lead,
            "agents": views,
        })
    };
    let targets: Vec<Json> = analysis
        .across
        .iter()
        .map(|across| {
            json!({
                "name": across.target.as_str(),
                "style": across.style.as_str(),
                "kind": across.kind.as_str(),
                "interval_s": seconds(across.interval_ns),
                "outages": across.outages.iter().map(outage).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({ "zero_ns": zero, "targets": targets })
}
