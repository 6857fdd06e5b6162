//! Small multiples: panels of dots and lines, each with its own axes, under one legend.
//!
//! Places on an axis are drawn as they are, so a logarithmic axis has logarithms as its places and the values
//! at its ticks.

use super::{Area, BAND, FONT_SIZE, GRID, INK, color, shape, text, wrong};
use crate::error::Error;
use base::units;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH: i32 = 760;
const HEIGHT: i32 = 250;
const LEFT: i32 = 74;
const RIGHT: i32 = 14;
const TOP: i32 = 26;
const BELOW: i32 = 50;
/// The estimated width of a letter, for labels that must not touch.
const LETTER: i32 = 8;

/// Fewest ticks of a logarithmic axis.
const TICKS_MIN: usize = 3;
/// Ticks of a decade, from few to many: the first set with enough ticks is used.
const DECADE_PARTS: [&[f64]; 2] = [&[1.0], &[1.0, 2.0, 5.0]];

/// Returns some six round values at even distances from one value to another.
fn even(low: f64, high: f64) -> impl Iterator<Item = f64> {
    const COUNT: f64 = 6.0;
    let size = 10_f64.powf(((high - low) / COUNT).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|it| it * size);
    let step = step.into_iter().find(|step| (high - low) / step <= COUNT).unwrap_or(high - low);
    let (first, last) = ((low / step).ceil() as i64, (high / step).floor() as i64);
    (first..=last).map(move |it| step * it as f64)
}

/// An axis.
#[derive(Clone, Debug)]
pub(in crate::report) struct Scale {
    pub(in crate::report) label: String,
    /// Places with a tick, and their labels.
    pub(in crate::report) ticks: Vec<(f64, String)>,
    pub(in crate::report) low: f64,
    pub(in crate::report) high: f64,
}

impl Scale {
    /// Creates an axis from 0 to somewhat above the largest value.
    pub(in crate::report) fn linear(label: &str, most: f64) -> Self {
        let high = (1.08 * most).max(f64::MIN_POSITIVE);
        let ticks = even(0.0, high).map(|value| (value, units::tick(value))).collect();
        Self { label: label.into(), ticks, low: 0.0, high }
    }

    /// Creates an axis of decimal logarithms around values above 0.
    pub(in crate::report) fn decimal(label: &str, values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| *value > 0.0).map(f64::log10) {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let room = 0.06 * (high - low).max(0.5);
        let (low, high) = (low - room, high + room);
        let ticks = |parts: &[f64]| -> Vec<(f64, String)> {
            let decades = low.floor() as i32..=high.ceil() as i32;
            let values =
                decades.flat_map(|decade| parts.iter().map(move |it| it * 10_f64.powi(decade)));
            let ticks = values.map(|value| (value.log10(), units::tick(value)));
            ticks.filter(|(place, _)| (low..=high).contains(place)).collect()
        };
        let mut decades = DECADE_PARTS.iter().map(|parts| ticks(parts));
        let close = || {
            let values = even(10_f64.powf(low), 10_f64.powf(high));
            values.map(|value| (value.log10(), units::tick(value))).collect()
        };
        let ticks = decades.find(|it| it.len() >= TICKS_MIN).unwrap_or_else(close);
        Self { label: label.into(), ticks, low, high }
    }

    /// Creates an axis with these ticks, and room beside them.
    pub(in crate::report) fn at(label: &str, ticks: Vec<(f64, String)>, room: f64) -> Self {
        let low = ticks.first().map_or(0.0, |tick| tick.0) - room;
        let high = ticks.last().map_or(1.0, |tick| tick.0) + room;
        Self { label: label.into(), ticks, low, high }
    }
}

/// A dot with its intervals, which may be empty.
#[derive(Clone, Copy, Debug)]
pub(in crate::report) struct Dot {
    pub(in crate::report) x: f64,
    pub(in crate::report) y: f64,
    pub(in crate::report) x_range: (f64, f64),
    pub(in crate::report) y_range: (f64, f64),
}

impl Dot {
    /// Creates a dot without intervals.
    pub(in crate::report) fn at(x: f64, y: f64) -> Self {
        Self { x, y, x_range: (x, x), y_range: (y, y) }
    }
}

/// How dots are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::report) enum Join {
    None,
    Solid,
    Thin,
    Dashed,
}

/// Dots of one kind.
#[derive(Clone, Debug)]
pub(in crate::report) struct Trail {
    pub(in crate::report) style: usize,
    pub(in crate::report) join: Join,
    pub(in crate::report) has_shapes: bool,
    pub(in crate::report) dots: Vec<Dot>,
}

/// A panel.
#[derive(Clone, Debug)]
pub(in crate::report) struct Plot {
    pub(in crate::report) title: String,
    pub(in crate::report) x: Scale,
    pub(in crate::report) y: Scale,
    /// The shaded range of the horizontal axis.
    pub(in crate::report) shade: Option<(f64, f64)>,
    pub(in crate::report) trails: Vec<Trail>,
}

