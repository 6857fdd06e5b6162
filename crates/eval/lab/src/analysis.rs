//! From stored runs to verdicts: pairs by round, families by figure, and curves to draw.
//!
//! A *family* is what one table shows: a comparison, a workload and a metric. The verdicts of all of them
//! are judged together, as one report prints them all. Pairs are formed by round only: a round in which
//! either run failed, was served from a cache or had not settled counts for neither side. Of an experiment
//! that goes on, or was interrupted, verdicts are of its last look: to look whenever one likes, and to stop
//! at what one likes, would find a difference in anything. Where one number does not describe the ratio the
//! verdict is withheld ([`Flaw`]).

mod drift;
mod shape;
mod within;

use crate::ending::Ending;
use crate::error::Error;
use crate::experiment::Comparison;
use crate::plan::Plan;
use crate::store::{Run, Store};
use base::messages::Language;
use base::statistics::{
    ALPHA, Evidence, Inconclusive, Interval, Stake, Verdict, judge, marked_label, median,
    median_interval,
};
use loads::metric::Metric;
use loads::outcome::Mark;
use loads::outcome::SERIES_INTERVAL;
use shape::Tests;
use std::collections::{BTreeMap, BTreeSet};

pub use drift::{ConditionDrift, Drift};
pub use shape::{Flaw, Pair};
pub(crate) use within::Intervals;
use within::Within;

/// One cell of a family, judged.
#[derive(Clone, Debug)]
pub struct Row {
    /// Index of the cell in the plan.
    pub cell: usize,
    /// The pairs, by round.
    pub pairs: Vec<Pair>,
    /// Their log-ratios.
    pub ratios: Vec<f64>,
    /// What one number hides, the surest first.
    pub flaws: Vec<Flaw>,
    /// What they say.
    pub evidence: Evidence,
    /// What follows.
    pub verdict: Verdict,
}

impl Row {
    /// The verdict for people, marked where the interval shows another.
    pub fn label(&self, language: Language) -> String {
        marked_label(&self.evidence, self.verdict, language)
    }

    /// Whether there is anything to judge.
    fn has_data(&self) -> bool {
        self.verdict != Verdict::Inconclusive(Inconclusive::NoData)
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
    /// Counted rounds that the verdicts are of.
    pub rounds: u32,
    /// Comparisons whose verdicts a report of this prints, those of its advice included.
    pub judged_together: usize,
    /// The last round that verdicts are of, those for warming up counted; `None` is all.
    last: Option<u32>,
}

/// Which rounds verdicts are of.
enum Due {
    /// All that there are.
    All,
    /// Those up to the last look.
    To(u32),
    /// There was no look yet; the first is after so many counted rounds.
    NotBefore(u32),
}

/// Returns how many verdicts a report has beside those of its comparisons: they share its error.
pub type Further = fn(&Plan, &Analysis) -> usize;

/// A report that has no verdicts beside those of its comparisons.
pub fn no_further(_: &Plan, _: &Analysis) -> usize {
    0
}

impl Analysis {
    /// Analyses all runs; the verdicts are those of the last look that was due.
    pub fn of(plan: &Plan, store: &Store, further: Further) -> Result<Self, Error> {
        let runs = store.runs()?;
        match due(plan, store, &runs)? {
            Due::All => Self::judged((plan, store), runs, None, further),
            Due::To(last) => Self::judged((plan, store), runs, Some(last), further),
            Due::NotBefore(look) => {
                let mut analysis = Self::judged((plan, store), runs, None, further)?;
                let left = look.saturating_sub(analysis.rounds);
                let rows = analysis.families.iter_mut().flat_map(|family| &mut family.rows);
                for row in rows.filter(|row| row.verdict.is_decided()) {
                    row.verdict = Verdict::Inconclusive(Inconclusive::NotDue(left));
                }
                Ok(analysis)
            }
        }
    }

    /// Analyses the runs up to a round, from 0, those for warming up counted.
    pub fn of_rounds(
        plan: &Plan,
        store: &Store,
        last: Option<u32>,
        further: Further,
    ) -> Result<Self, Error> {
        let mut runs = store.runs()?;
        runs.retain(|run| last.is_none_or(|last| run.round <= last));
        Self::judged((plan, store), runs, last, further)
    }

