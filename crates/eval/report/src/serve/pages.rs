//! The pages of the site: the list of experiments, a running experiment, a report.

use super::REFRESH_SECONDS;
use super::catalog::Entry;
use super::http::{Body, Response};
use crate::error::Error;
use crate::report::Report;
use crate::report::html::{body, escape, shell, verdicts};
use base::messages::{Language, Message};
use base::units;
use lab::ending::Progress;
use lab::experiment::Mode;
use lab::live::Life;
use lab::store::Store;
use std::fmt::{Display, Write as _};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The files of an experiment for download: file and its name.
const FILES: [(&str, Message); 5] = [
    ("results.csv", Message::DataRuns),
    ("results.json", Message::DataVerdicts),
    ("report.md", Message::DataMarkdown),
    ("experiment.toml", Message::DataExperiment),
    ("results.sqlite", Message::DataDatabase),
];

/// Makes the browser reload, which works without a script.
fn refresh() -> String {
    format!("<meta http-equiv=\"refresh\" content=\"{REFRESH_SECONDS}\">\n")
}

/// Writes links to the page in the other languages and to the list.
fn navigation(page: &mut String, language: Language, has_index: bool) {
    page.push_str("<nav>");
    if has_index {
        let all = language.text(Message::AllExperiments);
        let _ = write!(page, "<a href=\"../?language={}\">{all}</a> ", language.code());
    }
    for (code, other) in Language::ALL.iter().filter(|(_, other)| *other != language) {
        let name = other.text(Message::LanguageName);
        let _ = write!(page, "<a href=\"?language={code}\" lang=\"{code}\">{name}</a> ");
    }
    page.push_str("</nav>\n");
}

/// Returns the list of experiments.
pub(super) fn index(rows: &[String], is_cut: bool, is_live: bool, language: Language) -> String {
    let title = language.text(Message::Experiments);
    let mut page = String::new();
    navigation(&mut page, language, false);
    let _ = writeln!(page, "<h1>{title}</h1>");
    if rows.is_empty() {
        let _ = writeln!(page, "<p>{}</p>", escape(language.text(Message::NoExperiments)));
    } else {
        page.push_str("<div class=\"scroll\"><table class=\"sortable index\">\n<tr>");
        for name in [
            Message::ColumnExperiment,
            Message::ColumnState,
            Message::FactStarted,
            Message::ColumnRounds,
            Message::ColumnDecided,
            Message::ColumnPlace,
        ] {
            let _ = write!(page, "<th>{}</th>", language.text(name));
        }
        let _ = writeln!(page, "</tr>\n{}</table></div>", rows.concat());
    }
    if is_cut {
        let _ =
            writeln!(page, "<p class=\"notice\">{}</p>", language.text(Message::MoreExperiments));
    }
    shell(language, title, &if is_live { refresh() } else { String::new() }, &page)
}

/// Returns an experiment's entry in the list.
pub(super) fn row(entry: &Entry, language: Language) -> Result<String, Error> {
    let store = Store::open_to_read(&entry.database)?;
    let report = Report::verdicts(&store, language)?;
    let experiment = &report.plan.experiment;
    let is_quick = experiment.mode == Mode::Quick;
    let quick = if is_quick { language.text(Message::QuickMark) } else { "" };
    Ok(format!(
        "<tr><th><a href=\"{}/?language={}\">{}</a>{quick}</th><td>{}</td><td class=\"time\">{}</td>\
         <td>{}</td><td>{} / {}</td><td>{}</td></tr>\n",
        entry.id,
        language.code(),
        escape(&experiment.title),
        escape(&state(entry, &store, language)?),
        escape(&store.get("started")?.unwrap_or("–".into())),
        report.analysis.rounds,
        report.analysis.decided_count(),
        report.analysis.rows_count(),
        escape(&entry.database.display().to_string()),
    ))
}

/// Returns the list's entry of an experiment that cannot be read.
pub(super) fn failed_row(entry: &Entry, error: &Error) -> String {
    let place = escape(&entry.database.display().to_string());
    let error = escape(&error.to_string());
    format!(
        "<tr><th>{}</th><td>{error}</td><td></td><td></td><td></td><td>{place}</td></tr>\n",
        entry.id
    )
}

/// Returns the state of an experiment, in words.
fn state(entry: &Entry, store: &Store, language: Language) -> Result<String, Error> {
    Ok(match entry.life {
        Life::Running if store.is_waiting()? => language.text(Message::StateWaiting).into(),
        Life::Running => language.text(Message::StateRunning).into(),
        Life::Killed => language.text(Message::StateKilled).into(),
        Life::Idle => match store.get("ending")? {
            Some(ending) => language.of_stored(&ending),
            None => language.text(Message::StateUnfinished).into(),
        },
    })
}

