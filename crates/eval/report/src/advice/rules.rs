//! The evaluation of each rule.

pub(super) mod bound;
mod choice;
pub(super) mod containers;
pub(super) mod cost;
pub(super) mod depth;
pub(super) mod parallel;
pub(super) mod queues;
pub(super) mod regression;
pub(super) mod stability;
pub(super) mod stripes;
pub(super) mod trust;

use super::{Basis, Confidence, Facts, Finding};
use base::messages::{Language, Message};
use base::statistics::{Inconclusive, Verdict, median, median_interval};
use base::units;
use lab::analysis::{Family, Point, Row};
use loads::metric::Metric;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

/// The largest number of lines of evidence on a card; the tables have the rest.
const EVIDENCE_MAX: usize = 12;

/// A row with the data that describes it.
#[derive(Clone, Copy)]
struct Told<'a> {
    family: &'a Family,
    row: &'a Row,
}

impl Told<'_> {
    /// Returns the effect with its sign turned so that positive is better.
    fn gain(&self) -> f64 {
        if self.family.metric.is_throughput() {
            self.row.evidence.mean
        } else {
            -self.row.evidence.mean
        }
    }

    fn line(&self, facts: &Facts<'_>) -> String {
        let workload = facts.plan.cells[self.row.cell].workload;
        let evidence = &self.row.evidence;
        facts.say(
            Message::AdviceLine,
            &[
                ("comparison", &facts.plan.experiment.comparisons[self.family.comparison].name),
                ("workload", &facts.plan.experiment.workloads[workload].name),
                ("cell", &facts.cell(self.row.cell)),
                ("metric", &facts.text(self.family.metric.message())),
                ("change", &units::percent(evidence.mean)),
                ("interval", &units::interval_behind(evidence.interval)),
                ("n", &evidence.n),
                ("verdict", &self.row.label(facts.language)),
            ],
        )
    }
}

impl Facts<'_> {
    /// Returns a message without values.
    fn text(&self, message: Message) -> String {
        self.language.text(message).into()
    }

    /// Returns a message with its values.
    fn say(&self, message: Message, values: &[(&str, &dyn Display)]) -> String {
        self.language.say(message, values)
    }

    /// Returns a cell by its index.
    fn cell(&self, cell: usize) -> String {
        self.plan.cells[cell].label_in(self.language)
    }

    /// Joins sentences.
    fn sentences(&self, all: &[String]) -> String {
        all.join(if self.language == Language::Japanese { "" } else { " " })
    }

    /// Returns the evidence of a finding on all measurements.
    fn all(&self) -> Basis {
        let usable = self.analysis.runs.iter().filter(|run| run.is_usable());
        let cells: BTreeSet<&str> = usable.map(|run| run.cell.as_str()).collect();
        let mut rows = self.analysis.families.iter().flat_map(|family| &family.rows);
        Basis { cells: cells.len(), is_withheld: rows.any(|row| !row.flaws.is_empty()) }
    }

    /// Returns that a rule has nothing to judge.
    fn not_measured(&self, why: Message) -> Finding {
        Finding::not_measured(self.language.text(why))
    }

    /// Returns a condition's value in a cell by round.
    fn by_round(&self, cell: usize, condition: usize, metric: Metric) -> BTreeMap<u32, f64> {
        self.samples(cell, condition, metric.name())
    }

    /// Returns any stored value by round.
    fn samples(&self, cell: usize, condition: usize, name: &str) -> BTreeMap<u32, f64> {
        let (cell, condition) = (&self.plan.cells[cell].id, &self.plan.conditions[condition].id);
        let runs = self.analysis.runs.iter();
        runs.filter(|run| run.is_usable() && run.cell == *cell && run.condition == *condition)
            .filter(|run| self.analysis.counts(run.round))
            .filter_map(|run| Some((run.round, *run.samples.get(name)?)))
            .filter(|(_, value)| value.is_finite())
            .collect()
    }

    /// Returns the median over rounds.
    fn median_of(&self, cell: usize, condition: usize, metric: Metric) -> Option<f64> {
        let values: Vec<f64> = self.by_round(cell, condition, metric).into_values().collect();
        (!values.is_empty()).then(|| median(&values))
    }

    /// Returns bandwidth or IOPS, whichever metric compares a workload.
    fn throughput(&self, workload: usize) -> Option<Metric> {
        let metrics = &self.plan.experiment.workloads[workload].metrics;
        [Metric::Bandwidth, Metric::Iops].into_iter().find(|metric| metrics.contains(metric))
    }

    /// Returns the name of a workload and a condition, for evidence.
    fn name(&self, workload: usize, condition: usize) -> String {
        self.say(
            Message::AdviceName,
            &[
                ("workload", &self.plan.experiment.workloads[workload].name),
                ("condition", &self.plan.conditions[condition].label),
            ],
        )
    }
}

