//! One target as several agents saw it, on the run's timeline.
//!
//! Every moment of an agent becomes an interval of the timeline. Outer parts of
//! outages are widened by it and inner parts narrowed, so what is said of
//! "somebody hurt" and "nobody served" stays a guarantee. Two agents' moments are
//! in order only if their intervals are disjoint; else they are not
//! distinguishable.
//!
//! "First" is who began the first probe that went bad; how often each agent asks
//! is part of that.

use gapscope_proto::fault::Span;
use gapscope_proto::ids::{AgentId, TargetName};
use gapscope_proto::plan::ClientKind;
use gapscope_proto::sample::Style;

use super::merge::{self, Seen};
use super::row::{Row, Scope, Window};
use super::run::Timeline;
use crate::align::map::ClockMap;

/// What one agent saw of an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// Its clients were hurt.
    Hurt {
        /// Begin of its first bad probe, on the timeline.
        first_bad: Span,
        /// How many of its clients.
        clients: usize,
    },
    /// It was there all the time, and none of its clients was hurt.
    Served,
    /// It was not there all the time, or its clock is not related.
    NoData,
}

/// Who saw an outage first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum First {
    /// This agent, before all others that were hurt.
    Agent {
        /// Which.
        agent: AgentId,
        /// How much earlier than the next: at least, at most.
        lead_ns: (i64, i64),
    },
    /// Only one was hurt.
    Alone(AgentId),
    /// The bounds do not tell which of these.
    NotDistinguishable(Vec<AgentId>),
}

/// An outage on the timeline, over all agents' clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// Begin of the outer part; the number's limit where open.
    pub from_ns: i64,
    /// Its end; the number's limit where ongoing.
    pub to_ns: i64,
    /// Somebody was hurt: at least, at most.
    pub any_ns: (i64, Option<i64>),
    /// Nobody was served, of the agents with data: at least, at most.
    pub all_ns: (i64, Option<i64>),
    /// Not over at the end of the data.
    pub ongoing: bool,
    /// Part of it was not watched.
    pub no_data: bool,
    /// Each agent, in order.
    pub views: Vec<(AgentId, View)>,
    /// Who saw it first.
    pub first: First,
    /// The widest alignment error of a moment that went into it.
    pub bound_ns: i64,
}

impl Outage {
    /// Somebody was hurt at one agent while another was served throughout.
    pub fn is_partial(&self) -> bool {
        self.views.iter().any(|(_, view)| *view == View::Served)
    }
}

/// One target, style and kind of client as several agents saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Across {
    /// What was probed.
    pub target: TargetName,
    /// How.
    pub style: Style,
    /// By which kind of client.
    pub kind: ClientKind,
    /// How often each client asked; the rarest.
    pub interval_ns: i64,
    /// The outages, in order.
    pub outages: Vec<Outage>,
}

/// A client's outage on the timeline.
#[derive(Debug, Clone, Copy)]
struct Piece {
    inner: (i64, i64),
    outer: (i64, i64),
    no_data: bool,
    first_bad: Span,
    bound_ns: i64,
}

impl Seen for Piece {
    fn inner(&self) -> (i64, i64) {
        self.inner
    }

    fn outer(&self) -> (i64, i64) {
        self.outer
    }

    fn has_no_data(&self) -> bool {
        self.no_data
    }
}

/// One agent's part in it.
struct Side<'a> {
    agent: &'a AgentId,
    clients: Vec<Vec<Piece>>,
    /// When it was there, on the timeline: surely.
    watched: Vec<(i64, i64)>,
    /// Of each client, when nothing is known of it, on the timeline: at most.
    holes: Vec<Vec<(i64, i64)>>,
}

fn piece(window: &Window, timeline: &Timeline, clocks: &ClockMap) -> Option<Piece> {
    let place = |ns: i64| clocks.on_timeline(ns, &timeline.clock);
    let (first, last) = window.inner_ns?;
    let (out_first, out_last) = (place(first)?, place(last)?);
    let from = match window.from_ns {
        Some(ns) => place(ns)?.earliest_ns,
        None => i64::MIN,
    };
    let to = match window.to_ns {
        Some(ns) => place(ns)?.latest_ns,
        None => i64::MAX,
    };
    let first_bad = place(window.first_bad_ns?)?;
    let width = |span: Span| span.latest_ns.saturating_sub(span.earliest_ns);
    Some(Piece {
        inner: (out_first.latest_ns, out_last.earliest_ns),
        outer: (from, to),
        no_data: window.no_data,
        first_bad,
        bound_ns: width(first_bad).max(width(out_first)).max(width(out_last)) / 2,
    })
}

