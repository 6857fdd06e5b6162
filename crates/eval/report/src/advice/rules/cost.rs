//! Rules on CPU time at fixed rates: A7 (the cost of an operation), A8 (the batch that is large enough).
//!
//! A7 fits busy = a + c · rate in each round. The slope c leaves out the idle use. If there is a condition
//! whose device does nothing, its slope is subtracted as the load generator's own cost. Busy is the machine's
//! time (samples, neighbours included) and, separately, the scheduler's exact time of the load, the services
//! and the kernel's threads.

use crate::advice::{Confidence, Facts, Finding};
use base::messages::Message;
use base::statistics::{ALPHA, Label, Line, Verdict, judge, median, median_interval, t_interval};
use base::units;
use lab::store::Run;
use loads::metric::Metric;
use loads::outcome::Mark;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

const MICROSECONDS: f64 = 1e6;

/// The owner of the CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// The whole machine.
    Machine,
    /// The load, the services and the threads of the kernel.
    Tasks,
}

impl Whose {
    /// Returns CPU seconds per second of a run.
    fn busy(self, run: &Run) -> Option<f64> {
        let value = |name: &str| run.samples.get(name).copied();
        let seconds = match self {
            Self::Machine => value("cpu_busy_s")?,
            Self::Tasks => {
                let services: f64 = run
                    .samples
                    .iter()
                    .filter(|(name, _)| name.starts_with("cpu_service_"))
                    .map(|(_, value)| value)
                    .sum();
                value("cpu_load_s")? + services + value("cpu_kernel_threads_s").unwrap_or_default()
            }
        };
        Some(seconds / value("cpu_wall_s")?)
    }

    fn message(self) -> Message {
        match self {
            Self::Machine => Message::A7Machine,
            Self::Tasks => Message::A7Tasks,
        }
    }
}

/// The settings that a curve over rates shares: workload, block size, jobs, batch.
type Shape = (usize, u64, u32, u32);

/// Cost over rates of one condition.
struct Curve {
    shape: Shape,
    condition: usize,
    /// Slopes by round, in µs per operation.
    slopes: BTreeMap<u32, f64>,
    /// The line through the medians over rounds, in CPU seconds per second.
    line: Line,
    rates: usize,
}

/// Returns the runs that held their rate.
fn held<'a>(facts: &Facts<'a>, condition: usize) -> impl Iterator<Item = (usize, &'a Run)> {
    let id = &facts.plan.conditions[condition].id;
    let cells: BTreeMap<&str, usize> =
        facts.plan.cells.iter().enumerate().map(|(index, it)| (it.id.as_str(), index)).collect();
    let runs = facts.analysis.runs.iter();
    runs.filter(move |run| run.condition == *id && run.is_usable())
        .filter(|run| !run.marks.contains(&Mark::Saturated))
        .filter_map(move |run| Some((*cells.get(run.cell.as_str())?, run)))
}

fn curves(facts: &Facts<'_>, whose: Whose) -> Vec<Curve> {
    let mut all = Vec::new();
    for condition in 0..facts.plan.conditions.len() {
        // By shape, then round, then rate: (achieved rate, busy).
        type Points = BTreeMap<u64, (f64, f64)>;
        let mut shapes: BTreeMap<Shape, BTreeMap<u32, Points>> = BTreeMap::new();
        for (index, run) in held(facts, condition) {
            let cell = &facts.plan.cells[index];
            let (Some(iops), Some(busy)) = (run.value(Metric::Iops), whose.busy(run)) else {
                continue;
            };
            if cell.rate > 0 {
                let shape = (cell.workload, cell.block_size, cell.jobs, cell.batch);
                let rounds = shapes.entry(shape).or_default();
                rounds.entry(run.round).or_default().insert(cell.rate, (iops, busy));
            }
        }
        for (shape, mut rounds) in shapes {
            rounds.retain(|_, points| points.len() >= facts.limits.rates_min);
            let slope = |points: &Points| {
                let points: Vec<(f64, f64)> = points.values().copied().collect();
                Line::fit(&points).map(|line| MICROSECONDS * line.slope)
            };
            let slopes: BTreeMap<u32, f64> =
                rounds.iter().filter_map(|(round, it)| Some((*round, slope(it)?))).collect();
            let medians = medians(&rounds);
            if let (Some(line), false) = (Line::fit(&medians), slopes.is_empty()) {
                all.push(Curve { shape, condition, slopes, line, rates: medians.len() });
            }
        }
    }
    all
}

