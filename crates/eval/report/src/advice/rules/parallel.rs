//! Rules that compare two alternatives: A10 (one file or many), A11 (collective or not), A12 (hints), A14
//! (storages).
//!
//! All compare over cells, and have the same four answers: the one, the other, both alike, or it depends on
//! the transfer size.

use super::choice::{Choice, Way};
use super::{Told, lines, share, with_role};
use crate::advice::{Confidence, Facts, Finding};
use base::messages::Message;
use base::statistics::Verdict;
use base::units;
use lab::experiment::Comparison;
use std::collections::BTreeMap;
use std::fmt::Display;

/// The two alternatives in words.
pub(super) struct Ways<'a> {
    /// The baseline, e.g. "One shared file".
    pub(super) baseline: &'a str,
    /// The other, e.g. "A file per rank".
    pub(super) other: &'a str,
    /// The action to take for the baseline, and for the other.
    pub(super) apply: [&'a str; 2],
    /// The smallest loss that forbids the other: hints must do no harm.
    pub(super) forbids_harm: bool,
}

/// Evaluates A10.
pub(crate) fn own_files(facts: &Facts<'_>) -> Finding {
    of_role(
        facts,
        "own-shared",
        [Message::A10Shared, Message::A10Own],
        [Message::A10WriteOne, Message::A10WriteOwn],
        false,
    )
}

/// Evaluates A11.
pub(crate) fn collective(facts: &Facts<'_>) -> Finding {
    of_role(
        facts,
        "collective-independent",
        [Message::A11Independent, Message::A11Collective],
        [Message::A11CallAt, Message::A11CallAll],
        false,
    )
}

/// Evaluates A12.
pub(crate) fn hints(facts: &Facts<'_>) -> Finding {
    of_role(
        facts,
        "hint",
        [Message::A12Without, Message::A12Hint],
        [Message::A12Leave, Message::A12Set],
        true,
    )
}

/// Evaluates A14. It judges each comparison of two storages by itself.
pub(crate) fn storages(facts: &Facts<'_>) -> Finding {
    let rows = match with_role(facts, "storage") {
        Ok(rows) => rows,
        Err(finding) => return finding,
    };
    let mut comparisons: BTreeMap<usize, Vec<Told<'_>>> = BTreeMap::new();
    for told in &rows {
        comparisons.entry(told.family.comparison).or_default().push(*told);
    }
    let label = |condition: usize| facts.plan.conditions[condition].label.clone();
    let mut findings = Vec::new();
    for (comparison, rows) in &comparisons {
        let comparison = &facts.plan.experiment.comparisons[*comparison];
        let Some((baseline, other)) = sides(facts, comparison) else { continue };
        let (baseline, other) = (label(baseline), label(other));
        // The advice follows from all comparisons together.
        let ways =
            Ways { baseline: &baseline, other: &other, apply: ["", ""], forbids_harm: false };
        let mut finding = prefer(facts, rows, &ways);
        if comparisons.len() > 1 {
            finding.claim = format!("{}: {}", comparison.name, finding.claim);
        }
        findings.push(finding);
    }
    let Some(mut all) = together(facts, findings) else {
        return facts.not_measured(Message::A14NoPairs);
    };
    all.basis = super::of_rows(&rows);
    all.apply = put(facts, &rows);
    all
}

/// Returns the conditions of a comparison.
pub(super) fn sides(facts: &Facts<'_>, comparison: &Comparison) -> Option<(usize, usize)> {
    facts.plan.condition(&comparison.baseline).zip(facts.plan.condition(&comparison.other))
}

/// Merges findings of several comparisons: strong if all are.
pub(super) fn together(facts: &Facts<'_>, findings: Vec<Finding>) -> Option<Finding> {
    findings.into_iter().reduce(|mut all, next| {
        all.claim = facts.sentences(&[all.claim, next.claim]);
        all.evidence.extend(next.evidence);
        if all.confidence != next.confidence {
            all.confidence = Confidence::Moderate;
        }
        all
    })
}

/// Returns the storage for files: one answer for each workload, and one for all where they agree.
fn put(facts: &Facts<'_>, rows: &[Told<'_>]) -> String {
    let mut by_load: BTreeMap<usize, BTreeMap<usize, Vec<Told<'_>>>> = BTreeMap::new();
    for told in rows {
        let of_load = by_load.entry(told.family.workload).or_default();
        of_load.entry(told.family.comparison).or_default().push(*told);
    }
    let mut answers: Vec<(usize, Answer)> = Vec::new();
    for (workload, comparisons) in &by_load {
        let mut choice = Choice::default();
        let mut found = Vec::new();
        for (comparison, rows) in comparisons {
            let comparison = &facts.plan.experiment.comparisons[*comparison];
            let Some((baseline, other)) = sides(facts, comparison) else { continue };
            let way = Way::of(rows);
            choice.add(baseline, other, way);
            found.push(way);
        }
        let best = choice.best();
        let is_same = found.iter().all(|way| *way == Way::Same);
        let answer = match best.is_empty() {
            false => Answer::Best(best),
            true if is_same => Answer::Same,
            true if found.iter().any(|way| !matches!(way, Way::Same | Way::Unproven)) => {
                Answer::ByCell
            }
            true => Answer::None,
        };
        answers.push((*workload, answer));
    }
    let is_one = answers.windows(2).all(|pair| pair[0].1 == pair[1].1);
    if let (true, Some((_, answer))) = (is_one, answers.first()) {
        return match answer {
            Answer::Best(best) => facts.say(Message::A14Put, &[("name", &either(facts, best))]),
            Answer::Same => facts.text(Message::PreferSimple),
            Answer::ByCell => facts.text(Message::PreferCell),
            Answer::None => facts.text(Message::AdviceRunFull),
        };
    }
    let said = answers.iter().filter_map(|(workload, answer)| {
        let name = match answer {
            Answer::Best(best) => either(facts, best),
            Answer::Same => facts.text(Message::A14Any),
            Answer::ByCell => facts.text(Message::A14ByCell),
            Answer::None => return None,
        };
        let load = &facts.plan.experiment.workloads[*workload].name;
        Some(facts.say(Message::A14PutLoad, &[("workload", load), ("name", &name)]))
    });
    facts.sentences(&said.collect::<Vec<_>>())
}

