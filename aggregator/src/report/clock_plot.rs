//! The figure of an agent's clock: the band in which its offset surely lies,
//! with the straight drift of each epoch taken out so that the band can be seen;
//! under it the bound (half the band) and the round trips, on a log axis. Where
//! an epoch ends is marked, with the reason.
//!
//! What is thinned out is thinned outward: a column of the band holds all of it.

use gapscope_proto::clock::ClockKey;

use super::clock::AgentClock;
use super::figures::short;
use super::plot::scale::{Scale, number};
use super::plot::svg::{Anchor, Svg};
use super::table::Table;
use crate::align::bound::Knot;
use crate::align::epoch::{Ending, Epoch};
use crate::align::map::{ClockMap, Relation, short as clock_name};
use crate::align::track::{Origin, Track};

/// Columns of a figure in which many points are brought together.
const COLUMNS: i64 = 400;
/// Cells of the sketch in a terminal.
const CELLS: usize = 32;

/// A point of a band: after the agent's begin, and two values in us.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// In s after the agent's begin.
    pub at_s: f64,
    /// Lower end, in us.
    pub lo_us: f64,
    /// Upper end, in us.
    pub hi_us: f64,
}

/// One epoch, as it is drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochPlot {
    /// Its number.
    pub number: usize,
    /// First and last moment its exchanges speak of, in s.
    pub extent_s: (f64, f64),
    /// The offset in its middle, in s.
    pub offset_s: f64,
    /// Drift and how far it can be off, in ppm.
    pub drift_ppm: Option<(f64, f64)>,
    /// What is taken out of the band.
    pub line: Line,
    /// The band, relative to that line.
    pub band: Vec<Span>,
    /// Half the band; both values are the same.
    pub bound: Vec<Span>,
    /// Why it ended.
    pub ended: Ending,
}

/// One agent clock, as it is drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// Agent and clock.
    pub name: String,
    /// Its epochs; none if it is the aggregator's own clock, or not related.
    pub epochs: Vec<EpochPlot>,
    /// Between two epochs: begin and end in s; the union of both bounds holds.
    pub unions_s: Vec<(f64, f64)>,
    /// Shortest and longest round trip, by time.
    pub round_trips: Vec<Span>,
    /// What is said in place of a figure.
    pub instead: Option<String>,
}

fn us(ns: i128) -> f64 {
    ns as f64 / 1e3
}

/// The straight line through an epoch's middle, exact in whole ns: readings of
/// different clocks are too large for floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    first: Knot,
    last: Knot,
}

impl Line {
    /// Its value at a reading of the agent's clock, in ns.
    pub fn at(&self, at_ns: i64) -> i64 {
        let (x0, y0) = (self.first.at_ns, self.first.middle_ns());
        let span = i128::from(self.last.at_ns) - i128::from(x0);
        if span == 0 {
            return y0;
        }
        let rise = i128::from(self.last.middle_ns()) - i128::from(y0);
        let along = i128::from(at_ns) - i128::from(x0);
        i64::try_from(i128::from(y0) + rise * along / span).unwrap_or(y0)
    }
}

