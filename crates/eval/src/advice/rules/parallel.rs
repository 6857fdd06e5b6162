//! Rules that weigh one way against another: A10 (one file or many), A11 (collective or not), A12
//! (hints), A14 (storages).
//!
//! All compare over cells, and have the same four answers: one way, the other, the same, or it
//! depends on the transfer size.

use super::{Told, lines, share, with_role};
use crate::advice::{Confidence, Facts, Finding};
use crate::messages::Message;
use crate::statistics::Verdict;
use crate::units;
use std::collections::BTreeMap;
use std::fmt::Display;

/// What is compared, in words.
pub(super) struct Ways<'a> {
    /// The baseline, e.g. "One shared file".
    pub(super) baseline: &'a str,
    /// The other, e.g. "A file per rank".
    pub(super) other: &'a str,
    /// What to do for the baseline, and for the other.
    pub(super) apply: [&'a str; 2],
    /// The least loss that forbids the other anywhere: hints must do no harm.
    pub(super) forbids_harm: bool,
}

/// A10.
pub(crate) fn own_files(facts: &Facts<'_>) -> Finding {
    of_role(
        facts,
        "own-shared",
        [Message::A10Shared, Message::A10Own],
        [Message::A10WriteOne, Message::A10WriteOwn],
        false,
    )
}

/// A11.
pub(crate) fn collective(facts: &Facts<'_>) -> Finding {
    of_role(
        facts,
        "collective-independent",
        [Message::A11Independent, Message::A11Collective],
        [Message::A11CallAt, Message::A11CallAll],
        false,
    )
}

/// A12.
pub(crate) fn hints(facts: &Facts<'_>) -> Finding {
    of_role(
        facts,
        "hint",
        [Message::A12Without, Message::A12Hint],
        [Message::A12Leave, Message::A12Set],
        true,
    )
}

/// A14: each comparison of two storages is judged by itself.
pub(crate) fn storages(facts: &Facts<'_>) -> Finding {
    let rows = match with_role(facts, "storage") {
        Ok(rows) => rows,
        Err(finding) => return finding,
    };
    let mut comparisons: BTreeMap<usize, Vec<Told<'_>>> = BTreeMap::new();
    for told in rows {
        comparisons.entry(told.family.comparison).or_default().push(told);
    }
    let label = |levels| match facts.plan.condition(levels) {
        Some(condition) => facts.plan.conditions[condition].label.clone(),
        None => "?".into(),
    };
    let mut findings = comparisons.iter().map(|(comparison, rows)| {
        let comparison = &facts.plan.experiment.comparisons[*comparison];
        let (baseline, other) = (label(&comparison.baseline), label(&comparison.other));
        let put = |name: &str| facts.say(Message::A14Put, &[("name", &name)]);
        let ways = Ways {
            baseline: &baseline,
            other: &other,
            apply: [&put(&baseline), &put(&other)],
            forbids_harm: false,
        };
        prefer(facts, rows, &ways)
    });
    let Some(first) = findings.next() else { return facts.not_measured(Message::A14NoPairs) };
    findings.fold(first, |mut all, next| {
        all.claim = facts.sentences(&[all.claim, next.claim]);
        if !all.apply.contains(&next.apply) {
            all.apply = facts.sentences(&[all.apply, next.apply]);
        }
        all.evidence.extend(next.evidence);
        if all.confidence != next.confidence {
            all.confidence = Confidence::Moderate;
        }
        all
    })
}

/// Judges the comparisons of a role: what baseline and other are called, and what to do for each.
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

/// One way, the other, the same, or it depends.
pub(super) fn prefer(facts: &Facts<'_>, rows: &[Told<'_>], ways: &Ways<'_>) -> Finding {
    let matters = |told: &Told<'_>| told.row.verdict == Verdict::DifferentMatters;
    let wins = share(rows, |told| matters(told) && told.gain() > 0.0);
    let losses = share(rows, |told| matters(told) && told.gain() < 0.0);
    let same = share(rows, |told| told.row.verdict == Verdict::Equivalent);
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
    let (confidence, claim, apply) = if same >= 1.0 {
        let values: [(&str, &dyn Display); 3] =
            [("other", &other), ("baseline", &lower(baseline)), ("cells", &cells)];
        let claim = facts.say(Message::PreferSame, &values);
        (Confidence::Strong, claim, facts.text(Message::PreferSimple))
    } else if wins > 0.0 && losses == 0.0 {
        (one_sided(wins), faster(other, count(wins)), ways.apply[1].to_string())
    } else if losses > 0.0 && wins == 0.0 {
        (one_sided(losses), faster(baseline, count(losses)), ways.apply[0].to_string())
    } else if wins > 0.0 {
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
    } else {
        let claim = facts.say(Message::PreferUnproven, &[("other", &lower(other))]);
        (Confidence::NoAdvice, claim, facts.text(Message::AdviceRunFull))
    };
    Finding { confidence, claim, evidence: lines(facts, rows), apply }
}

/// Where one way takes over from the other, if it does so once, between two transfer sizes.
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

/// Within a sentence; names in capitals stay.
fn lower(text: &str) -> String {
    let is_word = text.chars().nth(1).is_some_and(|second| !second.is_uppercase());
    if is_word { super::lower(text) } else { text.to_string() }
}
