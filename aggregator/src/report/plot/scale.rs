//! From values to places on a line, and the ticks that explain it.

/// A linear or logarithmic scale from values to pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    from: f64,
    to: f64,
    begin: f64,
    end: f64,
    is_log: bool,
}

impl Scale {
    /// `from..to` lies evenly on `begin..end`.
    pub fn linear((from, to): (f64, f64), (begin, end): (f64, f64)) -> Self {
        Self {
            from,
            to: if to > from { to } else { from + 1.0 },
            begin,
            end,
            is_log: false,
        }
    }

    /// Powers of ten lie evenly on `begin..end`; values at or below zero count
    /// as `from`.
    pub fn log((from, to): (f64, f64), (begin, end): (f64, f64)) -> Self {
        let from = if from > 0.0 { from } else { 1.0 };
        Self {
            from,
            to: if to > from { to } else { from * 10.0 },
            begin,
            end,
            is_log: true,
        }
    }

    /// Where a value lies; values outside stay at the ends.
    pub fn at(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value.max(self.from) / self.from).log10() / (self.to / self.from).log10()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.begin + (self.end - self.begin) * share.clamp(0.0, 1.0)
    }

    /// Round values within, with their texts; about `most` of them at the most.
    pub fn ticks(&self, most: usize) -> Vec<(f64, String)> {
        if self.is_log {
            return self.log_ticks(most);
        }
        let step = round_step((self.to - self.from) / most.max(1) as f64);
        let digits = usize::try_from((-step.log10().floor()).max(0.0) as i64).unwrap_or(0);
        let first = (self.from / step).ceil() as i64;
        let last = (self.to / step + 1e-9).floor() as i64;
        (first..=last)
            .map(|k| {
                let value = k as f64 * step;
                // No "-0".
                let value = if k == 0 { 0.0 } else { value };
                (value, format!("{value:.digits$}"))
            })
            .collect()
    }

    fn log_ticks(&self, most: usize) -> Vec<(f64, String)> {
        let first = self.from.log10().ceil() as i32;
        let last = (self.to.log10() + 1e-9).floor() as i32;
        let decades = usize::try_from((last - first + 1).max(0)).unwrap_or(0);
        let every = decades.div_ceil(most.max(1)).max(1);
        let mut ticks: Vec<(f64, String)> = (first..=last)
            .step_by(every)
            .map(|power| 10f64.powi(power))
            .map(|value| (value, number(value)))
            .collect();
        if ticks.len() < 2 {
            // Less than a decade or two: the ends say more than nothing.
            ticks = [1.0, 2.0, 5.0]
                .into_iter()
                .flat_map(|head| (first - 1..=last + 1).map(move |p| head * 10f64.powi(p)))
                .filter(|value| (self.from..=self.to).contains(value))
                .map(|value| (value, number(value)))
                .collect();
        }
        ticks
    }
}

/// The next of 1, 2, 5 times a power of ten.
fn round_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    let head = rough / power;
    let round = [1.0, 2.0, 5.0].into_iter().find(|r| head <= *r + 1e-9);
    round.unwrap_or(10.0) * power
}

/// A number without trailing zeros.
pub fn number(value: f64) -> String {
    let digits = if value == 0.0 || value.abs() >= 1.0 {
        2
    } else {
        usize::try_from(2 - value.abs().log10().floor() as i64).unwrap_or(2)
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(scale: &Scale, most: usize) -> Vec<String> {
        scale.ticks(most).into_iter().map(|(_, t)| t).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        let scale = Scale::linear((-0.4, 30.0), (0.0, 100.0));
        assert_eq!(texts(&scale, 8), ["0", "5", "10", "15", "20", "25", "30"]);
        let scale = Scale::linear((0.0, 0.03), (0.0, 100.0));
        assert_eq!(texts(&scale, 4), ["0.00", "0.01", "0.02", "0.03"]);
        let scale = Scale::log((20.0, 40_000.0), (0.0, 100.0));
        assert_eq!(texts(&scale, 5), ["100", "1000", "10000"]);
        let scale = Scale::log((20.0, 60.0), (0.0, 100.0));
        assert_eq!(texts(&scale, 5), ["20", "50"]);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(number(0.001), "0.001");
        assert_eq!(number(1000.0), "1000");
        assert_eq!(number(2.50), "2.5");
        assert_eq!(number(0.0), "0");
    }

    proptest! {
        #[test]
        fn every_value_lies_within(
            from in -1e9f64..1e9, span in 1e-6f64..1e9, value in -1e12f64..1e12, log in any::<bool>()
        ) {
            let scale = if log {
                Scale::log((from, from + span), (10.0, 90.0))
            } else {
                Scale::linear((from, from + span), (90.0, 10.0))
            };
            prop_assert!((10.0..=90.0).contains(&scale.at(value)));
            prop_assert!(scale.ticks(6).len() < 40);
        }
    }
}
