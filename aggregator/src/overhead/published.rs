//! Reads a table of totals as a study prints it: rows `version / clients`,
//! columns targets (the first is the server alone), cells total milliseconds.
//! Pure.
//!
//! ```text
//! version / concurrency, MySQL, MySQL Proxy
//! 0.6.1 / 40,            217,   1302
//! ```
//!
//! Separators are `,`, `;`, tab or, as in Markdown, `|`. Lines that begin with
//! `#` are comments. Rows of one version and number of clients that come again
//! are further rounds.

use std::collections::BTreeMap;

use super::record::Block;

/// The targets' names, the first being the server alone, and the blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// In the order of the columns.
    pub targets: Vec<String>,
    /// One for each cell.
    pub blocks: Vec<Block>,
}

/// Reads such a table; each total is of `statements` statements.
///
/// # Errors
/// Says which line is wrong, and why.
pub fn parse(text: &str, statements: u64) -> Result<Published, String> {
    let mut targets: Vec<String> = Vec::new();
    let mut blocks = Vec::new();
    let mut rounds: BTreeMap<(String, u32), u32> = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let is_rule = line.chars().all(|c| matches!(c, '|' | '-' | ':' | ' '));
        if line.is_empty() || line.starts_with('#') || is_rule {
            continue;
        }
        let wrong = |why: String| format!("line {number}: {why}");
        let separator = ['|', '\t', ';', ',']
            .into_iter()
            .find(|separator| line.contains(*separator))
            .ok_or_else(|| wrong("there is only one column".to_owned()))?;
        let cells: Vec<&str> = line
            .trim_matches('|')
            .split(separator)
            .map(str::trim)
            .collect();
        let (key, values) = cells.split_first().expect("split gives one at least");
        if targets.is_empty() {
            targets = values.iter().map(|name| (*name).to_owned()).collect();
            if let Some(name) = values.iter().find(|name| name.is_empty()) {
                return Err(wrong(format!("a column has no name: `{name}`")));
            }
            for (at, name) in targets.iter().enumerate() {
                if targets[..at].contains(name) {
                    return Err(wrong(format!("two columns are called `{name}`")));
                }
            }
            continue;
        }
        if values.len() != targets.len() {
            return Err(wrong(format!(
                "{} totals for {} targets",
                values.len(),
                targets.len()
            )));
        }
        let (label, clients) = key
            .rsplit_once('/')
            .ok_or_else(|| wrong(format!("`{key}` is not `version / clients`")))?;
        let clients: u32 = clients
            .trim()
            .parse()
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| wrong(format!("`{}` is no number of clients", clients.trim())))?;
        let label = label.trim().to_owned();
        let round = rounds.entry((label.clone(), clients)).or_insert(0);
        *round += 1;
        for (target, value) in targets.iter().zip(values) {
            let ms: f64 = value
                .parse()
                .ok()
                .filter(|ms: &f64| ms.is_finite() && *ms > 0.0 && *ms < 1e12)
                .ok_or_else(|| wrong(format!("`{value}` is no total in ms")))?;
            blocks.push(Block {
                label: label.clone(),
                round: *round,
                turn: u32::try_from(blocks.len() + 1).unwrap_or(u32::MAX),
                target: target.clone(),
                clients,
                began_ns: 0,
                total_ns: (ms * 1e6).round() as u64,
                statements,
                answered: statements,
                wrong: 0,
                errors: 0,
                connects: 0,
                p50_ns: None,
                p99_ns: None,
                max_ns: None,
                client_cpu_ns: None,
                target_cpu_ns: None,
            });
        }
    }
    if blocks.is_empty() {
        return Err("there is no row with totals in it".to_owned());
    }
    Ok(Published { targets, blocks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn refused(text: &str, expect: &str) {
        let error = parse(text, 10).expect_err("it is wrong");
        assert!(error.contains(expect), "{error}");
    }

    #[test]
    fn tables_as_they_are_printed() {
        let comma = parse("v / c, a, b c\n# note\n1 / 2, 10, 20.5\n1/2,11,21\n", 10);
        let bars = parse(
            "| v / c | a | b c |\n|---|---:|---|\n| 1 / 2 | 10 | 20.5 |\n| 1/2 | 11 | 21 |\n",
            10,
        );
        assert_eq!(comma, bars);
        let table = comma.expect("it is right");
        assert_eq!(table.targets, ["a", "b c"]);
        let seen: Vec<(u32, u32, u64)> = table
            .blocks
            .iter()
            .map(|b| (b.round, b.clients, b.total_ns))
            .collect();
        assert_eq!(
            seen,
            [
                (1, 2, 10_000_000),
                (1, 2, 20_500_000),
                (2, 2, 11_000_000),
                (2, 2, 21_000_000)
            ]
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        refused("", "no row");
        refused("v, a\n", "no row");
        refused("v, a\n1 / 2, 3, 4\n", "line 2: 2 totals for 1 targets");
        refused("v, a\n1, 3\n", "line 2: `1` is not");
        refused("v, a\n1 / x, 3\n", "line 2: `x` is no number");
        refused("v, a\n1 / 2, -3\n", "line 2: `-3` is no total");
        refused("v, a, a\n", "two columns");
        refused("hello\n", "one column");
    }

    proptest! {
        /// Never a panic, never more than one block a cell.
        #[test]
        fn any_text_is_a_table_or_an_error(
            text in prop_oneof![
                "\\PC{0,200}",
                "v, a, b\n([0-9.]{0,4} ?/ ?[0-9x]{0,12}[,;|] ?-?[0-9.e]{0,22}[,;|] ?[0-9.]{0,9}\n){0,4}",
            ],
            statements in any::<u64>(),
        ) {
            if let Ok(table) = parse(&text, statements) {
                prop_assert!(table.blocks.len() <= text.len());
            }
        }
    }
}
