//! The terminal: taken, and given back whatever happens.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, Once, PoisonError};

use ratatui::Terminal;
use ratatui::backend::TermionBackend;
use ratatui::termion::event::Key as Pressed;
use ratatui::termion::{clear, cursor, screen, style};
use rustix::termios::{OptionalActions, SpecialCodeIndex, Termios};

use super::draw::Look;
use super::paint::{Line, Lines};

/// How long a look for keys lasts, in tenths of a second.
const KEYS_WITHIN: u8 = 2;

/// How the terminal was; none while it is not taken.
static BEFORE: Mutex<Option<Option<Termios>>> = Mutex::new(None);

fn give_back() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(termios) = before {
        let mut out = io::stdout();
        // Nobody could be told that it cannot be given back.
        let _ = write!(
            out,
            "{}{}{}",
            style::Reset,
            cursor::Show,
            screen::ToMainScreen
        );
        let _ = out.flush();
        if let Some(termios) = termios {
            let _ = rustix::termios::tcsetattr(io::stdin(), OptionalActions::Flush, &termios);
        }
    }
}

/// A terminal that is drawn upon.
pub(super) struct Screen(Terminal<TermionBackend<io::Stdout>>);

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
        let terminal = Terminal::new(TermionBackend::new(io::stdout()))?;
        let termios = match io::stdin().is_terminal() {
            true => Some(rustix::termios::tcgetattr(io::stdin())?),
            false => None,
        };
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(termios.clone());
        let screen = Self(terminal);
        if let Some(mut raw) = termios {
            raw.make_raw();
            // A read for keys comes back by itself.
            raw.special_codes[SpecialCodeIndex::VMIN] = 0;
            raw.special_codes[SpecialCodeIndex::VTIME] = KEYS_WITHIN;
            rustix::termios::tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
        }
        let mut out = io::stdout();
        write!(
            out,
            "{}{}{}",
            screen::ToAlternateScreen,
            cursor::Hide,
            clear::All
        )?;
        out.flush()?;
        Ok(screen)
    }

    /// Draws what `lines` makes for so many columns and rows, from the top.
    pub(super) fn draw(
        &mut self,
        look: Look,
        lines: impl FnOnce((usize, usize)) -> Vec<Line>,
    ) -> io::Result<()> {
        self.0.draw(|frame| {
            let area = frame.area();
            let lines = lines((usize::from(area.width), usize::from(area.height)));
            let lines = &lines;
            frame.render_widget(Lines { lines, look }, area);
        })?;
        Ok(())
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

impl Key {
    /// What a key that was pressed means.
    pub(super) const fn of(pressed: Pressed) -> Option<Self> {
        Some(match pressed {
            Pressed::Char('q') | Pressed::Ctrl('c' | 'd') | Pressed::Esc => Self::Quit,
            Pressed::Char('p' | ' ') => Self::Pause,
            Pressed::Up | Pressed::Char('k') => Self::Scroll(-1),
            Pressed::Down | Pressed::Char('j') => Self::Scroll(1),
            Pressed::PageUp => Self::Scroll(-5),
            Pressed::PageDown => Self::Scroll(5),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use ratatui::termion::input::TermRead;

    use super::*;

    fn keys(sent: &[u8]) -> Vec<Key> {
        let pressed = sent.keys().filter_map(Result::ok);
        pressed.filter_map(Key::of).collect()
    }

    #[test]
    fn keys_of_a_terminal() {
        assert_eq!(keys(b"q"), [Key::Quit]);
        assert_eq!(keys(b"\x03"), [Key::Quit]);
        assert_eq!(keys(b"\x1b"), [Key::Quit]);
        assert_eq!(
            keys(b"\x1b[A\x1b[B\x1b[6~p"),
            [Key::Scroll(-1), Key::Scroll(1), Key::Scroll(5), Key::Pause]
        );
        assert_eq!(keys(b"\x1b[1;5C"), [], "a key that means nothing");
        assert_eq!(keys(b"xyz"), []);
    }
}
