//! Results that other programs measured, as runs of an experiment.
//!
//! A file becomes [`Record`]s: what was done, by which program, and what it gave. The records of all
//! files become one experiment with engine `imported`, which can be reported, compared and asked like
//! any other, but not run. The same point measured again is another round. What a file does not say is
//! not known: no cache was watched and no other load, so runs are marked for both, and nothing of the
//! machine is told but what is stated. Nothing pairs imported runs.

mod elbencho;
mod ffsb;
mod fio;
mod ior;
mod json;
mod text;

use crate::error::Error;
use crate::experiment::{Experiment, Mode};
use crate::guard::Environment;
use crate::plan::{Plan, Step};
use crate::store::{RunFacts, Store};
use base::calendar;
use loads::metric::Metric;
use loads::outcome::Mark;
use loads::outcome::Outcome;
use loads::workload::Pattern;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// What a store of imported results has under `origin`.
const ORIGIN: &str = "imported";
/// What IOR's text begins with, behind its version.
const IOR_HEAD: &str = "MPI Coordinated Test of Parallel I/O";
/// Where a store has its records, so that more can be added.
const RECORDS: &str = "imported";

/// Formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// fio's JSON (`--output-format=json` or `json+`), of version 3.
    FioJson,
    /// IOR's text of 2.10.3 to 4, and JSON of 4.
    Ior,
    /// What FFSB prints.
    Ffsb,
    /// elbencho's CSV file of results.
    Elbencho,
}

impl Format {
    /// All of them by name.
    pub const ALL: [(&'static str, Self); 4] = [
        ("fio-json", Self::FioJson),
        ("ior", Self::Ior),
        ("ffsb", Self::Ffsb),
        ("elbencho", Self::Elbencho),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| name)
    }

    /// Finds the format by what only its files have.
    pub fn detect(text: &str) -> Option<Self> {
        let is_json = text.trim_start().starts_with('{');
        let head = text.lines().next().unwrap_or_default();
        if text.contains("\"fio version\"") {
            Some(Self::FioJson)
        } else if (is_json && text.contains("\"bwMiB\"")) || text.contains(IOR_HEAD) {
            Some(Self::Ior)
        } else if text.contains("FFSB version ") {
            Some(Self::Ffsb)
        } else if head.contains("operation,") && head.contains("IOPS [last]") {
            Some(Self::Elbencho)
        } else {
            None
        }
    }
}

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wrong {
    line: usize,
    field: String,
    message: String,
}

impl Wrong {
    fn new(line: usize, field: &str, message: impl Into<String>) -> Self {
        Self { line, field: field.into(), message: message.into() }
    }
}

/// One run that another program made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The program with its version.
    pub program: String,
    /// Its command line, or empty if the file does not say it.
    pub command: String,
    /// The machine, as far as the file says it.
    pub machine: Option<String>,
    /// When it was begun, in seconds since 1970; a time without its zone counts as UTC.
    pub started_unix_s: Option<u64>,
    /// What the load is called.
    pub workload: String,
    /// How it was done: I/O engine, API.
    pub way: String,
    /// What it does, if that has a name here.
    pub pattern: Option<Pattern>,
    /// Whether each job had files of its own, if that is known.
    pub has_own_files: Option<bool>,
    /// Whether pages were bypassed.
    pub is_direct: bool,
    /// Bytes per operation; 0 where sizes mean nothing.
    pub block_bytes: u64,
    /// Jobs, threads or ranks.
    pub jobs: u32,
    /// Operations under way per job.
    pub depth: u32,
    /// Seconds of load, if known.
    pub seconds: f64,
    /// What was measured, in the database's units.
    pub metrics: BTreeMap<Metric, f64>,
    /// Further values, by name.
    pub further: BTreeMap<String, f64>,
    /// The part of the file that says it.
    pub raw: String,
}

impl Record {
    /// A record of a program that says nothing yet.
    pub fn of(program: &str) -> Self {
        Self {
            program: program.into(),
            command: String::new(),
            machine: None,
            started_unix_s: None,
            workload: String::new(),
            way: String::new(),
            pattern: None,
            has_own_files: None,
            is_direct: false,
            block_bytes: 0,
            jobs: 1,
            depth: 1,
            seconds: 0.0,
            metrics: BTreeMap::new(),
            further: BTreeMap::new(),
            raw: String::new(),
        }
    }

    /// What makes it a load of its own, beside its point.
    fn task(&self) -> (&str, Option<Pattern>, Option<bool>, bool) {
        (&self.workload, self.pattern, self.has_own_files, self.is_direct)
    }
}

/// What a file has.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its format.
    pub format: Format,
    /// Its runs.
    pub records: Vec<Record>,
}

