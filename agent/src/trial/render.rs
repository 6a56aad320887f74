//! The screen of `try`, and its JSON. Pure.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::Report;
use super::conclude::{Balance, Sessions, product};
use super::facts::Group;
use crate::output::wrapped;

/// Width of the first column.
const LABEL: usize = 14;
/// Version of the JSON.
const SCHEMA_VERSION: u32 = 1;

/// Three digits are enough for a latency.
pub(crate) fn ms(ns: Option<u64>) -> String {
    let Some(ns) = ns else { return "-".to_owned() };
    let ms = ns as f64 / 1e6;
    match ms {
        _ if ms < 10.0 => format!("{ms:.2}"),
        _ if ms < 100.0 => format!("{ms:.1}"),
        _ => format!("{ms:.0}"),
    }
}

struct Screen {
    out: String,
    width: usize,
}

impl Screen {
    /// A label and its text, broken between words; further lines are indented.
    fn line(&mut self, label: &str, text: &str) {
        self.words(&format!("{label:<LABEL$}"), LABEL, text);
    }

    fn item(&mut self, text: &str) {
        self.words("- ", 2, text);
    }

    fn words(&mut self, first: &str, indent: usize, text: &str) {
        self.out.push_str(&wrapped(first, indent, text, self.width));
        self.out.push('\n');
    }

    fn heading(&mut self, text: &str) {
        let _ = write!(self.out, "\n{text}\n");
    }
}

/// What is printed at the end.
pub(crate) fn screen(report: &Report, width: usize) -> String {
    let mut s = Screen {
        out: String::new(),
        width: width.clamp(60, 120),
    };
    let witness = &report.witness;
    let facts = &report.facts;
    let found = &report.findings;
    let reached = if report.address == witness.peer.to_string() {
        report.address.clone()
    } else {
        format!("{} ({})", report.address, witness.peer)
    };
    s.words("", 0, &headline(report));
    s.out.push('\n');
    s.line("target", &reached);
    if witness.addresses.len() > 1 {
        let all: Vec<_> = witness.addresses.iter().map(ToString::to_string).collect();
        s.line("addresses", &all.join(", "));
    }
    s.line("what answers", &found.what);
    for (index, why) in found.because.iter().enumerate() {
        s.line(if index == 0 { "  because" } else { "" }, why);
    }
    s.line("version", &version(report));
    s.line("servers", &servers(report));
    s.line("balancing", &balancing(report));
    s.line("sessions", &sessions(report));
    s.line("TLS", &tls(report));
    baseline(&mut s, report);
    s.heading("The prober itself");
    s.line(
        "floor",
        "the same probes to a server that does nothing, in this process: no target can look faster than that",
    );
    s.line("lateness", &lateness(report));
    s.heading("What this cannot see");
    for text in blind_spots(report) {
        s.item(&text);
    }
    s.heading(if facts.held.bad.is_empty() && facts.new.bad.is_empty() {
        "Next: see what a failure does to its clients"
    } else {
        "Next: not everything was answered; look at that first, then"
    });
    s.out.push_str(&next(report));
    s.out
}

/// The whole in a sentence.
fn headline(report: &Report) -> String {
    use super::conclude::Kind;
    let facts = &report.facts;
    let probes = facts.held.probes + facts.new.probes;
    let ok = facts.held.ok + facts.new.ok;
    let server = product(&report.witness.answer.version);
    let what = match report.findings.kind {
        Kind::Direct => format!("{server}, reached directly"),
        Kind::PassThrough => format!("a TCP proxy, load balancer or NAT in front of {server}"),
        Kind::Terminates => format!("a proxy that speaks the protocol in front of {server}"),
        Kind::CannotTell => format!("{server}, directly or behind something"),
    };
    format!(
        "{}: {what}; {ok} of {probes} probes answered, held p50 {} ms, p99 {} ms",
        report.address,
        ms(facts.held.took(500)),
        ms(facts.held.took(990)),
    )
}

