//! Other machines: each checks itself, and this module compares properties that must be equal.

use super::{Finding, Level, Report};
use crate::deploy::hosts::{self, Host};
use crate::deploy::remote::{Errand, ask_all};
use crate::deploy::state::HostState;
use crate::print::words;

/// Runs the checks on all machines, then compares the machines.
pub(crate) fn of_hosts(hosts: &[Host], reached: &[HostState], errand: &Errand) -> Vec<Report> {
    let answers = reached.iter().zip(ask_all::<Report>(reached, errand));
    let report = |(host, answer): (&HostState, anyhow::Result<Report>)| match answer {
        Ok(report) => Report { host: host.host.clone(), ..report },
        Err(error) => unreachable_host(host, &words(&error)),
    };
    let mut reports: Vec<_> = answers.map(report).collect();
    compare(hosts, &mut reports);
    reports
}

fn unreachable_host(host: &HostState, why: &str) -> Report {
    let fix = format!(
        "see that `{} {} {} --version` works without a password",
        host.ssh.join(" "),
        host.host,
        host.binary
    );
    let finding = Finding::bad("program", Level::Missing, why, &fix);
    Report { host: host.host.clone(), findings: vec![finding], ..Report::default() }
}

/// Compares versions and addresses.
fn compare(hosts: &[Host], reports: &mut [Report]) {
    let here = env!("CARGO_PKG_VERSION");
    for report in reports.iter_mut().filter(|report| !report.version.is_empty()) {
        let found = format!("tsumugi {}", report.version);
        report.findings.insert(
            0,
            if report.version == here {
                Finding::ok("program", found)
            } else {
                let found = format!("{found}, and {here} here");
                Finding::bad(
                    "program",
                    Level::Missing,
                    found,
                    "install the same version everywhere",
                )
            },
        );
    }
    let spots: Option<Vec<_>> = reports.iter().map(|report| report.spot.clone()).collect();
    let Some(spots) = spots else { return };
    match hosts::addresses(hosts, &spots) {
        Ok(addresses) => {
            for (report, address) in reports.iter_mut().zip(addresses) {
                let found = format!("the others reach it at {address}");
                report.findings.push(Finding::ok("network", found));
            }
        }
        Err(error) => {
            if let Some(report) = reports.first_mut() {
                let fix = "name addresses in a file of nodes, or the site's data-network";
                report.findings.push(Finding::bad("network", Level::Missing, words(&error), fix));
            }
        }
    }
}
