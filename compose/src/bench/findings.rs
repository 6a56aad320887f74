//! What a benchmark found, and how it is shown. Pure.
//!
//! A finding has one value a round. Shown are the median and the whole range: with
//! the few rounds of a benchmark the range is what one can honestly say.

use std::fmt::Write as _;

use serde::Serialize;

/// What was aimed at.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

impl Goal {
    /// Whether a value reaches it.
    pub fn is_reached(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }

    /// Its number.
    pub const fn bound(self) -> f64 {
        match self {
            Self::AtMost(bound) | Self::AtLeast(bound) => bound,
        }
    }
}

/// One figure, with a value for each round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// What it is of.
    pub name: String,
    /// In what; `x` for a ratio.
    pub unit: &'static str,
    /// One for each round.
    pub values: Vec<f64>,
    /// What was aimed at, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
}

impl Finding {
    /// Without values so far.
    pub fn new(name: impl Into<String>, unit: &'static str, goal: Option<Goal>) -> Self {
        Self {
            name: name.into(),
            unit,
            values: Vec::new(),
            goal,
        }
    }

    /// The middle value; of an even number the mean of both. None without values.
    pub fn median(&self) -> Option<f64> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => None,
            n if n % 2 == 1 => sorted.get(middle).copied(),
            _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
        }
    }

    /// The least and the largest value.
    pub fn range(&self) -> Option<(f64, f64)> {
        let least = self.values.iter().copied().min_by(f64::total_cmp)?;
        let most = self.values.iter().copied().max_by(f64::total_cmp)?;
        Some((least, most))
    }

    /// Whether the median reaches the goal; none without a goal or a value.
    pub fn is_reached(&self) -> Option<bool> {
        Some(self.goal?.is_reached(self.median()?))
    }
}

/// Findings that belong together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// What was measured.
    pub title: String,
    /// What it found.
    pub findings: Vec<Finding>,
    /// What is missing from it, and what has to be said.
    pub notes: Vec<String>,
}

impl Part {
    /// Empty.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            findings: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a round's value; the finding is made at its first.
    pub fn add(&mut self, name: &str, unit: &'static str, value: f64) {
        self.add_aimed(name, unit, None, value);
    }

    /// The same, with what is aimed at.
    pub fn add_aimed(&mut self, name: &str, unit: &'static str, goal: Option<Goal>, value: f64) {
        match self.findings.iter_mut().find(|f| f.name == name) {
            Some(finding) => finding.values.push(value),
            None => {
                let mut finding = Finding::new(name, unit, goal);
                finding.values.push(value);
                self.findings.push(finding);
            }
        }
    }

    /// Adds a note once.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

/// Three digits that count, without an exponent.
pub fn short(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "-".to_owned();
    }
    if size >= 10_000.0 {
        return grouped(value.round() as i64);
    }
    let decimals = match size {
        s if s >= 100.0 => 0,
        s if s >= 10.0 => 1,
        s if s >= 1.0 || s == 0.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// Thousands apart.
fn grouped(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0 {
        text.insert(0, '-');
    }
    text
}

const NAME: usize = 36;

/// All parts as a table of at most 80 columns.
pub fn as_text(parts: &[Part]) -> String {
    let mut out = String::new();
    for part in parts {
        let _ = writeln!(out, "{}", part.title);
        for finding in &part.findings {
            let (Some(median), Some((least, most))) = (finding.median(), finding.range()) else {
                continue;
            };
            let range = if finding.values.len() < 2 {
                String::new()
            } else {
                format!("{}..{}", short(least), short(most))
            };
            let goal = match (finding.goal, finding.is_reached()) {
                (Some(goal), Some(reached)) => format!(
                    "{} {} {}",
                    match goal {
                        Goal::AtMost(_) => "<=",
                        Goal::AtLeast(_) => ">=",
                    },
                    short(goal.bound()),
                    if reached { "ok" } else { "MISSED" }
                ),
                _ => String::new(),
            };
            let line = format!(
                "  {:<NAME$} {:>8} {:<4} {range:>15}  {goal}",
                finding.name,
                short(median),
                finding.unit
            );
            let _ = writeln!(out, "{}", line.trim_end());
        }
        for note in &part.notes {
            let _ = writeln!(out, "  - {note}");
        }
        out.push('\n');
    }
    out
}

/// Every goal, reached or missed, most telling first: missed ones.
pub fn goals(parts: &[Part]) -> (usize, usize) {
    let all = parts.iter().flat_map(|part| &part.findings);
    let judged: Vec<bool> = all.filter_map(Finding::is_reached).collect();
    let reached = judged.iter().filter(|reached| **reached).count();
    (reached, judged.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(values: &[f64], goal: Option<Goal>) -> Finding {
        Finding {
            values: values.to_vec(),
            ..Finding::new("f", "us", goal)
        }
    }

    #[test]
    fn the_middle_and_the_whole_range() {
        let odd = finding(&[3.0, 1.0, 2.0], None);
        assert_eq!((odd.median(), odd.range()), (Some(2.0), Some((1.0, 3.0))));
        assert_eq!(finding(&[4.0, 1.0], None).median(), Some(2.5));
        assert_eq!(finding(&[], None).median(), None);
    }

    #[test]
    fn a_goal_is_reached_by_the_median_at_its_bound() {
        let most = Some(Goal::AtMost(2.0));
        assert_eq!(finding(&[1.0, 2.0, 9.0], most).is_reached(), Some(true));
        assert_eq!(finding(&[1.0, 2.1, 9.0], most).is_reached(), Some(false));
        let least = Some(Goal::AtLeast(2.0));
        assert_eq!(finding(&[1.0, 2.0, 9.0], least).is_reached(), Some(true));
        assert_eq!(finding(&[1.9], least).is_reached(), Some(false));
        assert_eq!(finding(&[1.9], None).is_reached(), None);
        assert_eq!(finding(&[], least).is_reached(), None);
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0.00"),
            (0.0421, "0.042"),
            (1.0499, "1.05"),
            (62.34, "62.3"),
            (512.4, "512"),
            (9_999.4, "9999"),
            (512_345.4, "512,345"),
            (-1_234_567.0, "-1,234,567"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn missed_goals_are_said_and_lines_fit() {
        let mut part = Part::new("closed loop");
        for value in [1.01, 1.10, 1.07] {
            let name = "agent / mariadb-slap, mean latency";
            part.add_aimed(name, "x", Some(Goal::AtMost(1.05)), value);
            part.add("agent, processor time a probe", "us", value * 40.0);
        }
        part.note("sysbench is missing");
        part.note("sysbench is missing");
        let text = as_text(std::slice::from_ref(&part));
        assert!(text.contains("<= 1.05 MISSED"), "{text}");
        assert_eq!(text.matches("sysbench is missing").count(), 1);
        assert!(text.lines().all(|line| line.len() <= 90), "{text}");
        assert_eq!(goals(&[part]), (0, 1));
    }
}
