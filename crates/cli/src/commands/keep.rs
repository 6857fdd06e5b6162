//! `tsumugi keep`: watches a job's part on this machine. `tsumugi up` starts it.

use crate::deploy::job::JobDir;
use crate::deploy::watch;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Watch a job's part on this machine.
#[derive(Debug, Args)]
pub(crate) struct KeepArgs {
    /// The job's directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs `tsumugi keep`.
pub(crate) fn run(args: &KeepArgs) -> anyhow::Result<ExitCode> {
    crate::confine::keep_files_private();
    watch::keep(&JobDir::at(&args.directory)?)
}