/// The relation that comparisons find for a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Best(Vec<usize>),
    Same,
    ByCell,
    None,
}

/// Returns the labels of conditions that do not beat one another.
pub(super) fn either(facts: &Facts<'_>, conditions: &[usize]) -> String {
    let labels: Vec<&str> =
        conditions.iter().map(|it| facts.plan.conditions[*it].label.as_str()).collect();
    labels.join(facts.language.text(Message::AdviceOr))
}

/// Judges the comparisons of a role, with the names of baseline and other and the action for each.
fn of_role(
    facts: &Facts<'_>,
    role: &str,
    names: [Message; 2],
    apply: [Message; 2],
    forbids_harm: bool,
) -> Finding {
    let ([baseline, other], [for_baseline, for_other]) =
        (names.map(|it| facts.text(it)), apply.map(|it| facts.text(it)));
    let ways = Ways {
        baseline: &baseline,
        other: &other,
        apply: [&for_baseline, &for_other],
        forbids_harm,
    };
    match with_role(facts, role) {
        Ok(rows) => prefer(facts, &rows, &ways),
        Err(finding) => finding,
    }
}

/// Judges rows: the one, the other, both alike, or it depends.
pub(super) fn prefer(facts: &Facts<'_>, rows: &[Told<'_>], ways: &Ways<'_>) -> Finding {
    let matters = |told: &Told<'_>| told.row.verdict == Verdict::DifferentMatters;
    let wins = share(rows, |told| matters(told) && told.gain() > 0.0);
    let losses = share(rows, |told| matters(told) && told.gain() < 0.0);
    let strong = facts.limits.strong_share;
    let one_sided = |share: f64| match share {
        share if share >= strong => Confidence::Strong,
        _ => Confidence::Moderate,
    };
    let cells = rows.len();
    let count = |share: f64| (share * cells as f64).round() as usize;
    let (baseline, other) = (ways.baseline, ways.other);
    let faster = |way: &str, count: usize| {
        facts.say(Message::PreferFaster, &[("way", &way), ("count", &count), ("cells", &cells)])
    };
    let (confidence, claim, apply) = match Way::of(rows) {
        Way::Same => {
            let values: [(&str, &dyn Display); 3] =
                [("other", &other), ("baseline", &lower(baseline)), ("cells", &cells)];
            let claim = facts.say(Message::PreferSame, &values);
            (Confidence::Strong, claim, facts.text(Message::PreferSimple))
        }
        Way::Other => (one_sided(wins), faster(other, count(wins)), ways.apply[1].to_string()),
        Way::Baseline => {
            (one_sided(losses), faster(baseline, count(losses)), ways.apply[0].to_string())
        }
        Way::Depends => {
            let values: [(&str, &dyn Display); 6] = [
                ("other", &lower(other)),
                ("wins", &count(wins)),
                ("cells", &cells),
                ("baseline", &lower(baseline)),
                ("losses", &count(losses)),
                ("crossover", &crossover(facts, rows, other, baseline)),
            ];
            let claim = facts.say(Message::PreferDepends, &values);
            let apply = if ways.forbids_harm {
                ways.apply[0].to_string()
            } else {
                facts.text(Message::PreferCell)
            };
            (Confidence::Moderate, claim, apply)
        }
        Way::Unproven => {
            let claim = facts.say(Message::PreferUnproven, &[("other", &lower(other))]);
            (Confidence::NoAdvice, claim, facts.text(Message::AdviceRunFull))
        }
    };
    let (evidence, basis) = (lines(facts, rows), super::of_rows(rows));
    Finding { confidence, claim, evidence, apply, basis }
}

/// Returns the two transfer sizes between which the winner changes, if it changes once.
fn crossover(facts: &Facts<'_>, rows: &[Told<'_>], other: &str, baseline: &str) -> String {
    let size = |told: &&Told<'_>| facts.plan.cells[told.row.cell].block_size;
    let decided = || rows.iter().filter(|told| told.row.verdict == Verdict::DifferentMatters);
    let range = |wins: bool| {
        let sizes = decided().filter(|told| (told.gain() > 0.0) == wins).map(|told| size(&told));
        let sizes: Vec<u64> = sizes.collect();
        Some((sizes.iter().min().copied()?, sizes.iter().max().copied()?))
    };
    let (Some(wins), Some(losses)) = (range(true), range(false)) else { return String::new() };
    let (first, from, second, to) = if wins.1 < losses.0 {
        (other, wins.1, baseline, losses.0)
    } else if losses.1 < wins.0 {
        (baseline, losses.1, other, wins.0)
    } else {
        return String::new();
    };
    facts.say(
        Message::PreferCrossover,
        &[
            ("first", &lower(first)),
            ("from", &units::bytes(from)),
            ("second", &lower(second)),
            ("to", &units::bytes(to)),
        ],
    )
}

/// Returns a name for use within a sentence; names in capitals stay.
fn lower(text: &str) -> String {
    let is_word = text.chars().nth(1).is_some_and(|second| !second.is_uppercase());
    if is_word { super::lower(text) } else { text.to_string() }
}
