//! Which charts a report has, and what is in them.
//!
//! C10: the forest plot of all ratios. C1: a metric against block size, per condition, with the
//! ratios below. C2: IOPS and tail latency against jobs, or depth. A workload that varies none has
//! a table only.

use super::chart::{self, Axis, ForestRow, Mark, Panel, Series, Symbol};
use crate::analysis::{Analysis, Family};
use crate::error::Error;
use crate::experiment::Metric;
use crate::plan::{Cell, Plan};
use crate::statistics::Verdict;
use crate::units;
use std::collections::BTreeMap;

/// Rows that differ more are drawn at the border of the forest plot.
const FOREST_PERCENT_MAX: f64 = 300.0;

/// A chart.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Name of its file, without the ending.
    pub name: String,
    /// Its caption.
    pub caption: String,
    /// The workload it is of; `None` is all.
    pub workload: Option<usize>,
    /// The drawing.
    pub svg: String,
}

/// All charts of a report.
pub(super) fn draw(plan: &Plan, analysis: &Analysis) -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    figures.extend(forest(plan, analysis)?);
    for (index, load) in plan.experiment.workloads.iter().enumerate() {
        let sweep = if load.block_sizes.len() > 1 {
            Sweep::BlockSize
        } else if load.jobs.len() > 1 {
            Sweep::Jobs
        } else if load.depths.len() > 1 {
            Sweep::Depth
        } else {
            continue;
        };
        figures.extend(curves(plan, analysis, index, sweep)?);
    }
    Ok(figures)
}

fn percent(log_ratio: f64) -> f64 {
    100.0 * log_ratio.exp_m1()
}

fn forest(plan: &Plan, analysis: &Analysis) -> Result<Option<Figure>, Error> {
    let mut rows = Vec::new();
    for family in &analysis.families {
        for row in &family.rows {
            let Some(interval) = row.evidence.interval else { continue };
            let interval = interval.map(percent);
            rows.push(ForestRow {
                label: format!(
                    "{}: {} {}, {}",
                    plan.experiment.comparisons[family.comparison].name,
                    plan.experiment.workloads[family.workload].name,
                    plan.cells[row.cell].label(),
                    family.metric.word()
                ),
                value: percent(row.evidence.mean),
                low: interval.low,
                high: interval.high,
                symbol: match row.verdict {
                    Verdict::Equivalent => Symbol::Equivalent,
                    Verdict::DifferentMatters => Symbol::Matters,
                    Verdict::DifferentSmall => Symbol::Small,
                    Verdict::Inconclusive(_) => Symbol::Inconclusive,
                },
                margin: percent(row.evidence.margin),
            });
        }
    }
    if rows.is_empty() {
        return Ok(None);
    }
    let svg = chart::forest(&rows, FOREST_PERCENT_MAX)?;
    let caption = format!(
        "All ratios after {} rounds. Point: geometric mean of the paired ratios; line: 95 % \
         t-interval{}; verdicts are adjusted for the number of cells per figure (Holm).{}",
        analysis.rounds,
        match plan.experiment.timing.looks.count() {
            0 | 1 => String::new(),
            looks => format!(", widened for {looks} looks"),
        },
        if rows.iter().any(|row| row.high > FOREST_PERCENT_MAX) {
            " An arrow: it goes beyond the chart; the tables have the numbers."
        } else {
            ""
        }
    );
    Ok(Some(Figure { name: "c10-forest".into(), caption, workload: None, svg }))
}

/// What runs along the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sweep {
    BlockSize,
    Jobs,
    Depth,
}

impl Sweep {
    fn value(self, cell: &Cell) -> u64 {
        match self {
            Self::BlockSize => cell.block_size,
            Self::Jobs => u64::from(cell.jobs),
            Self::Depth => u64::from(cell.depth),
        }
    }

    fn axis(self, plan: &Plan, workload: usize) -> Axis {
        let mut ticks = BTreeMap::new();
        for cell in plan.cells.iter().filter(|cell| cell.workload == workload) {
            let value = self.value(cell);
            let label = match self {
                Self::BlockSize => units::bytes(value),
                Self::Jobs | Self::Depth => value.to_string(),
            };
            ticks.insert(value, label);
        }
        let label = match self {
            Self::BlockSize => "block size".into(),
            Self::Jobs => units::plural(plan.experiment.engine.worker()),
            Self::Depth => "operations under way per job".into(),
        };
        let ticks =
            ticks.into_iter().map(|(value, label)| ((value as f64).log2(), label)).collect();
        Axis { label, ticks }
    }
}

