//! Reports: one self-contained HTML file, and the same for other programs.
//!
//! Everything is made from the database alone, so a report can be made again, elsewhere, later. The
//! HTML needs no network and no script: charts are SVG in the page, data is linked from within it.

mod chart;
mod cost;
mod export;
mod figures;
mod html;
mod markdown;
mod png;

use crate::advice::{Card, advise};
use crate::analysis::{Analysis, Family, Row};
use crate::error::Error;
use crate::guard::Environment;
use crate::plan::Plan;
use crate::store::Store;
use crate::units;
use png::Painter;
use std::path::{Path, PathBuf};

pub use figures::Figure;

/// All that a report says.
#[derive(Debug)]
pub struct Report {
    /// The plan.
    pub plan: Plan,
    /// What the results say.
    pub analysis: Analysis,
    /// What follows.
    pub cards: Vec<Card>,
    /// Charts.
    pub figures: Vec<Figure>,
    /// The machine.
    pub environment: Environment,
    /// Further facts: versions, how it ended, how conditions were made.
    pub facts: Vec<(String, String)>,
    /// Conditions that were not available: label and reason.
    pub missing: Vec<(String, String)>,
}

impl Report {
    /// Makes a report of results.
    pub fn of(store: &Store) -> Result<Self, Error> {
        let plan = store.plan()?;
        let analysis = Analysis::of(&plan, store)?;
        let cards = advise(&plan, &analysis);
        let figures = figures::draw(&plan, &analysis)?;
        let mut facts = Vec::new();
        for (key, name) in [
            ("ending", "ended because"),
            ("engine", "load by"),
            ("tsumugi", "tsumugi"),
            ("started", "begun (UTC)"),
            ("run_seconds", "seconds"),
            ("conditions", "conditions"),
        ] {
            if let Some(value) = store.get(key)? {
                facts.push((name.into(), value));
            }
        }
        if let Some(drift) = analysis.drift(&plan) {
            let percent = units::percent;
            let said = format!(
                "{} from the first to the last of {} rounds ({} … {}){}",
                percent(drift.change),
                drift.rounds,
                percent(drift.interval.low),
                percent(drift.interval.high),
                if drift.is_seen() { "; pairs are immune to it" } else { "; none is seen" },
            );
            facts.push(("drift of the machine's speed".into(), said));
        }
        if let Err(reason) = Painter::new() {
            facts.push(("charts as PNG".into(), format!("not available: {reason}")));
        }
        facts.push(("plan (BLAKE3)".into(), plan.hash.clone()));
        let missing = store.missing_conditions()?;
        let missing = missing.into_iter().map(|(_, label, reason)| (label, reason)).collect();
        let environment = store.environment()?;
        Ok(Self { plan, analysis, cards, figures, environment, facts, missing })
    }

    /// Writes `report.html`, `report.md`, `results.csv`, `results.json` and the charts as SVG and PNG to
    /// a directory; gives the page's path.
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
            if let Ok(painter) = &painter {
                write(&format!("charts/{}.png", figure.name), &painter.paint(&figure.svg)?)?;
            }
        }
        write("report.html", html::page(self).as_bytes())
    }

    /// The report as Markdown.
    pub fn markdown(&self) -> String {
        markdown::page(self)
    }

    /// A verdict in a sentence.
    fn sentence(&self, family: &Family, row: &Row) -> String {
        let experiment = &self.plan.experiment;
        let interval = row.evidence.interval.map_or(String::new(), |interval| {
            format!(" ({} … {})", units::percent(interval.low), units::percent(interval.high))
        });
        format!(
            "{}: {}, {}: {} {}{interval}, n = {}: {}",
            experiment.comparisons[family.comparison].name,
            experiment.workloads[family.workload].name,
            self.plan.cells[row.cell].label(),
            family.metric.word(),
            units::percent(row.evidence.mean),
            row.evidence.n,
            row.verdict
        )
    }

    /// What a comparison is of, in words.
    fn comparison(&self, index: usize) -> String {
        let comparison = &self.plan.experiment.comparisons[index];
        let label = |levels| {
            self.plan
                .condition(levels)
                .map_or("?", |condition| self.plan.conditions[condition].label.as_str())
        };
        format!(
            "{}: {} against {} (baseline)",
            comparison.name,
            label(&comparison.other),
            label(&comparison.baseline)
        )
    }

    /// Runs by what keeps them out of verdicts or is worth knowing: label and count.
    fn marks(&self) -> Vec<(&'static str, usize, bool)> {
        let mut counts: Vec<(&'static str, usize, bool)> = Vec::new();
        for mark in
            self.analysis.runs.iter().filter(|run| !run.is_warm_up).flat_map(|run| &run.marks)
        {
            match counts.iter_mut().find(|(label, _, _)| *label == mark.label()) {
                Some((_, count, _)) => *count += 1,
                None => counts.push((mark.label(), 1, mark.excludes())),
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests;
