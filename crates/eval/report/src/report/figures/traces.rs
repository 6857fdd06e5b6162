//! Series that runs keep beside their values: bandwidth second by second (C11), and the distribution of
//! latency (C12).

use super::{Figure, Source};
use crate::error::Error;
use crate::report::chart::{Dot, Join, Plot, Scale, Trail, plots};
use base::messages::Message;
use base::statistics::{ALPHA, median, median_interval, steady_window};
use lab::analysis::Analysis;
use lab::plan::Plan;
use lab::store::{Kept, Run, Store};
use loads::metric::Metric;
use loads::outcome::Mark;
use loads::outcome::SERIES_INTERVAL;
use loads::tail::{QUANTILES, tail};
use std::collections::{BTreeMap, BTreeSet};

/// Most panels of a figure.
const PANELS_MAX: usize = 8;
/// Most places of a line; of longer runs neighbouring seconds are averaged.
const PLACES_MAX: usize = 60;

/// One run, second by second.
#[derive(Clone, Debug)]
struct Second {
    cell: usize,
    condition: usize,
    /// Bytes per second.
    series: Vec<f64>,
    /// Length of an interval in seconds.
    interval: f64,
    has_settled: bool,
}

/// The series of all runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Traces {
    seconds: Vec<Second>,
    /// Latencies in µs of the runs, by cell, condition and place in [`QUANTILES`].
    tails: BTreeMap<(usize, usize), BTreeMap<usize, Vec<f64>>>,
}

impl Traces {
    /// Reads the series.
    pub(super) fn of(plan: &Plan, analysis: &Analysis, store: &Store) -> Result<Self, Error> {
        let cells: BTreeMap<&str, usize> =
            plan.cells.iter().enumerate().map(|(index, it)| (it.id.as_str(), index)).collect();
        let conditions: BTreeMap<&str, usize> =
            plan.conditions.iter().enumerate().map(|(index, it)| (it.id.as_str(), index)).collect();
        let runs: BTreeMap<(u32, &str, &str), &Run> = analysis
            .runs
            .iter()
            .map(|run| ((run.round, run.cell.as_str(), run.condition.as_str()), run))
            .collect();
        let mut traces = Self::default();
        store.each_kept(|kept| {
            let key = (kept.round, kept.cell.as_str(), kept.condition.as_str());
            let place = cells.get(key.1).zip(conditions.get(key.2));
            if let (Some((cell, condition)), Some(run)) = (place, runs.get(&key)) {
                traces.add((*cell, *condition), run, &kept);
            }
        })?;
        Ok(traces)
    }

    fn add(&mut self, (cell, condition): (usize, usize), run: &Run, kept: &Kept) {
        let marks = &run.marks;
        if kept.series.len() > 1 {
            let has_settled = !marks.contains(&Mark::Transient);
            let series = kept.series.clone();
            let interval = run.samples.get(SERIES_INTERVAL).copied().unwrap_or(1.0);
            self.seconds.push(Second { cell, condition, series, interval, has_settled });
        }
        if marks.iter().any(Mark::excludes) {
            return;
        }
        let quantiles = self.tails.entry((cell, condition)).or_default();
        for (quantile, latency_us) in tail(&kept.raw) {
            quantiles.entry(quantile).or_default().push(latency_us);
        }
    }
}

/// Draws the bandwidth of each run by the second, with a panel per cell.
pub(super) fn by_second(source: Source<'_>, workload: usize) -> Result<Option<Figure>, Error> {
    let (cells, cut) = source.cells(workload, PANELS_MAX);
    let of = |cell: usize| source.traces.seconds.iter().filter(move |run| run.cell == cell);
    let panels: Vec<Plot> = cells
        .iter()
        .filter(|cell| of(**cell).next().is_some())
        .map(|cell| second_plot(source, *cell, &of(*cell).collect::<Vec<_>>()))
        .collect();
    if panels.is_empty() {
        return Ok(None);
    }
    let count: usize = cells.iter().map(|cell| of(*cell).count()).sum();
    let shown: BTreeSet<usize> =
        cells.iter().flat_map(|cell| of(*cell)).map(|run| run.condition).collect();
    let name = &source.plan.experiment.workloads[workload].name;
    Ok(Some(Figure {
        name: format!("c11-{name}"),
        caption: source
            .language
            .say(Message::SeriesCaption, &[("workload", name), ("n", &count), ("cut", &cut)]),
        workload: Some(workload),
        svg: plots(&source.legend(shown), &panels, 2)?,
    }))
}

