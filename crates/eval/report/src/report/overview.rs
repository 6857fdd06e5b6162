//! One report of several studies: the question, findings and advice of each, and what the machine lacked. It
//! links to the studies' own reports, which have the rest.

mod markdown;
mod page;
#[cfg(test)]
mod tests;

use super::{Report, export};
use crate::advice::{Card, Confidence, RULES, Rule};
use crate::error::Error;
use base::messages::{Language, Message};
use base::units;
use lab::ending::Ending;
use lab::experiment::Mode;
use lab::store::Store;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::path::{Path, PathBuf};

/// One of several studies.
#[derive(Debug)]
pub struct Study {
    /// The directory of its results, as a path relative to the overview.
    place: String,
    /// Its report.
    report: Report,
    /// Its state.
    state: State,
    /// Its duration in seconds.
    seconds: f64,
}

/// Facts of a machine, with the names of the studies that ran there.
type Machine<'a> = (Vec<&'a str>, &'a [(String, String)]);

/// The state of a study.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// It has not begun.
    NotBegun,
    /// It ended, for this reason (in English, as stored).
    Ended(String),
    /// It failed, for this reason.
    Failed(String),
    /// It is running, or was killed.
    Unfinished,
}

/// Several studies.
#[derive(Debug)]
pub struct Overview {
    language: Language,
    studies: Vec<Study>,
}

impl Study {
    /// Reads a study from its results. `place` is their directory, relative to the overview.
    pub fn of(store: &Store, place: String, language: Language) -> Result<Self, Error> {
        let report = Report::in_language(store, Some(language))?;
        let seconds = store.get("run_seconds")?.and_then(|text| text.parse().ok());
        let state = match (store.get("failure")?, store.get("ending")?, store.get("started")?) {
            (Some(reason), _, _) => State::Failed(reason),
            (None, Some(ending), _) => State::Ended(ending),
            (None, None, Some(_)) => State::Unfinished,
            (None, None, None) => State::NotBegun,
        };
        Ok(Self { place, report, state, seconds: seconds.unwrap_or(0.0) })
    }

    /// Returns its own report.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Returns the name by which a page links to its part.
    fn anchor(&self) -> String {
        let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "-_".contains(*letter);
        self.place.chars().filter(is_plain).collect()
    }

    /// Returns the address of its own report, relative to the overview (RFC 3986).
    fn link(&self) -> String {
        let mut link = String::new();
        for byte in self.place.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
                link.push(char::from(byte));
            } else {
                let _ = write!(link, "%{byte:02X}");
            }
        }
        format!("{link}/report.html")
    }

    /// Returns its state, in a sentence.
    fn state(&self) -> String {
        let language = self.report.language;
        match &self.state {
            State::NotBegun => language.text(Message::StudyNotBegun).into(),
            State::Failed(reason) => language.say(Message::StudyFailed, &[("reason", reason)]),
            State::Unfinished => language.text(Message::StudyUnfinished).into(),
            State::Ended(ending) => {
                let ending = language.of_stored(ending);
                let time = units::seconds(self.seconds);
                let rounds = self.report.analysis.rounds;
                let values: [(&str, &dyn Display); 3] =
                    [("rounds", &rounds), ("time", &time), ("ending", &ending)];
                language.say(Message::StudyEnded, &values)
            }
        }
    }

    /// Returns what was not available and why: conditions, and runs that failed.
    fn lacks(&self) -> Vec<(String, String)> {
        let mut lacks = self.report.missing.clone();
        let mut failed: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        for run in &self.report.analysis.runs {
            if let Some(error) = &run.error {
                *failed.entry((&run.condition, error)).or_default() += 1;
            }
        }
        let language = self.report.language;
        lacks.extend(failed.into_iter().map(|((condition, error), count)| {
            let plan = &self.report.plan;
            let known = plan.conditions.iter().find(|it| it.id == condition);
            let label = known.map_or(condition, |it| it.label.as_str());
            let values: [(&str, &dyn Display); 2] = [("condition", &label), ("count", &count)];
            (language.say(Message::RunsFailed, &values), error.to_string())
        }));
        lacks
    }

    /// Returns the cards with a finding.
    fn advice(&self) -> impl Iterator<Item = &Card> {
        self.report.cards.iter().filter(|card| card.confidence != Confidence::NotMeasured)
    }

    fn json(&self) -> Value {
        let mut value = export::value(&self.report);
        let experiment = &self.report.plan.experiment;
        let (state, reason) = match &self.state {
            State::NotBegun => ("not begun", None),
            State::Ended(ending) => ("ended", Some(ending)),
            State::Failed(reason) => ("failed", Some(reason)),
            State::Unfinished => ("unfinished", None),
        };
        let failed = self.report.analysis.runs.iter().filter(|run| run.error.is_some()).count();
        let further = json!({
            "title": experiment.title, "question": experiment.question, "report": self.link(),
            "state": state, "reason": reason, "seconds": self.seconds, "failed_runs": failed,
            "decided": self.report.analysis.decided_count(),
            "comparisons": self.report.analysis.rows_count(),
        });
        if let (Value::Object(value), Value::Object(further)) = (&mut value, further) {
            value.extend(further);
        }
        value
    }
}

