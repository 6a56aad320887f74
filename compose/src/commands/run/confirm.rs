//! Before anything is done: what would be done to whom, and whether that is meant.

use std::fmt::Write as _;
use std::io::{BufRead, IsTerminal};

use super::super::check::{load_text, steps_text};
use super::choose::Chosen;
use crate::cli::Run;
use crate::duration;
use crate::error::{Problem, Result};
use crate::output;
use crate::runtime::external::TIMER_BEYOND_S;
use crate::scenario::{Action, RuntimeKind};

/// What would be done, for people.
pub(super) fn plan(chosen: &Chosen) -> String {
    let scenario = &chosen.scenario;
    let mut out = format!(
        "{}, {}, runtime {}\n",
        scenario.name,
        duration::text(scenario.duration_ns),
        chosen.runtime
    );
    let mut put = |line: String| writeln!(out, "  {line}").expect("a String takes everything");
    put(format!("load on {}", load_text(scenario)));
    let mut victims: Vec<&str> = Vec::new();
    for step in &scenario.timeline {
        if !victims.contains(&step.subject.as_str()) {
            victims.push(&step.subject);
        }
    }
    let whose = if scenario.external.is_some() {
        "not the lab's: they are there already"
    } else {
        "the lab's own, started for this run and gone after it"
    };
    put(if victims.is_empty() {
        "nothing is done to anybody".to_owned()
    } else {
        format!("victims: {} ({whose})", victims.join(", "))
    });
    for text in steps_text(scenario) {
        put(format!("step: {text}"));
    }
    let Some(external) = &scenario.external else {
        return out;
    };
    for step in &scenario.timeline {
        let Some(place) = external.place(&step.subject) else {
            continue;
        };
        let first = match step.action {
            Action::Restart => Action::Stop,
            action => action,
        };
        for action in [Some(first), step.action.undone_by()].into_iter().flatten() {
            if let Some(words) = place.command(action) {
                put(format!(
                    "{action} of {} at {} runs: {}",
                    place.name,
                    place.address,
                    words.join(" ")
                ));
            }
        }
    }
    if !scenario.timeline.is_empty() {
        put(format!(
            "a timer of its own undoes each step if this program dies, or {TIMER_BEYOND_S} s after \
             the run at the latest"
        ));
    }
    out
}

/// Asks, where what is not the lab's is to be done things to. Errs if it is not meant.
pub(super) fn confirm(chosen: &Chosen, options: &Run) -> Result<()> {
    if chosen.runtime != RuntimeKind::External || chosen.scenario.timeline.is_empty() {
        return Ok(());
    }
    output::say(&plan(chosen));
    if options.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Problem::usage(
            "this is done to servers that the lab did not start, and nobody is there to be asked",
        )
        .hint("--yes says that it is meant; --dry-run only shows it"));
    }
    output::say("Type yes to go on:");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    if read.is_ok() && line.trim() == "yes" {
        Ok(())
    } else {
        Err(Problem::new("not confirmed: nothing was done"))
    }
}
