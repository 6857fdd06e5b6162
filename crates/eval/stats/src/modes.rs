//! Whether values form two clusters.
//!
//! Sorted values are cut at their widest gap that leaves a fifth of them, and three at least, on either side.
//! The gap is compared with the deviation within the clusters: 1.4826 times the median distance of the values
//! from the median of their own cluster, which is the standard deviation of normal values (Hampel 1974). The
//! distance from the median of all does not work: with two equal clusters it is half of the gap itself.

use super::median;

/// Factor from median distance to standard deviation, for normal values.
const NORMAL: f64 = 1.4826;
/// Fewest values of a cluster.
const CLUSTER_MIN: usize = 3;
/// The same as a share.
const CLUSTER_SHARE_MIN: f64 = 0.20;

/// Two clusters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Modes {
    /// Median of the lower one.
    pub low: f64,
    /// Median of the upper one.
    pub high: f64,
    /// The number of values in the lower and in the upper one.
    pub n: (usize, usize),
    /// The gap between both, divided by the deviation within them; infinite without deviation.
    pub gap: f64,
}

/// Cuts values into two clusters, whether they have any or not; `None` for fewer than six, or if all are
/// equal.
pub fn modes(values: &[f64]) -> Option<Modes> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let least = CLUSTER_MIN.max((CLUSTER_SHARE_MIN * n as f64).ceil() as usize);
    let width = |cut: usize| sorted[cut] - sorted[cut - 1];
    let cuts = least..(n + 1).saturating_sub(least);
    let cut = cuts.max_by(|a, b| width(*a).total_cmp(&width(*b)))?;
    if width(cut) <= 0.0 {
        return None;
    }
    let (low, high) = sorted.split_at(cut);
    let centres = (median(low), median(high));
    let distances: Vec<f64> = low
        .iter()
        .map(|value| (value - centres.0).abs())
        .chain(high.iter().map(|value| (value - centres.1).abs()))
        .collect();
    let gap = width(cut) / (NORMAL * median(&distances));
    Some(Modes { low: centres.0, high: centres.1, n: (low.len(), high.len()), gap })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Goal: planted clusters are found, and one cluster is called two in at most 5 % of 2000 samples at the
    /// size and the limit that A20 uses.
    #[test]
    fn planted_clusters_are_found() {
        let mut random = Random::new(7);
        for _ in 0..200 {
            let draw = |index: u32, random: &mut Random| {
                f64::from(index % 2) * 0.3 + 0.02 * random.normal()
            };
            let values: Vec<f64> = (0..16).map(|index| draw(index, &mut random)).collect();
            let found = modes(&values).unwrap();
            assert!(found.gap > 3.0 && found.n == (8, 8), "{found:?}");
            assert!(found.low.abs() < 0.05 && (found.high - 0.3).abs() < 0.05, "{found:?}");
        }
        let mut wrong = 0;
        for _ in 0..2000 {
            let values: Vec<f64> = (0..15).map(|_| random.normal()).collect();
            wrong += u32::from(modes(&values).is_some_and(|found| found.gap > 3.0));
        }
        assert!(wrong <= 100, "{wrong} of 2000");
    }

    /// Goal: too few and equal values have no clusters; two values only are infinitely far apart.
    #[test]
    fn edges() {
        assert_eq!(modes(&[1.0, 1.0, 1.0, 2.0, 2.0]), None);
        assert_eq!(modes(&[1.0; 20]), None);
        let two = modes(&[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]).unwrap();
        assert!(two.gap.is_infinite());
    }
}
