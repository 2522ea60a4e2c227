//! Rounds of `top` as plain text, for scripts and for pipes.

use super::bars::Plan;
use super::frame::{self, Scene};
use super::look::Look;
use super::rows::Rows;
use super::tables::{self, Table};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use unicode_width::UnicodeWidthStr;

/// Returns the round as lines of at most `width` columns, with all rows.
pub fn lines(scene: &Scene<'_>, width: u16) -> Vec<String> {
    let (mut text, gpus) = (Text(scene.look, width, Vec::new()), frame::gpus(scene));
    let rows = Rows::of(scene.round, &scene.view.choice);
    // Each of a few GPUs has a line with the bytes of each group.
    let each = if gpus.len() <= 8 { 2 } else { 1 };
    let plan = Plan::new(gpus.len(), width, gpus.len() * each);
    let [groups, processes] = frame::counts(&rows);
    text.line(&format!(
        "gpulimit  {}  {groups}  {processes}",
        frame::time(scene)
    ));
    let tops = scene.round.tops();
    text.draw(plan.lines, |area, buffer| {
        plan.draw(&gpus, &tops, area, buffer)
    });
    (scene.round.problem.lines()).for_each(|problem| text.line(problem));
    match rows.groups.is_empty() {
        true => text.line(&frame::without_groups(scene, &rows)),
        false => text.table(&tables::groups(&rows, &gpus, &tops)),
    }
    text.table(&tables::processes(rows.processes, scene.round));
    text.2
}

/// Lines of this look and width.
struct Text(Look, u16, Vec<String>);

impl Text {
    fn draw(&mut self, height: u16, draw: impl FnOnce(Rect, &mut Buffer)) {
        let mut buffer = Buffer::empty(Rect::new(0, 0, self.1, height));
        draw(buffer.area, &mut buffer);
        self.0.apply(&mut buffer);
        self.2.extend((0..height).map(|y| line(&buffer, y)));
    }

    /// Adds a line, if there is a text.
    fn line(&mut self, text: &str) {
        let height = u16::from(!text.is_empty());
        self.draw(height, |area, buffer| {
            tables::line(text.into(), area, buffer)
        });
    }

    /// Adds the rows of a table in parts, because a buffer of all rows could be large.
    fn table<'a, R: Copy + 'a>(&mut self, table: &Table<'a, R>) {
        for first in (0..table.rows.len()).step_by(64) {
            let (heads, height) = (self.2.len(), 1 + 64.min(table.rows.len() - first) as u16);
            self.draw(height, |area, buffer| table.draw(area, buffer, first, None));
            if first > 0 {
                self.2.remove(heads);
            }
        }
    }
}

/// Returns a line of a buffer as text.
pub fn line(buffer: &Buffer, y: u16) -> String {
    let (mut text, mut x) = (String::new(), 0);
    while x < buffer.area.width {
        let symbol = buffer[(x, y)].symbol();
        text.push_str(symbol);
        // A wide character covers the cells to its right.
        x += symbol.width().max(1) as u16;
    }
    text.trim_end().to_owned()
}
