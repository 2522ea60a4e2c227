//! The pages of `top` that are lines of text: the help, and the details of a group.

use super::canvas::Canvas;
use super::frame::{Scene, Seen};
use super::reader::Wanted;
use super::round::Usage;
use crate::shown::{curve, output::Escaped};
use gpulimit_base::units::gib;
use ratatui::style::Style;
use std::iter::{once, repeat};
use unicode_width::UnicodeWidthStr;

/// A line of a page, in parts of one style each.
pub type Line = Vec<(String, Style)>;

/// The keys, and what each does.
const KEYS: [(&str, &str); 21] = [
    ("Up Down j K", "select a row"),
    ("PgUp PgDn Home End", "select a row further away"),
    ("Tab", "select the first row of the other table"),
    (
        "Enter",
        "details of the group, with curves; [ ] choose the time",
    ),
    ("Space t", "fold or unfold the group"),
    ("T", "fold or unfold all groups (--fold)"),
    (", . < > F6", "sort by another column (--sort)"),
    ("I", "invert the order"),
    (
        "/ F4",
        "filter names and commands; Esc clears the filter (--filter)",
    ),
    ("u", "show one user's processes (--user)"),
    ("d", "show one GPU, the next one, all (--device)"),
    ("Esc", "drop the selection; again: drop the filters"),
    ("p Z", "pause, and go on"),
    ("+ -", "longer or shorter interval (--interval)"),
    ("r F5", "read now"),
    ("Ctrl-L", "draw the screen anew"),
    ("? h F1", "this page"),
    ("q F10 Ctrl-C", "quit"),
    ("Ctrl-Z", "stop; fg goes on"),
    ("s", "set the limit of the group; asks twice"),
    (
        "k F9",
        "send a signal to the process, or to the group's; asks first",
    ),
];

/// What the columns and characters mean.
const MEANINGS: [&str; 7] = [
    "In a bar, each filling is a top group. The last filling is memory outside all groups: other \
     programs and the driver. The mark is the sum of the limits of the top groups, \
     if all have one.",
    "MAX is the group's own limit, and % the used part of the limit that applies, which can be \
     that of a group above. USAGE includes the groups below.",
    "10 MIN is the usage of the last ten minutes, if the group keeps a history; its full height is \
     the limit.",
    "STATE: a request `waits for` memory, and how long it has waited; `above high` or `above max`; \
     `suspended`: this memory is on the host, and no part of the usage; `draining`: a process has \
     ended, and the driver has not freed its memory yet; `may leak`: the usage grows as that of a \
     program with a leak.",
    "ALLOC are plain and virtual memory, arrays and graphs. JOB is the container or the job that \
     the process is in.",
    "A group's limit for one GPU is changed only in that GPU's row.",
    "The same in other verbs: gpulimit show, ps, history, set, kill.",
];

/// Returns the lines of the help.
pub fn help(canvas: &Canvas<'_>, readonly: bool) -> Vec<Line> {
    const KEY: usize = 20;
    let theme = canvas.theme;
    let mut lines: Vec<Line> = Vec::new();
    for (key, text) in KEYS {
        let changes = ["s", "k F9"].contains(&key);
        if changes && readonly {
            continue;
        }
        let broken = broken(text, canvas.width().saturating_sub(KEY));
        for (text, key) in broken.into_iter().zip(once(key).chain(repeat(""))) {
            lines.push(vec![
                (format!("{key:<KEY$}"), theme.key),
                (text, theme.plain),
            ]);
        }
    }
    for text in MEANINGS {
        lines.push(Vec::new());
        let broken = broken(text, canvas.width());
        lines.extend(broken.into_iter().map(|line| vec![(line, theme.plain)]));
    }
    lines
}