fn side<'a>(row: &'a Row, timeline: &Timeline, clocks: &ClockMap) -> Side<'a> {
    let mut clients: Vec<(u16, Vec<Piece>)> = Vec::new();
    let mut is_placed = true;
    for window in row.client_windows() {
        let Scope::Client(number) = window.scope else {
            continue;
        };
        let Some(piece) = piece(window, timeline, clocks) else {
            is_placed = false;
            continue;
        };
        match clients.iter_mut().find(|(known, _)| *known == number) {
            Some((_, pieces)) => pieces.push(piece),
            None => clients.push((number, vec![piece])),
        }
    }
    let mut clients: Vec<Vec<Piece>> = clients.into_iter().map(|(_, pieces)| pieces).collect();
    clients.resize(row.clients.max(clients.len()), Vec::new());
    let watched = timeline
        .watched
        .iter()
        .filter_map(|(from, to)| {
            let from = clocks.on_timeline(*from, &timeline.clock)?;
            let to = clocks.on_timeline(*to, &timeline.clock)?;
            Some((from.latest_ns, to.earliest_ns))
        })
        .collect();
    let holes = row
        .holes
        .iter()
        .map(|holes| {
            holes
                .iter()
                .map(|(from, to)| {
                    let from = clocks.on_timeline(*from, &timeline.clock);
                    let to = clocks.on_timeline(*to, &timeline.clock);
                    (
                        from.map_or(i64::MIN, |span| span.earliest_ns),
                        to.map_or(i64::MAX, |span| span.latest_ns),
                    )
                })
                .collect()
        })
        .collect();
    Side {
        agent: &row.agent,
        clients,
        holes,
        watched: if is_placed { watched } else { Vec::new() },
    }
}

impl Side<'_> {
    /// Its pieces within an outage.
    fn within(&self, from: i64, to: i64) -> impl Iterator<Item = (usize, &Piece)> {
        self.clients
            .iter()
            .enumerate()
            .flat_map(|(client, pieces)| pieces.iter().map(move |p| (client, p)))
            .filter(move |(_, p)| p.outer.0 <= to && from <= p.outer.1)
    }

    /// The clients of which something is known throughout, or that were hurt.
    fn known(&self, from: i64, to: i64) -> Vec<Vec<Piece>> {
        self.clients
            .iter()
            .enumerate()
            .filter(|(client, pieces)| {
                pieces.iter().any(|p| p.outer.0 <= to && from <= p.outer.1)
                    || !self.has_hole(*client, from, to)
            })
            .map(|(_, pieces)| pieces.clone())
            .collect()
    }

    fn has_hole(&self, client: usize, from: i64, to: i64) -> bool {
        self.holes
            .get(client)
            .is_some_and(|holes| holes.iter().any(|hole| hole.0 <= to && from <= hole.1))
    }

    /// The agent was there, and something is known of one of its clients
    /// throughout.
    fn is_watched(&self, from: i64, to: i64) -> bool {
        self.watched.iter().any(|w| w.0 <= from && to <= w.1)
            && (0..self.clients.len()).any(|client| !self.has_hole(client, from, to))
    }

    fn view(&self, from: i64, to: i64) -> View {
        let mut hurt: Option<(Span, Vec<usize>)> = None;
        for (client, piece) in self.within(from, to) {
            let (first, clients) = hurt.get_or_insert((piece.first_bad, Vec::new()));
            if piece.first_bad.earliest_ns < first.earliest_ns {
                *first = piece.first_bad;
            }
            if !clients.contains(&client) {
                clients.push(client);
            }
        }
        match hurt {
            Some((first_bad, clients)) => View::Hurt {
                first_bad,
                clients: clients.len(),
            },
            None if self.is_watched(from, to) => View::Served,
            None => View::NoData,
        }
    }
}