/// The moments at which a band is drawn, with what holds from each to the next.
fn band(epoch: &Epoch, origin_ns: i64, value: impl Fn(&Knot) -> (f64, f64)) -> Vec<Span> {
    let Some(corridor) = &epoch.corridor else {
        return Vec::new();
    };
    let knots = corridor.knots();
    let at_s = |ns: i64| ns.saturating_sub(origin_ns) as f64 / 1e9;
    let span = |knot: &Knot| {
        let (lo_us, hi_us) = value(knot);
        Span {
            at_s: at_s(knot.at_ns),
            lo_us,
            hi_us,
        }
    };
    let (Some(first), Some(last)) = (knots.first(), knots.last()) else {
        return Vec::new();
    };
    if knots.len() <= COLUMNS as usize * 2 {
        return knots.iter().map(span).collect();
    }
    let length = last.at_ns.saturating_sub(first.at_ns);
    let edge = |column: i64| {
        let along = i128::from(length) * i128::from(column) / i128::from(COLUMNS);
        first
            .at_ns
            .saturating_add(i64::try_from(along).unwrap_or(0))
    };
    let mut next = 0;
    let mut spans = Vec::new();
    for column in 0..COLUMNS {
        let (begin, end) = (edge(column), edge(column + 1));
        // Straight between knots: the extremes are at knots or at the edges.
        let mut widest = span(&corridor.at(begin));
        let mut take = |knot: &Knot| {
            let there = span(knot);
            widest.lo_us = widest.lo_us.min(there.lo_us);
            widest.hi_us = widest.hi_us.max(there.hi_us);
        };
        take(&corridor.at(end));
        while next < knots.len() && knots[next].at_ns <= end {
            take(&knots[next]);
            next += 1;
        }
        spans.push(Span {
            at_s: at_s(begin),
            ..widest
        });
        spans.push(Span {
            at_s: at_s(end),
            ..widest
        });
    }
    spans
}

fn epoch_plot(track: &Track, number: usize, origin_ns: i64) -> Option<EpochPlot> {
    let epoch = track.epochs().get(number)?;
    let knots = epoch.corridor.as_ref()?.knots();
    let (first, last) = (*knots.first()?, *knots.last()?);
    let line = Line { first, last };
    let at_s = |ns: i64| ns.saturating_sub(origin_ns) as f64 / 1e9;
    let middle = first.at_ns.midpoint(last.at_ns);
    Some(EpochPlot {
        number,
        extent_s: (at_s(first.at_ns), at_s(last.at_ns)),
        offset_s: line.at(middle) as f64 / 1e9,
        drift_ppm: track.drift_ppm(number),
        line,
        band: band(epoch, origin_ns, |knot| {
            let base = i128::from(line.at(knot.at_ns));
            (
                us(i128::from(knot.lo_ns) - base),
                us(i128::from(knot.hi_ns) - base),
            )
        }),
        bound: band(epoch, origin_ns, |knot| {
            let half = us(i128::from(knot.half_width_ns()));
            (half, half)
        }),
        ended: epoch.ended,
    })
}

/// Shortest and longest of each column.
fn columns(round_trips: &[(i64, i64)], origin_ns: i64) -> Vec<Span> {
    let begin = round_trips.iter().map(|r| r.0).min().unwrap_or(0);
    let end = round_trips.iter().map(|r| r.0).max().unwrap_or(0);
    let width = (end.saturating_sub(begin) / COLUMNS).max(1);
    let mut found: Vec<(i64, Span)> = Vec::new();
    for (at_ns, took_ns) in round_trips {
        let column = at_ns.saturating_sub(begin) / width;
        let took = us(i128::from(*took_ns));
        match found.last_mut() {
            Some((last, span)) if *last == column => {
                span.lo_us = span.lo_us.min(took);
                span.hi_us = span.hi_us.max(took);
            }
            _ => found.push((
                column,
                Span {
                    at_s: at_ns.saturating_sub(origin_ns) as f64 / 1e9,
                    lo_us: took,
                    hi_us: took,
                },
            )),
        }
    }
    found.into_iter().map(|(_, span)| span).collect()
}

