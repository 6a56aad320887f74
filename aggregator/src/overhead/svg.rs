//! The cost over the number of clients as a picture: for each target what it
//! adds to a statement, with its interval. One panel for each version. A file of
//! its own: no script, no font, nothing to fetch.

use std::fmt::Write as _;

use super::analyse::{Analysis, Cell};
use super::record::Bench;

const WIDTH: f64 = 720.0;
const PANEL: f64 = 300.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 46.0;
/// Okabe and Ito's colours, which the colour-blind can tell apart.
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888",
];

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .chars()
        .filter(|c| !c.is_control())
        .collect()
}

/// A step of 1, 2 or 5 times a power of ten, so that some five fit in `span`.
fn step(span: f64) -> f64 {
    let raw = span / 5.0;
    let power = 10_f64.powf(raw.log10().floor());
    let times = raw / power;
    let nice = if times <= 1.0 {
        1.0
    } else if times <= 2.0 {
        2.0
    } else if times <= 5.0 {
        5.0
    } else {
        10.0
    };
    nice * power
}

fn ends(cell: &Cell) -> Option<(f64, f64, f64)> {
    let cost = cell.cost?;
    let (lower, upper) = cost
        .added_interval
        .unwrap_or((cost.added_ns, cost.added_ns));
    Some((lower / 1e3, cost.added_ns / 1e3, upper / 1e3))
}

/// Draws it; `None` where there is nothing to compare.
pub fn plot(bench: &Bench, analysis: &Analysis) -> Option<String> {
    let values: Vec<(f64, f64, f64)> = analysis.cells.iter().filter_map(ends).collect();
    if values.is_empty() {
        return None;
    }
    let low = values.iter().map(|v| v.0).fold(0.0, f64::min);
    let high = values.iter().map(|v| v.2).fold(0.0, f64::max);
    let step = step((high - low).max(1e-3));
    let (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
    let mut clients = analysis.clients.clone();
    clients.sort_unstable();
    let height = PANEL * analysis.labels.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <title>Added time a statement over the number of clients</title>\n\
         <style>svg{{background:#fff;color:#222}}text{{fill:currentColor}}.grid{{stroke:currentColor;\
         stroke-opacity:.15}}.zero{{stroke:currentColor;stroke-opacity:.6}}\
         @media(prefers-color-scheme:dark){{svg{{background:#181a1b;color:#ddd}}}}</style>\n"
    );
    for (number, label) in analysis.labels.iter().enumerate() {
        panel(
            &mut out,
            bench,
            analysis,
            label,
            &clients,
            &Axis {
                low,
                high,
                step,
                top: PANEL * number as f64,
            },
        );
    }
    out.push_str("</svg>\n");
    Some(out)
}

struct Axis {
    low: f64,
    high: f64,
    step: f64,
    top: f64,
}

impl Axis {
    fn y(&self, value: f64) -> f64 {
        let room = PANEL - TOP - BOTTOM;
        self.top + TOP + room * (self.high - value) / (self.high - self.low)
    }
}

fn panel(
    out: &mut String,
    bench: &Bench,
    analysis: &Analysis,
    label: &str,
    clients: &[u32],
    axis: &Axis,
) {
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    let right = WIDTH - RIGHT;
    let place = (right - LEFT) / clients.len().max(1) as f64;
    let x = |at: usize| LEFT + place * (at as f64 + 0.5);
    let direct = analysis
        .direct
        .map_or("direct", |at| &bench.manifest.targets[at].name);
    line(format!(
        "<text x=\"{LEFT}\" y=\"{}\" font-weight=\"600\">{}: added to {}, \u{b5}s a statement</text>",
        axis.top + 24.0,
        escape(label),
        escape(direct)
    ));
    let mut tick = axis.low;
    while tick <= axis.high + axis.step / 2.0 {
        let y = axis.y(tick);
        let class = if tick.abs() < axis.step / 1e3 {
            "zero"
        } else {
            "grid"
        };
        line(format!(
            "<line class=\"{class}\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + 4.0,
            trimmed(tick)
        ));
        tick += axis.step;
    }
    for (at, n) in clients.iter().enumerate() {
        line(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{n}</text>",
            x(at),
            axis.top + PANEL - BOTTOM + 18.0
        ));
    }
    line(format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">clients</text>",
        f64::midpoint(LEFT, right),
        axis.top + PANEL - BOTTOM + 36.0
    ));
    let compared: Vec<usize> = (0..bench.manifest.targets.len())
        .filter(|at| Some(*at) != analysis.direct)
        .collect();
    for (order, target) in compared.iter().enumerate() {
        let colour = COLOURS[order % COLOURS.len()];
        // Beside each other, so that intervals do not hide behind each other.
        let shift = place * 0.4 * ((order as f64 + 0.5) / compared.len() as f64 - 0.5);
        let mut path = String::new();
        let mut marks = String::new();
        for (at, n) in clients.iter().enumerate() {
            let Some((lower, middle, upper)) = analysis.cell(label, *n, *target).and_then(ends)
            else {
                continue;
            };
            let (x, y) = (x(at) + shift, axis.y(middle));
            let command = if path.is_empty() { 'M' } else { 'L' };
            write!(path, "{command}{x:.1} {y:.1} ").expect("a String takes everything");
            write!(
                marks,
                "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" \
                 stroke-width=\"2\"/><circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" \
                 fill=\"{colour}\"><title>{} at {n} clients: {} \u{b5}s ({} to {})</title></circle>",
                axis.y(lower),
                axis.y(upper),
                escape(&bench.manifest.targets[*target].name),
                super::view::short(middle),
                super::view::short(lower),
                super::view::short(upper)
            )
            .expect("a String takes everything");
        }
        line(format!(
            "<path d=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" \
             stroke-opacity=\".7\"/>{marks}",
            path.trim_end()
        ));
        let y = axis.top + TOP + 8.0 + 20.0 * order as f64;
        line(format!(
            "<rect x=\"{}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{:.1}\">{}</text>",
            right + 16.0,
            y - 10.0,
            right + 34.0,
            y,
            escape(&bench.manifest.targets[*target].name)
        ));
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" {
        "0".to_owned()
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        for (span, expect) in [(100.0, 20.0), (7.0, 2.0), (0.9, 0.2), (43.0, 10.0)] {
            assert!((step(span) - expect).abs() < 1e-12, "{span}");
        }
        assert_eq!(trimmed(20.0), "20");
        assert_eq!(trimmed(-0.0), "0");
        assert_eq!(trimmed(0.25), "0.25");
    }

    #[test]
    fn names_from_outside_are_text() {
        assert_eq!(escape("<a>&\"\u{1b}"), "&lt;a&gt;&amp;&quot;");
    }
}
