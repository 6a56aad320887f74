//! From TOML to a [`Scenario`], key by key. What depends on more than one key is
//! checked in `rules`.

use gapscope_proto::ids::TargetName;
use gapscope_proto::plan::Timeouts;
use toml::de::DeTable;

use super::external;
use super::read::{Reader, ScenarioError, Table, UNKNOWN_SUBJECT, with_guess};
use super::{
    Action, Clients, CustomProxy, EVERY_PROXY, MS, ProxyKind, ProxySpec, SECOND, Scenario, Step,
};

const TOP: &[&str] = &[
    "name",
    "description",
    "duration",
    "deadline",
    "identity",
    "direct",
    "max_connects_per_second",
    "clients",
    "backend",
    "proxy",
    "timeline",
    "external",
];
const CLIENTS: &[&str] = &[
    "reused",
    "interval",
    "patient",
    "new",
    "new_interval",
    "canaries",
    "canary_interval",
    "prepared",
    "transaction",
    "transaction_interval",
    "pool",
    "idle",
    "timeout",
];
/// The pieces of session state that clients can keep: all but a cursor, which the
/// agent's driver cannot open.
const CANARIES: &[&str] = &[
    "user_variable",
    "session_variable",
    "prepared_text",
    "prepared_binary",
    "current_database",
    "character_set",
    "temporary_table",
    "named_lock",
    "open_transaction",
];
const TIMEOUT: &[&str] = &["resolve", "connect", "query"];
const BACKEND: &[&str] = &["name"];
const PROXY: &[&str] = &["name", "kind", "command", "config", "config_name", "ttl"];
const STEP: &[&str] = &[
    "at", "do", "subject", "jitter", "phase", "duration", "grace", "delay", "to",
];

const DAY: u64 = 24 * 3_600 * SECOND;
/// The shortest interval: the agent's timers are not finer than 1 ms.
const LEAST_INTERVAL: u64 = MS;

/// What could be read, and what is wrong with the rest. Errs where nothing can.
pub(super) fn parse(text: &str) -> Result<(Scenario, Vec<ScenarioError>), Vec<ScenarioError>> {
    let reader = Reader::new(text);
    let document = match DeTable::parse(text) {
        Ok(document) => document,
        Err(error) => {
            let line = error.span().map_or(1, |span| reader.line_of(&span));
            return Err(vec![ScenarioError {
                line,
                key: String::new(),
                what: format!("this is not TOML: {}", error.message()),
                hint: "a scenario is a TOML file; `gapscope-lab list` names the shipped ones"
                    .to_owned(),
            }]);
        }
    };
    let scenario = read(&reader, document.get_ref(), text);
    Ok((scenario, reader.into_errors()))
}

fn read(reader: &Reader<'_>, document: &DeTable<'_>, text: &str) -> Scenario {
    let top = Table::new(reader, "the scenario", document, 1, TOP);
    let name = top.string("name");
    match &name {
        None => top.missing("name", "give the scenario a name, such as name = \"mine\""),
        Some(at) if !is_file_name(&at.value) => top.report(
            at.line,
            "scenario",
            format!("`{}` is no name for a scenario", at.value.escape_debug()),
            "allowed: up to 64 letters, digits, `-`, `_` and `.`, with no `.` in front",
        ),
        Some(_) => {}
    }
    let external = external::read(&top);
    let (backends, proxies) = match &external {
        None => (backends(&top), proxies(&top)),
        Some(external) => from_external(&top, external),
    };
    Scenario {
        name: name.map(|at| at.value).unwrap_or_default(),
        description: top
            .string("description")
            .map(|at| at.value)
            .unwrap_or_default(),
        duration_ns: top
            .duration("duration", 100 * MS, 31 * DAY)
            .unwrap_or(30 * SECOND),
        deadline_ns: top
            .duration("deadline", MS, 3_600 * SECOND)
            .unwrap_or(250 * MS),
        identity: top.string("identity").map(|at| at.value),
        direct: top.boolean("direct").unwrap_or(false),
        max_connects_per_second: top
            .integer("max_connects_per_second", 1..100_001)
            .and_then(|rate| u32::try_from(rate).ok())
            .unwrap_or(1_000),
        clients: top
            .table("clients", CLIENTS)
            .map(|table| clients(&table))
            .unwrap_or_default(),
        backends,
        proxies,
        external,
        timeline: timeline(&top),
        text: text.to_owned(),
    }
}

