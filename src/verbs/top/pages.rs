//! The pages of `top` that are lines of text: the help, and the details of a group.

use super::frame::Scene;
use super::look::{self, ALARM, TITLE};
use super::round::{Name, Wanted};
use super::tables::states;
use crate::figures::{Figures, Row};
use crate::shown::terminal::{NO_BREAK, wrap};
use crate::shown::{curve, output::Escaped};
use crate::words::clock::coarse;
use gpulimit_limits::Selector;
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
    "In a bar, each filling is a top group. The last filling is memory of no shown group: other \
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
    let Some(group) = groups.find(|group| Name::of(group) == wanted.group) else {
        let why = match scene.round.problem.as_str() {
            "" => "this group is gone",
            problem => problem,
        };
        let name = Line::styled(wanted.group.name.clone(), TITLE);
        return once(name).chain(wrapped(why, width)).collect();
    };
    let mut lines = vec![Line::from_iter([
        Span::styled(group.title.clone(), TITLE),
        format!("  the last {}", coarse(wanted.since)).into(),
    ])];
    lines.extend(wrapped(&Escaped(&settings(group)).to_string(), width));
    let pasts = scene
        .round
        .pasts
        .as_ref()
        .filter(|(read, _)| read == wanted);
    for row in group.rows() {
        let past = pasts.and_then(|(_, pasts)| {
            let mut pasts = pasts.iter();
            pasts.find(|past| Some(past.gpu.id) == row.gpu.map(|gpu| gpu.id))
        });
        let title = match past {
            Some(past) => Escaped(&past.usage_text()).to_string(),
            None => format!("GPU {}", row.label()),
        };
        lines.extend([Line::default(), Line::styled(title, TITLE)]);
        let trend = past.and_then(|past| past.gpu.trend_text());
        for text in [figures(&row)].into_iter().chain(trend) {
            lines.extend(wrapped(&text, width));
        }
        if row.gpu.is_some_and(|gpu| gpu.refusals > Some(0)) {
            lines.push("why: gpulimit why".into());
        }
        let states = row.gpu.map(states).into_iter().flatten();
        lines.extend(states.map(|state| Line::styled(state, ALARM)));
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

/// Returns the settings of a group as text: `all GPUs max=8GiB; on_limit=wait`.
fn settings(figures: &Figures) -> String {
    let rules = figures.rules.rules.iter().map(|(selector, values)| {
        let gpu = match selector {
            Selector::All => "all GPUs".into(),
            Selector::Device(id) => id.short().to_string(),
        };
        let sizes = values.iter().map(|(key, size)| format!(" {key}={size}"));
        gpu + &sizes.collect::<String>()
    });
    let options = Some(figures.options_text()).filter(|text| !text.is_empty());
    rules.chain(options).collect::<Vec<_>>().join("; ")
}

/// Returns the known figures of a group on one GPU as a line.
pub fn figures(row: &Row<'_>) -> String {
    // The title has the group and the GPU, and the settings have the options.
    const ELSEWHERE: [&str; 3] = ["GROUP", "GPU", "OPTIONS"];
    let texts = Row::FIELDS.iter().filter_map(|field| {
        let column = field.column.filter(|it| !ELSEWHERE.contains(&it.head))?;
        let cell = (field.cell)(row);
        let text = cell.known(column)?.text(field.unit, None)?;
        // A line break does not part a figure from its name.
        Some(format!("{} {text}", column.head.to_lowercase()).replace(' ', NO_BREAK))
    });
    texts.collect::<Vec<_>>().join(", ")
}
