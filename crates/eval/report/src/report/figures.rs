//! The charts of a report and their content.
//!
//! C10: the forest plot of all ratios. C1: a metric against block size, per condition, with the ratios below.
//! C2: IOPS and tail latency against jobs, or depth. C4: throughput over jobs and depth. C5: bandwidth and
//! CPU time over block size. C6: CPU time and latency over the rate, or the batch. C3: latency over IOPS. C7:
//! many containers, together and each. C8: bandwidth over transfer size, a panel for each number of ranks.
//! C9: bandwidth under its roofs. C11: runs second by second. C12: the distribution of latency. A workload
//! that varies nothing has the last two and a table.

mod containers;
mod grid;
mod multiples;
mod ratios;
mod roofline;
mod traces;

use super::chart::{self, Axis, ForestRow, Mark, Panel, Series, Symbol};
use super::png::Painter;
use crate::error::Error;
use base::messages::{Language, Message};
use base::statistics::{Inconclusive, Verdict};
use base::units;
use lab::analysis::{Analysis, Family};
use lab::plan::Plan;
use lab::store::Store;
use loads::metric::Metric;
use loads::workload::Cell;
use loads::workload::Workload;
use std::collections::BTreeMap;
use std::fmt::Display;
use traces::Traces;

/// Rows that differ more are drawn at the border of the forest plot.
const FOREST_PERCENT_MAX: f64 = 300.0;

/// A chart.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Name of its file, without the ending.
    pub name: String,
    /// Its caption.
    pub caption: String,
    /// The workload that it shows; `None` is all.
    pub workload: Option<usize>,
    /// The drawing.
    pub svg: String,
}

impl Figure {
    /// Returns the drawing as PNG, if the fonts here have its signs.
    pub(crate) fn png(&self) -> Result<Vec<u8>, Error> {
        let painter = Painter::new().map_err(Error::Chart)?;
        match painter.lacks(&self.svg) {
            Some(reason) => Err(Error::Chart(reason)),
            None => painter.paint(&self.svg),
        }
    }
}

/// The content of charts, and the language of their words.
#[derive(Clone, Copy)]
struct Source<'a> {
    plan: &'a Plan,
    analysis: &'a Analysis,
    language: Language,
    traces: &'a Traces,
}

impl Source<'_> {
    /// Returns the name of a metric with its unit.
    fn unit(self, metric: Metric) -> &'static str {
        self.language.text(metric.message_with_unit())
    }

    /// Returns the cells of a workload, up to a number, and a caption if there are more.
    fn cells(self, workload: usize, most: usize) -> (Vec<usize>, String) {
        let all = (0..self.plan.cells.len()).filter(|it| self.plan.cells[*it].workload == workload);
        let mut cells: Vec<usize> = all.collect();
        let count = cells.len();
        cells.truncate(most);
        let values: [(&str, &dyn Display); 2] = [("shown", &most), ("all", &count)];
        let cut = if count > most {
            self.language.say(Message::SomeCells, &values)
        } else {
            String::new()
        };
        (cells, cut)
    }

    /// Returns a legend of conditions, each in its colour and shape.
    fn legend(self, conditions: impl IntoIterator<Item = usize>) -> Vec<(String, usize)> {
        let label = |it: usize| (self.plan.conditions[it].label.clone(), it);
        conditions.into_iter().map(label).collect()
    }
}

/// Draws all charts of a report.
pub(super) fn draw(
    plan: &Plan,
    analysis: &Analysis,
    (store, language): (&Store, Language),
) -> Result<Vec<Figure>, Error> {
    let traces = &Traces::of(plan, analysis, store)?;
    let source = Source { plan, analysis, language, traces };
    let mut figures = Vec::new();
    figures.extend(forest(source)?);
    for comparison in 0..plan.experiment.comparisons.len() {
        figures.extend(ratios::by_round(source, comparison)?);
    }
    for (index, load) in plan.experiment.workloads.iter().enumerate() {
        for sweep in sweeps(load) {
            figures.extend(curves(source, index, sweep)?);
        }
        figures.extend(grid::maps(source, index)?);
        figures.extend(grid::bandwidth_and_cpu(source, index)?);
        figures.extend(multiples::latency_over_rate(source, index)?);
        figures.extend(multiples::by_ranks(source, index)?);
        figures.extend(roofline::roofs(source, index)?);
        figures.extend(traces::by_second(source, index)?);
        figures.extend(traces::distributions(source, index)?);
        figures.extend(containers::containers(source, index)?);
        if (0..plan.conditions.len()).any(|condition| plan.scheme(condition).is_some()) {
            // No speed is shown without its risk.
            let note = language.text(Message::RiskNote);
            let of_load = figures.iter_mut().filter(|figure| figure.workload == Some(index));
            of_load.for_each(|figure| figure.caption.push_str(note));
        }
    }
    Ok(figures)
}

