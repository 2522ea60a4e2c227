//! Tests of curves, at two widths.

use super::*;
use gpulimit_ledger::Extremes;

const GIB: u64 = 1 << 30;
/// 2026-11-23 10:00:00 UTC.
const NOW: u64 = 1_795_428_000;

fn known(max: u64, min: u64) -> Span {
    Span {
        known: Some(Extremes { max, min }),
        at_least: min,
        at_most: Some(max),
        ..Span::default()
    }
}

/// Returns ten minutes by the second: unknown, then a ramp, a saw-tooth, a plateau, and an unknown
/// fall. A request is refused, and a process is killed.
fn ten_minutes() -> Vec<Span> {
    let span = |at: u64| {
        let usage = match at {
            0..60 => Span::default(),
            60..240 => known((at - 59) * GIB / 60, (at - 60) * GIB / 60),
            240..360 => known(3 * GIB, GIB / 2),
            360..480 => known(2 * GIB, 2 * GIB),
            480.. => Span {
                known: None,
                at_least: GIB / 4,
                ..known(2 * GIB, 0)
            },
        };
        Span {
            start: NOW - 600 + at,
            refusals: u32::from(at == 300),
            kills: u32::from(at == 479),
            ..usage
        }
    };
    (0..600).map(span).collect()
}

fn lines(spans: &[Span], width: usize, unicode: bool, limit: Option<u64>) -> Vec<String> {
    let length = spans
        .get(1)
        .map_or(1, |second| (second.start - spans[0].start).max(1));
    let curve = Curve {
        spans,
        length,
        limit,
        zone: &TimeZone::UTC,
        width,
        unicode,
        asked: &[],
        moved: &[],
    };
    let lines = curve.lines();
    for line in &lines {
        assert!(line.chars().count() <= width, "{line}");
    }
    lines
}

#[test]
fn a_curve_at_80_columns() {
    let expected = "\
4.0 GiB ┤───────────────────────────────────────────────────────────────────────
        │
        │
        │                        ▁▃▅▇▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
        │                     ▂▄▆████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
2.0 GiB ┤                 ▁▃▆████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒█████████████▒░░░░░░░░░░░░░░
        │              ▂▄▇███████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒█████████████▒░░░░░░░░░░░░░░
        │          ▁▃▆███████████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒█████████████▒░░░░░░░░░░░░░░
        │???????▂▅▇███████████████████████████████████████████████▄▄▄▄▄▄▄▄▄▄▄▄▄▄
      0 └───────────────┬─────────────┬─────────────┬─────────────┬─────────────
                                            R                    K
                        09:52         09:54         09:56         09:58
█ used   ▒ used at times   ░ perhaps used   ? unknown   ─ limit   R refused
K killed";
    assert_eq!(
        lines(&ten_minutes(), 80, true, Some(4 * GIB)).join("\n"),
        expected
    );
}

#[test]
fn a_curve_of_ascii_at_50_columns() {
    let expected = "\
4.0 GiB +-----------------------------------------
        |
        |
        |              _#:::::::::
        |            _###:::::::::
2.0 GiB +          _#####:::::::::#######:........
        |        _#######:::::::::#######:........
        |      :#########:::::::::#######:........
        |????:####################################
      0 +---------------------+-------------------
                             R           K
                              09:55
# used   : used at times   . perhaps used
? unknown   - limit   R refused   K killed";
    assert_eq!(
        lines(&ten_minutes(), 50, false, Some(4 * GIB)).join("\n"),
        expected
    );
}

#[test]
fn a_limit_below_the_usage_is_a_line_in_the_curve() {
    let drawn = lines(&ten_minutes(), 80, true, Some(GIB));
    assert!(drawn[0].starts_with("3.0 GiB ┤   "), "{drawn:#?}");
    let limit = drawn.iter().find(|line| line.starts_with("1.0 GiB ┤──"));
    assert!(
        limit.is_some_and(|line| line.contains("─▂▅█")),
        "{drawn:#?}"
    );
}

#[test]
fn a_curve_without_a_limit_has_its_highest_usage_at_the_top() {
    let drawn = lines(&ten_minutes(), 120, true, None);
    assert!(drawn[0].starts_with("3.0 GiB ┤   "), "{drawn:#?}");
    assert!(!drawn.concat().contains("limit"), "{drawn:#?}");
    assert!(
        drawn.iter().any(|line| line.chars().count() == 120),
        "{drawn:#?}"
    );
}

#[test]
fn few_periods_fill_the_width() {
    let spans = [0, 4, 2].map(|usage| known(usage * GIB, usage * GIB));
    let drawn = lines(&spans, 40, true, None);
    assert_eq!(
        drawn[0],
        format!("4.0 GiB ┤{}{}", " ".repeat(11), "█".repeat(10))
    );
    assert_eq!(
        drawn[7],
        format!("        │{}{}", " ".repeat(11), "█".repeat(20))
    );
}

#[test]
fn no_usage_is_an_empty_curve() {
    let drawn = lines(&vec![known(0, 0); 600], 80, true, Some(GIB));
    assert!(
        drawn[1..ROWS as usize]
            .iter()
            .all(|line| line.ends_with(['│', '┤'])),
        "{drawn:#?}"
    );
    assert_eq!(drawn.last().map(String::as_str), Some("─ limit"));
    assert!(!lines(&[], 80, true, None).is_empty());
}

#[test]
fn times_are_round_in_the_zone_of_the_reader() {
    let spans = |length: u64, count: u64| -> Vec<Span> {
        let span = |at| Span {
            start: NOW - (count - at) * length,
            ..known(GIB, GIB)
        };
        (0..count).map(span).collect()
    };
    let india = TimeZone::fixed(jiff::tz::offset(5).saturating_add(jiff::Span::new().minutes(30)));
    for (length, count, expected) in [
        (1, 60, "15:29:30"),
        (1, 600, "15:22"),
        (60, 1_440, "18:00"),
        (900, 672, "Nov 17"),
    ] {
        let spans = spans(length, count);
        let curve = Curve {
            spans: &spans,
            length,
            limit: None,
            zone: &india,
            width: 80,
            unicode: true,
            asked: &[],
            moved: &[],
        };
        let lines = curve.lines();
        let times = &lines[lines.len() - 2];
        assert!(times.contains(expected), "{times}");
    }
}

#[test]
fn marks_say_when_members_were_asked_and_processes_were_suspended() {
    let span = |second: u64| Span {
        start: 1_000 + second,
        at_most: Some(1 << 30),
        refusals: u32::from(second == 5),
        ..Span::default()
    };
    let spans: Vec<Span> = (0..10).map(span).collect();
    let curve = Curve {
        spans: &spans,
        length: 1,
        limit: None,
        zone: &TimeZone::UTC,
        width: 60,
        unicode: false,
        // Outside of the curve, alone, beside a refusal, which is more important.
        asked: &[999, 1_002, 1_005, 1_010],
        moved: &[1_008],
    };
    let lines = curve.lines();
    let is_mark = |line: &&String| line.trim_start().starts_with('A');
    let marks = lines.iter().find(is_mark).expect("marks");
    let mut marks: Vec<char> = marks
        .split_whitespace()
        .filter_map(|it| it.chars().next())
        .collect();
    marks.dedup();
    assert_eq!(marks, ['A', 'R', 'S'], "{lines:?}");
    let legend = lines.join(" ");
    assert!(legend.contains("A members asked for memory"), "{legend}");
    assert!(legend.contains("S suspended or resumed"), "{legend}");
}
