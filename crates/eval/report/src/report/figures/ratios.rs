//! Ratios that are not one number, round by round (C13).

use super::{Figure, Source};
use crate::error::Error;
use crate::report::chart::{Dot, Join, Plot, Scale, Trail, plots};
use base::messages::Message;
use lab::analysis::Row;
use std::fmt::Display;

/// Most panels of a figure.
const PANELS_MAX: usize = 8;

/// Draws the ratios of a comparison's withheld verdicts, with a panel for each.
pub(super) fn by_round(source: Source<'_>, comparison: usize) -> Result<Option<Figure>, Error> {
    let families = source.analysis.families.iter().filter(|it| it.comparison == comparison);
    let rows: Vec<(String, &Row)> = families
        .flat_map(|family| {
            let metric = source.language.text(family.metric.message());
            let load = &source.plan.experiment.workloads[family.workload].name;
            family.rows.iter().map(move |row| {
                let cell = source.plan.cells[row.cell].label_in(source.language);
                (format!("{load} {cell}, {metric}"), row)
            })
        })
        .filter(|(_, row)| !row.flaws.is_empty() && row.pairs.len() > 1)
        .collect();
    if rows.is_empty() {
        return Ok(None);
    }
    let panels: Vec<Plot> =
        rows.iter().take(PANELS_MAX).map(|(title, row)| panel(source, title, row)).collect();
    let values: [(&str, &dyn Display); 2] = [("shown", &PANELS_MAX), ("all", &rows.len())];
    let is_cut = rows.len() > PANELS_MAX;
    let cut = if is_cut { source.language.say(Message::SomeCells, &values) } else { String::new() };
    let name = &source.plan.experiment.comparisons[comparison].name;
    let legend = [(name.clone(), 0)];
    Ok(Some(Figure {
        name: format!("c13-ratio-{}", comparison + 1),
        caption: source.language.say(Message::RatioCaption, &[("comparison", name), ("cut", &cut)]),
        workload: None,
        svg: plots(&legend, &panels, 2)?,
    }))
}

fn panel(source: Source<'_>, title: &str, row: &Row) -> Plot {
    let warm_up = source.plan.warm_up_rounds();
    let percent = |ratio: f64| 100.0 * ratio.exp();
    let round = |round: u32| f64::from((round + 1).saturating_sub(warm_up));
    let dots: Vec<Dot> =
        row.pairs.iter().map(|pair| Dot::at(round(pair.round), percent(pair.ratio))).collect();
    let last = row.pairs.last().map_or(1.0, |pair| round(pair.round));
    let most = dots.iter().map(|dot| dot.y).fold(100.0, f64::max);
    let same = vec![Dot::at(0.0, 100.0), Dot::at(last, 100.0)];
    Plot {
        title: title.into(),
        x: Scale::linear(source.language.text(Message::AxisRound), last),
        y: Scale::linear(source.language.text(Message::AxisRatio), most),
        shade: None,
        trails: vec![
            Trail { style: 0, join: Join::Solid, has_shapes: true, dots },
            Trail { style: 0, join: Join::Dashed, has_shapes: false, dots: same },
        ],
    }
}
