//! Draws the nanoseconds that gpulimit adds to an operation along each axis.

use crate::case::Axis;
use crate::row::Row;
use crate::run::Way;
use plotters::prelude::*;
use std::error::Error;

const SIZE: (u32, u32) = (1_000, 720);
const COLOURS: [RGBColor; 4] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
];

/// Draws the results of a benchmark as an SVG picture with one panel for each axis.
pub fn draw(rows: &[Row]) -> Result<String, Box<dyn Error>> {
    let mut picture = String::new();
    {
        let area = SVGBackend::with_string(&mut picture, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let panels = area.split_evenly((2, 2));
        let axes = [Axis::Live, Axis::Threads, Axis::Members, Axis::Depth];
        for (panel, axis) in panels.iter().zip(axes) {
            draw_panel(panel, rows, axis)?;
        }
        area.present()?;
    }
    Ok(picture)
}

fn draw_panel<'a>(
    panel: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    rows: &[Row],
    axis: Axis,
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>> {
    let lines = lines(rows, axis);
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let right = points().map(|(x, _)| x).fold(2.0, f64::max);
    let top = points().map(|(_, y)| y).fold(10.0, f64::max) * 1.35;
    let mut chart = ChartBuilder::on(panel)
        .margin(12)
        .caption(format!("added ns, by {}", words(axis)), ("sans-serif", 17))
        .x_label_area_size(28)
        .y_label_area_size(48)
        .build_cartesian_2d((1.0..right).log_scale(), 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()?;
    for ((what, points), colour) in lines.iter().zip(COLOURS) {
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
            .label(*what)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        chart.draw_series(
            points
                .iter()
                .map(|&point| Circle::new(point, 3, colour.filled())),
        )?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    Ok(())
}

/// Returns a line of the plot for each case measured along `axis`. A point of a line has two
/// numbers: the value on the axis, and the nanoseconds that gpulimit adds.
fn lines(rows: &[Row], axis: Axis) -> Vec<(&'static str, Vec<(f64, f64)>)> {
    let mut lines: Vec<(&'static str, Vec<(f64, f64)>)> = Vec::new();
    for row in rows.iter().filter(|row| row.series.axis == Some(axis)) {
        let (Some(x), Some(y)) = (row.point.value(), row.added(Way::Limited)) else {
            continue;
        };
        let point = (f64::from(x), y);
        match lines.last_mut() {
            Some((what, points)) if *what == row.series.case.what => points.push(point),
            _ => lines.push((row.series.case.what, vec![point])),
        }
    }
    lines
}

fn words(axis: Axis) -> &'static str {
    match axis {
        Axis::Live => "live allocations",
        Axis::Threads => "threads",
        Axis::Members => "processes in the group",
        Axis::Rivals => "other processes that allocate",
        Axis::Depth => "nested groups",
        Axis::Protected => "protected groups beside it",
    }
}
