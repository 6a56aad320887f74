//! Durations as people write them: `500ms`, `30s`, `1.5h`.

/// The longest: times are signed 64-bit nanoseconds, and lengths are added to them.
const LONGEST_NS: u64 = i64::MAX.unsigned_abs() / 2;

/// Reads a duration into nanoseconds.
///
/// # Errors
/// When there is no number or no known unit, or it does not fit.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .ok_or_else(|| format!("`{text}` has no unit: write ns, us, ms, s, m or h after it"))?;
    let (number, unit) = text.split_at(split);
    let factor: u64 = match unit.trim() {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        other => {
            return Err(format!(
                "unknown unit `{other}`; known: ns, us, ms, s, m, h"
            ));
        }
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let wrong = || format!("`{text}` is not a duration such as 500ms or 1.5s");
    let too_long = || {
        let most = LONGEST_NS / 3_600_000_000_000;
        format!("`{text}` is too long: at most {most}h can be said")
    };
    let is_number = !whole.is_empty() && whole.bytes().all(|digit| digit.is_ascii_digit());
    let whole: u64 = match whole.parse() {
        Ok(whole) => whole,
        Err(_) if is_number => return Err(too_long()),
        Err(_) => return Err(wrong()),
    };
    let mut ns = whole.checked_mul(factor).ok_or_else(too_long)?;
    if !fraction.is_empty() {
        if fraction.len() > 12 {
            return Err(wrong());
        }
        let digits: u128 = fraction.parse().map_err(|_| wrong())?;
        let part = digits * u128::from(factor) / 10u128.pow(fraction.len() as u32);
        ns = ns
            .checked_add(u64::try_from(part).map_err(|_| wrong())?)
            .ok_or_else(too_long)?;
    }
    if ns > LONGEST_NS {
        return Err(too_long());
    }
    Ok(ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, expect: Option<u64>) {
        assert_eq!(parse(text).ok(), expect, "{text:?}");
    }

    #[test]
    fn durations() {
        check("500ms", Some(500_000_000));
        check("30s", Some(30_000_000_000));
        check("1.5s", Some(1_500_000_000));
        check("0.25ms", Some(250_000));
        check("2 h", Some(7_200_000_000_000));
        check("100us", Some(100_000));
        check("30", None);
        check("s", None);
        check("1.2.3s", None);
        check("-1s", None);
        check("1w", None);
        check("99999999999999h", None);
        check("1281023h", Some(1_281_023 * 3_600_000_000_000));
        for long in ["99999999h", "99999999999999999999999s", "1281024h"] {
            let why = parse(long).expect_err(long);
            assert!(why.contains("too long: at most 1281023h"), "{why}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_duration_or_an_error(text in "\\PC{0,20}|[0-9]{0,24}\\.?[0-9]{0,16} ?[a-zµ]{0,3}") {
            let _ = parse(&text);
        }

        #[test]
        fn milliseconds_go_round(ms in 0u64..1 << 40) {
            prop_assert_eq!(parse(&format!("{ms}ms")), Ok(ms * 1_000_000));
        }
    }
}
