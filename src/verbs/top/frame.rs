//! Draws the whole screen: a pure function of what was read, what the user chose, and the size.

use super::bars::{self, Plan};
use super::canvas::{Align, Canvas};
use super::pages;
use super::prompt::{Prompt, Question, SIGNALS};
use super::reader::Wanted;
use super::round::{Gpu, Round};
use super::rows::Rows;
use super::tables::{Groups, Processes};
use super::view::{Page, View};
use crate::figures::past::Past;
use crate::words::{clock, signal};
use gpulimit_base::device::DeviceId;
use jiff::tz::TimeZone;
use ratatui::style::Style;
use std::collections::BTreeSet;
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

/// The smallest screen for tables.
pub const LEAST_WIDTH: usize = 32;
const LEAST_HEIGHT: usize = 8;

/// What is drawn.
pub struct Scene<'a> {
    pub round: &'a Round,
    pub view: &'a View,
    /// The curves that were read last, and of which group.
    pub pasts: Option<&'a (Wanted, Vec<Past>)>,
    /// For how long there has been no answer, if that is unusual.
    pub stuck: Option<Duration>,
    pub zone: &'a TimeZone,
}

/// Where the tables were drawn, for the next key and the next frame.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Seen {
    /// The first shown rows of the tables.
    pub offsets: [usize; 2],
    /// The number of rows of a page.
    pub page: usize,
    /// The first shown line of a page of text.
    pub scroll: usize,
}

/// Draws the screen.
pub fn draw(canvas: &mut Canvas<'_>, scene: &Scene<'_>) -> Seen {
    let (width, height) = (canvas.width(), usize::from(canvas.area().height));
    if width < LEAST_WIDTH || height < LEAST_HEIGHT {
        let text = format!("too small: {LEAST_WIDTH}x{LEAST_HEIGHT} is needed, q quits");
        for (y, line) in pages::broken(&text, width).iter().enumerate() {
            canvas.text(0, y, width, line, canvas.theme.plain);
        }
        return Seen {
            page: 1,
            ..Seen::default()
        };
    }
    let mut seen = match &scene.view.page {
        Page::Tables => tables(canvas, scene),
        Page::Help => {
            let lines = pages::help(canvas, scene.view.readonly);
            pages::draw(canvas, scene.view.scroll, &lines)
        }
        Page::Details(wanted) => {
            let lines = pages::details(canvas, scene, wanted);
            pages::draw(canvas, scene.view.scroll, &lines)
        }
    };
    seen.page = seen.page.max(1);
    footer(canvas, scene);
    seen
}

/// Returns the GPUs that the user has chosen.
pub fn gpus<'a>(scene: &Scene<'a>) -> Vec<&'a Gpu> {
    let gpus = scene.round.gpus.iter();
    gpus.filter(|gpu| scene.view.choice.shows(gpu.id)).collect()
}

