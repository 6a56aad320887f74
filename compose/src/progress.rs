//! What people see while a run goes on: per target the last seconds as a strip,
//! which backend answers, what the newest error was. Never used for results.
//!
//! Method: the agents' counters, about twice a second. The difference between two
//! readings becomes one cell of the strip. The time in front is the lab's own,
//! since the run's start; agents begin some milliseconds later.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

use crate::control::Counters;
use gapscope_proto::plain::visible;

/// What one reading adds to a target's strip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// Every answer was good.
    Good,
    /// Some were bad.
    Mixed,
    /// All were bad.
    Bad,
    /// No probe ended: nobody answered, and nobody gave up yet.
    Silent,
}

impl Cell {
    fn of(ok: u64, bad: u64) -> Self {
        match (ok, bad) {
            (0, 0) => Self::Silent,
            (_, 0) => Self::Good,
            (0, _) => Self::Bad,
            _ => Self::Mixed,
        }
    }

    fn sign(self, unicode: bool) -> char {
        match (self, unicode) {
            (Self::Good, true) => '▁',
            (Self::Mixed, true) => '▄',
            (Self::Bad, true) => '█',
            (Self::Silent, true) => '·',
            (Self::Good, false) => '_',
            (Self::Mixed, false) => 'x',
            (Self::Bad, false) => 'X',
            (Self::Silent, false) => '.',
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Mixed => "33",
            Self::Bad => "31",
            Self::Silent => "35",
        }
    }
}

/// How to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Block characters may be used.
    pub unicode: bool,
    /// Colours may be used.
    pub colour: bool,
    /// Columns there are.
    pub width: usize,
}