/// What is to be drawn of each agent's clock.
pub fn plots(clocks: &ClockMap, agents: &[AgentClock<'_>]) -> Vec<Plot> {
    agents
        .iter()
        .map(|agent| plot(clocks, agent, agent.clock))
        .collect()
}

fn plot(clocks: &ClockMap, agent: &AgentClock<'_>, clock: &ClockKey) -> Plot {
    let mut plot = Plot {
        name: format!("{} (clock {})", agent.agent, clock_name(clock)),
        epochs: Vec::new(),
        unions_s: Vec::new(),
        round_trips: columns(agent.round_trips, agent.origin_ns),
        instead: None,
    };
    match clocks.relation(clock) {
        None => plot.instead = Some("no exchange relates it to the aggregator's clock".to_owned()),
        Some(Relation::Same) => {
            plot.instead = Some("it is the aggregator's own clock: the offset is exactly 0".into());
        }
        Some(Relation::Bounded(track)) => {
            plot.epochs = (0..track.epochs().len())
                .filter_map(|number| epoch_plot(track, number, agent.origin_ns))
                .collect();
            for pair in track.epochs().windows(2) {
                let (from, to) = (
                    pair[0].to_ns.saturating_add(1),
                    pair[1].from_ns.saturating_sub(1),
                );
                let is_union = from <= to && matches!(track.at(from).origin, Origin::Between(_));
                if is_union {
                    let at_s = |ns: i64| ns.saturating_sub(agent.origin_ns) as f64 / 1e9;
                    plot.unions_s.push((at_s(from), at_s(to)));
                }
            }
        }
    }
    plot
}

impl Plot {
    fn time(&self) -> (f64, f64) {
        let ends = self
            .epochs
            .iter()
            .flat_map(|e| [e.extent_s.0, e.extent_s.1]);
        let (from, to) = ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), at| {
            (a.min(at), b.max(at))
        });
        if from < to { (from, to) } else { (0.0, 1.0) }
    }
}

/// A unit in which a size in us is readable: factor and name.
fn unit(size_us: f64) -> (f64, &'static str) {
    match size_us {
        s if s < 2_000.0 => (1.0, "us"),
        s if s < 2_000_000.0 => (1e3, "ms"),
        _ => (1e6, "s"),
    }
}

const WIDTH: f64 = 900.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 16.0;
const HEAD: f64 = 40.0;
const UPPER: f64 = 150.0;
const BETWEEN: f64 = 18.0;
const LOWER: f64 = 120.0;
const FOOT: f64 = 40.0;
/// Height of one agent's figure.
const HEIGHT: f64 = HEAD + UPPER + BETWEEN + LOWER + FOOT;
/// Height of a clock of which there is nothing to draw.
const LOW: f64 = 48.0;

/// One agent clock as a figure.
pub fn figure(plot: &Plot) -> Svg {
    let mut svg = Svg::new(WIDTH, height(plot), &label(plot));
    draw(&mut svg, 0.0, plot);
    svg
}

/// All of them in one figure, one above the other.
pub fn all(plots: &[Plot]) -> Svg {
    let total: f64 = plots.iter().map(height).sum();
    let labels: Vec<String> = plots.iter().map(label).collect();
    let mut svg = Svg::new(WIDTH, total.max(LOW), &labels.join("; "));
    let mut top = 0.0;
    for plot in plots {
        draw(&mut svg, top, plot);
        top += height(plot);
    }
    svg
}

fn height(plot: &Plot) -> f64 {
    if plot.epochs.is_empty() { LOW } else { HEIGHT }
}

fn label(plot: &Plot) -> String {
    match &plot.instead {
        Some(text) => format!("Clock of {}: {text}", plot.name),
        None => format!(
            "Clock of {}: the band of its offset with the drift taken out, its bound and the \
             round trips over time, {} epochs",
            plot.name,
            plot.epochs.len()
        ),
    }
}

fn draw(svg: &mut Svg, top: f64, plot: &Plot) {
    svg.text((8.0, top + 16.0), Anchor::Start, "strong", &plot.name);
    if plot.epochs.is_empty() {
        let text = plot.instead.as_deref().unwrap_or("nothing is known of it");
        svg.text((8.0, top + 33.0), Anchor::Start, "", text);
        return;
    }
    let x = Scale::linear(plot.time(), (LEFT, WIDTH - RIGHT));
    draw_band(svg, top + HEAD, &x, plot);
    let lower = top + HEAD + UPPER + BETWEEN;
    draw_bound(svg, lower, &x, plot);
    for (at, text) in x.ticks(10) {
        let x = x.at(at);
        svg.text((x, lower + LOWER + 15.0), Anchor::Middle, "", &text);
    }
    svg.text(
        (WIDTH / 2.0, lower + LOWER + 32.0),
        Anchor::Middle,
        "",
        "s after the agent's begin",
    );
}