/// Draws panels in columns, under a legend of labels by style.
pub(in crate::report) fn plots(
    legend: &[(String, usize)],
    plots: &[Plot],
    columns: usize,
) -> Result<String, Error> {
    let columns = columns.clamp(1, plots.len().max(1));
    let legend_height = 8 + 20 * legend.len().div_ceil(2) as i32;
    let height = legend_height + HEIGHT * plots.len().div_ceil(columns) as i32;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32));
        let root = root.into_drawing_area();
        for (index, (label, style)) in legend.iter().enumerate() {
            let at = (LEFT + 6 + (index % 2) as i32 * 340, 14 + (index / 2) as i32 * 20);
            shape(&root, at, *style)?;
            let place = (at.0 + 14, at.1 - 6);
            root.draw(&Text::new(label.clone(), place, text(FONT_SIZE))).map_err(wrong)?;
        }
        let width = WIDTH / columns as i32;
        for (index, plot) in plots.iter().enumerate() {
            let corner = (
                width * (index % columns) as i32,
                legend_height + HEIGHT * (index / columns) as i32,
            );
            Frame::new(corner, width, plot).draw(&root)?;
        }
        root.present().map_err(wrong)?;
    }
    Ok(svg)
}

/// Where a panel is, in pixels.
struct Frame<'a> {
    plot: &'a Plot,
    left: i32,
    top: i32,
    right: i32,
    bottom: i32,
}

impl<'a> Frame<'a> {
    fn new(corner: (i32, i32), width: i32, plot: &'a Plot) -> Self {
        let (left, top) = (corner.0 + LEFT, corner.1 + TOP);
        let (right, bottom) = (corner.0 + width - RIGHT, corner.1 + HEIGHT - BELOW);
        Self { plot, left, top, right, bottom }
    }

    fn x(&self, place: f64) -> i32 {
        let scale = &self.plot.x;
        let share = (place.clamp(scale.low, scale.high) - scale.low) / (scale.high - scale.low);
        self.left + (f64::from(self.right - self.left) * share).round() as i32
    }

    fn y(&self, place: f64) -> i32 {
        let scale = &self.plot.y;
        let share = (place.clamp(scale.low, scale.high) - scale.low) / (scale.high - scale.low);
        self.bottom - (f64::from(self.bottom - self.top) * share).round() as i32
    }

