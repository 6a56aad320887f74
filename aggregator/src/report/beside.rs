//! What is known beside the probes: which address served whom when, and what the
//! connections told that were looked at.

use std::collections::BTreeSet;
use std::mem::{Discriminant, discriminant};

use gapscope_proto::host::Inspection;
use gapscope_proto::inspection::{Finding, plain_version};
use gapscope_proto::plan::ClientKind;
use serde_json::{Value as Json, json};

use super::figures::{NONE, bare_seconds, count, short};
use super::table::Table;
use crate::analyse::beside::{Look, Served};
use crate::analyse::run::Analysis;

fn named(analysis: &Analysis, timeline: usize, target: &str) -> String {
    match analysis.timelines.get(timeline) {
        Some(one) if analysis.timelines.len() > 1 => format!("{target} ({})", one.agent),
        _ => target.to_owned(),
    }
}

fn since(analysis: &Analysis, timeline: usize, at_ns: i64) -> i64 {
    let origin = analysis.timelines.get(timeline).map_or(0, |t| t.origin_ns);
    at_ns.saturating_sub(origin)
}

fn who(one: &Served) -> String {
    let (style, kind, interval) = one.who;
    let words = match kind {
        ClientKind::Bare => style.to_string(),
        ClientKind::Idle => format!("idle {}", short(interval)),
        kind => format!("{style} {kind}"),
    };
    format!("{words} {}", one.clients)
}

/// The target's address as it is configured.
fn configured<'a>(analysis: &'a Analysis, target: &str) -> Option<&'a str> {
    analysis
        .manifest
        .agents
        .iter()
        .flat_map(|agent| &agent.targets)
        .find(|entry| entry.name.as_str() == target)
        .map(|entry| entry.address.as_str())
}

/// Which address served whom when: of targets that are names, or that were reached
/// at several addresses.
pub fn address_table(analysis: &Analysis) -> Table {
    let mut table = Table::new(
        "Addresses: who was served where, and when",
        2,
        &[
            "target",
            "address",
            ">answers",
            ">not\nanswered",
            ">first and last\nanswer",
            "clients",
        ],
    );
    let served = &analysis.beside.served;
    for (at, one) in served.iter().enumerate() {
        let same = |other: &Served| (other.timeline, &other.target) == (one.timeline, &one.target);
        let all: BTreeSet<&str> = served
            .iter()
            .filter(|other| same(other))
            .map(|other| other.address.as_str())
            .collect();
        let is_plain =
            all.len() == 1 && configured(analysis, &one.target) == Some(one.address.as_str());
        let is_first = |other: &Served| same(other) && other.address == one.address;
        if is_plain || served[..at].iter().any(is_first) {
            continue;
        }
        let mut here: Vec<&Served> = served.iter().filter(|other| is_first(other)).collect();
        here.sort_by_key(|one| one.who);
        let from = here
            .iter()
            .filter_map(|s| s.answered_ns)
            .map(|at| at.0)
            .min();
        let to = here
            .iter()
            .filter_map(|s| s.answered_ns)
            .map(|at| at.1)
            .max();
        let time = |at| bare_seconds(since(analysis, one.timeline, at));
        let when = from.zip(to).map_or(NONE.to_owned(), |(from, to)| {
            format!("{}..{} s", time(from), time(to))
        });
        table.rows.push(vec![
            named(analysis, one.timeline, &one.target),
            one.address.clone(),
            count(here.iter().map(|s| s.answers).sum()),
            count(here.iter().map(|s| s.bad).sum()),
            when,
            here.iter()
                .map(|one| who(one))
                .collect::<Vec<_>>()
                .join(", "),
        ]);
    }
    for ((timeline, target), looked) in &analysis.beside.look_ups {
        table.rows.push(vec![
            named(analysis, *timeline, target),
            "(look-ups of the name)".to_owned(),
            count(looked.count - looked.failed),
            count(looked.failed),
            NONE.to_owned(),
            format!(
                "the longest took {}",
                short(i64::try_from(looked.took_max_ns / 1_000 * 1_000).unwrap_or(i64::MAX))
            ),
        ]);
    }
    table.rows.sort_by_key(|row| row[0].clone());
    table
}

/// Looks that say the same are one row: connection ids and ports differ each time.
#[derive(PartialEq)]
struct Same<'a> {
    target: &'a str,
    timeline: usize,
    failed: bool,
    greeting: (&'a str, &'a str, Option<u32>),
    tls: (&'a str, &'a str, Option<&'a str>),
    version: &'a str,
    found: Vec<Discriminant<Finding>>,
}

