//! Figures that need no script: percentiles, outages as intervals.

use super::lanes::{Gathered, Lane};
use crate::analyse::latency::Value;
use crate::analyse::row::{Row, Scope, Window, longest_key};
use crate::report::figures::{interval, seconds};
use crate::report::kinds::client_words;
use crate::report::plot::scale::Scale;
use crate::report::plot::svg::{Anchor, Svg};
use crate::report::table::{Table, cut};

/// Shorter than that is drawn as that: a slot whose due time comes just before
/// its answer has a response of next to nothing.
const LEAST_NS: i64 = 10_000;
/// Outages in a figure: the longest.
const MOST_WINDOWS: usize = 40;
/// Classes of lines in the style sheet.
const SERIES: usize = 6;

/// Latency or response over the share of values, with an axis that counts nines.
pub fn percentiles(
    title: &str,
    lanes: &[(&Lane, String)],
    of: fn(&Lane) -> &[(f64, Value)],
) -> Option<Svg> {
    const WIDTH: f64 = 440.0;
    const HEIGHT: f64 = 230.0;
    let (left, right, top) = (56.0, WIDTH - 12.0, 28.0);
    let lines: Vec<&(&Lane, String)> = lanes.iter().filter(|(l, _)| !of(l).is_empty()).collect();
    let bottom = HEIGHT - 38.0;
    let legend = 14.0 * lines.len().div_ceil(2) as f64;
    let values = lines.iter().flat_map(|(lane, _)| {
        of(lane)
            .iter()
            .map(|(_, v)| v.ns.max(LEAST_NS) as f64 / 1e6)
    });
    let (low, high) = values.fold((f64::INFINITY, 0.0f64), |(a, b), v| (a.min(v), b.max(v)));
    if !low.is_finite() {
        return None;
    }
    // 1 / (1 - share): how many values until one lies beyond.
    let nines = lines
        .iter()
        .flat_map(|(lane, _)| of(lane))
        .filter(|(share, _)| *share < 1.0)
        .map(|(share, _)| 1.0 / (1.0 - share))
        .fold(10.0f64, f64::max);
    let x = Scale::log((1.0, nines * 1.6), (left, right));
    let y = Scale::log((low / 1.3, high * 1.3), (bottom, top));
    let mut svg = Svg::new(WIDTH, HEIGHT + legend, title);
    svg.text((8.0, 15.0), Anchor::Start, "strong", title);
    for (value, text) in y.ticks(5) {
        svg.line((left, y.at(value)), (right, y.at(value)), "grid");
        svg.text((left - 6.0, y.at(value) + 4.0), Anchor::End, "", &text);
    }
    for (at, text) in [
        (1.0, "0"),
        (2.0, "50"),
        (10.0, "90"),
        (100.0, "99"),
        (1e3, "99.9"),
        (1e4, "99.99"),
        (1e5, "99.999"),
        (1e6, "99.9999"),
    ] {
        if at <= nines * 1.6 {
            svg.line((x.at(at), top), (x.at(at), bottom), "grid");
            svg.text((x.at(at), bottom + 14.0), Anchor::Middle, "", text);
        }
    }
    svg.rect((left, top), (right - left, bottom - top), "frame", "");
    svg.text(
        (right, bottom + 29.0),
        Anchor::End,
        "",
        "% of values are at most so long",
    );
    svg.text((left, bottom + 29.0), Anchor::Start, "", "ms, log");
    for (number, (lane, name)) in lines.iter().enumerate() {
        let mut points = Vec::new();
        let mut unanswered = None;
        for (share, value) in of(lane) {
            let at = if *share < 1.0 {
                1.0 / (1.0 - share)
            } else {
                nines * 1.6
            };
            let point = (x.at(at), y.at(value.ns.max(LEAST_NS) as f64 / 1e6));
            if value.is_more_than {
                unanswered.get_or_insert(point.0);
                continue;
            }
            points.push(point);
        }
        let class = format!("series{}", number % SERIES);
        if let (Some(at), Some((_, last))) = (unanswered, points.last().copied()) {
            points.push((at, last));
            points.push((at, top));
        }
        svg.path(&points, &class, false);
        let column = (number % 2) as f64 * (WIDTH / 2.0);
        let line = HEIGHT + 4.0 + 14.0 * (number / 2) as f64;
        svg.line(
            (column + 10.0, line - 4.0),
            (column + 38.0, line - 4.0),
            &class,
        );
        svg.text((column + 44.0, line), Anchor::Start, "", &cut(name, 28));
    }
    Some(svg)
}