/// Returns the settings that vary along the curves of a workload.
fn sweeps(load: &Workload) -> Vec<Sweep> {
    if load.rates != [0] {
        let many_jobs = load.jobs.len() > 1;
        let rates = load.batches.iter().filter(|_| load.rates.len() > 1);
        let rates = rates.flat_map(|batch| load.jobs.iter().map(|jobs| Sweep::Rate(*batch, *jobs)));
        return rates
            .chain((load.batches.len() > 1).then_some(Sweep::Batch))
            .chain(many_jobs.then_some(Sweep::Jobs))
            .collect();
    }
    let first = if load.block_sizes.len() > 1 {
        Some(Sweep::BlockSize)
    } else if load.jobs.len() > 1 {
        Some(Sweep::Jobs)
    } else if load.depths.len() > 1 {
        Some(Sweep::Depth)
    } else {
        None
    };
    first.into_iter().collect()
}

fn percent(log_ratio: f64) -> f64 {
    100.0 * log_ratio.exp_m1()
}

fn forest(source: Source<'_>) -> Result<Option<Figure>, Error> {
    let Source { plan, analysis, language, .. } = source;
    let mut rows = Vec::new();
    for family in &analysis.families {
        for row in &family.rows {
            let Some(interval) = row.evidence.interval else { continue };
            let interval = interval.map(percent);
            rows.push(ForestRow {
                label: language.say(
                    Message::ForestRow,
                    &[
                        ("comparison", &plan.experiment.comparisons[family.comparison].name),
                        ("workload", &plan.experiment.workloads[family.workload].name),
                        ("cell", &plan.cells[row.cell].label_in(language)),
                        ("metric", &language.text(family.metric.message())),
                    ],
                ),
                value: percent(row.evidence.mean),
                low: interval.low,
                high: interval.high,
                symbol: match row.verdict {
                    Verdict::Equivalent => Symbol::Equivalent,
                    Verdict::DifferentMatters => Symbol::Matters,
                    Verdict::DifferentSmall => Symbol::Small,
                    Verdict::Inconclusive(Inconclusive::Withheld(_)) => Symbol::Withheld,
                    Verdict::Inconclusive(_) => Symbol::Inconclusive,
                },
                margin: percent(row.evidence.margin),
            });
        }
    }
    if rows.is_empty() {
        return Ok(None);
    }
    let svg = chart::forest(&rows, FOREST_PERCENT_MAX, language)?;
    let widened = match plan.experiment.timing.looks.count() {
        0 | 1 => String::new(),
        looks => language.say(Message::ForestWidened, &[("looks", &looks)]),
    };
    let is_beyond = rows.iter().any(|row| row.high > FOREST_PERCENT_MAX);
    let beyond = if is_beyond { language.text(Message::ForestBeyond) } else { "" };
    let values: [(&str, &dyn Display); 4] = [
        ("rounds", &analysis.rounds),
        ("together", &analysis.judged_together),
        ("widened", &widened),
        ("beyond", &beyond),
    ];
    let caption = language.say(Message::ForestCaption, &values);
    Ok(Some(Figure { name: "c10-forest".into(), caption, workload: None, svg }))
}

/// The setting along the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sweep {
    BlockSize,
    Jobs,
    Depth,
    /// At this batch, with this number of jobs.
    Rate(u32, u32),
    /// At the highest rate.
    Batch,
}

impl Sweep {
    fn value(self, cell: &Cell) -> u64 {
        match self {
            Self::BlockSize => cell.block_size,
            Self::Jobs => u64::from(cell.jobs),
            Self::Depth => u64::from(cell.depth),
            Self::Rate(..) => cell.rate,
            Self::Batch => u64::from(cell.batch),
        }
    }

    fn axis(self, source: Source<'_>, workload: usize) -> Axis {
        let Source { plan, language, .. } = source;
        let mut ticks = BTreeMap::new();
        for cell in plan.cells.iter().filter(|cell| cell.workload == workload) {
            let value = self.value(cell);
            let label = match self {
                Self::BlockSize => units::bytes(value),
                _ => value.to_string(),
            };
            ticks.insert(value, label);
        }
        let label = match self {
            Self::BlockSize => language.text(Message::AxisBlockSize).into(),
            Self::Jobs => language.plural(plan.experiment.engine.worker),
            Self::Depth => language.text(Message::AxisDepth).into(),
            Self::Rate(..) => language.text(Message::AxisRate).into(),
            Self::Batch => language.text(Message::AxisBatch).into(),
        };
        let ticks =
            ticks.into_iter().map(|(value, label)| ((value as f64).log2(), label)).collect();
        Axis { label, ticks }
    }
}

