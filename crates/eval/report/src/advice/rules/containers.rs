//! Rules on many containers: A15 (how many), A16 (how their changes are copied). Both report each speed with
//! the files that a crash may damage.

use super::choice::{Choice, Way};
use super::parallel::{Ways, either, prefer, sides, together};
use super::{EVIDENCE_MAX, Told, with_role};
use crate::advice::{Confidence, Facts, Finding};
use base::messages::Message;
use base::statistics::{ALPHA, median, median_interval};
use base::units;
use loads::copyup::{ENGINE, PHASES};
use loads::metric::Metric;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

/// First and second writes over containers under one condition.
struct Curve {
    workload: usize,
    condition: usize,
    metric: Metric,
    phase: &'static str,
    /// By number of containers: cell, throughput of all, fairness.
    points: Vec<(u32, usize, f64, Option<f64>)>,
}

fn curves(facts: &Facts<'_>) -> Vec<Curve> {
    let mut curves = Vec::new();
    if !facts.plan.experiment.engine.is(&ENGINE) {
        return curves;
    }
    for workload in 0..facts.plan.experiment.workloads.len() {
        for condition in 0..facts.plan.conditions.len() {
            for (metric, phase) in PHASES {
                let mut points = Vec::new();
                let cells = facts.plan.cells.iter().enumerate();
                for (index, cell) in cells.filter(|(_, cell)| cell.workload == workload) {
                    let Some(all) = facts.median_of(index, condition, metric) else { continue };
                    let name = format!("{phase}_fairness");
                    let fair: Vec<f64> =
                        facts.samples(index, condition, &name).into_values().collect();
                    let fair = (!fair.is_empty()).then(|| median(&fair));
                    points.push((cell.jobs, index, all, fair));
                }
                points.sort_by_key(|point| point.0);
                if points.len() >= facts.limits.containers_min {
                    curves.push(Curve { workload, condition, metric, phase, points });
                }
            }
        }
    }
    curves
}

/// The findings on a curve.
struct Judged {
    condition: usize,
    /// The largest number of containers that are served fast enough and fairly; whether it is sure.
    most: Option<(u32, bool)>,
    /// The number from which on the total does not grow.
    knee: u32,
    collapses: bool,
    line: String,
}

/// Evaluates A15.
pub(crate) fn how_many(facts: &Facts<'_>) -> Finding {
    let curves = curves(facts);
    if curves.is_empty() {
        return facts.not_measured(Message::A15Few);
    }
    let judged: Vec<Judged> = curves.iter().map(|curve| judge(facts, curve)).collect();
    let evidence = judged.iter().map(|it| it.line.clone()).take(EVIDENCE_MAX).collect();
    let collapsing = judged.iter().filter(|it| it.collapses).count();
    let found: Vec<(u32, bool)> = judged.iter().filter_map(|it| it.most).collect();
    // Too many containers under one condition may be few under another.
    let mut most: BTreeMap<usize, u32> = BTreeMap::new();
    for it in &judged {
        if let Some((count, _)) = it.most {
            most.entry(it.condition).and_modify(|most| *most = count.min(*most)).or_insert(count);
        }
    }
    if most.is_empty() {
        return Finding {
            confidence: Confidence::NoAdvice,
            claim: facts.text(Message::A15None),
            evidence,
            apply: facts.text(Message::A15Weigh),
            basis: facts.all(),
        };
    }
    let is_strong = found.len() == judged.len() && found.iter().all(|(_, is_sure)| *is_sure);
    let range = range(facts, judged.iter().map(|it| it.knee));
    let collapse = match collapsing {
        0 => String::new(),
        count => facts.say(Message::A15Collapses, &[("count", &count), ("all", &judged.len())]),
    };
    let rate = facts.plan.experiment.limits.container_rate.map_or(String::new(), |rate| {
        facts.say(Message::A15Rate, &[("rate", &units::significant(rate))])
    });
    let (who, apply) = advised_most(facts, &most);
    let claim = facts.say(
        Message::A15Claim,
        &[
            ("who", &who),
            ("rate", &rate),
            ("count", &found.len()),
            ("all", &judged.len()),
            ("range", &range),
            ("collapse", &collapse),
        ],
    );
    Finding {
        confidence: if is_strong { Confidence::Strong } else { Confidence::Moderate },
        claim,
        evidence,
        apply,
        basis: facts.all(),
    }
}

/// Formats the range of numbers, from the smallest to the largest.
fn range(facts: &Facts<'_>, numbers: impl Iterator<Item = u32> + Clone) -> String {
    let (low, high) = (numbers.clone().min().unwrap_or(0), numbers.max().unwrap_or(0));
    if low == high {
        low.to_string()
    } else {
        facts.say(Message::RangeOf, &[("low", &low), ("high", &high)])
    }
}