/// The frame of a panel, its horizontal lines, and the epochs' ends.
fn panel(svg: &mut Svg, (top, height): (f64, f64), x: &Scale, y: &Scale, plot: &Plot) {
    let (left, right) = (LEFT, WIDTH - RIGHT);
    for (value, text) in y.ticks(5) {
        let at = y.at(value);
        svg.line((left, at), (right, at), "grid");
        svg.text((left - 6.0, at + 4.0), Anchor::End, "", &text);
    }
    for (at, _) in x.ticks(10) {
        svg.line((x.at(at), top), (x.at(at), top + height), "grid");
    }
    svg.rect((left, top), (right - left, height), "frame", "");
    for (from, to) in &plot.unions_s {
        svg.rect(
            (x.at(*from), top),
            ((x.at(*to) - x.at(*from)).max(1.0), height),
            "union",
            "between two epochs: the union of both bounds holds",
        );
    }
    for epoch in plot.epochs.iter().filter(|e| e.ended != Ending::DataEnd) {
        let at = x.at(epoch.extent_s.1);
        svg.line((at, top), (at, top + height), "mark");
    }
}

fn draw_band(svg: &mut Svg, top: f64, x: &Scale, plot: &Plot) {
    let ends = plot
        .epochs
        .iter()
        .flat_map(|e| e.band.iter().flat_map(|s| [s.lo_us, s.hi_us]));
    let (low, high) = ends.fold((0.0f64, 0.0f64), |(a, b), v| (a.min(v), b.max(v)));
    let (factor, unit) = unit(low.abs().max(high));
    let room = ((high - low) * 0.08).max(0.5) / factor;
    let y = Scale::linear(
        (low / factor - room, high / factor + room),
        (top + UPPER, top),
    );
    panel(svg, (top, UPPER), x, &y, plot);
    for epoch in &plot.epochs {
        let upper = epoch
            .band
            .iter()
            .map(|s| (x.at(s.at_s), y.at(s.hi_us / factor)));
        let lower = epoch
            .band
            .iter()
            .rev()
            .map(|s| (x.at(s.at_s), y.at(s.lo_us / factor)));
        svg.path(&upper.chain(lower).collect::<Vec<_>>(), "band", true);
        let drift = epoch.drift_ppm.map_or(String::new(), |(d, e)| {
            format!(", drift {d:.3} ± {e:.3} ppm")
        });
        let begin = x.at(epoch.extent_s.0);
        svg.text(
            (begin + 4.0, top + 13.0),
            Anchor::Start,
            "strong",
            &format!(
                "epoch {}: offset {:.6} s{drift}",
                epoch.number, epoch.offset_s
            ),
        );
        if epoch.ended != Ending::DataEnd {
            svg.text(
                (x.at(epoch.extent_s.1) - 4.0, top + UPPER - 6.0),
                Anchor::End,
                "mark-text",
                &format!("ended by {}", epoch.ended.as_str().replace('_', " ")),
            );
        }
    }
    svg.text(
        (8.0, top - 6.0),
        Anchor::Start,
        "",
        &format!("offset (aggregator's clock minus agent's) without its straight drift, {unit}"),
    );
}

