//! Drawing on plotters' SVG backend: axes, curves with error bars, ratio panels, forest plots.
//!
//! Colours are those of Okabe and Ito, which colour-blind readers can distinguish; each series also has its
//! own shape. Ink and grid are drawn in two fixed colours, which the page replaces by variables so that
//! charts follow light and dark.

mod forest;
mod heat;
mod plane;

use crate::error::Error;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Ink, as the backend writes it.
pub(super) const INK: RGBColor = RGBColor(0x10, 0x11, 0x12);
/// Lines of the grid.
pub(super) const GRID: RGBColor = RGBColor(0xd1, 0xd2, 0xd3);
/// The band within the margin.
pub(super) const BAND: RGBColor = RGBColor(0xe8, 0xe9, 0xea);
const OKABE_ITO: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
];
const FONT: &str = "sans-serif";
// The SVG backend writes four fifths of it.
const FONT_SIZE: i32 = 16;
/// Colour of boxes.
const BOX_STYLE: usize = 1;
/// The additional height of a chart with words at its top.
const NOTES_ROOM: f64 = 1.12;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

pub(super) use forest::{ForestRow, Symbol, forest};
pub(super) use heat::{HeatPanel, heat};
pub(super) use plane::{Dot, Join, Plot, Scale, Trail, plots};

/// A value with its interval at a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// One curve.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) label: String,
    /// The number of its colour and shape.
    pub(super) style: usize,
    pub(super) marks: Vec<Mark>,
}

/// One panel with curves.
#[derive(Debug)]
pub(super) struct Panel<'a> {
    pub(super) y_label: &'a str,
    pub(super) series: &'a [Series],
    /// Half of the band around 0 (in percent), for ratio panels; their axis shows 0.
    pub(super) band: Option<f64>,
    /// The chart shades the area below this curve.
    pub(super) shade: &'a [Mark],
    /// Dashed curves with an axis of their own on the right, from 0 as the left one.
    pub(super) right: Option<Right<'a>>,
    /// A line above the chart.
    pub(super) title: Option<&'a str>,
    /// Words at places of the horizontal axis, at the top.
    pub(super) notes: &'a [(f64, String)],
}

/// A second vertical axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Right<'a> {
    pub(super) label: &'a str,
    pub(super) series: &'a [Series],
    pub(super) boxes: &'a [BoxMark],
}

/// The spread of values at a place: minimum, quartiles, maximum.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoxMark {
    pub(super) x: f64,
    pub(super) values: [f64; 5],
}

impl<'a> Panel<'a> {
    /// Creates a panel with curves on one axis from 0.
    pub(super) fn of(y_label: &'a str, series: &'a [Series]) -> Self {
        Self { y_label, series, band: None, shade: &[], right: None, title: None, notes: &[] }
    }
}

/// The horizontal axis, in powers of two.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) label: String,
    /// Values that have a tick.
    pub(super) ticks: Vec<(f64, String)>,
}

fn wrong(error: impl std::fmt::Display) -> Error {
    Error::Chart(error.to_string())
}

fn color(style: usize) -> RGBColor {
    OKABE_ITO[style % OKABE_ITO.len()]
}

fn text(size: i32) -> TextStyle<'static> {
    (FONT, size).into_font().color(&INK)
}

/// Draws panels one above the other, on one horizontal axis, with a legend on top.
pub(super) fn curves(axis: &Axis, panels: &[Panel<'_>]) -> Result<String, Error> {
    const WIDTH: u32 = 760;
    const PANEL_HEIGHT: u32 = 230;
    let legend: &[Series] = panels.first().map_or(&[], |panel| panel.series);
    let rows = legend.len().div_ceil(2) as u32;
    let legend_height = 8 + 20 * rows;
    let height = legend_height + PANEL_HEIGHT * panels.len() as u32;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let (top, rest) = root.split_vertically(legend_height);
        for (index, series) in legend.iter().enumerate() {
            let at = (75 + (index % 2) as i32 * 340, 14 + (index / 2) as i32 * 20);
            shape(&top, at, series.style)?;
            let place = (at.0 + 14, at.1 - 6);
            top.draw(&Text::new(series.label.clone(), place, text(FONT_SIZE))).map_err(wrong)?;
        }
        for (area, panel) in rest.split_evenly((panels.len(), 1)).iter().zip(panels) {
            draw_panel(area, axis, panel)?;
        }
        root.present().map_err(wrong)?;
    }
    Ok(svg)
}

fn shape(area: &Area<'_>, at: (i32, i32), style: usize) -> Result<(), Error> {
    let fill = color(style).filled();
    match style % 4 {
        0 => area.draw(&Circle::new(at, 4, fill)),
        1 => area.draw(&TriangleMarker::new(at, 5, fill)),
        2 => area.draw(&Rectangle::new([(at.0 - 4, at.1 - 4), (at.0 + 4, at.1 + 4)], fill)),
        _ => area.draw(&Cross::new(at, 4, color(style).stroke_width(2))),
    }
    .map_err(wrong)
}

