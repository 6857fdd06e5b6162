//! Parts of the page.

use crate::report::{Figure, Report, chart, cost, risk};
use base::messages::Message;
use base::statistics::{Inconclusive, Verdict};
use base::units;
use loads::workload::Workload;
use plotters::style::RGBColor;
use std::collections::BTreeSet;
use std::fmt::{Display, Write as _};

/// Escapes text for HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Escapes a sentence for HTML. No line ends before a percent sign or within a unit: `n = 6`, `3 more`, `(†
/// of 12)`.
pub(crate) fn prose(text: &str) -> String {
    let mut text = escape(text);
    for apart in [" %", "n = ", "(† of ", "（† "] {
        text = text.replace(apart, &apart.replace(' ', "\u{a0}"));
    }
    for digit in '0'..='9' {
        text = text.replace(&format!("{digit} more"), &format!("{digit}\u{a0}more"));
    }
    text
}

/// Returns the class that colours a verdict.
pub(super) fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Equivalent => "equivalent",
        Verdict::DifferentMatters => "matters",
        Verdict::DifferentSmall => "small",
        Verdict::Inconclusive(Inconclusive::Withheld(_)) => "withheld",
        Verdict::Inconclusive(_) => "inconclusive",
    }
}

/// Writes a chart, with its caption as the accessible name, in the colours of the page.
pub(super) fn picture(page: &mut String, figure: &Figure) {
    let caption = escape(&figure.caption);
    let mut svg = figure.svg.clone();
    for (color, name) in [(chart::INK, "ink"), (chart::GRID, "grid"), (chart::BAND, "band")] {
        let RGBColor(red, green, blue) = color;
        let written = format!("\"#{red:02X}{green:02X}{blue:02X}\"");
        svg = svg.replace(&written, &format!("\"var(--{name})\""));
    }
    let svg = svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{caption}\" "), 1);
    let _ = writeln!(page, "<figure>\n{svg}\n<figcaption>{caption}</figcaption>\n</figure>");
}

/// Writes the files that a crash may damage under each condition, if the experiment has such conditions.
pub(super) fn risks(page: &mut String, report: &Report) {
    let said = |message| report.language.text(message);
    let rows = risk::rows(&report.plan, report.language);
    if rows.is_empty() {
        return;
    }
    let _ = write!(
        page,
        "<div class=\"scroll\"><table>\n<caption>{}</caption>\n<tr>",
        said(Message::RiskCaption)
    );
    for name in risk::HEAD {
        let _ = write!(page, "<th>{}</th>", said(name));
    }
    page.push_str("</tr>\n");
    for row in rows {
        let cells = row.map(|cell| format!("<td>{}</td>", escape(&cell)));
        let _ = writeln!(page, "<tr>{}</tr>", cells.concat());
    }
    page.push_str("</table></div>\n");
}

/// Writes the measured values by cell and condition.
pub(super) fn values(page: &mut String, report: &Report, workload: usize) {
    let plan = &report.plan;
    let load = &plan.experiment.workloads[workload];
    for &metric in &load.metrics {
        let curves: Vec<_> = (0..plan.conditions.len())
            .map(|condition| report.analysis.curve(plan, workload, condition, metric))
            .collect();
        let name = report.language.text(metric.message_with_unit());
        let caption = report.language.say(Message::ValuesCaption, &[("metric", &name)]);
        open_table(page, &caption);
        column(page, report, Message::ColumnCell);
        for condition in &plan.conditions {
            let _ = write!(page, "<th>{}</th>", escape(&condition.label));
        }
        page.push_str("</tr>\n");
        for (index, cell) in plan.cells.iter().enumerate().filter(|(_, it)| it.workload == workload)
        {
            let _ = write!(page, "<tr><th>{}</th>", escape(&cell.label_in(report.language)));
            for curve in &curves {
                let value = curve.iter().find(|point| point.cell == index);
                let shown = value
                    .map_or("–".into(), |point| units::significant(point.median / metric.unit()));
                let _ = write!(page, "<td>{shown}</td>");
            }
            page.push_str("</tr>\n");
        }
        page.push_str("</table></div>\n");
    }
}