/// Returns cells that differ in the setting of the axis only: those with the smallest other settings, and the
/// highest rate.
fn is_on_axis(plan: &Plan, cell: &Cell, sweep: Sweep) -> bool {
    let load = &plan.experiment.workloads[cell.workload];
    let first = |values: &[u32]| values.first().copied();
    if let Sweep::Rate(batch, jobs) = sweep {
        return cell.batch == batch && cell.jobs == jobs;
    }
    let depth = sweep == Sweep::Depth || first(&load.depths) == Some(cell.depth);
    let rate = load.rates.iter().max() == Some(&cell.rate);
    let batch = sweep == Sweep::Batch || first(&load.batches) == Some(cell.batch);
    depth && rate && batch && (sweep == Sweep::Jobs || first(&load.jobs) == Some(cell.jobs))
}

impl Sweep {
    /// Returns the number of the chart in the list, and the settings that are fixed along it.
    fn name(self) -> (&'static str, String) {
        match self {
            Self::BlockSize => ("c1", String::new()),
            Self::Jobs | Self::Depth => ("c2", String::new()),
            Self::Rate(batch, jobs) => ("c6", format!("-batch{batch}-jobs{jobs}")),
            Self::Batch => ("c6", "-batches".into()),
        }
    }

    /// Returns the same in words.
    fn fixed(self, language: Language) -> String {
        match self {
            Self::Rate(batch, jobs) => {
                language.say(Message::CurvesFixed, &[("batch", &batch), ("jobs", &jobs)])
            }
            _ => String::new(),
        }
    }
}

/// Returns the condition whose device does nothing: the cost of the load itself.
fn null_condition(plan: &Plan) -> Option<usize> {
    (0..plan.conditions.len()).find(|condition| plan.is_null(*condition))
}

fn curves(source: Source<'_>, workload: usize, sweep: Sweep) -> Result<Vec<Figure>, Error> {
    let Source { plan, analysis, language, .. } = source;
    let load = &plan.experiment.workloads[workload];
    let axis = sweep.axis(source, workload);
    let values: Vec<(Metric, Vec<Series>)> = load
        .metrics
        .iter()
        .map(|&metric| (metric, measured(plan, analysis, workload, metric, sweep)))
        .collect();
    let Some((first, _)) = values.first() else { return Ok(Vec::new()) };
    if values.iter().all(|(_, series)| series.is_empty()) {
        return Ok(Vec::new());
    }
    let null = null_condition(plan);
    let shade = |series: &'_ [Series]| {
        let own = series.iter().find(|series| Some(series.style) == null);
        own.map_or(Vec::new(), |series| series.marks.clone())
    };
    let shades: Vec<Vec<Mark>> = values
        .iter()
        .map(|(metric, series)| if metric.is_cpu() { shade(series) } else { Vec::new() })
        .collect();
    let panels: Vec<Panel<'_>> = values
        .iter()
        .zip(&shades)
        .map(|((metric, series), shade)| Panel { shade, ..Panel::of(source.unit(*metric), series) })
        .collect();
    let (kind, part) = sweep.name();
    let is_shaded = !shades.iter().all(Vec::is_empty);
    let shaded = if is_shaded { language.text(Message::CurvesShaded) } else { "" };
    let caption = language.say(
        Message::CurvesCaption,
        &[
            ("workload", &load.name),
            ("fixed", &sweep.fixed(language)),
            ("n", &smallest_n(plan, analysis, workload)),
            ("shaded", &shaded),
        ],
    );
    let mut figures = vec![Figure {
        name: format!("{kind}-{}{part}", load.name),
        caption,
        workload: Some(workload),
        svg: chart::curves(&axis, &panels)?,
    }];
    figures.extend(ratio_curves(source, workload, *first, sweep)?);
    Ok(figures)
}

/// Returns the ratios of a workload's comparisons along a sweep.
fn ratio_curves(
    source: Source<'_>,
    workload: usize,
    metric: Metric,
    sweep: Sweep,
) -> Result<Option<Figure>, Error> {
    let Source { plan, analysis, language, .. } = source;
    let ratios = ratios(plan, analysis, workload, metric, sweep);
    if ratios.is_empty() {
        return Ok(None);
    }
    let name = &plan.experiment.workloads[workload].name;
    let band = percent(plan.experiment.margins.of(metric));
    let word = language.text(metric.message());
    let label = language.say(Message::AxisChangeOf, &[("metric", &word)]);
    let panel = Panel { band: Some(band), ..Panel::of(&label, &ratios) };
    let values: [(&str, &dyn Display); 2] =
        [("workload", name), ("band", &format_args!("{band:.0}"))];
    let (kind, part) = sweep.name();
    Ok(Some(Figure {
        name: format!("{kind}-ratio-{name}{part}"),
        caption: language.say(Message::RatiosOfCaption, &values),
        workload: Some(workload),
        svg: chart::curves(&sweep.axis(source, workload), &[panel])?,
    }))
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
