//! Parts of the page.

use crate::report::{Figure, Report, chart, cost};
use crate::statistics::Verdict;
use crate::units;
use plotters::style::RGBColor;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Text as HTML takes it.
pub(super) fn escape(text: &str) -> String {
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

/// The class that colours a verdict.
pub(super) fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Equivalent => "equivalent",
        Verdict::DifferentMatters => "matters",
        Verdict::DifferentSmall => "small",
        Verdict::Inconclusive(_) => "inconclusive",
    }
}

/// A chart, with its caption as the accessible name, in the colours of the page.
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

/// Measured values by cell and condition.
pub(super) fn values(page: &mut String, report: &Report, workload: usize) {
    let plan = &report.plan;
    let load = &plan.experiment.workloads[workload];
    for &metric in &load.metrics {
        let curves: Vec<_> = (0..plan.conditions.len())
            .map(|condition| report.analysis.curve(plan, workload, condition, metric))
            .collect();
        let _ = writeln!(
            page,
            "<div class=\"scroll\"><table class=\"sortable\">\n<caption>{}: median over rounds</caption>\n<tr>\
             <th>cell</th>",
            escape(metric.label())
        );
        for condition in &plan.conditions {
            let _ = write!(page, "<th>{}</th>", escape(&condition.label));
        }
        page.push_str("</tr>\n");
        for (index, cell) in plan.cells.iter().enumerate().filter(|(_, it)| it.workload == workload)
        {
            let _ = write!(page, "<tr><th>{}</th>", escape(&cell.label()));
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

/// Ratios, intervals and verdicts, with what was published before beside them.
pub(super) fn ratios(page: &mut String, report: &Report, workload: usize) {
    let plan = &report.plan;
    let load = &plan.experiment.workloads[workload];
    page.push_str(
        "<div class=\"scroll\"><table class=\"sortable\">\n<caption>changes from the baseline</caption>\n<tr>\
         <th>comparison</th><th>cell</th><th>metric</th><th>mean</th><th>95 % interval</th>\
         <th>median</th><th>n</th><th>verdict</th></tr>\n",
    );
    for family in report.analysis.families.iter().filter(|it| it.workload == workload) {
        let name = &plan.experiment.comparisons[family.comparison].name;
        for row in &family.rows {
            let evidence = &row.evidence;
            let interval = evidence.interval.map_or("–".into(), |interval| {
                format!("{} … {}", units::percent(interval.low), units::percent(interval.high))
            });
            let _ = writeln!(
                page,
                "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{interval}</td><td>{}</td>\
                 <td>{}</td><td class=\"{}\">{}</td></tr>",
                escape(name),
                escape(&plan.cells[row.cell].label()),
                family.metric.word(),
                units::percent(evidence.mean),
                units::percent(evidence.median),
                evidence.n,
                class(row.verdict),
                row.verdict
            );
        }
    }
    page.push_str("</table></div>\n");
    let mut published = String::new();
    for comparison in &plan.experiment.comparisons {
        if let Some(text) = comparison.published.get(&load.name) {
            let _ = writeln!(published, "<li>{}: {}</li>", escape(&comparison.name), escape(text));
        }
    }
    if !published.is_empty() {
        let source = plan.experiment.source.as_deref().unwrap_or("published before");
        let _ = writeln!(
            page,
            "<p>What was published, on other hardware ({}): compare the shape, not the \
             numbers.</p>\n<ul>\n{published}</ul>",
            escape(source)
        );
    }
}

/// What runs cost in CPU time, where that was looked at.
pub(super) fn costs(page: &mut String, report: &Report, workload: usize) {
    let rows = cost::rows(report, workload);
    if rows.is_empty() {
        return;
    }
    let _ = write!(
        page,
        "<div class=\"scroll\"><table class=\"sortable\">\n<caption>{}</caption>\n<tr>",
        escape(cost::CAPTION)
    );
    for name in cost::HEAD {
        let _ = write!(page, "<th>{}</th>", escape(name));
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

/// The cards.
pub(super) fn advice(page: &mut String, report: &Report) {
    page.push_str("<section>\n<h2>Advice</h2>\n<div class=\"cards\">\n");
    for card in &report.cards {
        let label = card.confidence.label();
        let _ = writeln!(
            page,
            "<article class=\"card {}\">\n<h3>{} · {}</h3>\n<p class=\"claim\">{}</p>\n\
             <p><strong>Confidence:</strong> {label}</p>",
            label.replace(' ', "-"),
            card.id,
            escape(card.question),
            escape(&card.claim)
        );
        if !card.evidence.is_empty() {
            page.push_str("<details open><summary>Evidence</summary>\n<ul>\n");
            for line in &card.evidence {
                let _ = writeln!(page, "<li>{}</li>", escape(line));
            }
            page.push_str("</ul></details>\n");
        }
        let _ = writeln!(
            page,
            "<p><strong>Apply:</strong> {}</p>\n<p><strong>Holds for:</strong> {}</p>\n\
             <p><strong>Would change it:</strong> {}</p>\n</article>",
            escape(&card.apply),
            escape(&card.scope),
            escape(card.change)
        );
    }
    page.push_str("</div>\n</section>\n");
}

/// How it was measured, on what, and what was left out.
pub(super) fn environment(page: &mut String, report: &Report) {
    let experiment = &report.plan.experiment;
    page.push_str("<section>\n<h2>Method and environment</h2>\n");
    let _ = writeln!(
        page,
        "<p>Each round runs every cell under every condition once: the cells in random order, \
         the conditions of a cell one right after the other in random order, with the same \
         offsets. The first {} rounds warm up and are not counted. Ratios are paired by round; \
         intervals are Student's on their logarithms. <em>Equivalent</em>: the 90 % interval \
         lies within the margin (two one-sided tests); <em>different</em>: no difference is \
         excluded at 95 %, by mean and median; <em>matters</em>: so is everything within the \
         margin. Margins: ± {:.0} % of bandwidth and IOPS, ± {:.0} % of latency. A run takes {} \
         after {} of ramp.</p>",
        experiment.timing.warm_up_rounds,
        100.0 * experiment.margins.throughput.exp_m1(),
        100.0 * experiment.margins.latency.exp_m1(),
        units::seconds(experiment.timing.run.as_secs_f64()),
        units::seconds(experiment.timing.ramp.as_secs_f64()),
    );
    let counted = report.analysis.runs.iter().filter(|run| !run.is_warm_up).count();
    let unusable =
        report.analysis.runs.iter().filter(|run| !run.is_warm_up && !run.is_usable()).count();
    let _ =
        writeln!(page, "<p>{counted} runs were counted, {unusable} of them not used.</p>\n<ul>");
    for (label, count, excludes) in report.marks() {
        let what = if excludes { "left out" } else { "marked" };
        let _ = writeln!(page, "<li>{count} runs {what}: {}</li>", escape(label));
    }
    page.push_str("</ul>\n<table class=\"facts\">\n");
    for (name, value) in report.facts.iter().chain(&report.environment.facts) {
        let _ = writeln!(page, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    page.push_str(
        "</table>\n<details><summary>Thresholds of the advice</summary>\n<table class=\"facts\">\n",
    );
    for (name, value) in crate::advice::THRESHOLDS.table() {
        let _ = writeln!(page, "<tr><th>{name}</th><td>{value}</td></tr>");
    }
    page.push_str("</table></details>\n</section>\n");
}

/// What to type to get the same again.
pub(super) fn commands(page: &mut String, report: &Report) {
    let experiment = &report.plan.experiment;
    let quick = if experiment.mode == crate::experiment::Mode::Quick { " --quick" } else { "" };
    let _ = writeln!(
        page,
        "<section>\n<h2>Commands</h2>\n<p>All of it again:</p>\n<pre>tsumugi eval \
         run{quick} experiment.toml</pre>\n<p>One run of each condition and cell, as it was \
         executed; job files, where there are some, are for any fio.</p>\n<details><summary>Job files and \
         commands</summary>"
    );
    let mut seen = BTreeSet::new();
    for run in report.analysis.runs.iter().filter(|run| run.is_usable()) {
        if seen.insert((&run.condition, &run.cell)) {
            let job = match run.job.as_str() {
                "" => String::new(),
                job => format!("\n# job file:\n{}", escape(job)),
            };
            let _ = writeln!(page, "<pre>{}{job}</pre>", escape(&run.command));
        }
    }
    page.push_str("</details>\n</section>\n");
}
