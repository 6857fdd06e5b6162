//! A9: one queue for all cores, or one for each?
//!
//! The rule uses closed loops by 1, 2, 4 … threads under both conditions. It fits the universal scalability
//! law in each round, so its contention σ and coherence κ have intervals. One queue is contended if one of
//! them is higher than with many queues. The rule ignores what threads do while they wait for a lock.

use super::EVIDENCE_MAX;
use crate::advice::{Basis, Confidence, Facts, Finding};
use base::messages::Message;
use base::statistics::{ALPHA, Evidence, Interval, Usl, Verdict, marked_label, median, t_interval};
use base::units;
use lab::analysis::Row;
use loads::metric::Metric;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

/// Cells that differ in their threads only, under both conditions of a comparison.
struct Curve {
    comparison: usize,
    /// The condition with a queue for each core.
    many: usize,
    /// The condition with one queue for all cores.
    one: usize,
    metric: Metric,
    /// Cells by threads.
    cells: BTreeMap<u32, usize>,
}

/// σ and κ over rounds.
struct Law {
    sigma: Interval,
    kappa: Interval,
    line: String,
}

/// One of the numbers of threads of a curve.
struct Point<'a> {
    curve: usize,
    threads: u32,
    /// Throughput of one queue against many.
    row: &'a Row,
    /// The median ratio of CPU time per operation.
    cpu: Option<f64>,
}

/// Evaluates A9.
pub(crate) fn one_or_many(facts: &Facts<'_>) -> Finding {
    let curves = curves(facts);
    if curves.is_empty() {
        return facts.not_measured(Message::A9Few);
    }
    let points = points(facts, &curves);
    // They are rows of the report, each judged once.
    let judged: Vec<(Evidence, Verdict)> =
        points.iter().map(|point| (point.row.evidence.clone(), point.row.verdict)).collect();
    let mut evidence = Vec::new();
    let mut contended = 0;
    for curve in &curves {
        let (one, many) = (law(facts, curve, curve.one), law(facts, curve, curve.many));
        let is_above = |part: fn(&Law) -> Interval| {
            one.as_ref()
                .zip(many.as_ref())
                .is_some_and(|(one, many)| part(one).low > part(many).high)
        };
        contended += usize::from(is_above(|law| law.sigma) || is_above(|law| law.kappa));
        for (law, condition) in [(one, curve.one), (many, curve.many)] {
            let said = law.map_or_else(|| facts.text(Message::A9NoModel), |law| law.line);
            evidence.push(format!("{}: {said}", named(facts, curve, condition)));
        }
    }
    for (point, (it, verdict)) in points.iter().zip(&judged) {
        evidence.push(line(facts, &curves[point.curve], point, it, *verdict));
    }
    evidence.extend(shared_cpus(facts, &curves));
    evidence.truncate(EVIDENCE_MAX);
    let last = |point: &Point<'_>| curves[point.curve].cells.keys().last() == Some(&point.threads);
    let of_last: Vec<(f64, Verdict)> = points
        .iter()
        .zip(&judged)
        .filter(|(point, _)| last(point))
        .map(|(_, (it, verdict))| (it.mean, *verdict))
        .collect();
    let is_same = judged.iter().all(|(_, verdict)| *verdict == Verdict::Equivalent);
    let (confidence, claim, apply) = conclude(facts, (curves.len(), contended), &of_last, is_same);
    let basis = Basis { cells: points.len(), ..facts.all() };
    Finding { confidence, claim, evidence, apply: facts.text(apply), basis }
}

/// Returns the advice; `of_last` are the ratios at the most threads.
fn conclude(
    facts: &Facts<'_>,
    (curves, contended): (usize, usize),
    of_last: &[(f64, Verdict)],
    is_same: bool,
) -> (Confidence, String, Message) {
    let matters = |is_less: bool| {
        let is_it = |(mean, verdict): &&(f64, Verdict)| {
            *verdict == Verdict::DifferentMatters && (*mean < 0.0) == is_less
        };
        of_last.iter().filter(is_it).count()
    };
    let (slower, faster) = (matters(true), matters(false));
    if contended > 0 {
        let is_sure = contended == curves && slower == curves;
        let values: [(&str, &dyn Display); 3] =
            [("contended", &contended), ("all", &curves), ("slower", &slower)];
        (
            if is_sure { Confidence::Strong } else { Confidence::Moderate },
            facts.say(Message::A9Contended, &values),
            Message::A9GiveEach,
        )
    } else if is_same {
        (Confidence::Strong, facts.text(Message::A9Nothing), Message::A9ByDevice)
    } else if slower > 0 && faster == 0 {
        let claim = facts.say(Message::A9Slower, &[("slower", &slower), ("all", &curves)]);
        (Confidence::Moderate, claim, Message::A9GiveMore)
    } else if faster > 0 && slower == 0 {
        let claim = facts.say(Message::A9Faster, &[("faster", &faster), ("all", &curves)]);
        (Confidence::Moderate, claim, Message::A9Keep)
    } else {
        (Confidence::NoAdvice, facts.text(Message::A9Unproven), Message::A9More)
    }
}

