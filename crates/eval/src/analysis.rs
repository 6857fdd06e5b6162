//! From stored runs to verdicts: pairs by round, families by figure, and curves to draw.
//!
//! A *family* is what one figure shows: a comparison, a workload and a metric; its cells are judged
//! together. Pairs are formed by round only: a round in which either run failed, was served from a
//! cache or had not settled counts for neither side.

mod drift;

use crate::error::Error;
use crate::experiment::{Comparison, Metric};
use crate::messages::Language;
use crate::plan::Plan;
use crate::statistics::{
    ALPHA, Evidence, Inconclusive, Interval, Verdict, judge_family, median, median_interval,
};
use crate::store::{Run, Store};
use std::collections::{BTreeMap, BTreeSet};

pub use drift::Drift;

/// One cell of a family, judged.
#[derive(Clone, Debug)]
pub struct Row {
    /// Index of the cell in the plan.
    pub cell: usize,
    /// The paired log-ratios, by round.
    pub ratios: Vec<f64>,
    /// What they say.
    pub evidence: Evidence,
    /// What follows.
    pub verdict: Verdict,
}

impl Row {
    /// The verdict for people, marked where the interval shows another.
    pub fn label(&self, language: Language) -> String {
        self.evidence.label(self.verdict, language)
    }

    /// Whether it is marked.
    pub fn is_held_back(&self) -> bool {
        self.evidence.is_held_back(self.verdict)
    }
}

/// One comparison on one workload by one metric.
#[derive(Clone, Debug)]
pub struct Family {
    /// Index of the comparison in the experiment.
    pub comparison: usize,
    /// Index of the workload.
    pub workload: usize,
    /// The metric.
    pub metric: Metric,
    /// The cells.
    pub rows: Vec<Row>,
    /// Why there is nothing, if a condition is not available.
    pub missing: Option<String>,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Index of the cell.
    pub cell: usize,
    /// Median over rounds, in the database's unit.
    pub median: f64,
    /// 95 % order-statistic interval of the median, if there are rounds enough.
    pub interval: Option<Interval>,
    /// Rounds that count.
    pub n: usize,
}

/// Everything that the results say.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// Judged families.
    pub families: Vec<Family>,
    /// All stored runs.
    pub runs: Vec<Run>,
    /// Counted rounds that were begun.
    pub rounds: u32,
}

impl Analysis {
    /// Analyses all runs.
    pub fn of(plan: &Plan, store: &Store) -> Result<Self, Error> {
        Self::of_rounds(plan, store, None)
    }

    /// Analyses the runs up to a round, from 0, those for warming up counted.
    pub fn of_rounds(plan: &Plan, store: &Store, last: Option<u32>) -> Result<Self, Error> {
        let mut runs = store.runs()?;
        runs.retain(|run| last.is_none_or(|last| run.round <= last));
        let missing: BTreeMap<String, String> =
            store.missing_conditions()?.into_iter().map(|(id, _, reason)| (id, reason)).collect();
        let values = Values::new(&runs);
        let mut families = Vec::new();
        for (index, comparison) in plan.experiment.comparisons.iter().enumerate() {
            for (workload, load) in plan.experiment.workloads.iter().enumerate() {
                for &metric in &load.metrics {
                    families.push(family(
                        plan,
                        &values,
                        &missing,
                        (index, comparison),
                        workload,
                        metric,
                    ));
                }
            }
        }
        let counted = runs.iter().filter(|run| !run.is_warm_up).map(|run| run.round + 1).max();
        let rounds = counted.unwrap_or(0).saturating_sub(plan.warm_up_rounds());
        Ok(Self { families, runs, rounds })
    }

    /// Workloads and conditions of comparisons that could be decided and are not.
    pub fn open(&self, plan: &Plan) -> BTreeSet<(usize, usize)> {
        let is_open = |family: &&Family| {
            family.missing.is_none() && family.rows.iter().any(|row| !row.verdict.is_decided())
        };
        let mut open = BTreeSet::new();
        for family in self.families.iter().filter(is_open) {
            let comparison = &plan.experiment.comparisons[family.comparison];
            for levels in [&comparison.baseline, &comparison.other] {
                open.extend(plan.condition(levels).map(|condition| (family.workload, condition)));
            }
        }
        open
    }

    /// Number of judged cells over all families.
    pub fn rows_count(&self) -> usize {
        self.families.iter().map(|family| family.rows.len()).sum()
    }

