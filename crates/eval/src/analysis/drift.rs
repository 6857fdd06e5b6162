//! Whether the machine got slower or faster over an experiment.
//!
//! Each cell under each condition is set against its own mean over the rounds; a round's mean of
//! these is how fast the machine was then, whatever it was asked. The line through the rounds, with
//! Student's interval of its slope, is the drift. Pairs are immune to it; it tells how far values of
//! different rounds, and of different days, may be compared.

use super::Analysis;
use crate::plan::Plan;
use crate::statistics::{Interval, mean, t_quantile};
use std::collections::BTreeMap;

/// A drift.
#[derive(Clone, Copy, Debug)]
pub struct Drift {
    /// Log-ratio of the last round to the first; above 0 the machine got faster.
    pub change: f64,
    /// 95 % interval of it.
    pub interval: Interval,
    /// Rounds.
    pub rounds: usize,
}

impl Drift {
    /// Whether there is one, as far as can be told.
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
        let mut rounds: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for values in groups.values() {
            let all: Vec<f64> = values.iter().map(|(_, value)| *value).collect();
            let centre = mean(&all);
            for (round, value) in values {
                rounds.entry(*round).or_default().push(value - centre);
            }
        }
        let points: Vec<(f64, f64)> =
            rounds.iter().map(|(round, values)| (f64::from(*round), mean(values))).collect();
        line(&points)
    }
}

/// The change along the line through points, from the first to the last.
fn line(points: &[(f64, f64)]) -> Option<Drift> {
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
    let (change, half) = (slope * length, t_quantile(0.975, freedom) * error * length);
    Some(Drift {
        change,
        interval: Interval { low: change - half, high: change + half },
        rounds: n,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Goal: a known slope is found, also through noise (95 of 100 intervals hold it), and none where
    /// there is none; few rounds say nothing.
    #[test]
    fn slopes_are_found() {
        let exact: Vec<(f64, f64)> =
            (0..10).map(|it| (f64::from(it), -0.01 * f64::from(it))).collect();
        let drift = line(&exact).unwrap();
        assert!((drift.change + 0.09).abs() < 1e-12 && drift.is_seen() && drift.rounds == 10);
        assert!(line(&exact[..3]).is_none());
        for truth in [0.0, 0.05] {
            let mut held = 0;
            for trial in 0..1000 {
                let mut random = Random::of(3, trial);
                let noisy: Vec<(f64, f64)> = (0..10)
                    .map(|it| (f64::from(it), truth * f64::from(it) / 9.0 + 0.02 * random.normal()))
                    .collect();
                held += u32::from(line(&noisy).unwrap().interval.contains(truth));
            }
            assert!((930..=970).contains(&held), "{held}");
        }
    }
}