    /// Draws the title above the panel: a long one begins left of it, and a longer one is smaller.
    fn title(&self) -> Text<'static, (i32, i32), String> {
        let title = self.plot.title.clone();
        let (room, wanted) = (self.right - self.left + LEFT, LETTER * title.chars().count() as i32);
        let size = if wanted > room { FONT_SIZE * room / wanted } else { FONT_SIZE };
        let left = (self.right - wanted).clamp(self.left - LEFT, self.left);
        Text::new(title, (left, self.top - 20), text(size))
    }

    fn draw(&self, root: &Area<'_>) -> Result<(), Error> {
        root.draw(&self.title()).map_err(wrong)?;
        if let Some((from, to)) = self.plot.shade {
            let corners = [(self.x(from), self.top), (self.x(to), self.bottom)];
            root.draw(&Rectangle::new(corners, BAND.filled())).map_err(wrong)?;
        }
        self.draw_y_axis(root)?;
        self.draw_x_axis(root)?;
        self.plot.trails.iter().try_for_each(|trail| self.draw_trail(root, trail))
    }

    fn draw_y_axis(&self, root: &Area<'_>) -> Result<(), Error> {
        let right = text(FONT_SIZE).pos(Pos::new(HPos::Right, VPos::Center));
        for (place, label) in &self.plot.y.ticks {
            let y = self.y(*place);
            let line = [(self.left, y), (self.right, y)];
            root.draw(&PathElement::new(line, GRID.stroke_width(1))).map_err(wrong)?;
            let label = Text::new(label.clone(), (self.left - 6, y), right.clone());
            root.draw(&label).map_err(wrong)?;
        }
        let axis = [(self.left, self.top), (self.left, self.bottom)];
        root.draw(&PathElement::new(axis, INK.stroke_width(1))).map_err(wrong)?;
        let turned = text(FONT_SIZE)
            .transform(FontTransform::Rotate270)
            .pos(Pos::new(HPos::Center, VPos::Top));
        let place = (self.left - LEFT + 4, i32::midpoint(self.top, self.bottom));
        root.draw(&Text::new(self.plot.y.label.clone(), place, turned)).map_err(wrong)
    }

    fn draw_x_axis(&self, root: &Area<'_>) -> Result<(), Error> {
        let centred = text(FONT_SIZE).pos(Pos::new(HPos::Center, VPos::Top));
        let axis = [(self.left, self.bottom), (self.right, self.bottom)];
        root.draw(&PathElement::new(axis, INK.stroke_width(1))).map_err(wrong)?;
        let mut free_from = i32::MIN;
        for (place, label) in &self.plot.x.ticks {
            let x = self.x(*place);
            let tick = [(x, self.bottom), (x, self.bottom + 5)];
            root.draw(&PathElement::new(tick, INK)).map_err(wrong)?;
            let half = LETTER * label.chars().count() as i32 / 2;
            if x - half < free_from {
                continue;
            }
            free_from = x + half + LETTER;
            let label = Text::new(label.clone(), (x, self.bottom + 7), centred.clone());
            root.draw(&label).map_err(wrong)?;
        }
        let place = (i32::midpoint(self.left, self.right), self.bottom + 27);
        root.draw(&Text::new(self.plot.x.label.clone(), place, centred)).map_err(wrong)
    }

    fn draw_trail(&self, root: &Area<'_>, trail: &Trail) -> Result<(), Error> {
        let style = color(trail.style);
        let dots: Vec<(i32, i32)> =
            trail.dots.iter().map(|dot| (self.x(dot.x), self.y(dot.y))).collect();
        let line = dots.iter().copied();
        match trail.join {
            Join::Solid if dots.len() > 1 => {
                root.draw(&PathElement::new(dots.clone(), style.stroke_width(2)))
            }
            Join::Thin if dots.len() > 1 => {
                root.draw(&PathElement::new(dots.clone(), style.mix(0.6).stroke_width(1)))
            }
            Join::Dashed if dots.len() > 1 => {
                root.draw(&DashedPathElement::new(line, 6, 4, style.stroke_width(2)))
            }
            _ => Ok(()),
        }
        .map_err(wrong)?;
        if !trail.has_shapes {
            return Ok(());
        }
        for (dot, at) in trail.dots.iter().zip(dots) {
            let across = [(self.x(dot.x_range.0), at.1), (self.x(dot.x_range.1), at.1)];
            let along = [(at.0, self.y(dot.y_range.0)), (at.0, self.y(dot.y_range.1))];
            for bar in [across, along].into_iter().filter(|[from, to]| from != to) {
                root.draw(&PathElement::new(bar, style.stroke_width(2))).map_err(wrong)?;
            }
            shape(root, at, trail.style)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: ticks lie within their axis, are few, and say values, not places.
    #[test]
    fn ticks_say_values() {
        for most in [0.003, 0.9, 7.0, 12_345.0] {
            let scale = Scale::linear("", most);
            assert!((3..=7).contains(&scale.ticks.len()), "{most}: {:?}", scale.ticks);
            assert!(scale.ticks.iter().all(|tick| tick.0 <= scale.high) && scale.high > most);
        }
        let decades = Scale::decimal("", [5.0, 20_000.0].into_iter());
        let said: Vec<&str> = decades.ticks.iter().map(|tick| tick.1.as_str()).collect();
        assert_eq!(said, ["10", "100", "1000", "10 k"]);
        let close = Scale::decimal("", [90.0, 110.0].into_iter());
        assert!(close.ticks.len() >= TICKS_MIN, "{:?}", close.ticks);
        assert!(close.ticks.iter().any(|tick| tick.1 == "100"), "{:?}", close.ticks);
        assert!(Scale::decimal("", std::iter::empty()).high > 0.0);
    }

    /// Goal: dots lie where their values are, and lines that have no room for a label keep their tick.
    #[test]
    fn dots_lie_at_their_values() {
        let trail = Trail {
            style: 0,
            join: Join::Solid,
            has_shapes: true,
            dots: vec![Dot::at(0.0, 0.0), Dot::at(10.0, 10.0)],
        };
        let plot = Plot {
            title: "a title".into(),
            x: Scale { label: "x".into(), ticks: vec![(0.0, "0".into())], low: 0.0, high: 10.0 },
            y: Scale { label: "y".into(), ticks: vec![(0.0, "0".into())], low: 0.0, high: 10.0 },
            shade: Some((2.0, 4.0)),
            trails: vec![trail],
        };
        let frame = Frame::new((0, 0), WIDTH, &plot);
        assert_eq!((frame.x(0.0), frame.y(0.0)), (LEFT, HEIGHT - BELOW));
        assert_eq!((frame.x(10.0), frame.y(10.0)), (WIDTH - RIGHT, TOP));
        assert_eq!(frame.y(99.0), TOP, "what is outside is drawn at the border");
        let svg = plots(&[("curve".into(), 0)], &[plot.clone(), plot], 2).unwrap();
        assert_eq!(svg.matches("<circle").count(), 1 + 2 * 2);
        assert_eq!(svg.matches("a title").count(), 2);
    }
}
