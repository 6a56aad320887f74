//! The terminal: taken, and given back whatever happens.
//!
//! Sequences that every terminal since the VT100 and xterm knows, and termios: nothing
//! more is needed than lines from the top, a size and some keys.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, Once, PoisonError};

use rustix::termios::{OptionalActions, SpecialCodeIndex, Termios};

use super::paint::Line;

/// The other screen, no cursor, no breaking of long lines.
const TAKE: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l";
const GIVE_BACK: &str = "\u{1b}[0m\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l";
/// How long a look for keys lasts, in tenths of a second.
const KEYS_WITHIN: u8 = 2;

/// How the terminal was; none while it is not taken.
static BEFORE: Mutex<Option<Option<Termios>>> = Mutex::new(None);

fn give_back() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(termios) = before {
        let mut out = io::stdout();
        // Nobody could be told that it cannot be given back.
        let _ = out.write_all(GIVE_BACK.as_bytes());
        let _ = out.flush();
        if let Some(termios) = termios {
            let _ = rustix::termios::tcsetattr(io::stdin(), OptionalActions::Flush, &termios);
        }
    }
}

/// A terminal that is drawn upon.
pub(super) struct Screen(());

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

impl Screen {
    /// Takes it. A panic gives it back before it is told of.
    pub(super) fn take() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let other = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                other(panic);
            }));
        });
        let termios = match io::stdin().is_terminal() {
            true => Some(rustix::termios::tcgetattr(io::stdin())?),
            false => None,
        };
        if let Some(before) = &termios {
            let mut raw = before.clone();
            raw.make_raw();
            // A read for keys comes back by itself.
            raw.special_codes[SpecialCodeIndex::VMIN] = 0;
            raw.special_codes[SpecialCodeIndex::VTIME] = KEYS_WITHIN;
            *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(termios);
            rustix::termios::tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
        } else {
            *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(None);
        }
        let screen = Self(());
        let mut out = io::stdout();
        out.write_all(TAKE.as_bytes())?;
        out.flush()?;
        Ok(screen)
    }

    /// Columns and rows.
    pub(super) fn size(&self) -> (usize, usize) {
        match rustix::termios::tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (usize::from(size.ws_col), usize::from(size.ws_row))
            }
            _ => (80, 24),
        }
    }

    /// Draws lines from the top, and nothing below them.
    pub(super) fn draw(&self, lines: &[Line], colour: bool) -> io::Result<()> {
        let (width, height) = self.size();
        let mut text = String::from("\u{1b}[H");
        for (row, line) in lines.iter().take(height).enumerate() {
            if row > 0 {
                text.push_str("\r\n");
            }
            // Emptied first: behind a full line the cursor stands on its last sign.
            text.push_str("\u{1b}[K");
            text.push_str(&line.ansi(width, colour));
        }
        if lines.len() < height {
            text.push_str("\r\n\u{1b}[J");
        }
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// A key that means something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// Enough.
    Quit,
    /// Stand, or go on.
    Pause,
    /// By so many lanes.
    Scroll(i32),
}

/// The keys in what a terminal sends.
pub(super) fn keys(mut bytes: &[u8]) -> Vec<Key> {
    const SEQUENCES: [(&[u8], Key); 6] = [
        (b"\x1b[A", Key::Scroll(-1)),
        (b"\x1b[B", Key::Scroll(1)),
        (b"\x1bOA", Key::Scroll(-1)),
        (b"\x1bOB", Key::Scroll(1)),
        (b"\x1b[5~", Key::Scroll(-5)),
        (b"\x1b[6~", Key::Scroll(5)),
    ];
    let mut found = Vec::new();
    while let Some((first, rest)) = bytes.split_first() {
        if *first == 0x1b && !rest.is_empty() {
            let known = SEQUENCES.iter().find(|(text, _)| bytes.starts_with(text));
            match known {
                Some((text, key)) => {
                    found.push(*key);
                    bytes = &bytes[text.len()..];
                }
                // Some other key: nothing of it means anything here.
                None => return found,
            }
            continue;
        }
        match first {
            b'q' | 0x03 | 0x04 | 0x1b => found.push(Key::Quit),
            b'p' | b' ' => found.push(Key::Pause),
            b'k' => found.push(Key::Scroll(-1)),
            b'j' => found.push(Key::Scroll(1)),
            _ => {}
        }
        bytes = rest;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_terminal() {
        assert_eq!(keys(b"q"), [Key::Quit]);
        assert_eq!(keys(b"\x03"), [Key::Quit]);
        assert_eq!(keys(b"\x1b"), [Key::Quit]);
        assert_eq!(
            keys(b"\x1b[A\x1b[6~p"),
            [Key::Scroll(-1), Key::Scroll(5), Key::Pause]
        );
        assert_eq!(
            keys(b"\x1b[1;5Cq"),
            [],
            "a key that means nothing quits nothing"
        );
        assert_eq!(keys(b"xyz"), []);
    }
}
