//! The keys of an experiment file, with their places.

use crate::error::Error;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use toml::Spanned;

/// A value with its place.
pub(super) type Placed<T> = Spanned<T>;

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
pub(super) struct RawLevel {
    pub(super) kind: Placed<String>,
    pub(super) label: Option<String>,
    pub(super) path: Option<PathBuf>,
    pub(super) destroy: Option<String>,
    pub(super) network: Option<Placed<String>>,
    pub(super) backing: Option<Placed<String>>,
    pub(super) address: Option<Placed<String>>,
    pub(super) nqn: Option<String>,
    pub(super) namespace: Option<u32>,
    pub(super) rate: Option<Placed<String>>,
    pub(super) spread: Option<Placed<f64>>,
    pub(super) io_queues: Option<Placed<u16>>,
    pub(super) poll_us: Option<reactor::Spin>,
    pub(super) policy: Option<Placed<String>>,
    pub(super) scheme: Option<Placed<String>>,
    #[serde(default)]
    pub(super) cpus: Vec<u16>,
    #[serde(default)]
    pub(super) header_digest: bool,
    #[serde(default)]
    pub(super) data_digest: bool,
    pub(super) file_system: Option<Placed<String>>,
    pub(super) scheduler: Option<Placed<String>>,
    pub(super) nodes: Option<Placed<u16>>,
    pub(super) device_size: Option<Placed<String>>,
    pub(super) checksum: Option<Placed<String>>,
    pub(super) enter: Option<String>,
    pub(super) leave: Option<String>,
    pub(super) mpi: Option<String>,
    #[serde(default)]
    pub(super) options: BTreeMap<String, toml::Value>,
    #[serde(default)]
    pub(super) hints: BTreeMap<String, toml::Value>,
    pub(super) stripe_count: Option<i32>,
    pub(super) stripe_size: Option<String>,
    pub(super) runtimes: Option<Placed<Vec<String>>>,
    pub(super) ratio: Option<Placed<f64>>,
    pub(super) noise: Option<Placed<f64>>,
    pub(super) common: Option<Placed<f64>>,
    pub(super) drift: Option<Placed<f64>>,
    pub(super) trend: Option<Placed<f64>>,
    pub(super) wander: Option<Placed<f64>>,
    pub(super) correlation: Option<Placed<f64>>,
    pub(super) leaves: Option<Placed<f64>>,
    pub(super) cliff: Option<Placed<f64>>,
    pub(super) stalls: Option<Placed<f64>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawWorkload {
    pub(super) name: String,
    pub(super) rw: Option<Placed<String>>,
    pub(super) bs: Option<Placed<Vec<String>>>,
    pub(super) jobs: Option<Placed<Vec<u32>>>,
    pub(super) depth: Option<Placed<Vec<u32>>>,
    pub(super) rate: Option<Placed<Vec<u32>>>,
    pub(super) batch: Option<Placed<Vec<u32>>>,
    pub(super) units: Option<Placed<u32>>,
    pub(super) metrics: Placed<Vec<String>>,
    pub(super) direct: Option<bool>,
    pub(super) command: Option<Placed<Vec<String>>>,
    #[serde(default)]
    pub(super) parse: BTreeMap<String, Placed<RawExtract>>,
    pub(super) timeout: Option<Placed<String>>,
    pub(super) exit_code: Option<i32>,
    pub(super) writes: Option<bool>,
    #[serde(default)]
    pub(super) options: BTreeMap<String, toml::Value>,
    pub(super) profile: Option<Placed<String>>,
    pub(super) compat: Option<Placed<u32>>,
    pub(super) containers: Option<Placed<Vec<u32>>>,
    pub(super) items: Option<Placed<u32>>,
    pub(super) write_bytes: Option<Placed<String>>,
    pub(super) own_directories: Option<bool>,
    pub(super) shift: Option<bool>,
    pub(super) sync: Option<bool>,
    pub(super) own_files: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawExtract {
    pub(super) regex: Option<Placed<String>>,
    pub(super) json: Option<Placed<String>>,
    pub(super) scale: Option<f64>,
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