fn same(look: &Look) -> Same<'_> {
    let seen = &look.seen;
    Same {
        target: &seen.target,
        timeline: look.timeline,
        failed: !seen.error.is_empty(),
        greeting: (&seen.greeting_version, &seen.auth_plugin, seen.capabilities),
        tls: (
            &seen.tls_version,
            &seen.tls_cipher,
            seen.server_tls.as_deref(),
        ),
        version: &seen.server_version,
        found: seen.findings().iter().map(discriminant).collect(),
    }
}

/// What the connections told that were looked at.
pub fn look_table(analysis: &Analysis) -> Table {
    let mut table = Table::new(
        "Connections looked at beside the probes",
        1,
        &["target", ">looks", "when", "what was seen"],
    );
    let looks = &analysis.beside.looks;
    for group in looks.chunk_by(|a, b| same(a) == same(b)) {
        let (first, last) = (&group[0], &group[group.len() - 1]);
        let at = |look: &Look| bare_seconds(since(analysis, look.timeline, look.seen.at_ns));
        let when = if group.len() == 1 {
            format!("{} s", at(first))
        } else {
            format!("{}..{} s", at(first), at(last))
        };
        let backends: BTreeSet<&str> = group
            .iter()
            .map(|look| look.seen.backend.as_str())
            .filter(|name| !name.is_empty())
            .collect();
        table.rows.push(vec![
            named(analysis, first.timeline, &first.seen.target),
            count(group.len() as u64),
            when,
            words(&first.seen, &backends),
        ]);
    }
    table
}

fn words(seen: &Inspection, backends: &BTreeSet<&str>) -> String {
    let mut parts = Vec::new();
    if !backends.is_empty() {
        let all: Vec<&str> = backends.iter().copied().collect();
        parts.push(format!("answered by {}", all.join(", ")));
    }
    if !seen.greeting_version.is_empty() {
        parts.push(format!(
            "greeting {} {}",
            plain_version(&seen.greeting_version),
            seen.auth_plugin
        ));
        parts.push(if seen.tls_version.is_empty() {
            "no TLS".to_owned()
        } else {
            format!("{} {}", seen.tls_version, seen.tls_cipher)
        });
    }
    if !seen.error.is_empty() {
        parts.push(format!("not looked at to its end: {}", seen.error));
    }
    let found = seen.findings();
    if found.is_empty() && seen.error.is_empty() {
        parts.push("nothing shows anybody in between".to_owned());
    }
    parts.extend(found.iter().map(ToString::to_string));
    parts.join("; ")
}

/// The looks for programs.
pub fn looks_json(analysis: &Analysis) -> Json {
    let looks = analysis.beside.looks.iter().map(|look| {
        let seen = &look.seen;
        let agent = analysis
            .timelines
            .get(look.timeline)
            .map(|t| t.agent.as_str());
        json!({
            "name": seen.target,
            "agent": agent,
            "at_s": since(analysis, look.timeline, seen.at_ns) as f64 / 1e9,
            "why": seen.why,
            "error": seen.error,
            "addresses": seen.addresses,
            "peer": seen.peer,
            "local": seen.local,
            "seen_as": seen.seen_as,
            "greeting": seen.greeting_id.map(|id| json!({
                "version": seen.greeting_version,
                "connection_id": id,
                "capabilities": seen.capabilities,
                "auth_plugin": seen.auth_plugin,
            })),
            "tls": (!seen.tls_version.is_empty()).then(|| json!({
                "version": seen.tls_version,
                "cipher": seen.tls_cipher,
            })),
            "server_tls": seen.server_tls,
            "connection_id": seen.answered_id,
            "connection_id_again": seen.again_id,
            "connection_id_asked_alone": seen.lone_id,
            "server_version": seen.server_version,
            "backend": seen.backend,
            "identity": seen.identity,
            "shows": seen.findings().iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    });
    Json::Array(looks.collect())
}

/// The addresses for programs.
pub fn addresses_json(analysis: &Analysis) -> Json {
    let served = analysis.beside.served.iter().map(|one| {
        let agent = analysis
            .timelines
            .get(one.timeline)
            .map(|t| t.agent.as_str());
        let (style, kind, interval) = one.who;
        let second = |at: i64| since(analysis, one.timeline, at) as f64 / 1e9;
        json!({
            "name": one.target,
            "agent": agent,
            "address": one.address,
            "style": style.as_str(),
            "kind": kind.as_str(),
            "interval_s": (interval > 0).then_some(interval as f64 / 1e9),
            "clients": one.clients,
            "answers": one.answers,
            "bad": one.bad,
            "first_s": one.answered_ns.map(|at| second(at.0)),
            "last_s": one.answered_ns.map(|at| second(at.1)),
        })
    });
    Json::Array(served.collect())
}
