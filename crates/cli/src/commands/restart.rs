//! `tsumugi restart`: starts a job's dead processes again.

use crate::deploy::job::JobArgs;
use crate::deploy::remote;
use crate::deploy::stop::Stop;
use crate::output::print_json;
use anyhow::bail;
use clap::Args;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

/// Start a job's dead processes again: its nodes and its metadata service.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi restart                start all dead processes again
    tsumugi restart node2          only this node
    tsumugi restart meta           only the metadata service

The metadata service listens on its old address and has everything that was committed. A node has \
its old device and mount point. The command does not touch running processes. Data on a memory \
device is lost.

Exit codes:
    0  everything runs
    1  something could not be started
    2  wrong usage")]
pub(crate) struct RestartArgs {
    /// Names of nodes, or `meta` [default: all dead processes]
    #[arg(value_name = "NAME")]
    parts: Vec<String>,
    #[command(flatten)]
    job: JobArgs,
    /// Give up on processes that are not ready after this time
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    ready_within: Duration,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `tsumugi restart`.
pub(crate) fn run(args: &RestartArgs) -> anyhow::Result<ExitCode> {
    crate::confine::keep_files_private();
    let dir = args.job.dir()?;
    if !dir.path().exists() {
        bail!("there is no job {} ({})", dir.job(), dir.path().display());
    }
    let stop = Stop::on_signals()?;
    let restarted = remote::restart(&dir, &args.parts, args.ready_within, &stop)?;
    if args.json {
        print_json(&json!({ "job": dir.job(), "restarted": restarted }))?;
    } else if restarted.is_empty() {
        println!("job {}: nothing is dead", dir.job());
    } else {
        println!("job {}: started {} again", dir.job(), restarted.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}
