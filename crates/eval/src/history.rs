//! Two results side by side: what changed between them, cell by cell.
//!
//! The runs of two experiments do not share rounds, so nothing pairs them, and whatever differs
//! between the two days is in the difference. Therefore: intervals are Welch's, on logarithms, each
//! at an m-th of the error for the m cells of a metric (Bonferroni); and where machine, kernel, tools,
//! loads or limits differ there is no verdict at all, only the ratio and the reason. What survives
//! such changes better are *effects*: the ratios of each result's own paired comparisons, whose
//! change is judged the same way.

use crate::analysis::Analysis;
use crate::error::Error;
use crate::experiment::Metric;
use crate::messages::Language;
use crate::plan::{Cell, Plan};
use crate::statistics::{ALPHA, Inconclusive, Interval, Verdict, mean, welch_interval};
use crate::store::Store;
use serde::Serialize;
use std::collections::BTreeMap;

/// Facts about the machine that have to be the same.
const MACHINE_FACTS: [&str; 8] = [
    "kernel",
    "CPUs",
    "memory",
    "CPU governor",
    "file system",
    "scheduler",
    "rotational",
    "mitigations",
];

/// One result.
#[derive(Debug)]
pub struct Results {
    /// Its plan.
    pub plan: Plan,
    /// What it says.
    pub analysis: Analysis,
    /// Facts by name: the machine's, and the engine's version.
    pub facts: BTreeMap<String, String>,
    /// The version of this program that made it.
    pub version: String,
    /// When it was begun.
    pub started: String,
}

impl Results {
    /// Reads a result.
    pub fn of(store: &Store) -> Result<Self, Error> {
        let plan = store.plan()?;
        let analysis = Analysis::of(&plan, store)?;
        let mut facts: BTreeMap<String, String> = store.environment()?.facts.into_iter().collect();
        facts.insert("engine".into(), store.get("engine")?.unwrap_or_default());
        let version = store.get("tsumugi")?.unwrap_or_default();
        let started = store.get("started")?.unwrap_or_default();
        Ok(Self { plan, analysis, facts, version, started })
    }

    /// The logarithms of a cell's values under a condition.
    fn logs(&self, cell: &str, condition: &str, metric: Metric) -> Vec<f64> {
        let runs = self.analysis.runs.iter();
        let usable =
            runs.filter(|run| run.is_usable() && run.cell == cell && run.condition == condition);
        usable.filter_map(|run| run.value(metric)).map(f64::ln).collect()
    }

    fn cell(&self, id: &str) -> Option<(usize, &Cell)> {
        self.plan.cells.iter().enumerate().find(|(_, cell)| cell.id == id)
    }
}

/// What is compared in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The values under a condition.
    Value,
    /// The ratio of a comparison.
    Effect,
}

/// One cell of both results.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// What is compared.
    pub kind: Kind,
    /// The condition, or the comparison.
    pub of: String,
    /// The workload.
    pub workload: String,
    /// The cell, for people.
    pub cell: String,
    /// The metric.
    pub metric: Metric,
    /// Runs or pairs of the first and of the second.
    pub n: (usize, usize),
    /// ln(second / first).
    pub mean: f64,
    /// 95 % interval of it, widened for the number of cells.
    pub interval: Option<Interval>,
    /// What follows; `None` where the results are not comparable.
    pub verdict: Option<Verdict>,
}

/// Both results, compared.
#[derive(Clone, Debug, Serialize)]
pub struct History {
    /// Why values are not comparable: each differing fact.
    pub reasons: Vec<String>,
    /// Differences that may be just what is asked about: dates and versions of this program.
    pub notes: Vec<String>,
    /// The cells that both have.
    pub changes: Vec<Change>,
    /// Cells and conditions that only one of them has.
    pub unmatched: Vec<String>,
}

/// Compares two results; `anyway` gives verdicts even where machine or limits differ.
pub fn compare(first: &Results, second: &Results, anyway: bool) -> History {
    let reasons = reasons(first, second);
    let mut notes = vec![format!(
        "first begun {} by tsumugi {}, second begun {} by tsumugi {}",
        first.started, first.version, second.started, second.version
    )];
    notes.push(
        "the two are not paired: what differed between the two times is in each change, so no \
         confidence is strong"
            .into(),
    );
    let judges = anyway || reasons.is_empty();
    let mut changes = Vec::new();
    let mut unmatched = Vec::new();
    for kind in [Kind::Value, Kind::Effect] {
        let mut rows = match kind {
            Kind::Value => values(first, second, &mut unmatched),
            Kind::Effect => effects(first, second),
        };
        judge(&mut rows, &first.plan, judges);
        changes.extend(rows.into_iter().map(|row| row.change));
    }
    History { reasons, notes, changes, unmatched }
}

