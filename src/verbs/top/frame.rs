//! Draws the whole screen: a pure function of what was read, what the user chose, and the size.

use super::bars::Plan;
use super::look::{ALARM, KEY, Look, SELECTED, TITLE};
use super::pages::{self, wrapped};
use super::prompt::{Prompt, Question, SIGNALS};
use super::round::{Name, Round, Who};
use super::rows::{Rows, Sort};
use super::tables::{self, fitted};
use super::view::{Page, Seen, View};
use crate::figures::processes::Process;
use crate::figures::snapshot::GpuMemory;
use crate::shown::terminal::cut;
use crate::words::{clock, signal};
use gpulimit_base::device::DeviceId;
use jiff::tz::TimeZone;
use ratatui::buffer::Buffer;
use ratatui::layout::{Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Widget};
use std::collections::BTreeSet;
use std::slice;
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

/// The smallest screen for tables.
pub const LEAST_WIDTH: u16 = 32;
const LEAST_HEIGHT: u16 = 8;

/// What is drawn.
#[derive(Copy, Clone)]
pub struct Scene<'a> {
    pub round: &'a Round,
    pub view: &'a View,
    /// For how long there has been no answer, if that is unusual.
    pub stuck: Option<Duration>,
    pub zone: &'a TimeZone,
    pub look: Look,
}

/// Draws the screen.
pub fn draw(scene: &Scene<'_>, buffer: &mut Buffer) -> Seen {
    let area = buffer.area;
    let mut seen = Seen::default();
    if area.width < LEAST_WIDTH || area.height < LEAST_HEIGHT {
        let text = format!("too small: {LEAST_WIDTH}x{LEAST_HEIGHT} is needed, q quits");
        page(wrapped(&text, area.width.into()).collect(), 0, area, buffer);
    } else {
        let body = Rect {
            height: area.height - 1,
            ..area
        };
        let width = area.width.into();
        let lines = match &scene.view.page {
            Page::Tables => None,
            Page::Help => Some(pages::help(width, scene.view.readonly)),
            Page::Users => Some(pages::users(scene.round, width)),
            Page::Details(wanted) => Some(pages::details(scene, wanted, width)),
        };
        seen = match lines {
            Some(lines) => page(lines, scene.view.scroll, body, buffer),
            None => tables(scene, body, buffer),
        };
        footer(scene, area, buffer);
    }
    seen.page = seen.page.max(1);
    scene.look.apply(buffer);
    seen
}

/// Draws the lines of a page, from line `scroll` on.
fn page(lines: Vec<Line<'_>>, scroll: usize, area: Rect, buffer: &mut Buffer) -> Seen {
    let page = usize::from(area.height);
    let scroll = scroll.min(lines.len().saturating_sub(page));
    for (line, row) in lines.into_iter().skip(scroll).zip(area.rows()) {
        tables::line(line, row, buffer);
    }
    Seen {
        page,
        scroll,
        ..Seen::default()
    }
}

/// Returns the GPUs that the user has chosen.
pub fn gpus<'a>(scene: &Scene<'a>) -> Vec<&'a GpuMemory> {
    let gpus = scene.round.gpus.iter();
    gpus.filter(|gpu| scene.view.choice.shows(Some(gpu.id)))
        .collect()
}

