//! Charts as pixels, for programs without SVG. Text needs fonts of this machine: one of a few common ones,
//! and one more for Japanese. If a font lacks a sign, the chart is not available as PNG, with the reason: it
//! never shows boxes for letters.

use crate::error::Error;
use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::{Group, Node, Options, Tree, fontdb::Database};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Pixels per unit of a chart: sharp in print and on dense screens.
const SCALE: f32 = 2.0;
/// Directories of fonts.
const DIRECTORIES: [&str; 2] = ["/usr/share/fonts", "/usr/local/share/fonts"];
/// The depth of fonts below them.
const DEPTH_MAX: u32 = 5;
/// Fonts with the signs that charts have, best first.
const FONTS: &[&str] = &[
    "DejaVuSans.ttf",
    "LiberationSans-Regular.ttf",
    "NotoSans-Regular.ttf",
    "NimbusSans-Regular.otf",
    "FreeSans.ttf",
];
/// Fonts with Japanese signs, best first.
const JAPANESE_FONTS: &[&str] = &[
    "NotoSansCJK-Regular.ttc",
    "NotoSansCJKjp-Regular.otf",
    "NotoSansJP-Regular.ttf",
    "ipaexg.ttf",
    "ipagp.ttf",
    "ipag.ttf",
    "TakaoPGothic.ttf",
    "VL-PGothic-Regular.ttf",
];
/// The largest number of signs that a reason names.
const MISSING_MAX: usize = 8;

/// Draws charts with the fonts of this machine.
#[derive(Debug)]
pub(super) struct Painter {
    options: Options<'static>,
}

impl Painter {
    /// Uses the best installed fonts, or returns why there is no PNG.
    pub(super) fn new() -> Result<Self, String> {
        let found: Vec<PathBuf> =
            DIRECTORIES.iter().flat_map(|directory| fonts(Path::new(directory), 0)).collect();
        let best = |names: &[&str]| {
            let rank = |path: &&PathBuf| names.iter().position(|name| path.ends_with(name));
            found.iter().filter(|path| rank(path).is_some()).min_by_key(rank)
        };
        let chosen = [best(FONTS), best(JAPANESE_FONTS)];
        let mut data = Vec::new();
        for path in chosen.into_iter().flatten() {
            data.push(std::fs::read(path).map_err(|why| format!("{}: {why}", path.display()))?);
        }
        if data.is_empty() {
            return Err(format!(
                "there is none of {} (Debian: fonts-dejavu-core)",
                FONTS.join(", ")
            ));
        }
        Self::with(data)
    }

    /// Uses these fonts, the first before the others.
    fn with(data: Vec<Vec<u8>>) -> Result<Self, String> {
        let mut fonts = Database::new();
        for font in data {
            fonts.load_font_data(font);
        }
        let family = fonts.faces().find_map(|face| face.families.first());
        let family = family.ok_or("the font has no name")?.0.clone();
        fonts.set_sans_serif_family(family);
        let mut options = Options { fontdb: fonts.into(), ..Options::default() };
        // The resolver does the same, but warns about each text.
        options.font_resolver.select_fallback = Box::new(|_, used, fonts| {
            fonts.faces().map(|face| face.id).find(|face| !used.contains(face))
        });
        Ok(Self { options })
    }

    fn tree(&self, svg: &str) -> Result<Tree, Error> {
        Tree::from_str(svg, &self.options).map_err(|why| Error::Chart(why.to_string()))
    }

    /// Returns why a chart cannot be painted: signs that no font here has.
    pub(super) fn lacks(&self, svg: &str) -> Option<String> {
        let signs: BTreeSet<char> = svg.chars().filter(|sign| !sign.is_ascii()).collect();
        if signs.is_empty() {
            return None;
        }
        let text: String = signs.into_iter().collect();
        let probe = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"9\" height=\"9\">\
             <text font-family=\"sans-serif\">{text}</text></svg>"
        );
        let mut missing = Vec::new();
        match self.tree(&probe) {
            Ok(tree) => collect_missing(tree.root(), &mut missing),
            Err(why) => return Some(why.to_string()),
        }
        let shown: String = missing.concat().chars().take(MISSING_MAX).collect();
        (!missing.is_empty()).then(|| {
            format!(
                "no font here has {shown}{}: install one of {} (Debian: fonts-ipafont-gothic or \
                 fonts-noto-cjk)",
                if missing.len() > MISSING_MAX { "…" } else { "" },
                JAPANESE_FONTS.join(", ")
            )
        })
    }

    /// Paints a chart as PNG, on white.
    pub(super) fn paint(&self, svg: &str) -> Result<Vec<u8>, Error> {
        let wrong = |why: &dyn std::fmt::Display| Error::Chart(why.to_string());
        let tree = self.tree(svg)?;
        let size = tree.size().to_int_size().scale_by(SCALE);
        let size = size.ok_or_else(|| wrong(&"it has no size"))?;
        let pixels = Pixmap::new(size.width(), size.height());
        let mut pixels = pixels.ok_or_else(|| wrong(&"it is too large"))?;
        pixels.fill(Color::WHITE);
        resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
        pixels.encode_png().map_err(|why| wrong(&why))
    }
}

/// Collects text with the sign for a missing glyph, which is the first of each font.
fn collect_missing(group: &Group, missing: &mut Vec<String>) {
    for node in group.children() {
        match node {
            Node::Group(group) => collect_missing(group, missing),
            Node::Text(text) => {
                let glyphs = text.layouted().iter().flat_map(|span| &span.positioned_glyphs);
                missing.extend(glyphs.filter(|it| it.id.0 == 0).map(|it| it.text.clone()));
            }
            Node::Path(_) | Node::Image(_) => {}
        }
    }
}

/// Returns the known fonts below a directory.
fn fonts(directory: &Path, depth: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if FONTS.iter().chain(JAPANESE_FONTS).any(|name| path.ends_with(name)) {
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

    /// Goal: a chart has its size in pixels, a white background, its colours, and text.
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

    /// Goal: signs without a font are named with the package to install, and never drawn as a box.
    #[test]
    fn signs_without_a_font_are_named() {
        let found = DIRECTORIES.iter().flat_map(|directory| fonts(Path::new(directory), 0));
        let latin = found.into_iter().find(|path| FONTS.iter().any(|name| path.ends_with(name)));
        let Some(latin) = latin else {
            println!("skipped: no font");
            return;
        };
        let painter = Painter::with(vec![std::fs::read(latin).unwrap()]).unwrap();
        assert_eq!(painter.lacks("<text>plain −µ±</text>"), None);
        let why = painter.lacks("<text>帯域幅</text>").unwrap();
        assert!(why.contains('帯') && why.contains("fonts-ipafont-gothic"), "{why}");
        assert!(Painter::with(vec![b"no font".to_vec()]).is_err());
    }
}
