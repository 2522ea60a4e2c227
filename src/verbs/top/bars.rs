//! The bars of the GPUs: how much of each GPU's memory top groups and others use.

use super::canvas::{Align, Canvas};
use super::columns::{short, short_or_unknown};
use super::round::{Gpu, percent};
use gpulimit_base::units::gib;
use ratatui::style::Style;

/// The least columns of a bar with its figures.
const LEAST: usize = 38;
/// From this many columns on, there are also figures of the memory that is free.
const WIDE: usize = 100;
/// From this many columns on, there is room for the names of products.
const WIDEST: usize = 120;

/// How the bars are laid out.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Plan {
    /// Number of bars in a line.
    pub columns: usize,
    /// Whether a line below each bar names the groups and their bytes.
    pub explained: bool,
    /// Number of lines.
    pub lines: usize,
}

impl Plan {
    /// Plans bars of this many GPUs for a screen of this many columns and at most `lines` lines.
    pub fn new(gpus: usize, width: usize, lines: usize) -> Self {
        let most = (width / LEAST).max(1);
        let columns = (1..=most).find(|columns| gpus.div_ceil(*columns) <= lines);
        let columns = columns.unwrap_or(most);
        let bars = gpus.div_ceil(columns);
        let explained = columns == 1 && 2 * bars <= lines;
        Self {
            columns,
            explained,
            lines: (bars * if explained { 2 } else { 1 }).min(lines),
        }
    }
}

/// Draws the bars from line `y` on.
pub fn draw(canvas: &mut Canvas<'_>, y: usize, gpus: &[&Gpu], plan: Plan) {
    let each = canvas.width() / plan.columns.max(1);
    let lines = gpus.len().div_ceil(plan.columns);
    let labels = gpus.iter().map(|gpu| gpu.label.chars().count());
    let label = labels.max().unwrap_or(1);
    let figures = gpus.iter().map(|gpu| figures(gpu, each >= WIDE).len());
    let figures = figures.max().unwrap_or(0);
    for (at, gpu) in gpus.iter().enumerate() {
        // The first column has the first GPUs.
        let (column, line) = (at / lines, at % lines);
        let line = line * if plan.explained { 2 } else { 1 };
        if line >= plan.lines {
            continue;
        }
        let gap = usize::from(column + 1 < plan.columns);
        bar(
            canvas,
            (column * each, y + line),
            each - gap,
            (label, figures),
            gpu,
        );
        if plan.explained && line + 1 < plan.lines {
            explain(canvas, y + line + 1, label, gpu);
        }
    }
}

fn bar(
    canvas: &mut Canvas<'_>,
    (x, y): (usize, usize),
    width: usize,
    (label, figures_width): (usize, usize),
    gpu: &Gpu,
) {
    let theme = canvas.theme;
    let inside = width.saturating_sub(label + figures_width + 4);
    canvas.text(x, y, label, &gpu.label, theme.title);
    let left = x + label + 1;
    canvas.text(left, y, 1, "[", theme.weak);
    for (at, (fill, style)) in cells(canvas, gpu, inside).into_iter().enumerate() {
        canvas.text(left + 1 + at, y, 1, fill.encode_utf8(&mut [0; 4]), style);
    }
    names(canvas, (left + 1, y), gpu, inside);
    canvas.text(left + 1 + inside, y, 1, "]", theme.weak);
    let right = left + inside + 3;
    let text = figures(gpu, width + 1 >= WIDE);
    let room = (x + width).saturating_sub(right);
    canvas.aligned(right, y, room, (&text, Align::Right), theme.plain);
}

/// Returns the figures to the right of a bar: `45.2/79.2 GiB  57%`.
fn figures(gpu: &Gpu, is_wide: bool) -> String {
    let Some(total) = gpu.total else {
        let used: u64 = gpu.parts.iter().map(|part| part.usage).sum();
        return format!("{} in groups", gib(used));
    };
    let grouped = gpu
        .parts
        .iter()
        .fold(0, |sum: u64, part| sum.saturating_add(part.usage));
    let used = gpu.used.unwrap_or(grouped);
    let share = percent(used, total).map_or_else(String::new, |share| format!(" {share:>3}%"));
    let mut text = format!("{}/{}{share}", gib(used).in_unit_of(total), gib(total));
    if let (true, Some(free)) = (is_wide, gpu.free) {
        text = format!("{text}  free {}", gib(free));
    }
    text
}

