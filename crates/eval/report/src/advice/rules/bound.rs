//! A6: the limit of the best run of each load.

use crate::advice::{Basis, Confidence, Facts, Finding};
use base::messages::Message;
use base::statistics::median;
use base::units;
use loads::metric::Metric;

/// A reached limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Link,
    Device,
    Cpu,
    Latency,
    Unknown,
}

impl Bound {
    fn word(self) -> Message {
        match self {
            Self::Link => Message::A6Link,
            Self::Device => Message::A6Device,
            Self::Cpu => Message::A6Cpu,
            Self::Latency => Message::A6Latency,
            Self::Unknown => Message::A6Unknown,
        }
    }

    fn apply(self) -> Message {
        match self {
            Self::Link => Message::A6ApplyLink,
            Self::Device => Message::A6ApplyDevice,
            Self::Cpu => Message::A6ApplyCpu,
            Self::Latency => Message::A6ApplyLatency,
            Self::Unknown => Message::A6ApplyUnknown,
        }
    }
}

/// Evaluates A6.
pub(crate) fn limit(facts: &Facts<'_>) -> Finding {
    let mut found = Vec::new();
    let mut evidence = Vec::new();
    for (workload, load) in facts.plan.experiment.workloads.iter().enumerate() {
        if !matches!(load.rates.as_slice(), [0]) {
            // A load at a fixed rate has that limit.
            continue;
        }
        for condition in 0..facts.plan.conditions.len() {
            if let Some((bound, line)) = judge(facts, workload, condition) {
                found.push(bound);
                evidence.push(line);
            }
        }
    }
    evidence.truncate(super::EVIDENCE_MAX);
    let Some(first) = found.first().copied() else {
        return facts.not_measured(Message::A6Nothing);
    };
    let known = found.iter().filter(|bound| **bound != Bound::Unknown).count();
    if known == 0 {
        return Finding {
            confidence: Confidence::NoAdvice,
            claim: facts.text(Message::A6NoLimit),
            evidence,
            apply: facts.text(Bound::Unknown.apply()),
            basis: facts.all(),
        };
    }
    if found.iter().all(|bound| *bound == first) {
        return Finding {
            confidence: Confidence::Strong,
            claim: facts.say(Message::A6Claim, &[("bound", &facts.text(first.word()))]),
            evidence,
            apply: facts.text(first.apply()),
            // The best cell of each load counts.
            basis: Basis { cells: found.len(), ..facts.all() },
        };
    }
    let counted: Vec<String> =
        [Bound::Link, Bound::Device, Bound::Cpu, Bound::Latency, Bound::Unknown]
            .into_iter()
            .filter_map(|bound| {
                let count = found.iter().filter(|it| **it == bound).count();
                (count > 0).then(|| format!("{} ({count})", facts.text(bound.word())))
            })
            .collect();
    Finding {
        confidence: Confidence::Moderate,
        claim: facts.say(Message::A6Differ, &[("limits", &counted.join(", "))]),
        evidence,
        apply: facts.text(Message::A6See),
        basis: facts.all(),
    }
}

fn judge(facts: &Facts<'_>, workload: usize, condition: usize) -> Option<(Bound, String)> {
    let limits = facts.limits;
    let curve = facts.analysis.curve(facts.plan, workload, condition, Metric::Bandwidth);
    let best = curve.iter().max_by(|a, b| a.median.total_cmp(&b.median))?;
    let sample = |name: &str| {
        let values: Vec<f64> = facts.samples(best.cell, condition, name).into_values().collect();
        (!values.is_empty()).then(|| median(&values))
    };
    let link = facts.plan.experiment.limits.link_bytes_per_s.map(|rate| best.median / rate as f64);
    let device = facts.analysis.local_peak(facts.plan, workload, condition);
    let device = device.map(|peak| best.median / peak);
    let (core, softirq) = (sample("cpu_busiest_share"), sample("cpu_busiest_softirq_share"));
    // CPUs that were busy before the load are no limit of it.
    let others = sample("cpu_idle_busy").zip(sample("cpu_count")).map(|(busy, count)| busy / count);
    let is_ours = others.is_none_or(|share| share < limits.cpu_idle_share);
    let machine = sample(Metric::MachineCpu.name()).map(|percent| percent / 100.0);
    if link.is_none() && core.is_none() {
        return None;
    }
    let reaches = |share: Option<f64>, limit: f64| share.is_some_and(|share| share >= limit);
    let growth = latency_growth(facts, best.cell, condition);
    let is_flat = growth.is_some_and(|growth| growth <= limits.latency_flat)
        && machine.is_some_and(|share| share < limits.cpu_idle_share);
    let bound = if reaches(link, limits.bound_share) {
        Bound::Link
    } else if reaches(device, limits.bound_share) {
        Bound::Device
    } else if is_ours && (reaches(core, limits.cpu_share) || reaches(softirq, limits.softirq_share))
    {
        Bound::Cpu
    } else if is_flat {
        Bound::Latency
    } else {
        Bound::Unknown
    };
    let percent = |share: Option<f64>| {
        let said = share.map(|share| format!("{:.0} %", 100.0 * share));
        said.unwrap_or_else(|| facts.text(Message::NotAvailable))
    };
    let growth = growth.map(|growth| format!("{growth:.2} ×"));
    let line = facts.say(
        Message::A6Line,
        &[
            ("name", &facts.name(workload, condition)),
            ("cell", &facts.cell(best.cell)),
            ("rate", &units::significant(best.median / Metric::Bandwidth.unit())),
            ("bound", &facts.text(bound.word())),
            ("link", &percent(link)),
            ("device", &percent(device)),
            ("core", &percent(core)),
            ("softirq", &percent(softirq)),
            ("machine", &percent(machine)),
            ("others", &percent(others)),
            ("growth", &growth.unwrap_or_else(|| facts.text(Message::A6NotComparable))),
        ],
    );
    Some((bound, line))
}

/// Returns the latency of a cell relative to the cell with the fewest operations in flight, of the same block
/// size.
fn latency_growth(facts: &Facts<'_>, cell: usize, condition: usize) -> Option<f64> {
    let it = &facts.plan.cells[cell];
    let n = |cell: usize| facts.plan.cells[cell].jobs * facts.plan.cells[cell].depth;
    let same = (0..facts.plan.cells.len()).filter(|other| {
        let other = &facts.plan.cells[*other];
        other.workload == it.workload && other.block_size == it.block_size
    });
    let fewest = same.min_by_key(|other| n(*other)).filter(|other| n(*other) < n(cell))?;
    let latency = |cell| facts.median_of(cell, condition, Metric::Latency);
    Some(latency(cell)? / latency(fewest)?)
}
