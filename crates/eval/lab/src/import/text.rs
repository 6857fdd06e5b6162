//! The experiment that imported records are of: its file, and where each record is in it.
//!
//! The text has nothing but shapes, in order: no path, no date, no value. So the same measured again on
//! another day gives the same plan, and has a history.

use super::Record;
use crate::plan::Plan;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Text {
    name: String,
    title: String,
    question: &'static str,
    engine: &'static str,
    file_size: &'static str,
    /// Nothing that another program measured is paired.
    comparison: [u8; 0],
    timing: Timing,
    factors: BTreeMap<&'static str, BTreeMap<String, Level>>,
    workload: Vec<Workload>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Timing {
    run: &'static str,
    warm_up_rounds: u32,
}

#[derive(Serialize)]
struct Level {
    kind: &'static str,
    label: String,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Workload {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rw: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    own_files: Option<bool>,
    direct: bool,
    bs: Vec<String>,
    jobs: Vec<u32>,
    depth: Vec<u32>,
    metrics: Vec<&'static str>,
}

/// What levels are called in files.
fn slug(way: &str) -> String {
    let letters = way.chars().map(|it| if it.is_ascii_alphanumeric() { it } else { '-' });
    let text: String = letters.collect::<String>().to_ascii_lowercase();
    let parts: Vec<&str> = text.split('-').filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { "other".into() } else { parts.join("-") }
}

/// Name of a record's workload: its own, with a number if another load has it too.
fn workload_name(records: &[Record], record: &Record) -> String {
    let tasks: BTreeSet<_> =
        records.iter().map(Record::task).filter(|task| task.0 == record.workload).collect();
    match tasks.iter().position(|task| *task == record.task()) {
        Some(index) if index > 0 => format!("{} ({})", record.workload, index + 1),
        _ => record.workload.clone(),
    }
}

/// The file.
pub(super) fn experiment(name: &str, records: &[Record]) -> String {
    let mut levels = BTreeMap::new();
    let mut loads: BTreeMap<String, Vec<&Record>> = BTreeMap::new();
    for record in records {
        let label = record.way.clone();
        levels.entry(slug(&record.way)).or_insert(Level { kind: "imported", label });
        loads.entry(workload_name(records, record)).or_default().push(record);
    }
    let programs: BTreeSet<&str> =
        records.iter().filter_map(|record| record.program.split(['-', ' ']).next()).collect();
    let text = Text {
        name: name.into(),
        title: format!("Results of {}", programs.into_iter().collect::<Vec<_>>().join(", ")),
        question: "What did other programs measure?",
        engine: "imported",
        file_size: "0",
        comparison: [],
        timing: Timing { run: "0s", warm_up_rounds: 0 },
        factors: [("way", levels)].into(),
        workload: loads.into_iter().map(|(name, records)| workload(name, &records)).collect(),
    };
    toml::to_string(&text).unwrap_or_default()
}

fn workload(name: String, records: &[&Record]) -> Workload {
    fn all<T: Ord>(records: &[&Record], of: impl Fn(&Record) -> T) -> Vec<T> {
        let distinct: BTreeSet<T> = records.iter().map(|record| of(record)).collect();
        distinct.into_iter().collect()
    }
    let first = records[0];
    let metrics: BTreeSet<_> = records.iter().flat_map(|record| record.metrics.keys()).collect();
    Workload {
        name,
        rw: first.pattern.map(loads::workload::Pattern::name),
        own_files: first.has_own_files,
        direct: first.is_direct,
        bs: all(records, |it| it.block_bytes).iter().map(u64::to_string).collect(),
        jobs: all(records, |it| it.jobs),
        depth: all(records, |it| it.depth),
        metrics: metrics.into_iter().map(|metric| metric.name()).collect(),
    }
}

/// Indices of a record's cell and condition in the plan.
pub(super) fn place(plan: &Plan, records: &[Record], record: &Record) -> Option<(usize, usize)> {
    let name = workload_name(records, record);
    let cell = plan.cells.iter().position(|cell| {
        plan.experiment.workloads[cell.workload].name == name
            && (cell.block_size, cell.jobs, cell.depth)
                == (record.block_bytes, record.jobs, record.depth)
    })?;
    let way = slug(&record.way);
    let condition = plan.conditions.iter().position(|it| it.levels["way"] == way)?;
    Some((cell, condition))
}
