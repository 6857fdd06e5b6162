//! Advice for the user's own pattern, such as `write shared 1MiB x 64 ranks`, from stored results.
//!
//! The pattern is a list of words, see [`Asked::parse`]. A stored cell matches if it has the same kind of
//! work and if its size, number of jobs and depth are each within an octave. The nearest cells come first, by
//! the distance in octaves. The advice is that of all rules on the runs of the same work in those results, of
//! any size.

mod words;

use super::{Card, Confidence, THRESHOLDS, advise};
use base::messages::Language;
use base::statistics::{ALPHA, median, median_interval};
use lab::history::{Results, Trend, series};
use lab::shape::Shape;
use serde::Serialize;
use std::fmt::Write as _;

pub use words::Asked;

/// The largest number of cells that are shown.
const CELLS_MAX: usize = 12;

/// A measured value.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Name and unit.
    pub metric: &'static str,
    /// Median over the runs that count, in that unit.
    pub median: f64,
    /// The 95 % interval, if there are enough runs.
    pub interval: Option<(f64, f64)>,
    /// Runs that count.
    pub n: usize,
}

/// A stored cell that matches the pattern.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The name of the result.
    pub source: String,
    /// Whether another program measured it.
    pub is_imported: bool,
    /// The condition.
    pub condition: String,
    /// Workload and point.
    pub cell: String,
    /// The distance of size, jobs and depth from the pattern, in octaves; 0 is an exact match.
    pub octaves: f64,
    /// The measured values.
    pub figures: Vec<Figure>,
}

/// Advice from one result.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// The name of the result.
    pub source: String,
    /// The advice.
    pub cards: Vec<Card>,
}

/// The answer.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The pattern as it was understood.
    pub asked: String,
    /// Cells that match it, the nearest first.
    pub found: Vec<Found>,
    /// The number of cells of the same work that are too far away.
    pub too_far: usize,
    /// Advice from results with the same work.
    pub advice: Vec<Advice>,
    /// The experiment to run, if no cell matches.
    pub run: Option<String>,
}

/// Results with their display names.
#[derive(Debug)]
pub struct Named {
    /// The name.
    pub source: String,
    /// The result.
    pub results: Results,
}

/// Returns the cards of a result, with the other results as its history.
pub fn cards(all: &[Named], of: usize) -> Vec<Card> {
    let results = &all[of].results;
    let all: Vec<&Results> = all.iter().map(|it| &it.results).collect();
    let trend = series(&all)
        .into_iter()
        .find(|group| group.last().is_some_and(|last| std::ptr::eq(*last, results)))
        .and_then(|group| Trend::of(&group));
    advise(&results.plan, &results.analysis, trend.as_ref(), Language::English)
}

/// Answers a pattern from results.
pub fn answer(asked: &Asked, all: &[Named]) -> Answer {
    let mut found = Vec::new();
    let mut too_far = 0;
    let mut advice = Vec::new();
    for it in all {
        let (near, far) = cells(asked, it);
        too_far += far;
        if !near.is_empty() || far > 0 {
            advice.push(Advice { source: it.source.clone(), cards: narrowed(asked, &it.results) });
        }
        found.extend(near);
    }
    found.sort_by(|a, b| a.octaves.total_cmp(&b.octaves));
    let run = found.is_empty().then(|| to_run(asked));
    found.truncate(CELLS_MAX);
    Answer { asked: asked.to_string(), found, too_far, advice, run }
}

/// Returns the cells with runs that match the pattern, and the number of cells of the same work that are too
/// far away.
fn cells(asked: &Asked, it: &Named) -> (Vec<Found>, usize) {
    let plan = &it.results.plan;
    let (mut near, mut far) = (Vec::new(), 0);
    for cell in 0..plan.cells.len() {
        for condition in 0..plan.conditions.len() {
            let shape = Shape::of(plan, cell, condition);
            if !asked.is_work_of(&shape) {
                continue;
            }
            let figures = figures(&it.results, cell, condition);
            if figures.is_empty() {
                continue;
            }
            let Some(octaves) = asked.octaves(&shape, THRESHOLDS.octaves_max) else {
                far += 1;
                continue;
            };
            near.push(Found {
                source: it.source.clone(),
                is_imported: it.results.is_imported(),
                condition: plan.conditions[condition].label.clone(),
                cell: format!("{} {}", plan.workload(cell).name, plan.cells[cell].label()),
                octaves,
                figures,
            });
        }
    }
    (near, far)
}

