//! Who went where in a fault: from the backend before, by what became of the
//! client, to the backend after. Counted while the histories are there, drawn and
//! told afterwards.

use std::collections::BTreeMap;

use gapscope_proto::ids::TargetName;
use gapscope_proto::sample::Outcome;

use crate::analyse::fate::Fate;
use crate::analyse::repeat;
use crate::analyse::row::Row;
use crate::analyse::run::Analysis;
use crate::analyse::series::ClientSeries;
use crate::report::plot::svg::{Anchor, Svg};
use crate::report::table::{Table, cut};

/// Who went where in a fault: backend before, fate, backend after.
pub type Flow = BTreeMap<(Option<u32>, Fate, Option<u32>), u64>;

/// By target and fault.
pub type Flows = BTreeMap<(TargetName, u32), Flow>;

/// Adds a row's clients.
pub(super) fn add(flows: &mut Flows, clients: &[ClientSeries], row: &Row) {
    for fault in &row.faults {
        let flow = flows.entry((row.target.clone(), fault.fault)).or_default();
        for client in clients {
            let Some((_, seen)) = fault.clients.iter().find(|(n, _)| *n == client.key.client)
            else {
                continue;
            };
            let answers = || {
                let ok = client.probes.iter().filter(|p| p.outcome == Outcome::Ok);
                ok.rev()
            };
            let before = answers()
                .find(|p| p.finished <= fault.asked.earliest_ns)
                .and_then(|p| p.backend);
            let after = if seen.fate == Fate::Lost {
                None
            } else {
                answers()
                    .find(|p| p.finished <= fault.watched_until_ns)
                    .filter(|p| p.finished > fault.asked.earliest_ns)
                    .and_then(|p| p.backend)
            };
            *flow.entry((before, seen.fate, after)).or_insert(0) += 1;
        }
    }
}

/// A target's flows, each with what was done: repetitions of a fault together, the
/// others one by one, in order of their first.
pub fn of_target(analysis: &Analysis, flows: &Flows, target: &str) -> Vec<(String, Flow)> {
    let groups = repeat::groups(&analysis.faults, |id| analysis.judged.contains(&id));
    let mut found: Vec<(u32, String, Flow)> = Vec::new();
    for ((_, fault), flow) in flows
        .iter()
        .filter(|((name, _), flow)| name.as_str() == target && !flow.is_empty())
    {
        let group = groups.iter().find(|group| group.faults.contains(fault));
        let first = group
            .and_then(|group| group.faults.first())
            .unwrap_or(fault);
        let at = match found.iter().position(|(known, ..)| known == first) {
            Some(at) => at,
            None => {
                let what = match group {
                    None => format!("fault {fault}"),
                    Some(group) => format!(
                        "{} {}, {} times together",
                        group.step,
                        group.subject,
                        group.faults.len()
                    ),
                };
                found.push((*first, what, Flow::new()));
                found.len() - 1
            }
        };
        for (edge, n) in flow {
            *found[at].2.entry(*edge).or_insert(0) += n;
        }
    }
    found
        .into_iter()
        .map(|(_, what, flow)| (what, flow))
        .collect()
}

/// Backend before, fate, backend after, how many.
type Edge = (String, Fate, String, u64);

