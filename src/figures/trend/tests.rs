//! Tests of the trend, with made-up usage: without a leak there is no alarm, and a slow leak is
//! found.

use super::*;

const GIB: f64 = (1u64 << 30) as f64;
const MINUTE: f64 = 60.0;
const HOUR: f64 = 3_600.0;
const DAY: f64 = 86_400.0;

/// Returns what the ledger's rings tell at a time. `usage` returns GiB at a time in seconds, and
/// `None` before the first process of the group.
///
/// `samples` is how often to look in each second, minute and quarter.
fn series(now: f64, usage: &dyn Fn(f64) -> Option<f64>, samples: [u32; 3]) -> [Series; 3] {
    let [seconds, minutes, quarters] = samples;
    let rings = [
        (1.0, 601, seconds),
        (MINUTE, 1_441, minutes),
        (900.0, 673, quarters),
    ];
    rings.map(|(length, count, samples)| {
        // Periods begin at multiples of their length. The last one ends now.
        let last = (now / length).floor();
        let period = |period: i32| {
            let begin = (last - f64::from(count - 1 - period)) * length;
            let end = (begin + length).min(now);
            // The usage rises and falls within a period, so its last moment counts, too.
            let times = (0..samples).map(|at| begin + f64::from(at) * length / f64::from(samples));
            let times = times.filter(|time| *time < end).chain([end - 1e-6]);
            let all = times.map(|time| Some((usage(time)? * GIB) as u64));
            all.collect::<Option<Vec<u64>>>()
        };
        let periods: Vec<_> = (0..count).map(period).collect();
        let of = |choose: fn(&Vec<u64>) -> Option<u64>| {
            periods
                .iter()
                .map(|period| choose(period.as_ref()?))
                .collect()
        };
        Series {
            length: length as u64,
            floors: of(|usages| usages.iter().copied().min()),
            tops: of(|usages| usages.iter().copied().max()),
        }
    })
}

fn at(now: f64, usage: &dyn Fn(f64) -> Option<f64>) -> Option<Trend> {
    trend(&series(now, usage, [1, 6, 90]))
}

/// Returns a number between 0 and 1 that looks random.
fn random(seed: f64) -> f64 {
    ((seed * 12.9898).sin() * 43_758.547).fract().abs()
}

/// Usage without a leak, in GiB at a time in seconds, and the times at which to look.
struct Case {
    name: &'static str,
    usage: Box<dyn Fn(f64) -> Option<f64>>,
    times: Vec<f64>,
}

fn times(from: f64, to: f64) -> Vec<f64> {
    (0..24)
        .map(|at| from + (to - from) * f64::from(at) / 23.0)
        .collect()
}

fn cases() -> Vec<Case> {
    fn case(
        name: &'static str,
        times: Vec<f64>,
        usage: impl Fn(f64) -> Option<f64> + 'static,
    ) -> Case {
        let usage = Box::new(usage);
        Case { name, usage, times }
    }
    let tooth = |length: f64| move |time: f64| Some(2.0 + 8.0 * (time / length).fract());
    let whole = || times(14.0 * DAY, 15.0 * DAY);
    vec![
        case("a saw-tooth of seconds", whole(), tooth(20.0)),
        case("a saw-tooth of minutes", whole(), tooth(7.0 * MINUTE)),
        case("a saw-tooth of hours", whole(), tooth(3.0 * HOUR)),
        case(
            "the tip of a saw-tooth",
            [0.001, 1.0, 7.0, 15.0]
                .map(|ago| 14.0 * DAY - ago * MINUTE)
                .into(),
            tooth(HOUR),
        ),
        case("stairs", whole(), |time| {
            let steps = [1.0, 3.5, 4.2, 9.0].map(|hour| 14.0 * DAY + hour * HOUR);
            let count = steps.iter().filter(|step| time >= **step).count();
            Some(2.0 + 1.5 * count as f64)
        }),
        case(
            "one late step",
            times(14.0 * DAY, 14.0 * DAY + HOUR),
            |time| Some(if time < 14.0 * DAY { 3.0 } else { 5.0 }),
        ),
        case("bursts", whole(), |time| {
            let burst = random((time / 30.0).floor()) < 0.3;
            Some(2.0 + if burst { 10.0 * random(time) } else { 0.0 })
        }),
        case("a daily rhythm", whole(), |time| {
            let day = (time / DAY * std::f64::consts::TAU).cos();
            Some(8.0 - 4.0 * day + random((time / 30.0).floor()))
        }),
        case(
            "a warm-up",
            times(14.0 * DAY, 14.0 * DAY + 3.0 * HOUR),
            |time| {
                let time = time - 14.0 * DAY;
                (time >= 0.0).then(|| 6.0 * (1.0 - (-time / (3.0 * MINUTE)).exp()))
            },
        ),
        case("constant usage", whole(), |_| Some(30.0)),
        case("no usage", whole(), |_| None),
    ]
}

