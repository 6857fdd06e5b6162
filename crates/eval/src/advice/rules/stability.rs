//! A20: whether one number may be quoted for a cell at all.
//!
//! Three things forbid it: values that spread over the rounds, values that fall into two clusters, and a
//! tail far above the median. Each is looked for in every cell under every condition, in the metric that
//! the workload is compared by first.

use super::EVIDENCE_MAX;
use crate::advice::{Confidence, Facts, Finding};
use crate::experiment::Metric;
use crate::statistics::{deviation, mean, median, modes};
use crate::units;

/// A20.
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
                unstable.push(format!(
                    "{} {}, {}: {}",
                    facts.name(facts.plan.cells[cell].workload, condition),
                    facts.plan.cells[cell].label(),
                    metric.word(),
                    found.join("; ")
                ));
            }
        }
    }
    if judged == 0 {
        return Finding::not_measured("no cell has three runs that count");
    }
    if unstable.is_empty() {
        return Finding {
            confidence: Confidence::NoAdvice,
            claim: format!(
                "Stable: none of {judged} cells spreads over its rounds or has such a tail; \
                 {looked_for_clusters} have runs enough to look for two clusters."
            ),
            evidence: Vec::new(),
            apply: "A median with its interval may be quoted.".into(),
        };
    }
    let count = unstable.len();
    unstable.truncate(EVIDENCE_MAX);
    Finding {
        confidence: Confidence::Strong,
        claim: format!("Unstable: do not quote one number for {count} of {judged} cells."),
        evidence: unstable,
        apply:
            "Quote ratios of pairs, which share what changes, or the whole distribution; look for \
                what else the machine did."
                .into(),
    }
}

fn spread(facts: &Facts<'_>, values: &[f64]) -> Option<String> {
    let variation = deviation(values) / mean(values);
    (variation > facts.limits.variation_max).then(|| {
        format!("deviation is {:.0} % of the mean, n = {}", 100.0 * variation, values.len())
    })
}

/// Two clusters, of logarithms, so that it means the same for small and large values.
fn clusters(facts: &Facts<'_>, values: &[f64], metric: Metric) -> Option<String> {
    if values.len() < facts.limits.modes_runs_min {
        return None;
    }
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let found = modes(&logs)?;
    let matters = found.high - found.low > facts.plan.experiment.margins.of(metric);
    (matters && found.gap > facts.limits.modes_gap).then(|| {
        let value = |log: f64| units::significant(log.exp() / metric.unit());
        format!(
            "two clusters: {} ({} runs) and {} ({} runs), {:.1} deviations apart",
            value(found.low),
            found.n.0,
            value(found.high),
            found.n.1,
            found.gap
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
    (ratio > facts.limits.tail_max).then(|| format!("p99.9 is {ratio:.0} times p50"))
}