/// What differs that has to be the same.
fn reasons(first: &Results, second: &Results) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut differ = |what: &str, a: String, b: String| {
        if a != b {
            reasons.push(format!("{what}: {a} / {b}"));
        }
    };
    for name in MACHINE_FACTS.into_iter().chain(["engine"]) {
        let of = |results: &Results| results.facts.get(name).cloned().unwrap_or_default();
        differ(name, of(first), of(second));
    }
    let (a, b) = (&first.plan.experiment, &second.plan.experiment);
    differ("file size", a.file_bytes.to_string(), b.file_bytes.to_string());
    let timing =
        |it: &crate::experiment::Timing| format!("{:?} after {:?} of ramp", it.run, it.ramp);
    differ("length of a run", timing(&a.timing), timing(&b.timing));
    for (name, factor) in &a.factors {
        for (level_name, level) in factor {
            let Some(other) = b.factors.get(name).and_then(|it| it.get(level_name)) else {
                continue;
            };
            let shown = |level: &crate::experiment::Level| {
                format!("{:?} {:?}", level.kind, level.file_system)
            };
            differ(&format!("level {name}.{level_name}"), shown(level), shown(other));
        }
    }
    for load in &a.workloads {
        if let Some(other) = b.workloads.iter().find(|it| it.name == load.name) {
            differ(
                &format!("workload {}", load.name),
                load.describe(Language::English),
                other.describe(Language::English),
            );
        }
    }
    reasons
}

/// A row before it is judged.
struct Row {
    change: Change,
    first: Vec<f64>,
    second: Vec<f64>,
}

fn row(kind: Kind, of: &str, results: &Results, cell: usize, metric: Metric) -> Row {
    let it = &results.plan.cells[cell];
    let change = Change {
        kind,
        of: of.into(),
        workload: results.plan.experiment.workloads[it.workload].name.clone(),
        cell: it.label(),
        metric,
        n: (0, 0),
        mean: 0.0,
        interval: None,
        verdict: None,
    };
    Row { change, first: Vec::new(), second: Vec::new() }
}

/// Values of every cell under every condition that both have.
fn values(first: &Results, second: &Results, unmatched: &mut Vec<String>) -> Vec<Row> {
    let mut rows = Vec::new();
    for condition in &first.plan.conditions {
        if !second.plan.conditions.iter().any(|it| it.id == condition.id) {
            unmatched.push(format!("condition {}", condition.id));
            continue;
        }
        for (index, cell) in first.plan.cells.iter().enumerate() {
            if second.cell(&cell.id).is_none() {
                continue;
            }
            for &metric in &first.plan.workload(index).metrics {
                let mut row = row(Kind::Value, &condition.label, first, index, metric);
                row.first = first.logs(&cell.id, &condition.id, metric);
                row.second = second.logs(&cell.id, &condition.id, metric);
                rows.push(row);
            }
        }
    }
    for cell in first.plan.cells.iter().filter(|it| second.cell(&it.id).is_none()) {
        unmatched.push(format!("cell {} (first only)", cell.id));
    }
    for cell in second.plan.cells.iter().filter(|it| first.cell(&it.id).is_none()) {
        unmatched.push(format!("cell {} (second only)", cell.id));
    }
    rows
}

/// Ratios of every comparison that both have, of the same two conditions.
fn effects(first: &Results, second: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for family in &first.analysis.families {
        let comparison = &first.plan.experiment.comparisons[family.comparison];
        for it in &family.rows {
            let cell = &first.plan.cells[it.cell];
            let Some((index, _)) = second.cell(&cell.id) else { continue };
            let other = second.analysis.families.iter().find(|other| {
                let theirs = &second.plan.experiment.comparisons[other.comparison];
                theirs.baseline == comparison.baseline
                    && theirs.other == comparison.other
                    && other.metric == family.metric
                    && other.rows.iter().any(|row| row.cell == index)
            });
            let theirs = other.and_then(|other| other.rows.iter().find(|row| row.cell == index));
            let Some(theirs) = theirs else { continue };
            let mut row = row(Kind::Effect, &comparison.name, first, it.cell, family.metric);
            row.first.clone_from(&it.ratios);
            row.second.clone_from(&theirs.ratios);
            rows.push(row);
        }
    }
    rows
}

/// Judges rows; those of one metric share the error.
fn judge(rows: &mut [Row], plan: &Plan, judges: bool) {
    let mut counts: BTreeMap<Metric, usize> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.first.len() > 1 && row.second.len() > 1) {
        *counts.entry(row.change.metric).or_default() += 1;
    }
    for row in rows {
        let change = &mut row.change;
        change.n = (row.first.len(), row.second.len());
        let alpha = ALPHA / counts.get(&change.metric).copied().unwrap_or(1) as f64;
        if !row.first.is_empty() && !row.second.is_empty() {
            change.mean = mean(&row.second) - mean(&row.first);
        }
        change.interval = welch_interval(&row.first, &row.second, 1.0 - alpha);
        let narrow = welch_interval(&row.first, &row.second, 1.0 - 2.0 * alpha);
        let margin = plan.experiment.margins.of(change.metric);
        let verdict = match (change.interval, narrow) {
            (Some(wide), Some(narrow)) => decide(&wide, &narrow, margin),
            _ => Verdict::Inconclusive(Inconclusive::NoData),
        };
        change.verdict = judges.then_some(verdict);
    }
}

fn decide(wide: &Interval, narrow: &Interval, margin: f64) -> Verdict {
    if narrow.is_within(margin) {
        Verdict::Equivalent
    } else if wide.low > margin || wide.high < -margin {
        Verdict::DifferentMatters
    } else if !wide.contains(0.0) {
        Verdict::DifferentSmall
    } else {
        Verdict::Inconclusive(Inconclusive::NeedsMore(None))
    }
}

#[cfg(test)]
mod tests;
