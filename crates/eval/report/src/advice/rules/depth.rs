//! Rules on operations in flight: A4 (how many are enough), A5 (by jobs or by depth).
//!
//! N is jobs × depth. A closed load keeps N operations in flight, so N = rate × latency (Little) checks the
//! measurement itself, and throughput over N has a knee.

use super::whole_percent;
use crate::advice::{Basis, Confidence, Facts, Finding};
use base::messages::Message;
use base::statistics::{
    Usl, Verdict, judge as judge_ratios, marked_label, median, median_interval,
};
use base::units;
use loads::metric::Metric;
use std::collections::BTreeMap;
use std::fmt::Display;

/// Throughput over N of one condition at one block size.
struct Curve {
    workload: usize,
    condition: usize,
    block_size: u64,
    /// By N: the cells with it.
    cells: BTreeMap<u32, Vec<usize>>,
}

/// Returns all curves of closed loads that report bandwidth or IOPS.
fn curves(facts: &Facts<'_>) -> Vec<Curve> {
    let mut all: BTreeMap<(usize, usize, u64), BTreeMap<u32, Vec<usize>>> = BTreeMap::new();
    for (index, cell) in facts.plan.cells.iter().enumerate().filter(|(_, cell)| cell.rate == 0) {
        let Some(metric) = facts.throughput(cell.workload) else { continue };
        for condition in 0..facts.plan.conditions.len() {
            if facts.median_of(index, condition, metric).is_some() {
                let curve = all.entry((cell.workload, condition, cell.block_size)).or_default();
                curve.entry(cell.jobs * cell.depth).or_default().push(index);
            }
        }
    }
    all.into_iter()
        .map(|((workload, condition, block_size), cells)| Curve {
            workload,
            condition,
            block_size,
            cells,
        })
        .collect()
}

impl Curve {
    /// Returns the median of a metric at an N, over its cells.
    fn at(&self, facts: &Facts<'_>, n: u32, metric: Metric) -> Option<f64> {
        let cells = self.cells.get(&n)?;
        let values: Vec<f64> = cells
            .iter()
            .filter_map(|cell| facts.median_of(*cell, self.condition, metric))
            .collect();
        (!values.is_empty()).then(|| median(&values))
    }

    /// Returns the largest relative difference of N and rate × latency. Both are of the same run: cells of
    /// one N (more jobs, or more depth) may differ in both.
    fn little(&self, facts: &Facts<'_>) -> Option<f64> {
        let of_cell = |n: u32, cell: usize| {
            let latencies = facts.by_round(cell, self.condition, Metric::Latency);
            let under_way: Vec<f64> = facts
                .by_round(cell, self.condition, Metric::Iops)
                .iter()
                .filter_map(|(round, rate)| Some(rate * latencies.get(round)? / 1e6))
                .collect();
            (!under_way.is_empty()).then(|| (median(&under_way) / f64::from(n) - 1.0).abs())
        };
        let cells = self.cells.iter().flat_map(|(n, cells)| cells.iter().map(|cell| (*n, *cell)));
        cells.filter_map(|(n, cell)| of_cell(n, cell)).max_by(f64::total_cmp)
    }

    /// Returns whether throughput at an N is good enough.
    fn is_sure(&self, facts: &Facts<'_>, n: u32, metric: Metric, floor: f64) -> bool {
        let cells = self.cells.get(&n).map_or(&[][..], Vec::as_slice);
        cells.iter().any(|cell| {
            let values: Vec<f64> =
                facts.by_round(*cell, self.condition, metric).into_values().collect();
            median_interval(&values, 0.95).is_some_and(|interval| interval.low >= floor)
        })
    }
}

/// The findings on a curve.
struct Knee {
    /// The advised N, if there is one; whether it is sure.
    n: Option<(u32, bool)>,
    is_faulty: bool,
    line: String,
}

/// Evaluates A4.
pub(crate) fn knee(facts: &Facts<'_>) -> Finding {
    let long = |curve: &Curve| curve.cells.len() >= facts.limits.knee_points_min;
    let knees: Vec<Knee> = curves(facts)
        .iter()
        .filter(|it| long(it))
        .filter_map(|curve| judge(facts, curve))
        .collect();
    if knees.is_empty() {
        return facts.not_measured(Message::A4Few);
    }
    let evidence = knees.iter().map(|knee| knee.line.clone()).collect();
    let found: Vec<(u32, bool)> = knees.iter().filter_map(|knee| knee.n).collect();
    let faulty = knees.iter().filter(|knee| knee.is_faulty).count();
    if found.is_empty() {
        let claim =
            if faulty > 0 { facts.text(Message::A4Faulty) } else { facts.text(Message::A4None) };
        let apply = facts.text(Message::A4Weigh);
        let basis = facts.all();
        return Finding { confidence: Confidence::NoAdvice, claim, evidence, apply, basis };
    }
    let is_strong =
        faulty == 0 && found.len() == knees.len() && found.iter().all(|(_, is_sure)| *is_sure);
    let most = found.iter().map(|(n, _)| *n).max().unwrap_or_default();
    let claim = facts.say(
        Message::A4Claim,
        &[
            ("most", &most),
            ("share", &whole_percent(facts.limits.knee_share)),
            ("count", &found.len()),
            ("all", &knees.len()),
        ],
    );
    Finding {
        confidence: if is_strong { Confidence::Strong } else { Confidence::Moderate },
        claim,
        evidence,
        apply: facts.say(Message::A4Apply, &[("most", &most)]),
        basis: facts.all(),
    }
}