#[test]
fn usage_without_a_leak_raises_no_alarm() {
    for case in cases() {
        for time in &case.times {
            assert_eq!(at(*time, &case.usage), None, "{} at {time}", case.name);
        }
    }
}

/// The leak is 0.2 GiB an hour, for a week.
#[test]
fn a_slow_leak_is_found_under_all_other_usage() {
    for case in cases() {
        let last = case.times.last().expect("a time");
        let leaks = |time: f64| {
            let leak = (time - (last - 7.0 * DAY)).max(0.0) / HOUR * 0.2;
            Some((case.usage)(time).unwrap_or(0.0) + leak)
        };
        let trend = at(*last, &leaks).unwrap_or_else(|| panic!("{}", case.name));
        let rate = trend.rate / GIB * HOUR;
        assert!((0.15..0.35).contains(&rate), "{}: {rate} GiB/h", case.name);
        assert!(
            trend.time >= Duration::from_secs(3_600),
            "{}: {trend:?}",
            case.name
        );
    }
}

#[test]
fn a_fast_leak_is_found_after_ten_minutes() {
    let leaks = |time: f64| (time >= 0.0).then_some(time / MINUTE * 0.12);
    assert_eq!(at(9.0 * MINUTE, &leaks), None);
    let trend = at(12.0 * MINUTE, &leaks).expect("a leak");
    assert_eq!(trend.time.as_secs() / 60, 10);
    let text = trend.text(2 << 30, Some(6 << 30));
    assert_eq!(
        text,
        "grows 122.9 MiB/min, full in 33 min; may leak: the floor has risen for 10 min"
    );
    assert!(!trend.text(2 << 30, None).contains("full"));
    // It is withdrawn when the usage falls.
    let freed = |time: f64| leaks(time).map(|usage| if time < 700.0 { usage } else { 0.1 });
    assert_eq!(at(12.0 * MINUTE, &freed), None);
    let stopped = |time: f64| leaks(time.min(12.0 * MINUTE));
    assert!(at(13.0 * MINUTE, &stopped).is_some());
    assert_eq!(at(16.0 * MINUTE, &stopped), None);
}

/// A group that has held `base` GiB or more, and grows by `slope` MiB a minute from `start` on.
struct Line {
    start: f64,
    /// GiB held before the group used memory for the first time; `None` if it is new.
    base: Option<f64>,
    slope: f64,
    /// GiB that the group held until this many minutes before the line began.
    before: Option<(f64, f64)>,
}

impl Line {
    fn usage(&self, time: f64) -> Option<f64> {
        let grown = (time - self.start) / MINUTE * self.slope / 1024.0;
        match self.before {
            Some((held, ago)) if time < self.start - ago * MINUTE => Some(held),
            _ if time < self.start => self.base,
            _ => Some(self.base.unwrap_or(0.0) + grown),
        }
    }
}

#[test]
fn a_line_is_marked_from_its_eleventh_minute_on_in_each_minute_of_an_hour() {
    let starts = [0.0, 1.0, 7.5, 14.0, 59.9].map(|minutes| 14.0 * DAY + minutes * MINUTE);
    let before = [
        None,
        Some((1.0, 0.0)),
        Some((4.0, 0.1)),
        Some((9.0, 3.0)),
        Some((20.0, 30.0)),
    ];
    for (at, start) in starts.into_iter().enumerate() {
        for (number, before) in before.into_iter().enumerate() {
            let base = [None, Some(0.0), Some(0.9)][(at + number) % 3];
            let slope = [64.0, 100.0, 2048.0][number % 3];
            let line = Line {
                start,
                base,
                slope,
                before,
            };
            for minute in 11..=70 {
                let now = start + f64::from(minute) * MINUTE;
                let passed = before.is_none_or(|(held, _)| line.usage(now) > Some(held));
                let seen = trend(&series(now, &|time| line.usage(time), [1; 3]));
                assert_eq!(
                    seen.is_some(),
                    passed,
                    "{start} {base:?} {slope} {before:?}: {minute}"
                );
                let rate = seen.map_or(slope, |trend| trend.rate / GIB * 1024.0 * MINUTE);
                assert!(
                    (rate / slope - 1.0).abs() < 0.05,
                    "{rate} instead of {slope}"
                );
            }
        }
    }
}

