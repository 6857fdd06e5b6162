//! The checks of `tsumugi doctor`: each returns findings, with a fix where a job would run into
//! trouble.

mod machine;
mod nodes;
mod storage;

pub(crate) use nodes::of_hosts;
pub(crate) use storage::NodeStorage;

use crate::deploy::hosts::Spot;
use crate::print::words;
use serde::{Deserialize, Serialize};

/// Severity of a finding, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Nothing to do.
    Ok,
    /// It works, but slowly.
    Slow,
    /// It works, but other users can reach the data, or the data can be lost.
    Unsafe,
    /// It does not work.
    Missing,
}

impl Level {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Slow => "slow",
            Self::Unsafe => "unsafe",
            Self::Missing => "missing",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// The subject of the check: `kernel`, `engine`, `fuse` and so on.
    pub(crate) what: String,
    /// Its severity.
    pub(crate) level: Level,
    /// The observation.
    pub(crate) found: String,
    /// The fix, unless the level is `ok`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<String>,
}

impl Finding {
    fn ok(what: &str, found: impl Into<String>) -> Self {
        Self { what: what.into(), level: Level::Ok, found: found.into(), fix: None }
    }

    fn bad(what: &str, level: Level, found: impl Into<String>, fix: &str) -> Self {
        Self { what: what.into(), level, found: found.into(), fix: Some(fix.into()) }
    }
}

/// All findings of one machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The machine's name, or its name for ssh.
    pub(crate) host: String,
    /// Version of the program on that machine.
    pub(crate) version: String,
    /// Its addresses in the data network, if they are known.
    #[serde(default)]
    pub(crate) spot: Option<Spot>,
    /// The findings.
    pub(crate) findings: Vec<Finding>,
}

impl Report {
    /// Returns the worst level of all findings.
    pub(crate) fn level(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
    }
}

/// Checks this machine; with `measure`, also measures its storage.
pub(crate) fn of_machine(storage: &NodeStorage, measure: bool) -> Report {
    let mut findings = machine::look();
    findings.extend(storage::look(storage, measure));
    let spot = match Spot::here(&[]) {
        Ok(spot) => Some(spot),
        Err(error) => {
            let fix = "correct data-network, or the machine's addresses";
            findings.push(Finding::bad("network", Level::Missing, words(&error), fix));
            None
        }
    };
    let version = env!("CARGO_PKG_VERSION").into();
    Report { host: crate::deploy::site::host_name(), version, spot, findings }
}
