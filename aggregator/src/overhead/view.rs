//! A benchmark as a page: the study's table first (rows version / clients,
//! columns targets, totals in ms), then what is in it.

use super::analyse::{Analysis, Cell, Cost, Spread, Verdict};
use super::record::{Bench, Load, Role};
use crate::report::figures::NONE;
use crate::report::page::Page;
use crate::report::table::Table;
use crate::store::manifest::RunState;

/// A number to three significant figures or so, never more digits than known.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 || size == 0.0 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Two ends with the decimals of `value`, so that they can be compared with it.
fn ends(value: f64, lower: f64, upper: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 99.95 || size == 0.0 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    format!("{lower:.decimals$}..{upper:.decimals$}")
}

fn spread(spread: &Spread, unit: f64) -> String {
    let median = spread.median / unit;
    match spread.interval {
        Some(i) => format!(
            "{} ({})",
            short(median),
            ends(median, i.lower / unit, i.upper / unit)
        ),
        None if spread.least < spread.most => format!(
            "{} [{}]",
            short(median),
            ends(median, spread.least / unit, spread.most / unit)
        ),
        None => short(median),
    }
}

/// "1.42 (1.40..1.45)"
pub fn ratio(ratio: f64, interval: Option<(f64, f64)>) -> String {
    match interval {
        Some((lower, upper)) => format!("{ratio:.2} ({lower:.2}..{upper:.2})"),
        None => format!("{ratio:.2}"),
    }
}

fn added(cost: &Cost) -> String {
    let us = cost.added_ns / 1e3;
    let mark = match cost.verdict {
        Verdict::NotDistinguishable => "= ",
        Verdict::NoClaim | Verdict::Dearer | Verdict::Cheaper => "",
    };
    let sign = if us >= 0.0 { "+" } else { "" };
    with_ends(
        format!("{mark}{sign}{}", short(us)),
        us,
        cost.added_interval,
    )
}

fn median_added(cost: &Cost) -> Option<String> {
    let us = cost.median_added_ns? / 1e3;
    let sign = if us >= 0.0 { "+" } else { "" };
    Some(with_ends(
        format!("{sign}{}", short(us)),
        us,
        cost.median_added_interval,
    ))
}

fn with_ends(number: String, us: f64, interval: Option<(f64, f64)>) -> String {
    match interval {
        Some((lower, upper)) => format!("{number} ({})", ends(us, lower / 1e3, upper / 1e3)),
        None => number,
    }
}

/// The names of those targets that have a column in tables of costs.
fn compared(bench: &Bench, analysis: &Analysis) -> Vec<usize> {
    (0..bench.manifest.targets.len())
        .filter(|at| Some(*at) != analysis.direct)
        .collect()
}

/// Labels and numbers of clients, as rows.
fn rows(analysis: &Analysis) -> Vec<(String, u32)> {
    let mut rows = Vec::new();
    for label in &analysis.labels {
        for n in &analysis.clients {
            if analysis
                .cells
                .iter()
                .any(|c| c.label == *label && c.clients == *n)
            {
                rows.push((label.clone(), *n));
            }
        }
    }
    rows
}

/// A column's heading: of two lines where it is long and has a space.
fn heading(name: &str) -> String {
    if name.chars().count() <= 12 {
        return format!(">{name}");
    }
    let spaces = name.char_indices().filter(|(_, c)| *c == ' ');
    // The most even break.
    let middle = name.len() / 2;
    match spaces.min_by_key(|(at, _)| at.abs_diff(middle)) {
        Some((at, _)) => format!(">{}\n{}", &name[..at], &name[at + 1..]),
        None => format!(">{name}"),
    }
}

fn grid(
    title: String,
    bench: &Bench,
    analysis: &Analysis,
    targets: &[usize],
    value: impl Fn(&Cell) -> Option<String>,
) -> Table {
    let names: Vec<String> = targets
        .iter()
        .map(|at| heading(&bench.manifest.targets[*at].name))
        .collect();
    let mut columns = vec!["version / clients"];
    columns.extend(names.iter().map(String::as_str));
    let mut table = Table::new(title, 1, &columns);
    for (label, clients) in rows(analysis) {
        let mut row = vec![format!("{label} / {clients}")];
        row.extend(targets.iter().map(|at| {
            analysis
                .cell(&label, clients, *at)
                .and_then(&value)
                .unwrap_or_else(|| NONE.to_owned())
        }));
        table.rows.push(row);
    }
    table
}

