//! Drawing on plotters' SVG backend: axes, curves with error bars, ratio panels, forest plots.
//!
//! Colours are those of Okabe and Ito, which colour-blind readers can tell apart; each series also
//! has a shape of its own. Ink and grid are drawn in two fixed colours, which the page replaces by
//! variables so that charts follow light and dark.

use crate::error::Error;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Ink, as the backend writes it.
pub(super) const INK: RGBColor = RGBColor(0x10, 0x11, 0x12);
/// Lines of the grid.
pub(super) const GRID: RGBColor = RGBColor(0xd1, 0xd2, 0xd3);
/// What lies within the margin.
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

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

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
    /// Which colour and shape.
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

/// Panels one above the other, on one horizontal axis, with a legend on top.
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

/// Range of values with room around it; from 0 for what is measured.
fn y_range(panel: &Panel<'_>) -> (f64, f64) {
    let marks = panel.series.iter().flat_map(|series| &series.marks);
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

/// How far each of so many curves is moved aside, lest their intervals cover each other.
fn beside(count: usize) -> Vec<f64> {
    const STEP: f64 = 0.06;
    const ROOM: f64 = 0.5;
    let step = STEP.min(ROOM / count.max(1) as f64);
    (0..count).map(|index| (index as f64 - (count as f64 - 1.0) / 2.0) * step).collect()
}

fn draw_panel(area: &Area<'_>, axis: &Axis, panel: &Panel<'_>) -> Result<(), Error> {
    let (low, high) = y_range(panel);
    let first = axis.ticks.first().map_or(0.0, |tick| tick.0) - 0.4;
    let last = axis.ticks.last().map_or(1.0, |tick| tick.0) + 0.4;
    let mut chart = ChartBuilder::on(area)
        .margin(6)
        .margin_right(16)
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
        .y_label_formatter(&|value| crate::units::tick(*value))
        .draw()
        .map_err(wrong)?;
    if let Some(band) = panel.band {
        let corners = [(first, -band), (last, band)];
        chart.draw_series([Rectangle::new(corners, BAND.filled())]).map_err(wrong)?;
        let line = PathElement::new([(first, 0.0), (last, 0.0)], INK.stroke_width(1));
        chart.draw_series([line]).map_err(wrong)?;
    }
    let beside = beside(panel.series.len());
    for (series, aside) in panel.series.iter().zip(&beside) {
        let line = series.marks.iter().map(|mark| (mark.x + aside, mark.y));
        let style = color(series.style).stroke_width(2);
        if series.marks.len() > 1 {
            chart.draw_series(LineSeries::new(line, style)).map_err(wrong)?;
        }
        let bars = series.marks.iter().filter(|mark| mark.low < mark.high).map(|mark| {
            let x = mark.x + aside;
            ErrorBar::new_vertical(x, mark.low, mark.y, mark.high, style, 7)
        });
        chart.draw_series(bars).map_err(wrong)?;
    }
    // Shapes and ticks in pixels of the panel.
    let points: Vec<((i32, i32), usize)> = panel
        .series
        .iter()
        .zip(&beside)
        .flat_map(|(series, aside)| series.marks.iter().map(move |mark| (series, aside, mark)))
        .map(|(series, aside, mark)| (chart.backend_coord(&(mark.x + aside, mark.y)), series.style))
        .collect();
    let ticks: Vec<((i32, i32), &str)> = axis
        .ticks
        .iter()
        .map(|(at, label)| (chart.backend_coord(&(*at, low)), label.as_str()))
        .collect();
    let (left, top) = area.get_base_pixel();
    let here = |(x, y): (i32, i32)| (x - left, y - top);
    for (at, style) in points {
        shape(area, here(at), style)?;
    }
    let centred = text(FONT_SIZE).pos(Pos::new(HPos::Center, VPos::Top));
    for (at, label) in ticks {
        let (x, y) = here(at);
        area.draw(&PathElement::new([(x, y), (x, y + 5)], INK)).map_err(wrong)?;
        area.draw(&Text::new(label.to_string(), (x, y + 7), centred.clone())).map_err(wrong)?;
    }
    let (width, height) = area.dim_in_pixel();
    let place = ((width / 2) as i32 + 20, height as i32 - 20);
    area.draw(&Text::new(axis.label.clone(), place, centred)).map_err(wrong)
}

/// How a row of a forest plot is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symbol {
    Equivalent,
    Matters,
    Small,
    Inconclusive,
}

/// A row of a forest plot: percent, with interval.
#[derive(Clone, Debug)]
pub(super) struct ForestRow {
    pub(super) label: String,
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) symbol: Symbol,
    /// Largest percent that does not matter.
    pub(super) margin: f64,
}

const SYMBOLS: [(Symbol, &str); 4] = [
    (Symbol::Equivalent, "equivalent"),
    (Symbol::Matters, "different, matters"),
    (Symbol::Small, "different, small"),
    (Symbol::Inconclusive, "inconclusive"),
];