/// Returns all judged rows of comparisons with a role, or the reason why there are none.
fn with_role<'a>(facts: &Facts<'a>, role: &str) -> Result<Vec<Told<'a>>, Finding> {
    let has_role = |family: &&Family| {
        facts.plan.experiment.comparisons[family.comparison].role.as_deref() == Some(role)
    };
    let families: Vec<&Family> = facts.analysis.families.iter().filter(has_role).collect();
    let rows: Vec<Told<'a>> = families
        .iter()
        .flat_map(|family| family.rows.iter().map(|row| Told { family, row }))
        .filter(|told| told.row.verdict != Verdict::Inconclusive(Inconclusive::NoData))
        .collect();
    if !rows.is_empty() {
        return Ok(rows);
    }
    let reason = families.iter().find_map(|family| family.missing.clone());
    let why = match (families.is_empty(), reason) {
        (true, _) => facts.text(Message::AdviceNoComparison),
        (false, Some(reason)) => facts.say(Message::AdviceNotHere, &[("reason", &reason)]),
        (false, None) => facts.text(Message::AdviceNoPairs),
    };
    Err(Finding::not_measured(why))
}

/// Returns the evidence of a finding on rows.
fn of_rows(rows: &[Told<'_>]) -> Basis {
    let cells: BTreeSet<usize> = rows.iter().map(|told| told.row.cell).collect();
    Basis { cells: cells.len(), is_withheld: rows.iter().any(|told| !told.row.flaws.is_empty()) }
}

/// Returns the largest change that any 90 % interval still allows.
fn largest_change(rows: &[Told<'_>]) -> f64 {
    let ends = rows.iter().filter_map(|told| told.row.evidence.interval_90);
    ends.flat_map(|interval| [interval.low.abs(), interval.high.abs()]).fold(0.0, f64::max)
}

fn share(rows: &[Told<'_>], is: impl Fn(&Told<'_>) -> bool) -> f64 {
    rows.iter().filter(|told| is(told)).count() as f64 / rows.len().max(1) as f64
}

fn worst_first<'a>(rows: &[Told<'a>]) -> Vec<Told<'a>> {
    let mut sorted = rows.to_vec();
    sorted.sort_by(|a, b| a.gain().total_cmp(&b.gain()));
    sorted
}

fn lines(facts: &Facts<'_>, rows: &[Told<'_>]) -> Vec<String> {
    worst_first(rows).iter().take(EVIDENCE_MAX).map(|told| told.line(facts)).collect()
}

/// Judges whether there is a cost: the common part of both cost rules.
fn cost(facts: &Facts<'_>, rows: &[Told<'_>], what: Message) -> (Confidence, String) {
    let (limits, what) = (facts.limits, facts.text(what));
    if share(rows, |told| told.row.verdict == Verdict::Equivalent) >= 1.0 {
        let most = format!("{:.1}", 100.0 * largest_change(rows).exp_m1());
        let claim = facts.say(Message::CostsNothing, &[("what", &what), ("most", &most)]);
        return (Confidence::Strong, claim);
    }
    let worst = worst_first(rows);
    let decided: Vec<_> = worst.iter().filter(|told| told.row.verdict.is_different()).collect();
    let is_loss =
        |told: &Told<'_>| told.row.verdict == Verdict::DifferentMatters && told.gain() < 0.0;
    let contradicts =
        |told: &Told<'_>| told.row.verdict == Verdict::DifferentMatters && told.gain() > 0.0;
    let name = |told: &Told<'_>| {
        let load = &facts.plan.workload(told.row.cell).name;
        let metric = facts.text(told.family.metric.message());
        format!("{load} {} ({metric})", facts.cell(told.row.cell))
    };
    let claim = match decided.first() {
        Some(told) => {
            let is_loss = told.gain() < 0.0;
            let said = if is_loss { Message::CostsMost } else { Message::CostsNever };
            let change = units::percent(told.row.evidence.mean);
            facts.say(said, &[("what", &what), ("cell", &name(told)), ("change", &change)])
        }
        None => facts.say(Message::CostsUnproven, &[("what", &lower(&what))]),
    };
    let effects: Vec<f64> =
        rows.iter().map(|told| told.row.evidence.mean.abs() - told.row.evidence.margin).collect();
    let confidence =
        if share(rows, is_loss) >= limits.strong_share && share(rows, contradicts) == 0.0 {
            Confidence::Strong
        } else if !decided.is_empty() && median(&effects) > 0.0 {
            Confidence::Moderate
        } else {
            Confidence::NoAdvice
        };
    (confidence, claim)
}

