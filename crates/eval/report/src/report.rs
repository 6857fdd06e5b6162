//! Reports: one self-contained HTML file, and the same for other programs.
//!
//! A report is made from the database alone, so it can be made again, elsewhere, later. The HTML needs no
//! network and no script: charts are SVG in the page, and data is linked from within it.

mod chart;
mod cost;
mod export;
mod figures;
mod flaw;
pub(crate) mod html;
mod markdown;
mod overview;
mod png;
mod risk;

use crate::advice::{Card, advise, further_judgements};
use crate::error::Error;
use base::messages::{Language, Message};
use base::units;
use lab::analysis::{Analysis, Drift, Family, Row};
use lab::guard::Environment;
use lab::plan::Plan;
use lab::store::Store;
use loads::outcome::Mark;
use png::Painter;
use std::fmt::Display;
use std::path::{Path, PathBuf};

pub use figures::Figure;
pub use overview::{Overview, Study};

/// The content of a report.
#[derive(Debug)]
pub struct Report {
    /// The language of the report; findings of rules are in English.
    pub language: Language,
    /// The plan.
    pub plan: Plan,
    /// The analysis of the results.
    pub analysis: Analysis,
    /// The cards of advice.
    pub cards: Vec<Card>,
    /// Charts.
    pub figures: Vec<Figure>,
    /// The machine.
    pub environment: Environment,
    /// Further facts: versions, how it ended, how conditions were made.
    pub facts: Vec<(String, String)>,
    /// Conditions that were not available: label and reason.
    pub missing: Vec<(String, String)>,
    /// The content of the JSON, which is always in English.
    english: English,
}

/// The English content of a report in any language.
#[derive(Debug, Default)]
struct English {
    cards: Vec<Card>,
    facts: Vec<(String, String)>,
}

impl Report {
    /// Makes a report of results, in the language of their experiment.
    pub fn of(store: &Store) -> Result<Self, Error> {
        Self::in_language(store, None)
    }

    /// Makes a report of results in a language; `None` is that of their experiment.
    pub fn in_language(store: &Store, language: Option<Language>) -> Result<Self, Error> {
        let plan = store.plan()?;
        let language = language.unwrap_or(plan.experiment.language);
        let analysis = Analysis::of(&plan, store, further_judgements)?;
        let cards = advise(&plan, &analysis, None, language);
        let figures = figures::draw(&plan, &analysis, (store, language))?;
        let english = English {
            cards: advise(&plan, &analysis, None, Language::English),
            facts: facts(store, &plan, &analysis, (&figures, Language::English))?,
        };
        let facts = facts(store, &plan, &analysis, (&figures, language))?;
        let missing = store.missing_conditions()?;
        let missing = missing.into_iter().map(|(_, label, reason)| (label, reason)).collect();
        let environment = store.environment()?;
        Ok(Self { language, plan, analysis, cards, figures, environment, facts, missing, english })
    }

    /// Writes `report.html`, `report.md`, `results.csv`, `results.json` and the charts as SVG and PNG to a
    /// directory; returns the page's path.
    pub fn write(&self, directory: &Path) -> Result<PathBuf, Error> {
        let write = |name: &str, bytes: &[u8]| {
            let path = directory.join(name);
            std::fs::write(&path, bytes).map_err(Error::io("cannot write", &path))?;
            Ok::<_, Error>(path)
        };
        write("report.md", markdown::page(self).as_bytes())?;
        write("results.csv", export::csv(self).as_bytes())?;
        write("results.json", export::json(self)?.as_bytes())?;
        let charts = directory.join("charts");
        std::fs::create_dir_all(&charts).map_err(Error::io("cannot make", &charts))?;
        let painter = Painter::new();
        for figure in &self.figures {
            write(&format!("charts/{}.svg", figure.name), figure.svg.as_bytes())?;
            // The facts name signs without a font.
            if let Some(painter) =
                painter.as_ref().ok().filter(|it| it.lacks(&figure.svg).is_none())
            {
                write(&format!("charts/{}.png", figure.name), &painter.paint(&figure.svg)?)?;
            }
        }
        write("report.html", html::page(self).as_bytes())
    }

    /// Returns the plan and the verdicts alone, which are computed quickly.
    pub(crate) fn verdicts(store: &Store, language: Language) -> Result<Self, Error> {
        let plan = store.plan()?;
        let analysis = Analysis::of(&plan, store, further_judgements)?;
        let missing = store.missing_conditions()?;
        Ok(Self {
            language,
            plan,
            analysis,
            cards: Vec::new(),
            figures: Vec::new(),
            environment: store.environment()?,
            facts: Vec::new(),
            missing: missing.into_iter().map(|(_, label, reason)| (label, reason)).collect(),
            english: English::default(),
        })
    }

    /// Returns every run with all its values, as CSV.
    pub(crate) fn csv(&self) -> String {
        export::csv(self)
    }

    /// Returns verdicts and advice, as JSON.
    pub(crate) fn json(&self) -> Result<String, Error> {
        export::json(self)
    }

    /// Returns the report as Markdown.
    pub fn markdown(&self) -> String {
        markdown::page(self)
    }

