//! The bars of the GPUs: how much of each GPU's memory top groups and others use.

use super::look::{LIMIT, OUTSIDE, TITLE, WEAK};
use super::round::Tops;
use super::tables::{self, short, size};
use crate::figures::percent;
use crate::figures::snapshot::GpuMemory;
use crate::groups::short_label;
use crate::shown::terminal::cut;
use gpulimit_base::units::gib;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;
use unicode_width::UnicodeWidthStr;

/// The least columns of a bar with its figures, and of one with a percentage only.
const LEAST: u16 = 38;
const SMALL: u16 = 19;
/// From this many columns on, there is also how busy a GPU is.
const MIDDLE: u16 = 60;
/// From this many columns on, there are also figures of the memory that is free.
const WIDE: u16 = 100;
/// From this many columns on, there is room for the names of products.
const WIDEST: u16 = 120;

/// How the bars are laid out.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Plan {
    /// Number of bars in a line.
    columns: usize,
    /// Whether a line below each bar names the groups and their bytes.
    explained: bool,
    /// Number of lines.
    pub lines: u16,
}

impl Plan {
    /// Plans bars of this many GPUs for a screen of so many columns, in `lines` lines if possible.
    pub fn new(gpus: usize, width: u16, lines: usize) -> Self {
        let most = usize::from(width / SMALL).max(1);
        let columns = (1..most).find(|columns| gpus.div_ceil(*columns) <= lines);
        let columns = columns.unwrap_or(most);
        let bars = gpus.div_ceil(columns);
        let explained = columns == 1 && 2 * bars <= lines;
        let needed = if explained { 2 * bars } else { bars };
        Self {
            columns,
            explained,
            // More bars than lines take a larger part of the screen: all GPUs are shown.
            lines: needed.min(2 * lines).try_into().unwrap_or(u16::MAX),
        }
    }

    /// Draws the bars. The first column has the first GPUs.
    pub fn draw(self, gpus: &[&GpuMemory], tops: &Tops<'_>, area: Rect, buffer: &mut Buffer) {
        let each = (area.width + 1) / self.columns as u16;
        let right = |gpu: &&GpuMemory| {
            let busy = busy(gpu).filter(|_| each > MIDDLE);
            let others = (each > WIDE && !self.explained).then(|| activity(gpu));
            let parts = busy.into_iter().chain(others.into_iter().flatten());
            parts.fold(figures(gpu, each), |text, part| text + "  " + &part)
        };
        let name = |gpu: &&GpuMemory| {
            let label = short_label(gpu.index, gpu.id);
            match gpu.machine.is_empty() {
                true => label,
                false => format!("{}:{label}", cut(&gpu.machine, usize::from(each / 3), 3)),
            }
        };
        let label = gpus.iter().map(|gpu| name(gpu).width()).max();
        let figures = gpus.iter().map(|gpu| right(gpu).len()).max();
        let [label, figures] = [label, figures].map(|width| width.unwrap_or(1) as u16);
        let rows = gpus.len().div_ceil(self.columns).max(1);
        for (gpus, column) in gpus.chunks(rows).zip(0..) {
            let column = Rect::new(area.x + column * each, area.y, each - 1, area.height);
            let mut lines = column.rows();
            for gpu in gpus {
                let Some(line) = lines.next() else { break };
                Span::styled(name(gpu), TITLE).render(line, buffer);
                Line::from(right(gpu)).right_aligned().render(line, buffer);
                let width = line.width.saturating_sub(label + figures + 2);
                let inner = Rect::new(line.x + label + 1, line.y, width, 1);
                bar(gpu, tops, inner, buffer);
                if let Some(line) = self.explained.then(|| lines.next()).flatten() {
                    explain(gpu, tops, line, label, buffer);
                }
            }
        }
    }
}

