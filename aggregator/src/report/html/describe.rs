//! What the page's script has to know in words: lanes, faults, names.

use gapscope_proto::fault::{Fault, FaultScope, Span};
use serde_json::{Value as Json, json};

use super::Page;
use super::cell::{CAUSES, LOG_STEPS};
use super::figures::lane_name;
use crate::analyse::run::{PROXY_VIEW, RESET, is_note};
use crate::report::figures::{after, seconds};
use crate::report::model::fault_name;

/// For how long a proxy held a backend for what.
struct Stretch {
    from_ns: i64,
    to_ns: i64,
    state: String,
    check: String,
}

/// What a proxy's note says.
#[derive(Debug, PartialEq, Eq)]
struct Belief<'a> {
    backend: &'a str,
    state: &'a str,
    check: &'a str,
    before: &'a str,
}

/// From the note's text: "haproxy holds backend-1 for DOWN (L4CON), before for UP".
fn belief(text: &str) -> Option<Belief<'_>> {
    let (_, rest) = text.split_once(" holds ")?;
    let (backend, rest) = rest.split_once(" for ")?;
    let (now, before) = rest.rsplit_once(", before for ")?;
    let (state, check) = match now.split_once(" (") {
        Some((state, check)) => (state, check.strip_suffix(')').unwrap_or(check)),
        None => (now, ""),
    };
    Some(Belief {
        backend,
        state,
        check,
        before,
    })
}

