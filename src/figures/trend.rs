//! Finds out whether the usage of a group grows without end, as that of a program with a leak.
//!
//! The *floor* of a period is the smallest usage in it. Bursts and caches do not raise the floor,
//! and a leak does. A window of the past is divided into six parts. The floor rises if it rises
//! from each part to the next by at least a third of the mean rise, by half a GiB in all, and to
//! more than the floor was at any time before the window. The last condition keeps a daily rhythm
//! from being a leak each morning. Windows of several lengths are looked at; the longest one in
//! which the floor rises counts.
//!
//! The rate is the median of the slopes between all pairs of floors in the window (Theil–Sen).

use super::fields::{self, fields};
use gpulimit_base::units::gib;
use serde_json::Value;
use std::time::Duration;

/// Number of parts of a window.
const PARTS: usize = 6;
/// Number of floors of a window from which its rate is computed.
const POINTS: usize = 10 * PARTS;
/// Smallest rise of the floor in a window, in bytes.
const LEAST_RISE: u64 = 1 << 29;
/// Shortest window in seconds.
const SHORTEST: u64 = 600;

/// The floors of periods of equal length.
#[derive(Clone, Debug)]
pub struct Floors {
    /// The length of a period in seconds.
    pub length: u64,
    /// The floor of each period in bytes, oldest first; `None` if unknown. The last period contains
    /// the present time.
    pub floors: Vec<Option<u64>>,
}

/// A floor that rises.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Trend {
    /// For how long the floor has risen.
    pub time: Duration,
    /// Bytes per second.
    pub rate: f64,
}

/// Returns the trend; `None` if the floor does not rise, or if the history is too short to tell.
/// The first series has the shortest periods.
pub fn trend(series: &[Floors]) -> Option<Trend> {
    let windows = series.iter().enumerate().flat_map(|(at, floors)| {
        let all = floors.length * floors.floors.len() as u64;
        // Each window is twice as long as the one before. The last window of a series is all of it.
        let lengths = std::iter::successors(Some(SHORTEST), |length| Some(length * 2));
        let lengths = lengths.take_while(move |length| *length < all).chain([all]);
        lengths.map(move |length| (at, length))
    });
    let rising = windows.filter_map(|(at, length)| {
        let window = Window::of(&series[at], length)?;
        let rise = window.rise()?;
        let is_new = |floors: &Floors| floors.were_below(window.last(), rise, length);
        series[at..].iter().all(is_new).then(|| Trend {
            time: Duration::from_secs(length),
            rate: window.rate(),
        })
    });
    rising.max_by_key(|trend| trend.time)
}

/// Returns the floor of several periods; `None` if one is unknown.
fn floor(floors: &[Option<u64>]) -> Option<u64> {
    floors.iter().copied().min().flatten()
}

impl Floors {
    /// Returns whether all floors before a window that ends now were below the window's `last`
    /// floor. `rise` is the rise of the floor in the window, which is this many seconds long.
    fn were_below(&self, last: u64, rise: u64, window: u64) -> bool {
        let part = window / PARTS as u64;
        let count = self.count(part).max(1);
        let before = &self.floors[..self.floors.len().saturating_sub(self.count(window))];
        let highest = before.windows(count).filter_map(floor).max();
        // Usage that has risen as fast and as high before had a floor that is lower by what it
        // rises in the time of a floor, or in two periods if these are longer.
        let time = part.max(2 * self.length);
        let margin = u128::from(rise) * u128::from(time) / u128::from(window);
        highest.is_none_or(|highest| u128::from(last) > u128::from(highest) + margin)
    }

    /// Returns the number of periods in a time, rounded up.
    fn count(&self, seconds: u64) -> usize {
        usize::try_from(seconds.div_ceil(self.length)).unwrap_or(usize::MAX)
    }
}

/// The floors of a window.
struct Window {
    /// Begin of the time of a floor in seconds, and the floor in bytes.
    floors: Vec<(u64, u64)>,
}

impl Window {
    /// Returns the window of this many seconds up to now. Returns `None` if it is too short, or if
    /// the history does not reach back so far.
    fn of(series: &Floors, seconds: u64) -> Option<Self> {
        let count = series.count(seconds);
        let first = series.floors.len().checked_sub(count)?;
        let periods = &series.floors[first..];
        if seconds < SHORTEST || count < PARTS {
            return None;
        }
        // The number of floors is a multiple of the number of parts.
        let points = POINTS.min(count / PARTS * PARTS);
        let point = |at: usize| {
            let (begin, end) = (at * count / points, (at + 1) * count / points);
            Some((begin as u64 * series.length, floor(&periods[begin..end])?))
        };
        let floors = (0..points).map(point).collect::<Option<_>>()?;
        Some(Self { floors })
    }