fn tables(canvas: &mut Canvas<'_>, scene: &Scene<'_>) -> Seen {
    let (width, height) = (canvas.width(), usize::from(canvas.area().height));
    let (round, view) = (scene.round, scene.view);
    let gpus = gpus(scene);
    let plan = Plan::new(gpus.len(), width, ((height - 4) / 4).max(1));
    bars::draw(canvas, 1, &gpus, plan);
    let mut y = 1 + plan.lines;
    if !round.problem.is_empty() {
        canvas.text(0, y, width, &round.problem, canvas.theme.alarm);
        y += 1;
    }
    let rows = Rows::of(round, &view.choice);
    // Both heads and the footer take a line.
    let room = height.saturating_sub(y + 3);
    let wanted = [rows.groups.len().max(1), rows.processes.len().max(1)];
    let half = room.div_ceil(2);
    let first = wanted[0].min(room.saturating_sub(wanted[1]).max(half));
    let rooms = [first, room - first];
    let selected = view.position(&rows, round);
    let at = |table: usize| match (table, selected) {
        (0, Some(at)) => Some(at).filter(|at| *at < rows.groups.len()),
        (_, Some(at)) => at.checked_sub(rows.groups.len()),
        (_, None) => None,
    };
    let lengths = [rows.groups.len(), rows.processes.len()];
    let offset =
        |table: usize| offset(view.offsets[table], rooms[table], lengths[table], at(table));
    let offsets = [offset(0), offset(1)];

    let groups = Groups::new(round, &rows, canvas.pen, width);
    groups.heads(canvas, y);
    y += 1;
    let shown = |table: usize| rooms[table].min(lengths[table] - offsets[table]);
    for line in 0..shown(0) {
        groups.row(canvas, y + line, offsets[0] + line);
    }
    mark(canvas, y, offsets[0], shown(0), at(0));
    if lengths[0] == 0 {
        canvas.text(0, y, width, without_groups(scene), canvas.theme.plain);
    }
    y += rooms[0];
    let processes = Processes::new(round, &rows, width);
    processes.heads(canvas, y);
    y += 1;
    for line in 0..shown(1) {
        processes.row(canvas, y + line, offsets[1] + line);
    }
    mark(canvas, y, offsets[1], shown(1), at(1));
    header(
        canvas,
        scene,
        &rows,
        [0, 1].map(|it| (offsets[it], rooms[it], lengths[it])),
    );
    Seen {
        offsets,
        page: match at(1) {
            Some(_) => rooms[1],
            None => rooms[0],
        },
        scroll: 0,
    }
}

/// Marks the selected row of a table that shows `count` rows from `first` on, from line `y` on.
fn mark(canvas: &mut Canvas<'_>, y: usize, first: usize, count: usize, selected: Option<usize>) {
    if let Some(line) = selected.and_then(|row| row.checked_sub(first))
        && line < count
    {
        canvas.style_line(y + line, canvas.theme.selected);
    }
}