fn version(report: &Report) -> String {
    let mut text = format!(
        "{} ({})",
        report.witness.answer.version,
        product(&report.witness.answer.version)
    );
    if let Ok(comment) = &report.witness.comment {
        let _ = write!(text, ", {comment}");
    }
    text
}

fn servers(report: &Report) -> String {
    let backends = &report.facts.backends;
    let shown: Vec<_> = backends
        .iter()
        .map(|(name, (held, new))| format!("{name} ({held} statements, {new} connections)"))
        .collect();
    match backends.len() {
        0 => "none answered".to_owned(),
        1 => format!("1 seen: {}", shown[0]),
        n => format!("{n} seen: {}", shown.join(", ")),
    }
}

fn balancing(report: &Report) -> String {
    let facts = &report.facts;
    match report.findings.balance {
        Balance::Unknown => "cannot tell: nothing was answered".to_owned(),
        Balance::PerStatement => format!(
            "per statement: one connection was answered by {} servers",
            facts.most_backends
        ),
        Balance::PerConnection => format!(
            "per connection: connections went to {} servers, each stayed on one",
            facts.backends.len()
        ),
        Balance::OneServer => {
            let connections: u64 = facts.backends.values().map(|(_, new)| new).sum();
            match report.findings.kind {
                super::conclude::Kind::Direct => "none: this is the server".to_owned(),
                _ if connections < 8 => {
                    format!("cannot tell: one server, but only {connections} connections were made")
                }
                _ => format!(
                    "all to one server ({connections} connections): a standby, if there is one, was not seen. Two servers taken in turn or by chance would have shown"
                ),
            }
        }
    }
}

fn sessions(report: &Report) -> String {
    let facts = &report.facts;
    match report.findings.sessions {
        Sessions::Unknown => "cannot tell: nothing was answered".to_owned(),
        Sessions::Multiplexed => {
            let mut text = format!(
                "multiplexed: one held connection was answered over {} server connections",
                facts.most_sessions.max(2)
            );
            if facts.shared_sessions > 0 {
                let _ = write!(
                    text,
                    ", and clients shared {} of them",
                    facts.shared_sessions
                );
            }
            text
        }
        Sessions::Pinned => {
            let statements = facts.most_statements;
            if report.findings.kind == super::conclude::Kind::Terminates {
                format!(
                    "not seen to be multiplexed: {statements} statements of one connection over one server connection. So little load cannot rule it out"
                )
            } else {
                format!(
                    "one to one: {statements} statements of one connection over one server connection"
                )
            }
        }
    }
}

fn tls(report: &Report) -> String {
    let witness = &report.witness;
    let offered = witness.greeting.as_ref().map(|g| g.offers_tls);
    match (&witness.tls, offered) {
        (Some(tls), _) => format!(
            "{} {}, {}; what lies behind a proxy is not seen",
            tls.version, tls.cipher, report.tls_mode
        ),
        (None, Some(true)) => {
            "offered, not used (--tls required, verify-ca, verify-identity)".to_owned()
        }
        (None, Some(false)) => "not offered".to_owned(),
        (None, None) => "cannot tell".to_owned(),
    }
}

