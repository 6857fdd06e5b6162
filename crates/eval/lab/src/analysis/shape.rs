//! Whether one number describes a ratio, and the runs behind it.
//!
//! A mean over rounds answers a question only if the rounds ask the same one. Here each series of paired
//! ratios is tested for what would make its mean depend on how long, and in which order, was measured:
//!
//! * a *trend* over the rounds (least squares), or a *step* between two of them (the largest of all cuts);
//! * an effect of the *order* within the pair, or of the condition that ran before (*carry-over*: dirty
//!   pages, a cache that the run before filled, garbage that it left to collect);
//! * rounds that resemble their neighbours (von Neumann's ratio).
//!
//! All tests of a report share 5 % (Bonferroni), so that of 100 reports on unrelated runs at most five hold
//! back a verdict for nothing. Within runs a *cliff* is a change of speed by 30 % or more that most runs of
//! a condition have, as a write cache makes that fills; *stalls* are intervals with less than a quarter of
//! the run's usual speed. Neither is a matter of chance at these limits, so they take no part in the 5 %.

use super::within::Within;
use base::statistics::{ALPHA, Withheld, deviation, mean, t_survival};
use serde::Serialize;

/// Fewest rounds for any test.
const ROUNDS_MIN: usize = 6;
/// Fewest rounds for the test of correlation.
const CORRELATED_MIN: usize = 10;
/// Fewest rounds on either side of a step, or of each order.
const GROUP_MIN: usize = 2;

/// A pair of runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The round, from 0, those for warming up counted.
    pub round: u32,
    /// ln(other / baseline).
    pub ratio: f64,
    /// Whether the baseline ran before the other.
    pub is_baseline_first: bool,
    /// Index of the condition that ran right before the baseline, and before the other.
    pub before: [Option<usize>; 2],
}

/// Something that one number hides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flaw {
    /// What it is.
    pub kind: Withheld,
    /// By how much the ratio, or the speed, changes with it, as a logarithm; of a correlation its size.
    pub change: f64,
    /// The round after which, or the second of the run in which it happens; of stalls the longest in seconds.
    pub at: f64,
    /// Share of runs, or of intervals, that have it.
    pub share: f64,
    /// Index of the condition whose runs have it, or leave it behind.
    pub condition: Option<usize>,
    /// p-value, adjusted for all that was tested in the report; `None` where chance has no part.
    pub p: Option<f64>,
}

/// A test of one series; p is not adjusted yet.
struct Test {
    flaw: Flaw,
    p: f64,
}

fn test(kind: Withheld, p: f64, change: f64, at: f64) -> Test {
    Test { flaw: Flaw { kind, change, at, share: 0.0, condition: None, p: None }, p }
}

/// The tests of one comparison's pairs.
pub(super) struct Tests(Vec<Test>);

