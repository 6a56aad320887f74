//! `check`: whether a scenario can be run, and what it would do.

use std::fmt::Write as _;

use gapscope_aggregator::report::table::wrap;

use super::scenario_text;
use crate::duration;
use crate::error::{Problem, Result};
use crate::runtime::DEFAULT_DELAY_NS;
use crate::scenario::{Action, Load, Scenario, target_names};
use gapscope_proto::plain::visible;

/// Where the values stand.
const INDENT: usize = 15;

/// The text of `gapscope-lab check SCENARIO` in `width` columns.
pub fn text(wanted: &str, width: usize) -> Result<String> {
    let (origin, source) = scenario_text(wanted)?;
    let scenario = Scenario::parse(&origin, &source)
        .map_err(|errors| Problem::usage(format!("the scenario is wrong\n{errors}")))?;
    let mut out = format!("{origin} is a valid scenario\n");
    let mut row = |name: &str, value: String| {
        let room = width.saturating_sub(INDENT).max(20);
        for (at, line) in wrap(&value, room).iter().enumerate() {
            let name = if at == 0 { name } else { "" };
            writeln!(out, "  {name:<12} {line}").expect("a String takes everything");
        }
    };
    row("name", titled(&scenario));
    row("duration", duration::text(scenario.duration_ns));
    row("deadline", duration::text(scenario.deadline_ns));
    row("backends", scenario.backends.join(", "));
    row("targets", target_names(&scenario).join(", "));
    row("load", load_text(&scenario));
    let steps = steps_text(&scenario);
    if steps.is_empty() {
        row("steps", "none".to_owned());
    }
    for step in steps {
        row("step", step);
    }
    Ok(visible(&out))
}

/// Its name, and what it shows if it says so.
pub fn titled(scenario: &Scenario) -> String {
    match scenario.description.as_str() {
        "" => scenario.name.clone(),
        description => format!("{}: {description}", scenario.name),
    }
}

/// A rate in thousandths as people write it.
fn rate(milli: u64) -> String {
    if milli.is_multiple_of(1_000) {
        (milli / 1_000).to_string()
    } else {
        format!("{:.1}", milli as f64 / 1e3)
    }
}

/// What probing asks of each target, in words.
pub fn load_text(scenario: &Scenario) -> String {
    let Load {
        held,
        probes_per_second_milli,
        connects_per_second_milli,
        worst_connects_per_second_milli,
        ..
    } = scenario.load();
    let worst =
        worst_connects_per_second_milli.min(u64::from(scenario.max_connects_per_second) * 1_000);
    let guarded = worst < worst_connects_per_second_milli;
    format!(
        "each target: {} statements/s, {held} held connections, {} new connections/s (up to {}/s \
         while it refuses{})",
        rate(probes_per_second_milli),
        rate(connects_per_second_milli),
        rate(worst),
        if guarded {
            ", held back by the guard"
        } else {
            ""
        },
    )
}

/// Each step in words.
pub fn steps_text(scenario: &Scenario) -> Vec<String> {
    scenario
        .timeline
        .iter()
        .map(|step| {
            let mut text = format!(
                "{} {} at {}",
                step.action,
                step.subject,
                duration::text(step.at_ns)
            );
            if step.jitter_ns > 0 {
                text.push_str(&format!(
                    ", at random up to {} later",
                    duration::text(step.jitter_ns)
                ));
            }
            if let Some(grace) = step.grace_ns {
                text.push_str(&format!(", killed after {}", duration::text(grace)));
            }
            if let Some(to) = &step.to {
                text.push_str(&format!(", to {to}"));
            }
            if step.action == Action::Slow {
                let delay = step.delay_ns.unwrap_or(DEFAULT_DELAY_NS);
                text.push_str(&format!(", by {}", duration::text(delay)));
            }
            match (step.action, step.duration_ns) {
                (Action::Restart, down) => text.push_str(&format!(
                    ", down for {}",
                    down.map_or_else(|| "as long as that takes".to_owned(), duration::text)
                )),
                (Action::LongQuery, Some(lasts)) => {
                    text.push_str(&format!(", which takes {}", duration::text(lasts)));
                }
                (_, Some(after)) => {
                    text.push_str(&format!(", undone after {}", duration::text(after)));
                }
                _ => {}
            }
            text
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_told_before_it_is_made() {
        let narrow = text("switchover", 60).expect("it is valid");
        assert!(
            narrow.lines().all(|line| line.chars().count() <= 60),
            "{narrow}"
        );
        let text = text("switchover", 400).expect("it is valid");
        assert!(
            text.contains(
                "520 statements/s, 6 held connections, 10 new connections/s (up to 520/s while it \
                 refuses)"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_wrong_file_is_told_with_lines() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "name = \"x\"\nbackand = 1\n").expect("written");
        let problem = text(&file.path().to_string_lossy(), 80).expect_err("it is wrong");
        assert_eq!(problem.code, crate::error::exit::USAGE);
        assert!(
            problem.what.contains("line 2: unknown key `backand`"),
            "{}",
            problem.what
        );
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let problem = text("switchovr", 80).expect_err("it does not exist");
        assert!(problem.to_string().contains("baseline, switchover, killed"));
    }
}
