//! Rounds of `top` as plain text, for scripts and for pipes.

use super::bars::Plan;
use super::frame::{self, Scene};
use super::rows::Rows;
use super::tables::{self, Table, fitted};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::Widget;
use unicode_width::UnicodeWidthStr;

/// Most GPUs of which each gets a line with the bytes of each group.
const EXPLAINED: usize = 8;

/// Returns the round as lines of at most `width` columns, with all rows.
pub fn lines(scene: &Scene<'_>, width: u16) -> Vec<String> {
    let (round, gpus) = (scene.round, frame::gpus(scene));
    let rows = Rows::of(round, &scene.view.choice);
    let each = if gpus.len() <= EXPLAINED { 2 } else { 1 };
    let plan = Plan::new(gpus.len(), width, gpus.len() * each);
    let [groups, processes] = frame::counts(round, &rows);
    let title = format!("gpulimit  {}  {groups}  {processes}", frame::time(scene));
    let text = |text: &str| {
        let line = fitted(Line::raw(text), width.into());
        drawn(scene, width, 1, |area, buffer| line.render(area, buffer))
    };
    let mut lines = text(&title);
    let bars = |area, buffer: &mut _| plan.draw(&gpus, area, buffer);
    lines.extend(drawn(scene, width, plan.lines, bars));
    if !round.problem.is_empty() {
        lines.extend(text(&round.problem));
    }
    match rows.groups.len() {
        0 => lines.extend(text(frame::without_groups(scene))),
        count => lines.extend(table(
            scene,
            width,
            &tables::groups(round, &rows.groups),
            count,
        )),
    }
    if !rows.processes.is_empty() {
        let table_ = tables::processes(round, &rows.processes);
        lines.extend(table(scene, width, &table_, rows.processes.len()));
    }
    lines
}

/// Returns the lines of a table. A buffer of all of its `count` rows could be large.
fn table<R>(scene: &Scene<'_>, width: u16, table: &Table<'_, R>, count: usize) -> Vec<String> {
    const ROWS: usize = 64;
    let parts = (0..count).step_by(ROWS).flat_map(|first| {
        let height = ROWS.min(count - first) as u16 + 1;
        let draw = |area, buffer: &mut _| table.draw(area, buffer, first, None);
        let lines = drawn(scene, width, height, draw);
        lines.into_iter().skip(usize::from(first > 0))
    });
    parts.collect()
}

/// Returns the lines of what is drawn.
fn drawn(
    scene: &Scene<'_>,
    width: u16,
    height: u16,
    draw: impl FnOnce(Rect, &mut Buffer),
) -> Vec<String> {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw(area, &mut buffer);
    scene.look.apply(&mut buffer);
    (0..height).map(|y| line(&buffer, y)).collect()
}

/// Returns a line of a buffer as text.
pub fn line(buffer: &Buffer, y: u16) -> String {
    let mut text = String::new();
    let mut x = 0;
    while x < buffer.area.width {
        let symbol = buffer[(x, y)].symbol();
        text.push_str(symbol);
        // A wide character covers the cells to its right.
        x += symbol.width().max(1) as u16;
    }
    text.truncate(text.trim_end().len());
    text
}
