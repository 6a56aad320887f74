//! What a fault did again and again: how often each verdict came, how long clients
//! felt it each time and in which groups these times lie, and whether it changed in
//! the course of the run. Everything is drawn from [`crate::analyse::repeat`].

use super::Page;
use crate::analyse::repeat::{self, Censored, Group, Once, Repeated};
use crate::analyse::row::Row;
use crate::analyse::verdict::Verdict;
use crate::report::figures::{interval, seconds};
use crate::report::kinds::client_words;
use crate::report::plot::scale::Scale;
use crate::report::plot::svg::{Anchor, Svg};
use crate::report::repeat::{own_tables, trend_words};
use crate::report::table::cut;

/// A row of clients over the repetitions.
pub type Again<'a> = (&'a Row, &'a Repeated);

const WIDTH: f64 = 900.0;
const LEFT: f64 = 170.0;

impl Page<'_> {
    /// All figures and tables of one target's repetitions.
    pub(super) fn repetitions(&mut self, target: &str) {
        for (group, of) in repeat::all(self.analysis) {
            let rows: Vec<Again<'_>> = of
                .iter()
                .map(|(at, repeated)| (&self.analysis.rows[*at].1, repeated))
                .filter(|(row, _)| row.target.as_str() == target)
                .collect();
            let Some(lengths) = lengths(&group, &rows) else {
                continue;
            };
            self.element(
                "h3",
                "",
                &format!(
                    "Repetitions: {} {}, {} times",
                    group.step,
                    group.subject,
                    group.faults.len()
                ),
            );
            let order = order(&rows);
            let figures: Vec<(Svg, &str)> = [
                shares(&rows).map(|figure| {
                    (
                        figure,
                        "How often each verdict came, the first time left out, with the interval \
                         of 95 % that so few faults leave open (Wilson).",
                    )
                }),
                Some((
                    lengths,
                    "How long a client went without an answer, the longest of each repetition. \
                     Ring: one repetition; square: the first, in none of the figures; arrow: not \
                     over when watching ended. Boxes: groups that lie together, with their \
                     number; with several of them the median lies in one and says nothing of the \
                     others. Bar: the median's interval of 95 %, none below six repetitions.",
                )),
                order.map(|figure| {
                    (
                        figure,
                        "The same in the order in which the faults came. A trend says that the \
                         repetitions were not alike: then no share or median of them all is that \
                         of one.",
                    )
                }),
            ]
            .into_iter()
            .flatten()
            .collect();
            for (figure, caption) in figures {
                self.push(&format!("<figure>{}", figure.inline()));
                self.element("figcaption", "", caption);
                self.push("</figure>\n");
            }
            for table in own_tables(self.analysis, &group, &rows) {
                let title = format!("As a table: {}", table.title);
                self.folded(&title, &table);
            }
        }
    }
}

/// Rows in which some repetition tested anything.
fn tested<'a, 'b>(rows: &'b [Again<'a>]) -> Vec<&'b Again<'a>> {
    rows.iter()
        .filter(|(_, r)| r.first.is_some() || !r.rest.is_empty())
        .collect()
}

fn tone(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Down | Verdict::Disrupted => "share-bad",
        Verdict::Seamless => "share-good",
        _ => "share-warning",
    }
}