impl Tests {
    /// Tests pairs in the order of their rounds; `conditions` are those of the plan, by index.
    pub(super) fn of(pairs: &[Pair], conditions: usize) -> Self {
        let mut tests = Vec::new();
        if pairs.len() < ROUNDS_MIN {
            return Self(tests);
        }
        let ratios: Vec<f64> = pairs.iter().map(|pair| pair.ratio).collect();
        let rounds: Vec<f64> = pairs.iter().map(|pair| f64::from(pair.round)).collect();
        if let Some((slope, p)) = slope(&rounds, &ratios) {
            let length = rounds[rounds.len() - 1] - rounds[0];
            tests.push(test(Withheld::Trend, p, slope * length, 0.0));
        }
        tests.extend(step(&rounds, &ratios));
        let order: Vec<f64> =
            pairs.iter().map(|pair| f64::from(u8::from(pair.is_baseline_first))).collect();
        if let Some((change, p)) = slope_of_groups(&order, &ratios) {
            tests.push(test(Withheld::Order, p, change, 0.0));
        }
        for condition in 0..conditions {
            let after = |before: Option<usize>| f64::from(u8::from(before == Some(condition)));
            let left: Vec<f64> =
                pairs.iter().map(|pair| after(pair.before[1]) - after(pair.before[0])).collect();
            // With two conditions the second says what the first does.
            if conditions == 2 && condition == 1 && tests.iter().any(Test::is_carry_over) {
                continue;
            }
            if let Some((change, p)) = slope_of_groups(&left, &ratios) {
                let mut found = test(Withheld::CarryOver, p, change, 0.0);
                found.flaw.condition = Some(condition);
                tests.push(found);
            }
        }
        tests.extend(correlation(&ratios));
        Self(tests)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// What is found at a report's 5 %, of so many tests in all; the surest first.
    pub(super) fn found(self, all: usize) -> Vec<Flaw> {
        let mut flaws: Vec<Flaw> = self
            .0
            .into_iter()
            .map(|test| Flaw { p: Some((test.p * all as f64).min(1.0)), ..test.flaw })
            .filter(|flaw| flaw.p.is_some_and(|p| p <= ALPHA))
            .collect();
        flaws.sort_by(|a, b| a.p.unwrap_or(1.0).total_cmp(&b.p.unwrap_or(1.0)));
        flaws
    }
}

impl Test {
    fn is_carry_over(&self) -> bool {
        self.flaw.kind == Withheld::CarryOver
    }
}

/// What the runs of both sides hide; `conditions` are the indices of baseline and other.
pub(super) fn within(sides: [Option<&Within>; 2], conditions: [usize; 2]) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    for (side, condition) in sides.into_iter().zip(conditions) {
        let Some(within) = side else { continue };
        if let Some(cliff) = within.cliff() {
            flaws.push(Flaw {
                kind: Withheld::Cliff,
                change: cliff.change,
                at: cliff.seconds,
                share: cliff.share,
                condition: Some(condition),
                p: None,
            });
        }
        if let Some(stalls) = within.stalls() {
            flaws.push(Flaw {
                kind: Withheld::Stalls,
                change: 0.0,
                at: stalls.longest_seconds,
                share: stalls.share,
                condition: Some(condition),
                p: None,
            });
        }
    }
    flaws
}

/// Slope of the line through points, and the two-sided p-value of none.
pub(super) fn slope(x: &[f64], y: &[f64]) -> Option<(f64, f64)> {
    let n = x.len();
    let (centre, level) = (mean(x), mean(y));
    let spread: f64 = x.iter().map(|x| (x - centre).powi(2)).sum();
    if n < 4 || spread <= 0.0 {
        return None;
    }
    let shared: f64 = x.iter().zip(y).map(|(x, y)| (x - centre) * (y - level)).sum();
    let slope = shared / spread;
    let left: f64 = x.iter().zip(y).map(|(x, y)| (y - level - slope * (x - centre)).powi(2)).sum();
    let freedom = (n - 2) as f64;
    let error = (left / freedom / spread).sqrt();
    Some((slope, two_sided(slope, error, freedom)))
}

/// The same where x has few values; each must occur more than once.
fn slope_of_groups(x: &[f64], y: &[f64]) -> Option<(f64, f64)> {
    let most = x.iter().copied().fold(f64::MIN, f64::max);
    let least = x.iter().copied().fold(f64::MAX, f64::min);
    let count = |value: f64| x.iter().filter(|x| (**x - value).abs() < 0.5).count();
    let is_enough = count(most) >= GROUP_MIN && count(least) >= GROUP_MIN;
    if is_enough { slope(x, y) } else { None }
}

fn two_sided(distance: f64, error: f64, freedom: f64) -> f64 {
    if error > 0.0 {
        2.0 * t_survival(distance.abs() / error, freedom)
    } else if distance.abs() > f64::EPSILON {
        0.0
    } else {
        1.0
    }
}

/// Difference of the means of two groups, and the two-sided p-value of none (equal variances).
fn difference(a: &[f64], b: &[f64]) -> (f64, f64) {
    let freedom = (a.len() + b.len() - 2) as f64;
    let part = |values: &[f64]| deviation(values).powi(2) * (values.len() - 1) as f64;
    let variance = (part(a) + part(b)) / freedom;
    let error = (variance * (1.0 / a.len() as f64 + 1.0 / b.len() as f64)).sqrt();
    let change = mean(b) - mean(a);
    (change, two_sided(change, error, freedom))
}

/// The surest cut of a series in two, as (place, change, p): p counts all cuts.
pub(super) fn cut(values: &[f64]) -> Option<(usize, f64, f64)> {
    let places = GROUP_MIN..(values.len() + 1).saturating_sub(GROUP_MIN);
    let count = places.len() as f64;
    let cuts = places.map(|place| {
        let (change, p) = difference(&values[..place], &values[place..]);
        (place, change, p)
    });
    let (place, change, p) = cuts.min_by(|a, b| a.2.total_cmp(&b.2))?;
    Some((place, change, (p * count).min(1.0)))
}

