//! What a run gave: values, samples, and marks.

use crate::metric::Metric;
use base::messages::Message;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The value that is kept of a series whose intervals are no seconds.
pub const SERIES_INTERVAL: &str = "series_interval_s";

/// What a run gave.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Measured values.
    pub metrics: BTreeMap<Metric, f64>,
    /// Further values that are kept, by name.
    pub further: BTreeMap<String, f64>,
    /// Bytes that the application read per second of measurement.
    pub read_bytes_per_s: f64,
    /// Bytes that it wrote per second of measurement.
    pub written_bytes_per_s: f64,
    /// Seconds of load, ramp included.
    pub load_seconds: f64,
    /// Bytes per second, second by second, if the run was long enough for it.
    pub series: Vec<f64>,
    /// What the engine itself knows to be wrong with it.
    pub marks: Vec<Mark>,
    /// What was executed.
    pub command: String,
    /// The job file, if there was one.
    pub job: String,
    /// What the engine said, as it said it.
    pub raw: String,
}

impl Outcome {
    /// How long each interval of the series is, in seconds.
    pub fn interval_s(&self) -> f64 {
        self.further.get(SERIES_INTERVAL).copied().unwrap_or(1.0)
    }

    /// Operations of the whole load, those of the ramp included: as the engine counted them, else from
    /// their rate.
    pub fn operations(&self) -> f64 {
        let rate = self.metrics.get(&Metric::Iops).copied().unwrap_or_default();
        self.further.get("ios_all").copied().unwrap_or(rate * self.load_seconds)
    }
}

/// Something about a run that its reader has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mark {
    /// The device moved far less than the application: the load was served from a cache.
    Cached,
    /// The run had not settled, even when repeated with a longer ramp.
    Transient,
    /// There is no counter that distinguishes cache from storage.
    CacheUnknown,
    /// It read, past the page cache of its own file system, and nothing shows whether that reached storage.
    ReadsUnknown,
    /// A hint was not taken: what was measured is not what was asked for.
    Hints,
    /// Too short to say whether it had settled.
    SteadinessUnknown,
    /// Others wanted the CPUs.
    OtherLoad,
    /// The hypervisor gave time to others.
    Steal,
    /// Others used the device.
    OtherTraffic,
    /// Operations under way, from rate and latency (Little), are not what was asked for.
    Little,
    /// The rate that was asked for was not reached.
    Saturated,
    /// Data of earlier runs was still on its way to storage when it began.
    Unsettled,
}

impl Mark {
    /// Whether the run's number itself is wrong, so that it is kept out of verdicts.
    pub fn excludes(&self) -> bool {
        matches!(self, Self::Cached | Self::ReadsUnknown | Self::Transient | Self::Hints)
    }

    /// For people.
    pub fn message(&self) -> Message {
        match self {
            Self::Cached => Message::MarkCached,
            Self::Transient => Message::MarkTransient,
            Self::CacheUnknown => Message::MarkCacheUnknown,
            Self::ReadsUnknown => Message::MarkReadsUnknown,
            Self::Hints => Message::MarkHints,
            Self::SteadinessUnknown => Message::MarkSteadinessUnknown,
            Self::OtherLoad => Message::MarkOtherLoad,
            Self::Steal => Message::MarkSteal,
            Self::OtherTraffic => Message::MarkOtherTraffic,
            Self::Little => Message::MarkLittle,
            Self::Saturated => Message::MarkSaturated,
            Self::Unsettled => Message::MarkUnsettled,
        }
    }

    /// The same in English.
    pub fn label(&self) -> &'static str {
        self.message().english()
    }
}
