//! Advice never contradicts itself, and is never strong on too little evidence.

use super::*;
use crate::advice::further_judgements;
use base::statistics::random::Random;
use lab::test_support::{head, plan};
use std::fmt::Write as _;

/// Returns an experiment of three storages on two workloads, with this number of block sizes, all compared
/// with each other.
fn text(sizes: usize, further: &str) -> String {
    let sizes = &["\"4KiB\"", "\"64KiB\"", "\"1MiB\""][..sizes];
    let sizes = sizes.join(", ");
    let mut text = head("storages", "synthetic");
    for name in ["tmpfs", "ext4", "xfs"] {
        let _ = write!(
            text,
            "[factors.storage.{name}]\nkind = \"synthetic\"\nnoise = 0.02\nlabel = \"{name}\"\n"
        );
        text += if name == "xfs" { further } else { "" };
    }
    for rw in ["read", "randwrite"] {
        let _ = write!(
            text,
            "[[workload]]\nname = \"{rw}\"\nrw = \"{rw}\"\nbs = [{sizes}]\njobs = [1]\n\
             metrics = [\"bandwidth\"]\n"
        );
    }
    for (one, two) in [("tmpfs", "ext4"), ("ext4", "xfs"), ("tmpfs", "xfs")] {
        let _ = write!(
            text,
            "[[comparison]]\nname = \"{two}/{one}\"\nrole = \"storage\"\n\
             baseline = {{ storage = \"{one}\" }}\nother = {{ storage = \"{two}\" }}\n"
        );
    }
    text
}

fn advised_where(plan: &Plan, factor: impl Fn(&Planned<'_>) -> f64) -> (Analysis, Vec<Card>) {
    let store = planted(plan, 20, |work| {
        let mut outcome = SyntheticEngine.run(&work.work(None), &Stop::default()).unwrap();
        outcome.metrics.values_mut().for_each(|value| *value *= factor(work));
        outcome
    });
    let analysis = Analysis::of(plan, &store, further_judgements).unwrap();
    let cards = advised_of(plan, &analysis, None);
    (analysis, cards)
}

/// Goal: a chain of storages has one answer; workloads that differ have one each.
#[test]
fn one_question_has_one_answer() {
    let plan = plan(&text(2, ""), &[]);
    let by_name = |work: &Planned<'_>, order: [&str; 3]| {
        let place = order.iter().position(|it| work.condition.id.ends_with(it)).unwrap();
        [1.0, 0.7, 0.4][place]
    };
    let (_, cards) = advised_where(&plan, |work| by_name(work, ["tmpfs", "ext4", "xfs"]));
    let a14 = card(&cards, "A14");
    assert_eq!(a14.apply, "Put files of these patterns on: tmpfs.", "{a14:?}");
    assert_eq!(a14.confidence, Confidence::Strong, "{a14:?}");
    let (_, cards) = advised_where(&plan, |work| {
        let is_read = plan.workload(work.step.cell).name == "read";
        let orders = [["xfs", "ext4", "tmpfs"], ["tmpfs", "ext4", "xfs"]];
        by_name(work, orders[usize::from(is_read)])
    });
    let a14 = card(&cards, "A14");
    assert_eq!(a14.apply, "read: tmpfs. randwrite: xfs.", "{a14:?}");
}

/// Goal: no storage is advised for a workload in which it loses to another, no question has two answers, and
/// no card is strong on one cell, a poor grade or a withheld verdict.
#[test]
fn random_results_give_no_contradiction() {
    for trial in 0..40_u64 {
        let mut random = Random::of(11, trial);
        let sizes = 1 + random.below(3);
        let further = ["", "trend = 0.1\n", "stalls = 0.2\n"][random.below(3)];
        let plan = plan(&text(sizes, further), &[]);
        let count = plan.cells.len() * plan.conditions.len();
        let factors: Vec<f64> = (0..count).map(|_| [0.5, 1.0, 2.0][random.below(3)]).collect();
        let (analysis, cards) = advised_where(&plan, |work| {
            factors[work.step.cell * plan.conditions.len() + work.step.condition]
        });
        let a14 = card(&cards, "A14");
        assert!(a14.apply.matches("Put files").count() <= 1, "{trial}: {a14:?}");
        for (index, load) in plan.experiment.workloads.iter().enumerate() {
            let said = a14.apply.split(". ").find(|it| it.starts_with(&format!("{}:", load.name)));
            let said = said.or(a14.apply.starts_with("Put").then_some(a14.apply.as_str()));
            for family in analysis.families.iter().filter(|family| family.workload == index) {
                let comparison = &plan.experiment.comparisons[family.comparison];
                for row in &family.rows {
                    let loser = match (row.verdict, row.evidence.mean < 0.0) {
                        (Verdict::DifferentMatters, true) => &comparison.other,
                        (Verdict::DifferentMatters, false) => &comparison.baseline,
                        _ => continue,
                    };
                    let loser = loser["storage"].as_str();
                    assert!(said.is_none_or(|it| !it.contains(loser)), "{trial}: {a14:?}");
                }
            }
        }
        let is_withheld =
            analysis.families.iter().flat_map(|it| &it.rows).any(|row| !row.flaws.is_empty());
        let grade = card(&cards, "A17").claim;
        let is_poor = grade.starts_with("Grade C") || grade.starts_with("Grade D");
        for strong in cards.iter().filter(|card| card.confidence == Confidence::Strong) {
            // Unstable single numbers do not withdraw the finding that they are unstable.
            assert!(!is_withheld || strong.id == "A20", "{trial}: {strong:?}");
            assert!(!is_poor, "{trial}: {strong:?}");
        }
    }
}

/// Goal: one cell alone makes no card strong, and the card states it.
#[test]
fn one_cell_is_never_strong() {
    let jobs = ("jobs = [1, 4]", "jobs = [1]");
    let sizes = ("bs = [\"4KiB\", \"1MiB\"]", "bs = [\"1MiB\"]");
    let text = lab::test_support::text(&[jobs, sizes, ("ratio = 1.0", "ratio = 0.5")]);
    let at = text.find("[[workload]]\nname = \"rand\"").unwrap();
    let end = text.find("[[comparison]]").unwrap();
    let plan = plan(&format!("{}{}", &text[..at], &text[end..]), &[]);
    let (_, cards) = advised_where(&plan, |_| 1.0);
    let a1 = card(&cards, "A1");
    assert_eq!(a1.confidence, Confidence::Moderate, "{a1:?}");
    assert!(a1.evidence.iter().any(|it| it.contains("one cell")), "{a1:?}");
    assert!(cards.iter().all(|card| card.confidence != Confidence::Strong), "{cards:?}");
}