    fn judged(
        (plan, store): (&Plan, &Store),
        runs: Vec<Run>,
        last: Option<u32>,
        further: Further,
    ) -> Result<Self, Error> {
        let missing: BTreeMap<String, String> =
            store.missing_conditions()?.into_iter().map(|(id, _, reason)| (id, reason)).collect();
        let within = within_runs(store, &runs, last)?;
        let values = Values::new(plan, &runs, last);
        let mut families = Vec::new();
        for (index, comparison) in plan.experiment.comparisons.iter().enumerate() {
            for (workload, load) in plan.experiment.workloads.iter().enumerate() {
                for &metric in &load.metrics {
                    let of = (index, comparison);
                    families.push(family(plan, &values, &missing, of, workload, metric));
                }
            }
        }
        let is_counted = |run: &&Run| !run.is_warm_up && last.is_none_or(|it| run.round <= it);
        let counted = runs.iter().filter(is_counted).map(|run| run.round + 1).max();
        let rounds = counted.unwrap_or(0).saturating_sub(plan.warm_up_rounds());
        let mut analysis = Self { families, runs, rounds, judged_together: 0, last };
        analysis.judge(plan, &within, further);
        Ok(analysis)
    }

    /// Judges all rows, as the parts of one report.
    fn judge(
        &mut self,
        plan: &Plan,
        within: &BTreeMap<(String, String), Within>,
        further: Further,
    ) {
        let rows = || self.families.iter().flat_map(|family| &family.rows);
        let compared = rows().filter(|row| row.ratios.len() > 1).count();
        self.judged_together = compared + further(plan, self);
        let stake = self.stake(plan);
        let conditions = plan.conditions.len();
        let tests_all: usize = rows().map(|row| Tests::of(&row.pairs, conditions).count()).sum();
        for family in &mut self.families {
            let comparison = &plan.experiment.comparisons[family.comparison];
            let margin = plan.experiment.margins.of(family.metric);
            let sides = plan.condition(&comparison.baseline).zip(plan.condition(&comparison.other));
            for row in &mut family.rows {
                (row.evidence, row.verdict) = judge(&row.ratios, margin, stake);
                row.flaws = Tests::of(&row.pairs, conditions).found(tests_all);
                if let Some((baseline, other)) = sides {
                    let sides = [baseline, other];
                    let of = |condition: usize| {
                        let id = plan.conditions[condition].id.clone();
                        within.get(&(plan.cells[row.cell].id.clone(), id))
                    };
                    row.flaws.extend(shape::within(sides.map(of), sides));
                }
                if let (Some(flaw), true) = (row.flaws.first(), row.has_data()) {
                    row.verdict = Verdict::Inconclusive(Inconclusive::Withheld(flaw.kind));
                }
            }
        }
    }

    /// The share of the report's error that each of its judgements has.
    pub fn stake(&self, plan: &Plan) -> Stake {
        Stake::of_report(plan.experiment.timing.looks.count(), self.judged_together)
    }

