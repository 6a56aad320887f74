//! Lines with colours, cut to a terminal's width.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::Widget;

use super::draw::Look;

/// How a piece of a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    /// As the terminal does.
    Plain,
    /// Less important.
    Soft,
    /// A name.
    Bold,
    /// Answers.
    Good,
    /// Not known, or late.
    Warning,
    /// Bad.
    Bad,
    /// No data.
    Nothing,
}

impl Paint {
    fn style(self, colour: bool) -> Style {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        match (self, colour) {
            (Self::Bold, _) | (Self::Warning | Self::Bad, false) => bold,
            (Self::Plain, _) | (_, false) => Style::new(),
            (Self::Soft, true) => Style::new().add_modifier(Modifier::DIM),
            (Self::Good, true) => Style::new().fg(Color::Green),
            (Self::Warning, true) => Style::new().fg(Color::Yellow),
            (Self::Bad, true) => bold.fg(Color::Red),
            (Self::Nothing, true) => Style::new().fg(Color::Magenta),
        }
    }
}

/// A line in pieces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line(Vec<(String, Paint)>);

impl Line {
    /// Of one piece.
    pub fn of(text: impl Into<String>, paint: Paint) -> Self {
        Self::default().and(text, paint)
    }

    /// With one more piece. Nothing in it can steer the terminal.
    #[must_use]
    pub fn and(mut self, text: impl Into<String>, paint: Paint) -> Self {
        let text: String = text.into();
        let text = text.replace(char::is_control, " ");
        self.0.push((text, paint));
        self
    }

    fn text(&self, colour: bool) -> Text<'_> {
        let pieces = self.0.iter();
        pieces
            .map(|(text, paint)| Span::styled(text.as_str(), paint.style(colour)))
            .collect()
    }
}

/// Lines from the top of an area; one that does not fit ends with a sign that it was
/// cut.
#[derive(Debug, Clone, Copy)]
pub struct Lines<'a> {
    /// From the top.
    pub lines: &'a [Line],
    /// How to draw them.
    pub look: Look,
}

impl Widget for Lines<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        for (row, line) in area.rows().zip(self.lines) {
            let text = line.text(self.look.colour);
            let is_cut = text.width() > usize::from(row.width);
            text.render(row, buffer);
            if is_cut {
                cut(row, buffer, self.look.unicode);
            }
        }
    }
}

/// Puts the sign into a row's last column.
fn cut(row: Rect, buffer: &mut Buffer, unicode: bool) {
    let Some(last) = row.right().checked_sub(1) else {
        return;
    };
    if last > row.x
        && let Some(before) = buffer.cell_mut((last - 1, row.y))
        && Span::raw(before.symbol()).width() > 1
    {
        before.set_symbol(" ");
    }
    if let Some(cell) = buffer.cell_mut((last, row.y)) {
        cell.set_symbol(if unicode { "…" } else { ">" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(line: Line, width: u16, colour: bool) -> Buffer {
        let area = Rect::new(0, 0, width, 1);
        let mut buffer = Buffer::empty(area);
        let look = Look {
            unicode: true,
            colour,
        };
        let lines = &[line];
        Lines { lines, look }.render(area, &mut buffer);
        buffer
    }

    #[test]
    fn lines_are_cut_with_a_sign_and_steer_nothing() {
        let line = Line::of("ab\u{1b}[2J", Paint::Plain).and("cdef", Paint::Bad);
        let bad = Paint::Bad.style(true);
        let mut whole = Buffer::with_lines(["ab [2Jcdef"]);
        whole.set_style(Rect::new(6, 0, 4, 1), bad);
        assert_eq!(drawn(line.clone(), 10, true), whole);
        let mut some = Buffer::with_lines(["ab [2Jc…"]);
        some.set_style(Rect::new(6, 0, 2, 1), bad);
        assert_eq!(drawn(line.clone(), 8, true), some);
        drawn(line, 0, false);
    }

    #[test]
    fn wide_characters_are_not_halved() {
        let line = || Line::of("日本語", Paint::Plain);
        assert_eq!(drawn(line(), 6, true), Buffer::with_lines(["日本語"]));
        assert_eq!(drawn(line(), 5, true), Buffer::with_lines(["日本…"]));
        assert_eq!(drawn(line(), 4, true), Buffer::with_lines(["日 …"]));
    }

    #[test]
    fn without_colours_bad_is_bold() {
        let buffer = drawn(Line::of("X", Paint::Bad), 1, false);
        let style = buffer[(0, 0)].style();
        assert!(style.add_modifier.contains(Modifier::BOLD));
        assert_eq!(style.fg, Some(Color::Reset));
    }
}
