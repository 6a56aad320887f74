//! Data to stdout, people to stderr; the only place that prints.

use std::io::{IsTerminal, Write};

use crate::progress::{Look, Progress};
use gapscope_proto::plain::{columns, fitted, visible};

/// Writes data to stdout. A reader that has gone away is no error.
pub fn data(text: &str) {
    let mut out = std::io::stdout().lock();
    // `print!` panics where the reader has closed the pipe.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Tells a person, in lines that fit.
pub fn say(text: &str) {
    let text = fitted(&visible(text), stderr_columns());
    let mut err = std::io::stderr().lock();
    let _ = writeln!(err, "{text}");
}

/// Tells a person a command to copy: on a line of its own, however long.
pub fn command(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ = writeln!(err, "  {}", visible(text));
}

/// Columns of what is behind a stream, if anybody says.
fn columns_of(stream: impl std::os::fd::AsFd) -> Option<usize> {
    let terminal = rustix::termios::tcgetwinsize(stream)
        .ok()
        .map(|size| usize::from(size.ws_col));
    columns(terminal, std::env::var("COLUMNS").ok().as_deref())
}

/// Columns of standard output, if it is a terminal or `COLUMNS` says.
pub fn stdout_columns() -> Option<usize> {
    columns_of(std::io::stdout())
}

/// For laying out data: as many as there are, 80 where nobody says.
pub fn columns_or_80() -> usize {
    stdout_columns().unwrap_or(80)
}

fn stderr_columns() -> Option<usize> {
    columns_of(std::io::stderr())
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
    /// Looks at what stderr is; `ascii`: without block characters whatever the
    /// locale says.
    pub fn new(ascii: bool) -> Self {
        let tty = std::io::stderr().is_terminal();
        let width = stderr_columns().unwrap_or(80);
        Self {
            look: Look::of_environment(tty, width, ascii),
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

fn write(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}
