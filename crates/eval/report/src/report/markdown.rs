//! The report as Markdown.

use super::{Report, cost, risk};
use crate::advice::Card;
use base::messages::Message;
use base::units;
use lab::experiment::Mode;
use std::fmt::{Display, Write as _};

/// Returns the page.
pub(super) fn page(report: &Report) -> String {
    let (experiment, language) = (&report.plan.experiment, report.language);
    let said = |message| language.text(message);
    let mut text = format!("# {}\n\n{}\n\n", experiment.title, experiment.question);
    if experiment.mode == Mode::Quick {
        let (what, means) = (said(Message::QuickForm), said(Message::QuickFormMeans));
        let _ = writeln!(text, "**{what}** {means}\n");
    }
    for (label, reason) in &report.missing {
        let values: [(&str, &dyn Display); 2] = [("what", label), ("reason", reason)];
        let _ = writeln!(text, "*{}*\n", language.say(Message::NotAvailableBecause, &values));
    }
    risks(&mut text, report);
    let _ = writeln!(text, "## {}\n", said(Message::Verdicts));
    verdicts(&mut text, report);
    costs(&mut text, report);
    let _ = writeln!(text, "\n## {}\n", said(Message::Advice));
    advice(&mut text, report, report.cards.iter());
    let _ = writeln!(text, "\n## {}\n", said(Message::Method));
    for (name, value) in report.facts.iter().chain(&report.environment.facts) {
        let _ = writeln!(text, "* {name}: {value}");
    }
    text
}

/// Writes all verdicts, in a table.
pub(super) fn verdicts(text: &mut String, report: &Report) {
    let (experiment, language) = (&report.plan.experiment, report.language);
    let said = |message| language.text(message);
    let head = [
        Message::ColumnComparison,
        Message::ColumnWorkload,
        Message::ColumnCell,
        Message::ColumnMetric,
        Message::ColumnChange,
        Message::ColumnInterval,
    ];
    let _ = writeln!(
        text,
        "| {} | n | {} |\n| --- | --- | --- | --- | ---: | --- | ---: | --- |",
        head.map(said).join(" | "),
        said(Message::ColumnVerdict)
    );
    for family in &report.analysis.families {
        for row in &family.rows {
            let interval = units::interval(row.evidence.interval);
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {interval} | {} | {} |",
                experiment.comparisons[family.comparison].name,
                experiment.workloads[family.workload].name,
                report.plan.cells[row.cell].label_in(language),
                said(family.metric.message()),
                units::percent(row.evidence.mean),
                row.evidence.n,
                row.label(language)
            );
        }
    }
    for (family, row) in report.flawed() {
        let _ = write!(text, "\n* {}", report.sentence(family, row));
    }
    if report.flawed().next().is_some() {
        text.push('\n');
    }
    if let Some(meaning) = report.held_back(None) {
        let _ = writeln!(text, "\n{meaning}");
    }
}

/// Writes the cards, one per line.
pub(super) fn advice<'a>(
    text: &mut String,
    report: &Report,
    cards: impl Iterator<Item = &'a Card>,
) {
    let said = |message| report.language.text(message);
    for card in cards {
        let _ = writeln!(
            text,
            "* **{} {}** ({}) {}",
            card.id,
            said(card.question),
            said(card.confidence.message()),
            card.claim
        );
    }
}

/// Writes the files that a crash may damage, if the experiment has such conditions.
fn risks(text: &mut String, report: &Report) {
    let rows = risk::rows(&report.plan, report.language);
    if rows.is_empty() {
        return;
    }
    let said = |message| report.language.text(message);
    let head = risk::HEAD.map(said).join(" | ");
    let _ = writeln!(text, "{}:\n\n| {head} |", said(Message::RiskCaption));
    let _ = writeln!(text, "|{}", " --- |".repeat(risk::HEAD.len()));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text.push('\n');
}

/// Writes the CPU time of runs, if it was recorded.
fn costs(text: &mut String, report: &Report) {
    let language = report.language;
    for (index, load) in report.plan.experiment.workloads.iter().enumerate() {
        let rows = cost::rows(report, index);
        if rows.is_empty() {
            continue;
        }
        let heading = language.say(Message::CpuTime, &[("workload", &load.name)]);
        let caption = language.text(Message::CostCaption);
        let head = cost::HEAD.map(|name| language.text(name)).join(" | ");
        let _ = writeln!(text, "\n## {heading}\n\n{caption}.\n\n| {head} |");
        let _ = writeln!(text, "|{}", " --- |".repeat(cost::HEAD.len()));
        for row in rows {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
    }
}
