//! `tsumugi check --repair` and `--undo`.

use super::Outcome;
use ::meta::check::repair::{Repaired, journal, repair as repair_store};
use anyhow::Context;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the path, beside the store, of the file in which a repair saves the old records.
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
        .with_context(|| format!("cannot repair the metadata store {}", directory.display()))?;
    let Repaired { before, changes, records, after } = repaired;
    let shown = directory.display();
    if records > 0 {
        let count = before.findings.len();
        eprintln!("{shown}: {count} findings; changed {records} records:");
        for change in changes {
            eprintln!("    {change}");
        }
        eprintln!(
            "Their old content is in {}: `tsumugi check {shown} --undo` with that file undoes the \
            repair, as long as the service has not started.",
            kept.display()
        );
    } else if !before.findings.is_empty() {
        eprintln!("{shown}: no finding can be repaired; nothing was changed");
    }
    let what = format!("{shown}: {} inodes", after.inodes);
    let count = after.findings.len() as u64;
    Ok(Outcome { what, findings: after.findings, count, unchecked: None })
}

/// Undoes a repair.
pub(super) fn undo(directory: &Path, kept: &Path) -> anyhow::Result<Outcome> {
    let changes = journal::read(kept).with_context(|| format!("cannot use {}", kept.display()))?;
    let records = journal::take_back(directory, &changes).with_context(|| {
        format!("cannot undo the repair of the metadata store {}", directory.display())
    })?;
    let what = format!("{}: restored {records} records", directory.display());
    Ok(Outcome { what, findings: Vec::new(), count: 0, unchecked: None })
}
