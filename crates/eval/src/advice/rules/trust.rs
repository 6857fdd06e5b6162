//! Rules on the results themselves: A17 (are they to be trusted?), A18 (was it the cache?).

use super::EVIDENCE_MAX;
use crate::advice::{Confidence, Facts, Finding};
use crate::analysis::Row;
use crate::experiment::EngineKind;
use crate::guard::Mark;
use crate::plan::Cell;
use std::collections::{BTreeMap, BTreeSet};

/// A17.
pub(crate) fn trust(facts: &Facts<'_>) -> Finding {
    let limits = facts.limits;
    let counted: Vec<_> = facts.analysis.runs.iter().filter(|run| !run.is_warm_up).collect();
    if counted.is_empty() {
        return Finding::not_measured("nothing was run");
    }
    let marked = |mark: Mark| {
        counted.iter().filter(|run| run.marks.contains(&mark)).count() as f64 / counted.len() as f64
    };
    let rows: Vec<&Row> = facts.analysis.families.iter().flat_map(|family| &family.rows).collect();
    let n = rows.iter().map(|row| row.evidence.n).min().unwrap_or_default();
    let wide = rows
        .iter()
        .filter(|row| {
            row.evidence.interval.is_none_or(|it| it.half_width() > limits.half_width_max)
        })
        .count();
    let mut failing = Vec::new();
    if n < limits.rounds_min {
        failing.push(format!("fewest pairs in a cell: {n}, wanted {}", limits.rounds_min));
    }
    if wide > 0 {
        let most = 100.0 * limits.half_width_max;
        failing.push(format!("{wide} of {} intervals are wider than ± {most:.0} %", rows.len()));
    }
    for mark in [
        Mark::Transient,
        Mark::SteadinessUnknown,
        Mark::CacheUnknown,
        Mark::OtherLoad,
        Mark::Steal,
        Mark::OtherTraffic,
        Mark::Little,
    ] {
        let share = marked(mark.clone());
        if share > limits.marked_share_max {
            failing.push(format!("{:.0} % of runs: {}", 100.0 * share, mark.label()));
        }
    }
    let cached = marked(Mark::Cached);
    if cached > 0.0 {
        failing.push(format!("{:.0} % of runs: {}", 100.0 * cached, Mark::Cached.label()));
    }
    let failed = counted.iter().filter(|run| run.error.is_some()).count();
    if failed > 0 {
        failing.push(format!("{failed} runs failed"));
    }
    let grade = match failing.len() {
        _ if n < 2 || cached > limits.cached_share_max => "D",
        0 => "A",
        1 | 2 => "B",
        _ => "C",
    };
    let confidence = match grade {
        "A" => Confidence::Strong,
        "D" => Confidence::NoAdvice,
        _ => Confidence::Moderate,
    };
    let claim = if failing.is_empty() {
        format!("Grade {grade}: nothing speaks against it.")
    } else {
        format!("Grade {grade}: {} of the checks fail, see the evidence.", failing.len())
    };
    let apply = if grade == "A" {
        "Quote the verdicts with their intervals."
    } else {
        "Quote verdicts, not single numbers; repeat on a quiet machine, in full length."
    };
    Finding { confidence, claim, evidence: failing, apply: apply.into() }
}

/// A18.
pub(crate) fn cache(facts: &Facts<'_>) -> Finding {
    // What goes through the page cache may well come from there: nothing follows from it.
    let is_direct = |cell: &Cell| facts.plan.experiment.workloads[cell.workload].is_direct;
    let direct: BTreeSet<&str> =
        facts.plan.cells.iter().filter(|it| is_direct(it)).map(|cell| cell.id.as_str()).collect();
    let counted = facts.analysis.runs.iter().filter(|run| !run.is_warm_up);
    let seen: Vec<_> = counted
        .filter(|run| direct.contains(run.cell.as_str()))
        .filter(|run| !run.marks.contains(&Mark::CacheUnknown))
        .collect();
    let is_real = facts.plan.experiment.engine != EngineKind::Synthetic;
    if seen.is_empty() || !is_real {
        return Finding::not_measured("no load with direct I/O ran on a device with counters");
    }
    let mut cells: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for run in seen.iter().filter(|run| run.marks.contains(&Mark::Cached)) {
        *cells.entry((&run.cell, &run.condition)).or_default() += 1;
    }
    if cells.is_empty() {
        return Finding {
            confidence: Confidence::NoAdvice,
            claim: format!("No: in {} runs the device moved what the load did.", seen.len()),
            evidence: Vec::new(),
            apply: "Nothing to do.".into(),
        };
    }
    let runs: usize = cells.values().sum();
    Finding {
        confidence: Confidence::Strong,
        claim: format!(
            "Cache, not storage: in {runs} of {} runs the device moved less than {:.0} % of what \
             the load did. They are kept out of verdicts.",
            seen.len(),
            100.0 * facts.limits.device_share
        ),
        evidence: cells
            .iter()
            .take(EVIDENCE_MAX)
            .map(|((cell, condition), runs)| format!("{cell} under {condition}: {runs} runs"))
            .collect(),
        apply: "Repeat with direct I/O, with a working set of twice the memory, or from a second \
                node."
            .into(),
    }
}