fn symbol(area: &Area<'_>, at: (i32, i32), symbol: Symbol) -> Result<(), Error> {
    match symbol {
        Symbol::Equivalent => area.draw(&Circle::new(at, 5, OKABE_ITO[2].filled())),
        Symbol::Matters => {
            let corners = [(at.0 - 5, at.1 - 5), (at.0 + 5, at.1 + 5)];
            area.draw(&Rectangle::new(corners, OKABE_ITO[1].filled()))
        }
        Symbol::Small => area.draw(&TriangleMarker::new(at, 6, OKABE_ITO[4].filled())),
        Symbol::Inconclusive => area.draw(&Circle::new(at, 5, INK.stroke_width(1))),
    }
    .map_err(wrong)
}

/// All ratios with their intervals; `limit` percent is where rows are cut off, with an arrow.
pub(super) fn forest(rows: &[ForestRow], limit: f64) -> Result<String, Error> {
    const WIDTH: i32 = 900;
    const LABELS: i32 = 430;
    const ROW: i32 = 24;
    const TOP: i32 = 30;
    let height = TOP + ROW * rows.len() as i32 + 50;
    let (low, high) = rows.iter().fold((-10.0_f64, 10.0_f64), |(low, high), row| {
        (low.min(row.low.max(-limit)), high.max(row.high.min(limit)))
    });
    let room = 0.04 * (high - low);
    let (low, high) = (low - room, high + room);
    let scale = f64::from(WIDTH - LABELS - 20) / (high - low);
    let x = |percent: f64| LABELS + ((percent.clamp(low, high) - low) * scale) as i32;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32));
        let root = root.into_drawing_area();
        for (index, (kind, label)) in SYMBOLS.iter().enumerate() {
            let at = (30 + 190 * index as i32, 14);
            symbol(&root, at, *kind)?;
            root.draw(&Text::new(*label, (at.0 + 12, 8), text(FONT_SIZE))).map_err(wrong)?;
        }
        let bottom = TOP + ROW * rows.len() as i32;
        for (index, row) in rows.iter().enumerate() {
            let top = TOP + ROW * index as i32;
            let least = 100.0 * (1.0 / (1.0 + row.margin / 100.0) - 1.0);
            let band = [(x(least), top), (x(row.margin), top + ROW)];
            root.draw(&Rectangle::new(band, BAND.filled())).map_err(wrong)?;
        }
        let right = text(FONT_SIZE).pos(Pos::new(HPos::Right, VPos::Center));
        for (index, row) in rows.iter().enumerate() {
            let y = TOP + ROW * index as i32 + ROW / 2;
            root.draw(&Text::new(row.label.clone(), (LABELS - 12, y), right.clone()))
                .map_err(wrong)?;
            if x(row.low) < x(row.high) {
                let line = [(x(row.low), y), (x(row.high), y)];
                root.draw(&PathElement::new(line, INK.stroke_width(1))).map_err(wrong)?;
            }
            if row.high > high {
                let right = x(high);
                let arrow = [(right + 4, y - 5), (right + 11, y), (right + 4, y + 5)];
                root.draw(&PathElement::new(arrow, INK.stroke_width(2))).map_err(wrong)?;
            }
            // What is beyond leaves room for the arrow.
            let place = x(row.value) - if row.value > high { 8 } else { 0 };
            symbol(&root, (place, y), row.symbol)?;
        }
        let zero = [(x(0.0), TOP), (x(0.0), bottom)];
        root.draw(&PathElement::new(zero, INK.stroke_width(1))).map_err(wrong)?;
        forest_axis(&root, (low, high), bottom, x)?;
        root.present().map_err(wrong)?;
    }
    Ok(svg)
}

fn forest_axis(
    root: &Area<'_>,
    (low, high): (f64, f64),
    bottom: i32,
    x: impl Fn(f64) -> i32,
) -> Result<(), Error> {
    let step = [1.0, 2.0, 5.0, 10.0, 20.0, 25.0, 50.0, 100.0, 200.0, 500.0]
        .into_iter()
        .find(|step| (high - low) / step <= 6.5)
        .unwrap_or(1000.0);
    let centred = text(FONT_SIZE).pos(Pos::new(HPos::Center, VPos::Top));
    root.draw(&PathElement::new([(x(low), bottom), (x(high), bottom)], INK)).map_err(wrong)?;
    let mut tick = (low / step).ceil() * step;
    while tick <= high {
        root.draw(&PathElement::new([(x(tick), bottom), (x(tick), bottom + 5)], INK))
            .map_err(wrong)?;
        let sign = if tick > 0.0 {
            "+"
        } else if tick < 0.0 {
            "−"
        } else {
            ""
        };
        let label = format!("{sign}{} %", tick.abs());
        root.draw(&Text::new(label, (x(tick), bottom + 8), centred.clone())).map_err(wrong)?;
        tick += step;
    }
    let place = (x(f64::midpoint(low, high)), bottom + 28);
    let label = "change from the baseline, with 95 % interval (grey: does not matter)";
    root.draw(&Text::new(label, place, centred)).map_err(wrong)
}
