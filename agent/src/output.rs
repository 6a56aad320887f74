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
