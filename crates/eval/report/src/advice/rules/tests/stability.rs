//! A19 and A20 on planted values: a case with a finding, a case without, and a case without measurements.

use super::*;
use crate::advice::further_judgements;
use base::statistics::random::Random;
use lab::history::Results;
use lab::test_support::{TEXT, plan};
use loads::metric::Metric;

/// Returns a run with this noise, slower by `shift`, with this tail.
fn run(work: &Planned<'_>, seed: u64, noise: f64, shift: f64, tail: f64) -> Outcome {
    let index = u64::from(work.step.round) * 1000 + u64::from(work.step.position);
    let speed = (noise * Random::of(seed, index).normal() - shift).exp();
    Outcome {
        metrics: [
            (Metric::Bandwidth, 1e9 * speed),
            (Metric::Iops, 1e5 * speed),
            (Metric::LatencyP99, 100.0 / speed),
        ]
        .into(),
        further: [("p50_us".to_string(), 10.0), ("p999_us".into(), 10.0 * tail)].into(),
        ..Outcome::default()
    }
}

fn a20(rounds: u32, planted_run: impl Fn(&Planned<'_>) -> Outcome) -> Card {
    let plan = plan(TEXT, &[]);
    card(&advised(&plan, &planted(&plan, rounds, planted_run)), "A20")
}

/// Goal: A20 reports spread, two clusters and a tail; quiet runs are stable; two runs are not measured.
#[test]
fn a20_stability() {
    let spread = a20(21, |work| run(work, 1, 0.3, 0.0, 2.0));
    assert_eq!(spread.confidence, Confidence::Strong, "{spread:?}");
    assert!(spread.claim.starts_with("Unstable: do not quote one number for 8 of 8"), "{spread:?}");
    assert!(spread.evidence[0].contains("% of the mean, n = 20"), "{spread:?}");
    let clusters = a20(21, |work| {
        let is_slow = (work.step.round + work.step.cell as u32).is_multiple_of(2);
        run(work, 2, 0.005, if is_slow { 0.08 } else { 0.0 }, 2.0)
    });
    assert!(clusters.claim.contains("8 of 8"), "{clusters:?}");
    assert!(
        clusters
            .evidence
            .iter()
            .all(|line| line.contains("two clusters: ") && line.contains("(10 runs)")),
        "{clusters:?}"
    );
    let tail = a20(21, |work| run(work, 3, 0.01, 0.0, 150.0));
    assert!(tail.evidence[0].ends_with("p99.9 is 150 times p50"), "{tail:?}");
    let quiet = a20(21, |work| run(work, 4, 0.02, 0.0, 20.0));
    assert_eq!(quiet.confidence, Confidence::NoAdvice, "{quiet:?}");
    assert!(quiet.claim.starts_with("Stable: none of 8 cells"), "{quiet:?}");
    let few = a20(3, |work| run(work, 5, 0.3, 0.0, 150.0));
    assert_eq!(few.confidence, Confidence::NotMeasured, "{few:?}");
}

/// Returns A19 of one result per shift, each of its own day.
fn a19(shifts: &[f64]) -> Card {
    let plan = plan(TEXT, &[]);
    let stores: Vec<Store> = shifts
        .iter()
        .enumerate()
        .map(|(day, shift)| {
            let store = planted(&plan, 13, |work| run(work, day as u64, 0.02, *shift, 2.0));
            store.set("started", &format!("2026-11-{:02}", day + 1)).unwrap();
            store
        })
        .collect();
    let results: Vec<Results> =
        stores.iter().map(|store| Results::of(store, further_judgements).unwrap()).collect();
    let trend = Trend::of(&results.iter().collect::<Vec<_>>()).unwrap();
    let analysis = &results[results.len() - 1].analysis;
    card(&advised_of(&plan, analysis, Some(&trend)), "A19")
}

/// Goal: A19 finds a planted loss and is never strong about it; it reports no change or no decision
/// otherwise, does not take the variation between days for a loss, and needs three earlier results.
#[test]
fn a19_regression() {
    let fires = a19(&[0.0, 0.005, -0.005, 0.0, 0.002, 0.5]);
    assert_eq!(fires.confidence, Confidence::Moderate, "{fires:?}");
    assert!(
        fires.claim.starts_with("Worse than 5 earlier results in 12 of 12 values"),
        "{fires:?}"
    );
    assert!(fires.evidence[0].ends_with("different, matters (unpaired)"), "{fires:?}");
    let better = a19(&[0.0, 0.005, -0.005, 0.0, 0.002, -0.5]);
    assert!(better.claim.starts_with("Better than 5"), "{better:?}");
    let same = a19(&[0.0, 0.001, -0.001, 0.0, 0.001, -0.001, 0.0, 0.0, 0.001, 0.0]);
    assert!(!same.claim.contains("Worse") && same.confidence != Confidence::Strong, "{same:?}");
    let days_differ = a19(&[0.0, 0.3, -0.2, 0.1, 0.25, 0.3]);
    assert_eq!(days_differ.confidence, Confidence::NoAdvice, "{days_differ:?}");
    let few = a19(&[0.0, 0.0, 0.5]);
    assert_eq!(few.confidence, Confidence::NotMeasured, "{few:?}");
    assert!(few.claim.contains("there are 2 earlier results"), "{few:?}");
    let alone = one(&[], "A19");
    assert_eq!(alone.confidence, Confidence::NotMeasured, "{alone:?}");
}
