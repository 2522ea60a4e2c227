//! The pages of `top` that are lines of text: the help, and the details of a group.

use super::frame::Scene;
use super::look::{self, TITLE};
use super::round::{Name, Round, Wanted};
use super::tables::{self, Table, states};
use crate::figures::processes::Process;
use crate::figures::users::Use;
use crate::figures::{Figures, Row};
use crate::shown::terminal::{NO_BREAK, wrap};
use crate::shown::{curve, output::Escaped};
use crate::words::clock::coarse;
use gpulimit_group::is_within;
use gpulimit_limits::Selector;
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use std::iter::once;

/// The most processes that the details of a group list.
const MOST: usize = 8;

/// The columns of the names of keys in [`KEYS`].
const KEY: usize = 20;

/// The keys, and what each does.
const KEYS: &str = "\
Up Down j k wheel   select a row; a click does, too
PgUp PgDn Home End  select a row further away
Tab                 select the first row of the other table
Enter               the group's curves, refusals and processes; [ ] choose the time
Space t             fold or unfold the group
T                   fold or unfold all groups (--fold)
i                   show idle groups, or hide them (--idle)
, . < > F6          sort by another column (--sort)
I                   invert the order
/ F4                filter names and commands; Esc clears the filter (--filter)
u                   show one user's processes (--user)
U                   list the users, with sums over groups and GPUs
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
K F9                send a signal to the process, or to the group's; asks first
S                   suspend the process, or the group's, or resume them; asks first";

/// What the columns and characters mean.
const MEANINGS: [&str; 8] = [
    "In a bar, each filling is a top group. The last one, `others`, is memory of no shown group: \
     other programs and the driver. The mark is the sum of the limits of the top groups, if all \
     have one.",
    "MAX is the group's own limit (`max`: it has none), and % the used part of the limit that \
     applies, which can be that of a group above. USAGE includes the groups below. REFUSED counts \
     from the group's beginning.",
    "MEM 10 MIN is the memory used in the last ten minutes, if the group keeps a history; its \
     full height is the limit.",
    "STATE: a request `waits for` memory, how long it has waited, and the process with the most \
     memory of the full group; `2 refused in 1 min`; `above high` or `above max`; \
     `suspended`: this memory is on the host, and no part of the usage; `draining`: a process has \
     ended, and the driver has not freed its memory yet; `may leak`: the usage grows as that of a \
     program with a leak.",
    "ALLOC are plain and virtual memory, arrays and graphs. JOB is the container or the job that \
     the process is in.",
    "BUSY is what NVML sampled in the last seconds: of a GPU the part of the time in which a \
     kernel ran, of a process its part of the processors. IDLE is the time since NVML last saw the \
     process use them, or its ledger its charge change (`<5 min`: that is noted to five minutes): \
     a hint, no proof. RAM is its memory on the host, AGE the time since its start.",
    "A group on several GPUs has one row with the sums of its figures; FULLEST is the % of its \
     fullest GPU. The cells below the digits of the GPUs are what the group uses of its limit \
     there. d shows one GPU, and its row changes the group's limit for this GPU, if it has one.",
    "The same in other verbs: gpulimit show, ps, history, set, kill.",
];

/// Returns the lines of the help.
pub fn help(width: usize, readonly: bool) -> Vec<Line<'static>> {
    let changes = |line: &str| ["s ", "K F9", "S "].iter().any(|key| line.starts_with(key));
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
    let pasts = scene.round.pasts.as_ref();
    let pasts = pasts.filter(|(read, ..)| read == wanted);
    lines.extend(processes(scene.round, &wanted.group, width));
    let refusals = pasts.map_or(&[][..], |(_, _, refusals)| refusals);
    if !refusals.is_empty() {
        let title = "Refused (`gpulimit why` explains the last one)";
        lines.extend([Line::default(), Line::styled(title, TITLE)]);
        lines.extend(refusals.iter().flat_map(|text| wrapped(text, width)));
    }
    for row in group.rows() {
        let past = pasts.and_then(|(_, pasts, _)| {
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
        lines.extend(states(&row).into_iter().map(Line::from));
        const NONE: &str = "no history: the group is a job in a group, or has not used this GPU";
        let curve = match (past, pasts) {
            (Some(past), _) => curve::of(past, scene.zone, width, scene.look.unicode),
            _ if !group.machine.is_empty() => vec![format!("history: on {}", group.machine)],
            (None, None) => vec!["reading the history".into()],
            (None, Some(_)) => vec![NONE.into()],
        };
        lines.extend(curve.into_iter().map(Line::from));
    }
    lines
}

/// Returns the processes in a group and in the groups below it as lines.
fn processes(round: &Round, group: &Name, width: usize) -> Vec<Line<'static>> {
    let is_in = |it: &&Process| it.root == group.root && is_within(&it.group, &group.name);
    let found: Vec<&Process> = round.processes.iter().filter(is_in).collect();
    let table = tables::processes(found, round);
    if table.rows.is_empty() {
        return Vec::new();
    }
    let more = table.rows.len().saturating_sub(MOST);
    let more = (more > 0).then(|| format!("and {more} more: gpulimit ps {}", group.name).into());
    let lines = drawn(&table, MOST, width).into_iter().chain(more);
    once(Line::default()).chain(lines).collect()
}

/// Returns the lines of the users: the sums over all groups and GPUs.
pub fn users(round: &Round, width: usize) -> Vec<Line<'static>> {
    let uses = Use::of(&round.processes, false, None);
    match uses.is_empty() {
        true => vec!["no processes in groups".into()],
        false => drawn(&tables::users(&uses), usize::MAX, width),
    }
}

/// Draws at most this many rows of a table as lines.
fn drawn<'a, R: Copy + 'a>(table: &Table<'a, R>, most: usize, width: usize) -> Vec<Line<'static>> {
    let height = table.rows.len().min(most).saturating_add(1);
    let height = u16::try_from(height).unwrap_or(u16::MAX / width as u16);
    let area = Rect::new(0, 0, width as u16, height);
    let mut buffer = Buffer::empty(area);
    table.draw(area, &mut buffer, 0, None);
    let line = |y| {
        let cells = &buffer.content[usize::from(y) * width..][..width];
        let span = |cell: &Cell| Span::styled(cell.symbol().to_owned(), cell.style());
        Line::from_iter(cells.iter().map(span))
    };
    (0..area.height).map(line).collect()
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
    const ELSEWHERE: [&str; 4] = ["MACHINE", "GROUP", "GPU", "OPTIONS"];
    let texts = Row::FIELDS.iter().filter_map(|field| {
        let column = field.column.filter(|it| !ELSEWHERE.contains(&it.head))?;
        let cell = (field.cell)(row);
        let text = cell.known(column)?.text(field.unit, None)?;
        // A line break does not part a figure from its name.
        Some(format!("{} {text}", column.head.to_lowercase()).replace(' ', NO_BREAK))
    });
    texts.collect::<Vec<_>>().join(", ")
}