/// Returns the places in a bar where the parts of the groups and the memory outside end.
fn ends(gpu: &Gpu, width: usize) -> Vec<usize> {
    let mut sum = 0_u64;
    let whole = whole(gpu);
    let parts = gpu.parts.iter().map(|part| part.usage);
    parts
        .chain([gpu.outside.unwrap_or(0)])
        .map(|bytes| {
            sum = sum.saturating_add(bytes);
            place(sum, whole, width)
        })
        .collect()
}

/// Returns the bytes that the whole bar stands for.
fn whole(gpu: &Gpu) -> u64 {
    let grouped = gpu
        .parts
        .iter()
        .fold(0, |sum: u64, part| sum.saturating_add(part.usage));
    gpu.total
        .unwrap_or_else(|| gpu.limits.unwrap_or(0).max(grouped))
}

/// Returns the column of a bar at which `bytes` end, rounded to the nearest.
fn place(bytes: u64, whole: u64, width: usize) -> usize {
    let columns = u128::from(bytes.min(whole)) * width as u128 + u128::from(whole / 2);
    // The quotient is at most `width`.
    (columns / u128::from(whole.max(1))) as usize
}

fn cells(canvas: &Canvas<'_>, gpu: &Gpu, width: usize) -> Vec<(char, Style)> {
    let (pen, theme) = (canvas.pen, canvas.theme);
    let ends = ends(gpu, width);
    let parts = gpu.parts.len();
    let mut cells = Vec::with_capacity(width);
    for at in 0..width {
        cells.push(match ends.iter().position(|end| at < *end) {
            Some(part) if part < parts => (pen.fills[part % 3], theme.fills[part % 3]),
            Some(_) => (pen.outside, theme.outside),
            None => (' ', theme.plain),
        });
    }
    if let Some(limits) = gpu.limits.filter(|limits| *limits < whole(gpu))
        && let Some(cell) = cells.get_mut(place(limits, whole(gpu), width))
    {
        *cell = (pen.limit, theme.limit);
    }
    cells
}

/// Writes the names of the groups into their parts of a bar, where there is room.
fn names(canvas: &mut Canvas<'_>, (x, y): (usize, usize), gpu: &Gpu, width: usize) {
    const LEAST: usize = 4;
    let mut begin = 0;
    for (at, (part, end)) in gpu.parts.iter().zip(ends(gpu, width)).enumerate() {
        // A column of the filling separates the name from the next part.
        let room = (end - begin).saturating_sub(1);
        if room >= LEAST.min(part.title.chars().count()) {
            let style = canvas.theme.fills[at % 3].patch(canvas.theme.title);
            canvas.text(x + begin, y, room, &part.title, style);
        }
        begin = end;
    }
}

/// Writes a line with the bytes of each part of a bar.
fn explain(canvas: &mut Canvas<'_>, y: usize, label: usize, gpu: &Gpu) {
    let (pen, theme) = (canvas.pen, canvas.theme);
    let mut x = label + 2;
    let width = canvas.width();
    let mut write = |text: &str, style: Style| {
        x += canvas.text(x, y, width.saturating_sub(x), text, style);
    };
    write(&format!("{} ", pen.outside), theme.outside);
    let name = if gpu.is_whole { "outside" } else { "others" };
    write(
        &format!("{name} {}", short_or_unknown(gpu.outside)),
        theme.plain,
    );
    write(
        &format!("  free {}", short_or_unknown(gpu.free)),
        theme.plain,
    );
    if let Some(limits) = gpu.limits {
        write(&format!("  {} ", pen.limit), theme.limit);
        write(&format!("limits {}", short(limits)), theme.plain);
    }
    for (at, part) in gpu.parts.iter().enumerate() {
        write(&format!("  {} ", pen.fills[at % 3]), theme.fills[at % 3]);
        write(
            &format!("{} {}", part.title, short(part.usage)),
            theme.plain,
        );
    }
    if width >= WIDEST {
        let room = width.saturating_sub(x + 2);
        canvas.aligned(x + 2, y, room, (&gpu.name, Align::Right), theme.weak);
    }
}