impl Page<'_> {
    /// See `readData` in `data.js`.
    pub(super) fn run_json(&self) -> Json {
        let names = &self.analysis.names;
        let lanes: Vec<Json> = self
            .lanes
            .iter()
            .map(|(row, lane)| {
                let name = lane_name(self.gathered, row);
                json!({
                    "target": lane.target.as_str(),
                    "name": name,
                    "label": format!("{}, {name}", lane.target),
                    "clients": lane.clients,
                    "interval_ns": lane.interval_ns,
                    "strips": lane.strips,
                    "singles": lane.singles.len(),
                    "bound_ns": lane.bound_ns,
                })
            })
            .collect();
        let faults: Vec<Json> = self
            .analysis
            .faults
            .iter()
            .filter(|fault| !is_note(fault))
            .filter_map(|fault| self.fault_json(fault))
            .collect();
        // What a proxy believes of its backends, by target.
        let views: Vec<Json> = self
            .analysis
            .faults
            .iter()
            .filter(|fault| is_note(fault) && fault.step == PROXY_VIEW)
            .filter_map(|fault| {
                let clocks = &self.analysis.clocks;
                let at = clocks.on_timeline(fault.asked.latest_ns, &fault.clock)?;
                Some(json!({
                    "target": fault.subject,
                    "ns": at.latest_ns.saturating_sub(self.gathered.zero_ns),
                    "text": fault.detail,
                }))
            })
            .collect();
        let beliefs = self.beliefs_json();
        // Between repetitions all connections are cut: nobody's fault.
        let resets: Vec<i64> = self
            .analysis
            .faults
            .iter()
            .filter(|fault| is_note(fault) && fault.step == RESET)
            .filter_map(|fault| {
                let clocks = &self.analysis.clocks;
                let at = clocks.on_timeline(fault.asked.earliest_ns, &fault.clock)?;
                Some(at.earliest_ns.saturating_sub(self.gathered.zero_ns))
            })
            .collect();
        let backends: Vec<&str> = self
            .gathered
            .backends
            .iter()
            .map(|number| names.word(*number))
            .collect();
        let errors: Vec<String> = self
            .gathered
            .errors
            .iter()
            .map(|said| {
                let mut words = said.outcome.to_string();
                if let Some(cause) = said.cause {
                    words.push_str(&format!(", {cause}"));
                }
                if let Some(code) = said.code {
                    words.push_str(&format!(", error {code}"));
                }
                words.push_str(&format!(", in phase {}", said.phase));
                if let Some(text) = said.text {
                    words.push_str(&format!(": {}", names.word(text)));
                }
                words
            })
            .collect();
        json!({
            "span_ns": self.gathered.span_ns,
            "columns": self.gathered.columns,
            "log_steps": LOG_STEPS,
            "causes": CAUSES,
            "backends": backends,
            "errors": errors,
            "lanes": lanes,
            "faults": faults,
            "views": views,
            "beliefs": beliefs,
            "resets": resets,
        })
    }

    /// What each proxy held each backend for, as stretches, as far as it changed its
    /// mind: before the first change for what it says it was before.
    fn beliefs_json(&self) -> Vec<Json> {
        let mut found: Vec<(String, String, Vec<Stretch>)> = Vec::new();
        let notes = self
            .analysis
            .faults
            .iter()
            .filter(|fault| is_note(fault) && fault.step == PROXY_VIEW);
        for note in notes {
            let clocks = &self.analysis.clocks;
            let (Some(seen), Some(told)) = (
                clocks.on_timeline(note.asked.latest_ns, &note.clock),
                belief(&note.detail),
            ) else {
                continue;
            };
            let at = seen.latest_ns.saturating_sub(self.gathered.zero_ns);
            let known = found
                .iter_mut()
                .find(|(target, backend, _)| *target == note.subject && *backend == told.backend);
            let stretches = match known {
                Some((_, _, stretches)) => stretches,
                None => {
                    found.push((note.subject.clone(), told.backend.to_owned(), Vec::new()));
                    &mut found.last_mut().expect("just pushed").2
                }
            };
            match stretches.last_mut() {
                Some(last) => last.to_ns = at,
                None => stretches.push(Stretch {
                    from_ns: 0,
                    to_ns: at,
                    state: told.before.to_owned(),
                    check: String::new(),
                }),
            }
            stretches.push(Stretch {
                from_ns: at,
                to_ns: self.gathered.span_ns,
                state: told.state.to_owned(),
                check: told.check.to_owned(),
            });
        }
        found
            .into_iter()
            .map(|(target, backend, stretches)| {
                let stretches: Vec<Json> = stretches
                    .iter()
                    .map(|s| {
                        json!({
                            "from": s.from_ns,
                            "to": s.to_ns,
                            "state": s.state,
                            "check": s.check,
                            "is_up": s.state.starts_with("UP"),
                        })
                    })
                    .collect();
                json!({"target": target, "backend": backend, "stretches": stretches})
            })
            .collect()
    }

    /// A fault on the timeline; none if nothing relates its clock.
    fn fault_json(&self, fault: &Fault) -> Option<Json> {
        let place = |span: Span| {
            let clocks = &self.analysis.clocks;
            let from = clocks.on_timeline(span.earliest_ns, &fault.clock)?;
            let to = clocks.on_timeline(span.latest_ns, &fault.clock)?;
            let zero = self.gathered.zero_ns;
            Some([
                from.earliest_ns.saturating_sub(zero),
                to.latest_ns.saturating_sub(zero),
            ])
        };
        let asked = place(fault.asked)?;
        // Whoever starts the subject again undoes what was done to it.
        let undone = self
            .analysis
            .faults
            .iter()
            .filter(|other| other.scope == FaultScope::Failback && other.subject == fault.subject)
            .filter_map(|other| place(other.asked))
            .map(|[from, _]| from)
            .filter(|from| *from > asked[0])
            .min();
        let seen = |span: Option<Span>| span.and_then(place);
        // Until when something came of it: the last hurt client is back.
        let settled = self
            .analysis
            .rows
            .iter()
            .flat_map(|(timeline, row)| row.faults.iter().map(move |f| (*timeline, f)))
            .filter(|(_, f)| f.fault == fault.id)
            .filter_map(|(timeline, f)| {
                let clock = &self.analysis.timelines[timeline].clock;
                let back = self.analysis.clocks.on_timeline(f.all_back?, clock)?;
                Some(back.latest_ns.saturating_sub(self.gathered.zero_ns))
            })
            .max()
            .unwrap_or(asked[1]);
        let witnessed: Vec<String> = [
            ("listener refused", fault.listener_refused),
            ("held connection cut", fault.held_cut),
            ("gone", fault.gone),
            ("cleared", fault.cleared),
        ]
        .into_iter()
        .filter_map(|(word, span)| {
            let [from, to] = seen(span)?;
            Some(format!(
                "{word} {}",
                after(from.saturating_sub(asked[1]), to.saturating_sub(asked[0]))
            ))
        })
        .collect();
        let name = fault_name(fault);
        let words = format!(
            "fault {}: {name}, asked for at {}{}{}",
            fault.id,
            seconds(asked[0]),
            if witnessed.is_empty() { "" } else { "; " },
            witnessed.join(", ")
        );
        Some(json!({
            "id": fault.id,
            "name": format!("{} {name}", fault.id),
            "words": words,
            "asked": asked,
            "refused": seen(fault.listener_refused),
            "cut": seen(fault.held_cut),
            "gone": seen(fault.gone),
            "cleared": seen(fault.cleared),
            "settled_ns": settled,
            "undone": undone,
            "is_lasting": fault.scope == FaultScope::Backend && fault.step != "drain",
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_a_proxy_is_read() {
        let found = belief("haproxy holds db-1 for DOWN (L4CON (refused)), before for UP 1/2");
        assert_eq!(
            found,
            Some(Belief {
                backend: "db-1",
                state: "DOWN",
                check: "L4CON (refused)",
                before: "UP 1/2",
            })
        );
        let found = belief("haproxy holds db-1 for UP, before for DOWN").expect("read");
        assert_eq!((found.state, found.check), ("UP", ""));
        assert_eq!(belief("something else"), None);
    }
}
