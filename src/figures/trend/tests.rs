//! Tests of the trend, with made-up usage: without a leak there is no alarm, and a slow leak is
//! found.

use super::*;

const GIB: f64 = (1u64 << 30) as f64;
const MINUTE: f64 = 60.0;
const HOUR: f64 = 3_600.0;
const DAY: f64 = 86_400.0;

/// Returns what the ledger's rings tell at a time. `usage` returns GiB at a time in seconds, and
/// `None` before the first process of the group.
fn series(now: f64, usage: &dyn Fn(f64) -> Option<f64>) -> [Floors; 3] {
    [(1.0, 600, 1), (MINUTE, 1_440, 6), (900.0, 672, 90)].map(|(length, count, samples)| {
        let sample = |period: u32, sample: u32| {
            let ago = f64::from(count - period) * length;
            let time = now - ago + f64::from(sample) * length / f64::from(samples);
            usage(time).map(|gib| (gib * GIB) as u64)
        };
        let period = |period| (0..samples).map(|at| sample(period, at)).min().flatten();
        Floors {
            length: length as u64,
            floors: (0..count).map(period).collect(),
        }
    })
}

fn at(now: f64, usage: &dyn Fn(f64) -> Option<f64>) -> Option<Trend> {
    trend(&series(now, usage))
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
    assert_eq!(trend.time, Duration::from_secs(600));
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
            assert_eq!(trend(&[Floors { length, floors }]), None);
        }
    }
    let floors = (0..600).map(|at| Some(u64::MAX / 600 * at)).collect();
    let trend = trend(&[Floors { length: 1, floors }]).expect("rising");
    assert!(!trend.text(u64::MAX, Some(0)).is_empty());
}

#[test]
fn rates_and_times_are_in_suitable_units() {
    let text = |rate: f64, seconds| {
        let time = Duration::from_secs(seconds);
        Trend { time, rate }.text(0, Some(80 << 30))
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