/// Cells that differ in what the axis shows only: those with the smallest other settings.
fn is_on_axis(plan: &Plan, cell: &Cell, sweep: Sweep) -> bool {
    let load = &plan.experiment.workloads[cell.workload];
    let first = |values: &[u32]| values.first().copied();
    let depth = sweep == Sweep::Depth || first(&load.depths) == Some(cell.depth);
    depth && (sweep == Sweep::Jobs || first(&load.jobs) == Some(cell.jobs))
}

fn curves(
    plan: &Plan,
    analysis: &Analysis,
    workload: usize,
    sweep: Sweep,
) -> Result<Vec<Figure>, Error> {
    let load = &plan.experiment.workloads[workload];
    let axis = sweep.axis(plan, workload);
    let values: Vec<(Metric, Vec<Series>)> = load
        .metrics
        .iter()
        .map(|&metric| (metric, measured(plan, analysis, workload, metric, sweep)))
        .collect();
    let Some((first, _)) = values.first() else { return Ok(Vec::new()) };
    if values.iter().all(|(_, series)| series.is_empty()) {
        return Ok(Vec::new());
    }
    let mut panels: Vec<Panel<'_>> = values
        .iter()
        .map(|(metric, series)| Panel { y_label: metric.label(), series, band: None })
        .collect();
    let n = smallest_n(plan, analysis, workload);
    let name = |kind: &str| format!("{kind}-{}", load.name);
    let kind = if sweep == Sweep::BlockSize { "c1" } else { "c2" };
    let mut figures = vec![Figure {
        name: name(kind),
        caption: format!(
            "{}: medians over rounds with 95 % order-statistic intervals, n ≥ {n}.",
            load.name
        ),
        workload: Some(workload),
        svg: chart::curves(&axis, &panels)?,
    }];
    panels.clear();
    let ratios = ratios(plan, analysis, workload, *first, sweep);
    if !ratios.is_empty() {
        let band = percent(plan.experiment.margins.of(*first));
        let label = format!("change of {} (%)", first.word());
        let panel = Panel { y_label: &label, series: &ratios, band: Some(band) };
        figures.push(Figure {
            name: name(&format!("{kind}-ratio")),
            caption: format!(
                "{}: paired ratios with 95 % intervals; the band of ± {band:.0} % does not matter.",
                load.name
            ),
            workload: Some(workload),
            svg: chart::curves(&axis, &[panel])?,
        });
    }
    Ok(figures)
}

fn smallest_n(plan: &Plan, analysis: &Analysis, workload: usize) -> usize {
    let metric = plan.experiment.workloads[workload].metrics.first().copied();
    let metric = metric.unwrap_or(Metric::Bandwidth);
    let curves = (0..plan.conditions.len())
        .flat_map(|condition| analysis.curve(plan, workload, condition, metric));
    curves.map(|point| point.n).min().unwrap_or_default()
}

fn measured(
    plan: &Plan,
    analysis: &Analysis,
    workload: usize,
    metric: Metric,
    sweep: Sweep,
) -> Vec<Series> {
    let unit = metric.unit();
    let mut all = Vec::new();
    for (condition, it) in plan.conditions.iter().enumerate() {
        let mut marks: Vec<Mark> = analysis
            .curve(plan, workload, condition, metric)
            .into_iter()
            .filter(|point| is_on_axis(plan, &plan.cells[point.cell], sweep))
            .map(|point| {
                let y = point.median / unit;
                let interval = point.interval.map(|interval| interval.map(|end| end / unit));
                Mark {
                    x: (sweep.value(&plan.cells[point.cell]) as f64).log2(),
                    y,
                    low: interval.map_or(y, |interval| interval.low),
                    high: interval.map_or(y, |interval| interval.high),
                }
            })
            .collect();
        marks.sort_by(|a, b| a.x.total_cmp(&b.x));
        if !marks.is_empty() {
            all.push(Series { label: it.label.clone(), style: condition, marks });
        }
    }
    all
}

fn ratios(
    plan: &Plan,
    analysis: &Analysis,
    workload: usize,
    metric: Metric,
    sweep: Sweep,
) -> Vec<Series> {
    let of = |family: &&Family| family.workload == workload && family.metric == metric;
    let mut all = Vec::new();
    for family in analysis.families.iter().filter(of) {
        let mut marks: Vec<Mark> = family
            .rows
            .iter()
            .filter(|row| is_on_axis(plan, &plan.cells[row.cell], sweep))
            .filter_map(|row| {
                let interval = row.evidence.interval?.map(percent);
                Some(Mark {
                    x: (sweep.value(&plan.cells[row.cell]) as f64).log2(),
                    y: percent(row.evidence.mean),
                    low: interval.low,
                    high: interval.high,
                })
            })
            .collect();
        marks.sort_by(|a, b| a.x.total_cmp(&b.x));
        if !marks.is_empty() {
            let label = plan.experiment.comparisons[family.comparison].name.clone();
            all.push(Series { label, style: family.comparison, marks });
        }
    }
    all
}
