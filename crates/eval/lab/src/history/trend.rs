//! The latest result beside the earlier ones of the same plan on the same machine.
//!
//! The same plan means the same file and mode, byte for byte; the same machine means the same facts but
//! for kernel and versions, which are what may have changed something and are told. What days differ by
//! is counted from the earlier results, of which there have to be three: fewer give no verdict. Nothing
//! pairs results, so no verdict on them makes advice strong.

use super::{Change, HOST_FACTS, Kind, Results, Row, effects, judge, values};
use crate::thresholds::THRESHOLDS;
use base::statistics::{Verdict, mean};
use serde::Serialize;
use std::collections::BTreeMap;

/// Facts that may differ within a series, and are reported when they do.
const CHANGING_FACTS: [&str; 2] = ["kernel", "engine"];
const KIB_PER_GIB: f64 = (1 << 20) as f64;

/// One cell over all results.
#[derive(Clone, Debug, Serialize)]
pub struct TrendRow {
    /// The latest beside the earlier ones. Its `n` are runs.
    #[serde(flatten)]
    pub change: Change,
    /// Geometric mean of each result that has any, the latest last: of values in the database's unit, of
    /// effects the ratio.
    pub means: Vec<f64>,
}

impl TrendRow {
    /// Whether a value is worse than before by more than the margin.
    pub fn is_regression(&self) -> bool {
        self.change.kind == Kind::Value
            && self.change.verdict == Some(Verdict::DifferentMatters)
            && self.change.is_worse()
    }
}

/// What became of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Trend {
    /// Name of the experiment.
    pub name: String,
    /// Digest of its plan.
    pub plan: String,
    /// Digest of the machine.
    pub host: String,
    /// When each result was begun, the latest last.
    pub started: Vec<String>,
    /// What else changed from one result to the next.
    pub notes: Vec<String>,
    /// The cells.
    pub rows: Vec<TrendRow>,
}

impl Trend {
    /// Of results of one plan and machine, oldest first; `None` of none.
    pub fn of(results: &[&Results]) -> Option<Self> {
        let (latest, past) = results.split_last()?;
        let mut rows = gather(Kind::Value, past, latest);
        rows.extend(gather(Kind::Effect, past, latest));
        judge(&mut rows, &latest.plan, past.len() >= THRESHOLDS.past_min);
        let rows = rows.into_iter().map(TrendRow::from).collect();
        Some(Self {
            name: latest.plan.experiment.name.clone(),
            plan: latest.plan.hash.clone(),
            host: fingerprint(latest),
            started: results.iter().map(|it| it.started.clone()).collect(),
            notes: notes(results),
            rows,
        })
    }

    /// Earlier results.
    pub fn past(&self) -> usize {
        self.started.len() - 1
    }

    /// Whether there are earlier results enough for verdicts.
    pub fn is_judged(&self) -> bool {
        self.past() >= THRESHOLDS.past_min
    }

    /// The values that are worse than before by more than their margin.
    pub fn regressions(&self) -> Vec<&TrendRow> {
        self.rows.iter().filter(|row| row.is_regression()).collect()
    }
}

impl From<Row> for TrendRow {
    fn from(row: Row) -> Self {
        let all = row.past.iter().chain([&row.second]).filter(|values| !values.is_empty());
        Self { means: all.map(|values| mean(values).exp()).collect(), change: row.change }
    }
}

/// Each cell of the latest result with its values in all earlier ones.
fn gather(kind: Kind, past: &[&Results], latest: &Results) -> Vec<Row> {
    let of = |first: &Results| match kind {
        Kind::Value => values(first, latest, &mut Vec::new()),
        Kind::Effect => effects(first, latest),
    };
    // Beside itself the latest result has all of its cells, in its order.
    let mut rows = of(latest);
    let mut earlier: Vec<BTreeMap<_, Vec<f64>>> = Vec::new();
    for first in past {
        let found = of(first).into_iter().map(|mut row| (key(&row.change), row.past.remove(0)));
        earlier.push(found.collect());
    }
    for row in &mut rows {
        let key = key(&row.change);
        row.past = earlier.iter().map(|it| it.get(&key).cloned().unwrap_or_default()).collect();
    }
    rows
}

/// What names a row.
fn key(change: &Change) -> (String, String, String, &'static str) {
    let Change { of, workload, cell, metric, .. } = change;
    (of.clone(), workload.clone(), cell.clone(), metric.name())
}

fn fact<'a>(results: &'a Results, name: &str) -> &'a str {
    results.facts.get(name).map_or("", String::as_str)
}

/// Digest of the machine and its storage.
pub(super) fn fingerprint(results: &Results) -> String {
    let mut hasher = blake3::Hasher::new();
    for name in HOST_FACTS {
        let value = fact(results, name);
        let rounded = if name == "memory" { gib(value) } else { value.to_string() };
        hasher.update(name.as_bytes()).update(b"=").update(rounded.as_bytes()).update(b"\n");
    }
    hasher.finalize().to_hex()[..16].to_string()
}

/// Memory in whole GiB: what the kernel keeps of it differs from version to version.
fn gib(memory: &str) -> String {
    let kib = memory.split_whitespace().next().and_then(|number| number.parse::<f64>().ok());
    kib.map_or(memory.into(), |kib| format!("{:.0}", kib / KIB_PER_GIB))
}

fn notes(results: &[&Results]) -> Vec<String> {
    let mut notes = Vec::new();
    for pair in results.windows(2) {
        let [before, after] = [pair[0], pair[1]];
        let mut tell = |what: &str, old: &str, new: &str| {
            if old != new {
                notes.push(format!("{}: {what}: {old} → {new}", after.started));
            }
        };
        for name in CHANGING_FACTS {
            tell(name, fact(before, name), fact(after, name));
        }
        tell("tsumugi", &before.version, &after.version);
    }
    notes
}

/// Groups results by plan and machine, each group oldest first, in the order of their latest.
pub fn series<'a>(results: &[&'a Results]) -> Vec<Vec<&'a Results>> {
    let mut groups: BTreeMap<(&str, String), Vec<&Results>> = BTreeMap::new();
    for &it in results {
        groups.entry((&it.plan.hash, fingerprint(it))).or_default().push(it);
    }
    let mut groups: Vec<Vec<&Results>> = groups.into_values().collect();
    for group in &mut groups {
        group.sort_by(|a, b| a.started.cmp(&b.started));
    }
    groups.sort_by(|a, b| {
        let latest = |group: &[&Results]| group.last().map(|it| it.started.clone());
        latest(a).cmp(&latest(b))
    });
    groups
}