/// Returns the lines of the details of a group.
pub fn details(canvas: &Canvas<'_>, scene: &Scene<'_>, wanted: &Wanted) -> Vec<Line> {
    let theme = canvas.theme;
    let plain = |text: &str| vec![(text.to_owned(), theme.plain)];
    let mut lines = Vec::new();
    let mut groups = scene.round.groups.iter();
    let Some(group) = groups.find(|group| group.name == wanted.group) else {
        lines.push(vec![(wanted.group.name.clone(), theme.title)]);
        lines.push(plain(match scene.round.problem.as_str() {
            "" => "this group is gone",
            problem => problem,
        }));
        return lines;
    };
    let since = span(wanted.since.as_secs());
    lines.push(vec![
        (group.title.clone(), theme.title),
        (format!("  the last {since}"), theme.plain),
    ]);
    let settings = Escaped(&group.settings).to_string();
    lines.extend(
        broken(&settings, canvas.width())
            .iter()
            .map(|line| plain(line)),
    );
    let pasts = scene.pasts.filter(|(read, _)| read == wanted);
    for usage in &group.usages {
        lines.push(Vec::new());
        let past = pasts.and_then(|(_, pasts)| {
            let mut pasts = pasts.iter();
            pasts.find(|past| Some(past.gpu()) == usage.gpu)
        });
        let title = match past {
            Some(past) => Escaped(&past.usage_text()).to_string(),
            None => format!("GPU {}", usage.label),
        };
        lines.push(vec![(title, theme.title)]);
        for text in figures(usage)
            .into_iter()
            .chain(past.and_then(|past| past.trend_text()))
        {
            let broken = broken(&text, canvas.width());
            lines.extend(
                broken
                    .iter()
                    .map(|line| plain(&line.replace(NO_BREAK, " "))),
            );
        }
        for state in &usage.states {
            lines.push(vec![(state.clone(), theme.alarm)]);
        }
        match (past, pasts) {
            (Some(past), _) => {
                let curve = curve::of(past, scene.zone, canvas.width(), canvas.pen.unicode);
                lines.extend(curve.iter().map(|line| plain(line)));
            }
            (None, None) => lines.push(plain("reading the history")),
            (None, Some(_)) => lines.push(plain(
                "no history: the group is a job, or has not used this GPU",
            )),
        }
    }
    lines
}

/// Formats one of the times that curves can show.
fn span(seconds: u64) -> String {
    match seconds {
        0..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Returns the figures of a group on one GPU as a line; `None` if all are unknown.
fn figures(usage: &Usage) -> Option<String> {
    // A line break does not part a figure from its name.
    let text = |name: &str, figure: String| format!("{name} {figure}").replace(' ', NO_BREAK);
    let bytes = |name: &str, bytes: Option<u64>| Some(text(name, gib(bytes?).to_string()));
    let count = |name: &str, count: Option<u64>| Some(text(name, count?.to_string()));
    let by = match usage.limited_by.as_str() {
        "" => String::new(),
        by => format!(" of {by}"),
    };
    let texts = [
        bytes("usage", usage.usage),
        bytes("limit", usage.limit).map(|text| text + &by),
        bytes("high", usage.high),
        bytes("peak", usage.peak),
        bytes("free", usage.free),
        count("processes", usage.processes.map(|count| count as u64)),
        count("refused", usage.refusals),
    ];
    let texts: Vec<String> = texts.into_iter().flatten().collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// Draws the lines of a page, from line `scroll` on. Leaves the last line of the screen free.
pub fn draw(canvas: &mut Canvas<'_>, scroll: usize, lines: &[Line]) -> Seen {
    let room = usize::from(canvas.area().height).saturating_sub(1);
    let scroll = scroll.min(lines.len().saturating_sub(room));
    for (y, line) in lines[scroll..].iter().take(room).enumerate() {
        let mut x = 0;
        for (text, style) in line {
            let left = canvas.width().saturating_sub(x);
            x += canvas.text(x, y, left, text, *style);
        }
    }
    Seen {
        page: room,
        scroll,
        ..Seen::default()
    }
}

/// A space at which no line is broken.
const NO_BREAK: &str = "\u{a0}";

/// Breaks a text between words into lines of at most this many columns.
pub fn broken(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_stays_beside_its_name() {
        let usage = Usage {
            usage: Some(3 << 30),
            limit: Some(16 << 30),
            limited_by: "lab".into(),
            refusals: Some(0),
            ..Usage::unknown()
        };
        let text = figures(&usage).expect("figures");
        for width in 18..60 {
            let lines = broken(&text, width);
            let parts = |line: &String| line.starts_with(|c: char| c.is_ascii_digit());
            assert!(!lines.iter().any(parts), "{lines:?}");
        }
    }
}