/// Formats a share in percent, without a fraction.
fn whole_percent(share: f64) -> String {
    format!("{:.0}", 100.0 * share)
}

fn lower(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// Evaluates A1.
pub(super) fn remote_cost(facts: &Facts<'_>) -> Finding {
    let rows = match with_role(facts, "remote-local") {
        Ok(rows) => rows,
        Err(finding) => return finding,
    };
    let (confidence, claim) = cost(facts, &rows, Message::A1Remote);
    let free_from = loss_ends(facts, &rows);
    let claim = facts.sentences(&[&[claim][..], &free_from[..]].concat());
    let apply = match confidence {
        Confidence::Strong | Confidence::Moderate if !free_from.is_empty() => Message::A1KeepLarge,
        Confidence::Strong | Confidence::Moderate => Message::A1KeepLocal,
        _ => Message::AdviceRunFull,
    };
    let (evidence, apply) = (lines(facts, &rows), facts.text(apply));
    Finding { confidence, claim, evidence, apply, basis: of_rows(&rows) }
}

/// Returns the block size from which on bandwidth loses less than the margin.
fn loss_ends(facts: &Facts<'_>, rows: &[Told<'_>]) -> Vec<String> {
    let mut curves: BTreeMap<(usize, usize), Vec<Told<'_>>> = BTreeMap::new();
    for told in rows.iter().filter(|told| told.family.metric == Metric::Bandwidth) {
        curves.entry((told.family.comparison, told.family.workload)).or_default().push(*told);
    }
    let bound = (-facts.limits.loss_small).ln_1p();
    let mut lines = Vec::new();
    for ((comparison, workload), mut curve) in curves {
        curve.sort_by_key(|told| facts.plan.cells[told.row.cell].block_size);
        let is_free = |told: &Told<'_>| told.row.evidence.interval.is_some_and(|it| it.low > bound);
        let tail = curve.iter().rev().take_while(|told| is_free(told)).count();
        if tail == 0 || tail == curve.len() || curve.len() < 2 {
            continue;
        }
        let size = facts.plan.cells[curve[curve.len() - tail].row.cell].block_size;
        let values: [(&str, &dyn Display); 4] = [
            ("comparison", &facts.plan.experiment.comparisons[comparison].name),
            ("workload", &facts.plan.experiment.workloads[workload].name),
            ("size", &units::bytes(size)),
            ("loss", &whole_percent(facts.limits.loss_small)),
        ];
        lines.push(facts.say(Message::A1LossEnds, &values));
    }
    lines
}

/// Evaluates A2.
pub(super) fn container_cost(facts: &Facts<'_>) -> Finding {
    let rows = match with_role(facts, "container-native") {
        Ok(rows) => rows,
        Err(finding) => return finding,
    };
    let (confidence, claim) = cost(facts, &rows, Message::A2Container);
    let all_same = share(&rows, |told| told.row.verdict == Verdict::Equivalent) >= 1.0;
    let apply = if all_same {
        Message::A2Use
    } else if confidence == Confidence::NoAdvice {
        Message::AdviceRunFull
    } else {
        Message::A2Measure
    };
    let (evidence, apply) = (lines(facts, &rows), facts.text(apply));
    Finding { confidence, claim, evidence, apply, basis: of_rows(&rows) }
}

/// Evaluates A3.
pub(super) fn transfer_size(facts: &Facts<'_>) -> Finding {
    let mut evidence = Vec::new();
    let mut sizes = Vec::new();
    let mut judged = 0;
    for (workload, load) in facts.plan.experiment.workloads.iter().enumerate() {
        if load.block_sizes.len() < facts.limits.sizes_min
            || !load.metrics.contains(&Metric::Bandwidth)
        {
            continue;
        }
        for condition in 0..facts.plan.conditions.len() {
            let curve = facts.analysis.curve(facts.plan, workload, condition, Metric::Bandwidth);
            if let Some((size, line)) = smallest_good(facts, workload, condition, curve) {
                judged += 1;
                sizes.extend(size);
                evidence.push(line);
            }
        }
    }
    if judged == 0 {
        return facts.not_measured(Message::A3Few);
    }
    let Some(largest) = sizes.iter().copied().max() else {
        return Finding {
            confidence: Confidence::NoAdvice,
            claim: facts.text(Message::A3Unsure),
            evidence,
            apply: facts.text(Message::AdviceRunFull),
            basis: facts.all(),
        };
    };
    let confidence = if sizes.len() == judged { Confidence::Strong } else { Confidence::Moderate };
    let (size, share) = (units::bytes(largest), whole_percent(facts.limits.good_share));
    let claim = facts.say(
        Message::A3Claim,
        &[("size", &size), ("share", &share), ("count", &sizes.len()), ("all", &judged)],
    );
    let apply = facts.say(Message::A3Apply, &[("size", &size)]);
    Finding { confidence, claim, evidence, apply, basis: facts.all() }
}