fn judge(facts: &Facts<'_>, curve: &Curve) -> Option<Knee> {
    let limits = facts.limits;
    let metric = facts.throughput(curve.workload)?;
    let points: Vec<(u32, f64)> =
        curve.cells.keys().filter_map(|&n| Some((n, curve.at(facts, n, metric)?))).collect();
    let best = points.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let first = points.first()?.0;
    let tail = |n: u32| curve.at(facts, n, Metric::LatencyP99);
    // Only the tail of a single operation is a reference.
    let tail_max = (first == 1).then(|| tail(1)).flatten().map(|p99| limits.knee_tail * p99);
    let floor = limits.knee_share * best.1;
    let is_good = |&(n, x): &(u32, f64)| {
        x >= floor && tail_max.is_none_or(|most| tail(n).is_none_or(|p99| p99 <= most))
    };
    let little = curve.little(facts);
    let is_faulty = little.is_some_and(|it| it > limits.little_max);
    let found = points.iter().copied().find(is_good).filter(|_| !is_faulty);
    let n = found.map(|(n, _)| (n, curve.is_sure(facts, n, metric, floor)));
    let model = Usl::fit(&points.iter().map(|(n, x)| (f64::from(*n), *x)).collect::<Vec<_>>());
    let model = match model.filter(|law| law.r_squared >= limits.model_r2_min) {
        Some(law) => {
            let last = points.last()?.0;
            let is_inside = |peak: &f64| (f64::from(first)..=f64::from(last)).contains(peak);
            let peak = match law.peak().filter(is_inside) {
                Some(peak) => facts.say(Message::A4Peak, &[("n", &format!("{peak:.0}"))]),
                None => facts.text(Message::A4Outside),
            };
            let values: [(&str, &dyn Display); 4] = [
                ("sigma", &format!("{:.4}", law.sigma)),
                ("kappa", &format!("{:.6}", law.kappa)),
                ("peak", &peak),
                ("fit", &format!("{:.3}", law.r_squared)),
            ];
            facts.say(Message::A4Law, &values)
        }
        None => facts.text(Message::AdviceNoModel),
    };
    let tail_said = match (tail_max, found.and_then(|(n, _)| tail(n))) {
        (Some(most), Some(p99)) => facts.say(
            Message::A4TailOf,
            &[("p99", &format!("{p99:.0}")), ("most", &format!("{most:.0}"))],
        ),
        (Some(most), None) => facts.say(Message::A4TailMost, &[("most", &format!("{most:.0}"))]),
        (None, _) => facts.text(Message::A4TailUnknown),
    };
    let enough = found.map(|(n, _)| n.to_string());
    let little = little.map(|it| format!("{:.1} %", 100.0 * it));
    Some(Knee {
        n,
        is_faulty,
        line: facts.say(
            Message::A4Line,
            &[
                ("name", &facts.name(curve.workload, curve.condition)),
                ("size", &units::bytes(curve.block_size)),
                ("best", &units::significant(best.1 / metric.unit())),
                ("metric", &facts.text(metric.message_with_unit())),
                ("at", &best.0),
                ("enough", &enough.unwrap_or_else(|| facts.text(Message::CostNone))),
                ("tail", &tail_said),
                ("model", &model),
                ("little", &little.unwrap_or_else(|| facts.text(Message::NotAvailable))),
            ],
        ),
    })
}

/// A pair of cells with the same N: the one with more jobs, and the one with more depth.
struct Pair {
    line: String,
    verdict: Verdict,
    /// Log-ratio of throughput, more jobs against more depth.
    mean: f64,
    /// Log-ratio of CPU time per operation.
    cpu: Option<f64>,
}

