//! Finds out whether the usage of a group grows without end, as that of a program with a leak.
//!
//! The *floor* of a period is the smallest usage in it. Bursts and caches do not raise the floor,
//! and a leak does. A window of the past is divided into six parts. The floor rises if it rises
//! from each part to the next by at least a third of the mean rise, and by half a GiB in all.
//! Windows of several lengths are looked at; the longest one in which the floor rises counts.
//!
//! Two more conditions must hold. The usage is higher than it ever was before the window, as far as
//! a day back: a daily rhythm is no leak each morning. And it still moves: a usage that has stood
//! still for ten minutes has stopped to grow.
//!
//! The rate is the median of the slopes between all pairs of floors in the window (Theil–Sen).

use super::event::who;
use super::fields::{self, fields};
use crate::words::clock::coarse;
use gpulimit_base::identity::Identity;
use gpulimit_base::units::gib;
use serde::{Deserialize, Serialize};
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

/// The usage in periods of equal length, in bytes, oldest first; `None` if unknown. The last period
/// contains the present time.
#[derive(Clone, Debug)]
pub struct Series {
    /// The length of a period in seconds.
    pub length: u64,
    /// The smallest usage of each period.
    pub floors: Vec<Option<u64>>,
    /// The largest usage of each period.
    pub tops: Vec<Option<u64>>,
}

/// A floor that rises.
#[derive(Copy, Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Trend {
    /// For how long the floor has risen.
    pub time: Duration,
    /// Bytes per second.
    pub rate: f64,
    /// The process that makes the floor rise, and its own floor's trend; `None` if it is not one
    /// process, or if this is unknown.
    #[serde(skip)]
    pub process: Option<Grower>,
}

/// A process whose floor rises.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Grower {
    pub process: Identity,
    /// For how long its floor has risen, at most an hour.
    pub time: Duration,
    /// Bytes per second.
    pub rate: f64,
}

impl Grower {
    /// Returns how a process grows that has these floors: the begin of each period in seconds, and
    /// the bytes, oldest first. `None` if the last three of them do not rise.
    pub fn of(process: Identity, floors: &[(u64, u64)]) -> Option<Self> {
        let fall = floors.windows(2).rposition(|pair| pair[1].1 <= pair[0].1);
        // The process may have begun in the middle of the first period.
        let [first, rising @ ..] = &floors[fall.map_or(0, |at| at + 1)..] else {
            return None;
        };
        let time = Duration::from_secs(rising.last()?.0 - first.0);
        let rate = slope(rising);
        (rate > 0.0).then_some(Self {
            process,
            time,
            rate,
        })
    }
}

/// Returns the median of the slopes between all pairs of points (Theil–Sen): bytes per second.
fn slope(points: &[(u64, u64)]) -> f64 {
    let mut slopes = Vec::new();
    for (at, (time, floor)) in points.iter().enumerate() {
        for (later, then) in &points[at + 1..] {
            slopes.push((*then as f64 - *floor as f64) / (later - time) as f64);
        }
    }
    slopes.sort_by(f64::total_cmp);
    slopes.get(slopes.len() / 2).copied().unwrap_or(0.0)
}

/// Returns the trend; `None` if the floor does not rise, or if the history is too short to tell.
/// The series are those of seconds, of minutes and of quarters of an hour.
pub fn trend(series: &[Series]) -> Option<Trend> {
    let seconds = series.first()?;
    let windows = series.iter().enumerate().flat_map(|(at, series)| {
        let all = series.length * series.floors.len() as u64;
        // Each window is twice as long as the one before. The last window of a series is all of it.
        let lengths = std::iter::successors(Some(SHORTEST), |length| Some(length * 2));
        let lengths = lengths.take_while(move |length| *length < all).chain([all]);
        // The last ten whole minutes are less than ten minutes.
        let lengths = lengths.skip(usize::from(at > 0));
        lengths.map(move |length| (at, length))
    });
    let rising = windows.filter_map(|(at, length)| {
        let floors = window(&series[at], length)?;
        let rate = rises(&floors).then(|| slope(&floors))?;
        // The seconds do not reach back before their shortest window.
        let before = series[at.max(1).min(series.len() - 1)].highest_before(length);
        let is_new = seconds.tops.last().copied().flatten() > before;
        (is_new && !seconds.stands(rate)).then(|| Trend {
            time: Duration::from_secs(length),
            rate,
            process: None,
        })
    });
    rising.max_by_key(|trend| trend.time)
}