/// Medians over rounds, by rate.
fn medians(rounds: &BTreeMap<u32, BTreeMap<u64, (f64, f64)>>) -> Vec<(f64, f64)> {
    let rates: BTreeSet<u64> = rounds.values().flat_map(|points| points.keys().copied()).collect();
    let of = |rate: u64, value: fn(&(f64, f64)) -> f64| {
        let values: Vec<f64> =
            rounds.values().filter_map(|points| points.get(&rate).map(value)).collect();
        median(&values)
    };
    rates.into_iter().map(|rate| (of(rate, |it| it.0), of(rate, |it| it.1))).collect()
}

/// Returns the slopes without the generator's, by round, and whether the generator was measured.
fn net(facts: &Facts<'_>, curve: &Curve, all: &[Curve]) -> (BTreeMap<u32, f64>, Option<f64>) {
    let null = all.iter().find(|it| it.shape == curve.shape && facts.plan.is_null(it.condition));
    let Some(null) = null else { return (curve.slopes.clone(), None) };
    let rounds = curve
        .slopes
        .iter()
        .filter_map(|(round, slope)| Some((*round, slope - null.slopes.get(round)?)));
    let own: Vec<f64> = null.slopes.values().copied().collect();
    (rounds.collect(), Some(median(&own)))
}

/// Evaluates A7.
pub(crate) fn per_operation(facts: &Facts<'_>) -> Finding {
    let machine = curves(facts, Whose::Machine);
    let tasks = curves(facts, Whose::Tasks);
    if machine.is_empty() && tasks.is_empty() {
        return facts.not_measured(Message::A7Few);
    }
    let mut evidence = Vec::new();
    for (whose, all) in [(Whose::Machine, &machine), (Whose::Tasks, &tasks)] {
        for curve in all.iter().filter(|curve| !facts.plan.is_null(curve.condition)) {
            evidence.push(line(facts, whose, curve, all));
        }
    }
    let Some(whose) = straight(facts, &machine, &tasks) else {
        evidence.truncate(super::EVIDENCE_MAX);
        return Finding {
            confidence: Confidence::NoAdvice,
            claim: facts.say(Message::A7Curved, &[("least", &facts.limits.slope_r2_min)]),
            evidence,
            apply: facts.text(Message::A7Read),
            basis: facts.all(),
        };
    };
    let all = if whose == Whose::Machine { &machine } else { &tasks };
    compared(facts, whose, all, evidence)
}

/// Returns whose CPU time grows in a straight line: the machine if it does, else the tasks.
fn straight(facts: &Facts<'_>, machine: &[Curve], tasks: &[Curve]) -> Option<Whose> {
    let is_straight = |all: &[Curve]| {
        let real = || all.iter().filter(|curve| !facts.plan.is_null(curve.condition));
        real().count() > 0 && real().all(|curve| curve.line.r_squared >= facts.limits.slope_r2_min)
    };
    if is_straight(machine) {
        Some(Whose::Machine)
    } else {
        is_straight(tasks).then_some(Whose::Tasks)
    }
}

/// Returns the number of verdicts that A7 prints.
pub(crate) fn judgements(facts: &Facts<'_>) -> usize {
    let (machine, tasks) = (curves(facts, Whose::Machine), curves(facts, Whose::Tasks));
    let all = match straight(facts, &machine, &tasks) {
        Some(Whose::Machine) => machine,
        Some(Whose::Tasks) => tasks,
        None => return 0,
    };
    slope_ratios(facts, &all).iter().filter(|(_, ratios)| ratios.len() > 1).count()
}

fn line(facts: &Facts<'_>, whose: Whose, curve: &Curve, all: &[Curve]) -> String {
    let (net, own) = net(facts, curve, all);
    let slopes: Vec<f64> = net.into_values().collect();
    let interval = t_interval(&slopes, 1.0 - ALPHA).map_or(String::new(), |it| {
        format!(" ({} … {})", units::significant(it.low), units::significant(it.high))
    });
    let (workload, size, jobs, batch) = curve.shape;
    let straight = if curve.line.r_squared >= facts.limits.slope_r2_min {
        let slope = units::significant(median(&slopes));
        facts.say(Message::A7Slope, &[("slope", &slope), ("interval", &interval)])
    } else {
        facts.text(Message::A7NoSlope)
    };
    let own = match own {
        Some(own) => facts.say(Message::A7OwnOff, &[("own", &units::significant(own))]),
        None => facts.text(Message::A7OwnIn),
    };
    facts.say(
        Message::A7Line,
        &[
            ("name", &facts.name(workload, curve.condition)),
            ("size", &units::bytes(size)),
            ("jobs", &jobs),
            ("batch", &batch),
            ("whose", &facts.text(whose.message())),
            ("slope", &straight),
            ("constant", &units::significant(curve.line.intercept)),
            ("fit", &format!("{:.3}", curve.line.r_squared)),
            ("rates", &curve.rates),
            ("n", &slopes.len()),
            ("own", &own),
        ],
    )
}