/// Evaluates A5.
pub(crate) fn jobs_or_depth(facts: &Facts<'_>) -> Finding {
    let pairs = pairs(facts);
    if pairs.is_empty() {
        return facts.not_measured(Message::A5None);
    }
    let count = |is: &dyn Fn(&Pair) -> bool| pairs.iter().filter(|pair| is(pair)).count();
    let jobs = count(&|it| it.verdict == Verdict::DifferentMatters && it.mean > 0.0);
    let depth = count(&|it| it.verdict == Verdict::DifferentMatters && it.mean < 0.0);
    let same = count(&|it| it.verdict == Verdict::Equivalent);
    let all = pairs.len();
    let is_most = |count: usize| count as f64 >= facts.limits.strong_share * all as f64;
    let evidence = pairs.iter().map(|pair| pair.line.clone()).take(super::EVIDENCE_MAX).collect();
    let more = |count: usize, what: Message| {
        let confidence = if is_most(count) { Confidence::Strong } else { Confidence::Moderate };
        let what = facts.text(what);
        let values: [(&str, &dyn Display); 3] = [("what", &what), ("count", &count), ("all", &all)];
        let claim = facts.say(Message::A5More, &values);
        (confidence, claim, facts.say(Message::A5Raise, &[("what", &what)]))
    };
    let (confidence, claim, apply) = match (jobs, depth) {
        (0, 0) if is_most(same) => {
            let costs: Vec<f64> = pairs.iter().filter_map(|pair| pair.cpu).collect();
            let cheaper = match median(&costs) {
                _ if costs.is_empty() => facts.text(Message::A5Simple),
                cost if cost > 0.0 => {
                    facts.say(Message::A5TakeDepth, &[("change", &units::percent(cost))])
                }
                cost => facts.say(Message::A5TakeJobs, &[("change", &units::percent(cost))]),
            };
            let claim = facts.say(Message::A5Same, &[("same", &same), ("all", &all)]);
            (Confidence::Strong, claim, cheaper)
        }
        (jobs, 0) if jobs > 0 => more(jobs, Message::A5Jobs),
        (0, depth) if depth > 0 => more(depth, Message::A5Depth),
        (0, 0) => {
            let claim = facts.text(Message::A5Unproven);
            (Confidence::NoAdvice, claim, facts.text(Message::AdviceRunFull))
        }
        (jobs, depth) => {
            let values: [(&str, &dyn Display); 3] =
                [("jobs", &jobs), ("all", &all), ("depth", &depth)];
            let claim = facts.say(Message::A5Depends, &values);
            (Confidence::Moderate, claim, facts.text(Message::A5Choose))
        }
    };
    // A pair compares two cells: it is one comparison.
    let basis = Basis { cells: all, ..facts.all() };
    Finding { confidence, claim, evidence, apply, basis }
}

/// Two cells with the same N.
#[derive(Clone, Copy)]
struct Same {
    n: u32,
    workload: usize,
    condition: usize,
    metric: Metric,
    few: usize,
    many: usize,
}

impl Same {
    /// Returns the log-ratios of a metric, more jobs against more depth, by round.
    fn ratios(&self, facts: &Facts<'_>, metric: Metric) -> Vec<f64> {
        let few = facts.by_round(self.few, self.condition, metric);
        let many = facts.by_round(self.many, self.condition, metric);
        let ratio = |(round, value): (&u32, &f64)| Some((value / few.get(round)?).ln());
        many.iter().filter_map(ratio).filter(|ratio| ratio.is_finite()).collect()
    }
}

fn same(facts: &Facts<'_>) -> Vec<Same> {
    let mut found = Vec::new();
    for curve in curves(facts) {
        let Some(metric) = facts.throughput(curve.workload) else { continue };
        let (workload, condition) = (curve.workload, curve.condition);
        for (n, cells) in &curve.cells {
            let jobs = |cell: &usize| facts.plan.cells[*cell].jobs;
            let (Some(few), Some(many)) =
                (cells.iter().copied().min_by_key(jobs), cells.iter().copied().max_by_key(jobs))
            else {
                continue;
            };
            if jobs(&few) < jobs(&many) {
                found.push(Same { n: *n, workload, condition, metric, few, many });
            }
        }
    }
    found
}

/// Returns the number of verdicts that A5 prints.
pub(crate) fn judgements(facts: &Facts<'_>) -> usize {
    same(facts).iter().filter(|it| it.ratios(facts, it.metric).len() > 1).count()
}

fn pairs(facts: &Facts<'_>) -> Vec<Pair> {
    let margin = facts.plan.experiment.margins.throughput;
    let stake = facts.analysis.stake(facts.plan);
    same(facts)
        .into_iter()
        .map(|it| {
            let (evidence, verdict) = judge_ratios(&it.ratios(facts, it.metric), margin, stake);
            let cpu = it.ratios(facts, Metric::CpuPerIo);
            let Same { n, workload, condition, metric, few, many } = it;
            let cpu = (!cpu.is_empty()).then(|| median(&cpu));
            let interval = units::interval_behind(evidence.interval);
            let shape = |cell: usize| {
                let cell = &facts.plan.cells[cell];
                format!("{} × {}", cell.jobs, cell.depth)
            };
            let cpu_said = cpu.map_or_else(|| facts.text(Message::NotAvailable), units::percent);
            let line = facts.say(
                Message::A5Line,
                &[
                    ("name", &facts.name(workload, condition)),
                    ("size", &units::bytes(facts.plan.cells[few].block_size)),
                    ("under_way", &n),
                    ("many", &shape(many)),
                    ("few", &shape(few)),
                    ("metric", &facts.text(metric.message())),
                    ("change", &units::percent(evidence.mean)),
                    ("interval", &interval),
                    ("n", &evidence.n),
                    ("verdict", &marked_label(&evidence, verdict, facts.language)),
                    ("cpu", &cpu_said),
                ],
            );
            Pair { line, verdict, mean: evidence.mean, cpu }
        })
        .collect()
}
