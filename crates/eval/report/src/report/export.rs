//! The data, for other programs.

use super::Report;
use crate::error::Error;
use base::messages::Language;
use base::statistics::Label;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Returns every run with all its values, one line each.
pub(super) fn csv(report: &Report) -> String {
    let runs = &report.analysis.runs;
    let names: BTreeSet<&String> = runs.iter().flat_map(|run| run.samples.keys()).collect();
    let mut text = String::from(
        "round,position,warm_up,workload,block_size,jobs,depth,rate,batch,condition,seed,usable,marks,error",
    );
    for name in &names {
        let _ = write!(text, ",{name}");
    }
    text.push('\n');
    for run in runs {
        let cell = report.plan.cells.iter().find(|cell| cell.id == run.cell);
        let load =
            cell.map_or("", |cell| report.plan.experiment.workloads[cell.workload].name.as_str());
        let point = cell.map_or(String::new(), |it| {
            format!("{},{},{},{},{}", it.block_size, it.jobs, it.depth, it.rate, it.batch)
        });
        let marks: Vec<&str> = run.marks.iter().map(loads::outcome::Mark::label).collect();
        let _ = write!(
            text,
            "{},{},{},{},{point},{},{},{},{},{}",
            run.round,
            run.position,
            run.is_warm_up,
            field(load),
            field(&run.condition),
            run.seed,
            run.is_usable(),
            field(&marks.join("; ")),
            field(run.error.as_deref().unwrap_or_default()),
        );
        for name in &names {
            let value = run.samples.get(*name).map_or(String::new(), ToString::to_string);
            let _ = write!(text, ",{value}");
        }
        text.push('\n');
    }
    text
}

/// Quotes a field where RFC 4180 requires it.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into()
    }
}

/// Returns verdicts and advice, in English.
pub(super) fn json(report: &Report) -> Result<String, Error> {
    text(&value(report))
}

/// Returns JSON as text.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    serde_json::to_string_pretty(value).map_err(|error| Error::Results(error.to_string()))
}

/// Returns verdicts and advice, in English.
pub(super) fn value(report: &Report) -> Value {
    let experiment = &report.plan.experiment;
    let verdicts: Vec<_> = report
        .analysis
        .families
        .iter()
        .flat_map(|family| {
            family.rows.iter().map(move |row| {
                let cell = &report.plan.cells[row.cell];
                let comparison = &experiment.comparisons[family.comparison];
                let side = |levels| {
                    let condition = report.plan.condition(levels)?;
                    Some(report.plan.conditions[condition].label.as_str())
                };
                json!({
                    "comparison": comparison.name,
                    "baseline": side(&comparison.baseline), "other": side(&comparison.other),
                    "workload": experiment.workloads[family.workload].name,
                    "block_size": cell.block_size, "jobs": cell.jobs, "depth": cell.depth,
                    "rate": cell.rate, "batch": cell.batch,
                    "metric": family.metric.name(),
                    "ratio": row.evidence.mean.exp(),
                    "ratio_median": row.evidence.median.exp(),
                    "ratio_interval": row.evidence.interval.map(|it| it.map(f64::exp)),
                    "ratio_interval_alone":
                        row.evidence.interval_alone.map(|it| it.map(f64::exp)),
                    "n": row.evidence.n,
                    "log_ratios": row.ratios,
                    "verdict": row.verdict.label(Language::English),
                    "verdict_alone": row.evidence.alone.label(Language::English),
                    "judged_together": row.evidence.judged_together,
                    "is_held_back": row.is_held_back(),
                    "withheld": report.flaws_json(row),
                    "evidence": row.evidence,
                })
            })
        })
        .collect();
    let advice: Vec<_> = report
        .english
        .cards
        .iter()
        .map(|card| {
            json!({
                "rule": card.id, "question": card.question.english(),
                "confidence": card.confidence.label(), "claim": card.claim,
                "evidence": card.evidence, "apply": card.apply, "scope": card.scope,
                "change": card.change.english(),
            })
        })
        .collect();
    json!({
        "experiment": experiment.name, "mode": experiment.mode, "plan": report.plan.hash,
        "rounds": report.analysis.rounds, "facts": report.english.facts,
        "environment": report.environment.facts, "not_available": report.missing,
        "values": values(report), "verdicts": verdicts, "advice": advice,
    })
}

/// The median of each metric with its interval, by condition and cell.
fn values(report: &Report) -> Vec<Value> {
    let plan = &report.plan;
    let mut values = Vec::new();
    for (workload, load) in plan.experiment.workloads.iter().enumerate() {
        for (index, condition) in plan.conditions.iter().enumerate() {
            for &metric in &load.metrics {
                for point in report.analysis.curve(plan, workload, index, metric) {
                    let cell = &plan.cells[point.cell];
                    values.push(json!({
                        "workload": load.name, "condition": condition.label,
                        "levels": condition.levels, "metric": metric.name(),
                        "block_size": cell.block_size, "jobs": cell.jobs, "depth": cell.depth,
                        "rate": cell.rate, "batch": cell.batch,
                        "median": point.median, "interval": point.interval, "n": point.n,
                    }));
                }
            }
        }
    }
    values
}

/// Encodes base64 (RFC 4648), for links to data within the page.
pub(super) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            if digit <= group.len() {
                text.push(char::from(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}