/// Names of what is there already; beside it the lab starts nothing.
fn from_external(
    top: &Table<'_, '_, '_>,
    external: &external::External,
) -> (Vec<String>, Vec<ProxySpec>) {
    for key in ["backend", "proxy"] {
        if let Some(table) = top.tables(key, PROXY).first() {
            table.report(
                table.line,
                key,
                format!("[[{key}]] does not go with [external]"),
                format!("with [external] all are there already: [[external.{key}]]"),
            );
        }
    }
    if external.backends.is_empty() {
        top.missing(
            "external",
            "name the servers behind the proxies: [[external.backend]] with name and address",
        );
    }
    (
        external.backends.iter().map(|b| b.name.clone()).collect(),
        external
            .proxies
            .iter()
            .map(|proxy| ProxySpec {
                name: proxy.name.clone(),
                kind: ProxyKind::External,
                custom: None,
                ttl_ns: None,
            })
            .collect(),
    )
}

fn clients(table: &Table<'_, '_, '_>) -> Clients {
    let default = Clients::default();
    let count = |key, otherwise| {
        table
            .integer(key, 0..1_001)
            .and_then(|count| u16::try_from(count).ok())
            .unwrap_or(otherwise)
    };
    let interval = |key, otherwise| {
        table
            .duration(key, LEAST_INTERVAL, DAY)
            .unwrap_or(otherwise)
    };
    Clients {
        reused: count("reused", default.reused),
        interval_ns: interval("interval", default.interval_ns),
        patient: count("patient", default.patient),
        new: count("new", default.new),
        new_interval_ns: interval("new_interval", default.new_interval_ns),
        canaries: table
            .words("canaries", CANARIES, |word| {
                CANARIES.contains(&word).then(|| word.parse().ok())?
            })
            .unwrap_or_default(),
        canary_interval_ns: interval("canary_interval", default.canary_interval_ns),
        prepared: count("prepared", default.prepared),
        transaction: count("transaction", default.transaction),
        transaction_interval_ns: interval("transaction_interval", default.transaction_interval_ns),
        pool: count("pool", default.pool),
        idle_ns: table
            .words("idle", &["durations such as \"30s\""], |word| {
                crate::duration::parse(word)
                    .ok()
                    .filter(|ns| (LEAST_INTERVAL..=DAY).contains(ns))
            })
            .unwrap_or_default(),
        timeouts: timeouts(table, default.timeouts),
    }
}

/// `timeout = "5s"`, or a table with one for each phase.
fn timeouts(table: &Table<'_, '_, '_>, default: Timeouts) -> Timeouts {
    const LEAST: u64 = MS;
    if table.is_table("timeout") {
        let Some(inner) = table.table("timeout", TIMEOUT) else {
            return default;
        };
        let one = |key, otherwise| inner.duration(key, LEAST, DAY).or(otherwise);
        return Timeouts {
            resolve_ns: one("resolve", default.resolve_ns),
            connect_ns: one("connect", default.connect_ns),
            query_ns: one("query", default.query_ns),
        };
    }
    match table.duration("timeout", LEAST, DAY) {
        Some(all) => Timeouts {
            resolve_ns: Some(all),
            connect_ns: Some(all),
            query_ns: Some(all),
        },
        None => default,
    }
}

/// A name that may stand in a target's name, a configuration file and a path.
pub(super) fn name(table: &Table<'_, '_, '_>) -> Option<(String, usize)> {
    let Some(at) = table.string("name") else {
        table.missing("name", "give it a name, such as name = \"backend-1\"");
        return None;
    };
    match at.value.parse::<TargetName>() {
        Ok(_) => Some((at.value, at.line)),
        Err(why) => {
            table.report(
                at.line,
                "name",
                why.to_string(),
                "allowed in a `name`: up to 64 letters, digits, `-`, `_` and `.`",
            );
            None
        }
    }
}

