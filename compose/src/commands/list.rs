//! `list`: the shipped scenarios, and what a lab can be made of.

use std::fmt::Write as _;

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

/// The text of `gapscope-lab list`.
pub fn text() -> Result<String> {
    let mut out = String::from("Scenarios (run with: gapscope-lab run NAME)\n");
    for (name, source) in SHIPPED {
        let scenario = Scenario::parse(name, source)
            .map_err(|errors| Problem::new(format!("a shipped scenario is wrong: {errors}")))?;
        writeln!(
            out,
            "  {:<3} {name:<15} {}, {}",
            number(source),
            duration::text(scenario.duration_ns),
            scenario.description
        )
        .expect("a String takes everything");
        let steps = steps_text(&scenario);
        for line in steps.iter().take(MOST_STEPS) {
            writeln!(out, "  {:<19} {line}", "").expect("a String takes everything");
        }
        if steps.len() > MOST_STEPS {
            writeln!(out, "  {:<19} and {} more", "", steps.len() - MOST_STEPS)
                .expect("a String takes everything");
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
        writeln!(out, "  {name:<12} {values}").expect("a String takes everything");
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_shipped_scenario_is_listed() {
        let text = super::text().expect("shipped scenarios are valid");
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