#[test]
fn the_mark_ends_when_the_usage_falls_or_has_stood_still_for_ten_minutes() {
    for minutes in [12.0, 40.0, 300.0] {
        let end = 14.0 * DAY + minutes * MINUTE;
        let grown = |time: f64| 2.0 + (time.min(end) - 14.0 * DAY).max(0.0) / MINUTE * 0.1;
        let stopped = |time: f64| Some(grown(time) + 0.01 * random(time));
        let fallen = |time: f64| Some(if time < end { grown(time) } else { 2.5 });
        assert!(at(end, &stopped).is_some());
        assert!(at(end + 30.0, &stopped).is_some());
        for later in [11.0, 12.0, 15.0, 20.0, 60.0, 200.0] {
            assert_eq!(
                at(end + later * MINUTE, &stopped),
                None,
                "{minutes} {later}"
            );
        }
        for later in [0.1, 1.0, 5.0, 30.0, 200.0] {
            assert_eq!(at(end + later * MINUTE, &fallen), None, "{minutes} {later}");
        }
    }
}

#[test]
fn a_rise_that_was_as_high_before_is_silent() {
    let again = |time: f64| {
        Some(match time {
            ..0.0 => 4.0,
            0.0..1_200.0 => 1.0,
            _ => 1.0 + (time - 1_200.0) / 600.0,
        })
    };
    assert_eq!(at(2_400.0, &again), None);
    assert!(at(4_800.0, &again).is_some());
}

#[test]
fn damaged_figures_do_no_harm() {
    for floor in [None, Some(0), Some(u64::MAX)] {
        for (length, count) in [(1, 0), (1, 1), (900, 1), (60, 7), (1, 601)] {
            let floors = vec![floor; count];
            let tops = floors.clone();
            let series = Series {
                length,
                floors,
                tops,
            };
            assert_eq!(trend(&[series]), None);
        }
    }
    let floors: Vec<_> = (0..600).map(|at| Some(u64::MAX / 600 * at)).collect();
    let tops = floors.clone();
    let (length, none) = (1, Vec::new());
    let series = Series {
        length,
        floors,
        tops,
    };
    let minutes = Series {
        length: 60,
        floors: none.clone(),
        tops: none,
    };
    let trend = trend(&[series, minutes]).expect("rising");
    assert!(!trend.text(u64::MAX, Some(0)).is_empty());
}

#[test]
fn the_process_that_grows_is_named_with_its_own_floors() {
    const MIB: u64 = 1 << 20;
    let grower = |floors: &[(u64, u64)]| {
        let floors: Vec<_> = floors
            .iter()
            .map(|(at, mib)| (at * 60, mib * MIB))
            .collect();
        Grower::of(Identity::of_self(), &floors)
    };
    // It began in the middle of the first period, and grows 64 MiB a minute.
    let found = grower(&[(0, 0), (5, 192), (10, 512), (15, 832)]).expect("a grower");
    assert_eq!((found.rate * 60.0 / MIB as f64).round(), 64.0);
    assert_eq!(found.time, Duration::from_secs(900));
    // Only the rise since the last fall counts.
    let found = grower(&[(0, 0), (5, 900), (10, 100), (15, 420), (20, 740)]).expect("a grower");
    assert_eq!((found.rate * 60.0 / MIB as f64).round(), 64.0);
    assert_eq!(found.time, Duration::from_secs(600));
    for floors in [
        &[][..],
        &[(5, 100)],
        &[(0, 0), (5, 100)],
        &[(0, 0), (5, 0), (10, 9_000)],
        &[(0, 0), (5, 9_000), (10, 9_000)],
        &[(0, 100), (5, 300), (10, 200)],
    ] {
        assert_eq!(grower(floors), None, "{floors:?}");
    }
    let (time, rate) = (Duration::from_secs(660), 64.0 * MIB as f64 / 60.0);
    let (pid, command) = (found.process.pid, found.process.command());
    let trend = Trend {
        time,
        rate,
        process: Some(found),
    };
    assert_eq!(
        trend.text(0, None),
        format!(
            "grows 64.0 MiB/min; may leak: the floor has risen for 11 min; \
             pid {pid} ({command}) has grown 64.0 MiB/min for 10 min"
        )
    );
    assert_eq!(trend.json(0, None)["process"]["pid"], pid);
}

#[test]
fn rates_and_times_are_in_suitable_units() {
    let text = |rate: f64, seconds| {
        let time = Duration::from_secs(seconds);
        let process = None;
        Trend {
            time,
            rate,
            process,
        }
        .text(0, Some(80 << 30))
    };
    assert_eq!(
        text(GIB / HOUR, 2 * 3_600),
        "grows 17.1 MiB/min, full in 3 days; may leak: the floor has risen for 2 h"
    );
    assert_eq!(
        text(GIB / DAY, 604_800),
        "grows 42.7 MiB/h, full in 80 days; may leak: the floor has risen for 7 days"
    );
    assert!(!text(100.0, 600).contains("full"), "more than a year");
}
