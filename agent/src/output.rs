//! What a person or a script reads: data on stdout, people on stderr.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the one place that prints"
)]

use gapscope_proto::plain;

/// A line of data.
pub(crate) fn data(line: &str) {
    println!("{line}");
}

/// An error with what to do about it.
pub(crate) fn error(message: &str, hint: Option<&str>) {
    say(&format!("error: {message}"));
    if let Some(hint) = hint {
        say(&format!("hint: {hint}"));
    }
}

/// A line for whoever is watching.
pub(crate) fn progress(line: &str) {
    eprintln!("{line}");
}

/// A text broken between words, with `first` before its first line and `indent`
/// spaces before the others. A word that is longer than a line stays whole.
pub(crate) fn wrapped(first: &str, indent: usize, text: &str, width: usize) -> String {
    let mut out = first.to_owned();
    let mut column = first.chars().count();
    for (index, word) in text.split(' ').enumerate() {
        let length = word.chars().count();
        if index > 0 && column + 1 + length > width {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if index > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out
}

/// Columns of the terminal that people are told things on.
pub(crate) fn columns_for_people() -> usize {
    columns_of(std::io::stderr()).unwrap_or(80).clamp(40, 120)
}

/// Replaces the last line on a terminal; an empty one takes it away.
pub(crate) fn live(line: &str) {
    let columns = columns_of(std::io::stderr())
        .unwrap_or(80)
        .saturating_sub(1);
    let line: String = line.chars().take(columns).collect();
    eprint!("\r{line}\x1b[K");
}

/// Columns of what data goes to, if it is a terminal or `COLUMNS` says.
pub(crate) fn columns() -> Option<usize> {
    columns_of(std::io::stdout())
}

fn columns_of(stream: impl std::os::fd::AsFd) -> Option<usize> {
    let terminal = rustix::termios::tcgetwinsize(stream)
        .ok()
        .map(|size| usize::from(size.ws_col));
    plain::columns(terminal, std::env::var("COLUMNS").ok().as_deref())
}

/// A text for people, broken where it would not fit.
fn say(text: &str) {
    eprintln!("{}", plain::fitted(text, columns_of(std::io::stderr())));
}

/// A remark beside the data.
pub(crate) fn note(message: &str) {
    say(&format!("note: {message}"));
}

/// Many lines of data.
pub(crate) fn lines() -> impl std::io::Write {
    std::io::BufWriter::new(std::io::stdout().lock())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_broken_between_words() {
        assert_eq!(wrapped("a  ", 3, "bb cc dd", 8), "a  bb cc\n   dd");
        assert_eq!(wrapped("", 2, "a-long-word b", 5), "a-long-word\n  b");
        assert_eq!(wrapped("", 0, "", 5), "");
    }
}
