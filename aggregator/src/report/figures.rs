//! Numbers as people read them.
//!
//! A point is never printed where only an interval is known. Everything is
//! rounded to the nearest millisecond; the files keep the nanoseconds.

use crate::analyse::latency::Value;
use crate::analyse::stretch::MaxGap;

/// What is printed where there is no value.
pub const NONE: &str = "-";

/// Milliseconds, to the nearest.
fn to_ms(ns: i64) -> i64 {
    ns.saturating_add(MS / 2).div_euclid(MS)
}

fn decimal(thousandths: i64) -> String {
    let sign = if thousandths < 0 { "-" } else { "" };
    let size = thousandths.unsigned_abs();
    format!("{sign}{}.{:03}", size / 1_000, size % 1_000)
}

const MS: i64 = 1_000_000;

/// "11.515 s"
pub fn seconds(ns: i64) -> String {
    format!("{} s", decimal(to_ms(ns)))
}

/// "11.515", to the nearest.
pub fn bare_seconds(ns: i64) -> String {
    decimal(to_ms(ns))
}

/// "0.505..11.516 s", "≥0.505 s" if nothing bounds it from above.
pub fn interval(lower_ns: i64, upper_ns: Option<i64>) -> String {
    let lower = decimal(to_ms(lower_ns));
    match upper_ns {
        Some(upper) => format!("{lower}..{} s", decimal(to_ms(upper))),
        None => format!("≥{lower} s"),
    }
}

/// "+0.108 s", or "+0.107..+0.109 s" where the clocks differ.
pub fn after(earliest_ns: i64, latest_ns: i64) -> String {
    let signed = |thousandths: i64| {
        let text = decimal(thousandths);
        if thousandths < 0 {
            text
        } else {
            format!("+{text}")
        }
    };
    let low = to_ms(earliest_ns);
    let high = to_ms(latest_ns);
    if low == high {
        format!("{} s", signed(low))
    } else {
        format!("{}..{} s", signed(low), signed(high))
    }
}

/// A gap, "≥" if it has no answer at one of its ends, "?" if part of it was not
/// watched.
pub fn gap(gap: MaxGap) -> String {
    format!(
        "{}{}{}",
        if gap.is_at_least { "≥" } else { "" },
        seconds(gap.ns),
        if gap.no_data { " ?" } else { "" }
    )
}

/// Milliseconds without the unit: "2.281"; to three significant figures or so.
pub fn bare_ms(ns: i64) -> String {
    let size = ns.unsigned_abs() as f64 / MS as f64;
    let sign = if ns < 0 { "-" } else { "" };
    if size < 10.0 {
        format!("{sign}{size:.2}")
    } else if size < 1_000.0 {
        format!("{sign}{size:.1}")
    } else {
        format!("{sign}{size:.0}")
    }
}

/// A quantile in ms without the unit. If it falls on slots that never got an
/// answer: ">5001", or "none" where they were given up so soon (a refused
/// connection, say) that the number would read like a short time.
pub fn quantile(value: Option<Value>, deadline_ns: i64) -> String {
    match value {
        None => NONE.to_owned(),
        Some(value) if value.is_more_than && value.ns <= deadline_ns => "none".to_owned(),
        Some(value) => format!(
            "{}{}",
            if value.is_more_than { ">" } else { "" },
            bare_ms(value.ns)
        ),
    }
}

/// "63.3", and never "100.0" unless it is all.
pub fn percent(share: Option<f64>) -> String {
    match share {
        None => NONE.to_owned(),
        Some(share) => {
            let rounded = format!("{:.1}", share * 100.0);
            if share < 1.0 && rounded == "100.0" {
                // Not all: show as many digits as it takes.
                (2..=12)
                    .map(|digits| format!("{:.digits$}", share * 100.0))
                    .find(|text| !text.starts_with("100"))
                    .unwrap_or_else(|| "<100".to_owned())
            } else {
                rounded
            }
        }
    }
}

/// A short duration with its unit: "500 ms", "5 s", "1.5 s", "250 us".
pub fn short(ns: i64) -> String {
    let (value, unit) = match ns.unsigned_abs() {
        0..1_000 => (ns as f64, "ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} {unit}")
}

/// A number, or nothing where it is zero and says nothing.
pub fn count(number: u64) -> String {
    number.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_stay_intervals() {
        assert_eq!(
            interval(505_093_000, Some(11_516_401_000)),
            "0.505..11.516 s"
        );
        assert_eq!(interval(0, None), "≥0.000 s");
        assert_eq!(interval(1_000_000, Some(1_000_000)), "0.001..0.001 s");
    }

    #[test]
    fn points_are_rounded_to_the_nearest() {
        assert_eq!(seconds(11_514_600_000), "11.515 s");
        assert_eq!(seconds(-1_500_000), "-0.001 s");
        assert_eq!(after(107_600_000, 107_600_000), "+0.108 s");
        assert_eq!(after(-2_000_000, 3_000_000), "-0.002..+0.003 s");
    }

    #[test]
    fn almost_all_is_not_all() {
        assert_eq!(percent(Some(1.0)), "100.0");
        assert_eq!(percent(Some(0.633_333)), "63.3");
        assert_eq!(percent(Some(0.999_9)), "99.99");
        assert_eq!(percent(Some(0.999_95)), "99.995");
        assert_eq!(percent(Some(0.0)), "0.0");
        assert_eq!(percent(None), "-");
    }

    #[test]
    fn short_durations_keep_their_unit() {
        assert_eq!(short(500_000_000), "500 ms");
        assert_eq!(short(5_000_000_000), "5 s");
        assert_eq!(short(1_500_000_000), "1.5 s");
        assert_eq!(short(0), "0 ns");
    }
}
