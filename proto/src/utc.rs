//! Wall time for people: labels, never arithmetic.

/// Nanoseconds since 1970 as RFC 3339 in UTC, to the millisecond.
pub fn rfc3339(realtime_ns: i64) -> String {
    let seconds = realtime_ns.div_euclid(1_000_000_000);
    let millis = realtime_ns.rem_euclid(1_000_000_000) / 1_000_000;
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{millis:03}Z",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

/// Seconds since 1970 as a date and time in UTC, for a sentence.
pub fn minute(realtime_s: i64) -> String {
    let text = rfc3339(realtime_s.saturating_mul(1_000_000_000));
    format!("{} {} UTC", &text[..10], &text[11..16])
}

/// Days since 1970-01-01 to a date of the Gregorian calendar. Counts eras of 400
/// years from the first of March, so that the leap day is a year's last.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar: `civil` backwards.
pub fn day(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(realtime_ns: i64, expect: &str) {
        assert_eq!(rfc3339(realtime_ns), expect);
    }

    #[test]
    fn known_instants() {
        check(0, "1970-01-01T00:00:00.000Z");
        check(-1, "1969-12-31T23:59:59.999Z");
        check(951_782_400_000_000_000, "2000-02-29T00:00:00.000Z");
        check(1_773_200_744_123_456_789, "2026-03-11T03:45:44.123Z");
        check(4_107_542_399_999_000_000, "2100-02-28T23:59:59.999Z");
        check(4_107_542_400_000_000_000, "2100-03-01T00:00:00.000Z");
        assert_eq!(minute(1_773_200_744), "2026-03-11 03:45 UTC");
        for days in -200_000..200_000 {
            let (year, month, of_month) = civil(days);
            assert_eq!(day(year, month, of_month), days);
        }
        // Beyond what nanoseconds can hold, the last moment that they can.
        assert_eq!(minute(i64::MAX), "2262-04-11 23:47 UTC");
    }
}