    /// Returns by how many bytes the floor rises from the first part to the last one; `None` if it
    /// does not rise from each part to the next.
    fn rise(&self) -> Option<u64> {
        let floors: Vec<u64> = self.parts().collect();
        let rise = self.last().saturating_sub(*floors.first()?);
        let least = rise / (PARTS as u64 - 1) / 3;
        let rises = |pair: &[u64]| pair[1] >= pair[0].saturating_add(least);
        (rise >= LEAST_RISE && floors.windows(2).all(rises)).then_some(rise)
    }

    /// Returns the floor of the last part.
    fn last(&self) -> u64 {
        self.parts().last().unwrap_or(0)
    }

    fn parts(&self) -> impl Iterator<Item = u64> {
        let parts = self.floors.chunks(self.floors.len() / PARTS);
        parts.filter_map(|part| part.iter().map(|(_, floor)| *floor).min())
    }

    /// Returns the median of the slopes between all pairs of floors, in bytes per second.
    fn rate(&self) -> f64 {
        let mut slopes = Vec::new();
        for (at, (time, floor)) in self.floors.iter().enumerate() {
            for (later, then) in &self.floors[at + 1..] {
                slopes.push((*then as f64 - *floor as f64) / (later - time) as f64);
            }
        }
        slopes.sort_by(f64::total_cmp);
        slopes.get(slopes.len() / 2).copied().unwrap_or(0.0)
    }
}

impl Trend {
    /// Returns the time until a group that uses `usage` bytes uses `limit` bytes; `None` if the
    /// usage does not grow, or if the time is more than a year.
    pub fn full_in(&self, usage: u64, limit: u64) -> Option<Duration> {
        const YEAR: f64 = 365.0 * 86_400.0;
        let seconds = limit.saturating_sub(usage) as f64 / self.rate;
        (self.rate > 0.0 && seconds < YEAR).then(|| Duration::from_secs_f64(seconds))
    }

    /// Returns the trend as JSON, for a group that uses `usage` bytes.
    pub fn json(&self, usage: u64, limit: Option<u64>) -> Value {
        fields::json(FIELDS, &(*self, usage, limit), None)
    }

    /// Returns a sentence for people.
    pub fn text(&self, usage: u64, limit: Option<u64>) -> String {
        let rate = |seconds: f64| (self.rate.max(0.0) * seconds) as u64;
        // Choose the unit of time in which the figure is at least 10 MiB.
        let units = [(60.0, "min"), (3_600.0, "h"), (86_400.0, "day")];
        let is_large = |(seconds, _): &(f64, &str)| rate(*seconds) >= 10 << 20;
        let (seconds, unit) = units.into_iter().find(is_large).unwrap_or(units[2]);
        let mut said = format!("grows {}/{unit}", gib(rate(seconds)));
        if let Some(time) = limit.and_then(|limit| self.full_in(usage, limit)) {
            said += &format!(", full in {}", coarse(time));
        }
        said + &format!("; may leak: the floor has risen for {}", coarse(self.time))
    }
}

fields! { pub FIELDS(it: (Trend, u64, Option<u64>)):
    "bytes_per_hour": Bytes => (it.0.rate * 3_600.0) as i64;
    /// How long the floor of the usage has risen.
    "rising_ms": Ms => ms(it.0.time);
    /// How long until the limit is reached; null without a limit.
    "full_in_ms": Ms => it.2.and_then(|limit| it.0.full_in(it.1, limit)).and_then(ms);
}

fn ms(time: Duration) -> Option<u64> {
    u64::try_from(time.as_millis()).ok()
}

/// Formats a duration in one unit: `34 min`, `5 h`, `3 days`.
fn coarse(time: Duration) -> String {
    let minutes = time.as_secs() / 60;
    match minutes {
        0 => "less than a minute".into(),
        1..120 => format!("{minutes} min"),
        120..2_880 => format!("{} h", minutes / 60),
        _ => format!("{} days", minutes / 1_440),
    }
}

#[cfg(test)]
mod tests;