fn backends(top: &Table<'_, '_, '_>) -> Vec<String> {
    let tables = top.tables("backend", BACKEND);
    let mut names: Vec<String> = Vec::new();
    for table in &tables {
        let Some((found, line)) = name(table) else {
            continue;
        };
        if names.contains(&found) {
            table.report(
                line,
                "name",
                format!("there are two backends called `{found}`"),
                "give each [[backend]] a name of its own",
            );
        }
        names.push(found);
    }
    if tables.is_empty() {
        top.missing(
            "backend",
            "add at least one [[backend]] with a name; a switchover needs two",
        );
    }
    names
}

fn proxies(top: &Table<'_, '_, '_>) -> Vec<ProxySpec> {
    let mut proxies: Vec<ProxySpec> = Vec::new();
    for table in &top.tables("proxy", PROXY) {
        let kind = table.word("kind", ProxyKind::WORDS, ProxyKind::from_word);
        let Some((found, line)) = name(table) else {
            continue;
        };
        if proxies.iter().any(|proxy| proxy.name == found) {
            table.report(
                line,
                "name",
                format!("there are two proxies called `{found}`"),
                "give each [[proxy]] a name of its own",
            );
        }
        // A proxy called by its kind need not say it twice.
        match kind
            .map(|at| at.value)
            .or_else(|| ProxyKind::from_word(&found))
        {
            Some(kind) => {
                let custom = custom(table, kind);
                let ttl_ns = table.duration("ttl", 0, DAY);
                if ttl_ns.is_some() && !kind.is_name() {
                    table.report(
                        table.line,
                        "ttl",
                        format!("`ttl` is of no use for a proxy of kind `{kind}`"),
                        "allowed with kind = \"dns\" and kind = \"dns-following\" only",
                    );
                }
                proxies.push(ProxySpec {
                    name: found,
                    kind,
                    custom,
                    ttl_ns,
                });
            }
            None => {
                // Its name may be meant to say it.
                if table.string("kind").is_none() {
                    table.missing(
                        "kind",
                        &with_guess(&found, ProxyKind::WORDS, "values of `kind`"),
                    );
                }
            }
        }
    }
    proxies
}

/// What a proxy of the kind `command` is started by.
fn custom(table: &Table<'_, '_, '_>, kind: ProxyKind) -> Option<CustomProxy> {
    let command = table.words("command", &[], |word| Some(word.to_owned()));
    let config = table.string("config");
    let config_name = table.string("config_name");
    if kind != ProxyKind::Command {
        let given = [
            ("command", command.is_some()),
            ("config", config.is_some()),
            ("config_name", config_name.is_some()),
        ];
        for (key, _) in given.iter().filter(|(_, given)| *given) {
            table.report(
                table.line,
                key,
                format!("`{key}` is of no use for a proxy of kind `{kind}`"),
                "allowed with kind = \"command\" only",
            );
        }
        return None;
    }
    let command = command.unwrap_or_default();
    if command.is_empty() {
        table.missing(
            "command",
            "say how to start it, such as command = [\"envoy\", \"-c\", \"{config}\"]",
        );
        return None;
    }
    if let Some(name) = &config_name
        && !is_file_name(&name.value)
    {
        table.report(
            name.line,
            "config_name",
            format!("`{}` is no name for a file", name.value),
            "allowed for `config_name`: up to 64 letters, digits, `-`, `_` and `.`, such as \
             \"envoy.yaml\"; no `.` at the beginning",
        );
    }
    Some(CustomProxy {
        command,
        config: config.map(|at| at.value).unwrap_or_default(),
        config_name: config_name.map_or_else(|| "config".to_owned(), |at| at.value),
    })
}