/// Returns how many containers are served fairly, and the action to take, by condition where they differ.
fn advised_most(facts: &Facts<'_>, most: &BTreeMap<usize, u32>) -> (String, String) {
    let counts: BTreeSet<u32> = most.values().copied().collect();
    match counts.first().filter(|_| counts.len() == 1) {
        Some(1) => (facts.text(Message::A15One), facts.text(Message::A15ApplyOne)),
        Some(count) => {
            let values: [(&str, &dyn Display); 1] = [("most", count)];
            (facts.say(Message::A15UpTo, &values), facts.say(Message::A15Apply, &values))
        }
        None => {
            let range = range(facts, counts.iter().copied());
            let label = |condition: usize| &facts.plan.conditions[condition].label;
            let each =
                most.iter().map(|(condition, count)| format!("{}: {count}", label(*condition)));
            let list = each.collect::<Vec<_>>().join("; ");
            (
                facts.say(Message::A15Differ, &[("range", &range)]),
                facts.say(Message::A15ApplyEach, &[("list", &list)]),
            )
        }
    }
}

fn judge(facts: &Facts<'_>, curve: &Curve) -> Judged {
    let limits = facts.limits;
    let asked = facts.plan.experiment.limits.container_rate.unwrap_or(0.0);
    let peak = curve.points.iter().max_by(|a, b| a.2.total_cmp(&b.2)).copied();
    let (best_at, best_cell, best, _) = peak.unwrap_or_default();
    let knee = curve.points.iter().find(|point| point.2 >= limits.knee_share * best);
    let knee = knee.map_or(best_at, |point| point.0);
    let collapses = collapse(facts, curve, best_cell);
    let is_good = |(count, _, all, fair): &&(u32, usize, f64, Option<f64>)| {
        fair.is_some_and(|fair| fair >= limits.fairness_min)
            && all / f64::from(*count) >= asked
            // Beyond the peak each further container only takes a share.
            && (*count <= best_at || *all >= limits.collapse_share * best)
    };
    let most = curve.points.iter().filter(is_good).map(|point| point.0).max();
    let is_sure = |count: u32| {
        let point = curve.points.iter().find(|point| point.0 == count);
        point.is_some_and(|(_, cell, ..)| {
            let fair = facts.samples(*cell, curve.condition, &format!("{}_fairness", curve.phase));
            let fair: Vec<f64> = fair.into_values().collect();
            let all: Vec<f64> =
                facts.by_round(*cell, curve.condition, curve.metric).into_values().collect();
            let low = |values: &[f64]| median_interval(values, 1.0 - ALPHA).map(|it| it.low);
            low(&fair).is_some_and(|low| low >= limits.fairness_min)
                && low(&all).is_some_and(|low| low / f64::from(count) >= asked)
        })
    };
    let points: Vec<String> = curve
        .points
        .iter()
        .map(|(count, _, all, fair)| {
            let fair = fair.map(|fair| format!("{fair:.2}"));
            facts.say(
                Message::A15Point,
                &[
                    ("count", count),
                    ("all", &units::significant(*all)),
                    ("each", &units::significant(all / f64::from(*count))),
                    ("fair", &fair.unwrap_or_else(|| facts.text(Message::NotAvailable))),
                ],
            )
        })
        .collect();
    let fair_up_to = most.map(|count| count.to_string());
    let collapse = collapses.map_or(String::new(), |share| {
        facts.say(Message::A15Collapse, &[("share", &format!("{share:.2}"))])
    });
    Judged {
        condition: curve.condition,
        most: most.map(|count| (count, is_sure(count))),
        knee,
        collapses: collapses.is_some(),
        line: facts.say(
            Message::A15Line,
            &[
                ("name", &facts.name(curve.workload, curve.condition)),
                ("metric", &facts.text(curve.metric.message())),
                ("points", &points.join("; ")),
                ("best", &best_at),
                ("knee", &knee),
                ("most", &fair_up_to.unwrap_or_else(|| facts.text(Message::CostNone))),
                ("collapse", &collapse),
            ],
        ),
    }
}

/// Returns the share of its best throughput that remains with the most containers, if it is too little.
fn collapse(facts: &Facts<'_>, curve: &Curve, best: usize) -> Option<f64> {
    let last = curve.points.last()?.1;
    let at = |cell| facts.by_round(cell, curve.condition, curve.metric);
    let (best, last): (BTreeMap<u32, f64>, _) = (at(best), at(last));
    let shares: Vec<f64> =
        last.iter().filter_map(|(round, value)| Some(value / best.get(round)?)).collect();
    let interval = median_interval(&shares, 1.0 - ALPHA)?;
    (interval.high < facts.limits.collapse_share).then(|| median(&shares))
}