/// Returns why there are no rows of groups.
pub fn without_groups(scene: &Scene<'_>) -> &'static str {
    let choice = &scene.view.choice;
    if !scene.round.problem.is_empty() {
        ""
    } else if choice.filter.is_empty() && choice.user.is_empty() {
        "no groups: `gpulimit run --max 4G -- COMMAND` makes one"
    } else {
        "no group matches the filter"
    }
}

/// Returns the first shown row, such that the selected row is shown.
fn offset(before: usize, room: usize, rows: usize, selected: Option<usize>) -> usize {
    let last = rows.saturating_sub(room);
    let offset = before.min(last);
    match selected {
        Some(at) if at < offset => at,
        Some(at) if room > 0 && at >= offset + room => at + 1 - room,
        _ => offset,
    }
}

/// Writes the first line: the time, the numbers of rows and what the user chose.
///
/// `shown` has the first shown row, the shown rows and all rows of each table.
fn header(
    canvas: &mut Canvas<'_>,
    scene: &Scene<'_>,
    rows: &Rows,
    shown: [(usize, usize, usize); 2],
) {
    let width = canvas.width();
    let theme = canvas.theme;
    let warning = match scene.stuck {
        Some(time) => format!("no answer for {}", clock::rough_span(time)),
        None if scene.view.paused => "paused".into(),
        None => String::new(),
    };
    let room = match warning.len() {
        0 => width,
        used => width.saturating_sub(used + 1),
    };
    canvas.aligned(room, 0, width - room, (&warning, Align::Right), theme.alarm);
    let mut x = canvas.text(0, 0, room, "gpulimit", theme.title);
    let range = |(offset, room, rows): (usize, usize, usize), is_short: bool| {
        let (first, last) = (offset + 1, (offset + room).min(rows));
        match (rows > room, is_short) {
            (true, false) => format!(" (rows {first}-{last} of {rows})"),
            (true, true) => format!(" ({first}-{last}/{rows})"),
            (false, _) => String::new(),
        }
    };
    let [groups, processes] = counts(scene.round, rows);
    let groups = counted(groups, "group", "groups");
    let processes = counted(processes, "process", "processes");
    let ranged = |is_short| {
        let [of_groups, of_processes] = shown.map(|shown| range(shown, is_short));
        vec![
            format!("{groups}{of_groups}"),
            format!("{processes}{of_processes}"),
        ]
    };
    // The user must see the chosen order and filter, so the row counts get the room that is left.
    let chosen = choices(scene.view, scene);
    let time = time(scene);
    let used = |texts: &[String]| texts.iter().map(|text| text.width() + 2).sum::<usize>();
    let left = room.saturating_sub(x + 2 + time.width() + used(&chosen));
    let numbers = [
        ranged(false),
        ranged(true),
        vec![groups.clone(), processes.clone()],
        ranged(true).drain(..1).collect(),
        vec![groups.clone()],
    ];
    let numbers = numbers.into_iter().find(|numbers| used(numbers) <= left);
    let mut texts = vec![time];
    texts.extend(numbers.into_iter().flatten());
    texts.extend(chosen);
    let interval = format!("every {} s", scene.view.interval.as_secs_f64());
    if x + used(&texts) + 2 + interval.len() <= room {
        texts.push(interval);
    }
    for text in texts {
        x += 2;
        x += canvas.text(x, 0, room.saturating_sub(x), &text, theme.plain);
    }
}

/// Returns the numbers of groups and of processes. Each can have several rows.
pub fn counts(round: &Round, rows: &Rows) -> [usize; 2] {
    let groups = rows.groups.iter().filter(|row| row.first).count();
    let processes = rows.processes.iter().map(|at| &round.processes[*at]);
    let processes: BTreeSet<_> = processes
        .map(|process| (&process.group, process.pid, process.own_pid))
        .collect();
    [groups, processes.len()]
}

/// Returns a number of things as text.
pub fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// Returns the time of the round in the caller's zone.
pub fn time(scene: &Scene<'_>) -> String {
    let time = scene.round.time.to_zoned(scene.zone.clone());
    time.strftime("%H:%M:%S").to_string()
}

/// Describes what the user chose, if it is unusual.
fn choices(view: &View, scene: &Scene<'_>) -> Vec<String> {
    let choice = &view.choice;
    let mut texts = Vec::new();
    let inverted = if choice.inverted { ", inverted" } else { "" };
    if choice.sort != super::rows::Sort::Group || choice.inverted {
        texts.push(format!("by {}{inverted}", choice.sort.name()));
    }
    if !choice.gpus.is_empty() {
        // A chosen GPU that has disappeared has no index.
        let label = |id: &DeviceId| {
            let mut gpus = scene.round.gpus.iter();
            gpus.find(|gpu| gpu.id == *id)
                .map_or_else(|| id.short().to_string(), |gpu| gpu.label.clone())
        };
        let labels: Vec<String> = choice.gpus.iter().map(label).collect();
        texts.push(format!("GPU {}", labels.join(",")));
    }
    if !choice.user.is_empty() {
        texts.push(format!("user {}", choice.user));
    }
    if !choice.filter.is_empty() {
        texts.push(format!("filter '{}'", choice.filter));
    }
    texts
}

/// Writes the last lines: a question, what the last action did, or the keys.
fn footer(canvas: &mut Canvas<'_>, scene: &Scene<'_>) {
    let (width, y) = (canvas.width(), usize::from(canvas.area().height) - 1);
    let theme = canvas.theme;
    let view = scene.view;
    match &view.question {
        Some(question) => {
            ask(canvas, question);
            return;
        }
        None if !view.message.is_empty() => {
            above(canvas, y + 1, &view.message, theme.alarm);
            return;
        }
        None => {}
    }
    let keys: &[(&str, &str)] = match view.page {
        Page::Tables if view.readonly => &[
            ("?", "help"),
            ("q", "quit"),
            ("/", "filter"),
            (",.", "sort"),
            ("Space", "fold"),
            ("Enter", "details"),
            ("p", "pause"),
        ],
        Page::Tables => &[
            ("?", "help"),
            ("q", "quit"),
            ("/", "filter"),
            (",.", "sort"),
            ("Space", "fold"),
            ("Enter", "details"),
            ("s", "set"),
            ("k", "signal"),
            ("p", "pause"),
        ],
        Page::Help => &[("Esc", "back"), ("Up/Down", "scroll")],
        Page::Details(_) => &[
            ("Esc", "back"),
            ("[ ]", "other time"),
            ("Up/Down", "scroll"),
        ],
    };
    let mut x = 0;
    for (key, does) in keys {
        // A key is shown only if its explanation fits.
        if x + key.len() + does.len() + 1 > width {
            break;
        }
        x += canvas.text(x, y, width, key, theme.key) + 1;
        x += canvas.text(x, y, width.saturating_sub(x), does, theme.plain) + 2;
    }
}

/// Writes a text into the lines above line `end`, broken between words.
fn above(canvas: &mut Canvas<'_>, end: usize, text: &str, style: Style) {
    let lines = pages::broken(text, canvas.width());
    let lines = &lines[..lines.len().min(end.div_ceil(2))];
    for (line, y) in lines.iter().zip(end - lines.len()..) {
        blank(canvas, y);
        canvas.text(0, y, canvas.width(), line, style);
    }
}

fn blank(canvas: &mut Canvas<'_>, y: usize) {
    let width = canvas.width();
    canvas.text(0, y, width, &" ".repeat(width), Style::reset());
}

fn ask(canvas: &mut Canvas<'_>, question: &Question) {
    let (width, y) = (canvas.width(), usize::from(canvas.area().height) - 1);
    match question {
        Question::Filter(prompt) => line(canvas, y, "Filter (Esc clears): ", prompt),
        Question::User(prompt) => line(canvas, y, "User (empty: all): ", prompt),
        Question::Limit {
            title,
            scope,
            now,
            prompt,
            typed,
            ..
        } => {
            let (about, text) = match typed {
                None => (
                    format!("{title}: max on {scope} is {now}. Esc changes nothing."),
                    "New max (4G, 50%, -2G, max): ".to_owned(),
                ),
                Some(max) => (
                    format!("{title}: max on {scope} from {now} to {max}. Esc changes nothing."),
                    format!("Type {max} again to set it: "),
                ),
            };
            above(canvas, y, &about, canvas.theme.title);
            line(canvas, y, &text, prompt);
        }
        Question::Signal {
            whom,
            command,
            menu,
            ..
        } => {
            let mut text = format!("Signal to {whom}: arrows choose, Enter sends, Esc does not.");
            if let Some(command) = command {
                text += &format!(" Command: {command}");
            }
            above(canvas, y, &text, canvas.theme.title);
            blank(canvas, y);
            let names = SIGNALS.map(|signal| signal::name(signal).replace("SIG", ""));
            // On a narrow screen the list begins at the chosen signal.
            let all: usize = names.iter().map(|name| name.len() + 3).sum();
            let first = if all > width { menu.at } else { 0 };
            let mut x = 0;
            for (at, name) in names.iter().enumerate().skip(first) {
                let (text, style) = match at == menu.at {
                    true => (format!("[{name}]"), canvas.theme.selected),
                    false => (format!(" {name} "), canvas.theme.plain),
                };
                x += canvas.text(x, y, width.saturating_sub(x), &text, style) + 1;
            }
        }
    }
}

/// Writes a line that the user types, with a cursor at its end.
fn line(canvas: &mut Canvas<'_>, y: usize, text: &str, prompt: &Prompt) {
    let width = canvas.width();
    blank(canvas, y);
    let room = width.saturating_sub(12);
    let mut x = canvas.text(0, y, room, text, canvas.theme.key);
    let typed = (prompt.text.as_str(), Align::End);
    x += canvas.aligned(x, y, width.saturating_sub(x + 1), typed, canvas.theme.plain);
    canvas.text(x, y, 1, " ", canvas.theme.selected);
}

#[cfg(test)]
mod tests;
