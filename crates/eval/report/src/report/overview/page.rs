//! The page of several studies: a table of them, then each with its verdicts and advice.

use super::{Overview, Study};
use crate::error::Error;
use crate::report::export;
use crate::report::html::{escape, prose, sentences, shell};
use base::messages::Message;
use std::fmt::{Display, Write as _};

/// Returns the whole page.
pub(super) fn page(overview: &Overview) -> Result<String, Error> {
    let language = overview.language;
    let title = language.text(Message::Studies);
    let mut page = format!("<h1>{title}</h1>\n<p>{}</p>\n", escape(&overview.summary()));
    if overview.is_quick() {
        let (what, means) =
            (language.text(Message::QuickForm), language.text(Message::QuickFormMeans));
        let _ = writeln!(page, "<p class=\"notice\"><strong>{what}</strong> {means}</p>");
    }
    table(&mut page, overview);
    for study in &overview.studies {
        section(&mut page, study);
    }
    unanswered(&mut page, overview);
    machines(&mut page, overview);
    let json = export::base64(overview.json()?.as_bytes());
    let _ = writeln!(
        page,
        "<section>\n<h2>{}</h2>\n<p><a download=\"results.json\" \
         href=\"data:application/json;base64,{json}\">{}</a></p>\n</section>",
        language.text(Message::Data),
        language.text(Message::DataVerdicts)
    );
    Ok(shell(language, title, "", &page))
}

/// Writes a table of all studies.
fn table(page: &mut String, overview: &Overview) {
    let text = |message| overview.language.text(message);
    page.push_str("<div class=\"scroll\"><table class=\"sortable index\">\n<tr>");
    for name in [
        Message::ColumnStudy,
        Message::ColumnState,
        Message::ColumnDecided,
        Message::NotAvailable,
        Message::ColumnReport,
    ] {
        let _ = write!(page, "<th>{}</th>", text(name));
    }
    page.push_str("</tr>\n");
    for study in &overview.studies {
        let analysis = &study.report.analysis;
        let _ = writeln!(
            page,
            "<tr><th><a href=\"#{}\">{}</a></th><td>{}</td><td>{} / {}</td><td>{}</td>\
             <td><a href=\"{}\">{}</a></td></tr>",
            study.anchor(),
            escape(&study.report.plan.experiment.title),
            escape(&study.state()),
            analysis.decided_count(),
            analysis.rows_count(),
            study.lacks().len(),
            escape(&study.link()),
            escape(&study.place)
        );
    }
    page.push_str("</table></div>\n");
}

/// Writes a study: question, what was not available, verdicts, advice.
fn section(page: &mut String, study: &Study) {
    let (experiment, language) = (&study.report.plan.experiment, study.report.language);
    let text = |message| language.text(message);
    let _ = writeln!(
        page,
        "<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"question\">{}</p>\n\
         <p>{} <a href=\"{}\">{}</a></p>",
        study.anchor(),
        escape(&experiment.title),
        escape(&experiment.question),
        escape(&study.state()),
        escape(&study.link()),
        text(Message::StudyReport)
    );
    let lacks = study.lacks();
    let _ = writeln!(page, "<h3>{}</h3>", text(Message::NotAvailable));
    if lacks.is_empty() {
        let _ = writeln!(page, "<p>{}</p>", text(Message::NothingLacks));
    } else {
        page.push_str("<ul>\n");
        for (what, reason) in &lacks {
            let _ = writeln!(page, "<li>{}: {}</li>", escape(what), escape(reason));
        }
        page.push_str("</ul>\n");
    }
    sentences(page, &study.report);
    let _ = writeln!(page, "<h3>{}</h3>\n<ul>", text(Message::Advice));
    for card in study.advice() {
        let _ = writeln!(
            page,
            "<li><strong>{} {}</strong> ({}) {}<br>{} {}</li>",
            card.id,
            escape(text(card.question)),
            text(card.confidence.message()),
            prose(&card.claim),
            text(Message::Apply),
            escape(&card.apply)
        );
    }
    page.push_str("</ul>\n</section>\n");
}

/// Writes the rules without measurements.
fn unanswered(page: &mut String, overview: &Overview) {
    let language = overview.language;
    let mut lines = String::new();
    for rule in overview.unanswered() {
        let (question, needs) = (language.text(rule.question), language.text(rule.needs));
        let values: [(&str, &dyn Display); 2] = [("question", &question), ("needs", &needs)];
        let said = language.say(Message::UnansweredNeeds, &values);
        let _ = writeln!(lines, "<li><strong>{}</strong> {}</li>", rule.id, escape(&said));
    }
    if !lines.is_empty() {
        let heading = language.text(Message::Unanswered);
        let _ = writeln!(page, "<section>\n<h2>{heading}</h2>\n<ul>\n{lines}</ul>\n</section>");
    }
}

/// Writes the machines of the measurements.
fn machines(page: &mut String, overview: &Overview) {
    let heading = overview.language.text(Message::Machine);
    let _ = writeln!(page, "<section>\n<h2>{heading}</h2>");
    for (names, facts) in overview.machines() {
        let _ = writeln!(
            page,
            "<table class=\"facts\">\n<caption>{}</caption>",
            escape(&names.join(", "))
        );
        for (name, value) in facts {
            let _ = writeln!(page, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
        }
        page.push_str("</table>\n");
    }
    page.push_str("</section>\n");
}
