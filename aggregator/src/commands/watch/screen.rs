//! Draws on the terminal until somebody has seen enough.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use gapscope_proto::clock::{Clock, SystemClock};
use ratatui::termion::input::TermRead;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::Told;
use super::draw::{Look, Place, frame};
use super::shown::Shown;
use super::term::{Key, Screen};
use crate::exit::Exit;
use crate::output::note;

/// Between two drawings: a strip moves on by itself.
const DRAW_EVERY: Duration = Duration::from_millis(250);

fn read_keys(wanted: &AtomicBool, tell: &mpsc::Sender<Key>) {
    let mut keys = std::io::stdin().keys();
    while wanted.load(Ordering::Relaxed) {
        match keys.next() {
            // It comes back by itself after a fifth of a second.
            None => {}
            Some(Err(_)) => return,
            Some(Ok(pressed)) => {
                if let Some(key) = Key::of(pressed)
                    && tell.blocking_send(key).is_err()
                {
                    return;
                }
            }
        }
    }
}

/// Draws until somebody has seen enough.
pub(super) async fn show(told: mpsc::Receiver<Told>, ascii: bool) -> anyhow::Result<Exit> {
    use std::io::IsTerminal;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut hang_up = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
    let wanted = Arc::new(AtomicBool::new(true));
    // Without a keyboard the sender lives on, and nobody sends.
    let (tell, keys) = mpsc::channel(16);
    let last = {
        let mut screen = Screen::take().context("cannot take the terminal")?;
        let (still, teller) = (wanted.clone(), tell.clone());
        let reading = std::io::stdin()
            .is_terminal()
            .then(|| std::thread::spawn(move || read_keys(&still, &teller)));
        let last = tokio::select! {
            last = look(&mut screen, told, keys, ascii) => last,
            _ = interrupt.recv() => Ok(None),
            _ = terminate.recv() => Ok(None),
            _ = hang_up.recv() => Ok(None),
        };
        wanted.store(false, Ordering::Relaxed);
        // So that nothing reads the keys that are meant for the shell.
        if let Some(reading) = reading {
            let _ = reading.join();
        }
        drop(tell);
        last
    };
    if let Some(last) = last? {
        note(last);
    }
    Ok(Exit::Ok)
}

/// Gives back a line for when the terminal is given back.
async fn look(
    screen: &mut Screen,
    mut told: mpsc::Receiver<Told>,
    mut keys: mpsc::Receiver<Key>,
    ascii: bool,
) -> anyhow::Result<Option<String>> {
    let clock = SystemClock::new();
    let look = Look::of_environment(ascii);
    let mut shown = Shown::default();
    let mut place = Place::default();
    let mut heard_ns = clock.raw_ns();
    let mut is_told = true;
    let mut ticks = tokio::time::interval(DRAW_EVERY);
    let mut resized =
        signal(SignalKind::window_change()).context("cannot wait for changes of size")?;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = resized.recv() => {}
            message = told.recv(), if is_told => match message {
                Some(Told::View(view)) => {
                    heard_ns = clock.raw_ns();
                    shown.apply(*view);
                    // Drawn at the next tick: views may come faster than that.
                    continue;
                }
                Some(Told::Gone(why)) => shown.gone = Some(why),
                Some(Told::Over) | None => is_told = false,
            },
            key = keys.recv() => match key {
                None | Some(Key::Quit) => {
                    let run = shown.view.map(|view| view.run_id);
                    return Ok(run.map(|run| format!("run {run}: `gapscope-aggregator report {run}`")));
                }
                Some(Key::Pause) => place.pause(&shown, since(&clock, heard_ns)),
                Some(Key::Scroll(by)) => place.scroll(by),
            },
        }
        let silent_ns = since(&clock, heard_ns);
        let drawn = screen.draw(look, |size| {
            frame(&shown, &mut place, look, silent_ns, size)
        });
        drawn.context("cannot draw")?;
    }
}

fn since(clock: &SystemClock, heard_ns: i64) -> u64 {
    u64::try_from(clock.raw_ns() - heard_ns).unwrap_or(0)
}
