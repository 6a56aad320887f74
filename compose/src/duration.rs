//! Durations as people write them: `250ms`, `1.5s`, `1m30s`. Inside, integer
//! nanoseconds.

const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// What a duration may look like, for error texts.
pub const FORM: &str = "a number with a unit (ns, us, ms, s, m, h), such as \"250ms\" or \"1m30s\"";

/// Reads a duration. Errs with a text that says what is wrong with it.
pub fn parse(text: &str) -> Result<u64, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(format!("a duration is missing; write {FORM}"));
    }
    let mut total = 0u64;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(|| format!("`{text}` has no unit; write {FORM}"))?;
        let (number, tail) = rest.split_at(digits);
        let end = tail
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(tail.len());
        let (word, after) = tail.split_at(end);
        let (_, unit) = UNITS
            .iter()
            .find(|(name, _)| *name == word)
            .ok_or_else(|| format!("`{text}` is not a duration; write {FORM}"))?;
        total = scaled(number, *unit)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(|| format!("`{text}` is not a duration that can be kept; write {FORM}"))?;
        rest = after.trim_start();
    }
    Ok(total)
}

fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || fraction.len() > 9 {
        return None;
    }
    let mut total = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    if !fraction.is_empty() {
        let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
        let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(unit) / scale;
        total = total.checked_add(u64::try_from(part).ok()?)?;
    }
    Some(total)
}

/// The shortest exact text of a duration.
pub fn text(ns: u64) -> String {
    if ns == 0 {
        return "0 s".to_owned();
    }
    for (name, unit) in [
        ("h", 3_600_000_000_000),
        ("min", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
    ] {
        if ns.is_multiple_of(unit) {
            return format!("{} {name}", ns / unit);
        }
        // One or two decimals read better than thousands of the next unit.
        if ns > unit && ns.is_multiple_of(unit / 100) && unit <= 1_000_000_000 {
            let hundredths = ns / (unit / 100);
            let decimals = format!("{}.{:02}", hundredths / 100, hundredths % 100);
            return format!("{} {name}", decimals.trim_end_matches('0'));
        }
    }
    format!("{ns} ns")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &str, expect: Option<u64>) {
        assert_eq!(parse(input).ok(), expect, "{input:?}");
    }

    #[test]
    fn durations_are_read_exactly() {
        check("30s", Some(30_000_000_000));
        check("250ms", Some(250_000_000));
        check("1.5s", Some(1_500_000_000));
        check("1m30s", Some(90_000_000_000));
        check(" 10 ms", None);
        check("0s", Some(0));
        check("10", None);
        check("", None);
        check("s", None);
        check("1.2.3s", None);
        check("-1s", None);
        check("10 parsecs", None);
        check("99999999999999999999s", None);
        check("9999999999h", None);
    }

    #[test]
    fn texts_can_be_read_again() {
        for ns in [1, 1_000, 250_000_000, 1_500_000_000, 120_000_000_000] {
            assert_eq!(parse(&text(ns).replace(' ', "")), Ok(ns));
        }
    }

    #[test]
    fn texts_are_short_and_exact() {
        assert_eq!(text(30_000_000_000), "30 s");
        assert_eq!(text(1_500_000_000), "1.5 s");
        assert_eq!(text(250_000_000), "250 ms");
        assert_eq!(text(1_234_567), "1234567 ns");
        assert_eq!(text(90_000_000_000), "90 s");
        assert_eq!(text(120_000_000_000), "2 min");
    }
}
