//! The page: verdicts first, then the evidence.

mod parts;

use super::{Report, export};
use base::messages::{Language, Message};
use lab::experiment::Mode;
use parts::picture;
pub(crate) use parts::{escape, prose};
use std::fmt::{Display, Write as _};

const STYLE: &str = include_str!("html/style.css");
const SORT: &str = include_str!("html/sort.js");

/// Returns a page around its body; `head` is put into its head beside the title.
pub(crate) fn shell(language: Language, title: &str, head: &str, body: &str) -> String {
    let (code, title) = (language.code(), escape(title));
    format!(
        "<!doctype html>\n<html lang=\"{code}\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n{head}<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n\
         <script>\n{SORT}</script>\n</body>\n</html>\n"
    )
}

/// Returns the whole page.
pub(super) fn page(report: &Report) -> String {
    let experiment = &report.plan.experiment;
    shell(report.language, &experiment.title, "", &body(report))
}

/// Returns the content of the page.
pub(crate) fn body(report: &Report) -> String {
    let (experiment, language) = (&report.plan.experiment, report.language);
    let mut page = format!(
        "<h1>{}</h1>\n<p class=\"question\">{}</p>\n",
        escape(&experiment.title),
        escape(&experiment.question)
    );
    let is_synthetic = experiment.engine.is_synthetic();
    let is_imported = experiment.engine.is_imported();
    for (is_so, what, means) in [
        (experiment.mode == Mode::Quick, Message::QuickForm, Message::QuickFormMeans),
        (is_synthetic, Message::SyntheticForm, Message::SyntheticFormMeans),
        (is_imported, Message::ImportedForm, Message::ImportedFormMeans),
    ] {
        if is_so {
            let (what, means) = (language.text(what), language.text(means));
            let _ = writeln!(page, "<p class=\"notice\"><strong>{what}</strong> {means}</p>");
        }
    }
    let heading = language.text(Message::Verdicts);
    let _ = writeln!(page, "<section>\n<h2>{heading}</h2>");
    verdicts(&mut page, report);
    page.push_str("</section>\n");
    for figure in report.figures.iter().filter(|figure| figure.workload.is_none()) {
        picture(&mut page, figure);
    }
    workloads(&mut page, report);
    parts::advice(&mut page, report);
    parts::environment(&mut page, report);
    data(&mut page, report);
    parts::commands(&mut page, report);
    page
}

/// Writes the verdicts in sentences.
pub(crate) fn verdicts(page: &mut String, report: &Report) {
    let language = report.language;
    for (label, reason) in &report.missing {
        let said =
            language.say(Message::NotAvailableBecause, &[("what", label), ("reason", reason)]);
        let _ = writeln!(page, "<p class=\"notice\">{}</p>", escape(&said));
    }
    let _ = writeln!(page, "<p>{}</p>", escape(&report.decided()));
    sentences(page, report);
}

/// Writes the sentences, by comparison.
pub(super) fn sentences(page: &mut String, report: &Report) {
    let language = report.language;
    parts::risks(page, report);
    for index in 0..report.plan.experiment.comparisons.len() {
        let _ = writeln!(page, "<h3>{}</h3>", escape(&report.comparison(index)));
        let families = report.analysis.families.iter().filter(|family| family.comparison == index);
        let mut lines = String::new();
        for family in families {
            if let Some(reason) = &family.missing {
                let load = &report.plan.experiment.workloads[family.workload].name;
                let values: [(&str, &dyn Display); 2] = [("workload", load), ("reason", reason)];
                let said = language.say(Message::NotMeasuredLoad, &values);
                let _ = writeln!(lines, "<li>{}</li>", escape(&said));
            }
            for row in &family.rows {
                let class = parts::class(row.verdict);
                let sentence = parts::prose(&report.sentence(family, row));
                let _ = writeln!(lines, "<li class=\"{class}\">{sentence}</li>");
            }
        }
        let _ = writeln!(page, "<ul class=\"verdicts\">\n{lines}</ul>");
    }
    parts::held_back(page, report.held_back(None));
}

/// Writes a figure and a table per workload.
fn workloads(page: &mut String, report: &Report) {
    for (index, load) in report.plan.experiment.workloads.iter().enumerate() {
        let _ = writeln!(page, "<section>\n<h2>{}</h2>", escape(&load.name));
        let _ = writeln!(page, "<p>{}.</p>", escape(&load.describe(report.language)));
        for figure in report.figures.iter().filter(|figure| figure.workload == Some(index)) {
            picture(page, figure);
        }
        parts::values(page, report, index);
        parts::ratios(page, report, index);
        parts::costs(page, report, index);
        page.push_str("</section>\n");
    }
}

/// Writes the data, for download from the page without a network or a script.
fn data(page: &mut String, report: &Report) {
    let text = |message| report.language.text(message);
    let (heading, lead) = (text(Message::Data), text(Message::DataInPage));
    let _ = write!(page, "<section>\n<h2>{heading}</h2>\n<p>{lead} ");
    let csv = export::csv(report);
    let json = export::json(report).unwrap_or_default();
    let experiment = &report.plan.experiment;
    let links = [
        ("results.csv", Message::DataRuns, "text/csv", csv),
        ("results.json", Message::DataVerdicts, "application/json", json),
        ("experiment.toml", Message::DataExperiment, "application/toml", experiment.text.clone()),
    ];
    for (index, (file, label, kind, content)) in links.iter().enumerate() {
        let data = export::base64(content.as_bytes());
        let (comma, label) = (if index == 0 { "" } else { ", " }, text(*label));
        let _ = write!(
            page,
            "{comma}<a download=\"{file}\" href=\"data:{kind};base64,{data}\">{label}</a>"
        );
    }
    let _ = writeln!(page, ".</p>\n<p>{}</p>\n</section>", text(Message::DataBeside));
}
