//! The distribution of a mean if neighbouring rounds may resemble each other.
//!
//! Student's t takes each round for new evidence. But a drive that collects garbage is slow for several
//! rounds, and then thirty rounds contain no more evidence than five. Six rounds cannot show how much a round
//! resembles the one before (the correlation ρ of an AR(1) process), so no single value is assumed. For each
//! ρ of a grid, generalised least squares (Prais and Winsten 1954) give the mean and its error, with
//! Student's n − 1 degrees of freedom. The answers are averaged, weighted by how well each ρ explains the
//! data (its integrated likelihood) and by a prior: two thirds for none, the rest spread evenly up to 0.9. On
//! independent rounds the data exclude large ρ in time and the interval approaches Student's: the 99 %
//! interval is 2.3 times as wide at 6 rounds, 2.0 at 10, 1.4 at 15 and 1.06 at 30.

use super::{Interval, mean, student};

/// The correlations that are considered.
const CORRELATIONS: [f64; 8] = [0.0, 0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9];
/// The prior probability of no correlation.
const UNRELATED: f64 = 2.0 / 3.0;
/// Parts with a smaller weight are left out.
const WEIGHT_MIN: f64 = 1e-9;

/// The distribution under one correlation.
#[derive(Clone, Copy, Debug)]
struct Part {
    weight: f64,
    mean: f64,
    error: f64,
}

/// The distribution of a mean, given values in the order in which they were measured.
#[derive(Clone, Debug)]
pub struct Belief {
    parts: Vec<Part>,
    freedom: f64,
}

impl Belief {
    /// Weighs values; `None` of fewer than two.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.len() < 2 {
            return None;
        }
        let freedom = (values.len() - 1) as f64;
        let centre = mean(values);
        let spread = values.iter().map(|value| (value - centre).abs()).fold(0.0, f64::max);
        if spread <= f64::EPSILON * centre.abs() {
            // Identical values leave no uncertainty.
            let parts = vec![Part { weight: 1.0, mean: centre, error: 0.0 }];
            return Some(Self { parts, freedom });
        }
        let each = (1.0 - UNRELATED) / (CORRELATIONS.len() - 1) as f64;
        let mut parts: Vec<Part> = CORRELATIONS
            .iter()
            .map(|&rho| part(values, rho, if rho > 0.0 { each } else { UNRELATED }))
            .collect();
        let most = parts.iter().map(|part| part.weight).fold(f64::MIN, f64::max);
        for part in &mut parts {
            part.weight = (part.weight - most).exp();
        }
        parts.retain(|part| part.weight > WEIGHT_MIN);
        let sum: f64 = parts.iter().map(|part| part.weight).sum();
        for part in &mut parts {
            part.weight /= sum;
        }
        Some(Self { parts, freedom })
    }

    /// Returns the probability that the mean lies above a value.
    pub fn above(&self, value: f64) -> f64 {
        self.parts.iter().map(|part| part.weight * self.tail(part, part.mean - value)).sum()
    }

    /// Returns the probability that the mean lies below a value.
    pub fn below(&self, value: f64) -> f64 {
        self.parts.iter().map(|part| part.weight * self.tail(part, value - part.mean)).sum()
    }

    /// Returns P(T ≤ distance / error).
    fn tail(&self, part: &Part, distance: f64) -> f64 {
        if part.error > 0.0 {
            student::survival(-distance / part.error, self.freedom)
        } else if distance > 0.0 {
            1.0
        } else {
            0.0
        }
    }

    /// Returns the interval that leaves out equal parts on both sides.
    pub fn interval(&self, confidence: f64) -> Interval {
        let tail = (1.0 - confidence) / 2.0;
        let step = student::quantile(1.0 - tail, self.freedom);
        let ends = self.parts.iter().map(|part| step * part.error);
        // No part alone leaves out more than all together beyond its own quantile.
        let reach = ends.fold(0.0, f64::max);
        let centres = || self.parts.iter().map(|part| part.mean);
        let (least, most) =
            (centres().fold(f64::MAX, f64::min), centres().fold(f64::MIN, f64::max));
        let low = border(least - reach, most, |it| self.below(it) - tail);
        let high = border(least, most + reach, |it| tail - self.above(it));
        Interval { low, high }
    }
}

