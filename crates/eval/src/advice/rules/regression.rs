//! A19: whether the latest result is worse than the earlier ones of the same plan on the same machine.
//!
//! Results of different days are not paired, so what it finds is moderate at most, however clear.

use super::EVIDENCE_MAX;
use crate::advice::{Confidence, Facts, Finding};
use crate::history::{Kind, TrendRow};
use crate::statistics::Verdict;
use crate::units;

fn not_measured(why: &str) -> Finding {
    let apply = "tsumugi eval run, the same on several days with its own --out, then eval history";
    Finding { apply: apply.into(), ..Finding::not_measured(why) }
}

/// A19.
pub(crate) fn regression(facts: &Facts<'_>) -> Finding {
    let Some(trend) = facts.trend else {
        return not_measured("this result was not put beside earlier ones");
    };
    if !trend.is_judged() {
        return not_measured(&format!(
            "there are {} earlier results of this plan on this machine, and {} are needed",
            trend.past(),
            facts.limits.past_min
        ));
    }
    let rows: Vec<&TrendRow> =
        trend.rows.iter().filter(|row| row.change.kind == Kind::Value).collect();
    let is = |row: &&&TrendRow, verdict| row.change.verdict == Some(verdict);
    let worse = trend.regressions();
    let better =
        rows.iter().filter(|row| is(row, Verdict::DifferentMatters) && !row.change.is_worse());
    let (better, same) =
        (better.count(), rows.iter().filter(|row| is(row, Verdict::Equivalent)).count());
    let count = rows.len();
    let past = trend.past();
    let (confidence, claim, apply) = if !worse.is_empty() {
        let claim = format!(
            "Worse than {past} earlier results in {} of {count} values (unpaired).",
            worse.len()
        );
        (
            Confidence::Moderate,
            claim,
            "Run the version before and this one on the same day, and compare.",
        )
    } else if better > 0 {
        let claim =
            format!("Better than {past} earlier results in {better} of {count} values (unpaired).");
        (Confidence::Moderate, claim, "Nothing to do.")
    } else if same == count && count > 0 {
        let claim = format!("As {past} earlier results in all {count} values (unpaired).");
        (Confidence::Moderate, claim, "Nothing to do.")
    } else {
        let claim = format!(
            "No regression is proven; {same} of {count} values are proven to be as before (unpaired)."
        );
        (Confidence::NoAdvice, claim, "More results of other days make it surer.")
    };
    let told = if worse.is_empty() { rows } else { worse };
    let evidence = told.into_iter().take(EVIDENCE_MAX).map(line).collect();
    Finding { confidence, claim, evidence, apply: apply.into() }
}

fn line(row: &TrendRow) -> String {
    let change = &row.change;
    let interval = units::interval_behind(change.interval);
    let (past, now) = change.n;
    format!(
        "{}, {} {}: {} {}{interval}, n = {past} before, {now} now: {}",
        change.of,
        change.workload,
        change.cell,
        change.metric.word(),
        units::percent(change.mean),
        change.said()
    )
}