/// Returns the log-ratios of the slopes of the experiment's comparisons by round, with their names.
fn slope_ratios(facts: &Facts<'_>, all: &[Curve]) -> Vec<(String, Vec<f64>)> {
    let mut named = Vec::new();
    for comparison in &facts.plan.experiment.comparisons {
        let condition = |levels| facts.plan.condition(levels);
        let (Some(base), Some(other)) =
            (condition(&comparison.baseline), condition(&comparison.other))
        else {
            continue;
        };
        for baseline in all.iter().filter(|it| it.condition == base && !facts.plan.is_null(base)) {
            let is_other = |it: &&Curve| it.condition == other && it.shape == baseline.shape;
            let Some(with) = all.iter().find(is_other) else { continue };
            let ((base, _), (with, _)) = (net(facts, baseline, all), net(facts, with, all));
            let ratio = |(round, c): (&u32, &f64)| Some((c / base.get(round)?).ln());
            let found: Vec<f64> =
                with.iter().filter_map(ratio).filter(|ratio| ratio.is_finite()).collect();
            let (_, _, jobs, batch) = baseline.shape;
            let values: [(&str, &dyn Display); 3] =
                [("name", &comparison.name), ("jobs", &jobs), ("batch", &batch)];
            named.push((facts.say(Message::A7Named, &values), found));
        }
    }
    named
}

/// Compares the slopes of the experiment's comparisons.
fn compared(facts: &Facts<'_>, whose: Whose, all: &[Curve], mut evidence: Vec<String>) -> Finding {
    let named = slope_ratios(facts, all);
    let stake = facts.analysis.stake(facts.plan);
    let margin = facts.limits.cost_same.ln();
    let judged: Vec<_> = named.iter().map(|(_, ratios)| judge(ratios, margin, stake)).collect();
    let mut decided = Vec::new();
    for ((name, _), (it, verdict)) in named.iter().zip(&judged) {
        let values: [(&str, &dyn Display); 4] = [
            ("name", name),
            ("change", &units::percent(it.mean)),
            ("n", &it.n),
            ("verdict", &verdict.label(facts.language)),
        ];
        let said = facts.say(Message::A7Ratio, &values);
        if verdict.is_decided() {
            decided.push((said.clone(), *verdict));
        }
        evidence.insert(0, said);
    }
    evidence.truncate(super::EVIDENCE_MAX);
    let costs: Vec<String> = all
        .iter()
        .filter(|curve| !facts.plan.is_null(curve.condition))
        .map(|curve| {
            let slopes: Vec<f64> = net(facts, curve, all).0.into_values().collect();
            let label = &facts.plan.conditions[curve.condition].label;
            format!("{label} {} µs", units::significant(median(&slopes)))
        })
        .take(4)
        .collect();
    let matters = decided.iter().find(|(_, verdict)| *verdict == Verdict::DifferentMatters);
    let further =
        matters.map_or(String::new(), |(said, _)| facts.say(Message::A7Further, &[("said", said)]));
    let claim = facts.say(
        Message::A7Claim,
        &[
            ("whose", &facts.text(whose.message())),
            ("costs", &costs.join(", ")),
            ("further", &further),
        ],
    );
    let confidence = match (named.is_empty(), decided.len() == named.len()) {
        (false, true) => Confidence::Strong,
        (false, false) if decided.is_empty() => Confidence::NoAdvice,
        _ => Confidence::Moderate,
    };
    let apply = if matters.is_some() { Message::A7Cheaper } else { Message::A7Count };
    let basis = facts.all();
    Finding { confidence, claim, evidence, apply: facts.text(apply), basis }
}

/// Evaluates A8.
pub(crate) fn batch(facts: &Facts<'_>) -> Finding {
    let mut found = Vec::new();
    let mut evidence = Vec::new();
    let mut judged = 0;
    for condition in (0..facts.plan.conditions.len()).filter(|it| facts.plan.has_device(*it)) {
        for (_, cells) in by_rate(facts) {
            if let Some((batch, line)) = smallest(facts, condition, &cells) {
                judged += 1;
                found.extend(batch);
                evidence.push(line);
            }
        }
    }
    if judged == 0 {
        return facts.not_measured(Message::A8Few);
    }
    evidence.truncate(super::EVIDENCE_MAX);
    let Some(largest) = found.iter().copied().max() else {
        return Finding {
            confidence: Confidence::NoAdvice,
            claim: facts.text(Message::A8None),
            evidence,
            apply: facts.text(Message::A8Weigh),
            basis: facts.all(),
        };
    };
    let is_sure = found.len() == judged && found.iter().all(|batch| *batch == largest);
    Finding {
        confidence: if is_sure { Confidence::Strong } else { Confidence::Moderate },
        claim: facts.say(
            Message::A8Claim,
            &[("batch", &largest), ("count", &found.len()), ("all", &judged)],
        ),
        evidence,
        apply: facts.say(Message::A8Apply, &[("batch", &largest)]),
        basis: facts.all(),
    }
}

