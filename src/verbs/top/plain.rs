//! Rounds of `top` as plain text, for scripts and for pipes.

use super::bars::{self, Plan};
use super::canvas::Canvas;
use super::frame::{self, Scene};
use super::pen::{Pen, Theme};
use super::rows::Rows;
use super::tables::{Groups, Processes};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use unicode_width::UnicodeWidthStr;

/// Most GPUs of which each gets a line with the bytes of each group.
const EXPLAINED: usize = 8;

/// Returns the round as lines of at most `width` columns, with all rows.
pub fn lines(scene: &Scene<'_>, pen: &Pen, width: u16) -> Vec<String> {
    let mut lines = Lines {
        buffer: Buffer::empty(Rect::new(0, 0, width, 1)),
        pen,
        lines: Vec::new(),
    };
    let columns = usize::from(width);
    let gpus = frame::gpus(scene);
    let each = if gpus.len() <= EXPLAINED { 2 } else { 1 };
    let plan = Plan::new(gpus.len(), columns, gpus.len() * each);
    let round = scene.round;
    let rows = Rows::of(round, &scene.view.choice);
    let [groups, processes] = frame::counts(round, &rows);
    let time = frame::time(scene);
    let shown = frame::counted(groups, "group", "groups");
    let processes = frame::counted(processes, "process", "processes");
    let title = format!("gpulimit  {time}  {shown}  {processes}");
    lines.text(&title);
    let height = u16::try_from(plan.lines).unwrap_or(u16::MAX);
    lines.draw(height, |canvas| bars::draw(canvas, 0, &gpus, plan));
    if !round.problem.is_empty() {
        lines.text(&round.problem);
    }
    let groups = Groups::new(round, &rows, pen, columns);
    if rows.groups.is_empty() {
        lines.text(frame::without_groups(scene));
    } else {
        lines.draw(1, |canvas| groups.heads(canvas, 0));
    }
    for at in 0..rows.groups.len() {
        lines.draw(1, |canvas| groups.row(canvas, 0, at));
    }
    if !rows.processes.is_empty() {
        let processes = Processes::new(round, &rows, columns);
        lines.draw(1, |canvas| processes.heads(canvas, 0));
        for at in 0..rows.processes.len() {
            lines.draw(1, |canvas| processes.row(canvas, 0, at));
        }
    }
    lines.lines
}

/// Lines that are drawn into a small buffer, because a buffer of all rows would be large.
struct Lines<'a> {
    buffer: Buffer,
    pen: &'a Pen,
    lines: Vec<String>,
}

impl Lines<'_> {
    fn draw(&mut self, height: u16, draw: impl FnOnce(&mut Canvas<'_>)) {
        let width = self.buffer.area.width;
        self.buffer.resize(Rect::new(0, 0, width, height));
        self.buffer.reset();
        draw(&mut Canvas {
            buffer: &mut self.buffer,
            pen: self.pen,
            theme: &Theme::new(false),
        });
        self.lines
            .extend((0..height).map(|y| line(&self.buffer, y)));
    }

    fn text(&mut self, text: &str) {
        self.draw(1, |canvas| {
            canvas.text(0, 0, canvas.width(), text, canvas.theme.plain);
        });
    }
}

/// Returns a line of a buffer as text.
pub fn line(buffer: &Buffer, y: u16) -> String {
    let mut text = String::new();
    let mut covered = 0;
    for x in 0..buffer.area.width {
        // A wide character covers the cells to its right.
        if covered > 0 {
            covered -= 1;
            continue;
        }
        let symbol = buffer[(x, y)].symbol();
        covered = symbol.width().saturating_sub(1);
        text.push_str(symbol);
    }
    text.truncate(text.trim_end().len());
    text
}