/// Writes ratios, intervals and verdicts beside published values.
pub(super) fn ratios(page: &mut String, report: &Report, workload: usize) {
    let plan = &report.plan;
    let load = &plan.experiment.workloads[workload];
    if !report.analysis.families.iter().any(|it| it.workload == workload && !it.rows.is_empty()) {
        return;
    }
    let language = report.language;
    open_table(page, language.text(Message::RatiosCaption));
    for name in [
        Message::ColumnComparison,
        Message::ColumnCell,
        Message::ColumnMetric,
        Message::ColumnMean,
        Message::ColumnInterval,
        Message::ColumnMedian,
    ] {
        column(page, report, name);
    }
    page.push_str("<th>n</th>");
    column(page, report, Message::ColumnVerdict);
    page.push_str("</tr>\n");
    for family in report.analysis.families.iter().filter(|it| it.workload == workload) {
        let name = &plan.experiment.comparisons[family.comparison].name;
        for row in &family.rows {
            let evidence = &row.evidence;
            let interval = units::interval(evidence.interval);
            let _ = writeln!(
                page,
                "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{interval}</td><td>{}</td>\
                 <td>{}</td><td class=\"{}\">{}</td></tr>",
                escape(name),
                escape(&plan.cells[row.cell].label_in(language)),
                language.text(family.metric.message()),
                units::percent(evidence.mean),
                units::percent(evidence.median),
                evidence.n,
                class(row.verdict),
                prose(&row.label(language))
            );
        }
    }
    page.push_str("</table></div>\n");
    held_back(page, report.held_back(Some(workload)));
    published(page, report, load);
}

/// Writes the meaning of marked verdicts, if there are any.
pub(super) fn held_back(page: &mut String, meaning: Option<&str>) {
    if let Some(meaning) = meaning {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(meaning));
    }
}

/// Begins a table that sorts; its head row is open.
fn open_table(page: &mut String, caption: &str) {
    let _ = write!(
        page,
        "<div class=\"scroll\"><table class=\"sortable\">\n<caption>{}</caption>\n<tr>",
        escape(caption)
    );
}

/// Writes a field of the head row.
fn column(page: &mut String, report: &Report, name: Message) {
    let _ = write!(page, "<th>{}</th>", escape(report.language.text(name)));
}

/// Writes the published value of a workload.
fn published(page: &mut String, report: &Report, load: &Workload) {
    let (plan, language) = (&report.plan, report.language);
    let mut published = String::new();
    for comparison in &plan.experiment.comparisons {
        if let Some(text) = comparison.published.get(&load.name) {
            let _ = writeln!(published, "<li>{}: {}</li>", escape(&comparison.name), escape(text));
        }
    }
    if !published.is_empty() {
        let source = plan.experiment.source.as_deref();
        let source = source.unwrap_or(language.text(Message::PublishedBefore));
        let said = escape(&language.say(Message::Published, &[("source", &source)]));
        let _ = writeln!(page, "<p>{said}</p>\n<ul>\n{published}</ul>");
    }
}

