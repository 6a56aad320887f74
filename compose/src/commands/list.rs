//! `list`: the shipped scenarios, and what a lab can be made of.

use std::fmt::Write as _;

use super::check::steps_text;
use crate::duration;
use crate::error::{Problem, Result};
use crate::scenario::{Action, BackendKind, ProxyKind, RuntimeKind, SHIPPED, Scenario};

/// The text of `gapscope-lab list`.
pub fn text() -> Result<String> {
    let mut out = String::from("Scenarios (run with: gapscope-lab run NAME)\n");
    for (name, source) in SHIPPED {
        let scenario = Scenario::parse(name, source)
            .map_err(|errors| Problem::new(format!("a shipped scenario is wrong: {errors}")))?;
        writeln!(
            out,
            "  {name:<12} {}, {}",
            duration::text(scenario.duration_ns),
            scenario.description
        )
        .expect("a String takes everything");
        for line in steps_text(&scenario) {
            writeln!(out, "  {:<12} {line}", "").expect("a String takes everything");
        }
    }
    let proxies = |runtime: RuntimeKind| {
        ProxyKind::WORDS
            .iter()
            .filter(|word| ProxyKind::from_word(word).is_some_and(|k| k.runtime() == runtime))
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
        ("", format!("{} (real)", proxies(RuntimeKind::Process))),
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
        assert!(
            text.contains("stop backend-1 at 10 s, at random up to 2 s later"),
            "{text}"
        );
    }
}
