//! Whether a run had settled: the check of the SNIA PTS, as common kits implement it.
//!
//! The series is cut into five equal windows. A run is settled if it neither swings (largest less smallest
//! window at most 20 % of their mean) nor slides (the fitted line changes by at most 10 % of the mean over
//! the five).

use super::mean;
use serde::Serialize;
use std::ops::Range;

const WINDOWS: usize = 5;
const EXCURSION_MAX: f64 = 0.20;
const SLIDE_MAX: f64 = 0.10;

/// The result of the check.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Steadiness {
    /// The run had settled.
    Steady,
    /// The run had not settled.
    Transient {
        /// Largest less smallest window, as a share of the mean.
        excursion: f64,
        /// Change of the fitted line over all windows, as a share of the mean.
        slide: f64,
    },
    /// Fewer than five values: there is no result.
    Unknown,
}

/// Returns the part of a series of this length that is checked; `None` if it is too short.
///
/// The rest that does not fill a window is left out at the start, where a run is least settled.
pub fn steady_window(length: usize) -> Option<Range<usize>> {
    let window = length / WINDOWS;
    (window > 0).then(|| length - window * WINDOWS..length)
}

/// Checks a series of equally long intervals.
pub fn steadiness(series: &[f64]) -> Steadiness {
    let Some(checked) = steady_window(series.len()) else { return Steadiness::Unknown };
    let series = &series[checked];
    let length = series.len() / WINDOWS;
    let windows: Vec<f64> = series.chunks_exact(length).map(mean).collect();
    let centre = mean(&windows);
    if centre <= 0.0 {
        return Steadiness::Transient { excursion: f64::INFINITY, slide: f64::INFINITY };
    }
    let max = windows.iter().copied().fold(f64::MIN, f64::max);
    let min = windows.iter().copied().fold(f64::MAX, f64::min);
    // Least squares over x = −2…2: Σx² = 10.
    let slope = windows.iter().zip([-2.0, -1.0, 0.0, 1.0, 2.0]).map(|(y, x)| x * y).sum::<f64>();
    let slide = (slope / 10.0 * WINDOWS as f64 / centre).abs();
    let excursion = (max - min) / centre;
    if excursion <= EXCURSION_MAX && slide <= SLIDE_MAX {
        Steadiness::Steady
    } else {
        Steadiness::Transient { excursion, slide }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: flat and slightly noisy series are steady; slides, steps and short ones are not.
    #[test]
    fn settled_series_are_told_from_others() {
        assert_eq!(steadiness(&[100.0, 101.0, 99.0, 100.0, 102.0, 98.0]), Steadiness::Steady);
        let slide: Vec<f64> = (0..20).map(|second| 100.0 + f64::from(second)).collect();
        assert!(matches!(steadiness(&slide), Steadiness::Transient { slide, .. } if slide > 0.1));
        let step = [100.0, 100.0, 70.0, 100.0, 100.0];
        assert!(matches!(steadiness(&step), Steadiness::Transient { .. }));
        assert_eq!(steadiness(&[1.0; 4]), Steadiness::Unknown);
        assert!(matches!(steadiness(&[0.0; 5]), Steadiness::Transient { .. }));
        // A slow start that does not fill a window is not counted.
        assert_eq!(steadiness(&[10.0, 100.0, 100.0, 100.0, 100.0, 100.0]), Steadiness::Steady);
    }
}