/// Writes the CPU time of runs, if it was recorded.
pub(super) fn costs(page: &mut String, report: &Report, workload: usize) {
    let rows = cost::rows(report, workload);
    if rows.is_empty() {
        return;
    }
    open_table(page, report.language.text(Message::CostCaption));
    for name in cost::HEAD {
        column(page, report, name);
    }
    page.push_str("</tr>\n");
    for row in rows {
        page.push_str("<tr>");
        for (index, field) in row.iter().enumerate() {
            let tag = if index == 0 { "th" } else { "td" };
            let _ = write!(page, "<{tag}>{}</{tag}>", escape(field));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
}

/// Writes the cards.
pub(super) fn advice(page: &mut String, report: &Report) {
    let text = |message| report.language.text(message);
    let heading = text(Message::Advice);
    let _ = writeln!(page, "<section>\n<h2>{heading}</h2>\n<div class=\"cards\">");
    for card in &report.cards {
        let _ = writeln!(
            page,
            "<article class=\"card {}\">\n<h3>{} · {}</h3>\n<p class=\"claim\">{}</p>\n\
             <p><strong>{}</strong> {}</p>",
            card.confidence.label().replace(' ', "-"),
            card.id,
            escape(text(card.question)),
            prose(&card.claim),
            text(Message::Confidence),
            text(card.confidence.message()),
        );
        if !card.evidence.is_empty() {
            let evidence = text(Message::Evidence);
            let _ = writeln!(page, "<details open><summary>{evidence}</summary>\n<ul>");
            for line in &card.evidence {
                let _ = writeln!(page, "<li>{}</li>", prose(line));
            }
            page.push_str("</ul></details>\n");
        }
        let _ = writeln!(
            page,
            "<p><strong>{}</strong> {}</p>\n<p><strong>{}</strong> {}</p>\n\
             <p><strong>{}</strong> {}</p>\n</article>",
            text(Message::Apply),
            escape(&card.apply),
            text(Message::HoldsFor),
            escape(&card.scope),
            text(Message::WouldChange),
            escape(text(card.change))
        );
    }
    page.push_str("</div>\n");
    let is_marked = report.cards.iter().flat_map(|card| &card.evidence).any(|it| it.contains('†'));
    held_back(page, is_marked.then(|| text(Message::HeldBack)));
    page.push_str("</section>\n");
}

/// Writes the method, the environment, and what was omitted.
pub(super) fn environment(page: &mut String, report: &Report) {
    let (experiment, language) = (&report.plan.experiment, report.language);
    let timing = &experiment.timing;
    let percent = |margin: f64| format!("{:.0}", 100.0 * margin.exp_m1());
    let method = if experiment.engine.is_imported() {
        language.text(Message::MethodImported).to_string()
    } else {
        language.say(
            Message::MethodText,
            &[
                ("warm_up", &timing.warm_up_rounds),
                ("together", &report.analysis.judged_together),
                ("throughput", &percent(experiment.margins.throughput)),
                ("latency", &percent(experiment.margins.latency)),
                ("run", &units::seconds(timing.run.as_secs_f64())),
                ("ramp", &units::seconds(timing.ramp.as_secs_f64())),
            ],
        )
    };
    let counted: Vec<_> = report.analysis.runs.iter().filter(|run| !run.is_warm_up).collect();
    let unused = counted.iter().filter(|run| !run.is_usable()).count();
    let values: [(&str, &dyn Display); 2] = [("all", &counted.len()), ("unused", &unused)];
    let _ = writeln!(
        page,
        "<section>\n<h2>{}</h2>\n<p>{}</p>\n<p>{}</p>\n<ul>",
        language.text(Message::Method),
        escape(&method),
        escape(&language.say(Message::RunsCounted, &values))
    );
    for (mark, count) in report.marks() {
        let how = if mark.excludes() { Message::RunsLeftOut } else { Message::RunsMarked };
        let label = language.text(mark.message());
        let values: [(&str, &dyn Display); 2] = [("count", &count), ("mark", &label)];
        let _ = writeln!(page, "<li>{}</li>", escape(&language.say(how, &values)));
    }
    page.push_str("</ul>\n<table class=\"facts\">\n");
    for (name, value) in report.facts.iter().chain(&report.environment.facts) {
        let _ = writeln!(page, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    let thresholds = language.text(Message::Thresholds);
    let _ = writeln!(
        page,
        "</table>\n<details><summary>{thresholds}</summary>\n<table class=\"facts\" lang=\"en\">"
    );
    for line in lab::thresholds::THRESHOLDS.table() {
        let (rules, what, value) = (line.rules, line.what, line.shown());
        let _ = writeln!(page, "<tr><th>{rules}: {what}</th><td>{value}</td></tr>");
    }
    page.push_str("</table></details>\n</section>\n");
}

/// Writes the commands that repeat the experiment.
pub(super) fn commands(page: &mut String, report: &Report) {
    let text = |message| report.language.text(message);
    let experiment = &report.plan.experiment;
    let quick = if experiment.mode == lab::experiment::Mode::Quick { " --quick" } else { "" };
    let _ = writeln!(
        page,
        "<section>\n<h2>{}</h2>\n<p>{}</p>\n<pre>tsumugi eval run{quick} experiment.toml</pre>\n\
         <p>{}</p>\n<details><summary>{}</summary>",
        text(Message::Commands),
        text(Message::CommandsAgain),
        text(Message::CommandsRuns),
        text(Message::CommandsFiles)
    );
    let mut seen = BTreeSet::new();
    for run in report.analysis.runs.iter().filter(|run| run.is_usable()) {
        if seen.insert((&run.condition, &run.cell)) {
            let job = match run.job.as_str() {
                "" => String::new(),
                job => format!("\n{}\n{}", text(Message::JobFile), escape(job)),
            };
            let _ = writeln!(page, "<pre>{}{job}</pre>", escape(&run.command));
        }
    }
    page.push_str("</details>\n</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no line ends within a unit, and lines may end anywhere else; special characters of HTML are
    /// escaped.
    #[test]
    fn what_is_read_as_one_stays_on_one_line() {
        for (text, shown) in [
            ("a < b", "a &lt; b"),
            ("by 5 % (± 2 %), n = 6: so", "by 5_% (± 2_%), n_=_6: so"),
            ("need about 31 more († of 12)", "need about 31_more (†_of_12)"),
            ("need more than 1000 rounds of 12", "need more than 1000 rounds of 12"),
            ("未決（† 12 件中）、n = 6: 同等", "未決（†_12 件中）、n_=_6: 同等"),
        ] {
            assert_eq!(prose(text).replace('\u{a0}', "_"), shown);
        }
    }
}