/// A name without a folder, which hides no file.
fn is_file_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && !name.starts_with('.')
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// The steps that can be read. The rules look at these only, so of the others it is
/// said here if there is nobody to do them to.
fn timeline(top: &Table<'_, '_, '_>) -> Vec<Step> {
    let backends = top.tables_as_they_are("backend");
    let proxies = top.tables_as_they_are("proxy");
    let all = || backends.iter().chain(&proxies);
    let mut known: Vec<&str> = all().filter_map(|table| table.text("name")).collect();
    let are_known = !known.is_empty() && known.len() == all().count();
    known.push(EVERY_PROXY);
    // A proxy of no known kind is a subject all the same, and is none to the rules.
    let all_are_read = proxies.iter().all(|table| kind_of(table).is_some());
    let mut steps = Vec::new();
    for table in &top.tables("timeline", STEP) {
        let read = step(table);
        let subject = table.string("subject");
        if let Some(subject) = subject
            && (read.is_none() || !all_are_read)
            && are_known
            && !known.contains(&subject.value.as_str())
        {
            table.report(
                subject.line,
                "subject",
                format!("{UNKNOWN_SUBJECT} `{}`", subject.value),
                with_guess(&subject.value, &known, "values of `subject`"),
            );
        }
        steps.extend(read);
    }
    steps
}

fn kind_of(table: &Table<'_, '_, '_>) -> Option<ProxyKind> {
    ProxyKind::from_word(table.text("kind").or_else(|| table.text("name"))?)
}

fn step(table: &Table<'_, '_, '_>) -> Option<Step> {
    let at_ns = table.duration("at", 0, 31 * DAY);
    let action = table.word("do", Action::WORDS, Action::from_word);
    let subject = table.string("subject");
    for (key, present, hint) in [
        (
            "at",
            table.string("at").is_some(),
            "say when, such as at = \"10s\"",
        ),
        (
            "do",
            table.string("do").is_some(),
            "say what, such as do = \"stop\"; `gapscope-lab list` names all steps",
        ),
        (
            "subject",
            subject.is_some(),
            "say to which backend or proxy, such as subject = \"backend-1\"",
        ),
    ] {
        if !present {
            table.missing(key, hint);
        }
    }
    let given = jitter(table);
    let duration_ns = table.duration("duration", MS, 31 * DAY);
    let grace_ns = table.duration("grace", 0, 3_600 * SECOND);
    let delay_ns = table.duration("delay", MS, 60 * SECOND);
    let to = table.string("to").map(|at| at.value);
    let action = action?.value;
    // What undoes is not judged by itself, so it has no phase to be spread over.
    let default_jitter = if action.is_fault() || matches!(action, Action::Restart | Action::Repoint)
    {
        2 * SECOND
    } else {
        0
    };
    Some(Step {
        at_ns: at_ns?,
        action,
        subject: subject?.value,
        jitter_ns: given.unwrap_or(default_jitter),
        duration_ns,
        grace_ns,
        delay_ns,
        to,
        line: table.line,
    })
}

/// `jitter = "2s"`, or in words: `phase = "random up to 2s"`, `phase = "exact"`.
fn jitter(table: &Table<'_, '_, '_>) -> Option<u64> {
    let jitter = table.duration("jitter", 0, 3_600 * SECOND);
    let Some(phase) = table.string("phase") else {
        return jitter;
    };
    if jitter.is_some() {
        table.report(
            phase.line,
            "phase",
            "`phase` and `jitter` say the same thing twice".to_owned(),
            "keep one of them",
        );
    }
    if phase.value == "exact" {
        return Some(0);
    }
    let read = phase
        .value
        .strip_prefix("random up to ")
        .and_then(|text| crate::duration::parse(text).ok())
        .filter(|ns| *ns <= 3_600 * SECOND);
    if read.is_none() {
        table.report(
            phase.line,
            "phase",
            format!("`{}` is not known for `phase`", phase.value),
            "allowed for `phase`: \"random up to 2s\" (or another duration up to 1 h), \"exact\"",
        );
    }
    read
}