/// Reads a file; its format is found by its content unless it is given.
pub fn read(path: &Path, format: Option<Format>) -> Result<Found, Error> {
    let size = std::fs::metadata(path).map_err(Error::io("cannot read", path))?.len();
    let wrong = |wrong: Wrong| Error::Import {
        path: path.into(),
        line: wrong.line,
        field: wrong.field,
        message: wrong.message,
    };
    if size > FILE_BYTES_MAX {
        let message = format!("is larger than {}", base::units::bytes(FILE_BYTES_MAX));
        return Err(wrong(Wrong::new(1, "file", message)));
    }
    let bytes = std::fs::read(path).map_err(Error::io("cannot read", path))?;
    let text = String::from_utf8_lossy(&bytes);
    let Some(format) = format.or_else(|| Format::detect(&text)) else {
        let names: Vec<&str> = Format::ALL.iter().map(|(name, _)| *name).collect();
        let message =
            format!("is none of the formats {}; name it with --format if it is", names.join(", "));
        return Err(wrong(Wrong::new(1, "format", message)));
    };
    let records = parse(&text, format).map_err(wrong)?;
    Ok(Found { format, records })
}

/// Reads a text of a format.
fn parse(text: &str, format: Format) -> Result<Vec<Record>, Wrong> {
    let records = match format {
        Format::FioJson => fio::parse(text),
        Format::Ior => ior::parse(text),
        Format::Ffsb => ffsb::parse(text),
        Format::Elbencho => elbencho::parse(text),
    }?;
    if records.is_empty() {
        let last = text.lines().count().max(1);
        return Err(Wrong::new(last, format.name(), "the file ends before any result"));
    }
    Ok(records)
}

/// A number of a text, finite and not below 0.
fn number(text: &str, line: usize, field: &str) -> Result<f64, Wrong> {
    let number = text.trim().parse::<f64>().ok();
    number
        .filter(|number| number.is_finite() && *number >= 0.0)
        .ok_or_else(|| Wrong::new(line, field, format!("{text:?} is no number from 0 on")))
}

/// Puts records into a store; one that is there has to be of imported results, and gets more of them.
/// The report shows `sources`.
pub fn store(
    path: &Path,
    name: &str,
    records: Vec<Record>,
    sources: &[String],
) -> Result<Store, Error> {
    let (mut all, mut told) = (Vec::new(), Vec::new());
    if path.exists() {
        let old = Store::open(path)?;
        if !is_imported(&old)? {
            let message = format!("{} has results that were measured here", path.display());
            return Err(Error::Results(format!("{message}: choose another --into")));
        }
        let kept = old.get(RECORDS)?.unwrap_or_default();
        all = serde_json::from_str(&kept)
            .map_err(|error| Error::Results(format!("{}: {error}", path.display())))?;
        told.extend(old.get("conditions")?);
    }
    all.extend(records);
    told.extend_from_slice(sources);
    let text = text::experiment(name, &all);
    let plan = Plan::new(Experiment::parse(&text, Mode::Full)?);
    // Made aside, and put in place when it is whole.
    let aside = path.with_extension("new");
    let _ = std::fs::remove_file(&aside);
    let mut store = Store::create(&aside, &plan)?;
    fill(&mut store, &plan, &all)?;
    store.set("conditions", &told.join("; "))?;
    drop(store);
    std::fs::rename(&aside, path).map_err(Error::io("cannot make", path))?;
    Store::open(path)
}

/// Whether a store has imported results.
pub fn is_imported(store: &Store) -> Result<bool, Error> {
    Ok(store.get("origin")?.as_deref() == Some(ORIGIN))
}

fn fill(store: &mut Store, plan: &Plan, records: &[Record]) -> Result<(), Error> {
    let mut rounds: BTreeMap<(usize, usize), u32> = BTreeMap::new();
    let marks = [Mark::CacheUnknown, Mark::SteadinessUnknown];
    for (position, record) in records.iter().enumerate() {
        let (cell, condition) = text::place(plan, records, record)
            .ok_or_else(|| Error::Results(format!("{:?} has no place", record.workload)))?;
        let round = rounds.entry((cell, condition)).or_default();
        let step = Step { round: *round, position: position as u32, cell, condition, seed: 0 };
        *round += 1;
        let started_unix_ms = record.started_unix_s.unwrap_or_default() as i64 * 1000;
        let facts = RunFacts { step: &step, started_unix_ms, attempts: 1, marks: &marks };
        let outcome = Outcome {
            metrics: record.metrics.clone(),
            further: record.further.clone(),
            load_seconds: record.seconds,
            command: record.command.clone(),
            raw: record.raw.clone(),
            ..Outcome::default()
        };
        store.add(plan, &facts, Ok(&outcome))?;
    }
    for condition in &plan.conditions {
        store.set_condition(&condition.id, &condition.label, None)?;
    }
    let distinct = |of: fn(&Record) -> Option<String>| {
        let all: std::collections::BTreeSet<String> = records.iter().filter_map(of).collect();
        all.into_iter().collect::<Vec<_>>().join(", ")
    };
    let machine = distinct(|record| record.machine.clone());
    let mut environment = Environment::default();
    if !machine.is_empty() {
        environment.facts.push(("machine".into(), machine));
    }
    store.set("environment", &serde_json::to_string(&environment).unwrap_or_default())?;
    store.set("origin", ORIGIN)?;
    store.set("engine", &distinct(|record| Some(record.program.clone())))?;
    let started = records.iter().filter_map(|record| record.started_unix_s).min();
    store.set("started", &started.map(calendar::rfc3339).unwrap_or_default())?;
    store.set(RECORDS, &serde_json::to_string(records).unwrap_or_default())
}

#[cfg(test)]
mod tests;