fn tables(scene: &Scene<'_>, area: Rect, buffer: &mut Buffer) -> Seen {
    let (round, view) = (scene.round, scene.view);
    let (gpus, rows) = (gpus(scene), Rows::of(round, &view.choice));
    // The GPUs of several machines have a larger part of the screen.
    let part = if round.machines.is_empty() { 4 } else { 3 };
    let most = usize::from(area.height - 3) / part;
    let lost = round.problem.lines().count().min(most);
    let plan = Plan::new(gpus.len(), area.width, most - lost.min(most - 1));
    let lost = lost as u16;
    // The first line and the heads of both tables take a line each.
    let room = usize::from((area.height - 3).saturating_sub(plan.lines + lost));
    let lengths = [rows.groups.len(), rows.processes.len()];
    let first = lengths[0].max(1);
    let first = first.min(room.saturating_sub(lengths[1].max(1)).max(room.div_ceil(2)));
    let rooms = [first, room - first];
    let [of_groups, of_processes] = rooms.map(|room| room as u16 + 1);
    let heights = [1, plan.lines, lost, of_groups, of_processes];
    let [head, bars, why, groups, processes] = Layout::vertical(heights).areas(area);
    let tops = round.tops();
    plan.draw(&gpus, &tops, bars, buffer);
    for (text, row) in round.problem.lines().zip(why.rows()) {
        tables::line(Line::styled(text, ALARM), row, buffer);
    }
    let selected = view.position(&rows);
    let of_groups = selected.filter(|at| *at < lengths[0]);
    let of_processes = selected.and_then(|at| at.checked_sub(lengths[0]));
    let offsets = [
        offset(view.offsets[0], rooms[0], lengths[0], of_groups),
        offset(view.offsets[1], rooms[1], lengths[1], of_processes),
    ];
    tables::groups(&rows, &gpus, &tops).draw(groups, buffer, offsets[0], of_groups);
    if let (true, Some(row)) = (rows.groups.is_empty(), groups.rows().nth(1)) {
        without_groups(scene, &rows).render(row, buffer);
    }
    let table = tables::processes(rows.processes.clone(), round);
    table.draw(processes, buffer, offsets[1], of_processes);
    let counts = counts(&rows);
    let ranged = [0, 1].map(|at| {
        let (text, before, room, all) = (&counts[at], offsets[at], rooms[at], lengths[at]);
        let range = format!(" ({}-{} of {all})", before + 1, before + room);
        format!("{text}{}", if all > room { &range } else { "" })
    });
    header(scene, [&ranged, &counts], head, buffer);
    Seen {
        offsets,
        tables: [groups, processes],
        page: rooms[usize::from(of_processes.is_some())],
        scroll: 0,
    }
}

/// Returns why there are no rows of groups.
pub fn without_groups(scene: &Scene<'_>, rows: &Rows<'_>) -> String {
    let choice = &scene.view.choice;
    if !scene.round.problem.is_empty() {
        String::new()
    } else if rows.idle > 0 {
        format!("{} idle: the key i or --idle shows them", groups(rows.idle))
    } else if choice.filter.is_empty() && choice.user.is_empty() {
        "no groups: `gpulimit run --max 4G -- COMMAND` makes one".into()
    } else {
        "no group matches the filter".into()
    }
}

/// Returns a number of groups as text.
fn groups(count: usize) -> String {
    format!("{count} group{}", if count == 1 { "" } else { "s" })
}

/// Returns the first shown row, such that the selected row is shown.
fn offset(before: usize, room: usize, rows: usize, selected: Option<usize>) -> usize {
    let offset = before.min(rows.saturating_sub(room));
    let selected = selected.unwrap_or(offset);
    offset.clamp((selected + 1).saturating_sub(room.max(1)), selected)
}

/// Draws the first line: the time, the numbers of rows, with and without those that are shown, and
/// what the user chose.
fn header(scene: &Scene<'_>, counts: [&[String; 2]; 2], area: Rect, buffer: &mut Buffer) {
    let warning = match scene.stuck {
        Some(time) => format!(" no answer for {}", clock::rough_span(time)),
        None if scene.view.paused => " paused".into(),
        None => String::new(),
    };
    let room = usize::from(area.width).saturating_sub(warning.len());
    // The user must see the chosen order and filter, so the row counts get the room that is left.
    let (time, chosen) = (time(scene), choices(scene));
    let [ranged, plain] = counts;
    let texts = [&ranged[..], plain, &ranged[..1], &plain[..1], &[]].map(|counts| {
        let texts = [slice::from_ref(&time), counts, &chosen].concat();
        "  ".to_owned() + &texts.join("  ")
    });
    let left = room.saturating_sub(8);
    let fits = texts.iter().position(|text| text.width() <= left);
    let mut text = texts[fits.unwrap_or(4)].clone();
    let interval = format!("  every {} s", scene.view.interval.as_secs_f64());
    if text.width() + interval.len() <= left {
        text += &interval;
    }
    let line = Line::from_iter([Span::styled("gpulimit", TITLE), text.into()]);
    let warning = Line::styled(warning, ALARM).right_aligned();
    warning.render(area, buffer);
    fitted(line, room).render(area, buffer);
}

/// Returns the numbers of groups and of processes as text. Each can have several rows.
pub fn counts(rows: &Rows<'_>) -> [String; 2] {
    let count = rows.groups.iter().filter(|row| row.first).count();
    let idle = match rows.idle {
        0 => String::new(),
        idle => format!(" (+{idle} idle)"),
    };
    let who = |it: &&Process| (Name::of_process(it), Who::of(it));
    let processes: BTreeSet<_> = rows.processes.iter().map(who).collect();
    let several = if processes.len() == 1 { "" } else { "es" };
    [
        groups(count) + &idle,
        format!("{} process{several}", processes.len()),
    ]
}