/// Returns cells that differ in batch only; the highest rate that all batches held comes last.
fn by_rate(facts: &Facts<'_>) -> BTreeMap<(usize, u64, u32, u64), BTreeMap<u32, usize>> {
    let mut all: BTreeMap<(usize, u64, u32, u64), BTreeMap<u32, usize>> = BTreeMap::new();
    for (index, cell) in facts.plan.cells.iter().enumerate().filter(|(_, cell)| cell.rate > 0) {
        let key = (cell.workload, cell.block_size, cell.jobs, cell.rate);
        all.entry(key).or_default().insert(cell.batch, index);
    }
    all
}

/// Returns the smallest good batch along cells, if there is one, and the evidence. The generator's own time
/// stays in, because batches save the sender's calls and wake-ups. On a device that does nothing its time is
/// mostly wake-ups, which on other devices serve completions too.
fn smallest(
    facts: &Facts<'_>,
    condition: usize,
    cells: &BTreeMap<u32, usize>,
) -> Option<(Option<u32>, String)> {
    let limits = facts.limits;
    let mut costs: BTreeMap<u32, f64> = BTreeMap::new();
    let mut tails: BTreeMap<u32, f64> = BTreeMap::new();
    let mut rounds = usize::MAX;
    for (batch, cell) in cells {
        let runs: Vec<&Run> =
            held(facts, condition).filter(|(index, _)| index == cell).map(|(_, run)| run).collect();
        let values = |metric| runs.iter().filter_map(|run| run.value(metric)).collect::<Vec<f64>>();
        let (cost, tail) = (values(Metric::CpuPerIo), values(Metric::LatencyP99));
        if cost.is_empty() || tail.is_empty() {
            continue;
        }
        costs.insert(*batch, median(&cost));
        tails.insert(*batch, median(&tail));
        // Fewer rounds than an interval needs are no evidence.
        rounds = rounds.min(if median_interval(&cost, 0.95).is_some() { cost.len() } else { 0 });
    }
    let is_enough = costs.len() >= limits.batches_min && rounds > 0 && tails.contains_key(&1);
    let (_, last) = costs.last_key_value().filter(|_| is_enough)?;
    let tail_max = limits.batch_tail * tails.get(&1)?;
    let is_good =
        |batch: &&u32| costs[*batch] <= limits.batch_cost * last && tails[*batch] <= tail_max;
    let batch = costs.keys().find(is_good).copied();
    let shown: Vec<String> = costs
        .iter()
        .map(|(batch, cost)| {
            let cell = cells[batch];
            let achieved: Vec<f64> =
                facts.samples(cell, condition, "batch_achieved").into_values().collect();
            let achieved = if achieved.is_empty() {
                String::new()
            } else {
                let achieved = format!("{:.1}", median(&achieved));
                facts.say(Message::A8Achieved, &[("achieved", &achieved)])
            };
            format!(
                "{batch}{achieved}: {} µs, p99 {:.0} µs",
                units::significant(*cost),
                tails[batch]
            )
        })
        .collect();
    let cell = &facts.plan.cells[*cells.values().next()?];
    let line = facts.say(
        Message::A8Line,
        &[
            ("name", &facts.name(cell.workload, condition)),
            ("size", &units::bytes(cell.block_size)),
            ("rate", &cell.rate),
            ("jobs", &cell.jobs),
            ("points", &shown.join(", ")),
            ("model", &model(facts, &costs)),
            ("n", &rounds),
        ],
    );
    Some((batch, line))
}

/// Returns the law of cost over batches, c = kernel and device + system call / b, if it fits.
fn model(facts: &Facts<'_>, costs: &BTreeMap<u32, f64>) -> String {
    let points: Vec<(f64, f64)> =
        costs.iter().map(|(batch, cost)| (1.0 / f64::from(*batch), *cost)).collect();
    match Line::fit(&points).filter(|line| line.r_squared >= facts.limits.model_r2_min) {
        Some(line) => format!(
            "c = {} + {} / b µs, R² = {:.3}",
            units::significant(line.intercept),
            units::significant(line.slope),
            line.r_squared
        ),
        None => facts.text(Message::AdviceNoModel),
    }
}