/// What became of clients, from the backend before to the backend after.
/// `what` names the fault, or the faults.
pub fn figure(analysis: &Analysis, target: &str, what: &str, flow: &Flow) -> Svg {
    const WIDTH: f64 = 900.0;
    let backend = |number: &Option<u32>, none: &str| {
        number.map_or(none.to_owned(), |n| analysis.names.word(n).to_owned())
    };
    let edges: Vec<Edge> = flow
        .iter()
        .map(|((before, fate, after), n)| {
            (
                backend(before, "no answer before"),
                *fate,
                backend(after, "nobody"),
                *n,
            )
        })
        .collect();
    let total: u64 = edges.iter().map(|e| e.3).sum();
    let names = |pick: fn(&Edge) -> String| {
        let mut found: Vec<(String, u64)> = Vec::new();
        for edge in &edges {
            let name = pick(edge);
            match found.iter_mut().find(|(known, _)| *known == name) {
                Some((_, n)) => *n += edge.3,
                None => found.push((name, edge.3)),
            }
        }
        found
    };
    let columns = [
        names(|e| e.0.clone()),
        names(|e| e.1.as_str().to_owned()),
        names(|e| e.2.clone()),
    ];
    let most = columns.iter().map(Vec::len).max().unwrap_or(1);
    let (top, gap, thick) = (48.0, 12.0, 12.0);
    let room = (30.0 * most as f64).max(110.0);
    let unit = room / total.max(1) as f64;
    let height = top + room + gap * most as f64 + 12.0;
    let title = format!("{target}, {what}: who went where ({total} clients)");
    let mut svg = Svg::new(WIDTH, height, &title);
    svg.text((8.0, 15.0), Anchor::Start, "strong", &title);
    let xs = [170.0, WIDTH / 2.0 - thick / 2.0, WIDTH - 170.0 - thick];
    for (x, head) in xs.iter().zip([
        "served by, before",
        "what became of them",
        "served by, after",
    ]) {
        svg.text((x + thick / 2.0, 36.0), Anchor::Middle, "", head);
    }
    // Where the next ribbon of a node leaves or arrives.
    let place = |column: &[(String, u64)], name: &str| {
        let mut y = top;
        for (known, n) in column {
            if known == name {
                return y;
            }
            y += *n as f64 * unit + gap;
        }
        y
    };
    let mut used: std::collections::BTreeMap<(usize, String, bool), f64> =
        std::collections::BTreeMap::new();
    let mut take = |column: usize, name: &str, leaves: bool, n: u64| {
        let offset = used.entry((column, name.to_owned(), leaves)).or_insert(0.0);
        let begin = place(&columns[column], name) + *offset;
        *offset += n as f64 * unit;
        (begin, begin + n as f64 * unit)
    };
    let tone = |fate: Fate| if fate.is_seamless() { "" } else { " bad" };
    for (before, fate, after, n) in &edges {
        let word = fate.as_str();
        let tip = format!("{n} of {total}: {before}, {word}, {after}");
        let class = format!("flow{}", tone(*fate));
        for (from, to, a, b) in [(0, 1, &**before, word), (1, 2, word, &**after)] {
            let (a_top, a_bottom) = take(from, a, true, *n);
            let (b_top, b_bottom) = take(to, b, false, *n);
            svg.ribbon(
                (xs[from] + thick, a_top, a_bottom),
                (xs[to], b_top, b_bottom),
                &class,
                &tip,
            );
        }
    }
    for (number, column) in columns.iter().enumerate() {
        let mut y = top;
        for (name, n) in column {
            let is_bad = number == 1
                && edges
                    .iter()
                    .any(|e| e.1.as_str() == name && !e.1.is_seamless());
            let class = match (number, is_bad) {
                (1, true) => "node bad",
                (1, false) => "node",
                _ => "node plain",
            };
            let tall = *n as f64 * unit;
            svg.rect(
                (xs[number], y),
                (thick, tall),
                class,
                &format!("{name}: {n}"),
            );
            let label = format!("{} ({n})", cut(name, 26));
            let middle = y + tall / 2.0 + 4.0;
            match number {
                0 => svg.text((xs[0] - 6.0, middle), Anchor::End, "", &label),
                1 => svg.text(
                    (xs[1] + thick + 6.0, middle),
                    Anchor::Start,
                    "strong",
                    &label,
                ),
                _ => svg.text((xs[2] + thick + 6.0, middle), Anchor::Start, "", &label),
            }
            y += tall + gap;
        }
    }
    svg
}

/// The same as a table.
pub fn table(analysis: &Analysis, flow: &Flow) -> Table {
    let mut table = Table::new(
        "Who went where",
        3,
        &[
            "served by, before",
            "what became of them",
            "served by, after",
            ">clients",
        ],
    );
    let backend = |number: &Option<u32>, none: &str| {
        number.map_or(none.to_owned(), |n| analysis.names.word(n).to_owned())
    };
    for ((before, fate, after), n) in flow {
        table.rows.push(vec![
            backend(before, "no answer before"),
            fate.as_str().to_owned(),
            backend(after, "nobody"),
            n.to_string(),
        ]);
    }
    table
}
