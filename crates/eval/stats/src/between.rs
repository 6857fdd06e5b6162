//! A new result beside earlier ones of the same plan, without pairs.
//!
//! Results of two days differ by more than runs of one day, and the runs of either do not show by how much.
//! The means of several earlier results do: their deviation contains the variation between days and that of
//! runs. A further mean lies within t(k − 1) · s · √(1 + 1/k) of the mean of k earlier ones (a prediction
//! interval). Three means may agree by chance far better than the runs behind them allow; therefore the
//! interval is never narrower than the one from the runs alone.

use super::{Interval, deviation, mean, student};

/// Returns the interval of mean(new) − mean of the means of `past`, including the variance between the
/// results; `None` if fewer than two of these, or none of the new, have values.
pub fn between_interval(past: &[Vec<f64>], new: &[f64], confidence: f64) -> Option<Interval> {
    let past: Vec<&Vec<f64>> = past.iter().filter(|values| !values.is_empty()).collect();
    if past.len() < 2 || new.is_empty() {
        return None;
    }
    let count = past.len() as f64;
    let means: Vec<f64> = past.iter().map(|values| mean(values)).collect();
    let centre = mean(new) - mean(&means);
    let quantile = |freedom: f64| student::quantile(f64::midpoint(1.0, confidence), freedom);
    let between = quantile(count - 1.0) * deviation(&means) * (1.0 + 1.0 / count).sqrt();
    let half =
        between.max(within(&past, new).map_or(0.0, |(error, freedom)| quantile(freedom) * error));
    Some(Interval { low: centre - half, high: centre + half })
}

/// Returns the standard error of the same difference from the runs alone, with its degrees of freedom
/// (Satterthwaite); `None` if no result has two runs.
fn within(past: &[&Vec<f64>], new: &[f64]) -> Option<(f64, f64)> {
    let weight = 1.0 / past.len() as f64;
    let all = past.iter().map(|values| (values.as_slice(), weight)).chain([(new, 1.0)]);
    let (mut sum, mut squares) = (0.0, 0.0);
    for (values, weight) in all.filter(|(values, _)| values.len() > 1) {
        let part = (weight * deviation(values)).powi(2) / values.len() as f64;
        sum += part;
        squares += part.powi(2) / (values.len() - 1) as f64;
    }
    (sum > 0.0).then(|| (sum.sqrt(), sum.powi(2) / squares))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::welch_interval;

    fn day(random: &mut Random, between: f64, runs: usize) -> Vec<f64> {
        let shift = between * random.normal();
        (0..runs).map(|_| shift + 0.02 * random.normal()).collect()
    }

    /// Goal: if days vary more than runs, the interval covers no change in 95 % of 2000 histories, whatever
    /// their length; the interval of runs alone (Welch) does not.
    #[test]
    fn what_days_differ_by_is_in_the_interval() {
        let mut random = Random::new(3);
        for past in [3, 5, 10] {
            let (mut covered, mut by_runs) = (0, 0);
            for _ in 0..2000 {
                let days: Vec<Vec<f64>> = (0..past).map(|_| day(&mut random, 0.05, 10)).collect();
                let new = day(&mut random, 0.05, 10);
                covered += u32::from(between_interval(&days, &new, 0.95).unwrap().contains(0.0));
                let welch = welch_interval(&days.concat(), &new, 0.95).unwrap();
                by_runs += u32::from(welch.contains(0.0));
            }
            let share = f64::from(covered) / 2000.0;
            assert!((0.935..=0.985).contains(&share), "{past}: {share}");
            assert!(by_runs < 1500, "{past}: {by_runs}");
        }
    }

    /// Goal: means that agree by chance do not make it narrower than the runs allow; a single earlier result
    /// has no interval, and a single run has one.
    #[test]
    fn edges() {
        let spread = vec![-0.1, 0.0, 0.1];
        let same = vec![spread.clone(); 3];
        let interval = between_interval(&same, &spread, 0.95).unwrap();
        assert!(interval.half_width() > 0.1, "{interval:?}");
        assert_eq!(between_interval(&same[..1], &spread, 0.95), None);
        assert_eq!(between_interval(&same, &[], 0.95), None);
        let single = [vec![0.0], vec![0.1], vec![0.2]];
        let interval = between_interval(&single, &[0.1], 0.95).unwrap();
        // t(2) · 0.1 · √(4/3).
        assert!((interval.half_width() - 4.302_65 * 0.1 * (4.0_f64 / 3.0).sqrt()).abs() < 1e-4);
    }
}
