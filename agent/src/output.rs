//! What a person or a script reads: data on stdout, people on stderr.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the one place that prints"
)]

/// A line of data.
pub(crate) fn data(line: &str) {
    println!("{line}");
}

/// An error with what to do about it.
pub(crate) fn error(message: &str, hint: Option<&str>) {
    eprintln!("error: {message}");
    if let Some(hint) = hint {
        eprintln!("hint: {hint}");
    }
}

/// A remark beside the data.
pub(crate) fn note(message: &str) {
    eprintln!("note: {message}");
}

/// Many lines of data.
pub(crate) fn lines() -> impl std::io::Write {
    std::io::BufWriter::new(std::io::stdout().lock())
}