/// Returns the range of values with a margin, from 0 for measured values.
fn y_range(panel: &Panel<'_>) -> (f64, f64) {
    let marks = panel.series.iter().flat_map(|series| &series.marks).chain(panel.shade);
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for mark in marks {
        low = low.min(mark.low);
        high = high.max(mark.high);
    }
    match panel.band {
        _ if low > high => (0.0, 1.0),
        Some(band) => {
            let (low, high) = (low.min(-1.5 * band), high.max(1.5 * band));
            (low - 0.05 * (high - low), high + 0.05 * (high - low))
        }
        None => (0.0, (1.08 * high).max(f64::MIN_POSITIVE)),
    }
}

/// Returns the sideways shift of each of this number of curves, so that their intervals do not cover each
/// other.
fn beside(count: usize) -> Vec<f64> {
    const STEP: f64 = 0.06;
    const ROOM: f64 = 0.5;
    let step = STEP.min(ROOM / count.max(1) as f64);
    (0..count).map(|index| (index as f64 - (count as f64 - 1.0) / 2.0) * step).collect()
}

fn draw_panel(area: &Area<'_>, axis: &Axis, panel: &Panel<'_>) -> Result<(), Error> {
    let (low, mut high) = y_range(panel);
    if !panel.notes.is_empty() {
        high *= NOTES_ROOM;
    }
    let first = axis.ticks.first().map_or(0.0, |tick| tick.0) - 0.4;
    let last = axis.ticks.last().map_or(1.0, |tick| tick.0) + 0.4;
    if let Some(title) = panel.title {
        let place = (75, 6);
        area.draw(&Text::new(title.to_string(), place, text(FONT_SIZE))).map_err(wrong)?;
    }
    let mut chart = ChartBuilder::on(area)
        .margin(6)
        .margin_top(if panel.title.is_some() { 28 } else { 6 })
        .margin_right(if panel.right.is_some() { 84 } else { 16 })
        .x_label_area_size(42)
        .y_label_area_size(68)
        .build_cartesian_2d(first..last, low..high)
        .map_err(wrong)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_labels(6)
        .y_desc(panel.y_label)
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(text(FONT_SIZE))
        .axis_desc_style(text(FONT_SIZE))
        .y_label_formatter(&|value| base::units::tick(*value))
        .draw()
        .map_err(wrong)?;
    if let Some(band) = panel.band {
        let corners = [(first, -band), (last, band)];
        chart.draw_series([Rectangle::new(corners, BAND.filled())]).map_err(wrong)?;
        let line = PathElement::new([(first, 0.0), (last, 0.0)], INK.stroke_width(1));
        chart.draw_series([line]).map_err(wrong)?;
    }
    if let (Some(start), Some(end)) = (panel.shade.first(), panel.shade.last()) {
        let top = panel.shade.iter().map(|mark| (mark.x, mark.y));
        let around: Vec<(f64, f64)> = top.chain([(end.x, 0.0), (start.x, 0.0)]).collect();
        chart.draw_series([Polygon::new(around, BAND.filled())]).map_err(wrong)?;
    }
    for (series, aside) in panel.series.iter().zip(beside(panel.series.len())) {
        let moved: Vec<Mark> =
            series.marks.iter().map(|mark| Mark { x: mark.x + aside, ..*mark }).collect();
        let style = color(series.style).stroke_width(2);
        if moved.len() > 1 {
            let line = moved.iter().map(|mark| (mark.x, mark.y));
            chart.draw_series(LineSeries::new(line, style)).map_err(wrong)?;
        }
        error_bars(&mut chart, &moved, style)?;
        shapes(area, &chart, &moved, series.style)?;
    }
    if let Some(right) = panel.right {
        draw_right(area, &mut chart, right, (last, high))?;
    }
    let centred = text(FONT_SIZE).pos(Pos::new(HPos::Center, VPos::Top));
    for (x, note) in panel.notes {
        let (x, y) = pixel(area, &chart, (*x, high));
        area.draw(&Text::new(note.clone(), (x, y + 2), centred.clone())).map_err(wrong)?;
    }
    draw_x_axis(area, &chart, axis, low)
}

fn error_bars(chart: &mut Chart<'_, '_>, marks: &[Mark], style: ShapeStyle) -> Result<(), Error> {
    let bars = marks
        .iter()
        .filter(|mark| mark.low < mark.high)
        .map(|mark| ErrorBar::new_vertical(mark.x, mark.low, mark.y, mark.high, style, 7));
    chart.draw_series(bars).map(drop).map_err(wrong)
}

/// Converts a place of the chart to pixels of the panel.
fn pixel(area: &Area<'_>, chart: &Chart<'_, '_>, at: (f64, f64)) -> (i32, i32) {
    let ((x, y), (left, top)) = (chart.backend_coord(&at), area.get_base_pixel());
    (x - left, y - top)
}

