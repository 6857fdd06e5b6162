//! The page: verdicts first, then why to believe them.

mod parts;

use super::{Report, export};
use crate::experiment::Mode;
use parts::{escape, picture};
use std::fmt::Write as _;

const STYLE: &str = include_str!("html/style.css");
const SORT: &str = include_str!("html/sort.js");

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let experiment = &report.plan.experiment;
    let title = escape(&experiment.title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n\
         <p class=\"question\">{}</p>\n",
        escape(&experiment.question)
    );
    if experiment.mode == Mode::Quick {
        page.push_str(
            "<p class=\"notice\"><strong>Quick form.</strong> Few cells and short runs, for a \
             first look: it may well say <em>inconclusive</em>, and its numbers are no \
             reference.</p>\n",
        );
    }
    if experiment.engine == crate::experiment::EngineKind::Synthetic {
        page.push_str(
            "<p class=\"notice\"><strong>Synthetic.</strong> No storage was measured: the \
             numbers were drawn from a known truth.</p>\n",
        );
    }
    verdicts(&mut page, report);
    for figure in report.figures.iter().filter(|figure| figure.workload.is_none()) {
        picture(&mut page, figure);
    }
    workloads(&mut page, report);
    parts::advice(&mut page, report);
    parts::environment(&mut page, report);
    data(&mut page, report);
    parts::commands(&mut page, report);
    let _ = write!(page, "</main>\n<script>\n{SORT}</script>\n</body>\n</html>\n");
    page
}

/// What was decided, in sentences.
fn verdicts(page: &mut String, report: &Report) {
    page.push_str("<section>\n<h2>Verdicts</h2>\n");
    for (label, reason) in &report.missing {
        let _ = writeln!(
            page,
            "<p class=\"notice\"><strong>Not available:</strong> {}: {}</p>",
            escape(label),
            escape(reason)
        );
    }
    let (decided, all) = (report.analysis.decided_count(), report.analysis.rows_count());
    let _ = writeln!(
        page,
        "<p>{decided} of {all} comparisons are decided after {} rounds.</p>",
        report.analysis.rounds
    );
    for index in 0..report.plan.experiment.comparisons.len() {
        let _ = writeln!(page, "<h3>{}</h3>", escape(&report.comparison(index)));
        let families = report.analysis.families.iter().filter(|family| family.comparison == index);
        let mut lines = String::new();
        for family in families {
            if let Some(reason) = &family.missing {
                let load = &report.plan.experiment.workloads[family.workload].name;
                let _ =
                    writeln!(lines, "<li>{}: not measured ({})</li>", escape(load), escape(reason));
            }
            for row in &family.rows {
                let class = parts::class(row.verdict);
                let sentence = escape(&report.sentence(family, row));
                let _ = writeln!(lines, "<li class=\"{class}\">{sentence}</li>");
            }
        }
        let _ = writeln!(page, "<ul class=\"verdicts\">\n{lines}</ul>");
    }
    page.push_str("</section>\n");
}

/// A figure and a table per workload.
fn workloads(page: &mut String, report: &Report) {
    for (index, load) in report.plan.experiment.workloads.iter().enumerate() {
        let _ = writeln!(page, "<section>\n<h2>{}</h2>", escape(&load.name));
        let _ = writeln!(page, "<p>{}.</p>", escape(&load.describe()));
        for figure in report.figures.iter().filter(|figure| figure.workload == Some(index)) {
            picture(page, figure);
        }
        parts::values(page, report, index);
        parts::ratios(page, report, index);
        parts::costs(page, report, index);
        page.push_str("</section>\n");
    }
}

/// The data, to be taken out of the page without a network or a script.
fn data(page: &mut String, report: &Report) {
    page.push_str("<section>\n<h2>Data</h2>\n<p>All of it is in this page: ");
    let csv = export::csv(report);
    let json = export::json(report).unwrap_or_default();
    let experiment = &report.plan.experiment;
    let links = [
        ("results.csv", "every run (CSV)", "text/csv", csv),
        ("results.json", "verdicts and advice (JSON)", "application/json", json),
        ("experiment.toml", "the experiment (TOML)", "application/toml", experiment.text.clone()),
    ];
    for (index, (file, label, kind, text)) in links.iter().enumerate() {
        let data = export::base64(text.as_bytes());
        let comma = if index == 0 { "" } else { ", " };
        let _ = write!(
            page,
            "{comma}<a download=\"{file}\" href=\"data:{kind};base64,{data}\">{label}</a>"
        );
    }
    page.push_str(
        ". The database beside it (results.sqlite) also holds what every run printed.</p>\n\
         </section>\n",
    );
}
