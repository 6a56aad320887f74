//! A matrix for people.

use std::fmt::Write as _;

use super::{Cell, Matrix, Once, rank};

const SPACE: usize = 2;

fn seconds(value: f64) -> String {
    format!("{value:.2}")
}

/// An interval, rounded outward.
fn interval(lower: f64, upper: Option<f64>) -> String {
    // What is a hundredth already must not become the next one.
    let lower = (lower * 100.0 + 1e-6).floor() / 100.0;
    match upper {
        Some(upper) => format!(
            "out {lower:.2}..{:.2} s",
            (upper * 100.0 - 1e-6).ceil() / 100.0
        ),
        None => format!("out >= {lower:.2} s"),
    }
}

/// From least to most; one value alone where they are the same.
fn range(values: &[f64], at_least: bool) -> Option<String> {
    let least = values.iter().copied().reduce(f64::min)?;
    let most = values.iter().copied().reduce(f64::max)?;
    let mark = if at_least { ">= " } else { "" };
    Some(if seconds(least) == seconds(most) {
        format!("{mark}{} s", seconds(most))
    } else {
        format!("{mark}{}-{} s", seconds(least), seconds(most))
    })
}

/// One line for each thing there is to say.
fn lines(cell: &Cell) -> Vec<String> {
    match cell {
        Cell::NotApplicable(_) => vec!["not applicable".to_owned()],
        Cell::NotMeasured(_) => vec!["not measured".to_owned()],
        Cell::Ran {
            faults, available, ..
        } => {
            if faults.is_empty() {
                return vec![available.map_or_else(
                    || "nothing was done".to_owned(),
                    // Never rounded up to all.
                    |share| format!("{:.1} % in time", (share * 10.0).floor() / 10.0),
                )];
            }
            of_faults(faults)
        }
    }
}

fn of_faults(faults: &[Once]) -> Vec<String> {
    let worst = faults
        .iter()
        .map(|once| once.verdict.as_str())
        .min_by_key(|verdict| rank(verdict))
        .unwrap_or_default();
    let count = faults.iter().filter(|once| once.verdict == worst).count();
    let mut lines = vec![if faults.len() > 1 {
        format!("{worst} {count}/{}", faults.len())
    } else {
        worst.to_owned()
    }];
    let gaps: Vec<f64> = faults.iter().filter_map(|once| once.gap_s).collect();
    let at_least = faults.iter().any(|once| once.gap_is_at_least);
    if let Some(text) = range(&gaps, at_least) {
        lines.push(format!("gap {text}"));
    }
    let longest = faults
        .iter()
        .filter_map(|once| once.outage_s)
        .max_by(|a, b| {
            let most = |upper: Option<f64>| upper.unwrap_or(f64::INFINITY);
            most(a.1).total_cmp(&most(b.1))
        });
    if let Some((lower, upper)) = longest {
        lines.push(interval(lower, upper));
    }
    lines
}

