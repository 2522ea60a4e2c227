//! Points in time and durations, formatted for people and for programs.

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// A point in time, shown as RFC 3339 in UTC: `2026-01-31T12:00:00.123Z`. Times after the year 9999
/// are shown as its end.
#[derive(Copy, Clone)]
pub struct Moment {
    /// Milliseconds since the start of the year 1970 in UTC.
    pub unix_ms: u64,
}

/// Times before 1970 count as the start of 1970.
impl From<Timestamp> for Moment {
    fn from(time: Timestamp) -> Self {
        Self {
            unix_ms: u64::try_from(time.as_millisecond()).unwrap_or(0),
        }
    }
}

impl Moment {
    fn timestamp(self) -> Timestamp {
        let ms = i64::try_from(self.unix_ms).unwrap_or(i64::MAX);
        Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX)
    }

    /// Formats the time for people, in the zone of the caller: `2026-01-31T13:00:00.123+01:00`.
    pub fn local(self) -> String {
        self.in_zone(now().time_zone().clone())
    }

    fn in_zone(self, zone: TimeZone) -> String {
        let zoned = self.timestamp().to_zoned(zone);
        match zoned.offset().is_zero() {
            true => self.to_string(),
            false => zoned.strftime("%FT%T%.3f%:z").to_string(),
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.timestamp())
    }
}

/// Returns the present time in the zone of the caller. In UTC if `TZ` names a device or a pipe:
/// reading it could last for ever.
pub fn now() -> Zoned {
    let zone = super::environment::env("TZ").unwrap_or_default();
    let zone = zone.to_string_lossy();
    let path = Path::new(zone.strip_prefix(':').unwrap_or(&zone));
    match path.is_absolute() && !path.is_file() {
        true => Timestamp::now().to_zoned(TimeZone::UTC),
        false => Zoned::now(),
    }
}

/// Formats a duration for people: `0.42 s`, `3 min 20 s`, `2 h 5 min`.
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{:.2} s", time.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Formats a duration in whole seconds, minutes or hours: `40 s`, `3 min`, `2 h 5 min`.
pub fn rough_span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        _ => span(time),
    }
}

/// Formats a duration in one unit: `34 min`, `5 h`, `3 days`.
pub fn coarse(time: Duration) -> String {
    match time.as_secs() {
        0..60 => "less than a minute".into(),
        _ => brief(time),
    }
}

/// Formats a duration in one unit, a short one in seconds: `40 s`, `34 min`, `5 h`, `3 days`.
pub fn brief(time: Duration) -> String {
    let minutes = time.as_secs() / 60;
    match minutes {
        0 => format!("{} s", time.as_secs()),
        1..120 => format!("{minutes} min"),
        120..2_880 => format!("{} h", minutes / 60),
        _ => format!("{} days", minutes / 1_440),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_shown_as_rfc_3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_399, "2000-02-28T23:59:59.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (1_735_689_599, "2024-12-31T23:59:59.007Z"),
            (1_772_323_200, "2026-03-01T00:00:00.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
            (u64::MAX / 1000 - 1, "9999-12-30T22:00:00.999Z"),
        ] {
            let unix_ms = seconds * 1000 + 7;
            assert_eq!(Moment { unix_ms }.to_string(), text);
        }
    }

    #[test]
    fn people_read_local_times_with_the_offset() {
        let unix_ms = 1_772_323_200_007;
        let zone = TimeZone::fixed(jiff::tz::offset(-5));
        assert_eq!(
            [zone, TimeZone::UTC].map(|zone| Moment { unix_ms }.in_zone(zone)),
            ["2026-02-28T19:00:00.007-05:00", "2026-03-01T00:00:00.007Z"]
        );
    }

    #[test]
    fn spans() {
        for (millis, text) in [
            (420, "0.42 s"),
            (59_990, "59.99 s"),
            (200_000, "3 min 20 s"),
            (7_500_000, "2 h 5 min"),
        ] {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn rough_spans_have_whole_units() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (239, "3 min"),
            (7_500, "2 h 5 min"),
        ] {
            assert_eq!(
                rough_span(Duration::from_millis(seconds * 1000 + 999)),
                text
            );
        }
    }
}
