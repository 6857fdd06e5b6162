//! A19: whether the latest result is worse than the earlier ones of the same plan on the same machine.
//!
//! Results of different days are not paired, so a finding is moderate at most.

use super::EVIDENCE_MAX;
use crate::advice::{Confidence, Facts, Finding};
use base::messages::Message;
use base::statistics::Verdict;
use base::units;
use lab::history::{Kind, TrendRow};
use std::fmt::Display;

fn not_measured(facts: &Facts<'_>, why: String) -> Finding {
    Finding { apply: facts.text(Message::A19Apply), ..Finding::not_measured(why) }
}

/// Evaluates A19.
pub(crate) fn regression(facts: &Facts<'_>) -> Finding {
    let Some(trend) = facts.trend else {
        return not_measured(facts, facts.text(Message::A19None));
    };
    if !trend.is_judged() {
        let values: [(&str, &dyn Display); 2] =
            [("past", &trend.past()), ("wanted", &facts.limits.past_min)];
        return not_measured(facts, facts.say(Message::A19Few, &values));
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
        let values: [(&str, &dyn Display); 3] =
            [("past", &past), ("worse", &worse.len()), ("all", &count)];
        let claim = facts.say(Message::A19Worse, &values);
        (Confidence::Moderate, claim, Message::A19Compare)
    } else if better > 0 {
        let values: [(&str, &dyn Display); 3] =
            [("past", &past), ("better", &better), ("all", &count)];
        let claim = facts.say(Message::A19Better, &values);
        (Confidence::Moderate, claim, Message::AdviceNothing)
    } else if same == count && count > 0 {
        let claim = facts.say(Message::A19Same, &[("past", &past), ("all", &count)]);
        (Confidence::Moderate, claim, Message::AdviceNothing)
    } else {
        let claim = facts.say(Message::A19Unproven, &[("same", &same), ("all", &count)]);
        (Confidence::NoAdvice, claim, Message::A19More)
    };
    let told = if worse.is_empty() { rows } else { worse };
    let told = told.into_iter().take(EVIDENCE_MAX);
    let evidence = told.map(|row| line(facts, row)).collect();
    let basis = facts.all();
    Finding { confidence, claim, evidence, apply: facts.text(apply), basis }
}

fn line(facts: &Facts<'_>, row: &TrendRow) -> String {
    let change = &row.change;
    let (past, now) = change.n;
    facts.say(
        Message::A19Line,
        &[
            ("of", &change.of),
            ("workload", &change.workload),
            ("cell", &change.cell),
            ("metric", &facts.text(change.metric.message())),
            ("change", &units::percent(change.mean)),
            ("interval", &units::interval_behind(change.interval)),
            ("past", &past),
            ("now", &now),
            ("verdict", &change.said_in(facts.language)),
        ],
    )
}