/// How often each verdict came: a bar for the share, a line for its interval.
fn shares(rows: &[Again<'_>]) -> Option<Svg> {
    let lines: Vec<(String, Verdict, repeat::Share)> = rows
        .iter()
        .flat_map(|(row, r)| {
            r.verdicts
                .iter()
                .enumerate()
                .map(move |(at, (verdict, share))| {
                    let name = if at == 0 {
                        client_words(row)
                    } else {
                        String::new()
                    };
                    (name, *verdict, *share)
                })
        })
        .collect();
    if lines.is_empty() {
        return None;
    }
    let (left, right, top, line) = (LEFT + 110.0, WIDTH - 190.0, 30.0, 20.0);
    let bottom = top + line * lines.len() as f64;
    let x = Scale::linear((0.0, 100.0), (left, right));
    let title = "Verdicts of the repetitions after the first";
    let mut svg = Svg::new(WIDTH, bottom + 24.0, title);
    svg.text((8.0, 15.0), Anchor::Start, "strong", title);
    for at in [0.0, 25.0, 50.0, 75.0, 100.0] {
        svg.line((x.at(at), top), (x.at(at), bottom), "grid");
        let text = format!("{at:.0} %");
        svg.text((x.at(at), bottom + 14.0), Anchor::Middle, "", &text);
    }
    for (number, (name, verdict, share)) in lines.iter().enumerate() {
        let y = top + line * number as f64;
        let percent = 100.0 * share.k as f64 / share.n.max(1) as f64;
        let (low, high) = (share.interval.0 * 100.0, share.interval.1 * 100.0);
        let words = format!("{} of {}, {low:.0} to {high:.0} %", share.k, share.n);
        let tip = format!("{}: {words}", verdict.as_str());
        svg.text((LEFT - 8.0, y + 14.0), Anchor::End, "", &cut(name, 26));
        svg.text((LEFT, y + 14.0), Anchor::Start, "strong", verdict.as_str());
        svg.rect(
            (left, y + 4.0),
            (x.at(percent) - left, line - 8.0),
            tone(*verdict),
            &tip,
        );
        let middle = y + line / 2.0;
        svg.line((x.at(low), middle), (x.at(high), middle), "whisker");
        for end in [low, high] {
            svg.line(
                (x.at(end), middle - 4.0),
                (x.at(end), middle + 4.0),
                "whisker",
            );
        }
        svg.text((right + 10.0, y + 14.0), Anchor::Start, "", &words);
    }
    Some(svg)
}

/// What clients felt in each repetition: a ring each, side by side where they are
/// equal, the first apart, the groups, the median with its interval.
fn lengths(group: &Group, rows: &[Again<'_>]) -> Option<Svg> {
    let shown = tested(rows);
    let longest = shown
        .iter()
        .flat_map(|(_, r)| r.rest.iter().chain(&r.first))
        .map(|once| once.gap.ns)
        .max()?;
    let (left, right, top, line) = (LEFT, WIDTH - 150.0, 34.0, 46.0);
    let bottom = top + line * shown.len() as f64;
    let x = Scale::linear(
        (0.0, (longest as f64 / 1e9 * 1.05).max(1e-3)),
        (left, right),
    );
    let title = format!(
        "{} {}: felt gap in each of {} repetitions, s",
        group.step,
        group.subject,
        group.faults.len()
    );
    let mut svg = Svg::new(WIDTH, bottom + 24.0, &title);
    svg.text((8.0, 15.0), Anchor::Start, "strong", &title);
    for (at, text) in x.ticks(8) {
        svg.line((x.at(at), top), (x.at(at), bottom), "grid");
        svg.text((x.at(at), bottom + 14.0), Anchor::Middle, "", &text);
    }
    for (number, (row, repeated)) in shown.iter().enumerate() {
        let y = top + line * number as f64 + line / 2.0 + 4.0;
        let name = cut(&client_words(row), 26);
        svg.text((left - 8.0, y + 4.0), Anchor::End, "", &name);
        svg.line((left, y), (right, y), "grid");
        for mode in &repeated.modes.0 {
            let from = x.at(mode.from_ns as f64 / 1e9) - 5.0;
            let to = x.at(mode.to_ns as f64 / 1e9) + 5.0;
            let tip = format!(
                "{} between {} and {}",
                mode.count,
                seconds(mode.from_ns),
                seconds(mode.to_ns)
            );
            svg.rect((from, y - 15.0), (to - from, 30.0), "mode", &tip);
            let middle = f64::midpoint(from, to);
            let count = mode.count.to_string();
            svg.text((middle, y - 18.0), Anchor::Middle, "", &count);
        }
        if let (Some(median), Some((low, high))) = (repeated.gap_median, repeated.gap_interval) {
            let from = x.at(low as f64 / 1e9);
            let to = high.map_or(right, |ns| x.at(ns as f64 / 1e9));
            let tip = format!("median {}, {}", seconds(median), interval(low, high));
            svg.rect((from, y - 4.0), (to - from, 8.0), "maybe", &tip);
        }
        if let Some(median) = repeated.gap_median {
            let at = x.at(median as f64 / 1e9);
            svg.rect(
                (at - 1.2, y - 11.0),
                (2.4, 22.0),
                "sure",
                &format!("median {}", seconds(median)),
            );
        }
        for (nth, once) in repeated.rest.iter().enumerate() {
            // Side by side, so that equal ones do not hide each other.
            let off = ((nth % 5) as f64 - 2.0) * 5.0;
            mark(&mut svg, (x.at(once.gap.ns as f64 / 1e9), y + off), once);
        }
        if let Some(first) = &repeated.first {
            let at = x.at(first.gap.ns as f64 / 1e9);
            let tip = format!("the first: {}", once_words(first));
            svg.rect((at - 4.0, y - 4.0), (8.0, 8.0), "first", &tip);
        }
        let tested = repeated.rest.len() + usize::from(repeated.first.is_some());
        let (one, two) = (
            format!("{tested} of {} tested", repeated.times),
            match repeated.gap_median {
                Some(ns) => format!("median {}", seconds(ns)),
                None if repeated.rest.is_empty() => String::new(),
                None => "median: not over".to_owned(),
            },
        );
        svg.text((right + 10.0, y - 2.0), Anchor::Start, "", &one);
        svg.text((right + 10.0, y + 12.0), Anchor::Start, "strong", &two);
    }
    Some(svg)
}

/// The gaps in the order in which the faults came, a panel for each row.
fn order(rows: &[Again<'_>]) -> Option<Svg> {
    let shown: Vec<&Again<'_>> = tested(rows)
        .into_iter()
        .filter(|(_, r)| r.rest.len() >= 2)
        .collect();
    let times = shown.iter().map(|(_, r)| r.times).max()?;
    let longest = shown
        .iter()
        .flat_map(|(_, r)| r.rest.iter().chain(&r.first))
        .map(|once| once.gap.ns)
        .max()?;
    let (left, right, top, tall) = (LEFT, WIDTH - 150.0, 30.0, 64.0);
    let bottom = top + tall * shown.len() as f64;
    let x = Scale::linear((0.5, times as f64 + 0.5), (left, right));
    let title = "In order: felt gap over the number of the repetition";
    let mut svg = Svg::new(WIDTH, bottom + 24.0, title);
    svg.text((8.0, 15.0), Anchor::Start, "strong", title);
    let every = times.div_ceil(20).max(1);
    for number in (1..=times).filter(|n| *n == 1 || n % every == 0) {
        let at = x.at(number as f64);
        svg.text((at, bottom + 14.0), Anchor::Middle, "", &number.to_string());
    }
    for (number, (row, repeated)) in shown.iter().enumerate() {
        let (above, below) = (
            top + tall * number as f64 + 8.0,
            top + tall * (number + 1) as f64 - 4.0,
        );
        let y = Scale::linear(
            (0.0, (longest as f64 / 1e9 * 1.05).max(1e-3)),
            (below, above),
        );
        let name = cut(&client_words(row), 20);
        svg.text(
            (left - 40.0, f64::midpoint(above, below) + 4.0),
            Anchor::End,
            "",
            &name,
        );
        for (at, text) in y.ticks(3) {
            svg.line((left, y.at(at)), (right, y.at(at)), "grid");
            svg.text((left - 6.0, y.at(at) + 4.0), Anchor::End, "", &text);
        }
        let place = |once: &Once| (x.at(once.number as f64), y.at(once.gap.ns as f64 / 1e9));
        let points: Vec<(f64, f64)> = repeated.rest.iter().map(place).collect();
        svg.path(&points, "thin", false);
        for once in &repeated.rest {
            mark(&mut svg, place(once), once);
        }
        if let Some(first) = &repeated.first {
            let (at, height) = place(first);
            let tip = format!("the first: {}", once_words(first));
            svg.rect((at - 4.0, height - 4.0), (8.0, 8.0), "first", &tip);
        }
        for (at, words) in trend_words(repeated).into_iter().enumerate() {
            let class = if at == 0 { "strong" } else { "" };
            let height = above + 12.0 + 14.0 * at as f64;
            svg.text((right + 10.0, height), Anchor::Start, class, &words);
        }
    }
    Some(svg)
}

fn once_words(once: &Once) -> String {
    format!(
        "repetition {}: {}, {}",
        once.number,
        once.verdict.as_str(),
        gap_words(once.gap)
    )
}

fn gap_words(gap: Censored) -> String {
    format!(
        "{}{}",
        if gap.is_at_least { "≥" } else { "" },
        seconds(gap.ns)
    )
}

/// One repetition: a ring, with an arrow where it was not over.
fn mark(svg: &mut Svg, (x, y): (f64, f64), once: &Once) {
    svg.circle((x, y), 3.0, "dot", &once_words(once));
    if once.gap.is_at_least {
        let tip = x + 16.0;
        svg.path(
            &[
                (x + 3.0, y),
                (tip, y),
                (tip - 4.0, y - 3.0),
                (tip, y),
                (tip - 4.0, y + 3.0),
            ],
            "dot",
            false,
        );
    }
}