    /// Whether verdicts count a round.
    pub fn counts(&self, round: u32) -> bool {
        self.last.is_none_or(|last| round <= last)
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

/// Which rounds verdicts are of.
fn due(plan: &Plan, store: &Store, runs: &[Run]) -> Result<Due, Error> {
    let ending = store.get("ending")?;
    let is_over = ending.is_some_and(|it| it != Ending::Interrupted.label());
    if is_over || plan.experiment.engine.is_imported() {
        return Ok(Due::All);
    }
    let warm_up = plan.warm_up_rounds();
    let begun = runs.iter().map(|run| run.round + 1).max().unwrap_or_default();
    let begun = begun.saturating_sub(warm_up);
    let looks = &plan.experiment.timing.looks;
    // The round that was begun last may lack runs.
    Ok(match looks.rounds().iter().rev().find(|look| **look < begun) {
        Some(look) => Due::To(warm_up + look - 1),
        None => Due::NotBefore(looks.rounds_min()),
    })
}

/// What happened within the runs of each cell and condition.
fn within_runs(
    store: &Store,
    runs: &[Run],
    last: Option<u32>,
) -> Result<BTreeMap<(String, String), Within>, Error> {
    let by_place: BTreeMap<(u32, &str, &str), &Run> = runs
        .iter()
        .map(|run| ((run.round, run.cell.as_str(), run.condition.as_str()), run))
        .collect();
    let mut within: BTreeMap<(String, String), Within> = BTreeMap::new();
    store.each_series(|kept| {
        let run = by_place.get(&(kept.round, kept.cell.as_str(), kept.condition.as_str()));
        let Some(run) = run.filter(|run| last.is_none_or(|last| run.round <= last)) else { return };
        if run.marks.iter().any(|mark| mark.excludes() && *mark != Mark::Transient) {
            return;
        }
        let sample = |name| run.samples.get(name).copied();
        let earlier = Intervals {
            all: sample("discarded_intervals").unwrap_or_default() as usize,
            stalled: sample("discarded_intervals_stalled").unwrap_or_default() as usize,
            longest_seconds: sample("discarded_stall_longest_s").unwrap_or_default(),
        };
        let seconds = sample(SERIES_INTERVAL).unwrap_or(1.0);
        within.entry((kept.cell, kept.condition)).or_default().add(&kept.series, seconds, earlier);
    })?;
    Ok(within)
}

/// A run, and the condition that ran before it.
type Ran<'a> = (&'a Run, Option<usize>);

/// Usable runs by cell, condition and round.
struct Values<'a> {
    runs: BTreeMap<(&'a str, &'a str), BTreeMap<u32, Ran<'a>>>,
    /// Whether the order of the runs is known.
    has_order: bool,
}

impl<'a> Values<'a> {
    /// `runs` are in the order in which they were made.
    fn new(plan: &Plan, runs: &'a [Run], last: Option<u32>) -> Self {
        let index: BTreeMap<&str, usize> =
            plan.conditions.iter().enumerate().map(|(index, it)| (it.id.as_str(), index)).collect();
        let has_order = !plan.experiment.engine.is_imported();
        let mut values: BTreeMap<(&str, &str), BTreeMap<u32, Ran<'_>>> = BTreeMap::new();
        let mut before = None;
        for run in runs.iter().filter(|run| last.is_none_or(|last| run.round <= last)) {
            if run.is_usable() {
                let key = (run.cell.as_str(), run.condition.as_str());
                values.entry(key).or_default().insert(run.round, (run, before));
            }
            before = index.get(run.condition.as_str()).copied().filter(|_| has_order);
        }
        Self { runs: values, has_order }
    }

    /// The pairs of rounds in which both sides count.
    fn pairs(&self, cell: &str, baseline: &str, other: &str, metric: Metric) -> Vec<Pair> {
        let (Some(baseline), Some(other)) =
            (self.runs.get(&(cell, baseline)), self.runs.get(&(cell, other)))
        else {
            return Vec::new();
        };
        baseline
            .iter()
            .filter_map(|(round, (run, before))| {
                let (pair, before_other) = other.get(round)?;
                Some(Pair {
                    round: *round,
                    ratio: (pair.value(metric)? / run.value(metric)?).ln(),
                    is_baseline_first: self.has_order && run.position < pair.position,
                    before: [*before, *before_other],
                })
            })
            .collect()
    }
}

/// A family whose rows are not judged yet.
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
    let margin = plan.experiment.margins.of(metric);
    let cells = (0..plan.cells.len()).filter(|&cell| plan.cells[cell].workload == workload);
    family.rows = cells
        .map(|cell| {
            let pairs = values.pairs(&plan.cells[cell].id, ids[0], ids[1], metric);
            let ratios = pairs.iter().map(|pair| pair.ratio).collect();
            let (evidence, verdict) = judge(&[], margin, Stake::of_report(1, 1));
            Row { cell, pairs, ratios, flaws: Vec::new(), evidence, verdict }
        })
        .collect();
    family
}

#[cfg(test)]
mod tests;
