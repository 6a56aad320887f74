//! What the page's script has to know in words: lanes, faults, names.

use gapscope_proto::fault::{Fault, FaultScope, Span};
use serde_json::{Value as Json, json};

use super::Page;
use super::cell::{CAUSES, LOG_STEPS};
use super::figures::lane_name;
use crate::analyse::run::{PROXY_VIEW, is_note};
use crate::report::figures::{after, seconds};
use crate::report::model::fault_name;

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
        })
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
            "is_lasting": fault.scope == FaultScope::Backend && fault.step != "drain",
        }))
    }
}