/// Draws a bar. Names of groups are in their parts where there is room.
fn bar(gpu: &GpuMemory, tops: &Tops<'_>, area: Rect, buffer: &mut Buffer) {
    const LEAST_NAME: usize = 4;
    let inside = usize::from(area.width.saturating_sub(2));
    let known = gpu.limits.unwrap_or(0).max(gpu.grouped);
    let whole = gpu.total.unwrap_or(known).max(1);
    // Returns the column at which `bytes` end, rounded to the nearest.
    let column = |bytes: u64| {
        let columns = u128::from(bytes.min(whole)) * inside as u128 + u128::from(whole / 2);
        (columns / u128::from(whole)) as usize
    };
    let mut spans = vec![Span::styled("[", WEAK)];
    let (mut sum, mut from) = (0_u64, 0);
    let parts = gpu.parts.iter();
    let parts = parts.map(|(title, bytes)| (title.as_str(), *bytes, tops.fill(title)));
    let outside = ("", gpu.others().unwrap_or(0), OUTSIDE);
    for (title, usage, (fill, style)) in parts.chain([outside]) {
        sum = sum.saturating_add(usage);
        let width = column(sum) - from;
        from += width;
        // A column of the filling separates the name from the next part.
        let name = match width.saturating_sub(1) {
            room if room >= LEAST_NAME.min(title.width()) => cut(title, room, 0),
            _ => "".into(),
        };
        let rest = fill.repeat(width - name.width());
        spans.push(Span::styled(name, style.patch(TITLE)));
        spans.push(Span::styled(rest, style));
    }
    spans.push(" ".repeat(inside - from).into());
    spans.push(Span::styled("]", WEAK));
    Line::from(spans).render(area, buffer);
    let limits = gpu.limits.filter(|limits| *limits < whole);
    if let Some(limits) = limits.filter(|_| inside > 0) {
        let at = column(limits).min(inside - 1) as u16;
        let mark = Rect::new(area.x + 1 + at, area.y, 1, 1);
        Span::styled(LIMIT.0, LIMIT.1).render(mark, buffer);
    }
}

/// Returns the figures to the right of a bar of this many columns: `45.2/79.2 GiB  57%`, or `57%`.
fn figures(gpu: &GpuMemory, columns: u16) -> String {
    let Some(total) = gpu.total else {
        return format!("{} in groups", gib(gpu.grouped));
    };
    let used = gpu.used.unwrap_or(gpu.grouped);
    let share = percent(used, total).map_or_else(String::new, |share| format!(" {share:>3}%"));
    if columns < LEAST {
        return share;
    }
    let free = gpu.free().filter(|_| columns > WIDE);
    let free = free.map_or_else(String::new, |free| format!("  free {}", gib(free)));
    let (used, total) = (gib(used).in_unit_of(total), gib(total));
    format!("{used}/{total}{share}{free}")
}

/// Returns the part of the time in which a GPU is busy: `busy  97%`.
fn busy(gpu: &GpuMemory) -> Option<String> {
    Some(format!("busy {:>3}%", gpu.activity.busy?))
}

/// Returns what else NVML tells of a GPU's work: `64C`, `512/700 W`, `1980 MHz`.
fn activity(gpu: &GpuMemory) -> impl Iterator<Item = String> {
    let it = gpu.activity;
    let of = |limit| format!("/{limit}");
    let limit = it.power_limit.map_or_else(String::new, of);
    let parts = [
        it.temperature.map(|degrees| format!("{degrees}C")),
        it.power.map(|watts| format!("{watts}{limit} W")),
        it.clock.map(|mhz| format!("{mhz} MHz")),
    ];
    parts.into_iter().flatten()
}

/// Draws a line with the bytes of each part of a bar, and what else is known of the GPU.
fn explain(gpu: &GpuMemory, tops: &Tops<'_>, area: Rect, label: u16, buffer: &mut Buffer) {
    let (others, free) = (size(gpu.others()), size(gpu.free()));
    let outside = gpu.outside.filter(|(count, _)| *count > 0);
    let outside = outside.map_or_else(String::new, |(count, bytes)| {
        let is_unsure = gpu.unsure > 0;
        let unsure = if is_unsure { " or not readable" } else { "" };
        format!("  {count} outside{unsure} {}", short(bytes))
    });
    let others = (OUTSIDE, format!(" others {others}{outside}  free {free}"));
    let limits = gpu.limits.map(|limits| {
        let is_above = gpu.total.is_some_and(|total| limits > total);
        let above = if is_above { ", above its size" } else { "" };
        (LIMIT, format!(" limits {}{above}", short(limits)))
    });
    let parts = gpu.parts.iter();
    let parts =
        parts.map(|(title, bytes)| (tops.fill(title), format!(" {title} {}", short(*bytes))));
    let parts = [others].into_iter().chain(limits).chain(parts);
    let spans = parts
        .flat_map(|((fill, style), text)| [Span::styled(fill, style), text.into(), "  ".into()]);
    let (indent, width) = (label + 2, area.width - label - 2);
    let area = Rect::new(area.x + indent, area.y, width, 1);
    let line = Line::from_iter(spans);
    let name = (indent + width >= WIDEST).then(|| gpu.name.clone());
    let room = usize::from(width).saturating_sub(line.width());
    let mut about = String::new();
    for part in activity(gpu).chain(name) {
        if about.width() + 2 + part.width() <= room {
            about = about + "  " + &part;
        }
    }
    let about = Line::styled(about, WEAK).right_aligned();
    about.render(area, buffer);
    tables::line(line, area, buffer);
}