/// Evaluates A16. It judges each comparison of two kinds of copies by itself, first and second writes apart.
pub(crate) fn copy_policy(facts: &Facts<'_>) -> Finding {
    let rows = match with_role(facts, "copy-up") {
        Ok(rows) => rows,
        Err(finding) => return finding,
    };
    let mut comparisons: BTreeMap<usize, Vec<Told<'_>>> = BTreeMap::new();
    for told in rows {
        comparisons.entry(told.family.comparison).or_default().push(told);
    }
    let findings: Vec<Finding> =
        comparisons.iter().filter_map(|(index, rows)| policy(facts, *index, rows)).collect();
    let Some(mut all) = together(facts, findings) else {
        return facts.not_measured(Message::A16None);
    };
    let rows: Vec<Told<'_>> = comparisons.values().flatten().copied().collect();
    all.basis = super::of_rows(&rows);
    all.apply = take(facts, &comparisons);
    all
}

/// Returns the kind of copy to use, by first writes: one answer among the kinds with the same risk in a
/// crash, and one with any risk.
fn take(facts: &Facts<'_>, comparisons: &BTreeMap<usize, Vec<Told<'_>>>) -> String {
    let (mut safe, mut lossy) = (Choice::default(), Choice::default());
    let mut found = Vec::new();
    for (index, rows) in comparisons {
        let comparison = &facts.plan.experiment.comparisons[*index];
        let Some((baseline, other)) = sides(facts, comparison) else { continue };
        let of = |metric: Metric| -> Vec<Told<'_>> {
            rows.iter().filter(|told| told.family.metric == metric).copied().collect()
        };
        let first = of(Metric::CopyUpRate);
        let way = Way::of(&if first.is_empty() { of(Metric::SteadyRate) } else { first });
        let risk = |condition: usize| facts.plan.scheme(condition).map(|it| it.risk().files);
        let (Some(from), Some(to)) = (risk(baseline), risk(other)) else { continue };
        let is_lossy = match way {
            Way::Other => to.is_worse_than(from),
            Way::Baseline => from.is_worse_than(to),
            _ => false,
        };
        if is_lossy { &mut lossy } else { &mut safe }.add(baseline, other, way);
        found.push(way);
    }
    let mut said = Vec::new();
    for (choice, message) in [(&safe, Message::A16Take), (&lossy, Message::A16Lossy)] {
        let best = choice.best();
        if !best.is_empty() {
            said.push(facts.say(message, &[("name", &either(facts, &best))]));
        }
    }
    if said.is_empty() {
        let message = if !found.is_empty() && found.iter().all(|way| *way == Way::Same) {
            Message::PreferSimple
        } else if found.iter().all(|way| *way == Way::Unproven) {
            Message::AdviceRunFull
        } else {
            Message::PreferCell
        };
        said.push(facts.text(message));
    }
    facts.sentences(&said)
}

fn policy(facts: &Facts<'_>, index: usize, rows: &[Told<'_>]) -> Option<Finding> {
    let comparison = &facts.plan.experiment.comparisons[index];
    let side = |levels| {
        let condition = facts.plan.condition(levels)?;
        let risk = facts.plan.scheme(condition)?.risk();
        Some((facts.plan.conditions[condition].label.clone(), risk))
    };
    let ((baseline, from), (other, to)) = (side(&comparison.baseline)?, side(&comparison.other)?);
    // The advice follows from all comparisons together.
    let ways = Ways { baseline: &baseline, other: &other, apply: ["", ""], forbids_harm: false };
    let mut judged = Vec::new();
    for (metric, phase) in
        [(Metric::CopyUpRate, Message::A16First), (Metric::SteadyRate, Message::A16Second)]
    {
        let of_phase: Vec<Told<'_>> =
            rows.iter().filter(|told| told.family.metric == metric).copied().collect();
        if !of_phase.is_empty() {
            judged.push((phase, prefer(facts, &of_phase, &ways)));
        }
    }
    let (_, first) = judged.first()?;
    let confidence = first.confidence;
    let told = |(phase, finding): &(Message, Finding)| {
        format!("{}: {}", facts.text(*phase), finding.claim)
    };
    let phases: Vec<String> = judged.iter().map(told).collect();
    Some(Finding {
        confidence,
        claim: facts.say(
            Message::A16Claim,
            &[
                ("phases", &facts.sentences(&phases)),
                ("baseline", &baseline),
                ("baseline_after", &facts.text(from.after)),
                ("other", &other),
                ("other_after", &facts.text(to.after)),
            ],
        ),
        evidence: judged.into_iter().flat_map(|(_, finding)| finding.evidence).collect(),
        apply: String::new(),
        basis: super::of_rows(rows),
    })
}
