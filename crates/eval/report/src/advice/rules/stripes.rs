//! A13: the smallest number of devices that is enough, separately for one shared file and for a file per
//! rank.

use super::whole_percent;
use crate::advice::{Basis, Confidence, Facts, Finding};
use base::messages::Message;
use base::units;
use lab::analysis::Point;
use lab::plan::Condition;
use loads::ior::Stripe;
use loads::ior::experiment::{IorLevel, IorLoad};
use loads::metric::Metric;
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

/// A stripe count, in the order of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Count {
    /// The default of the file system.
    Default,
    /// This number of devices.
    Devices(i32),
    /// All devices.
    All,
}

impl From<i32> for Count {
    fn from(count: i32) -> Self {
        match count {
            0 => Self::Default,
            count if count < 0 => Self::All,
            count => Self::Devices(count),
        }
    }
}

impl Count {
    fn said(self, facts: &Facts<'_>) -> String {
        match self {
            Self::Default => facts.text(Message::A13Default),
            Self::Devices(1) => facts.text(Message::A13One),
            Self::Devices(count) => facts.say(Message::A13Devices, &[("count", &count)]),
            Self::All => facts.text(Message::A13All),
        }
    }
}

/// Returns, for a condition that stripes, the settings that it shares with conditions of another count, its
/// count and its level.
fn striped<'a>(facts: &Facts<'a>, condition: &Condition) -> Option<(String, Count, &'a IorLevel)> {
    let mut found = None;
    let mut shared = String::new();
    for (factor, name) in &condition.levels {
        let level = facts.plan.experiment.factors.get(factor)?.get(name)?;
        if let Some(level) = level.setting::<IorLevel>()
            && let Some(Stripe { count: Some(count), bytes }) = level.stripe
        {
            let IorLevel { mpi, options, hints, .. } = level;
            let _ = write!(shared, "{mpi:?} {options:?} {hints:?} {bytes:?};");
            found = Some((Count::from(count), level));
        } else {
            let _ = write!(shared, "{factor}={name};");
        }
    }
    found.map(|(count, level)| (shared, count, level))
}

/// The findings on one curve.
struct Curve {
    has_own_files: bool,
    /// The smallest count that is good.
    enough: Option<Count>,
    line: String,
}

/// Evaluates A13.
pub(crate) fn count(facts: &Facts<'_>) -> Finding {
    let mut groups: BTreeMap<String, BTreeMap<Count, usize>> = BTreeMap::new();
    let mut levels: BTreeMap<String, &IorLevel> = BTreeMap::new();
    for (index, condition) in facts.plan.conditions.iter().enumerate() {
        if let Some((shared, count, level)) = striped(facts, condition) {
            groups.entry(shared.clone()).or_default().insert(count, index);
            levels.insert(shared, level);
        }
    }
    let mut curves = Vec::new();
    for (shared, conditions) in &groups {
        for (workload, load) in facts.plan.experiment.workloads.iter().enumerate() {
            let own = |options: &BTreeMap<String, String>| {
                options
                    .iter()
                    .any(|(key, value)| key.eq_ignore_ascii_case("filePerProc") && value != "0")
            };
            let of_load = load.task::<IorLoad>().is_some_and(|load| own(&load.options));
            let has_own_files = of_load || levels.get(shared).is_some_and(|it| own(&it.options));
            curves.extend(of_workload(facts, conditions, workload, has_own_files));
        }
    }
    if curves.is_empty() {
        return facts.not_measured(Message::A13Few);
    }
    conclude(facts, &curves)
}

/// Returns the curves of a workload: one for each of its cells.
fn of_workload(
    facts: &Facts<'_>,
    conditions: &BTreeMap<Count, usize>,
    workload: usize,
    has_own_files: bool,
) -> Vec<Curve> {
    let mut cells: BTreeMap<usize, Vec<(Count, Point)>> = BTreeMap::new();
    for (count, condition) in conditions {
        let points = facts.analysis.curve(facts.plan, workload, *condition, Metric::Bandwidth);
        for point in points.into_iter().filter(|point| point.interval.is_some()) {
            cells.entry(point.cell).or_default().push((*count, point));
        }
    }
    cells.retain(|_, points| points.len() >= facts.limits.stripes_min);
    cells.values().filter_map(|points| curve(facts, conditions, points, has_own_files)).collect()
}

fn curve(
    facts: &Facts<'_>,
    conditions: &BTreeMap<Count, usize>,
    points: &[(Count, Point)],
    has_own_files: bool,
) -> Option<Curve> {
    let (best, peak) = points.iter().max_by(|a, b| a.1.median.total_cmp(&b.1.median))?;
    let floor = facts.limits.good_share * peak.median;
    let is_good = |point: &Point| point.interval.is_some_and(|interval| interval.low >= floor);
    let tail = points.iter().rev().take_while(|(_, point)| is_good(point)).count();
    let enough = (tail > 0).then(|| points[points.len() - tail].0);
    let rate = |point: &Point| units::significant(point.median / Metric::Bandwidth.unit());
    let each: Vec<String> =
        points.iter().map(|(it, point)| format!("{}: {}", it.said(facts), rate(point))).collect();
    let enough_said = enough.map(|count| count.said(facts));
    let line = facts.say(
        Message::A13Line,
        &[
            ("workload", &facts.plan.workload(peak.cell).name),
            ("cell", &facts.cell(peak.cell)),
            ("condition", &facts.plan.conditions[*conditions.get(best)?].label),
            ("rates", &each.join(", ")),
            ("enough", &enough_said.unwrap_or_else(|| facts.text(Message::A13NotAny))),
            ("n", &peak.n),
        ],
    );
    Some(Curve { has_own_files, enough, line })
}

fn conclude(facts: &Facts<'_>, curves: &[Curve]) -> Finding {
    let mut claims = Vec::new();
    let mut apply = Vec::new();
    for (has_own_files, name) in [(false, Message::A10Shared), (true, Message::A10Own)] {
        let name = facts.text(name);
        let of: Vec<&Curve> =
            curves.iter().filter(|it| it.has_own_files == has_own_files).collect();
        let sure: Vec<Count> = of.iter().filter_map(|curve| curve.enough).collect();
        let Some(most) = sure.iter().max() else { continue };
        let most = most.said(facts);
        let values: [(&str, &dyn Display); 5] = [
            ("name", &name),
            ("most", &most),
            ("share", &whole_percent(facts.limits.good_share)),
            ("count", &sure.len()),
            ("all", &of.len()),
        ];
        claims.push(facts.say(Message::A13Claim, &values));
        apply.push(facts.say(Message::A13Apply, &[("name", &name), ("most", &most)]));
    }
    let evidence = curves.iter().map(|curve| curve.line.clone()).collect();
    if claims.is_empty() {
        return Finding {
            confidence: Confidence::NoAdvice,
            claim: facts.text(Message::A13Unsure),
            evidence,
            apply: facts.text(Message::AdviceRunFull),
            basis: facts.all(),
        };
    }
    let is_sure = curves.iter().all(|curve| curve.enough.is_some());
    apply.push(facts.text(Message::A13Set));
    Finding {
        confidence: if is_sure { Confidence::Strong } else { Confidence::Moderate },
        claim: facts.sentences(&claims),
        evidence,
        apply: facts.sentences(&apply),
        basis: Basis { cells: curves.len(), ..facts.all() },
    }
}
