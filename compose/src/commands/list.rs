//! `list`: the shipped scenarios, and what a lab can be made of.

use std::fmt::Write as _;

use gapscope_aggregator::report::table::wrap;

use super::check::steps_text;
use crate::duration;
use crate::error::{Problem, Result};
use crate::scenario::{Action, BackendKind, ProxyKind, RuntimeKind, SHIPPED, Scenario};

/// More steps than this are counted; `check` shows all.
const MOST_STEPS: usize = 2;

/// A shipped scenario's number, from its first line: `# S1: ...`.
fn number(source: &str) -> &str {
    source
        .strip_prefix("# ")
        .and_then(|rest| rest.split([':', ' ']).next())
        .filter(|word| word.starts_with('S'))
        .unwrap_or_default()
}

/// Where descriptions and steps stand.
const INDENT: usize = 22;
/// Where the parts of a lab stand.
const PARTS_INDENT: usize = 15;

/// Writes `text` behind `lead`, and what does not fit below its beginning.
fn write_behind(out: &mut String, lead: &str, indent: usize, text: &str, width: usize) {
    let room = width.saturating_sub(indent).max(20);
    for (at, line) in wrap(text, room).iter().enumerate() {
        let lead = if at == 0 { lead } else { "" };
        writeln!(out, "{lead:<indent$}{line}").expect("a String takes everything");
    }
}

/// The text of `gapscope-lab list` in `width` columns.
pub fn text(width: usize) -> Result<String> {
    let mut out = String::from("Scenarios (run with: gapscope-lab run NAME)\n");
    for (name, source) in SHIPPED {
        let scenario = Scenario::parse(name, source)
            .map_err(|errors| Problem::new(format!("a shipped scenario is wrong: {errors}")))?;
        let mut behind = |lead: &str, text: &str| {
            write_behind(&mut out, lead, INDENT, text, width);
        };
        behind(
            &format!("  {:<3} {name:<15} ", number(source)),
            &format!(
                "{}, {}",
                duration::text(scenario.duration_ns),
                scenario.description
            ),
        );
        let steps = steps_text(&scenario);
        for line in steps.iter().take(MOST_STEPS) {
            behind("", line);
        }
        if steps.len() > MOST_STEPS {
            behind("", &format!("and {} more", steps.len() - MOST_STEPS));
        }
    }
    let proxies = |runtime: RuntimeKind| {
        ProxyKind::WORDS
            .iter()
            .filter(|word| ProxyKind::from_word(word).is_some_and(|kind| kind.runs_in(runtime)))
            .copied()
            .collect::<Vec<_>>()
            .join(", ")
    };
    let rows = [
        ("--runtime", RuntimeKind::WORDS.join(", ")),
        ("--backend", BackendKind::WORDS.join(", ")),
        (
            "--proxy",
            format!("{} (embedded)", proxies(RuntimeKind::Embedded)),
        ),
        ("", format!("{} (process)", proxies(RuntimeKind::Process))),
        ("", format!("{} (docker)", proxies(RuntimeKind::Docker))),
        ("steps", Action::WORDS.join(", ")),
    ];
    out.push_str("\nA lab can be made of\n");
    for (name, values) in rows {
        write_behind(
            &mut out,
            &format!("  {name:<12} "),
            PARTS_INDENT,
            &values,
            width,
        );
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_shipped_scenario_is_listed() {
        for width in [80, 120] {
            let text = super::text(width).expect("shipped scenarios are valid");
            assert!(
                text.lines().all(|line| line.chars().count() <= width),
                "{text}"
            );
        }
        let text = super::text(100).expect("shipped scenarios are valid");
        for (name, _) in crate::scenario::SHIPPED {
            assert!(text.contains(name), "{text}");
        }
        assert!(text.contains("  S8  flapping        35 s, "), "{text}");
        assert!(text.contains("and 3 more"), "{text}");
        assert!(
            text.contains("stop backend-1 at 10 s, at random up to 2 s later"),
            "{text}"
        );
    }
}