fn details(bench: &Bench, analysis: &Analysis) -> Table {
    let mut table = Table::new(
        "Details, medians over rounds",
        2,
        &[
            "version / clients",
            "target",
            ">statements\n/s",
            ">p50\nus",
            ">p99\nus",
            ">max\nus",
            ">client\nCPU us",
            ">target\nCPU us",
            ">rounds\nleft out",
            ">errors",
            ">wrong",
        ],
    );
    let us = |ns: Option<f64>| ns.map_or(String::new(), |ns| short(ns / 1e3));
    for cell in &analysis.cells {
        let all = cell.rounds + cell.unsound;
        table.rows.push(vec![
            format!("{} / {}", cell.label, cell.clients),
            bench.manifest.targets[cell.target].name.clone(),
            cell.rate.map_or(String::new(), |rate| format!("{rate:.0}")),
            us(cell.p50_ns),
            us(cell.p99_ns),
            us(cell.max_ns.map(|ns| ns as f64)),
            us(cell.client_cpu_ns),
            us(cell.target_cpu_ns),
            if cell.unsound == 0 {
                String::new()
            } else {
                format!("{} of {all}", cell.unsound)
            },
            if cell.errors == 0 {
                String::new()
            } else {
                cell.errors.to_string()
            },
            if cell.wrong == 0 {
                String::new()
            } else {
                cell.wrong.to_string()
            },
        ]);
    }
    table.without_empty_columns()
}

fn failures(bench: &Bench) -> Table {
    let mut table = Table::new(
        "Errors",
        2,
        &[
            "target",
            "kind",
            ">clients",
            ">code",
            ">count",
            "first of its kind",
        ],
    );
    // Rounds and texts that differ in a number only are added up.
    let mut seen: Vec<(String, String, u32, Option<u16>, u64, String)> = Vec::new();
    for f in &bench.failures {
        let same = seen
            .iter_mut()
            .find(|s| s.0 == f.target && s.1 == f.kind && s.2 == f.clients && s.3 == f.code);
        match same {
            Some(known) => known.4 += f.count,
            None => seen.push((
                f.target.clone(),
                f.kind.clone(),
                f.clients,
                f.code,
                f.count,
                f.text.clone(),
            )),
        }
    }
    for (target, kind, clients, code, count, text) in seen {
        table.rows.push(vec![
            target,
            kind,
            clients.to_string(),
            code.map_or(NONE.to_owned(), |code| code.to_string()),
            count.to_string(),
            text,
        ]);
    }
    table
}

/// Where several versions were measured: each target's own time, over direct,
/// as a share of the first version's. (The claim "50 to 65 % of the old one's"
/// is about this.)
fn against_first_label(bench: &Bench, analysis: &Analysis) -> Option<Table> {
    let (first, others) = analysis.labels.split_first()?;
    if others.is_empty() {
        return None;
    }
    let targets = compared(bench, analysis);
    let names: Vec<String> = targets
        .iter()
        .map(|at| heading(&bench.manifest.targets[*at].name))
        .collect();
    let mut columns = vec!["version / clients"];
    columns.extend(names.iter().map(String::as_str));
    let direct = analysis.direct.map(|at| &bench.manifest.targets[at].name);
    let mut table = Table::new(
        format!(
            "Own time (over {}), in % of version {first}'s",
            direct.map_or("direct", String::as_str)
        ),
        1,
        &columns,
    );
    for label in others {
        for n in &analysis.clients {
            let own = |label: &str, at: usize| Some(analysis.cell(label, *n, at)?.cost?.added_ns);
            let mut row = vec![format!("{label} / {n}")];
            row.extend(
                targets
                    .iter()
                    .map(|at| match (own(label, *at), own(first, *at)) {
                        (Some(now), Some(before)) if before > 0.0 => {
                            format!("{:.0}", 100.0 * now / before)
                        }
                        _ => NONE.to_owned(),
                    }),
            );
            table.rows.push(row);
        }
    }
    Some(table)
}

fn facts(bench: &Bench, analysis: &Analysis) -> Vec<String> {
    let m = &bench.manifest;
    let rounds = bench.blocks.iter().map(|b| b.round).max().unwrap_or(0);
    let ended = match m.state {
        RunState::Running => "not yet: running, or abandoned".to_owned(),
        _ => m.end_reason.clone().unwrap_or_else(|| "closed".to_owned()),
    };
    let mut facts = vec![
        format!("began {}, ended: {ended}", m.created_utc),
        match m.load {
            Load::Closed => format!(
                "{} statements shared by the clients, each the next one once the last is \
                 answered; {rounds} of {} rounds",
                m.statements, m.rounds
            ),
            Load::Open { rate } => format!(
                "{rate} statements a second over all clients, {} a block; {rounds} of {} rounds",
                m.statements, m.rounds
            ),
        },
    ];
    if !m.protocol.is_empty() {
        facts.push(format!(
            "{} protocol, {}; order from seed {}",
            m.protocol,
            if m.connect_each {
                "each statement on a connection of its own"
            } else {
                "connections held"
            },
            m.seed
        ));
    }
    if !m.statement.is_empty() {
        facts.push(format!(
            "statement ({}): {}",
            m.statement_origin, m.statement
        ));
    }
    if !m.host.hostname.is_empty() {
        facts.push(format!(
            "host {}, {} processors, kernel {}",
            m.host.hostname, m.host.cpus, m.host.kernel
        ));
    }
    for (at, target) in m.targets.iter().enumerate() {
        let role = match target.role {
            _ if Some(at) == analysis.direct => "what the others are compared with",
            Role::Floor => "the instrument's own floor",
            Role::Direct | Role::Compared => "compared",
        };
        let place = if target.address.is_empty() {
            String::new()
        } else {
            format!(" at {}", target.address)
        };
        let program = if target.program.is_empty() {
            String::new()
        } else {
            format!(", {}", target.program)
        };
        facts.push(format!("{}: {role}{place}{program}", target.name));
    }
    for (key, value) in &m.labels {
        facts.push(format!("{key}={value}"));
    }
    facts
}

