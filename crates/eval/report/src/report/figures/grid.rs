//! Charts over jobs and depth: heat maps of throughput (C4), and bandwidth with CPU time (C5).

use super::{Figure, Source, Sweep, chart};
use crate::error::Error;
use crate::report::chart::{HeatPanel, Mark, Panel, Right, Series};
use base::messages::Message;
use base::units;
use lab::analysis::Point;
use loads::metric::Metric;

/// Most panels of a figure.
const PANELS_MAX: usize = 8;

/// Draws a map per condition, in a figure per block size.
pub(super) fn maps(source: Source<'_>, workload: usize) -> Result<Vec<Figure>, Error> {
    let Source { plan, analysis, language, .. } = source;
    let load = &plan.experiment.workloads[workload];
    let metric = [Metric::Bandwidth, Metric::Iops].into_iter().find(|it| load.metrics.contains(it));
    let (Some(metric), true, true) = (metric, load.jobs.len() > 1, load.depths.len() > 1) else {
        return Ok(Vec::new());
    };
    let mut figures = Vec::new();
    for &size in &load.block_sizes {
        let panel = |condition: usize| {
            let curve = analysis.curve(plan, workload, condition, metric);
            let at = |jobs: u32, depth: u32| {
                let is_it = |point: &&Point| {
                    let cell = &plan.cells[point.cell];
                    (cell.block_size, cell.jobs, cell.depth) == (size, jobs, depth)
                };
                curve.iter().find(is_it).map(|point| point.median / metric.unit())
            };
            let row = |jobs: &u32| load.depths.iter().map(|depth| at(*jobs, *depth)).collect();
            HeatPanel {
                title: plan.conditions[condition].label.clone(),
                columns: load.depths.iter().map(ToString::to_string).collect(),
                rows: load.jobs.iter().map(ToString::to_string).collect(),
                values: load.jobs.iter().map(row).collect(),
            }
        };
        let has_values = |panel: &HeatPanel| panel.values.iter().flatten().any(Option::is_some);
        let panels: Vec<HeatPanel> =
            (0..plan.conditions.len()).map(panel).filter(has_values).take(PANELS_MAX).collect();
        if panels.is_empty() {
            continue;
        }
        figures.push(Figure {
            name: format!("c4-{}-{}", load.name, file_name(size)),
            caption: language.say(
                Message::HeatCaption,
                &[
                    ("workload", &load.name),
                    ("size", &units::bytes(size)),
                    ("metric", &source.unit(metric)),
                ],
            ),
            workload: Some(workload),
            svg: chart::heat(
                &panels,
                language.text(Message::AxisDepth),
                &language.plural(Message::Job),
            )?,
        });
    }
    Ok(figures)
}

fn file_name(size: u64) -> String {
    units::bytes(size).replace(' ', "")
}

/// Draws bandwidth on the left and CPU time on the right over block size, with a panel per jobs and depth, in
/// a figure per condition.
pub(super) fn bandwidth_and_cpu(source: Source<'_>, workload: usize) -> Result<Vec<Figure>, Error> {
    let Source { plan, analysis, language, .. } = source;
    let load = &plan.experiment.workloads[workload];
    let wanted = [Metric::Bandwidth, Metric::MachineCpu];
    let has_all = wanted.iter().all(|metric| load.metrics.contains(metric));
    if !has_all || load.block_sizes.len() < 2 {
        return Ok(Vec::new());
    }
    let axis = Sweep::BlockSize.axis(source, workload);
    let shapes: Vec<(u32, u32)> = load
        .jobs
        .iter()
        .flat_map(|jobs| load.depths.iter().map(|depth| (*jobs, *depth)))
        .take(PANELS_MAX)
        .collect();
    let mut figures = Vec::new();
    for (condition, it) in plan.conditions.iter().enumerate() {
        let [bandwidth, cpu] = wanted.map(|metric| {
            let curve = analysis.curve(plan, workload, condition, metric);
            let of = |shape: &(u32, u32)| series(source, &curve, metric, *shape);
            shapes.iter().map(of).collect::<Vec<_>>()
        });
        if bandwidth.iter().all(|series| series.marks.is_empty()) {
            continue;
        }
        let label = |(jobs, depth): &(u32, u32)| {
            language.say(Message::PanelBandwidth, &[("jobs", jobs), ("depth", depth)])
        };
        let labels: Vec<String> = shapes.iter().map(label).collect();
        let panels: Vec<Panel<'_>> = labels
            .iter()
            .zip(bandwidth.iter().zip(&cpu))
            .map(|(label, (left, right))| Panel {
                right: Some(Right {
                    label: source.unit(Metric::MachineCpu),
                    series: std::slice::from_ref(right),
                    boxes: &[],
                }),
                ..Panel::of(label, std::slice::from_ref(left))
            })
            .collect();
        figures.push(Figure {
            name: format!("c5-{}-{condition}", load.name),
            caption: language.say(
                Message::BandwidthCpuCaption,
                &[("workload", &load.name), ("condition", &it.label)],
            ),
            workload: Some(workload),
            svg: chart::curves(&axis, &panels)?,
        });
    }
    Ok(figures)
}

fn series(
    source: Source<'_>,
    curve: &[Point],
    metric: Metric,
    (jobs, depth): (u32, u32),
) -> Series {
    let (plan, unit) = (source.plan, metric.unit());
    let mut marks: Vec<Mark> = curve
        .iter()
        .filter(|point| {
            (plan.cells[point.cell].jobs, plan.cells[point.cell].depth) == (jobs, depth)
        })
        .map(|point| {
            let interval = point.interval.map(|it| it.map(|end| end / unit));
            let y = point.median / unit;
            Mark {
                x: (plan.cells[point.cell].block_size as f64).log2(),
                y,
                low: interval.map_or(y, |it| it.low),
                high: interval.map_or(y, |it| it.high),
            }
        })
        .collect();
    marks.sort_by(|a, b| a.x.total_cmp(&b.x));
    let style = usize::from(metric.is_cpu());
    Series { label: source.unit(metric).into(), style, marks }
}
