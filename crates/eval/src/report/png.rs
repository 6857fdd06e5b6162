//! Charts as pixels, for what takes no SVG. Text needs a font of this machine: one of a few that are
//! nearly everywhere, and if there is none, PNG is not available.

use crate::error::Error;
use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb::Database};
use std::path::{Path, PathBuf};

/// Pixels per unit of a chart: sharp in print and on dense screens.
const SCALE: f32 = 2.0;
/// Where fonts lie.
const DIRECTORIES: [&str; 2] = ["/usr/share/fonts", "/usr/local/share/fonts"];
/// How deep they lie there.
const DEPTH_MAX: u32 = 5;
/// Fonts with the signs that charts have, best first.
const FONTS: [&str; 5] = [
    "DejaVuSans.ttf",
    "LiberationSans-Regular.ttf",
    "NotoSans-Regular.ttf",
    "NimbusSans-Regular.otf",
    "FreeSans.ttf",
];

/// Draws charts with one font.
#[derive(Debug)]
pub(super) struct Painter {
    font: Vec<u8>,
}

impl Painter {
    /// With the best font that is there, or why there is no PNG.
    pub(super) fn new() -> Result<Self, String> {
        let found = DIRECTORIES.iter().flat_map(|directory| fonts(Path::new(directory), 0));
        let rank = |path: &PathBuf| FONTS.iter().position(|name| path.ends_with(name));
        let best = found.min_by_key(rank).ok_or_else(|| {
            format!("there is none of {} (Debian: fonts-dejavu-core)", FONTS.join(", "))
        })?;
        let font = std::fs::read(&best).map_err(|why| format!("{}: {why}", best.display()))?;
        Ok(Self { font })
    }

    /// A chart as PNG, on white.
    pub(super) fn paint(&self, svg: &str) -> Result<Vec<u8>, Error> {
        let wrong = |why: &dyn std::fmt::Display| Error::Chart(why.to_string());
        let mut fonts = Database::new();
        fonts.load_font_data(self.font.clone());
        let family = fonts.faces().find_map(|face| face.families.first());
        let family = family.ok_or_else(|| wrong(&"the font has no name"))?.0.clone();
        fonts.set_sans_serif_family(family);
        let options = Options { fontdb: fonts.into(), ..Options::default() };
        let tree = Tree::from_str(svg, &options).map_err(|why| wrong(&why))?;
        let size = tree.size().to_int_size().scale_by(SCALE);
        let size = size.ok_or_else(|| wrong(&"it has no size"))?;
        let pixels = Pixmap::new(size.width(), size.height());
        let mut pixels = pixels.ok_or_else(|| wrong(&"it is too large"))?;
        pixels.fill(Color::WHITE);
        resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
        pixels.encode_png().map_err(|why| wrong(&why))
    }
}

/// Fonts of ours below a directory.
fn fonts(directory: &Path, depth: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if FONTS.iter().any(|name| path.ends_with(name)) {
            found.push(path);
        } else if depth < DEPTH_MAX && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(fonts(&path, depth + 1));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a chart has its size in pixels, white where nothing is, its colours where something is,
    /// and text.
    #[test]
    fn charts_are_painted() {
        let Ok(painter) = Painter::new() else {
            println!("skipped: no font");
            return;
        };
        let svg = |text: &str| {
            format!(
                r##"<svg width="60" height="30" viewBox="0 0 60 30" xmlns="http://www.w3.org/2000/svg">
                <rect x="40" y="0" width="20" height="30" fill="#0072B2"/>
                <text x="2" y="20" font-family="sans-serif" font-size="16">{text}</text></svg>"##
            )
        };
        let painted = |text: &str| Pixmap::decode_png(&painter.paint(&svg(text)).unwrap()).unwrap();
        let image = painted("−µ±");
        assert_eq!((image.width(), image.height()), (120, 60));
        let color = |x, y| {
            let pixel = image.pixel(x, y).unwrap();
            [pixel.red(), pixel.green(), pixel.blue()]
        };
        assert_eq!((color(0, 0), color(100, 30)), ([255; 3], [0x00, 0x72, 0xb2]));
        assert_ne!(image.data(), painted("").data(), "there is no text");
        assert!(painter.paint("no chart").is_err());
    }
}
