//! Data to stdout, people to stderr; the only place that prints.

use std::io::{IsTerminal, Write};

use crate::plain::{visible, wrapped};
use crate::progress::{Look, Progress};

/// Narrower terminals are left to break lines themselves.
const LEAST_WIDTH: usize = 30;

/// Writes data to stdout. A reader that has gone away is no error.
pub fn data(text: &str) {
    let mut out = std::io::stdout().lock();
    // `print!` panics where the reader has closed the pipe.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Tells a person; on a terminal in lines that fit.
pub fn say(text: &str) {
    let mut text = visible(text);
    if std::io::stderr().is_terminal()
        && let Some(width) = columns(std::io::stderr())
    {
        text = wrapped(&text, width.max(LEAST_WIDTH));
    }
    let mut err = std::io::stderr().lock();
    let _ = writeln!(err, "{text}");
}

/// Columns of the terminal behind a stream, if it is one.
fn columns(stream: impl std::os::fd::AsFd) -> Option<usize> {
    rustix::termios::tcgetwinsize(stream)
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0)
}

/// Columns of standard output, if it is a terminal.
pub fn stdout_columns() -> Option<usize> {
    columns(std::io::stdout())
}

/// Columns to print data in: those of a terminal, else 100.
pub fn width() -> usize {
    stdout_columns().unwrap_or(100).max(LEAST_WIDTH)
}

/// Shows progress on stderr: a live block on a terminal, else a line now and then.
pub struct Screen {
    look: Look,
    live: bool,
    drawn: usize,
    last_line_ns: Option<u64>,
}

/// Time between two lines where there is no terminal.
const LINE_EVERY_NS: u64 = 5_000_000_000;

impl Screen {
    /// Looks at what stderr is.
    pub fn new() -> Self {
        let tty = std::io::stderr().is_terminal();
        let width = columns(std::io::stderr()).unwrap_or(100);
        Self {
            look: Look::of_environment(tty, width),
            live: tty && std::env::var("TERM").is_ok_and(|term| term != "dumb"),
            drawn: 0,
            last_line_ns: None,
        }
    }

    /// Shows where the run stands.
    pub fn show(&mut self, progress: &Progress, elapsed_ns: u64) {
        if self.live {
            let lines = progress.block(elapsed_ns, self.look);
            let mut text = self.up();
            for line in &lines {
                text.push_str(line);
                text.push_str("\u{1b}[K\n");
            }
            self.drawn = lines.len();
            write(&text);
        } else if self
            .last_line_ns
            .is_none_or(|last| elapsed_ns.saturating_sub(last) >= LINE_EVERY_NS)
        {
            self.last_line_ns = Some(elapsed_ns);
            say(&progress.line(elapsed_ns, self.look));
        }
    }

    /// Tells a person something, above the live block.
    pub fn note(&mut self, text: &str) {
        if self.drawn > 0 {
            write(&format!("{}\u{1b}[J", self.up()));
            self.drawn = 0;
        }
        say(text);
    }

    fn up(&self) -> String {
        if self.drawn == 0 {
            String::new()
        } else {
            format!("\u{1b}[{}A\r", self.drawn)
        }
    }
}

impl Default for Screen {
    fn default() -> Self {
        Self::new()
    }
}

fn write(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}
