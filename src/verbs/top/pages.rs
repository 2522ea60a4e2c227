//! The pages of `top` that are lines of text: the help, and the details of a group.

use super::frame::Scene;
use super::look::{self, ALARM, TITLE};
use super::reader::Wanted;
use super::round::Usage;
use crate::shown::terminal::{NO_BREAK, wrap};
use crate::shown::{curve, output::Escaped};
use gpulimit_base::units::gib;
use ratatui::text::{Line, Span};
use std::iter::once;

/// The columns of the names of keys in [`KEYS`].
const KEY: usize = 20;

/// The keys, and what each does.
const KEYS: &str = "\
Up Down j K         select a row
PgUp PgDn Home End  select a row further away
Tab                 select the first row of the other table
Enter               details of the group, with curves; [ ] choose the time
Space t             fold or unfold the group
T                   fold or unfold all groups (--fold)
, . < > F6          sort by another column (--sort)
I                   invert the order
/ F4                filter names and commands; Esc clears the filter (--filter)
u                   show one user's processes (--user)
d                   show one GPU, the next one, all (--device)
Esc                 drop the selection; again: drop the filters
p Z                 pause, and go on
+ -                 longer or shorter interval (--interval)
r F5                read now
Ctrl-L              draw the screen anew
? h F1              this page
q F10 Ctrl-C        quit
Ctrl-Z              stop; fg goes on
s                   set the limit of the group; asks twice
k F9                send a signal to the process, or to the group's; asks first";

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
pub fn help(width: usize, readonly: bool) -> Vec<Line<'static>> {
    let changes = |line: &str| line.starts_with("s ") || line.starts_with("k F9");
    let mut lines = Vec::new();
    for key in KEYS.lines().filter(|line| !readonly || !changes(line)) {
        for line in wrap(key, KEY, width) {
            let (key, text) = line.split_at(KEY.min(line.len()));
            let key = Span::styled(key.to_owned(), look::KEY);
            lines.push(Line::from_iter([key, text.to_owned().into()]));
        }
    }
    for text in MEANINGS {
        lines.push(Line::default());
        lines.extend(wrapped(text, width));
    }
    lines
}

/// Breaks a text between words.
pub fn wrapped(text: &str, width: usize) -> impl Iterator<Item = Line<'static>> {
    let lines = wrap(text, 0, width).into_iter();
    lines.map(|line| line.replace(NO_BREAK, " ").into())
}

/// Returns the lines of the details of a group.
pub fn details(scene: &Scene<'_>, wanted: &Wanted, width: usize) -> Vec<Line<'static>> {
    let mut groups = scene.round.groups.iter();
    let Some(group) = groups.find(|group| group.name == wanted.group) else {
        let why = match scene.round.problem.as_str() {
            "" => "this group is gone",
            problem => problem,
        };
        let name = Line::styled(wanted.group.name.clone(), TITLE);
        return once(name).chain(wrapped(why, width)).collect();
    };
    let mut lines = vec![Line::from_iter([
        Span::styled(group.title.clone(), TITLE),
        format!("  the last {}", span(wanted.since.as_secs())).into(),
    ])];
    lines.extend(wrapped(&Escaped(&group.settings).to_string(), width));
    let pasts = scene.pasts.filter(|(read, _)| read == wanted);
    for usage in &group.usages {
        let past = pasts.and_then(|(_, pasts)| {
            let mut pasts = pasts.iter();
            pasts.find(|past| Some(past.gpu.id) == usage.gpu)
        });
        let title = match past {
            Some(past) => Escaped(&past.usage_text()).to_string(),
            None => format!("GPU {}", usage.label),
        };
        lines.extend([Line::default(), Line::styled(title, TITLE)]);
        let trend = past.and_then(|past| past.gpu.trend_text());
        for text in figures(usage).into_iter().chain(trend) {
            lines.extend(wrapped(&text, width));
        }
        let states = usage.states.iter();
        lines.extend(states.map(|state| Line::styled(state.clone(), ALARM)));
        match (past, pasts) {
            (Some(past), _) => {
                let curve = curve::of(past, scene.zone, width, scene.look.unicode);
                lines.extend(curve.into_iter().map(Line::from));
            }
            (None, None) => lines.push("reading the history".into()),
            (None, Some(_)) => {
                lines.push("no history: the group is a job, or has not used this GPU".into());
            }
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
        count("processes", usage.processes),
        count("refused", usage.refusals),
        usage
            .refusals
            .filter(|count| *count > 0)
            .map(|_| text("why:", "gpulimit why".into())),
    ];
    let texts: Vec<String> = texts.into_iter().flatten().collect();
    (!texts.is_empty()).then(|| texts.join(", "))
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
            ..Usage::default()
        };
        let text = figures(&usage).expect("figures");
        for width in 18..60 {
            let lines: Vec<_> = wrapped(&text, width).map(|line| line.to_string()).collect();
            let parts = |line: &String| line.starts_with(|c: char| c.is_ascii_digit());
            assert!(!lines.iter().any(parts), "{lines:?}");
        }
    }
}
