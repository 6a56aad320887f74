//! Text for a terminal: no control characters, lines that fit. Pure.

use std::fmt::Write as _;

/// Makes control characters visible; line breaks and tabs stay. What others say
/// (servers, files) could otherwise move the cursor or rename the window.
pub fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' && c != '\t' {
            write!(out, "{}", c.escape_default()).expect("a String takes everything");
        } else {
            out.push(c);
        }
    }
    out
}

/// Narrower than that nothing is laid out: terminals break such lines themselves.
const LEAST_WIDTH: usize = 30;

/// How many columns there are: the terminal's, else what `COLUMNS` says, which
/// shells keep to themselves, so that whoever exports it means it.
pub fn columns(terminal: Option<usize>, variable: Option<&str>) -> Option<usize> {
    terminal
        .filter(|columns| *columns > 0)
        .or_else(|| variable?.trim().parse().ok())
        .map(|columns: usize| columns.clamp(LEAST_WIDTH, 1_000))
}

/// Text for a stream with so many columns; unbroken where nobody said how many.
pub fn fitted(text: &str, columns: Option<usize>) -> String {
    match columns {
        Some(columns) => wrapped(text, columns),
        None => text.to_owned(),
    }
}

/// Breaks lines between words so that they fit into `width` columns; what
/// continues a line is indented further than it. A word that is longer stays
/// whole: a path that was broken could not be copied.
pub fn wrapped(text: &str, width: usize) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| wrap(line, width)).collect();
    lines.join("\n")
}

fn wrap(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let indent = line.chars().take_while(|c| *c == ' ').count();
    let deeper = " ".repeat((indent + 2).min(width / 2));
    let mut out = " ".repeat(indent);
    let mut column = indent;
    let mut begun = false;
    // Runs of blanks within a line are kept: they set its parts off.
    for word in line.trim_start_matches(' ').split_inclusive(' ') {
        let length = word.trim_end_matches(' ').chars().count();
        if begun && length > 0 && column + length > width {
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
            out.push_str(&deeper);
            column = deeper.len();
        }
        out.push_str(word);
        column += word.chars().count();
        begun = true;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown() {
        assert_eq!(
            visible("a\u{1b}[2Jb\u{9b}\r\n\tü"),
            "a\\u{1b}[2Jb\\u{9b}\\r\n\tü"
        );
    }

    #[test]
    fn the_terminal_says_how_many_columns_else_the_variable() {
        assert_eq!(columns(Some(120), Some("80")), Some(120));
        assert_eq!(columns(Some(0), Some("80")), Some(80));
        assert_eq!(columns(None, Some(" 132 ")), Some(132));
        assert_eq!(columns(None, Some("wide")), None);
        assert_eq!(columns(None, Some("1")), Some(LEAST_WIDTH));
        assert_eq!(columns(None, None), None);
        assert_eq!(fitted("a b", None), "a b");
    }

    #[test]
    fn lines_fit_and_lose_nothing() {
        let text = "run 0 for 30 s  on backend-1, 12 bad\n  2.5 s  stopped: a very long story of what was seen";
        for width in [20, 30, 80] {
            let wrapped = wrapped(text, width);
            assert!(
                wrapped.lines().all(|line| line.chars().count() <= width),
                "{width}:\n{wrapped}"
            );
            let words = |text: &str| -> Vec<String> {
                text.split_whitespace().map(str::to_owned).collect()
            };
            assert_eq!(words(&wrapped), words(text));
        }
        assert_eq!(wrapped("a  b", 80), "a  b");
        assert_eq!(
            wrapped("a /long/path/to/it b", 6),
            "a\n  /long/path/to/it\n  b"
        );
    }
}