    /// Returns a verdict in a sentence.
    fn sentence(&self, family: &Family, row: &Row) -> String {
        let language = self.language;
        let mut said = self.verdict_sentence(family, row);
        for flaw in self.flaws(row, language) {
            said = language.say(Message::SentenceWith, &[("sentence", &said), ("further", &flaw)]);
        }
        said
    }

    fn verdict_sentence(&self, family: &Family, row: &Row) -> String {
        let experiment = &self.plan.experiment;
        let interval = units::interval_behind(row.evidence.interval);
        let language = self.language;
        language.say(
            Message::VerdictSentence,
            &[
                ("comparison", &experiment.comparisons[family.comparison].name),
                ("workload", &experiment.workloads[family.workload].name),
                ("cell", &self.plan.cells[row.cell].label_in(language)),
                ("metric", &language.text(family.metric.message())),
                ("change", &units::percent(row.evidence.mean)),
                ("interval", &interval),
                ("n", &row.evidence.n),
                ("verdict", &row.label(language)),
            ],
        )
    }

    /// Returns the two sides of a comparison, in words.
    fn comparison(&self, index: usize) -> String {
        let comparison = &self.plan.experiment.comparisons[index];
        let label = |levels| {
            self.plan
                .condition(levels)
                .map_or("?", |condition| self.plan.conditions[condition].label.as_str())
        };
        self.language.say(
            Message::ComparisonOf,
            &[
                ("name", &comparison.name),
                ("other", &label(&comparison.other)),
                ("baseline", &label(&comparison.baseline)),
            ],
        )
    }

    /// Returns the meaning of the mark of verdicts, if there is one on any workload, or on this one.
    fn held_back(&self, workload: Option<usize>) -> Option<&'static str> {
        let mut families = self.analysis.families.iter();
        let is_marked = families.any(|family| {
            workload.is_none_or(|it| it == family.workload)
                && family.rows.iter().any(Row::is_held_back)
        });
        is_marked.then(|| self.language.text(Message::HeldBack))
    }

    /// Returns how much is decided, in a sentence.
    fn decided(&self) -> String {
        let (decided, all) = (self.analysis.decided_count(), self.analysis.rows_count());
        let rounds = self.analysis.rounds;
        let values: [(&str, &dyn Display); 3] =
            [("decided", &decided), ("all", &all), ("rounds", &rounds)];
        self.language.say(Message::DecidedOf, &values)
    }

    /// Returns the marks of runs, with the number of runs.
    fn marks(&self) -> Vec<(&Mark, usize)> {
        let mut counts: Vec<(&Mark, usize)> = Vec::new();
        for mark in
            self.analysis.runs.iter().filter(|run| !run.is_warm_up).flat_map(|run| &run.marks)
        {
            match counts.iter_mut().find(|(known, _)| *known == mark) {
                Some((_, count)) => *count += 1,
                None => counts.push((mark, 1)),
            }
        }
        counts
    }
}

/// Returns facts about an experiment beside its machine: name and value.
fn facts(
    store: &Store,
    plan: &Plan,
    analysis: &Analysis,
    (figures, language): (&[Figure], Language),
) -> Result<Vec<(String, String)>, Error> {
    let mut facts = Vec::new();
    for (key, name) in [
        ("ending", Message::FactEnding),
        ("engine", Message::FactEngine),
        ("tsumugi", Message::FactVersion),
        ("started", Message::FactStarted),
        ("run_seconds", Message::FactSeconds),
        ("conditions", Message::FactConditions),
    ] {
        if let Some(value) = store.get(key)? {
            facts.push((name, language.of_stored(&value)));
        }
    }
    if let Some(drift) = analysis.drift(plan) {
        facts.push((Message::FactDrift, drift_said(plan, &drift, language)));
    }
    let lacks = match Painter::new() {
        Ok(painter) => figures.iter().find_map(|figure| painter.lacks(&figure.svg)),
        Err(reason) => Some(reason),
    };
    if let Some(reason) = lacks {
        let said = language.say(Message::PngNotAvailable, &[("reason", &reason)]);
        facts.push((Message::FactPng, said));
    }
    facts.push((Message::FactPlan, plan.hash.clone()));
    Ok(facts.into_iter().map(|(name, value)| (language.text(name).into(), value)).collect())
}

/// Returns the drift in words.
fn drift_said(plan: &Plan, drift: &Drift, language: Language) -> String {
    let each: Vec<String> = drift
        .apart
        .iter()
        .map(|it| {
            let label = &plan.conditions[it.condition].label;
            format!("{label} {}", units::percent(it.change))
        })
        .collect();
    let each = each.join(", ");
    let (change, rounds) = (units::percent(drift.change), drift.rounds);
    let low = units::percent(drift.interval.low);
    let high = units::percent(drift.interval.high);
    let mut values: Vec<(&str, &dyn Display)> =
        vec![("change", &change), ("rounds", &rounds), ("low", &low), ("high", &high)];
    let message = if !drift.apart.is_empty() {
        values.push(("each", &each));
        Message::DriftApart
    } else if drift.is_seen() {
        Message::DriftSeen
    } else {
        Message::DriftUnseen
    };
    language.say(message, &values)
}

#[cfg(test)]
mod tests;