    /// Number of those that are decided.
    pub fn decided_count(&self) -> usize {
        let rows = self.families.iter().flat_map(|family| &family.rows);
        rows.filter(|row| row.verdict.is_decided()).count()
    }

    /// The best bandwidth of the local condition that this remote one is compared with.
    pub fn local_peak(&self, plan: &Plan, workload: usize, condition: usize) -> Option<f64> {
        let comparisons = plan.experiment.comparisons.iter();
        let local = comparisons
            .filter(|it| it.role.as_deref() == Some("remote-local"))
            .find(|it| plan.condition(&it.other) == Some(condition))
            .and_then(|it| plan.condition(&it.baseline))?;
        let curve = self.curve(plan, workload, local, Metric::Bandwidth);
        curve.iter().map(|point| point.median).max_by(f64::total_cmp)
    }

    /// The values of a condition over the cells of a workload.
    pub fn curve(
        &self,
        plan: &Plan,
        workload: usize,
        condition: usize,
        metric: Metric,
    ) -> Vec<Point> {
        let id = &plan.conditions[condition].id;
        let mut points = Vec::new();
        for (cell, it) in plan.cells.iter().enumerate().filter(|(_, it)| it.workload == workload) {
            let values: Vec<f64> = self
                .runs
                .iter()
                .filter(|run| run.is_usable() && run.condition == *id && run.cell == it.id)
                .filter_map(|run| run.value(metric))
                .collect();
            if !values.is_empty() {
                let interval = median_interval(&values, 1.0 - ALPHA);
                points.push(Point { cell, median: median(&values), interval, n: values.len() });
            }
        }
        points
    }
}

/// Usable runs by cell, condition and round.
struct Values<'a>(BTreeMap<(&'a str, &'a str), BTreeMap<u32, &'a Run>>);

impl<'a> Values<'a> {
    fn new(runs: &'a [Run]) -> Self {
        let mut values: BTreeMap<(&str, &str), BTreeMap<u32, &Run>> = BTreeMap::new();
        for run in runs.iter().filter(|run| run.is_usable()) {
            let key = (run.cell.as_str(), run.condition.as_str());
            values.entry(key).or_default().insert(run.round, run);
        }
        Self(values)
    }

    /// The log-ratios of rounds in which both sides count.
    fn ratios(&self, cell: &str, baseline: &str, other: &str, metric: Metric) -> Vec<f64> {
        let (Some(baseline), Some(other)) =
            (self.0.get(&(cell, baseline)), self.0.get(&(cell, other)))
        else {
            return Vec::new();
        };
        baseline
            .iter()
            .filter_map(|(round, run)| {
                let pair = other.get(round)?;
                Some((pair.value(metric)? / run.value(metric)?).ln())
            })
            .collect()
    }
}

fn family(
    plan: &Plan,
    values: &Values<'_>,
    missing: &BTreeMap<String, String>,
    (index, comparison): (usize, &Comparison),
    workload: usize,
    metric: Metric,
) -> Family {
    let mut family = Family { comparison: index, workload, metric, rows: vec![], missing: None };
    let mut ids = Vec::new();
    for levels in [&comparison.baseline, &comparison.other] {
        // The file was checked: each side names a condition.
        let Some(condition) = plan.condition(levels) else { return family };
        let condition = &plan.conditions[condition];
        if let Some(reason) = missing.get(&condition.id) {
            family.missing = Some(format!("{}: {reason}", condition.label));
            return family;
        }
        ids.push(condition.id.as_str());
    }
    let cells: Vec<usize> =
        (0..plan.cells.len()).filter(|&cell| plan.cells[cell].workload == workload).collect();
    let ratios: Vec<Vec<f64>> = cells
        .iter()
        .map(|&cell| values.ratios(&plan.cells[cell].id, ids[0], ids[1], metric))
        .collect();
    let margin = plan.experiment.margins.of(metric);
    let looks = plan.experiment.timing.looks.count();
    let judged = judge_family(&ratios, margin, looks, ALPHA);
    family.rows = cells
        .into_iter()
        .zip(ratios)
        .zip(judged)
        .map(|((cell, ratios), (evidence, verdict))| {
            let verdict = if ratios.is_empty() {
                Verdict::Inconclusive(Inconclusive::NoData)
            } else {
                verdict
            };
            Row { cell, ratios, evidence, verdict }
        })
        .collect();
    family
}