fn second_plot(source: Source<'_>, cell: usize, runs: &[&Second]) -> Plot {
    let unit = Metric::Bandwidth.unit();
    let longest = runs.iter().map(|run| run.series.len()).max().unwrap_or_default();
    let most = runs.iter().flat_map(|run| &run.series).fold(0.0_f64, |most, it| most.max(*it));
    // The runs of an experiment are equally long.
    let interval = runs.iter().map(|run| run.interval).fold(0.0, f64::max);
    let group = longest.div_ceil(PLACES_MAX).max(1);
    let trails = runs.iter().map(|run| {
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64 / unit;
        let place = |index: usize, part: &[f64]| {
            let middle = (index * group) as f64 + part.len() as f64 / 2.0;
            Dot::at(middle * interval, mean(part))
        };
        let parts = run.series.chunks(group).enumerate();
        Trail {
            style: run.condition,
            join: if run.has_settled { Join::Thin } else { Join::Dashed },
            has_shapes: false,
            dots: parts.map(|(index, part)| place(index, part)).collect(),
        }
    });
    let window = steady_window(longest).filter(|_| interval >= 1.0);
    Plot {
        title: source.plan.cells[cell].label_in(source.language),
        x: Scale::linear(source.language.text(Message::AxisSecond), longest as f64 * interval),
        y: Scale::linear(source.unit(Metric::Bandwidth), most / unit),
        shade: window.map(|window| (window.start as f64, window.end as f64)),
        trails: trails.collect(),
    }
}

/// Draws the share of operations that are slower than a latency, with a panel per cell.
pub(super) fn distributions(source: Source<'_>, workload: usize) -> Result<Option<Figure>, Error> {
    let (cells, cut) = source.cells(workload, PANELS_MAX);
    let mut panels = Vec::new();
    let (mut shown, mut n) = (BTreeSet::new(), usize::MAX);
    for cell in cells {
        let mut trails = Vec::new();
        for condition in 0..source.plan.conditions.len() {
            let Some(quantiles) = source.traces.tails.get(&(cell, condition)) else { continue };
            let dots = tail_dots(quantiles);
            if !dots.is_empty() {
                n = n.min(quantiles.values().map(Vec::len).max().unwrap_or_default());
                shown.insert(condition);
                let join = Join::Solid;
                trails.push(Trail { style: condition, join, has_shapes: true, dots });
            }
        }
        if !trails.is_empty() {
            panels.push(tail_plot(source, cell, trails));
        }
    }
    if panels.is_empty() {
        return Ok(None);
    }
    let name = &source.plan.experiment.workloads[workload].name;
    Ok(Some(Figure {
        name: format!("c12-{name}"),
        caption: source
            .language
            .say(Message::TailCaption, &[("workload", name), ("n", &n), ("cut", &cut)]),
        workload: Some(workload),
        svg: plots(&source.legend(shown), &panels, 2)?,
    }))
}

/// Returns the places of quantiles: logarithms of latency and of the share beyond. Quantiles that only some
/// of the runs have are left out.
fn tail_dots(quantiles: &BTreeMap<usize, Vec<f64>>) -> Vec<Dot> {
    let most = quantiles.values().map(Vec::len).max().unwrap_or_default();
    let whole = quantiles.iter().filter(|(_, values)| values.len() == most);
    whole
        .map(|(index, values)| {
            let (x, y) = (median(values).log10(), (1.0 - QUANTILES[*index]).log10());
            let interval = median_interval(values, 1.0 - ALPHA);
            let x_range = interval.map_or((x, x), |it| (it.low.log10(), it.high.log10()));
            Dot { x, y, x_range, y_range: (y, y) }
        })
        .collect()
}

fn tail_plot(source: Source<'_>, cell: usize, trails: Vec<Trail>) -> Plot {
    let dots = || trails.iter().flat_map(|trail| &trail.dots);
    let latencies = dots().flat_map(|dot| [dot.x_range.0, dot.x_range.1]);
    let x = Scale::decimal(
        source.language.text(Message::AxisLatency),
        latencies.map(|it| 10_f64.powf(it)),
    );
    let low = dots().map(|dot| dot.y).fold(-1.0, f64::min);
    let ticks = (low.floor() as i32..=0).map(|decade| {
        let share = 100.0 * 10_f64.powi(decade);
        (f64::from(decade), format!("{share} %"))
    });
    Plot {
        title: source.plan.cells[cell].label_in(source.language),
        x,
        y: Scale::at(source.language.text(Message::AxisSlower), ticks.collect(), 0.1),
        shade: None,
        trails,
    }
}