/// Returns the time of the round in the caller's zone.
pub fn time(scene: &Scene<'_>) -> String {
    let time = scene.round.time.to_zoned(scene.zone.clone());
    time.strftime("%H:%M:%S").to_string()
}

/// Describes what the user chose, if it is unusual.
fn choices(scene: &Scene<'_>) -> Vec<String> {
    let choice = &scene.view.choice;
    let inverted = if choice.inverted { ", inverted" } else { "" };
    let label = |id: &DeviceId| scene.round.label(Some(*id));
    let gpus: Vec<String> = choice.gpus.iter().map(label).collect();
    let texts = [
        (choice.sort != Sort::default() || choice.inverted)
            .then(|| format!("by {}{inverted}", choice.sort.name())),
        (!gpus.is_empty()).then(|| format!("GPU {}", gpus.join(","))),
        (!choice.user.is_empty()).then(|| format!("user {}", choice.user)),
        (!choice.filter.is_empty()).then(|| format!("filter '{}'", choice.filter)),
    ];
    texts.into_iter().flatten().collect()
}

/// Draws the last lines: a question, what the last action did, or the keys.
fn footer(scene: &Scene<'_>, area: Rect, buffer: &mut Buffer) {
    let (view, width) = (scene.view, usize::from(area.width));
    let (about, style) = match &view.question {
        Some(prompt) => (&prompt.about, TITLE),
        None => (&view.message, ALARM),
    };
    let lines = wrapped(about, width).map(|line| line.style(style));
    let mut lines: Vec<Line<'_>> = lines.collect();
    lines.truncate(usize::from(area.height).div_ceil(2));
    match &view.question {
        Some(prompt) => lines.push(answer(prompt, width)),
        None if view.message.is_empty() => lines = vec![keys(view, width)],
        None => {}
    }
    let height = lines.len() as u16;
    let y = area.bottom() - height;
    let area = Rect { y, height, ..area };
    Clear.render(area, buffer);
    Paragraph::new(lines).render(area, buffer);
}

/// Returns the names of the most important keys, as many as fit.
fn keys(view: &View, width: usize) -> Line<'static> {
    let keys = match view.page {
        Page::Tables => {
            "? help  q quit  / filter  ,. sort  i idle  U users  Space fold  Enter details  \
             s set  K signal  S suspend  p pause"
        }
        Page::Help | Page::Users => "Esc back  Up/Down scroll",
        Page::Details(_) => "Esc back  [] other time  Up/Down scroll",
    };
    let mut line = Line::default();
    for (key, does) in keys.split("  ").filter_map(|key| key.split_once(' ')) {
        if line.width() + key.len() + does.len() + 1 > width {
            break;
        }
        if !(view.readonly && ["s", "K", "S"].contains(&key)) {
            let does = format!(" {does}  ");
            line.extend([Span::styled(key, KEY), does.into()]);
        }
    }
    line
}

/// Returns the line in which the user answers: what they type, with a cursor at its end, or the
/// list of signals.
fn answer(prompt: &Prompt, width: usize) -> Line<'static> {
    let cursor = Span::styled(" ", SELECTED);
    let asked = match &prompt.question {
        Question::Filter => "Filter (Esc clears): ".into(),
        Question::User => "User (empty: all): ".into(),
        Question::Limit(..) => "New max (4G, 50%, -2G, max): ".into(),
        Question::Again(_, _, max) => format!("Type {max} again to set it: "),
        Question::Move(_, _, moved) => format!("Enter {moved}s, Esc does not: "),
        Question::Signal(..) => {
            let names = SIGNALS.map(|signal| signal::name(signal).replace("SIG", ""));
            // On a narrow screen the list begins at the chosen signal.
            let all: usize = names.iter().map(|name| name.len() + 2).sum();
            let first = if all > width { prompt.at } else { 0 };
            let names = names.iter().enumerate().skip(first);
            return Line::from_iter(names.map(|(at, name)| match at == prompt.at {
                true => Span::styled(format!("[{name}]"), SELECTED),
                false => format!(" {name} ").into(),
            }));
        }
    };
    let asked = cut(&asked, width - 12, 0).into_owned();
    let room = width - asked.width() - 1;
    let typed = cut(&prompt.text, room, room).into_owned();
    Line::from_iter([Span::styled(asked, KEY), typed.into(), cursor])
}

#[cfg(test)]
mod tests;
