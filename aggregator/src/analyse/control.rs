//! The prober's own trouble, from what each agent probed beside its targets: its
//! own loopback, and a control that no fault touches.
//!
//! A loopback probe that took longer than the deadline means that the prober's
//! host could not have seen a good answer in time either: such a stretch holds no
//! data, as one in which the ticker slept. Trouble of the control is a caveat: it
//! says that the network, that server or the prober was in trouble too, and in
//! which faults' horizons, but it cannot say which.

use std::collections::BTreeMap;

use polars::prelude::*;

use super::caveat::Caveat;
use super::load::{LoadError, Pauses, words};
use crate::store::reader::RunFolder;
use crate::store::schema::{host, samples};

/// One record of trouble.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Begin and end, on the agent's clock.
    pub from_ns: i64,
    /// See above.
    pub until_ns: i64,
    /// Whether it was not answered well, or only late.
    pub bad: bool,
    /// How long it took.
    pub took_ns: u64,
    /// How it ended.
    pub error: String,
}

/// What is known of one control of one start of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Control {
    /// Probes in all.
    pub probes: u64,
    /// Bad ones, and ones past the deadline, in order.
    pub troubles: Vec<Trouble>,
}

/// By agent, start and name; the loopback's name is empty.
pub type Controls = BTreeMap<(String, String), BTreeMap<String, Control>>;

/// Reads what the agents probed beside their targets.
///
/// # Errors
/// When the table cannot be read.
pub fn controls(folder: &RunFolder, deadline_ns: i64) -> Result<Controls, LoadError> {
    let table = folder
        .control()?
        .sort([host::AT_NS], SortMultipleOptions::default())
        .collect()?;
    let agents = words(&table, samples::AGENT_ID, str::to_owned)?;
    let incarnations = words(&table, samples::INCARNATION, str::to_owned)?;
    let names = words(&table, host::CONTROL, str::to_owned)?;
    let errors = words(&table, host::ERROR, str::to_owned)?;
    let at = table.column(host::AT_NS)?.i64()?;
    let until = table.column(host::UNTIL_NS)?.i64()?;
    let probes = table.column(host::PROBES)?.u32()?;
    let bad = table.column(host::BAD)?.u32()?;
    let took = table.column(host::TOOK_MAX_NS)?.u64()?;
    let deadline = u64::try_from(deadline_ns).unwrap_or(0);
    let mut all = Controls::new();
    for i in 0..table.height() {
        let (Some(agent), Some(incarnation), Some(from_ns), Some(until_ns), Some(took_ns)) = (
            agents[i].clone(),
            incarnations[i].clone(),
            at.get(i),
            until.get(i),
            took.get(i),
        ) else {
            continue;
        };
        let control = all
            .entry((agent, incarnation))
            .or_default()
            .entry(names[i].clone().unwrap_or_default())
            .or_default();
        control.probes += u64::from(probes.get(i).unwrap_or(0));
        let bad = bad.get(i).unwrap_or(0) > 0;
        if bad || took_ns > deadline {
            control.troubles.push(Trouble {
                from_ns,
                until_ns,
                bad,
                took_ns,
                error: errors[i].clone().unwrap_or_default(),
            });
        }
    }
    Ok(all)
}

/// Adds the stretches in which a loopback probe was past the deadline.
pub fn add_pauses(pauses: &mut Pauses, controls: &Controls) {
    for (start, by_name) in controls {
        let Some(loopback) = by_name.get("") else {
            continue;
        };
        if loopback.troubles.is_empty() {
            continue;
        }
        pauses.entry(start.clone()).or_default().extend(
            loopback
                .troubles
                .iter()
                .map(|trouble| (trouble.from_ns, trouble.until_ns)),
        );
    }
}