fn draw_bound(svg: &mut Svg, top: f64, x: &Scale, plot: &Plot) {
    let values = plot
        .epochs
        .iter()
        .flat_map(|e| e.bound.iter().map(|s| s.hi_us))
        .chain(plot.round_trips.iter().flat_map(|s| [s.lo_us, s.hi_us]))
        .filter(|v| *v > 0.0);
    let (low, high) = values.fold((f64::INFINITY, 0.0f64), |(a, b), v| (a.min(v), b.max(v)));
    let (factor, unit) = unit(low);
    let y = Scale::log(
        (low / factor / 1.5, high / factor * 1.5),
        (top + LOWER, top),
    );
    panel(svg, (top, LOWER), x, &y, plot);
    for span in &plot.round_trips {
        let at = x.at(span.at_s);
        let (a, b) = (y.at(span.lo_us / factor), y.at(span.hi_us / factor));
        svg.line((at, a + 1.0), (at, b - 1.0), "dot");
    }
    for epoch in &plot.epochs {
        let line: Vec<(f64, f64)> = epoch
            .bound
            .iter()
            .map(|s| (x.at(s.at_s), y.at(s.hi_us / factor)))
            .collect();
        svg.path(&line, "series0", false);
    }
    svg.text(
        (8.0, top - 5.0),
        Anchor::Start,
        "",
        &format!("bound ± (line) and round trips (bars, shortest to longest), {unit}, log"),
    );
}

/// The bound over time in a terminal: one row for each epoch.
pub fn sketch(plots: &[Plot]) -> Table {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let mut table = Table::new(
        "Bound over time",
        2,
        &[
            "agent",
            ">epoch",
            ">from",
            "over the epoch (log)",
            ">to",
            ">least\n± us",
            ">most\n± us",
            "ended by",
        ],
    );
    for plot in plots {
        for epoch in &plot.epochs {
            let (from, to) = epoch.extent_s;
            let mut cells: Vec<Option<f64>> = vec![None; CELLS];
            for span in &epoch.bound {
                let share = if to > from {
                    (span.at_s - from) / (to - from)
                } else {
                    0.0
                };
                let cell = ((share * CELLS as f64) as usize).min(CELLS - 1);
                let known = cells[cell].get_or_insert(span.hi_us);
                *known = known.max(span.hi_us);
            }
            // Straight between knots: an empty cell is at most its neighbours.
            let filled: Vec<f64> = (0..CELLS)
                .map(|at| {
                    cells[at].unwrap_or_else(|| {
                        let before = cells[..at].iter().rev().find_map(|c| *c).unwrap_or(0.0);
                        let after = cells[at..].iter().find_map(|c| *c).unwrap_or(0.0);
                        before.max(after)
                    })
                })
                .collect();
            let bounds = epoch.bound.iter().map(|s| s.hi_us);
            let (low, high) =
                bounds.fold((f64::INFINITY, 0.0f64), |(a, b), v| (a.min(v), b.max(v)));
            let y = Scale::log((low.max(0.001), high.max(low * 1.2)), (0.0, 7.0));
            let strip: String = filled
                .iter()
                .map(|v| BLOCKS[(y.at(*v).round() as usize).min(7)])
                .collect();
            table.rows.push(vec![
                plot.name.split(' ').next().unwrap_or_default().to_owned(),
                epoch.number.to_string(),
                format!("{from:.1} s"),
                strip,
                format!("{to:.1} s"),
                number(low),
                number(high),
                epoch.ended.as_str().replace('_', " "),
            ]);
        }
    }
    table
}

/// What a figure's caption says.
pub fn caption(plot: &Plot) -> String {
    let hidden = plot.round_trips.iter().map(|s| s.lo_us);
    let least = hidden.fold(f64::INFINITY, f64::min);
    if plot.epochs.is_empty() || !least.is_finite() {
        return String::new();
    }
    format!(
        "The true offset is inside the band at every moment, if the clocks' drift is within the \
         assumed limits. A step of less than the smallest round trip ({}) could hide; the wider \
         bound that covers it is in clock_map.parquet.",
        short((least * 1e3) as i64)
    )
}