/// The windows of a target's clients that are drawn, in order of time, and how
/// many are left out.
fn drawn<'a>(rows: &[&'a Row]) -> (Vec<(&'a Row, &'a Window)>, usize) {
    let mut all: Vec<(&Row, &Window)> = rows
        .iter()
        .flat_map(|row| row.client_windows().map(move |w| (*row, w)))
        .collect();
    all.sort_by_key(|(_, w)| std::cmp::Reverse(longest_key(w)));
    let left_out = all.len().saturating_sub(MOST_WINDOWS);
    all.truncate(MOST_WINDOWS);
    all.sort_by_key(|(_, w)| w.first_bad_ns);
    (all, left_out)
}

fn client_of(row: &Row, window: &Window) -> String {
    match window.scope {
        Scope::Client(number) => format!("{} {number}", client_words(row)),
        Scope::Any => "somebody".to_owned(),
        Scope::All => "everybody".to_owned(),
    }
}

/// Each client's outages: surely out, possibly out, and what the client felt.
pub fn windows(rows: &[&Row]) -> Option<(Svg, usize)> {
    const WIDTH: f64 = 900.0;
    let (all, left_out) = drawn(rows);
    if all.is_empty() {
        return None;
    }
    let (left, right, top, line) = (200.0, WIDTH - 150.0, 30.0, 15.0);
    let bottom = top + line * all.len() as f64;
    let longest = all
        .iter()
        .map(|(_, w)| w.upper_ns.unwrap_or(w.lower_ns).max(w.gap_ns.unwrap_or(0)))
        .max()
        .unwrap_or(1);
    let x = Scale::linear((0.0, longest as f64 / 1e9), (left, right));
    let title = "Outages: how long the service can have been out, and what the client felt";
    let mut svg = Svg::new(WIDTH, bottom + 34.0, title);
    svg.text((8.0, 15.0), Anchor::Start, "strong", title);
    for (at, text) in x.ticks(8) {
        svg.line((x.at(at), top), (x.at(at), bottom), "grid");
        svg.text((x.at(at), bottom + 14.0), Anchor::Middle, "", &text);
    }
    svg.text(
        (8.0, bottom + 29.0),
        Anchor::Start,
        "",
        "filled: surely out; light: possibly out; ring: without an answer; s",
    );
    for (number, (row, window)) in all.iter().enumerate() {
        let y = top + line * number as f64;
        let name = client_of(row, window);
        let at = window
            .first_bad_ns
            .map_or(0, |ns| ns.saturating_sub(row.origin_ns));
        let words = interval(window.lower_ns, window.upper_ns);
        let tip = format!(
            "{name}, from {}: {words}; without an answer {}",
            seconds(at),
            window.gap_ns.map_or("-".to_owned(), seconds)
        );
        svg.text(
            (left - 8.0, y + 11.0),
            Anchor::End,
            "",
            &format!("{} at {}", cut(&name, 24), seconds(at)),
        );
        let lower = x.at(window.lower_ns as f64 / 1e9);
        let upper = window.upper_ns.map_or(right, |ns| x.at(ns as f64 / 1e9));
        svg.rect((left, y + 3.0), (upper - left, line - 6.0), "maybe", &tip);
        svg.rect((left, y + 3.0), (lower - left, line - 6.0), "sure", &tip);
        if let Some(gap) = window.gap_ns {
            let at = x.at(gap as f64 / 1e9);
            svg.circle((at, y + 7.5), 2.8, "dot", &tip);
        }
        svg.text((right + 8.0, y + 11.0), Anchor::Start, "", &words);
    }
    Some((svg, left_out))
}

/// All of a target's outages as a table.
pub fn window_table(rows: &[&Row]) -> Table {
    let mut table = Table::new(
        "Outages",
        1,
        &[
            "client",
            ">first bad\nprobe",
            ">out at\nleast",
            ">at most",
            ">without an\nanswer",
            ">own\ntimeout",
            ">bad",
            ">late",
            "fault",
        ],
    );
    let (all, _) = drawn(rows);
    for (row, window) in all {
        let at = |ns: i64| seconds(ns.saturating_sub(row.origin_ns));
        table.rows.push(vec![
            client_of(row, window),
            window.first_bad_ns.map_or("-".into(), at),
            seconds(window.lower_ns),
            window.upper_ns.map_or("not bounded".into(), seconds),
            format!(
                "{}{}{}",
                if window.gap_is_at_least { "≥" } else { "" },
                window.gap_ns.map_or("-".into(), seconds),
                if window.no_data { " ?" } else { "" }
            ),
            window
                .own_timeout_ns
                .filter(|ns| *ns > 0)
                .map_or("-".into(), seconds),
            window.bad.to_string(),
            window.late.to_string(),
            window.fault.map_or("none".into(), |id| id.to_string()),
        ]);
    }
    table
}

/// A lane's name within its target.
pub fn lane_name(gathered: &Gathered, row: &Row) -> String {
    let several = gathered.lanes.iter().any(|lane| lane.agent != row.agent);
    if several {
        format!("{} @{}", client_words(row), row.agent)
    } else {
        client_words(row)
    }
}
