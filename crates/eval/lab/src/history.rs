//! Two results side by side: what changed between them, cell by cell.
//!
//! The runs of two experiments do not share rounds, so nothing pairs them, and whatever differs
//! between the two days is in the difference. Therefore: intervals are Welch's, on logarithms, each
//! at an m-th of the error for the m cells of a metric (Bonferroni); and where machine, kernel, tools,
//! loads or limits differ there is no verdict at all, only the ratio and the reason. What survives
//! such changes better are *effects*: the ratios of each result's own paired comparisons, whose
//! change is judged the same way.
//!
//! With three or more earlier results of the same plan on the same machine, what days differ by is known
//! and counted: see [`Trend`].

mod trend;

use crate::analysis::{Analysis, Further};
use crate::error::Error;
use crate::plan::Plan;
use crate::shape::Shape;
use crate::store::Store;
use base::messages::{Language, Message};
use base::statistics::{
    ALPHA, Inconclusive, Interval, Label, Verdict, between_interval, mean, welch_interval,
};
use loads::metric::Metric;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

pub use trend::{Trend, TrendRow, series};

/// Facts that identify a machine with its storage.
const HOST_FACTS: [&str; 8] = [
    "machine",
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
    pub fn of(store: &Store, further: Further) -> Result<Self, Error> {
        let plan = store.plan()?;
        let analysis = Analysis::of(&plan, store, further)?;
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

    fn cell(&self, id: &str) -> Option<usize> {
        self.plan.cells.iter().position(|cell| cell.id == id)
    }

    /// Whether another program measured it.
    pub fn is_imported(&self) -> bool {
        self.plan.experiment.engine.is_imported()
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

impl Change {
    /// Whether it is a change for the worse.
    pub fn is_worse(&self) -> bool {
        (self.mean < 0.0) == self.metric.is_throughput()
    }

    /// The verdict for people, which says that nothing is paired.
    pub fn said(&self) -> String {
        self.said_in(Language::English)
    }

    /// The same in a language.
    pub fn said_in(&self, language: Language) -> String {
        let Some(verdict) = self.verdict else {
            return language.text(Message::A19NotComparable).into();
        };
        language.say(Message::A19Unpaired, &[("verdict", &verdict.label(language))])
    }
}

/// Both results, compared.
#[derive(Clone, Debug, Serialize)]
pub struct History {
    /// Why values are not comparable: each differing fact.
    pub reasons: Vec<String>,
    /// Never: runs of two results share no rounds.
    pub is_paired: bool,
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
    notes.extend(not_told(first, second));
    let judges = anyway || reasons.is_empty();
    let mut unmatched = Vec::new();
    let mut rows = values(first, second, &mut unmatched);
    rows.extend(effects(first, second));
    judge(&mut rows, &first.plan, judges);
    let changes = rows.into_iter().map(|row| row.change).collect();
    History { reasons, is_paired: false, notes, changes, unmatched }
}

/// Facts that an imported result does not contain, so that they cannot be compared.
fn not_told(first: &Results, second: &Results) -> Option<String> {
    if !(first.is_imported() || second.is_imported()) {
        return None;
    }
    let is_told =
        |results: &Results, name: &str| results.facts.get(name).is_some_and(|it| !it.is_empty());
    let names: Vec<&str> = HOST_FACTS
        .into_iter()
        .chain(["kernel"])
        .filter(|name| is_told(first, name) != is_told(second, name))
        .collect();
    Some(format!(
        "one of them is imported: size of files, length of runs and caches are not known of it{}{}; \
         that they were alike is for you to know",
        if names.is_empty() { "" } else { ", nor " },
        names.join(", ")
    ))
}

/// What differs that has to be the same.
fn reasons(first: &Results, second: &Results) -> Vec<String> {
    let mut reasons = Vec::new();
    let is_imported = first.is_imported() || second.is_imported();
    let mut differ = |what: &str, a: String, b: String| {
        if a != b {
            reasons.push(format!("{what}: {a} / {b}"));
        }
    };
    for name in HOST_FACTS.into_iter().chain(["kernel", "engine"]) {
        let of = |results: &Results| results.facts.get(name).cloned().unwrap_or_default();
        let (a, b) = (of(first), of(second));
        // Results of before have no name of the machine, and imported ones few facts.
        let is_known = !(a.is_empty() || b.is_empty());
        if is_known || !(is_imported || name == "machine") {
            differ(name, a, b);
        }
    }
    if is_imported {
        return reasons;
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
            let shown =
                |level: &loads::level::Level| format!("{:?} {:?}", level.kind, level.file_system);
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
    /// What was measured before, by result.
    past: Vec<Vec<f64>>,
    /// What is compared with it.
    second: Vec<f64>,
}

impl Row {
    /// Interval of the change: with one earlier result, from its runs; with several, from their differences.
    fn interval(&self, confidence: f64) -> Option<Interval> {
        match self.past.as_slice() {
            [first] => welch_interval(first, &self.second, confidence),
            past => between_interval(past, &self.second, confidence),
        }
    }
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
    Row { change, past: Vec::new(), second: Vec::new() }
}

/// A condition of the first and one of the second that are set side by side, and what that is called.
struct Sides {
    first: usize,
    second: usize,
    label: String,
}

/// Conditions of the same name. Imported results know nothing of the names here: if there is none in
/// common, each condition of the first stands beside each of the second.
fn sides(first: &Results, second: &Results, unmatched: &mut Vec<String>) -> Vec<Sides> {
    let mut sides = Vec::new();
    let mut alone = Vec::new();
    for (index, condition) in first.plan.conditions.iter().enumerate() {
        match second.plan.conditions.iter().position(|it| it.id == condition.id) {
            Some(second) => {
                sides.push(Sides { first: index, second, label: condition.label.clone() });
            }
            None => alone.push(format!("condition {}", condition.id)),
        }
    }
    if sides.is_empty() && (first.is_imported() || second.is_imported()) {
        for (index, a) in first.plan.conditions.iter().enumerate() {
            for (other, b) in second.plan.conditions.iter().enumerate() {
                let label = format!("{} → {}", a.label, b.label);
                sides.push(Sides { first: index, second: other, label });
            }
        }
    } else {
        unmatched.extend(alone);
    }
    sides
}

/// The cell of the second that a cell of the first is set beside: that of the same name, or, of imported
/// results, the first that is of the same work at the same point.
fn counterpart(first: &Results, second: &Results, cell: usize, sides: &Sides) -> Option<usize> {
    if let Some(found) = second.cell(&first.plan.cells[cell].id) {
        return Some(found);
    }
    if !(first.is_imported() || second.is_imported()) {
        return None;
    }
    let shape = Shape::of(&first.plan, cell, sides.first);
    (0..second.plan.cells.len())
        .find(|other| shape.is_like(&Shape::of(&second.plan, *other, sides.second)))
}

/// Values of every cell under every condition that both have.
fn values(first: &Results, second: &Results, unmatched: &mut Vec<String>) -> Vec<Row> {
    let mut rows = Vec::new();
    let (mut met, mut met_second) = (BTreeSet::new(), BTreeSet::new());
    for side in sides(first, second, unmatched) {
        let condition = &first.plan.conditions[side.first].id;
        let other_condition = &second.plan.conditions[side.second].id;
        for (index, cell) in first.plan.cells.iter().enumerate() {
            let Some(other) = counterpart(first, second, index, &side) else { continue };
            met.insert(index);
            met_second.insert(other);
            let known = &second.plan.workload(other).metrics;
            for &metric in first.plan.workload(index).metrics.iter().filter(|it| known.contains(it))
            {
                let mut row = row(Kind::Value, &side.label, first, index, metric);
                row.past = vec![first.logs(&cell.id, condition, metric)];
                row.second = second.logs(&second.plan.cells[other].id, other_condition, metric);
                rows.push(row);
            }
        }
    }
    for (cells, met, which) in
        [(&first.plan.cells, met, "first"), (&second.plan.cells, met_second, "second")]
    {
        let alone = cells.iter().enumerate().filter(|(index, _)| !met.contains(index));
        unmatched.extend(alone.map(|(_, cell)| format!("cell {} ({which} only)", cell.id)));
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
            let Some(index) = second.cell(&cell.id) else { continue };
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
            row.past = vec![it.ratios.clone()];
            row.second.clone_from(&theirs.ratios);
            rows.push(row);
        }
    }
    rows
}

/// Judges rows: all that are printed together share the error.
fn judge(rows: &mut [Row], plan: &Plan, judges: bool) {
    let count = rows.iter().filter(|row| row.interval(1.0 - ALPHA).is_some()).count();
    let alpha = ALPHA / count.max(1) as f64;
    for row in rows {
        let metric = row.change.metric;
        let means: Vec<f64> =
            row.past.iter().filter(|it| !it.is_empty()).map(|it| mean(it)).collect();
        let (wide, narrow) = (row.interval(1.0 - alpha), row.interval(1.0 - 2.0 * alpha));
        let margin = plan.experiment.margins.of(metric);
        let verdict = match (wide, narrow) {
            (Some(wide), Some(narrow)) => decide(&wide, &narrow, margin),
            _ => Verdict::Inconclusive(Inconclusive::NoData),
        };
        let change = &mut row.change;
        change.n = (row.past.iter().map(Vec::len).sum(), row.second.len());
        if !means.is_empty() && !row.second.is_empty() {
            change.mean = mean(&row.second) - mean(&means);
        }
        change.interval = wide;
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
