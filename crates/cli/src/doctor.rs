//! What of a machine a job would miss: the findings of `tsumugi doctor`, and what belongs to each.

mod machine;
mod nodes;
mod storage;

pub(crate) use nodes::of_hosts;
pub(crate) use storage::Place;

use crate::deploy::hosts::Spot;
use crate::print::words;
use serde::{Deserialize, Serialize};

/// How well something is, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// It works, but slowly.
    Slow,
    /// It works, but others can get at it, or it can be lost.
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

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// What was looked at: `kernel`, `engine`, `fuse` and so on.
    pub(crate) what: String,
    /// How well it is.
    pub(crate) level: Level,
    /// What was found.
    pub(crate) found: String,
    /// What to do about it, where it is not well.
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

/// What was found on a machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The machine's name, or what ssh calls it.
    pub(crate) host: String,
    /// The program's version there.
    pub(crate) version: String,
    /// Its place in the network, if it is known.
    #[serde(default)]
    pub(crate) spot: Option<Spot>,
    /// The findings.
    pub(crate) findings: Vec<Finding>,
}

impl Report {
    /// The worst of the findings.
    pub(crate) fn level(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
    }
}

/// Looks at this machine; measures its storage if asked to.
pub(crate) fn of_machine(place: &Place, measure: bool) -> Report {
    let mut findings = machine::look();
    findings.extend(storage::look(place, measure));
    let spot = match Spot::here(&[]) {
        Ok(spot) => Some(spot),
        Err(error) => {
            let fix = "correct data-network, or the machine's addresses";
            findings.push(Finding::bad("network", Level::Missing, words(&error), fix));
            None
        }
    };
    let version = env!("CARGO_PKG_VERSION").into();
    Report { host: crate::site::host_name(), version, spot, findings }
}
