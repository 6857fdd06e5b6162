//! The measurements of a run.

use serde::Serialize;

/// The results of one run of one condition.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Run {
    pub(super) condition: &'static str,
    pub(super) containers: usize,
    pub(super) round: usize,
    pub(super) operations: usize,
    /// Operations per second until everything is durable.
    pub(super) rate: f64,
    /// Operations per second until the last write returned.
    pub(super) rate_unsynced: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// The mean of the containers' own rates.
    pub(super) container_rate: f64,
    /// Jain's index of the containers' rates: 1 if all are equal, 1/C if one container has
    /// everything.
    pub(super) fairness: f64,
    /// Bytes in the upper and work directories for each written byte.
    pub(super) upper_amplification: f64,
    /// Bytes written to the disk for each written byte; of the whole machine.
    pub(super) disk_amplification: Option<f64>,
    /// Flushes of the disk for each operation; of the whole machine.
    pub(super) flushes_per_operation: Option<f64>,
}
