//! Small multiples: latency over operations per second (C3), and bandwidth over transfer size for each
//! number of ranks (C8).

use super::{Figure, Source, Sweep, smallest_n};
use crate::error::Error;
use crate::report::chart::{Dot, Join, Plot, Scale, Trail, plots};
use base::messages::Message;
use base::units;
use lab::analysis::Point;
use loads::metric::Metric;
use loads::workload::Cell;
use std::collections::BTreeMap;

/// Fewest points of a curve of latency over rate.
const POINTS_MIN: usize = 3;
/// Most panels of a figure.
const PANELS_MAX: usize = 8;

/// Returns median and interval in a metric's unit.
fn value(point: &Point, metric: Metric) -> (f64, (f64, f64)) {
    let unit = metric.unit();
    let middle = point.median / unit;
    let range = point.interval.map_or((middle, middle), |it| (it.low / unit, it.high / unit));
    (middle, range)
}

/// Draws latency over IOPS along the operations in flight, in a figure per block size that has enough of
/// them.
pub(super) fn latency_over_rate(source: Source<'_>, workload: usize) -> Result<Vec<Figure>, Error> {
    let load = &source.plan.experiment.workloads[workload];
    let mut figures = Vec::new();
    if !load.metrics.contains(&Metric::Iops) {
        return Ok(figures);
    }
    for &size in &load.block_sizes {
        let metrics = [Metric::Latency, Metric::LatencyP99];
        let trails = metrics.map(|metric| rate_trails(source, (workload, size), metric));
        let shown: Vec<usize> = trails[0].iter().map(|trail| trail.style).collect();
        if shown.is_empty() {
            continue;
        }
        let panels: Vec<Plot> = metrics
            .into_iter()
            .zip(trails)
            .filter(|(_, trails)| !trails.is_empty())
            .map(|(metric, trails)| rate_plot(source, metric, trails))
            .collect();
        figures.push(Figure {
            name: format!("c3-{}-{}", load.name, units::bytes(size).replace(' ', "")),
            caption: source.language.say(
                Message::RateCaption,
                &[
                    ("workload", &load.name),
                    ("size", &units::bytes(size)),
                    ("n", &smallest_n(source.plan, source.analysis, workload)),
                ],
            ),
            workload: Some(workload),
            svg: plots(&source.legend(shown), &panels, 1)?,
        });
    }
    Ok(figures)
}

/// Returns a trail per condition that has enough points; places of latencies are logarithms.
fn rate_trails(source: Source<'_>, (workload, size): (usize, u64), metric: Metric) -> Vec<Trail> {
    let cells = &source.plan.cells;
    let under_way = |cell: &Cell| (cell.jobs * cell.depth, cell.jobs, cell.rate, cell.batch);
    let of = |condition: usize| {
        let curve = |metric| source.analysis.curve(source.plan, workload, condition, metric);
        let rates: BTreeMap<usize, Point> =
            curve(Metric::Iops).into_iter().map(|point| (point.cell, point)).collect();
        let mut points = curve(metric);
        points.retain(|point| cells[point.cell].block_size == size);
        points.sort_by_key(|point| under_way(&cells[point.cell]));
        let dot = |point: &Point| {
            let (x, x_range) = value(rates.get(&point.cell)?, Metric::Iops);
            let (y, y_range) = value(point, metric);
            let y_range = (y_range.0.log10(), y_range.1.log10());
            Some(Dot { x, y: y.log10(), x_range, y_range })
        };
        let dots: Vec<Dot> = points.iter().filter_map(dot).collect();
        Trail { style: condition, join: Join::Solid, has_shapes: true, dots }
    };
    let all = (0..source.plan.conditions.len()).map(of);
    all.filter(|trail| trail.dots.len() >= POINTS_MIN).collect()
}

fn rate_plot(source: Source<'_>, metric: Metric, trails: Vec<Trail>) -> Plot {
    let dots = || trails.iter().flat_map(|trail| &trail.dots);
    let most = dots().map(|dot| dot.x_range.1).fold(0.0, f64::max);
    let heights = dots().flat_map(|dot| [dot.y_range.0, dot.y_range.1]).map(|it| 10_f64.powf(it));
    let y = Scale::decimal(source.unit(metric), heights);
    let x = Scale::linear(source.language.text(Message::AxisIops), most);
    Plot { title: String::new(), x, y, shade: None, trails }
}

/// Draws bandwidth over block or transfer size, with a panel for each number of jobs or ranks, on one scale.
pub(super) fn by_ranks(source: Source<'_>, workload: usize) -> Result<Option<Figure>, Error> {
    let language = source.language;
    let load = &source.plan.experiment.workloads[workload];
    let is_swept = load.block_sizes.len() > 1 && load.jobs.len() > 1 && load.depths.len() == 1;
    if !is_swept || !load.metrics.contains(&Metric::Bandwidth) || load.rates != [0] {
        return Ok(None);
    }
    let jobs: Vec<u32> = load.jobs.iter().copied().take(PANELS_MAX).collect();
    let all: Vec<Vec<Trail>> =
        jobs.iter().map(|jobs| size_trails(source, workload, *jobs)).collect();
    let dots = || all.iter().flatten().flat_map(|trail| &trail.dots);
    if dots().next().is_none() {
        return Ok(None);
    }
    let most = dots().map(|dot| dot.y_range.1).fold(0.0, f64::max);
    let y = Scale::linear(source.unit(Metric::Bandwidth), most);
    let axis = language.text(Message::AxisTransferSize);
    let ticks = Sweep::BlockSize.axis(source, workload).ticks;
    let worker = source.plan.experiment.engine.worker;
    let shown: std::collections::BTreeSet<usize> =
        all.iter().flatten().map(|trail| trail.style).collect();
    let panels: Vec<Plot> = jobs
        .iter()
        .zip(all)
        .map(|(jobs, trails)| Plot {
            title: language.several(*jobs, worker),
            x: Scale::at(axis, ticks.clone(), 0.4),
            y: y.clone(),
            shade: None,
            trails,
        })
        .collect();
    Ok(Some(Figure {
        name: format!("c8-{}", load.name),
        caption: language.say(
            Message::MultiplesCaption,
            &[
                ("workload", &load.name),
                ("axis", &axis),
                ("workers", &language.plural(worker)),
                ("n", &smallest_n(source.plan, source.analysis, workload)),
            ],
        ),
        workload: Some(workload),
        svg: plots(&source.legend(shown), &panels, 2)?,
    }))
}

fn size_trails(source: Source<'_>, workload: usize, jobs: u32) -> Vec<Trail> {
    let cells = &source.plan.cells;
    let of = |condition: usize| {
        let mut curve = source.analysis.curve(source.plan, workload, condition, Metric::Bandwidth);
        curve.retain(|point| cells[point.cell].jobs == jobs);
        curve.sort_by_key(|point| cells[point.cell].block_size);
        let dot = |point: &Point| {
            let x = (cells[point.cell].block_size as f64).log2();
            let (y, y_range) = value(point, Metric::Bandwidth);
            Dot { x, y, x_range: (x, x), y_range }
        };
        let dots = curve.iter().map(dot).collect();
        Trail { style: condition, join: Join::Solid, has_shapes: true, dots }
    };
    let all = (0..source.plan.conditions.len()).map(of);
    all.filter(|trail| !trail.dots.is_empty()).collect()
}