/// Who of these began the first bad probe, if the bounds tell.
fn first(hurt: &[(AgentId, Span)]) -> First {
    let Some(sure) = hurt.iter().map(|(_, span)| span.latest_ns).min() else {
        return First::NotDistinguishable(Vec::new());
    };
    let candidates: Vec<&(AgentId, Span)> = hurt
        .iter()
        .filter(|(_, span)| span.earliest_ns <= sure)
        .collect();
    let [(agent, span)] = candidates.as_slice() else {
        return First::NotDistinguishable(candidates.iter().map(|(a, _)| a.clone()).collect());
    };
    let others = || hurt.iter().filter(|(a, _)| a != agent).map(|(_, s)| s);
    match (
        others().map(|s| s.earliest_ns).min(),
        others().map(|s| s.latest_ns).min(),
    ) {
        (Some(next), Some(next_at_most)) => First::Agent {
            agent: agent.clone(),
            lead_ns: (
                next.saturating_sub(span.latest_ns),
                next_at_most.saturating_sub(span.earliest_ns),
            ),
        },
        _ => First::Alone(agent.clone()),
    }
}

fn outages(sides: &[Side<'_>]) -> Vec<Outage> {
    let everybody: Vec<Vec<Piece>> = sides.iter().flat_map(|s| s.clients.clone()).collect();
    merge::any(&everybody, &[])
        .iter()
        .map(|any| {
            let (from, to) = (any.from_ns, any.to_ns);
            let views: Vec<(AgentId, View)> = sides
                .iter()
                .map(|side| (side.agent.clone(), side.view(from, to)))
                .collect();
            let mut hurt: Vec<(AgentId, Span)> = Vec::new();
            for (agent, view) in &views {
                let View::Hurt { first_bad, .. } = view else {
                    continue;
                };
                // An agent may have a row for each of several intervals.
                match hurt.iter_mut().find(|(known, _)| known == agent) {
                    Some((_, first)) if first_bad.earliest_ns < first.earliest_ns => {
                        *first = *first_bad;
                    }
                    Some(_) => {}
                    None => hurt.push((agent.clone(), *first_bad)),
                }
            }
            let with_data: Vec<Vec<Piece>> = sides
                .iter()
                .zip(&views)
                .filter(|(_, (_, view))| *view != View::NoData)
                .flat_map(|(side, _)| side.known(from, to))
                .collect();
            let all: Vec<_> = merge::all(&with_data, &[])
                .into_iter()
                .filter(|all| all.from_ns <= to && from <= all.to_ns)
                .collect();
            let all_lower = all.iter().map(|a| a.lower_ns).fold(0, i64::saturating_add);
            let all_upper = all
                .iter()
                .try_fold(0i64, |sum, a| Some(sum.saturating_add(a.upper_ns?)));
            Outage {
                from_ns: from,
                to_ns: to,
                any_ns: (any.lower_ns, any.upper_ns),
                all_ns: (all_lower, all_upper),
                ongoing: any.ongoing,
                no_data: any.no_data || views.iter().any(|(_, v)| *v == View::NoData),
                first: first(&hurt),
                bound_ns: sides
                    .iter()
                    .flat_map(|s| s.within(from, to))
                    .map(|(_, p)| p.bound_ns)
                    .max()
                    .unwrap_or(0),
                views,
            }
        })
        .collect()
}

/// Every target, style and kind that more than one agent probed.
pub fn across(rows: &[(usize, Row)], timelines: &[Timeline], clocks: &ClockMap) -> Vec<Across> {
    let mut found: Vec<Across> = Vec::new();
    for (_, row) in rows {
        let is_known = found
            .iter()
            .any(|a| a.target == row.target && a.style == row.style && a.kind == row.kind);
        // An idle client speaks of its own connection.
        if is_known || row.kind == ClientKind::Idle {
            continue;
        }
        let same: Vec<&(usize, Row)> = rows
            .iter()
            .filter(|(_, r)| r.target == row.target && r.style == row.style && r.kind == row.kind)
            .collect();
        if same.iter().all(|(_, r)| r.agent == row.agent) {
            continue;
        }
        let sides: Vec<Side<'_>> = same
            .iter()
            .map(|(timeline, row)| side(row, &timelines[*timeline], clocks))
            .collect();
        found.push(Across {
            target: row.target.clone(),
            style: row.style,
            kind: row.kind,
            interval_ns: same.iter().map(|(_, r)| r.interval_ns).max().unwrap_or(0),
            outages: outages(&sides),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(name: &str) -> AgentId {
        name.parse().expect("a valid id")
    }

    fn span(earliest_ns: i64, latest_ns: i64) -> Span {
        Span {
            earliest_ns,
            latest_ns,
        }
    }

    fn seen(outer: (i64, i64), inner: (i64, i64), bound: i64) -> Piece {
        Piece {
            inner,
            outer,
            no_data: false,
            first_bad: span(inner.0 - 5 - bound, inner.0 - 5 + bound),
            bound_ns: bound,
        }
    }

    #[test]
    fn only_disjoint_intervals_are_in_order() {
        let (a, b, c) = (agent("a"), agent("b"), agent("c"));
        assert_eq!(
            first(&[(a.clone(), span(10, 20)), (b.clone(), span(21, 30))]),
            First::Agent {
                agent: a.clone(),
                lead_ns: (1, 20)
            }
        );
        assert_eq!(
            first(&[
                (a.clone(), span(10, 20)),
                (b.clone(), span(20, 30)),
                (c, span(40, 50))
            ]),
            First::NotDistinguishable(vec![a.clone(), b])
        );
        assert_eq!(first(&[(a.clone(), span(10, 20))]), First::Alone(a));
    }

    #[test]
    fn an_outage_seen_from_one_side_only_is_partial() {
        let (a, b, c) = (agent("a"), agent("b"), agent("c"));
        let sides = [
            Side {
                agent: &a,
                clients: vec![vec![seen((100, 200), (120, 180), 3)], vec![]],
                watched: vec![(0, 1_000)],
                holes: vec![Vec::new(); 2],
            },
            Side {
                agent: &b,
                clients: vec![vec![]],
                watched: vec![(0, 1_000)],
                holes: vec![Vec::new(); 2],
            },
            Side {
                agent: &c,
                clients: vec![vec![]],
                watched: vec![(150, 1_000)],
                holes: vec![Vec::new()],
            },
        ];
        let found = outages(&sides);
        assert_eq!(found.len(), 1);
        let outage = &found[0];
        assert!(outage.is_partial() && outage.no_data);
        assert_eq!(outage.any_ns, (60, Some(100)));
        assert_eq!(outage.all_ns, (0, Some(0)));
        assert_eq!(outage.first, First::Alone(a.clone()));
        assert_eq!(outage.bound_ns, 3);
        assert_eq!(outage.views[1].1, View::Served);
        assert_eq!(outage.views[2].1, View::NoData);
    }

    #[test]
    fn nobody_served_counts_agents_with_data_only() {
        let (a, b, c) = (agent("a"), agent("b"), agent("c"));
        let side = |agent, piece: Option<Piece>, watched| Side {
            agent,
            clients: vec![piece.into_iter().collect()],
            watched: vec![watched],
            holes: vec![Vec::new()],
        };
        let sides = [
            side(&a, Some(seen((100, 200), (120, 180), 0)), (0, 1_000)),
            side(&b, Some(seen((110, 190), (130, 170), 0)), (0, 1_000)),
            side(&c, None, (500, 1_000)),
        ];
        let found = outages(&sides);
        assert_eq!(found[0].any_ns, (60, Some(100)));
        assert_eq!(found[0].all_ns, (40, Some(80)));
        // Of one that was there, nothing is known for a part of it: it was not
        // "served", and it does not speak for the others.
        let mut holed = side(&c, None, (0, 1_000));
        holed.holes = vec![vec![(150, 160)]];
        let [a_side, b_side, _] = sides;
        let found = outages(&[a_side, b_side, holed]);
        assert_eq!(found[0].views[2].1, View::NoData);
        assert!(found[0].no_data && !found[0].is_partial());
        assert_eq!(found[0].all_ns, (40, Some(80)));
    }
}
