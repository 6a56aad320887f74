//! Data on stdout, people on stderr.

use std::fmt;
use std::io::IsTerminal;

use gapscope_proto::plain::{columns, fitted};
use gapscope_proto::tls::Trouble;

use crate::store::StoreError;

/// An error with something that a person can do about it.
#[derive(Debug)]
pub struct Hint(pub String);

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Hint {}

/// An error text with a hint.
pub fn hinted(error: impl fmt::Display, hint: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Hint(hint.into())).context(error.to_string())
}

/// What is wrong with a connection or its files, as an error for a person.
pub fn in_trouble(trouble: Trouble) -> anyhow::Error {
    match trouble.hint {
        Some(hint) => hinted(trouble.what, hint),
        None => anyhow::anyhow!("{}", trouble.what),
    }
}

/// Says on stderr what failed and what to do.
pub fn error(error: &anyhow::Error) {
    let mut texts = Vec::new();
    let mut hint = None;
    for cause in error.chain() {
        if let Some(found) = cause.downcast_ref::<Hint>() {
            hint = Some(found.0.clone());
            continue;
        }
        if let Some(store) = cause.downcast_ref::<StoreError>() {
            hint = hint.or(store.hint().map(str::to_owned));
        }
        let text = cause.to_string();
        // Some errors repeat their source in their own text.
        if !texts.iter().any(|said: &String| said.ends_with(&text)) {
            texts.push(text);
        }
    }
    note(format!("error: {}", texts.join(": ")));
    if let Some(hint) = hint {
        note(format!("hint: {hint}"));
    }
}

/// A line of data. Whoever reads it may have had enough (`| head`): then the
/// rest is not wanted, and that is no failure.
pub fn data(line: impl fmt::Display) {
    use std::io::Write;
    if let Err(error) = writeln!(std::io::stdout().lock(), "{line}")
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        note(format!("warning: the output cannot be written: {error}"));
    }
}

/// A line for people, broken where it would not fit.
pub fn note(line: impl fmt::Display) {
    let columns = columns_of(std::io::stderr());
    eprintln!("{}", fitted(&line.to_string(), columns));
}

/// Columns of standard output, if it is a terminal or `COLUMNS` says.
pub fn stdout_columns() -> Option<usize> {
    columns_of(std::io::stdout())
}

fn columns_of(stream: impl std::os::fd::AsFd) -> Option<usize> {
    let terminal = rustix::termios::tcgetwinsize(stream)
        .ok()
        .map(|size| usize::from(size.ws_col));
    columns(terminal, std::env::var("COLUMNS").ok().as_deref())
}

/// Starts logging to stderr; `GAPSCOPE_LOG` says how much (`info` by default).
/// Does nothing if the process logs already.
pub fn start_tracing() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("GAPSCOPE_LOG").unwrap_or_else(|_| {
        tracing_subscriber::EnvFilter::new("warn,gapscope_aggregator=info,gapscope_proto=info")
    });
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .with_target(false)
        .try_init();
}
