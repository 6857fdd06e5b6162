//! Heat maps: a value over two settings, as colour and as number.

use super::{Area, FONT_SIZE, INK, text, wrong};
use crate::error::Error;
use base::units;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A map.
#[derive(Clone, Debug)]
pub(in crate::report) struct HeatPanel {
    pub(in crate::report) title: String,
    /// Settings along the horizontal axis.
    pub(in crate::report) columns: Vec<String>,
    /// Settings along the vertical axis, from below.
    pub(in crate::report) rows: Vec<String>,
    /// By row, then column; `None` was not measured.
    pub(in crate::report) values: Vec<Vec<Option<f64>>>,
}

const WIDTH: u32 = 760;
const LEFT: i32 = 110;
const TOP: i32 = 34;
const ROW: i32 = 44;
const BELOW: i32 = 54;

/// Draws maps one above the other. Colours are shares of the largest value of each map, from white to blue;
/// each field shows value and share, so that nothing depends on the colour.
pub(in crate::report) fn heat(
    panels: &[HeatPanel],
    x_label: &str,
    y_label: &str,
) -> Result<String, Error> {
    let height = |panel: &HeatPanel| TOP + ROW * panel.rows.len() as i32 + BELOW;
    let all: i32 = panels.iter().map(height).sum();
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, all.max(1) as u32));
        let root = root.into_drawing_area();
        let mut top = 0;
        for panel in panels {
            draw(&root, panel, top, (x_label, y_label))?;
            top += height(panel);
        }
        root.present().map_err(wrong)?;
    }
    Ok(svg)
}

fn draw(root: &Area<'_>, panel: &HeatPanel, top: i32, labels: (&str, &str)) -> Result<(), Error> {
    let centred = text(FONT_SIZE).pos(Pos::new(HPos::Center, VPos::Center));
    let width = (WIDTH as i32 - LEFT - 16) / panel.columns.len().max(1) as i32;
    let values = panel.values.iter().flatten().flatten();
    let most = values.copied().fold(f64::MIN_POSITIVE, f64::max);
    root.draw(&Text::new(panel.title.clone(), (LEFT, top + 8), text(FONT_SIZE))).map_err(wrong)?;
    let bottom = top + TOP + ROW * panel.rows.len() as i32;
    for (row, values) in panel.values.iter().enumerate() {
        let y = bottom - ROW * (row as i32 + 1);
        let name = Text::new(panel.rows[row].clone(), (LEFT - 24, y + ROW / 2), centred.clone());
        root.draw(&name).map_err(wrong)?;
        for (column, value) in values.iter().enumerate() {
            let x = LEFT + width * column as i32;
            let share = value.unwrap_or_default() / most;
            let fill = if value.is_some() { shade(share) } else { TRANSPARENT.to_rgba() };
            let corners = [(x, y), (x + width - 2, y + ROW - 2)];
            root.draw(&Rectangle::new(corners, fill.filled())).map_err(wrong)?;
            // Ink follows the page; letters on a fixed colour are fixed, too.
            let (ink, said) = match value {
                Some(value) => {
                    let ink = if share > 0.6 { WHITE } else { BLACK };
                    (ink, format!("{} ({:.0} %)", units::significant(*value), 100.0 * share))
                }
                None => (INK, "–".into()),
            };
            let place = (x + width / 2, y + ROW / 2);
            root.draw(&Text::new(said, place, centred.clone().color(&ink))).map_err(wrong)?;
        }
    }
    for (column, name) in panel.columns.iter().enumerate() {
        let place = (LEFT + width * column as i32 + width / 2, bottom + 10);
        root.draw(&Text::new(name.clone(), place, centred.clone())).map_err(wrong)?;
    }
    let middle = LEFT + width * panel.columns.len() as i32 / 2;
    root.draw(&Text::new(labels.0.to_string(), (middle, bottom + 30), centred)).map_err(wrong)?;
    root.draw(&Text::new(labels.1.to_string(), (4, top + 8), text(FONT_SIZE))).map_err(wrong)
}

/// Returns a colour between white and the blue of Okabe and Ito.
fn shade(share: f64) -> RGBAColor {
    let part = |full: f64| (255.0 - (255.0 - full) * share.clamp(0.0, 1.0)) as u8;
    RGBColor(part(0.0), part(114.0), part(178.0)).to_rgba()
}
