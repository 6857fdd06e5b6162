//! A scrub's record in the job's directory for `tsumugi status`: its progress and its findings.

use super::job::JobDir;
use super::process::Process;
use super::{place, state};
use ::meta::check::Finding;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

const FILE: &str = "scrub.json";

/// Maximum number of findings to keep.
const FOUND_MAX: usize = 1000;

/// The amounts that were read and compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Files that were read.
    pub(crate) files: u64,
    /// Bytes that were read from devices.
    pub(crate) read_bytes: u64,
    /// Blocks that were compared with their checksum.
    pub(crate) compared_blocks: u64,
    /// Blocks without a checksum.
    pub(crate) unsummed_blocks: u64,
    /// Blocks that were wrong at first and right when they were read again.
    pub(crate) repaired_blocks: u64,
}

/// A scrub, in progress or ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ScrubRecord {
    /// The process of the scrub.
    pub(crate) process: Process,
    /// Start time, in seconds since 1970.
    pub(crate) begun: u64,
    /// End time, if it has ended.
    pub(crate) ended: Option<u64>,
    /// The reason of an early end.
    pub(crate) failure: Option<String>,
    /// Maximum bytes to read per second.
    pub(crate) rate_bytes: Option<u64>,
    /// Bytes of live data in the pool: about the amount to read.
    pub(crate) live_bytes: u64,
    /// The amounts so far.
    #[serde(flatten)]
    pub(crate) tally: Tally,
    /// Number of all findings.
    pub(crate) findings_count: u64,
    /// The first 1000 findings.
    pub(crate) findings: Vec<Found>,
}

/// A finding at one place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Found {
    /// `damage` or `unread`.
    pub(crate) area: String,
    /// The device, for a finding about a block.
    pub(crate) device: Option<u32>,
    /// The block, counted from the device's start.
    pub(crate) block: Option<u64>,
    /// The file.
    pub(crate) inode: Option<u64>,
    /// A path of the file.
    pub(crate) path: Option<String>,
    /// The finding in words.
    pub(crate) finding: String,
}

impl From<&Finding> for Found {
    fn from(finding: &Finding) -> Found {
        Found {
            area: finding.area.name().into(),
            device: finding.block.map(|(device, _)| device.0),
            block: finding.block.map(|(_, block)| block),
            inode: finding.inode.map(|inode| inode.0),
            path: finding.path.clone(),
            finding: finding.what.clone(),
        }
    }
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl ScrubRecord {
    /// Returns the record of a scrub that this process starts now.
    pub(crate) fn begin(rate_bytes: Option<u64>) -> anyhow::Result<ScrubRecord> {
        Ok(ScrubRecord {
            process: Process::current().context("cannot find this process in /proc")?,
            begun: seconds(),
            ended: None,
            failure: None,
            rate_bytes,
            live_bytes: 0,
            tally: Tally::default(),
            findings_count: 0,
            findings: Vec::new(),
        })
    }

    /// Records a finding.
    pub(crate) fn note(&mut self, finding: &Finding) {
        self.findings_count += 1;
        if self.findings.len() < FOUND_MAX {
            self.findings.push(finding.into());
        }
    }

    /// Records the end of the scrub.
    pub(crate) fn end(&mut self, failure: Option<String>) {
        self.ended = Some(seconds());
        self.failure = failure;
    }

    /// Returns whether the scrub is still running.
    pub(crate) fn is_running(&self) -> bool {
        self.ended.is_none() && self.process.is_alive()
    }

    fn path(dir: &JobDir) -> PathBuf {
        dir.join(FILE)
    }

    /// Replaces the file.
    pub(crate) fn write(&self, dir: &JobDir) -> anyhow::Result<()> {
        state::replace(&ScrubRecord::path(dir), &serde_json::to_vec_pretty(self)?, None)
    }

    /// Reads the file; `None` if there was no scrub.
    pub(crate) fn read(dir: &JobDir) -> anyhow::Result<Option<ScrubRecord>> {
        let path = ScrubRecord::path(dir);
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .with_context(|| format!("{} is not a scrub's record", path.display())),
            Err(error) if place::is_absent(&error) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }
}

/// Returns a finding as JSON, in the form of `tsumugi check` and `tsumugi scrub`.
pub(crate) fn json_of(finding: &Finding) -> Value {
    json!({
        "area": finding.area.name(),
        "inode": finding.inode.map(|inode| inode.0),
        "path": finding.path,
        "device": finding.block.map(|(device, _)| device.0),
        "block": finding.block.map(|(_, block)| block),
        "finding": finding.what,
        "meaning": finding.area.meaning(),
    })
}
