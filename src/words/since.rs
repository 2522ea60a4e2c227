//! Points in time on the command line: `--since 1h`, `--since yesterday`.

use super::clock;
use jiff::civil::{DateTime, Time};
use jiff::{Span, Timestamp, ToSpan, Zoned};

/// Parses a time on the command line: see [`parse`].
pub fn option(text: &str) -> Result<u64, String> {
    parse(text, &clock::now())
}

/// Returns the time that the text means, in seconds since 1970. Without a zone in the text, times
/// are in the zone of `now`. Accepts a duration before now, `today`, `yesterday`, a time of day, a
/// date, and a date with a time.
pub fn parse(text: &str, now: &Zoned) -> Result<u64, String> {
    let text = text.trim();
    let said = match text {
        "today" => now.start_of_day().ok(),
        "yesterday" => now.yesterday().and_then(|day| day.start_of_day()).ok(),
        _ => other(text, now),
    };
    let time = said.ok_or(
        "expected a time such as 30m, 2h, yesterday, 14:00, 2026-11-20 or '2026-11-20 14:00'",
    )?;
    match time > *now {
        true => Err("this time is in the future".into()),
        false => Ok(u64::try_from(time.timestamp().as_second()).unwrap_or(0)),
    }
}

fn other(text: &str, now: &Zoned) -> Option<Zoned> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time.to_zoned(now.time_zone().clone()));
    }
    // A span of jiff can have a sign, or the word "ago". A sign can mean either direction.
    if let Ok(span) = text.parse::<Span>() {
        let is_signed = text.starts_with(['-', '+']);
        return now.checked_sub(span.abs()).ok().filter(|_| !is_signed);
    }
    // Of a number without a unit, jiff would make an hour, or hours and minutes: 10, 2026.
    if text.len() < 6 && text.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    // A text with a date is a time of day for jiff, too.
    if let Ok(time) = text.parse::<DateTime>() {
        return time.to_zoned(now.time_zone().clone()).ok();
    }
    let time = text.parse::<Time>().ok()?;
    let today = now.with().time(time).build().ok()?;
    match today > *now {
        true => today.checked_sub(1.day()).ok(),
        false => Some(today),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_understood_in_the_zone_of_the_caller() {
        let now: Zoned = "2026-11-23T10:30:00+01:00[Europe/Berlin]"
            .parse()
            .expect("a time");
        let at = |text: &str| {
            let time: Zoned = format!("{text}[Europe/Berlin]").parse().expect("a time");
            Ok(time.timestamp().as_second() as u64)
        };
        for (text, time) in [
            ("1h", "2026-11-23T09:30"),
            ("90 minutes", "2026-11-23T09:00"),
            ("2h 30m ago", "2026-11-23T08:00"),
            ("3d", "2026-11-20T10:30"),
            ("today", "2026-11-23T00:00"),
            (" yesterday ", "2026-11-22T00:00"),
            ("08:15", "2026-11-23T08:15"),
            ("22:00", "2026-11-22T22:00"),
            ("2026-11-20", "2026-11-20T00:00"),
            ("2026-11-20 14:00", "2026-11-20T14:00"),
            ("2026-11-20T14:00:00Z", "2026-11-20T15:00"),
        ] {
            assert_eq!(parse(text, &now), at(time), "{text}");
        }
        for wrong in [
            "",
            "soon",
            "2026-13-01",
            "4G",
            "10",
            "30",
            "1000",
            "2026",
            "-5m",
            "+5m",
        ] {
            let error = parse(wrong, &now).expect_err(wrong);
            assert!(error.contains("such as 30m"), "{error}");
        }
        let error = parse("2026-11-24", &now).expect_err("later");
        assert!(error.contains("future"), "{error}");
        assert_eq!(parse("1900-01-01", &now), Ok(0));
    }
}
