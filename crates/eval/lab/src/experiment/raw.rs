//! The keys of an experiment file, with their places.

use crate::error::Error;
use loads::keys::Placed;
use loads::levels::RawLevel;
use loads::workloads::RawWorkload;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawExperiment {
    pub(super) name: Placed<String>,
    pub(super) title: String,
    pub(super) question: String,
    pub(super) source: Option<String>,
    pub(super) language: Option<Placed<String>>,
    pub(super) engine: Placed<String>,
    #[serde(default)]
    pub(super) seed: u64,
    pub(super) file_size: Placed<String>,
    pub(super) timing: RawTiming,
    #[serde(default)]
    pub(super) limits: RawLimits,
    #[serde(default)]
    pub(super) margins: RawMargins,
    #[serde(default)]
    pub(super) cpu: RawCpu,
    pub(super) factors: BTreeMap<String, BTreeMap<String, Placed<RawLevel>>>,
    pub(super) workload: Vec<Placed<RawWorkload>>,
    pub(super) comparison: Vec<Placed<RawComparison>>,
    pub(super) quick: Option<Placed<RawQuick>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawTiming {
    pub(super) run: Placed<String>,
    pub(super) ramp: Option<Placed<String>>,
    pub(super) warm_up_rounds: Option<u32>,
    pub(super) looks: Option<Placed<Vec<u32>>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawLimits {
    pub(super) time: Option<Placed<String>>,
    pub(super) written: Option<Placed<String>>,
    pub(super) link_rate: Option<Placed<String>>,
    pub(super) container_rate: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawCpu {
    #[serde(default)]
    pub(super) hosts: Vec<Placed<String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawMargins {
    pub(super) throughput_percent: Option<Placed<f64>>,
    pub(super) latency_percent: Option<Placed<f64>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawComparison {
    pub(super) name: String,
    pub(super) role: Option<String>,
    pub(super) baseline: Placed<BTreeMap<String, String>>,
    pub(super) other: Placed<BTreeMap<String, String>>,
    #[serde(default)]
    pub(super) published: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawQuick {
    pub(super) run: Option<Placed<String>>,
    pub(super) ramp: Option<Placed<String>>,
    pub(super) warm_up_rounds: Option<u32>,
    pub(super) rounds: Option<Placed<u32>>,
    pub(super) file_size: Option<Placed<String>>,
    pub(super) comparisons: Option<Placed<Vec<String>>>,
    #[serde(default)]
    pub(super) workload: Vec<Placed<RawWorkload>>,
}

/// Reads the keys.
pub(super) fn parse(text: &str) -> Result<RawExperiment, Error> {
    // The message of the parser has line, column and the line itself.
    toml::from_str(text).map_err(|error| Error::Toml(error.to_string().trim_end().to_string()))
}
