//! `tsumugi renew`: renews a job's lease.

use crate::deploy::job::NamedArgs;
use crate::deploy::remote;
use crate::output::print_json;
use clap::Args;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

/// Renew a job's lease.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi up --local 2 --lease 1h        a job that ends when its lease expires
    tsumugi renew                          extend it by another hour; `tsumugi renew NAME`: a job by its \
name
    tsumugi renew --lease 10m              let it last ten minutes from now

Exit codes:
    0  the lease is renewed on all machines of the job
    1  there is no such job, it has no lease, or a machine could not be reached; the output names it
    2  wrong usage")]
pub(crate) struct RenewArgs {
    #[command(flatten)]
    job: NamedArgs,
    /// Duration of the lease from now on [default: that of `up --lease`]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    lease: Option<Duration>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `tsumugi renew`.
pub(crate) fn run(args: &RenewArgs) -> anyhow::Result<ExitCode> {
    crate::confine::keep_files_private();
    let dir = args.job.job().dir()?;
    let left = remote::renew(&dir, args.lease)?;
    if args.json {
        print_json(&json!({ "job": dir.job(), "left": left }))?;
    } else if left.is_empty() {
        println!("job {}: the lease is renewed", dir.job());
    }
    for left in &left {
        eprintln!("tsumugi: not renewed: {left}");
    }
    Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