fn method(bench: &Bench, analysis: &Analysis) -> Vec<String> {
    let what = match bench.manifest.load {
        Load::Closed => {
            "the total divided by the statements, so with N clients it is what they \
                         wait for together"
        }
        Load::Open { .. } => "the median response time from the due time, of one statement",
    };
    vec![
        "totals: from the first statement sent to the last answered; median over rounds, in \
         parentheses the interval of the median by order statistics (95 % or a little more), in \
         brackets the smallest and largest of fewer than 6 rounds."
            .to_owned(),
        format!(
            "ratio, added: against the direct target within each round; mean of the logarithms, \
             or of the differences, with the 95 % interval of a paired t over rounds, of the \
             single cell. Added is of {what}."
        ),
        "added to the median response: likewise, of each block's p50; stalls of a busy machine are \
         in totals and hardly in medians. With N clients it is what each of them waits. Nothing \
         is claimed of it."
            .to_owned(),
        format!(
            "= : not distinguishable from direct. A difference is claimed where paired t and \
             sign-flip test both find it, by Holm over {} comparisons at 1 % together.",
            analysis.comparisons
        ),
        "p50, p99: of the time to an answer, by nearest rank within a block. CPU: processor time \
         a statement, of the client's threads and of the target's processes; empty where they \
         cannot be seen or are not their own."
            .to_owned(),
    ]
}

/// The page.
pub fn page(bench: &Bench, analysis: &Analysis) -> Page {
    let m = &bench.manifest;
    let all: Vec<usize> = (0..m.targets.len()).collect();
    let others = compared(bench, analysis);
    let direct = analysis
        .direct
        .map_or("direct", |at| m.targets[at].name.as_str());
    let mut tables = Vec::new();
    if m.load == Load::Closed {
        tables.push(grid(
            format!("Total ms for {} statements", m.statements),
            bench,
            analysis,
            &all,
            |c| Some(spread(c.total_ns.as_ref()?, 1e6)),
        ));
    } else {
        tables.push(grid(
            "Median response, us".to_owned(),
            bench,
            analysis,
            &all,
            |c| Some(short(c.p50_ns? / 1e3)),
        ));
    }
    tables.push(grid(
        format!("Ratio to {direct}"),
        bench,
        analysis,
        &others,
        |c| c.cost.map(|cost| ratio(cost.ratio, cost.ratio_interval)),
    ));
    tables.push(grid(
        format!("Added to {direct}, us a statement"),
        bench,
        analysis,
        &others,
        |c| c.cost.as_ref().map(added),
    ));
    let has_medians = analysis
        .cells
        .iter()
        .any(|c| c.cost.is_some_and(|cost| cost.median_added_ns.is_some()));
    if has_medians && m.load == Load::Closed {
        tables.push(grid(
            format!("Added to {direct}'s median response, us"),
            bench,
            analysis,
            &others,
            |c| c.cost.as_ref().and_then(median_added),
        ));
    }
    tables.extend(against_first_label(bench, analysis));
    let has_details = analysis.cells.iter().any(|c| c.p50_ns.is_some());
    if has_details || analysis.cells.iter().any(|c| c.errors + c.wrong > 0) {
        tables.push(details(bench, analysis));
    }
    let errors = failures(bench);
    if !errors.rows.is_empty() {
        tables.push(errors);
    }
    Page {
        title: format!("overhead {}", m.run_id),
        facts: facts(bench, analysis),
        tables,
        method: method(bench, analysis),
        caveats: analysis.caveats.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_long_as_they_are_known() {
        assert_eq!(short(1906.4), "1906");
        assert_eq!(short(0.0), "0");
        assert_eq!(short(34.26), "34.3");
        assert_eq!(short(1.424), "1.42");
        assert_eq!(short(-0.126), "-0.13");
        assert_eq!(ends(34.26, 33.0, 35.55), "33.0..35.5");
    }
}
