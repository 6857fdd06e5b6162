//! `tsumugi eval import`: results of other programs as runs of an experiment.

use super::{DATABASE, open};
use anyhow::{Context, bail};
use clap::Args;
use eval::import::{Format, read, store};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// Files with results
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Format of the files [default: detected from the content]
    #[arg(long, value_parser = format, value_name = "fio-json|ior|ffsb|elbencho")]
    format: Option<Format>,
    /// Directory of results to create, or to extend if it has imported ones [default: the name]
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    /// Name of the experiment, also in file names
    #[arg(long, default_value = "imported")]
    name: String,
}

fn format(name: &str) -> Result<Format, String> {
    let found = Format::ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, format)| *format).ok_or_else(|| {
        let names: Vec<&str> = Format::ALL.iter().map(|(name, _)| *name).collect();
        format!("there are {}", names.join(", "))
    })
}

/// Reads all files before it stores anything.
pub(super) fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let (mut records, mut sources) = (Vec::new(), Vec::new());
    for path in &args.files {
        let found = read(path, args.format)?;
        let count = found.records.len();
        println!("{}: {}, {count} runs", path.display(), found.format.name());
        let name = path.file_name().map_or_else(|| path.into(), PathBuf::from);
        sources.push(format!("imported {} ({})", name.display(), found.format.name()));
        records.extend(found.records);
    }
    let directory = args.into.clone().unwrap_or_else(|| PathBuf::from(&args.name));
    if directory.is_file() {
        bail!("{} is a file: give a directory with --into", directory.display());
    }
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let database = directory.join(DATABASE);
    drop(store(&database, &args.name, records, &sources)?);
    println!("report: {}", open(&directory)?.write(&directory)?.display());
    Ok(ExitCode::SUCCESS)
}