fn shapes(
    area: &Area<'_>,
    chart: &Chart<'_, '_>,
    marks: &[Mark],
    style: usize,
) -> Result<(), Error> {
    for mark in marks {
        shape(area, pixel(area, chart, (mark.x, mark.y)), style)?;
    }
    Ok(())
}

/// Rounds a number to three significant digits.
fn short(value: f64) -> f64 {
    format!("{value:.2e}").parse().unwrap_or(value)
}

/// Draws boxes of the right axis: a line from minimum to maximum, a box for the middle half, the median
/// across.
fn draw_boxes(chart: &mut Chart<'_, '_>, boxes: &[BoxMark], scale: f64) -> Result<(), Error> {
    const ASIDE: f64 = 0.16;
    const HALF_WIDTH: f64 = 0.07;
    let line = color(BOX_STYLE).stroke_width(2);
    for it in boxes {
        let [least, first, middle, third, most] = it.values.map(|value| value * scale);
        let x = it.x + ASIDE;
        let (left, right) = (x - HALF_WIDTH, x + HALF_WIDTH);
        let ring =
            vec![(left, first), (right, first), (right, third), (left, third), (left, first)];
        let mut parts = vec![vec![(left, middle), (right, middle)]];
        // With equal values only the median is drawn: a line of no length cannot be painted.
        for (part, is_long) in [
            (vec![(x, least), (x, first)], first > least),
            (vec![(x, third), (x, most)], most > third),
            (ring, third > first),
        ] {
            parts.extend(is_long.then_some(part));
        }
        let parts = parts.into_iter().map(|points| PathElement::new(points, line));
        chart.draw_series(parts).map_err(wrong)?;
    }
    Ok(())
}

/// Draws curves of the right axis on the left one at its scale, and the axis itself, in the colour of the
/// curves if they have one.
fn draw_right(
    area: &Area<'_>,
    chart: &mut Chart<'_, '_>,
    right: Right<'_>,
    (last, high): (f64, f64),
) -> Result<(), Error> {
    const TICKS: i32 = 5;
    let marks = right.series.iter().flat_map(|series| &series.marks).map(|mark| mark.high);
    let boxes = right.boxes.iter().map(|it| it.values[4]);
    let most = marks.chain(boxes).fold(f64::MIN_POSITIVE, f64::max);
    let most = most * if right.boxes.is_empty() { 1.08 } else { 1.08 * NOTES_ROOM };
    let scale = high / most;
    draw_boxes(chart, right.boxes, scale)?;
    for series in right.series {
        let scaled: Vec<Mark> = series
            .marks
            .iter()
            .map(|mark| Mark {
                x: mark.x,
                y: mark.y * scale,
                low: mark.low * scale,
                high: mark.high * scale,
            })
            .collect();
        let style = color(series.style).stroke_width(2);
        let line = scaled.iter().map(|mark| (mark.x, mark.y));
        chart.draw_series(DashedLineSeries::new(line, 6, 4, style)).map_err(wrong)?;
        error_bars(chart, &scaled, style)?;
        shapes(area, chart, &scaled, series.style)?;
    }
    let ink = match right.series {
        [] if !right.boxes.is_empty() => color(BOX_STYLE),
        [one] => color(one.style),
        _ => INK,
    };
    let style = text(FONT_SIZE).color(&ink).pos(Pos::new(HPos::Left, VPos::Center));
    let (bottom, top) = (pixel(area, chart, (last, 0.0)), pixel(area, chart, (last, high)));
    area.draw(&PathElement::new([bottom, top], ink)).map_err(wrong)?;
    for tick in 0..=TICKS {
        let value = most * f64::from(tick) / f64::from(TICKS);
        let (x, y) = pixel(area, chart, (last, value * scale));
        area.draw(&PathElement::new([(x, y), (x + 4, y)], ink)).map_err(wrong)?;
        let label = Text::new(base::units::tick(short(value)), (x + 7, y), style.clone());
        area.draw(&label).map_err(wrong)?;
    }
    let turned = text(FONT_SIZE).color(&ink).transform(FontTransform::Rotate90);
    let place = (area.dim_in_pixel().0 as i32 - 8, top.1 + 6);
    area.draw(&Text::new(right.label.to_string(), place, turned)).map_err(wrong)
}

fn draw_x_axis(area: &Area<'_>, chart: &Chart<'_, '_>, axis: &Axis, low: f64) -> Result<(), Error> {
    let centred = text(FONT_SIZE).pos(Pos::new(HPos::Center, VPos::Top));
    for (at, label) in &axis.ticks {
        let (x, y) = pixel(area, chart, (*at, low));
        area.draw(&PathElement::new([(x, y), (x, y + 5)], INK)).map_err(wrong)?;
        area.draw(&Text::new(label.clone(), (x, y + 7), centred.clone())).map_err(wrong)?;
    }
    let (width, height) = area.dim_in_pixel();
    let place = ((width / 2) as i32 + 20, height as i32 - 20);
    area.draw(&Text::new(axis.label.clone(), place, centred)).map_err(wrong)
}
