//! Lines with colours, cut to a terminal's width.

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
    const fn code(self, colour: bool) -> &'static str {
        match (self, colour) {
            (Self::Plain, _) => "",
            (Self::Bold, _) | (Self::Warning | Self::Bad, false) => "1",
            (_, false) => "",
            (Self::Soft, true) => "2",
            (Self::Good, true) => "32",
            (Self::Warning, true) => "33",
            (Self::Bad, true) => "1;31",
            (Self::Nothing, true) => "35",
        }
    }
}

/// A line in pieces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line(Vec<(String, Paint)>);

/// Columns that a character takes. East Asian wide ones take two; a mistake here
/// costs a character at the right edge, since the terminal is told not to break
/// lines.
const fn columns(c: char) -> usize {
    match c as u32 {
        0x0300..=0x036f | 0x200b..=0x200f | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f
        | 0x2e80..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1faff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

impl Line {
    /// Of one piece.
    pub fn of(text: impl Into<String>, paint: Paint) -> Self {
        Self(vec![(text.into(), paint)])
    }

    /// With one more piece.
    #[must_use]
    pub fn and(mut self, text: impl Into<String>, paint: Paint) -> Self {
        self.0.push((text.into(), paint));
        self
    }

    /// As it is sent to a terminal of so many columns; nothing in it steers the
    /// terminal but our own colours.
    pub fn ansi(&self, width: usize, colour: bool) -> String {
        let mut out = String::new();
        let mut left = width;
        for (text, paint) in &self.0 {
            let code = paint.code(colour);
            if !code.is_empty() {
                out.push_str("\u{1b}[");
                out.push_str(code);
                out.push('m');
            }
            for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
                let Some(rest) = left.checked_sub(columns(c)) else {
                    left = 0;
                    break;
                };
                left = rest;
                out.push(c);
            }
            if !code.is_empty() {
                out.push_str("\u{1b}[0m");
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_steer_nothing() {
        let line = Line::of("ab\u{1b}[2J", Paint::Plain).and("cdef", Paint::Bad);
        assert_eq!(line.ansi(80, false), "ab [2J\u{1b}[1mcdef\u{1b}[0m");
        assert_eq!(line.ansi(8, true), "ab [2J\u{1b}[1;31mcd\u{1b}[0m");
        assert_eq!(line.ansi(0, false), "\u{1b}[1m\u{1b}[0m");
        assert_eq!(Line::of("日本語", Paint::Plain).ansi(5, true), "日本");
    }
}
