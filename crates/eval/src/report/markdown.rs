//! The report as Markdown.

use super::{Report, cost};
use crate::experiment::Mode;
use crate::units;
use std::fmt::Write as _;

/// The page.
pub(super) fn page(report: &Report) -> String {
    let experiment = &report.plan.experiment;
    let mut text = format!("# {}\n\n{}\n\n", experiment.title, experiment.question);
    if experiment.mode == Mode::Quick {
        text.push_str(
            "**Quick form**: few cells and short runs for a first look; it may well say \
             inconclusive.\n\n",
        );
    }
    for (label, reason) in &report.missing {
        let _ = writeln!(text, "*Not available*: {label}: {reason}\n");
    }
    text.push_str("## Verdicts\n\n| comparison | workload | cell | metric | change | 95 % interval | n | verdict |\n| --- | --- | --- | --- | ---: | --- | ---: | --- |\n");
    for family in &report.analysis.families {
        for row in &family.rows {
            let interval = row.evidence.interval.map_or("–".into(), |interval| {
                format!("{} … {}", units::percent(interval.low), units::percent(interval.high))
            });
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {interval} | {} | {} |",
                experiment.comparisons[family.comparison].name,
                experiment.workloads[family.workload].name,
                report.plan.cells[row.cell].label(),
                family.metric.word(),
                units::percent(row.evidence.mean),
                row.evidence.n,
                row.verdict
            );
        }
    }
    costs(&mut text, report);
    text.push_str("\n## Advice\n\n");
    for card in &report.cards {
        let _ = writeln!(
            text,
            "* **{} {}** ({}) {}",
            card.id,
            card.question,
            card.confidence.label(),
            card.claim
        );
    }
    text.push_str("\n## Environment and method\n\n");
    for (name, value) in report.facts.iter().chain(&report.environment.facts) {
        let _ = writeln!(text, "* {name}: {value}");
    }
    text
}

/// What runs cost in CPU time, where that was looked at.
fn costs(text: &mut String, report: &Report) {
    for (index, load) in report.plan.experiment.workloads.iter().enumerate() {
        let rows = cost::rows(report, index);
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n## CPU time: {}\n\n{}.\n", load.name, cost::CAPTION);
        let _ = writeln!(text, "| {} |", cost::HEAD.join(" | "));
        let _ = writeln!(text, "|{}", " --- |".repeat(cost::HEAD.len()));
        for row in rows {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
    }
}