impl Overview {
    /// Returns an overview of these studies, in the order in which they are shown.
    pub fn new(studies: Vec<Study>, language: Language) -> Self {
        Self { language, studies }
    }

    /// Writes `index.html`, `report.md` and `results.json` to a directory; returns the page's path.
    pub fn write(&self, directory: &Path) -> Result<PathBuf, Error> {
        let write = |name: &str, text: String| {
            let path = directory.join(name);
            std::fs::write(&path, text).map_err(Error::io("cannot write", &path))?;
            Ok::<_, Error>(path)
        };
        write("report.md", markdown::page(self))?;
        write("results.json", self.json()?)?;
        write("index.html", page::page(self)?)
    }

    /// Returns all of it for other programs, in English.
    fn json(&self) -> Result<String, Error> {
        let studies: Vec<Value> = self.studies.iter().map(Study::json).collect();
        let unanswered: Vec<Value> = self
            .unanswered()
            .map(|rule| {
                let (question, needs) = (rule.question.english(), rule.needs.english());
                json!({ "rule": rule.id, "question": question, "needs": needs })
            })
            .collect();
        export::text(&json!({ "studies": studies, "not_measured": unanswered }))
    }

    /// Returns the rules that no study answers.
    fn unanswered(&self) -> impl Iterator<Item = &'static Rule> {
        let is_answered =
            |rule: &Rule| self.studies.iter().any(|it| it.advice().any(|card| card.id == rule.id));
        RULES.iter().filter(move |rule| !is_answered(rule))
    }

    /// Returns the progress, in a sentence.
    fn summary(&self) -> String {
        let count = |of: fn(&Study) -> usize| self.studies.iter().map(of).sum::<usize>();
        let is_done =
            |it: &&Study| matches!(&it.state, State::Ended(how) if Ending::is_for_good(how));
        let done = self.studies.iter().filter(is_done).count();
        let seconds = units::seconds(self.studies.iter().map(|it| it.seconds).sum());
        self.language.say(
            Message::StudiesDone,
            &[
                ("done", &done),
                ("all", &self.studies.len()),
                ("time", &seconds),
                ("decided", &count(|it| it.report.analysis.decided_count())),
                ("comparisons", &count(|it| it.report.analysis.rows_count())),
            ],
        )
    }

    fn is_quick(&self) -> bool {
        self.studies.iter().any(|it| it.report.plan.experiment.mode == Mode::Quick)
    }

    /// Returns the measured machines, each once.
    fn machines(&self) -> Vec<Machine<'_>> {
        let mut machines: Vec<Machine<'_>> = Vec::new();
        for study in &self.studies {
            let facts = study.report.environment.facts.as_slice();
            if facts.is_empty() {
                continue;
            }
            let name = study.report.plan.experiment.name.as_str();
            match machines.iter_mut().find(|(_, known)| *known == facts) {
                Some((names, _)) => names.push(name),
                None => machines.push((vec![name], facts)),
            }
        }
        machines
    }
}
