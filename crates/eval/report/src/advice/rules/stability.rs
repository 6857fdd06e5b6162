//! A20: whether one number describes a cell.
//!
//! Three things forbid it: values that spread over the rounds, values that form two clusters, and a tail far
//! above the median. The rule checks every cell under every condition, in the metric that compares the
//! workload first.

use super::{EVIDENCE_MAX, whole_percent};
use crate::advice::{Basis, Confidence, Facts, Finding};
use base::messages::Message;
use base::statistics::{deviation, mean, median, modes};
use base::units;
use loads::metric::Metric;
use std::fmt::Display;

/// Evaluates A20.
pub(crate) fn stability(facts: &Facts<'_>) -> Finding {
    let (mut judged, mut looked_for_clusters) = (0, 0);
    let mut unstable = Vec::new();
    for cell in 0..facts.plan.cells.len() {
        let Some(&metric) = facts.plan.workload(cell).metrics.first() else { continue };
        for condition in 0..facts.plan.conditions.len() {
            let values: Vec<f64> = facts
                .by_round(cell, condition, metric)
                .into_values()
                .filter(|it| *it > 0.0)
                .collect();
            if values.len() < facts.limits.stable_runs_min {
                continue;
            }
            judged += 1;
            looked_for_clusters += usize::from(values.len() >= facts.limits.modes_runs_min);
            let found: Vec<String> = [
                spread(facts, &values),
                clusters(facts, &values, metric),
                tail(facts, cell, condition),
            ]
            .into_iter()
            .flatten()
            .collect();
            if !found.is_empty() {
                let values: [(&str, &dyn Display); 4] = [
                    ("name", &facts.name(facts.plan.cells[cell].workload, condition)),
                    ("cell", &facts.cell(cell)),
                    ("metric", &facts.text(metric.message())),
                    ("found", &found.join("; ")),
                ];
                unstable.push(facts.say(Message::A20Line, &values));
            }
        }
    }
    if judged == 0 {
        return facts.not_measured(Message::A20Few);
    }
    if unstable.is_empty() {
        return Finding {
            confidence: Confidence::NoAdvice,
            claim: facts
                .say(Message::A20Stable, &[("cells", &judged), ("looked", &looked_for_clusters)]),
            evidence: Vec::new(),
            apply: facts.text(Message::A20Quote),
            basis: facts.all(),
        };
    }
    let count = unstable.len();
    unstable.truncate(EVIDENCE_MAX);
    Finding {
        confidence: Confidence::Strong,
        claim: facts.say(Message::A20Unstable, &[("count", &count), ("cells", &judged)]),
        evidence: unstable,
        apply: facts.text(Message::A20Ratios),
        basis: Basis { cells: judged, is_withheld: false },
    }
}

fn spread(facts: &Facts<'_>, values: &[f64]) -> Option<String> {
    let variation = deviation(values) / mean(values);
    (variation > facts.limits.variation_max).then(|| {
        let share = whole_percent(variation);
        facts.say(Message::A20Spread, &[("share", &share), ("n", &values.len())])
    })
}

/// Describes two clusters of logarithms, so that the limit means the same for small and large values.
fn clusters(facts: &Facts<'_>, values: &[f64], metric: Metric) -> Option<String> {
    if values.len() < facts.limits.modes_runs_min {
        return None;
    }
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let found = modes(&logs)?;
    let matters = found.high - found.low > facts.plan.experiment.margins.of(metric);
    (matters && found.gap > facts.limits.modes_gap).then(|| {
        let value = |log: f64| units::significant(log.exp() / metric.unit());
        facts.say(
            Message::A20Clusters,
            &[
                ("low", &value(found.low)),
                ("low_runs", &found.n.0),
                ("high", &value(found.high)),
                ("high_runs", &found.n.1),
                ("gap", &format!("{:.1}", found.gap)),
            ],
        )
    })
}

fn tail(facts: &Facts<'_>, cell: usize, condition: usize) -> Option<String> {
    let half = facts.samples(cell, condition, "p50_us");
    let far = facts.samples(cell, condition, "p999_us");
    let ratios: Vec<f64> = half
        .iter()
        .filter_map(|(round, half)| Some(far.get(round)? / half))
        .filter(|ratio| ratio.is_finite())
        .collect();
    if ratios.len() < facts.limits.stable_runs_min {
        return None;
    }
    let ratio = median(&ratios);
    (ratio > facts.limits.tail_max)
        .then(|| facts.say(Message::A20Tail, &[("ratio", &format!("{ratio:.0}"))]))
}
