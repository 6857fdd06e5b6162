//! C7: rates of many containers, together (left) and each (right, as boxes), with Jain's fairness.

use super::{Figure, Source, Sweep, chart};
use crate::error::Error;
use crate::report::chart::{BoxMark, Mark, Panel, Right, Series};
use base::messages::Message;
use base::statistics::median;
use loads::crowd::CONTAINER_QUANTILES;
use loads::metric::Metric;

/// Draws a figure for each phase, with a panel for each condition.
pub(super) fn containers(source: Source<'_>, workload: usize) -> Result<Vec<Figure>, Error> {
    let Source { plan, language, .. } = source;
    let load = &plan.experiment.workloads[workload];
    let phases = plan.experiment.engine.phases;
    if load.jobs.len() < 2 {
        return Ok(Vec::new());
    }
    let axis = Sweep::Jobs.axis(source, workload);
    let mut figures = Vec::new();
    for &(metric, phase) in phases {
        let shown = |condition: usize| panel(source, (workload, condition), metric, phase);
        let shown: Vec<Shown> = (0..plan.conditions.len()).filter_map(shown).collect();
        if shown.is_empty() {
            continue;
        }
        let panels: Vec<Panel<'_>> = shown
            .iter()
            .map(|it| Panel {
                title: Some(&it.label),
                notes: &it.notes,
                right: Some(Right {
                    label: language.text(Message::AxisEachContainer),
                    series: &[],
                    boxes: &it.boxes,
                }),
                ..Panel::of(
                    language.text(Message::AxisAllContainers),
                    std::slice::from_ref(&it.total),
                )
            })
            .collect();
        figures.push(Figure {
            name: format!("c7-{}-{phase}", load.name),
            caption: language.say(
                Message::ContainersCaption,
                &[("workload", &load.name), ("metric", &language.text(metric.message()))],
            ),
            workload: Some(workload),
            svg: chart::curves(&axis, &panels)?,
        });
    }
    Ok(figures)
}

/// The content of a panel.
struct Shown {
    label: String,
    total: Series,
    boxes: Vec<BoxMark>,
    notes: Vec<(f64, String)>,
}

fn panel(
    source: Source<'_>,
    (workload, condition): (usize, usize),
    metric: Metric,
    phase: &str,
) -> Option<Shown> {
    let Source { plan, analysis, language, .. } = source;
    let it = &plan.conditions[condition];
    let (mut marks, mut boxes, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for point in analysis.curve(plan, workload, condition, metric) {
        let cell = &plan.cells[point.cell];
        let x = f64::from(cell.jobs).log2();
        let (low, high) =
            point.interval.map_or((point.median, point.median), |it| (it.low, it.high));
        marks.push(Mark { x, y: point.median, low, high });
        let middle = |name: &str| {
            let of_cell = analysis.runs.iter().filter(|run| run.is_usable());
            let of_cell = of_cell.filter(|run| run.cell == cell.id && run.condition == it.id);
            let name = format!("{phase}_{name}");
            let values: Vec<f64> =
                of_cell.filter_map(|run| run.samples.get(&name)).copied().collect();
            (!values.is_empty()).then(|| median(&values))
        };
        let quantiles = CONTAINER_QUANTILES.map(|(name, _)| middle(name));
        if let [Some(least), Some(first), Some(middle), Some(third), Some(most)] = quantiles {
            boxes.push(BoxMark { x, values: [least, first, middle, third, most] });
        }
        notes.extend(middle("fairness").map(|fairness| (x, format!("J {fairness:.2}"))));
    }
    marks.sort_by(|a, b| a.x.total_cmp(&b.x));
    let label = it.label.clone();
    let total = Series { label: language.text(Message::AllContainers).into(), style: 0, marks };
    (!total.marks.is_empty()).then_some(Shown { label, total, boxes, notes })
}
