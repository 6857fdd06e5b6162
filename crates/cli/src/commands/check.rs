//! `tsumugi check`: checks the metadata store of a pool whose service does not run, from the tree to free space.

use crate::deploy::job::JobDir;
use crate::deploy::state::State;
use ::meta::check::Finding;
use ::meta::check::store::{Checked, check};
use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Nothing could be checked.
const UNCHECKED: u8 = 2;

/// Check a stopped metadata store: that nothing is missing, and that all of it agrees.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi check /var/tmp/job.meta        the directory of a store
    tsumugi check training --json          the store of a pool of this machine

Reads all records and compares them: names with inodes, inodes with extents, extents with the blocks that \
count as used, blocks with free space. Changes nothing. The metadata service must not be running. `tsumugi meta \
check` is the first part of it alone: whether commits are missing.

Exit codes:
    0  nothing was found
    1  findings are printed
    2  wrong usage, or nothing could be checked: the service runs, or there is no such store")]
pub(crate) struct CheckArgs {
    /// Directory of a metadata store, or the name of a pool on this machine
    #[arg(value_name = "STORE|JOB")]
    store: PathBuf,
    /// Base of the pools' directories [default: the user's runtime directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print JSON: an object per finding
    #[arg(long)]
    json: bool,
}

/// Runs `tsumugi check`.
pub(crate) fn run(args: &CheckArgs) -> ExitCode {
    crate::confine::keep_files_private();
    let checked = directory(args).and_then(|directory| {
        let checked = check(&directory).with_context(|| {
            format!("the metadata store {} cannot be checked", directory.display())
        })?;
        Ok((directory, checked))
    });
    match checked {
        Ok((_, checked)) if args.json => print_json(&checked),
        Ok((directory, checked)) => print(&directory, &checked),
        Err(error) => {
            eprintln!("tsumugi: nothing was checked: {error:#}");
            ExitCode::from(UNCHECKED)
        }
    }
}

/// The store that is meant.
fn directory(args: &CheckArgs) -> anyhow::Result<PathBuf> {
    if args.store.is_dir() {
        return Ok(args.store.clone());
    }
    let name = args.store.to_str().filter(|name| !name.contains('/'));
    let Some(name) = name else { bail!("there is no directory {}", args.store.display()) };
    let dir = JobDir::new(Some(name), args.dir.as_deref())?;
    let state = State::read(&dir)?;
    let Some(state) = state else {
        bail!("there is no directory {name}, and no job {name} ({})", dir.path().display())
    };
    match state.meta {
        Some(meta) => Ok(meta.store),
        None => bail!("the metadata service of job {name} is not on this machine"),
    }
}

fn print_json(checked: &Checked) -> ExitCode {
    for finding in &checked.findings {
        let line = json!({
            "area": finding.area.name(),
            "inode": finding.inode.map(|inode| inode.0),
            "path": finding.path,
            "finding": finding.what,
            "meaning": finding.area.meaning(),
        });
        println!("{line}");
    }
    code(checked)
}

fn print(directory: &Path, checked: &Checked) -> ExitCode {
    let mut last = None;
    for finding in &checked.findings {
        let Finding { area, path, what, .. } = finding;
        if last.replace(*area) != Some(*area) {
            println!("{}: {}:", area.name(), area.meaning());
        }
        match path {
            Some(path) => println!("    {path}: {what}"),
            None => println!("    {what}"),
        }
    }
    let commits = checked.commits.map_or(String::new(), |commits| format!(", {commits} commits"));
    let found = match checked.findings.len() {
        0 => "nothing was found".to_owned(),
        1 => "1 finding".to_owned(),
        count => format!("{count} findings"),
    };
    println!("{}: {} inodes{commits}: {found}", directory.display(), checked.inodes);
    if !checked.findings.is_empty() {
        println!(
            "Nothing was changed. Copy the files out if the service still starts, end the job by `tsumugi \
             down` and make it anew; keep the store for a report."
        );
    }
    code(checked)
}

fn code(checked: &Checked) -> ExitCode {
    if checked.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
