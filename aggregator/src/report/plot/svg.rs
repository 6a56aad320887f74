//! A figure being written. All texts and attributes are escaped: names and
//! words may come from servers.

use std::fmt::Write as _;

/// Text that is safe between tags and in quoted attributes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Not allowed in XML.
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

/// Which side of its place a text stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// Begins there.
    Start,
    /// Is centred on it.
    Middle,
    /// Ends there.
    End,
}

/// An SVG figure.
#[derive(Debug)]
pub struct Svg {
    out: String,
    width: f64,
    height: f64,
    label: String,
}

impl Svg {
    /// Of this size; `label` says what it shows to those who do not see it.
    pub fn new(width: f64, height: f64, label: &str) -> Self {
        Self {
            out: String::new(),
            width,
            height,
            label: escape(label),
        }
    }

    /// A text.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(
            self.out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{}\">{}</text>",
            escape(class),
            escape(text)
        );
    }

    /// A straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let _ = writeln!(
            self.out,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" class=\"{}\"/>",
            from.0,
            from.1,
            to.0,
            to.1,
            escape(class)
        );
    }

    /// A rectangle with a text that shows when it is pointed at.
    pub fn rect(&mut self, from: (f64, f64), size: (f64, f64), class: &str, title: &str) {
        let _ = write!(
            self.out,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" class=\"{}\"",
            from.0,
            from.1,
            size.0.max(0.0),
            size.1.max(0.0),
            escape(class)
        );
        if title.is_empty() {
            self.out.push_str("/>\n");
        } else {
            let _ = writeln!(self.out, "><title>{}</title></rect>", escape(title));
        }
    }

    /// A circle with a text that shows when it is pointed at.
    pub fn circle(&mut self, at: (f64, f64), radius: f64, class: &str, title: &str) {
        let _ = writeln!(
            self.out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius:.1}\" class=\"{}\"><title>{}</title></circle>",
            at.0,
            at.1,
            escape(class),
            escape(title)
        );
    }

    /// A line through points.
    pub fn path(&mut self, points: &[(f64, f64)], class: &str, is_closed: bool) {
        if points.is_empty() {
            return;
        }
        self.out.push_str("<path d=\"");
        for (number, (x, y)) in points.iter().enumerate() {
            let _ = write!(
                self.out,
                "{}{x:.1} {y:.1}",
                if number == 0 { 'M' } else { 'L' }
            );
        }
        if is_closed {
            self.out.push('Z');
        }
        let _ = writeln!(self.out, "\" class=\"{}\"/>", escape(class));
    }

    /// A ribbon from one vertical edge to another, each given by x, top and
    /// bottom.
    pub fn ribbon(
        &mut self,
        (x0, top0, bottom0): (f64, f64, f64),
        (x1, top1, bottom1): (f64, f64, f64),
        class: &str,
        title: &str,
    ) {
        let middle = f64::midpoint(x0, x1);
        let _ = writeln!(
            self.out,
            "<path d=\"M{x0:.1} {top0:.1}C{middle:.1} {top0:.1} {middle:.1} {top1:.1} {x1:.1} \
             {top1:.1}L{x1:.1} {bottom1:.1}C{middle:.1} {bottom1:.1} {middle:.1} {bottom0:.1} \
             {x0:.1} {bottom0:.1}Z\" class=\"{}\"><title>{}</title></path>",
            escape(class),
            escape(title)
        );
    }

    /// For a page that has the style already.
    pub fn inline(&self) -> String {
        format!(
            "<svg class=\"figure\" role=\"img\" viewBox=\"0 0 {:.0} {:.0}\" width=\"{:.0}\" \
             height=\"{:.0}\" aria-label=\"{}\">\n{}</svg>\n",
            self.width, self.height, self.width, self.height, self.label, self.out
        )
    }

    /// A file of its own.
    pub fn document(&self) -> String {
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg \
             xmlns=\"http://www.w3.org/2000/svg\" class=\"figure\" role=\"img\" viewBox=\"0 0 {:.0} \
             {:.0}\" width=\"{:.0}\" height=\"{:.0}\" aria-label=\"{}\">\n<style>\n{}</style>\n<rect \
             width=\"100%\" height=\"100%\" style=\"fill: var(--paper)\"/>\n{}</svg>\n",
            self.width,
            self.height,
            self.width,
            self.height,
            self.label,
            super::STYLE,
            self.out
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_leave_their_place() {
        let mut svg = Svg::new(10.0, 10.0, "\"><script>");
        svg.text(
            (1.0, 2.0),
            Anchor::Start,
            "a",
            "</text><script>alert(1)</script>\u{7}",
        );
        svg.rect((0.0, 0.0), (1.0, 1.0), "\" onload=\"x", "<b>");
        let out = svg.inline();
        assert!(
            !out.contains("<script") && !out.contains("onload=\"x"),
            "{out}"
        );
        assert!(out.contains("&lt;script&gt;") && !out.contains('\u{7}'));
    }
}