fn baseline(s: &mut Screen, report: &Report) {
    let facts = &report.facts;
    let seconds = report.watched_ns as f64 / 1e9;
    let probes = facts.held.probes + facts.new.probes;
    let bad = probes - facts.held.ok - facts.new.ok;
    s.heading(&format!(
        "Healthy baseline: {seconds:.0} s{}, {probes} probes, {}",
        if report.interrupted {
            " (interrupted)"
        } else {
            ""
        },
        if bad == 0 {
            "all answered".to_owned()
        } else {
            format!("{bad} NOT answered")
        }
    ));
    let _ = writeln!(
        s.out,
        "{:<22}{:>8}{:>8}{:>8}{:>8}{:>12}{:>10}",
        "ms", "p50", "p99", "max", "floor", "longest gap", "rate /s"
    );
    let mut row = |name: &str, values: [Option<u64>; 4], gap: Option<u64>, ok: Option<u64>| {
        let [p50, p99, max, floor] = values.map(ms);
        let rate = ok.map_or_else(
            || "-".to_owned(),
            |ok| format!("{:.1}", ok as f64 / seconds.max(0.001)),
        );
        let _ = writeln!(
            s.out,
            "{name:<22}{p50:>8}{p99:>8}{max:>8}{floor:>8}{:>12}{rate:>10}",
            gap.map_or_else(|| "-".to_owned(), |gap| ms(Some(gap))),
        );
    };
    let took = |group: &Group, floor: &Group| {
        [
            group.took(500),
            group.took(990),
            group.took(1000),
            floor.took(500),
        ]
    };
    row(
        "held, a statement",
        took(&facts.held, &facts.floor_held),
        Some(facts.held.longest_gap_ns),
        Some(facts.held.ok),
    );
    row(
        "new, all of it",
        took(&facts.new, &facts.floor_new),
        Some(facts.new.longest_gap_ns),
        Some(facts.new.ok),
    );
    row(
        "new, until logged in",
        [
            facts.new.connect(500),
            facts.new.connect(990),
            facts.new.connect(1000),
            facts.floor_new.connect(500),
        ],
        None,
        None,
    );
    for (style, group) in [("held", &facts.held), ("new", &facts.new)] {
        for ((outcome, cause, code), (text, count)) in &group.bad {
            let code = code.map(|c| format!(" {c}")).unwrap_or_default();
            s.line(
                style,
                &format!("{count} x {outcome} ({cause}){code}: {text}"),
            );
        }
    }
    if facts.reconnections > 0 {
        s.line(
            "held",
            &format!(
                "connections had to be made again {} times",
                facts.reconnections
            ),
        );
    }
    if facts.peers.len() > 1 {
        let peers: Vec<_> = facts
            .peers
            .iter()
            .map(|(peer, n)| format!("{peer} ({n} answers)"))
            .collect();
        s.line("addresses", &peers.join(", "));
    }
}

fn lateness(report: &Report) -> String {
    let facts = &report.facts;
    let mut text = format!(
        "probes began p50 {} ms, p99 {} ms, at most {} ms after they were due",
        ms(facts.late(500)),
        ms(facts.late(990)),
        ms(facts.late(1000)),
    );
    if report.overslept > 0 {
        let _ = write!(
            text,
            "; {} probes were not made at all, this host was too busy",
            report.overslept
        );
    }
    let late = facts.late(990).unwrap_or(0);
    if report.overslept > 0 || late > 5_000_000 {
        text.push_str(". The figures above hold that too: try again on a quieter host");
    }
    text
}

fn blind_spots(report: &Report) -> Vec<String> {
    let interval = report.load.held_interval_ns;
    let mut out = vec![
        "what happens when a server fails: nothing failed on purpose here".to_owned(),
        format!(
            "interruptions shorter than {} ms, the time between two probes of a client",
            interval / 1_000_000
        ),
        "idle timers: connections that are used ten times a second never meet one".to_owned(),
        "whether session state (variables, prepared statements, transactions) survives: to check it would change what some proxies do; `start --canary` has clients for it".to_owned(),
        "writes, replication lag, and servers that did not answer".to_owned(),
    ];
    if report.findings.kind == super::conclude::Kind::PassThrough {
        out.push("how often the thing in between checks its servers, and its timeouts".to_owned());
    }
    if report.findings.kind == super::conclude::Kind::Terminates {
        out.push("the proxy's own timers, and what it answers itself without a server".to_owned());
    }
    if let Some(caveat) = report.witness.identity.caveat() {
        out.push(format!(
            "{caveat}; give --identity with an expression without @"
        ));
    }
    out
}

