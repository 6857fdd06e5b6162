//! The distribution of latency of one run, from what its engine printed: fio's percentiles, or the
//! histogram of our own loads.

use serde_json::Value;

/// Shares of operations that are at least as fast as a latency.
pub const QUANTILES: [f64; 14] =
    [0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99999, 0.999_999];
/// Fewer slower operations than this say nothing of a quantile.
const BEYOND_MIN: f64 = 10.0;

/// Places in [`QUANTILES`] and latencies in µs, as far out as enough operations lie beyond; nothing if the
/// engine reported no distribution.
pub fn tail(raw: &str) -> Vec<(usize, f64)> {
    let Ok(said) = serde_json::from_str::<Value>(raw) else { return Vec::new() };
    let (total, at): (f64, Box<dyn Fn(f64) -> Option<f64>>) =
        if let Some(buckets) = histogram(&said) {
            let total = buckets.iter().map(|(_, count)| count).sum();
            (total, Box::new(move |quantile| of_histogram(&buckets, quantile * total)))
        } else if let Some((total, side)) = fio_side(&said) {
            let percentile = move |quantile: f64| {
                let key = format!("{:.6}", 100.0 * quantile);
                side.pointer("/clat_ns/percentile")?.get(key)?.as_f64()
            };
            (total, Box::new(percentile))
        } else {
            return Vec::new();
        };
    // A share as it is written may be a hair off: 1 − 0.99 is less than 0.01.
    let is_told = |quantile: &f64| ((1.0 - quantile) * total).round() >= BEYOND_MIN;
    let told = QUANTILES.into_iter().enumerate().filter(|(_, quantile)| is_told(quantile));
    told.filter_map(|(index, quantile)| Some((index, at(quantile)? / 1000.0))).collect()
}

/// Upper ends in ns and counts.
fn histogram(said: &Value) -> Option<Vec<(f64, f64)>> {
    let buckets = said.get("histogram_ns")?.as_array()?;
    buckets
        .iter()
        .map(|bucket| Some((bucket.get(0)?.as_f64()?, bucket.get(1)?.as_f64()?)))
        .collect()
}

fn of_histogram(buckets: &[(f64, f64)], rank: f64) -> Option<f64> {
    let mut seen = 0.0;
    buckets.iter().find_map(|(end, count)| {
        seen += count;
        // Half an operation is no operation.
        (seen + 0.5 >= rank).then_some(*end)
    })
}

/// The side that did something, with its operations.
fn fio_side(said: &Value) -> Option<(f64, Value)> {
    ["read", "write"].into_iter().find_map(|side| {
        let side = said.pointer(&format!("/jobs/0/{side}"))?;
        let total = side.get("total_ios")?.as_f64().filter(|total| *total > 0.0)?;
        Some((total, side.clone()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: quantiles are those of the histogram, and end where too few operations lie beyond.
    #[test]
    fn histograms_are_read() {
        let raw = r#"{"histogram_ns":[[1000,500],[2000,400],[9000,100]]}"#;
        let found = tail(raw);
        let at = |quantile: f64| {
            let is_it = |it: &f64| (it - quantile).abs() < 1e-9;
            found.iter().find(|(index, _)| is_it(&QUANTILES[*index])).map(|(_, latency)| *latency)
        };
        assert_eq!((at(0.5), at(0.9), at(0.99)), (Some(1.0), Some(2.0), Some(9.0)));
        assert_eq!(at(0.995), None, "five of a thousand lie beyond");
    }

    /// Goal: fio's percentiles are taken from the side that worked; what has none gives none.
    #[test]
    fn percentiles_of_fio_are_read() {
        let raw = r#"{"jobs":[{"read":{"total_ios":0},"write":{"total_ios":5000,
            "clat_ns":{"percentile":{"50.000000":4000,"99.000000":9000,"99.990000":99000}}}}]}"#;
        assert_eq!(tail(raw), [(3, 4.0), (7, 9.0)]);
        for nothing in ["", "{}", "text", r#"{"jobs":[]}"#, r#"{"histogram_ns":[["a",1]]}"#] {
            assert!(tail(nothing).is_empty(), "{nothing}");
        }
    }
}
