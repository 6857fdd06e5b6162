//! Forest plots: all ratios with their intervals and verdicts.

use super::{Area, BAND, FONT_SIZE, INK, OKABE_ITO, text, wrong};
use crate::error::Error;
use base::messages::{Language, Message};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// How a row of a forest plot is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::report) enum Symbol {
    Equivalent,
    Matters,
    Small,
    Inconclusive,
    Withheld,
}

/// A row of a forest plot: percent, with interval.
#[derive(Clone, Debug)]
pub(in crate::report) struct ForestRow {
    pub(in crate::report) label: String,
    pub(in crate::report) value: f64,
    pub(in crate::report) low: f64,
    pub(in crate::report) high: f64,
    pub(in crate::report) symbol: Symbol,
    /// The largest percent that does not matter.
    pub(in crate::report) margin: f64,
}

const SYMBOLS: [(Symbol, Message); 5] = [
    (Symbol::Equivalent, Message::Equivalent),
    (Symbol::Matters, Message::DifferentMatters),
    (Symbol::Small, Message::DifferentSmall),
    (Symbol::Inconclusive, Message::Inconclusive),
    (Symbol::Withheld, Message::Withheld),
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
        Symbol::Withheld => area.draw(&Cross::new(at, 5, OKABE_ITO[1].stroke_width(2))),
    }
    .map_err(wrong)
}

/// Draws all ratios with their intervals; rows are cut off at `limit` percent, with an arrow.
pub(in crate::report) fn forest(
    rows: &[ForestRow],
    limit: f64,
    language: Language,
) -> Result<String, Error> {
    const LABELS_MIN: i32 = 430;
    const LABELS_MAX: i32 = 680;
    const PLOT: i32 = 470;
    // The width of text is estimated: no letter of this size is wider on average.
    const LETTER: i32 = 7;
    const ROW: i32 = 24;
    const TOP: i32 = 30;
    let height = TOP + ROW * rows.len() as i32 + 50;
    let longest = rows.iter().map(|row| row.label.chars().count()).max().unwrap_or_default();
    let labels = (LETTER * longest as i32).clamp(LABELS_MIN, LABELS_MAX);
    let width = labels + PLOT;
    let (low, high) = rows.iter().fold((-10.0_f64, 10.0_f64), |(low, high), row| {
        (low.min(row.low.max(-limit)), high.max(row.high.min(limit)))
    });
    let room = 0.04 * (high - low);
    let (low, high) = (low - room, high + room);
    let scale = f64::from(PLOT - 20) / (high - low);
    let x = |percent: f64| labels + ((percent.clamp(low, high) - low) * scale) as i32;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (width as u32, height as u32));
        let root = root.into_drawing_area();
        for (index, (kind, label)) in SYMBOLS.iter().enumerate() {
            let at = (30 + 170 * index as i32, 14);
            symbol(&root, at, *kind)?;
            let label = language.text(*label);
            root.draw(&Text::new(label, (at.0 + 12, 8), text(FONT_SIZE))).map_err(wrong)?;
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
            root.draw(&Text::new(row.label.clone(), (labels - 12, y), right.clone()))
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
            // A row beyond the limit leaves room for the arrow.
            let place = x(row.value) - if row.value > high { 8 } else { 0 };
            symbol(&root, (place, y), row.symbol)?;
        }
        let zero = [(x(0.0), TOP), (x(0.0), bottom)];
        root.draw(&PathElement::new(zero, INK.stroke_width(1))).map_err(wrong)?;
        forest_axis(&root, (low, high), bottom, x, language)?;
        root.present().map_err(wrong)?;
    }
    Ok(svg)
}

fn forest_axis(
    root: &Area<'_>,
    (low, high): (f64, f64),
    bottom: i32,
    x: impl Fn(f64) -> i32,
    language: Language,
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
    let label = language.text(Message::AxisForest);
    root.draw(&Text::new(label, place, centred)).map_err(wrong)
}