fn next(report: &Report) -> String {
    let backend = report
        .facts
        .backends
        .iter()
        .max_by_key(|(_, (held, new))| held + new)
        .map_or("HOST:PORT", |(name, _)| name.as_str());
    let mut out = String::new();
    if report.needs_file {
        let _ = write!(
            out,
            "  cat > agent.toml <<'END'\n  [[target]]\n  name = \"{}\"\n  address = \"{}\"\n  user = \"{}\"\n{}  END\n",
            report.name,
            report.address,
            report.user,
            report
                .file_lines
                .iter()
                .map(|line| format!("  {line}\n"))
                .collect::<String>(),
        );
    }
    let how = if report.needs_file {
        "--config agent.toml".to_owned()
    } else {
        format!(
            "--target {}={}@{}",
            report.name, report.user, report.address
        )
    };
    let _ = write!(
        out,
        "  gapscope-aggregator serve --data ./runs &\n  gapscope-agent run {how} &\n  run=$(gapscope-aggregator start --target {name} --duration 10m)\n  gapscope-aggregator mark $run \"stopping it\" --step stop \\\n    --subject the-server --identity {backend}\n  # now stop, drain or switch over that server; then\n  gapscope-aggregator stop $run\n  gapscope-aggregator report $run\n",
        name = report.name,
    );
    out
}

/// For programs.
pub(crate) fn to_json(report: &Report) -> Value {
    let witness = &report.witness;
    let facts = &report.facts;
    let group = |group: &Group| {
        json!({
            "probes": group.probes,
            "ok": group.ok,
            "took_ns_p50": group.took(500),
            "took_ns_p99": group.took(990),
            "took_ns_max": group.took(1000),
            "connect_ns_p50": group.connect(500),
            "longest_gap_ns": group.longest_gap_ns,
            "bad": group.bad.iter().map(|((outcome, cause, code), (text, count))| json!({
                "outcome": outcome, "cause": cause, "code": code, "text": text, "count": count,
            })).collect::<Vec<_>>(),
        })
    };
    json!({
        "schema_version": SCHEMA_VERSION,
        "target": report.address,
        "peer": witness.peer.to_string(),
        "kind": report.findings.kind.as_str(),
        "what": report.findings.what,
        "because": report.findings.because,
        "version": witness.answer.version,
        "version_comment": witness.comment.as_ref().ok(),
        "greeting": witness.greeting.as_ref().map(|g| json!({
            "version": g.version, "connection_id": g.id, "offers_tls": g.offers_tls,
            "capabilities": g.capabilities, "auth_plugin": g.auth_plugin,
        })),
        "connection_id": witness.answer.id,
        "connection_id_asked_alone": witness.lone_id.as_ref().ok(),
        "seen_as": witness.seen_as.as_ref().ok(),
        "local": witness.local.to_string(),
        "tls": witness.tls.as_ref().map(|t| json!({"version": t.version, "cipher": t.cipher})),
        "server_tls": witness.server_tls.as_ref().ok(),
        "tls_mode": report.tls_mode,
        "balancing": match report.findings.balance {
            Balance::PerStatement => "per-statement",
            Balance::PerConnection => "per-connection",
            Balance::OneServer => "one-server",
            Balance::Unknown => "unknown",
        },
        "sessions": match report.findings.sessions {
            Sessions::Multiplexed => "multiplexed",
            Sessions::Pinned => "not-seen-multiplexed",
            Sessions::Unknown => "unknown",
        },
        "servers": facts.backends.iter().map(|(name, (statements, connections))| json!({
            "identity": name, "statements": statements, "connections": connections,
        })).collect::<Vec<_>>(),
        "watched_ns": report.watched_ns,
        "interrupted": report.interrupted,
        "held": group(&facts.held),
        "new": group(&facts.new),
        "floor_held": group(&facts.floor_held),
        "floor_new": group(&facts.floor_new),
        "late_ns_p50": facts.late(500),
        "late_ns_p99": facts.late(990),
        "late_ns_max": facts.late(1000),
        "overslept": report.overslept,
        "reconnections": facts.reconnections,
        "cannot_see": blind_spots(report),
    })
}