/// Returns the floor of several periods; `None` if one is unknown.
fn floor(floors: &[Option<u64>]) -> Option<u64> {
    floors.iter().copied().min().flatten()
}

impl Series {
    /// Returns the largest usage before a window of this many seconds; `None` if it is unknown.
    fn highest_before(&self, window: u64) -> Option<u64> {
        let before = self.tops.len().saturating_sub(self.count(window));
        self.tops[..before].iter().copied().flatten().max()
    }

    /// Returns whether the usage has moved in the last ten minutes by less than half of what it
    /// would rise at this rate, in bytes per second.
    fn stands(&self, rate: f64) -> bool {
        let first = self.floors.len().saturating_sub(self.count(SHORTEST));
        let lowest = self.floors[first..].iter().flatten().min();
        let highest = self.tops[first..].iter().flatten().max();
        let both = highest.zip(lowest);
        let moved = both.map(|(highest, lowest)| highest.saturating_sub(*lowest) as f64);
        moved.is_some_and(|moved| moved < rate * SHORTEST as f64 / 2.0)
    }

    /// Returns the number of periods in a time, rounded up.
    fn count(&self, seconds: u64) -> usize {
        usize::try_from(seconds.div_ceil(self.length)).unwrap_or(usize::MAX)
    }
}

/// Returns the floors of a window of this many seconds up to now: the begin of the time of each in
/// seconds, and the bytes. Returns `None` if the window is too short, or if the history does not
/// reach back so far.
fn window(series: &Series, seconds: u64) -> Option<Vec<(u64, u64)>> {
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
    (0..points).map(point).collect()
}

/// Returns whether the floor rises from each part of a window to the next.
fn rises(floors: &[(u64, u64)]) -> bool {
    let parts = floors.chunks(floors.len() / PARTS);
    let parts = parts.filter_map(|part| part.iter().map(|(_, floor)| *floor).min());
    let parts: Vec<u64> = parts.collect();
    let [first, .., last] = parts[..] else {
        return false;
    };
    let rise = last.saturating_sub(first);
    let least = rise / (PARTS as u64 - 1) / 3;
    let rises = |pair: &[u64]| pair[1] >= pair[0].saturating_add(least);
    rise >= LEAST_RISE && parts.windows(2).all(rises)
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
        let mut said = format!("grows {}", speed(self.rate));
        if let Some(time) = limit.and_then(|limit| self.full_in(usage, limit)) {
            said += &format!(", full in {}", coarse(time));
        }
        said += &format!("; may leak: the floor has risen for {}", coarse(self.time));
        if let Some(grower) = &self.process {
            let (rate, time) = (speed(grower.rate), coarse(grower.time));
            said += &format!("; {} has grown {rate} for {time}", who(&grower.process));
        }
        said
    }
}

/// Formats bytes per second in the unit of time in which the figure is at least 10 MiB.
fn speed(rate: f64) -> String {
    let bytes = |seconds: f64| (rate.max(0.0) * seconds) as u64;
    let units = [(60.0, "min"), (3_600.0, "h"), (86_400.0, "day")];
    let is_large = |(seconds, _): &(f64, &str)| bytes(*seconds) >= 10 << 20;
    let (seconds, unit) = units.into_iter().find(is_large).unwrap_or(units[2]);
    format!("{}/{unit}", gib(bytes(seconds)))
}

fields! { pub FIELDS(it: (Trend, u64, Option<u64>)):
    "bytes_per_hour": Bytes => per_hour(it.0.rate);
    /// How long the floor of the usage has risen.
    "rising_ms": Ms => ms(it.0.time);
    /// How long until the limit is reached; null without a limit.
    "full_in_ms": Ms => it.2.and_then(|limit| it.0.full_in(it.1, limit)).and_then(ms);
    /// Makes the usage grow; null if it is not one process, and for callers who see no processes.
    "process": One("grower") => it.0.process.map(|it| fields::json(GROWER, &it, None));
}

fields! { pub GROWER(it: Grower):
    "pid": Count => it.process.pid;
    "uid": Count => it.process.uid;
    "command": Text => it.process.command().to_string();
    "bytes_per_hour": Bytes => per_hour(it.rate);
    "rising_ms": Ms => ms(it.time);
}

const fn per_hour(rate: f64) -> i64 {
    (rate * 3_600.0) as i64
}

fn ms(time: Duration) -> Option<u64> {
    u64::try_from(time.as_millis()).ok()
}

#[cfg(test)]
mod tests;