fn step(rounds: &[f64], ratios: &[f64]) -> Option<Test> {
    let (place, change, p) = cut(ratios)?;
    Some(test(Withheld::Step, p, change, rounds[place - 1]))
}

/// Whether neighbours are more alike than others: von Neumann's ratio, which is nearly normal from ten
/// values on.
fn correlation(ratios: &[f64]) -> Option<Test> {
    let n = ratios.len();
    let centre = mean(ratios);
    let spread: f64 = ratios.iter().map(|ratio| (ratio - centre).powi(2)).sum();
    if n < CORRELATED_MIN || spread <= 0.0 {
        return None;
    }
    let steps: f64 = ratios.windows(2).map(|pair| (pair[1] - pair[0]).powi(2)).sum();
    let count = n as f64;
    let (expected, variance) = (2.0, 4.0 * (count - 2.0) / (count.powi(2) - 1.0));
    let alike = (expected - steps / spread) / variance.sqrt();
    let lagged: f64 = ratios.windows(2).map(|pair| (pair[0] - centre) * (pair[1] - centre)).sum();
    // Student's t with as many degrees of freedom has the tail of a normal, a little wider.
    let p = t_survival(alike, count);
    Some(test(Withheld::Autocorrelated, p, lagged / spread, 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::statistics::random::Random;

    /// Pairs of unrelated ratios, in random order, after random conditions.
    fn pairs(random: &mut Random, n: u32, ratio: impl Fn(&Pair) -> f64) -> Vec<Pair> {
        (0..n)
            .map(|round| {
                let is_baseline_first = random.below(2) == 0;
                let last = Some(random.below(2));
                let before = if is_baseline_first { [last, Some(0)] } else { [Some(1), last] };
                let mut pair = Pair { round, ratio: 0.0, is_baseline_first, before };
                pair.ratio = ratio(&pair) + 0.03 * random.normal();
                pair
            })
            .collect()
    }

    fn kinds(pairs: &[Pair]) -> Vec<Withheld> {
        let tests = Tests::of(pairs, 2);
        let all = tests.count();
        tests.found(all).into_iter().map(|flaw| flaw.kind).collect()
    }

    /// Goal: of 2000 comparisons of unrelated ratios at most 5 % have a flaw (and 1 % for chance).
    #[test]
    fn unrelated_ratios_have_no_flaw() {
        for n in [6, 10, 30] {
            let mut random = Random::new(u64::from(n));
            let wrong = (0..2000).filter(|_| !kinds(&pairs(&mut random, n, |_| 0.1)).is_empty());
            let wrong = wrong.count();
            assert!(wrong <= 120, "{n}: {wrong} of 2000");
        }
    }

    /// Goal: each flaw is found in at least 95 of 100 comparisons, and comes first or second.
    #[test]
    fn planted_flaws_are_found() {
        type Plant = (Withheld, fn(&Pair) -> f64);
        let planted: [Plant; 4] = [
            (Withheld::Trend, |pair| -0.01 * f64::from(pair.round)),
            (Withheld::Step, |pair| if pair.round < 12 { 0.3 } else { -0.3 }),
            (Withheld::Order, |pair| if pair.is_baseline_first { 0.1 } else { 0.0 }),
            (Withheld::CarryOver, |pair| {
                let slow = |before| if before == Some(0) { -0.15 } else { 0.0 };
                slow(pair.before[1]) - slow(pair.before[0])
            }),
        ];
        for (kind, plant) in planted {
            let mut random = Random::new(7);
            let found = (0..100).filter(|_| {
                kinds(&pairs(&mut random, 20, plant)).iter().take(2).any(|it| *it == kind)
            });
            let found = found.count();
            assert!(found >= 95, "{kind:?}: {found} of 100");
        }
    }

    /// Goal: rounds that resemble their neighbours are found.
    #[test]
    fn wandering_ratios_are_found() {
        let mut found = 0;
        for trial in 0..200 {
            let mut random = Random::of(3, trial);
            let mut pairs = pairs(&mut random, 30, |_| 0.0);
            let mut at = 0.0;
            for pair in &mut pairs {
                at = 0.8 * at + 0.03 * random.normal();
                pair.ratio = at;
            }
            found += u32::from(!kinds(&pairs).is_empty());
        }
        assert!(found >= 150, "{found} of 200");
    }
}
