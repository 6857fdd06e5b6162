//! Rules on the results themselves: A17 (their grade), A18 (caches).

use super::{EVIDENCE_MAX, whole_percent};
use crate::advice::{Basis, Confidence, Facts, Finding};
use base::messages::Message;
use lab::analysis::Row;
use loads::outcome::Mark;
use loads::workload::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

/// A grade, with the flaws that prevent a better one.
pub(crate) struct Grade {
    /// From A to D.
    pub(crate) letter: char,
    failing: Vec<String>,
}

impl Grade {
    /// Returns whether advice on it may be strong.
    pub(crate) fn is_good(&self) -> bool {
        matches!(self.letter, 'A' | 'B')
    }
}

/// Returns the grade of results; `None` without runs.
pub(crate) fn grade(facts: &Facts<'_>) -> Option<Grade> {
    let limits = facts.limits;
    let counted: Vec<_> = facts.analysis.runs.iter().filter(|run| !run.is_warm_up).collect();
    if counted.is_empty() {
        return None;
    }
    let marked = |mark: Mark| {
        counted.iter().filter(|run| run.marks.contains(&mark)).count() as f64 / counted.len() as f64
    };
    let rows: Vec<&Row> = facts.analysis.families.iter().flat_map(|family| &family.rows).collect();
    let n = rows.iter().map(|row| row.evidence.n).min().unwrap_or_default();
    let wide = rows
        .iter()
        .filter(|row| {
            // The precision does not depend on the number of comparisons.
            row.evidence.interval_alone.is_none_or(|it| it.half_width() > limits.half_width_max)
        })
        .count();
    let mut failing = Vec::new();
    if n < limits.rounds_min {
        let values: [(&str, &dyn Display); 2] = [("n", &n), ("wanted", &limits.rounds_min)];
        failing.push(facts.say(Message::A17Pairs, &values));
    }
    if wide > 0 {
        let most = whole_percent(limits.half_width_max);
        let values: [(&str, &dyn Display); 3] =
            [("wide", &wide), ("all", &rows.len()), ("most", &most)];
        failing.push(facts.say(Message::A17Wide, &values));
    }
    for mark in [
        Mark::Transient,
        Mark::SteadinessUnknown,
        Mark::CacheUnknown,
        Mark::OtherLoad,
        Mark::Steal,
        Mark::OtherTraffic,
        Mark::Unsettled,
        Mark::Little,
    ] {
        let share = marked(mark.clone());
        if share > limits.marked_share_max {
            failing.push(of_runs(facts, share, &mark));
        }
    }
    let cached = marked(Mark::Cached);
    if cached > 0.0 {
        failing.push(of_runs(facts, cached, &Mark::Cached));
    }
    let failed = counted.iter().filter(|run| run.error.is_some()).count();
    if failed > 0 {
        failing.push(facts.say(Message::A17Failed, &[("count", &failed)]));
    }
    let withheld = rows.iter().filter(|row| !row.flaws.is_empty()).count();
    if withheld > 0 {
        let values: [(&str, &dyn Display); 2] = [("count", &withheld), ("all", &rows.len())];
        failing.push(facts.say(Message::A17Withheld, &values));
    }
    let letter = match failing.len() {
        _ if n < 2 || cached > limits.cached_share_max => 'D',
        0 => 'A',
        1 | 2 => 'B',
        _ => 'C',
    };
    Some(Grade { letter, failing })
}

/// Evaluates A17.
pub(crate) fn trust(facts: &Facts<'_>) -> Finding {
    let Some(Grade { letter: grade, failing }) = grade(facts) else {
        return facts.not_measured(Message::A17Nothing);
    };
    let confidence = match grade {
        'A' => Confidence::Strong,
        'D' => Confidence::NoAdvice,
        _ => Confidence::Moderate,
    };
    let claim = if failing.is_empty() {
        facts.say(Message::A17Good, &[("grade", &grade)])
    } else {
        facts.say(Message::A17Fails, &[("grade", &grade), ("count", &failing.len())])
    };
    let apply = if grade == 'A' { Message::A17Quote } else { Message::A17Repeat };
    let basis = facts.all();
    Finding { confidence, claim, evidence: failing, apply: facts.text(apply), basis }
}

/// Returns the number of runs with a mark.
fn of_runs(facts: &Facts<'_>, share: f64, mark: &Mark) -> String {
    let values: [(&str, &dyn Display); 2] =
        [("share", &whole_percent(share)), ("mark", &facts.text(mark.message()))];
    facts.say(Message::A17Marked, &values)
}

/// Evaluates A18.
pub(crate) fn cache(facts: &Facts<'_>) -> Finding {
    // Runs through the page cache may well be served from it: no advice follows.
    let is_direct = |cell: &Cell| facts.plan.experiment.workloads[cell.workload].is_direct;
    let direct: BTreeSet<&str> =
        facts.plan.cells.iter().filter(|it| is_direct(it)).map(|cell| cell.id.as_str()).collect();
    let counted = facts.analysis.runs.iter().filter(|run| !run.is_warm_up);
    let seen: Vec<_> = counted
        .filter(|run| direct.contains(run.cell.as_str()))
        .filter(|run| !run.marks.contains(&Mark::CacheUnknown))
        .collect();
    let is_real = !facts.plan.experiment.engine.is_synthetic();
    if seen.is_empty() || !is_real {
        return facts.not_measured(Message::A18None);
    }
    let mut cells: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for run in seen.iter().filter(|run| run.marks.contains(&Mark::Cached)) {
        *cells.entry((&run.cell, &run.condition)).or_default() += 1;
    }
    if cells.is_empty() {
        return Finding {
            confidence: Confidence::NoAdvice,
            claim: facts.say(Message::A18No, &[("runs", &seen.len())]),
            evidence: Vec::new(),
            apply: facts.text(Message::AdviceNothing),
            basis: facts.all(),
        };
    }
    let runs: usize = cells.values().sum();
    Finding {
        confidence: Confidence::Strong,
        claim: facts.say(
            Message::A18Cached,
            &[
                ("runs", &runs),
                ("all", &seen.len()),
                ("share", &whole_percent(facts.limits.device_share)),
            ],
        ),
        evidence: cells
            .iter()
            .take(EVIDENCE_MAX)
            .map(|((cell, condition), runs)| {
                let values: [(&str, &dyn Display); 3] =
                    [("cell", cell), ("condition", condition), ("runs", runs)];
                facts.say(Message::A18Line, &values)
            })
            .collect(),
        apply: facts.text(Message::A18Repeat),
        basis: Basis { is_withheld: false, ..facts.all() },
    }
}