impl Look {
    /// What the environment allows.
    pub fn of_environment(tty: bool, width: usize, ascii: bool) -> Self {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
            .unwrap_or_default()
            .to_ascii_uppercase();
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            unicode: !ascii && (locale.contains("UTF-8") || locale.contains("UTF8")),
            colour: tty && !plain && std::env::var("TERM").is_ok_and(|term| term != "dumb"),
            width,
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Target {
    ok: u64,
    bad: u64,
    backends: Vec<String>,
    last_error: String,
    strip: VecDeque<Cell>,
    /// When the newest reading came that had a good answer in it, or the first.
    answered_ns: Option<u64>,
    /// When the newest reading came.
    read_ns: u64,
}

/// Cells kept for each target: half a second each.
const STRIP: usize = 40;
/// So long without a good answer is said in words.
const SILENCE_NS: u64 = 900_000_000;

/// What is known of a run's progress.
#[derive(Debug, Clone)]
pub struct Progress {
    targets: BTreeMap<String, Target>,
    order: Vec<String>,
    /// Backends' names by the identity that probes see.
    names: BTreeMap<String, String>,
    duration_ns: u64,
    /// The duration is only what it can take at most.
    is_bound: bool,
    step: String,
}

impl Progress {
    /// Nothing yet. `names` maps identities to backends' names.
    pub fn new(
        targets: Vec<String>,
        names: BTreeMap<String, String>,
        duration_ns: u64,
        first_step: String,
    ) -> Self {
        Self {
            targets: targets
                .iter()
                .map(|name| (name.clone(), Target::default()))
                .collect(),
            order: targets,
            names,
            duration_ns,
            is_bound: false,
            step: first_step,
        }
    }

    /// The duration is a bound: how long repetitions take is not known beforehand.
    pub fn at_most(self) -> Self {
        Self {
            is_bound: true,
            ..self
        }
    }

    /// What the timeline is at.
    pub fn set_step(&mut self, text: &str) {
        self.step = one_line(text);
    }

    /// Takes in a reading, `elapsed_ns` after the run's zero.
    pub fn update(&mut self, reading: &[Counters], elapsed_ns: u64) {
        let mut sums: BTreeMap<&str, (u64, u64, Vec<String>, String)> = BTreeMap::new();
        for target in reading {
            let sum = sums.entry(&target.target).or_default();
            sum.0 += target.ok;
            sum.1 += target.bad;
            if !target.backend.is_empty() {
                let name = self.names.get(&target.backend).unwrap_or(&target.backend);
                let name = one_line(name);
                if !sum.2.contains(&name) {
                    sum.2.push(name);
                }
            }
            if !target.last_error.is_empty() {
                sum.3 = one_line(&target.last_error);
            }
        }
        for (name, target) in &mut self.targets {
            let Some((ok, bad, backends, last_error)) = sums.remove(name.as_str()) else {
                // Nothing was told yet: before the first probe, not silence.
                if !target.strip.is_empty() {
                    target.strip.push_back(Cell::Silent);
                    target.read_ns = elapsed_ns;
                }
                continue;
            };
            target.read_ns = elapsed_ns;
            if ok > target.ok || target.answered_ns.is_none() {
                target.answered_ns = Some(elapsed_ns);
            }
            target.strip.push_back(Cell::of(
                ok.saturating_sub(target.ok),
                bad.saturating_sub(target.bad),
            ));
            while target.strip.len() > STRIP {
                target.strip.pop_front();
            }
            target.ok = ok;
            target.bad = bad;
            target.backends = backends;
            target.last_error = last_error;
        }
    }

    fn clock(&self, elapsed_ns: u64) -> String {
        format!(
            "{:>5.1} s of {}{:.0} s",
            elapsed_ns as f64 / 1e9,
            if self.is_bound { "at most " } else { "" },
            self.duration_ns as f64 / 1e9
        )
    }

    fn strip(&self, target: &Target, look: Look, most: usize) -> String {
        let skip = target.strip.len().saturating_sub(most);
        let mut text = " ".repeat(most.saturating_sub(target.strip.len()));
        let mut colour = "";
        for cell in target.strip.iter().skip(skip) {
            if look.colour && cell.colour() != colour {
                colour = cell.colour();
                write!(text, "\u{1b}[{colour}m").expect("a String takes everything");
            }
            text.push(cell.sign(look.unicode));
        }
        if !colour.is_empty() {
            text.push_str("\u{1b}[0m");
        }
        text
    }

    /// Who answers, and how many were bad. While nobody answers, that: "0 bad" alone
    /// would be read as health, where clients wait and none has given up yet. It is
    /// counted from the last good answer: a probe that is given up or refused
    /// meanwhile ends nothing.
    fn state(target: &Target) -> String {
        let bad = format!("{} bad", target.bad);
        let silent_ns = target
            .answered_ns
            .map_or(0, |answered| target.read_ns.saturating_sub(answered));
        if silent_ns >= SILENCE_NS {
            format!(
                "NO ANSWER for {:.1} s and counting, {bad}",
                silent_ns as f64 / 1e9
            )
        } else if target.backends.is_empty() {
            format!("on nobody yet, {bad}")
        } else {
            format!("on {}, {bad}", target.backends.join(", "))
        }
    }

    /// The block that is drawn over and over on a terminal.
    pub fn block(&self, elapsed_ns: u64, look: Look) -> Vec<String> {
        // The last column stays free: where it is filled, some terminals break the
        // line already.
        let width = look.width.max(40) - 1;
        let name_width = self
            .order
            .iter()
            .map(|name| name.chars().count())
            .max()
            .unwrap_or(0)
            .min(24);
        let strip_width = STRIP.min(width / 3);
        let mut lines = vec![cut(
            &format!("{}  {}", self.clock(elapsed_ns), self.step),
            width,
        )];
        for name in &self.order {
            let target = &self.targets[name];
            let mut rest = Self::state(target);
            if !target.last_error.is_empty() {
                write!(rest, ": {}", target.last_error).expect("a String takes everything");
            }
            lines.push(format!(
                "{:<name_width$} {} {}",
                cut(name, name_width),
                self.strip(target, look, strip_width),
                cut(&rest, width.saturating_sub(name_width + strip_width + 3)),
            ));
        }
        lines
    }

    /// One line, for logs.
    pub fn line(&self, elapsed_ns: u64, look: Look) -> String {
        let plain = Look {
            colour: false,
            ..look
        };
        let mut text = self.clock(elapsed_ns);
        for name in &self.order {
            let target = &self.targets[name];
            write!(
                text,
                "  {name} {} {}",
                self.strip(target, plain, 10).trim_start(),
                Self::state(target),
            )
            .expect("a String takes everything");
        }
        text
    }
}

/// In the block every line is one line, whatever servers say.
fn one_line(text: &str) -> String {
    visible(text).replace(['\n', '\t'], " ")
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('~');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Look = Look {
        unicode: false,
        colour: false,
        width: 100,
    };

    /// Between two readings.
    const HALF_NS: u64 = 500_000_000;

    fn reading(ok: u64, bad: u64, backend: &str, last_error: &str) -> Vec<Counters> {
        let of_style = |ok, bad| Counters {
            target: "haproxy".to_owned(),
            ok,
            bad,
            backend: backend.to_owned(),
            last_error: last_error.to_owned(),
        };
        vec![of_style(ok, bad), of_style(0, 0)]
    }

    fn progress() -> Progress {
        Progress::new(
            vec!["haproxy".to_owned()],
            BTreeMap::from([("host:1".to_owned(), "backend-1".to_owned())]),
            30_000_000_000,
            "next: stop".to_owned(),
        )
    }

    #[test]
    fn differences_become_cells() {
        let mut progress = progress();
        for (at, (ok, bad)) in [(100, 0), (200, 0), (250, 3), (250, 9), (250, 9), (300, 9)]
            .into_iter()
            .enumerate()
        {
            progress.update(&reading(ok, bad, "host:1", "refused"), at as u64 * HALF_NS);
        }
        let block = progress.block(12_340_000_000, PLAIN);
        assert_eq!(block[0], " 12.3 s of 30 s  next: stop");
        assert!(
            block[1].contains("__xX._ on backend-1, 9 bad: refused"),
            "{block:?}"
        );
        assert!(
            progress
                .line(0, PLAIN)
                .contains("haproxy __xX._ on backend-1, 9 bad"),
            "{}",
            progress.line(0, PLAIN)
        );
    }

    #[test]
    fn a_hang_is_not_shown_as_nothing_bad() {
        let mut progress = progress();
        for (at, ok) in [100, 200, 200, 200, 200].into_iter().enumerate() {
            progress.update(&reading(ok, 0, "host:1", ""), at as u64 * HALF_NS);
        }
        let line = progress.block(0, PLAIN)[1].clone();
        assert!(
            line.contains("NO ANSWER for 1.5 s and counting, 0 bad"),
            "{line}"
        );
        assert!(progress.line(0, PLAIN).contains("NO ANSWER"));
        progress.update(&reading(300, 0, "host:1", ""), 5 * HALF_NS);
        assert!(progress.block(0, PLAIN)[1].contains("on backend-1, 0 bad"));
    }

    #[test]
    fn what_is_given_up_meanwhile_does_not_restart_the_count() {
        let mut progress = progress();
        progress.update(&reading(100, 0, "host:1", ""), 0);
        // Longer than the strip, and clients run into their timeouts.
        for at in 1..=60 {
            progress.update(&reading(100, at / 10, "host:1", "timeout"), at * HALF_NS);
        }
        let line = progress.block(
            0,
            Look {
                width: 120,
                ..PLAIN
            },
        )[1]
        .clone();
        assert!(
            line.contains("NO ANSWER for 30.0 s and counting, 6 bad"),
            "{line}"
        );
    }

    #[test]
    fn unknown_identities_are_shown_as_they_are() {
        let mut progress = progress();
        progress.update(&reading(1, 0, "elsewhere:7", ""), 0);
        assert!(progress.block(0, PLAIN)[1].contains("on elsewhere:7, 0 bad"));
    }

    #[test]
    fn lines_keep_to_the_width() {
        let mut progress = progress();
        progress.update(&reading(1, 1, "host:1", &"long ".repeat(50)), 0);
        for width in [40, 80, 120] {
            for line in progress.block(0, Look { width, ..PLAIN }) {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn the_strip_is_bounded() {
        let mut progress = progress();
        for ok in 0..1_000 {
            progress.update(&reading(ok, 0, "host:1", ""), ok * HALF_NS);
        }
        assert_eq!(progress.targets["haproxy"].strip.len(), STRIP);
    }
}
