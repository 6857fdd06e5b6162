//! `tsumugi down`: ends a job's file system and removes every trace of it.

use crate::deploy::cleanup::Report;
use crate::deploy::job::JobArgs;
use crate::deploy::output::print_json;
use crate::deploy::remote;
use clap::Args;
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// End a job's file system and remove every trace of it.
#[derive(Debug, Args)]
#[command(after_help = "\
Nodes commit what was written and end; whoever has not ended in time is killed. Then mounts, network
namespaces, backing files and the job's directory go. May be repeated, and works after any crash.

Exit codes:
    0  the job is gone (or there was none)
    1  something could not be removed; it is named, and `tsumugi down` can be repeated
    2  wrong usage
    3  the job is gone, but something had to be killed: what it had not committed is lost")]
pub(crate) struct DownArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Kill what has not ended after so long
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    deadline: Duration,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `tsumugi down`.
pub(crate) fn run(args: &DownArgs) -> anyhow::Result<ExitCode> {
    let dir = args.job.dir()?;
    let start = Instant::now();
    let report = remote::down(&dir, args.deadline)?;
    let seconds = start.elapsed().as_secs_f64();
    if args.json {
        print_json(&json!({ "job": dir.job(), "seconds": seconds, "was_there": report.was_there,
            "killed": report.killed, "left": report.left }))?;
    } else {
        for name in &report.killed {
            eprintln!("tsumugi: killed {name}");
        }
        for left in &report.left {
            eprintln!("tsumugi: left behind: {left}");
        }
        let done = match (report.was_there, report.left.is_empty()) {
            (false, _) => "was not there",
            (true, true) => "is gone",
            (true, false) => "is not gone",
        };
        println!("job {} {done} ({seconds:.2} s)", dir.job());
    }
    Ok(exit_code(&report))
}

fn exit_code(report: &Report) -> ExitCode {
    match (report.left.is_empty(), report.killed.is_empty()) {
        (false, _) => ExitCode::FAILURE,
        (true, false) => ExitCode::from(3),
        (true, true) => ExitCode::SUCCESS,
    }
}
