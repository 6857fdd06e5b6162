//! The results of a run, as text or JSON.

use super::super::print_json;
use super::job::JobResult;
use super::{Measured, PerfArgs};
use eval::threads;
use hdrhistogram::Histogram;
use serde_json::json;
use std::net::SocketAddr;

/// All jobs together.
struct Sum {
    reads: u64,
    writes: u64,
    reconnects: u64,
    verified: u64,
    latency_ns: Histogram<u64>,
    /// Address of each path, and the number of commands sent on it.
    paths: Vec<(SocketAddr, u64)>,
}

fn sum(results: Vec<JobResult>) -> anyhow::Result<Sum> {
    let mut results = results.into_iter();
    let Some(first) = results.next() else { anyhow::bail!("no job has a result") };
    let mut sum = Sum {
        reads: first.reads,
        writes: first.writes,
        reconnects: first.reconnects,
        verified: first.verified,
        latency_ns: first.latency_ns,
        paths: first.paths.iter().map(|path| (path.address, path.commands)).collect(),
    };
    for result in results {
        sum.reads += result.reads;
        sum.writes += result.writes;
        sum.reconnects += result.reconnects;
        sum.verified += result.verified;
        sum.latency_ns.add(&result.latency_ns)?;
        for path in &result.paths {
            match sum.paths.iter_mut().find(|(address, _)| *address == path.address) {
                Some((_, commands)) => *commands += path.commands,
                None => sum.paths.push((path.address, path.commands)),
            }
        }
    }
    Ok(sum)
}

/// Prints the outcome.
pub(super) fn print(
    args: &PerfArgs,
    measured: &Measured,
    results: Vec<JobResult>,
) -> anyhow::Result<()> {
    let sum = sum(results)?;
    let requests = sum.reads + sum.writes;
    let seconds = measured.seconds.max(f64::MIN_POSITIVE);
    let iops = requests as f64 / seconds;
    let mib_per_s = iops * args.bs as f64 / f64::from(1 << 20);
    let cpu_us = measured.cpu_seconds * 1e6 / (requests.max(1) as f64);
    let cpu_percent = measured.cpu_seconds / seconds * 100.0;
    let us = |ns: u64| ns as f64 / 1e3;
    let latency = &sum.latency_ns;
    let (avg, max) = (latency.mean() / 1e3, us(latency.max()));
    let at = |quantile: f64| us(latency.value_at_quantile(quantile));
    if args.output.is_json()? {
        let mut said = json!({
            "rw": format!("{:?}", args.rw).to_lowercase(), "bs": args.bs,
            "iodepth": args.iodepth, "numjobs": args.numjobs, "seconds": measured.seconds,
            "is_interrupted": measured.is_interrupted, "reads": sum.reads, "writes": sum.writes,
            "iops": iops, "mib_per_s": mib_per_s,
            "latency_us": {
                "avg": avg, "p50": at(0.5), "p99": at(0.99), "p99.9": at(0.999), "max": max,
            },
            "cpu_us_per_io": cpu_us, "cpu_percent": cpu_percent,
            "reconnects": sum.reconnects, "verified": sum.verified, "series": measured.series,
        });
        if !sum.paths.is_empty() {
            let of = |(address, commands): (SocketAddr, u64)| json!({ "address": address, "commands": commands });
            said["paths"] = sum.paths.iter().map(|path| of(*path)).collect();
        }
        if args.histogram {
            said["histogram_ns"] = json!(threads::coarse(latency)?);
        }
        return print_json(&said);
    }
    let mode = format!("{:?}", args.rw).to_lowercase();
    println!(
        "{mode} bs {} iodepth {} numjobs {}: {seconds:.2} s{}",
        args.bs,
        args.iodepth,
        args.numjobs,
        if measured.is_interrupted { ", interrupted" } else { "" },
    );
    println!("  {iops:.0} IOPS, {mib_per_s:.1} MiB/s ({} reads, {} writes)", sum.reads, sum.writes);
    println!(
        "  latency us: avg {avg:.1}, p50 {:.1}, p99 {:.1}, p99.9 {:.1}, max {max:.1}",
        at(0.5),
        at(0.99),
        at(0.999),
    );
    println!("  CPU of this process: {cpu_us:.2} us per I/O, {cpu_percent:.0} %");
    for (address, commands) in &sum.paths {
        println!("  path {address}: {commands} commands");
    }
    if sum.verified > 0 {
        println!("  verified: {} requests", sum.verified);
    }
    if sum.reconnects > 0 {
        println!("  reconnects: {}", sum.reconnects);
    }
    Ok(())
}