/// Returns a report, with links to the list and the files.
pub(super) fn report(entry: &Entry, report: &Report, is_waiting: bool) -> String {
    let language = report.language;
    let mut page = String::new();
    navigation(&mut page, language, true);
    if entry.life == Life::Running {
        let said = if is_waiting { Message::StateWaiting } else { Message::ReportSoFar };
        let said = language.text(said);
        let back = language.code();
        let _ = writeln!(page, "<p class=\"notice\"><a href=\"./?language={back}\">{said}</a></p>");
    }
    if entry.life == Life::Killed {
        let _ = writeln!(page, "<p class=\"notice\">{}</p>", language.text(Message::StateKilled));
    }
    files(&mut page, language);
    page.push_str(&body(report));
    shell(language, &report.plan.experiment.title, "", &page)
}

fn files(page: &mut String, language: Language) {
    let link = |(file, name): &(&str, Message)| {
        let code = language.code();
        format!("<a href=\"{file}?language={code}\">{}</a>", language.text(*name))
    };
    let links: Vec<String> = FILES.iter().map(link).collect();
    let _ = writeln!(page, "<p>{} {}</p>", language.text(Message::Files), links.join(", "));
}

/// Returns the page of a running experiment: its progress, and the verdicts so far.
pub(super) fn live(entry: &Entry, store: &Store, language: Language) -> Result<String, Error> {
    let report = Report::verdicts(store, language)?;
    let experiment = &report.plan.experiment;
    let mut page = String::new();
    navigation(&mut page, language, true);
    let _ = writeln!(
        page,
        "<h1>{}</h1>\n<p class=\"question\">{}</p>\n<p class=\"notice\"><strong>{}</strong> {}</p>",
        escape(&experiment.title),
        escape(&experiment.question),
        escape(&state(entry, store, language)?),
        language.say(Message::RefreshedEvery, &[("seconds", &REFRESH_SECONDS)])
    );
    match store.progress()? {
        _ if store.is_waiting()? => {}
        Some(progress) => show_progress(&mut page, &report, &progress),
        None => {
            let _ = writeln!(page, "<p>{}</p>", language.text(Message::Preparing));
        }
    }
    let _ = writeln!(page, "<section>\n<h2>{}</h2>", language.text(Message::VerdictsSoFar));
    verdicts(&mut page, &report);
    let (code, whole) = (language.code(), language.text(Message::WholeReport));
    let _ = writeln!(page, "</section>\n<p><a href=\"report?language={code}\">{whole}</a></p>");
    files(&mut page, language);
    Ok(shell(language, &experiment.title, &refresh(), &page))
}

fn show_progress(page: &mut String, report: &Report, progress: &Progress) {
    let (language, plan) = (report.language, &report.plan);
    let round = if progress.round == 0 {
        language.text(Message::WarmingUp).to_string()
    } else {
        language.say(Message::RoundOf, &[("round", &progress.round)])
    };
    let cell = plan.cells.iter().find(|cell| cell.id == progress.cell);
    let condition = plan.conditions.iter().find(|it| it.id == progress.condition);
    let what = cell.zip(condition).map_or(String::new(), |(cell, condition)| {
        let load = &plan.experiment.workloads[cell.workload].name;
        format!("{load} {}: {}", cell.label_in(language), condition.label)
    });
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
    let since = units::seconds((now - progress.begun_unix_ms).max(0) as f64 / 1000.0);
    let left = units::seconds(progress.seconds_left);
    let values: [(&str, &dyn Display); 4] =
        [("round", &round), ("done", &progress.done), ("total", &progress.total), ("left", &left)];
    let said = language.say(Message::ProgressOf, &values);
    let label = escape(&said);
    let now = language.say(Message::RunsNow, &[("what", &what), ("since", &since)]);
    let _ = writeln!(
        page,
        "<p><progress value=\"{}\" max=\"{}\" aria-label=\"{label}\"></progress></p>\n\
         <p>{label}</p>\n<p>{}</p>",
        progress.done,
        progress.total.max(1),
        escape(&now)
    );
}

/// Returns the answer if results cannot be read.
pub(super) fn failed(language: Language, error: &Error) -> Response {
    let title = language.text(Message::CannotShow);
    let said = format!("<h1>{title}</h1>\n<p>{}</p>\n", escape(&error.to_string()));
    let page = shell(language, title, "", &said).into_bytes();
    let kind = "text/html; charset=utf-8";
    Response { status: 500, kind, body: Body::Kept(Arc::new(page)), download: None, moved: None }
}