/// What has to be said of one start of an agent. `faults`: number and horizon,
/// on the agent's clock.
pub fn caveats(
    agent: &str,
    origin_ns: i64,
    by_name: &BTreeMap<String, Control>,
    faults: &[(u32, i64, i64)],
) -> Vec<Caveat> {
    let mut out = Vec::new();
    for (name, control) in by_name {
        let troubles = &control.troubles;
        let (Some(first), Some(worst)) = (
            troubles.first(),
            troubles.iter().max_by_key(|trouble| trouble.took_ns),
        ) else {
            continue;
        };
        let second = |ns: i64| (ns - origin_ns) as f64 / 1e9;
        let when = format!(
            "the first at {:+.3} s, the worst took {:.3} s",
            second(first.from_ns),
            worst.took_ns as f64 / 1e9
        );
        if name.is_empty() {
            out.push(Caveat::run(
                "prober_trouble",
                format!(
                    "agent {agent}: {} of {} probes of its own loopback were bad or past the \
                     deadline ({when}): its own host was in trouble, and what falls into these \
                     stretches is no data",
                    troubles.len(),
                    control.probes
                ),
            ));
            continue;
        }
        let hit: Vec<String> = faults
            .iter()
            .filter(|(_, from, to)| {
                troubles
                    .iter()
                    .any(|trouble| trouble.until_ns >= *from && trouble.from_ns < *to)
            })
            .map(|(id, _, _)| id.to_string())
            .collect();
        let bad = troubles.iter().filter(|trouble| trouble.bad).count();
        let error = troubles
            .iter()
            .find(|trouble| !trouble.error.is_empty())
            .map(|trouble| format!("; `{}`", trouble.error))
            .unwrap_or_default();
        out.push(Caveat::run(
            "control_trouble",
            format!(
                "agent {agent}: the control {name} was bad {bad} times and past the deadline {} \
                 times in {} probes ({when}{error}){}: the network, that server or the prober was \
                 in trouble too, so what targets went through then is not the proxy's alone",
                troubles.len() - bad,
                control.probes,
                if hit.is_empty() {
                    ", outside every fault".to_owned()
                } else {
                    format!(", within fault {}", hit.join(", "))
                }
            ),
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    fn control(troubles: &[(i64, i64, bool)]) -> Control {
        Control {
            probes: 100,
            troubles: troubles
                .iter()
                .map(|&(from_ns, until_ns, bad)| Trouble {
                    from_ns,
                    until_ns,
                    bad,
                    took_ns: u64::try_from(until_ns - from_ns).expect("forward"),
                    error: if bad { "refused".into() } else { String::new() },
                })
                .collect(),
        }
    }

    #[test]
    fn a_quiet_control_says_nothing_and_a_troubled_one_says_when() {
        let by_name = BTreeMap::from([
            (String::new(), control(&[])),
            ("db-2".to_owned(), control(&[])),
        ]);
        assert_eq!(caveats("a", 0, &by_name, &[(1, 0, 9 * S)]), []);
        let by_name = BTreeMap::from([
            (String::new(), control(&[(12 * S, 13 * S, false)])),
            (
                "db-2".to_owned(),
                control(&[(15 * S, 16 * S, true), (21 * S, 22 * S, false)]),
            ),
        ]);
        let faults = [(1, 10 * S, 20 * S), (2, 30 * S, 40 * S)];
        let said = caveats("a", 10 * S, &by_name, &faults);
        assert_eq!(said.len(), 2);
        assert!(said[0].text.contains("own loopback"), "{}", said[0].text);
        assert!(said[0].text.contains("+2.000 s"), "{}", said[0].text);
        let text = &said[1].text;
        assert!(
            text.contains("within fault 1:") && text.contains("bad 1 times"),
            "{text}"
        );
        let outside = caveats("a", 10 * S, &by_name, &faults[1..]);
        assert!(outside[1].text.contains("outside every fault"));
    }

    #[test]
    fn the_loopbacks_trouble_is_no_data_and_the_controls_is_not() {
        let start = ("a".to_owned(), "1".to_owned());
        let controls = Controls::from([(
            start.clone(),
            BTreeMap::from([
                (String::new(), control(&[(S, 2 * S, false)])),
                ("db-2".to_owned(), control(&[(5 * S, 6 * S, true)])),
            ]),
        )]);
        let mut pauses = Pauses::new();
        add_pauses(&mut pauses, &controls);
        assert_eq!(pauses.get(&start), Some(&vec![(S, 2 * S)]));
    }
}