fn figures(results: &Results, cell: usize, condition: usize) -> Vec<Figure> {
    let plan = &results.plan;
    let (id, condition) = (&plan.cells[cell].id, &plan.conditions[condition].id);
    let runs = results.analysis.runs.iter();
    let runs: Vec<_> = runs
        .filter(|run| run.is_usable() && run.cell == *id && run.condition == *condition)
        .collect();
    let mut figures = Vec::new();
    for metric in &plan.workload(cell).metrics {
        let values: Vec<f64> =
            runs.iter().filter_map(|run| run.value(*metric)).map(|it| it / metric.unit()).collect();
        if !values.is_empty() {
            let interval = median_interval(&values, 1.0 - ALPHA).map(|it| (it.low, it.high));
            let (metric, n) = (metric.label(), values.len());
            figures.push(Figure { metric, median: median(&values), interval, n });
        }
    }
    figures
}

/// Returns the cards of a result for the requested work: cards with a finding, and cards with missing
/// measurements that the pattern asks for by name.
fn narrowed(asked: &Asked, results: &Results) -> Vec<Card> {
    let plan = &results.plan;
    let mut analysis = results.analysis.clone();
    let is_work = |workload: usize, any_place: bool| {
        (0..plan.cells.len()).filter(|cell| plan.cells[*cell].workload == workload).any(|cell| {
            (0..plan.conditions.len()).any(|condition| {
                let shape = Shape::of(plan, cell, condition);
                if any_place { asked.is_pattern_of(&shape) } else { asked.is_work_of(&shape) }
            })
        })
    };
    // A comparison has a side outside the pattern: it is kept for the workload's sake.
    analysis.families.retain(|family| is_work(family.workload, true));
    analysis.runs.retain(|run| {
        let cell = plan.cells.iter().position(|it| it.id == run.cell);
        let condition = plan.conditions.iter().position(|it| it.id == run.condition);
        match (cell, condition) {
            (Some(cell), Some(condition)) => asked.is_work_of(&Shape::of(plan, cell, condition)),
            _ => false,
        }
    });
    let asked_for = asked.rules();
    let mut cards = advise(plan, &analysis, None, Language::English);
    cards.retain(|card| card.confidence != Confidence::NotMeasured || asked_for.contains(&card.id));
    cards
}

/// Returns the experiment to run, as a file's workload and a command.
fn to_run(asked: &Asked) -> String {
    let (file, engine) = asked.experiment();
    let is_ior = engine.is(&loads::ior::ENGINE);
    let mut text = format!(
        "Not measured. In a copy of {file}, put this in place of its workloads, then: tsumugi eval run \
         COPY\n\n[[workload]]\nname = \"asked\"\nrw = \"{}\"\n",
        asked.pattern.map_or("read", |pattern| match (is_ior, pattern.writes()) {
            (true, true) => "write",
            (true, false) => "read",
            (false, _) => pattern.name(),
        })
    );
    let _ = writeln!(text, "bs = [\"{}\"]", asked.block_bytes.unwrap_or(1 << 20));
    let _ = writeln!(text, "jobs = [{}]", asked.jobs.unwrap_or(1));
    if let (Some(depth), true) = (asked.depth, !is_ior) {
        let _ = writeln!(text, "depth = [{depth}]");
    }
    if is_ior {
        let is_random = asked.pattern.is_some_and(|it| it.name().starts_with("rand"));
        let options = [
            (is_random, "randomOffset = 1"),
            (asked.has_own_files == Some(true), "filePerProc = 1"),
            (asked.is_collective == Some(true), "collective = 1"),
        ];
        let set: Vec<&str> = options.iter().filter(|it| it.0).map(|it| it.1).collect();
        if !set.is_empty() {
            let _ = writeln!(text, "options = {{ {} }}", set.join(", "));
        }
    }
    let _ = writeln!(text, "metrics = [\"bandwidth\", \"iops\"]");
    text
}

#[cfg(test)]
mod tests;
