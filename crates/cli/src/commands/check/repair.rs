//! `tsumugi check --repair` and `--undo`.

use super::Outcome;
use ::meta::check::repair::{Repaired, journal, repair as repair_store};
use anyhow::Context;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where what a repair changes is kept: beside the store.
fn journal_of(directory: &Path) -> anyhow::Result<PathBuf> {
    let directory = std::path::absolute(directory)
        .with_context(|| format!("cannot find {}", directory.display()))?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut name = directory.file_name().map_or_else(|| OsString::from("store"), OsString::from);
    name.push(format!(".repair-{seconds}"));
    Ok(directory.with_file_name(name))
}

/// Repairs a store.
pub(super) fn repair(directory: &Path) -> anyhow::Result<Outcome> {
    let kept = journal_of(directory)?;
    let repaired = repair_store(directory, |changes| journal::write(&kept, changes))
        .with_context(|| format!("the metadata store {} was not repaired", directory.display()))?;
    let Repaired { before, changes, records, after } = repaired;
    let shown = directory.display();
    if records > 0 {
        let count = before.findings.len();
        eprintln!("{shown}: {count} findings, {records} records were changed:");
        for change in changes {
            eprintln!("    {change}");
        }
        eprintln!(
            "What they held before is in {}: `tsumugi check {shown} --undo` with that file takes the repair back, \
             until the service has started.",
            kept.display()
        );
    } else if !before.findings.is_empty() {
        eprintln!("{shown}: none of the findings can be repaired, nothing was changed");
    }
    let what = format!("{shown}: {} inodes", after.inodes);
    let count = after.findings.len() as u64;
    Ok(Outcome { what, findings: after.findings, count, unchecked: None })
}

/// Takes a repair back.
pub(super) fn undo(directory: &Path, kept: &Path) -> anyhow::Result<Outcome> {
    let changes = journal::read(kept).with_context(|| format!("cannot use {}", kept.display()))?;
    let records = journal::take_back(directory, &changes).with_context(|| {
        format!("the repair of the metadata store {} is not taken back", directory.display())
    })?;
    let what = format!("{}: {records} records hold what they held before", directory.display());
    Ok(Outcome { what, findings: Vec::new(), count: 0, unchecked: None })
}
