//! What happens within the runs of a condition: cliffs and stalls.

use super::shape::cut;
use base::statistics::median;

/// Fewest intervals of a run for any test.
const INTERVALS_MIN: usize = 6;
/// Smallest change of speed that is a cliff.
const CLIFF_MIN: f64 = 1.3;
/// Largest p-value of a cut of one run.
const CUT_MAX: f64 = 1e-3;
/// Share of runs that have to have it.
const RUNS_SHARE_MIN: f64 = 0.5;
/// Fewest runs that have to have it.
const RUNS_MIN: usize = 2;
/// Share of the usual speed below which a run stands still.
const STALLED: f64 = 0.25;
/// Share of intervals that have to be stalled.
const STALLS_SHARE_MIN: f64 = 0.01;
/// Speed of an interval in which nothing moved, as a share of the run's.
const NOTHING: f64 = 1e-3;

/// The intervals of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Intervals {
    /// All of them.
    pub(crate) all: usize,
    /// Those that stood still.
    pub(crate) stalled: usize,
    /// The longest time in which a run stood still.
    pub(crate) longest_seconds: f64,
}

impl Intervals {
    /// Counts the intervals of a run, of so many seconds each.
    pub(crate) fn of(series: &[f64], seconds: f64) -> Self {
        let usual = if series.len() < INTERVALS_MIN { 0.0 } else { median(series) };
        if usual <= 0.0 {
            return Self::default();
        }
        let mut found = Self { all: series.len(), ..Self::default() };
        let mut row = 0_usize;
        for speed in series {
            row = if *speed < STALLED * usual { row + 1 } else { 0 };
            found.stalled += usize::from(row > 0);
            found.longest_seconds = found.longest_seconds.max(row as f64 * seconds);
        }
        found
    }

    /// These and others.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            all: self.all + other.all,
            stalled: self.stalled + other.stalled,
            longest_seconds: self.longest_seconds.max(other.longest_seconds),
        }
    }
}

/// A change of speed within runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cliff {
    /// Logarithm of the speed after it by the speed before.
    pub(super) change: f64,
    /// When it happens, from the start of the measurement.
    pub(super) seconds: f64,
    /// Share of runs that have it.
    pub(super) share: f64,
}

/// Runs that stand still at times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stalls {
    /// Share of the intervals.
    pub(super) share: f64,
    /// The longest.
    pub(super) longest_seconds: f64,
}

/// What the runs of a condition on a cell show.
#[derive(Clone, Debug, Default)]
pub(super) struct Within {
    /// Each run's cliff, as (change, seconds), if it has one.
    runs: Vec<Option<(f64, f64)>>,
    intervals: Intervals,
}

impl Within {
    /// Adds a run; `earlier` are the intervals of its attempts that were thrown away.
    pub(super) fn add(&mut self, series: &[f64], seconds: f64, earlier: Intervals) {
        if series.len() >= INTERVALS_MIN {
            self.runs.push(cliff(series).map(|(place, change)| (change, place as f64 * seconds)));
        }
        self.intervals = self.intervals.and(Intervals::of(series, seconds)).and(earlier);
    }

    /// The cliff that most runs have.
    pub(super) fn cliff(&self) -> Option<Cliff> {
        let of = |falls: bool| -> Vec<(f64, f64)> {
            self.runs
                .iter()
                .flatten()
                .filter(|(change, _)| (*change < 0.0) == falls)
                .copied()
                .collect()
        };
        let (falls, rises) = (of(true), of(false));
        let most = if falls.len() >= rises.len() { falls } else { rises };
        let share = most.len() as f64 / self.runs.len().max(1) as f64;
        if most.len() < RUNS_MIN || share < RUNS_SHARE_MIN {
            return None;
        }
        let middle =
            |part: fn(&(f64, f64)) -> f64| median(&most.iter().map(part).collect::<Vec<_>>());
        Some(Cliff { change: middle(|it| it.0), seconds: middle(|it| it.1), share })
    }

    /// Stalls, if there are more than a single one.
    pub(super) fn stalls(&self) -> Option<Stalls> {
        let Intervals { all, stalled, longest_seconds } = self.intervals;
        let share = stalled as f64 / all.max(1) as f64;
        (stalled >= 2 && share >= STALLS_SHARE_MIN).then_some(Stalls { share, longest_seconds })
    }
}

/// Where the speed of a run changes at once, and the logarithm of by how much.
fn cliff(series: &[f64]) -> Option<(usize, f64)> {
    let (place, _, p) = cut(series)?;
    let mean = base::statistics::mean;
    let floor = NOTHING * mean(series);
    let [before, after] = [&series[..place], &series[place..]].map(|part| mean(part).max(floor));
    let change = (after / before).ln();
    (p <= CUT_MAX && change.abs() >= CLIFF_MIN.ln()).then_some((place, change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::statistics::random::Random;

    fn runs(change: impl Fn(usize) -> f64) -> Within {
        let mut within = Within::default();
        for run in 0..10 {
            let mut random = Random::of(5, run);
            let series: Vec<f64> =
                (0..20).map(|at| 100.0 * change(at) * (1.0 + 0.1 * random.normal())).collect();
            within.add(&series, 0.5, Intervals::default());
        }
        within
    }

    /// Goal: a cache that fills is found where it fills, stalls with their length, and neither in runs that
    /// are just noisy.
    #[test]
    fn cliffs_and_stalls_are_found() {
        let cliff = runs(|at| if at < 14 { 1.0 } else { 0.25 }).cliff().unwrap();
        assert!((cliff.seconds - 7.0).abs() < 0.6 && cliff.share > 0.9, "{cliff:?}");
        assert!((cliff.change - 0.25_f64.ln()).abs() < 0.15, "{cliff:?}");
        let stalls = runs(|at| if at % 10 < 2 { 0.0 } else { 1.0 }).stalls().unwrap();
        assert!((stalls.share - 0.2).abs() < 1e-9, "{stalls:?}");
        assert!((stalls.longest_seconds - 1.0).abs() < 1e-9, "{stalls:?}");
        let calm = runs(|_| 1.0);
        assert!(calm.cliff().is_none() && calm.stalls().is_none());
        let few = Within::default();
        assert!(few.cliff().is_none() && few.stalls().is_none());
    }
}
