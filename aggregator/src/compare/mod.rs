//! Is version B better than version A: two or more sides, each a run or a set of
//! runs, number beside number, with what can be said of the difference. Pure.
//!
//! The first side is what the others are compared with. Sides that were not
//! measured alike are refused ([`alike`]) unless the user insists, and then the
//! differences stand above the numbers.
//!
//! What it cannot know: what else changed between two runs. Within a run,
//! targets are compared at the same time; between runs, only the machine's own
//! steadiness stands for it.

pub mod alike;
pub mod overhead;
mod pairs;
pub mod switchover;

/// What can be said of a number on another side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Better than on the first side.
    Better,
    /// Worse than on the first side.
    Worse,
    /// Chance may have done it.
    NotDistinguishable,
    /// The data could not show a difference if there were one.
    TooFew,
    /// Shown to be looked at; nothing is claimed.
    Shown,
}

impl Verdict {
    /// The words in tables and files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NotDistinguishable => "not distinguishable",
            Self::TooFew => "too few to tell",
            Self::Shown => "",
        }
    }
}

/// A number on two sides.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Whose number it is.
    pub of: String,
    /// Which number.
    pub what: String,
    /// On the first side, as text.
    pub first: String,
    /// On the other side, as text.
    pub other: String,
    /// The difference with its interval, as text.
    pub difference: String,
    /// Lower end, middle and upper end of the difference, where there is an
    /// interval: a factor for `is_factor`, else in the number's unit.
    pub interval: Option<(f64, f64, f64)>,
    /// Whether the difference is a factor.
    pub is_factor: bool,
    /// Adjusted probability of so much by chance.
    pub p_holm: Option<f64>,
    /// What can be said.
    pub verdict: Verdict,
}

/// One side against the first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Compared {
    /// Every number.
    pub lines: Vec<Line>,
    /// What has to be said beside the numbers.
    pub caveats: Vec<String>,
}

impl Compared {
    /// Whether anything is worse.
    pub fn is_worse(&self) -> bool {
        self.lines.iter().any(|l| l.verdict == Verdict::Worse)
    }

    /// Whether anything could be told at all.
    pub fn can_tell(&self) -> bool {
        self.lines.iter().any(|l| {
            matches!(
                l.verdict,
                Verdict::Better | Verdict::Worse | Verdict::NotDistinguishable
            )
        })
    }
}
