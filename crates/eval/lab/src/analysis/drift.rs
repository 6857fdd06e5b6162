//! Whether the machine got slower or faster over an experiment, and whether all conditions did.
//!
//! Each cell under each condition is set against its own mean over the rounds; a round's mean of
//! these is how fast the machine was then, whatever it was asked. The line through the rounds, with
//! Student's interval of its slope, is the drift. Pairs are immune to what all conditions share, and to
//! nothing else: so each condition has a line of its own, and conditions *drift apart* if the difference of
//! one from the mean of all has a slope (the conditions share 5 %).

use super::Analysis;
use crate::plan::Plan;
use base::statistics::{ALPHA, Interval, mean, t_quantile};
use std::collections::BTreeMap;

/// A drift.
#[derive(Clone, Debug)]
pub struct Drift {
    /// Log-ratio of the last round to the first; above 0 the machine got faster.
    pub change: f64,
    /// 95 % interval of it.
    pub interval: Interval,
    /// Rounds.
    pub rounds: usize,
    /// The conditions, where they drift apart.
    pub apart: Vec<ConditionDrift>,
}

/// A condition's own drift.
#[derive(Clone, Copy, Debug)]
pub struct ConditionDrift {
    /// Index of the condition.
    pub condition: usize,
    /// Log-ratio of the last round to the first.
    pub change: f64,
}

impl Drift {
    /// Whether there is a significant one.
    pub fn is_seen(&self) -> bool {
        !self.interval.contains(0.0)
    }
}

impl Analysis {
    /// The drift over the counted rounds; `None` with fewer than four of them.
    pub fn drift(&self, plan: &Plan) -> Option<Drift> {
        let mut groups: BTreeMap<(&str, &str), Vec<(u32, f64)>> = BTreeMap::new();
        for run in self.runs.iter().filter(|run| run.is_usable()) {
            let cell = plan.cells.iter().position(|cell| cell.id == run.cell)?;
            let metric = *plan.workload(cell).metrics.first()?;
            let sign = if metric.is_throughput() { 1.0 } else { -1.0 };
            if let Some(value) = run.value(metric) {
                let key = (run.cell.as_str(), run.condition.as_str());
                groups.entry(key).or_default().push((run.round, sign * value.ln()));
            }
        }
        let mut all: Rounds = BTreeMap::new();
        let mut by_condition: BTreeMap<&str, Rounds> = BTreeMap::new();
        for ((_, condition), values) in &groups {
            let centre = mean(&values.iter().map(|(_, value)| *value).collect::<Vec<_>>());
            for (round, value) in values {
                all.entry(*round).or_default().push(value - centre);
                let own = by_condition.entry(condition).or_default();
                own.entry(*round).or_default().push(value - centre);
            }
        }
        let together = points(&all);
        let mut drift = line(&together, 1.0 - ALPHA)?;
        let shared: BTreeMap<u64, f64> =
            together.iter().map(|(round, value)| (*round as u64, *value)).collect();
        let confidence = 1.0 - ALPHA / by_condition.len().max(1) as f64;
        let mut is_apart = false;
        for (id, rounds) in &by_condition {
            let own = points(rounds);
            let beside: Vec<(f64, f64)> = own
                .iter()
                .filter_map(|(round, value)| Some((*round, value - shared.get(&(*round as u64))?)))
                .collect();
            let condition = plan.conditions.iter().position(|it| it.id == *id)?;
            is_apart |= line(&beside, confidence).is_some_and(|it| it.is_seen());
            let change = line(&own, confidence).map_or(0.0, |it| it.change);
            drift.apart.push(ConditionDrift { condition, change });
        }
        if !is_apart {
            drift.apart.clear();
        }
        Some(drift)
    }
}

/// Values by round.
type Rounds = BTreeMap<u32, Vec<f64>>;

fn points(rounds: &Rounds) -> Vec<(f64, f64)> {
    rounds.iter().map(|(round, values)| (f64::from(*round), mean(values))).collect()
}

/// The change along the line through points, from the first to the last.
fn line(points: &[(f64, f64)], confidence: f64) -> Option<Drift> {
    let n = points.len();
    if n < 4 {
        return None;
    }
    let part = |of: fn(&(f64, f64)) -> f64| mean(&points.iter().map(of).collect::<Vec<_>>());
    let (x, y) = (part(|it| it.0), part(|it| it.1));
    let spread: f64 = points.iter().map(|it| (it.0 - x).powi(2)).sum();
    let slope = points.iter().map(|it| (it.0 - x) * (it.1 - y)).sum::<f64>() / spread;
    let left: f64 = points.iter().map(|it| (it.1 - y - slope * (it.0 - x)).powi(2)).sum();
    let freedom = (n - 2) as f64;
    let error = (left / freedom / spread).sqrt();
    let length = points[n - 1].0 - points[0].0;
    let (change, half) =
        (slope * length, t_quantile(f64::midpoint(1.0, confidence), freedom) * error * length);
    Some(Drift {
        change,
        interval: Interval { low: change - half, high: change + half },
        rounds: n,
        apart: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::statistics::random::Random;

    /// Goal: a known slope is found, also through noise (95 of 100 intervals hold it), and none where
    /// there is none; few rounds say nothing.
    #[test]
    fn slopes_are_found() {
        let exact: Vec<(f64, f64)> =
            (0..10).map(|it| (f64::from(it), -0.01 * f64::from(it))).collect();
        let drift = line(&exact, 0.95).unwrap();
        assert!((drift.change + 0.09).abs() < 1e-12 && drift.is_seen() && drift.rounds == 10);
        assert!(line(&exact[..3], 0.95).is_none());
        for truth in [0.0, 0.05] {
            let mut held = 0;
            for trial in 0..1000 {
                let mut random = Random::of(3, trial);
                let noisy: Vec<(f64, f64)> = (0..10)
                    .map(|it| (f64::from(it), truth * f64::from(it) / 9.0 + 0.02 * random.normal()))
                    .collect();
                held += u32::from(line(&noisy, 0.95).unwrap().interval.contains(truth));
            }
            assert!((930..=970).contains(&held), "{held}");
        }
    }
}