/// Returns the smallest size from which on bandwidth is good, with its line of evidence.
fn smallest_good(
    facts: &Facts<'_>,
    workload: usize,
    condition: usize,
    mut curve: Vec<Point>,
) -> Option<(Option<u64>, String)> {
    // One point per block size: the most jobs and depth that all sizes share.
    let cells = &facts.plan.cells;
    let most = curve.iter().map(|point| (cells[point.cell].jobs, cells[point.cell].depth)).max()?;
    curve.retain(|point| (cells[point.cell].jobs, cells[point.cell].depth) == most);
    curve.sort_by_key(|point| cells[point.cell].block_size);
    let is_enough =
        curve.len() >= facts.limits.sizes_min && curve.iter().all(|point| point.interval.is_some());
    if !is_enough {
        return None;
    }
    let peak = curve.iter().max_by(|a, b| a.median.total_cmp(&b.median))?;
    let floor = facts.limits.good_share * peak.median;
    let is_good = |point: &&Point| point.interval.is_some_and(|interval| interval.low >= floor);
    let tail = curve.iter().rev().take_while(is_good).count();
    let size = (tail > 0).then(|| cells[curve[curve.len() - tail].cell].block_size);
    let unit = Metric::Bandwidth.unit();
    let half = half_size(facts, condition, &curve);
    let line = facts.say(
        Message::A3Line,
        &[
            ("name", &facts.name(workload, condition)),
            ("best", &units::significant(peak.median / unit)),
            ("at", &units::bytes(cells[peak.cell].block_size)),
            ("size", &size.map_or_else(|| facts.text(Message::CostNone), units::bytes)),
            ("half", &half),
            ("n", &peak.n),
        ],
    );
    Some((size, line))
}

/// Returns the size that gives half of the limiting bandwidth, n½ = αβ of `time = α + size / β`, fitted to
/// each round by least squares of relative errors, with the interval over rounds.
fn half_size(facts: &Facts<'_>, condition: usize, curve: &[Point]) -> String {
    let id = &facts.plan.conditions[condition].id;
    let mut rounds: BTreeMap<u32, Vec<(f64, f64)>> = BTreeMap::new();
    for point in curve {
        let cell = &facts.plan.cells[point.cell];
        for run in facts.analysis.runs.iter().filter(|run| run.is_usable() && run.condition == *id)
        {
            if let (true, Some(rate)) = (run.cell == cell.id, run.value(Metric::Bandwidth)) {
                rounds.entry(run.round).or_default().push((cell.block_size as f64, rate));
            }
        }
    }
    let halves: Vec<f64> = rounds
        .values()
        .filter(|points| points.len() == curve.len())
        .filter_map(|points| fit_half(points))
        .collect();
    match median_interval(&halves, 0.95) {
        Some(interval) => format!(
            "{} ({} … {})",
            units::bytes(median(&halves) as u64),
            units::bytes(interval.low as u64),
            units::bytes(interval.high as u64)
        ),
        None => facts.text(Message::A3NoHalf),
    }
}

/// Returns n½ of points (size, bandwidth); `None` if the fit is not a latency and a bandwidth.
pub(super) fn fit_half(points: &[(f64, f64)]) -> Option<f64> {
    // time = a + b · size, each point weighted by 1 / time².
    let (mut s, mut sx, mut sy, mut sxx, mut sxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (size, rate) in points {
        let time = size / rate;
        let weight = 1.0 / (time * time);
        s += weight;
        sx += weight * size;
        sy += weight * time;
        sxx += weight * size * size;
        sxy += weight * size * time;
    }
    let determinant = s * sxx - sx * sx;
    let slope = (s * sxy - sx * sy) / determinant;
    let constant = (sxx * sy - sx * sxy) / determinant;
    (slope > 0.0 && constant > 0.0).then_some(constant / slope)
}

#[cfg(test)]
mod tests;
