//! Rules that weigh one way against another: A10 (one file or many), A11 (collective or not), A12
//! (hints), A14 (storages).
//!
//! All compare over cells, and have the same four answers: one way, the other, the same, or it
//! depends on the transfer size.

use super::{Told, lines, share, with_role};
use crate::advice::{Confidence, Facts, Finding};
use crate::statistics::Verdict;
use crate::units;
use std::collections::BTreeMap;

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
        &Ways {
            baseline: "One shared file",
            other: "A file per rank",
            apply: [
                "Let all ranks write one file.",
                "Let each rank write a file of its own, as long as their number is no load by \
                 itself: at ten thousand files measure creating and closing too.",
            ],
            forbids_harm: false,
        },
    )
}

/// A11.
pub(crate) fn collective(facts: &Facts<'_>) -> Finding {
    of_role(
        facts,
        "collective-independent",
        &Ways {
            baseline: "Independent MPI-IO",
            other: "Collective MPI-IO",
            apply: [
                "Call MPI_File_write_at and the like, or switch two-phase I/O off by the hints \
                 romio_cb_read and romio_cb_write.",
                "Call MPI_File_write_at_all and the like.",
            ],
            forbids_harm: false,
        },
    )
}

/// A12.
pub(crate) fn hints(facts: &Facts<'_>) -> Finding {
    of_role(
        facts,
        "hint",
        &Ways {
            baseline: "The file without the hint",
            other: "The hint",
            apply: ["Leave it as it is.", "Set it; the experiment's file has its name and value."],
            forbids_harm: true,
        },
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
        let put = |name: &str| format!("Put files of these patterns on: {name}.");
        let ways = Ways {
            baseline: &baseline,
            other: &other,
            apply: [&put(&baseline), &put(&other)],
            forbids_harm: false,
        };
        prefer(facts, rows, &ways)
    });
    let Some(first) = findings.next() else { return Finding::not_measured("no pairs") };
    findings.fold(first, |mut all, next| {
        all.claim = format!("{} {}", all.claim, next.claim);
        if !all.apply.contains(&next.apply) {
            all.apply = format!("{} {}", all.apply, next.apply);
        }
        all.evidence.extend(next.evidence);
        if all.confidence != next.confidence {
            all.confidence = Confidence::Moderate;
        }
        all
    })
}

fn of_role(facts: &Facts<'_>, role: &str, ways: &Ways<'_>) -> Finding {
    match with_role(facts, role) {
        Ok(rows) => prefer(facts, &rows, ways),
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
    let (confidence, claim, apply) = if same >= 1.0 {
        let claim = format!("{other} and {} are equivalent in all {cells} cells.", lower(baseline));
        (Confidence::Strong, claim, "Take whichever is simpler, cheaper or safer.".to_string())
    } else if wins > 0.0 && losses == 0.0 {
        let claim =
            format!("{other} is faster in {} of {cells} cells, and nowhere slower.", count(wins));
        (one_sided(wins), claim, ways.apply[1].to_string())
    } else if losses > 0.0 && wins == 0.0 {
        let claim = format!(
            "{baseline} is faster in {} of {cells} cells, and nowhere slower.",
            count(losses)
        );
        (one_sided(losses), claim, ways.apply[0].to_string())
    } else if wins > 0.0 {
        let claim = format!(
            "It depends: {} is faster in {} of {cells} cells, {} in {}{}.",
            lower(other),
            count(wins),
            lower(baseline),
            count(losses),
            crossover(facts, rows, other, baseline)
        );
        let apply = if ways.forbids_harm {
            ways.apply[0].to_string()
        } else {
            "Choose by the cell that is most like your program.".to_string()
        };
        (Confidence::Moderate, claim, apply)
    } else {
        let claim = format!("Nothing is proven about {} yet.", lower(other));
        (Confidence::NoAdvice, claim, "Run the full form for an answer.".to_string())
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
    format!(
        "; {} up to transfers of {}, {} from {} on",
        lower(first),
        units::bytes(from),
        lower(second),
        units::bytes(to)
    )
}

/// Within a sentence; names in capitals stay.
fn lower(text: &str) -> String {
    let is_word = text.chars().nth(1).is_some_and(|second| !second.is_uppercase());
    if is_word { super::lower(text) } else { text.to_string() }
}
