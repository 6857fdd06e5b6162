//! `tsumugi stats`: counts and latencies of a mount, or of another service of a job.

use crate::deploy::ask::Service;
use crate::observe::show;
use crate::output::plain;
use clap::Args;
use metrics::{Counts, Snapshot};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Show counts and latencies of a mount's operations.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi stats /mnt/job                       everything since the mount's process started
    tsumugi stats /mnt/job --interval 1          each second, until Ctrl-C
    tsumugi stats /mnt/job --interval 1 --count 5 --json
    tsumugi stats /mnt/job --prometheus          in the text format of Prometheus
    tsumugi stats /run/tsumugi/4711/meta-service.sock   the metadata service of job 4711

Families of operations in a node: fuse (requests of the kernel), client (data on local and remote \
devices), call (calls to the metadata service), return (rights that the node gives back), target \
and host (NVMe commands). In the metadata service: serve (calls) and recall (rights that it takes \
back). A latency is the upper end of its bucket, at most a quarter too high. docs/observability.md \
explains all names.

Exit codes:
    0  shown
    1  the mount's process does not answer, or there is no such mount
    2  wrong usage")]
pub(crate) struct StatsArgs {
    /// Path in a mount, or a service's socket
    #[arg(value_name = "MNT")]
    place: PathBuf,
    /// Show the operations of each interval of SECONDS
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    interval: Option<Duration>,
    /// End after N intervals
    #[arg(long, value_name = "N", requires = "interval")]
    count: Option<u64>,
    /// Print JSON, one object per line
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Print in the text format of Prometheus
    #[arg(long, conflicts_with = "interval")]
    prometheus: bool,
}

/// Parses a number of seconds from 0.01 to 86400.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    if !(0.01..=86400.0).contains(&seconds) {
        return Err(format!("{text} seconds: the range is 0.01 to 86400"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Runs `tsumugi stats`.
pub(crate) fn run(args: &StatsArgs) -> anyhow::Result<ExitCode> {
    let service = Service::at(&args.place)?;
    if args.prometheus {
        print!("{}", plain(&service.prometheus()?));
        return Ok(ExitCode::SUCCESS);
    }
    let mut before = service.snapshot()?;
    let Some(interval) = args.interval else {
        print(args, &before, before.operations.clone(), None)?;
        return Ok(ExitCode::SUCCESS);
    };
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        left -= 1;
        std::thread::sleep(interval);
        let now = service.snapshot()?;
        let over = Duration::from_nanos(now.at_ns.saturating_sub(before.at_ns));
        print(args, &now, now.operations_since(&before), Some(over))?;
        before = now;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(
    args: &StatsArgs,
    now: &Snapshot,
    operations: Vec<Counts>,
    over: Option<Duration>,
) -> anyhow::Result<()> {
    let operations = show::sorted(operations);
    if args.json {
        let operations: Vec<_> = operations.iter().map(as_json).collect();
        let value = json!({ "at_ns": now.at_ns, "seconds": over.map(|over| over.as_secs_f64()),
            "operations": operations, "running": now.running, "slow": now.slow, "values": now.values,
            "notes": now.notes });
        println!("{}", plain(&serde_json::to_string(&value)?));
        return Ok(());
    }
    println!("{}", show::head(over.is_some()));
    for one in &operations {
        println!("{}", show::line(one, over));
    }
    for note in &now.notes {
        println!("{}", plain(note));
    }
    println!("");
    Ok(())
}

/// Returns an operation as JSON, with quantiles instead of buckets.
pub(crate) fn as_json(one: &Counts) -> serde_json::Value {
    let count = one.count();
    let quantile = |share| one.latencies.quantile_ns(share);
    json!({ "family": one.family, "name": one.name, "count": count, "errors": one.errors,
        "bytes": one.bytes, "sum_ns": one.sum_ns, "mean_ns": one.sum_ns / count.max(1),
        "p50_ns": quantile(0.5), "p99_ns": quantile(0.99), "max_ns": quantile(1.0) })
}