/// What the words mean, and why cells are empty.
fn notes(matrix: &Matrix) -> Vec<String> {
    let mut notes = vec![
        "worst verdict over all kinds of clients (how many of the faults, where several); gap: \
         the longest time that a client went without an answer; out: how long the service can \
         have been out, at least..at most, in the longest outage"
            .to_owned(),
    ];
    for (scenario, row) in matrix.scenarios.iter().zip(&matrix.cells) {
        for (proxy, cell) in matrix.proxies.iter().zip(row) {
            let (Cell::NotApplicable(why) | Cell::NotMeasured(why)) = cell else {
                continue;
            };
            let why = why.lines().next().unwrap_or_default();
            let note = format!("{scenario}, {proxy}: {why}");
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    let not_exposed = matrix.cells.iter().flatten().any(|cell| match cell {
        Cell::Ran { faults, .. } => faults.iter().any(|once| once.verdict == "not exposed"),
        _ => false,
    });
    if not_exposed {
        notes.push("not exposed: no client was on the backend; nothing was tested".to_owned());
    }
    if matrix
        .cells
        .iter()
        .flatten()
        .any(|cell| matches!(cell, Cell::Ran { faults, .. } if faults.len() == 1))
    {
        notes.push("one fault of a kind cannot tell luck from behaviour: --repeat N".to_owned());
    }
    notes
}

fn wrapped(text: &str, width: usize, indent: &str) -> String {
    let mut out = String::new();
    let mut line = indent.to_owned();
    let mut has_words = false;
    for word in text.split_whitespace() {
        if has_words && line.chars().count() + 1 + word.chars().count() > width {
            writeln!(out, "{line}").expect("a String takes everything");
            indent.clone_into(&mut line);
            has_words = false;
        }
        if has_words {
            line.push(' ');
        }
        line.push_str(word);
        has_words = true;
    }
    writeln!(out, "{line}").expect("a String takes everything");
    out
}

/// For a terminal of this width: proxies side by side as long as they fit, else in
/// several tables.
pub fn text(matrix: &Matrix, width: usize) -> String {
    let columns: Vec<usize> = matrix
        .proxies
        .iter()
        .enumerate()
        .map(|(index, proxy)| {
            let cells = matrix.cells.iter().filter_map(|row| row.get(index));
            cells
                .flat_map(lines)
                .map(|line| line.chars().count())
                .chain(std::iter::once(proxy.chars().count()))
                .max()
                .unwrap_or(0)
        })
        .collect();
    let first = matrix
        .scenarios
        .iter()
        .map(|name| name.chars().count())
        .chain(std::iter::once("scenario".len()))
        .max()
        .unwrap_or(0);
    let mut out = String::new();
    let mut next = 0;
    while next < columns.len() {
        let mut used = first;
        let mut end = next;
        while end < columns.len() && (end == next || used + SPACE + columns[end] <= width) {
            used += SPACE + columns[end];
            end += 1;
        }
        if next > 0 {
            out.push('\n');
        }
        table(matrix, &mut out, first, &columns, next..end);
        next = end;
    }
    out.push('\n');
    for note in notes(matrix) {
        out.push_str(&wrapped(&note, width, "  "));
    }
    out
}

fn table(
    matrix: &Matrix,
    out: &mut String,
    first: usize,
    columns: &[usize],
    shown: std::ops::Range<usize>,
) {
    let mut put = |name: &str, parts: &[String]| {
        let mut line = format!("{name:<first$}");
        for (part, index) in parts.iter().zip(shown.clone()) {
            write!(line, "  {part:<width$}", width = columns[index])
                .expect("a String takes everything");
        }
        writeln!(out, "{}", line.trim_end()).expect("a String takes everything");
    };
    put("scenario", &matrix.proxies[shown.clone()]);
    for (scenario, row) in matrix.scenarios.iter().zip(&matrix.cells) {
        let cells: Vec<Vec<String>> = row[shown.clone()].iter().map(lines).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        for line in 0..height {
            let parts: Vec<String> = cells
                .iter()
                .map(|cell| cell.get(line).cloned().unwrap_or_default())
                .collect();
            put(if line == 0 { scenario } else { "" }, &parts);
        }
    }
}

/// To paste somewhere.
pub fn markdown(matrix: &Matrix) -> String {
    let mut out = String::new();
    let cell = |text: &str| text.replace('|', "\\|");
    writeln!(
        out,
        "| scenario | {} |\n|---|{}",
        matrix
            .proxies
            .iter()
            .map(|name| cell(name))
            .collect::<Vec<_>>()
            .join(" | "),
        "---|".repeat(matrix.proxies.len())
    )
    .expect("a String takes everything");
    for (scenario, row) in matrix.scenarios.iter().zip(&matrix.cells) {
        let cells: Vec<String> = row.iter().map(|c| cell(&lines(c).join("<br>"))).collect();
        writeln!(out, "| {} | {} |", cell(scenario), cells.join(" | "))
            .expect("a String takes everything");
    }
    out.push('\n');
    for note in notes(matrix) {
        writeln!(out, "- {note}").expect("a String takes everything");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn once(verdict: &str, gap_s: Option<f64>, outage_s: Option<(f64, Option<f64>)>) -> Once {
        Once {
            step: "stop".to_owned(),
            verdict: verdict.to_owned(),
            gap_s,
            gap_is_at_least: false,
            outage_s,
        }
    }

    fn matrix() -> Matrix {
        let ran = |faults: Vec<Once>| Cell::Ran {
            run: "r".to_owned(),
            faults,
            available: Some(99.96),
        };
        Matrix {
            scenarios: vec!["baseline".to_owned(), "switchover".to_owned()],
            proxies: vec!["haproxy".to_owned(), "nginx".to_owned(), "other".to_owned()],
            cells: vec![
                vec![
                    ran(Vec::new()),
                    ran(Vec::new()),
                    Cell::NotApplicable("no such step".to_owned()),
                ],
                vec![
                    ran(vec![
                        once("disrupted", Some(3.801), Some((2.03, Some(3.055)))),
                        once("seamless", Some(0.02), Some((0.0, Some(0.02)))),
                    ]),
                    ran(vec![once("not exposed", None, None)]),
                    Cell::NotMeasured("it did not start\nmore".to_owned()),
                ],
            ],
        }
    }

    #[test]
    fn cells_keep_their_intervals() {
        let text = text(&matrix(), 80);
        let table = text.split("\n\n").next().unwrap_or_default();
        insta::assert_snapshot!(table, @r"
        scenario    haproxy           nginx           other
        baseline    99.9 % in time    99.9 % in time  not applicable
        switchover  disrupted 1/2     not exposed     not measured
                    gap 0.02-3.80 s
                    out 2.03..3.06 s
        ");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in [40, 60, 80, 120] {
            let text = text(&matrix(), width);
            assert!(
                text.lines().all(|line| line.chars().count() <= width),
                "{width}\n{text}"
            );
        }
    }

    #[test]
    fn markdown_has_a_cell_for_each() {
        let text = markdown(&matrix());
        assert!(
            text.contains("| switchover | disrupted 1/2<br>gap 0.02-3.80 s<br>out 2.03..3.06 s |"),
            "{text}"
        );
        assert!(
            text.contains("- switchover, other: it did not start\n"),
            "{text}"
        );
    }
}
