//! What a run came to: what `tsumugi eval rate --json` prints and the engine reads.

pub use crate::ours::Times;

use serde::{Deserialize, Serialize};

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Kind of load, as fio names it.
    pub rw: String,
    /// Bytes of a request.
    pub bs: u64,
    /// Requests per second that were asked for, if any.
    pub rate: Option<u64>,
    /// Requests of a batch.
    pub batch: u32,
    /// Threads.
    pub numjobs: u32,
    /// Parts of the devices.
    pub units: u32,
    /// Measured time.
    pub seconds: f64,
    /// Whether a signal ended it.
    pub is_interrupted: bool,
    /// Requests that completed in the measured time.
    pub ios: u64,
    /// All requests, those before measuring too.
    pub ios_all: u64,
    /// Requests per second of the measured time.
    pub iops: f64,
    /// Whether the rate was not held.
    pub is_saturated: bool,
    /// Latency from when requests were due.
    pub latency_us: Times,
    /// Latency from their submission.
    pub service_us: Times,
    /// Time from when they were due until their submission.
    pub lateness_us: Times,
    /// Numbers of requests, and of system calls that submitted so many.
    pub submissions: Vec<(usize, u64)>,
    /// CPU time of the process per request.
    pub cpu_us_per_io: f64,
    /// CPU time of the process, in percent of one CPU.
    pub cpu_percent: f64,
    /// Requests that were not answered in time at the end.
    pub unfinished: u32,
    /// How much later than it should a timer may fire, as the kernel has it.
    pub timer_slack_ns: u64,
    /// How late a batch may be for a wake-up that serves several.
    pub slack_us: u64,
    /// Whether requests went to the kernel without our block layer.
    pub is_straight: bool,
    /// Whether the kernel knew the memory of requests beforehand.
    pub has_registered_memory: bool,
    /// Requests of each whole second.
    pub series: Vec<u64>,
    /// Upper ends and counts of latencies, with two significant digits.
    pub histogram_ns: Vec<(u64, u64)>,
}