fn curves(facts: &Facts<'_>) -> Vec<Curve> {
    let mut found = Vec::new();
    for (comparison, it) in facts.plan.experiment.comparisons.iter().enumerate() {
        let sides = (facts.plan.condition(&it.baseline), facts.plan.condition(&it.other));
        let (Some("queue"), (Some(many), Some(one))) = (it.role.as_deref(), sides) else {
            continue;
        };
        let mut shapes: BTreeMap<_, BTreeMap<u32, usize>> = BTreeMap::new();
        for (index, cell) in facts.plan.cells.iter().enumerate().filter(|(_, it)| it.rate == 0) {
            let shape = (cell.workload, cell.block_size, cell.depth, cell.batch);
            let Some(metric) = facts.throughput(cell.workload) else { continue };
            if [many, one].iter().all(|it| facts.median_of(index, *it, metric).is_some()) {
                shapes.entry(shape).or_default().insert(cell.jobs, index);
            }
        }
        for ((workload, ..), cells) in shapes {
            let metric = facts.throughput(workload);
            if let Some(metric) = metric.filter(|_| cells.len() >= facts.limits.threads_min) {
                found.push(Curve { comparison, many, one, metric, cells });
            }
        }
    }
    found
}

fn points<'a>(facts: &Facts<'a>, curves: &[Curve]) -> Vec<Point<'a>> {
    let mut points = Vec::new();
    for (index, curve) in curves.iter().enumerate() {
        for (&threads, &cell) in &curve.cells {
            let ratios = |metric| {
                let many = facts.by_round(cell, curve.many, metric);
                let one = facts.by_round(cell, curve.one, metric);
                let ratio = |(round, value): (&u32, &f64)| Some((value / many.get(round)?).ln());
                one.iter().filter_map(ratio).filter(|it| it.is_finite()).collect::<Vec<f64>>()
            };
            let cpu = ratios(Metric::CpuPerIo);
            let cpu = (!cpu.is_empty()).then(|| median(&cpu));
            let families = &facts.analysis.families;
            let row = families
                .iter()
                .filter(|it| it.comparison == curve.comparison && it.metric == curve.metric)
                .flat_map(|family| &family.rows)
                .find(|row| row.cell == cell);
            points.extend(row.map(|row| Point { curve: index, threads, row, cpu }));
        }
    }
    points
}

/// Returns the law of a condition, if it fits in enough rounds.
fn law(facts: &Facts<'_>, curve: &Curve, condition: usize) -> Option<Law> {
    let by_cell: Vec<(f64, BTreeMap<u32, f64>)> = curve
        .cells
        .iter()
        .map(|(&threads, &cell)| {
            (f64::from(threads), facts.by_round(cell, condition, curve.metric))
        })
        .collect();
    let rounds: BTreeSet<u32> = by_cell.iter().flat_map(|(_, it)| it.keys().copied()).collect();
    let fit = |round: &u32| {
        let points: Option<Vec<(f64, f64)>> =
            by_cell.iter().map(|(n, values)| Some((*n, *values.get(round)?))).collect();
        Usl::fit(&points?).filter(|law| law.r_squared >= facts.limits.model_r2_min)
    };
    let fits: Vec<Usl> = rounds.iter().filter_map(fit).collect();
    if fits.len() < facts.limits.rounds_min {
        return None;
    }
    let of = |part: fn(&Usl) -> f64| -> Vec<f64> { fits.iter().map(part).collect() };
    let (sigmas, kappas) = (of(|it| it.sigma), of(|it| it.kappa));
    let (sigma, kappa) = (t_interval(&sigmas, 1.0 - ALPHA)?, t_interval(&kappas, 1.0 - ALPHA)?);
    let sigma_said = format!("{:.4} ({:.4} … {:.4})", median(&sigmas), sigma.low, sigma.high);
    let kappa_said = format!("{:.5} ({:.5} … {:.5})", median(&kappas), kappa.low, kappa.high);
    let line = facts
        .say(Message::A9Law, &[("sigma", &sigma_said), ("kappa", &kappa_said), ("n", &fits.len())]);
    Some(Law { sigma, kappa, line })
}

fn named(facts: &Facts<'_>, curve: &Curve, condition: usize) -> String {
    let cell = curve.cells.values().next().map_or(0, |cell| facts.plan.cells[*cell].workload);
    facts.name(cell, condition)
}

fn line(
    facts: &Facts<'_>,
    curve: &Curve,
    point: &Point<'_>,
    it: &Evidence,
    verdict: Verdict,
) -> String {
    let cpu = point.cpu.map_or_else(|| facts.text(Message::NotAvailable), units::percent);
    facts.say(
        Message::A9Line,
        &[
            ("comparison", &facts.plan.experiment.comparisons[curve.comparison].name),
            ("threads", &facts.language.several(point.threads, Message::Thread)),
            ("metric", &facts.text(curve.metric.message())),
            ("change", &units::percent(it.mean)),
            ("interval", &units::interval_behind(it.interval)),
            ("n", &it.n),
            ("verdict", &marked_label(it, verdict, facts.language)),
            ("cpu", &cpu),
        ],
    )
}

/// Returns a note if threads had to share CPUs, which the curve shows too.
fn shared_cpus(facts: &Facts<'_>, curves: &[Curve]) -> Option<String> {
    let most = curves.iter().filter_map(|curve| curve.cells.keys().last().copied()).max()?;
    let cpus = facts.analysis.runs.iter().find_map(|run| run.samples.get("cpu_count").copied())?;
    (f64::from(most) > cpus).then(|| {
        facts.say(Message::A9Shared, &[("threads", &most), ("cpus", &format!("{cpus:.0}"))])
    })
}