/// Returns the zero of a growing function between two places on either side of it (Illinois).
fn border(mut low: f64, mut high: f64, of: impl Fn(f64) -> f64) -> f64 {
    let (mut at_low, mut at_high) = (of(low), of(high));
    let accuracy = 1e-7 * (high - low);
    for _ in 0..200 {
        if at_low >= 0.0 || high - low <= accuracy {
            return low;
        }
        if at_high <= 0.0 {
            return high;
        }
        let guess = (low * at_high - high * at_low) / (at_high - at_low);
        // The function is flat far out: never less than a twentieth of the way.
        let least = 0.05 * (high - low);
        let middle = guess.clamp(low + least, high - least);
        let value = of(middle);
        if value < 0.0 {
            (low, at_low) = (middle, value);
            at_high /= 2.0;
        } else {
            (high, at_high) = (middle, value);
            at_low /= 2.0;
        }
    }
    f64::midpoint(low, high)
}

/// Computes the distribution under a correlation; the weight is still a logarithm.
fn part(values: &[f64], rho: f64, prior: f64) -> Part {
    let first = (1.0 - rho * rho).sqrt();
    let rest = 1.0 - rho;
    let n = values.len();
    let weight = first.powi(2) + (n - 1) as f64 * rest.powi(2);
    let later: f64 = values.windows(2).map(|pair| rest * (pair[1] - rho * pair[0])).sum();
    let mean = (first.powi(2) * values[0] + later) / weight;
    let left: f64 =
        values.windows(2).map(|pair| (pair[1] - rho * pair[0] - rest * mean).powi(2)).sum::<f64>()
            + (first * (values[0] - mean)).powi(2);
    let freedom = (n - 1) as f64;
    let likelihood = first.ln() - 0.5 * weight.ln() - 0.5 * freedom * left.ln();
    Part { weight: prior.ln() + likelihood, mean, error: (left / freedom / weight).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::t_interval;

    fn wandering(trial: u64, n: usize, rho: f64) -> Vec<f64> {
        let mut random = Random::of(41, trial);
        let mut at = random.normal();
        let mut values = Vec::with_capacity(n);
        for _ in 0..n {
            values.push(at);
            at = rho * at + (1.0 - rho * rho).sqrt() * random.normal();
        }
        values
    }

    fn median_of(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }

    /// Goal: 95 % intervals contain the mean of unrelated and of wandering values (1000 trials: ± 1.4 %);
    /// Student's miss it in a third of all cases.
    #[test]
    fn intervals_cover_wandering_values() {
        for (n, rho, least) in [(6, 0.0, 0.96), (30, 0.0, 0.95), (10, 0.7, 0.83), (30, 0.7, 0.93)] {
            let (mut held, mut by_t) = (0, 0);
            for trial in 0..1000 {
                let values = wandering(trial, n, rho);
                held += u32::from(Belief::of(&values).unwrap().interval(0.95).contains(0.0));
                by_t += u32::from(t_interval(&values, 0.95).unwrap().contains(0.0));
            }
            assert!(f64::from(held) / 1000.0 >= least, "{n} {rho}: {held}");
            assert!(rho < 0.5 || by_t < 720, "{n} {rho}: {by_t}");
        }
    }

    /// Goal: the cost on unrelated values is the one that the module states.
    #[test]
    fn unrelated_values_cost_little_in_the_end() {
        for (n, most) in [(6, 2.5), (10, 2.2), (30, 1.15)] {
            let ratios = (0..200).map(|trial| {
                let values = wandering(trial, n, 0.0);
                let plain = t_interval(&values, 0.99).unwrap().half_width();
                Belief::of(&values).unwrap().interval(0.99).half_width() / plain
            });
            let ratio = median_of(ratios.collect());
            assert!((1.0..most).contains(&ratio), "{n}: {ratio}");
        }
    }

    /// Goal: interval and probabilities agree; identical values are certain; one value is none.
    #[test]
    fn edges() {
        let belief = Belief::of(&[0.1, 0.3, 0.2, 0.25, 0.15, 0.2]).unwrap();
        let interval = belief.interval(0.95);
        assert!((belief.below(interval.low) - 0.025).abs() < 1e-5, "{interval:?}");
        assert!((belief.above(interval.high) - 0.025).abs() < 1e-5, "{interval:?}");
        let same = Belief::of(&[0.2; 6]).unwrap();
        let interval = same.interval(0.95);
        assert!((interval.low - 0.2).abs() < 1e-12 && (interval.high - 0.2).abs() < 1e-12);
        assert!(same.above(0.1) > 0.5 && same.below(0.1) < 0.5);
        assert!(Belief::of(&[0.2]).is_none());
    }
}
